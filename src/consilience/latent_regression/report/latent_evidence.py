"""Evidence in the report of latent class regression: figures, classes and rounds.

Each `plot_*` takes a `LatentClassRegressionResult` and returns a Matplotlib figure, as in
`figures`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.arrays import FloatArray
from consilience.report import charts, drawing, figures_latent
from consilience.report.charts import NAMED
from consilience.report.drawing import Z95
from consilience.report.figures_latent import (
    FIRST,
    fitted_classes,
    merge_round,
    most_telling,
    traces,
)
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
    listed,
    numbers,
    percent,
    plural,
)

WRITTEN = 30
"""Sites, and half as many classes, up to which a map has its numbers in it."""
NULL, RIDGE, OWN, CLASSES = 3, 0, 1, 2
"""Columns of `heldout_mse`."""


# --------------------------------------------------------------------------- who belongs where


def site_shares(result: Any) -> FloatArray:
    """Share of each class among the entities of each site, (B, K); NaN where no sum was sent.

    Where a class of a site is too small for its sum to leave, the others' shares are still of all
    entities of the site, so they do not add up to one.
    """
    counts = site_counts(result)
    n = np.asarray(result.n_entities, dtype=float)[:, None]
    n = np.where(np.isfinite(n) & (n > 0), n, np.nan)
    return np.asarray(counts / n)


def site_counts(result: Any) -> FloatArray:
    """Entities of each site by class, (B, K); NaN where there are none, or too few to be told."""
    counts = np.asarray(result.site_class_sizes, dtype=float)
    return np.where(counts > 0, counts, np.nan)


def plot_latent_members(result: Any) -> Figure:
    """Draw which share of each site's entities belongs to which class.

    Parameters
    ----------
    result : LatentClassRegressionResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    shares = site_shares(result)
    # New entities of no known agent stand first: what the model holds for everybody.
    values = np.vstack([np.asarray(result.class_shares, dtype=float)[None, :], shares])
    n, k = values.shape
    wide = min(drawing.WIDTH, 3.4 + 0.62 * k)
    with drawing.style():
        fig, ax = drawing.sheet(_tall(n), width=wide)
        ax.set_facecolor(drawing.RULE)
        top = float(np.nanmax(values, initial=0.05))
        mesh = charts.heat_map(ax, values, (0, top), linewidth=0.8 * (n <= NAMED))
        if n <= WRITTEN and k <= WRITTEN // 2:
            dark = 0.62 * top
            charts.in_cells(ax, values, "{:.0%}".format, lambda v: v > dark, missing="\N{EN DASH}")
        names = [drawing.label(s, 24) for s in result.sites]
        if n <= NAMED:
            ax.set_yticks(np.arange(n) + 0.5, ["new entities", *names])
        else:
            ax.set_yticks([0.5], ["new entities"])
            ax.set_ylabel(f"{n - 1:,} sites, in the order of their names")
        ax.axhline(1, color=drawing.INK, linewidth=0.9)
        ax.set_ylim(n, 0)
        head = "class {}" if k <= 8 else "{}"
        ax.set_xticks(np.arange(k) + 0.5, [head.format(j + FIRST) for j in range(k)])
        ax.xaxis.tick_top()
        drawing.bare(ax, "")
        words = "share of the site's entities (grey: none, or too few to be told)"
        bar = charts.colour_bar(fig, mesh, ax, words, shrink=0.6, aspect=30, pad=0.03)
        bar.ax.xaxis.set_major_formatter(charts.SHARES)
    return fig


def _tall(n: int) -> float:
    """Height of a figure with one line for each of n sites, in inches."""
    return 0.27 * n + 1.35 if n <= NAMED else 8.0


# --------------------------------------------------------------------------- what they are worth


def over_sites(result: Any, values: FloatArray) -> float:
    """Mean of a figure of each site over held-out events; NaN where no site tells."""
    values = np.asarray(values, dtype=float)
    weight = np.where(np.isfinite(values), np.nan_to_num(result.heldout_weight), 0.0)
    if not weight.sum() > 0:
        return float("nan")
    return float((weight * np.nan_to_num(values)).sum() / weight.sum())


