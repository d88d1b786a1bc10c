"""Merging of latent classes while the marginal likelihood rises, or down to a number.

A merger gains what the classes' events are likelier under one regression than under two; labels
that were drawn fit their classes, so it costs the entropy of the labels between the two.

Source: not in arXiv 2206.10783. Derivation: ``docs/proofs/latent-classes.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.latent_class_model import (
    coefficient_posterior,
    each_share,
)

if TYPE_CHECKING:
    from consilience.latent_regression.kernels.latent_class import Totals

Entropies = Callable[[IntArray, int | None], FloatArray]
"""Entropies of labels between classes that merge, see `label_entropies`."""

_ENTRIES_PER_CHUNK = 1 << 21
_RESIDUE = 0.5  # a smoothed class with less than half an entity is what a class has left behind


def pair_entropies(probabilities: FloatArray) -> FloatArray:
    """Uncertainty of the labels between each two classes, which is gone when they become one.

    Parameters
    ----------
    probabilities : (E, K) array
        Of each entity's label.

    Returns
    -------
    (K, K) array
        ``sum_e -(p_a log p_a/(p_a + p_b) + p_b log p_b/(p_a + p_b))``; 0 on the diagonal.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    k = p.shape[1]
    found = np.zeros((k, k))
    plain = _p_log_p(p).sum(axis=0)
    for a in range(k):
        both = _p_log_p(p[:, [a]] + p[:, a + 1 :]).sum(axis=0)
        found[a, a + 1 :] = found[a + 1 :, a] = np.maximum(both - plain[a] - plain[a + 1 :], 0.0)
    return found


def label_entropies(probabilities: FloatArray) -> Entropies:
    """Entropies between classes that merge, from the labels' probabilities (E, K).

    Returns
    -------
    callable
        Of the class that each of the K has become, (K,), and of one class or None: the entropies of
        that class with all, (K,), or of all pairs, (K, K).
    """
    p = np.asarray(probabilities, dtype=np.float64).T

    def between(group: IntArray, row: int | None = None) -> FloatArray:
        """Entropies by the labels' probabilities, added up over what has become one class."""
        merged = np.zeros_like(p)
        np.add.at(merged, group, p)
        if row is None:
            return pair_entropies(merged.T)
        alone = _p_log_p(merged).sum(axis=1)
        one = _p_log_p(merged + merged[row]).sum(axis=1) - alone - alone[row]
        one[row] = 0.0
        return np.asarray(np.maximum(one, 0.0))

    return between


def expected_entropies(totals: Totals, sigma2: float, delta2: float) -> Entropies:
    """Entropies between classes that merge, as they are to be expected from the sums alone.

    Returns
    -------
    callable
        As `label_entropies`.

    Notes
    -----
    For an entity of class a with the mean products S of its class, the log likelihood ratio of a
    against b is ``N(d/2, d)`` with ``d = (m_a - m_b)' S (m_a - m_b) / sigma2``; the entropy of the
    two labels is integrated over it (Gauss-Hermite), with the numbers of entities as prior. That
    entities differ in size, and agents in shares, is passed over.
    """
    k = totals.n_classes
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    shares = weights / weights.sum()

    def between(group: IntArray, row: int | None = None) -> FloatArray:
        """Entropies that are to be expected between classes with these sums."""
        merged = totals.merged(group, k)
        _, mean, _ = coefficient_posterior(merged.products, merged.cross, sigma2, delta2)
        counts = np.maximum(np.asarray(merged.counts, dtype=np.float64), 0.0)
        some = np.where(counts > 0, counts, 1.0)
        each = merged.products / some[:, None, None]

        def one_way(a: IntArray, b: IntArray) -> FloatArray:
            """Entropies of the labels of the entities of `a`, against `b`."""
            step = mean[a] - mean[b]
            distance = np.maximum(np.einsum("nf,nfg,ng->n", step, each[a], step), 0.0) / sigma2
            ratio = distance[:, None] / 2 + np.sqrt(distance)[:, None] * nodes
            ratio += np.log(some[a] / some[b])[:, None]
            p = 1.0 / (1.0 + np.exp(-np.clip(ratio, -700.0, 700.0)))
            entropy = -(_p_log_p(p) + _p_log_p(1.0 - p)) @ shares
            return np.asarray(np.where((a != b) & (counts[b] > 0), counts[a] * entropy, 0.0))

        every = np.arange(k)
        if row is not None:
            same = np.full(k, row)
            return one_way(same, every) + one_way(every, same)
        a, b = np.divmod(np.arange(k * k), k)
        all_ways = one_way(a, b).reshape(k, k)
        return np.asarray(all_ways + all_ways.T)

    return between


