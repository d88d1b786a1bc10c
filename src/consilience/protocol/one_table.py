"""Rows of the one table: which are fitted, and which are held out, and what of it is told.

Methods of one table share this. What may be told of rows that were judged: counts that are large
enough, and coarse means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData
from consilience.protocol.phases.holdout import class_codes, drawing_seed, held_out, require_numbers
from consilience.wire.disclosure import (
    Limits,
    Released,
    aggregate,
    cell_counts,
    weighted_means,
)


def counted(n: int, noun: str, several: str = "") -> str:
    """Number and noun: "no pairs", "1 pair", "2 pairs"."""
    return f"{n or 'no'} {noun if n == 1 else several or noun + 's'}"


LEAST = 2
"""Rows of a class that a fit needs."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that take part.

    Attributes
    ----------
    x : (n, p) array
    y : (n,) int array
        Class of each row: position among `levels`.
    groups : (n,) int array or None
        Entity of each row: those of one entity are held out, and judged in cross-validation,
        together.
    names, levels : tuples of str
    fitted, held : int arrays
        Positions of the rows.
    seed : int
        Of whatever an estimator draws.
    """

    x: FloatArray
    y: IntArray
    groups: IntArray | None
    names: tuple[str, ...]
    levels: tuple[str, ...]
    fitted: IntArray
    held: IntArray
    seed: int

    @property
    def table(self) -> tuple[FloatArray, NDArray[np.str_], IntArray | None]:
        """Columns, classes by name and groups of the rows that are fitted."""
        groups = None if self.groups is None else self.groups[self.fitted]
        return self.x[self.fitted], np.array(self.levels)[self.y[self.fitted]], groups

    def fewest_entities(self) -> float:
        """Entities behind the fitted rows of the class with fewest; infinite where not known."""
        if self.groups is None:
            return np.inf
        y, groups = self.y[self.fitted], self.groups[self.fitted]
        return min(len(np.unique(groups[y == k])) for k in np.unique(y))


def fitted_and_held(
    data: SiteData, levels: tuple[str, ...], holdout: float, site: SiteContext
) -> Rows:
    """Check the rows and choose those that are held out.

    Raises
    ------
    DataError
        No target, levels that are not the declared ones, or too few rows.
    """
    y = class_codes(data, levels)
    require_numbers(data)
    least = site.limits.min_records
    # Before anything is drawn: a sentence about rows must not depend on what was drawn.
    if len(y) < max(least, 2 * LEAST):
        raise DataError.shared("the table has fewer rows than the policy lets anything rest on")
    counts = np.bincount(y, minlength=len(levels))
    lacking = [level for level, n in zip(levels, counts, strict=True) if 0 < n < LEAST]
    if lacking:
        sentence = f"a class has fewer than {LEAST} rows: add rows, or leave out its level"
        raise DataError(f"class {lacking[0]!r} of the target: {sentence}", public=sentence)
    if (counts > 0).sum() < 2:
        raise DataError.shared("the rows are all of one class: a classifier needs two")
    groups = None
    if data.entity is not None:
        groups = _by_appearance(data.entity)
    seed = drawing_seed(data, site, "one table")
    draws = stream(seed, "held out")
    if groups is not None and least == 1:
        held = _whole_entities(y, groups, holdout, draws)
    else:
        order = draws.permutation(len(y))
        (held,) = held_out(data, y, [holdout], site.limits, order=order, spare=LEAST)
    # Figures of a few people are figures of these, however many rows they have.
    if groups is not None and len(np.unique(groups[held])) < site.limits.min_entities:
        held = held[:0]
    fitted = np.setdiff1d(np.arange(len(y)), held)
    return Rows(data.features, y, groups, data.feature_names, levels, fitted, held, seed)


def _by_appearance(entity: NDArray[np.str_]) -> IntArray:
    """Numbers of the entities, in the order of their first rows."""
    _, first, which = np.unique(entity, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    # Numbers by name would change with the names; by first rows they follow the table.
    place[np.argsort(first)] = np.arange(len(first))
    return place[which.ravel()]


def _whole_entities(
    y: IntArray, groups: IntArray, share: float, draws: np.random.Generator
) -> IntArray:
    """Rows of entities to hold out where no record is protected, up to the share asked for."""
    wanted, held = int(share * len(y)), np.zeros(len(y), dtype=bool)
    counts = np.bincount(y)
    left = counts.copy()
    for one in draws.permutation(int(groups.max()) + 1):
        of = groups == one
        if held.sum() + of.sum() > wanted:
            continue
        after = left - np.bincount(y[of], minlength=len(left))
        if (after[counts > 0] >= LEAST).all():
            held |= of
            left = after
    return np.flatnonzero(held)


@dataclass(frozen=True, eq=False)
class Judged:
    """Fields of the reply that tell how the rules did on held-out rows."""

    errors: Released
    confusion: Released
    scores: Released
    score_errors: Released
    gains: Released
    gain_errors: Released


def judge(rows: Rows, log_proba: Sequence[FloatArray], limits: Limits) -> Judged:
    """Judge rules by the rows that are held out.

    Parameters
    ----------
    rows : Rows
    log_proba : sequence of (n_held, K) arrays
        Of each rule, the classes in the order of the levels; the first rule is the one that is
        kept, the others stand beside it.
    limits : Limits
    """
    y, m = rows.y[rows.held], len(log_proba)
    if not len(y):
        none = np.full((0, m, 2), np.nan)
        gap = aggregate(none).withhold(np.ones((m, 2), dtype=bool))
        no_errors = aggregate(none[:, :, 0]).withhold(np.ones(m, dtype=bool))
        n_cells = len(rows.levels) ** 2
        nowhere = cell_counts(y, n_cells).withhold(np.ones(n_cells, dtype=bool))
        return Judged(no_errors, nowhere, gap, gap, gap, gap)
    guess = np.stack([np.argmax(lp, axis=1) for lp in log_proba], axis=1)
    scores = np.stack([row_scores(lp, y) for lp in log_proba], axis=1)
    wrong = (guess != y[:, None]).astype(float)
    beside = scores - scores[:, :1]
    # The first rule beside itself: its gain is 0 and has no error.
    beside[:, 0] = np.nan
    entities = None if rows.groups is None else rows.groups[rows.held]
    own = weighted_means(scores, limits=limits, entities=entities)
    gain = weighted_means(beside, limits=limits, entities=entities)
    counts = aggregate(wrong).withhold_unsafe(limits)
    return Judged(
        counts.withhold(_of_few(wrong, entities, limits) | _of_few(1 - wrong, entities, limits)),
        _confusion(y, guess[:, 0], len(rows.levels), limits, entities),
        own.mean,
        own.variance,
        gain.mean,
        gain.variance,
    )


def _of_few(marks: NDArray[Any], entities: IntArray | None, limits: Limits) -> NDArray[np.bool_]:
    """Which columns of marks are those of a few entities only."""
    found = np.zeros(marks.shape[1], dtype=bool)
    if entities is None:
        return found
    for j in range(marks.shape[1]):
        found[j] = 0 < len(np.unique(entities[marks[:, j] != 0])) < limits.min_entities
    return found


def evidence(rows: Rows, parts: FloatArray | None, limits: Limits) -> tuple[Released, Released]:
    """Mean over held-out rows of what each part says for the right class, and squared errors.

    Parameters
    ----------
    rows : Rows
    parts : (n_held, l, K) array or None
        What each part of the rule adds to the score of each level.
    limits : Limits
    """
    if parts is None or not len(parts):
        size = 0 if parts is None else parts.shape[1]
        gap = aggregate(np.full((0, size), np.nan)).withhold(np.ones(size, dtype=bool))
        return gap, gap
    y = rows.y[rows.held]
    entities = None if rows.groups is None else rows.groups[rows.held]
    found = weighted_means(parts[np.arange(len(y)), :, y], limits=limits, entities=entities)
    return found.mean, found.variance


def row_scores(log_proba: FloatArray, y: IntArray) -> FloatArray:
    """Log loss and Brier score (summed over classes) of each row, shape (n, 2).

    Parameters
    ----------
    log_proba : (n, K) array
    y : (n,) int array
    """
    own = np.arange(len(y)), y
    proba = np.exp(log_proba)
    # Brier score: squared distance between probabilities and the 0/1 vector of the class.
    proba[own] -= 1.0
    return np.stack([-log_proba[own], (proba**2).sum(axis=1)], axis=1)


def small_classes(rows: Rows, limits: Limits) -> NDArray[np.bool_]:
    """Which classes are withheld: small ones, and with them as many as hide them."""
    counts = np.bincount(rows.y, minlength=len(rows.levels))
    marks = rows.y[:, None] == np.arange(len(rows.levels))
    return hidden(counts, limits.min_records, _of_few(marks, rows.groups, limits))


def rows_by_class(rows: Rows, limits: Limits) -> Released:
    """Rows of each class; a small class is withheld, and with it as many as hide it."""
    return cell_counts(rows.y, len(rows.levels)).withhold(small_classes(rows, limits))


def hidden(
    counts: IntArray, least: int, also: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Which of several counts stay when their sum is known, so that none small can be told.

    Parameters
    ----------
    counts : (k,) int array
    least : int
        Records that a released count is of, unless it is 0.
    also : (k,) bool array, optional
        Others that stay, whatever their size: they hide behind another one too.
    """
    mask = np.asarray((counts > 0) & (counts < least))
    few = np.zeros(len(counts), dtype=bool) if also is None else also
    mask = mask | few

    def can_be_told() -> bool:
        alone = mask.sum() == 1 and few.any()
        return bool(0 < counts[mask].sum() < least or alone)

    while can_be_told() and (counts[~mask] > 0).any():
        # The smallest of those that would be told hides best, and costs least.
        left = np.where(mask | (counts == 0), np.iinfo(np.int64).max, counts)
        mask[np.argmin(left)] = True
    return mask


