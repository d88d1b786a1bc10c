"""Messages of community Bayes over sites. Fits are packed: see :func:`packed`.

Coefficients are those of ``discriminant.kernels.multinomial``: contrasts of the classes that have
rows, with the intercept in the first column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray
from consilience.discriminant.classes import levels_of
from consilience.parameters import Allowed, allows, is_number, number
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, is_gram, message, states

MAX_ROUNDS = 100
"""Newton rounds that a site answers in a run, where records are protected."""
MAX_CANDIDATES = 20
"""Numbers of communities that are judged in a run: each tells a figure of the choosing rows."""
_MOST_ROWS = 1 << 40
_ROUNDING = 1e-6
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
"""Shares of rows that may be held out: with any, two runs could differ by a single training row."""
SHARE = Allowed(lambda v: is_number(v) and v in SHARES, "a share of 0, .1, .2, .3 or .4")
C = number(1e-6, 1e6)


@dataclass(frozen=True)
class Settings:
    """What a site needs to know in every step.

    Attributes
    ----------
    levels : tuple of str
        Declared levels of the response.
    c : float
        C of the logistic regressions: ``C sum loss + |coefficients|^2 / 2`` over all sites' rows.
    choosing, holdout : float
        Shares of each class's rows that choose the number of communities, and that judge the end.
    """

    levels: tuple[str, ...] = allows(levels_of())
    c: float = allows(C)
    choosing: float = allows(SHARE)
    holdout: float = allows(SHARE)

    @property
    def ridge(self) -> float:
        """Penalty of half the squared coefficients, per sum of losses."""
        return 1.0 / self.c


@message("federated-community-bayes/offer", version=2)
class Offer:
    """Ask what the sites bring."""

    settings: Settings = states(Settings)


@message("federated-community-bayes/offered", version=1)
class Offered:
    """How many rows take part."""

    training: Released = Aggregate(
        "K",
        "training rows by class; 0 where a class has too few rows to take part",
        kind="int",
        low=0,
        high=_MOST_ROWS,
    )
    choosing: Released = Aggregate("", "choosing rows", kind="int", low=0, high=_MOST_ROWS)
    test: Released = Aggregate("", "test rows", kind="int", low=0, high=_MOST_ROWS)


@message("federated-community-bayes/rank", version=2)
class Rank:
    """Ask for the rank correlations."""

    settings: Settings = states(Settings)


@message("federated-community-bayes/ranks", version=1)
class Ranks:
    """Rank correlations of a site's training rows within each class."""

    tables: Released = Aggregate(
        "p p",
        "Spearman correlations by class; empty where a class has fewer rows than 2 columns",
        many="K",
        gaps=True,
        low=-1.0 - _ROUNDING,
        high=1.0 + _ROUNDING,
        empty=True,
        gram=True,
    )


@message("federated-community-bayes/fit", version=2)
class Fit:
    """Ask for fits of the site's own rows."""

    settings: Settings = states(Settings)
    communities: Released = Aggregate(
        "q", "columns of each community", kind="int", many="c", to="all"
    )


@message("federated-community-bayes/fitted", version=1)
class Fitted:
    """Fits of the site's own rows."""

    fits: Released = Model(
        "d", "by community: coefficients and curvature, packed; empty where withheld", many="c"
    )

    def check(self, request: Fit, known: Mapping[str, Any]) -> str | None:
        """By community nothing, or coefficients of the site's classes and a curvature."""
        rows, classes = known["rows"], known["classes"]
        pairs = zip(self.fits.value, request.communities.value, strict=True)
        fine = all(not fit.size or is_packed(fit, len(q), classes, rows) for fit, q in pairs)
        return None if fine else "a fit that no rows of the site's classes have"


@message("federated-community-bayes/slope", version=2)
class Slope:
    """Ask for sums at some coefficients."""

    settings: Settings = states(Settings)
    round: int = Public("", "1 is the first", kind="int", to="all")
    classes: Released = Aggregate("m", "levels that have rows", kind="int", to="all")
    communities: Released = Aggregate(
        "q", "columns of each community", kind="int", many="c", to="all"
    )
    coefficients: Released = Model("m q", "by community", many="c", to="all")


@message("federated-community-bayes/slopes", version=1)
class Slopes:
    """Sums over the training rows at these coefficients."""

    sums: Released = Aggregate("d", "by community: loss, gradient and curvature, packed", many="c")

    def check(self, request: Slope, known: Mapping[str, Any]) -> str | None:
        """By community a loss, as many slopes as it has coefficients, and a curvature."""
        m, pairs = (
            len(request.classes.value),
            zip(self.sums.value, request.communities.value, strict=True),
        )
        fine = all(v[0] >= 0 and is_packed(v[1:], len(q), m, known["rows"]) for v, q in pairs)
        return None if fine else "sums that no rows have"


@message("federated-community-bayes/judge", version=2)
class Judge:
    """Have the numbers of communities judged."""

    settings: Settings = states(Settings)
    classes: Released = Aggregate("m", "levels that have rows", kind="int", to="all")
    models: Released = Model("a f w", "by number of communities", to="all")


@message("federated-community-bayes/judged", version=1)
class Judged:
    """What they are worth on rows that no fit has seen."""

    losses: Released = Aggregate(
        "a", "mean log loss of the first; by how much each other one's is lower; rounded", gaps=True
    )
    errors: Released = Aggregate("a", "their squared standard errors", gaps=True, low=0)
    wrong: Released = Aggregate(
        "",
        "by model: share of wrong predictions, rounded to min_records rows; none from "
        "protected sites while a number is chosen",
        many="a",
        gaps=True,
        low=-1.0,
        high=2.0,
    )


