"""The guides of held-out entries: their code prints what they show, their names exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from consilience import (
    ClusterCountCV,
    ClusterCountStudy,
    EMLift,
    FederatedPCA,
    MatrixCompletionStudy,
    NuclearNormCV,
    RankCV,
    SoftImpute,
)
from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.completion.one_table.cluster_count import ClusterCountResult
from consilience.completion.one_table.matrix_completion import MatrixCompletionResult
from consilience.numerics.held_out_entries import EntryCurve
from consilience.protocol.method import get_method
from consilience.report import __all__ as figures_of_reports
from consilience.sites.study import Study
from tests.docs.test_pages import blocks, check_printed, figures

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"
PAGES = ("held-out-entries", "federated-pca")


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


def test_the_failures_that_the_guide_shows_are_failures() -> None:
    """What is printed there is the point of the page: a control that holds, a case that does not.

    The figures are those that the test above compares with what the code prints.
    """
    section = text("held-out-entries").partition("## When not to trust it")[2]
    noise, missing, block, *_ = re.findall(r"^```text\n(.*?)^```$", section, re.S | re.M)
    (white, truth), (along, _) = (
        map(int, figures(line.partition(":")[2])) for line in noise.splitlines()
    )
    assert white == truth == 3 and along > 2 * truth
    (held, real, bias), (said, lost, high) = (
        map(float, figures(line.partition(":")[2])) for line in missing.splitlines()
    )
    assert abs(held - real) < 0.1 * held and abs(bias) < 0.05
    assert lost > 1.1 * said and high > 0.3
    said, lost = map(float, figures(block.partition(":")[2]))
    assert lost > 1.25 * said


@pytest.mark.parametrize("page", PAGES)
def test_studies_of_the_guide_are_studies(page: str, tmp_path: Path) -> None:
    found = blocks(GUIDES / f"{page}.md", "toml")
    assert found
    for i, study_text in enumerate(found):
        (tmp_path / f"{i}.toml").write_text(study_text, encoding="utf-8")
        study = Study.load(tmp_path / f"{i}.toml")
        assert study.method in ("matrix-completion", "federated-pca")
        get_method(study.method).from_parameters(study.parameters).validate()


def reading(page: str) -> set[str]:
    section = text(page)
    section = section[section.index("## Reading the result") : section.index("## Known limits")]
    return set(re.findall(r"`(\w+)(?:\(\))?`", section))


def test_attributes_that_the_guide_names_exist() -> None:
    known = {
        f.name
        for kind in (MatrixCompletionResult, ClusterCountResult, EntryCurve)
        for f in dataclasses.fields(kind)
    }
    known |= {"EntryCurve", *dir(EntryCurve), *dir(MatrixCompletionResult), *figures_of_reports}
    # Fitted attributes, as their classes list them.
    for kind in (RankCV, NuclearNormCV, ClusterCountCV):
        for base in kind.__mro__:
            known |= set(re.findall(r"\b(\w+_)\b", base.__doc__ or ""))
    named = reading("held-out-entries")
    assert {"curve_", "best_rank_", "fold_errors", "final_gain_se"} <= named
    assert named <= known, named - known


def test_fields_that_the_guide_of_components_names_exist() -> None:
    known = {f.name for f in dataclasses.fields(FederatedPCAResult)} | set(dir(FederatedPCAResult))
    named = reading("federated-pca")
    assert {"rank", "site_explained", "groups_by_site"} <= named
    assert named <= known, named - known


def test_settings_and_defaults_that_the_guides_state() -> None:
    page = text("held-out-entries")
    for kind, estimator in (
        ("cv", RankCV("hard")),
        ("center", RankCV("hard")),
        ("rule", RankCV("hard")),
        ("unshrink", NuclearNormCV()),
        ("n_clusters", ClusterCountCV()),
        ("max_rank", SoftImpute()),
        ("reconstruct_with", EMLift(None)),
    ):
        assert f"`{kind}" in page and kind in estimator.get_params(deep=False), kind
    completion, count = MatrixCompletionStudy(), ClusterCountStudy()
    assert completion.holdout == 0.1 and "`holdout` (.1)" in page
    assert completion.n_splits == 5 and count.n_splits == 10
    assert completion.center == "auto" and count.n_clusters == "auto"
    assert {f.name for f in dataclasses.fields(completion)} >= {
        "model",
        "grid",
        "center",
        "n_splits",
        "rule",
        "duplicates",
        "holdout",
    }
    components = FederatedPCA()
    assert components.n_splits == 5 and components.rank is None
