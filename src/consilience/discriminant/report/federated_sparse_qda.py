"""Report of sparse quadratic discriminant analysis over sites: errors, links, what blocks told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from consilience.discriminant.federated_sparse_qda.result import FederatedSparseQDAResult
from consilience.discriminant.report.sparse_qda import KNOWN, SparseQDAReport
from consilience.report.drawing import short
from consilience.report.figures_wide_choice import community_words
from consilience.report.run import Run
from consilience.report.sections import Block, listed, plural, site_name
from consilience.report.wide_evidence import Rules

KNOWN_OVER_SITES = (
    "A site that lies about its moments moves the model; nothing in the exchange shows it.",
    "Moments are many sums of the same rows. One run tells no row where classes are large enough; "
    "that there are few runs with other columns on the same rows is the policy's part.",
    "Where sites differ in their means, the differences count as spread within the classes.",
)


class FederatedSparseQDAReport(SparseQDAReport):
    """Words, tables and figures on classes told apart by linked columns, over sites."""

    result: ClassVar[type] = FederatedSparseQDAResult
    study: ClassVar[str] = "sparse quadratic discriminant analysis of sites"
    known: ClassVar[tuple[str, ...]] = (*KNOWN, *KNOWN_OVER_SITES)

    def evidence(self, run: Run) -> Sequence[Block]:
        """As for one table, and the blocks that were asked for."""
        result = self.read(run)
        blocks = list(super().evidence(run))
        if result.screened:
            blocks.append(_screening(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """What was withheld, rounded and kept."""
        result = self.read(run)
        words = [
            "The model goes to every site, which keeps it for predictions of its own; labels and "
            "predictions of rows stay there. There is no noise; numbers of rows in a wrong class "
            "are rounded at sites that protect records."
        ]
        used = np.asarray(result.used, dtype=bool)
        gaps = [
            f"{site_name(site)} ({listed([short(result.levels[k], 30) for k in missing], 4)})"
            for site, row in zip(result.sites, used, strict=True)
            if len(missing := np.flatnonzero(~row))
        ]
        if gaps:
            words.append(
                f"Classes with too few rows, or none, take no part in the moments: {listed(gaps)}. "
                "The other sites stand for them."
            )
        return words

    def cautions(self, result: Any) -> list[str]:
        """What stands against the answer."""
        found = super().cautions(result)
        if result.choice == "holdout" and not result.fixed:
            found.append(
                "The held-out rows also chose the penalty, so their errors are a little too small."
            )
        return found

    def rows_words(self, result: Any, rules: Rules) -> str:
        """Say which rows are counted."""
        return f"Rows whose moments are in the model; {rules.n:,} more are held out."


def _screening(result: Any) -> Block:
    """Which columns sites said are linked."""
    sizes = sorted((len(block) for block in result.screened_blocks), reverse=True)
    p = len(result.columns)
    text = [
        "A site tells cross-products only of so many columns as its classes bear. So the sites "
        "first told which columns may be linked at all, as a partition of the columns, and then "
        "the cross-products within its parts. No link of all rows together is lost by that.",
        f"{plural(int(result.n_questions), 'question')} led to "
        f"{plural(len(sizes), 'block')} of {sizes[0] if sizes else 0:,} columns at most; "
        f"{p - sum(sizes):,} columns are in none.",
    ]
    first = [community_words(result.feature_names, b, 4) for b in result.screened_blocks[:6]]
    if first:
        text.append(f"The first of them: {'; '.join(first)}.")
    return Block("Which columns were looked at together", tuple(text))


REPORT = FederatedSparseQDAReport
