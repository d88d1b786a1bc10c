"""What a site does: select and fit, try everybody's models, compare ways of predicting.

The rows are looked at in several *views*: all of them; for each fold of the gain all but that fold;
and resamples of 80% for stability. Models of others are tried on them.

Which rows a view holds, all halves and folds, and the draws of forests follow from a digest of the
rows, which nobody else has: models and losses of many known sets of rows would be equations in
these rows. Where a policy protects no record they come from the public stream.

Every foreign model, with its weights, is a question on the same rows. A site answers a bounded
number of them in a run, and rounds what it says (``wire.disclosure.weighted_means``); it cannot
tell a partner's model from one that a coordinator made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.kernels import Pooled, overlap_weights_all, way_of_predicting
from consilience.collaborators.local_selection import Selection, predict, select
from consilience.collaborators.protocol import messages
from consilience.collaborators.protocol.messages import Settings
from consilience.exceptions import ConsilienceError, DataError, DisclosureError, ProtocolError
from consilience.learners.candidates import build, constant_prediction, label, record_losses
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.learners.foreign_models import predict_all, whatever_the_rows_are, within_reach
from consilience.numerics.random import stream
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.protocol.phases.holdout import class_codes, drawing_seed, uniform, without_thin
from consilience.wire import disclosure, estimators
from consilience.wire.codec import digest, pack, unpack
from consilience.wire.disclosure import Limits, Released, Support, weighted_means

RESAMPLE_SHARE = 0.8
FOLDS = 3
"""Folds of a site that protects records, at most."""


@dataclass(frozen=True)
class View:
    """Rows that take part in one analysis, and those held out of it."""

    rows: IntArray
    held: IntArray


def shown_views(data: SiteData, s: Settings, state: State, site: SiteContext) -> list[View]:
    """Main view, folds and resamples, as this site shows them.

    Where records are protected all follow from one deal of the table for all runs, and folds are
    thirds however many are asked for: a fit of other folds would differ from one of these by a few
    rows. The difference of two fits is a statistic of the rows between them: where these would be
    fewer than `min_records`, or than a linear model has parameters, or would leave a rare level,
    the main view is shown again, and no gain is measured.
    """
    n, seed, protected = data.n_rows, int(state["seed"]), site.limits.min_records > 1
    least = max(site.limits.min_records, data.features.shape[1] + 2) if protected else 1
    fold, kept = np.empty(n, dtype=np.int64), []
    if protected:
        fold = (FOLDS * uniform(data, "folds")).astype(np.int64)
        kept = [uniform(data, "resample", i) < RESAMPLE_SHARE for i in range(s.stability_runs)]
    else:
        for f, part in enumerate(
            np.array_split(stream(seed, "folds").permutation(n), max(s.gain_folds, 1))
        ):
            fold[part] = f
        for i in range(s.stability_runs):
            mask = np.zeros(n, dtype=bool)
            mask[stream(seed, "resample", i).permutation(n)[: int(RESAMPLE_SHARE * n)]] = True
            kept.append(mask)
    # each fold must be large enough to be a difference of two fits
    whole = np.bincount(fold).min(initial=n) >= least
    y = standardised(data, s).y if s.levels else np.empty(n)
    main = View(np.arange(n, dtype=np.int64), np.empty(0, dtype=np.int64))
    found = [main]
    for v, chosen in enumerate([*(fold != f for f in range(s.gain_folds)), *kept]):
        rows, held = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        shown = whole if v < s.gain_folds else len(held) >= least
        shown &= len(held) > 0 and not has_rare_level(y[rows], s, site.limits)
        gone = held if v < s.gain_folds else main.held
        found.append(View(rows, gone) if shown else main)
    return found


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns and response as numbers, and what standardised them."""

    x: FloatArray
    y: FloatArray
    standards: FloatArray | None


def standardised(data: SiteData, settings: Settings) -> Rows:
    """Rows as numbers, on the scale that the study wants.

    Raises
    ------
    DataError
        No response, or one that does not fit the declared levels.
    """
    if data.target is None:
        raise DataError("the study names no target column")
    if settings.levels:
        y = class_codes(data, settings.levels).astype(float)
    else:
        y = np.asarray(data.target, dtype=float)
    if not settings.standardize:
        return Rows(data.features, y, None)
    both = np.column_stack([data.features, y])
    centre, scale = both.mean(axis=0), both.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    if settings.levels:
        centre[-1], scale[-1] = 0.0, 1.0
    scaled = (both - centre) / scale
    return Rows(scaled[:, :-1], scaled[:, -1], np.stack([centre, scale]))


