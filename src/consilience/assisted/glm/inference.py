"""Steps after the training: standard errors, comparison, intervals, and every party's own part.

Where a policy keeps some directions of a partner's columns back, the initiator solves for the
targets (its coefficients, and new people) within what it knows, and sends the partner the solutions
but for the partner's own part (`aim`). The partner says what its equations still hide, and sends
the directions that matter most, as far as its policy goes (`refine`). What is hidden in the end
gives a factor on the standard errors (see ``assisted.kernels.joint_glm``).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray
from consilience.assisted.glm import messages, training
from consilience.assisted.glm.messages import GAP
from consilience.assisted.glm.prediction import AssistedPredictor, Unseen
from consilience.assisted.glm.training import Joint, none_for, settings_of, summary_for
from consilience.assisted.kernels import glm, joint_glm
from consilience.assisted.kernels.glm import row_blocks
from consilience.assisted.kernels.local_fits import working_weights
from consilience.assisted.kernels.sandwich import Sandwich, quantile, sandwich
from consilience.assisted.phases import OwnColumns, may_release, numbers_of, units_of
from consilience.exceptions import DataError, ProtocolError
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire import disclosure
from consilience.wire.disclosure import Released, addressed, aggregate, model

MAX_NEW = 100
"""New people whose limits are looked for where not all directions are known."""
UNTOLD = {"weights": np.empty(0), "covariance": np.empty((0, 0)), "shared": np.empty((0, 0))}
"""What a partner is told of the fit where it gets no response."""
LEAST = ("least", "spread")
FEW = 10
"""A smaller number of new people is told as -1."""


# --------------------------------------------------------------------------- what is known


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

    @property
    def places(self) -> list[slice]:
        """Places of each partner's combinations in the design, of which they are the last."""
        widths = [back.shape[1] for back in self.backs]
        ends = self.design.shape[1] - sum(widths) + np.cumsum(widths)
        return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    def ritz_values(self, w: FloatArray, *, together: bool = False) -> FloatArray:
        """Ritz values of the Schur complement on what is known, at weights w (n,).

        `together` takes it as of one partner: they are then 1 less squared canonical correlations.
        """
        owner = np.repeat(np.arange(len(self.backs)), [back.shape[1] for back in self.backs])
        return joint_glm.ritz_values(self.design, w, owner * (not together))

    def correlation(self, w: FloatArray) -> float:
        """Careful estimate of the largest canonical correlation below 1, at weights w (n,)."""
        return joint_glm.largest_correlation(self.ritz_values(w))


def orthonormal(block: FloatArray) -> tuple[FloatArray | None, FloatArray]:
    """Orthonormal basis (n, q) of columns (n, k), and what leads back to them (k, q).

    None for the basis where the product of both has all of its digits.
    """
    if not block.shape[1]:
        return None, np.empty((0, 0))
    inner = block.T @ block
    lengths = np.sqrt(np.diag(inner))
    lengths = np.where(lengths > 0, lengths, 1.0)
    # Of the size of the columns' entries, so that coefficients are numbers of ordinary size.
    scale = np.sqrt(len(block))
    values, vectors = np.linalg.eigh(inner / np.outer(lengths, lengths))
    if values[0] > 1e-5 * values[-1]:
        # Far from dependent: the Gram matrix gives the same in a fraction of the time.
        back = vectors / np.sqrt(values) * scale / lengths[:, None]
        return None, back
    left, size, turn = np.linalg.svd(block / lengths, full_matrices=False)
    kept = size > 1e-8 * size.max()
    return left[:, kept] * scale, (turn[kept].T / size[kept]) * scale / lengths[:, None]


def known_columns(
    joint: Joint, rest: Sequence[FloatArray] = ()
) -> tuple[list[list[FloatArray]], list[FloatArray], FloatArray, tuple[FloatArray, ...]]:
    """What is known of the partners' columns, with `rest` of each of them.

    Returns
    -------
    pieces : list of lists of (n, k) arrays
        By partner: its messages, and further directions.
    weights : list of (k,) arrays
        Their weights in the fit, 0 for further ones.
    design, backs
        As in `Known`.
    """
    p = joint.x.shape[1]
    pieces, weights = [], []
    for o, partner in enumerate(joint.s.partners):
        more = [np.asarray(joint.extra[partner])] if partner in joint.extra else []
        found = [block for block in (joint.messages_of(o), *more, *rest[o : o + 1]) if block.size]
        pieces.append(found)
        w = joint.weights_for(o)
        weights.append(np.append(w, np.zeros(sum(block.shape[1] for block in found) - len(w))))
    ends = 1 + p + np.cumsum([len(w) for w in weights])
    design = np.empty((len(joint.x), ends[-1]))
    for rows in row_blocks(len(design)):
        design[rows, 0], design[rows, 1 : 1 + p], at = 1.0, joint.x[rows], 1 + p
        for block in itertools.chain(*pieces):
            design[rows, at : at + block.shape[1]] = block[rows]
            at += block.shape[1]
    places = [slice(end - len(w), end) for w, end in zip(weights, ends, strict=True)]
    bases, backs = zip(*(orthonormal(design[:, at]) for at in places), strict=True)
    for at, basis, back in zip(places, bases, backs, strict=True):
        for rows in row_blocks(len(design)):
            # in place: a basis of fewer columns leaves room at the end
            new = design[rows, at] @ back if basis is None else basis[rows]
            design[rows, at.start : at.start + back.shape[1]] = new
    kept = [np.arange(at.start, at.start + b.shape[1]) for at, b in zip(places, backs, strict=True)]
    if sum(map(len, kept)) < design.shape[1] - 1 - p:
        design = design[:, np.concatenate([np.arange(1 + p), *kept])]
    return pieces, weights, design, tuple(backs)


