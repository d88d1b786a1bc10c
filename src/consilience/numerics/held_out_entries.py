"""Errors at held-out entries: fit on the other folds, predict, average the squared errors.

The search knows no model. A *path* gives predictions for each of its parameters, the simplest
first; what it fits for that is its own affair (:class:`Fits` and those below it). Source: Ya Le's
Stanford thesis, chapter 3.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries, centre_of
from consilience.numerics.parallel import one_thread, ordered_map
from consilience.numerics.random import stream

if TYPE_CHECKING:
    import pandas as pd


_ROUNDING = 1e-9  # errors that differ by less than this share are one error
_NOTHING = 1e-12  # ... and by less than this share of the simplest parameter's, exact fits


class GridEdgeWarning(UserWarning):
    """The smallest error lies where the grid ends, though the problem goes on: no choice."""


@runtime_checkable
class EntryPath(Protocol):
    """Fits of one kind, from the simplest parameter to the most complex.

    May also have `parameter`, what the numbers are (``"rank"``), and `natural`, two booleans: does
    the problem itself end at the first, and at the last of the parameters.
    """

    @property
    def parameters(self) -> Sequence[Any]:
        """Parameters, the simplest first."""

    def predictions(
        self, train: Entries, rows: IntArray, columns: IntArray
    ) -> Iterator[FloatArray]:
        """Predict entries, (m,), once for each of the parameters and in their order.

        Parameters
        ----------
        train : Entries
            What may be learned from.
        rows, columns : (m,) array of int
            Places of the held-out entries.
        """


@runtime_checkable
class GrowingPath(EntryPath, Protocol):
    """A path that can go on where it stopped, so that a grid may grow."""

    def go_on(
        self, train: Entries, values: Sequence[Any], start: Any, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[FloatArray, Any]]:
        """Predictions for further parameters, each with what the next one starts from.

        Parameters
        ----------
        train : Entries
        parameters : sequence
            More complex than those before.
        start : object or None
            What came with the last prediction on the same entries.
        rows, columns : (m,) array of int
        """


@dataclass(frozen=True, eq=False, repr=False)
class EntryCurve:
    """Mean squared error per held-out entry, for each parameter.

    Parameters
    ----------
    parameter : str
        What the parameters are: "rank", "alpha", "n_clusters".
    parameters : (q,) array
        The simplest first.
    errors : (f, q) array
        Mean squared errors per entry of each fold; NaN where a fold withholds one.
    n_held : (f,) array of int
        Held-out entries of each fold.
    natural : (bool, bool)
        Whether the problem itself ends at the first, and at the last parameter.
    given_se : (q,) array, optional
        Standard errors from elsewhere, as where folds are single entries.
    table_se : (q,) array, optional
        Standard errors of the means for a table of other rows and columns: squared errors of one
        row are correlated, and so are those of one column (Cameron, Gelbach and Miller 2011,
        two-way clusters). The spread over folds does not see this.
    column_gain : (q,) array, optional
        By which share of its error at the simplest parameter a column's error falls, mean over held
        entries.
    column_errors : (q, p) array, optional
        Mean squared error of each column's held-out entries; 0 where it has none.
    """

    parameter: str
    parameters: NDArray[Any]
    errors: FloatArray
    n_held: IntArray
    natural: tuple[bool, bool] = (False, False)
    given_se: FloatArray | None = None
    table_se: FloatArray | None = None
    column_gain: FloatArray | None = None
    column_errors: FloatArray | None = None

    def __repr__(self) -> str:
        folds, q = self.errors.shape
        return f"EntryCurve({self.parameter}, {q} values, {folds} folds)"

    @classmethod
    def of_sums(
        cls,
        parameter: str,
        parameters: ArrayLike,
        sums: ArrayLike,
        n_held: ArrayLike,
        *,
        natural: tuple[bool, bool] = (False, False),
        se: ArrayLike | None = None,
    ) -> EntryCurve:
        """Curve of sums of squared errors, as sites send them.

        Parameters
        ----------
        parameter : str
        parameters : (q,) array
        sums : (f, q) array
            NaN where a fold withholds one.
        n_held : (f,) array of int
            Entries that each sum is over.
        natural : (bool, bool)
        se : (q,) array, optional
        """
        held = np.asarray(n_held, dtype=np.int64)
        errors = np.atleast_2d(np.asarray(sums, dtype=np.float64)) / np.maximum(held, 1)[:, None]
        given = None if se is None else np.asarray(se, dtype=np.float64)
        return cls(parameter, np.asarray(parameters), errors, held, natural, given)

    @property
    def mean(self) -> FloatArray:
        """Mean squared error per held-out entry over all folds, (q,); NaN where none is known."""
        known = ~np.isnan(self.errors)
        weight = known * self.n_held[:, None]
        total = weight.sum(axis=0)
        sums = np.where(known, self.errors, 0.0) * self.n_held[:, None]
        return np.where(total > 0, sums.sum(axis=0) / np.maximum(total, 1), np.nan)

    @property
    def se(self) -> FloatArray:
        """Standard error of the mean, from the spread over folds, (q,); NaN for a single fold.

        It is for other folds of this table, and too small for other tables: folds share rows and
        columns, whose errors are correlated, and most of what they learn from. See `table_se`.
        """
        if self.given_se is not None:
            return self.given_se
        known = ~np.isnan(self.errors)
        n = known.sum(axis=0)
        centre = np.where(known, self.errors, 0.0).sum(axis=0) / np.maximum(n, 1)
        squares = (np.where(known, self.errors - centre, 0.0) ** 2).sum(axis=0)
        return np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1)), np.nan)

    @property
    def minimiser(self) -> int:
        """Place of the smallest mean error, of equal ones the simplest; -1 if none is known.

        Errors are equal if they differ by rounding only: parameters that give one and the same fit
        by other operations are not told apart. Where the problem begins with the simplest one (rank
        0, one class), that is taken unless the other predicts better in units of each column, too:
        of noise one column of large variance would decide by chance, whatever it costs the others.
        """
        mean = self.mean
        known = mean[~np.isnan(mean)]
        if not len(known):
            return -1
        same = known.min() * (1 + _ROUNDING) + _NOTHING * known[0]
        best = int(np.flatnonzero(mean <= same)[0])
        ruled = self.column_gain is not None and self.column_gain[best] <= 0.0
        return 0 if ruled and self.natural[0] else best

    @property
    def one_standard_error(self) -> int:
        """Place of the simplest parameter within one standard error of the smallest mean error."""
        best = self.minimiser
        if best < 0:
            return -1
        mean, spread = self.mean, self.se[best]
        within = mean <= mean[best] + (0.0 if np.isnan(spread) else spread)
        return int(np.flatnonzero(within)[0])

    @property
    def best(self) -> Any:
        """Parameter with the smallest mean error, at an edge too; None if none is known."""
        return self._at(self.minimiser)

    @property
    def best_one_standard_error(self) -> Any:
        """Simplest parameter within one standard error of the smallest mean error."""
        return self._at(self.one_standard_error)

    def _at(self, place: int) -> Any:
        return None if place < 0 else self.parameters[place].item()

    @property
    def edge(self) -> str | None:
        """Artificial edge that the minimum lies at: "first", "last" or None."""
        best = self.minimiser
        if best == len(self.parameters) - 1 and not self.natural[1]:
            return "last"
        return "first" if best == 0 and not self.natural[0] else None

    @property
    def at_edge(self) -> bool:
        """Whether the smallest error lies where the grid ends but the problem does not."""
        return self.edge is not None

    def place(self, rule: str) -> int:
        """Place of the parameter that a rule keeps.

        Parameters
        ----------
        rule : {"minimum", "one-standard-error"}
        """
        check_rule(rule)
        return self.minimiser if rule == "minimum" else self.one_standard_error

    def edge_remark(self) -> str | None:
        """One sentence where the smallest error lies at an artificial edge."""
        edge = self.edge
        if edge is None:
            return None
        if len(self.parameters) == 1:
            return (
                f"{self.parameter} = {self.best} is the only value that was tried: nothing was "
                "chosen"
            )
        side = "more complex" if edge == "last" else "simpler"
        value = f"{self.best:.6g}" if isinstance(self.best, float) else self.best
        return (
            f"the smallest held-out error lies at the end of the grid, {self.parameter} = {value}: "
            f"this is no choice, try {side} values"
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each parameter: mean error, its standard error, and the error of each fold."""
        import pandas as pd

        table: dict[str, Any] = {
            self.parameter: self.parameters,
            "error": self.mean,
            "standard_error": self.se,
        }
        table |= {f"fold_{f}": line for f, line in enumerate(self.errors)}
        return pd.DataFrame(table)


