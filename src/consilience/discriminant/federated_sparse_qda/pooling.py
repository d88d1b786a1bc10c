"""What the coordinator makes of the sites' moments: a survey, blocks of columns, pooled moments.

A class and column that a site withholds leaves two ways out: to do without the column everywhere,
or without the rows of this class at this site. Whichever costs the smaller share (of the columns,
or of the rows) for each gap that it closes goes first, until no gap is left. Then every sum is over
the same rows, and pooled matrices are those of a table.

Links tell which columns have to be in one block at a penalty. Let A_b be the sums of products of a
site about its own means, C what the means of the sites add, in pooled units, norms over classes for
each pair of columns. Then ``|n S| <= sum_b |A_b| + |C|``. Where no site's norm is above its
threshold t_b, and ``|C| <= lam - sum_b t_b``, the pair is not linked at lam: it lies in no common
block unless others join it. So blocks that contain the components of all the sites, and those of C
above ``lam - sum_b t_b``, contain the blocks of the pooled table (docs/proofs/class-moments.md).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.predictors import some
from consilience.discriminant.estimators.sparse_qda_fit import (
    PreparedMoments,
    QDAUnits,
    SparseQDAFit,
    units_of,
)
from consilience.discriminant.federated_sparse_qda import messages
from consilience.discriminant.kernels import joint_precision
from consilience.exceptions import DataError, QuorumError
from consilience.numerics.block_moments import BetweenMoments, BlockMoments, giving_way, pooled
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure


@dataclass(frozen=True, eq=False)
class Survey:
    """Aggregates by site and class.

    Attributes
    ----------
    sites : tuple of str
        B sites, in name order.
    counts, held : (B, K) arrays
        Rows that are not held out, and those that are.
    means, variances : (B, K, p) arrays
        NaN where they are withheld.
    used : (B, K) bool array
        Whose rows count in the moments.
    features : (p,) bool array
        Columns that take part.
    protected, judges : dict of str to bool
        Whether a site withholds moments of large blocks; whether it counts errors of models.
    """

    sites: tuple[str, ...]
    counts: FloatArray
    held: FloatArray
    means: FloatArray
    variances: FloatArray
    used: NDArray[np.bool_]
    features: NDArray[np.bool_]
    protected: Mapping[str, bool]
    judges: Mapping[str, bool]

    def only(self, sites: Sequence[str]) -> Survey:
        """Some of the sites."""
        at = [self.sites.index(site) for site in sites]
        by_site = ("counts", "held", "means", "variances", "used")
        some: dict[str, Any] = {name: getattr(self, name)[at] for name in by_site}
        return replace(self, sites=tuple(self.sites[i] for i in at), **some)

    def squares(self) -> dict[str, dict[str, FloatArray]]:
        """By site: sums of squares about the means of its classes, and about nought, (K, p)."""
        # Divisor n_k: sums are n_k times them.
        about = self.counts[:, :, None] * self.variances
        all_ = about + self.counts[:, :, None] * self.means**2
        return {s: {"squares": about[b], "sizes": all_[b]} for b, s in enumerate(self.sites)}

    @property
    def sizes(self) -> FloatArray:
        """Rows of the moments by site and class, (B, K)."""
        return np.where(self.used, self.counts, 0.0)

    @property
    def n(self) -> FloatArray:
        """Rows of the moments by class, (K,)."""
        return np.asarray(self.sizes.sum(axis=0))

    @property
    def complete(self) -> bool:
        """Whether every class has rows to tell a variance from."""
        return bool((self.n >= 2).all())

    def pooled(self, columns: IntArray) -> tuple[FloatArray, FloatArray]:
        """Means and variances by class over all sites, (K, m) each."""
        means, variances = [], []
        for k in range(self.counts.shape[1]):
            at = np.flatnonzero(self.used[:, k])
            own = self.counts[at, k]
            n, mean, squares = pooled(
                own,
                [self.means[b, k, columns] for b in at],
                [n * self.variances[b, k, columns] for n, b in zip(own, at, strict=True)],
            )
            means.append(mean)
            variances.append(squares / n)
        return np.array(means), np.array(variances)

    def between(self, units: QDAUnits) -> BetweenMoments:
        """Moments of the sites' means, in some units."""
        means = self.means[:, :, units.kept] / units.scale
        return BetweenMoments.of(self.sizes, np.nan_to_num(means))

    def units(self) -> QDAUnits:
        """Columns that take part and vary, with their scales and floors.

        Raises
        ------
        QuorumError
            None does.
        """
        columns = np.flatnonzero(self.features)
        means, variances = self.pooled(columns)
        try:
            found = units_of(self.n, means, variances)
        except DataError as error:
            raise QuorumError(f"no column is left to tell the classes apart: {error}") from None
        return replace(
            found, n_features=len(self.features), kept=columns[found.kept].astype(np.int64)
        )


