"""What a site does: judge numbers of classes, vote, fit, count, label its rows, compare.

Rows are numbers (k-means, Gaussian mixtures) or codes: states of a sequence by time, or the level
of each categorical column, -1 where it is missing.

The rows are looked at in several *views*: the main one, and for each stability pair two disjoint
halves of the rows. Models are fitted on a view's part; labels are always given to all rows. Which
rows make a half or a resample is drawn from the site's secret stream and kept in its state: were it
known, the class means of many views would be equations in the rows.

`ClassHistory` knows which rows were in the same released classes in all runs so far.

Exact class means of two runs on the same rows are sums over row sets that somebody chose; sets that
differ by one row give that row away. So a site remembers, for ever, which rows no released class
has told apart: these are a *group*. A class that is told is made of whole groups, or of parts of
groups such that what is told of a group and what is not are both at least `least` rows. Unions and
differences of released classes, of any number of runs, are then unions of groups, and no group is
smaller than `least`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.clustering.estimators import local_models
from consilience.clustering.estimators.local_models import LocalFit, LocalModel
from consilience.clustering.estimators.predictors import CodedPredictor, EnsemblePredictor
from consilience.clustering.kernels.cell_suppression import Entries, Sums, suppress_cells
from consilience.clustering.kernels.ensemble import assign, summarise_by_turns, summarise_site
from consilience.clustering.kernels.mixtures import same_peak
from consilience.clustering.protocol import messages, one_cloud
from consilience.clustering.protocol.messages import CODED, Settings
from consilience.exceptions import DataError, DisclosureError, ParameterError
from consilience.numerics.entries import Entries as TableEntries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.held_out_entries import KMeansPath, held_out_predictions
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import (
    adjusted_rand_from_table,
    contingency_table,
    prediction_strength,
)
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.protocol.phases import entry_errors
from consilience.wire import disclosure
from consilience.wire.digits import coarse, step_above
from consilience.wire.disclosure import Limits, Released, bundle, chances, model, rounded
from consilience.wire.message import Disclosure

RESAMPLE_SHARE = 0.8
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_OTHER_HALVES = "the map has other classes for halves of the rows than one fewer"
TABLE_PARTS = ("chances", "kinds", "numbers")


def _classes_kept(message: messages.FitRequest | messages.Map, data: SiteData) -> str | None:
    """Released classes are remembered where the site knows its rows again."""
    return None if data.marks is None else "classes of the ensembles"


@step("vote", once=True)
def vote(
    message: messages.VoteRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Ballot, State]:
    """Choose the number of classes with the smallest BIC."""
    s = message.settings
    table = table_of(data, s.model)
    scores = np.array([score(table, k, s, site) for k in range(1, s.max_clusters + 1)])
    choice = 1 if np.isnan(scores).all() else int(np.nanargmin(scores)) + 1
    if s.model in CODED:
        known = np.isfinite(scores)
        scores[known] = 0.0 - released_spread(-scores[known])
    return ballot(choice, scores, data.n_rows, site.limits), state


@step("fit", once=True, keeps=_classes_kept)
def fit(
    message: messages.FitRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.LocalModels, State]:
    """Fit the site's models for every view."""
    s = message.settings
    table = table_of(data, s.model)
    # Secret: known halves would make class means equations in the rows.
    seed = int(site.secret_rng.integers(2**63 - 1))
    fitted = [
        fit_view(table, part, s, site, stream(seed, "resample", i))
        for i, part in enumerate(views(len(table.rows), s.pairs, seed))
    ]
    if s.model not in CODED and s.n_resamples == 1:
        fitted[0] = [one for each in fitted[0] for one in _as_told(each, data, site)]
    released = bundle([released_models(models, s.model) for models in fitted])
    own = tuple(tuple(one.model.to_arrays() for one in models) for models in fitted)
    return messages.LocalModels(models=released), {**state, "seed": seed, "own": own}


