"""A guard over runs: which rows of a data set earlier releases rest on, and which a new one may use.

Two releases that rest on nearly the same rows tell of the rows in which they differ. So the site
remembers, for ever, which of its rows were in which release. Rows that no release so far tells
apart are an *atom*. Every union and difference of released row sets is a union of atoms, however
many releases it takes; so nothing that sums over released sets and their differences can give is
about fewer rows than the smallest atom.

The guard keeps every atom at `least` rows or more. A study that wants the rows W gets

    U = W less, in each atom A,
          all of A and W,  where A and W has fewer than `least` rows;
          so many further rows that A without U has `least`, where 0 < |A without W| < `least`,
          or all of them, where too few would be left,

and of rows that were in no release before, all or (where fewer than `least` are wanted) none. Which
further rows stay out follows from their keys, which are secret and the same in every run. Hence:

- U differs from every earlier row set, and from every union and difference of earlier ones, by no
  row or by at least `least` rows, since each atom is split into parts of no row or at least `least`;
- who asks again for rows that were released gets just these: each atom lies inside or outside;
- who asks again for W gets U again: the parts of its atoms that stayed out are smaller than `least`
  within W, or outside.

Rows are known by their content, not by their place or by the name of a file. A row that was
corrected is another row, and the old one counts as one that W lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Atoms = NDArray[np.int32]
Keys = NDArray[np.uint64]

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
    """

    keys: Keys = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    atoms: Atoms = field(default_factory=lambda: np.empty(0, dtype=np.int32))

    def places(self, keys: Keys) -> IntArray:
        """Where rows stand among those of the history; -1 where they were never released."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)

    def admit(
        self, keys: Keys, least: int, places: IntArray | None = None
    ) -> tuple[NDArray[np.bool_], RowHistory]:
        """Choose the rows that a run uses, and remember them.

        Parameters
        ----------
        keys : (w,) uint64 array
            Different keys of the rows that it wants.
        least : int
            Rows in which two releases may differ, if in any.
        places : (w,) int array, optional
            `places` of these keys, where they are known.

        Returns
        -------
        chosen : (w,) bool array
        after : RowHistory
            The same object where nothing is new.
        """
        places = self.places(keys) if places is None else places
        n_atoms = int(self.atoms.max(initial=0)) + 1
        known = places >= 0
        atom = np.full(len(keys), UNSEEN, dtype=self.atoms.dtype)
        atom[known] = self.atoms[places[known]]
        size = np.bincount(self.atoms, minlength=n_atoms)
        wanted = np.bincount(atom, minlength=n_atoms)
        out = _left_out(size, wanted, least)
        chosen = np.ones(len(keys), dtype=bool)
        for one in np.flatnonzero(out):
            rows = np.flatnonzero(atom == one)
            chosen[rows[np.argsort(keys[rows], kind="stable")[: out[one]]]] = False
        taken = wanted - out
        split = np.flatnonzero((taken > 0) & (taken < size))
        fresh = np.sort(keys[chosen & ~known])
        if not len(split) and not len(fresh):
            return chosen, self
        part_of = np.arange(n_atoms, dtype=self.atoms.dtype)
        part_of[split] = n_atoms + np.arange(len(split))
        released = places[chosen & known]
        atoms, all_keys = self.atoms.copy(), self.keys
        atoms[released] = part_of[atoms[released]]
        if len(fresh):
            where = np.searchsorted(all_keys, fresh)
            all_keys = np.insert(all_keys, where, fresh)
            atoms = np.insert(atoms, where, n_atoms + len(split))
        return chosen, RowHistory(all_keys, atoms)

    def to_plain(self) -> dict[str, Any]:
        """For the site's home: six bytes for each key, two (or four) for each atom."""
        small = np.uint16 if self.atoms.max(initial=0) < 1 << 16 else np.uint32
        halves = self.keys.astype("<u8").view("<u2").reshape(-1, 4)[:, :3]
        return {"keys": np.ascontiguousarray(halves), "atoms": self.atoms.astype(small)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RowHistory:
        """Read `to_plain` back."""
        halves = np.asarray(plain["keys"])
        whole = np.zeros((len(halves), 4), dtype="<u2")
        whole[:, :3] = halves
        return cls(whole.view("<u8").ravel(), np.asarray(plain["atoms"]).astype(np.int32))


def _left_out(size: IntArray, wanted: IntArray, least: int) -> IntArray:
    """How many of the wanted rows of each atom stay out."""
    lacking = size - wanted
    lacking[UNSEEN] = 0  # rows that nobody was told of are missed by nobody
    out = np.where((lacking > 0) & (lacking < least), least - lacking, 0)
    enough = np.where((size > 0) & (size < least), size, least)  # the limit may have risen
    return np.where(wanted - out < enough, wanted, out)


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
    order = np.argsort(content, kind="stable")
    ranked = content[order]
    first = np.r_[True, ranked[1:] != ranked[:-1]] if len(ranked) else np.zeros(0, dtype=bool)
    start = np.maximum.accumulate(np.where(first, np.arange(len(ranked)), 0))
    copy = np.empty(len(content), dtype=np.uint64)
    copy[order] = (np.arange(len(ranked)) - start).astype(np.uint64)
    first_half, second_half = (np.uint64(int.from_bytes(secret[i : i + 8])) for i in (0, 8))
    keys = _mixed(_mixed(content ^ first_half) + copy * _ODD ^ second_half) & _BITS
    while len(again := _repeated(keys)):  # one pair in some hundred tables of a million rows
        keys[again] = (keys[again] + np.uint64(1)) & _BITS
    return keys


def _repeated(keys: Keys) -> IntArray:
    """Places of keys that stand further up too."""
    order = np.argsort(keys, kind="stable")
    return np.asarray(order[1:][keys[order][1:] == keys[order][:-1]])


_BITS = np.uint64((1 << 48) - 1)
_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64 bits in which every bit depends on all (the last step of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
