"""What docs/proofs/column-space.md says is so: two data sets that no transcript tells apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from consilience.wire import disclosure as d

N, P = 120, 6
NAMES = tuple("abcdef")
Loss = tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]

LOSSES: dict[str, Loss] = {
    "normal": (lambda y, e: e - y, np.ones_like),
    "binomial": (
        lambda y, e: 1 / (1 + np.exp(-e)) - y,
        lambda e: 1 / (2 + np.exp(e) + np.exp(-e)),
    ),
}


def fit(x: np.ndarray, y: np.ndarray, offset: np.ndarray, loss: Loss, ridge: float) -> np.ndarray:
    """Coefficients of a partner's fit with an offset: plain Newton steps to rounding."""
    score, weight = loss
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        eta = offset + x @ beta
        slope = x.T @ score(y, eta) + ridge * beta
        curve = x.T @ (weight(eta)[:, None] * x) + ridge * np.eye(len(beta))
        beta = beta - np.linalg.solve(curve, slope)
    return beta


def transcript(
    x: np.ndarray, y: np.ndarray, loss: Loss, ridge: float, rounds: int, *, intervals: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Messages of a partner to an initiator who answers as he likes, and the vectors u."""
    rng = np.random.default_rng(5)
    score, weight = loss
    offset, messages, others = rng.normal(size=N) * 0.3, [], []
    for _ in range(rounds):
        beta = fit(x, y, offset, loss, ridge)
        sent = d.projection(x, beta, names=NAMES).value
        messages.append(sent)
        others.append(score(y, offset + sent))
        # Whatever the initiator does with what he got: here something wild, but fixed.
        offset = np.sin(3 * sent + offset) + 0.2 * rng.normal(size=N)
    if intervals:
        w = weight(offset)
        target, c = np.linspace(-1, 1, P), rng.normal(size=N)
        direction = np.linalg.solve(x.T @ (w[:, None] * x), target - x.T @ (w * c))
        sent = d.projection(x, direction, names=NAMES).value
        messages.append(sent)
        others.append(w * (sent + c))
    return np.column_stack(messages), np.column_stack(others)


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, P)) @ (np.eye(P) + 0.4)
    return x - x.mean(axis=0), (rng.uniform(size=N) < 0.4).astype(float)


def rotated(x: np.ndarray, known: np.ndarray, seed: int | None = None) -> np.ndarray:
    """Turn what is orthogonal to the known vectors; without a seed, reflect it."""
    known = np.linalg.qr(np.column_stack([np.ones(N), known]))[0]
    inside = known @ (known.T @ x)
    if seed is None:
        return inside - (x - inside)
    basis = np.linalg.qr(np.column_stack([known, np.eye(N)]))[0][:, known.shape[1] :]
    size = basis.shape[1]
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]
    return inside + basis @ (turn @ (basis.T @ x))


@pytest.mark.parametrize("ridge", [0.0, 3.0])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_no_transcript_tells_the_rotated_data_apart(
    name: str, ridge: float, seed: int | None
) -> None:
    x, y = data()
    loss = LOSSES[name]
    messages, others = transcript(x, y, loss, ridge, 3, intervals=True)
    other = rotated(x, np.c_[messages, others], seed)
    assert np.linalg.norm(other - x) > 0.3 * np.linalg.norm(x), "another data set"
    again, _ = transcript(other, y, loss, ridge, 3, intervals=True)
    np.testing.assert_allclose(again, messages, atol=1e-8)


def test_negative_control_a_vector_that_is_not_fixed() -> None:
    """With the scores left out of what is kept fixed, the transcript does change."""
    x, y = data()
    messages, _ = transcript(x, y, LOSSES["binomial"], 0.0, 3, intervals=False)
    again, _ = transcript(rotated(x, messages, 1), y, LOSSES["binomial"], 0.0, 3, intervals=False)
    assert np.abs(again - messages).max() > 1e-3


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
def test_unpenalised_training_tells_the_part_in_the_span_of_the_messages(rounds: int) -> None:
    """Scores are orthogonal to the columns: they tell where the rest of the space is not."""
    x, y = data()
    messages, others = transcript(x, y, LOSSES["binomial"], 0.0, rounds, intervals=False)
    assert np.abs(x.T @ others).max() < 1e-9
    space = np.linalg.qr(x)[0]
    span = np.linalg.qr(messages)[0]
    known = np.linalg.qr(np.c_[messages, others])[0]
    share = np.sum((span.T @ space) ** 2) / P
    assert share == pytest.approx(rounds / P)
    rest = space - span @ (span.T @ space)
    assert np.abs(known.T @ rest).max() < 1e-9


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_no_estimate_is_good_for_both_of_two_data_sets(rounds: int) -> None:
    x, y = data()
    messages, others = transcript(x, y, LOSSES["binomial"], 0.0, rounds, intervals=False)
    mirror = rotated(x, np.c_[messages, others])
    span = np.linalg.qr(messages)[0]
    known = span @ (span.T @ x)
    rest = np.sum((x - known) ** 2)
    rng = np.random.default_rng(rounds)
    for guess in (known, np.zeros_like(x), x, known + rng.normal(size=x.shape)):
        errors = [np.sum((guess - truth) ** 2) for truth in (x, mirror)]
        assert max(errors) >= rest * (1 - 1e-9)


def test_columns_of_few_values_are_told_by_one_message() -> None:
    """Not covered: one generic combination of 0/1 columns has another value for each pattern."""
    rng = np.random.default_rng(3)
    x = (rng.uniform(size=(400, P)) < 0.5).astype(float)
    direction = rng.normal(size=P)
    sent = d.projection(x, direction, names=NAMES).value
    patterns = (np.arange(2**P)[:, None] >> np.arange(P)) & 1
    values = patterns @ direction - x.mean(axis=0) @ direction
    found = patterns[np.abs(sent[:, None] - values).argmin(axis=1)]
    np.testing.assert_array_equal(found, x)
