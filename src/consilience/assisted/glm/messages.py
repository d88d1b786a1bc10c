"""Messages of the assisted GLM. What is for one site's eyes passes the coordinator encrypted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from consilience.assisted.kernels.families import Family, family
from consilience.assisted.kernels.glm import Penalty
from consilience.exceptions import DisclosureError
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, part, sends

SPAN = "span"
GAP = -1e300
"""Stands for a number that there is none of: NaN does not cross in parameters of a model."""
MOST = 1e250
"""Of sums over rows of what numbers of any size lose."""


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
    initiator : str
    partners : tuple of str
        In the order of their turns.
    names : bool
        Whether the coordinator asks for the names of the initiator's columns; its policy decides.
    """

    family: str
    power: float
    response: str
    flip: float
    masking: str
    acceleration: str
    alpha: float
    l1_ratio: float
    tol: float
    holdout: float
    split_seed: int
    interval: str
    level: float
    initiator: str
    partners: tuple[str, ...]
    names: bool

    @property
    def masked(self) -> bool:
        """Whether partners get a masked response."""
        return self.response == "masked"

    def training_family(self) -> Family:
        """Family of the training: of the masked response where it is masked."""
        mask = self.flip if self.masked and self.masking == "link" else 0.0
        return family(self.family, power=self.power, mask=mask)

    def true_family(self) -> Family:
        """Family of the true response."""
        return family(self.family, power=self.power)

    def penalty(self) -> Penalty | None:
        """Penalty of every party's coefficients, if there is one."""
        return Penalty(self.alpha, self.l1_ratio) if self.alpha else None

    def to_json(self) -> str:
        """Text form for the wire."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read it back, at a site.

        Raises
        ------
        DisclosureError
            Values that no coordinator of this package sends: a site does not rely on its checks.
        """
        raw = json.loads(text)
        raw["partners"] = tuple(raw["partners"])
        s = cls(**raw)
        fine = s.response in ("share", "masked") and s.acceleration in ("span", "anderson", "none")
        fine = fine and s.interval in ("joint", "inflated", "paper", "none")
        fine = fine and 0 <= s.holdout <= 0.9 and (not s.masked or 0 < s.flip < 0.5)
        if not fine:
            sentence = "settings of the assisted GLM that a site does not answer"
            raise DisclosureError(sentence, public=sentence)
        return s


@message("assisted-glm/share-request", version=1)
class ShareRequest:
    """Give a partner the response of the training rows."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    partner: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="for whom")


@message("assisted-glm/shared", version=1)
class Shared:
    """The response as it is; NaN for rows that take no part in the training."""

    response: Released = sends(
        Disclosure.PER_RECORD, ("n",), audience="partner", gaps=True, doc="response"
    )
    weights: Released = sends(
        Disclosure.PER_RECORD, ("m",), audience="partner", doc="case weights, if there are any"
    )


@message("assisted-glm/masked-shared", version=1)
class MaskedShared:
    """A response of 0 and 1, each flipped with a known probability."""

    response: Released = sends(
        Disclosure.NOISED, ("n",), audience="partner", gaps=True, doc="response, flipped at random"
    )
    weights: Released = sends(
        Disclosure.PER_RECORD, ("m",), audience="partner", doc="case weights, if there are any"
    )


@message("assisted-glm/receive-request", version=1)
class ReceiveRequest:
    """Take the response from the initiator."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    response: Released = sends(
        Disclosure.PER_RECORD,
        ("n",),
        audience="partner",
        gaps=True,
        origin="assisted-glm/shared",
        doc="response",
    )
    weights: Released = sends(
        Disclosure.PER_RECORD,
        ("m",),
        audience="partner",
        origin="assisted-glm/shared",
        doc="case weights, if there are any",
    )


