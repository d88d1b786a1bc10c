"""What a report says of classes of sequences and of categories that sites share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.report import figures_sequences
from consilience.clustering.report.figures_sequences import Chains, chains_of, items_of
from consilience.report import drawing
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
)

MODELS = {"markov-mixture": "sequences", "latent-class": "rows of categories"}
PARTS = {"initial": "first states", "transition": "steps", "levels": "levels"}
PERMUTED = {
    "markov-mixture": "states had been permuted among the records at each time point",
    "latent-class": "each column had been permuted by itself",
}
NOTABLE = 0.1
"""Difference to the other classes from which a share is told in words."""
MOST_PAIRS = 60


def is_coded(result: EnsembleClusteringResult) -> bool:
    """Whether the classes are of sequences or of categories."""
    return getattr(result, "model", "") in MODELS


# --------------------------------------------------------------------------- what they look like


def profiles(result: EnsembleClusteringResult) -> list[Block]:
    """Say and draw what the classes look like."""
    chances = result.class_means if result.category_levels else result.class_transition
    if not np.size(chances):
        said = "No site told what the classes look like: see what was refused or absent, below."
        return [Block("What the classes look like", warning=said)]
    return [_items(result)] if result.category_levels else _chains(result)


def _chains(result: EnsembleClusteringResult) -> list[Block]:
    chains = chains_of(result)
    by_time = chains.by_time(max(int(result.n_times), 1))
    text = [
        "Every class is a chain: chances of the first state, and chances of the next state given "
        "the present one, over all sites. Months, visits or years in which nothing was seen are no "
        "state; they are left out.",
        *_portraits(chains, by_time),
    ]
    steps = Picture(
        "steps",
        figures_sequences.plot_transitions(result),
        "First states and steps in each class, in percent; a grey row is not told, since too few "
        "records of the class were ever in that state.",
        f"Map of colours of {plural(len(chains.states), 'state')} in "
        f"{plural(chains.n_classes, 'class', 'classes')}. The tables below have the chances.",
    )
    tables = tuple(_chain_table(chains, k) for k in range(chains.n_classes))
    picture = Picture(
        "states",
        figures_sequences.plot_state_distribution(result, length=by_time.shape[1]),
        "Shares of the states by time, as each class's chain implies them. Shares by time were "
        "not asked of the sites: each site can draw those of its own records.",
        f"Areas of {plural(len(chains.states), 'state')} over "
        f"{plural(by_time.shape[1], 'time point')}, one panel for each class.",
    )
    implied = (
        "A chain forgets where it came from: long stays, seasons and ages at which something is "
        "due are not in it. Compare these areas with the records before you read paths from them.",
    )
    return [
        Block("What the classes look like", tuple(text), picture=steps, folded=tables),
        Block("Where they are, by time", implied, picture=picture),
    ]


def _portraits(chains: Chains, by_time: FloatArray) -> list[str]:
    """One sentence a class: where it is most, and which steps it makes more than others."""
    if chains.n_classes == 1 or chains.n_classes > figures_sequences.MOST_CLASSES:
        return []
    where = np.nan_to_num(by_time).mean(axis=1)
    names = [drawing.short(name, 30) for name in chains.states]
    words = []
    for k in range(chains.n_classes):
        order = np.argsort(-where[k], kind="stable")[:3].tolist()
        most = [a for a in order if where[k, a] >= NOTABLE]
        places = listed([f"{names[a]} ({where[k, a]:.0%})" for a in most])
        said = f"Class {k}, {percent(chains.shares[k], 0)}: most of the time in {places}."
        words.append(said + _step_words(chains, names, k, where[k]))
    return words


def _step_words(chains: Chains, names: Sequence[str], k: int, where: FloatArray) -> str:
    """Return the step that sets a class most apart from the others, from states it is often in."""
    others = np.arange(chains.n_classes) != k
    # What the others do: their steps, weighted by their shares.
    weight = np.nan_to_num(chains.shares[others])[:, None, None]
    steps = chains.transition[others]
    known = np.isfinite(steps) * weight
    total = known.sum(axis=0)
    elsewhere = np.divide(
        (np.nan_to_num(steps) * known).sum(axis=0),
        total,
        out=np.full_like(total, np.nan),
        where=total > 0,
    )
    apart = np.nan_to_num(chains.transition[k] - elsewhere)
    # Staying is no step.
    np.fill_diagonal(apart, 0.0)
    a, b = divmod(int((np.abs(apart) * where[:, None]).argmax()), len(names))
    if abs(apart[a, b]) < NOTABLE / 3:
        return ""
    own, rest = chains.transition[k, a, b], elsewhere[a, b]
    how = "more often" if own > rest else "less often"
    return (
        f" From {names[a]} to {names[b]} it goes {how} than the others "
        f"({own:.0%} of the steps from there, elsewhere {rest:.0%})."
    )


def _chain_table(chains: Chains, k: int) -> Table:
    names = [drawing.short(name, 30) for name in chains.states]
    rows = [("first state", *_shares(chains.initial[k]))]
    rows += [(f"after {names[a]}", *_shares(chains.transition[k, a])) for a in range(len(names))]
    note = f"{DASH}: not told." if not np.isfinite(chains.transition[k]).all() else ""
    return Table(f"Class {k}: chances of the next state", ("", *names), tuple(rows), note)


def _shares(values: FloatArray) -> list[str]:
    return [percent(float(v)) for v in values]


def _items(result: EnsembleClusteringResult) -> Block:
    items = items_of(result)
    head = ("column", "level", *(f"class {k}" for k in range(result.n_clusters)))
    rows = [
        (column, level, *_shares(chances[:, place]))
        for column, levels, chances in zip(items.columns, items.levels, items.chances, strict=True)
        for place, level in enumerate(levels)
    ]
    sizes = ("records", "", *(f"{int(n):,}" for n in result.class_sizes))
    drawn = figures_sequences.shown_items(items)
    cut = (
        f" Of {len(items.columns)} columns the {len(drawn)} that differ most are drawn."
        if len(drawn) < len(items.columns)
        else ""
    )
    picture = Picture(
        "items",
        figures_sequences.plot_item_profiles(result),
        f"Share of each class with each level, in percent.{cut}",
        f"Map of colours of the levels of {plural(len(drawn), 'column')} in "
        f"{plural(result.n_clusters, 'class', 'classes')}. The table below has the shares.",
    )
    text = (
        "Within a class the columns are taken to be independent: what goes together does so "
        "because of the classes. A missing entry is left out, and nothing is filled in.",
        *_item_portraits(items.columns, items.levels, items.chances, items.shares),
    )
    table = Table("Shares of the levels by class", head, (sizes, *rows))
    return Block("What the classes look like", text, picture=picture, folded=(table,))


def _item_portraits(
    columns: Sequence[str],
    levels: Sequence[Sequence[str]],
    chances: Sequence[FloatArray],
    shares: FloatArray,
) -> list[str]:
    """One sentence a class: the levels that it has more than all rows together."""
    if not 1 < len(shares) <= figures_sequences.MOST_CLASSES:
        return []
    names = [
        f"{drawing.short(column, 30)} = {drawing.short(level, 24)}"
        for column, known in zip(columns, levels, strict=True)
        for level in known
    ]
    table = np.concatenate(chances, axis=1)
    weight = np.nan_to_num(shares)
    mean = weight @ np.nan_to_num(table) / max(float(weight.sum()), 1e-300)
    words = []
    for k in range(len(shares)):
        apart = np.nan_to_num(table[k] - mean)
        most = [j for j in np.argsort(-apart, kind="stable")[:3] if apart[j] >= NOTABLE]
        said = listed([f"{names[j]} ({table[k, j]:.0%}, of all {mean[j]:.0%})" for j in most])
        words.append(
            f"Class {k}, {percent(float(shares[k]), 0)}: {said or 'much like all together'}."
        )
    return words


# --------------------------------------------------------------------------- outcomes


def outcomes(result: EnsembleClusteringResult) -> Block:
    """Tell the shares of the target's levels by class, over all sites and at each."""
    levels = [drawing.short(level, 24) for level in result.target_levels]
    head = ("class", *levels)
    classes = [f"class {k}" for k in range(result.n_clusters)]
    rows = [
        (name, *_shares(shares)) for name, shares in zip(classes, result.target_shares, strict=True)
    ]
    by_site = [
        (name, site, *_shares(result.target_shares_at(site)[k]))
        for k, name in enumerate(classes)
        for site in sorted(result.target_shares_by_site)
    ]
    text = (
        f"{result.target} took no part in finding the classes. Where its "
        "levels are spread over the classes in the same way at every site, the classes carry "
        "information on it.",
        *_outcome_words(result, levels),
    )
    note = (
        f"{DASH}: too few rows of the class have the level, or nobody has it. Levels that are rare "
        "only together with others are shown in equal parts."
    )
    return Block(
        f"How {result.target} differs between them",
        text,
        tables=(
            Table(f"Shares of the levels of {result.target}, all sites", head, tuple(rows), note),
        ),
        folded=(
            Table(
                f"Shares of the levels of {result.target} by site",
                ("class", "site", *levels),
                tuple(by_site),
                note,
            ),
        ),
    )


