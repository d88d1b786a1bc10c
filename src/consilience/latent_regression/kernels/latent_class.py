"""Sums of events by entity and class, and the likelihood of an entity under each class.

Model (Yang, Carette, Jimbo, Maruyama, arXiv 2206.10783, section 3): entity j of agent i has one
class k for all its events, ``y = w_k' x + noise`` of variance sigma^2, ``w_k ~ N(0, delta^2 I)``.
Given the other entities, ``w_k ~ N(m, D^-1)`` with ``D = I / delta^2 + X'X / sigma^2`` and
``m = D^-1 X'y / sigma^2``. The events of an entity are judged all at once: the product over events
in the source (with the variance of its equation 4 read as ``sigma^2 + x' D^-1 x``) telescopes to a
normal density with the entity's S, r, q and n, at the price of one Cholesky factorisation.

The sums are kept unscaled, so that the noise and the scale of the prior may change without reading
the events again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.marginal_likelihood import Noise, check_variances
from consilience.numerics.ids import pair_codes


@dataclass(frozen=True, eq=False)
class Blocks:
    """Events by entity, entities sorted by agent and then by first appearance.

    Attributes
    ----------
    products : (E, F, F) array
        ``X'WX`` of each entity, W the frequency weights.
    cross : (E, F) array
        ``X'Wy``.
    squares : (E,) array
        ``y'Wy``.
    n : (E,) array
        Sum of the weights: events; 0 for an entity without an outcome.
    agent : (E,) int array
        Position of the agent of each entity, non-decreasing, ``0 .. n_agents - 1``.
    n_agents : int
    x : (N, F) array
        Rows with an outcome in the order of the entities, times the root of their weight.
    y : (N,) array
        Outcomes, times the root of the weight.
    weight : (N,) array
    start : (E + 1,) int array
        Rows of entity e are ``start[e]:start[e + 1]``.
    order : (N,) int array
        Row of the caller's table of each row here.
    entity : (rows,) int array
        Position of the entity of each row of the caller's table.
    """

    products: FloatArray
    cross: FloatArray
    squares: FloatArray
    n: FloatArray
    agent: IntArray
    n_agents: int
    x: FloatArray
    y: FloatArray
    weight: FloatArray
    start: IntArray
    order: IntArray
    entity: IntArray

    @property
    def n_entities(self) -> int:
        """Number of entities, E."""
        return int(self.n.size)

    @property
    def n_features(self) -> int:
        """Columns of the design, F."""
        return int(self.cross.shape[1])

    @property
    def agent_start(self) -> IntArray:
        """Entities of agent i are ``agent_start[i]:agent_start[i + 1]``, shape (A + 1,)."""
        return np.searchsorted(self.agent, np.arange(self.n_agents + 1)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums by class, unscaled.

    Attributes
    ----------
    products : (K, F, F) array
        Sum of the entities' ``products``.
    cross : (K, F) array
    squares : (K,) array
    n : (K,) array
        Events, weights summed.
    counts : (K,) array
        Entities; not whole numbers once sums were averaged over rounds.
    """

    products: FloatArray
    cross: FloatArray
    squares: FloatArray
    n: FloatArray
    counts: FloatArray

    @staticmethod
    def zeros(n_classes: int, n_features: int) -> Totals:
        """Totals of nothing."""
        k, f = n_classes, n_features
        return Totals(np.zeros((k, f, f)), np.zeros((k, f)), np.zeros(k), np.zeros(k), np.zeros(k))

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """Products, cross, squares, n and counts."""
        return self.products, self.cross, self.squares, self.n, self.counts

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return int(self.counts.size)

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(a + b for a, b in zip(self.arrays, other.arrays, strict=True)))

    def __mul__(self, factor: float) -> Totals:
        return Totals(*(a * factor for a in self.arrays))

    __rmul__ = __mul__

    def take(self, classes: ArrayLike) -> Totals:
        """Totals of some classes, in the order asked for."""
        index = np.asarray(classes, dtype=np.int64)
        return Totals(*(a[index] for a in self.arrays))

    def merged(self, mapping: ArrayLike, n_classes: int) -> Totals:
        """Totals after class k became class ``mapping[k]``; a negative one drops the class."""
        index = np.asarray(mapping, dtype=np.int64)
        if index.shape != self.counts.shape or (index >= n_classes).any():
            raise ParameterError.of("mapping", f"a class below {n_classes} for each class", mapping)
        total = Totals.zeros(n_classes, self.cross.shape[1])
        for source, target in enumerate(index):  # in order of the classes: one answer
            if target >= 0:
                for into, part in zip(total.arrays, self.arrays, strict=True):
                    into[target] += part[source]
        return total


