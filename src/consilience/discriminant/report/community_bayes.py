"""Report of community Bayes of one table: errors, communities, their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.discriminant.one_table.community_bayes import CommunityBayesStudyResult
from consilience.discriminant.report import wide_communities
from consilience.report import wide_evidence
from consilience.report.drawing import short
from consilience.report.run import Run
from consilience.report.sections import Block, Headline, MethodReport
from consilience.report.wide_evidence import Rules, rounded, rules_of

KNOWN = (
    "Communities are taken as independent given the class. Where they are not, probabilities are "
    "too near to 0 and 1, even if the right class is the likeliest.",
    "Much of what communities gain over a base without a penalty, a penalty gains too: the base "
    "on all columns at once stands beside them, with the same penalty.",
    "Rank correlations see what rises and falls together. Columns that go together in another way "
    "(one is large where the other is extreme) may be in different communities.",
    "Communities have no order but that of their first columns, and another linkage or other rows "
    "may group columns otherwise.",
    "Errors on held-out rows speak of rows like these. Rows of the same person, place or day on "
    "both sides make them too small: name an entity where rows belong together.",
)


class CommunityBayesReport(MethodReport):
    """Words, tables and figures on classifiers by communities of columns."""

    def headline(self, run: Run) -> Headline:
        """How many held-out rows are in a wrong class, and whether communities help."""
        result = self.read(run)
        rules, cautions = rules_of(result, rounded(run)), self.cautions(result)
        of = wide_communities.number_words(result)
        more = [
            *wide_communities.gain_words(result, rules),
            *wide_evidence.beside_words(rules, (wide_communities.ALONE,)),
            *([of] if rules.told else []),
            *cautions,
        ]
        return Headline(
            wide_evidence.headline_words(rules, of),
            wide_evidence.tone_of(rules, cautions),
            tuple(more),
        )

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, columns, rows, communities."""
        result = self.read(run)
        facts = [
            ("classes", f"{len(result.levels):,}"),
            ("columns", f"{len(result.feature_names):,}"),
            ("rows that are fitted", wide_evidence.count_words(np.nansum(result.n_fitted))),
            ("held-out rows", wide_evidence.count_words(np.nansum(result.n_held))),
        ]
        if len(result.communities):
            sizes = [len(members) for members in result.communities]
            facts.append(("communities", f"{len(sizes):,}"))
            facts.append(("columns of the largest", f"{max(sizes):,}"))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Held-out rows, communities, their number, rows."""
        result = self.read(run)
        rules = rules_of(result, rounded(run))
        blocks: list[Block | None] = []
        if rules.told:
            blocks.append(wide_evidence.held_out(result, rules, wide_communities.RULES))
        blocks += [
            wide_communities.communities(result),
            wide_communities.number(result),
            wide_evidence.rows_by_class(result, self.rows_words(result, rules)),
        ]
        return [block for block in blocks if block is not None]

    def handling(self, run: Run) -> Sequence[str]:
        """What stayed at the site."""
        result = self.read(run)
        words = [
            "The model, its predictions of every row and the tables of communities stay at the "
            f"site (consilience site outputs, with the site's own file and the run {run.info.run})."
        ]
        if result.model_stays:
            words.append(f"The communities stayed there too: {short(result.model_stays, 300)}.")
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What communities and errors cannot say."""
        return KNOWN

    # ------------------------------------------------------------------ what differs by method

    def read(self, run: Run) -> Any:
        """Return the result, checked."""
        if not isinstance(run.result, CommunityBayesStudyResult):
            raise TypeError("the run is not one of community Bayes")
        return run.result

    def cautions(self, result: Any) -> list[str]:
        """What stands against the answer."""
        found = [f"{short(r, 500).rstrip('.')}." for r in getattr(result, "remarks", ())]
        separable = wide_communities.separable_words(result)
        return [separable, *found] if separable else found

    def rows_words(self, result: Any, rules: Rules) -> str:
        """Say which rows are counted."""
        return (
            f"All rows of the table {result.site} that take part; {rules.n:,} of them are held out."
        )


REPORT = CommunityBayesReport
