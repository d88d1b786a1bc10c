"""Names of types: which carry training rows, and which may cross the wire inside an archive.

Tree form: splits and leaf values of trees as flat arrays, and nothing else of them.

Splits of all trees stand one after the other, numbered from 0 within their tree. Entry ``[s, 0]``
of ``children`` is where a row goes whose feature is at most the threshold: another split of the
same tree (a number above s), or, as ``-1 - k``, leaf k of that tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LINKS = ("identity", "mean", "logistic", "double-logistic", "softmax")
MAX_SPLITS = 5_000_000
MAX_TREES = 100_000


def encode_trees(fitted: Any) -> Portable | None:
    """Arrays of a fitted tree, forest or boosting; ``None`` where it is none, or of another kind.

    Returns
    -------
    dict or None
        ``columns`` p, ``splits`` (T,) number of splits of each tree, ``feature`` and ``threshold``
        (m,), ``children`` (m, 2), ``value`` (leaves, w), ``start`` (q,), ``link``. With w = q every
        tree adds to every output, with w = 1 tree t adds to output ``t mod q``.
    """
    name = qualified(fitted)
    if name in SINGLE_TREES | FORESTS:
        trees = [fitted] if name in SINGLE_TREES else list(fitted.estimators_)
        if fitted.n_outputs_ != 1:
            return None
        arrays = _flat([tree.tree_ for tree in trees], 1.0)
        start, link = np.zeros(arrays["value"].shape[1]), "mean"
    elif name in BOOSTING:
        first = _first_guess(fitted)
        if first is None:
            return None
        arrays = _flat([tree.tree_ for tree in fitted.estimators_.ravel()], fitted.learning_rate)
        start, link = first, "identity"
        if name.endswith("Classifier"):
            doubled = "double-logistic" if fitted.loss == "exponential" else "logistic"
            link = doubled if len(start) == 1 else "softmax"
    else:
        return None
    portable = {"form": "trees", "columns": int(fitted.n_features_in_), **arrays}
    portable |= {"start": start, "link": link}
    # Trees grown with gaps among the predictors have infinite thresholds.
    return portable if np.isfinite(arrays["threshold"]).all() else None


def _first_guess(fitted: Any) -> NDArray[np.float64] | None:
    """Constant that boosting starts from, ``None`` where it is a model of the predictors."""
    init = fitted.init_
    if isinstance(init, str) and init == "zero":
        return np.zeros(fitted.n_trees_per_iteration_)
    prior = qualified(init) == "sklearn.dummy.DummyClassifier" and init.strategy == "prior"
    constant = qualified(init) == "sklearn.dummy.DummyRegressor"
    if not (prior or constant):
        return None
    # A constant model says the same at every row: one row of zeros is enough to read it off.
    nothing = np.zeros((1, fitted.n_features_in_), dtype=np.float32)
    return np.array(fitted._raw_predict_init(nothing)[0], dtype=np.float64)


def _flat(trees: list[Any], factor: float) -> Portable:
    parts = [_tree(tree) for tree in trees]
    features, thresholds, children, values = (
        np.concatenate([part[i] for part in parts]) for i in range(4)
    )
    splits = np.array([len(part[0]) for part in parts], dtype=np.int32)
    # Half the bytes where numbers are small; forests are the largest models that travel.
    small = np.int16 if splits.max(initial=0) < 2**15 - 1 else np.int32
    narrow = np.int16 if features.max(initial=0) < 2**15 else np.int32
    return {
        "splits": splits,
        "feature": features.astype(narrow),
        "threshold": thresholds.astype(np.float64),
        "children": children.astype(small),
        "value": factor * values.astype(np.float64),
    }


def _tree(tree: Any) -> tuple[NDArray[Any], ...]:
    """Splits and leaves of one scikit-learn tree, renumbered in their order."""
    left, right = tree.children_left, tree.children_right
    is_leaf = left < 0
    number = np.where(is_leaf, -np.cumsum(is_leaf), np.cumsum(~is_leaf) - 1)
    inner = ~is_leaf
    children = np.stack([number[left[inner]], number[right[inner]]], axis=1)
    return tree.feature[inner], tree.threshold[inner], children, tree.value[is_leaf, 0, :]


def trees_fault(portable: Portable, n_features: int) -> str | None:
    """What is wrong with the arrays of a tree form, in one phrase (see `check`).

    A form without a fault is a set of binary trees: evaluating it ends, and reads nothing outside
    its arrays.
    """
    columns, link = portable.get("columns"), portable.get("link")
    if type(columns) is not int or not isinstance(link, str) or link not in LINKS:
        return "its arrays are not those of trees"
    if columns != n_features:
        return f"it expects {columns} columns and the study has {n_features}"
    kinds = {"splits": ("i", 1), "feature": ("i", 1), "threshold": ("f", 1)}
    kinds |= {"children": ("i", 2), "value": ("f", 2), "start": ("f", 1)}
    for key, (kind, ndim) in kinds.items():
        part = portable.get(key)
        if not isinstance(part, np.ndarray) or part.dtype.kind != kind or part.ndim != ndim:
            return "its arrays are not those of trees"
    for key in ("threshold", "value", "start"):
        if portable[key].dtype != np.float64 or not (np.abs(portable[key]) <= LARGEST).all():
            return "its thresholds or values are not finite, or beyond all measure"
    return _structure_fault(portable, n_features) or _output_fault(portable)


def _structure_fault(portable: Portable, n_features: int) -> str | None:
    splits, feature = portable["splits"].astype(np.int64), portable["feature"]
    children = portable["children"].astype(np.int64)
    m = len(feature)
    if len(splits) > MAX_TREES or m > MAX_SPLITS:
        return "it has too many trees or splits"
    if not len(splits) or (splits < 0).any() or (splits > m).any() or splits.sum() != m:
        return "its trees do not add up"
    if len(portable["threshold"]) != m or children.shape != (m, 2):
        return "its trees do not add up"
    if len(portable["value"]) != m + len(splits):
        return "its leaves do not add up"
    if m and (feature.min() < 0 or feature.max() >= n_features):
        return "a split uses a column that there is not"
    first = np.concatenate([[0], np.cumsum(splits)[:-1]])
    base, size = np.repeat(first, splits)[:, None], np.repeat(splits, splits)[:, None]
    # Children have higher numbers than their parent, so evaluation goes on and cannot circle.
    own = np.arange(m)[:, None] - base
    is_leaf = children < 0
    inside = np.where(is_leaf, -1 - children <= size, (children > own) & (children < size))
    if not inside.all():
        return "a split leads back or out of its tree"
    # Every split but the roots, and every leaf, is reached from exactly one split.
    reached = np.bincount((base + children)[~is_leaf], minlength=m)
    roots = first[splits > 0]
    leaf_base = base + np.repeat(np.arange(len(splits)), splits)[:, None]
    leaves = np.bincount((leaf_base - 1 - children)[is_leaf], minlength=m + len(splits))
    lonely = first[splits == 0] + np.flatnonzero(splits == 0)
    reached[roots] += 1
    leaves[lonely] += 1
    if (reached != 1).any() or (leaves != 1).any():
        return "its splits do not form trees"
    return None


def _output_fault(portable: Portable) -> str | None:
    width, q, link = portable["value"].shape[1], len(portable["start"]), portable["link"]
    if q < 1 or width not in (1, q) or len(portable["splits"]) % (q if width == 1 else 1):
        return "its outputs do not add up"
    if link.endswith("logistic") and q != 1:
        return "its outputs do not fit its link"
    return None


def trees_columns(portable: Portable) -> int:
    """Columns of the predictions of a checked tree form."""
    return 2 if portable["link"].endswith("logistic") else len(portable["start"])


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
