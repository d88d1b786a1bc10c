"""Components from totals of masked moments: the model and the choice of a run in plain."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, FederatedPCA, Federation
from consilience.completion import federated_pca
from consilience.completion.federated_pca.messages import Settings, SharedMoments
from consilience.engines.federation import load_run
from consilience.engines.study_check import check_admitted
from consilience.exceptions import DisclosureError, ProtocolError, QuorumError, StudyError
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Preparation
from consilience.protocol.phases.secure_sums import ALL, MASKED
from consilience.sites.policy import Policy
from consilience.sites.study import Study
from consilience.testing.fakes import scripted
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Request
from consilience.wire.message import Disclosure
from tests.completion.federated_pca.test_federated_pca import RANK, TABLES, draw, holes
from tests.granted import GRANTED

WIDE = draw(n=1600)
POOLED = Preparation(standardize="pooled")
# Rounds: 1 opening, 2 introductions, 3 meeting, 4 to 8 scaling, then a total and its opening.
POSSIBLE, MOMENTS = 9, 11


def federation(tables: Any, sums: Any = "secure", **settings: Any) -> Federation:
    settings = {"policy": GRANTED, "preparation": POOLED, **settings}
    names = [f"x{j}" for j in range(next(iter(tables.values())).shape[1])]
    frames = {site: pd.DataFrame(x, columns=names) for site, x in tables.items()}
    return Federation.local(frames, columns=Columns(features=names), sums=sums, **settings)


def both(tables: Any = TABLES, method: Any = None, **settings: Any) -> tuple[Any, Any]:
    """A run in plain and one with masked sums."""
    runs = [
        (method or FederatedPCA()).run(federation(tables, sums, **settings), seed=0)
        for sums in ("plain", "secure")
    ]
    return runs[0], runs[1]


def check_equal(found: Any, wanted: Any, folds: bool = True, tolerance: float = 1e-9) -> None:
    names = ("mean", "components", "explained_variance", "variances", "noise_variance", "scaling")
    for name in names:
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=tolerance)
    if folds:
        np.testing.assert_allclose(found.fold_errors, wanted.fold_errors, rtol=tolerance)
    for name in ("rank", "n", "feature_names", "withheld", "chosen", "minimiser"):
        assert getattr(found, name) == getattr(wanted, name), name
    np.testing.assert_array_equal(found.fold_entries, wanted.fold_entries)


@pytest.mark.parametrize(
    ("n_splits", "policy"), [(5, "simulation"), (10, "consortium"), (2, "strict")]
)
def test_it_is_the_run_in_plain(n_splits: int, policy: str) -> None:
    plain, masked = both(WIDE, FederatedPCA(n_splits=n_splits), policy=policy)
    # Without protection groups are drawn anew in each step.
    check_equal(masked.result, plain.result, folds=policy != "simulation")
    assert masked.result.rank == RANK and masked.result.groups_by_site.tolist() == [n_splits]


def test_it_is_the_run_in_plain_where_groups_have_other_means() -> None:
    tables = {s: np.sort(x, axis=0) for s, x in draw(n=200, p=5, rank=2).items()}
    plain, masked = both(tables, FederatedPCA(rank=2, n_splits=2), policy="consortium")
    check_equal(masked.result, plain.result)


def test_it_is_the_run_in_plain_with_missing_cells() -> None:
    kept = Preparation(missing="keep", standardize="pooled")
    plain, masked = both(holes(TABLES, 0.1), preparation=kept)
    check_equal(masked.result, plain.result)
    assert masked.result.missing_kept and masked.result.rank == RANK


def test_the_coordinator_sees_no_number_of_a_site() -> None:
    _, masked = both()
    told = [
        line for line in masked.transcript if line.site in TABLES and line.direction == "from-site"
    ]
    seen = {line.disclosure for line in told}
    assert seen == {"public", "masked"}
    assert {line.step for line in told if line.disclosure == "masked"} == {
        "moments.totals",
        "moments.squares",
        "possible",
        "moments_total",
    }
    result = masked.result
    assert result.sites == (ALL,) and MASKED in result.remarks
    assert "900 rows at all sites share 4 components" in result.summary()


def test_sites_keep_the_same_model_and_scores() -> None:
    plain, masked = both()
    for site in TABLES:
        one, other = plain.site(site), masked.site(site)
        np.testing.assert_allclose(
            other.values("component_1"), one.values("component_1"), atol=1e-8
        )
        rows = TABLES[site][:5]
        np.testing.assert_allclose(
            other.predictor.transform(rows), one.predictor.transform(rows), atol=1e-8
        )


def test_a_short_site_sets_the_number_of_groups() -> None:
    """In plain it would have fewer groups than the others; no total is of some sites only."""
    tables = {**TABLES, "c": TABLES["c"][:90]}
    _, masked = both(tables, policy="consortium")
    assert masked.result.groups_by_site.tolist() == [2] and masked.result.rank == RANK
    assert any("all sites (2)" in remark for remark in masked.result.remarks)


def test_without_groups_the_rank_must_be_given() -> None:
    tables = {**TABLES, "c": TABLES["c"][:36]}
    with pytest.raises(QuorumError, match="only one group can be told"):
        both(tables, policy="consortium")[1]
    _, masked = both(tables, FederatedPCA(rank=3), policy="consortium")
    assert masked.result.rank == 3 and not len(masked.result.candidates)


def test_a_column_that_a_site_withholds_is_in_no_total() -> None:
    rare = TABLES["b"].copy()
    rare[:, 3] = np.arange(len(rare)) < 3
    scripted_ = scripted(federation({**TABLES, "b": rare}, policy="consortium"))
    run = FederatedPCA().run(scripted_, seed=0)
    assert run.result.withheld == ("x3",) and len(run.result.feature_names) == 14
    assert any("Some sites withhold x3" in remark for remark in run.result.remarks)
    asked = decode_message(Request.from_bytes(scripted_.engine.requests[MOMENTS + 1, "a"]).message)
    assert isinstance(asked, SharedMoments) and 3 not in asked.columns.value


def test_scaling_must_be_pooled() -> None:
    made = federation(TABLES, preparation=Preparation())
    with pytest.raises(StudyError, match='standardize to "pooled"'):
        FederatedPCA().run(made, seed=0)
    study = Study.from_settings(
        {
            "name": "components",
            "method": "federated-pca",
            "sums": "secure",
            "data": {"features": ["x0", "x1"]},
            "sites": {"names": ["a", "b", "c"]},
        }
    )
    with pytest.raises(StudyError, match='standardize to "pooled"'):
        check_admitted(study, FederatedPCA())


@pytest.mark.parametrize("preset", ["simulation", "strict"])
def test_a_steward_can_insist(preset: str) -> None:
    insists = Policy(preset=preset, masked_sums=True)
    assert FederatedPCA().run(federation(WIDE, policy=insists), seed=0).result.rank == RANK


@pytest.mark.parametrize("when", [1, POSSIBLE])
def test_a_site_that_is_lost_before_it_gave_is_not_in_the_model(when: int) -> None:
    """Two rounds of scaling earlier it has given, and a run goes on with all that have."""
    tables = draw(sites="abcde")
    made = dataclasses.replace(federation(tables), quorum=4)
    run = scripted(made, {(when, "c"): "absent"})
    if when == POSSIBLE:
        with pytest.raises(QuorumError, match="c was absent"):
            FederatedPCA().run(run, seed=0)
        return
    found = FederatedPCA().run(run, seed=0).result
    others = {name: x for name, x in tables.items() if name != "c"}
    check_equal(found, both(others)[0].result)


@pytest.mark.parametrize("round_", [POSSIBLE, MOMENTS + 1])
def test_a_run_that_stopped_goes_on_with_the_same_answer(round_: int, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(kind: str, facts: dict[str, Any]) -> None:
        if kind == "arrived" and facts["round"] == round_:
            raise Killed

    made, path = federation(TABLES), tmp_path / "run"
    with pytest.raises(Killed):
        FederatedPCA().run(made, seed=0, run_id="kept", out=path, on_event=stop)
    FederatedPCA().run(made, out=path, run_id="kept", resume=True)
    whole = FederatedPCA().run(federation(TABLES), seed=0, run_id="kept")
    assert load_run(path).result.to_files() == whole.result.to_files()


def test_totals_that_no_rows_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    true = federated_pca.total

    def wrong(ctx: Any, asked: Any, reply: Any, **more: Any) -> Any:
        found = yield from true(ctx, asked, reply, **more)
        if asked.step == "moments_total":
            found.values["products"][0, 0] = -1.0
        return found

    monkeypatch.setattr(federated_pca, "total", wrong)
    with pytest.raises(ProtocolError, match="what no rows have"):
        FederatedPCA().run(federation(TABLES), seed=0)


class OtherColumns(FederatedPCA):
    """Asks for columns that the sites did not offer, or for groups that they cannot tell."""

    wanted: Any = ()
    n_groups = 5

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        def wrong(asked: Ask) -> Ask:
            if asked.step != "moments_total":
                return asked
            columns = relayed(np.array(self.wanted), Disclosure.AGGREGATE)
            altered = SharedMoments(Settings(self.n_splits), self.n_groups, columns)
            return dataclasses.replace(asked, message=altered)

        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while True:
            try:
                asked = exchange.send((yield wrong(asked)))
            except StopIteration as end:
                return end.value


@pytest.mark.parametrize(
    ("wanted", "n_groups", "says"),
    [
        ((0, 3), 5, "not among those that this site said"),
        ((1, 0), 5, "not among those"),
        ((1,), 5, "not among those"),
        ((0, 1), 10, "did not say that it could tell as many groups"),
    ],
)
def test_a_site_tells_only_what_it_offered(wanted: Any, n_groups: int, says: str) -> None:
    rare = {site: x[:140].copy() for site, x in draw(p=6, rank=2).items()}
    for x in rare.values():
        x[:, 3] = np.arange(len(x)) < 3
    method = OtherColumns()
    for name, value in (("wanted", wanted), ("n_groups", n_groups)):
        object.__setattr__(method, name, value)
    with pytest.raises(QuorumError, match=says):
        method.run(federation(rare, policy="consortium"), seed=0)


@pytest.mark.parametrize("step", federated_pca.STEPS)
def test_steps_of_masked_sums_are_refused_in_plain(step: Any) -> None:
    context = SimpleNamespace(keys={})
    with pytest.raises(DisclosureError, match="have not met"):
        step(None, None, {}, context)


def test_the_report_speaks_of_all_sites() -> None:
    page = FederatedPCA().run(federation(TABLES), seed=0).report().html
    assert "900 rows at all sites share 4 components" in " ".join(page.split())
