"""Figures of reference averaging: what the rounds gained and cost, and who took part in them.

Each `plot_*` takes a `ReferenceAveragingResult` and returns a Matplotlib figure, as in `figures`.
Losses on held-out rows are drawn in shares of the loss of plain averaging, round 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.averaging.estimators.proximal_fit import (
    LARGEST_CHANGE,
    LARGEST_NOISE,
    NOISE_FACTOR,
    separable,
)
from consilience.report import charts
from consilience.report.charts import NAMED, Z95
from consilience.wire.transcript import Line

FIT_STEP = "fit"
"""Step in which sites answer with a fit."""
SILENT = ("refused", "absent")
SMALLEST_CHANGE = 1e-6
"""Smaller changes under a probe are drawn at the edge."""
_SMALLEST = 1e-12


# --------------------------------------------------------------------------- reading a result


def n_rounds(result: Any) -> int:
    """Rounds of refits; 0 where only plain averaging ran."""
    return max(0, len(result.rhos) - 1)


def loss_unit(result: Any) -> float:
    """Held-out loss of plain averaging with the chosen penalty; NaN where no site tells."""
    unit = float(result.base_loss[int(result.chosen_track)])
    return unit if unit > 0 else float("nan")


def over_sites(
    result: Any, values: FloatArray, errors: FloatArray | None = None
) -> tuple[float, float]:
    """Mean of a figure of each site over held-out rows, and its standard error (0 if not given)."""
    values = np.asarray(values, dtype=float)
    spread = np.zeros(len(values)) if errors is None else np.asarray(errors, dtype=float)
    told = np.isfinite(values) & np.isfinite(spread)
    weight = np.where(told, np.asarray(result.held, dtype=float), 0.0)
    if not weight.sum() > 0:
        return float("nan"), float("nan")
    weight = weight / weight.sum()
    mean = float((weight * np.where(told, values, 0.0)).sum())
    return mean, float(np.sqrt(((weight * np.where(told, spread, 0.0)) ** 2).sum()))


def curve(result: Any, track: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Held-out loss of each round less that of averaging, and its error, in shares; NaN if unknown.

    Parameters
    ----------
    result : ReferenceAveragingResult
    track : int, optional
        Place in the penalty grid; the chosen one by default.

    Returns
    -------
    gain, error : (K + 1,) arrays
    """
    at = int(result.chosen_track) if track is None else track
    unit, n = loss_unit(result), n_rounds(result) + 1
    found = np.full((2, n), np.nan)
    for row, values in zip(found, (result.gains, result.gain_errors), strict=True):
        known = np.asarray(values, dtype=float)[at][:n]
        row[: len(known)] = known / unit
    return found[0], found[1]


def movement(result: Any) -> FloatArray:
    """Change of the average with the chosen penalty in each round, (K + 1,)."""
    return np.asarray(result.movement, dtype=float)[int(result.chosen_track)]


def pulls(result: Any) -> FloatArray:
    """Influence of each site with the chosen penalty, (K + 1, B); NaN before it first answered."""
    return np.asarray(result.influence, dtype=float)[int(result.chosen_track)]


def measured(result: Any) -> bool:
    """Whether held-out rows tell what at least one refit is worth."""
    return bool(np.isfinite(curve(result)[0][1:]).any())


def best_round(result: Any, track: int | None = None) -> int:
    """Round of smallest held-out loss, 0 where none was measured."""
    gain, _ = curve(result, track)
    return int(np.nanargmin(gain)) if np.isfinite(gain).any() else 0


def separable_limit(result: Any) -> FloatArray:
    """Change from which the probe of each site speaks against the learner, (B,)."""
    permuted = np.asarray(result.probes, dtype=float)[:, 1]
    noise = np.minimum(NOISE_FACTOR * np.nan_to_num(permuted), LARGEST_NOISE)
    return np.asarray(np.maximum(LARGEST_CHANGE, noise))


def unstable(result: Any) -> NDArray[np.bool_]:
    """Sites at which the learner does not keep its own predictions, (B,)."""
    probes = np.nan_to_num(np.asarray(result.probes, dtype=float))
    return np.array([not separable(change, permuted) for change, permuted in probes], dtype=bool)


