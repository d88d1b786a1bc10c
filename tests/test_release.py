"""What is released: built twice to the same bytes, with what an installation needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import consilience

ROOT = Path(__file__).resolve().parents[1]
OF_A_RELEASE = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def built(place: Path, *, mode: int, when: float) -> dict[str, bytes]:
    """Build from a copy whose files have these permissions and times."""
    shutil.copytree(
        ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.nb[ci]")
    )
    for name in ("pyproject.toml", "hatch_build.py", ".gitignore", *OF_A_RELEASE):
        shutil.copy(ROOT / name, place / name)
    for path in place.rglob("*"):
        path.chmod(mode | 0o111 if path.is_dir() else mode)
        os.utime(path, (when, when))
    environment = {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"}
    words = [sys.executable, "-m", "hatchling", "build", "--directory", str(place / "dist")]
    subprocess.run(words, cwd=place, env=environment, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in (place / "dist").iterdir()}


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    first = built(tmp_path / "one", mode=0o644, when=1.0e9)
    assert first == built(tmp_path / "other", mode=0o640, when=1.7e9)
    version = consilience.__version__
    wheel, source = f"consilience-{version}-py3-none-any.whl", f"consilience-{version}.tar.gz"
    assert set(first) == {wheel, source}

    (tmp_path / wheel).write_bytes(first[wheel])
    with zipfile.ZipFile(tmp_path / wheel) as made:
        names = set(made.namelist())
        info = f"consilience-{version}.dist-info"
        told = Parser().parsestr(made.read(f"{info}/METADATA").decode())
        entries = made.read(f"{info}/entry_points.txt").decode()
    files = [p for p in (ROOT / "src" / "consilience").rglob("*") if p.is_file()]
    kept = {p for p in files if "__pycache__" not in p.parts and p.suffix not in (".nbc", ".nbi")}
    assert {str(p.relative_to(ROOT / "src")) for p in kept} <= names
    assert "consilience/py.typed" in names
    assert not [n for n in names if not n.startswith(("consilience/", info))]
    assert "consilience = consilience.cli.main:app" in entries
    assert (told["Name"], told["Version"]) == ("consilience", version)
    assert told["License-Expression"] == "Apache-2.0" and told["License-File"] == "LICENSE"
    shown = told.get_payload()
    assert told["Description-Content-Type"] == "text/markdown" and told["Dynamic"] is None
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.findall(r"\]\((?!https:)|!\[|<img|href=", shown)
    assert "Start in five minutes with your own tables; a journey from answer to answer." in shown
    # Nothing else is lost: code, tables, and words as the README has them.
    unlinked = re.sub(r"\[([^\]]*)\]\((?!https:)[^)]*\)", r"\1", re.sub(r"!\[.*\n", "", readme))
    assert shown.split() == unlinked.split()
    assert "Typing :: Typed" in (told.get_all("Classifier") or [])
    assert set(told.get_all("Provides-Extra") or []) >= {
        "desk",
        "flower",
        "privacy",
        "database",
        "files",
    }

    (tmp_path / source).write_bytes(first[source])
    with tarfile.open(tmp_path / source) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
        about = packed.extractfile(f"consilience-{version}/PKG-INFO").read().decode()  # type: ignore[union-attr]
    assert Parser().parsestr(about).get_payload() == shown
    assert {
        "pyproject.toml",
        "hatch_build.py",
        "PKG-INFO",
        "src/consilience/__init__.py",
        *OF_A_RELEASE,
    } <= inside
    assert not [name for name in inside if name.startswith(("tests", "docs", "replications"))]


def test_one_version_everywhere() -> None:
    assert PROJECT["version"] == consilience.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == PROJECT["version"]  # type: ignore[index]
    assert re.search(r"^license: (.+)$", citation, re.MULTILINE)[1] == PROJECT["license"]  # type: ignore[index]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{PROJECT['version']}]" in changes


@pytest.mark.parametrize("name", OF_A_RELEASE)
def test_what_comes_with_a_release_is_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 300
