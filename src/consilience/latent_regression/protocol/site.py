"""What a site does: draw labels of its entities, send class sums, judge held-out events.

The labels never leave. What leaves are sums over the classes in which entities are *counted*, see
``events``.

At the end it says who belongs where, and keeps a predictor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError, ProtocolError
from consilience.latent_regression.estimators.latent_class_predictor import (
    LatentClassPredictor,
    Units,
)
from consilience.latent_regression.kernels import prediction, sampling
from consilience.latent_regression.kernels.evidence import like_classes, own_predictions
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Classes,
    Totals,
    block_log_likelihood,
    classes_of,
    draw_uniform,
)
from consilience.latent_regression.kernels.marginal_likelihood import concentration_log_likelihood
from consilience.latent_regression.protocol.events import (
    TURN,
    UNSEEN,
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
    N_CURVED,
    N_FIGURES,
    Begin,
    Conclude,
    Concluded,
    Curve,
    Curved,
    Kept,
    Offer,
    Offered,
    Round,
    Settings,
    Sums,
    unpacked,
)
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.protocol.phases import secure_sums
from consilience.protocol.phases.moments import MOST
from consilience.wire.digits import by_entity
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

SERIES = "class-sums"
_AFTER_LABELS = 1 << 32
"""Draws of turns, beside those of labels at the same agent and round."""
_DIGITS = 1e-11
NO_SHARE = 1e-290
"""Share of the classes that have been merged away, and are not drawn again."""
_TINY = np.finfo(float).tiny
_WIDEST = 1e12
"""Of the variance between entities over that of the noise, per mean square of a column."""
_NEEDED = ("settings", "rows", "seeds", "events", "scaling")
"""Of the state, what every later step needs."""


@dataclass(frozen=True, eq=False)
class _Here:
    """A site's events in the units of the classes."""

    s: Settings
    events: Events
    z: FloatArray
    site: SiteContext

    @property
    def limits(self) -> Limits:
        """What the policy asks for."""
        return self.site.limits

    @property
    def protected(self) -> bool:
        """Whether the site protects records."""
        return self.limits.min_records > 1

    @property
    def hidden(self) -> bool:
        """Whether nothing may hang on a single entity openly: masks hide sites of one, too."""
        return self.protected or secure_sums.KEYS in self.site.keys

    @cached_property
    def tells_squares(self) -> bool:
        """Whether sums with squares may leave, and what a curve from them is worth here."""
        granted = self.site.per_record and secure_sums.KEYS not in self.site.keys
        return granted and self.events.curve_may_leave(self.z, self.limits)

    def nobody(self) -> IntArray:
        """No class for any entity."""
        return np.full(self.events.n_entities, -1, dtype=np.int64)

    def sums(self, counted: IntArray, marks: FloatArray) -> Released:
        """Sums by class over the events that have a weight and are not held out."""
        events = self.events
        return class_sums(
            self.z,
            cells=np.where(events.used, counted[events.entity], -1),
            n_cells=self.s.n_cells,
            entities=events.entity,
            blocks=events.agent,
            marks=marks,
            judged=events.judged if self.protected else None,
            series=SERIES,
        )

    def unsafe(self, sums: Released) -> BoolArray:
        """Classes of which some cell may not leave."""
        found = sums.evidence
        if found is None or found.members is None or not self.protected:
            return np.zeros(len(sums.value), dtype=bool)
        cells = found.small(self.limits) | found.dominated(self.limits)
        size = np.bincount(found.members[found.members >= 0], minlength=len(sums.value))
        few = (size > 0) & (size < 2 * self.z.shape[1])
        return np.asarray(cells.any(axis=1) | few)

    def mean(self, value: float | None, n_entities: int) -> Released:
        """A mean over entities, to one of them where records are protected.

        Elsewhere to so many digits that the sum over sites does not depend on who is where.
        """
        n = 0 if value is None else n_entities
        step = 1.0 / max(n, 1) if self.protected else _DIGITS
        return rounded(float("nan") if value is None else value, n_records=n, step=step)


def tally(message: Round, data: SiteData, limits: Limits) -> dict[str, tuple[int, int]]:
    """Rounds are counted over a run, those whose replies were lost included."""
    return {"rounds": (1, MAX_ROUNDS)} if limits.min_records > 1 else {}


