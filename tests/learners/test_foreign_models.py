"""Models of others: same predictions as at home, and whatever is wrong with one harms only it."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    BaggingRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeRegressor

from consilience.exceptions import DataError
from consilience.learners import _foreign_server as child
from consilience.learners import foreign_models as fm
from consilience.learners.foreign_models import predict_all
from consilience.wire.codec import pack, unpack
from consilience.wire.estimators import archive, encode

RNG = np.random.default_rng(12)
X = RNG.normal(size=(80, 4))
Y = X[:, 0] + np.sin(X[:, 1]) + 0.1 * RNG.normal(size=80)
TWO = (Y > 0).astype(int)
THREE = TWO + (Y > 1)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="limits are those of POSIX")


def portable(model: Any, y: np.ndarray = Y, classes: Any = None, x: np.ndarray = X) -> Any:
    return unpack(pack(encode(model.fit(x, y), n_features=x.shape[1], classes=classes)))


def ask(models: list[Any], x: np.ndarray = X, n_outputs: int = 1, **limits: Any) -> list[Any]:
    return predict_all(models, x, n_features=x.shape[1], n_outputs=n_outputs, **limits)


def honest() -> list[Any]:
    return [
        Ridge(),
        RandomForestRegressor(5, random_state=0),
        make_pipeline(PolynomialFeatures(2), Ridge()),
        make_pipeline(StandardScaler(), LinearRegression()),
        HistGradientBoostingRegressor(max_iter=5),
    ]


def changed(data: bytes, array: str, change: Any) -> bytes:
    """An archive in which the first array under a name is another one."""
    schema, files = archive_parts(data)
    node = next(n[array] for n in archive._nodes(schema) if isinstance(n.get(array), dict))
    content = np.load(io.BytesIO(files[node["file"]]), allow_pickle=False)
    change(content)
    buffer = io.BytesIO()
    np.save(buffer, content, allow_pickle=False)
    files[node["file"]] = buffer.getvalue()
    return archive._packed(schema, files)


def archive_parts(data: bytes) -> tuple[Any, dict[str, bytes]]:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as source:
        files = {name: source.read(name) for name in source.namelist()}
    return json.loads(files.pop("schema.json")), files


def boosted(change: Any) -> Any:
    """Boosting on histograms with damaged nodes: scikit-learn follows them without a look."""
    made = portable(HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=5))
    return {**made, "data": changed(made["data"], "nodes", change)}


def hanging(nodes: np.ndarray) -> None:
    nodes["left"][0] = nodes["right"][0] = 0


def outside(nodes: np.ndarray) -> None:
    nodes["left"][0] = nodes["right"][0] = 2_000_000_000


def spoilt(nodes: np.ndarray) -> None:
    nodes["value"][:] = np.nan


# --------------------------------------------------------------------------- honest models


def test_same_predictions_as_at_home() -> None:
    models = honest()
    for found, model in zip(ask([portable(m) for m in models]), models, strict=True):
        assert found.shape == (80, 1)
        np.testing.assert_allclose(found[:, 0], model.predict(X), rtol=1e-12, atol=1e-12)
    assert ask([]) == []
    assert [found.shape for found in ask([portable(m) for m in honest()], X[:1])] == [(1, 1)] * 5


def test_classes_stand_where_the_levels_are() -> None:
    names = np.array(["mild", "severe"])[TWO]
    for model in (
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestClassifier(5, random_state=0),
        GradientBoostingClassifier(n_estimators=4),
        GaussianNB(),
    ):
        (found,) = ask([portable(model, names, ["severe", "none", "mild"])], n_outputs=3)
        np.testing.assert_allclose(found[:, [2, 0]], model.predict_proba(X), rtol=1e-12)
        np.testing.assert_array_equal(found[:, 1], 0.0)


def test_rows_of_the_question_are_checked() -> None:
    for x in (X[:, :3], X[0], np.where(X > 2, np.nan, X), np.where(X > 2, np.inf, X)):
        with pytest.raises(DataError, match="finite rows of 4 columns"):
            predict_all([portable(Ridge())], x, n_features=4, n_outputs=1)


def test_many_models_go_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [portable(DecisionTreeRegressor(max_depth=d)) for d in range(1, 8)]
    wanted = ask(models)
    monkeypatch.setattr(fm, "_BATCH_BYTES", 2000)
    for found, other in zip(ask(models), wanted, strict=True):
        np.testing.assert_array_equal(found, other)


# --------------------------------------------------------------------------- what is wrong with one


def survivors(bad: list[Any], reasons: list[str], **limits: Any) -> None:
    """Bad models stand first, between and last; the good ones answer as ever."""
    good = [portable(model) for model in honest()]
    wanted = ask(good)
    mixed = [bad[0], good[0], good[1], *bad[1:], good[2], good[3], bad[0], good[4], bad[-1]]
    expected = [
        reasons[0],
        wanted[0],
        wanted[1],
        *reasons[1:],
        wanted[2],
        wanted[3],
        reasons[0],
        wanted[4],
        reasons[-1],
    ]
    for found, want in zip(ask(mixed, **limits), expected, strict=True):
        if isinstance(want, str):
            assert isinstance(found, str) and want in found, found
        else:
            np.testing.assert_allclose(found, want, rtol=1e-13)


def test_models_that_crash_and_hang() -> None:
    survivors(
        [boosted(outside), boosted(hanging)],
        ["it crashed (SIGSEGV)", "it took more than 0.5 s"],
        seconds=0.5,
    )


def test_a_model_that_takes_memory() -> None:
    x = RNG.normal(size=(3000, 8))
    model = make_pipeline(PolynomialFeatures(6), Ridge()).fit(x[:50], x[:50, 0])
    large = encode(model, n_features=8, classes=None)
    small = portable(DecisionTreeRegressor(max_depth=3), x[:, 0], x=x)
    found = ask([small, large, small], x, memory=20 << 20)
    assert isinstance(found[1], str) and found[1] == "it needs more than 20 MB"
    np.testing.assert_array_equal(found[0], found[2])
    assert not isinstance(ask([large], x)[0], str)


def test_models_that_do_not_fit() -> None:
    five = portable(make_pipeline(PolynomialFeatures(2), Ridge()), x=np.c_[X, Y])
    lying = {**five, "columns": 4}
    linear, trees = portable(Ridge(), x=np.c_[X, Y]), portable(DecisionTreeRegressor(), x=X[:, :2])
    off = {**lying, "data": lying["data"][: len(lying["data"]) // 2]}
    pairs = make_pipeline(PolynomialFeatures(2), Ridge()).fit(X, np.c_[Y, Y])
    schema, files = archive_parts(portable(make_pipeline(PolynomialFeatures(2), Ridge()))["data"])
    schema["content"]["content"]["verbose"] = {
        "__loader__": "TypeNode",
        "__module__": "os",
        "__class__": "system",
    }
    found = ask(
        [
            five,
            lying,
            linear,
            trees,
            off,
            encode(pairs, n_features=4, classes=None),
            {"form": "skops", "columns": 4, "data": archive._packed(schema, files)},
            {"form": "linear"},
            boosted(spoilt),
            {**portable(Ridge()), "coef": np.full((1, 4), 1.7e308)},
        ]
    )
    assert found == [
        "it expects 5 columns and the study has 4",
        "it expects 5 columns and the study has 4",
        "it expects 5 columns and the study has 4",
        "it expects 2 columns and the study has 4",
        "its archive is damaged",
        "its predictions do not have the shape that they should",
        "type os.system is not on the list",
        "it is of no form that is known",
        "its predictions are not finite",
        "its coefficients are not finite, or beyond all measure",
    ]


def test_trees_inside_an_archive_are_followed_only_in_the_child() -> None:
    made = portable(BaggingRegressor(DecisionTreeRegressor(max_depth=3), n_estimators=2))

    def cyclic(nodes: np.ndarray) -> None:
        nodes["left_child"][0] = nodes["right_child"][0] = 0

    def away(nodes: np.ndarray) -> None:
        nodes["left_child"][0] = nodes["right_child"][0] = 1 << 40

    bad = [{**made, "data": changed(made["data"], "nodes", change)} for change in (cyclic, away)]
    found = ask([*bad, made], seconds=0.5)
    assert all(isinstance(reason, str) for reason in found[:2])
    assert isinstance(found[2], np.ndarray)


def test_what_are_no_probabilities() -> None:
    made = portable(RandomForestClassifier(3, random_state=0), TWO, [0, 1])
    for value in (made["value"] * 2, made["value"] - 0.5, -made["value"]):
        assert ask([{**made, "value": value}], n_outputs=2) == [
            "its predictions are not probabilities"
        ]
    assert ask([made]) == ["its classes are not positions among the levels"]
    assert ask([portable(Ridge())], n_outputs=2) == ["it is not a regression of one response"]


def test_what_a_child_says_is_judged() -> None:
    model = portable(Ridge())
    for said in (None, 3, b"", np.zeros(80), np.zeros((80, 1), dtype=int), np.zeros((79, 1))):
        assert "shape" in str(fm._finished(said, model, 80, 1))


# --------------------------------------------------------------------------- processes


def server_pid() -> int:
    process = fm._SERVER._process
    assert process is not None
    return process.pid


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits to be noticed does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as source:
            return source.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")


def children_of(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as source:
        return source.read().split()


@needs_proc
def test_one_server_and_no_child_is_left_behind() -> None:
    tree = portable(DecisionTreeRegressor(max_depth=3))
    ask([tree, boosted(outside), tree])
    pid = server_pid()
    ask([tree])
    assert server_pid() == pid
    assert children_of(pid) == []


def test_a_server_that_died_is_started_again() -> None:
    tree = portable(DecisionTreeRegressor(max_depth=3))
    wanted = ask([tree])[0]
    pid = server_pid()
    os.kill(pid, signal.SIGKILL)
    np.testing.assert_array_equal(ask([tree])[0], wanted)
    assert server_pid() != pid


def starting(*command: str) -> Callable[..., subprocess.Popen[bytes]]:
    """Another command in the place of the child process."""

    def started(**settings: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **settings)

    return started


def test_a_server_that_dies_over_a_question_is_started_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = portable(DecisionTreeRegressor(max_depth=3))
    wanted = ask([tree])[0]
    mute, real = starting(sys.executable, "-c", "input()"), fm._started
    starts = [mute, real]
    monkeypatch.setattr(fm, "_started", lambda **settings: starts.pop(0)(**settings))
    monkeypatch.setattr(fm, "_SERVER", fm._Server())
    np.testing.assert_array_equal(ask([tree])[0], wanted)
    assert not starts
    fm._SERVER.close()
    starts[:] = [mute, starting("/nonexistent"), real]
    assert ask([tree, portable(Ridge())])[0] == "the process that evaluates it does not answer"
    assert len(starts) == 1


def test_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = starting(sys.executable, "-c", "import time; time.sleep(9)")
    monkeypatch.setattr(fm, "_started", silent)
    monkeypatch.setattr(fm, "_SERVER", fm._Server())
    monkeypatch.setattr(fm, "_START", 0.2)
    monkeypatch.setattr(fm, "GRACE", 0.0)
    tree = portable(DecisionTreeRegressor(max_depth=3))
    assert ask([tree], seconds=0.1) == ["the process that evaluates it does not answer"]
    assert fm._SERVER._process is None


def test_from_several_threads() -> None:
    models = [portable(model) for model in honest()]
    wanted = ask(models)
    failures: list[Any] = []

    def work() -> None:
        for _ in range(3):
            for found, want in zip(ask(models), wanted, strict=True):
                if not np.array_equal(found, want):
                    failures.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def from_worker(models: list[Any]) -> tuple[int, int, float]:
    found = ask(models)
    return os.getpid(), server_pid(), float(sum(part.sum() for part in found))


def test_in_a_forked_process() -> None:
    models = [portable(RandomForestRegressor(5, random_state=0)), portable(Ridge())]
    _, own, total = from_worker(models)
    context = multiprocessing.get_context("fork")
    source, target = context.Pipe(duplex=False)
    worker = context.Process(target=lambda: target.send(from_worker(models)))
    worker.start()
    assert source.poll(60)
    _, its, other = source.recv()
    worker.join()
    assert its != own and other == total
    assert from_worker(models)[1:] == (own, total), "the first server goes on"
    assert gone(its)


@needs_proc
def test_in_workers_of_joblib() -> None:
    import joblib
    from joblib.externals.loky import get_reusable_executor

    models = [portable(RandomForestRegressor(5, random_state=0)), portable(Ridge())]
    total = from_worker(models)[2]
    done = joblib.Parallel(2, backend="loky")(joblib.delayed(from_worker)(models) for _ in "ab")
    assert {result[2] for result in done} == {total}
    assert os.getpid() not in {result[0] for result in done}
    get_reusable_executor().shutdown(wait=True)
    assert all(gone(result[1]) for result in done)


PROGRAM = """
import os, sys, numpy as np
from sklearn.tree import DecisionTreeRegressor
from consilience.learners import foreign_models as fm
from consilience.wire.estimators import encode
x = np.arange(40.0).reshape(20, 2)
tree = encode(DecisionTreeRegressor(max_depth=2).fit(x, x[:, 0]), n_features=2, classes=None)
found = fm.predict_all([tree], x, n_features=2, n_outputs=1)
print(fm._SERVER._process.pid, found[0].shape, flush=True)
sys.stdin.read()
"""


@needs_proc
@pytest.mark.parametrize("killed", [False, True])
def test_the_server_ends_with_its_process(killed: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        pid, shape = process.stdout.readline().split(maxsplit=1)
        assert shape.strip() == "(20, 1)"
        assert alive(int(pid))
        if killed:
            process.kill()
        else:
            process.stdin.close()
        assert process.wait(30) == (-signal.SIGKILL if killed else 0)
    assert gone(int(pid))


def test_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fm, "_CAN_FORK", False)
    monkeypatch.setattr(fm, "_SERVER", None)
    good = portable(RandomForestRegressor(3, random_state=0))
    found = ask([good, boosted(outside), boosted(hanging), good], seconds=0.5)
    np.testing.assert_array_equal(found[0], found[3])
    assert found[1].startswith("it ") and found[2] == "it took more than 0.5 s"


def test_frames() -> None:
    values = [np.arange(3.0), "text", {"a": (1, 2)}]
    data = b"".join(child.frame(value) for value in values)
    found, rest = child.frames_of(data + data[:20])
    assert len(found) == 3 and rest == data[:20]
    np.testing.assert_array_equal(found[0], values[0])
    assert found[1:] == values[1:]
    assert child.frames_of(b"") == ([], b"")
