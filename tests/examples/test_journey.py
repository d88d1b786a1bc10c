"""The journey over four hospitals: its page shows what its commands say."""

from __future__ import annotations

import re
import shlex
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consilience.engines.federation import load_run
from consilience.sites.loaders import file_site
from consilience.testing.fakes import with_fixed_secrets
from tests.cli.workspace import call, without_report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "journey.md"
_SHOWN = re.compile(r"<!-- run -->\n```\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def commands() -> Iterator[tuple[list[str], str]]:
    """Commands of the page, and what it shows of their output."""
    for block, shown in _SHOWN.findall(PAGE.read_text(encoding="utf-8")):
        yield block.splitlines(), shown


def fixed(file: Any, *more: Any, **others: Any) -> Any:
    """A site of a file whose secret draws can be repeated: halves decide where groups are near."""
    return with_fixed_secrets(file_site(file, *more, **others), zlib.crc32(file.name.encode()))


def without_chance(patch: pytest.MonkeyPatch) -> None:
    """Let the program's own sites draw the same each time, also which rows stay out."""
    patch.setattr("consilience.engines.local.file_site", fixed)
    patch.setattr("consilience.sites.row_guard.os", SimpleNamespace(urandom=bytes))


def run_page(folder: Path) -> Iterator[tuple[str, str]]:
    """Run the page's commands in a folder; what they say, and what the page shows of it."""
    example = folder / "examples" / "heart"
    shutil.copytree(ROOT / "examples" / "heart", example, ignore=shutil.ignore_patterns("homes"))
    for lines, shown in commands():
        said = ""
        for line in lines:
            program, *words = shlex.split(line)
            assert program == "consilience"
            result = call(*words)
            assert result.exit_code == 0, result.output
            said += result.stdout
        yield said, shown


@pytest.fixture(scope="module")
def journey(
    data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, str]]]:
    folder = tmp_path_factory.mktemp("journey")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSILIENCE_DATA", str(data_dir("heart").parent))
        patch.setenv("COLUMNS", "100")
        without_chance(patch)
        patch.chdir(folder)
        with without_report():
            said = list(run_page(folder))
        yield said


def test_the_page_shows_what_its_commands_say(journey: list[tuple[str, str]]) -> None:
    assert len(journey) > 5
    for said, shown in journey:
        assert shown in said, said


def test_coefficients_of_the_groups_are_those_of_the_page(
    journey: list[tuple[str, str]],
) -> None:
    """The table of the page, of runs that are in this folder."""
    text = PAGE.read_text(encoding="utf-8")
    runs = [load_run(f"runs/group-{g}").result for g in (0, 1)]
    for name in ("age", "trestbps", "exang", "oldpeak"):
        cells = []
        for result in runs:
            told = result.coefficients.loc[name]
            cells.append(f"{told.estimate:.2f} ({told.low:.2f} to {told.high:.2f})")
        assert f"| `{name}` | {' | '.join(cells)} |" in text, cells
