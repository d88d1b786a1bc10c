"""What the replications of held-out entries share: ranks chosen, ranks that are best, lines.

Rows are kept and figures computed as in the other replications (``assisted_glm/study.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.completion.estimators.entry_plans import HardPath, OptSpacePath, UnshrunkRankPath
from consilience.completion.kernels.low_rank import leave_one_out_hard
from consilience.datasets.simulate_matrices import LowRankTable
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.held_out_entries import EntryPath, held_out_errors
from consilience.numerics.random import stream
from replications.assisted_glm.study import mean, share

FloatArray = NDArray[np.float64]

N_FOLDS = 5
RANKS = tuple(range(15))
"""Ranks that are tried: 0 to 14."""
PATHS: dict[str, type[HardPath] | type[UnshrunkRankPath] | type[OptSpacePath]] = {
    "HARD": HardPath,
    "SOFT+": UnshrunkRankPath,
    "OptSpace": OptSpacePath,
}
ONE_STEP = {"one step, exact": "exact", "one step, as printed": "as_printed"}

# --------------------------------------------------------------------------- one table


def best_rank(table: LowRankTable, path: EntryPath) -> int:
    """Rank at which fits to all observed entries are nearest the signal."""
    rows, columns = (place.ravel() for place in np.indices(table.x.shape))
    fits = path.predictions(Entries.of(table.x), rows, columns)
    return int(np.argmin([table.error(fit.reshape(table.x.shape)) for fit in fits]))


def chosen_ranks(table: LowRankTable, *, seed: int) -> dict[str, dict[str, float]]:
    """Rank by each model, and how far it is from the best one of that model."""
    ranks = list(RANKS)
    entries = Entries.of(table.x)
    folds = entry_folds(entries, N_FOLDS, stream(seed, "folds"))
    found: dict[str, dict[str, float]] = {}
    best: dict[str, int] = {}
    for model, kind in PATHS.items():
        path = kind(parameters=ranks)
        # of a complete table all of them fit the truncated singular value decomposition
        known = next(iter(best.values()), None) if entries.complete else None
        best[model] = best_rank(table, path) if known is None else known
        curve = held_out_errors(entries, path, folds)
        chosen = {model: curve.best, f"{model}, one standard error": curve.best_one_standard_error}
        for name, rank in chosen.items():
            found[name] = _line(rank, best[model], table.rank)
    if entries.complete:
        for name, variant in ONE_STEP.items():
            errors = leave_one_out_hard(table.x, ranks, variant=variant).errors
            found[name] = _line(ranks[int(np.argmin(errors))], best["HARD"], table.rank)
    return found


def _line(rank: int, best: int, true: int) -> dict[str, float]:
    return {"off": rank - best, "best": best, "hit": float(rank == true)}


# --------------------------------------------------------------------------- rows of tables


def rows_of_ranks(
    sets: Sequence[Mapping[str, Mapping[str, float]]],
    source: Mapping[str, float] | None = None,
) -> Iterator[dict[str, Any]]:
    """One row for each model: rank less the best one, and how often it is the true one.

    `from_source` counts combined standard errors between the mean and that of the source, whose
    own standard error is taken to be as large as ours, as both rest on 100 tables.
    """
    for model in sets[0]:
        each = [figures[model] for figures in sets]
        off = np.array([one["off"] for one in each])
        row: dict[str, Any] = {"model": model, "replicates": len(sets)}
        row |= mean(off.tolist(), "off", ".2f")
        row["source"] = row["from_source"] = ""
        if source and model in source:
            row |= {"source": f"{source[model]:.2f}"}
            apart = off.mean() - source[model]
            error = np.sqrt(2.0 / len(off)) * off.std(ddof=1)
            # a table where every data set agrees has no standard error of its own
            row["from_source"] = (
                f"{apart / error if error > 0 else 0.0 if not apart else np.inf:.2f}"
            )
        row |= share((one["hit"] for one in each), "true_rank", 3)
        row |= mean((one["best"] for one in each), "best", ".2f")
        yield row
