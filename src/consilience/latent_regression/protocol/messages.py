"""Messages of latent class regression. Class sums are packed: see :func:`unpacked`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import ProtocolError
from consilience.latent_regression.kernels.latent_class import Totals
from consilience.parameters import FLAG, allows, number, one_of, whole
from consilience.wire.codec import LARGEST
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, is_gram, message, states

MAX_CLASSES = 200
MAX_ROUNDS = 1000
MAX_BETAS = 20
N_FIGURES = 11
N_CURVED = 4
"""Further figures of sites that tell sums with squares."""
"""Of the figures, those beside regressions with squares of the columns."""
_ROUNDING = 1e-9
MARKS = 2
"""Sums by entity beside the products: entities, and tables of agents (in the offer: agents)."""


@dataclass(frozen=True)
class Settings:
    """What a site needs to know in every step.

    Attributes
    ----------
    n_cells : int
        Classes with which the run starts: the leading axis of all sums.
    start : str
        "local" or "random".
    concentration : str
        "exact" or "shortcut".
    fit_intercept : bool
    holdout : float
        Share of the events that measures the classes.
    level : float
        Of intervals.
    """

    n_cells: int = allows(whole(1, MAX_CLASSES))
    start: str = allows(one_of("local", "random"))
    concentration: str = allows(one_of("exact", "shortcut"))
    fit_intercept: bool = allows(FLAG)
    holdout: float = allows(number(0, 0.5))
    level: float = allows(number(above=0, below=1))


@message("latent-class-regression/offer", version=2)
class Offer:
    """Ask what the sites bring."""

    settings: Settings = states(Settings)

    def lengths(self) -> dict[str, int]:
        """Classes."""
        return {"k": self.settings.n_cells}


@message("latent-class-regression/offered", version=1)
class Offered:
    """Moments of all events that are not held out, and how much there is."""

    sums: Released = Aggregate(
        "k d",
        "of all classes together, in the first row: cross-products of 1, features and "
        "response; entities, agents",
        gaps=True,
    )

    def check(self, request: Offer, known: Mapping[str, Any]) -> str | None:
        """Nothing, or what some events add up to; their mean squares are numbers."""
        sums = self.sums.value[:1]
        if not _are_sums(sums, known["p"]):
            return "sums that no events have"
        if np.isnan(sums).any():
            return None
        squares = np.diagonal(full_products(sums, known["p"] + 2)[0])
        fine = squares[0] > 0 and bool((squares <= LARGEST * squares[0]).all())
        return None if fine else "sums of no events, or of numbers that are too large"


@message("latent-class-regression/possible", version=1)
class Possible:
    """Whether a site could hold events out: 1 for yes, 0 for no."""

    holds: Released = Aggregate("1", "sites", low=0, high=1)


@message("latent-class-regression/begin", version=2)
class Begin:
    """Put every entity into a class: by a fit of the site's own, or by chance."""

    settings: Settings = states(Settings)
    centre: Released = Aggregate("v", "means of features and response", to="all")
    scale: Released = Aggregate("v", "their standard deviations", to="all")
    sigma2: Released = Aggregate("", "residual variance of one class", kind="float", to="all")

    def lengths(self) -> dict[str, int]:
        """Classes; nobody is asked for values of beta."""
        return {"k": self.settings.n_cells, "betas": 0}


@message("latent-class-regression/round", version=2)
class Round:
    """Draw labels with the classes of all sites."""

    settings: Settings = states(Settings)
    round: int = Public("", "1 is the first", kind="int", to="site")
    totals: Released = Aggregate("k d", "smoothed sums of all sites, packed", to="all")
    base: Released = Aggregate("k", "shares of the classes", to="all")
    sigma2: Released = Aggregate("", "residual variance", kind="float", to="all")
    delta2: Released = Aggregate("", "prior variance of coefficients", kind="float", to="all")
    alpha: float = Public("", "concentration of shares", kind="float", to="all")
    beta: float = Public("", "concentration of agents", kind="float", to="all")
    used: int = Public("", "round of the site's reply in use; -1", kind="int", to="site")
    decay: float = Public("", "what is left of what was before it", kind="float", to="site")
    weight: float = Public("", "weight of that reply in the totals", kind="float", to="site")
    mapping: NDArray[np.int64] = Public("k", "new class of each since then", kind="int", to="site")
    keep: bool = Public("", "average probabilities from here on", kind="bool", to="all")
    betas: tuple[float, ...] = Public(
        "", "values to be compared", kind="float", many="betas", to="all"
    )


