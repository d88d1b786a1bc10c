"""What a site does: vote, fit, count label patterns, label its rows.

The rows are looked at in several *views*: the main one, and for each stability pair two disjoint
halves of the rows as they are and two of the rows with each column permuted (the null). Models are
fitted on a view's part; labels are always given to all rows of the view. Which rows make a half or
a resample is drawn from the site's secret stream and kept in its state: were it known, the class
means of many views would be equations in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.cluster_models import ClusterModel, outlying_rows
from consilience.clustering.estimators.coded_models import CodedModel, LocalModel
from consilience.clustering.estimators.coded_predictor import CodedPredictor
from consilience.clustering.estimators.ensemble_predictor import EnsemblePredictor
from consilience.clustering.kernels.ensemble import assign
from consilience.clustering.phases.bootstrap_pairs import released_agreement, rounding_step
from consilience.clustering.phases.vote import Ballot, ballot
from consilience.clustering.protocol.local import (
    View,
    category_blocks,
    counted,
    fit_view,
    labels_of,
    models_of,
    released_models,
    score,
    table_of,
    told_spread,
    views,
)
from consilience.clustering.protocol.messages import (
    CODED,
    AllModels,
    FitRequest,
    LocalModels,
    Map,
    PatternCounts,
    Profile,
    Settings,
    VoteRequest,
)
from consilience.clustering.protocol.outcomes import released_levels
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import (
    Limits,
    Released,
    aggregate,
    bundle,
    cell_counts,
    model,
    rounded,
)


@step("vote", once=True)
def vote(
    message: VoteRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Ballot, State]:
    """Choose the number of classes with the smallest BIC."""
    s = Settings.from_json(message.settings)
    table = table_of(data, s.model)
    scores = np.full(s.max_clusters, np.nan)
    for k in range(1, s.max_clusters + 1):
        scores[k - 1] = score(table, k, s, site)
    choice = 1 if np.isnan(scores).all() else int(np.nanargmin(scores)) + 1
    if s.model in CODED:
        known = np.isfinite(scores)
        scores[known] = 0.0 - told_spread(-scores[known])
    return ballot(choice, scores, data.n_rows, site.limits), state


@step("fit", once=True)
def fit(
    message: FitRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[LocalModels, State]:
    """Fit the site's models for every view."""
    s = Settings.from_json(message.settings)
    table = table_of(data, s.model)
    seed = int(site.secret_rng.integers(2**63 - 1))
    fitted = [
        fit_view(table, view, s, site, stream(seed, "resample", i))
        for i, view in enumerate(views(table.rows, s.pairs, seed))
    ]
    released = bundle([released_models(models, s.model) for models in fitted])
    own = tuple(tuple(one.model.to_arrays() for one in models) for models in fitted)
    return LocalModels(models=released), {**state, "seed": seed, "own": own}


@step("count", once=True)
def count(
    message: AllModels, data: SiteData, state: State, site: SiteContext
) -> tuple[PatternCounts, State]:
    """Label all rows under all models and count the tuples."""
    s = Settings.from_json(message.settings)
    seed = state.get("seed", 0)
    released = []
    how = "none"
    outlying: tuple[NDArray[np.bool_], ...] = ()
    ensembles = models_of(message.models.value)
    for i, (view, models) in enumerate(
        zip(views(table_of(data, s.model).rows, s.pairs, seed), ensembles, strict=True)
    ):
        outside = _outliers(view, models, message.owners[i], s, site)
        outlying = (*outlying, outside)
        if not models:
            released.append(cell_counts(np.empty(0, np.int64), 0, keys=np.empty((0, 0), np.uint8)))
            continue
        labels = labels_of(models, view.rows)[~outside]
        summary = counted(labels, models, message.owners[i], s, site.limits.min_records)
        keys = summary.table.patterns
        released.append(cell_counts(summary.cells, len(keys), keys=keys))
        how = summary.how if i == 0 else how
    kept = {
        "seed": seed,
        "settings": message.settings,
        "models": message.models.value,
        "owners": message.owners,
        "own": state.get("own", ()),
        "outlying": outlying,
    }
    return PatternCounts(counts=bundle(released), how=how), kept


