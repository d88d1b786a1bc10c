"""Mixture of Markov chains for sequences of states, as an estimator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.category_codes import levels_from_arrays, levels_to_arrays
from consilience.clustering.estimators.mixture import RULES, DiscreteMixture
from consilience.clustering.kernels import markov_mixture as kernel
from consilience.clustering.kernels.markov_mixture import Events, MarkovParameters
from consilience.clustering.kernels.mixtures import numbers_of
from consilience.clustering.kernels.sequences import NO_STATE, Sequences, coded, column
from consilience.datasets.simulate_treatments import draw_chains
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import one_thread
from consilience.numerics.random import stream
from consilience.numerics.row_units import of_arrow
from consilience.parameters import check, whole

S = TypeVar("S", bound=Sized)


@dataclass(eq=False, repr=False)
class MarkovMixture(DiscreteMixture):
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
        Probabilities of the first state in each class.
    transition_ : (K, S, S) array
        Probabilities of the next state (last axis) given the present one. The row of a state that
        is never left says nothing: all its probabilities are equal.
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
    probabilities: no step of EM lowers it.

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

    _record = "sequence"
    _fit_kernel = staticmethod(kernel.fit_markov_mixture)
    _parameter_count = staticmethod(kernel.parameter_count)

    _: KW_ONLY
    states: Any = None

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
        check(RULES, vars(self))
        X = of_arrow(X)
        sequences = sequences_of(X, self.states)
        data = kernel.events_of(replace(sequences, weights=weights_of(sequences, sample_weight)))
        states = sequences.states or ()
        # Of numbers, of texts, or of objects where they are mixed.
        plain = any(
            all(isinstance(name, kinds) for name in states)
            for kinds in (str, bool, int | float | np.number)
        )
        self.states_ = np.array(states) if plain else np.empty(len(states), dtype=object)
        self.states_[:] = states
        names = column_names(X)
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self._search(data)

    sequences_from_long = staticmethod(Sequences.from_long)

    def _adopt(self, parameters: MarkovParameters) -> None:
        self._parameters = parameters
        self.n_classes_ = parameters.n_classes
        self.initial_ = parameters.initial
        self.transition_ = parameters.transition
        self.proportions_ = parameters.proportions

    def _joint(self, data: Events) -> FloatArray:
        return self._parameters.joint(data)

    def _own_remarks(self, data: Events) -> list[str]:
        used = data.totals() > 0
        seen, left = np.unique(data.target[used]), np.unique(data.source[used])
        remarks = []
        for code, name in enumerate(self.states_.tolist()):
            if code not in seen:
                remarks.append(f"state {name!r} does not occur")
            elif code not in left:
                remarks.append(f"state {name!r} is never left: its next states are not known")
        return remarks

    # ------------------------------------------------------------------ sequences

    def standard_errors(
        self, X: Any, *, sample_weight: Any = None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Standard errors of the shares and probabilities, from the sequences' scores.

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
            NaN for probabilities that rest on less than one expected count, and everywhere where
            the sequences do not tell the parameters apart. Near 0 or 1 an interval should not be
            read off a standard error.
        """
        with one_thread():
            return kernel.markov_errors(self._parameters, self._read(X, sample_weight))

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
        check({"n_samples": whole(1)}, {"n_samples": n_samples})
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

    def _read(
        self, X: Any, sample_weight: ArrayLike | None = None, *, weigh: bool = True
    ) -> Events:
        check_is_fitted(self)
        X = of_arrow(X)
        given = column_names(X)
        if given is not None and hasattr(self, "feature_names_in_"):
            fitted = self.feature_names_in_.tolist()
            if [x for x in fitted if x in set(given)] != [x for x in given if x in set(fitted)]:
                raise DataError(
                    "the columns of X are time points, and stand in another order than in the fit"
                )
        sequences = sequences_of(X, self.states_.tolist())
        weights = weights_of(sequences, sample_weight) if weigh else None
        return kernel.events_of(replace(sequences, weights=weights))

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
        found.states_ = states
        found._adopt(parameters)
        k, size = parameters.n_classes, parameters.n_states
        every = {"n_parameters": np.array([k - 1 + k * (size - 1) * (1 + size)])}
        found._take_parameter_count({**every, **arrays}, "a mixture of Markov chains")
        return found


# --------------------------------------------------------------------------- input