def survey_of(offered: Mapping[str, messages.Offered], levels: Sequence[str]) -> Survey:
    """Put together what the sites bring; see the module's words on what gives way.

    Raises
    ------
    QuorumError
        A class that no site has rows of, or no column is left.
    """
    replies = dict(sorted(offered.items()))
    counts, held, means, variances = (
        np.array([getattr(reply, name).value for reply in replies.values()], dtype=float)
        for name in ("counts", "held", "means", "spreads")
    )
    gaps = np.isnan(means) & (counts[:, :, None] > 0)
    used, features = giving_way(counts, gaps)
    lost = [level for level, n in zip(levels, (counts * used).sum(axis=0), strict=True) if n < 2]
    if lost:
        raise QuorumError(
            f"no site can tell the moments of class {lost[0]!r}: let sites with more rows of it "
            "take part, or leave it out"
        )
    if not features.any():
        raise QuorumError("every column is withheld by some site: leave out sparse columns")
    protected = {site: bool(reply.protected) for site, reply in replies.items()}
    judges = {site: bool(reply.judges) for site, reply in replies.items()}
    return Survey(tuple(replies), counts, held, means, variances, used, features, protected, judges)


# --------------------------------------------------------------------------- moments


Block = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class SiteProducts:
    """Sums of products of the sites within blocks.

    Attributes
    ----------
    levels : tuple of str
    columns : (m,) array of int
        Columns that take part.
    blocks : tuple of (q,) arrays of int
        Places among them.
    sums : dict of str to tuple of (K, q, q) arrays
        By site and block; NaN in classes that the site withholds there.
    """

    levels: tuple[str, ...]
    columns: IntArray
    blocks: tuple[Block, ...]
    sums: dict[str, tuple[FloatArray, ...]]

    @classmethod
    def of(
        cls,
        replies: Mapping[str, messages.Products],
        columns: IntArray,
        labels: IntArray,
        levels: tuple[str, ...],
    ) -> SiteProducts:
        """Unpack the sites' replies."""
        blocks = tuple(messages.blocks_of(labels))
        sums = {
            site: messages.unpacked(np.asarray(reply.products.value, dtype=float), blocks)
            for site, reply in sorted(replies.items())
        }
        return cls(levels, columns, blocks, sums)

    def prepared(self, survey: Survey) -> PreparedMoments:
        """Moments over the sites of a survey, in their units.

        Raises
        ------
        QuorumError
            A class, or a block in a class, that none of these sites tells.
        """
        if (survey.n < 2).any():
            raise QuorumError("a class has no rows at these sites")
        units = survey.units()
        means, variances = survey.pooled(np.arange(len(survey.features))[units.kept])
        diagonal = variances / units.scale**2 + units.floor
        blocks, covariances = [], []
        for b, block in enumerate(self.blocks):
            inside = np.flatnonzero(np.isin(self.columns[block], units.kept))
            if len(inside) < 2:
                continue
            at = np.searchsorted(units.kept, self.columns[block[inside]])
            found = self._pooled(survey, b, inside)
            found /= units.scale[at][:, None] * units.scale[at][None, :]
            place = np.arange(len(at))
            # As for rows of one table: a floor where a class does not vary.
            found[:, place, place] += units.floor[:, at]
            diagonal[:, at] = found[:, place, place]
            blocks.append(at)
            covariances.append(found)
        known = BlockMoments(survey.n, diagonal, tuple(blocks), tuple(covariances))
        whole = len(self.blocks) == 1 and len(self.blocks[0]) == len(self.columns)
        all_means = np.zeros((len(means), len(survey.features)))
        all_means[:, units.kept] = means
        return PreparedMoments(survey.n, all_means, units, known, whole, survey.counts.sum(axis=0))

    def _pooled(self, survey: Survey, b: int, inside: Block) -> FloatArray:
        """Covariances of a block by class, (K, q, q), from the sites that tell them."""
        columns = self.columns[self.blocks[b][inside]]
        found = []
        for k in range(len(survey.n)):
            at = [i for i in np.flatnonzero(survey.used[:, k]) if self.told(survey.sites[i], b, k)]
            if not at:
                raise QuorumError(
                    f"no site can tell the moments of a block of {len(inside)} columns in class "
                    f"{self.levels[k]!r}: raise the smallest alpha, or let sites with more rows "
                    "take part"
                )
            n, _, sums = pooled(
                [float(survey.counts[i, k]) for i in at],
                [survey.means[i, k, columns] for i in at],
                [self.sums[survey.sites[i]][b][k][np.ix_(inside, inside)] for i in at],
            )
            found.append(sums / n)
        return np.array(found)

    def told(self, site: str, b: int, k: int) -> bool:
        """Whether a site tells a block in a class."""
        return not bool(np.isnan(self.sums[site][b][k]).any())


