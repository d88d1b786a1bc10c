"""Names of types: which carry training rows, and which may cross the wire inside an archive."""

from __future__ import annotations

from typing import Any

Portable = dict[str, Any]
"""A model as a plain nest."""

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


def qualified(thing: object) -> str:
    """Qualified name of the type of an object."""
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


LINEAR = frozenset(
    f"sklearn.linear_model.{name}"
    for name in (
        "_base.LinearRegression",
        "_bayes.ARDRegression",
        "_bayes.BayesianRidge",
        "_coordinate_descent.ElasticNet",
        "_coordinate_descent.ElasticNetCV",
        "_coordinate_descent.Lasso",
        "_coordinate_descent.LassoCV",
        "_huber.HuberRegressor",
        "_least_angle.Lars",
        "_least_angle.LarsCV",
        "_least_angle.LassoLars",
        "_least_angle.LassoLarsCV",
        "_least_angle.LassoLarsIC",
        "_omp.OrthogonalMatchingPursuit",
        "_omp.OrthogonalMatchingPursuitCV",
        "_passive_aggressive.PassiveAggressiveRegressor",
        "_quantile.QuantileRegressor",
        "_ridge.Ridge",
        "_ridge.RidgeCV",
        "_stochastic_gradient.SGDRegressor",
        "_theil_sen.TheilSenRegressor",
    )
) | {"sklearn.svm._classes.LinearSVR"}
"""Regressors whose prediction is ``x @ coef_ + intercept_`` and nothing else."""

LOGISTIC = frozenset(
    (
        "sklearn.linear_model._logistic.LogisticRegression",
        "sklearn.linear_model._logistic.LogisticRegressionCV",
    )
)
"""Classifiers whose probabilities are the logistic function or softmax of linear predictors."""

TREE = "sklearn.tree._classes."
FOREST = "sklearn.ensemble._forest."
SINGLE_TREES = frozenset(
    TREE + name
    for name in (
        "DecisionTreeRegressor",
        "DecisionTreeClassifier",
        "ExtraTreeRegressor",
        "ExtraTreeClassifier",
    )
)
FORESTS = frozenset(
    FOREST + name
    for name in (
        "RandomForestRegressor",
        "RandomForestClassifier",
        "ExtraTreesRegressor",
        "ExtraTreesClassifier",
    )
)
BOOSTING = frozenset(
    (
        "sklearn.ensemble._gb.GradientBoostingRegressor",
        "sklearn.ensemble._gb.GradientBoostingClassifier",
    )
)

_LOSSES = (
    "AbsoluteError",
    "ExponentialLoss",
    "HalfBinomialLoss",
    "HalfGammaLoss",
    "HalfMultinomialLoss",
    "HalfPoissonLoss",
    "HalfSquaredError",
    "HalfTweedieLoss",
    "HalfTweedieLossIdentity",
    "HuberLoss",
    "PinballLoss",
)
_HGB = "sklearn.ensemble._hist_gradient_boosting."

