"""Steps after the training: compare, infer, predict, and give every party its own part."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.assisted.glm import warm
from consilience.assisted.glm.closing import (
    BOUNDED,
    IDENTIFIED,
    PENALISED,
    SHARED,
    UNCERTAIN,
    Concluded,
    ConcludeRequest,
    Recorded,
    RecordRequest,
    TellRequest,
    Told,
)
from consilience.assisted.glm.comparison import comparison
from consilience.assisted.glm.messages import GAP, SPAN, Settings
from consilience.assisted.glm.predictor import AssistedPredictor
from consilience.assisted.glm.refining import (
    Certainty,
    Known,
    blocks_of,
    certainty,
    known_design,
    target_rows,
)
from consilience.assisted.glm.rows import Rows
from consilience.assisted.glm.training import (
    Joint,
    endless_fit,
    require_role,
    require_sender,
    told,
)
from consilience.assisted.kernels import glm
from consilience.assisted.kernels.joint_intervals import contraction, inflated, local_errors
from consilience.assisted.kernels.local_fits import working_weights
from consilience.assisted.kernels.sandwich import sandwich
from consilience.assisted.phases.own_columns import OwnColumns
from consilience.exceptions import DataError, ProtocolError
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import model

# --------------------------------------------------------------------------- the joint fit


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
    known : Known or None
        Design and covariances; None under a penalty.
    certainty : Certainty
        Of the own coefficients (1 + p), then of every row.
    """

    intercept: float
    coef: FloatArray
    weights: tuple[FloatArray, ...]
    eta: FloatArray
    trained: FloatArray
    known: Known | None
    certainty: Certainty


def final_fit(
    s: Settings,
    data: SiteData,
    rows: Rows,
    joint: Joint,
    state: State,
    *,
    rest: list[FloatArray],
    left: list[dict[str, FloatArray]],
    hidden: int,
    complete: bool,
) -> Final:
    """Fit once more, on all rows with a response, where everything needed for it is known.

    With all directions of the partners the model on ``[1, X_a, M]`` is the pooled one, so the rows
    that were held out join without a further message. Under a masked response they cannot: their
    response was never masked.
    """
    whole = complete and not s.alpha
    blocks = blocks_of(joint, s, state)
    if whole:
        blocks = [np.column_stack([b, more]) for b, more in zip(blocks, rest, strict=True)]
    design, backs = known_design(s, data, blocks)
    fam, p = s.training_family(), data.features.shape[1]
    if not whole:
        found = joint.model
        weights = [
            np.append(w := joint.weights_for(o), np.zeros(b.shape[1] - len(w)))
            for o, b in enumerate(blocks)
        ]
        y, case, eta = joint.y, rows.training_weights, np.asarray(found.eta)
        covariances = None if s.alpha else sandwich(design, y, eta, fam, case)
        intercept, coef, trained = float(found.intercept), np.asarray(found.coef_a), eta
    else:
        # Whatever ended the training: on the complete design its fit is found without a message.
        fitted = _on_design(design, joint, rows.training_weights)
        trained = fitted.eta
        y, case = joint.y, rows.training_weights
        if not s.masked and rows.held.any():
            y, case = rows.y, np.where(rows.known, rows.weights, 0.0)
            fitted = glm.fit(
                design[:, 1:], y, fam, weights=case, start=(fitted.coef, fitted.intercept)
            )
        intercept, coef, eta = float(fitted.intercept), fitted.coef[:p], fitted.eta
        covariances = sandwich(design, y, eta, fam, case)
        weights = [
            back @ fitted.coef[place.start - 1 : place.stop - 1]
            for back, place in zip(backs, Known(design, backs, covariances).blocks(p), strict=True)
        ]
    known = None
    if covariances is not None:
        # Coefficients of hidden directions take degrees of freedom too.
        left_over = int((case > 0).sum()) - covariances.rank
        if left_over <= hidden:
            sentence = (
                "the parties have as many columns together as there are rows with a response: "
                "set a penalty (alpha), or leave columns out"
            )
            raise DataError(sentence, public=sentence)
        grown = covariances.covariance * left_over / (left_over - hidden)
        known = Known(design, backs, dataclasses.replace(covariances, covariance=grown))
    n_targets = p + 1 + data.n_rows
    judged = Certainty(np.full(n_targets, np.nan), np.ones(n_targets, dtype=bool))
    if known is not None:
        w = case * working_weights(fam, y, eta)
        judged = _judged(s, data, rows, known, left, w, whole)
    fit_of = (np.asarray(eta), np.asarray(trained))
    return Final(intercept, np.asarray(coef), tuple(weights), *fit_of, known, judged)


