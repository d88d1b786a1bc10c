"""What figures and words on held-out entries read: one form for curves, searches and results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.report.drawing import short

KINDS = {
    "rank": ("rank", "rank of the model"),
    "alpha": ("penalty", "penalty (alpha): simpler to the right"),
    "n_clusters": ("number of clusters", "number of clusters"),
}
"""A candidate in words, and the axis along which candidates are drawn, by their kind."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Error on held-out entries by candidate.

    Attributes
    ----------
    kind : str
        "rank", "alpha", "n_clusters", or the name of another parameter.
    values : (A,) array
        The candidates, from the smallest to the largest.
    error : (A,) array
        Mean squared error of an entry that was held out; NaN where it is not known.
    se : (A,) array
        Its standard error over the folds; NaN where it is not known.
    folds : (F, A) array
        The same by fold; without lines where folds are not known.
    minimum : int
        Place of the smallest error; -1 where there is none.
    simplest : int
        Place of the simplest candidate within a standard error of it; -1 where it is not known.
    at_edge : bool
        Whether the smallest error is at an end of the grid beyond which candidates exist.
    n_entries : int
        Entries that were held out, all folds together; 0 where it is not known.
    names : tuple of str
        What candidates are called that are no numbers, such as estimators; then `values` are their
        places.
    """

    kind: str
    values: FloatArray
    error: FloatArray
    se: FloatArray
    folds: FloatArray
    minimum: int
    simplest: int = -1
    at_edge: bool = False
    n_entries: int = 0
    names: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether any error is known."""
        return self.minimum >= 0

    @property
    def name(self) -> str:
        """What a candidate is, in words."""
        return KINDS.get(self.kind, (self.kind.replace("_", " "), ""))[0]

    def words(self, place: int) -> str:
        """Write a candidate: "rank 6", "penalty 0.31", "3 clusters"."""
        if self.names:
            return short(self.names[place])
        value = value_words(self.kind, float(self.values[place]))
        if self.kind == "n_clusters":
            return f"{value} cluster" + "s" * (value != "1")
        return f"{self.name} {value}"

    @property
    def flat(self) -> IntArray:
        """Places whose error is within a standard error of the smallest."""
        if not self.known:
            return np.empty(0, dtype=np.int64)
        least, bar = float(self.error[self.minimum]), float(self.se[self.minimum])
        limit = least + (bar if math.isfinite(bar) else 0.0)
        return np.flatnonzero(self.error <= limit)


def value_words(kind: str, value: float) -> str:
    """Write the value of a candidate."""
    return f"{value:,.0f}" if value == round(value) and kind != "alpha" else f"{value:.3g}"


def curve_of(fitted: Any) -> Curve:
    """Read errors on held-out entries by candidate.

    Parameters
    ----------
    fitted : a search (RankCV, NuclearNormCV, ClusterCountCV), an EntryCurve, a result, or Curve
        Or a LeaveOneOut, which has no folds.

    Raises
    ------
    ParameterError
        Nothing was held out in it.
    """
    if isinstance(fitted, Curve):
        return fitted
    found = getattr(fitted, "curve_", None)
    if found is None:
        found = getattr(fitted, "curve", None) or fitted
        found = found() if callable(found) else found
    if isinstance(found, Curve):
        return found
    if hasattr(found, "parameters") and hasattr(found, "n_entries"):
        return _of_leave_one_out(found)
    if not (hasattr(found, "parameters") and hasattr(found, "mean")):
        wanted = "a search over held-out entries, its curve, or a result with one"
        raise ParameterError.of("fitted", wanted, type(fitted).__name__)
    return made(
        str(found.parameter),
        found.parameters,
        found.mean,
        found.se,
        found.errors,
        places=(int(found.minimiser), int(found.one_standard_error)),
        at_edge=bool(found.at_edge),
        n_entries=int(np.nansum(np.asarray(found.n_held, dtype=float))),
    )


def _of_leave_one_out(found: Any) -> Curve:
    values = np.asarray(found.parameters)
    errors = np.asarray(found.errors, dtype=float)
    known = np.isfinite(errors)
    best = int(np.argmin(np.where(known, errors, np.inf))) if known.any() else -1
    return made(
        "rank" if values.dtype.kind in "iu" else "alpha",
        values,
        errors,
        np.full(len(values), np.nan),
        (),
        places=(best, -1),
        n_entries=int(found.n_entries),
    )


def made(
    kind: str,
    values: ArrayLike,
    error: ArrayLike,
    se: ArrayLike,
    folds: ArrayLike,
    *,
    places: tuple[int, int] = (-1, -1),
    at_edge: bool = False,
    n_entries: int = 0,
) -> Curve:
    """Put candidates into order.

    Parameters
    ----------
    kind, values, error, se, folds, at_edge, n_entries
        As in `Curve`, in any order of the candidates.
    places : tuple of two int
        Of the smallest error and the simplest candidate near it, among `values` as they are given;
        -1 where there is none.
    """
    given = np.asarray(values).reshape(-1)
    named = given.dtype.kind not in "iuf"
    value = np.arange(float(len(given))) if named else given.astype(float)
    order = np.argsort(value, kind="stable")
    mean = np.asarray(error, dtype=float).reshape(-1)[order]
    by_fold = np.asarray(folds, dtype=float)
    by_fold = by_fold[:, order] if by_fold.ndim == 2 else np.empty((0, len(value)))
    minimum, simplest = (int(np.flatnonzero(order == at)[0]) if at >= 0 else -1 for at in places)
    return Curve(
        kind,
        value[order],
        np.where(np.isfinite(mean), mean, np.nan),
        np.asarray(se, dtype=float).reshape(-1)[order],
        by_fold,
        minimum,
        simplest,
        at_edge and minimum >= 0,
        n_entries,
        tuple(str(name) for name in given) if named else (),
    )


def curves_of(fitted: Any) -> dict[str, Curve]:
    """Read one curve, or several by their names.

    Parameters
    ----------
    fitted : what `curve_of` takes, or a mapping of names to it

    Raises
    ------
    ParameterError
        The curves are not of the same parameter.
    """
    if not isinstance(fitted, Mapping):
        return {"": curve_of(fitted)}
    found = {str(name): curve_of(one) for name, one in fitted.items()}
    kinds = {curve.kind for curve in found.values()}
    if len(kinds) != 1:
        raise ParameterError.of("fitted", "curves of one parameter", ", ".join(sorted(kinds)))
    return found
