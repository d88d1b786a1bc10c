"""Mean squared error for new learners without a sensitive variable: the source's Table 1."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_meta import GroupedSites, simulate_fairness  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.meta_clustering.study import (  # noqa: E402
    Table,
    average_model,
    figures,
    options,
    replicate,
    run,
    squared_error,
)

HERE = Path(__file__).parent
CANDIDATES = ("linear", "random-forest")
TRAINING, HALF = 30, 25
LINES = (
    # influence b, number of clusters, replicates
    (0.01, "auto", 100),
    *((b, k, 20) for b in (1.0, 2.0, 3.0, 5.0, 10.0, 20.0) for k in ("auto", 3)),
    (20.0, 10, 20),
)


def least_squares(sites: GroupedSites, with_hidden: bool) -> np.ndarray:
    """Coefficients of one linear regression on the rows of all training learners."""
    x = np.concatenate(sites.features[:TRAINING])
    y = np.concatenate(sites.responses[:TRAINING])
    r = np.repeat(sites.hidden[:TRAINING], len(sites.features[0])) * with_hidden
    return np.linalg.lstsq(np.column_stack([np.ones(len(y)), x, r]), y, rcond=None)[0]


def one(influence: float, n_clusters: str | int, seed: int) -> dict[str, float]:
    sites = simulate_fairness(influence, rng=stream(seed, "fairness", repr(influence)))
    tables = sites.tables()
    training = dict(list(tables.items())[:TRAINING])
    result = run(training, seed=seed, candidates=CANDIDATES, n_clusters=n_clusters).result
    models = [average_model(result, group) for group in result.groups]
    oracle, fairness = (least_squares(sites, with_hidden) for with_hidden in (True, False))
    errors = []
    for i in range(TRAINING, len(tables)):
        x, y, r = sites.features[i], sites.responses[i], sites.hidden[i]
        predictions = [model.predict(x) for model in models]
        # the first half of the rows places the learner, the second scores
        place = np.argmin([squared_error(y[:HALF], f[:HALF]) for f in predictions])
        design = np.column_stack([np.ones(len(y)), x, np.full(len(y), r)])[HALF:]
        errors.append(
            (
                squared_error(y[HALF:], design @ oracle),
                squared_error(y[HALF:], design @ fairness),
                squared_error(y[HALF:], predictions[place][HALF:]),
            )
        )
    by_oracle, by_fairness, by_sec = np.mean(errors, axis=0)
    return {
        "oracle": by_oracle,
        "fairness": by_fairness,
        "sec": by_sec,
        "ratio": (by_sec - by_oracle) / (by_fairness - by_oracle) if influence >= 1 else np.nan,
        "clusters": float(result.n_clusters),
        "one_cluster": float(result.n_clusters == 1),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen)
    for influence, n_clusters, replicates in LINES:
        if chosen.only not in f"b={influence} K={n_clusters}":
            continue
        sets = replicate(one, influence, n_clusters, replicates=replicates, chosen=chosen)
        head = {"influence": influence, "n_clusters": n_clusters, "replicates": len(sets)}
        table.add({**head, **figures(sets)})


if __name__ == "__main__":
    main()
