"""What a site does: draw labels of its entities, send class sums, judge held-out events.

The labels never leave. What leaves are sums over the classes in which entities are *counted*, see
``events``.

At the end it says who belongs where, and keeps a predictor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ProtocolError
from consilience.latent_regression.estimators.latent_class_predictor import (
    LatentClassPredictor,
    Units,
)
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Classes,
    Totals,
    block_log_likelihood,
    classes_of,
    draw_uniform,
)
from consilience.latent_regression.kernels.marginal_likelihood import (
    concentration_log_likelihood,
)
from consilience.latent_regression.kernels.prediction import (
    class_predictions,
    mixture_interval,
    posterior_weights,
)
from consilience.latent_regression.kernels.sampling import (
    draw_labels,
    expected_moves,
    own_weights,
    table_counts,
)
from consilience.latent_regression.protocol.events import (
    TURN,
    Events,
    digest_of,
    events_of,
    moved_share,
    next_released,
    status_of,
    withheld_classes,
    worth_moving,
)
from consilience.latent_regression.protocol.messages import (
    MAX_BETAS,
    MAX_ROUNDS,
    N_FIGURES,
    Begin,
    Conclude,
    Concluded,
    Offer,
    Offered,
    Round,
    Settings,
    Sums,
    unpacked,
)
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import (
    Limits,
    Released,
    WeightedMeans,
    aggregate,
    bundle,
    class_sums,
    rounded,
    weighted_means,
)
from consilience.wire.rounding import by_entity

SERIES = "class-sums"
_AFTER_LABELS = 1 << 32
"""Draws of turns, beside those of labels at the same agent and round."""
MOST = 1e30
_DIGITS = 1e-11
NO_SHARE = 1e-290
"""Share of the classes that have been merged away, and are not drawn again."""


def _tally(message: Round, data: SiteData, limits: Limits) -> dict[str, tuple[int, int]]:
    """Rounds are counted over a run, those whose replies were lost included."""
    return {"rounds": (1, MAX_ROUNDS)} if limits.min_records > 1 else {}


# --------------------------------------------------------------------------- offer


@step("offer", once=True)
def offer(message: Offer, data: SiteData, state: State, site: SiteContext) -> tuple[Offered, State]:
    """Tell the moments of all events in the sums, or nothing where they rest on too little."""
    s = Settings.from_json(message.settings)
    events = events_of(data, s, site)
    everyone = np.zeros(events.n_entities, dtype=np.int64)
    marks = np.zeros((len(events.z), 2))
    kept = np.flatnonzero(events.used)
    for column, of in enumerate((events.entity, events.agent)):
        marks[kept[np.unique(of[kept], return_index=True)[1]], column] = 1.0
    sums = _released(events, events.z, everyone, s.n_cells, marks, site.limits)
    unsafe = _unsafe(sums, site.limits, 2 * events.z.shape[1])
    if unsafe.any():
        sums = sums.withhold(np.broadcast_to(unsafe[:, None], np.shape(sums.value)))
    return Offered(sums=sums), {
        "settings": message.settings,
        "rows": digest_of(data),
        "seeds": events.seeds,
    }


def _released(
    events: Events,
    z: FloatArray,
    counted: IntArray,
    n_cells: int,
    marks: FloatArray,
    limits: Limits,
) -> Released:
    """Sums by class over the events that have a weight and are not held out."""
    return class_sums(
        z,
        cells=np.where(events.used, counted[events.entity], -1),
        n_cells=n_cells,
        entities=events.entity,
        blocks=events.agent,
        marks=marks,
        judged=events.centred(z) if limits.min_records > 1 else None,
        series=SERIES,
    )


def _unsafe(sums: Released, limits: Limits, least: int) -> NDArray[np.bool_]:
    """Classes of which some cell may not leave."""
    evidence = sums.evidence
    if evidence is None or evidence.members is None or limits.min_records <= 1:
        return np.zeros(len(sums.value), dtype=bool)
    cells = evidence.small(limits) | evidence.dominated(limits)
    size = np.bincount(evidence.members[evidence.members >= 0], minlength=len(sums.value))
    return np.asarray(cells.any(axis=1) | ((size > 0) & (size < least)))


# --------------------------------------------------------------------------- begin


@step("begin", once=True)
def begin(message: Begin, data: SiteData, state: State, site: SiteContext) -> tuple[Sums, State]:
    """Put every entity into a class, and tell the sums."""
    s = _settings(message.settings, state, data, begun=False)
    events = events_of(data, s, site, state["seeds"])
    scaling = np.stack([message.centre.value, message.scale.value])
    if scaling.shape[1] != events.n_features + 1 or not (scaling[1] > 0).all():
        raise ProtocolError("centres and scales are none of the study's columns")
    if (np.abs(scaling) > MOST).any() or (scaling[1] < 1 / MOST).any():
        # Whether all events are numbers in such units is a question about the largest of them.
        raise ProtocolError(f"columns are moved and scaled by at most {MOST:g}")
    z = events.scaled(*scaling)
    if s.start == "local":
        try:
            labels = _own_classes(events, z, s, site.limits, float(message.sigma2.value))
        except DataError:
            if site.limits.min_records <= 1:
                raise
            labels = np.zeros(events.n_entities, dtype=np.int64)  # as in `_drawn`
    else:
        place = np.arange(events.n_entities) - np.searchsorted(events.agent_of, events.agent_of)
        u = draw_uniform(events.keys[events.agent_of], 0, place)
        labels = np.minimum((u * s.n_cells).astype(np.int64), s.n_cells - 1)
    nobody = np.zeros((events.n_entities, s.n_cells))
    before = {"released": np.full(events.n_entities, -1, dtype=np.int64)}
    made = _Made(labels, nobody, before, _histories(events, site), None)
    reply, kept = made.reply(events, z, s, site.limits, None)
    return reply, {**_from_before(state), "scaling": scaling, **kept}


def _own_classes(
    events: Events, z: FloatArray, s: Settings, limits: Limits, sigma2: float
) -> IntArray:
    """Classes of a fit to the site's own events."""
    from consilience.latent_regression.estimators.latent_class_fit import Settings as FitSettings
    from consilience.latent_regression.estimators.latent_class_fit import fit_classes

    blocks = events.blocks(z, s)
    counted = events.counted
    least = max(limits.min_records, 2 * z.shape[1]) if limits.min_records > 1 else 1
    room = min(
        s.n_cells,
        int((counted > 0).sum()) // (2 * limits.min_entities),
        int(counted.sum()) // (2 * least),
    )
    if room <= 1 or events.n_entities == 1:
        return np.zeros(events.n_entities, dtype=np.int64)
    settings = FitSettings(n_classes=room, n_start=min(2 * room, events.n_entities))
    fitted = fit_classes(blocks, settings, int(events.keys[0] >> np.uint64(1)), keys=events.keys)
    return np.asarray(np.argmax(fitted.probabilities, axis=1), dtype=np.int64)


