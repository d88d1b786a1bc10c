"""What every method tells of a few people in a site's table: nothing, by eight attacks on each.

And each attack works on a weaker site, or on a method that leaks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.sites import loaders, prepare
from consilience.sites.own_columns import SiteColumns
from consilience.sites.policy import Policy
from consilience.sites.row_guard import RowGuard
from consilience.testing.fakes import Findings, federation_of, with_policy
from consilience.testing.recalling import Attack, Outcome
from consilience.testing.table_attacks import TABLE_ATTACKS, counts_told
from consilience.wire.disclosure import Released, aggregate, count
from consilience.wire.message import Aggregate, Public, message
from tests.exchange.cases import CASES

BY_NAME = {attack.name: attack for attack in TABLE_ATTACKS}
OVER_ROWS = [name for name, case in CASES.items() if case.method.partition == "rows"]
COUNTED = [
    "federated-pca",
    "federated-sparse-qda",
    "mean-and-sd",
    "meta-clustering",
    "pooled-regression",
    "pooled-regression by rounds",
    "pooled-regression one-shot",
    "reference-averaging",
]
"""Methods that tell moments by the usual names of fields."""
FITTED = {
    "cluster-count",
    "ensemble-clustering",
    "ensemble-clustering by held-out entries",
    "ensemble-clustering of categories",
    "latent-class-regression",
    "latent-class-regression of some in each round",
    "matrix-completion",
    "sparse-qda",
}
"""Methods that fit whatever columns there are: any row moves their classes and what is chosen."""


@pytest.mark.parametrize("name", OVER_ROWS)
@pytest.mark.parametrize("attack", TABLE_ATTACKS, ids=lambda attack: attack.name)
def test_attacks_on_rows(attack: Attack, name: str) -> None:
    outcome = attack.run(CASES[name].method, CASES[name].factory)
    if (attack.name, name) == ("few differ", "class-sums"):
        assert outcome.verdict == "open", "its sums are not judged as those of columns"
        return
    assert outcome.verdict in ("blocked", "accounted"), outcome.evidence
    assert "refused" not in outcome.evidence, "the attack was not tried"
    if attack.name in ("few differ", "rare level") and name not in FITTED:
        assert "hang on all rows" not in outcome.evidence
    if attack.name == "counts of few" and name in COUNTED:
        assert not outcome.evidence.startswith("none of 0 ")


@pytest.mark.parametrize("attack", TABLE_ATTACKS, ids=lambda attack: attack.name)
def test_a_study_over_columns_is_not_concerned(attack: Attack) -> None:
    case = CASES["assisted-glm"]
    assert attack.run(case.method, case.factory).verdict == "accounted"


# --------------------------------------------------------------------------- they can succeed


@message("tests/leak-question", version=1)
class Question:
    """Which share of the rows to leave out."""

    share: float = Public("", kind="float", to="site")


@message("tests/leak", version=1)
class Leak:
    """Moments judged about the mean only, and how many have a 1."""

    n: Released = Aggregate("", kind="int")
    means: Released = Aggregate("p", gaps=True)
    products: Released = Aggregate("p p", gaps=True)
    ones: int = Public("", kind="int")


@step("tests.leak")
def leak(message: Question, data: SiteData, state: State, site: SiteContext) -> tuple[Leak, State]:
    """Leave out the last rows, and tell of the others."""
    x = data.features[: int((1 - message.share) * data.n_rows)]
    about = x - x.mean(axis=0)
    products = aggregate(about[:, :, None] * about[:, None, :]).withhold_unsafe(site.limits)
    said = Leak(
        n=count(len(x)),
        means=aggregate(x / len(x)).withhold_unsafe(site.limits),
        products=products,
        ones=int((x[:, -1] == 1.0).sum()),
    )
    return said, state


@register
@dataclass(frozen=True, kw_only=True)
class Leaking(Method):
    """Asks once."""

    holdout: float = 0.2

    name: ClassVar[str] = "tests-leaking"
    title: ClassVar[str] = "What does it tell?"
    steps = (leak,)
    absence: ClassVar[str] = "A silent site is missing in the result, down to the quorum."
    leakage: ClassVar[str] = "Much."
    Result = Findings

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once."""
        replies = ctx.require((yield Ask("tests.leak", Question(share=self.holdout))))
        return Findings({site: reply.means.value for site, reply in replies.items()})


