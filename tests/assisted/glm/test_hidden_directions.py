"""Coefficients at default policies: what is exact, what is bounded, and by what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from consilience import AssistedGLM, Columns, Federation, Policy, Run
from consilience.exceptions import ParameterError
from tests.reference.hidden_directions import Hidden, hidden

GRANTS = {
    "a": Policy(preset="consortium", share_response=True),
    "b": Policy(preset="consortium"),
}


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


def fitted(a: np.ndarray, b: np.ndarray, y: np.ndarray, **settings: Any) -> Run[Any]:
    ids = np.array([f"p{i:03d}" for i in range(len(y))])
    names = {"a": [f"a{j}" for j in range(a.shape[1])], "b": [f"b{j}" for j in range(b.shape[1])]}
    tables = {
        "a": pd.DataFrame(a, columns=names["a"]).assign(id=ids, y=y),
        "b": pd.DataFrame(b, columns=names["b"]).assign(id=ids),
    }
    columns = {
        "a": Columns(id="id", features=names["a"], target="y"),
        "b": Columns(id="id", features=names["b"]),
    }
    federation = Federation.local(tables, columns=columns, policy=GRANTS)
    how = {"family": "normal", "response": "share", "holdout": 0.0, **settings}
    return AssistedGLM(**how).run(federation, seed=1)


def beside(run: Run[Any], a: np.ndarray, b: np.ndarray, y: np.ndarray) -> Hidden:
    """What the reference says, given the directions that this run told."""
    centred = b - b.mean(axis=0)
    return hidden(a, centred, centred @ run.site("b").predictor.directions, y)


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