@message("assisted-glm/masked-receive-request", version=1)
class MaskedReceiveRequest:
    """Take the masked response from the initiator."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    response: Released = sends(
        Disclosure.NOISED,
        ("n",),
        audience="partner",
        gaps=True,
        origin="assisted-glm/masked-shared",
        doc="response, flipped at random",
    )
    weights: Released = sends(
        Disclosure.PER_RECORD,
        ("m",),
        audience="partner",
        origin="assisted-glm/masked-shared",
        doc="case weights, if there are any",
    )


@message("assisted-glm/received", version=1)
class Received:
    """The partner is ready."""

    rank: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="linearly independent columns")

    def check(self, request: object, known: Mapping[str, Any]) -> str | None:
        """No more columns are independent than there are rows."""
        return None if self.rank < known["rows"] else "more independent columns than rows"


@message("assisted-glm/turn-request", version=1)
class TurnRequest:
    """Take in a partner's contribution, refit, and say where the next partner starts."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    owner: str = sends(
        Disclosure.PUBLIC, kind="str", audience="all", doc="whose contribution this is, if any"
    )
    contribution: Released = sends(
        Disclosure.PER_RECORD,
        ("m",),
        audience="initiator",
        origin="assisted-glm/contributed",
        doc="the partner's contribution",
    )
    beside: Released = sends(
        Disclosure.MODEL,
        "inner products and penalty",
        audience="initiator",
        origin="assisted-glm/contributed",
        doc="what a penalty needs to know of the partner's coefficients",
    )
    partner: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="who is next")
    closes: bool = sends(
        Disclosure.PUBLIC, kind="bool", audience="all", doc="whether a round ends here"
    )


@message("assisted-glm/turned", version=1)
class Turned:
    """The joint fit so far, and the next partner's starting point."""

    own: Released = sends(
        Disclosure.PER_RECORD,
        ("m",),
        audience="partner",
        doc="the initiator's part of the linear predictor",
    )
    others: Released = sends(
        Disclosure.PER_RECORD, ("k",), audience="partner", doc="the other partners' part, if any"
    )
    place: Released = sends(
        Disclosure.MODEL,
        "weights of the partner's messages, constant",
        audience="partner",
        doc="where the partner's own coefficients stand",
    )
    added: bool = sends(Disclosure.PUBLIC, kind="bool", doc="whether the contribution was new")
    converged: bool = sends(Disclosure.PUBLIC, kind="bool", doc="whether the fit has settled")
    spent: bool = sends(
        Disclosure.PUBLIC, kind="bool", doc="whether the initiator's policy lets no more leave"
    )
    known: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="directions known of its columns")
    rank: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="linearly independent columns")
    course: Released = sends(
        Disclosure.MODEL,
        "deviance, relative change",
        parts={"deviance": part(low=-MOST, high=MOST), "change": part(low=-1.0)},
        doc="how far the training is",
    )

    def check(self, request: TurnRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, self.rank)


