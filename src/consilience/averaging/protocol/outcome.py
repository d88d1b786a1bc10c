"""From the rounds to the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.averaging.estimators.conventions import convention_of, innermost
from consilience.averaging.protocol.drawing import Reference
from consilience.averaging.protocol.messages import Concluded
from consilience.averaging.protocol.parameters import label
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.averaging.protocol.rounds import Rounds
from consilience.exceptions import QuorumError
from consilience.learners.candidates import build
from consilience.numerics.reference_average import Choice, pooled_gain
from consilience.protocol.method import CoordinatorContext

if TYPE_CHECKING:
    from consilience.averaging.protocol import ReferenceAveraging


LEAST_SQUARES = frozenset(("LinearRegression", "Ridge", "Lasso", "ElasticNet", "LassoLars", "Lars"))


def build_result(
    method: ReferenceAveraging,
    ctx: CoordinatorContext,
    rounds: Rounds,
    reference: Reference,
    scale: float,
    chosen: Choice,
    concluded: Mapping[str, Concluded],
) -> ReferenceAveragingResult:
    """Put the result together.

    Raises
    ------
    QuorumError
        No site's model is left.
    """
    if not concluded:
        raise QuorumError("no site sent its model at the end")
    s, sites = rounds.settings, rounds.sites
    owners = tuple(sorted(concluded))
    models = tuple(concluded[site].model.value for site in owners)
    shares = np.array([rounds.weights[site][0] for site in owners])
    shares = shares / shares.sum()
    made = build(s.estimator, s.task, min_records=1, seed=0)
    convention = convention_of(made, s.convention)
    losses = _by_site(concluded, sites, "losses", 3)
    differences = _by_site(concluded, sites, "differences", 2)
    base, gains, errors = rounds.gains()
    held = [rounds.held_weight(site) for site in sites]
    averaging, _ = pooled_gain(losses[:, 1], np.zeros(len(sites)), held)
    coefficients, intercepts = _coefficients(models, shares)
    return ReferenceAveragingResult(
        feature_names=ctx.feature_names,
        target_name=str(ctx.columns.target),
        levels=s.levels,
        task=s.task,
        loss=s.loss,
        estimator=label(method.estimator),
        convention=convention.name,
        linear=bool(convention.linear),
        least_squares=type(innermost(made)).__name__ in LEAST_SQUARES,
        schedule=method.schedule,
        rho=float(method.rho),
        exponent=float(method.exponent),
        rho_scale=scale,
        penalty_name=convention.penalty,
        penalties=np.array(s.penalties, dtype=float),
        separable=chosen.reason != "not-separable",
        base_loss=averaging + base - base[chosen.track],
        gains=gains,
        gain_errors=errors,
        local_losses=losses,
        local_differences=differences,
        local_errors=np.sqrt(_by_site(concluded, sites, "errors", 2)),
        chosen_track=chosen.track,
        chosen_round=chosen.round,
        kept=chosen.kept,
        reason=chosen.reason,
        owners=owners,
        shares=shares,
        models=models,
        coefficients=coefficients,
        intercepts=intercepts,
        scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
        remarks=_remarks(rounds, reference.facts.remarks(), owners),
        **_of_reference(reference),
        **_of_rounds(rounds),
    )


def _of_reference(reference: Reference) -> dict[str, Any]:
    facts = reference.facts
    return {
        "reference_kind": reference.kind,
        "n_reference": facts.n_rows,
        "reference_rank": facts.rank,
        "reference_needed_rank": facts.needed_rank,
        "reference_condition": facts.condition,
    }


def _of_rounds(rounds: Rounds) -> dict[str, Any]:
    sites, gap = rounds.sites, np.full(2, np.nan)
    return {
        "sites": sites,
        "sizes": np.array([rounds.rows[site] for site in sites], dtype=float),
        "held": np.array([rounds.held[site] for site in sites], dtype=float),
        "probes": np.stack([rounds.probes.get(site, gap) for site in sites]),
        "rhos": np.array(rounds.rhos),
        "contributed": np.array([[site in who for site in sites] for who in rounds.contributed]),
        "movement": np.stack(rounds.movements, axis=1),
        "influence": np.stack(rounds.influence, axis=1),
    }


def _by_site(
    concluded: Mapping[str, Concluded], sites: tuple[str, ...], name: str, width: int
) -> FloatArray:
    gap = np.full(width, np.nan)
    return np.stack(
        [
            np.asarray(getattr(concluded[site], name).value, dtype=float)
            if site in concluded
            else gap
            for site in sites
        ]
    )


def _coefficients(models: tuple[Any, ...], shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Average of the linear predictors; empty where some model has none."""
    forms = {(m.get("form"), m.get("link"), np.shape(m.get("coef"))) for m in models}
    if len(forms) != 1 or next(iter(forms))[0] != "linear":
        return np.empty((0, 0)), np.empty(0)
    coef = sum(w * m["coef"] for w, m in zip(shares, models, strict=True))
    intercept = sum(w * m["intercept"] for w, m in zip(shares, models, strict=True))
    return np.asarray(coef), np.asarray(intercept)


def _remarks(rounds: Rounds, reference: list[str], owners: tuple[str, ...]) -> tuple[str, ...]:
    found = list(reference)
    missing = [site for site in rounds.sites if site not in owners]
    if missing:
        found.append(f"The average holds no model of {', '.join(missing)}: none came at the end.")
    without = [site for site in rounds.sites if not rounds.held[site]]
    if rounds.settings.holdout > 0 and without:
        rest = (
            "the rounds are measured at the other sites" if rounds.judged else "nothing is measured"
        )
        found.append(f"Too few rows to hold some out at {', '.join(without)}: {rest}.")
    return tuple(found)