def blocks_of(
    x: ArrayLike, y: ArrayLike, entity: ArrayLike, agent: ArrayLike, weight: ArrayLike | None = None
) -> Blocks:
    """Sums of the events of each entity.

    Parameters
    ----------
    x : (rows, F) array
        Design, with its column of ones where an intercept is wanted.
    y : (rows,) array
        Outcomes; NaN: no outcome, the event is left out of all sums but its entity exists.
    entity, agent : (rows,) int arrays
        Codes; those of agents are the positions ``0 .. A - 1``. The same entity code under two
        agents is two entities.
    weight : (rows,) array, optional
        Frequency weights, not negative.

    Raises
    ------
    DataError
        Shapes differ, a feature or a weight is not a finite number, a weight or an agent is
        negative, or an outcome is infinite.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    entity_code = np.asarray(entity, dtype=np.int64)
    agent_code = np.asarray(agent, dtype=np.int64)
    rows = len(y)
    weight = np.ones(rows) if weight is None else np.asarray(weight, dtype=np.float64)
    if y.ndim != 1 or x.ndim != 2 or x.shape[0] != rows:
        raise DataError("features and target of a latent class regression need one row an event")
    if not all(a.shape == (rows,) for a in (entity_code, agent_code, weight)):
        raise DataError("entity, agent and weight need one value for each event")
    if not np.isfinite(x).all():
        raise DataError("the features hold a missing or infinite value: drop or fill those events")
    if np.isinf(y).any():
        raise DataError("the target holds an infinite value: drop or correct those events")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise DataError("the weights of events must be finite and not negative")
    if (agent_code < 0).any():
        raise DataError("codes of agents must be positions from 0 on")

    position, first = entities_of(agent_code, entity_code)
    entity_agent = agent_code[first]
    # events without an outcome belong to an entity and to no sum
    used = np.flatnonzero(~np.isnan(y) & (weight > 0))
    order = used[np.argsort(position[used], kind="stable")].astype(np.int64)
    n_entities = entity_agent.size
    start = np.searchsorted(position[order], np.arange(n_entities + 1)).astype(np.int64)
    # rows times the root of their weight: X'WX is a plain product of them
    root = np.sqrt(weight[order])
    scaled_x = np.ascontiguousarray(x[order] * root[:, None])
    scaled_y = y[order] * root

    from consilience.latent_regression.kernels import compiled

    f = x.shape[1]
    products, cross = np.zeros((n_entities, f, f)), np.zeros((n_entities, f))
    squares, n = np.zeros(n_entities), np.zeros(n_entities)
    compiled.sum_blocks(scaled_x, scaled_y, weight[order], start, products, cross, squares, n)
    return Blocks(
        products=products,
        cross=cross,
        squares=squares,
        n=n,
        agent=entity_agent,
        n_agents=int(agent_code.max(initial=-1)) + 1,
        x=scaled_x,
        y=scaled_y,
        weight=weight[order],
        start=start,
        order=order,
        entity=position,
    )


def entities_of(agent: IntArray, names: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Number the pairs of agent and entity by agent, then by first appearance.

    Returns
    -------
    entity : (n,) int array
    first : (E,) int array
        First row of each entity.
    """
    codes, first = pair_codes(agent, names)
    order = np.lexsort((first, agent[first]))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place[codes], first[order]


def totals_of(blocks: Blocks, labels: ArrayLike, n_classes: int) -> Totals:
    """Sums by class: within each agent in the order of its entities, agents by :func:`tree_sum`.

    Parameters
    ----------
    blocks : Blocks
    labels : (E,) int array
        Class of each entity; -1: in none.
    n_classes : int

    Raises
    ------
    ParameterError
        The labels are not one class below `n_classes` for each entity.
    """
    label = checked_labels(labels, blocks.n_entities, n_classes)

    from consilience.latent_regression.kernels import compiled

    f = blocks.n_features
    sums = compiled.sum_classes(kernel_events(blocks), blocks.agent_start, label, n_classes)
    return Totals(
        products=sums[:, : f * f].reshape(n_classes, f, f),
        cross=sums[:, f * f : -3].copy(),
        squares=sums[:, -3].copy(),
        n=sums[:, -2].copy(),
        counts=sums[:, -1].copy(),
    )


