"""Sparse quadratic discriminant analysis: the path of penalties and the choice among them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.folds import Fold
from consilience.discriminant.estimators.predictors import SparseQDAPredictor
from consilience.discriminant.kernels import joint_precision
from consilience.discriminant.kernels.joint_precision import JointPrecision, fit_precisions
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import at_a_time, one_thread, ordered_map
from consilience.numerics.progress import followed, foretell
from consilience.parameters import LEFT_OUT, check, just, number, one_of, whole

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-12
"""Standard deviations below this times the size of the mean are rounding errors of a constant."""

FOLD_TOL, WIDE = (1e-6, 1e-5), 20
"""Relative gaps at which fits in folds end, unless `tol` is larger: with up to `WIDE` columns, and
with more, where precision costs much. Labels of held-out rows, and so the chosen penalty, hardly
ever depend on more."""

LOST, CLEARLY = 3, 4.0
"""Penalties in a row that have lost, and standard errors by which they have, from which on no
smaller one is tried."""

TOGETHER = 600
"""Columns up to which the fits of all folds are kept at a time: more would need much memory."""

FOLD_STEPS, FINAL_STEPS, STEP = 12, 25, 1.6
"""Steps of a fit in a fold and on all rows, and seconds of a step over those of an
eigendecomposition, as they were on several tables; single ones differ by a factor of two."""

TINY, TIMED = 20, 300
"""Features of the largest block below which no fit is long, and of the block that is timed."""


@dataclass(frozen=True, eq=False)
class QDAUnits:
    """Columns that take part, and their units.

    Attributes
    ----------
    n_features : int
        p, with the columns that take no part.
    kept : (m,) array of int
        Columns that are not constant, in the order of the table.
    scale : (m,) array
        What the kept columns are divided by; 1 without standardisation.
    floor : (K, m) array
        What is added to the variances of the kept columns, in units of `scale` squared: 0 but where
        a column is constant within a class.
    """

    n_features: int
    kept: IntArray
    scale: FloatArray
    floor: FloatArray

    @property
    def left_out(self) -> IntArray:
        """Columns that are constant everywhere."""
        return np.setdiff1d(np.arange(self.n_features), self.kept).astype(np.int64)

    @property
    def floored(self) -> IntArray:
        """Pairs of class and column whose variance was raised, (f, 2)."""
        k, j = np.nonzero(self.floor)
        return np.column_stack([k, self.kept[j]]).astype(np.int64)


def units_of(
    n: ArrayLike, means: ArrayLike, variances: ArrayLike, *, standardize: bool = True
) -> QDAUnits:
    """Units of the columns from aggregates of the classes.

    Parameters
    ----------
    n : (K,) array
        Rows by class.
    means : (K, p) array
    variances : (K, p) array
        Divisor n_k.
    standardize : bool
        Divide columns by their pooled standard deviation within the classes, divisor n.

    Returns
    -------
    QDAUnits

    Raises
    ------
    DataError
        All columns are constant.

    Notes
    -----
    A column that is constant within a class, but not everywhere, would give this class an infinite
    precision. The class says nothing of the column's spread there, so it takes that of the others:
    the pooled variance within the classes. (Smaller stand-ins make a class surer the less it has
    told: on words of mails that a class happens to lack, errors rise from .13 with the pooled
    variance to .17 with a share 1 / n_k of it and .20 with a thousandth.) A column that is constant
    within every class counts with its total variance instead.
    """
    n, means, variances = (np.asarray(value, dtype=np.float64) for value in (n, means, variances))
    weights = n / n.sum()
    # Pooled within the classes, and about the mean of all rows.
    within = weights @ variances
    total = within + weights @ (means - weights @ means) ** 2
    noise = (ROUNDING * np.abs(means).max(axis=0)) ** 2
    kept = np.flatnonzero(total > noise)
    if not len(kept):
        raise DataError("every column is constant: there is nothing that tells classes apart")
    within, total, noise = within[kept], total[kept], noise[kept]
    spread = np.where(within > np.maximum(noise, ROUNDING * total), within, total)
    # Rounding of a constant, or of a mean that is large beside the spread.
    constant = variances[:, kept] <= np.maximum(noise, ROUNDING**2 * spread)
    scale = np.sqrt(spread) if standardize else np.ones(len(kept))
    floor = np.where(constant, spread, 0.0) / scale**2
    return QDAUnits(means.shape[1], kept.astype(np.int64), scale, floor)


# --------------------------------------------------------------------------- results


@dataclass(frozen=True, eq=False)
class SparseQDAPath:
    """Fits along a grid of penalties, the sparsest first.

    Attributes
    ----------
    alphas : (A,) array
        Penalty for a row, falling.
    n_links : (A,) array of int
        Pairs of features that interact.
    largest_block : (A,) array of int
        Features of the largest block, 1 where no features are linked.
    penalty_norms : (A,) array
        P(T): sum of the norms of all groups over ordered pairs.
    relative_penalties : (A,) array
        P(T) over that of `relative_to` of the estimator.
    gaps : (A,) array
        Relative duality gaps.
    cv_wrong : (F, A) array of int
        Rows that were misclassified, by fold; no folds without cross-validation.
    cv_rows : (F,) array of int
        Rows that were judged in each fold.
    """

    alphas: FloatArray
    n_links: IntArray
    largest_block: IntArray
    penalty_norms: FloatArray
    relative_penalties: FloatArray
    gaps: FloatArray
    cv_wrong: IntArray
    cv_rows: IntArray

    @property
    def cv_errors(self) -> FloatArray:
        """Share of misclassified rows by fold and penalty, (F, A)."""
        return np.asarray(self.cv_wrong / self.cv_rows[:, None], dtype=np.float64)

    @property
    def cv_error(self) -> FloatArray:
        """Share of misclassified rows over all folds, (A,); NaN without cross-validation."""
        if not len(self.cv_rows):
            return np.full(len(self.alphas), np.nan)
        return np.asarray(self.cv_wrong.sum(axis=0) / self.cv_rows.sum(), dtype=np.float64)

    @property
    def cv_se(self) -> FloatArray:
        """Standard error of `cv_error` from the spread of the folds, (A,); NaN below two folds."""
        if len(self.cv_rows) < 2:
            return np.full(len(self.alphas), np.nan)
        # Of a ratio of sums over folds: deviations from the common share.
        deviations = self.cv_wrong - self.cv_rows[:, None] * self.cv_error
        n_folds = len(self.cv_rows)
        spread = (deviations**2).sum(axis=0) * n_folds / (n_folds - 1)
        return np.asarray(np.sqrt(spread) / self.cv_rows.sum(), dtype=np.float64)

    def __len__(self) -> int:
        return len(self.alphas)

    def to_frame(self) -> pd.DataFrame:
        """One row for each penalty."""
        import pandas as pd

        return pd.DataFrame(
            {
                "alpha": self.alphas,
                "n_links": self.n_links,
                "largest_block": self.largest_block,
                "penalty_norm": self.penalty_norms,
                "relative_penalty": self.relative_penalties,
                "gap": self.gaps,
                "cv_error": self.cv_error,
                "cv_se": self.cv_se,
            }
        )


@dataclass(frozen=True, eq=False)
class SparseQDAInteractions:
    """Pairs of features that interact within the classes, the strongest first.

    Attributes
    ----------
    feature_1, feature_2 : (L,) arrays of str
        Names, the feature that comes first in the table first.
    pairs : (L, 2) array of int
        Columns of the table.
    strength : (L,) array
        Euclidean norm of the pair's entries over the classes, which the penalty acts on, in the
        units of the fit.
    precision : (L, K) array
        Entries of the precision matrices, in the units of the fit.
    partial_correlation : (L, K) array
        Given all other features.
    classes : (K,) array
    """

    feature_1: NDArray[Any]
    feature_2: NDArray[Any]
    pairs: IntArray
    strength: FloatArray
    precision: FloatArray
    partial_correlation: FloatArray
    classes: NDArray[Any]

    @classmethod
    def of(
        cls, precision: JointPrecision, units: QDAUnits, classes: NDArray[Any], names: Sequence[str]
    ) -> SparseQDAInteractions:
        """Interactions of a fit.

        Parameters
        ----------
        precision : JointPrecision
        units : QDAUnits
        classes : (K,) array
        names : sequence of str
            Of all columns of the table.
        """
        # Diagonal entries stand in blocks, or beside them.
        pairs, entries = precision.links()
        diagonal = np.array(precision.diagonal)
        for block, matrices in zip(precision.blocks, precision.precisions):
            diagonal[:, block] = np.diagonal(matrices, axis1=1, axis2=2)
        # What the penalty acts on: the norm over the classes.
        strength = np.sqrt((entries**2).sum(axis=1))
        order = np.lexsort((pairs[:, 1], pairs[:, 0], -strength))
        pairs, entries = pairs[order], entries[order]
        # Partial correlation: minus the entry over the roots of the two diagonal ones.
        size = np.sqrt(diagonal[:, pairs[:, 0]] * diagonal[:, pairs[:, 1]]).T
        columns = units.kept[pairs].reshape(-1, 2)
        texts = np.array([str(name) for name in names], dtype=object)
        told = (columns.astype(np.int64), strength[order], entries, -entries / size)
        first, second = texts[columns.T]
        return cls(first, second, *told, classes)

    def __len__(self) -> int:
        return len(self.strength)

    def to_frame(self) -> pd.DataFrame:
        """One row for each pair."""
        import pandas as pd

        return pd.DataFrame(self.columns())

    def columns(self) -> dict[str, Any]:
        """Columns of the frame, by name."""
        names = ("precision", "partial_correlation")
        return {name: getattr(self, name) for name in ("feature_1", "feature_2", "strength")} | {
            f"{name}_{label}": getattr(self, name)[:, k]
            for name in names
            for k, label in enumerate(self.classes)
        }


# --------------------------------------------------------------------------- screening


@dataclass(frozen=True, eq=False)
class LinkForest:
    """Spanning forest of the strongest links: it has the components of every larger penalty.

    Attributes
    ----------
    n_features : int
    pairs : (e, 2) array of int
        Features j < j', at most one pair fewer than features.
    norms : (e,) array
        ``|(n_k S_k,jj')_k|_2`` of the pairs.
    """

    n_features: int
    pairs: IntArray
    norms: FloatArray

    @classmethod
    def of(cls, moments: joint_precision.ClassMoments, lam: float) -> LinkForest:
        """Forest of the links above a penalty, tile by tile.

        Parameters
        ----------
        moments : ClassMoments
        lam : float

        Notes
        -----
        Memory is one tile, its links and the forest. The links of a maximum spanning forest that
        exceed a threshold span the components of all links that exceed it (the cycle property), and
        forests of parts may be merged.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import minimum_spanning_tree

        p = moments.n_features
        i, j, norms = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        for rows, columns in joint_precision.tiles(p):
            tile = moments.norms(rows, columns)
            linked = tile > lam
            if rows == columns:
                linked = np.triu(linked, 1)
            more = np.nonzero(linked)
            if len(more[0]):
                # A minimum spanning forest of negative norms is a maximum one of norms.
                links = -np.concatenate([norms, tile[more]])
                i, j = (
                    np.concatenate([known, new + part.start])
                    for known, new, part in zip((i, j), more, (rows, columns), strict=True)
                )
                graph = coo_array((links, (i, j)), shape=(p, p)).tocsr()
                tree = minimum_spanning_tree(graph).tocoo()
                i, j, norms = tree.row, tree.col, -tree.data
        return cls(p, np.column_stack([i, j]).astype(np.int64), norms)

    def labels(self, lam: float) -> IntArray:
        """Number of each feature's component, (p,)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        i, j = self.pairs[self.norms > lam].T
        graph = coo_array((np.ones(len(i)), (i, j)), shape=(self.n_features,) * 2)
        return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)

    def largest(self, lam: float) -> int:
        """Features of the largest component."""
        return int(np.bincount(self.labels(lam)).max())

    def critical(self, max_size: int) -> float:
        """Smallest penalty of the forest's links with no larger component; 0 where all have none.

        Parameters
        ----------
        max_size : int
        """
        values = np.concatenate([[0.0], np.unique(self.norms)])
        # At the largest value nothing is linked.
        places = range(len(values) - 1)
        # Components shrink as the penalty grows.
        first = bisect_left(places, -max_size, key=lambda i: -self.largest(float(values[i])))
        return float(values[first])


class ForestMoments:
    """Moments that remember a forest of links and the covariances of its components.

    For penalties of at least that of the forest they answer as the moments that they stand for,
    without another pass over the rows: tiles hold the links of the forest only.

    Parameters
    ----------
    inner : ClassMoments
    forest : LinkForest
    lam : float
        Smallest penalty that will be asked about.
    """

    def __init__(self, inner: joint_precision.ClassMoments, forest: LinkForest, lam: float) -> None:
        self.n, self.n_features, self.diagonal = inner.n, inner.n_features, inner.diagonal
        self._inner, self._forest, self._home = inner, forest, forest.labels(lam)
        self._known: dict[int, tuple[IntArray, FloatArray]] = {}

    def block(self, features: Any) -> FloatArray:
        """Covariances among features of one component, (K, q, q)."""
        home = int(self._home[features[0]])
        # A component is read from the rows once, for all smaller blocks in it.
        if home not in self._known:
            members = np.flatnonzero(self._home == home)
            self._known[home] = (members, self._inner.block(members))
        members, covariances = self._known[home]
        at = np.searchsorted(members, features)
        return np.ascontiguousarray(covariances[:, at[:, None], at[None, :]])

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of the forest's norms; 0 where two features have no link in the forest."""
        first, last = range(self.n_features)[rows], range(self.n_features)[columns]
        tile = np.zeros((len(first), len(last)))
        pairs = self._forest.pairs.T
        for i, j in (pairs, pairs[::-1]):
            inside = (i >= first.start) & (i < first.stop) & (j >= last.start) & (j < last.stop)
            tile[i[inside] - first.start, j[inside] - last.start] = self._forest.norms[inside]
        return tile


# --------------------------------------------------------------------------- settings


_NONE = np.empty(0, dtype=np.int64)
TIES = ("sparsest", "densest", "middle")
_ALLOWED = {
    "alpha": number(0) | just("cv"),
    "n_alphas": whole(2),
    "smallest": number(above=0, below=1) | just("auto"),
    "ties": one_of(*TIES),
    "max_block": whole(2) | LEFT_OUT,
    "tol": number(above=0),
    "max_iter": whole(1) | LEFT_OUT,
}


@dataclass(frozen=True)
class QDASettings:
    """Settings of a fit; see `SparseQDA` for their meaning.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """

    alpha: Any = "cv"
    n_alphas: Any = 20
    smallest: Any = "auto"
    alphas: Any = None
    ties: Any = "sparsest"
    standardize: bool = True
    max_block: Any = 2000
    tol: Any = 1e-8
    max_iter: Any = None
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check(_ALLOWED, vars(self))
        if self.alphas is None:
            return
        try:
            grid = np.unique(np.asarray(self.alphas, dtype=np.float64))[::-1]
            fits = len(grid) and np.ndim(self.alphas) == 1 and np.isfinite(grid).all()
        except (TypeError, ValueError):
            fits = False
        if not fits or grid[-1] < 0:
            raise ParameterError.of("alphas", "a list of numbers of at least 0", self.alphas)
        # The largest first.
        object.__setattr__(self, "alphas", np.ascontiguousarray(grid))


# ------------------------------------------------------------------ moments in their units


@dataclass(frozen=True, eq=False)
class PreparedMoments:
    """Moments of the classes in units of their own.

    Attributes
    ----------
    n : (K,) array
        Rows by class.
    means : (K, p) array
        Of all columns, in the units of the table.
    units : QDAUnits
    moments : ClassMoments
        Of the columns that take part, in their units.
    whole : bool
        Whether they are known between all columns, not within blocks only.
    counted : (K,) array, optional
        Rows by class that are known to be there, with those that are not in the moments.
    """

    n: FloatArray
    means: FloatArray
    units: QDAUnits
    moments: joint_precision.ClassMoments
    whole: bool = True
    counted: FloatArray | None = None

    @property
    def told(self) -> FloatArray:
        """Rows by class that priors are shares of, (K,)."""
        return self.n if self.counted is None else self.counted

    @property
    def total(self) -> float:
        """Rows of all classes: what a penalty for a row is multiplied by."""
        return float(self.n.sum())

    @property
    def full_rank(self) -> bool:
        """Whether every class has more rows than there are features, all moments known.

        What lies between blocks is known to be small, not what it is: without a penalty there is
        no fit then.
        """
        return self.whole and bool(self.n.min() > self.moments.n_features)

    def predictor(
        self,
        precision: JointPrecision,
        classes: NDArray[Any],
        priors: FloatArray | None = None,
        feature_names: Sequence[str] | None = None,
    ) -> SparseQDAPredictor:
        """Predictor with the classes' shares of all rows as priors, unless others are given."""
        shares = self.told / self.told.sum() if priors is None else priors
        units = self.units
        return SparseQDAPredictor(
            self.means[:, units.kept],
            log_priors=np.log(shares),
            scale=units.scale,
            kept=units.kept,
            diagonal=precision.diagonal,
            blocks=precision.blocks,
            precisions=precision.precisions,
            classes=classes,
            n_features=units.n_features,
            feature_names=feature_names,
        )


def prepare_rows(
    x: FloatArray, codes: IntArray, n_classes: int, *, standardize: bool = True
) -> PreparedMoments:
    """Moments of rows.

    Parameters
    ----------
    x : (n, p) array
    codes : (n,) array of int
        Class of each row; of every class 2 rows or more.
    n_classes : int
        K.
    standardize : bool
        Divide columns by their pooled standard deviation within the classes.

    Raises
    ------
    DataError
        All columns are constant.
    """
    raw = joint_precision.RowMoments.of(x, codes, n_classes)
    units = units_of(raw.n, raw.means, raw.diagonal, standardize=standardize)
    moments, kept, scale = raw, units.kept, units.scale
    if standardize or len(kept) < units.n_features:
        moments = joint_precision.RowMoments(
            raw.n,
            raw.means[:, kept] / scale,
            tuple(part[:, kept] / scale for part in raw.centred),
            raw.diagonal[:, kept] / scale**2,
        )
    moments = replace(moments, diagonal=moments.diagonal + units.floor, floor=units.floor)
    return PreparedMoments(raw.n, raw.means, units, moments)


# ------------------------------------------------------------------ paths


def grid_of(prepared: PreparedMoments, settings: QDASettings) -> FloatArray:
    """Penalties for a row, falling: those of the settings, or from the first without any link.

    An automatic grid ends where more than `max_block` features would be linked.
    """
    if not isinstance(settings.alpha, str):
        return np.array([float(settings.alpha)])
    if settings.alphas is not None:
        return np.asarray(settings.alphas)
    moments, total = prepared.moments, prepared.total
    largest = joint_precision.largest_penalty(moments) / total
    sizes = np.sqrt(((prepared.n[:, None] * moments.diagonal) ** 2).sum(axis=0))
    if largest * total <= ROUNDING * sizes.max():  # no two features are correlated
        return np.array([largest])
    # One rounding error more, so that the first penalty has no link.
    first = largest * (1 + 1e-15)
    last = first * smallest_share(prepared, settings)
    if settings.max_block is not None and moments.n_features > settings.max_block:
        forest = LinkForest.of(moments, last * total)
        last = max(last, forest.critical(settings.max_block) * (1 + 1e-12) / total)
    return np.geomspace(first, min(last, first), settings.n_alphas)


def smallest_share(prepared: PreparedMoments, settings: QDASettings) -> float:
    """Last penalty of an automatic grid over its first."""
    if isinstance(settings.smallest, str):
        # With fewer rows the dense end is slow, and rarely the best.
        return 0.001 if prepared.full_rank else 0.01
    return float(settings.smallest)


def precision_path(
    prepared: PreparedMoments,
    alphas: FloatArray,
    settings: QDASettings,
    *,
    n_jobs: int = 1,
    stop: bool = False,
) -> Iterator[JointPrecision]:
    """Fit penalty after penalty, each from the one before.

    Parameters
    ----------
    prepared : PreparedMoments
    alphas : (A,) array
        Penalties for a row, falling.
    settings : QDASettings
    n_jobs : int
        Blocks at a time.
    stop : bool
        End before the first penalty whose largest block is too large, in place of an error.
    """
    moments, lams, most = prepared.moments, alphas * prepared.total, settings.max_block
    if len(lams) > 1:  # one pass over the rows tells the blocks of all penalties
        forest = LinkForest.of(moments, float(lams[-1]))
        if stop and most is not None:
            large = [forest.largest(float(lam)) > most for lam in lams]
            lams = lams[: large.index(True)] if True in large else lams
        moments = ForestMoments(moments, forest, float(lams[-1]) if len(lams) else np.inf)
    start: JointPrecision | None = None
    before: tuple[JointPrecision, ...] = ()
    for lam in lams:
        try:
            found = fit_precisions(
                moments,
                float(lam),
                start=start,
                before=before,
                tol=settings.tol,
                max_iter=settings.max_iter or joint_precision.MOST_STEPS,
                max_block=most,
                n_jobs=n_jobs,
            )
        except DataError:
            if lam > 0:
                raise
            raise DataError(
                "without a penalty (alpha = 0) the covariance matrix of every class must have an "
                "inverse, and one has none: give a positive alpha, or drop columns that others add "
                "up to"
            ) from None
        start, before = found, () if start is None else (start, *before[:1])
        yield found


@dataclass(frozen=True, eq=False)
class FoldAnswer:
    """What one fold says.

    Attributes
    ----------
    wrong : (A,) array of int
        Misclassified rows by penalty, as far as the path went.
    n_rows : int
        Rows that were judged.
    missing : (m,) array of int
        Classes without two rows to learn from: their rows are wrong at every penalty.
    gaps : (A,) array
        Relative gaps; none where nothing was fitted.
    singular : bool
        Whether the path ended before a penalty of 0, because a class has no inverse here.
    """

    wrong: IntArray
    n_rows: int
    missing: IntArray = field(default_factory=lambda: _NONE)
    gaps: FloatArray = field(default_factory=lambda: np.empty(0))
    singular: bool = False


def fold_tol(tol: float, n_features: int) -> float:
    """Relative gap at which fits in folds end.

    Parameters
    ----------
    tol : float
        That of the fit to all rows.
    n_features : int
        Columns that take part.
    """
    return max(tol, FOLD_TOL[n_features > WIDE])


def judge_fold(
    x: FloatArray,
    codes: IntArray,
    n_classes: int,
    alphas: FloatArray,
    priors: FloatArray | None,
    settings: QDASettings,
    fold: Fold,
) -> Iterator[FoldAnswer]:
    """Fit the path to the rows of one part and count the errors among those of the other.

    Yields what the fold says before the first penalty and after each.

    Parameters
    ----------
    x : (n, p) array
    codes : (n,) array of int
    n_classes : int
    alphas : (A,) array
    priors : (K,) array, optional
    settings : QDASettings
    fold : pair of arrays of int
        Rows to learn from, rows to judge.
    """
    train, test = fold
    # A class needs two rows to have a variance.
    counts = np.bincount(codes[train], minlength=n_classes)
    there, missing = np.flatnonzero(counts >= 2), np.flatnonzero(counts < 2)
    answer = partial(FoldAnswer, n_rows=len(test), missing=missing)
    steps = len(alphas) + 1
    if len(there) < 2:
        yield from repeat(answer(np.full(len(alphas), len(test))), steps)
        return
    train = train[counts[codes[train]] >= 2]
    places = np.searchsorted(there, codes[train])
    try:
        prepared = prepare_rows(x[train], places, len(there), standardize=settings.standardize)
    except DataError:  # every column is constant in this part
        most = there[counts[there].argmax()]
        yield from repeat(answer(np.full(len(alphas), (codes[test] != most).sum())), steps)
        return
    settings = replace(settings, tol=fold_tol(settings.tol, prepared.moments.n_features))
    # Not scaled to sum 1: the same constant for every class.
    shares = None if priors is None else priors[there]
    errors: list[int] = []
    gaps: list[float] = []

    def now(singular: bool = False) -> FoldAnswer:
        wrong = np.array(errors, dtype=np.int64)
        return answer(wrong, gaps=np.array(gaps), singular=singular)

    yield now()
    try:
        for precision in precision_path(prepared, alphas, settings, stop=True):
            labels = prepared.predictor(precision, there, shares).predict(x[test])
            errors.append(int((labels != codes[test]).sum()))
            gaps.append(precision.relative_gap)
            yield now()
    except DataError:
        if len(errors) == len(alphas) or alphas[len(errors)] > 0:
            raise
        # Too few rows in this part only; of the whole table `follow` asks.
        yield now(singular=True)


def whole_fold(judge: Callable[[Fold], Iterator[FoldAnswer]], n: int, fold: Fold) -> FoldAnswer:
    """What a fold says at the end of its path of n penalties."""
    with one_thread():
        return deque(followed(judge(fold), "penalties of a fold", n + 1), maxlen=1)[0]


def judge_folds(
    judge: Callable[[Fold], Iterator[FoldAnswer]],
    folds: Sequence[Fold],
    n: int,
    settings: QDASettings,
    *,
    together: bool,
    race: bool,
) -> list[FoldAnswer]:
    """What the folds say about n penalties, or about those up to which one of them can win.

    Parameters
    ----------
    judge : callable
        `judge_fold` of a fold.
    folds : sequence of pairs of arrays of int
    n : int
    settings : QDASettings
    together : bool
        Go down the path with all folds at once, where there is one worker: what cannot win is not
        fitted then. The answer is the same.
    race : bool
        Whether penalties may be left out.
    """
    if race and together and at_a_time(settings.n_jobs) == 1:
        answers: list[FoldAnswer] = []
        steps = zip(*(judge(fold) for fold in folds), strict=False)
        for now in followed(steps, "penalties", n + 1):
            answers = list(now)
            if can_win(answers, settings.ties) is not None:
                break
    else:
        judge_whole = partial(whole_fold, judge, n)
        answers = ordered_map(judge_whole, folds, n_jobs=settings.n_jobs, what="folds")
    most = can_win(answers, settings.ties) if race else None
    if most is None:
        most = min(len(one.wrong) for one in answers)
    return [replace(one, wrong=one.wrong[:most], gaps=one.gaps[:most]) for one in answers]


def can_win(answers: Sequence[FoldAnswer], ties: str) -> int | None:
    """Number of penalties after which hardly a smaller one can win; None where one may.

    At `LOST` penalties in a row there was no error (a sparser fit wins a tie), or the errors were
    clearly more than at the best before: by `CLEARLY` standard errors of a difference of two counts
    of the same rows, ``e - e'``, whose variance is at most ``e + e'``.
    """
    reach = min(len(answer.wrong) for answer in answers)
    wrong = np.sum([answer.wrong[:reach] for answer in answers], axis=0)
    least = np.minimum.accumulate(wrong)
    lost = wrong - least > CLEARLY * np.sqrt(wrong + least)
    if ties == "sparsest":
        lost |= wrong == 0
    in_a_row = [lost[i : i + LOST].all() for i in range(reach - LOST + 1)]
    return in_a_row.index(True) + LOST if True in in_a_row else None


def choose(wrong: IntArray, ties: str) -> int:
    """Place of the penalty with the fewest errors, among equal ones as `ties` says."""
    # Penalties fall, so the first of them is the sparsest.
    best = np.flatnonzero(wrong == wrong.min())
    return int(best[{"sparsest": 0, "densest": -1, "middle": (len(best) - 1) // 2}[ties]])


def expected_seconds(
    prepared: PreparedMoments, alphas: FloatArray, n_folds: int, settings: QDASettings
) -> float:
    """About how long a path with its folds will take here, within a factor of two or three.

    Screening says how large the largest block will be at every penalty, one eigendecomposition how
    fast this machine is; the steps of a fit are those of tables that were tried.

    Parameters
    ----------
    prepared : PreparedMoments
    alphas : (A,) array
    n_folds : int
    settings : QDASettings
    """
    lams = alphas * prepared.total
    forest = LinkForest.of(prepared.moments, float(lams[-1]))
    sizes = np.array([forest.largest(float(lam)) for lam in lams], dtype=np.float64)
    if settings.max_block is not None:
        sizes = sizes[sizes <= settings.max_block]
    if not sizes.size or sizes.max() < TINY:
        return 0.0
    q = int(min(sizes.max(), TIMED))
    step = STEP * len(prepared.n) * eigen_seconds(q)
    steps = FOLD_STEPS * n_folds / min(at_a_time(settings.n_jobs), max(1, n_folds)) + FINAL_STEPS
    return float(step * steps * ((sizes / q) ** 3).sum())


def eigen_seconds(q: int) -> float:
    """Seconds of one eigendecomposition of a q x q matrix, the least of three."""
    matrix, found = np.cos(np.outer(np.arange(q), np.arange(q))), []
    for _ in range(3):
        started = perf_counter()
        np.linalg.eigh(matrix)
        found.append(perf_counter() - started)
    return min(found)


# ------------------------------------------------------------------ the fit


@dataclass(frozen=True, eq=False)
class SparseQDAFit:
    """A fit to rows.

    Attributes
    ----------
    prepared : PreparedMoments
    precision : JointPrecision
        At the chosen penalty.
    path : SparseQDAPath
    chosen : int
        Place of the chosen penalty on the path.
    relative_to : float
        Penalty whose P(T) is 1: 0 where that fit exists, or the smallest of the path.
    cut : float or None
        Last penalty of the path, where it ended because of `max_block`.
    raced : bool
        Whether the path ended because hardly a smaller penalty can win.
    missing : (m,) array of int
        Classes that some fold had no two rows of.
    fold_gap : float
        Largest relative gap in the folds.
    singular : bool
        Whether the path leaves out a penalty of 0, which the whole table allows, because of a fold.
    """

    prepared: PreparedMoments
    precision: JointPrecision
    path: SparseQDAPath
    chosen: int
    relative_to: float
    cut: float | None = None
    raced: bool = False
    missing: IntArray = field(default_factory=lambda: _NONE)
    fold_gap: float = 0.0
    singular: bool = False


def fit_sparse_qda(
    x: FloatArray,
    codes: IntArray,
    n_classes: int,
    settings: QDASettings,
    *,
    folds: Sequence[Fold] = (),
    priors: FloatArray | None = None,
) -> SparseQDAFit:
    """Fit precision matrices with a common pattern, with the penalty chosen over folds.

    Parameters
    ----------
    x : (n, p) array
        Finite numbers.
    codes : (n,) array of int
        Class of each row, of every class 2 rows or more.
    n_classes : int
        K.
    settings : QDASettings
    folds : sequence of pairs of arrays of int
        Rows to learn from and rows to judge; used where `settings.alpha` is ``"cv"``.
    priors : (K,) array, optional
        By default the shares of the rows, in folds those of their rows.

    Returns
    -------
    SparseQDAFit

    Raises
    ------
    DataError
        Every column is constant, or a covariance matrix of the whole table is singular where the
        penalty is 0.
    ParameterError
        A single penalty, or every one of a given grid, links more than `settings.max_block`
        features.
    """
    with one_thread():
        prepared = prepare_rows(x, codes, n_classes, standardize=settings.standardize)
        alphas = grid_of(prepared, settings)
        answers: list[FoldAnswer] = []
        n_folds = len(folds) if isinstance(settings.alpha, str) and len(alphas) > 1 else 0
        of = "1 penalty" if len(alphas) == 1 else f"{len(alphas)} penalties, {n_folds} folds"
        foretell(
            f"sparse QDA, {of}",
            partial(expected_seconds, prepared, alphas, n_folds, settings),
        )
        automatic = settings.alphas is None and len(alphas) > 1
        if isinstance(settings.alpha, str) and len(alphas) > 1:
            judge = partial(judge_fold, x, codes, n_classes, alphas, priors, settings)
            small = prepared.moments.n_features <= TOGETHER
            answers = judge_folds(
                judge, folds, len(alphas), settings, together=small, race=automatic
            )
        if automatic and not all(len(answer.wrong) for answer in answers):
            # Noise of a fold's fewer rows links too many: nothing is judged, so nothing linked.
            return replace(follow(prepared, alphas[:1], [], settings), cut=float(alphas[0]))
        most = can_win(answers, settings.ties) if automatic else None
        found = follow(prepared, alphas[:most], answers, settings)
        if most is not None and most < len(alphas):
            return replace(found, raced=True)
        if automatic and alphas[-1] > 1.001 * alphas[0] * smallest_share(prepared, settings):
            return replace(found, cut=float(found.path.alphas[-1]))
        return found


def follow(
    prepared: PreparedMoments, alphas: FloatArray, answers: list[FoldAnswer], settings: QDASettings
) -> SparseQDAFit:
    """Follow the path on all rows, and keep the fit at the penalty that the folds chose.

    Parameters
    ----------
    prepared : PreparedMoments
    alphas : (A,) array
        Penalties for a row, falling; several of them end before the first whose largest block is
        too large.
    answers : list of FoldAnswer
        None of them where there is nothing to choose.
    settings : QDASettings

    Returns
    -------
    SparseQDAFit

    Raises
    ------
    DataError, ParameterError
        As `fit_sparse_qda`.
    """
    jobs = 1 if settings.n_jobs is None else settings.n_jobs
    # As far as the path went in every fold.
    reach = min([len(alphas), *(len(answer.wrong) for answer in answers)])
    grid = alphas[:reach]
    wrong = np.array([answer.wrong[:reach] for answer in answers], dtype=np.int64)
    wrong = wrong.reshape(len(answers), reach)
    best = choose(wrong.sum(axis=0), settings.ties) if reach else 0
    kept: JointPrecision | None = None
    rows: list[tuple[int, int, float, float]] = []
    steps = precision_path(prepared, grid, settings, n_jobs=jobs, stop=len(alphas) > 1)
    for precision in followed(steps, "penalties", len(grid)):
        # Only the chosen fit is kept: matrices may be large.
        if len(rows) == best:
            kept = replace(precision, duals=(), reaches=())
        size = max((len(block) for block in precision.blocks), default=1)
        rows.append((precision.n_links, size, precision.penalty_norm, precision.relative_gap))
    if not rows:
        raise ParameterError(
            f"more than max_block = {settings.max_block} features are linked at every penalty of "
            "the grid: raise max_block or the penalties"
        )
    if kept is None:  # the whole table has larger blocks than the folds
        best = choose(wrong[:, : len(rows)].sum(axis=0), settings.ties)
        kept = next(precision_path(prepared, alphas[best : best + 1], settings, n_jobs=jobs))
    without = len(rows) == len(alphas) - 1 and any(answer.singular for answer in answers)
    if without:  # an error where the whole table has no such fit either
        next(precision_path(prepared, alphas[-1:], settings, n_jobs=jobs))
    n = len(rows)
    n_links, largest, norms, gaps = np.array(rows, dtype=np.float64).T
    # P(T) relative to that without a penalty, or else to the densest of the path.
    relative_to, norm = float(alphas[n - 1]), float(norms[-1])
    size = prepared.moments.n_features
    if prepared.full_rank and size <= (settings.max_block or size):
        # The fit without a penalty may not exist all the same.
        with suppress(DataError):
            relative_to, norm = 0.0, fit_precisions(prepared.moments, 0.0).penalty_norm
    path = SparseQDAPath(
        alphas[:n],
        n_links.astype(np.int64),
        largest.astype(np.int64),
        norms,
        norms / norm if norm > 0 else np.ones(n),
        gaps,
        cv_wrong=wrong[:, :n],
        cv_rows=np.array([answer.n_rows for answer in answers], dtype=np.int64),
    )
    missing = [answer.missing for answer in answers]
    return SparseQDAFit(
        prepared,
        kept,
        path,
        best,
        relative_to,
        cut=float(alphas[n - 1]) if n < len(alphas) and not without else None,
        missing=np.unique(np.concatenate([*missing, _NONE])),
        fold_gap=max((float(gap) for answer in answers for gap in answer.gaps), default=0.0),
        singular=without,
    )
