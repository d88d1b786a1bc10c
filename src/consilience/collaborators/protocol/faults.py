"""Why a site is left out though its replies fit: what it has not, and what nobody can use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from consilience.collaborators.protocol.messages import Losses, Selected

_LONGEST = 200
_NAMED = 10
_FAR_OFF = 10.0

WHY = {
    "too-few-rows": "it has too few rows",
    "constant-response": "its response takes one value only, but for a few rows at most",
    "rare-level": "too few of its rows, or none, have one of the levels of the response",
    "no-candidate": "none of the candidates could be used there",
}
WITHHELD = (
    "its losses were withheld: one row dominates them, or too few rows have one of the values of "
    "the response"
)


def has_nothing(reason: str) -> bool:
    """Whether a site was left out for what it said itself: no fault, and no matter of quorum."""
    return reason.startswith((*WHY.values(), WITHHELD))


def by_reason(reasons: Mapping[str, str]) -> str:
    """Sites with their reasons, each reason once: hundreds of sites can have the same."""
    said = []
    for reason in dict.fromkeys(reasons.values()):
        sites = [site for site, why in reasons.items() if why == reason]
        more = f" and {len(sites) - _NAMED} more" if len(sites) > _NAMED else ""
        said.append(f"{', '.join(sites[:_NAMED])}{more}: {reason}")
    return "; ".join(said)


def spoken(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names with reasons as a site gave them, cut short."""
    return [(name[:_LONGEST], reason[:_LONGEST]) for name, reason in pairs]


def has_none(reply: Selected) -> str | None:
    """Why a site has no model, or none that can be compared; None where it has one."""
    if reply.status != "ok":
        return WHY[reply.status]
    known = np.isfinite([reply.variance.value[0], reply.own.value[0]]).all()
    return None if known else WITHHELD


def serves_itself(reply: Losses, place: int, variance: float) -> bool:
    """Whether a site's model, as it travelled, is any good for the rows that it was fitted on.

    A fit does no worse on them than a constant, about; one that is far off was damaged on its way.
    """
    return not float(reply.raw.value[0, place]) > _FAR_OFF * variance