def sequences_of(X: Any, states: Iterable[Any] | None) -> Sequences:
    """Read sequences with the names of their states.

    Parameters
    ----------
    X : Sequences, (n, t) array or data frame, or list of lists
        Of a table the columns are successive time points. NaN and None are missing.
    states : iterable, optional
        The alphabet; by default what a data frame of categories declares, else what occurs, sorted.

    Returns
    -------
    Sequences

    Raises
    ------
    DataError
        X has another form, a state is not in the alphabet, or there is no sequence.
    """
    if isinstance(X, Sequences):
        own = range(X.n_states) if X.states is None else X.states
        return _some(X.renamed(own if states is None else states))
    if isinstance(X, list | tuple):
        if any(isinstance(each, str | bytes) or not isinstance(each, Iterable) for each in X):
            raise DataError(
                "Expected 2D array, got 1D array instead: X must hold one list of states for each "
                "sequence. Reshape your data if it is one sequence"
            )
        return Sequences.from_lists(_some(X), states)
    if hasattr(X, "toarray") and hasattr(X, "nnz"):
        raise TypeError(
            "Sparse data was passed for X, but sequences are dense: a state that is not stored is "
            "not a missing one"
        )
    table = column(X) if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    if table.ndim != 2:
        raise DataError(
            f"Expected 2D array, got {table.ndim}D array instead: X must have one row for each "
            "sequence. Reshape your data if it is one sequence"
        )
    if table.dtype.kind == "c":
        raise DataError("Complex data not supported: a state is a number or a text")
    _some(table)
    if table.shape[1] == 0:
        raise DataError(
            f"0 feature(s) (shape={table.shape}) while a minimum of 1 is required: X has no "
            "time point"
        )
    known = _declared_states(X) if states is None else states
    if table.dtype.kind in "biuf":
        codes, names = _of_numbers(table.ravel(), known)
    else:
        codes, names = coded(table.ravel().tolist(), known)
    return Sequences.of(codes.reshape(table.shape), states=names)


def _some(given: S) -> S:
    if len(given) == 0:
        raise DataError("X has no sequence (0 sample(s)): give at least one")
    return given


def column_names(X: Any) -> NDArray[Any] | None:
    """Names of the columns of a data frame, if all are texts."""
    columns = getattr(X, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return None
    return np.asarray(list(columns), dtype=object)


def _declared_states(X: Any) -> tuple[Any, ...] | None:
    """States that a data frame declares: all its columns are categorical with the same levels."""
    kinds = getattr(X, "dtypes", None)
    if kinds is None or not hasattr(X, "columns"):
        return None
    levels = {
        None if found is None else tuple(found)
        for found in (getattr(kind, "categories", None) for kind in kinds)
    }
    return levels.pop() if len(levels) == 1 else None


def weights_of(sequences: Sequences, sample_weight: Any) -> FloatArray | None:
    """Weights that were given with the sequences, times those that were given beside them.

    Raises
    ------
    DataError
        A weight is negative or not finite, there is not one for each sequence, or all are 0.
    """
    own = sequences.weights
    if sample_weight is not None:
        weight = numbers_of("sample_weight", sample_weight)
        if weight.ndim == 0:
            weight = np.full(len(sequences), float(weight))
        if weight.shape != (len(sequences),):
            raise DataError(
                f"sample_weight.shape == {weight.shape}, expected {(len(sequences),)}: one weight "
                "for each sequence"
            )
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise DataError("sample_weight must be finite and at least 0")
        own = weight if own is None else own * weight
    if own is not None and not own.sum() > 0:
        raise DataError("all weights are zero: nothing can be fitted")
    return own


def _of_numbers(
    cells: NDArray[Any], states: Iterable[Any] | None
) -> tuple[NDArray[np.int32], tuple[Any, ...]]:
    """Code numbers by their few different values."""
    if cells.dtype.kind == "f" and np.isinf(cells).any():
        raise DataError(NO_STATE)
    kinds, place = np.unique(cells, return_inverse=True)  # NaN is one kind, the last
    few = kinds.tolist()
    if cells.dtype.kind == "f" and (np.isnan(kinds) | (kinds == np.round(kinds))).all():
        few = [kind if kind != kind else int(kind) for kind in few]
    try:
        codes, names = coded(few, states)
    except DataError:  # which counts kinds: count cells
        codes, names = coded(np.array(few, dtype=object)[place.ravel()].tolist(), states)
        return codes, names
    return codes[place.ravel()], names