def check_rule(rule: str) -> None:
    """Refuse what is no rule.

    Parameters
    ----------
    rule : {"minimum", "one-standard-error"}

    Raises
    ------
    ParameterError
    """
    if rule not in ("minimum", "one-standard-error"):
        raise ParameterError.of("rule", '"minimum" or "one-standard-error"', rule)


def held_out_errors(
    entries: Entries,
    path: EntryPath,
    folds: IntArray,
    *,
    grow: Callable[[EntryCurve], Sequence[Any]] | None = None,
    natural: Callable[[Any, Any], tuple[bool, bool]] | None = None,
    n_jobs: int | None = None,
    predictions: list[FloatArray] | None = None,
) -> EntryCurve:
    """Cross-validated errors at held-out entries.

    Parameters
    ----------
    entries : Entries
        m observed entries.
    path : EntryPath
    folds : (m,) array of int
        Fold of each entry from 0; entries of fold -1 are always learned from.
    grow : callable, optional
        Further parameters in view of the curve so far, none to end. The path must be a
        :class:`GrowingPath`.
    natural : callable, optional
        Whether the problem ends at the first and at the last parameter, given these two; by default
        as the path says.
    n_jobs : int, optional
        Folds at a time, as in joblib. The answer does not depend on it.
    predictions : list, optional
        Gets the predictions of each fold, (q, m).

    Raises
    ------
    DataError
        Folds do not fit the entries, or predictions are missing or not finite.

    Warns
    -----
    ConvergenceWarning
        Some of the fits did not settle: one sentence for all of them.
    """
    labels = _labels(entries, folds)
    name, parameters = str(getattr(path, "parameter", "parameter")), list(path.parameters)
    held = np.bincount(folds[folds >= 0])
    keep = predictions is not None
    jobs = [_Fold(entries, path, folds, int(f), keep, tuple(parameters)) for f in labels]
    told = _Told()
    found = told.during(jobs, n_jobs)
    sums = np.stack([one.sums for one in found])
    spread = _Spread.over(found)
    kept = [one.predictions for one in found]
    counts = [
        np.bincount(line[folds >= 0], minlength=size)
        for line, size in zip((entries.rows, entries.columns), entries.shape, strict=True)
    ]
    while True:
        ends = getattr(path, "natural", (False, False))
        if natural is not None:
            ends = natural(parameters[0], parameters[-1])
        errors = sums / held[:, None]
        se = spread.standard_errors(sums.sum(axis=0), *counts)
        curve = EntryCurve(
            name,
            np.asarray(parameters),
            errors,
            held.astype(np.int64),
            ends,
            table_se=se,
            column_gain=spread.column_gain(counts[1]),
            column_errors=spread.columns / np.maximum(counts[1], 1),
        )
        more = [] if grow is None else list(grow(curve))
        if not more:
            told.repeat(3 + keep)
            if predictions is not None:
                predictions.extend(kept)
            return curve
        if not isinstance(path, GrowingPath):
            raise ParameterError("this path ends with its parameters: give it more of them at once")
        jobs = [
            replace(job, parameters=tuple(more), state=one.state)
            for job, one in zip(jobs, found, strict=True)
        ]
        found = told.during(jobs, n_jobs)
        parameters += more
        sums = np.hstack([sums, np.stack([one.sums for one in found])])
        spread = spread.further(_Spread.over(found))
        kept = [np.vstack([a, one.predictions]) for a, one in zip(kept, found, strict=True)]


