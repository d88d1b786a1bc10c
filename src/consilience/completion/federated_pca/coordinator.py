"""What the coordinator makes of the moments: errors of every rank, the model, the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.completion.federated_pca.messages import SPREADS, Told
from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.completion.kernels import conditional_normal
from consilience.completion.kernels.conditional_normal import Moments
from consilience.completion.kernels.ppca import PPCAModel, from_moments
from consilience.exceptions import QuorumError, StudyError, listed
from consilience.numerics.block_moments import giving_way, pooled, square_of
from consilience.numerics.held_out_entries import EntryCurve
from consilience.protocol.method import CoordinatorContext

if TYPE_CHECKING:
    from consilience.completion.federated_pca import FederatedPCA

# --- What the coordinator makes of the groups' moments: pooled rows, folds, errors of every rank.


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
    used, columns = giving_way(rows[:, None], ~has[:, None])
    used = used[:, 0]
    if columns.sum() < 2:
        raise QuorumError(
            "fewer than two columns are told by every site: take columns in which more rows "
            "differ, or leave out the sites that withhold them"
        )
    groups = {}
    for site, own, there in zip(sites, has, used, strict=True):
        if there:
            at, reply = np.flatnonzero(columns[own]), told[site]
            parts = zip(reply.counts.value, reply.means.value, reply.products.value, strict=True)
            groups[site] = tuple(
                Moments(float(n), mean[columns], square_of(line, int(own.sum()))[np.ix_(at, at)])
                for n, mean, line in parts
            )
    without = {
        site: tuple(int(j) for j in np.flatnonzero(~has[b]))
        for b, site in enumerate(sites)
        if not has[b].all()
    }
    left_out = tuple(site for b, site in enumerate(sites) if not used[b])
    return Pool(tuple(groups), groups, np.flatnonzero(columns), without, left_out)


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
        chosen = np.arange(n_splits)
        if len(groups) < n_splits:  # the folds with the fewest rows
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

    def curve(self) -> EntryCurve | None:
        """Errors of all sites by rank; None where nothing was left out."""
        if not len(self.candidates):
            return None
        sums, entries = self.sums.sum(axis=0), self.entries.sum(axis=0)
        return EntryCurve.of_sums(
            "rank", self.candidates, sums, entries, natural=(True, self.natural)
        )


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
    # Chan, Golub and LeVeque 1983: moments of all rows but those of a fold
    others = [_sum([g for _, at, g in groups if at != fold]) for fold in range(n_folds)]
    most = min(m - 1, *(int(fitted.n) - 1 for fitted in others))
    last = most if max_rank is None else min(most, max_rank)
    sums = np.zeros((len(pool.sites), n_folds, last + 1))
    entries = np.zeros((len(pool.sites), n_folds), dtype=np.int64)
    for fold, fitted in enumerate(others):
        directions = conditional_normal.directions_of(fitted)
        for b, at, group in groups:
            if at == fold:
                sums[b, fold] += conditional_normal.conditional_entry_errors(
                    fitted.mean, directions, group, last
                )
                entries[b, fold] += int(group.n) * m
    return Errors(np.arange(last + 1), sums, entries, last == most)


def _sum(groups: Sequence[Moments]) -> Moments:
    return Moments(
        *pooled([g.n for g in groups], [g.mean for g in groups], [g.products for g in groups])
    )


# --- From pooled moments and errors to the model and the result.

SCALES_APART = 10.0
"""Ratio of standard deviations from which columns count as being on different scales."""
_STILL = 64 * float(np.finfo(np.float64).eps)  # of the mean: less is rounding


def check_spread(pool: Pool) -> None:
    """Refuse columns that do not vary, or whose units are too small for a model.

    Parameters
    ----------
    pool : Pool

    Raises
    ------
    StudyError
    """
    largest = float(_spread(pool.together()).max())
    if largest == 0:
        raise StudyError(
            "no column varies, so there are no components: take columns in which rows differ"
        )
    if largest < SPREADS[0]:
        raise StudyError(
            f"the largest standard deviation of a column is {largest:.1g}, too small for a model: "
            'take other units, or set [preparation] standardize to "pooled"'
        )


def _spread(whole: Moments) -> FloatArray:
    """Standard deviations of the columns, (m,): 0 where a column varies by rounding only."""
    spread = np.sqrt(np.maximum(np.diag(whole.covariance), 0.0))
    return np.where(spread <= _STILL * np.abs(whole.mean), 0.0, spread)


def build_result(
    ctx: CoordinatorContext, method: FederatedPCA, pool: Pool, errors: Errors, rank: int
) -> tuple[FederatedPCAResult, PPCAModel]:
    """Fit the model of a rank, and put the result together."""
    whole = pool.together()
    model = from_moments(whole.mean, whole.covariance, int(whole.n), rank)
    # rounding may leave the smallest ones a little below 0
    variances = np.maximum(np.linalg.eigvalsh(whole.covariance)[::-1], 0.0)
    curve = errors.curve()
    place = np.flatnonzero(errors.candidates == rank)
    shares = []  # of each site's squares about the pooled mean, along the components
    for own in [pool.together((site,)) for site in pool.sites]:
        gap = own.mean - whole.mean
        about = own.covariance + np.outer(gap, gap)
        total = float(np.trace(about))
        along = float(np.trace(model.directions.T @ about @ model.directions))
        shares.append(along / total if total > 0 else 0.0)
    explained = model.variances + model.noise
    columns, names = pool.columns, np.array(ctx.feature_names, dtype=object)
    result = FederatedPCAResult(
        feature_names=tuple(names[columns]),
        withheld=tuple(np.delete(names, columns)),
        sites=pool.sites,
        n_by_site=np.array([int(sum(g.n for g in pool.groups[s])) for s in pool.sites]),
        groups_by_site=np.array([len(pool.groups[site]) for site in pool.sites]),
        rank=rank,
        fixed=method.rank is not None,
        rule="given" if method.rank is not None else method.rule,
        parameter="rank",
        candidates=errors.candidates,
        fold_errors=errors.sums.sum(axis=0),
        fold_entries=errors.entries.sum(axis=0),
        site_errors=errors.sums.sum(axis=1),
        site_entries=errors.entries.sum(axis=1),
        minimiser=-1 if curve is None else curve.minimiser,
        one_standard_error=-1 if curve is None else curve.one_standard_error,
        chosen=int(place[0]) if len(place) else -1,
        natural=errors.natural,
        at_edge=curve is not None and curve.at_edge,
        mean=model.mean,
        components=np.ascontiguousarray(model.directions.T),
        explained_variance=explained,
        explained_variance_ratio=explained / variances.sum(),
        noise_variance=model.noise,
        variances=variances,
        site_explained=np.array(shares),
        missing_kept=ctx.preparation.missing == "keep",
        scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling)[:, columns],
        remarks=(*ctx.notes, *_remarks(ctx, method, pool, whole, curve)),
    )
    return result, model


def _remarks(
    ctx: CoordinatorContext,
    method: FederatedPCA,
    pool: Pool,
    whole: Moments,
    curve: EntryCurve | None,
) -> tuple[str, ...]:
    """What a reader must know beside the answer."""
    found = []
    names = ctx.feature_names
    for site, columns in pool.without.items():
        them = listed([names[j] for j in columns], 5)
        found.append(
            f"Site {site} withholds {them} (few rows differ, or one row dominates), so "
            + ("it is not in the model." if site in pool.left_out else "no model has these.")
        )
    fewer = [s for s in pool.sites if len(pool.groups[s]) < method.n_splits]
    if fewer:
        them = listed([f"{site} ({len(pool.groups[site])})" for site in fewer], 5)
        found.append(
            f"Fewer than {method.n_splits} groups of rows could be told by {them}: their rows "
            "are left out in larger parts."
        )
    spread = _spread(whole)
    used = [names[j] for j in pool.columns]
    constant = [name for name, s in zip(used, spread, strict=True) if s == 0]
    if constant:
        found.append(f"Columns that do not vary: {listed(constant, 5)}.")
    varying = spread[spread > 0]
    if len(varying) and varying.max() > SCALES_APART * varying.min():
        found.append(
            "Columns are on different scales: those of the largest decide. Set [preparation] "
            'standardize to "pooled" unless their units are the same.'
        )
    if curve is not None and curve.at_edge and method.rank is None:
        found.append(
            f"The smallest error lies at max_rank = {curve.best}: this is no choice, raise "
            "max_rank."
        )
    if ctx.preparation.missing == "keep":
        found.append(
            "Missing cells count by what is expected of them given the rest of their row, which "
            "supposes that they are missing at random."
        )
    return tuple(found)