def _outliers(
    view: View,
    models: Sequence[LocalModel],
    owners: Sequence[str],
    s: Settings,
    site: SiteContext,
) -> NDArray[np.bool_]:
    """Rows far from every class of every other site's models, if the study trims."""
    if s.trim is None or not models:
        return np.zeros(len(view.rows), dtype=bool)
    others = [m for m, owner in zip(models, owners, strict=True) if owner != site.site]
    known = cast(list[ClusterModel], others or list(models))  # the study trims no coded rows
    return outlying_rows(view.rows, known, own=None, trim=s.trim)


@step("label", once=True)
def label(message: Map, data: SiteData, state: State, site: SiteContext) -> tuple[Profile, State]:
    """Label every row from its true tuple; tell what the classes look like."""
    s = Settings.from_json(state["settings"])
    found = []
    ensembles = models_of(state["models"])
    maps = zip(message.features.value, message.centres.value, strict=True)
    all_views = views(table_of(data, s.model).rows, s.pairs, state["seed"])
    for view, models, (features, centres), outside in zip(
        all_views, ensembles, maps, state["outlying"], strict=True
    ):
        sizes = [m.n_classes for m in models]
        final = assign(labels_of(models, view.rows), sizes, features, centres)
        found.append(np.where(outside, -1, final))
    labels = found[0]
    site.output("labels", labels)
    main_map = (message.features.value[0], message.centres.value[0])
    site.output("predictor", _predictor(ensembles[0], main_map, data, s.model))
    n_classes = len(message.centres.value[0])
    coded = s.model in CODED
    shown = profiled_classes(_own_classes(state, data, coded), labels, site.limits)
    shares, kinds = released_levels(data, shown, n_classes, site.limits)
    reply = Profile(
        # Means of 0/1 columns are counts: levels are told later, by step `compare`.
        means=_class_means(
            np.full_like(data.features, np.nan) if coded else data.features, shown, n_classes
        ),
        target_means=_target_means(data, shown, n_classes, site),
        target_shares=shares,
        target_kinds=kinds,
        agreement=_agreements(found[1::4], found[2::4], site),
        null_agreement=_agreements(found[3::4], found[4::4], site),
        alone_agreement=_alone(all_views, state["own"], site),
        ported_agreement=_ported(all_views, ensembles, state["owners"], site),
    )
    return reply, {"final": labels, "n_classes": n_classes} if coded else {}


def _own_classes(state: State, data: SiteData, coded: bool) -> IntArray:
    """Class of each row in the model of this site whose class means have left it.

    That is the one that the site kept, whatever a message says is its own.
    With resampled models nobody knows the rows behind a class mean, so there is nothing to compare
    with; neither is there in a run that fits no models.
    """
    own = state["own"]
    if not own or len(own[0]) != 1 or coded:
        return np.zeros(data.n_rows, dtype=np.int64)
    return models_of(own)[0][0].label(data.features)


def profiled_classes(own: IntArray, labels: IntArray, limits: Limits) -> IntArray:
    """Class under which each row enters the released class means; -1 in none.

    The site's own class means, its moments and the means of the final classes are sums over the
    same rows, so their differences must not rest on few records either. Rows are grouped by own and
    final class (outlying rows being a class); a group below `min_records` goes with the largest
    group of its own class. Every sum that leaves is then one over whole groups.
    """
    shown = labels.copy()
    for k in np.unique(own):
        mine = own == k
        finals, counts = np.unique(labels[mine], return_counts=True)
        small = finals[counts < limits.min_records]
        shown[mine & np.isin(labels, small)] = finals[np.argmax(counts)]
        if counts.sum() < limits.min_records:
            shown[mine] = -1
    return shown


