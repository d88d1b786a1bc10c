"""Figures of assisted learning: the test of a partner, its power, and the joint model.

Each `plot_*` takes an `AssistanceTestResult` or an `AssistedGLMResult` and returns a Matplotlib
figure, as in `figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.report import charts

KINDS = {"score": "score", "wald": "Wald", "wald-hc3": "Wald, HC3", "lr": "likelihood ratio"}
"""Tests, in the order in which they are told, and their names."""
SMALLEST_P = 1e-8
"""Smaller p-values are drawn at the edge."""
MOST_COEFFICIENTS = 40
"""Coefficients in one drawing; of more, those farthest from zero."""
INFERRED = ("identified", "bounded")
"""What a coefficient with a standard error can be."""
MOST_PANELS = 9
"""Partners with a power curve of their own."""
NO_NOISE = "no noise"
_MARKERS = "osv^Pd"
_COLOURS = (charts.BLUE, charts.ORANGE, charts.GREEN, "#cc79a7", "#56b4e9", "#d55e00")
_PARTNERS = tuple(c for c in _COLOURS if c != charts.ORANGE)  # orange is the initiator alone
_SPREAD = 50.0  # ratio of the widest to the median distance from zero up to which an axis is linear


# --------------------------------------------------------------------------- the test


def tested_kinds(result: Any) -> list[str]:
    """Kinds of test of which at least one partner has a p-value; the deciding one first."""

    def tested(kind: str) -> bool:
        p = [of.get(kind, {}).get("combined", np.nan) for of in result.tests.values()]
        return bool(np.isfinite(p).any())

    found = [kind for kind in KINDS if tested(kind)]
    return sorted(found, key=lambda kind: kind != result.test)


def plot_assistance_tests(result: Any) -> Figure:
    """Draw the p-value of each draw of the sketch, and of the draws combined, for each test.

    Parameters
    ----------
    result : AssistanceTestResult
        With at least one partner that could be tested.

    Returns
    -------
    matplotlib.figure.Figure
    """
    kinds = tested_kinds(result)
    rows = [(partner, kind) for partner in result.partners for kind in kinds]
    several = len(result.partners) > 1
    with charts.style():
        fig, ax = charts.sheet(0.3 * len(rows) + 1.25)
        for i, (partner, kind) in enumerate(rows):
            test = result.tests[partner].get(kind, {})
            draws = _edge(test.get("p", ()))
            first = "one draw" if i == 0 and len(draws) > 1 else None
            look = ("o", charts.PAPER, charts.MUTED, 5)
            charts.marks(ax, draws, [i] * len(draws), *look, label=first, zorder=2)
            mark, colour = ("D", charts.BLUE) if kind == result.test else ("d", charts.MUTED)
            combined = _edge([test.get("combined", np.nan)])
            ax.plot(combined, [i], mark, markersize=8, color=colour, zorder=3)
        ax.axvline(result.level, color=charts.ORANGE, linewidth=1.4, zorder=1)
        # Each mark in the legend once, whichever partner and test were drawn first.
        ax.plot([], [], "D", color=charts.BLUE, markersize=8, label="the test that decides")
        ax.plot([], [], "d", color=charts.MUTED, markersize=8, label="the others")
        ax.plot([], [], color=charts.ORANGE, label=f"level {result.level:g}")
        names = [
            f"{charts.label(p, 20)} \N{MIDDLE DOT} {KINDS[k]}" if several else KINDS[k]
            for p, k in rows
        ]
        for between in range(len(kinds), len(rows), len(kinds)):
            ax.axhline(between - 0.5, color=charts.RULE, linewidth=0.8)
        ax.set_yticks(range(len(rows)), names)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        _p_axis(ax, result)
        charts.bare(ax)
        charts.legend(fig, ncols=4, handletextpad=0.5)
    return fig


def _edge(p: Any) -> FloatArray:
    values = np.asarray(p, dtype=float)
    return np.clip(values[np.isfinite(values)], SMALLEST_P, 1.0)


def _p_axis(ax: Axes, result: Any) -> None:
    everything = [
        _edge([*np.ravel(test.get("p", ())), test.get("combined", np.nan)])
        for of in result.tests.values()
        for test in of.values()
    ]
    least = min([0.01, result.level / 3, *(float(e.min(initial=1.0)) for e in everything)])
    low = max(SMALLEST_P, 10.0 ** np.floor(np.log10(least)))
    ax.set_xscale("log")
    ax.set_xlim(low / 1.6, 1.6)
    decades = np.arange(np.log10(low).round(), 1)
    some = 10.0 ** decades[:: 1 if len(decades) <= 6 else 2]
    words = [f"{t:g}" if t >= 1e-4 else f"{t:.0e}".replace("e-0", "e\N{MINUS SIGN}") for t in some]
    if some[0] <= SMALLEST_P:
        words[0] = f"\N{LESS-THAN OR EQUAL TO} {words[0]}"
    ax.set_xticks(some, words)
    ax.minorticks_off()
    ax.set_xlabel("p-value")


def power_axis(result: Any, partner: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Grid of epsilon (e,), effects (f,) and power (e, f) of one partner; epsilon in order.

    Infinity stands for a sketch without noise.
    """
    known = result.power.get(partner) or {}
    epsilon = np.asarray(known.get("epsilon", ()), dtype=float)
    effect = np.asarray(known.get("effect", ()), dtype=float)
    power = np.asarray(known.get("power", ()), dtype=float).reshape(len(epsilon), len(effect))
    order = np.argsort(epsilon, kind="stable")
    return epsilon[order], effect, power[order]


