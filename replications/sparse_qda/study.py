"""What the replications of sparse QDA share: real tables, paths, and rivals with normal densities.

Rows are kept and figures computed as in the other replications (``assisted_glm/study.py``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from consilience.discriminant.estimators.sparse_qda import SparseQDA
from consilience.discriminant.estimators.sparse_qda_fit import (
    QDASettings,
    choose,
    grid_of,
    precision_path,
    prepare_rows,
)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Fold = tuple[IntArray, IntArray]

GRID = QDASettings(n_alphas=30, smallest=0.001, standardize=False)
"""Penalties of every table: from the first without a link down to a thousandth of it."""
SHARES = np.linspace(0.0, 1.0, 51)
"""Shares of the diagonal in DRDA."""


# --------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class TrainTest:
    """A table with a test part; classes are 0 to K - 1."""

    x: FloatArray
    y: IntArray
    x_test: FloatArray
    y_test: IntArray


def read_esl(name: str) -> pd.DataFrame:
    """Return a table of the folder ``esl`` in the one that ``CONSILIENCE_DATA`` names."""
    folder = os.environ.get("CONSILIENCE_DATA")
    if not folder:
        raise SystemExit("set CONSILIENCE_DATA to the folder that holds 'esl'")
    path = Path(folder) / "esl" / name
    if name.startswith("spam"):
        return pd.read_csv(path, sep=" ", header=None)
    return pd.read_csv(path)


def digits() -> TrainTest:
    """Digits 3 and 8 of 16 x 16 points, averaged in squares of 2 x 2: 64 features."""
    found = []
    for part in ("train", "test"):
        table = read_esl(f"zip.{part}.csv.gz").to_numpy(dtype=np.float64)
        rows = table[np.isin(table[:, 0], (3, 8))]
        squares = rows[:, 1:].reshape(-1, 8, 2, 8, 2).mean(axis=(2, 4))
        found += [squares.reshape(-1, 64), (rows[:, 0] == 8).astype(np.int64)]
    return TrainTest(*found)


VOWELS = (6, 7, 9, 10)
ROWS_BY_SPEAKER = 66


def vowels(classes: Sequence[int] = VOWELS) -> tuple[TrainTest, IntArray]:
    """Some classes of the vowels, and the speaker of each training row."""
    found = []
    speakers = np.zeros(0, dtype=np.int64)
    for part in ("train", "test"):
        table = read_esl(f"vowel.{part}.csv")
        kept = table["y"].isin(classes).to_numpy()
        if part == "train":
            speakers = (np.arange(len(table)) // ROWS_BY_SPEAKER)[kept]
        found.append(table.drop(columns="y").to_numpy(dtype=np.float64)[kept])
        found.append(np.searchsorted(np.sort(classes), table["y"].to_numpy()[kept]))
    return TrainTest(*found), speakers


# --------------------------------------------------------------------------- normal densities


def shrunken_scores(
    x: FloatArray, y: IntArray, rows: FloatArray, share: float, *, common: bool = False
) -> FloatArray:
    """Score of each class with ``(1 - g) S_k + g diag(S_k)`` and the classes' shares as priors.

    ``g = 0`` is QDA, ``g = 1`` naive Bayes, between them the source calls it DRDA. With `common`
    all classes have the pooled matrix (LDA).
    """
    scores = []
    classes = np.unique(y)
    parts = [x[y == k] - x[y == k].mean(axis=0) for k in classes]
    for k, part in zip(classes, parts, strict=True):
        own = np.concatenate(parts) if common else part
        cov = own.T @ own / len(own)
        cov = (1.0 - share) * cov + share * np.diag(np.diag(cov))
        factor = np.linalg.cholesky(cov)
        off = np.linalg.solve(factor, (rows - x[y == k].mean(axis=0)).T)
        inner = np.log(np.diag(factor)).sum()
        scores.append(np.log(len(part) / len(x)) - inner - 0.5 * (off**2).sum(axis=0))
    return np.column_stack(scores)


def shrunken_labels(
    x: FloatArray, y: IntArray, rows: FloatArray, share: float, *, common: bool = False
) -> IntArray:
    scores = shrunken_scores(x, y, rows, share, common=common)
    return np.unique(y)[scores.argmax(axis=1)].astype(np.int64)


def choose_share(x: FloatArray, y: IntArray, folds: Sequence[Fold]) -> tuple[float, int]:
    """Share with the fewest errors over the folds, the largest of equal ones; and its errors."""
    wrong = np.array(
        [
            sum(
                int((shrunken_labels(x[train], y[train], x[test], share) != y[test]).sum())
                for train, test in folds
            )
            for share in SHARES
        ]
    )
    best = np.flatnonzero(wrong == wrong.min())[-1]
    return float(SHARES[best]), int(wrong[best])


@dataclass(frozen=True)
class Validated:
    """The path fitted to training rows, judged on others, at the penalty they choose."""

    labels: IntArray
    links: IntArray
    alpha: float
    gap: float


def validated_path(
    x: FloatArray, y: IntArray, x_valid: FloatArray, y_valid: IntArray, rows: FloatArray
) -> Validated:
    """Fit the path to `x`, choose by `x_valid`, label `rows`: the source's way in simulations."""
    classes = np.unique(y)
    prepared = prepare_rows(x, y, len(classes), standardize=GRID.standardize)
    alphas = grid_of(prepared, GRID)
    fits = list(precision_path(prepared, alphas, GRID))
    models = [prepared.predictor(fit, classes) for fit in fits]
    wrong = np.array([int((model.predict(x_valid) != y_valid).sum()) for model in models])
    best = choose(wrong, GRID.ties)
    return Validated(
        labels=np.asarray(models[best].predict(rows), dtype=np.int64),
        links=fits[best].links()[0],
        alpha=float(alphas[best]),
        gap=max(fit.relative_gap for fit in fits),
    )