def held_out_predictions(
    entries: Entries, path: EntryPath, folds: IntArray, **search: Any
) -> tuple[EntryCurve, FloatArray]:
    """As :func:`held_out_errors`, with the prediction of every single entry.

    Parameters
    ----------
    entries, path, folds, **search
        As there.

    Returns
    -------
    curve : EntryCurve
    predictions : (m, q) array
        NaN for entries that are never held out.
    """
    parts: list[FloatArray] = []
    curve = held_out_errors(entries, path, folds, predictions=parts, **search)
    predictions = np.full((entries.n_observed, len(curve.parameters)), np.nan)
    for fold, part in enumerate(parts):
        predictions[folds == fold] = part.T
    return curve, predictions


class _Told:
    """Warnings of the fits, so that those of fits that did not settle become one."""

    def __init__(self) -> None:
        self._heard: list[warnings.WarningMessage] = []

    def during(self, jobs: list[_Fold], n_jobs: int | None) -> list[_Read]:
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", ConvergenceWarning)
            found = ordered_map(_read_fold, jobs, n_jobs=n_jobs, what="folds")
        self._heard += heard
        return found

    def repeat(self, stacklevel: int) -> None:
        from sklearn.exceptions import ConvergenceWarning

        unsettled = [one for one in self._heard if issubclass(one.category, ConvergenceWarning)]
        for one in self._heard:
            if one not in unsettled:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        if unsettled:
            warnings.warn(
                f"{len(unsettled)} fits to folds did not settle, the last one: "
                f"{unsettled[-1].message}",
                ConvergenceWarning,
                stacklevel=stacklevel + 1,
            )


