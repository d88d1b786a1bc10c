"""Report of reference averaging: did the rounds help, what did they cost, and who took part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.averaging.report import figures_reference
from consilience.averaging.report.figures_reference import (
    best_round,
    bytes_by_round,
    curve,
    differences,
    measured,
    movement,
    n_rounds,
    over_sites,
    pulls,
    unstable,
)
from consilience.report import drawing
from consilience.report.drawing import Z95
from consilience.report.run import Run
from consilience.report.sections import (
    DASH,
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    Tone,
    listed,
    number,
    numbers,
    percent,
    plural,
    site_name,
    size,
)

# --- Evidence in the report of reference averaging: the learner, the sites, the reference rows.

REFERENCES = {
    "moments": "drawn from a normal distribution with the pooled means and covariances, which "
    "the sites sent for that",
    "normal": "independent standard normal draws, which say nothing of how the columns hang "
    "together",
    "rows": "given with the study",
}
MOST_COEFFICIENTS = 40
MOST_LEVELS = 8


def probe_words(result: ReferenceAveragingResult) -> str:
    """Say how far the learner is from keeping its own predictions; nothing if not probed."""
    probes = np.asarray(result.probes, dtype=float)
    known = np.isfinite(probes[:, 0])
    if not known.any():
        return ""
    change = float(np.median(probes[known, 0]))
    if change <= figures_reference.SMALLEST_CHANGE:
        return "Refitted with its own predictions it gives them again, but for rounding."
    told = percent(change) if change >= 1e-3 else f"{100 * change:.1g} %"
    return f"Refitted with its own predictions it changes them by {told} (median)."


def probe(result: ReferenceAveragingResult) -> Block:
    """Whether the learner is one for which rounds lead to the fit of all rows."""
    title = "Does the learner keep its own predictions?"
    probes = np.asarray(result.probes, dtype=float)
    known, bad = np.isfinite(probes[:, 0]), unstable(result)
    if not known.any():
        return Block(
            title,
            (
                "Not probed. Rounds lead to the fit of all rows only for a learner that minimises "
                "a loss plus a penalty; trees, forests and boosting do not.",
            ),
        )
    asked = "the only site" if known.sum() == 1 else f"all {known.sum():,} sites"
    passed = f"It passed at {asked} asked."
    if bad.any():
        passed = f"It failed at {bad.sum():,} of {plural(int(known.sum()), 'site')}."
    text = [
        "A learner that minimises a loss plus a penalty, fitted again with its own predictions at "
        "the reference rows, gives the same predictions. One that does not is none for which the "
        "rounds lead to the fit of all rows. The limit is 1 %, or 20 times what another order of "
        "the rows changes, but 2 % at most.",
        f"{probe_words(result)} {passed}",
    ]
    warning = ""
    if bad.any() and result.reason != "not-separable":
        names = [site_name(s) for s, b in zip(result.sites, bad, strict=True) if b]
        warning = (
            f"At {listed(names)} it did not. The others hold most of the rows, so the rounds were "
            "run all the same."
        )
    rows = tuple(
        (
            site_name(site),
            f"{probes[i, 0]:.1e}",
            f"{probes[i, 1]:.1e}" if np.isfinite(probes[i, 1]) else DASH,
            "no" if bad[i] else "yes",
        )
        for i, site in enumerate(result.sites)
        if known[i]
    )
    head = ("site", "change, own predictions", "change, rows in another order", "keeps them")
    table = Table("Probe at every site", head, rows)
    picture = Picture(
        "reference-probes",
        figures_reference.plot_reference_probes(result),
        "Change of the predictions at the reference rows under a refit with one's own predictions; "
        "left of the limit (upright mark) the learner may be averaged in rounds.",
        f"Dots for {plural(int(known.sum()), 'site')}, {int(bad.sum())} of them beyond the limit.",
    )
    return Block(title, tuple(text), warning, picture, folded=(table,))


def influence(result: ReferenceAveragingResult) -> Block:
    """How far each site is from the average, before and after the rounds."""
    values = pulls(result)
    last = n_rounds(result)
    sizes = np.asarray(result.sizes, dtype=float)
    order = np.argsort(-np.nan_to_num(values[0]))
    top = int(order[0])
    text = [
        "Influence is a site's share of the rows times the distance of its predictions from the "
        "average, relative to the size of the average: how far the average would move if the site "
        "predicted what the average does.",
        f"In plain averaging {site_name(result.sites[top])} pulled most, "
        f"{percent(float(values[0, top]))} with {percent(sizes[top] / sizes.sum())} of the rows.",
    ]
    if last:
        now = int(np.nanargmax(values[last]))
        text.append(
            f"After round {last} it is {site_name(result.sites[now])}, with "
            f"{percent(float(values[last, now]))}: the sites' fits have come closer to one another."
            if values[last, now] < values[0, top]
            else f"After round {last} it is {site_name(result.sites[now])}, with "
            f"{percent(float(values[last, now]))}."
        )
    rows = tuple(
        (
            site_name(result.sites[i]),
            percent(sizes[i] / sizes.sum()),
            percent(float(values[0, i]), 2),
            *([percent(float(values[last, i]), 2)] if last else []),
        )
        for i in order
    )
    head = ("site", "share of rows", "plain averaging", *([f"round {last}"] if last else []))
    picture = Picture(
        "reference-influence",
        figures_reference.plot_reference_influence(result),
        "Influence of each site on the average, in plain averaging"
        + (f" (open) and after round {last} (filled)." if last else "."),
        f"Dots for {plural(len(result.sites), 'site')}; the largest influence is "
        f"{percent(float(values[0, top]))} at first.",
    )
    return Block(
        "Who pulls at the average",
        tuple(text),
        picture=picture,
        folded=(Table("Influence of every site", head, rows),),
    )


def contributions(result: ReferenceAveragingResult) -> Block:
    """Which site answered in which round."""
    title = "Who contributed to which round"
    told = np.asarray(result.contributed, dtype=bool)
    if result.schedule == "asynchronous":
        text = (
            "Sites did not wait for one another: a round ended with each new fit, and the others "
            "were in the average with their last predictions."
        )
    else:
        text = (
            "A site that does not answer in a round stays in the average with its last "
            "predictions, and returns when it answers again."
        )
    if told.all():
        return Block(title, (text, f"All {len(result.sites):,} sites answered in every round."))
    missed = (~told).sum(axis=0)
    rows = tuple(
        (site_name(site), f"{int(told[:, i].sum()):,}", _span(np.flatnonzero(~told[:, i])))
        for i, site in enumerate(result.sites)
        if missed[i]
    )
    never = [site_name(s) for i, s in enumerate(result.sites) if not told[:, i].any()]
    warning = f"{listed(never)} never sent a fit and is in no average." if never else ""
    picture = Picture(
        "reference-contributions",
        figures_reference.plot_reference_contributions(result),
        "Squares: the site sent a new fit in that round.",
        f"Map of {plural(len(result.sites), 'site')} by {plural(len(told), 'round')}; "
        f"{int(told.sum()):,} fits arrived, {int((~told).sum()):,} did not.",
    )
    table = Table("Rounds without a new fit", ("site", "fits sent", "rounds missed"), rows)
    return Block(title, (text,), warning, picture, folded=(table,))


def _span(rounds: Any) -> str:
    """Numbers of rounds, runs of them as from-to."""
    parts: list[str] = []
    groups = np.split(rounds, np.flatnonzero(np.diff(rounds) > 1) + 1)
    for group in groups:
        if len(group):
            many = len(group) > 2
            parts.append(f"{group[0]}{DASH}{group[-1]}" if many else ", ".join(map(str, group)))
    return ", ".join(parts[:12]) + (f" and {len(parts) - 12} more" if len(parts) > 12 else "")


# --------------------------------------------------------------------------- reference, model


def reference(result: ReferenceAveragingResult) -> Block:
    """What the reference rows are, and whether they reach far enough."""
    kind = REFERENCES.get(result.reference_kind, drawing.short(result.reference_kind, 60))
    p = len(result.feature_names)
    rank, needed = int(result.reference_rank), int(result.reference_needed_rank)
    condition = float(result.reference_condition)
    text = [
        f"{plural(int(result.n_reference), 'reference row')} in {plural(p, 'column')}, {kind}.",
        f"The rounds lead to the fit of all rows if these rows vary in every direction in which "
        f"the data do. Their rank is {rank} and {needed} is needed; "
        + (
            f"the condition number is {number(condition)}."
            if math.isfinite(condition)
            else "some direction is missing altogether."
        ),
    ]
    if result.convention:
        text.append(
            f"Weights of own and reference rows follow the convention "
            f"{drawing.short(result.convention, 40)}; a penalty means what it would mean for the "
            "table of all rows."
        )
    warning = " ".join(drawing.short(r, 500).rstrip(".") + "." for r in result.remarks)
    return Block("The reference rows", tuple(text), warning)


def coefficients(result: ReferenceAveragingResult) -> Block:
    """Coefficients of a linear learner."""
    found = np.atleast_2d(np.asarray(result.coefficients, dtype=float))
    names = [drawing.short(name, 60) for name in result.feature_names]
    shown = found[:MOST_LEVELS]
    largest = np.abs(found).max(axis=0)
    order = np.argsort(-largest, kind="stable")[:MOST_COEFFICIENTS]
    order = np.sort(order)
    intercepts = np.asarray(result.intercepts, dtype=float).ravel()
    intercepts = np.broadcast_to(intercepts, (len(shown),))
    columns = [numbers([b, *row[order]]) for b, row in zip(intercepts, shown, strict=True)]
    labels = ("intercept", *(names[j] for j in order))
    heads: tuple[str, ...] = ("coefficient",)
    if len(shown) > 1:
        levels = [drawing.short(v, 30) for v in result.levels]
        enough = len(levels) >= len(shown)
        heads = tuple(levels[: len(shown)] if enough else map(str, range(len(shown))))
    text = [
        "Weighted mean of the sites' fits to all their rows, in the columns as they were prepared."
        " There are no standard errors: a black-box learner gives none.",
    ]
    if len(order) < len(names):
        text.append(f"Those {len(order)} of {len(names):,} columns with the largest coefficients.")
    zero = int((largest == 0).sum())
    if zero:
        text.append(
            f"{plural(zero, 'coefficient is', 'coefficients are')} zero at every site that is "
            "averaged."
        )
    rows = tuple(zip(labels, *columns, strict=True))
    table = Table("Coefficients of what is kept", ("column", *heads), rows)
    return Block("The model", tuple(text), tables=(table,))


# --- Evidence in the report of reference averaging: rounds, comparison, penalties.

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
LOSSES = {"squared": "squared error", "brier": "Brier score", "log": "log loss"}
LATELY = 5
"""Last rounds whose share of the gain is told."""
MUCH = 0.1


# --------------------------------------------------------------------------- rounds


def rounds(run: Run, result: ReferenceAveragingResult) -> Block:
    """Curve of the held-out loss and of the average's movement, and every round."""
    last, chosen = n_rounds(result), int(result.chosen_round)
    moved = float(movement(result)[last])
    text = [
        "In round 0 every site fits its own rows, and the predictions at common reference rows "
        "are averaged. In each later round every site fits again, to its own rows and to the "
        "reference rows with the average as their response, which count "
        f"{_rho_words(result)}. The further the rounds go, the closer the sites' fits come to one "
        "another and to the fit of all rows.",
    ]
    if measured(result):
        text.append(
            "Rows that took part in no fit say which round is kept: the best one, if it beats "
            "plain averaging by more than one standard error of the paired difference. What is "
            "returned averages fits of all rows after as many rounds."
        )
    gain = curve(result)[0]
    warning = ""
    if chosen and chosen == last:
        lately = (gain[max(0, last - LATELY)] - gain[last]) / -gain[last]
        if np.isfinite(gain).all():
            text.append(
                f"The last round is the best one; the last {min(last, LATELY)} brought "
                f"{percent(lately, 0)} of the whole gain"
                + (", so more of them would bring little." if lately < MUCH else ".")
            )
        else:
            text.append("Of the rounds only the last was measured, beside plain averaging.")
        if lately >= MUCH:
            warning = "The rounds ended while they still gained: more of them may bring more."
    heard = f"; held-out loss changes by {percent(gain[chosen])} in the round that is kept"
    sent = bytes_by_round(result, run.transcript)
    picture = Picture(
        "reference-rounds",
        figures_reference.plot_reference_rounds(result, run.transcript),
        (
            "Top: held-out loss of each round less that of plain averaging, with one standard "
            "error (thick) and a 95 % interval (thin); below 0 is better. Bottom: "
            if measured(result)
            else ""
        )
        + "how far the average at the reference rows moved, relative to its size, in each round.",
        f"Curve over {plural(last, 'round')}; the average moved by "
        f"{percent(float(movement(result)[1]))} in round 1 and {percent(moved)} in round {last}"
        f"{heard if math.isfinite(gain[chosen]) else ''}. The table below has the numbers.",
    )
    title = "What the rounds gained and cost" if measured(result) else "How the rounds went"
    return Block(title, tuple(text), warning, picture, folded=(_round_table(result, sent),))