def has_rare_level(y: FloatArray, s: Settings, limits: Limits) -> bool:
    """Whether too few rows have some level of the response, or nobody where records are protected.

    A classifier that is pulled to such rows tells of them; and to take part without a level that
    nobody has would tell just that.
    """
    if not s.levels or limits.min_records <= 1:
        return False
    counts = np.bincount(y.astype(np.int64), minlength=len(s.levels))
    return bool((counts < limits.min_records).any())


# --------------------------------------------------------------------------------- trials of models


MODELS_PER_ROW = 20
"""Models, over all views, that a site tries at most for each of its rows (but 200 always)."""
LOW_WEIGHT = 0.1  # of the largest weight
PROBES = 16  # rows of nobody, on which a model that failed is tried again
TOO_MANY = "more questions on the same rows than a site answers"


def check_owners(message: messages.Models, s: Settings, n: int, site: SiteContext) -> None:
    """Every site once, and not more models than the rows can answer for.

    Raises
    ------
    ProtocolError
        Owners are repeated, or this site is not among them.
    DisclosureError
        Each model is a question on the same rows; enough of them would tell the rows.
    """
    owners = message.owners
    models = message.models.value
    fits = len(set(owners)) == len(owners) and site.site in owners and len(models) == s.n_views
    if not fits or any(len(by_owner) != len(owners) for by_owner in models):
        raise ProtocolError("every site has one model in each view, and this site is one of them")
    asked = len(owners) * s.n_views
    if site.limits.min_records > 1 and asked > max(200, MODELS_PER_ROW * n):
        raise DisclosureError("more models than a site answers for", public=TOO_MANY)


def weights_of(message: messages.Models, x: FloatArray, me: int, limits: Limits) -> FloatArray:
    """Overlap weights of all rows for every owner, (n, L).

    Size and means of this site are its own, whatever the message says. Where records are protected
    every row has a tenth of the largest weight at least: made-up means could otherwise cut the rows
    in two wherever they like.
    """
    means, sizes = np.array(message.means.value), np.array(message.sizes.value)
    means[me], sizes[me] = x.mean(axis=0), len(x)
    if (sizes < 1).any() or not np.isfinite(means).all():
        raise ProtocolError("sizes are at least 1 and means are finite")
    pooled = Pooled(np.array(message.inverse.value), float(message.trace.value), 0.0)
    weights = overlap_weights_all(x, me, means, sizes, pooled)
    if limits.min_records > 1:
        # made-up means cannot cut the rows in two
        weights = np.maximum(weights, LOW_WEIGHT * weights.max(axis=0))
    return weights


def chances(message: messages.Models, view: int, site: SiteContext, seed: int) -> FloatArray | None:
    """Secret numbers by which what is told of each model is rounded, (2, L); None if unprotected.

    They follow from the site's rows and from the question, which is a model with its weights: the
    same question has the same answer, and another one is rounded by other numbers. Were they the
    same, two models would be told apart wherever one row is.
    """
    if site.limits.min_records <= 1:
        return None
    shared = pack((np.asarray(message.inverse.value), float(message.trace.value)))
    means, sizes = np.asarray(message.means.value), np.asarray(message.sizes.value)
    asked = zip(message.models.value[view], means, sizes, strict=True)
    drawn = [
        stream(seed, "rounding", digest(shared, pack((tried, mean, int(size))))).random(2)
        for tried, mean, size in asked
    ]
    return np.transpose(drawn)


def all_predictions(
    models: Sequence[Sequence[dict[str, Any]]],
    rows: Rows,
    s: Settings,
    owners: Sequence[str],
    site: SiteContext,
) -> tuple[list[list[FloatArray]], dict[str, str]]:
    """Predictions of every model on all rows, NaN for models that failed, and why they failed.

    An owner of whom one model failed is not tried again, so that a hostile one costs little time.
    Where records are protected, a model that fails at this site's rows only (it may have been made
    to do so beyond some value) is none that failed: it predicts what knows nothing.
    """
    nothing = np.full((len(rows.x), s.n_outputs), np.nan)
    failed: dict[str, str] = {}
    found: list[list[FloatArray]] = []
    for by_owner in models:
        tried = [i for i, owner in enumerate(owners) if owner not in failed]
        answers = predict_all(
            [by_owner[i] for i in tried], rows.x, n_features=rows.x.shape[1], n_outputs=s.n_outputs
        )
        if site.limits.min_records > 1:
            level = 1 / s.n_outputs if s.levels else rows.y.mean()
            answers = whatever_the_rows_are(
                [by_owner[i] for i in tried],
                answers,
                np.full((len(rows.x), s.n_outputs), level),
                n_features=rows.x.shape[1],
                n_probes=PROBES,
            )
        part = [nothing] * len(owners)
        for i, answer in zip(tried, answers, strict=True):
            if isinstance(answer, str):
                failed[owners[i]] = answer
            else:
                part[i] = answer
        found.append(part)
    return found, failed


