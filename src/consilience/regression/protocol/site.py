"""What a site does: moments, sums at coefficients or a fit of its own, and what it keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray, ends_of, side_by_side
from consilience.exceptions import DataError, DisclosureError, ProtocolError
from consilience.numerics.row_units import times_of
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.protocol.phases import secure_sums
from consilience.regression import cox, kernels, performance
from consilience.regression.estimators import RegressionPredictor
from consilience.regression.protocol import messages
from consilience.wire import disclosure
from consilience.wire.digits import whole_steps
from consilience.wire.disclosure import Judged, Limits, Released, aggregate, replaced
from consilience.wire.moment_facts import coded_within

_LARGEST = 1e50
_MANY = 1 << 19
"""Rows: of a table of more no copy with its columns in one piece is made."""
_NOT_FINITE = "columns of the regression hold values that are missing, infinite or above 1e50"
TOO_FEW = (
    "its policy lets moments of so many columns leave over more rows than it has: take fewer "
    "columns, or leave this site out"
)
NO_RESPONSE = (
    "the response may not be told here (few rows differ in it, one row dominates, or it was told "
    "of other rows): leave this site out"
)
NOT_BESIDE = (
    "the offset or the weight may not be told here beside the other columns (few rows differ in "
    "it, one row dominates, or it was told of other rows): leave it or this site out"
)
NO_FREQUENCY = (
    "weights of frequency must be whole numbers: set weights to 'precision' if they are none"
)
NO_SUMS = (
    "this site tells no sums at coefficients that a coordinator chose (its steward grants "
    'them by per_record): ask for errors = "model" or "cluster" without a weight, and '
    'where the family is not gaussian for fit = "one-shot" (granted by foreign_models)'
)
_FEW_VALUES = 4
"""Of a weight: sums with its powers 0 to 3 are those over the rows of each value."""
FEW_ENTITIES = "its policy lets sums leave over more entities than it has: leave this site out"
NO_TIMES = (
    "the times of the Cox regression may not be read here, since other runs told of them over "
    "other rows: leave this site out"
)
FEW_AT_RISK = (
    "fewer events than the policy asks for tell of the columns at these coefficients: leave out a "
    "column along which the hazard is steep, or one that follows time, or leave this site out"
)
OTHER_TIES = (
    "this site told sums with ties by {0} of the same data, and what few tied events add would be "
    "their difference: set ties to '{0}'"
)
OTHER_CENTRE = "masked sums are in the columns, and about the means, of which products were told"
ONE_CONSTANT = (
    "masked sums are of one constant for all sites: others would take all sites but one out of the "
    "total"
)
WANTED = {
    **dict.fromkeys(("binomial", kernels.COX), "0 or 1, or of two declared levels"),
    "poisson": "whole numbers of at least 0",
    kernels.NEGATIVE: "whole numbers of at least 0",
    "gamma": "above 0",
}


def response_of(family: str, data: SiteData) -> FloatArray:
    """The response as numbers: of two declared levels the second is 1.

    Raises
    ------
    DataError
        Values that the family does not have.
    """
    y = data.target
    if y is None:
        raise DataError("the study names no target", public="the study names no target")
    if y.dtype.kind == "U":
        second = data.levels[data.target_name][1]
        # Of a response that may not be told the site has blanked the content: then all are 0.
        return np.asarray(y == second, dtype=float)
    y = np.asarray(y, dtype=float)
    fits = True
    if family in ("binomial", kernels.COX):
        fits = bool(((y == 0) | (y == 1)).all())
    elif family in ("poisson", kernels.NEGATIVE):
        fits = bool(((y >= 0) & (y == np.floor(y))).all())
    elif family == "gamma":  # a blanked response is 0
        fits = bool((y > 0).all() or not y.any())
    if not fits:
        raise DataError.shared(f"the response of a {family} regression must be {WANTED[family]}")
    return y


def check_rows(data: SiteData, settings: messages.Settings) -> None:
    """Look for responses and times that the family does not have.

    Raises
    ------
    DataError
    """
    response_of(settings.family, data)
    _apart(data, settings)


def _apart(data: SiteData, settings: messages.Settings) -> tuple[SiteData, FloatArray | None]:
    """Columns without the times of a Cox regression, and these: nothing but their order matters.

    Raises
    ------
    DataError
        Times that are not above 0, or that the site has blanked.
    """
    if settings.family != kernels.COX:
        return data, None
    if settings.time not in data.feature_names:
        raise ProtocolError("the times are none of the columns")
    at = data.feature_names.index(settings.time)
    time = data.in_own_units()[0][:, at]
    if not time.any():
        raise DataError.shared(NO_TIMES)
    names = tuple(name for name in data.feature_names if name != settings.time)
    coded = tuple(
        group._replace(columns=tuple(j - (j > at) for j in group.columns)) for group in data.coded
    )
    cut = {
        name: np.delete(values, at, axis=1)
        for name in ("features", "scaling", "unscaled", "bounds")
        if (values := getattr(data, name)) is not None
    }
    return dataclasses.replace(data, feature_names=names, coded=coded, **cut), times_of(time)


def withheld(data: SiteData, settings: messages.Settings, limits: Limits) -> tuple[str, ...]:
    """Columns that `moments` would not tell by its first look; none where cells are empty.

    Raises
    ------
    DataError
        It would tell nothing.
    """
    data, _ = _apart(data, settings)
    others = [response_of(settings.family, data), *_beside(data, settings, limits)]
    z, p = np.column_stack([data.in_own_units()[0], *others]), data.features.shape[1]
    if not np.isfinite(z).all():
        return ()  # what fills gaps is agreed in the run
    columns = disclosure.tellable_columns(z, limits, data.coded, first=p)
    if (columns >= p).sum() < len(others):
        raise DataError.shared(NOT_BESIDE if p in columns else NO_RESPONSE)
    _check_size(len(z), len(columns), limits)
    return tuple(data.feature_names[j] for j in range(p) if j not in columns)


def _beside(data: SiteData, settings: messages.Settings, limits: Limits) -> list[FloatArray]:
    """Offset and weight, as the study names them.

    A weight is read with all its digits, so that a small one counts. Those that few rows have are
    rounded away here as of any column, but not to 0.

    Raises
    ------
    DataError
        Weights that the study takes for numbers of rows, and that are none.
    """
    columns = (data.offset, data.weight)
    if tuple(one is not None for one in columns) != (settings.offset, settings.weighted):
        raise ProtocolError("the settings do not say which roles the columns have")
    found = [] if data.offset is None else [data.offset]
    if data.weight is None:
        return found
    weight = whole_steps(data.weight, limits.min_records, above=0.0)[0]
    if settings.weights == "frequency" and not (weight == np.floor(weight)).all():
        raise DataError.shared(NO_FREQUENCY)
    return [*found, weight]


@step("moments", once=True)
def moments(
    message: messages.Request, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Moments, State]:
    """Tell rows, means and products of the columns that may be told, the response after them."""
    if message.settings.by_rounds and not site.per_record:
        raise DisclosureError.shared(NO_SUMS)  # they would be told for nothing
    data, _ = _apart(data, message.settings)
    y = response_of(message.settings.family, data)
    x, centre, scale = data.in_own_units()
    beside = _beside(data, message.settings, site.limits)
    more = 1 + len(beside)
    p = x.shape[1]
    z = side_by_side(x, (y, *beside))
    if len(x) <= _MANY:
        z = np.asarray(z)
    ends = ends_of(z)
    if not (np.abs(ends) <= _LARGEST).all():
        raise DataError.shared(_NOT_FINITE)
    cells: dict[str, Any] = {
        "cells": np.zeros(len(z), dtype=np.int64),
        "n_cells": 1,
        "entities": data.entity,
    }
    means = aggregate(z, mean=True, **cells)
    columns: IntArray = np.arange(p + more)
    products = _products(z, columns, data, site.limits, cells)
    if np.isnan(products.value).any() or np.isnan(means.withhold_unsafe(site.limits).value).any():
        # Some may not leave beside the others: to say which takes a second look at all of them.
        columns = disclosure.tellable_columns(z, site.limits, data.coded, first=p)
        if (columns >= p).sum() < more:
            # Of too many columns the guard over runs keeps the last ones back, the response first.
            _check_size(len(z), p + more, site.limits)
            fault = NOT_BESIDE if p in columns else NO_RESPONSE
            raise DataError.shared(fault)
        products = _products(z, columns, data, site.limits, cells)
    if message.settings.weighted:
        kept = _apart_by_weight(z, columns, p, data, site.limits)
        if len(kept) < len(columns):
            columns, products = kept, _products(z, kept, data, site.limits, cells)
    _check_size(len(z), len(columns), site.limits)
    if np.isnan(products.value).any():
        raise DataError.shared(FEW_ENTITIES)
    centre, scale = np.append(centre, np.zeros(more)), np.append(scale, np.ones(more))
    hidden = np.ones((1, p + more), dtype=bool)
    hidden[:, columns] = False
    told = (means.withhold(hidden).value - centre) / scale
    upper = np.triu_indices(len(columns))
    units = np.outer(scale[columns], scale[columns])[upper]
    withheld = [data.feature_names[j] for j in range(p) if j not in columns]
    if withheld:
        few = (
            "few rows differ, also of one weight,"
            if message.settings.weighted
            else "few rows differ,"
        )
        site.note(f"Moments of {', '.join(withheld)} stay here: {few} or one dominates.")
    reply = messages.Moments(
        n=disclosure.count(len(z)),
        means=replaced(means.withhold(hidden), told[0]),
        products=replaced(products, products.value[0] / units),
    )
    spans = np.concatenate([means.value, ends])[:, :p]
    told_of = {
        "told": columns[:-more].tolist(),
        "spans": spans if x is data.features else _spans(data.features),
    }
    return reply, {"settings": plain(message.settings), **told_of}


def _apart_by_weight(
    z: FloatArray, columns: IntArray, p: int, data: SiteData, limits: Limits
) -> IntArray:
    """Columns whose moments may leave also over the rows that a weight sets apart.

    Sums of products with a weight and without, of which it has two values, are those over the rows
    of either: a third column beside two. So are sums with its powers where there are up to four.
    Of more values each that many rows have is taken off: what is left are the other rows.

    Raises
    ------
    DataError
        The response may not leave so, or no row is apart from too many.
    """
    weight, told = z[:, -1], columns[:-1]
    values, times = np.unique(weight, return_counts=True)
    if limits.min_records <= 1:
        return columns
    few = len(values) <= _FEW_VALUES
    common = values if few else values[10 * times >= len(weight)]
    for value in common.tolist():
        apart = weight == value if few else weight != value
        cells = {
            "cells": np.where(apart, 0, -1).astype(np.int64),
            "n_cells": 1,
            "entities": data.entity,
        }
        if not np.isnan(_products(z, told, data, limits, cells).value).any():
            continue
        inside, place = coded_within(data.coded, told), int(np.argmax(told == p))
        told = told[disclosure.tellable_columns(z[apart][:, told], limits, inside, first=place)]
        lost = not (told == p).any()
        if lost or np.isnan(_products(z, told, data, limits, cells).value).any():
            raise DataError.shared(NOT_BESIDE)
    return np.append(told, columns[-1])


def _products(
    z: FloatArray, columns: IntArray, data: SiteData, limits: Limits, cells: dict[str, Any]
) -> Released:
    """Sums of products of some columns about their means; NaN in all where one may not leave."""
    return disclosure.class_moments(
        z if len(columns) == z.shape[1] else z[:, columns],
        blocks=[np.arange(len(columns))],
        limits=limits,
        coded=coded_within(data.coded, columns),
        **cells,
    )


def _check_size(n: int, m: int, limits: Limits) -> None:
    """Refuse more columns than the rows allow to be told."""
    few = limits.min_records > 1 and n < max(limits.min_records, 2 * m)
    if few or m > limits.columns_for(n, products=True):
        raise DataError.shared(TOO_FEW)


def _rows_of(
    message: messages.Coefficients | messages.OwnFitRequest | messages.Judge,
    data: SiteData,
    state: State,
    limits: Limits,
) -> kernels.Rows:
    """Rows in the columns that a question names, all of which the site has told."""
    columns: IntArray = np.asarray(message.columns.value, dtype=np.int64)
    ordered = bool((np.diff(columns) > 0).all())
    if not ordered or not set(columns.tolist()) <= set(state.get("told", ())):
        sentence = "the columns in use are not among those that the site has told moments of"
        raise ProtocolError.shared(sentence)
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the question goes on with other settings than the moments")
    data, time = _apart(data, message.settings)
    settings, scale = message.settings, np.asarray(message.scale.value)
    centre = np.asarray(message.centre.value)
    weight = _beside(data, settings, limits)[-1] if settings.weighted else None
    rows = kernels.Rows(
        kernels.Design(_features(data, columns), centre, scale),
        response_of(settings.family, data),
        data.offset,
        weight,
        frequency=settings.weights == "frequency",
        time=time,
    )
    if time is None or limits.min_records <= 1:
        return rows
    return performance.until_few(rows, limits.min_records)


def _ties_told(
    message: messages.Coefficients | messages.OwnFitRequest | messages.Judge, data: SiteData
) -> str:
    """Where a site keeps how ties counted in Cox regressions of its data; nowhere for others."""
    return "ties" if message.settings.family == kernels.COX else ""


def _keep_ties(settings: messages.Settings, site: SiteContext) -> None:
    """Tell by one way with ties only, over all runs: two differ by the events at one time."""
    told = (site.kept or {}).get("ties", settings.ties)
    if told != settings.ties and site.limits.min_records > 1:
        fault = OTHER_TIES.format(told)
        raise DisclosureError.shared(fault)
    site.keep({"ties": told})


def _features(data: SiteData, columns: IntArray) -> FloatArray:
    """Columns in use: without a copy where these are all."""
    x = data.features
    return x if np.array_equal(columns, np.arange(x.shape[1])) else x[:, columns]


def _judged(design: kernels.Design, spans: FloatArray) -> Judged:
    """Rows by which shares are judged: as asked, and about the site's own means.

    About a centre far from all rows each has the same share of a cell. Whoever picks it can move it
    back in what is told, so the shares about the mean count, too. Units make no difference.

    Parameters
    ----------
    design : Design
    spans : (3, p) array
        See `_spans`.
    """
    return Judged(design.x, np.stack([design.centre, spans[0]]), spans[1:])


def _spans(x: FloatArray) -> FloatArray:
    """Mean, least and largest value of each column, (3, p)."""
    return np.stack([x.mean(axis=0), x.min(axis=0), x.max(axis=0)])


def _tally(
    message: messages.Coefficients, data: SiteData, limits: Limits
) -> dict[str, tuple[int, int]]:
    """Rounds are counted over a run, those whose replies were lost included."""
    return {"rounds": (1, messages.MAX_ROUNDS)} if limits.min_records > 1 else {}


@step("sums", tally=_tally, keeps=_ties_told, summed=True)
def sums(
    message: messages.Coefficients, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Sums, State]:
    """Tell loss, score and curvature at coefficients that the coordinator chose."""
    if not site.per_record:
        raise DisclosureError.shared(NO_SUMS)
    settings = message.settings
    rows = _rows_of(message, data, state, site.limits)
    if not settings.by_rounds:
        raise ProtocolError("sums at coefficients were asked for, and this fit needs none")
    if message.sites.count(site.site) != 1:
        raise ProtocolError("the coefficients are not for this site")
    constant = float(message.constants.value[message.sites.index(site.site)])
    if secure_sums.KEYS in site.keys:
        # Far away at all sites but one, the total would be what this one adds.
        if (message.constants.value != constant).any():
            raise ProtocolError.shared(ONE_CONSTANT)
        # About a point far away sums are rounded, and points of one's choice would tell sites' own.
        about = np.append(message.columns.value, message.centre.value)
        if not np.array_equal(about, state.get("about", ())):
            raise ProtocolError.shared(OTHER_CENTRE)
    theta = np.concatenate([[constant][: settings.constants], np.asarray(message.slopes.value)])
    alpha = float(message.alpha.value[0])
    if not alpha > 0 or (settings.family == kernels.NEGATIVE and settings.alpha not in (0, alpha)):
        raise ProtocolError("the question has another alpha than the study")
    how: dict[str, Any] = {"alpha": alpha, "estimate": settings.estimate}
    with np.errstate(all="ignore"):  # of made-up coefficients; what is no number is no release
        squares = settings.squares
        judged = _judged(rows.design, np.asarray(state["spans"])[:, message.columns.value])
        if settings.family == kernels.COX:
            _keep_ties(settings, site)
            piece, own = cox.summed(rows, theta, ties=settings.ties, squares=squares)
            least = site.limits.min_records
            if least > 1 and performance.is_steep(rows, piece, least):
                raise DisclosureError.shared(FEW_AT_RISK)
            piece = _without_counts(settings, _in_numbers(piece, site), rows, site.limits)
            return messages.Sums(**_told_of_cox(settings, piece, own, judged)), state
        piece, terms = kernels.summed(settings.family, rows, theta, squares=squares, **how)
        piece = _without_counts(settings, _in_numbers(piece, site), rows, site.limits)
        return messages.Sums(**_told(settings, piece, terms, judged)), state


_OF_RESPONSE = ("least", "constant")
_NOTHING = 1e-280


def _in_numbers(piece: kernels.Piece, site: SiteContext) -> kernels.Piece:
    """Where sums are masked one that is no number, at made-up coefficients, is above all totals.

    Refused, or withheld, it would say that it is this site's. So would a matrix of squares next to
    nothing, whose few digits are not those of squares: masks cut them anyway.
    """
    odd = {}
    for name, value in vars(piece).items():
        # Sums over the response alone may be left out, at whatever coefficients.
        if value is None or name in _OF_RESPONSE:
            continue
        if not np.isfinite(value).all():
            odd[name] = np.full_like(value, 2.0**90)  # all of it: a matrix stays one of squares
        elif np.ndim(value) == 2:
            some = np.diag(value) > _NOTHING
            odd[name] = np.where(some[:, None] & some, value, 0.0)
    return dataclasses.replace(piece, **odd) if secure_sums.KEYS in site.keys else piece


def _told_of_cox(
    settings: messages.Settings, piece: kernels.Piece, own: cox.Own, judged: Judged
) -> dict[str, Released]:
    """The sums of a reply of a Cox regression, each judged by what rows add to it.

    The weight of a row is its cumulative hazard: about fixed centres, as asked and of the site's
    own rows, sums are those of a Poisson regression with these means. About the means of risk sets,
    which is how they come into being, no row may have too large a share either.
    """
    ones, q = np.ones((len(own.gap), 1)), len(piece.score)
    lost, gap = np.abs(own.lost)[:, None], np.abs(own.gap)[:, None]
    values = {name: getattr(piece, name) for name in messages.SUMS if name != "figures"}
    values["figures"] = np.array([getattr(piece, name) for name in messages.FIGURES])
    residuals = np.abs(own.score)
    by: dict[str, dict[str, Any]] = {
        "figures": {"rows": ones, "weights": gap, "n_parameters": 1, "alone": lost},
        "score": {"weights": gap, "first": 1, "alone": residuals},
        "curvature": {"weights": own.hazard[:, None], "alone": own.curvature},
    }
    if settings.squares:
        spread = np.sqrt((residuals**2).mean(axis=0))
        size = ((residuals / np.where(spread > 0, spread, 1.0)) ** 2).sum(axis=1) * own.squares
        by["squares"] = {"rows": residuals, "weights": np.column_stack([size, own.squares])}
    told = {}
    for name, value in messages.SUMS.items():
        how = {"rows": judged, "n_parameters": q, **by.get(name, by["curvature"])}
        asked = value if values[name] is None else values[name]
        (told[name],) = disclosure.weighted_sums([asked], **how)
    return told


def _told(
    settings: messages.Settings, piece: kernels.Piece, terms: kernels.Terms, judged: Judged
) -> dict[str, Released]:
    """The sums of a reply, each judged by its own terms.

    At made-up coefficients one row may have all of a sum of squared residuals and next to nothing
    of the curvature. Of squared residuals effective rows are those of the residuals, as with the
    response of moments: squares of honest counts have few.
    """
    by_score, q = np.abs(terms.score)[:, None], len(piece.score)
    figures = by_score
    if settings.family in kernels.DISPERSED:
        # Of the others the loss is a line in the response, whose sums are in the score.
        figures = np.column_stack([np.sqrt(terms.pearson), terms.pearson])
    values = {name: getattr(piece, name) for name in messages.SUMS if name != "figures"}
    values["figures"] = np.array([getattr(piece, name) for name in messages.FIGURES])
    by: dict[str, dict[str, Any]] = {
        "figures": {"rows": np.ones((len(by_score), 1)), "weights": figures, "n_parameters": 1},
        "score": {"weights": by_score, "first": 1},
    }
    if settings.squares:
        by["squares"] = {"weights": terms.squares[:, None]}
    if settings.expects:
        by["expected"] = {"weights": terms.expected[:, None]}
    if terms.shape is not None:
        first, second, turn = np.abs(terms.shape)
        weights, alone = np.column_stack([np.sqrt(first), turn]), np.column_stack([first, second])
        by["shape"] = {"weights": weights, "first": 1, "alone": alone, "n_parameters": 1}
    told = {}
    for name, how in by.items():
        how = {"rows": judged, "n_parameters": q, **how}
        (told[name],) = disclosure.weighted_sums([values[name]], **how)
    # What is not asked for is empty, and rests on what the curvature does.
    rest = ["curvature", *(name for name in messages.SUMS if name not in {*by, "curvature"})]
    empty = {**messages.SUMS, "curvature": piece.curvature}
    weights = terms.curvature[:, None]
    found = disclosure.weighted_sums(
        [empty[name] for name in rest], rows=judged, weights=weights, n_parameters=q
    )
    return told | dict(zip(rest, found, strict=True))


def _without_counts(
    settings: messages.Settings, piece: kernels.Piece, rows: kernels.Rows, limits: Limits
) -> kernels.Piece:
    """Leave out sums over response or weight alone from which exact numbers of few rows follow.

    With rows, mean and variance a sum of ``log y!`` or of ``y log y`` is of one table of counts of
    whole numbers only. So it is with that of ``log Gamma(y + 1 / alpha)``, and its derivatives. Nor
    does one leave in which a weighted row rules: who knows it reads off the response.
    """
    least, weight, y = limits.min_records, rows.weight, rows.y
    if least <= 1 or settings.family == "binomial":
        return piece
    if settings.family == kernels.COX:
        return dataclasses.replace(piece, constant=np.nan) if cox.few_orders(rows) else piece
    if settings.family == "gaussian":  # of the response it holds no logarithm
        rare = weight is not None and not rows.frequency and kernels.rare_counts(weight, least)
        return dataclasses.replace(piece, constant=np.nan) if rare else piece
    squares = rows.weighted((y - y.mean()) ** 2)
    rules = weight is not None and squares.max() > limits.max_share * squares.sum()
    if not rules and not kernels.rare_counts(y, least):
        return piece
    shape = piece.shape
    if shape is not None and settings.estimate == "likelihood":
        shape = np.concatenate([[np.nan, np.nan], shape[2:]])
    return dataclasses.replace(piece, least=np.nan, constant=np.nan, shape=shape)


@step("own-fit", once=True, keeps=_ties_told)
def own_fit(
    message: messages.OwnFitRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.OwnFit, State]:
    """Tell the fit of the site's own rows with its curvature."""
    if site.limits.max_detection < np.inf:
        sentence = (
            "this site bounds how far one person may show in what it tells, which a fit beside "
            "moments would not keep to (its steward grants fits by foreign_models)"
        )
        raise DisclosureError.shared(sentence)
    if not message.settings.one_shot:
        raise ProtocolError("an own fit was asked for, and this fit goes by rounds")
    settings, alpha = message.settings, message.settings.alpha
    family = settings.family
    if settings.estimate:
        raise ProtocolError("an own fit of the negative binomial has a given alpha")
    if settings.weighted or settings.offset:
        raise ProtocolError("an own fit knows neither weights nor an offset")
    rows = _rows_of(message, data, state, site.limits)
    empty = np.zeros((0, 1))
    made = disclosure.local_fit(np.zeros(0), rows=empty, weights=empty, n_parameters=0)
    of_cox = family == kernels.COX
    if of_cox:
        _keep_ties(settings, site)
    found = cox.fit_alone(rows, settings.ties) if of_cox else kernels.fit_alone(family, rows, alpha)
    least = site.limits.min_records
    if found is not None and of_cox and least > 1 and performance.is_steep(rows, found, least):
        site.note(f"The fit of the site's own rows stays here: {FEW_AT_RISK}.")
    elif found is not None:
        q, squares, alone = len(found.theta), None, None
        if of_cox:
            rests = cox.summed(rows, found.theta, ties=settings.ties)[1]
            weight, alone = rests.hazard[:, None], np.column_stack([rests.curvature, rests.lost])
        else:
            terms = kernels.terms_of(family, rows, rows.eta(found.theta), alpha)
            weight = terms.curvature[:, None]
            squares = terms.pearson if family in kernels.DISPERSED else None
        judged = _judged(rows.design, np.asarray(state["spans"])[:, message.columns.value])
        found = _without_counts(settings, found, rows, site.limits)
        own = disclosure.local_fit(
            messages.packed(found),
            rows=judged,
            weights=weight,
            n_parameters=q,
            squares=squares,
            alone=alone,
        )
        fault = disclosure.fit_fault(own.evidence, site.limits) if own.evidence else "nothing"
        made = own if fault is None else made
        if fault is not None:
            site.note(f"The fit of the site's own rows stays here: {fault}.")
    else:
        site.note("The site's own rows have no fit: some columns separate them, or are constant.")
    return messages.OwnFit(fit=made), state


