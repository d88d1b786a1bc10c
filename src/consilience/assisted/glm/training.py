"""Steps of the training: the initiator and its partners take turns at one linear predictor."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.assisted import phases
from consilience.assisted.glm import messages
from consilience.assisted.glm.messages import GAP, SPAN, Settings
from consilience.assisted.kernels import glm
from consilience.assisted.kernels.joint_glm import Alternation, SpanModel, local_errors
from consilience.assisted.kernels.local_fits import Partner, working_weights
from consilience.assisted.kernels.mechanisms import Kept, RandomizedResponse, opendp
from consilience.assisted.phases import NOTHING, OwnColumns, may_release
from consilience.exceptions import DataError, DisclosureError, ProtocolError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.protocol.phases.holdout import held_out
from consilience.wire import disclosure
from consilience.wire.disclosure import Released, addressed, model, per_record

# --- Models that stay in this process between the steps of a run, so as not to build them anew.
#
# A model stands for the state that it was left with and for nothing else: a step gets it only with
# the very same rows, inputs and state, byte for byte, and otherwise builds one from the state, with
# the same results. Nothing here needs to survive, and nothing outlives the rows of its run.


class Model(Protocol):
    """What can be kept: its state is all that its answers depend on."""

    def to_state(self) -> Mapping[str, Any]:
        """Arrays from which the model goes on."""


M = TypeVar("M", bound=Model)
_LEFT: WeakKeyDictionary[SiteData, tuple[Any, Model]] = WeakKeyDictionary()


def cached_model(data: SiteData, inputs: State, state: State | None, build: Callable[[], M]) -> M:
    """Model of a state: the one that was left with it here, or else a new one.

    It is taken out: a step that fails leaves nothing behind.

    Parameters
    ----------
    data : SiteData
        The very rows, in this process.
    inputs : mapping
        Everything else that the model is built from.
    state : mapping or None
        As ``to_state`` gave it.
    build : callable
        Makes a model of the same rows, inputs and state.
    """
    left = _LEFT.pop(data, None)
    if left is not None and state is not None:
        known, kept = left
        if same(known, inputs) and same(kept.to_state(), state):
            return kept  # type: ignore[return-value]
    return build()


def leave(data: SiteData, inputs: State, kept: Model) -> None:
    """Leave a model for the next step of the run."""
    _LEFT[data] = (inputs, kept)


def forget(data: SiteData) -> None:
    """Leave nothing: no step of the run needs a model any more."""
    _LEFT.pop(data, None)


def same(one: Any, other: Any) -> bool:
    """Whether two nests hold the same numbers, bit for bit."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype == np.float64:  # the bits: NaN is itself, and 0.0 is not -0.0
            one, other = one.view(np.int64), other.view(np.int64)
        return bool(np.array_equal(one, other))
    return type(one) is type(other) and bool(one == other)


_ROWS: WeakKeyDictionary[SiteData, tuple[Any, Rows]] = WeakKeyDictionary()


def empty_for(site: str) -> Released:
    """Nothing, for one site's eyes."""
    return addressed(per_record(NOTHING), site)


def none_for(site: str) -> Released:
    """No columns, for one site's eyes."""
    return addressed(per_record(np.empty((0, 0))), site)


def summary_for(content: Any, data: SiteData, site: str) -> Released:
    """Parameters of the joint fit, for one site's eyes."""
    return addressed(model(content, kind="summary", n_records=data.n_rows), site)


def require_sender(site: SiteContext, field: str, name: str) -> None:
    """Check that a site's value was sealed by the site that the coordinator says.

    Raises
    ------
    ProtocolError
    """
    if site.senders.get(field, (name,)) != (name,):
        sentence = f"field {field!r} is not from the site that it is said to be from"
        raise ProtocolError.shared(sentence)


def require_role(site: SiteContext, role: str) -> None:
    """Check that this site is asked for its own part of the exchange; raise `ProtocolError`."""
    if site.role(site.site) != role:
        raise ProtocolError.shared(f"a step of the {role} was asked of another site")


def settings_of(message: Any, site: SiteContext, role: str, *sealed: str) -> Settings:
    """Settings of a request to a site of some role; fields that the initiator must have sealed.

    Raises
    ------
    ProtocolError
    """
    require_role(site, role)
    s: Settings = message.settings
    for field in sealed:
        require_sender(site, field, s.initiator)
    return s


