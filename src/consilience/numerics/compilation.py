"""Loops that are compiled on first use. Imported on first use: it loads numba."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


def compiled(
    function: Callable[..., Any],
    fastmath: Collection[str] = ("contract",),
    cache: type[FunctionCache] = FunctionCache,
) -> Any:
    """Compile on first use, and keep the result where there is a place to keep it.

    What was kept counts as old once the function's own file has changed.

    Parameters
    ----------
    function : callable
        A loop over arrays, on one thread.
    fastmath : collection of str
        How it may round otherwise: by default a product and the sum that uses it once.
    cache : type
        Says what of an earlier process may be used again.

    Returns
    -------
    callable
    """
    dispatcher: Any = njit(nogil=True, fastmath=set(fastmath))(function)
    with suppress(RuntimeError):  # nowhere to write: compiled anew in every process
        dispatcher._cache = cache(function)
    return dispatcher


def reordered(function: Callable[..., Any]) -> Any:
    """Compile a loop whose sums may be added up in another order, too."""
    return compiled(function, ("contract", "reassoc"))
