"""Whom should I collaborate with? Groups of sites with one relationship of x and y.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
(phase site_moments: n, means, products of every site, to weigh rows where x differs)
select: SelectRequest           ->  compares candidates on halves, fits the best on all
  candidates, reference points      rows, cross-fits it; in every view of the rows
                                <-  Selected: n, losses, variance       AGGREGATE
                                    model (all), or predictions         MODEL
exchange: Models                ->  tries all models, each once in a view
  models, n, means of all (all)
                                <-  Losses: excess D, its variance Q, effective rows,
                                    raw losses, shifts                  AGGREGATE
score: Cuts                     ->  only with n_clusters = "cv"
  groups by their number
                                <-  CutLosses: held-out losses          AGGREGATE
pool-moments, pool-rows         ->  only with prediction = "pooled"
                                <-  cross-products                      AGGREGATE
                                    or rows                             PER_RECORD
use: Groups                     ->  keeps its group's predictor, or its own
  groups, models of the group
                                <-  Gains: held-out losses              AGGREGATE
==================================  ====================================================

Views: all rows; all rows but one fold (the gain is measured on that fold); resamples of 80%.

Phases: site_moments (and opening, agree_levels, standardise before all methods).

Source: Ye, Ghanadan and Ding, *Meta Clustering for Collaborative Learning* (Journal of
Computational and Graphical Statistics, 2022): select, exchange, cluster. Departures:

* The default rule compares *cross-fitted* losses without absolute values, so that two sites with
  one function differ by 0 on average whatever their methods, noise and sizes; each pair becomes a
  test with an equivalence margin, and the number of groups follows from average linkage with a
  threshold (``collaborators.kernels``). Sites are joined only on evidence: each one's loss with
  the other's model is bounded below a tolerance. What is neither shown alike nor told apart stays
  open.
* A site keeps the group's predictor only where that is not clearly worse, on held-out rows, than
  its own model or a constant; and its own model only where a constant is clearly worse.
  ``rule="spectral"`` is the source's, with a scale that does not depend on the units of y.
* The source's criterion (3) for K is not used: at K = 1 its first term is 0, so K = 1 always wins.
* Rows are weighted where the predictors of two sites are distributed differently.
* Linear and tree models travel as arrays, others through skops under a list of trusted types;
  models that carry training rows do not travel. ``exchange="reference"`` sends predictions on
  points drawn from the pooled moments instead, for the spectral rule only, since they have no
  standard errors.
* Classification by the Brier or log loss; gain, power, stability and "no signal" are ours.
* At sites that protect records, halves, folds, resamples and the draws of forests follow from the
  rows, which nobody else has; folds and resamples are the same for all runs (``phases/holdout``).

Absence: a site that does not answer at first, or whose model cannot be used, is left out and named,
down to the quorum; one that is missing later is not placed, or has no predictor and no gain.

Leakage: all sites know each site's models in every view, its number of rows and the means of its
columns; the coordinator knows also their spreads and cross-products, which candidates it chose, and
losses on its rows, rounded to about the influence of one record, with standard errors: of its
candidates, of a constant, of all models and of groups of them; and mean residuals. With `exchange =
"reference"` models do not travel, and it knows their predictions on drawn points instead. With
`prediction = "pooled"` it knows cross-products of columns and response too, or the rows themselves
where a policy allows values for each record. But for these an honest exchange tells no value and no
prediction of any row. A coordinator that makes up models, means or weights asks statistical
questions of its own choice: a site bounds their number (20 for each row in a run, ``trial``) and
rounds the answers, but nothing proves to it that a model is a partner's. Against such a coordinator
only the limits on runs and studies help (docs/proofs/foreign-models.md).

Newcomers are sites that join an earlier study and are placed into its groups (``follow``).
Members that take part again try the newcomers' models; of the others only the models are known, and
the test is one-sided then: ``z = (D - tau Var y) / sqrt(Q (1 + n_i/(n_i+n_j)))``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.collaborators import kernels
from consilience.collaborators.kernels import PairwiseTests
from consilience.collaborators.protocol import decisions, messages
from consilience.collaborators.protocol import result as results
from consilience.collaborators.protocol import site as at_site
from consilience.collaborators.protocol.decisions import Decision, Partners, Seen
from consilience.collaborators.protocol.messages import GAINS, Losses, Settings
from consilience.collaborators.protocol.result import (
    MetaClusteringResult,
    plain,
    travelling,
)
from consilience.collaborators.protocol.site import MIN_ROWS
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.learners.candidates import as_text, build, label
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.parameters import FLAG, LEFT_OUT, allows, just, number, one_of, whole
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method, Replies, register
from consilience.protocol.phases import site_moments
from consilience.protocol.phases.site_moments import SiteMoments
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure


@register
@dataclass(frozen=True, kw_only=True)
class MetaClustering(Method[MetaClusteringResult]):
    """Group sites by the relationship between predictors and response.

    Parameters
    ----------
    candidates : sequence of str, mapping or estimator
        Methods that every site chooses from: names (``"linear"``, ``"ridge"``, ``"lasso"``,
        ``"elastic-net"``, ``"decision-tree"``, ``"random-forest"``, ``"extra-trees"``,
        ``"gradient-boosting"``, ``"hist-gradient-boosting"``, ``"bagging"``, ``"ada-boost"``,
        ``"mlp"``, and with ``exchange="reference"`` also ``"knn"``, ``"svr"``,
        ``"gaussian-process"``, ``"kernel-ridge"``), names with settings such as
        ``"random-forest(max_depth=3)"``, or scikit-learn estimators.
    rule : {"pairwise", "spectral"}
        Tests of pairs with an equivalence margin and average linkage, or the source's spectral
        clustering.
    n_clusters : "auto", "cv" or int
        Chosen by the rule; by the loss of the groups' averaged models on held-out rows; or given.
    max_clusters : int, optional
        Largest number of groups that "auto" and "cv" may find.
    margin : float
        Equivalence margin tau: differences in predictive value below this share of the response
        variance are tolerated.
    scale : "self-tuning" or float
        Of the spectral rule; a number is in units of the loss.
    exchange : {"models", "reference"}
        What sites send: models, or predictions on points drawn from the pooled moments.
    loss : {"auto", "squared", "brier", "log"}
        "auto" is squared error, or the Brier score if the target has declared levels.
    standardize : bool
        Put columns and response of every site on its own scale first. Removes differences in level
        and scale, which may be what distinguishes the sites.
    prediction : {"unpooled", "pooled"}
        Average of the group's models, or one refit for the group: from cross-products for
        ``"linear"``, else from rows, which only policies for signed partners send.
    tolerance : float
        Sites are joined only where each one loses, with 95% confidence, less than this share of
        its response variance with the other's model; what is not shown stays open.
    gain_folds : int
        Folds for the gain of collaborating, 0 for none; 2 at least with ``n_clusters="cv"``.
        Protected sites have three, each a third of their rows, and report two or all of them.
    stability_runs : int
        Resamples of 80% of the rows of every site.

    Examples
    --------
    >>> run = MetaClustering(candidates=("linear",)).run(federation, seed=0)  # doctest: +SKIP
    >>> run.result.groups  # doctest: +SKIP
    """

    candidates: tuple[Any, ...] = ("linear", "random-forest")
    rule: str = allows(one_of("pairwise", "spectral"), default="pairwise")
    n_clusters: int | str = allows(just("auto", "cv") | whole(1), default="auto")
    max_clusters: int | None = allows(whole(1) | LEFT_OUT, default=None)
    margin: float = allows(number(0, below=1), default=0.03)
    scale: float | str = allows(just("self-tuning") | number(above=0), default="self-tuning")
    exchange: str = allows(one_of("models", "reference"), default="models")
    loss: str = allows(one_of("auto", "squared", "brier", "log"), default="auto")
    standardize: bool = allows(FLAG, default=False)
    prediction: str = allows(one_of("unpooled", "pooled"), default="unpooled")
    tolerance: float = allows(number(above=0), default=1.0)
    gain_folds: int = allows(just(0) | whole(2, 10), default=3)
    stability_runs: int = allows(whole(0, messages.MAX_RUNS), default=10)

    name: ClassVar[str] = "meta-clustering"
    version: ClassVar[int] = 7
    title: ClassVar[str] = "Whom should I collaborate with?"
    steps: ClassVar = (
        *site_moments.STEPS,
        at_site.select_step,
        at_site.exchange,
        at_site.score,
        at_site.pool_moments,
        at_site.pool_rows,
        at_site.use,
    )
    absence: ClassVar[str] = (
        "A site that misses the moments or the selection is left out, down to the quorum; one that "
        "misses the exchange is not placed; one that misses the end has no predictor and no gain."
    )
    tolerates: ClassVar = {
        "site-moments.within": "quorum",
        "select": "quorum",
        "exchange": "quorum",
        "score": "any",
        "pool-moments": "any",
        "pool-rows": "any",
        "use": "any",
    }
    leakage: ClassVar[str] = (
        "All sites know each site's models, number of rows and column means. The coordinator also "
        "knows the spreads and cross-products of its columns, which candidates it chose, and "
        "rounded losses on its rows, with standard errors: of its candidates, of a constant, of "
        "all models and of groups of them; and mean residuals. Where models do not travel, it "
        'knows their predictions on drawn points instead. With prediction = "pooled" it knows '
        "cross-products with the response too, or the rows themselves where a policy allows "
        "values for each record. A coordinator that makes up models can ask a bounded number of "
        "questions about the rows."
    )
    Result: ClassVar = MetaClusteringResult
    predictor: ClassVar = CollaborativePredictor
    roles: ClassVar[tuple[str, ...]] = ("target",)
    foreign_models: ClassVar = True

    def __post_init__(self) -> None:
        given: Any = self.candidates
        single = isinstance(given, str) or not hasattr(given, "__iter__") or hasattr(given, "fit")
        texts = tuple(
            as_text(c) for c in ((given,) if single or isinstance(given, dict) else given)
        )
        object.__setattr__(self, "candidates", texts)

    def check_together(self) -> None:
        """Refuse doubled candidates, and parameters that do not go together."""
        names = [label(c) for c in self.candidates]
        if not 1 <= len(names) <= messages.MAX_CANDIDATES or len(set(names)) < len(names):
            raise ParameterError.of(
                "candidates", f"1 to {messages.MAX_CANDIDATES} different methods", names
            )
        if self.exchange == "reference" and self.rule != "spectral":
            raise ParameterError(
                "exchange = 'reference' needs rule = 'spectral': predictions on reference points "
                "have no standard errors, which the pairwise rule tests with"
            )
        if self.exchange == "reference" and (
            self.n_clusters == "cv" or self.prediction == "pooled"
        ):
            raise ParameterError(
                "exchange = 'reference' goes with neither n_clusters = 'cv' nor prediction = "
                "'pooled': models do not travel, so nothing can be predicted together"
            )
        if self.n_clusters == "cv" and not self.gain_folds:
            raise ParameterError(
                "n_clusters = 'cv' needs held-out rows: set gain_folds to 2 or more"
            )

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Select, exchange, cluster, use; or place newcomers in a run that follows another."""
        s = self._settings(ctx)
        if isinstance(ctx.follows, MetaClusteringResult):
            return (yield from follow(self, ctx, s, ctx.follows))
        moments = yield from site_moments.site_moments(ctx)
        reference = self.exchange == "reference"
        points = decisions.reference_points(ctx.rng, moments) if reference else None
        partners = yield from self.select(ctx, s, moments, points)
        if reference:
            groupings = self._by_predictions(ctx, partners)
            # No losses were exchanged: all of them are unknown, like z.
            unseen = Seen(*[groupings[0].tests.z] * 4)
            return results.build_result(self, ctx, partners, groupings, unseen)
        replies = yield from self.try_models(ctx, partners)
        main_seen = decisions.seen_by(replies, partners.sites, 0)
        kept = decisions.placeable(partners, replies, main_seen, self.rule)
        seen = [decisions.seen_by(replies, partners.sites, v).only(kept) for v in range(s.n_views)]
        partners = partners.only(kept)
        number = self._given_number(ctx, partners)
        groupings = [self._decide(ctx, view, partners, number) for view in seen]
        cv_losses = np.empty(0)
        if self.n_clusters == "cv":
            folds = groupings[1 : 1 + s.gain_folds]
            # sites compare a bounded number of cuts
            most = min(len(partners.sites), self.max_clusters or 10, at_site.MAX_CUTS)
            cuts = np.zeros((len(folds), most, len(partners.sites)), dtype=np.int64)
            for w, fold in enumerate(folds):
                for k in range(1, most + 1):
                    if self.rule == "spectral":
                        cut = self._spectral(ctx, fold.dissimilarity, fold.tests, k).labels
                    else:
                        cut = kernels.cluster(fold.tests.z, n_clusters=k).labels
                    cuts[w, k - 1] = cut
            message = messages.Cuts(labels=relayed(partners.spread(cuts), Disclosure.AGGREGATE))
            scored = ctx.require((yield Ask("score", message, to=partners.sites)), at_least=1)
            number, cv_losses = decisions.by_held_out_loss(scored, partners, most)
            if np.isnan(cv_losses).all():
                raise QuorumError(
                    "no site could tell its held-out losses: choose n_clusters = 'auto'"
                )
            groupings = [self._decide(ctx, view, partners, number) for view in seen]
        # the first view has all rows
        labels = groupings[0].labels
        shifts, spread = decisions.intercepts(replies, partners.sites, s.gain_folds)
        all_placed = len(partners.sites) == partners.n_owners
        if not all_placed:
            # Intercepts are residuals under all models, and some of these are left out by now.
            shifts, spread = np.zeros_like(shifts), float("nan")
        members = decisions.members_of(partners, labels)
        if self.prediction == "pooled":
            members = yield from decisions.refit(ctx, partners, labels, members)
        held = [g.labels for g in groupings[1 : 1 + s.gain_folds]]
        told = decisions.messages_of(partners, labels, members, held, shifts)
        said = ctx.require((yield Ask("use", told, to=partners.sites)), at_least=0)
        gain: dict[str, FloatArray] = {}
        if s.gain_folds:
            # NaN where a site did not answer
            means, errors = np.full((2, len(partners.sites), len(GAINS)), np.nan)
            for i, site in enumerate(partners.sites):
                if site in said:
                    means[i], errors[i] = said[site].means.value, said[site].errors.value
            gain = messages.by_gain(means.T, errors.T)
        if not all_placed:
            gain = {k: v * np.nan if "shifted" in k else v for k, v in gain.items()}
        made: dict[str, Any] = {"cv_losses": cv_losses, "gain": gain, "shift_spread": spread}
        return results.build_result(self, ctx, partners, groupings, seen[0], **made)

    def select(
        self,
        ctx: CoordinatorContext,
        s: Settings,
        moments: SiteMoments,
        reference: FloatArray | None,
    ) -> Generator[Ask, Replies, Partners]:
        """Ask for models; returns the sites in play.

        Parameters
        ----------
        ctx : CoordinatorContext
        s : Settings
        moments : SiteMoments
            Of the sites that answered at the beginning.
        reference : (m, p) array or None
            Common points at which predictions are compared; None where models travel.

        Returns
        -------
        Partners
            Sites with a usable model, and why others were left out.
        """
        p = len(ctx.feature_names)
        points = np.empty((0, p)) if reference is None else reference
        request = messages.SelectRequest(
            settings=s, reference=relayed(points, Disclosure.AGGREGATE)
        )
        rows = {site: {"n": n} for site, n in moments.n.items()}
        asked = yield Ask("select", request, to=tuple(moments.n), known=rows)
        replies = ctx.require(asked)
        left_out = {site: f"it did not answer ({r.reason})" for site, r in asked.missing.items()}
        silent = [site for site in ctx.sites if site not in moments.n]
        left_out |= dict.fromkeys(silent, "it did not answer at the beginning")
        refused: dict[str, str] = {}
        usable: dict[str, messages.Selected] = {}
        for site, reply in replies.items():
            said = "; ".join(f"{name}: {reason}" for name, reason in messages.spoken(reply.refused))
            if said:
                refused[site] = said
            why = messages.has_none(reply)
            if why is None:
                usable[site] = reply
            else:
                told = reply.status == "no-candidate" and said
                left_out[site] = f"{why} ({said})" if told else why
        if not usable:
            raise QuorumError(
                f"{len(usable)} sites have a model that can be used, and the study needs "
                f"{max(1, ctx.quorum)}. " + messages.by_reason(left_out)
            )
        if refused:
            ctx.note(f"Candidates that were left out, by site: {messages.by_reason(refused)}.")
        sites = tuple(sorted(usable))
        means, pooled = decisions.pooled_covariance(moments, sites)
        if self.standardize:
            # Every site has its own scale: means are 0 and rows are not weighted.
            means = np.zeros_like(means)
        models = [usable[x] for x in sites]
        return Partners(
            sites=sites,
            replies=usable,
            sizes=np.array([int(r.n.value) for r in models], dtype=np.int64),
            variance=np.array([float(r.variance.value[0]) for r in models]),
            own=np.array([float(r.own.value[0]) for r in models]),
            means=means,
            pooled=pooled,
            models=tuple(tuple(r.models.value) for r in models),
            position=np.arange(len(sites)),
            n_owners=len(sites),
            settings=s,
            left_out=left_out,
            refused=refused,
        )

    def try_models(
        self, ctx: CoordinatorContext, partners: Partners, to: tuple[str, ...] | None = None
    ) -> Generator[Ask, Replies, dict[str, Losses]]:
        """Send all models to all sites in play; drop models that fail at most of them.

        Parameters
        ----------
        ctx : CoordinatorContext
        partners : Partners
            Sites in play; those that fall out are noted in it.
        to : tuple of str, optional
            Sites that are asked; by default all in play.

        Returns
        -------
        dict of str to Losses
            By site that answered: losses of all models on its rows.
        """
        s, left_out = partners.settings, partners.left_out
        by_view = tuple(tuple(own[v] for own in partners.models) for v in range(s.n_views))
        request = messages.Models(
            settings=s,
            owners=partners.sites,
            models=relayed(by_view, Disclosure.MODEL),
            sizes=relayed(partners.sizes, Disclosure.AGGREGATE),
            means=relayed(partners.means, Disclosure.AGGREGATE),
            inverse=relayed(partners.pooled.inverse, Disclosure.AGGREGATE),
            trace=relayed(float(partners.pooled.trace), Disclosure.AGGREGATE),
        )
        asked = yield Ask("exchange", request, to=partners.sites if to is None else to)
        # Sites that said that they have nothing to compare do not count against the quorum.
        needed = max(1, ctx.quorum - sum(messages.has_nothing(why) for why in left_out.values()))
        replies = ctx.require(asked, at_least=needed)
        for site, missing in asked.missing.items():
            left_out[site] = f"it did not answer ({missing.reason})"
        complaints: dict[str, list[str]] = {}
        for site, reply in list(replies.items()):
            place = partners.sites.index(site)
            if not messages.serves_itself(reply, place, float(partners.variance[place])):
                left_out[site] = "its model is far off on the rows that it was fitted on"
                del replies[site]
                continue
            for owner, reason in dict(messages.spoken(reply.failed)).items():
                complaints.setdefault(owner, []).append(reason)
        for owner, reasons in complaints.items():
            # One site's word is not enough to shut another out; its pair is not compared, though.
            if owner in partners.sites and len(reasons) >= max(2, len(replies) / 2):
                left_out[owner] = f"its model could not be used: {reasons[0]}"
                replies.pop(owner, None)
        if len(replies) < needed:
            raise QuorumError(
                f"{len(replies)} sites are left and the study needs {needed}. "
                + messages.by_reason(left_out)
            )
        return dict(replies)

    # ------------------------------------------------------------------ inside

    def _settings(self, ctx: CoordinatorContext) -> Settings:
        if ctx.columns.target is None:
            raise StudyError("meta clustering compares predictions of a target: name it in [data]")
        if not ctx.columns.features:
            raise StudyError("meta clustering predicts from features: name them in [data]")
        levels = tuple(ctx.columns.levels.get(ctx.columns.target, ()))
        loss = self.loss
        if loss == "auto":
            loss = "brier" if levels else "squared"
        if (loss == "squared") == bool(levels):
            has = "declared levels: use brier or log"
            has = has if levels else "no declared levels: use squared"
            raise ParameterError(f"loss {self.loss!r} does not fit the target, which has {has}")
        s = Settings(
            candidates=self.candidates,
            loss=loss,
            levels=levels,
            standardize=self.standardize,
            gain_folds=0 if self.exchange == "reference" else self.gain_folds,
            stability_runs=self.stability_runs,
            exchange=self.exchange,
            prediction=self.prediction,
        )
        for candidate in self.candidates:
            # Here rather than at every site, of which none could say more than that it refuses.
            build(candidate, s.task, min_records=1, seed=0)
        return s

    def _given_number(self, ctx: CoordinatorContext, partners: Partners) -> int | None:
        """Number of groups where it was given, as far as there are sites for it."""
        if isinstance(self.n_clusters, str):
            return None
        if self.n_clusters > len(partners.sites):
            ctx.note(
                f"{self.n_clusters} groups were asked for and {len(partners.sites)} sites could be "
                "placed: every site is its own group."
            )
        return min(self.n_clusters, len(partners.sites))

    def _decide(
        self, ctx: CoordinatorContext, view: Seen, p: Partners, n_clusters: int | None
    ) -> Decision:
        """Groups of the sites in one view."""
        tests = p.tests(view, self.margin)
        if self.rule == "spectral":
            v = kernels.source_dissimilarity(view.raw, np.diagonal(view.raw))
            return self._spectral(ctx, v, tests, n_clusters)
        found = kernels.cluster(
            tests.z,
            n_clusters=n_clusters,
            max_clusters=self.max_clusters,
            evidence=kernels.evidence_of(tests.upper, self.tolerance),
        )
        merges = {name: getattr(found.merges, name) for name in ("ids", "heights", "thresholds")}
        return Decision(found.labels, tests, merges)

    def _by_predictions(self, ctx: CoordinatorContext, partners: Partners) -> list[Decision]:
        """Groups of the sites in every view by predictions on common points."""
        replies = [partners.replies[x] for x in partners.sites]
        tests, number = decisions.untested(len(replies)), self._given_number(ctx, partners)
        found = []
        for view in range(partners.settings.n_views):
            v = kernels.reference_dissimilarity(
                np.stack([r.predictions.value[view] for r in replies])
            )
            found.append(self._spectral(ctx, v, tests, number))
        return found

    def _spectral(
        self,
        ctx: CoordinatorContext,
        v: FloatArray,
        tests: PairwiseTests,
        n_clusters: int | None,
    ) -> Decision:
        """Groups by the source's rule."""
        scale: Any = self.scale
        most = self.max_clusters or 10
        found = kernels.spectral(
            v, rng=ctx.rng, scale=scale, n_clusters=n_clusters, max_clusters=most
        )
        return Decision(found.labels, tests, {}, v, found.eigenvalues)