def may_know(s: Settings, site: SiteContext, partner: str) -> bool:
    """Whether a partner may be told what follows from the response, such as its coefficients.

    Whose columns are indicators of rows reads the response off its coefficients. So they go where
    the response itself may go: by the initiator's policy, whatever a coordinator says, or where the
    training is one of a masked response (without one there is no training, see `Joint`).
    """
    return site.share_response or (s.masked and partner in s.told)


def require_consent(s: Settings, site: SiteContext, partner: str) -> None:
    """Check that a partner may be told what follows from the response.

    Raises
    ------
    DisclosureError
    """
    if not may_know(s, site, partner):
        raise DisclosureError.shared(
            "what follows from the response was asked for, and the policy does not share the "
            "response (share_response)",
        )


# --------------------------------------------------------------------------- rows by purpose


@dataclass(frozen=True)
class Rows:
    """Matched rows at the initiator.

    Attributes
    ----------
    y : (n,) array
        True response; 0 where it is not known.
    train, held, new : (n,) bool arrays
    weights : (n,) array
        Case weights.
    offset : (n,) array
        Of the linear predictor; 0 where there is none.
    clusters : (n,) int array or None
    """

    y: FloatArray
    train: BoolArray
    held: BoolArray
    new: BoolArray
    weights: FloatArray
    offset: FloatArray
    clusters: IntArray | None = None

    @property
    def known(self) -> BoolArray:
        """Rows with a response."""
        return np.asarray(self.train | self.held)

    @property
    def held_counts(self) -> FloatArray:
        """What each held-out row counts where people count alike, (h,): each cluster as one."""
        if self.clusters is None:
            return np.ones(int(self.held.sum()))
        of, sizes = np.unique(self.clusters[self.held], return_inverse=True, return_counts=True)[1:]
        return np.asarray(1.0 / sizes[of])

    @property
    def training_weights(self) -> FloatArray:
        """Weights that are 0 outside the training."""
        return np.where(self.train, self.weights, 0.0)


