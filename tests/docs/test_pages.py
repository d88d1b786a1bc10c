"""The documentation: links lead somewhere, code is the source's, examples run as written."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.told import OTHER_PERCENT
from tools import embed_code

ROOT = Path(__file__).resolve().parents[2]
OWN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES = [*OWN, *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial" / "add-a-method.md"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FIGURE = re.compile(r"-?\d+(?:\.\d+)?")
_MARKED = re.compile(
    r"<!-- (?:run|file: (?P<file>\S+)) -->\n```\w*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


def blocks(page: Path, language: str) -> list[str]:
    return [m[2] for m in _BLOCK.finditer(page.read_text(encoding="utf-8")) if m[1] == language]


def printed_by(run: Callable[[], object]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        run()
    return said.getvalue()


def python_of(page: Path) -> str:
    """What the code of a page prints, block after block."""
    namespace: dict[str, object] = {}

    def run() -> None:
        for block in blocks(page, "python"):
            exec(compile(block, page.name, "exec"), namespace)

    return printed_by(run)


def check_printed(page: Path) -> None:
    """Every word and figure that the code of a page prints is on the page, in order."""
    shown = " ".join(blocks(page, "text"))
    assert shown.strip(), f"{page.name} shows no output"
    said = python_of(page)
    assert said.split() == shown.split(), said


def words(text: str) -> list[str]:
    """All but the figures, for what chance may change: each is one sign, whatever its size."""
    return _FIGURE.sub(" # ", text).split()


SPOKEN = [*PAGES, ROOT / "CHANGELOG.md", *sorted(ROOT.glob("examples/**/*.md"))]


@pytest.mark.parametrize("page", SPOKEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_percent_has_one_spelling(page: Path) -> None:
    """95%, as reports write it too; letters of code and of addresses are no numbers."""
    words = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert not OTHER_PERCENT.search(words), OTHER_PERCENT.findall(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in _LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(path), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings]
    return set(plain)


def test_links_are_found() -> None:
    """Negative control: the pattern finds links at all."""
    assert len(_LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_embedded_code_is_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert embed_code.embedded(text) == text, "run: python -m tools.embed_code"


def test_embedding_notices_a_change(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n\n\nX = 2\n")
    page = "<!-- embed: a.py#f -->\n<!-- end embed -->\n"
    filled = embed_code.embedded(page, tmp_path)
    assert "```python\ndef f():\n    return 1\n```\n" in filled and "X = 2" not in filled
    assert embed_code.embedded(filled, tmp_path) == filled
    (tmp_path / "a.py").write_text("def f():\n    return 2\n")
    assert embed_code.embedded(filled, tmp_path) != filled
    for wrong in ("<!-- embed: b.py -->\n<!-- end embed -->", "<!-- embed: a.py#g -->\n"):
        with pytest.raises(embed_code.EmbedError):
            embed_code.embedded(wrong, tmp_path)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guide/contingency-table.md",
        "docs/guide/describe.md",
        "docs/guide/many-cores.md",
        "docs/guide/python.md",
    ],
)
def test_python_examples_run_and_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_printed(ROOT / page)


def test_a_word_or_figure_that_differs_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = "```python\nprint('the sites', -1.5)\n```\n"
    page.write_text(f"{code}```text\nthe   sites\n-1.5\n```\n")
    check_printed(page)
    for wrong in ("the site -1.5", "the sites 1.5", "sites the -1.5", ""):
        page.write_text(f"{code}```text\n{wrong}\n```\n")
        with pytest.raises(AssertionError):
            check_printed(page)
    assert words("[-0.20 yes] 9/10") == words("[ 0.3 yes] 10/10") != words("[0.3 no] 9/10")


def figures(text: str) -> list[str]:
    return _FIGURE.findall(text)


def test_readme_fits_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


# --------------------------------------------------------------------------- the tutorial


def install(folder: Path) -> Path:
    """Lay out the tutorial's package as an installer would, without a network or a build."""
    source = ROOT / "docs" / "tutorial" / "pooled_histogram"
    site = folder / "installed"
    facts = site / "pooled_histogram-0.1.0.dist-info"
    facts.mkdir(parents=True)
    shutil.copy(source / "pooled_histogram.py", site)
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: pooled-histogram\nVersion: 0.1.0\n"
    )
    (facts / "entry_points.txt").write_text(
        "[consilience.methods]\npooled-histogram = pooled_histogram\n"
    )
    return site


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(install(folder))}


def run_commands(page: Path, work: Path, env: dict[str, str]) -> str:
    """What the commands of a page print, with its files, in an empty directory."""
    work.mkdir()
    script = ["set -eu"]
    for match in _MARKED.finditer(page.read_text(encoding="utf-8")):
        if match["file"]:
            script.append(f"mkdir -p $(dirname {match['file']})")
            script.append(f"cat > {match['file']} <<'END'\n{match['text']}END")
        else:
            script.append(match["text"])
    assert len(script) > 1
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tutorials_commands_run_as_written(tmp_path: Path) -> None:
    """The new method on both engines, from an empty directory, with a process for each site."""
    work = tmp_path / "work"
    printed = run_commands(TUTORIAL, work, environment(tmp_path))
    local, folder = work / "runs" / "local", work / "runs" / "folder"
    for name in ("result.json", "result.npz"):
        assert (local / name).read_bytes() == (folder / name).read_bytes()
    assert "159 rows of alcohol" in printed


@pytest.mark.parametrize("name", ["start", "own-tables", "other-columns", "shared-folder"])
def test_commands_of_a_guide_run_as_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, work = ROOT / "docs" / "guide" / f"{name}.md", tmp_path / "work"
    run_commands(page, work, environment(tmp_path))
    reports = {"own-tables": 1, "shared-folder": 1}
    assert len(list(work.rglob("report.html"))) == reports.get(name, 2)
    monkeypatch.chdir(work)
    assert python_of(page).split() == " ".join(blocks(page, "text")).split()


def test_the_tutorials_method_keeps_every_promise(tmp_path: Path) -> None:
    source = ROOT / "docs" / "tutorial" / "pooled_histogram" / "check.py"
    env = environment(tmp_path)
    done = subprocess.run(
        [sys.executable, str(source)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "all promises hold"