def _rho_words(result: ReferenceAveragingResult) -> str:
    first, last = float(result.rhos[1]), float(result.rhos[-1])
    if abs(last - first) <= 1e-9 * abs(first):
        return f"{_times(first)} as the own rows"
    return f"{_times(first)} as the own rows at first, and {_times(last)} at last"


def _times(rho: float) -> str:
    return "as much" if abs(rho - 1) < 5e-3 else f"{rho:.3g} times as much"


def _round_table(result: ReferenceAveragingResult, sent: Any) -> Table:
    gain, error = curve(result)
    told = np.asarray(result.contributed, dtype=bool).sum(axis=1)
    rhos = ("", *numbers(np.asarray(result.rhos, dtype=float)[1:]))
    rows = tuple(
        (
            str(k),
            rhos[k] or DASH,
            f"{told[k]:,}",
            percent(float(movement(result)[k]), 3) if k else DASH,
            percent(gain[k], 2),
            percent(error[k], 2) if k else DASH,
            f"{int(sent[k]):,}" if len(sent) else DASH,
        )
        for k in range(n_rounds(result) + 1)
    )
    head = (
        *("round", "weight of the reference", "sites with a new fit", "average moved by"),
        *("held-out loss beside averaging", "standard error", "bytes that had left all sites"),
    )
    return Table("Every round", head, rows, "Losses are shares of the loss of plain averaging.")