@step("count", once=True)
def count(
    message: messages.AllModels, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.PatternCounts, State]:
    """Label all rows under all models and count the tuples."""
    s = message.settings
    # A run that follows another fits no models, and has no halves.
    seed = state.get("seed", 0)
    released, ways, outlying = [], [], []
    rows = table_of(data, s.model).rows
    ensembles, asked = models_of(message.models.value), range(s.views)
    for models, owners, _ in zip(ensembles, message.owners, asked, strict=True):
        # Rows far from every class of every other site's models, if the study trims.
        outside = np.zeros(len(rows), dtype=bool)
        if s.trim is not None and models:
            others = [m for m, owner in zip(models, owners, strict=True) if owner != site.site]
            known: Any = others or models  # the study trims no coded rows
            outside = local_models.outlying_rows(rows, known, own=None, trim=s.trim)
        outlying.append(outside)
        if not models:
            ways.append("none")
            nothing = np.empty((0, 0), np.uint8)
            released.append(disclosure.cell_counts(np.empty(0, np.int64), 0, keys=nothing))
            continue
        labels = labels_of(models, rows)[~outside]
        parameters = [m.class_parameters for m in models]
        if s.model in CODED:
            summary = summarise_by_turns(labels, parameters, owners, site.limits.min_records)
        else:
            summary = summarise_site(labels, parameters, site.limits.min_records)
        ways.append(summary.how)
        keys = summary.table.patterns
        released.append(disclosure.cell_counts(summary.cells, len(keys), keys=keys))
    kept = {
        "seed": seed,
        "settings": plain(s),
        "models": message.models.value,
        "owners": message.owners,
        "own": state.get("own", ()),
        "outlying": tuple(outlying),
    }
    return messages.PatternCounts(counts=bundle(released), how=ways[0]), kept


@step("label", once=True, keeps=_classes_kept)
def label(
    message: messages.Map, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Profile, State]:
    """Label every row from its true tuple; tell what the classes look like."""
    s = Settings(**state["settings"])
    coded = s.model in CODED
    found = []
    ensembles = models_of(state["models"])
    maps = list(zip(message.features.value, message.centres.value, strict=True))
    table = table_of(data, s.model)
    rows = table.rows
    parts = views(len(rows), s.pairs, state["seed"])
    if not message.same_halves():
        raise DataError.shared(_OTHER_HALVES)
    fewer = []
    halved = (None, *(message.fewer.value or (None,) * len(maps[1:])))
    for models, (features, centres), less, outside in zip(
        ensembles, maps, halved, state["outlying"], strict=True
    ):
        sizes, tuples = [m.n_classes for m in models], labels_of(models, rows)
        found.append(np.where(outside, -1, assign(tuples, sizes, features, centres)))
        if less is not None:
            fewer.append(np.where(outside, -1, assign(tuples, sizes, features, less)))
    labels = found[0]
    site.output("labels", labels)
    site.output("predictor", _predictor(ensembles[0], maps[0], data, s.model))
    n_classes = len(maps[0][1])
    # Class of each row in the model of this site whose class means have left it: the one that the
    # site kept, whatever a message says is its own. With resampled models nobody knows the rows
    # behind a class mean, so there is nothing to compare with; nor is there where none were fitted.
    own = models_of(state["own"])
    compared = len(own[0]) == 1 and not coded if own else False
    mine = own[0][0].label(data.features) if compared else np.zeros(data.n_rows, dtype=np.int64)
    shown = _told_classes(mine, labels, data, site)
    # Means of 0/1 columns are counts: levels are told later, by step `compare`.
    means = np.full((n_classes, data.features.shape[1]), np.nan)
    for k in () if coded else np.unique(shown[shown >= 0]):
        means[k] = data.features[shown == k].mean(axis=0)
    # Of a 0/1 target they are counts, and guarded as such; of one with levels see below.
    targets = _released_cells(np.empty(0))
    if data.target is not None and data.target.dtype.kind in "fiub":
        target = data.target.astype(np.float64)
        told = disclosure.aggregate(target, cells=shown, n_cells=n_classes, mean=True)
        targets = told.withhold_unsafe(site.limits)
    shares, kinds = released_levels(data, shown, n_classes, site.limits)
    # Labels of all rows by the site's own first model, in the two halves of each pair.
    alone = [
        models[0].label(rows) if models else np.zeros(len(rows), dtype=np.int64) for models in own
    ]
    # Are partitions of halves more than divisions of one cloud?
    evidence = one_cloud.evidence(
        one_cloud.Rows.of(rows, s.model if coded else "", table.sizes, state["seed"]),
        parts[1:],
        [(models, *one) for models, one in zip(ensembles[1:], maps[1:], strict=True)],
        state["outlying"][1:],
        site.limits.min_records,
        rounding_step,
        stream(state["seed"], "offsets"),
    )
    reply = messages.Profile(
        means=model(means, kind="centroids", n_records=int((shown >= 0).sum()), cells=shown),
        target_means=targets,
        target_shares=shares,
        target_kinds=kinds,
        agreement=_agreements(found[1:], site),
        alone_agreement=_agreements(alone[1:], site),
        ported_agreement=_ported(rows, ensembles, state["owners"], site),
        strength=_agreements(found[1:], site, prediction_strength),
        fewer_strength=_agreements(fewer, site, prediction_strength),
        **evidence,
    )
    return reply, {"final": labels, "n_classes": n_classes} if coded else {}


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


