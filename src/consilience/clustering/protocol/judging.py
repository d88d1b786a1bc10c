"""The number of classes by held-out entries: each site holds entries of its own rows out.

For each fold of scattered entries a site fits k-means with 1, 2, ... classes to the other entries
and predicts those that are held out by the centre of the row's class. Sums of squared errors are
added over sites; the number with the smallest error per entry is chosen.

Source: Ya Le's Stanford thesis, chapter 3, for one matrix. The sum over sites is not in it: classes
are those that sites can tell apart by their own rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.clustering.protocol.messages import (
    MAX_FOLDS,
    MAX_JUDGED,
    Judged,
    JudgeRequest,
)
from consilience.exceptions import DataError, DisclosureError, ParameterError, QuorumError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.entry_paths import KMeansPath
from consilience.numerics.held_out_entries import EntryCurve, held_out_predictions
from consilience.numerics.random import stream
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.protocol.phases.entry_errors import (
    entry_seed,
    merged,
    nothing_released,
    released_errors,
    squared_errors_by_row,
)

_NOBODY = (
    "no site could judge numbers of classes by held-out entries: give n_clusters, let larger sites "
    "take part, or name two features or more"
)
MAX_STARTS = 10_000  # as of the method's own n_init: what a site computes has an end


# --------------------------------------------------------------------------- at the site


@step("judge", once=True)
def judge(
    message: JudgeRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Judged, State]:
    """Hold entries out, predict them with 1, 2, ... classes, tell sums of squared errors."""
    a = message.max_clusters
    bounds = ((message.n_folds, 2, MAX_FOLDS), (a, 1, MAX_JUDGED), (message.n_init, 1, MAX_STARTS))
    if not all(least <= asked <= most for asked, least, most in bounds):
        sentence = "more folds, numbers of classes or starts than a site judges"
        raise DisclosureError(sentence, public=sentence)
    n = data.n_rows
    n_folds = message.n_folds
    if n < max(2 * a, site.limits.min_records):
        return _abstention(a, site, "the table has too few rows"), state
    seed = entry_seed(data.features, site, "ensemble clustering, held-out entries")
    try:
        entries = Entries.of(data.features)
        folds = entry_folds(entries, n_folds, stream(seed, "folds"))
    except (DataError, ParameterError) as error:
        return _abstention(a, site, str(error)), state
    path = KMeansPath(parameters=range(1, a + 1), n_init=message.n_init, seed=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, guesses = held_out_predictions(entries, path, folds)
    for remark in dict.fromkeys(str(one.message) for one in caught):
        site.note(remark)
    squares = (guesses - entries.values[:, None]) ** 2
    by_row = squared_errors_by_row(entries.rows, folds, squares, (n, n_folds))
    found = released_errors(by_row, folds, n_missing=0, limits=site.limits)
    if not len(found.errors.value):
        return _abstention(a, site, "single rows make most of the squared errors"), state
    return Judged(errors=found.errors, entries=found.entries, se=found.se), state


def _abstention(a: int, site: SiteContext, why: str) -> Judged:
    """Say nothing, and tell the site's own people why."""
    site.note(f"Held-out entries do not judge numbers of classes here: {why}.")
    found = nothing_released(a)
    return Judged(errors=found.errors, entries=found.entries, se=found.se)


# --------------------------------------------------------------------------- at the coordinator


def judged_numbers(
    ctx: CoordinatorContext, *, n_folds: int, max_clusters: int, n_init: int
) -> Generator[Ask, Replies, dict[str, Any]]:
    """Ask for held-out errors and add them up.

    Returns
    -------
    dict
        Fields of the result, by name.

    Raises
    ------
    QuorumError
        No site could judge.
    """
    asked = JudgeRequest(n_folds=n_folds, max_clusters=max_clusters, n_init=n_init)
    replies = ctx.require((yield Ask("judge", asked)))
    told: dict[str, _Told] = {}
    for site, reply in replies.items():
        mine = _Told(
            *(np.asarray(x.value, dtype=float) for x in (reply.errors, reply.entries, reply.se))
        )
        if not len(mine.errors):
            ctx.note(
                f"Site {site} did not judge numbers of classes: it has too few rows, or single "
                "rows make most of its errors."
            )
        else:
            told[site] = mine
    if not told:
        raise QuorumError(_NOBODY)
    found = _summary(told, max_clusters)
    if found["cv_at_edge"]:
        ctx.note(
            f"The error of held-out entries is smallest at {max_clusters} classes, the largest "
            "number that was tried, so it chooses none: raise max_clusters."
        )
    return found


@dataclass(frozen=True, eq=False)
class _Told:
    """What a site told: sums (G, A), entries (G,), standard errors (A,)."""

    errors: FloatArray
    entries: FloatArray
    se: FloatArray


def _summary(told: Mapping[str, _Told], a: int) -> dict[str, Any]:
    """Fields of the result."""
    n_lines = min(len(one.entries) for one in told.values())
    errors = sum(merged(told[site].errors, n_lines) for site in sorted(told))
    entries = sum(merged(told[site].entries, n_lines) for site in sorted(told))
    sizes = {site: int(one.entries.sum()) for site, one in told.items()}
    total = sum(sizes.values())
    # Sites draw their folds by themselves, so what they do not know of their means adds up.
    se = np.sqrt(sum((told[site].se * sizes[site] / total) ** 2 for site in sorted(told)))
    curve = curve_of(np.asarray(errors), np.asarray(entries), np.asarray(se))
    return {
        "cv_candidates": np.arange(1, a + 1),
        "cv_fold_errors": np.asarray(errors),
        "cv_fold_entries": np.asarray(entries).astype(np.int64),
        "cv_curve_se": np.asarray(se),
        "cv_site_errors": {site: one.errors.sum(axis=0) for site, one in told.items()},
        "cv_site_entries": sizes,
        "cv_minimiser": int(curve.minimiser),
        "cv_one_standard_error": int(curve.one_standard_error),
        "cv_at_edge": bool(curve.at_edge),
        "cv_chosen": int(curve.minimiser),
        "cv_rule": "minimum",
    }


def curve_of(errors: FloatArray, entries: NDArray[Any], se: FloatArray) -> EntryCurve:
    """Curve of the error per held-out entry.

    Parameters
    ----------
    errors : (G, A) array
        Sums of squared errors.
    entries : (G,) array
    se : (A,) array
    """
    numbers = np.arange(1, errors.shape[1] + 1)
    # One class is where the problem itself begins; the largest number is where the question ends.
    return EntryCurve.of_sums("n_clusters", numbers, errors, entries, natural=(True, False), se=se)
