"""What may be told of rows that were judged: counts that are large enough, and coarse means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.methods.one_table.rows import Rows
from consilience.wire.disclosure import (
    Limits,
    Released,
    aggregate,
    cell_counts,
    weighted_means,
)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
    own = weighted_means(scores, limits=limits)
    gain = weighted_means(beside, limits=limits)
    return Judged(
        aggregate(wrong).withhold_unsafe(limits),
        _confusion(y, guess[:, 0], len(rows.levels), limits),
        own.mean,
        own.variance,
        gain.mean,
        gain.variance,
    )


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
    found = weighted_means(parts[np.arange(len(y)), :, y], limits=limits)
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


def rows_by_class(rows: Rows, limits: Limits) -> Released:
    """Rows of each class; a small class is withheld, and with it as many as hide it."""
    counts = np.bincount(rows.y, minlength=len(rows.levels))
    return cell_counts(rows.y, len(rows.levels)).withhold(hidden(counts, limits.min_records))


def hidden(counts: IntArray, least: int) -> NDArray[np.bool_]:
    """Which of several counts stay when their sum is known, so that none small can be told.

    Parameters
    ----------
    counts : (k,) int array
    least : int
        Records that a released count is of, unless it is 0.
    """
    mask = np.asarray((counts > 0) & (counts < least))
    while 0 < counts[mask].sum() < least and (counts[~mask] > 0).any():
        left = np.where(mask | (counts == 0), np.iinfo(np.int64).max, counts)
        mask[np.argmin(left)] = True
    return mask


def _confusion(y: IntArray, guess: IntArray, n_classes: int, limits: Limits) -> Released:
    """Held-out rows by class and predicted class, whole rows of the table or nothing of them.

    How many rows of a class are held out follows from the share, and the number of errors is told
    where it is large enough: what both leave unknown of the withheld rows must be large as well.
    """
    cells = y * n_classes + guess
    table = np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)
    least = limits.min_records
    right, total = np.diag(table), table.sum(axis=1)
    stays = np.asarray(((table > 0) & (table < least)).any(axis=1))
    while stays.any() and not stays.all():
        parts = np.array([right[stays].sum(), (total - right)[stays].sum()])
        if not ((parts > 0) & (parts < least)).any():
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
