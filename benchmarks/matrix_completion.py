"""Matrix completion: time and error beside a textbook and other imputers, one run, one thread.

``PYTHONPATH=. python benchmarks/matrix_completion.py [PART ...]`` writes
results/matrix_completion.json; parts (``large``, ``paths``, ``textbook``, ``imputers``, ``centre``,
``ratings``) that are named replace those of an earlier run. ``FANCYIMPUTE_PYTHON`` may name the
interpreter of an environment with fancyimpute, which needs an older scikit-learn;
``CONSILIENCE_DATA`` a folder with ``matrix``. Without them these lines are left out.

* ``large``: 943 x 1682 with 90,000 observed entries, whose rows and columns differ in how much is
  observed: one fit with at most 30 components, a path of 8 penalties, five folds of 10 penalties.
* ``paths``: singular value decompositions of a warm path over those of as many fits from zero, to
  one certified gap.
* ``textbook``: fill, LAPACK's decomposition, shrink, until the same certificate says as much.
* ``imputers``: held-out error and CPU seconds, every method with settings chosen by the same folds
  where it has any that matter.
* ``centre``: 943 x 1682 ratings whose rows and columns have levels, the default search beside one
  that takes nothing off.
* ``ratings``: 70,000 x 10,000 with ten million whole ratings of a known truth, a fit and a plain
  ALS of one penalty, each in a process of its own: CPU seconds, peak memory, errors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine
from consilience.completion.estimators.entry_plans import SoftPath
from consilience.completion.kernels.soft_impute import alpha_max, choose_solver, soft_path
from consilience.datasets.simulate_matrices import simulate_low_rank
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import entry_folds, held_out_part
from consilience.numerics.held_out_entries import held_out_errors
from consilience.numerics.random import stream

FloatArray = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results" / "matrix_completion.json"
GAP, FOLD_GAP = 1e-6, 1e-4
CAP = 30


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Result and CPU seconds."""
    began = time.process_time()
    result = function()
    return result, round(time.process_time() - began, 3)


# --------------------------------------------------------------------------- a large sparse table


def large(n: int = 943, p: int = 1682, m: int = 90_000) -> Entries:
    """Whole ratings 1 to 5 from a low rank, where few rows and columns have most of them."""
    rng = stream(0, "benchmark", "large")
    weight = rng.gamma(0.7, size=n)[:, None] * rng.gamma(0.5, size=p)
    seen = np.zeros(n * p, dtype=bool)
    # the m largest of weight over an exponential: a draw without replacement
    keys = weight.ravel() / rng.exponential(size=n * p)
    seen[np.argpartition(keys, -m)[-m:]] = True
    signal = rng.standard_normal((n, 8)) @ rng.standard_normal((8, p)) / np.sqrt(8.0)
    ratings = 3.5 + 0.7 * signal + 0.9 * rng.standard_normal((n, p))
    ratings = np.clip(np.round(ratings), 1, 5) - 3.5
    x = np.where(seen.reshape(n, p), ratings, np.nan)
    return Entries.of(x)


def measure_large() -> dict[str, Any]:
    """Seconds of a fit, a path and a search."""
    entries = large()
    top = alpha_max(entries)
    list(soft_path(entries, [0.9 * top], max_rank=CAP))  # compiles
    path = np.geomspace(0.8 * top, 0.12 * top, 8)
    fits, path_seconds = timed(lambda: list(soft_path(entries, path, tol=GAP, max_rank=CAP)))
    fit, seconds = timed(lambda: next(soft_path(entries, path[4:5], tol=GAP, max_rank=CAP)))
    # how fast the machine is: the textbook's fit of half the largest penalty, to a gap of .001
    x = entries.dense()
    _, textbook_seconds = timed(lambda: textbook(x, 0.5 * top, 1e-3, np.zeros(x.shape)))
    folds = entry_folds(entries, 5, stream(0, "folds"))
    grid = np.geomspace(0.8 * top, 0.1 * top, 10).tolist()
    search = SoftPath(parameters=grid, max_rank=CAP, tol=FOLD_GAP)
    began = time.perf_counter()
    curve = held_out_errors(entries, search, folds, n_jobs=2)
    wall = time.perf_counter() - began
    _, cpu = timed(lambda: held_out_errors(entries, search, folds))
    return {
        "observed": entries.n_observed,
        "solver": choose_solver(entries),
        "one_fit_seconds": seconds,
        "one_fit_rank": fit.rank,
        "one_fit_gap": fit.gap,
        "path_seconds": path_seconds,
        "path_sweeps": sum(each.n_iter for each in fits),
        "path_ranks": [each.rank for each in fits],
        "path_capped": [each.capped for each in fits],
        "largest_gap": max(each.gap for each in fits if not each.capped),
        "textbook_fit_seconds": textbook_seconds,
        "search_wall_seconds_two_workers": round(wall, 2),
        "search_cpu_seconds": cpu,
        "search_minimum_inside": not curve.at_edge,
        "load": round(os.getloadavg()[0], 1),
    }