def unexplained(result: Any) -> FloatArray:
    """Held-out squared error in shares of that of the mean alone, all sites first, (B + 1, 4)."""
    mse = np.asarray(result.heldout_mse, dtype=float)
    total = np.array([over_sites(result, column) for column in mse.T])
    every = np.vstack([total, mse])
    return np.asarray(every / every[:, [NULL]])


MARKS: tuple[tuple[int, str, str, str, str], ...] = (
    (RIDGE, "s", drawing.PAPER, drawing.MUTED, "one ridge for all"),
    (OWN, "^", drawing.PAPER, drawing.MUTED, "a ridge for each entity"),
    (CLASSES, "D", drawing.BLUE, drawing.BLUE, "classes"),
)


def plot_latent_held_out(result: Any) -> Figure:
    """Draw the held-out error beside simpler models, and what the intervals cover, by site.

    Parameters
    ----------
    result : LatentClassRegressionResult
        With held-out events at one site at least.

    Returns
    -------
    matplotlib.figure.Figure
    """
    shares = unexplained(result)
    n = len(shares)
    at, size = np.arange(n), 6.5 if n <= NAMED else 3.0
    with drawing.style():
        room, ratios = {"w_pad": 0.1}, [1.7, 1.0]
        fig, (left, right) = charts.panels(
            2, _tall(n) - 0.1, 2, layout=room, sharey=True, width_ratios=ratios
        )
        left.hlines(at, np.nanmin(shares[:, :3], axis=1, initial=1.0), 1.0, color=drawing.RULE)
        for column, marker, face, edge, words in MARKS:
            charts.marks(left, shares[:, column], at, marker, face, edge, size, label=words)
        left.axvline(1, color=drawing.INK, linewidth=0.9)
        left.set_xlim(0, max(1.06, min(2.0, 1.06 * float(np.nanmax(shares[:, :3], initial=1.0)))))
        left.xaxis.set_major_formatter(charts.SHARES)
        left.set_xlabel("squared error, share of that of the mean alone")
        _coverage(right, result, size)
        charts.site_axis(left, result.sites, ["all sites"])
        for ax in (left, right):
            ax.axhline(0.5, color=drawing.MUTED, linewidth=0.8)
            drawing.bare(ax)
        fig.legend(loc="outside upper center", ncols=3, handletextpad=0.3)
    return fig


def chance(result: Any) -> FloatArray:
    """Half of a 95 % interval of chance around the level, all sites first, (B + 1,).

    NaN where nobody says how many events were held out.
    """
    level = float(result.level)
    n = np.asarray(result.heldout_effective, dtype=float)
    n = np.where(np.isfinite(result.coverage), n, np.nan)
    n = np.concatenate([[np.nansum(n)], n])
    n = np.where(n > 0, n, np.nan)
    # standard error of a share of n events
    return np.asarray(Z95 * np.sqrt(level * (1 - level) / n))


def _coverage(ax: Axes, result: Any, size: float) -> None:
    level = float(result.level)
    covered = np.asarray(result.coverage, dtype=float)
    covered = np.concatenate([[over_sites(result, covered)], covered])
    at, half = np.arange(len(covered)), chance(result)
    known, sized = np.isfinite(covered), np.isfinite(covered) & np.isfinite(half)
    ends = (covered[sized] - half[sized], np.minimum(covered[sized] + half[sized], 1.0))
    ax.hlines(at[sized], *ends, color=drawing.BLUE, linewidth=1.4)
    ax.plot(covered[known], at[known], "D", color=drawing.BLUE, markersize=size)
    ax.axvline(level, color=drawing.ORANGE, linewidth=1.4)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
    ax.annotate(f"wanted: {level:.0%}", (level, 1.0), va="bottom", fontsize=8.5, **place)
    ax.xaxis.set_major_formatter(charts.SHARES)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.set_xlabel("events within their interval")


# --------------------------------------------------------------------------- releases


