"""Reference averaging: weights of rounds, the average, reference rows, and the choice of a round.

Notation: site b holds n_b of N rows and a fitted model f_b; A = {a_1 .. a_m} are the reference
rows, the same for all sites; the average is ``fbar(a) = sum_b (n_b / N) f_b(a)``. In round k every
site refits with the pseudo-rows ``(a, fbar(a))``, whose mean loss counts rho_k times the mean loss
of its own rows.

Source: Ya Le's Stanford thesis, chapter 1 (with T. Hastie and E. Dobriban), *A General Algorithm
for Distributed Learning*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError
from consilience.parameters import check, number, one_of

Schedule = Literal["adaptive", "fixed", "asynchronous"]

SCHEDULES = ("adaptive", "fixed", "asynchronous")
_RULES = {
    "schedule": one_of(*SCHEDULES),
    "rho": number(above=0),
    "exponent": number(0, below=1),
}
_RANK_TOLERANCE = 1e-8
_GRAM_TOLERANCE = 1e-12
"""Of eigenvalues of sums of products, which are squares of singular values."""
MOST_COLUMNS = 2000
"""Of more columns no second moments are computed unless they are asked for."""
_LARGEST_CONDITION = 1e5


# --------------------------------------------------------------------------- rounds


def rho_of(k: float, *, schedule: str, rho: float, exponent: float, scale: float = 1.0) -> float:
    """Weight of the mean loss on the pseudo-rows in round k.

    Parameters
    ----------
    k : float
        Round, from 1; under the asynchronous schedule 1 + the replies of all sites so far, over
        their number. (With a count of each site's own the average would not tend to the fit of all
        rows: at rest ``sum_b w_b g_b / rho_b = 0`` for the sites' gradients g_b, which counts sites
        by ``w_b / rho_b``.)
    schedule : {"adaptive", "fixed", "asynchronous"}
        ``scale * rho`` in every round where it is fixed, otherwise ``scale * rho * k**exponent``.
    rho : float
        Positive.
    exponent : float
        In [0, 1): the weights must grow without bound while their steps tend to 0. With 1 or more
        the rounds stall before they reach the fit of all rows.
    scale : float
        Units of the reference rows, see :func:`scale_of`.

    Raises
    ------
    ParameterError
        Something is outside of its range.
    """
    check(_RULES, locals())
    # The adaptive schedule of the source: rho_k grows without bound, and its steps tend to 0.
    growth = 1.0 if schedule == "fixed" else float(k) ** exponent
    return float(scale * rho * growth)


def averaged(predictions: Sequence[FloatArray], sizes: Sequence[float] | FloatArray) -> FloatArray:
    """Average of the sites' predictions, weighted by rows, by a fixed pairwise tree.

    Parameters
    ----------
    predictions : sequence of B arrays of one shape
    sizes : (B,)
        Rows, or sums of weights.

    Raises
    ------
    ParameterError
        Nothing to average, or sizes that are not positive.
    """
    shares = np.asarray(sizes, dtype=float)
    if not len(predictions) or len(shares) != len(predictions) or not (shares > 0).all():
        raise ParameterError("an average needs predictions, each with a positive number of rows")
    shares = shares / shares.sum()
    parts = [share * np.asarray(f, dtype=float) for share, f in zip(shares, predictions)]
    while len(parts) > 1:
        paired = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = paired + parts[len(paired) * 2 :]
    return np.asarray(parts[0])


def moved(average: FloatArray, new: FloatArray, old: FloatArray, share: float) -> FloatArray:
    """Average after one site's predictions changed: ``fbar + w_b (new - old)``."""
    # The rest of the average stands: one reply of an asynchronous round is enough.
    return np.asarray(average + share * (new - old))


def movement(new: FloatArray, old: FloatArray) -> float:
    """Change of the average relative to its size."""
    size = float(np.linalg.norm(old))
    return float(np.linalg.norm(new - old) / size) if size > 0 else 0.0