# --------------------------------------------------------------------------- rounds


class _Made:
    """Labels of a round on their way to a reply and a state."""

    def __init__(
        self,
        labels: IntArray,
        own: FloatArray,
        before: dict[str, Any],
        groups: IntArray,
        message: Round | None,
        probabilities: FloatArray | None = None,
    ) -> None:
        self.labels, self.own, self.before, self.groups = labels, own, before, groups
        self.message, self.probabilities = message, probabilities

    def reply(
        self,
        events: Events,
        z: FloatArray,
        s: Settings,
        limits: Limits,
        moved: float | None,
    ) -> tuple[Sums, State]:
        """Sums that may leave, and what the site keeps of this round."""
        n_cells, least = s.n_cells, 2 * z.shape[1]
        counted, before = events.counted, self.before["released"]
        enough = events.enough(z, limits) if limits.min_records > 1 else None
        wanted = self.labels
        if enough is not None and self.probabilities is not None:
            wanted = worth_moving(
                before, self.labels, self.probabilities, _turns(events, self.message)
            )
        released = next_released(wanted, self.groups, counted, enough)
        while True:
            marks = events.marks(_tables(events, released, n_cells, self.message))
            sums = _released(events, z, released, n_cells, marks, limits)
            unsafe = _unsafe(sums, limits, least)
            if not unsafe.any():
                break
            released = np.where((released >= 0) & unsafe[released], -1, released)
        withheld = withheld_classes(wanted, released, counted, enough)
        n_entities = events.n_entities if events.n_entities >= limits.min_records else 0
        if enough is not None:
            # A share of all labels would count single entities beyond lines that somebody drew.
            moved = None if moved is None else moved_share(released, before)
        reply = Sums(
            sums=sums,
            status=status_of(released, before, withheld, n_cells),
            moved=_told(moved, n_entities, limits),
            fit=bundle(_fits(events, released, n_cells, self.message, limits)),
        )
        answer = {
            "round": 0 if self.message is None else self.message.round,
            "labels": self.labels,
            "released": released,
            "own": self.own,
        }
        return reply, {"answers": [answer]}


