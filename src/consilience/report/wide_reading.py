"""What figures and words of wide classification read: one form for estimators and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.report.drawing import short


@dataclass(frozen=True, eq=False)
class Network:
    """Linked features, the strongest link first.

    Attributes
    ----------
    names : tuple of str
        All features.
    levels : tuple of str
        Classes.
    pairs : (m, 2) int array
        Links as places among `names`.
    strength : (m,) array
        Norm over the classes of the entries of the precision matrices.
    partial : (m, K) array
        Partial correlations by class; NaN where they are not known.
    """

    names: tuple[str, ...]
    levels: tuple[str, ...]
    pairs: IntArray
    strength: FloatArray
    partial: FloatArray


@dataclass(frozen=True, eq=False)
class Candidates:
    """Penalties, or numbers of communities, that were compared.

    Attributes
    ----------
    kind : {"alpha", "communities"}
    values : (A,) array
    errors : (A,) array
        Share of rows that were classified wrongly where they took no part; NaN where unknown.
    spread : (A,) array
        Standard error; NaN where unknown.
    chosen : int
        Place of the one that was chosen; -1 where it is not known.
    links : (A,) array
        Linked pairs of features; empty for communities.
    among : str
        Where the rows were: "cross-validation", ...
    loss : (A,) array
        Mean loss of the same rows; empty where it is not known.
    loss_name : str
        What the loss is.
    """

    kind: str
    values: FloatArray
    errors: FloatArray
    spread: FloatArray
    chosen: int
    links: FloatArray
    among: str
    loss: FloatArray = field(default_factory=lambda: np.empty(0))
    loss_name: str = "log loss"


@dataclass(frozen=True, eq=False)
class Tree:
    """Merges of features into communities.

    Attributes
    ----------
    names : tuple of str
    merges : (p - 1, 4) array
        As scipy has them: two nodes, their distance, number of features.
    n_communities : int
        Where the tree is cut.
    """

    names: tuple[str, ...]
    merges: FloatArray
    n_communities: int


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each community says for each class of one row, on the log scale.

    Attributes
    ----------
    names : tuple of str
        Communities.
    levels : tuple of str
        Classes.
    values : (L, K) array
    prior : (K,) array
    """

    names: tuple[str, ...]
    levels: tuple[str, ...]
    values: FloatArray
    prior: FloatArray


def network_of(fitted: Any) -> Network:
    """Read the links of an estimator or a result.

    Parameters
    ----------
    fitted : SparseQDA, a result with links, or Network

    Raises
    ------
    ParameterError
        There are no links in it.
    """
    if isinstance(fitted, Network):
        return fitted
    if hasattr(fitted, "interactions_"):
        found = fitted.interactions_
        return Network(
            feature_names(fitted),
            tuple(str(level) for level in found.classes),
            np.asarray(found.pairs),
            np.asarray(found.strength),
            np.asarray(found.partial_correlation),
        )
    if hasattr(fitted, "pairs") and hasattr(fitted, "strength"):
        strength = np.asarray(fitted.strength, dtype=float)
        order = np.argsort(-strength, kind="stable")
        return Network(
            tuple(fitted.feature_names),
            tuple(fitted.levels),
            np.asarray(fitted.pairs, dtype=np.int64).reshape(-1, 2)[order],
            strength[order],
            np.asarray(fitted.partial, dtype=float).reshape(-1, len(fitted.levels))[order],
        )
    raise ParameterError.of("fitted", "a fit with linked features", type(fitted).__name__)


def tree_of(fitted: Any) -> Tree:
    """Read the merges of an estimator or a result.

    Parameters
    ----------
    fitted : CommunityBayesClassifier, a result with a tree, or Tree

    Raises
    ------
    ParameterError
        There is no tree in it.
    """
    if isinstance(fitted, Tree):
        return fitted
    for merges, communities in (("tree_", "communities_"), ("tree", "communities")):
        if hasattr(fitted, merges) and hasattr(fitted, communities):
            return Tree(
                feature_names(fitted),
                np.asarray(getattr(fitted, merges), dtype=float).reshape(-1, 4),
                len(getattr(fitted, communities)),
            )
    raise ParameterError.of("fitted", "a fit with a tree of features", type(fitted).__name__)


