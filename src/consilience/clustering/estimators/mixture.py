"""Latent class analysis of categories and mixtures of Markov chains, with their common base."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from consilience.arrays import AnyArray, FloatArray, IntArray
from consilience.clustering.estimators import category_codes
from consilience.clustering.estimators.category_codes import levels_from_arrays, levels_to_arrays
from consilience.clustering.kernels import markov_mixture as markov
from consilience.clustering.kernels import mixtures
from consilience.clustering.kernels import multinomial_mixture as multinomial
from consilience.clustering.kernels.markov_mixture import Events, MarkovParameters
from consilience.clustering.kernels.mixtures import (
    PSEUDO_COUNT_RULE,
    SEARCH_RULES,
    Arrays,
)
from consilience.clustering.kernels.multinomial_mixture import CategoryPatterns, MultinomialMixture
from consilience.clustering.kernels.sequences import NO_STATE, Sequences, coded, column
from consilience.datasets.simulate_treatments import draw_chains
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.observed_kmeans import FewerClustersWarning
from consilience.numerics.parallel import one_thread
from consilience.numerics.random import seed_of, stream
from consilience.numerics.row_units import numbers_of, of_arrow
from consilience.parameters import check, just, whole

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
        seed = seed_of(self.random_state)
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


_MANY_LEVELS = 0.5


@dataclass(eq=False, repr=False)
class LatentClassAnalysis(DiscreteMixture):
    """Mixture of products of multinomials for categorical columns.

    Within a class the columns are independent. A missing entry is left out of the product, which is
    exact where entries are missing at random; nothing is filled in.

    Parameters
    ----------
    n_classes : int or "bic"
        "bic" fits 1 to `max_classes` classes and keeps the fit of the smallest BIC.
    max_classes : int
        Most classes under "bic".
    n_init : int
        Random starts: each class from the entries of some twenty random rows.
    n_init_iter : int
        Iterations of each start.
    n_final : int
        The best so many starts go on until they settle; the best of these is kept.
    pseudo_count : float
        Added to the expected count of every level in every class, so that no level probability is
        zero. With 0 it is plain maximum likelihood.
    tol : float
        EM ends where an iteration raises the objective by no more than this share of it.
    max_iter : int
        Iterations of a start in all.
    levels : mapping or sequence, optional
        Levels of the columns, by name or one entry (or None) for each column. Those of other
        columns are what occurs in the fit; a categorical column of a data frame declares its own.
    random_state : int, RandomState or None
        Draws of the starts.

    Attributes
    ----------
    n_classes_ : int
        Fewer than asked for where there are fewer distinct rows, or a class was left empty. A class
        that is kept may still be the most probable one of no row, where two are nearly alike or EM
        ends early: a warning and a remark say so.
    proportions_ : (K,) array
        Shares of the classes, the largest first.
    class_probabilities_ : tuple of (K, L_j) arrays
        Probabilities of the levels of each column, class by class.
    levels_ : tuple of (L_j,) arrays
        Levels of each column.
    labels_ : (n,) array of int
        Most probable class of each row that was fitted.
    log_likelihood_ : float
        Of the rows that were fitted, times their weights, without pseudo-counts.
    trace_ : (T,) array
        Log likelihood plus `pseudo_count` times the sum of the logs of all level probabilities, by
        iteration: what EM climbs. It never falls but for rounding.
    n_iter_ : int
    converged_ : bool
    start_spread_ : (F,) array
        Log likelihoods of the starts that were followed to their end, the kept one first. Where
        they differ the likelihood has several peaks.
    n_parameters_ : int
        Free parameters, over the levels that occur.
    bic_ : float
        ``-2 log_likelihood_ + n_parameters_ log n``, n the number of rows (sum of weights). Weights
        must count rows: scaled to a small sum they make the criterion meaningless.
    bic_curve_ : dict of arrays
        ``n_classes``, ``log_likelihood``, ``n_parameters`` and ``bic`` of each number that was
        tried.
    remarks_ : tuple of str
        What was noticed about the fit and the table.
    n_features_in_ : int
    feature_names_in_ : (d,) array of str
        Only if X has names.

    See Also
    --------
    LatentClassRegressor : Classes that differ in how an outcome depends on columns.

    Notes
    -----
    Equal rows are computed once, so an iteration costs distinct rows x columns x classes. The
    answer does not depend on the order of the rows. A row of weight 0 counts nowhere, but its
    levels are known to the model.

    References
    ----------
    Linzer and Lewis, *poLCA: An R package for polytomous variable latent class analysis*, Journal
    of Statistical Software 42(10), 2011, equations 1 to 5. Departures: pseudo-counts; many short
    starts (Biernacki, Celeux and Govaert 2003).

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import LatentClassAnalysis
    >>> x = np.array([["a", "x", "n"], ["b", "y", "m"]] * 30, dtype=object)
    >>> x[0, 1] = None
    >>> fit = LatentClassAnalysis(2, random_state=0).fit(x)
    >>> fit.proportions_.round(2)
    array([0.5, 0.5])
    >>> bool((fit.labels_[::2] != fit.labels_[1::2]).all())
    True
    """

    _record = "row"
    _fit_kernel = staticmethod(multinomial.fit_multinomial_mixture)
    _parameter_count = staticmethod(multinomial.parameter_count)

    _: KW_ONLY
    levels: Any = None

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Find the classes.

        Parameters
        ----------
        X : (n, d) array, list of rows or data frame
            Categories as text or numbers; None, NaN and NA are missing.
        y : None
            Ignored.
        sample_weight : (n,) array, optional
            Rows that each row stands for.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range, or `levels` does not fit the table.
        DataError
            A column without an entry, one that mixes text and numbers, a level that was not
            declared, or weights that do not fit, or sum to less than 1 under "bic".

        Warns
        -----
        FewerClustersWarning
            There are fewer distinct rows than classes, or a class was left empty.
        ConvergenceWarning
            The kept start had not settled after `max_iter` iterations, or a class is the most
            probable one of no row.
        """
        check(RULES, vars(self))
        columns, declared, names = self._columns(X, reset=True)
        user = category_codes.declared_levels(self.levels, names)
        known = [own if own is not None else theirs for own, theirs in zip(user, declared)]
        self.levels_ = category_codes.learned_levels(columns, known, names)
        codes = category_codes.codes_of(columns, self.levels_, names)
        return self._search(CategoryPatterns.of(codes, self._n_levels, sample_weight))

    def _adopt(self, parameters: MultinomialMixture) -> None:
        self._mixture = parameters
        self.n_classes_ = parameters.n_classes
        self.proportions_ = parameters.proportions
        self.class_probabilities_ = parameters.columns

    def _joint(self, data: CategoryPatterns) -> FloatArray:
        return self._mixture.log_joint(data.codes)

    def _own_remarks(self, data: CategoryPatterns) -> list[str]:
        return [
            f"column {name} has {size} levels, nearly one for each row: is it a measurement?"
            for name, size in zip(self._column_names(), self._n_levels, strict=True)
            if size > max(_MANY_LEVELS * len(data.inverse), 2)
        ]

    def standard_errors(
        self, X: Any, *, sample_weight: ArrayLike | None = None
    ) -> tuple[FloatArray, tuple[FloatArray, ...]]:
        """Standard errors of `proportions_` and `class_probabilities_`, from the rows' scores.

        Parameters
        ----------
        X : (n, d) array, list of rows or data frame
            The rows that were fitted.
        sample_weight : (n,) array, optional
            As in the fit.

        Returns
        -------
        proportions : (K,) array
        class_probabilities : tuple of (K, L_j) arrays
            NaN for levels that do not occur, and everywhere where the rows do not tell the
            parameters apart. Near 0 or 1 an interval should not be read off a standard error.
        """
        data = self._read(X, sample_weight)
        errors = multinomial.mixture_errors(self._mixture, data)
        ends = np.cumsum(self._n_levels)[:-1]
        return errors.proportions, tuple(np.split(errors.probabilities, ends, axis=1))

    def sample(self, n_samples: int = 1) -> tuple[NDArray[Any], IntArray]:
        """Draw complete rows and their classes.

        Parameters
        ----------
        n_samples : int

        Returns
        -------
        rows : (n_samples, d) array
            Levels; of objects where columns differ in their kind.
        labels : (n_samples,) array of int
            Their classes.
        """
        check_is_fitted(self)
        check({"n_samples": whole(1)}, {"n_samples": n_samples})
        seed = seed_of(self.random_state)
        codes, classes = self._mixture.sample(n_samples, stream(seed, "sample"))
        columns = [known[codes[:, j]] for j, known in enumerate(self.levels_)]
        if len({column.dtype.kind for column in columns}) > 1:
            columns = [column.astype(object) for column in columns]
        return np.stack(columns, axis=1), classes

    def _read(
        self, X: Any, sample_weight: ArrayLike | None = None, *, weigh: bool = True
    ) -> CategoryPatterns:
        check_is_fitted(self)
        columns, _, names = self._columns(X, reset=False)
        codes = category_codes.codes_of(columns, self.levels_, names)
        return CategoryPatterns.of(codes, self._n_levels, sample_weight)

    @property
    def _n_levels(self) -> tuple[int, ...]:
        return tuple(len(known) for known in self.levels_)

    def _columns(
        self, X: Any, *, reset: bool
    ) -> tuple[list[NDArray[Any]], list[NDArray[Any] | None], list[str]]:
        """Columns, the levels that they declare, and their names for sentences."""
        X = of_arrow(X)
        if isinstance(X, list | tuple):
            X = np.array(X, dtype=object)  # as text a missing number would become a level
        if getattr(X, "ndim", 2) == 1 and not hasattr(
            X, "columns"
        ):  # scikit-learn's sentence shows the values
            raise DataError(
                "Expected 2D array, got 1D array instead: X must have one row for each record and "
                "one column for each category. Reshape your data if it is one record or one column"
            )
        checked = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
        columns, declared = category_codes.columns_of(X if hasattr(X, "columns") else checked)
        return columns, declared, self._column_names()

    def _column_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        return [str(name) for name in names]

    # ------------------------------------------------------------------ arrays

    def to_arrays(self) -> Arrays:
        """What predictions and criteria rest on, as arrays of numbers; nothing by row.

        Raises
        ------
        DataError
            Levels that are neither numbers nor text.
        """
        check_is_fitted(self)
        arrays = self._mixture.to_arrays() | category_codes.levels_to_arrays(self.levels_)
        arrays["n_parameters"] = np.array([self.n_parameters_], dtype=np.int64)
        if hasattr(self, "feature_names_in_"):
            names = self.feature_names_in_.astype(np.str_)
            arrays |= category_codes.levels_to_arrays((names,), "names")
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild an estimator that predicts from `to_arrays`, checking every number.

        Parameters
        ----------
        arrays : mapping of str to array
            What `to_arrays` gave.

        Returns
        -------
        estimator
            It predicts; what fitting alone leaves is absent.

        Raises
        ------
        DataError
            An array is missing or cannot be a part of a latent class analysis.
        """
        if not {"proportions", "probabilities", "n_levels", "n_parameters"} <= set(arrays):
            raise DataError("these arrays do not hold a latent class analysis")
        mixture = MultinomialMixture.from_arrays(
            {key: arrays[key] for key in ("proportions", "probabilities", "n_levels")}
        )
        made = cls(mixture.n_classes)
        made.levels_ = category_codes.levels_from_arrays(arrays, mixture.n_levels)
        made._take_parameter_count(arrays, "a latent class analysis")
        if any(key.startswith("names") for key in arrays):
            (names,) = category_codes.levels_from_arrays(arrays, (mixture.n_columns,), "names")
            made.feature_names_in_ = names.astype(object)
        made.n_features_in_ = mixture.n_columns
        made._adopt(mixture)
        return made


S = TypeVar("S", bound=Sized)


@dataclass(eq=False, repr=False)
class MarkovMixture(DiscreteMixture):
    """Classes of sequences: each class is a Markov chain over a common alphabet of states.

    Parameters
    ----------
    n_classes : int or "bic"
        K; with ``"bic"`` the number up to `max_classes` with the smallest criterion.
    max_classes : int
        Largest number that ``"bic"`` tries.
    n_init, n_init_iter : int
        Random starts and the steps of EM that each one gets.
    n_final : int
        The best so many starts are followed until they settle, the best of these is kept.
    pseudo_count : float
        Added to the expected count of every first state and every step (none to the proportions),
        so that no chance is 0; 0 or more.
    tol : float
        A start has settled where a step raises the objective by no more than this share of it.
    max_iter : int
        Steps after which a start is left as it is.
    states : sequence, optional
        The alphabet, in order; by default the categories that all columns of a data frame share,
        or else the states that occur, sorted.
    random_state : int, RandomState or None

    Attributes
    ----------
    states_ : (S,) array
    proportions_ : (K,) array
        Shares of the classes, the largest first; classes of equal share are in the order of their
        parameters.
    initial_ : (K, S) array
        Probabilities of the first state in each class.
    transition_ : (K, S, S) array
        Probabilities of the next state (last axis) given the present one. The row of a state that
        is never left says nothing: all its probabilities are equal.
    n_classes_ : int
        Fewer than asked for where there are fewer distinct sequences, or a class was left empty. A
        class that is kept may still be the most probable one of no sequence, where two are nearly
        alike or EM ends early: a warning and a remark say so.
    labels_ : (n,) array of int
        Most probable class of each sequence.
    log_likelihood_ : float
        Of the sequences, without the pseudo-counts.
    trace_ : (T,) array
        Objective at the kept start and after each of its steps: it never falls but for rounding.
    n_iter_ : int
    converged_ : bool
    start_spread_ : (m,) array
        Log likelihoods of the starts that were followed, the kept one first. The likelihood of
        short sequences has several peaks: unequal values mean that there are several answers.
    n_parameters_ : int
        Free parameters: of states that occur, and of steps from states that are left.
    bic_ : float
        ``-2 log_likelihood_ + n_parameters_ log n``, n the number of sequences (sum of weights).
        Weights must count sequences: scaled to a small sum they make the criterion meaningless.
    bic_curve_ : dict of arrays
        ``n_classes``, ``log_likelihood``, ``n_parameters`` and ``bic`` of each number of classes
        that was tried.
    remarks_ : tuple of str
        What was noticed about the sequences.
    feature_names_in_ : (t,) array of str
        Where X has names.

    Notes
    -----
    Time points where nothing was seen are integrated out exactly, before and between states; after
    the last state they say nothing. A sequence without any state belongs to the classes in their
    proportions. Sequences may differ in length: a wide table may have other columns in `predict`
    than in `fit`, as long as common ones have not changed their order. The answer does not depend
    on the order of the sequences.

    The objective is the log likelihood plus `pseudo_count` times the sum of the logarithms of all
    probabilities: no step of EM lowers it.

    References
    ----------
    Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering*, arXiv 2409.08396,
    sequence data. Helske and Helske (2019), *Mixture Hidden Markov Models for Sequence Data: The
    seqHMM Package in R*, Journal of Statistical Software 88(3). Departures: gaps are integrated
    out; pseudo-counts; each class starts from some 20 random sequences.

    Examples
    --------
    >>> from consilience import MarkovMixture
    >>> stay, swing = ["a", "a", "a", "b", "b", "b"], ["a", "b", "a", "b", "a", "b"]
    >>> fit = MarkovMixture(2, random_state=0).fit(20 * [stay] + 10 * [swing])
    >>> fit.predict([["b", "b", None, "b"], ["b", "a", "b"]])
    array([0, 1])
    >>> fit.transition_[1].round(1).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    _record = "sequence"
    _fit_kernel = staticmethod(markov.fit_markov_mixture)
    _parameter_count = staticmethod(markov.parameter_count)

    _: KW_ONLY
    states: Any = None

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Find the classes.

        Parameters
        ----------
        X : (n, t) array or data frame, list of lists, or Sequences
            States are numbers or texts; NaN and None are missing, -1 is a number like any other. Of
            a table each column is a time point. For a table of (id, time, state) see
            `sequences_from_long`.
        y : None
            Ignored.
        sample_weight : (n,) array, optional
            How many sequences each one stands for, 0 or more: 2 is the same as giving it twice.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range.
        DataError
            X cannot be read, holds a state outside `states`, or no state at all; or the number of
            classes is asked by "bic" and the weights sum to less than 1.

        Warns
        -----
        FewerClustersWarning
            There are fewer distinct sequences than classes, or a class was left empty.
        ConvergenceWarning
            The kept start had not settled after `max_iter` steps, or a class is the most probable
            one of no sequence.
        """
        check(RULES, vars(self))
        X = of_arrow(X)
        sequences = sequences_of(X, self.states)
        data = markov.events_of(replace(sequences, weights=weights_of(sequences, sample_weight)))
        states = sequences.states or ()
        # Of numbers, of texts, or of objects where they are mixed.
        plain = any(
            all(isinstance(name, kinds) for name in states)
            for kinds in (str, bool, int | float | np.number)
        )
        self.states_ = np.array(states) if plain else np.empty(len(states), dtype=object)
        self.states_[:] = states
        names = column_names(X)
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self._search(data)

    sequences_from_long = staticmethod(Sequences.from_long)

    def _adopt(self, parameters: MarkovParameters) -> None:
        self._parameters = parameters
        self.n_classes_ = parameters.n_classes
        self.initial_ = parameters.initial
        self.transition_ = parameters.transition
        self.proportions_ = parameters.proportions

    def _joint(self, data: Events) -> FloatArray:
        return self._parameters.joint(data)

    def _own_remarks(self, data: Events) -> list[str]:
        used = data.totals() > 0
        seen, left = np.unique(data.target[used]), np.unique(data.source[used])
        remarks = []
        for code, name in enumerate(self.states_.tolist()):
            if code not in seen:
                remarks.append(f"state {name!r} does not occur")
            elif code not in left:
                remarks.append(f"state {name!r} is never left: its next states are not known")
        return remarks

    # ------------------------------------------------------------------ sequences

    def standard_errors(
        self, X: Any, *, sample_weight: Any = None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Standard errors of the shares and probabilities, from the sequences' scores.

        Parameters
        ----------
        X : (n, t) array or data frame, list of lists, or Sequences
            The sequences that were fitted.
        sample_weight : (n,) array, optional
            As in the fit.

        Returns
        -------
        proportions : (K,) array
        initial : (K, S) array
        transition : (K, S, S) array
            NaN for probabilities that rest on less than one expected count, and everywhere where
            the sequences do not tell the parameters apart. Near 0 or 1 an interval should not be
            read off a standard error.
        """
        with one_thread():
            return markov.markov_errors(self._parameters, self._read(X, sample_weight))

    def sample(
        self, n_samples: int = 1, length: Any = 10, *, random_state: Any = None
    ) -> tuple[Sequences, IntArray]:
        """Draw sequences.

        Parameters
        ----------
        n_samples : int
        length : int or (n_samples,) array of int
            Time points of each sequence.
        random_state : int, RandomState or None
            None takes the estimator's own.

        Returns
        -------
        sequences : Sequences
            ``to_lists()`` of it gives the names of the states.
        labels : (n_samples,) array of int
            Their classes.
        """
        check_is_fitted(self)
        check({"n_samples": whole(1)}, {"n_samples": n_samples})
        lengths = np.asarray(length)
        fits = lengths.dtype.kind in "iu" and lengths.shape in ((), (n_samples,))
        if not fits or (lengths < 0).any():
            raise ParameterError.of("length", "an integer of at least 0, or one of each", length)
        state = self.random_state if random_state is None else random_state
        rng = stream(seed_of(state), "sample")
        lengths = np.broadcast_to(lengths, (n_samples,))
        labels = rng.choice(self.n_classes_, size=n_samples, p=self.proportions_)
        wide = draw_chains(self.initial_, self.transition_, labels, lengths, rng)
        names = tuple(self.states_.tolist())
        return Sequences.of(wide, states=names), labels.astype(np.int64)

    def _read(
        self, X: Any, sample_weight: ArrayLike | None = None, *, weigh: bool = True
    ) -> Events:
        check_is_fitted(self)
        X = of_arrow(X)
        given = column_names(X)
        if given is not None and hasattr(self, "feature_names_in_"):
            fitted = self.feature_names_in_.tolist()
            if [x for x in fitted if x in set(given)] != [x for x in given if x in set(fitted)]:
                raise DataError(
                    "the columns of X are time points, and stand in another order than in the fit"
                )
        sequences = sequences_of(X, self.states_.tolist())
        weights = weights_of(sequences, sample_weight) if weigh else None
        return markov.events_of(replace(sequences, weights=weights))

    # ------------------------------------------------------------------ arrays

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of numbers that hold what predictions rest on, without anything by sequence.

        Raises
        ------
        DataError
            The states are neither all numbers nor all texts.
        """
        check_is_fitted(self)
        return {
            **self._parameters.to_arrays(),
            **levels_to_arrays((self.states_,), "states"),
            "n_parameters": np.array([self.n_parameters_], dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild an estimator that predicts from `to_arrays` of it, checking every number.

        Arrays without ``n_parameters``, as older versions wrote them, count all states as seen.

        Parameters
        ----------
        arrays : mapping of str to array
            What `to_arrays` gave.

        Returns
        -------
        estimator
            It predicts; what fitting alone leaves is absent.

        Raises
        ------
        DataError
            An array is missing or cannot be a part of a mixture of Markov chains.
        """
        parameters = MarkovParameters.from_arrays(arrays)
        (states,) = levels_from_arrays(arrays, (parameters.n_states,), "states")
        found = cls(parameters.n_classes, states=states.tolist())
        found.states_ = states
        found._adopt(parameters)
        k, size = parameters.n_classes, parameters.n_states
        every = {"n_parameters": np.array([k - 1 + k * (size - 1) * (1 + size)])}
        found._take_parameter_count({**every, **arrays}, "a mixture of Markov chains")
        return found


