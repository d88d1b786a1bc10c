"""Meta clustering: the exchange against a plain double loop as sites grow, and the grouping.

``PYTHONPATH=. python benchmarks/meta_clustering.py`` writes results/meta_clustering.json. All in
one run, on one thread; every number of sites has a process of its own, so that peak memory is its.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine, peak_gigabytes
from consilience import Columns, Federation, MetaClustering, Policy
from consilience.collaborators import kernels as grouping
from consilience.collaborators.kernels import (
    Pooled,
    overlap_weights_all,
    shrunk_covariance,
)
from consilience.collaborators.protocol import site as at_site
from consilience.collaborators.protocol.messages import Models, Settings
from consilience.datasets.simulate_meta import GroupedSites, simulate_functions
from consilience.learners.candidates import build
from consilience.learners.foreign_models import predict_all
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index
from consilience.parameters import plain
from consilience.protocol.method import SiteData
from consilience.wire.disclosure import Limits, relayed
from consilience.wire.estimators import encode
from consilience.wire.message import Disclosure
from tests.reference import meta_clustering_naive as naive

RESULTS = Path(__file__).parent / "results"
P = 8
LINEAR = [(n, 500) for n in (10, 20, 50, 100, 200, 500)]
FOREST = [(n, 200) for n in (10, 20, 50)]
LOOP_SITES = 40
"""The double loop runs at this many sites (with the models of all) and is scaled up."""


def draw(n_sites: int, rows: int) -> GroupedSites:
    """Two groups of sites whose predictors are centred a little apart."""
    return simulate_functions(
        [rows] * n_sites,
        rng=stream(7, "benchmark", n_sites, rows),
        design="two-groups",
        n_features=P,
        drift=0.2,
    )


# --------------------------------------------------------------------------- the exchange step


def by_step(
    drawn: GroupedSites, models: list[Any], own: list[Any], means: Any, pooled: Pooled
) -> tuple[float, list[Any]]:
    """Seconds of the sites' own step, without moving messages; D, Q, effective rows by site."""
    sizes = np.array([len(y) for y in drawn.responses])
    settings = Settings(("linear",), "squared", (), False, 0, 0, "models", "unpooled")
    message = Models(
        settings=settings,
        owners=drawn.names,
        models=relayed((tuple(models),), Disclosure.MODEL),
        sizes=relayed(sizes, Disclosure.AGGREGATE),
        means=relayed(means, Disclosure.AGGREGATE),
        inverse=relayed(pooled.inverse, Disclosure.AGGREGATE),
        trace=relayed(pooled.trace, Disclosure.AGGREGATE),
    )
    limits, found = Limits(min_records=1, max_share=1.0), []
    started = time.perf_counter()
    for j, name in enumerate(drawn.names):
        data = SiteData(
            features=drawn.features[j],
            feature_names=drawn.feature_names,
            rows=np.arange(sizes[j]),
            target=drawn.responses[j],
        )
        context: Any = SimpleNamespace(site=name, limits=limits)
        state = {"seed": 0, "own": (own[j],), "settings": plain(settings)}
        reply, _ = at_site.exchange.function(message, data, state, context)
        found.append(
            np.stack([reply.excess.value[0], reply.variance.value[0], reply.effective.value[0]])
        )
    return time.perf_counter() - started, found


def by_kernels(
    drawn: GroupedSites, models: list[Any], own: list[Any], means: Any, pooled: Pooled
) -> float:
    """Seconds of the same numbers without what the gate computes beside them."""
    sizes = np.array([len(y) for y in drawn.responses])
    started = time.perf_counter()
    for j, (x, y) in enumerate(zip(drawn.features, drawn.responses, strict=True)):
        made = predict_all(models, x, n_features=P, n_outputs=1)
        losses = np.square(y[:, None] - np.concatenate(made, axis=1))
        weights = overlap_weights_all(x, j, means, sizes, pooled)
        naive.excess_losses(losses - own[j][:, None], weights)
    return time.perf_counter() - started


