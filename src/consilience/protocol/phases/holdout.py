"""Which rows of a site are held out: one rule for all methods, and for all runs on a table.

Figures of two sets of rows tell those of their difference. So at a site that protects records no
study chooses a set: the table's rows are dealt to `PARTS` parts once and for ever, by a secret that
only the table's holder has (its content), whatever is asked of them. A run holds out whole parts,
or no row:

* A *cell* is a set of rows about which figures are told: a class, or all rows that take part.
* A cell *admits* one of the first `OPEN` parts, taken in order, where its rows in this part are at
  least `min_records` (of `min_entities` entities, where known) and at most two fifths of all, and
  those that are then in no admitted part are as many.
* A run holds out the first part that all its cells admit, about a fifth of the rows, or the first
  two where at least .3 is asked for; or nothing, where there is none.

What a cell admits follows from its own rows. So in all runs that tell of a cell, of all methods,
under any share, seed, columns and levels, figures are those of admitted parts and of the rest, and
so is any linear combination of them (``docs/proofs/held-out-rows.md``). Rows of an entity are dealt
together, where the study names entities. A policy that protects no record (``min_records = 1``) has
the share that was asked for, drawn by a public stream. In a run with masked sums it has not: there
a site of a single person must not be the only one by whose rows two runs differ.

The second part is what a site does to its own rows before any fit of them leaves, so that no fit
tells of a few. Where a policy protects no record (``min_records`` of 1) nothing is changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import CoordinatorContext, SiteContext, SiteData
from consilience.wire.disclosure import Limits
from consilience.wire.usual_values import at_most

PARTS = 5
"""Parts of a table, of which a protected site holds out one or two."""
OPEN = 3
"""Parts that may be: some of the rows stay in every fit, so that there is always a rest."""
MOST = 0.4
"""Share of a cell that a part may be."""
TWO = 0.3
"""Share from which two parts are held out."""


def held_out(
    data: SiteData,
    cells: IntArray,
    shares: Sequence[float],
    limits: Limits,
    *,
    order: IntArray | None = None,
    spare: int = 0,
    within: bool = False,
    masked: bool = False,
) -> tuple[IntArray, ...]:
    """Choose the rows to hold out.

    Parameters
    ----------
    data : SiteData
    cells : (n,) int array
        Class of each row; all 0 where there are no classes, -1 for rows that take no part.
    shares : sequence of float
        One for each set of rows that is wanted, the most wanted first; 0 where none is.
    limits : Limits
    order : (n,) int array, optional
        A public order of the rows: where no record is protected, the first ones of each class are
        held out. Not used elsewhere.
    spare : int
        Rows that are left in each class, where no record is protected.
    within : bool
        Rows of an entity are dealt singly rather than together, each entity name keeps one, and
        another entity column gives another deal.
    masked : bool
        Sums are masked, so runs may differ by rows of all sites or of none: rows are dealt whatever
        is protected, and where fewer parts are left than were asked for, none is held out.

    Returns
    -------
    tuple of int arrays
        Positions among the rows of `data`, ascending, one array for each share and no row in two.
        All that is not there is used: what a run rests on is this partition and nothing else.
    """
    if limits.min_records > 1 or masked:
        part = _dealt_within(data, cells >= 0) if within else _dealt(data)
        chosen = _admitted(part, cells, None if within else data.entity, shares, limits)
        if masked and sum(map(len, chosen)) < sum((s > 0) + (s >= TWO) for s in shares):
            chosen = [[] for _ in shares]
        return tuple(np.flatnonzero(np.isin(part, parts) & (cells >= 0)) for parts in chosen)
    order = np.arange(len(cells)) if order is None else order
    found: list[list[IntArray]] = [[] for _ in shares]
    for k in np.unique(cells[cells >= 0]):
        members = order[cells[order] == k]
        left = max(len(members) - spare, 0)
        for i, share in enumerate(shares):
            size = min(int(share * len(members)), left)
            start = sum(len(part[-1]) for part in found[:i])
            found[i].append(members[start : start + size])
            left -= size
    return tuple(np.sort(np.concatenate([np.empty(0, np.int64), *some])) for some in found)


def say_share(ctx: CoordinatorContext, *shares: float) -> None:
    """Note what shares mean where some site protects records, for the result."""
    protected = any(preset != "simulation" for preset in ctx.presets.values())
    if protected and any(share * PARTS not in (0, 1, 2) for share in shares):
        ctx.note(
            "Sites that protect records hold out one fifth of their rows, or two, or nothing, the "
            "same rows in every run, whatever share is asked for."
        )


# --------------------------------------------------------------------------- the deal


def uniform(data: SiteData, *label: str | int) -> FloatArray:
    """Numbers in [0, 1), evenly dealt to the table's rows: the same ones whatever is asked of it.

    Parameters
    ----------
    data : SiteData
    *label
        What they are for: another label gives others.
    """
    n = _n_table(data)
    found = np.asarray(stream(0, *label, _secret(data)).permutation(n)[data.rows] + 0.5)
    found /= n
    return found


def independent(data: SiteData, *label: str | int) -> FloatArray:
    """The same, drawn one by one: of all rows they add up to what nobody knows."""
    return np.asarray(stream(0, *label, _secret(data)).random(_n_table(data))[data.rows])


def _n_table(data: SiteData) -> int:
    return max(data.n_read, int(data.rows.max(initial=-1)) + 1)


def parts_of_table(data: SiteData, entity: NDArray[np.str_] | None = None) -> IntArray:
    """Part of every row of the table, also of those that a study leaves out; the rest is one.

    Parameters
    ----------
    data : SiteData
    entity : (n_read,) str array, optional
        Of each row of the table, where the study names entities.
    """
    everyone = dataclasses.replace(data, rows=np.arange(data.n_read), entity=entity)
    return np.minimum(_dealt(everyone), OPEN)


def _dealt(data: SiteData) -> IntArray:
    """Part of each row: of its entity, where the study names entities."""
    if data.entity is None:
        return _part(uniform(data, "parts"))
    names, which = _names(data)
    return _part(_by_name(data, names)[which])


def _dealt_within(data: SiteData, used: NDArray[np.bool_]) -> IntArray:
    """Part of each row, singly; one row of each entity is never held out.

    So what is held out depends on what an entity is. Its name moves the deal: two columns of
    entities would otherwise give sets that differ by a few rows. Nothing else does: one row of an
    entity at another agent would be another entity, and told by the difference of two runs.
    """
    names, which = _names(data)
    value = (uniform(data, "parts within") + _by_name(data, names)[which]) % 1.0
    part = _part(value)
    order = np.lexsort((value, used, which))
    last = np.append(which[order][1:] != which[order][:-1], True)
    part[order[last]] = PARTS - 1
    return part


def _part(value: FloatArray) -> IntArray:
    return (value * PARTS).astype(np.int64)


def _by_name(data: SiteData, names: NDArray[np.str_]) -> FloatArray:
    """A number in [0, 1) for each name."""
    key = bytes.fromhex(_secret(data))
    found = (hashlib.blake2b(str(n).encode(), key=key, digest_size=8).digest() for n in names)
    return np.array([int.from_bytes(d, "little") >> 11 for d in found], dtype=float) / (1 << 53)


def _names(data: SiteData) -> tuple[NDArray[np.str_], IntArray]:
    """Names of the entities, and whose each row is."""
    names, which = np.unique(np.asarray(data.entity).astype(str), return_inverse=True)
    return names, which.ravel().astype(np.int64)


def _secret(data: SiteData) -> str:
    """What only the table's holder has: a digest of all of it, not of the columns asked for."""
    if data.content_hash:
        content = data.content_hash.encode()
    else:  # rows that are in an order of their own
        parts = (data.id, data.rows if data.target is None else data.target)
        content = b"".join(np.asarray(part).tobytes() for part in parts if part is not None)
    return hashlib.blake2b(content, digest_size=32, person=b"held-out rows").hexdigest()


