"""The section "What left each site": read from the transcript, the same for every method."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any

from consilience.engines.federation import Run
from consilience.protocol.method import Method, Step
from consilience.protocol.phases.prepare import steps_of
from consilience.report import figures
from consilience.report.sections import (
    DASH,
    Block,
    MethodReport,
    Picture,
    Table,
    listed,
    percent,
    plural,
    site_name,
    size,
)
from consilience.wire.message import message_type
from consilience.wire.transcript import Line

CLASSES = {
    "public": "says nothing of any record: names, settings, yes or no",
    "aggregate": "counts, sums and statistics over records",
    "model": "parameters of a fitted model",
    "per-record": "a value for each record",
    "noised": "values with random noise of a stated epsilon",
}
VERDICTS = {
    "released": "passed the site's rules and left",
    "withheld": "left with gaps: cells that rest on too few records were kept back",
    "repeated": "the last release was sent again, because too few records had changed since",
    "public": "says nothing of any record, so no rule applies",
    "refused": "the site, or its gate, declined to answer",
    "absent": "the site did not answer in time",
}
SILENT = ("refused", "absent")
SEALED = "sealed"
"""Shape of a field that only another site can open."""
FEW = 4
"""Sites of which key figures name each."""


def simulated(run: Run) -> list[str]:
    """Sites that ran under the preset for one person who holds all the data."""
    return sorted(site for site, preset in run.presets.items() if preset == "simulation")


def left(run: Run) -> list[Line]:
    """Lines of the transcript that left a site."""
    return [line for line in run.transcript if line.direction == "from-site"]


def key_figures(run: Run) -> list[tuple[str, str]]:
    """Sites, rounds, bytes and epsilon."""
    lines = left(run)
    epsilon = max((_epsilon(_of_site(lines, s)) for s in run.info.sites), default=0.0)
    known = revealed(run)
    return [
        ("sites", str(len(run.info.sites))),
        ("rounds", str(_rounds(run))),
        ("left the sites in all", size(sum(line.bytes for line in lines))),
        ("largest epsilon of a site", f"{epsilon:g}"),
        *[
            (f"revealed by {site_name(site)}", f"{k} of {r}")
            for site, (k, r) in known.items()
            if len(known) <= FEW
        ],
    ]


def revealed(run: Run) -> dict[str, tuple[int, int]]:
    """Rank that is known of each site's columns after the run, and their full rank.

    The first counts every direction of the site's column space that left it, in this run and in
    earlier ones on the same data.
    """
    found: dict[str, tuple[int, int]] = {}
    for line in left(run):
        if line.revealed:
            k, _, r = line.revealed.partition(" of ")
            found[line.site] = (int(k), int(r))
    return dict(sorted(found.items()))


def disclosure(run: Run, method: type[Method], own: MethodReport) -> tuple[Block, ...]:
    """Return who sent what, in which round, under which rule, and who did not."""
    lines = left(run)
    steps = steps_of(method)
    blocks = [
        Block("In short", tuple(_in_short(run, method, own, lines))),
        Block(
            "By site",
            picture=_picture(lines),
            tables=tuple(t for t in (_by_site(run, lines), _silent(lines)) if t.rows),
        ),
        *_column_space(run, lines),
        Block(
            "By round",
            (
                "Each line is one field of the reply that the sites sent in one round; the sites' "
                "own gates decided on each before it left.",
            ),
            tables=(_by_round(lines, steps), _glossary(lines)),
        ),
        Block(
            "Field by field",
            (f"{plural(len(lines), 'line')} of the transcript, by site.",),
            folded=tuple(_lines_of(site, _of_site(lines, site), steps) for site in run.info.sites),
        ),
    ]
    return tuple(blocks)


def phases(run: Run, method: type[Method]) -> tuple[tuple[str, str], ...]:
    """Name and statement of each phase whose steps were asked for in this run."""
    steps = steps_of(method)
    asked = dict.fromkeys(line.step for line in run.transcript if line.step in steps)
    modules = dict.fromkeys(steps[name].function.__module__ for name in asked)
    return tuple(
        (module.rpartition(".")[2], inspect.cleandoc(sys.modules[module].__doc__ or ""))
        for module in modules
        if re.match(r"consilience\.\w+\.phases\.", module)
    )


# --------------------------------------------------------------------------- inside


def _of_site(lines: Sequence[Line], site: str) -> list[Line]:
    return [line for line in lines if line.site == site]


def _epsilon(lines: Sequence[Line]) -> float:
    return sum(line.epsilon for line in lines)


def _rounds(run: Run) -> int:
    """Rounds of the run; messages without fields leave no line, so the largest number counts."""
    return max((line.round for line in run.transcript), default=0)


def _count(lines: Sequence[Line], *verdicts: str) -> int:
    return sum(line.verdict in verdicts for line in lines)


def _in_short(
    run: Run, method: type[Method], own: MethodReport, lines: Sequence[Line]
) -> list[str]:
    total = sum(line.bytes for line in lines)
    kinds = [kind for kind in CLASSES if any(x.disclosure == kind and x.bytes for x in lines)]
    words = [
        f"In {plural(_rounds(run), 'round')}, {size(total)} left the sites, all of it of class "
        f"{listed(kinds)}.",
        method.leakage,
    ]
    if not {"per-record", "noised"}.intersection(kinds):
        words.append("No field holds a value for each record.")
    for verdict, verb in (
        ("withheld", "left with gaps, where a site kept back what rests on too few records"),
        ("repeated", "repeated an earlier release, because too few records had changed"),
    ):
        n = _count(lines, verdict)
        if n:
            sites = sorted({x.site for x in lines if x.verdict == verdict})
            words.append(f"{plural(n, 'field')} ({listed(sites)}) {verb}.")
    sealed = [x for x in lines if x.shape == SEALED]
    if sealed:
        words.append(
            f"{plural(len(sealed), 'field')} ({size(sum(x.bytes for x in sealed))}) went from one "
            "site to another, encrypted with keys that only the two have: whoever passes them on "
            "cannot read them."
        )
    silent = sorted({x.site for x in lines if x.verdict in SILENT})
    words.append(
        f"{listed(silent)} did not answer in every round (see below)."
        if silent
        else "Every site answered every question that it was asked."
    )
    return [*words, *own.handling(run)]


def _picture(lines: Sequence[Line]) -> Picture | None:
    if not lines:
        return None
    sent = figures.bytes_by_site(lines)
    most = max(sent, key=lambda s: sum(sent[s].values()))
    return Picture(
        "disclosure",
        figures.plot_disclosure(lines),
        "Kilobytes that left each site, by class of disclosure.",
        f"Stacked bars, one for each of {plural(len(sent), 'site')}; {most} sent the most, "
        f"{size(sum(sent[most].values()))}. The table below has the numbers.",
    )


def _by_site(run: Run, lines: Sequence[Line]) -> Table:
    sent = figures.bytes_by_site(lines)
    by_site = {site: _of_site(lines, site) for site in run.info.sites}
    columns: dict[str, list[str]] = {
        "site": [*by_site, "all sites"],
        "policy": [*(run.presets.get(site, DASH) for site in by_site), ""],
    }
    everything = [*by_site.values(), lines]
    for kind in CLASSES:
        if any(kind in row for row in sent.values()):
            same = [[x.bytes for x in own if x.disclosure == kind] for own in everything]
            columns[f"{kind} bytes"] = [f"{sum(x):,}" for x in same]
    columns["bytes in all"] = [f"{sum(x.bytes for x in own):,}" for own in everything]
    nothing = []
    for verdict in ("withheld", "repeated", "refused", "absent"):
        counts = [_count(own, verdict) for own in everything]
        if counts[-1]:
            columns[verdict] = [str(n) for n in counts]
        else:
            nothing.append(verdict)
    if _epsilon(lines):
        columns["epsilon"] = [*(f"{_epsilon(own):g}" for own in by_site.values()), DASH]
        note = "Epsilon is spent by each site on its own records and is not added up over sites. "
    else:
        note = "No noise was used and no epsilon spent. "
    note += "Withheld and repeated count fields; refused and absent count rounds."
    if nothing:
        note += f" Nowhere: {listed(nothing)}."
    rows = tuple(zip(*columns.values(), strict=True))
    return Table("What each site sent", tuple(columns), rows, note)


def _column_space(run: Run, lines: Sequence[Line]) -> tuple[Block, ...]:
    """How much of each site's columns can be told from what it sent."""
    known = revealed(run)
    if not known:
        return ()
    rows = []
    for site, (k, r) in known.items():
        counted = [x for x in _of_site(lines, site) if x.revealed]
        before = counted[0].revealed.partition(" of ")[0]
        rows.append((site_name(site), before, str(k), str(r), percent(k / r if r else 0.0, 0)))
    everything = [site_name(site) for site, (k, r) in known.items() if k >= r > 0]
    warning = ""
    if everything:
        verb = "has" if len(everything) == 1 else "have"
        warning = (
            f"{listed(everything)} {verb} revealed every direction of the columns: who knows one "
            "of these columns for a few records (one more than the rank) can work it out for all."
        )
    table = Table(
        "Rank of what each site has revealed of its columns",
        ("site", "after its first message", "at the end", "rank of its columns", "share"),
        tuple(rows),
        "Counted over this run and all earlier ones on the same data, at a relative precision of "
        "1e-8; a message with noise counts as one without.",
    )
    text = (
        "A value for each record that is made of a site's columns, such as a linear predictor, is "
        "one direction of the space that these columns span. Each further message shows one more "
        "direction at most, and one that follows from earlier ones shows nothing new.",
        "Rank is not secrecy: a direction that is known is known for every record.",
    )
    return (Block("How much of the columns is known", text, warning, tables=(table,)),)


