"""Where runs are, a run as one JSON object, and ``consilience show``: what it says.

``consilience report``: write a run's report again, and open it.

``consilience transcript``: who sent what to whom.

``consilience purge``: drop what finished runs no longer need.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli import console
from consilience.exceptions import EngineError, RunError, StudyError

if TYPE_CHECKING:
    from consilience.engines.federation import Run
    from consilience.wire.transcript import Line

RUNS = Path("runs")
REPORT = "report.html"
MOST_NUMBERS = 1000

RUN = typer.Argument(metavar="RUN", help="Run directory, or the id of a run in ./runs.")
STUDY = typer.Argument(metavar="STUDY", help="Study file.")
SITES = typer.Option(
    None, metavar="DIR", help="Where <site>.toml are; sites/ beside the study unless given."
)


def directory(text: str) -> Path:
    """Find a run by its directory or its id; `RunError` where there is none."""
    from consilience.engines.study_run import find_run

    return find_run(text, RUNS)


def load(text: str) -> Run:
    """Read a finished run."""
    from consilience.engines.federation import load_run

    return load_run(directory(text))


def plain_run(run: Run) -> dict[str, Any]:
    """Return a run as plain values: large parts of its result are named, not shown."""
    frames: dict[str, Any] = {}
    for name, frame in run.result.frames.items():
        whole = frame.reset_index() if frame.index.name else frame
        columns, numbers = _plain({str(c): whole[c].tolist() for c in whole})
        if numbers <= MOST_NUMBERS:
            frames[name] = columns
    shown: dict[str, Any] = {}
    left_out: list[str] = []
    for stored, name in run.result.stored_names().items():
        value, numbers = _plain(getattr(run.result, name))
        # A program that wants them all reads result.npz.
        if numbers > MOST_NUMBERS:
            left_out.append(stored)
        else:
            shown[stored] = value
    path = run.directory
    report = None if path is None or not (path / REPORT).is_file() else str(path / REPORT)
    return {
        "run": run.info.run,
        "study": run.info.name,
        "method": run.info.method,
        "seed": run.info.seed,
        "sites": list(run.info.sites),
        "directory": None if path is None else str(path),
        "report": report,
        "summary": run.result.summary(),
        "notes": list(run.notes),
        "result": shown,
        "tables": frames,
        "left_out": left_out,
    }


def _plain(value: Any) -> tuple[Any, int]:
    """Turn a value of a result into JSON's own types, and count its entries."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        # JSON knows neither NaN nor infinity.
        return (value if math.isfinite(value) else None), 1
    if isinstance(value, list | tuple):
        pairs = [_plain(item) for item in value]
        return [plain for plain, _ in pairs], sum(n for _, n in pairs)
    if isinstance(value, dict):
        found = {str(key): _plain(item) for key, item in value.items()}
        return {key: plain for key, (plain, _) in found.items()}, sum(n for _, n in found.values())
    return value, 1


def write_tables(run: Run, folder: Path) -> None:
    """Write the tables of a run's result as CSV files, named as in `Result.frames`."""
    from consilience.protocol.result import to_csv
    from consilience.wire.files import atomic_write

    for name, frame in run.result.frames.items():
        path = folder / f"{name}.csv"
        atomic_write(path, to_csv(frame).encode())
        console.line(str(path))


def show(
    run: str = RUN,
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
    methods: bool = typer.Option(
        False, "--methods", help="Print a paragraph for the methods section of a paper."
    ),
    tables: Path | None = typer.Option(
        None, metavar="DIR", help="Write all tables as CSV files into this folder, and say which."
    ),
) -> None:
    """Show what a finished run says.

    Its answer, main table and notes, and the seed and versions behind them.
    """
    from consilience.parameters import table_size  # brings NumPy

    found = load(run)
    if methods:
        for paragraph in found.methods_paragraph().split("\n\n"):
            console.say(paragraph)
        return
    if tables is not None:
        write_tables(found, tables)
        return
    if json:
        console.print_json(plain_run(found))
        return
    console.say(found.result.summary())
    typer.echo()
    console.frame(found.result.to_frame())
    for name in (name for name in found.result.also_shown if name in found.result.frames):
        typer.echo()
        console.frame(found.result.to_frame(name))
    console.notes(found.further_notes)
    typer.echo()
    presets = found.presets
    sites = (f"{s} ({presets[s]})" if s in presets else s for s in found.info.sites)
    given = found.info.parameters.items()
    parameters = []
    for name, value in given:
        parameters.append(f"{name} = {table_size(value) or repr(value)}")
    info = found.info
    libraries = ", ".join(f"{k} {v}" for k, v in sorted(info.libraries.items()) if k != "lock")
    method = f"{info.method} version {info.method_version}"
    path = found.directory
    has_report = path is not None and (path / REPORT).is_file()
    console.facts(
        (
            ("Run", found.info.run),
            ("Study", f"{found.info.name} ({found.info.study[:12]})"),
            ("Parameters", ", ".join(parameters) or "none"),
            ("Sites", ", ".join(sites)),
            ("Engine", found.info.engine),
            ("Seed", found.info.seed),
            ("Versions", f"consilience {info.release}, {method} ({libraries})"),
            ("Directory", path),
            ("Report", path / REPORT if path is not None and has_report else "not written yet"),
        )
    )


