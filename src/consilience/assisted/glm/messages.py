"""Messages of the assisted GLM. What is for one site's eyes passes the coordinator encrypted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import Penalty
from consilience.assisted.phases import Ranked
from consilience.numerics.families import NAMES, Family, family
from consilience.parameters import FLAG, Allowed, allows, just, number, one_of, several, whole
from consilience.wire.disclosure import Released
from consilience.wire.message import (
    Aggregate,
    Model,
    Noised,
    PerRecord,
    Public,
    message,
    part,
    states,
)

SPAN = "span"
GAP = -1e300
"""Stands for a number that there is none of: NaN does not cross in parameters of a model."""
MOST = 1e250
"""Of sums over rows of what numbers of any size lose."""

INTERCEPT = "(centred intercept)"
"""Partners' columns are centred: at 0 in each of them the intercept would be another one."""
IDENTIFIED, BOUNDED, SHARED = "identified", "bounded", "shared"
UNCERTAIN, PENALISED = "not certified", "penalised"
STATUS = (IDENTIFIED, BOUNDED, SHARED, UNCERTAIN, PENALISED)
"""What a coefficient is."""
ELSEWHERE = "at the initiator"
"""A partner's coefficient that stays there, since the partner gets no response."""
MOST_BINS = 10
WAYS = ("null", "alone", "joint")
OPENED, FITTED, TURNS, EARLIER = "opened", "fitted", "turns", "earlier"
COURSES = (OPENED, FITTED, TURNS, EARLIER)
"""How a partner takes part: it opens its columns; it fits all columns, as the initiator opened its
own; the two take turns; or its directions that earlier runs told are all that there is."""
SEPARATED, TOO_MANY = "separated", "too many columns"
UNFIT = ("", SEPARATED, TOO_MANY)
"""Why a partner could not fit all columns; the part is zeros then."""
_MOST_ROWS = 1 << 40
_TEXT = Allowed(lambda value: isinstance(value, str), "a text")
_FIGURES = (
    *(f"{name}_{way}" for name in ("deviance", "holdout", "auc") for way in WAYS),
    *("r2_alone", "r2_joint", "gain", "gain_error", "correlation"),
)
_ESTIMATES = ("estimate", "error", "factor", "alone", "alone_error", "least", "spread")
_NUMBER, _ROWS = part(low=GAP, high=MOST), part(kind="int", low=-1, high=_MOST_ROWS)
_BY_COEFFICIENT = part(("p",), low=GAP, high=MOST)
# Names of replies of which a request passes something on.
FROM_SHARED = "assisted-glm/shared"
FROM_MASKED = "assisted-glm/masked-shared"
FROM_TURNED = "assisted-glm/turned"
FROM_CONTRIBUTED = "assisted-glm/contributed"
FROM_SETTLED = "assisted-glm/settled"
FROM_FINISHED = "assisted-glm/finished"
FROM_AIMED = "assisted-glm/aimed"
FROM_REFINED = "assisted-glm/refined"
FROM_HANDED = "assisted-glm/handed-over"
FROM_FITTED = "assisted-glm/fitted"
FROM_TOLD = "assisted-glm/told"
FROM_PART = "assisted-glm/part"
# What a field holds, and what it says, where several messages carry it.
RESPONSE, FLIPPED = ("n", "response"), ("n", "response, flipped at random")
WEIGHTS = ("m", "case weights, if there are any")
OFFSET = ("k", "offset of the linear predictor, if there is one")
OTHERS, PARTS = ("k", "the other partners' part, if any"), ("o j", "the other partners' parts")
MORE = ("m k", "further directions, if any")
PLACE = (
    "*weights of the partner's messages, constant",
    "where the partner's own coefficients stand",
)
TARGETS = ("*weights, constants, rows of the targets", "the partner's own part, by its messages")
PARTNERS_FIT = (
    "*weights, covariance, directions that others have too",
    "the partner's part of the joint fit",
)


