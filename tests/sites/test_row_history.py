"""Rows of all releases: whatever runs ask for, no two releases differ by few rows."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from consilience.sites import row_history
from consilience.sites.row_history import RowHistory, row_keys
from consilience.sites.source import is_number, read_source

LEAST = 5
SECRET = bytes(range(16))
Rows = frozenset[int]


class DataSet:
    """A table that changes a little between runs; a row is a number."""

    def __init__(self, seed: int, n: int = 160, n_classes: int = 3) -> None:
        self.rng = np.random.default_rng(seed)
        self.n_classes = n_classes
        self.rows = np.arange(n)
        self.next = n
        self.history = RowHistory()
        self.told: list[Rows] = []
        self.keys: dict[int, int] = {}

    def cells(self, target: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Class by some target, and part, of every row."""
        mixed = (self.rows * 2654435761 + 97 * target) % 1009
        return mixed % self.n_classes, (self.rows * 40503) % 1013 % 4

    def change(self) -> None:
        """Some rows go, some come."""
        stay = self.rng.random(len(self.rows)) >= self.rng.choice([0, 0.01])
        new = np.arange(self.next, self.next + self.rng.choice([0, 0, 1, 3, 30]))
        self.next += len(new)
        self.rows = self.rng.permutation(np.r_[self.rows[stay], new])

    def wants(self) -> NDArray[np.bool_]:
        """Most rows, without some that lack a value, or one class."""
        kind = self.rng.integers(4)
        if kind == 0:
            return np.ones(len(self.rows), dtype=bool)
        if kind == 1:
            return self.cells(0)[0] != self.rng.integers(self.n_classes)
        # The same rows lack the same column in every run.
        lacking = np.random.default_rng([7, kind]).random(self.next + 1000)
        return lacking[self.rows] >= self.rng.choice([0.01, 0.03, 0.3])

    def ask(self, wanted: NDArray[np.bool_], target: int = 0) -> Rows:
        keys = row_keys(self.rows.astype(np.uint64), SECRET)
        chosen, self.history = self.history.admit(keys, wanted, self.cells(target), least=LEAST)
        assert not (chosen & ~wanted).any()
        self.told.append(frozenset(self.rows[chosen].tolist()))
        self.keys |= dict(zip(keys.tolist(), self.rows.tolist(), strict=True))
        return self.told[-1]


def few(rows: Rows) -> bool:
    return 0 < len(rows) < LEAST


@pytest.mark.parametrize("seed", range(10))
def test_releases_differ_from_unions_and_differences_of_others_by_none_or_many(seed: int) -> None:
    data = DataSet(seed)
    for _ in range(7):
        data.ask(data.wants(), target=int(data.rng.integers(2)))
        data.change()
    sets = [s for s in data.told if s]
    combined = [*sets]
    for a, b in itertools.permutations(sets, 2):
        combined += [a | b, a - b, a & b]
    for a, b in itertools.product(sets, combined):
        assert not few(a - b)
        assert not few(b - a)
    atoms = np.bincount(data.history.atoms)[1:]
    assert (atoms[atoms > 0] >= LEAST).all()
    # Each set that was told is there as its atoms, once.
    there = [data.history.keys[s[data.history.atoms]] for s in data.history.sets]
    found = [frozenset(data.keys[k] for k in keys.tolist()) for keys in there]
    assert set(found) == set(data.told)
    assert len(found) == len(set(found))


def test_without_the_guard_they_differ_by_few() -> None:
    """The control: what runs want differs by few rows in most data sets."""
    broken = 0
    for seed in range(10):
        data = DataSet(seed)
        wanted = []
        for _ in range(7):
            wanted.append(frozenset(data.rows[data.wants()].tolist()))
            data.change()
        broken += any(few(a - b) for a, b in itertools.permutations(wanted, 2))
    assert broken >= 8


@pytest.mark.parametrize("seed", range(10))
def test_classes_and_parts_differ_by_none_or_many(seed: int) -> None:
    """A second run lacks some rows; those of each class and part that it lacks are many."""
    data = DataSet(seed)
    first = data.ask(np.ones(len(data.rows), dtype=bool))
    lacking = data.rng.random(len(data.rows)) < data.rng.choice([0.01, 0.05, 0.2])
    second = data.ask(~lacking)
    missed = np.isin(data.rows, list(first - second))
    kinds, parts = data.cells(0)
    for kind, part in itertools.product(range(3), range(4)):
        for cell in (kinds == kind, parts == part, (kinds == kind) & (parts == part)):
            lost = int((missed & cell).sum())
            whole = int(cell.sum())
            assert lost == 0 or lost >= LEAST or (lost == whole and whole < LEAST)


