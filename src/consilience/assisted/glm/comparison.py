"""The joint model beside the initiator's own: on the training rows and on those held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted.glm.closing import MOST_BINS
from consilience.assisted.glm.messages import Settings
from consilience.assisted.glm.rows import Rows
from consilience.assisted.kernels.families import Family
from consilience.wire.disclosure import Limits, Released, aggregate, stacked


@dataclass(frozen=True, eq=False)
class Comparison:
    """Figures of both models.

    Attributes
    ----------
    figures : dict of str to float
        NaN where there is nothing to say.
    predicted : (2, h) array
        Mean response of the held-out rows by the initiator's own model and by the joint one.
    observed : (h,) array
    """

    figures: dict[str, float]
    predicted: FloatArray
    observed: FloatArray

    def calibration(self, limits: Limits) -> Released:
        """Mean prediction and mean response by part of the prediction; small parts are withheld."""
        h = len(self.observed)
        bins = int(np.clip(h // 60, 2, MOST_BINS))
        parts = []
        for predicted in self.predicted:
            if not h:
                parts.append(aggregate(np.empty((0, 2)), cells=np.empty(0, int), n_cells=bins))
                continue
            order = np.argsort(np.argsort(predicted, kind="stable"), kind="stable")
            cells = order * bins // h
            pairs = np.stack([predicted, self.observed], axis=1)
            means = aggregate(pairs, cells=cells, n_cells=bins, mean=True)
            parts.append(means.withhold_unsafe(limits))
        return stacked([p.withhold(np.isnan(np.asarray(p.value))) for p in parts])


def comparison(
    s: Settings, rows: Rows, joint: FloatArray, alone: FloatArray, fam: Family
) -> Comparison:
    """Compare the models by the true response.

    Parameters
    ----------
    s : Settings
    rows : Rows
    joint, alone : (n,) arrays
        Linear predictors after the training, of all rows.
    fam : Family
        Of the training.
    """
    true = s.true_family()
    if s.masked and s.masking == "as_printed":
        p = np.clip((fam.mean(joint) - s.flip) / (1 - 2 * s.flip), 1e-6, 1 - 1e-6)
        joint = np.log(p / (1 - p))
    used = rows.train
    start = true.start(rows.y[used], rows.weights[used])
    null = np.full(len(joint), float(start))
    etas = {"null": null, "alone": alone, "joint": joint}
    figures = {
        f"deviance_{k}": true.deviance(rows.y[used], e[used], rows.weights[used])
        for k, e in etas.items()
    }
    whole = figures["deviance_null"]
    for way in ("alone", "joint"):
        figures[f"r2_{way}"] = 1 - figures[f"deviance_{way}"] / whole if whole > 0 else np.nan
    held, v = rows.held, rows.weights[rows.held]
    gaps = not held.any()
    for way, eta in etas.items():
        figures[f"holdout_{way}"] = (
            np.nan if gaps else true.deviance(rows.y[held], eta[held], v) / float(v.sum())
        )
        auc = np.nan if gaps or s.family != "binomial" else area(rows.y[held], eta[held])
        figures[f"auc_{way}"] = auc
    gain = 2 * (true.loss(rows.y[held], alone[held]) - true.loss(rows.y[held], joint[held]))
    figures["gain"] = np.nan if gaps else float(v @ gain / v.sum())
    figures["gain_error"] = (
        np.nan if held.sum() < 2 else float(np.sqrt(v**2 @ (gain - figures["gain"]) ** 2) / v.sum())
    )
    predicted = np.stack([true.mean(alone[held]), true.mean(joint[held])])
    return Comparison(figures, predicted, rows.y[held])


def area(y: FloatArray, score: FloatArray) -> float:
    """Area under the receiver operating curve, ties counted half; NaN with one class."""
    from scipy.stats import rankdata

    n1 = float(y.sum())
    n0 = len(y) - n1
    if not n1 or not n0:
        return float("nan")
    return float((rankdata(score)[y > 0].sum() - n1 * (n1 + 1) / 2) / (n0 * n1))