def _turns(events: Events, message: Round | None) -> NDArray[np.bool_]:
    """Entities that take a new label in this round."""
    place = np.arange(events.n_entities) + _AFTER_LABELS
    round_number = 0 if message is None else message.round
    return np.asarray(draw_uniform(events.keys[events.agent_of], round_number, place) < TURN)


def _histories(events: Events, site: SiteContext) -> IntArray:
    """Entities that no release of this run tells apart, by number; 0 for those in none.

    The gate knows of replies that were lost on the way, the state that a question follows does not.
    """
    found = np.zeros(events.n_entities, dtype=np.int64)
    if SERIES in site.series:
        used = np.flatnonzero(events.used)
        found[events.entity[used]] = np.asarray(site.series[SERIES]["groups"])[used]
    return found


@step("round", tally=_tally)
def round_(message: Round, data: SiteData, state: State, site: SiteContext) -> tuple[Sums, State]:
    """Draw labels with the classes of all sites, each entity without its own part in them."""
    s = _settings(message.settings, state, data)
    events = events_of(data, s, site, state["seeds"])
    z = events.scaled(*state["scaling"])
    totals = unpacked(message.totals.value, events.n_features, s.fit_intercept)
    mapping = np.asarray(message.mapping)
    _check_round(message, s, mapping)
    labels, own, newest = _where_we_stand(message, state, events, s, mapping)
    classes = classes_of(totals, float(message.sigma2.value), float(message.delta2.value))
    drawn, probabilities = _drawn(message, events, z, s, site.limits, classes, totals, labels, own)
    were = labels >= 0
    # With its sign: at small sites it is noise around 0, which the coordinator averages.
    moved = float(((drawn != labels) & were).sum()) - expected_moves(probabilities[were])
    moved /= max(int(were.sum()), 1)
    made = _Made(drawn, own, newest, _histories(events, site), message, probabilities)
    reply, kept = made.reply(events, z, s, site.limits, moved)
    used = [a for a in state["answers"] if a["round"] == message.used]
    kept["answers"] = [*used, *kept["answers"]]
    if message.keep:
        # No classes are merged any more: `mapping` is that of the reply in use, maybe an old one.
        kept["sum"] = state.get("sum", 0.0) + probabilities
        kept["n_kept"] = int(state.get("n_kept", 0)) + 1
    return reply, {**_from_before(state), "scaling": state["scaling"], **kept}


def _drawn(
    message: Round,
    events: Events,
    z: FloatArray,
    s: Settings,
    limits: Limits,
    classes: Classes,
    totals: Totals,
    labels: IntArray,
    own: FloatArray,
) -> tuple[IntArray, FloatArray]:
    """Labels and their probabilities."""
    exact = s.concentration == "exact"
    base = np.asarray(message.base.value)
    # The shortcut gives every class a share: only those that have not been merged away.
    live = np.flatnonzero(base > NO_SHARE) if not exact else np.arange(s.n_cells)
    place = np.full(s.n_cells + 1, -1, dtype=np.int64)
    place[live] = np.arange(len(live))
    try:
        drawn, found, _ = draw_labels(
            events.blocks(z, s),
            classes if exact else classes_of(totals.take(live), classes.sigma2, classes.delta2),
            place[labels],
            own[:, live],
            base if exact else None,
            message.beta,
            events.keys,
            message.round,
            shortcut_counts=None if exact else totals.counts[live],
            alpha=message.alpha,
        )
    except DataError:
        if limits.min_records <= 1:
            raise
        # Under made-up classes one entity may have no likelihood: a refusal would say that there
        # is such a one.
        even = np.full((events.n_entities, s.n_cells), 1.0 / s.n_cells)
        return labels, even
    probabilities = np.zeros((events.n_entities, s.n_cells))
    probabilities[:, live] = found
    return live[drawn], probabilities


