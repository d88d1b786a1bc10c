"""The documentation site: all pages are on it, links follow, faults of built pages are found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import docs_api, docs_site

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_on_the_site() -> None:
    pages = docs_site.pages()
    listed = [p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert {f"{docs_site.place(path)}.md" for path in listed} <= set(pages)
    # Tests that prove a claim can be read beside it.
    assert "source/tests/exchange/test_methods.py.md" in pages
    assert "evidence/sparse_qda/digits.md" in pages
    for name in docs_site.toctree({"Python": ["api"]}):
        assert not name.startswith("/") or f"{name[1:]}.rst" in pages


def test_new_pages_and_names_come_onto_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [path for s in docs_site.sections() for group in s["groups"].values() for path in group]
    assert len(shown) == len(set(shown)) and "docs/guide/python.md" in shown
    assert all(path in docs_site.MADE or (ROOT / path).is_file() for path in shown)
    public = [*docs_api.consilience.__dir__(), "Novelty"]
    monkeypatch.setattr(docs_api.consilience, "__dir__", lambda: public)
    more = docs_api.groups()[-1]
    assert more["title"] == "More" and "Novelty" in more["names"]
    monkeypatch.setattr(docs_api.consilience, "__dir__", lambda: ["Run"])
    with pytest.raises(SystemExit, match="is no public name"):
        docs_api.groups()


def test_links_move_with_their_pages() -> None:
    seen: set[str] = set()
    text = (
        "[a](../adr/README.md#x) [b](../../examples/heart/README.md) [c](../../LICENSE) [d](#e)\n"
        "[f](../index.md#methods) ![g](../images/report-heart.webp)\n```\n[a](b.md)\n```\n"
    )
    assert docs_site.moved(text, "docs/guide/install.md", seen) == (
        "[a](../adr/index.md#x) [b](../examples/heart.md) [c](../source/LICENSE.md) [d](#e)\n"
        "[f](../questions.md) ![g](/images/report-heart.webp)\n```\n[a](b.md)\n```\n"
    )
    assert "examples/heart/README.md" in seen and len(seen) == 4
    for wrong in ("[a](b.md)", "[a](../../../b.md)", "[a](../images/none.webp)"):
        with pytest.raises(SystemExit, match="which is not there"):
            docs_site.moved(wrong, "docs/guide/install.md", seen)


def test_faults_of_built_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text(
        '<link rel="stylesheet" href="a.css"><p id="here"><a href="#here">a</a>'
        '<a href="https://example.org">b</a><a href="good.html#here">c</a></p>'
    )
    (tmp_path / "a.css").write_text("p { background: url(data:image/png;base64,AA) }")
    assert list(docs_site.faults(tmp_path)) == []
    for number, wrong in enumerate(
        (
            '<script src="https://example.org/a.js"></script>',
            '<link rel="stylesheet" href="//example.org/a.css">',
            '<img src="http://example.org/a.png">',
            '<p style="background: url(https://example.org/a.png)"></p>',
            '<a href="none.html">a</a>',
            '<a href="good.html#there">a</a>',
            '<script>import("https://example.org/a.js")</script>',
        )
    ):
        (tmp_path / "wrong.html").write_text(wrong)
        assert len(list(docs_site.faults(tmp_path))) == 1, number
    (tmp_path / "wrong.html").unlink()
    (tmp_path / "a.css").write_text('@import "https://example.org/a.css";')
    assert len(list(docs_site.faults(tmp_path))) == 1


def test_types_are_said_in_words_of_toml() -> None:
    assert docs_api.typed(str | None) == "text"
    assert docs_api.typed(tuple[str, ...]) == "list of texts"
    assert docs_api.typed(dict[str, tuple[int, ...]]) == "table of list of whole numbers by name"
    page = docs_api.key_page()
    assert re.search(r"`quorum` \| whole number, at least 1 \| none \| \w+", page)
    assert re.search(r"`min_records` \| a whole number of at least 1 \| 10 \|", page)


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.suffix == ".webp" and picture.stat().st_size <= 120_000, picture.name