def _told_classes(own: IntArray, labels: IntArray, data: SiteData, site: SiteContext) -> IntArray:
    """Class under which each row is told, for the sake of this run and of earlier ones.

    The site remembers it. The classes of its own model are in its memory since they were told.
    """
    if data.marks is None:
        return profiled_classes(own, labels, site.limits)
    least = site.limits.min_records
    history = ClassHistory.from_kept(site.kept)
    groups, told = history.of_rows(data.marks, least)
    shown = np.full(len(labels), -1, dtype=np.int64)
    shown[told] = profiled_classes(groups[told], labels[told], site.limits)
    site.keep(history.after(data.marks, shown, least).to_plain())
    return shown


def _as_told(one: LocalFit, data: SiteData, site: SiteContext) -> list[LocalFit]:
    """A model whose class means differ by no few rows from classes of earlier runs; or none.

    Means of a mixture are weighted ones over all rows: they stay as they are.
    """
    if data.marks is None:
        return [one]
    shown = _told_classes(np.zeros_like(one.labels), one.labels, data, site)
    if np.array_equal(shown, one.labels) or not isinstance(one.model, local_models.KMeansModel):
        return [one]
    classes = np.unique(shown[shown >= 0])
    if len(classes) < 2:
        return []
    means = np.stack([data.features[shown == k].mean(axis=0) for k in classes])
    order = np.lexsort(means.T[::-1])
    names = np.full(one.model.n_classes + 1, -1)
    names[classes[order]] = np.arange(len(classes))
    return [LocalFit(local_models.KMeansModel(means[order]), names[shown])]


def _agreements(
    labels: Sequence[IntArray],
    site: SiteContext,
    index: Callable[[IntArray], float] = adjusted_rand_from_table,
) -> Released:
    """Agreement of labels of the same rows by either half of each pair."""
    pairs = zip(labels[::2], labels[1::2], strict=True)
    return bundle([released_agreement(a, b, site.limits, index) for a, b in pairs])


def _ported(
    rows: NDArray[Any],
    ensembles: Sequence[Sequence[LocalModel]],
    owners: Sequence[Sequence[str]],
    site: SiteContext,
) -> Released:
    """Agreement of two halves of single sites' models on this site's rows, mean over models."""
    found = []
    for i in range(1, len(ensembles), 2):
        # The first model of each site on either half.
        first, second = (
            {owner: ensembles[j][owners[j].index(owner)] for owner in owners[j]} for j in (i, i + 1)
        )
        pairs = [
            released_agreement(first[o].label(rows), second[o].label(rows), site.limits)
            for o in first
            if o in second
        ]
        said = [pair for pair in pairs if not np.isnan(pair.value)]
        mean = float(np.mean([pair.value for pair in said])) if said else float("nan")
        least = min((pair.evidence.n_records for pair in said if pair.evidence), default=0)
        found.append(rounded(mean, n_records=least, step=rounding_step(least)))
    return bundle(found)


def _predictor(
    models: Sequence[Any], main_map: tuple[FloatArray, FloatArray], data: SiteData, kind: str
) -> EnsemblePredictor | CodedPredictor:
    if kind not in CODED:
        names = data.feature_names
        return EnsemblePredictor(models, *main_map, feature_names=names, scaling=data.scaling)
    columns: Sequence[str] = data.sequence_names
    if kind == "markov-mixture":
        levels: Sequence[Sequence[str]] = [data.levels[columns[0]]]
    else:
        blocks = category_blocks(data.feature_names, data.levels)
        columns, levels = tuple(blocks), list(blocks.values())
    return CodedPredictor(models, *main_map, levels=levels, columns=columns)