def _check_round(message: Round, s: Settings, mapping: IntArray) -> None:
    if len(message.totals.value) != s.n_cells or len(message.base.value) != s.n_cells:
        raise ProtocolError("the classes of a round are as many as in the beginning")
    if mapping.shape != (s.n_cells,) or ((mapping < 0) | (mapping >= s.n_cells)).any():
        raise ProtocolError("classes are merged into classes that do not exist")
    if not (1 <= message.round <= MAX_ROUNDS and -1 <= message.used < message.round):
        raise ProtocolError(f"rounds are numbered from 1 to {MAX_ROUNDS}, each after those before")
    numbers = np.array([message.alpha, message.beta, *message.betas])
    if not (np.isfinite(numbers) & (numbers > 0)).all() or len(message.betas) > MAX_BETAS:
        raise ProtocolError("alpha, beta and a few values to compare are positive numbers")
    if not (0.0 <= message.decay <= 1.0 and 0.0 <= message.weight < np.inf):
        raise ProtocolError("what is left of earlier sums is a share, and a weight is not negative")


def _where_we_stand(
    message: Round, state: State, events: Events, s: Settings, mapping: IntArray
) -> tuple[IntArray, FloatArray, dict[str, Any]]:
    """Labels, the entities' own weights in the totals, and what was released last.

    The totals hold the reply of round `used`, faded by what came after it; a later reply of this
    site that was lost is in none of them.
    """
    answers = state["answers"]
    newest = answers[-1]
    used = next((a for a in answers if a["round"] == message.used), None)
    if used is None:
        nowhere = np.full(events.n_entities, -1, dtype=np.int64)
        return nowhere, np.zeros((events.n_entities, s.n_cells)), newest
    own = own_weights(used["own"], used["released"], message.decay, message.weight)
    labels = _relabelled(used["labels"], mapping)
    if newest is used:
        newest = {**newest, "released": _relabelled(newest["released"], mapping)}
    elif (mapping != np.arange(s.n_cells)).any():
        # Merged before or after the lost reply: its classes may be those of now, or not.
        newest = {**newest, "released": np.full(events.n_entities, -1, dtype=np.int64)}
    return labels, _mapped(own, mapping), newest


def _relabelled(labels: IntArray, mapping: IntArray) -> IntArray:
    return np.where(labels >= 0, mapping[np.maximum(labels, 0)], -1)


def _mapped(values: FloatArray, mapping: IntArray) -> FloatArray:
    """Add up columns of classes that have become one."""
    merged = np.zeros_like(values)
    np.add.at(merged.T, mapping, values.T)
    return merged


def _agent_counts(events: Events, released: IntArray, n_cells: int) -> FloatArray:
    """Entities by agent and class, as they are counted in what was released."""
    counts = np.zeros((len(events.agent_names), n_cells))
    used = (released >= 0) & (events.counted > 0)
    np.add.at(counts, (events.agent_of[used], released[used]), 1.0)
    return counts


def _tables(
    events: Events, released: IntArray, n_cells: int, message: Round | None
) -> NDArray[np.bool_]:
    """Which entities open a table of their agent (their number is what is drawn)."""
    opened = np.zeros(events.n_entities, dtype=bool)
    if message is None:
        return opened
    counts = _agent_counts(events, released, n_cells)
    base = np.asarray(message.base.value)
    tables = table_counts(counts.astype(np.int64), message.beta, base, events.keys, message.round)
    used = np.flatnonzero((released >= 0) & (events.counted > 0))
    code = events.agent_of[used] * n_cells + released[used]
    order = np.argsort(code, kind="stable")
    sorted_code = code[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_code, sorted_code)
    opened[used[order]] = rank < tables.ravel()[sorted_code]
    return opened


def _fits(
    events: Events, released: IntArray, n_cells: int, message: Round | None, limits: Limits
) -> tuple[Released, ...]:
    """Mean log-likelihood of the released labels by value of beta, where it is asked."""
    if message is None or not message.betas:
        return ()
    n = int(((released >= 0) & (events.counted > 0)).sum())
    n = n if n >= limits.min_records else 0
    counts, base = _agent_counts(events, released, n_cells), np.asarray(message.base.value)
    found = concentration_log_likelihood(counts, base, np.array(message.betas)) / max(n, 1)
    return tuple(_told(float(f), n, limits) for f in found)


