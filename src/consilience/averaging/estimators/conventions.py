"""How learners weigh rows against their penalty: a table, and what follows for pseudo-rows.

A learner is asked to minimise ``mean own loss + g + rho * mean loss on the pseudo-rows``, where g
is what the penalty of the user's estimator would be on all N rows together. Learners write their
objective in one of four ways, and each needs other weights and another penalty (n is the sum of
the own weights, m the number of reference rows, R all rows that the learner sees):

============  =====================================  ==========  ===============  ==============
``name``      objective                              own weight  pseudo weight    penalty times
============  =====================================  ==========  ===============  ==============
sum           sum of weighted losses + penalty       1           rho n / m        n / N
normalised    the same divided by the weight sum     1           rho n / m        1 / (1 + rho)
rows          the same divided by the row count      R / n       rho R / m        1
trees         no penalty; counts and shares of rows  c           c rho n / m      1
============  =====================================  ==========  ===============  ==============

The weights of trees sum to n + m (that is c), because a share of rows to draw is a share of the
weights. Learners without weights get copies of rows (:mod:`.copies`).

Source: Ya Le's Stanford thesis, chapter 1, *A General Algorithm for Distributed Learning*; the
conventions are those of scikit-learn 1.9 and glum 3.4.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from consilience.exceptions import ParameterError
from consilience.wire.estimators.types import qualified

ConventionName = Literal["sum", "normalised", "rows", "trees"]

NAMES = ("sum", "normalised", "rows", "trees")


@dataclass(frozen=True)
class Convention:
    """How one type of learner weighs rows against its penalty.

    Attributes
    ----------
    name : {"sum", "normalised", "rows", "trees"}
        How the objective is written, see the table of this module.
    penalty : str
        Parameter that sets the penalty; "" where there is none.
    inverse : bool
        The parameter is one over the penalty (``C``).
    weights : bool
        ``fit`` takes ``sample_weight``.
    linear : bool
        Predictions are a linear predictor, or a link of it.
    separable : bool or None
        Whether the objective is a sum over rows plus a penalty, so that one's own predictions as
        pseudo-rows change nothing; None where the probe has to say.
    warm : bool
        A fit can begin at given coefficients.
    """

    name: ConventionName
    penalty: str = ""
    inverse: bool = False
    weights: bool = True
    linear: bool = False
    separable: bool | None = None
    warm: bool = False


_SUM = Convention("sum", linear=True, separable=True)
_SUM_C = replace(_SUM, penalty="C", inverse=True)
_SUM_ALPHA = replace(_SUM, penalty="alpha")
_NORMALISED = Convention("normalised", "alpha", linear=True, separable=True)
_COPIES = replace(_NORMALISED, weights=False)
_WARM = replace(_NORMALISED, warm=True)
_ROWS = Convention("rows", "alpha", linear=True, separable=True)
_TREES = Convention("trees", separable=False)
_OTHER = Convention("sum", separable=False)

_LINEAR_MODEL = "sklearn.linear_model."

CONVENTIONS: dict[str, Convention] = {
    _LINEAR_MODEL + "_base.LinearRegression": _SUM,
    _LINEAR_MODEL + "_ridge.Ridge": _SUM_ALPHA,
    _LINEAR_MODEL + "_coordinate_descent.Lasso": _WARM,
    _LINEAR_MODEL + "_coordinate_descent.ElasticNet": _WARM,
    _LINEAR_MODEL + "_least_angle.LassoLars": _COPIES,
    _LINEAR_MODEL + "_quantile.QuantileRegressor": _NORMALISED,
    _LINEAR_MODEL + "_glm.glm.PoissonRegressor": _WARM,
    _LINEAR_MODEL + "_glm.glm.GammaRegressor": _WARM,
    _LINEAR_MODEL + "_glm.glm.TweedieRegressor": _WARM,
    _LINEAR_MODEL + "_logistic.LogisticRegression": replace(_SUM_C, warm=True),
    _LINEAR_MODEL + "_least_angle.Lars": replace(_SUM, weights=False, separable=None),
    _LINEAR_MODEL + "_omp.OrthogonalMatchingPursuit": replace(_SUM, weights=False, separable=None),
    _LINEAR_MODEL + "_bayes.ARDRegression": replace(_SUM, weights=False, separable=None),
    _LINEAR_MODEL + "_huber.HuberRegressor": replace(_SUM_ALPHA, separable=None),
    _LINEAR_MODEL + "_stochastic_gradient.SGDRegressor": _ROWS,
    _LINEAR_MODEL + "_stochastic_gradient.SGDClassifier": _ROWS,
    _LINEAR_MODEL + "_bayes.BayesianRidge": replace(_SUM, separable=None),
    "sklearn.svm._classes.LinearSVR": _SUM_C,
    "sklearn.svm._classes.SVR": replace(_SUM_C, linear=False),
    "sklearn.kernel_ridge.KernelRidge": replace(_SUM_ALPHA, linear=False),
    "sklearn.neural_network._multilayer_perceptron.MLPRegressor": replace(_OTHER, penalty="alpha"),
    "sklearn.neural_network._multilayer_perceptron.MLPClassifier": replace(_OTHER, penalty="alpha"),
    "sklearn.naive_bayes.GaussianNB": _OTHER,
    "sklearn.discriminant_analysis.LinearDiscriminantAnalysis": replace(_OTHER, weights=False),
    "sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis": replace(_OTHER, weights=False),
    "sklearn.neighbors._regression.KNeighborsRegressor": replace(_OTHER, weights=False),
    "sklearn.neighbors._classification.KNeighborsClassifier": replace(_OTHER, weights=False),
    "sklearn.dummy.DummyRegressor": replace(_OTHER, separable=True),
    "sklearn.dummy.DummyClassifier": replace(_OTHER, separable=True),
    "glum._glm.GeneralizedLinearRegressor": _WARM,
} | {
    f"sklearn.{name}": _TREES
    for name in (
        "tree._classes.DecisionTreeRegressor",
        "tree._classes.DecisionTreeClassifier",
        "tree._classes.ExtraTreeRegressor",
        "tree._classes.ExtraTreeClassifier",
        "ensemble._forest.RandomForestRegressor",
        "ensemble._forest.RandomForestClassifier",
        "ensemble._forest.ExtraTreesRegressor",
        "ensemble._forest.ExtraTreesClassifier",
        "ensemble._gb.GradientBoostingRegressor",
        "ensemble._gb.GradientBoostingClassifier",
        "ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor",
        "ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingClassifier",
        "ensemble._bagging.BaggingRegressor",
        "ensemble._bagging.BaggingClassifier",
        "ensemble._weight_boosting.AdaBoostRegressor",
        "ensemble._weight_boosting.AdaBoostClassifier",
    )
}
"""Conventions by qualified type; each is held by a test against the textbook objective."""


def convention_of(estimator: Any, convention: str = "auto") -> Convention:
    """Find how an estimator weighs rows against its penalty.

    Parameters
    ----------
    estimator : estimator
        Unfitted; of a pipeline the last step is meant.
    convention : {"auto", "sum", "normalised", "rows", "trees"}
        "auto" looks into :data:`CONVENTIONS`; another value overrides it.

    Raises
    ------
    ParameterError
        A type that is not in the table under "auto", or a learner that chooses its penalty inside.
    """
    if convention not in ("auto", *NAMES):
        raise ParameterError.of("convention", f"auto or one of {', '.join(NAMES)}", convention)
    learner = innermost(estimator)
    name = type(learner).__name__
    _check_choice(learner)
    found = CONVENTIONS.get(qualified(learner))
    if found is not None and name.startswith("MLP") and learner.solver != "lbfgs":
        found = replace(found, name="rows")  # its penalty is per mean loss of a batch
    if convention == "auto":
        if found is None:
            raise ParameterError(
                f"it is not known how {name} weighs rows against its penalty: give convention "
                "'sum' (sum of losses), 'normalised' (divided by the sum of weights), 'rows' "
                "(divided by the number of rows) or 'trees' (no penalty)"
            )
        return found
    chosen: ConventionName = convention  # type: ignore[assignment]
    if found is not None:
        return replace(found, name=chosen)
    settings = learner.get_params(deep=False)
    keys = () if chosen == "trees" else ("alpha", "C")
    penalty = next((key for key in keys if key in settings), "")
    weights = "sample_weight" in inspect.signature(learner.fit).parameters
    return Convention(chosen, penalty, inverse=penalty == "C", weights=weights)


def innermost(estimator: Any) -> Any:
    """Learner behind the steps of pipelines.

    Raises
    ------
    ParameterError
        A pipeline without a learner, or a learner behind a transformed response.
    """
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    if hasattr(estimator, "regressor") and hasattr(estimator, "transformer"):
        raise ParameterError(
            "TransformedTargetRegressor would transform each site's response in its own way: give "
            "the regressor inside it, and transform the response beforehand, the same everywhere"
        )
    if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
        raise ParameterError("the estimator must be a scikit-learn estimator, or end with one")
    return estimator


def steps_of(estimator: Any) -> Iterator[tuple[str, Any]]:
    """Transformers before the learner, those of pipelines in pipelines included."""
    while hasattr(estimator, "steps"):
        for name, step in estimator.steps[:-1]:
            if step is not None and step != "passthrough":
                yield name, step
        estimator = estimator.steps[-1][1]


def _check_choice(learner: Any) -> None:
    """Refuse learners that choose their penalty by the rows that they see."""
    name = type(learner).__name__
    if name.endswith(("CV", "IC")) or getattr(learner, "alpha_search", False):
        raise ParameterError(
            f"{name} chooses by the rows that it sees, which change with each round: give an "
            "estimator with fixed settings, and a grid of penalties with penalties="
        )


def settled(estimator: Any, seed: int) -> Any:
    """Set draws, processes and stopping of an unfitted estimator and of its parts.

    Raises
    ------
    ParameterError
        A setting by which the learner judges the rows that it sees: pseudo-rows would be among
        them.
    """
    name = type(estimator).__name__
    changes: dict[str, Any] = {}
    settings = estimator.get_params(deep=True)
    for key, value in settings.items():
        part, _, last = key.rpartition("__")
        stopping = f"{part}__early_stopping" if part else "early_stopping"
        if last in _FIXED:
            changes[key] = seed if last == "random_state" else _FIXED[last]
        elif last == "early_stopping" and value is True:
            raise ParameterError(_JUDGES.format(name, "early_stopping=False"))
        elif last == "early_stopping" and value == "auto":
            changes[key] = False
        elif last == "n_iter_no_change" and value is not None and stopping not in settings:
            raise ParameterError(_JUDGES.format(name, "n_iter_no_change=None"))
        elif last == "scale_predictors" and value:
            raise ParameterError(_JUDGES.format(name, "scale_predictors=False"))
        elif last == "class_weight" and value is not None:
            raise ParameterError(
                "class_weight changes what probabilities mean, so that averaged ones drift: leave "
                "it out, and give the rows weights instead"
            )
    return estimator.set_params(**changes)


_FIXED: dict[str, Any] = {"random_state": 0, "n_jobs": None, "warm_start": False}
_JUDGES = (
    "{} would judge by pseudo-rows among the rows that it sees, differently in each round: set {}"
)


# --------------------------------------------------------------------------- what follows


@dataclass(frozen=True)
class Shares:
    """Weights of rows and change of the penalty for one fit.

    Attributes
    ----------
    own : float
        Factor of the own weights.
    pseudo : float
        Weight of one reference row.
    penalty : float
        Factor of the penalty (of one over the parameter where it is inverse).
    """

    own: float
    pseudo: float
    penalty: float


def shares(
    convention: Convention,
    *,
    n: float,
    n_total: float,
    m: int,
    rows: int,
    total: float,
    rho: float,
) -> Shares:
    """Weights and penalty under which a learner minimises what it is asked for.

    Parameters
    ----------
    convention : Convention
    n : float
        Sum of the own weights.
    n_total : float
        Sum of the weights of all sites.
    m : int
        Reference rows; 0 for a fit without them.
    rows : int
        Rows that the learner sees, pseudo-rows included.
    total : float
        What the weights of trees sum to.
    rho : float
        Weight of the mean pseudo loss against the mean own loss.
    """
    rho = rho if m else 0.0
    per_row = 1.0 / max(m, 1)
    if convention.name == "sum":
        return Shares(1.0, rho * n * per_row, n / n_total)
    if convention.name == "normalised":
        return Shares(1.0, rho * n * per_row, 1.0 / (1.0 + rho))
    if convention.name == "rows":
        return Shares(rows / n, rho * rows * per_row, 1.0)
    scale = total / (n * (1.0 + rho))
    return Shares(scale, scale * rho * n * per_row, 1.0)
