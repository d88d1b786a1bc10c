from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.exceptions import QuorumError
from consilience.protocol.method import (
    Columns,
    CoordinatorContext,
    Exchange,
    Method,
    Preparation,
    register,
)
from consilience.protocol.phases import moments as phase
from consilience.protocol.phases.moments import combine, moments
from consilience.protocol.result import Result
from consilience.sites.policy import Policy
from consilience.testing.fakes import FakeEngine, federation_of, scripted
from consilience.wire.codec import decode_message
from consilience.wire.envelope import Reply
from tests.granted import GRANTED
from tests.reference.moments_naive import moments_of_sites, pooled_moments, rows_behind


@dataclass(frozen=True, eq=False)
class Found(Result):
    n: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    withheld: dict[str, tuple[str, ...]] = field(default_factory=dict)


@register
@dataclass(frozen=True, kw_only=True)
class OnlyMoments(Method):
    name: ClassVar[str] = "test-only-moments"
    title: ClassVar[str] = "What does the phase give?"
    steps = phase.STEPS
    absence: ClassVar[str] = "Down to the quorum."
    leakage: ClassVar[str] = "Moments."
    Result = Found

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        pooled = yield from moments(ctx)
        return Found(pooled.n, pooled.mean, pooled.variance, pooled.withheld)


def run(tables: dict[str, np.ndarray], **settings: Any) -> Any:
    return OnlyMoments().run(federation_of(tables, **settings), seed=0)


def asked(given: dict[str, np.ndarray], **settings: Any) -> dict[str, Any]:
    """What each site sent in the phase."""
    federation = scripted(federation_of(given, **settings))
    OnlyMoments().run(federation, seed=0)
    engine = federation.engine
    assert isinstance(engine, FakeEngine)
    messages = {
        site: decode_message(Reply.from_bytes(raw).message)
        for (_, site), raw in engine.replies.items()
        if b"moments/sums" in raw
    }
    assert set(messages) == set(given)
    return messages