def _class_means(columns: FloatArray, shown: IntArray, n_classes: int) -> Released:
    """Means by class, NaN for a class without rows here."""
    means = np.full((n_classes, columns.shape[1]), np.nan)
    for k in np.unique(shown[shown >= 0]):
        means[k] = columns[shown == k].mean(axis=0)
    return model(means, kind="centroids", n_records=int((shown >= 0).sum()), cells=shown)


def _target_means(data: SiteData, shown: IntArray, n_classes: int, site: SiteContext) -> Released:
    """Means of the target by class: of a 0/1 target they are counts, and guarded as such.

    A target with declared levels has none: see `outcomes`.
    """
    target = data.target
    if target is None or target.dtype.kind not in "fiub":
        target = np.full(data.n_rows, np.nan)
    released = aggregate(target.astype(np.float64), cells=shown, n_cells=n_classes, mean=True)
    return released.withhold_unsafe(site.limits)


def _agreements(
    first: Sequence[IntArray], second: Sequence[IntArray], site: SiteContext
) -> Released:
    """Agreement of each pair of labellings of the same rows."""
    pairs = zip(first, second, strict=True)
    return bundle([released_agreement(a, b, site.limits) for a, b in pairs])


def _alone(
    all_views: list[View], own: Sequence[Sequence[dict[str, Any]]], site: SiteContext
) -> Released:
    """Agreement of two halves when the site labels its rows by its own models only.

    Nothing in a run that fits no models.
    """
    if not own:
        return bundle([])
    labels = [
        models_of([models[:1]])[0][0].label(view.rows)
        if models
        else np.zeros(len(view.rows), dtype=np.int64)
        for view, models in zip(all_views, own, strict=True)
    ]
    return _agreements(labels[1::4], labels[2::4], site)


def _ported(
    all_views: list[View],
    ensembles: Sequence[Sequence[LocalModel]],
    owners: Sequence[Sequence[str]],
    site: SiteContext,
) -> Released:
    """Agreement of two halves of single sites' models on this site's rows, mean over models."""
    found = []
    for i in range(1, len(all_views), 4):
        first, second = (_first_of_each(ensembles[j], owners[j]) for j in (i, i + 1))
        rows = all_views[i].rows
        pairs = [
            released_agreement(first[o].label(rows), second[o].label(rows), site.limits)
            for o in first
            if o in second
        ]
        said = [pair for pair in pairs if not np.isnan(pair.value)]
        mean = float(np.mean([pair.value for pair in said])) if said else float("nan")
        least = min((_records(pair) for pair in said), default=0)
        found.append(rounded(mean, n_records=least, step=rounding_step(least)))
    return bundle(found)


def _records(released: Released) -> int:
    return 0 if released.evidence is None else released.evidence.n_records


def _first_of_each(models: Sequence[LocalModel], owners: Sequence[str]) -> dict[str, LocalModel]:
    found: dict[str, LocalModel] = {}
    for model_, owner in zip(models, owners, strict=True):
        found.setdefault(owner, model_)
    return found


def _predictor(
    models: Sequence[LocalModel],
    main_map: tuple[FloatArray, FloatArray],
    data: SiteData,
    kind: str,
) -> EnsemblePredictor | CodedPredictor:
    if kind not in CODED:
        return EnsemblePredictor(
            cast(Sequence[ClusterModel], models),
            *main_map,
            feature_names=data.feature_names,
            scaling=data.scaling,
        )
    if kind == "markov-mixture":
        columns = data.sequence_names
        levels: Sequence[Sequence[str]] = [data.levels[columns[0]]]
    else:
        blocks = category_blocks(data.feature_names, data.levels)
        columns, levels = tuple(blocks), list(blocks.values())
    return CodedPredictor(
        cast(Sequence[CodedModel], models), *main_map, levels=levels, columns=columns
    )