def _on_design(design: FloatArray, joint: Joint, weights: FloatArray) -> glm.Fit:
    """Fit of the training rows on the complete design, from where the training ended."""
    begin = np.linalg.lstsq(design[:2000], joint.model.eta[:2000], rcond=None)[0]
    start = (begin[1:], float(begin[0]))
    fam = joint.s.training_family()
    found = glm.fit(design[:, 1:], joint.y, fam, weights=weights, start=start)
    if found.separated:
        raise endless_fit()
    return found


def _judged(
    s: Settings,
    data: SiteData,
    rows: Rows,
    known: Known,
    left: list[dict[str, FloatArray]],
    w: FloatArray,
    whole: bool,
) -> Certainty:
    """What the errors of the own coefficients and of every row's linear predictor are worth."""
    p = data.features.shape[1]
    if whole and not known.covariances.null.shape[1]:
        n_targets = p + 1 + data.n_rows
        return Certainty(np.ones(n_targets), np.ones(n_targets, dtype=bool))
    every = np.vstack([np.eye(p + 1, known.design.shape[1]), known.design])
    fine = known.covariances.identified(every)
    if whole:
        return Certainty(np.where(fine, 1.0, np.nan), fine)
    place = np.append(np.arange(p + 1), p + 1 + target_rows(rows))
    found = certainty(s, known, p, every[place], left, w)
    factor = np.full(len(every), np.nan)
    factor[place], fine[place] = found.factor, found.estimable
    return Certainty(factor, fine)


# --------------------------------------------------------------------------- the initiator


@step("conclude", once=True)
def conclude(
    message: ConcludeRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Concluded, State]:
    """Compare with the initiator's own model, infer, and predict whom nobody knows yet."""
    require_role(site, "initiator")
    s = Settings.from_json(message.settings)
    if site.senders.get("rest", s.partners) != s.partners:
        raise ProtocolError("further directions that are not from the partners in their order")
    rows = warm.rows_by_purpose(data, s, site)
    joint = Joint(s, data, rows, state)
    rest = [_checked(np.asarray(block), data) for block in message.rest.value]
    left = [dict(one) for one in message.left.value if isinstance(one, dict)]
    final = final_fit(
        s,
        data,
        rows,
        joint,
        state,
        rest=rest,
        left=left,
        hidden=message.hidden,
        complete=message.complete,
    )
    alone = _alone(s, data, rows, joint)
    compared = comparison(s, rows, final.trained, alone.eta, s.training_family())
    table, status = _coefficients(data, final, s)
    table |= _beside(s, data, rows, alone)
    low, high, widths = _intervals(s, data, rows, final, joint, message.variances.value)
    _outputs(site, s, data, rows, final, low, high, message.complete)
    table_names = ("(intercept)", *data.feature_names)
    numbered = tuple(f"x{j}" for j in range(len(table_names)))
    shown = table_names if s.names and site.share_names else numbered
    site.table("coefficients", {"name": table_names, **table, "status": status})
    n = int(rows.train.sum())
    if n < 2 * len(status):  # so many coefficients of so few rows stay here
        shown, status, table = (), (), {k: v[:0] for k, v in table.items()}
    reply = Concluded(
        names=shown,
        coefficients=model(
            {k: np.nan_to_num(v, nan=GAP) for k, v in table.items()},
            kind="linear",
            n_records=n,
            n_parameters=len(status),
        ),
        status=status,
        fit=model(_plain(compared.figures), kind="figures", n_records=n),
        calibration=compared.calibration(site.limits),
        intervals=model(widths, kind="figures", n_records=n),
        records=model(_counts(rows, site), kind="figures", n_records=n),
    )
    kept = {
        "weights": tuple(final.weights),
        "covariances": _partner_covariances(data, final, message.complete),
        "shared": _partner_null(data, final, message.complete),
        "settings": message.settings,
    }
    return reply, {"concluded": kept}


