"""Messages of a pooled regression.

The response stands last among the columns of moments. Coefficients are those of the design
(`regression/kernels.py`): of ones, then of the columns in use, centred and scaled by numbers that
all sites get.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.numerics.block_moments import square_of
from consilience.parameters import FLAG, Allowed, allows, number, one_of
from consilience.protocol.phases.moments import MOST
from consilience.regression.cox import TIES
from consilience.regression.kernels import COX, DISPERSIONS, ERRORS, FAMILIES, NEGATIVE, Piece
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, is_gram, message, states

MAX_ROUNDS = 30
"""Rounds of sums that a site answers in a run, where records are protected."""
_MOST_ROWS = 1 << 40
FITS = ("exact", "one-shot")
WEIGHTS = ("precision", "frequency")
NAME = Allowed(lambda v: isinstance(v, str), "the name of a column")
FIGURES = ("loss", "least", "constant", "pearson")
"""Sums over rows beside score and curvature, in the order in which they travel."""
SUMS = {
    "figures": np.zeros(0),
    "score": np.zeros(0),
    "curvature": np.zeros((0, 0)),
    "squares": np.zeros((0, 0)),
    "expected": np.zeros((0, 0)),
    "shape": np.zeros(0),
}
"""Fields of `Sums`, and what stands where one is not asked for."""


@dataclass(frozen=True)
class Settings:
    """What travels with each question, and is compared with an approved study.

    Attributes
    ----------
    family : str
    site_effects : bool
        Whether each site has a constant of its own.
    errors, fit, weights : str
        As the method's parameters: they decide which sums a site tells.
    alpha, dispersion
        Of the negative binomial.
    performance : bool
        Whether sites judge the risks that the fit predicts.
    time, ties : str
        Of a Cox regression.
    offset, weighted : bool
        Whether the study names such a column.
    """

    family: str = allows(one_of(*FAMILIES))
    site_effects: bool = allows(FLAG)
    errors: str = allows(one_of(*ERRORS), default="model")
    fit: str = allows(one_of(*FITS), default="exact")
    weights: str = allows(one_of(*WEIGHTS), default="precision")
    alpha: float = allows(number(0), default=0.0)
    dispersion: str = allows(one_of(*DISPERSIONS), default="likelihood")
    performance: bool = allows(FLAG, default=False)
    time: str = allows(NAME, default="")
    ties: str = allows(one_of(*TIES), default="efron")
    offset: bool = allows(FLAG, default=False)
    weighted: bool = allows(FLAG, default=False)

    @property
    def beside(self) -> int:
        """Columns that are told beside those of the study and the response."""
        return int(self.offset) + int(self.weighted)

    @property
    def constants(self) -> int:
        """Constants of a site: a baseline hazard takes the place of one."""
        return int(self.family != COX)

    @property
    def by_rounds(self) -> bool:
        """Whether sums are asked for at coefficients."""
        return not self.one_shot and (self.family != "gaussian" or self.squares or self.weighted)

    @property
    def expects(self) -> bool:
        """Whether sites tell expected curvatures, since moments do not."""
        return self.family == NEGATIVE or (self.weighted and self.family == "gamma")

    @property
    def estimate(self) -> str:
        """How alpha is estimated; empty where it is given, or there is none."""
        return self.dispersion if self.family == NEGATIVE and not self.alpha else ""

    @property
    def one_shot(self) -> bool:
        """Whether sites tell their own fits, in place of rounds."""
        return self.fit == "one-shot" and self.family != "gaussian"

    @property
    def squares(self) -> bool:
        """Whether squared scores of rows are summed."""
        return self.errors in ("HC0", "HC1")


@message("pooled-regression/request", version=5)
class Request:
    """Ask for moments of columns and response."""

    settings: Settings = states(Settings)


@message("pooled-regression/moments", version=2)
class Moments:
    """Rows, means, and sums of products about the means.

    After the columns come the response, the offset and the weight, as the study names them; times
    of a Cox regression are left out.
    """

    n: Released = Aggregate("", "rows", kind="int", low=1, high=_MOST_ROWS)
    means: Released = Aggregate(
        "f", "means; a gap in a column that the site withholds", gaps=True, low=-1e100, high=1e100
    )
    products: Released = Aggregate(
        "t",
        "sums of products of deviations from the means, upper triangle over columns without gaps",
        low=-1e200,
        high=1e200,
    )

    def check(self, request: Request, known: Mapping[str, Any]) -> str | None:
        """Products are those of the columns that are told."""
        m = int((~np.isnan(self.means.value)).sum())
        settings = request.settings
        if len(self.means.value) != known["p"] + settings.constants + settings.beside:
            return "moments of other columns"
        if len(self.products.value) != m * (m + 1) // 2:
            return "products of other columns than the means"
        return None if is_gram(square_of(self.products.value, m)) else "products that no rows have"


@message("pooled-regression/totals", version=1)
class Totals:
    """The same as what adds up over sites, where sums are masked: rows and sums of columns."""

    n: Released = Aggregate("", "rows", kind="int", low=1, high=_MOST_ROWS)
    totals: Released = Aggregate(
        "f", "sums; a gap in a column that the site withholds", gaps=True, low=-1e150, high=1e150
    )


@message("pooled-regression/centre", version=1)
class Centre:
    """Ask for products about the pooled means."""

    settings: Settings = states(Settings)
    columns: Released = Aggregate("m", "places of the columns in use", kind="int", to="all")
    mean: Released = Aggregate(
        "c", "pooled means, of response, offset and weight too", to="all", low=-MOST, high=MOST
    )


@message("pooled-regression/products", version=1)
class Products:
    """Sums of products of deviations from the pooled means."""

    products: Released = Aggregate(
        "t", "upper triangle over the columns in use and those after them", low=-1e200, high=1e200
    )


@message("pooled-regression/own-fit-request", version=5)
class OwnFitRequest:
    """Ask for the fit of a site's own rows, of the one-shot way."""

    settings: Settings = states(Settings)
    columns: Released = Aggregate("m", "places of the columns in use", kind="int", to="all")
    centre: Released = Aggregate("m", "pooled means", to="all", low=-MOST, high=MOST)
    scale: Released = Aggregate(
        "m", "pooled standard deviations", to="all", low=1 / MOST, high=MOST
    )


