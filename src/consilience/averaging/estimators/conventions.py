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
weights. Learners without weights get copies of rows (:mod:`.proximal_fit`).

Source: Ya Le's Stanford thesis, chapter 1, *A General Algorithm for Distributed Learning*; the
conventions are those of scikit-learn 1.9 and glum 3.4.

Preprocessing is the same everywhere: fitted once on rows that everybody has, then frozen.

A transformer that was fitted again in each round would see the pseudo-rows, and one that was fitted
at each site the site's rows: in both cases the learners of two sites would not speak of the same
columns.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError, ParameterError
from consilience.wire.estimators.types import qualified

# --- How learners weigh rows against their penalty: a table, and what follows for pseudo-rows.

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

    def shares(
        self, rho: float, *, n: float, n_total: float, m: int, rows: int, total: float
    ) -> tuple[float, float, float]:
        """Weights and penalty under which a learner minimises what it is asked for.

        Parameters
        ----------
        rho : float
            Weight of the mean pseudo loss against the mean own loss.
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

        Returns
        -------
        own, pseudo, penalty : float
            Factor of the own weights, weight of one reference row, and factor of the penalty (of
            one over the parameter where it is inverse).
        """
        # Without pseudo-rows there is nothing to weigh against.
        rho = rho if m else 0.0
        per_row = 1.0 / max(m, 1)
        # the rows of the table on top of this module, one after another
        if self.name == "sum":
            return 1.0, rho * n * per_row, n / n_total
        if self.name == "normalised":
            return 1.0, rho * n * per_row, 1.0 / (1.0 + rho)
        if self.name == "rows":
            return rows / n, rho * rows * per_row, 1.0
        scale = total / (n * (1.0 + rho))
        return scale, scale * rho * n * per_row, 1.0


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
    f"sklearn.{module}.{name}{kind}": _TREES
    for module, name in (
        ("tree._classes", "DecisionTree"),
        ("tree._classes", "ExtraTree"),
        ("ensemble._forest", "RandomForest"),
        ("ensemble._forest", "ExtraTrees"),
        ("ensemble._gb", "GradientBoosting"),
        ("ensemble._hist_gradient_boosting.gradient_boosting", "HistGradientBoosting"),
        ("ensemble._bagging", "Bagging"),
        ("ensemble._weight_boosting", "AdaBoost"),
    )
    for kind in ("Regressor", "Classifier")
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
    if name.endswith(("CV", "IC")) or getattr(learner, "alpha_search", False):
        raise ParameterError(
            f"{name} chooses by the rows that it sees, which change with each round: give an "
            "estimator with fixed settings, and a grid of penalties with penalties="
        )
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
    # A type that nobody has looked at: the user's word, and its own parameters.
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


# --- Preprocessing fitted once on rows that everybody has, then frozen

Rows = Any
"""Rows of features: an (n, p) float array, or a sparse matrix of scipy."""


def as_rows(x: Any) -> Rows:
    """Rows as an array or a sparse matrix in row order, without a copy where they are one."""
    from scipy import sparse

    return x.tocsr() if sparse.issparse(x) else np.asarray(x)


def stacked(blocks: list[Rows], *, by_column: bool, reuse: bool) -> Rows:
    """Rows under one another.

    Parameters
    ----------
    blocks : list of (n_i, p) arrays or sparse matrices
    by_column : bool
        Whether the learner goes through columns, which are then laid out one after another.
    reuse : bool
        Write into memory that the next call in this thread overwrites: only for learners that keep
        no rows. Fresh memory costs more than the copy.
    """
    from scipy import sparse

    if any(sparse.issparse(block) for block in blocks):
        return sparse.vstack(blocks, format="csc" if by_column else "csr", dtype=np.float64)
    n, p = sum(len(block) for block in blocks), blocks[0].shape[1]
    flat: NDArray[np.float64] | None = getattr(_memory, "rows", None) if reuse else None
    if flat is None or len(flat) < n * p:
        flat = np.empty(n * p)
        if reuse and n * p <= _KEPT:
            _memory.rows = flat
    rows = flat[: n * p].reshape((n, p), order="F" if by_column else "C")
    at = 0
    for block in blocks:
        for i in range(0, len(block), _PIECE):
            piece = block[i : i + _PIECE]
            rows[at : at + len(piece)] = piece
            at += len(piece)
    return rows


_PIECE = 512
"""Rows that are turned into columns at a time, while they are in the cache."""
_KEPT = 1 << 23
"""Numbers that a thread keeps for its next stack (64 MB); larger stacks are given back."""
_memory = threading.local()


class Frozen:
    """Transformers of an estimator, fitted once on the reference rows.

    Parameters
    ----------
    estimator : estimator
        Unfitted; the steps before the last of a pipeline are meant.
    reference : (m, p) array or sparse matrix, optional
    seed : int
        For the draws of the transformers.

    Attributes
    ----------
    steps : list of (name, fitted transformer)
    reference : rows or None
        Transformed reference rows.

    Raises
    ------
    ParameterError
        There is a transformer that learns from the response, or no reference rows to fit it on.
    DataError
        The reference rows are not a finite table.
    """

    def __init__(self, estimator: Any, reference: Any, seed: int) -> None:
        from scipy import sparse
        from sklearn.base import clone

        self.steps: list[tuple[str, Any]] = []
        rows: Rows = None
        if sparse.issparse(reference):
            rows = reference.tocsr().astype(np.float64)
        elif reference is not None:
            rows = np.ascontiguousarray(reference, dtype=np.float64)
        if rows is not None:
            values = rows.data if sparse.issparse(rows) else rows
            if rows.ndim != 2 or not rows.shape[0] or not np.isfinite(values).all():
                raise DataError(
                    "reference rows must be a table of finite numbers with at least one row"
                )
        for name, step in steps_of(estimator):
            kind = type(step).__name__
            if rows is None:
                raise ParameterError(
                    f"{kind} is fitted on the reference rows, so that it is the same everywhere: "
                    "give reference rows, or leave it out"
                )
            try:
                # Each step on what the steps before it gave, as in a pipeline.
                fitted = settled(clone(step), seed).fit(rows)
                rows = as_rows(fitted.transform(rows))
            except (TypeError, ValueError, AttributeError) as error:
                if isinstance(error, ParameterError):
                    raise
                raise ParameterError(
                    f"{kind} cannot be fitted on the reference rows alone "
                    f"({type(error).__name__}): preprocessing must not need the response, nor "
                    "names of columns"
                ) from None
            # Pipelines in pipelines may repeat names.
            taken = ["learner", *(known for known, _ in self.steps)]
            self.steps.append((f"{name}-{len(self.steps)}" if name in taken else name, fitted))
        self.reference: Rows = rows

    def transform(self, x: Rows) -> Rows:
        """Rows as the learner sees them."""
        for _, step in self.steps:
            x = step.transform(x)
        return as_rows(x) if self.steps else x

    def before(self, learner: Any) -> Any:
        """Fitted learner that predicts from rows as they come."""
        if not self.steps:
            return learner
        from sklearn.pipeline import Pipeline

        return Pipeline([*self.steps, ("learner", learner)])

    def behind(self, fitted: Any) -> Any:
        """Fitted learner itself, of what :meth:`before` gave."""
        return fitted.steps[-1][1] if self.steps and hasattr(fitted, "steps") else fitted