@dataclass(frozen=True, eq=False)
class Alone:
    """The initiator's own model: coefficients, and the linear predictor of all rows."""

    coef: FloatArray
    intercept: float
    eta: FloatArray


def _alone(s: Settings, data: SiteData, rows: Rows, joint: Joint) -> Alone:
    """Fit of the true response; the training began with it where the response is not masked."""
    if s.acceleration == SPAN and not s.masked:
        coef, intercept = np.asarray(joint.alone["coef"]), float(joint.alone["intercept"])
        return Alone(coef, intercept, data.features @ coef + intercept)
    v, true = rows.training_weights, s.true_family()
    found = glm.fit(data.features, rows.y, true, weights=v, penalty=s.penalty())
    return Alone(found.coef, found.intercept, found.eta)


def _beside(s: Settings, data: SiteData, rows: Rows, alone: Alone) -> dict[str, FloatArray]:
    """Coefficients of the initiator's own model."""
    estimate = np.append(alone.intercept, alone.coef)
    if s.alpha:
        return {"alone": estimate, "alone_error": np.full(len(estimate), np.nan)}
    design = np.column_stack([np.ones(data.n_rows), data.features])
    found = sandwich(design, rows.y, alone.eta, s.true_family(), rows.training_weights)
    error = np.sqrt(np.maximum(np.diag(found.covariance), 0.0))
    return {"alone": estimate, "alone_error": error}


def _plain(figures: dict[str, float]) -> dict[str, float]:
    return {k: GAP if not np.isfinite(v) else float(v) for k, v in figures.items()}


def _counts(rows: Rows, site: SiteContext) -> dict[str, int]:
    """Rows by part; few rows are told as -1."""
    counts = {"train": rows.train.sum(), "held": rows.held.sum(), "new": rows.new.sum()}
    least = site.limits.min_records
    return {k: int(v) if v == 0 or v >= least else -1 for k, v in counts.items()}


def _checked(block: FloatArray, data: SiteData) -> FloatArray:
    if not block.size:
        return np.empty((data.n_rows, 0))
    if block.shape[0] != data.n_rows:
        sentence = "further directions with other rows"
        raise DataError(sentence, public=sentence)
    return block


def _coefficients(
    data: SiteData, final: Final, s: Settings
) -> tuple[dict[str, FloatArray], tuple[str, ...]]:
    """Estimates of the initiator's coefficients, their errors, and what each of them is."""
    p = data.features.shape[1]
    estimate = np.append(final.intercept, final.coef)
    factor, fine = final.certainty.factor[: p + 1], final.certainty.estimable[: p + 1]
    error = np.full(p + 1, np.nan)
    status = [PENALISED] * (p + 1)
    if final.known is not None:
        pick = np.eye(p + 1, final.known.design.shape[1])
        error = factor * np.sqrt(np.maximum(final.known.covariances.variance(pick), 0.0))
        status = [
            (SHARED if not ok else UNCERTAIN if np.isnan(f) else IDENTIFIED if f == 1 else BOUNDED)
            for f, ok in zip(factor, fine, strict=True)
        ]
        estimate = np.where(fine, estimate, np.nan)
    return {"estimate": estimate, "error": error, "factor": factor}, tuple(status)


def _partner_covariances(data: SiteData, final: Final, complete: bool) -> tuple[FloatArray, ...]:
    """Covariance of the weights of each partner's directions, where all of them are known."""
    if final.known is None or not complete:
        return tuple(np.empty((0, 0)) for _ in final.weights)
    found, places = final.known.covariances, final.known.blocks(data.features.shape[1])
    return tuple(
        back @ found.covariance[place, place] @ back.T
        for back, place in zip(final.known.backs, places, strict=True)
    )


def _partner_null(data: SiteData, final: Final, complete: bool) -> tuple[FloatArray, ...]:
    """Combinations of each partner's directions that others have too."""
    if final.known is None or not complete:
        return tuple(np.empty((len(w), 0)) for w in final.weights)
    found, places = final.known.covariances, final.known.blocks(data.features.shape[1])
    # So that a direction which others have moves the linear predictor by about 1 in every row.
    null = found.null / found.lengths[:, None] * np.sqrt(len(final.eta))
    return tuple(back @ null[place] for back, place in zip(final.known.backs, places, strict=True))


