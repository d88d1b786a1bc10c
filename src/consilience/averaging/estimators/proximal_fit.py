"""Fits of a black-box learner on own rows and on pseudo-rows, the averaged predictions of all.

Source: Ya Le's Stanford thesis, chapter 1 (with T. Hastie and E. Dobriban), *A General Algorithm
for Distributed Learning*; weights and penalties as in :mod:`.conventions`.

For learners whose ``fit`` takes no ``sample_weight``, copies of rows stand for weights. Every own
row of positive weight stays in every fit, and own rows weigh the same against each other in all of
them, whatever the pseudo-rows weigh: the copies of own rows follow from the own weights alone,
times a whole number. Were they to change with rho, two answers could differ by one row, and rounds
would fit other rows each time. The source weighs pseudo-rows by rho in refits; copies in place of
weights are this package's.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.averaging.estimators.conventions import (
    Convention,
    Frozen,
    Rows,
    as_rows,
    convention_of,
    innermost,
    settled,
    stacked,
)
from consilience.exceptions import DataError, ParameterError

# --- Copies of rows that stand for weights, for learners whose ``fit`` takes no ``sample_weight``.

MOST_COPIES = 128
"""Copies at most, per row that goes in. Rounds with rho ``k**0.9`` reach 64 at k = 100."""

_FINE_COPIES = 8
"""As many per row may be spent on whole numbers that lie nearer to the weights."""
_FINE_OWN = 2
"""The same for the own rows alone: every copy of theirs asks for rho copies of pseudo-rows."""

_EXACT = 1e-9


def copies_of(own: FloatArray, pseudo: FloatArray) -> tuple[IntArray, IntArray, float]:
    """Copies of rows that stand for weights, for learners that take none.

    Parameters
    ----------
    own : (n,) array
        Weights of the own rows.
    pseudo : (k,) array
        Weights of the pseudo-rows; may be empty.

    Returns
    -------
    own_copies : (n,) int array
        At least 1 where the weight is positive, 0 elsewhere.
    pseudo_copies : (k,) int array
        0 only where the weight comes to less than half a copy. Both are proportional to the
        weights where few copies allow that exactly, and otherwise as near as they come.
    per_weight : float
        Copies that stand for a weight of one; the smallest positive own weight has 1 or more.

    Raises
    ------
    DataError
        No own row of positive weight, or more than :data:`MOST_COPIES` copies for each row that
        goes in, so that memory stays a bounded multiple of the rows'.
    """
    positive = own[own > 0]
    if not len(positive):
        raise DataError("a fit needs rows of positive weight: check the weights")
    unit, rows = float(positive.min()), len(own) + len(pseudo)
    if not own.sum() <= MOST_COPIES * len(own) * unit:
        raise DataError(
            "too many copies of rows would stand for the weights, which differ too much: give "
            "weights that are nearer to each other, or a learner that takes sample_weight"
        )
    # The smallest positive weight stands for one copy, or a few.
    fine, own_copies = _nearest(own / unit, _FINE_OWN * len(own))
    per_weight = fine / unit
    wanted = per_weight * pseudo
    if not own_copies.sum() + wanted.sum() <= MOST_COPIES * rows:
        sentence = (
            "too many copies of rows would stand for the weight of the reference rows: give a "
            "smaller rho or fewer rounds, more reference rows, or a learner that takes "
            "sample_weight"
        )
        # It tells settings and the number of rows at most, which the coordinator knows.
        raise DataError.shared(sentence)
    times, pseudo_copies = _nearest(wanted, _FINE_COPIES * rows, beside=int(own_copies.sum()))
    return times * own_copies, pseudo_copies, times * per_weight


def _nearest(wanted: FloatArray, most: float, beside: int = 0) -> tuple[int, IntArray]:
    """Multiple of numbers that lies nearest to whole ones: 1, or more if `most` allows."""
    total = float(wanted.sum()) + beside
    best = 1
    counts, least = _whole(wanted)
    for times in range(2, _FINE_COPIES + 1):
        if least < _EXACT or times * total > most:
            break
        found, fault = _whole(times * wanted)
        if fault < least - _EXACT:
            best, counts, least = times, found, fault
    return best, counts


def _whole(wanted: FloatArray) -> tuple[IntArray, float]:
    """Whole numbers with the same running totals, and the share of weight that is misplaced."""
    # Whole parts are set aside, so that no sum of parts can round a number of 1 or more to 0.
    whole = np.floor(wanted + _EXACT)
    parts = np.cumsum(np.maximum(wanted - whole, 0.0))
    counts = whole + np.diff(np.floor(parts + 0.5), prepend=0.0)
    counts[wanted >= 0.5] = np.maximum(counts[wanted >= 0.5], 1.0)
    total = float(wanted.sum())
    fault = float(np.abs(counts - wanted).sum() / total) if total > 0 else 0.0
    return counts.astype(np.int64), fault


# --- Fits of a black-box learner on own rows and on pseudo-rows, the averaged predictions of all.

Start = Mapping[str, FloatArray]
"""Where a warm start begins: ``coef`` and ``intercept``, as the learner holds them."""

LARGEST_CHANGE = 1e-2
NOISE_FACTOR, LARGEST_NOISE = 20.0, 2e-2
"""A forest differs by more than this with the order of its rows; that must not excuse it."""

_DEFAULT_TOLERANCE = 1e-4
"""Of solvers whose tolerance is not given."""
_SMALLEST_TOLERANCE = 1e-10

_OTHER_SOLVERS = ("liblinear", "sag", "saga", "trust-constr")

_LABEL_ROWS = 20
"""Predictions at fewer rows may all be certain by chance."""

_BY_COLUMN = ("Lasso", "ElasticNet")


def separable(change: float, permuted: float) -> bool:
    """Whether a probe speaks for a learner that is a sum of losses plus a penalty.

    Parameters
    ----------
    change : float
        Relative change of the predictions under a refit with one's own predictions.
    permuted : float
        The same under a refit with permuted rows: what the learner's tolerance leaves open.
    """
    return change <= max(LARGEST_CHANGE, min(NOISE_FACTOR * permuted, LARGEST_NOISE))


class Learner:
    """A black-box estimator that is fitted on own rows and averaged predictions of all sites.

    Parameters
    ----------
    estimator : estimator
        Unfitted, scikit-learn interface; it aims at ``estimator.fit`` of all rows together, so a
        penalty means what it would mean there.
    task : {"regression", "classification"}
    n_levels : int
        Levels of the response in classification, where it is the position of a level.
    reference : (m, p) array or sparse matrix, optional
        Reference rows; without them only plain fits are possible, and no preprocessing.
    convention : {"auto", "sum", "normalised", "rows", "trees"}
        How the learner weighs rows against its penalty, see :mod:`.conventions`.
    n_total : float, optional
        Sum of the weights of all sites; a fit's own sum where it is not given.
    seed : int
        For the draws of the estimator.

    Attributes
    ----------
    convention : Convention
    n_outputs : int
        Columns of predictions: 1, or `n_levels`.
    penalty_name : str
    is_linear : bool

    Raises
    ------
    ParameterError
        The estimator, or a setting of it, cannot be used: the sentence says what to do.
    DataError
        The reference rows are not a finite table.

    Notes
    -----
    Transformers of a pipeline are fitted once, on the reference rows, which all sites have, and
    never again: a site's preprocessing does not depend on its rows. A learner is not changed by
    its fits, so threads may share one.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        task: Literal["regression", "classification"],
        n_levels: int = 1,
        reference: Any = None,
        convention: str = "auto",
        n_total: float | None = None,
        seed: int = 0,
    ) -> None:
        from sklearn.base import clone, is_classifier, is_regressor

        learner = innermost(estimator)
        self.name = type(learner).__name__
        if not (is_classifier if task == "classification" else is_regressor)(learner):
            raise ParameterError(f"{self.name} is not for {task}: give an estimator that is")
        if task == "classification" and not hasattr(learner, "predict_proba"):
            raise ParameterError(
                f"{self.name} returns labels, not probabilities: take a classifier with "
                "predict_proba, such as LogisticRegression"
            )
        self.convention: Convention = convention_of(estimator, convention)
        self.task = task
        self.n_outputs = n_levels if task == "classification" else 1
        self.penalty_name = self.convention.penalty
        self.is_linear = self.convention.linear
        self.n_total = n_total
        if task == "classification" and n_levels < 2:
            raise ParameterError.of("n_levels", "2 or more in classification", n_levels)
        self._take(settled(clone(learner), seed))
        self._penalty_value()
        self._frozen = Frozen(estimator, reference, seed)
        settings = self._parameters
        rows = self._frozen.reference
        if settings.get("gamma") == "scale" and rows is not None:
            # What it is on the reference rows: then it is so in every fit.
            squares = rows.multiply(rows) if hasattr(rows, "tocsr") else rows * rows
            variance = float(squares.mean()) - float(rows.mean()) ** 2
            gamma = 1.0 / (rows.shape[1] * variance) if variance > 0 else 1.0
            self._take(self._cloned({"gamma": gamma}))
        solver = settings.get("solver")
        # The step of these solvers is for weights of at most one: with larger ones they diverge.
        self._largest_weight_one = solver in ("sag", "saga") and self.convention.name == "sum"
        # By these settings solvers judge the mean loss of all rows; others do not.
        judging = self.convention.warm and solver not in _OTHER_SOLVERS
        names = [name for name in ("tol", "gradient_tol") if judging and name in settings]
        self._tolerance = names[0] if names else ""
        home = type(learner).__module__.split(".")[:2]
        self._in_place = "copy_X" in settings and home[0] == "sklearn"
        self._forgets = home == ["sklearn", "linear_model"] or home[0] == "glum"

    def with_penalty(self, value: float) -> Learner:
        """Return the same learner with another penalty, in the units of its parameter."""
        if not self.penalty_name:
            raise ParameterError(f"{self.name} has no penalty to choose: leave penalties= out")
        other = object.__new__(Learner)
        other.__dict__.update(self.__dict__)
        other._take(self._cloned({self.penalty_name: float(value)}))
        return other

    def _take(self, learner: Any) -> None:
        """Keep the unfitted learner, and what is asked of it in every fit."""
        self._learner = learner
        self._parameters = learner.get_params(deep=False)

    def _cloned(self, settings: Mapping[str, Any]) -> Any:
        parameters = self._parameters
        if any(hasattr(value, "get_params") for value in parameters.values()):
            from sklearn.base import clone

            return clone(self._learner).set_params(**settings)
        # A clone looks at signatures and parameters again, each time.
        return type(self._learner)(**{**parameters, **settings})

    # ----------------------------------------------------------------------- fit

    def fit(
        self,
        x: Any,
        y: NDArray[Any],
        *,
        weight: FloatArray | None = None,
        target: FloatArray | None = None,
        rho: float = 0.0,
        start: Start | None = None,
    ) -> Any:
        """Minimise mean own loss + penalty + `rho` times mean loss on the pseudo-rows.

        Parameters
        ----------
        x : (n, p) array or sparse matrix
        y : (n,) array
            Response, or positions of levels.
        weight : (n,) array, optional
            Weights of the own rows; their sum stands for n, their weighted mean for the mean.
        target : (m, q) array, optional
            Averaged predictions at the reference rows; None for a fit of the own rows alone.
        rho : float
        start : mapping, optional
            Coefficients to begin at (see :meth:`start_of`); ignored where the learner cannot.

        Returns
        -------
        estimator
            Fitted; it predicts from columns as in `x`.

        Raises
        ------
        DataError
            Weights that are negative or all zero, or averaged predictions of the wrong shape.
        """
        rows = self._frozen.transform(as_rows(x))
        response = np.asarray(y, dtype=np.int64 if self.task == "classification" else np.float64)
        n_rows = rows.shape[0]
        own = None if weight is None else np.asarray(weight, dtype=np.float64)
        if own is not None:
            if own.shape != (n_rows,) or not np.isfinite(own).all() or (own < 0).any():
                raise DataError("weights must be one number for each row, not negative")
            if not own.any():
                raise DataError("a fit needs rows of positive weight: check the weights")
        n = float(n_rows) if own is None else float(own.sum())
        blocks, responses, masses = self._pseudo(target)
        if self.task == "classification":
            seen = response if own is None else response[own > 0]
            if len(seen) and all((part == seen[0]).all() for part in (seen, *responses)):
                from sklearn.dummy import DummyClassifier

                # A site that sees one level only: any row of positive weight says it.
                at = [0] if own is None else np.flatnonzero(own)[:1]
                alone = DummyClassifier(strategy="prior").fit(rows[at], response[at])
                return self._frozen.before(alone)
        # Weights and penalty follow from n, N, m and rho by the learner's convention.
        m = 0 if target is None else len(target)
        rows_seen, total = n_rows + sum(map(len, masses)), n_rows + m
        own_factor, per_row, factor = self.convention.shares(
            rho, n=n, n_total=self.n_total or n, m=m, rows=rows_seen, total=total
        )
        if own is None and (target is not None or not self.convention.weights):
            own = np.ones(n_rows)
        pseudo = np.concatenate([per_row * mass for mass in masses]) if masses else np.empty(0)
        response = np.concatenate([response, *responses]) if responses else response
        if not self.convention.weights and own is not None:
            return self._copied(rows, blocks, response, own, pseudo, n)
        # mean own loss + penalty + rho mean pseudo loss, in the learner's own convention
        weights = None if own is None else np.concatenate([own_factor * own, pseudo])
        if weights is not None and self._largest_weight_one:
            factor, weights = factor / weights.max(), weights / weights.max()
        learner = self._unfitted(factor, rho if blocks else 0.0, fresh=bool(blocks))
        if blocks:
            rows = stacked([rows, *blocks], by_column=self.name in _BY_COLUMN, reuse=self._forgets)
            self._begin(learner, start, rows.shape[1], response)
        return self._fitted(learner, rows, response, weights)

    def _pseudo(
        self, target: FloatArray | None
    ) -> tuple[list[Rows], list[NDArray[Any]], list[FloatArray]]:
        """Reference rows, their responses and relative weights: once for each level."""
        if target is None:
            return [], [], []
        reference = self._frozen.reference
        if reference is None:
            raise ParameterError("a refit needs reference rows: give reference=")
        m = reference.shape[0]
        found = np.asarray(target, dtype=np.float64)
        if found.shape != (m, self.n_outputs) or not np.isfinite(found).all():
            raise DataError(
                f"averaged predictions must be finite numbers of shape {(m, self.n_outputs)}"
            )
        if self.task == "regression":
            return [reference], [found[:, 0]], [np.ones(m)]
        if found.min() < -1e-9:
            raise DataError("averaged predictions of levels must be probabilities")
        found = np.maximum(found, 0.0)
        # A level that nobody gives a chance is left to the sites that see it.
        levels = [level for level in range(self.n_outputs) if found[:, level].any()]
        return (
            [reference] * len(levels),
            [np.full(m, level) for level in levels],
            [found[:, level] for level in levels],
        )

    def _copied(
        self,
        rows: Rows,
        blocks: list[Rows],
        response: NDArray[Any],
        own: FloatArray,
        pseudo: FloatArray,
        n: float,
    ) -> Any:
        """Fit on copies of rows instead of weights."""
        own_copies, pseudo_copies, per_weight = copies_of(own, pseudo)
        ratio = float(pseudo_copies.sum() / own_copies.sum())
        # copies count as rows: their number stands for the sum of weights
        copied_n = per_weight * n
        if self.convention.name == "sum":
            factor = copied_n / (self.n_total or n)
        else:
            factor = 1.0 / (1.0 + ratio)
        counts = np.concatenate([own_copies, pseudo_copies])
        at = np.repeat(np.arange(len(counts)), counts)
        if blocks:
            rows = stacked([rows, *blocks], by_column=False, reuse=False)
        if blocks or (counts != 1).any():
            rows, response = rows[at], response[at]
        learner = self._unfitted(factor, 0.0, fresh=bool(blocks))
        return self._fitted(learner, rows, response, None)

    def _unfitted(self, factor: float, rho: float, *, fresh: bool) -> Any:
        """A learner for one fit: its penalty, its tolerance, whether it may overwrite the rows.

        A solver stops by the mean loss of all rows, of which the own rows are one part in
        ``1 + rho``. As it is, a fit that begins at the last one would come to rest early: the
        steps from round to round grow smaller as rho grows.
        """
        settings: dict[str, Any] = {"copy_X": not fresh} if self._in_place else {}
        value = self._penalty_value()
        if value is not None:
            changed = value / factor if self.convention.inverse else value * factor
            settings[self.penalty_name] = changed
        if self._tolerance:
            given = self._parameters[self._tolerance]
            own = _DEFAULT_TOLERANCE if given is None else float(given)
            settings[self._tolerance] = max(own / (1.0 + rho), min(own, _SMALLEST_TOLERANCE))
        return self._cloned(settings)

    def _penalty_value(self) -> float | None:
        name = self.penalty_name
        value = getattr(self._learner, name) if name else None
        if value is not None and (not isinstance(value, Real) or isinstance(value, bool)):
            raise ParameterError.of(f"{name} of {self.name}", "one number", type(value).__name__)
        return None if value is None else float(value)

    def _begin(self, learner: Any, start: Start | None, p: int, response: NDArray[Any]) -> None:
        """Let a fit begin at given coefficients, where they fit."""
        if start is None or not self.convention.warm:
            return
        shape: tuple[int, ...] = (p,)
        if self.task == "classification":
            seen = np.bincount(response, minlength=self.n_outputs) > 0
            shape = (self.n_outputs if self.n_outputs > 2 else 1, p)
            if not seen.all():
                return
        coef = np.array(start["coef"], dtype=np.float64)
        if coef.shape == shape:
            learner.warm_start = True
            learner.coef_ = coef
            learner.intercept_ = np.array(start["intercept"], dtype=np.float64)

    def _fitted(
        self, learner: Any, rows: Rows, response: NDArray[Any], weights: FloatArray | None
    ) -> Any:
        if weights is None:
            learner.fit(rows, response)
        else:
            learner.fit(rows, response, sample_weight=weights)
        # The result carries the user's settings, not those of one fit.
        if self._in_place:
            learner.copy_X = True
        if self.convention.warm:
            learner.warm_start = False
        if self._tolerance:
            setattr(learner, self._tolerance, self._parameters[self._tolerance])
        return self._frozen.before(learner)

    # ----------------------------------------------------------------------- after a fit

    def predict(self, fitted: Any, x: Any) -> FloatArray:
        """Predictions of a fit, (n, q): the response, or probabilities in the order of levels.

        Raises
        ------
        DataError
            They are not finite, or not of that shape.
        ParameterError
            A classifier that returns labels: at 20 rows or more, only 0 and 1.
        """
        n_rows = as_rows(x).shape[0]
        if self.task == "regression":
            found = np.asarray(fitted.predict(x), dtype=np.float64)
            found = found[:, None] if found.ndim == 1 else found
        else:
            # A site may not have seen all levels: the others have probability 0.
            raw = np.asarray(fitted.predict_proba(x), dtype=np.float64)
            found = np.zeros((len(raw), self.n_outputs))
            found[:, np.asarray(fitted.classes_, dtype=np.int64)] = raw
        if found.shape != (n_rows, self.n_outputs):
            raise DataError(f"{self.name} does not give one prediction for each row")
        if not np.isfinite(found).all():
            raise DataError(
                f"{self.name} predicts values that are not finite: check its settings, and scale "
                "the columns"
            )
        judged = self.task == "classification" and not self.is_linear and n_rows >= _LABEL_ROWS
        certain = ((found == 0.0) | (found == 1.0)).all()
        # Certain of more than one level: one level may be all there is.
        if judged and certain and found.any(axis=0).sum() > 1:
            raise ParameterError(
                f"{self.name} returns labels, not probabilities: averaging needs probabilities, so "
                "give its leaves or neighbourhoods more rows, or take another classifier"
            )
        return found

    def at_reference(self, fitted: Any) -> FloatArray:
        """Predictions of a fit at the reference rows, (m, q), without transforming them again."""
        return self.predict(self._frozen.behind(fitted), self._frozen.reference)

    def start_of(self, fitted: Any) -> Start | None:
        """Coefficients at which a later fit can begin; None where the learner cannot."""
        inner = self._frozen.behind(fitted)
        if not self.convention.warm or not hasattr(inner, "coef_"):
            return None
        return {"coef": np.array(inner.coef_), "intercept": np.array(inner.intercept_)}

    def probe(
        self,
        x: Any,
        y: NDArray[Any],
        *,
        weight: FloatArray | None = None,
        rho: float = 10.0,
        rng: np.random.Generator,
    ) -> tuple[float, float]:
        """How much one's own predictions as pseudo-rows change a fit.

        Every fit begins from nothing, with the learner's own tolerance.

        Parameters
        ----------
        x, y, weight
            As in :meth:`fit`.
        rho : float
        rng : numpy.random.Generator
            For the other order.

        Returns
        -------
        change : float
            Change of the predictions at the reference rows, and half-way between pairs of them,
            relative to their spread: the larger one.
        permuted : float
            The same under a fit of the own rows in another order.
        """
        rows, y = as_rows(x), np.asarray(y)
        order = rng.permutation(rows.shape[0])
        one = self.fit(rows, y, weight=weight)
        other = None if weight is None else np.asarray(weight)[order]
        again = self.fit(rows, y, weight=weight, target=self.at_reference(one), rho=rho)
        shuffled = self.fit(rows[order], y[order], weight=other)
        # A learner that follows every row agrees with its predictions where they were its rows:
        # it shows between them.
        reference = self._frozen.reference
        between = 0.5 * (reference + reference[rng.permutation(reference.shape[0])])
        changes = [0.0, 0.0]
        for points in (reference, between):
            base, *found = (
                self.predict(self._frozen.behind(fitted), points)
                for fitted in (one, again, shuffled)
            )
            size = float(np.linalg.norm(base))
            spread = float(np.linalg.norm(base - base.mean(axis=0)))
            # relative to their spread; to their size where they are all the same
            size = spread if spread > 1e-9 * size else size or 1.0
            for i, predictions in enumerate(found):
                changes[i] = max(changes[i], float(np.linalg.norm(predictions - base)) / size)
        return changes[0], changes[1]
