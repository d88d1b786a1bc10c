"""Classes from totals of masked moments: the model of the pooled rows, chosen over groups."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from consilience import Columns, Federation, load_run
from consilience.discriminant.estimators.sparse_qda import SparseQDA
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA
from consilience.discriminant.federated_sparse_qda import masked as masked_sums
from consilience.discriminant.federated_sparse_qda.messages import Settings, SharedClasses
from consilience.engines.study_check import check_admitted
from consilience.exceptions import DisclosureError, ProtocolError, QuorumError, StudyError
from consilience.protocol.method import CoordinatorContext, Exchange, Preparation
from consilience.protocol.phases.secure_sums import ALL, MASKED
from consilience.sites.policy import Policy
from consilience.sites.study import Study
from consilience.testing.fakes import scripted
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Request
from consilience.wire.message import Disclosure
from tests.discriminant.federated_sparse_qda.sparse_qda import (
    Tables,
    draw,
    federation_over,
    labels,
    names,
    rows,
)
from tests.granted import granted

POOLED = Preparation(standardize="pooled")
TABLES = draw([200, 220, 240], 5)
# Rounds: 1 opening, 2 introductions, 3 meeting, 4 levels, 5 to 9 scaling, then totals and openings.
POSSIBLE, TOTALS, KEEP = 10, 12, 14
TIGHT: dict[str, Any] = {"tol": 1e-13}


def federation(
    tables: Tables = TABLES, policy: str | Policy = "consortium", **settings: Any
) -> Federation:
    settings = {"preparation": POOLED, "sums": "secure", **settings}
    return federation_over(tables, policy, **settings)


def run_of(tables: Tables = TABLES, policy: str | Policy = "consortium", **parameters: Any) -> Any:
    return FederatedSparseQDA(**TIGHT, **parameters).run(federation(tables, policy), seed=0)


def standardised(tables: Tables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, sites = rows(tables)
    return (x - x.mean(axis=0)) / x.std(axis=0), y, sites


def dense(result: Any) -> np.ndarray:
    """Precision matrices over the columns that take part."""
    m, at = len(result.columns), np.arange(len(result.columns))
    full = np.zeros((len(result.levels), m, m))
    full[:, at, at] = result.diagonal
    for block, precision in zip(result.blocks, result.precisions, strict=True):
        inside = np.searchsorted(result.columns, block)
        full[:, inside[:, None], inside[None, :]] = precision
    return full


# --------------------------------------------------------------------------- the model


@pytest.mark.parametrize(
    ("policy", "n_classes", "alpha"),
    [("simulation", 2, 0.1), ("consortium", 3, 0.05), ("strict", 2, 0.0), ("strict", 2, 0.3)],
)
def test_it_is_the_fit_of_the_pooled_rows(policy: str, n_classes: int, alpha: float) -> None:
    tables = draw([200, 220, 240], 5, n_classes=n_classes)
    made = federation(tables, policy, n_classes=n_classes)
    result = FederatedSparseQDA(alpha=alpha, **TIGHT).run(made, seed=0).result
    x, y, _ = standardised(tables)
    fitted = SparseQDA(alpha=alpha, tol=1e-13).fit(x, y)
    np.testing.assert_allclose(result.scale, fitted.scale_, atol=1e-9)
    np.testing.assert_allclose(result.means, fitted.means_, atol=1e-9)
    np.testing.assert_allclose(dense(result), fitted.precision_.dense(), atol=1e-9)
    np.testing.assert_allclose(result.priors, fitted.priors_, rtol=1e-12)
    assert result.choice == "given" and result.n_by_site.tolist() == [result.n_by_class.tolist()]


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_it_is_the_run_in_plain(policy: str) -> None:
    plain = FederatedSparseQDA(alpha=0.1, holdout=0.0, screening=False, **TIGHT).run(
        federation(policy=policy, sums="plain"), seed=0
    )
    found, wanted = run_of(policy=policy, alpha=0.1), plain.result
    for name in ("scale", "means", "scaling", "priors", "log_det", "strength", "partial"):
        np.testing.assert_allclose(
            getattr(found.result, name), getattr(wanted, name), atol=1e-9, err_msg=name
        )
    np.testing.assert_allclose(dense(found.result), dense(wanted), atol=1e-9)
    assert found.result.pairs.tolist() == wanted.pairs.tolist()
    x, _, _ = rows(TABLES)
    for site in TABLES:
        one, other = found.site(site).predictor, plain.site(site).predictor
        np.testing.assert_allclose(one.scores(x), other.scores(x), atol=1e-8)


def test_columns_that_do_not_vary() -> None:
    """Everywhere: left out. Within a class: a variance by the estimator's own rule."""
    tables = draw([60, 50, 70], 5)
    for table in tables.values():
        table["x3"] = 7.0
        table.loc[table["y"] == "c0", "x4"] = 2.0
    result = run_of(tables, "simulation", alpha=0.1).result
    x, y, _ = rows(tables)
    spread = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    with pytest.warns(UserWarning, match="constant"):
        fitted = SparseQDA(alpha=0.1, tol=1e-13).fit((x - x.mean(axis=0)) / spread, y)
    assert result.columns.tolist() == [0, 1, 2, 4]
    np.testing.assert_allclose(dense(result), fitted.precision_.dense(), atol=1e-9)
    assert any("Constant everywhere: x3" in remark for remark in result.remarks)


