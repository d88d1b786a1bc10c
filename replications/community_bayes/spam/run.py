"""Spam: logistic regression by community, at once, and other classifiers, on 500 rows.

Needs ``esl`` in the folder that ``CONSILIENCE_DATA`` names.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.discriminant.estimators.community_bayes import CommunityBayesClassifier  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate  # noqa: E402
from replications.community_bayes.study import (  # noqa: E402
    ALMOST_NONE,
    FloatArray,
    IntArray,
    base_with,
)
from replications.sparse_qda.study import read_esl  # noqa: E402

HERE = Path(__file__).parent
ROWS, SAMPLED = 500, 1000
MOST, N_FOLDS = 20, 5
REPLICATES = 20
BASES = {"almost no penalty": ALMOST_NONE, "ridge 1": 1.0, "ridge 10": 10.0}
Figures = dict[str, float]
Model = Callable[[FloatArray, IntArray, int], Any]


def spam() -> tuple[FloatArray, IntArray]:
    """All rows: logarithms of the 57 features, and whether a message is spam."""
    table = read_esl("spam.data.gz").to_numpy(dtype=np.float64)
    return np.log(table[:, :-1] + 0.1), table[:, -1].astype(np.int64)


def communities(x: FloatArray, y: IntArray, seed: int, *, ridge: float) -> Any:
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    model = CommunityBayesClassifier(
        base_with(ridge), candidates=range(1, MOST + 1), cv=folds, n_jobs=1
    )
    return model.fit(x, y)


def support_vectors(x: FloatArray, y: IntArray, seed: int) -> Any:
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    grid = {"svc__C": [0.1, 1.0, 10.0, 100.0], "svc__gamma": [0.002, 0.006, 0.0175, 0.05]}
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    return GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=folds).fit(x, y)


def forest(x: FloatArray, y: IntArray, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(500, random_state=seed, n_jobs=1).fit(x, y)


def boosting(x: FloatArray, y: IntArray, seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingClassifier

    model = GradientBoostingClassifier(
        n_estimators=300, learning_rate=0.1, max_depth=3, subsample=0.5, random_state=seed
    )
    return model.fit(x, y)


OTHERS: dict[str, Model] = {
    "support vectors": support_vectors,
    "forest": forest,
    "boosting": boosting,
}


def one(line: str, seed: int) -> dict[str, Figures]:
    """Error by model on one sample."""
    x, y = spam()
    drawn = stream(seed, "spam").permutation(len(x))[:SAMPLED]
    train, test = drawn[:ROWS], drawn[ROWS:]
    found: dict[str, Figures] = {}

    def judge(name: str, model: Any) -> None:
        found[name] = {"error": float((model.predict(x[test]) != y[test]).mean())}

    if line in OTHERS:
        started = time.process_time()
        judge(line, OTHERS[line](x[train], y[train], seed))
        found[line]["seconds"] = time.process_time() - started
        return found
    ridge = BASES[line]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # separable rows, fits that end at their last iteration
        started = time.process_time()
        model = communities(x[train], y[train], seed, ridge=ridge)
        judge("communities", model)
        found["communities"]["seconds"] = time.process_time() - started
        started = time.process_time()
        judge("base alone", base_with(ridge).fit(x[train], y[train]))
        found["base alone"]["seconds"] = time.process_time() - started
    found["communities"]["communities"] = float(model.n_communities_)
    found["base alone"]["above"] = found["base alone"]["error"] - found["communities"]["error"]
    return found


def rows_of(sets: Sequence[dict[str, Figures]]) -> list[dict[str, Any]]:
    """One row for each model."""
    made = []
    for model in sets[0]:
        each = [figures[model] for figures in sets]
        row: dict[str, Any] = {"model": model, "replicates": len(sets)}
        row |= mean((figures["error"] for figures in each), "error")
        row |= mean((figures.get("above", np.nan) for figures in each), "above")
        row |= mean((figures.get("communities", np.nan) for figures in each), "communities", ".1f")
        row["seconds"] = f"{np.mean([figures['seconds'] for figures in each]):.2f}"
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, [*BASES, *OTHERS])
    for line in (*BASES, *OTHERS):
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        table.add(line, rows_of(sets))


if __name__ == "__main__":
    main()