def _confusion(
    y: IntArray, guess: IntArray, n_classes: int, limits: Limits, entities: IntArray | None
) -> Released:
    """Held-out rows by class and predicted class, whole rows of the table or nothing of them.

    About how many rows of a class are held out is known, and the number of errors is told where it
    is large enough: what both leave unknown of the withheld rows must be large as well.
    """
    cells = y * n_classes + guess
    table = np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)
    least = limits.min_records
    # Rows of a class and errors are told elsewhere, so what is withheld must hide from both.
    right, total = np.diag(table), table.sum(axis=1)
    few = _of_few(cells[:, None] == np.arange(n_classes**2), entities, limits).reshape(table.shape)
    stays = np.asarray((((table > 0) & (table < least)) | few).any(axis=1))
    while stays.any() and not stays.all():
        parts = np.array([right[stays].sum(), (total - right)[stays].sum()])
        hides = not ((parts > 0) & (parts < least)).any()
        if hides and not (few.any() and stays.sum() == 1):
            break
        sizes = np.where(stays, np.iinfo(np.int64).max, total)
        stays[np.argmin(sizes)] = True
    return cell_counts(cells, n_classes**2).withhold(np.repeat(stays, n_classes))


def errors_by_candidate(wrong: IntArray, n_rows: int, limits: Limits) -> Released:
    """Rows that each candidate got wrong in cross-validation; small numbers are withheld.

    Parameters
    ----------
    wrong : (a,) int array
    n_rows : int
        Rows that were judged.
    limits : Limits
    """
    cells = np.repeat(np.arange(len(wrong)), wrong)
    # Errors and hits: either number tells the other, as the rows are known.
    few = [(0 < w < limits.min_records) or (0 < n_rows - w < limits.min_records) for w in wrong]
    return cell_counts(cells, len(wrong)).withhold(np.array(few, dtype=bool))