@step("aim")
def aim(
    message: messages.AimRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Aimed, State]:
    """Solve for the targets within what is known; send the solutions to a partner."""
    s = settings_of(message, site, "initiator")
    training.require_consent(s, site, message.partner)
    came = [("more", message.owner)] if message.owner else []
    came += [("rest", message.partner)] if np.size(message.rest.value) else []
    for field, owner in came:
        training.require_sender(site, field, owner)
        block = np.asarray(getattr(message, field).value, dtype=float)
        if block.ndim != 2 or len(block) != data.n_rows:
            raise DataError.shared("further directions with other rows")
        extra = dict(state.get("extra", {}))
        before = [np.asarray(extra[owner])] if owner in extra else []
        extra[owner] = np.column_stack([*before, block])
        state = {**state, "extra": extra}
    joint = Joint(s, data, site, state)
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    pieces, fitted, design, backs = known_columns(joint)
    eta, weights = np.asarray(joint.model.eta), joint.rows.training_weights
    found = Known(design, backs, sandwich(design, joint.y, eta, s.training_family(), weights))
    p = data.features.shape[1]
    chosen = np.flatnonzero(joint.rows.new)[:MAX_NEW]
    # (D'WD) v = x within what is known, for all targets at once
    v = found.covariances.model @ np.vstack([np.eye(p + 1, design.shape[1]), design[chosen]]).T
    coef = np.asarray(joint.model.coef_a)
    directions = np.column_stack([coef, v[1 : p + 1]])
    known, _, allowed = own.known_after(site, directions)
    places, to = found.places, s.partners.index(message.partner)
    mean = data.features.mean(axis=0)
    theirs = np.empty((0, 0))
    if len(pieces) > 1:
        parts = [
            np.column_stack(
                [
                    np.column_stack([joint.x[:, :0], *pieces[o]]) @ fitted[o],
                    design[:, places[o]] @ v[places[o]],
                ]
            )
            for o in range(len(pieces))
            if o != to
        ]
        theirs = np.sum(parts, axis=0)
    place = {
        "weights": np.column_stack([fitted[to], backs[to] @ v[places[to]]]),
        "constants": np.append(joint.model.intercept + mean @ coef, v[0] + mean @ v[1 : p + 1]),
        "rows": chosen,
        "enough": _enough(s, found, joint, eta, weights),
    }
    nothing = none_for(message.partner)
    reply = messages.Aimed(
        own=own.released(directions, message.partner) if allowed else nothing,
        others=addressed(disclosure.per_record(theirs), message.partner) if allowed else nothing,
        place=summary_for(place if allowed else {}, data, message.partner),
        spent=not allowed,
        known=known,
    )
    joint.leave()
    return reply, state


def _enough(
    s: messages.Settings,
    found: Known,
    joint: Joint,
    eta: FloatArray,
    weights: FloatArray,
) -> float:
    """What each partner may leave of a target, relative to its error; 0 asks for all."""
    if not s.interval_accuracy:
        return 0.0
    w = weights * working_weights(s.training_family(), joint.y, eta)
    # what partners hide adds up, as variances do
    rho = found.correlation(w)
    share = joint_glm.enough_for(s.interval_accuracy, rho) / np.sqrt(len(found.backs))
    return float(np.nan_to_num(share))


