"""Latent class analysis: subtypes in a table of categories, with missing entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators import category_codes
from consilience.clustering.estimators.mixture import RULES, DiscreteMixture
from consilience.clustering.kernels import multinomial_mixture as kernel
from consilience.clustering.kernels.mixtures import Arrays
from consilience.clustering.kernels.multinomial_mixture import CategoryPatterns, MultinomialMixture
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.numerics.row_units import of_arrow
from consilience.parameters import check, whole

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
    _fit_kernel = staticmethod(kernel.fit_multinomial_mixture)
    _parameter_count = staticmethod(kernel.parameter_count)

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
        errors = kernel.mixture_errors(self._mixture, data)
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
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
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