@message("assisted-glm/contribute-request", version=1)
class ContributeRequest:
    """Fit the own columns beside what the others have."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    own: Released = sends(
        Disclosure.PER_RECORD,
        ("m",),
        audience="partner",
        origin="assisted-glm/turned",
        doc="the initiator's part",
    )
    others: Released = sends(
        Disclosure.PER_RECORD,
        ("k",),
        audience="partner",
        origin="assisted-glm/turned",
        doc="the other partners' part, if any",
    )
    place: Released = sends(
        Disclosure.MODEL,
        "weights of the partner's messages, constant",
        audience="partner",
        origin="assisted-glm/turned",
        doc="where the partner's own coefficients stand",
    )


@message("assisted-glm/contributed", version=1)
class Contributed:
    """A partner's columns along one direction."""

    contribution: Released = sends(
        Disclosure.PER_RECORD, ("m",), audience="initiator", doc="columns along one direction"
    )
    beside: Released = sends(
        Disclosure.MODEL,
        "inner products and penalty",
        audience="initiator",
        doc="what a penalty needs to know of the coefficients",
    )
    spent: bool = sends(
        Disclosure.PUBLIC, kind="bool", doc="whether the policy lets no more directions leave"
    )
    done: bool = sends(Disclosure.PUBLIC, kind="bool", doc="whether nothing new can come")
    known: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="directions known of its columns")
    gain: Released = sends(
        Disclosure.MODEL,
        "one number",
        parts={"gain": part(low=GAP, high=MOST)},
        doc="deviance that this partner could still gain",
    )

    def check(self, request: ContributeRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are; a gain is a number, or there is none."""
        if not are_numbers(self.gain.value.values()):
            return "numbers that are too large"
        return rank_fault(self, known["rank"])


@message("assisted-glm/settle-request", version=1)
class SettleRequest:
    """Tell a partner how its messages stand in the joint fit."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    partner: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="for whom")


@message("assisted-glm/settled", version=1)
class Settled:
    """Weights of a partner's messages."""

    place: Released = sends(
        Disclosure.MODEL,
        "weights of the partner's messages, constant",
        audience="partner",
        doc="where the partner's own coefficients stand",
    )


@message("assisted-glm/finish-request", version=1)
class FinishRequest:
    """Complete what inference needs."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    place: Released = sends(
        Disclosure.MODEL,
        "weights of the partner's messages, constant",
        audience="partner",
        origin="assisted-glm/settled",
        doc="where the partner's own coefficients stand",
    )


@message("assisted-glm/finished", version=1)
class Finished:
    """The directions that no message had, if the policy lets all be known."""

    rest: Released = sends(
        Disclosure.PER_RECORD,
        ("m", "k"),
        audience="initiator",
        doc="columns along the directions that were not sent yet",
    )
    complete: bool = sends(
        Disclosure.PUBLIC, kind="bool", doc="whether all directions are known to the initiator"
    )
    variances: Released = sends(
        Disclosure.PER_RECORD,
        ("v",),
        audience="initiator",
        doc="variances of the partner's part for new people, if asked for",
    )
    known: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="directions known of its columns")

    def check(self, request: FinishRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, known["rank"])


@message("assisted-glm/aim-request", version=1)
class AimRequest:
    """Take in further directions; say what standard errors need of a partner."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    partner: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="for whom")
    owner: str = sends(
        Disclosure.PUBLIC, kind="str", audience="all", doc="whose further directions these are"
    )
    more: Released = sends(
        Disclosure.PER_RECORD,
        ("m", "k"),
        audience="initiator",
        origin="assisted-glm/refined",
        doc="further directions, if any",
    )


@message("assisted-glm/aimed", version=1)
class Aimed:
    """The joint fit and the targets, but for the partner's own part of them."""

    own: Released = sends(
        Disclosure.PER_RECORD,
        ("m", "k"),
        audience="partner",
        doc="the initiator's columns along the fit and the targets",
    )
    others: Released = sends(
        Disclosure.PER_RECORD, ("o", "j"), audience="partner", doc="the other partners' parts"
    )
    place: Released = sends(
        Disclosure.MODEL,
        "weights, constants, rows of the targets",
        audience="partner",
        doc="the partner's own part, by its messages",
    )
    spent: bool = sends(
        Disclosure.PUBLIC, kind="bool", doc="whether the initiator's policy lets no more leave"
    )
    known: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="directions known of its columns")

    def check(self, request: AimRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, known["rank"])


@message("assisted-glm/refine-request", version=1)
class RefineRequest:
    """Send the directions that the targets need most."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    own: Released = sends(
        Disclosure.PER_RECORD,
        ("m", "k"),
        audience="partner",
        origin="assisted-glm/aimed",
        doc="the initiator's columns",
    )
    others: Released = sends(
        Disclosure.PER_RECORD,
        ("o", "j"),
        audience="partner",
        origin="assisted-glm/aimed",
        doc="the other partners' parts",
    )
    place: Released = sends(
        Disclosure.MODEL,
        "weights, constants, rows of the targets",
        audience="partner",
        origin="assisted-glm/aimed",
        doc="the partner's own part, by its messages",
    )
    last: bool = sends(
        Disclosure.PUBLIC, kind="bool", audience="all", doc="whether to say what is left only"
    )


@message("assisted-glm/refined", version=1)
class Refined:
    """Further directions, and what is left of each target's equations."""

    more: Released = sends(
        Disclosure.PER_RECORD, ("m", "k"), audience="initiator", doc="further directions, if any"
    )
    left: Released = sends(
        Disclosure.MODEL, "by target", audience="initiator", doc="variance that is still hidden"
    )
    n_more: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="number of further directions")
    known: int = sends(Disclosure.PUBLIC, kind="int", low=0, doc="directions known of its columns")

    def check(self, request: RefineRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, known["rank"])


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether all numbers are of a size, or stand for none."""
    found = np.concatenate([np.ravel(value) for value in values])
    return bool(((found >= -MOST) | (found == GAP)).all())


def rank_fault(reply: Any, rank: int) -> str | None:
    """Say that more directions are known than there are columns."""
    return None if reply.known <= rank else "more directions than there are columns"
