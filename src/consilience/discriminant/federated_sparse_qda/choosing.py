"""The choice of the penalty: by the density of sites that a path did not see, or by errors.

Densities of a site's rows under a model depend on the rows through their moments only, which the
coordinator has: this choice asks the sites nothing. Errors have to be counted at the sites.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.discriminant.estimators.sparse_qda_fit import (
    FoldAnswer,
    PreparedMoments,
    QDASettings,
    precision_path,
)
from consilience.discriminant.federated_sparse_qda.linking import Blocks, proven_alpha
from consilience.discriminant.federated_sparse_qda.messages import Judge
from consilience.discriminant.federated_sparse_qda.pooling import SiteProducts
from consilience.discriminant.federated_sparse_qda.survey import Survey
from consilience.exceptions import DataError, QuorumError
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.discriminant.estimators.sparse_qda_units import QDAUnits
    from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA
    from consilience.discriminant.kernels.joint_precision import JointPrecision

Answers = Generator[Ask, Replies, Any]


@dataclass(frozen=True, eq=False)
class Path:
    """Models along the penalties, as they travel.

    Attributes
    ----------
    models : tuple of dict
    gap : float
        Largest relative gap.
    """

    models: tuple[Any, ...]
    gap: float


def path_of(
    method: FederatedSparseQDA,
    ctx: CoordinatorContext,
    prepared: PreparedMoments,
    alphas: FloatArray,
    settings: QDASettings,
) -> Path:
    """Fit the models of a path; it ends before a block that is too large."""
    models, gap = [], 0.0
    for precision in precision_path(prepared, alphas, settings, stop=True):
        models.append(method.model_of(ctx, prepared, precision))
        gap = max(gap, precision.relative_gap)
    return Path(tuple(models), gap)


def by_sites(
    method: FederatedSparseQDA,
    ctx: CoordinatorContext,
    survey: Survey,
    products: SiteProducts,
    alphas: FloatArray,
    settings: QDASettings,
    found: tuple[Blocks, Survey, QDAUnits],
) -> Answers:
    """Fit the path without each site in turn; that site counts the errors on its rows.

    Returns
    -------
    dict of str to FoldAnswer
    """
    paths: dict[str, Path] = {}
    near: list[str] = []
    for site in (site for site in survey.sites if survey.judges[site]):
        others = survey.only([other for other in survey.sites if other != site])
        try:
            if not others.complete:
                raise QuorumError("a class is at this site only")
            paths[site] = path_of(method, ctx, products.prepared(others), alphas, settings)
        except (QuorumError, DataError):
            ctx.note(
                f"Site {site} does not take part in the choice of alpha: without it some class, or "
                "some block of columns in a class, has no moments."
            )
            continue
        if len(found[0].thresholds) and proven_alpha(found[0], *found[1:], others) > alphas[-1]:
            near.append(site)
    if near:
        ctx.note(
            "Without one site, columns of two blocks might be linked at the smallest alphas; the "
            f"models that {', '.join(near)} judged there leave such links out."
        )
    messages = {site: _message(method, ctx, path, held=False) for site, path in paths.items()}
    replies = yield from _judged(ctx, messages)
    return {
        site: _answer(paths[site], reply, survey, site, held=False)
        for site, reply in replies.items()
    }


def by_held_out(
    method: FederatedSparseQDA,
    ctx: CoordinatorContext,
    survey: Survey,
    prepared: PreparedMoments,
    alphas: FloatArray,
    settings: QDASettings,
) -> Answers:
    """Fit one path; sites that hold rows out count the errors on these.

    Returns
    -------
    dict of str to FoldAnswer
    """
    path = path_of(method, ctx, prepared, alphas, settings)
    held = zip(survey.sites, survey.held.sum(axis=1), strict=True)
    holding = [site for site, n in held if n and survey.judges[site]]
    messages = {site: _message(method, ctx, path, held=True) for site in holding}
    replies = yield from _judged(ctx, messages)
    return {site: _answer(path, reply, survey, site, held=True) for site, reply in replies.items()}


# --------------------------------------------------------------------------- by densities


@dataclass(frozen=True, eq=False)
class Densities:
    """What the sites' moments say of the models of the others.

    Attributes
    ----------
    judges : tuple of str
    loss : (A,) array
        Mean negative log density of a row, given its class, over these sites.
    gap : float
        Largest relative gap.
    """

    judges: tuple[str, ...]
    loss: FloatArray
    gap: float


def by_densities(
    method: FederatedSparseQDA,
    ctx: CoordinatorContext,
    survey: Survey,
    products: SiteProducts,
    alphas: FloatArray,
    settings: QDASettings,
) -> Densities:
    """Fit the path without each site, and ask its moments.

    Raises
    ------
    QuorumError
        No site can be left out.
    """
    judges, losses, rows, gap = [], [], 0.0, 0.0
    for site in survey.sites:
        others = survey.only([other for other in survey.sites if other != site])
        if not survey.sizes[survey.sites.index(site)].any():
            continue
        try:
            if not others.complete:
                raise QuorumError("a class is at this site only")
            prepared = products.prepared(others)
            values = []
            for precision in precision_path(prepared, alphas, settings, stop=True):
                value, n = _loss(precision, prepared, survey, products, site)
                values.append(value)
                gap = max(gap, precision.relative_gap)
        except (QuorumError, DataError):
            ctx.note(
                f"Site {site} does not take part in the choice of alpha: without it some class, or "
                "some block of columns in a class, has no moments."
            )
            continue
        judges.append(site)
        losses.append(np.array(values))
        rows += n
    reach = min((len(values) for values in losses), default=0)
    if not reach:
        raise QuorumError(
            "no site can be left out of the moments, so alpha cannot be chosen: give alpha, or let "
            "more sites take part"
        )
    total = np.sum([values[:reach] for values in losses], axis=0)
    return Densities(tuple(judges), np.asarray(total / rows), gap)


def _loss(
    precision: JointPrecision,
    prepared: PreparedMoments,
    survey: Survey,
    products: SiteProducts,
    site: str,
) -> tuple[float, float]:
    """Negative log density of a site's rows, from its moments, and how many rows they are.

    Blocks of which the site withholds a class are left out there, at all penalties.
    """
    b, units = survey.sites.index(site), prepared.units
    place = {int(j): (i, at) for i, of in enumerate(products.blocks) for at, j in enumerate(of)}
    where = np.searchsorted(products.columns, units.kept)
    total = 0.0
    for k in np.flatnonzero(survey.used[b]):
        n, told = survey.counts[b, k], np.ones(len(units.kept), dtype=bool)
        for i, block in enumerate(products.blocks):
            told[np.isin(where, block)] &= products.told(site, i, int(k))
        apart = (survey.means[b, k, units.kept] - prepared.means[k, units.kept]) / units.scale
        spread = survey.variances[b, k, units.kept] / units.scale**2 + apart**2
        diagonal = precision.diagonal[k]
        single = told & ~np.isnan(diagonal)
        part = float((diagonal[single] * spread[single] - np.log(diagonal[single])).sum())
        for block, matrices in zip(precision.blocks, precision.precisions, strict=True):
            if not told[block].all():
                continue
            which = place[int(where[block[0]])][0]
            at = np.array([place[int(j)][1] for j in where[block]])
            sums = products.sums[site][which][k][np.ix_(at, at)]
            scale = units.scale[block]
            second = sums / n / np.outer(scale, scale) + np.outer(apart[block], apart[block])
            part += float((matrices[k] * second).sum() - np.linalg.slogdet(matrices[k])[1])
        part += float((2 * np.log(units.scale[told]) + np.log(2 * np.pi)).sum())
        total += 0.5 * n * part
    return total, float(survey.sizes[b].sum())


# --------------------------------------------------------------------------- words


def _message(
    method: FederatedSparseQDA, ctx: CoordinatorContext, path: Path, *, held: bool
) -> Judge:
    return Judge(
        settings=method.settings(ctx).to_json(),
        held=held,
        models=relayed(path.models, Disclosure.MODEL),
    )


def _judged(ctx: CoordinatorContext, messages: Mapping[str, Judge]) -> Answers:
    """Replies of the sites that tell errors.

    Raises
    ------
    QuorumError
        None does.
    """
    found: dict[str, Any] = {}
    if messages:
        ask = Ask("judge", dict(messages), to=tuple(messages))
        replies = ctx.require((yield ask), at_least=0)
        found = {site: r for site, r in replies.items() if np.isfinite(r.rates.value).all()}
    if not found:
        raise QuorumError(
            "no site can say how many of its rows the models get wrong, so alpha cannot be chosen: "
            "give alpha, or let more or larger sites take part"
        )
    return found


def _answer(path: Path, reply: Any, survey: Survey, site: str, *, held: bool) -> FoldAnswer:
    b = survey.sites.index(site)
    n = int((survey.held if held else survey.counts)[b].sum())
    rates = np.asarray(reply.rates.value, dtype=float)
    wrong = np.rint(rates * n).astype(np.int64)
    return FoldAnswer(wrong, n, np.empty(0, dtype=np.int64), path.gap)
