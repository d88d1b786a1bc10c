"""Report of reference averaging: did the rounds help, what did they cost, and who took part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.averaging.report import figures_reference as figures
from consilience.report.charts import Z95, short
from consilience.report.sections import (
    DASH,
    Run,
    TemplateReport,
    listed,
    numbers,
    percent,
    site_name,
    size,
)

MOST_COEFFICIENTS = 40
MOST_LEVELS = 8
LATELY = 5
"""Last rounds whose share of the gain is told."""
BYTES_OF_A_NUMBER = 8

Lines = list[tuple[str, ...]]


class ReferenceAveragingReport(TemplateReport[ReferenceAveragingResult]):
    """Words, tables and figures on the rounds of a black-box learner."""

    kind = ReferenceAveragingResult

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Learner, rows, rounds, gain."""
        result = self.read(run)
        facts = [
            ("learner", short(result.estimator.partition("(")[0], 30)),
            ("rows", f"{int(np.sum(result.sizes)):,}"),
            ("rounds of refits", f"{result.n_rounds:,}"),
            ("round that is kept", str(result.chosen_round or "plain averaging")),
            ("reference rows", f"{int(result.n_reference):,}"),
        ]
        if result.kept and figures.measured(result):
            gain, error = (values[result.chosen_round] for values in figures.curve(result))
            facts.append(
                (
                    "reduction against averaging",
                    f"{percent(-gain)} (standard error {percent(error)})",
                )
            )
        return facts

    def context(self, result: ReferenceAveragingResult, run: Run) -> dict[str, Any]:
        """Gains by round, what is saved at the sites, and who did not answer or does not tell."""
        gain, error = figures.curve(result)
        saved, saved_error = figures.differences(result)
        kept, last = int(result.chosen_round), result.n_rounds
        probed, bad = np.isfinite(result.probes[:, 0]), figures.unstable(result)
        # Sites that could tell, and those that did.
        held = np.asarray(result.held) > 0
        tells = np.isfinite(result.local_losses).all(axis=1)
        contributed: NDArray[np.bool_] = np.asarray(result.contributed, dtype=bool)
        pulls = figures.pulls(result)
        sent = sum(line.bytes for line in run.transcript if line.direction == "from-site")
        p = len(result.feature_names)
        # Sums of cross-products of p columns, the constant and the response.
        needed = BYTES_OF_A_NUMBER * len(result.sites) * (p + 2) * (p + 3) // 2
        # Rounds are pooled from figures that are rounded less than those of the sites at the end.
        pooled = (
            figures.over_sites(result, saved[:, 0], saved_error[:, 0]),
            (-float(gain[kept]), float(error[kept])),
        )
        grid = np.asarray(result.penalties)
        several = len(grid) > 1 and np.isfinite(result.base_loss).any()
        edge = several and grid[int(result.chosen_track)] not in np.sort(grid)[1:-1]
        return {
            "figures": figures,
            "isfinite": math.isfinite,
            "size": size,
            "gain": gain,
            "error": error,
            "kept": kept,
            "last": last,
            "measured": figures.measured(result),
            "best": figures.best_round(result),
            "lately": (gain[max(0, last - LATELY)] - gain[last]) / -gain[last]
            if kept == last > 0
            else math.nan,
            "LATELY": LATELY,
            "all_measured": np.isfinite(gain).all(),
            "moved": figures.movement(result),
            "rounds": list(_rounds(result, run)),
            "compared": np.isfinite(saved).any(),
            "pooled": pooled,
            "own": pooled[0],
            "n_tell": int(np.isfinite(saved[:, 0]).sum()),
            "by_site": _by_site(result, pooled),
            "by_penalty": _by_penalty(result) if several else [],
            "at_the_edge": edge and len(result.penalties) > 2,
            "n_probed": int(probed.sum()),
            "n_failed": int(bad.sum()),
            "failed": _names(result, bad),
            "change": float(np.median(result.probes[probed, 0])) if probed.any() else math.nan,
            "probes": _probes(result, bad),
            "pulls": pulls,
            "top": int(np.argsort(-np.nan_to_num(pulls[0]))[0]),
            "top_at_last": int(np.nanargmax(pulls[last])),
            "shares": result.sizes / np.sum(result.sizes),
            "by_influence": _by_influence(result, pulls),
            "n_fits": int(contributed.sum()),
            "n_missed": int((~contributed).sum()),
            "missed": _missed(result, contributed),
            "never": _names(result, contributed.sum(axis=0) == 0),
            "held_none": _names(result, ~held),
            "kept_back": _names(result, held & ~tells),
            "withheld": {line.field for line in run.transcript if line.verdict == "withheld"},
            "sent": sent,
            "needed": needed,
            "unmeasured": math.isinf(np.nansum(result.base_loss)) or not figures.measured(result),
            "model": _coefficients(result) if np.size(result.slopes) else {},
        }


def _by_penalty(result: ReferenceAveragingResult) -> list[tuple[str, ...]]:
    """Penalty by penalty: loss of averaging, of its best round, and which one is kept."""
    return [
        (
            f"{float(penalty):g}",
            percent(averaging, 2),
            str(int(round_)),
            percent(best, 2),
            percent(error, 2),
            "kept" if t == int(result.chosen_track) else "",
        )
        for t, (penalty, averaging, best, error, round_) in enumerate(
            zip(result.penalties, *figures.penalty_losses(result), strict=True)
        )
    ]


