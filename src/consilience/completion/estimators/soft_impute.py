"""Low-rank matrix under a nuclear-norm penalty, from the observed entries, as an estimator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from consilience.arrays import FloatArray
from consilience.completion.estimators.low_rank_base import LowRankFactoriser
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.low_rank import LowRankFit, check_ranks
from consilience.numerics.soft_impute import rank_path, refit, soft_path


class SoftImpute(LowRankFactoriser):
    """Fill the missing entries, shrink the singular values, repeat.

    Minimises ``1/2 |P_O(X - M)|_F^2 + alpha |M|_*`` over matrices M, where P_O keeps the observed
    entries and ``|M|_*`` is the sum of the singular values. The problem is convex, and the fit
    carries its relative duality gap.

    Parameters
    ----------
    alpha : float
        Penalty, above 0, in the units of singular values of the table.
    rank : int, optional
        In place of `alpha`: the smallest penalty that leaves this rank. With ``unshrink=True`` and
        a complete matrix that is the truncated singular value decomposition.
    unshrink : bool
        SOFT-IMPUTE+: refit the singular values to the observed entries by least squares.
    max_rank : int, optional
        Largest rank. Where it binds, the problem is no longer convex, which a warning says.
    center : {"none", "columns", "rows-and-columns"}
        What is taken off the observed entries first: nothing, column means, or a least-squares fit
        of a term for each row and one for each column.
    solver : {"auto", "dense", "als"}
        "dense" fills the matrix and takes accelerated steps, "als" turns between the two factors
        and touches observed entries only; "auto" goes by shape and density.
    tol : float
        Relative duality gap at which the fit ends.
    max_iter : int
        Steps, or sweeps.

    Attributes
    ----------
    components_ : (n_components_, p) array
        Right singular vectors.
    singular_values_ : (n_components_,) array
        Decreasing.
    mean_ : (p,) array
        Column part of the centre.
    row_means_ : (n,) array
        Row part of the centre.
    n_components_ : int
        Rank of the fit.
    alpha_ : float
        Penalty of the fit.
    objective_ : float
        The criterion, or, unshrunk, one half the sum of squared residuals.
    gap_ : float
        Duality gap of the penalised fit over its criterion: a bound for how far it is from the
        minimum. NaN where `max_rank` binds.
    capped_ : bool
        Whether `max_rank` binds.
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Mazumder, Hastie and Tibshirani, JMLR 11 (2010); Hastie, Mazumder, Lee and Zadeh, JMLR
    16 (2015) for the turns; Ya Le's Stanford thesis, chapter 3, for SOFT-IMPUTE+. Departures: the
    dense steps are accelerated, the turns solve each ridge regression and are mixed, both end by
    the duality gap.

    The scores of a row solve a ridge regression of its observed entries on the components with
    penalties ``alpha / singular value``: of the rows that were fitted, these are the fit's.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import SoftImpute
    >>> x = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    >>> x[0, 0] = np.nan
    >>> SoftImpute(0.1, unshrink=True).fit(x).complete()[0].round(2)
    array([ 1., -1.,  2.])
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        rank: int | None = None,
        unshrink: bool = False,
        max_rank: int | None = None,
        center: str = "none",
        solver: str = "auto",
        tol: float = 1e-6,
        max_iter: int = 1000,
    ) -> None:
        self.alpha = alpha
        self.rank = rank
        self.unshrink = unshrink
        self.max_rank = max_rank
        self.center = center
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | None, FloatArray | None]:
        fit = self._penalised(entries)
        self._keep(fit)
        alpha = float(fit.alpha or 0.0)
        s = np.maximum(fit.s, np.finfo(float).tiny ** 0.25)
        if not self.unshrink:
            return fit, alpha / s, None
        found, order, values = refit(entries, fit)
        self.objective_ = found.objective
        return found, alpha / s[order], values / s[order]

    def _penalised(self, entries: Entries) -> LowRankFit:
        settings: dict[str, Any] = {
            "tol": self.tol,
            "max_iter": self.max_iter,
            "solver": self.solver,
        }
        if self.rank is None:
            (fit,) = soft_path(entries, [self.alpha], max_rank=self.max_rank, **settings)
            return fit
        if self.max_rank is not None:
            raise ParameterError("give SoftImpute rank or max_rank, not both")
        rank = check_ranks([self.rank], *entries.shape)[0]
        *_, fit = rank_path(entries, range(min(rank, 1), rank + 1), **settings)
        return fit

    def _keep(self, fit: LowRankFit) -> None:
        self.alpha_ = float(fit.alpha or 0.0)
        self.objective_ = fit.objective
        self.capped_ = fit.capped
        self.gap_ = float("nan") if fit.capped or fit.gap is None else fit.gap
        self.n_iter_ = max(1, fit.n_iter)
        self.converged_ = fit.converged
        if fit.capped:
            warnings.warn(
                f"more than max_rank = {self.max_rank} singular values are above the penalty: the "
                "fit is a local minimum of that rank, without a certificate; raise max_rank or "
                "alpha",
                UserWarning,
                stacklevel=5,
            )
        if not fit.converged:
            warnings.warn(
                f"soft imputation did not settle in {self.max_iter} iterations: raise max_iter, "
                "tol or alpha",
                ConvergenceWarning,
                stacklevel=5,
            )


def soft_impute_at_rank(
    entries: Entries, rank: int, *, center: str = "none", **settings: Any
) -> SoftImpute:
    """SOFT-IMPUTE+ of a rank: the smallest penalty that leaves it, singular values refitted.

    Parameters
    ----------
    entries : Entries
    rank : int
    center : {"none", "columns", "rows-and-columns"}
    **settings
        Further parameters of :class:`SoftImpute`.
    """
    return SoftImpute(rank=rank, unshrink=True, center=center, **settings).fit(entries)
