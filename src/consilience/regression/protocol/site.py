"""What a site does: moments, sums at coefficients or a fit of its own, and what it keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, DisclosureError, ProtocolError
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.regression import kernels
from consilience.regression.estimators import RegressionPredictor
from consilience.regression.protocol import messages
from consilience.wire import disclosure
from consilience.wire.disclosure import Limits, Released, aggregate, replaced
from consilience.wire.moment_facts import coded_within

_LARGEST = 1e50
_NOT_FINITE = "columns of the regression hold values that are missing, infinite or above 1e50"
TOO_FEW = (
    "its policy lets moments of so many columns leave over more rows than it has: take fewer "
    "columns, or leave this site out"
)
NO_RESPONSE = (
    "the response may not be told here (few rows differ in it, one row dominates, or it was told "
    "of other rows): leave this site out"
)
FEW_ENTITIES = "its policy lets sums leave over more entities than it has: leave this site out"
WANTED = {
    "binomial": "0 or 1, or of two declared levels",
    "poisson": "whole numbers of at least 0",
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
    fits = {
        "binomial": bool(((y == 0) | (y == 1)).all()),
        "poisson": bool(((y >= 0) & (y == np.floor(y))).all()),
        # a blanked response is 0
        "gamma": bool((y > 0).all() or not y.any()),
    }
    if not fits.get(family, True):
        sentence = f"the response of a {family} regression must be {WANTED[family]}"
        raise DataError(sentence, public=sentence)
    return y


@step("moments", once=True)
def moments(
    message: messages.Request, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Moments, State]:
    """Tell rows, means and products of the columns that may be told, the response last."""
    y = response_of(message.settings.family, data)
    x, centre, scale = data.in_own_units()
    z = np.column_stack([x, y])
    if not np.isfinite(z).all() or (np.abs(z) > _LARGEST).any():
        raise DataError(_NOT_FINITE, public=_NOT_FINITE)
    p = x.shape[1]
    cells: dict[str, Any] = {
        "cells": np.zeros(len(z), dtype=np.int64),
        "n_cells": 1,
        "entities": data.entity,
    }
    means = aggregate(z, mean=True, **cells)
    columns: IntArray = np.arange(p + 1)
    products = _products(z, columns, data, site.limits, cells)
    if np.isnan(products.value).any() or np.isnan(means.withhold_unsafe(site.limits).value).any():
        # Some may not leave beside the others: to say which takes a second look at all of them.
        columns = disclosure.tellable_columns(z, site.limits, data.coded, first=p)
        if not len(columns) or columns[-1] != p:
            # Of too many columns the guard over runs keeps the last ones back, the response first.
            _check_size(len(z), p + 1, site.limits)
            raise DataError(NO_RESPONSE, public=NO_RESPONSE)
        products = _products(z, columns, data, site.limits, cells)
    _check_size(len(z), len(columns), site.limits)
    if np.isnan(products.value).any():
        raise DataError(FEW_ENTITIES, public=FEW_ENTITIES)
    centre, scale = np.append(centre, 0.0), np.append(scale, 1.0)
    hidden = np.ones((1, p + 1), dtype=bool)
    hidden[:, columns] = False
    told = (means.withhold(hidden).value - centre) / scale
    upper = np.triu_indices(len(columns))
    units = np.outer(scale[columns], scale[columns])[upper]
    withheld = [data.feature_names[j] for j in range(p) if j not in columns]
    if withheld:
        site.note(f"Moments of {', '.join(withheld)} stay here: few rows differ, or one dominates.")
    reply = messages.Moments(
        n=disclosure.count(len(z)),
        means=replaced(means.withhold(hidden), told[0]),
        products=replaced(products, products.value[0] / units),
    )
    return reply, {"settings": plain(message.settings), "told": columns[:-1].tolist()}


def _products(
    z: FloatArray, columns: IntArray, data: SiteData, limits: Limits, cells: dict[str, Any]
) -> Released:
    """Sums of products of some columns about their means; NaN in all where one may not leave."""
    return disclosure.class_moments(
        z[:, columns],
        blocks=[np.arange(len(columns))],
        limits=limits,
        coded=coded_within(data.coded, columns),
        **cells,
    )


def _check_size(n: int, m: int, limits: Limits) -> None:
    """Refuse more columns than the rows allow to be told."""
    few = limits.min_records > 1 and n < max(limits.min_records, 2 * m)
    if few or m > limits.columns_for(n, products=True):
        raise DataError(TOO_FEW, public=TOO_FEW)


def _design(
    message: messages.Coefficients | messages.OwnFitRequest, data: SiteData, state: State
) -> FloatArray:
    """Design of the columns that a question names, all of which the site has told."""
    columns: IntArray = np.asarray(message.columns.value, dtype=np.int64)
    ordered = bool((np.diff(columns) > 0).all())
    if not ordered or not set(columns.tolist()) <= set(state.get("told", ())):
        sentence = "the columns in use are not among those that the site has told moments of"
        raise ProtocolError(sentence, public=sentence)
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the question goes on with other settings than the moments")
    scale = np.asarray(message.scale.value)
    if not (scale > 0).all():
        raise ProtocolError("a column has no scale")
    return kernels.design_of(data.features[:, columns], np.asarray(message.centre.value), scale)


def _judged(design: FloatArray) -> FloatArray:
    """Rows by which shares are judged: as asked, and about the site's own means in its own units.

    About a centre far from all rows each has the same share of a cell. Whoever picks it can move it
    back in what is told, so the shares about the mean count, too.
    """
    own = design[:, 1:] - design[:, 1:].mean(axis=0)
    spread = own.std(axis=0)
    return np.column_stack([design, own / np.where(spread > 0, spread, 1.0)])


def _tally(
    message: messages.Coefficients, data: SiteData, limits: Limits
) -> dict[str, tuple[int, int]]:
    """Rounds are counted over a run, those whose replies were lost included."""
    return {"rounds": (1, messages.MAX_ROUNDS)} if limits.min_records > 1 else {}


@step("sums", tally=_tally)
def sums(
    message: messages.Coefficients, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Sums, State]:
    """Tell loss, score and curvature at coefficients that the coordinator chose."""
    if not site.per_record:
        sentence = (
            "this site tells no sums at coefficients that a coordinator chose (its steward grants "
            'them by per_record): ask for errors = "model" or "cluster", and where the family is '
            'not gaussian for fit = "one-shot"'
        )
        raise DisclosureError(sentence, public=sentence)
    family = message.settings.family
    design, y = _design(message, data, state), response_of(family, data)
    if message.settings.one_shot or (family == "gaussian" and not message.settings.squares):
        raise ProtocolError("sums at coefficients were asked for, and this fit needs none")
    if message.sites.count(site.site) != 1:
        raise ProtocolError("the coefficients are not for this site")
    constant = float(message.constants.value[message.sites.index(site.site)])
    theta = np.concatenate([[constant], np.asarray(message.slopes.value)])
    with np.errstate(over="ignore"):  # of made-up coefficients; what is no number is no release
        piece = kernels.piece_of(family, design, y, theta, squares=message.settings.squares)
        weights = kernels.weights_of(family, y, design @ theta)
    piece = _without_counts(family, piece, y, site.limits)
    values = [
        np.array([getattr(piece, name) for name in messages.FIGURES]),
        piece.score,
        piece.curvature,
        np.empty((0, 0)),
    ]
    how: dict[str, Any] = {"rows": _judged(design), "n_parameters": design.shape[1]}
    told = disclosure.weighted_sums(values, weights=weights[0][:, None], **how)
    if piece.squares is not None:  # rows weigh in it by their scores
        own = [piece.squares]
        told = told[:3] + disclosure.weighted_sums(own, weights=weights[1][:, None], **how)
    return messages.Sums(*told), state


def _without_counts(
    family: str, piece: kernels.Piece, y: FloatArray, limits: Limits
) -> kernels.Piece:
    """Leave out sums over the response alone from which exact numbers of few rows follow.

    With rows, mean and variance a sum of ``log y!`` or of ``y log y`` is of one table of counts of
    whole numbers only.
    """
    if not kernels.rare_counts(family, y, limits.min_records):
        return piece
    return dataclasses.replace(piece, least=np.nan, constant=np.nan)


@step("own-fit", once=True)
def own_fit(
    message: messages.OwnFitRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.OwnFit, State]:
    """Tell the fit of the site's own rows with its curvature."""
    if site.limits.max_detection < np.inf:
        sentence = (
            "this site bounds how far one person may show in what it tells, which a fit beside "
            "moments would not keep to (its steward grants fits by foreign_models)"
        )
        raise DisclosureError(sentence, public=sentence)
    if not message.settings.one_shot:
        raise ProtocolError("an own fit was asked for, and this fit goes by rounds")
    family = message.settings.family
    design, y = _design(message, data, state), response_of(family, data)
    empty = np.zeros((0, 1))
    made = disclosure.local_fit(np.zeros(0), rows=empty, weights=empty, n_parameters=0)
    found = kernels.fit_alone(family, design, y)
    if found is not None:
        weight = kernels.weights_of(family, y, design @ found.theta)[0][:, None]
        q = design.shape[1]
        found = _without_counts(family, found, y, site.limits)
        own = disclosure.local_fit(
            messages.packed(found), rows=_judged(design), weights=weight, n_parameters=q
        )
        fault = disclosure.fit_fault(own.evidence, site.limits) if own.evidence else "nothing"
        made = own if fault is None else made
        if fault is not None:
            site.note(f"The fit of the site's own rows stays here: {fault}.")
    else:
        site.note("The site's own rows have no fit: some columns separate them, or are constant.")
    return messages.OwnFit(fit=made), state


@step("conclude", once=True)
def conclude(
    message: messages.Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Concluded, State]:
    """Keep the model, and what it says of the site's rows."""
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the end goes on with the settings of the moments")
    arrays = message.model.value
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
    predictor = RegressionPredictor(
        family=message.settings.family,
        names=names,
        coefficients=np.asarray(arrays["coefficients"])[kept],
        covariance=np.asarray(arrays["covariance"])[np.ix_(kept, kept)],
        df=float(np.ravel(arrays["df"])[0]),
        level=float(np.ravel(arrays["level"])[0]),
        units=units,
    )
    site.output("predictor", predictor)
    with np.errstate(all="ignore"):  # a model that somebody made up may give no numbers
        fitted = predictor.mean_of(data.features[:, columns])
        site.output("fitted", fitted)
        site.output("residual", response_of(message.settings.family, data) - fitted)
    return messages.Concluded(), {}


STEPS = (moments, sums, own_fit, conclude)