def _silent(lines: Sequence[Line]) -> Table:
    rows = tuple(
        (x.site, str(x.round), x.step, x.verdict, x.rule) for x in lines if x.verdict in SILENT
    )
    return Table("Who did not answer", ("site", "round", "step", "what", "reason"), rows)


def _by_round(lines: Sequence[Line], steps: dict[str, Step]) -> Table:
    keys = dict.fromkeys((x.round, x.step, x.field) for x in lines if x.field)
    noisy = _epsilon(lines) > 0
    ranked = any(x.revealed for x in lines)
    rows = []
    for round_, step, field in sorted(keys, key=lambda key: key[0]):
        same = [x for x in lines if (x.round, x.step, x.field) == (round_, step, field)]
        said = {verdict: _count(same, verdict) for verdict in VERDICTS}
        rows.append(
            (
                f"{round_}, {step}",
                field,
                _doc(steps, step, field),
                _one([x.disclosure for x in same]),
                _one([x.audience for x in same]),
                _one([x.protection or DASH for x in same]),
                _one([x.rule or DASH for x in same]),
                ", ".join(f"{n} {verdict}" for verdict, n in said.items() if n),
                f"{sum(x.bytes for x in same):,}",
                *([f"{max(x.epsilon for x in same):g}"] if noisy else []),
                *([_one([x.revealed or DASH for x in same])] if ranked else []),
            )
        )
    head = (
        "round, step",
        "field",
        "what it is",
        "class",
        "read by",
        "on its way",
        "rule",
        "verdicts of the sites",
        "bytes of all sites",
        *(["largest epsilon"] if noisy else []),
        *(["revealed after it"] if ranked else []),
    )
    return Table("What was sent in each round", head, tuple(rows))


