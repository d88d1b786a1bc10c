"""From pooled moments and errors to the model and the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.completion.federated_pca.model import SPREADS
from consilience.completion.federated_pca.pooling import Errors, Pool
from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.completion.kernels.rest_of_row import Moments
from consilience.exceptions import StudyError
from consilience.numerics.held_out_entries import EntryCurve
from consilience.numerics.ppca import PPCAModel, from_moments
from consilience.protocol.method import CoordinatorContext

if TYPE_CHECKING:
    from consilience.completion.federated_pca import FederatedPCA


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
    variances = np.maximum(np.linalg.eigvalsh(whole.covariance)[::-1], 0.0)
    curve = _curve(errors)
    place = np.flatnonzero(errors.candidates == rank)
    explained = model.variances + model.noise
    columns = pool.columns
    names = tuple(ctx.feature_names[j] for j in columns)
    gone = np.setdiff1d(np.arange(len(ctx.feature_names)), columns)
    result = FederatedPCAResult(
        feature_names=names,
        withheld=tuple(ctx.feature_names[j] for j in gone),
        sites=pool.sites,
        n_by_site=_rows(pool),
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
        site_explained=_explained(pool, whole, model),
        missing_kept=ctx.preparation.missing == "keep",
        scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling)[:, columns],
        remarks=_remarks(ctx, method, pool, whole, curve),
    )
    return result, model


def _curve(errors: Errors) -> EntryCurve | None:
    if not len(errors.candidates):
        return None
    sums, entries = errors.sums.sum(axis=0), errors.entries.sum(axis=0)
    return EntryCurve.of_sums(
        "rank", errors.candidates, sums, entries, natural=(True, errors.natural)
    )


def _rows(pool: Pool) -> NDArray[np.int64]:
    return np.array([int(sum(group.n for group in pool.groups[site])) for site in pool.sites])


def _explained(pool: Pool, whole: Moments, model: PPCAModel) -> FloatArray:
    """Share of each site's squares about the pooled mean along the components, (S,)."""
    shares = []
    for site in pool.sites:
        own = pool.together((site,))
        gap = own.mean - whole.mean
        about = own.covariance + np.outer(gap, gap)
        total = float(np.trace(about))
        along = float(np.trace(model.directions.T @ about @ model.directions))
        shares.append(along / total if total > 0 else 0.0)
    return np.array(shares)


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
        listed = _listed([names[j] for j in columns])
        found.append(
            f"Site {site} withholds {listed} (few rows differ, or one row dominates), so "
            + ("it is not in the model." if site in pool.left_out else "no model has these.")
        )
    fewer = [s for s in pool.sites if len(pool.groups[s]) < method.n_splits]
    if fewer:
        listed = _listed([f"{site} ({len(pool.groups[site])})" for site in fewer])
        found.append(
            f"Fewer than {method.n_splits} groups of rows could be told by {listed}: their rows "
            "are left out in larger parts."
        )
    spread = _spread(whole)
    used = [names[j] for j in pool.columns]
    constant = [name for name, s in zip(used, spread, strict=True) if s == 0]
    if constant:
        found.append(f"Columns that do not vary: {_listed(constant)}.")
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


def _listed(names: list[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