# --------------------------------------------------------------------------- input


def sequences_of(X: Any, states: Iterable[Any] | None) -> Sequences:
    """Read sequences with the names of their states.

    Parameters
    ----------
    X : Sequences, (n, t) array or data frame, or list of lists
        Of a table the columns are successive time points. NaN and None are missing.
    states : iterable, optional
        The alphabet; by default what a data frame of categories declares, else what occurs, sorted.

    Returns
    -------
    Sequences

    Raises
    ------
    DataError
        X has another form, a state is not in the alphabet, or there is no sequence.
    """
    if isinstance(X, Sequences):
        own = range(X.n_states) if X.states is None else X.states
        return _some(X.renamed(own if states is None else states))
    if isinstance(X, list | tuple):
        if any(isinstance(each, str | bytes) or not isinstance(each, Iterable) for each in X):
            raise DataError(
                "Expected 2D array, got 1D array instead: X must hold one list of states for each "
                "sequence. Reshape your data if it is one sequence"
            )
        return Sequences.from_lists(_some(X), states)
    if hasattr(X, "toarray") and hasattr(X, "nnz"):
        raise TypeError(
            "Sparse data was passed for X, but sequences are dense: a state that is not stored is "
            "not a missing one"
        )
    table = column(X) if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    if table.ndim != 2:
        raise DataError(
            f"Expected 2D array, got {table.ndim}D array instead: X must have one row for each "
            "sequence. Reshape your data if it is one sequence"
        )
    if table.dtype.kind == "c":
        raise DataError("Complex data not supported: a state is a number or a text")
    _some(table)
    if table.shape[1] == 0:
        raise DataError(
            f"0 feature(s) (shape={table.shape}) while a minimum of 1 is required: X has no "
            "time point"
        )
    known = _declared_states(X) if states is None else states
    if table.dtype.kind in "biuf":
        codes, names = _of_numbers(table.ravel(), known)
    else:
        codes, names = coded(table.ravel().tolist(), known)
    return Sequences.of(codes.reshape(table.shape), states=names)


