"""Newcomers: sites that join an earlier study and are placed into its groups.

Members that take part again try the newcomers' models; of the others only the models are known, and
the test is one-sided then: ``z = (D - tau Var y) / sqrt(Q (1 + n_i/(n_i+n_j)))``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.collaborators import kernels
from consilience.collaborators.kernels import PairwiseTests
from consilience.collaborators.protocol import decisions
from consilience.collaborators.protocol.decisions import Partners, Seen
from consilience.collaborators.protocol.messages import Settings
from consilience.collaborators.protocol.result import (
    MetaClusteringResult,
    plain,
    travelling,
)
from consilience.collaborators.protocol.site import MIN_ROWS
from consilience.exceptions import StudyError
from consilience.learners.candidates import label
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.protocol.phases import site_moments

if TYPE_CHECKING:
    from consilience.collaborators.protocol import MetaClustering

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