RELEASES = (("released", "new"), ("repeated", "as before"), ("withheld", "left out"))


def release_shares(result: Any) -> dict[str, FloatArray]:
    """Share of a round's class sums that a site sent anew, as before, left out, (R, B) each.

    NaN where the site sent nothing in that round.
    """
    counts = {name: np.asarray(getattr(result, name), dtype=float) for name, _ in RELEASES}
    total = sum(counts.values())
    told = np.asarray(result.reported, dtype=bool) & (total > 0)
    return {
        name: np.where(told, values / np.where(told, total, 1.0), np.nan)
        for name, values in counts.items()
    }


def plot_latent_releases(result: Any) -> Figure:
    """Draw which part of its class sums each site sent anew, as before, or left out by round.

    Parameters
    ----------
    result : LatentClassRegressionResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    shares = release_shares(result)
    r, n = shares["released"].shape
    cut = merge_round(result)
    with drawing.style():
        across = len(RELEASES)
        fig, axes = charts.panels(across, 0.2 * min(n, 34) + 1.5, across, sharey=True)
        for ax, (name, words) in zip(axes, RELEASES, strict=True):
            edges = (np.arange(r + 1) - 0.5, np.arange(n + 1) - 0.5)
            shown = np.ma.masked_invalid(shares[name].T)
            mesh = ax.pcolormesh(*edges, shown, cmap=drawing.RISING, vmin=0, vmax=1)
            ax.set_facecolor(drawing.PAPER)
            ax.set_title(words)
            ax.set_xlabel("round")
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if cut is not None:
                charts.chosen(ax, cut)
            drawing.bare(ax, "")
        if n <= 34:
            names = [drawing.label(s, 24) for s in result.sites]
            axes[0].set_yticks(range(n), names, fontsize=9)
        else:
            axes[0].set_yticks([])
            axes[0].set_ylabel(f"{n:,} sites, in the order of their names")
        axes[0].set_ylim(n - 0.5, -0.5)
        words = "share of the site's class sums in that round (empty: it did not report)"
        bar = charts.colour_bar(fig, mesh, axes, words, shrink=0.5, aspect=30, pad=0.05)
        bar.ax.xaxis.set_major_formatter(charts.SHARES)
    return fig


# ------------------------------------------------------------------------------- classes and rounds


PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
RESTLESS = 0.1
"""Share of entities that move, from which the classes are said not to have settled."""
LATELY = 5
"""Last rounds over which moving labels are averaged."""


def class_name(k: int) -> str:
    """Name of the class in place `k`, by the number that it has in the sites' outputs."""
    return f"class {k + FIRST}"


# --------------------------------------------------------------------------- classes


def classes(result: Any) -> Block:
    """Coefficients of each class with intervals, and how large it is."""
    found = fitted_classes(result)
    shown = most_telling(found)
    text = [
        "Each class is a regression of its own, and each entity follows one of them. Marks are "
        "posterior means in the units of the columns, lines their intervals; what they "
        "describe is how the target goes with the columns, not what would happen if a column were "
        "changed.",
    ]
    if len(shown) < len(found.names):
        text.append(
            f"Drawn are those {len(shown)} of {len(found.names):,} coefficients in which the "
            "classes differ most beside their errors; the table has all."
        )
    alike = _alike(found.values, found.errors)
    warning = ""
    if alike:
        pairs = listed([f"{class_name(a)} and {class_name(b)}" for a, b in alike], 4)
        warning = (
            f"No coefficient tells {pairs} clearly apart: fewer classes may say the same "
            "(n_classes)."
        )
    picture = Picture(
        "latent-coefficients",
        figures_latent.plot_latent_coefficients(result),
        f"Coefficients by class with {percent(found.level, 0)} intervals; dashed: the mean over "
        "classes, each with its share.",
        f"Dots with intervals for {plural(found.n_classes, 'class', 'classes')} in "
        f"{plural(len(shown), 'panel')}. The table below has the numbers.",
    )
    table = _coefficient_table(found)
    small = len(found.names) <= 10 and found.n_classes <= 8
    return Block(
        "The classes",
        tuple(text),
        warning,
        picture,
        tables=(_size_table(result), *((table,) if small else ())),
        folded=() if small else (table,),
    )


