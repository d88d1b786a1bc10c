"""The guides of wide classification: their code prints what they show, their names exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from consilience import CommunityBayesClassifier, SparseQDA
from consilience.discriminant.federated_community_bayes import FederatedCommunityBayesResult
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDAResult
from consilience.discriminant.one_table.community_bayes import CommunityBayesStudyResult
from consilience.discriminant.one_table.sparse_qda import SparseQDAStudyResult
from consilience.protocol.method import get_method
from consilience.report import __all__ as figures_of_reports
from consilience.sites.study import Study
from tests.docs.test_pages import blocks, check_printed

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"
PAGES = ("sparse-qda", "community-bayes")


def text(page: str) -> str:
    return (GUIDES / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES)
def test_python_of_the_guide_prints_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_printed(GUIDES / f"{page}.md")
    assert list(tmp_path.glob("*.svg")), "it draws"


@pytest.mark.parametrize("page", PAGES)
def test_study_of_the_guide_is_one(page: str, tmp_path: Path) -> None:
    (study_text,) = blocks(GUIDES / f"{page}.md", "toml")
    (tmp_path / "study.toml").write_text(study_text, encoding="utf-8")
    study = Study.load(tmp_path / "study.toml")
    assert study.method == page
    get_method(page).from_parameters(study.parameters).validate()


@pytest.mark.parametrize(
    ("page", "kinds"),
    [
        ("sparse-qda", (SparseQDAStudyResult, FederatedSparseQDAResult)),
        ("community-bayes", (CommunityBayesStudyResult, FederatedCommunityBayesResult)),
    ],
)
def test_fields_that_the_guides_name_exist(page: str, kinds: tuple[Any, ...]) -> None:
    section = text(page)
    section = section[section.index("## Reading the result") : section.index("## Known limits")]
    known = {f.name for kind in kinds for f in dataclasses.fields(kind)}
    known |= {"to_estimator", "SparseQDA", "CommunityBayesClassifier", *figures_of_reports}
    named = set(re.findall(r"`(\w+)(?:\(\))?`", section))
    assert {"judged", "errors", "log_loss_gain", "chosen"} <= named
    assert named <= known, named - known


@pytest.mark.parametrize(
    ("page", "kind", "federated"),
    [
        ("sparse-qda", SparseQDA, "federated-sparse-qda"),
        ("community-bayes", CommunityBayesClassifier, "federated-community-bayes"),
    ],
)
def test_settings_that_the_guides_name_exist(page: str, kind: Any, federated: str) -> None:
    words = set(re.findall(r"`(\w+)=", text(page)))
    assert words and words <= set(kind().get_params()), words
    fields = {f.name for f in dataclasses.fields(get_method(federated))}
    assert {"holdout"} <= fields
    for name in re.findall(r"`(\w+) = \"", text(page)):
        assert name in fields | {"entity", "preset", "sums", "standardize"}, name


def test_defaults_that_the_guides_state() -> None:
    qda, communities = get_method("federated-sparse-qda")(), get_method("community-bayes")()
    assert qda.holdout == 0.2 and communities.holdout == 0.2
    assert SparseQDA().ties == "sparsest" and SparseQDA().smallest == "auto"
    assert SparseQDA().standardize and CommunityBayesClassifier().n_communities == "cv"
    over = get_method("federated-community-bayes")()
    assert over.choosing == 0.2 and "(`choosing`, .2)" in text("community-bayes")