@step("judge", once=True, keeps=_ties_told)
def judge(
    message: messages.Judge, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Judged, State]:
    """Tell how predicted risks agree with what happened, in bands of enough rows of each kind."""
    settings = message.settings
    of_cox = settings.family == kernels.COX
    if not (settings.performance and settings.family in ("binomial", kernels.COX)):
        raise ProtocolError("the study judges no risks")
    granted = site.limits.max_detection == np.inf if settings.one_shot else site.per_record
    if not granted:
        sentence = (
            "this site counts no rows by risks that a coordinator's coefficients predict (its "
            "steward grants it by per_record): set performance to false"
        )
        raise DisclosureError.shared(sentence)
    rows = _rows_of(message, data, state, site.limits)
    cuts = np.asarray(message.cuts.value)
    if message.sites.count(site.site) != 1 or not (np.diff(cuts) > 0).all():
        raise ProtocolError("the question is not for this site, or bands are not in order")
    constant = float(message.constants.value[message.sites.index(site.site)])
    eta = rows.eta(np.concatenate([[constant], np.asarray(message.slopes.value)]))
    band = np.full(len(eta), -1)  # of a Cox regression no rows are counted
    if not of_cox:
        band = performance.bands_of(eta, rows.y, cuts, site.limits.min_records)
    n = len(cuts) + 1
    cell = np.where(band < 0, -1, 2 * band + rows.y.astype(np.int64))
    risk = kernels.family_of(settings.family).mean(eta)
    expected = disclosure.aggregate(risk, cells=band, n_cells=n, entities=data.entity)
    empty = np.zeros((0, 1))
    told = disclosure.local_fit(np.zeros(0), rows=empty, weights=empty, n_parameters=0)
    drift = None
    if of_cox:
        _keep_ties(settings, site)
        spans = np.asarray(state["spans"])[:, message.columns.value]
        slopes = np.asarray(message.slopes.value)
        drift = _drift(rows, slopes, settings.ties, _judged(rows.design, spans), site.limits)
    own = _pairs(rows, eta, site.limits) if of_cox else _recalibration(eta, rows.y)
    if own is not None and own.evidence is not None:
        told = own if disclosure.fit_fault(own.evidence, site.limits) is None else told
    reply = messages.Judged(
        counts=disclosure.cell_counts(cell, 2 * n),
        expected=expected.withhold_unsafe(site.limits),
        calibration=told,
        drift=drift or disclosure.local_fit(np.zeros(0), rows=empty, weights=empty, n_parameters=0),
    )
    return reply, state


