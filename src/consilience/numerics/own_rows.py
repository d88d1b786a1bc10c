"""Whether rows that are offered as public are rows of a site's own table.

The site sees salted digests of the offered rows, never the rows; its own digests stay with it.
Rows of the same population agree by chance wherever columns are few and coarse, so a count of
agreements says nothing by itself: it is compared with what coincidence explains. The reasoning,
and what a refusal tells whoever asks, is in ``docs/proofs/own-rows.md``.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.exceptions import DataError, ParameterError

Digests = NDArray[np.uint8]

DIGEST_BYTES = 32
BITS = 16
"""Binary digits to which two cells are compared: single precision and a change of units keep them
(but for one cell in 250, which lies where rounding turns)."""
DEVIATIONS, SLACK = 4.0, 3.0
"""Standard deviations, and rows, above their mean that repeats in the table explain."""
LEVEL = 1e-4
"""Largest probability with which honest rows of the same population are taken for own ones."""

_DOMAIN = b"consilience-row-1"


@dataclass(frozen=True)
class OwnRows:
    """How many offered rows are rows of a table, and whether coincidence explains them.

    Attributes
    ----------
    matches : int
        Distinct offered rows that stand in the table once. Copies of a common row, of which
        everybody knows that it is there, are none.
    found : int
        Offered rows that are rows of the table, each as often as it is offered.
    repeats : float
        How many of these equal rows within the table explain.
    chance : float
        Bound on the probability of so many matches, if all rows are of one population.
    offered : bool
        At least `min_records` matches, more found than `repeats`, and `chance` at most 1e-4.
    """

    matches: int
    found: int
    repeats: float
    chance: float
    offered: bool


# --------------------------------------------------------------------------- digests


def row_digests(rows: ArrayLike, salt: bytes | str) -> Digests:
    """SHA-256 of each row under a salt.

    Parameters
    ----------
    rows : (n, p) array
        Encoded, unscaled rows. Cells are rounded to 16 binary digits (nearly five decimal ones),
        so that a copy in other units or in single precision has the digests of the table that it
        was taken from; minus zero is zero, and all NaN are one.
    salt : bytes or str
        Of this run: digests of two runs cannot be compared.

    Returns
    -------
    (n, 32) uint8 array

    Raises
    ------
    DataError
        `rows` has not two dimensions.
    """
    x = np.asarray(rows, dtype=np.float64)
    if x.ndim != 2:
        raise DataError(f"rows must have two dimensions, not {x.ndim}: give a table of rows")
    key = salt.encode() if isinstance(salt, str) else bytes(salt)
    start = hashlib.sha256(_DOMAIN + len(key).to_bytes(8, "little") + key)
    digests = bytearray()
    for row in _canonical(x).astype("<f8"):
        one = start.copy()
        one.update(row.tobytes())
        digests += one.digest()
    return np.frombuffer(bytes(digests), dtype=np.uint8).reshape(len(x), DIGEST_BYTES)


def _canonical(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cells to so many binary digits, which unlike decimal ones are exact; one zero and one NaN."""
    mantissa, exponent = np.frexp(x)
    with np.errstate(over="ignore"):
        cells = np.ldexp(np.rint(np.ldexp(mantissa, BITS)), exponent - BITS)
    canonical: NDArray[np.float64] = np.where(np.isnan(cells), np.nan, cells) + 0.0
    return canonical


# --------------------------------------------------------------------------- the decision


def own_rows_offered(own: Digests, reference: Digests, min_records: int) -> bool:
    """Whether `min_records` distinct rows that are offered are, beyond coincidence, of the table.

    Parameters
    ----------
    own : (n, 32) uint8 array
        Digests of the site's own rows; see `row_digests`.
    reference : (m, 32) uint8 array
        Digests of the offered rows, under the same salt.
    min_records : int
        Smallest number of records that anything may rest on, of the site's policy.

    Raises
    ------
    ParameterError
        `min_records` is below 1.
    DataError
        The digests are not of 32 bytes each.
    """
    return compare_rows(own, reference, min_records).offered


