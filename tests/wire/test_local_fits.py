"""Fits of a site's own rows and sums at chosen coefficients: what they rest on, what may leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DisclosureError, ProtocolError
from consilience.sites.gate import review
from consilience.sites.policy import Policy
from consilience.wire import disclosure as d
from consilience.wire.cell_facts import Judged, largest_share
from consilience.wire.disclosure import (
    Limits,
    Released,
    Support,
    fit_fault,
    local_fit,
    slopes,
    together,
    weighted_sums,
)
from consilience.wire.message import Aggregate, Disclosure, Model, message

LIMITS = Limits()


@message("test-local-fits/fits", version=1)
class Fits:
    value: Any = Model("*anything")


@message("test-local-fits/sums", version=1)
class Sums:
    value: Any = Aggregate("*anything")


def rows(n: int, q: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, q)) + 3.0


def fit(n: int = 60, size: int = 3, *, weights: Any = None, x: Any = None) -> Released:
    x = rows(n) if x is None else x
    w = np.full((n, 1), 0.25) if weights is None else np.asarray(weights, dtype=float)
    return local_fit(np.arange(4.0), rows=x, weights=w, n_parameters=size)


def evidence(released: Released) -> Support:
    assert released.evidence is not None
    return released.evidence


def leaves(released: Released, policy: Policy | None = None) -> bool:
    kind = Fits if released.disclosure is Disclosure.MODEL else Sums
    try:
        review(kind(value=released), Policy() if policy is None else policy, {})
    except DisclosureError:
        return False
    return True


def test_effective_rows_are_those_that_weights_are_spread_over() -> None:
    even = evidence(fit(60))
    assert np.all(even.records == 60)
    half = np.where(np.arange(60) < 30, 0.2, 0.0)[:, None]
    assert np.all(evidence(fit(60, weights=half)).records == 30)


def test_shares_are_those_of_the_cells() -> None:
    """A slow version: every cell of every column of weights."""
    x, w = rows(25, 3, seed=2), np.random.default_rng(3).normal(size=(25, 4))
    w[:, 0] = np.abs(w).sum(axis=1)
    found = evidence(local_fit(np.zeros(1), rows=x, weights=w, n_parameters=1)).share
    slow = 0.0
    for k in range(1, 4):
        for j in range(3):
            for i in range(3):
                terms = np.abs(w[:, k] * x[:, j] * x[:, i])
                slow = max(slow, terms.max() / terms.sum())
    assert found is not None and float(found) == pytest.approx(slow, rel=1e-12)


@pytest.mark.parametrize(("n", "size", "good"), [(60, 30, True), (60, 31, False), (9, 2, False)])
def test_rows_are_twice_the_parameters(n: int, size: int, good: bool) -> None:
    released = fit(n, size)
    assert (fit_fault(evidence(released), LIMITS) is None) is good
    assert leaves(released) is good
    assert leaves(together([released], "fit")) is good
    assert leaves(released, Policy(preset="simulation"))


@pytest.mark.parametrize(("effective", "good"), [(20, True), (19, False)])
def test_effective_rows_are_as_many_as_parameters(effective: int, good: bool) -> None:
    weights = np.where(np.arange(80) < effective, 0.2, 0.0)[:, None]
    assert leaves(fit(80, 20, weights=weights)) is good


@pytest.mark.parametrize(("effective", "good"), [(10, True), (9, False)])
def test_effective_rows_are_at_least_min_records(effective: int, good: bool) -> None:
    weights = np.where(np.arange(80) < effective, 0.2, 0.0)[:, None]
    assert leaves(fit(80, 2, weights=weights)) is good


def test_no_cell_of_a_curvature_rests_on_one_row() -> None:
    x = rows(60)
    x[7, 1] = 1e6
    assert not leaves(fit(60, x=x))
    x[8] = x[7]
    assert leaves(fit(60, x=x))


def test_each_fit_of_several_is_judged_by_itself() -> None:
    """A large fit does not speak for a small one, nor the other way."""
    nothing = local_fit(
        np.zeros(0), rows=np.zeros((0, 1)), weights=np.zeros((0, 1)), n_parameters=0
    )
    assert leaves(together([nothing, fit(60, 30)], "fit"))
    assert not leaves(together([fit(100, 2), nothing, fit(60, 31)], "fit"))
    assert leaves(together([nothing], "fit"))


def test_sums_at_chosen_coefficients_need_the_consent_to_values_of_records() -> None:
    for released in (slopes(np.ones(3), n_records=50),):
        for value in (released, together([released], "slopes")):
            assert not leaves(value)
            assert leaves(value, Policy(preset="consortium"))
            assert leaves(value, Policy(per_record=True))
            with pytest.raises(DisclosureError, match="per_record"):
                review(Sums(value=value), Policy(), {})


@pytest.mark.parametrize(("n", "good"), [(0, True), (9, False), (10, True)])
def test_sums_at_chosen_coefficients_rest_on_enough_rows(n: int, good: bool) -> None:
    released = together([slopes(np.ones(3), n_records=n)], "slopes")
    assert leaves(released, Policy(preset="consortium")) is good


def test_what_goes_together_is_of_one_kind() -> None:
    with pytest.raises(ProtocolError):
        together([slopes(np.ones(2), n_records=20)], "fit")
    with pytest.raises(ProtocolError):
        together([d.relayed(np.ones(2), Disclosure.MODEL)], "fit")


def test_shares_of_records_do_not_overflow() -> None:
    x = rows(40)
    found, large = (largest_share(scale * x, np.ones((40, 1))) for scale in (1.0, 1e160))
    assert large == pytest.approx(found, rel=1e-12)


def test_weighted_sums_need_the_consent_and_keep_the_rule_of_fits() -> None:
    partner = Policy(preset="consortium")

    def told(n: int, weights: Any = None, q: int = 3) -> Released:
        w = np.full((n, 1), 0.25) if weights is None else np.asarray(weights, dtype=float)
        return weighted_sums([np.arange(4.0)], rows=rows(n, q), weights=w)[0]

    assert leaves(told(60), partner) and not leaves(told(60))
    assert leaves(told(60), Policy(per_record=True))
    assert [leaves(told(n, q=6), partner) for n in (12, 11)] == [True, False]
    few = np.where(np.arange(60)[:, None] < 9, 0.25, 1e-9)
    assert not leaves(told(60, few), partner) and leaves(told(60, few), Policy(preset="simulation"))
    enough = np.where(np.arange(60)[:, None] < 10, 0.25, 1e-12)
    assert leaves(told(60, enough), partner)
    assert not leaves(told(60, np.where(np.arange(60)[:, None] < 1, 1e3, 1.0)), partner)


def test_a_share_that_nobody_can_have_is_a_bound() -> None:
    x, w = rows(2000, 4, seed=5), np.full((2000, 1), 0.25)
    terms = np.abs(x[:, :, None] * x[:, None, :])
    exact = (terms.max(axis=0) / terms.sum(axis=0)).max()
    assert exact <= largest_share(x, w) < 0.01
    x[0] = 100.0
    terms = np.abs(x[:, :, None] * x[:, None, :])
    exact = (terms.max(axis=0) / terms.sum(axis=0)).max()
    assert largest_share(x, w) == pytest.approx(exact, rel=1e-12) and exact > 0.01


def judged(seed: int, late: float) -> tuple[Judged, np.ndarray]:
    """Rows about two centres, the last but few of which are far off; and their copy as a table."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2600, 3))
    x[:, 1] = x[:, 1] > 1.7
    x[-1, 2] = late
    centres = np.stack([[0.5, 0.0, -30.0], x.mean(axis=0)])
    whole = np.column_stack([np.ones(len(x)), x - centres[0], x - centres[1]])
    return Judged(x, centres, np.stack([x.min(axis=0), x.max(axis=0)])), whole