def _one(values: Sequence[str]) -> str:
    found = sorted(set(values))
    return found[0] if len(found) == 1 else "differs by site"


def _doc(steps: dict[str, Step], step: str, field: str) -> str:
    known: Any = message_type(steps[step].reply).fields if step in steps else {}
    return known[field].doc if field in known else ""


def _glossary(lines: Sequence[Line]) -> Table:
    kinds = {x.disclosure for x in lines if x.field}
    verdicts = {x.verdict for x in lines}
    rows = [("class", name, words) for name, words in CLASSES.items() if name in kinds]
    rows += [("verdict", name, words) for name, words in VERDICTS.items() if name in verdicts]
    return Table("What the words mean", ("kind", "word", "meaning"), tuple(rows))


def _lines_of(site: str, lines: Sequence[Line], steps: dict[str, Step]) -> Table:
    ranked = any(x.revealed for x in lines)
    rows = tuple(
        (
            str(x.round),
            x.step,
            x.field or DASH,
            x.disclosure,
            x.shape or DASH,
            f"{x.bytes:,}",
            x.verdict,
            x.rule or DASH,
            f"{x.epsilon:g}",
            *([x.revealed or DASH] if ranked else []),
        )
        for x in lines
    )
    head = (
        *("round", "step", "field", "class", "shape", "bytes", "verdict", "rule", "epsilon"),
        *(["revealed"] if ranked else []),
    )
    return Table(f"{site}: {size(sum(x.bytes for x in lines))}", head, rows)