UNTOLD = (
    "it fits no group by its own rows alone, which cannot tell: let sites of the earlier run take "
    "part and try its model"
)
"""Why a newcomer has no group where no earlier site has tried its model."""


def follow(
    method: MetaClustering, ctx: CoordinatorContext, s: Settings, earlier: MetaClusteringResult
) -> Generator[Ask, Replies, MetaClusteringResult]:
    """Place the sites of this run that the earlier one does not know."""
    # the earlier groups must mean the same in this run
    if not earlier.models:
        raise StudyError("the run that this one follows exchanged no models: nobody can join it")
    if ctx.feature_names != earlier.feature_names or s.levels != earlier.levels:
        raise StudyError(
            "the run that this one follows had other columns or levels: use the same [data]"
        )
    if s.loss != earlier.loss or s.standardize != earlier.standardize:
        raise StudyError(
            "the run that this one follows had another loss or standardisation: use the same"
        )
    s = dataclasses.replace(s, gain_folds=0, stability_runs=0)
    moments = yield from site_moments.site_moments(ctx)
    partners = yield from method.select(ctx, s, moments, None)
    left_out, n_old = partners.left_out, len(earlier.sites)
    new = tuple(x for x in partners.sites if x not in earlier.sites)
    if not new and not any(x not in earlier.sites for x in left_out):
        raise StudyError(
            "all sites of this run took part in the run that it follows: name a new one"
        )
    if not new:
        return dataclasses.replace(earlier, left_out=_not_placed(earlier, left_out, new))
    wide = _all_partners(earlier, partners, new)
    replies = yield from method.try_models(ctx, wide, to=partners.sites)
    new = tuple(x for x in new if x in replies)
    seen = decisions.seen_by(replies, wide.sites, 0)
    z, tests = _tests(seen, wide, method.margin)
    if earlier.rule == "pairwise":
        alone = {x for i, x in enumerate(wide.sites) if np.isfinite(z[i]).sum() < 2}
        left_out.update({x: decisions.NOT_COMPARABLE for x in new if x in alone})
        new = tuple(x for x in new if x not in alone)
        # In one direction alone the errors of two fits do not cancel: a model of few rows does
        # worse than one of many though both have one function. So a newcomer that no earlier site
        # has tried is said to differ from all of them only if their models lose half of what its
        # own is good for.
        unit = np.where(wide.variance > 0, wide.variance, 1.0)
        useful = np.maximum(wide.variance - wide.own, 0.0) / unit
        alike = _alike(_upper(seen, wide), method.tolerance)
        for i in [wide.sites.index(x) for x in new]:
            clear, _ = _tests(seen, wide, method.margin + 0.5 * float(useful[i]))
            tried = tests.comparable[i, :n_old].any()
            known = z[i : i + 1, :n_old]
            joins = kernels.join(known, earlier.labels, evidence=alike[i, :n_old])[0] >= 0
            differs = kernels.join(clear[i : i + 1, :n_old], earlier.labels)[0] < 0
            if not (tried or joins or differs):
                left_out[wide.sites[i]] = UNTOLD
                new = tuple(x for x in new if x != wide.sites[i])
    if not new:
        return dataclasses.replace(earlier, left_out=_not_placed(earlier, left_out, new))
    kept = [i for i, x in enumerate(wide.sites) if x in earlier.sites or x in new]
    cells = np.ix_(kept, kept)
    z, seen, tests, wide = z[cells], seen.only(kept), tests.only(cells), wide.only(kept)
    upper = _upper(seen, wide)
    labels = _labels(method.scale, earlier, z, seen, _alike(upper, method.tolerance))
    told = decisions.messages_of(wide, labels, decisions.members_of(wide, labels))
    to = tuple(x for x in partners.sites if x in told and x in replies)
    ctx.require((yield Ask("use", {x: told[x] for x in to}, to=to)), at_least=0)
    absent = [x for x in earlier.sites if x not in replies]
    if absent:
        ctx.note(
            f"{', '.join(absent)} did not take part: the models of newcomers were not tried there, "
            "and their pairs rest on one direction only, which is provisional."
        )
    return _extended(earlier, method, wide, labels, z, seen, tests, upper)