def _told(value: float | None, n_entities: int, limits: Limits) -> Released:
    """A mean over entities, to one of them where records are protected.

    Elsewhere to so many digits that the sum over sites does not depend on who is where.
    """
    n = 0 if value is None else n_entities
    step = 1.0 / max(n, 1) if limits.min_records > 1 else _DIGITS
    return rounded(float("nan") if value is None else value, n_records=n, step=step)


# --------------------------------------------------------------------------- conclude


@step("conclude", once=True)
def conclude(
    message: Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[Concluded, State]:
    """Keep classes and predictor at the site; tell what they are worth on held-out events."""
    s = _settings(message.settings, state, data)
    events = events_of(data, s, site, state["seeds"])
    return conclude_at_site(message, data, events, s, state, site), {}


def _settings(text: str, state: State, data: SiteData, *, begun: bool = True) -> Settings:
    if text != state.get("settings"):
        raise ProtocolError("the settings changed during the run")
    if digest_of(data) != state["rows"]:
        raise ProtocolError("the columns were prepared in another way during the run")
    if begun and "answers" not in state:
        raise ProtocolError("a round was asked before the beginning")
    return Settings.from_json(text)


def _from_before(state: State) -> State:
    """What stays as it is in a run."""
    return {name: state[name] for name in ("settings", "rows", "seeds")}


# ------------------------------------------------------------------------------------------ the end


def conclude_at_site(
    message: Conclude,
    data: SiteData,
    events: Events,
    s: Settings,
    state: State,
    site: SiteContext,
) -> Concluded:
    """Write the site's outputs and judge its held-out events."""
    classes = _classes(message, events.n_features + int(s.fit_intercept), s.n_cells)
    z = events.scaled(*state["scaling"])
    blocks = events.blocks(z, s)
    known = _posterior(message, events, blocks, classes, s, state, site.limits)
    try:
        figures = _figures(message, events, z, blocks, classes, known, s, state, site.limits)
    except (DataError, np.linalg.LinAlgError):
        if site.limits.min_records <= 1:
            raise
        figures = _no_figures()
    # What stays here may use the held-out events too: they tell more of their entities.
    log_known = np.log(np.maximum(known, np.finfo(float).tiny))
    held = _held_blocks(events, z, s)
    final = known
    if held is not None:
        final = posterior_weights(log_known, _log_likelihood(held, classes, site.limits))
    _write(message, data, events, final, classes, s, state, site)
    return Concluded(figures=figures.mean, variances=figures.variance, effective=figures.effective)


def _classes(message: Conclude, n_design: int, n_cells: int) -> Classes:
    """The classes as a posterior of their coefficients."""
    mean, covariance = np.asarray(message.mean.value), np.asarray(message.covariance.value)
    if mean.shape[1] != n_design:
        raise ProtocolError("the classes have other columns than the study")
    target = np.asarray(message.mapping)
    if target.shape != (n_cells,) or ((target < -1) | (target >= len(mean))).any():
        raise ProtocolError("cells of the rounds become classes that do not exist")
    precision = np.linalg.inv(covariance)
    precision = (precision + np.swapaxes(precision, 1, 2)) / 2
    cholesky = np.linalg.cholesky(precision)
    log_det = 2.0 * np.log(np.diagonal(cholesky, axis1=1, axis2=2)).sum(axis=1)
    return Classes(
        precision=precision,
        mean=mean,
        cholesky=np.asarray(cholesky, dtype=np.float64),
        log_det=log_det,
        sigma2=float(message.sigma2.value),
        delta2=float(message.delta2.value),
        linear=np.einsum("kfg,kg->kf", precision, mean),
    )


def _posterior(
    message: Conclude,
    events: Events,
    blocks: Blocks,
    classes: Classes,
    s: Settings,
    state: State,
    limits: Limits,
) -> FloatArray:
    """Label probabilities of each entity from the events in the sums: averaged over rounds."""
    if int(state.get("n_kept", 0)):
        kept = np.asarray(state["sum"]) / int(state["n_kept"])
        found = np.zeros((events.n_entities, classes.n_classes))
        target = np.asarray(message.mapping)
        for cell in np.flatnonzero(target >= 0):
            found[:, target[cell]] += kept[:, cell]
        total = found.sum(axis=1, keepdims=True)
        if (total > 0).all():
            return np.asarray(found / total)
    log_prior = np.log(np.maximum(message.base.value, np.finfo(float).tiny))
    everyone = np.broadcast_to(log_prior, (events.n_entities, classes.n_classes))
    return posterior_weights(everyone, _log_likelihood(blocks, classes, limits))


def _log_likelihood(blocks: Blocks, classes: Classes, limits: Limits) -> FloatArray:
    """Log-likelihood of each entity's events under each class.

    Under made-up classes one entity may have none. A refusal would say that there is such a one,
    and could be asked for again; so at protected sites the events then tell nothing.
    """
    try:
        return block_log_likelihood(blocks, classes)
    except DataError:
        if limits.min_records <= 1:
            raise
        return np.zeros((blocks.n_entities, classes.n_classes))


def _held_blocks(events: Events, z: FloatArray, s: Settings) -> Blocks | None:
    """Statistics of the held-out events alone."""
    if not events.held.any():
        return None
    from consilience.latent_regression.kernels.latent_class import blocks_of

    root = np.where(events.root > 0, events.root, 1.0)
    rows = z / root[:, None]
    return blocks_of(
        np.ascontiguousarray(events.design(rows, s.fit_intercept)),
        np.where(events.held, rows[:, -1], np.nan),
        events.entity,
        events.agent,
        events.root**2,
    )


def _figures(
    message: Conclude,
    events: Events,
    z: FloatArray,
    blocks: Blocks,
    classes: Classes,
    known: FloatArray,
    s: Settings,
    state: State,
    limits: Limits,
) -> WeightedMeans:
    """Means over held-out events of what classes and simpler models lose."""
    held = np.flatnonzero(events.held & (events.root > 0))
    if not len(held):
        return _no_figures()
    rows = z[held] / events.root[held, None]
    x, y = np.ascontiguousarray(events.design(rows, s.fit_intercept)), rows[:, -1]
    weights = known[events.entity[held]]
    means, variances = class_predictions(x, classes)
    mixed = (weights * means).sum(axis=1)
    low, high = mixture_interval(weights, means, variances, s.level)
    ridge = np.asarray(message.ridge.value)
    by_all = x @ ridge
    by_own = by_all + (x * _own_deviations(blocks, ridge, classes)[events.entity[held]]).sum(1)
    unit = float(state["scaling"][1, -1])
    log_mixture = _log_mixture(y, weights, means, variances)
    variance = float(message.ridge_variance.value)
    log_ridge = -0.5 * (np.log(2 * math.pi * variance) + (y - by_all) ** 2 / variance)
    columns = [
        (y - by_all) ** 2 * unit**2,
        (y - by_own) ** 2 * unit**2,
        (y - mixed) ** 2 * unit**2,
        y**2 * unit**2,
        log_ridge - math.log(unit),
        log_mixture - math.log(unit),
        ((y >= low) & (y <= high)).astype(float),
        (high - low) * unit,
        ((y - by_all) ** 2 - (y - mixed) ** 2) * unit**2,
    ]
    # Made-up classes could single out an entity: means are rounded to what any one does to them,
    # and to what its being in its class makes of a response that is not known.
    values, entities = np.column_stack(columns), events.entity[held]
    h = events.root[held] ** 2
    return weighted_means(
        values,
        h[:, None],
        limits=limits,
        entities=entities,
        least=_least_steps(y, y - by_all, h, weights, means, variances, entities, unit),
    )


def _least_steps(
    y: FloatArray,
    rest: FloatArray,
    h: FloatArray,
    weights: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    entities: IntArray,
    unit: float,
) -> FloatArray:
    """What classes of entities do to figures, per half the spread of what ridge leaves of y.

    The classes' predictions, and slopes of their log densities, are compared with those under the
    average weights of all. Without it a figure in which all but one entity are known would tell
    that entity's response, since what it adds is then known to the rounding of the others.
    """
    spread = 0.5 * math.sqrt(float((h * rest**2).sum() / h.sum()))
    common = np.broadcast_to(weights.mean(axis=0), weights.shape)
    felt = np.column_stack(
        [
            ((weights - common) * means).sum(axis=1),
            _slope(y, weights, means, variances) - _slope(y, common, means, variances),
        ]
    )
    moves = by_entity(h[:, None] * np.abs(felt), entities)
    error, score = moves.max(axis=0) * spread / h.sum()
    steps = np.zeros(N_FIGURES)
    steps[[2, 8]], steps[5] = error * unit**2, score
    return steps


def _slope(
    y: FloatArray, weights: FloatArray, means: FloatArray, variances: FloatArray
) -> FloatArray:
    """Derivative of the log density of a normal mixture in y."""
    log_parts = np.log(np.maximum(weights, np.finfo(float).tiny)) - 0.5 * np.log(variances)
    log_parts = log_parts - 0.5 * (y[:, None] - means) ** 2 / variances
    parts = np.exp(log_parts - log_parts.max(axis=1, keepdims=True))
    slopes = parts * (means - y[:, None]) / variances
    return np.asarray(slopes.sum(axis=1) / parts.sum(axis=1))


def _no_figures() -> WeightedMeans:
    gaps = aggregate(np.full((0, N_FIGURES), np.nan)).withhold(np.ones(N_FIGURES, dtype=bool))
    return WeightedMeans(gaps, gaps, gaps)


def _own_deviations(blocks: Blocks, ridge: FloatArray, classes: Classes) -> FloatArray:
    """A ridge regression for every entity alone, towards the regression of all, (E, F)."""
    penalty = classes.sigma2 / classes.delta2 * np.eye(len(ridge))
    rest = blocks.cross - blocks.products @ ridge
    return np.asarray(np.linalg.solve(blocks.products + penalty, rest[:, :, None])[:, :, 0])


def _log_mixture(
    y: FloatArray, weights: FloatArray, means: FloatArray, variances: FloatArray
) -> FloatArray:
    """Log density of a normal mixture at each y."""
    away = (y[:, None] - means) ** 2 / variances
    log_parts = -0.5 * (np.log(2 * math.pi * variances) + away)
    log_parts = log_parts + np.log(np.maximum(weights, np.finfo(float).tiny))
    top = log_parts.max(axis=1)
    return np.asarray(top + np.log(np.exp(log_parts - top[:, None]).sum(axis=1)))


def _write(
    message: Conclude,
    data: SiteData,
    events: Events,
    final: FloatArray,
    classes: Classes,
    s: Settings,
    state: State,
    site: SiteContext,
) -> None:
    """Labels by row, a table by entity, and the predictor."""
    label = np.argmax(final, axis=1)
    chance = final[np.arange(len(label)), label]
    site.output("class", label[events.entity] + 1)
    site.output("class_probability", chance[events.entity])
    agents = np.array(events.agent_names)
    site.table(
        "classes",
        {
            "agent": agents[events.agent_of],
            "entity": np.array(events.entity_names),
            "class": label + 1,
            "probability": chance,
            "events": np.bincount(events.entity, minlength=events.n_entities),
        },
    )
    counts = np.zeros((len(agents), classes.n_classes))
    np.add.at(counts, events.agent_of, final)
    site.output(
        "predictor",
        LatentClassPredictor(
            message.mean.value,
            message.covariance.value,
            sigma2=classes.sigma2,
            base=message.base.value,
            beta=message.beta,
            units=_units(data, s, state),
            agents=agents,
            agent_counts=counts,
            entities=np.array(events.entity_names),
            entity_agents=events.agent_of,
            probabilities=final,
            feature_names=data.feature_names,
        ),
    )


def _units(data: SiteData, s: Settings, state: State) -> Units:
    """Units of the columns as they were read and encoded, scaling of the preparation included."""
    centre, scale = (np.asarray(row[:-1]) for row in state["scaling"])
    if data.scaling is not None:
        centre, scale = data.scaling[1] + centre * data.scaling[2], scale * data.scaling[2]
    return Units(
        centre,
        scale,
        float(state["scaling"][0, -1]),
        float(state["scaling"][1, -1]),
        s.fit_intercept,
    )
