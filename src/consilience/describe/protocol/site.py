"""Messages of a description, and what a site does: count, sum and bin its columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.describe.kernels import SPACING, common_first, common_gaps, cuts_to_tell
from consilience.exceptions import DataError
from consilience.numerics.row_units import times_of
from consilience.parameters import Allowed, allows, is_number
from consilience.protocol.method import EDGES, SiteContext, SiteData, State, step
from consilience.wire.codec import digest
from consilience.wire.disclosure import Released, aggregate, count, counted
from consilience.wire.message import Aggregate, Public, message, states
from consilience.wire.moment_facts import Coded, moment_facts, unsafe_columns

# --- What a site told of its rows by bins, over all runs, and the edges that it may tell now.

_SEPARATOR = "\x1f"
"""Between the parts of a name under which edges are kept."""


class Memory:
    """What a site told of its rows, over all runs, that later ones must go with.

    Attributes
    ----------
    rows : str
        Digest of the rows of this run; empty where a site knows none again.
    others : bool
        Whether bins were told of other rows.
    told : dict of str to list of float
        Edges that were told, by column.
    """

    def __init__(self, rows: str, row_set: int, order: IntArray, kept: Mapping[str, Any]) -> None:
        self.rows, self._order, self._number = rows, order, row_set
        self._binned, self._row_set = str(kept.get("rows", "")), int(kept.get("row_set", -1))
        self.others = self._binned not in ("", rows)
        self.told, self._tried = (
            {name: list(edges) for name, edges in dict(kept.get(part, {})).items()}
            for part in ("told", "tried")
        )
        self._gaps: dict[str, dict[str, bytes]] = dict(kept.get("gaps", {}))

    def has_bins(self, time: str) -> bool:
        """Whether edges of a column were told, without regard to events."""
        return bool(self.told.get(time))

    def has_curve(self, time: str) -> bool:
        """Whether a curve of a time was told."""
        return any(name.split(_SEPARATOR)[0] == time for name in self.told if _SEPARATOR in name)

    @classmethod
    def of(cls, data: SiteData, site: SiteContext) -> Memory:
        """What was kept of the data set, to be asked of the rows of this run."""
        marks = np.arange(data.n_rows) if data.marks is None else data.marks
        rows = "" if data.marks is None else digest(np.sort(marks).tobytes())
        number = -1 if data.other_runs is None else data.other_runs.row_set
        return cls(rows, number, np.argsort(marks), site.kept or {})

    def gaps(self, names: Sequence[str], missing: BoolArray, least: int) -> BoolArray:
        """Rows that count as without a value, as they did in earlier runs on these rows."""
        own, n = dict(self._gaps.get(self.rows, {})), len(missing)
        packed = list(dict.fromkeys(own.values()))
        told = []
        for line in packed:
            rows = np.zeros(n, dtype=bool)
            bits = np.unpackbits(np.frombuffer(line, dtype=np.uint8), count=n)
            rows[self._order] = bits.astype(bool)
            told.append(rows)
        before = [packed.index(own[name]) if name in own else -1 for name in names]
        found = common_gaps(missing, least, told, before)
        for name, rows in zip(names, found.T, strict=True):
            if rows.any() and self.rows:
                own.setdefault(name, np.packbits(rows[self._order]).tobytes())
        if own:
            self._gaps = {**self._gaps, self.rows: own}
        return found

    def apart(self, name: str, edges: FloatArray, sd: float) -> FloatArray:
        """Edges that are told already, or far enough from all that were asked for."""
        tried, found = list(self._tried.get(name, [])), []
        for edge in edges:
            near = [abs(edge - other) for other in tried]
            if edge in tried or not near or min(near) >= SPACING * sd * (1 - 1e-9):
                found.append(edge)
                tried.append(edge)
        self._tried[name] = sorted({float(edge) for edge in tried})
        return np.asarray(found, dtype=float)

    def leaves_few(self, name: str, values: FloatArray, least: int) -> bool:
        """Whether edges that were told leave a bin of few: not while rows and values are theirs."""
        told = self.told.get(name, [])
        if least <= 1 or not told:  # where one record may be told of, a bin may be empty
            return False
        below = np.searchsorted(np.sort(values), told, side="left")
        return int(np.diff(below, prepend=0, append=len(values)).min()) < least

    def parts(
        self, of: tuple[str, ...], rows: Sequence[BoolArray], least: int
    ) -> list[tuple[str, ...]] | None:
        """Names of the parts of a curve, whatever levels are called; None if another one was told.

        Parameters
        ----------
        of : tuple of str
            Time, event, and grouping if there is one.
        rows : sequence of (n,) bool arrays
            Of each part.
        least : int
            Where one record may be told of, other curves do not matter.
        """
        names = [(*of, digest(np.packbits(part[self._order]).tobytes())) for part in rows]
        told = {tuple(name.split(_SEPARATOR)) for name in self.told if _SEPARATOR in name}
        before = {one for one in told if one[0] == of[0]}
        return names if least <= 1 or before <= set(names) else None

    def cuts(
        self,
        of: tuple[str, ...],
        values: FloatArray,
        edges: FloatArray,
        parted: bool,
        room: int,
        site: SiteContext,
    ) -> list[float] | None:
        """Edges that are told of some values, and noted; None where no bins are.

        Parameters
        ----------
        of : tuple of str
            A column; or a part of a curve.
        values : (n,) array
        edges : (e,) array
            In the order in which they are tried.
        parted : bool
            Whether other runs told of some of the rows only.
        room : int
            Further edges that may be told.
        site : SiteContext
        """
        least, name = site.limits.min_records, _SEPARATOR.join(of)
        if self.others or self.leaves_few(name, values, least):
            return None
        before, cuts = self.told.get(name, []), list(edges)
        if parted:
            wanted = edges[np.isin(edges, before)]
        else:
            wanted = self.apart(name, edges, float(values.std())) if least > 1 else edges
        if least > 1:
            cuts = cuts_to_tell(
                values,
                wanted,
                least=least,
                max_share=site.limits.max_share,
                told=before,
                most=len(before) + room,
            )
        self.add(name, edges, cuts)
        return None if parted and not len(cuts) else cuts

    def add(self, name: str, edges: FloatArray, cuts: Sequence[float]) -> None:
        """Note what is told now."""
        self._binned, self._row_set = self.rows, self._number
        told = set(self.told.get(name, [])) | {float(cut) for cut in cuts if cut in edges}
        self.told[name] = sorted(told)

    def keep(self, site: SiteContext) -> None:
        """Keep it, for all later runs."""
        if not self.rows:
            return
        plain = {
            part: {name: tuple(edges) for name, edges in of.items()}
            for part, of in (("told", self.told), ("tried", self._tried))
        }
        bins = {"rows": self._binned, "row_set": self._row_set, **plain}
        site.keep({**bins, "gaps": self._gaps})


_MOST_ROWS = float(1 << 40)
MOST_EDGES = 200
"""Edges that a study may name for one column."""


def _are_edges(value: object) -> bool:
    if not (isinstance(value, list | tuple) and 0 < len(value) <= MOST_EDGES):
        return False
    return all(map(is_number, value)) and bool((np.diff(np.asarray(value, float)) > 0).all())


BINS = Allowed(
    lambda v: isinstance(v, Mapping) and all(map(_are_edges, v.values())),
    f"for each column 1 to {MOST_EDGES} ascending numbers",
)
TABLES = Allowed(
    lambda v: (
        isinstance(v, list | tuple)
        and all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and pair[0] != pair[1]
            and all(isinstance(name, str) for name in pair)
            for pair in v
        )
    ),
    "a list of pairs of different columns",
)

CURVES = Allowed(
    lambda v: (
        isinstance(v, list | tuple)
        and all(
            isinstance(one, list | tuple)
            and len(one) in (2, 3)
            and all(isinstance(name, str) for name in one)
            and len(set(one)) == len(one)
            for one in v
        )
    ),
    "a list of a time and its event, each with a category whose levels are groups, or without one",
)
EVENT = "the event of a curve must be 0 or 1 in each row, or of two declared levels"


@dataclass(frozen=True)
class Settings:
    """What travels with each question, and is compared with an approved study.

    Attributes
    ----------
    bins : mapping of str to sequence of float
    tables : sequence of (str, str)
    curves : sequence of (str, str) or (str, str, str)
    """

    bins: Mapping[str, Sequence[float]] = allows(BINS)
    tables: Sequence[Sequence[str]] = allows(TABLES)
    curves: Sequence[Sequence[str]] = allows(CURVES)


@message("describe/request", version=2)
class Request:
    """Ask for numbers of rows, moments, levels and tables."""

    settings: Settings = states(Settings)
    numbers: tuple[str, ...] = Public("q", "columns of numbers", kind="str", to="all")
    categories: tuple[str, ...] = Public("k", "columns with levels", kind="str", to="all")
    sizes: IntArray = Public("k", "levels of each", kind="int", to="all", low=2, high=10_000)

    def lengths(self) -> dict[str, int]:
        """Levels with one for missing values each, and cells of the tables."""
        sizes = dict(zip(self.categories, (int(size) + 1 for size in self.sizes), strict=True))
        cells = sum(sizes[a] * sizes[b] for a, b in self.settings.tables)
        return {"v": sum(sizes.values()), "c": cells}


@message("describe/sums", version=1)
class Sums:
    """What a site tells of its columns; NaN where it withholds something."""

    n: Released = Aggregate("", "rows", kind="int", low=0, high=_MOST_ROWS)
    known: Released = Aggregate(
        "q",
        "rows with a value; all rows where fewer than min_records values are missing",
        gaps=True,
        low=0,
        high=_MOST_ROWS,
    )
    means: Released = Aggregate("q", "means", gaps=True)
    spreads: Released = Aggregate("q", "mean squared deviations from the mean", gaps=True, low=0)
    levels: Released = Aggregate(
        "v",
        "rows of each level, then those without a value; none where they are few",
        gaps=True,
        low=0,
        high=_MOST_ROWS,
    )
    tables: Released = Aggregate(
        "c", "rows of each cell, those without a value last", gaps=True, low=0, high=_MOST_ROWS
    )

    def check(self, request: Request, known: Mapping[str, Any]) -> str | None:
        """Columns and tables come whole, and counts are counts of the same rows."""
        n = self.n.value
        gaps = [np.isnan(one.value) for one in (self.known, self.means, self.spreads)]
        if not ((gaps[0] == gaps[1]) & (gaps[0] == gaps[2])).all():
            return "a column of which something is withheld and something told"
        if (self.known.value > n).any():
            return "more rows with a value than there are"
        for name, counts in split(self.levels.value, [int(s) + 1 for s in request.sizes]):
            whole = (counts == np.floor(counts)) | np.isnan(counts)
            if not whole.all() or np.nansum(counts) > n:
                return f"category {name} has levels of other rows"
        for name, cells in split(self.tables.value, cells_of(request)):
            if np.isnan(cells).any() and not np.isnan(cells).all():
                return f"table {name} has some cells and lacks others"
            if not np.isnan(cells).any() and cells.sum() != n:
                return f"table {name} is of other rows"
        return None


@message("describe/edges", version=2)
class Edges:
    """Edges of bins; each column of numbers has some of them, or none."""

    settings: Settings = states(Settings)
    numbers: tuple[str, ...] = Public("q", "columns of numbers", kind="str", to="all")
    sizes: IntArray = Public(
        "q", "edges of each", kind="int", to="all", low=0, high=float(MOST_EDGES)
    )
    groups: IntArray = Public("w", "groups of each curve", kind="int", to="all", low=1, high=10_000)
    edges: Released = Aggregate("e", "edges, column by column, ascending", to="all")

    def lengths(self) -> dict[str, int]:
        """Bins between, below and above the edges, and those of curves."""
        bins = sum(int(size) + 1 for size in self.sizes if size)
        return {"b": bins, "h": sum(self.cells_of_curves())}

    def cells_of_curves(self) -> list[int]:
        """Bins of each curve: of its groups those with an event, then those without."""
        sizes = dict(zip(self.numbers, self.sizes, strict=True))
        return [
            2 * int(groups) * (int(sizes[time]) + 1)
            for (time, *_), groups in zip(self.settings.curves, self.groups, strict=True)
        ]


@message("describe/bins", version=2)
class Bins:
    """Rows from each edge up to the next; a gap joins the bin before it."""

    counts: Released = Aggregate(
        "b", "rows in each bin; a gap joins the one before", gaps=True, low=0, high=_MOST_ROWS
    )
    ended: Released = Aggregate(
        "h",
        "rows in each bin of times, by group, with an event and without; gaps as above",
        gaps=True,
        low=0,
        high=_MOST_ROWS,
    )

    def check(self, request: Edges, known: Mapping[str, Any]) -> str | None:
        """A column has a first bin, and all its rows are in some bin; or it has none."""
        rows = [r for r, size in zip(known["rows"], request.sizes, strict=True) if size]
        parts = split(self.counts.value, [int(size) + 1 for size in request.sizes if size])
        for (name, counts), n in zip(parts, rows, strict=True):
            if np.isnan(counts).all():
                continue
            if np.isnan(counts[0]) or np.isnan(n) or np.nansum(counts) != n:
                return f"column {name} has bins of other rows"
        rows_of = dict(zip(request.numbers, known["rows"], strict=True))
        sizes = dict(zip(request.numbers, request.sizes, strict=True))
        parts = split(self.ended.value, request.cells_of_curves())
        for (i, counts), (time, *_) in zip(parts, request.settings.curves, strict=True):
            if np.isnan(counts).all():
                continue
            firsts = counts[:: int(sizes[time]) + 1]
            if np.isnan(firsts).any() or np.nansum(counts) > rows_of[time]:
                return f"curve {i} is of other rows"
        return None


def split(line: Any, sizes: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """Parts of an array, numbered from 1."""
    ends = np.cumsum([0, *sizes])
    for i, (start, end) in enumerate(itertools.pairwise(ends), start=1):
        yield i, line[start:end]


def cells_of(request: Request) -> list[int]:
    """Cells of each table."""
    sizes = dict(zip(request.categories, (int(size) + 1 for size in request.sizes), strict=True))
    return [sizes[a] * sizes[b] for a, b in request.settings.tables]


# --------------------------------------------------------------------------- at a site


@dataclass(frozen=True, eq=False)
class _Rows:
    """Columns of a site as they are told.

    Attributes
    ----------
    numbers : (n, q) array
        NaN where a row counts as without a value. Few others without one have the median, so that
        what is told is what a table without missing values would tell.
    number_names, category_names : tuple of str
    levels : list of (n, L + 1) arrays
        0/1 columns of the levels of each category, and of rows without a value. All 0 in rows whose
        level the site keeps back.
    whole : list of bool
        Whether each category has all its levels.
    """

    numbers: FloatArray
    number_names: tuple[str, ...]
    category_names: tuple[str, ...]
    levels: list[FloatArray]
    whole: list[bool]


def _rows_of(data: SiteData, least: int, memory: Memory) -> _Rows:
    """Columns by kind, with missing values as they are told, now and in earlier runs."""
    x = data.features
    coded = {j for group in data.coded for j in group.columns}
    places = [j for j in range(x.shape[1]) if j not in coded]
    groups = [list(group.columns) for group in data.coded]
    missing = [np.isnan(x[:, j]) for j in places] + [np.isnan(x[:, g]).any(axis=1) for g in groups]
    absent = np.stack(missing, axis=1) if missing else np.zeros((len(x), 0), dtype=bool)
    by_level = {tuple(f"{c}={v}" for v in vs): c for c, vs in data.levels.items()}
    number_names = tuple(data.feature_names[j] for j in places)
    category_names = tuple(
        by_level.get(tuple(data.feature_names[j] for j in group), "") for group in groups
    )
    gaps, q = memory.gaps((*number_names, *category_names), absent, least), len(places)
    levels = []
    for group, lacks, absent_here in zip(groups, gaps[:, q:].T, absent[:, q:].T, strict=True):
        part = (x[:, group] == 1).astype(float)
        filled = absent_here & ~lacks
        part[filled, int(part.sum(axis=0).argmax())] = 1.0
        part[lacks] = 0.0
        levels.append(np.column_stack([part, lacks]))
    # The table itself where nothing is missing or filled: a copy of a long one takes much memory.
    numbers = x if q == x.shape[1] else x[:, places]
    if absent[:, :q].any() or gaps[:, :q].any():
        numbers = np.where(gaps[:, :q], np.nan, numbers)
    numbers = np.ascontiguousarray(numbers)
    for j, filled in enumerate((absent & ~gaps)[:, :q].T):
        if filled.any():
            there = np.sort(numbers[~filled & ~gaps[:, j], j])
            numbers[filled, j] = there[(len(there) - 1) // 2] if len(there) else 0.0
    return _Rows(
        numbers=numbers,
        number_names=number_names,
        category_names=category_names,
        levels=levels,
        whole=[group.whole for group in data.coded],
    )


def _moments(rows: _Rows, site: SiteContext) -> tuple[tuple[Released, ...], BoolArray]:
    """Rows with a value, means and spreads of the numbers, and which of them are withheld."""
    x, limits = rows.numbers, site.limits
    missing = np.array([np.isnan(column).sum() for column in x.T], dtype=np.int64)
    ones = np.where(np.isnan(x), np.nan, 1.0) if missing.any() else np.broadcast_to(1.0, x.shape)
    known, means = aggregate(ones), aggregate(x, mean=True)
    with np.errstate(over="ignore"):  # an infinite sum is no release
        spreads = aggregate(x, mean=True, about=means.value)
    unsafe = unsafe_columns(x, limits=limits) | (len(x) - missing < limits.min_records)
    for released in (known, means, spreads):
        unsafe = unsafe | np.isnan(released.withhold_unsafe(limits).value)
    return tuple(one.withhold(unsafe) for one in (known, means, spreads)), np.asarray(unsafe)


def remembered(message: Request | Edges, data: SiteData) -> str | None:
    """Where a site keeps what it told; nowhere if it knows no row again."""
    return None if data.marks is None else EDGES


@step("sums", once=True, keeps=remembered)
def sums(message: Request, data: SiteData, state: State, site: SiteContext) -> tuple[Sums, State]:
    """Count, and sum the columns of numbers."""
    reply, memory = summed(message, data, site)
    memory.keep(site)
    return reply, state


def summed(message: Request, data: SiteData, site: SiteContext) -> tuple[Sums, Memory]:
    """Return what the site tells of its columns, and what it has to keep if it does."""
    memory = Memory.of(data, site)
    rows = _rows_of(data, site.limits.min_records, memory)
    own = (rows.number_names, rows.category_names, [part.shape[1] - 1 for part in rows.levels])
    if own != (message.numbers, message.categories, [int(size) for size in message.sizes]):
        raise DataError(
            f"the study describes {message.numbers + message.categories} and prepares "
            f"{data.feature_names}: code categories by 'onehot', without indicators",
            public="the columns are not those of the description",
        )
    (known, means, spreads), unsafe = _moments(rows, site)
    for name in np.array(rows.number_names)[unsafe]:
        site.note(f"Nothing of column {name} is told: too few rows differ, or one outweighs all.")
    levels, hidden = _levels(rows, site)
    reply = Sums(
        n=count(data.n_rows),
        known=known,
        means=means,
        spreads=spreads,
        levels=levels.withhold(np.concatenate([*hidden, np.zeros(0, dtype=bool)])),
        tables=_tables(rows, message.settings.tables, hidden, site),
    )
    return reply, memory


def _behind(cells: IntArray, size: int) -> IntArray:
    """Rows in each cell, without those of cell -1."""
    return np.bincount(cells[cells >= 0], minlength=size)


def _all(counts: Sequence[IntArray]) -> Released:
    """Release the rows in the cells of all columns, one column after the other."""
    return counted(np.concatenate([*counts, np.zeros(0, dtype=np.int64)]))


def _levels(rows: _Rows, site: SiteContext) -> tuple[Released, list[BoolArray]]:
    """Rows of all levels, and which levels of each category may not be told."""
    counts, hidden = [], []
    for part, whole, name in zip(rows.levels, rows.whole, rows.category_names, strict=True):
        placed = part.sum(axis=1) == 1
        counts.append(_behind(np.where(placed, part.argmax(axis=1), -1), part.shape[1]))
        lacks = part[:, -1].any()
        judged = part if lacks else part[:, :-1]
        coded = [Coded(tuple(range(judged.shape[1])), whole)]
        unsafe = np.zeros(judged.shape[1], dtype=bool)
        if site.limits.min_records > 1:
            unsafe = unsafe_columns(judged, limits=site.limits, coded=coded)
        if (part[:, -1] == 0).sum() < site.limits.min_records:
            unsafe[:] = True
        # No row without a value is told as 0, like few of them.
        hidden.append(unsafe if lacks else np.append(unsafe, False))
        if unsafe.any():
            site.note(f"Some levels of {name} are not told: few rows have them, or would follow.")
    return _all(counts), hidden


def _tables(
    rows: _Rows, pairs: Sequence[Sequence[str]], hidden: Sequence[BoolArray], site: SiteContext
) -> Released:
    """Rows in the cells of tables, each whole or not at all."""
    of = {name: i for i, name in enumerate(rows.category_names)}
    least, asked = site.limits.min_records, sorted({of[name] for pair in pairs for name in pair})
    told = {
        i: rows.levels[i] if rows.levels[i][:, -1].any() else rows.levels[i][:, :-1] for i in asked
    }
    ends = dict(
        zip(
            asked,
            itertools.pairwise(np.cumsum([0, *(p.shape[1] for p in told.values())])),
            strict=True,
        )
    )
    unsafe = None
    if least > 1 and asked:
        coded = [Coded(tuple(range(*ends[i])), rows.whole[i]) for i in asked]
        unsafe = moment_facts(
            np.hstack(list(told.values())), limits=site.limits, coded=coded
        ).unsafe
    counts, masks = [], []
    for pair in pairs:
        a, b = (of[name] for name in pair)
        first, second = rows.levels[a], rows.levels[b]
        size = first.shape[1] * second.shape[1]
        placed = (first.sum(axis=1) == 1) & (second.sum(axis=1) == 1)
        where = first.argmax(axis=1) * second.shape[1] + second.argmax(axis=1)
        counts.append(_behind(np.where(placed, where, -1), size))
        few = unsafe is not None and bool(unsafe[slice(*ends[a]), slice(*ends[b])].any())
        stays = few or not placed.all() or bool(hidden[a].any() | hidden[b].any())
        # What products tell is compared with other runs only for methods that tell no more.
        stays = stays or (least > 1 and not site.foreign_models)
        masks.append(np.full(size, stays))
        if stays:
            site.note(f"The table of {pair[0]} and {pair[1]} stays here.")
    return _all(counts).withhold(np.concatenate([*masks, np.zeros(0, dtype=bool)]))


@step("bins", once=True, keeps=remembered)
def count_bins(
    message: Edges, data: SiteData, state: State, site: SiteContext
) -> tuple[Bins, State]:
    """Count the rows between edges."""
    reply, memory = binned(message, data, site)
    memory.keep(site)
    return reply, state


def binned(
    message: Edges, data: SiteData, site: SiteContext, some: bool = False
) -> tuple[Bins, Memory]:
    """Return the rows between edges, and what the site has to keep if it tells them.

    With `some`, edges of the study may be missing.
    """
    least = site.limits.min_records
    memory = Memory.of(data, site)
    rows = _rows_of(data, least, memory)
    if rows.number_names != message.numbers:
        raise DataError(
            f"the study bins {message.numbers} and the numbers are {rows.number_names}",
            public="the columns are not those of the description",
        )
    _, unsafe = _moments(rows, site)
    if memory.others:
        site.note("No bins are told: earlier runs told some of other rows.")
    parted = data.other_runs is not None and data.other_runs.parted
    if parted and not memory.others:
        site.note("No further bins are told: other runs told of some of the rows only.")
    sizes = [int(size) for size in message.sizes]
    of_curves = {time for time, *_ in message.settings.curves} if least > 1 else set()
    room = _room(message, data, memory, site)
    counts, masks = [], []
    for j, edges in split(message.edges.value, sizes):
        name, x = rows.number_names[j - 1], rows.numbers[:, j - 1]
        if not len(edges):
            continue
        stated = message.settings.bins.get(name)
        if not (np.diff(edges) > 0).all() or (
            stated is not None
            and not (np.isin(edges, stated).all() and (some or len(edges) == len(stated)))
        ):
            raise DataError(
                f"edges of {name} are not ascending, or not those of the study",
                public="edges of bins that do not go with the study",
            )
        values = x[~np.isnan(x)]
        told = None
        if not (unsafe[j - 1] or name in of_curves or memory.has_curve(name)):
            told = memory.cuts((name,), values, edges, parted, room, site)
        withheld, cuts = told is None, told or []
        known = np.isin(edges, cuts)
        heads = np.concatenate([[0], np.flatnonzero(known) + 1])
        place = heads[np.searchsorted(edges[known], x, side="right")]
        counts.append(_behind(np.where(np.isnan(x) | withheld, -1, place), len(edges) + 1))
        masks.append(np.concatenate([[False], ~known]) | withheld)
    ended = _ended(message, rows, unsafe, memory, parted, room, site)
    told_counts = _all(counts).withhold(np.concatenate([*masks, np.zeros(0, dtype=bool)]))
    return Bins(counts=told_counts, ended=ended), memory


def _room(message: Edges, data: SiteData, memory: Memory, site: SiteContext) -> int:
    """Edges that may still be told, by column: each counts as one of those that the rows may tell.

    At most half are edges, so that runs to come may tell something, too.
    """
    runs, p = data.other_runs, data.features.shape[1]
    joint, alone = (0, p) if runs is None else (runs.joint, runs.alone)
    left = site.limits.columns_left(data.n_rows, joint, alone)
    half = site.limits.columns_for(data.n_rows, products=False) // 2
    room = max(min(left, half) - sum(map(len, memory.told.values())), 0)
    lines = sum(int(size) > 0 for size in message.sizes) + 2 * int(message.groups.sum())
    return int(room // max(lines, 1))


def _ended(
    message: Edges,
    rows: _Rows,
    unsafe: BoolArray,
    memory: Memory,
    parted: bool,
    room: int,
    site: SiteContext,
) -> Released:
    """Rows in the bins of the times of all curves, each curve whole or not at all."""
    parts = split(message.edges.value, [int(size) for size in message.sizes])
    edges_of = dict(zip(message.numbers, (part for _, part in parts), strict=True))
    counts, masks = [], []
    sizes, few = message.cells_of_curves(), site.limits.min_records
    of_curves = zip(message.settings.curves, message.groups.tolist(), sizes, strict=True)
    for curve, groups, size in of_curves:
        time = curve[0]
        edges, x = edges_of[time], rows.numbers[:, rows.number_names.index(time)]
        kind, group = _kinds(rows, curve, groups)
        known = ~np.isnan(x) & (kind >= 0) & (group >= 0)
        mask, place = np.ones((groups, 2, len(edges) + 1), dtype=bool), np.full(len(x), -1)
        told = not _stays(message, rows, curve, unsafe, memory, known, site)
        if told:
            times_of(x[known])
        among = {
            k: common_first(
                [x[known & (kind == k) & (group == g)] for g in range(groups)], edges, few
            )
            for k in (0, 1)
        }
        places = list(itertools.product(range(groups), (0, 1)))
        people = [known & (group == g) & (kind == k) for g, k in places]
        # Bins of another curve of the time, beside those of this one, could tell of few.
        names = memory.parts(tuple(curve), people, few) if told else None
        told = names is not None
        for (g, k), of, own in zip(places, names or (), people, strict=False):
            if not told:
                break
            cuts = memory.cuts(of, x[own], among[k], parted, room, site)
            told = cuts is not None
            heads = np.isin(edges, cuts or [])
            firsts = np.concatenate([[0], np.flatnonzero(heads) + 1])
            bins = firsts[np.searchsorted(edges[heads], x[own], side="right")]
            place[own] = np.ravel_multi_index((g, k, bins), mask.shape)
            mask[g, k] = np.concatenate([[False], ~heads])
        if not told:
            site.note(f"The curve of {' and '.join(curve)} stays here.")
            mask[:], place[:] = True, -1
        counts.append(_behind(place, size))
        masks.append(mask.ravel())
    return _all(counts).withhold(np.concatenate([*masks, np.zeros(0, dtype=bool)]))


def _kinds(rows: _Rows, curve: Sequence[str], groups: int) -> tuple[IntArray, IntArray]:
    """Whether an event ended each row, 0, or none did, 1, and its group; -1 where not known."""
    _, event, *by = curve
    if event in rows.category_names:
        part = rows.levels[rows.category_names.index(event)]
        kind = np.select([part[:, 1] == 1, part[:, 0] == 1], [0, 1], -1)
    else:
        y = rows.numbers[:, rows.number_names.index(event)]
        if not ((y == 0) | (y == 1) | np.isnan(y)).all():
            raise DataError.shared(EVENT)
        kind = np.select([y == 1, y == 0], [0, 1], -1)
    group = np.zeros(len(kind), dtype=np.int64)
    if by:
        part = rows.levels[rows.category_names.index(by[0])]
        if part.shape[1] - 1 != groups:
            raise DataError("a curve of other groups", public="a curve of other groups")
        group = np.where(part[:, :-1].any(axis=1), part.argmax(axis=1), -1)
    return kind, group


def _stays(
    message: Edges,
    rows: _Rows,
    curve: Sequence[str],
    unsafe: BoolArray,
    memory: Memory,
    known: BoolArray,
    site: SiteContext,
) -> bool:
    """Whether a site that protects records keeps a curve back before it looks at the times."""
    time, event, *by = curve
    if site.limits.min_records <= 1:
        return not known.any()
    if by and not site.foreign_models:  # as tables
        return True
    numbers = [name for name in (time, event) if name in rows.number_names]
    if any(unsafe[rows.number_names.index(name)] for name in numbers) or not known.all():
        return True
    if memory.has_bins(time):
        return True
    parts, coded, ends, at = [], [], {}, 0
    for name in sorted(
        {n for _, *ns in message.settings.curves for n in ns}
        | {n for pair in message.settings.tables for n in pair}
    ):
        if name in rows.category_names:
            i = rows.category_names.index(name)
            part, whole = rows.levels[i], rows.whole[i]
            part = part if part[:, -1].any() else part[:, :-1]
        else:
            y = rows.numbers[:, rows.number_names.index(name)]
            part, whole = np.column_stack([y == 1, y == 0]).astype(float), True
        parts.append(part)
        ends[name] = slice(at, at := at + part.shape[1])
        coded.append(Coded(tuple(range(ends[name].start, at)), whole))
    facts = moment_facts(np.hstack(parts), limits=site.limits, coded=coded).unsafe
    return bool(facts[ends[event], ends[by[0] if by else event]].any())