def _all_partners(
    earlier: MetaClusteringResult, partners: Partners, new: tuple[str, ...]
) -> Partners:
    """Earlier sites with the models that they had, then the newcomers."""
    rows = [partners.sites.index(x) for x in new]
    centre = np.average(earlier.means, axis=0, weights=earlier.n_records)
    used = np.abs(earlier.inverse).sum(axis=0) > 0
    # columns that took no part then take none now
    fresh = np.where(used & np.isfinite(partners.means[rows]), partners.means[rows], centre)
    return dataclasses.replace(
        partners,
        sites=(*earlier.sites, *new),
        sizes=np.concatenate([earlier.n_records, partners.sizes[rows]]),
        variance=np.concatenate([earlier.target_variance, partners.variance[rows]]),
        own=np.concatenate([earlier.own_loss, partners.own[rows]]),
        means=np.vstack([earlier.means, fresh]),
        pooled=kernels.Pooled(earlier.inverse, earlier.trace, 0.0),
        position=np.arange(len(earlier.sites) + len(new)),
        n_owners=len(earlier.sites) + len(new),
        models=(
            *((travelling(m),) for m in earlier.models),
            *((partners.replies[x].models.value[0],) for x in new),
        ),
    )


def _tests(seen: Seen, wide: Partners, margin: float) -> tuple[FloatArray, PairwiseTests]:
    """All pairs: in both directions where they are known, else in one."""
    tests = wide.tests(seen, margin)
    n = wide.sizes.astype(float)
    # one direction alone: the error of the other fit does not cancel
    share = n[:, None] / (n[:, None] + n[None, :])
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(seen.variance * (1 + share))
        one = (seen.excess - margin * wide.variance[None, :]) / error
        one = np.where((seen.effective >= 20) & np.isfinite(one), one, np.nan)
    # of the two directions the one that is known
    one_way = np.where(np.isnan(one), one.T, one)
    z = np.where(tests.comparable, tests.z, one_way)
    np.fill_diagonal(z, 0.0)
    return z, tests


