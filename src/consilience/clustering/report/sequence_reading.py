"""What figures and words read of classes of sequences and of tables of categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.kernels.sequences import Sequences
from consilience.exceptions import DataError, ParameterError


@dataclass(frozen=True, eq=False)
class Chains:
    """Classes of sequences: first states and steps.

    Attributes
    ----------
    states : tuple of S str
    initial : (K, S) array
    transition : (K, S, S) array
        NaN where nothing is known of a step or of a state.
    shares : (K,) array
    """

    states: tuple[str, ...]
    initial: FloatArray
    transition: FloatArray
    shares: FloatArray

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.initial)

    def by_time(self, length: int) -> FloatArray:
        """Chances of the states at the time points 1 to `length`, (K, length, S)."""
        steps = np.nan_to_num(self.transition)
        found = [self.initial]
        for _ in range(length - 1):
            found.append(np.einsum("ka,kab->kb", np.nan_to_num(found[-1]), steps))
        total = np.stack(found, axis=1)
        sums = total.sum(axis=2, keepdims=True)
        return np.asarray(np.divide(total, sums, out=np.full_like(total, np.nan), where=sums > 0))


def chains_of(fitted: Any) -> Chains:
    """Read classes of sequences from an estimator or a result.

    Raises
    ------
    ParameterError
        There are none in it.
    """
    if len(getattr(fitted, "states", None) or ()) and hasattr(fitted, "class_transition"):
        return Chains(
            tuple(str(state) for state in fitted.states),
            np.asarray(fitted.class_initial, float),
            np.asarray(fitted.class_transition, float),
            _shares(fitted),
        )
    names = ("states_", "initial_", "transition_", "proportions_")
    if not all(hasattr(fitted, name) for name in names):
        raise ParameterError.of("fitted", "a fit with classes of sequences", type(fitted).__name__)
    states, *arrays = (getattr(fitted, name) for name in names)
    return Chains(tuple(str(state) for state in states), *(np.asarray(a, float) for a in arrays))


def _shares(result: Any) -> FloatArray:
    """Shares of the classes over all sites."""
    sizes = np.asarray(result.class_sizes, float)
    return sizes / max(float(sizes.sum()), 1.0)


@dataclass(frozen=True, eq=False)
class Items:
    """Classes of rows of categories: chances of the levels of each column.

    Attributes
    ----------
    columns : tuple of d str
    levels : tuple of d tuples of str
    chances : tuple of (K, L_j) arrays
    shares : (K,) array
    """

    columns: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    chances: tuple[FloatArray, ...]
    shares: FloatArray


def items_of(fitted: Any) -> Items:
    """Read item profiles from an estimator or a result.

    Raises
    ------
    ParameterError
        There are none in it.
    """
    known = getattr(fitted, "category_levels", None)
    if known:
        means = np.asarray(fitted.class_means, float)
        ends = np.cumsum([len(levels) for levels in known.values()])[:-1]
        return Items(
            tuple(str(name) for name in known),
            tuple(tuple(str(level) for level in levels) for levels in known.values()),
            tuple(np.split(means, ends, axis=1)),
            _shares(fitted),
        )
    if not all(hasattr(fitted, name) for name in ("levels_", "class_probabilities_")):
        raise ParameterError.of("fitted", "a fit with item profiles", type(fitted).__name__)
    d = len(fitted.levels_)
    names = getattr(fitted, "feature_names_in_", [f"column {j + 1}" for j in range(d)])
    return Items(
        tuple(str(name) for name in names),
        tuple(tuple(str(level) for level in known) for known in fitted.levels_),
        tuple(np.asarray(each, float) for each in fitted.class_probabilities_),
        np.asarray(fitted.proportions_, float),
    )


@dataclass(frozen=True, eq=False)
class Told:
    """Sequences with the class of each.

    Attributes
    ----------
    wide : (n, t) array of int
        -1 where nothing was seen.
    labels : (n,) array of int
        -1 is no class.
    states : tuple of str
    times : tuple of str
        Names of the time points.
    """

    wide: IntArray
    labels: IntArray
    states: tuple[str, ...]
    times: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        """Number of classes, the last one that occurs included."""
        return int(self.labels.max(initial=-1)) + 1


def told_of(fitted: Any, x: Any) -> Told:
    """Read sequences, and their classes by an estimator or as they are given.

    Parameters
    ----------
    fitted : estimator with `predict`, or (n,) array of int
    x : what `MarkovMixture.fit` takes

    Raises
    ------
    DataError
        There is not one label for each sequence, or no state was seen in any.
    """
    from consilience.clustering.estimators.markov_mixture_input import column_names, sequences_of

    own = getattr(fitted, "states_", None)
    sequences: Sequences = sequences_of(x, None if own is None else own.tolist())
    labels = fitted.predict(x) if hasattr(fitted, "predict") else fitted
    labels = np.asarray(labels)
    if labels.shape != (len(sequences),) or labels.dtype.kind not in "iu":
        raise DataError("labels must be whole numbers, one for each sequence")
    wide = np.asarray(sequences.to_wide(), dtype=np.int64)
    if not wide.size:
        raise DataError("no state was seen in any sequence: there is nothing to draw")
    names = sequences.states or tuple(range(sequences.n_states))
    columns = column_names(x)
    times = list(range(1, wide.shape[1] + 1)) if columns is None else list(columns)
    return Told(
        wide,
        labels.astype(np.int64),
        tuple(str(name) for name in names),
        tuple(str(time) for time in times)[: wide.shape[1]],
    )