class Open(StrEnum):
    """Whether to open the report in a browser."""

    auto = "auto"
    yes = "yes"
    no = "no"


def write_report(run: Run, path: Path) -> None:
    """Write the HTML report of a run."""
    from consilience.report import write

    write(run, path)


def report(
    run: str = RUN,
    out: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Where to write it; report.html in the run directory if not given.",
    ),
    open_: Open = typer.Option(
        Open.auto, "--open", help="Open it in a browser; auto: when run from a terminal."
    ),
) -> None:
    """Write the report of a finished run.

    It is one HTML file that needs nothing else.
    """
    found = load(run)
    path = out if out is not None else Path(str(found.directory)) / REPORT
    write_report(found, path)
    console.line(str(path))
    if open_ is Open.yes or (open_ is Open.auto and sys.stdout.isatty()):
        # As a URI: a browser takes a relative path for a host.
        typer.launch(path.resolve().as_uri())


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


DAY = 86400.0


def purge(
    run: str | None = typer.Argument(
        None,
        metavar="RUN",
        help="Run directory, or the id of a run in ./runs; with --older-than a folder of runs, "
        "./runs unless given.",
    ),
    older_than: float | None = typer.Option(
        None, "--older-than", min=0, metavar="DAYS", help="All runs that ended so many days ago."
    ),
    folder: Path | None = typer.Option(
        None, metavar="DIR", help="Remove what the runs left in this shared folder, too."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say what would be dropped, and drop nothing."
    ),
    force: bool = typer.Option(
        False, "--force", help="Also a run that has not ended: it can then not be resumed."
    ),
) -> None:
    """Drop the payloads of a finished run, or of all that ended some time ago.

    They are its journal; transcript, result and report stay.
    """
    if folder is not None and not folder.is_dir():
        raise EngineError(f"there is no folder {folder}: check the path of the shared folder")
    if older_than is not None:
        _purge_old(RUNS if run is None else Path(run), older_than, folder, dry_run, force)
        return
    if run is None:
        raise StudyError("name a run, or give --older-than DAYS")
    # One run is named by a person, so that an error about it ends the command.
    path = directory(run)
    reason = _kept_because(path, force)
    if reason is not None:
        raise RunError(f"{path} was not purged: {reason}")
    if dry_run:
        console.line(f"Would drop the payloads of {path}")
        return
    had, left = _drop(path, folder)
    what = "The payloads were removed" if had else "There were no payloads any more"
    more = f", and what it had left in {folder}" if left else ""
    console.line(f"{what}{more}; transcript and result stay in {path}")


def _purge_old(runs: Path, days: float, folder: Path | None, dry_run: bool, force: bool) -> None:
    from consilience.engines.rundir import read_info
    from consilience.engines.study_run import runs_in

    if not runs.is_dir():
        raise RunError(f"there is no folder of runs {runs}: name it")
    dropped = 0
    for path, _ in runs_in(runs):
        # By the files' times: run ids can be chosen, and clocks of hosts differ.
        if (time.time() - _last_change(path)) / DAY <= days:
            continue
        reason = _kept_because(path, force)
        if reason is not None:
            console.line(f"kept {path}: {reason}")
            continue
        if dry_run:
            there = [path / "journal"]
            there += [] if folder is None else [folder / "runs" / read_info(path).run]
            had = any(one.is_dir() for one in there)
        else:
            had = any(_drop(path, folder))
        if had:
            console.line(f"{'would drop' if dry_run else 'dropped'} the payloads of {path}")
            dropped += 1
    if not dropped:
        console.line(f"There is nothing to drop in {runs}")


def _kept_because(path: Path, force: bool) -> str | None:
    from consilience.engines.study_run import state_of

    state, _ = state_of(path)
    # Not even by force: its coordinator would write into what is gone.
    if state == "running":
        return "a coordinator is at work in it"
    if state != "finished" and not force:
        return "it has not ended and could not be resumed afterwards: add --force if that is meant"
    return None


def _drop(path: Path, folder: Path | None) -> tuple[bool, bool]:
    """Drop a run's payloads, and its files in a shared folder; returns what there was."""
    from consilience.engines import rundir
    from consilience.engines.folder.coordinator import remove_files

    # The run's own files first: those in a shared folder are of no use without them.
    had = rundir.purge(path)
    left = folder is not None and remove_files(folder, rundir.read_info(path).run)
    return had, left


def _last_change(path: Path) -> float:
    """When a run ended, or its journal was last written."""
    # The journal of a purged run is gone, and its result was written last.
    for name in ("result.json", "journal/log", "run.json"):
        try:
            return (path / name).stat().st_mtime
        except OSError:
            continue
    return time.time()