def tables(offset: float = 0.0, *, sites: int = 5, gaps: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    made = {}
    for i in range(sites):
        x = rng.normal(size=(25 + 3 * i, 3)) * [1.0, 10.0, 1e-3] + [i, -i, 0] + offset
        if gaps:  # few at every other site, many at the others
            for j in range(3):
                x[rng.permutation(len(x))[: 5 + 7 * (i % 2)], j] = np.nan
        made[f"s{i}"] = x
    return made


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("sites", [1, 2, 3, 5])
def test_against_exact_arithmetic(sites: int, gaps: bool) -> None:
    given = tables(sites=sites, gaps=gaps)
    result = run(given).result
    for j in range(3):
        n, mean, variance = moments_of_sites([x[:, j] for x in given.values()])
        assert result.n[j] == n
        assert result.mean[j] == pytest.approx(mean, rel=1e-13, abs=1e-15)
        assert result.variance[j] == pytest.approx(variance, rel=1e-12)
    assert result.withheld == {}


@pytest.mark.parametrize("offset", [1e4, 1e6, 1e8])
def test_large_offsets_lose_no_more_digits_than_the_data_have(offset: float) -> None:
    """A site's mean is known to one unit in its last place, and so is what lies between sites."""
    given = tables(offset)
    result = run(given).result
    for j in range(3):
        _, mean, variance = pooled_moments([x[:, j] for x in given.values()])
        assert result.mean[j] == pytest.approx(mean, rel=1e-14)
        apart = np.ptp([x[:, j].mean() for x in given.values()])
        last_place = offset * 2.0**-52
        bound = 1e-12 + (2 * apart * last_place + last_place**2) / variance
        assert result.variance[j] == pytest.approx(variance, rel=bound)
        one_pass = np.concatenate([x[:, j] for x in given.values()])
        naive = (one_pass**2).mean() - one_pass.mean() ** 2
        if offset == 1e8:
            assert abs(naive / variance - 1) > 1e3 * bound, "sums of squares would lose them all"


def test_a_rare_indicator_is_withheld_and_named() -> None:
    given = tables()
    indicator = {
        name: np.c_[x, np.arange(len(x)) < (9 if name == "s1" else 12)] for name, x in given.items()
    }
    finished = run(indicator)
    result = finished.result
    assert result.withheld == {"s1": ("x3",)}
    others = [x[:, 3] for name, x in indicator.items() if name != "s1"]
    n, mean, variance = pooled_moments(others)
    assert (result.n[3], result.n[0]) == (n, n + 28)
    assert result.mean[3] == pytest.approx(mean)
    assert result.variance[3] == pytest.approx(variance)
    assert any("Site s1 withheld the sums of x3" in note for note in finished.notes)
    line = [x for x in finished.transcript if x.site == "s1" and x.field == "means"]
    assert [x.verdict for x in line] == ["withheld"]


def test_a_dominated_column_is_withheld_whole() -> None:
    given = tables()
    given["s2"][0, 1] = 1e9
    result = run(given).result
    assert result.withheld == {"s2": ("x1",)}
    _, mean, _ = pooled_moments([x[:, 1] for name, x in given.items() if name != "s2"])
    assert result.mean[1] == pytest.approx(mean)


def test_a_column_without_values_is_withheld() -> None:
    given = tables()
    given["s0"][:, 2] = np.nan
    assert run(given).result.withheld == {"s0": ("x2",)}


def test_a_column_that_everybody_withholds_stops_the_run() -> None:
    given = {name: np.c_[x, np.arange(len(x)) < 3] for name, x in tables().items()}
    with pytest.raises(QuorumError, match="every site withheld column 'x3'"):
        run(given)


def test_few_missing_values_do_not_change_the_class() -> None:
    """The number of rows with a value is a count like any other."""
    given = tables()
    given["s0"][:20, 0] = np.nan
    assert run(given).result.withheld == {"s0": ("x0",)}, "5 values are too few"


@pytest.mark.parametrize("missing", [0, 1, 5, 9, 10, 11])
def test_a_small_number_of_missing_values_does_not_show(missing: int) -> None:
    x = np.random.default_rng(4).normal(size=(40, 2))
    x[:missing, 1] = np.nan
    rows = 40 if missing < 10 else 40 - missing
    assert rows == rows_behind(x[:, 1])
    reply = asked({"a": x})["a"]
    np.testing.assert_array_equal(reply.n.value, [40, rows])
    np.testing.assert_allclose(reply.means.value, np.nanmean(x, axis=0), rtol=1e-12)
    known = np.array([40, 40 - missing])
    np.testing.assert_allclose(
        reply.spreads.value, np.nanvar(x, axis=0) * known / [40, rows], rtol=1e-12
    )
    assert reply.means.value.dtype == reply.spreads.value.dtype == np.float64


@pytest.mark.parametrize(("limit", "n"), [(3, 36), (4, 36), (5, 40)])
def test_what_is_a_small_number_is_the_policy_of_the_site(limit: int, n: int) -> None:
    x = np.random.default_rng(4).normal(size=(40, 1))
    x[:4] = np.nan
    assert asked({"a": x}, policy=Policy(min_records=limit))["a"].n.value == [n]


def test_gaps_of_the_tables_are_few_and_many() -> None:
    """Otherwise the comparison with the reference would show nothing of the rule."""
    missing = {int(k) for x in tables(gaps=True).values() for k in np.isnan(x).sum(axis=0)}
    assert missing == {5, 12}
    given = list(tables(gaps=True).values())
    exact = pooled_moments([x[:, 0] for x in given])
    assert abs(moments_of_sites([x[:, 0] for x in given])[1] - exact[1]) > 1e-3


@pytest.mark.parametrize(("ones", "zeros"), [(3, 35), (35, 3), (9, 29), (1, 37)])
@pytest.mark.parametrize("missing", [0, 2])
def test_a_rare_indicator_with_missing_values_is_withheld(
    ones: int, zeros: int, missing: int
) -> None:
    column = np.r_[np.ones(ones), np.zeros(zeros), np.full(missing, np.nan)]
    x = np.c_[np.random.default_rng(8).normal(size=len(column)), column]
    reply = asked({"a": x, "b": tables(sites=1)["s0"][:, :2]})["a"]
    for released in (reply.n, reply.means, reply.spreads):
        np.testing.assert_array_equal(np.isnan(released.value), [False, True])


def test_a_common_indicator_with_missing_values_is_not_withheld() -> None:
    column = np.r_[np.ones(12), np.zeros(26), np.full(2, np.nan)]
    reply = asked({"a": column[:, None]})["a"]
    assert reply.n.value == [40]
    assert reply.means.value == pytest.approx(12 / 38)


def test_constant_columns() -> None:
    """That nobody differs is told no more than that a few do."""
    given = {name: np.full((20, 1), 3.5) for name in ("a", "b")}
    result = run(given, policy=Policy.from_settings("simulation")).result
    assert (result.mean[0], result.variance[0]) == (3.5, 0.0)
    with pytest.raises(QuorumError, match="every site withheld column 'x0'"):
        run(given)


def test_a_level_that_would_follow_from_the_others_is_withheld_too() -> None:
    """Rows less the levels that leave: the smallest level, or the one that is left out."""
    columns = Columns(features=("kind",), levels={"kind": ("a", "b", "c", "d")})
    for coding, sizes, withheld in (
        ("onehot", [30, 40, 50, 7], ("kind=a", "kind=d")),
        ("treatment", [30, 40, 50, 7], ("kind=d",)),
        ("treatment", [7, 40, 50, 30], ("kind=b",)),
        ("onehot", [30, 40, 50, 10], None),
        ("onehot", [30, 40, 50, 0], ("kind=a", "kind=d")),
    ):
        federation = Federation.local(
            {
                "one": {"kind": np.repeat(["a", "b", "c", "d"], sizes)},
                "two": {"kind": np.repeat(["a", "b", "c", "d"], 20)},
            },
            columns=columns,
            preparation=Preparation(categorical=coding),  # type: ignore[arg-type]
        )
        found = OnlyMoments().run(federation, seed=0).result.withheld
        assert found == ({} if withheld is None else {"one": withheld})


def test_nothing_of_a_withheld_column_crosses() -> None:
    given = tables()
    given["s2"][0, 1] = 1e9
    federation = scripted(federation_of(given))
    OnlyMoments().run(federation, seed=0)
    engine = federation.engine
    assert isinstance(engine, FakeEngine)
    for site, shown in (("s2", False), ("s1", True)):
        x = given[site]
        total = x.sum(axis=0)
        mean = total / len(x)  # in the site's order of summing, to the last bit
        squares = ((x - mean) ** 2).sum(axis=0)
        for value in (mean[1], squares[1] / len(x)):
            assert (np.array(value).tobytes() in engine.replies[2, site]) is shown
        for value in (total[1], squares[1]):
            assert np.array(value).tobytes() not in engine.replies[2, site]


def test_combining_is_what_pooling_gives() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(12, 2)), rng.normal(size=(30, 2)) + 4

    def part(x: np.ndarray) -> Any:
        n = np.full(2, float(len(x)))
        return n, x.mean(axis=0), ((x - x.mean(axis=0)) ** 2).sum(axis=0)

    for found, wanted in zip(combine(part(a), part(b)), part(np.r_[a, b]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
    nothing = (np.zeros(2), np.zeros(2), np.zeros(2))
    for found, wanted in zip(combine(nothing, nothing), nothing, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_policy_of_its_own_at_each_limit() -> None:
    rng = np.random.default_rng(6)
    given = {name: rng.uniform(1, 2, size=(15, 2)) for name in ("a", "b")}
    assert run(given, policy=Policy(min_records=15)).result.withheld == {}
    with pytest.raises(QuorumError):
        run(given, policy=Policy(min_records=16))


def test_pooled_moments_feed_the_preparation() -> None:
    given = tables(gaps=True)
    preparation = Preparation(missing="aggregated-mean", standardize="pooled")
    finished = run(given, preparation=preparation, policy=GRANTED)
    wanted = [moments_of_sites([x[:, j] for x in given.values()])[1:] for j in range(3)]
    np.testing.assert_allclose(finished.scaling[0], [m for m, _ in wanted], rtol=1e-12)
    np.testing.assert_allclose(finished.scaling[1], [m for m, _ in wanted], rtol=1e-12)
    np.testing.assert_allclose(finished.scaling[2], np.sqrt([v for _, v in wanted]), rtol=1e-12)
    # Cells are filled by the site's own mean. Where many are, only the others are in the pooled
    # moments, so the mean of all scaled rows is near zero but not zero.
    _, centre, scale = finished.scaling
    rows = np.concatenate([np.where(np.isnan(x), np.nanmean(x, axis=0), x) for x in given.values()])
    scaled = (rows - centre) / scale
    np.testing.assert_allclose(finished.result.mean, scaled.mean(axis=0), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(finished.result.variance, scaled.var(axis=0), rtol=1e-10)
    assert (finished.result.n == len(rows)).all()


def test_filled_rows_have_the_pooled_moments_where_nothing_or_little_is_missing() -> None:
    """Then all rows are in the pooled moments, filled as they are used."""
    given = tables(gaps=True)
    given = {name: given[name] for name in ("s0", "s2")} | {"whole": tables()["s1"]}
    preparation = Preparation(missing="aggregated-mean", standardize="pooled")
    finished = run(given, preparation=preparation, policy=GRANTED)
    np.testing.assert_allclose(finished.result.mean, 0.0, atol=1e-13)
    np.testing.assert_allclose(finished.result.variance, 1.0, rtol=1e-12)