def notes_of(
    survey: Survey, products: SiteProducts, units: QDAUnits, names: Sequence[str]
) -> list[str]:
    """Say what gave way, and which classes of which sites are missing in some blocks."""
    found, levels = [], products.levels
    for site, counts, used in zip(survey.sites, survey.counts, survey.used, strict=True):
        small = [level for level, n in zip(levels, counts, strict=True) if n == 0]
        away = [level for level, n, u in zip(levels, counts, used, strict=True) if n > 0 and not u]
        if small:
            found.append(f"Site {site} has no rows, or too few to tell of, in class {some(small)}.")
        if away:
            found.append(
                f"The rows of class {some(away)} at site {site} are not in the moments: the "
                "site withholds some of their columns. Priors count them."
            )
    gone = [names[int(j)] for j in np.flatnonzero(~survey.features)]
    if gone:
        found.append(
            f"Withheld by some site, and so left out: {some(gone)} (too few rows differ from the "
            "others, or one row dominates)."
        )
    constant = np.setdiff1d(np.flatnonzero(survey.features), units.kept)
    if len(constant):
        found.append(f"Constant everywhere: {some([names[int(j)] for j in constant])}.")
    if len(units.floored):
        found.append(
            "Columns that do not vary within a class got a variance there: "
            f"{some(sorted({names[int(j)] for j in units.floored[:, 1]}))}."
        )
    for site, used in zip(survey.sites, survey.used, strict=True):
        # Pairs of block and class whose rows count, but not in this block.
        pairs = [
            (b, int(k))
            for b in range(len(products.blocks))
            for k in np.flatnonzero(used)
            if not products.told(site, b, int(k))
        ]
        if pairs:
            found.append(
                f"Site {site} withheld the moments of class "
                f"{', '.join(sorted({products.levels[k] for _, k in pairs}))} in "
                f"{len({b for b, _ in pairs})} of {len(products.blocks)} blocks (fewer than twice "
                "as many rows as columns, or a cell of few rows): they come from the other sites."
            )
    return found


# --------------------------------------------------------------------------- links