@step("refine", keeps=numbers_of)
def refine(
    message: messages.RefineRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Refined, State]:
    """Say what the own equations still hide of the targets; send the directions they need most."""
    s = settings_of(message, site, "partner", "own", "others", "place")
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    sent = np.asarray(state["sent"])
    place = message.place.value
    weights = np.asarray(place["weights"], dtype=float)
    chosen = np.asarray(place["rows"], dtype=np.int64)
    seen = np.asarray(message.own.value, dtype=float)
    n, p = data.features.shape
    if not (
        weights.ndim == 2
        and weights.shape[0] == sent.shape[1]
        and seen.shape == (n, weights.shape[1])
        and len(chosen) < weights.shape[1]
        and bool(((chosen >= 0) & (chosen < n)).all())
    ):
        raise DataError.shared("targets of another shape than was agreed")
    x = own.centred
    # column 0 is the joint fit, the others c = X v of each target
    whole = np.asarray(place["constants"]) + seen + x @ (sent @ weights)
    if np.size(message.others.value):
        whole = whole + np.asarray(message.others.value)
    # the joint fit has the offset too, solutions have none
    whole[:, 0] += np.asarray(state["offset"])
    y, used = np.asarray(state["y"]), np.asarray(state["weights"])
    # second derivatives at the joint fit, as at the initiator
    w = used * working_weights(s.training_family(), y, whole[:, 0])
    # a coefficient of the initiator has no part in these columns; a new person has a row
    targets = np.zeros((weights.shape[1] - 1, p))
    targets[len(targets) - len(chosen) :] = x[chosen]
    answer = joint_glm.partner_residual(
        x,
        w,
        w[:, None] * whole[:, 1:],
        targets,
        enough=max(float(place["enough"]), joint_glm.CERTIFIED),
    )
    directions = answer.directions[:, :0] if message.last else answer.directions
    while directions.shape[1] and not own.known(site, directions)[2]:
        directions = directions[:, :-1]
    known, _, _ = own.known(site, directions)
    # Of use in the last exchange only, and each target could be a question of another kind.
    m = 0 if directions.shape[1] else len(targets)
    if not may_release(site, own, n, m):
        m = 0
    left = {
        "rest": answer.rest[:m],
        "relative": answer.relative[:m],
        "estimable": answer.estimable[:m].astype(float),
    }
    count, to = int(directions.shape[1]), s.initiator
    more = own.released(directions, to) if count else none_for(to)
    reply = messages.Refined(more=more, left=summary_for(left, data, to), n_more=count, known=known)
    return reply, {**state, "sent": np.hstack([sent, directions])}


# --------------------------------------------------------------------------- the joint fit


def too_many_columns() -> DataError:
    """What is said where no row is left over for the errors."""
    return DataError.shared(
        "the parties have as many columns together as there are rows with a response: "
        "set a penalty (alpha), or leave columns out"
    )


Sums = tuple[float, FloatArray, tuple[FloatArray, ...]]
"""Intercept, own coefficients, and by partner weights of its messages and further directions."""


@dataclass(frozen=True, eq=False)
class Final:
    """The joint fit that is reported.

    Attributes
    ----------
    intercept : float
    coef : (p_a,) array
    weights : tuple of arrays
        By partner: weights of its messages and further directions.
    eta : (n,) array
        All matched rows.
    trained : (n,) array
        The same by the training rows alone, to compare models on the others.
    before : Sums
        What `trained` is made of.
    known : Known or None
        Design and covariances; None under a penalty.
    error : (1 + p + n,) array
        Standard error of each own coefficient, then of the linear predictor of every row; NaN where
        it is not known.
    factor : (1 + p + n,) array
        What is in `error` for a bound: 1 where it is exact, NaN where nothing is known.
    estimable : (1 + p + n,) bool array
    theirs : (n, k) array
        The partners' columns along all known directions, by orthonormal combinations.
    least : (2, 1 + p) array
        Of own coefficients, as if nothing were hidden: robust errors, and those of a right model
        with dispersion 1. NaN where nothing is hidden, and under a penalty.
    met : float
        Largest canonical correlation of the own columns with what is known, where `least` is.
    """

    intercept: float
    coef: FloatArray
    weights: tuple[FloatArray, ...]
    eta: FloatArray
    trained: FloatArray
    before: Sums
    known: Known | None
    error: FloatArray
    factor: FloatArray
    estimable: BoolArray
    theirs: FloatArray
    least: FloatArray
    met: float = np.nan


def fitted_elsewhere(joint: Joint, message: messages.ConcludeRequest) -> Final:
    """The own part of a fit of all columns that the partner made, with its errors."""
    s, data, rows = joint.s, joint.data, joint.rows
    part = np.asarray(message.part.value[0], dtype=float)
    if part.shape != (data.n_rows,):
        raise DataError.shared("a part of the linear predictor with other rows")
    # at the joint optimum each party's part is the best one beside the other's
    found = glm.fit(
        joint.x,
        joint.y,
        s.training_family(),
        offset=part + rows.offset,
        weights=rows.training_weights,
        penalty=s.penalty(),
    )
    k = 1 + data.features.shape[1]
    place = np.append(np.arange(k), k + np.flatnonzero(rows.new)[:MAX_NEW])
    error, fine = np.full(k + data.n_rows, np.nan), np.ones(k + data.n_rows, dtype=bool)
    told = dict(message.errors.value[0])
    if told:
        if any(np.shape(told[name]) != place.shape for name in ("error", "identified")):
            raise DataError.shared(
                "standard errors of other coefficients or people than were asked for"
            )
        fine[place] = np.asarray(told["identified"]) > 0
        error[place] = np.where(fine[place], told["error"], np.nan)
    return Final(
        intercept=float(found.intercept),
        coef=found.coef,
        weights=(np.ones(1),),
        eta=found.eta,
        trained=found.eta,
        before=(float(found.intercept), found.coef, (np.ones(1),)),
        known=None,
        error=error,
        factor=np.where(np.isnan(error), np.nan, 1.0),
        estimable=fine,
        theirs=part[:, None] / (np.sqrt(np.mean(part**2)) or 1.0),
        least=np.full((2, k), np.nan),
    )