def by_double_loop(
    drawn: GroupedSites, fitted: list[Any], own: list[Any], means: Any, pooled: Pooled
) -> tuple[float, int, list[Any]]:
    """Seconds of a plain loop over pairs; number of sites it ran at; what it found there."""
    n_sites = len(fitted)
    n = np.array([len(y) for y in drawn.responses], dtype=float)
    chosen = range(min(n_sites, LOOP_SITES))
    found = []
    started = time.perf_counter()
    for j in chosen:
        x, y = drawn.features[j], drawn.responses[j]
        numbers = np.full((3, n_sites), np.nan)
        for i in range(n_sites):
            delta = means[i] - means[j]
            g = pooled.inverse @ delta
            distance = float(delta @ g)
            share = 0.0
            if distance > 0:
                share = max(0.0, 1 - pooled.trace * (1 / n[i] + 1 / n[j]) / distance)
            h = 1 / (1 + np.exp(-share * ((x - (means[i] + means[j]) / 2) @ g)))
            d = (y - fitted[i].predict(x)) ** 2 - own[j]
            total = h.sum()
            mean = (h * d).sum() / total
            numbers[:, i] = mean, (h**2 * (d - mean) ** 2).sum() / total**2, total**2 / (h @ h)
        found.append(numbers)
    return time.perf_counter() - started, len(chosen), found


def exchange_case(candidate: str, n_sites: int, rows: int) -> dict[str, Any]:
    """Fit, then try all models at all sites in both ways."""
    drawn = draw(n_sites, rows)
    pairs = list(zip(drawn.features, drawn.responses, strict=True))
    fitted = [
        build(candidate, "regression", min_records=10, seed=i).fit(x, y)
        for i, (x, y) in enumerate(pairs)
    ]
    models = [encode(f, n_features=P, classes=None) for f in fitted]
    # What g_j is does not matter for the time: losses of the own fit, the same on both sides.
    own = [(y - f.predict(x)) ** 2 for f, (x, y) in zip(fitted, pairs, strict=True)]
    means = np.stack([x.mean(axis=0) for x, _ in pairs])
    products = np.stack([np.cov(x.T, bias=True) for x, _ in pairs])
    pooled = shrunk_covariance(products, [rows] * n_sites, means)
    by_step(drawn, models[:1] + models[:-1], own, means, pooled)  # starts the child, loads kernels
    seconds, step = by_step(drawn, models, own, means, pooled)
    kernel_seconds = by_kernels(drawn, models, own, means, pooled)
    loop_seconds, at, loop = by_double_loop(drawn, fitted, own, means, pooled)
    loop_seconds *= n_sites / at
    apart = 0.0
    for j in range(at):
        others = np.arange(n_sites) != j
        a, b = step[j][:, others], loop[j][:, others]
        apart = max(apart, float((np.abs(a - b) / np.abs(b).max(axis=1, keepdims=True)).max()))
    return {
        "exchange_seconds": round(seconds, 3),
        "kernel_seconds": round(kernel_seconds, 3),
        "double_loop_seconds": round(loop_seconds, 3),
        "double_loop_at_sites": at,
        "ratio": round(loop_seconds / seconds, 2),
        "kernel_ratio": round(loop_seconds / kernel_seconds, 2),
        "largest_relative_difference": apart,
    }


# --------------------------------------------------------------------------- end to end


def whole_case(candidate: str, n_sites: int, rows: int) -> dict[str, Any]:
    """A whole run under strict policies: seconds, bytes, rounds, peak memory."""
    method = MetaClustering(candidates=candidate, gain_folds=0, stability_runs=0)

    def run(drawn: GroupedSites) -> Any:
        columns = Columns(features=drawn.feature_names, target="y")
        federation = Federation.local(
            drawn.tables(), columns=columns, policy=Policy(foreign_models=True), n_jobs=1
        )
        started = time.perf_counter()
        done = method.run(federation, seed=1)
        return done, time.perf_counter() - started

    run(draw(2, 60))  # loads libraries, starts the child
    drawn = draw(n_sites, rows)
    done, seconds = run(drawn)
    sent = [line for line in done.transcript if line.direction == "from-site"]
    got = [line for line in done.transcript if line.direction == "to-site"]
    return {
        "whole_run_seconds": round(seconds, 2),
        "rounds": max(line.round for line in done.transcript),
        "bytes_from_a_site": round(sum(line.bytes for line in sent) / n_sites),
        "of_these_the_model": round(
            sum(line.bytes for line in sent if line.field == "models") / n_sites
        ),
        "bytes_to_a_site": round(sum(line.bytes for line in got) / n_sites),
        "right": bool(adjusted_rand_index(done.result.labels, drawn.groups) == 1.0),
        "peak_gigabytes": round(peak_gigabytes(), 2),
    }