# -------------------------------------------------------------------------------------------- steps


MIN_ROWS = 20
"""A pair with an effective number of rows below this is not compared, so neither is the site."""
MAX_REFERENCE = 300
MAX_CUTS = 20  # each is one more question on the held-out rows
PART = ", on a part of the rows: gain_folds and stability_runs ask for fits on parts"


# --------------------------------------------------------------------------- select


@step("select", once=True)
def select_step(
    message: messages.SelectRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Selected, State]:
    """Choose, fit and cross-fit in every view."""
    s = message.settings
    if data.n_rows < max(MIN_ROWS, 2 * site.limits.min_records):
        return _nothing("too-few-rows", s, 0, {}), {}
    rows = standardised(data, s)
    if has_rare_level(rows.y, s, site.limits):
        return _nothing("rare-level", s, data.n_rows, {}), {}
    # A response in which only a few rows differ would be told by a model of it.
    varied, _ = without_thin(rows.y[:, None], site.limits)
    if len(np.unique(varied)) < 2:
        return _nothing("constant-response", s, data.n_rows, {}), {}
    if s.levels and s.levels not in data.levels.values():
        raise DataError("the levels of the response are not those that were declared")
    seed = drawing_seed(data, site, "meta-clustering draws")
    reference = np.asarray(message.reference.value, dtype=float)
    if len(reference) > MAX_REFERENCE:
        raise DisclosureError("more reference points than a site answers for", public=TOO_MANY)
    # these need no fit: they could not be used whatever the rows are
    refused = _known_refusals(s, site)
    chosen: list[Selection] = []
    protected = site.limits.min_records > 1
    for v, view in enumerate(shown_views(data, s, {"seed": seed}, site)):
        x, thin = without_thin(rows.x[view.rows], site.limits)
        found = select(
            x,
            rows.y[view.rows],
            candidates=s.candidates,
            loss=s.loss,
            n_outputs=s.n_outputs,
            min_records=site.limits.min_records,
            rng=stream(seed, "select", v) if v or protected else site.rng,
            draws=stream(seed, "draws", v),
            accept=lambda fitted, x: _accepted(fitted, x, s, site.limits),
            known=refused,
        )
        if found.chosen < 0:
            where = PART if v else ""
            said = {name: f"{why}{where}" for name, why in found.refused.items()}
            return _nothing("no-candidate", s, data.n_rows, said), {}
        for j in thin if v == 0 else ():
            found.refused[f"column {data.feature_names[j]}"] = (
                "too few rows differ in it, so its models leave it out"
            )
        chosen.append(found)
    own = [weighted_means(found.own_losses, limits=site.limits) for found in chosen]
    constant = record_losses(s.loss, rows.y, constant_prediction(rows.y, s.n_outputs))
    useful = weighted_means((constant - chosen[0].own_losses)[:, None], limits=site.limits)
    n, nothing = data.n_rows, _summary((), 0)
    models = predictions = nothing
    if s.exchange == "models":
        models = disclosure.bundle([found.accepted for found in chosen])
    else:
        made = tuple(predict(found.fitted, reference, s.n_outputs) for found in chosen)
        predictions = _summary(made, n)
    reply = messages.Selected(
        status="ok",
        refused=tuple(chosen[0].refused.items()),
        n=disclosure.count(n),
        chosen=_summary(tuple(found.chosen for found in chosen), n),
        models=models,
        predictions=predictions,
        variance=weighted_means(constant[:, None], limits=site.limits).mean,
        losses=weighted_means(chosen[0].half_losses, limits=site.limits).mean,
        own=disclosure.stacked([item.mean for item in own]),
        own_error=disclosure.stacked([item.variance for item in own]),
        useful=useful.mean,
        useful_error=useful.variance,
    )
    own_losses = tuple(found.own_losses for found in chosen)
    kept = {"seed": seed, "own": own_losses, "settings": plain(s)}
    if s.exchange == "models":
        # the site goes back to it where the group does not serve it, and relies on nobody for it
        kept["model"] = np.frombuffer(pack(chosen[0].accepted.value), dtype=np.uint8)
    return reply, kept


