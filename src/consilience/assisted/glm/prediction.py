"""What each party keeps of a joint fit, and the steps that predict new people with it later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted.glm.messages import Part, PartRequest, Predicted, PredictRequest, Settings
from consilience.assisted.glm.training import require_role, summary_for
from consilience.assisted.kernels.sandwich import calibrated, quantile, response_limits
from consilience.assisted.phases import OwnColumns, units_of
from consilience.exceptions import DataError
from consilience.parameters import plain
from consilience.protocol.method import SiteContext, SiteData, State, step
from consilience.wire.disclosure import addressed, model, projection


@dataclass(frozen=True, eq=False)
class Unseen:
    """Rows that a model has not seen: how far it was from them, it may be from others.

    Attributes
    ----------
    intercept : float
    coef : (p,) array
        Of the initiator's columns, in the table's units.
    weights : dict of partner to array
        Of each partner's directions.
    eta, y, counts : (h,) array
        Linear predictor and response of the rows, and what each counts.
    """

    intercept: float = 0.0
    coef: FloatArray = field(default_factory=lambda: np.empty(0))
    weights: dict[str, FloatArray] = field(default_factory=dict)
    eta: FloatArray = field(default_factory=lambda: np.empty(0))
    y: FloatArray = field(default_factory=lambda: np.empty(0))
    counts: FloatArray = field(default_factory=lambda: np.empty(0))

    def of_people(self, s: Settings, eta: FloatArray, level: float) -> dict[str, FloatArray]:
        """What is said of the response of new people, by this model's linear predictor, (m,).

        Returns
        -------
        dict of str to (m,) array
            Nothing where no row was held out. Of a binomial response ``probability``, calibrated,
            with ``probability_lower`` and ``probability_upper``, between which it could not be
            told. Else ``response_lower`` and ``response_upper``, limits of the response at this
            level; NaN where the rows are too few.
        """
        if not len(self.eta):
            return {}
        if s.family == "binomial":
            low, high = calibrated(self.eta, self.y, eta, self.counts)
            # one number for both, that of the least loss against the better one
            middle = high / (1 - low + high)
            return {
                "probability": middle,
                "probability_lower": low,
                "probability_upper": high,
            }
        low, high = response_limits(s.true_family(), self.eta, self.y, eta, level, self.counts)
        return {"response_lower": low, "response_upper": high}


@dataclass(frozen=True, eq=False)
class AssistedPredictor:
    """One party's part of a joint GLM.

    Attributes
    ----------
    role : {"initiator", "partner"}
    names : tuple of str
        Columns of the party.
    coef : (p,) array
        Their coefficients, in the table's units.
    centre : (p,) array
        Means over the matched rows: a partner's part is that of its columns less these.
    directions : (p, k) array
        Of a partner: combinations of its columns that the initiator knows.
    settings : Settings
        Of the run.
    intercept : float
        Of the initiator; 0 at a partner.
    weights : dict of partner to array
        Of the initiator: weights of each partner's directions.
    covariance : (d, d) array
        Of the initiator: of intercept, own coefficients, weights; empty where it is not known.
    n_clusters : int
        Of the initiator: clusters of its rows; 0 where there are none.
    offset : bool
        Of the initiator: whether the linear predictor has one.
    known : (n, k) array
        Of the initiator: partners' columns along all directions that it knows, by orthonormal
        combinations, in the order of the rows of its table.
    unseen : Unseen
        Of the initiator: rows that were held out, and the model before they joined the fit.
    """

    role: str
    names: tuple[str, ...]
    coef: FloatArray
    centre: FloatArray
    directions: FloatArray
    settings: Settings
    intercept: float = 0.0
    weights: dict[str, FloatArray] = field(default_factory=dict)
    covariance: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    n_clusters: int = 0
    offset: bool = False
    known: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    unseen: Unseen = field(default_factory=Unseen)

    def part(self, x: Any) -> FloatArray:
        """Return this party's part of the linear predictor of rows (n, p), in the table's units.

        Raises
        ------
        DataError
            The rows have another number of columns.
        """
        x = np.asarray(x, dtype=float)
        if x.ndim != 2 or x.shape[1] != len(self.names):
            raise DataError(f"the predictor knows {len(self.names)} columns: give it these")
        centre = self.centre if self.role == "partner" else 0.0
        return np.asarray(self.intercept + (x - centre) @ self.coef)

    def to_arrays(self) -> dict[str, Any]:
        """Plain form."""
        own = {"names": tuple(self.names), "weights": dict(self.weights)}
        nested = {"settings": plain(self.settings), "unseen": plain(self.unseen)}
        return {**self.__dict__, **own, **nested}

    @classmethod
    def from_arrays(cls, stored: dict[str, Any]) -> AssistedPredictor:
        """Read it back."""
        own = {"names": tuple(stored["names"]), "settings": Settings(**stored["settings"])}
        return cls(**{**stored, **own, "unseen": Unseen(**stored.get("unseen", {}))})


def _kept(data: SiteData, site: SiteContext, role: str) -> AssistedPredictor:
    """Predictor of the run that this one follows."""
    require_role(site, role)
    found = None if site.followed is None else site.followed.predictor
    if not isinstance(found, AssistedPredictor) or found.role != role:
        raise DataError.shared("the run that this one follows left no predictor here")
    if found.names != data.feature_names:
        raise DataError.shared("the columns are not those of the run that this one follows")
    return found


def _raw(data: SiteData) -> FloatArray:
    """Columns in the table's units."""
    shift, scale = units_of(data)
    return data.features if data.scaling is None else np.asarray(data.features * scale + shift)


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
    # released columns are centred over the new people, the training had its own mean
    shift = (x.mean(axis=0) - kept.centre) @ kept.directions
    reply = Part(
        part=addressed(seen, message.initiator),
        shift=summary_for({"shift": shift}, data, message.initiator),
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
    s = kept.settings
    senders = site.senders.get("part", message.partners)
    if set(kept.weights) != set(message.partners) or senders != message.partners:
        raise DataError.shared(
            "predictions need the part of every partner of the run that this one follows"
        )
    x = _raw(data)
    columns = [np.ones((len(x), 1)), x]
    if kept.offset != (data.offset is not None):
        raise DataError.shared(
            "one of this run and the run that it follows has an offset: name it in both"
        )
    offset = np.zeros(len(x)) if data.offset is None else data.offset
    eta = kept.part(x) + offset
    parts = zip(message.partners, message.part.value, message.shift.value, strict=True)
    given = {name: np.asarray(block) + np.asarray(place["shift"]) for name, block, place in parts}
    for name, weights in kept.weights.items():
        if given[name].shape != (len(x), len(weights)):
            raise DataError("a part of other rows", public="a part has other rows or directions")
        eta = eta + given[name] @ weights
        columns.append(given[name])
    low = high = np.full(len(x), np.nan)
    if kept.covariance.size:
        design = np.column_stack(columns)
        # x'Cov x of each person
        variance = np.einsum("ij,jk,ik->i", design, kept.covariance, design)
        reach = quantile(message.level, kept.n_clusters) * np.sqrt(np.maximum(variance, 0.0))
        low, high = np.sort(s.mean(np.stack([eta - reach, eta + reach])), axis=0)
    outputs = {"linear_predictor": eta, "prediction": s.mean(eta), "lower": low, "upper": high}
    unseen = kept.unseen
    if len(unseen.eta):
        before = unseen.intercept + x @ unseen.coef + offset
        for name, weights in unseen.weights.items():
            before = before + given[name] @ weights
        outputs |= unseen.of_people(s, before, message.level)
    for name, values in outputs.items():
        site.output(name, values)
    # no covariance, no limits
    known = np.isfinite(low)
    facts = {
        "new": len(x),
        "certified": int(known.sum()),
        "mean_width": float((high - low)[known].mean()) if known.any() else -1.0,
    }
    return Predicted(records=model(facts, kind="figures", n_records=len(x))), state


STEPS = (part, predict)
