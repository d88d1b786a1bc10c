"""``consilience transcript``: who sent what to whom."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from consilience.cli import console
from consilience.cli.runs import RUN, directory

if TYPE_CHECKING:
    from consilience.wire.transcript import Line

COORDINATOR = "coordinator"
LONGEST_SHAPE = 40


def transcript(
    run: str = RUN,
    site: str | None = typer.Option(None, metavar="NAME", help="Only what concerns this site."),
    verify: bool = typer.Option(False, "--verify", help="Only check the chain of hashes."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Show who sent what to whom in a run.

    One line for each field of each message, with its class, shape, size, the gate's verdict, and
    who alone could open it on its way. The chain of hashes is always checked: a line that was
    changed, dropped or moved is an error (exit code 7). The end of the chain is checked too once
    the run has ended.
    """
    from consilience.engines.rundir import read_info, read_lines
    from consilience.exceptions import StudyError

    path = directory(run)
    info = read_info(path)
    # Checks the chain whatever is asked: nobody should read lines that were altered.
    lines = read_lines(path)
    if site is not None and site not in info.sites:
        raise StudyError(f"no site {site!r} took part: there were {', '.join(info.sites)}")
    # Chosen after the check: the chain runs over the lines of all sites.
    chosen = [line for line in lines if site in (None, line.site)]
    last = lines[-1].chain if lines else ""
    if json:
        body = [] if verify else [dataclasses.asdict(line) for line in chosen]
        facts = {"run": info.run, "intact": True, "lines": len(lines), "chain": last}
        console.print_json(facts if verify else {**facts, "transcript": body})
    elif verify:
        console.line(f"The chain of {len(lines)} lines is intact; it ends with {last or 'nothing'}")
    else:
        _show(chosen)
        console.heading("What left each site, and what reached it")
        _totals(chosen)


def _show(lines: Sequence[Line]) -> None:
    console.table(
        (
            "round",
            "step",
            "from",
            "to",
            "field",
            "class",
            "shape",
            "bytes",
            "verdict",
            "on its way",
        ),
        (
            (
                line.round,
                line.step,
                line.site if _outward(line) else COORDINATOR,
                _recipient(line) if _outward(line) else line.site,
                line.field,
                line.disclosure if line.field else "",
                _short(line.shape),
                f"{line.bytes:,}" if line.field else "",
                f"{line.verdict}: {line.rule}" if line.rule else line.verdict,
                line.protection,
            )
            for line in lines
        ),
        right="r      r",
    )


def _totals(lines: Sequence[Line]) -> None:
    """Bytes by site and class, and how often a site refused or was absent."""
    classes = ("public", "aggregate", "model", "per-record", "noised")
    seen = {line.disclosure for line in lines if line.field and _outward(line)}
    # Of a later release there may be other classes: they are shown, not lost.
    shown = [*(c for c in classes if c in seen), *sorted(seen - set(classes))]
    left: Counter[tuple[str, str]] = Counter()
    reached: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    epsilon: Counter[str] = Counter()
    for line in lines:
        if line.verdict in ("refused", "absent"):
            silent[line.site] += 1
        elif _outward(line):
            left[(line.site, line.disclosure)] += line.bytes
            epsilon[line.site] += line.epsilon  # type: ignore[assignment]
        else:
            reached[line.site] += line.bytes
    sites = sorted({line.site for line in lines if line.site})
    console.table(
        ("site", *(f"{c} bytes out" for c in shown), "bytes in", "epsilon", "refused or absent"),
        (
            (
                site,
                *(f"{left[(site, c)]:,}" for c in shown),
                f"{reached[site]:,}",
                f"{epsilon[site]:g}",
                silent[site],
            )
            for site in sites
        ),
        right=" " + "r" * (len(shown) + 3),
    )


def _outward(line: Line) -> bool:
    return line.direction == "from-site"


def _recipient(line: Line) -> str:
    # All that leaves goes by the coordinator; where it stops there nothing more is to say.
    audience = {"all": "all sites", "site": COORDINATOR}.get(line.audience, line.audience)
    return audience if audience == COORDINATOR else f"{COORDINATOR}, {audience}"


def _short(shape: str) -> str:
    return shape if len(shape) <= LONGEST_SHAPE else f"{shape[: LONGEST_SHAPE - 3]}..."