# --------------------------------------------------------------------------- intervals


def _intervals(
    s: Settings, data: SiteData, rows: Rows, final: Final, joint: Joint, variances: Any
) -> tuple[FloatArray, FloatArray, dict[str, float]]:
    """Limits of the mean response of every row, where they are known."""
    from scipy.stats import norm

    n, p = data.n_rows, data.features.shape[1]
    error, reach = np.full(n, np.nan), float(norm.ppf((1 + s.level) / 2))
    factor = final.certainty.factor[p + 1 :]
    if final.known is not None and s.interval == "joint":
        variance = final.known.covariances.variance(final.known.design)
        error = factor * np.sqrt(np.maximum(variance, 0.0))
    elif s.interval in ("inflated", "paper") and not s.alpha:
        error, reach = _local_intervals(s, data, rows, final, joint, variances)
        factor = np.ones(n)
    ends = np.stack([final.eta - reach * error, final.eta + reach * error])
    low, high = np.sort(mean_of(s, ends), axis=0)
    known = np.isfinite(error) & rows.new
    certain = known & (factor == 1)
    facts = {
        "certified": _few(int(certain.sum())),
        "bounded": _few(int((known & ~certain).sum())),
        "mean_width": float(np.mean((high - low)[known])) if known.sum() >= 10 else GAP,
    }
    return low, high, facts


def _few(count: int) -> int:
    """Number of new people; a few are told as -1."""
    return count if count == 0 or count >= 10 else -1


def _local_intervals(
    s: Settings, data: SiteData, rows: Rows, final: Final, joint: Joint, variances: Any
) -> tuple[FloatArray, float]:
    """The two ways that need no further direction of a partner's columns."""
    from scipy.stats import norm

    theirs = [np.asarray(v) for v in variances]
    gaps = np.full(data.n_rows, np.nan)
    if any(len(v) != data.n_rows for v in theirs):
        return gaps, np.nan
    v, fam = rows.training_weights, s.training_family()
    w, score = v * working_weights(fam, joint.y, final.eta), v * fam.score(joint.y, final.eta)
    by_model, robust = local_errors(data.features, w, score, data.features, constant=True)
    if s.interval == "paper":
        # One interval for each party's part, at a level that holds for all of them together.
        level = 1 - (1 - s.level) / (1 + len(theirs))
        reach = float(norm.ppf((1 + level) / 2))
        return np.asarray(np.sqrt(robust) + np.sum(np.sqrt(theirs), axis=0)), reach
    reach = float(norm.ppf((1 + s.level) / 2))
    if len(theirs) != 1 or len(joint.course) < 5:
        return gaps, reach
    rho = contraction(joint.course[:, 1])
    return (inflated(by_model, theirs[0], rho) if rho < 1 else gaps), reach


def mean_of(s: Settings, eta: FloatArray) -> FloatArray:
    """Mean of the true response."""
    plain = s.true_family().mean(eta)
    if s.masked and s.masking == "as_printed":
        # The fit is a plain one of the masked response: its mean is mapped back and cut.
        plain = np.clip((plain - s.flip) / (1 - 2 * s.flip), 0.0, 1.0)
    return np.asarray(plain)


def _outputs(
    site: SiteContext,
    s: Settings,
    data: SiteData,
    rows: Rows,
    final: Final,
    low: FloatArray,
    high: FloatArray,
    complete: bool,
) -> None:
    """What the initiator keeps: predictions with limits, and a predictor for later."""
    part = final.intercept + data.features @ final.coef
    site.output("linear_predictor", final.eta)
    site.output("partners_part", final.eta - part)
    site.output("prediction", mean_of(s, final.eta))
    site.output("lower", low)
    site.output("upper", high)
    site.output("held_out", rows.held.astype(np.int64))
    site.output("is_new", rows.new.astype(np.int64))
    own = OwnColumns.of(data)
    scale = own.scale
    shift = np.zeros(len(scale)) if data.scaling is None else data.scaling[1]
    coef = final.coef / scale
    covariance = _raw_covariance(data, final, scale, shift, complete)
    site.output(
        "predictor",
        AssistedPredictor(
            role="initiator",
            names=data.feature_names,
            coef=coef,
            centre=np.zeros(len(scale)),
            intercept=final.intercept - float(shift @ coef),
            directions=np.empty((len(scale), 0)),
            settings=s.to_json(),
            weights=dict(zip(s.partners, final.weights, strict=True)),
            covariance=covariance,
        ),
    )


