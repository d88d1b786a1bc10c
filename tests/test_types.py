"""What a type checker, and with it an editor, knows of a run and of its result."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import consilience
from consilience.engines.federation import RunSettings
from consilience.protocol.method import Method

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = {name: getattr(consilience, name) for name in consilience.__all__}
METHODS = {
    name: value.Result
    for name, value in PUBLIC.items()
    if isinstance(value, type) and issubclass(value, Method)
}
ERRORS = """\
from consilience import Describe, Federation
def wrong(method: Describe, federation: Federation) -> None:
    method.run(federation).result.no_such_table
    method.run(federation, sead=1)
    federation.run(method).no_such_part
"""


def revealed(tmp_path: Path) -> list[str]:
    """Types and errors that mypy tells of a file of a user, line by line."""
    lines = ["import consilience"]
    for name in METHODS:
        lines += [f"def f{name}(m: consilience.{name}, fed: consilience.Federation) -> None:"]
        lines += [
            "    reveal_type(m.run(fed, seed=0).result)",
            "    reveal_type(fed.run(m).result)",
        ]
    file = tmp_path / "of_a_user.py"
    file.write_text("\n".join([*lines, ERRORS]))
    # With the settings of the house: what `make check` found out of the package is kept.
    words = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]
    done = subprocess.run(words, cwd=ROOT, env={}, capture_output=True, text=True, timeout=300)
    assert not done.stderr
    return done.stdout.splitlines()


def test_the_result_of_every_public_method_is_known(tmp_path: Path) -> None:
    told = revealed(tmp_path)
    types = [re.findall(r'Revealed type is "(.*)"', line) for line in told]
    expected = [f"{r.__module__}.{r.__name__}" for r in METHODS.values() for _ in range(2)]
    assert len(METHODS) > 15
    assert [name for line in types for name in line] == expected
    errors = [line for line in told if "error:" in line]
    assert len(errors) == 3
    for words, line in zip(("no_such_table", "sead", "no_such_part"), errors, strict=True):
        assert words in line


def test_what_a_run_takes_is_said_twice_alike() -> None:
    taken = inspect.signature(consilience.Federation.run).parameters
    kinds = {name: p.annotation for name, p in taken.items() if p.kind is p.KEYWORD_ONLY}
    told = {name: kind.__forward_arg__ for name, kind in RunSettings.__annotations__.items()}
    assert kinds == told
