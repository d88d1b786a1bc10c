from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from consilience.engines.federation import Federation
from consilience.exceptions import ProtocolError, QuorumError, StudyError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import (
    Columns,
    CoordinatorContext,
    Exchange,
    Method,
    Preparation,
    SiteData,
    register,
)
from consilience.protocol.phases import moments, standardise
from consilience.protocol.phases.standardise import Scale, transform
from consilience.protocol.result import Result
from consilience.sites.policy import Policy
from consilience.testing.fakes import federation_of, scripted
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.granted import GRANTED
from tests.protocol.phases.test_moments import OnlyMoments

RNG = np.random.default_rng(11)
TABLES = {f"s{i}": RNG.normal(size=(30 + i, 2)) * [3, 0.5] + [10 * i, -4] for i in range(3)}
POOLED = np.concatenate(list(TABLES.values()))


def run(how: str, tables: Any = TABLES, **settings: Any) -> Any:
    federation = federation_of(tables, preparation=Preparation(standardize=how), **settings)  # type: ignore[arg-type]
    return MeanAndSD().run(federation, seed=0)


@dataclass(frozen=True, eq=False)
class Nothing(Result):
    """A result that says nothing."""


@register
@dataclass(frozen=True, kw_only=True)
class OnlyScaled(Method):
    name: ClassVar[str] = "test-only-scaled"
    title: ClassVar[str] = "What does the preparation do?"
    steps = moments.STEPS
    absence: ClassVar[str] = "Down to the quorum."
    leakage: ClassVar[str] = "Nothing."
    Result = Nothing

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        yield from ()
        return Nothing()


def test_pooled() -> None:
    finished = run("pooled")
    np.testing.assert_allclose(finished.result.mean, 0, atol=1e-13)
    n = len(POOLED)
    np.testing.assert_allclose(finished.result.sd, np.sqrt(n / (n - 1)), rtol=1e-12)
    np.testing.assert_allclose(finished.scaling[1:], [POOLED.mean(axis=0), POOLED.std(axis=0)])


def test_by_site() -> None:
    finished = run("site")
    np.testing.assert_allclose(finished.result.mean, 0, atol=1e-13)
    assert finished.result.sd == pytest.approx(np.sqrt(93 / 92))


def test_none_asks_nothing() -> None:
    finished = run("none")
    np.testing.assert_allclose(finished.result.mean, POOLED.mean(axis=0))
    assert {line.step for line in finished.transcript} == {"opening.read", "sums", "deviations"}
    assert finished.scaling is None


def test_constant_columns_become_zero_and_are_noted() -> None:
    tables = {name: np.c_[x, np.full(len(x), 7.0)] for name, x in TABLES.items()}
    finished = run("pooled", tables, policy=Policy.from_settings("simulation"))
    assert (finished.result.mean[2], finished.result.sd[2]) == (0.0, 0.0)
    assert "Column x2 is constant over all sites and carries no information." in finished.notes


@pytest.mark.parametrize("differ", [0, 5])
def test_a_column_that_no_site_tells_stays_in_its_own_units(differ: int) -> None:
    tables = {name: np.c_[x, np.full(len(x), 7.0)] for name, x in TABLES.items()}
    for x in tables.values():
        x[:differ, 2] = 8.0
    finished = OnlyScaled().run(
        federation_of(tables, preparation=Preparation(standardize="pooled")), seed=0
    )
    assert finished.scaling[:, 2].tolist() == [0.0, 0.0, 1.0]
    assert any("Every site withheld column x2" in note for note in finished.notes)