def _p_log_p(p: FloatArray) -> FloatArray:
    return np.asarray(p * np.log(np.where(p > 0, p, 1.0)))


def merge_gain(
    totals: Totals, sigma2: float, delta2: float, alpha: float, *, partition: bool = True
) -> FloatArray:
    """Gain in log probability when two classes become one.

    Parameters
    ----------
    totals : Totals
        K classes.
    sigma2, delta2 : float
        Variance of the noise and of a coefficient.
    alpha : float
        ``psi ~ Dir(alpha/K, .., alpha/K)``, with K the number of rows of `totals`.
    partition : bool
        Add the gain of `log_partition` to that of `log_marginal`. Without it labels that were
        fitted to superfluous classes look like evidence for them: see Notes.

    Returns
    -------
    (K, K) array
        Symmetric; ``-inf`` on the diagonal, 0 for a class without entities.

    Raises
    ------
    ParameterError
        A variance or alpha that is not positive.
    DataError
        Totals that are no sums of outer products.

    Notes
    -----
    The prior over agents, ``theta_i ~ Dir(beta psi)``, has no closed form in the totals; the
    entities count as draws from psi.  Two halves of one class share n events and N entities at
    random: the data gain about ``F/2 log n`` by a merger, the partition ``N log 2``. Sampled labels
    are not random but fit, which costs up to as much as the partition gains.
    """
    state = _Groups(totals, sigma2, delta2, alpha if partition else None)
    k = len(state.counts)
    first, second = np.triu_indices(k, 1)
    gains = np.full((k, k), -np.inf)
    found = state.gains(first, second) + state.gain_of_labelling(first, second)
    gains[first, second] = gains[second, first] = found
    return gains


def merge_down(
    totals: Totals,
    sigma2: float,
    delta2: float,
    *,
    n_classes: int | None,
    alpha: float,
    partition: bool = True,
    entropies: Entropies | None = None,
) -> tuple[IntArray, list[tuple[int, float]]]:
    """Merge classes, always the two that gain most.

    Parameters
    ----------
    totals : Totals
        K classes.
    sigma2, delta2 : float
        Variance of the noise and of a coefficient.
    n_classes : int, optional
        Stop at this number, whatever the gains. Without it mergers are made down to a single class
        and undone to where the log probability was highest.
    alpha, partition
        See `merge_gain`. alpha/K stays as it was with the K classes of `totals`.
    entropies : callable, optional
        `label_entropies` or `expected_entropies`. The log probability of events and
        drawn labels plus the entropy of the labels bounds that of the events (its mean is the
        variational bound), so a merger costs the entropy between the two. Without it classes that
        overlap look superfluous.

    Returns
    -------
    mapping : (K,) array of int64
        New class of each old one, in descending order of their entities (ties by the first old
        class in them); there are ``mapping.max() + 1``. A class with less than half an entity, of
        smoothed totals the rest of one that has been left, goes to the class where it fits best.
    path : list of (int, float)
        Classes after each merger that was made and kept, and its gain.

    Raises
    ------
    ParameterError
        `n_classes` below 1, or as `merge_gain`.
    DataError
        As `merge_gain`.
    """
    if n_classes is not None and n_classes < 1:
        raise ParameterError.of("n_classes", "at least 1", n_classes)
    state = _Groups(totals, sigma2, delta2, alpha if partition else None)
    k = len(state.counts)
    lost = np.zeros((k, k)) if entropies is None else entropies(state.group, None)
    first, second = np.triu_indices(k, 1)
    gains = np.full((k, k), -np.inf)
    gains[first, second] = state.gains(first, second) - lost[first, second]
    gains[second, first] = gains[first, second]

    def join(a: int, b: int) -> None:
        """Put b into a, and bring what mergers gain up to date."""
        state.join(a, b)
        gains[b] = gains[:, b] = -np.inf
        others = state.alive[state.alive != a]
        if entropies is not None:
            lost[a] = entropies(state.group, a)
        gains[a, others] = state.gains(np.full(len(others), a), others) - lost[a, others]
        gains[others, a] = gains[a, others]

    for small in np.flatnonzero(state.counts < _RESIDUE):
        into = int(np.argmax(np.where(state.counts >= _RESIDUE, gains[small], -np.inf)))
        if into != small:  # it is where every class is empty
            join(into, int(small))
    path: list[tuple[int, float]] = []
    mappings = [state.group.copy()]
    least = 1 if n_classes is None else n_classes
    while len(state.alive) > least:
        a, b = divmod(int(np.argmax(gains)), k)  # symmetric: the first maximum has a < b
        gain = float(gains[a, b] + state.gain_of_labelling(np.array([a]), np.array([b]))[0])
        join(a, b)
        path.append((len(state.alive), gain))
        mappings.append(state.group.copy())
    kept = len(path)
    if n_classes is None:
        kept = int(np.argmax(np.cumsum([0.0, *(gain for _, gain in path)])))
    return _renumbered(mappings[kept], np.asarray(totals.counts, dtype=np.float64)), path[:kept]


