"""Messages with which an assisted GLM ends, and those of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.assisted.glm.messages import GAP, MOST, are_numbers, rank_fault
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, part, sends

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

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    rest: Released = sends(
        Disclosure.PER_RECORD,
        ("m", "k"),
        audience="initiator",
        many=True,
        origin="assisted-glm/finished",
        doc="each partner's further directions",
    )
    variances: Released = sends(
        Disclosure.PER_RECORD,
        ("v",),
        audience="initiator",
        many=True,
        origin="assisted-glm/finished",
        doc="each partner's variances for new people",
    )
    left: Released = sends(
        Disclosure.MODEL,
        "by target",
        audience="initiator",
        many=True,
        origin="assisted-glm/refined",
        doc="what is still hidden of each target at each partner",
    )
    hidden: int = sends(
        Disclosure.PUBLIC, kind="int", audience="all", doc="directions that stay hidden"
    )
    complete: bool = sends(
        Disclosure.PUBLIC, kind="bool", audience="all", doc="whether all directions are known"
    )


@message("assisted-glm/concluded", version=1)
class Concluded:
    """What the coordinator may know of the fit."""

    names: tuple[str, ...] = sends(
        Disclosure.PUBLIC, ("p",), kind="str", doc="the initiator's coefficients"
    )
    coefficients: Released = sends(
        Disclosure.MODEL,
        "by column of the table",
        parts={
            name: part(("p",), low=GAP, high=MOST)
            for name in ("estimate", "error", "factor", "alone", "alone_error")
        },
        doc="estimates and standard errors",
    )
    status: tuple[str, ...] = sends(
        Disclosure.PUBLIC,
        ("p",),
        kind="str",
        choices=(IDENTIFIED, BOUNDED, SHARED, UNCERTAIN, PENALISED),
        doc="what each coefficient is",
    )
    fit: Released = sends(
        Disclosure.MODEL,
        "by name",
        parts=dict.fromkeys(_FIGURES, part(low=GAP, high=MOST)),
        doc="deviances, held-out losses, pseudo R2, AUC",
    )
    calibration: Released = sends(
        Disclosure.AGGREGATE,
        (2, "b", 2),
        gaps=True,
        low=-MOST,
        high=MOST,
        doc="mean prediction and mean response by tenth of the prediction, each way",
    )
    intervals: Released = sends(
        Disclosure.MODEL,
        "by name",
        parts={
            "certified": part(kind="int", low=-1, high=_MOST_ROWS),
            "bounded": part(kind="int", low=-1, high=_MOST_ROWS),
            "mean_width": part(low=GAP, high=MOST),
        },
        doc="numbers and widths of intervals",
    )
    records: Released = sends(
        Disclosure.MODEL,
        "by name",
        parts=dict.fromkeys(("train", "held", "new"), part(kind="int", low=-1, high=_MOST_ROWS)),
        doc="rows in each part",
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

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    partner: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="for whom")


@message("assisted-glm/told", version=1)
class Told:
    """Weights of a partner's directions with their covariance."""

    place: Released = sends(
        Disclosure.MODEL,
        "weights, covariance, directions that others have too",
        audience="partner",
        doc="the partner's part of the joint fit",
    )


@message("assisted-glm/record-request", version=1)
class RecordRequest:
    """Keep the own part of the joint fit."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    place: Released = sends(
        Disclosure.MODEL,
        "weights, covariance, directions that others have too",
        audience="partner",
        origin="assisted-glm/told",
        doc="the partner's part of the joint fit",
    )


@message("assisted-glm/recorded", version=1)
class Recorded:
    """The partner has kept its part."""


@message("assisted-glm/part-request", version=1)
class PartRequest:
    """Send the own part for new people."""

    initiator: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="for whom")


@message("assisted-glm/part", version=1)
class Part:
    """A partner's columns of new people along the directions that are known."""

    part: Released = sends(
        Disclosure.PER_RECORD, ("n", "k"), audience="initiator", doc="along known directions"
    )
    shift: Released = sends(
        Disclosure.MODEL,
        "one number by direction",
        audience="initiator",
        doc="mean along each direction, from that of the training",
    )
    known: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="directions known of its columns")
    rank: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="linearly independent columns")

    def check(self, request: PartRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, self.rank)


@message("assisted-glm/predict-request", version=1)
class PredictRequest:
    """Predict for new people with the parts of all partners."""

    level: float = sends(Disclosure.PUBLIC, kind="float", audience="all", doc="of the intervals")
    partners: tuple[str, ...] = sends(
        Disclosure.PUBLIC, ("s",), kind="str", audience="all", doc="whose parts these are"
    )
    part: Released = sends(
        Disclosure.PER_RECORD,
        ("n", "k"),
        audience="initiator",
        many=True,
        origin="assisted-glm/part",
        doc="each partner's part",
    )
    shift: Released = sends(
        Disclosure.MODEL,
        "one number by direction",
        audience="initiator",
        many=True,
        origin="assisted-glm/part",
        doc="mean along each direction",
    )


@message("assisted-glm/predicted", version=1)
class Predicted:
    """How many people were predicted."""

    records: Released = sends(
        Disclosure.MODEL,
        "by name",
        parts={
            "new": part(kind="int", low=0, high=_MOST_ROWS),
            "certified": part(kind="int", low=0, high=_MOST_ROWS),
            "mean_width": part(low=-1.0, high=MOST),
        },
        doc="rows, intervals, mean width",
    )