def _raw_covariance(
    data: SiteData, final: Final, scale: FloatArray, shift: FloatArray, complete: bool
) -> FloatArray:
    """Covariance of intercept, own coefficients and weights of directions, in the table's units."""
    if final.known is None or not complete:
        return np.empty((0, 0))
    p = data.features.shape[1]
    backs = final.known.backs
    turn = np.zeros((1 + p + sum(len(b) for b in backs), final.known.design.shape[1]))
    turn[0, 0] = 1.0
    turn[0, 1 : 1 + p] = -shift / scale
    turn[np.arange(1, 1 + p), np.arange(1, 1 + p)] = 1 / scale
    row = 1 + p
    for back, place in zip(backs, final.known.blocks(p), strict=True):
        turn[row : row + len(back), place] = back
        row += len(back)
    return np.asarray(turn @ final.known.covariances.covariance @ turn.T)


@step("tell")
def tell(
    message: TellRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Told, State]:
    """Tell a partner the weights of its directions, with what its standard errors need."""
    require_role(site, "initiator")
    kept = state["concluded"]
    s = Settings.from_json(kept["settings"])
    o = s.partners.index(message.partner)
    place = {
        "weights": np.asarray(kept["weights"][o]),
        "covariance": np.asarray(kept["covariances"][o]),
        "shared": np.asarray(kept["shared"][o]),
    }
    return Told(place=told(place, data, message.partner)), state


# --------------------------------------------------------------------------- a partner


@step("record")
def record(
    message: RecordRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Recorded, State]:
    """Keep the own coefficients, with errors where they are known, and a predictor for later."""
    require_role(site, "partner")
    s = Settings.from_json(message.settings)
    require_sender(site, "place", s.initiator)
    own = OwnColumns.of(data, np.asarray(state["factor"]))
    sent = np.asarray(state["sent"])
    weights = np.asarray(message.place.value["weights"], dtype=float)
    if len(weights) != sent.shape[1]:
        sentence = "weights for another number of directions than were sent"
        raise DataError(sentence, public=sentence)
    beta = sent @ weights if len(weights) else np.zeros(len(own.names))
    covariance = np.asarray(message.place.value["covariance"], dtype=float)
    status = np.full(len(beta), PENALISED if s.alpha else UNCERTAIN, dtype="U20")
    error = np.full(len(beta), np.nan)
    if covariance.size:
        error = np.sqrt(np.maximum(np.einsum("jk,kl,jl->j", sent, covariance, sent), 0.0))
        shared = np.abs(sent @ np.asarray(message.place.value["shared"]))
        common = (shared * data.features.std(axis=0)[:, None] > 1e-6).any(axis=1)
        dependent = _dependent(own)
        status = np.where(common | dependent, SHARED, IDENTIFIED)
        error = np.where(status == IDENTIFIED, error, np.nan)
    shown = np.where(status == SHARED, np.nan, beta)
    site.table(
        "coefficients", {"name": own.names, "estimate": shown, "error": error, "status": status}
    )
    site.output("linear_predictor", own.centred @ beta)
    shift = np.zeros(len(own.names)) if data.scaling is None else data.scaling[1]
    site.output(
        "predictor",
        AssistedPredictor(
            role="partner",
            names=own.names,
            coef=own.unscaled(beta),
            centre=data.features.mean(axis=0) * own.scale + shift,
            intercept=0.0,
            directions=own.unscaled(sent),
            settings=s.to_json(),
            weights={},
            covariance=np.empty((0, 0)),
        ),
    )
    return Recorded(), {}


def _dependent(own: OwnColumns) -> NDArray[np.bool_]:
    """Columns that take part in a linear relation among the own ones."""
    factor = own.factor / np.maximum(np.linalg.norm(own.factor, axis=0), 1e-300)
    _, size, turn = np.linalg.svd(factor, full_matrices=True)
    size = np.append(size, np.zeros(len(turn) - len(size)))
    null = turn[size <= 1e-8 * size.max(initial=0.0)]
    return np.asarray(np.abs(null).max(axis=0, initial=0.0) > 1e-6)
