"""Progress is shown by whoever asks for it, and changes no figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

import consilience
from consilience.clustering.estimators.mixture import LatentClassAnalysis
from consilience.numerics import progress
from consilience.numerics.parallel import ordered_map
from consilience.numerics.progress import about, followed, foretell, rounds, shown_by
from consilience.protocol.mean_and_sd import MeanAndSD


class Noted:
    """What a display of rich would be told."""

    def __init__(self) -> None:
        self.tasks: dict[int, list[Any]] = {}
        self.open: set[int] = set()
        self.console, self.said = self, list[str]()

    def print(self, text: str, **_: Any) -> None:
        self.said.append(text)

    def add_task(self, what: str, total: int | None, who: str) -> int:
        number = len(self.tasks)
        self.tasks[number] = [what, 0, total]
        self.open.add(number)
        return number

    def advance(self, number: int) -> None:
        assert number in self.open
        self.tasks[number][1] += 1

    def remove_task(self, number: int) -> None:
        self.open.remove(number)


def noted(work: Any) -> tuple[Any, list[list[Any]]]:
    live = Noted()
    with shown_by(live):
        found = work()
    assert not live.open
    return found, list(live.tasks.values())


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_map_tells_each_item_and_gives_the_same(n_jobs: int | None) -> None:
    found, tasks = noted(lambda: ordered_map(abs, [-3, 2, -1], n_jobs=n_jobs, what="numbers"))
    assert found == [3, 2, 1] and tasks == [["numbers", 3, 3]]
    assert ordered_map(abs, [-3], what="numbers") == [3]
    assert noted(lambda: ordered_map(abs, [-3]))[1] == []


def test_a_search_tells_its_folds_and_penalties_and_stays_the_same() -> None:
    x, y = load_iris(return_X_y=True)
    plain = consilience.SparseQDA(n_alphas=4).fit(x, y)
    found, tasks = noted(lambda: consilience.SparseQDA(n_alphas=4).fit(x, y))
    np.testing.assert_array_equal(found.predict_proba(x), plain.predict_proba(x))
    # all folds go down the path at once: before the first penalty, and after each
    assert tasks == [["penalties", 5, 5], ["penalties", 4, 4]]
    given = consilience.SparseQDA(alphas=plain.path_.alphas)  # tried to its end, fold by fold
    found, tasks = noted(lambda: given.fit(x, y))
    np.testing.assert_array_equal(found.predict_proba(x), plain.predict_proba(x))
    assert [task for task in tasks if task[0] == "folds"] == [["folds", 5, 5]]
    assert sum(task[0] == "penalties of a fold" for task in tasks) == 5
    assert all(done <= total for _, done, total in tasks)


def test_long_work_is_foretold_once_and_short_work_not(monkeypatch: pytest.MonkeyPatch) -> None:
    live, asked = Noted(), []

    def fitted(seconds: float) -> None:
        foretell("a fit", lambda: asked.append(seconds) or seconds)

    fitted(1e6)
    assert not asked  # nobody listens
    with shown_by(live):
        fitted(progress.LONG - 1)
        assert not live.said
        fitted(progress.LONG)
    assert live.said == ["a fit: about 30 seconds"]
    x, y = load_iris(return_X_y=True)
    monkeypatch.setattr(progress, "LONG", 0.0)
    live = Noted()
    with shown_by(live):
        consilience.SparseQDA(n_alphas=4).fit(x, y)
        assert live.said == ["sparse QDA, 4 penalties, 5 folds: about 10 seconds"]
        consilience.SparseQDA(alpha=0.1).fit(x, y)
    assert live.said[1] == "sparse QDA, 1 penalty: about 10 seconds"


def test_durations_have_few_digits() -> None:
    told = {31: "30 seconds", 89: "90 seconds", 91: "2 minutes", 700: "12 minutes"}
    told |= {5399: "90 minutes", 5401: "2 hours", 36_000: "10 hours"}
    assert {seconds: about(seconds) for seconds in told} == told


def test_starts_and_rounds_are_told() -> None:
    items = np.random.default_rng(0).integers(0, 2, (60, 4))
    _, tasks = noted(lambda: LatentClassAnalysis(2, n_init=3, random_state=0).fit(items))
    assert ["starts", 3, 3] in tasks
    sites = {s: {"x": np.arange(20.0) + k} for k, s in enumerate(("ash", "birch"))}
    columns = consilience.Columns(features=("x",))
    run = MeanAndSD().run
    federation = consilience.Federation.local(sites, columns=columns)
    _, tasks = noted(lambda: run(federation, seed=0))
    assert tasks and all(done == total == 2 for _, done, total in tasks)
    told: list[str] = []
    _, tasks = noted(lambda: run(federation, seed=0, on_event=lambda kind, _: told.append(kind)))
    assert not tasks and "done" in told


def test_work_that_fails_leaves_no_line() -> None:
    def fails() -> None:
        with pytest.raises(ZeroDivisionError):
            for one in followed([1, 0], "numbers", 2):
                _ = 1 // one

    assert noted(fails)[1] == [["numbers", 1, 2]]
    assert rounds() is None


def test_it_is_written_to_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        with consilience.progress():
            ordered_map(abs, [1, 2], what="numbers")
        out, err = capsys.readouterr()
        assert out == "" and bool(err) == terminal
