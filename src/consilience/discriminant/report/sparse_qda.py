"""Report of sparse quadratic discriminant analysis of one table: errors, penalty, links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.discriminant.one_table.sparse_qda import SparseQDAStudyResult
from consilience.discriminant.report import ClassesReport, figures
from consilience.discriminant.report.figures_choice import (
    DENSITY,
    Network,
    community_words,
    network_of,
)
from consilience.report.charts import short
from consilience.report.sections import DASH, Run, numbers

LOOSE = 1e-6
"""Relative distance from the optimum above which a fit had not converged."""
COLUMNS_OF_CLASSES = 8
"""Classes up to which partial correlations are listed by class; of more, the largest."""


class SparseQDAReport(ClassesReport):
    """Words, tables and figures on classes told apart by linked columns."""

    kind: type[Any] = SparseQDAStudyResult
    template = "sparse_qda.j2"

    def context(self, result: Any, run: Run) -> dict[str, Any]:
        """Links, their blocks, and what the candidates link."""
        network = network_of(result)
        head, rows = _pairs(network)
        p, (linked, pairs) = columns_of(result), links_of(result)
        blocks = sorted(result.blocks, key=len, reverse=True)
        return super().context(result, run) | {
            "linked": linked,
            "n_pairs": pairs,
            # A hundred times the default tolerance: links may be other ones then.
            "loose": math.isfinite(result.gap) and result.gap > LOOSE,
            "network": network,
            "shown": min(len(network.pairs), figures.MOST_LINKS),
            "plot_links": figures.plot_interactions,
            "pair_head": head,
            "pair_rows": rows,
            "sizes": [len(block) for block in blocks],
            "single": p - sum(len(block) for block in blocks),
            "first_block": community_words(result.feature_names, blocks[0], 3) if blocks else "",
            "by_density": getattr(result, "choice", "") == DENSITY,
            "links_of_candidates": {
                "linked pairs": [f"{int(v):,}" for v in result.n_links],
                "largest block": [f"{int(v):,}" for v in result.largest_block],
            },
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, columns, rows; links, penalty, gap."""
        result, found = self.read(run), super().facts(run)
        linked, pairs = links_of(result)
        if linked is None:
            return found
        return [
            *found,
            ("linked pairs", f"{linked:,} of {pairs:,}"),
            ("penalty for a row (alpha)", f"{result.alpha:.3g}"),
            (
                "certified distance from the optimum",
                f"{result.gap:.1e}" if result.gap > LOOSE else "below a millionth",
            ),
        ]


def columns_of(result: Any) -> int:
    """Columns that take part."""
    return len(result.columns if hasattr(result, "columns") else result.feature_names)


def links_of(result: Any) -> tuple[int | None, int]:
    """Linked pairs at the chosen penalty, None where it is not told; and all pairs."""
    links, p = np.asarray(result.n_links), columns_of(result)
    told = int(result.chosen) >= 0 and len(links)
    return int(links[result.chosen]) if told else None, p * (p - 1) // 2


def _pairs(network: Network) -> tuple[list[str], list[tuple[str, ...]]]:
    """Head and rows of the table of links."""
    strongest, value = figures.strongest(network)
    levels = [short(level, 24) for level in network.levels]
    by_class = len(levels) <= COLUMNS_OF_CLASSES
    own = [f"in {level}" for level in levels] if by_class else ["largest partial correlation"]
    rows = []
    for i, strength in enumerate(numbers(network.strength)):
        a, b = (short(network.names[j], 30) for j in network.pairs[i])
        # Of many classes one column says the largest, and another one where it is.
        if by_class:
            cells = [correlation(v) for v in network.partial[i]]
        else:
            cells = [correlation(value[i]), levels[strongest[i]] if strongest[i] >= 0 else ""]
        rows.append((f"{a}, {b}", strength, *cells))
    return ["columns", "strength", *own, *([] if by_class else ["class"])], rows


def correlation(value: float) -> str:
    """Write a correlation."""
    return f"{value:z.2f}".replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else DASH


REPORT = SparseQDAReport
