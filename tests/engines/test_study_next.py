"""What a finished run leads to: proposals from Python, as files, and as runs of a federation."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import (
    Columns,
    Describe,
    EnsembleClustering,
    Federation,
    MetaClustering,
    Policy,
    PooledRegression,
    Preparation,
    Run,
)
from consilience.collaborators.protocol.result import MetaClusteringResult
from consilience.engines.study_next import ProposedStudy, named, next_studies, write
from consilience.exceptions import ParameterError, RunError, StudyError
from consilience.sites.study import Study

SITES = ("aspen", "birch", "cedar", "elm")
FEATURES = ("a", "b", "c")


def tables(slope: float = 2.0, rows: int = 90) -> dict[str, pd.DataFrame]:
    """Four tables; at elm the response goes with `a` the other way. `c` is there at three."""
    rng = np.random.default_rng(8)
    made = {}
    for site in SITES:
        frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=list(FEATURES))
        frame["y"] = (-slope if site == "elm" else slope) * frame.a - frame.b
        frame["y"] += rng.normal(size=rows)
        frame["yes"] = (frame.y > 0).astype(float)
        made[site] = frame
    made["birch"].loc[: rows * 2 // 3, "c"] = np.nan
    return made


def over(
    columns: Columns, rules: Preparation | None = None, policy: Any = "consortium", **more: Any
) -> Federation:
    return Federation.local(
        tables(**more), columns=columns, preparation=rules or Preparation(), policy=policy
    )


@pytest.fixture(scope="module")
def described() -> Run:
    federation = over(Columns(features=(*FEATURES, "y", "yes")), Preparation(missing="keep"))
    return federation.run(Describe(), seed=1)


@pytest.fixture(scope="module")
def pooled() -> Run:
    federation = over(Columns(features=("a", "b"), target="y"))
    return federation.run(PooledRegression(site_effects=True), seed=1)


# --- the way ----------------------------------------------------------------------------------


def test_the_way_from_a_description_to_the_groups(described: Run) -> None:
    """Describe, whom, a fit of each group, subtypes: each run leads to the next one."""
    federation = over(Columns(features=FEATURES, target="y"))
    whom, at_once = described.next(target="y")
    assert (whom.method, at_once.method) == ("meta-clustering", "pooled-regression")
    assert whom.study.columns == Columns(features=("a", "b", "yes"), target="y")
    assert whom.study.preparation.missing == "complete-rows"
    assert "c (birch)" in " ".join(described.next(target="y").said)
    quick = {"candidates": ("linear",), "gain_folds": 0, "stability_runs": 0}
    study = next_studies(described, target="y", parameters=quick)[0]
    study = dataclasses.replace(  # `yes` follows from the response
        study, settings={**study.settings, "data": {"features": ["a", "b"], "target": "y"}}
    )
    placed = study.run(federation, seed=2)
    assert placed.result.groups == (("aspen", "birch", "cedar"), ("elm",))

    group, alone = placed.next()
    assert group.name == "pooled-regression-group-0"
    assert group.study.sites.names == ("aspen", "birch", "cedar")
    assert group.study.follows is not None and group.study.follows.run == placed.info.run
    fitted, other = group.run(federation, seed=3), alone.run(federation, seed=3)
    assert fitted.info.sites == ("aspen", "birch", "cedar") and other.info.sites == ("elm",)
    assert fitted.info.follows == placed.info.run
    assert fitted.result.estimate[-2] == pytest.approx(2, abs=0.3)
    assert other.result.estimate[-2] == pytest.approx(-2, abs=0.3)

    (kinds,) = fitted.next()
    assert (kinds.method, kinds.name) == ("ensemble-clustering", "ensemble-clustering-group-0")
    assert "No sign that sites differ" in kinds.why
    assert kinds.study.preparation.standardize == "pooled"
    assert kinds.study.sites.names == ("aspen", "birch", "cedar")
    assert any("assistance-test" in text for text in fitted.next().said)


def test_a_regression_of_sites_that_differ_asks_whom(pooled: Run) -> None:
    (whom,) = pooled.next()
    assert whom.method == "meta-clustering" and "Sites differ (Q = " in whom.why
    assert whom.settings["parameters"] == {"candidates": ("linear",)}
    assert f"p = {pooled.result.heterogeneity[2]:.2g}" in whom.why


def test_one_constant_for_all_is_asked_again_within_sites() -> None:
    federation = over(Columns(features=("a", "b"), target="yes"))
    run = federation.run(PooledRegression(family="binomial"), seed=1)
    (again,) = run.next()
    assert again.settings["parameters"] == {"family": "binomial", "site_effects": True}
    (whom,) = again.run(federation, seed=1).next()
    assert whom.method == "meta-clustering"


def test_sites_that_still_differ_are_not_grouped_again(pooled: Run) -> None:
    """A fit of a group that a run found does not lead back to that question."""
    group = dataclasses.replace(pooled, info=dataclasses.replace(pooled.info, follows="before"))
    (kinds,) = group.next()
    assert kinds.method == "ensemble-clustering"
    assert any("Sites still differ" in text for text in group.next().said)


# --- evidence ---------------------------------------------------------------------------------


def test_a_description_proposes_by_what_it_found(described: Run) -> None:
    found = described.next(target="yes")
    assert [one.method for one in found] == ["meta-clustering", "pooled-regression"]
    assert "In none of these columns" in found[0].why
    # 0 or 1, as the moments show, and sums of it are granted by the preset.
    assert found[1].settings["parameters"] == {
        "family": "binomial",
        "site_effects": True,
        "when_withheld": "without-column",
    }
    nothing = described.next(target="c")
    assert not nothing and "c is no response" in nothing.said[-1]
    (kinds,) = described.next()
    assert kinds.method == "ensemble-clustering" and "--target" in " ".join(described.next().said)
    assert kinds.study.columns.features == ("a", "b", "y", "yes")


def test_sites_that_differ_are_named() -> None:
    made = tables()
    made["elm"]["a"] += 1
    columns = Columns(features=("a", "b", "y"))
    run = Federation.local(made, columns=columns, policy="consortium").run(Describe(), seed=1)
    why = run.next(target="y")[0].why
    assert "Sites differ in 1 of 2 of these columns, most in a (" in why and "elm" in why


def test_no_evidence_of_groups_leads_to_one_fit() -> None:
    quick = MetaClustering(candidates=("linear",), gain_folds=0, stability_runs=0)
    run = over(Columns(features=("a", "b"), target="y"), slope=0.0).run(quick, seed=1)
    (fit,) = run.next()
    assert run.result.status == "no-groups" and fit.method == "pooled-regression"
    assert fit.why.startswith("No evidence of groups") and fit.study.sites.names == SITES
    result = run.result
    assert isinstance(result, MetaClusteringResult)
    for status, methods in (("too-few-rows", 1), ("no-signal", 1), ("one-site", 0)):
        other = dataclasses.replace(run, result=dataclasses.replace(result, status=status))
        assert len(other.next()) == methods, status
        assert methods or "there is no site to compare it with" in other.next().said[0]


def test_classes_lead_on_by_their_evidence() -> None:
    run = over(Columns(features=("a", "b"), target="y"), Preparation(standardize="pooled")).run(
        EnsembleClustering(n_clusters=3, n_init=2, stability_pairs=2), seed=1
    )

    # Figures of secret halves are other ones each time: here they are given.
    def with_figures(**figures: Any) -> Run:
        told = {**run.result.stability_figures, **figures}
        return dataclasses.replace(
            run, result=dataclasses.replace(run.result, stability_figures=told)
        )

    cloud = with_figures(apart=0.0, related=5.0)
    (fit,) = cloud.next()
    assert fit.method == "pooled-regression" and "divide a gradient" in fit.why
    fewer = with_figures(apart=5.0, related=5.0, strength=0.4, fewer_strength=0.6)
    (again,) = fewer.next()
    assert (again.method, again.name) == ("ensemble-clustering", "ensemble-clustering-2-classes")
    assert again.settings["parameters"]["n_clusters"] == 2
    sure = with_figures(apart=5.0, related=5.0, strength=0.9, fewer_strength=0.9).next()
    assert not sure and any("[follows]" in text for text in sure.said)
    unknown = with_figures(apart=float("nan")).next()
    assert not unknown and any("cannot be said" in text for text in unknown.said)


def test_a_useless_partner_ends_the_way() -> None:
    rng = np.random.default_rng(3)
    n = 200
    own = pd.DataFrame({"id": np.arange(n), "x": rng.normal(size=n)})
    theirs = pd.DataFrame({"id": np.arange(n), "z": rng.normal(size=n), "w": rng.normal(size=n)})
    own["y"] = own.x + theirs.z + rng.normal(size=n)
    columns = {
        "asker": Columns(id="id", features=("x",), target="y"),
        "other": Columns(id="id", features=("z", "w")),
    }
    from consilience import AssistanceTest

    federation = Federation.local(
        {"asker": own, "other": theirs}, columns=columns, policy="simulation"
    )
    run = federation.run(AssistanceTest(family="normal", n_directions=1), seed=1)
    # A sketch is drawn in secret: what it finds is given here.
    found = dataclasses.replace(run.result, useful={"other": True})
    (fit,) = dataclasses.replace(run, result=found).next()
    assert fit.method == "assisted-glm" and fit.settings["parameters"] == {"family": "normal"}
    assert fit.settings["sites"] == {"names": ("asker", "other"), "roles": {"asker": "initiator"}}
    assert fit.run(federation, seed=1).result.partners == ("other",)
    none = dataclasses.replace(run.result, useful={"other": False})
    ended = dataclasses.replace(run, result=none).next()
    assert not ended and "nothing to fit" in ended.said[0]


# --- files, policies, errors ------------------------------------------------------------------


def test_the_file_is_the_study(pooled: Run, tmp_path: Path) -> None:
    (whom,) = pooled.next()
    path = tmp_path / "whom.toml"
    write(named(whom, "whom"), path)
    study = Study.load(path)
    assert study.name == "whom" and study.columns == whom.study.columns
    assert study.canonical() == named(whom, "whom").study.canonical()
    text = path.read_text()
    assert text.startswith("# Sites differ (Q = ") and pooled.info.run in text
    write(named(whom, "whom"), path)  # the same one
    path.write_text("mine")
    with pytest.raises(RunError, match="already there and is not replaced"):
        write(whom, path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("policy", "fit"), [("consortium", None), ("strict", "one-shot")])
def test_rounds_are_proposed_where_policies_grant_them(policy: str, fit: str | None) -> None:
    run = over(Columns(features=("a", "b", "yes")), policy=policy).run(Describe(), seed=1)
    fitted = run.next(target="yes")[-1]
    assert fitted.settings["parameters"].get("fit") == fit
    with_models = over(
        Columns(features=("a", "b")), policy=Policy(preset=policy, foreign_models=True)
    )
    assert fitted.run(with_models, seed=1).result.fit == (fit or "exact")


def test_a_study_of_different_groups_does_not_follow(pooled: Run) -> None:
    federation = over(Columns(features=("a", "b"), target="y"))
    quick = MetaClustering(candidates=("linear",), gain_folds=0, stability_runs=0)
    placed = federation.run(quick, seed=2)
    with pytest.raises(StudyError, match="into different groups"):
        federation.run(PooledRegression(), seed=1, follows=placed)


def test_what_cannot_be_proposed_is_said(pooled: Run, described: Run) -> None:
    with pytest.raises(ParameterError, match="has a response"):
        pooled.next(target="a")
    with pytest.raises(ParameterError, match=r"one of a, b, c, y, yes"):
        described.next(target="z")
    (whom,) = pooled.next()
    few = Federation.local(
        {"aspen": tables()["aspen"]}, columns=Columns(features=("a", "b"), target="y")
    )
    with pytest.raises(StudyError, match="no site birch, cedar, elm"):
        whom.run(few)


def test_it_shows_itself(pooled: Run) -> None:
    found = pooled.next()
    assert repr(found).startswith("1. Study meta-clustering by meta-clustering: Sites differ")
    assert isinstance(found[0], ProposedStudy) and found[:1] == (found[0],)
    assert tomllib.loads(found[0].to_toml())["method"] == "meta-clustering"