# --------------------------------------------------------------------------- warm and cold


def half_observed() -> Entries:
    return Entries.of(simulate_low_rank(200, 100, rng=stream(0, "half"), observed=0.5).x)


def jester() -> Entries | None:
    """The ratings of jokes less their row and column means; None without the data."""
    if not os.environ.get("CONSILIENCE_DATA"):
        return None
    from consilience.numerics.entries import centre_of
    from replications.unsupervised_selection.real.run import ratings

    entries = ratings()
    return centre_of(entries, "rows-and-columns").removed(entries)


def tables() -> Iterator[tuple[str, Entries]]:
    """Tables of the comparisons with fits from zero and with the textbook."""
    yield "200 x 100, half observed", half_observed()
    yield (
        "50 x 100, four fifths observed",
        Entries.of(simulate_low_rank(rng=stream(0, "fold"), observed=0.8).x),
    )
    ratings = jester()
    if ratings is not None:
        yield "jokes, 5,000 x 100, 73 % observed", ratings
    yield "943 x 1682, 90,000 observed", large()


def measure_paths() -> list[dict[str, Any]]:
    """Decompositions of warm paths over those of fits from zero, as folds and as fits end."""
    found: list[dict[str, Any]] = []
    for tol in (FOLD_GAP, GAP):
        counts = np.zeros(2, dtype=int)
        for name, entries in tables():
            cap = CAP if entries.shape == (943, 1682) else None
            grid = np.geomspace(0.8, 0.25 if cap else 0.08, 10 if cap else 20) * alpha_max(entries)
            settings = {"tol": tol, "max_rank": cap}
            list(soft_path(entries, grid[:1], **settings))  # compiles
            warm, warm_seconds = timed(
                lambda e=entries, g=grid, s=settings: [*soft_path(e, g, **s)]
            )
            cold, cold_seconds = timed(
                lambda e=entries, g=grid, s=settings: [next(soft_path(e, [a], **s)) for a in g]
            )
            spent = np.array([sum(fit.n_svd for fit in fits) for fits in (warm, cold)])
            counts += spent
            found.append(
                {
                    "table": name,
                    "gap": tol,
                    "penalties": len(grid),
                    "warm": int(spent[0]),
                    "cold": int(spent[1]),
                    "ratio": round(float(spent[0] / spent[1]), 3),
                    "warm_seconds": warm_seconds,
                    "cold_seconds": cold_seconds,
                    "largest_gap": max(fit.gap for fit in (*warm, *cold) if not fit.capped),
                }
            )
            print(found[-1], flush=True)
        warm_count, cold_count = counts.tolist()
        ratio = round(warm_count / cold_count, 3)
        both = {"warm": warm_count, "cold": cold_count, "ratio": ratio}
        found.append({"table": "together", "gap": tol, **both})
    return found


# --------------------------------------------------------------------------- a textbook version