def bytes_by_round(result: Any, lines: Sequence[Line]) -> IntArray:
    """Bytes that had left all sites by the end of each round, from the transcript.

    Parameters
    ----------
    result : ReferenceAveragingResult
    lines : sequence of Line

    Returns
    -------
    (K + 1,) int array
        Empty where the transcript does not hold these rounds. What came before the first fit counts
        to round 0; losses that arrive with the next fit count to the next round.
    """
    told = np.asarray(result.contributed, dtype=bool)
    free = result.schedule == "asynchronous"
    replies: list[int] = []
    last: tuple[int, str] | None = None
    before = 0
    for line in lines:
        if line.direction != "from-site" or (line.verdict in SILENT and not free):
            continue
        if line.step != FIT_STEP:
            before += line.bytes if not replies else 0
            continue
        if (line.round, line.site) != last:
            replies.append(0)
            last = (line.round, line.site)
        replies[-1] += line.bytes
    # Without waiting, a round is over after as many answers as there are sites, whoever answered.
    wanted = np.full(len(told), told.shape[1]) if free else told.sum(axis=1)
    ends = np.cumsum(wanted)
    if not replies or (ends[-1] > len(replies) and not free):
        return np.empty(0, dtype=np.int64)
    total = before + np.cumsum([0, *replies])
    return np.asarray(total[np.minimum(ends, len(replies))], dtype=np.int64)


# --------------------------------------------------------------------------- rounds


def plot_reference_rounds(result: Any, lines: Sequence[Line] = ()) -> Figure:
    """Draw what each round gained on held-out rows and how far it moved the average.

    Parameters
    ----------
    result : ReferenceAveragingResult
        Of a run with at least one round of refits.
    lines : sequence of Line, optional
        The run's transcript; with it the upper axis has the bytes that had left the sites.

    Returns
    -------
    matplotlib.figure.Figure
    """
    with_gain = measured(result)
    rounds = np.arange(n_rounds(result) + 1)
    with charts.style():
        n, tall = (2, 4.9) if with_gain else (1, 2.9)
        fig, axes = charts.panels(n, tall, layout={"h_pad": 0.08}, sharex=True)
        if with_gain:
            _held_out(axes[0], result, rounds)
        moved = movement(result)[1:]
        shown = np.maximum(moved, _SMALLEST)
        axes[-1].plot(rounds[1:], shown, color=charts.MUTED, linewidth=1.2)
        axes[-1].plot(rounds[1:], shown, "o", color=charts.MUTED, markersize=_mark(rounds))
        axes[-1].set_yscale("log")
        narrow = shown.max(initial=1e-12) < 300 * shown.min(initial=1.0)
        axes[-1].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
        axes[-1].yaxis.set_major_formatter(charts.SHARES)
        axes[-1].minorticks_off()
        axes[-1].set_ylabel("average moved by")
        axes[-1].set_xlabel("round (0: plain averaging)")
        ticks = charts.whole_ticks(int(rounds[-1]))
        axes[-1].set_xticks(ticks)
        axes[-1].set_xlim(-0.5, rounds[-1] + 0.5)
        for ax in axes:
            charts.bare(ax, "y")
        sent = bytes_by_round(result, lines)
        if len(sent):
            top = axes[0].secondary_xaxis("top")
            top.set_xticks(list(ticks), [f"{sent[k] / 1000:,.0f}" for k in ticks])
            top.set_xlabel("kilobytes that had left all sites by then")
            top.tick_params(length=0)
            for spine in top.spines.values():
                spine.set_visible(False)
    return fig


def _mark(rounds: IntArray) -> float:
    return 5.0 if len(rounds) <= 45 else 2.5


def _held_out(ax: Axes, result: Any, rounds: IntArray) -> None:
    gain, error = curve(result)
    known = np.isfinite(gain) & np.isfinite(error)
    ax.axhline(0, color=charts.INK, linewidth=0.9)
    for width, thick in ((Z95, 1.0), (1.0, 3.0)):
        some = known & (rounds > 0)
        ax.vlines(
            rounds[some],
            (gain - width * error)[some],
            (gain + width * error)[some],
            color=charts.BLUE,
            alpha=0.6 if len(rounds) <= 45 else 0.35,
            linewidth=thick,
        )
    # Rounds that nobody measured leave a gap in the line.
    ax.plot(rounds, np.where(known, gain, np.nan), color=charts.BLUE, linewidth=1.2)
    look = ("o", charts.PAPER, charts.BLUE, _mark(rounds))
    charts.marks(ax, rounds[known], gain[known], *look, zorder=3)
    at = int(result.chosen_round)
    if at < len(gain) and np.isfinite(gain[at]):
        ax.plot([at], [gain[at]], "D", color=charts.BLUE, markersize=9, zorder=4)
        place: Any = {"va": "bottom", "fontsize": 9, "annotation_clip": False}
        charts.note(ax, "kept", (at, gain[at]), (7, 6), **place)
    ax.yaxis.set_major_formatter(charts.SHARES)
    ax.set_ylabel("held-out loss,\ncompared with averaging")


# --------------------------------------------------------------------------- comparison


