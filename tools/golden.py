"""Whether a change of the code's layout changes nothing else: hashes of what the software gives.

``make golden`` writes ``build/golden.json`` where there is none (or with ``WRITE=1``); otherwise it
compares and names each difference, of all or of those that a pattern names (``case:.*pca``,
``estimator:Sparse``, ``command``). The hashes hold on one machine with one set of libraries:

``result:NAME``, ``transcript:NAME``, ``page:NAME``
    of each case of ``tests/exchange/cases.py``, with fixed secrets: files of the result, lines of
    the transcript without run, digests and times, the report as HTML without the run's name;
``words:NAME``
    the same page without its figures;
``estimator:NAME``
    fitted attributes and predictions of each public estimator on a small fixed input;
``command:WORDS``
    exit code and text of calls of the command line.

Texts that say in which file or module of the package something is say it by its name alone here,
and with any breaks of lines: a file may move.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "build" / "golden.json"
SEED = 3
UNREPEATABLE = ("run", "digest", "chain")
"""Fields of a transcript's line that hang on the run's name and its salt."""


def digest(*parts: Any) -> str:
    """16 hexadecimal digits of what was given, whatever it is made of."""
    found = hashlib.sha256()
    for part in parts:
        _add(found, part)
    return found.hexdigest()[:16]


def _add(found: Any, value: Any) -> None:
    """Add a value with its kind and its size, so that no two values read the same."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        found.update(f"array {value.dtype.str} {value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, np.ndarray | list | tuple):
        found.update(f"list {len(value)}".encode())
        for one in value:
            _add(found, one)
    elif isinstance(value, Mapping):
        found.update(f"mapping {len(value)}".encode())
        for key in sorted(value, key=repr):
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, bytes):
        found.update(f"bytes {len(value)}".encode() + value)
    elif hasattr(value, "toarray"):
        _add(found, value.toarray())
    elif value is None or isinstance(value, bool | int | float | str | np.generic):
        text = repr(value.item() if isinstance(value, np.generic) else value)
        found.update(f"plain {len(text)}".encode() + text.encode())
    else:
        # A model or a record of figures: what it holds, not where its class is defined.
        held = getattr(value, "__dict__", None)
        if held is None:
            held = {name: getattr(value, name) for name in getattr(value, "__slots__", ())}
        found.update(type(value).__name__.encode())
        _add(found, {name: one for name, one in held.items() if not callable(one)})


def without_folders(text: str) -> str:
    """A text in one line, with files and modules of the package by their names alone."""
    text = re.sub(r"(?<![\w/])(?:\w+/)+(?=\w+\.py\b)", "", " ".join(text.split()))
    return re.sub(r"(?<=[`>])(?:[a-z_]+\.)+(?=[a-z_]+[`<])", "", text)


# --------------------------------------------------------------------------- methods


def runs(wanted: str) -> Iterator[tuple[str, str]]:
    """Result, transcript and report of each case."""
    from consilience.report.html import render
    from consilience.testing.fakes import members, with_fixed_secrets
    from tests.exchange.cases import CASES

    for name, case in CASES.items():
        if not re.search(wanted, f"case:{name}"):
            continue
        federation = case.factory()
        for i, site in enumerate(members(federation).values()):
            with_fixed_secrets(site, i)
        run = case.method.run(federation, seed=SEED)
        yield f"result:{name}", digest(run.result.to_files())
        lines = [dataclasses.asdict(line) for line in run.transcript]
        kept = [{k: v for k, v in line.items() if k not in UNREPEATABLE} for line in lines]
        # Replies of a method that takes whoever is ready come in any order.
        told = sorted(kept, key=repr) if case.asynchronous else kept
        yield f"transcript:{name}", digest(told)
        if case.asynchronous:
            continue
        page = render(run).replace(run.info.run, "RUN").replace(run.transcript[-1].chain, "CHAIN")
        yield f"page:{name}", digest(without_folders(page))
        words = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
        yield f"words:{name}", digest(without_folders(words))


# --------------------------------------------------------------------------- estimators


