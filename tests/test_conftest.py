"""The require-or-skip rule for real data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings


def test_data_dir_finds_what_is_there(
    data_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heart").mkdir()
    monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    assert data_dir("heart") == tmp_path / "heart"


@pytest.mark.parametrize("is_set", [True, False])
def test_missing_data_skip_or_fail(
    data_dir: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_set: bool,
) -> None:
    if is_set:
        monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    else:
        monkeypatch.delenv("CONSILIENCE_DATA", raising=False)
    monkeypatch.delenv("CONSILIENCE_REQUIRE_DATA", raising=False)
    with pytest.raises(pytest.skip.Exception, match="heart"):
        data_dir("heart")
    monkeypatch.setenv("CONSILIENCE_REQUIRE_DATA", "1")
    with pytest.raises(pytest.fail.Exception, match="heart"):
        data_dir("heart")


def test_session_settings() -> None:
    assert settings.default is not None
    assert settings.default.derandomize
    assert settings.default.deadline is None
    assert os.environ["OMP_NUM_THREADS"] == "1"