def _labels(entries: Entries, folds: IntArray) -> IntArray:
    if np.shape(folds) != (entries.n_observed,):
        raise DataError("folds need one number for each observed entry")
    labels = np.unique(folds[folds >= 0])
    if not len(labels) or len(labels) != labels[-1] + 1:
        raise DataError("folds must be numbered from 0 without gaps, with -1 for entries outside")
    if len(labels) == 1 and not (folds < 0).any():
        raise DataError("there is one fold that holds all entries: nothing is left to learn from")
    return np.asarray(labels)


@dataclass(frozen=True, eq=False)
class _Fold:
    """What a worker needs: one fold, what to fit, and where its path stands."""

    entries: Entries
    path: EntryPath
    folds: IntArray
    fold: int
    keep: bool
    parameters: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True, eq=False)
class _Spread:
    """Squared errors summed by row and by column, and their squares, for each of q parameters."""

    rows: FloatArray
    columns: FloatArray
    squares: FloatArray

    @classmethod
    def over(cls, folds: Sequence[_Read]) -> _Spread:
        """Sums over folds."""
        parts = [(one.spread.rows, one.spread.columns, one.spread.squares) for one in folds]
        return cls(*(np.add.reduce(part) for part in zip(*parts, strict=True)))

    def further(self, more: _Spread) -> _Spread:
        """With those of further parameters."""
        return _Spread(
            np.vstack([self.rows, more.rows]),
            np.vstack([self.columns, more.columns]),
            np.concatenate([self.squares, more.squares]),
        )

    def column_gain(self, column_counts: IntArray) -> FloatArray:
        """Falls of the columns' errors from the first, as shares of it, mean over entries, (q,)."""
        some = self.columns[0] > 0
        left = self.columns[:, some] / self.columns[0, some]
        counts = column_counts[some]
        return np.asarray((1.0 - left) @ counts / max(counts.sum(), 1))

    def standard_errors(
        self, totals: FloatArray, row_counts: IntArray, column_counts: IntArray
    ) -> FloatArray:
        """Standard errors of means where errors of a row, and of a column, are correlated, (q,).

        With d the squared errors less their mean: the sum of ``d_e d_f`` over all pairs of entries
        in one row or in one column, and at least that over single entries.
        """
        m = row_counts.sum()
        mean = totals / m
        rows = self.rows - row_counts * mean[:, None]
        columns = self.columns - column_counts * mean[:, None]
        single = np.maximum(self.squares - m * mean**2, 0.0)
        pairs = (rows**2).sum(axis=1) + (columns**2).sum(axis=1) - single
        return np.asarray(np.sqrt(np.maximum(pairs, single)) / m)


@dataclass(frozen=True, eq=False)
class _Read:
    """Sums of squared errors by parameter, predictions if kept, and where the path stands."""

    sums: FloatArray
    spread: _Spread
    predictions: FloatArray
    state: Any


