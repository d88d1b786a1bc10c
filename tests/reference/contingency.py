"""Textbook tests of contingency tables, cell by cell."""

from __future__ import annotations

from itertools import product

import numpy as np


def pearson(table: np.ndarray) -> float:
    """Sum of (observed - expected)^2 / expected; all margins must be above 0."""
    n = table.sum()
    total = 0.0
    for i, j in product(*map(range, table.shape)):
        expected = table[i].sum() * table[:, j].sum() / n
        total += (table[i, j] - expected) ** 2 / expected
    return total


def general_association(tables: np.ndarray) -> float:
    """Landis, Heyman and Koch (1978): the last row and column left out, and V inverted."""
    strata, r, c = tables.shape
    cells = list(product(range(r - 1), range(c - 1)))
    away, spread = np.zeros(len(cells)), np.zeros((len(cells), len(cells)))
    for k in range(strata):
        n, row, column = tables[k].sum(), tables[k].sum(axis=1), tables[k].sum(axis=0)
        for s, (i, j) in enumerate(cells):
            away[s] += tables[k, i, j] - row[i] * column[j] / n
            for t, (a, b) in enumerate(cells):
                spread[s, t] += (
                    row[i] * ((i == a) * n - row[a]) * column[j] * ((j == b) * n - column[b])
                ) / (n**2 * (n - 1))
    return float(away @ np.linalg.solve(spread, away))
