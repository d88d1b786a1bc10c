"""Coefficients at default policies: what is exact, what is bounded, and by what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from consilience import AssistedGLM, Columns, Federation, Policy, Run
from consilience.exceptions import DataError, ParameterError
from tests.reference.hidden_directions import Hidden, hidden

GRANTS = {
    "a": Policy(preset="consortium", share_response=True),
    "b": Policy(preset="consortium"),
    "c": Policy(preset="consortium"),
}
EFFECT = 0.1


def drawn(seed: int, p: int, q: int, correlation: float) -> tuple[np.ndarray, ...]:
    """Pairs of correlated columns of two parties, and a numeric response, (300, ...) each."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(300, p)), rng.normal(size=(300, q))
    few = min(p, q)
    b[:, :few] = correlation * a[:, :few] + np.sqrt(1 - correlation**2) * b[:, :few]
    y = (
        1
        + a @ rng.normal(size=p)
        + b @ rng.normal(size=q)
        + rng.normal(size=300) * (1 + a[:, 0] ** 2)
    )
    return a, b, y


def fitted(a: np.ndarray, *others: np.ndarray, **settings: Any) -> Run[Any]:
    """Fit columns of the parties, and the response, which comes last."""
    *theirs, y = others
    ids = np.array([f"p{i:03d}" for i in range(len(y))])
    tables, columns = {}, {}
    for site, x in zip("abc", (a, *theirs), strict=False):
        names = [f"{site}{j}" for j in range(x.shape[1])]
        tables[site] = pd.DataFrame(x, columns=names).assign(id=ids)
        columns[site] = Columns(id="id", features=names, target="y" if site == "a" else None)
    tables["a"]["y"] = y
    policy = {site: GRANTS[site] for site in tables}
    federation = Federation.local(tables, columns=columns, policy=policy)
    how = {"family": "normal", "response": "share", "holdout": 0.0, **settings}
    return AssistedGLM(**how).run(federation, seed=1)


def beside(run: Run[Any], a: np.ndarray, *others: np.ndarray) -> Hidden:
    """What the reference says, given the directions that this run told."""
    *theirs, y = others
    centred = [b - b.mean(axis=0) for b in theirs]
    known = [b @ run.site(s).predictor.directions for s, b in zip("bc", centred, strict=False)]
    return hidden(a, np.hstack(centred), np.hstack(known), y, run.result.family)