def _here(
    s: Settings, data: SiteData, state: State, site: SiteContext, scaling: FloatArray | None = None
) -> _Here:
    """The site's events in the units of the classes, which the beginning gives."""
    if plain(s) != state.get("settings"):
        raise ProtocolError("the settings changed during the run")
    if digest_of(data) != state["rows"]:
        raise ProtocolError("the columns were prepared in another way during the run")
    if scaling is None and "answers" not in state:
        raise ProtocolError("a round was asked before the beginning")
    events = events_of(data, s, site, state["seeds"])
    scaling = state["scaling"] if scaling is None else scaling
    return _Here(s, events, events.scaled(*scaling), site)


# --------------------------------------------------------------------------- offer


@step("offer", once=True, summed=True)
def offer(message: Offer, data: SiteData, state: State, site: SiteContext) -> tuple[Offered, State]:
    """Tell the moments of all events in the sums, or nothing where they rest on too little."""
    s = message.settings
    if s.holdout > 0 and secure_sums.KEYS in site.keys and state.get("holds") != plain(s):
        # Before any look at the rows. Where others hold none out, the totals of two runs, one of
        # them without held-out events, would differ by this site's own.
        sentence = "the study holds events out, and this site did not say that it could"
        raise ProtocolError.shared(sentence)
    events = events_of(data, s, site, state.get("seeds"))
    here = _Here(s, events, events.z, site)
    marks = np.zeros((len(events.z), 2))
    for column, codes in enumerate((events.entity, events.agent)):
        marks[events.first_of(codes), column] = 1.0
    sums = here.sums(np.zeros(events.n_entities, dtype=np.int64), marks)
    everybody = np.flatnonzero(events.counted)
    # `unsafe` is of the units that the gate sees.
    few = here.protected and not events.enough(here.limits)(everybody)
    if few or here.unsafe(sums).any():
        of_all = np.zeros(np.shape(sums.value), dtype=bool)
        of_all[0] = True  # the other classes are empty
        sums = sums.withhold(of_all)
    kept = {"settings": plain(s), "rows": digest_of(data), "seeds": events.seeds}
    return Offered(sums=sums), {**kept, "events": float(sums.value[0, 0])}


# --------------------------------------------------------------------------- begin


@step("begin", once=True)
def begin(message: Begin, data: SiteData, state: State, site: SiteContext) -> tuple[Sums, State]:
    """Put every entity into a class, and tell the sums."""
    scaling = np.stack([message.centre.value, message.scale.value])
    if scaling.shape[1] != data.features.shape[1] + 1 or not (scaling[1] > 0).all():
        raise ProtocolError("centres and scales are none of the study's columns")
    if (np.abs(scaling) > MOST).any() or (scaling[1] < 1 / MOST).any():
        # Whether all events are numbers in such units is a question about the largest of them.
        raise ProtocolError(f"columns are moved and scaled by at most {MOST:g}")
    here = _here(message.settings, data, state, site, scaling)
    events, s = here.events, here.s
    if s.start == "local":
        try:
            labels = _own_classes(here)
        except DataError:
            if not here.hidden:
                raise
            labels = np.zeros(events.n_entities, dtype=np.int64)  # as in `_drawn`
    else:
        place = np.arange(events.n_entities) - np.searchsorted(events.agent_of, events.agent_of)
        u = draw_uniform(events.keys[events.agent_of], 0, place)
        labels = np.minimum((u * s.n_cells).astype(np.int64), s.n_cells - 1)
    own = np.zeros((events.n_entities, s.n_cells))
    reply, kept = _reply(here, labels, own, here.nobody(), site)
    return reply, {**state, "scaling": scaling, "answers": [kept]}


def _own_classes(here: _Here) -> IntArray:
    """Classes of a fit to the site's own events."""
    from consilience.latent_regression.estimators.latent_class_fit import Settings as FitSettings
    from consilience.latent_regression.estimators.latent_class_fit import fit_classes

    events, counted = here.events, here.events.counted
    least = max(here.limits.min_records, 2 * here.z.shape[1]) if here.protected else 1
    room = min(
        here.s.n_cells,
        int((counted > 0).sum()) // (2 * here.limits.min_entities),
        int(counted.sum()) // (2 * least),
    )
    if room <= 1 or events.n_entities == 1:
        return np.zeros(events.n_entities, dtype=np.int64)
    settings = FitSettings(n_classes=room, n_start=min(2 * room, events.n_entities))
    seed, blocks = int(events.keys[0] >> np.uint64(1)), events.blocks(here.z, here.s)
    fitted = fit_classes(blocks, settings, seed, keys=events.keys)
    return np.asarray(np.argmax(fitted.probabilities, axis=1), dtype=np.int64)


