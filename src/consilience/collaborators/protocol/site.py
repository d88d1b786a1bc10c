"""What a site does: select and fit, try everybody's models, compare ways of predicting.

The rows are looked at in several *views*: all of them; for each fold of the gain all but that fold;
and resamples of 80 % for stability (``rows``). Models of others are tried on them (``trial``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.local_selection import Selection, predict, select
from consilience.collaborators.protocol.messages import (
    GAINS,
    CutLosses,
    Cuts,
    Gains,
    Groups,
    Losses,
    Models,
    PoolMoments,
    PoolRequest,
    PoolRows,
    Selected,
    SelectRequest,
    Settings,
)
from consilience.collaborators.protocol.rows import (
    View,
    has_rare_level,
    shown_views,
    standardised,
)
from consilience.collaborators.protocol.trial import (
    TOO_MANY,
    all_predictions,
    chances,
    check_owners,
    n_models,
    weights_of,
    within_reach,
)
from consilience.exceptions import ConsilienceError, DataError, DisclosureError, ProtocolError
from consilience.learners.candidates import build, label
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.learners.losses import constant_prediction, record_losses
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.protocol.phases.holdout import drawing_seed, without_thin
from consilience.wire.disclosure import (
    Evidence,
    Limits,
    Released,
    aggregate,
    bundle,
    count,
    cross_products,
    estimator,
    estimator_fault,
    model,
    per_record,
    stacked,
    weighted_means,
)
from consilience.wire.estimators import (
    encode,
    is_memorising,
    leaves,
    n_parameters,
    row_values,
    type_name,
)

MIN_ROWS = 20
"""A pair with an effective number of rows below this is not compared, so neither is the site."""
MAX_REFERENCE = 300
MAX_CUTS = 20
PART = ", on a part of the rows: gain_folds and stability_runs ask for fits on parts"


# --------------------------------------------------------------------------- select


@step("select", once=True)
def select_step(
    message: SelectRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Selected, State]:
    """Choose, fit and cross-fit in every view."""
    s = Settings.from_json(message.settings)
    rows = standardised(data, s) if _enough(data, site) else None
    status = "too-few-rows" if rows is None else _unfit(rows.y, s, site.limits)
    if rows is None or status:
        return _nothing(status, s, data.n_rows if rows is not None else 0, {}), {}
    if s.levels and s.levels not in data.levels.values():
        raise DataError("the levels of the response are not those that were declared")
    seed = drawing_seed(data, site, "meta-clustering draws")
    reference = np.asarray(message.reference.value, dtype=float)
    if len(reference) > MAX_REFERENCE:
        raise DisclosureError("more reference points than a site answers for", public=TOO_MANY)
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
    reply = Selected(
        status="ok",
        refused=tuple(chosen[0].refused.items()),
        n=count(data.n_rows),
        chosen=_summary(tuple(found.chosen for found in chosen), data.n_rows),
        models=_models(chosen, s),
        predictions=_predictions(chosen, reference, s, data.n_rows),
        variance=weighted_means(constant[:, None], limits=site.limits).mean,
        losses=weighted_means(chosen[0].half_losses, limits=site.limits).mean,
        own=stacked([item.mean for item in own]),
        own_error=stacked([item.variance for item in own]),
        useful=useful.mean,
        useful_error=useful.variance,
    )
    own_losses = tuple(found.own_losses for found in chosen)
    return reply, {"seed": seed, "own": own_losses, "settings": message.settings}


def _enough(data: SiteData, site: SiteContext) -> bool:
    return data.n_rows >= max(MIN_ROWS, 2 * site.limits.min_records)


def _unfit(y: FloatArray, s: Settings, limits: Limits) -> str:
    """Why a response has nothing to compare; "" where it has."""
    if has_rare_level(y, s, limits):
        return "rare-level"
    varied, _ = without_thin(y[:, None], limits)
    return "constant-response" if len(np.unique(varied)) < 2 else ""


def _known_refusals(s: Settings, site: SiteContext) -> dict[str, str]:
    """Candidates that need not be fitted to know that they cannot be used here."""
    refused = {}
    task: Any = "classification" if s.levels else "regression"
    for text in s.candidates:
        made = build(text, task, min_records=site.limits.min_records, seed=0)
        if s.exchange == "models" and is_memorising(type_name(made)):
            refused[label(text)] = (
                "it carries training rows and does not travel; exchange = 'reference' uses it"
            )
        elif site.limits.min_records > 1 and (fault := row_values(made)) is not None:
            refused[label(text)] = fault
        elif s.exchange == "reference" and is_memorising(type_name(made)) and not site.per_record:
            refused[label(text)] = (
                "its predictions follow single rows, which this site's policy does not allow: "
                "policies that allow values for each record do"
            )
    return refused


def _accepted(fitted: Any, x: FloatArray, s: Settings, limits: Limits) -> tuple[Any, str | None]:
    """Form in which a fitted model travels, with its evidence; or what is against it."""
    if s.exchange != "models" and (limits.min_records <= 1 or is_memorising(type_name(fitted))):
        return None, None
    classes = range(len(s.levels)) if s.levels else None
    try:
        portable = encode(fitted, n_features=x.shape[1], classes=classes)
    except ConsilienceError as error:
        return None, error.public
    released = estimator(
        portable,
        type_name=type_name(fitted),
        n_records=len(x),
        n_parameters=n_parameters(portable),
        leaves=leaves(fitted, x),
    )
    return released, estimator_fault(_known(released), limits)


def _known(released: Released) -> Evidence:
    return released.evidence or Evidence("estimator")


def _models(chosen: Sequence[Selection], s: Settings) -> Released:
    if s.exchange != "models":
        return _summary((), 0)
    return bundle([found.accepted for found in chosen])


def _predictions(
    chosen: Sequence[Selection], reference: FloatArray, s: Settings, n: int
) -> Released:
    if s.exchange != "reference":
        return _summary((), 0)
    made = tuple(predict(found.fitted, reference, s.n_outputs) for found in chosen)
    return _summary(made, n)


def _summary(value: Any, n: int) -> Released:
    return model(value, kind="summary", n_records=n)


def _nothing(status: str, s: Settings, n: int, refused: dict[str, str]) -> Selected:
    """Reply of a site that takes no part."""
    return Selected(
        status=status,
        refused=tuple(refused.items()),
        n=count(n),
        chosen=_summary((), 0),
        models=_summary((), 0),
        predictions=_summary((), 0),
        variance=_gaps(1),
        losses=_gaps(len(s.candidates)),
        own=_gaps(s.n_views),
        own_error=_gaps(s.n_views),
        useful=_gaps(1),
        useful_error=_gaps(1),
    )


def _gaps(*shape: int) -> Released:
    """An array of which every cell is withheld."""
    empty = np.full((0, *shape), np.nan)
    return aggregate(empty).withhold(np.ones(shape, dtype=bool))


# --------------------------------------------------------------------------- exchange


@step("exchange", once=True, tries=n_models)
def exchange(
    message: Models, data: SiteData, state: State, site: SiteContext
) -> tuple[Losses, State]:
    """Try everybody's models on the rows of every view."""
    s = Settings.from_json(state["settings"])
    if message.settings != state["settings"]:
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
        losses = np.stack(
            [record_losses(s.loss, rows.y[view.rows], f[view.rows]) for f in found[v]], axis=1
        )
        d = losses - state["own"][v][:, None]
        d[:, me] = 0.0  # a site is not compared with itself
        by = chances(message, v, site, state["seed"])
        excess.append(weighted_means(d, weights[view.rows], limits=site.limits, chance=by))
        by = None if by is None else by[::-1]
        raw.append(weighted_means(losses, limits=site.limits, chance=by).mean)
        if 1 <= v <= s.gain_folds:
            held.append(np.stack([f[view.held] for f in found[v]], axis=1))
            shifts.append(_shift(rows.y, found[v], view.rows, message.sizes.value, s, site.limits))
    reply = Losses(
        failed=tuple((owner, reason) for owner, reason in failed.items()),
        excess=stacked([e.mean for e in excess]),
        variance=stacked([e.variance for e in excess]),
        effective=stacked([e.effective for e in excess]),
        raw=stacked(raw),
        shift=stacked([m for m, _ in shifts]) if shifts else _gaps(0, 1),
        shift_error=stacked([e for _, e in shifts]) if shifts else _gaps(0, 1),
    )
    kept = {
        "seed": state["seed"],
        "settings": state["settings"],
        "owners": owners,
        "sizes": np.asarray(message.sizes.value),
        "held": tuple(held),
    }
    return reply, kept


