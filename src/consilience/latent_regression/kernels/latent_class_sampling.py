"""Draws of the labels of a latent class regression: one entity after another, or agents at once.

The conditional of a label given all others is the block likelihood under the class without the
entity, times the prior ``N_i^k + beta psi_k`` (counts without the entity). With psi drawn it is
exact; the source's "maximal path" shortcut puts ``(N^k + alpha/K) / (sum N + alpha)`` for psi_k
(section 3.2 there). Random numbers are keyed by agent, round and the entity's place in its agent:
they do not depend on the site of the agent, on other agents or on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Classes,
    Totals,
    check_variances,
    checked_own,
    kernel_state,
    out_of_range,
)
from consilience.latent_regression.kernels.latent_class_sums import (
    checked_labels,
    kernel_events,
    plain,
)

T = TypeVar("T")
R = TypeVar("R")


def sweep(
    blocks: Blocks,
    labels: ArrayLike,
    totals: Totals,
    sigma2: float,
    delta2: float,
    base: ArrayLike | None,
    beta: float,
    keys: ArrayLike,
    round_number: int,
    *,
    mode: Literal["draw", "best"] = "draw",
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
    sigma2, delta2 : float
        Variance of the noise, and of the prior of the coefficients.
    base : (K,) array or None
        psi; not used with `shortcut_alpha`.
    beta : float
        Concentration of an agent's shares around psi.
    keys : (A,) array of uint64
        See :func:`consilience.latent_regression.kernels.latent_class.agent_key`.
    round_number : int
    mode : {"draw", "best"}
        ``"best"`` takes the most probable class instead of drawing.
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
    if mode not in ("draw", "best"):
        raise ParameterError.of("mode", "'draw' or 'best'", mode)
    label = checked_labels(labels, blocks.n_entities, k).copy()
    shares, key = _checked_prior(blocks, base, beta, keys, k, shortcut_alpha)

    from consilience.latent_regression.kernels import latent_class_chains as chains
    from consilience.latent_regression.kernels import latent_class_kernels as kernels

    room = (np.concatenate([a, np.zeros((1, *a.shape[1:]))]) for a in totals.arrays)
    sums = kernels.Sums(*map(plain, room))
    moved = chains.sweep_entities(
        kernel_events(blocks),
        blocks.agent_start,
        label,
        sums,
        1.0 / sigma2,
        1.0 / delta2,
        shares,
        float(beta),
        key,
        np.uint64(round_number),
        mode == "best",
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
    n_workers: int = 1,
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
    n_workers : int
        Threads; the answer does not depend on it.

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
    shares, key = _checked_prior(
        blocks, base, beta, keys, k, alpha if shortcut_counts is not None else None
    )
    counts = (
        np.zeros(0) if shortcut_counts is None else _vector("shortcut_counts", shortcut_counts, k)
    )
    if n_workers < 1:
        raise ParameterError.of("n_workers", "at least 1", n_workers)
    given = kernel_events(blocks), kernel_state(classes)
    variances = 1.0 / classes.sigma2, 1.0 / classes.delta2
    removed = checked_own(own, e, k)
    agent_start = blocks.agent_start
    probabilities = np.empty((e, k))

    from consilience.latent_regression.kernels import latent_class_chains as chains
    from consilience.latent_regression.kernels import latent_class_density as density

    def judge(entities: tuple[int, int]) -> bool:
        return bool(density.likelihoods(*given, *variances, removed, *entities, probabilities))

    def draw(agents: tuple[int, int]) -> int:
        moved = chains.draw_agents(
            probabilities,
            label,
            agent_start,
            agents,
            shares,
            float(beta),
            key,
            np.uint64(round_number),
            removed,
            counts,
            -1.0 if alpha is None or shortcut_counts is None else float(alpha),
        )
        return int(moved)

    if not all(_over_threads(judge, _parts(e, n_workers), n_workers)):
        raise out_of_range()
    cuts = np.searchsorted(agent_start, [first for first, _ in _parts(e, n_workers)])
    bounds = [int(c) for c in np.unique([*cuts, 0, blocks.n_agents])]
    moved = _over_threads(draw, list(pairwise(bounds)), n_workers)
    if min(moved, default=0) < 0:
        raise out_of_range()
    return label, probabilities, sum(moved)


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
    shares = _shares(base, counts.shape[1])
    key = _keys(keys, counts.shape[0])
    out = np.zeros(counts.shape, dtype=np.int64)

    from consilience.latent_regression.kernels import latent_class_chains as chains

    chains.count_tables(counts, float(beta), shares, key, np.uint64(round_number), out)
    return out


def _checked_prior(
    blocks: Blocks,
    base: ArrayLike | None,
    beta: float,
    keys: ArrayLike,
    n_classes: int,
    shortcut_alpha: float | None,
) -> tuple[FloatArray, NDArray[np.uint64]]:
    """Shares and keys as the compiled loops take them."""
    if not (np.isfinite(beta) and beta > 0):
        raise ParameterError.of("beta", "positive and finite", beta)
    if shortcut_alpha is not None:
        if not (np.isfinite(shortcut_alpha) and shortcut_alpha > 0):
            raise ParameterError.of("alpha", "positive and finite", shortcut_alpha)
        shares = np.zeros(n_classes)
    else:
        shares = _shares(base, n_classes)
    return shares, _keys(keys, blocks.n_agents)


def _shares(base: ArrayLike | None, n_classes: int) -> FloatArray:
    shares = _vector("base", base, n_classes)
    if not shares.any():
        raise ParameterError.of("base", "above 0 for at least one class", "zeros")
    return shares


def _vector(name: str, values: ArrayLike | None, n_classes: int) -> FloatArray:
    if values is None:
        raise ParameterError.of(name, f"given for {n_classes} classes", None)
    vector = plain(values)
    if vector.shape != (n_classes,) or not np.isfinite(vector).all() or (vector < 0).any():
        raise ParameterError.of(name, f"{n_classes} numbers that are not negative", vector.shape)
    return vector


def _keys(keys: ArrayLike, n_agents: int) -> NDArray[np.uint64]:
    key = plain(keys, np.uint64)
    if key.shape != (n_agents,):
        raise ParameterError.of("keys", f"one for each of {n_agents} agents", key.shape)
    return key


def _parts(n: int, n_workers: int) -> list[tuple[int, int]]:
    """Ranges that cover ``0 .. n - 1``, a few for each worker."""
    bounds = np.linspace(0, n, 1 if n_workers == 1 else 4 * n_workers, dtype=np.int64)
    return [(int(a), int(b)) for a, b in pairwise([0, *np.unique(bounds[1:]), n]) if b > a]


def _over_threads(function: Callable[[T], R], items: list[T], n_workers: int) -> list[R]:
    """Results in the order of the items; compiled loops leave the interpreter to other threads."""
    if n_workers == 1 or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(n_workers) as pool:
        return list(pool.map(function, items))
