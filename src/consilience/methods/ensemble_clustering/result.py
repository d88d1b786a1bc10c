"""Result of ensemble clustering: aggregates only; labels and predictor are at the sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.methods.result import Result

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EnsembleClusteringResult(Result):
    """Classes that the sites share.

    Attributes
    ----------
    feature_names : tuple of str
        The p prepared columns.
    n_clusters : int
        K.
    chosen_by : str
        "given", "vote" or "eigenvalues".
    votes : dict of str to int
        Each site's vote by BIC (0: abstained); empty where no vote was held.
    vote_scores : dict of str to (max_clusters,) array
        BIC of each site for 1, 2, ... classes.
    vote_share : float
        Share of the votes for the winner; NaN where no vote was held.
    n_clusters_by_eigenvalues : int
        What the spectrum of the ensemble distance suggests.
    eigenvalues : array
        Leading eigenvalues of the ensemble distance.
    n_records : int
        Rows counted, over all sites.
    class_sizes : (K,) int array
    class_sizes_by_site : dict of str to (K,) int array
        From pattern counts in which rare tuples were merged into the nearest frequent one.
    class_means : (K, p) array
        In the units of the columns; NaN where no site had enough rows in the class.
    class_means_scaled : (K, p) array
        In the scaled units in which the classes were found.
    target : str
        Name of the target column, or "".
    target_means : (K,) array
    target_means_by_site : dict of str to (K,) array
    model_names : tuple of str
        The M local models, "site" or "site/2".
    weights : (M,) array
        Weights in the ensemble distance; their squares sum to 1.
    agreement : (M, M) array
        Agreement of the models (cosines, or correlations with ``weighting="centred"``).
    n_patterns : int
        Distinct label tuples.
    counted : dict of str to str
        How each site counted: "exact", "merged", "coarsened" or "none".
    stability : dict
        ``n_clusters``, ``pairs`` and the adjusted Rand index of runs on disjoint halves: ``mean``,
        ``low``, ``high``; the same with columns permuted (``null_pairs``, ``null_mean``, ...;
        ``null_reached`` of these pairs agree as well as the mean), of sites that label their own
        rows alone (``alone_mean``) and of one site's model on all rows (``ported_mean``, mean over
        the models); ``by_site``. Empty where it was not asked for. The halves are secret draws of
        the sites, so these figures differ a little from run to run.
    models, features, centres, owners
        What a later run needs to label other rows: arrays of the models, T (q, r), centres (K, r).
    """

    feature_names: tuple[str, ...]
    n_clusters: int
    chosen_by: str
    votes: dict[str, int]
    vote_scores: dict[str, FloatArray]
    vote_share: float
    n_clusters_by_eigenvalues: int
    eigenvalues: FloatArray
    n_records: int
    class_sizes: NDArray[np.int64]
    class_sizes_by_site: dict[str, NDArray[np.int64]]
    class_means: FloatArray
    class_means_scaled: FloatArray
    target: str
    target_means: FloatArray
    target_means_by_site: dict[str, FloatArray]
    model_names: tuple[str, ...]
    owners: tuple[str, ...]
    weights: FloatArray
    agreement: FloatArray
    n_patterns: int
    counted: dict[str, str]
    stability: dict[str, Any]
    models: tuple[dict[str, Any], ...]
    features: FloatArray
    centres: FloatArray

    def summary(self) -> str:
        """Answer in a few sentences: classes, sizes, stability beside its null."""
        shares = ", ".join(
            f"{name} {size} ({size / max(self.n_records, 1):.0%})"
            for name, size in zip(class_names(self.n_clusters), self.class_sizes, strict=True)
        )
        text = f"{_classes(self.n_clusters)} in {self.n_records} rows: {shares}."
        return " ".join([text, self.choice_sentence(), self.stability_sentence()]).strip()

    def choice_sentence(self) -> str:
        """How the number of classes came about, and how far that can be trusted."""
        if self.chosen_by == "given":
            return "The number of classes was given."
        cast = {site: vote for site, vote in self.votes.items() if vote > 0}
        votes = ", ".join(f"{site} {vote}" for site, vote in cast.items())
        trust = ""
        if len(set(cast.values())) > 1:
            trust = (
                f" The votes by BIC disagree ({votes}) and should not be trusted: the spectrum of "
                f"the ensemble distance suggests {self.n_clusters_by_eigenvalues}; compare the "
                "stability of other numbers with their nulls."
            )
        rule = "the sites' vote" if self.chosen_by == "vote" else "the spectrum of the distance"
        return f"The number of classes was chosen by {rule}.{trust}"

    def stability_sentence(self) -> str:
        """Stability beside the same figure with columns permuted."""
        s = self.stability
        if not s:
            return ""
        beyond = s["null_reached"] <= 0.05 * s["null_pairs"]
        verdict = (
            "more than with columns permuted"
            if beyond
            else "which alone is no clear evidence of classes, since with columns permuted "
            f"{s['null_reached']} of {s['null_pairs']} pairs agree as well"
        )
        asked = "" if s["n_clusters"] == self.n_clusters else f" with {s['n_clusters']} classes"
        found, chance = _range(s, ""), _range(s, "null_")
        return (
            f"Runs on disjoint halves of the rows{asked} agree by {_two(s['mean'])} (adjusted Rand "
            f"index, {found} over {s['pairs']} pairs), {verdict} ({_two(s['null_mean'])}, "
            f"{chance}).{_single_sites(s)}"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one line per class: size, share, means of the columns and of the target."""
        import pandas as pd

        frame = pd.DataFrame(self.class_means, columns=list(self.feature_names))
        frame.insert(0, "share", self.class_sizes / max(self.n_records, 1))
        frame.insert(0, "size", self.class_sizes)
        if self.target:
            frame[f"mean {self.target}"] = self.target_means
        frame.index = pd.Index(class_names(self.n_clusters), name="class")
        return frame


def _two(value: float) -> str:
    """Two decimals, without a minus sign before zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _range(stability: dict[str, Any], kind: str) -> str:
    return f"{_two(stability[f'{kind}low'])} to {_two(stability[f'{kind}high'])}"


def _single_sites(stability: dict[str, Any]) -> str:
    """What sites reach without the others, as far as they sent it."""
    alone, ported = stability["alone_mean"], stability["ported_mean"]
    said = []
    if not np.isnan(alone):
        said.append(f" Sites that label their own rows alone agree by {_two(alone)}.")
    if not np.isnan(ported):
        said.append(f" One site's model on all rows agrees by {_two(ported)}.")
    return "".join(said)


def class_names(n: int) -> tuple[str, ...]:
    """Names of the classes as people see them: 0, 1, ... as in the labels."""
    return tuple(f"class {k}" for k in range(n))


def _classes(n: int) -> str:
    return "One class only" if n == 1 else f"{n} classes"
