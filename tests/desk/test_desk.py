"""The steward's desk: what its pages say, what can be decided on them, and by whom it cannot."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from consilience.desk.app import Desk, _is_at, app, settings_of
from consilience.exceptions import RunError
from consilience.sites import steward
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import NOT_RELEASED, sole
from consilience.sites.steward import verify
from consilience.wire.codec import plain_fields
from consilience.wire.signing import SigningKey
from tests.cli.test_site import CANARY
from tests.cli.test_site_queue import REQUEST, SECOND, Held

TOKEN, HOST = "token-of-the-desk", "127.0.0.1:4321"
OWN = {"origin": f"http://{HOST}"}
JOB = "/job/run-1/2-1"
PAGES = ("/", JOB, "/studies", "/left", "/account", "/log", "/health")


class Opened(Held):
    """A held reply, and the desk over it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.desk = Desk(self.toml)
        made = app(self.desk, TOKEN, frozenset((HOST,)))
        self.client = TestClient(made, base_url=f"http://{HOST}", follow_redirects=False)

    def get(self, path: str, **settings: Any) -> Any:
        return self.client.get(f"/{TOKEN}{path}", **settings)

    def post(self, path: str, form: dict[str, str] | None = None, **settings: Any) -> Any:
        return self.client.post(f"/{TOKEN}{path}", data=form, **{"headers": OWN, **settings})

    def waits(self) -> list[str]:
        return [job.name for job in self.site.home.jobs.waiting()]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


def test_pages_tell_what_is_asked_and_no_value(opened: Opened) -> None:
    pages = {path: opened.get(path) for path in PAGES}
    assert {page.status_code for page in pages.values()} == {200}
    assert f'href="/{TOKEN}{JOB}"' in pages["/"].text
    for words in ("testing.class-sums", "sums", "aggregate", "2x2", "released", "<dt>features"):
        assert words in pages[JOB].text
    assert "1 of 20" in pages["/account"].text
    assert "Any study of a trusted coordinator" in pages["/studies"].text
    job = opened.desk.job("run-1/2-1")
    sums = plain_fields(steward.waiting(opened.site.home, job).message)["sums"]
    told = "".join(page.text for page in pages.values())
    assert str(int(CANARY)) not in told
    numbers = [n for n in np.ravel(sums) if n]
    assert numbers and not any(f"{n:.5g}" in told or str(int(n)) in told for n in numbers)


def test_nothing_is_loaded_run_framed_or_kept(opened: Opened) -> None:
    for path in PAGES:
        page = opened.get(path)
        assert "<script" not in page.text and "http" not in page.text.replace("http-equiv", "")
        assert page.headers["cache-control"] == "no-store"
        rules = dict(r.split(" ", 1) for r in page.headers["content-security-policy"].split("; "))
        assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
        assert rules["form-action"] == "'self'" and "script-src" not in rules


def test_release(opened: Opened) -> None:
    said = opened.post(f"{JOB}/release")
    assert said.status_code == 303 and said.headers["location"].startswith(f"/{TOKEN}/?said=")
    assert "Released run-1/2-1" in opened.client.get(said.headers["location"]).text
    assert opened.said().status == "reply"
    again = opened.post(f"{JOB}/release")
    assert again.status_code == 400 and "was decided on" in again.text


def test_refuse(opened: Opened) -> None:
    assert opened.post(f"{JOB}/refuse", {"reason": "too fine"}).status_code == 303
    assert (opened.said().status, opened.said().reason) == ("refused", NOT_RELEASED)
    (job,) = [job for job in opened.site.home.jobs.all() if job.round == 2]
    assert job.facts["reason"] == "too fine"


def test_what_left_is_told_field_by_field(opened: Opened) -> None:
    """What waits says so, what was refused has no field, and a step is found by its name."""

    def told(path: str = "/left") -> str:
        return " ".join(re.sub(r"<[^>]*>", " ", opened.get(path).text).split())

    assert "sums aggregate 2x2" in told() and "; waits" in told()
    assert "sums" not in told("/left?step=elsewhere") and "Nothing was answered" in told(
        "/left?step=elsewhere"
    )
    assert [a.outcome for a in steward.answers(opened.site.home)] == ["waits", "waits"]
    opened.post(f"{JOB}/refuse")
    for _ in range(2):  # before the refusal is asked for, and when it has left
        (refused,) = [a for a in steward.answers(opened.site.home) if a.outcome == "refused"]
        assert refused.fields == () and refused.reason == NOT_RELEASED and refused.round == 2
        opened.said()
    assert f"refused: {NOT_RELEASED}" in told() and "2x2" not in told()


