"""Report of sparse quadratic discriminant analysis of one table: errors, penalty, links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.discriminant.one_table.sparse_qda import SparseQDAStudyResult
from consilience.discriminant.report import wide_links
from consilience.report import wide_evidence
from consilience.report.drawing import short
from consilience.report.run import Run
from consilience.report.sections import Block, Headline, MethodReport
from consilience.report.wide_evidence import Rules, rounded, rules_of

KNOWN = (
    "Classes are taken as normal densities. Columns that are far from normal (many zeros, heavy "
    "tails) should be transformed first; community Bayes with another base does without densities.",
    "A link says that two columns go together within some class, given all the others, at this "
    "penalty. It is an estimate without an error of its own: with other rows, weak links come and "
    "go.",
    "Strengths are of columns divided by their standard deviations within the classes, where the "
    "study standardises; otherwise columns with large units look strong.",
    "Errors on held-out rows speak of rows like these. Rows of the same person, place or day on "
    "both sides make them too small: name an entity where rows belong together.",
    "Many candidates have the same number of errors: the sparsest of them is taken, unless ties "
    "says otherwise.",
)


class SparseQDAReport(MethodReport):
    """Words, tables and figures on classes told apart by linked columns."""

    def headline(self, run: Run) -> Headline:
        """How many held-out rows are in a wrong class, and which columns are linked."""
        result = self.read(run)
        rules, cautions = rules_of(result, rounded(run)), self.cautions(result)
        linked = wide_links.links_words(result)
        more = [*wide_evidence.beside_words(rules), *([linked] if rules.told else []), *cautions]
        return Headline(
            wide_evidence.headline_words(rules, linked),
            wide_evidence.tone_of(rules, cautions),
            tuple(more),
        )

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, columns, rows, links, penalty, gap."""
        result = self.read(run)
        linked = wide_links.chosen_links(result)
        facts = [
            ("classes", f"{len(result.levels):,}"),
            ("columns", f"{len(result.feature_names):,}"),
            ("rows that are fitted", wide_evidence.count_words(np.nansum(result.n_fitted))),
            ("held-out rows", wide_evidence.count_words(np.nansum(result.n_held))),
        ]
        if linked is not None:
            facts.append(("linked pairs", f"{linked:,} of {wide_links.n_pairs(result):,}"))
            facts.append(("penalty for a row (alpha)", f"{result.alpha:.3g}"))
            facts.append(("distance from the optimum, at most", f"{max(result.gap, 0.0):.1e}"))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Held-out rows, penalty, links, rows."""
        result = self.read(run)
        rules = rules_of(result, rounded(run))
        blocks: list[Block | None] = []
        if rules.told:
            blocks.append(wide_evidence.held_out(result, rules, wide_links.RULES))
        blocks += [
            wide_links.links(result),
            wide_links.penalty(result),
            wide_evidence.rows_by_class(result, self.rows_words(result, rules)),
        ]
        return [block for block in blocks if block is not None]

    def handling(self, run: Run) -> Sequence[str]:
        """What stayed at the site."""
        result = self.read(run)
        words = [
            "The model, its predictions of every row and the tables of links stay at the site "
            f"(consilience site outputs, with the site's own file and the run {run.info.run})."
        ]
        if result.model_stays:
            words.append(f"The links stayed there too: {short(result.model_stays, 300)}.")
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What links and errors cannot say."""
        return KNOWN

    # ------------------------------------------------------------------ what differs by method

    def read(self, run: Run) -> Any:
        """Return the result, checked."""
        if not isinstance(run.result, SparseQDAStudyResult):
            raise TypeError("the run is not one of sparse quadratic discriminant analysis")
        return run.result

    def cautions(self, result: Any) -> list[str]:
        """What stands against the answer."""
        found = [wide_links.convergence_words(result)]
        found += [f"{short(r, 500).rstrip('.')}." for r in getattr(result, "remarks", ())]
        return [words for words in found if words]

    def rows_words(self, result: Any, rules: Rules) -> str:
        """Say which rows are counted."""
        return (
            f"All rows of the table {result.site} that take part; {rules.n:,} of them are held out."
        )


REPORT = SparseQDAReport
