"""Which subtypes exist across sites? One-shot federated ensemble clustering.

================================  ======================================================
coordinator                       site
================================  ======================================================
judge: JudgeRequest           ->  holds entries out by folds that it alone knows, predicts
                                  them with 1 .. max_clusters classes (only for "cv")
                              <-  Judged: squared errors by fold        AGGREGATE
vote: VoteRequest             ->  BIC for 1 .. max_clusters (only if the number is open,
                                  or rows are coded)
                              <-  Ballot: choice, scores                MODEL
fit: FitRequest               ->  fits its own models, for the main ensemble and for
                                  each half of each stability pair
                              <-  LocalModels: class parameters         MODEL
count: AllModels              ->  labels all its rows with every model
  models of all sites,
  with classes they lack (all)
                              <-  PatternCounts: rows by label tuple    AGGREGATE
label: Map                    ->  labels every row from its *true* tuple;
  features T, centres (all)       keeps labels and predictor
                              <-  Profile: class means                  MODEL
                                  means of the target, or shares of
                                  its levels; agreement of halves,
                                  how clearly they divide other rows,
                                  rounded                               AGGREGATE
compare: CompareRequest       ->  counts states and steps (or levels) by final class and
                                  by classes that it finds alone (coded rows only)
                              <-  Compared: chances by class            AGGREGATE
================================  ======================================================

Rows are numbers (k-means, Gaussian mixtures) or coded: sequences of states (mixtures of Markov
chains) or categories (latent classes).

Phases: opening, agree_levels, standardise (before all methods).

Source: Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering* (arXiv 2409.08396),
section 2. Departures:

* Models of numbers that lack a class which other sites' models have get it as a further class
  before rows are counted, and where sites vote for different numbers each fits its own; the
  matched classes may then be more than the most voted for (``estimators.completed_models``). The
  source assumes that each site has rows of all classes.
* Sites send counts of label tuples, never a label of a row; all N x N matrices follow from these
  counts exactly (``clustering.kernels.ensemble``).
* Tuples of fewer than `min_records` rows are counted with the nearest frequent tuple of the site; a
  site without a frequent tuple (with models of coded rows: where fewer than half of the rows have
  one) counts by the labels of the first models only, sites taking turns. Every row is still
  labelled from its true tuple.
* A local class of fewer than `min_records` rows makes the site fit one class fewer; a site left
  with fewer than two classes sends no model.
* Outlying rows are told by the models of the other sites, after the exchange.
* ``weighting="centred"`` is the default, ``"spectral"`` is the source's.
* ``n_clusters="cv"`` is not in the source (see ``judge``): the number with the smallest error of
  held-out entries, added up over sites. It counts classes that sites tell apart by their own rows:
  where each site holds few of them, it finds few.
* Stability between runs on disjoint halves is shown, and each half's classes are judged on the
  other half against draws of one cloud with the same margins and correlation, and against columns
  that have nothing in common (``clustering.kernels.one_cloud``). Halves (and resamples) are secret
  draws of a site: were they known, class means would be equations in the rows.
* Models of coded rows are fitted to secret parts of the rows, also where there is one a site: four
  fifths without replacement. (The source's resamples, as large and with replacement, hold 55% of
  the rows: at five sites of 100 to 300 rows that costs .05 of the adjusted Rand index.) Their
  parameters are made of sums of at least `min_records` rows (``docs/proofs/markov-models.md``).
* Models of coded rows are about eight in all (the source: four at each of two sites): more make
  rarer label tuples, and were no better at five sites.
* The comparison of sites (source: Frobenius differences of empirical transition matrices) has
  intervals by a parametric bootstrap, and classes that sites find alone beside it.

Absence: a site that misses the judging, the vote or the fit is left out of it, down to the quorum;
one that misses the count contributes its model only, one that misses the labels gets none, one that
misses the comparison is left out of it. A note names it.

Leakage: the coordinator knows how many rows of each site have each frequent label tuple, the means
of the final classes and of the target (or shares of its levels), rounded agreements, and how
clearly classes of half of the rows divide the other half; where the site votes, its choice and the
criteria of 1, 2, ... classes; and, for "cv", squared errors and numbers of held-out entries by
secret fold and number of classes, with standard errors. It knows no label of any row, and no tuple
of fewer than `min_records` rows. Class means, moments and final means are sums over groups of at
least `min_records` rows (`site.profiled_classes`), also over runs (`site.ClassHistory`). Counts of
different ensembles are judged one ensemble at a time: two ensembles whose classes nearly coincide
tell how many rows, but not which, lie between them. Of coded rows it knows chances of states and
steps (or levels) by class instead of means, also of classes that the site finds alone, none of them
of fewer than `min_records` rows, roughly how many rows they rest on, and how far below the best
start others ended. With pooled scaling or filling it also knows numbers of values, means and
spreads of the columns. All sites know each site's class means (or mixture parameters).
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from consilience.arrays import FloatArray
from consilience.clustering.estimators import local_models
from consilience.clustering.estimators.completed_models import classes_of_all
from consilience.clustering.estimators.local_models import local_model_from_arrays
from consilience.clustering.estimators.predictors import EnsemblePredictor
from consilience.clustering.kernels import ensemble as kernel
from consilience.clustering.kernels.ensemble import Ensemble, PatternTable, merge_tables
from consilience.clustering.protocol import coordinator, messages
from consilience.clustering.protocol import site as at_site
from consilience.clustering.protocol.coordinator import VoteCount, compared_sites
from consilience.clustering.protocol.messages import CODED, COVARIANCES, MODELS, Settings
from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.numerics.observed_kmeans import FewerClustersWarning, weighted_kmeans
from consilience.parameters import LEFT_OUT, allows, check, just, number, one_of, whole
from consilience.protocol.method import (
    Ask,
    Columns,
    CoordinatorContext,
    Exchange,
    Method,
    Preparation,
    Replies,
    register,
)
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

Arrays = dict[str, Any]
Counts = tuple[list[dict[str, PatternTable]], dict[str, str]]
"""Label tuples by ensemble and site, and how each site counted."""
WEIGHTINGS = ("centred", "spectral", "equal")
NUMBER_RULES = ("vote", "bic", "eigenvalues", "cv")
_NO_MODEL = (
    "no site found two classes that are large enough: as far as each can tell its rows are one "
    "class, and there is nothing to join. Let larger sites take part, or name more columns"
)
_NO_COUNT = (
    "no site has enough rows to count them by label tuple: let larger sites take part, or ask for "
    "fewer classes"
)


@register
@dataclass(frozen=True, kw_only=True)
class EnsembleClustering(Method[EnsembleClusteringResult]):
    """Cluster the rows of all sites from one exchange of local models and label counts.

    Parameters
    ----------
    n_clusters : int or {"vote", "bic", "eigenvalues", "cv"}
        Number of classes K: given; the plurality of the sites' votes by BIC; with the smallest sum
        of the sites' BIC; from the spectrum of the ensemble distance; or with the smallest error of
        held-out entries, over all sites. With "bic" a site's strength of preference counts, so
        large sites count for more; with "vote" each counts once. Each site is penalised for all
        parameters, so both tend to fewer classes than the BIC of all rows together: short sequences
        of four classes, distributed over 12 sites, gave two or three by either. "bic" considers
        only numbers for which every voting site has a BIC.
    model : {"kmeans", "gaussian-mixture", "markov-mixture", "latent-class"}
        Local model. "markov-mixture" takes the study's sequence columns and no features;
        "latent-class" takes features with declared levels, coded one-hot. Both work with missing
        cells (``[preparation] missing = "keep"``), and each site votes even where `n_clusters` is
        given.
    covariance_type : {"diag", "full", "spherical", "tied"}
        Of Gaussian mixtures.
    weighting : {"centred", "spectral", "equal"}
        Weights of the models in the ensemble distance. The source's "spectral" hardly distinguishes
        models, since distance matrices are never orthogonal; "centred" subtracts their means first
        and did better if some models are pure noise (``replications``), unless most are.
    max_clusters : int
        Largest number of classes that is considered when the number is open. If the
        error is smallest at this number, the number is not determined, and a note says so.
    n_init : int
        Restarts of k-means++, at the sites and in the final step; starts of EM.
    n_resamples : int or None
        Models per site; more than one are fitted on resampled rows (useful for few sites). None is
        1, and for models of coded rows, which are always fitted on a secret part of the rows, about
        eight over all sites: 4 at one or two sites, 3 at three, 2 at four to seven, 1 at more.
    trim : float or None
        Leave out rows whose distance to the nearest class of the *other* sites' models exceeds the
        site's median by more than `trim` median absolute deviations; their class is -1. None trims
        nothing. (By the distance to the site's own class means, grouped outliers are never found,
        since they get a mean of their own, and regular rows are lost: see ``replications``.)
    stability_pairs : int
        Pairs of runs on disjoint halves. The classes of each half are judged on the other half,
        beside one cloud of rows, and the two are compared: see `EnsembleClusteringResult.evidence`
        and ``stability_figures``. More pairs detect weaker classes; 0 asks neither.
    n_folds : int
        Folds of entries that each site holds out for ``n_clusters="cv"``; a site with few rows
        makes fewer.
    """

    n_clusters: int | str = allows(whole(1) | just(*NUMBER_RULES), default="vote")
    model: str = allows(one_of(*MODELS), default="kmeans")
    covariance_type: str = allows(one_of(*COVARIANCES), default="diag")
    weighting: str = allows(one_of(*WEIGHTINGS), default="centred")
    max_clusters: int = allows(whole(2, messages.MAX_CLUSTERS), default=6)
    n_init: int = allows(whole(1, messages.MAX_STARTS), default=20)
    n_resamples: int | None = allows(whole(1, messages.MAX_RESAMPLES) | LEFT_OUT, default=None)
    trim: float | None = allows(number(above=0) | LEFT_OUT, default=None)
    stability_pairs: int = allows(whole(0, messages.MAX_PAIRS), default=5)
    n_folds: int = allows(whole(2, messages.MAX_FOLDS), default=10)

    name: ClassVar[str] = "ensemble-clustering"
    version: ClassVar[int] = 7
    title: ClassVar[str] = "Which subtypes exist across sites?"
    accepts_missing: ClassVar[bool] = True  # models of codes, see `admit`
    remembers_rows: ClassVar[bool] = True
    steps = (
        at_site.judge,
        at_site.vote,
        at_site.fit,
        at_site.count,
        at_site.label,
        at_site.compare,
    )
    absence: ClassVar[str] = (
        "A site that misses the judging, the vote or the fit is left out of it, down to the "
        "quorum; one that misses the count contributes its model only; one that misses the labels "
        "gets none, and one that misses the comparison is left out of it."
    )
    tolerates: ClassVar = {"count": "any", "label": "any", "compare": "any"}
    settles: ClassVar[frozenset[str]] = frozenset(("n_clusters", "n_resamples"))
    leakage: ClassVar[str] = (
        "The coordinator knows how many rows of each site have each frequent label tuple, means "
        "of columns and target (or shares of its levels) by final class, rounded agreements, and "
        "how clearly classes of half of the rows divide the other half; "
        "where the site votes, its choice and the criteria of 1, 2, ... classes; for n_clusters = "
        '"cv", squared errors and numbers of held-out entries by fold, with standard errors. Of '
        "sequences and categories it knows chances by class instead of means, also for classes "
        "that the site finds alone, roughly how many rows they rest on, and how far below the "
        "best start others ended. With pooled scaling or filling it also knows numbers of values, "
        "means and spreads of the columns. All sites know each site's local class parameters; no "
        "label of any row leaves."
    )
    Result = EnsembleClusteringResult
    predictor: ClassVar[Any] = EnsemblePredictor
    roles: ClassVar[tuple[str, ...]] = ("target", "sequence")
    foreign_models: ClassVar[bool] = True

    def check_together(self) -> None:
        """Held-out entries judge fewer numbers, and models of coded rows have no distances."""
        if self.n_clusters == "cv":
            check({"max_clusters": whole(2, messages.MAX_JUDGED)}, vars(self))
        if self.model in CODED and self.trim is not None:
            raise ParameterError(
                f"model {self.model!r} has no distances to trim by: leave trim out"
            )
        if self.model in CODED and self.n_clusters == "cv":
            raise ParameterError(
                f'n_clusters = "cv" holds out entries of numbers, which model {self.model!r} has '
                'none of: choose "vote", "bic", "eigenvalues" or a number'
            )

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that the study has the columns that the model takes."""
        fault = misfit(self.model, ctx.columns, ctx.preparation)
        if fault:
            raise StudyError.shared(fault)

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Judge, vote, fit, count, label; count and label alone in a run that follows another."""
        if isinstance(ctx.follows, EnsembleClusteringResult):
            return (yield from self._follow(ctx, ctx.follows))
        ballots: VoteCount | None = None
        judged: dict[str, Any] = {}
        chosen = 0
        if self.n_clusters == "cv":
            judged = yield from coordinator.judged_numbers(
                ctx, n_folds=self.n_folds, max_clusters=self.max_clusters, n_init=self.n_init
            )
            chosen = int(judged["cv_candidates"][judged["cv_chosen"]])
        if isinstance(self.n_clusters, str) or self.model in CODED:
            # Where the number is given, what sites prefer by themselves stands beside it.
            request = messages.VoteRequest(settings=self._settings(1))
            ballots = VoteCount.of(ctx.require((yield Ask("vote", request))))
            if self.n_clusters == "bic":
                chosen = _by_bic(ctx, ballots)
        given = not isinstance(self.n_clusters, str)
        ensembles, owners = yield from self._fit(ctx, None if given else ballots, chosen)
        wanted = int(self.n_clusters) if given else chosen
        if self.n_clusters == "vote" and ballots is not None:
            wanted = ballots.winner
        matched = 0
        if self._own_numbers(ballots):
            own = [local_model_from_arrays(m) for m in ensembles[0]]
            matched = classes_of_all(own, owners[0], wanted, self.max_clusters)
            wanted = matched or wanted
        completed = [
            coordinator.completed(*one, wanted, given=given and wanted > 1)
            for one in zip(ensembles, owners, strict=True)
        ]
        ensembles = [models for models, _ in completed]
        tables, how = yield from self._count(ctx, ensembles, owners, self.stability_pairs)
        built = [
            _build(models, counts, self.weighting)
            for models, counts in zip(ensembles, tables, strict=True)
        ]
        main = built[0]
        if main is None:
            raise QuorumError(_NO_COUNT)
        suggested = kernel.n_clusters_by_eigenvalues(main.eigenvalues, self.max_clusters)
        n_clusters = wanted or suggested
        # One class agrees with itself: halves are compared for two at least.
        compared = n_clusters if n_clusters > 1 else max(2, suggested)
        centres = [self._cluster(ctx, main, tables[0], n_clusters)]
        if len(centres[0]) < n_clusters:
            n_clusters = compared = len(centres[0])
            ctx.note(f"There are only {n_clusters} different label tuples, so as many classes.")
        fewer = []
        for ensemble, counts in zip(built[1:], tables[1:], strict=True):
            centres.append(self._cluster(ctx, ensemble, counts, compared))
            if compared > 2:
                less = max(len(centres[-1]) - 1, 1)
                fewer.append(self._cluster(ctx, ensemble, counts, less))
        return (
            yield from self._finish(
                ctx,
                (tables, how),
                main,
                built[1:],
                features=tuple(np.empty((0, 0)) if x is None else x.features for x in built),
                centres=tuple(centres),
                fewer=tuple(fewer),
                compared=compared,
                ballots=ballots,
                chosen_by="given" if given else "matching" if matched else str(self.n_clusters),
                n_clusters_by_eigenvalues=suggested,
                owners=owners[0],
                models=ensembles[0],
                class_support=coordinator.class_support(
                    completed[0], owners[0], main.features, centres[0]
                ),
                **judged,
            )
        )

    def _follow(self, ctx: CoordinatorContext, earlier: EnsembleClusteringResult) -> Exchange:
        """Label rows by the classes of an earlier run: other rows, or sites that join late."""
        kind = local_models.kind_of(local_model_from_arrays(earlier.models[0]))
        if kind not in ("", self.model):
            raise ParameterError("a run that follows another has its model: set the same one")
        counts = yield from self._count(ctx, [earlier.models], [earlier.owners], 0)
        built = _build(earlier.models, counts[0][0], self.weighting)
        if built is None:
            raise QuorumError("no site has enough rows to count: nothing can be said of them")
        return (
            yield from self._finish(
                ctx,
                counts,
                built,
                [],
                # The map stays that of the earlier run: labels of both runs mean the same.
                features=(earlier.features,),
                centres=(earlier.centres,),
                chosen_by="given",
                n_clusters_by_eigenvalues=earlier.n_clusters_by_eigenvalues,
                owners=earlier.owners,
                models=earlier.models,
            )
        )

    def _fit(
        self, ctx: CoordinatorContext, ballots: VoteCount | None, chosen: int
    ) -> Generator[Ask, Replies, tuple[list[tuple[Arrays, ...]], list[tuple[str, ...]]]]:
        """Ask for local models; returns models and their sites by ensemble."""
        requests = {}
        for site in ctx.sites:
            # Two at least: K, or the site's own vote where K is open or 1, or sites differ.
            if ballots is not None and self._own_numbers(ballots):
                k = max(chosen, ballots.votes.get(site) or ballots.winner)
            elif chosen:
                k = chosen
            elif ballots is None:
                k = int(self.n_clusters)
            elif self.n_clusters == "vote" and ballots.winner > 1:
                k = ballots.winner
            else:
                k = ballots.votes.get(site, 2)
            settings = self._settings(max(2, k), n_sites=len(ctx.sites))
            requests[site] = messages.FitRequest(settings=settings)
        replies = ctx.require((yield Ask("fit", requests)))
        ensembles: list[tuple[Arrays, ...]] = []
        owners: list[tuple[str, ...]] = []
        for i in range(1 + 2 * self.stability_pairs):
            pairs = [(site, m) for site, r in replies.items() for m in r.models.value[i]]
            ensembles.append(tuple(m for _, m in pairs))
            owners.append(tuple(site for site, _ in pairs))
        for site in replies:
            if site not in owners[0]:
                ctx.note(
                    f"Site {site} has no two classes that are large enough: it sends no model."
                )
        if not owners[0]:
            raise QuorumError(_NO_MODEL)
        return ensembles, owners

    def _count(
        self,
        ctx: CoordinatorContext,
        ensembles: list[tuple[Arrays, ...]],
        owners: list[tuple[str, ...]],
        pairs: int,
    ) -> Generator[Ask, Replies, Counts]:
        """Ask for counts of label tuples; returns tables by ensemble and site, and how counted."""
        request = messages.AllModels(
            settings=self._settings(1, pairs=pairs),
            models=relayed(tuple(ensembles), Disclosure.MODEL),
            owners=tuple(owners),
        )
        replies = ctx.require((yield Ask("count", request)), at_least=1)
        sizes = [
            tuple(local_model_from_arrays(m).n_classes for m in models) for models in ensembles
        ]
        tables: list[dict[str, PatternTable]] = [{} for _ in ensembles]
        how: dict[str, str] = {}
        for site, reply in replies.items():
            how[site] = reply.how
            for i, item in enumerate(reply.counts.value):
                keys, counts = np.array(item["keys"]), np.array(item["counts"])
                if len(counts) and sizes[i]:
                    tables[i][site] = PatternTable(keys, counts, sizes[i])
            if reply.how == "coarsened":
                ctx.note(
                    f"Site {site} is too small for full label tuples: it counted its rows by the "
                    "labels of the first models only."
                )
            elif reply.how == "none":
                ctx.note(f"Site {site} is too small to count its rows: it is labelled only.")
        return tables, how

    def _finish(
        self,
        ctx: CoordinatorContext,
        counts: Counts,
        main: Ensemble,
        others: list[Ensemble | None],
        *,
        features: tuple[FloatArray, ...],
        centres: tuple[FloatArray, ...],
        fewer: tuple[FloatArray, ...] = (),
        compared: int = 0,
        ballots: VoteCount | None = None,
        **facts: Any,
    ) -> Exchange:
        """Send the map by ensemble: sites label their rows and tell what the classes look like.

        Sizes come from counts, means from the sites weighted by these sizes, in both units. With
        `compared` classes the halves were clustered, `others` being their ensembles, and with one
        less where `fewer` has centres; in a run that
        follows another one there are none, nor classes that a site finds alone.
        """
        tables, how = counts
        sent = (relayed(each, Disclosure.MODEL) for each in (features, centres, fewer))
        request = messages.Map(*sent)
        profiles = ctx.require((yield Ask("label", request, to=tuple(how))), at_least=1)
        usable = [one is not None for one in others]
        stability = coordinator.stability(profiles, usable, tables[0], compared)
        k = len(centres[0])
        # Models of numbers have told what their classes look like with the means.
        if self.model in CODED:
            local = compared > 0
            facts |= yield from compared_sites(
                ctx, self._settings(k), tuple(profiles), k, local=local
            )
        held = ballots or VoteCount(0, {}, {}, float("nan"))
        by_site = {}
        for site, table in tables[0].items():
            final = kernel.assign(table.patterns, table.n_classes, features[0], centres[0])
            sizes = np.bincount(final, weights=table.counts, minlength=k)
            by_site[site] = sizes.astype(np.int64)
        scaled = coordinator.pooled_means({s: p.means.value for s, p in profiles.items()}, by_site)
        # A site says nothing of a target that is no number.
        told = {s: p.target_means.value for s, p in profiles.items()}
        targets = {s: t if len(t) else np.full(k, np.nan) for s, t in told.items()}
        target = coordinator.pooled_means({s: t[:, None] for s, t in targets.items()}, by_site)
        means = scaled if ctx.scaling is None else scaled * ctx.scaling[2] + ctx.scaling[1]
        if "merged" in how.values():
            ctx.note(
                "Class sizes come from counts in which rare label tuples were merged into the "
                "nearest frequent one of the site; every row is labelled from its own tuple."
            )
        result = EnsembleClusteringResult(
            feature_names=ctx.feature_names,
            n_clusters=k,
            votes=held.votes,
            vote_scores=held.scores,
            vote_share=held.share,
            eigenvalues=main.eigenvalues[:12],
            n_records=main.n_subjects,
            class_sizes=np.sum(list(by_site.values()), axis=0).astype(np.int64),
            class_sizes_by_site=by_site,
            **{"class_means": means, "class_means_scaled": scaled, **facts},
            model_names=coordinator.model_names(facts["owners"]),
            target=ctx.columns.target or "",
            target_means=target[:, 0],
            target_means_by_site=targets,
            **coordinator.pooled_levels(ctx.columns, profiles, by_site),
            weights=main.weights,
            agreement=main.agreement,
            n_patterns=len(merge_tables([tables[0][s] for s in sorted(by_site)]).counts),
            features=features[0],
            centres=centres[0],
            counted=how,
            stability_figures=stability,
        )
        if said := result.support_sentence():
            ctx.note(said)
        return result

    # ------------------------------------------------------------------ inside

    def _own_numbers(self, ballots: VoteCount | None) -> bool:
        """Whether sites that differ each fit the number they prefer: some may lack classes."""
        if ballots is None or self.n_clusters not in ("vote", "bic") or self.model in CODED:
            return False
        return len({vote for vote in ballots.votes.values() if vote > 0}) > 1

    def _settings(
        self,
        n_clusters: int,
        *,
        pairs: int | None = None,
        n_sites: int = local_models.MODELS_IN_ALL,
    ) -> Settings:
        each = local_models.models_each(n_sites) if self.model in CODED else 1
        return Settings(
            model=self.model,
            covariance_type=self.covariance_type,
            n_clusters=n_clusters,
            max_clusters=self.max_clusters,
            n_init=self.n_init,
            n_resamples=self.n_resamples or each,
            trim=self.trim,
            pairs=self.stability_pairs if pairs is None else pairs,
        )

    def _cluster(
        self,
        ctx: CoordinatorContext,
        ensemble: Ensemble | None,
        tables: dict[str, PatternTable],
        n_clusters: int,
    ) -> FloatArray:
        """Centres of the label tuples of all sites."""
        if ensemble is None:
            return np.zeros((1, 0))
        merged = merge_tables([tables[site] for site in sorted(tables)])
        points = kernel.pattern_features(ensemble.features, merged)
        k = min(n_clusters, len(points))
        with warnings.catch_warnings():
            # Fewer classes than asked for are told in a note, where the reader of the result looks.
            warnings.simplefilter("ignore", FewerClustersWarning)
            final = weighted_kmeans(points, merged.counts, k, rng=ctx.rng, n_init=self.n_init)
        return final.centres


def _by_bic(ctx: CoordinatorContext, ballots: VoteCount) -> int:
    """Return the number with the smallest sum of criteria; notes name the sites it rests on."""
    cast = {site: ballots.scores[site] for site, choice in ballots.votes.items() if choice > 0}
    number, gaps, left_out = coordinator.number_by_bic(cast)
    if left_out:
        ctx.note(
            f"Sites that could score one number alone, or none, were left out of the sum of "
            f"criteria: {', '.join(left_out)}."
        )
    if gaps:
        ctx.note(
            f"Sites without a BIC of every number: {', '.join(gaps)}. Only numbers that all voting "
            "sites scored were compared."
        )
    if not number:
        ctx.note("No number was scored by all voting sites: the vote was taken instead.")
        return ballots.winner
    return number


def _build(
    models: tuple[Arrays, ...], tables: dict[str, PatternTable], weighting: str
) -> Ensemble | None:
    """Weights and features of one ensemble; None where nobody sent a model or a count."""
    if not models or not tables:
        return None
    merged = merge_tables([tables[site] for site in sorted(tables)])
    parameters = [local_model_from_arrays(m).class_parameters for m in models]
    return kernel.build_ensemble(merged, parameters, weighting=weighting)  # type: ignore[arg-type]


def misfit(kind: str, columns: Columns, preparation: Preparation) -> str:
    """What the study says that the model cannot take, in one sentence; "" if it takes all.

    Parameters
    ----------
    kind : {"kmeans", "gaussian-mixture", "markov-mixture", "latent-class"}
    columns : Columns
    preparation : Preparation
    """
    single = [name for name, known in columns.levels.items() if len(known) < 2]
    if single:
        return (
            f"levels of {single[0]!r} must be at least two different values: a column of one level "
            "tells no rows apart, leave it out"
        )
    if columns.weight is not None:
        return "ensemble-clustering weighs all rows alike: leave out [data] weight"
    if kind not in CODED:
        if preparation.missing == "keep":
            return (
                f"model {kind!r} needs a value in every cell and the study keeps missing ones: set "
                '[preparation] missing to "complete-rows" or "aggregated-mean"'
            )
        return ""
    if preparation.missing not in ("refuse", "complete-rows", "keep"):
        return f'model {kind!r} fills no cells: set [preparation] missing to "keep" or "refuse"'
    if preparation.standardize != "none":
        return f'model {kind!r} has no scales: set [preparation] standardize to "none"'
    if kind == "markov-mixture":
        if not columns.sequence:
            return (
                "model 'markov-mixture' needs sequence columns: name them in [data] sequence, and "
                "declare the states as their levels"
            )
        if columns.sequence[0] not in columns.levels:
            return (
                "model 'markov-mixture' needs to know the states: declare them as levels of the "
                "sequence columns"
            )
        if columns.features:
            return "model 'markov-mixture' clusters sequence columns alone: leave features out"
        return ""
    numbers = [name for name in columns.features if name not in columns.levels]
    if numbers or not columns.features:
        which = f": {numbers[0]!r} has none" if numbers else ""
        return f"model 'latent-class' needs features with declared levels{which}"
    if preparation.categorical != "onehot" or preparation.indicators:
        return (
            "model 'latent-class' needs every level of a column: set [preparation] categorical to "
            '"onehot", without indicators'
        )
    return ""
