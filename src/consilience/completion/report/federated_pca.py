"""Report of components over sites: how many, what they are made of, what they carry where."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.report import figures_selection, selection_evidence
from consilience.report.drawing import short
from consilience.report.figures_selection import Curve, curve_of
from consilience.report.run import Run
from consilience.report.sections import (
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    Tone,
    listed,
    numbers,
    percent,
    plural,
    site_name,
)

KNOWN = (
    "Rows are taken as independent. Rows of the same person, day or batch predict one another, and "
    "too many components are kept.",
    "Columns that are nearly copies of one another are a component by themselves.",
    "Components are directions in which columns vary together. They are no causes, and with other "
    "rows those of nearly equal variance mix.",
    "With missing cells: a cell may be missing because of what else is observed in its row, not "
    "because of what it would say.",
)


class FederatedPCAReport(MethodReport):
    """Words, tables and figures on components that sites share."""

    def headline(self, run: Run) -> Headline:
        """How many components, what they carry, and how clear that is."""
        result = _result(run)
        found = _curve(result)
        text, tone = _verdict(result, found)
        more: list[str] = []
        if found is not None and not result.at_edge:
            more += [words for words in (selection_evidence.near_words(found),) if words]
        more += [f"{short(remark, 500).rstrip('.')}." for remark in result.remarks]
        return Headline(text, tone, tuple(more))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, columns, components, what they carry."""
        result = _result(run)
        facts = [
            ("rows", f"{result.n:,}"),
            ("columns", f"{len(result.feature_names):,}"),
            ("components", f"{result.rank:,}"),
            ("share of the variance", percent(float(result.explained_variance_ratio.sum()))),
        ]
        found = _curve(result)
        share = selection_evidence.predicted(found, _place(result, found)) if found else np.nan
        if np.isfinite(share):
            facts.append(("of left-out entries predicted", percent(float(share))))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """The choice, what components carry, what they are made of, sites."""
        result = _result(run)
        blocks = [_choice(result), _carried(result)]
        if result.rank:
            text = (
                "Weights have a length of 1 in each component; the largest of each is positive.",
            )
            blocks.append(selection_evidence.loadings(result, result.components, text))
        blocks.append(_sites(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """Which columns stayed, and what each site keeps."""
        result = _result(run)
        words = [
            "Scores of the rows, completed tables and the predictor stay at each site (consilience "
            f"site outputs, with the site's own file and the run {run.info.run})."
        ]
        if result.withheld:
            names = listed([short(name, 40) for name in result.withheld])
            words.append(f"Columns that some site could not tell take no part: {names}.")
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What components and held-out entries cannot say."""
        return KNOWN


def _result(run: Run) -> FederatedPCAResult:
    if not isinstance(run.result, FederatedPCAResult):
        raise TypeError("the run is not one of federated-pca")
    return run.result


def _curve(result: FederatedPCAResult) -> Curve | None:
    found = result.curve()
    return None if found is None else curve_of(found)


def _place(result: FederatedPCAResult, found: Curve) -> int:
    """Place of the rank of the model; -1 where it was not judged, or at an edge."""
    if not 0 <= result.chosen < len(found.values) or (result.at_edge and not result.fixed):
        return -1
    return int(result.chosen)


def _verdict(result: FederatedPCAResult, found: Curve | None) -> tuple[str, Tone]:
    carried = percent(float(result.explained_variance_ratio.sum()), 0)
    columns = f"{plural(len(result.feature_names), 'column')} of {result.n:,} rows at " + plural(
        len(result.sites), "site"
    )
    many = plural(result.rank, "component")
    if found is None or not found.known:
        text = f"{columns} were put into {many}, {carried} of their variance"
        if result.fixed:
            return f"{text}; the number was given and not judged.", "plain"
        return f"Not measured: there are too few rows to leave any out. {text}.", "caution"
    if result.fixed:
        beside = f"; entries that were left out would choose {found.words(found.minimum)}"
        same = found.minimum == result.chosen
        text = f"{columns} were put into {many}, {carried} of their variance"
        return f"{text}{'' if same or found.at_edge else beside}. The number was given.", "plain"
    if result.at_edge:
        return (
            f"No number of components was chosen: the error of left-out entries still falls at "
            f"{found.words(found.minimum)}, where the ranks that were tried end.",
            "caution",
        )
    if result.rank == 0:
        return f"{columns} share no component: means predict left-out entries best.", "plain"
    share = selection_evidence.predicted(found, _place(result, found))
    text = f"{columns} share {many}, {carried} of their variance"
    if np.isfinite(share):
        text += f"; {percent(share, 0)} of an entry's squared distance from the mean is predicted "
        text += "from the rest of its row"
    return f"{text}.", "good" if len(found.flat) == 1 else "plain"


def _choice(result: FederatedPCAResult) -> Block:
    found = _curve(result)
    title = "How many components?"
    if found is None:
        return Block(title, ("The rank was given, or there are too few rows to leave any out.",))
    text = [
        "Groups of rows were left out in turn. The components of all other rows predicted every "
        "entry of them from the rest of its row; means alone are rank 0.",
    ]
    if result.fixed:
        text.append("The rank was given; the errors are shown for comparison.")
    share = np.concatenate([[0.0], np.cumsum(result.variances)]) / result.variances.sum()
    columns = {"variance carried": [percent(float(share[int(k)])) for k in found.values]}
    place = _place(result, found)
    block = selection_evidence.choice(found, place, result.rule, title, text, columns)
    errors = dict(zip(result.sites, result.site_errors, strict=True))
    entries = {s: int(n) for s, n in zip(result.sites, result.site_entries, strict=True)}
    sites = selection_evidence.by_site(found, errors, entries, place)
    return dataclasses.replace(block, folded=(*block.folded, *([sites] if sites else ())))


def _carried(result: FederatedPCAResult) -> Block:
    shown = min(len(result.variances), figures_selection.MOST_BARS)
    text = (
        f"The components of the model carry {percent(float(result.explained_variance_ratio.sum()))}"
        " of the variance. That more components carry more is no reason to take them: it is so of "
        "noise as well.",
    )
    picture = Picture(
        "selection-variance",
        figures_selection.plot_singular_values(result),
        "Share of the variance that each component carries, and their sum.",
        f"Bars for {plural(shown, 'component')} in falling order, {result.rank} in the model.",
    )
    shares = result.variances / result.variances.sum()
    rows = tuple(
        (str(j + 1), *line, percent(float(shares[j])), percent(float(shares[: j + 1].sum())))
        for j, line in enumerate(zip(numbers(result.variances[:shown]), strict=True))
    )
    head = ("component", "variance", "share", "sum")
    return Block(
        "What they carry", text, "", picture, folded=(Table("Variance by component", head, rows),)
    )


def _sites(result: FederatedPCAResult) -> Block:
    rows = tuple(
        (
            site_name(site),
            f"{int(result.n_by_site[i]):,}",
            f"{int(result.groups_by_site[i]):,}",
            percent(float(result.site_explained[i])),
        )
        for i, site in enumerate(result.sites)
    )
    text = [
        "Carried: the share of the rows' squared distance from the mean of all sites that lies "
        "along the components. Where it is low, a site's rows vary in other ways.",
    ]
    if np.any(result.groups_by_site < 2):
        text.append("A site with one group had too few rows to make more.")
    if result.missing_kept:
        text.append(
            "Cells may be missing: each group told the moments of the normal density of largest "
            "likelihood."
        )
    table = Table("Rows by site", ("site", "rows", "groups that were told", "carried"), rows)
    return Block("The sites", tuple(text), tables=(table,))


REPORT = FederatedPCAReport
