"""The same numbers from every backend of joblib."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from consilience import ReferenceAveragingClassifier, ReferenceAveragingRegressor
from consilience.numerics.parallel import Workers
from tests.averaging.tall.tables import classes, frame, regression, write


def fits(folder: Path) -> list[np.ndarray]:
    """Coefficients from a data set, from rows in memory, and asynchronous ones."""
    x, y = regression(400)
    z, labels = classes(300)
    path = folder / "data"
    if not path.exists():
        write(path, frame(x, y))
    some: dict[str, Any] = {"n_splits": 5, "max_rounds": 3, "random_state": 0}
    return [
        ReferenceAveragingRegressor(Ridge(), **some).fit(path, "y").coef_,
        ReferenceAveragingRegressor(Ridge(), schedule="asynchronous", **some).fit(x, y).coef_,
        ReferenceAveragingClassifier(LogisticRegression(), **some).fit(z, labels).coef_,
    ]


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_processes_and_threads(tmp_path: Path, backend: str) -> None:
    alone = fits(tmp_path)
    with joblib.parallel_config(backend, n_jobs=2):
        found = fits(tmp_path)
    for one, two in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is missing")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_dask(tmp_path: Path, cluster: Any) -> None:
    alone = fits(tmp_path)
    with joblib.parallel_config("dask"):
        found = fits(tmp_path)
    for one, two in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_ray(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install ray")
    from ray.util.joblib import register_ray

    alone = fits(tmp_path)
    register_ray()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with joblib.parallel_config("ray", n_jobs=2):
            found = fits(tmp_path)
    finally:
        ray.shutdown()
    for one, two in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one, two)


def add(item: int, values: np.ndarray) -> float:
    return item + float(values.sum())


@pytest.mark.parametrize("backend", ["threading", "loky", "multiprocessing"])
def test_workers_keep_the_order_and_tell_each_place(backend: str) -> None:
    with joblib.parallel_config(backend, n_jobs=2), Workers() as workers:
        for _ in range(2):
            told: list[int] = []
            found = workers.map(add, range(7), np.ones(3), done=told.append)
            assert found == [3.0 + i for i in range(7)]
            assert sorted(told) == list(range(7))


def test_progress_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = regression(100)
    ReferenceAveragingRegressor(n_splits=3, max_rounds=2, random_state=0, progress=True).fit(x, y)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "reading the splits"
    assert "trial: round 0 of at most 2" in lines
    assert lines[-1].startswith("models of round")
    ReferenceAveragingRegressor(n_splits=3, max_rounds=2, random_state=0).fit(x, y)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    x, y = regression(100)
    ReferenceAveragingRegressor(n_splits=3, max_rounds=2, random_state=0, progress=True).fit(x, y)
    assert "3/3" in screen.getvalue() and "models of round" in screen.getvalue()
