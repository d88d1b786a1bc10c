"""Evidence in the report of latent class regression: classes, members, rounds, error, releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.report import drawing, figures_latent
from consilience.report.drawing import Z95
from consilience.report.figures_latent import (
    CLASSES,
    FIRST,
    NULL,
    OWN,
    RIDGE,
    FloatArray,
    fitted_classes,
    held_events,
    merge_round,
    most_telling,
    over_sites,
    release_shares,
    site_counts,
    site_shares,
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
    site_name,
)

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
RESTLESS = 0.1
"""Share of entities that move, from which the classes are said not to have settled."""
LATELY = 5
"""Last rounds over which moving labels are averaged."""
MISSED_COVERAGE = 0.03
"""How far coverage may be from its level, beside chance, before the report says so."""


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
            _count(result.class_sizes[k]),
            _count(result.class_events[k]),
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


def _count(value: Any) -> str:
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


# --------------------------------------------------------------------------- who belongs where


def members(run: Any, result: Any) -> Block:
    """How many entities of each site belong to each class."""
    shares = site_shares(result)
    gaps = ~np.isfinite(shares)
    text = [
        "Which entity belongs to which class is known at its own site only, where classes.csv has "
        "every entity with the probability of its class: consilience site outputs, with the site's "
        f"own file and the run {run.info.run}.",
    ]
    if gaps.any():
        everything = np.asarray(gaps.all(axis=1))
        silent = [site_name(s) for s, g in zip(result.sites, everything, strict=True) if g]
        partly = np.asarray(gaps.any(axis=1)) & ~everything
        some = [site_name(s) for s, g in zip(result.sites, partly, strict=True) if g]
        if some:
            text.append(
                f"Of some classes {listed(some)} sent no sum: they have no entity of the class, or "
                "too few to be told."
            )
        if silent:
            text.append(f"No count came from {listed(silent)}.")
    text.append(_concentration(result))
    picture = Picture(
        "latent-members",
        figures_latent.plot_latent_members(result),
        "Share of each site's entities by class; above the line the shares among entities of an "
        "agent that nobody has seen.",
        f"Map of {plural(len(result.sites), 'site')} by "
        f"{plural(int(result.n_classes), 'class', 'classes')}. The table below has the counts.",
    )
    counts = site_counts(result)
    rows = tuple(
        (
            site_name(site),
            _count(result.n_agents[i]),
            _count(result.n_entities[i]),
            _count(result.n_events[i]),
            *(_count(v) for v in counts[i]),
        )
        for i, site in enumerate(result.sites)
    )
    head = (
        *("site", "agents", "entities", "events"),
        *(class_name(k) for k in range(int(result.n_classes))),
    )
    note = f"{DASH}: none, or too few to be told." if gaps.any() else ""
    return Block(
        "Who belongs where",
        tuple(text),
        picture=picture,
        folded=(Table("Entities by site and class", head, rows, note),),
    )


def _concentration(result: Any) -> str:
    """What beta says of agents."""
    beta = float(result.beta)
    if not math.isfinite(beta):
        return ""
    words = f"{beta:.2g}"
    if beta < 1:
        return (
            f"Agents differ much: the concentration of their mixtures is {words}, so most entities "
            "of an agent are in the same class."
        )
    if beta > 20:
        return (
            f"Agents hardly differ: the concentration of their mixtures is {words}, so whose an "
            "entity is says little about its class."
        )
    return (
        f"Agents differ to some degree in their mixture of classes: its concentration is {words} "
        "(small: one class an agent; large: the same mixture everywhere)."
    )


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
    caption = "By round: fit of the classes, noise, entities that moved, classes, learning rate."
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
    if not len(path):
        return []
    words = [
        f"The rounds began with {plural(int(np.nanmax(counts)), 'class', 'classes')}, so that none "
        f"is missed; alike ones were then merged, down to {int(result.n_classes)}"
        + (", as long as that made the events likelier." if result.chosen == "auto" else ".")
    ]
    cost = path[path[:, 1] < 0]
    if len(cost):
        most = int(cost[0, 0]) + 1
        words.append(
            f"Below {plural(most, 'class', 'classes')} each merge made the events less likely: "
            f"they may hold {most} classes, of which {int(result.n_classes)} were asked for."
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
            columns.append([_count(v) for v in values])
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


# --------------------------------------------------------------------------- held-out error


def saved(result: Any, over: int = RIDGE) -> tuple[float, float]:
    """Squared error that the classes save over another model, and its standard error, in shares.

    The error is that of the sites' differences around their mean, NaN with fewer than 3 sites.
    """
    mse = np.asarray(result.heldout_mse, dtype=float)
    unit = over_sites(result, mse[:, over])
    differences = (mse[:, over] - mse[:, CLASSES]) / unit
    mean = over_sites(result, differences)
    weight = np.where(np.isfinite(differences), np.nan_to_num(result.heldout_weight), 0.0)
    n = int((weight > 0).sum())
    if n < 3:
        return mean, float("nan")
    weight = weight / weight.sum()
    spread = weight * np.nan_to_num(differences - mean)
    return mean, float(np.sqrt((spread**2).sum() * n / (n - 1)))


def half_width(error: float, n_sites: int) -> float:
    """Half of a 95 % interval from a standard error over sites, by Student's distribution."""
    from scipy.stats import t

    return float(t.isf(0.025, n_sites - 1)) * error if n_sites >= 3 else float("nan")