def kernel_events(blocks: Blocks) -> Any:
    """Blocks as compiled code takes them."""
    from consilience.latent_regression.kernels import compiled

    b = blocks
    products, cross, squares, n = map(plain, (b.products, b.cross, b.squares, b.n))
    start = plain(b.start, np.int64)
    return compiled.Events(products, cross, squares, n, plain(b.x), plain(b.y), start)


def plain(values: ArrayLike, kind: Any = np.float64) -> NDArray[Any]:
    """An array in row order that may be written: other kinds would be compiled for anew."""
    return np.require(values, kind, ["C", "W"])


def checked_labels(labels: ArrayLike, n_entities: int, n_classes: int) -> IntArray:
    """Labels as integers, one for each entity, from -1 to ``n_classes - 1``."""
    label = plain(labels, np.int64)
    if label.shape != (n_entities,) or (
        label.size and (label.min() < -1 or label.max() >= n_classes)
    ):
        raise ParameterError.of(
            "labels", f"one class from -1 to {n_classes - 1} for each entity", label.shape
        )
    return label


def tree_sum(parts: Sequence[FloatArray]) -> FloatArray:
    """Sum arrays pairwise: neighbours first, then neighbouring sums, an odd last one as it is.

    The order of the additions depends on the number of parts alone. The sum over 2^a neighbouring
    parts that start at a multiple of 2^a is a node of the tree, whoever computes it.

    Raises
    ------
    ParameterError
        There is nothing to add.
    """
    level = list(parts)
    if not level:
        raise ParameterError.of("parts", "at least one array", 0)
    while len(level) > 1:
        # an odd last one goes up as it is: the order hangs on the number of parts alone
        pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) & ~1 :]
    return np.array(level[0])


# -------------------------------------------------------------------------- classes and likelihoods


@dataclass(frozen=True, eq=False)
class Classes:
    """Posterior of the coefficients of each class, ``N(mean, precision^-1)``.

    Attributes
    ----------
    precision : (K, F, F) array
        ``D = I / delta2 + products / sigma2``.
    mean : (K, F) array
        ``m = D^-1 linear``.
    cholesky : (K, F, F) array
        Lower L with ``L L' = D``.
    log_det : (K,) array
        ``log |D|``.
    sigma2 : float or (K,) array
        Variance of the noise, of all classes or of each.
    delta2 : float
        Variance of the prior of the coefficients.
    linear : (K, F) array
        ``c = cross / sigma2``.
    """

    precision: FloatArray
    mean: FloatArray
    cholesky: FloatArray
    log_det: FloatArray
    sigma2: Noise
    delta2: float
    linear: FloatArray

    @staticmethod
    def of(mean: FloatArray, covariance: FloatArray, sigma2: Noise, delta2: float) -> Classes:
        """Classes whose coefficients have these means (K, F) and covariances (K, F, F)."""
        # D = V^-1, made symmetric again after the inversion
        precision = np.linalg.inv(covariance)
        precision = (precision + np.swapaxes(precision, 1, 2)) / 2
        cholesky = np.asarray(np.linalg.cholesky(precision), dtype=np.float64)
        return Classes(
            precision=precision,
            mean=mean,
            cholesky=cholesky,
            log_det=2.0 * np.log(np.diagonal(cholesky, axis1=1, axis2=2)).sum(axis=1),
            sigma2=sigma2,
            delta2=delta2,
            linear=np.einsum("kfg,kg->kf", precision, mean),
        )

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return int(self.log_det.size)

    def take(self, classes: ArrayLike) -> Classes:
        """Some classes, in the order asked for."""
        i = np.asarray(classes, dtype=np.int64)
        parts = (self.precision[i], self.mean[i], self.cholesky[i], self.log_det[i])
        noise = self.sigma2[i] if isinstance(self.sigma2, np.ndarray) else self.sigma2
        return Classes(*parts, noise, self.delta2, self.linear[i])