def _outcome_words(result: EnsembleClusteringResult, levels: Sequence[str]) -> list[str]:
    """Say of which level the classes differ most."""
    shares = result.target_shares
    known = np.isfinite(shares)
    low = np.where(known, shares, np.inf).min(axis=0)
    high = np.where(known, shares, -np.inf).max(axis=0)
    apart = np.where(known.sum(axis=0) > 1, high - low, 0.0)
    j = int(np.argmax(apart))
    if apart[j] < NOTABLE:
        return []
    most = int(np.nanargmax(shares[:, j]))
    least = int(np.nanargmin(shares[:, j]))
    return [
        f"They differ most in {levels[j]}: {percent(float(high[j]), 0)} of class {most}, "
        f"{percent(float(low[j]), 0)} of class {least}."
    ]


# --------------------------------------------------------------------------- sites


_STEPS = (
    " Steps are taken as independent draws. Where people leave a state about once, after about the "
    "same time, counts vary less than that: the figures without the error are then too small, and "
    "a small ratio is no evidence."
)


def differences(result: EnsembleClusteringResult) -> Block | None:
    """Say whether a class is the same thing at every site, beside what sites find alone."""
    found: dict[str, Any] = getattr(result, "differences", {})
    if not found or not len(found["pairs"]):
        return None
    parts = [PARTS.get(part, part) for part in found["parts"]]
    text = [
        "Each site told the chances of its own records in every class. The distance of two sites "
        'in a class is the square root of the sum of squared differences (Frobenius). "Alone" is '
        "the same with classes that each site finds without the others, matched to the common "
        "ones. Means are root mean squares over pairs of sites and classes. Few records differ by "
        'chance, which makes the mean "as counted" too large: equal sites would show what the last '
        "column says. The other figures are without this error, with intervals of 95 %; 0 is where "
        "sites differ no more than chance makes them. The ratio is that of these figures, not of "
        "the means as counted.",
        *(_difference_words(found, i, part) for i, part in enumerate(parts)),
    ]
    rows = tuple(
        (
            part,
            _interval(found, "ensemble", i),
            _interval(found, "local", i),
            _interval(found, "ratio", i),
            *_counted(found, i),
        )
        for i, part in enumerate(parts)
    )
    table = Table(
        "Mean distance of two sites in a class",
        (
            "what",
            "common classes",
            "classes found alone",
            "ratio",
            "common, as counted",
            "alone, as counted",
            "equal sites, as counted",
        ),
        rows,
        '"Equal sites" is what numbers of records like these give in the common classes where '
        "nothing differs. Intervals take the classes as given: that they were found from the same "
        f"records is no part of them.{_STEPS if 'transition' in found['parts'] else ''}",
    )
    picture = Picture(
        "differences",
        figures_sequences.plot_site_differences(result),
        "Distance of two sites in a class: mean without the error of counting (large dot) and its "
        "interval (line); as counted, single pairs and classes (small dots) and what equal sites "
        "would give (grey stroke).",
        f"Dots on lines for {listed(parts)}. The table below has the numbers.",
    )
    return Block(
        "Is a class the same thing at every site?",
        tuple(text),
        picture=picture,
        tables=(table,),
        folded=tuple(_pair_table(found, i, part) for i, part in enumerate(parts)),
    )


