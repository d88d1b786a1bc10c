"""What a site does: tell moments of groups of its rows, keep the model and what it says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.completion.estimators.components_predictor import ComponentsPredictor
from consilience.completion.estimators.gap_rows import GapRows
from consilience.completion.federated_pca.groups import Groups, groups_of
from consilience.completion.federated_pca.messages import (
    Conclude,
    Concluded,
    Moments,
    Settings,
    Told,
)
from consilience.completion.federated_pca.model import model_of
from consilience.completion.kernels.normal_moments import normal_moments
from consilience.exceptions import DataError, ProtocolError
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import (
    Limits,
    Released,
    aggregate,
    cell_counts,
    class_moments,
    replaced,
)
from consilience.wire.moment_facts import coded_within

_LARGEST = 1e100
TOO_LARGE = "features hold values above 1e100, whose squares overflow: take other units"

# --------------------------------------------------------------------------- moments


def _kept_name(message: Moments, data: SiteData) -> str:
    """What is kept of the first groups, for the data set."""
    return "entities of groups"


@step("moments", once=True, keeps=_kept_name)
def moments(
    message: Moments, data: SiteData, state: State, site: SiteContext
) -> tuple[Told, State]:
    """Tell rows, means and sums of products of each group."""
    if np.isinf(data.features).any():
        raise DataError("features hold infinite values", public="features hold infinite values")
    if (np.abs(data.features) > _LARGEST).any():
        raise DataError(TOO_LARGE, public=TOO_LARGE)
    groups = groups_of(data, _n_splits(message.settings, data, site), site)
    site.note(
        f"Moments of {groups.number} groups of rows leave, over {len(groups.columns)} of "
        f"{data.features.shape[1]} columns; {int(np.isnan(data.features).sum())} cells are missing."
    )
    means, products = _moments(data, groups, site.limits)
    counts = cell_counts(groups.of, groups.number)
    return Told(counts=counts, means=means, products=products), {
        "settings": plain(message.settings)
    }


def _n_splits(settings: Settings, data: SiteData, site: SiteContext) -> int:
    """How many groups a run may get: one where it has other entities than the first one had.

    Groups by two columns of entities that differ for few people would differ by these.
    """
    entity = "" if data.entity is None else f"column {data.entity_name}"
    if site.limits.min_records <= 1:
        return settings.n_splits
    if site.kept is None:
        site.keep({"entity": entity})
    elif site.kept["entity"] != entity:
        site.note("Earlier groups were of other entities: all rows are one group now.")
        return 1
    return settings.n_splits


def _moments(data: SiteData, groups: Groups, limits: Limits) -> tuple[Released, Released]:
    """Means and sums of products by group; of the largest likelihood where cells are missing."""
    columns = groups.columns
    x, centre, scale = data.in_own_units()
    given: dict[str, Any] = {
        "cells": groups.of,
        "n_cells": groups.number,
        "entities": data.entity,
    }
    means = aggregate(x, mean=True, **given)
    means = replaced(means, (means.value - centre) / scale)
    hidden = np.ones(np.shape(means.value), dtype=bool)
    hidden[:, columns] = False
    block = x[:, columns]
    products = class_moments(
        block,
        blocks=[np.arange(len(columns))],
        limits=limits,
        coded=coded_within(data.coded, columns),
        **given,
    )
    upper = np.triu_indices(len(columns))
    products = replaced(
        products, products.value / np.outer(scale, scale)[columns][:, columns][upper]
    )
    if np.isnan(block).any():
        block = data.features[:, columns]
        known = _without_few_gaps(block, limits.min_records)
        expected = [_expected(known[groups.of == group]) for group in range(groups.number)]
        told = np.array(means.value)
        told[:, columns] = [mean for mean, _ in expected]
        means = replaced(means, told)
        withheld = np.isnan(products.value)
        sums = np.array([upper for _, upper in expected])
        products = replaced(products, np.where(withheld, np.nan, sums))
    return means.withhold(hidden), products


def _without_few_gaps(x: FloatArray, least: int) -> FloatArray:
    """Put the column's mean where fewer than `least` of its values are missing, but some.

    What is expected of a few rows, less the mean of the others that the phase `moments` tells, is
    the rest of these rows (`docs/proofs/units.md`).
    """
    few = np.isnan(x).sum(axis=0) < least
    return np.asarray(np.where(np.isnan(x) & few, np.nanmean(x, axis=0), x))


def _expected(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and sums of products of rows with gaps."""
    found = normal_moments(rows)
    return found.mean, len(rows) * found.covariance[np.triu_indices(rows.shape[1])]


# --------------------------------------------------------------------------- conclude


@step("conclude", once=True)
def conclude(
    message: Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[Concluded, State]:
    """Keep the model, scores of the rows and, where cells are missing, the completed table."""
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the end goes on with the settings of the moments")
    model, columns = model_of(message.model.value, data.features.shape[1])
    names = np.array(data.feature_names, dtype=np.str_)[columns]
    table = GapRows(names, _units(data)[:, columns])
    site.output("predictor", ComponentsPredictor(model, table))
    x = data.features[:, columns]
    # A model that somebody made up may give numbers that are none: they stay here.
    with np.errstate(all="ignore"):
        scores = model.scores(x)
        low = model.mean + scores @ model.directions.T
        for a in range(model.rank):
            site.output(f"component_{a + 1}", np.ascontiguousarray(scores[:, a]))
        site.output("residual", _residual(x, low))
        if np.isnan(x).any():
            full = table.in_units(np.where(np.isnan(x), low, x))
            site.table("completed", _columns(data, names, full))
    return Concluded(), {}


def _units(data: SiteData) -> FloatArray:
    """Centre and scale that were applied to the columns, (2, p)."""
    p = data.features.shape[1]
    if data.scaling is None:
        return np.stack([np.zeros(p), np.ones(p)])
    return np.asarray(data.scaling[1:], dtype=np.float64)


def _residual(x: FloatArray, low: FloatArray) -> FloatArray:
    """Root mean square of what the components leave of each row's values; NaN without any."""
    squares = np.where(np.isnan(x), 0.0, x - low) ** 2
    n = (~np.isnan(x)).sum(axis=1)
    return np.where(n > 0, np.sqrt(squares.sum(axis=1) / np.maximum(n, 1)), np.nan)


def _columns(data: SiteData, names: NDArray[np.str_], full: FloatArray) -> dict[str, Any]:
    first: dict[str, Any] = {"row": data.rows.tolist()}
    if data.id is not None:
        first["id"] = data.id.tolist()
    return first | {name: full[:, j].tolist() for j, name in enumerate(names.tolist())}


STEPS = (moments, conclude)
