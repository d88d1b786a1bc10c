"""Report of sparse quadratic discriminant analysis of one table: errors, penalty, links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.discriminant.one_table.sparse_qda import SparseQDAStudyResult
from consilience.discriminant.report import figures
from consilience.report import drawing, wide_evidence
from consilience.report.drawing import short
from consilience.report.run import Run
from consilience.report.sections import (
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    numbers,
    percent,
    plural,
)
from consilience.report.wide_evidence import Rules, choice, rounded, rules_of
from consilience.report.wide_reading import (
    DENSITY,
    Network,
    candidates_of,
    community_words,
    network_of,
)

# Evidence in reports of sparse quadratic discriminant analysis: features that go together.


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
        "it is, the nearer to quadratic discriminant analysis, where all columns are linked.",
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


class SparseQDAReport(MethodReport):
    """Words, tables and figures on classes told apart by linked columns."""

    def headline(self, run: Run) -> Headline:
        """How many held-out rows are in a wrong class, and which columns are linked."""
        result = self.read(run)
        rules, cautions = rules_of(result, rounded(run)), self.cautions(result)
        linked = links_words(result)
        more = [*wide_evidence.beside_words(rules), *([linked] if rules.told else []), *cautions]
        return Headline(
            wide_evidence.headline_words(rules, linked),
            wide_evidence.tone_of(rules, cautions),
            tuple(more),
        )

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, columns, rows, links, penalty, gap."""
        result = self.read(run)
        linked = chosen_links(result)
        facts = [
            ("classes", f"{len(result.levels):,}"),
            ("columns", f"{len(result.feature_names):,}"),
            ("rows that are fitted", wide_evidence.count_words(np.nansum(result.n_fitted))),
            ("held-out rows", wide_evidence.count_words(np.nansum(result.n_held))),
        ]
        if linked is not None:
            facts.append(("linked pairs", f"{linked:,} of {n_pairs(result):,}"))
            facts.append(("penalty for a row (alpha)", f"{result.alpha:.3g}"))
            facts.append(("distance from the optimum, at most", f"{max(result.gap, 0.0):.1e}"))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Held-out rows, penalty, links, rows."""
        result = self.read(run)
        rules = rules_of(result, rounded(run))
        blocks: list[Block | None] = []
        if rules.told:
            blocks.append(wide_evidence.held_out(result, rules, RULES))
        blocks += [
            links(result),
            penalty(result),
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
        found = [convergence_words(result)]
        found += [f"{short(r, 500).rstrip('.')}." for r in getattr(result, "remarks", ())]
        return [words for words in found if words]

    def rows_words(self, result: Any, rules: Rules) -> str:
        """Say which rows are counted."""
        return (
            f"All rows of the table {result.site} that take part; {rules.n:,} of them are held out."
        )


REPORT = SparseQDAReport