def _recalibration(eta: FloatArray, y: FloatArray) -> Released | None:
    """Intercept and slope of the response on the linear predictor, judged as a fit."""
    fit, again, found = performance.recalibration(eta, y)
    if fit is None:
        return None
    weight = kernels.terms_of("binomial", again, again.eta(fit.theta)).curvature[:, None]
    judged = _judged(again.design, _spans(again.design.x))
    return disclosure.local_fit(found, rows=judged, weights=weight, n_parameters=2)


def _pairs(rows: kernels.Rows, eta: FloatArray, limits: Limits) -> Released | None:
    """Sums over pairs in order and pairs that can be compared, judged by what each row adds.

    How many can be compared tells of the order of events and others: only where many are possible.
    """
    if rows.time is None or _few_events(rows, limits):
        return None
    agree, known = performance.pairs_of(rows.time, rows.y, eta)
    each = np.column_stack([agree, known - agree, agree**2, known**2])
    ones, weight = np.ones((len(eta), 1)), known[:, None]
    sums = performance.pair_sums(agree, known)
    return disclosure.local_fit(sums, rows=ones, weights=weight, n_parameters=1, alone=each)


def _few_events(rows: kernels.Rows, limits: Limits) -> bool:
    """Whether a site that protects records has too few events, or ways in which they follow."""
    few = int((rows.y == 1).sum()) < limits.min_records or cox.few_orders(rows)
    return limits.min_records > 1 and few