def final_fit(joint: Joint, message: messages.ConcludeRequest) -> Final:
    """Fit once more, on all rows with a response, where everything needed for it is known.

    With all directions of the partners the model on ``[1, X_a, M]`` is the pooled one, so the rows
    that were held out join without a further message. Under a masked response they cannot: their
    response was never masked.
    """
    s, data, rows, fam = joint.s, joint.data, joint.rows, joint.s.training_family()
    if message.part.value:
        return fitted_elsewhere(joint, message)
    # a penalty is one of each column: all of them are here only where partners opened theirs
    whole, p = message.complete and (s.opened or not s.alpha), data.features.shape[1]
    rest = [np.asarray(block) for block in message.rest.value]
    if any(block.size and len(block) != data.n_rows for block in rest):
        raise DataError.shared("further directions with other rows")
    rest = [block if block.size else np.empty((data.n_rows, 0)) for block in rest]
    pieces, weights, design, backs = known_columns(joint, rest if whole else ())
    y, case, eta = joint.y, rows.training_weights, np.asarray(joint.model.eta)
    before = (float(joint.model.intercept), np.asarray(joint.model.coef_a), tuple(weights))
    sums: Sums = before
    trained = eta
    if whole:
        # Whatever ended the training: on the complete design its fit is found without a message.
        start: Any = None
        if any(w.any() for w in weights):
            # a start close to the end of the training: two or three Newton steps are left
            begin = np.linalg.lstsq(design[:2000], (eta - rows.offset)[:2000], rcond=None)[0]
            start = (begin[1:], float(begin[0]))
        columns, penalty = design[:, 1:], s.penalty()
        if penalty is not None:
            columns, start = np.column_stack([joint.x, *itertools.chain(*pieces)]), None
        beside: dict[str, Any] = {"offset": rows.offset, "penalty": penalty}
        fitted = glm.fit(columns, y, fam, weights=case, start=start, **beside)
        if fitted.separated:
            raise training.endless_fit()
        turns = backs if penalty is None else [np.eye(len(w)) for w in weights]
        ends = p + np.cumsum([turn.shape[1] for turn in turns])

        def parts(fit: Any) -> Sums:
            own, *theirs = np.split(fit.coef, [p, *ends])[:-1]
            return float(fit.intercept), own, tuple(map(np.matmul, turns, theirs))

        before, trained = parts(fitted), fitted.eta
        if not s.masked and rows.held.any():
            y, case = rows.y, np.where(rows.known, rows.weights, 0.0)
            start = (fitted.coef, fitted.intercept)
            fitted = glm.fit(columns, y, fam, weights=case, start=start, **beside)
        sums, eta = parts(fitted), fitted.eta
    n_targets, known = p + 1 + data.n_rows, None
    error = np.full(n_targets, np.nan)
    factor, fine = np.full(n_targets, np.nan), np.ones(n_targets, dtype=bool)
    least, met = np.full((2, p + 1), np.nan), np.nan
    if not s.alpha:
        covariances = sandwich(design, y, eta, fam, case, s.errors, rows.clusters)
        # Coefficients of hidden directions take degrees of freedom too.
        left_over = int((case > 0).sum()) - covariances.rank
        if left_over <= message.hidden:
            raise too_many_columns()
        # n / (n - rank) with the rank of all columns, not of the known ones
        grown = covariances.beyond(left_over, message.hidden)
        known = Known(design, backs, dataclasses.replace(covariances, covariance=grown))
        every = (np.eye(p + 1, design.shape[1]), design)  # not stacked: design may be large
        if not whole or covariances.null.shape[1]:
            fine = np.concatenate([covariances.identified(some) for some in every])
        if whole and s.interval != "none":
            factor = np.where(fine, 1.0, np.nan)
        elif not whole:
            w = case * working_weights(fam, y, eta)
            if s.interval == "joint":
                both = (known.covariances.covariance, known.covariances.model)
                least = np.sqrt(np.maximum([np.diag(each)[: p + 1] for each in both], 0.0))
                ritz = known.ritz_values(w, together=True)
                met = float(np.sqrt(np.clip(1 - ritz[0], 0.0, 1.0))) if len(ritz) else 0.0
            new = np.flatnonzero(rows.new)[:MAX_NEW]
            place = np.append(np.arange(p + 1), p + 1 + new)
            left = [dict(one) for one in message.left.value if isinstance(one, dict)]
            asked = len(left) == len(s.those(messages.TURNS)) > 0
            if asked and all(len(one["rest"]) == len(place) for one in left):
                certain, factor[place] = _certainty(
                    known, np.vstack([every[0], design[new]]), left, w
                )
                fine[place] &= certain
                factor[place] = np.where(fine[place], factor[place], np.nan)
        if np.isfinite(factor).any():
            variance = np.concatenate([known.covariances.variance(some) for some in every])
            error = factor * np.sqrt(np.maximum(variance, 0.0))
    known_parts = design[:, 1 + p :]
    return Final(*sums, eta, trained, before, known, error, factor, fine, known_parts, least, met)


