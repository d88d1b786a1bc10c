"""Keys, their change, and retention: commands of the guides run, and do what the guides say."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from consilience.exceptions import StudyError
from consilience.sites.study import Retention, Study
from consilience.wire.keys import KeyList, parties
from consilience.wire.signing import SigningKey
from tests.cli.workspace import Workspace, call

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"


def section(page: str, heading: str) -> str:
    """Text under a heading, up to the next one of its level or above."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    level = heading.split(" ")[0]
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    end = re.search(rf"^#{{2,{len(level)}}} ", text[start:], re.MULTILINE)
    return text[start : start + end.start()] if end else text[start:]


def commands(text: str) -> list[list[str]]:
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("consilience ")]


def tomls(text: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_a_key_is_changed_as_the_steward_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = []
    for words in commands(section("site-steward.md", "## Keys")):
        done = call(*words)
        assert done.exit_code == 0, done.output
        said.append(done.stdout.strip())
    assert len(said) == 3
    first, rotated, retired = said
    assert rotated == retired
    keys = KeyList.of(tomllib.loads(f'k = ["{first}", {rotated}]')["k"])
    assert keys.identity == first
    assert SigningKey.load(Path("keys/north")).public == keys.publics[1]
    kept = Path("keys/north/endorsements.txt").read_text()
    assert keys.keys[1].endorsement in kept


def filled(text: str) -> Any:
    """The example with real keys; what it calls an endorsement is one by the key before."""
    made: list[SigningKey] = []

    def key(_: re.Match[str]) -> str:
        made.append(SigningKey.generate())
        return f'"{made[-1].public}"'

    def endorsement(_: re.Match[str]) -> str:
        return f'endorsement = "{made[-2].endorse(made[-1].public)}"'

    both = re.compile(r'"ed25519:\.\.\."|endorsement = "\.\.\."')
    return tomllib.loads(
        both.sub(lambda m: key(m) if m[0].startswith('"') else endorsement(m), text)
    )


def test_lists_of_keys_on_the_page_are_read() -> None:
    (text,) = tomls(section("study-file.md", "### Keys of a party"))
    read = {site: KeyList.of(value) for site, value in filled(text)["sites"]["keys"].items()}
    assert [len(keys.keys) for keys in read.values()] == [1, 2, 2]
    assert read["south"].keys[1].endorsement and not read["west"].keys[1].endorsement
    (text,) = tomls(section("study-file.md", "### `[trust]`"))
    trusted = parties(filled(text)["trust"]["coordinators"])
    assert [len(party.keys) for party in trusted] == [1, 2]


def test_the_hash_is_as_the_table_says() -> None:
    old, new, other = (SigningKey.generate() for _ in range(3))

    def study(keys: Any) -> str:
        sites = {"names": ["north"], "keys": {"north": keys}}
        settings = {"name": "s", "method": "mean-and-sd", "data": {"features": ["a"]}}
        return Study.from_settings({**settings, "sites": sites}).hash()

    follower = {"key": new.public, "endorsement": old.endorse(new.public)}
    dated = {"key": old.public, "until": "2027-01-31"}
    before = study(old.public)
    assert {study([old.public, follower]), study([dated, follower]), study(dated)} == {before}
    changed = [study([old.public, other.public]), study(new.public), study(other.public)]
    assert before not in changed
    with pytest.raises(StudyError, match="listed before"):
        study([follower])


def test_purges_of_the_steward_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = Workspace(tmp_path)
    assert call("run", space.file).exit_code == 0
    (run,) = (tmp_path / "runs").iterdir()
    Path("shared").mkdir()
    toml = str(tmp_path / "sites" / "lyon.toml")
    text = section("site-steward.md", "## Afterwards")
    inline = re.findall(r"`(consilience purge [^`]*)`", text)
    words = [*commands(text), *(shlex.split(line)[1:] for line in inline)]
    assert len(words) == 5
    for line in words:
        known = {"site.toml": toml, "<run>": run.name, "<run": str(run), "directory>": None}
        given = [known.get(word, word) for word in line]
        done = call(*(word for word in given if word is not None))
        assert done.exit_code == 0, (line, done.output)
    assert not (run / "journal").exists()
    assert not list((tmp_path / "homes" / "lyon" / "runs").iterdir())
    (shown,) = tomls(text)
    assert Retention(**tomllib.loads(shown)["retention"]).days == 90
    space.site("lyon", more=shown)
    assert call("check", space.file).exit_code == 0