def textbook(x: FloatArray, alpha: float, gap: float, start: FloatArray) -> tuple[FloatArray, int]:
    """Fill, decompose with LAPACK, shrink, until the relative duality gap is small enough."""
    seen = ~np.isnan(x)
    known = np.where(seen, x, 0.0)
    half = 0.5 * (known**2).sum()
    m, steps = start, 0
    while True:
        u, s, vt = np.linalg.svd(np.where(seen, x, m), full_matrices=False)
        shrunk = np.maximum(s - alpha, 0.0)
        m = (u * shrunk) @ vt
        steps += 1
        if steps % 10:  # the certificate needs a spectral norm: not at every step
            continue
        rest = np.where(seen, x - m, 0.0)
        primal = 0.5 * (rest**2).sum() + alpha * shrunk.sum()
        dual = rest * min(1.0, alpha / np.linalg.norm(rest, 2))
        if primal - (half - 0.5 * ((known - dual) ** 2).sum()) <= gap * primal:
            return m, steps


def measure_textbook() -> list[dict[str, Any]]:
    """CPU seconds of a path of five penalties (large: one) on both sides, to one certified gap."""
    found = []
    for name, entries in tables():
        sparse = entries.shape == (943, 1682)
        cap, gap = (CAP, 1e-3) if sparse else (None, GAP)
        shares = np.array([0.5]) if sparse else np.geomspace(0.8, 0.15, 5)
        grid = shares * alpha_max(entries)
        list(soft_path(entries, grid[:1], tol=gap, max_rank=cap))  # compiles
        ours, seconds = timed(
            lambda e=entries, g=grid, t=gap, c=cap: list(soft_path(e, g, tol=t, max_rank=c))
        )
        x, m, steps = entries.dense(), np.zeros(entries.shape), 0
        began, apart = time.process_time(), 0.0
        for alpha, fit in zip(grid, ours, strict=True):
            m, count = textbook(x, float(alpha), gap, m)
            steps += count
            apart = max(apart, float(np.linalg.norm(m - fit.dense()) / np.linalg.norm(m)))
        slow = time.process_time() - began
        found.append(
            {
                "table": name,
                "gap": gap,
                "penalties": len(grid),
                "ours_seconds": seconds,
                "textbook_seconds": round(slow, 3),
                "ratio": round(slow / seconds, 1),
                "ours_svds": sum(fit.n_svd for fit in ours),
                "textbook_svds": steps,
                "apart": apart,
            }
        )
        print(found[-1], flush=True)
    return found


# --------------------------------------------------------------------------- other imputers

RANKS = (1, 2, 3, 4, 5, 6, 8, 10)


def weighted_nmf(
    x: FloatArray, rank: int, *, rng: np.random.Generator, n_iter: int = 500
) -> FloatArray:
    """NMF of the observed entries alone: multiplicative updates with weights 0 and 1."""
    seen = (~np.isnan(x)).astype(float)
    known = np.where(seen > 0, x, 0.0)
    size = np.sqrt(known.sum() / seen.sum() / rank)
    w = size * rng.uniform(0.5, 1.5, size=(len(x), rank))
    h = size * rng.uniform(0.5, 1.5, size=(rank, x.shape[1]))
    for _ in range(n_iter):
        w *= (known @ h.T) / np.maximum((seen * (w @ h)) @ h.T, 1e-12)
        h *= (w.T @ known) / np.maximum(w.T @ (seen * (w @ h)), 1e-12)
    return np.asarray(w @ h)


class WeightedNMF:
    """:func:`weighted_nmf` as an estimator, for the search over ranks."""

    def __init__(self, n_components: int = 1) -> None:
        self.n_components = n_components

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"n_components": self.n_components}

    def set_params(self, **given: Any) -> WeightedNMF:
        self.n_components = given["n_components"]
        return self

    def fit(self, X: FloatArray, y: None = None) -> WeightedNMF:
        rng = stream(0, "nmf", int(self.n_components))
        self.fitted_ = weighted_nmf(np.asarray(X), int(self.n_components), rng=rng)
        return self

    def reconstruct(self) -> FloatArray:
        return self.fitted_


