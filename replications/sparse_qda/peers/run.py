"""Sparse QDA and community Bayes beside usual classifiers, over splits of six data sets.

Needs ``esl`` and ``grid_stability`` in the folder that ``CONSILIENCE_DATA`` names.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience import CommunityBayesClassifier, SparseQDA  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate  # noqa: E402
from replications.sparse_qda.study import ROWS_BY_SPEAKER, read_esl  # noqa: E402

HERE = Path(__file__).parent
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
SPLITS, FOLDS, MOST = 50, 5, 600
"""Splits of a data set, folds in the training rows, rows of a data set that a split draws from."""
OURS = ("sparse QDA", "community Bayes")

# --------------------------------------------------------------------------- data sets


def of_sklearn(name: str) -> tuple[FloatArray, IntArray]:
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True)  # type: ignore[no-any-return]


def digits() -> tuple[FloatArray, IntArray]:
    """Digits 3 and 8 of 8 x 8 points."""
    x, y = of_sklearn("digits")
    kept = np.isin(y, (3, 8))
    return x[kept], y[kept]


def vowels() -> tuple[FloatArray, IntArray]:
    """Eleven vowels of fifteen speakers."""
    table = pd.concat([read_esl("vowel.train.csv"), read_esl("vowel.test.csv")])
    return table.drop(columns="y").to_numpy(dtype=np.float64), table["y"].to_numpy(dtype=np.int64)


def spam() -> tuple[FloatArray, IntArray]:
    table = read_esl("spam.data.gz").to_numpy(dtype=np.float64)
    return np.log(table[:, :-1] + 0.1), table[:, -1].astype(np.int64)


def grids() -> tuple[FloatArray, IntArray]:
    """Simulated electrical grids: is it stable? Without ``p1``, which the others add up to."""
    folder = Path(os.environ["CONSILIENCE_DATA"]) / "grid_stability"
    table = pd.read_csv(folder / "Data_for_UCI_named.csv.gz", sep=";")
    inputs = table.drop(columns=["p1", "stab"]).to_numpy(dtype=np.float64)
    return inputs, (table["stab"] > 0).to_numpy(dtype=np.int64)


SETS: dict[str, Callable[[], tuple[FloatArray, IntArray]]] = {
    "wines": lambda: of_sklearn("wine"),
    "grids": grids,
    "vowels": vowels,
    "tumours": lambda: of_sklearn("breast_cancer"),
    "spam": spam,
    "digits": digits,
}


def split(name: str, y: IntArray, seed: int) -> tuple[IntArray, IntArray, list[Any]]:
    """Two thirds to train on, the rest to test, and folds in the former.

    Classes are spread evenly; speakers of vowels stay on one side, in the folds too.
    """
    from sklearn.model_selection import GroupKFold, StratifiedKFold, train_test_split

    rng = stream(seed, "peers", name)
    draw = int(rng.integers(2**31 - 1))
    if name == "vowels":
        speaker = np.arange(len(y)) // ROWS_BY_SPEAKER
        held = np.isin(speaker, rng.permutation(speaker.max() + 1)[:5])
        train, test = np.flatnonzero(~held), np.flatnonzero(held)
        folds = GroupKFold(FOLDS).split(train, groups=speaker[train])
        return train, test, list(folds)
    rows = np.arange(len(y))
    if len(y) > MOST:
        rows, _ = train_test_split(rows, train_size=MOST, stratify=y, random_state=draw)
    train, test = train_test_split(rows, test_size=1 / 3, stratify=y[rows], random_state=draw)
    again = StratifiedKFold(FOLDS, shuffle=True, random_state=draw)
    return train, test, list(again.split(train, y[train]))


# --------------------------------------------------------------------------- classifiers


class Regularised(ClassifierMixin, BaseEstimator):
    """Regularised discriminant analysis.

    ``S_k(lam) = ((1 - lam) n_k S_k + lam n S) / ((1 - lam) n_k + lam n)``, then
    ``(1 - gamma) S_k(lam) + gamma tr(S_k(lam)) / p I``, on standardised columns. Both shares have
    the fewest errors over the folds, the largest of equal ones. Source: Friedman 1989, equations
    16 to 18.
    """

    GRID = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)

    def __init__(self, folds: Sequence[Any]) -> None:
        self.folds = folds

    def scores(self, x: FloatArray, y: IntArray, rows: FloatArray) -> Any:
        """Log densities with priors, by lam and gamma: (lam, gamma, row, class)."""
        spread = x.std(axis=0)
        unit = np.where(spread > 0, spread, 1.0)
        x, rows = x / unit, rows / unit
        classes, p = np.unique(y), x.shape[1]
        parts = [x[y == k] - x[y == k].mean(axis=0) for k in classes]
        pooled = sum(part.T @ part for part in parts)
        found = np.empty((len(self.GRID), len(self.GRID), len(rows), len(classes)))
        for c, (k, part) in enumerate(zip(classes, parts, strict=True)):
            off, prior = rows - x[y == k].mean(axis=0), np.log(len(part) / len(x))
            for a, lam in enumerate(self.GRID):
                weight = (1.0 - lam) * len(part) + lam * len(x)
                mixed = ((1.0 - lam) * part.T @ part + lam * pooled) / weight
                values, axes = np.linalg.eigh(mixed)
                squares = (off @ axes) ** 2
                for g, gamma in enumerate(self.GRID):
                    shrunk = (1.0 - gamma) * values + gamma * values.mean()
                    shrunk = np.maximum(shrunk, 1e-10 * values.mean())
                    found[a, g, :, c] = prior - 0.5 * (
                        squares @ (1.0 / shrunk) + np.log(shrunk).sum() + p * np.log(2.0 * np.pi)
                    )
        return found

    def fit(self, x: FloatArray, y: IntArray) -> Regularised:
        self.classes_ = np.unique(y)
        wrong = np.zeros((len(self.GRID), len(self.GRID)))
        for train, test in self.folds:
            said = self.classes_[self.scores(x[train], y[train], x[test]).argmax(axis=3)]
            wrong += (said != y[test]).sum(axis=2)
        best = np.flatnonzero(wrong.ravel() == wrong.min())[-1]
        self.best_ = np.unravel_index(best, wrong.shape)
        self.x_, self.y_ = x, y
        return self

    def predict_proba(self, rows: FloatArray) -> FloatArray:
        logs = self.scores(self.x_, self.y_, rows)[self.best_]
        chances = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def models(folds: Sequence[Any], seed: int) -> dict[str, Any]:
    """Each with its usual settings; what has a tuning constant chooses it over the folds."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    def searched(model: Any, scoring: str, **grid: Sequence[float]) -> Any:
        steps = make_pipeline(StandardScaler(), model)
        name = type(model).__name__.lower()
        return GridSearchCV(
            steps, {f"{name}__{k}": v for k, v in grid.items()}, scoring=scoring, cv=folds
        )

    return {
        "sparse QDA": SparseQDA(cv=folds),
        "community Bayes": CommunityBayesClassifier(cv=folds),
        "LDA": LinearDiscriminantAnalysis(),
        "shrinkage LDA": make_pipeline(
            StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
        ),
        "RDA": Regularised(folds),
        "logistic": searched(
            LogisticRegression(max_iter=500), "neg_log_loss", C=[0.01, 0.1, 1.0, 10.0]
        ),
        "support vectors": searched(
            SVC(), "accuracy", C=[1.0, 10.0, 100.0], gamma=[0.005, 0.02, 0.08]
        ),
        "forest": RandomForestClassifier(200, random_state=seed, n_jobs=1),
    }


