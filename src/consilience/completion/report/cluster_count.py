"""Report of the number of classes in one table: what held-out entries and other criteria say."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from consilience.completion.one_table.cluster_count import ClusterCountResult
from consilience.completion.report import selection_study
from consilience.report import figures, selection_evidence
from consilience.report.figures_selection import Curve
from consilience.report.run import Run
from consilience.report.sections import (
    DASH,
    Block,
    Headline,
    Picture,
    Table,
    Tone,
    numbers,
    percent,
    plural,
)

MODELS = {
    "observed-kmeans": "k-means over the values that each row has",
    "kpod": "k-means with gaps filled by the centre of the row's class, again and again (k-POD)",
}
OWN_LIMITS = (
    "k-means looks for round classes of similar spread. Long, curved or very unequal classes are "
    "cut up, and each piece counts.",
    "Classes that only a single column tells apart cannot be counted: no other column says where a "
    "row belongs whose entry is held out.",
)


class ClusterCountReport(selection_study.EntryStudyReport[ClusterCountResult]):
    """Words, tables and figures on the number of classes in one table."""

    kept = "Labels of the rows, the figures of every class and the predictor"
    kind = ClusterCountResult

    def headline(self, run: Run) -> Headline:
        """How many classes, and how clearly."""
        result = self.read(run)
        found = selection_study.curve(result)
        text, tone = _verdict(result, found)
        return Headline(text, tone, tuple(w for w in (result.criteria_sentence(),) if w))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Size, classes, what they predict."""
        result = self.read(run)
        facts = [*selection_study.size_facts(result)]
        facts.append(("classes that were kept", f"{result.n_clusters:,}"))
        found = selection_study.curve(result)
        if found is not None:
            share = selection_evidence.predicted(found, selection_study.place(result, found))
            if np.isfinite(share):
                facts.append(("less error than with one class", percent(share)))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """The choice, other criteria, the classes."""
        result = self.read(run)
        title = "How many classes?"
        found = selection_study.curve(result)
        if found is None:
            blocks = [selection_study.withheld(title)]
        else:
            text = [
                f"{selection_study.size_words(result)} The model: {MODELS[result.model]}; an entry "
                "is predicted by the mean of the row's class."
            ]
            place = selection_study.place(result, found)
            blocks = [selection_evidence.choice(found, place, result.rule, title, text)]
        if result.criteria:
            blocks.append(_criteria(result))
        if np.isfinite(result.sizes).any():
            blocks.append(_classes(result))
        return blocks

    def limits(self, run: Run) -> Sequence[str]:
        """What k-means and held-out entries cannot say."""
        return [*super().limits(run), *OWN_LIMITS]


def _verdict(result: ClusterCountResult, found: Curve | None) -> tuple[str, Tone]:
    if result.at_edge:
        return result.choice_sentence(), "caution"
    if found is None or not found.known:
        return result.choice_sentence(), "plain"
    place = selection_study.place(result, found)
    if result.n_clusters == 1:
        return (
            "One class only: no larger number predicts held-out entries "
            + ("better." if place == found.minimum else "clearly better."),
            "plain",
        )
    text = f"{result.n_clusters} classes predict held-out entries best"
    share = selection_evidence.predicted(found, place)
    if np.isfinite(share):
        text += f", with {percent(share, 0)} less squared error than one class"
    near = selection_evidence.near_words(found)
    if near:
        return f"{text}. {near}", "plain"
    return f"{text}.", "good"


def _criteria(result: ClusterCountResult) -> Block:
    text = (
        "Other criteria judge how compact and how far apart the classes are, on complete rows. All "
        "begin at two classes but the gap statistic, Hartigan's and the jump.",
    )
    rows = tuple((name, str(k) if k else "none") for name, k in result.criteria.items())
    rows = (("held-out entries", "none" if result.at_edge else str(result.n_clusters)), *rows)
    table = Table("Number of classes by criterion", ("criterion", "classes"), rows)
    values = {
        name: numbers(v) for name, v in result.criteria_curves.items() if np.isfinite(v).any()
    }
    folded = []
    if values:
        lines = tuple(
            (f"{k:,.0f}", *(column[i] for column in values.values()))
            for i, k in enumerate(result.candidates)
        )
        note = f"{DASH}: not defined."
        folded.append(Table("Values of the criteria", ("classes", *values), lines, note))
    return Block("What other criteria say", text, tables=(table,), folded=tuple(folded))


def _classes(result: ClusterCountResult) -> Block:
    sizes, centres = np.asarray(result.sizes), np.asarray(result.centers)
    names = [f"class {k}" for k in range(len(sizes))]
    total = np.nansum(sizes)
    rows = [
        ("rows", *(f"{n:,.0f}" if np.isfinite(n) else DASH for n in sizes)),
        ("share", *(percent(n / total) for n in sizes)),
        *(
            (name, *numbers(means))
            for name, means in zip(result.feature_names, centres.T, strict=True)
        ),
    ]
    gaps = np.isnan(sizes).any() or np.isnan(centres).any()
    note = f"{DASH}: too few rows to be told." if gaps else ""
    table = Table("Means by class", ("column", *names), tuple(rows), note)
    picture = None
    if len(sizes) > 1 and centres.size:
        drawn = SimpleNamespace(
            class_means_scaled=centres,
            class_means=centres,
            class_sizes=np.nan_to_num(sizes),
            feature_names=result.feature_names,
        )
        picture = Picture(
            "selection-classes",
            figures.plot_class_profiles(drawn),
            "What sets the classes apart: differences from the mean over classes, the largest of "
            "each line = 1.",
            f"Map of colours of {plural(centres.shape[1], 'column')} in "
            f"{plural(len(sizes), 'class', 'classes')}. The table below has the means.",
        )
    return Block("What the classes look like", (), "", picture, tables=(table,))


REPORT = ClusterCountReport
