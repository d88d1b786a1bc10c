"""Textbook moments of pooled rows, in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def pooled_moments(columns: Sequence[np.ndarray]) -> tuple[int, float, float]:
    """Number, mean and variance (denominator n) of one column at several sites; NaN is left out."""
    values = [Fraction(float(v)) for column in columns for v in column if not np.isnan(v)]
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    return len(values), float(mean), float(variance)


def rows_behind(column: np.ndarray, min_records: int = 10) -> int:
    """Rows that a site says a column stands for: all, unless many values are missing."""
    missing = sum(1 for v in column if np.isnan(v))
    return len(column) - missing if missing >= min_records else len(column)


def moments_of_sites(
    columns: Sequence[np.ndarray], min_records: int = 10
) -> tuple[int, float, float]:
    """Number, mean and variance where few missing values of a site have the mean of its others."""
    filled = []
    for column in columns:
        values = [Fraction(float(v)) for v in column if not np.isnan(v)]
        missing = rows_behind(column, min_records) - len(values)
        filled += values + [sum(values) / len(values)] * missing
    mean = sum(filled) / len(filled)
    variance = sum((v - mean) ** 2 for v in filled) / len(filled)
    return len(filled), float(mean), float(variance)


def cell_facts(column: np.ndarray) -> tuple[float, int, float]:
    """Sum, records behind it and largest share of one record, one value after another."""
    values = [float(v) for v in column if not np.isnan(v)]
    total = sum(values)
    distinct = set(values)
    if len(distinct) == 2:
        low, high = min(distinct), max(distinct)
        records = min(values.count(low), values.count(high))
    else:
        records = sum(1 for v in values if v != 0)
    sizes = [abs(v) for v in values]
    share = max(sizes) / sum(sizes) if values and sum(sizes) > 0 else 0.0
    return total, records, share