OBJECTS = (
    LINEAR
    | LOGISTIC
    | SINGLE_TREES
    | FORESTS
    | BOOSTING
    | {f"sklearn._loss.loss.{name}" for name in _LOSSES}
    | {
        f"sklearn._loss.link.{name}"
        for name in (
            "HalfLogitLink",
            "IdentityLink",
            "Interval",
            "LogLink",
            "LogitLink",
            "MultinomialLogit",
        )
    }
    | {
        f"sklearn.gaussian_process.kernels.{name}"
        for name in (
            "ConstantKernel",
            "DotProduct",
            "ExpSineSquared",
            "Exponentiation",
            "Matern",
            "Product",
            "RBF",
            "RationalQuadratic",
            "Sum",
            "WhiteKernel",
        )
    }
    | {
        f"{_HGB}binning._BinMapper",
        f"{_HGB}gradient_boosting.HistGradientBoostingClassifier",
        f"{_HGB}gradient_boosting.HistGradientBoostingRegressor",
        f"{_HGB}predictor.TreePredictor",
        "scipy.interpolate._bsplines.BSpline",
        "sklearn.calibration.CalibratedClassifierCV",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.compose._column_transformer.ColumnTransformer",
        "sklearn.compose._target.TransformedTargetRegressor",
        "sklearn.decomposition._pca.PCA",
        "sklearn.discriminant_analysis.LinearDiscriminantAnalysis",
        "sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis",
        "sklearn.dummy.DummyClassifier",
        "sklearn.dummy.DummyRegressor",
        "sklearn.ensemble._bagging.BaggingClassifier",
        "sklearn.ensemble._bagging.BaggingRegressor",
        "sklearn.ensemble._stacking.StackingClassifier",
        "sklearn.ensemble._stacking.StackingRegressor",
        "sklearn.ensemble._voting.VotingClassifier",
        "sklearn.ensemble._voting.VotingRegressor",
        "sklearn.ensemble._weight_boosting.AdaBoostClassifier",
        "sklearn.ensemble._weight_boosting.AdaBoostRegressor",
        "sklearn.feature_selection._variance_threshold.VarianceThreshold",
        "sklearn.gaussian_process._gpc.GaussianProcessClassifier",
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        "sklearn.gaussian_process._gpr.GaussianProcessRegressor",
        "sklearn.impute._base.SimpleImputer",
        "sklearn.kernel_approximation.Nystroem",
        "sklearn.kernel_approximation.RBFSampler",
        "sklearn.kernel_ridge.KernelRidge",
        "sklearn.linear_model._glm.glm.GammaRegressor",
        "sklearn.linear_model._glm.glm.PoissonRegressor",
        "sklearn.linear_model._glm.glm.TweedieRegressor",
        "sklearn.linear_model._ransac.RANSACRegressor",
        "sklearn.linear_model._stochastic_gradient.SGDClassifier",
        "sklearn.model_selection._search.GridSearchCV",
        "sklearn.multiclass.OneVsOneClassifier",
        "sklearn.multiclass.OneVsRestClassifier",
        "sklearn.naive_bayes.GaussianNB",
        "sklearn.neighbors._classification.KNeighborsClassifier",
        "sklearn.neighbors._regression.KNeighborsRegressor",
        "sklearn.neural_network._multilayer_perceptron.MLPClassifier",
        "sklearn.neural_network._multilayer_perceptron.MLPRegressor",
        "sklearn.pipeline.FeatureUnion",
        "sklearn.pipeline.Pipeline",
        "sklearn.preprocessing._data.MaxAbsScaler",
        "sklearn.preprocessing._data.MinMaxScaler",
        "sklearn.preprocessing._data.PowerTransformer",
        "sklearn.preprocessing._data.QuantileTransformer",
        "sklearn.preprocessing._data.RobustScaler",
        "sklearn.preprocessing._data.StandardScaler",
        "sklearn.preprocessing._discretization.KBinsDiscretizer",
        "sklearn.preprocessing._encoders.OneHotEncoder",
        "sklearn.preprocessing._function_transformer.FunctionTransformer",
        "sklearn.preprocessing._label.LabelBinarizer",
        "sklearn.preprocessing._label.LabelEncoder",
        "sklearn.preprocessing._polynomial.PolynomialFeatures",
        "sklearn.preprocessing._polynomial.SplineTransformer",
        "sklearn.svm._classes.LinearSVC",
        "sklearn.svm._classes.SVC",
        "sklearn.svm._classes.SVR",
    }
)
"""Objects of scikit-learn (and what they hold) that may stand in an archive."""

_NUMBERS = ("bool", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32")
_PLAIN = frozenset(f"builtins.{name}" for name in ("bool", "float", "int", "str"))

LOADERS: dict[str, frozenset[str]] = {
    "ObjectNode": OBJECTS,
    "TreeNode": frozenset(("sklearn.tree._tree.Tree",)),
    "LossNode": frozenset(f"sklearn._loss._loss.Cy{name}" for name in _LOSSES),
    "DictNode": frozenset(("builtins.dict", "sklearn.utils._bunch.Bunch")),
    "ListNode": frozenset(("builtins.list",)),
    "TupleNode": frozenset(("builtins.tuple",)),
    "SliceNode": frozenset(("builtins.slice",)),
    "JsonNode": frozenset(("builtins.str",)),
    "NdArrayNode": frozenset(("numpy.ndarray", "numpy.bool_", "numpy.uint64"))
    | {f"numpy.{name}" for name in _NUMBERS},
    "DTypeNode": frozenset(("numpy.dtype",)),
    "TypeNode": _PLAIN | {f"numpy.{name}" for name in _NUMBERS},
    "FunctionNode": frozenset(
        f"numpy.{name}"
        for name in ("cbrt", "exp", "expm1", "log", "log10", "log1p", "log2", "sqrt", "square")
    )
    | {"numpy.exp2", "numpy.power", "scipy._lib.array_api_compat.numpy._aliases.asarray"},
}
"""For each way of building an object from an archive, the types that it may build."""

TRUSTED = sorted(frozenset().union(*LOADERS.values()))
"""Every type that may be built from an archive, for the reader's own check."""

LARGEST = 1e100
"""Largest number in a linear or tree model: sums of such numbers over any rows are finite."""
