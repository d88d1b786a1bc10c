"""Wide classification: error and CPU time beside other classifiers, all in one run on one thread.

``PYTHONPATH=. python benchmarks/wide_classification.py [TABLE ...]`` writes
results/wide_classification.json; tables that are named replace those of an earlier run. Needs
``esl`` in the folder that ``CONSILIENCE_DATA`` names; without it only simulated tables are judged.

Every classifier chooses its own settings on the training rows by the same five folds and is then
fitted to all of them. ``seconds`` are CPU seconds of choosing and fitting, ``settings`` how many
were tried.

* ``sparse QDA``: 20 penalties, columns standardised (the estimator's defaults).
* ``community Bayes``: logistic regression by community, ridge 1, 1 to 20 communities.
* ``graphical lasso``: scikit-learn's, one for each class with a common penalty out of eight, on the
  same standardised columns; classes by their normal densities.
* ``QDA, shrunken``: scikit-learn's, covariances shrunken towards a multiple of the identity, eleven
  shares.
* ``logistic regression``: ridge out of eight. ``forest``: 500 trees. ``boosting``: histograms, 100
  or 300 trees, two rates.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine
from consilience.datasets.simulate_wide import sparse_precision_classes
from consilience.discriminant.estimators.community_bayes import CommunityBayesClassifier
from consilience.discriminant.estimators.sparse_qda import SparseQDA
from consilience.numerics.random import stream
from replications.community_bayes.spam.run import ROWS, SAMPLED, spam
from replications.sparse_qda.study import TrainTest, digits, vowels

RESULTS = Path(__file__).parent / "results" / "wide_classification.json"
Fold = tuple[np.ndarray, np.ndarray]
Fitted = tuple[Callable[[np.ndarray], np.ndarray], int]
"""Labels of rows, and how many settings were tried."""
N_FOLDS = 5

# --------------------------------------------------------------------------- tables


def simulated(p: int, n: int) -> tuple[TrainTest, list[Fold]]:
    """The source's block design."""
    rng = stream(0, "benchmark", p)
    design = sparse_precision_classes(p, rng=rng)
    data = TrainTest(*design.draw(n, rng=rng), *design.draw(5000, rng=rng))
    return data, stratified(data)


def digit_rows() -> tuple[TrainTest, list[Fold]]:
    data = digits()
    return data, stratified(data)


def vowel_rows() -> tuple[TrainTest, list[Fold]]:
    """All eleven vowels; folds hold out whole speakers."""
    from sklearn.model_selection import GroupKFold

    data, speakers = vowels(range(1, 12))
    return data, list(GroupKFold(N_FOLDS).split(data.x, data.y, speakers))


def spam_rows() -> tuple[TrainTest, list[Fold]]:
    """500 rows to learn from; all that were not sampled are judged."""
    x, y = spam()
    drawn = stream(0, "benchmark", "spam").permutation(len(x))
    train, test = drawn[:ROWS], drawn[SAMPLED:]
    data = TrainTest(x[train], y[train], x[test], y[test])
    return data, stratified(data)


def stratified(data: TrainTest) -> list[Fold]:
    from sklearn.model_selection import StratifiedKFold

    return list(StratifiedKFold(N_FOLDS, shuffle=True, random_state=0).split(data.x, data.y))


TABLES: dict[str, Callable[[], tuple[TrainTest, list[Fold]]]] = {
    "simulated, p 20, 200 rows a class": lambda: simulated(20, 200),
    "simulated, p 100, 300 rows a class": lambda: simulated(100, 300),
    "digits 3 and 8, p 64, 1,200 rows": digit_rows,
    "eleven vowels, p 10, 528 rows": vowel_rows,
    "spam, p 57, 500 rows": spam_rows,
}
REAL = ("digits", "eleven vowels", "spam")

# --------------------------------------------------------------------------- classifiers


def sparse_qda(x: np.ndarray, y: np.ndarray, folds: list[Fold]) -> Fitted:
    model = SparseQDA(cv=folds).fit(x, y)
    return model.predict, len(model.path_.alphas)


def community_bayes(x: np.ndarray, y: np.ndarray, folds: list[Fold]) -> Fitted:
    model = CommunityBayesClassifier(cv=folds, n_jobs=1).fit(x, y)
    return model.predict, len(model.cv_results_["n_communities"])