def influences(
    predictions: Sequence[FloatArray], sizes: Sequence[float] | FloatArray, average: FloatArray
) -> FloatArray:
    """How far the average would move if a site fell in with it: ``w_b |f_b - fbar| / |fbar|``."""
    shares = np.asarray(sizes, dtype=float)
    shares = shares / shares.sum()
    size = float(np.linalg.norm(average))
    away = np.array([np.linalg.norm(f - average) for f in predictions])
    return np.asarray(shares * away / size if size > 0 else np.zeros(len(shares)))


# --------------------------------------------------------------------------- reference rows


@dataclass(frozen=True)
class ReferenceFacts:
    """What is known of a set of reference rows.

    Attributes
    ----------
    n_rows, n_columns : int
    rank : int
        Of the columns, each put on unit length. The most that it can be, where rows are sparse and
        there are more than `MOST_COLUMNS` of them.
    needed_rank : int
        Rank of the data's own second moments where they are known, else the number of columns.
    condition : float
        Ratio of the largest singular value to the last of the needed ones; NaN where the rank is
        not computed.
    sparse : bool
    """

    n_rows: int
    n_columns: int
    rank: int
    needed_rank: int
    condition: float
    sparse: bool = False

    def remarks(self) -> list[str]:
        """Sentences on what keeps the rounds from the fit of all rows; none where nothing does."""
        found = []
        if self.rank < self.needed_rank:
            why = "some of its columns are constant, or combinations of others"
            if self.n_rows < self.n_columns:
                why = "it has fewer rows than columns"
            other = "" if self.sparse else ', or reference = "moments"'
            found.append(
                f"The reference set has rank {self.rank} and the columns need {self.needed_rank}: "
                f"{why}, so the rounds do not tend to the fit of all rows. Give at least "
                f"{self.needed_rank} rows (about {20 * self.n_columns} are good) that vary as the "
                f"data do{other}."
            )
        elif self.condition > _LARGEST_CONDITION:
            found.append(
                f"The columns of the reference set are nearly dependent (condition number "
                f"{self.condition:.1e}), so the rounds are slow in some directions: give rows that "
                "vary more, or drop one of two columns that say the same."
            )
        return found


def reference_facts(rows: Any, second_moments: FloatArray | None = None) -> ReferenceFacts:
    """Rank and conditioning of reference rows.

    Parameters
    ----------
    rows : (m, p) array or sparse matrix
    second_moments : (p, p) array, optional
        ``X'X / N`` of the data: directions in which the data do not vary need no reference rows.
    """
    m, p = rows.shape
    # Columns in other units must not look dependent: each is put on unit length first.
    if not hasattr(rows, "tocsr"):
        rows = np.asarray(rows, dtype=float)
        length = np.linalg.norm(rows, axis=0)
        values = np.linalg.svd(rows / np.where(length > 0, length, 1.0), compute_uv=False)
        least = _RANK_TOLERANCE * max(values.max(initial=0.0), 1e-300)
    elif p > MOST_COLUMNS:
        used = len(np.unique(rows.tocsr().indices))
        return ReferenceFacts(m, p, min(m, used), p, float("nan"), True)
    else:  # singular values by the sums of products: their rows would fill the memory
        products = (rows.T @ rows).toarray()
        unit = _units(products)
        eigen = np.linalg.eigvalsh(products / unit / unit[:, None])[::-1][:m]
        values = np.sqrt(np.maximum(eigen, 0.0))
        least = np.sqrt(_GRAM_TOLERANCE) * max(values.max(initial=0.0), 1e-300)
    rank = int((values > least).sum())
    needed = p
    if second_moments is not None:
        unit = _units(second_moments)
        eigen = np.linalg.eigvalsh(second_moments / unit / unit[:, None])
        needed = int((eigen > _RANK_TOLERANCE * max(eigen.max(initial=0.0), 1e-300)).sum())
    # Directions in which the data themselves do not vary need not be covered.
    last = values[needed - 1] if 0 < needed <= len(values) else 0.0
    condition = float(values[0] / last) if last > 0 else float("inf")
    return ReferenceFacts(m, p, rank, needed, condition, hasattr(rows, "tocsr"))


def _units(matrix: FloatArray) -> FloatArray:
    """Standard deviations of the columns, 1 for a column that does not vary."""
    size = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    return np.where(size > 0, size, 1.0)