@message("latent-class-regression/sums", version=1)
class Sums:
    """What the events of each class add up to."""

    sums: Released = Aggregate(
        "k d",
        "by class: cross-products of 1, features and response; entities, tables of agents",
        gaps=True,
    )
    status: NDArray[np.int64] = Public(
        "k", "by class: 0 empty, 1 new, 2 as before, 3 withheld", kind="int", low=0, high=3
    )
    moved: Released = Aggregate(
        "",
        "share of labels that moved beyond chance, or of those in the sums, rounded",
        kind="float",
        gaps=True,
        low=-2,
        high=2,
    )
    fit: Released = Aggregate(
        "",
        "by value of beta, where it was asked: mean log-likelihood of labels, rounded",
        many="betas",
        gaps=True,
    )

    def check(self, request: Begin | Round, known: Mapping[str, Any]) -> str | None:
        """By class nothing, or what some events add up to; no more of them than were offered."""
        sums = self.sums.value
        if not _are_sums(sums, known["p"]):
            return "sums that no events have"
        most = 1 + _ROUNDING
        fine = np.nansum(sums[:, 0]) <= known.get("events", np.inf) * most
        fine = fine and np.nansum(sums[:, -MARKS]) <= known.get("entities", np.inf) * most
        return None if fine else "sums of more events than the site has"


@message("latent-class-regression/class-totals", version=1)
class ClassTotals:
    """The same as what adds up over sites, for masked sums."""

    sums: Released = Aggregate("k d", "as of the sums", gaps=True)
    withheld: Released = Aggregate("k", "1 of a class that the site withholds", low=0, high=1)
    moved: Released = Aggregate("", "that share times entities", kind="float", gaps=True)
    fit: Released = Aggregate("betas", "that mean times entities", gaps=True)


@message("latent-class-regression/curve", version=1)
class Curve:
    """Ask what one regression with squares of the columns rests on."""

    settings: Settings = states(Settings)


@message("latent-class-regression/curved", version=1)
class Curved:
    """Moments with squares, of all events that are not held out."""

    sums: Released = Aggregate(
        "1 d",
        "of all classes together: cross-products of 1, features, their squares, and response",
        gaps=True,
    )

    def check(self, request: Curve, known: Mapping[str, Any]) -> str | None:
        """Nothing, or what some events add up to; no more of them than were offered."""
        sums, columns = self.sums.value, 2 * known["p"] + 2
        if sums.shape[1] != packed_size(columns, 0):
            return "sums of other columns"
        if np.isnan(sums).any():
            return None
        few = 0 < sums[0, 0] <= known.get("events", np.inf) * (1 + _ROUNDING)
        fine = few and is_gram(full_products(sums, columns), _ROUNDING)
        return None if fine else "sums that no events have"


@message("latent-class-regression/conclude", version=3)
class Conclude:
    """The classes as they are in the end."""

    settings: Settings = states(Settings)
    mean: Released = Model("k f", "coefficients of the classes", to="all")
    covariance: Released = Model("k f f", "their covariances", to="all")
    ridge: Released = Model("f", "coefficients of one class for all", to="all")
    ridge_variance: Released = Aggregate("", "its residual variance", kind="float", to="all")
    curve: Released = Model("g", "coefficients of one class with squares too", to="all")
    curve_variance: Released = Aggregate("", "its residual variance", kind="float", to="all")
    base: Released = Aggregate("k", "shares of the classes", to="all")
    sigma2: Released = Aggregate("", "residual variance", kind="float", to="all")
    delta2: Released = Aggregate("", "prior variance of coefficients", kind="float", to="all")
    beta: float = Public("", "concentration of agents", kind="float", to="all")
    mapping: NDArray[np.int64] = Public("c", "final class of each cell", kind="int", to="site")


