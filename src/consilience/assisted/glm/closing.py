"""Messages with which an assisted GLM ends, and those of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.assisted.glm.messages import GAP, MOST, are_numbers, rank_fault
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, PerRecord, Public, message, part

IDENTIFIED, BOUNDED, SHARED = "identified", "bounded", "shared"
UNCERTAIN, PENALISED = "not certified", "penalised"
"""What a coefficient is."""
MOST_BINS = 10
_MOST_ROWS = 1 << 40
_WAYS = ("null", "alone", "joint")
_FIGURES = (
    *(f"{name}_{way}" for name in ("deviance", "holdout", "auc") for way in _WAYS),
    "r2_alone",
    "r2_joint",
    "gain",
    "gain_error",
)


@message("assisted-glm/conclude-request", version=1)
class ConcludeRequest:
    """Compare, infer, predict."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    rest: Released = PerRecord(
        "m k",
        "each partner's further directions",
        to="initiator",
        many=True,
        origin="assisted-glm/finished",
    )
    variances: Released = PerRecord(
        "v",
        "each partner's variances for new people",
        to="initiator",
        many=True,
        origin="assisted-glm/finished",
    )
    left: Released = Model(
        "*by target",
        "what is still hidden of each target at each partner",
        to="initiator",
        many=True,
        origin="assisted-glm/refined",
    )
    hidden: int = Public("", "directions that stay hidden", kind="int", to="all")
    complete: bool = Public("", "whether all directions are known", kind="bool", to="all")


@message("assisted-glm/concluded", version=1)
class Concluded:
    """What the coordinator may know of the fit."""

    names: tuple[str, ...] = Public("p", "the initiator's coefficients", kind="str")
    coefficients: Released = Model(
        "*by column of the table",
        "estimates and standard errors",
        parts={
            name: part(("p",), low=GAP, high=MOST)
            for name in ("estimate", "error", "factor", "alone", "alone_error")
        },
    )
    status: tuple[str, ...] = Public(
        "p",
        "what each coefficient is",
        kind="str",
        choices=(IDENTIFIED, BOUNDED, SHARED, UNCERTAIN, PENALISED),
    )
    fit: Released = Model(
        "*by name",
        "deviances, held-out losses, pseudo R2, AUC",
        parts=dict.fromkeys(_FIGURES, part(low=GAP, high=MOST)),
    )
    calibration: Released = Aggregate(
        "2 b 2",
        "mean prediction and mean response by tenth of the prediction, each way",
        gaps=True,
        low=-MOST,
        high=MOST,
    )
    intervals: Released = Model(
        "*by name",
        "numbers and widths of intervals",
        parts={
            "certified": part(kind="int", low=-1, high=_MOST_ROWS),
            "bounded": part(kind="int", low=-1, high=_MOST_ROWS),
            "mean_width": part(low=GAP, high=MOST),
        },
    )
    records: Released = Model(
        "*by name",
        "rows in each part",
        parts=dict.fromkeys(("train", "held", "new"), part(kind="int", low=-1, high=_MOST_ROWS)),
    )

    def check(self, request: ConcludeRequest, known: Mapping[str, Any]) -> str | None:
        """Numbers are numbers or there are none, errors are not negative; two to ten bins."""
        table, fit = self.coefficients.value, self.fit.value
        told = (*table.values(), *fit.values(), self.intervals.value["mean_width"])
        if not are_numbers(told):
            return "numbers that are too large"
        errors = np.concatenate([table["error"], table["alone_error"], [fit["gain_error"]]])
        if ((errors < 0) & (errors != GAP)).any():
            return "standard errors below 0"
        fine = 2 <= self.calibration.value.shape[1] <= MOST_BINS
        return None if fine else "another number of bins than is told"


@message("assisted-glm/tell-request", version=1)
class TellRequest:
    """Tell a partner what belongs to its own coefficients."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    partner: str = Public("", "for whom", kind="str", to="all")


@message("assisted-glm/told", version=1)
class Told:
    """Weights of a partner's directions with their covariance."""

    place: Released = Model(
        "*weights, covariance, directions that others have too",
        "the partner's part of the joint fit",
        to="partner",
    )


@message("assisted-glm/record-request", version=1)
class RecordRequest:
    """Keep the own part of the joint fit."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    place: Released = Model(
        "*weights, covariance, directions that others have too",
        "the partner's part of the joint fit",
        to="partner",
        origin="assisted-glm/told",
    )


@message("assisted-glm/recorded", version=1)
class Recorded:
    """The partner has kept its part."""


@message("assisted-glm/part-request", version=1)
class PartRequest:
    """Send the own part for new people."""

    initiator: str = Public("", "for whom", kind="str", to="all")


@message("assisted-glm/part", version=1)
class Part:
    """A partner's columns of new people along the directions that are known."""

    part: Released = PerRecord("n k", "along known directions", to="initiator")
    shift: Released = Model(
        "*one number by direction",
        "mean along each direction, from that of the training",
        to="initiator",
    )
    known: int = Public("", "directions known of its columns", kind="int", low=0)
    rank: int = Public("", "linearly independent columns", kind="int", low=0)

    def check(self, request: PartRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, self.rank)


@message("assisted-glm/predict-request", version=1)
class PredictRequest:
    """Predict for new people with the parts of all partners."""

    level: float = Public("", "of the intervals", kind="float", to="all")
    partners: tuple[str, ...] = Public("s", "whose parts these are", kind="str", to="all")
    part: Released = PerRecord(
        "n k", "each partner's part", to="initiator", many=True, origin="assisted-glm/part"
    )
    shift: Released = Model(
        "*one number by direction",
        "mean along each direction",
        to="initiator",
        many=True,
        origin="assisted-glm/part",
    )


@message("assisted-glm/predicted", version=1)
class Predicted:
    """How many people were predicted."""

    records: Released = Model(
        "*by name",
        "rows, intervals, mean width",
        parts={
            "new": part(kind="int", low=0, high=_MOST_ROWS),
            "certified": part(kind="int", low=0, high=_MOST_ROWS),
            "mean_width": part(low=-1.0, high=MOST),
        },
    )
