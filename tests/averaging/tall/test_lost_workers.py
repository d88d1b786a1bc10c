"""Fits on a dask cluster whose workers are lost, slow or late: the bytes of one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from consilience import ReferenceAveragingRegressor
from tests.averaging.tall.tables import frame, regression, write
from tests.clusters import small_cluster

ROWS, SPLITS = 4000, 4


class Troubled(Ridge):
    """Ridge that takes its process with it when so many fits have begun, sleeps in one process, or
    waits until there are two processes."""

    def __init__(
        self,
        alpha: float = 1.0,
        folder: str = "",
        fatal: tuple[int, ...] = (),
        slow: bool = False,
        together: bool = False,
    ) -> None:
        super().__init__(alpha=alpha)
        self.folder, self.fatal, self.slow, self.together = folder, fatal, slow, together

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        if self.folder:
            marks = os.path.join(self.folder, "fits")
            with open(marks, "a") as file:
                file.write(f"{os.getpid()}\n")
            with open(marks) as file:
                begun = file.read().split()
            if len(begun) in self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.slow and str(os.getpid()) == begun[0]:
                time.sleep(0.2)
            end = time.monotonic() + 60
            while self.together and len(set(Path(marks).read_text().split())) < 2:
                assert time.monotonic() < end
                time.sleep(0.02)
        return super().fit(X, y, sample_weight)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Workers that are started anew where they are lost."""
    with small_cluster() as client:
        yield client


def fitted(learner: Troubled, table: tuple[Any, Any]) -> list[np.ndarray]:
    """Models, their reference rows and what the rounds measured."""
    fit = ReferenceAveragingRegressor(
        learner, n_splits=SPLITS, max_rounds=3, random_state=0, convention="sum"
    ).fit(*table)
    coefficients = [model.coef_ for model in fit.estimators_]
    return [*coefficients, fit.reference_, fit.history_["gains"], fit.history_["movement"]]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """The same rows in memory, 100 kB in each split, and in a data set."""
    x, y = regression(ROWS, 12)
    folder = tmp_path_factory.mktemp("rows") / "data"
    return {"memory": (x, y), "parquet": (write(folder, frame(x, y), group=500), "y")}


TROUBLES: dict[str, dict[str, Any]] = {
    "lost at once": {"fatal": (1,)},
    "lost in a round": {"fatal": (14,)},
    "lost twice": {"fatal": (9, 30)},
    "slow": {"slow": True},
}


@pytest.mark.parametrize("source", ["memory", "parquet"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_bytes_are_those_of_one_process(
    source: str, trouble: str, cluster: Any, tables: dict[str, tuple[Any, Any]], tmp_path: Path
) -> None:
    alone = fitted(Troubled(), tables[source])
    with joblib.parallel_config("dask"):
        learner = Troubled(folder=str(tmp_path), **TROUBLES[trouble])
        found = fitted(learner, tables[source])
    for one, two in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one, two)
    # It did happen.
    begun = (tmp_path / "fits").read_text().split()
    assert len(begun) > max(TROUBLES[trouble].get("fatal", (0,)))


def test_a_worker_that_comes_late_changes_nothing(
    tables: dict[str, tuple[Any, Any]], tmp_path: Path
) -> None:
    alone = fitted(Troubled(), tables["memory"])
    with small_cluster(1) as client, joblib.parallel_config("dask"):

        def add() -> None:
            while not (tmp_path / "fits").exists():
                time.sleep(0.02)
            client.cluster.scale(2)

        adding = threading.Thread(target=add)
        adding.start()
        found = fitted(Troubled(folder=str(tmp_path), together=True), tables["memory"])
        adding.join()
    for one, two in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one, two)
    assert len(set((tmp_path / "fits").read_text().split())) == 2