# --------------------------------------------------------------------------- views and models


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a site as models of one kind see them.

    Attributes
    ----------
    rows : (n, p) array
        Numbers, or codes.
    sizes : tuple of int
        Of codes: how many states there are, or levels in each column; empty for numbers.
    """

    rows: NDArray[Any]
    sizes: tuple[int, ...] = ()


def table_of(data: SiteData, kind: str) -> Table:
    """Rows of a site for one kind of model: numbers, states, or levels from their 0/1 columns.

    Raises
    ------
    DataError
        The study names no columns of that kind.
    """
    if kind == "markov-mixture":
        if data.sequence is None:
            sentence = "model 'markov-mixture' needs sequence columns: name them in [data] sequence"
            raise DataError.shared(sentence)
        return Table(data.sequence, (len(data.levels[data.sequence_names[0]]),))
    if kind == "latent-class":
        blocks = category_blocks(data.feature_names, data.levels)
        sizes = tuple(len(levels) for levels in blocks.values())
        codes = np.full((data.n_rows, len(sizes)), -1, dtype=np.int64)
        for j, (end, size) in enumerate(zip(accumulate(sizes), sizes, strict=True)):
            block = data.features[:, end - size : end]
            seen = ~np.isnan(block).any(axis=1)
            codes[seen, j] = block[seen].argmax(axis=1)
        return Table(codes, sizes)
    return Table(data.features)


def category_blocks(names: Sequence[str], levels: Any) -> dict[str, tuple[str, ...]]:
    """Categorical columns whose levels these prepared columns are, in their order.

    Raises
    ------
    DataError
        A prepared column is not the level of one.
    """
    found: dict[str, tuple[str, ...]] = {}
    place = 0
    while place < len(names):
        for column, known in levels.items():
            block = tuple(f"{column}={level}" for level in known)
            if tuple(names[place : place + len(block)]) == block:
                found[column] = tuple(known)
                place += len(block)
                break
        else:
            raise DataError.shared(
                "model 'latent-class' needs features with declared levels and [preparation] "
                "categorical = 'onehot'"
            )
    return found


def views(n: int, pairs: int, seed: int) -> list[IntArray]:
    """Rows on which models are fitted: all of the main view, then for each pair either half."""
    found = [np.arange(n, dtype=np.int64)]
    for pair in range(pairs):
        found += halves(stream(seed, "pair", pair), n)
    return found


def fit_view(
    table: Table, part: IntArray, s: Settings, site: SiteContext, secret: np.random.Generator
) -> list[LocalFit]:
    """Models of one view."""
    rows = table.rows[part]
    fitted = []
    for _ in range(s.n_resamples):
        chosen, multiplicity = rows, None
        if s.model in CODED:
            # Also where it is the only model: tables by class follow.
            multiplicity = local_models.drawn_rows(len(rows), secret)
        elif s.n_resamples > 1 and len(rows):
            size = max(1, round(RESAMPLE_SHARE * len(rows)))
            chosen = rows[np.sort(secret.integers(len(rows), size=size))]
        fitted.append(fitted_model(chosen, table, s.n_clusters, s, site, multiplicity))
    return [one for one in fitted if one.model is not None]


def fitted_model(
    rows: NDArray[Any],
    table: Table,
    k: int,
    s: Settings,
    site: SiteContext,
    multiplicity: IntArray | None = None,
) -> LocalFit:
    """Fit a model of `k` classes to rows of a table, by the rules of the site."""
    own = _fit_settings(s, site)
    if s.model in CODED:
        return local_models.fit_coded_model(
            rows, table.sizes, n_clusters=k, multiplicity=multiplicity, **own
        )
    least = site.limits.min_records
    return local_models.fit_cluster_model(rows, n_clusters=k, min_records=least, **own)


def _fit_settings(s: Settings, site: SiteContext) -> dict[str, Any]:
    """What each fit and each criterion of a model takes."""
    common = {"rng": site.rng, "n_init": s.n_init}
    if s.model in CODED:
        limits = {"min_records": site.limits.min_records, "max_share": site.limits.max_share}
        return {"model": s.model, **common, **limits}
    kind = s.model.replace("-", "_")
    return {"model": kind, **common, "covariance_type": s.covariance_type}


def released_models(fitted: Sequence[LocalFit], kind: str) -> Released:
    """Release the models of one view, with what they rest on as evidence."""
    arrays = tuple(one.model.to_arrays() for one in fitted)
    cells = [one.labels for one in fitted]
    # Classes of several models side by side: each is a cell of its own for the gate.
    offsets = np.cumsum([0, *(int(c.max(initial=-1)) + 1 for c in cells)])
    shifted = [np.where(c >= 0, c + o, -1) for c, o in zip(cells, offsets, strict=False)]
    joined = np.concatenate(shifted) if shifted else np.empty(0, dtype=np.int64)
    if kind in CODED:
        return chances(arrays, cells=joined, sums=joined_sums([one.sums for one in fitted]))
    return model(arrays, kind="centroids", n_records=len(joined), cells=joined)


def joined_sums(parts: Sequence[Sums | None]) -> Sums:
    """Sums of several models side by side."""
    given = [part for part in parts if part is not None]
    # No sum of one model has the number of a sum of another.
    starts = np.cumsum([0, *(int(part.group.max(initial=-1)) + 1 for part in given)])
    moved = [p._replace(group=p.group + o) for p, o in zip(given, starts, strict=False)]
    whole, real = np.empty(0, dtype=np.int64), np.empty(0)
    columns = zip(Sums(whole, whole, real, real), *moved, strict=True)
    return Sums(*(np.concatenate(each) for each in columns))


def released_spread(log_likelihoods: FloatArray) -> FloatArray:
    """How far below the best the others are, (m,): 0 for the best, others below 0.

    To two significant digits; ends on the same peak are 0. The log likelihood itself stays: to
    somebody who knows all rows but one, it would tell how probable the last one is, and with one
    class it is a function of counts alone.
    """
    if not len(log_likelihoods):
        return np.empty(0)
    best = float(log_likelihoods.max())
    below = best - log_likelihoods
    lower = below > same_peak(best)
    size = 10.0 ** np.floor(np.log10(np.where(lower, below, 1.0)))
    return np.where(lower, -np.round(np.round(below / size, 1) * size, 6), 0.0)


# --------------------------------------------------------------------------- votes


def score(table: Table, k: int, s: Settings, site: SiteContext) -> float:
    """BIC of k classes; NaN where they may not be scored or cannot be fitted."""
    rows = table.rows
    if s.model in CODED:
        return local_models.coded_bic(rows, table.sizes, k, **_fit_settings(s, site))
    if k == 1:
        # A criterion that one row dominates would tell of that row.
        squares = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1) if len(rows) else np.ones(1)
        votable = bool(squares.max() <= site.limits.max_share * squares.sum())
    else:
        # Each class must be large enough.
        fitted = fitted_model(rows, table, k, s, site).model
        votable = fitted is not None and fitted.n_classes == k
    found = local_models.bic(rows, k, **_fit_settings(s, site)) if votable else np.inf
    return found if np.isfinite(found) else float("nan")


# --------------------------------------------------------------------------- labels


def models_of(arrays: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[LocalModel, ...]]:
    """Models by ensemble."""
    return [
        tuple(local_models.local_model_from_arrays(item) for item in ensemble)
        for ensemble in arrays
    ]


def labels_of(models: Sequence[LocalModel], rows: NDArray[Any]) -> IntArray:
    """Class of every row under every model, (n, M)."""
    columns = [m.label(rows) for m in models]
    return np.stack(columns, axis=1) if columns else np.empty((len(rows), 0), dtype=np.int64)


# --------------------------------------------------------------------------- stability


def halves(rng: np.random.Generator, n: int) -> tuple[IntArray, IntArray]:
    """Draw two disjoint halves of n rows, each in ascending order.

    From the site's *secret* stream, and kept in its state: were they known, the class means of many
    halves would be linear equations in the rows, enough of them to solve for every cell.
    """
    order = rng.permutation(n).astype(np.int64)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])


def released_agreement(
    first: IntArray,
    second: IntArray,
    limits: Limits,
    index: Callable[[IntArray], float] = adjusted_rand_from_table,
) -> Released:
    """Release the agreement of two labellings of the same rows; -1 leaves a row out.

    One index, rounded by the size of the smallest class in either labelling; rows of
    classes below `min_records` are left out of it, since one of them could move the index a lot. A
    cross-table of the two labellings would hold small cells off its diagonal, and leaving those out
    would flatter the agreement.

    Parameters
    ----------
    first, second : (n,) int array
    limits : Limits
    index : callable
        Of a contingency table: the adjusted Rand index, or the prediction strength.

    Notes
    -----
    The prediction strength is a least over classes: a record that makes the least certain class too
    small to count can move it by more than its rounding, as it can decide whether a class counts.

    Returns
    -------
    Released
        Index over the rows in classes of at least `min_records` rows in both, or NaN
        where there are none, or only one class in both: then there is nothing to agree on. Where a
        class holds just `min_records` rows, one record can decide whether its rows take part.
    """
    kept = (first >= 0) & (second >= 0)
    while True:
        # Leaving out rows of one class may make another one too small: until none is.
        small = np.zeros(len(kept), dtype=bool)
        for labels in (first, second):
            classes, counts = np.unique(labels[kept], return_counts=True)
            small |= kept & np.isin(labels, classes[counts < limits.min_records])
        if not small.any():
            break
        kept &= ~small
    sizes = [np.unique(labels[kept], return_counts=True)[1] for labels in (first, second)]
    if not kept.any() or max(len(counts) for counts in sizes) == 1:
        return rounded(float("nan"), n_records=0, step=1.0)
    smallest = min(int(counts.min()) for counts in sizes)
    value = index(contingency_table(first[kept], second[kept]))
    return rounded(value, n_records=smallest, step=rounding_step(smallest))


def rounding_step(n_records: int) -> float:
    """Round figure that is at least a hundredth and at least ``1/n_records``."""
    return next((step for step in _STEPS if step * n_records >= 1), 1.0)


# --------------------------------------------------------------------------- number of classes


def ballot(
    choice: int, scores: NDArray[np.float64], n_records: int, limits: Limits
) -> messages.Ballot:
    """Fill a ballot at a site; `scores` rest on all of its `n_records` rows."""
    if n_records < limits.min_records:
        choice, scores, n_records = 0, np.full(len(scores), np.nan), 0
    return messages.Ballot(
        choice=model(int(choice), kind="summary", n_records=n_records),
        scores=model(np.round(scores, 3), kind="summary", n_records=n_records),
    )


@step("judge", once=True)
def judge(
    message: messages.JudgeRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Judged, State]:
    """Hold entries out, predict them with 1, 2, ... classes, tell sums of squared errors.

    For each fold of scattered entries k-means with 1, 2, ... classes is fitted to the other entries
    and predicts those that are held out by the centre of the row's class.

    Source: Ya Le's Stanford thesis, chapter 3, for one matrix. The sum over sites is not in it:
    classes are those that sites can tell apart by their own rows.
    """
    a = message.max_clusters
    bounds = (
        (message.n_folds, 2, messages.MAX_FOLDS),
        (a, 1, messages.MAX_JUDGED),
        (message.n_init, 1, messages.MAX_STARTS),
    )
    if not all(least <= asked <= most for asked, least, most in bounds):
        raise DisclosureError.shared("more folds, numbers of classes or starts than a site judges")
    n = data.n_rows
    n_folds = message.n_folds
    if n < max(2 * a, site.limits.min_records):
        return _abstention(a, site, "the table has too few rows"), state
    seed = entry_errors.entry_seed(data.features, site, "ensemble clustering, held-out entries")
    try:
        entries = TableEntries.of(data.features)
        folds = entry_folds(entries, n_folds, stream(seed, "folds"))
    except (DataError, ParameterError) as error:
        return _abstention(a, site, str(error)), state
    path = KMeansPath(parameters=range(1, a + 1), n_init=message.n_init, seed=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, guesses = held_out_predictions(entries, path, folds)
    for remark in dict.fromkeys(str(one.message) for one in caught):
        site.note(remark)
    squares = (guesses - entries.values[:, None]) ** 2
    by_row = entry_errors.squared_errors_by_row(entries.rows, folds, squares, (n, n_folds))
    found = entry_errors.released_errors(by_row, folds, n_missing=0, limits=site.limits)
    if not len(found.errors.value):
        return _abstention(a, site, "single rows make most of the squared errors"), state
    return messages.Judged(errors=found.errors, entries=found.entries, se=found.se), state


def _abstention(a: int, site: SiteContext, why: str) -> messages.Judged:
    """Say nothing, and tell the site's own people why."""
    site.note(f"Held-out entries do not judge numbers of classes here: {why}.")
    found = entry_errors.nothing_released(a)
    return messages.Judged(errors=found.errors, entries=found.entries, se=found.se)


