"""Child side of ``foreign_models``: evaluates trees and archives of others, bounded.

One server lives as long as the process that started it. It loads what evaluation needs once, and
forks for every batch: the fork has limits of memory and processor time, and an alarm for each model
that the operating system answers by ending it. A model that ends the fork is named, and another
fork goes on with the next one. Without fork (``--once``) a fresh process does the same for a batch.

Frames on the pipes are eight bytes of length and what ``wire.codec.pack`` makes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import signal
import sys
import time
import warnings
from typing import Any, BinaryIO

import numpy as np

from consilience.arrays import FloatArray
from consilience.wire.codec import pack, unpack

GRACE = 5.0
"""Seconds that a fork may take beyond the limit of a model before it is killed."""

_LENGTH = 8
_LIMITS = (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL)
"""By which a fork ends that took too long."""


def frame(value: Any) -> bytes:
    """Length and bytes of a plain value."""
    data = pack(value)
    return len(data).to_bytes(_LENGTH, "little") + data


def frames_of(data: bytes) -> tuple[list[Any], bytes]:
    """Whole frames at the start of some bytes, and the bytes that are left."""
    found = []
    while len(data) >= _LENGTH:
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        if len(data) < end:
            break
        found.append(unpack(data[_LENGTH:end]))
        data = data[end:]
    return found, data


def too_slow(seconds: float) -> str:
    """Reason for a model that did not end."""
    return f"it took more than {seconds:g} s"


# --------------------------------------------------------------------------- one model


def evaluate(portable: dict[str, Any], x: FloatArray, memory: int) -> FloatArray | str:
    """Predictions of a checked tree form or archive.

    Returns
    -------
    (n, k) float array or str
        Columns as the model has them, or the reason why there are none.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if portable["form"] == "trees":
                from consilience.numerics.trees import predict_trees

                return predict_trees(portable, x)
            from consilience.wire.estimators.archive import read_archive

            model = read_archive(portable["data"])
            expected: Any = getattr(model, "n_features_in_", x.shape[1])
            if expected != x.shape[1]:
                return f"it expects {int(expected)} columns and the study has {x.shape[1]}"
            raw = model.predict_proba(x) if "classes" in portable else model.predict(x)
            found = np.asarray(raw, dtype=np.float64)
            return found[:, None] if found.ndim == 1 else found
    except MemoryError:
        return f"it needs more than {memory >> 20} MB"
    except Exception as error:  # noqa: BLE001 - code of others may fail in any way
        return f"it cannot be evaluated ({type(error).__name__})"


# --------------------------------------------------------------------------- a bounded fork


def serve_batch(request: dict[str, Any]) -> list[Any]:
    """Results of all models of a batch, in order; forks until each has one."""
    models, seconds = request["models"], request["seconds"]
    results: list[Any] = []
    longest = len(request["x"]) * request["n_outputs"] * 8 + 4096
    while len(results) < len(models):
        source, target = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(source)
                _bounded(target, models[len(results) :], request)
                # Not sys.exit: nothing of the parent may run in the fork, such as its atexit or its
                # buffers.
                os._exit(0)
            finally:
                os._exit(1)
        os.close(target)
        done = _collect(source, pid, seconds + GRACE, longest)
        os.close(source)
        _, status = os.waitpid(pid, 0)
        results += done[: len(models) - len(results)]
        if len(results) < len(models):
            if not os.WIFSIGNALED(status):
                results.append("its evaluation ended early")
            elif (number := os.WTERMSIG(status)) in _LIMITS:
                results.append(too_slow(seconds))
            else:
                results.append(f"it crashed ({signal.Signals(number).name})")
    return results


