"""Matrix of a given rank that is nearest to the observed entries, as an estimator."""

from __future__ import annotations

import warnings

from sklearn.exceptions import ConvergenceWarning

from consilience.arrays import FloatArray
from consilience.completion.estimators.low_rank_base import LowRankFactoriser
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.hard_impute import MAX_ITER, TOL, hard_path
from consilience.numerics.low_rank import LowRankFit, check_ranks

_STARTS = ("zero", "path")


class HardImpute(LowRankFactoriser):
    """Fill the missing entries, truncate the singular value decomposition, repeat.

    Lowers ``1/2 |P_O(X - M)|_F^2`` over matrices M of a rank, where P_O keeps the observed entries.
    With a complete matrix it is the truncated singular value decomposition. Stopping early is part
    of the method: nothing bounds the missing entries, and the minimum itself may predict far worse.

    Parameters
    ----------
    rank : int
        From 0 to min(n, p).
    center : {"none", "columns", "rows-and-columns"}
        What is taken off the observed entries first: nothing, column means, or a least-squares fit
        of a term for each row and one for each column.
    start : {"zero", "path"}
        "zero" fits this rank at once, as a search over ranks does; "path" the ranks 1, 2, ... each
        from the one before, which is another local minimum where the rank is too large.
    solver : {"auto", "dense", "factored"}
        "dense" fills the matrix, "factored" multiplies with a sparse residual plus factors; "auto"
        goes by the shorter side and the share observed.
    tol : float
        A fit ends where truncating moves the filled matrix by at most this share of its norm.
        Scores of `transform` come from the observed entries by least squares: only with a small
        tolerance are they those of the fit at its own rows.
    max_iter : int
        Truncations for each rank.

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
        Rank of the fit: below `rank` where further singular values are zero.
    objective_ : float
        One half the sum of squared residuals.
    n_iter_ : int
        Truncations at the last rank.
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Mazumder, Hastie and Tibshirani, JMLR 11 (2010), section 5; Ya Le's Stanford thesis,
    chapter 3. The minimum is a local one.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import HardImpute
    >>> x = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    >>> x[0, 0] = np.nan
    >>> HardImpute(1, tol=1e-6).fit(x).complete()[0].round(3)
    array([ 1., -1.,  2.])
    """

    def __init__(
        self,
        rank: int = 1,
        *,
        center: str = "none",
        start: str = "zero",
        solver: str = "auto",
        tol: float = TOL,
        max_iter: int = MAX_ITER,
    ) -> None:
        self.rank = rank
        self.center = center
        self.start = start
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | None, FloatArray | None]:
        if self.start not in _STARTS:
            raise ParameterError.of("start", '"zero" or "path"', self.start)
        rank = check_ranks([self.rank], *entries.shape)[0]
        first = rank if self.start == "zero" or entries.complete else min(rank, 1)
        fits = hard_path(
            entries,
            range(first, rank + 1),
            tol=self.tol,
            max_iter=self.max_iter,
            solver=self.solver,
            warm=True,
        )
        *_, fit = fits
        self.objective_, self.converged_ = fit.objective, fit.converged
        self.n_iter_ = max(1, fit.n_iter)
        if not fit.converged:
            warnings.warn(
                f"hard imputation of rank {rank} did not settle in {self.max_iter} iterations: "
                "raise max_iter or tol, or take a lower rank",
                ConvergenceWarning,
                stacklevel=4,
            )
        return fit, None, None
