"""The tables of keys in the guides are those of the code, with their defaults."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.sites import study as files
from consilience.sites.own_columns import LongColumns, Unit
from consilience.sites.policy import PRESETS, Policy
from tests.cli.workspace import call, sentence
from tools import docs_api

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
MODELS: dict[str, Any] = {
    model.__name__: model
    for tables in docs_api.KEYS.values()
    for _, model, _ in tables
    if model not in (Unit, LongColumns)
}


def table(page: str, start: str, end: str) -> list[list[str]]:
    text = (GUIDE / page).read_text(encoding="utf-8")
    match = re.search(rf"<!-- {start} -->\n(.*?)<!-- {end} -->", text, re.DOTALL)
    assert match is not None, f"{page} has no table {start}"
    rows = [line.strip("|").split("|") for line in match[1].splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("name", MODELS)
def test_keys_and_defaults(name: str) -> None:
    rows = table("study-file.md", f"keys: {name}", "end keys")
    wanted = {key: default for _, key, default in docs_api.defaults(MODELS[name])}
    assert {row[0].strip("`"): row[1] for row in rows} == wanted


def test_policy_presets() -> None:
    rows = table("site-steward.md", "table: policy", "end table")
    presets = {preset: Policy.from_settings(preset) for preset in PRESETS}
    wanted = {
        field.name: [docs_api.shown(getattr(policy, field.name)) for policy in presets.values()]
        for field in dataclasses.fields(Policy)
    }
    assert {row[0].strip("`"): row[1:4] for row in rows} == wanted


def test_toml_examples_are_read(tmp_path: Path) -> None:
    """Every complete study and site file of the guides is one."""
    seen = {"study": 0, "site": 0}
    for page in sorted(GUIDE.glob("*.md")):
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            path = tmp_path / "file.toml"
            path.write_text(block.replace("ed25519:...", "ed25519:" + "A" * 43 + "="))
            if "method =" in block:
                files.Study.load(path)
                seen["study"] += 1
            elif "[source]" in block:
                Policy.from_settings(files.SiteFile.load(path).policy)
                seen["site"] += 1
    assert seen["study"] >= 2 and seen["site"] >= 1


def test_private_reference_rows_are_named_as_the_page_shows(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    for site in ("east", "west"):
        rows = [f"{a:.4f},{b:.4f},{a + b:.4f}" for a, b in rng.normal(size=(60, 2))]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,y,z", *rows]))
        (tmp_path / f"{site}.toml").write_text(
            f'name = "{site}"\nhome = "homes/{site}"\n[source]\npath = "{site}.csv"\n'
            '[columns.offered]\n"*" = "number"\n[policy]\nforeign_models = true\n'
        )
    (tmp_path / "study.toml").write_text(
        'name = "s"\nmethod = "reference-averaging"\n[parameters]\nestimator = "ridge"\n'
        '[data]\nfeatures = ["x", "y"]\ntarget = "z"\n[sites]\nnames = ["east", "west"]\n'
        '[reference]\npath = "west.csv"\n'
    )
    result = call("check", tmp_path / "study.toml", "--sites", tmp_path)
    assert result.exit_code == 4
    page = (GUIDE / "study-file.md").read_text(encoding="utf-8")
    shown_there = re.search(r"<!-- check: private -->\n```\n(.*?)\n```", page, re.DOTALL)
    assert shown_there is not None
    assert " ".join(shown_there[1].split()) in " ".join(sentence(result).split())
