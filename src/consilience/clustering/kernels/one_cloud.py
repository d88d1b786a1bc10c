"""Are classes more than a division of one cloud? A partition judged on rows that it has not seen.

A partition that was found on one half of the rows is applied to the other half, B. Given the
partition, the rows B are independent of it; were they one cloud, they would be exchangeable with
rows that have the margins of B and its correlation and no other structure. `separation` (of
numbers) or `information` (of codes) of B is compared with that of such draws:

* `cloud_draws`: a Gaussian copula with exactly the margins of B. The normals behind each draw are
  whitened and coloured so that the *drawn* values correlate as those of B do, in every draw: the
  correlation of B is given, and draws that vary in it vary more than B can. (Fitted to all rows,
  with the other half among them, the test would be conservative: what half A has too much of a
  correlation, B lacks.) Statistics look at the normal scores of ranks: a large value goes with
  larger ones in other columns than its rank says, which draws do not know, so that of values rows
  would be less apart than draws; and one record would move the score far.
* `chain_draws`: sequences of one Markov chain whose steps depend on time, with lengths and gaps of
  B.
* `shuffled_draws`: each column by itself. Are columns related at all?

Classes that one column alone shows are in its margin, and so in the draws: they count as no
evidence.

A partition is judged where at least two of its classes have enough rows, and so among draws those
that have them stand beside it: to count the others as "nothing apart" would call it evidence that
rows which were chosen for being apart are so.

Over several partitions of the same rows what the statistic is above the mean of its draws is
averaged, and so is that of each draw: the normals of a row are the same in all of them, so that
draws are correlated over partitions as the rows are, or nearly. Halves of two splits have half of
their rows in common, and statistics of rows are correlated by half of how alike (a correlation over
the same draws) their partitions are; draws of few rows, which take the correlation of one half
each, do so less. The mean over P splits has ``(1 + (P - 1) alike) / (2 P)`` of the variance of one,
and draws are spread at least as much. Beside unrelated columns that is not enough:
what halves A and B have in common by chance counts from A to B and from B to A, at all sites, while
partitions of draws are given. To first order a statistic is u_A'u_B there, with u the sum over rows
of what draws a partition and is judged by it; over P splits in halves the mean of 2 P such products
has 1 / 2 + 1 / (2 P) of the variance of one. (Draws of one cloud have the correlations of the rows
that are judged, which is most of what they have in common by chance.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.clustering.kernels.cell_suppression import Entries

N_DRAWS = 99
MOST_DRAWN = 1_000
"""Rows of one draw; the spread of a statistic over draws of fewer rows follows from theirs."""
_STEPS = 20  # towards the correlation of each draw, at most
_NEAR = 0.1  # standard errors of a correlation, within which draws are near enough
_BETWEEN = 1 / 3  # of the way to the next class mean, from which on a row is between classes
_CUT = 10.0
_FEWEST = 0.2  # share of draws that have a statistic, from which on it is judged
_NOTHING = 1e-9  # what rounding makes of no spread


# --------------------------------------------------------------------------- statistics


def separation(rows: FloatArray, labels: IntArray, least: int = 1) -> FloatArray:
    """Share of the total sum of squares between classes, adjusted for their number.

    Parameters
    ----------
    rows : (D, m, p) array
        D tables.
    labels : (D, m) int array
        At least 0.
    least : int
        Rows of classes with fewer are left out.

    Returns
    -------
    (D,) array
        ``1 - (1 - R^2) (m - 1) / (m - K)`` for K classes of m rows in all; NaN for one class, or
        where the rows do not differ.
    """
    chosen, centred = _chosen(rows, labels, least)
    sizes = chosen.sum(axis=2)
    m, n_classes = sizes.sum(axis=1), (sizes > 0).sum(axis=1)
    total = (chosen.max(axis=1)[:, :, None] * centred**2).sum(axis=(1, 2))
    sums = chosen @ centred
    between = ((sums**2).sum(axis=2) / np.maximum(sizes, 1)).sum(axis=1)
    said = (n_classes > 1) & (m > n_classes) & (total > 0)
    total, spare = np.where(said, total, 1.0), np.where(said, m - n_classes, 1)
    return np.asarray(np.where(said, 1.0 - (1.0 - between / total) * (m - 1) / spare, np.nan))


def information(entries: Entries, n_records: int, labels: IntArray) -> float:
    """What the class of a record tells of its cells: nats per record.

    Parameters
    ----------
    entries : Entries
        What records add to the cells of the table of counts.
    n_records : int
    labels : (n_records,) int array
        At least 0.

    Returns
    -------
    float
        Sum over classes k and cells c of ``n_kc log(p_kc / p_c)`` by record, p being shares within
        the rows of the table, less what chance makes of it, ``(K - 1) (C - R) / (2 n)`` for the K
        classes, C cells and R rows that occur; NaN for one class.
    """
    n_classes, n_cells = int(labels.max(initial=-1)) + 1, len(entries.row_of_cell)
    if len(np.unique(labels)) < 2:
        return float("nan")
    place = labels[entries.record] * n_cells + entries.cell
    counts = np.bincount(place, entries.amount, n_classes * n_cells).astype(np.float64)
    counts = counts.reshape(n_classes, n_cells)
    # Sums of x log x over cells less those over rows of the table, by class less over all.
    told = _x_log_x(counts) - _x_log_x(_by_row(counts, entries.row_of_cell))
    together = counts.sum(axis=0, keepdims=True)
    in_rows = _by_row(together, entries.row_of_cell)
    told -= _x_log_x(together) - _x_log_x(in_rows)
    # Miller's correction: draws of fewer rows would have more of it than the rows.
    free = (len(np.unique(labels)) - 1) * ((together > 0).sum() - (in_rows > 0).sum())
    return float(told - free / 2) / n_records


def share_between(rows: FloatArray, labels: IntArray, least: int = 1) -> FloatArray:
    """Share of rows that lie between classes, (D,); parameters as for `separation`.

    A row is if, on the line from its class mean to that of another class, it has gone more than a
    third of the way. NaN for one class.
    """
    chosen, centred = _chosen(rows, labels, least)
    sizes = chosen.sum(axis=2)
    means = (chosen @ centred) / np.maximum(sizes, 1)[:, :, None]
    own = np.take_along_axis(means, labels[:, :, None], axis=1)
    between = np.zeros(labels.shape, dtype=bool)
    for k in range(sizes.shape[1]):
        towards = means[:, None, k] - own
        length = (towards**2).sum(axis=2)
        gone = ((centred - own) * towards).sum(axis=2)
        between |= (gone > _BETWEEN * length) & (length > 0) & (sizes[:, k, None] > 0)
    kept = chosen.any(axis=1)
    share = (between & kept).sum(axis=1) / np.maximum(kept.sum(axis=1), 1)
    return np.asarray(np.where((sizes > 0).sum(axis=1) > 1, share, np.nan))


def _chosen(rows: FloatArray, labels: IntArray, least: int) -> tuple[FloatArray, FloatArray]:
    """Rows by class, (D, K, m) of 0 and 1, in classes that are large enough; and rows centred."""
    chosen = labels[:, None, :] == np.arange(labels.max(initial=0) + 1)[:, None]
    chosen &= chosen.sum(axis=2, keepdims=True) >= least
    kept = np.asarray(chosen.any(axis=1))[:, :, None]
    mean = (kept * rows).sum(axis=1, keepdims=True) / np.maximum(kept.sum(axis=1), 1)[:, None]
    return chosen.astype(np.float64), rows - mean


def _by_row(counts: FloatArray, row_of_cell: IntArray) -> FloatArray:
    starts = np.flatnonzero(np.diff(row_of_cell, prepend=-1))  # cells of a row are side by side
    return np.asarray(np.add.reduceat(counts, starts, axis=1))


def _x_log_x(values: FloatArray) -> float:
    positive = values[values > 0]
    return float((positive * np.log(positive)).sum())


# --------------------------------------------------------------------------- draws


def scored(rows: FloatArray, like: FloatArray) -> FloatArray:
    """Normal scores of ranks among the columns of `like`; NaN stays.

    Source: van der Waerden's scores; ties have that of their mean rank.
    """
    scores = np.empty(rows.shape)
    for j in range(like.shape[1]):
        known, column = np.sort(like[~np.isnan(like[:, j]), j]), rows[..., j]
        n = max(len(known), 1)
        place = (np.searchsorted(known, column) + np.searchsorted(known, column, "right")) / (2 * n)
        place = np.clip(place, 0.5 / n, 1 - 0.5 / n)
        scores[..., j] = np.where(np.isnan(column), np.nan, ndtri(place))
    return scores


def clipped(rows: FloatArray, like: FloatArray) -> FloatArray:
    """Columns cut at the 2nd and 98th percentile of those of `like`.

    One record moves what is computed of them by no more than any other does.
    """
    low, high = np.quantile(like, [0.02, 0.98], axis=0)
    return np.asarray(np.clip(rows, low, high))


def cloud_draws(rows: FloatArray, normals: FloatArray) -> FloatArray:
    """Draw rows of one cloud: the margins and the correlation of `rows`.

    Parameters
    ----------
    rows : (m, p) array
        NaN where a value is missing.
    normals : (D, m0, p) array
        Standard normal, of D draws of m0 rows; places of missing values as in the first m0 rows.

    Returns
    -------
    (D, m0, p) array
        Sorted by column each draw is the same: all values of `rows`, or as many of their quantiles.
        The normal scores of each correlate as those of `rows` do, as nearly as ranks allow.
    """
    _, m0, p = normals.shape
    margins, unseen = _margins(rows, m0)
    looked_at = scored(rows, rows)
    target = _correlation(_standardised(looked_at, looked_at)[None])
    scores = _standardised(scored(margins, rows), looked_at)
    white = normals - normals.mean(axis=1, keepdims=True)
    if m0 > 3 * p:
        covariance = np.einsum("dmi,dmj->dij", white, white) / m0
        root = np.linalg.cholesky(covariance)
        white = np.linalg.solve(root, white.transpose(0, 2, 1)).transpose(0, 2, 1)
    latent, far = np.repeat(target, len(white), axis=0), np.arange(len(white))
    ranks, least = np.zeros(white.shape, dtype=np.int64), np.full(len(white), np.inf)
    for step in range(_STEPS):
        latent, roots = _positive(latent)
        tried = _ranks(white[far] @ roots, unseen)
        off = target - _correlation(np.take_along_axis(scores[None], tried, axis=1))
        most = np.abs(off).max(axis=(1, 2))
        nearer = most < least[far]
        ranks[far[nearer]], least[far[nearer]] = tried[nearer], most[nearer]
        # Correlations of few levels jump: steps of one length would lead to and fro. Those that
        # become shorter settle.
        latent = latent + off / np.sqrt(1 + step)
        latent[:, np.arange(p), np.arange(p)] = 1.0
        left = least[far] > _NEAR / np.sqrt(m0)
        far, latent = far[left], latent[left]
        if not len(far):
            break
    return np.take_along_axis(margins[None], ranks, axis=1)


def at_correlation(
    told: Sequence[FloatArray], drawn: FloatArray, rows: FloatArray, labels: Sequence[IntArray]
) -> list[FloatArray]:
    """Statistics of draws as they would be had each draw exactly the correlation of the rows.

    Parameters
    ----------
    told : sequence of (D,) array
        Statistics of draws by each partition; NaN stays.
    drawn : (D, m0, p) array
        Scores of draws.
    rows : (m, p) array
        Scores of rows.
    labels : sequence of (m,) int array
        Classes of rows by each partition.

    Returns
    -------
    list of (D,) array
        Less their regression on that part of the differences of correlations which the statistic
        is made of, ``sum_k n_k m_k' (C_d - C) m_k`` for classes of n_k rows with means m_k. Of few
        rows or levels draws cannot have all correlations of the rows at once.
    """
    known = _standardised(rows, rows)
    off = _correlation(_standardised(drawn, rows)) - _correlation(known[None])
    left = []
    for one, classes in zip(told, labels, strict=True):
        chosen = (classes == np.arange(classes.max() + 1)[:, None]).astype(np.float64)
        sums = chosen @ known
        between = (sums / np.maximum(chosen.sum(axis=1), 1)[:, None]).T @ sums
        part, said = (off * between).sum(axis=(1, 2)), ~np.isnan(one)
        centred = part[said] - part[said].mean() if said.any() else part[said]
        size = float(centred @ centred)
        slope = centred @ one[said] / size if size > _NOTHING else 0.0
        left.append(np.asarray(one - slope * part))
    return left


def shuffled_draws(rows: FloatArray, normals: FloatArray) -> FloatArray:
    """Draw rows whose columns have nothing to do with one another; see `cloud_draws`."""
    margins, unseen = _margins(rows, normals.shape[1])
    return np.take_along_axis(margins[None], _ranks(normals.copy(), unseen), axis=1)


def _margins(rows: FloatArray, m0: int) -> tuple[FloatArray, BoolArray]:
    """Quantiles of each column for the seen among the first `m0` rows, and which are unseen."""
    margins = np.full((m0, rows.shape[1]), np.nan)
    unseen = np.isnan(rows[:m0])
    for j, n_seen in enumerate((m0 - unseen.sum(axis=0)).tolist()):
        values = np.sort(rows[~np.isnan(rows[:, j]), j])
        if len(values):  # places of missing values have the last ranks, and none here
            places = (np.arange(n_seen) + 0.5) * len(values) / max(n_seen, 1)
            margins[:n_seen, j] = values[places.astype(np.int64)]
    return margins, unseen


def chain_draws(codes: IntArray, n_states: int, normals: FloatArray) -> IntArray:
    """Draw sequences of one Markov chain, with the lengths and gaps of `codes`.

    Parameters
    ----------
    codes : (m, T) int array
        States; -1 in gaps.
    n_states : int
    normals : (D, m0, T) array
        Standard normal.

    Returns
    -------
    (D, m0, T) int array
        States by shares of first states and of steps; -1 where the first m0 rows have gaps. After a
        gap a sequence goes on from the state that it would have had.

    Notes
    -----
    Steps have shares of their own at each time: lives depend on age, and a chain without it would
    take what all have in common for classes. At each time the steps of all times count as one more.
    """
    every = np.bincount(codes[codes >= 0], minlength=n_states).astype(float)
    begun = codes[:, 0][codes[:, 0] >= 0]
    first = np.bincount(begun, minlength=n_states).astype(float) if len(begun) else every
    n_times = codes.shape[1]
    counts = np.zeros((n_times - 1, n_states, n_states))
    record, time = np.nonzero((codes[:, :-1] >= 0) & (codes[:, 1:] >= 0))
    np.add.at(counts, (time, codes[record, time], codes[record, time + 1]), 1.0)
    overall = counts.sum(axis=0)
    overall[overall.sum(axis=1) == 0] = every  # a state that nobody left
    steps = counts + overall / overall.sum(axis=1, keepdims=True)
    jumps = np.cumsum(steps / steps.sum(axis=2, keepdims=True), axis=2)
    uniforms = ndtr(normals)
    drawn = np.empty(uniforms.shape, dtype=np.int64)
    bounds = np.cumsum(first / first.sum())
    state = np.minimum((uniforms[:, :, :1] >= bounds).sum(axis=2), n_states - 1)
    drawn[:, :, 0] = state
    for t in range(1, n_times):
        passed = uniforms[:, :, t, None] >= jumps[t - 1][state]
        state = np.minimum(passed.sum(axis=2), n_states - 1)
        drawn[:, :, t] = state
    drawn[:, codes[: normals.shape[1]] < 0] = -1
    return drawn


def level_scores(codes: IntArray, sizes: Sequence[int]) -> FloatArray:
    """Order the levels of each column along the first axis that the columns have in common.

    Parameters
    ----------
    codes : (m, p) int array
        -1 where missing.
    sizes : sequence of int
        Levels of each column.

    Returns
    -------
    (m, p) array
        Place of each level in its column's order; NaN where missing. Levels of two need no order.
    """
    blocks = [(codes[:, [j]] == np.arange(size)) * 1.0 for j, size in enumerate(sizes)]
    table = np.concatenate(blocks, axis=1)
    share = np.maximum(table.mean(axis=0), 1e-12)
    # Multiple correspondence analysis: levels weighted by the inverse of what they hold.
    weighted = (table - share) / np.sqrt(share)
    if len(weighted) < weighted.shape[1]:
        axis = np.linalg.svd(weighted, full_matrices=False)[2][0]
    else:
        axis = np.linalg.eigh(weighted.T @ weighted)[1][:, -1]
    scores = np.split(axis / np.sqrt(share), np.cumsum(sizes)[:-1])
    placed = np.full(codes.shape, np.nan)
    for j, score in enumerate(scores):
        seen = codes[:, j] >= 0
        placed[seen, j] = score.argsort().argsort()[codes[seen, j]]
    return placed


def levels_of(placed: FloatArray, codes: IntArray, like: FloatArray) -> IntArray:
    """Codes of drawn places, (D, m0, p); `like` are the places of `codes`, see `level_scores`."""
    found = np.full(placed.shape, -1, dtype=np.int64)
    for j in range(codes.shape[1]):
        known = codes[:, j] >= 0
        names = np.full(int(np.nanmax(like[:, j], initial=0)) + 1, -1)
        names[like[known, j].astype(np.int64)] = codes[known, j]
        seen = ~np.isnan(placed[:, :, j])
        found[:, :, j][seen] = names[placed[:, :, j][seen].astype(np.int64)]
    return found


def _ranks(values: FloatArray, unseen: BoolArray) -> IntArray:
    """Ranks (D, m, p) within each draw and column; places of missing values come last."""
    values[:, unseen] = np.inf
    ranks = np.empty(values.shape, dtype=np.int64)
    places = np.broadcast_to(np.arange(values.shape[1])[None, :, None], values.shape)
    np.put_along_axis(ranks, values.argsort(axis=1), places, axis=1)
    return ranks


def _standardised(rows: FloatArray, by: FloatArray) -> FloatArray:
    """Columns by mean and spread of `by`; 0 where a value is missing, or a column constant."""
    with np.errstate(invalid="ignore", divide="ignore"):
        seen = ~np.isnan(by)
        n = np.maximum(seen.sum(axis=0), 1)
        mean = np.where(seen, by, 0.0).sum(axis=0) / n
        spread = np.sqrt((np.where(seen, by - mean, 0.0) ** 2).sum(axis=0) / n)
        return np.asarray(np.nan_to_num((rows - mean) / spread, posinf=0.0, neginf=0.0))


def _correlation(scores: FloatArray) -> FloatArray:
    """Correlations (D, p, p) of standardised columns (D, m, p)."""
    products = np.einsum("dmi,dmj->dij", scores, scores) / scores.shape[1]
    size = np.sqrt(np.einsum("dii->di", products))
    size[size == 0] = 1.0
    return np.asarray(products / size[:, :, None] / size[:, None, :])


def _positive(latent: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Nearest correlation matrices, about, with roots R: normals times R correlate by them."""
    values, vectors = np.linalg.eigh(latent)
    fixed = (vectors * np.maximum(values, 1e-6)[:, None, :]) @ vectors.transpose(0, 2, 1)
    size = np.sqrt(np.einsum("dii->di", fixed))
    fixed = fixed / size[:, :, None] / size[:, None, :]
    return fixed, np.linalg.cholesky(fixed + 1e-9 * np.eye(fixed.shape[1])).transpose(0, 2, 1)