# --------------------------------------------------------------------------- comparison


def comparison(result: ReferenceAveragingResult) -> Block:
    """What is kept beside own fits and plain averaging, by site."""
    saved, error = differences(result)
    own = over_sites(result, saved[:, 0], error[:, 0])
    gain, gain_error = (v[int(result.chosen_round)] for v in curve(result))
    both = (own, (-gain, gain_error))  # rounds are pooled from figures that are rounded less
    text = [
        f"The {LOSSES.get(result.loss, result.loss)} on each site's held-out rows, under "
        + (
            "three fits: the site's own, the plain average of all sites' own fits, and what is "
            "kept."
            if result.kept
            else "two fits: the site's own, and the plain average of all sites' own fits, which is "
            "what is kept."
        )
        + " None of them saw these rows.",
        "Standard errors take the fits as given: they hold the chance in the rows predicted, not "
        "that in the rows fitted. With few held-out rows at a site its own figure says little.",
    ]
    mean, its_error = both[1 if result.kept else 0]
    picture = Picture(
        "reference-comparison",
        figures_reference.plot_reference_comparison(result),
        "Held-out loss saved at each site by what is kept, with its 95 % interval: filled blue "
        "better, orange square worse, open no clear difference. Blue line and band: all sites.",
        f"Dots for {plural(len(result.sites), 'site')}; over all of them {percent(mean)} is saved "
        f"over {'averaging' if result.kept else 'own fits'}, {PLUS_MINUS} "
        f"{percent(Z95 * its_error)}. The table below has the numbers.",
    )
    table = _site_table(result, saved, error, both)
    title = "Beside each site's own fit and plain averaging"
    return Block(title, tuple(text), "", picture, (table,))