@dataclass(frozen=True)
class Settings:
    """What the sites need to know.

    Attributes
    ----------
    family : str
    power : float
        Of the variance function, for Tweedie.
    response : {"share", "masked"}
    flip : float
        Probability with which a masked response is flipped.
    masking : {"link", "as_printed"}
    acceleration : {"span", "anderson", "none"}
    alpha, l1_ratio : float
    tol : float
        Relative change of the linear predictor at which to stop.
    holdout : float
        Share of the rows with a response that is kept out of the training.
    split_seed : int
        Public seed of that split.
    interval : {"joint", "inflated", "paper", "none"}
    level : float
    interval_accuracy : float
        Relative accuracy of standard errors that is enough; 0 asks for exact ones.
    errors : {"hc1", "hc3"}
        What makes up for small samples.
    initiator : str
    partners : tuple of str
        In the order of their turns.
    names : bool
        Whether the coordinator asks for the names of the initiator's columns; its policy decides.
    exchange : {"auto", "turns"}
        Whether a party may open its columns, where its policy lets all of them be known.
    courses : tuple of str
        How each partner takes part, one of `COURSES`; they all take turns where it is empty.
    """

    family: str = allows(one_of(*NAMES))
    power: float = allows(number())
    response: str = allows(one_of("share", "masked") | just(""))
    flip: float = allows(number(above=0, below=0.5))
    masking: str = allows(one_of("link", "as_printed"))
    acceleration: str = allows(one_of("span", "anderson", "none"))
    alpha: float = allows(number(0))
    l1_ratio: float = allows(number(0, 1))
    tol: float = allows(number(above=0, below=1))
    holdout: float = allows(number(0, 0.9))
    split_seed: int = allows(whole(0))
    interval: str = allows(one_of("joint", "inflated", "paper", "none"))
    level: float = allows(number(above=0, below=1))
    interval_accuracy: float = allows(number(0, 0.5))
    errors: Literal["hc1", "hc3"] = allows(one_of("hc1", "hc3"))
    initiator: str = allows(_TEXT)
    partners: tuple[str, ...] = allows(several(_TEXT, 1))
    names: bool = allows(FLAG)
    exchange: str = allows(one_of("auto", "turns"), default="turns")
    courses: tuple[str, ...] = allows(several(one_of(*COURSES), different=False), default=())

    def course(self, partner: str) -> str:
        """How a partner takes part."""
        place = self.partners.index(partner)
        return self.courses[place] if len(self.courses) > place else TURNS

    def those(self, *courses: str) -> tuple[str, ...]:
        """Partners of some courses, in their order."""
        return tuple(p for p in self.partners if self.course(p) in courses)

    @property
    def opened(self) -> bool:
        """Whether all partners open their columns."""
        return self.those(OPENED) == self.partners

    @property
    def told(self) -> tuple[str, ...]:
        """Partners that get the response, as it is or masked."""
        return self.those(TURNS, FITTED)

    @property
    def masked(self) -> bool:
        """Whether the training is one of a masked response: partners get one, if any do."""
        return self.response == "masked" and bool(self.told)

    def training_family(self) -> Family:
        """Family of the training: of the masked response where it is masked."""
        # link q + (1 - 2q) expit(eta); "as_printed" fits a plain logit, as the source does
        mask = self.flip if self.masked and self.masking == "link" else 0.0
        return family(self.family, power=self.power, mask=mask)

    def true_family(self) -> Family:
        """Family of the true response."""
        return family(self.family, power=self.power)

    def mean(self, eta: FloatArray) -> FloatArray:
        """Mean of the true response at linear predictors of the training."""
        plain = self.true_family().mean(eta)
        if self.masked and self.masking == "as_printed":
            # The fit is a plain one of the masked response: its mean is mapped back and cut.
            plain = np.clip((plain - self.flip) / (1 - 2 * self.flip), 0.0, 1.0)
        return np.asarray(plain)

    def penalty(self) -> Penalty | None:
        """Penalty of every party's coefficients, if there is one."""
        return Penalty(self.alpha, self.l1_ratio) if self.alpha else None