@message("pooled-regression/own-fit", version=2)
class OwnFit:
    """The site's own fit; empty where it has none that may leave."""

    fit: Released = Model(
        "d",
        "coefficients, loss and other sums (gaps as in those of rounds), curvature, one after the "
        "other; empty if none",
        gaps=True,
    )

    def check(self, request: OwnFitRequest, known: Mapping[str, Any]) -> str | None:
        """Nothing, or as many numbers as the columns ask for."""
        q, line = len(request.columns.value) + request.settings.constants, self.fit.value
        if not len(line):
            return None
        if np.isnan(np.delete(line, _gaps(q))).any():
            return "gaps in a fit"
        if len(line) != q + len(FIGURES) + q * (q + 1) // 2:
            return "a fit of other columns"
        return None if is_gram(square_of(line[q + len(FIGURES) :], q)) else "a curvature of no rows"


@message("pooled-regression/coefficients", version=5)
class Coefficients:
    """Ask for sums at coefficients."""

    settings: Settings = states(Settings)
    round: int = Public("", "1 is the first", kind="int", to="all")
    columns: Released = Aggregate("m", "places of the columns in use", kind="int", to="all")
    centre: Released = Aggregate("m", "pooled means", to="all", low=-MOST, high=MOST)
    scale: Released = Aggregate(
        "m", "pooled standard deviations", to="all", low=1 / MOST, high=MOST
    )
    sites: tuple[str, ...] = Public("s", "sites that take part", kind="str", to="all")
    constants: Released = Model("s", "constant of each site", to="all")
    slopes: Released = Model("m", "coefficients of the columns", to="all")
    alpha: Released = Model("1", "of the negative binomial, else 1", to="all", low=0.0)

    def lengths(self) -> dict[str, int]:
        """Coefficients at a site."""
        return {"q": len(self.columns.value) + self.settings.constants}


@message("pooled-regression/sums", version=4)
class Sums:
    """Sums over the site's rows at these coefficients."""

    figures: Released = Aggregate(
        "4",
        "losses, least losses and terms of response and weight (gaps where a whole number is of "
        "few rows), Pearson's sum",
        gaps=True,
    )
    score: Released = Aggregate("q", "first derivative of the loss")
    curvature: Released = Aggregate("q q", "second derivative", gram=True)
    squares: Released = Aggregate(
        "q q", "sums of products of rows' scores; empty unless asked for", gram=True, empty=True
    )
    expected: Released = Aggregate(
        "q q",
        "expected second derivative; of the negative binomial, and of gamma with weights",
        gram=True,
        empty=True,
    )
    shape: Released = Aggregate(
        "k",
        "equation of alpha, its derivative (gaps where a count is of few rows), and that of the "
        "score; empty unless alpha is estimated",
        gaps=True,
    )

    def check(self, request: Coefficients, known: Mapping[str, Any]) -> str | None:
        """Squares and expected curvatures are there exactly where they were asked for."""
        if np.isnan(np.delete(self.figures.value, _gaps(0))).any():
            return "gaps in a loss"
        told = tuple(bool(one.value.size) for one in (self.squares, self.expected))
        if told != (request.settings.squares, request.settings.expects):
            return "sums that were not asked for, or not told"
        wanted = len(self.score.value) + 2 if request.settings.estimate else 0
        if len(self.shape.value) != wanted or np.isnan(self.shape.value[2:]).any():
            return "other sums for alpha than were asked for"
        return None