@message("federated-community-bayes/conclude", version=2)
class Conclude:
    """The classifier that is kept, and what it is compared with."""

    settings: Settings = states(Settings)
    classes: Released = Aggregate("m", "levels that have rows", kind="int", to="all")
    priors: Released = Aggregate("m", "class frequencies in training rows", to="all")
    communities: Released = Aggregate(
        "q", "columns of each community", kind="int", many="c", to="all"
    )
    coefficients: Released = Model("m q", "by community", many="c", to="all")
    models: Released = Model(
        "a f w",
        "what is judged: the classifier, the base without communities, class frequencies",
        to="all",
    )


# --------------------------------------------------------------------------- with masked sums


@message("federated-community-bayes/possible", version=1)
class Possible:
    """What a site could tell: 1 for yes, 0 for no."""

    classes: Released = Aggregate("K", "classes that have training rows", low=0, high=1)
    pairs: Released = Aggregate("K t", "rank correlations of two columns, by class", low=0, high=1)
    parts: Released = Aggregate("2", "models on choosing rows, on test rows", low=0, high=1)


@message("federated-community-bayes/shared-ranks", version=1)
class SharedRanks:
    """Ask for the rows and rank correlations that every site can tell."""

    settings: Settings = states(Settings)
    classes: Released = Aggregate("m", "levels that have rows", kind="int", to="all", low=0)
    pairs: BoolArray = Public("m t", "pairs of columns, by class", kind="bool", to="all")
    parts: BoolArray = Public("2", "choosing rows, test rows", kind="bool", to="all")


@message("federated-community-bayes/rank-totals", version=1)
class RankTotals:
    """What a site adds to numbers of rows, and to correlations that they weigh."""

    counts: Released = Aggregate("m", "training rows", kind="int", low=1, high=_MOST_ROWS)
    held: Released = Aggregate("2", "choosing and test rows; a gap where not asked for", gaps=True)
    ranks: Released = Aggregate("m t", "rows times Spearman, to a whole number", gaps=True)


@message("federated-community-bayes/fits-possible", version=1)
class FitsPossible:
    """Which fits a site could tell: 1 for yes, 0 for no."""

    fits: Released = Aggregate("c", "by community", low=0, high=1)


@message("federated-community-bayes/shared-fits", version=1)
class SharedFits:
    """Ask for the fits that every site can tell."""

    settings: Settings = states(Settings)
    places: Released = Aggregate("n", "places of communities", kind="int", to="all", low=0)


@message("federated-community-bayes/fit-totals", version=1)
class FitTotals:
    """What a site adds to the parabola of each community."""

    sums: Released = Model("d", "slope at 0 and curvature, packed, one community after the other")


@message("federated-community-bayes/slope-totals", version=1)
class SlopeTotals:
    """What a site adds to sums at some coefficients."""

    sums: Released = Aggregate("d", "loss, gradient and curvature, packed, as in `FitTotals`")


@message("federated-community-bayes/figures-possible", version=1)
class FiguresPossible:
    """Which figures of models a site could tell: 1 for yes, 0 for no."""

    losses: Released = Aggregate("a", "log losses, as in `FigureTotals`", low=0, high=1)


@message("federated-community-bayes/shared-figures", version=1)
class SharedFigures:
    """Ask for the figures that every site can tell, of the same models."""

    settings: Settings = states(Settings)
    told: BoolArray = Public("a", "which log losses", kind="bool", to="all")


@message("federated-community-bayes/figure-totals", version=1)
class FigureTotals:
    """What a site adds to figures of models, over rows that no fit has seen."""

    losses: Released = Aggregate(
        "a", "sum of log losses of the first; of what each other one's are lower by", gaps=True
    )
    squares: Released = Aggregate("a", "their sums of squares", gaps=True, low=0)
    wrong: Released = Aggregate("a", "wrong predictions, of test rows", gaps=True)


@message("federated-community-bayes/kept", version=1)
class Kept:
    """The site keeps the model."""


def n_parameters(q: int, m: int) -> int:
    """Free coefficients of a community of q columns and m classes."""
    return (m - 1) * (q + 1)


def n_numbers(q: int, m: int) -> int:
    """Numbers of a packed fit."""
    size = n_parameters(q, m)
    return size + size * (size + 1) // 2


def packed(*heads: FloatArray, curvature: FloatArray) -> FloatArray:
    """Some vectors, and the upper triangle of a symmetric matrix."""
    upper = np.triu_indices(len(curvature))
    return np.concatenate([*(np.ravel(h) for h in heads), curvature[upper]])


def is_packed(values: FloatArray, q: int, m: int, n: int) -> bool:
    """Whether numbers are coefficients, or slopes, and the curvature of a sum over n rows.

    Parameters
    ----------
    values : array
    q, m, n : int
        Columns, classes, rows.
    """
    size = n_parameters(q, m)
    if m < 2 or values.shape != (n_numbers(q, m),):
        return False
    curvature = unpacked(values, size, size)[1]
    # No row adds more than 1 to the curvature in an intercept.
    least = np.diag(curvature)[:: q + 1].max() <= n * (1 + _ROUNDING)
    return bool(least) and is_gram(curvature)


def unpacked(values: FloatArray, size: int, heads: int) -> tuple[FloatArray, FloatArray]:
    """Take them apart: the first `heads` numbers, and the matrix of so many rows."""
    upper = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[upper] = values[heads:]
    return values[:heads], matrix + np.triu(matrix, 1).T
