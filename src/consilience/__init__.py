"""Statistical learning across parties that cannot pool their data.

The public names are listed here and load on use, so that ``import consilience`` is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

_PUBLIC: dict[str, str] = {
    "Columns": "consilience.methods.base",
    "Preparation": "consilience.methods.base",
    "Policy": "consilience.sites.policy",
    "Federation": "consilience.engines.federation",
    "Run": "consilience.engines.federation",
    "load_run": "consilience.engines.federation",
    "MeanAndSD": "consilience.methods.mean_and_sd",
    "AssistanceTest": "consilience.methods.assistance_test",
    "AssistedGLM": "consilience.methods.assisted_glm",
    "CommunityBayesClassifier": "consilience.estimators.community_bayes",
    "EnsembleClustering": "consilience.methods.ensemble_clustering",
    "FederatedSparseQDA": "consilience.methods.federated_sparse_qda",
    "FederatedCommunityBayes": "consilience.methods.federated_community_bayes",
    "LatentClassRegression": "consilience.methods.latent_class_regression",
    "LatentClassRegressor": "consilience.estimators.latent_class_regressor",
    "MetaClustering": "consilience.methods.meta_clustering",
    "ReferenceAveraging": "consilience.methods.reference_averaging",
    "ReferenceAveragingClassifier": "consilience.tall.reference_averaging",
    "ReferenceAveragingRegressor": "consilience.tall.reference_averaging",
    "SparseQDA": "consilience.estimators.sparse_qda",
    "CommunityBayesStudy": "consilience.methods.one_table.community_bayes",
    "SparseQDAStudy": "consilience.methods.one_table.sparse_qda",
    "ConsilienceError": "consilience.exceptions",
}

__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'consilience' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