def scale_of(own_square: float, reference: Any) -> float:
    """Units of rho: mean squared length of the data's rows over that of the reference rows.

    Parameters
    ----------
    own_square : float
        ``trace(X'X) / N``.
    reference : (m, p) array or sparse matrix
    """
    values = reference.data if hasattr(reference, "tocsr") else np.asarray(reference, dtype=float)
    square = float((values**2).sum() / max(reference.shape[0], 1))
    return own_square / square if square > 0 and own_square > 0 else 1.0


def pool_moments(
    sizes: Sequence[float] | FloatArray,
    means: Sequence[FloatArray],
    products: Sequence[FloatArray | None],
) -> tuple[FloatArray, FloatArray]:
    """Pooled means and covariances (denominator N) of sites that may withhold columns.

    Parameters
    ----------
    sizes : (B,)
    means : B arrays of shape (p,)
        NaN where a site withholds a column.
    products : B arrays of shape (p, p), or None
        Sums of products of deviations from the site's own means; NaN likewise.

    Returns
    -------
    mean : (p,) array
        0 where no site tells.
    covariance : (p, p) array
        Positive semidefinite: a covariance is 0 where no site tells it, and the nearest
        semidefinite matrix is taken where cells of different sites do not go together.
    """
    p = len(means[0])
    n = np.asarray(sizes, dtype=float)
    stacked = np.stack([np.asarray(m, dtype=float) for m in means])
    known = ~np.isnan(stacked)
    weight = np.where(known, n[:, None], 0.0)
    total = weight.sum(axis=0)
    mean = np.where(total > 0, (weight * np.nan_to_num(stacked)).sum(axis=0), 0.0)
    mean = mean / np.where(total > 0, total, 1.0)
    sums, counts = np.zeros((p, p)), np.zeros((p, p))
    for size, own, product in zip(n, stacked, products, strict=True):
        if product is None:
            continue
        away = np.nan_to_num(own) - mean
        cell = product + size * np.outer(away, away)
        told = ~np.isnan(cell) & ~np.isnan(own)[:, None] & ~np.isnan(own)
        sums += np.where(told, cell, 0.0)
        counts += np.where(told, size, 0.0)
    # Each cell has its own rows behind it: sites withhold different columns.
    covariance = np.where(counts > 0, sums / np.where(counts > 0, counts, 1.0), 0.0)
    return np.asarray(mean), _semidefinite((covariance + covariance.T) / 2)


def _semidefinite(matrix: FloatArray) -> FloatArray:
    """Nearest positive semidefinite matrix in units of the standard deviations."""
    unit = _units(matrix)
    values, vectors = np.linalg.eigh(matrix / unit / unit[:, None])
    if (values >= 0).all():
        return matrix
    # Cells with different rows behind them need not go together; negative directions are cut.
    fixed = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return np.asarray(fixed * unit * unit[:, None])


def normal_reference(
    mean: FloatArray, covariance: FloatArray, n_rows: int, rng: np.random.Generator
) -> FloatArray:
    """Normal rows whose own mean and covariance are exactly those given.

    Parameters
    ----------
    mean : (p,) array
    covariance : (p, p) array
        Denominator N; may be singular.
    n_rows : int
        With more rows than the rank of the covariance both are met; with fewer rows they are met
        only on average.
    rng : numpy.random.Generator

    Returns
    -------
    (n_rows, p) array
    """
    covariance = np.asarray(covariance, dtype=float)
    unit = _units(covariance)
    values, vectors = np.linalg.eigh(covariance / unit / unit[:, None])
    used = values > _RANK_TOLERANCE * max(values.max(initial=0.0), 1e-300)
    root = (vectors[:, used] * np.sqrt(values[used])) * unit[:, None]
    z = rng.standard_normal((n_rows, int(used.sum())))
    if n_rows > z.shape[1] > 0:
        z -= z.mean(axis=0)
        # Columns of unit variance that are uncorrelated in these very rows.
        # The polar factor moves the draws least, and depends on no order of the columns.
        left, _, right = np.linalg.svd(z, full_matrices=False)
        z = np.sqrt(n_rows) * left @ right
    return np.asarray(np.asarray(mean, dtype=float) + z @ root.T)


