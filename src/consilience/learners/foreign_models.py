"""Predictions of models that other parties fitted, at one's own rows, with nothing to fear.

Linear forms are numbers only: they are checked and multiplied here. Trees and archives run in a
child process that may crash, hang or take memory without harm (:mod:`._foreign_server`). A model
that fails is named with a reason, the others go on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError, WireError
from consilience.learners._foreign_server import GRACE, frame, frames_of, too_slow
from consilience.numerics.random import stream
from consilience.numerics.trees import apply_link
from consilience.wire.estimators import Portable, check

BEYOND = 5.0
"""Ranges between the inner predictions by which others may go on beyond them."""
_START = 60.0
"""Seconds that the child may take to start."""
_BATCH_BYTES = 1 << 28
_CAN_FORK = hasattr(os, "fork")
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "JOBLIB_MULTIPROCESSING": "0",
    "PYTHONFAULTHANDLER": "",
}


def predict_all(
    models: Sequence[Portable],
    x: NDArray[Any],
    *,
    n_features: int,
    n_outputs: int,
    seconds: float = 20.0,
    memory: int = 2 << 30,
) -> list[FloatArray | str]:
    """Evaluate foreign models.

    Parameters
    ----------
    models : sequence of dict
        Travelling models (see ``consilience.wire.estimators``), as received.
    x : (n, n_features) array
        Own rows, finite.
    n_features : int
    n_outputs : int
        1 for a numeric response, the number of declared levels for classes.
    seconds : float
        Time that one model may take.
    memory : int
        Bytes that one model may take.

    Returns
    -------
    list of (n, n_outputs) float array or str
        In the order of `models`. A text is the reason, in one phrase, why there are no predictions.
        Levels that a model has not seen have probability 0.

    Raises
    ------
    DataError
        `x` is not a finite array of `n_features` columns.
    """
    x = np.ascontiguousarray(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != n_features or not np.isfinite(x).all():
        raise DataError(f"models are evaluated on finite rows of {n_features} columns")
    results: list[Any] = [
        check(portable, n_features=n_features, n_outputs=n_outputs) for portable in models
    ]
    sound = [i for i, fault in enumerate(results) if fault is None]
    # A product of checked numbers can neither crash nor hang: no process is needed for it.
    linear = [i for i in sound if models[i]["form"] == "linear"]
    for i, raw in zip(linear, _linear([models[i] for i in linear], x), strict=True):
        results[i] = raw
    bounded = [i for i in sound if models[i]["form"] != "linear"]
    limits = {"n_outputs": n_outputs, "seconds": float(seconds), "memory": int(memory)}
    ask = _SERVER.ask if _CAN_FORK else ask_once
    for batch in _batches(bounded, models, len(x) * n_outputs * 8):
        found = ask({"models": [models[i] for i in batch], "x": x, **limits})
        for i, raw in zip(batch, found, strict=True):
            results[i] = raw
    return [
        result if isinstance(result, str) else _finished(result, portable, len(x), n_outputs)
        for result, portable in zip(results, models, strict=True)
    ]


def whatever_the_rows_are(
    models: Sequence[Portable],
    answers: Sequence[FloatArray | str],
    neutral: FloatArray,
    *,
    n_features: int,
    n_probes: int,
) -> list[FloatArray | str]:
    """Answers of which no failure tells of the rows: a model fails where rows of nobody fail, too.

    One that fails at a site's rows only may be made to do so beyond some value.

    Parameters
    ----------
    models : sequence of dict
    answers : sequence of array or str
        What `predict_all` said of them.
    neutral : (n, n_outputs) array
        Predictions that know nothing, in place of those of a model that fails at own rows only.
    n_features : int
    n_probes : int
        How many rows of nobody are tried.

    Returns
    -------
    list of (n, n_outputs) float array or str
    """
    odd = [i for i, answer in enumerate(answers) if isinstance(answer, str)]
    nobody = stream(0, "rows of nobody").normal(size=(n_probes, n_features))
    tried, n_outputs = [models[i] for i in odd], neutral.shape[1]
    probes = predict_all(tried, nobody, n_features=n_features, n_outputs=n_outputs)
    found = list(answers)
    for i, probe in zip(odd, probes, strict=True):
        if not isinstance(probe, str):
            found[i] = neutral.copy()
    return found


def within_reach(predictions: Sequence[FloatArray], y: FloatArray, least: int) -> list[FloatArray]:
    """Predictions cut so that no few rows stand out in them.

    A made-up model with huge values at some rows would count these rows by its loss. So predictions
    are cut a little beyond the `least`-th smallest and largest one: by five times the range between
    these, at most by one standard deviation of the response. A box around fewer rows does nothing
    where a model says one thing of all others, and never more than a row does. And they are cut to
    the widest range around the mean that n rows of this mean and spread can have (Samuelson 1968),
    which tells nothing else of them; no honest model is further off.
    """
    spread = float(y.std())
    half = spread * float(np.sqrt(len(y)))
    k = least - 1
    cut = []
    for f in predictions:
        if np.isnan(f).any():
            cut.append(f)
            continue
        ordered = np.partition(f, sorted({k, len(y) - 1 - k}), axis=0)
        low, high = ordered[k], ordered[len(y) - 1 - k]
        beyond = np.minimum(BEYOND * (high - low), spread)
        # Samuelson (1968): no row lies further than sqrt(n) spreads from the mean
        low = np.maximum(low - beyond, y.mean() - half)
        cut.append(np.clip(f, low, np.minimum(high + beyond, y.mean() + half)))
    return cut


def _linear(models: list[Portable], x: FloatArray) -> list[FloatArray]:
    """Predictions of linear forms, all in one matrix product."""
    if not models:
        return []
    with np.errstate(all="ignore"):
        raw = x @ np.concatenate([m["coef"] for m in models]).T
        raw += np.concatenate([m["intercept"] for m in models])
        ends = np.cumsum([len(m["coef"]) for m in models])
        parts = np.split(raw, ends[:-1], axis=1)
        return [apply_link(part, m["link"]) for part, m in zip(parts, models, strict=True)]


def _finished(raw: Any, portable: Portable, n: int, n_outputs: int) -> FloatArray | str:
    """Judge predictions, and put their columns where the levels are."""
    places = portable.get("classes", np.zeros(1, dtype=np.int32))
    if not isinstance(raw, np.ndarray) or raw.shape != (n, len(places)) or raw.dtype.kind != "f":
        return "its predictions do not have the shape that they should"
    if not np.isfinite(raw).all():
        return "its predictions are not finite"
    if "classes" in portable:
        sums = raw.sum(axis=1)
        if (raw < -1e-6).any() or (np.abs(sums - 1.0) > 1e-6).any():
            return "its predictions are not probabilities"
    found = np.zeros((n, n_outputs))
    # A level that a model never saw has probability 0 there, not a column less.
    found[:, places] = raw
    return found


def _batches(rows: list[int], models: Sequence[Portable], reply: int) -> list[list[int]]:
    """Cut a list of models where questions or answers would be too large for one message."""
    batches: list[list[int]] = []
    size = _BATCH_BYTES + 1
    for i in rows:
        own = reply + sum(
            len(part) if isinstance(part, bytes) else int(getattr(part, "nbytes", 8))
            for part in models[i].values()
        )
        if size + own > _BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(i)
        size += own
    return batches


# --------------------------------------------------------------------------- processes


def _started(*options: str, **settings: Any) -> subprocess.Popen[bytes]:
    """A child process that evaluates, with pipes for questions and answers."""
    module = "consilience.learners._foreign_server"
    return subprocess.Popen(
        # -P: nothing in the current folder is imported.
        [sys.executable, "-P", "-W", "ignore", "-m", module, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **_ENVIRONMENT},
        **settings,
    )


def ask_once(request: dict[str, Any]) -> list[Any]:
    """Evaluate a batch in fresh processes: the way without fork."""
    results: list[Any] = []
    models, seconds = request["models"], request["seconds"]
    while len(results) < len(models):
        rest = models[len(results) :]
        process = _started("--once")
        started = time.monotonic()
        data = frame({**request, "models": rest})
        try:
            said, _ = process.communicate(data, timeout=_START + len(rest) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        done: list[Any] = []
        with contextlib.suppress(WireError):
            done = frames_of(said)[0][: len(rest)]
        results += done
        if len(done) < len(rest):
            slow = time.monotonic() - started > seconds
            results.append(too_slow(seconds) if slow else "it crashed")
    return results


class _Server:
    """The child process of this process: started on first use, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> list[Any]:
        """Send a batch and wait; a child that died is started once more."""
        data = frame(request)
        models = request["models"]
        with self._lock:
            for _ in range(2):
                patience = _START + len(models) * (request["seconds"] + GRACE)
                try:
                    reply = self._exchange(data, time.monotonic() + patience)
                except (OSError, EOFError, WireError):
                    self._stop(0.0)
                    continue
                except BaseException:
                    self._stop(0.0)  # its answer must not be taken for that to a later question
                    raise
                if isinstance(reply, tuple) and len(reply) == len(models):
                    return list(reply)
                self._stop(0.0)
        return ["the process that evaluates it does not answer"] * len(models)

    def _exchange(self, data: bytes, until: float) -> Any:
        """Write a question and read the answer, never waiting for longer than allowed."""
        process = self._running()
        if process.stdin is None or process.stdout is None:
            raise EOFError
        out, back = process.stdin.fileno(), process.stdout.fileno()
        rest, pieces, needed = memoryview(data), bytearray(), -1
        waiting = select.poll()
        waiting.register(back, select.POLLIN)
        waiting.register(out, select.POLLOUT)
        while needed < 0 or len(pieces) < needed:
            ready = dict(waiting.poll(max(0.0, until - time.monotonic()) * 1000))
            if not ready:
                raise EOFError
            if out in ready:
                rest = rest[os.write(out, rest[: 1 << 16]) :]
                if not rest:
                    waiting.unregister(out)
            if back in ready:
                piece = os.read(back, 1 << 20)
                if not piece:
                    raise EOFError
                pieces += piece
            if needed < 0 and len(pieces) >= 8:
                needed = 8 + int.from_bytes(pieces[:8], "little")
        found, _ = frames_of(bytes(pieces))
        return found[0]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._stop(0.0)
        if self._process is None:
            self._process = _started(bufsize=0, start_new_session=True)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
        return self._process

    def _stop(self, patience: float) -> None:
        """End the child: it ends by itself when its question pipe closes."""
        process, self._process = self._process, None
        if process is None:
            return
        _close_pipes(process)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the child at the end of this process, even one that a thread still waits for."""
        # A thread may wait for an answer for ever; the end of the process does not wait for it.
        held = self._lock.acquire(timeout=1.0)
        self._stop(2.0)
        if held:
            self._lock.release()

    def leave(self) -> None:
        """Let go of a child that belongs to the process from which this one was forked."""
        if self._process is not None:
            _close_pipes(self._process)
            self._process.returncode = 0  # not ours to wait for


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


_SERVER = _Server()


def _after_fork() -> None:
    global _SERVER
    _SERVER.leave()
    _SERVER = _Server()


atexit.register(lambda: _SERVER.close())  # whichever there is by then
if _CAN_FORK:
    os.register_at_fork(after_in_child=_after_fork)