def _site_table(
    result: ReferenceAveragingResult,
    saved: FloatArray,
    error: FloatArray,
    both: tuple[tuple[float, float], tuple[float, float]],
) -> Table:
    """Losses by site; `both` has what all of them save, over own fits and over averaging."""
    losses = np.asarray(result.local_losses, dtype=float)
    gain = curve(result)[0][int(result.chosen_round)]
    base = float(result.base_loss[int(result.chosen_track)])
    all_tell = np.isfinite(losses[np.asarray(result.held) > 0]).all(axis=0)
    totals = np.where(
        all_tell, (over_sites(result, losses[:, 0])[0], base, base * (1 + gain)), np.nan
    )
    cells = [_losses([*losses[:, j], totals[j]]) for j in range(3)]
    rows = []
    for i, site in enumerate((*result.sites, "all sites")):
        total = i == len(result.sites)
        pairs = both if total else [(saved[i, j], error[i, j]) for j in range(2)]
        held = float(np.sum(result.held) if total else result.held[i])
        rows.append(
            (
                "all sites" if total else site_name(site),
                f"{held:,.0f}",
                *(column[i] for column in cells[: 3 if result.kept else 2]),
                *_with_error(*pairs[0]),
                *(_with_error(*pairs[1]) if result.kept else ()),
            )
        )
    head = (
        *("site", "held out", "own fit", "averaging", *(["kept"] if result.kept else [])),
        *("saved over own fit", PLUS_MINUS),
        *(("saved over averaging", f"{PLUS_MINUS} ") if result.kept else ()),
    )
    note = (
        "Held out: rows. Saved: shares of the loss of averaging over all sites, with half of a "
        "95 % interval. "
        "Each site rounds its losses to what one row may tell, so they do not add up exactly. "
        f"{DASH}: the site held out no rows, or withheld a loss that few rows dominate; what is "
        "said of all sites is then that of the others."
    )
    return Table("Held-out loss by site", head, tuple(rows), note)


