"""Moments of every site: equal to those of its rows, withheld where they would tell of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.exceptions import QuorumError
from consilience.protocol.method import CoordinatorContext, Exchange, Method, register
from consilience.protocol.phases import site_moments as phase
from consilience.protocol.phases.site_moments import SiteMoments, site_moments
from consilience.protocol.result import Result
from consilience.sites.policy import Policy
from consilience.testing.fakes import federation_of, scripted
from consilience.wire.codec import pack, unpack
from consilience.wire.envelope import Reply
from tests.granted import GRANTED


@dataclass(frozen=True, eq=False)
class Kept(Result):
    n: dict[str, int]
    means: dict[str, np.ndarray]
    spreads: dict[str, np.ndarray]
    products: dict[str, np.ndarray]


@register
@dataclass(frozen=True, kw_only=True)
class OnlySiteMoments(Method):
    name: ClassVar[str] = "test-only-site-moments"
    title: ClassVar[str] = "What does the phase give?"
    steps = phase.STEPS
    absence: ClassVar[str] = "Down to the quorum."
    leakage: ClassVar[str] = "Moments by site."
    Result = Kept

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        found: SiteMoments = yield from site_moments(ctx)
        return Kept(found.n, found.means, found.spreads, found.products)


SIMULATION = Policy.from_settings("simulation")


def run(tables: dict[str, np.ndarray], **settings: Any) -> Any:
    return OnlySiteMoments().run(federation_of(tables, **settings), seed=0)


def tables(n: int = 40, p: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    mix = rng.normal(size=(p, p))
    return {s: rng.normal(size=(n + i, p)) @ mix + 10 * i for i, s in enumerate("abc")}


@pytest.mark.parametrize("policy", [None, SIMULATION])
def test_moments_are_those_of_the_rows(policy: Policy | None) -> None:
    given = tables()
    found = run(given, policy=policy).result
    for site, x in given.items():
        centred = x - x.mean(axis=0)
        assert found.n[site] == len(x)
        np.testing.assert_allclose(found.means[site], x.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(found.spreads[site], x.var(axis=0), rtol=1e-10)
        np.testing.assert_allclose(found.products[site], centred.T @ centred, rtol=1e-9, atol=1e-9)


def test_far_from_the_origin_no_digit_is_lost() -> None:
    given = {s: x + 1e8 for s, x in tables().items()}
    found = run(given).result
    for site, x in tables().items():
        centred = x - x.mean(axis=0)
        np.testing.assert_allclose(found.products[site], centred.T @ centred, rtol=1e-5, atol=1e-5)


def test_a_column_with_few_ones_or_one_large_value_is_withheld() -> None:
    given = tables(p=4)
    given["a"][:, 1] = np.arange(40) < 4
    given["b"][3, 2] = 1e7
    given["c"][:, 1] = np.arange(42) < 20
    run_ = run(given)
    found = run_.result
    assert np.isnan(found.means["a"]).tolist() == [False, True, False, False]
    assert np.isnan(found.spreads["a"]).tolist() == [False, True, False, False]
    hidden = np.isnan(found.products["a"])
    assert hidden[1].all() and hidden[:, 1].all()
    assert not hidden[np.ix_([0, 2, 3], [0, 2, 3])].any()
    assert np.isnan(found.means["b"]).tolist() == [False, False, True, False]
    assert np.isfinite(found.means["c"]).all()
    assert any("withheld by a, b" in note for note in run_.notes)
    assert np.isfinite(run(given, policy=SIMULATION).result.means["a"]).all()


def test_few_rows_for_the_columns_or_at_all() -> None:
    rng = np.random.default_rng(1)
    given = {
        "exact": rng.normal(size=(20, 10)),
        "few": rng.normal(size=(19, 10)),
        "none": rng.normal(size=(9, 10)),
    }
    found = run(given, policy=GRANTED).result
    assert found.n == {"exact": 20, "few": 19, "none": 0}
    assert set(found.products) == {"exact"}
    assert np.isfinite(found.means["few"]).all()
    assert np.isnan(found.means["none"]).all()


def test_constant_columns() -> None:
    given = tables()
    given["a"][:, 0] = 0.1
    given["b"][:, 0] = 0.0
    told = run(given).result.means
    assert np.isnan([told["a"][0], told["b"][0]]).all() and np.isfinite(told["c"]).all()
    found = run(given, policy=SIMULATION).result
    assert found.means["b"][0] == 0.0
    np.testing.assert_allclose(found.means["a"][0], 0.1)
    assert abs(found.spreads["a"][0]) < 1e-20


def altered(given: dict[str, np.ndarray], site: str, quorum: int, **fields: Any) -> Federation:
    """The site's reply, if it is one of this phase, with other fields."""

    def change(data: bytes) -> bytes:
        r = Reply.from_bytes(data)
        content = unpack(r.message) if r.message else {"m": ""}
        if content["m"] != "site-moments/within":
            return data
        content["f"] = {**content["f"], **fields}
        parts = (r.run, r.round, r.attempt, r.step, r.site, r.status, pack(content))
        return Reply(*parts, r.reason, r.verdicts).to_bytes()

    script = {(round_, site): change for round_ in range(6)}
    return scripted(federation_of(given, quorum=quorum), script)  # type: ignore[arg-type]


ODD: dict[str, dict[str, Any]] = {
    "negative rows": {"n": -3},
    "too many rows": {"n": 2**50},
    "other columns": {"means": np.zeros(2), "spreads": np.zeros(2)},
    "negative spreads": {"spreads": -np.ones(3)},
    "products of other columns": {"products": np.eye(2)},
    "asymmetric products": {"products": np.triu(np.ones((3, 3))) + 3 * np.eye(3)},
    "products of nothing": {"products": np.array([[1, 2, 0], [2, 1, 0], [0, 0, 1.0]])},
    "negative products": {"products": -np.eye(3)},
    "products of other rows than the spreads": {"spreads": 5.0 * np.ones(3)},
    "impossible with gaps": {"products": np.array([[1, 9, np.nan], [9, 1, 0], [np.nan, 0, 1]])},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_moments_cost_their_site_only(name: str) -> None:
    given = tables()
    run_ = OnlySiteMoments().run(altered(given, "b", 2, **ODD[name]), seed=0)
    assert set(run_.result.n) == {"a", "c"}
    assert any("b was absent in one round: its reply was not accepted" in n for n in run_.notes)
    with pytest.raises(QuorumError, match="b was absent: its reply was not accepted"):
        OnlySiteMoments().run(altered(given, "b", 3, **ODD[name]), seed=0)


def test_absence() -> None:
    given = tables()
    gone = {(round_, "b"): "absent" for round_ in range(2, 6)}
    found = OnlySiteMoments().run(scripted(federation_of(given, quorum=2), gone), seed=0).result
    assert set(found.n) == {"a", "c"}
    with pytest.raises(QuorumError, match="b was absent"):
        OnlySiteMoments().run(scripted(federation_of(given), gone), seed=0)
