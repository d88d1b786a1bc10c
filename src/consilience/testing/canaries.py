"""Canaries: unusual values planted at the sites, and the search for them everywhere else."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.engines.federation import Federation, Run
from consilience.protocol.method import Method, SiteData
from consilience.testing.fakes import scripted

SEED = 20240604


@dataclass(frozen=True)
class Canary:
    """A planted value and the forms in which it might appear."""

    name: str
    forms: tuple[bytes, ...]


def number_canary(name: str, value: float) -> Canary:
    """Forms of a number: raw bytes in both precisions and widths, and printed digits."""
    raw = [np.array(value, dtype=kind).tobytes() for kind in ("<f8", ">f8")]
    texts = {repr(float(value)), f"{value:.9e}"} | {f"{value:.{n}g}" for n in range(7, 13)}
    return Canary(name, (*raw, *(text.encode() for text in sorted(texts))))


def plant(data: SiteData) -> tuple[SiteData, list[Canary]]:
    """Put an unusual value into every column of a site's rows.

    Columns of whole numbers (codes, 0 and 1) stay as they are: any number of them is common.
    """
    x = np.array(data.features)
    canaries = []
    for j, name in enumerate(data.feature_names):
        column = x[:, j][~np.isnan(x[:, j])]
        if not len(column) or (column == np.round(column)).all():
            continue
        row = (3 + j) % len(x)
        x[row, j] = np.median(column) + column.std() * (0.1234567891011 + 0.0011122233344 * j)
        canaries.append(number_canary(f"column {name}", x[row, j]))
    changes: dict[str, Any] = {"features": x}
    for role in ("id", "agent", "entity"):
        values = getattr(data, role)
        if values is not None:
            text = f"canary-{role}-9f27c1"
            changes[role] = np.array([text, *values[1:].tolist()])
            canaries.append(Canary(role, (text.encode(),)))
    return dataclasses.replace(data, **changes), canaries


def find_canaries(canaries: list[Canary], places: Mapping[str, bytes]) -> list[str]:
    """Return one sentence for each canary in each place where it was found."""
    return [
        f"{canary.name} was found in {place}"
        for place, content in places.items()
        for canary in canaries
        if any(form in content for form in canary.forms)
    ]


def canaries_after(
    method: Method, federation: Federation, canaries: list[Canary]
) -> tuple[Run | None, list[str]]:
    """Run, and search for canaries wherever the coordinator or a stranger could look.

    Searched are the run directory, every message, printed output, the log, and the error with its
    causes.
    """
    printed, logged = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger().addHandler(handler)
    watched = scripted(federation)
    engine: Any = watched.engine
    error: BaseException | None = None
    run = None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                run = method.run(watched, seed=SEED, out=out)
        except Exception as caught:  # noqa: BLE001  whatever it is, its text is searched
            error = caught
        finally:
            logging.getLogger().removeHandler(handler)
        files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    if run is not None and run.scaling is not None:
        canaries = [*canaries, *_scaled(canaries, run.scaling)]
    sent = {f"a request of round {r}": d for (r, _), d in engine.requests.items()}
    came = {f"a reply of round {r}": d for (r, _), d in engine.replies.items()}
    said = "" if error is None else "".join(traceback.format_exception(error))
    summary = "" if run is None else run.result.summary() + run.result.to_frame().to_csv()
    texts = {
        "output": printed.getvalue(),
        "log": logged.getvalue(),
        "error": said,
        "summary": summary,
    }
    places = {**files, **sent, **came, **{k: v.encode() for k, v in texts.items()}}
    return run, find_canaries(canaries, places)


def _scaled(canaries: list[Canary], scaling: FloatArray) -> list[Canary]:
    """Canaries as the later steps see them, in pooled units."""
    numbers = [c for c in canaries if c.name.startswith("column ")]
    if len(numbers) != scaling.shape[1]:
        return []
    values = [float(np.frombuffer(c.forms[0], dtype="<f8")[0]) for c in numbers]
    return [
        number_canary(f"{c.name} (scaled)", (v - centre) / scale)
        for c, v, centre, scale in zip(numbers, values, *scaling[1:], strict=True)
    ]
