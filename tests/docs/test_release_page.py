"""Held replies: commands of the steward's page run, and show what the page shows."""

from __future__ import annotations

import re
import shlex
import threading
import time
import tomllib
from pathlib import Path

import pytest

from consilience.engines.federation import Federation
from consilience.engines.folder import FolderEngine
from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.sites.site_store import DiskStore
from consilience.sites.study import Release
from consilience.wire.keys import KeyList
from consilience.wire.signing import SigningKey
from tests.cli.workspace import call
from tests.docs.test_keys_pages import section

RUN = "demo-20261121-011125-4ad5f9"


def blocks(kind: str) -> list[str]:
    """Blocks of code in the section, in order."""
    text = section("site-steward.md", "### Release later")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == kind]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with what the page's commands name."""
    monkeypatch.chdir(tmp_path)
    SigningKey.generate().save(tmp_path / "keys" / "north")
    key = SigningKey.generate()
    key.save(tmp_path / "keys" / "coordinator")
    (tmp_path / "shared").mkdir()
    rows = "\n".join(f"{i % 7}.5,{i % 5}.25" for i in range(60))
    (tmp_path / "north.csv").write_text(f"x,y\n{rows}\n")
    (tmp_path / "site.toml").write_text(
        f'name = "north"\nhome = "home"\n[source]\npath = "north.csv"\n'
        '[columns.offered]\n"*" = "number"\n'
        f'[trust]\ncoordinators = ["{key.public}"]\n'
    )
    return tmp_path


def ask(place: Path, ended: list[BaseException | None]) -> None:
    """The coordinator of a study with this one site."""
    from consilience.protocol.method import Columns

    site = KeyList.of(SigningKey.load(place / "keys" / "north").public)
    key = SigningKey.load(place / "keys" / "coordinator")
    engine = FolderEngine(place / "shared", ("north",), key, {"north": site}, 0.02)
    try:
        Federation(engine, Columns(features=("x", "y")), deadline=60.0).run(
            MeanAndSD(), seed=1, run_id=RUN
        )
    except BaseException as error:  # noqa: BLE001  the test looks at it
        ended.append(error)
    else:
        ended.append(None)


def test_commands_of_the_page(place: Path) -> None:
    lines = [line for block in blocks("") for line in block.splitlines()]
    watch, queue, preview, release, refuse = (
        shlex.split(line)[1:] for line in lines if line.startswith("consilience ")
    )
    ended: list[BaseException | None] = []
    coordinator = threading.Thread(target=ask, args=(place, ended))
    coordinator.start()
    jobs = DiskStore(place / "home").jobs

    def until_held(round_: int) -> None:
        """The watch of the page, one look at a time."""
        while not [job for job in jobs.waiting() if job.round == round_]:
            done = call(*watch, "--once", "--heartbeat", "0")
            assert done.exit_code == 0, done.output
            assert not ended, ended
            time.sleep(0.02)

    until_held(1)
    assert call("site", "release", "site.toml", "--all").exit_code == 0
    until_held(2)
    listed = call(*queue)
    (shown,) = (block for block in blocks("") if "waiting" in block)
    assert without_times(listed.stdout) == without_times(shown)
    previewed = call(*preview)
    assert previewed.exit_code == 0 and "totals" in previewed.stdout
    assert call(*release).stdout == f"released {RUN}/2-1\n"
    until_held(3)
    refused = call(*[word.replace("2-1", "3-1") for word in refuse])
    assert refused.stdout == f"refused {RUN}/3-1\n"
    while not ended:
        assert call(*watch, "--once", "--heartbeat", "0").exit_code == 0
        time.sleep(0.02)
    coordinator.join()
    (error,) = ended
    assert isinstance(error, QuorumError)
    sentence = "the steward did not release the reply"
    assert sentence in str(error) and f"*{sentence}*" in section(
        "site-steward.md", "### Release later"
    )
    assert "not final" in refuse[-1] and "not final" not in str(error)


def without_times(text: str) -> str:
    return re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)


def test_settings_of_the_page() -> None:
    (text,) = blocks("toml")
    assert Release(**tomllib.loads(text)["release"]).held == "all"
    assert Release(hold="per-record").held == "per-record"
    assert Release().held == "none"
