"""Which rows of a site are held out: one rule for all methods, and for all runs on a table.

Figures of two sets of rows tell those of their difference. So at a site that protects records no
study chooses a set: the table's rows are dealt to `PARTS` parts once and for ever, by a secret that
only the table's holder has (its content), whatever is asked of them. A run holds out a whole part,
or no row:

* A *cell* is a set of rows about which figures are told: a class, or all rows that take part.
* Of the sets in `_SETS`, in that order, a cell *admits* those that leave no small piece: the sets
  that it admits cut it into pieces, and each piece, the rest among them, is empty or has at least
  `min_records` rows (of `min_entities` entities, where known).
* A run holds out the first set that all its cells admit: about a fifth of the rows, whatever share
  above 0 was asked for; two fifths where a class is small; none where no set will do.

What a cell admits follows from its own rows. So in all runs that tell of a cell, of all methods,
under any share, seed, columns and levels, figures are those of whole pieces, and so is any linear
combination of them (``docs/proofs/held-out-rows.md``). Rows of an entity are dealt together, where
the study names entities. A policy that protects no record (``min_records = 1``) has the share that
was asked for, drawn by a public stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.methods.base import SiteData
from consilience.numerics.random import stream
from consilience.wire.disclosure import Limits

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PARTS = 5
"""Parts of a table. A protected site holds out one of them, or two where its classes are small."""
_SETS: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 1))


def held_out(
    data: SiteData,
    cells: IntArray,
    shares: Sequence[float],
    limits: Limits,
    *,
    order: IntArray | None = None,
    spare: int = 0,
    within: IntArray | None = None,
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
    within : (n,) int array, optional
        Rows of an entity are dealt singly rather than together, each entity by this number keeps
        one, and another entity column gives another deal.

    Returns
    -------
    tuple of int arrays
        Positions among the rows of `data`, ascending, one array for each share and no row in two.
        All that is not there is used: what a run rests on is this partition and nothing else.
    """
    if limits.min_records > 1:
        part = _dealt(data) if within is None else _dealt_within(data, within, cells >= 0)
        chosen = _admitted(part, cells, data.entity if within is None else None, shares, limits)
        masks = [np.isin(part, parts) & (cells >= 0) for parts in chosen]
        return tuple(np.flatnonzero(mask) for mask in masks)
    found: list[list[IntArray]] = [[] for _ in shares]
    for k in np.unique(cells[cells >= 0]):
        members = order[cells[order] == k] if order is not None else np.flatnonzero(cells == k)
        left = max(len(members) - spare, 0)
        for i, share in enumerate(shares):
            size = min(int(share * len(members)), left)
            start = sum(len(part[-1]) for part in found[:i])
            found[i].append(members[start : start + size])
            left -= size
    return tuple(np.sort(np.concatenate([np.empty(0, np.int64), *some])) for some in found)


# --------------------------------------------------------------------------- the deal


def uniform(data: SiteData, *label: str | int) -> FloatArray:
    """Numbers in [0, 1) by row, the same for the same row of a table whatever is asked of it.

    Parameters
    ----------
    data : SiteData
    *label
        What they are for: another label gives others.
    """
    last = int(data.rows.max(initial=-1))
    return stream(0, *label, _secret(data)).random(last + 1)[data.rows]


def _dealt(data: SiteData) -> IntArray:
    """Part of each row: of its entity, where the study names entities."""
    if data.entity is None:
        return _part(uniform(data, "parts"))
    names, which = np.unique(np.asarray(data.entity).astype(str), return_inverse=True)
    return _part(_by_name(data, names)[which.ravel()])


def _dealt_within(data: SiteData, entity: IntArray, used: NDArray[np.bool_]) -> IntArray:
    """Part of each row, singly; one row of each entity is never held out.

    So what is held out depends on what an entity is. Its name moves the deal: two columns of
    entities would otherwise give sets that differ by a few rows.
    """
    pairs = zip(_texts(data, "agent"), _texts(data, "entity"), strict=True)
    labels, which = np.unique(np.array([" ".join(pair) for pair in pairs]), return_inverse=True)
    value = (uniform(data, "parts within") + _by_name(data, labels)[which.ravel()]) % 1.0
    part = _part(value)
    order = np.lexsort((value, used, entity))
    last = np.append(entity[order][1:] != entity[order][:-1], True)
    part[order[last]] = PARTS - 1
    return part


