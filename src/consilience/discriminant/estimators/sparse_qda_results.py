"""What a sparse quadratic discriminant analysis found: its path, and features that interact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

    from consilience.discriminant.estimators.sparse_qda_units import QDAUnits
    from consilience.discriminant.kernels.joint_precision import JointPrecision


@dataclass(frozen=True, eq=False)
class SparseQDAPath:
    """Fits along a grid of penalties, the sparsest first.

    Attributes
    ----------
    alphas : (A,) array
        Penalty for a row, falling.
    n_links : (A,) array of int
        Pairs of features that interact.
    largest_block : (A,) array of int
        Features of the largest block, 1 where no features are linked.
    penalty_norms : (A,) array
        P(T): sum of the norms of all groups over ordered pairs.
    relative_penalties : (A,) array
        P(T) over that of `relative_to` of the estimator.
    gaps : (A,) array
        Relative duality gaps.
    cv_wrong : (F, A) array of int
        Rows that were misclassified, by fold; no folds without cross-validation.
    cv_rows : (F,) array of int
        Rows that were judged in each fold.
    """

    alphas: FloatArray
    n_links: IntArray
    largest_block: IntArray
    penalty_norms: FloatArray
    relative_penalties: FloatArray
    gaps: FloatArray
    cv_wrong: IntArray
    cv_rows: IntArray

    @property
    def cv_errors(self) -> FloatArray:
        """Share of misclassified rows by fold and penalty, (F, A)."""
        return np.asarray(self.cv_wrong / self.cv_rows[:, None], dtype=np.float64)

    @property
    def cv_error(self) -> FloatArray:
        """Share of misclassified rows over all folds, (A,); NaN without cross-validation."""
        if not len(self.cv_rows):
            return np.full(len(self.alphas), np.nan)
        return np.asarray(self.cv_wrong.sum(axis=0) / self.cv_rows.sum(), dtype=np.float64)

    @property
    def cv_se(self) -> FloatArray:
        """Standard error of `cv_error` from the spread of the folds, (A,); NaN below two folds."""
        if len(self.cv_rows) < 2:
            return np.full(len(self.alphas), np.nan)
        deviations = self.cv_wrong - self.cv_rows[:, None] * self.cv_error
        n_folds = len(self.cv_rows)
        spread = (deviations**2).sum(axis=0) * n_folds / (n_folds - 1)
        return np.asarray(np.sqrt(spread) / self.cv_rows.sum(), dtype=np.float64)

    def __len__(self) -> int:
        return len(self.alphas)

    def to_frame(self) -> pd.DataFrame:
        """One row for each penalty."""
        import pandas as pd

        return pd.DataFrame(
            {
                "alpha": self.alphas,
                "n_links": self.n_links,
                "largest_block": self.largest_block,
                "penalty_norm": self.penalty_norms,
                "relative_penalty": self.relative_penalties,
                "gap": self.gaps,
                "cv_error": self.cv_error,
                "cv_se": self.cv_se,
            }
        )


@dataclass(frozen=True, eq=False)
class SparseQDAInteractions:
    """Pairs of features that interact within the classes, the strongest first.

    Attributes
    ----------
    feature_1, feature_2 : (L,) arrays of str
        Names, the feature that comes first in the table first.
    pairs : (L, 2) array of int
        Columns of the table.
    strength : (L,) array
        Euclidean norm of the pair's entries over the classes, which the penalty acts on, in the
        units of the fit.
    precision : (L, K) array
        Entries of the precision matrices, in the units of the fit.
    partial_correlation : (L, K) array
        Given all other features.
    classes : (K,) array
    """

    feature_1: NDArray[Any]
    feature_2: NDArray[Any]
    pairs: IntArray
    strength: FloatArray
    precision: FloatArray
    partial_correlation: FloatArray
    classes: NDArray[Any]

    @classmethod
    def of(
        cls,
        precision: JointPrecision,
        units: QDAUnits,
        classes: NDArray[Any],
        names: Sequence[str],
    ) -> SparseQDAInteractions:
        """Interactions of a fit.

        Parameters
        ----------
        precision : JointPrecision
        units : QDAUnits
        classes : (K,) array
        names : sequence of str
            Of all columns of the table.
        """
        pairs, entries = precision.links()
        diagonal = np.array(precision.diagonal)
        for block, matrices in zip(precision.blocks, precision.precisions):
            diagonal[:, block] = np.diagonal(matrices, axis1=1, axis2=2)
        strength = np.sqrt((entries**2).sum(axis=1))
        order = np.lexsort((pairs[:, 1], pairs[:, 0], -strength))
        pairs, entries = pairs[order], entries[order]
        size = np.sqrt(diagonal[:, pairs[:, 0]] * diagonal[:, pairs[:, 1]]).T
        columns = units.kept[pairs].reshape(-1, 2)
        texts = np.array([str(name) for name in names], dtype=object)
        return cls(
            feature_1=texts[columns[:, 0]],
            feature_2=texts[columns[:, 1]],
            pairs=columns.astype(np.int64),
            strength=strength[order],
            precision=entries,
            partial_correlation=-entries / size,
            classes=classes,
        )

    def __len__(self) -> int:
        return len(self.strength)

    def to_frame(self) -> pd.DataFrame:
        """One row for each pair."""
        import pandas as pd

        columns: dict[str, Any] = {
            "feature_1": self.feature_1,
            "feature_2": self.feature_2,
            "strength": self.strength,
        }
        for k, label in enumerate(self.classes):
            columns[f"precision_{label}"] = self.precision[:, k]
        for k, label in enumerate(self.classes):
            columns[f"partial_correlation_{label}"] = self.partial_correlation[:, k]
        return pd.DataFrame(columns)