class LassoByClass:
    """Graphical lasso of each class with one penalty, columns of unit variance in the classes."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def fit(self, x: np.ndarray, y: np.ndarray) -> LassoByClass:
        from sklearn.covariance import graphical_lasso

        self.classes = np.unique(y)
        parts = [x[y == k] - x[y == k].mean(axis=0) for k in self.classes]
        self.scale = np.sqrt((np.concatenate(parts) ** 2).mean(axis=0))
        self.means = [x[y == k].mean(axis=0) / self.scale for k in self.classes]
        self.priors = [np.log(np.mean(y == k)) for k in self.classes]
        self.precisions = []
        for part in parts:
            z = part / self.scale
            cov = z.T @ z / len(z)
            self.precisions.append(graphical_lasso(cov, self.alpha, max_iter=200)[1])
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        scores = []
        for mean, prior, precision in zip(self.means, self.priors, self.precisions, strict=True):
            off = x / self.scale - mean
            half = 0.5 * np.linalg.slogdet(precision)[1]
            scores.append(prior + half - 0.5 * ((off @ precision) * off).sum(axis=1))
        return np.asarray(self.classes[np.argmax(scores, axis=0)])


def lasso_by_class(x: np.ndarray, y: np.ndarray, folds: list[Fold]) -> Fitted:
    alphas = np.geomspace(0.8, 0.02, 8)
    wrong = np.full(len(alphas), np.inf)
    for place, alpha in enumerate(alphas):
        try:
            wrong[place] = sum(
                int((LassoByClass(alpha).fit(x[a], y[a]).predict(x[b]) != y[b]).sum())
                for a, b in folds
            )
        except FloatingPointError:  # the solver gives up at small penalties
            break
    tried = int(np.isfinite(wrong).sum())
    return LassoByClass(float(alphas[wrong.argmin()])).fit(x, y).predict, tried


def searched(model: Any, grid: dict[str, Any], x: Any, y: Any, folds: list[Fold]) -> Fitted:
    from sklearn.model_selection import GridSearchCV

    found = GridSearchCV(model, grid, cv=folds).fit(x, y)
    return found.predict, len(found.cv_results_["params"])


def shrunken_qda(x: np.ndarray, y: np.ndarray, folds: list[Fold]) -> Fitted:
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), QuadraticDiscriminantAnalysis())
    grid = {"quadraticdiscriminantanalysis__reg_param": np.linspace(0.0, 1.0, 11)}
    return searched(model, grid, x, y, folds)


def logistic(x: np.ndarray, y: np.ndarray, folds: list[Fold]) -> Fitted:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    return searched(model, {"logisticregression__C": np.geomspace(0.001, 100, 8)}, x, y, folds)


def forest(x: np.ndarray, y: np.ndarray, folds: list[Fold]) -> Fitted:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(500, random_state=0, n_jobs=1).fit(x, y).predict, 1


def boosting(x: np.ndarray, y: np.ndarray, folds: list[Fold]) -> Fitted:
    from sklearn.ensemble import HistGradientBoostingClassifier

    grid = {"max_iter": [100, 300], "learning_rate": [0.03, 0.1]}
    return searched(HistGradientBoostingClassifier(random_state=0), grid, x, y, folds)


CLASSIFIERS: dict[str, Callable[[np.ndarray, np.ndarray, list[Fold]], Fitted]] = {
    "sparse QDA": sparse_qda,
    "community Bayes": community_bayes,
    "graphical lasso": lasso_by_class,
    "QDA, shrunken": shrunken_qda,
    "logistic regression": logistic,
    "forest": forest,
    "boosting": boosting,
}

# --------------------------------------------------------------------------- the run


def judged(data: TrainTest, folds: list[Fold]) -> dict[str, dict[str, Any]]:
    """Error on test rows and CPU seconds of every classifier."""
    found: dict[str, dict[str, Any]] = {}
    for name, classifier in CLASSIFIERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begin = time.process_time()
            predict, tried = classifier(data.x, data.y, folds)
            seconds = time.process_time() - begin
        error = float((predict(data.x_test) != data.y_test).mean())
        spread = np.sqrt(error * (1 - error) / len(data.y_test))
        found[name] = {
            "error": round(error, 4),
            "standard_error": round(float(spread), 4),
            "seconds": round(seconds, 2),
            "settings": tried,
        }
        print(f"{name:22s}", found[name], flush=True)
    return found


def main(names: list[str]) -> None:
    report = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    report["machine"] = machine()
    tables = report.setdefault("tables", {})
    warm, folds = simulated(8, 50)
    sparse_qda(warm.x, warm.y, folds)  # compiles, loads libraries
    for name, table in TABLES.items():
        if names and not any(name.startswith(one) for one in names):
            continue
        if name.startswith(REAL) and not os.environ.get("CONSILIENCE_DATA"):
            print(f"{name}: skipped, since CONSILIENCE_DATA is not set")
            continue
        print(name, flush=True)
        data, folds = table()
        tables[name] = {"test_rows": len(data.y_test), "models": judged(data, folds)}
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with threadpool_limits(1):
        main(sys.argv[1:])
