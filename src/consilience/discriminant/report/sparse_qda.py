"""Report of sparse quadratic discriminant analysis of one table: errors, penalty, links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from consilience.discriminant.one_table.sparse_qda import SparseQDAStudyResult
from consilience.discriminant.report import ClassesReport, figures
from consilience.report import drawing
from consilience.report.figures_wide_choice import (
    DENSITY,
    Network,
    candidates_of,
    community_words,
    network_of,
)
from consilience.report.sections import Block, Picture, Table, numbers, percent, plural
from consilience.report.wide_evidence import choice

OPEN_PAIRS = 15
MOST_PAIRS = 300
COLUMNS_OF_CLASSES = 8
"""Classes up to which partial correlations are listed by class; of more, the largest."""
GAP = 1e-6
"""Relative duality gap from which a fit is said not to have converged."""
RULES = {
    "naive Bayes": "no two columns linked",
    "QDA": "all columns linked, no penalty",
    "LDA with shrinkage": "one covariance for all classes, drawn to the diagonal",
}


def n_pairs(result: Any) -> int:
    """Pairs of columns that take part."""
    p = len(result.columns) if hasattr(result, "columns") else len(result.feature_names)
    return p * (p - 1) // 2


def chosen_links(result: Any) -> int | None:
    """Linked pairs at the chosen penalty; None where it is not told."""
    links = np.asarray(result.n_links)
    return int(links[result.chosen]) if int(result.chosen) >= 0 and len(links) else None


def links_words(result: Any) -> str:
    """Say how many pairs are linked."""
    linked, pairs = chosen_links(result), n_pairs(result)
    if linked is None:
        return "How many pairs of columns are linked is not told."
    how = "that was given" if result.fixed else "that was chosen"
    if not linked:
        return (
            f"At the penalty {how} no two columns are linked: this is naive Bayes with normal "
            "densities."
        )
    share = f" ({percent(linked / pairs)})" if pairs else ""
    return (
        f"At the penalty {how} (alpha {result.alpha:.3g}) {linked:,} of {pairs:,} pairs of columns"
        f"{share} are linked."
    )


# --------------------------------------------------------------------------- links


def links(result: Any) -> Block:
    """Show which columns go together within the classes."""
    title = "Columns that go together within the classes"
    network = network_of(result)
    stays = str(getattr(result, "model_stays", ""))
    if stays:
        return Block(
            title,
            (
                links_words(result),
                f"Which pairs these are stays at the site: {stays}. It has them in its own "
                "outputs, interactions.csv.",
            ),
        )
    if not len(network.pairs):
        return Block(title, (links_words(result),))
    shown = min(len(network.pairs), figures.MOST_LINKS)
    text = [
        links_words(result),
        "Two columns are linked if, given all other columns, they still go together in some class; "
        "the pattern of links is the same in all classes, their strength is not. Links describe "
        "the classes: they are neither causes nor proofs, and at another penalty there are more or "
        "fewer.",
        _blocks_words(result),
    ]
    caption = "Columns that are linked; the broader a line, the stronger."
    if shown < len(network.pairs):
        caption += f" Drawn are the {shown} strongest of {len(network.pairs):,}."
    picture = Picture(
        "wide-links",
        figures.plot_interactions(network),
        caption,
        f"Network of {plural(shown, 'link')}. The table below has the strongest.",
    )
    table = _pairs_table(network, slice(0, OPEN_PAIRS), "The strongest links")
    rest = slice(OPEN_PAIRS, MOST_PAIRS)
    folded = (_pairs_table(network, rest, "More links"),) if len(network.pairs) > OPEN_PAIRS else ()
    return Block(
        title, tuple(t for t in text if t), picture=picture, tables=(table,), folded=folded
    )


def _blocks_words(result: Any) -> str:
    """How linked columns fall into blocks."""
    sizes = sorted((len(block) for block in result.blocks), reverse=True)
    if not sizes:
        return ""
    p = len(result.columns) if hasattr(result, "columns") else len(result.feature_names)
    single = p - sum(sizes)
    if len(sizes) == 1 and not single:
        return "All columns hang together, some over others."
    words = f"Linked columns form {plural(len(sizes), 'block')}, the largest of {sizes[0]:,}"
    names = tuple(str(n) for n in result.feature_names)
    first = community_words(names, max(result.blocks, key=len), 3)
    return f"{words} ({first}); {plural(single, 'column')} stand{'s' * (single == 1)} alone."


def _pairs_table(network: Network, part: slice, caption: str) -> Table:
    k = len(network.levels)
    strongest, value = figures.strongest(network)
    strength = numbers(network.strength)
    by_class = k <= COLUMNS_OF_CLASSES
    levels = [f"in {drawing.short(level, 24)}" for level in network.levels]
    head: tuple[str, ...] = ("columns", "strength")
    head += tuple(levels) if by_class else ("largest partial correlation", "class")
    rows = []
    for i in range(len(network.pairs))[part]:
        a, b = (drawing.short(network.names[j], 30) for j in network.pairs[i])
        cells: Sequence[str]
        if by_class:
            cells = [correlation(v) for v in network.partial[i]]
        else:
            level = levels[strongest[i]][3:] if strongest[i] >= 0 else ""
            cells = [correlation(value[i]), level]
        rows.append((f"{a}, {b}", strength[i], *cells))
    note = (
        "Strength: norm of the entries of the precision matrices over the classes. By class: "
        "correlation given all other columns."
    )
    return Table(caption, head, tuple(rows), note)


def correlation(value: float) -> str:
    """Write a correlation."""
    if not math.isfinite(value):
        return "\N{EN DASH}"
    return f"{value:z.2f}".replace("-", "\N{MINUS SIGN}")


# --------------------------------------------------------------------------- penalty


def penalty(result: Any) -> Block | None:
    """Show how the penalty was chosen; None where it was given or is not told."""
    found = candidates_of(result)
    if len(found.values) < 2:
        return None
    text = [
        "A large penalty leaves no link, which is naive Bayes with normal densities; the smaller "
        "it is, the nearer to quadratic discriminant analysis, where all columns are linked."
    ]
    if result.fixed:
        text.append("The penalty was given, so nothing was chosen.")
    if getattr(result, "choice", "") == DENSITY:
        text.append(
            "Sites that protect records answer no questions about models. So the penalty is the "
            "one under which the rows of each site are densest by the models of the others, which "
            "follows from the moments alone. That is not the fewest rows in a wrong class: it "
            "tends to more links."
        )
    columns = {
        "linked pairs": [f"{int(v):,}" for v in result.n_links],
        "largest block": [f"{int(v):,}" for v in result.largest_block],
    }
    return choice(result, "How the penalty was chosen", tuple(text), columns)


def convergence_words(result: Any) -> str:
    """Say that the fit did not come near its optimum; empty where it did."""
    gap = float(result.gap)
    if not math.isfinite(gap) or gap <= GAP:
        return ""
    return (
        f"The fit had not converged: its certified distance from the optimum is {gap:.1e} (tol, or "
        "a larger penalty)."
    )


# --------------------------------------------------------------------------- the page


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


class SparseQDAReport(ClassesReport):
    """Words, tables and figures on classes told apart by linked columns."""

    result: ClassVar[type] = SparseQDAStudyResult
    study: ClassVar[str] = "sparse quadratic discriminant analysis"
    parts: ClassVar[str] = "links"
    beside: ClassVar[dict[str, str]] = RULES
    known: ClassVar[tuple[str, ...]] = KNOWN

    def model_words(self, result: Any) -> str:
        """Say how many pairs are linked."""
        return links_words(result)

    def model_facts(self, result: Any) -> list[tuple[str, str]]:
        """Links, penalty, gap."""
        linked = chosen_links(result)
        if linked is None:
            return []
        return [
            ("linked pairs", f"{linked:,} of {n_pairs(result):,}"),
            ("penalty for a row (alpha)", f"{result.alpha:.3g}"),
            ("distance from the optimum, at most", f"{max(result.gap, 0.0):.1e}"),
        ]

    def model_blocks(self, result: Any) -> list[Block | None]:
        """Links and penalty."""
        return [links(result), penalty(result)]

    def model_caution(self, result: Any) -> str:
        """Say that the fit did not come near its optimum."""
        return convergence_words(result)


REPORT = SparseQDAReport
