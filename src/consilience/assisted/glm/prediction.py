"""Steps of a run that follows another one: predict new people with every party's kept part."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from consilience.arrays import FloatArray
from consilience.assisted.glm.closing import Part, PartRequest, Predicted, PredictRequest
from consilience.assisted.glm.conclusion import mean_of
from consilience.assisted.glm.messages import Settings
from consilience.assisted.glm.predictor import AssistedPredictor
from consilience.assisted.glm.training import require_role, told
from consilience.assisted.phases.own_columns import OwnColumns
from consilience.exceptions import DataError
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import addressed, model, projection


def _kept(data: SiteData, site: SiteContext, role: str) -> AssistedPredictor:
    """Predictor of the run that this one follows."""
    require_role(site, role)
    found = None if site.followed is None else site.followed.predictor
    if not isinstance(found, AssistedPredictor) or found.role != role:
        sentence = "the run that this one follows left no predictor here"
        raise DataError(sentence, public=sentence)
    if found.names != data.feature_names:
        sentence = "the columns are not those of the run that this one follows"
        raise DataError(sentence, public=sentence)
    return found


def _raw(data: SiteData) -> FloatArray:
    """Columns in the table's units."""
    if data.scaling is None:
        return data.features
    return np.asarray(data.features * data.scaling[2] + data.scaling[1])


@step("part")
def part(
    message: PartRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Part, State]:
    """Send the columns of new people along the directions that are known already."""
    kept = _kept(data, site, "partner")
    own = OwnColumns.of(data)
    x = _raw(data)
    seen = projection(x, kept.directions, names=own.names)
    known, rank, _ = site.revealed(own.factor, own.names, kept.directions)
    shift = (x.mean(axis=0) - kept.centre) @ kept.directions
    reply = Part(
        part=addressed(seen, message.initiator),
        shift=told({"shift": shift}, data, message.initiator),
        known=known,
        rank=rank,
    )
    return reply, state


@step("predict")
def predict(
    message: PredictRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Predicted, State]:
    """Add up the parts; limits where the covariances are known."""
    kept = _kept(data, site, "initiator")
    s = Settings.from_json(kept.settings)
    senders = site.senders.get("part", message.partners)
    if set(kept.weights) != set(message.partners) or senders != message.partners:
        sentence = "predictions need the part of every partner of the run that this one follows"
        raise DataError(sentence, public=sentence)
    x = _raw(data)
    columns = [np.ones((len(x), 1)), x]
    eta = kept.part(x)
    given = {
        name: np.asarray(block) + np.asarray(place["shift"])
        for name, block, place in zip(
            message.partners, message.part.value, message.shift.value, strict=True
        )
    }
    for name, weights in kept.weights.items():
        if given[name].shape != (len(x), len(weights)):
            raise DataError("a part of other rows", public="a part has other rows or directions")
        eta = eta + given[name] @ weights
        columns.append(given[name])
    low = high = np.full(len(x), np.nan)
    if kept.covariance.size:
        design = np.column_stack(columns)
        variance = np.einsum("ij,jk,ik->i", design, kept.covariance, design)
        reach = norm.ppf((1 + message.level) / 2) * np.sqrt(np.maximum(variance, 0.0))
        low, high = np.sort(mean_of(s, np.stack([eta - reach, eta + reach])), axis=0)
    site.output("linear_predictor", eta)
    site.output("prediction", mean_of(s, eta))
    site.output("lower", low)
    site.output("upper", high)
    known = np.isfinite(low)
    facts = {
        "new": len(x),
        "certified": int(known.sum()),
        "mean_width": float((high - low)[known].mean()) if known.any() else -1.0,
    }
    return Predicted(records=model(facts, kind="figures", n_records=len(x))), state