def _known_refusals(s: Settings, site: SiteContext) -> dict[str, str]:
    """Candidates that need not be fitted to know that they cannot be used here."""
    refused = {}
    for text in s.candidates:
        made = build(text, s.task, min_records=site.limits.min_records, seed=0)
        memorises = estimators.is_memorising(estimators.type_name(made))
        if s.exchange == "models" and memorises:
            refused[label(text)] = (
                "it carries training rows and does not travel; exchange = 'reference' uses it"
            )
        elif site.limits.min_records > 1 and (fault := estimators.row_values(made)) is not None:
            refused[label(text)] = fault
        elif s.exchange == "reference" and memorises and not site.per_record:
            refused[label(text)] = (
                "its predictions follow single rows, which this site's policy does not allow: "
                "policies that allow values for each record do"
            )
    return refused


def _accepted(fitted: Any, x: FloatArray, s: Settings, limits: Limits) -> tuple[Any, str | None]:
    """Form in which a fitted model travels, with its evidence; or what is against it."""
    if s.exchange != "models" and (
        limits.min_records <= 1 or estimators.is_memorising(estimators.type_name(fitted))
    ):
        return None, None
    classes = range(len(s.levels)) if s.levels else None
    try:
        portable = estimators.encode(fitted, n_features=x.shape[1], classes=classes)
    except ConsilienceError as error:
        return None, error.public
    released = disclosure.estimator(
        portable,
        type_name=estimators.type_name(fitted),
        n_records=len(x),
        n_parameters=estimators.n_parameters(portable),
        leaves=estimators.leaves(fitted, x),
    )
    return released, disclosure.estimator_fault(released.evidence or Support("estimator"), limits)


def _summary(value: Any, n: int) -> Released:
    return disclosure.model(value, kind="summary", n_records=n)


def _nothing(status: str, s: Settings, n: int, refused: dict[str, str]) -> messages.Selected:
    """Reply of a site that takes no part."""
    sizes = {"losses": len(s.candidates), "own": s.n_views, "own_error": s.n_views}
    sizes |= {"variance": 1, "useful": 1, "useful_error": 1}
    return messages.Selected(
        status=status,
        refused=tuple(refused.items()),
        n=disclosure.count(n),
        **{name: _summary((), 0) for name in ("chosen", "models", "predictions")},
        **{name: _gaps(size) for name, size in sizes.items()},
    )


def _gaps(*shape: int) -> Released:
    """An array of which every cell is withheld."""
    empty = np.full((0, *shape), np.nan)
    return disclosure.aggregate(empty).withhold(np.ones(shape, dtype=bool))


# --------------------------------------------------------------------------- exchange


@step("exchange", once=True, tries=lambda message: sum(map(len, message.models.value)))
def exchange(
    message: messages.Models, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Losses, State]:
    """Try everybody's models on the rows of every view."""
    s = message.settings
    if s != Settings(**state["settings"]):
        raise ProtocolError("the exchange goes on with the settings of the selection")
    rows = standardised(data, s)
    owners = message.owners
    check_owners(message, s, data.n_rows, site)
    all_views = shown_views(data, s, state, site)
    found, failed = all_predictions(message.models.value, rows, s, owners, site)
    me = owners.index(site.site)
    weights = weights_of(message, rows.x, me, site.limits)
    if site.limits.min_records > 1 and not s.levels:
        found = [within_reach(part, rows.y, site.limits.min_records) for part in found]
    excess, raw, shifts, held = [], [], [], []
    for v, view in enumerate(all_views):
        y = rows.y[view.rows]
        losses = np.stack([record_losses(s.loss, y, f[view.rows]) for f in found[v]], axis=1)
        # D_ij before the mean: loss of a foreign model less that of the own, cross-fitted
        d = losses - state["own"][v][:, None]
        d[:, me] = 0.0  # a site is not compared with itself
        by = chances(message, v, site, state["seed"])
        excess.append(weighted_means(d, weights[view.rows], limits=site.limits, chance=by))
        by = None if by is None else by[::-1]
        raw.append(weighted_means(losses, limits=site.limits, chance=by).mean)
        if 1 <= v <= s.gain_folds:
            held.append(np.stack([f[view.held] for f in found[v]], axis=1))
            if s.levels:
                shifts.append((_gaps(1), _gaps(1)))
                continue
            # Mean residual under the average of all models: the intercept that this site needs.
            seen = np.stack([f[view.rows] for f in found[v]], axis=1)
            left = y[:, None] - _weighted(seen, message.sizes.value)
            told = weighted_means(left, limits=site.limits)
            shifts.append((told.mean, told.variance))
    reply = messages.Losses(
        failed=tuple(failed.items()),
        excess=disclosure.stacked([e.mean for e in excess]),
        variance=disclosure.stacked([e.variance for e in excess]),
        effective=disclosure.stacked([e.effective for e in excess]),
        raw=disclosure.stacked(raw),
        shift=disclosure.stacked([m for m, _ in shifts]) if shifts else _gaps(0, 1),
        shift_error=disclosure.stacked([e for _, e in shifts]) if shifts else _gaps(0, 1),
    )
    kept = {"owners": owners, "sizes": np.asarray(message.sizes.value), "held": tuple(held)}
    kept |= {name: state[name] for name in ("seed", "settings", "model")}
    return reply, kept


