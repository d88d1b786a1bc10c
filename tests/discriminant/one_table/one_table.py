"""A study of one table with an estimator of scikit-learn, and federations of one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.discriminant.one_table import LocalFit, OneTableResult, OneTableStudy, fit_step
from consilience.discriminant.one_table.messages import Fitted
from consilience.engines.federation import Federation
from consilience.protocol.method import Columns, Preparation, register
from consilience.protocol.one_table import Rows
from consilience.sites.policy import Policy
from tests.granted import granted

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Means:
    """Predictor of the method below: the classes' means."""

    means: FloatArray

    def to_arrays(self) -> dict[str, FloatArray]:
        return {"means": self.means}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray]) -> Means:
        return cls(arrays["means"])


@dataclass(frozen=True, eq=False, kw_only=True)
class ShrunkenLDAResult(OneTableResult):
    """With the means by class."""

    means: FloatArray

    def summary(self) -> str:
        return self.judged_sentence()


@register
@dataclass(frozen=True, kw_only=True)
class ShrunkenLDA(OneTableStudy):
    """Linear discriminants, as scikit-learn has them.

    Parameters
    ----------
    shrinkages : sequence of float
    n_parameters : int
        What the model counts as.
    """

    shrinkages: tuple[float, ...] = (0.1, 0.9)
    n_parameters: int = 3

    name: ClassVar[str] = "testing-shrunken-lda"
    title: ClassVar[str] = "Does the machinery work with any estimator?"
    steps = (fit_step("testing-shrunken-lda"),)
    leakage: ClassVar[str] = "Counts, and the means of classes."
    Result = ShrunkenLDAResult
    predictor: ClassVar[Any] = Means
    several: ClassVar[str] = "mean-and-sd"

    def fit_table(self, rows: Rows, scaling: FloatArray | None) -> LocalFit:
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
        from sklearn.model_selection import cross_val_predict

        x, y, _ = rows.table
        made = [
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s).fit(x, y)
            for s in self.shrinkages
        ]
        wrong = [int((cross_val_predict(one, x, y) != y).sum()) for one in made]
        best, worst = made[int(np.argmin(wrong))], made[int(np.argmax(wrong))]
        return LocalFit(
            classes=tuple(str(c) for c in best.classes_),
            rules={"LDA": best.predict_log_proba, "other LDA": worst.predict_log_proba},
            predictor=Means(best.means_),
            wrong=np.array(wrong),
            cv_se=np.full(len(wrong), 0.0123456),
            figures={
                "candidates": np.array(self.shrinkages),
                "chosen": int(np.argmin(wrong)),
                "priors": best.priors_,
            },
            model={"means": best.means_},
            n_parameters=self.n_parameters,
            tables={"shrinkages": {"shrinkage": self.shrinkages, "wrong": wrong}},
            remarks=("A remark for the site.",),
        )

    def conclude(self, common: Mapping[str, Any], reply: Fitted) -> ShrunkenLDAResult:
        means = reply.model.value.get("means", np.empty((0, 0)))
        return ShrunkenLDAResult(**common, means=means)


def table(
    n: int = 240, *, p: int = 4, apart: float = 1.2, seed: int = 1
) -> dict[str, NDArray[Any]]:
    """Two classes whose first two columns are correlated in the second only."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % 2)
    x = rng.normal(size=(n, p))
    x[:, 1] = np.where(y == 1, 0.8 * x[:, 0] + 0.6 * x[:, 1], x[:, 1])
    x[:, -1] += apart * y
    columns = {f"x{j}": x[:, j] for j in range(p)}
    return {**columns, "kind": np.array(["calm", "wild"])[y], "person": np.arange(n) // 3}


def federation(
    given: Mapping[str, NDArray[Any]],
    *,
    policy: str | Policy = "strict",
    preparation: Preparation | None = None,
    sites: int = 1,
    **columns: Any,
) -> Federation:
    features = tuple(name for name in given if name.startswith("x"))
    levels = {"kind": tuple(np.unique(given["kind"]).tolist())}
    read = Columns(features=features, **{"target": "kind", "levels": levels, **columns})
    tables = {f"clinic-{i}" if i else "clinic": dict(given) for i in range(sites)}
    return Federation.local(tables, columns=read, policy=granted(policy), preparation=preparation)
