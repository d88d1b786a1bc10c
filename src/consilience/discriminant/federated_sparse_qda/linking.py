"""Which columns have to be in one block at a penalty, from components that the sites tell.

Let A_b be the sums of products of a site about its own means, C what the means of the sites add, in
pooled units, norms over classes for each pair of columns. Then ``|n S| <= sum_b |A_b| + |C|``.
Where no site's norm is above its threshold t_b, and ``|C| <= lam - sum_b t_b``, the pair is not
linked at lam: it lies in no common block unless others join it. So blocks that contain the
components of all the sites, and those of C above ``lam - sum_b t_b``, contain the blocks of the
pooled table (docs/proofs/class-moments.md).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.sparse_qda_units import QDAUnits
from consilience.discriminant.federated_sparse_qda.messages import MAX_LINKS, Links, blocks_of
from consilience.discriminant.federated_sparse_qda.site import component_labels
from consilience.discriminant.federated_sparse_qda.survey import Survey
from consilience.exceptions import QuorumError
from consilience.numerics.block_moments import BetweenMoments
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

TILE = 512
MOST_FOR_MEANS = 0.5
"""Largest share of the penalty that is set aside for what the sites' means add."""
_SLACK = 1e-9
"""Share of the penalty by which thresholds stay below it, for rounding."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of columns, and down to which penalty they are enough.

    Attributes
    ----------
    labels : (m,) array of int
        Block of each column that takes part.
    thresholds : (B,) array
        Of the sites; empty where nothing was asked.
    alpha : float
        Penalty for a row down to which no pair of two blocks is linked; 0 for a single block.
    asked : int
        Questions for links.
    """

    labels: IntArray
    thresholds: FloatArray
    alpha: float
    asked: int


def one_block(m: int) -> Blocks:
    """All columns in one block: nothing is asked."""
    return Blocks(np.ones(m, dtype=np.int64), np.empty(0), 0.0, 0)


def tells_all(survey: Survey, labels: IntArray, most_lost: float = 1.0) -> bool:
    """Whether for every block and class some site, and enough of the rows, can tell the moments."""
    largest = max((len(block) for block in blocks_of(labels)), default=1)
    if largest == 1:
        return True
    free = np.array([not survey.protected[site] for site in survey.sites])
    tells = (survey.sizes >= 2 * largest) | (free[:, None] & survey.used)
    told = np.where(tells, survey.sizes, 0.0).sum(axis=0)
    lost = 1.0 - told / np.maximum(survey.n, 1.0)
    return bool((told > 0).all() and (lost <= most_lost).all())


def ask_for_links(
    ctx: CoordinatorContext, settings: str, survey: Survey, alphas: FloatArray
) -> Generator[Ask, Replies, tuple[Survey, QDAUnits, Blocks]]:
    """Find the smallest of the penalties whose blocks can be told, by bisection.

    Parameters
    ----------
    ctx : CoordinatorContext
    settings : str
    survey : Survey
    alphas : (A,) array
        Falling.

    Returns
    -------
    survey : Survey
        Of the sites that answered to the end.
    units : QDAUnits
    blocks : Blocks

    Raises
    ------
    QuorumError
        At no penalty the blocks can be told.
    """
    from consilience.discriminant.kernels.joint_precision import components
    from consilience.discriminant.kernels.joint_precision_moments import merged

    best: Blocks | None = None
    # Good at `low` (at the first all columns may be single), not good at `high`.
    place, low, high, asked = len(alphas) - 1, -1, len(alphas), 0
    while place > low and place < high and asked < MAX_LINKS:
        units = survey.units()
        between = _between(survey, units)
        lam = float(alphas[place]) * float(survey.n.sum())
        thresholds, reserve = _thresholds(survey, between, lam)
        messages = {
            site: Links(
                settings=settings,
                features=np.isin(np.arange(units.n_features), units.kept),
                classes=survey.used[b],
                scale=relayed(units.scale, Disclosure.AGGREGATE),
                threshold=float(thresholds[b]),
            )
            for b, site in enumerate(survey.sites)
        }
        asked += 1
        replies = ctx.require((yield Ask("links", messages, to=survey.sites)))
        if len(replies) < len(survey.sites):
            # Who does not say what is linked has no rows in the moments: others are asked anew.
            survey, best, low, high = remaining(survey, replies), None, -1, len(alphas)
            continue
        joined = components(between, reserve)
        for reply in replies.values():
            own = np.asarray(reply.labels.value)
            joined = merged(joined, *_joined(own))
        labels = component_labels(joined)
        good = all(reply.fits for reply in replies.values()) and tells_all(survey, labels)
        if good:
            best, low = Blocks(labels, thresholds, float(alphas[place]), asked), place
        else:
            high = place
        place = (low + high) // 2
    if best is None:
        raise QuorumError(
            f"at alpha = {float(alphas[0]):.3g} or smaller, blocks of linked columns are more than "
            "half the rows of a class at some site: raise the smallest alpha, or let sites with "
            "more rows take part"
        )
    return survey, survey.units(), Blocks(best.labels, best.thresholds, best.alpha, asked)


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


def _between(survey: Survey, units: QDAUnits) -> BetweenMoments:
    means = survey.means[:, :, units.kept] / units.scale
    return BetweenMoments.of(survey.sizes, np.nan_to_num(means))


def _thresholds(survey: Survey, between: BetweenMoments, lam: float) -> tuple[FloatArray, float]:
    """Thresholds of the sites, and what is left for the means, together below lam.

    By chance alone columns are linked equally often at all sites if thresholds are in proportion to
    the roots of their numbers of rows.
    """
    from consilience.discriminant.kernels.joint_precision import largest_penalty

    reserve = min(largest_penalty(between), MOST_FOR_MEANS * lam)
    roots = np.sqrt(survey.sizes.sum(axis=1))
    return (1 - _SLACK) * (lam - reserve) * roots / roots.sum(), reserve


def _joined(labels: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of columns that make the components of some labels."""
    linked = np.flatnonzero(labels)
    _, first, of = np.unique(labels[linked], return_index=True, return_inverse=True)
    return linked[first[of.ravel()]], linked


def proven_alpha(blocks: Blocks, told: Survey, units: QDAUnits, survey: Survey) -> float:
    """Penalty for a row down to which blocks are proven for some of the sites that told them.

    Parameters
    ----------
    blocks : Blocks
    told : Survey
        Of the sites that told their links.
    units : QDAUnits
        In which they did.
    survey : Survey
        Of those of them whose moments are pooled.
    """
    own = survey.units()
    at = np.searchsorted(units.kept, own.kept)
    ratio = units.scale[at] / own.scale
    sites = [told.sites.index(site) for site in survey.sites]
    sum_of_thresholds = float(blocks.thresholds[sites].sum())
    between, labels, worst = _between(survey, own), blocks.labels[at], 0.0
    for i in range(0, len(at), TILE):
        for j in range(i, len(at), TILE):
            rows, columns = slice(i, i + TILE), slice(j, j + TILE)
            bound = sum_of_thresholds * np.outer(ratio[rows], ratio[columns])
            bound += between.norms(rows, columns)
            apart = labels[rows][:, None] != labels[columns][None, :]
            apart |= (labels[rows] == 0)[:, None] & (at[rows][:, None] != at[columns][None, :])
            worst = max(worst, float(np.where(apart, bound, 0.0).max(initial=0.0)))
    return worst / float(survey.n.sum())
