"""The coordinator's desk: what its pages say, and that nothing comes to them from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from consilience.desk import coordinator
from consilience.desk.coordinator import Overview, app
from consilience.engines import study_run
from consilience.engines.rundir import read_info
from consilience.sites.site_store import Job
from tests.cli.workspace import CANARY_NUMBER, Workspace, call, ran_once, without_report

TOKEN, HOST = "token-of-the-desk", "127.0.0.1:4321"


class Opened:
    """The desk over a folder."""

    def __init__(self, space: Workspace) -> None:
        self.space = space
        self.desk = Overview(space.root, space.root / "runs", space.root / "sites")
        made = app(self.desk, TOKEN, frozenset((HOST,)))
        self.client = TestClient(made, base_url=f"http://{HOST}", follow_redirects=False)

    def get(self, path: str, **settings: Any) -> Any:
        return self.client.get(f"/{TOKEN}{path}", **settings)

    @property
    def run(self) -> str:
        return str(self.desk.found()[0]["run"])


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    with without_report():
        space = ran_once(tmp_path_factory.mktemp("desk"))
    (space.out / "report.html").write_bytes(b"<p>The answer</p>")
    return Opened(space)


def test_runs_studies_and_reports(opened: Opened) -> None:
    first = opened.get("/").text
    assert "Nothing waits" in first and f"/run/{opened.space.out.name}" in first
    assert "all that were asked" in first and "finished" in first
    studies = opened.get("/studies").text
    assert "boston, lyon, osaka" in studies and opened.run in studies
    one = opened.get(f"/run/{opened.run}").text
    assert re.search(r'<th scope="row">lyon</th><td>done</td><td class="n">[1-9]', one)
    report = opened.get(f"/run/{opened.run}/report")
    assert report.content == (opened.space.out / "report.html").read_bytes()
    assert "script-src" not in report.headers["content-security-policy"]
    policy = report.headers["content-security-policy"]
    assert "img-src data:; sandbox allow-popups" in policy and "form-action 'none'" in policy
    assert report.headers["referrer-policy"] == "no-referrer"
    assert str(CANARY_NUMBER) not in first + studies + one


def test_nothing_is_loaded_run_framed_or_kept(opened: Opened) -> None:
    for path in ("/", "/studies", f"/run/{opened.run}", f"/run/{opened.run}/report"):
        page = opened.get(path)
        assert page.status_code == 200
        assert "<script" not in page.text
        assert page.headers["cache-control"] == "no-store"
        rules = dict(
            r.split(" ", 1) for r in page.headers["content-security-policy"].split("; ") if r
        )
        assert rules["default-src"] == rules["frame-ancestors"] == "'none'"


def test_who_has_no_secret_and_who_comes_from_elsewhere(opened: Opened) -> None:
    for start in ("", "/wrong", f"/{TOKEN}x"):
        assert opened.client.get(f"{start}/studies").status_code == 404
    assert opened.get("/", headers={"host": "elsewhere.example"}).status_code == 421
    for headers in ({}, {"origin": "https://elsewhere.example"}):
        assert opened.client.post(f"/{TOKEN}/", headers=headers).status_code == 403
    # Its own pages cannot change anything either.
    own = {"origin": f"http://{HOST}"}
    for path in ("/", "/studies", f"/run/{opened.run}"):
        assert opened.client.post(f"/{TOKEN}{path}", headers=own).status_code == 405


def test_only_runs_of_the_folder_are_shown(opened: Opened) -> None:
    for name in ("none", "..%2f..%2fetc", "%00"):
        assert opened.get(f"/run/{name}").status_code in (400, 404)
        assert opened.get(f"/run/{name}/report").status_code in (400, 404)
    assert "there is no run" in opened.get("/run/none").text


def test_names_of_others_stay_inert(opened: Opened, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\u202eold"
    one = {
        **opened.desk.found()[0],
        "state": "failed",
        "reason": evil,
        "sites": [evil],
        "method": evil,
        "absent": [],
        "answered": [],
        "held": {evil: [evil]},
    }

    class Hostile(Overview):
        def found(self) -> list[dict[str, Any]]:
            return [one]

    (tmp_path / "<b>x.toml").write_text(f'method = "{evil}"\n', encoding="utf-8")
    made = app(Hostile(tmp_path, tmp_path), TOKEN, frozenset((HOST,)))
    client = TestClient(made, base_url=f"http://{HOST}")
    for path in ("/", "/studies"):
        page = client.get(f"/{TOKEN}{path}").text
        assert "<script" not in page and "<b>" not in page and "\u202e" not in page
    assert "&lt;script&gt;" in client.get(f"/{TOKEN}/").text


def run_with(**facts: Any) -> dict[str, Any]:
    plain = {
        "run": "r",
        "state": "running",
        "reason": "",
        "round": 2,
        "step": "sums",
        "sites": ["a", "b"],
        "answered": ["a"],
        "waiting_for": ["b"],
        "waiting": 1,
        "absent": [],
        "last_heard": None,
        "directory": "runs/r",
    }
    return {**plain, **facts}


def damaged_copy(opened: Opened, folder: Path) -> tuple[Path, Any]:
    """The run beside a copy of it, and pages over both."""
    runs = folder / "runs"
    shutil.copytree(opened.space.out, runs / "one")
    shutil.copytree(opened.space.out, runs / "copy")
    made = app(Overview(opened.space.root, runs), TOKEN, frozenset((HOST,)))
    return runs, TestClient(made, base_url=f"http://{HOST}")


LINE = b'{"time": 1.0, "event": "ask", "round": 1, "step": "s", "sites": 3}\n'


@pytest.mark.parametrize(
    "events",
    [
        b"\xff\xfe\x00\n" + LINE,
        b"[1]\n" + LINE + b"not json\n",
        LINE.replace(b"1.0", b"1e999"),
        LINE.replace(b"1.0", b"1" + b"0" * 400),
        LINE.replace(b"1.0", b"NaN"),
        b"[" * 100_000 + b"\n",
    ],
)
def test_damaged_events_are_said(opened: Opened, tmp_path: Path, events: bytes) -> None:
    runs, client = damaged_copy(opened, tmp_path)
    (runs / "copy" / "events.jsonl").write_bytes(events)
    assert client.get(f"/{TOKEN}/").status_code == 200
    page = client.get(f"/{TOKEN}/run/copy")
    assert page.status_code == 200 and "cannot be read" in page.text
    assert "cannot be read" not in client.get(f"/{TOKEN}/run/one").text
    told = call("status", runs / "copy", "--json")
    assert told.exit_code == 0 and json.loads(told.stdout)["events_unread"] >= 1
    assert "Not readable" in call("status", runs / "copy").stdout


def test_a_damaged_run_hides_no_other(opened: Opened, tmp_path: Path) -> None:
    runs, client = damaged_copy(opened, tmp_path)
    (runs / "copy" / "state.json").write_bytes(b"{")
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200
    assert "finished" in page.text and "damaged" in page.text
    assert "state.json" in page.text  # what waits, for whom looks


def test_runs_with_one_id_have_pages_of_their_own(opened: Opened, tmp_path: Path) -> None:
    runs, client = damaged_copy(opened, tmp_path)
    (runs / "copy" / "report.html").write_bytes(b"<p>Another answer</p>")
    first = client.get(f"/{TOKEN}/").text
    assert f"{opened.run} in copy" in first and f"{opened.run} in one" in first
    reports = [client.get(f"/{TOKEN}/run/{name}/report").text for name in ("one", "copy")]
    assert reports == ["<p>The answer</p>", "<p>Another answer</p>"]
    said = client.get(f"/{TOKEN}/run/{opened.run}")
    assert said.status_code == 400 and "open one of copy, one" in said.text
    assert f"/{TOKEN}/run/copy" in client.get(f"/{TOKEN}/studies").text


def test_a_home_is_opened_once(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[Path] = []
    real = study_run.DiskStore

    def counted(home: Path) -> Any:
        homes.append(home)
        return real(home)

    monkeypatch.setattr(study_run, "DiskStore", counted)
    monkeypatch.setattr(coordinator, "runs_in", lambda folder: [(opened.space.out, info)] * 5)
    info = read_info(opened.space.out)
    assert len(opened.desk.found()) == 5
    assert len(homes) == len(set(homes)) == 3


def test_what_waits_for_whom() -> None:
    (wait,) = coordinator._waits([run_with()])
    assert (wait.whom, wait.said) == ("b", "an answer in round 2, sums")
    (wait,) = coordinator._waits([run_with(held={"b": ["r/2-1"]})])
    assert wait.whom == "the steward of b" and "r/2-1" in wait.said
    (wait,) = coordinator._waits([run_with(waiting_for=None)])
    assert wait.whom == "1 sites"
    (wait,) = coordinator._waits([run_with(state="failed", reason="too few sites")])
    assert wait.whom == "you" and "too few sites" in wait.said and "--resume" in wait.said
    assert coordinator._waits([run_with(state="finished", waiting_for=[], waiting=0)]) == []
    states = [coordinator._state(run_with(held={"b": ["x"]}), site) for site in ("a", "b")]
    assert states == ["has answered", "its steward holds a reply"]
    assert coordinator._state(run_with(absent=["b"]), "b") == "absent"
    assert coordinator._state(run_with(), "b") == "asked"


def test_held_replies_of_sites_on_this_machine(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(opened.run, 1, 1, "waiting", {})

    class Jobs:
        def waiting(self) -> list[Job]:
            return [job]

        def damages(self) -> list[Exception]:
            return []

    monkeypatch.setattr("consilience.sites.site_store.DiskStore.jobs", Jobs())
    assert "the steward of lyon" in opened.get("/").text


def test_the_command(opened: Opened) -> None:
    command = "from consilience.cli.main import app; app()"
    words = [sys.executable, "-c", command, "desk", "--studies", str(opened.space.root)]
    words += ["--runs", str(opened.desk.runs)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.findall(r"http\S+", process.stdout.readline())[0]
        for _ in range(200):
            try:
                with urllib.request.urlopen(address) as page:
                    assert b"Nothing waits" in page.read()
                break
            except OSError:  # the address is told before the server listens
                time.sleep(0.05)
        else:
            process.kill()
            pytest.fail("the desk does not answer at the address that it tells")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    assert call("desk", "--studies", opened.space.root / "none").exit_code == 7
