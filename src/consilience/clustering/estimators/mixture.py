"""What both mixtures do, of categories and of sequences: fit, choose, remark, predict, score."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from consilience.arrays import AnyArray, FloatArray, IntArray
from consilience.clustering.kernels import mixtures
from consilience.clustering.kernels.mixtures import PSEUDO_COUNT_RULE, SEARCH_RULES
from consilience.exceptions import DataError
from consilience.numerics.parallel import one_thread
from consilience.numerics.pattern_kmeans import FewerClustersWarning
from consilience.parameters import just, whole

LEAST_WEIGHT = 0.5
"""Mean weight of a record below which a fit says that weights are no counts."""
RULES = {
    "n_classes": whole(1) | just("bic"),
    "max_classes": whole(1),
    **SEARCH_RULES,
    **PSEUDO_COUNT_RULE,
}


@dataclass(eq=False, repr=False)
class DiscreteMixture(DensityMixin, BaseEstimator):
    """Classes of records (rows of categories, or sequences) by EM from many starts.

    Equal records are computed once: the data of a fit are the distinct records with their weights
    ``weights`` and ``n`` (sum), how many differ (``n_distinct``), and which each record is
    (``inverse``).
    """

    _record: ClassVar[str]
    """What one of them is called."""
    _fit_kernel: ClassVar[Callable[..., mixtures.Search[Any]]]
    _parameter_count: ClassVar[Callable[..., int]]
    n_classes: int | str = 2
    _: KW_ONLY
    max_classes: int = 6
    n_init: int = 40
    n_init_iter: int = 15
    n_final: int = 4
    pseudo_count: float = 0.1
    tol: float = 1e-7
    max_iter: int = 500
    random_state: Any = None

    # ------------------------------------------------------------------ of each mixture

    @abstractmethod
    def fit(self, X: Any, y: Any = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Find the classes."""

    @abstractmethod
    def _read(self, X: Any, sample_weight: ArrayLike | None = None, *, weigh: bool = True) -> Any:
        """Distinct records in the codes of the fit, weighed or as they are."""

    @abstractmethod
    def _joint(self, data: Any) -> FloatArray:
        """Log probability of each distinct record together with each class, (P, K)."""

    @abstractmethod
    def _adopt(self, parameters: Any) -> None:
        """Keep fitted parameters, also as attributes."""

    @abstractmethod
    def _own_remarks(self, data: Any) -> list[str]:
        """What was noticed about the records."""

    # ------------------------------------------------------------------ fit

    def _search(self, data: Any) -> Self:
        """Fit each number of classes that is asked for, keep the best fit, say what was noticed."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self.n_classes == "bic":
            mixtures.check_total_weight(data.n, self._record)
            numbers = list(range(1, min(self.max_classes, data.n_distinct) + 1))
        else:
            numbers = [min(int(self.n_classes), data.n_distinct)]
        settings = {name: getattr(self, name) for name in (*SEARCH_RULES, *PSEUDO_COUNT_RULE)}
        with one_thread():
            searches = [self._fit_kernel(data, k, seed=seed, **settings) for k in numbers]
        fits = [search.best for search in searches]
        counts = [self._parameter_count(data, fit.parameters.n_classes) for fit in fits]
        likelihoods = [fit.log_likelihood for fit in fits]
        both = zip(likelihoods, counts, strict=True)
        self.bic_curve_ = {
            "n_classes": np.array(numbers),
            "log_likelihood": np.array(likelihoods),
            "n_parameters": np.array(counts),
            "bic": np.array([mixtures.information(*each, data.n)[1] for each in both]),
        }
        # Of equal criteria the one with fewer classes.
        chosen = int(np.argmin(self.bic_curve_["bic"]))
        best = fits[chosen]
        self._adopt(best.parameters)
        self.log_likelihood_ = best.log_likelihood
        self.trace_, self.n_iter_, self.converged_ = best.trace, best.n_iter, best.converged
        self.start_spread_ = searches[chosen].start_spread
        self.n_parameters_ = counts[chosen]
        self.bic_ = float(self.bic_curve_["bic"][chosen])
        # Most probable class; ties go to the first.
        labels = self._joint(data).argmax(axis=1)
        self.labels_ = labels[data.inverse]
        found = []
        if self.n_classes != "bic" and self.n_classes_ < int(self.n_classes):
            n_dropped = searches[chosen].n_dropped
            why = fewer_because(n_dropped, data.n_distinct, self._record)
            found.append(f"{why}: {self.n_classes_} of {self.n_classes} classes were fitted")
            # 3: who called `fit`.
            warnings.warn(found[-1], FewerClustersWarning, stacklevel=3)
        if not self.converged_:
            found.append(f"EM did not settle within max_iter = {self.max_iter}: raise it, or tol")
            warnings.warn(found[-1], ConvergenceWarning, stacklevel=3)
        # EM may end long before the share of a class that it empties falls to `EMPTY`; and two
        # classes that are nearly alike share their records without either giving way.
        held = len(np.unique(labels[data.weights > 0]))
        if held < self.n_classes_:
            found.append(
                f"only {held} of {self.n_classes_} classes hold {self._record}s, the others being "
                "the most probable class of none: ask for fewer, or read the fit as one of fewer "
                "classes"
            )
            warnings.warn(found[-1], ConvergenceWarning, stacklevel=3)
        if data.n < LEAST_WEIGHT * len(data.inverse):
            found.append(
                f"the weights of {len(data.inverse)} {self._record}s sum to {data.n:.3g}, which "
                "BIC takes for their number, and pseudo-counts are added to such counts: scale "
                f"the weights so that they count the {self._record}s"
            )
        starts = mixtures.start_remarks(self.start_spread_)
        self.remarks_ = (*found, *self._own_remarks(data), *starts)
        return self

    def fit_predict(
        self, X: Any, y: Any = None, *, sample_weight: ArrayLike | None = None
    ) -> IntArray:
        """Find the classes, and return the most probable class of each record, (n,).

        Parameters
        ----------
        X, y, sample_weight
            See :meth:`fit`.
        """
        return self.fit(X, y, sample_weight=sample_weight).labels_

    # ------------------------------------------------------------------ new records

    def predict(self, X: Any) -> IntArray:
        """Most probable class of each record, (m,); of equally probable ones the first.

        Parameters
        ----------
        X : as in `fit`
            A record of which nothing was seen goes to the largest class.

        Raises
        ------
        DataError
            X cannot be read, or holds a level or state that the model does not know.
        """
        data = self._read(X, weigh=False)
        with one_thread():
            return np.asarray(self._joint(data).argmax(axis=1)[data.inverse])

    def predict_proba(self, X: Any) -> FloatArray:
        """Posterior probabilities of the classes, (m, K); X as in `predict`."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Log posterior probabilities of the classes, (m, K); X as in `predict`."""
        data = self._read(X, weigh=False)
        return self._posterior(data)[0][data.inverse]

    def score_samples(self, X: Any) -> FloatArray:
        """Log probability of what was seen of each record, (m,); X as in `predict`."""
        data = self._read(X, weigh=False)
        return self._posterior(data)[1][data.inverse]

    def score(self, X: Any, y: Any = None, *, sample_weight: ArrayLike | None = None) -> float:
        """Mean log probability of a record.

        Parameters
        ----------
        X : as in `predict`
        y : None
            Ignored.
        sample_weight : (m,) array, optional
            Records that each one stands for.
        """
        total, n = self._likelihood(X, sample_weight)
        return total / n

    def aic(self, X: Any) -> float:
        """Akaike's information criterion on these records; smaller is better."""
        total, n = self._likelihood(X)
        return mixtures.information(total, self.n_parameters_, n)[0]

    def bic(self, X: Any) -> float:
        """Bayesian information criterion on these records; smaller is better, n their number."""
        total, n = self._likelihood(X)
        mixtures.check_total_weight(n, self._record)
        return mixtures.information(total, self.n_parameters_, n)[1]

    def _posterior(self, data: Any) -> tuple[FloatArray, FloatArray]:
        with one_thread():
            return mixtures.log_shares(self._joint(data), self.proportions_)

    def _likelihood(self, X: Any, sample_weight: ArrayLike | None = None) -> tuple[float, float]:
        """Weighted log likelihood, and the sum of the weights."""
        data = self._read(X, sample_weight)
        counted = data.weights > 0  # what no class allows is minus infinity
        return float(self._posterior(data)[1][counted] @ data.weights[counted]), data.n

    # ------------------------------------------------------------------ arrays and scikit-learn

    def _take_parameter_count(self, arrays: Mapping[str, AnyArray], what: str) -> None:
        count = np.asarray(arrays["n_parameters"])
        if count.shape != (1,) or count.dtype.kind not in "iu" or count[0] < 0:
            raise DataError(f"these arrays do not hold {what}")
        self.n_parameters_ = int(count[0])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "proportions_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


def fewer_because(n_dropped: int, n_distinct: int, record: str) -> str:
    """Say why fewer classes were fitted than asked for; `record` is one of what is classed."""
    if n_dropped:
        were = "1 class was" if n_dropped == 1 else f"{n_dropped} classes were"
        return f"{were} left without any {record}"
    if n_distinct == 1:
        return f"there is 1 distinct {record}"
    return f"there are {n_distinct} distinct {record}s"