# --------------------------------------------------------------------------- what a cell admits


def _admitted(
    part: IntArray,
    cells: IntArray,
    entity: NDArray[np.str_] | None,
    shares: Sequence[float],
    limits: Limits,
) -> list[list[int]]:
    """Parts to hold out for each share; none where a share is 0, or no part is left."""
    used = np.flatnonzero(cells >= 0)
    left = list(range(OPEN)) if len(used) else []
    for members in (used, *(used[cells[used] == k] for k in np.unique(cells[used]))):
        rows = np.bincount(part[members], minlength=PARTS)
        entities = np.full(PARTS, limits.min_entities)
        if entity is not None:  # each is of one part
            first = members[np.unique(entity[members], return_index=True)[1]]
            entities = np.bincount(part[first], minlength=PARTS)
        admitted = admits(rows, entities, limits)
        left = [p for p in left if p in admitted]
    chosen: list[list[int]] = [[] for _ in shares]
    for wanted in (0.0, TWO):  # a second part only where all have a first
        for parts, share in zip(chosen, shares, strict=True):
            if left and share > 0 and share >= wanted:
                parts.append(left.pop(0))
    return chosen


def admits(rows: IntArray, entities: IntArray, limits: Limits) -> list[int]:
    """Parts that a cell admits.

    Parameters
    ----------
    rows, entities : (PARTS,) int arrays
        Of the cell, by part.
    limits : Limits
    """
    least = (limits.min_records, limits.min_entities)
    admitted: list[int] = []
    for p in range(OPEN):
        rest = [q for q in range(PARTS) if q not in (*admitted, p)]
        pieces = ((rows[piece].sum(), entities[piece].sum()) for piece in ([p], rest))
        enough = all(n >= least[0] and e >= least[1] for n, e in pieces)
        if enough and rows[p] <= MOST * rows.sum():  # one large entity may be most of a part
            admitted.append(p)
    return admitted