def inputs() -> dict[str, Callable[[], list[Any]]]:
    """Fitted models, and what they give, by name of the estimator."""
    import pandas as pd

    import consilience as c

    rng = np.random.default_rng(11)
    kind = np.arange(90) % 3
    centres = np.array([[0.0, 0, 2, 1, -1, 0], [4.0, 0, -2, 1, 1, 0], [0.0, 5, 0, -1, 0, 3]])
    x = centres[kind] + rng.normal(size=(90, 6))
    y = x @ np.array([1.0, -2.0, 0, 0.5, 0, 1.0]) + rng.normal(size=90)
    two = np.where(x[:, 0] + rng.normal(size=90) > 1.5, "b", "a")
    low = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(size=(40, 12))
    gaps = np.where(rng.random(low.shape) < 0.15, np.nan, low)
    holes = np.where(rng.random(x.shape) < 0.1, np.nan, x)
    answers = pd.DataFrame(
        np.where(rng.random((90, 4)) < np.where(kind == 1, 0.85, 0.15)[:, None], "yes", "no"),
        columns=[f"q{j}" for j in range(4)],
    )
    moves = rng.random((90, 9)) < np.where(kind == 1, 0.8, 0.15)[:, None]
    paths = (moves.cumsum(axis=1) % 2).astype(np.int64)
    people = {"entity": np.arange(90) // 3, "agent": np.arange(90) // 15}
    new = {"entity": people["entity"], "agent": people["agent"]}
    few: dict[str, Any] = {
        "n_sweeps": 6,
        "n_settle": 3,
        "n_average": 3,
        "n_restarts": 2,
        "random_state": 0,
    }

    def classes(model: Any, target: Any = kind) -> list[Any]:
        model.fit(x, target)
        return [model, model.predict(x), model.predict_proba(x)]

    def filled(model: Any) -> list[Any]:
        return [model.fit(gaps), model.transform(gaps)]

    def grouped(model: Any, rows: Any) -> list[Any]:
        return [model.fit(rows), model.predict(rows)]

    def latent() -> list[Any]:
        model = c.LatentClassRegressor(2, **few).fit(x, y, **people)
        return [model, model.predict(x, **new)]

    def reference(model: Any, target: Any) -> list[Any]:
        model.fit(x, target)
        return [model.coef_, model.intercept_, model.predict(x)]

    def parts() -> list[Any]:
        splits = c.EntrywiseKFold(3, random_state=0).split(gaps)
        return [c.Entries.of(gaps), list(splits)]

    return {
        "ClusterCountCV": lambda: [
            c.ClusterCountCV(n_clusters=(1, 2, 3), n_init=2, cv=3, random_state=0).fit(holes)
        ],
        "CommunityBayesClassifier": lambda: classes(
            c.CommunityBayesClassifier(candidates=[1, 2], cv=3)
        ),
        "EMLift": lambda: _em_lift(holes),
        "EntrywiseKFold": parts,
        "HardImpute": lambda: filled(c.HardImpute(2)),
        "KPOD": lambda: grouped(c.KPOD(3, random_state=0), holes),
        "LatentClassAnalysis": lambda: grouped(
            c.LatentClassAnalysis(2, n_init=3, random_state=0), answers
        ),
        "LatentClassRegressor": latent,
        "MarkovMixture": lambda: grouped(c.MarkovMixture(2, n_init=2, random_state=0), paths),
        "MatrixImputer": lambda: filled(c.MatrixImputer(c.SoftImpute())),
        "NuclearNormCV": lambda: [c.NuclearNormCV(8, cv=3, random_state=0).fit(gaps)],
        "ObservedKMeans": lambda: grouped(c.ObservedKMeans(3, random_state=0), holes),
        "OptSpace": lambda: filled(c.OptSpace(2)),
        "ProbabilisticPCA": lambda: filled(c.ProbabilisticPCA(2)),
        "RankCV": lambda: [c.RankCV(ranks=(0, 1, 2, 3), cv=3, random_state=0).fit(gaps)],
        "ReferenceAveragingClassifier": lambda: reference(
            c.ReferenceAveragingClassifier(max_rounds=2, n_splits=3, random_state=0), two
        ),
        "ReferenceAveragingRegressor": lambda: reference(
            c.ReferenceAveragingRegressor(max_rounds=2, n_splits=3, random_state=0), y
        ),
        "SoftImpute": lambda: filled(c.SoftImpute()),
        "SparseQDA": lambda: classes(c.SparseQDA(cv=3, n_alphas=4)),
    }


def _em_lift(rows: Any) -> list[Any]:
    from sklearn.decomposition import FactorAnalysis

    from consilience import EMLift

    model = EMLift(estimator=FactorAnalysis(n_components=1), max_iter=8).fit(rows)
    return [model, model.transform(rows)]


def estimators(wanted: str) -> Iterator[tuple[str, str]]:
    """What each estimator finds."""
    for name, fitted in inputs().items():
        if re.search(wanted, f"estimator:{name}"):
            yield f"estimator:{name}", digest(fitted())


# --------------------------------------------------------------------------- command line


def calls() -> list[list[str]]:
    """Calls that say the same on every machine."""
    import typer.main

    from consilience.cli.main import app
    from consilience.datasets.load import DEMOS
    from consilience.protocol import BUILT_IN

    def helps(command: Any, words: list[str]) -> Iterator[list[str]]:
        yield [*words, "--help"]
        for name, inner in sorted(getattr(command, "commands", {}).items()):
            yield from helps(inner, [*words, name])

    asked = list(helps(typer.main.get_command(app), []))
    asked += [["methods"], *(["methods", name] for name in sorted(BUILT_IN))]
    asked += [["demo", "--list"], *([["demo", "no-such"]] if DEMOS else [])]
    asked += [
        [],
        ["no-such-command"],
        ["methods", "no-such-method"],
        ["check"],
        ["check", "missing.toml"],
        ["check", "broken.toml"],
        ["check", "unknown.toml"],
        ["run", "missing.toml"],
        ["run", "unknown.toml"],
        ["run", "unknown.toml", "--no-such-option"],
        ["show", "nowhere"],
        ["transcript", "nowhere"],
        ["report", "nowhere"],
        ["status", "nowhere"],
        ["health", "nowhere"],
        ["purge", "nowhere"],
        ["site", "no-such-command"],
        ["site", "outputs", "nowhere.toml"],
        ["flower", "no-such-command"],
    ]
    return asked


BROKEN = '[study\nname = "x"\n'
UNKNOWN = 'schema = 1\n\n[study]\nname = "x"\nmethod = "no-such-method"\n'


def commands(wanted: str) -> Iterator[tuple[str, str]]:
    """Exit code and both streams of each call, made in an empty folder."""
    from typer.testing import CliRunner

    from consilience.cli.main import app

    os.environ.update({"COLUMNS": "92", "TERMINAL_WIDTH": "92", "NO_COLOR": "1"})
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("broken.toml").write_text(BROKEN, encoding="utf-8")
            Path("unknown.toml").write_text(UNKNOWN, encoding="utf-8")
            for words in calls() if re.search(wanted, "command") else ():
                done = CliRunner().invoke(app, words)
                said = (done.stdout + "\0" + done.stderr).replace(folder, "FOLDER")
                said = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+", "TIME", said)
                if words[:1] == ["methods"]:
                    said = without_folders(said)
                yield f"command:{' '.join(words)}", digest(done.exit_code, said)
        finally:
            os.chdir(before)


# --------------------------------------------------------------------------- all


PARTS: tuple[Callable[[str], Iterator[tuple[str, str]]], ...] = (commands, estimators, runs)


def differences(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One sentence for each name whose hash is not the known one."""
    said = []
    for name in sorted({*known, *found}):
        if name not in found:
            said.append(f"gone: {name}")
        elif name not in known:
            said.append(f"new: {name}")
        elif known[name] != found[name]:
            said.append(f"changed: {name}")
    return said


def main(arguments: list[str] | None = None) -> int:
    """Write or compare; 1 if something differs."""
    parser = argparse.ArgumentParser(prog="golden", description="Compare what the software gives.")
    parser.add_argument("--write", action="store_true", help="write the file anew")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument(
        "only", nargs="?", default="", help="cases, estimators or commands: case:.*pca, command"
    )
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    # What is compiled depends in its last digits on what was compiled before it, so a cache that
    # other programs have filled would tell of them.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NUMBA_CACHE_DIR"] = cache
        found = {name: value for part in PARTS for name, value in part(options.only)}
    if options.write or not options.file.is_file():
        options.file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, indent=1, sort_keys=True) + "\n"
        options.file.write_text(text, encoding="utf-8")
        print(f"golden: wrote {len(found)} hashes")
        return 0
    known = json.loads(options.file.read_text(encoding="utf-8"))
    said = [line for line in differences(known, found) if not (options.only and "gone: " in line)]
    for line in said:
        print(line)
    print(f"golden: {len(found)} hashes, {len(said)} different")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