def candidates_of(fitted: Any) -> Candidates:
    """Read what was compared.

    Parameters
    ----------
    fitted : SparseQDA, CommunityBayesClassifier, a result of their methods, or Candidates

    Raises
    ------
    ParameterError
        Nothing was compared in it.
    """
    if isinstance(fitted, Candidates):
        return fitted
    if hasattr(fitted, "path_"):
        path = fitted.path_
        chosen = int(np.flatnonzero(path.alphas == fitted.alpha_)[0])
        return Candidates(
            "alpha",
            path.alphas,
            path.cv_error,
            path.cv_se,
            chosen,
            np.asarray(path.n_links, dtype=float),
            "cross-validation",
        )
    if hasattr(fitted, "cv_results_"):
        return _of_communities(fitted)
    if hasattr(fitted, "cv_errors"):
        return _of_result(fitted)
    raise ParameterError.of("fitted", "a fit that compared candidates", type(fitted).__name__)


def _of_communities(fitted: Any) -> Candidates:
    """Read what a classifier compared, under the chosen parameters of its base."""
    table = fitted.cv_results_
    kept = [i for i, params in enumerate(table["params"]) if params == fitted.best_params_]
    values, error, spread, loss = (
        np.asarray(table[name], dtype=float)[kept]
        for name in ("n_communities", "error", "error_se", "log_loss")
    )
    chosen = np.flatnonzero(values == fitted.n_communities_)
    where = int(chosen[0]) if len(chosen) else -1
    among = "cross-validation"
    return Candidates("communities", values, error, spread, where, np.empty(0), among, loss)


DENSITY = "likelihood"
"""Choice by the densities of rows, in a result over sites."""
AMONG = {
    DENSITY: "the density of each site's rows under models of the others",
    "sites": "the sites, each judging models of the others",
    "holdout": "rows that sites held out",
}
"""Who judged, by the name of the choice in a result over sites."""


def _of_result(result: Any) -> Candidates:
    values = np.asarray(result.candidates, dtype=float)
    wrong = np.asarray(result.cv_errors, dtype=float)
    n = int(np.sum(result.cv_rows))
    rate = wrong / n if n and len(wrong) == len(values) else np.full(len(values), np.nan)
    given = np.asarray(getattr(result, "cv_se", np.empty(0)), dtype=float)
    # Without folds: rows are judged one by one, and the error is that of a share.
    spread = given if len(given) == len(values) else np.sqrt(rate * (1.0 - rate) / max(n, 1))
    linked = hasattr(result, "n_links")
    told = getattr(result, "candidate_loss", getattr(result, "cv_log_loss", np.empty(0)))
    loss = np.asarray(told, dtype=float)
    if hasattr(result, "choice"):
        among = AMONG.get(result.choice, "number")
    else:
        among = "the choosing rows" if hasattr(result, "candidate_loss") else "cross-validation"
    return Candidates(
        "alpha" if linked else "communities",
        values,
        rate,
        spread,
        int(result.chosen),
        np.asarray(result.n_links, dtype=float) if linked else np.empty(0),
        among,
        loss if len(loss) == len(values) else np.empty(0),
        "minus log density" if getattr(result, "choice", "") == DENSITY else "log loss",
    )


def contributions_of(fitted: Any, row: Any = None) -> Contributions:
    """Read what communities say of one row.

    Parameters
    ----------
    fitted : CommunityBayesClassifier or Contributions
    row : (p,) or (1, p) array or frame of one row

    Raises
    ------
    ParameterError
        Another number of rows.
    """
    if isinstance(fitted, Contributions):
        return fitted
    one = row if hasattr(row, "columns") else np.asarray(row, dtype=float).reshape(1, -1)
    values = np.asarray(fitted.contributions(one))
    if len(values) != 1:
        raise ParameterError.of("row", "one row", len(values))
    names = feature_names(fitted)
    return Contributions(
        tuple(community_words(names, members) for members in fitted.communities_),
        tuple(str(level) for level in fitted.classes_),
        values[0],
        np.log(np.asarray(fitted.priors_)),
    )


def community_words(names: Sequence[str], members: Any, most: int = 2) -> str:
    """Name a community by its first features."""
    first = [short(names[j], 20) for j in members[:most]]
    more = len(members) - len(first)
    return ", ".join(first) + (f" and {more:,} more" if more else "")


def feature_names(fitted: Any) -> tuple[str, ...]:
    """Names of the features of an estimator or a result."""
    given = getattr(fitted, "feature_names_in_", getattr(fitted, "feature_names", None))
    if given is None:
        return tuple(f"x{j}" for j in range(fitted.n_features_in_))
    return tuple(str(name) for name in given)
