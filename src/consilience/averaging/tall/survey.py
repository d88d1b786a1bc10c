"""First look at every split: its moments, the rows that are held out, rows for reference.

Each split is read once by a worker; what comes back is small. Draws depend on the seed and on the
place of the split, never on who reads it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.averaging.tall.tables import Part, with_levels
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import Workers, one_thread
from consilience.numerics.random import stream
from consilience.numerics.reference_average import (
    ReferenceFacts,
    normal_reference,
    pool_moments,
    reference_facts,
    scale_of,
)

_MOST_COLUMNS = 2000
"""Of more columns no second moments are computed unless they are asked for."""
_ROWS_FOR_RANK = 4
"""Rows for each column in the splits that tell the rank which reference rows need."""
_HELD_BYTES = 2**28
"""Bound on the predictions for held-out rows that are in memory at a time."""


@dataclass(frozen=True)
class Look:
    """What one split is asked for."""

    part: Part
    place: int
    n_reference: int
    held: IntArray
    moments: bool
    classes: bool

    def __sizeof__(self) -> int:
        # With rows of its own it is sent straight to a worker, not through a scheduler.
        return sys.getsizeof(self.part)


@dataclass(frozen=True, eq=False)
class Seen:
    """What one split shows."""

    mean: FloatArray
    products: FloatArray | None
    square: float
    reference: FloatArray
    held_x: FloatArray
    held_y: NDArray[Any]
    levels: NDArray[Any]
    digest: bytes


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known of a table before the rounds.

    Attributes
    ----------
    parts : list of Part
        The splits; give positions of `levels` where the target is a class.
    sizes : (B,) array
    levels : (q,) array, or empty
    reference : (m, p) array
    facts : ReferenceFacts
    rho_scale : float
    held : list of (h_b,) arrays
        Places of the rows that are held out, within each split.
    held_x, held_y : (H, p) and (H,) arrays
        In the order of the splits.
    digest : str
        Of the rows of all splits, in their order.
    """

    parts: list[Part]
    sizes: FloatArray
    levels: NDArray[Any]
    reference: FloatArray
    facts: ReferenceFacts
    rho_scale: float
    held: list[IntArray]
    held_x: FloatArray
    held_y: FloatArray
    digest: str


def default_reference_rows(n_columns: int, split_rows: float) -> int:
    """A twentieth of a split's rows, so that they cost little; from 5 to 20 for each column."""
    return int(min(20 * n_columns, max(5 * n_columns, split_rows / 20)))


def _splits_for_rank(sizes: Sequence[int], n_columns: int) -> list[int]:
    """Splits whose second moments are computed: enough to tell which columns go together."""
    if n_columns > _MOST_COLUMNS:
        return []
    enough = np.cumsum(sizes) >= _ROWS_FOR_RANK * n_columns
    number = int(np.argmax(enough)) + 1 if enough.any() else len(sizes)
    spread = np.linspace(0, len(sizes) - 1, min(max(number, 3), len(sizes)))
    return sorted({int(b) for b in spread})


