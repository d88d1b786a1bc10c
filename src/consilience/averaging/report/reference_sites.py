"""Evidence in the report of reference averaging: the learner, the sites, the reference rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.averaging.report import figures_reference
from consilience.averaging.report.figures_reference import n_rounds, pulls, unstable
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
    site_name,
)

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
