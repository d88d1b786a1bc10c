"""The rows of a site as the study wants them, and the views of them that are shown.

Which rows a view holds, all halves and folds, and the draws of forests follow from a digest of the
rows, which nobody else has: models and losses of many known sets of rows would be equations in
these rows. Where a policy protects no record they come from the public stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.methods.base import SiteContext, SiteData, State
from consilience.methods.meta_clustering.messages import Settings
from consilience.numerics.random import stream
from consilience.wire.disclosure import Limits

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

RESAMPLE_SHARE = 0.8


@dataclass(frozen=True)
class View:
    """Rows that take part in one analysis, and those held out of it."""

    rows: IntArray
    held: IntArray


def views(n: int, settings: Settings, seed: int, least: int = 1) -> list[View]:
    """Main view, folds, resamples.

    Parameters
    ----------
    n : int
    settings : Settings
    seed : int
    least : int
        Rows that a view leaves out at least: the difference of two fits is a statistic of these
        rows. A site with fewer shows its main view again, and measures no gain.
    """
    everything = np.arange(n, dtype=np.int64)
    main = View(everything, everything[:0])
    found = [main]
    if settings.gain_folds:
        order = stream(seed, "folds").permutation(n)
        for part in np.array_split(order, settings.gain_folds):
            fold = View(np.setdiff1d(everything, part), np.sort(part))
            found.append(fold if n // settings.gain_folds >= least else main)
    size = int(RESAMPLE_SHARE * n)
    for i in range(settings.stability_runs):
        chosen = stream(seed, "resample", i).permutation(n)[:size]
        found.append(View(np.sort(chosen), everything[:0]) if n - size >= least else main)
    return found


def shown_views(data: SiteData, s: Settings, state: State, site: SiteContext) -> list[View]:
    """Views as this site shows them."""
    protected = site.limits.min_records > 1
    least = max(site.limits.min_records, data.features.shape[1] + 2) if protected else 1
    found = views(data.n_rows, s, int(state["seed"]), least)
    if not s.levels:
        return found
    y = rows_of(data, s).y
    return [v if not has_rare_level(y[v.rows], s, site.limits) else found[0] for v in found]


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns and response as numbers, and what standardised them."""

    x: FloatArray
    y: FloatArray
    standards: FloatArray | None


def rows_of(data: SiteData, settings: Settings) -> Rows:
    """Take the rows as the study wants them.

    Raises
    ------
    DataError
        No response, or one that does not fit the declared levels.
    """
    if data.target is None:
        raise DataError("the study names no target column")
    if settings.levels:
        positions = {level: i for i, level in enumerate(settings.levels)}
        try:
            y = np.array([positions[str(value)] for value in data.target], dtype=float)
        except KeyError:
            raise DataError("the target holds values outside its declared levels") from None
    else:
        y = np.asarray(data.target, dtype=float)
    if not settings.standardize:
        return Rows(data.features, y, None)
    both = np.column_stack([data.features, y])
    centre, scale = both.mean(axis=0), both.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    if settings.levels:
        centre[-1], scale[-1] = 0.0, 1.0
    scaled = (both - centre) / scale
    return Rows(scaled[:, :-1], scaled[:, -1], np.stack([centre, scale]))


def has_rare_level(y: FloatArray, s: Settings, limits: Limits) -> bool:
    """Whether some level of the response is there, but in too few rows.

    A classifier that is pulled to such rows tells of them.
    """
    if not s.levels or limits.min_records <= 1:
        return False
    counts = np.bincount(y.astype(np.int64), minlength=len(s.levels))
    return bool(((counts > 0) & (counts < limits.min_records)).any())


def drawing_seed(data: SiteData, site: SiteContext) -> int:
    """Seed of halves, folds, resamples and estimators.

    Where records are protected it is a digest of the rows themselves: nobody else can tell it, and
    the same rows give the same draws in every run, so that asking again tells nothing new.
    """
    if site.limits.min_records <= 1:
        return int(site.rng.integers(2**63 - 1))
    sealed = hashlib.sha256(b"meta-clustering draws")
    for part in (data.features, np.asarray(data.target)):
        sealed.update(str(part.dtype).encode() + np.ascontiguousarray(part).tobytes())
    return int.from_bytes(sealed.digest()[:8], "little") >> 1


def without_thin(
    x: FloatArray, names: Sequence[str], limits: Limits
) -> tuple[FloatArray, list[str]]:
    """Make columns constant in which all but a few rows, or all, have one value.

    A model that leans on such a column tells of these few rows; that it has none is told no more
    than that it has few.
    """
    thin = []
    kept = x
    for j, name in enumerate(names):
        common = np.unique(x[:, j], return_counts=True)[1].max(initial=0)
        if len(x) - common < limits.min_records:
            kept = kept.copy() if kept is x else kept
            kept[:, j] = np.median(x[:, j])
            thin.append(name)
    return kept, thin