def slow_share(whole: np.ndarray, weight: np.ndarray, first: int | None) -> float:
    """Each product of each row."""
    terms = np.abs(weight[:, None, None] * whole[:, :first, None] * whole[:, None, :])
    total = terms.sum(axis=0)
    return float((terms.max(axis=0) / np.where(total > 0, total, 1.0)).max())


@pytest.mark.parametrize("first", [None, 1])
@pytest.mark.parametrize("late", [0.0, 5.0, 1000.0])
def test_rows_that_are_never_copied_have_the_share_of_the_table(
    first: int | None, late: float
) -> None:
    """Weights fade where somebody chose steep coefficients: before, after, or all but for one."""
    rows, whole = judged(3, late)
    n, seen = len(whole), []
    steep = np.exp(-np.abs(whole[:, 1] - 1.0) * 400)
    at_end = np.where(np.arange(n) < n - 3, 0.0, 0.25)
    uneven = np.random.default_rng(1).exponential(size=n)
    for weight in (np.full(n, 0.25), uneven, steep, at_end, np.zeros(n)):
        exact = slow_share(whole, weight, first)
        found = largest_share(rows, weight[:, None], first)
        if exact >= 0.01:
            assert found == pytest.approx(exact, rel=1e-9)
        else:
            assert exact * (1 - 1e-9) <= found < 0.01
        seen.append(exact >= 0.01)
    assert True in seen and False in seen


def test_squares_of_residuals_are_judged_beside_a_fit() -> None:
    x, weights = rows(60), np.full((60, 1), 0.25)
    squares = np.ones(60)
    assert leaves(local_fit(np.zeros(1), rows=x, weights=weights, n_parameters=3, squares=squares))
    squares[0] = 61.0
    made = local_fit(np.zeros(1), rows=x, weights=weights, n_parameters=3, squares=squares)
    assert not leaves(made) and not leaves(together([made], "fit"))
    assert fit_fault(evidence(made), LIMITS) is not None


def test_each_further_sum_is_judged_alone() -> None:
    partner, n = Policy(preset="consortium"), 60
    alone = np.ones((n, 2))
    told = dict(rows=rows(n), weights=np.full((n, 1), 0.25), first=1)
    assert leaves(weighted_sums([np.ones(2)], **told, alone=alone)[0], partner)
    alone[5, 1] = n
    assert not leaves(weighted_sums([np.ones(2)], **told, alone=alone)[0], partner)
