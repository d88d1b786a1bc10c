"""Local clustering models: parameters that label any row, and how a site fits them.

A model is arrays only. Its labels are computed feature by feature in one fixed order, never by a
matrix product, so the label of a row does not depend on which other rows are in the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.exceptions import DataError, ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ModelKind = Literal["kmeans", "gaussian_mixture"]
CovarianceType = Literal["diag", "full", "spherical", "tied"]

_ROWS_PER_BLOCK = 4096
_EM_ITERATIONS = 100
_EM_TOLERANCE = 1e-7


@dataclass(frozen=True)
class KMeansModel:
    """Class means; a row belongs to the nearest one.

    Attributes
    ----------
    means : array, shape (K, d)
        In lexicographic order.
    """

    means: FloatArray

    @property
    def n_classes(self) -> int:
        """K."""
        return int(self.means.shape[0])

    @property
    def n_features(self) -> int:
        """Columns of a row."""
        return int(self.means.shape[1])

    @property
    def class_parameters(self) -> FloatArray:
        """Class means, shape (K, d)."""
        return self.means

    def label(self, X: ArrayLike) -> IntArray:
        """Class of each row of X, shape (n,); ties go to the first class."""
        return _label(X, self.n_features, self._scores)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Numeric arrays that hold the whole model."""
        return {"means": self.means}

    def _scores(self, columns: FloatArray) -> FloatArray:
        return -_squared_distances(columns, self.means)


@dataclass(frozen=True)
class GaussianMixtureModel:
    """Gaussian classes with proportions; a row belongs to the class of highest posterior.

    Attributes
    ----------
    means : array, shape (K, d)
        In lexicographic order.
    covariances : array
        "full": (K, d, d); "tied": (d, d); "diag": (K, d); "spherical": (K,).
    proportions : array, shape (K,)
        Positive, sum to 1.
    """

    means: FloatArray
    covariances: FloatArray
    proportions: FloatArray

    @property
    def n_classes(self) -> int:
        """K."""
        return int(self.means.shape[0])

    @property
    def n_features(self) -> int:
        """Columns of a row."""
        return int(self.means.shape[1])

    @property
    def covariance_type(self) -> CovarianceType:
        """Read from the shape of the covariances."""
        k, d = self.means.shape
        shapes: dict[tuple[int, ...], CovarianceType] = {
            (k, d, d): "full",
            (d, d): "tied",
            (k, d): "diag",
            (k,): "spherical",
        }
        # a tied matrix of d = K features has the shape of K diagonals: proportions tell them apart
        if self.covariances.shape == (d, d) and k == d and not _looks_diagonal(self.covariances):
            return "tied"
        shapes[(k, d)] = "diag"
        return shapes[self.covariances.shape]
