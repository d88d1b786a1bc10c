"""Steps for parties that open their columns, and for what earlier runs told of them.

Where a partner's policy lets all of its columns be known, they go to the initiator at once, who
fits the joint model: nothing goes the other way. Where the initiator's does, and the partner keeps
columns back, the initiator's columns go with the response to the partner. It fits all columns
together and returns its part of the linear predictor, which is one direction of its columns, and
standard errors for the initiator. Numbers other than that direction are counted, as elsewhere
(`phases.may_release`).
"""

from __future__ import annotations

import numpy as np

from consilience.assisted.glm import messages, training
from consilience.assisted.glm.inference import MAX_NEW
from consilience.assisted.glm.messages import FITTED, OPENED
from consilience.assisted.glm.training import empty_for, none_for, settings_of, summary_for
from consilience.assisted.kernels import glm
from consilience.assisted.kernels.sandwich import sandwich
from consilience.assisted.phases import OwnColumns, may_release, numbers_of
from consilience.exceptions import DataError, DisclosureError
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import replaced


@step("offer")
def offer(
    message: messages.OfferRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Offered, State]:
    """Say what the own policy lets be known."""
    own = OwnColumns.of(data)
    if site.role(site.site) == "partner":
        own.require_variation()
    known, rank, _ = own.known(site, np.empty((len(own.names), 0)))
    # a partner that fits all columns would need the clusters for its errors
    opens = own.every(site) and data.cluster is None
    reply = messages.Offered(opens=opens, room=own.room(site), known=known, rank=rank)
    none = np.empty((len(own.names), 0))
    return reply, {**state, "factor": own.factor, "sent": none, "pending": none}


# --------------------------------------------------------------------------- a partner opens


@step("open", once=True)
def open_columns(
    message: messages.OpenRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Finished, State]:
    """Send all of the own columns, or what is known of them already."""
    s = settings_of(message, site, "partner")
    own, course = OwnColumns.of(data, state.get("factor")), s.course(site.site)
    directions = own.told(site, unit=bool(s.alpha))
    if course == OPENED:
        if s.exchange != "auto" or not own.every(site):
            raise DisclosureError.shared(
                "the columns were asked for and are not on offer: the policy keeps directions "
                "back, or the study says exchange = 'turns'",
            )
        directions = own.unsent(directions[:, :0])
        if s.alpha:
            # a penalty is one of each column; beside the span of messages, of unit vectors
            every = np.eye(len(own.names))
            directions = every if s.opened else own.spanning(directions, unit=True)
    known, _, complete = own.known(site, directions)
    reply = messages.Finished(
        rest=own.released(directions, s.initiator)
        if directions.shape[1]
        else none_for(s.initiator),
        complete=course == OPENED and complete,
        variances=empty_for(s.initiator),
        known=known,
    )
    sent = {"factor": own.factor, "sent": directions, "pending": directions[:, :0]}
    return reply, {**state, **sent}


@step("include", once="rest", keeps=numbers_of)
def include(
    message: messages.IncludeRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Included, State]:
    """Take what a partner sent before the first turn into the span."""
    s = settings_of(message, site, "initiator")
    training.require_sender(site, "rest", message.owner)
    columns = np.asarray(message.rest.value, dtype=float)
    if columns.ndim != 2 or len(columns) != data.n_rows or message.owner not in s.partners:
        raise DataError.shared("columns with other rows, or of nobody who takes part")
    own = OwnColumns.of(data, state.get("factor"))
    if not may_release(site, own, data.n_rows, columns.shape[1]):
        # The weights of made-up columns are equations in the own ones.
        raise DisclosureError.shared(
            "as many numbers were told of the initiator's columns as may be"
        )
    joint = training.Joint(s, data, site, state)
    joint.include(message.owner, columns)
    return messages.Included(), joint.to_state(state)


# --------------------------------------------------------------------------- the initiator opens


