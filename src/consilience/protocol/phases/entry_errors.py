"""What may leave of the squared errors of held-out entries, and the draw of what is held out.

A site judges candidates (ranks, penalties, numbers of classes) by entries of its own matrix that it
held out, and tells sums of squared errors by fold and candidate. The folds are the site's secret: a
sum over a fold then is one over cells that nobody else can name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.protocol.method import SiteContext
from consilience.protocol.phases.holdout import sealed_seed
from consilience.wire.disclosure import Limits, Released, aggregate, cell_counts, model, stacked

MOST_ENTRIES = float(1 << 50)
"""Whole numbers of this size, and sums of them, are exact."""


def are_errors(errors: FloatArray, entries: FloatArray, se: FloatArray) -> bool:
    """Whether figures in their ranges can be what :func:`released_errors` gives: all are told.

    Parameters
    ----------
    errors : (G, a) array
    entries : (G,) array
    se : (a,) array
    """
    told = not (np.isnan(errors).any() or np.isnan(se).any())
    return told and bool((entries == np.floor(entries)).all())


def entry_seed(values: FloatArray, site: SiteContext, purpose: str) -> int:
    """Seed by which a site draws its folds.

    Where records are protected it is a digest of the values, see `holdout.sealed_seed`.

    Parameters
    ----------
    values : array
    site : SiteContext
    purpose : str
    """
    return sealed_seed(site, purpose, (str(values.shape), values))


def squared_errors_by_row(
    rows: IntArray, folds: IntArray, squares: FloatArray, shape: tuple[int, int]
) -> FloatArray:
    """Sum squared errors of held-out entries over each row of the matrix and each fold.

    Parameters
    ----------
    rows, folds : (m,) arrays of int
        Of each entry that was held out once; a negative fold leaves it out.
    squares : (m, a) array
        Squared errors by candidate.
    shape : (int, int)
        Rows n and folds F.

    Returns
    -------
    (n, F, a) array
        NaN where a row has no entry in a fold.
    """
    (n, n_folds), a = shape, squares.shape[1]
    used = folds >= 0
    cell = rows[used] * n_folds + folds[used]
    counts = np.bincount(cell, minlength=n * n_folds)
    sums = np.empty((n * n_folds, a))
    for j in range(a):
        sums[:, j] = np.bincount(cell, weights=squares[used, j], minlength=n * n_folds)
    sums[counts == 0] = np.nan
    return sums.reshape(n, n_folds, a)


@dataclass(frozen=True, eq=False)
class FoldErrors:
    """Squared errors of held-out entries as they may leave.

    Attributes
    ----------
    errors : Released
        Sums by line and candidate, (G, a): a line is a fold, or several folds together.
    entries : Released
        Held-out entries of each line, (G,).
    se : Released
        Standard errors of the errors per entry over all folds, (a,), to two digits.
    """

    errors: Released
    entries: Released
    se: Released


def released_errors(
    by_row: FloatArray, folds: IntArray, *, n_missing: int, limits: Limits
) -> FoldErrors:
    """Release sums of squared errors by fold and candidate.

    Where the sum over a fold rests on too few rows or mostly on one, or where there would be more
    sums than rows, folds are put together, as few as will do: every candidate is then judged by all
    held-out entries. If even the sum over all folds may not leave, everything is withheld.

    Parameters
    ----------
    by_row : (n, F, a) array
        Of :func:`squared_errors_by_row`.
    folds : (m,) array of int
        Of each observed entry; negative ones are never held out.
    n_missing : int
        Missing cells. A small number of these is a small count: they are counted among the entries
        as if they were there.
    limits : Limits
    """
    n, n_folds, a = by_row.shape
    held = np.bincount(folds[folds >= 0], minlength=n_folds)
    # Neighbours go together, then pairs of them: lines of two runs say no more than the finer ones.
    for level in range(n_folds.bit_length() + 1):
        line_of = np.arange(n_folds) >> level
        n_lines = int(line_of[-1]) + 1
        found, unsafe = _by_line(by_row, line_of, limits)
        too_many = limits.min_records > 1 and (n_lines + 1) * a > n
        if not (unsafe or too_many):
            extra = n_missing if few_missing(n_missing, limits) else 0
            counted = np.concatenate([line_of[folds[folds >= 0]], np.arange(extra) % n_lines])
            # Floats, as where something is withheld.
            entries = cell_counts(counted, n_lines).withhold(np.zeros(n_lines, dtype=bool))
            # Of the error per entry, from the spread over folds.
            means = np.nansum(by_row, axis=0) / np.maximum(held, 1)[:, None]
            se = np.asarray(means.std(axis=0, ddof=1) / np.sqrt(len(held)))
            se = two_digits(se) if limits.min_records > 1 else se
            return FoldErrors(found, entries, model(se, kind="figures", n_records=n))
    return nothing_released(a)


def nothing_released(a: int) -> FoldErrors:
    """Say nothing of `a` candidates."""
    return FoldErrors(
        aggregate(np.zeros((0, 0, a))),
        cell_counts(np.zeros(0, dtype=np.int64), 0).withhold(np.zeros(0, dtype=bool)),
        model(np.full(a, np.nan), kind="summary", n_records=0),
    )


def _by_line(by_row: FloatArray, line_of: IntArray, limits: Limits) -> tuple[Released, bool]:
    """Sums by line, and whether one of them may not leave."""
    lines = []
    for line in range(int(line_of.max()) + 1):
        part = by_row[:, line_of == line]
        sums = np.nansum(part, axis=1)
        lines.append(aggregate(np.where(np.isnan(part).all(axis=1), np.nan, sums)))
    found = stacked(lines)
    kept = found.withhold_unsafe(limits).value
    return found, not bool(np.isfinite(kept).all())


def two_digits(values: FloatArray) -> FloatArray:
    """Round standard errors: with all digits they would tell the sums of single folds."""
    return np.array([float(f"{value:.1e}") for value in values])


def few_missing(n_missing: int, limits: Limits) -> bool:
    """Whether some cells are missing, but so few that their number is a small count."""
    return 0 < n_missing < limits.min_records


def merged(values: FloatArray, n_lines: int) -> FloatArray:
    """Put lines together until there are `n_lines`.

    Parameters
    ----------
    values : (G, ...) array
        Sums, or numbers of entries.
    n_lines : int
        At most G.
    """
    line_of = np.arange(len(values)) % n_lines
    return np.stack([values[line_of == line].sum(axis=0) for line in range(n_lines)])
