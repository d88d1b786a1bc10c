"""Low-rank models by name, fitted to observed entries: what is kept after a search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.completion.estimators.low_rank_base import Factors
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries

_LEAST = 1e-12  # of the largest variance of a direction: ridge penalties stay finite


@dataclass(frozen=True, eq=False)
class FittedMatrix:
    """A fit of low rank.

    Attributes
    ----------
    factors : Factors
    rank : int
    alpha : float
        Penalty; NaN for a model without one.
    gap : float
        Relative duality gap; NaN where there is none.
    capped : bool
        Whether a limit on the rank bound the fit.
    """

    factors: Factors
    rank: int
    alpha: float = float("nan")
    gap: float = float("nan")
    capped: bool = False


def fitted_model(
    model: str, value: float, entries: Entries, *, center: str, max_rank: int | None = None
) -> FittedMatrix:
    """Fit a model of the package.

    Parameters
    ----------
    model : {"soft", "soft-unshrunk", "hard", "optspace", "ppca"}
    value : float
        Penalty of "soft", rank of the others.
    entries : Entries
    center : {"none", "columns", "rows-and-columns"}
        "ppca" has a mean of its own.
    max_rank : int, optional
        Of "soft".

    Raises
    ------
    ParameterError
        Another model.
    """
    if model == "soft":
        from consilience.completion.estimators.soft_impute import SoftImpute

        fitted: Any = SoftImpute(value, center=center, max_rank=max_rank).fit(entries)
        return _of(fitted, alpha=float(value), gap=fitted.gap_, capped=bool(fitted.capped_))
    if model == "soft-unshrunk":
        from consilience.completion.estimators.soft_impute import soft_impute_at_rank

        fitted = soft_impute_at_rank(entries, int(value), center=center)
        return _of(fitted, alpha=float(fitted.alpha_), gap=fitted.gap_)
    if model == "hard":
        from consilience.completion.estimators.hard_impute import HardImpute

        return _of(HardImpute(int(value), center=center).fit(entries))
    if model == "optspace":
        from consilience.completion.estimators.opt_space import OptSpace

        return _of(OptSpace(int(value), center=center).fit(entries))
    if model == "ppca":
        from consilience.completion.estimators.probabilistic_pca import ProbabilisticPCA

        return _of(ProbabilisticPCA(int(value)).fit(entries), ridge=True)
    raise ParameterError.of("model", "soft, soft-unshrunk, hard, optspace or ppca", model)


def _of(fitted: Any, *, ridge: bool = False, gap: float | None = None, **more: Any) -> FittedMatrix:
    factors = fitted.factors_
    if ridge and fitted.n_components_:
        # A conditional mean is a ridge regression of the row's values on the directions.
        variances = fitted.model_.variances
        floor = _LEAST * max(float(variances.max()), float(fitted.model_.noise))
        factors = replace(factors, penalty=fitted.model_.noise / np.maximum(variances, floor))
    if gap is not None:
        more["gap"] = float(gap)
    return FittedMatrix(factors, int(fitted.n_components_), **more)