def _read_fold(job: _Fold) -> _Read:
    out = job.folds == job.fold
    train, held = job.entries.take(~out), job.entries.take(out)
    sums: list[float] = []
    by_row, by_column, fourth = [], [], []
    kept: list[FloatArray] = []
    state = None
    with one_thread():
        for predicted, reached in _steps(job, train, held):
            if len(sums) == len(job.parameters):
                raise DataError("the path gave more predictions than it has parameters")
            value = job.parameters[len(sums)]
            if np.shape(predicted) != held.values.shape:
                raise DataError(f"the path gave no prediction of every held-out entry at {value}")
            if not np.isfinite(predicted).all():
                raise DataError(
                    f"predictions of held-out entries at {value} are not finite numbers"
                )
            error = predicted - held.values
            sums.append(float(error @ error))
            square = error**2
            by_row.append(np.bincount(held.rows, square, held.shape[0]))
            by_column.append(np.bincount(held.columns, square, held.shape[1]))
            fourth.append(float(square @ square))
            if job.keep:
                kept.append(predicted)
            state = reached
    if len(sums) != len(job.parameters):
        raise DataError(
            f"the path gave {len(sums)} predictions for {len(job.parameters)} parameters"
        )
    spread = _Spread(np.array(by_row), np.array(by_column), np.array(fourth))
    predictions = np.array(kept).reshape(len(kept), held.n_observed)
    return _Read(np.array(sums), spread, predictions, state)


def _steps(job: _Fold, train: Entries, held: Entries) -> Iterator[tuple[FloatArray, Any]]:
    if isinstance(job.path, GrowingPath):
        yield from job.path.go_on(train, job.parameters, job.state, held.rows, held.columns)
    else:
        for predicted in job.path.predictions(train, held.rows, held.columns):
            yield predicted, None


# --- Paths of fits that a search over held-out entries can judge: k-means with gaps, any estimator.
#
# Those of one low rank after another are completion's alone
# (:mod:`consilience.completion.estimators.entry_plans`).

_SPARSE = 0.1  # below this share of observed entries an estimator may be handed a sparse matrix


class _Predicting:
    """Predictions of a path, from what goes on along it."""

    parameters: Sequence[Any]

    def predictions(
        self, train: Entries, rows: IntArray, columns: IntArray
    ) -> Iterator[FloatArray]:
        """Predict entries, once for each parameter."""
        for predicted, _ in self.go_on(train, self.parameters, None, rows, columns):
            yield predicted

    def go_on(
        self, train: Entries, values: Sequence[Any], start: Any, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[FloatArray, Any]]:
        """Predictions for further parameters, each with where the next ones may start."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Fits(_Predicting):
    """A path whose fits can be asked for single entries; the centre is that of the training part.

    Parameters
    ----------
    parameters : sequence
        The simplest first.
    center : {"none", "columns", "rows-and-columns"}
        What is taken off before a fit, and added to its predictions.
    natural : (bool, bool)
        Whether the problem ends at the first, and at the last parameter.
    tol, max_iter
        As of the estimator of the same model; None for what the kernel takes.
    """

    parameters: Sequence[Any]
    center: str = "none"
    natural: tuple[bool, bool] = (False, False)
    tol: float | None = None
    max_iter: int | None = None
    parameter: ClassVar[str] = "rank"
    warm: ClassVar[bool] = False
    """Whether further fits start from the last one, or from the entries."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits with a method ``at(rows, columns)``, to centred entries."""
        raise NotImplementedError

    def go_on(
        self, train: Entries, values: Sequence[Any], start: Any, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[FloatArray, Any]]:
        """Predictions for further parameters, each with the fit that they come from."""
        # What is taken off is that of the training part: held-out entries have no say in it.
        centre = centre_of(train, self.center)
        base, rest = centre.at(rows, columns), centre.removed(train)
        for value, fit in zip(values, self.fits(rest, values, start), strict=False):
            if not fit.converged:
                from sklearn.exceptions import ConvergenceWarning

                # The search makes one sentence of all of them.
                warnings.warn(f"{self.parameter} = {value:.6g}", ConvergenceWarning, stacklevel=2)
            predicted = self.judged(rest, fit).at(rows, columns) + base
            yield predicted, fit if self.warm else None

    def judged(self, train: Entries, fit: Any) -> Any:
        """What predicts, made of a fit."""
        return fit

    def given(self) -> dict[str, Any]:
        """Settings of the solver that were given."""
        found = {"tol": self.tol, "max_iter": self.max_iter}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class KMeansPath(Fits):
    """Numbers of classes of k-means on observed coordinates.

    Parameters
    ----------
    seed : int
        Of the starts.
    n_init
        As of :class:`consilience.ObservedKMeans`.
    """

    seed: int
    n_init: int = 10
    parameter: ClassVar[str] = "n_clusters"

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing numbers of classes, each also started from the one before."""
        from consilience.numerics.observed_kmeans import observed_kmeans_path

        rng = stream(self.seed, "starts")
        return observed_kmeans_path(train, parameters, rng=rng, n_init=self.n_init, **self.given())


@dataclass(frozen=True, kw_only=True)
class KPODPath(KMeansPath):
    """Numbers of classes of k-POD."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits, each from starts of its own."""
        from consilience.numerics.observed_kmeans import kpod

        for k in parameters:
            rng = stream(self.seed, "starts", int(k))
            yield kpod(train, k, rng=rng, n_init=self.n_init, **self.given())