def one(name: str, seed: int) -> dict[str, dict[str, float]]:
    """Figures of one split by classifier."""
    x, y = SETS[name]()
    train, test, folds = split(name, y, seed)
    found = {}
    for model, rule in models(folds, seed).items():
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rule.fit(x[train], y[train])
            seconds = time.process_time() - started
            loss = float("nan")
            if model == "support vectors":
                said = rule.predict(x[test])
            else:
                chances = rule.predict_proba(x[test])
                said = rule.classes_[chances.argmax(axis=1)]
                of_truth = chances[np.arange(len(test)), np.searchsorted(rule.classes_, y[test])]
                loss = float(-np.log(np.maximum(of_truth, 1e-15)).mean())
        found[model] = {
            "error": float((said != y[test]).mean()),
            "log_loss": loss,
            "seconds": seconds,
            "share": len(test) / len(train),
        }
    return found


# --------------------------------------------------------------------------- the table


def rows_of(sets: Sequence[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """One row for each classifier: errors, and by how much they exceed ours on the same splits.

    Splits share most rows, so that the standard error of a mean over J of them is
    ``sqrt((1 / J + n_test / n_train) s^2)`` (Nadeau and Bengio 2003, section 3).
    """

    def error_of(values: FloatArray) -> float:
        share = sets[0]["LDA"]["share"]
        return float(np.sqrt((1 / len(values) + share) * values.var(ddof=1)))

    made = []
    errors = {model: np.array([one[model]["error"] for one in sets]) for model in sets[0]}
    for model, own in errors.items():
        row: dict[str, Any] = {"model": model, "replicates": len(sets)}
        row |= {"error": f"{own.mean():.4f}", "error_se": f"{error_of(own):.4f}"}
        for ours, name in zip(OURS, ("above", "above_communities"), strict=True):
            away = own - errors[ours]
            row[name] = "" if model == ours else f"{away.mean():.4f}"
            row[f"{name}_se"] = "" if model == ours else f"{error_of(away):.4f}"
        loss = np.mean([one[model]["log_loss"] for one in sets])
        row["log_loss"] = "" if np.isnan(loss) else f"{loss:.3f}"
        row["seconds"] = f"{np.mean([one[model]['seconds'] for one in sets]):.2f}"
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(SETS))
    for name in SETS:
        if not table.wanted(name, SPLITS):
            continue
        with threadpool_limits(1):
            sets = replicate(one, name, replicates=SPLITS, chosen=chosen)
        table.add(name, rows_of(sets))


if __name__ == "__main__":
    main()
