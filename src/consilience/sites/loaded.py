"""What became of a site's table: the prepared rows, and a report that stays at the site."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.protocol.method import SiteData


@dataclass(frozen=True)
class ColumnReport:
    """What was found in one column. Stays at the site.

    Attributes
    ----------
    name, local_name : str
        In the study and in the site's table.
    roles : tuple of str
    kind : str
        Type as it was read.
    missing : int
        Rows of the table without a value.
    foreign : tuple of str
        Values outside the declared levels, at most 20; where the site lists its levels, those of
        the list, whether the table has them or not.
    n_foreign : int
        Rows that hold one.
    n_odd : int
        Rows whose value counts as missing: it is not on offer, a level that few rows have, or no
        number in few rows.
    """

    name: str
    local_name: str
    roles: tuple[str, ...]
    kind: str
    missing: int
    foreign: tuple[str, ...] = ()
    n_foreign: int = 0
    n_odd: int = 0

    def about_odd(self) -> str:
        """Say how many values count as missing that are there."""
        return (
            f"Column {self.name}: {self.n_odd} values count as missing (not on offer, a level that "
            "few rows have, or no number)."
        )


@dataclass(frozen=True, eq=False)
class Report:
    """What became of a table, for the site itself. Never leaves it.

    Attributes
    ----------
    description, content_hash : str
    rows_read, rows_kept : int
    dropped_by : dict of str to int
        Dropped rows in which a column has no value; a row can count for several columns.
    columns : tuple of ColumnReport
    constant : tuple of str
        Prepared columns with one value only; they are kept.
    missing_ids, duplicate_ids : int
        Over rows, kept rows without an id and those whose id an earlier one has; over columns, the
        rows that were left out because of it (every row of a repeated id).
    dropped_rows : int array
        Positions in the table as it was read.
    dropped_ids : str array or None
    """

    description: str
    content_hash: str
    rows_read: int
    rows_kept: int
    dropped_by: dict[str, int]
    columns: tuple[ColumnReport, ...]
    constant: tuple[str, ...]
    missing_ids: int
    duplicate_ids: int
    dropped_rows: NDArray[np.int64]
    dropped_ids: NDArray[np.str_] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file of the site's own."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["columns"] = [dataclasses.asdict(column) for column in self.columns]
        plain["dropped_rows"] = self.dropped_rows.tolist()
        plain["dropped_ids"] = None if self.dropped_ids is None else self.dropped_ids.tolist()
        return plain

    def sentences(self) -> tuple[str, ...]:
        """The report in words."""
        said = [f"{self.rows_read} rows read, {self.rows_kept} kept ({self.description})."]
        said += [
            f"Column {name} has no value in {count} of the dropped rows."
            for name, count in self.dropped_by.items()
        ]
        for column in self.columns:
            if column.foreign:
                said.append(
                    f"Column {column.name}: {column.n_foreign} rows hold values outside the "
                    f"declared levels: {', '.join(column.foreign)}."
                )
            if column.n_odd:
                said.append(column.about_odd())
        said += [f"Column {name} holds one value only." for name in self.constant]
        if self.missing_ids:
            said.append(f"{self.missing_ids} rows have no id.")
        if self.duplicate_ids:
            said.append(f"{self.duplicate_ids} rows repeat an id.")
        return tuple(said)


Coding = Sequence[Any]
Prepared = Mapping[str, tuple[Coding, NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class Everyone:
    """All rows of a table, also those that a study leaves out; for the guard over runs.

    Attributes
    ----------
    content : callable
        Gives a number (n,) for what is in each row.
    names : tuple of str
        Columns of the table that were looked at.
    classes : (n,) int array
        By the study's target; all 0 where it has no levels.
    entity : (n,) str array or None
        Where the study names entities.
    prepared : mapping of str to (coding, (n,) array)
        By name of a prepared column: how it is made, and its values. A coding is the column that it
        is made from, the kind, values and levels of `encoding.Encoding`.
    earlier : callable
        Reads columns by their codings; raises `DataError` where one is no longer there.
    """

    content: Callable[[], NDArray[np.uint64]]
    names: tuple[str, ...]
    classes: NDArray[np.int64]
    entity: NDArray[np.str_] | None = None
    prepared: Prepared = field(default_factory=dict)
    earlier: Callable[[Mapping[str, Coding]], Prepared] = lambda codings: {}


AllRows = Callable[[tuple[str, ...]], Everyone]
"""Gives all rows by what is in some columns; in all, where none are named."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """Prepared rows and what became of the table."""

    data: SiteData
    report: Report
    everyone: AllRows | None = None


def constant_columns(data: SiteData) -> tuple[str, ...]:
    """Prepared columns that hold one value; NaN is no value."""
    low = np.fmin.reduce(data.features, axis=0)
    high = np.fmax.reduce(data.features, axis=0)
    return tuple(np.asarray(data.feature_names, dtype=object)[low == high])
