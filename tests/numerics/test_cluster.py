"""Maps on dask end with all results or in one sentence, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from consilience.exceptions import EngineError
from consilience.numerics.parallel import Cluster, Workers, ordered_map
from tests.clusters import small_cluster

distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is missing")


def sign(folder: Path) -> int:
    """Leave a mark, and say how many there were before."""
    for number in range(1000):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        return number
    raise AssertionError("more than a thousand marks")


def until(condition: Any) -> None:
    """Wait for something, and not for ever."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def times(item: np.ndarray, factor: np.ndarray, folder: Path | None = None, fatal: int = -1) -> Any:
    """A product, unless it is the computation that takes its process with it."""
    if folder is not None and sign(folder) == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * factor


def meet(item: int, folder: Path) -> int:
    """Go on when two processes are there."""
    (folder / f"process-{os.getpid()}").touch()
    until(lambda: len(list(folder.glob("process-*"))) > 1)
    return item


def wait_for_file(item: int, folder: Path) -> int:
    """Go on when a file is there."""
    (folder / f"began-{item}").touch()
    until((folder / "go-on").exists)
    return item


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with small_cluster() as client:
        yield client


ROOT = Path(__file__).parents[2]
ITEMS = [np.full(400, float(i)) for i in range(7)]
FACTOR = np.arange(400.0)


@pytest.mark.parametrize("fatal", [-1, 0, 3])
def test_what_a_lost_worker_held_is_handed_out_again(
    client: Any, tmp_path: Path, fatal: int
) -> None:
    """Items and what they share are larger than what travels with a task."""
    with joblib.parallel_config("dask"), Workers() as workers:
        told: list[int] = []
        found = workers.map(times, ITEMS, FACTOR, tmp_path, fatal, done=told.append)
    np.testing.assert_array_equal(found, [item * FACTOR for item in ITEMS])
    assert sorted(told) == list(range(7))
    # As many computations as items, and those that were lost.
    assert (len(list(tmp_path.iterdir())) > 7) == (fatal >= 0)


def test_an_ordered_map_goes_to_the_cluster(client: Any, tmp_path: Path) -> None:
    function = partial(times, factor=FACTOR, folder=tmp_path, fatal=2)
    with joblib.parallel_config("dask"):
        assert os.getpid() not in ordered_map(lambda _: os.getpid(), range(3), what="items")
        found = ordered_map(function, ITEMS)
    np.testing.assert_array_equal(found, [item * FACTOR for item in ITEMS])


def test_an_error_of_a_task_is_its_own(client: Any) -> None:
    def fail(item: int) -> int:
        raise TimeoutError("no answer from the archive")

    with pytest.raises(TimeoutError, match="no answer from the archive"):
        list(Cluster(client).map(fail, [1, 2]))


def test_a_task_that_always_takes_its_worker_with_it_ends_in_a_sentence(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.numerics.parallel._REPEATS", 1)

    def die(item: np.ndarray) -> None:
        if item[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(EngineError, match=r"while they computed piece [1-7]: give workers more"):
        list(Cluster(client).map(die, ITEMS))


@pytest.mark.parametrize(
    ("error", "again"),
    [(KeyError("tcp://127.0.0.1:1"), True), (OSError(), True), (KeyError("a"), False)],
)
def test_a_worker_that_is_lost_while_something_is_sent_to_it_is_done_without(
    client: Any, error: Exception, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scatter, lost = client.scatter, [error]

    def sends(*arguments: Any, **more: Any) -> Any:
        if lost:
            raise lost.pop()
        return scatter(*arguments, **more)

    monkeypatch.setattr(client, "scatter", sends)
    if again:
        found = dict(Cluster(client).map(np.sum, ITEMS))
        assert [found[i] for i in range(len(ITEMS))] == [item.sum() for item in ITEMS]
    else:
        with pytest.raises(KeyError):
            list(Cluster(client).map(np.sum, ITEMS))


def test_a_task_inside_a_task_takes_no_place(client: Any) -> None:
    """Each worker has one thread; both are inside a task when its own tasks are asked for."""

    def outer(item: int) -> list[int]:
        with joblib.parallel_config("dask"):
            return ordered_map(lambda x: x + item, range(3))

    found = dict(Cluster(client).map(outer, [10, 20, 30]))
    assert found == {i: [x + 10 * (i + 1) for x in range(3)] for i in range(3)}


def test_workers_that_are_added_are_used(tmp_path: Path) -> None:
    with small_cluster(1) as client:

        def add() -> None:
            until(lambda: list(tmp_path.glob("process-*")))
            client.cluster.scale(2)

        adding = threading.Thread(target=add)
        adding.start()
        found = dict(Cluster(client).map(meet, range(5), tmp_path))
        adding.join()
    assert found == {i: i for i in range(5)}


def test_no_worker_left_ends_in_a_sentence_and_no_scheduler_too(tmp_path: Path) -> None:
    """The scheduler is a process of its own, which can be killed."""
    told = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0"]
    command += ["--no-dashboard", "--dashboard-address", ":0", "--scheduler-file", str(told)]
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "3s"}),
        subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT) as scheduler,
    ):
        try:
            until(told.exists)
            with distributed.Client(scheduler_file=str(told)) as client:
                began = time.monotonic()
                with pytest.raises(EngineError, match=r"has had no worker for 0\.5 seconds: start"):
                    list(Cluster(client, 0.5).map(times, ITEMS, FACTOR))
                assert time.monotonic() < began + 30

                command = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny"]
                command += ["--nthreads", "1", "--scheduler-file", str(told), "--no-dashboard"]
                with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT) as worker:

                    def kill() -> None:
                        until((tmp_path / "began-0").exists)
                        scheduler.kill()

                    killing = threading.Thread(target=kill)
                    killing.start()
                    try:
                        with pytest.raises(EngineError, match="scheduler of the dask cluster"):
                            list(Cluster(client, 20).map(wait_for_file, range(3), tmp_path))
                    finally:
                        killing.join()
                        worker.kill()
        finally:
            scheduler.kill()
