"""Foreign models at a site: which are tried, with which weights, and what they predict.

Every foreign model, with its weights, is a question on the same rows. A site answers a bounded
number of them in a run, and rounds what it says (``wire.disclosure.weighted_means``); it cannot
tell a partner's model from one that a coordinator made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.collaborators.kernels.site_comparison import Pooled, overlap_weights_all
from consilience.collaborators.protocol.messages import Models, Settings
from consilience.collaborators.protocol.rows import Rows
from consilience.exceptions import DisclosureError, ProtocolError
from consilience.learners.foreign_models import predict_all
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext
from consilience.wire.codec import digest, pack
from consilience.wire.disclosure import Limits

MODELS_PER_ROW = 20
"""Models, over all views, that a site tries at most for each of its rows (but 200 always)."""
LOW_WEIGHT = 0.1
PROBES = 16
BEYOND = 5.0
TOO_MANY = "more questions on the same rows than a site answers"


def check_owners(message: Models, s: Settings, n: int, site: SiteContext) -> None:
    """Every site once, and not more models than the rows can answer for.

    Raises
    ------
    ProtocolError
        Owners are repeated, or this site is not among them.
    DisclosureError
        Each model is a question on the same rows; enough of them would tell the rows.
    """
    owners = message.owners
    models = message.models.value
    fits = len(set(owners)) == len(owners) and site.site in owners and len(models) == s.n_views
    if not fits or any(len(by_owner) != len(owners) for by_owner in models):
        raise ProtocolError("every site has one model in each view, and this site is one of them")
    asked = len(owners) * s.n_views
    if site.limits.min_records > 1 and asked > max(200, MODELS_PER_ROW * n):
        raise DisclosureError("more models than a site answers for", public=TOO_MANY)


def weights_of(message: Models, x: FloatArray, me: int, limits: Limits) -> FloatArray:
    """Overlap weights of all rows for every owner, (n, L).

    Size and means of this site are its own, whatever the message says. Where records are protected
    every row has a tenth of the largest weight at least: made-up means could otherwise cut the rows
    in two wherever they like.
    """
    means, sizes = np.array(message.means.value), np.array(message.sizes.value)
    means[me], sizes[me] = x.mean(axis=0), len(x)
    if (sizes < 1).any() or not np.isfinite(means).all():
        raise ProtocolError("sizes are at least 1 and means are finite")
    pooled = Pooled(np.array(message.inverse.value), float(message.trace.value), 0.0)
    weights = overlap_weights_all(x, me, means, sizes, pooled)
    if limits.min_records > 1:
        weights = np.maximum(weights, LOW_WEIGHT * weights.max(axis=0))
    return weights


def n_models(message: Models) -> int:
    """Models that an exchange tries, over all views."""
    return sum(len(by_owner) for by_owner in message.models.value)


def chances(message: Models, view: int, site: SiteContext, seed: int) -> FloatArray | None:
    """Secret numbers by which what is told of each model is rounded, (2, L); None if unprotected.

    They follow from the site's rows and from the question, which is a model with its weights: the
    same question has the same answer, and another one is rounded by other numbers. Were they the
    same, two models would be told apart wherever one row is.
    """
    if site.limits.min_records <= 1:
        return None
    shared = pack((np.asarray(message.inverse.value), float(message.trace.value)))
    means, sizes = np.asarray(message.means.value), np.asarray(message.sizes.value)
    asked = zip(message.models.value[view], means, sizes, strict=True)
    drawn = [
        stream(seed, "rounding", digest(shared, pack((model, mean, int(size))))).random(2)
        for model, mean, size in asked
    ]
    return np.transpose(drawn)


def all_predictions(
    models: Sequence[Sequence[dict[str, Any]]],
    rows: Rows,
    s: Settings,
    owners: Sequence[str],
    site: SiteContext,
) -> tuple[list[list[FloatArray]], dict[str, str]]:
    """Predictions of every model on all rows, NaN for models that failed, and why they failed.

    An owner of whom one model failed is not tried again, so that a hostile one costs little time.
    Where records are protected, a model that fails at this site's rows only (it may have been made
    to do so beyond some value) is none that failed: it predicts what knows nothing.
    """
    nothing = np.full((len(rows.x), s.n_outputs), np.nan)
    failed: dict[str, str] = {}
    found: list[list[FloatArray]] = []
    for by_owner in models:
        tried = [i for i, owner in enumerate(owners) if owner not in failed]
        answers = _predictions([by_owner[i] for i in tried], rows.x, s)
        if site.limits.min_records > 1:
            answers = _whatever_the_rows_are([by_owner[i] for i in tried], answers, rows, s)
        part = [nothing] * len(owners)
        for i, answer in zip(tried, answers, strict=True):
            if isinstance(answer, str):
                failed[owners[i]] = answer
            else:
                part[i] = answer
        found.append(part)
    return found, failed


def _predictions(
    models: Sequence[dict[str, Any]], x: FloatArray, s: Settings
) -> list[FloatArray | str]:
    return predict_all(models, x, n_features=x.shape[1], n_outputs=s.n_outputs)


def _whatever_the_rows_are(
    models: Sequence[dict[str, Any]], answers: list[FloatArray | str], rows: Rows, s: Settings
) -> list[FloatArray | str]:
    """Answers of which no failure tells of the rows: it does where rows of nobody fail, too."""
    odd = [i for i, answer in enumerate(answers) if isinstance(answer, str)]
    nobody = stream(0, "rows of nobody").normal(size=(PROBES, rows.x.shape[1]))
    found = list(answers)
    for i, probe in zip(odd, _predictions([models[i] for i in odd], nobody, s), strict=True):
        if not isinstance(probe, str):
            neutral = np.full(s.n_outputs, 1 / s.n_outputs if s.levels else rows.y.mean())
            found[i] = np.tile(neutral, (len(rows.x), 1))
    return found


def within_reach(predictions: Sequence[FloatArray], y: FloatArray, least: int) -> list[FloatArray]:
    """Predictions cut so that no few rows stand out in them.

    A made-up model with huge values at some rows would count these rows by its loss. So predictions
    are cut a little beyond the `least`-th smallest and largest one: by five times the range between
    these, at most by one standard deviation of the response. A box around fewer rows does nothing
    where a model says one thing of all others, and never more than a row does. And they are cut to
    the widest range around the mean that n rows of this mean and spread can have (Samuelson 1968),
    which tells nothing else of them; no honest model is further off.
    """
    spread = float(y.std())
    half = spread * float(np.sqrt(len(y)))
    k = least - 1
    cut = []
    for f in predictions:
        if np.isnan(f).any():
            cut.append(f)
            continue
        ordered = np.partition(f, sorted({k, len(y) - 1 - k}), axis=0)
        low, high = ordered[k], ordered[len(y) - 1 - k]
        beyond = np.minimum(BEYOND * (high - low), spread)
        low = np.maximum(low - beyond, y.mean() - half)
        cut.append(np.clip(f, low, np.minimum(high + beyond, y.mean() + half)))
    return cut
