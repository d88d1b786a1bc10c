"""What the coordinator makes of the groups' moments: pooled rows, folds, errors of every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.completion.federated_pca.messages import Told, square_of
from consilience.completion.kernels.rest_of_row import Moments, directions_of, rest_of_row_errors
from consilience.exceptions import QuorumError
from consilience.numerics.block_moments import pooled


@dataclass(frozen=True, eq=False)
class Pool:
    """Groups of rows of all sites, over the columns that all of them tell.

    Attributes
    ----------
    sites : tuple of str
        In name order.
    groups : dict of str to tuple of Moments
    columns : (m,) int array
    without : dict of str to tuple of int
        Columns that a site withholds.
    left_out : tuple of str
        Sites without which more columns take part.
    """

    sites: tuple[str, ...]
    groups: Mapping[str, tuple[Moments, ...]]
    columns: IntArray
    without: Mapping[str, tuple[int, ...]]
    left_out: tuple[str, ...]

    def together(self, sites: Sequence[str] = ()) -> Moments:
        """All rows, or those of some sites."""
        return _sum([group for site in (sites or self.sites) for group in self.groups[site]])


def pool_of(told: Mapping[str, Told]) -> Pool:
    """Pool what sites tell; where they tell other columns, whatever costs less gives way.

    Raises
    ------
    QuorumError
        Fewer than two columns are told by every site.
    """
    sites = tuple(sorted(told))
    has = np.stack([~np.isnan(told[site].means.value[0]) for site in sites])
    rows = np.array([float(np.sum(told[site].counts.value)) for site in sites])
    used, columns = _giving_way(has, rows)
    if columns.sum() < 2:
        raise QuorumError(
            "fewer than two columns are told by every site: take columns in which more rows "
            "differ, or leave out the sites that withhold them"
        )
    groups = {site: _groups(told[site], has[b], columns) for b, site in enumerate(sites) if used[b]}
    without = {
        site: tuple(int(j) for j in np.flatnonzero(~has[b]))
        for b, site in enumerate(sites)
        if not has[b].all()
    }
    left_out = tuple(site for b, site in enumerate(sites) if not used[b])
    return Pool(tuple(groups), groups, np.flatnonzero(columns), without, left_out)


def _groups(reply: Told, has: NDArray[np.bool_], columns: NDArray[np.bool_]) -> tuple[Moments, ...]:
    at = np.flatnonzero(columns[has])
    found = []
    for n, mean, line in zip(
        reply.counts.value, reply.means.value, reply.products.value, strict=True
    ):
        square = square_of(line, int(has.sum()))
        found.append(Moments(float(n), np.asarray(mean)[columns], square[np.ix_(at, at)]))
    return tuple(found)


def _giving_way(
    has: NDArray[np.bool_], rows: FloatArray
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which sites and which columns take part, so that every one of these tells every one of those.

    In turn the column, or the site, goes that costs the smaller share (of columns, or of rows) for
    each gap that it closes.
    """
    used, columns = np.ones(len(has), dtype=bool), np.ones(has.shape[1], dtype=bool)
    gaps = ~has
    while gaps.any():
        by_column = gaps.sum(axis=0) * columns.sum()
        share = rows / rows[used].sum()
        only = used.sum() == 1
        by_site = np.where(used & ~np.array(only), gaps.sum(axis=1) / share, 0.0)
        if by_column.max() >= by_site.max():
            gone = by_column == by_column.max()
            columns[gone], gaps[:, gone] = False, False
        else:
            worst = int(np.argmax(by_site))
            used[worst], gaps[worst] = False, False
    return used, columns


# --------------------------------------------------------------------------- folds


def folds_of(pool: Pool, n_splits: int) -> dict[str, tuple[int, ...]]:
    """Fold of each group: those of one site in different ones, and folds of rows as even as can be.

    Returns
    -------
    dict of str to tuple of int
        Folds are numbered from 0, as many as have rows.
    """
    rows = np.zeros(n_splits)
    found: dict[str, tuple[int, ...]] = {}
    order = sorted(pool.sites, key=lambda site: (-len(pool.groups[site]), site))
    for site in order:
        groups = pool.groups[site]
        if len(groups) == n_splits:
            chosen = np.arange(n_splits)
        else:
            chosen = np.argsort(rows, kind="stable")[: len(groups)]
        for fold, group in zip(chosen, groups, strict=True):
            rows[fold] += group.n
        found[site] = tuple(int(fold) for fold in chosen)
    there = {int(fold): k for k, fold in enumerate(np.flatnonzero(rows))}
    return {site: tuple(there[fold] for fold in found[site]) for site in pool.sites}


@dataclass(frozen=True, eq=False)
class Errors:
    """Squared errors of entries predicted from the rest of their row, under models of other folds.

    Attributes
    ----------
    candidates : (A,) int array
        Ranks from 0.
    sums : (S, F, A) array
        By site and fold.
    entries : (S, F) int array
        Entries that they are over; rows of a group count with all their columns.
    natural : bool
        Whether no rank is above the largest that was tried.
    """

    candidates: IntArray
    sums: FloatArray
    entries: IntArray
    natural: bool


def errors_of(pool: Pool, folds: Mapping[str, Sequence[int]], max_rank: int | None) -> Errors:
    """Errors of every rank; without two folds there are none."""
    m, n_folds = len(pool.columns), 1 + max(max(of) for of in folds.values())
    groups = [
        (b, fold, group)
        for b, site in enumerate(pool.sites)
        for fold, group in zip(folds[site], pool.groups[site], strict=True)
    ]
    if n_folds < 2:
        none = np.zeros((len(pool.sites), 0), dtype=np.int64)
        return Errors(none[0], np.zeros((*none.shape, 0)), none, True)
    others = [_sum([g for _, at, g in groups if at != fold]) for fold in range(n_folds)]
    most = min(m - 1, *(int(fitted.n) - 1 for fitted in others))
    last = most if max_rank is None else min(most, max_rank)
    sums = np.zeros((len(pool.sites), n_folds, last + 1))
    entries = np.zeros((len(pool.sites), n_folds), dtype=np.int64)
    for fold, fitted in enumerate(others):
        directions = directions_of(fitted)
        for b, at, group in groups:
            if at == fold:
                sums[b, fold] += rest_of_row_errors(fitted.mean, directions, group, last)
                entries[b, fold] += int(group.n) * m
    return Errors(np.arange(last + 1), sums, entries, last == most)


def _sum(groups: Sequence[Moments]) -> Moments:
    return Moments(
        *pooled([g.n for g in groups], [g.mean for g in groups], [g.products for g in groups])
    )
