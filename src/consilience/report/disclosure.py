"""The section "What left each site": read from the transcript, the same for every method."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.engines.federation import Run
from consilience.protocol.method import Method, Step
from consilience.protocol.phases.prepare import steps_of
from consilience.protocol.phases.secure_sums import Concealed
from consilience.report import figures
from consilience.report.sections import (
    DASH,
    Block,
    MethodReport,
    percent,
    plural,
    said,
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
    "masked": "parts of sums over sites, each of them random to look at",
}
VERDICTS = {
    "released": "passed the site's rules and left",
    "withheld": "left with gaps: cells of too few records were kept back, or there were none",
    "repeated": "the last release was sent again, because too few records had changed since",
    "public": "says nothing of any record, so no rule applies",
    "refused": "the site, or its gate, declined to answer",
    "absent": "the site did not answer in time",
}
MASKED = (
    "The coordinator knows totals over sites, which sites told which cells, and no site's own "
    "numbers. All sites but one together would know those of the last one."
)
"""What a run with masked sums leaves known, whatever the method."""
SILENT = ("refused", "absent")
SEALED = "sealed"
"""Shape of a field that only another site can open."""
MANY = 30
"""More sites than these are not listed one by one."""
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
    # Records of two sites are different people: epsilon is not added up over sites.
    short = in_short(run)
    known = revealed(run)
    return [
        ("sites", str(len(run.info.sites))),
        ("rounds", str(short["rounds"])),
        ("left the sites in all", size(short["total"])),
        *([("largest epsilon of a site", f"{short['epsilon']:g}")] if short["epsilon"] else []),
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


def in_short(run: Run) -> dict[str, Any]:
    """Rounds, bytes, classes and gaps of what left the sites, and epsilon of noise."""
    lines = left(run)
    kinds = [kind for kind in CLASSES if any(x.disclosure == kind and x.bytes for x in lines)]
    return {
        "size": size,
        # Messages without fields leave no line, so the largest number counts.
        "rounds": max((line.round for line in run.transcript), default=0),
        "total": sum(line.bytes for line in lines),
        "kinds": kinds,
        "meanings": CLASSES,
        "epsilon": max((_epsilon(_of_site(lines, s)) for s in run.info.sites), default=0.0),
        "held": {v: [x.site for x in lines if x.verdict == v] for v in ("withheld", "repeated")},
        "silent": [
            (x.site, str(x.round), x.step, x.verdict, x.rule) for x in lines if x.verdict in SILENT
        ],
    }


def disclosure(run: Run, method: type[Method], own: MethodReport) -> list[Block]:
    """Return who sent what, in which round, under which rule, and who did not."""
    lines, steps = left(run), steps_of(method)
    sent = figures.bytes_by_site(lines)
    # Told in the figure's description, for those who cannot see it.
    shown = _shown(run.info.sites, lines, sent)
    drawn = [site for site in sent if site in shown]
    most = max(drawn, key=lambda s: sum(sent[s].values()), default="")
    by_site, nowhere = _by_site(run, lines, shown)
    ranks = revealed(run)
    # Only words that stand on this page are explained.
    classes, verdicts = {x.disclosure for x in lines if x.field}, {x.verdict for x in lines}
    glossary = [("class", name, words) for name, words in CLASSES.items() if name in classes]
    glossary += [("verdict", name, words) for name, words in VERDICTS.items() if name in verdicts]
    facts = {
        **in_short(run),
        "plot": figures.plot_disclosure,
        "lines": lines,
        "drawn": [line for line in lines if line.site in shown],
        "n_shown": len(shown),
        "n_sites": len(run.info.sites),
        "leakage": MASKED if "masked" in classes else method.leakage,
        "sealed": [x.bytes for x in lines if x.shape == SEALED],
        "handling": own.handling(run),
        "n_drawn": len(drawn),
        "most": most,
        "most_bytes": sum(sent[most].values()) if drawn else 0,
        "noisy": _epsilon(lines) > 0,
        "by_site": by_site,
        "nowhere": nowhere,
        "known": _column_space(ranks, lines),
        "all_known": [site_name(site) for site, (k, r) in ranks.items() if k >= r > 0],
        "by_round": _by_round(lines, steps),
        "glossary": glossary,
        "by_field": [_by_field(site, _of_site(lines, site)) for site in shown],
    }
    return said(Path(__file__).with_suffix(".j2"), "disclosure", facts)


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


def _shown(
    sites: Sequence[str], lines: Sequence[Line], sent: dict[str, dict[str, int]]
) -> tuple[str, ...]:
    """Sites that a page lists: of many those with gaps, then those that sent most; in order."""
    if len(sites) <= MANY:
        return tuple(sites)
    gaps = {line.site for line in lines if line.verdict in ("withheld", "repeated", *SILENT)}
    first = sorted(sites, key=lambda s: (s not in gaps, -sum(sent.get(s, {}).values())))[:MANY]
    return tuple(site for site in sites if site in first)


def _by_site(
    run: Run, lines: Sequence[Line], shown: Sequence[str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """Head and rows of what each site sent, and the verdicts that no site had."""
    by_site = {site: _of_site(lines, site) for site in shown}
    policies = {site: run.presets.get(site, DASH) for site in shown}
    if n_others := len(run.info.sites) - len(shown):
        name = plural(n_others, "other site")
        by_site[name] = [line for line in lines if line.site not in by_site]
        policies[name] = _one([run.presets.get(s, DASH) for s in run.info.sites if s not in shown])
    everything, sent = [*by_site.values(), list(lines)], figures.bytes_by_site(lines)
    columns: dict[str, list[str]] = {
        "site": [*by_site, "all sites"],
        "policy": [*policies.values(), ""],
    }
    for kind in CLASSES:
        if any(kind in row for row in sent.values()):
            same = [[x.bytes for x in own if x.disclosure == kind] for own in everything]
            columns[f"{kind} bytes"] = [f"{sum(x):,}" for x in same]
    columns["bytes in all"] = [f"{sum(x.bytes for x in own):,}" for own in everything]
    nowhere = []
    for verdict in ("withheld", "repeated", *SILENT):
        counts = [sum(x.verdict == verdict for x in own) for own in everything]
        if counts[-1]:
            columns[verdict] = [str(n) for n in counts]
        else:
            nowhere.append(verdict)
    if _epsilon(lines):
        columns["epsilon"] = [*(f"{_epsilon(own):g}" for own in by_site.values()), ""]
    return [tuple(columns), *zip(*columns.values(), strict=True)], nowhere


def _column_space(
    ranks: dict[str, tuple[int, int]], lines: Sequence[Line]
) -> list[tuple[str, ...]]:
    """How much of each site's columns can be told from what it sent."""
    rows: list[tuple[str, ...]] = []
    for site, (k, r) in ranks.items():
        # The first message counts earlier runs on the same data too.
        first = next(x.revealed for x in lines if x.site == site and x.revealed)
        before, share = first.partition(" of ")[0], percent(k / r if r else 0.0, 0)
        rows.append((site_name(site), before, str(k), str(r), share))
    return rows