def _drift(
    rows: kernels.Rows, slopes: FloatArray, ties: str, judged: Judged, limits: Limits
) -> Released | None:
    """Scores and curvatures with events by powers of time, each judged as those of a round."""
    if _few_events(rows, limits):
        return None
    with np.errstate(all="ignore"):  # of made-up coefficients
        told = [cox.summed(rows, slopes, ties=ties, late=power) for power in range(3)]
        piece, q = told[0][0], len(slopes)
        if limits.min_records > 1 and performance.is_steep(rows, piece, limits.min_records):
            return None
        upper = np.triu_indices(q)
        curvatures = [piece.curvature[upper] for piece, _ in told]
        line = np.concatenate([*(piece.score for piece, _ in told[:2]), *curvatures])
        found = None
        for _, own in told:
            for weight, alone in (
                (np.abs(own.gap), np.abs(own.score)),
                (own.hazard, own.curvature),
            ):
                how: dict[str, Any] = {"weights": weight[:, None], "alone": alone}
                found = disclosure.local_fit(line, rows=judged, n_parameters=q, **how)
                if found.evidence and disclosure.fit_fault(found.evidence, limits) is not None:
                    return None
    return found


@step("conclude", once=True)
def conclude(
    message: messages.Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Concluded, State]:
    """Keep the model, and what it says of the site's rows."""
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the end goes on with the settings of the moments")
    arrays, (data, time) = message.model.value, _apart(data, message.settings)
    columns = np.asarray(arrays["columns"], dtype=np.int64)
    p = data.features.shape[1]
    if columns.ndim != 1 or (len(columns) and not 0 <= columns.min() <= columns.max() < p):
        raise ProtocolError("the model is not one of these columns")
    units = None if data.scaling is None else np.asarray(data.scaling)[1:, columns]
    names = np.array(data.feature_names, dtype=np.str_)[columns]
    size = len(np.asarray(arrays["coefficients"]))
    constants = size - len(columns)
    own = message.settings.site_effects
    if constants != (len(message.sites) if own else 1) or (own and site.site not in message.sites):
        raise ProtocolError("the model has other constants than sites")
    place = message.sites.index(site.site) if own else 0
    if np.shape(arrays["covariance"]) != (size, size):
        raise ProtocolError("the model has errors of other coefficients")
    kept = [place, *range(constants, size)]
    coefficients = np.asarray(arrays["coefficients"])[kept]
    x, y = _features(data, columns), response_of(message.settings.family, data)
    with np.errstate(all="ignore"):  # a model that somebody made up may give no numbers
        baseline, residual = None, None
        if time is not None:
            baseline, residual = _of_own_hazard(message.settings, x, y, data, time, coefficients)
        predictor = RegressionPredictor(
            family=message.settings.family,
            names=names,
            coefficients=coefficients,
            covariance=np.asarray(arrays["covariance"])[np.ix_(kept, kept)],
            df=float(np.ravel(arrays["df"])[0]),
            level=float(np.ravel(arrays["level"])[0]),
            units=units,
            baseline=baseline,
        )
        site.output("predictor", predictor)
        fitted = predictor.mean_of(x, data.offset)
        residual = y - fitted if residual is None else residual
        for name, column in (("fitted", fitted), ("residual", residual)):
            column.flags.writeable = False
            site.output(name, column)
    return messages.Concluded(), {}


def _of_own_hazard(
    settings: messages.Settings,
    x: FloatArray,
    y: FloatArray,
    data: SiteData,
    time: FloatArray,
    coefficients: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Baseline hazard of the site's own rows, all of them, and events less cumulative hazards."""
    rows = kernels.Rows(
        kernels.Design(x, x.mean(axis=0), np.ones(x.shape[1])),
        y,
        data.offset,
        data.weight,
        frequency=settings.weights == "frequency",
        time=time,
    )
    gap = cox.summed(rows, coefficients[1:], ties=settings.ties)[1].gap
    return cox.baseline(rows, coefficients), gap if data.weight is None else gap / data.weight


STEPS = (moments, sums, own_fit, judge, conclude)
