"""Report of community Bayes of one table: errors, communities, their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import IntArray
from consilience.discriminant.one_table.community_bayes import CommunityBayesStudyResult
from consilience.discriminant.report import ClassesReport, figures
from consilience.report import drawing, wide_evidence
from consilience.report.figures_wide_choice import candidates_of, tree_of
from consilience.report.sections import Block, Picture, Table, listed, numbers, plural
from consilience.report.wide_evidence import Rules, choice, count_words, with_error

OPEN_COMMUNITIES = 20
MOST_COMMUNITIES = 300
NAMED = 10
"""Columns that are named of each community; of more, the first."""
MOST_COEFFICIENTS = 400
ALONE = "one community"
"""Name of the base without communities among the rules."""
RULES = {
    "one community": "the base on all columns at once",
    "class frequencies": "the shares of the classes, whatever the columns",
    "naive Bayes": "every column by itself",
}


def n_communities(result: Any) -> int:
    """Return the number of communities, -1 where it is not told."""
    return len(result.communities) or int(getattr(result, "n_communities", -1))


def number_words(result: Any) -> str:
    """Say how many communities there are."""
    n, p = n_communities(result), len(result.feature_names)
    if n < 1:
        return "How many communities of columns there are is not told."
    how = "The number was given." if result.fixed else "The number was chosen."
    losses = getattr(result, "candidate_loss", None)
    if not result.fixed and losses is not None and np.isnan(losses).all():
        how = "Nothing chose the number."
    if n == 1:
        return f"All {p:,} columns are one community: the base alone. {how}"
    if n == p:
        return f"Each of the {p:,} columns is a community of its own. {how}"
    return f"{p:,} columns fall into {plural(n, 'community', 'communities')}. {how}"


def gain_words(result: Any, rules: Rules) -> list[str]:
    """Say whether communities do better than the base without them."""
    if ALONE not in rules.names or n_communities(result) == 1:
        return []
    i = rules.names.index(ALONE)
    if not (np.isfinite(rules.gain[i]) and np.isfinite(rules.gain_se[i])):
        return []
    if rules.clear(i) > 0:
        return ["Communities help: the base on all columns at once has worse probabilities."]
    if rules.clear(i) < 0:
        return ["Communities do harm: the base on all columns at once has better probabilities."]
    return [
        "There is no sign that communities help: the base on all columns at once has probabilities "
        "that are as good."
    ]


def separable_words(result: Any) -> str:
    """Say that the classes can be told apart without error in some communities."""
    n = int(getattr(result, "n_separable", 0))
    if n < 1:
        return ""
    return (
        f"In {plural(n, 'community', 'communities')} the fitted rows can be told apart without "
        "error: there the penalty alone decides how large coefficients are."
    )


# --------------------------------------------------------------------------- communities


def communities(result: Any) -> Block:
    """Show which columns fall into which community."""
    title = "The communities"
    stays = str(getattr(result, "model_stays", ""))
    if stays and not len(result.communities):
        return Block(
            title,
            (
                number_words(result),
                f"Which columns they are stays at the site: {stays}. It has them in its own "
                "outputs, communities.csv.",
            ),
        )
    text = [
        number_words(result),
        "Columns are merged by their rank correlations within the classes, and each community has "
        "a classifier of its own; what those say is multiplied, as if communities were independent "
        "given the class. A community is no cause: its columns go together, that is all.",
    ]
    picture = None
    if len(tree_of(result).merges):
        picture = Picture(
            "wide-tree",
            figures.plot_dendrogram(result),
            "Merges of columns, from the most alike (left) to all (right); dashed: the cut.",
            f"Tree of {plural(len(result.feature_names), 'column')}. The table below has the "
            "communities.",
        )
    table = _table(result, slice(0, OPEN_COMMUNITIES), "Columns by community")
    folded = []
    if len(result.communities) > OPEN_COMMUNITIES:
        folded.append(_table(result, slice(OPEN_COMMUNITIES, MOST_COMMUNITIES), "More communities"))
    folded += _coefficients(result)
    return Block(title, tuple(text), picture=picture, tables=(table,), folded=tuple(folded))


def _table(result: Any, part: slice, caption: str) -> Table:
    names = [drawing.short(name, 30) for name in result.feature_names]
    similar = np.asarray(getattr(result, "similarity", np.empty((0, 0))), dtype=float)
    behind = np.asarray(getattr(result, "community_rows", np.empty(0)), dtype=float)
    said = np.asarray(getattr(result, "evidence", np.empty(0)), dtype=float)
    said = said if len(said) == len(result.communities) and np.isfinite(said).any() else said[:0]
    head: tuple[str, ...] = ("community", "columns", "which")
    cells = []
    for number, members in list(enumerate(result.communities, 1))[part]:
        row = [str(number), f"{len(members):,}", listed([names[j] for j in members], NAMED)]
        if similar.size:
            row.append(_likeness(similar, members))
        if behind.size:
            row.append(count_words(behind[number - 1]))
        if said.size:
            row.append(with_error(said[number - 1], result.evidence_se[number - 1]))
        cells.append(tuple(row))
    note = ""
    if similar.size:
        head += ("alike",)
        note = "Alike: mean similarity of two columns of the community, in shares of the largest "
        note += "of any two."
    if behind.size:
        head += ("rows behind it",)
    if said.size:
        head += ("says for the right class",)
        note += " Says for the right class: mean over held-out rows of its log-probability given "
        note += "the community less that without it, with the standard error."
    return Table(caption, head, tuple(cells), note.strip())


def _likeness(similar: NDArray[np.float64], members: IntArray) -> str:
    if len(members) < 2:
        return "\N{EN DASH}"
    apart = np.triu_indices(len(members), 1)
    inside = similar[np.ix_(members, members)][apart]
    top = similar[np.triu_indices(len(similar), 1)].max()
    return f"{inside.mean() / top:.2f}" if top > 0 else "\N{EN DASH}"


def _coefficients(result: Any) -> list[Table]:
    """Coefficients of a linear base, where they are told."""
    if not hasattr(result, "coefficients") or len(result.levels) > 8:
        return []
    names = [drawing.short(name, 40) for name in result.feature_names]
    rows: list[tuple[str, ...]] = []
    for number, (members, slopes) in enumerate(
        zip(result.communities, result.coefficients, strict=True), 1
    ):
        for place, j in enumerate(members):
            values = numbers(np.asarray(slopes, dtype=float)[:, place])
            rows.append((names[j], str(number), *values))
    if not rows or len(rows) > MOST_COEFFICIENTS:
        return []
    levels: Sequence[str] = [drawing.short(level, 30) for level in result.levels]
    of = levels[1:] if len(rows[0]) == 3 else levels
    note = "Log odds for one unit more of the column, as it was prepared" + (
        f", of {levels[1]} against {levels[0]}." if len(of) == 1 else "."
    )
    heads = [f"for {level}" for level in of]
    if len(set(heads)) < len(heads):
        heads = [f"{head} ({i + 1})" for i, head in enumerate(heads)]
    return [Table("Coefficients", ("column", "community", *heads), tuple(rows), note)]


# --------------------------------------------------------------------------- number


def number(result: Any) -> Block | None:
    """Show how the number of communities was chosen; None where it is not told."""
    found = candidates_of(result)
    known = np.isfinite(found.errors).any() or np.isfinite(found.loss).any()
    if len(found.values) < 2 or not known:
        return None
    text = [
        "One community is the base on all columns at once; as many as columns is naive Bayes with "
        "the base for each column."
    ]
    columns: dict[str, list[str]] = {}
    gains = np.asarray(getattr(result, "candidate_gain", np.empty(0)), dtype=float)
    if np.isfinite(gains).any():
        first = f"{int(result.candidates[0]):,}"
        columns[f"better than {first} by"] = [
            with_error(g, e) for g, e in zip(gains, result.candidate_gain_se, strict=True)
        ]
    return choice(result, "How many communities", tuple(text), columns)


# --------------------------------------------------------------------------- the page


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


class CommunityBayesReport(ClassesReport):
    """Words, tables and figures on classifiers by communities of columns."""

    result: ClassVar[type] = CommunityBayesStudyResult
    study: ClassVar[str] = "community Bayes"
    parts: ClassVar[str] = "communities"
    beside: ClassVar[dict[str, str]] = RULES
    known: ClassVar[tuple[str, ...]] = KNOWN

    def model_words(self, result: Any) -> str:
        """Say how many communities there are."""
        return number_words(result)

    def beside_words(self, result: Any, rules: Rules) -> list[str]:
        """Say whether communities help, and compare with the other rules."""
        return [*gain_words(result, rules), *wide_evidence.beside_words(rules, (ALONE,))]

    def model_facts(self, result: Any) -> list[tuple[str, str]]:
        """Communities."""
        sizes = [len(members) for members in result.communities]
        if not sizes:
            return []
        return [("communities", f"{len(sizes):,}"), ("columns of the largest", f"{max(sizes):,}")]

    def model_blocks(self, result: Any) -> list[Block | None]:
        """Communities and their number."""
        return [communities(result), number(result)]

    def model_caution(self, result: Any) -> str:
        """Say that the classes can be told apart without error in some communities."""
        return separable_words(result)


REPORT = CommunityBayesReport
