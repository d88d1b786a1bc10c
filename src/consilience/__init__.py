"""Statistical learning across parties that cannot pool their data.

The public names are listed here and load on use, so that ``import consilience`` is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    "Columns": "consilience.protocol.method",
    "Preparation": "consilience.protocol.method",
    "Policy": "consilience.sites.policy",
    "Federation": "consilience.engines.federation",
    "Run": "consilience.engines.federation",
    "load_run": "consilience.engines.federation",
    "MeanAndSD": "consilience.protocol.mean_and_sd",
    "AssistanceTest": "consilience.assisted.test",
    "AssistedGLM": "consilience.assisted.glm",
    "CommunityBayesClassifier": "consilience.discriminant.estimators.community_bayes",
    "ContingencyTable": "consilience.contingency.protocol",
    "Describe": "consilience.describe.protocol",
    "EnsembleClustering": "consilience.clustering.protocol",
    "FederatedSparseQDA": "consilience.discriminant.federated_sparse_qda",
    "FederatedCommunityBayes": "consilience.discriminant.federated_community_bayes",
    "LatentClassAnalysis": "consilience.clustering.estimators.mixture",
    "LatentClassRegression": "consilience.latent_regression.protocol",
    "LatentClassRegressor": "consilience.latent_regression.estimators.latent_class_regressor",
    "MarkovMixture": "consilience.clustering.estimators.mixture",
    "MetaClustering": "consilience.collaborators.protocol",
    "PooledRegression": "consilience.regression.protocol",
    "ReferenceAveraging": "consilience.averaging.protocol",
    "ReferenceAveragingClassifier": "consilience.averaging.tall.reference_averaging",
    "ReferenceAveragingRegressor": "consilience.averaging.tall.reference_averaging",
    "SparseQDA": "consilience.discriminant.estimators.sparse_qda",
    "CommunityBayesStudy": "consilience.discriminant.one_table.community_bayes",
    "SparseQDAStudy": "consilience.discriminant.one_table.sparse_qda",
    "ObservedKMeans": "consilience.completion.estimators.observed_kmeans",
    "KPOD": "consilience.completion.estimators.observed_kmeans",
    "Entries": "consilience.numerics.entries",
    "EntryCurve": "consilience.numerics.held_out_entries",
    "GridEdgeWarning": "consilience.numerics.held_out_entries",
    "EntrywiseKFold": "consilience.completion.entry_splits",
    "cross_validate_entries": "consilience.completion.entry_splits",
    "RankCV": "consilience.completion.selection",
    "NuclearNormCV": "consilience.completion.selection",
    "ClusterCountCV": "consilience.completion.cluster_count_cv",
    "HardImpute": "consilience.completion.estimators.low_rank",
    "OptSpace": "consilience.completion.estimators.low_rank",
    "ProbabilisticPCA": "consilience.completion.estimators.low_rank",
    "EMLift": "consilience.completion.estimators.em_imputation",
    "SoftImpute": "consilience.completion.estimators.low_rank",
    "MatrixImputer": "consilience.completion.matrix_imputer",
    "FederatedPCA": "consilience.completion.federated_pca",
    "MatrixCompletionStudy": "consilience.completion.one_table.matrix_completion",
    "ClusterCountStudy": "consilience.completion.one_table.cluster_count",
    "progress": "consilience.numerics.progress",
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