def _alike(values: FloatArray, errors: FloatArray) -> list[tuple[int, int]]:
    """Pairs of classes that no coefficient tells apart, with as many looks as coefficients."""
    from scipy.stats import norm

    # Bonferroni over the coefficients
    limit = float(norm.isf(0.025 / max(values.shape[1], 1)))
    found = []
    for a, b in zip(*np.triu_indices(len(values), 1), strict=True):
        apart = np.abs(values[a] - values[b])
        noise = np.hypot(errors[a], errors[b])
        known = np.isfinite(apart) & np.isfinite(noise) & (noise > 0)
        if known.any() and (apart[known] <= limit * noise[known]).all():
            found.append((int(a), int(b)))
    return found


def _size_table(result: Any) -> Table:
    told = np.isfinite(site_counts(result)).sum(axis=0)
    n = len(result.sites)
    rows = tuple(
        (
            class_name(k),
            percent(float(result.class_shares[k])),
            count_words(result.class_sizes[k]),
            count_words(result.class_events[k]),
            f"{told[k]} of {n}",
        )
        for k in range(int(result.n_classes))
    )
    head = ("class", "share of new entities", "entities", "events", "at sites")
    note = (
        "Share: of entities of an agent that nobody has seen. Entities and events: as they were "
        "counted in the sums of the last rounds. At sites: of how many sites sums of the class "
        "were sent at the end."
    )
    return Table("Size of the classes", head, rows, note)


def count_words(value: Any) -> str:
    """Write a number of entities or events."""
    number = float(value)
    return f"{number:,.0f}" if math.isfinite(number) else DASH


def _coefficient_table(found: Any) -> Table:
    rows = []
    for j, name in enumerate(found.names):
        value, half = found.values[:, j], found.z * found.errors[:, j]
        words = numbers([*value, *half])
        k = len(value)
        both = zip(words[:k], words[k:], strict=True)
        cells = (f"{v} {PLUS_MINUS} {e}" if v != DASH else DASH for v, e in both)
        rows.append((drawing.short(name, 60), *cells))
    head = ("coefficient", *(class_name(k) for k in range(found.n_classes)))
    note = (
        f"Posterior mean with half of a {percent(found.level, 0)} interval, given the number of "
        "classes; that labels move between rounds is in the interval."
    )
    return Table("Coefficients by class", head, tuple(rows), note)


# --------------------------------------------------------------------------- rounds


def restless(result: Any) -> float:
    """Share of entities that moved in the last rounds; NaN if unknown."""
    moved = np.asarray(result.trace_moved, dtype=float)[-LATELY:]
    known = moved[np.isfinite(moved)]
    return float(known.mean()) if len(known) else float("nan")


def rounds(run: Any, result: Any) -> Block:
    """Traces over the rounds, and merges."""
    lines = traces(result)
    counts = np.asarray(result.trace_classes, dtype=float)
    text = [
        "In every round each site draws a class for each of its entities, by the classes of all "
        "sites without the entity's own events, and sends the sums of its classes; the coordinator "
        "mixes them into the classes by the learning rate.",
    ]
    text.extend(_merge_words(result, counts))
    moved = restless(result)
    warning = ""
    if moved > RESTLESS:
        warning = (
            f"In the last rounds {percent(moved, 0)} of the entities still moved: the classes had "
            "not settled. Try more rounds, fewer classes, or a smaller learning rate."
        )
    elif math.isfinite(moved):
        text.append(
            "Labels are draws, so those of entities between two classes never stop moving. In the "
            f"last rounds {percent(moved)} of the entities moved: beyond what chance explains, or, "
            "at sites that protect records, in what was sent."
        )
    rates = np.asarray(result.learning_rates, dtype=float)
    if result.slowed and len(rates):
        text.append(
            f"The learning rate was lowered from {rates[0]:.3g} to {rates[-1]:.3g}, because many "
            "labels jumped to and fro between rounds, as they do at low noise."
        )
    averaged = run.info.parameters.get("average_rounds")
    averaged = int(averaged) if isinstance(averaged, int) else 0
    caption = (
        "By round: fit of the classes to the sums that were sent, noise, entities that moved, "
        "classes, learning rate."
    )
    if merge_round(result) is not None:
        caption += " Dashed: classes were merged."
    if averaged:
        caption += " Shaded: rounds over which labels and classes were averaged."
    picture = Picture(
        "latent-traces",
        figures_latent.plot_latent_traces(result, averaged),
        caption,
        f"Curves over {plural(int(result.rounds_run), 'round')}; the noise ends at "
        f"{numbers([result.sigma])[0]}. The table below has the numbers.",
    )
    return Block(
        "How the rounds went",
        tuple(text),
        warning,
        picture,
        folded=(_trace_table(result, lines), *_merge_table(result), _settings_table(result)),
    )