def _part(value: FloatArray) -> IntArray:
    return (value * PARTS).astype(np.int64)


def _by_name(data: SiteData, names: NDArray[np.str_]) -> FloatArray:
    """A number in [0, 1) for each name."""
    key = bytes.fromhex(_secret(data))
    found = (hashlib.blake2b(str(n).encode(), key=key, digest_size=8).digest() for n in names)
    return np.array([int.from_bytes(d, "little") >> 11 for d in found], dtype=float) / (1 << 53)


def _texts(data: SiteData, name: str) -> list[str]:
    values = getattr(data, name)
    return [""] * data.n_rows if values is None else np.asarray(values).astype(str).tolist()


def _secret(data: SiteData) -> str:
    """What only the table's holder has: a digest of all of it, not of the columns asked for."""
    content = data.content_hash.encode()
    if not content:  # rows that were made by hand
        content = np.asarray(data.rows if data.target is None else data.target).tobytes()
    return hashlib.blake2b(content, digest_size=32, person=b"held-out rows").hexdigest()


# --------------------------------------------------------------------------- what a cell admits


def _admitted(
    part: IntArray,
    cells: IntArray,
    entity: NDArray[np.str_] | None,
    shares: Sequence[float],
    limits: Limits,
) -> list[tuple[int, ...]]:
    """Parts to hold out for each share; none where a share is 0, or no set is left."""
    used = np.flatnonzero(cells >= 0)
    sizes = _sizes(part[used], cells[used])
    if entity is not None and limits.min_entities > 1:
        # A row of each entity and class stands for it.
        names = np.unique(entity[used], return_inverse=True)[1].ravel()
        both = names * (int(cells.max(initial=0)) + 1) + cells[used]
        first = used[np.unique(both, return_index=True)[1]]
        entities = _sizes(part[first], cells[first])
        entities[-1] = np.bincount(
            part[used[np.unique(names, return_index=True)[1]]], minlength=PARTS
        )
    else:
        entities = np.full_like(sizes, limits.min_entities) * (sizes > 0)
    open_ = list(_SETS)
    for rows, units in zip(sizes, entities, strict=True):
        admitted = admits(rows, units, limits)
        open_ = [parts for parts in open_ if parts in admitted]
    chosen: list[tuple[int, ...]] = []
    for share in shares:
        taken = {p for parts in chosen for p in parts}
        free = [parts for parts in open_ if not taken & set(parts)]
        chosen.append(free[0] if share > 0 and free else ())
    return chosen


def _sizes(part: IntArray, cells: IntArray) -> IntArray:
    """Rows by cell and part; the last line is of all cells together."""
    there, codes = np.unique(cells, return_inverse=True)
    table = np.bincount(codes.ravel() * PARTS + part, minlength=len(there) * PARTS)
    table = table.reshape(len(there), PARTS)
    return np.concatenate([table, table.sum(axis=0, keepdims=True)])


def admits(rows: IntArray, entities: IntArray, limits: Limits) -> list[tuple[int, ...]]:
    """Sets of parts that a cell admits.

    Parameters
    ----------
    rows, entities : (PARTS,) int arrays
        Of the cell, by part.
    limits : Limits
    """
    admitted: list[tuple[int, ...]] = []
    for parts in _SETS:
        trial = [*admitted, parts]
        pieces: dict[tuple[bool, ...], list[int]] = {}
        for p in range(PARTS):
            pieces.setdefault(tuple(p in one for one in trial), []).append(p)
        enough = all(
            rows[piece].sum() >= limits.min_records and entities[piece].sum() >= limits.min_entities
            for piece in pieces.values()
        )
        if enough:
            admitted = trial
    return admitted