# --------------------------------------------------------------------------- choosing a round


@dataclass(frozen=True)
class Choice:
    """What is kept of the rounds.

    Attributes
    ----------
    track : int
        Place in the penalty grid.
    round : int
        0 is averaging.
    kept : bool
        Whether a refit is kept.
    reason : {"gain", "no-gain", "not-measured", "not-separable"}
    """

    track: int
    round: int
    kept: bool
    reason: str


def weighted_mean(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Mean of rows that count by their weights, and its squared standard error.

    Parameters
    ----------
    values, weights : (h,) arrays

    Returns
    -------
    mean, variance : float
        Variance of a ratio of two sums over independent rows, to first order; NaN of fewer than
        two rows that count.
    """
    n, total = np.count_nonzero(weights), float(weights.sum())
    if n < 2:
        return np.nan, np.nan
    mean = float(weights @ values) / total
    away = weights * (values - mean)
    return mean, float(away @ away) / total**2 * n / (n - 1)


def pooled_gain(
    means: FloatArray, variances: FloatArray, sizes: Sequence[float] | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean over all held-out rows, and its standard error, from means by site.

    Parameters
    ----------
    means, variances : (B, ...) arrays
        Means over each site's held-out rows and their squared standard errors; NaN where a site
        withholds or has none.
    sizes : (B,)
        Held-out rows, or rows where the shares that are held out are the same.

    Returns
    -------
    mean, error : (...) arrays
        NaN where no site tells.
    """
    means, variances = np.asarray(means, dtype=float), np.asarray(variances, dtype=float)
    told = np.isfinite(means) & np.isfinite(variances)
    # A site that withholds a figure has no weight in it, and its rows do not count.
    weight = np.asarray(sizes, dtype=float).reshape(-1, *(1,) * (means.ndim - 1)) * told
    total = weight.sum(axis=0)
    whole = np.where(total > 0, total, np.nan)
    mean = (weight * np.where(told, means, 0.0)).sum(axis=0) / whole
    # Rows of different sites are independent, so variances of the shares add up.
    variance = (weight**2 * np.where(told, variances, 0.0)).sum(axis=0) / whole**2
    return np.asarray(mean), np.asarray(np.sqrt(variance))


def improving(gains: FloatArray, patience: int) -> bool:
    """Whether a track goes on: its best refit is among the last `patience` rounds.

    Parameters
    ----------
    gains : (k,) array
        Held-out loss of rounds 0, 1, ... minus that of round 0. The first refit may overshoot, so
        refits are compared with one another; whether one beats round 0 is for :func:`choose`.
    patience : int
    """
    refits = np.asarray(gains, dtype=float)[1:]
    if not len(refits) or np.isnan(refits).all():
        return True
    return len(refits) - 1 - int(np.nanargmin(refits)) < patience


def choose(base: FloatArray, gains: FloatArray, errors: FloatArray) -> Choice:
    """Choose penalty and round by held-out loss; averaging unless a refit is clearly better.

    Parameters
    ----------
    base : (g,) array
        Held-out loss of averaging, by penalty.
    gains, errors : (g, K + 1) arrays
        Held-out loss of each round minus that of averaging with the same penalty, and the standard
        error of this paired difference. NaN where a round was not measured; column 0 is 0.

    Returns
    -------
    Choice
        The best round is kept if its gain exceeds one standard error, and if it beats averaging
        with every penalty of the grid.
    """
    base = np.asarray(base, dtype=float)
    total = base[:, None] + np.asarray(gains, dtype=float)
    if np.isnan(total[:, 1:]).all():
        start = 0 if np.isnan(base).all() else int(np.nanargmin(base))
        return Choice(start, 0, False, "not-measured")
    averaging = int(np.nanargmin(base))
    track, best = np.unravel_index(int(np.nanargmin(total)), total.shape)
    # The best of many rounds looks better than it is: one standard error is asked of it.
    beyond = gains[track, best] + errors[track, best] < 0
    if best > 0 and beyond and total[track, best] < base[averaging]:
        return Choice(int(track), int(best), True, "gain")
    return Choice(averaging, 0, False, "no-gain")
