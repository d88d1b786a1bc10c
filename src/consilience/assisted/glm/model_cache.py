"""Models that stay in this process between the steps of a run, so as not to build them anew.

A model stands for the state that it was left with and for nothing else: a step gets it only with
the very same rows, inputs and state, byte for byte, and otherwise builds one from the state, with
the same results. Nothing here needs to survive, and nothing outlives the rows of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from consilience.protocol.method import SiteData, State


class Model(Protocol):
    """What can be kept: its state is all that its answers depend on."""

    def to_state(self) -> Mapping[str, Any]:
        """Arrays from which the model goes on."""


M = TypeVar("M", bound=Model)
_LEFT: WeakKeyDictionary[SiteData, tuple[Any, Model]] = WeakKeyDictionary()


def model(data: SiteData, inputs: State, state: State | None, build: Callable[[], M]) -> M:
    """Model of a state: the one that was left with it here, or else a new one.

    It is taken out: a step that fails leaves nothing behind.

    Parameters
    ----------
    data : SiteData
        The very rows, in this process.
    inputs : mapping
        Everything else that the model is built from.
    state : mapping or None
        As ``to_state`` gave it.
    build : callable
        Makes a model of the same rows, inputs and state.
    """
    left = _LEFT.pop(data, None)
    if left is not None and state is not None:
        known, kept = left
        if same(known, inputs) and same(kept.to_state(), state):
            return kept  # type: ignore[return-value]
    return build()


def leave(data: SiteData, inputs: State, kept: Model) -> None:
    """Leave a model for the next step of the run."""
    _LEFT[data] = (inputs, kept)


def forget(data: SiteData) -> None:
    """Leave nothing: no step of the run needs a model any more."""
    _LEFT.pop(data, None)


def same(one: Any, other: Any) -> bool:
    """Whether two nests hold the same numbers, bit for bit."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype == np.float64:  # the bits: NaN is itself, and 0.0 is not -0.0
            one, other = one.view(np.int64), other.view(np.int64)
        return bool(np.array_equal(one, other))
    return type(one) is type(other) and bool(one == other)
