"""How many directions of a data set's columns were ever released, over all runs.

A release ``X d`` tells one combination of the columns of ``X``. Whoever has the releases along
``d_1, ..., d_k`` has every combination in their span: the ledger keeps this span, in the space of
coefficients, where releases add up although rows change between runs. Statement and proof, and
what is not covered: docs/proofs/column-space.md.

Numbers are zero where they are below 1e-8 of what they are compared with. A direction that close
to what is known is not counted, therefore it must not leave as it is: `admit` says what leaves in
its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import ProtocolError, RunError
from consilience.wire.disclosure import column_factor as column_factor

TOLERANCE = 1e-8
_ROUNDING = 1e-13
"""Parts of a unit vector that are smaller have no direction of their own."""
_KEY = "revealed"


@dataclass(frozen=True, eq=False)
class RevealedRank:
    """Span of the directions that were released of a data set.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns, in the order of the ledger.
    scales : (c,) array
        Length of each column when it was first seen: the unit of its coefficient here. A column
        of length 0 has unit 1.
    directions : (c, k) array
        Orthonormal basis of the span, coefficients in these units.
    counted : frozenset of str
        Digests of the directions that were counted: the very same ones may leave again as they are.
    """

    columns: tuple[str, ...] = ()
    scales: FloatArray = field(default_factory=lambda: np.empty(0))
    directions: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    counted: frozenset[str] = frozenset()

    @classmethod
    def from_ledger(cls, ledger: Mapping[str, Any]) -> RevealedRank:
        """Read what a site's ledger holds; nothing was revealed where it says nothing.

        Raises
        ------
        RunError
            The entry is damaged.
        """
        if _KEY not in ledger:
            return cls()
        try:
            entry = ledger[_KEY]
            columns = tuple(entry["columns"])
            scales = np.array(entry["scales"], dtype=float)
            directions = np.array(entry["directions"], dtype=float).T
            counted = frozenset(entry.get("counted", ()))
        except (KeyError, TypeError, ValueError):
            raise _damaged() from None
        directions = directions if directions.size else np.empty((len(columns), 0))
        fine = (
            all(isinstance(name, str) for name in (*columns, *counted))
            and len(set(columns)) == len(columns)
            and scales.shape == (len(columns),)
            and bool(np.all(np.isfinite(scales) & (scales > 0)))
            and directions.ndim == 2
            and len(directions) == len(columns)
            and np.allclose(directions.T @ directions, np.eye(directions.shape[1]), atol=1e-9)
        )
        if not fine:
            raise _damaged()
        return cls(columns, scales, directions, counted)

    def to_ledger(self) -> dict[str, Any]:
        """Entry of a site's ledger, plain enough for JSON."""
        entry = {
            "columns": list(self.columns),
            "scales": self.scales.tolist(),
            "directions": self.directions.T.tolist(),
            "counted": sorted(self.counted),
        }
        return {_KEY: entry}

    def union(self, other: RevealedRank) -> RevealedRank:
        """Span of two ledgers of the same data."""
        grown = self._with_columns(other.columns, other.scales)
        # Spans add up whatever the order of runs: docs/proofs/column-space.md, theorem.
        both = grown.after(other.columns, other.directions / other.scales[:, None])
        # The basis vectors of the other ledger were never released themselves.
        return replace(both, counted=self.counted | other.counted)

    def after(
        self, names: Sequence[str], directions: FloatArray, factor: FloatArray | None = None
    ) -> RevealedRank:
        """Span after a release; see :meth:`admit` for the arguments."""
        return self.admit(names, directions, factor)[0]

    def admit(
        self, names: Sequence[str], directions: FloatArray, factor: FloatArray | None = None
    ) -> tuple[RevealedRank, FloatArray]:
        """Take in a release.

        Parameters
        ----------
        names : sequence of p str
            Columns of the release. Others that the ledger knows have coefficient 0.
        directions : (p, k) array
            Released directions, in the columns' own units.
        factor : (m, p) array, optional
            Triangular factor of the centred columns (``wire.disclosure.column_factor``).

        Returns
        -------
        RevealedRank
            Span with the release.
        (p, k) array
            The directions that may leave: those that are counted, now or before, as they are; each
            of the others replaced by its projection on the span, within 1e-8 of its length. Without
            that differences of releases could tell a direction that nobody has counted.

        Notes
        -----
        A direction is new if its part beyond the span has more than 1e-8 of its length, either by
        its coefficients or by the numbers released (``factor @ direction``).
        """
        given = np.asarray(directions, dtype=float)
        if given.ndim != 2 or len(given) != len(names) or len(set(names)) != len(names):
            raise ProtocolError("a release has one row of directions for each of its columns")
        if not np.isfinite(given).all():
            raise ProtocolError("a released direction has finite numbers")
        lengths = _lengths(factor, len(names))
        grown = self._with_columns(names, lengths)
        place = np.array([grown.columns.index(name) for name in names], dtype=np.int64)
        units = grown.scales[place][:, None]
        seen = None if factor is None else np.asarray(factor, dtype=float) / units.T
        basis, leaving, counted = grown.directions, np.array(given), set(self.counted)
        for j in range(given.shape[1]):
            unit = units[:, 0] * given[:, j]
            # A direction and twice the same one tell the same: only its line counts.
            length = float(np.linalg.norm(unit))
            if length == 0.0:
                continue
            unit = unit / length
            known = _known_on(basis, place)
            within, rest = _split(known, unit)
            if _is_new(unit, rest, seen):
                whole = np.zeros(len(grown.columns))
                whole[place] = unit
                basis = _joined(basis, whole)
                counted.add(_digest(names, given[:, j]))
            elif _digest(names, given[:, j]) not in counted:
                # However close: many questions with other rounding would tell the difference.
                leaving[:, j] = within * length / units[:, 0]
        return RevealedRank(grown.columns, grown.scales, basis, frozenset(counted)), leaving

    def count(self, factor: FloatArray, names: Sequence[str]) -> int:
        """Directions of the span that count against columns of today.

        Parameters
        ----------
        factor : (m, p) array
            Triangular factor of the centred columns `names`.
        names : sequence of p str

        Returns
        -------
        int
            Rank of the span seen through today's columns, together with its part on columns that
            are not among them (those may be the same facts under other names, so they count); at
            most the rank of today's columns.
        """
        lengths = _lengths(factor, len(names))
        grown = self._with_columns(names, lengths)
        if not grown.directions.shape[1]:
            return 0
        place = np.array([grown.columns.index(name) for name in names], dtype=np.int64)
        other = np.setdiff1d(np.arange(len(grown.columns)), place)
        # In today's units, where a column of length 1 is a column of length 1.
        now = grown.directions[place] * (lengths / grown.scales[place])[:, None]
        basis = np.linalg.qr(np.vstack([now, grown.directions[other]]))[0]
        today = np.asarray(factor, dtype=float) / lengths
        seen = np.vstack([today @ basis[: len(place)], basis[len(place) :]])
        values = _singular(today)
        largest = values.max(initial=0.0)
        return min(_rank(_singular(seen), max(largest, 1.0)), _rank(values, largest))

    def along(self, names: Sequence[str]) -> FloatArray:
        """Directions (p, k) of columns `names` that are known, in the columns' own units.

        Where a known direction takes other columns too, it is none of these.
        """
        grown = self._with_columns(names, np.ones(len(names)))
        place = np.array([grown.columns.index(name) for name in names], dtype=np.int64)
        return _known_on(grown.directions, place) / grown.scales[place][:, None]

    def _with_columns(self, names: Sequence[str], lengths: FloatArray) -> RevealedRank:
        """The same span, with the columns that are seen for the first time at the end."""
        new = [j for j, name in enumerate(names) if name not in self.columns]
        zeros = np.zeros((len(new), self.directions.shape[1]))
        return RevealedRank(
            (*self.columns, *(names[j] for j in new)),
            np.concatenate([self.scales, lengths[new]]),
            np.vstack([self.directions, zeros]),
            self.counted,
        )