# --------------------------------------------------------------------------- tables of classes


@step("compare", once=True)
def compare(
    message: messages.CompareRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Compared, State]:
    """Release probabilities within the final classes, and within classes that the site finds alone.

    Those of first states and steps, or of levels. Classes found alone are matched to the final ones
    and taken over a secret part of the rows, so that the two are not to be subtracted. Both are
    made of sums over disjoint events, each of at least `min_records` records: see
    ``clustering.kernels.cell_suppression`` and ``docs/proofs/markov-models.md``.
    """
    from scipy.optimize import linear_sum_assignment

    s = message.settings
    table = table_of(data, s.model)
    final, k = state["final"], int(state["n_classes"])
    entries = local_models.entries_of(table.rows, s.model, table.sizes)
    absorbing = local_models.absorbing_rows(s.model, table.sizes)
    finals = class_tables(entries, final, k, site.limits, absorbing=absorbing)
    found = fitted_model(table.rows, table, k, s, site) if message.local else None
    if found is None or found.model is None:  # nothing to tell, in the same shape
        spread = np.empty(0)
        locals_ = replace(finals, cells=np.full_like(finals.cells, -1), sums=joined_sums([]))
    else:
        spread = released_spread(found.start_spread)
        # Classes found alone are called as the final ones that they mostly are.
        joint = np.zeros((found.model.n_classes, k), dtype=np.int64)
        np.add.at(joint, (found.labels, final), 1)
        mine, theirs = linear_sum_assignment(joint, maximize=True)
        name = np.zeros(len(joint), dtype=np.int64)
        name[mine] = theirs
        # Over all rows, differences from the final classes would rest on few of them.
        kept = local_models.drawn_rows(len(final), site.secret_rng) > 0
        alone = np.where(kept, name[found.labels], -1)
        locals_ = class_tables(entries, alone, k, site.limits, absorbing=absorbing)
    told = {
        prefix + name: _released_cells(getattr(one, name), one)
        for prefix, one in (("", finals), ("local_", locals_))
        for name in TABLE_PARTS
    }
    n_records = data.n_rows if len(spread) else 0
    told["start_spread"] = model(spread, kind="summary", n_records=n_records)
    return messages.Compared(**told), {}


