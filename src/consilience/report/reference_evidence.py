"""Blocks of evidence in the report of reference averaging: rounds, comparison, learner, sites."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.engines.federation import Run
from consilience.methods.reference_averaging.result import ReferenceAveragingResult
from consilience.report import drawing, figures_reference
from consilience.report.drawing import Z95
from consilience.report.figures_reference import (
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
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
    listed,
    number,
    numbers,
    percent,
    plural,
    site_name,
)

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
LOSSES = {"squared": "squared error", "brier": "Brier score", "log": "log loss"}
REFERENCES = {
    "moments": "drawn from a normal distribution with the pooled means and covariances, which "
    "the sites sent for that",
    "normal": "independent standard normal draws, which say nothing of how the columns hang "
    "together",
    "rows": "given with the study",
}
_LEAST_SQUARES = re.compile(r"ridge|lasso|elastic|linear(?!svr)|lars", re.IGNORECASE)
LATELY = 5
"""Last rounds whose share of the gain is told."""
MUCH = 0.1
MOST_COEFFICIENTS = 40
MOST_LEVELS = 8


def least_squares(result: ReferenceAveragingResult) -> bool:
    """Whether sums of cross-products hold all that the fit of all rows needs."""
    return bool(
        result.linear
        and result.task == "regression"
        and result.loss == "squared"
        and _LEAST_SQUARES.search(result.estimator)
    )


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
            text.append("The last round is the best one" + _lately(lately, min(last, LATELY)))
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


def _lately(share: float, rounds: int) -> str:
    return (
        f"; the last {rounds} brought {percent(share, 0)} of the whole gain, so more of them would "
        "bring little."
        if share < MUCH
        else f"; the last {rounds} brought {percent(share, 0)} of the whole gain."
    )


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
    losses = np.asarray(result.local_losses, dtype=float)
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
    table = Table("Held-out loss by site", head, tuple(rows), note)
    title = "Beside each site's own fit and plain averaging"
    return Block(title, tuple(text), "", picture, (table,))


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


# --------------------------------------------------------------------------- learner and sites


def probe_words(result: ReferenceAveragingResult) -> str:
    """Say how far the learner is from keeping its own predictions; nothing if not probed."""
    probes = np.asarray(result.probes, dtype=float)
    known = np.isfinite(probes[:, 0])
    if not known.any():
        return ""
    change = float(np.median(probes[known, 0]))
    if change <= figures_reference.SMALLEST_CHANGE:
        return "Refitted with its own predictions it gives them again, but for rounding."
    return f"Refitted with its own predictions it changes them by {_change(change)} (median)."


def _change(value: float) -> str:
    return percent(value) if value >= 1e-3 else f"{100 * value:.1g} %"


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
    text = [
        "A learner that minimises a loss plus a penalty, fitted again with its own predictions at "
        "the reference rows, gives the same predictions. One that does not is none for which the "
        "rounds lead to the fit of all rows. The limit is 1 %, or 20 times what another order of "
        "the rows changes, but 2 % at most.",
        f"{probe_words(result)} {_held(int(known.sum()), int(bad.sum()))}",
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


def _held(known: int, bad: int) -> str:
    if not bad:
        return f"It passed at {'the only site' if known == 1 else f'all {known:,} sites'} asked."
    return f"It failed at {bad:,} of {plural(known, 'site')}."


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
    columns = [numbers([row_intercept, *row[order]]) for row_intercept, row in _rows(result, shown)]
    labels = ("intercept", *(names[j] for j in order))
    heads = _heads(result, len(shown))
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


def _rows(result: ReferenceAveragingResult, shown: Any) -> list[tuple[float, Any]]:
    intercepts = np.broadcast_to(np.asarray(result.intercepts, dtype=float).ravel(), (len(shown),))
    return list(zip((float(v) for v in intercepts), shown, strict=True))


def _heads(result: ReferenceAveragingResult, n: int) -> tuple[str, ...]:
    if n == 1:
        return ("coefficient",)
    levels = [drawing.short(v, 30) for v in result.levels]
    return tuple(levels[:n]) if len(levels) >= n else tuple(str(j) for j in range(n))
