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

Phases: opening, agree_levels, standardise (before all methods).

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
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.arrays import FloatArray
from consilience.discriminant.estimators.sparse_qda_fit import (
    FoldAnswer,
    PreparedMoments,
    QDASettings,
    SparseQDAFit,
    follow,
    grid_of,
)
from consilience.discriminant.estimators.sparse_qda_predictor import SparseQDAPredictor
from consilience.discriminant.federated_sparse_qda import pooling, site, survey
from consilience.discriminant.federated_sparse_qda.choosing import (
    by_densities,
    by_held_out,
    by_sites,
)
from consilience.discriminant.federated_sparse_qda.linking import (
    Blocks,
    ask_for_links,
    one_block,
    proven_alpha,
    remaining,
    tells_all,
)
from consilience.discriminant.federated_sparse_qda.messages import (
    Conclude,
    Moments,
    Offer,
    Settings,
)
from consilience.discriminant.federated_sparse_qda.outcome import build_result
from consilience.discriminant.federated_sparse_qda.parameters import check_parameters, levels_of
from consilience.discriminant.federated_sparse_qda.pooling import SiteProducts
from consilience.discriminant.federated_sparse_qda.result import FederatedSparseQDAResult
from consilience.discriminant.federated_sparse_qda.survey import Survey, survey_of
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method, Replies, register
from consilience.protocol.phases.holdout import say_share
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

Answers = Generator[Ask, Replies, Any]

MOST_LOST = 0.1
"""Share of the rows of a class that one block for all columns may cost before links are asked."""