def test_what_left_is_told_once_it_was_sent(opened: Opened) -> None:
    opened.post(f"{JOB}/release")
    reply = opened.site.answer(SECOND.to_bytes())
    assert isinstance(reply, bytes)
    opened.site.sent("run-1", 2, 1)
    (found,) = [a for a in steward.answers(opened.site.home) if a.round == 2]
    assert (found.outcome, found.digest) == ("left", hashlib.sha256(reply).hexdigest())
    assert found.bytes == len(reply) and [f.field for f in found.fields] == ["sums"]


def test_a_lock_is_told_from_one_of_another_disk(tmp_path: Path) -> None:
    file = tmp_path.stat()
    disk = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    assert _is_at(f"{disk}:{file.st_ino}", file)
    assert _is_at(f"00:1f:{file.st_ino}", file), "a file system without a device of its own"
    assert not _is_at(f"{disk}:{file.st_ino + 1}", file)
    other = f"{os.major(file.st_dev) + 1:02x}:00:{file.st_ino}"
    assert _is_at(other, file) == (os.major(file.st_dev) == 0)


def test_health_says_what_is_in_the_way(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def looked() -> dict[str, tuple[bool, str]]:
        assert opened.get("/health").status_code == 200
        return {about: (fine, said) for about, fine, said in opened.desk.health()["looked"]}

    first = looked()
    assert all(fine for fine, _ in first.values()), first
    assert "none on this machine serves this home now; last answer just now" in first["Watch"][1]
    assert first["Waiting"][1] == "1 waits for you"
    assert "1 of 20 runs opened" in first["Account"][1]
    with sole(opened.desk.home):
        assert looked()["Watch"][1].startswith("serves this home now")
    opened.post(f"{JOB}/refuse")
    opened.said()
    assert NOT_RELEASED in opened.get("/health").text
    key = SigningKey.generate()
    opened.desk.key = key
    assert key.public in looked()["Keys"][1]

    log, home = opened.desk.home.path / "log.jsonl", opened.desk.home.path
    opened.desk.home.log("read")
    opened.desk.home.log("read")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], *lines[2:]]))
    (home / "ledger" / "default.json").write_bytes(b"{")
    table = opened.desk.file.base / str(opened.desk.file.source.path)
    table.rename(tmp_path / "away.csv")
    usage = SimpleNamespace(free=10)
    monkeypatch.setattr("consilience.desk.app.shutil.disk_usage", lambda _: usage)
    bad = {about for about, (fine, _) in looked().items() if not fine}
    assert bad == {"Table", "Home", "Account", "Log"}
    assert "4 in the way" in opened.get("/health").text


def test_a_damaged_record_is_named_and_the_others_are_told(opened: Opened) -> None:
    home = opened.site.home
    path = sorted(home.path.glob("runs/run-1/*.record"))[-1]
    path.write_bytes(path.read_bytes()[:-3])
    outcomes = [a.outcome for a in steward.answers(home)]
    assert outcomes.count("damaged") == 1 and opened.get("/left").status_code == 200
    # Of which method it was, nobody knows: no filter hides it.
    (found,) = steward.answers(home, method="elsewhere")
    assert found.outcome == "damaged"
    looked = {about: (fine, said) for about, fine, said in opened.desk.health()["looked"]}
    assert looked["Replies"] == (False, "1 of the last 2 replies cannot be read again")


FOREIGN: tuple[tuple[dict[str, str], int], ...] = (
    ({}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "https://elsewhere.example"}, 403),
    ({"origin": f"https://{HOST}"}, 403),
    ({"origin": f"http://{HOST}.example"}, 403),
    ({**OWN, "host": "elsewhere.example"}, 421),
    ({"origin": "http://elsewhere.example:4321", "host": "elsewhere.example:4321"}, 421),
)


def test_a_foreign_page_decides_nothing(opened: Opened) -> None:
    study = {"text": opened.space.study_toml.read_text()}
    for headers, status in FOREIGN:
        for action in ("release", "refuse"):
            assert opened.post(f"{JOB}/{action}", headers=headers).status_code == status
        assert opened.post("/studies/approve", study, headers=headers).status_code == status
    assert opened.waits() == ["run-1/2-1"]
    assert not steward.account(opened.site.home, Policy()).asks_approval