def by_purpose(data: SiteData, s: Settings, site: SiteContext) -> Rows:
    """Split the rows by what they are for, once for the same rows, settings and limits.

    Held-out figures of many splits would be equations in the response, one for each split. So no
    coordinator chooses a split (see ``phases/holdout``). Only a policy that protects no single
    record (``min_records = 1``) leaves it to the public seed.

    Raises
    ------
    DataError
        No target, one that does not fit the family, no variation among the training rows, or too
        few of them.
    """
    asked = (s, site.limits)
    if data in _ROWS and _ROWS[data][0] == asked:
        return _ROWS[data][1]
    y, known = phases.response_of(data, s.true_family())
    places, clusters = np.flatnonzero(known), phases.clusters_of(data)
    held = np.zeros(data.n_rows, dtype=bool)
    if site.limits.min_records == 1:
        drawn = stream(s.split_seed, "holdout").permutation(places)
        # whole clusters: rows of one on both sides would flatter the model
        units = drawn if clusters is None else clusters[drawn]
        _, first, of, sizes = np.unique(
            units, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        within = np.cumsum(sizes[order]) <= round(s.holdout * len(places))
        held[drawn[np.isin(of, order[within])]] = True
    else:
        # Matched rows are in the order of their ids: that of the table, and its format, are nothing
        # to them, so ids and response stand for the table.
        matched = dataclasses.replace(
            data, rows=np.arange(data.n_rows), n_read=0, content_hash="", entity=data.cluster
        )
        cells = np.where(known, 0, -1)
        held[held_out(matched, cells, [s.holdout], site.limits)[0]] = True
    weights = np.ones(data.n_rows) if data.weight is None else np.asarray(data.weight)
    offset = np.zeros(data.n_rows) if data.offset is None else np.asarray(data.offset)
    rows = Rows(y, known & ~held, held, ~known, weights, offset, clusters)
    fault = s.true_family().check(rows.y[rows.train])
    if fault is not None:
        raise DataError.shared(
            f"the response of the training rows does not fit: it must be {fault}"
        )
    if np.ptp(rows.y[rows.train]) == 0:
        raise DataError.shared("the response of the training rows has one value only")
    if clusters is not None and np.ptp(clusters[rows.train]) == 0:
        raise DataError.shared("the training rows are all in one cluster: errors need at least two")
    require_rows(rows.train, data.features.shape[1], s, "initiator")
    _ROWS[data] = (asked, rows)
    return rows


def require_rows(train: BoolArray, rank: int, s: Settings, role: str) -> None:
    """Check that a party's columns leave rows for the rest; a penalty makes up for that.

    Raises
    ------
    DataError
    """
    if not s.alpha and int(train.sum()) < 2 * (rank + 2):
        raise DataError.shared(
            f"the training rows are fewer than twice the {role}'s columns: "
            "set a penalty (alpha), or leave columns out"
        )


# --------------------------------------------------------------------------- the response


def _asked_to_share(message: messages.ShareRequest, site: SiteContext, way: str) -> Settings:
    """Settings of a question for the response, which only some partners get."""
    s = settings_of(message, site, "initiator")
    if s.response != way:
        raise ProtocolError("the response was asked for in another way than the settings say")
    if message.partner not in s.told:
        raise ProtocolError.shared("this partner takes part without a response")
    return s


@step("share")
def share(
    message: messages.ShareRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Shared, State]:
    """Give a partner the response of the training rows, as it is."""
    s = _asked_to_share(message, site, "share")
    rows = by_purpose(data, s, site)
    # what is held out is never sent
    y = np.where(rows.train, rows.y, np.nan)
    to = message.partner
    reply = messages.Shared(
        response=addressed(disclosure.response(y), to),
        weights=_beside(data.weight, to),
        offset=_beside(data.offset, to),
    )
    return reply, _afresh(state, np.where(rows.train, rows.y, 0.0))


def _flips(message: messages.ShareRequest, data: SiteData) -> str:
    """Names the masked response: one flip for each record, whoever asks."""
    # another flip is another draw, and another price
    facts = f"{data.content_hash} {data.target_name!r} {message.settings.flip!r}"
    return "mask " + hashlib.sha256(facts.encode()).hexdigest()


def _price(message: messages.ShareRequest) -> float:
    opendp()
    return RandomizedResponse(message.settings.flip).epsilon


@step("share_masked", price=_price, keeps=_flips)
def share_masked(
    message: messages.ShareRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.MaskedShared, State]:
    """Give a partner the response with each 0 or 1 flipped at random, once for all."""
    s = _asked_to_share(message, site, "masked")
    rows = by_purpose(data, s, site)
    earlier = site.kept or {"rows": np.empty(0, dtype=np.int64), "values": np.empty((0, 1))}
    noise = Kept(
        RandomizedResponse(s.flip),
        data.rows[rows.train],
        np.asarray(earlier["rows"]),
        np.asarray(earlier["values"]),
    )
    flipped = disclosure.noised(rows.y[rows.train][:, None], noise)
    site.keep({"rows": noise.all_rows, "values": noise.all_drawn})
    # A vector over all rows, NaN outside the training, on the same evidence.
    masked = np.full(data.n_rows, np.nan)
    masked[rows.train] = np.ravel(flipped.value)
    to = message.partner
    reply = messages.MaskedShared(
        response=addressed(disclosure.replaced(flipped, masked), to),
        weights=_beside(data.weight, to),
        offset=_beside(data.offset, to),
    )
    return reply, _afresh(state, np.where(rows.train, masked, 0.0))


def _afresh(state: State, y: FloatArray) -> State:
    """State with a response of the training, without what was fitted to another one."""
    return {"y": y} | ({"factor": state["factor"]} if "factor" in state else {})


def _beside(column: FloatArray | None, partner: str) -> Released:
    """What goes with the response, if there is such a column."""
    return empty_for(partner) if column is None else addressed(disclosure.response(column), partner)


@step("receive")
def receive(
    message: messages.ReceiveRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Received, State]:
    """Take the response and get the own columns ready."""
    s = settings_of(message, site, "partner", "response")
    y = np.asarray(message.response.value, dtype=float)
    if y.shape != (data.n_rows,):
        raise DataError.shared("the response has other rows")
    weights = np.asarray(message.weights.value, dtype=float)
    used = np.where(np.isnan(y), 0.0, weights if len(weights) else 1.0)
    offset = np.asarray(message.offset.value, dtype=float)
    offset = offset if len(offset) else np.zeros(data.n_rows)
    if offset.shape != y.shape:
        raise DataError.shared("the offset has other rows")
    own = OwnColumns.of(data)
    own.require_variation()
    y = np.where(np.isnan(y), 0.0, y)
    before = state.get("sent", np.empty((len(own.names), 0)))
    state = {"y": y, "weights": used, "offset": offset, "factor": own.factor}
    none = np.empty((len(own.names), 0))
    # what was sent before the first turn
    sent = np.asarray(before)
    partner, inputs = _partner(own, data, state, s)
    require_rows(used > 0, partner.rank, s, "partner")
    leave(data, inputs, partner)
    state |= {"partner": partner.to_state(), "sent": sent, "pending": none}
    return messages.Received(rank=own.known(site, none)[1]), state


@step("receive_masked")
def receive_masked(
    message: messages.MaskedReceiveRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Received, State]:
    """Take the masked response and get the own columns ready."""
    reply, state = receive.function(message, data, state, site)
    return reply, state


# --------------------------------------------------------------------------- the initiator


def endless_fit() -> DataError:
    """What is said where estimates grow without end."""
    return DataError.shared(
        "the columns separate the response, so estimates grow without end: "
        "set a penalty (alpha), mask the response less, or leave columns out"
    )


class Joint:
    """The initiator's side of the training, whichever way it goes."""

    def __init__(self, s: Settings, data: SiteData, site: SiteContext, state: State) -> None:
        self.s, self.rows = s, by_purpose(data, s, site)
        self.data, self.x = data, data.features
        if s.told and "y" not in state:
            raise ProtocolError.shared("a response is shared before anything is fitted to it")
        # where no partner gets the response it was not got ready
        self.y = np.asarray(state.get("y", np.where(self.rows.train, self.rows.y, 0.0)))
        weights, fam = self.rows.training_weights, s.training_family()
        self.inputs = {"settings": s, "y": self.y, "weights": weights}
        known = state.get("model")
        of: dict[str, Any] = {"weights": weights, "penalty": s.penalty(), "state": known}
        of["offset"] = self.rows.offset
        self.model: SpanModel | Alternation
        if s.acceleration == SPAN:
            self.model = cached_model(
                data, self.inputs, known, lambda: SpanModel(self.x, self.y, fam, **of)
            )
        else:
            # as many earlier cycles as Anderson acceleration mixes
            depth, n = 6 if s.acceleration == "anderson" else 0, len(s.partners)
            self.model = Alternation(self.x, self.y, fam, n, depth=depth, **of)
        self.last = np.asarray(state.get("last", self.model.eta))
        # by partner: the message of alternation that counts, 0 for none
        self.best = np.asarray(state.get("best", np.zeros(len(s.partners), dtype=np.int64)))
        # The initiator's own model, as it stood before anybody contributed.
        own = {"coef": self.model.coef_a, "intercept": self.model.intercept}
        self.alone: State = state.get("alone", own)
        self.course = np.asarray(state.get("course", np.empty((0, 2))))
        self.extra: State = state.get("extra", {})
        self.contributions = np.asarray(state.get("contributions", np.empty((len(self.y), 0))))
        self.owners = np.asarray(state.get("owners", np.empty(0, dtype=np.int64)))
        # by partner: what it sent before the first turn, and which columns of it the model took
        self.start: dict[str, State] = dict(state.get("start", {}))

    def to_state(self, state: State) -> State:
        """State with which the next turn goes on."""
        self.leave()
        kept = ("last", "best", "alone", "course", "contributions", "owners", "start")
        own = {name: getattr(self, name) for name in kept}
        return {**state, "model": self.model.to_state(), **own}

    def leave(self) -> None:
        """Spare the next step to build the model anew."""
        if isinstance(self.model, SpanModel):
            leave(self.data, self.inputs, self.model)

    def include(self, partner: str, columns: FloatArray) -> None:
        """Take in what a partner sent before the first turn; its coefficients are unit vectors."""
        if not isinstance(self.model, SpanModel):
            raise ProtocolError("columns before the first turn need the span of messages")
        owner = self.s.partners.index(partner)
        taken: list[bool] = []
        for column in columns.T:
            inner = np.eye(sum(taken) + 1)[-1] if self.s.alpha else None
            taken.append(self.model.add(column, owner, inner))
        self.model.refit()
        self.start[partner] = {"columns": columns, "taken": np.array(taken, dtype=bool)}
        self.last = self.model.eta

    def take(self, contribution: FloatArray, owner: int, beside: Any) -> bool:
        """Take in a contribution; False where it brought nothing new."""
        if isinstance(self.model, SpanModel):
            # a ridge penalty on coefficients that only the partner knows
            inner = np.asarray(beside["inner"]) if self.s.alpha else None
            if not self.model.add(contribution, owner, inner):
                return False
            self.model.refit()
        else:
            self.model.receive(contribution, owner, float(beside["penalty"]))
            self.contributions = np.column_stack([self.contributions, contribution])
            self.owners = np.append(self.owners, owner)
        return True

    def close(self) -> tuple[bool, float]:
        """End a round: whether the fit has settled, and by how much it changed."""
        mask, eta = self.rows.train, self.model.eta
        size = float(np.linalg.norm(eta[mask])) or 1.0
        change = float(np.linalg.norm((eta - self.last)[mask])) / size
        self.last = eta
        # a cycle of alternation that raised the objective was undone
        accepted = isinstance(self.model, SpanModel) or self.model.accepted
        if accepted:
            self.best = np.bincount(self.owners, minlength=len(self.best))
        self.course = np.vstack([self.course, [self.model.deviance, change]])
        return bool(accepted and change <= self.s.tol), change

    def require_end(self) -> None:
        """Stop where the columns so far separate the response: no estimate would mean anything.

        Raises
        ------
        DataError
        """
        if self.s.alpha:
            return
        theirs = (self.messages_of(o) for o in range(len(self.s.partners)))
        blocks = chain((np.ones((len(self.x), 1)), self.x), theirs)
        fam, weights = self.s.training_family(), self.rows.training_weights
        if glm.endless(blocks, self.y, np.asarray(self.model.eta), fam, weights):
            raise endless_fit()

    def own_part(self) -> FloatArray:
        """Coefficients of the initiator's part of what a partner is sent."""
        if isinstance(self.model, SpanModel):
            return np.asarray(self.model.coef_a)
        design = np.column_stack([np.ones(len(self.x)), self.x])
        own = self.model.part_of(-1) - self.rows.offset
        return np.asarray(np.linalg.lstsq(design, own, rcond=None)[0][1:])

    def others_part(self, owner: int) -> FloatArray:
        """What the other partners contribute."""
        others = [o for o in range(len(self.s.partners)) if o != owner]
        return np.sum([self.model.part_of(o) for o in others], axis=0) if others else NOTHING

    def messages_of(self, owner: int) -> FloatArray:
        """Messages of a partner that were taken in, (n, k)."""
        if isinstance(self.model, SpanModel):
            found = np.asarray(self.model.messages[:, self.model.owner == owner])
            first = self.start.get(self.s.partners[owner])
            if first is None:
                return found
            return np.column_stack([first["columns"], found[:, int(np.sum(first["taken"])) :]])
        return np.asarray(self.contributions[:, self.owners == owner])

    def weights_for(self, owner: int) -> FloatArray:
        """Weights of the messages of a partner, in the order in which they were taken."""
        if isinstance(self.model, SpanModel):
            found = np.asarray(self.model.weights_for(owner))
            first = self.start.get(self.s.partners[owner])
            if first is None:
                return found
            # a column that others have too was not taken
            taken = np.asarray(first["taken"], dtype=bool)
            weights = np.zeros(len(taken))
            weights[taken] = found[: taken.sum()]
            return np.append(weights, found[taken.sum() :])
        # alternation: each message is the whole predictor, so one of them counts
        chosen = np.arange(np.sum(self.owners == owner)) == self.best[owner] - 1
        return np.asarray(chosen, dtype=float)


@step("turn", keeps=phases.numbers_of)
def turn(
    message: messages.TurnRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Turned, State]:
    """Take in one partner's contribution, refit, and send the next one its starting point."""
    s = settings_of(message, site, "initiator")
    require_consent(s, site, message.partner)
    joint = Joint(s, data, site, state)
    added = False
    contribution = np.asarray(message.contribution.value, dtype=float)
    if message.owner:
        require_sender(site, "contribution", message.owner)
        if contribution.shape != (data.n_rows,):
            raise DataError("a contribution with other rows", public="it has other rows")
        owner = s.partners.index(message.owner)
        added = joint.take(contribution, owner, message.beside.value)
    if s.acceleration == SPAN:
        joint.require_end()
    # what a round changed is known after its last partner
    converged, change = joint.close() if message.closes else (False, float("nan"))
    to = s.partners.index(message.partner)
    own = OwnColumns.of(data, state.get("factor"))
    coef = joint.own_part()
    # a direction that is known already is told again for nothing
    before, _, _ = own.known(site, np.empty((len(own.names), 0)))
    known, rank, allowed = own.known_after(site, coef)
    numbers = 2 + len(joint.weights_for(to))
    if known == before and not may_release(site, own, data.n_rows, numbers):
        # Weights of made-up contributions, and deviances with them, are equations in the columns.
        sentence = "as many numbers were told of the initiator's columns as may be"
        raise DisclosureError.shared(sentence)
    part = joint.others_part(to)
    seen = joint.model.offset_for(to)
    mine = own.released(coef, message.partner)
    # What is released is the product, but where a constant column or a scale made another of it.
    along = mine.value if own.plain else own.along(coef)
    constant = float(np.mean(seen - along - joint.rows.offset - (part if len(part) else 0.0)))
    place = {"weights": joint.weights_for(to), "constant": constant, "added": added}
    deviance = float(joint.model.deviance)
    course = {"deviance": deviance, "change": change if message.closes else -1.0}
    reply = messages.Turned(
        own=mine if allowed else empty_for(message.partner),
        others=addressed(per_record(part), message.partner),
        place=summary_for(place, data, message.partner),
        added=added,
        converged=converged,
        spent=not allowed,
        known=known,
        rank=rank,
        course=model(course, kind="figures", n_records=int(joint.rows.train.sum())),
    )
    return reply, {**joint.to_state(state), "factor": own.factor}


@step("settle")
def settle(
    message: messages.SettleRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Settled, State]:
    """Tell a partner how its messages stand in the joint fit; nothing, if it gets no response."""
    s = settings_of(message, site, "initiator")
    joint = Joint(s, data, site, state)
    joint.require_end()
    owner = s.partners.index(message.partner)
    # nobody fits any more: there is no offset to complete
    own = OwnColumns.of(data, state.get("factor"))
    asks = bool(s.interval_accuracy) and own.known(site, np.eye(len(own.names)))[2]
    weights = joint.weights_for(owner) if may_know(s, site, message.partner) else NOTHING
    place = {"weights": weights, "constant": 0.0, "added": True, "asks": asks}
    return messages.Settled(place=summary_for(place, data, message.partner)), joint.to_state(state)


# --------------------------------------------------------------------------- a partner


@step("contribute", keeps=phases.numbers_of)
def contribute(
    message: messages.ContributeRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Contributed, State]:
    """Fit the own columns beside what the others have, and send them along the change."""
    s = settings_of(message, site, "partner", "own", "others", "place")
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    weights = np.asarray(message.place.value["weights"], dtype=float)
    state = _settled(state, weights)
    partner, inputs = _partner(own, data, state, s)
    # linear predictor without the own part (algorithm 2 of the source)
    offset = np.asarray(message.own.value) + float(message.place.value["constant"])
    if offset.shape != (data.n_rows,):
        raise DataError("an offset with other rows", public="the offset has other rows")
    if len(message.others.value):
        offset = offset + np.asarray(message.others.value)
    offset = offset + np.asarray(state["offset"])
    answer = partner.respond(offset, weights if s.acceleration == SPAN else None)
    known, _, allowed = own.known(site, answer.direction)
    sent = np.asarray(state["sent"])
    # Once every direction was sent, another message says nothing that the span does not have.
    done = s.acceleration == SPAN and (sent.shape[1] >= partner.rank or not answer.new)
    before, _, _ = own.known(site, np.empty((len(own.names), 0)))
    # What goes with a direction that counts follows from it; all else is told for a number each.
    counts = allowed and not done and known > before
    numbers = 2 + answer.inner.size if s.alpha else 1
    speaks = counts or may_release(site, own, data.n_rows, numbers)
    done = done or not speaks
    leaves = allowed and not done
    gain = float(answer.gain) if np.isfinite(answer.gain) else GAP  # none under an L1 penalty
    beside = {"inner": NOTHING, "penalty": 0.0}
    if s.alpha and leaves:
        beside = {"inner": answer.inner, "penalty": answer.penalty}
    if leaves:
        leave(data, inputs, partner)
    reply = messages.Contributed(
        contribution=own.released(answer.direction, s.initiator)
        if leaves
        else empty_for(s.initiator),
        beside=summary_for(beside, data, s.initiator),
        spent=not allowed,
        done=done,
        known=known if leaves else before,
        gain=model({"gain": gain if speaks else GAP}, kind="figures", n_records=data.n_rows),
    )
    return reply, {
        **state,
        # A fit that was not sent is no part of the joint one: the next does not start there.
        "partner": partner.to_state() if leaves else state["partner"],
        "pending": answer.direction[:, None] if leaves else np.empty((len(own.names), 0)),
        "eta": offset + own.centred @ (sent[:, : len(weights)] @ weights),
    }


def _settled(state: State, weights: FloatArray) -> State:
    """State after the initiator said which of this partner's messages it took."""
    sent, pending = np.asarray(state["sent"]), np.asarray(state["pending"])
    if len(weights) == sent.shape[1] + pending.shape[1]:
        sent = np.hstack([sent, pending])
    elif len(weights) != sent.shape[1]:
        raise DisclosureError.shared("weights for another number of messages than were sent")
    return {**state, "sent": sent, "pending": np.empty((len(sent), 0))}


def _partner(
    own: OwnColumns, data: SiteData, state: State, s: Settings
) -> tuple[Partner, dict[str, Any]]:
    """Partner of a state, a new one where the state has none, and what it is built from."""
    known, fam = state.get("partner"), s.training_family()
    y, v = np.asarray(state["y"]), np.asarray(state["weights"])
    inputs = {"settings": s, "y": y, "weights": v}
    of: dict[str, Any] = {"weights": v, "penalty": s.penalty(), "state": known}
    partner = cached_model(data, inputs, known, lambda: Partner(own.centred, y, fam, **of))
    if known is not None and s.acceleration == SPAN:
        partner.betas = np.array(state["sent"])
    return partner, inputs


@step("finish", once=True)
def finish(
    message: messages.FinishRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Finished, State]:
    """Send the directions that are left, where the policy lets all of them be known."""
    s = settings_of(message, site, "partner", "place")
    forget(data)
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    weights = np.asarray(message.place.value["weights"], dtype=float)
    if len(weights):
        state = _settled(state, weights)
    sent = np.asarray(state["sent"])
    # who gets no response does not know its coefficients
    beta = sent @ weights if len(weights) else np.zeros(len(own.names))
    left, complete = np.empty((len(own.names), 0)), False
    if s.interval == "joint" and not s.alpha and not message.place.value["asks"]:
        # with these the joint design is the pooled one
        left = own.unsent(sent)
        complete = own.known(site, left)[2]
        left = left if complete else left[:, :0]
    known, _, _ = own.known(site, left)
    variances = per_record(NOTHING)
    every = np.eye(len(own.names))
    if s.interval in ("inflated", "paper") and not s.alpha and own.known(site, every)[2]:
        y, used, x = np.asarray(state["y"]), np.asarray(state["weights"]), own.centred
        eta, fam = np.asarray(state.get("eta", x @ beta)), s.training_family()
        w, score = used * working_weights(fam, y, eta), used * fam.score(y, eta)
        by_model, robust = local_errors(x, w, score, x, constant=False)
        # Sizes of rows in the metric of all columns: they count as all columns.
        variances = disclosure.replaced(
            own.released(every, s.initiator), by_model if s.interval == "inflated" else robust
        )
        known, _, _ = own.known(site, every)
    reply = messages.Finished(
        rest=own.released(left, s.initiator) if left.shape[1] else none_for(s.initiator),
        complete=complete,
        variances=addressed(variances, s.initiator),
        known=known,
    )
    return reply, {**state, "sent": np.hstack([sent, left]), "beta": beta}


STEPS = (share, share_masked, receive, receive_masked, turn, contribute, settle, finish)
