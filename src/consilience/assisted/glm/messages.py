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
from consilience.wire.message import Model, Noised, PerRecord, Public, message, part

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

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    partner: str = Public("", "for whom", kind="str", to="all")


@message("assisted-glm/shared", version=1)
class Shared:
    """The response as it is; NaN for rows that take no part in the training."""

    response: Released = PerRecord("n", "response", to="partner", gaps=True)
    weights: Released = PerRecord("m", "case weights, if there are any", to="partner")


@message("assisted-glm/masked-shared", version=1)
class MaskedShared:
    """A response of 0 and 1, each flipped with a known probability."""

    response: Released = Noised("n", "response, flipped at random", to="partner", gaps=True)
    weights: Released = PerRecord("m", "case weights, if there are any", to="partner")


@message("assisted-glm/receive-request", version=1)
class ReceiveRequest:
    """Take the response from the initiator."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    response: Released = PerRecord(
        "n", "response", to="partner", gaps=True, origin="assisted-glm/shared"
    )
    weights: Released = PerRecord(
        "m", "case weights, if there are any", to="partner", origin="assisted-glm/shared"
    )


@message("assisted-glm/masked-receive-request", version=1)
class MaskedReceiveRequest:
    """Take the masked response from the initiator."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    response: Released = Noised(
        "n",
        "response, flipped at random",
        to="partner",
        gaps=True,
        origin="assisted-glm/masked-shared",
    )
    weights: Released = PerRecord(
        "m", "case weights, if there are any", to="partner", origin="assisted-glm/masked-shared"
    )


@message("assisted-glm/received", version=1)
class Received:
    """The partner is ready."""

    rank: int = Public("", "linearly independent columns", kind="int", low=0)

    def check(self, request: object, known: Mapping[str, Any]) -> str | None:
        """No more columns are independent than there are rows."""
        return None if self.rank < known["rows"] else "more independent columns than rows"


@message("assisted-glm/turn-request", version=1)
class TurnRequest:
    """Take in a partner's contribution, refit, and say where the next partner starts."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    owner: str = Public("", "whose contribution this is, if any", kind="str", to="all")
    contribution: Released = PerRecord(
        "m", "the partner's contribution", to="initiator", origin="assisted-glm/contributed"
    )
    beside: Released = Model(
        "*inner products and penalty",
        "what a penalty needs to know of the partner's coefficients",
        to="initiator",
        origin="assisted-glm/contributed",
    )
    partner: str = Public("", "who is next", kind="str", to="all")
    closes: bool = Public("", "whether a round ends here", kind="bool", to="all")


@message("assisted-glm/turned", version=1)
class Turned:
    """The joint fit so far, and the next partner's starting point."""

    own: Released = PerRecord("m", "the initiator's part of the linear predictor", to="partner")
    others: Released = PerRecord("k", "the other partners' part, if any", to="partner")
    place: Released = Model(
        "*weights of the partner's messages, constant",
        "where the partner's own coefficients stand",
        to="partner",
    )
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

    def check(self, request: TurnRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, self.rank)


@message("assisted-glm/contribute-request", version=1)
class ContributeRequest:
    """Fit the own columns beside what the others have."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    own: Released = PerRecord(
        "m", "the initiator's part", to="partner", origin="assisted-glm/turned"
    )
    others: Released = PerRecord(
        "k", "the other partners' part, if any", to="partner", origin="assisted-glm/turned"
    )
    place: Released = Model(
        "*weights of the partner's messages, constant",
        "where the partner's own coefficients stand",
        to="partner",
        origin="assisted-glm/turned",
    )


@message("assisted-glm/contributed", version=1)
class Contributed:
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
        "*one number",
        "deviance that this partner could still gain",
        parts={"gain": part(low=GAP, high=MOST)},
    )

    def check(self, request: ContributeRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are; a gain is a number, or there is none."""
        if not are_numbers(self.gain.value.values()):
            return "numbers that are too large"
        return rank_fault(self, known["rank"])


@message("assisted-glm/settle-request", version=1)
class SettleRequest:
    """Tell a partner how its messages stand in the joint fit."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    partner: str = Public("", "for whom", kind="str", to="all")


@message("assisted-glm/settled", version=1)
class Settled:
    """Weights of a partner's messages."""

    place: Released = Model(
        "*weights of the partner's messages, constant",
        "where the partner's own coefficients stand",
        to="partner",
    )


@message("assisted-glm/finish-request", version=1)
class FinishRequest:
    """Complete what inference needs."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    place: Released = Model(
        "*weights of the partner's messages, constant",
        "where the partner's own coefficients stand",
        to="partner",
        origin="assisted-glm/settled",
    )


@message("assisted-glm/finished", version=1)
class Finished:
    """The directions that no message had, if the policy lets all be known."""

    rest: Released = PerRecord(
        "m k", "columns along the directions that were not sent yet", to="initiator"
    )
    complete: bool = Public("", "whether all directions are known to the initiator", kind="bool")
    variances: Released = PerRecord(
        "v", "variances of the partner's part for new people, if asked for", to="initiator"
    )
    known: int = Public("", "directions known of its columns", kind="int", low=0)

    def check(self, request: FinishRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, known["rank"])


@message("assisted-glm/aim-request", version=1)
class AimRequest:
    """Take in further directions; say what standard errors need of a partner."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    partner: str = Public("", "for whom", kind="str", to="all")
    owner: str = Public("", "whose further directions these are", kind="str", to="all")
    more: Released = PerRecord(
        "m k", "further directions, if any", to="initiator", origin="assisted-glm/refined"
    )


@message("assisted-glm/aimed", version=1)
class Aimed:
    """The joint fit and the targets, but for the partner's own part of them."""

    own: Released = PerRecord(
        "m k", "the initiator's columns along the fit and the targets", to="partner"
    )
    others: Released = PerRecord("o j", "the other partners' parts", to="partner")
    place: Released = Model(
        "*weights, constants, rows of the targets",
        "the partner's own part, by its messages",
        to="partner",
    )
    spent: bool = Public("", "whether the initiator's policy lets no more leave", kind="bool")
    known: int = Public("", "directions known of its columns", kind="int", low=0)

    def check(self, request: AimRequest, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        return rank_fault(self, known["rank"])


@message("assisted-glm/refine-request", version=1)
class RefineRequest:
    """Send the directions that the targets need most."""

    settings: str = Public("", "settings, as JSON", kind="str", to="all")
    own: Released = PerRecord(
        "m k", "the initiator's columns", to="partner", origin="assisted-glm/aimed"
    )
    others: Released = PerRecord(
        "o j", "the other partners' parts", to="partner", origin="assisted-glm/aimed"
    )
    place: Released = Model(
        "*weights, constants, rows of the targets",
        "the partner's own part, by its messages",
        to="partner",
        origin="assisted-glm/aimed",
    )
    last: bool = Public("", "whether to say what is left only", kind="bool", to="all")


@message("assisted-glm/refined", version=1)
class Refined:
    """Further directions, and what is left of each target's equations."""

    more: Released = PerRecord("m k", "further directions, if any", to="initiator")
    left: Released = Model("*by target", "variance that is still hidden", to="initiator")
    n_more: int = Public("", "number of further directions", kind="int", low=0)
    known: int = Public("", "directions known of its columns", kind="int", low=0)

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