@pytest.mark.parametrize("gaps", [0, 5, 12])
def test_columns_that_mark_missing_cells_stop_no_study(gaps: int) -> None:
    """None and few missing cells are the same to the coordinator; a column to fill must be told."""
    tables = {}
    for name, x in TABLES.items():
        tables[name] = pd.DataFrame(x, columns=["x0", "x1"])
        tables[name].loc[: gaps - 1, "x1"] = np.nan
    settings: Any = {"preparation": Preparation(missing="indicator"), "policy": GRANTED}
    features = Columns(features=("x0", "x1"))
    finished = OnlyScaled().run(Federation.local(tables, columns=features, **settings), seed=0)
    told = [name for name in ("x0", "x1") if f"column {name}_missing (" in str(finished.notes)]
    assert told == ["x0", "x1"][: 1 if gaps >= 10 else 2]
    for table in tables.values():
        table["x0"] = 7.0
    with pytest.raises(QuorumError, match="every site withheld column 'x0':"):
        OnlyScaled().run(Federation.local(tables, columns=features, **settings), seed=0)


def scale(own: bool = False) -> Scale:
    def of(*values: float) -> Any:
        return relayed(np.array(values), Disclosure.AGGREGATE)

    return Scale(own=own, fill=of(5.0, 6.0), centre=of(1.0, 2.0), scale=of(2.0, 4.0))


def test_missing_cells_are_filled_before_scaling() -> None:
    """By the site's own mean, and by the pooled one in a column without values."""
    data = SiteData(
        np.array([[np.nan, np.nan], [3.0, np.nan], [4, np.nan]]), ("a", "b"), np.arange(3)
    )
    done = transform(scale(), data)
    np.testing.assert_array_equal(done.features, [[1.25, 1.0], [1.0, 1.0], [1.5, 1.0]])
    np.testing.assert_array_equal(done.scaling, [[3.5, 6], [1, 2], [2, 4]])  # type: ignore[arg-type]
    assert np.isnan(data.features).sum() == 4, "the rows that were read stay as they are"


def test_a_site_that_missed_the_scaling_takes_part_no_more() -> None:
    """Back in the next round it would answer in other units, and nobody would notice."""
    federation = federation_of(TABLES, preparation=Preparation(standardize="pooled"), quorum=2)
    for action in ("returns", "late", "refused"):
        finished = MeanAndSD().run(scripted(federation, {(3, "s2"): action}), seed=0)  # type: ignore[dict-item]
        assert finished.result.n == 61
        after = {line.site for line in finished.transcript if line.round > 3}
        assert after == {"s0", "s1"}
        two = (np.concatenate([TABLES["s0"], TABLES["s1"]]) - POOLED.mean(axis=0)) / POOLED.std(
            axis=0
        )
        np.testing.assert_allclose(finished.result.mean, two.mean(axis=0), rtol=1e-10)


def test_a_run_that_follows_scales_as_the_first_did() -> None:
    first = run("pooled")
    shifted = {name: x + 100 for name, x in TABLES.items()}
    federation = federation_of(shifted, preparation=Preparation(standardize="pooled"))
    second = MeanAndSD().run(federation, seed=0, follows=first)
    np.testing.assert_array_equal(second.scaling, first.scaling)
    np.testing.assert_allclose(second.result.mean, 100 / POOLED.std(axis=0), rtol=1e-12)
    fewer = {name: x[:, :1] for name, x in TABLES.items()}
    federation = federation_of(fewer, preparation=Preparation(standardize="pooled"))
    with pytest.raises(StudyError, match="had 2 columns after preparation and now there are 1"):
        MeanAndSD().run(federation, seed=0, follows=first)


def test_scaling_is_kept_by_the_site() -> None:
    data = SiteData(np.ones((4, 2)), ("a", "b"), np.arange(4))
    assert data.scaling is None
    done = transform(scale(own=True), data)
    np.testing.assert_array_equal(done.features, np.zeros((4, 2)))
    np.testing.assert_array_equal(done.scaling, [[5, 6], [1, 1], [1, 1]])  # type: ignore[arg-type]
    assert dataclasses.replace(done, rows=np.arange(4)).scaling is not None


# --------------------------------------------------------------------------- missing = "keep"


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class WithGaps(OnlyMoments):
    name: ClassVar[str] = "test-moments-with-gaps"
    accepts_missing: ClassVar[bool] = True


def keeping(standardize: Any) -> Preparation:
    return Preparation(missing="keep", standardize=standardize)


