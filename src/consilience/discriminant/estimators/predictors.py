"""Both classifiers of wide tables as arrays: for sites, and for rows that come later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.kernels.multinomial import log_softmax
from consilience.exceptions import DataError
from consilience.numerics.ids import as_ids, ids_from_arrays, ids_to_arrays
from consilience.numerics.row_units import check_units, read_rows

_TILE = 32  # rows that share a pass over a factor: it is read from memory once for all of them
_PARTS = ("means", "log_priors", "scale", "kept", "diagonal", "members", "sizes", "triangles")


def some(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence: the first ones, and how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


class ScoredClasses:
    """Predictions from scores of the classes: logarithms up to a constant in each row."""

    classes_: NDArray[Any]

    def _scores(self, X: Any) -> FloatArray:
        """Scores of the classes, (n, K)."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> FloatArray:
        """Scores of the classes, (n, K); with two classes the log-odds of the second, (n,).

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        # As scikit-learn has it: two classes have one score.
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of the classes' probabilities, (n, K).

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        return log_softmax(self._scores(X))

    def predict_proba(self, X: Any) -> FloatArray:
        """Probability of each class, (n, K).

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Most probable class of each row, (n,); of equally probable ones the first.

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        # Of equal scores argmax takes the first.
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])


class RowsPredictor(ScoredClasses):
    """Checks the rows that it is given, and prepares them."""

    n_features_in_: int
    scaling: FloatArray | None
    frame: FloatArray | None  # where columns lie and how they spread, (2, p)

    def _prepare_by(self, feature_names: Sequence[str] | None, scaling: ArrayLike | None) -> None:
        """Keep names and scaling of the columns, which may be left out.

        Raises
        ------
        DataError
            They are those of other columns.
        """
        self.scaling = None if scaling is None else np.asarray(scaling, dtype=np.float64)
        if self.scaling is not None:
            fits = self.scaling.shape == (3, self.n_features_in_)
            if not fits or not np.isfinite(self.scaling).all() or not (self.scaling[2] > 0).all():
                raise DataError("the scaling of a predictor does not fit its columns")
        self.frame = None if self.scaling is None else self.scaling[1:]
        if feature_names is not None:
            if len(feature_names) != self.n_features_in_:
                raise DataError("a predictor needs one name for each of its columns")
            self.feature_names_in_ = np.array([str(name) for name in feature_names], dtype=object)

    def with_names(self, feature_names: Sequence[str] | None, scaling: Any = None) -> Self:
        """Same predictor for tables with these columns, prepared by `scaling`.

        Parameters
        ----------
        feature_names : sequence of str or None
        scaling : (3, p) array, optional
            As in the class.
        """
        # Factors and arrays are shared, for they do not change.
        made = copy(self)
        made.__dict__.pop("feature_names_in_", None)
        made._prepare_by(feature_names, scaling)
        return made

    def _rows(self, X: ArrayLike) -> FloatArray:
        named = getattr(self, "feature_names_in_", None)
        rows = read_rows(X, self.n_features_in_, None if named is None else named.tolist())
        if self.frame is not None:
            centre, scale = self.frame
            check_units(rows, centre, scale, getattr(self, "feature_names_in_", None))
        if self.scaling is not None:
            fill, centre, scale = self.scaling
            rows = (np.where(np.isnan(rows), fill, rows) - centre) / scale
        if not np.isfinite(rows).all():
            raise DataError("the table has missing or infinite values: fill or drop these rows")
        return rows

    def _shared_arrays(self, names: str) -> dict[str, NDArray[Any]]:
        """Arrays of classes, scaling and features, these under a name."""
        k = len(self.classes_)
        # Texts become bytes and lengths, so that arrays are numbers only.
        arrays = ids_to_arrays("classes", as_ids(self.classes_, k, "classes"))
        if self.scaling is not None:
            arrays["scaling"] = self.scaling
        if hasattr(self, "feature_names_in_"):
            arrays |= ids_to_arrays(names, self.feature_names_in_.astype(np.str_))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a predictor from `to_arrays` of it; numbers of classes become whole numbers.

        Raises
        ------
        DataError
            The arrays are not those of a predictor.
        """
        try:
            parts = cls._parts(arrays)
        except (LookupError, TypeError, ValueError):
            raise DataError("these arrays do not hold a predictor") from None
        return cls(**parts)

    @classmethod
    def _parts(cls, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Arguments of a predictor; some error where they are none."""
        raise NotImplementedError

    @staticmethod
    def _shared_parts(arrays: Mapping[str, NDArray[Any]], names: str) -> dict[str, Any]:
        """Arguments of a predictor from these arrays."""
        named = f"{names}_text" in arrays
        return {
            "classes": ids_from_arrays("classes", arrays),
            "feature_names": ids_from_arrays(names, arrays).tolist() if named else None,
            "scaling": arrays.get("scaling"),
        }