def imputers(x: FloatArray) -> dict[str, Callable[[], FloatArray]]:
    """Name and completed table of every method."""
    from sklearn.decomposition import NMF
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

    from consilience import EMLift, NuclearNormCV, RankCV

    def nuclear(unshrink: bool) -> FloatArray:
        search = NuclearNormCV(10, unshrink=unshrink, random_state=0).fit(x)
        return np.asarray(search.reconstruct())

    def rank(model: Any, **more: Any) -> FloatArray:
        search = RankCV(model, ranks=RANKS, random_state=0, **more).fit(x)
        return np.asarray(search.best_estimator_.reconstruct())

    found = {
        "SoftImpute, penalty by folds": lambda: nuclear(False),
        "SoftImpute+, penalty by folds": lambda: nuclear(True),
        "HardImpute, rank by folds": lambda: rank("hard"),
        "SOFT-IMPUTE+, rank by folds": lambda: rank("soft-unshrunk"),
        "ProbabilisticPCA, rank by folds": lambda: rank("ppca"),
        "IterativeImputer, Bayesian ridge": lambda: IterativeImputer(
            random_state=0, max_iter=10
        ).fit_transform(x),
        "IterativeImputer, ten nearest columns": lambda: IterativeImputer(
            random_state=0, max_iter=10, n_nearest_features=10
        ).fit_transform(x),
        "KNNImputer, 5 neighbours": lambda: KNNImputer(n_neighbors=5).fit_transform(x),
        "column means": lambda: SimpleImputer().fit_transform(x),
    }
    if np.nanmin(x) >= 0:
        found["NMF of observed entries, rank by folds"] = lambda: rank(
            WeightedNMF(), parameter="n_components"
        )
        found["NMF in an EM lift, rank by folds"] = lambda: rank(
            EMLift(NMF(random_state=0, max_iter=300), max_iter=30),
            parameter="estimator__n_components",
        )
    python = os.environ.get("FANCYIMPUTE_PYTHON")
    if python:
        found["fancyimpute SoftImpute, its own penalty"] = lambda: fancy(python, x)
    return found


FANCY = """
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
from fancyimpute import SoftImpute
x = np.load(sys.argv[1])
SoftImpute(verbose=False, max_iters=2).fit_transform(x[:5])
began = time.process_time()
np.save(sys.argv[2], SoftImpute(verbose=False).fit_transform(x))
print(time.process_time() - began)
"""


def fancy(python: str, x: FloatArray) -> FloatArray:
    """fancyimpute's SoftImpute in a process of its own; its seconds in ``fancy.seconds``."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        before, after = (str(Path(folder) / name) for name in ("x.npy", "y.npy"))
        np.save(before, x)
        done = subprocess.run(
            [python, "-c", FANCY, before, after], check=True, capture_output=True, text=True
        )
        FANCY_SECONDS.append(float(done.stdout.split()[-1]))
        return np.asarray(np.load(after))


FANCY_SECONDS: list[float] = []


def imputer_tables() -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Name, table with gaps, and the truth at the gaps (elsewhere NaN)."""
    low = simulate_low_rank(300, 60, rng=stream(0, "imputers"), observed=0.6)
    yield "300 x 60, rank 6, 60 % observed", low.x, np.where(np.isnan(low.x), low.signal, np.nan)
    rng = stream(0, "parts")
    parts = rng.gamma(0.5, size=(300, 5)) @ rng.gamma(0.5, size=(5, 60))
    counts = rng.poisson(4.0 * parts).astype(float)
    gone = rng.random(counts.shape) < 0.4
    yield (
        "counts of 5 parts, 300 x 60, 60 % observed",
        np.where(gone, np.nan, counts),
        np.where(gone, 4.0 * parts, np.nan),
    )
    if os.environ.get("CONSILIENCE_DATA"):
        from replications.unsupervised_selection.real.run import ratings

        every = ratings()
        some = every.take(every.rows < 1000)
        some = Entries((1000, every.shape[1]), some.rows, some.columns, some.values)
        held = held_out_part(some, 0.1, stream(0, "jokes"))
        train = some.take(~held)
        truth = np.where(np.isnan(train.dense()), some.dense(), np.nan)
        yield "jokes, 1,000 x 100", train.dense(), truth


def measure_imputers() -> list[dict[str, Any]]:
    """Held-out errors and CPU seconds."""
    found = []
    for name, x, truth in imputer_tables():
        judged = ~np.isnan(truth)
        for method, completed in imputers(x).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                filled, seconds = timed(completed)
            if method.startswith("fancyimpute"):
                seconds = round(FANCY_SECONDS[-1], 3)
            rmse = float(np.sqrt(((filled - truth)[judged] ** 2).mean()))
            found.append(
                {"table": name, "method": method, "rmse": round(rmse, 4), "seconds": seconds}
            )
            print(found[-1], flush=True)
    return found


