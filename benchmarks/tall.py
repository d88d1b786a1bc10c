"""Reference averaging of a tall table: memory, kill and resume, overhead, scaling, peers.

``PYTHONPATH=. python benchmarks/tall.py [section ...]`` writes results/tall.json; sections that are
not named keep what they had. The large table is written once to the folder of temporary files (1.6
GB) and removed at the end. Overheads are ratios of CPU seconds of all processes, because they
hardly depend on what else the machine does; wall seconds are recorded beside them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.base import clone
from sklearn.linear_model import Lasso, LogisticRegression, Ridge

from benchmarks.ensemble_patterns import machine
from consilience import ReferenceAveragingClassifier, ReferenceAveragingRegressor
from consilience.averaging.tall.tables import ParquetTable, with_levels
from consilience.learners.candidates import record_losses
from consilience.numerics.parallel import one_thread
from consilience.numerics.random import stream

RESULTS = Path(__file__).parent / "results" / "tall.json"
ROWS, COLUMNS, SPLITS = (int(v) for v in os.environ.get("TALL_SIZE", "1000000,200,64").split(","))
GIB = 2**30


# --------------------------------------------------------------------------- tables


def draw(n: int, p: int, key: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns with neighbours correlated .5, a number and a class."""
    rng = stream(6, "tall benchmark", key)
    x = rng.standard_normal((n, p))
    for j in range(1, p):
        x[:, j] = 0.5 * x[:, j - 1] + np.sqrt(0.75) * x[:, j]
    beta = stream(6, "tall signal", p).standard_normal(p) * (np.arange(p) % 5 == 0)
    eta = x @ beta / np.sqrt(p / 5)
    y = eta + 2 * rng.standard_normal(n)
    return x, y, (rng.uniform(size=n) < 1 / (1 + np.exp(-2 * eta))).astype(np.int64)


