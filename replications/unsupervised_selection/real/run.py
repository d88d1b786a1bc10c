"""Ratings of jokes and images of a digit: a penalty and a rank by held-out entries.

Needs ``matrix`` and ``esl`` in the folder that ``CONSILIENCE_DATA`` names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.completion.estimators.entry_plans import HardPath, UnshrunkRankPath  # noqa: E402
from consilience.completion.kernels.low_rank import thin_svd  # noqa: E402
from consilience.completion.selection import NuclearNormCV, RankCV  # noqa: E402
from consilience.numerics.entries import Entries, centre_of  # noqa: E402
from consilience.numerics.entry_folds import entry_folds, held_out_part  # noqa: E402
from consilience.numerics.held_out_entries import EntryPath, held_out_errors  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate  # noqa: E402
from replications.sparse_qda.study import read_esl  # noqa: E402

HERE = Path(__file__).parent
N_FOLDS, N_ALPHAS = 5, 9
HELD_OUT = 0.1
SVD_RANKS = range(31)
DIGIT, LARGEST = 3, 60
JESTER, NEW, IMAGES = "Jester", "Jester, new users", "digit 3"
LINES = {JESTER: 5, NEW: 3, IMAGES: 3}
"""How often folds (and of the ratings those held out) are drawn."""
CENTRE = "rows-and-columns"
GAUGE = np.array([5, 7, 8, 13, 15, 16, 17, 18, 19, 20]) - 1
"""Jokes that everybody was asked to rate: those that tell of a new user."""
NEIGHBOURS, RANGE = 80, 20.0
Figures = dict[str, dict[str, float]]


def ratings() -> Entries:
    """Users by jokes."""
    folder = os.environ.get("CONSILIENCE_DATA")
    if not folder:
        raise SystemExit("set CONSILIENCE_DATA to the folder that holds 'matrix'")
    table = pd.read_csv(Path(folder) / "matrix" / "Jester5k_triplets.csv.gz")
    rows, columns = (pd.factorize(table[name], sort=True)[0] for name in ("user", "joke"))
    return Entries.from_triplets(rows, columns, table["rating"].to_numpy(dtype=np.float64))


def images() -> NDArray[np.float64]:
    """Images of one digit, 16 x 16 points each."""
    table = read_esl("zip.train.csv.gz").to_numpy(dtype=np.float64)
    return table[table[:, 0] == DIGIT][:, 1:]


def jester(seed: int) -> Figures:
    """Root mean squared errors at a tenth of the ratings; the penalty by folds of the others."""
    every = ratings()
    rng = stream(seed, "jester")
    held = held_out_part(every, HELD_OUT, rng)
    train, places, truth = (
        every.take(~held),
        (every.rows[held], every.columns[held]),
        every.values[held],
    )

    def rmse(found: NDArray[np.float64]) -> float:
        return float(np.sqrt(((found - truth) ** 2).mean()))

    began = time.process_time()
    search = NuclearNormCV(N_ALPHAS, center=CENTRE, random_state=seed).fit(train)
    seconds = time.process_time() - began
    both = {"SOFT": search, "SOFT+": clone(search.best_estimator_).set_params(unshrink=True)}
    both["SOFT+"].fit(train)
    found = {name: {"rmse": rmse(fit.predict_entries(*places))} for name, fit in both.items()}
    found["SOFT"] |= {
        "gap": search.best_estimator_.gap_,
        "seconds": seconds,
        "chosen": search.minimiser_,
        "at_edge": float(search.at_edge_),
    }
    centre = centre_of(train, CENTRE)
    rest, base = centre.removed(train), centre.at(*places)
    u, s, v = thin_svd(np.nan_to_num(rest.dense()))
    filled = [rmse(((u[:, :k] * s[:k]) @ v[:, :k].T)[places] + base) for k in SVD_RANKS]
    found["row + column means"] = {"rmse": rmse(base)}
    # at its best rank for these very ratings
    found["truncated SVD of the filled matrix"] = {
        "rmse": min(filled),
        "chosen": float(SVD_RANKS[int(np.argmin(filled))]),
    }
    for each in found.values():
        each["above"] = each["rmse"] - found["SOFT"]["rmse"]
    return found


def new_users(seed: int) -> Figures:
    """Errors at ratings of users whom a fit does not know, by their ratings of ten jokes.

    The protocol of Goldberg and others: half of the users to learn from, normalized mean absolute
    errors over the other half's ratings of the other jokes.
    """
    every = ratings().dense()
    order = stream(seed, "users").permutation(len(every))
    known, new = np.array_split(every[order], 2)
    gauge = np.isin(np.arange(every.shape[1]), GAUGE)
    given, truth = np.where(gauge, new, np.nan), np.where(gauge, np.nan, new)
    fits = {
        "SOFT": NuclearNormCV(N_ALPHAS, center=CENTRE, random_state=seed),
        "PPCA": RankCV("ppca", random_state=seed),
    }
    found = {name: np.asarray(fit.fit(known).reconstruct(given)) for name, fit in fits.items()}
    means = np.nanmean(known, axis=0)
    found["joke means"] = np.tile(means, (len(new), 1))
    ours, theirs = (np.where(np.isnan(x), means, x)[:, gauge] for x in (new, known))
    apart = (ours**2).sum(axis=1)[:, None] - 2.0 * ours @ theirs.T + (theirs**2).sum(axis=1)
    near = np.argpartition(apart, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    seen = np.isfinite(known)
    filled = np.where(seen, known, 0.0)
    counts = np.stack([seen[rows].sum(axis=0) for rows in near])
    sums = np.stack([filled[rows].sum(axis=0) for rows in near])
    found["80 nearest users"] = np.where(counts, sums / np.maximum(counts, 1), means)
    return {
        name: {"nmae": float(np.nanmean(np.abs(np.clip(x, -10.0, 10.0) - truth))) / RANGE}
        for name, x in found.items()
    }


def digit(seed: int) -> Figures:
    """Rank with the smallest error, and that error."""
    entries = Entries.of(images())
    folds = entry_folds(entries, N_FOLDS, stream(seed, "folds"))
    ranks = list(range(LARGEST + 1))
    paths: dict[str, EntryPath] = {
        "HARD": HardPath(parameters=ranks),
        "SOFT+": UnshrunkRankPath(parameters=ranks, tol=1e-4),
    }
    found = {}
    for model, path in paths.items():
        began = time.process_time()
        curve = held_out_errors(entries, path, folds)
        found[model] = {
            "chosen": float(curve.best),
            "one_standard_error": float(curve.best_one_standard_error),
            "error": float(curve.mean.min()),
            "at_edge": float(curve.at_edge),
            "seconds": time.process_time() - began,
        }
    return found


def one(line: str, seed: int) -> Figures:
    """Figures of one draw by model."""
    return {JESTER: jester, NEW: new_users, IMAGES: digit}[line](seed)


FORMS = {
    "rmse": ".3f",
    "above": ".3f",
    "nmae": ".4f",
    "error": ".4f",
    "chosen": ".1f",
    "one_standard_error": ".1f",
    "at_edge": ".2f",
    "seconds": ".1f",
}


def rows_of(sets: Sequence[Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """One row for each model: means, and the largest duality gap."""
    made = []
    for model in sets[0]:
        each = [figures[model] for figures in sets]
        row: dict[str, Any] = {"model": model, "folds": N_FOLDS, "replicates": len(sets)}
        for name, form in FORMS.items():
            row |= mean((one.get(name, np.nan) for one in each), name, form)
        row["gap"] = f"{max(one['gap'] for one in each):.1e}" if "gap" in each[0] else ""
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, replicates in LINES.items():
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=replicates, chosen=chosen)
        table.add(line, rows_of(sets))


if __name__ == "__main__":
    main()