def test_without_the_secret_there_is_nothing(opened: Opened) -> None:
    for start in ("", "/", "/wrong", f"/{TOKEN[:-1]}", f"/{TOKEN}x"):
        assert opened.client.get(f"{start}{JOB}").status_code == 404
        assert opened.client.post(f"{start}{JOB}/release", headers=OWN).status_code == 404
    assert opened.get("/", headers={"host": "elsewhere.example"}).status_code == 421
    assert opened.client.request("PUT", f"/{TOKEN}/", headers=OWN).status_code == 405
    assert opened.get(f"{JOB}/release").status_code == 405
    assert opened.waits() == ["run-1/2-1"]


def test_a_study_is_looked_at_and_approved(opened: Opened) -> None:
    # As a browser sends it, with its own ends of lines.
    text = opened.space.study_toml.read_text().replace("\n", "\r\n")
    looked = opened.post("/studies/look", {"text": text})
    assert "heights" in looked.text and "mean-and-sd" in looked.text
    hidden = re.search(r'name="text" value="([^"]*)"', looked.text)
    assert hidden is not None
    kept = hidden.group(1).replace("&#34;", '"').replace("&#39;", "'").replace("&amp;", "&")
    assert opened.post("/studies/approve", {"text": kept}).status_code == 303
    found = steward.account(opened.site.home, Policy())
    assert found.asks_approval and len(found.approved) == 1
    ((digest, name),) = found.approved.items()
    assert f"{name} <code>{digest}</code>" in opened.get("/studies").text and name == "heights"
    assert "approved study heights" in opened.call("approve", str(opened.space.study_toml))
    assert steward.account(opened.site.home, Policy()).approved == found.approved


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("", "]"), "is no study file"),
        (("[data]", f"seed = {'9' * 5000}\n[data]"), "is no study file"),
        (('"boston", "leeds"', '"leeds", "york"'), "does not name site"),
        (("mean-and-sd", "mean-and-var"), "no method is called"),
        (("[data]", '[reference]\npath = "/etc/hostname"\n[data]'), "has no sha256"),
    ],
)
def test_studies_that_cannot_be_approved(
    opened: Opened, change: tuple[str, str], words: str
) -> None:
    text = opened.space.study_toml.read_text().replace(*change, 1)
    if "york" in text:
        text = text.replace("boston =", "york =")
    said = opened.post("/studies/approve", {"text": text})
    assert said.status_code == 400 and words in said.text
    assert not steward.account(opened.site.home, Policy()).asks_approval


def test_what_is_approved_is_shown_whole(opened: Opened) -> None:
    text = opened.space.study_toml.read_text()
    text = text.replace("[sites]", '[data.levels]\ny = ["rare", "common"]\n[sites]\nquorum = 1', 1)
    text += '[preparation]\ncategorical = "onehot"\n'
    looked = opened.post("/studies/look", {"text": text}).text
    for words in ("&#34;rare&#34;", "quorum = 1", "onehot"):
        assert words in looked
    # Cut off, it would be another study.
    long = text.replace("[data]", f"# {'x' * (1 << 18)}\n[data]", 1)
    assert opened.post("/studies/look", {"text": long}).status_code == 413
    assert opened.post("/studies/approve", {"text": long}).status_code == 413


def test_names_of_others_stay_inert(opened: Opened) -> None:
    evil = "<script>alert(1)</script>\\u202eold"
    text = opened.space.study_toml.read_text().replace('"x"', f'"{evil}"')
    for path, form in (("/studies/look", {"text": text}), ("/studies/look", {"text": f"{evil}]"})):
        page = opened.post(path, form).text
        assert "<script" not in page
    looked = opened.post("/studies/look", {"text": text}).text
    assert "&lt;script&gt;" in looked and "\\u202eold" in looked.split("<form")[0]
    assert "\u202e" not in looked
    said = opened.get("/?said=%3Cscript%3E%E2%80%AE").text
    assert "<script" not in said and "\u202e" not in said