def compare_rows(own: Digests, reference: Digests, min_records: int) -> OwnRows:
    """Count the matches and what explains them; parameters as of `own_rows_offered`.

    Two explanations are tried, and both must fail:

    - *a table of repeated rows*: a fresh row of the population is in the table about as often as
      one of its own rows has an equal among the others (rate d, Good and Turing), so that up to
      m d + 4 sqrt(m d (1 - d)) + 3 of m rows are found there;
    - *one population*: put together and dealt out again at random, own and offered rows would
      match so often with a probability above 1e-4. A match of a row that occurs t times in all
      weighs 2 / t here: the rarer the row, the less chance explains it.
    """
    if min_records < 1:
        raise ParameterError.of("min_records", "at least 1", min_records)
    counts = _counts(_checked(own), _checked(reference))
    if len(own) == 0 or len(reference) == 0:
        return OwnRows(0, 0, 0.0, 1.0, False)
    matches = int(((counts[0] == 1) & (counts[1] > 0)).sum())
    found = int(counts[1, counts[0] > 0].sum())
    # rows found up to which a fresh row has an equal no more often than an own row another
    n, m = (int(total) for total in counts.sum(axis=1))
    rate = 1.0 - float(np.count_nonzero(counts[0] == 1)) / n
    repeats = m * rate + DEVIATIONS * math.sqrt(m * rate * (1.0 - rate)) + SLACK
    if matches < min_records or found <= repeats:
        return OwnRows(matches, found, repeats, 1.0, False)
    chance = _chance(counts)
    return OwnRows(matches, found, repeats, chance, chance <= LEVEL)


def _checked(digests: Digests) -> Digests:
    found = np.ascontiguousarray(digests, dtype=np.uint8)
    if found.ndim != 2 or found.shape[1] != DIGEST_BYTES:
        raise DataError("digests of rows must be 32 bytes each: make them with row_digests")
    return found


def _counts(own: Digests, reference: Digests) -> NDArray[np.int64]:
    """How often each distinct row is in the table and among the offered: (2, distinct)."""
    both = np.concatenate([own, reference]).view(np.dtype((np.void, DIGEST_BYTES))).ravel()
    names, places = np.unique(both, return_inverse=True)
    parts = places[: len(own)], places[len(own) :]
    return np.stack([np.bincount(part, minlength=len(names)) for part in parts]).astype(np.int64)


def _chance(counts: NDArray[np.int64]) -> float:
    """Bound on the probability of so much agreement, if all rows were dealt out at random.

    Chernoff's bound for rows that are dealt one by one with the probability n / (n + m), times
    what it can cost that the table has n rows in the end; see ``docs/proofs/own-rows.md``.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp
    from scipy.stats import binom

    n, m = (int(total) for total in counts.sum(axis=1))
    total = counts.sum(axis=0)
    agreement = float((2.0 / total) @ counts.min(axis=0))
    share = n / (n + m)
    sizes, cells = np.unique(total, return_counts=True)
    laws = []
    for t, number in zip(sizes.tolist(), cells.tolist(), strict=True):
        own = np.arange(t + 1)
        laws.append((number, binom.logpmf(own, t, share), np.minimum(own, t - own) * (2.0 / t)))

    def log_bound(tilt: float) -> float:
        moments = (number * logsumexp(law + tilt * agreed) for number, law, agreed in laws)
        return math.fsum(map(float, moments)) - tilt * agreement

    best = float(minimize_scalar(log_bound, bounds=(0.0, 50.0), method="bounded").fun)
    single = int(cells[sizes == 1].sum())
    free = binom.logpmf(math.floor((single + 1) * share), single, share) if single else 0.0
    cost = float(free - binom.logpmf(n, n + m, share))
    return math.exp(min(0.0, best + max(0.0, cost)))