@message("pooled-regression/judge", version=2)
class Judge:
    """Ask how the risks that a fit predicts agree with what happened."""

    settings: Settings = states(Settings)
    columns: Released = Aggregate("m", "places of the columns in use", kind="int", to="all")
    centre: Released = Aggregate("m", "pooled means", to="all", low=-MOST, high=MOST)
    scale: Released = Aggregate(
        "m", "pooled standard deviations", to="all", low=1 / MOST, high=MOST
    )
    sites: tuple[str, ...] = Public("s", "sites that take part", kind="str", to="all")
    constants: Released = Model("s", "constant of each site", to="all")
    slopes: Released = Model("m", "coefficients of the columns", to="all")
    cuts: Released = Model("c", "linear predictors between bands", to="all")


@message("pooled-regression/judged", version=3)
class Judged:
    """Rows in bands of predicted risk and a recalibration, or how many pairs are in order."""

    counts: Released = Aggregate(
        "d",
        "rows by band, without and with an event; 0 in a band that is part of one before it",
        kind="int",
        low=0,
        high=_MOST_ROWS,
    )
    expected: Released = Aggregate("e", "sums of predicted risks by band", gaps=True)
    calibration: Released = Model(
        "f",
        "intercept, slope, and their covariance; of a Cox regression sums over rows of pairs in "
        "order and of pairs that can be compared, and of their products; empty if none",
    )
    drift: Released = Model(
        "g",
        "of a Cox regression scores and curvatures in which events count by powers of the share of "
        "people who had the event before; empty if none",
    )

    def check(self, request: Judge, known: Mapping[str, Any]) -> str | None:
        """As many numbers as bands."""
        bands = len(request.cuts.value) + 1
        if len(self.counts.value) != 2 * bands or len(self.expected.value) != bands:
            return "counts of other bands"
        if len(self.calibration.value) not in (0, 5):
            return "another calibration"
        m, line = len(request.slopes.value), self.drift.value
        if not len(line):
            return None
        if request.settings.family != COX or len(line) != 2 * m + 3 * (m * (m + 1) // 2):
            return "other tests of proportional hazards"
        grams = all(map(is_gram, drift_of(line, m)[1]))
        return None if grams else "a curvature of no rows"


@message("pooled-regression/conclude", version=4)
class Conclude:
    """The fitted model, which the sites keep."""

    settings: Settings = states(Settings)
    sites: tuple[str, ...] = Public("s", "sites of the constants", kind="str", to="all")
    model: Released = Model(
        "*columns, coefficients, covariance, df, level", "the model of all rows", to="all"
    )


@message("pooled-regression/concluded", version=1)
class Concluded:
    """The site keeps the model and what it says of its rows; nothing of that leaves."""


def _gaps(first: int) -> list[int]:
    """Where a site may leave a gap, if its figures begin there."""
    return [first + FIGURES.index(name) for name in ("least", "constant")]


def drift_of(line: FloatArray, m: int) -> tuple[FloatArray, FloatArray]:
    """Scores, (2, m), and curvatures, (3, m, m), of a test of proportional hazards."""
    curvatures = line[2 * m :].reshape(3, m * (m + 1) // 2)
    return line[: 2 * m].reshape(2, m), np.array([square_of(one, m) for one in curvatures])


def packed(piece: Piece) -> FloatArray:
    """A fit as it travels."""
    upper = np.triu_indices(len(piece.theta))
    figures = [getattr(piece, name) for name in FIGURES]
    return np.concatenate([piece.theta, figures, piece.curvature[upper]])


def unpacked(line: FloatArray, n: float, q: int) -> Piece:
    """The piece of a fit: at an optimum the score is 0."""
    figures = dict(zip(FIGURES, line[q : q + len(FIGURES)].tolist(), strict=True))
    curvature = square_of(line[q + len(FIGURES) :], q)
    return Piece(n, line[:q], score=np.zeros(q), curvature=curvature, **figures)
