"""A benchmark without its peer leaves the figures of an earlier run with the peer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import mixtures


def test_without_peers_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixtures.json"
    path.write_bytes(mixtures.RESULTS.read_bytes())
    monkeypatch.setattr(mixtures, "RESULTS", path)
    for name in mixtures.PARTS.values():
        monkeypatch.delenv(name, raising=False)
    before = path.read_bytes()
    mixtures.main([])
    assert path.read_bytes() == before
    assert capsys.readouterr().out.count("names no interpreter") == 2


def test_what_holds_no_peer_is_measured() -> None:
    skipped = {"markov_mixture": {"a case": {"hmmlearn": "skipped: no interpreter"}}}
    whole = json.loads(mixtures.RESULTS.read_text(encoding="utf-8"))
    assert not mixtures.kept("markov_mixture", skipped, {})
    assert not mixtures.kept("markov_mixture", {}, {})
    assert not mixtures.kept("markov_mixture", whole, {"HMMLEARN_PYTHON": "python"})
    assert mixtures.kept("markov_mixture", whole, {"STEPMIX_PYTHON": "python"})
