"""Rounds that joint training needs: plain alternation, Anderson's and the span of the messages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.glm import Fit, family, fit  # noqa: E402
from consilience.datasets.simulate_assisted import SplitColumns, simulate_setting  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.joint import nsl_kdd, train_jointly  # noqa: E402
from replications.assisted_glm.simulate import simulate_canonical, simulate_opposed  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate  # noqa: E402

HERE = Path(__file__).parent
N = 2000
REPLICATES = 20
LARGEST = {"none": 400, "anderson": 120, "span": 40}
"""Rounds after which one stops looking; a figure beyond counts as this number plus 1."""
NAMES = {"none": "plain", "anderson": "Anderson", "span": "span"}
ERRORS = (1e-2, 1e-4, 1e-6)
FloatArray = NDArray[np.float64]
Design = Callable[[np.random.Generator], SplitColumns]


def shared(number: int, rng: np.random.Generator) -> SplitColumns:
    """Twelve columns of which some even number is held by both parties."""
    data = simulate_setting(1, N, rng=rng, effects="power")
    names = tuple(data.coefficients)
    own = (len(names) - number) // 2
    x = data.pooled
    place = {
        "a": [*range(own), *range(2 * own, len(names))],
        "b": [*range(own, 2 * own), *range(2 * own, len(names))],
    }
    return SplitColumns(
        {party: x[:, held] for party, held in place.items()},
        {party: tuple(names[j] for j in held) for party, held in place.items()},
        data.y,
        data.eta,
        data.coefficients,
        data.family,
    )


def in_setting(number: int, kind: str, rho: float, rng: np.random.Generator) -> SplitColumns:
    return simulate_setting(number, N, rng=rng, family=kind, effects="power", rho=rho)


def pairs(rng: np.random.Generator) -> SplitColumns:
    return simulate_opposed(N, rng=rng, n_columns=6)[0]


def alike(rng: np.random.Generator) -> SplitColumns:
    """Six columns each; any two of the twelve have correlation .9."""
    canonical = 6 * 0.9 / (1 + 5 * 0.9)
    return simulate_canonical(N, [canonical], n_columns=(6, 6), rng=rng)


def many(rng: np.random.Generator) -> SplitColumns:
    return simulate_canonical(N, np.linspace(0.97, 0.0, 50).tolist(), rng=rng)


DESIGNS: dict[str, tuple[Design, int]] = {
    **{
        f"setting {s} {kind}": (partial(in_setting, s, kind, 0.0), REPLICATES)
        for s in (1, 2, 3)
        for kind in ("binomial", "poisson", "normal")
    },
    **{
        f"setting {s} binomial rho 0.25": (partial(in_setting, s, "binomial", 0.25), REPLICATES)
        for s in (1, 2, 3)
    },
    **{f"{k} shared columns": (partial(shared, k), REPLICATES) for k in (2, 6)},
    "NSL-KDD": (nsl_kdd, 10),
    "six pairs with correlation 0.9": (pairs, REPLICATES),
    "all correlations 0.9": (alike, REPLICATES),
    "50 + 50 columns": (many, 5),
}


def one(design: str, seed: int) -> dict[str, dict[str, float]]:
    """Rounds to each error, and what is left at the default budget, by acceleration."""
    data = DESIGNS[design][0](stream(seed, "training", design))
    model = family(data.family)
    pooled = fit(columns(data), data.y, model, tol=1e-13)
    rank = int(np.linalg.matrix_rank(data.columns["b"] - data.columns["b"].mean(axis=0)))
    found = {}
    for acceleration in NAMES:
        run = Rounds(data, acceleration, pooled)
        figures = {f"to_{error:g}": float(run.first_below(error)) for error in ERRORS}
        figures["rank"] = float(rank)
        # per record; the same number of rounds as the span needs for 1e-6
        figures["gap_budget"] = float("nan")
        if acceleration == "span":
            short = train_jointly(data, acceleration, LARGEST["span"], max_rank=rank - 1)
            figures["gap_budget"] = deviance_gap(data, short.eta, pooled)
            figures["error_budget"] = relative_error(short.eta, pooled)
            figures["gap_alone"] = deviance_gap(
                data, fit(data.columns["a"], data.y, model).eta, pooled
            )
        for k in (1, 2, 3, 4):
            figures[f"gap_{k}"] = deviance_gap(data, run.eta(k), pooled)
        figures["final"] = deviance_gap(data, run.eta(LARGEST["span"]), pooled)
        found[acceleration] = figures
    return found


class Rounds:
    """Linear predictors after any number of rounds of one training."""

    def __init__(self, data: SplitColumns, acceleration: str, pooled: Fit) -> None:
        self.data, self.acceleration, self.pooled = data, acceleration, pooled
        self.known: dict[int, FloatArray] = {}

    def eta(self, rounds: int) -> FloatArray:
        if rounds not in self.known:
            self.known[rounds] = train_jointly(self.data, self.acceleration, rounds).eta
        return self.known[rounds]

    def below(self, rounds: int, error: float) -> bool:
        return relative_error(self.eta(rounds), self.pooled) <= error

    def first_below(self, error: float) -> int:
        """First round with at most this error: steps that double, then halves."""
        largest = LARGEST[self.acceleration]
        low, high = -1, 0  # not below at `low`
        while not self.below(high, error):
            if high == largest:
                return largest + 1
            low, high = high, min(max(2 * high, 1), largest)
        while high - low > 1:
            middle = (low + high) // 2
            if self.below(middle, error):
                high = middle
            else:
                low = middle
        return high


def columns(data: SplitColumns) -> FloatArray:
    return data.pooled


def relative_error(eta: FloatArray, pooled: Fit) -> float:
    return float(np.linalg.norm(eta - pooled.eta) / np.linalg.norm(pooled.eta))


def deviance_gap(data: SplitColumns, eta: FloatArray, pooled: Fit) -> float:
    """Deviance above the pooled fit's, per record."""
    model = family(data.family)
    return (model.deviance(data.y, eta) - model.deviance(data.y, pooled.eta)) / len(data.y)


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, DESIGNS)
    for design, (_, replicates) in DESIGNS.items():
        if not table.wanted(design, replicates):
            continue
        sets = replicate(one, design, replicates=replicates, chosen=chosen)
        rows: list[dict[str, Any]] = []
        for acceleration, shown in NAMES.items():
            each = [one_set[acceleration] for one_set in sets]
            row: dict[str, Any] = {
                "design": design,
                "method": shown,
                "replicates": len(sets),
                "rank": f"{each[0]['rank']:.0f}",
            }
            for error in ERRORS:
                values = np.array([figures[f"to_{error:g}"] for figures in each])
                row[f"to_{error:g}"] = f"{values.mean():.1f}"
                row[f"to_{error:g}_most"] = f"{values.max():.0f}"
            for name in ("gap_1", "gap_2", "gap_3", "gap_4", "final"):
                row[name] = f"{np.mean([figures[name] for figures in each]):.1e}"
            least = [one_set["none"]["final"] for one_set in sets]
            row["above_plain"] = sum(
                figures["final"] > other + 1e-12 for figures, other in zip(each, least, strict=True)
            )
            for name in ("gap_alone", "gap_budget", "error_budget"):
                values = np.array([figures.get(name, np.nan) for figures in each])
                row[name] = "" if np.isnan(values).any() else f"{values.mean():.1e}"
            rows.append(row)
        table.add(design, rows)


if __name__ == "__main__":
    main()