def _certainty(
    known: Known, targets: FloatArray, left: list[dict[str, FloatArray]], w: FloatArray
) -> tuple[BoolArray, FloatArray]:
    """Whether each target means something; factor on its error by what the partners hide."""
    # what partners hide adds up, as variances do
    rest = np.sum([one["rest"] for one in left], axis=0)
    relative = np.sqrt(np.sum([np.square(one["relative"]) for one in left], axis=0))
    rho = known.correlation(w)
    variance = np.einsum("id,de,ie->i", targets, known.covariances.model, targets)
    factor = joint_glm.bounded_factor(np.sqrt(np.maximum(variance, 0.0)), rest, rho)
    certain = np.all([np.asarray(one["estimable"]) > 0 for one in left], axis=0)
    return certain, np.where(relative <= joint_glm.CERTIFIED, 1.0, factor)


# --------------------------------------------------------------------------- beside the own model


def own_model(joint: Joint, known: Known | None) -> tuple[dict[str, FloatArray], FloatArray]:
    """Coefficients of the initiator's own model with errors, and its linear predictor of all rows.

    It is a fit of the true response; the training began with it where the response is not masked.
    """
    s, x, rows, true = joint.s, joint.x, joint.rows, joint.s.true_family()
    v = rows.training_weights
    if s.acceleration == messages.SPAN and not s.masked:
        coef, intercept = np.asarray(joint.alone["coef"]), float(joint.alone["intercept"])
        eta = x @ coef + intercept + rows.offset
    else:
        found = glm.fit(x, rows.y, true, offset=rows.offset, weights=v, penalty=s.penalty())
        coef, intercept, eta = found.coef, found.intercept, found.eta
    error = np.full(len(coef) + 1, np.nan)
    if not s.alpha:
        whole = np.column_stack([np.ones(len(x)), x]) if known is None else known.design
        design = whole[:, : 1 + len(coef)]
        covariance = sandwich(design, rows.y, eta, true, v, s.errors, rows.clusters).covariance
        error = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return {"alone": np.append(intercept, coef), "alone_error": error}, eta


def compared(
    joint: Joint, trained: FloatArray, alone: FloatArray
) -> tuple[dict[str, float], FloatArray]:
    """Compare two linear predictors of all rows, of the joint and the own model, by true response.

    Returns
    -------
    figures : dict of str to float
        On the training rows and on those held out; NaN where there is nothing to say.
    predicted : (2, h) array
        Mean response of the held-out rows by the own model and by the joint one.
    """
    s, rows, true = joint.s, joint.rows, joint.s.true_family()
    if s.masked and s.masking == "as_printed":
        mean = s.training_family().mean(trained)
        p = np.clip((mean - s.flip) / (1 - 2 * s.flip), 1e-6, 1 - 1e-6)
        trained = np.log(p / (1 - p))
    used, held = rows.train, rows.held
    null = np.full(len(trained), float(true.start(rows.y[used], rows.weights[used])))
    if rows.offset.any():
        v, none = rows.training_weights, np.empty((len(trained), 0))
        null = glm.fit(none, rows.y, true, offset=rows.offset, weights=v).eta
    etas = {"null": null, "alone": alone, "joint": trained}
    figures = {
        f"deviance_{way}": true.deviance(rows.y[used], eta[used], rows.weights[used])
        for way, eta in etas.items()
    }
    # pseudo R2: share of the deviance of a constant that is gone
    whole = figures["deviance_null"]
    for way in ("alone", "joint"):
        figures[f"r2_{way}"] = 1 - figures[f"deviance_{way}"] / whole if whole > 0 else np.nan
    y, v, gaps = rows.y[held], rows.weights[held], not held.any()
    for way, eta in etas.items():
        mean_deviance = np.nan if gaps else true.deviance(y, eta[held], v) / float(v.sum())
        figures[f"holdout_{way}"] = mean_deviance
        auc = np.nan if gaps or s.family != "binomial" else area(y, eta[held])
        figures[f"auc_{way}"] = auc
    gain = 2 * (true.loss(y, alone[held]) - true.loss(y, trained[held]))
    mean_gain = np.nan if gaps else float(v @ gain / v.sum())
    # standard error of a weighted mean of paired differences, of whole clusters where there are
    rest = v * (gain - mean_gain)
    if rows.clusters is not None:
        groups = np.unique(rows.clusters[held], return_inverse=True)[1]
        rest = np.asarray(np.bincount(groups, weights=rest), dtype=float)
        rest *= np.sqrt(len(rest) / max(len(rest) - 1, 1))  # few clusters, around their own mean
    error = np.nan if len(rest) < 2 else float(np.sqrt(rest @ rest) / v.sum())
    figures |= {"gain": mean_gain, "gain_error": error}
    return figures, np.stack([true.mean(alone[held]), true.mean(trained[held])])