def rank_of(factor: FloatArray) -> int:
    """Rank of the columns behind a triangular factor, each taken at length 1."""
    factor = np.asarray(factor, dtype=float)
    if not factor.size:
        return 0
    values = _singular(factor / _lengths(factor, factor.shape[1]))
    return _rank(values, values.max(initial=0.0))


def _damaged() -> RunError:
    return RunError(
        "the ledger's revealed directions are damaged: restore it before anything else runs"
    )


def _digest(names: Sequence[str], direction: FloatArray) -> str:
    """Digest of a direction by the names of its columns, whatever their order."""
    pairs = sorted(zip(names, direction.tolist(), strict=True))
    return hashlib.sha256(repr(pairs).encode()).hexdigest()


def _lengths(factor: FloatArray | None, p: int) -> FloatArray:
    """Lengths of the columns, 1 where a column is zero or nothing is known of it."""
    if factor is None:
        return np.ones(p)
    factor = np.asarray(factor, dtype=float)
    if factor.ndim != 2 or factor.shape[1] != p or not np.isfinite(factor).all():
        raise ProtocolError("a triangular factor has one column for each column of the data")
    lengths = np.sqrt((factor**2).sum(axis=0))
    return np.where(lengths > 0, lengths, 1.0)


def _singular(matrix: FloatArray) -> FloatArray:
    """Singular values; an exchange asks for those of one factor many times."""
    return np.frombuffer(_singular_of(np.ascontiguousarray(matrix).tobytes(), matrix.shape))


