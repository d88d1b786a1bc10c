"""Steps towards standard errors where a policy keeps some directions of a partner's columns back.

The initiator solves for the targets (its coefficients, and new people) within what it knows, and
sends the partner the solutions but for the partner's own part. The partner says what its equations
still hide, and sends the directions that matter most, as far as its policy goes. What is hidden in
the end gives a factor on the standard errors (see ``assisted.kernels.joint_intervals``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.assisted.glm import warm
from consilience.assisted.glm.messages import (
    Aimed,
    AimRequest,
    Refined,
    RefineRequest,
    Settings,
)
from consilience.assisted.glm.rows import Rows
from consilience.assisted.glm.training import Joint, require_role, require_sender, told
from consilience.assisted.kernels.joint_intervals import (
    CERTIFIED,
    bounded_factor,
    largest_correlation,
    partner_residual,
    ritz_values,
)
from consilience.assisted.kernels.local_fits import working_weights
from consilience.assisted.kernels.sandwich import Sandwich, sandwich
from consilience.assisted.phases.own_columns import OwnColumns
from consilience.assisted.phases.told_numbers import may_tell, numbers_of
from consilience.exceptions import DataError
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import Released, addressed, per_record

MAX_NEW = 100
"""New people whose limits are looked for where not all directions are known."""


@dataclass(frozen=True, eq=False)
class Known:
    """What the initiator knows of the joint design, and the covariances within it.

    Attributes
    ----------
    design : (n, d) array
        Intercept, own columns, orthonormal combinations of the partners' directions.
    backs : tuple of (k, q) arrays
        By partner: from orthonormal combinations back to its directions.
    covariances : Sandwich
    """

    design: FloatArray
    backs: tuple[FloatArray, ...]
    covariances: Sandwich

    def blocks(self, p: int) -> list[slice]:
        """Places of each partner's combinations in the design."""
        places, start = [], 1 + p
        for back in self.backs:
            places.append(slice(start, start + back.shape[1]))
            start += back.shape[1]
        return places


def known_design(
    s: Settings, data: SiteData, blocks: list[FloatArray]
) -> tuple[FloatArray, tuple[FloatArray, ...]]:
    """Design on what is known of the partners' columns, and the ways back to their directions."""
    bases, backs = zip(*(orthonormal(b) for b in blocks), strict=True)
    return np.column_stack([np.ones(data.n_rows), data.features, *bases]), tuple(backs)