# --------------------------------------------------------------------------- the choice


def groups_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Cells (group after group by class) of each site's rows, as the site dealt them."""
    dealt: dict[str, np.ndarray] = {}
    true = masked_sums._cells

    def noted(given: Any, data: Any, number: int, k: int, site: Any) -> Any:
        dealt[site.site] = found = true(given, data, number, k, site)
        return found

    monkeypatch.setattr(masked_sums, "_cells", noted)
    return dealt


def cross_validated(
    x: np.ndarray, y: np.ndarray, group: np.ndarray, alphas: np.ndarray
) -> np.ndarray:
    """Mean negative log density of a row given its class, under fits to the other groups' rows."""
    loss = np.zeros(len(alphas))
    for left_out in np.unique(group):
        out = group == left_out
        for i, alpha in enumerate(alphas):
            fitted = SparseQDA(alpha=float(alpha), tol=1e-13).fit(x[~out], y[~out])
            precisions = fitted.precision_.dense()
            for k, level in enumerate(fitted.classes_):
                z = (x[out & (y == level)] - fitted.means_[k]) / fitted.scale_
                inverse = precisions[k]
                quadratic = np.einsum("ij,jk,ik->i", z, inverse, z)
                determinant = np.linalg.slogdet(inverse)[1] - 2 * np.log(fitted.scale_).sum()
                p = x.shape[1]
                loss[i] += 0.5 * (quadratic - determinant + p * np.log(2 * np.pi)).sum()
    return loss / len(x)


