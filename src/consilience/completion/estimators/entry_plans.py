"""Which parameters a search over held-out entries tries, and when a grid has to go on.

A grid that nobody gave starts small and grows until its smallest error lies inside, or the problem
ends: at rank 0 and the last rank below min(n, p), at one class, at the penalty that leaves nothing.
Elsewhere the end of a grid is artificial, and a minimum there is no choice. Full rank is never
tried: a matrix of full rank fits whatever stands in the gaps, so that its predictions are what the
gaps were filled with, and its error that of rank 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.completion.kernels.hard_impute import hard_path, optspace_path
from consilience.completion.kernels.ppca import ppca_path
from consilience.completion.kernels.soft_impute import (
    alpha_max,
    choose_solver,
    rank_path,
    soft_path,
    step_seconds,
    unshrink,
)
from consilience.exceptions import DataError, ParameterError
from consilience.numerics import held_out_entries
from consilience.numerics.entries import Entries, centre_of, check_center
from consilience.numerics.held_out_entries import EntryCurve, EntryPath, Fits

# --- Paths of low-rank fits that a search over held-out entries can judge, a class for each model.


@dataclass(frozen=True, kw_only=True)
class SoftPath(Fits):
    """Nuclear-norm penalties, decreasing.

    Parameters
    ----------
    unshrink : bool
        Refit the singular values by least squares.
    max_rank, solver
        As of :class:`consilience.SoftImpute`.
    """

    unshrink: bool = False
    max_rank: int | None = None
    solver: str = "auto"
    parameter: ClassVar[str] = "alpha"
    warm: ClassVar[bool] = True

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits along decreasing penalties."""
        how: dict[str, Any] = {"max_rank": self.max_rank, "solver": self.solver, **self.given()}
        return soft_path(train, parameters, start=start, **how)

    def judged(self, train: Entries, fit: Any) -> Any:
        """The fit, with singular values refitted where that is asked for."""
        return unshrink(train, fit) if self.unshrink else fit


@dataclass(frozen=True, kw_only=True)
class UnshrunkRankPath(Fits):
    """Ranks of SOFT-IMPUTE+: the smallest penalty of each rank, singular values refitted."""

    warm: ClassVar[bool] = True

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Penalised fits of increasing rank."""
        return rank_path(train, parameters, start=start, **self.given())

    def judged(self, train: Entries, fit: Any) -> Any:
        """The fit with singular values refitted."""
        return unshrink(train, fit)


@dataclass(frozen=True, kw_only=True)
class HardPath(Fits):
    """Ranks of HARD-IMPUTE, each from zero."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing rank."""
        return hard_path(train, parameters, **self.given())


@dataclass(frozen=True, kw_only=True)
class OptSpacePath(Fits):
    """Ranks of OptSpace."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing rank."""
        return optspace_path(train, parameters, **self.given())


@dataclass(frozen=True, kw_only=True)
class PPCAPath(Fits):
    """Ranks of probabilistic principal components, which estimate their own mean."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing rank."""
        return ppca_path(train, parameters, **self.given())


RANK_MODELS: dict[str, Callable[..., EntryPath]] = {
    "hard": HardPath,
    "soft-unshrunk": UnshrunkRankPath,
    "optspace": OptSpacePath,
    "ppca": PPCAPath,
}
CLUSTER_MODELS: dict[str, Callable[..., EntryPath]] = {
    "observed-kmeans": held_out_entries.KMeansPath,
    "kpod": held_out_entries.KPODPath,
}

_FIRST = 10  # ranks, or classes, of a grid before it grows
_SLACK = 2  # a grid goes on until it reaches this far beyond its minimum
_STEP = 10.0 ** (-1 / 6)  # from one penalty of a grid to the next
_FIRST_ALPHAS, _MORE_ALPHAS = 10, 4
_COSTLY = 0.05  # seconds of a sweep; small penalties have high ranks and cost most by far
_FIRST_COSTLY, _MORE_COSTLY = 4, 2
_FLAT = 1e-4  # gain of further penalties, over the error, that is none
_SAME = 1e-6  # errors that differ by less than this share are the same
_SMALLEST = 1e-4  # where a grid of penalties ends at last, over the largest one
_GIVEN_SMALLEST = 1e-2  # ... and where one with a given number of penalties ends