def n_telling(result: Any) -> int:
    """Sites that held events out and tell what the classes lost on them."""
    mse = np.asarray(result.heldout_mse, dtype=float)[:, CLASSES]
    return int((np.isfinite(mse) & (np.nan_to_num(result.heldout_weight) > 0)).sum())


def coverage_words(result: Any) -> tuple[str, bool]:
    """What the intervals cover, and whether that is what they promise."""
    covered, level = over_sites(result, result.coverage), float(result.level)
    if not math.isfinite(covered):
        return "", True
    n = float(held_events(result)[np.isfinite(np.asarray(result.coverage, dtype=float))].sum())
    chance = Z95 * math.sqrt(level * (1 - level) / max(n, 1.0))
    width = numbers([over_sites(result, result.interval_width)])[0]
    fits = abs(covered - level) <= MISSED_COVERAGE + chance
    words = (
        f"Intervals of {percent(level, 0)} held {percent(covered)} of the held-out events; "
        f"they are {width} wide on average, in units of the target."
    )
    return words, fits


def held_out(result: Any) -> Block:
    """Error on held-out events beside simpler models, with coverage."""
    text = [
        "Of each entity some events were held out: they took part in no class. Each site says what "
        "the classes lose on them, where an entity has the probabilities of its classes, beside "
        "three simpler models: the mean alone, one ridge regression for all events, and a ridge "
        "regression for each entity, drawn towards the common one.",
    ]
    covered, fits = coverage_words(result)
    text.append(covered)
    score = np.asarray(result.heldout_log_score, dtype=float)
    gain = over_sites(result, score[:, 1] - score[:, 0])
    if math.isfinite(gain):
        text.append(
            f"The classes' log score is {abs(gain):.3g} nats an event "
            f"{'above' if gain >= 0 else 'below'} that of the one ridge, which is given its own "
            "normal distribution."
        )
    warning = (
        ""
        if fits
        else "The intervals do not cover what they promise: do not use them for decisions."
    )
    shares = figures_latent.unexplained(result)[0]
    picture = Picture(
        "latent-held-out",
        figures_latent.plot_latent_held_out(result),
        "Left: squared error on held-out events, in shares of that of the mean alone (further left "
        "is better). Right: share of the events within their interval, with a 95 % interval of "
        "chance.",
        f"Dots for {plural(len(result.sites), 'site')}; over all sites the classes leave "
        f"{percent(float(shares[CLASSES]))} of the variance, one ridge "
        f"{percent(float(shares[RIDGE]))}. The table below has the numbers.",
    )
    return Block(
        "Held-out error beside simpler models",
        tuple(t for t in text if t),
        warning,
        picture,
        tables=(_error_table(result),),
    )


