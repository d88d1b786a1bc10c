"""Draws of labels, one entity after another or all agents at once, and what follows a round.

The conditional of a label given all others is the block likelihood under the class without the
entity, times the prior ``N_i^k + beta psi_k`` (counts without the entity). With psi drawn it is
exact; the source's "maximal path" shortcut puts ``(N^k + alpha/K) / (sum N + alpha)`` for psi_k
(section 3.2 there). Random numbers are keyed by agent, round and the entity's place in its agent:
they do not depend on the site of the agent or on other agents.

In the sequential schedule every label is drawn with the totals of all others. In the parallel
schedule, that of a federation, all labels of a round are drawn with the totals of earlier rounds,
smoothed with a learning rate gamma; at low noise and gamma = 1 labels then jump to and fro in step.

Source: arXiv 2206.10783, algorithm 3. Departures: unscaled sums are smoothed, so that sigma and
delta may change between rounds; an entity's own part is removed; the jumping is detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Classes,
    Totals,
    block_log_likelihood,
    checked_labels,
    kernel_events,
    noise_lanes,
    out_of_range,
    plain,
)
from consilience.latent_regression.kernels.marginal_likelihood import (
    POSITIVE,
    Noise,
    check_variances,
)
from consilience.parameters import LEFT_OUT, check, number

WINDOW = 6
"""Rounds that are looked at together."""
JUMPING = 0.004
"""Share of labels that moves beyond what their probabilities explain."""
JUMPING_BY_ALL = 0.1
"""The same where nobody tells what the probabilities explain."""
STILL_FALLING = 0.98
"""Ratio of the noise to that at their beginning, below which the fit still settles."""
SMALLEST_RATE = 0.05


S = TypeVar("S", Totals, FloatArray)


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
    check({"learning_rate": number(above=0, high=1)}, {"learning_rate": rate})
    if totals is None:
        return new
    # algorithm 3: totals <- (1 - gamma) totals + gamma new, on unscaled sums
    return totals * (1.0 - rate) + new * rate


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
    # the entity is in the sums of its class with the weight of the round
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
    # chance that two draws from one distribution differ
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
    check({"learning_rate": number(above=0, high=1)}, {"learning_rate": rate})
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


# ---------------------------------------------------------------------------------- draws of labels


def sweep(
    blocks: Blocks,
    labels: ArrayLike,
    totals: Totals,
    sigma2: Noise,
    delta2: float,
    base: ArrayLike | None,
    beta: float,
    keys: ArrayLike,
    round_number: int,
    *,
    shortcut_alpha: float | None = None,
) -> tuple[IntArray, Totals, int]:
    """One sweep of the collapsed Gibbs sampler: take an entity out, draw its label, put it in.

    Parameters
    ----------
    blocks : Blocks
    labels : (E,) int array
        Class of each entity before; -1: not labelled yet, in no total and no count.
    totals : Totals
        Sums by class, the labelled entities of `blocks` included.
    sigma2 : float or (K,) array
        Variance of the noise, of all classes or of each.
    delta2 : float
        Of the prior of the coefficients.
    base : (K,) array or None
        psi; not used with `shortcut_alpha`.
    beta : float
        Concentration of an agent's shares around psi.
    keys : (A,) array of uint64
        See :func:`consilience.latent_regression.kernels.latent_class.agent_key`.
    round_number : int
    shortcut_alpha : float, optional
        Use the shortcut with this alpha: counts N^k are those of `totals` without the entity.

    Returns
    -------
    labels : (E,) int array
    totals : Totals
        The totals given, with the entities that moved taken out and put in.
    moved : int
        Entities whose label is another than before.

    Raises
    ------
    DataError
        A likelihood is not a finite number.
    """
    check_variances(sigma2, delta2)
    k = totals.n_classes
    label = checked_labels(labels, blocks.n_entities, k).copy()
    shares, key = _checked_prior(base, beta, keys, k, blocks.n_agents, shortcut_alpha)

    from consilience.latent_regression.kernels import compiled

    # one class more: what an entity leaves is kept there until it is known where it goes
    room = (np.concatenate([a, np.zeros((1, *a.shape[1:]))]) for a in totals.arrays)
    sums = compiled.Sums(*map(plain, room))
    moved = compiled.sweep_entities(
        kernel_events(blocks),
        blocks.agent_start,
        label,
        sums,
        noise_lanes(sigma2, k),
        1.0 / delta2,
        shares,
        float(beta),
        key,
        np.uint64(round_number),
        -1.0 if shortcut_alpha is None else float(shortcut_alpha),
    )
    if moved < 0:
        raise out_of_range()
    return label, Totals(*(a[:k] for a in sums)), int(moved)


def draw_labels(
    blocks: Blocks,
    classes: Classes,
    labels: ArrayLike,
    own: ArrayLike | None,
    base: ArrayLike | None,
    beta: float,
    keys: ArrayLike,
    round_number: int,
    *,
    shortcut_counts: ArrayLike | None = None,
    alpha: float | None = None,
) -> tuple[IntArray, FloatArray, int]:
    """Draw every label given the classes: agents independently, an agent's entities in turn.

    Parameters
    ----------
    blocks : Blocks
    classes : Classes
        The same for all entities (a round of the source's algorithm 3).
    labels : (E,) int array
        Class of each entity before; -1: not labelled yet, in no count.
    own : (E, K) array or None
        Weight with which each entity is in the totals behind `classes`; it is taken out exactly.
    base, beta, keys, round_number
        As in :func:`sweep`.
    shortcut_counts : (K,) array, optional
        Entities by class over all agents: use the shortcut, with `alpha`. What an entity itself has
        in them is `own`.
    alpha : float, optional
        Needed with `shortcut_counts`.

    Returns
    -------
    labels : (E,) int array
    probabilities : (E, K) array
        The distribution that each label was drawn from.
    moved : int

    Raises
    ------
    DataError
        A likelihood is not a finite number.
    """
    e, k = blocks.n_entities, classes.n_classes
    label = checked_labels(labels, e, k).copy()
    if shortcut_counts is not None and alpha is None:
        raise ParameterError.of("alpha", "given with shortcut_counts", alpha)
    if shortcut_counts is None:
        counts, alpha = np.zeros(0), None
    else:
        counts = _vector("shortcut_counts", shortcut_counts, k)
    shares, key = _checked_prior(base, beta, keys, k, blocks.n_agents, alpha)
    # an entity's own part is taken out of every class that holds it
    probabilities = block_log_likelihood(blocks, classes, own)

    from consilience.latent_regression.kernels import compiled

    moved = compiled.draw_agents(
        probabilities,
        label,
        blocks.agent_start,
        shares,
        float(beta),
        key,
        np.uint64(round_number),
        np.zeros((0, k)) if own is None else plain(own),
        counts,
        -1.0 if alpha is None else float(alpha),
    )
    if moved < 0:
        raise out_of_range()
    return label, probabilities, int(moved)


def table_counts(
    agent_counts: ArrayLike, beta: float, base: ArrayLike, keys: ArrayLike, round_number: int
) -> IntArray:
    """Draw table counts ``m_ik ~ CRT(N_i^k, beta psi_k)`` at each agent.

    Parameters
    ----------
    agent_counts : (A, K) int array
        Entities of each agent in each class.
    beta, base, keys, round_number
        As in :func:`sweep`.

    Returns
    -------
    (A, K) int array
        The coordinator draws ``psi ~ Dir(alpha/K + sum_i m_ik)`` from their sum over agents.
    """
    counts = plain(agent_counts, np.int64)
    if counts.ndim != 2 or (counts < 0).any():
        raise ParameterError.of("agent_counts", "counts of shape (agents, classes)", counts.shape)
    n_agents, n_classes = counts.shape
    shares, key = _checked_prior(base, beta, keys, n_classes, n_agents)
    out = np.zeros(counts.shape, dtype=np.int64)

    from consilience.latent_regression.kernels import compiled

    compiled.count_tables(counts, float(beta), shares, key, np.uint64(round_number), out)
    return out


def _checked_prior(
    base: ArrayLike | None,
    beta: float,
    keys: ArrayLike,
    n_classes: int,
    n_agents: int,
    shortcut_alpha: float | None = None,
) -> tuple[FloatArray, NDArray[np.uint64]]:
    """Shares and keys as the compiled loops take them."""
    check({"beta": POSITIVE, "alpha": POSITIVE | LEFT_OUT}, {"beta": beta, "alpha": shortcut_alpha})
    key = plain(keys, np.uint64)
    if key.shape != (n_agents,):
        raise ParameterError.of("keys", f"one for each of {n_agents} agents", key.shape)
    if shortcut_alpha is not None:
        # with the shortcut psi comes from the counts (section 3.2)
        return np.zeros(n_classes), key
    shares = _vector("base", base, n_classes)
    if not shares.any():
        raise ParameterError.of("base", "above 0 for at least one class", "zeros")
    return shares, key


def _vector(name: str, values: ArrayLike | None, n_classes: int) -> FloatArray:
    if values is None:
        raise ParameterError.of(name, f"given for {n_classes} classes", None)
    vector = plain(values)
    if vector.shape != (n_classes,) or not np.isfinite(vector).all() or (vector < 0).any():
        raise ParameterError.of(name, f"{n_classes} numbers that are not negative", vector.shape)
    return vector