COMPARED = ("instead of the site's own fit", "instead of plain averaging")


def differences(result: Any) -> tuple[FloatArray, FloatArray]:
    """Loss that what is kept saves at each site, over its own fit and over averaging, in shares.

    Returns
    -------
    saved, error : (B, 2) arrays
        NaN where a site does not tell.
    """
    unit = loss_unit(result)
    return (
        np.asarray(result.local_differences, dtype=float) / unit,
        np.asarray(result.local_errors, dtype=float) / unit,
    )


def plot_reference_comparison(result: Any) -> Figure:
    """Draw what is kept beside each site's own fit and plain averaging, with 95% intervals.

    Parameters
    ----------
    result : ReferenceAveragingResult
        With held-out losses of at least one site.

    Returns
    -------
    matplotlib.figure.Figure
    """
    saved, error = differences(result)
    columns = [0, 1] if result.kept else [0]
    n = len(result.sites)
    with charts.style():
        across = len(columns)
        fig, axes = charts.panels(across, _tall(n), across, layout={"w_pad": 0.12}, sharey=True)
        for ax, j in zip(axes, columns, strict=True):
            overall = over_sites(result, saved[:, j], error[:, j])
            charts.savings(ax, np.arange(n), saved[:, j], error[:, j], overall, n <= NAMED)
            ax.set_title(COMPARED[j])
            ax.locator_params(axis="x", nbins=5)
            charts.bare(ax)
        _sites(axes[0], result.sites)
        fig.supxlabel(
            "reduction, share of the loss of averaging (right of 0: better)", fontsize=9.5
        )
    return fig


def _sites(ax: Axes, sites: Sequence[str]) -> None:
    charts.site_axis(ax, sites, fontsize=9.5 if len(sites) <= 40 else 8)


def _tall(n: int) -> float:
    """Height of a figure with one line for each of n sites, in inches."""
    return 0.24 * n + 1.15 if n <= NAMED else 8.0


# --------------------------------------------------------------------------- sites


def plot_reference_influence(result: Any) -> Figure:
    """Draw how far the average would move if a site fell in with it, before and after the rounds.

    Parameters
    ----------
    result : ReferenceAveragingResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    influence = pulls(result)
    last = n_rounds(result)
    at = np.arange(len(result.sites))
    size = 7 if len(at) <= NAMED else 3
    with charts.style():
        fig, ax = charts.sheet(_tall(len(at)) + (0.25 if last else 0.0))
        ax.hlines(at, influence[0], influence[last], color=charts.RULE, linewidth=2)
        look = ("o", charts.PAPER, charts.MUTED, size)
        charts.marks(ax, influence[0], at, *look, label="plain averaging")
        if last:
            words = f"after round {last}"
            ax.plot(influence[last], at, "o", color=charts.BLUE, markersize=size, label=words)
            charts.legend(fig, ncols=2, handletextpad=0.3)
        _sites(ax, result.sites)
        ax.set_xlim(0, 1.06 * float(np.nanmax(influence[[0, last]], initial=0.01)))
        ax.xaxis.set_major_formatter(charts.SHARES)
        ax.set_xlabel("share of rows times distance of the site's predictions from the average")
        charts.bare(ax)
    return fig


def plot_reference_probes(result: Any) -> Figure:
    """Draw how much each site's fit changes when it is refitted with its own predictions.

    Parameters
    ----------
    result : ReferenceAveragingResult
        With the probe of at least one site.

    Returns
    -------
    matplotlib.figure.Figure
    """
    probes = np.maximum(np.asarray(result.probes, dtype=float), SMALLEST_CHANGE)
    limit = separable_limit(result)
    at = np.arange(len(result.sites))
    known = np.isfinite(probes[:, 0])
    bad = unstable(result)
    size = 6 if len(at) <= NAMED else 3
    kinds: tuple[tuple[Any, str, str, str], ...] = (
        (known & ~bad, "o", charts.BLUE, "keeps its predictions"),
        (known & bad, "s", charts.ORANGE, "does not"),
    )
    with charts.style():
        fig, ax = charts.sheet(_tall(len(at)) + 0.25)
        for some, marker, colour, words in kinds:
            if some.any():
                place: Any = {"marker": marker, "markersize": size, "color": colour}
                ax.plot(probes[some, 0], at[some], linestyle="none", label=words, **place)
        ax.plot(
            limit[known],
            at[known],
            "|",
            color=charts.INK,
            markersize=11 if len(at) <= NAMED else 4,
            markeredgewidth=1.6,
            label="limit",
        )
        ax.set_xscale("log")
        ends = np.concatenate([probes[known, 0], limit[known]])
        ax.set_xlim(SMALLEST_CHANGE / 2, ends.max(initial=0.1) * 2)
        ax.minorticks_off()
        decades = 10.0 ** np.arange(-6, np.floor(np.log10(ends.max(initial=0.1))) + 1)
        ticks = [charts.share(v) for v in decades]
        ticks[0] = f"\N{LESS-THAN OR EQUAL TO} {ticks[0]}"
        ax.set_xticks(decades, ticks)
        ax.set_xlabel("change of the predictions at the reference rows")
        _sites(ax, result.sites)
        charts.bare(ax)
        charts.legend(fig, ncols=3, handletextpad=0.3)
    return fig


def plot_reference_contributions(result: Any) -> Figure:
    """Draw which site answered with a new fit in which round.

    Parameters
    ----------
    result : ReferenceAveragingResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    told = np.asarray(result.contributed, dtype=bool).T
    n, rounds = told.shape
    with charts.style():
        fig, ax = charts.sheet(_tall(n) + 0.25)
        rows, columns = np.nonzero(told)
        gaps, missing = np.nonzero(~told)
        size = float(np.clip(300 / max(rounds, 1), 1.5, 7)) if n <= NAMED else 1.5
        ax.plot(columns, rows, "s", color=charts.BLUE, markersize=size, label="new fit")
        if len(gaps):
            ax.plot(
                missing,
                gaps,
                "x",
                color=charts.ORANGE,
                markersize=0.8 * size,
                label="its last predictions stayed in the average, if there were any",
            )
        _sites(ax, result.sites)
        ax.set_xticks(charts.whole_ticks(rounds - 1))
        ax.set_xlim(-0.6, rounds - 0.4)
        ax.set_xlabel("round (0: plain averaging)")
        charts.bare(ax, "")
        charts.legend(fig, ncols=2, handletextpad=0.3)
    return fig


