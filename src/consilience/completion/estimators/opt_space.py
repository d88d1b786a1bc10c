"""Matrix of a given rank from a spectral start and descent over spaces, as an estimator."""

from __future__ import annotations

import warnings

from sklearn.exceptions import ConvergenceWarning

from consilience.arrays import FloatArray
from consilience.completion.estimators.low_rank_base import LowRankFactoriser
from consilience.numerics.entries import Entries
from consilience.numerics.low_rank import LowRankFit
from consilience.numerics.optspace import MAX_ITER, TOL, optspace_path


class OptSpace(LowRankFactoriser):
    """Spectral start from trimmed entries, then descent over pairs of spaces.

    The criterion is that of `HardImpute`, where stopping early is part of the method too; start and
    descent differ, and so may the local minimum.

    Parameters
    ----------
    rank : int
        From 0 to min(n, p).
    center : {"none", "columns", "rows-and-columns"}
        What is taken off the observed entries first: nothing, column means, or a least-squares fit
        of a term for each row and one for each column.
    tol : float
        A fit ends where the gradient, as a change of the matrix, is at most this share of its norm.
        Scores of `transform` come from the observed entries by least squares: only with a small
        tolerance are they those of the fit at its own rows.
    max_iter : int
        Steps.

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
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Keshavan, Montanari and Oh, IEEE Transactions on Information Theory 56 (2010), and JMLR
    11 (2010). Departures: directions are scaled and conjugate.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import OptSpace
    >>> x = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    >>> x[0, 0] = np.nan
    >>> OptSpace(1, tol=1e-6).fit(x).complete()[0].round(3)
    array([ 1., -1.,  2.])
    """

    def __init__(
        self,
        rank: int = 1,
        *,
        center: str = "none",
        tol: float = TOL,
        max_iter: int = MAX_ITER,
    ) -> None:
        self.rank = rank
        self.center = center
        self.tol = tol
        self.max_iter = max_iter

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | None, FloatArray | None]:
        fit = next(optspace_path(entries, [self.rank], tol=self.tol, max_iter=self.max_iter))
        self.objective_, self.converged_ = fit.objective, fit.converged
        self.n_iter_ = max(1, fit.n_iter)
        if not fit.converged:
            warnings.warn(
                f"OptSpace of rank {self.rank} did not settle in {self.max_iter} steps: raise "
                "max_iter or tol, or take a lower rank",
                ConvergenceWarning,
                stacklevel=4,
            )
        return fit, None, None
