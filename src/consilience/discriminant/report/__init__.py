"""Pages and figures of classification of wide tables, and what their four pages have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from consilience.report import wide_evidence
from consilience.report.drawing import short
from consilience.report.run import Run
from consilience.report.sections import Block, Headline, MethodReport
from consilience.report.wide_evidence import Rules, count_words, rounded, rules_of


class ClassesReport(MethodReport):
    """Words, tables and figures on classes that are told apart.

    A page says by class attributes of what runs it is, how sentences call what the model consists
    of, what the rules beside the model are, and what the figures cannot say.
    """

    result: ClassVar[type]
    study: ClassVar[str]
    parts: ClassVar[str]
    beside: ClassVar[dict[str, str]]
    known: ClassVar[tuple[str, ...]]

    @abstractmethod
    def model_words(self, result: Any) -> str:
        """Say in a sentence what the model is."""

    @abstractmethod
    def model_facts(self, result: Any) -> list[tuple[str, str]]:
        """Numbers that describe the model."""

    @abstractmethod
    def model_blocks(self, result: Any) -> list[Block | None]:
        """What the model consists of, and how it was chosen."""

    @abstractmethod
    def model_caution(self, result: Any) -> str:
        """What stands against the model; empty where nothing does."""

    def beside_words(self, result: Any, rules: Rules) -> list[str]:
        """Compare with the rules beside the model."""
        return wide_evidence.beside_words(rules)

    def headline(self, run: Run) -> Headline:
        """How many held-out rows are in a wrong class, and what the model is."""
        result = self.read(run)
        rules, cautions = rules_of(result, rounded(run)), self.cautions(result)
        of = self.model_words(result)
        more = [*self.beside_words(result, rules), *([of] if rules.told else []), *cautions]
        return Headline(
            wide_evidence.headline_words(rules, of),
            wide_evidence.tone_of(rules, cautions),
            tuple(more),
        )

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, columns, rows, and the model."""
        result = self.read(run)
        return [
            ("classes", f"{len(result.levels):,}"),
            ("columns", f"{len(result.feature_names):,}"),
            ("rows that are fitted", count_words(np.nansum(result.n_fitted))),
            ("held-out rows", count_words(np.nansum(result.n_held))),
            *self.model_facts(result),
        ]

    def evidence(self, run: Run) -> Sequence[Block]:
        """Held-out rows, the model, its choice, rows."""
        result = self.read(run)
        rules = rules_of(result, rounded(run))
        blocks = [
            wide_evidence.held_out(result, rules, self.beside) if rules.told else None,
            *self.model_blocks(result),
            wide_evidence.rows_by_class(result, self.rows_words(result, rules)),
        ]
        return [block for block in blocks if block is not None]

    def handling(self, run: Run) -> Sequence[str]:
        """What stayed at the site."""
        result = self.read(run)
        words = [
            f"The model, its predictions of every row and the tables of {self.parts} stay at the "
            f"site (consilience site outputs, with the site's own file and the run {run.info.run})."
        ]
        if result.model_stays:
            words.append(f"The {self.parts} stayed there too: {short(result.model_stays, 300)}.")
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What the model and its errors cannot say."""
        return self.known

    def read(self, run: Run) -> Any:
        """Return the result, checked."""
        if not isinstance(run.result, self.result):
            raise TypeError(f"the run is not one of {self.study}")
        return run.result

    def cautions(self, result: Any) -> list[str]:
        """What stands against the answer."""
        remarks = (f"{short(r, 500).rstrip('.')}." for r in getattr(result, "remarks", ()))
        return [words for words in (self.model_caution(result), *remarks) if words]

    def rows_words(self, result: Any, rules: Rules) -> str:
        """Say which rows are counted."""
        return (
            f"All rows of the table {result.site} that take part; {rules.n:,} of them are held out."
        )