# --------------------------------------------------------------------------- levels of ratings


def measure_centre() -> list[dict[str, Any]]:
    """The default search, and one without a centre, on ratings with levels."""
    from consilience import NuclearNormCV

    places, rng = large(), stream(0, "benchmark", "levels")
    n, p = places.shape
    low = rng.standard_normal((n, 8)) @ rng.standard_normal((8, p)) * (0.5 / np.sqrt(8.0))
    truth = 3.5 + 0.45 * rng.standard_normal((n, 1)) + 0.5 * rng.standard_normal(p) + low
    noise = 0.85 * rng.standard_normal((n, p))
    ratings = np.clip(np.round(truth + noise), 1, 5)[places.rows, places.columns]
    entries = places.with_values(ratings)
    held = held_out_part(entries, 0.1, stream(0, "levels"))
    train, judged = entries.take(~held), entries.take(held)
    found = []
    for center in ("auto", "none"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = NuclearNormCV(center=center, max_rank=CAP, random_state=0)
            _, seconds = timed(lambda s=search: s.fit(train))
        off = search.predict_entries(judged.rows, judged.columns) - judged.values
        found.append(
            {
                "center": f"{center}: {search.center_}",
                "penalties": len(search.curve_.parameters),
                "rank": search.rank_,
                "rmse": round(float(np.sqrt((off**2).mean())), 4),
                "seconds": seconds,
            }
        )
        print(found[-1], flush=True)
    return found


# --------------------------------------------------------------------------- ten million ratings

RATINGS = (70_000, 10_000, 10_000_000)  # rows, columns, ratings
TRUE_RANK, LARGEST_RANK, PENALTY = 8, 20, 90.0
ALS_TOL, ALS_SWEEPS = 1e-4, 50  # fall of the criterion in a sweep at which plain turns end


def simulated_ratings(folder: Path) -> None:
    """Whole ratings 1 to 5 in a random order, and a fiftieth more to judge by, as files."""
    (n, p, m), rng = RATINGS, stream(0, "benchmark", "ratings")
    wanted = m + m // 50
    often = [np.cumsum(rng.gamma(shape, size=k)) for shape, k in ((1.5, n), (1.0, p))]
    keys = np.zeros(0, dtype=np.int64)
    while len(keys) < wanted:  # pairs by how much people rate and films are rated, each once
        draws = [np.searchsorted(w, w[-1] * rng.random(wanted // 2)) for w in often]
        i, j = (np.minimum(draw, len(w) - 1) for draw, w in zip(draws, often, strict=True))
        keys = np.unique(np.concatenate([keys, i * np.int64(p) + j]))
    keys = rng.permutation(keys)[:wanted]
    i, j = keys // p, keys % p
    a = 0.35 * rng.standard_normal((n, TRUE_RANK))
    b = 0.6 * rng.standard_normal((p, TRUE_RANK))
    truth = 3.5 + 0.4 * rng.standard_normal(n)[i] + 0.5 * rng.standard_normal(p)[j]
    for h in range(TRUE_RANK):
        truth += a[i, h] * b[j, h]
    ratings = np.clip(np.round(truth + 0.9 * rng.standard_normal(wanted)), 1, 5)
    np.save(folder / "i.npy", i.astype(np.int32))
    np.save(folder / "j.npy", j.astype(np.int32))
    np.save(folder / "x.npy", ratings.astype(np.float32))
    np.save(folder / "truth.npy", truth[m:].astype(np.float32))


def plain_als(i: Any, j: Any, x: Any) -> tuple[Callable[[Any, Any], FloatArray], dict[str, Any]]:
    """Row and column levels by turns of means, then ridge regressions of rows by turns."""
    from numba import njit
    from scipy.sparse import csr_array

    @njit(fastmath=True)
    def turn(indptr, indices, values, other, alpha, own):  # type: ignore[no-untyped-def]
        k = other.shape[1]
        for row in range(len(indptr) - 1):
            part = slice(indptr[row], indptr[row + 1])
            seen = other[indices[part]]
            gram = seen.T @ seen + alpha * np.eye(k)
            own[row] = np.linalg.solve(gram, seen.T @ values[part])

    n, p, _ = RATINGS
    rows, columns = np.zeros(n), np.zeros(p)
    n_rows, n_columns = (np.maximum(np.bincount(k, minlength=q), 1) for k, q in ((i, n), (j, p)))
    for _ in range(20):
        columns = np.bincount(j, x - rows[i], p) / n_columns
        rows = np.bincount(i, x - columns[j], n) / n_rows
    by_row = csr_array((x - rows[i] - columns[j], (i, j)), shape=(n, p))
    by_column = by_row.tocsc()
    rng = stream(0, "benchmark", "als")
    a, b = (rng.standard_normal((q, LARGEST_RANK)) for q in (n, p))
    before, sweeps = np.inf, 0
    while sweeps < ALS_SWEEPS:
        turn(by_row.indptr, by_row.indices, by_row.data, b, PENALTY, a)
        turn(by_column.indptr, by_column.indices, by_column.data, a, PENALTY, b)
        sweeps += 1
        rest = x - rows[i] - columns[j]
        for h in range(LARGEST_RANK):
            rest -= a[i, h] * b[j, h]
        now = 0.5 * float(rest @ rest + PENALTY * ((a**2).sum() + (b**2).sum()))
        if before - now <= ALS_TOL * now:
            break
        before = now

    def predict(i: Any, j: Any) -> FloatArray:
        return np.asarray(rows[i] + columns[j] + (a[i] * b[j]).sum(axis=1))

    return predict, {"criterion": now, "sweeps": sweeps}


def our_fit(i: Any, j: Any, x: Any) -> tuple[Callable[[Any, Any], FloatArray], dict[str, Any]]:
    """The same criterion by the package."""
    from scipy.sparse import coo_array

    from consilience import SoftImpute

    model = SoftImpute(PENALTY, max_rank=LARGEST_RANK, center="rows-and-columns", tol=1e-4)
    model.fit(coo_array((x, (i, j)), shape=RATINGS[:2]))
    told = {"criterion": model.objective_, "sweeps": model.n_iter_, "gap": model.gap_}
    return model.predict_entries, told | {"rank": model.n_components_}


SIDES = {"ours": our_fit, "plain ALS": plain_als}


def one_side(side: str, folder: Path) -> None:
    """Fit one side in this process, and print what it took."""
    i, j, x, truth = (np.load(folder / f"{name}.npy") for name in ("i", "j", "x", "truth"))
    m = RATINGS[2]
    (predict, told), seconds = timed(lambda: SIDES[side](i[:m], j[:m], x[:m]))
    predicted = predict(i[m:], j[m:])
    # of this program alone: the peak of getrusage begins with what the parent had
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    errors = {
        name: round(float(np.sqrt(((predicted - wanted) ** 2).mean())), 4)
        for name, wanted in (("rmse", x[m:]), ("off_truth", truth))
    }
    print(
        json.dumps({"side": side, **errors, "seconds": seconds, "peak_gb": round(peak, 2)} | told)
    )


def measure_ratings() -> list[dict[str, Any]]:
    """Both sides in processes of their own, with the loading of their data."""
    import tempfile

    found = []
    with tempfile.TemporaryDirectory() as folder:
        simulated_ratings(Path(folder))
        for side in SIDES:
            command = [sys.executable, __file__, "side", side, folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(found[-1], flush=True)
    return found


PARTS: dict[str, Callable[[], Any]] = {
    "centre": measure_centre,
    "ratings": measure_ratings,
    "large": measure_large,
    "paths": measure_paths,
    "textbook": measure_textbook,
    "imputers": measure_imputers,
}


def main() -> None:
    if sys.argv[1:2] == ["side"]:
        with threadpool_limits(1):
            one_side(sys.argv[2], Path(sys.argv[3]))
        return
    wanted = sys.argv[1:] or list(PARTS)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for part in wanted:
        with threadpool_limits(1):
            results[part] = PARTS[part]()
        results["machine"] = machine()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(part, json.dumps(results[part], indent=1), flush=True)


if __name__ == "__main__":
    main()
