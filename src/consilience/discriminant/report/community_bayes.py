"""Report of community Bayes of one table: errors, communities, their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.discriminant.one_table.community_bayes import CommunityBayesStudyResult
from consilience.discriminant.report import ClassesReport, apart, counts, figures
from consilience.discriminant.report.figures_choice import tree_of
from consilience.report.charts import short
from consilience.report.sections import DASH, Run, listed, numbers, with_error

NAMED = 10
"""Columns that are named of each community; of more, the first."""


class CommunityBayesReport(ClassesReport):
    """Words, tables and figures on classifiers by communities of columns."""

    kind: type[Any] = CommunityBayesStudyResult
    template = "community_bayes.j2"

    def context(self, result: Any, run: Run) -> dict[str, Any]:
        """Communities, their tree and coefficients, and what candidates gain."""
        # Losses and gains of candidates are told over sites only.
        losses = getattr(result, "candidate_loss", None)
        gains = np.asarray(getattr(result, "candidate_gain", np.empty(0)), dtype=float)
        of_candidates: dict[str, list[str]] = {}
        if np.isfinite(gains).any():
            told = list(map(with_error, gains, result.candidate_gain_se))
            of_candidates[f"better than {int(result.candidates[0]):,} by"] = told
        slope_head, slopes = _coefficients(result)
        return super().context(result, run) | {
            "n": len(result.communities) or result.n_communities,
            "n_separable": getattr(result, "n_separable", 0),
            "untold": losses is not None and np.isnan(losses).all(),
            "merges": tree_of(result).merges,
            "plot_tree": figures.plot_dendrogram,
            "community_columns": _communities(result),
            "slope_head": slope_head,
            "slopes": slopes,
            "gains_of_candidates": of_candidates,
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, columns, rows; communities."""
        sizes, found = [len(c) for c in self.read(run).communities], super().facts(run)
        if not sizes:
            return found
        told = [("communities", f"{len(sizes):,}"), ("columns of the largest", f"{max(sizes):,}")]
        return [*found, *told]


def _communities(result: Any) -> dict[str, list[str]]:
    """Columns of the table of communities, by their heads."""
    names = [short(name, 30) for name in result.feature_names]
    similar, behind, said = (
        np.asarray(getattr(result, name, np.empty(0)), dtype=float)
        for name in ("similarity", "community_rows", "evidence")
    )
    found = {
        "community": [str(number) for number in range(1, len(result.communities) + 1)],
        "columns": [f"{len(members):,}" for members in result.communities],
        "which": [listed([names[j] for j in members], NAMED) for members in result.communities],
    }
    if similar.size:
        # On the scale of the most similar pair, for similarities grow with the rows.
        top = similar[np.triu_indices(len(similar), 1)].max(initial=0.0)
        pairs = [
            similar[np.ix_(m, m)][np.triu_indices(len(m), 1)] / (top or 1.0)
            for m in result.communities
        ]
        found["alike"] = [f"{v.mean():.2f}" if v.size and top > 0 else DASH for v in pairs]
    if behind.size:
        found["rows behind it"] = counts(behind)
    if len(said) == len(result.communities) and np.isfinite(said).any():
        found["says for the right class"] = list(map(with_error, said, result.evidence_se))
    return found


def _coefficients(result: Any) -> tuple[list[str], list[tuple[str, ...]]]:
    """Head and rows of the table of coefficients of a linear base; none where they are too many."""
    if not hasattr(result, "coefficients") or len(result.levels) > 8:
        return [], []
    names = [short(name, 40) for name in result.feature_names]
    rows = [
        (names[j], str(number), *numbers(slopes))
        for number, (members, by_class) in enumerate(
            zip(result.communities, result.slopes, strict=True), 1
        )
        for j, slopes in zip(members, np.asarray(by_class, dtype=float).T, strict=True)
    ]
    # A longer table is read by nobody: the coefficients stand in the result.
    if not rows or len(rows) > 400:
        return [], []
    levels = [f"for {short(level, 30)}" for level in result.levels]
    return ["column", "community", *apart(levels[1:] if len(rows[0]) == 3 else levels)], rows


REPORT = CommunityBayesReport
