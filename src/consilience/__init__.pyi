from consilience.assisted.glm import AssistedGLM as AssistedGLM
from consilience.assisted.test import AssistanceTest as AssistanceTest
from consilience.averaging.protocol import ReferenceAveraging as ReferenceAveraging
from consilience.averaging.tall.reference_averaging import (
    ReferenceAveragingClassifier as ReferenceAveragingClassifier,
)
from consilience.averaging.tall.reference_averaging import (
    ReferenceAveragingRegressor as ReferenceAveragingRegressor,
)
from consilience.clustering.estimators.mixture import (
    LatentClassAnalysis as LatentClassAnalysis,
)
from consilience.clustering.estimators.mixture import MarkovMixture as MarkovMixture
from consilience.clustering.protocol import EnsembleClustering as EnsembleClustering
from consilience.collaborators.protocol import MetaClustering as MetaClustering
from consilience.completion.cluster_count_cv import ClusterCountCV as ClusterCountCV
from consilience.completion.entry_splits import EntrywiseKFold as EntrywiseKFold
from consilience.completion.entry_splits import (
    cross_validate_entries as cross_validate_entries,
)
from consilience.completion.estimators.em_imputation import EMLift as EMLift
from consilience.completion.estimators.low_rank import HardImpute as HardImpute
from consilience.completion.estimators.low_rank import OptSpace as OptSpace
from consilience.completion.estimators.low_rank import ProbabilisticPCA as ProbabilisticPCA
from consilience.completion.estimators.low_rank import SoftImpute as SoftImpute
from consilience.completion.estimators.observed_kmeans import KPOD as KPOD
from consilience.completion.estimators.observed_kmeans import ObservedKMeans as ObservedKMeans
from consilience.completion.federated_pca import FederatedPCA as FederatedPCA
from consilience.completion.matrix_imputer import MatrixImputer as MatrixImputer
from consilience.completion.one_table.cluster_count import ClusterCountStudy as ClusterCountStudy
from consilience.completion.one_table.matrix_completion import (
    MatrixCompletionStudy as MatrixCompletionStudy,
)
from consilience.completion.selection import NuclearNormCV as NuclearNormCV
from consilience.completion.selection import RankCV as RankCV
from consilience.contingency.protocol import ContingencyTable as ContingencyTable
from consilience.describe.protocol import Describe as Describe
from consilience.discriminant.estimators.community_bayes import (
    CommunityBayesClassifier as CommunityBayesClassifier,
)
from consilience.discriminant.estimators.sparse_qda import SparseQDA as SparseQDA
from consilience.discriminant.federated_community_bayes import (
    FederatedCommunityBayes as FederatedCommunityBayes,
)
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA as FederatedSparseQDA
from consilience.discriminant.one_table.community_bayes import (
    CommunityBayesStudy as CommunityBayesStudy,
)
from consilience.discriminant.one_table.sparse_qda import SparseQDAStudy as SparseQDAStudy
from consilience.engines.federation import Federation as Federation
from consilience.engines.federation import Run as Run
from consilience.engines.federation import load_run as load_run
from consilience.exceptions import ConsilienceError as ConsilienceError
from consilience.latent_regression.estimators.latent_class_regressor import (
    LatentClassRegressor as LatentClassRegressor,
)
from consilience.latent_regression.protocol import (
    LatentClassRegression as LatentClassRegression,
)
from consilience.numerics.entries import Entries as Entries
from consilience.numerics.held_out_entries import EntryCurve as EntryCurve
from consilience.numerics.held_out_entries import GridEdgeWarning as GridEdgeWarning
from consilience.numerics.progress import progress as progress
from consilience.protocol.mean_and_sd import MeanAndSD as MeanAndSD
from consilience.protocol.method import Columns as Columns
from consilience.protocol.method import Preparation as Preparation
from consilience.regression.protocol import PooledRegression as PooledRegression
from consilience.sites.policy import Policy as Policy

__version__: str
