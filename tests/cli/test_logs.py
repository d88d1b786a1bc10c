"""Logs for programs: one JSON object a line, known keys, and nothing of data, keys or secrets."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from consilience.cli.logs import (
    CODES,
    INTERRUPTED,
    KEYS,
    OTHER,
    EventLog,
    LogFormat,
    LogLevel,
    code_of,
    level_of,
)
from consilience.exceptions import QuorumError, RunError
from tests.cli.test_site import CANARY, Workspace, run_cli
from tests.cli.workspace import CANARY_NUMBER, CANARY_TEXT, call
from tests.cli.workspace import Workspace as LocalWorkspace

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "logs.md"


def parsed(text: str) -> list[dict[str, Any]]:
    """Every line is one JSON object with known keys, in their order."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert list(line) == [key for key in KEYS if key in line]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["level"] in ("info", "warning", "error")
    return lines


def logged(
    kind: str, facts: dict[str, Any], level: LogLevel = LogLevel.info
) -> list[dict[str, Any]]:
    stream = io.StringIO()
    EventLog(LogFormat.json, level, lambda kind, facts: "", stream=stream).event(kind, facts)
    return parsed(stream.getvalue())


def test_a_site_and_its_coordinator(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    # Not to its end: here both ends are whole commands, and their logs are what is looked at.
    with workspace.watching("leeds"):
        boston = workspace.process("boston", "--log-format", "json")
        keys = tmp_path / "coordinator"
        workspace.coordinator.save(keys)
        done = call(
            "run", workspace.study_toml, "--out", tmp_path / "out", "--engine", "folder",
            "--folder", workspace.folder, "--key", keys, "--log-format", "json",
        )  # fmt: skip
        boston.terminate()
        said = boston.communicate(timeout=60)[0]
    assert done.exit_code == 0, done.output
    here, there = parsed(done.stderr), parsed(said)
    run = json.loads((tmp_path / "out" / "run.json").read_text())["run"]
    assert {line["run"] for line in here} == {run}
    assert [line["event"] for line in here if line["event"] == "done"] == ["done"]
    arrived = [line for line in here if line["event"] == "arrived"]
    assert {line["site"] for line in arrived} == {"boston", "leeds"}
    assert all(line["step"] and line["outcome"] == "reply" for line in arrived)
    assert [line["event"] for line in there][:1] == ["watching"]
    assert there[-1]["event"] == "stopped" and {line["site"] for line in there} == {"boston"}
    answered = [line for line in there if line["event"] == "answered"]
    assert answered and all(line["bytes"] > 0 and line["run"] == run for line in answered)
    for text in (done.stderr, said):
        assert str(int(CANARY)) not in re.sub(r'"(time|bytes|run)": [^,}]*', "", text)
        assert "ed25519" not in text and "PRIVATE" not in text and str(tmp_path) not in text


def test_canaries_of_tables_that_do_not_fit(tmp_path: Path) -> None:
    """A cell that stops the run is in no line; the command says why in one JSON line."""
    workspace = LocalWorkspace(tmp_path)
    rows = [f"{CANARY_NUMBER},{CANARY_TEXT},1"] * 10 + workspace.lines("lyon")[1:]
    workspace.table("lyon", "x,y,id", rows)
    done = workspace.run("--log-format", "json")
    assert done.exit_code == 3 and done.stdout == ""
    (line,) = parsed(done.stderr)
    assert (line["event"], line["code"], line["exit"], line["level"]) == (
        "failed", "data", 3, "error",
    )  # fmt: skip
    assert CANARY_TEXT not in done.output and str(CANARY_NUMBER) not in done.output


@pytest.mark.parametrize(
    "hostile",
    [CANARY_TEXT + " 61", "north\n{}", "\x1b[2J", "a" * 500, "ed25519:" + "A" * 43 + "=", "a/b"],
)
def test_what_others_say_is_not_repeated(hostile: str) -> None:
    """Names of a wrong form and sentences of other parties do not reach who collects logs."""
    facts = {
        "run": hostile, "round": 2, "step": hostile, "site": hostile, "outcome": "refused",
        "reason": f"the policy does not allow {hostile}", "file": hostile, "value": CANARY_NUMBER,
        "bytes": hostile, "sites": {"a": hostile},
    }  # fmt: skip
    (line,) = logged("answered", facts)
    assert line["code"] == "policy" and line["level"] == "warning"
    text = json.dumps(line)
    names = [part for part in re.findall(r"[\w:=/]{4,}", hostile) if not part.isdigit()]
    allowed = re.fullmatch(r"[A-Za-z0-9._-]{1,128}", hostile)
    assert allowed or not any(part in text for part in names)
    assert str(CANARY_NUMBER) not in text and "file" not in line and "value" not in line


def test_keys_are_never_names() -> None:
    (line,) = logged("answered", {"site": "ed25519:" + "A" * 43, "outcome": "reply"})
    assert line["site"] == "?"


def test_how_a_command_ends() -> None:
    for error, code, words in (
        (RunError("postgresql://me:S3CRET@db is gone, ed25519:AAAA= too"), "run", "is gone"),
        (QuorumError(f"1 of 3 sites answered: north said {CANARY_TEXT}"), "quorum", "too few"),
    ):
        stream = io.StringIO()
        log = EventLog(LogFormat.json, LogLevel.error, lambda kind, facts: "", stream=stream)
        with pytest.raises(Exception) as caught, log.ending():
            raise error
        assert getattr(caught.value, "exit_code", None) == error.exit_code
        (line,) = parsed(stream.getvalue())
        assert line["code"] == code and words in line["message"]
        assert not any(secret in stream.getvalue() for secret in ("S3CRET", "AAAA", CANARY_TEXT))


@pytest.mark.parametrize(
    ("form", "code", "events"),
    [
        (LogFormat.json, INTERRUPTED, ["interrupted"]),
        (LogFormat.json, 2, []),
        (LogFormat.text, INTERRUPTED, []),
    ],
)
def test_an_interruption_is_an_event_and_other_endings_are_none(
    form: LogFormat, code: int, events: list[str]
) -> None:
    stream = io.StringIO()
    log = EventLog(form, LogLevel.info, lambda kind, facts: kind, stream=stream)
    with pytest.raises(typer.Exit) as caught, log.ending():
        raise typer.Exit(code)
    assert caught.value.exit_code == code
    assert [line["event"] for line in parsed(stream.getvalue())] == events


def test_levels() -> None:
    assert level_of("answered", {"outcome": "reply"}) is LogLevel.info
    for kind, facts in (
        ("answered", {"outcome": "refused"}),
        ("arrived", {"outcome": "absent"}),
        ("ignored", {"reason": "x"}),
        ("something new", {}),
    ):
        assert level_of(kind, facts) is LogLevel.warning
    assert logged("done", {"rounds": 3}, LogLevel.warning) == []
    assert logged("ignored", {"reason": "x"}, LogLevel.error) == []
    assert logged("ignored", {"reason": "x"}, LogLevel.warning)[0]["code"] == OTHER


def test_lines_for_people_leave_out_what_went_well(tmp_path: Path) -> None:
    workspace = LocalWorkspace(tmp_path)
    quiet = workspace.run("--log-level", "warning")
    assert quiet.exit_code == 0 and quiet.stderr == ""


def test_prompts_and_programs_do_not_go_together(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    both = run_cli(*workspace.watch_arguments("boston", "--confirm", "--log-format", "json"))
    assert both.exit_code == 2 and "--confirm" in both.stderr


def test_every_code_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("<!-- codes -->") : text.index("<!-- end codes -->")]
    documented = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert documented == [*dict.fromkeys(code for _, code in CODES), OTHER]
    for key in KEYS:
        assert f"`{key}`" in text


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("the number of runs that the steward allows on this data is used up", "budget"),
        ("the study is not among those that the steward has approved", "not-approved"),
        ("the records of this run were purged here, so it cannot go on", "purged"),
        ("no coordinator that this site trusts has signed it for this place", "not-signed"),
        ("the message is damaged or not complete", "damaged"),
        ("cannot write x: the disk is full: free some space", "disk-full"),
        ("the key of the coordinator has ended on 2026-01-01: have it make a new one", "key-ended"),
        ("no reply within the deadline", "no-answer"),
        ("the site's policy does not allow this", "policy"),
        ("the site's table cannot be read; the site's own log says why", "table"),
        ("the site stopped with an error; its own log says why", OTHER),
    ],
)
def test_codes(reason: str, code: str) -> None:
    assert code_of(reason) == code
