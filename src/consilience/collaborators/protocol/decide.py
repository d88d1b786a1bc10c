"""What the coordinator makes of the sites' numbers: pure functions of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.kernels.meta_clustering import cluster, spectral
from consilience.collaborators.kernels.site_comparison import (
    PairwiseTests,
    Pooled,
    detectable,
    pairwise_tests,
    power,
    shrunk_covariance,
    source_dissimilarity,
)
from consilience.collaborators.protocol.result import ENOUGH_POWER
from consilience.protocol.phases.site_moments import SiteMoments


@dataclass(frozen=True, eq=False)
class Seen:
    """Losses of all models at all sites, for one view.

    Attributes
    ----------
    excess, variance, effective, raw : (L, L) arrays
        Entry (i, j): model of site i on the rows of site j; NaN where it is not known.
    """

    excess: FloatArray
    variance: FloatArray
    effective: FloatArray
    raw: FloatArray

    def only(self, sites: Sequence[int]) -> Seen:
        """Restrict to some sites."""
        cells = np.ix_(list(sites), list(sites))
        return Seen(
            self.excess[cells], self.variance[cells], self.effective[cells], self.raw[cells]
        )


@dataclass(frozen=True, eq=False)
class Decision:
    """Groups of one view, with their evidence.

    Attributes
    ----------
    labels : (L,) int array
    n_clusters : int
    tests : PairwiseTests
    merges : dict
        ``ids``, ``heights`` and ``thresholds``; empty under the spectral rule.
    dissimilarity, eigenvalues : arrays
        Empty under the pairwise rule.
    """

    labels: IntArray
    n_clusters: int
    tests: PairwiseTests
    merges: dict[str, Any]
    dissimilarity: FloatArray
    eigenvalues: FloatArray


def pooled_covariance(moments: SiteMoments, sites: Sequence[str]) -> tuple[FloatArray, Pooled]:
    """Means by site and the pooled covariance within sites, for the overlap weights.

    A column that one of the sites withheld takes no part: its means are 0 for all, as are its rows
    and columns in the inverse.

    Returns
    -------
    means : (L, p) array
    pooled : Pooled
    """
    means = np.stack([moments.means[s] for s in sites])
    p = means.shape[1]
    known = np.flatnonzero(np.isfinite(means).all(axis=0))
    means = np.where(np.isfinite(means).all(axis=0), means, 0.0)
    if not len(known):
        return means, Pooled(np.zeros((p, p)), 0.0, 1.0)
    full = [s for s in sites if s in moments.products]
    if full:
        cells = np.ix_(known, known)
        total = np.zeros((len(known), len(known)))
        freedom = np.zeros_like(total)
        for s in full:
            products = moments.products[s][cells]
            there = np.isfinite(products)
            total += np.where(there, products, 0.0)
            freedom += np.where(there, max(moments.n[s] - 1, 1), 0.0)
        rows = float(freedom.max())
        # Cells that some sites withheld rest on the others; `shrunk_covariance` divides by n - 1.
        covariance = np.where(freedom > 0, total / np.maximum(freedom, 1.0), 0.0)
        found = shrunk_covariance(
            (covariance * rows / (rows + 1))[None], [rows + 1], means[:, known]
        )
    else:
        spreads = np.stack([moments.spreads[s][known] for s in sites])
        found = shrunk_covariance(spreads, [moments.n[s] for s in sites], means[:, known])
    inverse = np.zeros((p, p))
    inverse[np.ix_(known, known)] = found.inverse
    return means, Pooled(inverse, found.trace, found.shrink)


def decide(
    seen: Seen,
    sizes: IntArray,
    variance: FloatArray,
    own_loss: FloatArray,
    *,
    rule: str,
    margin: float,
    scale: Any = "self-tuning",
    n_clusters: int | None = None,
    max_clusters: int | None = None,
    rng: np.random.Generator,
) -> Decision:
    """Group the sites of one view.

    Parameters
    ----------
    seen : Seen
    sizes, variance, own_loss : (L,) arrays
        Rows, mean loss of the best constant prediction and of the own method, by site.
    rule : {"pairwise", "spectral"}
    margin : float
    scale : "self-tuning" or float
    n_clusters, max_clusters : int, optional
    rng : numpy.random.Generator
        Starts of K-means under the spectral rule.
    """
    tests = tests_of(seen, sizes, variance, own_loss, margin)
    if rule == "spectral":
        v = source_dissimilarity(seen.raw, np.diagonal(seen.raw))
        return spectral_decision(v, tests, scale, n_clusters, max_clusters, rng)
    found = cluster(tests.z, n_clusters=n_clusters, max_clusters=max_clusters)
    merges = {
        "ids": found.merges.ids,
        "heights": found.merges.heights,
        "thresholds": found.merges.thresholds,
    }
    return Decision(found.labels, found.n_clusters, tests, merges, np.empty((0, 0)), np.empty(0))


def tests_of(
    seen: Seen, sizes: IntArray, variance: FloatArray, own_loss: FloatArray, margin: float
) -> PairwiseTests:
    """Tests of all pairs of one view."""
    return pairwise_tests(
        seen.excess,
        seen.variance,
        seen.effective,
        sizes,
        variance,
        margin=margin,
        own_loss=own_loss,
    )


def untested(n_sites: int) -> PairwiseTests:
    """No pair was tested."""
    unknown = np.full((n_sites, n_sites), np.nan)
    parts = {f.name: unknown for f in dataclasses.fields(PairwiseTests)}
    return PairwiseTests(**{**parts, "comparable": np.zeros((n_sites, n_sites), dtype=bool)})


def spectral_decision(
    v: FloatArray,
    tests: PairwiseTests,
    scale: Any,
    n_clusters: int | None,
    max_clusters: int | None,
    rng: np.random.Generator,
) -> Decision:
    """Group by the source's rule."""
    grouped = spectral(
        v, rng=rng, scale=scale, n_clusters=n_clusters, max_clusters=max_clusters or 10
    )
    return Decision(grouped.labels, grouped.n_clusters, tests, {}, v, grouped.eigenvalues)


