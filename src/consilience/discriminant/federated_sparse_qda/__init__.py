"""Sparse quadratic discriminant analysis over sites, from the moments of their classes.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
offer: Offer                    ->  sorts rows into classes, holds some out
  settings                      <-  Offered: by class rows, held-out rows (k),
                                    means, spreads (k, p)                   AGGREGATE
links: Links, up to 6 times     ->  finds components of linked columns
  features (p), classes (k),    <-  Linked: whether they could leave as
  scale (m), threshold              moments; component labels (m)           AGGREGATE
moments: Moments                ->  sums products within the blocks
  features, classes, labels (m) <-  Products: by class, upper triangles of
                                    the blocks (k, t)                       AGGREGATE
judge: Judge                    ->  counts its rows that each model gets wrong
  models by penalty             <-  Judged: shares, rounded                 AGGREGATE
conclude: Conclude              ->  keeps the predictor, judges held-out rows
  the model, and naive Bayes    <-  Concluded: shares wrong, log losses,
                                    rounded                                 AGGREGATE
==================================  ====================================================

``links`` only where blocks are needed: a moment matrix leaves a site in classes of at least twice
as many rows as it has columns. Everything pooled is the exact moment of the pooled rows (Chan,
Golub and LeVeque 1983), so that the model is that of `SparseQDA` on them. Alpha is chosen without
each site in turn: by the density of its rows under models of the others, which its moments give, or
with ``judge``, at sites whose policy consents, by the errors of these models on its rows.

Phases: opening, agree_levels, standardise (before all methods). With masked sums moments are asked
for in two totals, of groups of rows which take the place of sites in the choice (`masked.py`).

Source: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes* (arXiv
1407.4543), section 2. Departures:

* Classes of a site send sums of products, so one round gives the fit; the source has one table.
* Sites tell which columns are linked as labels of components, not one bit for each pair. With their
  thresholds and the means, no block of the pooled table is cut (docs/proofs/class-moments.md).
* The penalty is a number for a row, between 0 and 1 on columns of pooled standard deviation 1
  within the classes: at 1 no two columns can be linked.
* Folds are sites, which are harder than random ones where sites differ; where sites count no
  errors, densities choose.

Absence: a site that misses the offer, or a question for links, is not in the model, down to the
quorum. One that misses the moments is not in it either; penalties that its absence leaves unproven
are dropped. One that misses the judging does not choose, one that misses the end keeps no
predictor.

Leakage: the coordinator knows, of each class of at least `min_records` rows at each site, numbers
of rows, used and held out, means and spreads of all columns and the cross-products within blocks of
at most half as many columns as the class has rows, no cell of few records or mostly of one; a
partition of the columns for each question for links, at most 6 in a run, each into blocks of at
most half as many columns as the smallest class that counts has rows; and the shares of held-out
rows that two models get wrong, in steps of at least half of `min_records` rows. Sites that protect
no record also tell log losses of the two, with standard errors. Sites know the models. Sites that
consent to values for each record say of 50 models more how many rows they get wrong: who makes
these up learns the class of a person whose columns he knows. Over many runs, or with moments of
other blocks of columns, a coordinator gets more than from one (docs/proofs/class-moments.md says
what).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.classes import (
    LinksResult,
    SitesMethod,
    SitesResult,
    path_seconds,
)
from consilience.discriminant.estimators import sparse_qda_fit
from consilience.discriminant.estimators.predictors import SparseQDAPredictor
from consilience.discriminant.estimators.sparse_qda_fit import PreparedMoments, SparseQDAFit, follow
from consilience.discriminant.federated_sparse_qda import masked, messages, pooling
from consilience.discriminant.federated_sparse_qda.pooling import Survey
from consilience.discriminant.federated_sparse_qda.site import STEPS
from consilience.discriminant.kernels import joint_precision
from consilience.discriminant.kernels.joint_precision import JointPrecision, fit_precisions
from consilience.exceptions import DataError, ParameterError, QuorumError, StudyError
from consilience.numerics.block_moments import BlockMoments
from consilience.numerics.progress import followed, foretell
from consilience.parameters import LEFT_OUT, Allowed, allows, just, number, one_of, several, whole
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Replies,
    SiteData,
    register,
)
from consilience.protocol.phases.holdout import say_share
from consilience.protocol.phases.secure_sums import ALL, refused_for
from consilience.protocol.result import Frame
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    import pandas as pd

    from consilience.discriminant.estimators.sparse_qda import SparseQDA

Answers = Generator[Ask, Replies, Any]
Read = Callable[[PreparedMoments, JointPrecision], Any]

SMALLEST = 0.02
"""Penalty for a row at which links are asked for first, unless given."""
MOST_LOST = 0.1
"""Share of the rows of a class that one block for all columns may cost before links are asked."""


_POSITIVE = several(number(above=0), different=False)
_SHARES = Allowed(
    lambda v: _POSITIVE.holds(v) and (not v or abs(sum(v) - 1) <= 1e-6),
    "one share for each class, together 1",
)
_OF_PATH = tuple(sparse_qda_fit.SparseQDAPath.__dataclass_fields__)[1:]
_OF_PRECISION = ("precisions", "diagonal", "log_det", "objective", "dual", "penalty_norm")
"""Fields of the fit that the result has by the same names: of its path all but the penalties."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedSparseQDAResult(SitesResult, LinksResult):
    """Classes with sparse precision matrices that share their zeros, over the rows of all sites.

    Rows are those of the moments; numbers of rows in a wrong class are rounded where records are
    protected. With masked sums "all sites" are one site, and none of its rows are held out.

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
        Sites whose moments, or errors, chose; with masked sums groups of rows.
    candidate_loss : (A,) array
        Mean negative log density of a row, given its class, under models of the other judges, where
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
    def path(self) -> sparse_qda_fit.SparseQDAPath:
        """Fits along the penalties."""
        return sparse_qda_fit.SparseQDAPath(
            self.candidates, **{name: getattr(self, name) for name in _OF_PATH}
        )

    def predictor(self) -> SparseQDAPredictor:
        """Return what the sites keep: it takes rows in their own units."""
        return self.to_estimator().predictor_

    def to_estimator(self) -> SparseQDA:
        """Return a fitted `SparseQDA`, for rows in the columns' own units, which it prepares.

        Of five rows or more it refuses those that are prepared already or in other units.
        """
        from consilience.discriminant.estimators.sparse_qda import fitted_sparse_qda

        precision = JointPrecision(
            self.lam,
            self.n_by_class,
            len(self.columns),
            blocks=tuple(np.searchsorted(self.columns, block) for block in self.blocks),
            **{name: getattr(self, name) for name in _OF_PRECISION},
            gap=self.objective - self.dual,
            relative_gap=self.gap,
            n_links=int(self.n_links[self.chosen]),
            n_iter=0,
        )
        units = sparse_qda_fit.QDAUnits(
            len(self.feature_names), self.columns, self.scale, self.floor
        )
        known = BlockMoments(self.n_by_class, 1.0 / np.nan_to_num(self.diagonal, nan=1.0), (), ())
        fit = SparseQDAFit(
            PreparedMoments(self.n_by_class, self.means, units, known),
            precision,
            self.path,
            chosen=self.chosen,
            relative_to=self.relative_to,
        )
        return fitted_sparse_qda(
            fit,
            np.array(self.levels),
            self.priors,
            self.feature_names,
            self.scaling if self.scaling.size else None,
            alpha=self.alpha,
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        k, m = len(self.levels), len(self.columns)
        sentences = [
            f"{k} classes are told apart by {m} columns in {self.n_fitted} rows at "
            f"{ALL if self.masked else f'{len(self.sites)} sites'}; at alpha = {self.alpha:.3g}, "
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
            loss, whose = self.candidate_loss, "group" if self.masked else "site"
            return (
                f"{best} by the density of each {whose}'s rows under models of the others: "
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

    @Frame
    def penalties(self) -> pd.DataFrame:
        """Every penalty of the path."""
        chosen = np.arange(len(self.candidates)) == self.chosen
        frame = self.path.to_frame().drop(columns="cv_se")
        return frame.assign(loss=self.candidate_loss, chosen=chosen)


@register
@dataclass(frozen=True, kw_only=True)
class FederatedSparseQDA(SitesMethod[FederatedSparseQDAResult]):
    """Classify by normal densities whose precision matrices share their zeros, over all sites.

    Parameters
    ----------
    alpha : float, optional
        Penalty for a row, from 0 (quadratic discriminant analysis) to 1 (no two columns interact);
        chosen unless given, see `choose`.
    alphas : sequence of float
        Grid to choose from; otherwise `n_alphas` from the first without any link to `smallest`.
    n_alphas : int
        Penalties of the grid, geometric from the first one downwards.
    smallest : float or "auto"
        Last penalty of the grid. "auto" ends as `SparseQDA` does where sites send the moments of
        all columns, else at .02, or at the next larger one whose blocks may leave the sites.
    choose : {"auto", "likelihood", "sites", "holdout"}
        By the density of each site's rows under models of the others, which follows from the
        moments (with masked sums of each group's rows); by their errors at sites that count them
        (three sites or more, of policies that allow values for each record); or by errors on
        held-out rows there. "auto" takes errors where no site protects records, as they are rounded
        elsewhere.
    ties : {"sparsest", "densest", "middle"}
        Which penalty among those with the same number of errors.
    screening : bool or "auto"
        Whether sites say which columns are linked, and then tell moments within blocks only. "auto"
        does so where moments of all columns would leave out more than a tenth of the rows of a
        class.
    priors : sequence of float
        Probabilities of the levels, in their order; empty takes their shares of all rows of the
        sites, also of rows whose moments are withheld.
    holdout : float
        Share of each site's rows that is kept out of the moments and judges the result, in [0, .5];
        protected sites hold out one or two fifths, or nothing.
    max_block : int
        Largest block that is fitted.
    tol : float
        Relative duality gap.

    Notes
    -----
    The study names a ``target`` with declared levels. A class of fewer rows than the policy's
    `min_records` at a site counts as empty there.
    """

    alpha: float | None = allows(number(0, 1) | LEFT_OUT, default=None)
    alphas: tuple[float, ...] = allows(several(number(0, 1), most=messages.MAX_ALPHAS), default=())
    n_alphas: int = allows(whole(2, messages.MAX_ALPHAS), default=20)
    smallest: float | str = allows(just("auto") | number(above=0, below=1), default="auto")
    choose: str = allows(one_of("auto", "likelihood", "sites", "holdout"), default="auto")
    ties: str = allows(one_of(*sparse_qda_fit.TIES), default="sparsest")
    screening: str | bool = allows(just("auto", True, False), default="auto")
    priors: tuple[float, ...] = allows(_SHARES, default=())
    holdout: float = allows(number(0, 0.5), default=0.2)
    max_block: int = allows(whole(2, 100_000), default=2000)
    tol: float = allows(number(above=0, below=1), default=1e-8)

    name: ClassVar[str] = "federated-sparse-qda"
    version: ClassVar[int] = 7
    title: ClassVar[str] = "Which class does a row belong to, and which columns interact?"
    steps = (*STEPS, *masked.STEPS)
    tolerates: ClassVar = {**SitesMethod.tolerates, "keep": "any"}
    absence: ClassVar[str] = (
        "A site that misses the offer, a question for links or the moments is not in the model, "
        "down to the quorum. One that misses the judging does not choose alpha. One that misses "
        "the end keeps no predictor. With masked sums a site that is lost between the "
        "scaling of the columns and the last total stops the run until it is back."
    )
    leakage: ClassVar[str] = (
        "The coordinator knows, of each class at each site, numbers of rows, used and held out, "
        "column means and spreads, and cross-products within blocks of at most half as many "
        "columns as rows; which columns are linked; and the shares of held-out rows that two "
        "models get wrong, rounded. Sites that allow values for each record say it of 50 models "
        "more; sites that protect no record also tell log losses of the two models. Sites know "
        "the models. With masked sums the coordinator knows numbers of rows, sums and "
        "cross-products by class of up to 4 groups of rows of all sites together, and how many "
        "sites could tell each column, each class and so many groups."
    )
    Result = FederatedSparseQDAResult
    predictor: ClassVar[Any] = SparseQDAPredictor
    masks_sums: ClassVar[bool] = True

    def check_together(self) -> None:
        """Check that rows are held out where they choose."""
        if self.choose == "holdout" and self.alpha is None and self.holdout == 0:
            raise ParameterError.of("holdout", "above 0 where held-out rows choose", self.holdout)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that classes, features and priors go together, and that sites can choose."""
        super().admit(ctx)
        levels = ctx.columns.levels[str(ctx.columns.target)]
        if self.priors and len(self.priors) != len(levels):
            raise ParameterError.of(
                "priors", f"{len(levels)} shares, one for each level", self.priors
            )
        if self.choose == "sites" and self.alpha is None and len(ctx.sites) < 3:
            raise StudyError(
                "alpha is chosen by models of the other sites, of which two or more are needed: "
                'set choose to "holdout", or give alpha'
            )
        if ctx.secure and ctx.preparation.standardize != "pooled":
            raise StudyError(
                "masked sums of products are added up about 0 with a fixed resolution: set "
                '[preparation] standardize to "pooled"'
            )

    def cannot_mask(self) -> str:
        """Say what is asked of single sites beside sums."""
        links = 'asks each site which columns are linked: set screening to "auto"'
        errors = 'asks each site how many rows models get wrong: set choose to "likelihood"'
        counts = self.alpha is None and self.choose in ("sites", "holdout")
        return refused_for({links: self.screening is True, errors: counts})

    def expected_seconds(self, data: SiteData, n_sites: int) -> float:
        """Of the path on all moments, and of those without one site where such ones choose."""
        settings = dataclasses.replace(self.qda_settings(), smallest=self.smallest)
        return path_seconds(data, settings, self._n_paths(n_sites))

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Offer, links, moments, choice, end."""
        levels = tuple(ctx.columns.levels[str(ctx.columns.target)])
        settings = messages.Settings(levels=levels, holdout=float(self.holdout))
        if ctx.masks is None:
            left, products, blocks = yield from self._asked(ctx, settings)
        else:
            # Groups of the rows of all sites take the place of sites.
            several = self.alpha is None and len(self.alphas) != 1
            left, products = yield from masked.moments_of_all(ctx, settings, several)
            blocks = pooling.Blocks.one(left)
        prepared = products.prepared(left)
        # Sites that are missing now may leave less proven than all proved together.
        lowest = blocks.alpha if len(blocks.thresholds) else None
        if lowest is not None and len(left.sites) < len(blocks.survey.sites):
            lowest = max(lowest, blocks.proven_alpha(left))
        for sentence in pooling.notes_of(left, products, prepared.units, ctx.feature_names):
            ctx.note(sentence)
        alphas = self._grid(ctx, prepared, lowest)
        n_paths, known = self._n_paths(len(left.sites)), self.qda_settings()
        foretell(
            f"sparse QDA, {len(alphas)} penalties, {len(left.sites)} sites",
            partial(sparse_qda_fit.expected_seconds, prepared, alphas, n_paths, known),
        )
        choice = Choice(self, ctx, settings, left, products, prepared, alphas, blocks)
        fit, (way, judges, loss) = yield from choice.made()
        precision, units = fit.precision, prepared.units
        own = self.model_of(ctx, prepared, precision)
        if ctx.masks is None:
            # And one without links: above the largest penalty nothing is linked.
            none = max(prepared.total, joint_precision.largest_penalty(prepared.moments))
            beside = self.model_of(ctx, prepared, fit_precisions(prepared.moments, none))
            models = relayed((own, beside), Disclosure.MODEL)
            told = left
            end = Ask("conclude", messages.Conclude(settings, models), to=left.sites)
        else:
            model = relayed(own, Disclosure.MODEL)
            told = masked.together(left)
            end = Ask("keep", messages.Keep(settings, model), to=ctx.sites)
        concluded = ctx.require((yield end), at_least=0)
        missing = [name for name in end.to or () if name not in concluded]
        shares = np.array(self.priors) if self.priors else prepared.told
        links = sparse_qda_fit.SparseQDAInteractions.of(
            precision, units, np.array(levels), ctx.feature_names
        )
        path = dict(vars(fit.path))
        alphas, wrong = path.pop("alphas"), path["cv_wrong"]
        alpha = float(alphas[fit.chosen])
        return FederatedSparseQDAResult(
            target_name=str(ctx.columns.target),
            levels=levels,
            feature_names=ctx.feature_names,
            sites=told.sites,
            n_by_site=told.counts,
            held_by_site=told.held,
            used=told.used,
            n_by_class=told.n,
            means=prepared.means,
            columns=units.kept,
            scale=units.scale,
            floor=units.floor,
            priors=shares / shares.sum(),
            screened=bool(blocks.asked),
            screened_blocks=tuple(products.columns[block] for block in products.blocks),
            n_questions=blocks.asked,
            alpha=alpha,
            lam=alpha * prepared.total,
            candidates=alphas,
            chosen=fit.chosen,
            fixed=way == "given",
            choice=way,
            judges=judges,
            candidate_loss=loss,
            **path,
            cv_errors=wrong.sum(axis=0).astype(float) if len(wrong) else np.nan * alphas,
            relative_to=fit.relative_to,
            gap=float(precision.relative_gap),
            blocks=tuple(units.kept[block] for block in precision.blocks),
            **{name: getattr(precision, name) for name in _OF_PRECISION},
            pairs=links.pairs,
            strength=links.strength,
            precision=links.precision,
            partial=links.partial_correlation,
            **pooling.held_out(told, concluded if ctx.masks is None else {}),
            scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
            remarks=(*ctx.notes, *pooling.remarks_of(told, missing, fit, self.tol)),
        )

    # ------------------------------------------------------------------ parts of the exchange

    def _asked(self, ctx: CoordinatorContext, settings: messages.Settings) -> Answers:
        """What the sites that told moments bring, these moments, and the blocks they are in."""
        say_share(ctx, self.holdout)
        offered = ctx.require((yield Ask("offer", messages.Offer(settings=settings))))
        blocks = pooling.Blocks.one(pooling.survey_of(offered, settings.levels))  # nothing asked
        if self.screening is False and not blocks.told():
            raise QuorumError(
                "no site has twice as many rows of some class as there are columns: set screening "
                'to "auto", or drop columns'
            )
        # One block for all columns costs rows of small classes.
        enough = self.screening != "auto" or blocks.told(MOST_LOST)
        if self.screening is True or not enough:
            blocks = yield from pooling.ask_for_links(ctx, settings, blocks.survey, self._wanted())
        brought, kept = blocks.survey, blocks.units.kept
        questions = {
            name: messages.Moments(
                settings=settings,
                features=np.isin(np.arange(blocks.units.n_features), kept),
                classes=brought.used[b],
                labels=relayed(blocks.labels, Disclosure.AGGREGATE),
            )
            for b, name in enumerate(brought.sites)
        }
        ask = Ask("moments", questions, to=brought.sites, known=brought.squares())
        replies = ctx.require((yield ask))
        left = pooling.remaining(brought, replies)
        products = pooling.SiteProducts.of(replies, kept, blocks.labels, settings.levels)
        return left, products, blocks

    def model_of(
        self, ctx: CoordinatorContext, prepared: PreparedMoments, precision: JointPrecision
    ) -> Any:
        """A model as it travels.

        Parameters
        ----------
        ctx : CoordinatorContext
        prepared : PreparedMoments
            Pooled moments, in the units in which the links were fitted.
        precision : JointPrecision
            Precision matrices of the classes.

        Returns
        -------
        dict of array
            Parameters of the rule, with the priors of the study, or shares of the rows.
        """
        levels = np.array(ctx.columns.levels[str(ctx.columns.target)])
        shares = np.array(self.priors) if self.priors else prepared.told
        made = prepared.predictor(
            precision, levels, shares / shares.sum(), feature_names=ctx.feature_names
        )
        return made.to_arrays()

    def qda_settings(self) -> sparse_qda_fit.QDASettings:
        """Settings of fits and paths."""
        same = {name: getattr(self, name) for name in ("n_alphas", "ties", "max_block", "tol")}
        return sparse_qda_fit.QDASettings(
            alpha="cv" if self.alpha is None else float(self.alpha),
            alphas=np.array(self.alphas) if self.alphas else None,
            **same,
        )

    def _n_paths(self, n_sites: int) -> int:
        """Paths in whose stead folds may be counted: fits end later here, in twice the steps."""
        beside = 1 if self.choose == "holdout" else n_sites
        return 0 if self.alpha is not None else 2 * beside

    def _wanted(self) -> FloatArray:
        """Penalties at which links may be asked for, falling."""
        if self.alpha is not None:
            return np.array([float(self.alpha)])
        if self.alphas:
            return np.sort(np.array(self.alphas, dtype=float))[::-1].copy()
        # At 1 no two standardised columns can be linked.
        smallest = SMALLEST if isinstance(self.smallest, str) else self.smallest
        return np.geomspace(1.0, smallest, self.n_alphas)

    def _grid(
        self, ctx: CoordinatorContext, prepared: PreparedMoments, lowest: float | None
    ) -> FloatArray:
        """Penalties of the path, falling, none smaller than the blocks allow."""
        if lowest is None and isinstance(self.smallest, str):
            return sparse_qda_fit.grid_of(prepared, self.qda_settings())
        least, wanted = lowest or 0.0, self._wanted()
        if self.alpha is not None or self.alphas:
            grid = wanted[wanted >= least * (1 - 1e-12)]
        else:
            largest = joint_precision.largest_penalty(prepared.moments) / prepared.total
            end = max(wanted[-1], least)
            grid = np.geomspace(largest, end, self.n_alphas) if largest > end else np.array([end])
        if not len(grid):
            raise QuorumError(
                f"at alpha = {float(wanted[0]):.3g} blocks of linked columns cannot be told: raise "
                "alpha, or let sites with more rows take part"
            )
        if grid[-1] > wanted[-1] * (1 + 1e-12):
            ctx.note(
                f"The path ends at alpha = {grid[-1]:.3g}: below it, blocks of linked columns are "
                "more than sites can tell of."
            )
        return np.asarray(grid)


# --------------------------------------------------------------------------- choice of the penalty


@dataclass(frozen=True, eq=False)
class Choice:
    """The choice of the penalty: by the density of sites that a path did not see, or by errors.

    Densities of a site's rows under a model depend on the rows through their moments only, which
    the coordinator has: this choice asks the sites nothing. Errors have to be counted at the sites.

    Attributes
    ----------
    method : FederatedSparseQDA
    ctx : CoordinatorContext
    settings : Settings
    survey : Survey
        Of the sites whose moments are pooled.
    products : SiteProducts
    prepared : PreparedMoments
    alphas : (A,) array
        Penalties for a row, falling.
    blocks : Blocks
    """

    method: FederatedSparseQDA
    ctx: CoordinatorContext
    settings: messages.Settings
    survey: Survey
    products: pooling.SiteProducts
    prepared: PreparedMoments
    alphas: FloatArray
    blocks: pooling.Blocks

    def made(self) -> Answers:
        """The fit that is chosen, and who chose: by what, which sites, with which mean losses."""
        survey, sites, way = self.survey, self.survey.sites, "given"
        if self.method.alpha is None and len(self.alphas) > 1:
            way = self.method.choose
        if way == "sites" and len(sites) < 3:
            raise QuorumError("fewer than three sites are left to choose alpha: give alpha")
        if way == "auto":  # errors where all sites tell them exactly: rounded ones choose worse
            if any(survey.protected[name] for name in sites):
                way = "likelihood"
            elif len(sites) >= 3:
                way = "sites"
            else:
                way = "holdout" if survey.held.any() else "likelihood"
        if way == "likelihood":
            return self._by_densities()
        paths: dict[str, tuple[list[Any], float]] = {}
        near, model_of = [], partial(self.method.model_of, self.ctx)
        if way == "sites":  # the path without each site, which counts the errors on its rows
            for site in sites:
                found = self._without(site, model_of) if survey.judges[site] else None
                if found is None:
                    continue
                others, paths[site] = found
                known = len(self.blocks.thresholds) > 0
                if known and self.blocks.proven_alpha(others) > self.alphas[-1]:
                    near.append(site)
        elif way == "holdout":  # one path, and the errors on rows that sites hold out
            held = zip(sites, survey.held.sum(axis=1), strict=True)
            holding = [site for site, n in held if n and survey.judges[site]]
            paths = dict.fromkeys(holding, self._path(self.prepared, model_of))
        if near:
            self.ctx.note(
                "Without one site, columns of two blocks might be linked at the smallest alphas; "
                f"the models that {', '.join(near)} judged there leave such links out."
            )
        told: dict[str, Any] = {}
        if paths:
            questions = {
                site: messages.Judge(
                    settings=self.settings,
                    held=way == "holdout",
                    models=relayed(tuple(models), Disclosure.MODEL),
                )
                for site, (models, _) in paths.items()
            }
            ask = Ask("judge", questions, to=tuple(questions))
            replies = self.ctx.require((yield ask), at_least=0)
            told = {site: r for site, r in replies.items() if np.isfinite(r.rates.value).all()}
        if way != "given" and not told:
            raise QuorumError(
                "no site can say how many of its rows the models get wrong, so alpha cannot be "
                "chosen: give alpha, or let more or larger sites take part"
            )
        counts = (survey.held if way == "holdout" else survey.counts).sum(axis=1)
        answers = []
        for site, reply in told.items():
            n = int(counts[sites.index(site)])
            # Shares come rounded: the nearest whole number of rows.
            wrong = np.rint(np.asarray(reply.rates.value, dtype=float) * n).astype(np.int64)
            answers.append(sparse_qda_fit.FoldAnswer(wrong, n, gaps=np.array(paths[site][1:2])))
        fit = follow(self.prepared, self.alphas, answers, self.method.qda_settings())
        return fit, (way, tuple(told), np.full(len(fit.path), np.nan))

    # ------------------------------------------------------------------ by densities

    def _by_densities(self) -> tuple[SparseQDAFit, tuple[str, tuple[str, ...], FloatArray]]:
        """The fit that the sites' moments choose, under models of the others; nothing is asked.

        Raises
        ------
        QuorumError
            No site can be left out.
        """
        judges, losses, rows, gap = [], [], 0.0, 0.0
        for site, n in zip(self.survey.sites, self.survey.sizes.sum(axis=1), strict=True):
            found = self._without(site, partial(self._loss, site)) if n else None
            if found is not None:
                values, worst = found[1]
                judges.append(site)
                losses.append(np.array(values))
                rows, gap = rows + float(n), max(gap, worst)
        reach = min((len(values) for values in losses), default=0)
        if not reach:
            raise QuorumError(
                "no site can be left out of the moments, so alpha cannot be chosen: give alpha, or "
                "let more sites take part"
            )
        # Each row weighs alike; paths may end at different penalties.
        loss = np.sum([values[:reach] for values in losses], axis=0) / rows
        # As one fold that has a single error everywhere but at the penalty of the smallest loss.
        others = (np.arange(reach) != int(np.argmin(loss))).astype(np.int64)
        answer = sparse_qda_fit.FoldAnswer(others, 1, gaps=np.array([gap]))
        fit = follow(self.prepared, self.alphas, [answer], self.method.qda_settings())
        none = np.empty((0, len(fit.path)), dtype=np.int64)
        path = dataclasses.replace(fit.path, cv_wrong=none, cv_rows=none[:, 0])
        how = ("likelihood", tuple(judges), loss[: len(path)])
        return dataclasses.replace(fit, path=path), how

    def _loss(self, site: str, prepared: PreparedMoments, precision: JointPrecision) -> float:
        """Negative log density of a site's rows, from its moments.

        Blocks of which the site withholds a class are left out there, at all penalties.
        """
        survey, products = self.survey, self.products
        b, units = survey.sites.index(site), prepared.units
        place = {int(j): (i, at) for i, of in enumerate(products.blocks) for at, j in enumerate(of)}
        where = np.searchsorted(products.columns, units.kept)
        total = 0.0
        for k in np.flatnonzero(survey.used[b]):
            n, told = survey.counts[b, k], np.ones(len(units.kept), dtype=bool)
            for i, block in enumerate(products.blocks):
                told[np.isin(where, block)] &= products.told(site, i, int(k))
            apart = (survey.means[b, k, units.kept] - prepared.means[k, units.kept]) / units.scale
            # Mean squares about the means of the model.
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
                # Second moments of the site about the means of the model, in its units.
                second = sums / n / np.outer(scale, scale) + np.outer(apart[block], apart[block])
                part += float((matrices[k] * second).sum() - np.linalg.slogdet(matrices[k])[1])
            # The density is that of the columns in their own units.
            part += float((2 * np.log(units.scale[told]) + np.log(2 * np.pi)).sum())
            total += 0.5 * n * part
        return total

    # ------------------------------------------------------------------ paths

    def _path(self, prepared: PreparedMoments, read: Read) -> tuple[list[Any], float]:
        """What is read of each fit of a path, and the largest gap; no block is too large."""
        found, gap, settings = [], 0.0, self.method.qda_settings()
        steps = sparse_qda_fit.precision_path(prepared, self.alphas, settings, stop=True)
        for precision in followed(steps, "penalties", len(self.alphas)):
            found.append(read(prepared, precision))
            gap = max(gap, precision.relative_gap)
        return found, gap

    def _without(self, site: str, read: Read) -> tuple[Survey, tuple[list[Any], float]] | None:
        """The other sites and the path on their moments; None where they lack some."""
        others = self.survey.only([other for other in self.survey.sites if other != site])
        try:
            if not others.complete:
                raise QuorumError("a class is at this site only")
            return others, self._path(self.products.prepared(others), read)
        except (QuorumError, DataError):
            who = f"Site {site}" if self.ctx.masks is None else site.capitalize()
            self.ctx.note(
                f"{who} does not take part in the choice of alpha: without it some class, or "
                "some block of columns in a class, has no moments."
            )
            return None