def _probes(result: ReferenceAveragingResult, bad: NDArray[np.bool_]) -> list[tuple[str, ...]]:
    """Site by site: how far predictions moved in a refit with themselves, and with moved rows."""
    told = zip(result.sites, result.probes, bad, strict=True)
    return [
        (
            site_name(site),
            f"{change:.1e}",
            f"{permuted:.1e}" if np.isfinite(permuted) else DASH,
            "no" if fails else "yes",
        )
        for site, (change, permuted), fails in told
        if np.isfinite(change)
    ]


def _by_influence(result: ReferenceAveragingResult, pulls: Any) -> list[tuple[str, ...]]:
    """Sites by their pull on the average, with their share of the rows."""
    rounds = sorted({0, result.n_rounds})
    return [
        (
            site_name(result.sites[i]),
            percent(result.sizes[i] / np.sum(result.sizes)),
            *(percent(float(pulls[k, i]), 2) for k in rounds),
        )
        for i in np.argsort(-np.nan_to_num(pulls[0]))
    ]


def _missed(
    result: ReferenceAveragingResult, contributed: NDArray[np.bool_]
) -> list[tuple[str, ...]]:
    """Sites that sent no fit in some rounds: how many they sent, and when they did not."""
    return [
        (site_name(site), f"{int(sent.sum()):,}", _span(np.flatnonzero(~sent)))
        for site, sent in zip(result.sites, contributed.T, strict=True)
        if not sent.all()
    ]


def _names(result: ReferenceAveragingResult, which: NDArray[np.bool_]) -> str:
    return listed([site_name(s) for s, w in zip(result.sites, which, strict=True) if w])


def _span(rounds: NDArray[np.intp]) -> str:
    """Numbers of rounds, runs of them as from-to."""
    parts: list[str] = []
    for group in np.split(rounds, np.flatnonzero(np.diff(rounds) > 1) + 1):
        many = len(group) > 2
        parts.append(f"{group[0]}{DASH}{group[-1]}" if many else ", ".join(map(str, group)))
    return ", ".join(parts[:12]) + (f" and {len(parts) - 12} more" if len(parts) > 12 else "")


def _rounds(result: ReferenceAveragingResult, run: Run) -> Iterator[tuple[str, ...]]:
    gain, error = figures.curve(result)
    moved = figures.movement(result)
    sent = figures.bytes_by_round(result, run.transcript)
    # Round 0 has no pseudo-rows.
    rhos = (DASH, *numbers(result.rhos[1:]))
    for k, told in enumerate(np.sum(result.contributed, axis=1)):
        yield (
            str(k),
            rhos[k],
            f"{told:,}",
            percent(float(moved[k]), 3) if k else DASH,
            percent(gain[k], 2),
            percent(error[k], 2) if k else DASH,
            f"{int(sent[k]):,}" if len(sent) else DASH,
        )


def _by_site(
    result: ReferenceAveragingResult, pooled: tuple[tuple[float, float], tuple[float, float]]
) -> Lines:
    """Losses by site; `pooled` has what all of them save, over own fits and over averaging."""
    losses, held = np.asarray(result.local_losses), np.asarray(result.held)
    gain = figures.curve(result)[0][int(result.chosen_round)]
    base = float(result.base_loss[int(result.chosen_track)])
    own = figures.over_sites(result, losses[:, 0])[0]
    # A total of other sites than the column shows is none.
    all_tell = np.isfinite(losses[held > 0]).all(axis=0)
    totals = np.where(all_tell, (own, base, base * (1 + gain)), np.nan)
    ways = 3 if result.kept else 2
    cells = [_losses(column) for column in np.vstack([losses, totals])[:, :ways].T]
    saved, error = figures.differences(result)
    beside = [*np.stack([saved, error], axis=2), pooled]
    names = (*map(site_name, result.sites), "all sites")
    rows = (*held, held.sum())
    return [
        (
            names[i],
            f"{rows[i]:,.0f}",
            *(column[i] for column in cells),
            *(
                percent(float(told))
                for value, its_error in beside[i][: ways - 1]
                for told in (value, Z95 * its_error)
            ),
        )
        for i in range(len(names))
    ]


def _losses(values: Sequence[float]) -> tuple[str, ...]:
    """Write losses, which come rounded, without decimals that say nothing."""
    large = max((abs(v) for v in values if math.isfinite(v)), default=0.0) >= 1000
    if not large:
        return numbers(values)
    return tuple(f"{v:,.0f}" if math.isfinite(v) else DASH for v in values)


def _coefficients(result: ReferenceAveragingResult) -> dict[str, Any]:
    """Largest coefficients of a linear learner, a column for each of the first levels."""
    found = np.atleast_2d(result.slopes)
    # Over all levels, also those that are not shown.
    largest = np.abs(found).max(axis=0)
    order = np.sort(np.argsort(-largest, kind="stable")[:MOST_COEFFICIENTS])
    intercepts = np.broadcast_to(np.ravel(result.intercepts), len(found))[:, None]
    shown = np.hstack([intercepts, found[:, order]])[:MOST_LEVELS]
    heads = ["coefficient"]
    if len(shown) > 1:
        named = len(result.levels) >= len(shown)
        levels = [short(v, 30) for v in result.levels] if named else map(str, range(len(shown)))
        heads = [*levels][: len(shown)]
    labels = ("intercept", *(short(result.feature_names[j], 60) for j in order))
    return {
        "heads": heads,
        "rows": list(zip(labels, *map(numbers, shown), strict=True)),
        "n_shown": len(order),
        "n_zero": int((largest == 0).sum()),
    }


REPORT = ReferenceAveragingReport
