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
    "LatentClassAnalysis": "consilience.estimators.multinomial_mixture",
    "LatentClassRegression": "consilience.methods.latent_class_regression",
    "LatentClassRegressor": "consilience.estimators.latent_class_regressor",
    "MarkovMixture": "consilience.estimators.markov_mixture",
    "MetaClustering": "consilience.methods.meta_clustering",
    "ReferenceAveraging": "consilience.methods.reference_averaging",
    "ReferenceAveragingClassifier": "consilience.tall.reference_averaging",
    "ReferenceAveragingRegressor": "consilience.tall.reference_averaging",
    "SparseQDA": "consilience.estimators.sparse_qda",
    "CommunityBayesStudy": "consilience.methods.one_table.community_bayes",
    "SparseQDAStudy": "consilience.methods.one_table.sparse_qda",
    "ObservedKMeans": "consilience.estimators.observed_kmeans",
    "KPOD": "consilience.estimators.kpod",
    "Entries": "consilience.numerics.entries",
    "EntryCurve": "consilience.estimators.held_out_entries",
    "GridEdgeWarning": "consilience.estimators.held_out_entries",
    "EntrywiseKFold": "consilience.selection.entrywise_kfold",
    "cross_validate_entries": "consilience.selection.entrywise_kfold",
    "RankCV": "consilience.selection.rank_cv",
    "NuclearNormCV": "consilience.selection.nuclear_norm_cv",
    "ClusterCountCV": "consilience.selection.cluster_count_cv",
    "HardImpute": "consilience.estimators.hard_impute",
    "OptSpace": "consilience.estimators.opt_space",
    "ProbabilisticPCA": "consilience.estimators.probabilistic_pca",
    "EMLift": "consilience.estimators.em_lift",
    "SoftImpute": "consilience.estimators.soft_impute",
    "FederatedPCA": "consilience.methods.federated_pca",
    "MatrixCompletionStudy": "consilience.methods.one_table.matrix_completion",
    "ClusterCountStudy": "consilience.methods.one_table.cluster_count",
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
