"""The rows of a site as the study wants them, and the views of them that are shown.

Which rows a view holds, all halves and folds, and the draws of forests follow from a digest of the
rows, which nobody else has: models and losses of many known sets of rows would be equations in
these rows. Where a policy protects no record they come from the public stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.protocol.messages import Settings
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State
from consilience.protocol.phases.holdout import class_codes, uniform
from consilience.wire.disclosure import Limits

RESAMPLE_SHARE = 0.8
FOLDS = 3
"""Folds of a site that protects records, at most."""


@dataclass(frozen=True)
class View:
    """Rows that take part in one analysis, and those held out of it."""

    rows: IntArray
    held: IntArray


def shown_views(data: SiteData, s: Settings, state: State, site: SiteContext) -> list[View]:
    """Main view, folds and resamples, as this site shows them.

    Where records are protected all follow from one deal of the table for all runs, and folds are
    thirds however many are asked for: a fit of other folds would differ from one of these by a few
    rows. The difference of two fits is a statistic of the rows between them: where these would be
    fewer than `min_records`, or than a linear model has parameters, or would leave a rare level,
    the main view is shown again, and no gain is measured.
    """
    n, seed, protected = data.n_rows, int(state["seed"]), site.limits.min_records > 1
    least = max(site.limits.min_records, data.features.shape[1] + 2) if protected else 1
    fold, kept = np.empty(n, dtype=np.int64), []
    if protected:
        fold = (FOLDS * uniform(data, "folds")).astype(np.int64)
        kept = [uniform(data, "resample", i) < RESAMPLE_SHARE for i in range(s.stability_runs)]
    else:
        for f, part in enumerate(
            np.array_split(stream(seed, "folds").permutation(n), max(s.gain_folds, 1))
        ):
            fold[part] = f
        for i in range(s.stability_runs):
            mask = np.zeros(n, dtype=bool)
            mask[stream(seed, "resample", i).permutation(n)[: int(RESAMPLE_SHARE * n)]] = True
            kept.append(mask)
    whole = np.bincount(fold).min(initial=n) >= least
    y = standardised(data, s).y if s.levels else np.empty(n)
    main = View(np.arange(n, dtype=np.int64), np.empty(0, dtype=np.int64))
    found = [main]
    for v, chosen in enumerate([*(fold != f for f in range(s.gain_folds)), *kept]):
        rows, held = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        shown = whole if v < s.gain_folds else len(held) >= least
        shown &= len(held) > 0 and not has_rare_level(y[rows], s, site.limits)
        gone = held if v < s.gain_folds else main.held
        found.append(View(rows, gone) if shown else main)
    return found


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
    """Whether too few rows have some level of the response, or nobody where records are protected.

    A classifier that is pulled to such rows tells of them; and to take part without a level that
    nobody has would tell just that.
    """
    if not s.levels or limits.min_records <= 1:
        return False
    counts = np.bincount(y.astype(np.int64), minlength=len(s.levels))
    return bool((counts < limits.min_records).any())