# --------------------------------------------------------------------------- rounds


def _reply(
    here: _Here,
    labels: IntArray,
    own: FloatArray,
    before: IntArray,
    site: SiteContext,
    message: Round | None = None,
    probabilities: FloatArray | None = None,
    moved: float | None = None,
) -> tuple[Sums, State]:
    """Sums that may leave, and what the site keeps of this round."""
    events, n_cells, counted = here.events, here.s.n_cells, here.events.counted
    round_number = 0 if message is None else message.round
    enough = events.enough(here.limits) if here.protected else None
    wanted = labels
    if enough is not None and probabilities is not None:
        place = np.arange(events.n_entities) + _AFTER_LABELS
        turn = draw_uniform(events.keys[events.agent_of], round_number, place) < TURN
        wanted = worth_moving(before, labels, probabilities, np.asarray(turn))
    # Entities that no release of this run tells apart, by number; 0 for those in none. The gate
    # knows of replies that were lost on the way, the state that a question follows does not.
    histories = np.zeros(events.n_entities, dtype=np.int64)
    if SERIES in site.series:
        used = np.flatnonzero(events.used)
        histories[events.entity[used]] = np.asarray(site.series[SERIES]["groups"])[used]
    unseen = enough is not None and (histories[counted > 0] == UNSEEN).any()
    many = events.many(here.limits) if unseen else None
    released = next_released(wanted, histories, counted, enough, many)
    while True:
        sums = here.sums(released, events.marks(_tables(here, released, message)))
        unsafe = here.unsafe(sums)
        if not unsafe.any():
            break
        released = np.where((released >= 0) & unsafe[released], -1, released)
    withheld = withheld_classes(wanted, released, counted, enough)
    if enough is not None and moved is not None:
        # A share of all labels would count single entities beyond lines that somebody drew.
        moved = moved_share(released, before)
    least = here.limits.min_records
    n_entities = events.n_entities if events.n_entities >= least else 0
    # mean log-likelihood of the released labels by value of beta, where it is asked
    fit: list[Released] = []
    if message is not None and message.betas:
        n = int(((released >= 0) & (counted > 0)).sum())
        n = n if n >= least else 0
        counts, base = _agent_counts(here, released), np.asarray(message.base.value)
        found = concentration_log_likelihood(counts, base, np.array(message.betas)) / max(n, 1)
        fit = [here.mean(float(f), n) for f in found]
    reply = Sums(
        sums=sums,
        status=status_of(released, before, withheld, n_cells),
        moved=here.mean(moved, n_entities),
        fit=bundle(tuple(fit)),
    )
    return reply, {"round": round_number, "labels": labels, "released": released, "own": own}


@step("round", tally=tally)
def round_(message: Round, data: SiteData, state: State, site: SiteContext) -> tuple[Sums, State]:
    """Draw labels with the classes of all sites, each entity without its own part in them."""
    here = _here(message.settings, data, state, site)
    totals = unpacked(message.totals.value, here.events.n_features, here.s.fit_intercept)
    _check_round(message, here.s)
    labels, own, before = _where_we_stand(message, state, here)
    drawn, probabilities = _drawn(message, here, totals, labels, own)
    were = labels >= 0
    # With its sign: at small sites it is noise around 0, which the coordinator averages.
    moved = float(((drawn != labels) & were).sum()) - sampling.expected_moves(probabilities[were])
    moved /= max(int(were.sum()), 1)
    reply, answer = _reply(here, drawn, own, before, site, message, probabilities, moved)
    used = [a for a in state["answers"] if a["round"] == message.used]
    kept = {name: state[name] for name in _NEEDED}
    kept["answers"] = [*used, answer]
    if message.keep:
        # No classes are merged any more: `mapping` is that of the reply in use, maybe an old one.
        kept["sum"] = state.get("sum", 0.0) + probabilities
        kept["n_kept"] = int(state.get("n_kept", 0)) + 1
    return reply, kept