MOST_FOR_MEANS = 0.5
"""Largest share of the penalty that is set aside for what the sites' means add."""
_SLACK = 1e-9
"""Share of the penalty by which thresholds stay below it, for rounding."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of columns, and down to which penalty they are enough.

    Attributes
    ----------
    survey : Survey
        Of the sites that told which columns are linked.
    units : QDAUnits
        In which they did.
    labels : (m,) array of int
        Block of each column that takes part.
    thresholds : (B,) array
        Of the sites; empty where nothing was asked.
    alpha : float
        Penalty for a row down to which no pair of two blocks is linked; 0 for a single block.
    asked : int
        Questions for links.
    """

    survey: Survey
    units: QDAUnits
    labels: IntArray
    thresholds: FloatArray = field(default_factory=lambda: np.empty(0))
    alpha: float = 0.0
    asked: int = 0

    @classmethod
    def one(cls, survey: Survey) -> Blocks:
        """Make one block of all columns."""
        units = survey.units()
        return cls(survey, units, np.ones(len(units.kept), dtype=np.int64))

    def told(self, most_lost: float = 1.0) -> bool:
        """Whether for every block and class some site, and enough of the rows, can tell moments."""
        survey = self.survey
        largest = max((len(block) for block in messages.blocks_of(self.labels)), default=1)
        if largest == 1:
            return True
        free = np.array([not survey.protected[site] for site in survey.sites])
        # The gate of moments: twice as many rows as columns.
        tells = (survey.sizes >= 2 * largest) | (free[:, None] & survey.used)
        told = np.where(tells, survey.sizes, 0.0).sum(axis=0)
        lost = 1.0 - told / np.maximum(survey.n, 1.0)
        return bool((told > 0).all() and (lost <= most_lost).all())

    def proven_alpha(self, survey: Survey) -> float:
        """Penalty for a row down to which blocks are proven for some of the sites.

        Parameters
        ----------
        survey : Survey
            Of those of the sites whose moments are pooled.
        """
        own = survey.units()
        at = np.searchsorted(self.units.kept, own.kept)
        # Thresholds were in the units of all; norms scale by both columns.
        ratio = self.units.scale[at] / own.scale
        sites = [self.survey.sites.index(site) for site in survey.sites]
        sum_of_thresholds = float(self.thresholds[sites].sum())
        between, labels, worst = survey.between(own), self.labels[at], 0.0
        for rows, columns in joint_precision.tiles(len(at)):
            bound = sum_of_thresholds * np.outer(ratio[rows], ratio[columns])
            bound += between.norms(rows, columns)
            # Pairs of two blocks, and of a column in none with any other.
            apart = labels[rows][:, None] != labels[columns][None, :]
            apart |= (labels[rows] == 0)[:, None] & (at[rows][:, None] != at[columns][None, :])
            worst = max(worst, float(np.where(apart, bound, 0.0).max(initial=0.0)))
        return worst / float(survey.n.sum())


def ask_for_links(
    ctx: CoordinatorContext, settings: messages.Settings, survey: Survey, alphas: FloatArray
) -> Generator[Ask, Replies, Blocks]:
    """Find the smallest of the penalties whose blocks can be told, by bisection.

    Parameters
    ----------
    ctx : CoordinatorContext
    settings : Settings
    survey : Survey
    alphas : (A,) array
        Falling.

    Raises
    ------
    QuorumError
        At no penalty the blocks can be told.
    """
    best: Blocks | None = None
    # Good at `low` (at the first all columns may be single), not good at `high`.
    place, low, high, asked = len(alphas) - 1, -1, len(alphas), 0
    while place > low and place < high and asked < messages.MAX_LINKS:
        units = survey.units()
        between = survey.between(units)
        lam = float(alphas[place]) * float(survey.n.sum())
        # By chance alone columns are linked equally often at all sites if thresholds are in
        # proportion to the roots of their numbers of rows; with what is left for the means they
        # stay below lam.
        reserve = min(joint_precision.largest_penalty(between), MOST_FOR_MEANS * lam)
        roots = np.sqrt(survey.sizes.sum(axis=1))
        thresholds = (1 - _SLACK) * (lam - reserve) * roots / roots.sum()
        questions = {
            site: messages.Links(
                settings=settings,
                features=np.isin(np.arange(units.n_features), units.kept),
                classes=survey.used[b],
                scale=relayed(units.scale, Disclosure.AGGREGATE),
                threshold=float(thresholds[b]),
            )
            for b, site in enumerate(survey.sites)
        }
        asked += 1
        replies = ctx.require((yield Ask("links", questions, to=survey.sites)))
        if len(replies) < len(survey.sites):
            # Who does not say what is linked has no rows in the moments: others are asked anew.
            survey, best, low, high = remaining(survey, replies), None, -1, len(alphas)
            continue
        # Components of the means, then those of each site, joined.
        joined = joint_precision.components(between, reserve)
        for reply in replies.values():
            own = np.asarray(reply.labels.value)
            linked = np.flatnonzero(own)
            _, first, of = np.unique(own[linked], return_index=True, return_inverse=True)
            joined = joint_precision.merged(joined, linked[first[of.ravel()]], linked)
        labels = messages.component_labels(joined)
        found = Blocks(survey, units, labels, thresholds, float(alphas[place]))
        if all(reply.fits for reply in replies.values()) and found.told():
            best, low = found, place
        else:
            high = place
        place = (low + high) // 2
    if best is None:
        raise QuorumError(
            f"at alpha = {float(alphas[0]):.3g} or smaller, blocks of linked columns are more than "
            "half the rows of a class at some site: raise the smallest alpha, or let sites with "
            "more rows take part"
        )
    return replace(best, asked=asked)


