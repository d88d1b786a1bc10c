"""Evidence in the report of reference averaging: rounds, comparison, penalties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.averaging.report import figures_reference
from consilience.averaging.report.figures_reference import (
    bytes_by_round,
    curve,
    differences,
    measured,
    movement,
    n_rounds,
    over_sites,
)
from consilience.report import drawing
from consilience.report.drawing import Z95
from consilience.report.run import Run
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
    numbers,
    percent,
    plural,
    site_name,
)

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
