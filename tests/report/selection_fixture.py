"""Results on held-out entries as runs would make them, with made-up figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.completion.one_table.cluster_count import ClusterCountResult
from consilience.completion.one_table.matrix_completion import MatrixCompletionResult
from consilience.engines.federation import Run
from consilience.engines.rundir import RunInfo

NAMES = {
    FederatedPCAResult: "federated-pca",
    MatrixCompletionResult: "matrix-completion",
    ClusterCountResult: "cluster-count",
}
NAN3 = np.full(3, np.nan)


def curve(values: Any, best: int, *, steep: float = 0.05, folds: int = 5) -> dict[str, Any]:
    """Fields on the error by candidate, the simplest first."""
    q = len(values)
    mean = 1.0 + steep * (np.arange(q) - best) ** 2
    sums = 100.0 * (mean + 0.02 * np.random.default_rng(0).standard_normal((folds, 1)))
    spread = np.full(q, 0.01)
    near = np.flatnonzero(mean <= mean[best] + 0.01)
    return {
        "candidates": np.asarray(values, dtype=float),
        "fold_errors": sums,
        "fold_entries": np.full(folds, 100),
        "curve_se": spread,
        "minimiser": best,
        "one_standard_error": int(near[0]),
        "chosen": best,
        "at_edge": False,
        "natural": (True, False),
    }


NO_CURVE = {
    "candidates": np.empty(0),
    "fold_errors": np.empty((0, 0)),
    "fold_entries": np.empty(0, dtype=np.int64),
    "curve_se": np.empty(0),
    "minimiser": -1,
    "one_standard_error": -1,
    "chosen": -1,
}


def completion(**changes: Any) -> MatrixCompletionResult:
    """A penalty that was chosen, and judged by cells that took no part."""
    known: dict[str, Any] = {
        "site": "cellar",
        "form": "columns",
        "row_name": "row",
        "column_name": "column",
        "feature_names": tuple(f"x{j}" for j in range(13)),
        "shape": (178, 13),
        "n_observed": 2065,
        "model": "soft",
        "rule": "minimum",
        "parameter": "alpha",
        "n_splits": 5,
        **curve(np.geomspace(30, 1, 9), 5),
        "rank": 6,
        "alpha": 3.57,
        "singular_values": np.arange(6.0, 0.0, -1.0),
        "center": "columns",
        "grid": "auto",
        "holdout": 0.1,
        "n_final": 206,
        "final_errors": np.array([0.65, 1.07, 1.1]),
        "final_se": np.array([0.1, 0.15, 0.14]),
        "final_gain_se": np.array([np.nan, 0.07, 0.06]),
        "gap": 5e-7,
        "capped": False,
    }
    return MatrixCompletionResult(**{**known, **changes})


def ranks(best: int = 4, **changes: Any) -> MatrixCompletionResult:
    """A rank that was chosen, with nothing set aside."""
    known: dict[str, Any] = {
        "model": "hard",
        "parameter": "rank",
        **curve(range(9), best),
        "rank": best,
        "alpha": float("nan"),
        "gap": float("nan"),
        "holdout": 0.0,
        "n_final": 0,
        "final_errors": NAN3,
        "final_se": NAN3,
        "final_gain_se": NAN3,
    }
    return completion(**{**known, **changes})


def count(best: int = 2, **changes: Any) -> ClusterCountResult:
    """Three classes of one table."""
    k = best + 1
    known: dict[str, Any] = {
        "site": "cellar",
        "form": "columns",
        "row_name": "row",
        "column_name": "column",
        "feature_names": ("a", "b", "c", "d"),
        "shape": (178, 4),
        "n_observed": 700,
        "model": "observed-kmeans",
        "rule": "minimum",
        "parameter": "n_clusters",
        "n_splits": 10,
        **curve(range(1, 9), best),
        "n_clusters": k,
        "sizes": np.arange(60.0, 60.0 - 5 * k, -5.0),
        "centers": np.random.default_rng(0).normal(size=(k, 4)),
        "criteria": {"silhouette": 3, "gap": 0},
        "criteria_curves": {"silhouette": np.array([np.nan, 0.2, 0.4, *[0.1] * 5])},
    }
    return ClusterCountResult(**{**known, **changes})


def components(best: int = 3, **changes: Any) -> FederatedPCAResult:
    """Components over three sites."""
    m = 6
    variances = np.array([3.0, 2.0, 1.0, 0.3, 0.2, 0.1])
    found = curve(range(m), best)
    se = found.pop("curve_se")
    assert len(se) == m
    found |= {"natural": True, "candidates": np.arange(m)}
    known: dict[str, Any] = {
        "feature_names": tuple(f"x{j}" for j in range(m)),
        "withheld": (),
        "sites": ("a", "b", "c"),
        "n_by_site": np.array([60, 61, 57]),
        "groups_by_site": np.array([2, 2, 1]),
        "rank": best,
        "fixed": False,
        "rule": "minimum",
        "parameter": "rank",
        **found,
        "site_errors": np.tile(found["fold_errors"].mean(axis=0), (3, 1)),
        "site_entries": np.array([100, 100, 100]),
        "mean": np.zeros(m),
        "components": np.eye(m)[:best],
        "explained_variance": variances[:best],
        "explained_variance_ratio": variances[:best] / variances.sum(),
        "noise_variance": 0.2,
        "variances": variances,
        "site_explained": np.array([0.9, 0.8, 0.7]),
        "missing_kept": False,
        "scaling": np.empty((0, 0)),
        "remarks": (),
    }
    return FederatedPCAResult(**{**known, **changes})


def gone(result: Any, **changes: Any) -> Any:
    """A result whose curve stays at the site."""
    return dataclasses.replace(result, **{**NO_CURVE, **changes})


CASES = {
    "completion": completion,
    "completion-useless": lambda: completion(final_errors=np.array([1.2, 1.07, 1.1])),
    "completion-unclear": lambda: completion(final_gain_se=np.array([np.nan, 0.6, 0.6])),
    "completion-stays": lambda: gone(
        completion(n_final=206, final_errors=NAN3, final_se=NAN3, final_gain_se=NAN3),
        singular_values=np.empty(0),
    ),
    "completion-triplets": lambda: completion(
        form="triplets", row_name="person", column_name="joke", feature_names=()
    ),
    "completion-capped": lambda: completion(capped=True),
    "completion-baseline-stays": lambda: completion(final_errors=np.array([0.65, np.nan, np.nan])),
    "ranks": ranks,
    "ranks-flat": lambda: ranks(**curve(range(9), 4, steep=1e-4)),
    "ranks-edge": lambda: ranks(**{**curve(range(9), 8), "at_edge": True}, rank=8),
    "ranks-none": lambda: ranks(0, rank=0, singular_values=np.empty(0)),
    "ranks-complete": lambda: ranks(n_observed=178 * 13),
    "count": count,
    "count-flat": lambda: count(**curve(range(1, 9), 2, steep=1e-4)),
    "count-one": lambda: count(0),
    "count-edge": lambda: count(7, at_edge=True),
    "count-small": lambda: count(
        sizes=np.array([60.0, np.nan, 20.0]), centers=np.full((3, 4), np.nan), criteria={}
    ),
    "count-stays": lambda: gone(count(sizes=np.full(3, np.nan), criteria={}, criteria_curves={})),
    "components": components,
    "components-flat": lambda: components(**_flat()),
    "components-none": lambda: components(0),
    "components-fixed": lambda: components(2, fixed=True, rule="given"),
    "components-edge": lambda: components(5, natural=False, at_edge=True),
    "components-not-judged": lambda: components(
        2, fixed=True, rule="given", **{k: v for k, v in NO_CURVE.items() if k != "curve_se"}
    ),
    "components-withheld": lambda: components(
        withheld=("rare",), remarks=("columns are on very different scales",), missing_kept=True
    ),
}


def _flat() -> dict[str, Any]:
    found = curve(range(6), 3, steep=1e-4)
    del found["curve_se"]
    return {**found, "candidates": np.arange(6), "natural": True}


def run_of(result: Any, preset: str = "strict", standardize: str = "none") -> Run:
    """A run around a result."""
    sites = getattr(result, "sites", None) or (result.site,)
    info = RunInfo(
        run="r",
        name="study",
        study="hash",
        method=NAMES[type(result)],
        method_version=1,
        parameters={},
        release="0",
        libraries={},
        seed=1,
        sites=tuple(sites),
        engine="local",
        settings={"preparation": {"standardize": standardize}},
    )
    run = Run(info=info, result=result, transcript=(), notes=())
    return dataclasses.replace(run, presets=dict.fromkeys(sites, preset))