def _error_table(result: Any) -> Table:
    mse = np.asarray(result.heldout_mse, dtype=float)
    score = np.asarray(result.heldout_log_score, dtype=float)
    width, covered = np.asarray(result.interval_width, float), np.asarray(result.coverage, float)
    every = [mse[:, NULL], mse[:, RIDGE], mse[:, OWN], mse[:, CLASSES]]
    columns = [numbers([over_sites(result, v), *v]) for v in every]
    scores = [numbers([over_sites(result, v), *v]) for v in score.T]
    cover = [percent(v) for v in (over_sites(result, covered), *covered)]
    wide = numbers([over_sites(result, width), *width])
    weight = np.asarray(result.heldout_weight, dtype=float)
    events = [_count(v) for v in (np.nansum(weight), *weight)]
    names = ("all sites", *(site_name(s) for s in result.sites))
    rows = tuple(zip(names, events, *columns, *scores, cover, wide, strict=True))
    head = (
        *("site", "events not held out", "mean alone", "one ridge", "ridge for each entity"),
        *("classes", "log score, one ridge", "log score, classes"),
        *(f"within {percent(float(result.level), 0)} interval", "mean width"),
    )
    note = (
        "Mean squared errors and mean log scores of a held-out event; of log scores the larger is "
        "better. Sites are weighted by the events that they did not hold out."
    )
    if not np.isfinite(mse).all():
        note += (
            f" {DASH}: the site held out no events, or withheld a mean that few of them dominate."
        )
    return Table("Held-out events by site", head, rows, note)


# --------------------------------------------------------------------------- releases


def release_counts(result: Any) -> FloatArray:
    """Class sums that each site released anew, repeated and withheld over all rounds, (B, 3)."""
    return np.stack(
        [
            np.asarray(getattr(result, name), dtype=float).sum(axis=0)
            for name, _ in figures_latent.RELEASES
        ],
        axis=1,
    )


def releases(result: Any) -> Block:
    """Which class sums each site sent anew, as before, and left out, round by round."""
    counts = release_counts(result)
    told = np.asarray(result.reported, dtype=bool)
    text = [
        "A class sum leaves a site only if it rests on enough events of at least three entities. "
        "From one round to the next, entities are counted in another class only in groups that "
        "are as large; whoever has no such company is left out with others until there is some. So "
        "no two sums, of whichever rounds, differ by a few entities. A sum whose entities did not "
        "change is the same as before.",
    ]
    never = [
        site_name(s)
        for s, n in zip(result.sites, counts[:, 0] + counts[:, 1], strict=True)
        if not n
    ]
    warning = ""
    if never:
        warning = (
            f"{listed(never)} released no class sum at all: the classes are those of the other "
            "sites."
        )
    shares = release_shares(result)
    fresh = float(np.nanmean(shares["released"])) if counts.sum() else float("nan")
    picture = Picture(
        "latent-releases",
        figures_latent.plot_latent_releases(result),
        "Share of a site's class sums in each round that were new, the same as before, or left out."
        + (" Dashed: classes were merged." if merge_round(result) is not None else ""),
        f"Maps of {plural(len(result.sites), 'site')} by {plural(len(told), 'round')}; "
        f"{percent(fresh)} of the sums were new. The table below has the counts.",
    )
    rows = tuple(
        (
            site_name(site),
            f"{int(told[:, i].sum()):,} of {len(told):,}",
            *(f"{v:,.0f}" for v in counts[i]),
            percent(counts[i, 0] / counts[i].sum() if counts[i].sum() else float("nan")),
        )
        for i, site in enumerate(result.sites)
    )
    head = ("site", "rounds reported", "new", "as before", "left out", "share new")
    return Block(
        "Which sums were new",
        tuple(text),
        warning,
        picture,
        tables=(Table("Class sums by site, over all rounds", head, rows),),
    )