def power_at(result: Any, partner: str) -> list[tuple[float, float]]:
    """Effects of the grid, each with the power at the partner's own epsilon (NaN if unknown)."""
    epsilon, effect, power = power_axis(result, partner)
    if not power.size:
        return []
    spent = result.epsilon.get(partner)
    if spent is None:
        at = power[-1] if np.isinf(epsilon[-1]) else np.full(len(effect), np.nan)
        return list(zip(effect.tolist(), at.tolist(), strict=True))
    known = np.isfinite(epsilon)
    if not known.any():
        return [(f, float("nan")) for f in effect.tolist()]
    # power is smooth in the logarithm of the price
    grid = np.log(epsilon[known])
    inside = grid[0] - 1e-9 <= np.log(spent) <= grid[-1] + 1e-9
    return [
        (f, float(np.interp(np.log(spent), grid, power[known, j])) if inside else float("nan"))
        for j, f in enumerate(effect.tolist())
    ]


def plot_assistance_power(result: Any) -> Figure:
    """Draw the chance of finding a partner of use, by epsilon and by how much it has to offer.

    Parameters
    ----------
    result : AssistanceTestResult
        With `power` of at least one partner.

    Returns
    -------
    matplotlib.figure.Figure
    """
    partners = [p for p in result.partners if power_axis(result, p)[2].size][:MOST_PANELS]
    across = min(3, len(partners))
    down = -(-len(partners) // across)
    with charts.style():
        fig, axes = charts.panels(len(partners), 2.5 * down + 0.8, across, sharey=True, sharex=True)
        for ax, partner in zip(axes, partners, strict=True):
            _power_curves(ax, result, partner, legend=ax is axes[0])
            if len(partners) > 1:
                ax.set_title(charts.label(partner, 26))
        for ax in axes[::across]:
            ax.set_ylabel("chance of finding it")
        words = "epsilon that the partner spends on the sketch"
        if across == 1:
            axes[0].set_xlabel(words)
        else:
            fig.supxlabel(words, fontsize=9.5)
        charts.legend(
            fig,
            ncols=7,
            title="what all columns of the partner would lower the deviance per record by",
            title_fontsize=9.5,
            handlelength=1.5,
            columnspacing=1.1,
        )
    return fig


def _power_curves(ax: Axes, result: Any, partner: str, *, legend: bool) -> None:
    epsilon, effect, power = power_axis(result, partner)
    noisy = np.isfinite(epsilon)
    top = float(epsilon[noisy].max(initial=1.0))
    spent = result.epsilon.get(partner)
    if spent is not None:
        top = max(top, float(spent))
    # no noise stands right of all prices
    beyond = top * 2.5
    at = np.where(noisy, epsilon, beyond)
    for j, size in enumerate(effect):
        colour, marker = _COLOURS[j % len(_COLOURS)], _MARKERS[j % len(_MARKERS)]
        line: dict[str, Any] = {"color": colour, "markersize": 4}
        words = f"{size:.3g}" if legend else None
        ax.plot(at[noisy], power[noisy, j], marker=marker, linewidth=1.4, label=words, **line)
        if not noisy.all():
            ax.plot(at[~noisy], power[~noisy, j], marker=marker, linestyle="none", **line)
    ax.axhline(result.level, color=charts.MUTED, linestyle=":", linewidth=1)
    used = beyond if spent is None and not noisy.all() else spent
    if used is not None:
        words = "as run" if legend else None
        ax.axvline(used, color=charts.INK, linewidth=1, linestyle="--", label=words)
    ax.set_xscale("log")
    low = float(min(epsilon[noisy].min(initial=top), used or top))
    ticks = [t for t in (0.1, 0.3, 1, 3, 10, 30, 100, 300) if low * 0.99 <= t <= top * 1.01]
    names = [f"{t:g}" for t in ticks]
    if not noisy.all():
        ticks, names = [*ticks, beyond], [*names, NO_NOISE]
    ax.set_xticks(ticks, names)
    ax.minorticks_off()
    ax.set_xlim(low * 0.8, (beyond if not noisy.all() else top) * 1.5)
    ax.set_ylim(-0.02, 1.04)
    ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "20%", "40%", "60%", "80%", "100%"])
    charts.bare(ax, "y")