def _shift(
    y: FloatArray,
    predictions: Sequence[FloatArray],
    rows: IntArray,
    sizes: NDArray[Any],
    s: Settings,
    limits: Limits,
) -> tuple[Released, Released]:
    """Mean residual under the average of all models: the intercept that this site would need."""
    if s.levels:
        return _gaps(1), _gaps(1)
    average = _weighted(np.stack([f[rows] for f in predictions], axis=1), sizes)
    found = weighted_means((y[rows] - average[:, 0])[:, None], limits=limits)
    return found.mean, found.variance


def _weighted(predictions: FloatArray, sizes: NDArray[Any]) -> FloatArray:
    """Average (n, L, q) over models, weighted by rows; models that failed are left out."""
    usable = np.isfinite(predictions).all(axis=(0, 2))
    w = np.asarray(sizes, dtype=float) * usable
    if not w.sum():
        return np.full((len(predictions), predictions.shape[2]), np.nan)
    return np.asarray(np.einsum("nlq,l->nq", np.nan_to_num(predictions), w / w.sum()))


# --------------------------------------------------------------------------- score and use


@step("score", once=True)
def score(
    message: Cuts, data: SiteData, state: State, site: SiteContext
) -> tuple[CutLosses, State]:
    """Compare numbers of groups by the loss of the group's average on held-out rows."""
    s = Settings.from_json(state["settings"])
    rows = standardised(data, s)
    labels = np.asarray(message.labels.value)
    me = state["owners"].index(site.site)
    parts = []
    if labels.shape[0] != s.gain_folds or labels.shape[1] > MAX_CUTS:
        raise DisclosureError("more groupings than a site compares", public=TOO_MANY)
    for w, view in _folds(data, s, state, site):
        predictions = np.asarray(state["held"][w])
        losses = [
            record_losses(
                s.loss, rows.y[view.held], _group_average(predictions, cut, me, state["sizes"])
            )
            for cut in labels[w]
        ]
        parts.append(np.stack(losses, axis=1))
    if not parts:
        gaps = _gaps(labels.shape[1])
        return CutLosses(losses=gaps, against_one=gaps, against_one_error=gaps), state
    joined = np.concatenate(parts)
    beside = weighted_means(joined[:, :1] - joined, limits=site.limits)
    reply = CutLosses(
        losses=weighted_means(joined, limits=site.limits).mean,
        against_one=beside.mean,
        against_one_error=beside.variance,
    )
    return reply, state


