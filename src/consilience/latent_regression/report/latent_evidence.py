"""Evidence in the report of latent class regression: the classes and the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.latent_regression.report.figures_latent_sites import site_counts
from consilience.report import drawing, figures_latent
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
        cells = (
            f"{v} {PLUS_MINUS} {e}" if v != DASH else DASH
            for v, e in zip(words[:k], words[k:], strict=True)
        )
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
    path = np.asarray(result.merge_path, dtype=float)
    return path.reshape(-1, 2) if path.size else np.empty((0, 2))


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
    columns: list[Sequence[str]] = []
    for name, values in lines.items():
        if name == "moved":
            columns.append([percent(float(v)) for v in values])
        elif name == "n_classes":
            columns.append([count_words(v) for v in values])
        else:
            columns.append(numbers(values))
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