def detection(
    tests: PairwiseTests, variance: FloatArray, own_loss: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What each pair could have shown.

    Returns
    -------
    power : (L, L) array
        Chance of telling two sites apart if each one's model were of no use to the other, that is
        did as badly as the best constant. 0 where a pair cannot be compared.
    detectable : (L, L) array
        Excess loss shown with 80 % power, in shares of the response variance; NaN likewise.
    """
    useful = np.maximum(variance - own_loss, 0.0)
    unit = variance[:, None] + variance[None, :]
    target = useful[:, None] + useful[None, :]
    strength = power(target, tests.margin, tests.standard_error, growth=tests.growth)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = detectable(tests.margin, tests.standard_error, growth=tests.growth) / unit
    usable = tests.comparable & ~np.eye(len(variance), dtype=bool)
    return np.where(usable, strength, 0.0), np.where(usable, least, np.nan)


def status_of(
    n_clusters: int,
    strength: FloatArray,
    useful: Sequence[tuple[FloatArray, FloatArray]],
    sizes: IntArray,
    *,
    rule: str,
    given: bool,
    comparable: NDArray[np.bool_] | None = None,
) -> str:
    """Say what the grouping means.

    Parameters
    ----------
    n_clusters : int
    strength : (L, L) array
        Power of each pair.
    useful : sequence of pairs of (L,) arrays
        By how much ways of predicting beat a constant at each site, with standard errors; NaN where
        it is not known.
    sizes : (L,) int array
    rule : str
    given : bool
        K was given, so more than one group is no finding.
    comparable : (L, L) bool array, optional
        Pairs that could be compared; all unless given.

    Notes
    -----
    "no-signal": over all sites, no way of predicting beats a constant (one-sided 5 %, split among
    the ways).
    "too-few-rows": one group, but fewer than half of the pairs had 80 % power; or no pair could be
    compared at all.
    """
    n_sites = len(sizes)
    if n_sites == 1:
        return "one-site"
    pairs = np.triu_indices(n_sites, 1)
    if rule == "pairwise" and comparable is not None and not comparable[pairs].any():
        return "too-few-rows"
    if n_clusters > 1 and not given:
        # Also where no model beats a constant: sites may differ in their constants.
        return "groups"
    least = float(ndtri(1 - 0.05 / max(1, len(useful))))
    if not any(_beyond(sizes, value, error) > least for value, error in useful):
        return "no-signal"
    if n_clusters > 1:
        return "groups"
    if rule == "spectral":
        return "no-groups"
    return "no-groups" if (strength[pairs] >= ENOUGH_POWER).mean() >= 0.5 else "too-few-rows"


def _beyond(sizes: IntArray, value: FloatArray, error: FloatArray) -> float:
    """Standardised mean over all rows of what is known."""
    known = np.isfinite(value) & np.isfinite(error)
    n = sizes[known].astype(float)
    spread = float(np.sqrt((n**2 * error[known] ** 2).sum()))
    return float((n * value[known]).sum() / spread) if spread > 0 else 0.0


def togetherness(labels: Sequence[IntArray], n_sites: int) -> FloatArray:
    """Share of groupings in which two sites fall together, (L, L)."""
    if not labels:
        return np.full((n_sites, n_sites), np.nan)
    return np.asarray(np.mean([found[:, None] == found[None, :] for found in labels], axis=0))


def shrunken(shift: FloatArray, variance: FloatArray) -> tuple[FloatArray, float]:
    """Shrink the sites' intercepts towards their common mean.

    Parameters
    ----------
    shift, variance : (L,) arrays
        Mean residual of each site under the average model, and its squared standard error; NaN
        where a site withheld it.

    Returns
    -------
    intercepts : (L,) array
        0 where nothing is known.
    spread : float
        tau, by the method of moments (DerSimonian and Laird 1986).
    """
    known = np.isfinite(shift) & (variance > 0)
    if known.sum() < 2:
        return np.zeros(len(shift)), 0.0
    m, v = shift[known], variance[known]
    w = 1 / v
    mean = (w * m).sum() / w.sum()
    excess = (w * (m - mean) ** 2).sum() - (len(m) - 1)
    tau2 = max(0.0, excess / (w.sum() - (w**2).sum() / w.sum()))
    w = 1 / (v + tau2)
    mean = (w * m).sum() / w.sum()
    intercepts = np.zeros(len(shift))
    intercepts[known] = mean + tau2 / (tau2 + v) * (m - mean)
    return intercepts, float(np.sqrt(tau2))
