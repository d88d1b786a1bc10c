"""What the coordinator asks beside the models, and makes of the replies: figures over all sites."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.completed_models import MatchedClasses, completed_models
from consilience.clustering.estimators.local_models import local_model_from_arrays, row_of_cell
from consilience.clustering.kernels.cell_suppression import HIDDEN
from consilience.clustering.kernels.ensemble import PatternTable, assign
from consilience.clustering.kernels.one_cloud import combined
from consilience.clustering.kernels.site_differences import (
    SiteTables,
    pooled_probabilities,
    site_differences,
)
from consilience.clustering.protocol import messages
from consilience.clustering.protocol.messages import Profile, Settings
from consilience.clustering.protocol.one_cloud import COMPARISONS
from consilience.clustering.protocol.result import curve_of
from consilience.clustering.protocol.site import TABLE_PARTS, category_blocks
from consilience.exceptions import QuorumError
from consilience.protocol.method import Ask, Columns, CoordinatorContext, Replies
from consilience.protocol.phases.entry_errors import merged
from consilience.wire.digits import coarse

PREFIXES = ("", "local_")
_NOBODY = (
    "no site could judge numbers of classes by held-out entries: give n_clusters, let larger sites "
    "take part, or name two features or more"
)


# --------------------------------------------------------------------------- number of classes


@dataclass(frozen=True, eq=False)
class VoteCount:
    """Outcome of a vote.

    Attributes
    ----------
    winner : int
    votes : dict of str to int
        0 for sites that abstained.
    scores : dict of str to array
    share : float
        Share of the sites that voted for the winner.
    """

    winner: int
    votes: dict[str, int]
    scores: dict[str, NDArray[np.float64]]
    share: float

    @classmethod
    def of(cls, replies: Mapping[str, messages.Ballot]) -> VoteCount:
        """Count one vote a site: plurality, ties to the smaller; 1 if nobody voted."""
        votes = {site: int(reply.choice.value) for site, reply in replies.items()}
        scores = {site: reply.scores.value for site, reply in replies.items()}
        cast = [choice for choice in votes.values() if choice > 0]
        if not cast:
            return cls(1, votes, scores, 0.0)
        numbers, counts = np.unique(cast, return_counts=True)
        # Numbers ascend, so ties go to the smaller.
        best = int(np.argmax(counts))
        return cls(int(numbers[best]), votes, scores, float(counts[best] / counts.sum()))


def number_by_bic(scores: Mapping[str, FloatArray]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Number of classes with the smallest sum over sites of their criteria.

    A site that could score one number alone compares nothing, and would decide for everybody.

    Parameters
    ----------
    scores : mapping of str to (c,) array
        BIC of 1, 2, ... classes at each site that voted; NaN where it could not tell.

    Returns
    -------
    number : int
        Among those that every site scored, ties to the smaller; 0 if there is none.
    gaps : tuple of str
        Sites that did not score every number.
    left_out : tuple of str
        Sites that scored fewer than two.
    """
    # A site that could score one number alone compares nothing.
    left_out = tuple(site for site in sorted(scores) if np.isfinite(scores[site]).sum() < 2)
    heard = [site for site in sorted(scores) if site not in left_out]
    gaps = tuple(site for site in heard if np.isnan(scores[site]).any())
    total = np.sum([scores[site] for site in heard], axis=0) if heard else np.empty(0)
    if not np.isfinite(total).any():
        return 0, gaps, left_out
    return int(np.nanargmin(total)) + 1, gaps, left_out


def completed(
    models: tuple[dict[str, Any], ...], owners: tuple[str, ...], n_clusters: int, *, given: bool
) -> tuple[tuple[dict[str, Any], ...], MatchedClasses | None]:
    """Add to the models of one ensemble the classes that they lack.

    Where the number is open, or one, it is that of the model with the most classes.

    Returns
    -------
    models : tuple of dict
        Those that lack nothing as they were sent.
    matched : MatchedClasses or None
        Classes of all sites, if something was added.
    """
    own = [local_model_from_arrays(arrays) for arrays in models]
    asked = n_clusters if n_clusters > 1 else max((m.n_classes for m in own), default=2)
    found = completed_models(own, owners, asked, given=given)
    if all(a is b for a, b in zip(own, found.models, strict=True)):
        return models, None
    changed = zip(models, own, found.models, strict=True)
    return tuple(m if a is b else b.to_arrays() for m, a, b in changed), found.matched


