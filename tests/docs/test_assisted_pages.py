"""Pages on assisted learning: code runs and prints what they show, every setting is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from consilience.protocol.method import get_method
from consilience.sites.study import SiteFile, Study
from tests.docs.test_pages import blocks, check_printed

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"
METHODS = ("assistance-test", "assisted-glm")


@pytest.mark.parametrize("name", METHODS)
def test_python_of_the_guide_prints_what_it_shows(name: str) -> None:
    """Directions of a sketch are secret: pages print only what does not hang on them."""
    check_printed(GUIDES / f"{name}.md")


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_is_in_the_guide(name: str) -> None:
    text = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    for parameter in dataclasses.fields(get_method(name)):  # type: ignore[arg-type]
        assert f"`{parameter.name}" in text or f"\n{parameter.name} =" in text, parameter.name


@pytest.mark.parametrize("name", METHODS)
def test_files_of_the_guide_are_read(name: str, tmp_path: Path) -> None:
    study, site = blocks(GUIDES / f"{name}.md", "toml")[:2]
    (tmp_path / "study.toml").write_text(study)
    read = Study.load(tmp_path / "study.toml")
    get_method(read.method)(**read.parameters)
    source = '[source]\npath = "table.csv"\n'
    head = 'name = "lab"\nhome = "home"\n'
    (tmp_path / "site.toml").write_text(f"{head}{source}{site}")
    assert SiteFile.load(tmp_path / "site.toml").columns.features