# --------------------------------------------------------------------------- sparse QDA


class SparseQDAPredictor(RowsPredictor):
    """Classify by normal densities whose precision matrices are sparse.

    The score of class k is ``1/2 logdet T_k - 1/2 (x - mu_k)' T_k (x - mu_k) + log pi_k``. A row's
    score does not depend on which other rows are in the batch, to the last bit.

    Parameters
    ----------
    means : (K, m) array
        Of the columns that take part, in the units of the table.
    log_priors : (K,) array
    scale : (m,) array
        Units of the precision matrices.
    kept : (m,) array of int
        Columns that take part, rising.
    diagonal : (K, m) array
        Precisions of the features outside of all blocks; inside they are not read.
    blocks : sequence of (q,) arrays of int
        Places among the m columns; no place is in two blocks.
    precisions : sequence of (K, q, q) arrays
        One for each block.
    classes : (K,) array
    n_features : int, optional
        p, with the columns that take no part; by default m.
    feature_names : sequence of str, optional
    scaling : (3, p) array, optional
        What fills missing cells, then centre and scale of each column, as a study's preparation
        applied; then tables are given in their own units.

    Attributes
    ----------
    classes_ : (K,) array
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if names were given.

    Raises
    ------
    DataError
        The parts do not fit together, or a precision matrix is not positive definite.

    Notes
    -----
    Source: Le and Hastie, arXiv 1407.4543, section 2.
    """

    def __init__(
        self,
        means: ArrayLike,
        *,
        log_priors: ArrayLike,
        scale: ArrayLike,
        kept: ArrayLike,
        diagonal: ArrayLike,
        blocks: Sequence[ArrayLike],
        precisions: Sequence[ArrayLike],
        classes: ArrayLike,
        n_features: int | None = None,
        feature_names: Sequence[str] | None = None,
        scaling: ArrayLike | None = None,
    ) -> None:
        self.means = np.asarray(means, dtype=np.float64)
        self.log_priors = np.asarray(log_priors, dtype=np.float64)
        self.scale = np.asarray(scale, dtype=np.float64)
        self.kept = np.asarray(kept, dtype=np.int64)
        self.diagonal = np.array(diagonal, dtype=np.float64)
        self.blocks = tuple(np.asarray(block, dtype=np.int64) for block in blocks)
        self.precisions = tuple(np.asarray(block, dtype=np.float64) for block in precisions)
        self.classes_ = np.asarray(classes)
        self.n_features_in_ = len(self.kept) if n_features is None else int(n_features)
        self._check()
        self._prepare_by(feature_names, scaling)
        self._factor()

    def _check(self) -> None:
        k, m = self.means.shape if self.means.ndim == 2 else (0, 0)
        shapes = (
            (self.log_priors, (k,)),
            (self.scale, (m,)),
            (self.kept, (m,)),
            (self.diagonal, (k, m)),
            (self.classes_, (k,)),
        )
        # What the compiled loop walks through: members of all blocks, one block after the other.
        self._sizes = np.array([len(block) for block in self.blocks], dtype=np.int64)
        self._members = np.concatenate([*self.blocks, np.zeros(0, dtype=np.int64)])
        outside = np.ones(m, dtype=bool)
        pairs = list(zip(self.blocks, self.precisions))
        fits = (
            (k > 0 and m > 0 and all(value.shape == shape for value, shape in shapes))
            and all(np.isfinite(value).all() for value in (self.means, self.log_priors, self.scale))
            and (self.scale > 0).all()
            and self.kept[0] >= 0
            and self.kept[-1] < self.n_features_in_
            and (np.diff(self.kept) > 0).all()
            and len(self.blocks) == len(self.precisions)
            and np.isin(self._members, np.arange(m)).all()
            and len(np.unique(self._members)) == len(self._members)
            and all(b.ndim == 1 and t.shape == (k, len(b), len(b)) for b, t in pairs)
            and all(np.isfinite(precision).all() for precision in self.precisions)
        )
        if fits:
            outside[self._members] = False
            single = self.diagonal[:, outside]
            fits = bool((np.isfinite(single) & (single > 0)).all())
        if not fits:
            raise DataError("the parts of a predictor do not fit together")
        self.diagonal[:, ~outside] = 0.0

    def _factor(self) -> None:
        """Cholesky factors by class, block after block, row after row."""
        try:
            factors = [np.linalg.cholesky(precision) for precision in self.precisions]
        except np.linalg.LinAlgError:
            raise DataError("a precision matrix is not positive definite") from None
        # Half the log-determinant is the sum of the logarithms on the diagonal of a factor.
        halves = [np.log(np.diagonal(f, axis1=1, axis2=2)).sum(axis=1) for f in factors]
        k = len(self.means)
        rows = [factor.reshape(k, -1) for factor in factors]
        self._factors = np.ascontiguousarray(np.hstack([*rows, np.zeros((k, 0))]))
        # Features in blocks count there: on the diagonal they add log 1.
        single = np.where(self.diagonal > 0, self.diagonal, 1.0)
        self._constant = self.log_priors + 0.5 * np.log(single).sum(axis=1) + sum(halves, start=0.0)

    # -------------------------------------------------------------- predictions

    def scores(self, X: ArrayLike) -> FloatArray:
        """Logarithms of prior times density of each class, up to a constant of the table.

        Parameters
        ----------
        X : (n, p) array or data frame

        Returns
        -------
        (n, K) array

        Raises
        ------
        DataError
            Columns or values that cannot be used.
        """
        x = self._rows(X)[:, self.kept]
        found = np.empty((len(x), len(self.classes_)))
        parts, squares = (self._members, self._sizes), _squares()
        for k, mean in enumerate(self.means):
            # Equation 2 of the source, in the units of the precision matrices.
            apart = np.ascontiguousarray((x - mean) / self.scale)
            distance = squares(apart, self.diagonal[k], *parts, self._factors[k])
            found[:, k] = self._constant[k] - 0.5 * distance
        return found

    def _scores(self, X: Any) -> FloatArray:
        return self.scores(X)

    # -------------------------------------------------------------- keeping

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Numeric arrays that hold the whole predictor, texts as UTF-8 bytes."""
        # Matrices are symmetric: a triangle tells them.
        triangles = [t[:, *np.tril_indices(t.shape[1])] for t in self.precisions]
        return {
            "means": self.means,
            "log_priors": self.log_priors,
            "scale": self.scale,
            "kept": self.kept,
            "diagonal": self.diagonal,
            "members": self._members,
            "sizes": self._sizes,
            "triangles": np.hstack([*triangles, np.zeros((len(self.means), 0))]),
            "n_features": np.array([self.n_features_in_], dtype=np.int64),
            **self._shared_arrays("features"),
        }

    @classmethod
    def _parts(cls, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        parts: dict[str, Any] = {name: np.asarray(arrays[name]) for name in _PARTS}
        parts["n_features"] = int(np.asarray(arrays["n_features"])[0])
        members, sizes = parts.pop("members"), parts.pop("sizes").astype(np.int64)
        triangles = np.asarray(parts.pop("triangles"), dtype=np.float64)
        # Numbers of a triangle.
        halves = sizes * (sizes + 1) // 2
        fits = sizes.ndim == members.ndim == 1 and triangles.ndim == 2
        fits = fits and bool((sizes > 0).all()) and int(sizes.sum()) == len(members)
        if not fits or triangles.shape[1] != int(halves.sum()):
            raise ValueError("triangles of other blocks")
        ends, precisions = np.cumsum(sizes), []
        for q, end, size in zip(sizes, np.cumsum(halves), halves):
            full = np.zeros((len(triangles), q, q))
            rows, columns = np.tril_indices(q)
            full[:, rows, columns] = full[:, columns, rows] = triangles[:, end - size : end]
            precisions.append(full)
        parts |= cls._shared_parts(arrays, "features")
        blocks = [members[end - q : end] for q, end in zip(sizes, ends)]
        return parts | {"blocks": blocks, "precisions": precisions}


@cache
def _squares() -> Callable[..., FloatArray]:
    """Compiled squared distances; imported on first use, for it loads numba."""
    from consilience.numerics.compilation import compiled

    kernel: Callable[..., FloatArray] = compiled(_squared_distances, fastmath=())
    return kernel


def _squared_distances(
    apart: FloatArray, diagonal: FloatArray, members: IntArray, sizes: IntArray, factors: FloatArray
) -> FloatArray:
    """Sum of squares of L'd over blocks plus those of single features, (n,), row by row.

    Every row is added up in the same order, whatever rows share its tile.
    """
    n, m = apart.shape
    found = np.zeros(n)
    for i in range(n):
        for j in range(m):
            found[i] += diagonal[j] * apart[i, j] * apart[i, j]
    begin = start = 0
    for b in range(len(sizes)):
        q = sizes[b]
        for first in range(0, n, _TILE):
            last = min(first + _TILE, n)
            sums = np.zeros((last - first, q))
            for j in range(q):
                row = factors[start + j * q : start + j * q + j + 1]
                for i in range(first, last):
                    value = apart[i, members[begin + j]]
                    for h in range(j + 1):
                        sums[i - first, h] += value * row[h]
            for i in range(first, last):
                for h in range(q):
                    found[i] += sums[i - first, h] * sums[i - first, h]
        begin += q
        start += q * q
    return found


# --------------------------------------------------------------------------- community Bayes


class CommunityBayesPredictor(RowsPredictor):
    """Posteriors from one multinomial logistic regression for each community of features.

    Parameters
    ----------
    communities : sequence of L arrays of int
        Features of each; every feature belongs to one community.
    rows : sequence of L pairs
        Coefficients (1 or K, q_l) and intercepts (1 or K,) as scikit-learn has them, in the units
        of the table (after `scaling`): one row is the log odds of the second of two classes.
    priors : (K,) array
        Shares of the classes in the rows of the fit.
    classes : (K,) array
        Ascending labels: whole numbers or texts.
    feature_names : sequence of p str, optional
    scaling : (3, p) array, optional
        What fills missing cells, then centre and scale of each column, as a study's preparation
        applied; then tables are given in their own units.

    Attributes
    ----------
    classes_ : (K,) array
    priors_ : (K,) array
    communities_ : tuple of L arrays of int
    n_communities_ : int
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if names were given.

    Raises
    ------
    DataError
        The parts do not fit together.

    Notes
    -----
    Source: Le and Hastie, arXiv 1407.4543: posteriors of communities are multiplied and divided by
    the prior, ``sum_l log p(k | x_l) + (1 - L) log pi_k``.
    """

    def __init__(
        self,
        *,
        communities: Sequence[ArrayLike],
        rows: Sequence[tuple[FloatArray, FloatArray]],
        priors: ArrayLike,
        classes: ArrayLike,
        feature_names: Sequence[str] | None = None,
        scaling: ArrayLike | None = None,
    ) -> None:
        self.communities_ = tuple(np.asarray(part, dtype=np.int64) for part in communities)
        # A row for each class, where one row has the log odds of the second of two.
        both = [
            (coef, free) if len(coef) > 1 else (np.vstack([0.0 * coef, coef]), np.append(0.0, free))
            for coef, free in rows
        ]
        self.coefs = tuple(np.asarray(coef, dtype=np.float64) for coef, _ in both)
        self.intercepts = np.array([intercept for _, intercept in both], dtype=np.float64)
        self.priors_ = np.atleast_1d(np.asarray(priors, dtype=np.float64))
        labels = np.asarray(classes)
        # Labels are whole numbers or texts, where they are neither.
        plain = labels.dtype.kind in "iubU"
        self.classes_ = labels if plain else as_ids(labels, len(labels), "classes")
        self._check()
        self.n_communities_ = len(self.communities_)
        self.n_features_in_ = sum(len(part) for part in self.communities_)
        self._prepare_by(feature_names, scaling)

    def _check(self) -> None:
        k, n = len(self.priors_), len(self.communities_)
        fits = k >= 2 and n >= 1 and self.classes_.shape == (k,) and self.priors_.shape == (k,)
        fits &= len(self.coefs) == n and self.intercepts.shape == (n, k)
        fits = fits and all(
            part.ndim == 1 and len(part) and coef.shape == (k, len(part))
            for part, coef in zip(self.communities_, self.coefs, strict=True)
        )
        if not fits:
            raise DataError("the parts of a predictor do not fit together")
        features = np.sort(np.concatenate(self.communities_))
        numbers = (self.intercepts, self.priors_, *self.coefs)
        if not (features == np.arange(len(features))).all():
            raise DataError("each feature of a predictor belongs to exactly one community")
        if not all(np.isfinite(value).all() for value in numbers) or not (self.priors_ > 0).all():
            raise DataError("the numbers of a predictor must be finite, its priors positive")
        if len(set(self.classes_.tolist())) != k:
            raise DataError("the classes of a predictor must differ")

    # -------------------------------------------------------------- predicting

    def contributions(self, X: ArrayLike) -> FloatArray:
        """What each community says for each class: ``log p(k | x_l) - log pi_k``, (n, L, K).

        Parameters
        ----------
        X : (n, p) array or data frame

        Raises
        ------
        DataError
            Not the columns of the fit, or no finite numbers.
        """
        rows = self._rows(X)
        found = np.empty((len(rows), self.n_communities_, len(self.priors_)))
        for place, (part, coef) in enumerate(zip(self.communities_, self.coefs, strict=True)):
            # Linear predictors, column after column.
            eta = self.intercepts[place] + np.zeros((len(rows), 1))
            for column, weights in zip(part.tolist(), coef.T, strict=True):
                eta = eta + rows[:, column, None] * weights  # a row's sum does not see other rows
            found[:, place] = log_softmax(eta)
        return found - np.log(self.priors_)

    def _scores(self, X: Any) -> FloatArray:
        return np.asarray(self.contributions(X).sum(axis=1) + np.log(self.priors_))

    # -------------------------------------------------------------- keeping

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Numeric arrays that hold the whole predictor, texts as UTF-8 bytes."""
        arrays: dict[str, NDArray[Any]] = {
            "sizes": np.array([len(part) for part in self.communities_], dtype=np.int64),
            "features": np.concatenate(self.communities_),
            "coefs": np.concatenate(self.coefs, axis=1),
            "intercepts": self.intercepts,
            "priors": self.priors_,
            **self._shared_arrays("names"),
        }
        if self.classes_.dtype.kind == "b":
            arrays["classes_are_booleans"] = np.ones(1, dtype=np.int64)
        return arrays

    @classmethod
    def _parts(cls, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        sizes = np.asarray(arrays["sizes"], dtype=np.int64)
        bounds = np.cumsum([0, *sizes.tolist()])
        features = np.asarray(arrays["features"], dtype=np.int64)
        coefs = np.asarray(arrays["coefs"], dtype=np.float64)
        fits = sizes.ndim == 1 and (sizes > 0).all() and features.shape == (bounds[-1],)
        if not fits or coefs.ndim != 2 or coefs.shape[1] != bounds[-1]:
            raise ValueError("coefficients of other communities")
        intercepts = np.asarray(arrays["intercepts"], dtype=np.float64)
        slopes = (coefs[:, i:j] for i, j in pairwise(bounds))
        parts = cls._shared_parts(arrays, "names")
        if "classes_are_booleans" in arrays:
            parts["classes"] = parts["classes"].astype(bool)
        return parts | {
            "communities": [features[i:j] for i, j in pairwise(bounds)],
            "rows": list(zip(slopes, intercepts, strict=True)),
            "priors": np.asarray(arrays["priors"]),
        }