@dataclass(frozen=True, eq=False)
class ClassTables:
    """Chances (K, C), kinds (K, C) and numbers (K, R), and what they rest on."""

    chances: FloatArray
    kinds: IntArray
    numbers: FloatArray
    cells: IntArray
    sums: Sums


def class_tables(
    entries: Entries,
    labels: IntArray,
    k: int,
    limits: Limits,
    *,
    absorbing: NDArray[np.bool_] | None = None,
) -> ClassTables:
    """Tables of classes that may be told; one of fewer than `min_records` rows is left out.

    Parameters
    ----------
    entries : Entries
        What records add to the cells of the table.
    labels : (n,) int array
        Class of each record; -1 in none.
    k : int
        Classes.
    limits : Limits
    absorbing : (R,) bool array, optional
        See ``clustering.kernels.cell_suppression``.

    Returns
    -------
    ClassTables
    """
    sizes = np.bincount(labels[labels >= 0], minlength=k)
    cells = np.where((labels >= 0) & (sizes[labels] >= limits.min_records), labels, -1)
    told = suppress_cells(
        entries,
        (cells[:, None] == np.arange(k)).astype(float),
        min_records=limits.min_records,
        max_share=limits.max_share,
        absorbing=absorbing,
        joining=False,
    )
    rows = entries.row_of_cell
    shares = told.chances(rows)
    n_rows = told.told.shape[1]
    numbers = np.stack([np.bincount(rows, each, n_rows) for each in told.values]).astype(float)
    if limits.min_records > 1:
        # Exact shares are ratios of whole numbers, which would tell their totals.
        steps = step_above(1.0 / np.maximum(numbers[:, rows], 1.0))
        shares = np.round(np.round(shares / steps) * steps, 12)
        zeros = np.zeros_like(numbers)
        numbers = coarse(zeros, zeros, numbers, zeros.astype(bool))[2]
    return ClassTables(shares, told.kinds, numbers, cells, told.sums)


