"""What a site does: tell moments of groups of its rows, keep the model and what it says of them.

Which groups of rows, and which columns, it may tell moments of comes first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.predictors import ComponentsPredictor, GapRows
from consilience.completion.federated_pca import messages
from consilience.completion.kernels.conditional_normal import normal_moments
from consilience.exceptions import DataError, ProtocolError
from consilience.numerics.random import stream
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire import disclosure
from consilience.wire.digits import finer_between
from consilience.wire.disclosure import Limits, Released, aggregate, replaced
from consilience.wire.equations import equations
from consilience.wire.moment_facts import (
    Coded,
    coded_within,
    hanging_together,
    moment_facts,
)

# --- Which groups of rows, and which columns, a site may tell moments of.

TOO_FEW = (
    "its policy lets moments of so many columns leave over more rows than it has (a column counts "
    "the rows that have a value): take fewer columns, or leave this site out"
)
TOO_NARROW = (
    "fewer than two columns may leave it (in the others few rows differ, one row dominates, or "
    "hardly a cell has a value): take other columns, or leave this site out"
)


_MANY = 15
"""Entities of each group: of fewer, a group of one deal is too often one of another."""


@dataclass(frozen=True, eq=False)
class Groups:
    """What a site tells moments of.

    Attributes
    ----------
    of : (n,) int array
        Group of each row.
    number : int
        Groups.
    columns : (m,) int array
        Columns that are told.
    """

    of: IntArray
    number: int
    columns: IntArray


def groups_of(data: SiteData, n_splits: int, site: SiteContext) -> Groups:
    """Find the most groups, up to `n_splits`, of which everything may leave.

    Where records are protected several groups are of twice the least number of rows: of smaller
    ones a group of this deal and one of another, over other rows of the table, might differ by few.

    Raises
    ------
    DataError
        Not even the moments of all rows together may leave.
    """
    # Units of others must not decide what may leave.
    x, limits = data.in_own_units()[0], site.limits
    columns = disclosure.tellable_columns(x, limits, data.coded)
    if len(columns) < 2:
        raise DataError.shared(TOO_NARROW)
    least = 2 * limits.min_records if limits.min_records > 1 else 1
    leaves = leaves_of(data, site)
    n_units = data.n_rows if data.entity is None else len(np.unique(data.entity))
    for number in (level for level in messages.LEVELS if level <= n_splits):
        of = merged(leaves, number)
        members = [np.flatnonzero(of == group) for group in range(number)]
        if number > 1 and min(map(len, members)) < least:
            continue
        if number > 1 and limits.min_records > 1 and n_units < _MANY * number:
            continue
        coded, told = coded_within(data.coded, columns), x[:, columns]
        if number > 1 and data.beside is not None:
            # Of all rows the site has seen to it before; parts are the same in every run.
            more = [
                Coded(tuple(j + len(columns) for j in of.columns), of.whole)
                for of in data.beside[1]
            ]
            coded, told = (*coded, *more), np.hstack([told, data.beside[0]])
        if all(
            _may_leave(told[rows], limits, coded, len(columns))
            and (number == 1 or not _of_few(told[rows], limits, coded))
            and told.shape[1] <= limits.columns_for(len(rows), products=True)
            and (data.entity is None or len(np.unique(data.entity[rows])) >= limits.min_entities)
            for rows in members
        ):
            return Groups(of, number, columns)
    raise DataError.shared(TOO_FEW)


def merged(leaves: IntArray, number: int) -> IntArray:
    """Groups of the ten parts of the rows.

    Those of each number are unions of those of every larger one: whatever a site tells in several
    runs, no difference of it is of fewer rows than the smallest group that it told of.
    """
    by_pairs = leaves // 2
    return {10: leaves, 5: by_pairs, 2: np.where(by_pairs < 3, 0, 1), 1: np.zeros_like(leaves)}[
        number
    ]


def leaves_of(data: SiteData, site: SiteContext) -> IntArray:
    """Part of each row, 0 to 9; rows of an entity are in one part.

    Where records are protected the draw is from the content of the rows, so that it is the same in
    every run on these rows, whatever columns are asked for, and nobody else can tell it. Other rows
    are drawn anew: a group less the same one without a few rows would be these rows.
    """
    if data.entity is None:
        of, n_units = np.arange(data.n_rows), data.n_rows
    else:
        names, codes = np.unique(data.entity, return_inverse=True)
        of, n_units = codes.ravel(), len(names)
    order = stream(_seed(data, site), "groups").permutation(n_units)
    if data.marks is not None and data.entity is None:  # whatever the order of the table
        order = np.argsort(data.marks, kind="stable")[order]
    part = np.empty(n_units, dtype=np.int64)
    part[order] = np.arange(n_units) * messages.LEVELS[0] // max(n_units, 1)
    return part[of]


def _seed(data: SiteData, site: SiteContext) -> int:
    if site.limits.min_records <= 1:
        return int(site.rng.integers(2**63 - 1))
    sealed = hashlib.sha256(b"groups of federated pca")
    if data.marks is not None:
        sealed.update(np.sort(data.marks).tobytes())
        return int.from_bytes(sealed.digest()[:8], "little") >> 1
    table = data.content_hash.encode() or np.ascontiguousarray(data.features).tobytes()
    sealed.update(table)
    if data.n_rows < data.n_read:
        sealed.update(np.ascontiguousarray(data.rows).tobytes())
    return int.from_bytes(sealed.digest()[:8], "little") >> 1


def _may_leave(x: FloatArray, limits: Limits, coded: Sequence[Coded], m: int) -> bool:
    """Whether the moments of a group may leave, as the gate will see it.

    The first m columns are told now.
    """
    if not len(x):
        return False
    values = int((~np.isnan(x[:, :m])).sum(axis=0).min())
    least = limits.min_records
    if least > 1 and values < max(least, 2 * m):
        return False
    joint = np.ones(x.shape[1], dtype=bool)
    # Of all rows, and of protected ones alone: the site's guard has seen to these.
    if least > 1 and hanging_together(x, least, joint, coded):
        return False
    # Pairs of columns whose products may not leave, and means of columns.
    unsafe = moment_facts(x, limits=limits, coded=coded).unsafe
    means = aggregate(x, mean=True).withhold_unsafe(limits)
    return not (unsafe.any() or np.isnan(means.value).any())


def _of_few(x: FloatArray, limits: Limits, coded: Sequence[Coded]) -> bool:
    """Whether columns of a group depend on one another but for few; of all rows the guard knows."""
    if limits.max_detection == np.inf:
        return False
    joint = np.ones(x.shape[1], dtype=bool)
    return bool(equations(x, joint, limits, coded)) or bool(
        finer_between(x, limits.min_records).any()
    )


# --- What a site does: tell moments of groups of its rows, keep the model and what it says of them.

_LARGEST = 1e100
TOO_LARGE = "features hold values above 1e100, whose squares overflow: take other units"

# --------------------------------------------------------------------------- moments


def kept_as(message: Any, data: SiteData) -> str:
    """Under what the column of entities is kept."""
    return "entities of groups"


@step("moments", once=True, keeps=kept_as)
def moments(
    message: messages.Moments, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Told, State]:
    """Tell rows, means and sums of products of each group."""
    if np.isinf(data.features).any():
        raise DataError("features hold infinite values", public="features hold infinite values")
    if (np.abs(data.features) > _LARGEST).any():
        raise DataError.shared(TOO_LARGE)
    groups = groups_of(data, n_splits_of(message.settings, data, site), site)
    site.note(
        f"Moments of {groups.number} groups of rows leave, over {len(groups.columns)} of "
        f"{data.features.shape[1]} columns; {int(np.isnan(data.features).sum())} cells are missing."
    )
    means, products = _moments(data, groups, site.limits)
    counts = disclosure.cell_counts(groups.of, groups.number)
    return messages.Told(counts=counts, means=means, products=products), {
        "settings": plain(message.settings)
    }


def n_splits_of(settings: messages.Settings, data: SiteData, site: SiteContext) -> int:
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
    products = disclosure.class_moments(
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
        told, sums = np.array(means.value), np.array(products.value)
        for group in range(groups.number):
            rows = known[groups.of == group]
            expected = normal_moments(rows)
            told[group, columns] = expected.mean
            sums[group] = len(rows) * expected.covariance[upper]
        means = replaced(means, told)
        products = replaced(products, np.where(np.isnan(products.value), np.nan, sums))
    return means.withhold(hidden), products


def _without_few_gaps(x: FloatArray, least: int) -> FloatArray:
    """Put the column's mean where fewer than `least` of its values are missing, but some.

    What is expected of a few rows, less the mean of the others that the phase `moments` tells, is
    the rest of these rows (`docs/proofs/units.md`).
    """
    few = np.isnan(x).sum(axis=0) < least
    return np.asarray(np.where(np.isnan(x) & few, np.nanmean(x, axis=0), x))


# --------------------------------------------------------------------------- conclude


@step("conclude", once=True)
def conclude(
    message: messages.Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Concluded, State]:
    """Keep the model, scores of the rows and, where cells are missing, the completed table."""
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the end goes on with the settings of the moments")
    model, columns = messages.model_of(message.model.value, data.features.shape[1])
    names = np.array(data.feature_names, dtype=np.str_)[columns]
    units = None if data.scaling is None else np.asarray(data.scaling)[1:, columns]
    table = GapRows(names, units)
    site.output("predictor", ComponentsPredictor(model, table))
    x = data.features[:, columns]
    # A model that somebody made up may give numbers that are none: they stay here.
    with np.errstate(all="ignore"):
        scores = model.scores(x)
        low = model.mean + scores @ model.directions.T
        for a in range(model.rank):
            site.output(f"component_{a + 1}", np.ascontiguousarray(scores[:, a]))
        # Root mean square of what the components leave of each row's values; NaN without any.
        squares = np.where(np.isnan(x), 0.0, x - low) ** 2
        n = (~np.isnan(x)).sum(axis=1)
        left = np.sqrt(squares.sum(axis=1) / np.maximum(n, 1))
        site.output("residual", np.where(n > 0, left, np.nan))
        if np.isnan(x).any():
            full = table.in_units(np.where(np.isnan(x), low, x))
            rows = {"row": data.rows.tolist()}
            if data.id is not None:
                rows["id"] = data.id.tolist()
            filled = {name: full[:, j].tolist() for j, name in enumerate(names.tolist())}
            site.table("completed", rows | filled)
    return messages.Concluded(), {}


STEPS = (moments, conclude)
