"""From the rounds to the end: messages to the sites, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.latent_regression.estimators.latent_class_units import Units
from consilience.latent_regression.protocol.memberships import AS_BEFORE, NEW, WITHHELD
from consilience.latent_regression.protocol.messages import (
    MARKS,
    N_FIGURES,
    Conclude,
    Concluded,
)
from consilience.latent_regression.protocol.result import LatentClassRegressionResult
from consilience.latent_regression.protocol.rounds import Rounds
from consilience.latent_regression.protocol.survey import Survey
from consilience.protocol.method import CoordinatorContext
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.latent_regression.protocol import LatentClassRegression

Ending = tuple[IntArray, FloatArray, FloatArray]


def conclude_messages(
    rounds: Rounds, survey: Survey, cells: IntArray, mean: FloatArray, covariance: FloatArray
) -> dict[str, Conclude]:
    """The classes for every site, with the way from the cells of the rounds to them."""
    place = np.full(rounds.k, -1, dtype=np.int64)
    place[cells] = np.arange(len(cells))
    base, sigma2 = shares_of(rounds, cells), noise_of(rounds)
    common: dict[str, Any] = {
        "settings": rounds.settings.to_json(),
        "mean": relayed(mean, Disclosure.MODEL),
        "covariance": relayed(covariance, Disclosure.MODEL),
        "ridge": relayed(survey.ridge, Disclosure.MODEL),
        "ridge_variance": relayed(survey.sigma2, Disclosure.AGGREGATE),
        "base": relayed(base, Disclosure.AGGREGATE),
        "sigma2": relayed(sigma2, Disclosure.AGGREGATE),
        "delta2": relayed(rounds.shared.delta2, Disclosure.AGGREGATE),
        "beta": float(rounds.shared.beta),
    }
    # What sites averaged was after all mergers: the way is the same from every site.
    return {site: Conclude(mapping=place, **common) for site in sorted(rounds.standing)}


def shares_of(rounds: Rounds, cells: IntArray) -> FloatArray:
    """Shares of the classes in the end, averaged over the last rounds."""
    base = np.mean(rounds.kept_bases or [rounds.shared.base], axis=0)[cells]
    return np.asarray(base / base.sum())


def noise_of(rounds: Rounds) -> float:
    """Variance of the noise, averaged over the last rounds."""
    return float(np.mean(rounds.kept_sigma2 or [rounds.shared.sigma2]))


def build_result(
    method: LatentClassRegression,
    ctx: CoordinatorContext,
    rounds: Rounds,
    survey: Survey,
    ending: Ending,
    concluded: Mapping[str, Concluded],
    merged_at: int,
) -> LatentClassRegressionResult:
    """Put the result together."""
    cells, mean, covariance = ending
    unit = float(survey.scale[-1])
    units = Units(
        survey.centre[:-1],
        survey.scale[:-1],
        float(survey.centre[-1]),
        unit,
        method.fit_intercept,
    )
    coefficients, intercepts, spread = units.raw(mean, covariance)
    errors = np.sqrt(np.maximum(np.diagonal(spread, axis1=1, axis2=2), 0.0))
    sums = rounds.sums
    figures = _figures(concluded, rounds.sites)
    return LatentClassRegressionResult(
        feature_names=ctx.feature_names,
        target_name=str(ctx.columns.target),
        n_classes=len(cells),
        chosen="auto" if isinstance(method.n_classes, str) else "given",
        coefficients=coefficients,
        coefficient_errors=errors[:, 1:],
        intercepts=intercepts,
        intercept_errors=errors[:, 0],
        class_sizes=sums.counts[cells],
        class_events=sums.n[cells],
        class_shares=shares_of(rounds, cells),
        sigma=float(np.sqrt(noise_of(rounds))) * unit,
        delta=float(np.sqrt(rounds.shared.delta2)),
        alpha=rounds.alpha,
        beta=float(rounds.shared.beta),
        concentration=method.concentration,
        start=method.start,
        level=float(method.level),
        participation=float(method.participation),
        rounds_run=rounds.round,
        merged_at=merged_at,
        slowed=rounds.slowed,
        merge_path=np.array(rounds.path, dtype=float).reshape(-1, 2),
        sites=rounds.sites,
        heldout_mse=figures[:, 0, :4],
        heldout_log_score=figures[:, 0, 4:6],
        coverage=figures[:, 0, 6],
        interval_width=figures[:, 0, 7],
        heldout_gain=figures[:, 0, 8],
        heldout_gain_error=np.sqrt(figures[:, 1, 8]),
        heldout_effective=figures[:, 2, 8],
        mean=mean,
        covariance=covariance,
        centre=survey.centre,
        scale=survey.scale,
        fit_intercept=method.fit_intercept,
        scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
        remarks=(
            *_constant(ctx, survey),
            *_seldom(method, ctx),
            *_remarks(method, rounds, survey, len(cells)),
        ),
        **_traces(rounds, unit),
        **_by_site(rounds, survey, cells),
    )


def _traces(rounds: Rounds, unit: float) -> dict[str, Any]:
    """What went on from round to round."""
    trace = rounds.trace
    return {
        "learning_rates": np.array(trace["rate"][1:], dtype=float),
        "trace_sigma": np.array(trace["sigma"]) * unit,
        "trace_moved": np.array(trace["moved"]),
        "trace_log_marginal": np.array(trace["log_marginal"]),
        "trace_classes": np.array(trace["classes"], dtype=float),
    }


def _figures(concluded: Mapping[str, Concluded], sites: tuple[str, ...]) -> FloatArray:
    """Figures, their squared standard errors and effective numbers: (B, 3, q)."""
    found = np.full((len(sites), 3, N_FIGURES), np.nan)
    for b, site in enumerate(sites):
        if site not in concluded:
            continue
        reply = concluded[site]
        told = [np.asarray(r.value) for r in (reply.figures, reply.variances, reply.effective)]
        found[b] = told
    return found


def _by_site(rounds: Rounds, survey: Survey, cells: IntArray) -> dict[str, Any]:
    sites, trace = rounds.sites, rounds.trace
    n_rounds = len(trace["status"])
    by_kind = np.zeros((4, n_rounds, len(sites)), dtype=np.int64)
    for r, told in enumerate(trace["status"]):
        for b, site in enumerate(sites):
            if site in told:
                by_kind[:, r, b] = told[site]
    sizes = np.full((len(sites), len(cells)), np.nan)
    for b, site in enumerate(sites):
        st = rounds.standing.get(site)
        if st is not None:
            current = np.zeros(rounds.k)
            np.add.at(current, st.mapping, st.sums[:, -MARKS])
            sizes[b] = current[cells]
    gap = float("nan")
    return {
        "n_agents": np.array([survey.agents.get(site, gap) for site in sites]),
        "n_entities": np.array([survey.entities.get(site, gap) for site in sites]),
        "n_events": np.array([survey.events.get(site, gap) for site in sites]),
        "heldout_weight": np.array([survey.events.get(site, gap) for site in sites]),
        "reported": np.array([[site in who for site in sites] for who in trace["reported"]]),
        "released": by_kind[NEW],
        "repeated": by_kind[AS_BEFORE],
        "withheld": by_kind[WITHHELD],
        "site_class_sizes": sizes,
    }


def _constant(ctx: CoordinatorContext, survey: Survey) -> tuple[str, ...]:
    """What does not vary, and tells no classes apart."""
    found = []
    same = [n for n, c in zip(ctx.feature_names, survey.constant[:-1], strict=True) if c]
    if same:
        found.append(
            f"The same in all events, as far as sums of squares tell: {', '.join(same)}. Take it "
            "out of the features, or shift it to a smaller mean."
        )
    shared = [n for n, c in zip(ctx.feature_names, survey.shared, strict=True) if c]
    if shared:
        found.append(
            f"Columns that follow from one another: {', '.join(shared)}. The prior shares their "
            "coefficients between them; predictions do not suffer."
        )
    if survey.constant[-1]:
        found.append(
            f"{ctx.columns.target} is the same in all events: no regression tells classes apart."
        )
    return tuple(found)


def _seldom(method: LatentClassRegression, ctx: CoordinatorContext) -> tuple[str, ...]:
    """What a random start is worth where sums change by groups only."""
    protected = any(preset != "simulation" for preset in ctx.presets.values())
    if method.start != "random" or method.n_classes == 1 or not protected:
        return ()
    return (
        "Classes seldom form from a random start where sites protect records, since their sums "
        'change by groups of entities only: set start to "local".',
    )


def _remarks(
    method: LatentClassRegression, rounds: Rounds, survey: Survey, n_classes: int
) -> tuple[str, ...]:
    found = []
    if isinstance(method.n_classes, int) and n_classes < method.n_classes:
        found.append(
            f"Only {n_classes} of {method.n_classes} classes hold entities: the data tell no more "
            "apart."
        )
    if rounds.slowed:
        found.append(
            "Labels jumped to and fro between rounds, as they do at low noise under a large "
            f"learning rate; it was lowered to {rounds.rate:.3g}."
        )
    silent = [site for site in rounds.sites if site not in survey.events]
    if silent:
        found.append(
            f"Too few events to tell the moments of all columns at {', '.join(silent)}: the units "
            "rest on the other sites."
        )
    missed = [site for site in rounds.sites if site not in rounds.standing]
    if missed:
        found.append(f"Not there at the beginning, and so not in the classes: {', '.join(missed)}.")
    never = [site for site, standing in sorted(rounds.standing.items()) if not standing.sums.any()]
    if never:
        found.append(
            f"No class of {', '.join(never)} was large enough to be sent at the end: its events "
            "are predicted, but the classes do not rest on them."
        )
    return tuple(found)
