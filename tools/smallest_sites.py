"""The smallest site with which each method passes under each preset, found by running it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tools import measured_assisted

LARGEST_TRIED = 100
SMALLEST = "Smallest site that passes, by method and preset"
PRESETS = ("strict", "consortium", "simulation")
Passes = Callable[[Any], bool]


def _tables(n: int, *, entities: bool) -> dict[str, Any]:
    """Three sites of two separated groups, three columns, a response; the first has n rows.

    Entities, where they are wanted, have four events each.
    """
    import numpy as np

    found = {}
    for i, site in enumerate(("small", "second", "third")):
        rng = np.random.default_rng(i)
        rows = n if i == 0 else 120
        x = rng.normal(size=(rows, 3)) + 4.0 * (np.arange(rows) % 2)[:, None]
        y = x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=rows)
        found[site] = {**{f"x{j}": x[:, j] for j in range(3)}, "y": y}
        if entities:
            found[site]["entity"] = np.array([f"e{j // 4}" for j in range(rows)])
        found[site]["kind"] = np.where(np.arange(rows) % 4 < 2, "one", "other")
        found[site]["half"] = np.where(np.arange(rows) % 2 < 1, "first", "second")
    return found


def _studies() -> dict[str, tuple[tuple[str, Passes], ...]]:
    return {
        "mean-and-sd": (("answers", lambda run: True),),
        "ensemble-clustering": (
            ("gets labels", lambda run: True),
            ("counts its rows", lambda run: run.result.counted["small"] != "none"),
            ("sends a model", lambda run: "small" in run.result.owners),
        ),
        "meta-clustering": (("is placed", lambda run: "small" in run.result.sites),),
        "reference-averaging": (
            ("is in the average", lambda run: "small" in run.result.owners),
            ("holds out rows", lambda run: _holds_out(run.result, "small")),
        ),
        "latent-class-regression": (
            ("is in the classes", lambda run: _has_sums(run.result, "small")),
            ("holds out events", lambda run: _measures(run.result, "small")),
        ),
        "federated-sparse-qda": (
            ("is in the model", lambda run: _is_used(run.result, "small")),
            ("holds out rows", lambda run: _told(run.result, "small", run.result.site_held)),
        ),
        "federated-community-bayes": (
            ("tells its ranks", lambda run: _told(run.result, "small", run.result.ranks_told)),
            ("holds out rows", lambda run: _told(run.result, "small", run.result.n_held)),
        ),
        "sparse-qda": (
            ("is fitted", lambda run: True),
            ("holds out rows", lambda run: run.result.n_held > 0),
            ("tells its pairs", lambda run: not run.result.model_stays),
        ),
        "community-bayes": (
            ("is fitted", lambda run: True),
            ("holds out rows", lambda run: run.result.n_held > 0),
            ("tells its communities", lambda run: not run.result.model_stays),
        ),
        "federated-pca": (
            ("is in the model", lambda run: "small" in run.result.sites),
            ("tells two groups of rows", lambda run: _groups(run.result, "small") > 1),
        ),
        "describe": (
            ("is described", lambda run: "small" in run.result.sites),
            ("tells quantiles", lambda run: _tells_quantiles(run.result, "small")),
        ),
        "contingency-table": (("tells its table", lambda run: "small" in run.result.sites),),
        "pooled-regression": (("is in the fit", lambda run: "small" in run.result.sites),),
        "matrix-completion": (
            ("is completed", lambda run: True),
            ("tells the error of a choice", lambda run: run.result.curve() is not None),
            ("sets cells aside", lambda run: run.result.n_final > 0),
        ),
        "cluster-count": (
            ("gets labels", lambda run: True),
            ("tells the error of a choice", lambda run: run.result.curve() is not None),
            ("tells sizes of classes", lambda run: bool((run.result.sizes > 0).all())),
        ),
        "assistance-test": (("in common: a test", lambda run: bool(run.result.tests)),),
        "assisted-glm": (("in common: a fit", lambda run: run.result.rounds > 0),),
    }


def _holds_out(result: Any, site: str) -> bool:
    return site in result.sites and result.held[result.sites.index(site)] > 0


def _has_sums(result: Any, site: str) -> bool:
    """Whether a site sent a class sum after the one of all its events, and was never left out."""
    if site not in result.sites:
        return False
    at = result.sites.index(site)
    return bool((result.released[:, at] + result.repeated[:, at] > 0).all())


def _is_used(result: Any, site: str) -> bool:
    return site in result.sites and bool(result.used[result.sites.index(site)].all())


def _groups(result: Any, site: str) -> int:
    """Groups of rows of which a site told moments."""
    at = result.sites.index(site) if site in result.sites else -1
    return int(result.groups_by_site[at]) if at >= 0 else 0


def _told(result: Any, site: str, told: Any) -> bool:
    """Whether a site is in the result, and all that it should tell is told."""
    if site not in result.sites or len(told) != len(result.sites):
        return False
    return bool((told[result.sites.index(site)] > 0).all())


def _tells_quantiles(result: Any, site: str) -> bool:
    return site in result.sites and bool(result.quantile("x0", 0.5, site).value < math.inf)


def _measures(result: Any, site: str) -> bool:
    at = result.sites.index(site) if site in result.sites else -1
    return at >= 0 and bool(result.heldout_mse[at, 2] >= 0)


STUDIES = _studies()


def smallest() -> Iterator[str]:
    """Yield the smallest sites, found by running every size from 1 on."""
    yield "| method | the site | " + " | ".join(PRESETS) + " |"
    yield "|---|---|" + "---|" * len(PRESETS)
    for name, levels in STUDIES.items():
        found = {preset: _smallest(name, preset, [p for _, p in levels]) for preset in PRESETS}
        for i, (what, _) in enumerate(levels):
            cells = (found[preset][i] for preset in PRESETS)
            yield f"| `{name}` | {what} | {' | '.join(cells)} |"


def _smallest(name: str, preset: str, passes: Iterable[Passes]) -> list[str]:
    """Return the smallest number of rows at which each condition holds."""
    from consilience.exceptions import ConsilienceError
    from consilience.protocol.method import get_method
    from consilience.sites.policy import PRESETS as RULES

    wanted = list(passes)
    found: list[str | None] = [None] * len(wanted)
    if get_method(name).partition == "columns" and not RULES[preset]["share_ids"]:
        return ["never: no ids leave"] * len(wanted)
    for n in range(1, LARGEST_TRIED + 1):
        try:
            run = _run(name, preset, n)
        except ConsilienceError:
            continue
        for i, holds in enumerate(wanted):
            if found[i] is None and holds(run):
                found[i] = f"{n} row{'s' if n > 1 else ''}"
        if None not in found:
            break
    return [one or f"more than {LARGEST_TRIED}" for one in found]


def _run(name: str, preset: str, n: int) -> Any:
    from consilience import (
        AssistanceTest,
        AssistedGLM,
        ClusterCountStudy,
        Columns,
        CommunityBayesStudy,
        ContingencyTable,
        Describe,
        EnsembleClustering,
        FederatedCommunityBayes,
        FederatedPCA,
        FederatedSparseQDA,
        Federation,
        LatentClassRegression,
        MatrixCompletionStudy,
        MeanAndSD,
        MetaClustering,
        Policy,
        PooledRegression,
        Preparation,
        ReferenceAveraging,
        SparseQDAStudy,
    )

    linear = MetaClustering(candidates=("linear",), gain_folds=0, stability_runs=0)
    methods = {
        "mean-and-sd": (MeanAndSD(), "none", None),
        "ensemble-clustering": (
            EnsembleClustering(n_clusters=2, stability_pairs=0),
            "pooled",
            None,
        ),
        "meta-clustering": (linear, "none", "y"),
        "reference-averaging": (
            ReferenceAveraging(estimator="ridge", max_rounds=1),
            "none",
            "y",
        ),
        "latent-class-regression": (LatentClassRegression(n_classes=1), "none", "y"),
        "federated-sparse-qda": (FederatedSparseQDA(alpha=0.5), "pooled", "kind"),
        "federated-community-bayes": (
            FederatedCommunityBayes(n_communities=2, choosing=0.0),
            "pooled",
            "kind",
        ),
        "federated-pca": (FederatedPCA(), "pooled", None),
        "describe": (Describe(), "none", None),
        "contingency-table": (ContingencyTable(), "none", None),
        "pooled-regression": (PooledRegression(), "none", "y"),
        "matrix-completion": (MatrixCompletionStudy(), "none", None),
        "cluster-count": (ClusterCountStudy(n_clusters=(1, 2, 3)), "none", None),
        "sparse-qda": (SparseQDAStudy(alpha=0.5), "none", "kind"),
        "community-bayes": (CommunityBayesStudy(n_communities=2), "none", "kind"),
    }
    over_columns = {
        "assistance-test": AssistanceTest(family="normal", n_directions=1),
        "assisted-glm": AssistedGLM(family="normal", response="share", holdout=0.0),
    }
    if name in over_columns:
        return measured_assisted.run_with(over_columns[name], preset, n)
    method, standardize, target = methods[name]
    entities, classed = name == "latent-class-regression", name == "contingency-table"
    levels = {"kind": ("one", "other"), "half": ("first", "second")}
    tables = _tables(n, entities=entities)
    if method.several:
        tables = {"small": tables["small"]}
    federation = Federation.local(
        tables,
        columns=Columns(
            features=("kind", "half") if classed else ("x0", "x1", "x2"),
            target=target,
            entity="entity" if entities else None,
            levels={c: of for c, of in levels.items() if classed or c == target},
        ),
        preparation=Preparation(
            standardize=standardize,  # type: ignore[arg-type]
            categorical="onehot" if classed else "refuse",
        ),
        policy=Policy(
            preset=preset,  # type: ignore[arg-type]
            foreign_models=method.foreign_models or preset != "strict",
        ),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method.run(federation, seed=0)
