"""Sites whose models are in play, and what the coordinator reads off their replies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.kernels.site_comparison import Pooled
from consilience.collaborators.protocol.decide import Seen, shrunken
from consilience.collaborators.protocol.messages import CutLosses, Losses, Selected
from consilience.collaborators.protocol.site import MIN_ROWS
from consilience.exceptions import QuorumError
from consilience.protocol.phases.site_moments import SiteMoments

NOT_COMPARABLE = (
    "no other site can be compared with it: too few rows where their predictors overlap, or one "
    "row dominates the losses"
)
N_REFERENCE = 300
"""Points on which models are compared where they do not travel."""


@dataclass(frozen=True, eq=False)
class Partners:
    """Sites whose models are in play, in name order.

    Attributes
    ----------
    sites : tuple of str
    replies : dict of str to Selected
    sizes : (L,) int array
    variance, own : (L,) arrays
        Mean loss of the best constant, and of the site's own method, cross-fitted.
    means : (L, p) array
    pooled : Pooled
    models : tuple of tuple of models
        By site, by view; empty where models do not travel.
    position : (L,) int array
        Place of each site among the owners of the models that were sent round.
    n_owners : int
    """

    sites: tuple[str, ...]
    replies: dict[str, Selected]
    sizes: IntArray
    variance: FloatArray
    own: FloatArray
    means: FloatArray
    pooled: Pooled
    models: tuple[tuple[dict[str, Any], ...], ...]
    position: IntArray
    n_owners: int

    def only(self, kept: Sequence[int]) -> Partners:
        """Those that can be placed; `position` tells where they were among all owners."""
        rows = list(kept)
        return dataclasses.replace(
            self,
            sites=tuple(self.sites[i] for i in rows),
            sizes=self.sizes[rows],
            variance=self.variance[rows],
            own=self.own[rows],
            means=self.means[rows],
            models=tuple(self.models[i] for i in rows),
            position=self.position[rows],
        )

    def spread(self, labels: IntArray) -> IntArray:
        """Labels (..., L) of these sites among all owners, -1 for the others."""
        wide = np.full((*labels.shape[:-1], self.n_owners), -1, dtype=np.int64)
        wide[..., self.position] = labels
        return wide


def reference_points(rng: np.random.Generator, moments: SiteMoments) -> FloatArray:
    """Points from a normal distribution with the pooled moments, (N_REFERENCE, p).

    Raises
    ------
    QuorumError
        No site has enough rows.
    """
    sites = [s for s in moments.n if moments.n[s]]
    if not sites:
        raise QuorumError("no site has enough rows")
    n = np.array([moments.n[s] for s in sites], dtype=float)[:, None]
    means = np.stack([moments.means[s] for s in sites])
    spreads = np.stack([moments.spreads[s] for s in sites])
    with np.errstate(invalid="ignore"):
        known = np.isfinite(means)
        rows = np.maximum((n * known).sum(axis=0), 1)
        mean = (n * np.nan_to_num(means)).sum(axis=0) / rows
        between = np.where(known, (np.nan_to_num(means) - mean) ** 2, 0.0)
        variance = (n * (np.nan_to_num(spreads) + between)).sum(axis=0) / rows
    return np.asarray(mean + np.sqrt(variance) * rng.standard_normal((N_REFERENCE, means.shape[1])))


def seen_by(replies: dict[str, Losses], sites: Sequence[str], view: int) -> Seen:
    """Matrices of one view over all owners; NaN in the columns of sites that did not answer."""
    n_sites = len(sites)
    parts = {}
    for name in ("excess", "variance", "effective", "raw"):
        matrix = np.full((n_sites, n_sites), np.nan)
        for j, site in enumerate(sites):
            if site in replies:
                matrix[:, j] = np.asarray(getattr(replies[site], name).value)[view]
        parts[name] = matrix
    return Seen(**parts)


def placeable(
    sites: tuple[str, ...],
    replies: dict[str, Losses],
    seen: Seen,
    left_out: dict[str, str],
    rule: str,
) -> list[int]:
    """Sites that can be placed: with an answer, and comparable with somebody.

    Where no pair at all can be compared, all sites stay, each alone.
    """
    answered = [i for i, site in enumerate(sites) if site in replies]
    if len(answered) < 2:
        return answered
    if rule == "spectral":
        own = np.isfinite(np.diagonal(seen.raw))
        usable = np.isfinite(seen.raw) & own[:, None] & own[None, :]
    else:
        enough = np.nan_to_num(seen.effective) >= MIN_ROWS
        usable = enough & np.isfinite(seen.excess) & np.isfinite(seen.variance)
    pairs = usable & usable.T
    met = [i for i in answered if any(pairs[i, j] for j in answered if j != i)]
    if not met:
        return answered
    for i in answered:
        if i not in met:
            left_out[sites[i]] = NOT_COMPARABLE
    return met


def members_of(partners: Partners, labels: IntArray) -> dict[str, tuple[tuple[Any, ...], IntArray]]:
    """Models of each site's group, with their rows."""
    found = {}
    for i, site in enumerate(partners.sites):
        group = np.flatnonzero(labels == labels[i])
        models = tuple(partners.models[g][0] for g in group)
        found[site] = (models, partners.sizes[group])
    return found


def intercepts(
    replies: dict[str, Losses], sites: Sequence[str], n_folds: int
) -> tuple[FloatArray, float]:
    """Shrunken intercepts (folds, L), and their spread."""
    shifts = np.zeros((n_folds, len(sites)))
    spreads = []
    for w in range(n_folds):
        mean = np.array([float(np.ravel(replies[x].shift.value[w])[0]) for x in sites])
        variance = np.array([float(np.ravel(replies[x].shift_error.value[w])[0]) for x in sites])
        shifts[w], spread = shrunken(mean, variance)
        spreads.append(spread)
    return shifts, float(np.sqrt(np.mean(np.square(spreads)))) if spreads else float("nan")


def by_held_out_loss(
    replies: Mapping[str, CutLosses], partners: Partners, most: int
) -> tuple[int, FloatArray]:
    """Choose the number of groups by the loss of the groups' averages on held-out rows.

    Returns
    -------
    chosen : int
        The number with the smallest loss, where it beats one group by more than 1.645 of the
        difference's standard errors; else 1.
    losses : (most,) array
        Mean loss for 1, 2, ... groups; NaN where no site told it.
    """
    total, gain, spread, rows = (np.zeros(most) for _ in range(4))
    for i, site in enumerate(partners.sites):
        if site not in replies:
            continue
        reply, n = replies[site], float(partners.sizes[i])
        parts = [
            np.asarray(part.value)
            for part in (reply.losses, reply.against_one, reply.against_one_error)
        ]
        known = np.isfinite(parts).all(axis=0)
        total += np.where(known, parts[0], 0.0) * n
        gain += np.where(known, parts[1], 0.0) * n
        spread += np.where(known, parts[2], 0.0) * n**2
        rows += known * n
    losses = np.where(rows > 0, total / np.maximum(rows, 1), np.nan)
    if np.isnan(losses).all():
        return 1, losses
    best = int(np.nanargmin(losses))
    return (best + 1 if gain[best] > 1.645 * np.sqrt(spread[best]) else 1), losses