@dataclass(frozen=True, eq=False)
class Asked:
    """A question about a run with these settings."""

    # `field`, of which type checkers know that it gives no default
    settings: Settings = field(metadata=states(Settings).metadata)


@dataclass(frozen=True, eq=False)
class ForOne(Asked):
    """A question about what one partner is to get."""

    partner: str = field(metadata=Public("", "for whom", kind="str", to="all").metadata)


@message("assisted-glm/offer-request", version=1)
class OfferRequest:
    """Say what the policy lets be known of the own columns."""


@message("assisted-glm/offered", version=1)
class Offered(Ranked):
    """What a party's policy lets be known of its columns."""

    opens: bool = Public("", "whether all directions may be known", kind="bool")
    room: bool = Public("", "whether more may be known than are known now", kind="bool")
    known: int = Public("", "directions known of its columns", kind="int", low=0)
    rank: int = Public("", "linearly independent columns", kind="int", low=0)

    def check(self, request: object, known: Mapping[str, Any]) -> str | None:
        """No more columns are independent than there are rows; room ends at the last direction."""
        if self.rank >= known["rows"]:
            return "more independent columns than rows"
        if self.room and self.known >= self.rank:
            return "room for more directions than there are columns"
        return super().check(request, known)


@message("assisted-glm/open-request", version=1)
class OpenRequest(Asked):
    """Send all columns, where the policy lets them be known, or what earlier runs told of them."""


@message("assisted-glm/include-request", version=1)
class IncludeRequest(Asked):
    """Take in what a partner sent before the first turn."""

    owner: str = Public("", "whose columns these are", kind="str", to="all")
    rest: Released = PerRecord(
        "m k", "the partner's columns along directions", to="initiator", origin=FROM_FINISHED
    )


@message("assisted-glm/included", version=1)
class Included:
    """The initiator has the columns in its fit."""


@message("assisted-glm/hand-over-request", version=1)
class HandOverRequest(ForOne):
    """Send the own columns to the partner, which fits all of them."""


@message(FROM_HANDED, version=1)
class HandedOver(Ranked):
    """The initiator's columns, if its policy lets all of them be known."""

    own: Released = PerRecord("m p", "the initiator's columns, centred", to="partner")
    place: Released = Model(
        "*means, rows of new people", "which errors are asked for", to="partner"
    )
    known: int = Public("", "directions known of its columns", kind="int", low=0)


@message("assisted-glm/fit-request", version=1)
class FitRequest(Asked):
    """Fit the initiator's columns and the own ones together."""

    own: Released = PerRecord("m p", "the initiator's columns", to="partner", origin=FROM_HANDED)
    place: Released = Model(
        "*means, rows of new people",
        "which errors are asked for",
        to="partner",
        origin=FROM_HANDED,
    )


@message(FROM_FITTED, version=2)
class Fitted(Ranked):
    """The partner's part of the joint fit, and errors of the initiator's coefficients."""

    unfit: str = Public("", "why there is no fit, if there is none", kind="str", choices=UNFIT)
    part: Released = PerRecord("m", "the partner's part of the linear predictor", to="initiator")
    errors: Released = Model(
        "*by coefficient and new person: error, whether it means something",
        "standard errors in the joint fit, if asked for",
        to="initiator",
    )
    known: int = Public("", "directions known of its columns", kind="int", low=0)


@message("assisted-glm/share-request", version=5)
class ShareRequest(ForOne):
    """Give a partner the response of the training rows."""


@message(FROM_SHARED, version=2)
class Shared:
    """The response as it is; NaN for rows that take no part in the training."""

    response: Released = PerRecord(*RESPONSE, to="partner", gaps=True)
    weights: Released = PerRecord(*WEIGHTS, to="partner")
    offset: Released = PerRecord(*OFFSET, to="partner")


@message(FROM_MASKED, version=2)
class MaskedShared(Shared):
    """A response of 0 and 1, each flipped with a known probability."""

    response: Released = Noised(*FLIPPED, to="partner", gaps=True)


