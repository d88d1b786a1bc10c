from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

from consilience.exceptions import ProtocolError
from consilience.wire import cell_facts as of_cells
from consilience.wire import disclosure as d
from consilience.wire.cell_facts import product_facts
from consilience.wire.disclosure import (
    Limits,
    Released,
    Support,
    aggregate,
    bundle,
    cell_counts,
    count,
    cross_products,
    estimator,
    estimator_fault,
    model,
    noised,
    per_record,
    received,
    relayed,
    rounded,
)
from consilience.wire.message import Disclosure
from tests.reference.moments_naive import cell_facts
from tests.reference.told_moments import unsafe_moments

LIMITS = Limits()
GAP = np.nan


def evidence(released: Released) -> Support:
    assert released.evidence is not None
    return released.evidence


def column(kind: str, n: int = 40) -> np.ndarray:
    rng = np.random.default_rng(5)
    values: dict[str, np.ndarray] = {
        "normal": rng.normal(size=n),
        "indicator": (np.arange(n) < 7).astype(float),
        "signs": np.where(np.arange(n) < 31, 1.0, -1.0),
        "constant": np.full(n, 3.0),
        "zeros": np.zeros(n),
        "sparse": np.where(np.arange(n) < 4, rng.normal(size=n), 0.0),
        "heavy": np.where(np.arange(n) == 0, 1e6, rng.normal(size=n)),
        "gaps": np.where(np.arange(n) % 3 == 0, GAP, rng.normal(size=n)),
        "indicator with gaps": np.where(np.arange(n) % 5 == 0, GAP, np.arange(n) % 2),
        "all gaps": np.full(n, GAP),
    }
    return values[kind]


