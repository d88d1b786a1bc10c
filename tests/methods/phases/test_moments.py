from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from consilience.exceptions import QuorumError
from consilience.methods.base import CoordinatorContext, Exchange, Method, Preparation, register
from consilience.methods.phases import moments as phase
from consilience.methods.phases.moments import combine, moments
from consilience.methods.result import Result
from consilience.sites.policy import Policy
from consilience.testing.fakes import FakeEngine, federation_of, scripted
from tests.reference.moments_naive import pooled_moments


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


def tables(offset: float = 0.0, *, sites: int = 5, gaps: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    made = {}
    for i in range(sites):
        x = rng.normal(size=(25 + 3 * i, 3)) * [1.0, 10.0, 1e-3] + [i, -i, 0] + offset
        if gaps:
            x[rng.uniform(size=x.shape) < 0.2] = np.nan
        made[f"s{i}"] = x
    return made


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("sites", [1, 2, 3, 5])
def test_against_exact_arithmetic(sites: int, gaps: bool) -> None:
    given = tables(sites=sites, gaps=gaps)
    result = run(given).result
    for j in range(3):
        n, mean, variance = pooled_moments([x[:, j] for x in given.values()])
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
    line = [x for x in finished.transcript if x.site == "s1" and x.field == "totals"]
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


def test_constant_columns() -> None:
    given = {name: np.full((20, 1), 3.5) for name in ("a", "b")}
    result = run(given).result
    assert (result.mean[0], result.variance[0]) == (3.5, 0.0)


def test_nothing_of_a_withheld_column_crosses() -> None:
    given = tables()
    given["s2"][0, 1] = 1e9
    federation = scripted(federation_of(given))
    OnlyMoments().run(federation, seed=0)
    engine = federation.engine
    assert isinstance(engine, FakeEngine)
    column = given["s2"][:, 1]
    centred = (column - column.mean()) ** 2
    for value in (column.sum(), centred.sum()):
        assert np.array(value).tobytes() not in engine.replies[2, "s2"]


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
    finished = run(given, preparation=preparation)
    wanted = [pooled_moments([x[:, j] for x in given.values()])[1:] for j in range(3)]
    np.testing.assert_allclose(finished.scaling[0], [m for m, _ in wanted], rtol=1e-12)
    np.testing.assert_allclose(finished.scaling[1], [m for m, _ in wanted], rtol=1e-12)
    np.testing.assert_allclose(finished.scaling[2], np.sqrt([v for _, v in wanted]), rtol=1e-12)
    # Filled cells lie at the pooled mean, so the pooled mean of the scaled rows is zero.
    np.testing.assert_allclose(finished.result.mean, 0.0, atol=1e-13)