def _upper(seen: Seen, wide: Partners) -> FloatArray:
    """Bounds of the losses, in one direction where the other is not known."""
    known = (seen.excess, seen.variance, seen.effective)
    upper = kernels.upper_losses(*known, wide.sizes, wide.variance)
    upper = np.where(seen.effective >= MIN_ROWS, upper, np.nan)
    np.fill_diagonal(upper, 0.0)
    return upper


def _alike(upper: FloatArray, tolerance: float) -> BoolArray:
    """Pairs with evidence in every direction that is known, and in one at least."""
    return kernels.evidence_of(np.where(np.isnan(upper), upper.T, upper), tolerance)


def _not_placed(
    earlier: MetaClusteringResult, left_out: dict[str, str], new: tuple[str, ...]
) -> dict[str, str]:
    """Sites without a group: an earlier one keeps its own, whatever happened in this run."""
    placed = {*earlier.sites, *new}
    return {x: why for x, why in {**earlier.left_out, **left_out}.items() if x not in placed}


def _labels(
    scale: Any, earlier: MetaClusteringResult, z: FloatArray, seen: Seen, alike: BoolArray
) -> IntArray:
    """Groups of earlier sites as they were; of newcomers by their nearest group."""
    n_old = len(earlier.sites)
    if earlier.rule == "spectral":
        raw = seen.raw
        own = np.diagonal(raw).copy()
        own[:n_old] = np.where(np.isnan(own[:n_old]), earlier.own_loss, own[:n_old])
        v = kernels.source_dissimilarity(raw, own)
        # Where an earlier site did not take part, one direction stands for both.
        apart = np.abs(raw - own[None, :])
        v = np.where(np.isnan(v), 2 * np.where(np.isnan(apart), apart.T, apart), v)
        v[:n_old, :n_old] = earlier.dissimilarity
        # The source's rule has no threshold: whoever comes joins the most similar group.
        close = kernels.similarity(v, scale)[n_old:, :n_old]
        found = kernels.join_similar(close, earlier.labels)
        return np.concatenate([earlier.labels, found])
    found = kernels.join(z[n_old:, :n_old], earlier.labels, evidence=alike[n_old:, :n_old])
    alone = np.flatnonzero(found < 0)
    if len(alone):
        rows = alone + n_old
        # newcomers that fit no group are grouped among themselves
        found[alone] = (
            earlier.n_clusters
            + kernels.cluster(z[np.ix_(rows, rows)], evidence=alike[np.ix_(rows, rows)]).labels
        )
    return np.concatenate([earlier.labels, found])


