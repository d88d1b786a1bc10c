"""Result of sparse quadratic discriminant analysis over sites, and how it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.classes import LinksResult, SitesResult
from consilience.discriminant.estimators import sparse_qda_fit
from consilience.discriminant.estimators.predictors import SparseQDAPredictor
from consilience.discriminant.estimators.sparse_qda_fit import SparseQDAPath
from consilience.discriminant.federated_sparse_qda.messages import Concluded
from consilience.discriminant.federated_sparse_qda.pooling import Survey
from consilience.discriminant.kernels.joint_precision import JointPrecision
from consilience.numerics.block_moments import BlockMoments

if TYPE_CHECKING:
    import pandas as pd

    from consilience.discriminant.estimators.sparse_qda import SparseQDA

_OF_PATH = tuple(SparseQDAPath.__dataclass_fields__)[1:]
OF_PRECISION = ("precisions", "diagonal", "log_det", "objective", "dual", "penalty_norm")
"""Fields of the fit that the result has by the same names: of its path all but the penalties."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedSparseQDAResult(SitesResult, LinksResult):
    """Classes with sparse precision matrices that share their zeros, over the rows of all sites.

    Rows are those of the moments; numbers of rows in a wrong class are rounded where records are
    protected.

    Attributes
    ----------
    held_by_site : (B, K) array
        Rows that were held out; 0 in classes that a site does not tell.
    used : (B, K) bool array
        Whose rows are in the moments.
    means : (K, p) array
        In the units of the (prepared) columns; 0 for columns that take no part.
    columns : (m,) array of int
        Columns that take part.
    scale : (m,) array
        Their pooled standard deviations within the classes.
    floor : (K, m) array
        What was added to variances of 0, in these units.
    screened : bool
        Whether sites said which columns are linked before they told moments.
    screened_blocks : tuple of arrays of int
        Blocks of columns whose moments were told.
    n_questions : int
        Questions for links.
    lam : float
        Penalty in all.
    choice : {"likelihood", "sites", "holdout", "given"}
    judges : tuple of str
        Sites whose moments, or errors, chose.
    candidate_loss : (A,) array
        Mean negative log density of a row, given its class, under models of the other sites, where
        these chose; NaN otherwise.
    cv_wrong : (F, A) array of int
        Rows that judges got wrong.
    cv_rows : (F,) array of int
        Rows that they judged.
    penalty_norms, relative_penalties, gaps : (A,) arrays
    relative_to : float
        Penalty whose sum of norms is 1: 0, or the smallest of the path.
    precisions : tuple of (K, q, q) arrays
        Of the blocks, in units of `scale`.
    diagonal : (K, m) array
        Of columns outside of blocks; NaN inside.
    log_det : (K,) array
    objective, dual, penalty_norm : float
    n_held : int
        Rows that told `errors`.
    site_held : (B,) array
    """

    held_by_site: FloatArray
    used: NDArray[np.bool_]
    means: FloatArray
    columns: IntArray
    scale: FloatArray
    floor: FloatArray
    screened: bool
    screened_blocks: tuple[Any, ...]
    n_questions: int
    lam: float
    choice: str
    judges: tuple[str, ...]
    candidate_loss: FloatArray
    cv_wrong: IntArray
    cv_rows: IntArray
    penalty_norms: FloatArray
    relative_penalties: FloatArray
    gaps: FloatArray
    relative_to: float
    precisions: tuple[Any, ...]
    diagonal: FloatArray
    log_det: FloatArray
    objective: float
    dual: float
    penalty_norm: float
    n_held: int
    site_held: FloatArray

    @property
    def n_fitted(self) -> int:
        """Rows of the moments."""
        return int(self.n_by_class.sum())

    @property
    def path(self) -> SparseQDAPath:
        """Fits along the penalties."""
        return SparseQDAPath(self.candidates, **{name: getattr(self, name) for name in _OF_PATH})

    def predictor(self) -> SparseQDAPredictor:
        """Return what the sites keep: it takes rows in their own units."""
        return SparseQDAPredictor(
            self.means[:, self.columns],
            log_priors=np.log(self.priors),
            scale=self.scale,
            kept=self.columns,
            diagonal=np.nan_to_num(self.diagonal),
            blocks=self._places(),
            precisions=self.precisions,
            classes=np.array(self.levels),
            n_features=len(self.feature_names),
            feature_names=self.feature_names,
            scaling=self.scaling if self.scaling.size else None,
        )

    def _places(self) -> tuple[IntArray, ...]:
        """Blocks by their places among the columns that take part."""
        return tuple(np.searchsorted(self.columns, block) for block in self.blocks)

    def to_estimator(self) -> SparseQDA:
        """Return a fitted `SparseQDA`, for rows on the scale of the preparation."""
        from consilience.discriminant.estimators.sparse_qda import fitted_sparse_qda

        precision = JointPrecision(
            self.lam,
            self.n_by_class,
            len(self.columns),
            blocks=self._places(),
            **{name: getattr(self, name) for name in OF_PRECISION},
            gap=self.objective - self.dual,
            relative_gap=self.gap,
            n_links=int(self.n_links[self.chosen]),
            n_iter=0,
        )
        units = sparse_qda_fit.QDAUnits(
            len(self.feature_names), self.columns, self.scale, self.floor
        )
        known = BlockMoments(self.n_by_class, 1.0 / np.nan_to_num(self.diagonal, nan=1.0), (), ())
        fit = sparse_qda_fit.SparseQDAFit(
            sparse_qda_fit.PreparedMoments(self.n_by_class, self.means, units, known),
            precision,
            self.path,
            chosen=self.chosen,
            relative_to=self.relative_to,
        )
        return fitted_sparse_qda(
            fit, np.array(self.levels), self.priors, self.feature_names, alpha=self.alpha
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        k, m = len(self.levels), len(self.columns)
        sentences = [
            f"{k} classes are told apart by {m} columns in {self.n_fitted} rows at "
            f"{len(self.sites)} sites; at alpha = {self.alpha:.3g}, "
            f"{int(self.n_links[self.chosen])} of {m * (m - 1) // 2} pairs of columns interact.",
            self._choice_sentence(),
        ]
        if self.n_held and not np.isnan(self.errors).any():
            own, beside = (f"{e / self.n_held:.1%}" for e in self.errors)
            also = " (the rows that chose alpha)" if self.choice == "holdout" else ""
            sentences.append(
                f"Of {self.n_held} rows that were held out{also} it gets {own} wrong, naive Bayes "
                f"{beside}."
            )
        if len(self.pairs):
            first, second = (self.feature_names[int(j)] for j in self.pairs[0])
            sentences.append(f"The strongest interaction is that of {first} and {second}.")
        if self.screened:
            sizes = [len(block) for block in self.screened_blocks]
            sentences.append(
                f"Sites first told which columns are linked ({self.n_questions} "
                f"question{'s' if self.n_questions > 1 else ''}), then moments of {len(sizes)} "
                f"blocks of at most {max(sizes, default=1)} columns."
            )
        return " ".join([*sentences, *self.remarks])

    def _choice_sentence(self) -> str:
        best = f"Alpha is the best of {len(self.candidates)}"
        if self.fixed:
            return "Alpha was given."
        if self.choice == "likelihood":
            loss = self.candidate_loss
            return (
                f"{best} by the density of each site's rows under models of the others: "
                f"{loss[0] - loss[self.chosen]:.3g} nats a row better than without links."
            )
        rows = int(self.cv_rows.sum())
        sparse, wrong, dense = (int(self.cv_errors[i]) for i in (0, self.chosen, -1))
        how = (
            "each site judged models of the others"
            if self.choice == "sites"
            else "sites judged models on rows that were held out"
        )
        return (
            f"{best} where {how}: {wrong} of {rows} rows wrong ({wrong / rows:.1%}), without links "
            f"{sparse}, at the smallest alpha {dense}."
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one line for each penalty of the path."""
        chosen = np.arange(len(self.candidates)) == self.chosen
        frame = self.path.to_frame().drop(columns="cv_se")
        return frame.assign(loss=self.candidate_loss, chosen=chosen)


# --------------------------------------------------------------------------- making it


def held_out(survey: Survey, concluded: Mapping[str, Concluded]) -> dict[str, Any]:
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
    survey: Survey, concluded: Mapping[str, Concluded], fit: sparse_qda_fit.SparseQDAFit, tol: float
) -> tuple[str, ...]:
    """What the reader should know of the way to the result."""
    found, path = [], fit.path
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
