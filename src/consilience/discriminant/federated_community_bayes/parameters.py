"""Parameters of community Bayes over sites: what is allowed, and what follows from what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consilience.discriminant.federated_community_bayes.messages import (
    LARGEST_C,
    MAX_CANDIDATES,
    SHARES,
    SMALLEST_C,
)
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    from consilience.discriminant.federated_community_bayes import FederatedCommunityBayes

LINKAGES = ("average", "complete", "single")
FITS = ("auto", "one-shot", "exact")
_GRID = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)


def check_parameters(method: FederatedCommunityBayes) -> None:
    """Check the parameters.

    Raises
    ------
    ParameterError
    """
    if method.n_communities != "auto" and not _whole(method.n_communities, 1):
        raise ParameterError.of(
            "n_communities", "a whole number of at least 1, or 'auto'", method.n_communities
        )
    given = method.candidates
    sound = all(_whole(v, 1) for v in given) and len(set(given)) == len(given)
    if not sound or len(given) > MAX_CANDIDATES:
        allowed = f"at most {MAX_CANDIDATES} different whole numbers of at least 1"
        raise ParameterError.of("candidates", allowed, given)
    for name, choices in (("linkage", LINKAGES), ("fit", FITS)):
        if getattr(method, name) not in choices:
            raise ParameterError.of(name, f"one of {', '.join(choices)}", getattr(method, name))
    if not _number(method.C, SMALLEST_C, LARGEST_C):
        raise ParameterError.of("C", f"a number from {SMALLEST_C:g} to {LARGEST_C:g}", method.C)
    for name in ("choosing", "holdout"):
        value = getattr(method, name)
        if not _number(value, 0.0, 0.4) or value not in SHARES:
            raise ParameterError.of(name, "a share of 0, .1, .2, .3 or .4", value)
    if method.n_communities == "auto" and not method.choosing > 0:
        raise ParameterError.of(
            "choosing", "above 0 where the number of communities is chosen", method.choosing
        )
    if not _whole(method.max_rounds, 1) or method.max_rounds > 100:
        raise ParameterError.of("max_rounds", "a whole number from 1 to 100", method.max_rounds)


def candidates_of(method: FederatedCommunityBayes, p: int) -> tuple[int, ...]:
    """Numbers of communities to compare, ascending.

    Raises
    ------
    ParameterError
        More communities than columns.
    """
    if method.n_communities != "auto":
        listed: tuple[int, ...] = (int(method.n_communities),)
    else:
        listed = tuple(sorted(method.candidates)) or tuple(n for n in _GRID if n <= p)
    if max(listed) > p:
        raise ParameterError.of("n_communities", f"at most {p}, the number of columns", max(listed))
    return listed


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any, low: float, high: float) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and low <= value <= high
