"""The guide of sequences and categories: its code prints what it shows, its names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consilience import EnsembleClustering, LatentClassAnalysis, MarkovMixture
from consilience.clustering.estimators.local_models import models_each
from consilience.exceptions import ParameterError
from consilience.report import __all__ as figures_of_reports
from consilience.sites.study import Study
from tests.docs.test_pages import blocks, check_printed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "sequences.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())


@pytest.mark.filterwarnings("ignore")
def test_python_of_the_guide_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_printed(PAGE)
    assert len(list(tmp_path.glob("*.svg"))) == 6 and (tmp_path / "report.html").is_file()


def test_gaps_that_are_closed_up_are_the_failure_that_the_guide_says() -> None:
    """Integrated out, half of the months change little; closed up, every chance to stay falls."""
    (shown,) = [text for text in blocks(PAGE, "text") if "chances to stay" in text]
    was, hidden, closed = (
        [float(number) for number in re.findall(r"\d\.\d*", line.partition("[")[2])[:3]]
        for line in shown.splitlines()
    )
    assert all(abs(a - b) < 0.05 for a, b in zip(was, hidden, strict=True))
    assert all(c < a - 0.1 for a, c in zip(was, closed, strict=True))


def test_study_of_the_guide_is_one(tmp_path: Path) -> None:
    (text,) = blocks(PAGE, "toml")
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    study = Study.load(tmp_path / "study.toml")
    assert study.method == EnsembleClustering.name and len(study.columns.sequence) == 4
    EnsembleClustering(**study.parameters).validate()


def test_defaults_and_names_that_the_guide_states() -> None:
    for estimator in (MarkovMixture(), LatentClassAnalysis()):
        assert (estimator.n_init, estimator.n_final) == (40, 4) and "Forty short climbs" in WORDS
        for name in ("start_spread_", "remarks_"):
            assert f"`{name}`" in TEXT and name in (type(estimator).__doc__ or "")
    for name in set(re.findall(r"\bplot_\w+", TEXT)):
        assert name in figures_of_reports, name
    for settings in ({"trim": 6.0}, {"n_clusters": "cv"}):
        for model in ("markov-mixture", "latent-class"):
            with pytest.raises(ParameterError):
                EnsembleClustering(model=model, **settings).validate()  # type: ignore[arg-type]
    assert EnsembleClustering().n_resamples is None
    assert [models_each(n) for n in (1, 2, 3, 4, 7, 8)] == [4, 4, 3, 2, 2, 1]
    assert "4 at one or two sites, 3 at three, 2 at four to seven, 1 at more" in WORDS