@step("use", once=True)
def use(message: Groups, data: SiteData, state: State, site: SiteContext) -> tuple[Gains, State]:
    """Keep the group's predictor; compare ways of predicting on held-out rows."""
    s = Settings.from_json(state["settings"])
    rows = standardised(data, s)
    me = state["owners"].index(site.site)
    if message.members.value:
        predictor = CollaborativePredictor(
            message.members.value,
            np.asarray(message.member_sizes.value),
            feature_names=data.feature_names,
            levels=s.levels,
            scaling=data.scaling,
            standards=rows.standards,
        )
        site.output("predictor", predictor)
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
            np.tile(constant_prediction(rows.y[view.rows], s.n_outputs)[:1], (len(held), 1)),
        )
        own, group, all_, shifted, constant = (
            record_losses(s.loss, rows.y[held], way) for way in ways
        )
        if s.levels:
            shifted = np.full(len(own), np.nan)
        gains = (own - group, own - all_, group - all_, all_ - shifted, constant, constant - all_)
        parts.append(np.stack((own, group, all_, shifted, *gains), axis=1))
    if not parts:
        return Gains(means=_gaps(len(GAINS)), errors=_gaps(len(GAINS))), {}
    found = weighted_means(np.concatenate(parts), limits=site.limits)
    return Gains(means=found.mean, errors=found.variance), {}


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
    message: PoolRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[PoolMoments, State]:
    """Cross-products of a constant, the columns and the response: a pooled linear fit's all."""
    _check_pooling(state)
    y = np.asarray(data.target, dtype=float)
    columns = np.column_stack([data.features, y])
    products = cross_products(columns, limits=site.limits, coded=data.coded, constant=True)
    return PoolMoments(products=products), state


@step("pool-rows")
def pool_rows(
    message: PoolRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[PoolRows, State]:
    """The rows themselves, where the site's policy allows values for each record."""
    _check_pooling(state)
    levels = {level: i for i, level in enumerate(message.levels)}
    target = data.target if data.target is not None else np.empty(0)
    y = [levels[str(value)] for value in target] if levels else np.asarray(target, dtype=float)
    return PoolRows(rows=per_record(np.column_stack([data.features, y]))), state


def _check_pooling(state: State) -> None:
    if Settings.from_json(state["settings"]).prediction != "pooled":
        raise ProtocolError("a refit is for studies with prediction = 'pooled'")