@dataclass(frozen=True, eq=False)
class Plan:
    """A path, and how its grid grows.

    Parameters
    ----------
    path : EntryPath
    natural : callable
        Whether the problem ends at the first, and at the last parameter.
    grow : callable, optional
        Further parameters in view of a curve.
    ends_flat : float, optional
        The problem ends where parameters below this one change no error any more: of a grid that
        grows what comes after is left out, and the end is a natural one.
    remarks : tuple of str
        What was done with the grid that was given.
    """

    path: EntryPath
    natural: Callable[[Any, Any], tuple[bool, bool]]
    grow: Callable[[EntryCurve], Sequence[Any]] | None = None
    ends_flat: float | None = None
    remarks: tuple[str, ...] = ()

    def errors(self, entries: Entries, folds: IntArray, *, n_jobs: int | None = None) -> EntryCurve:
        """Cross-validated errors.

        Parameters
        ----------
        entries : Entries
        folds : (m,) array of int
            As from :func:`consilience.numerics.entry_folds.entry_folds`.
        n_jobs : int, optional
        """
        curve = held_out_entries.held_out_errors(
            entries, self.path, folds, grow=self.grow, natural=self.natural, n_jobs=n_jobs
        )
        return self._ended(curve)

    def predictions(
        self, entries: Entries, folds: IntArray, *, n_jobs: int | None = None
    ) -> tuple[EntryCurve, FloatArray]:
        """Cross-validated errors and the prediction of every held-out entry, (m, q).

        Parameters
        ----------
        entries, folds, n_jobs
            As for :meth:`errors`.
        """
        curve, predictions = held_out_entries.held_out_predictions(
            entries, self.path, folds, grow=self.grow, natural=self.natural, n_jobs=n_jobs
        )
        ended = self._ended(curve)
        return ended, predictions[:, : len(ended.parameters)]

    def _ended(self, curve: EntryCurve) -> EntryCurve:
        """The curve up to where it no longer changes, if the problem ends there."""
        if self.ends_flat is None:
            return curve
        mean = curve.mean
        same = np.abs(mean - mean[-1]) <= _SAME * mean[-1]
        changes = np.flatnonzero(~(same & (curve.parameters < self.ends_flat)))
        flat = int(changes[-1]) + 1 if len(changes) else 0
        if flat >= len(mean) - 1:
            return curve
        kept = len(mean) if self.grow is None else flat + 1
        return dataclasses.replace(
            curve,
            parameters=curve.parameters[:kept],
            errors=curve.errors[:, :kept],
            natural=(curve.natural[0], True),
            table_se=None if curve.table_se is None else curve.table_se[:kept],
            column_gain=None if curve.column_gain is None else curve.column_gain[:kept],
            column_errors=None if curve.column_errors is None else curve.column_errors[:kept],
        )


# ------------------------------------------------------------------ ranks


def plan_ranks(
    entries: Entries,
    folds: IntArray,
    *,
    model: str = "hard",
    ranks: str | ArrayLike = "auto",
    center: str = "none",
) -> Plan:
    """Ranks of a model of the package.

    Parameters
    ----------
    entries : Entries
    folds : (m,) array of int
    model : {"hard", "soft-unshrunk", "optspace", "ppca"}
    ranks : "auto", int or sequence of int
        A number means all up to it; full rank is left out. "auto" starts with 0 to 10 and stays
        where the model has fewer parameters than a fold leaves entries.
    center : {"none", "columns", "rows-and-columns"}
        "ppca" estimates its own mean, whatever is said here.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if model not in RANK_MODELS:
        raise ParameterError.of("model", "one of " + ", ".join(RANK_MODELS), model)
    check_center(center)
    grid = _Counts.of_ranks(entries, folds, ranks, lowest=0)
    path = RANK_MODELS[model](parameters=grid.first, center="none" if model == "ppca" else center)
    return grid.plan(path)


def plan_estimator(
    entries: Entries,
    folds: IntArray,
    estimator: Any,
    name: str,
    *,
    values: str | ArrayLike = "auto",
    parameter: str = "rank",
    first: int = _FIRST,
) -> Plan:
    """Values of a parameter of any estimator: ranks or numbers of classes.

    Parameters
    ----------
    entries : Entries
    folds : (m,) array of int
    estimator : object
        With ``fit``, ``reconstruct`` and ``set_params``.
    name : str
        Its parameter.
    values : "auto", int or sequence of int
        A number means all up to it. "auto" starts with 1 to `first`.
    parameter : {"rank", "n_clusters"}
    first : int

    Raises
    ------
    ParameterError
        Not such an estimator, it has no such parameter, or values are out of their range.
    """
    needed = ("fit", "reconstruct", "set_params", "get_params")
    lacking = [what for what in needed if not hasattr(estimator, what)]
    if isinstance(estimator, type) or lacking:
        raise ParameterError(
            f"estimator must be an object with {', '.join(needed[:3])}, or the name of a model, "
            f"but {type(estimator).__name__} was given: EMLift gives these to an estimator that "
            "needs complete data"
        )
    if name not in estimator.get_params(deep=True):
        raise ParameterError(f"{type(estimator).__name__} has no parameter {name!r}")
    if parameter == "rank":
        grid = _Counts.of_ranks(entries, folds, values, lowest=1)
    else:
        grid = _Counts.of_clusters(entries, values, first)
    path = held_out_entries.EstimatorPath(
        estimator=estimator, name=name, parameters=grid.first, parameter=parameter
    )
    return grid.plan(path)


def plan_clusters(
    entries: Entries,
    *,
    model: str = "observed-kmeans",
    n_clusters: str | ArrayLike = "auto",
    seed: int,
    n_init: int = 10,
) -> Plan:
    """Numbers of classes of a k-means of the package.

    Parameters
    ----------
    entries : Entries
    model : {"observed-kmeans", "kpod"}
    n_clusters : "auto", int or sequence of int
        A number means all up to it. "auto" starts with 1 to 10 and ends at a quarter of the rows.
    seed : int
        Of the starts.
    n_init : int
        Starts of each fit.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if model not in CLUSTER_MODELS:
        raise ParameterError.of("model", "one of " + ", ".join(CLUSTER_MODELS), model)
    grid = _Counts.of_clusters(entries, n_clusters)
    return grid.plan(CLUSTER_MODELS[model](parameters=grid.first, seed=seed, n_init=n_init))


