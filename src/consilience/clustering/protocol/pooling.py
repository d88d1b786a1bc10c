"""What the coordinator makes of the sites' replies: pooled figures, names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.clustering.kernels.label_patterns import PatternTable
from consilience.clustering.phases import bootstrap_pairs
from consilience.clustering.protocol.messages import Profile


def number_by_bic(
    scores: Mapping[str, FloatArray],
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Number of classes with the smallest sum over sites of their criteria.

    A site that could score one number alone compares nothing, and would decide for everybody.

    Parameters
    ----------
    scores : mapping of str to (c,) array
        BIC of 1, 2, ... classes at each site that voted; NaN where it could not tell.

    Returns
    -------
    number : int
        Among those that every site scored, ties to the smaller; 0 if there is none.
    gaps : tuple of str
        Sites that did not score every number.
    left_out : tuple of str
        Sites that scored fewer than two.
    """
    left_out = tuple(site for site in sorted(scores) if np.isfinite(scores[site]).sum() < 2)
    heard = [site for site in sorted(scores) if site not in left_out]
    gaps = tuple(site for site in heard if np.isnan(scores[site]).any())
    total = np.sum([scores[site] for site in heard], axis=0) if heard else np.empty(0)
    if not np.isfinite(total).any():
        return 0, gaps, left_out
    return int(np.nanargmin(total)) + 1, gaps, left_out


def stability(
    profiles: Mapping[str, Profile],
    built: list[bool],
    tables: Mapping[str, PatternTable],
    n_clusters: int,
) -> dict[str, Any]:
    """Pool the agreements of the pairs whose four ensembles could all be built.

    Parameters
    ----------
    profiles : mapping of str to Profile
    built : list of bool
        Whether each ensemble of the pairs could be built.
    tables : mapping of str to PatternTable
        Counts of the main ensemble by site.
    n_clusters : int
    """
    usable = [i for i in range(len(built) // 4) if all(built[4 * i : 4 * i + 4])]
    voiced = {s: p for s, p in profiles.items() if s in tables}
    if not usable or not voiced:
        return {}
    sizes = np.array([tables[s].n_subjects for s in voiced], dtype=float)
    said = {
        name: np.array(
            [[_entry(getattr(p, name).value, i) for p in voiced.values()] for i in usable]
        )
        for name in ("agreement", "null_agreement", "alone_agreement", "ported_agreement")
    }
    pooled = bootstrap_pairs.pool(said["agreement"], said["null_agreement"], sizes)
    if pooled is None:
        return {}
    alone, ported = (
        bootstrap_pairs.weighted(said[name], sizes)
        for name in ("alone_agreement", "ported_agreement")
    )
    by_site = {}
    for j, site in enumerate(voiced):
        own = said["agreement"][:, j]
        by_site[site] = float(np.nanmean(own)) if (~np.isnan(own)).any() else float("nan")
    return {
        **dataclasses.asdict(pooled),
        "n_clusters": n_clusters,
        "alone_mean": float(alone.mean()) if len(alone) else float("nan"),
        "ported_mean": float(ported.mean()) if len(ported) else float("nan"),
        "by_site": by_site,
    }


def _entry(values: tuple[float, ...], i: int) -> float:
    """Agreement of a pair; NaN where the site said nothing."""
    return float(values[i]) if i < len(values) else float("nan")


def pooled_means(means: dict[str, FloatArray], sizes: dict[str, NDArray[np.int64]]) -> FloatArray:
    """Mean over sites weighted by class sizes; NaN where no site sent one."""
    total: Any = 0.0
    weight: Any = 0.0
    for site in sorted(means):
        if site in sizes:
            present = ~np.isnan(means[site])
            w = sizes[site][:, None] * present
            total = total + np.where(present, means[site], 0.0) * w
            weight = weight + w
    return np.asarray(np.where(weight > 0, total / np.maximum(weight, 1), np.nan))


def model_names(owners: tuple[str, ...]) -> tuple[str, ...]:
    """Name each model by its site, numbered where a site has several."""
    names = []
    for i, owner in enumerate(owners):
        number = owners[:i].count(owner) + 1
        names.append(owner if owners.count(owner) == 1 else f"{owner}/{number}")
    return tuple(names)