def held_out(
    sizes: Sequence[int], share: float, most: int, n_values: int, seed: int
) -> list[IntArray]:
    """Draw the rows of each split that are held out.

    Parameters
    ----------
    sizes : sequence of int
    share : float
        Of each split.
    most : int
        Rows in all.
    n_values : int
        Predictions for each held-out row that are in memory at a time, which bound them too.
    seed : int
    """
    most = min(most, max(1000, _HELD_BYTES // (8 * max(n_values, 1))))
    share = min(share, most / sum(sizes))
    found = []
    for b, size in enumerate(sizes):
        n = int(share * size) if share * size < size - 1 else max(size - 1, 0)
        drawn = stream(seed, "holdout", b).choice(size, n, replace=False)
        found.append(np.sort(drawn).astype(np.int64))
    return found


def look(task: Look, seed: int) -> Seen:
    """Read one split."""
    with one_thread():
        x, y = task.part.read()
        mean = x.mean(axis=0)
        products = None
        if task.moments:
            away = x - mean
            products = away.T @ away
        drawn = stream(seed, "reference", task.place).choice(
            len(x), min(task.n_reference, len(x)), replace=False
        )
        digest = hashlib.sha256(repr(x.shape).encode())
        digest.update(_sums_in_order(x).tobytes())
        digest.update(y.tobytes() if y.dtype != object else "\0".join(map(str, y)).encode())
        return Seen(
            mean=mean,
            products=products,
            square=float(np.einsum("ij,ij->", x, x)),
            reference=x[np.sort(drawn)],
            held_x=x[task.held],
            held_y=y[task.held],
            levels=np.unique(y) if task.classes else y[:0],
            digest=digest.digest(),
        )


def _sums_in_order(x: FloatArray) -> NDArray[np.uint64]:
    """Sums of each column's bits, modulo 2^64, by a weight for each place: another order shows.

    Weights are odd, so that no single change goes unseen; whole numbers are the same on all
    machines. A cryptographic hash of the bytes takes twelve times as long.
    """
    places = stream(0, "places").integers(2**63, size=len(x), dtype=np.uint64)
    bits = np.ascontiguousarray(x).view(np.uint64)
    return np.asarray(np.einsum("i,ij->j", 2 * places + 1, bits), dtype=np.uint64)


def survey(
    workers: Workers,
    parts: Sequence[Part],
    sizes: Sequence[int],
    *,
    reference: str | FloatArray,
    n_reference: int | None,
    n_columns: int,
    held: list[IntArray],
    levels: NDArray[Any] | None,
    classes: bool,
    seed: int,
    done: Callable[[int], None] | None = None,
) -> Survey:
    """Read every split once and make the reference rows.

    Parameters
    ----------
    workers : Workers
    parts, sizes : sequences of length B
    reference : {"rows", "moments"} or (m, p) array
    n_reference : int or None
    n_columns : int
    held : list of (h_b,) arrays
        See :func:`held_out`.
    levels : (q,) array or None
        Known levels; the parts give positions then.
    classes : bool
        Whether the target is a class.
    seed : int
    done : callable, optional
        Progress.

    Raises
    ------
    ParameterError
        Reference rows that do not fit.
    DataError
        A target with a single class.
    """
    m = n_reference or default_reference_rows(n_columns, sum(sizes) / len(sizes))
    own = reference if isinstance(reference, str) else "given"
    if own not in ("rows", "moments", "given"):
        raise ParameterError.of("reference", "'rows', 'moments' or an array", reference)
    told = list(range(len(sizes))) if own == "moments" else _splits_for_rank(sizes, n_columns)
    ends = np.cumsum([0, *sizes]) * m / sum(sizes)
    shares = np.diff(np.floor(ends + 1e-9)).astype(int) if own == "rows" else [0] * len(sizes)
    unknown = classes and levels is None
    looks = [
        Look(part, b, int(shares[b]), held[b], b in told, unknown) for b, part in enumerate(parts)
    ]
    seen = workers.map(look, looks, seed, done=done)
    held_y: NDArray[Any] = np.concatenate([s.held_y for s in seen])
    if unknown:
        levels = np.unique(np.concatenate([s.levels for s in seen]))
        if len(levels) < 2:
            raise DataError("the target holds one class only: give rows of at least two classes")
        parts, held_y = with_levels(parts, levels), np.searchsorted(levels, held_y)
    rows, second = _reference_rows(seen, sizes, reference, m, seed)
    digest = hashlib.sha256()
    for part in seen:
        digest.update(part.digest)
    return Survey(
        parts=list(parts),
        sizes=np.asarray(sizes, dtype=float),
        levels=np.zeros(0) if levels is None else levels,
        reference=rows,
        facts=reference_facts(rows, second),
        rho_scale=scale_of(sum(s.square for s in seen) / sum(sizes), rows),
        held=held,
        held_x=np.concatenate([s.held_x for s in seen]),
        held_y=np.asarray(held_y, dtype=float),
        digest=digest.hexdigest(),
    )


def _reference_rows(
    seen: list[Seen], sizes: Sequence[int], reference: str | FloatArray, m: int, seed: int
) -> tuple[FloatArray, FloatArray | None]:
    """Reference rows and second moments of the data, where they are known."""
    second = mean = covariance = None
    told = [(n, s) for n, s in zip(sizes, seen, strict=True) if s.products is not None]
    if told:
        mean, covariance = pool_moments(
            np.array([n for n, _ in told], dtype=float),
            [s.mean for _, s in told],
            [s.products for _, s in told],
        )
        second = covariance + np.outer(mean, mean)
    if not isinstance(reference, str):
        return _given(reference, len(seen[0].mean)), second
    if reference == "rows":
        return np.concatenate([s.reference for s in seen]), second
    if mean is None or covariance is None:
        raise ParameterError("reference = 'moments' needs the second moments of the splits")
    return normal_reference(mean, covariance, m, stream(seed, "reference")), second


def _given(reference: Any, n_columns: int) -> FloatArray:
    rows = np.asarray(reference, dtype=float)
    if rows.ndim != 2 or rows.shape[1] != n_columns or not len(rows):
        raise ParameterError(
            f"reference rows of shape {rows.shape} were given: "
            f"they need {n_columns} columns, those of X in its order, and at least one row"
        )
    if not np.isfinite(rows).all():
        raise ParameterError("reference rows hold missing or infinite values: leave those rows out")
    return rows