def area(y: FloatArray, score: FloatArray) -> float:
    """Area under the receiver operating curve, ties counted half; NaN with one class."""
    from scipy.stats import rankdata

    n1 = float(y.sum())
    n0 = len(y) - n1
    if not n1 or not n0:
        return float("nan")
    return float((rankdata(score)[y > 0].sum() - n1 * (n1 + 1) / 2) / (n0 * n1))


def calibration(
    predictions: FloatArray, observed: FloatArray, limits: disclosure.Limits
) -> Released:
    """Mean prediction and mean response by part of the prediction; small parts are withheld."""
    h = len(observed)
    bins = int(np.clip(h // 60, 2, messages.MOST_BINS))
    parts = []
    for predicted in predictions:
        if not h:
            parts.append(aggregate(np.empty((0, 2)), cells=np.empty(0, int), n_cells=bins))
            continue
        # ranks: groups of equal size, ties in the order of the rows
        order = np.argsort(np.argsort(predicted, kind="stable"), kind="stable")
        pairs = np.stack([predicted, observed], axis=1)
        means = aggregate(pairs, cells=order * bins // h, n_cells=bins, mean=True)
        parts.append(means.withhold_unsafe(limits))
    return disclosure.stacked([p.withhold(np.isnan(np.asarray(p.value))) for p in parts])


# --------------------------------------------------------------------------- the initiator


@step("conclude", once=True)
def conclude(
    message: messages.ConcludeRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Concluded, State]:
    """Compare with the initiator's own model, infer, and predict whom nobody knows yet."""
    s = settings_of(message, site, "initiator")
    fitters = s.partners[: len(message.part.value)]
    if site.senders.get("rest", s.partners) != s.partners or any(
        site.senders.get(name, fitters) != fitters for name in ("part", "errors")
    ):
        raise ProtocolError("further directions that are not from the partners in their order")
    joint = Joint(s, data, site, state)
    rows, final = joint.rows, final_fit(joint, message)
    beside, alone = own_model(joint, final.known)
    figures, predicted = compared(joint, final.trained, alone)
    figures["correlation"] = final.met
    names = (messages.INTERCEPT, *data.feature_names)
    k, known = len(names), final.known
    estimate, error = np.append(final.intercept, final.coef), np.full(k, np.nan)
    factor, fine = final.factor[:k], final.estimable[:k]
    status = (messages.PENALISED,) * k
    # what each partner needs to infer on its coefficients, where all directions are known
    places = [
        {"weights": w, "covariance": np.empty((0, 0)), "shared": np.empty((len(w), 0))}
        for w in final.weights
    ]
    if not s.alpha:
        estimate, error = np.where(fine, estimate, np.nan), final.error[:k]
        certain = np.where(factor == 1, messages.IDENTIFIED, messages.BOUNDED)
        certain = np.where(np.isnan(factor), messages.UNCERTAIN, certain)
        status = tuple(np.where(fine, certain, messages.SHARED).tolist())
    if known is not None and message.complete and s.interval != "none":
        found = known.covariances
        # So that a direction which others have moves the linear predictor by about 1 in every row.
        null = found.null / found.lengths[:, None] * np.sqrt(data.n_rows)
        for place, back, at in zip(places, known.backs, known.places, strict=True):
            place["covariance"] = back @ found.covariance[at, at] @ back.T
            place["shared"] = back @ null[at]
    table = {"estimate": estimate, "error": error, "factor": factor, **beside}
    # what is certain needs no other limits, and what is shared has none
    unsure = np.isnan(factor) & fine
    table |= {name: np.where(unsure, final.least[i], np.nan) for i, name in enumerate(LEAST)}
    low, high, widths = _intervals(joint, final, [np.asarray(v) for v in message.variances.value])
    _outputs(site, joint, final, low, high, message.complete and s.interval != "none")
    site.table("coefficients", {"name": names, **table, "status": status})
    shown = names if s.names and site.share_names else tuple(f"x{j}" for j in range(k))
    n = int(rows.train.sum())
    if n < 2 * k:  # so many coefficients of so few rows stay here
        shown, status, table = (), (), {name: v[:0] for name, v in table.items()}
    table = {name: np.nan_to_num(v, nan=GAP) for name, v in table.items()}
    figures = {name: float(v) if np.isfinite(v) else GAP for name, v in figures.items()}
    purposes = {"train": rows.train, "held": rows.held, "new": rows.new}
    least = site.limits.min_records
    counts = {name: _few(int(mask.sum()), least) for name, mask in purposes.items()}
    for name, part in (("clusters", rows.train), ("held_clusters", rows.held)):
        counts[name] = 0 if rows.clusters is None else len(np.unique(rows.clusters[part]))
    if known is not None:
        counts["clusters"] = known.covariances.n_clusters
    reply = messages.Concluded(
        names=shown,
        coefficients=model(table, kind="linear", n_records=n, n_parameters=len(status)),
        status=status,
        fit=model(figures, kind="figures", n_records=n),
        calibration=calibration(predicted, rows.y[rows.held], site.limits),
        intervals=model(widths, kind="figures", n_records=n),
        records=model(counts, kind="figures", n_records=n),
        offset=data.offset is not None,
    )
    # decided here, by the response that was fitted: later questions may have other settings
    told = [training.may_know(s, site, partner) for partner in s.partners]
    places = [place if may else UNTOLD for place, may in zip(places, told, strict=True)]
    return reply, {"concluded": {"partners": s.partners, "places": tuple(places)}}


def _few(count: int, least: int = FEW) -> int:
    """Number of rows; a few are told as -1."""
    return count if count == 0 or count >= least else -1


def _intervals(
    joint: Joint, final: Final, variances: list[FloatArray]
) -> tuple[FloatArray, FloatArray, dict[str, float]]:
    """Limits of the mean response of every row, where they are known."""
    from scipy.stats import norm

    s, rows, n = joint.s, joint.rows, joint.data.n_rows
    error, level, factor = np.full(n, np.nan), s.level, final.factor[-n:]
    if s.interval == "joint":
        error = final.error[-n:]
    elif s.interval in ("inflated", "paper") and not s.alpha:
        factor = np.ones(n)
        if all(len(variance) == n for variance in variances):
            # no further direction of a partner's columns is needed
            y, v, eta, fam = joint.y, rows.training_weights, final.eta, s.training_family()
            w, score = v * working_weights(fam, y, eta), v * fam.score(y, eta)
            own, robust = joint_glm.local_errors(joint.x, w, score, joint.x, constant=True)
            if s.interval == "paper":
                # One interval for each party's part, at a level that holds for all of them.
                level = 1 - (1 - s.level) / (1 + len(variances))
                error = np.asarray(np.sqrt(robust) + np.sum(np.sqrt(variances), axis=0))
            elif len(variances) == 1 and len(joint.course) >= 5:
                rho = joint_glm.contraction(joint.course[:, 1])
                error = joint_glm.inflated(own, variances[0], rho) if rho < 1 else error
    # limits of the predictor, mapped by the monotone inverse link
    reach = float(norm.ppf((1 + level) / 2)) * error
    if final.known is not None and s.interval == "joint":
        reach = quantile(level, final.known.covariances.n_clusters) * error
    low, high = np.sort(s.mean(np.stack([final.eta - reach, final.eta + reach])), axis=0)
    known = np.isfinite(error) & rows.new
    certain = known & (factor == 1)
    facts = {
        "certified": _few(int(certain.sum())),
        "bounded": _few(int((known & ~certain).sum())),
        "mean_width": float(np.mean((high - low)[known])) if known.sum() >= FEW else GAP,
    }
    return low, high, facts


def _outputs(
    site: SiteContext, joint: Joint, final: Final, low: FloatArray, high: FloatArray, complete: bool
) -> None:
    """What the initiator keeps: predictions with limits, and a predictor for later."""
    s, data, rows, known = joint.s, joint.data, joint.rows, final.known
    for name, values in (
        ("linear_predictor", final.eta),
        ("partners_part", final.eta - rows.offset - (final.intercept + data.features @ final.coef)),
        ("prediction", s.mean(final.eta)),
        ("lower", low),
        ("upper", high),
        ("held_out", rows.held.astype(np.int64)),
        ("is_new", rows.new.astype(np.int64)),
    ):
        site.output(name, values)
    shift, scale = units_of(data)
    covariance = np.empty((0, 0))

    def in_units(intercept: float, coef: FloatArray) -> tuple[float, FloatArray]:
        """Constant and coefficients of the columns as the table has them."""
        return intercept - float(shift @ (coef / scale)), coef / scale

    constant, before, weights = final.before
    constant, before = in_units(constant, before)
    weights_before = dict(zip(s.partners, weights, strict=True))
    held = (final.trained[rows.held], rows.y[rows.held], rows.held_counts)
    unseen = Unseen(constant, before, weights_before, *held)
    for name, values in unseen.of_people(s, final.trained[rows.new], s.level).items():
        every = np.full(data.n_rows, np.nan)
        every[rows.new] = values
        site.output(name, every)
    if known is not None and complete:
        # of intercept, own coefficients and weights of directions, in the table's units
        own, row = np.arange(1, 1 + len(scale)), 1 + len(scale)
        turn = np.zeros((row + sum(len(b) for b in known.backs), known.design.shape[1]))
        turn[0, 0] = 1.0
        # x = scale z + shift, so b0 = b0_z - sum_j b_j shift_j / scale_j
        turn[0, own] = -shift / scale
        turn[own, own] = 1 / scale
        for back, place in zip(known.backs, known.places, strict=True):
            turn[row : row + len(back), place] = back
            row += len(back)
        covariance = np.asarray(turn @ known.covariances.covariance @ turn.T)
    intercept, coef = in_units(final.intercept, final.coef)
    predictor = AssistedPredictor(
        role="initiator",
        names=data.feature_names,
        coef=coef,
        centre=np.zeros(len(scale)),
        intercept=intercept,
        directions=np.empty((len(scale), 0)),
        settings=s,
        weights=dict(zip(s.partners, final.weights, strict=True)),
        covariance=covariance,
        n_clusters=0 if known is None else known.covariances.n_clusters,
        offset=data.offset is not None,
        known=final.theirs[np.argsort(data.rows, kind="stable")],
        unseen=unseen,
    )
    site.output("predictor", predictor)


@step("tell")
def tell(
    message: messages.TellRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Told, State]:
    """Tell a partner the weights of its directions, and what its errors need; or nothing."""
    training.require_role(site, "initiator")
    kept = state["concluded"]
    o = kept["partners"].index(message.partner)
    place = {name: np.asarray(values) for name, values in kept["places"][o].items()}
    return messages.Told(place=summary_for(place, data, message.partner)), state


# --------------------------------------------------------------------------- a partner


@step("record")
def record(
    message: messages.RecordRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Recorded, State]:
    """Keep the own coefficients, with errors where they are known, and a predictor for later."""
    s = settings_of(message, site, "partner", "place")
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    sent = np.asarray(state["sent"])
    weights = np.asarray(message.place.value["weights"], dtype=float)
    untold = sent.shape[1] > 0 and not len(weights)
    if len(weights) != sent.shape[1] and not untold:
        raise DataError.shared("weights for another number of directions than were sent")
    beta = sent @ weights if len(weights) else np.full(len(own.names), np.nan if untold else 0.0)
    covariance = np.asarray(message.place.value["covariance"], dtype=float)
    status = np.full(len(beta), messages.PENALISED if s.alpha else messages.UNCERTAIN, dtype="U20")
    error = np.full(len(beta), np.nan)
    if covariance.size:
        # columns that take part in a linear relation among the own ones: right singular vectors
        # of nothing are such relations
        factor = own.factor / np.maximum(np.linalg.norm(own.factor, axis=0), 1e-300)
        _, size, turn = np.linalg.svd(factor, full_matrices=True)
        size = np.append(size, np.zeros(len(turn) - len(size)))
        null = turn[size <= 1e-8 * size.max(initial=0.0)]
        dependent = np.abs(null).max(axis=0, initial=0.0) > 1e-6
        # coefficients are B weights, so their variances B Cov B'
        error = np.sqrt(np.maximum(np.einsum("jk,kl,jl->j", sent, covariance, sent), 0.0))
        shared = np.abs(sent @ np.asarray(message.place.value["shared"]))
        common = (shared * data.features.std(axis=0)[:, None] > 1e-6).any(axis=1)
        status = np.where(common | dependent, messages.SHARED, messages.IDENTIFIED)
        error = np.where(status == messages.IDENTIFIED, error, np.nan)
    if "errors" in state:
        # all columns were fitted here
        fine = np.asarray(state["identified"], dtype=bool)
        status = np.where(fine, messages.IDENTIFIED, messages.SHARED)
        error = np.where(fine, state["errors"], np.nan)
    if untold:
        status = np.full(len(beta), messages.ELSEWHERE)
        site.note(
            "The coefficients of this party's columns stay with the initiator: with them one can "
            "work out its response, which its policy does not share (share_response)."
        )
    shown = np.where(status == messages.SHARED, np.nan, beta)
    site.table(
        "coefficients", {"name": own.names, "estimate": shown, "error": error, "status": status}
    )
    if not untold:
        site.output("linear_predictor", own.along(beta))
    predictor = AssistedPredictor(
        role="partner",
        names=own.names,
        coef=own.unscaled(beta),
        centre=data.features.mean(axis=0) * own.scale + units_of(data)[0],
        directions=own.unscaled(sent),
        settings=s,
    )
    site.output("predictor", predictor)
    return messages.Recorded(), {}


STEPS = (aim, refine, conclude, tell, record)