@message("assisted-glm/receive-request", version=6)
class ReceiveRequest(Asked):
    """Take the response from the initiator."""

    response: Released = PerRecord(*RESPONSE, to="partner", gaps=True, origin=FROM_SHARED)
    weights: Released = PerRecord(*WEIGHTS, to="partner", origin=FROM_SHARED)
    offset: Released = PerRecord(*OFFSET, to="partner", origin=FROM_SHARED)


@message("assisted-glm/masked-receive-request", version=6)
class MaskedReceiveRequest(Asked):
    """Take the masked response from the initiator."""

    response: Released = Noised(*FLIPPED, to="partner", gaps=True, origin=FROM_MASKED)
    weights: Released = PerRecord(*WEIGHTS, to="partner", origin=FROM_MASKED)
    offset: Released = PerRecord(*OFFSET, to="partner", origin=FROM_MASKED)


@message("assisted-glm/received", version=1)
class Received:
    """The partner is ready."""

    rank: int = Public("", "linearly independent columns", kind="int", low=0)

    def check(self, request: object, known: Mapping[str, Any]) -> str | None:
        """No more columns are independent than there are rows."""
        return None if self.rank < known["rows"] else "more independent columns than rows"


@message("assisted-glm/turn-request", version=5)
class TurnRequest(Asked):
    """Take in a partner's contribution, refit, and say where the next partner starts."""

    owner: str = Public("", "whose contribution this is, if any", kind="str", to="all")
    contribution: Released = PerRecord(
        "m", "the partner's contribution", to="initiator", origin=FROM_CONTRIBUTED
    )
    beside: Released = Model(
        "*inner products and penalty",
        "what a penalty needs to know of the partner's coefficients",
        to="initiator",
        origin=FROM_CONTRIBUTED,
    )
    partner: str = Public("", "who is next", kind="str", to="all")
    closes: bool = Public("", "whether a round ends here", kind="bool", to="all")


@message(FROM_TURNED, version=1)
class Turned(Ranked):
    """The joint fit so far, and the next partner's starting point."""

    own: Released = PerRecord("m", "the initiator's part of the linear predictor", to="partner")
    others: Released = PerRecord(*OTHERS, to="partner")
    place: Released = Model(*PLACE, to="partner")
    added: bool = Public("", "whether the contribution was new", kind="bool")
    converged: bool = Public("", "whether the fit has settled", kind="bool")
    spent: bool = Public("", "whether the initiator's policy lets no more leave", kind="bool")
    known: int = Public("", "directions known of its columns", kind="int", low=0)
    rank: int = Public("", "linearly independent columns", kind="int", low=0)
    course: Released = Model(
        "*deviance, relative change",
        "how far the training is",
        parts={"deviance": part(low=-MOST, high=MOST), "change": part(low=-1.0)},
    )


@message("assisted-glm/contribute-request", version=5)
class ContributeRequest(Asked):
    """Fit the own columns beside what the others have."""

    own: Released = PerRecord("m", "the initiator's part", to="partner", origin=FROM_TURNED)
    others: Released = PerRecord(*OTHERS, to="partner", origin=FROM_TURNED)
    place: Released = Model(*PLACE, to="partner", origin=FROM_TURNED)


