"""A guard over runs: which rows of a data set earlier releases rest on, and which may be used.

Two releases that rest on nearly the same rows tell of the rows in which they differ. So the site
remembers, for ever, which of its rows were in which release. Rows that no release so far tells
apart are an *atom*. Every union and difference of released row sets is a union of atoms, however
many releases it takes; so nothing that sums over released sets and their differences can give is
about fewer rows than the smallest atom.

A run also tells figures of *cells* of its rows: classes, and parts that are held out. Where few
rows stay out, each of them may be alone of its cell. A *group* is what an atom and a cell have in
common; a *margin* is all groups of one class, of one part, of one atom, of two of these, or all.

A study that wants the rows W gets U, a part of W:

- in each group and in each margin, the rows of earlier releases that U lacks are none, or at least
  `least`, or all of it;
- in each group and in each atom of which U lacks some, U has none or at least `least`;
- of rows that were in no release before, U has a group where at least `least` are wanted;
- where rows of an atom are no longer in the table, nobody knows their cells: U then lacks `least`
  known rows in each cell.

Which rows stay out follows from their keys, which are secret and the same in every run. Hence:

- U differs from every earlier row set, and from every union and difference of earlier ones, by no
  row or by at least `least` rows, since each atom is split into parts of no row or at least
  `least`;
- the rows of a class or a part in U differ so from those in all earlier releases together;
- who asks again for rows that were released gets just these: each atom lies inside or outside.

Rows are known by their content, not by their place or by the name of a file. A row that was
corrected is another row, and the old one is no longer in the table.

`row_content` says what is in each row of a table, as one number. It follows from the values and the
names of the columns; neither the order of rows or columns, nor the type as which a value was read
(4, 4.0 and "4"), nor the format of the file enters.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import IntArray, all_finite
from consilience.exceptions import DataError
from consilience.sites.encoding import is_number
from consilience.sites.source import Table

Atoms = NDArray[np.int32]
Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Axes = tuple[int, ...]

UNSEEN = 0
"""Atom of the rows that are in no release so far."""


@dataclass(frozen=True, eq=False)
class RowHistory:
    """Rows of all releases on a data set.

    Attributes
    ----------
    keys : (n,) uint64 array
        Rows that were ever released, in ascending order.
    atoms : (n,) int array
        Atom of each, numbered from 1.
    sets : (s, a) bool array
        Atoms of each row set that was released; of atom 0 (no release) none.
    """

    keys: Keys = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    atoms: Atoms = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    sets: Mask = field(default_factory=lambda: np.zeros((0, 1), dtype=bool))

    def places(self, keys: Keys) -> IntArray:
        """Where rows stand among those of the history; -1 where they were never released."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)

    def admit(
        self,
        keys: Keys,
        wanted: Mask,
        cells: tuple[IntArray, ...] = (),
        *,
        least: int,
        places: IntArray | None = None,
    ) -> tuple[Mask, RowHistory]:
        """Choose the rows that a run uses, and remember them.

        Parameters
        ----------
        keys : (n,) uint64 array
            Different keys of all rows of the table.
        wanted : (n,) bool array
            Rows that the run wants.
        cells : tuple of (n,) int arrays
            Up to two divisions of the rows (0, 1, 2, ...) of which the run tells parts.
        least : int
            Rows in which two releases may differ, if in any.
        places : (n,) int array, optional
            `places` of these keys, where they are known.

        Returns
        -------
        chosen : (n,) bool array
        after : RowHistory
            The same object where nothing is new.
        """
        places = self.places(keys) if places is None else places
        size = np.bincount(self.atoms, minlength=1)
        atom = self.of_rows(places)
        group, shape = atom, [len(size)]
        for cell in cells:
            shape.append(int(cell.max(initial=0)) + 1)
            group = group * np.int32(shape[-1]) + cell.astype(np.int32)
        shape += [1] * (3 - len(shape))
        total = int(np.prod(shape))
        rows = np.bincount(group, minlength=total).reshape(shape)
        # Most rows are wanted: the others are counted.
        unwanted = np.bincount(group[np.flatnonzero(~wanted)], minlength=total).reshape(shape)
        here, asked = rows.copy(), rows - unwanted
        here[UNSEEN] = 0
        out = _left_out(size, here, asked, least)
        chosen = wanted.copy()
        chosen[_first(keys, wanted, group, out.ravel())] = False
        taken = (asked - out).sum(axis=(1, 2))
        gone = bool((size > here.sum(axis=(1, 2)))[1:].any())
        return chosen, self._after(keys, chosen, atom, places, taken < size, taken > 0, gone)

    def _after(
        self,
        keys: Keys,
        chosen: Mask,
        atom: Atoms,
        places: IntArray,
        lacks: Mask,
        has: Mask,
        gone: bool,
    ) -> RowHistory:
        """The history with one more release, which lacks some of an atom, and has some of it."""
        new_rows = places < 0
        fresh = keys[chosen & new_rows] if new_rows.any() else np.empty(0, dtype=np.uint64)
        fresh.sort()
        split = lacks & has
        split[UNSEEN] = False
        changed = bool(split.any() or len(fresh))
        # Rows that stay out, of an atom of which others are used, are in the sets of that atom.
        sets = np.hstack([self.sets, self.sets[:, split], np.zeros((len(self.sets), 1), bool)])
        used = np.zeros(sets.shape[1], dtype=bool)
        used[: len(has)] = has
        used[UNSEEN], used[-1] = False, bool(len(fresh))
        sets = sets if len(fresh) else sets[:, :-1]
        used = used[: sets.shape[1]]
        if not (sets == used).all(axis=1).any():
            sets = np.vstack([sets, used])
        elif not changed:
            return self
        if not changed:
            return RowHistory(self.keys, self.atoms, sets)
        # The rows that stay out are the fewer ones: they get the new number.
        new = np.cumsum(split, dtype=np.int32) + np.int32(len(split) - 1)
        away = np.flatnonzero(~chosen)
        away = places[away[split[atom[away]]]]
        if gone:
            there = np.zeros(len(self.keys), dtype=bool)
            there[places[places >= 0]] = True
            away = np.concatenate([away, np.flatnonzero(split[self.atoms] & ~there)])
        atoms, all_keys = self.atoms.copy(), self.keys
        atoms[away] = new[atoms[away]]
        number = len(split) + int(split.sum())
        if not len(all_keys):
            all_keys, atoms = fresh, np.full(len(fresh), number, dtype=np.int32)
        elif len(fresh):
            where = np.searchsorted(all_keys, fresh)
            all_keys = np.insert(all_keys, where, fresh)
            atoms = np.insert(atoms, where, number)
        if atoms.max(initial=0) >= 1 << 16:  # numbers are given again, so that two bytes do
            kept, renumbered = np.unique(atoms, return_inverse=True)
            atoms = (renumbered.ravel() + 1).astype(np.int32)
            sets = np.hstack([sets[:, :1], sets[:, kept]])
        return RowHistory(all_keys, atoms, sets)

    def of_rows(self, places: IntArray) -> Atoms:
        """Atom of each row of a table, by its place; `UNSEEN` of one without."""
        return np.append(self.atoms, np.int32(UNSEEN))[places]

    def whole(self, atom: Atoms) -> Mask:
        """Which atoms the rows of a table have in whole: none of their rows is gone, (a,)."""
        a = self.sets.shape[1]
        return np.bincount(atom, minlength=a) >= np.bincount(self.atoms, minlength=a)

    def to_plain(self) -> dict[str, Any]:
        """For the site's home: six bytes for each key, two (or four) for each atom."""
        small = np.uint16 if self.atoms.max(initial=0) < 1 << 16 else np.uint32
        return {
            "low": self.keys.astype(np.uint32),
            "high": (self.keys >> _LOW).astype(np.uint16),
            "atoms": self.atoms.astype(small),
            "sets": np.packbits(self.sets, axis=1),
            "n_atoms": self.sets.shape[1],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RowHistory:
        """Read `to_plain` back."""
        keys = np.asarray(plain["high"]).astype(np.uint64) << _LOW
        sets = np.unpackbits(np.asarray(plain["sets"]), axis=1, count=int(plain["n_atoms"]))
        atoms = np.asarray(plain["atoms"]).astype(np.int32)
        return cls(keys | np.asarray(plain["low"]), atoms, sets.astype(bool))


def _first(keys: Keys, wanted: Mask, group: NDArray[np.integer[Any]], out: IntArray) -> IntArray:
    """So many wanted rows of each group, those with the smallest keys."""
    found, need = [], out.copy()
    # Of large groups these are among the smallest of all, so that few rows are sorted.
    small = int(_BITS) // max(len(keys) // _SORTED, 1)
    for largest in (small, int(_BITS)):
        if not need.any():
            break
        rows = np.flatnonzero(wanted & (keys <= np.uint64(largest)))
        rows = rows[(need > 0)[group[rows]]]
        rows = rows[np.lexsort((keys[rows], group[rows]))]
        of, start, many = np.unique(group[rows], return_index=True, return_counts=True)
        place = np.arange(len(rows)) - np.repeat(start, many)
        enough = np.repeat(many >= need[of], many)
        found.append(rows[enough & (place < need[group[rows]])])
        need[of[many >= need[of]]] = 0
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


_SORTED = 20_000
_MARGINS = tuple(axes for r in (1, 2, 3) for axes in itertools.combinations(range(3), r))
"""Sums over atoms, classes and parts, of which groups are made."""


def _left_out(size: IntArray, here: IntArray, wanted: IntArray, least: int) -> IntArray:
    """How many of the wanted rows of each group stay out.

    Parameters
    ----------
    size : (a,) int array
        Rows of each atom; the first one stands for those that are in no release.
    here, wanted : (a, k, p) int arrays
        Rows of each group that the table still has, and that the run wants.
    least : int
    """
    out = np.zeros_like(wanted)
    if len(size) == 1:
        return out  # nothing was told yet
    gone = size - here.sum(axis=(1, 2))
    gone[UNSEEN] = 0
    lacking = here - wanted
    lacking[UNSEEN] = 0  # rows that nobody was told of are missed by nobody
    while True:
        before = out.copy()
        missed = lacking + out
        short = (missed < least) & ((missed > 0) | (gone > 0)[:, None, None])
        short[UNSEEN] = False
        out = np.where(short, np.minimum(out + least - missed, wanted), out)
        parted = lacking + out > 0
        parted[UNSEEN] = True
        out = np.where(parted & (wanted - out < least), wanted, out)
        taken = (wanted - out).sum(axis=(1, 2))
        out = np.where(((taken < least) & (taken < size))[:, None, None], wanted, out)
        for axes in _MARGINS:
            _widen(out, wanted, lacking, axes, least)
        if (out == before).all():
            return out


def _widen(out: IntArray, wanted: IntArray, lacking: IntArray, axes: Axes, least: int) -> None:
    """Where few rows of a margin stay out, leave out further ones of its smallest group."""
    missed = (lacking + out)[1:].sum(axis=axes, keepdims=True)
    for margin in np.argwhere((missed > 0) & (missed < least)):
        inside = tuple(slice(None) if i in axes else slice(m, m + 1) for i, m in enumerate(margin))
        # Views: what is written here is written there.
        part, left = out[1:][inside], (wanted - out)[1:][inside]
        price = np.where(left >= 2 * least, least, left)
        order = np.lexsort((left.ravel(), price.ravel()))
        place = next((g for g in order if price.ravel()[g] > 0), None)
        if place is not None:
            part[np.unravel_index(place, part.shape)] += price.ravel()[place]


def row_keys(content: NDArray[np.uint64], secret: bytes) -> Keys:
    """Different keys of rows, from hashes of their content.

    Rows of equal content are numbered, in the order of the table: they are different people, and
    which is which makes no difference.

    Parameters
    ----------
    content : (n,) uint64 array
    secret : bytes
        16 bytes of the data set: nobody else can tell which rows come first.
    """
    first_half, second_half = (np.uint64(int.from_bytes(secret[i : i + 8])) for i in (0, 8))
    keys = np.empty(len(content), dtype=np.uint64)
    for at in range(0, len(keys), _AT_ONCE):
        part = slice(at, at + _AT_ONCE)
        keys[part] = mixed(mixed(content[part] ^ first_half) ^ second_half) & _BITS
    if _all_differ(keys):  # nearly always: then no two rows are alike
        return keys
    alone = mixed(content ^ first_half)
    copy = np.zeros(len(content), dtype=np.uint64)
    order = np.argsort(content, kind="stable")
    ranked = content[order]
    first = np.r_[True, ranked[1:] != ranked[:-1]]
    start = np.maximum.accumulate(np.where(first, np.arange(len(ranked)), 0))
    copy[order] = (np.arange(len(ranked)) - start).astype(np.uint64)
    keys = mixed(alone + copy * _ODD ^ second_half) & _BITS
    while len(again := _repeated(keys)):  # one pair in some hundred tables of a million rows
        keys[again] = (keys[again] + np.uint64(1)) & _BITS
    return keys


def _repeated(keys: Keys) -> IntArray:
    """Places of keys that stand further up too."""
    if _all_differ(keys):  # nearly always, and much quicker seen than which ones do not
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    return np.asarray(order[1:][keys[order][1:] == keys[order][:-1]])


def _all_differ(x: NDArray[np.uint64]) -> bool:
    ranked = np.sort(x)
    return not (ranked[1:] == ranked[:-1]).any()


_BITS, _LOW = np.uint64((1 << 48) - 1), np.uint64(32)
_ODD = np.uint64(0x9E3779B97F4A7C15)


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64 bits in which every bit depends on all (the last step of SplitMix64).

    Parameters
    ----------
    x : uint64 array
    """
    room = np.right_shift(x, np.uint64(30))  # no further array is made
    x = np.bitwise_xor(x, room)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= np.right_shift(x, np.uint64(27), out=room)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= np.right_shift(x, np.uint64(31), out=room)
    return x


# --------------------------------------------------------------------------------- content of rows

Content = NDArray[np.uint64]
_AT_ONCE = 1 << 15
"""Cells or rows that are hashed at a time: so many stay in a processor's cache."""


def row_content(table: Table, names: tuple[str, ...], unit: str | None = None) -> Content:
    """Return a number for each row.

    Parameters
    ----------
    table : Table
    names : tuple of str
        Columns to look at.
    unit : str, optional
        Column of a long table: all rows with one value in it are one, in the order in which these
        values first occur.

    Returns
    -------
    (n,) uint64 array

    Raises
    ------
    DataError
        The table has not all these columns.
    """
    there = set(table.names)
    if gone := [name for name in names if name not in there]:
        sentence = "the site's table lacks a column that it had in earlier runs"
        raise DataError(
            f"{sentence} ({gone[0]!r}), so its rows are not known again: put the column back, or "
            "give the table another data_id in the policy if it is about other people",
            public=sentence,
        )
    content = np.zeros(table.n_rows, dtype=np.uint64)
    for name in names:
        cells, own = _cells(table, name), _of_text(name)
        for start in range(0, len(content), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            content[part] += mixed(_bits(cells[part]) ^ own)
    content = mixed(content)
    if unit is None:
        return content
    positions, _ = table.categories(unit)
    first = np.unique(positions, return_index=True)[1]
    rank = np.argsort(np.argsort(first))
    together = np.zeros(len(first), dtype=np.uint64)
    np.add.at(together, rank[np.unique(positions, return_inverse=True)[1].ravel()], content)
    return together


def _cells(table: Table, name: str) -> NDArray[Any]:
    """A number for each cell of a column, of empty cells the same; or the column, if of numbers."""
    kind = table.kind(name)
    if kind in ("number", "boolean"):
        return table.numbers(name)[0]
    if kind == "text" and (values := table.plain_numbers(name)) is not None:
        return values
    positions, texts = table.categories(name)
    # The same number with either decimal mark.
    plain = [t.replace(",", ".") for t in texts] if table.decimal == "," else texts
    numeric = np.array([is_number(text) for text in plain], dtype=bool)
    known = np.empty(len(texts) + 1, dtype=np.uint64)
    known[:-1][numeric] = _bits(np.array([float(t) for t in plain if is_number(t)]))
    words = [text for text, is_one in zip(texts, numeric, strict=True) if not is_one]
    known[:-1][~numeric] = [_of_text(word) for word in words]
    known[-1:] = _bits(np.array([np.nan]))  # that of position -1: an empty cell
    return known[positions]


def _bits(values: NDArray[Any]) -> Content:
    """Bits of numbers, of which there is one zero and one NaN; bits stay what they are."""
    if values.dtype != np.uint64:
        values = values + 0.0
        if not all_finite(values):
            values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _of_text(text: str) -> np.uint64:
    data = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(data, "little"))