def test_words_that_may_quote_a_cell_are_not_shown(opened: Opened) -> None:
    secret = "cell-4711"

    def load(*_: Any, **__: Any) -> Any:
        raise ValueError(f"could not convert string to float: {secret!r}")

    site, run = opened.site, dataclasses.replace(REQUEST, run="run-2")
    Site("boston", load, home=site.home).answer(run.to_bytes())
    site.home.log("read", run="run-1", said=f"1 row holds {secret} outside the declared levels.")
    site.home.log("sent", run="run-9", round=1)
    written = (site.home.path / "log.jsonl").read_text()  # type: ignore[attr-defined]
    assert written.count(secret) > 2, "reason, trace and what was said"
    with zipfile.ZipFile(io.BytesIO(opened.desk.audit())) as bundle:
        kept = b"".join(bundle.read(name) for name in bundle.namelist()).decode()
    for page in (opened.get("/log").text, kept):
        assert secret not in page and "run-2" in page and "refused" in page
    assert "run-9" in opened.get("/log").text
    assert "run-1" not in opened.get("/log?run=run-9").text.split("</form>")[1]
    assert opened.get("/log?event=none").status_code == 200


def test_an_auditor_gets_what_was_decided(opened: Opened) -> None:
    opened.post(f"{JOB}/refuse", {"reason": "too fine"})
    sent = opened.get("/audit.zip")
    assert sent.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(sent.content)) as bundle:
        contents = {name: bundle.read(name) for name in bundle.namelist()}
    states = {one["job"]: one["state"] for one in json.loads(contents["decisions.json"])}
    assert states["run-1/2-1"] == "refused"
    assert json.loads(contents["policy.json"])["preset"] == "strict"
    assert [one["outcome"] for one in json.loads(contents["left.json"])] == ["waits", "refused"]
    # As a number of its own: hashes and fractions of seconds hold its digits now and then.
    number = rf"(?<![\w.]){int(CANARY)}(?!\w)".encode()
    assert re.search(number, b" ".join(contents.values())) is None
    assert re.search(number, f'"{CANARY}"'.encode()) is not None
    assert verify(sent.content).key == ""
    assert "-not-signed.zip" in sent.headers["content-disposition"]
    assert "Audit bundle, not signed" in opened.get("/log").text
    opened.desk.key = SigningKey.generate()
    signed = verify(opened.get("/audit.zip").content, opened.desk.key.public)
    assert signed.begins_with(verify(sent.content))
    assert "not signed" not in opened.get("/log").text
    log = opened.desk.home.path / "log.jsonl"
    log.write_bytes(b'{"event": "<b>sent"}\n' + log.read_bytes())
    opened.desk.home.log("read")
    assert "breaks at line 2" in opened.get("/log").text


def test_the_policy_is_a_table(opened: Opened) -> None:
    page = opened.get("/account").text
    assert "Policy(" not in page
    rows = re.findall(
        r'<tr><th scope="row">(\w+)</th><td>(.*?)</td><td>(.*?)</td><td class="long">(.+?)</td>',
        page,
    )
    told = {name: (value, by) for name, value, by, _ in rows}
    assert set(told) == {f.name for f in dataclasses.fields(Policy)} - {"preset", "data_id"}
    assert told["min_records"] == ("10", "preset")
    assert told["foreign_models"] == ("no", "preset")
    changed = list(settings_of(Policy(min_records=25)))
    assert ("min_records", "25", False) in [(name, v, by) for name, v, _, by in changed]


def test_a_long_log_is_read_from_its_end(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        opened.site.home.log("sent", run=f"run-{number + 10}", round=1)
    monkeypatch.setattr("consilience.desk.app._READ", 1000)
    page = opened.get("/log").text
    assert "The log is long" in page
    assert "run-59" in page and "run-10<" not in page
    assert "a line that cannot be read" not in page, "the first line is cut, and left out"
    whole, lines = opened.desk.home.read_log_end(1 << 20)
    assert whole and lines == opened.desk.home.read_log()


def test_a_site_without_a_home(tmp_path: Path) -> None:
    toml = tmp_path / "site.toml"
    toml.write_text('name = "york"\nhome = "home"\n[source]\npath = "table.csv"\n')
    with pytest.raises(RunError, match="has no home"):
        Desk(toml).waiting()


def test_the_command_prints_the_address_and_stops(opened: Opened) -> None:
    """A port that is taken is one sentence."""
    command = "from consilience.cli.site import app; app()"
    words = [sys.executable, "-c", command, "desk", str(opened.toml)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.findall(r"http\S+", process.stdout.readline())[0]
        port = address.split("/")[2].split(":")[1]
        for _ in range(200):
            with suppress(OSError), urllib.request.urlopen(address) as page:
                assert b"run-1/2-1" in page.read()
                break
            time.sleep(0.05)
        assert f"port {port} cannot be used" in opened.call("desk", "--port", port, code=7)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