def _weighted(predictions: FloatArray, sizes: NDArray[Any]) -> FloatArray:
    """Average (n, L, q) over models, weighted by rows; models that failed are left out."""
    # models that failed are left out of the average
    usable = np.isfinite(predictions).all(axis=(0, 2))
    w = np.asarray(sizes, dtype=float) * usable
    if not w.sum():
        return np.full((len(predictions), predictions.shape[2]), np.nan)
    return np.asarray(np.einsum("nlq,l->nq", np.nan_to_num(predictions), w / w.sum()))


# --------------------------------------------------------------------------- score and use


@step("score", once=True)
def score(
    message: messages.Cuts, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.CutLosses, State]:
    """Compare numbers of groups by the loss of the group's average on held-out rows."""
    s = Settings(**state["settings"])
    rows = standardised(data, s)
    labels = np.asarray(message.labels.value)
    me = state["owners"].index(site.site)
    parts = []
    if labels.shape[0] != s.gain_folds or labels.shape[1] > MAX_CUTS:
        raise DisclosureError("more groupings than a site compares", public=TOO_MANY)
    for w, view in _folds(data, s, state, site):
        predictions = np.asarray(state["held"][w])
        ways = (_group_average(predictions, cut, me, state["sizes"]) for cut in labels[w])
        losses = [record_losses(s.loss, rows.y[view.held], way) for way in ways]
        parts.append(np.stack(losses, axis=1))
    if not parts:
        gaps = _gaps(labels.shape[1])
        return messages.CutLosses(losses=gaps, against_one=gaps, against_one_error=gaps), state
    joined = np.concatenate(parts)
    beside = weighted_means(joined[:, :1] - joined, limits=site.limits)
    reply = messages.CutLosses(
        losses=weighted_means(joined, limits=site.limits).mean,
        against_one=beside.mean,
        against_one_error=beside.variance,
    )
    return reply, state