def remaining(survey: Survey, replies: Mapping[str, object]) -> Survey:
    """The sites that answered.

    Raises
    ------
    QuorumError
        They have no rows of some class.
    """
    left = survey.only([site for site in survey.sites if site in replies])
    if not left.complete:
        raise QuorumError("the sites that are left have no rows of one of the classes")
    return left


# --------------------------------------------------------------------------- the end


def held_out(survey: Survey, concluded: Mapping[str, messages.Concluded]) -> dict[str, Any]:
    """What held-out rows say, by site and together."""
    n = survey.held.sum(axis=1)

    def told(name: str, width: int) -> FloatArray:
        gap = np.full(width, np.nan)
        given = {site: getattr(reply, name).value for site, reply in concluded.items()}
        return np.array([given.get(site, gap) for site in survey.sites], dtype=float)

    # Rates of the two rules; losses of the two and of their difference.
    rates, losses, squares = told("rates", 2), told("losses", 3), told("errors", 3)
    known = np.isfinite(rates).all(axis=1) & (n > 0)
    sure = np.isfinite(losses).all(axis=1) & np.isfinite(squares).all(axis=1) & (n > 0)
    mean = error = np.full(3, np.nan)
    if sure.any():
        # Means weigh rows alike; squared errors by squared shares.
        share = n[sure] / n[sure].sum()
        mean, error = share @ losses[sure], np.sqrt(share**2 @ squares[sure])
    wrong = (n[known, None] * rates[known]).sum(axis=0)
    return {
        "judged": ("sparse-qda", "naive Bayes"),
        "errors": wrong if known.any() else np.full(2, np.nan),
        "n_held": int(n[known].sum()),
        "site_held": n,
        "site_errors": rates,
        "log_loss": mean[:2],
        "log_loss_se": error[:2],
        "log_loss_gain": np.array([np.nan, mean[2]]),
        "log_loss_gain_se": np.array([np.nan, error[2]]),
    }


def remarks_of(
    survey: Survey, missing: Sequence[str], fit: SparseQDAFit, tol: float
) -> tuple[str, ...]:
    """What the reader should know of the way to the result."""
    found, path = [], fit.path
    if missing:
        found.append(f"{', '.join(missing)} did not take the model at the end.")
    without = [s for s, n in zip(survey.sites, survey.held.sum(axis=1), strict=True) if not n]
    if without and len(without) < len(survey.sites):
        found.append(f"Too few rows of some class to hold some out at {', '.join(without)}.")
    coarse = any(survey.protected.values())
    if coarse and (len(path.cv_rows) or survey.held.any()):
        found.append(
            "Sites that protect records tell numbers of wrong rows coarsely, and the same of two "
            "models that few rows tell apart."
        )
    worst = max(float(path.gaps.max()), fit.fold_gap)
    if worst > tol:
        found.append(f"A relative duality gap is {worst:.1e}, above tol = {tol:.1e}.")
    if fit.cut is not None:
        found.append(
            f"The path ends above alpha = {fit.cut:.3g}, where a block would be too large."
        )
    if fit.chosen == len(path.alphas) - 1 and len(path.alphas) > 1:
        found.append("The smallest alpha was chosen: a smaller one might be better.")
    return tuple(found)