def drawn_of(
    family: str, seed: int, n: int, of: tuple[int, ...], correlation: float
) -> tuple[np.ndarray, ...]:
    """Columns of the initiator, those of its partners, one for each of these, and a response.

    The initiator's true coefficients are `EFFECT`.
    """
    rng = np.random.default_rng([seed, n, *of])
    a, b = rng.normal(size=(2, n, sum(of)))
    b = correlation * a + np.sqrt(1 - correlation**2) * b
    eta = EFFECT * a.sum(axis=1) + b @ np.resize([0.1, -0.07, 0.05], sum(of))
    draw = {
        "normal": lambda: eta + rng.normal(size=n),
        "binomial": lambda: (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "gamma": lambda: rng.gamma(2.0, np.exp(eta) / 2),
    }
    return a, *np.split(b, np.cumsum(of)[:-1], axis=1), draw[family]()


@pytest.mark.parametrize("family", ["normal", "binomial", "poisson", "gamma"])
@pytest.mark.parametrize("of", [(10,), (10, 10)])
def test_bounds_of_other_families_and_of_several_partners(family: str, of: tuple[int, ...]) -> None:
    columns = drawn_of(family, 3, 500, of, 0.5)
    run = fitted(*columns, family=family)
    result, known = run.result, beside(run, *columns)
    assert result.stopped == "converged"
    assert known.correlation > 0.2
    found = result.own_coefficients
    np.testing.assert_allclose(found["estimate"], known.estimate, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["least"], known.least, rtol=1e-4)
    np.testing.assert_allclose(found["spread"], known.spread, rtol=1e-4)
    assert result.correlation == pytest.approx(known.known, abs=1e-4)
    # all that partners hide together counts, and the training left nothing to gain
    factor = 1 / np.sqrt(1 - known.correlation**2)
    assert (known.joint_spread <= known.spread * factor * (1 + 1e-10)).all()
    assert known.joint_spread.max() > known.spread.max() * 1.001
    np.testing.assert_allclose(known.joint, known.estimate, rtol=0, atol=1e-4)
    limits = result.limits_if(known.correlation)
    half = (limits["upper"] - limits["lower"]).to_numpy() / 2
    np.testing.assert_allclose(half, norm.ppf(0.975) * known.least * factor, rtol=1e-3)


def test_several_partners_that_could_still_gain_have_no_limits() -> None:
    columns = drawn_of("normal", 4, 300, (4, 4), 0.5)
    result = fitted(*columns, n_rounds=1).result
    assert result.stopped == "rounds"
    assert "several partners could still gain" in result.summary()
    with pytest.raises(DataError, match="training that has settled: let it go on by n_rounds"):
        result.limits_if(0.5)


@pytest.mark.parametrize(
    ("family", "of", "correlation"), [("poisson", (8,), 0.6), ("normal", (8, 8), 0.3)]
)
def test_limits_for_the_true_correlation_cover(
    family: str, of: tuple[int, ...], correlation: float
) -> None:
    # Shares by data set have a standard deviation of about .05: in 20 sets .01. Limits half as
    # wide, the negative control, have .82 and .71 of the coefficients.
    sets, shares, short = 20, [], []
    for seed in range(sets):
        columns = drawn_of(family, seed, 400, of, correlation)
        run = fitted(*columns, family=family)
        limits = run.result.limits_if(beside(run, *columns).correlation).iloc[1:]
        off, half = np.abs(limits["estimate"] - EFFECT), (limits["upper"] - limits["lower"]) / 2
        shares.append(np.mean(off <= half))
        short.append(np.mean(off <= half / 2))
    error = np.std(shares, ddof=1) / np.sqrt(sets)
    assert error < 0.025
    assert np.mean(shares) >= 0.95 - 3 * error
    assert np.mean(short) < 0.9


CASES = [(0, 3, 4, 0.6), (1, 3, 3, 0.9), (2, 5, 5, 0.3), (3, 6, 3, 0.0), (4, 8, 8, 0.7)]


@pytest.mark.parametrize("case", CASES)
def test_limits_have_those_of_the_model_of_all_columns_within(
    case: tuple[int, int, int, float],
) -> None:
    a, b, y = drawn(*case)
    run = fitted(a, b, y)
    result, known = run.result, beside(run, a, b, y)
    found = result.own_coefficients
    np.testing.assert_allclose(found["estimate"], known.estimate, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["least"], known.least, rtol=1e-6)
    np.testing.assert_allclose(found["spread"], known.spread, rtol=1e-8)
    assert result.correlation == pytest.approx(known.known, abs=1e-8)
    assert set(found["status"]) == {"not certified"}
    gain = known.gain
    if result.stopped == "converged" or any("policy of a" in note for note in run.notes):
        # the partner spoke before its last direction was taken
        centred = b - b.mean(axis=0)
        earlier = centred @ run.site("b").predictor.directions[:, :-1]
        gain = hidden(a, centred, earlier, y).gain
    np.testing.assert_allclose(result.remaining, gain, rtol=1e-6)
    # the true correlation bounds both steps: to the estimate, and to its error
    rho = known.correlation
    assert (known.joint_spread <= known.spread / np.sqrt(1 - rho**2) * (1 + 1e-10)).all()
    limits = result.limits_if(rho)
    reach = norm.ppf(0.975) * known.least / np.sqrt(1 - rho**2)
    half = (limits["upper"] - limits["lower"]).to_numpy() / 2
    way = known.spread * rho / (1 - rho**2) * np.sqrt(result.remaining)
    np.testing.assert_allclose(half, reach + way, rtol=1e-6)
    assert (np.abs(known.joint - known.estimate) <= half - reach + 1e-5).all()
    np.testing.assert_allclose(limits["estimate"], found["estimate"])


def test_limits_that_ignore_what_is_hidden_do_not_hold() -> None:
    # the negative control: the way to the joint estimate is longer than nothing
    a, b, y = drawn(*CASES[0])
    run = fitted(a, b, y)
    known = beside(run, a, b, y)
    assert run.result.stopped == "rank"
    assert np.abs(known.joint - known.estimate).max() > 1e-3
    assert (known.joint_spread > 1.05 * known.spread).any()


def test_the_correlation_from_which_on_limits_have_0_between_them() -> None:
    result = fitted(*drawn(*CASES[4])).result
    zero_at = result.limits_if()["zero_at"].to_numpy()
    inner = (zero_at > 0) & (zero_at < 1)
    assert inner.any()
    for j in np.flatnonzero(inner):
        limits = result.limits_if(float(zero_at[j])).iloc[j]
        assert min(abs(limits["lower"]), abs(limits["upper"])) == pytest.approx(0, abs=1e-8)
    assert (zero_at == 0).any()
    for j in np.flatnonzero(zero_at == 0):
        limits = result.limits_if(0.0).iloc[j]
        assert limits["lower"] <= 0 <= limits["upper"]


@pytest.mark.parametrize("correlation", [-0.1, 1.0, float("nan"), "a", True, [0.5]])
def test_a_correlation_of_one_has_no_limits(correlation: Any) -> None:
    result = fitted(*drawn(*CASES[0])).result
    with pytest.raises(ParameterError, match="correlation"):
        result.limits_if(correlation)


def test_what_is_exact_needs_no_other_limits() -> None:
    a, b, y = drawn(*CASES[0])
    for settings in ({"interval": "none"}, {"alpha": 0.1}):
        found = fitted(a, b, y, **settings).result.limits_if(0.5)
        assert found[["lower", "upper", "zero_at"]].isna().all(axis=None)
