"""Splitting one table into sites, for demonstrations and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    import pandas as pd

Scheme = Literal["iid", "dirichlet", "dominant", "sizes"]
ATTEMPTS = 1000


def partition(
    X: Any,
    y: Any = None,
    *,
    n_sites: int | None = None,
    scheme: Scheme = "iid",
    alpha: float = 1.0,
    share: float = 0.5,
    sizes: Sequence[float] | None = None,
    min_rows: int = 10,
    names: Sequence[str] | None = None,
    random_state: int | None = None,
) -> dict[str, pd.DataFrame]:
    """Split the rows of a table into sites; every row goes to exactly one.

    Parameters
    ----------
    X : (n, p) DataFrame or array
    y : (n,) array, optional
        Classes, for the schemes that look at them; put it into `X` to keep it as a column.
    n_sites : int, optional
        Needed unless `sizes` or `names` are given.
    scheme : {"iid", "dirichlet", "dominant", "sizes"}
        Equal sizes at random; every class spread over sites by proportions from
        Dirichlet(alpha, ..., alpha), so that sites differ in size and class proportions; every
        class with `share` of its rows at one site, in turn, and the rest spread evenly; or given
        sizes at random.
    alpha : float
        Small values make sites differ more.
    share : float
        In (0, 1), for ``scheme="dominant"``.
    sizes : sequence of float, optional
        Relative sizes of the sites, for ``scheme="sizes"``.
    min_rows : int
        Rows that every site gets at least.
    names : sequence of str, optional
        ``site-1``, ``site-2``, ... by default.
    random_state : int, optional

    Returns
    -------
    dict of str to DataFrame
        Rows in the order and with the index of `X`.

    Raises
    ------
    ParameterError
        A parameter is outside its range, or no split gives every site `min_rows`.
    """
    import pandas as pd

    frame = X if isinstance(X, pd.DataFrame) else _frame(X)
    if scheme not in get_args(Scheme):
        raise ParameterError.of("scheme", f"one of {get_args(Scheme)}", scheme)
    if (scheme == "sizes") != (sizes is not None):
        raise ParameterError.of("sizes", "given exactly when scheme is 'sizes'", sizes)
    site_names = _site_names(n_sites, sizes, names)
    n, m = len(frame), len(site_names)
    if not isinstance(min_rows, int) or min_rows < 1 or min_rows * m > n:
        raise ParameterError.of("min_rows", f"in 1..{n // m} for {n} rows and {m} sites", min_rows)
    rng = np.random.default_rng(random_state)
    if scheme == "dirichlet":
        site_of = _dirichlet(_classes(y, n), m, alpha, min_rows, rng)
    elif scheme == "dominant":
        site_of = _dominant(_classes(y, n), m, share, rng)
    else:
        site_of = _shares(n, np.ones(m) if sizes is None else np.asarray(sizes, float), rng)
    counts = np.bincount(site_of, minlength=m)
    if counts.min() < min_rows:
        raise ParameterError.of("min_rows", f"at most {counts.min()} for this split", min_rows)
    return {name: frame[site_of == k] for k, name in enumerate(site_names)}


def _frame(X: Any) -> pd.DataFrame:
    import pandas as pd

    array = np.asarray(X)
    if array.ndim != 2:
        raise ParameterError.of("X", "a DataFrame or an array with two dimensions", array.shape)
    return pd.DataFrame(array, columns=[f"x{j}" for j in range(array.shape[1])])


def _site_names(
    n_sites: int | None, sizes: Sequence[float] | None, names: Sequence[str] | None
) -> list[str]:
    lengths = {len(given) for given in (sizes, names) if given is not None}
    if n_sites is not None:
        lengths.add(n_sites)
    if len(lengths) != 1 or min(lengths) < 1:
        raise ParameterError.of(
            "n_sites", "at least 1, and the length of sizes and names where they are given", n_sites
        )
    if names is None:
        return [f"site-{k + 1}" for k in range(lengths.pop())]
    if len(set(names)) < len(names):
        raise ParameterError.of("names", "all different", list(names))
    return list(names)


def _classes(y: Any, n: int) -> NDArray[np.int64]:
    if y is None or len(y) != n:
        raise ParameterError.of("y", "one class for each row", "none" if y is None else len(y))
    return np.unique(np.asarray(y), return_inverse=True)[1].astype(np.int64)


def _shares(n: int, sizes: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Site of each row, with given relative sizes."""
    if sizes.ndim != 1 or not np.isfinite(sizes).all() or (sizes <= 0).any():
        raise ParameterError.of("sizes", "positive numbers", sizes.tolist())
    ends = np.round(np.cumsum(sizes) / sizes.sum() * n).astype(np.int64)
    site_of = np.searchsorted(ends, np.arange(n), side="right")
    return rng.permutation(site_of)


def _dominant(
    classes: NDArray[np.int64], m: int, share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Site of each row; class k is most frequent at site k modulo m."""
    if not 0 < share < 1:
        raise ParameterError.of("share", "in (0, 1)", share)
    site_of = np.empty(len(classes), dtype=np.int64)
    for k in range(classes.max() + 1):
        members = np.flatnonzero(classes == k)
        weights = np.full(m, (1 - share) / max(m - 1, 1))
        weights[k % m] = share
        site_of[members] = _shares(len(members), weights, rng)
    return site_of


def _dirichlet(
    classes: NDArray[np.int64], m: int, alpha: float, min_rows: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Site of each row; drawn again until every site has enough."""
    if not (np.isfinite(alpha) and alpha > 0):
        raise ParameterError.of("alpha", "above 0", alpha)
    site_of = np.empty(len(classes), dtype=np.int64)
    for _ in range(ATTEMPTS):
        for k in range(classes.max() + 1):
            members = np.flatnonzero(classes == k)
            weights = np.maximum(rng.dirichlet(np.full(m, alpha)), 1e-12)
            site_of[members] = _shares(len(members), weights, rng)
        if np.bincount(site_of, minlength=m).min() >= min_rows:
            return site_of
    raise ParameterError.of(
        "min_rows", f"reachable (no such split in {ATTEMPTS} draws: raise alpha)", min_rows
    )
