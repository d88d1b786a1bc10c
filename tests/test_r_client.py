"""The client for R: one file over ``consilience run --json``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.workspace import CANARY_TEXT, Workspace
from tests.docs.test_pages import ROOT, blocks

CLIENT = Path(__file__).resolve().parents[1] / "clients" / "r" / "consilience.R"
PROGRAM = Path(sys.executable).with_name("consilience")


def has_r() -> bool:
    if shutil.which("Rscript") is None:
        return False
    asked = ["Rscript", "-e", "quit(status = !requireNamespace('jsonlite', quietly = TRUE))"]
    return subprocess.run(asked, capture_output=True).returncode == 0


def said_by_r(code: str, place: Path) -> str:
    """What R prints with the client loaded."""
    script = place / "script.R"
    top = f'source("{CLIENT}")\noptions(consilience.program = "{PROGRAM}")\n'
    script.write_text(top + code, encoding="utf-8")
    done = subprocess.run(
        ["Rscript", "--vanilla", script],
        cwd=place,
        capture_output=True,
        text=True,
        input="an answer\n",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.r
@pytest.mark.skipif(not has_r(), reason="no R with the package jsonlite on this machine")
def test_a_study_from_r(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    code = """
    run <- consilience_run("study.toml", out = "runs/a b", seed = "1234567890123456789")
    table <- consilience_table(run)
    stopifnot(is.data.frame(table), identical(class(run), "consilience_run"))
    stopifnot(identical(consilience_show("runs/a b")$result, run$result))
    stopifnot(file.exists(consilience_report(run, open = FALSE)))
    cat(jsonlite::toJSON(list(table = table, seed = run$seed, n = run$result$n), digits = NA))
    """
    told = json.loads(said_by_r(code, tmp_path))
    assert told["seed"] == ["1234567890123456789"]
    assert told["n"] == [120]
    rows = [np.loadtxt(p, delimiter=",", skiprows=1) for p in (tmp_path / "data").glob("*.csv")]
    means = np.vstack(rows).mean(axis=0)
    assert [one["column"] for one in told["table"]] == ["x", "y"]
    assert np.allclose([one["mean"] for one in told["table"]], means[:2], rtol=1e-12)
    assert "120 rows" in said_by_r('print(consilience_show("runs/a b"))', tmp_path)

    # Errors are the program's sentence, and its exit code.
    space.table("lyon", "x,y,id", [f"{CANARY_TEXT},1,{i}" for i in range(40)])
    code = """
    found <- tryCatch(consilience_run("study.toml"), consilience_error = function(e) e)
    cat(found$code, conditionMessage(found), sep = "\\n")
    options(consilience.program = "cat")
    stopifnot(!length(consilience_call("-")))  # a question to nobody ends
    options(consilience.program = "no-such-program")
    found <- tryCatch(consilience_call("methods"), consilience_error = function(e) e)
    cat(conditionMessage(found), "\\n")
    """
    code_, sentence, missing = said_by_r(code, tmp_path).splitlines()
    assert code_ == "3"
    assert sentence.startswith("site lyon: column 'x' holds text in 40 cells")
    assert CANARY_TEXT not in sentence
    assert "is not on the PATH" in missing


@pytest.mark.r
@pytest.mark.skipif(not has_r(), reason="no R with the package jsonlite on this machine")
def test_cells_that_are_missing(tmp_path: Path) -> None:
    code = """
    text <- '{"tables": {"t": {"a": [1, null], "b": [null, null], "c": ["x", null]}}}'
    table <- consilience_table(jsonlite::fromJSON(text, simplifyDataFrame = FALSE))
    cat(sapply(table, function(column) sum(is.na(column))), nrow(table))
    found <- tryCatch(consilience_table(list(tables = list(t = 1)), "u"), error = conditionMessage)
    cat("\\n", found, sep = "")
    """
    first, second = said_by_r(code, tmp_path).splitlines()
    assert first == "1 2 1 2"
    assert "too large to be printed" in second


@pytest.mark.r
@pytest.mark.skipif(not has_r(), reason="no R with the package jsonlite on this machine")
def test_code_of_the_page(tmp_path: Path) -> None:
    """The block, and the calls in its text, as they stand there, with the client's own paths."""
    page = ROOT / "docs" / "guide" / "r.md"
    (block,) = blocks(page, "")
    code = block.replace("clients/r/consilience.R", str(CLIENT))
    code = code.replace(".venv/bin/consilience", str(PROGRAM))
    assert str(CLIENT) in code and str(PROGRAM) in code
    Workspace(tmp_path)
    shown = said_by_r(code, tmp_path)
    assert "120 rows" in shown and "feature_names" in shown
    assert len(list(tmp_path.glob("runs/*/report.html"))) == 1

    calls = re.findall(r"`((?:consilience_call|write\.csv)\([^`]*\))`", page.read_text("utf-8"))
    init, check, save = (call for call in calls if call != "consilience_call(...)")
    frame = "frame <- data.frame(age = 30:89, dose = (1:60) %% 7 + .5)"
    south = save.replace("north", "south")
    told = said_by_r("\n".join([frame, save, south, init, check]), tmp_path)
    assert "The study can run." in told