def with_gaps() -> dict[str, np.ndarray]:
    """Twelve gaps in each column: fewer are too small a number to tell."""
    tables = {site: x.copy() for site, x in TABLES.items()}
    for i, x in enumerate(tables.values()):
        x[: 12 + i, 0] = x[8:20, 1] = np.nan
    return tables


def test_kept_cells_stay_empty_and_scales_are_of_the_others() -> None:
    tables = with_gaps()
    pooled = np.concatenate(list(tables.values()))
    federation = federation_of(tables, preparation=keeping("pooled"), policy=GRANTED)
    finished = WithGaps().run(federation, seed=0)
    np.testing.assert_allclose(finished.result.mean, 0, atol=1e-13)
    np.testing.assert_allclose(finished.result.variance, 1, rtol=1e-12)
    assert np.isnan(finished.scaling[0]).all()
    np.testing.assert_allclose(
        finished.scaling[1:], [np.nanmean(pooled, axis=0), np.nanstd(pooled, axis=0)]
    )
    np.testing.assert_array_equal(finished.result.n, (~np.isnan(pooled)).sum(axis=0))


def test_kept_cells_and_own_scales() -> None:
    gaps = np.full(2, np.nan)
    message = dataclasses.replace(scale(own=True), fill=relayed(gaps, Disclosure.AGGREGATE))
    x = np.array([[np.nan, 2.0], [3.0, np.nan], [5.0, np.nan]])
    done = transform(message, SiteData(x, ("a", "b"), np.arange(3)))
    np.testing.assert_array_equal(done.features, [[np.nan, 0.0], [-1.0, np.nan], [1.0, np.nan]])
    half = dataclasses.replace(message, fill=relayed(np.array([np.nan, 1]), Disclosure.AGGREGATE))
    with pytest.raises(ProtocolError, match="in all columns, or in none"):
        transform(half, SiteData(x, ("a", "b"), np.arange(3)))


def test_a_method_that_needs_every_cell_refuses_to_keep_gaps() -> None:
    federation = federation_of(TABLES, preparation=keeping("none"), policy=GRANTED)
    with pytest.raises(StudyError, match="needs a value in every cell"):
        MeanAndSD().run(federation, seed=0)


def test_a_site_refuses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator without the check gets nothing; nor does one that fills against the rules."""
    from consilience.engines import federation as engine
    from consilience.protocol.phases import prepare

    for module in (engine, prepare):
        monkeypatch.setattr(module, "check_missing", lambda *_: None)
    with pytest.raises(QuorumError, match="needs a value in every cell"):
        MeanAndSD().run(federation_of(TABLES, preparation=keeping("none"), policy=GRANTED), seed=0)
    original = standardise._scaling

    def filling(ctx: Any) -> Any:
        return np.nan_to_num((yield from original(ctx)))

    monkeypatch.setattr(standardise, "_scaling", filling)
    with pytest.raises(QuorumError, match="as the study's preparation says"):
        WithGaps().run(
            federation_of(with_gaps(), preparation=keeping("pooled"), policy=GRANTED), seed=0
        )


@pytest.mark.parametrize("part", ["fill", "centre", "scale"])
@pytest.mark.parametrize("value", [1e31, 1e-31])
def test_units_in_which_rows_might_be_no_numbers_are_refused(part: str, value: float) -> None:
    message = dataclasses.replace(
        scale(), **{part: relayed(np.array([1.0, value]), Disclosure.AGGREGATE)}
    )
    data = SiteData(np.ones((4, 2)), ("a", "b"), np.arange(4))
    if value < 1 and part != "scale":
        assert np.isfinite(transform(message, data).features).all()
        return
    with pytest.raises(ProtocolError, match="moved and scaled by at most 1e"):
        transform(message, data)


@pytest.mark.parametrize(("rule", "own"), [("pooled", True), ("site", False)])
def test_columns_are_scaled_as_the_study_says(
    rule: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In units of their own columns were no copies of each other, which a site must know."""
    run(rule)
    monkeypatch.setattr(standardise, "Scale", lambda **given: Scale(**{**given, "own": own}))
    with pytest.raises(QuorumError, match="scaled as the study's preparation says"):
        run(rule)
