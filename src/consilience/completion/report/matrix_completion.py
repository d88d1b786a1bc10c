"""Report of matrix completion: how well missing cells are predicted, by what model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from consilience.completion.one_table.matrix_completion import RULES, MatrixCompletionResult
from consilience.completion.report import selection_study
from consilience.report import figures_selection, selection_evidence
from consilience.report.drawing import Z95
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
    with_error,
)

MODELS = {
    "soft": "the matrix of smallest nuclear norm at this penalty: singular values are shrunken",
    "soft-unshrunk": "the penalised matrix of this rank, its singular values fitted again",
    "hard": "the singular values cut after this rank, gaps filled again until they stay",
    "optspace": "a matrix of this rank, found by descent over pairs of subspaces",
    "ppca": "probabilistic principal components: a normal density with noise",
}


class MatrixCompletionReport(selection_study.EntryStudyReport[MatrixCompletionResult]):
    """Words, tables and figures on the missing cells of one table."""

    kept = "The completed table, scores, loadings and the predictor"
    kind = MatrixCompletionResult

    def headline(self, run: Run) -> Headline:
        """How well cells that took no part are predicted."""
        result = self.read(run)
        more = [result.choice_sentence()]
        if result.at_edge:
            rest = (result.final_sentence(),) if result.n_final else ()
            return Headline(result.choice_sentence(), "caution", rest)
        if not result.n_final:
            text, tone = _chosen(result)
            more = ["No cells were set aside, so nothing judges the choice anew."]
            found = selection_study.curve(result)
            near = selection_evidence.near_words(found) if found is not None else ""
            more += [near] if near else []
        elif math.isnan(result.final_error):
            text, tone = f"Not measured. {result.final_sentence()}", "caution"
        else:
            text, tone = _verdict(result)
        if _capped(result):
            more, tone = [*more, _capped(result)], "caution"
        return Headline(text, tone, tuple(more))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Size, rank, penalty, gap."""
        result = self.read(run)
        facts = [*selection_study.size_facts(result)]
        if result.rank >= 0:
            facts.append(("rank", f"{result.rank:,}"))
        if math.isfinite(result.alpha):
            facts.append(("penalty (alpha)", f"{result.alpha:.3g}"))
        if result.model == "soft" and math.isfinite(result.gap) and not result.capped:
            facts.append(("distance from the optimum, at most", f"{max(result.gap, 0.0):.1e}"))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Cells that were set aside, the choice, the components."""
        result = self.read(run)
        scaled = (run.info.settings.get("preparation") or {}).get("standardize") != "none"
        blocks = [_set_aside(result, scaled)] if result.n_final else []
        title = f"Which {'penalty' if result.parameter == 'alpha' else 'rank'}?"
        found = selection_study.curve(result)
        if found is None:
            blocks.append(selection_study.withheld(title))
        else:
            text = [f"The model: {MODELS[result.model]}."]
            place = selection_study.place(result, found)
            blocks.append(selection_evidence.choice(found, place, result.rule, title, text))
        blocks.append(_components(result))
        return blocks


def _chosen(result: MatrixCompletionResult) -> tuple[str, Tone]:
    """Headline and tone where the curve is all there is."""
    found = selection_study.curve(result)
    if found is None or not found.known:
        return result.choice_sentence(), "plain"
    place = selection_study.place(result, found)
    what = found.words(place)
    text = f"{what[0].upper()}{what[1:]} was chosen by held-out entries"
    share = selection_evidence.predicted(found, place)
    if math.isfinite(share):
        text += f", which it predicts with {percent(share, 0)} less squared error than rank 0"
    return f"{text}.", "plain"


def _verdict(result: MatrixCompletionResult) -> tuple[str, Tone]:
    """Headline and tone, by what means of rows and columns do on the same cells."""
    words = numbers(np.sqrt([result.final_error, result.baseline_error]))
    text = (
        f"{result.n_final:,} cells that took no part are predicted with a root mean squared error "
        f"of {words[0]}"
    )
    if math.isnan(result.baseline_error):
        return f"{text}.", "plain"
    gain, error = result.baseline_error - result.final_error, float(result.final_gain_se[1])
    beside = f"by row and column means it is {words[1]}"
    if gain <= 0:
        return f"{text}; {beside}, so the model is of no use here.", "caution"
    if not gain > Z95 * error:
        return f"{text}; {beside}, which is no clear difference.", "plain"
    return f"{text}; {beside}.", "good"


def _capped(result: MatrixCompletionResult) -> str:
    if not result.capped:
        return ""
    return "The limit on the rank (max_rank) bound the fit: it is not the best at its penalty."


def _set_aside(result: MatrixCompletionResult, scaled: bool) -> Block:
    errors, se = np.asarray(result.final_errors), np.asarray(result.final_se)
    text = [
        f"{plural(result.n_final, 'cell')} took no part in fit and choice, and were predicted at "
        "the end from all others."
    ]
    if scaled and result.form == "columns":
        text.append("Errors are in standard deviations of the columns.")
    known = np.isfinite(errors)
    roots = iter(numbers(np.sqrt(errors[known])))
    rows = tuple(
        (
            name,
            next(roots) if known[i] else DASH,
            with_error(error, float(se[i])),
            with_error(error - errors[0], float(result.final_gain_se[i])) if i else DASH,
        )
        for i, (name, error) in enumerate(zip(RULES, errors, strict=True))
    )
    head = ("rule", "root mean squared error", "squared error", "worse than the model by")
    note = "With standard errors, over rows. Worse by: on the same cells."
    if np.isnan(errors).any():
        note += f" {DASH}: not told."
    picture = None
    if np.isfinite(errors).any():
        picture = Picture(
            "selection-set-aside",
            figures_selection.plot_set_aside(RULES, errors, se),
            "Errors on the same cells: their differences are surer than intervals suggest.",
            "Dots for the model and means of rows and columns. The table below has the numbers.",
        )
    table = Table("Errors on cells that took no part", head, rows, note)
    return Block("How well are missing cells predicted?", tuple(text), "", picture, tables=(table,))


def _components(result: MatrixCompletionResult) -> Block:
    text = [selection_study.size_words(result)]
    centre = {
        "none": "Nothing was taken off before the fit.",
        "columns": "The means of the columns were taken off first.",
        "rows-and-columns": "The means of rows and columns were taken off first.",
    }[result.center]
    text.append(centre)
    if result.rank == 0:
        text.append("Nothing beyond these means was found: the fitted matrix has rank 0.")
    picture = None
    if result.singular_values.size:
        picture = Picture(
            "selection-components",
            figures_selection.plot_singular_values(result),
            "Singular values of the fitted matrix"
            + (", shrunken by the penalty." if result.model == "soft" else "."),
            f"Bars for {plural(result.rank, 'component')} in falling order.",
        )
    return Block("The fitted matrix", tuple(text), picture=picture)


REPORT = MatrixCompletionReport