@dataclass(frozen=True, kw_only=True)
class EstimatorPath(_Predicting):
    """Any estimator, fitted anew for each value of one of its parameters.

    Parameters
    ----------
    estimator : object
        With ``fit(X)``, where NaN is missing, and ``reconstruct()``, which gives the fitted matrix;
        ``predict_entries(rows, columns)`` is used instead where there is one. It is copied.
    name : str
        Parameter that is set, as by ``set_params``.
    parameters : sequence
        Its values, the simplest first.
    parameter : str
        What the curve calls it.
    natural : (bool, bool)
    """

    estimator: Any
    name: str
    parameters: Sequence[Any]
    parameter: str = "parameter"
    natural: tuple[bool, bool] = (False, False)

    def go_on(
        self, train: Entries, values: Sequence[Any], start: Any, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[FloatArray, Any]]:
        """Predictions for further values."""
        for value in values:
            model = copied(self.estimator).set_params(**{self.name: value})
            yield predicted_entries(model, train, rows, columns), None


@dataclass(frozen=True, kw_only=True)
class EstimatorsPath:
    """Several estimators, the simplest first.

    Parameters
    ----------
    estimators : sequence of objects
        As for :class:`EstimatorPath`.
    parameters : sequence
        What each is called; by default its place.
    parameter : str
    natural : (bool, bool)
    """

    estimators: Sequence[Any]
    parameters: Sequence[Any]
    parameter: str = "estimator"
    natural: tuple[bool, bool] = (True, True)  # a list has no more than it has

    def predictions(
        self, train: Entries, rows: IntArray, columns: IntArray
    ) -> Iterator[FloatArray]:
        """Predict entries, once for each estimator."""
        for estimator in self.estimators:
            yield predicted_entries(copied(estimator), train, rows, columns)


def path_of(path: Any) -> EntryPath:
    """A path of what a caller may give.

    Parameters
    ----------
    path : EntryPath, mapping of values to estimators, or sequence of estimators
        The simplest first.

    Raises
    ------
    ParameterError
        Something else, or nothing.
    """
    if isinstance(path, EntryPath):
        return path
    if isinstance(path, Mapping):
        names, estimators = list(path), list(path.values())
    elif isinstance(path, Sequence) and not isinstance(path, str):
        names, estimators = list(range(len(path))), list(path)
    else:
        names, estimators = [], []
    fine = all(hasattr(one, "fit") and hasattr(one, "reconstruct") for one in estimators)
    if not estimators or not fine:
        raise ParameterError(
            "path must be a path of fits, or estimators with fit and reconstruct in a list or "
            f"mapping, but {type(path).__name__} was given"
        )
    return EstimatorsPath(estimators=estimators, parameters=names)


def copied(estimator: Any) -> Any:
    """An unfitted copy of an estimator.

    Parameters
    ----------
    estimator : object
    """
    import copy

    from sklearn.base import clone

    return clone(estimator) if hasattr(estimator, "get_params") else copy.deepcopy(estimator)


def predicted_entries(model: Any, train: Entries, rows: IntArray, columns: IntArray) -> FloatArray:
    """Fit an estimator and read single entries of the matrix that it gives, (m,).

    Parameters
    ----------
    model : object
        Changed: it is fitted.
    train : Entries
    rows, columns : (m,) array of int
    """
    single = hasattr(model, "predict_entries")
    fitted = model.fit(train.csr() if single and train.density < _SPARSE else train.dense())
    if single:
        return np.asarray(fitted.predict_entries(rows, columns), dtype=np.float64)
    full = np.asarray(fitted.reconstruct(), dtype=np.float64)
    if full.shape != train.shape:
        raise ParameterError(
            f"reconstruct() of {type(model).__name__} must give the matrix that was fitted, "
            f"{train.shape[0]} x {train.shape[1]}, but it gave {' x '.join(map(str, full.shape))}"
        )
    return full[rows, columns]