def class_support(
    completed: tuple[tuple[dict[str, Any], ...], MatchedClasses | None],
    owners: tuple[str, ...],
    features: FloatArray,
    centres: FloatArray,
) -> dict[str, IntArray]:
    """By site, the final classes that its own model had, (K,) of 0 and 1.

    Empty where no model was completed. A group of the models' classes belongs to the final class
    to which its centre is assigned as a row would be.
    """
    models, matched = completed
    if matched is None:
        return {}
    whole = [local_model_from_arrays(arrays) for arrays in models]
    tuples = np.stack([m.label(matched.centres) for m in whole], axis=1)
    final = assign(tuples, [m.n_classes for m in whole], features, centres)
    support = {site: np.zeros(len(centres), dtype=np.int64) for site in dict.fromkeys(owners)}
    for k, sites in zip(final, matched.owners, strict=True):
        for site in sites:
            support[str(site)][k] = 1
    return support


def judged_numbers(
    ctx: CoordinatorContext, *, n_folds: int, max_clusters: int, n_init: int
) -> Generator[Ask, Replies, dict[str, Any]]:
    """Ask for held-out errors and add them up; the number with the smallest error is chosen.

    Returns
    -------
    dict
        Fields of the result, by name.

    Raises
    ------
    QuorumError
        No site could judge.
    """
    asked = messages.JudgeRequest(n_folds=n_folds, max_clusters=max_clusters, n_init=n_init)
    replies = ctx.require((yield Ask("judge", asked)))
    told: dict[str, dict[str, FloatArray]] = {}
    for site, reply in replies.items():
        if len(reply.errors.value):
            told[site] = {
                name: np.asarray(getattr(reply, name).value, dtype=float)
                for name in ("errors", "entries", "se")
            }
        else:
            ctx.note(
                f"Site {site} did not judge numbers of classes: it has too few rows, or single "
                "rows make most of its errors."
            )
    if not told:
        raise QuorumError(_NOBODY)
    # Sites that may not tell of each fold tell of several together.
    n_lines = min(len(one["entries"]) for one in told.values())
    errors, entries = (
        np.asarray(sum(merged(told[site][name], n_lines) for site in sorted(told)))
        for name in ("errors", "entries")
    )
    sizes = {site: int(one["entries"].sum()) for site, one in told.items()}
    total = sum(sizes.values())
    # Sites draw their folds by themselves, so what they do not know of their means adds up.
    se = np.sqrt(sum((told[site]["se"] * sizes[site] / total) ** 2 for site in sorted(told)))
    curve = curve_of(errors, entries, np.asarray(se))
    if curve.at_edge:
        ctx.note(
            f"The error of held-out entries is smallest at {max_clusters} classes, the largest "
            "number that was tried, so it chooses none: raise max_clusters."
        )
    return {
        "cv_candidates": np.arange(1, max_clusters + 1),
        "cv_fold_errors": errors,
        "cv_fold_entries": entries.astype(np.int64),
        "cv_curve_se": np.asarray(se),
        "cv_site_errors": {site: one["errors"].sum(axis=0) for site, one in told.items()},
        "cv_site_entries": sizes,
        "cv_minimiser": int(curve.minimiser),
        "cv_one_standard_error": int(curve.one_standard_error),
        "cv_at_edge": bool(curve.at_edge),
        "cv_chosen": int(curve.minimiser),
        "cv_rule": "minimum",
    }


# --------------------------------------------------------------------------- stability


def weighted(agreements: FloatArray, sizes: FloatArray) -> FloatArray:
    """Mean over sites by pair, of those that said something."""
    said = ~np.isnan(agreements)
    weight = (said * sizes).sum(axis=1)
    total = (np.where(said, agreements, 0.0) * sizes).sum(axis=1)
    return np.asarray(total[weight > 0] / weight[weight > 0])