def _difference_words(found: dict[str, Any], i: int, part: str) -> str:
    """One sentence on one part: ratio to what sites find alone, and its interval."""
    ratio, low, high = (_at(found[key], i) for key in ("ratio", "ratio_low", "ratio_high"))
    if np.isnan(low) or np.isnan(high):
        return f"For {part} too little was told to compare with classes found alone."
    if np.isnan(ratio):
        least = f"; it is {low:.2f} or more" if low > 0 else ""
        return (
            f"For {part}, sites differ no more than chance makes them in the classes that they "
            f"find alone, so there is no ratio{least}."
        )
    said = (
        f"For {part}, sites are {ratio:.2f} times as far apart in the common classes as in those "
        "that they find alone, both without the error of counting"
    )
    if high < 1:
        verdict = "the common classes mean more nearly the same thing at every site"
    elif low > 1:
        verdict = "going together did not make the classes more alike"
    else:
        verdict = "which may be chance"
    if np.isinf(high):
        bounds = (
            f"{low:.2f} or more; nothing bounds it above, since classes found alone may be equal"
        )
    else:
        bounds = f"{low:.2f} to {high:.2f}"
    return f"{said} ({bounds}): {verdict}."


def _at(values: Any, i: int) -> float:
    return float(np.asarray(values, dtype=float).reshape(-1)[i])


