from consilience.engines.federation import Federation as Federation
from consilience.engines.federation import Run as Run
from consilience.engines.federation import load_run as load_run
from consilience.estimators.community_bayes import (
    CommunityBayesClassifier as CommunityBayesClassifier,
)
from consilience.estimators.em_lift import EMLift as EMLift
from consilience.estimators.hard_impute import HardImpute as HardImpute
from consilience.estimators.held_out_entries import EntryCurve as EntryCurve
from consilience.estimators.held_out_entries import GridEdgeWarning as GridEdgeWarning
from consilience.estimators.kpod import KPOD as KPOD
from consilience.estimators.latent_class_regressor import (
    LatentClassRegressor as LatentClassRegressor,
)
from consilience.estimators.markov_mixture import MarkovMixture as MarkovMixture
from consilience.estimators.multinomial_mixture import (
    LatentClassAnalysis as LatentClassAnalysis,
)
from consilience.estimators.observed_kmeans import ObservedKMeans as ObservedKMeans
from consilience.estimators.opt_space import OptSpace as OptSpace
from consilience.estimators.probabilistic_pca import ProbabilisticPCA as ProbabilisticPCA
from consilience.estimators.soft_impute import SoftImpute as SoftImpute
from consilience.estimators.sparse_qda import SparseQDA as SparseQDA
from consilience.exceptions import ConsilienceError as ConsilienceError
from consilience.methods.assistance_test import AssistanceTest as AssistanceTest
from consilience.methods.assisted_glm import AssistedGLM as AssistedGLM
from consilience.methods.base import Columns as Columns
from consilience.methods.base import Preparation as Preparation
from consilience.methods.ensemble_clustering import EnsembleClustering as EnsembleClustering
from consilience.methods.federated_community_bayes import (
    FederatedCommunityBayes as FederatedCommunityBayes,
)
from consilience.methods.federated_pca import FederatedPCA as FederatedPCA
from consilience.methods.federated_sparse_qda import FederatedSparseQDA as FederatedSparseQDA
from consilience.methods.latent_class_regression import (
    LatentClassRegression as LatentClassRegression,
)
from consilience.methods.mean_and_sd import MeanAndSD as MeanAndSD
from consilience.methods.meta_clustering import MetaClustering as MetaClustering
from consilience.methods.one_table.cluster_count import ClusterCountStudy as ClusterCountStudy
from consilience.methods.one_table.community_bayes import (
    CommunityBayesStudy as CommunityBayesStudy,
)
from consilience.methods.one_table.matrix_completion import (
    MatrixCompletionStudy as MatrixCompletionStudy,
)
from consilience.methods.one_table.sparse_qda import SparseQDAStudy as SparseQDAStudy
from consilience.methods.reference_averaging import ReferenceAveraging as ReferenceAveraging
from consilience.numerics.entries import Entries as Entries
from consilience.selection.cluster_count_cv import ClusterCountCV as ClusterCountCV
from consilience.selection.entrywise_kfold import EntrywiseKFold as EntrywiseKFold
from consilience.selection.entrywise_kfold import cross_validate_entries as cross_validate_entries
from consilience.selection.nuclear_norm_cv import NuclearNormCV as NuclearNormCV
from consilience.selection.rank_cv import RankCV as RankCV
from consilience.sites.policy import Policy as Policy
from consilience.tall.reference_averaging import (
    ReferenceAveragingClassifier as ReferenceAveragingClassifier,
)
from consilience.tall.reference_averaging import (
    ReferenceAveragingRegressor as ReferenceAveragingRegressor,
)

__version__: str
