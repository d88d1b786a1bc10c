"""A fit that is interrupted goes on where it was, and ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from consilience import ReferenceAveragingClassifier, ReferenceAveragingRegressor
from consilience.averaging.tall import fitting, passes
from consilience.averaging.tall.fitting import FILE, described
from consilience.exceptions import RunError
from tests.averaging.tall.tables import classes, frame, regression, write

ROOT = Path(__file__).resolve().parents[3]


class StopError(Exception):
    """Stands for a crash."""


def stop_after(monkeypatch: pytest.MonkeyPatch, n: int) -> dict[str, int]:
    """Crash in the n-th pass over the splits; count the passes."""
    true = passes.Trajectory._fits
    seen = {"passes": 0}

    def run(self: Any, *args: Any, **settings: Any) -> Any:
        seen["passes"] += 1
        if seen["passes"] == n:
            raise StopError
        return true(self, *args, **settings)

    monkeypatch.setattr(passes.Trajectory, "_fits", run)
    return seen


@pytest.mark.parametrize("schedule", ["adaptive", "asynchronous"])
@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("crash", [3, 8])
def test_a_crash_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str, guard: bool, crash: int
) -> None:
    x, y = classes(400, 20)
    settings: dict[str, Any] = {
        "estimator": LogisticRegression(C=50.0, warm_start=True),
        "n_splits": 8,
        "schedule": schedule,
        "max_rounds": 5,
        "guard": guard,
        "random_state": 0,
    }
    whole = ReferenceAveragingClassifier(**settings).fit(x, y)
    broken = ReferenceAveragingClassifier(**settings, checkpoint=tmp_path)
    with monkeypatch.context() as patch:
        stop_after(patch, crash)
        try:
            broken.fit(x, y)
        except StopError:
            assert (tmp_path / FILE).exists()
        else:
            assert schedule == "adaptive"  # this one had fewer passes
    broken.fit(x, y)
    np.testing.assert_array_equal(broken.coef_, whole.coef_)
    assert (broken.chosen_round_, broken.reason_) == (whole.chosen_round_, whole.reason_)
    for name in ("gains", "movement", "influence"):
        np.testing.assert_array_equal(broken.history_[name], whole.history_[name])


def test_a_finished_fit_only_fits_its_models_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = regression(200)
    estimator = ReferenceAveragingRegressor(
        Ridge(), n_splits=4, max_rounds=4, penalties=[1.0, 10.0], checkpoint=tmp_path
    )
    first = estimator.fit(x, y).coef_
    seen = stop_after(monkeypatch, 100)
    # Without random_state the seed is that of the fit that was begun.
    np.testing.assert_array_equal(estimator.fit(x, y).coef_, first)
    assert seen["passes"] == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rho": 2.0}, "rho"),
        ({"estimator": Ridge(alpha=3.0)}, "estimator"),
        ({"n_splits": 5}, "n splits"),
        ({"random_state": 1}, "seed"),
        ({"penalties": [1.0]}, "penalties"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    x, y = regression(200)
    settings = {"n_splits": 4, "max_rounds": 2, "random_state": 0, "checkpoint": tmp_path}
    ReferenceAveragingRegressor(**settings).fit(x, y)
    with pytest.raises(RunError, match=rf"another {word}|another data"):
        ReferenceAveragingRegressor(**(settings | change)).fit(x, y)


def test_another_table_is_refused(tmp_path: Path) -> None:
    x, y = regression(200)
    estimator = ReferenceAveragingRegressor(max_rounds=2, random_state=0, checkpoint=tmp_path)
    estimator.fit(x, y)
    y = y.copy()
    y[17] += 1e-6
    with pytest.raises(RunError, match="another data: give the same settings"):
        estimator.fit(x, y)


def test_rows_in_another_order_are_another_table(tmp_path: Path) -> None:
    """Means and responses of a split stay the same, to the last bit."""
    x = np.round(64 * regression(200)[0])  # whole numbers, whose sums are exact
    y = np.zeros(200)
    y[:100] = x[:100, 0]
    estimator = ReferenceAveragingRegressor(
        n_splits=2, max_rounds=2, random_state=0, checkpoint=tmp_path
    ).fit(x, y)
    mean = x[::2].mean(axis=0)
    x[[150, 152]] = x[[152, 150]]  # two rows of the first split, of the same response
    np.testing.assert_array_equal(x[::2].mean(axis=0), mean)
    with pytest.raises(RunError, match="another data"):
        estimator.fit(x, y)


@pytest.mark.parametrize("name", ["numpy", "scikit-learn", "consilience"])
def test_other_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    x, y = regression(100)
    estimator = ReferenceAveragingRegressor(
        n_splits=2, max_rounds=1, random_state=0, checkpoint=tmp_path
    ).fit(x, y)
    true = fitting.version
    monkeypatch.setattr(fitting, "version", lambda of: true(of) + ".post9" * (of == name))
    with pytest.raises(RunError, match=f"another version of {name}"):
        estimator.fit(x, y)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x93NUMPY"])
def test_a_broken_file_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    x, y = regression(60)
    with pytest.raises(RunError, match="not a checkpoint"):
        ReferenceAveragingRegressor(checkpoint=tmp_path).fit(x, y)


def test_a_checkpoint_holds_no_objects(tmp_path: Path) -> None:
    x, y = regression(100)
    ReferenceAveragingRegressor(n_splits=3, max_rounds=2, checkpoint=tmp_path).fit(x, y)
    with np.load(tmp_path / FILE, allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)


def test_settings_as_text() -> None:
    assert described(Ridge(alpha=1.0)) != described(Ridge(alpha=2.0))
    assert described(Ridge()) != described(LogisticRegression())
    assert described(np.ones(3)) != described(np.ones((3, 1)))
    assert described(np.array(["a", 1], dtype=object)) == "['a', 1]"
    assert described(np.log) != described(np.exp)


SCRIPT = """
import sys
from sklearn.linear_model import Ridge
from consilience import ReferenceAveragingRegressor
estimator = ReferenceAveragingRegressor(
    Ridge(), n_splits=6, max_rounds=40, guard=False, n_jobs=2, random_state=0,
    checkpoint=sys.argv[2], progress=True,
)
print(repr(estimator.fit(sys.argv[1], "y").coef_.tolist()))
"""


@pytest.mark.faults
def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    x, y = regression(3000)
    folder = write(tmp_path / "data", frame(x, y), group=300)
    command = [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / "kept")]
    stored = tmp_path / "kept" / FILE
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    times: set[int] = set()
    while len(times) < 3 and time.monotonic() < deadline:  # three rounds at least are on disk
        if stored.exists():
            times.add(stored.stat().st_mtime_ns)
        assert killed.poll() is None
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    with np.load(stored, allow_pickle=False) as state:
        assert 2 <= int(state["final/round"]) < 39
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    rounds_told = [line for line in done.stderr.splitlines() if line.startswith("all rows: round")]
    assert 0 < len(rounds_told) < 39
    (tmp_path / "kept" / FILE).unlink()
    whole = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == whole.stdout