def _drawn(
    message: Round, here: _Here, totals: Totals, labels: IntArray, own: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Labels and their probabilities."""
    n_cells, exact = here.s.n_cells, here.s.concentration == "exact"
    base, variances = message.base.value, (message.sigma2.value, message.delta2.value)
    classes = classes_of(totals, *map(float, variances))
    # The shortcut gives every class a share: only those that have not been merged away.
    live = np.arange(n_cells) if exact else np.flatnonzero(base > NO_SHARE)
    place = np.full(n_cells + 1, -1, dtype=np.int64)
    place[live] = np.arange(len(live))
    probabilities = np.zeros((here.events.n_entities, n_cells))
    try:
        drawn, found, _ = sampling.draw_labels(
            here.events.blocks(here.z, here.s),
            classes if exact else classes_of(totals.take(live), classes.sigma2, classes.delta2),
            place[labels],
            own[:, live],
            np.asarray(base) if exact else None,
            message.beta,
            here.events.keys,
            message.round,
            shortcut_counts=None if exact else totals.counts[live],
            alpha=message.alpha,
        )
    except DataError:
        if not here.hidden:
            raise
        # Under made-up classes one entity may have no likelihood: a refusal would say that there
        # is such a one.
        return labels, np.full_like(probabilities, 1.0 / n_cells)
    probabilities[:, live] = found
    return live[drawn], probabilities


def _check_round(message: Round, s: Settings) -> None:
    if len(message.totals.value) != s.n_cells or len(message.base.value) != s.n_cells:
        raise ProtocolError("the classes of a round are as many as in the beginning")
    mapping = np.asarray(message.mapping)
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
    message: Round, state: State, here: _Here
) -> tuple[IntArray, FloatArray, IntArray]:
    """Labels, the entities' own weights in the totals, and the classes that were released last.

    The totals hold the reply of round `used`, faded by what came after it; a later reply of this
    site that was lost is in none of them.
    """
    answers, mapping = state["answers"], np.asarray(message.mapping)
    released = answers[-1]["released"]
    used = next((a for a in answers if a["round"] == message.used), None)
    merged = np.zeros((here.events.n_entities, here.s.n_cells))
    if used is None:
        return here.nobody(), merged, released

    def relabelled(labels: IntArray) -> IntArray:
        return np.where(labels >= 0, mapping[np.maximum(labels, 0)], -1)

    own = sampling.own_weights(used["own"], used["released"], message.decay, message.weight)
    # columns of classes that have become one are added up
    np.add.at(merged.T, mapping, own.T)
    if answers[-1] is used:
        released = relabelled(released)
    elif (mapping != np.arange(here.s.n_cells)).any():
        # Merged before or after the lost reply: its classes may be those of now, or not.
        released = here.nobody()
    return relabelled(used["labels"]), merged, released


def _agent_counts(here: _Here, released: IntArray) -> FloatArray:
    """Entities by agent and class, as they are counted in what was released."""
    counts = np.zeros((len(here.events.agent_names), here.s.n_cells))
    used = (released >= 0) & (here.events.counted > 0)
    np.add.at(counts, (here.events.agent_of[used], released[used]), 1.0)
    return counts


def _tables(here: _Here, released: IntArray, message: Round | None) -> BoolArray:
    """Which entities open a table of their agent (their number is what is drawn)."""
    events = here.events
    opened = np.zeros(events.n_entities, dtype=bool)
    if message is None:
        return opened
    counts = _agent_counts(here, released).astype(np.int64)
    tables = sampling.table_counts(
        counts, message.beta, message.base.value, events.keys, message.round
    ).ravel()
    used = np.flatnonzero((released >= 0) & (events.counted > 0))
    code = events.agent_of[used] * here.s.n_cells + released[used]
    order = np.argsort(code, kind="stable")
    sorted_code = code[order]
    # place of each entity within its agent and class
    rank = np.arange(len(order)) - np.searchsorted(sorted_code, sorted_code)
    opened[used[order]] = rank < tables[sorted_code]
    return opened


# --------------------------------------------------------------------------- conclude


@step("curve", once=True)
def curve(message: Curve, data: SiteData, state: State, site: SiteContext) -> tuple[Curved, State]:
    """Tell the moments of all events in the sums with squares of the features, or nothing."""
    here = _here(message.settings, data, state, site)
    events = here.events
    tells = here.tells_squares
    rows = events.curved(here.z) if tells else np.zeros((len(here.z), 2 * events.n_features + 2))
    sums = class_sums(
        rows,
        cells=np.where(events.used, 0, -1),
        n_cells=1,
        entities=events.entity,
        blocks=events.agent,
        judged=events.centred(rows) if here.protected else None,
    )
    if not tells:
        sums = sums.withhold(np.ones(np.shape(sums.value), dtype=bool))
    return Curved(sums=sums), state


@step("conclude", once=True)
def conclude(
    message: Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[Concluded, State]:
    """Keep classes and predictor at the site; tell what they are worth on held-out events."""
    here = _here(message.settings, data, state, site)
    events, scaling = here.events, state["scaling"]
    classes = _classes(message, events.n_features + int(here.s.fit_intercept), here.s.n_cells)
    blocks = events.blocks(here.z, here.s)
    # Label probabilities from the events in the sums: averaged over rounds, if all have one.
    known = np.zeros((events.n_entities, classes.n_classes))
    target = np.asarray(message.mapping)
    for cell in np.flatnonzero(target >= 0) if "n_kept" in state else ():
        known[:, target[cell]] += np.asarray(state["sum"])[:, cell] / state["n_kept"]
    total = known.sum(axis=1, keepdims=True)
    # Judged by the entities' own events alone, as the mixed model is: agents that differ by degrees
    # would else make classes look better than it.
    log_prior = np.log(np.maximum(message.base.value, _TINY))
    everyone = np.broadcast_to(log_prior, known.shape)
    alone = prediction.posterior_weights(everyone, _log_likelihood(blocks, classes, here))
    known = known / total if (total > 0).all() else alone
    try:
        figures = _figures(message, here, blocks, classes, alone, float(scaling[1, -1]))
    except (DataError, np.linalg.LinAlgError):
        if not here.hidden:
            raise
        figures = _no_figures(here)
    _keep(message, here, data, scaling, classes, known)
    reply = Concluded(figures=figures.mean, variances=figures.variance, effective=figures.effective)
    return reply, {name: state[name] for name in _NEEDED}


@step("keep", once=True)
def keep(message: Conclude, data: SiteData, state: State, site: SiteContext) -> tuple[Kept, State]:
    """Keep one class in the place of the judged ones, and tell nothing of it."""
    here = _here(message.settings, data, state, site, state.get("scaling"))
    classes = _classes(message, here.events.n_features + here.s.fit_intercept, here.s.n_cells)
    if classes.n_classes != 1:
        raise ProtocolError("classes that were not judged are kept where they are one")
    everyone = np.ones((here.events.n_entities, 1))
    _keep(message, here, data, state["scaling"], classes, everyone)
    return Kept(), {}


def _keep(
    message: Conclude,
    here: _Here,
    data: SiteData,
    scaling: FloatArray,
    classes: Classes,
    known: FloatArray,
) -> None:
    """Keep labels and predictor at the site; (E, K) probabilities are of events in the sums."""
    events, site = here.events, here.site
    # What stays here may use the held-out events too: they tell more of their entities.
    final = known
    if events.held.any():
        held = events.blocks(here.z, here.s, ~events.held)
        log_known = np.log(np.maximum(known, _TINY))
        final = prediction.posterior_weights(log_known, _log_likelihood(held, classes, here))

    # labels by row, a table by entity, and the predictor
    label = np.argmax(final, axis=1)
    probability = final[np.arange(len(label)), label]
    site.output("class", label[events.entity] + 1)
    site.output("class_probability", probability[events.entity])
    agents, entities = np.array(events.agent_names), np.array(events.entity_names)
    table = {
        "agent": agents[events.agent_of],
        "entity": entities,
        "class": label + 1,
        "probability": probability,
        "events": np.bincount(events.entity, minlength=events.n_entities),
    }
    site.table("classes", table)
    counts = np.zeros((len(agents), classes.n_classes))
    np.add.at(counts, events.agent_of, final)
    # Units of the columns as they were read and encoded, scaling of the preparation included.
    predictor = LatentClassPredictor(
        message.mean.value,
        message.covariance.value,
        sigma2=classes.sigma2,
        base=message.base.value,
        beta=message.beta,
        units=Units.of(scaling[0], scaling[1], here.s.fit_intercept, data.scaling),
        agents=agents,
        agent_counts=counts,
        entities=entities,
        entity_agents=events.agent_of,
        probabilities=final,
        feature_names=data.feature_names,
    )
    site.output("predictor", predictor)


def _classes(message: Conclude, n_design: int, n_cells: int) -> Classes:
    """The classes as a posterior of their coefficients."""
    mean, covariance = np.asarray(message.mean.value), np.asarray(message.covariance.value)
    if mean.shape[1] != n_design:
        raise ProtocolError("the classes have other columns than the study")
    target = np.asarray(message.mapping)
    if target.shape != (n_cells,) or ((target < -1) | (target >= len(mean))).any():
        raise ProtocolError("cells of the rounds become classes that do not exist")
    return Classes.of(mean, covariance, float(message.sigma2.value), float(message.delta2.value))


def _log_likelihood(blocks: Blocks, classes: Classes, here: _Here) -> FloatArray:
    """Log-likelihood of each entity's events under each class.

    Under made-up classes one entity may have none. A refusal would say that there is such a one,
    and could be asked for again; so at protected sites the events then tell nothing.
    """
    try:
        return block_log_likelihood(blocks, classes)
    except DataError:
        if not here.hidden:
            raise
        return np.zeros((blocks.n_entities, classes.n_classes))


def _figures(
    message: Conclude, here: _Here, blocks: Blocks, classes: Classes, known: FloatArray, unit: float
) -> WeightedMeans:
    """Means over held-out events of what classes and simpler models lose."""
    events = here.events
    held = np.flatnonzero(events.held & (events.root > 0))
    if not len(held):
        return _no_figures(here)
    rows, entities = here.z[held] / events.root[held, None], events.entity[held]
    x, y = np.ascontiguousarray(events.design(rows, here.s.fit_intercept)), rows[:, -1]
    mixture = _Mixture(known[entities], *prediction.class_predictions(x, classes))
    # mean of the mixture over the classes of the entity
    mixed = (mixture.weights * mixture.means).sum(axis=1)
    low, high = prediction.mixture_interval(*mixture, here.s.level)
    ridge, variance = np.asarray(message.ridge.value), float(message.ridge_variance.value)
    by_all = x @ ridge
    # degrees: own coefficients of every entity, normal with the moments of the classes
    sigma2 = float(classes.sigma2)
    shares = np.maximum(message.base.value, _TINY)
    degrees = like_classes(classes.mean, shares, sigma2, float(classes.delta2))
    # Rounding of one entity's numbers is all that is left of a spread as wide as none by rounds:
    # beside it nothing is told. It is a matter of the question and of sums that the offer tells.
    squares = np.diagonal(blocks.products, axis1=1, axis2=2).sum(axis=0) / blocks.n.sum()
    made_up = float((np.diagonal(degrees[1]) * squares).max()) > _WIDEST
    if made_up:
        degrees = degrees[0], np.zeros_like(degrees[1])
    by_own, spread = own_predictions(*degrees, sigma2, blocks, x, entities)
    curve = np.asarray(message.curve.value)
    if len(curve) != len(ridge) + events.n_features:
        raise ProtocolError("the curve has other columns than the study")

    def log_normal(mean: FloatArray, variance: FloatArray | float) -> FloatArray:
        return np.asarray(-0.5 * (np.log(2 * math.pi * variance) + (y - mean) ** 2 / variance))

    log_classes, log_own = mixture.log_density(y), log_normal(by_own, spread)
    beside = []
    # A made-up curve picks out values, as sums with squares do: one goes with the other.
    if here.tells_squares:
        bent, around = events.curved(here.z), float(message.curve_variance.value)
        wide = np.ascontiguousarray(events.design(events.plain(bent)[held], here.s.fit_intercept))
        # own coefficients have the classes' covariance; the noise is what either of both leaves
        along, noise = wide @ curve, min(around, sigma2)
        ratio = np.zeros((len(curve), len(curve)))
        ratio[: len(ridge), : len(ridge)] = degrees[1] * sigma2 / noise
        about = own_predictions(curve, ratio, noise, events.blocks(bent, here.s), wide, entities)
        beside = [
            ((y - along) ** 2 - (y - mixed) ** 2) * unit**2,
            log_classes - log_normal(along, around),
            ((y - about[0]) ** 2 - (y - mixed) ** 2) * unit**2,
            log_classes - log_normal(*about),
        ]
    columns = [
        (y - by_all) ** 2 * unit**2,
        (y - by_own) ** 2 * unit**2,
        (y - mixed) ** 2 * unit**2,
        y**2 * unit**2,
        log_normal(by_all, variance) - math.log(unit),
        log_own - math.log(unit),
        log_classes - math.log(unit),
        ((y >= low) & (y <= high)).astype(float),
        (high - low) * unit,
        ((y - by_all) ** 2 - (y - mixed) ** 2) * unit**2,
        log_classes - log_own,
        *beside,
    ]
    # Made-up classes could single out an entity: means are rounded to what any one does to them,
    # and to what its being in its class makes of a response that is not known.
    # So the classes' predictions, and slopes of their log densities, are compared with those under
    # the average weights of all, per half the spread of what ridge leaves of y. Without it a figure
    # in which all but one entity are known would tell that entity's response, since what it adds is
    # then known to the rounding of the others.
    h = events.root[held] ** 2
    half = 0.5 * math.sqrt(float((h * (y - by_all) ** 2).sum() / h.sum()))
    weights = mixture.weights
    common = mixture._replace(weights=np.broadcast_to(weights.mean(axis=0), weights.shape))
    moved = ((weights - common.weights) * mixture.means).sum(axis=1)
    felt = np.column_stack([moved, mixture.slope(y) - common.slope(y)])
    error, score = by_entity(h[:, None] * np.abs(felt), entities).max(axis=0) * half / h.sum()
    steps = np.zeros(N_FIGURES + N_CURVED)
    steps[[2, 9, 11, 13]], steps[[6, 10, 12, 14]] = error * unit**2, score
    found = weighted_means(
        np.column_stack(columns),
        h[:, None],
        limits=here.limits,
        entities=entities,
        least=steps[: len(columns)],
    )
    silent = np.zeros(N_FIGURES + N_CURVED, dtype=bool)
    silent[[1, 5, 10, 13, 14]] = made_up
    silent = silent[: len(columns)]
    # the events of one entity deviate from their own mean by nothing, taken together
    alone = silent | (entities.min() == entities.max())
    return WeightedMeans(
        found.mean.withhold(silent),
        found.variance.withhold(alone),
        found.effective.withhold(silent),
    )


class _Mixture(NamedTuple):
    """Normal mixtures, one a row: weights, means and variances of its classes, (n, K)."""

    weights: FloatArray
    means: FloatArray
    variances: FloatArray

    def log_density(self, y: FloatArray) -> FloatArray:
        """Log density at each y."""
        away = (y[:, None] - self.means) ** 2 / self.variances
        log_parts = -0.5 * (np.log(2 * math.pi * self.variances) + away)
        log_parts = log_parts + np.log(np.maximum(self.weights, _TINY))
        top = log_parts.max(axis=1)
        return np.asarray(top + np.log(np.exp(log_parts - top[:, None]).sum(axis=1)))

    def slope(self, y: FloatArray) -> FloatArray:
        """Derivative of the log density in y."""
        log_parts = np.log(np.maximum(self.weights, _TINY)) - 0.5 * np.log(self.variances)
        log_parts = log_parts - 0.5 * (y[:, None] - self.means) ** 2 / self.variances
        parts = np.exp(log_parts - log_parts.max(axis=1, keepdims=True))
        slopes = parts * (self.means - y[:, None]) / self.variances
        return np.asarray(slopes.sum(axis=1) / parts.sum(axis=1))


def _no_figures(here: _Here) -> WeightedMeans:
    n = N_FIGURES + N_CURVED * here.tells_squares
    gaps = aggregate(np.full((0, n), np.nan)).withhold(np.ones(n, dtype=bool))
    return WeightedMeans(gaps, gaps, gaps)