_FEW = 1000


def class_codes(data: SiteData, levels: tuple[str, ...]) -> IntArray:
    """Class of each row: position among the levels.

    Raises
    ------
    DataError
        No target, levels that are not the declared ones, or values outside them.
    """
    if data.target is None:
        raise DataError.shared("the study names no target column: name it as [data] target")
    declared = data.levels.get(data.target_name)
    if (levels not in data.levels.values()) if declared is None else declared != levels:
        raise DataError.shared("the levels of the response are not those that were declared")
    target = np.asarray(data.target).astype(str)
    codes = np.full(len(target), -1, dtype=np.int64)
    for k, level in enumerate(levels):
        codes[target == level] = k
    if (codes < 0).any():
        raise DataError.shared(
            "the target holds rows without a declared level: declare all levels in [data.levels], "
            'or set [preparation] missing to "complete-rows"'
        )
    return codes


def require_numbers(data: SiteData) -> None:
    """Check that no cell of the features is missing.

    Raises
    ------
    DataError
    """
    if not np.isfinite(data.features).all():
        raise DataError.shared(
            "features have missing values: say by [preparation] what becomes of them"
        )


def drawing_seed(data: SiteData, site: SiteContext, purpose: str) -> int:
    """Seed of a site's own draws: the random numbers of its estimators.

    Where records are protected it is a digest of the rows themselves, see `sealed_seed`.
    """
    parts = (data.features, np.asarray(data.target))
    return sealed_seed(site, purpose, *((str(part.dtype), part) for part in parts))


def sealed_seed(site: SiteContext, purpose: str, *parts: tuple[str, NDArray[Any]]) -> int:
    """Seed from a digest of arrays, each with a word on its form; a public one without protection.

    Nobody else can tell it, and the same values give the same draws in every run, so that asking
    again tells nothing new.
    """
    if site.limits.min_records <= 1:
        return int(site.rng.integers(2**63 - 1))
    sealed = hashlib.sha256(purpose.encode())
    for form, values in parts:
        sealed.update(form.encode() + np.ascontiguousarray(values).tobytes())
    return int.from_bytes(sealed.digest()[:8], "little") >> 1


def without_thin(x: FloatArray, limits: Limits) -> tuple[FloatArray, IntArray]:
    """Make columns constant in which all but a few rows, or all, have one value.

    A model that leans on such a column tells of these few rows; that it has none is told no more
    than that it has few.

    Returns
    -------
    x : (n, p) array
        The same array where nothing was changed.
    thin : int array
        Columns that were changed.
    """
    if limits.min_records <= 1:
        return x, np.empty(0, dtype=np.int64)
    few = [j for j, column in enumerate(x.T) if _is_thin(column, limits.min_records)]
    thin = np.array(few, dtype=np.int64)
    return made_constant(x, thin), thin


def _is_thin(column: FloatArray, least: int) -> bool:
    """Whether fewer rows than `least` have another value than most: a bound settles it mostly."""
    n = len(column)
    if n - at_most(column, 3) >= least and not np.isnan(column).any():
        return False
    if n < _FEW:
        most = int(np.unique(column, return_counts=True)[1].max(initial=0))
    else:
        most = int(np.sum(column == np.median(column)))  # a value that most rows have
    return n - most < least


def made_constant(x: FloatArray, thin: IntArray) -> FloatArray:
    """Put the usual value into some columns; the same array where there are none.

    So a column in which few rows differ is the same as one in which none does.
    """
    if not len(thin) or not len(x):
        return x
    changed = x.copy()
    changed[:, thin] = np.median(x[:, thin], axis=0)
    return changed


def with_common_levels(
    y: FloatArray | IntArray, n_levels: int, limits: Limits
) -> NDArray[np.bool_]:
    """Which rows have a level of the response that enough rows of the site have.

    A classifier that is pulled to a few rows of a level tells of them.

    Parameters
    ----------
    y : (n,) array
        Positions of levels.
    n_levels : int
    limits : Limits
    """
    if limits.min_records <= 1:
        return np.ones(len(y), dtype=bool)
    counts = np.bincount(y.astype(np.int64), minlength=n_levels)
    return np.asarray(counts[y.astype(np.int64)] >= limits.min_records)