def _interval(found: dict[str, Any], kind: str, i: int) -> str:
    """An estimate and its limits; an upper limit that is infinite is put in words."""
    middle = found[kind] if kind == "ratio" else found[f"{kind}_estimate"]
    value, low, high = (_at(v, i) for v in (middle, found[f"{kind}_low"], found[f"{kind}_high"]))
    if np.isnan(low) or np.isnan(high):
        return DASH
    shown = list(numbers([x for x in (value, low, high) if np.isfinite(x)]))
    point = shown.pop(0) if np.isfinite(value) else DASH
    return f"{point} ({shown[0]} to {shown[1]})" if len(shown) > 1 else f"{point} (from {shown[0]})"


def _counted(found: dict[str, Any], i: int) -> list[str]:
    """Means with the error of counting, and what equal sites give."""
    values = [_at(found[key], i) for key in ("ensemble_mean", "local_mean", "chance")]
    return [number(value) if np.isfinite(value) else DASH for value in values]


def _pair_table(found: dict[str, Any], i: int, part: str) -> Table:
    ensemble, local = (np.asarray(found[key], dtype=float)[i] for key in ("ensemble", "local"))
    classes = range(ensemble.shape[1])
    head = ("sites", *(f"class {k}" for k in classes), *(f"class {k}, alone" for k in classes))
    pairs = [f"{a}, {b}" for a, b in found["pairs"]]
    rows = tuple(
        (pair, *numbers([*ensemble[p], *local[p]])) for p, pair in enumerate(pairs[:MOST_PAIRS])
    )
    more = len(pairs) - MOST_PAIRS
    return Table(
        f"Distance of two sites: {part}",
        head,
        rows,
        f"and {plural(more, 'more pair')}" if more > 0 else "",
    )


# --------------------------------------------------------------------------- how sure


def one_class_words(result: EnsembleClusteringResult) -> str:
    """Say plainly that each site's own records prefer one class, where that is so."""
    cast = [vote for vote in result.votes.values() if vote > 0]
    if not cast or set(cast) != {1}:
        return ""
    every = "every site" if len(cast) == len(result.votes) else "every site that could tell"
    said = f"By BIC, {every} prefers one class for its own records."
    if result.n_clusters > 1:
        said += f" The {result.n_clusters} classes are there because the study asked for them."
    return said


def one_class_meaning(result: EnsembleClusteringResult) -> str:
    """What a vote for one class means, and what it does not."""
    what = MODELS.get(getattr(result, "model", ""), "records")
    return (
        f"One class by BIC means that no site has enough {what} to pay for the parameters of a "
        "second one. It does not say that there are no kinds; nor does anything here say that "
        "there are, unless stability exceeds its chance level."
    )


def start_spread(result: EnsembleClusteringResult) -> Block | None:
    """Say where the best starts of each site's model ended."""
    spread: dict[str, Any] = getattr(result, "start_spread", {})
    known = {site: np.asarray(values, dtype=float) for site, values in sorted(spread.items())}
    known = {site: values for site, values in known.items() if len(values) > 1}
    if not known:
        return None
    rows = []
    unequal = []
    for site, values in known.items():
        fall = float(-values.min())
        if fall > 0:
            unequal.append(site)
        below = f"{fall:.2g}" if fall < 100 else f"{fall:,.0f}"
        rows.append((site, below, str(int((values < 0).sum())), str(len(values))))
    several = len(result.weights) > len(set(result.owners))
    softer = " Several models of each site in the ensemble soften this." if several else ""
    text = (
        "The likelihood of these models has several peaks. Each site climbed from many random "
        "starts, followed the best of them to the end and kept the best.",
        f"At {listed(unequal)} they ended at unequal heights: other starts may give other local "
        f"classes there.{softer}"
        if unequal
        else "At every site they ended at the same height.",
    )
    table = Table(
        "Ends of the starts that were followed",
        ("site", "largest fall below the best, in log likelihood", "starts below it", "starts"),
        tuple(rows),
    )
    return Block("Did the climbs end at the same place?", text, tables=(table,))


def limits(result: EnsembleClusteringResult) -> list[str]:
    """What these models cannot know."""
    if getattr(result, "model", "") == "latent-class":
        return [
            "Within a class columns are taken to be independent. Columns that go together for "
            "another reason (one question asked twice) make classes of their own.",
            "A missing entry is left out, which is exact only where entries are missing at random.",
        ]
    return [
        "Within a class the next state depends on the present one only, and in the same way at all "
        "times. How long somebody has been in a state, age and season make classes of their own.",
        "Gaps are integrated out, which is exact only where being seen has nothing to do with the "
        "state. An end that means something (death, discharge) must be a state.",
        "The likelihood of short sequences has several peaks; classes may change with the starts.",
    ]