@register
@dataclass(frozen=True, kw_only=True)
class FederatedSparseQDA(Method):
    """Classify by normal densities whose precision matrices share their zeros, over all sites.

    Parameters
    ----------
    alpha : float, optional
        Penalty for a row, from 0 (quadratic discriminant analysis) to 1 (no two columns interact);
        chosen unless given, see `choose`.
    alphas : sequence of float
        Grid to choose from; otherwise `n_alphas` from the first without any link to `smallest`.
    n_alphas : int
    smallest : float or "auto"
        Last penalty of the grid. "auto" ends as `SparseQDA` does where sites send the moments of
        all columns, else at .02, or at the next larger one whose blocks may leave the sites.
    choose : {"auto", "likelihood", "sites", "holdout"}
        By the density of each site's rows under models of the others, which follows from the
        moments; by their errors at sites that count them (three sites or more, of policies that
        allow values for each record); or by errors on held-out rows there. "auto" takes errors
        where no site protects records, as they are rounded elsewhere.
    ties : {"sparsest", "densest", "middle"}
        Which penalty among those with the same number of errors.
    screening : bool or "auto"
        Whether sites say which columns are linked, and then tell moments within blocks only. "auto"
        does so where moments of all columns would leave out more than a tenth of the rows of a
        class.
    priors : sequence of float
        Probabilities of the levels, in their order; empty takes their shares of the rows.
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

    alpha: float | None = None
    alphas: tuple[float, ...] = ()
    n_alphas: int = 20
    smallest: float | str = "auto"
    choose: str = "auto"
    ties: str = "sparsest"
    screening: str | bool = "auto"
    priors: tuple[float, ...] = ()
    holdout: float = 0.2
    max_block: int = 2000
    tol: float = 1e-8

    name: ClassVar[str] = "federated-sparse-qda"
    version: ClassVar[int] = 2
    title: ClassVar[str] = "Which class does a row belong to, and which columns interact?"
    steps = (site.offer, site.links, site.moments, site.judge, site.conclude)
    tolerates: ClassVar[Mapping[str, Literal["quorum", "all", "any"]]] = {
        "judge": "any",
        "conclude": "any",
    }
    absence: ClassVar[str] = (
        "A site that misses the offer, a question for links or the moments is not in the model, "
        "down to the quorum. One that misses the judging does not choose alpha. One that misses "
        "the end keeps no predictor."
    )
    leakage: ClassVar[str] = (
        "The coordinator knows, of each class at each site, numbers of rows, used and held out, "
        "column means and spreads, and cross-products within blocks of at most half as many "
        "columns as rows; which columns are linked; and the shares of held-out rows that two "
        "models get wrong, rounded. Sites that allow values for each record say it of 50 models "
        "more; sites that protect no record also tell log losses of the two models. Sites know "
        "the models."
    )
    Result = FederatedSparseQDAResult
    predictor: ClassVar[Any] = SparseQDAPredictor
    roles: ClassVar[tuple[str, ...]] = ("target", "entity")
    foreign_models: ClassVar[bool] = True  # they are judged by held-out rows

    def __post_init__(self) -> None:
        for name in ("alphas", "priors"):
            given = getattr(self, name)
            listed = tuple(given) if isinstance(given, list | tuple | np.ndarray) else (given,)
            plain = tuple(v.item() if isinstance(v, np.generic) else v for v in listed)
            object.__setattr__(self, name, plain)

    def validate(self) -> None:
        """Check parameters; raise `ParameterError`."""
        check_parameters(self)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are classes and features."""
        columns = ctx.columns
        if columns.target is None or len(columns.levels.get(columns.target, ())) < 2:
            raise StudyError(
                "federated-sparse-qda tells classes apart: name their column as target in [data] "
                "and declare its levels, two or more"
            )
        if not columns.features:
            raise StudyError("federated-sparse-qda predicts from features: name them in [data]")
        if columns.weight is not None:
            raise StudyError("federated-sparse-qda knows no weights: leave out [data] weight")
        if ctx.preparation.standardize == "site":
            raise StudyError(
                "columns mean the same at all sites only on one scale: set [preparation] "
                'standardize to "pooled" or "none"'
            )
        levels = columns.levels[columns.target]
        if self.priors and len(self.priors) != len(levels):
            raise ParameterError.of(
                "priors", f"{len(levels)} shares, one for each level", self.priors
            )
        if self.choose == "sites" and self.alpha is None and len(ctx.sites) < 3:
            raise StudyError(
                "alpha is chosen by models of the other sites, of which two or more are needed: "
                'set choose to "holdout", or give alpha'
            )

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Offer, links, moments, choice, end."""
        s = self.settings(ctx)
        say_share(ctx, s.holdout)
        offered = ctx.require((yield Ask("offer", Offer(settings=s.to_json()))))
        brought = survey_of(offered, s.levels)
        brought, units, blocks = yield from self._blocks(ctx, s, brought)
        columns = units.kept
        messages = {
            name: Moments(
                settings=s.to_json(),
                features=np.isin(np.arange(units.n_features), columns),
                classes=brought.used[b],
                labels=relayed(blocks.labels, Disclosure.AGGREGATE),
            )
            for b, name in enumerate(brought.sites)
        }
        ask = Ask("moments", messages, to=brought.sites, known=brought.squares())
        replies = ctx.require((yield ask))
        left = remaining(brought, replies)
        products = SiteProducts.of(replies, columns, blocks.labels, s.levels)
        prepared = products.prepared(left)
        lowest = blocks.alpha if len(blocks.thresholds) else None
        if lowest is not None and len(left.sites) < len(brought.sites):
            lowest = max(lowest, proven_alpha(blocks, brought, units, left))
        for sentence in (
            *survey.notes_of(left, prepared.units, s.levels, ctx.feature_names),
            *pooling.notes_of(products, left),
        ):
            ctx.note(sentence)
        alphas = self._grid(ctx, prepared, lowest)
        told = (blocks, brought, units)
        fit, choice = yield from self._chosen(ctx, left, products, prepared, alphas, told)
        shares = prepared.n if not self.priors else np.array(self.priors)
        models = relayed(self._models(ctx, prepared, fit), Disclosure.MODEL)
        message = Conclude(settings=s.to_json(), models=models)
        ask = Ask("conclude", message, to=left.sites)
        concluded = ctx.require((yield ask), at_least=0)
        return build_result(
            ctx,
            s.levels,
            left,
            products,
            blocks,
            fit,
            shares / shares.sum(),
            choice,
            concluded,
            self.tol,
        )

    # ------------------------------------------------------------------ parts of the exchange

    def settings(self, ctx: CoordinatorContext) -> Settings:
        """What travels with each message."""
        levels = tuple(ctx.columns.levels[str(ctx.columns.target)])
        return Settings(levels=levels, holdout=float(self.holdout))

    def model_of(self, ctx: CoordinatorContext, prepared: PreparedMoments, precision: Any) -> Any:
        """A model as it travels."""
        levels = np.array(ctx.columns.levels[str(ctx.columns.target)])
        priors = np.array(self.priors) / sum(self.priors) if self.priors else None
        made = prepared.predictor(precision, levels, priors, feature_names=ctx.feature_names)
        return made.to_arrays()

    def _blocks(self, ctx: CoordinatorContext, s: Settings, brought: Survey) -> Answers:
        """Survey, units, and blocks whose moments are asked for."""
        units = brought.units()
        whole = one_block(len(units.kept))
        if self.screening is False and not tells_all(brought, whole.labels):
            raise QuorumError(
                "no site has twice as many rows of some class as there are columns: set screening "
                'to "auto", or drop columns'
            )
        asks = self.screening is True or not tells_all(brought, whole.labels, MOST_LOST)
        if self.screening is False or not asks:
            return brought, units, whole
        return (yield from ask_for_links(ctx, s.to_json(), brought, levels_of(self)))

    def _grid(
        self, ctx: CoordinatorContext, prepared: PreparedMoments, lowest: float | None
    ) -> FloatArray:
        """Penalties of the path, falling, none smaller than the blocks allow."""
        from consilience.discriminant.kernels.joint_precision import largest_penalty

        if lowest is None and isinstance(self.smallest, str):
            return grid_of(prepared, self._qda_settings())
        least = 0.0 if lowest is None else lowest
        wanted = levels_of(self)
        if self.alpha is not None or self.alphas:
            grid = wanted[wanted >= least * (1 - 1e-12)]
        else:
            largest, end = (
                largest_penalty(prepared.moments) / prepared.total,
                max(wanted[-1], least),
            )
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

    def _qda_settings(self) -> QDASettings:
        return QDASettings(
            alpha="cv" if self.alpha is None else float(self.alpha),
            alphas=np.array(self.alphas) if self.alphas else None,
            n_alphas=self.n_alphas,
            ties=self.ties,
            max_block=self.max_block,
            tol=self.tol,
        )

    def _chosen(
        self,
        ctx: CoordinatorContext,
        left: Survey,
        products: SiteProducts,
        prepared: PreparedMoments,
        alphas: FloatArray,
        told: tuple[Blocks, Survey, Any],
    ) -> Answers:
        """The path with its errors, the fit that is chosen, and who chose."""
        settings = self._qda_settings()
        answers: dict[str, FoldAnswer] = {}
        loss = np.full(len(alphas), np.nan)
        choice = "given"
        if self.alpha is None and len(alphas) > 1:
            choice = self._way(left)
        if choice == "likelihood":
            return self._by_densities(ctx, left, products, prepared, alphas)
        if choice == "sites":
            answers = yield from by_sites(self, ctx, left, products, alphas, settings, told)
        elif choice == "holdout":
            answers = yield from by_held_out(self, ctx, left, prepared, alphas, settings)
        fit: SparseQDAFit = follow(prepared, alphas, list(answers.values()), settings)
        return fit, (choice, tuple(answers), loss[: len(fit.path)])

    def _by_densities(
        self,
        ctx: CoordinatorContext,
        left: Survey,
        products: SiteProducts,
        prepared: PreparedMoments,
        alphas: FloatArray,
    ) -> tuple[SparseQDAFit, tuple[str, tuple[str, ...], FloatArray]]:
        """The path, and the fit that the sites' moments choose; nothing is asked."""
        settings = self._qda_settings()
        found = by_densities(self, ctx, left, products, alphas, settings)
        reach = len(found.loss)
        others = (np.arange(reach) != int(np.argmin(found.loss))).astype(np.int64)
        chosen = FoldAnswer(others, 1, np.empty(0, dtype=np.int64), found.gap)
        fit = follow(prepared, alphas, [chosen], settings)
        n = len(fit.path)
        none = np.empty((0, n), dtype=np.int64)
        path = dataclasses.replace(fit.path, cv_wrong=none, cv_rows=np.empty(0, dtype=np.int64))
        fit = dataclasses.replace(fit, path=path)
        return fit, ("likelihood", found.judges, found.loss[:n])

    def _way(self, left: Survey) -> str:
        """Who chooses: errors where all sites tell them exactly, else the moments."""
        if self.choose == "sites" and len(left.sites) < 3:
            raise QuorumError("fewer than three sites are left to choose alpha: give alpha")
        if self.choose != "auto":
            return self.choose
        # Rounded errors choose worse than densities do.
        if any(left.protected[name] for name in left.sites):
            return "likelihood"
        if len(left.sites) >= 3:
            return "sites"
        return "holdout" if left.held.any() else "likelihood"

    def _models(
        self, ctx: CoordinatorContext, prepared: PreparedMoments, fit: SparseQDAFit
    ) -> tuple[Any, Any]:
        """The model, and the one without links."""
        from consilience.discriminant.kernels.joint_precision import fit_precisions, largest_penalty

        none = max(prepared.total, largest_penalty(prepared.moments))
        single = fit_precisions(prepared.moments, none)
        return (
            self.model_of(ctx, prepared, fit.precision),
            self.model_of(ctx, prepared, single),
        )