def _merge_path(result: Any) -> FloatArray:
    return np.asarray(result.merge_path, dtype=float).reshape(-1, 2)


def _merge_words(result: Any, counts: FloatArray) -> list[str]:
    path = _merge_path(result)
    most = int(np.nanmax(counts, initial=0))
    if not len(path):
        if most <= int(result.n_classes):
            return []
        return [
            f"The rounds began with entities in {most} classes; those that told nothing of their "
            f"own lost them to others, down to {int(result.n_classes)}."
        ]
    words = [
        f"The rounds began with {plural(most, 'class', 'classes')}, so that none "
        f"is missed; alike ones were then merged, down to {int(result.n_classes)}"
        + (", as long as that made the events likelier." if result.chosen == "auto" else ".")
    ]
    cost = path[path[:, 1] < 0]
    if len(cost):
        # classes before the first merge that cost likelihood
        likely = int(cost[0, 0]) + 1
        words.append(
            f"Below {plural(likely, 'class', 'classes')} each merge made the events less likely: "
            f"they may hold {likely} classes, of which {int(result.n_classes)} were asked for."
        )
    return words


def _merge_table(result: Any) -> tuple[Table, ...]:
    path = _merge_path(result)
    if not len(path):
        return ()
    rows = tuple((f"{int(n)}", *numbers([gain])) for n, gain in path)
    note = (
        "Gain: in the log marginal likelihood of events and partition, in nats; above 0 the "
        "events are more likely with the merged class."
    )
    return (Table("Merges", ("classes after the merge", "gain"), rows, note),)


def _trace_table(result: Any, lines: dict[str, FloatArray]) -> Table:
    words = {
        "log_marginal": "log marginal likelihood",
        "sigma": "noise sd",
        "moved": "entities that moved",
        "n_classes": "classes",
        "learning_rate": "learning rate",
    }
    written: dict[str, Any] = {"moved": percent, "n_classes": count_words}
    columns: list[Sequence[str]] = [
        [written[name](float(v)) for v in values] if name in written else numbers(values)
        for name, values in lines.items()
    ]
    n = min((len(c) for c in columns), default=0)
    told = np.asarray(result.reported, dtype=bool).sum(axis=1)
    rows = tuple(
        (str(r), *(c[r] for c in columns), f"{told[r]:,}" if r < len(told) else DASH)
        for r in range(n)
    )
    head = ("round", *(words[name] for name in lines), "sites that reported")
    return Table("Every round", head, rows)


def _settings_table(result: Any) -> Table:
    values = (
        ("noise: standard deviation of an event around its class (sigma)", result.sigma),
        ("spread of the coefficients before the data (delta)", result.delta),
        ("concentration of agents' mixtures around the common one (beta)", result.beta),
        ("concentration of the common mixture (alpha)", result.alpha),
    )
    rows = tuple((name, numbers([value])[0]) for name, value in values)
    rows += (("mixtures drawn by", str(result.concentration)),)
    return Table("Settings as they were at the end", ("what", "value"), rows)
