from consilience.engines.federation import Federation as Federation
from consilience.engines.federation import Run as Run
from consilience.engines.federation import load_run as load_run
from consilience.estimators.community_bayes import (
    CommunityBayesClassifier as CommunityBayesClassifier,
)
from consilience.estimators.latent_class_regressor import (
    LatentClassRegressor as LatentClassRegressor,
)
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
from consilience.methods.federated_sparse_qda import FederatedSparseQDA as FederatedSparseQDA
from consilience.methods.latent_class_regression import (
    LatentClassRegression as LatentClassRegression,
)
from consilience.methods.mean_and_sd import MeanAndSD as MeanAndSD
from consilience.methods.meta_clustering import MetaClustering as MetaClustering
from consilience.methods.one_table.community_bayes import (
    CommunityBayesStudy as CommunityBayesStudy,
)
from consilience.methods.one_table.sparse_qda import SparseQDAStudy as SparseQDAStudy
from consilience.methods.reference_averaging import ReferenceAveraging as ReferenceAveraging
from consilience.sites.policy import Policy as Policy
from consilience.tall.reference_averaging import (
    ReferenceAveragingClassifier as ReferenceAveragingClassifier,
)
from consilience.tall.reference_averaging import (
    ReferenceAveragingRegressor as ReferenceAveragingRegressor,
)

__version__: str
