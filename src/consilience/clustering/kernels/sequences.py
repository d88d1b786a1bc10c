"""Sequences of coded states, of unequal length, with gaps.

A sequence is what was seen at successive time points: states 0 to S - 1, or -1 where nothing was
seen. What was not seen after the last state says nothing and is dropped; what was not seen before
or between states is a gap, and the time points of a gap count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.row_units import numbers_of
from consilience.parameters import is_whole

CodeArray = NDArray[np.int32]
LONGEST_GAP = 1000
"""Unseen time points in a row. EM multiplies matrices for each one up to the longest gap, and after
so many steps most chains have forgotten their state: a longer gap costs much and says little."""
NO_STATE = "X contains infinity, which is no state: leave a cell empty where nothing was seen"
_EXACT = 2**53
"""Whole numbers up to this one are exact, also as floating-point numbers."""
_NO_TIME = "a time is missing: say when each row was, or leave the row out"
_NOT_TIMES = "times must be numbers or dates, all of one kind"


def _strangers(count: int, names: Sequence[Any]) -> DataError:
    """Sentence on cells with states that are not known."""
    cells = "1 cell holds" if count == 1 else f"{count} cells hold"
    known = "the 1 known state" if len(names) == 1 else f"one of the {len(names)} known states"
    what = "it" if count == 1 else "them"
    return DataError(f"{cells} a state that is not {known}: correct {what}, or declare the state")


def check_gaps(unseen: IntArray) -> None:
    """Refuse gaps that are longer than `LONGEST_GAP`.

    Parameters
    ----------
    unseen : array of int
        Lengths of gaps, in time points.

    Raises
    ------
    DataError
    """
    longest = int(unseen.max(initial=0))
    if longest > LONGEST_GAP:
        raise DataError(
            f"a sequence has {longest:,} unseen time points in a row, more than {LONGEST_GAP:,}, "
            "which is too long: count time in longer steps, split the sequence there, or read the "
            "times of a long table as an order only (gaps=False)"
        )


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of coded states, one after the other.

    Attributes
    ----------
    codes : (total,) array of int32
        States 0 to S - 1; -1 where nothing was seen.
    offsets : (n + 1,) array of int64
        Where each sequence begins, and the end of the last one.
    n_states : int
        S, the size of the alphabet; not every state need occur.
    weights : (n,) array of float, optional
        How many sequences each one stands for, 0 or more.
    states : tuple of S names, optional
        What the codes stand for.
    ids : (n,) array, optional
        Whose sequence it is.

    Raises
    ------
    DataError
        The arrays do not fit together, or a code is not in the alphabet.
    """

    codes: CodeArray
    offsets: IntArray
    n_states: int
    weights: FloatArray | None = None
    states: tuple[Any, ...] | None = None
    ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        size = self.n_states
        if not is_whole(size) or size < 1:
            raise ParameterError.of("n_states", "an integer of at least 1", size)
        if self.states is not None:
            if len(self.states) != size or len(set(self.states)) != size:
                raise DataError("every state of the alphabet needs one name of its own")
            object.__setattr__(self, "states", tuple(self.states))
        codes, offsets = _whole("codes", self.codes), _whole("offsets", self.offsets)
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(codes):
            raise DataError("offsets must lead from 0 to the number of codes")
        if (np.diff(offsets) < 0).any():
            raise DataError("offsets must not decrease")
        if len(codes) and (codes.min() < -1 or codes.max() >= size):
            raise DataError(f"a sequence holds a code outside -1 to {size - 1}")
        object.__setattr__(self, "n_states", int(size))
        object.__setattr__(self, "codes", codes.astype(np.int32, copy=False))
        object.__setattr__(self, "offsets", offsets)
        n = len(offsets) - 1
        if self.weights is not None:
            weights = numbers_of("weights", self.weights)
            if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any():
                raise DataError("weights must be finite and at least 0, one for each sequence")
            object.__setattr__(self, "weights", weights)
        if self.ids is not None and np.shape(self.ids) != (n,):
            raise DataError("ids must be one for each sequence")

    # ------------------------------------------------------------------ ways in

    @classmethod
    def of(
        cls,
        wide: ArrayLike,
        n_states: int | None = None,
        *,
        weights: ArrayLike | None = None,
        states: Iterable[Any] | None = None,
        ids: NDArray[Any] | None = None,
    ) -> Sequences:
        """Sequences from a table of codes, one row per sequence and one column per time point.

        Parameters
        ----------
        wide : (n, t) array of int
            -1 is missing; what is missing at the end of a row is no part of the sequence.
        n_states : int, optional
            By default as many as there are names, or one more than the largest code.
        weights, states, ids
            As in the attributes.
        """
        table = np.asarray(wide)
        if table.ndim != 2 or (table.size and table.dtype.kind not in "iu"):
            raise DataError("codes must be a two-dimensional array of whole numbers")
        names = None if states is None else _listed(states)
        if n_states is None:
            n_states = max(int(table.max(initial=-1)) + 1, 1) if names is None else len(names)
        seen = table >= 0
        if len(table) and table.shape[1]:
            ends = np.where(seen.any(axis=1), table.shape[1] - seen[:, ::-1].argmax(axis=1), 0)
        else:
            ends = np.zeros(len(table), dtype=np.int64)
        inside = np.arange(table.shape[1]) < ends[:, None]
        offsets = np.concatenate([[0], np.cumsum(ends, dtype=np.int64)])
        counted: Any = weights
        return cls(table[inside], offsets, n_states, counted, names, ids)

    @classmethod
    def from_lists(
        cls,
        lists: Iterable[Iterable[Any]],
        states: Iterable[Any] | None = None,
        *,
        weights: ArrayLike | None = None,
        ids: NDArray[Any] | None = None,
    ) -> Sequences:
        """Sequences from one list of states each.

        Parameters
        ----------
        lists : iterable of iterables
            States are numbers or texts; None and NaN are missing.
        states : iterable, optional
            The alphabet in order; by default what occurs, sorted.
        weights, ids
            As in the attributes.

        Raises
        ------
        DataError
            A state is not in the alphabet.
        """
        parts = [list(each) for each in lists]
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in parts], dtype=np.int64)])
        codes, names = coded(list(chain.from_iterable(parts)), states)
        counted: Any = weights
        return cls(codes, offsets, len(names), counted, names, ids).trimmed()

    @classmethod
    def from_long(
        cls,
        ids: ArrayLike,
        times: ArrayLike,
        state: ArrayLike,
        states: Iterable[Any] | None = None,
        *,
        start: int | None = None,
        gaps: bool = True,
    ) -> Sequences:
        """Sequences from a table of (id, time, state), in any order.

        Parameters
        ----------
        ids, times, state : (m,) arrays
            Times are numbers or dates; a state may be missing. Whole numbers are counts of time
            points, also if they are written like dates: from 199312 to 199401 are 88 unseen points.
            Count months as ``12 * year + month``.
        states : iterable, optional
            The alphabet in order; by default what occurs, sorted.
        start : int, optional
            Time at which every sequence begins, so that one which is first seen later begins with
            a gap; by default each begins where it is first seen.
        gaps : bool
            Whether holes in times that are whole numbers are gaps. Times that are not whole numbers
            (dates among them) give the order only.

        Returns
        -------
        Sequences
            In the order of the ids, which are kept.

        Raises
        ------
        DataError
            A pair of id and time occurs twice, an id or a time is missing, the columns differ in
            length, a time lies before `start`, or a hole is longer than `LONGEST_GAP` time points.
        ParameterError
            `start` is no whole number.
        """
        cells = column(state, dtype=object)
        if not column(ids).shape == column(times).shape == cells.shape or cells.ndim != 1:
            raise DataError("ids, times and states must be columns of one length")
        # Of a list with text NumPy makes text of everything, also of what is missing.
        given = column(ids)
        owners = given if hasattr(ids, "dtype") else column(ids, dtype=object)
        if owners.dtype.kind == "O":
            missing = any(is_missing(cell) for cell in owners.tolist())
        else:
            missing = bool((owners != owners).any())
        if missing:
            raise DataError("an id is missing: say whose each row is, or leave the row out")
        try:
            if owners.dtype.kind == "O" and len({isinstance(cell, str) for cell in owners}) > 1:
                raise TypeError
            names, who = np.unique(given, return_inverse=True)
        except TypeError:
            raise DataError("ids must be all numbers or all texts: make them all text") from None
        who = who.ravel().astype(np.int64, copy=False)
        codes, alphabet = coded(cells.tolist(), states)
        when = times_in_order(times)
        begin = _start(start)
        order = np.lexsort((when, who))
        who, when, codes = who[order], when[order], codes[order]
        n = int(((np.diff(who) == 0) & (when[1:] == when[:-1])).sum())
        if n:
            pairs = "1 pair of id and time occurs" if n == 1 else f"{n} pairs of id and time occur"
            raise DataError(f"{pairs} twice: keep one row of each")
        whole = when.dtype.kind in "iu"
        whole |= when.dtype.kind == "f" and bool((when == np.round(when)).all())
        step = np.ones(len(codes), dtype=np.int64)
        fresh = np.diff(who, prepend=-1) > 0
        if gaps and whole:
            if len(when) and max(abs(int(when.min())), abs(int(when.max()))) > _EXACT:
                raise DataError(
                    "a time is too large to be counted exactly: count from a nearer beginning"
                )
            step[1:] = np.diff(when.astype(np.int64))
            step[fresh] = 1 if begin is None else when[fresh].astype(np.int64) - begin + 1
            if (step < 1).any():
                raise DataError("a time lies before the start")
        elif start is not None:
            raise DataError("a start needs times that are whole numbers, and gaps")
        check_gaps(step - 1)
        # Each row of the table stands at its time, what lies between is unseen.
        ends = np.cumsum(step)
        full = np.full(int(ends[-1]) if len(ends) else 0, -1, dtype=np.int32)
        full[ends - 1] = codes
        lengths = np.bincount(who, weights=step, minlength=len(names)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return cls(full, offsets, len(alphabet), None, alphabet, names).trimmed()

    # ------------------------------------------------------------------ views

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """Time points of each sequence, (n,)."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> IntArray:
        """Number of the sequence that each code belongs to, (total,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def to_wide(self) -> CodeArray:
        """Codes as a table padded with -1, (n, longest)."""
        lengths = self.lengths
        wide = np.full((len(self), int(lengths.max(initial=0))), -1, dtype=np.int32)
        wide[np.arange(wide.shape[1]) < lengths[:, None]] = self.codes
        return wide

    def to_lists(self) -> list[list[Any]]:
        """Sequences as lists of the names of states (or codes), None where nothing was seen."""
        names = np.empty(self.n_states + 1, dtype=object)
        names[:-1] = range(self.n_states) if self.states is None else self.states
        names[-1] = None
        return [piece.tolist() for piece in np.split(names[self.codes], self.offsets[1:-1])][
            : len(self)
        ]

    def renamed(self, states: Iterable[Any]) -> Sequences:
        """The same sequences in another alphabet.

        Parameters
        ----------
        states : iterable of names
            The new alphabet. Codes without names count as its first ones.

        Raises
        ------
        DataError
            A state that occurs is not in the new alphabet.
        """
        names = _listed(states)
        if self.states == names:
            return self
        place = {name: code for code, name in enumerate(names)}
        own = names[: self.n_states] if self.states is None else self.states
        table = np.full(self.n_states + 1, -2)
        table[: len(own)] = [place.get(name, -2) for name in own]
        table[-1] = -1
        codes = table[self.codes]
        if (codes < -1).any():
            raise _strangers(int((codes < -1).sum()), names)
        return replace(self, codes=codes.astype(np.int32), n_states=len(names), states=names)

    def take(self, where: ArrayLike) -> Sequences:
        """Some of the sequences: places (also repeated ones) or a mask."""
        chosen = np.asarray(where)
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        shift = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return replace(
            self,
            codes=self.codes[np.arange(offsets[-1]) + shift],
            offsets=offsets,
            weights=None if self.weights is None else self.weights[rows],
            ids=None if self.ids is None else self.ids[rows],
        )

    def trimmed(self) -> Sequences:
        """The same without what is missing at the end of a sequence."""
        seen = np.flatnonzero(self.codes >= 0)
        lengths = np.zeros(len(self), dtype=np.int64)
        owners = self.owners
        # Places ascend, so the last one written is the last that was seen.
        lengths[owners[seen]] = seen - self.offsets[:-1][owners[seen]] + 1
        if (lengths == self.lengths).all():
            return self
        inside = np.arange(len(self.codes)) - self.offsets[:-1][owners] < lengths[owners]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return replace(self, codes=self.codes[inside], offsets=offsets)

    def distinct(self) -> tuple[Sequences, IntArray]:
        """Sequences that differ, in an order that depends on nothing but their codes.

        Returns
        -------
        sequences : Sequences
            With the summed weights; equal ones count once, shorter ones come first.
        inverse : (n,) array of int64
            Which of them each sequence is.
        """
        rows, inverse = distinct_rows(self.codes + 1, self.offsets)
        weights = np.ones(len(self)) if self.weights is None else self.weights
        summed = np.bincount(inverse, weights=weights, minlength=len(rows)).astype(np.float64)
        part = replace(self, weights=None, ids=None).take(rows)
        return replace(part, weights=summed), inverse


def distinct_rows(values: NDArray[Any], offsets: IntArray) -> tuple[IntArray, IntArray]:
    """Rows of unequal length that differ.

    Parameters
    ----------
    values : (total,) array of whole numbers, at least 0
        One row after the other.
    offsets : (n + 1,) array

    Returns
    -------
    rows : (d,) array of int64
        Place of one row of each kind; short rows first, then by value.
    inverse : (n,) array of int64
    """
    largest = int(values.max(initial=0))
    kind = next(k for k in (">u1", ">u2", ">u4", ">u8") if largest <= np.iinfo(k).max)
    values = np.ascontiguousarray(values.astype(kind))  # most significant byte first sorts by value
    lengths = np.diff(offsets)
    by_length = np.argsort(lengths, kind="stable")
    pieces = np.flatnonzero(np.diff(lengths[by_length], prepend=-1))
    inverse = np.empty(len(lengths), dtype=np.int64)
    found: list[IntArray] = []
    n_found = 0
    for rows in np.split(by_length, pieces[1:]) if len(by_length) else []:
        length = int(lengths[rows[0]])
        if length == 0:
            first, place = np.zeros(1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        else:
            block = values[offsets[rows][:, None] + np.arange(length)]
            # Texts of one width compare as their bytes do.
            texts = block.view(f"S{block.dtype.itemsize * length}").ravel()
            _, first, place = np.unique(texts, return_index=True, return_inverse=True)
        inverse[rows] = n_found + place
        found.append(rows[first])
        n_found += len(first)
    return (np.concatenate(found) if found else np.empty(0, dtype=np.int64)), inverse


def coded(cells: list[Any], states: Iterable[Any] | None) -> tuple[CodeArray, tuple[Any, ...]]:
    """Codes of a list of cells, and the alphabet.

    Parameters
    ----------
    cells : list
        None and NaN are missing.
    states : iterable, optional
        The alphabet in order; by default what occurs: numbers before texts, each sorted.

    Returns
    -------
    codes : (m,) array of int32
    states : tuple

    Raises
    ------
    DataError
        A cell is neither missing nor in the alphabet, or nothing was seen.
    """
    try:
        kinds = list(dict.fromkeys(cells))
    except TypeError:
        raise DataError("a state must be a number or a text") from None
    present = [kind for kind in kinds if not is_missing(kind)]
    if any(isinstance(kind, float | np.floating) and np.isinf(kind) for kind in present):
        raise DataError(NO_STATE)
    if states is None:
        if not present:
            raise DataError("no state was seen in any sequence: name the states, or give sequences")
        names = tuple(sorted(present, key=_rank))
    else:
        names = _listed(states)
        if not names or len(set(names)) != len(names) or any(is_missing(name) for name in names):
            raise ParameterError.of("states", "a list of different states", names)
    place = {name: code for code, name in enumerate(names)}
    strangers = [kind for kind in present if kind not in place]
    if strangers:
        alien = set(strangers)
        count = sum(1 for cell in cells if cell in alien)
        raise _strangers(count, names)
    codes = np.fromiter((place.get(cell, -1) for cell in cells), np.int32, len(cells))
    return codes, names


def _rank(state: Any) -> tuple[int, Any]:
    """Numbers sort before texts, and texts before anything else by its text."""
    if isinstance(state, int | float | np.number | np.bool_):
        return 0, state
    if isinstance(state, str):
        return 1, state
    return 2, f"{type(state).__name__} {state}"


def _start(start: Any) -> int | None:
    if start is None:
        return None
    number = isinstance(start, int | float | np.integer | np.floating)
    number = number and not isinstance(start, bool | np.timedelta64)
    if not number or not abs(start) <= _EXACT or start != int(start):
        raise ParameterError.of("start", "a whole number, or left out", start)
    return int(start)


def _listed(states: Any) -> tuple[Any, ...]:
    """Names of states as a tuple."""
    try:
        names = tuple(states)
        hash(names)
    except TypeError:
        raise ParameterError.of("states", "a list of different states", states) from None
    return names


def _whole(name: str, values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{name} must be a list of whole numbers")
    return array.astype(np.int64, copy=False)


# ---------------------------------------------------------------------- columns of long tables


def column(values: ArrayLike, dtype: Any = None) -> NDArray[Any]:
    """Values as an array; objects where some are masked, which are None.

    Parameters
    ----------
    values : array-like
    dtype : dtype, optional
        By default that of the values.

    Raises
    ------
    DataError
        Rows of different lengths, or of several fields.
    """
    if isinstance(values, np.ma.MaskedArray):
        if values.dtype.names:
            raise DataError("a column holds several fields: give one value a row")
        hidden = np.ma.getmaskarray(values)
        values = values.data
        if hidden.any():
            seen = np.empty(values.shape, dtype=object)
            seen[~hidden] = list(values[~hidden])  # cast as a whole, dates would become numbers
            return seen
    try:
        return np.asarray(values, dtype=dtype)
    except ValueError:
        raise DataError("ids, times and states must be columns of one length") from None


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN or another value that is not equal to itself."""
    if cell is None or type(cell).__name__ == "NAType":
        return True
    try:
        return bool(cell != cell)
    except ArithmeticError:  # a decimal's signalling NaN
        return True
    except ValueError:
        raise DataError("a cell holds several values: give one value a row") from None


def times_in_order(times: ArrayLike) -> NDArray[Any]:
    """Times as an array of numbers or of dates; dates with a time zone by their instant.

    Parameters
    ----------
    times : (m,) array
        Numbers or dates.

    Returns
    -------
    when : (m,) array
        Of whole numbers, numbers or dates.

    Raises
    ------
    DataError
        A time is missing, infinite, or neither a number nor a date; kinds are mixed; some dates
        have a zone and others have none; no unit tells all dates exactly.
    """
    when = column(times)
    if isinstance(times, list | tuple) and when.dtype.kind not in "iuf":
        when = _unboxed(list(times))  # of dates in several units NumPy makes wrong ones
    elif when.dtype.kind == "O":
        when = _unboxed(when.tolist())
    if when.dtype.kind not in "iufM":
        raise DataError(_NOT_TIMES)
    if (when != when).any():
        raise DataError(_NO_TIME)
    if when.dtype.kind == "f" and np.isinf(when).any():
        raise DataError("a time is infinite: give the time of every row")
    return when


def _unboxed(cells: list[Any]) -> NDArray[Any]:
    if not cells:
        return np.empty(0, dtype=np.int64)
    if any(is_missing(cell) for cell in cells):
        raise DataError(_NO_TIME)
    if all(isinstance(cell, date | np.datetime64) for cell in cells):
        return _dates(cells)
    if any(isinstance(cell, bool | np.bool_ | str | bytes | np.timedelta64) for cell in cells):
        raise DataError(_NOT_TIMES)
    try:
        if all(isinstance(cell, int | np.integer) for cell in cells):
            large = min(cells) >= 0 and max(cells) >= 2**63
            return np.array(cells, dtype=np.uint64 if large else np.int64)
        return np.array([float(cell) for cell in cells])
    except OverflowError:
        raise DataError("a time is too large: times are numbers of 64 bits") from None
    except (TypeError, ValueError):
        raise DataError(_NOT_TIMES) from None


def _dates(cells: list[Any]) -> NDArray[Any]:
    """Dates or times by their instant, in a unit that tells each: NumPy would wrap the others."""
    if len({getattr(cell, "tzinfo", None) is None for cell in cells}) > 1:
        raise DataError("some times have a time zone and others have none: give all one")
    instants: list[np.datetime64] = []
    for cell in cells:
        # Of data frames as exact as they have it.
        exact = cell if isinstance(cell, np.datetime64) else getattr(cell, "asm8", None)
        if not isinstance(exact, np.datetime64):
            if isinstance(cell, datetime) and cell.tzinfo is not None:
                try:
                    cell = cell.astimezone(UTC).replace(tzinfo=None)
                except OverflowError:
                    raise DataError(
                        "a time lies outside of the years 1 to 9999 without its zone"
                    ) from None
            exact = np.datetime64(cell, "us")
        instants.append(exact)
    if len({instant.dtype for instant in instants}) == 1:
        return np.array(instants)
    for unit in ("s", "us", "ns"):
        found = [instant.astype(f"datetime64[{unit}]") for instant in instants]
        back = (one.astype(instant.dtype) for one, instant in zip(found, instants, strict=True))
        if all(one == instant for one, instant in zip(back, instants, strict=True)):
            return np.array(found)
    raise DataError("no unit tells all dates exactly: the finest are too fine for the farthest")
