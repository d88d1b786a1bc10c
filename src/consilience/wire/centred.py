"""Columns of a site made ready to be released along directions.

They are checked and centred once, however many releases follow; what may leave of them is for
:mod:`consilience.wire.disclosure` and the gate.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import ProtocolError

_KEY = object()


def column_factor(x: NDArray[Any]) -> FloatArray:
    """Triangular factor R of the centred columns, (min(n, p), p): R'R is their scatter matrix.

    Ranks of projections can be computed from it without the rows.
    """
    return _factor(_centred(np.asarray(x, dtype=float))[0])


def _factor(centred: FloatArray) -> FloatArray:
    """R of a QR decomposition; by the Gram matrix where that loses three digits at most.

    With columns of length 1 whose Gram matrix has condition 1e5, a factor from it is off by about
    1e-11 of the least singular value: far from the 1e-8 at which ranks are counted.
    """
    if centred.shape[0] > 4 * centred.shape[1] > 0:
        gram = centred.T @ centred
        lengths = np.sqrt(np.diag(gram))
        if (lengths > 0).all() and np.isfinite(lengths).all():
            values = np.linalg.eigvalsh(gram / np.outer(lengths, lengths))
            if values[0] > 1e-5 * values[-1]:
                return np.asarray(np.linalg.cholesky(gram / np.outer(lengths, lengths)).T * lengths)
    return np.asarray(np.linalg.qr(centred, mode="r"))


def _centred(x: FloatArray) -> tuple[FloatArray, bool]:
    """Columns without their means, zero if constant but for rounding; and whether there is one."""
    mean = x.mean(axis=0)
    centred = x - mean
    lengths = np.sqrt(np.einsum("ij,ij->j", centred, centred))
    constant = lengths <= 1e-13 * np.sqrt(len(x)) * np.abs(mean)
    if constant.any():
        centred[:, constant] = 0.0
    return np.asarray(centred), bool(constant.any())


@dataclasses.dataclass(frozen=True, eq=False)
class Projectable:
    """Columns checked and centred once, for a number of projections. Made by `projectable`.

    Attributes
    ----------
    centred : (n, p) array
        Read-only.
    factor : (min(n, p), p) array
        Read-only.
    zeroed : bool
        Whether a column is constant and became zero.
    """

    centred: FloatArray
    factor: FloatArray
    zeroed: bool
    key: dataclasses.InitVar[object]

    def __post_init__(self, key: object) -> None:
        if key is not _KEY:
            raise ProtocolError("columns for projections are made only by projectable")
        self.centred.flags.writeable = self.factor.flags.writeable = False


def projectable(x: NDArray[Any], factor: NDArray[Any] | None = None) -> Projectable:
    """Check and centre columns for a number of projections.

    Parameters
    ----------
    x : (n, p) array
    factor : (min(n, p), p) array, optional
        `column_factor` of these very rows, where it was computed before.

    Raises
    ------
    ProtocolError
        No rows, numbers that are not finite, or the factor of other rows.
    """
    x = np.asarray(x, dtype=float)
    if x.ndim != 2 or not len(x) or not np.isfinite(x).all():
        raise ProtocolError("a projection needs rows, and finite numbers")
    centred, zeroed = _centred(x)
    found = np.array(_factor(centred) if factor is None else factor, dtype=float)
    if factor is not None and not _same_scatter(found, centred):
        raise ProtocolError("the factor of a projection is that of other rows")
    return Projectable(centred, found, zeroed, _KEY)


def _same_scatter(factor: FloatArray, centred: FloatArray) -> bool:
    """Whether a factor has the lengths of the columns."""
    if factor.shape != (min(centred.shape), centred.shape[1]):
        return False
    lengths = np.sqrt(np.einsum("ij,ij->j", centred, centred))
    return np.allclose(np.sqrt((factor**2).sum(axis=0)), lengths, rtol=1e-8, atol=1e-12)