# --------------------------------------------------------------------------- real tables


def cross_validated(
    data: TrainTest, folds: Sequence[Fold], *, standardize: bool = False
) -> dict[str, dict[str, Any]]:
    """Figures by model on one table: penalty and share by `folds`, errors on the test rows."""
    x, y = data.x, data.y
    fit = SparseQDA(
        n_alphas=GRID.n_alphas, smallest=GRID.smallest, cv=folds, standardize=standardize
    ).fit(x, y)
    share, wrong = choose_share(x, y, folds)
    given = {
        "sparse QDA": fit.predict(data.x_test),
        "DRDA": shrunken_labels(x, y, data.x_test, share),
        "QDA": shrunken_labels(x, y, data.x_test, 0.0),
        "naive Bayes": shrunken_labels(x, y, data.x_test, 1.0),
        "LDA": shrunken_labels(x, y, data.x_test, 0.0, common=True),
    }
    off = {name: (labels != data.y_test).astype(float) for name, labels in given.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, each in off.items():
        above = each - off["sparse QDA"]
        found[name] = {
            "wrong": int(each.sum()),
            "error": float(each.mean()),
            "above": int(above.sum()),
            # of paired rows
            "above_se": float(np.sqrt(len(above)) * above.std(ddof=1)),
        }
    path = fit.path_
    chosen = int(np.flatnonzero(path.alphas == fit.alpha_)[0])
    found["sparse QDA"] |= {
        "cv_error": float(path.cv_wrong[:, chosen].sum() / path.cv_rows.sum()),
        "links": int(path.n_links[chosen]),
        "relative_penalty": fit.relative_penalty_,
        "largest_gap": float(path.gaps.max()),
    }
    found["DRDA"] |= {"cv_error": wrong / sum(len(test) for _, test in folds), "share": share}
    return found


def rows_of_table(sets: Sequence[Mapping[str, Mapping[str, Any]]], n: int) -> list[dict[str, Any]]:
    """One row for each model; means where the folds were drawn several times."""
    made = []
    for model in sets[0]:
        each = [figures[model] for figures in sets]

        def over(figure: str, each: Sequence[Mapping[str, Any]] = each) -> float:
            return float(np.mean([one.get(figure, np.nan) for one in each]))

        row: dict[str, Any] = {
            "model": model,
            "replicates": len(sets),
            "wrong": f"{over('wrong'):g}",
            "error": f"{over('error'):.4f}",
            "error_se": f"{np.sqrt(over('error') * (1 - over('error')) / n):.4f}",
        }
        known = {"cv_error": ".4f", "links": ".0f", "relative_penalty": ".4f", "share": ".2f"}
        row["above"] = row["above_se"] = ""
        if model != "sparse QDA":
            row |= {"above": f"{over('above'):g}", "above_se": f"{over('above_se'):.1f}"}
        row |= {
            name: f"{over(name):{form}}" if name in each[0] else "" for name, form in known.items()
        }
        gap = max(one.get("largest_gap", 0.0) for one in each)
        row["largest_gap"] = f"{gap:.1e}" if model == "sparse QDA" else ""
        made.append(row)
    return made