def _extended(
    earlier: MetaClusteringResult,
    method: MetaClustering,
    wide: Partners,
    labels: IntArray,
    z: FloatArray,
    seen: Seen,
    tests: PairwiseTests,
    upper: FloatArray,
) -> MetaClusteringResult:
    """The earlier result with the newcomers in it."""
    n_old = len(earlier.sites)
    new = wide.sites[n_old:]

    def grown(old: FloatArray, now: FloatArray) -> FloatArray:
        """What is known now, and what was known of the earlier pairs."""
        full = now.copy()
        full[:n_old, :n_old] = old
        return full

    replies = [wide.replies[x] for x in new]
    own = wide.own
    error = np.sqrt([float(r.own_error.value[0]) for r in replies])
    useful = np.sqrt([float(r.useful_error.value[0]) for r in replies])
    names = tuple(label(c) for c in method.candidates)
    known = earlier.candidate_losses
    if earlier.candidates != names:  # unknown for earlier sites with other candidates
        known = np.full((n_old, len(names)), np.nan)
    variance = wide.variance
    strength, least = decisions.detection(tests, variance, own)
    z = grown(earlier.z, z)
    strength = grown(earlier.power, strength)
    explained_error = np.concatenate([earlier.explained_error, useful / variance[n_old:]])
    ways = [(variance - own, explained_error * variance)]
    n_clusters, status = int(labels.max()) + 1, earlier.status
    if n_clusters > 1 or status == "one-site":  # as it was, unless there is something to tell now
        status = decisions.status_of(
            n_clusters,
            strength,
            ways,
            wide.sizes,
            rule=earlier.rule,
            given=False,
            comparable=np.isfinite(z),
        )
    return dataclasses.replace(
        earlier,
        sites=wide.sites,
        labels=labels,
        left_out=_not_placed(earlier, wide.left_out, new),
        n_clusters=n_clusters,
        status=status,
        n_records=wide.sizes,
        candidates=names,
        chosen=(*earlier.chosen, *(names[int(r.chosen.value[0])] for r in replies)),
        candidate_losses=np.vstack([known, *(np.asarray(r.losses.value)[None] for r in replies)]),
        refused_candidates={**earlier.refused_candidates, **wide.refused},
        target_variance=variance,
        own_loss=own,
        own_loss_error=np.concatenate([earlier.own_loss_error, error]),
        explained_error=explained_error,
        excess=grown(earlier.excess, seen.excess),
        excess_variance=grown(earlier.excess_variance, seen.variance),
        effective=grown(earlier.effective, seen.effective),
        difference=grown(earlier.difference, tests.difference),
        standard_error=grown(earlier.standard_error, tests.standard_error),
        z=z,
        power=strength,
        detectable=grown(earlier.detectable, least),
        upper=grown(earlier.upper, upper) if earlier.upper.size else upper,
        merges={},
        dissimilarity=np.empty((0, 0)),
        eigenvalues=np.empty(0),
        cv_losses=np.empty(0),
        together=np.full(z.shape, np.nan),
        stability_runs=0,
        gain={},
        gain_folds=0,
        means=wide.means,
        models=(*earlier.models, *(plain(own_models[0]) for own_models in wide.models[n_old:])),
    )