class _Groups:
    """Classes that are joined one after the other, with what the gain of a pair needs."""

    def __init__(self, totals: Totals, sigma2: float, delta2: float, alpha: float | None) -> None:
        self.sigma2, self.delta2 = sigma2, delta2
        self.products = np.array(totals.products, dtype=np.float64)
        self.cross = np.array(totals.cross, dtype=np.float64)
        self.counts = np.array(totals.counts, dtype=np.float64)
        k = len(self.counts)
        if k == 0:
            raise DataError("there is no class to merge")
        self.each = None if alpha is None else each_share(alpha, k)
        self.group = np.arange(k)
        self.alive = np.arange(k)
        self.scaled, self.mean, self.log_det = coefficient_posterior(
            self.products, self.cross, sigma2, delta2
        )

    def gains(self, first: IntArray, second: IntArray) -> FloatArray:
        """Gain of each pair, less what depends on the number of classes alone."""
        f = self.cross.shape[1]
        size = max(1, _ENTRIES_PER_CHUNK // (f * f))
        parts = [
            self._of_data(first[i : i + size], second[i : i + size])
            for i in range(0, len(first), size)
        ]
        found = np.concatenate([np.zeros(0), *parts])
        if self.each is not None:
            from scipy.special import gammaln

            a, b = self.counts[first], self.counts[second]
            found += gammaln(self.each + a + b) + gammaln(self.each)
            found -= gammaln(self.each + a) + gammaln(self.each + b)
        return np.asarray(found)

    def gain_of_labelling(self, first: IntArray, second: IntArray) -> FloatArray:
        """Gain of the number of labellings that are one partition."""
        used = int(np.count_nonzero(self.counts))
        both = (self.counts[first] > 0) & (self.counts[second] > 0)
        if self.each is None:
            return np.zeros(len(first))
        return np.where(both, -math.log(len(self.counts) - max(used, 1) + 1), 0.0)

    def join(self, a: int, b: int) -> None:
        """Put everything of b into a."""
        for sums in (self.products, self.cross, self.counts):
            sums[a] += sums[b]
            sums[b] = 0.0
        self.group[self.group == b] = a
        self.alive = self.alive[self.alive != b]
        one = coefficient_posterior(self.products[[a]], self.cross[[a]], self.sigma2, self.delta2)
        self.scaled[a], self.mean[a], self.log_det[a] = one[0][0], one[1][0], one[2][0]

    def _of_data(self, a: IntArray, b: IntArray) -> FloatArray:
        _, mean, log_det = coefficient_posterior(
            self.products[a] + self.products[b],
            self.cross[a] + self.cross[b],
            self.sigma2,
            self.delta2,
        )
        # squared distances from the common mean: the large sums of squares cancel on paper
        away = -np.einsum("pf,pf->p", mean, mean)
        for side in (a, b):
            step = mean - self.mean[side]
            away += np.einsum("pf,pfg,pg->p", step, self.scaled[side], step)
        return np.asarray(-0.5 * (away / self.delta2 + log_det - self.log_det[a] - self.log_det[b]))


def _renumbered(group: IntArray, counts: FloatArray) -> IntArray:
    """Number groups by descending counts, ties by their first member."""
    names, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    sizes = np.bincount(inverse, weights=counts, minlength=len(names))
    order = np.lexsort((first, -sizes))
    place = np.empty(len(names), dtype=np.int64)
    place[order] = np.arange(len(names))
    return place[inverse]
