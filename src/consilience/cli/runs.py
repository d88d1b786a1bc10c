"""Where runs are, a run as one JSON object, and ``consilience show``: what it says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli import console

if TYPE_CHECKING:
    from consilience.engines.federation import Run

RUNS = Path("runs")
REPORT = "report.html"
MOST_NUMBERS = 1000

RUN = typer.Argument(metavar="RUN", help="Run directory, or the id of a run in ./runs.")


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