def released_levels(
    data: SiteData, shown: IntArray, n_classes: int, limits: Limits
) -> tuple[Released, Released]:
    """Shares of the target's levels by class and what each cell shows, both (K, L).

    A share is a count over a count, and "of those who died, none were in class 2" may be about one
    person. So levels that few rows of a class have are released together, or not at all, by the
    rules for tables of categories (``clustering.kernels.cell_suppression``).

    Parameters
    ----------
    data : SiteData
    shown : (n,) int array
        Class under which each row is told; -1 in none.
    n_classes : int
    limits : Limits

    Returns
    -------
    shares, kinds : Released
        Without rows where the target has no levels, or no class has enough rows.
    """
    levels = tuple(data.levels.get(data.target_name or "", ()))
    if not levels or data.target is None:
        return _released_cells(np.empty((0, 0))), _released_cells(np.empty((0, 0), dtype=np.int64))
    codes = np.full(data.n_rows, -1, dtype=np.int64)
    for code, level in enumerate(levels):
        codes[data.target == level] = code
    entries = local_models.entries_of(codes[:, None], "latent-class", (len(levels),))
    # A row without an outcome is in no class here, so that it is not behind any share.
    tables = class_tables(entries, np.where(codes >= 0, shown, -1), n_classes, limits)
    return _released_cells(tables.chances, tables), _released_cells(tables.kinds, tables)


