"""A target with declared levels, by final class and site: shares of its levels.

A share is a count over a count, and "of those who died, none were in class 2" may be about one
person. So levels that few rows of a class have are told together, or not at all, by the rules for
tables of categories (``clustering.kernels.told_tables``, ``docs/proofs/markov-models.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.coded_models import entries_of
from consilience.clustering.kernels.told_tables import HIDDEN
from consilience.clustering.protocol.comparing import ClassTables, class_tables
from consilience.clustering.protocol.local import joined_sums
from consilience.clustering.protocol.messages import Profile
from consilience.protocol.method import Columns, SiteData
from consilience.wire.disclosure import Limits, Released, chances
from consilience.wire.message import Disclosure


def levels_of(columns: Columns | SiteData, target: str | None) -> tuple[str, ...]:
    """Declared levels of the target; none where it is a number, or where there is no target."""
    return tuple(columns.levels.get(target, ())) if target else ()


def released_levels(
    data: SiteData, shown: IntArray, n_classes: int, limits: Limits
) -> tuple[Released, Released]:
    """Shares of the target's levels by class and what each cell shows, both (K, L).

    Parameters
    ----------
    data : SiteData
    shown : (n,) int array
        Class under which each row is told; -1 in none.
    n_classes : int
    limits : Limits

    Returns
    -------
    shares, kinds : Released
        Without rows where the target has no levels, or no class has enough rows.
    """
    levels = levels_of(data, data.target_name)
    if not levels or data.target is None:
        return _told(np.empty((0, 0))), _told(np.empty((0, 0), dtype=np.int64))
    codes = np.full(data.n_rows, -1, dtype=np.int64)
    for code, level in enumerate(levels):
        codes[data.target == level] = code
    entries = entries_of(codes[:, None], "latent-class", (len(levels),))
    # A row without an outcome is in no class here, so that it is not behind any share.
    tables = class_tables(entries, np.where(codes >= 0, shown, -1), n_classes, limits)
    return _told(tables.chances, tables), _told(tables.kinds, tables)


def _told(values: NDArray[Any], tables: ClassTables | None = None) -> Released:
    """Release cells with what the tables rest on; none where no class has enough rows."""
    some = tables is not None and (tables.cells >= 0).any()
    return chances(
        values if some else values[:0],
        cells=np.empty(0, dtype=np.int64) if tables is None else tables.cells,
        sums=joined_sums([] if tables is None else [tables.sums]),
        disclosure=Disclosure.AGGREGATE,
    )


def pooled_levels(
    columns: Columns, profiles: Mapping[str, Profile], sizes: Mapping[str, IntArray]
) -> dict[str, Any]:
    """Fields of the result: shares by class over sites, weighted by class sizes, and by site."""
    levels = levels_of(columns, columns.target)
    if not levels:
        return {}
    by_site, kinds = {}, {}
    total: Any = 0.0
    weight: Any = 0.0
    told: Any = False
    for site in sorted(profiles):
        k = len(sizes[site]) if site in sizes else len(profiles[site].means.value)
        by_site[site], kinds[site] = _filled(profiles[site], k, len(levels))
        if site in sizes:
            present = np.isfinite(by_site[site]).all(axis=1)
            w = (sizes[site] * present)[:, None]
            total = total + np.nan_to_num(by_site[site]) * w
            weight = weight + w
            told = told | ((kinds[site] != HIDDEN) & (w > 0))
    # A level that is a guess at every site is a guess over all of them.
    shares = np.where(told, total / np.maximum(weight, 1), np.nan)
    return {
        "target_levels": levels,
        "target_shares": np.asarray(shares, dtype=np.float64),
        "target_shares_by_site": by_site,
        "target_kinds_by_site": kinds,
    }


def _filled(reply: Profile, k: int, width: int) -> tuple[FloatArray, IntArray]:
    """What a site told, with gaps where it told nothing."""
    shares, kinds = (np.asarray(x.value) for x in (reply.target_shares, reply.target_kinds))
    if not shares.size:
        return np.full((k, width), np.nan), np.zeros((k, width), dtype=np.int64)
    return shares.astype(np.float64), kinds.astype(np.int64)
