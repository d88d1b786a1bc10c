"""The documentation site: all pages are on it, links follow, faults of built pages are found."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import docs_api, docs_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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
            '<a href="http://example.net">a</a>',
            '<a href="//example.net">a</a>',
            '<a href="javascript:void(0)">a</a>',
            '<a href="https://www.Example.org/#b">a</a>',
            '<a href="https://example.net/a%20b">a</a><a href="https://example.net/a b/">a</a>',
        )
    ):
        (tmp_path / "wrong.html").write_text(wrong)
        assert len(list(docs_site.faults(tmp_path))) == 1, number
    (tmp_path / "wrong.html").unlink()
    (tmp_path / "a.css").write_text('@import "https://example.org/a.css";')
    assert len(list(docs_site.faults(tmp_path))) == 1


def test_other_sites_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path[1:]))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        text = "".join(f'<a href="{here}/{code}#x">a</a>' for code in (200, 403, 404, 200))
        (tmp_path / "a.html").write_text(f'{text}<a href="b.html">b</a>')
        links = docs_site.outward(tmp_path)
        assert links == {f"{here}/{code}": "a.html" for code in (200, 403, 404)}
        assert docs_site.ask(links) == 1
        told = capsys.readouterr()
        assert told.err == f"a.html links to {here}/404, which answers 404\n"
        assert "/403, which answers 403: look" in told.out and "2 of 3 links" in told.out
        assert docs_site.ask({f"{here}/200": "a"}) == docs_site.ask({}) == 0
        closed = {"http://127.0.0.1:1/": "a.html"}
        assert docs_site.ask({f"{here}/200": "a", **closed}) == 1
        server.shutdown()
    capsys.readouterr()
    assert docs_site.ask(closed) == 0 and "is there a network" in capsys.readouterr().out


TABLES = """() => [...document.querySelectorAll("main table")]
  .filter(t => t.scrollWidth > t.parentElement.clientWidth + 1).map(t => {
    const style = getComputedStyle(t.parentElement);
    return [style.overflowX != "auto", style.backgroundImage]; })"""


@pytest.mark.skipif(not docs_site.HTML.is_dir(), reason="the site is not built: make docs")
def test_the_built_site_is_searched_offline(browser: Browser) -> None:
    """In a browser, from files: methods by their names, members, words of guides."""
    asked: list[str] = []
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for words, found in (
            ("FederatedPCA", "api/consilience.FederatedPCA.html#consilience.FederatedPCA"),
            ("methods_paragraph", "api/consilience.Run.html#consilience.Run.methods_paragraph"),
            ("federated-pca", "guide/federated-pca.html"),
            ("decimal comma", "guide/own-tables.html"),
            ("SuperNode", "guide/flower.html"),
        ):
            page.goto(f"{(docs_site.HTML / 'search.html').as_uri()}?q={words}")
            first = page.locator("#search-results li a").evaluate_all
            page.wait_for_function("document.body.innerText.includes('Search finished')")
            assert found in first("all => all.slice(0, 8).map(a => a.getAttribute('href'))"), words
        page.goto(f"{(docs_site.HTML / 'search.html').as_uri()}?q=nosuchwordanywhere")
        page.get_by_text("did not match any documents").wait_for()
        assert page.locator("#search-results li a").count() == 0
    assert asked and all(url.startswith("file:") for url in asked)


@pytest.mark.skipif(not docs_site.HTML.is_dir(), reason="the site is not built: make docs")
def test_the_built_site_fits_a_telephone(page: Page) -> None:
    """Wide tables scroll in a box of their own, with a shadow that says so; the page does not."""
    page.set_viewport_size({"width": 400, "height": 800})
    boxes = 0
    for name in ("index", "genindex", "keys", "guide/reference-averaging", "guide/start"):
        page.goto((docs_site.HTML / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
        for outside, shadow in page.evaluate(TABLES):
            boxes += 1
            assert not outside and "gradient" in shadow, name
    assert boxes > 5


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
