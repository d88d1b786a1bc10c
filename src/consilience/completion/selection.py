"""Rank and penalty by errors at held-out entries.

`EntrySearch` is the base of the searches: the curve, the choice, the model that is kept. A complete
matrix can also be judged by the one-step leave-one-out, as a curve of errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray, IntArray
from consilience.completion.entry_splits import EntrywiseKFold, labels_of
from consilience.completion.estimators import entry_input, entry_plans
from consilience.completion.estimators.entry_input import RowCompletion
from consilience.completion.estimators.low_rank import BY_RANK, SoftImpute
from consilience.completion.kernels import assumptions
from consilience.exceptions import DataError, ParameterError
from consilience.numerics import held_out_entries
from consilience.numerics.entries import CENTRES, Entries, centre_of, rating_values
from consilience.numerics.held_out_entries import EntryCurve, copied

# --- What searches over held-out entries share: the curve, the choice, the model that is kept.


class EntrySearch(RowCompletion, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the searches.

    A subclass has the parameters `rule` and `refit` and writes :meth:`_search`, :meth:`_refitted`
    and :meth:`_tell`.

    Attributes
    ----------
    curve_ : EntryCurve
        Mean squared error per held-out entry, by parameter and fold.
    minimiser_ : float or int
        Parameter with the smallest mean error, at an edge of the grid too.
    one_standard_error_ : float or int
        Simplest parameter within one standard error of the smallest mean error.
    at_edge_ : bool
        Whether the smallest error lies where the grid ends though the problem goes on.
    best_estimator_ : estimator
        Fitted to all entries, with the parameter that the rule keeps; at an artificial edge too.
        Only with ``refit=True``. It knows the scaled table.
    scale_ : (p,) array
        What columns were divided by.
    center_ : str
        What was taken off first, of models that take something off.
    remarks_ : tuple of str
        What was noticed.
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.
    """

    cv: Any
    n_jobs: int | None
    rule: str
    refit: bool
    scale: str
    best_estimator_: Any

    def _search(self, entries: Entries) -> EntryCurve:
        """Errors at held-out entries."""
        raise NotImplementedError

    def _refitted(self, entries: Entries, value: Any) -> Any:
        """Estimator of a parameter, fitted to all entries."""
        raise NotImplementedError

    def _tell(self, value: Any, chosen: Any) -> None:
        """Set attributes of the search's own.

        Parameters
        ----------
        value : float or int
            What is kept.
        chosen : float, int or None
            The same, or None at an artificial edge.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose by held-out entries, and fit all entries with what was chosen.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN is missing; of a sparse matrix the stored entries are observed, stored zeros too.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range.
        DataError
            The matrix cannot be used, or has one row or one column.

        Warns
        -----
        GridEdgeWarning
            The smallest error lies where the grid ends though the problem goes on.
        """
        entry_input.check_settings(self)
        held_out_entries.check_rule(self.rule)
        if self.scale not in _SCALES:
            raise ParameterError.of("scale", '"none" or "columns"', self.scale)
        entries = entry_input.observed_entries(self, X, reset=True)
        n, p = entries.shape
        if n < 2 or p < 2:
            short = "one row (n_samples = 1)" if n < 2 else "one column (n_features = 1)"
            raise DataError(
                f"the matrix has {short}: entries of it cannot be held out, for nothing would be "
                "left to predict them from"
            )
        self._noticed: tuple[str, ...] = ()
        self._center = self._centred(entries)
        scale = np.ones(p) if self.scale == "none" else spreads_of(entries)
        curve = self._search(entries.with_values(entries.values / scale[entries.columns]))
        noise = None if self.scale == "none" else noise_of(curve)
        if noise is not None:
            scale = scale * noise
            curve = self._search(entries.with_values(entries.values / scale[entries.columns]))
        # A search that fails leaves those of before.
        self._entries, self.scale_, self.curve_ = entries, scale, curve
        self.center_ = self._center
        entries = self._scaled(entries)
        self.minimiser_ = curve.best
        self.one_standard_error_ = curve.best_one_standard_error
        self.at_edge_ = curve.at_edge
        value = curve.parameters[curve.place(self.rule)].item()
        remark = curve.edge_remark()
        said: tuple[str, ...] = () if remark is None else (remark,)
        # of two searches the same ones
        self.remarks_: tuple[str, ...] = (*dict.fromkeys(self._noticed), *said)
        # of an earlier fit
        if hasattr(self, "best_estimator_"):
            del self.best_estimator_
        if self.refit:
            self.best_estimator_ = self._refitted(entries, value)
        self._tell(value, None if curve.at_edge else value)
        if self.refit and p * n <= _DENSE:
            self.remarks_ += tuple(doubt for doubt in self._doubts(entries, value) if doubt)
        if remark is not None:
            warnings.warn(remark, held_out_entries.GridEdgeWarning, stacklevel=2)
        return self

    def _centred(self, entries: Entries) -> str:
        """What is taken off first, and a remark where the table decided it.

        Raises
        ------
        ParameterError
        """
        center = getattr(self, "center", "none")
        if center in CENTRES:
            return str(center)
        if center != "auto":
            words = ", ".join(f'"{word}"' for word in ("auto", *CENTRES))
            raise ParameterError.of("center", f"one of {words}", center)
        distinct = rating_values(entries)
        if not distinct:
            return "none"
        self._noticed += (
            f"the table looks like ratings ({distinct} distinct values, "
            f"{1.0 - entries.density:.0%} missing), so that terms for rows and columns were taken "
            'off first: center = "none" leaves them',
        )
        return "rows-and-columns"

    def _doubts(self, entries: Entries, value: Any) -> list[str | None]:
        """What speaks against the assumptions, of the scaled entries and the kept model."""
        return []

    def _left(self, entries: Entries, rank: int, axes: Any) -> list[str | None]:
        """The same, of what a fit of a rank leaves, with its axes (rank, p) where they are known.

        Its last two hold for fits that are shrunk, too.
        """
        left = entries.dense() - np.asarray(self.best_estimator_.reconstruct())
        # noise that components take with them, by column
        taken = np.full(entries.shape[1], rank / entries.shape[0])
        if axes is not None:
            taken += (np.asarray(axes) ** 2).sum(axis=0)
        return [
            assumptions.unequal_spread(left, taken) if self.scale == "none" else None,
            assumptions.along_an_order(left) or self._stretches(entries, rank),
            assumptions.heavy_tails(left),
        ]

    def _no_low_rank(self, rank: int, most: int) -> str | None:
        """Refitted singular values that predict best with more than half of all components."""
        if 2 * rank <= most:
            return None
        why = (
            'columns of unequal noise do this; compare with scale="columns"'
            if self.scale == "none"
            else "columns of little noise are predicted best with noise of others; compare with "
            'RankCV("hard")'
        )
        return (
            f"rank {rank} of at most {most} is no low rank, and little is left to be noise: {why}"
        )

    def _stretches(self, entries: Entries, rank: int) -> str | None:
        """Components that predict scattered entries and do harm in whole stretches of columns.

        Ranks of truncated decompositions are asked for it, whatever the model: a penalty spreads
        noise over so many components that its own curve does not tell.
        """
        (n, p), length = entries.shape, min(_STRETCH, entries.shape[1] // 2)
        blocks = isinstance(self.cv, str) or getattr(self.cv, "blocks", None) is not None
        if blocks or rank < 1 or length < 3 or n * p > _QUICK or p > _MOST_COLUMNS:
            return None
        x = entries.dense()
        x = np.where(np.isnan(x), np.asarray(self.best_estimator_.reconstruct()), x)
        if not assumptions.along_columns(x - x.mean(axis=0), min(rank, _LOOKED_AT)):
            return None
        center = "rows-and-columns" if self._center == "rows-and-columns" else "columns"
        curves: list[EntryCurve] = []
        for stretch in (None, length):
            folds = EntrywiseKFold(blocks=stretch, random_state=0).folds(entries)
            ranks: Any = curves[0].parameters if curves else "auto"
            plan = entry_plans.plan_ranks(entries, folds, ranks=ranks, center=center)
            curves.append(plan.errors(entries, folds, n_jobs=self.n_jobs))
        many, few = (curve.minimiser for curve in curves)
        errors = curves[1].errors
        lost = errors[:, many] - errors[:, few]
        spread = lost.std(ddof=1) / np.sqrt(len(lost))
        if few > many - 2 or lost.mean() <= 2.0 * spread:  # one more may be a weak component
            return None
        return (
            f"rank {many} predicts scattered entries best, and whole stretches of {length} "
            f"neighbouring columns worse than rank {few}: noise that goes along the columns is "
            "taken for components; difference or whiten along the columns, or hold out whole "
            f"stretches: cv=EntrywiseKFold(blocks={length})"
        )

    def _scaled(self, entries: Entries) -> Entries:
        return entries.with_values(entries.values / self.scale_[entries.columns])

    # ------------------------------------------------------------------ answers of the model

    def transform(self, X: Any) -> FloatArray:
        """As of the model that is kept.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        """
        return np.asarray(self._ask("transform", X))

    def inverse_transform(self, X: Any) -> FloatArray:
        """As of the model that is kept.

        Parameters
        ----------
        X : (m, k) array
        """
        return np.asarray(self._model().inverse_transform(X)) * self.scale_

    def _reconstructed(self, X: Any) -> FloatArray:
        model = self._model()
        found = np.array(model.reconstruct() if X is None else self._ask("reconstruct", X))
        return np.asarray(found * self.scale_)

    def _cells(self, rows: IntArray, columns: IntArray) -> FloatArray:
        model = self._model()
        if hasattr(model, "predict_entries"):
            return np.asarray(model.predict_entries(rows, columns)) * self.scale_[columns]
        return np.asarray(model.reconstruct()[rows, columns] * self.scale_[columns])

    def _model(self) -> Any:
        check_is_fitted(self, "curve_")
        if not hasattr(self, "best_estimator_"):
            raise DataError("no model was kept: search with refit=True")
        return self.best_estimator_

    def _ask(self, name: str, X: Any) -> Any:
        model = self._model()
        if not hasattr(model, name):
            raise AttributeError(f"{type(model).__name__} has no {name}")
        return getattr(model, name)(
            entry_input.readable(
                model, self._scaled(entry_input.observed_entries(self, X, reset=False))
            )
        )

    @property
    def _n_features_out(self) -> int:
        model = self._model()
        known = getattr(model, "_n_features_out", None)
        return len(model.get_feature_names_out()) if known is None else int(known)


class ModelSearch(EntrySearch):
    """Base of the searches over a parameter of a model: one of the package, or any estimator."""

    estimator: Any
    parameter: str | None
    _models: ClassVar[Mapping[str, Any]]  # by name
    _usual: ClassVar[tuple[str, ...]]  # what the parameter is called, the first that there is
    _what: ClassVar[str]  # what it is, for errors

    def _named(self) -> bool:
        """Whether the model is one of the package, by its name.

        Raises
        ------
        ParameterError
            An unknown name.
        """
        if isinstance(self.estimator, str) and self.estimator not in self._models:
            allowed = ", ".join(f'"{name}"' for name in self._models) + " or an estimator"
            raise ParameterError.of("estimator", allowed, self.estimator)
        return isinstance(self.estimator, str)

    def _name(self) -> str:
        """Which parameter of an object the search sets.

        Raises
        ------
        ParameterError
            It has none of the usual ones, and the caller names none.
        """
        given, made = self.parameter, self.estimator
        if given is not None or not hasattr(made, "get_params") or isinstance(made, type):
            return given or self._usual[0]
        known = made.get_params(deep=True)
        found = [name for name in self._usual if name in known]
        if not found:
            raise ParameterError(
                f"{type(made).__name__} has no parameter called {', '.join(self._usual)}: say "
                f"with parameter= which of its parameters is {self._what}"
            )
        return found[0]

    def _settings(self, value: int) -> dict[str, Any]:
        """What a model of the package is made with."""
        raise NotImplementedError

    def _refitted(self, entries: Entries, value: int) -> Any:
        if isinstance(self.estimator, str):
            return self._models[self.estimator](**self._settings(value)).fit(entries)
        model = copied(self.estimator).set_params(**{self._name(): value})
        return model.fit(entry_input.readable(model, entries))


_SCALES = ("none", "columns")
_DENSE = 10_000_000  # cells of a table whose residuals are looked at
_QUICK, _MOST_COLUMNS = 1_000_000, 1000  # ... and of one in which stretches are held out
_STRETCH, _LOOKED_AT = 10, 10  # neighbouring columns of one, and components taken off before


def spreads_of(entries: Entries) -> FloatArray:
    """Standard deviation of the observed entries of each column, (p,); 1 where they do not vary.

    Parameters
    ----------
    entries : Entries
    """
    rest = centre_of(entries, "columns").removed(entries).values
    squares = np.bincount(entries.columns, weights=rest**2, minlength=entries.shape[1])
    found = np.sqrt(squares / np.maximum(entries.column_counts, 1))
    largest = np.zeros(entries.shape[1])  # of the column: others may be in far larger units
    np.maximum.at(largest, entries.columns, np.abs(entries.values))
    return np.where(found > 1e-12 * largest, found, 1.0)


_LEAST_NOISE = 0.1  # share of a column's spread: one that others predict exactly would rule alone


def noise_of(curve: EntryCurve) -> FloatArray | None:
    """Noise of columns of unit spread, (p,), by what a search for a rank leaves of them.

    A column that is mostly signal has little noise for its spread. Refitted singular values then
    predict it best with many components, whose noise of other columns costs nothing at held-out
    entries; in units of their noise no column is predicted at the price of others (Leeb and Romanov
    2021). Held-out errors do not grow smaller with the rank that is fitted, as residuals do.

    Parameters
    ----------
    curve : EntryCurve

    Returns
    -------
    noise : (p,) array or None
        From .1 to 1, which columns keep of which nothing is held out. None where nothing but noise
        was found, where errors by column are not known, and for penalties, which are in units of
        the table.
    """
    best = curve.minimiser
    nothing = best < 1 and curve.natural[0]
    if curve.column_errors is None or curve.parameter != "rank" or nothing:
        return None
    found = np.clip(np.sqrt(curve.column_errors[best]), _LEAST_NOISE, 1.0)
    return np.where(curve.column_errors[0] > 0, found, 1.0)


# --- The one-step leave-one-out of complete matrices as a curve of errors.

ONE_STEP = {"one-step": "exact", "one-step-as-printed": "as_printed"}


def one_step(parameter: str, entries: Entries, given: Any, center: str, cv: str) -> EntryCurve:
    """Errors of truncated, or of soft-thresholded, singular value decompositions.

    Parameters
    ----------
    parameter : {"rank", "alpha"}
    entries : Entries
        Complete.
    given : "auto", int or sequence
        Ranks: a number means all up to it, "auto" all below min(n, p). Penalties: "auto" means a
        number of 19, from the penalty that leaves nothing to a thousandth of it.
    center : {"none", "columns", "rows-and-columns"}
        Of the whole matrix: it is not left out.
    cv : {"one-step", "one-step-as-printed"}

    Raises
    ------
    ParameterError
        Another word, or ranks or penalties out of their range.
    DataError
        The matrix has missing entries.
    """
    from consilience.completion.kernels import low_rank

    if cv not in ONE_STEP:
        allowed = 'a number of folds, an EntrywiseKFold, "one-step" or "one-step-as-printed"'
        raise ParameterError.of("cv", allowed, cv)
    if not entries.complete:
        raise DataError(f'cv = "{cv}" needs a complete matrix: use folds where entries are missing')
    x = centre_of(entries, center).removed(entries).dense()
    tried: list[Any]
    if parameter == "rank":
        ranks = given
        if isinstance(ranks, str):
            if ranks != "auto":
                raise ParameterError.of("ranks", '"auto" or a list of numbers', ranks)
            ranks = np.arange(min(x.shape))
        plan = entry_plans.plan_ranks(entries, np.zeros(0, dtype=np.int64), ranks=ranks)
        tried = list(plan.path.parameters)
        natural = (tried[0] == 0, False)
        predictions = low_rank.hard_predictions(x, tried, variant=ONE_STEP[cv])
    else:
        plan = entry_plans.plan_alphas(entries, alphas=given, center=center)
        tried = [float(alpha) for alpha in plan.path.parameters]
        if isinstance(given, str):
            tried = (tried[0] * np.geomspace(1.0, 1e-3, 19)).tolist()
        natural = plan.natural(tried[0], tried[-1])
        predictions = low_rank.soft_predictions(x, tried, variant=ONE_STEP[cv])
    errors, spread = [], []
    for predicted in predictions:
        squares = (predicted - x) ** 2
        # an entry that alone decides on its row or column has no prediction: the error is unknown
        known = np.isfinite(squares).all()
        errors.append(float(squares.mean()) if known else np.nan)
        spread.append(float(squares.std(ddof=1) / np.sqrt(x.size)) if known else np.nan)
    n_held = np.array([x.size], dtype=np.int64)
    return EntryCurve(
        parameter, np.asarray(tried), np.array([errors]), n_held, natural, np.array(spread)
    )


# --- Rank of a matrix with missing entries, by errors at held-out entries.


class RankCV(ModelSearch):
    """Choose the rank of a model by cross-validated errors at held-out entries.

    Parameters
    ----------
    estimator : str or estimator
        "hard" (HARD-IMPUTE), "soft-unshrunk" (SOFT-IMPUTE+ at the smallest penalty of each rank),
        "optspace", "ppca", or an object with ``fit(X)``, where NaN is missing, ``reconstruct()``
        and a parameter that is a rank, such as ``EMLift(PCA())``.
    parameter : str, optional
        That parameter of an object; by default "rank", "n_components" or "estimator__n_components".
    ranks : "auto", int or sequence of int
        A number means all up to it; full rank is left out, since it fits every table. "auto" starts
        with ranks up to 10 and goes on until the smallest error lies inside the grid, as long as
        the model has fewer parameters than a fold leaves entries.
    cv : int, EntrywiseKFold, (m,) array of int, "one-step" or "one-step-as-printed"
        Number of folds; folds; the fold of each observed entry; or the one-step leave-one-out of
        every entry of a complete matrix, for "hard" alone, with the formula that equals fitting
        again or the one that the source prints.
    rule : {"minimum", "one-standard-error"}
        Chosen rank: that of the smallest error, or the smallest within one standard error of it.
    center : {"auto", "none", "columns", "rows-and-columns"}
        What is subtracted first, for models of the package; "ppca" estimates its own mean. "auto"
        takes rows and columns of tables like ratings (2 to 25 distinct values, half of it missing
        or more), and nothing otherwise.
    scale : {"none", "columns"}
        For columns of unequal noise, or in different units. "columns" divides columns by the
        standard deviations of their observed entries. Where the best rank by folds is above 0, it
        divides them by their root mean squared held-out errors, too (at least a tenth), and
        searches again. Errors are those of scaled entries.
    refit : bool
        Fit the chosen model to all entries.
    n_jobs : int, optional
        Folds at a time, as in joblib. The answer does not depend on it.
    random_state : int, numpy Generator, RandomState or None
        Of the folds, where `cv` is a number.

    Attributes
    ----------
    best_rank_ : int or None
        Rank chosen by the rule; None if the smallest error lies at an artificial edge of the grid.
    rank_ : int
        Rank of `best_estimator_`: at an artificial edge the one with the smallest error.
    curve_ : EntryCurve
        Mean squared error per held-out entry, by rank and fold.
    minimiser_, one_standard_error_ : int
        Rank with the smallest error, and the smallest rank within one standard error of it.
    at_edge_ : bool
    center_ : str
        What was taken off first.
    best_estimator_ : estimator
        Fitted to all entries with `rank_`.
    remarks_ : tuple of str
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Ya Le's Stanford thesis, chapter 3. Two assumptions: noise is independent between
    entries (with correlated noise too large a rank is chosen), and entries are missing at random.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import RankCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 20)) + 0.1 * rng.normal(size=(60, 20))
    >>> X[rng.random(X.shape) < 0.1] = np.nan
    >>> search = RankCV("hard", random_state=0).fit(X)
    >>> search.best_rank_, search.complete().shape
    (3, (60, 20))
    """

    _models = BY_RANK
    _usual = ("rank", "n_components", "estimator__n_components")
    _what = "a rank"

    def __init__(
        self,
        estimator: Any = "hard",
        *,
        parameter: str | None = None,
        ranks: str | ArrayLike = "auto",
        cv: Any = 5,
        rule: str = "minimum",
        center: str = "auto",
        scale: str = "none",
        refit: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.parameter = parameter
        self.ranks = ranks
        self.cv = cv
        self.rule = rule
        self.scale = scale
        self.center = center
        self.refit = refit
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _search(self, entries: Entries) -> EntryCurve:
        named = self._named()
        if isinstance(self.cv, str):
            if not named or self.estimator != "hard":
                raise ParameterError(f'cv = "{self.cv}" is for estimator = "hard" alone')
            return one_step("rank", entries, self.ranks, self._center, self.cv)
        folds = labels_of(entries, self.cv, self.random_state, name="cv")
        if named:
            plan = entry_plans.plan_ranks(
                entries, folds, model=self.estimator, ranks=self.ranks, center=self._center
            )
        else:
            plan = entry_plans.plan_estimator(
                entries, folds, self.estimator, self._name(), values=self.ranks
            )
        self._noticed += plan.remarks
        return plan.errors(entries, folds, n_jobs=self.n_jobs)

    def _centred(self, entries: Entries) -> str:
        own = not self._named() or self.estimator == "ppca"
        known = self.center in ("auto", *CENTRES)
        return "none" if own and known else super()._centred(entries)

    def _settings(self, value: int) -> dict[str, Any]:
        return {"rank": value, "center": self._center}

    def _tell(self, value: int, chosen: int | None) -> None:
        self.rank_ = value
        self.best_rank_ = chosen

    def _doubts(self, entries: Entries, value: int) -> list[str | None]:
        axes = getattr(self.best_estimator_, "components_", None)
        last = value and value == self.curve_.parameters[-1] and self.curve_.natural[1]
        refitted = isinstance(self.estimator, str) and self.estimator == "soft-unshrunk"
        return [
            *self._left(entries, value, axes if isinstance(self.estimator, str) else None),
            f"rank {value} is the last one below full rank: hardly anything is left to be noise, "
            "and a low rank may not be what the table has"
            if last
            else None,
            self._no_low_rank(value, min(entries.shape)) if refitted else None,
        ]


# --- Nuclear-norm penalty of soft-impute, by errors at held-out entries.

_FOLD_TOL = 1e-4  # moves held-out errors by far less than their standard errors


class NuclearNormCV(EntrySearch):
    """Choose the penalty of soft-impute by cross-validated errors at held-out entries.

    Parameters
    ----------
    alphas : "auto", int or sequence of float
        "auto" goes down from the penalty that leaves nothing, six penalties to a power of ten,
        until the smallest error lies inside or the curve is flat, at most to 1e-4 of it; a number
        of penalties goes down to a hundredth.
    unshrink : bool
        Judge, and keep, fits whose singular values are refitted (SOFT-IMPUTE+).
    max_rank : int, optional
        Largest rank of a fit.
    solver : {"auto", "dense", "als"}
        As of :class:`consilience.SoftImpute`.
    cv : int, EntrywiseKFold, (m,) array of int, "one-step" or "one-step-as-printed"
        As of :class:`consilience.RankCV`; one step is for fits that are not unshrunk.
    rule : {"minimum", "one-standard-error"}
        What is kept: the penalty with the smallest error, or the largest within one standard error.
    center : {"auto", "none", "columns", "rows-and-columns"}
        What is taken off first; "auto" as of :class:`consilience.RankCV`.
    scale : {"none", "columns"}
        "columns" divides columns by the standard deviations of their observed entries; penalties
        are those of the scaled table.
    tol : float
        Relative duality gap at which the kept fit ends; fits to folds end at 1e-4, or at this if it
        is larger.
    max_iter : int, optional
        Iterations of a fit, by default those of the solver.
    refit : bool
        Fit the chosen model to all entries.
    n_jobs : int, optional
        Folds at a time, as in joblib. The answer does not depend on it.
    random_state : int, numpy Generator, RandomState or None
        Of the folds, where `cv` is a number.

    Attributes
    ----------
    best_alpha_ : float or None
        Rank chosen by the rule; None if the smallest error lies at an artificial edge of the grid.
    alpha_ : float
        Penalty of `best_estimator_`: at an artificial edge the one with the smallest error.
    rank_ : int
        Rank of `best_estimator_`; only with ``refit=True``.
    n_iter_ : int
        Iterations of its fit.
    curve_ : EntryCurve
        Mean squared error per held-out entry, by penalty and fold.
    minimiser_, one_standard_error_ : float
        Penalty with the smallest error, and the largest within one standard error of it.
    at_edge_ : bool
    center_ : str
        What was taken off first.
    best_estimator_ : SoftImpute
        Fitted to all entries with `alpha_`.
    remarks_ : tuple of str
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Ya Le's Stanford thesis, chapter 3. The penalty that is best for the entries of a part
    is used for all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import NuclearNormCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 20)) + 0.5 * rng.normal(size=(60, 20))
    >>> X[rng.random(X.shape) < 0.2] = np.nan
    >>> search = NuclearNormCV(random_state=0).fit(X)
    >>> full = search.complete()
    >>> bool((full[np.isfinite(X)] == X[np.isfinite(X)]).all()), search.at_edge_
    (True, False)
    """

    def __init__(
        self,
        alphas: str | int | ArrayLike = "auto",
        *,
        unshrink: bool = False,
        max_rank: int | None = None,
        solver: str = "auto",
        cv: Any = 5,
        rule: str = "minimum",
        center: str = "auto",
        scale: str = "none",
        tol: float = 1e-6,
        max_iter: int | None = None,
        refit: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.alphas = alphas
        self.unshrink = unshrink
        self.max_rank = max_rank
        self.solver = solver
        self.cv = cv
        self.rule = rule
        self.scale = scale
        self.center = center
        self.tol = tol
        self.max_iter = max_iter
        self.refit = refit
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _search(self, entries: Entries) -> EntryCurve:
        if isinstance(self.cv, str):
            if self.unshrink:
                raise ParameterError(f'cv = "{self.cv}" is for unshrink = False alone')
            return one_step("alpha", entries, self.alphas, self._center, self.cv)
        folds = labels_of(entries, self.cv, self.random_state, name="cv")
        settings = self._settings()
        settings["tol"] = max(self.tol, _FOLD_TOL)
        plan = entry_plans.plan_alphas(entries, alphas=self.alphas, **settings)
        return plan.errors(entries, folds, n_jobs=self.n_jobs)

    def _settings(self) -> dict[str, Any]:
        passed_on = ("unshrink", "max_rank", "solver", "tol", "max_iter")
        return {"center": self._center, **{name: getattr(self, name) for name in passed_on}}

    def _refitted(self, entries: Entries, value: float) -> Any:
        given = {name: x for name, x in self._settings().items() if x is not None}
        return SoftImpute(alpha=value, **given).fit(entries)

    def _tell(self, value: float, chosen: float | None) -> None:
        self.alpha_ = value
        self.best_alpha_ = chosen
        for name in ("rank_", "n_iter_"):
            if hasattr(self, name):  # of an earlier fit
                delattr(self, name)
        if self.refit:
            self.rank_ = int(self.best_estimator_.n_components_)
            self.n_iter_ = max(1, int(self.best_estimator_.n_iter_))

    def _doubts(self, entries: Entries, value: float) -> list[str | None]:
        found = self._left(entries, self.rank_, self.best_estimator_.components_)
        if not self.unshrink:  # a penalty leaves as much of every column, whatever its noise
            return found[1:]
        return [*found, self._no_low_rank(self.rank_, min(entries.shape))]
