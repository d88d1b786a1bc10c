"""Tables with one row for each person and time become one row for each person.

A site whose sequences are in such a table says so by ``long`` in ``[columns]`` of its site file.
The table is turned before anything else looks at it, so that a record is a person from there on:
for missing values, for the smallest numbers of records behind a cell, and in the site's outputs.
The content hash stays that of the table as it was read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import IntArray, pa
from consilience.exceptions import DataError, StudyError
from consilience.protocol.method import Columns
from consilience.sites.encoding import is_number, match, row_list
from consilience.sites.own_columns import EVERY, LongColumns, SiteColumns
from consilience.sites.source import Table

Mask = NDArray[np.bool_]
_SINGLE = ("text", "number", "boolean", "empty", "date", "time")


def wide_table(table: Table, columns: Columns, site: SiteColumns, few: int = 1) -> Table:
    """Return a table with one row for each id, in the order in which ids first occur.

    Parameters
    ----------
    table : Table
    columns : Columns
    site : SiteColumns
        Without `long` the table is returned as it is.
    few : int
        What is odd about fewer ids than that stops nothing, or a study could ask about single ones
        by the times that it names: a time that is no sequence column is left out, and a value that
        changes within an id is empty.

    Returns
    -------
    Table
        The study's sequence columns, in which a time without a row is empty, and of its other
        columns the one value that each id has.

    Raises
    ------
    StudyError
        The study has no sequence columns.
    DataError
        A column is not there; an id or time is missing; a time is no sequence column; an id has two
        rows for a time, or two values in a column that is none of its states.
    """
    long = site.long
    if long is None:
        return table
    _check_names(table, columns, long)
    codes = site.codes(EVERY)
    person, _ = _complete(table, long.id, codes)
    names = tuple(site.local(name) for name in columns.sequence)
    first = np.unique(person, return_index=True)[1]
    order = np.argsort(first)
    # Persons in the order of their first rows, as somebody who reads the file would list them.
    first, rank = first[order], np.argsort(order)
    person = rank[np.unique(person, return_inverse=True)[1].ravel()]
    when = _places(table, long.time, codes, names, columns.sequence, person, few)
    # One number for each person and time: two rows with the same one repeat a time.
    pair = person * (when.max() + 1) + when
    kept, counts = np.unique(pair, return_counts=True)
    if (counts > 1).any():
        again = np.flatnonzero(np.isin(pair, kept[counts > 1]))
        raise _refusal(
            long.time,
            f"repeats a time of one id{row_list(again + 1)}: keep one row for each id and time",
            "an id has two rows for one time",
        )
    found: dict[str, Any] = {}
    for name in dict.fromkeys((long.id, *_others(table, columns, site))):
        if name in names:
            raise StudyError(
                f"[columns] long: {name!r} is a sequence column and stands for another"
            )
        changing = _changing(table, name, person, first, few)
        found[name] = table.cells(name).take(pa.array(first, mask=changing))
    # Row of the long table behind each cell of the wide one; -1 leaves a cell empty.
    place = np.full(len(first) * len(names), -1, dtype=np.int64)
    known = np.flatnonzero(when < len(names))
    place[person[known] * len(names) + when[known]] = known
    for j, name in enumerate(names):
        at = place[j :: len(names)]
        found[name] = table.cells(long.state).take(pa.array(at, mask=at < 0))
    said = f"{table.description}, {table.n_rows} rows of {len(first)} ids"
    if len(known) < len(when):
        said += f", {len(when) - len(known)} of them at times that the study does not name"
    return dataclasses.replace(table, frame=pa.table(found), description=said, spellings={})


def wide_schema(table: Table, columns: Columns, site: SiteColumns) -> Table:
    """Return columns and types of `wide_table`, without rows: no cell is looked at.

    Raises
    ------
    StudyError, DataError
        The study has no sequence columns, or a column is not there.
    """
    if site.long is None:
        return table
    _check_names(table, columns, site.long)
    empty = {name: table.cells(name).slice(0, 0) for name in table.names}
    found = {name: empty[name] for name in (site.long.id, *_others(table, columns, site))}
    found |= {site.local(name): empty[site.long.state] for name in columns.sequence}
    return dataclasses.replace(table, frame=pa.table(found), spellings={})


def _check_names(table: Table, columns: Columns, long: LongColumns) -> None:
    if not columns.sequence:
        raise StudyError(
            "[columns] long is for studies with sequence columns, and this one has none: remove it"
        )
    for name in (long.id, long.time, long.state):
        if name not in table.names:
            raise _refusal(name, f"is not in {table.description}: correct [columns] long", "absent")


def _refusal(name: str, sentence: str, rule: str) -> DataError:
    return DataError(f"column {name!r} {sentence}", public=f"the site's long table: {rule}")


def _complete(table: Table, name: str, codes: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
    """Categories of a column that has a value in every row."""
    positions, texts = table.categories(name, codes)
    absent = np.flatnonzero(positions < 0)
    if len(absent):
        raise _refusal(
            name,
            f"has no value in {len(absent)} of {table.n_rows} rows{row_list(absent + 1)}: a long "
            "table needs id and time in every row",
            "rows without an id or a time",
        )
    return positions, texts


def _places(
    table: Table,
    time: str,
    codes: tuple[str, ...],
    names: Sequence[str],
    public: Sequence[str],
    person: IntArray,
    few: int,
) -> IntArray:
    """Sequence column of each row, by name or by number 1, 2, ...; other times have higher places.

    Refused where `few` ids have one and the same time that is no sequence column.
    """
    positions, texts = _complete(table, time, codes)
    found = [match(texts, tuple(given)) for given in (names, public)]
    if not any(is_number(name) for name in (*names, *public)):
        found.append(match(texts, tuple(str(j + 1) for j in range(len(names)))))
    # The way of naming times that explains most rows; a site may write names or numbers.
    best = max(found, key=lambda places: int((places[positions] >= 0).sum()))
    ids = np.unique(np.stack([positions, person]), axis=1)[0]
    many = np.bincount(ids, minlength=len(texts)) >= few
    unknown = np.flatnonzero(((best < 0) & many)[positions])
    if len(unknown):
        raise _refusal(
            time,
            f"holds times in {len(unknown)} rows{row_list(unknown + 1)} that are no sequence "
            f"column: write their names or the numbers 1 to {len(names)}, or leave these rows out",
            "times that are no sequence column",
        )
    return np.where(best < 0, len(names) + np.arange(len(texts)), best)[positions]


def _others(table: Table, columns: Columns, site: SiteColumns) -> list[str]:
    """Columns of the study, by their names in the table, that are none of the sequence."""
    others = (site.local(name) for name in columns.used() if name not in columns.sequence)
    return [name for name in others if name in table.names]


def _changing(table: Table, name: str, person: IntArray, first: IntArray, few: int) -> Mask:
    """Ids that have several values in a column; refused where there are `few` of them."""
    if not table.kind(name).startswith(_SINGLE):
        return np.zeros(len(first), dtype=bool)  # refused by its type when it is read
    values = table.categories(name)[0]
    moved = np.flatnonzero(values != values[first][person])
    changing = np.isin(np.arange(len(first)), person[moved])
    if changing.sum() >= few:
        raise _refusal(
            name,
            f"changes within an id{row_list(moved + 1)}: a column beside the states needs one "
            "value for each id, in all of its rows",
            "a column beside the states changes within an id",
        )
    return changing