def _losses(values: Sequence[float]) -> tuple[str, ...]:
    """Write losses, which come rounded, without decimals that say nothing."""
    large = max((abs(v) for v in values if math.isfinite(v)), default=0.0) >= 1000
    if not large:
        return numbers(values)
    return tuple(f"{v:,.0f}" if math.isfinite(v) else DASH for v in values)


def _with_error(value: float, error: float) -> tuple[str, str]:
    return percent(float(value)), percent(Z95 * float(error))


def penalties(result: ReferenceAveragingResult) -> Block:
    """Every penalty of the grid at its best round."""
    averaging, best, error, best_rounds = figures_reference.penalty_losses(result)
    rows = tuple(
        (
            f"{float(v):g}",
            percent(averaging[t], 2),
            str(int(best_rounds[t])),
            percent(best[t], 2),
            percent(error[t], 2),
            "kept" if t == int(result.chosen_track) else "",
        )
        for t, v in enumerate(result.penalties)
    )
    head = (
        *(f"penalty {drawing.short(result.penalty_name, 30)}".strip(), "averaging", "best round"),
        *("loss at that round", "standard error of the gain", ""),
    )
    at = int(result.chosen_track)
    inner = np.sort(np.asarray(result.penalties, dtype=float))[1:-1]
    edge = float(result.penalties[at]) not in inner
    return Block(
        "Which penalty",
        (
            "The rounds went on with every penalty side by side, each with its own average; a "
            "penalty means what it would mean for the table of all rows.",
            *(
                ["The penalty that is kept is at the end of the grid: try a wider one."]
                if edge and len(result.penalties) > 2
                else []
            ),
        ),
        picture=Picture(
            "reference-penalties",
            figures_reference.plot_reference_penalties(result),
            "Held-out loss less that of the best averaging, by penalty, with 95 % intervals of "
            "what the rounds gain.",
            f"Curves over {plural(len(result.penalties), 'penalty', 'penalties')}; "
            f"{float(result.penalties[at]):g} is kept.",
        ),
        tables=(
            Table(
                "Penalties",
                head,
                rows,
                "Losses are compared with the best averaging and in shares of averaging's loss.",
            ),
        ),
    )


# --- Report of reference averaging: did the rounds help, what did they cost, and who took part.

BYTES_OF_A_NUMBER = 8