@message("latent-class-regression/kept", version=1)
class Kept:
    """The site keeps one class in the place of those that were judged."""


@message("latent-class-regression/concluded", version=3)
class Concluded:
    """What the classes are worth on events that were held out."""

    figures: Released = Aggregate(
        "n",
        "means over held-out events: squared errors of ridge, mixed model, classes, mean; log "
        "scores of the first three; events inside intervals, width of intervals; squared error of "
        "ridge less that of classes; log score of classes less that of the mixed model; of sites "
        "that tell squares also these two beside ridge with squares, and beside own coefficients "
        "about that curve",
        gaps=True,
    )
    variances: Released = Aggregate("n", "their squared standard errors", gaps=True, low=0)
    effective: Released = Aggregate("n", "effective numbers of events, coarsely", gaps=True, low=0)

    def check(self, request: Conclude, known: Mapping[str, Any]) -> str | None:
        """Figures, with those beside a curve or without."""
        several = N_FIGURES, N_FIGURES + N_CURVED
        return None if len(self.figures.value) in several else "figures of another number"


@message("latent-class-regression/losses", version=3)
class Losses:
    """The same as what adds up over sites, for masked sums: all of it or nothing."""

    figures: Released = Aggregate(f"{N_FIGURES}", "these means times events", gaps=True)
    weight: Released = Aggregate("", "events in the sums", kind="float", gaps=True, low=0)
    variances: Released = Aggregate(
        f"{N_FIGURES}", "squared standard errors times squared events", gaps=True, low=0
    )
    effective: Released = Aggregate(f"{N_FIGURES}", "as of the figures", gaps=True, low=0)


def packed_size(columns: int, marks: int) -> int:
    """Length of packed sums of so many columns."""
    return columns * (columns + 1) // 2 + marks


def _are_sums(sums: FloatArray, n_features: int) -> bool:
    """Whether packed sums are of outer products and of marks; a class with gaps is withheld."""
    columns = n_features + 2
    if sums.shape[1] != packed_size(columns, MARKS):
        return False
    # a class with gaps is withheld as a whole
    told = sums[~np.isnan(sums).any(axis=1)]
    marks = told[:, -MARKS:]
    return bool((marks >= 0).all()) and is_gram(full_products(told, columns), _ROUNDING)


def full_products(packed: FloatArray, columns: int) -> FloatArray:
    """Symmetric matrices (K, columns, columns) from packed upper triangles."""
    upper = np.triu_indices(columns)
    full = np.zeros((len(packed), columns, columns))
    full[:, upper[0], upper[1]] = packed[:, : len(upper[0])]
    full[:, upper[1], upper[0]] = packed[:, : len(upper[0])]
    return full


def unpacked(sums: FloatArray, n_features: int, fit_intercept: bool) -> Totals:
    """Totals from packed sums of the products of 1, features and response, and of two marks.

    Parameters
    ----------
    sums : (K, d) array
        Withheld classes (NaN) count as empty.
    n_features : int
    fit_intercept : bool
        Whether the column of ones belongs to the design.
    """
    p = n_features + 2
    if sums.ndim != 2 or sums.shape[1] != packed_size(p, MARKS):
        raise ProtocolError("class sums have another width than features and response give")
    found = np.nan_to_num(sums)
    full = full_products(found, p)
    first = 0 if fit_intercept else 1
    return Totals(
        products=full[:, first:-1, first:-1].copy(),
        cross=full[:, first:-1, -1].copy(),
        squares=full[:, -1, -1].copy(),
        n=full[:, 0, 0].copy(),
        counts=found[:, -MARKS].copy(),
    )