def orthonormal(block: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Orthonormal basis (n, q) of columns (n, k), and what leads back to them (k, q)."""
    if not block.shape[1]:
        return block, np.empty((0, 0))
    lengths = np.linalg.norm(block, axis=0)
    lengths = np.where(lengths > 0, lengths, 1.0)
    # Of the size of the columns' entries, so that coefficients are numbers of ordinary size.
    scale = np.sqrt(len(block))
    values, vectors = np.linalg.eigh((block.T @ block) / np.outer(lengths, lengths))
    if values[0] > 1e-5 * values[-1]:
        # Far from dependent: the Gram matrix gives the same in a fraction of the time.
        back = vectors / np.sqrt(values) * scale / lengths[:, None]
        return block @ back, back
    left, size, turn = np.linalg.svd(block / lengths, full_matrices=False)
    kept = size > 1e-8 * size.max()
    return left[:, kept] * scale, (turn[kept].T / size[kept]) * scale / lengths[:, None]


def blocks_of(joint: Joint, s: Settings, state: State) -> list[FloatArray]:
    """What is known of each partner's columns: messages, and further directions."""
    extra = state.get("extra", {})
    blocks = []
    for o, partner in enumerate(s.partners):
        more = [np.asarray(extra[partner])] if partner in extra else []
        blocks.append(np.column_stack([joint.messages_of(o), *more]))
    return blocks


def target_rows(rows: Rows) -> NDArray[np.int64]:
    """Rows of the new people whose limits are looked for."""
    return np.flatnonzero(rows.new)[:MAX_NEW]


# --------------------------------------------------------------------------- the two steps


@step("aim")
def aim(
    message: AimRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Aimed, State]:
    """Solve for the targets within what is known; send the solutions to a partner."""
    require_role(site, "initiator")
    s = Settings.from_json(message.settings)
    rows = warm.rows_by_purpose(data, s, site)
    joint = Joint(s, data, rows, state)
    if message.owner:
        state = _with_more(message, data, state, site)
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    blocks = blocks_of(joint, s, state)
    design, backs = known_design(s, data, blocks)
    eta, fam = np.asarray(joint.model.eta), s.training_family()
    found = Known(design, backs, sandwich(design, joint.y, eta, fam, rows.training_weights))
    p = data.features.shape[1]
    chosen = target_rows(rows)
    targets = np.vstack([np.eye(p + 1, design.shape[1]), design[chosen]])
    v = found.covariances.model @ targets.T
    coef = np.asarray(joint.model.coef_a)
    directions = np.column_stack([coef, v[1 : p + 1]])
    known, _, allowed = own.known_after(site, directions)
    places = found.blocks(p)
    to = s.partners.index(message.partner)
    mean = data.features.mean(axis=0)
    fitted = [_padded(joint.weights_for(o), b.shape[1]) for o, b in enumerate(blocks)]
    weights = np.column_stack([fitted[to], backs[to] @ v[places[to]]])
    constants = np.append(joint.model.intercept + mean @ coef, v[0] + mean @ v[1 : p + 1])
    others = [o for o in range(len(blocks)) if o != to]
    theirs = np.empty((0, 0))
    if others:
        parts = [
            np.column_stack([blocks[o] @ fitted[o], design[:, places[o]] @ v[places[o]]])
            for o in others
        ]
        theirs = np.sum(parts, axis=0)
    place = {"weights": weights, "constants": constants, "rows": chosen} if allowed else {}
    nothing = addressed(per_record(np.empty((0, 0))), message.partner)
    reply = Aimed(
        own=own.released(directions, message.partner) if allowed else nothing,
        others=addressed(per_record(theirs), message.partner) if allowed else nothing,
        place=told(place, data, message.partner),
        spent=not allowed,
        known=known,
    )
    joint.leave()
    return reply, state


def _with_more(message: AimRequest, data: SiteData, state: State, site: SiteContext) -> State:
    """State with a partner's further directions."""
    require_sender(site, "more", message.owner)
    more = np.asarray(message.more.value, dtype=float)
    if more.ndim != 2 or len(more) != data.n_rows:
        sentence = "further directions with other rows"
        raise DataError(sentence, public=sentence)
    extra = dict(state.get("extra", {}))
    before = [np.asarray(extra[message.owner])] if message.owner in extra else []
    return {**state, "extra": {**extra, message.owner: np.column_stack([*before, more])}}


def _padded(weights: FloatArray, k: int) -> FloatArray:
    """Weights of messages, 0 for further directions."""
    return np.append(weights, np.zeros(k - len(weights)))


@step("refine", keeps=numbers_of)
def refine(
    message: RefineRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Refined, State]:
    """Say what the own equations still hide of the targets; send the directions they need most."""
    require_role(site, "partner")
    s = Settings.from_json(message.settings)
    for field in ("own", "others", "place"):
        require_sender(site, field, s.initiator)
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    sent = np.asarray(state["sent"])
    place = message.place.value
    weights = np.asarray(place["weights"], dtype=float)
    chosen = np.asarray(place["rows"], dtype=np.int64)
    seen = np.asarray(message.own.value, dtype=float)
    n, p = data.features.shape
    fine = weights.ndim == 2 and weights.shape[0] == sent.shape[1]
    fine = fine and seen.shape == (n, weights.shape[1])
    fine = fine and len(chosen) < weights.shape[1] and bool(((chosen >= 0) & (chosen < n)).all())
    if not fine:
        sentence = "targets of another shape than was agreed"
        raise DataError(sentence, public=sentence)
    x = own.centred
    whole = np.asarray(place["constants"]) + seen + x @ (sent @ weights)
    if np.size(message.others.value):
        whole = whole + np.asarray(message.others.value)
    y, used = np.asarray(state["y"]), np.asarray(state["weights"])
    w = used * working_weights(s.training_family(), y, whole[:, 0])
    targets = np.zeros((weights.shape[1] - 1, p))
    targets[len(targets) - len(chosen) :] = x[chosen]
    answer = partner_residual(x, w, w[:, None] * whole[:, 1:], targets)
    directions = answer.directions[:, :0] if message.last else answer.directions
    while directions.shape[1] and not own.known(site, directions)[2]:
        directions = directions[:, :-1]
    known, _, _ = own.known(site, directions)
    # Of use in the last exchange only, and each target could be a question of another kind.
    m = 0 if directions.shape[1] else len(targets)
    if not may_tell(site, own, n, m):
        m = 0
    left = {
        "rest": answer.rest[:m],
        "relative": answer.relative[:m],
        "estimable": answer.estimable[:m].astype(float),
    }
    more: Released = addressed(per_record(np.empty((0, 0))), s.initiator)
    if directions.shape[1]:
        more = own.released(directions, s.initiator)
    reply = Refined(
        more=more,
        left=told(left, data, s.initiator),
        n_more=int(directions.shape[1]),
        known=known,
    )
    return reply, {**state, "sent": np.hstack([sent, directions])}


# --------------------------------------------------------------------------- what it is worth


@dataclass(frozen=True, eq=False)
class Certainty:
    """What each target's standard error is worth.

    Attributes
    ----------
    factor : (m,) array
        1 where it is exact, more where a bound holds, NaN where nothing is known.
    estimable : (m,) bool array
    """

    factor: FloatArray
    estimable: NDArray[np.bool_]


def certainty(
    s: Settings,
    found: Known,
    p: int,
    targets: FloatArray,
    left: list[dict[str, FloatArray]],
    w: FloatArray,
) -> Certainty:
    """Judge targets by what the partners' equations still hide of them."""
    m = len(targets)
    if len(left) != len(s.partners) or any(len(one["rest"]) != m for one in left):
        return Certainty(np.full(m, np.nan), found.covariances.identified(targets))
    rest = np.sum([one["rest"] for one in left], axis=0)
    relative = np.sqrt(np.sum([np.square(one["relative"]) for one in left], axis=0))
    estimable = np.all([np.asarray(one["estimable"]) > 0 for one in left], axis=0)
    owner = np.repeat(np.arange(len(left)), [back.shape[1] for back in found.backs])
    rho = largest_correlation(ritz_values(found.design, w, owner))
    model = np.einsum("id,de,ie->i", targets, found.covariances.model, targets)
    factor = bounded_factor(np.sqrt(np.maximum(model, 0.0)), rest, rho)
    factor = np.where(relative <= CERTIFIED, 1.0, factor)
    fine = estimable & found.covariances.identified(targets)
    return Certainty(np.where(fine, factor, np.nan), fine)