def stability(
    profiles: Mapping[str, Profile],
    built: list[bool],
    tables: Mapping[str, PatternTable],
    n_clusters: int,
) -> dict[str, Any]:
    """Pool what sites say of the pairs whose two ensembles could be built.

    Each site halves its rows at random, the method runs on either half within the same asks as the
    main run, and each site compares the two labellings of *all* its rows, and judges either one on
    the half that it was not found on (``protocol.one_cloud``).

    Parameters
    ----------
    profiles : mapping of str to Profile
    built : list of bool
        Whether each ensemble of the pairs could be built.
    tables : mapping of str to PatternTable
        Counts of the main ensemble by site.
    n_clusters : int

    Returns
    -------
    dict
        See `EnsembleClusteringResult.stability_figures`; empty where no site says anything.
    """
    usable = [i for i in range(len(built) // 2) if all(built[2 * i : 2 * i + 2])]
    voiced = {s: p for s, p in profiles.items() if s in tables}
    if not usable or not voiced:
        return {}
    sizes = np.array([tables[s].n_subjects for s in voiced], dtype=float)
    said = {}
    for name in messages.AGREEMENTS:
        # A site may have said nothing of the last pairs.
        said[name] = np.full((len(built) // 2, len(voiced)), np.nan)
        for j, profile in enumerate(voiced.values()):
            values = getattr(profile, name).value
            said[name][: len(values), j] = values
        said[name] = said[name][usable]
    if (
        n_clusters > 2
    ):  # both of the same sites and pairs, or their difference would be that of these
        gap = np.isnan(said["strength"]) | np.isnan(said["fewer_strength"])
        said["strength"][gap] = said["fewer_strength"][gap] = np.nan
    agreed = weighted(said["agreement"], sizes)
    if not len(agreed):
        return {}
    means = {}
    for name in messages.AGREEMENTS:
        mean = weighted(said[name], sizes)
        means[name] = float(mean.mean()) if len(mean) else float("nan")
    scores = {
        name: np.array([float(getattr(p, name).value) for p in voiced.values()])
        for name in (*COMPARISONS, "between", "cloud_between")
    }
    shares = {name: weighted(scores[name][None], sizes) for name in ("between", "cloud_between")}
    return {
        "mean": float(agreed.mean()),
        "low": float(agreed.min()),
        "high": float(agreed.max()),
        "pairs": len(agreed),
        "n_clusters": n_clusters,
        "alone_mean": means["alone_agreement"],
        "ported_mean": means["ported_agreement"],
        "strength": means["strength"],
        "fewer_strength": means["fewer_strength"],
        "by_site": {
            site: float(np.nanmean(own)) if (~np.isnan(own)).any() else float("nan")
            for site, own in zip(voiced, said["agreement"].T, strict=True)
        },
        **{name: combined(scores[name], sizes) for name in COMPARISONS},
        **{name: float(one[0]) if len(one) else float("nan") for name, one in shares.items()},
        "apart_by_site": dict(zip(voiced, scores["apart"].tolist(), strict=True)),
    }


# --------------------------------------------------------------------------- classes


def pooled_means(means: dict[str, FloatArray], sizes: dict[str, NDArray[np.int64]]) -> FloatArray:
    """Mean over sites weighted by class sizes; NaN where no site sent one."""
    values = np.stack([means[site] for site in sorted(means)])
    nobody = np.zeros(values.shape[1], dtype=np.int64)
    counts = np.stack([sizes.get(site, nobody) for site in sorted(means)])
    present = ~np.isnan(values)
    weight = (counts[:, :, None] * present).sum(axis=0)
    total = (np.where(present, values, 0.0) * counts[:, :, None]).sum(axis=0)
    return np.asarray(np.where(weight > 0, total / np.maximum(weight, 1), np.nan))


def model_names(owners: tuple[str, ...]) -> tuple[str, ...]:
    """Name each model by its site, numbered where a site has several."""
    return tuple(
        owner if owners.count(owner) == 1 else f"{owner}/{owners[:i].count(owner) + 1}"
        for i, owner in enumerate(owners)
    )


def pooled_levels(
    columns: Columns, profiles: Mapping[str, Profile], sizes: Mapping[str, IntArray]
) -> dict[str, Any]:
    """Fields of the result: shares by class over sites, weighted by class sizes, and by site."""
    levels = tuple(columns.levels.get(columns.target or "", ()))
    if not levels:
        return {}
    by_site, kinds = {}, {}
    total: Any = 0.0
    weight: Any = 0.0
    told: Any = False
    for site, reply in sorted(profiles.items()):
        count = sizes.get(site, np.zeros(len(reply.means.value), dtype=np.int64))
        shares = np.asarray(reply.target_shares.value, dtype=np.float64)
        shown = np.asarray(reply.target_kinds.value, dtype=np.int64)
        if not shares.size:  # it told nothing
            shares = np.full((len(count), len(levels)), np.nan)
            shown = np.zeros(shares.shape, dtype=np.int64)
        by_site[site], kinds[site] = shares, shown
        w = (count * np.isfinite(shares).all(axis=1))[:, None]
        total = total + np.nan_to_num(shares) * w
        weight = weight + w
        told = told | ((shown != HIDDEN) & (w > 0))
    # A level that is a guess at every site is a guess over all of them.
    pooled = np.where(told, total / np.maximum(weight, 1), np.nan)
    return {
        "target_levels": levels,
        "target_shares": np.asarray(pooled, dtype=np.float64),
        "target_shares_by_site": by_site,
        "target_kinds_by_site": kinds,
    }


# --------------------------------------------------------------------------- sites compared


def compared_sites(
    ctx: CoordinatorContext,
    settings: Settings,
    to: tuple[str, ...],
    n_clusters: int,
    *,
    local: bool,
) -> Generator[Ask, Replies, dict[str, Any]]:
    """Ask for chances within the final classes; returns fields of the result by name."""
    # Final classes are matched to those that sites find alone: as many of either.
    request = messages.CompareRequest(settings=settings, local=local)
    replies = ctx.require((yield Ask("compare", request, to=to)), at_least=0)
    states: tuple[str, ...] = ()
    levels: dict[str, tuple[str, ...]] = {}
    if settings.model == "markov-mixture":
        states = tuple(ctx.columns.levels[ctx.columns.sequence[0]])
    else:
        levels = category_blocks(ctx.feature_names, ctx.columns.levels)
    s = len(states)
    rows = row_of_cell(settings.model, (s,) if states else [len(x) for x in levels.values()])
    told: dict[str, dict[str, NDArray[Any]]] = {site: {} for site in replies}
    for site, prefix, part in product(replies, PREFIXES, TABLE_PARTS):
        value = np.asarray(getattr(replies[site], prefix + part).value)
        if not value.size:  # it told nothing
            width = int(rows.max()) + 1 if part == "numbers" else len(rows)
            empty = np.nan if part == "chances" else 0
            value = np.full((n_clusters, width), empty, dtype=value.dtype)
        told[site][prefix + part] = value
    facts: dict[str, Any] = {
        "model": settings.model,
        "states": states,
        "n_times": len(ctx.columns.sequence),
        "category_levels": levels,
        "start_spread": {
            s: np.asarray(r.start_spread.value)
            for s, r in replies.items()
            if len(r.start_spread.value)
        },
    }
    for name in ("chances", "local_chances", "kinds", "numbers"):
        facts[f"site_{name}"] = {site: tables[name] for site, tables in told.items()}
    if not replies:
        return facts
    ensemble, alone = (
        SiteTables(
            np.stack([x[p + "chances"] for x in told.values()]),
            np.stack([x[p + "kinds"] for x in told.values()]),
            np.stack([_behind(x[p + "numbers"]) for x in told.values()]),
        )
        for p in PREFIXES
    )
    pooled = pooled_probabilities(ensemble, rows)
    if settings.model == "markov-mixture":
        facts["class_initial"] = pooled[:, :s]
        facts["class_transition"] = pooled[:, s:].reshape(-1, s, s)
        parts = {"initial": np.array([0]), "transition": np.arange(1, s + 1)}
    else:
        facts["class_means"] = facts["class_means_scaled"] = pooled
        parts = {"levels": np.unique(rows)}
    if len(replies) > 1 and not np.isnan(ensemble.chances).all():
        names = tuple(replies)
        facts["differences"] = {
            "parts": tuple(parts),
            "pairs": tuple((a, b) for i, a in enumerate(names) for b in names[i + 1 :]),
            **site_differences(ensemble, alone, rows, parts, rng=ctx.rng),
        }
    return facts


def _behind(numbers: FloatArray) -> FloatArray:
    """What rows rest on, about, where a site told figures that are rounded down.

    Between a round figure a and the next one b it is ln(b / a) / (1 / a - 1 / b), the number whose
    inverse is that to be expected of a number whose logarithm may lie anywhere between: errors go
    with the inverse, and told figures would make them a fifth too large. Sites that tell exact
    numbers tell some that are not round.
    """

    def round_figures(values: FloatArray) -> FloatArray:
        return coarse(values, values, values, np.zeros(values.shape, dtype=bool))[2]

    known = numbers > 0
    if not known.any() or not np.array_equal(round_figures(numbers)[known], numbers[known]):
        return numbers
    a = np.where(known, numbers, 1.0)
    b = round_figures(a * 5 / 3)  # from one round figure to the next it is at most this
    return np.where(known, np.round(np.log(b / a) / (1 / a - 1 / b)), numbers)