def _by_round(lines: Sequence[Line], steps: dict[str, Step]) -> list[tuple[str, ...]]:
    noisy = _epsilon(lines) > 0
    ranked = any(x.revealed for x in lines)
    rows: list[tuple[str, ...]] = []
    # What all sites sent alike is one row: a page must not grow with their number.
    alike: dict[tuple[int, str, str], list[Line]] = {}
    for line in lines:
        alike.setdefault((line.round, line.step, line.field), []).append(line)
    for (round_, step, field), same in sorted(alike.items(), key=lambda item: item[0][0]):
        if not field:
            continue
        counts = {verdict: sum(x.verdict == verdict for x in same) for verdict in VERDICTS}
        known: Any = message_type(steps[step].reply).fields if step in steps else {}
        if field not in known:  # a reply that was masked
            known = message_type(Concealed).fields
        rows.append(
            (
                f"{round_}, {step}",
                field,
                known[field].doc if field in known else "",
                _one([x.disclosure for x in same]),
                _one([x.audience for x in same]),
                _one([x.protection or "not noted" for x in same]),
                _one([x.rule or "none" for x in same]),
                ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n),
                f"{sum(x.bytes for x in same):,}",
                *([f"{max(x.epsilon for x in same):g}"] if noisy else []),
                *([_one([x.revealed or "none" for x in same])] if ranked else []),
            )
        )
    return rows


def _one(values: Sequence[str]) -> str:
    found = sorted(set(values))
    return found[0] if len(found) == 1 else "differs by site"


def _by_field(site: str, lines: Sequence[Line]) -> tuple[str, bool, list[tuple[str, ...]]]:
    """Caption of a site's lines, whether they count ranks, and the lines."""
    ranked = any(x.revealed for x in lines)
    rows = [
        (
            str(x.round),
            x.step,
            x.field or "no field",
            x.disclosure,
            x.shape or "none",
            f"{x.bytes:,}",
            x.verdict,
            x.rule or "none",
            f"{x.epsilon:g}",
            *([x.revealed or "none"] if ranked else []),
        )
        for x in lines
    ]
    return f"{site}: {size(sum(x.bytes for x in lines))}", ranked, rows