def _some(given: S) -> S:
    if len(given) == 0:
        raise DataError("X has no sequence (0 sample(s)): give at least one")
    return given


def column_names(X: Any) -> NDArray[Any] | None:
    """Names of the columns of a data frame, if all are texts."""
    columns = getattr(X, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return None
    return np.asarray(list(columns), dtype=object)


def _declared_states(X: Any) -> tuple[Any, ...] | None:
    """States that a data frame declares: all its columns are categorical with the same levels."""
    kinds = getattr(X, "dtypes", None)
    if kinds is None or not hasattr(X, "columns"):
        return None
    levels = {
        None if found is None else tuple(found)
        for found in (getattr(kind, "categories", None) for kind in kinds)
    }
    return levels.pop() if len(levels) == 1 else None


def weights_of(sequences: Sequences, sample_weight: Any) -> FloatArray | None:
    """Weights that were given with the sequences, times those that were given beside them.

    Raises
    ------
    DataError
        A weight is negative or not finite, there is not one for each sequence, or all are 0.
    """
    own = sequences.weights
    if sample_weight is not None:
        weight = numbers_of("sample_weight", sample_weight)
        if weight.ndim == 0:
            weight = np.full(len(sequences), float(weight))
        if weight.shape != (len(sequences),):
            raise DataError(
                f"sample_weight.shape == {weight.shape}, expected {(len(sequences),)}: one weight "
                "for each sequence"
            )
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise DataError("sample_weight must be finite and at least 0")
        own = weight if own is None else own * weight
    if own is not None and not own.sum() > 0:
        raise DataError("all weights are zero: nothing can be fitted")
    return own


def _of_numbers(
    cells: NDArray[Any], states: Iterable[Any] | None
) -> tuple[NDArray[np.int32], tuple[Any, ...]]:
    """Code numbers by their few different values."""
    if cells.dtype.kind == "f" and np.isinf(cells).any():
        raise DataError(NO_STATE)
    kinds, place = np.unique(cells, return_inverse=True)  # NaN is one kind, the last
    few = kinds.tolist()
    if cells.dtype.kind == "f" and (np.isnan(kinds) | (kinds == np.round(kinds))).all():
        few = [kind if kind != kind else int(kind) for kind in few]
    try:
        codes, names = coded(few, states)
    except DataError:  # which counts kinds: count cells
        codes, names = coded(np.array(few, dtype=object)[place.ravel()].tolist(), states)
        return codes, names
    return codes[place.ravel()], names