def factory() -> Federation:
    rng = np.random.default_rng(3)
    tables = {name: rng.normal(size=(150, 3)) for name in "abc"}
    roles = {name: {"target": x.sum(axis=1)} for name, x in tables.items()}
    federation = federation_of(tables, roles=roles)
    columns = dataclasses.replace(federation.columns, target="y")
    return dataclasses.replace(federation, columns=columns)


def tried(name: str, case: str = "") -> Outcome:
    """Try an attack on a case, or on the method that leaks."""
    if case:
        return BY_NAME[name].run(CASES[case].method, CASES[case].factory)
    return BY_NAME[name].run(Leaking(), factory)


@pytest.mark.parametrize("name", ["few differ", "counts of few", "held-out shares"])
def test_a_method_that_leaks(name: str) -> None:
    outcome = tried(name)
    assert outcome.verdict == "open" and "(this concerns the method)" in outcome.evidence


@pytest.mark.parametrize(
    ("name", "case"), [("odd rows", "mean-and-sd"), ("rare level", "sparse-qda")]
)
def test_where_a_single_odd_value_stops_a_study(
    name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(name, case).verdict == "blocked"
    plain = prepare.load_with_report

    def eager(*args: Any, **more: Any) -> Any:
        return plain(*args, **{**more, "min_records": 1})

    monkeypatch.setattr(loaders, "load_with_report", eager)
    assert tried(name, case).verdict == "open"


def test_without_the_guard_over_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried("two runs", "mean-and-sd").verdict == "blocked"

    def whatever(self: RowGuard, method: Any, data: SiteData, *_: Any) -> Any:
        return np.isin(np.arange(data.n_read), data.rows)

    monkeypatch.setattr(RowGuard, "rows_to_use", whatever)
    monkeypatch.setattr(RowGuard, "hide_columns", lambda *_: None)
    assert tried("two runs", "mean-and-sd").verdict == "open"


def test_without_a_list_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteColumns, "check_offer", lambda self, *rest: None)
    monkeypatch.setattr(SiteColumns, "offer", lambda self, name: "number")
    assert tried("not on offer", "mean-and-sd").verdict == "open"


def test_without_consent_to_models_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    method = CASES["meta-clustering"].method
    monkeypatch.setattr(type(method), "foreign_models", True)
    monkeypatch.setattr(Policy, "check_method", lambda self, *rest, **more: None)
    assert tried("foreign models", "meta-clustering").verdict == "open"


@pytest.mark.parametrize("name", BY_NAME)
def test_under_a_policy_for_simulation_attacks_are_accounted(name: str) -> None:
    simulation = Policy.from_settings("simulation")
    found = BY_NAME[name].run(Leaking(), lambda: with_policy(factory(), simulation))
    assert found.verdict == "accounted"


def test_counts_follow_from_moments() -> None:
    """All four cells of each pair, from whole products or their upper triangle, also by group."""
    rng = np.random.default_rng(1)
    x = (rng.random((40, 3)) < 0.4).astype(float)
    means = x.mean(axis=0)
    products = (x - means).T @ (x - means)
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = [c for j in range(3) for c in (x[:, j].sum(), 40 - x[:, j].sum())]
    for i, j in pairs:
        cells = [((x[:, i] == a) & (x[:, j] == b)).sum() for a, b in ((1, 1), (1, 0), (0, 1))]
        expected += [*cells, 40 - sum(cells)]
    told = partial(sorted, key=float)
    upper = products[np.triu_indices(3)]
    for fields in (
        {"n": 40, "means": means, "products": products},
        {"n": np.full(3, 40), "totals": 40 * means, "products": upper},
        {"counts": np.array([40]), "means": means[None], "products": upper[None]},
    ):
        np.testing.assert_allclose(told(counts_told(fields)), sorted(expected), atol=1e-9)
    assert not list(counts_told({"n": 40, "spreads": means}))
    withheld = np.where([True, True, False], means, np.nan)
    known = products[:2, :2][np.triu_indices(2)]
    assert len(list(counts_told({"n": 40, "means": withheld, "products": known}))) == 8