@step("hand_over", once=True)
def hand_over(
    message: messages.HandOverRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.HandedOver, State]:
    """Send the own columns to the one partner, if the policy lets all of them be known."""
    s = settings_of(message, site, "initiator")
    own, to = OwnColumns.of(data, state.get("factor")), message.partner
    alone = s.those(FITTED) == (to,) == s.partners and data.cluster is None
    if s.exchange != "auto" or not alone or not own.every(site):
        raise DisclosureError.shared(
            "the columns were asked for and are not on offer: the policy keeps directions back, "
            "there is more than one partner, or the study says exchange = 'turns'",
        )
    rows = training.by_purpose(data, s, site)
    every = np.eye(len(own.names))
    # centred columns travel: the means say where the constant stands
    place = {
        "means": data.features.mean(axis=0),
        "rows": np.flatnonzero(rows.new)[:MAX_NEW],
    }
    reply = messages.HandedOver(
        own=own.released(every, to),
        place=summary_for(place, data, to),
        known=own.known(site, every)[0],
    )
    return reply, {**state, "factor": own.factor}


@step("fit", once=True, keeps=numbers_of)
def fit(
    message: messages.FitRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Fitted, State]:
    """Fit all columns; return the own part, and errors of the initiator's coefficients."""
    s = settings_of(message, site, "partner", "own", "place")
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    theirs, place = np.asarray(message.own.value, dtype=float), message.place.value
    mean, chosen = np.asarray(place["means"]), np.asarray(place["rows"], dtype=np.int64)
    n, q = data.n_rows, len(mean)
    fine = theirs.shape == (n, q) and len(chosen) <= MAX_NEW
    if not fine or ((chosen < 0) | (chosen >= n)).any():
        raise DataError.shared("columns with other rows, or people who are not there")
    # Before anything is computed: whether there is a fit tells of these columns too.
    if not own.room(site):
        raise DisclosureError.shared("the policy lets no further direction be known")
    y, used, fam = np.asarray(state["y"]), np.asarray(state["weights"]), s.training_family()
    design = np.column_stack([np.ones(n), theirs, own.centred])
    fitted = glm.fit(
        design[:, 1:],
        y,
        fam,
        offset=np.asarray(state["offset"]),
        weights=used,
        penalty=s.penalty(),
    )
    unfit, beta = "", fitted.coef[q:]
    found = None
    if fitted.separated:
        unfit = messages.SEPARATED
    elif s.interval == "joint" and not s.alpha:
        found = sandwich(design, y, fitted.eta, fam, used, s.errors)
        if found.rank >= int((used > 0).sum()):
            unfit = messages.TOO_MANY
    if unfit:
        # An answer as any other: it counts as a direction that was not known.
        beta = own.unsent(own.told(site, unit=False))[:, 0]
    known, _, allowed = own.known(site, beta)
    if not allowed:
        raise DisclosureError.shared("the policy lets no further direction be known")
    if unfit:
        none = summary_for({}, data, s.initiator)
        part = replaced(own.released(beta, s.initiator), np.zeros(n))
        reply = messages.Fitted(unfit=unfit, part=part, errors=none, known=known)
        return reply, state
    errors: dict[str, np.ndarray] = {}
    kept: State = {"sent": beta[:, None], "pending": np.empty((len(beta), 0))}
    if found is not None:
        targets = np.eye(1 + q, design.shape[1])
        targets[0, 1 : q + 1] = -mean  # the initiator's constant is that of columns at 0
        targets = np.vstack([targets, design[chosen]])
        mine = np.eye(design.shape[1])[1 + q :]
        kept |= {
            "errors": np.sqrt(np.maximum(found.variance(mine), 0.0)),
            "identified": found.identified(mine),
        }
        if may_release(site, own, n, len(targets)):
            errors = {
                "error": np.sqrt(np.maximum(found.variance(targets), 0.0)),
                "identified": found.identified(targets).astype(float),
            }
    reply = messages.Fitted(
        unfit="",
        part=own.released(beta, s.initiator),
        errors=summary_for(errors, data, s.initiator),
        known=known,
    )
    return reply, {**state, **kept}


STEPS = (offer, open_columns, include, hand_over, fit)