# --------------------------------------------------------------------------- scores


@dataclass(frozen=True, eq=False)
class Compared:
    """A statistic beside that of draws.

    Attributes
    ----------
    found : float
    draws : (D,) array
        NaN where it cannot be said of a draw.
    shrink : float
        Spread of the statistic of all rows over that of draws, which may have fewer.
    elsewhere : (D,) array, optional
        Of the same draws by a partition of another split.
    """

    found: float
    draws: FloatArray
    shrink: float = 1.0
    elsewhere: FloatArray | None = None

    @property
    def said(self) -> bool:
        """Whether there is a statistic, and enough draws have it too."""
        return not np.isnan(self.found) and float((~np.isnan(self.draws)).mean()) >= _FEWEST

    @property
    def score(self) -> float:
        """Standard deviations above the mean of the draws, cut to ten; NaN if there is nothing."""
        if not self.said:
            return float("nan")
        above = self.found - float(np.nanmean(self.draws))
        spread = float(np.nanstd(self.draws, ddof=1)) * self.shrink
        if abs(above) < _NOTHING:
            return float("nan")  # nothing varies but what is given: one column, or constant ones
        return float(np.clip(above / max(spread, _NOTHING), -_CUT, _CUT))


def averaged(parts: Sequence[Compared], *, by_chance: bool = False) -> Compared:
    """Mean over partitions, and of each draw over those that it has a statistic in.

    Parameters
    ----------
    parts : sequence of Compared
        Partitions of both halves of several splits.
    by_chance : bool
        Whether draws vary as much as what halves have in common by chance, see the top.
    """
    said = [part for part in parts if part.said]
    if not said:
        return Compared(float("nan"), np.full(N_DRAWS, np.nan))
    draws = np.array([part.draws for part in said])
    means = np.nanmean(draws, axis=1)
    above = draws - means[:, None]
    missing, n = np.isnan(above), len(said)
    every = np.where(missing, 0.0, above).sum(axis=0) / np.maximum((~missing).sum(axis=0), 1)
    spread = float(every[~missing.all(axis=0)].std(ddof=1))
    alike = [_alike(part.draws, part.elsewhere) for part in said if part.elsewhere is not None]
    if by_chance:
        share = min(1.0, 0.5 + 1.0 / n)
    else:
        share = (1.0 + (n - 2) * float(np.mean(alike)) / 2) / n if alike else 0.0
    wanted = float(np.sqrt(share * np.nanvar(draws, axis=1, ddof=1).mean()))
    if spread > _NOTHING and (by_chance or wanted > spread):
        every *= wanted / spread
    return Compared(
        float(np.mean([part.found for part in said])),
        np.where(missing.all(axis=0), np.nan, means.mean() + every),
        float(np.mean([part.shrink for part in said])),
    )


def _alike(first: FloatArray, second: FloatArray) -> float:
    """Correlation over the draws that both know, 0 where one of them is the same in all."""
    both = ~np.isnan(first) & ~np.isnan(second)
    if both.sum() < 3 or min(first[both].std(), second[both].std()) < _NOTHING:
        return 0.0
    return float(np.corrcoef(first[both], second[both])[0, 1])


def combined(scores: FloatArray, n_rows: FloatArray) -> float:
    """Score over sites that said something: weights go with the root of their rows.

    Source: Stouffer's method; see Zaykin, *Optimally weighted Z-test* (2011).
    """
    said = ~np.isnan(scores)
    weights = np.sqrt(n_rows[said])
    if not weights.sum():
        return float("nan")
    return float(weights @ scores[said] / np.sqrt((weights**2).sum()))