# --------------------------------------------------------------------------- joint training


def plot_assisted_rounds(result: Any) -> Figure:
    """Draw the deviance by round, and how far the predictor still moved by numbers sent.

    Parameters
    ----------
    result : AssistedGLMResult
        With at least one round.

    Returns
    -------
    matplotlib.figure.Figure
    """
    table = result.rounds_table
    rounds = np.asarray(table["round"], dtype=float)
    deviance = np.asarray(table["deviance"], dtype=float)
    change = np.asarray(table["change"], dtype=float)
    sent = np.asarray(table["numbers_sent"], dtype=float)
    who = np.asarray([str(p) for p in table["partner"]])
    partners = [p for p in result.partners if (who == p).any()]
    with charts.style():
        fig, (left, right) = charts.panels(2, 3.2, 2)
        for own in deviance[(rounds == 0) & (who == "")]:
            words = f"{charts.label(result.initiator, 20)} alone"
            left.axhline(own, color=charts.ORANGE, linestyle="--", linewidth=1.3, label=words)
        left.plot(rounds, deviance, color=charts.MUTED, linewidth=1)
        moved = np.isfinite(change) & (change > 0)
        right.plot(sent[moved], change[moved], color=charts.MUTED, linewidth=1)
        for i, partner in enumerate(partners):
            mine = who == partner
            look: dict[str, Any] = {
                "linestyle": "none",
                "marker": _MARKERS[i % len(_MARKERS)],
                "color": _PARTNERS[i % len(_PARTNERS)],
                "markersize": 5.5,
            }
            name = f"after {charts.label(partner, 20)}" if i < 8 else None
            left.plot(rounds[mine], deviance[mine], label=name, **look)
            right.plot(sent[mine & moved], change[mine & moved], **look)
        most = int(rounds.max(initial=1.0))
        left.set_xticks(charts.whole_ticks(most))
        left.set_xlabel("round")
        masked = "masked " if result.response == "masked" else ""
        left.set_ylabel(f"deviance, {masked}training records")
        left.margins(y=0.12)
        if moved.any():
            right.set_yscale("log")
            right.yaxis.set_major_formatter(charts.SHARES)
            right.minorticks_off()
        right.set_xlim(left=0)
        right.locator_params(axis="x", nbins=4)
        right.xaxis.set_major_formatter("{x:,.0f}")
        right.set_xlabel("numbers sent, both ways")
        right.set_ylabel("relative change of the predictor")
        for ax in (left, right):
            charts.bare(ax, "y")
        charts.legend(fig, ncols=4, handletextpad=0.4)
    return fig


# --------------------------------------------------------------------------- the joint model


def shown_coefficients(result: Any) -> IntArray:
    """Rows of the coefficient table that are drawn, in its order."""
    found = result.own_coefficients
    z = np.abs(np.nan_to_num(np.asarray(found["z"], dtype=float)))
    if len(z) <= MOST_COEFFICIENTS:
        return np.arange(len(z))
    return np.sort(np.argsort(-z, kind="stable")[:MOST_COEFFICIENTS])


def half_widths(result: Any) -> FloatArray:
    """Half width of each coefficient's 95% interval; NaN where none can be given."""
    found = result.own_coefficients
    error = np.asarray(found["error"], dtype=float)
    status = np.asarray([str(s) for s in found["status"]])
    return np.where(np.isin(status, INFERRED), result.reach * error, np.nan)


