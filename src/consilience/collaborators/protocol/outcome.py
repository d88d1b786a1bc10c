"""From groupings to the result, and the grouping by predictions on common points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.kernels.site_comparison import reference_dissimilarity
from consilience.collaborators.protocol.decide import (
    Decision,
    Seen,
    detection,
    spectral_decision,
    status_of,
    togetherness,
    untested,
)
from consilience.collaborators.protocol.messages import Settings
from consilience.collaborators.protocol.partners import Partners
from consilience.collaborators.protocol.result import MetaClusteringResult, plain
from consilience.collaborators.protocol.rows import FOLDS
from consilience.learners.candidates import label
from consilience.protocol.method import CoordinatorContext

if TYPE_CHECKING:
    from consilience.collaborators.protocol import MetaClustering


def given_number(method: MetaClustering, ctx: CoordinatorContext, partners: Partners) -> int | None:
    """Number of groups where it was given, as far as there are sites for it."""
    if isinstance(method.n_clusters, str):
        return None
    if method.n_clusters > len(partners.sites):
        ctx.note(
            f"{method.n_clusters} groups were asked for and {len(partners.sites)} sites could be "
            "placed: every site is its own group."
        )
    return min(method.n_clusters, len(partners.sites))


def group_by_reference(
    method: MetaClustering,
    ctx: CoordinatorContext,
    s: Settings,
    partners: Partners,
    left_out: dict[str, str],
    refused: dict[str, str],
) -> MetaClusteringResult:
    """Group by predictions on common points."""
    n_sites = len(partners.sites)
    unknown = np.full((n_sites, n_sites), np.nan)
    tests = untested(n_sites)
    groupings = []
    for view in range(s.n_views):
        predictions = np.stack(
            [partners.replies[x].predictions.value[view] for x in partners.sites]
        )
        v = reference_dissimilarity(predictions)
        groupings.append(
            spectral_decision(
                v,
                tests,
                method.scale,
                given_number(method, ctx, partners),
                method.max_clusters,
                ctx.rng,
            )
        )
    return build_result(
        method,
        ctx,
        s,
        partners,
        groupings[0],
        Seen(unknown, unknown, unknown, unknown),
        left_out=left_out,
        refused=refused,
        together=[g.labels for g in groupings[1:]],
    )


def build_result(
    method: MetaClustering,
    ctx: CoordinatorContext,
    s: Settings,
    partners: Partners,
    main: Decision,
    seen: Seen,
    *,
    left_out: dict[str, str],
    refused: dict[str, str],
    cv_losses: FloatArray | None = None,
    together: Sequence[IntArray] = (),
    gain: dict[str, FloatArray] | None = None,
    shift_spread: float = float("nan"),
) -> MetaClusteringResult:
    """Put the result together.

    Parameters
    ----------
    method, ctx, s
        Parameters, context and settings of the run.
    partners, main, seen
        Sites that were placed, their groups and what was seen of them.
    left_out, refused, cv_losses, together, gain, shift_spread
        As the fields of the result; ``together`` holds the labels of each resample.
    """
    n_sites = len(partners.sites)
    sent = method.exchange == "models"
    thirds = any(preset != "simulation" for preset in ctx.presets.values())
    return MetaClusteringResult(
        sites=partners.sites,
        labels=main.labels,
        left_out=left_out,
        n_clusters=main.n_clusters,
        chosen_by={"auto": "rule", "cv": "cv"}.get(str(method.n_clusters), "given"),
        rule=method.rule,
        exchange=method.exchange,
        loss=s.loss,
        margin=method.margin,
        feature_names=ctx.feature_names,
        target=ctx.columns.target or "",
        levels=s.levels,
        n_records=partners.sizes,
        candidates=tuple(label(c) for c in s.candidates),
        refused_candidates=refused,
        target_variance=partners.variance,
        own_loss=partners.own,
        excess=seen.excess,
        excess_variance=seen.variance,
        effective=seen.effective,
        difference=main.tests.difference,
        standard_error=main.tests.standard_error,
        z=main.tests.z,
        merges=main.merges,
        dissimilarity=main.dissimilarity,
        eigenvalues=main.eigenvalues,
        cv_losses=np.empty(0) if cv_losses is None else cv_losses,
        together=togetherness(list(together), n_sites),
        stability_runs=len(together),
        gain=gain or {},
        gain_folds=(FOLDS if thirds else s.gain_folds) if gain else 0,
        shift_spread=shift_spread,
        means=partners.means,
        inverse=partners.pooled.inverse,
        trace=float(partners.pooled.trace),
        standardize=method.standardize,
        models=tuple(plain(own[0]) for own in partners.models) if sent else (),
        **_judged(method, s, partners, main, gain or {}),
    )


def _judged(
    method: MetaClustering,
    s: Settings,
    partners: Partners,
    main: Decision,
    gain: dict[str, FloatArray],
) -> dict[str, Any]:
    """What sites chose, how useful it is, what could have been seen, and what that means."""
    replies = [partners.replies[x] for x in partners.sites]
    strength, least = detection(main.tests, partners.variance, partners.own)
    useful = np.array([float(r.useful.value[0]) for r in replies])
    error = np.sqrt([float(r.useful_error.value[0]) for r in replies])
    ways = [(useful, error)]
    if gain:
        ways.append((gain["constant_minus_all"], gain["constant_minus_all_error"]))
    status = status_of(
        main.n_clusters,
        strength,
        ways,
        partners.sizes,
        rule=method.rule,
        given=not isinstance(method.n_clusters, str),
        comparable=main.tests.comparable,
    )
    apart = np.triu(np.isfinite(main.tests.z), 1)
    if method.rule == "pairwise" and status == "groups" and not apart.any():
        status = "too-few-rows"  # nobody could be compared with anybody: every site stands alone
    return {
        "status": status,
        "power": strength,
        "detectable": least,
        "chosen": tuple(label(s.candidates[int(r.chosen.value[0])]) for r in replies),
        "candidate_losses": np.stack([np.asarray(r.losses.value) for r in replies]),
        "own_loss_error": np.sqrt([float(r.own_error.value[0]) for r in replies]),
        "explained_error": error / partners.variance,
    }