def noise_lanes(sigma2: Noise, n_classes: int) -> FloatArray:
    """``1 / sigma2`` of each class as compiled loops take it: 1 in the lanes that are to spare."""
    from consilience.latent_regression.kernels.batched_cholesky import WIDTH

    lanes = np.ones((n_classes // WIDTH + 1) * WIDTH)
    lanes[:n_classes] = 1.0 / sigma2
    return lanes


def classes_of(totals: Totals, sigma2: Noise, delta2: float) -> Classes:
    """Posterior of the coefficients given the totals (the source's D_k, c_k and A_k).

    Raises
    ------
    ParameterError
        A variance is not positive and finite.
    DataError
        The totals are so large that D has no Cholesky factor of finite numbers.
    """
    check_variances(sigma2, delta2)

    from consilience.latent_regression.kernels import compiled

    k, f = totals.cross.shape
    # D_k, c_k, L_k, m_k and log|D_k|, filled by the compiled loop
    state = compiled.State(
        np.empty((k, f, f)), np.empty((k, f)), np.zeros((k, f, f)), np.empty((k, f)), np.empty(k)
    )
    compiled.factor_classes(
        plain(totals.products), plain(totals.cross), noise_lanes(sigma2, k), 1.0 / delta2, state
    )
    if not (np.isfinite(state.log_det).all() and np.isfinite(state.mean).all()):
        raise out_of_range()
    parts = (state.precision, state.mean, state.cholesky, state.log_det)
    noise = sigma2 if isinstance(sigma2, np.ndarray) else float(sigma2)
    return Classes(*parts, noise, float(delta2), state.linear)


def block_log_likelihood(
    blocks: Blocks, classes: Classes, own: ArrayLike | None = None
) -> FloatArray:
    """Log density of all events of an entity under each class.

    With ``e = y - X m`` and ``g = X'e / sigma^2``, ``M = D + S / sigma^2``::

        -n/2 log(2 pi sigma^2) - (log|M| - log|D|)/2 - (e'e / sigma^2 - g' M^-1 g)/2

    which is the product over n of the source's equation (4), corrected, with equations (8) and (9).

    Parameters
    ----------
    blocks : Blocks
    classes : Classes
    own : (E, K) array, optional
        Weight, from 0 to 1, with which the entity itself is in the totals of each class; it is
        taken out exactly: ``D - own S / sigma^2`` and ``c - own r / sigma^2``.

    Returns
    -------
    (E, K) array
        0 for an entity without events.

    Raises
    ------
    DataError
        A density is not a finite number.
    """
    from consilience.latent_regression.kernels import compiled

    e, k = blocks.n_entities, classes.n_classes
    # without rows nothing is taken out
    removed = np.zeros((0, k)) if own is None else plain(own)
    if own is not None and removed.shape != (e, k):
        raise ParameterError.of("own", f"of shape {(e, k)}", removed.shape)
    c, out = classes, np.empty((e, k))
    state = compiled.State(*map(plain, (c.precision, c.linear, c.cholesky, c.mean, c.log_det)))
    # eq. 4 (corrected), 8 and 9 over all events of an entity at once
    given = kernel_events(blocks), state, noise_lanes(c.sigma2, k), 1.0 / c.delta2
    if not compiled.likelihoods(*given, removed, out):
        raise out_of_range()
    return out


def out_of_range() -> DataError:
    """The error of a likelihood that is not a finite number."""
    return DataError(
        "the likelihood of a latent class is not a finite number: "
        "bring features and target to a common scale first"
    )


def agent_key(seed: int, agent: str | int) -> int:
    """Key of an agent's random numbers: below 2^64, from the SHA-256 of seed and agent.

    It does not depend on the site of the agent or on the other agents. ``1`` and ``"1"`` are
    different agents.
    """
    name: str | int = agent if isinstance(agent, str) else int(agent)
    # repr keeps 1 and "1" apart
    text = repr(("latent class", int(seed), name))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "little")


def draw_uniform(key: ArrayLike, round_number: int, position: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1) that depend on key, round and position only.

    Parameters
    ----------
    key, position : array_like of int
        Broadcast against each other; see :func:`agent_key`. A position is that of an entity within
        its agent.
    round_number : int
    """
    from consilience.latent_regression.kernels import compiled

    keys, places = np.broadcast_arrays(
        np.asarray(key, dtype=np.uint64), np.asarray(position, dtype=np.uint64)
    )
    out = np.empty(keys.size)
    compiled.uniforms(keys.ravel(), np.uint64(round_number), places.ravel(), out)
    return out.reshape(keys.shape)
