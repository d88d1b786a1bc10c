"""Mixture of Markov chains for sequences of states, as an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.category_codes import (
    fewer_because,
    levels_from_arrays,
    levels_to_arrays,
)
from consilience.clustering.estimators.markov_mixture_input import (
    column_names,
    sequences_of,
    weights_of,
)
from consilience.clustering.kernels.markov_mixture import (
    Events,
    MarkovParameters,
    events_of,
    fit_markov_mixture,
    parameter_count,
)
from consilience.clustering.kernels.markov_mixture_errors import markov_errors
from consilience.clustering.kernels.mixture_starts import (
    Search,
    check_count,
    check_search,
    check_total_weight,
    held_remark,
    information,
    start_remarks,
    weight_remarks,
)
from consilience.clustering.kernels.sequences import Sequences
from consilience.datasets.simulate_treatments import draw_chains
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import one_thread
from consilience.numerics.pattern_kmeans import FewerClustersWarning
from consilience.numerics.random import stream

Fits = list[Search[MarkovParameters]]


class MarkovMixture(DensityMixin, BaseEstimator):
    """Classes of sequences: each class is a Markov chain over a common alphabet of states.

    Parameters
    ----------
    n_classes : int or "bic"
        K; with ``"bic"`` the number up to `max_classes` with the smallest criterion.
    max_classes : int
        Largest number that ``"bic"`` tries.
    n_init, n_init_iter : int
        Random starts and the steps of EM that each one gets.
    n_final : int
        The best so many starts are followed until they settle, the best of these is kept.
    pseudo_count : float
        Added to the expected count of every first state and every step (none to the proportions),
        so that no chance is 0; 0 or more.
    tol : float
        A start has settled where a step raises the objective by no more than this share of it.
    max_iter : int
        Steps after which a start is left as it is.
    states : sequence, optional
        The alphabet, in order; by default the categories that all columns of a data frame share,
        or else the states that occur, sorted.
    random_state : int, RandomState or None

    Attributes
    ----------
    states_ : (S,) array
    proportions_ : (K,) array
        Shares of the classes, the largest first; classes of equal share are in the order of their
        parameters.
    initial_ : (K, S) array
        Chances of the first state in each class.
    transition_ : (K, S, S) array
        Chances of the next state (last axis) given the present one. The row of a state that is
        never left says nothing: all its chances are equal.
    n_classes_ : int
        Fewer than asked for where there are fewer distinct sequences, or a class was left empty. A
        class that is kept may still be the most probable one of no sequence, where two are nearly
        alike or EM ends early: a warning and a remark say so.
    labels_ : (n,) array of int
        Most probable class of each sequence.
    log_likelihood_ : float
        Of the sequences, without the pseudo-counts.
    trace_ : (T,) array
        Objective at the kept start and after each of its steps: it never falls but for rounding.
    n_iter_ : int
    converged_ : bool
    start_spread_ : (m,) array
        Log likelihoods of the starts that were followed, the kept one first. The likelihood of
        short sequences has several peaks: unequal values mean that there are several answers.
    n_parameters_ : int
        Free parameters: of states that occur, and of steps from states that are left.
    bic_ : float
        ``-2 log_likelihood_ + n_parameters_ log n``, n the number of sequences (sum of weights).
        Weights must count sequences: scaled to a small sum they make the criterion meaningless.
    bic_curve_ : dict of arrays
        ``n_classes``, ``log_likelihood``, ``n_parameters`` and ``bic`` of each number of classes
        that was tried.
    remarks_ : tuple of str
        What was noticed about the sequences.
    feature_names_in_ : (t,) array of str
        Where X has names.

    Notes
    -----
    Time points where nothing was seen are integrated out exactly, before and between states; after
    the last state they say nothing. A sequence without any state belongs to the classes in their
    proportions. Sequences may differ in length: a wide table may have other columns in `predict`
    than in `fit`, as long as common ones have not changed their order. The answer does not depend
    on the order of the sequences.

    The objective is the log likelihood plus `pseudo_count` times the sum of the logarithms of all
    chances: no step of EM lowers it.

    References
    ----------
    Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering*, arXiv 2409.08396,
    sequence data. Helske and Helske (2019), *Mixture Hidden Markov Models for Sequence Data: The
    seqHMM Package in R*, Journal of Statistical Software 88(3). Departures: gaps are integrated
    out; pseudo-counts; each class starts from some 20 random sequences.

    Examples
    --------
    >>> from consilience import MarkovMixture
    >>> stay, swing = ["a", "a", "a", "b", "b", "b"], ["a", "b", "a", "b", "a", "b"]
    >>> fit = MarkovMixture(2, random_state=0).fit(20 * [stay] + 10 * [swing])
    >>> fit.predict([["b", "b", None, "b"], ["b", "a", "b"]])
    array([0, 1])
    >>> fit.transition_[1].round(1).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def __init__(
        self,
        n_classes: int | str = 2,
        *,
        max_classes: int = 6,
        n_init: int = 40,
        n_init_iter: int = 15,
        n_final: int = 4,
        pseudo_count: float = 0.1,
        tol: float = 1e-7,
        max_iter: int = 500,
        states: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_classes = n_classes
        self.max_classes = max_classes
        self.n_init = n_init
        self.n_init_iter = n_init_iter
        self.n_final = n_final
        self.pseudo_count = pseudo_count
        self.tol = tol
        self.max_iter = max_iter
        self.states = states
        self.random_state = random_state

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Find the classes.

        Parameters
        ----------
        X : (n, t) array or data frame, list of lists, or Sequences
            States are numbers or texts; NaN and None are missing, -1 is a number like any other. Of
            a table each column is a time point. For a table of (id, time, state) see
            `sequences_from_long`.
        y : None
            Ignored.
        sample_weight : (n,) array, optional
            How many sequences each one stands for, 0 or more: 2 is the same as giving it twice.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range.
        DataError
            X cannot be read, holds a state outside `states`, or no state at all; or the number of
            classes is asked by "bic" and the weights sum to less than 1.

        Warns
        -----
        FewerClustersWarning
            There are fewer distinct sequences than classes, or a class was left empty.
        ConvergenceWarning
            The kept start had not settled after `max_iter` steps, or a class is the most probable
            one of no sequence.
        """
        self._check()
        sequences = sequences_of(X, self.states)
        weights = weights_of(sequences, sample_weight)
        sequences = replace(sequences, weights=weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with one_thread():
            events = events_of(sequences)
            if self.n_classes == "bic":
                check_total_weight(events.total, "sequence")
            fits = [self._fitted(events, k, seed) for k in self._numbers(events)]
            chosen = self._take(sequences.states or (), events, fits)
            self.labels_ = self._parameters.joint(events)[events.inverse].argmax(axis=1)
        names = column_names(X)
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._remark(events, weights, chosen.n_dropped)
        return self

    def fit_predict(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> IntArray:
        """Find the classes, and return the most probable class of each sequence, (n,)."""
        return self.fit(X, y, sample_weight=sample_weight).labels_

    @staticmethod
    def sequences_from_long(
        ids: ArrayLike,
        times: ArrayLike,
        state: ArrayLike,
        states: Any = None,
        *,
        start: int | None = None,
        gaps: bool = True,
    ) -> Sequences:
        """Sequences for `fit` from three columns of a table with one row per id and time.

        Parameters
        ----------
        ids, times, state : (m,) arrays
            In any order; no pair of id and time twice. Times are numbers or dates.
        states : sequence, optional
            The alphabet.
        start : int, optional
            Time at which all sequences begin; by default each begins where it is first seen.
        gaps : bool
            Whether holes in times that are whole numbers are unseen time points. Other times give
            the order only.

        Returns
        -------
        Sequences
            One for each id, ids sorted; the ids are its ``ids``.
        """
        return Sequences.from_long(ids, times, state, states, start=start, gaps=gaps)

    def _check(self) -> None:
        if isinstance(self.n_classes, str):
            if self.n_classes != "bic":
                raise ParameterError.of("n_classes", "an integer or 'bic'", self.n_classes)
        else:
            check_count("n_classes", self.n_classes)
        check_count("max_classes", self.max_classes)
        check_search(self.n_init, self.n_init_iter, self.n_final, self.tol, self.max_iter)

    def _numbers(self, events: Events) -> list[int]:
        """Numbers of classes to fit, no more than there are distinct sequences."""
        most = max(int(events.telling.sum()), 1)
        if isinstance(self.n_classes, str):
            return list(range(1, min(self.max_classes, most) + 1))
        return [min(int(self.n_classes), most)]

    def _fitted(self, events: Events, n_classes: int, seed: int) -> Search[MarkovParameters]:
        return fit_markov_mixture(
            events,
            n_classes,
            seed=seed,
            n_init=self.n_init,
            n_init_iter=self.n_init_iter,
            n_final=self.n_final,
            pseudo_count=self.pseudo_count,
            tol=self.tol,
            max_iter=self.max_iter,
        )

    def _take(
        self, states: tuple[Any, ...], events: Events, fits: Fits
    ) -> Search[MarkovParameters]:
        """Keep the fit with the smallest criterion; of equal ones the one with fewer classes."""
        numbers = [each.best.parameters.n_classes for each in fits]
        likelihoods = [each.best.log_likelihood for each in fits]
        counts = [parameter_count(events, k) for k in numbers]
        curve = [information(*pair, events.total)[1] for pair in zip(likelihoods, counts)]
        self.bic_curve_ = {
            "n_classes": np.array(self._numbers(events)),
            "log_likelihood": np.array(likelihoods),
            "n_parameters": np.array(counts),
            "bic": np.array(curve),
        }
        place = int(np.argmin(curve))
        chosen, best = fits[place], fits[place].best
        self._adopt(best.parameters, _as_array(states))
        self.log_likelihood_ = best.log_likelihood
        self.trace_, self.n_iter_, self.converged_ = best.trace, best.n_iter, best.converged
        self.start_spread_ = chosen.start_spread
        self.n_parameters_, self.bic_ = counts[place], curve[place]
        return chosen

    def _adopt(self, parameters: MarkovParameters, states: NDArray[Any]) -> None:
        self._parameters = parameters
        self.states_ = states
        self.n_classes_ = parameters.n_classes
        self.initial_ = parameters.initial
        self.transition_ = parameters.transition
        self.proportions_ = parameters.proportions

    def _remark(self, events: Events, weights: FloatArray | None, n_dropped: int) -> None:
        """Say what was noticed."""
        remarks = []
        if not isinstance(self.n_classes, str) and self.n_classes_ < self.n_classes:
            why = fewer_because(n_dropped, int(events.telling.sum()), "sequence")
            remarks.append(f"{why}: {self.n_classes_} of {self.n_classes} classes were fitted")
            warnings.warn(remarks[-1], FewerClustersWarning, stacklevel=3)
        if not self.converged_:
            remarks.append(f"EM did not settle within max_iter = {self.max_iter}: raise it, or tol")
            warnings.warn(remarks[-1], ConvergenceWarning, stacklevel=3)
        held = held_remark(self.labels_, weights, self.n_classes_, "sequence")
        if held:
            remarks.append(held)
            warnings.warn(held, ConvergenceWarning, stacklevel=3)
        remarks += weight_remarks(events.total, len(self.labels_), "sequence")
        used = events.totals() > 0
        seen, left = np.unique(events.target[used]), np.unique(events.source[used])
        for code, name in enumerate(self.states_.tolist()):
            if code not in seen:
                remarks.append(f"state {name!r} does not occur")
            elif code not in left:
                remarks.append(f"state {name!r} is never left: its next states are not known")
        remarks += start_remarks(self.start_spread_)
        self.remarks_ = tuple(remarks)

    # ------------------------------------------------------------------ sequences

    def predict(self, X: Any) -> IntArray:
        """Most probable class of each sequence, (m,); of equally probable ones the first.

        Parameters
        ----------
        X : (m, t) array or data frame, list of lists, or Sequences

        Raises
        ------
        DataError
            X cannot be read, or holds a state that is not in `states_`.
        """
        sequences = self._read(X)
        with one_thread():
            return self._parameters.label(sequences)

    def predict_proba(self, X: Any) -> FloatArray:
        """Chance of each class given the sequence, (m, K); X as in `predict`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithm of `predict_proba`, (m, K)."""
        return self._posterior(self._read(X))[0]

    def score_samples(self, X: Any) -> FloatArray:
        """Log likelihood of each sequence, (m,); X as in `predict`."""
        return self._posterior(self._read(X))[1]

    def score(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> float:
        """Mean log likelihood of a sequence; X as in `predict`."""
        total, weight = self._likelihood(X, sample_weight)
        return total / weight

    def aic(self, X: Any) -> float:
        """Akaike information criterion on X, smaller is better."""
        total, weight = self._likelihood(X)
        return information(total, self.n_parameters_, weight)[0]

    def bic(self, X: Any) -> float:
        """Bayesian information criterion on X, smaller is better; n is the number of sequences."""
        total, weight = self._likelihood(X)
        check_total_weight(weight, "sequence")
        return information(total, self.n_parameters_, weight)[1]

    def standard_errors(
        self, X: Any, *, sample_weight: Any = None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Standard errors of the shares and chances, from the sequences' scores.

        Parameters
        ----------
        X : (n, t) array or data frame, list of lists, or Sequences
            The sequences that were fitted.
        sample_weight : (n,) array, optional
            As in the fit.

        Returns
        -------
        proportions : (K,) array
        initial : (K, S) array
        transition : (K, S, S) array
            NaN for chances that rest on less than one expected count, and everywhere where the
            sequences do not tell the parameters apart. Near 0 or 1 an interval should not be read
            off a standard error.
        """
        sequences = self._read(X)
        sequences = replace(sequences, weights=weights_of(sequences, sample_weight))
        with one_thread():
            errors = markov_errors(self._parameters, events_of(sequences))
        return errors.proportions, errors.initial, errors.transition

    def sample(
        self, n_samples: int = 1, length: Any = 10, *, random_state: Any = None
    ) -> tuple[Sequences, IntArray]:
        """Draw sequences.

        Parameters
        ----------
        n_samples : int
        length : int or (n_samples,) array of int
            Time points of each sequence.
        random_state : int, RandomState or None
            None takes the estimator's own.

        Returns
        -------
        sequences : Sequences
            ``to_lists()`` of it gives the names of the states.
        labels : (n_samples,) array of int
            Their classes.
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        lengths = np.asarray(length)
        fits = lengths.dtype.kind in "iu" and lengths.shape in ((), (n_samples,))
        if not fits or (lengths < 0).any():
            raise ParameterError.of("length", "an integer of at least 0, or one of each", length)
        state = check_random_state(self.random_state if random_state is None else random_state)
        rng = stream(int(state.randint(2**31 - 1)), "sample")
        lengths = np.broadcast_to(lengths, (n_samples,))
        labels = rng.choice(self.n_classes_, size=n_samples, p=self.proportions_)
        wide = draw_chains(self.initial_, self.transition_, labels, lengths, rng)
        names = tuple(self.states_.tolist())
        return Sequences.of(wide, states=names), labels.astype(np.int64)

    def _read(self, X: Any) -> Sequences:
        check_is_fitted(self)
        names = column_names(X)
        if names is not None and hasattr(self, "feature_names_in_"):
            _same_order(list(self.feature_names_in_), list(names))
        return sequences_of(X, self.states_.tolist())

    def _posterior(self, sequences: Sequences) -> tuple[FloatArray, FloatArray]:
        with one_thread():
            return self._parameters.log_posterior(sequences)

    def _likelihood(self, X: Any, sample_weight: Any = None) -> tuple[float, float]:
        """Weighted log likelihood, and the sum of the weights."""
        sequences = self._read(X)
        weights = weights_of(sequences, sample_weight)
        each = self._posterior(sequences)[1]
        if weights is None:
            return float(each.sum()), float(len(each))
        return float((weights * np.where(weights > 0, each, 0.0)).sum()), float(weights.sum())

    # ------------------------------------------------------------------ arrays

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of numbers that hold what predictions rest on, without anything by sequence.

        Raises
        ------
        DataError
            The states are neither all numbers nor all texts.
        """
        check_is_fitted(self)
        return {
            **self._parameters.to_arrays(),
            **levels_to_arrays((self.states_,), "states"),
            "n_parameters": np.array([self.n_parameters_], dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild an estimator that predicts from `to_arrays` of it, checking every number.

        Arrays without ``n_parameters``, as older versions wrote them, count all states as seen.

        Raises
        ------
        DataError
            An array is missing or cannot be a part of a mixture of Markov chains.
        """
        parameters = MarkovParameters.from_arrays(arrays)
        (states,) = levels_from_arrays(arrays, (parameters.n_states,), "states")
        found = cls(parameters.n_classes, states=states.tolist())
        found._adopt(parameters, states)
        k, size = parameters.n_classes, parameters.n_states
        count = np.asarray(arrays.get("n_parameters", [k - 1 + k * (size - 1) * (1 + size)]))
        if count.shape != (1,) or count.dtype.kind not in "iu" or count[0] < 0:
            raise DataError("these arrays do not hold a mixture of Markov chains")
        found.n_parameters_ = int(count[0])
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_parameters")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


def _as_array(states: tuple[Any, ...]) -> NDArray[Any]:
    """Names as an array: of numbers, of texts, or of objects where they are mixed."""
    for kinds in (str, bool, int | float | np.number):
        if all(isinstance(name, kinds) for name in states):  # type: ignore[arg-type]
            return np.array(states)
    found = np.empty(len(states), dtype=object)
    found[:] = states
    return found


def _same_order(fitted: list[str], given: list[str]) -> None:
    common = set(fitted) & set(given)
    if [name for name in fitted if name in common] != [name for name in given if name in common]:
        raise DataError(
            "the columns of X are time points, and stand in another order than in the fit"
        )
