"""The rows of a site as the study wants them, and the views of them that are shown.

Which rows a view holds, all halves and folds, and the draws of forests follow from a digest of the
rows, which nobody else has: models and losses of many known sets of rows would be equations in
these rows. Where a policy protects no record they come from the public stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.methods.base import SiteContext, SiteData, State
from consilience.methods.meta_clustering.messages import Settings
from consilience.methods.phases.holdout import uniform
from consilience.methods.phases.protected_rows import class_codes, with_common_levels
from consilience.numerics.random import stream
from consilience.wire.disclosure import Limits

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

RESAMPLE_SHARE = 0.8
FOLDS = 3
"""Folds of a site that protects records, at most."""


@dataclass(frozen=True)
class View:
    """Rows that take part in one analysis, and those held out of it."""

    rows: IntArray
    held: IntArray


def views(n: int, settings: Settings, seed: int) -> list[View]:
    """Main view, folds and resamples where no record is protected.

    Parameters
    ----------
    n : int
    settings : Settings
    seed : int
    """
    everything = np.arange(n, dtype=np.int64)
    found = [View(everything, everything[:0])]
    if settings.gain_folds:
        order = stream(seed, "folds").permutation(n)
        for part in np.array_split(order, settings.gain_folds):
            found.append(View(np.setdiff1d(everything, part), np.sort(part)))
    size = int(RESAMPLE_SHARE * n)
    for i in range(settings.stability_runs):
        chosen = stream(seed, "resample", i).permutation(n)[:size]
        found.append(View(np.sort(chosen), everything[:0]))
    return found


def protected_views(data: SiteData, settings: Settings, least: int) -> list[View]:
    """The same where records are protected: of one deal of the table for all runs.

    Folds are thirds of the rows, however many are asked for; a fit of other folds would differ from
    one of these by a few rows.

    Parameters
    ----------
    data : SiteData
    settings : Settings
    least : int
        Rows that a view leaves out at least, and the others: the difference of two fits is a
        statistic of these rows. Where it would be fewer the main view is shown again, and no gain
        is measured.
    """
    everything = np.arange(data.n_rows, dtype=np.int64)
    main = View(everything, everything[:0])
    third = (FOLDS * uniform(data, "folds")).astype(np.int64)
    whole = np.bincount(third, minlength=FOLDS).min() >= least
    found = [main]
    for fold in range(settings.gain_folds):
        held = np.flatnonzero(third == fold)
        shown = whole and len(held)
        found.append(View(np.flatnonzero(third != fold), held) if shown else main)
    for i in range(settings.stability_runs):
        chosen = np.flatnonzero(uniform(data, "resample", i) < RESAMPLE_SHARE)
        found.append(View(chosen, main.held) if data.n_rows - len(chosen) >= least else main)
    return found


def shown_views(data: SiteData, s: Settings, state: State, site: SiteContext) -> list[View]:
    """Views as this site shows them."""
    if site.limits.min_records <= 1:
        return views(data.n_rows, s, int(state["seed"]))
    found = protected_views(data, s, max(site.limits.min_records, data.features.shape[1] + 2))
    if not s.levels:
        return found
    y = standardised(data, s).y
    return [v if not has_rare_level(y[v.rows], s, site.limits) else found[0] for v in found]


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns and response as numbers, and what standardised them."""

    x: FloatArray
    y: FloatArray
    standards: FloatArray | None


def standardised(data: SiteData, settings: Settings) -> Rows:
    """Rows as numbers, on the scale that the study wants.

    Raises
    ------
    DataError
        No response, or one that does not fit the declared levels.
    """
    if data.target is None:
        raise DataError("the study names no target column")
    if settings.levels:
        y = class_codes(data, settings.levels).astype(float)
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
    return bool(s.levels) and not with_common_levels(y, len(s.levels), limits).all()
