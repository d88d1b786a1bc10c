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
    # By the beginning of the name: a new neighbour method of scikit-learn is off from its first
    # day.
    return type_name.startswith(MEMORISING) and type_name not in _HARMLESS


def qualified(thing: object) -> str:
    """Qualified name of the type of an object."""
    # By the type, not by what an object says of itself.
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def _types(table: str) -> frozenset[str]:
    """Qualified names of a table: a module, a colon and its types, on one or several lines."""
    # A module stands once, its types after it: one line to read for each place that code comes
    # from.
    found, module = [], ""
    for word in table.split():
        if word.endswith(":"):
            module = word[:-1]
        else:
            found.append(f"{module}.{word}")
    return frozenset(found)


LINEAR = _types("""
sklearn.linear_model._base: LinearRegression
sklearn.linear_model._bayes: ARDRegression BayesianRidge
sklearn.linear_model._coordinate_descent: ElasticNet ElasticNetCV Lasso LassoCV
sklearn.linear_model._huber: HuberRegressor
sklearn.linear_model._least_angle: Lars LarsCV LassoLars LassoLarsCV LassoLarsIC
sklearn.linear_model._omp: OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV
sklearn.linear_model._passive_aggressive: PassiveAggressiveRegressor
sklearn.linear_model._quantile: QuantileRegressor
sklearn.linear_model._ridge: Ridge RidgeCV
sklearn.linear_model._stochastic_gradient: SGDRegressor
sklearn.linear_model._theil_sen: TheilSenRegressor
sklearn.svm._classes: LinearSVR
""")
"""Regressors whose prediction is ``x @ coef_ + intercept_`` and nothing else."""

LOGISTIC = _types("sklearn.linear_model._logistic: LogisticRegression LogisticRegressionCV")
"""Classifiers whose probabilities are the logistic function or softmax of linear predictors."""

SINGLE_TREES = _types("""
sklearn.tree._classes: DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier
    ExtraTreeRegressor
""")
FORESTS = _types("""
sklearn.ensemble._forest: ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier
    RandomForestRegressor
""")
BOOSTING = _types("sklearn.ensemble._gb: GradientBoostingRegressor GradientBoostingClassifier")

_LOSSES = _types("""
sklearn._loss.loss: AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss
    HalfMultinomialLoss HalfPoissonLoss HalfSquaredError HalfTweedieLoss HalfTweedieLossIdentity
    HuberLoss PinballLoss
""")

OBJECTS = (
    LINEAR
    | LOGISTIC
    | SINGLE_TREES
    | FORESTS
    | BOOSTING
    | _LOSSES
    | _types("""
scipy.interpolate._bsplines: BSpline
sklearn._loss.link: HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit
sklearn.calibration: CalibratedClassifierCV _CalibratedClassifier _SigmoidCalibration
sklearn.compose._column_transformer: ColumnTransformer
sklearn.compose._target: TransformedTargetRegressor
sklearn.decomposition._pca: PCA
sklearn.discriminant_analysis: LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis
sklearn.dummy: DummyClassifier DummyRegressor
sklearn.ensemble._bagging: BaggingClassifier BaggingRegressor
sklearn.ensemble._hist_gradient_boosting.binning: _BinMapper
sklearn.ensemble._hist_gradient_boosting.gradient_boosting: HistGradientBoostingClassifier
    HistGradientBoostingRegressor
sklearn.ensemble._hist_gradient_boosting.predictor: TreePredictor
sklearn.ensemble._stacking: StackingClassifier StackingRegressor
sklearn.ensemble._voting: VotingClassifier VotingRegressor
sklearn.ensemble._weight_boosting: AdaBoostClassifier AdaBoostRegressor
sklearn.feature_selection._variance_threshold: VarianceThreshold
sklearn.gaussian_process._gpc: GaussianProcessClassifier _BinaryGaussianProcessClassifierLaplace
sklearn.gaussian_process._gpr: GaussianProcessRegressor
sklearn.gaussian_process.kernels: ConstantKernel DotProduct ExpSineSquared Exponentiation Matern
    Product RBF RationalQuadratic Sum WhiteKernel
sklearn.impute._base: SimpleImputer
sklearn.kernel_approximation: Nystroem RBFSampler
sklearn.kernel_ridge: KernelRidge
sklearn.linear_model._glm.glm: GammaRegressor PoissonRegressor TweedieRegressor
sklearn.linear_model._ransac: RANSACRegressor
sklearn.linear_model._stochastic_gradient: SGDClassifier
sklearn.model_selection._search: GridSearchCV
sklearn.multiclass: OneVsOneClassifier OneVsRestClassifier
sklearn.naive_bayes: GaussianNB
sklearn.neighbors._classification: KNeighborsClassifier
sklearn.neighbors._regression: KNeighborsRegressor
sklearn.neural_network._multilayer_perceptron: MLPClassifier MLPRegressor
sklearn.pipeline: FeatureUnion Pipeline
sklearn.preprocessing._data: MaxAbsScaler MinMaxScaler PowerTransformer QuantileTransformer
    RobustScaler StandardScaler
sklearn.preprocessing._discretization: KBinsDiscretizer
sklearn.preprocessing._encoders: OneHotEncoder
sklearn.preprocessing._function_transformer: FunctionTransformer
sklearn.preprocessing._label: LabelBinarizer LabelEncoder
sklearn.preprocessing._polynomial: PolynomialFeatures SplineTransformer
sklearn.svm._classes: LinearSVC SVC SVR
""")
)
"""Objects of scikit-learn (and what they hold) that may stand in an archive."""

# No dtype of objects: such an array could hold anything.
_NUMBERS = _types("numpy: bool float32 float64 int8 int16 int32 int64 uint8 uint32")
_PLAIN = _types("builtins: bool float int str")

LOADERS: dict[str, frozenset[str]] = {
    "ObjectNode": OBJECTS,
    "TreeNode": frozenset(("sklearn.tree._tree.Tree",)),
    "LossNode": frozenset(f"sklearn._loss._loss.Cy{name.rpartition('.')[2]}" for name in _LOSSES),
    "DictNode": frozenset(("builtins.dict", "sklearn.utils._bunch.Bunch")),
    "ListNode": frozenset(("builtins.list",)),
    "TupleNode": frozenset(("builtins.tuple",)),
    "SliceNode": frozenset(("builtins.slice",)),
    "JsonNode": frozenset(("builtins.str",)),
    "NdArrayNode": _NUMBERS | _types("numpy: ndarray bool_ uint64"),
    "DTypeNode": frozenset(("numpy.dtype",)),
    "TypeNode": _PLAIN | _NUMBERS,
    "FunctionNode": _types("""
numpy: cbrt exp exp2 expm1 log log10 log1p log2 power sqrt square
scipy._lib.array_api_compat.numpy._aliases: asarray
"""),
}
"""For each way of building an object from an archive, the types that it may build."""

TRUSTED = sorted(frozenset().union(*LOADERS.values()))
"""Every type that may be built from an archive, for the reader's own check."""

LARGEST = 1e100
"""Largest number in a linear or tree model: sums of such numbers over any rows are finite."""
