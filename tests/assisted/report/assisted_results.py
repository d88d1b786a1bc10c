"""Results of assisted learning as a run would make them, with made-up figures."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from consilience.assisted.glm.result import AssistedGLMResult
from consilience.assisted.test import AssistanceTestResult
from consilience.engines.federation import Run
from consilience.engines.rundir import RunInfo


def run_of(result: Any, method: str) -> Run:
    """A run around a result, without a transcript."""
    info = RunInfo(
        run="r",
        name="study",
        study="hash",
        method=method,
        method_version=1,
        parameters={},
        release="0",
        libraries={},
        seed=1,
        sites=(result.initiator, *result.partners),
        engine="local",
    )
    return Run(info=info, result=result, transcript=(), notes=())


def one_test(z: float, draws: int, df: int) -> dict[str, Any]:
    statistic = df + np.linspace(z - 1, z + 1, draws) ** 2
    p = stats.chi2.sf(statistic, df)
    combined = float(stats.cauchy.sf(np.mean(np.tan((0.5 - p) * np.pi))))
    return {"statistic": statistic, "df": np.full(draws, df), "p": p, "combined": combined}


def power_grid(n: int = 400) -> dict[str, Any]:
    epsilon = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, np.inf])
    effect = np.array([0.01, 0.03, 0.1])
    kept = np.where(np.isinf(epsilon), 1.0, 1 / (1 + 200 / epsilon**2))
    shift = n * effect[None, :] * kept[:, None]
    return {
        "epsilon": epsilon,
        "effect": effect,
        "power": stats.ncx2.sf(stats.chi2.isf(0.05, 3), 3, shift),
    }


def partner_test(
    strength: dict[str, float] | None = None,
    *,
    epsilon: float | None = 8.0,
    draws: int = 3,
    n: int = 400,
    **changes: Any,
) -> AssistanceTestResult:
    """A test of partners; `strength` says how far each one's statistics lie from nothing."""
    strength = {"lab": 6.0} if strength is None else strength
    partners = tuple(strength)
    fields: dict[str, Any] = {
        "initiator": "clinic",
        "partners": partners,
        "family": "binomial",
        "n_records": n,
        "n_directions": 3,
        "n_draws": draws,
        "epsilon": dict.fromkeys(partners, epsilon),
        "loose_epsilon": dict.fromkeys(partners, np.nan if epsilon is None else 3.1 * epsilon),
        "scale": dict.fromkeys(partners, 0.0 if epsilon is None else 1.7),
        "n_columns": dict.fromkeys(partners, 7),
        "revealed": dict.fromkeys(partners, 3),
        "tests": {
            p: {
                kind: one_test(z + shift, draws, 3)
                for kind, shift in (("score", 0), ("wald", 0.4), ("wald-hc3", -0.1), ("lr", 0.2))
            }
            for p, z in strength.items()
        },
        "test": "score",
        "level": 0.05,
        "given": (),
        "minority": 40.0,
        "reliability": dict.fromkeys(partners, 1.0 if epsilon is None else 0.24),
        "power": {p: power_grid(n) for p in partners},
        "warnings": (),
    }
    fields["useful"] = {
        p: bool(of["score"]["combined"] <= 0.05) for p, of in fields["tests"].items()
    }
    return AssistanceTestResult(**{**fields, **changes})


STATUSES = ("identified", "shared", "bounded", "not certified")


def joint_fit(
    *,
    saved: float = 0.08,
    error: float = 0.02,
    partners: tuple[str, ...] = ("lab",),
    columns: int = 6,
    family: str = "binomial",
    seed: int = 0,
    **changes: Any,
) -> AssistedGLMResult:
    """A joint model, in which every status of a coefficient occurs."""
    rng = np.random.default_rng(seed)
    rounds = np.append(0, np.repeat(np.arange(1, 5), len(partners)))
    k = len(rounds)
    turns = ("", *(partners[i % len(partners)] for i in range(k - 1)))
    estimate = rng.normal(size=columns)
    se = np.full(columns, 0.2)
    status = tuple("identified" if i < 3 else STATUSES[i % 4] for i in range(columns))
    factor = np.array([1.2 if s == "bounded" else 1.0 for s in status])
    factor[[s == "not certified" for s in status]] = np.nan
    se = se * factor
    bins = np.linspace(0.05, 0.9, 8)
    fields: dict[str, Any] = {
        "initiator": "clinic",
        "partners": partners,
        "family": family,
        "response": "share",
        "flip": 0.0,
        "n_records": 900,
        "n_holdout": 225,
        "n_new": 0,
        "acceleration": "span",
        "stopped": "converged",
        "rounds": 4,
        "rounds_table": {
            "round": rounds,
            "partner": np.array(turns),
            "deviance": 1000.0 + 100.0 * 0.1 ** np.linspace(0, 4, k),
            "change": np.append(np.nan, 10.0 ** -np.linspace(0.5, 7, k - 1)),
            "numbers_sent": 1800 * np.arange(k),
        },
        "revealed": {"clinic": (4, 6), **dict.fromkeys(partners, (5, 7))},
        "deviance": {"null": 1240.0, "alone": 1100.0, "joint": 1000.0},
        "holdout": {
            "null": 1.38,
            "alone": 1.25,
            "joint": 1.25 - saved,
            "alone_minus_joint": saved,
            "error": error,
        },
        "pseudo_r2": {"alone": 1 - 1100 / 1240, "joint": 1 - 1000 / 1240},
        "auc": {"alone": 0.74, "joint": 0.79},
        "own_coefficients": {
            "name": tuple(f"x{i}" for i in range(columns)),
            "estimate": estimate,
            "error": se,
            "z": estimate / se,
            "p": 2 * stats.norm.sf(np.abs(estimate / se)),
            "status": status,
            "factor": factor,
        },
        "alone": {"estimate": estimate + 0.1, "error": se * 0.9},
        "calibration": {
            key: {
                "predicted": bins,
                "observed": np.clip(bins + rng.normal(0, 0.04, len(bins)), 0, 1),
                "records": np.full(len(bins), 28),
            }
            for key in ("alone", "joint")
        },
        "intervals": {"kind": "joint", "certified": 0, "n_new": 0, "level": 0.95},
        "remaining": float("nan"),
        "penalty": {"alpha": 0.0, "l1_ratio": 0.0},
    }
    return AssistedGLMResult(**{**fields, **changes})
