"""New people at default policies: limits of responses, calibrated probabilities, the gain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience import AssistedGLM, Columns, Federation, Policy  # noqa: E402
from consilience.assisted.kernels.glm import family  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from examples.heart_columns.make_tables import CARDIOLOGY, CLINIC, patients  # noqa: E402
from replications.assisted_glm.joint import data_folder, nsl_kdd  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
LEVEL, HOLDOUT = 0.95, 0.2
SPLITS, DRAWS = 200, 500
BANDS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of the calibrated probability: observed shares are compared with the limits in each."""
POLICY = {
    "a": Policy(preset="consortium", share_response=True),
    "b": Policy(preset="consortium"),
}
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Drawn = tuple[FloatArray, FloatArray, FloatArray, "IntArray | None"]
"""Columns of the two parties, response of all people, clusters."""


# --------------------------------------------------------------------------- real tables


def heart() -> Drawn:
    """Four hospitals together: what a first visit tells, and the exercise test."""
    rows = patients(data_folder("heart"))
    rows = rows[rows[[*CLINIC, *CARDIOLOGY]].notna().all(axis=1)]
    own, partner = (rows[names].to_numpy(np.float64) for names in (CLINIC, CARDIOLOGY))
    return own, partner, rows["disease"].to_numpy(np.float64), None


def breast_cancer() -> Drawn:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return x[:, :15], x[:, 15:], y.astype(np.float64), None


def diabetes() -> Drawn:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return x[:, :5], x[:, 5:], y.astype(np.float64), None


def intrusions() -> Drawn:
    drawn = nsl_kdd(np.random.default_rng(0), 1000)
    return drawn.columns["a"], drawn.columns["b"], drawn.y, None


def spam() -> Drawn:
    rows = pd.read_csv(data_folder("esl") / "spam.data.gz", sep=" ", header=None).to_numpy(float)
    rows = rows[np.random.default_rng(0).permutation(len(rows))[:2000]]
    x = np.log(rows[:, :-1] + 0.1)
    return x[:, :28], x[:, 28:], rows[:, -1], None


REAL: dict[str, tuple[Callable[[], Drawn], str, float]] = {
    "heart": (heart, "binomial", 0.0),
    # separated without a penalty
    "breast cancer": (breast_cancer, "binomial", 0.01),
    "NSL-KDD": (intrusions, "binomial", 0.0),
    "spam": (spam, "binomial", 0.001),
    "diabetes": (diabetes, "normal", 0.0),
}


# --------------------------------------------------------------------------- simulated ones

N, N_NEW, EACH = 800, 1000, 3


def simulated(design: str, rng: np.random.Generator) -> Drawn:
    """Correlated columns, three at each party; the model of the fit is wrong in most designs."""
    n = N + N_NEW
    of = None
    x = 0.6 * rng.normal(size=(n, 1)) + 0.8 * rng.normal(size=(n, 2 * EACH))
    eta = 0.2 + x @ np.resize([0.4, -0.3, 0.2], 2 * EACH)
    if design == "heavy tails, unequal spread":
        y = eta + (0.5 + x[:, 0] ** 2) * rng.standard_t(2.5, size=n)
    elif design == "clusters":
        of = np.repeat(np.arange(n), rng.integers(1, 9, size=n))[:n].astype(np.int64)
        y = eta + 1.5 * rng.normal(size=n)[of] + rng.normal(size=n)
    elif design == "counts, overdispersed":
        y = rng.poisson(np.exp(eta) * rng.gamma(1.0, 1.0, size=n)).astype(np.float64)
    elif design == "lognormal":
        y = np.exp(eta + rng.normal(size=n) - 0.5)
    else:
        # neither the link nor the form of the mean is that of the fit
        y = (rng.random(n) < 0.1 + 0.7 * expit(3 * eta + x[:, 1] * x[:, 4])).astype(np.float64)
    return x[:, :EACH], x[:, EACH:], y, of


SIMULATED = {
    "heavy tails, unequal spread": "normal",
    "clusters": "normal",
    "counts, overdispersed": "poisson",
    "lognormal": "gamma",
    "another link": "binomial",
}


# --------------------------------------------------------------------------- one run