def plot_assisted_coefficients(result: Any) -> Figure:
    """Draw the initiator's coefficients in the joint model beside those of its own model.

    Parameters
    ----------
    result : AssistedGLMResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = shown_coefficients(result)
    found, alone = result.own_coefficients, result.alone
    status = np.asarray([str(s) for s in found["status"]])[rows]
    joint = np.asarray(found["estimate"], dtype=float)[rows]
    half = half_widths(result)[rows]
    own = np.asarray(alone["estimate"], dtype=float)[rows]
    own_half = result.reach * np.asarray(alone["error"], dtype=float)[rows]
    joint = np.where(status == "shared", np.nan, joint)
    unit, error = "coefficient", np.asarray(alone["error"], dtype=float)[rows]
    if _far(own) and (error > 0).all() and np.isfinite(error).all():
        # Columns in units of their own: a coefficient of minutes would flatten one of years.
        joint, half, own, own_half = (x / error for x in (joint, half, own, own_half))
        unit = "coefficient in standard errors of the own model"
    at = np.arange(len(rows), dtype=float)
    with charts.style():
        fig, ax = charts.sheet(0.3 * len(rows) + 1.15)
        ax.axvline(0, color=charts.INK, linewidth=0.9)
        line: dict[str, Any] = {"linewidth": 1.4, "color": charts.ORANGE}
        ax.hlines(at + 0.17, own - own_half, own + own_half, **line)
        words = f"{charts.label(result.initiator, 20)} alone"
        size = matplotlib.rcParams["lines.markersize"]
        charts.marks(ax, own, at + 0.17, "s", charts.PAPER, charts.ORANGE, size, label=words)
        _joint_marks(ax, at - 0.13, joint, half, status)
        _reach(ax, [joint - half, joint + half, joint, own - own_half, own + own_half, own])
        look: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 8.5}
        for y in at[status == "shared"]:
            place: dict[str, Any] = {"xy": (1, y - 0.13), "xycoords": ("axes fraction", "data")}
            ax.annotate("no coefficient: shared", **place, **look, color=charts.MUTED)
        ax.set_yticks(at, [charts.label(found["name"][i], 30) for i in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlabel(f"{unit}, with its 95% interval")
        charts.bare(ax)
        charts.legend(fig, ncols=4, handletextpad=0.4, fontsize=8.5)
    return fig


def _joint_marks(
    ax: Axes, at: FloatArray, value: FloatArray, half: FloatArray, status: NDArray[Any]
) -> None:
    told = np.isin(status, INFERRED)
    for mine, words, face, dash, marker, size in (
        (status == "identified", "joint model", charts.BLUE, "-", "o", 6),
        (status == "bounded", "joint, interval is a bound", charts.BLUE, ":", "D", 5),
        (~told, "joint, no interval", charts.PAPER, "-", "o", 6),
    ):
        shown = mine & np.isfinite(value)
        if not shown.any():
            continue
        x, y, reach = value[shown], at[shown], half[shown]
        ax.hlines(y, x - reach, x + reach, color=charts.BLUE, linewidth=1.6, linestyle=dash)
        charts.marks(ax, x, y, marker, face, charts.BLUE, size, label=words, zorder=3)


def _far(values: FloatArray) -> bool:
    """Whether one value would flatten all others."""
    size = np.abs(values[np.isfinite(values) & (values != 0)])
    return len(size) > 0 and float(size.max()) > _SPREAD * float(np.median(size))


def _reach(ax: Axes, ends: Sequence[FloatArray]) -> None:
    """Scale of coefficients: straight where they are of one size, else by powers of ten."""
    known = np.concatenate(ends)
    # one wide interval would press all others together
    if _far(known):
        median = float(np.median(np.abs(known[np.isfinite(known) & (known != 0)])))
        ax.set_xscale("symlog", linthresh=median, linscale=1.5)
        ax.locator_params(axis="x", numticks=7)
        ax.minorticks_off()
    else:
        ax.margins(x=0.06)


def plot_assisted_calibration(result: Any) -> Figure:
    """Draw observed against predicted means on held-out records, in groups of like predictions.

    Parameters
    ----------
    result : AssistedGLMResult
        With `calibration`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    which = [key for key in ("alone", "joint") if key in result.calibration]
    names = {"alone": f"{charts.label(result.initiator, 24)} alone", "joint": "joint model"}
    looks = {"alone": (charts.ORANGE, "s"), "joint": (charts.BLUE, "o")}
    with charts.style():
        fig, axes = charts.panels(len(which), 3.5, len(which), sharex=True, sharey=True)
        ends: list[float] = []
        for ax, key in zip(axes, which, strict=True):
            table = result.calibration[key]
            x = np.asarray(table["predicted"], dtype=float)
            y = np.asarray(table["observed"], dtype=float)
            n = np.asarray(table["records"], dtype=float)
            colour, marker = looks[key]
            if result.family == "binomial":
                low, high = charts.wilson(y, n)
                ax.vlines(x, low, high, color=colour, linewidth=1.4)
                ends += [*low.tolist(), *high.tolist()]
            ax.plot(x, y, linestyle="none", marker=marker, markersize=5.5, color=colour)
            ends += [*x.tolist(), *y.tolist()]
            ax.set_title(names[key])
            ax.set_xlabel("mean prediction")
        known = [e for e in ends if np.isfinite(e)] or [0.0, 1.0]
        low_end, high_end = min(known), max(known)
        pad = 0.05 * ((high_end - low_end) or 1.0)
        for ax in axes:
            ax.plot([low_end, high_end], [low_end, high_end], color=charts.MUTED, linewidth=1)
            ax.set_xlim(low_end - pad, high_end + pad)
            ax.set_ylim(low_end - pad, high_end + pad)
            charts.bare(ax, "both")
        axes[0].set_ylabel("mean observed")
    return fig