@message(FROM_CONTRIBUTED, version=1)
class Contributed(Ranked):
    """A partner's columns along one direction."""

    contribution: Released = PerRecord("m", "columns along one direction", to="initiator")
    beside: Released = Model(
        "*inner products and penalty",
        "what a penalty needs to know of the coefficients",
        to="initiator",
    )
    spent: bool = Public("", "whether the policy lets no more directions leave", kind="bool")
    done: bool = Public("", "whether nothing new can come", kind="bool")
    known: int = Public("", "directions known of its columns", kind="int", low=0)
    gain: Released = Model(
        "*one number", "deviance that this partner could still gain", parts={"gain": _NUMBER}
    )

    def check(self, request: object, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are; a gain is a number, or there is none."""
        if not are_numbers(self.gain.value.values()):
            return "numbers that are too large"
        return super().check(request, known)


@message("assisted-glm/settle-request", version=5)
class SettleRequest(ForOne):
    """Tell a partner how its messages stand in the joint fit."""


@message(FROM_SETTLED, version=2)
class Settled:
    """Weights of a partner's messages."""

    place: Released = Model(*PLACE, to="partner")


@message("assisted-glm/finish-request", version=5)
class FinishRequest(Asked):
    """Complete what inference needs."""

    place: Released = Model(*PLACE, to="partner", origin=FROM_SETTLED)


@message(FROM_FINISHED, version=1)
class Finished(Ranked):
    """The directions that no message had, if the policy lets all be known."""

    rest: Released = PerRecord(
        "m k", "columns along the directions that were not sent yet", to="initiator"
    )
    complete: bool = Public("", "whether all directions are known to the initiator", kind="bool")
    variances: Released = PerRecord(
        "v", "variances of the partner's part for new people, if asked for", to="initiator"
    )
    known: int = Public("", "directions known of its columns", kind="int", low=0)


@message("assisted-glm/aim-request", version=5)
class AimRequest(ForOne):
    """Take in further directions; say what standard errors need of a partner."""

    owner: str = Public("", "whose further directions these are", kind="str", to="all")
    more: Released = PerRecord(*MORE, to="initiator", origin=FROM_REFINED)
    rest: Released = PerRecord(
        "o j",
        "what the partner sent when the training ended, before it is asked for the first time",
        to="initiator",
        origin=FROM_FINISHED,
    )


@message(FROM_AIMED, version=2)
class Aimed(Ranked):
    """The joint fit and the targets, but for the partner's own part of them."""

    own: Released = PerRecord(
        "m k", "the initiator's columns along the fit and the targets", to="partner"
    )
    others: Released = PerRecord(*PARTS, to="partner")
    place: Released = Model(*TARGETS, to="partner")
    spent: bool = Public("", "whether the initiator's policy lets no more leave", kind="bool")
    known: int = Public("", "directions known of its columns", kind="int", low=0)


@message("assisted-glm/refine-request", version=5)
class RefineRequest(Asked):
    """Send the directions that the targets need most."""

    own: Released = PerRecord("m k", "the initiator's columns", to="partner", origin=FROM_AIMED)
    others: Released = PerRecord(*PARTS, to="partner", origin=FROM_AIMED)
    place: Released = Model(*TARGETS, to="partner", origin=FROM_AIMED)
    last: bool = Public("", "whether to say what is left only", kind="bool", to="all")


@message(FROM_REFINED, version=1)
class Refined(Ranked):
    """Further directions, and what is left of each target's equations."""

    more: Released = PerRecord(*MORE, to="initiator")
    left: Released = Model("*by target", "variance that is still hidden", to="initiator")
    n_more: int = Public("", "number of further directions", kind="int", low=0)
    known: int = Public("", "directions known of its columns", kind="int", low=0)


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether all numbers are of a size, or stand for none."""
    found = np.concatenate([np.ravel(value) for value in values])
    return bool(((found >= -MOST) | (found == GAP)).all())


@message("assisted-glm/conclude-request", version=5)
class ConcludeRequest(Asked):
    """Compare, infer, predict."""

    rest: Released = PerRecord(
        "m k", "each partner's further directions", to="initiator", many=True, origin=FROM_FINISHED
    )
    variances: Released = PerRecord(
        "v",
        "each partner's variances for new people",
        origin=FROM_FINISHED,
        to="initiator",
        many=True,
    )
    left: Released = Model(
        "*by target",
        "what is still hidden of each target at each partner",
        origin=FROM_REFINED,
        to="initiator",
        many=True,
    )
    part: Released = PerRecord(
        "m",
        "the part of a partner that fitted all columns",
        origin=FROM_FITTED,
        to="initiator",
        many=True,
    )
    errors: Released = Model(
        "*by coefficient and new person",
        "standard errors by a partner that fitted all columns",
        origin=FROM_FITTED,
        to="initiator",
        many=True,
    )
    hidden: int = Public("", "directions that stay hidden", kind="int", to="all")
    complete: bool = Public("", "whether all directions are known", kind="bool", to="all")


@message("assisted-glm/concluded", version=5)
class Concluded:
    """What the coordinator may know of the fit."""

    names: tuple[str, ...] = Public("p", "the initiator's coefficients", kind="str")
    coefficients: Released = Model(
        "*by column of the table",
        "estimates and standard errors",
        parts=dict.fromkeys(_ESTIMATES, _BY_COEFFICIENT),
    )
    status: tuple[str, ...] = Public("p", "what each coefficient is", kind="str", choices=STATUS)
    fit: Released = Model(
        "*by name",
        "deviances, held-out losses, pseudo R2, AUC",
        parts=dict.fromkeys(_FIGURES, _NUMBER),
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
        parts={"certified": _ROWS, "bounded": _ROWS, "mean_width": _NUMBER},
    )
    records: Released = Model(
        "*by name",
        "rows in each part, clusters of rows and of held-out ones",
        parts=dict.fromkeys(("train", "held", "new", "clusters", "held_clusters"), _ROWS),
    )
    offset: bool = Public("", "whether the linear predictor has an offset", kind="bool")

    def check(self, request: ConcludeRequest, known: Mapping[str, Any]) -> str | None:
        """Numbers are numbers or there are none, errors are not negative; two to ten bins."""
        table, fit = self.coefficients.value, self.fit.value
        told = (*table.values(), *fit.values(), self.intervals.value["mean_width"])
        if not are_numbers(told):
            return "numbers that are too large"
        kinds = ("error", "alone_error", "least", "spread")
        errors = np.concatenate([*(table[kind] for kind in kinds), [fit["gain_error"]]])
        if ((errors < 0) & (errors != GAP)).any():
            return "standard errors below 0"
        fine = 2 <= self.calibration.value.shape[1] <= MOST_BINS
        return None if fine else "another number of bins than is told"


@message("assisted-glm/tell-request", version=5)
class TellRequest(ForOne):
    """Tell a partner what belongs to its own coefficients."""


@message(FROM_TOLD, version=1)
class Told:
    """Weights of a partner's directions with their covariance."""

    place: Released = Model(*PARTNERS_FIT, to="partner")


@message("assisted-glm/record-request", version=5)
class RecordRequest(Asked):
    """Keep the own part of the joint fit."""

    place: Released = Model(*PARTNERS_FIT, to="partner", origin=FROM_TOLD)


@message("assisted-glm/recorded", version=1)
class Recorded:
    """The partner has kept its part."""


@message("assisted-glm/part-request", version=1)
class PartRequest:
    """Send the own part for new people."""

    initiator: str = Public("", "for whom", kind="str", to="all")


@message(FROM_PART, version=1)
class Part(Ranked):
    """A partner's columns of new people along the directions that are known."""

    part: Released = PerRecord("n k", "along known directions", to="initiator")
    shift: Released = Model(
        "*one number by direction",
        "mean along each direction, from that of the training",
        to="initiator",
    )
    known: int = Public("", "directions known of its columns", kind="int", low=0)
    rank: int = Public("", "linearly independent columns", kind="int", low=0)


@message("assisted-glm/predict-request", version=1)
class PredictRequest:
    """Predict for new people with the parts of all partners."""

    level: float = Public("", "of the intervals", kind="float", to="all")
    partners: tuple[str, ...] = Public("s", "whose parts these are", kind="str", to="all")
    part: Released = PerRecord(
        "n k", "each partner's part", to="initiator", many=True, origin=FROM_PART
    )
    shift: Released = Model(
        "*one number by direction",
        "mean along each direction",
        origin=FROM_PART,
        to="initiator",
        many=True,
    )


@message("assisted-glm/predicted", version=1)
class Predicted:
    """How many people were predicted."""

    records: Released = Model(
        "*by name",
        "rows, intervals, mean width",
        parts={
            **dict.fromkeys(("new", "certified"), part(kind="int", low=0, high=_MOST_ROWS)),
            "mean_width": part(low=-1.0, high=MOST),
        },
    )