def one(line: str, seed: int) -> dict[str, Any]:
    """Fit at default policies, predict people whose response only this script knows."""
    rng = stream(seed, "new people", line)
    if line in REAL:
        read, kind, alpha = REAL[line]
        a, b, y, of = read()
        new = rng.permutation(len(y)) < len(y) // 4
    else:
        kind, alpha = SIMULATED[line], 0.0
        a, b, y, of = simulated(line, rng)
        new = np.arange(len(y)) >= N
        if of is not None:
            new = of > of[N - 1]  # whole clusters are new
    ids = np.array([f"p{i:05d}" for i in range(len(y))])
    tables = {
        "a": pd.DataFrame(a, columns=[f"a{j}" for j in range(a.shape[1])]),
        "b": pd.DataFrame(b, columns=[f"b{j}" for j in range(b.shape[1])]),
    }
    roles: dict[str, Any] = {"target": "y"}
    tables["a"]["y"] = np.where(new, np.nan, y)
    names = {site: tuple(c for c in t.columns if c != "y") for site, t in tables.items()}
    if of is not None:
        tables["a"]["g"], roles["cluster"] = of, "g"
    for table in tables.values():
        table.insert(0, "id", ids)
    columns = {
        "a": Columns(id="id", features=names["a"], **roles),
        "b": Columns(id="id", features=names["b"]),
    }
    federation = Federation.local(tables, columns=columns, policy=POLICY)
    method = AssistedGLM(
        family=kind, response="share", holdout=HOLDOUT, level=LEVEL, alpha=alpha, interval="none"
    )
    run = method.run(federation, seed=seed)
    site, result = run.site("a"), run.result
    truth, back = y[site.rows], site.values("is_new") == 1
    told = {"known": result.revealed["b"][0] / result.revealed["b"][1]}
    if kind == "binomial":
        low, middle, high = (
            site.values(f"probability{end}")[back] for end in ("_lower", "", "_upper")
        )
        seen, own = truth[back], site.values("prediction")[back]
        told |= {"low": low, "high": high, "middle": middle, "seen": seen, "own": own}
    else:
        low, high = site.values("response_lower")[back], site.values("response_upper")[back]
        seen = truth[back]
        told["covered"] = float(np.mean((low <= seen) & (seen <= high)))
        told["width"] = float(np.mean(high - low) / (4 * 0.98 * y.std()))
    if line in SIMULATED:
        told["gain"] = gain_covered(run, kind, a[site.rows], truth, back)
    return told


def gain_covered(run: Any, kind: str, a: FloatArray, y: FloatArray, new: Any) -> float:
    """Whether the interval of the gain, from held-out rows, agrees with the gain on new people.

    That one has an error of its own, of so many new people (or clusters of them), which is added.
    """
    result, fam = run.result, family(kind)
    alone = np.asarray(result.alone["estimate"])
    eta = run.site("a").values("linear_predictor")[new]
    before = alone[0] + a[new] @ alone[1:]
    gains = 2 * (fam.loss(y[new], before) - fam.loss(y[new], eta))
    rows = result.n_held_clusters or result.n_holdout
    own = gains.std() / np.sqrt(len(gains) * rows / result.n_holdout)
    gain, error = result.holdout["alone_minus_joint"], result.holdout["error"]
    return float(abs(gain - gains.mean()) <= result.gain_reach * np.hypot(error, own))


def rows_of(line: str, sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for limits; for classes one for each band of the probability."""
    known = mean((one["known"] for one in sets), "known", ".3f")
    base = {"data": line, "replicates": len(sets)}
    gains = share((one["gain"] for one in sets if "gain" in one), "gain_covered")
    if "covered" in sets[0]:
        found = share((one["covered"] for one in sets), "covered")
        found |= mean((one["width"] for one in sets), "width", ".3f")
        return [{**base, "band": "all", **known, **found, **gains}]
    rows, edges = [], (0.0, *BANDS, 1.0)
    for band in range(-1, len(BANDS) + 1):
        parts = []
        for one in sets:
            own = np.digitize(one["middle"], BANDS) == band if band >= 0 else one["seen"] >= 0
            better = np.where(one["seen"] == 1, one["high"], one["low"])
            columns = np.stack([one["low"], one["seen"], one["high"], better, one["seen"] >= 0])
            parts.append(columns[:, own].sum(axis=1))
        sums = np.array(parts)  # by split; the last column counts people
        if sums[:, -1].sum() < 0.01 * sum(len(one["seen"]) for one in sets):
            continue
        low, seen, high, better = sums[:, :-1].sum(axis=0) / sums[:, -1].sum()

        def error(rest: FloatArray, people: FloatArray = sums[:, -1]) -> str:
            return f"{np.sqrt(np.square(rest).sum()) / people.sum():.4f}"

        name = "all" if band < 0 else f"{edges[band]:g} to {edges[band + 1]:g}"
        row = {**base, "band": name, **(known if band < 0 else {})}
        row |= {"lower": f"{low:.4f}", "observed": f"{seen:.4f}", "upper": f"{high:.4f}"}
        row["outside"] = f"{max(low - seen, seen - high, 0.0):.4f}"
        row["outside_se"] = error(sums[:, 1] - seen * sums[:, -1])
        if band < 0:
            # the theorem: the probability that the response itself chooses is calibrated
            off = sums[:, 1] - sums[:, 3]
            row |= {"chosen_off": f"{seen - better:.4f}"}
            row["chosen_off_se"] = error(off - off.sum() * sums[:, -1] / sums[:, -1].sum())
            row |= gains
        rows.append(row)
    return rows


def main() -> None:
    chosen = options(__doc__)
    lines = [*REAL, *SIMULATED]
    table = Table(HERE, chosen, lines)
    for line in lines:
        count = SPLITS if line in REAL else DRAWS
        if not table.wanted(line, count):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=count, chosen=chosen)
        table.add(line, rows_of(line, sets))


if __name__ == "__main__":
    main()