def case(candidate: str, n_sites: int, rows: int) -> dict[str, Any]:
    """Both, for one number of sites; the whole run first, since memory only grows."""
    return {
        "candidate": candidate,
        "sites": n_sites,
        "rows_per_site": rows,
        **whole_case(candidate, n_sites, rows),
        **exchange_case(candidate, n_sites, rows),
    }


# --------------------------------------------------------------------------- grouping


def fastest(function: Callable[[], Any], repeats: int) -> float:
    """Shortest of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def linkage_case(n_sites: int) -> dict[str, Any]:
    """Tests of two groups; ours, scipy's average linkage, and the textbook where it ends."""
    from scipy.cluster.hierarchy import fcluster
    from scipy.cluster.hierarchy import linkage as scipy_linkage

    rng = stream(3, "linkage", n_sites)
    groups = np.arange(n_sites) % 2
    z = rng.normal(size=(n_sites, n_sites)) + 4.0 * (groups[:, None] != groups)
    z = (z + z.T) / 2
    np.fill_diagonal(z, 0.0)
    condensed = z[np.triu_indices(n_sites, 1)]
    ours = grouping.cluster(z, n_clusters=2).labels
    tree = scipy_linkage(condensed - condensed.min(), "average")
    theirs = fcluster(tree, 2, "maxclust")
    result: dict[str, Any] = {
        "sites": n_sites,
        "seconds": round(fastest(lambda: grouping.linkage(z), 3), 5),
        "scipy_seconds": round(fastest(lambda: scipy_linkage(condensed, "average"), 3), 5),
        "adjusted_rand_with_scipy": adjusted_rand_index(ours, theirs),
        "adjusted_rand_with_truth": adjusted_rand_index(ours, groups),
    }
    if n_sites <= 200:
        result["textbook_seconds"] = round(fastest(lambda: naive.merge_all(z), 1), 3)
    return result


def spectral_case(n_sites: int) -> dict[str, Any]:
    """The source's spectral step, and scikit-learn's on the same similarities with K = 2."""
    from sklearn.cluster import SpectralClustering

    rng = stream(4, "spectral", n_sites)
    groups = np.arange(n_sites) % 2
    v = np.abs(0.2 * rng.normal(size=(n_sites, n_sites))) + 1.0 * (groups[:, None] != groups)
    v = (v + v.T) / 2
    np.fill_diagonal(v, 0.0)
    s = grouping.similarity(v)
    theirs = SpectralClustering(2, affinity="precomputed", n_init=20, random_state=0)

    def ours() -> Any:
        return grouping.spectral(v, rng=stream(0, "starts"), n_clusters=2)

    found = ours().labels
    return {
        "sites": n_sites,
        "seconds": round(fastest(ours, 3), 4),
        "scikit_learn_seconds": round(fastest(lambda: theirs.fit(s), 3), 4),
        "adjusted_rand_with_scikit_learn": adjusted_rand_index(found, theirs.fit_predict(s)),
        "adjusted_rand_with_truth": adjusted_rand_index(found, groups),
    }


# --------------------------------------------------------------------------- all


def in_own_process(candidate: str, n_sites: int, rows: int) -> dict[str, Any]:
    """Peak memory is that of a process, so every case gets one."""
    done = subprocess.run(
        [sys.executable, __file__, candidate, str(n_sites), str(rows)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    print(result, file=sys.stderr, flush=True)
    return result


def main() -> None:
    """Run everything and write the results."""
    report = {
        "machine": machine(),
        "linear": [in_own_process("linear", *size) for size in LINEAR],
        "random_forest": [in_own_process("random-forest", *size) for size in FOREST],
        "linkage": [linkage_case(n) for n in (20, 50, 200, 500)],
        "spectral": [spectral_case(n) for n in (20, 50, 200)],
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(report, indent=1)
    (RESULTS / "meta_clustering.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    with threadpool_limits(1):
        if len(sys.argv) > 1:
            name, many, each = sys.argv[1:]
            print(json.dumps(case(name, int(many), int(each))))
        else:
            main()