@lru_cache(maxsize=8)
def _singular_of(data: bytes, shape: tuple[int, int]) -> bytes:
    return np.linalg.svd(np.frombuffer(data).reshape(shape), compute_uv=False).tobytes()


def _rank(values: FloatArray, largest: float) -> int:
    return int((values > TOLERANCE * largest).sum())


def _known_on(basis: FloatArray, place: NDArray[np.int64]) -> FloatArray:
    """Orthonormal basis of the combinations in a span that need only the columns at `place`."""
    beside = np.delete(basis, place, axis=0)
    if not beside.size or not beside.any():
        return basis[place]
    _, values, turn = np.linalg.svd(beside, full_matrices=True)
    kept = np.ones(len(turn), dtype=bool)
    kept[: len(values)] = values <= _ROUNDING
    return np.asarray(basis[place] @ turn[kept].T)


def _split(basis: FloatArray, vector: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Part of a vector in the span of orthonormal columns, and the rest, orthogonal to rounding."""
    # Twice is enough (Gram-Schmidt with one reorthogonalisation): what is left is orthogonal to
    # rounding.
    within = basis @ (basis.T @ vector)
    within = within + basis @ (basis.T @ (vector - within))
    return within, vector - within


def _is_new(unit: FloatArray, rest: FloatArray, seen: FloatArray | None) -> bool:
    size = float(np.linalg.norm(rest))
    if size > TOLERANCE:
        return True
    if seen is None or size <= _ROUNDING:
        return False
    # A direction that today's columns nearly cancel: what is left may be mostly new.
    return float(np.linalg.norm(seen @ rest)) > TOLERANCE * float(np.linalg.norm(seen @ unit))


def _joined(basis: FloatArray, vector: FloatArray) -> FloatArray:
    """Basis with one more direction, the old ones unchanged."""
    _, rest = _split(basis, vector)
    size = float(np.linalg.norm(rest))
    if size <= _ROUNDING:
        return basis
    rest = _split(basis, rest / size)[1]
    return np.column_stack([basis, rest / np.linalg.norm(rest)])