def _released_cells(values: NDArray[Any], tables: ClassTables | None = None) -> Released:
    """Release cells with what the tables rest on; none where no class has enough rows."""
    some = tables is not None and (tables.cells >= 0).any()
    return chances(
        values if some else values[:0],
        cells=np.empty(0, dtype=np.int64) if tables is None else tables.cells,
        sums=joined_sums([] if tables is None else [tables.sums]),
        disclosure=Disclosure.AGGREGATE,
    )


Marks = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class ClassHistory:
    """Groups of the rows of a data set.

    Attributes
    ----------
    marks : (n,) uint64 array
        Rows that were ever in a class or could have been, ascending (`SiteData.marks`).
    groups : (n,) int array
        Group of each, numbered from 1.
    """

    marks: Marks = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    groups: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @classmethod
    def from_kept(cls, kept: Mapping[str, Any] | None) -> ClassHistory:
        """Read what `to_plain` gave; nothing where nothing was kept."""
        if not kept:
            return cls()
        return cls(np.asarray(kept["marks"]), np.asarray(kept["groups"]).astype(np.int64))

    def to_plain(self) -> dict[str, Any]:
        """For the site's home."""
        return {"marks": self.marks, "groups": self.groups.astype(np.uint32)}

    def of_rows(self, marks: Marks, least: int) -> tuple[IntArray, BoolArray]:
        """Group of each row, 0 of rows that are new; and the rows that may be told.

        Where a group lacks a few rows in this run, further ones stay out, those with the smallest
        marks, so that what is missing is never a few rows. Of a part that is too small nothing is
        told.

        Parameters
        ----------
        marks : (n,) uint64 array
            Different ones.
        least : int
        """
        group = self._found(marks)
        told = np.ones(len(marks), dtype=bool)
        size = np.bincount(self.groups, minlength=1)
        for g in np.unique(group):
            rows = np.flatnonzero(group == g)
            missing = size[g] - len(rows) if g else 0
            rows = rows[np.argsort(marks[rows])]
            out = max(least - missing, 0) if missing else 0
            told[rows[: out if len(rows) - out >= least else None]] = False
        return group, told

    def after(self, marks: Marks, shown: IntArray, least: int) -> ClassHistory:
        """The history with one more release.

        Parameters
        ----------
        marks : (n,) uint64 array
        shown : (n,) int array
            Class under which each row is told; -1 in none.
        least : int
        """
        group = self._found(marks)
        new = group == 0
        if new.sum() < least:  # too few: they are in no class
            marks, shown, new = marks[~new], shown[~new], new[~new]
        marks_after = np.concatenate([self.marks, marks[new]])
        before = np.concatenate([self.groups, np.zeros(int(new.sum()), dtype=np.int64)])
        order = np.argsort(marks_after)
        marks_after, before = marks_after[order], before[order]
        told = np.full(len(marks_after), -1, dtype=np.int64)
        told[np.searchsorted(marks_after, marks)] = shown
        _, groups = np.unique(np.stack([before, told]), axis=1, return_inverse=True)
        return ClassHistory(marks_after, groups.ravel() + 1)

    def _found(self, marks: Marks) -> IntArray:
        if not len(self.marks):
            return np.zeros(len(marks), dtype=np.int64)
        place = np.minimum(np.searchsorted(self.marks, marks), len(self.marks) - 1)
        return np.where(self.marks[place] == marks, self.groups[place], 0)