@pytest.mark.parametrize("seed", range(5))
def test_in_each_atom_the_rows_of_a_class_that_stay_out_are_many(seed: int) -> None:
    data = DataSet(seed, n=400)
    everybody = np.ones(len(data.rows), dtype=bool)
    data.ask(everybody)
    data.ask(data.rng.random(len(data.rows)) < 0.5)
    atom = data.history.atoms[data.history.places(row_keys(data.rows.astype(np.uint64), SECRET))]
    told = data.ask(data.rng.random(len(data.rows)) >= 0.03)
    out = ~np.isin(data.rows, list(told))
    kinds, parts = data.cells(0)
    for a, kind, part in itertools.product(np.unique(atom), range(3), range(4)):
        group = (atom == a) & (kinds == kind) & (parts == part)
        lost = int((out & group).sum())
        assert not 0 < lost < min(LEAST, int(group.sum()))


def test_of_rows_that_are_gone_nobody_knows_the_class() -> None:
    """So of each class and part as many known rows stay out, whatever the class was."""
    data = DataSet(0, n=400)
    first = data.ask(np.ones(400, dtype=bool))
    data.rows = data.rows[1:]
    told = data.ask(np.ones(399, dtype=bool))
    out = np.isin(data.rows, list(first - told))
    kinds, parts = data.cells(0)
    for kind, part in itertools.product(range(3), range(4)):
        assert int((out & (kinds == kind) & (parts == part)).sum()) == LEAST


def test_keys_differ_where_hashes_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_history, "_BITS", np.uint64(255))
    keys = row_keys(np.arange(200, dtype=np.uint64), SECRET)
    assert len(set(keys.tolist())) == 200


@pytest.mark.parametrize("seed", range(5))
def test_who_asks_again_gets_the_same_rows(seed: int) -> None:
    """Of the same table, whatever other runs were in between."""
    data = DataSet(seed)
    asked = [data.wants() for _ in range(5)]
    told = [data.ask(wanted) for wanted in asked]
    # The first answers are among the rows that all later ones distinguish.
    for wanted, rows in zip(asked, told, strict=True):
        again = data.ask(wanted)
        assert not few(again - rows)
        assert not few(rows - again)
        used = np.isin(data.rows, list(rows))
        assert data.ask(used) == rows


def test_rows_that_were_added_wait_until_they_are_many() -> None:
    data = DataSet(0, n=60, n_classes=1)
    data.ask(np.ones(60, dtype=bool))
    for n, used in ((63, 60), (79, 60), (200, 200)):
        data.rows = np.arange(n)
        told = data.ask(np.ones(n, dtype=bool))
        assert len(told) == used or used < len(told) <= n
    assert len(told) == 200


def test_equal_rows_are_different_people() -> None:
    content = np.array([7, 7, 8, 7], dtype=np.uint64)
    keys = row_keys(content, SECRET)
    assert len(set(keys.tolist())) == 4
    shuffled = row_keys(content[[3, 2, 0, 1]], SECRET)
    assert sorted(shuffled.tolist()) == sorted(keys.tolist())
    assert sorted(row_keys(content, SECRET[::-1]).tolist()) != sorted(keys.tolist())


def test_what_is_kept_is_read_back() -> None:
    data = DataSet(3)
    for _ in range(4):
        data.ask(data.wants())
        data.change()
    back = RowHistory.from_plain(data.history.to_plain())
    assert (back.keys == data.history.keys).all()
    assert (back.atoms == data.history.atoms).all()


CELLS = {
    "numbers": ["1", "2.50", " 3 ", "-0", "0", ""],
    "names of none": ["nan", "NaN", "1", "2", "", "3"],
    "ends": ["inf", "-Infinity", "1e400", "1", "", ""],
    "written otherwise": ["+5", "1_0", "0x10", ".5", "5.", "1e-400"],
    "empty": ["", "", "", "", "", ""],
    "digits": ["9007199254740993", "0.1", "1e22", "00012", "4.9e-324", "2.2250738585072011e-308"],
    "words": ["true", "1", "0", "", "x", "3"],
    "commas": ["1,5", "2", "0,25", "", "-1,0", "3"],
    "blanks": ["\x1c1", "2\u00a0", "\u20033", "4", "5", "6"],
}


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("name", CELLS)
def test_the_content_of_a_cell_is_that_of_its_number_or_text(name: str, decimal: str) -> None:
    """Cell by cell, whether a column is read as a whole or not."""
    table = replace(read_source(pd.DataFrame(CELLS)), decimal=decimal)
    wanted = []
    for text in (cell.strip() for cell in CELLS[name]):
        number = text.replace(decimal, ".")
        if text and is_number(number):
            bits = struct.pack("<d", float(number) + 0.0)
        else:
            bits = struct.pack("<d", math.nan)
            bits = hashlib.blake2b(text.encode(), digest_size=8).digest() if text else bits
        wanted.append(int.from_bytes(bits, "little"))
    assert row_history._bits(row_history._cells(table, name)).tolist() == wanted


def test_rows_keep_their_keys_beside_equal_ones() -> None:
    content = np.random.default_rng(5).integers(1 << 63, size=300).astype(np.uint64)
    alone = row_keys(content, SECRET)
    beside = row_keys(np.concatenate([content, content[:7], content[:2]]), SECRET)
    np.testing.assert_array_equal(beside[:300], alone)
    assert len(np.unique(beside)) == len(beside)