@dataclass(frozen=True, eq=False)
class _Counts:
    """A grid of whole numbers.

    Parameters
    ----------
    first : list of int
        Where it starts.
    lowest, highest : int
        Where the problem ends.
    most : int
        Where a growing grid ends; below 0 for one that does not grow.
    remarks : tuple of str
    """

    first: list[int]
    lowest: int
    highest: int
    most: int = -1
    remarks: tuple[str, ...] = ()

    def natural(self, first: int, last: int) -> tuple[bool, bool]:
        return first <= self.lowest, last >= self.highest

    def grow(self, curve: EntryCurve) -> list[int]:
        last = int(curve.parameters[-1])
        best = curve.best
        if best is None or best <= last - _SLACK:
            return []
        return list(range(last + 1, min(self.most, last + max(5, last // 2)) + 1))

    def plan(self, path: EntryPath) -> Plan:
        grow = None if self.most < 0 else self.grow
        return Plan(path, self.natural, grow, remarks=self.remarks)

    @classmethod
    def of_ranks(
        cls, entries: Entries, folds: IntArray, ranks: str | ArrayLike, lowest: int
    ) -> _Counts:
        # rows and columns without an entry add nothing to the rank
        full = int(min((entries.row_counts > 0).sum(), (entries.column_counts > 0).sum()))
        highest = max(full - 1, lowest)
        if not isinstance(ranks, str):
            given = _whole("ranks", ranks, lowest, min(entries.shape))
            first = [rank for rank in given if rank <= highest]
            if not first:
                allowed = f"below {full}, full rank, which fits every table and so predicts nothing"
                raise ParameterError.of("ranks", allowed, ranks)
            said = f"rank {full}, full rank, was left out: it fits every table and predicts nothing"
            return cls(first, lowest, highest, remarks=() if first == given else (said,))
        _check_auto("ranks", ranks)
        left = entries.n_observed - int(np.bincount(folds[folds >= 0]).max())
        k = np.arange(lowest, highest + 1)
        within = k[k * (sum(entries.shape) - k) <= left]
        most = int(min(highest, max(1, within.max(initial=0))))
        first = list(range(lowest, min(most, _FIRST) + 1))
        return cls(first, lowest, highest, most)

    @classmethod
    def of_clusters(
        cls, entries: Entries, n_clusters: str | ArrayLike, first: int = _FIRST
    ) -> _Counts:
        rows = int((entries.row_counts > 0).sum())
        if not isinstance(n_clusters, str):
            return cls(_whole("n_clusters", n_clusters, 1, rows), 1, rows)
        _check_auto("n_clusters", n_clusters)
        most = min(rows, max(_FIRST, rows // 4))
        return cls(list(range(1, min(most, first) + 1)), 1, rows, most)


def _check_auto(name: str, value: str) -> None:
    if value != "auto":
        raise ParameterError.of(name, '"auto" or a list of numbers', value)


def _whole(name: str, values: ArrayLike, low: int, high: int) -> list[int]:
    """Distinct whole numbers within bounds, increasing; of a single one all up to it."""
    allowed = f'"auto", a largest number, or a list of whole numbers, from {low} to {high}'
    given = np.asarray(values)
    if given.ndim > 1 or not given.size or given.dtype.kind not in "iu":
        raise ParameterError.of(name, allowed, values)
    if given.min() < low or given.max() > high:
        raise ParameterError.of(name, allowed, values)
    if given.ndim == 0:
        return list(range(low, int(given) + 1))
    return [int(value) for value in np.unique(given)]


# ------------------------------------------------------------------ penalties


def plan_alphas(
    entries: Entries,
    *,
    alphas: str | int | ArrayLike = "auto",
    center: str = "none",
    unshrink: bool = False,
    max_rank: int | None = None,
    solver: str = "auto",
    tol: float | None = None,
    max_iter: int | None = None,
) -> Plan:
    """Penalties of soft-impute.

    Parameters
    ----------
    entries : Entries
    alphas : "auto", int or sequence of float
        "auto" starts with ten penalties, six to a power of ten, from the smallest one that leaves
        nothing, and ends at 1e-4 of it or where the curve is flat; with four where fits are costly,
        and goes on until the error rises. A number of penalties goes down to a hundredth.
    center : {"none", "columns", "rows-and-columns"}
    unshrink : bool
        Refit the singular values of every fit.
    max_rank, solver, tol, max_iter
        As of :class:`consilience.SoftImpute`.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    DataError
        The centre explains every entry, so that no penalty differs from another.
    """
    check_center(center)
    largest = float(alpha_max(centre_of(entries, center).removed(entries)))
    if largest <= 1e-12 * float(np.abs(entries.values).max()):
        if center == "none":
            raise DataError("all observed entries are 0: fill the missing ones with 0")
        raise DataError(
            f"center = {center!r} explains every observed entry, so that no penalty differs from "
            'another: fill the missing ones with the centre, or take center = "none"'
        )
    costly = choose_solver(entries) == "als" and step_seconds(entries)[1] > _COSTLY
    grid = _Alphas(largest, costly)
    first, grows = grid.start(alphas)
    how: dict[str, Any] = {"solver": solver, "tol": tol, "max_iter": max_iter}
    path = SoftPath(
        parameters=first, center=center, unshrink=bool(unshrink), max_rank=max_rank, **how
    )
    # Below the penalty at which every fit has full rank the fitted matrix stays the same; near the
    # largest penalties all fits of folds may be nothing, which is no end.
    return Plan(path, grid.natural, grid.grow if grows else None, ends_flat=largest / 2)


@dataclass(frozen=True, eq=False)
class _Alphas:
    """A geometric grid below the penalty that leaves nothing."""

    largest: float
    costly: bool = False

    def start(self, alphas: str | int | ArrayLike) -> tuple[list[float], bool]:
        """The grid, and whether it grows."""
        allowed = '"auto", a number of penalties (2 or more), or penalties above 0'
        if isinstance(alphas, str):
            _check_auto("alphas", alphas)
            first = _FIRST_COSTLY if self.costly else _FIRST_ALPHAS
            return [self.largest * _STEP**i for i in range(first)], True
        try:
            given = np.asarray(alphas)
            values = given.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ParameterError.of("alphas", allowed, alphas) from None
        if given.ndim == 0 and given.dtype.kind in "iu" and given >= 2:
            return (self.largest * np.geomspace(1.0, _GIVEN_SMALLEST, int(given))).tolist(), False
        if given.ndim != 1 or not len(values) or not (np.isfinite(values) & (values > 0)).all():
            raise ParameterError.of("alphas", allowed, alphas)
        return np.unique(values)[::-1].tolist(), False

    def natural(self, first: float, last: float) -> tuple[bool, bool]:
        return first >= self.largest * (1 - 1e-9), False

    def grow(self, curve: EntryCurve) -> list[float]:
        last, q = float(curve.parameters[-1]), len(curve.parameters)
        size = _MORE_COSTLY if self.costly else _MORE_ALPHAS
        # a short grid may end before anything but noise has come in
        short = q < _FIRST_ALPHAS and curve.minimiser == 0
        if curve.minimiser < q - 1 and not short:
            return []
        before, latest = curve.mean[:-size].min(), curve.mean[-size:].min()
        if before - latest <= _FLAT * latest and not short:
            return []  # smaller ones will make no difference either
        more = [last * _STEP**i for i in range(1, size + 1)]
        return [alpha for alpha in more if alpha >= self.largest * _SMALLEST * (1 - 1e-9)]
