"""Ranks and numbers of classes where assumptions break, beside other criteria, and the remarks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience import ClusterCountCV, EntrywiseKFold, NuclearNormCV, RankCV  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
FloatArray = NDArray[np.float64]
Rng = np.random.Generator
BOUND, OTHER, BESIDE, FULL = 100, 25, 25, 10
"""Tables of a line with a bound, and of others; those among them that are shown to other criteria
for the number of classes, and those that get full mixtures."""
ROWS, COLUMNS, RANK = 100, 20, 3
"""Of the tables whose rank is sought."""
STRETCH, BLOCK = 10, 5
"""Neighbouring columns that are held out together, and columns of a block."""

# --------------------------------------------------------------------------- tables with a rank

SPREADS: dict[str, Callable[[Rng], FloatArray]] = {
    "equal": lambda _: np.ones(COLUMNS),
    "log-uniform": lambda rng: np.exp(rng.uniform(np.log(0.2), np.log(5.0), COLUMNS)),
    "inverse chi-squared": lambda rng: np.sqrt(3.0 / rng.chisquare(3, COLUMNS)),
    "lognormal": lambda rng: np.exp(2.0 * rng.standard_normal(COLUMNS)),
    "one column a hundredfold": lambda _: np.where(np.arange(COLUMNS) == 0, 100.0, 1.0),
    "two columns tenfold": lambda _: np.where(np.arange(COLUMNS) < 2, 10.0, 1.0),
}
"""Standard deviations of the noise of the columns."""


def signal(rng: Rng) -> FloatArray:
    """Three components; the entries of each column have variance 3 about."""
    return rng.standard_normal((ROWS, RANK)) @ rng.standard_normal((RANK, COLUMNS))


def white(rng: Rng) -> FloatArray:
    return rng.standard_normal((ROWS, COLUMNS))


def going_along(rng: Rng) -> FloatArray:
    """Noise whose neighbouring columns have correlation .8."""
    far = np.abs(np.subtract.outer(np.arange(COLUMNS), np.arange(COLUMNS)))
    return np.asarray(white(rng) @ np.linalg.cholesky(0.8**far).T)


def small_ones_missing(x: FloatArray, rng: Rng) -> FloatArray:
    """Of the entries below the median of their column .3 are missing, of others none."""
    gone = (x < np.median(x, axis=0)) & (rng.random(x.shape) < 0.3)
    return np.where(gone, np.nan, x)


def answers(x: FloatArray) -> FloatArray:
    """Five answers in place of a number: whole standard deviations, from -2 to 2."""
    return np.clip(np.round(x / x.std(axis=0)), -2.0, 2.0)


RANKS: dict[str, tuple[int, Callable[[Rng], FloatArray]]] = {
    **{
        f"noise {how}": (0, lambda rng, of=of: of(rng) * white(rng))
        for how, of in SPREADS.items()
        if how != "equal"
    },
    **{
        f"rank 3, noise {how}": (RANK, lambda rng, of=of: signal(rng) + of(rng) * white(rng))
        for how, of in SPREADS.items()
    },
    "rank 3, noise along columns": (RANK, lambda rng: signal(rng) + going_along(rng)),
    "rank 3, noise of heavy tails": (
        RANK,
        lambda rng: signal(rng) + rng.standard_t(3, (ROWS, COLUMNS)),
    ),
    "rank 3, five answers": (RANK, lambda rng: answers(signal(rng) + white(rng))),
    "rank 3, small values missing": (
        RANK,
        lambda rng: small_ones_missing(signal(rng) + white(rng), rng),
    ),
}
"""True rank and draw of a table."""


def of_ranks(line: str, seed: int) -> dict[str, dict[str, float]]:
    """Rank of one table by each criterion."""
    true, draw = RANKS[line]
    x = draw(stream(seed, "assumptions", line))
    low, high = (true - 1, true + 1) if true else (0, 0)
    found: dict[str, dict[str, float]] = {}
    for scale in ("none", "columns"):
        search = RankCV("hard", scale=scale, center="columns", random_state=seed).fit(x)
        found[f"held-out entries, scale {scale}"] = {
            "chosen": search.minimiser_,
            "remark": float(bool(search.remarks_)),
        }
    if line.startswith("noise ") or line == "rank 3, noise equal":
        soft = RankCV("soft-unshrunk", center="columns", random_state=seed).fit(x)
        penalty = NuclearNormCV(center="columns", random_state=seed).fit(x)
        found["SOFT-IMPUTE+, scale none"] = {"chosen": soft.minimiser_}
        found["SOFT-IMPUTE, scale none"] = {"chosen": float(penalty.rank_)}
    if true and line.removeprefix("rank 3, noise ") in SPREADS:
        soft = RankCV("soft-unshrunk", scale="columns", center="columns", random_state=seed).fit(x)
        found["SOFT-IMPUTE+, scale columns"] = {
            "chosen": soft.minimiser_,
            "remark": float(bool(soft.remarks_)),
        }
    if line.endswith("along columns"):
        folds = EntrywiseKFold(5, blocks=STRETCH, random_state=seed)
        search = RankCV("hard", scale="columns", center="columns", cv=folds, random_state=seed)
        found[f"held-out stretches of {STRETCH}, scale columns"] = {
            "chosen": search.fit(x).minimiser_,
            "remark": float(bool(search.remarks_)),
        }
    if not np.isnan(x).any():
        scaled = (x - x.mean(axis=0)) / x.std(axis=0)
        found["parallel analysis"] = {"chosen": parallel_analysis(scaled, seed)}
        found["Gavish and Donoho"] = {"chosen": above_threshold(x - x.mean(axis=0))}
        found["Gavish and Donoho, scaled"] = {"chosen": above_threshold(scaled)}
    for one in found.values():
        one["right"] = float(low <= one["chosen"] <= high)
    return found


def parallel_analysis(scaled: FloatArray, seed: int, draws: int = 99, level: float = 0.95) -> int:
    """Leading eigenvalues of the correlations above those of columns permuted (Horn 1965)."""
    rng, own = stream(seed, "permuted"), np.linalg.svd(scaled, compute_uv=False)
    by_chance = [
        np.linalg.svd(rng.permuted(scaled, axis=0), compute_uv=False) for _ in range(draws)
    ]
    above = own > np.quantile(by_chance, level, axis=0)
    return int(np.argmin(above)) if not above.all() else len(own)


def above_threshold(centred: FloatArray) -> int:
    """Singular values above ``omega(beta)`` medians: noise of unknown, equal variance.

    Source: Gavish and Donoho 2014, equation 5 for omega.
    """
    values = np.linalg.svd(centred, compute_uv=False)
    beta = min(centred.shape) / max(centred.shape)
    omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    return int((values > omega * np.median(values)).sum())


# --------------------------------------------------------------------------- tables with classes


def one_class(rho: float) -> Callable[[Rng], FloatArray]:
    """100 rows of five normal columns with one correlation."""

    def draw(rng: Rng) -> FloatArray:
        shared, own = rng.standard_normal((ROWS, 1)), rng.standard_normal((ROWS, 5))
        return np.asarray(np.sqrt(rho) * shared + np.sqrt(1.0 - rho) * own)

    return draw


def on_a_line(rng: Rng, columns: int = 10, apart: float = 2.0) -> FloatArray:
    """Five classes whose centres lie on a line, in some of ten columns."""
    x = rng.standard_normal((ROWS, 10))
    x[:, :columns] += apart * rng.integers(-2, 3, ROWS)[:, None]
    return x


def three_classes(rng: Rng, spread: float = 1.0) -> FloatArray:
    """Three classes in eight columns, whose noise has standard deviations up to `spread`."""
    x = np.geomspace(1.0, spread, 8) * rng.standard_normal((ROWS, 8))
    return np.asarray(x + 1.5 * rng.standard_normal((3, 8))[rng.integers(0, 3, ROWS)])


def heavy(rng: Rng) -> FloatArray:
    """One class of t with four degrees of freedom, correlation .5."""
    return np.asarray(one_class(0.5)(rng) * np.sqrt(4.0 / rng.chisquare(4, (ROWS, 1))))


def in_blocks(rng: Rng, classes: int) -> FloatArray:
    """Classes in four blocks of five columns, correlation .8 within a block."""
    blocks = [np.sqrt(0.8) * rng.standard_normal((ROWS, 1)) for _ in range(4)]
    x = np.repeat(np.hstack(blocks), BLOCK, axis=1)
    x += np.sqrt(0.2) * rng.standard_normal((ROWS, 4 * BLOCK))
    centres = 1.5 * (classes > 1) * rng.standard_normal((classes, 4 * BLOCK))
    return np.asarray(x + centres[np.arange(ROWS) % classes])


def even(rng: Rng) -> FloatArray:
    """One class that is spread evenly along a line."""
    along = rng.uniform(-4.0, 4.0, (ROWS, 1))
    return np.asarray(along + 0.8 * rng.standard_normal((ROWS, 5)))


CLASSES: dict[str, tuple[int, Callable[[Rng], FloatArray]]] = {
    **{
        f"one class, correlation {rho:.1f}": (1, one_class(rho))
        for rho in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    },
    "one class, heavy tails": (1, heavy),
    "one class, five answers": (1, lambda rng: answers(one_class(0.5)(rng))),
    "one class, small values missing": (
        1,
        lambda rng: small_ones_missing(one_class(0.5)(rng), rng),
    ),
    "one class, even along a line": (1, even),
    "one class, blocks of columns": (1, lambda rng: in_blocks(rng, 1)),
    "three classes, blocks of columns": (3, lambda rng: in_blocks(rng, 3)),
    "five classes on a line": (5, on_a_line),
    "five classes on a line, two columns": (5, lambda rng: on_a_line(rng, 2, 4.0)),
    "three classes": (3, three_classes),
    "three classes, noise from 1 to 4": (3, lambda rng: three_classes(rng, 4.0)),
    "three classes, small values missing": (
        3,
        lambda rng: small_ones_missing(three_classes(rng), rng),
    ),
}
"""True number of classes and draw of a table."""


def of_classes(line: str, seed: int) -> dict[str, dict[str, float]]:
    """Number of classes of one table by each criterion."""
    true, draw = CLASSES[line]
    x = draw(stream(seed, "assumptions", line))
    count = ClusterCountCV(n_clusters=8, cv=5, random_state=seed).fit(x)
    said = any("with correlated columns" in remark for remark in count.remarks_)
    found = {"held-out entries": {"chosen": float(count.n_clusters_), "remark": float(said)}}
    if "blocks" in line:
        folds = EntrywiseKFold(5, blocks=BLOCK, random_state=seed)
        count = ClusterCountCV(n_clusters=8, cv=folds, random_state=seed).fit(x)
        said = any("with correlated columns" in remark for remark in count.remarks_)
        found["held-out blocks"] = {"chosen": float(count.n_clusters_), "remark": float(said)}
    if seed < BESIDE and not np.isnan(x).any():
        for name, one in count.compare().items():
            # a grid that ends before the rule holds is a choice of more than it has
            found[name] = {"chosen": float(9 if one.choice is None else one.choice)}
    if seed < FULL:
        full = ClusterCountCV("gaussian-mixture-full", n_clusters=3, cv=5, random_state=seed)
        found["gaussian-mixture-full"] = {"chosen": float(full.fit(x).n_clusters_)}
    for each in found.values():
        each["right"] = float(each["chosen"] == true)
    return found


# --------------------------------------------------------------------------- the table

LINES = [*CLASSES, *RANKS]
BOUNDED = (
    "noise ",
    "rank 3, noise log",
    "rank 3, noise inv",
    "rank 3, noise one",
    "rank 3, noise two",
    "rank 3, noise equal",
    "one class, cor",
)


def one(line: str, seed: int) -> dict[str, dict[str, float]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (of_ranks if line in RANKS else of_classes)(line, seed)


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, LINES)
    for line in LINES:
        tables = BOUND if line.startswith(BOUNDED) else OTHER
        if not table.wanted(line, min(FULL if line in CLASSES else BESIDE, tables)):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=tables, chosen=chosen)
        rows = []
        for model in sets[0]:
            each = [figures[model] for figures in sets if model in figures]
            row: dict[str, Any] = {"model": model, "replicates": len(each)}
            row |= mean((figures["chosen"] for figures in each), "chosen", ".2f")
            row |= share((figures["right"] for figures in each), "right", 3)
            if "remark" in each[0]:
                row |= share((figures["remark"] for figures in each), "remark", 3)
                safe = (max(figures["right"], figures["remark"]) for figures in each)
                row |= share(safe, "right_or_remark", 3)
            rows.append(row)
        table.add(line, rows)


if __name__ == "__main__":
    main()
