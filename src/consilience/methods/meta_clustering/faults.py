"""What is wrong with what a site sent, beyond what its messages declare.

A reply that does not fit the study costs its site its place, and nobody else anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.methods.meta_clustering.messages import Losses, Selected, Settings
from consilience.methods.meta_clustering.partners import N_REFERENCE
from consilience.wire.estimators import check

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


def spoken(pairs: Any) -> list[tuple[str, str]]:
    """Names with reasons as a site gave them, cut short; anything else is passed over."""
    if not isinstance(pairs, tuple):
        return []
    fine = [
        pair
        for pair in pairs
        if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
    ]
    return [(name[:_LONGEST], reason[:_LONGEST]) for name, reason in fine]


def selection_fault(reply: Selected, s: Settings, p: int, n_rows: int) -> str | None:
    """Say what is wrong with a site's models and losses, if anything.

    Parameters
    ----------
    reply : Selected
    s : Settings
    p : int
        Columns of the study.
    n_rows : int
        Rows of the site, as it said before.
    """
    if reply.status != "ok":
        return WHY.get(reply.status, "its answer is not one that is known")
    chosen = reply.chosen.value
    if int(reply.n.value) != n_rows or n_rows <= 0:
        return "its number of rows is not that of its moments"
    places = isinstance(chosen, tuple) and len(chosen) == s.n_views
    if not places or not all(type(c) is int and 0 <= c < len(s.candidates) for c in chosen):
        return "it chose no candidate of the study"
    fault = (
        _predictions_fault(reply, s) if s.exchange == "reference" else _models_fault(reply, s, p)
    )
    if fault is not None:
        return fault
    views, tried = s.n_views, len(s.candidates)
    shapes = ((reply.own, views), (reply.own_error, views), (reply.losses, tried))
    if any(len(item.value) != length for item, length in shapes):
        return "it sent another number of losses than was asked for"
    if _negative(reply.useful_error.value) or _negative(reply.variance.value):
        return "its losses are negative"
    if any(_negative(item.value) for item, _ in shapes):
        return "its losses are negative"
    if not np.isfinite([reply.variance.value[0], reply.own.value[0]]).all():
        return WITHHELD
    return None if reply.variance.value[0] > 0 else "its response does not vary"


def _models_fault(reply: Selected, s: Settings, p: int) -> str | None:
    models = reply.models.value
    if not isinstance(models, tuple) or len(models) != s.n_views:
        return "it sent another number of models than was asked for"
    faults = (check(model, n_features=p, n_outputs=s.n_outputs) for model in models)
    found = next((fault for fault in faults if fault is not None), None)
    return None if found is None else f"its model was not accepted: {found}"


def _predictions_fault(reply: Selected, s: Settings) -> str | None:
    made = reply.predictions.value
    shape = (N_REFERENCE, s.n_outputs)
    fits = isinstance(made, tuple) and len(made) == s.n_views
    if fits and all(isinstance(f, np.ndarray) and f.shape == shape for f in made):
        return None
    return "its predictions do not fit the reference points"


def losses_fit(reply: Losses, s: Settings, n_owners: int) -> bool:
    """Whether losses have the shapes that were asked for, and variances are none below 0."""
    shape, folds = (s.n_views, n_owners), (s.gain_folds, 1)
    shapes = (
        reply.excess.value.shape == shape  # the others are declared to have the same
        and reply.shift.value.shape == folds
    )
    squares = (reply.variance, reply.effective, reply.raw, reply.shift_error)
    return shapes and not any(_negative(item.value) for item in squares)


def serves_itself(reply: Losses, place: int, variance: float) -> bool:
    """Whether a site's model, as it travelled, is any good for the rows that it was fitted on.

    A fit does no worse on them than a constant, about; one that is far off was damaged on its way.
    """
    return not float(reply.raw.value[0, place]) > _FAR_OFF * variance


def _negative(values: NDArray[Any]) -> bool:
    return bool((np.nan_to_num(np.asarray(values, dtype=float)) < 0).any())