KINDS = (
    "normal",
    "indicator",
    "signs",
    "constant",
    "zeros",
    "sparse",
    "heavy",
    "gaps",
    "indicator with gaps",
    "all gaps",
)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("p", [1, 2, 5, 9])
def test_rows_by_the_block_have_the_sums_of_all(
    p: int, order: Literal["C", "F"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, also of squares about a point, which are those of squares that are given."""
    x = np.random.default_rng(p).normal(size=(900, p)) * 10.0 ** np.arange(p)
    about = x.mean(axis=0)
    x[::7, 0] = np.nan
    x = np.asarray(x, order=order)
    whole, squares = of_cells.cell_facts(x), of_cells.cell_facts(np.square(x - about))
    if p > 1 and order == "C":
        known = np.nan_to_num(x)
        total = known[0].copy()
        for row in known[1:]:
            total += row
        assert whole[0].tobytes() == total.tobytes()
    monkeypatch.setattr(of_cells, "_AT_ONCE", 20 * p)
    found = (*of_cells.cell_facts(x), *of_cells.cell_facts(x, about))
    for one, other in zip(found, (*whole, *squares), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_facts_of_a_sum_agree_with_the_naive_ones(kind: str) -> None:
    x = column(kind)
    released = aggregate(x[:, None])
    total, records, share = cell_facts(x)
    assert released.value[0] == pytest.approx(total, rel=1e-13)
    assert evidence(released).records is not None
    assert evidence(released).records[0] == records  # type: ignore[index]
    assert evidence(released).share[0] == pytest.approx(share, rel=1e-13)  # type: ignore[index]


@pytest.mark.parametrize("largest", [5.0, 200.0, 1e4])
def test_a_share_below_one_percent_may_be_a_bound(largest: float) -> None:
    """Of a long column, from its first records."""
    x = np.abs(np.random.default_rng(0).normal(size=20_000))
    x[15_000] = largest
    _, _, share = cell_facts(x)
    (found,) = evidence(aggregate(x[:, None])).share  # type: ignore[misc]
    assert share * (1 - 1e-12) <= found < 0.01 or found == pytest.approx(share, rel=1e-13)


def test_a_sum_that_overflows_has_the_shares_of_its_records() -> None:
    with np.errstate(over="ignore"):
        released = aggregate(np.full((3, 1), 1.7e308))
    assert evidence(released).share == pytest.approx(1 / 3)


def test_cells_are_judged_one_by_one() -> None:
    x = np.stack([column("normal"), column("indicator")], axis=1)
    cells = np.arange(40) % 3 - 1
    released = aggregate(x, cells=cells, n_cells=3, entities=np.arange(40) // 8)
    assert released.value.shape == (3, 2)
    for c in range(3):
        for j in range(2):
            total, records, share = cell_facts(x[cells == c, j])
            assert released.value[c, j] == pytest.approx(total)
            assert evidence(released).records[c, j] == records  # type: ignore[index]
            assert evidence(released).share[c, j] == pytest.approx(share)  # type: ignore[index]
    np.testing.assert_array_equal(evidence(released).entities, [[5, 5], [5, 5], [0, 0]])  # type: ignore[arg-type]


def test_more_dimensions_and_no_rows() -> None:
    released = aggregate(np.ones((20, 3, 2)))
    assert released.value.shape == (3, 2)
    assert (evidence(released).records == 20).all()  # type: ignore[union-attr]
    empty = aggregate(np.empty((0, 3)))
    np.testing.assert_array_equal(empty.value, np.zeros(3))
    np.testing.assert_array_equal(evidence(empty).records, np.zeros(3))  # type: ignore[arg-type]


def test_means_are_those_of_numpy_and_rest_on_what_the_sums_rest_on() -> None:
    x = np.stack([column(kind) for kind in KINDS], axis=1)
    cells = np.arange(40) % 3 - 1
    cells[cells == 1] = 2  # cell 1 of 3 is empty
    entities = np.arange(40) // 8
    for names in ({}, {"cells": cells, "n_cells": 3}):
        sums = aggregate(x, entities=entities, series="s", **names)
        means = aggregate(x, entities=entities, series="s", mean=True, **names)
        groups = [np.arange(40) >= 0] if not names else [cells == c for c in range(3)]
        wanted = np.full((len(groups), len(KINDS)), GAP)
        for c, rows in enumerate(groups):
            for j in range(len(KINDS)):
                some = x[rows, j][~np.isnan(x[rows, j])]
                if len(some):
                    wanted[c, j] = np.mean(some)
        assert np.isnan(wanted).any(), "some cell is empty"
        wanted = wanted if names else wanted[0]
        np.testing.assert_allclose(means.value, wanted, rtol=1e-13, atol=1e-15)
        same_evidence(evidence(means), evidence(sums))
    empty = aggregate(np.empty((0, 3)), mean=True)
    np.testing.assert_array_equal(empty.value, np.full(3, GAP))


def same_evidence(a: Support, b: Support) -> None:
    for one in dataclasses.fields(Support):
        first, second = getattr(a, one.name), getattr(b, one.name)
        assert (first is None) == (second is None), one.name
        if first is not None:
            np.testing.assert_array_equal(first, second, err_msg=one.name)


@pytest.mark.parametrize("kind", ["normal", "indicator", "heavy"])
def test_a_mean_is_withheld_where_its_sum_is(kind: str) -> None:
    x = column(kind)[:, None]
    gaps = [np.isnan(aggregate(x, mean=m).withhold_unsafe(LIMITS).value) for m in (False, True)]
    np.testing.assert_array_equal(*gaps)
    assert bool(gaps[1][0]) is (kind != "normal")


@pytest.mark.parametrize(("ones", "small"), [(0, False), (1, True), (9, True), (10, False)])
def test_an_indicator_is_small_when_its_smaller_group_is(ones: int, small: bool) -> None:
    for x in ((np.arange(40) < ones), (np.arange(40) >= ones)):
        released = aggregate(x[:, None].astype(float))
        assert evidence(released).small(LIMITS).item() is small


@pytest.mark.parametrize(("records", "small"), [(0, False), (1, True), (9, True), (10, False)])
def test_a_count_is_small_below_the_limit_and_not_at_zero(records: int, small: bool) -> None:
    assert bool(evidence(count(records)).small(LIMITS)) is small


@pytest.mark.parametrize(("entities", "small"), [(1, True), (2, True), (3, False)])
def test_entities_behind_a_sum(entities: int, small: bool) -> None:
    x = np.random.default_rng(0).normal(size=(30, 1))
    released = aggregate(x, entities=np.arange(30) % entities)
    assert evidence(released).small(LIMITS).item() is small


@pytest.mark.parametrize(("largest", "dominated"), [(20.0, False), (20.1, True)])
def test_dominance_at_its_boundary(largest: float, dominated: bool) -> None:
    x = np.r_[largest, np.full(18, 1.0), 2.0]  # the others weigh 20; three values, no indicator
    assert evidence(aggregate(x[:, None])).dominated(LIMITS).item() is dominated


def test_the_largest_share_cannot_overflow() -> None:
    x = np.r_[1.7e308, -2e307, np.arange(1.0, 20.0)]
    assert evidence(aggregate(x[:, None])).dominated(LIMITS).item()


def test_infinite_contributions_count_as_dominated() -> None:
    with np.errstate(invalid="ignore"):
        released = aggregate(np.r_[np.inf, np.arange(1.0, 40.0)][:, None])
    assert evidence(released).dominated(LIMITS).item()


def test_withholding_leaves_gaps_without_evidence() -> None:
    x = np.stack([column("normal"), column("indicator"), column("heavy")], axis=1)
    released = aggregate(x).withhold_unsafe(LIMITS)
    np.testing.assert_array_equal(np.isnan(released.value), [False, True, True])
    assert not evidence(released).small(LIMITS).any()
    assert not evidence(released).dominated(LIMITS).any()
    with pytest.raises(ProtocolError, match="received value"):
        received(1.0, Disclosure.AGGREGATE).withhold(np.asarray(True))


KIND_SETS = [("normal", "indicator", "signs"), ("sparse", "heavy", "zeros")]


@pytest.mark.parametrize("kinds", KIND_SETS)
@pytest.mark.parametrize("constant", [False, True])
def test_cross_products_against_loops(kinds: tuple[str, ...], constant: bool) -> None:
    """What may not leave rests on one record; see test_moment_facts for the rule."""
    x = np.stack([column(kind) for kind in kinds], axis=1)
    released = cross_products(x, limits=LIMITS, constant=constant)
    unsafe = unsafe_moments(x, 10, 0.5)
    if constant:
        x = np.c_[np.ones(40), x]
        unsafe = np.pad(unsafe, (1, 0))
        unsafe[0, 1:] = unsafe[1:, 0] = np.diagonal(unsafe)[1:]
    assert evidence(released).n_records == 40
    assert evidence(released).n_columns == x.shape[1]
    np.testing.assert_array_equal(released.value, released.value.T)
    for j in range(x.shape[1]):
        for k in range(x.shape[1]):
            total, _, _ = cell_facts(x[:, j] * x[:, k])
            assert released.value[j, k] == pytest.approx(total, rel=1e-12, abs=1e-12)
    small = evidence(released).small(LIMITS)
    np.testing.assert_array_equal(small | evidence(released).dominated(LIMITS), unsafe)
    assert unsafe.any() and (kinds != KIND_SETS[0] or not unsafe.all())


@pytest.mark.parametrize("first", [None, 3])
def test_facts_of_products_of_many_rows_against_loops(first: int | None) -> None:
    """Two values that hold among the first rows do not hold among all; and the reverse."""
    rng = np.random.default_rng(8)
    n = 300
    late = np.where(np.arange(n) < 290, np.arange(n) % 2, np.arange(n))
    x = np.stack(
        [
            rng.normal(size=n) * 1e180,
            (rng.random(n) < 0.02).astype(float),
            late,
            np.where(rng.random(n) < 0.5, -1.0, 1.0),
            np.zeros(n),
            np.full(n, 3.0),
            rng.integers(0, 3, n),
        ],
        axis=1,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        found, found_share = product_facts(x, first)
    for j in range(7):
        for k in range(1, 7):  # the square of the first column overflows
            _, records, share = cell_facts(x[:, j] * x[:, k])
            if first is not None and min(j, k) >= first:
                records, share = 0, 0.0
            assert found[j, k] == records
            assert found_share[j, k] == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("below", [0.01, 0.0095, 0.0005])
@pytest.mark.parametrize("unit", [1.0, 1e160])
def test_shares_of_products_about_a_centre_are_exact_or_bounds_that_are_small(
    below: float, unit: float
) -> None:
    rng = np.random.default_rng(4)
    n = 2600
    x = rng.normal(3.0, 1.0, size=(n, 6))
    x[:, 1] = np.where(rng.random(n) < 0.02, 1.0, 0.0)
    x[:, 2] = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    x[-1, 3] = 900.0
    x[:, 4] = np.where(np.arange(n) < 2000, 1e-9, x[:, 4])
    x[:, 5] *= unit
    # A record that is large in both of two columns, and in neither the largest.
    x[:3, [0, 4]] = [[99.0, -2.0], [-90.0, 9.5], [-2.0, 10.0]]
    centre = np.array([3.0, 0.0, 0.0, 3.0, 0.0, 0.0])
    for given in (x, np.asfortranarray(x)):
        records, share = product_facts(given, 5, centre=centre, below=below)
        exact_records, exact = product_facts(given - centre, 5)
        np.testing.assert_array_equal(records, exact_records)
        large = exact >= below
        np.testing.assert_allclose(share[large], exact[large], rtol=1e-12)
        assert (share >= exact * (1 - 1e-12)).all() and (share[~large] < below).all()
        assert large.any() and not large.all()


def test_cell_counts() -> None:
    cells = np.array([0] * 12 + [2] * 11 + [-1] * 5)
    released = cell_counts(cells, 3)
    np.testing.assert_array_equal(released.value, [12, 0, 11])
    assert not evidence(released).small(LIMITS).any()
    keyed = cell_counts(cells, 3, keys=np.array([5, 6, 7]))
    assert evidence(keyed).rule == "keyed-count"
    np.testing.assert_array_equal(keyed.value["keys"], [5, 6, 7])


@pytest.mark.parametrize("value", [0.123456, -0.987, 1.0])
@pytest.mark.parametrize("step", [0.01, 0.05, 0.2])
def test_rounding_shows_nothing_finer_than_its_step(value: float, step: float) -> None:
    shown = rounded(value, n_records=100, step=step).value
    assert abs(shown - value) <= step / 2 + 1e-12
    assert shown / step == pytest.approx(round(shown / step), abs=1e-9)


@pytest.mark.parametrize("value", [0.5, GAP])
def test_rounding_without_records_says_nothing(value: float) -> None:
    made = rounded(value, n_records=0, step=0.1)
    assert np.isnan(made.value)
    assert not evidence(made).small(LIMITS).any()


def test_models_and_their_classes() -> None:
    cells = np.array([0] * 10 + [1] * 9 + [-1] * 3)
    released = model({"centres": np.ones((2, 2))}, kind="centroids", n_records=22, cells=cells)
    np.testing.assert_array_equal(evidence(released).records, [10, 9])  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="class of each row"):
        model(np.ones(2), kind="centroids", n_records=22)
    with pytest.raises(ProtocolError, match="no disclosure rule"):
        model(np.ones(2), kind="something", n_records=22)


class Doubling:
    name = "doubling"
    epsilon = 0.5

    def release(self, values: np.ndarray) -> np.ndarray:
        return 2 * values


def test_noised_values_carry_their_price() -> None:
    released = noised(np.array([1.0, 2.0]), Doubling())
    np.testing.assert_array_equal(released.value, [2.0, 4.0])
    assert (evidence(released).epsilon, evidence(released).mechanism) == (0.5, "doubling")


def test_a_bundle_is_as_weak_as_its_weakest_part() -> None:
    parts = [aggregate(np.ones((n, 1))) for n in (30, 8)]
    joined = bundle(parts)
    assert isinstance(joined.value, tuple)
    assert evidence(joined).small(LIMITS).any()
    prices = [noised(np.ones(1), Doubling()), noised(np.ones(2), Doubling())]
    assert evidence(bundle(prices)).epsilon == 1.0
    with pytest.raises(ProtocolError, match="one kind"):
        bundle([count(20), per_record(np.ones(20))])
    with pytest.raises(ProtocolError, match="one kind"):
        bundle([aggregate(np.ones((20, 1)), series="s")])


def test_who_abstains_does_not_speak_for_the_rest_of_a_bundle() -> None:
    def summary(n: int) -> Released:
        return model(np.ones(1), kind="summary", n_records=n)

    assert evidence(bundle([summary(0), summary(9), summary(40)])).n_records == 9
    assert evidence(bundle([summary(0), summary(0)])).n_records == 0
    parts = [rounded(0.3, n_records=n, step=s) for n, s in ((0, 1.0), (9, 0.2), (40, 0.01))]
    joined = evidence(bundle(parts))
    np.testing.assert_array_equal(joined.records, [0, 9, 40])  # type: ignore[arg-type]
    np.testing.assert_array_equal(joined.steps, [1.0, 0.2, 0.01])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: relayed(1.0, Disclosure.AGGREGATE),
        lambda: received(1.0, Disclosure.MODEL),
    ],
)
def test_what_was_received_has_no_evidence(make: Any) -> None:
    assert make().evidence is None


def test_nobody_else_makes_released_values() -> None:
    with pytest.raises(ProtocolError, match="made only by"):
        Released(1.0, Disclosure.AGGREGATE, Support("count"), object())
    with pytest.raises(AttributeError):
        count(20).value = 3  # type: ignore[misc]
    assert "20" not in repr(count(20))


def test_estimators_carry_their_type() -> None:
    released = estimator(
        b"x", type_name="sklearn.tree.T", n_records=50, n_parameters=0, leaves=np.array([10, 40])
    )
    assert evidence(released).type_name == "sklearn.tree.T"
    assert released.disclosure is Disclosure.MODEL


def test_bundles_keep_what_single_values_are_judged_by() -> None:
    """A sum over one entity and a type that carries rows are refused in a bundle too."""
    x = np.random.default_rng(0).normal(size=(40, 2)) + 5
    one = aggregate(x, entities=np.zeros(40))
    many = aggregate(x, entities=np.arange(40))
    unknown = aggregate(x)
    for parts in ([one, many], [many, one], [unknown, one]):
        evidence = bundle(parts).evidence
        assert evidence is not None and evidence.small(Limits()).any()
    fine = bundle([many, unknown]).evidence
    assert fine is not None and not fine.small(Limits()).any()
    carries = estimator(
        b"", type_name="sklearn.svm._classes.SVC", n_records=40, n_parameters=2, leaves=None
    )
    fine_one = estimator(b"", type_name="T", n_records=40, n_parameters=2, leaves=None)
    for parts in ([carries, fine_one], [fine_one, carries]):
        joined = bundle(parts).evidence
        assert joined is not None and estimator_fault(joined, Limits()) is not None


def made_of(type_name: str = "T", n: int = 40, q: int = 2, leaves: Any = None) -> Released:
    own = None if leaves is None else np.asarray(leaves)
    return estimator({"form": "x"}, type_name=type_name, n_records=n, n_parameters=q, leaves=own)


@pytest.mark.parametrize(
    ("made", "phrase"),
    [
        (made_of(), None),
        (made_of(n=9, q=0), "it rests on fewer than 10 records"),
        (made_of(n=0, q=0), "it rests on fewer than 10 records"),
        (made_of(q=20), None),
        (made_of(q=21), "a model needs at least twice as many rows as parameters"),
        (made_of(leaves=[10, 30]), None),
        (made_of(leaves=[31, 9]), "a leaf rests on fewer than 10 records"),
        (made_of("sklearn.svm._classes.SVR"), "a SVR carries training rows"),
        (made_of("sklearn.svm._classes.LinearSVR"), None),
    ],
)
def test_why_an_estimator_may_not_leave(made: Released, phrase: str | None) -> None:
    assert estimator_fault(evidence(made), LIMITS) == phrase
    for joined in (
        bundle([made]),
        bundle([made_of(), made]),
        bundle([bundle([made]), bundle([made_of()])]),
    ):
        estimators = evidence(joined) if evidence(joined).rule == "estimators" else None
        assert estimators is not None
        assert estimator_fault(estimators, LIMITS) == phrase
    assert estimator_fault(evidence(made), Limits(min_records=1)) is None


def test_a_bundle_of_estimators_keeps_each_evidence() -> None:
    first, second = made_of(n=30, leaves=[10, 20]), made_of("U", n=50)
    joined = bundle([first, second])
    assert joined.value == ({"form": "x"}, {"form": "x"})
    assert joined.disclosure is Disclosure.MODEL
    assert evidence(joined).rule == "estimators"
    assert evidence(joined).parts == (first.evidence, second.evidence)
    assert evidence(joined).n_records == 30
    with pytest.raises(ProtocolError, match="one kind"):
        bundle([first, model(np.ones(2), kind="summary", n_records=40)])


# --------------------------------------------------------------------------- columns of a site


class _Shift:
    """A mechanism whose noise is known."""

    name, epsilon = "shift", 0.5

    def release(self, values: np.ndarray) -> np.ndarray:
        return values + 1.0


def _columns() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(3.0, 1.0, size=(30, 3)), rng.normal(size=(3, 2))


def test_a_projection_is_of_centred_columns() -> None:
    x, directions = _columns()
    released = d.projection(x, directions, names=("a", "b", "c"))
    centred = x - x.mean(axis=0)
    np.testing.assert_allclose(released.value, centred @ directions)
    evidence = released.evidence
    assert evidence is not None and evidence.factor is not None
    assert (evidence.rule, evidence.n_records, evidence.n_columns) == ("projection", 30, 3)
    assert (evidence.columns, evidence.epsilon) == (("a", "b", "c"), 0.0)
    np.testing.assert_allclose(evidence.factor.T @ evidence.factor, centred.T @ centred)
    assert released.disclosure is Disclosure.PER_RECORD
    one = d.projection(x, directions[:, 0], names=("a", "b", "c"))
    assert one.value.shape == (30,)
    assert one.evidence is not None and one.evidence.directions is not None
    assert one.evidence.directions.shape == (3, 1)


def test_a_projection_with_noise_is_of_the_columns_as_they_are() -> None:
    x, directions = _columns()
    released = d.projection(x, directions, names=("a", "b", "c"), mechanism=_Shift())
    np.testing.assert_allclose(released.value, x @ directions + 1.0)
    evidence = released.evidence
    assert evidence is not None and released.disclosure is Disclosure.NOISED
    assert (evidence.rule, evidence.epsilon, evidence.mechanism) == ("projection", 0.5, "shift")
    assert evidence.rows is None
    np.testing.assert_array_equal(evidence.directions, directions)


@pytest.mark.parametrize("mechanism", [None, _Shift()], ids=["plain", "noised"])
def test_scaled_columns_are_counted_in_the_units_of_their_names(mechanism: Any) -> None:
    """The same release, from columns as they are and from scaled ones, has the same evidence."""
    x, directions = _columns()
    units, names = np.array([0.1, 2.0, 500.0]), ("a", "b", "c")
    plain = d.projection(x, directions, names=names)
    scaled = d.projection(
        x / units, units[:, None] * directions, names=names, mechanism=mechanism, units=units
    )
    one, other = plain.evidence, scaled.evidence
    assert one is not None and other is not None
    np.testing.assert_allclose(other.directions, one.directions)
    np.testing.assert_allclose(np.abs(other.factor), np.abs(one.factor), atol=1e-9)
    if mechanism is None:
        np.testing.assert_allclose(scaled.value, plain.value)
        np.testing.assert_allclose(d.reprojected(scaled, one.directions).value, plain.value)
    for bad in (np.ones(2), np.zeros(3), np.full(3, np.nan)):
        with pytest.raises(ProtocolError, match="positive unit"):
            d.projection(x, directions, names=names, units=bad)


def test_evidence_of_columns_is_not_printed() -> None:
    x, directions = _columns()
    released = d.projection(x, directions, names=("a", "b", "c"))
    assert "array" not in repr(released) + repr(released.evidence)


def test_the_factor_of_the_same_rows_may_be_given() -> None:
    x, directions = _columns()
    names = ("a", "b", "c")
    d.projection(x, directions, names=names, factor=d.column_factor(x))
    with pytest.raises(ProtocolError, match="other rows"):
        d.projection(x, directions, names=names, factor=d.column_factor(x[:20]))
    with pytest.raises(ProtocolError, match="other rows"):
        d.projection(x, directions, names=names, factor=np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("x", "directions", "names"),
    [
        (np.ones((9, 2)), np.ones((3, 1)), ("a", "b")),
        (np.ones((9, 2)), np.ones((2, 1)), ("a",)),
        (np.ones((9, 2)), np.ones((2, 1)), ("a", "a")),
        (np.ones(9), np.ones((2, 1)), ("a", "b")),
        (np.full((9, 2), np.nan), np.ones((2, 1)), ("a", "b")),
        (np.ones((9, 2)), np.full(2, np.inf), ("a", "b")),
        (np.ones((0, 2)), np.ones(2), ("a", "b")),
    ],
)
def test_projections_that_do_not_fit(x: Any, directions: Any, names: Any) -> None:
    with pytest.raises(ProtocolError, match="a projection"):
        d.projection(x, directions, names=names)


def test_other_directions() -> None:
    x, directions = _columns()
    released = d.projection(x, directions[:, 0], names=("a", "b", "c"))
    other = d.reprojected(released, directions[:, [1]])
    np.testing.assert_allclose(other.value, (x - x.mean(axis=0)) @ directions[:, 1])
    with pytest.raises(ProtocolError, match="without noise"):
        d.reprojected(other, directions[:, [1]])
    with pytest.raises(ProtocolError, match="without noise"):
        d.reprojected(d.per_record(np.ones(3)), directions)


@pytest.mark.parametrize(
    "hashes",
    [
        np.zeros((4, 16), dtype=np.int64),
        np.zeros((4, 8), dtype=np.uint8),
        np.zeros(16, dtype=np.uint8),
        np.array(["id-1", "id-2"]),
    ],
)
def test_ids_leave_as_hashes_only(hashes: Any) -> None:
    with pytest.raises(ProtocolError, match="hashes of 16 bytes"):
        d.hashed_ids(hashes)


def test_addressed_values() -> None:
    made = d.addressed(d.response(np.ones(4)), "b")
    assert made.evidence is not None
    assert (made.evidence.rule, made.evidence.recipient) == ("response", "b")
    assert made.disclosure is Disclosure.PER_RECORD
    with pytest.raises(ProtocolError, match="a site addresses"):
        d.addressed(d.received(1.0, Disclosure.PER_RECORD), "b")
    with pytest.raises(ProtocolError, match="a site addresses"):
        d.addressed(d.response(np.ones(4)), "")


def test_a_bundle_loses_no_direction_and_no_address() -> None:
    x, directions = _columns()
    made = d.projection(x, directions, names=("a", "b", "c"))
    with pytest.raises(ProtocolError, match="no projections"):
        d.bundle([made, made])
    with pytest.raises(ProtocolError, match="no projections and no addressed"):
        d.bundle([d.addressed(d.response(np.ones(4)), "b")])


def test_columns_that_were_centred_go_without_what_was_used_up() -> None:
    x = np.random.default_rng(3).normal(size=(30, 2))
    ready, names = d.projectable(x), ("a", "b")
    d.projection(ready, np.eye(2), names=names)
    for more in ({"factor": d.column_factor(x)}, {"units": np.ones(2)}):
        with pytest.raises(ProtocolError, match="go without mechanism, factor and units"):
            d.projection(ready, np.eye(2), names=names, **more)
