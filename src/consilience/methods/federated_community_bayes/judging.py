"""Figures of made models on rows that a site held out, as far as they may be told.

Every judged model is a question of somebody else's choice about the rows. Where records are
protected, a steep model, whose loss would count the rows beyond a plane, is judged as if it were
flatter; losses are bounded; and a mean is rounded to no less than what any row does to it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import ProtocolError
from consilience.methods.federated_community_bayes.messages import Judged
from consilience.methods.federated_community_bayes.rows import LEFT_OUT, Rows
from consilience.numerics import multinomial
from consilience.wire.disclosure import Limits, Released, aggregate, bundle, rounded, weighted_means

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STEEPEST = 10.0
"""Root mean square of the centred contrasts of a model over the site's rows."""
LARGEST_LOSS = float(np.log(1e4))


def judged_models(
    rows: Rows, part: int, models: FloatArray, classes: IntArray, limits: Limits, *, counts: bool
) -> Judged:
    """Judge models on one part of the rows.

    Parameters
    ----------
    rows : Rows
    part : int
    models : (a, m - 1, p + 1) array
        Contrasts of the classes, intercepts first.
    classes : (m,) int array
        Levels of these classes.
    limits : Limits
    counts : bool
        Whether shares of wrong predictions are told.

    Returns
    -------
    Judged
        Mean log loss of the first model, and by how much that of each other one is lower.
    """
    m = len(classes)
    if models.shape[1:] != (m - 1, rows.x.shape[1] + 1) or not len(models):
        raise ProtocolError("judged models are none of the study's columns and classes")
    held = rows.part == part
    used = rows.part != LEFT_OUT
    y = np.searchsorted(classes, rows.codes[held])
    if not held.any():
        gaps = aggregate(np.full((0, len(models)), np.nan)).withhold(np.ones(len(models), bool))
        return Judged(losses=gaps, errors=gaps, wrong=_shares([], len(models), 0, limits))
    design, q = multinomial.design_of(rows.x[used]), multinomial.contrasts(m)
    protected = limits.min_records > 1
    losses, wrong = [], []
    for phi in models:
        eta = design @ phi.T
        if protected:
            eta = _flattened(eta)
        scores = eta[held[used]] @ q.T
        scores = scores - scores.max(axis=1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        loss = -log_p[np.arange(len(y)), y]
        losses.append(np.minimum(loss, LARGEST_LOSS) if protected else loss)
        wrong.append(float(np.mean(scores.argmax(axis=1) != y)))
    values = np.column_stack([losses[0], *(losses[0] - other for other in losses[1:])])
    means = weighted_means(values, limits=limits, entities=np.arange(len(y)))
    told = wrong if counts else []
    return Judged(
        losses=means.mean,
        errors=means.variance,
        wrong=_shares(told, len(models), len(y), limits),
    )


def _flattened(eta: FloatArray) -> FloatArray:
    """Contrasts of no more than a certain spread over the site's rows."""
    centre = eta.mean(axis=0)
    spread = float(np.sqrt(((eta - centre) ** 2).sum(axis=1).mean()))
    return eta if spread <= STEEPEST else centre + (eta - centre) * (STEEPEST / spread)


def _shares(wrong: list[float], n_models: int, n: int, limits: Limits) -> Released:
    """Shares of wrong predictions, to within `min_records` rows; NaN where none are told."""
    if not wrong:
        nothing = [rounded(float("nan"), n_records=0, step=1.0) for _ in range(n_models)]
        return bundle(nothing)
    step = min(1.0, max(limits.min_records, 1) / n)
    return bundle([rounded(share, n_records=n, step=step) for share in wrong])
