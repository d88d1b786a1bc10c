"""What may be told of rows that were judged: counts that are large enough, and coarse means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.protocol.one_table.rows import Rows
from consilience.wire.disclosure import (
    Limits,
    Released,
    aggregate,
    cell_counts,
    weighted_means,
)


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
    few = [(0 < w < limits.min_records) or (0 < n_rows - w < limits.min_records) for w in wrong]
    return cell_counts(cells, len(wrong)).withhold(np.array(few, dtype=bool))