def _bounded(target: int, models: Any, request: dict[str, Any]) -> None:
    """Evaluate models in a fork, under its limits."""
    import resource

    for descriptor in (0, _REPLY):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    # A handler of the parent would keep a limit from ending the fork.
    for number in (signal.SIGALRM, signal.SIGXCPU, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    seconds, memory = request["seconds"], request["memory"]
    _limit(resource.RLIMIT_CORE, 0)
    # A model is to compute: it may leave neither a core nor a file.
    _limit(resource.RLIMIT_FSIZE, 0)
    # What is loaded already does not count as a model's.
    mapped = 1 << 32
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/statm", encoding="ascii") as held,
    ):
        mapped = int(held.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _limit(resource.RLIMIT_AS, mapped + memory)
    for portable in models:
        used = time.process_time()
        _limit(resource.RLIMIT_CPU, int(used + seconds) + 2, hard=False)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        result = evaluate(portable, request["x"], memory)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        data = memoryview(frame(result))
        while data:
            data = data[os.write(target, data) :]
        del result, data


def _limit(kind: int, value: int, *, hard: bool = True) -> None:
    """Set a limit, where the operating system has it and allows it."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            value = min(value, ceiling)
        resource.setrlimit(kind, (value, value if hard else ceiling))


def _collect(source: int, pid: int, patience: float, longest: int) -> list[Any]:
    """Read the frames of a fork to its end; kill it when it is silent or says too much."""
    found: list[Any] = []
    data = b""
    until = time.monotonic() + patience
    while True:
        ready, _, _ = select.select([source], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(source, 1 << 20) if ready else b""
        if not ready:
            os.kill(pid, signal.SIGKILL)
            return found
        # The end of the pipe: the fork has ended, well or not.
        if not piece:
            return found
        try:
            new, data = frames_of(data + piece)
        except Exception:  # noqa: BLE001 - a broken fork may write anything
            new, data = [], bytes(longest + 1)
        if new:
            found += new
            until = time.monotonic() + patience
        if len(data) > longest:
            os.kill(pid, signal.SIGKILL)
            return found


# --------------------------------------------------------------------------- the process

_REPLY = 1


def _prepare(forms: set[str]) -> None:
    """Load what evaluation of some forms needs, so that forks need not."""
    missing = forms - _PREPARED
    if "trees" in missing:
        from consilience.numerics.trees import predict_trees

        predict_trees(_STUMP, np.zeros((1, 1)))
    if "skops" in missing:
        for module in (
            "sklearn.ensemble",
            "sklearn.neural_network",
            "sklearn.pipeline",
            "skops.io",
        ):
            importlib.import_module(module)
    if missing:
        _PREPARED.update(missing)
        gc.collect()
        # What is loaded is not looked at again in every fork: pages stay shared.
        gc.freeze()


_PREPARED: set[str] = set()
_STUMP = {
    "form": "trees",
    "columns": 1,
    "splits": np.ones(1, dtype=np.int32),
    "feature": np.zeros(1, dtype=np.int16),
    "threshold": np.zeros(1),
    "children": np.array([[-1, -2]], dtype=np.int16),
    "value": np.zeros((2, 1)),
    "start": np.zeros(1),
    "link": "mean",
}


def _private_reply() -> BinaryIO:
    """Keep the pipe to the parent for answers: whatever a library prints goes nowhere."""
    global _REPLY
    _REPLY = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return os.fdopen(_REPLY, "wb", closefd=False)


def _read_frame(source: BinaryIO) -> Any:
    """Read the next frame, ``None`` at the end."""
    head = source.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "little")
    data = source.read(length)
    return unpack(data) if len(data) == length else None


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = _private_reply()
    while (request := _read_frame(sys.stdin.buffer)) is not None:
        _prepare({portable["form"] for portable in request["models"]})
        target.write(frame(serve_batch(request)))
        target.flush()


def _once() -> None:
    """Answer one batch without forks; the first model that does not end is the last."""
    target = _private_reply()
    request = _read_frame(sys.stdin.buffer)
    if request is None:
        return
    _prepare({portable["form"] for portable in request["models"]})
    nowhere = open(os.devnull, "w", encoding="ascii")  # noqa: SIM115 - open to the end
    for portable in request["models"]:
        faulthandler.dump_traceback_later(request["seconds"], exit=True, file=nowhere)
        result = evaluate(portable, request["x"], request["memory"])
        faulthandler.cancel_dump_traceback_later()
        target.write(frame(result))
        target.flush()


if __name__ == "__main__":
    _once() if "--once" in sys.argv else _serve()