def write(folder: Path, n: int, p: int, pieces: int) -> Path:
    """A data set that never is in memory as a whole, and drifts from file to file."""
    folder.mkdir()
    names = [f"x{j}" for j in range(p)]
    for i in range(pieces):
        x, y, c = draw(n // pieces, p, i)
        # A bend that each file sees a piece of: splits differ, as they do in sorted tables.
        x[:, 0] += 4 * i / pieces - 2
        y += 0.5 * x[:, 0] ** 2
        table = pa.table([*x.T.copy(), y, c], names=[*names, "y", "c"])
        pq.write_table(table, folder / f"part-{i:03}.parquet", compression="none")
    return folder


# --------------------------------------------------------------------------- measuring


class Watch(threading.Thread):
    """Memory and CPU seconds of this process (or another) and all below it."""

    def __init__(self, pid: int | None = None, every: float = 0.25) -> None:
        super().__init__(daemon=True)
        self.root, self.every = psutil.Process(pid), every
        self.rss = self.pss = 0
        self.cpu: dict[int, float] = {}
        self.over = threading.Event()

    def look(self) -> None:
        rss = pss = 0
        try:
            family = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                used = process.memory_full_info()
                times = process.cpu_times()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
            rss, pss = rss + used.rss, pss + used.pss
            self.cpu[process.pid] = times.user + times.system
        self.rss, self.pss = max(self.rss, rss), max(self.pss, pss)

    def run(self) -> None:
        while not self.over.wait(self.every):
            self.look()

    def stop(self) -> None:
        self.look()
        self.over.set()
        self.join()

    def total(self) -> float:
        self.look()
        return sum(self.cpu.values())


def timed(watch: Watch, work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Wall and CPU seconds of a piece of work."""
    cpu, wall = watch.total(), time.perf_counter()
    result = work()
    return {
        "wall_s": round(time.perf_counter() - wall, 2),
        "cpu_s": round(watch.total() - cpu, 2),
    }, result


def with_backend(name: str, work: Callable[[], Any]) -> Any:
    """Two workers as processes of joblib, or of a dask LocalCluster."""
    if name == "loky":
        with joblib.parallel_config("loky", n_jobs=2):
            return work()
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
        joblib.parallel_config("dask"),
    ):
        return work()


# --------------------------------------------------------------------------- the large table


def large(folder: Path, backend: str) -> dict[str, Any]:
    """The whole table with guard, progress and checkpoint, as a process of its own."""
    kept = folder / f"kept-{backend}"
    command = [sys.executable, __file__, "--fit", str(folder / "table"), str(kept), backend]
    found: dict[str, Any] = {}
    for attempt in ("killed", "resumed"):
        with open(folder / f"{backend}-{attempt}.txt", "w") as said:
            wall = time.perf_counter()
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, start_new_session=True, text=True
            )
            watch = Watch(process.pid)
            watch.start()
            if attempt == "killed":
                wait_for(kept / "rounds.npz", process, writes=2)
                os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            watch.stop()
        found[attempt] = {
            "wall_s": round(time.perf_counter() - wall, 1),
            "cpu_s": round(sum(watch.cpu.values()), 1),
            "peak_rss_gib": round(watch.rss / GIB, 2),
            "peak_pss_gib": round(watch.pss / GIB, 2),
            "passes": (folder / f"{backend}-{attempt}.txt").read_text().splitlines(),
        }
    found["fit"] = json.loads(out.splitlines()[-1])
    return found


def wait_for(file: Path, process: subprocess.Popen[str], writes: int) -> None:
    """Until a file was written anew so many times."""
    times: set[int] = set()
    while len(times) < writes:
        if process.poll() is not None:
            raise RuntimeError("the fit ended before it could be killed")
        if file.exists():
            times.add(file.stat().st_mtime_ns)
        time.sleep(0.05)


def fit_large(table: str, kept: str, backend: str) -> None:
    """What the process of its own does."""
    estimator = ReferenceAveragingRegressor(
        Ridge(alpha=100.0),
        n_splits=SPLITS,
        max_rounds=4,
        random_state=0,
        checkpoint=kept,
        progress=True,
    )
    columns = [f"x{j}" for j in range(COLUMNS)]
    fitted = with_backend(backend, lambda: estimator.fit(table, "y", columns=columns))
    print(
        json.dumps(
            {
                "chosen_round": fitted.chosen_round_,
                "reason": fitted.reason_,
                "gains": np.round(fitted.history_["gains"][0], 8).tolist(),
                "coef": fitted.coef_.tolist(),
            }
        )
    )


def pooled(folder: Path) -> dict[str, Any]:
    """Plain scikit-learn on the same table, as a process of its own."""
    command = [sys.executable, __file__, "--pooled", str(folder / "table")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    watch.start()
    out, _ = process.communicate()
    watch.stop()
    return {"peak_rss_gib": round(watch.rss / GIB, 2), **json.loads(out.splitlines()[-1])}


def fit_pooled(table: str) -> None:
    """Read everything, fit once."""
    begin = time.perf_counter()
    whole = pq.read_table(table)
    x = np.column_stack([whole.column(f"x{j}").to_numpy() for j in range(COLUMNS)])
    y = whole.column("y").to_numpy()
    del whole
    read = time.perf_counter()
    with one_thread():
        fitted = Ridge(alpha=100.0).fit(x, y)
    done = time.perf_counter()
    print(
        json.dumps(
            {
                "read_s": round(read - begin, 1),
                "fit_s": round(done - read, 1),
                "coef": fitted.coef_.tolist(),
            }
        )
    )


def whole_table(folder: Path) -> dict[str, Any]:
    """Section ``large``: both backends, and the pooled fit."""
    write(folder / "table", ROWS, COLUMNS, SPLITS)
    found: dict[str, Any] = {"rows": ROWS, "columns": COLUMNS, "splits": SPLITS}
    plain = pooled(folder)
    target = np.array(plain.pop("coef"))
    found["pooled"] = plain
    for backend in ("loky", "dask"):
        found[backend] = large(folder, backend)
        coef = np.array(found[backend]["fit"].pop("coef"))
        found[backend]["fit"]["distance"] = float(
            np.linalg.norm(coef - target) / np.linalg.norm(target)
        )
    return found


# --------------------------------------------------------------------------- overhead


def plain_fit(part: Any, estimator: Any, sizes: float) -> Any:
    """What anybody would write: read a split, fit it."""
    with one_thread():
        x, y = part.read()
        return clone(estimator).fit(x, y)


def bare_fit(part: Any, estimator: Any, reference: Any, target: Any, rho: float) -> Any:
    """The same refit without the rounds: read a split, stack, fit; seconds of stacking and fit."""
    with one_thread():
        x, y = part.read()
        begin = time.thread_time()
        n, m = len(x), len(reference)
        classes = target.shape[1] > 1
        blocks = [reference] * target.shape[1] if rho else []
        stack = np.vstack([x, *blocks])
        if isinstance(estimator, Lasso):  # goes through columns
            stack = np.asfortranarray(stack)
        weights = np.ones(len(stack))
        response = np.concatenate([y, np.zeros(len(stack) - n)])
        if rho:
            weights[n:] = rho * n / m * (target.T.ravel() if classes else 1.0)
            response[n:] = np.repeat([0, 1], m) if classes else target[:, 0]
        ready = time.thread_time()
        estimator = clone(estimator)
        if isinstance(estimator, Lasso):
            estimator.set_params(alpha=estimator.alpha / (1 + rho))
        estimator.fit(stack, response, sample_weight=weights if rho else None)
        return ready - begin, time.thread_time() - ready


LEARNERS: dict[str, tuple[Any, str]] = {
    "ridge": (Ridge(alpha=100.0), "y"),
    "lasso": (Lasso(alpha=0.02), "y"),
    "logistic": (LogisticRegression(C=1.0), "c"),
}


def overhead(folder: Path) -> list[dict[str, Any]]:
    """Rounds against as many plain fits of the same splits, and against their refits called bare.

    Plain fits know neither reference rows nor weights. Bare refits have both, on stacks that are
    ready (what stacking takes is subtracted): what is left above them is what the rounds add. They
    begin anew where the rounds begin at the coefficients of the last one.
    """
    rows, splits, rounds = ROWS // 4, SPLITS // 4, 10
    write(folder / "part", rows, COLUMNS, splits)
    names = [f"x{j}" for j in range(COLUMNS)]
    watch = Watch()
    found = []
    with joblib.parallel_config("loky", n_jobs=2):
        for name, (learner, target) in LEARNERS.items():
            kind = ReferenceAveragingClassifier if target == "c" else ReferenceAveragingRegressor
            table = ParquetTable(folder / "part", target, names, classes=target == "c")
            parts = with_levels(table.parts(splits), np.array([0, 1]))
            size = rows / splits
            # The same penalty as a split's own share of the pooled one.
            own = clone(learner)
            if name != "lasso":
                key = "alpha" if name == "ridge" else "C"
                factor = size / rows if name == "ridge" else rows / size
                own.set_params(**{key: getattr(learner, key) * factor})

            def plain(parts: Any = parts, own: Any = own) -> None:
                for _ in range(rounds + 1):
                    joblib.Parallel()(joblib.delayed(plain_fit)(p, own, 0.0) for p in parts)

            def bare(fitted: Any, parts: Any = parts, own: Any = own) -> Any:
                a = fitted.reference_
                chances = hasattr(fitted, "predict_proba")
                target = fitted.predict_proba(a) if chances else fitted.predict(a)[:, None]
                taken = [
                    joblib.Parallel()(
                        joblib.delayed(bare_fit)(p, own, a, target, rho) for p in parts
                    )
                    for rho in fitted.history_["rhos"]
                ]
                return np.sum(taken, axis=(0, 1))

            def averaging(
                kind: Any = kind, learner: Any = learner, t: str = target, last: int = rounds
            ) -> Any:
                estimator = kind(
                    learner, n_splits=splits, max_rounds=last, guard=False, random_state=0
                )
                return estimator.fit(folder / "part", t, columns=names)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Workers are up, all modules imported, and files in memory.
                plain()
                averaging(last=1)
                one, _ = timed(watch, plain)
                two, fitted = timed(watch, averaging)
                refits, (stacking, fitting) = timed(watch, lambda b=bare, f=fitted: b(f))
                three, _ = timed(watch, plain)
            refits["stacking_cpu_s"] = round(float(stacking), 2)
            refits["fits_cpu_s"] = round(float(fitting), 2)
            ready = refits["cpu_s"] - float(stacking)
            base = (one["cpu_s"] + three["cpu_s"]) / 2
            fits = float(fitted.history_["fit_seconds"])
            found.append(
                {
                    "learner": name,
                    "rows": rows,
                    "splits": splits,
                    "rounds": rounds,
                    "reference_rows": len(fitted.reference_),
                    "plain": one,
                    "plain_again": three,
                    "averaging": two,
                    "bare_refits": refits,
                    "fits_cpu_s": round(fits, 2),
                    "cpu_ratio_to_plain": round(two["cpu_s"] / base, 3),
                    "bare_ratio_to_plain": round(ready / base, 3),
                    "cpu_ratio_to_bare": round(two["cpu_s"] / ready, 3),
                }
            )
    return found


# --------------------------------------------------------------------------- scaling


def scaling(folder: Path) -> list[dict[str, Any]]:
    """CPU seconds of three rounds of ridge, 50 columns, rows in memory."""
    watch = Watch()
    found = []
    cases = [(n, 16) for n in (ROWS // 16, ROWS // 8, ROWS // 4, ROWS // 2)]
    cases += [(ROWS // 4, b) for b in (4, 64, 256)]
    with joblib.parallel_config("loky", n_jobs=2):
        for n, splits in cases:
            x, y, _ = draw(n, 50)
            estimator = ReferenceAveragingRegressor(
                Ridge(alpha=10.0), n_splits=splits, max_rounds=3, guard=False, random_state=0
            )
            estimator.fit(x[:2000], y[:2000])  # workers are up
            used, fitted = timed(watch, lambda e=estimator, x=x, y=y: e.fit(x, y))
            truth = Ridge(alpha=10.0).fit(x, y).coef_
            distance = np.linalg.norm(fitted.coef_ - truth) / np.linalg.norm(truth)
            found.append({"rows": n, "splits": splits, **used, "distance": float(distance)})
    return found


# --------------------------------------------------------------------------- peers


def peers(folder: Path) -> list[dict[str, Any]]:
    """Accuracy and seconds beside a pooled fit and dask-ml: logistic, few rows for a column."""
    n, p, splits = ROWS // 50, COLUMNS, 20
    x, _, c = draw(2 * n, p)
    x, c, new_x, new_c = x[:n], c[:n], x[n:], c[n:]
    watch = Watch()
    learner = LogisticRegression(C=1.0, max_iter=500)
    found = []

    def note(name: str, used: dict[str, float], chances: np.ndarray) -> None:
        loss = float(record_losses("log", new_c, chances).mean())
        found.append({"fit": name, **used, "log_loss": round(loss, 4)})

    with one_thread():
        used, fitted = timed(watch, lambda: learner.fit(x, c))
    note("pooled", used, fitted.predict_proba(new_x))
    with joblib.parallel_config("loky", n_jobs=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, settings in {
            "averaging": {"max_rounds": 0, "guard": False},
            "reference averaging": {"max_rounds": 20},
        }.items():
            estimator = ReferenceAveragingClassifier(
                learner, n_splits=splits, random_state=0, **settings
            )
            estimator.fit(x[:2000], c[:2000])
            used, fitted = timed(watch, lambda e=estimator: e.fit(x, c))
            note(name, used, fitted.predict_proba(new_x))
            found[-1]["chosen_round"] = fitted.chosen_round_
    try:
        import dask.array as da
        from dask_ml.linear_model import LogisticRegression as DaskLogistic
    except ImportError as error:
        found.append({"fit": "dask-ml", "missing": str(error)})
        return found

    def admm() -> Any:
        chunked = da.from_array(x, chunks=(n // splits, p))
        labels = da.from_array(c, chunks=n // splits)
        return DaskLogistic(C=1.0, solver="admm", max_iter=100).fit(chunked, labels)

    def all_of_it() -> None:
        used, fitted = timed(watch, admm)
        chance = 1 / (1 + np.exp(-(new_x @ np.ravel(fitted.coef_) + np.ravel(fitted.intercept_))))
        note("dask-ml, ADMM", used, np.column_stack([1 - chance, chance]))

    try:
        with_backend("dask", all_of_it)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        found.append({"fit": "dask-ml, ADMM", "failed": f"{type(error).__name__}: {error}"[:200]})
    return found


SECTIONS: dict[str, Callable[[Path], Any]] = {
    "overhead": overhead,
    "scaling": scaling,
    "peers": peers,
    "large": whole_table,
}


def main(names: list[str]) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or list(SECTIONS):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            kept[name] = SECTIONS[name](Path(folder))
            kept.setdefault("seconds", {})[name] = round(time.perf_counter() - begin)
        kept["machine"] = machine()
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        print(name, json.dumps(kept[name], indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fit"]:
        fit_large(*sys.argv[2:5])
    elif sys.argv[1:2] == ["--pooled"]:
        fit_pooled(sys.argv[2])
    else:
        main(sys.argv[1:])
