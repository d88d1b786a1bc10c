"""From the fit and the sites' words on it to the result, and back to an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.discriminant.estimators.sparse_qda_fit import PreparedMoments, SparseQDAFit
from consilience.discriminant.estimators.sparse_qda_results import (
    SparseQDAInteractions,
    SparseQDAPath,
)
from consilience.discriminant.estimators.sparse_qda_units import QDAUnits
from consilience.discriminant.federated_sparse_qda.linking import Blocks
from consilience.discriminant.federated_sparse_qda.messages import Concluded
from consilience.discriminant.federated_sparse_qda.pooling import SiteProducts
from consilience.discriminant.federated_sparse_qda.result import FederatedSparseQDAResult
from consilience.discriminant.federated_sparse_qda.survey import Survey
from consilience.numerics.block_moments import BlockMoments
from consilience.protocol.method import CoordinatorContext

if TYPE_CHECKING:
    from consilience.discriminant.estimators.sparse_qda import SparseQDA

JUDGED = ("sparse-qda", "naive Bayes")


def build_result(
    ctx: CoordinatorContext,
    levels: tuple[str, ...],
    survey: Survey,
    products: SiteProducts,
    blocks: Blocks,
    fit: SparseQDAFit,
    priors: FloatArray,
    choice: tuple[str, tuple[str, ...], FloatArray],
    concluded: Mapping[str, Concluded],
    tol: float,
) -> FederatedSparseQDAResult:
    """Put the result together."""
    precision, units, path = fit.precision, fit.prepared.units, fit.path
    found = SparseQDAInteractions.of(precision, units, np.array(levels), ctx.feature_names)
    alpha = float(path.alphas[fit.chosen])
    return FederatedSparseQDAResult(
        target_name=str(ctx.columns.target),
        levels=levels,
        feature_names=ctx.feature_names,
        sites=survey.sites,
        n_by_site=survey.counts,
        held_by_site=survey.held,
        used=survey.used,
        n_by_class=survey.n,
        means=fit.prepared.means,
        columns=units.kept,
        scale=units.scale,
        floor=units.floor,
        priors=priors,
        screened=bool(blocks.asked),
        screened_blocks=tuple(products.columns[block] for block in products.blocks),
        n_questions=blocks.asked,
        alpha=alpha,
        lam=alpha * fit.prepared.total,
        candidates=path.alphas,
        chosen=fit.chosen,
        fixed=choice[0] == "given",
        choice=choice[0],
        judges=choice[1],
        candidate_loss=choice[2],
        cv_wrong=path.cv_wrong,
        cv_rows=path.cv_rows,
        cv_errors=path.cv_wrong.sum(axis=0).astype(float)
        if len(path.cv_rows)
        else np.full(len(path.alphas), np.nan),
        n_links=path.n_links,
        largest_block=path.largest_block,
        penalty_norms=path.penalty_norms,
        relative_penalties=path.relative_penalties,
        gaps=path.gaps,
        relative_to=fit.relative_to,
        gap=float(precision.relative_gap),
        blocks=tuple(units.kept[block] for block in precision.blocks),
        precisions=tuple(precision.precisions),
        diagonal=precision.diagonal,
        log_det=precision.log_det,
        objective=float(precision.objective),
        dual=float(precision.dual),
        penalty_norm=float(precision.penalty_norm),
        pairs=found.pairs,
        strength=found.strength,
        precision=found.precision,
        partial=found.partial_correlation,
        **_held_out(survey, concluded),
        scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
        remarks=_remarks(survey, concluded, path, fit, tol),
    )


def _held_out(survey: Survey, concluded: Mapping[str, Concluded]) -> dict[str, Any]:
    """What held-out rows say, by site and together."""
    n = np.array([survey.held[i].sum() for i in range(len(survey.sites))])
    gap = np.full(len(JUDGED), np.nan)
    rates = np.stack([_figures(concluded, s, "rates", gap) for s in survey.sites])
    told = np.isfinite(rates).all(axis=1) & (n > 0)
    wide = np.full(len(JUDGED) + 1, np.nan)
    losses = np.stack([_figures(concluded, s, "losses", wide) for s in survey.sites])
    squares = np.stack([_figures(concluded, s, "errors", wide) for s in survey.sites])
    sure = np.isfinite(losses).all(axis=1) & np.isfinite(squares).all(axis=1) & (n > 0)
    share = n[sure] / n[sure].sum() if sure.any() else np.empty(0)
    mean = share @ losses[sure] if sure.any() else wide
    error = np.sqrt(share**2 @ squares[sure]) if sure.any() else wide
    return {
        "judged": JUDGED,
        "errors": (n[told, None] * rates[told]).sum(axis=0) if told.any() else gap,
        "n_held": int(n[told].sum()),
        "site_held": n,
        "site_errors": rates,
        "log_loss": np.asarray(mean[:2]),
        "log_loss_se": np.asarray(error[:2]),
        "log_loss_gain": np.array([np.nan, mean[2]]),
        "log_loss_gain_se": np.array([np.nan, error[2]]),
    }


def _figures(
    concluded: Mapping[str, Concluded], site: str, name: str, gap: FloatArray
) -> FloatArray:
    if site not in concluded:
        return gap
    return np.asarray(getattr(concluded[site], name).value, dtype=float)


def _remarks(
    survey: Survey,
    concluded: Mapping[str, Concluded],
    path: SparseQDAPath,
    fit: SparseQDAFit,
    tol: float,
) -> tuple[str, ...]:
    found = []
    missing = [site for site in survey.sites if site not in concluded]
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


def estimator_of(result: FederatedSparseQDAResult) -> SparseQDA:
    """Rebuild the fit from a result."""
    from consilience.discriminant.estimators.sparse_qda import fitted_sparse_qda
    from consilience.discriminant.kernels.joint_precision import JointPrecision

    p, columns = len(result.feature_names), result.columns
    places = {int(j): i for i, j in enumerate(columns)}
    blocks = tuple(np.array([places[int(j)] for j in block]) for block in result.blocks)
    units = QDAUnits(p, columns, result.scale, result.floor)
    precision = JointPrecision(
        lam=result.lam,
        n=result.n_by_class,
        n_features=len(columns),
        blocks=blocks,
        precisions=result.precisions,
        diagonal=result.diagonal,
        log_det=result.log_det,
        objective=result.objective,
        dual=result.dual,
        gap=result.objective - result.dual,
        relative_gap=result.gap,
        penalty_norm=result.penalty_norm,
        n_links=int(result.n_links[result.chosen]),
        n_iter=0,
    )
    known = BlockMoments(result.n_by_class, 1.0 / np.nan_to_num(result.diagonal, nan=1.0), (), ())
    path = SparseQDAPath(
        alphas=result.candidates,
        n_links=result.n_links,
        largest_block=result.largest_block,
        penalty_norms=result.penalty_norms,
        relative_penalties=result.relative_penalties,
        gaps=result.gaps,
        cv_wrong=result.cv_wrong,
        cv_rows=result.cv_rows,
    )
    fit = SparseQDAFit(
        prepared=PreparedMoments(result.n_by_class, result.means, units, known),
        precision=precision,
        path=path,
        chosen=result.chosen,
        relative_to=result.relative_to,
        cut=None,
        missing=np.empty(0, dtype=np.int64),
        fold_gap=0.0,
    )
    return fitted_sparse_qda(
        fit, np.array(result.levels), result.priors, result.feature_names, alpha=result.alpha
    )
