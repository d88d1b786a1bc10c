"""How far classes differ between sites: Frobenius differences of their tables of chances.

A table is one line for each class: rows of chances one after the other (first states and the steps
that leave each state, or categorical columns). Its differences between sites are compared with
those of classes that each site finds alone, and with those that chance alone gives.

Source: Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering* (arXiv 2409.08396),
sequence data: differences of empirical transition matrices and initial vectors. Departures: the
parametric bootstrap draws each row from its own chances, steps as if they were independent, and the
interval is that of the difference without the error of either table (basic, on squares).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.numerics.told_tables import OWN, UNTOLD

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

N_BOOTSTRAP = 400
_TAILS = (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class SiteTables:
    """Tables of chances of M sites and K classes.

    Attributes
    ----------
    chances : (M, K, C) array
        NaN in rows that are not known.
    kinds : (M, K, C) int array
        What each cell shows, see `told_tables`.
    numbers : (M, K, R) array
        What each row rests on.
    """

    chances: FloatArray
    kinds: IntArray
    numbers: FloatArray

    @classmethod
    def of(cls, sites: Sequence[Sequence[NDArray[Any]]]) -> SiteTables:
        """Put chances, kinds and numbers of several sites side by side."""
        first, second, third = (np.stack(each) for each in zip(*sites, strict=True))
        return cls(first, second, third)


def site_differences(
    ensemble: SiteTables,
    local: SiteTables,
    row_of_cell: IntArray,
    parts: Mapping[str, IntArray],
    *,
    rng: np.random.Generator,
    n_bootstrap: int = N_BOOTSTRAP,
) -> dict[str, Any]:
    """Compare the classes of several sites.

    Parameters
    ----------
    ensemble, local : SiteTables
        In the shared classes, and in those that each site finds alone.
    row_of_cell : (C,) int array
    parts : mapping of str to int array
        Rows of each part of the table that gets figures of its own.
    rng : numpy.random.Generator
    n_bootstrap : int

    Returns
    -------
    dict
        ``ensemble``, ``local``: (parts, pairs, K) arrays of differences over what all tables of
        the pair tell: cells that one of them tells together with others are compared together.
        ``ensemble_mean``, ``local_mean``: root mean squares over pairs and classes in which both
        are known, with ``_low`` and ``_high``: an interval of 95 % for the difference without the
        error of the tables. ``chance``: the root mean square that equal sites would give.
        ``ratio`` with ``_low`` and ``_high``: ensemble over local.
    """
    # Told chances are rounded: what a row lacks of 1 is no difference between sites.
    ensemble, local = (_whole(tables, row_of_cell) for tables in (ensemble, local))
    pairs = list(combinations(range(len(ensemble.chances)), 2))
    views = [_view(ensemble, local, row_of_cell, pair) for pair in pairs]

    def squares(table: FloatArray) -> FloatArray:
        return _squares(table, views, row_of_cell, parts, pairs)

    found = {
        name: squares(t.chances[None])[0] for name, t in (("ensemble", ensemble), ("local", local))
    }
    used = ~np.isnan(found["ensemble"]) & ~np.isnan(found["local"])
    if not used.any():  # nobody found classes alone
        used = ~np.isnan(found["ensemble"])

    def drawn(table: SiteTables) -> FloatArray:
        return _mean(squares(_drawn(table, row_of_cell, rng, n_bootstrap)), used)

    told: dict[str, Any] = {name: np.sqrt(each) for name, each in found.items()}
    means = {name: _mean(each[None], used)[0] for name, each in found.items()}
    draws = {
        "ensemble": drawn(ensemble),
        "local": drawn(local),
    }
    for name, each in means.items():
        low, high = _basic(each, draws[name])
        told |= {
            f"{name}_mean": np.sqrt(each),
            f"{name}_low": np.sqrt(np.maximum(low, 0.0)),
            f"{name}_high": np.sqrt(np.maximum(high, 0.0)),
        }
    pooled = pooled_chances(ensemble, row_of_cell)
    alike = np.where(np.isnan(ensemble.chances), np.nan, pooled)
    told["chance"] = np.sqrt(drawn(replace(ensemble, chances=alike)).mean(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt(means["ensemble"] / means["local"])
        low, high = _basic(ratio, np.sqrt(draws["ensemble"] / draws["local"]))
    return told | {"ratio": ratio, "ratio_low": np.maximum(low, 0.0), "ratio_high": high}


def pooled_chances(tables: SiteTables, row_of_cell: IntArray) -> FloatArray:
    """Mean over sites of the chances that are known, (K, C); NaN where nobody knows any.

    Parameters
    ----------
    tables : SiteTables
    row_of_cell : (C,) int array
    """
    chances, numbers = _whole(tables, row_of_cell).chances, tables.numbers
    known = ~np.isnan(chances)
    weight = numbers[:, :, row_of_cell] * known
    total = weight.sum(axis=0)
    summed = (np.where(known, chances, 0.0) * weight).sum(axis=0)
    return np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan)


def _whole(tables: SiteTables, row_of_cell: IntArray) -> SiteTables:
    """Tables whose rows add up to 1; a row of zeros stays as it is."""
    inside = (row_of_cell[:, None] == np.arange(int(row_of_cell.max()) + 1)).astype(float)
    total = (np.nan_to_num(tables.chances) @ inside)[:, :, row_of_cell]
    return replace(tables, chances=tables.chances / np.where(total > 0, total, 1.0))


@dataclass(frozen=True, eq=False)
class _View:
    """What is compared of a pair of sites: cells by themselves, and those that go together.

    Both (K, C); a row of which neither holds is not known to all tables.
    """

    alone: BoolArray
    together: BoolArray


def _view(
    ensemble: SiteTables, local: SiteTables, row_of_cell: IntArray, pair: tuple[int, int]
) -> _View:
    """Cells that all tables of a pair tell by themselves, and the others of rows that they know."""
    inside = row_of_cell[:, None] == np.arange(int(row_of_cell.max()) + 1)
    known, own = (
        np.logical_and.reduce([f(ensemble.kinds[site]) for site in pair])
        for f in (lambda kinds: kinds != UNTOLD, lambda kinds: kinds == OWN)
    )
    by_local = np.logical_and.reduce([local.kinds[site] != UNTOLD for site in pair])
    own_local = np.logical_and.reduce([local.kinds[site] == OWN for site in pair])
    # A class that somebody does not find alone is compared as far as the shared one goes.
    found = by_local.any(axis=1, keepdims=True)
    known, own = known & (by_local | ~found), own & (own_local | ~found)
    whole = (known @ inside)[:, row_of_cell] > 0
    return _View(known & own & whole, known & ~own & whole)


def _squares(
    tables: FloatArray,
    views: list[_View],
    row_of_cell: IntArray,
    parts: Mapping[str, IntArray],
    pairs: list[tuple[int, int]],
) -> FloatArray:
    """Squared differences of tables (B, M, K, C), shape (B, parts, pairs, K); NaN for no row."""
    found = np.full((len(tables), len(parts), len(pairs), tables.shape[2]), np.nan)
    for j, (s, t) in enumerate(pairs):
        gap = tables[:, s] - tables[:, t]
        for i, rows in enumerate(parts.values()):
            total = np.zeros(gap.shape[:2])
            for row in rows:
                here = row_of_cell == row
                total += (np.where(views[j].alone & here, gap, 0.0) ** 2).sum(axis=2)
                total += np.where(views[j].together & here, gap, 0.0).sum(axis=2) ** 2
            told = (views[j].alone | views[j].together) & np.isin(row_of_cell, rows)
            unknown = np.isnan(np.where(told, gap, 0.0)).any(axis=2)
            found[:, i, j] = np.where(told.any(axis=1) & ~unknown, total, np.nan)
    return found


def _mean(squares: FloatArray, used: BoolArray) -> FloatArray:
    """Mean over the pairs and classes that are used, (B, parts)."""
    count = used.sum(axis=(1, 2))
    total = np.where(used, squares, 0.0).sum(axis=(2, 3))
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _drawn(
    tables: SiteTables, row_of_cell: IntArray, rng: np.random.Generator, b: int
) -> FloatArray:
    """Tables drawn anew, (B, M, K, C): each row by as many draws as it rests on."""
    table, numbers = tables.chances, tables.numbers
    found = np.full((b, *table.shape), np.nan)
    for m, k in np.ndindex(*table.shape[:2]):
        for row in range(numbers.shape[2]):
            cells = np.flatnonzero(row_of_cell == row)
            chances, n = table[m, k, cells], int(numbers[m, k, row])
            if n < 1 or not np.isfinite(chances).all() or chances.sum() <= 0:
                found[:, m, k, cells] = chances
                continue
            chances = np.maximum(chances, 0.0) / np.maximum(chances, 0.0).sum()
            found[:, m, k, cells] = rng.multinomial(n, chances, size=b) / n
    return found


def _basic(value: FloatArray, draws: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Basic bootstrap interval, from draws (B, parts)."""
    upper, lower = (np.quantile(draws, share, axis=0) for share in _TAILS[::-1])
    return np.asarray(2 * value - upper), np.asarray(2 * value - lower)