@pytest.mark.parametrize(("policy", "n_groups"), [("simulation", 4), ("consortium", 4)])
def test_the_choice_is_cross_validation_over_groups_of_the_pooled_rows(
    policy: str, n_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = draw([400, 420, 440], 4, rho=0.5)
    dealt, alphas = groups_of(monkeypatch), (0.4, 0.2, 0.1, 0.05, 0.02, 0.01)
    result = run_of(tables, policy, alphas=alphas).result
    x, y, sites = standardised(tables)
    group = np.concatenate([dealt[site] // 2 for site in tables])
    assert len(np.unique(group)) == n_groups and len(sites) == len(group)
    wanted = cross_validated(x, y, group, np.array(alphas))
    np.testing.assert_allclose(result.candidate_loss, wanted, atol=1e-9)
    assert result.chosen == int(np.argmin(wanted))
    assert result.judges == tuple(f"group {g + 1}" for g in range(n_groups))


def test_groups_are_unions_of_parts_that_runs_in_plain_hold_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So figures of groups and of other runs together are over no smaller sets of rows."""
    tables = draw([400, 420, 440], 4)
    dealt = groups_of(monkeypatch)
    seen: dict[str, list[np.ndarray]] = {}
    true = masked_sums._cells

    def noted(given: Any, data: Any, number: int, k: int, site: Any) -> Any:
        seen.setdefault(site.site, [])
        held = np.isin(np.arange(len(given.codes)), given.held)
        seen[site.site] += [held, true(given, data, number, k, site) // k]
        return true(given, data, number, k, site)

    monkeypatch.setattr(masked_sums, "_cells", noted)
    for holdout in (0.2, 0.4):
        run_of(tables, "strict", holdout=holdout, n_alphas=2)
    assert sorted(dealt) == sorted(tables)
    for site, masks in seen.items():
        pieces = np.unique(np.array(masks), axis=1, return_counts=True)[1]
        assert len(pieces) == 4 and pieces.min() >= 0.1 * len(tables[site])


def test_rows_of_an_entity_are_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = groups_of(monkeypatch)
    tables = {
        site: table.assign(e=[f"e{i // 6}" for i in range(len(table))])
        for site, table in draw([600, 620, 640], 4, rho=0.3).items()
    }
    columns = Columns(features=names(4), target="y", levels={"y": labels(2)}, entity="e")
    made = Federation.local(
        tables, columns=columns, policy=granted("strict"), preparation=POOLED, sums="secure"
    )
    result = FederatedSparseQDA(n_alphas=4).run(made, seed=0).result
    assert len(result.judges) > 1
    for site, cells in dealt.items():
        of_entity = [np.unique(cells[i : i + 6] // 2) for i in range(0, len(tables[site]), 6)]
        assert {len(groups) for groups in of_entity} == {1}


def test_a_small_site_sets_the_number_of_groups() -> None:
    """Five columns need ten rows of a class in a group."""
    tables = {**TABLES, "s1": TABLES["s1"].iloc[:120]}
    found = run_of(tables, n_alphas=4).result
    assert len(found.judges) == 2
    tables = {**TABLES, "s1": TABLES["s1"].iloc[:36]}
    with pytest.raises(QuorumError, match="can tell one group only"):
        run_of(tables, n_alphas=4)
    given = run_of(tables, alpha=0.1).result
    assert given.choice == "given" and given.n_fitted == 476


# --------------------------------------------------------------------------- what is seen


def test_the_coordinator_sees_no_number_of_a_site() -> None:
    run = run_of(n_alphas=4)
    told = [
        line for line in run.transcript if line.site in TABLES and line.direction == "from-site"
    ]
    assert {line.disclosure for line in told} == {"public", "masked"}
    assert {line.step for line in told if line.disclosure == "masked"} == {
        "moments.totals",
        "moments.squares",
        "possible",
        "class_totals",
    }
    result = run.result
    assert len(run.next()) == 0 and "nothing says what is next" in str(run.next())
    assert result.sites == (ALL,) and MASKED in result.remarks and result.n_held == 0
    assert "660 rows at all sites" in result.summary()
    assert "the density of each group's rows" in result.summary()
    assert list(result.site_rows.index) == [ALL] and np.isnan(result.site_errors).all()


def test_a_column_that_a_site_withholds_is_in_no_total() -> None:
    tables = dict(TABLES)
    tables["s1"] = tables["s1"].assign(x3=(np.arange(220) < 3) * 1.0)
    made = scripted(federation(tables))
    run = FederatedSparseQDA(alpha=0.1).run(made, seed=0)
    assert run.result.columns.tolist() == [0, 1, 2, 4]
    assert any("left out: x3" in remark for remark in run.result.remarks)
    asked = decode_message(Request.from_bytes(made.engine.requests[TOTALS + 1, "s0"]).message)
    assert isinstance(asked, SharedClasses) and asked.columns.value.tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("rows_of_class", [0, 9, 12])
def test_a_class_that_a_site_cannot_tell_stops_the_run(rows_of_class: int) -> None:
    """Twelve rows are enough for a mean, and too few for products of seven columns."""
    tables = draw([200, 220, 240], 7)
    first = tables["s0"]
    few = np.flatnonzero(first["y"] == "c1")[rows_of_class:]
    tables["s0"] = first.drop(index=first.index[few])
    with pytest.raises(QuorumError, match=r"cannot tell the moments of class 'c1'.*fewer columns"):
        run_of(tables, alpha=0.1)


def test_columns_that_all_withhold_stop_the_run() -> None:
    tables = {s: t.assign(**{x: 1.0 * (np.arange(len(t)) < 3) for x in names(5)})
              for s, t in TABLES.items()}  # fmt: skip
    with pytest.raises(QuorumError, match="every column is withheld by some site"):
        run_of(tables, alpha=0.1)


def test_the_report_speaks_of_all_sites() -> None:
    page = " ".join(run_of(n_alphas=4).report().html.split())
    assert "Rows of all sites were dealt to" in page and "no other rows are held out" in page
    assert "density of each group" in page and "Sums over sites were masked" in page
    assert "site's rows" not in page and "sites that protect records are rounded" not in page


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"screening": True}, 'set screening to "auto", or leave sums'),
        ({"choose": "sites"}, 'set choose to "likelihood", or leave sums'),
        ({"choose": "holdout"}, 'set choose to "likelihood", or leave sums'),
    ],
)
def test_what_needs_more_of_each_site_is_refused(parameters: Any, says: str) -> None:
    with pytest.raises(StudyError, match=says):
        run_of(**parameters)
    assert FederatedSparseQDA(alpha=0.1, choose="sites").cannot_mask() == ""


def test_scaling_must_be_pooled() -> None:
    with pytest.raises(StudyError, match='standardize to "pooled"'):
        FederatedSparseQDA().run(federation(preparation=Preparation()), seed=0)
    study = Study.from_settings(
        {
            "name": "classes",
            "method": "federated-sparse-qda",
            "sums": "secure",
            "data": {"features": ["x0", "x1"], "target": "y", "levels": {"y": list(labels(2))}},
            "sites": {"names": ["a", "b", "c"]},
        }
    )
    with pytest.raises(StudyError, match='standardize to "pooled"'):
        check_admitted(study, FederatedSparseQDA())


@pytest.mark.parametrize("preset", ["simulation", "strict"])
def test_a_steward_can_insist(preset: str) -> None:
    insists = Policy(preset=preset, masked_sums=True, foreign_models=True)
    assert run_of(policy=insists, alpha=0.1).result.sites == (ALL,)


@pytest.mark.parametrize("step", masked_sums.STEPS)
def test_steps_of_masked_sums_are_refused_in_plain(step: Any) -> None:
    with pytest.raises(DisclosureError, match="have not met"):
        step(None, None, {}, SimpleNamespace(keys={}))


class Altered(FederatedSparseQDA):
    """Asks another question for the totals than the coordinator of the package."""

    columns: Any = ()
    groups = 1
    apart = False
    twice = False

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while True:
            given = asked
            if asked.step == "class_totals":
                settings = Settings(labels(2), float(self.holdout))
                altered = SharedClasses(
                    settings,
                    self.groups,
                    relayed(np.array(self.columns, dtype=int), Disclosure.AGGREGATE),
                )
                if self.apart:
                    first, *others = sorted(asked.to or ())
                    own = dict.fromkeys(others, asked.message) | {first: altered}
                    given = dataclasses.replace(asked, message=own)
                elif self.twice:
                    yield asked
                    given = dataclasses.replace(asked, message=altered)
                else:
                    given = dataclasses.replace(asked, message=altered)
            try:
                asked = exchange.send((yield given))
            except StopIteration as end:
                return end.value


def altered(**changes: Any) -> FederatedSparseQDA:
    method = Altered(alpha=0.1)
    for name, value in changes.items():
        object.__setattr__(method, name, value)
    return method


@pytest.mark.parametrize(
    ("columns", "groups", "says"),
    [
        ((0, 3), 1, "not among those that this site said"),
        ((1, 0), 1, "not among those"),
        ((), 1, "not among those"),
        ((0, 1), 4, "did not say that it could tell as many groups"),
        ((0, 1), 5, "did not say that it could tell as many groups"),
    ],
)
def test_a_site_tells_only_what_it_offered(columns: Any, groups: int, says: str) -> None:
    tables = {
        site: table.iloc[:90].assign(x3=(np.arange(90) < 3) * 1.0) for site, table in TABLES.items()
    }
    with pytest.raises(QuorumError, match=says):
        altered(columns=columns, groups=groups).run(federation(tables), seed=0)


def test_totals_are_told_once_in_a_run() -> None:
    with pytest.raises(QuorumError, match="answered once in a run"):
        altered(columns=(0, 1), twice=True).run(federation(), seed=0)


def test_a_site_that_was_asked_another_question_is_in_no_total() -> None:
    """Of other columns, or in other groups: there is no total of sites that add up other things."""
    for columns, groups in (((0, 1), 1), ((0, 1, 2, 3), 1), ((0, 1, 2, 3, 4), 2)):
        with pytest.raises(ProtocolError, match="sums of different cells"):
            altered(columns=columns, groups=groups, apart=True).run(federation(), seed=0)


@pytest.mark.parametrize("field", ["counts", "products"])
def test_totals_that_no_rows_have_are_refused(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    true = masked_sums.total

    def wrong(ctx: Any, asked: Any, reply: Any, **more: Any) -> Any:
        found = yield from true(ctx, asked, reply, **more)
        if asked.step == "class_totals":
            found.values[field].flat[0] = -1.0
        return found

    monkeypatch.setattr(masked_sums, "total", wrong)
    with pytest.raises(ProtocolError, match="what no rows have"):
        run_of(alpha=0.1)


# --------------------------------------------------------------------------- absence


def test_a_site_that_is_lost_before_it_gave_is_not_in_the_model() -> None:
    tables = draw([150] * 5, 4)
    made = dataclasses.replace(federation(tables), quorum=4)
    run = FederatedSparseQDA(alpha=0.1, **TIGHT).run(scripted(made, {(1, "s2"): "absent"}), seed=0)
    wanted = run_of({name: t for name, t in tables.items() if name != "s2"}, alpha=0.1).result
    np.testing.assert_allclose(dense(run.result), dense(wanted), atol=1e-9)
    for round_ in (POSSIBLE, TOTALS):  # two rounds of scaling earlier it has given
        with pytest.raises(QuorumError, match="s2 was absent"):
            FederatedSparseQDA(alpha=0.1).run(scripted(made, {(round_, "s2"): "absent"}), seed=0)


@pytest.mark.parametrize("round_", [TOTALS + 1, KEEP])
def test_a_site_that_is_lost_after_it_gave_is_in_the_model(round_: int) -> None:
    tables = draw([150] * 5, 4)
    made = dataclasses.replace(federation(tables), quorum=4)
    method = FederatedSparseQDA(alpha=0.1, **TIGHT)
    run = method.run(scripted(made, {(round_, "s2"): "absent"}), seed=0)
    np.testing.assert_allclose(dense(run.result), dense(method.run(made, seed=0).result), atol=0)
    late = any("s2 did not take the model" in remark for remark in run.result.remarks)
    assert late == (round_ == KEEP)


@pytest.mark.parametrize("round_", range(1, KEEP + 1))
def test_a_run_that_stopped_goes_on_with_the_same_answer(round_: int, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(kind: str, facts: dict[str, Any]) -> None:
        if kind == "arrived" and facts["round"] == round_:
            raise Killed

    method, tables = FederatedSparseQDA(n_alphas=3), draw([120, 130, 140], 3)
    made, path = federation(tables, "simulation"), tmp_path / "run"
    with pytest.raises(Killed):
        method.run(made, seed=0, run_id="kept", out=path, on_event=stop)
    method.run(made, out=path, run_id="kept", resume=True)
    whole = method.run(federation(tables, "simulation"), seed=0, run_id="kept")
    assert load_run(path).result.to_files() == whole.result.to_files()