class ReferenceAveragingReport(MethodReport):
    """Words, tables and figures on the rounds of a black-box learner."""

    def headline(self, run: Run) -> Headline:
        """Say which of the four outcomes came, and where something simpler would do."""
        result = _result(run)
        text, tone = _verdict(result)
        more = [_why_not(result), _beside_own(result), _exact(run, result)]
        weak = [r for r in result.remarks if "rank" in r or "dependent" in r]
        return Headline(text, tone, tuple(m for m in (*more, *weak) if m))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Learner, rows, rounds, gain."""
        result = _result(run)
        facts = [
            ("learner", drawing.short(result.estimator.partition("(")[0], 30)),
            ("rows", f"{int(np.sum(result.sizes)):,}"),
            ("rounds of refits", f"{n_rounds(result):,}"),
            ("round that is kept", str(result.chosen_round or "plain averaging")),
            ("reference rows", f"{int(result.n_reference):,}"),
        ]
        if result.kept and measured(result):
            gain, error = _gain(result)
            facts.append(
                ("saved over averaging", f"{percent(-gain)} (standard error {percent(error)})")
            )
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Rounds, comparison, penalties, probe, influence, contributions, reference, model."""
        result = _result(run)
        blocks = []
        if n_rounds(result):
            blocks.append(rounds(run, result))
        if np.isfinite(differences(result)[0]).any():
            blocks.append(comparison(result))
        if len(result.penalties) > 1 and np.isfinite(result.base_loss).any():
            blocks.append(penalties(result))
        blocks += [
            probe(result),
            influence(result),
            contributions(result),
            reference(result),
        ]
        if np.size(result.coefficients):
            blocks.append(coefficients(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """What sites kept back, and how often they said how a fit of their rows looks."""
        result = _result(run)
        words = []
        if measured(result):
            held = np.asarray(result.held) > 0
            told = np.isfinite(np.asarray(result.local_losses, dtype=float)).all(axis=1)
            without = _names(result, ~held)
            if without:
                words.append(
                    f"{without} had too few rows to hold some out: the other sites say what the "
                    "rounds gained."
                )
            if (held & ~told).any():
                words.append(
                    f"{_names(result, held & ~told)} kept back a loss at the end, which few rows "
                    "dominate."
                )
        gaps = {x.field for x in run.transcript if x.verdict == "withheld"}
        if n_rounds(result) and gaps == {"probe"}:
            words.append(
                "These gaps are the probe of the learner, which is made in the first round only; "
                "nothing was kept back."
            )
        if n_rounds(result) and result.linear:
            words.append(
                "Predictions of a linear learner at so many rows are its coefficients. Each round "
                "is one more fit of the same rows, towards another target: several of them tell "
                "what the products of a site's columns are (for a ridge, exactly)."
            )
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What the rounds cannot do."""
        return _limits(_result(run))


def _names(result: ReferenceAveragingResult, which: NDArray[np.bool_]) -> str:
    return listed([site_name(s) for s, w in zip(result.sites, which, strict=True) if w])


def _result(run: Run) -> ReferenceAveragingResult:
    if not isinstance(run.result, ReferenceAveragingResult):
        raise TypeError("the run is not one of reference averaging")
    return run.result


# --------------------------------------------------------------------------- headline


def _verdict(result: ReferenceAveragingResult) -> tuple[str, Tone]:
    """Headline and its tone, by outcome."""
    learner = drawing.short(result.estimator, 60)
    if result.reason == "not-separable":
        return (
            f"Plain averaging is returned: {learner} does not behave as a sum of a loss and a "
            "penalty, so refits towards the average do not lead to the fit of all rows, and none "
            f"were run. {probe_words(result)}",
            "caution",
        )
    if not measured(result):
        what = (
            f"the fits of round {int(result.chosen_round)} are returned"
            if result.kept
            else "plain averaging is returned"
        )
        return (
            f"Not measured: no held-out rows tell what the refits of {learner} are worth, and "
            f"{what}.",
            "caution",
        )
    what = LOSSES.get(result.loss, result.loss)
    if not result.kept:
        least = best_round(result)
        gain, error = _gain(result, least)
        found = (
            "no round of refits lost less than averaging the sites' own fits"
            if least == 0
            else f"round {least}, the best of {n_rounds(result)}, is not better than averaging the "
            "sites' own fits by more than a standard error "
            f"({percent(gain)}, standard error {percent(error)})"
        )
        return f"No gain: on held-out rows {found}. Plain averaging is returned.", "plain"
    gain, error = _gain(result)
    text = (
        f"The rounds help: after {plural(int(result.chosen_round), 'round')} of refits the {what} "
        f"on held-out rows is {percent(-gain)} below that of averaging the sites' own fits "
        f"(standard error {percent(error)})."
    )
    if -gain > Z95 * error:
        return text, "good"
    return f"{text} That is more than one standard error, but chance may do as much.", "plain"


def _why_not(result: ReferenceAveragingResult) -> str:
    """What makes a learner fail the probe."""
    if result.reason != "not-separable":
        return ""
    if result.convention == "trees":
        return "Forests, boosting and single trees are of this kind."
    return (
        "Other learners fail so under a wrong convention of weights, or where the solver stops "
        "early: give a smaller tolerance."
    )


def _gain(result: ReferenceAveragingResult, at: int | None = None) -> tuple[float, float]:
    """Held-out loss of a round less that of averaging, and its error, in shares."""
    k = int(result.chosen_round) if at is None else at
    gain, error = curve(result)
    return float(gain[k]), float(error[k])


def _beside_own(result: ReferenceAveragingResult) -> str:
    """How what is kept does beside the fit of each site on its own."""
    saved, error = differences(result)
    mean, its_error = over_sites(result, saved[:, 0], error[:, 0])
    if not math.isfinite(mean):
        return ""
    low, high = mean - Z95 * its_error, mean + Z95 * its_error
    interval = f"95 % interval {percent(low)} to {percent(high)} of the loss of averaging"
    whose = "sites' own fits, each at its own site"
    told, n = int(np.isfinite(saved[:, 0]).sum()), len(result.sites)
    where = "" if told == n else f" (at the {told} of {plural(n, 'site')} that tell)"
    if low > 0:
        return (
            f"It predicts better than the {whose}{where}: they lose {percent(mean)} more "
            f"({interval})."
        )
    if high < 0:
        return (
            f"It predicts worse than the {whose}{where}: they lose {percent(-mean)} less (95 % "
            f"interval {percent(-high)} to {percent(-low)} of the loss of averaging). The sites "
            "differ in more than their rows, and one fit for all of them may not be what is wanted."
        )
    return (
        f"Beside the {whose}{where}, there is no clear difference: they lose {percent(abs(mean))} "
        f"{'more' if mean >= 0 else 'less'} ({interval}, above 0 where they lose more)."
    )


def _exact(run: Run, result: ReferenceAveragingResult) -> str:
    """Where sums of cross-products give the pooled fit, say so, with what they would cost."""
    if not result.least_squares:
        return ""
    p = len(result.feature_names)
    needed = BYTES_OF_A_NUMBER * len(result.sites) * (p + 2) * (p + 3) // 2
    sent = sum(line.bytes for line in run.transcript if line.direction == "from-site")
    if sent and needed > sent:
        return ""
    words = (
        f"There is an exact way: the learner is linear in {plural(p, 'column')} with squared loss, "
        "so the cross-products of columns and response, summed over the sites, give the fit of all "
        f"rows itself, in one round and about {size(needed)} in all"
    )
    if sent:
        words += f" in place of {size(sent)}"
    if result.reference_kind == "moments":
        words += "; those of the columns were sent anyway, to draw the reference rows"
    return words + "."


# --------------------------------------------------------------------------- limits


def _limits(result: ReferenceAveragingResult) -> list[str]:
    known = [
        "Near the fit of all rows is not always better. Where rows are spread over the sites at "
        "random, the plain average is close to it already, and it takes noise away: where the fit "
        "of all rows is overfitted, by a weak penalty on many columns, averaging predicts better.",
        "The rounds aim at one fit for all sites. Where the relationship itself differs between "
        "sites, that is the wrong target: meta clustering asks whether it does.",
        "The round is chosen by the same held-out rows that its gain is told on, so the gain of "
        "the best of many rounds is a little too good.",
        "Rounds lead to the fit of all rows only for a learner that minimises a loss plus a "
        "penalty, and only in directions in which the reference rows vary.",
        "The result is an average of fits: no standard errors, no tests, no intervals.",
        "Every round is one more fit of the same rows. What all of them together tell of a row is "
        "not bounded by rules on one of them, and there is no noise.",
        "A site says itself what the rounds are worth on its rows, and sends the predictions it "
        "chooses: one that lies can move the average by its share of the rows.",
    ]
    if result.linear and not result.least_squares:
        known.append(
            "For a linear learner with another loss, sums of gradients and second derivatives over "
            "the sites would reach the fit of all rows exactly, with a few rounds of Newton's "
            "method; where there are few columns that is cheaper than these rounds."
        )
    if result.levels:
        known.append(
            "Probabilities are averaged, so what is returned is not a model of the learner's own "
            "form; predicted probabilities lie closer together than those of a single fit."
        )
    if result.schedule == "asynchronous":
        known.append(
            "Sites do not wait for one another, so another run with the same seed may take them in "
            "another order and stop elsewhere on the way to the same fit."
        )
    if not math.isfinite(float(np.nansum(result.base_loss))) or not measured(result):
        known.append(
            "Without held-out rows nothing guards against rounds that make predictions worse."
        )
    return known


REPORT = ReferenceAveragingReport