@step("use", once=True)
def use(
    message: messages.Groups, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Gains, State]:
    """Keep the group's predictor; compare ways of predicting on held-out rows."""
    s = Settings(**state["settings"])
    rows = standardised(data, s)
    me = state["owners"].index(site.site)
    parts = []
    # Models of sites that have no place among the groups are nobody's alternative.
    placed = np.where(np.asarray(message.labels.value) >= 0, state["sizes"], 0)
    for w, view in _folds(data, s, state, site):
        held = view.held
        predictions = np.asarray(state["held"][w])
        cut = np.asarray(message.held_labels.value)[w]
        everyone = _weighted(predictions, placed)
        ways = (
            predictions[:, me],
            _group_average(predictions, cut, me, state["sizes"]),
            everyone,
            everyone + message.shifts.value[w],
            # the constant of the rows that were not held out, as for every model
            np.tile(constant_prediction(rows.y[view.rows], s.n_outputs)[:1], (len(held), 1)),
        )
        # losses of each way of predicting
        own, group, all_, shifted, constant = (
            record_losses(s.loss, rows.y[held], way) for way in ways
        )
        if s.levels:
            shifted = np.full(len(own), np.nan)
        gains = (own - group, own - all_, group - all_, all_ - shifted, constant, constant - all_)
        told = (own, group, all_, shifted, *gains, constant - group)
        parts.append(np.stack(told, axis=1))
    if parts:
        found = weighted_means(np.concatenate(parts), limits=site.limits)
        reply = messages.Gains(means=found.mean, errors=found.variance)
    else:
        gaps = _gaps(len(messages.GAINS))
        reply = messages.Gains(means=gaps, errors=gaps)
    if message.members.value:
        # from what is told and nothing finer: the coordinator knows which way the site goes
        losses = np.asarray(reply.means.value)[:, None], np.asarray(reply.errors.value)[:, None]
        placed_as = np.asarray(message.labels.value)
        alone = np.array([np.sum(placed_as == placed_as[me]) == 1 or placed_as[me] < 0])
        way = str(way_of_predicting(messages.by_gain(*losses), alone)[0])
        members, sizes = _models_for(way, message, state, rows, s, me)
        predictor = CollaborativePredictor(
            members,
            sizes,
            feature_names=data.feature_names,
            levels=s.levels,
            scaling=data.scaling,
            standards=rows.standards,
            reach=None if s.levels else reach_of(rows.y),
        )
        site.output("predictor", predictor)
    return reply, {}


def reach_of(y: FloatArray) -> FloatArray:
    """Range of predictions that a site's own responses support: one standard deviation more.

    It stays at the site, in its predictor.
    """
    return np.array([y.min() - y.std(), y.max() + y.std()])


def _models_for(
    way: str, message: messages.Groups, state: State, rows: Rows, s: Settings, me: int
) -> tuple[Sequence[Any], NDArray[Any]]:
    """Models and weights of the predictor that a site keeps: group's, its own or a constant."""
    one = np.ones(1)
    if way == "own":
        return (unpack(np.asarray(state["model"], dtype=np.uint8).tobytes()),), one
    if way == "constant":
        value = constant_prediction(rows.y, s.n_outputs)[0]
        constant = {
            "form": "linear",
            "coef": np.zeros((s.n_outputs, rows.x.shape[1])),
            "intercept": value,
            "link": "identity",
        }
        if s.levels:
            shares = np.maximum(value, np.finfo(float).tiny)
            constant |= {"intercept": np.log(shares), "link": "softmax"}
            constant["classes"] = np.arange(s.n_outputs, dtype=np.int32)
        return (constant,), one
    return message.members.value, np.asarray(message.member_sizes.value)


def _folds(data: SiteData, s: Settings, state: State, site: SiteContext) -> list[tuple[int, View]]:
    """Folds in which this site holds rows out, by their number."""
    found = shown_views(data, s, state, site)[1 : 1 + s.gain_folds]
    return [(w, view) for w, view in enumerate(found) if len(view.held)]


def _group_average(
    predictions: FloatArray, labels: NDArray[Any], me: int, sizes: NDArray[Any]
) -> FloatArray:
    """Average over the site's group; a site without a group stands alone."""
    members = labels == labels[me] if labels[me] >= 0 else np.arange(len(labels)) == me
    return _weighted(predictions, np.where(members, sizes, 0))


# --------------------------------------------------------------------------- pooled refit


@step("pool-moments")
def pool_moments(
    message: messages.PoolRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.PoolMoments, State]:
    """Cross-products of a constant, the columns and the response: a pooled linear fit's all."""
    _check_pooling(state)
    y = np.asarray(data.target, dtype=float)
    columns, own = (np.column_stack([x, y]) for x in (data.features, data.in_own_units()[0]))
    products = disclosure.cross_products(
        columns, limits=site.limits, coded=data.coded, constant=True, judged=own
    )
    return messages.PoolMoments(products=products), state


@step("pool-rows")
def pool_rows(
    message: messages.PoolRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.PoolRows, State]:
    """The rows themselves, where the site's policy allows values for each record."""
    _check_pooling(state)
    levels = {level: i for i, level in enumerate(message.levels)}
    target = data.target if data.target is not None else np.empty(0)
    y = [levels[str(value)] for value in target] if levels else np.asarray(target, dtype=float)
    return messages.PoolRows(rows=disclosure.per_record(np.column_stack([data.features, y]))), state


def _check_pooling(state: State) -> None:
    if state["settings"]["prediction"] != "pooled":
        raise ProtocolError("a refit is for studies with prediction = 'pooled'")
