"""Updates between rounds of latent class regression in which all agents draw their labels at once.

In the sequential schedule every label is drawn with the totals of all others. In the parallel
schedule, that of a federation, all labels of a round are drawn with the totals of earlier rounds,
smoothed with a learning rate gamma; at low noise and gamma = 1 labels then jump to and fro in step.

Source: arXiv 2206.10783, algorithm 3. Departures: unscaled sums are smoothed, so that sigma and
delta may change between rounds; an entity's own part is removed; the jumping is detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError

WINDOW = 6
"""Rounds that are looked at together."""
JUMPING = 0.004
"""Share of labels that moves beyond what their probabilities explain."""
JUMPING_BY_ALL = 0.1
"""The same where nobody tells what the probabilities explain."""
STILL_FALLING = 0.98
"""Ratio of the noise to that at their beginning, below which the fit still settles."""
SMALLEST_RATE = 0.05


class _Sums(Protocol):
    def __add__(self, other: Any) -> Any: ...

    def __mul__(self, factor: float) -> Any: ...


S = TypeVar("S", bound=_Sums)


def smoothed(totals: S | None, new: S, rate: float) -> S:
    """Totals after a round, ``(1 - rate) * totals + rate * new``.

    Parameters
    ----------
    totals : Totals or array, optional
        Before the round; without them, in the first round, the new ones count alone.
    new : Totals or array
        Of the round, already rescaled where not everybody reported.
    rate : float
        In (0, 1].

    Raises
    ------
    ParameterError
        A rate outside its range.

    Notes
    -----
    Source: arXiv 2206.10783, algorithm 3, on unscaled sums.
    """
    _check_rate(rate)
    if totals is None:
        return new
    blended: S = totals * (1.0 - rate) + new * rate
    return blended


def own_weights(
    own: FloatArray | None,
    labels: IntArray,
    decay: float,
    weight: float,
    n_classes: int | None = None,
) -> FloatArray:
    """Weight with which each entity itself is in the totals of each class.

    Parameters
    ----------
    own : (E, K) array, optional
        Before the round; without it the entity is in no totals.
    labels : (E,) array of int
        Class of the round; -1 where the entity is in no sum of this round.
    decay : float
        What remains of the weights, ``1 - rate`` (0 in the first round).
    weight : float
        Of the round's sums in the totals: `rate` times the factor of rescaling (1 in the first
        round).
    n_classes : int, optional
        K, needed where `own` is not given.

    Returns
    -------
    (E, K) array
        For `block_log_likelihood` and `draw_labels`, which take this part out exactly.

    Raises
    ------
    DataError
        Labels that do not fit the weights.
    """
    labels = np.asarray(labels, dtype=np.int64)
    if own is None:
        if n_classes is None:
            raise DataError("weights of the first round need the number of classes")
        kept = np.zeros((len(labels), n_classes))
    else:
        kept = np.asarray(own, dtype=np.float64) * decay
    if kept.shape[0] != len(labels) or labels.max(initial=-1) >= kept.shape[1]:
        raise DataError("labels and weights do not have the same entities and classes")
    placed = np.flatnonzero(labels >= 0)
    kept[placed, labels[placed]] += weight
    return kept


def expected_moves(probabilities: FloatArray) -> float:
    """Labels that move in a round in which nothing but chance moves them.

    Parameters
    ----------
    probabilities : (E, K) array
        From which the labels of the round were drawn.

    Returns
    -------
    float
        Sum over the entities of ``1 - sum_k p_k^2``, the chance that two draws differ.
    """
    return float(np.sum(1.0 - np.sum(probabilities * probabilities, axis=1)))


def excess(moved: float, expected: float, entities: float) -> float:
    """Share of the labels that moved beyond what their probabilities explain.

    Parameters
    ----------
    moved, expected : float
        Labels that moved in the round, and `expected_moves`.
    entities : float
        Labels that could move.

    Notes
    -----
    Two standard deviations are granted: the number that moves by chance is a sum of independent
    trials, whose variance is at most its mean.
    """
    beyond = moved - expected - 2.0 * float(np.sqrt(max(expected, 0.0)))
    return max(beyond, 0.0) / max(entities, 1.0)


def next_rate(
    moved: Sequence[float],
    rate: float,
    noise: Sequence[float] | None = None,
    *,
    least: float = JUMPING,
) -> tuple[float, bool]:
    """Lower the learning rate where labels jump to and fro in step.

    Parameters
    ----------
    moved : sequence of float
        For each round since the last change of the rate, the share of labels that moved, less what
        their probabilities explain (`excess`): at high noise many labels move, and should.
    rate : float
    noise : sequence of float, optional
        Standard deviation of the noise in these rounds. While it falls the classes still take
        shape, and labels move for good.
    least : float
        Share of labels that jumps; larger where `moved` holds what chance moves.

    Returns
    -------
    rate : float
        Half of it where the labels jump and the rate is above its least value.
    warned : bool
        Whether they jump.

    Notes
    -----
    A class that loses its entities falls back to the prior, which explains every misfit best, and
    gains them all back in the next round: labels that are certain, and move all the same, be they
    as few as those of one class. In a run that settles the excess falls from round to round, so the
    last rounds are compared.
    """
    _check_rate(rate)
    if len(moved) < WINDOW:
        return rate, False
    recent = np.asarray(moved[-WINDOW:], dtype=np.float64)
    half = WINDOW // 2
    falling = recent[half:].mean() < 0.7 * recent[:half].mean()
    if recent.min() < least or falling:
        return rate, False
    told = [] if noise is None else noise[-WINDOW:]
    if len(told) == WINDOW and told[-1] < STILL_FALLING * told[0]:
        return rate, False
    return max(min(rate, SMALLEST_RATE), rate / 2), True


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ParameterError.of("learning_rate", "above 0 and at most 1", rate)
