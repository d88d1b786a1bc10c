"""Names of types: which carry training rows, and which may cross the wire as they are."""

from __future__ import annotations

MEMORISING = (
    "sklearn.neighbors.",
    "sklearn.svm._classes.",
    "sklearn.gaussian_process.",
    "sklearn.kernel_ridge.",
    "sklearn.isotonic.",
    "sklearn.kernel_approximation.Nystroem",
    "sklearn.impute._knn.",
    "sklearn.semi_supervised.",
    "sklearn.decomposition._kernel_pca.",
    "sklearn.manifold.",
    "sklearn.cross_decomposition.",
    "sklearn.preprocessing._data.QuantileTransformer",
)
"""Beginnings of the names of estimators that carry training rows (or one value for each) inside."""

_HARMLESS = ("sklearn.svm._classes.LinearSVR", "sklearn.svm._classes.LinearSVC")


def is_memorising(type_name: str) -> bool:
    """Whether estimators of this qualified type carry training rows, or one value for each.

    Parameters
    ----------
    type_name : str
        As :func:`consilience.wire.estimators.type_name` gives it.
    """
    return type_name.startswith(MEMORISING) and type_name not in _HARMLESS