# --------------------------------------------------------------------------- penalties


def penalty_losses(result: Any) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Held-out loss by penalty, less that of the best averaging, in shares of the latter.

    Returns
    -------
    averaging, best, error : (g,) arrays
        Of plain averaging, of the best round, and the error of their difference.
    rounds : (g,) int array
        The best rounds.
    """
    base = np.asarray(result.base_loss, dtype=float)
    averaging = (base - np.nanmin(base)) / loss_unit(result)
    rounds = np.array([best_round(result, t) for t in range(len(base))], dtype=np.int64)
    curves = [curve(result, t) for t in range(len(base))]
    gain = np.array([c[0][k] for c, k in zip(curves, rounds, strict=True)])
    error = np.array([c[1][k] for c, k in zip(curves, rounds, strict=True)])
    return averaging, averaging + gain, error, rounds


def plot_reference_penalties(result: Any) -> Figure:
    """Draw the held-out loss by penalty: of plain averaging, and of the best round.

    Parameters
    ----------
    result : ReferenceAveragingResult
        Of a run with a grid of penalties and held-out rows.

    Returns
    -------
    matplotlib.figure.Figure
    """
    averaging, best, error, rounds = penalty_losses(result)
    x = np.asarray(result.penalties, dtype=float)
    order = np.argsort(x)
    with charts.style():
        fig, ax = charts.sheet(3.0)
        ax.plot(
            x[order],
            averaging[order],
            "s--",
            color=charts.MUTED,
            markerfacecolor=charts.PAPER,
            linewidth=1.2,
            label="plain averaging",
        )
        ax.vlines(x, best - Z95 * error, best + Z95 * error, color=charts.BLUE, alpha=0.45)
        ax.plot(x[order], best[order], "o-", color=charts.BLUE, linewidth=1.2, label="best round")
        at = int(result.chosen_track)
        kept = best[at] if result.kept else averaging[at]
        ax.plot([x[at]], [kept], "D", color=charts.BLUE, markersize=9, label="kept", zorder=4)
        for i in order if len(x) <= 15 else ():
            place: Any = {"fontsize": 8.5, "color": charts.MUTED}
            charts.note(ax, f"round {rounds[i]}", (x[i], best[i]), (6, -11), **place)
        if (x > 0).all() and x.max() > 5 * x.min():
            ax.set_xscale("log")
            if len(x) <= 8:
                ax.set_xticks(x, [f"{v:g}" for v in x])
            ax.minorticks_off()
        ax.yaxis.set_major_formatter(charts.SHARES)
        ax.set_xlabel(f"penalty ({charts.label(result.penalty_name or 'of the learner')})")
        ax.set_ylabel("held-out loss, compared\nwith the best averaging")
        charts.bare(ax, "y")
        charts.legend(fig, ncols=3, handletextpad=0.5)
    return fig
