"""What a site does: draw labels of its entities, send class sums, judge held-out events.

The labels never leave. What leaves are sums over the classes in which entities are *counted*, see
``memberships``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ProtocolError
from consilience.latent_regression.kernels.latent_class import (
    Classes,
    Totals,
    classes_of,
    draw_uniform,
)
from consilience.latent_regression.kernels.latent_class_model import (
    concentration_log_likelihood,
)
from consilience.latent_regression.kernels.latent_class_rounds import expected_moves, own_weights
from consilience.latent_regression.kernels.latent_class_sampling import draw_labels, table_counts
from consilience.latent_regression.protocol.closing import conclude_at_site
from consilience.latent_regression.protocol.memberships import (
    TURN,
    moved_share,
    next_released,
    status_of,
    withheld_classes,
    worth_moving,
)
from consilience.latent_regression.protocol.messages import (
    MAX_BETAS,
    MAX_ROUNDS,
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
from consilience.latent_regression.protocol.rows import Events, digest_of, events_of
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import Limits, Released, bundle, class_sums, rounded

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
