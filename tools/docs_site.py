"""Build the documentation site into build/site: lay pages out, let Sphinx make HTML, check it.

The pages of the repository are the site's pages: they are copied, and their links follow them to
where they stand on the site. Front page and openings of sections are made of docs/index.md; the
order is docs/site/nav.toml. Needs the extra `docs`; fetches nothing.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tools import docs_api, notebooks

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs" / "site"
BUILD = ROOT / "build" / "site"
PAGES, HTML = BUILD / "pages", BUILD / "html"
MADE = ("api", "keys")
"""Pages of `nav.toml` that are made from the code."""

_WIDE = re.compile(r"(methods|evidence)/|reference/faults\.|gallery\.|reference\.md")
"""Pages of wide tables: they do without the list of their headings at the right."""

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
_OPTION = re.compile(r"^(:link: )(\S+\.md)$", re.MULTILINE)


# ------------------------------------------------------------------------- pages of the repository


def place(path: str) -> str:
    """Where a file of the repository stands on the site, without ending.

    Pages have a place by their kind; of any other file the site shows the text.
    """
    if path in ("docs/index.md", "README.md", "docs/site/front.md"):
        return "index"
    if path in MADE:
        return path
    if path.startswith("docs/") and path.endswith(".md"):
        inner = path.removeprefix("docs/").removesuffix(".md")
        return inner.removesuffix("/README") + "/index" if inner.endswith("/README") else inner
    for pattern, there in (
        (r"examples/(\w+)(?:/README\.md|\.ipynb)", r"examples/\1"),
        (r"replications/(\w+)/(\w+)/README\.md", r"evidence/\1/\2"),
        (r"benchmarks/README\.md", "evidence/benchmarks"),
        (r"deploy/README\.md", "guide/containers"),
        (r"src/consilience/(\w+)/README\.md", r"develop/\1"),
        (r"CONTRIBUTING\.md", "develop/contributing"),
        (r"CHANGELOG\.md", "develop/changes"),
        (r"SECURITY\.md", "develop/security"),
    ):
        if re.fullmatch(pattern, path):
            return re.sub(pattern, there, path)
    return f"source/{path}"


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Change what does not stand in blocks of code."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def target(link: str, page: str) -> str:
    """The file of the repository that a link of a page leads to; a folder is its README."""
    path = os.path.normpath(os.path.join(os.path.dirname(page), link))
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    if path.startswith("..") or not (ROOT / path).is_file():
        raise SystemExit(f"{page} links to {link}, which is not there")
    return path


def moved(text: str, page: str, seen: set[str]) -> str:
    """Text of a page with its links as they are on the site; adds their targets to `seen`."""
    here = os.path.dirname(place(page)) or "."

    def link(match: re.Match[str]) -> str:
        name, hash_, anchor = match[2].partition("#")
        if not name or re.match(r"/|[a-z]+:", name):
            return match[0]
        there = target(name, page)
        if there.startswith("docs/images/"):
            return f"{match[1]}/{there.removeprefix('docs/')}{match[3]}"
        seen.add(there)
        where = place(there)
        if there == "docs/index.md" and anchor in chapters():
            where, hash_, anchor = chapters()[anchor], "", ""
        relative = os.path.relpath(where, here)
        return f"{match[1]}{relative}.md{hash_}{anchor}{match[3]}"

    def option(match: re.Match[str]) -> str:
        there = target(match[2], page)
        seen.add(there)
        return f"{match[1]}/{place(there)}"

    return outside_fences(_OPTION.sub(option, text), lambda part: _LINK.sub(link, part))


@functools.cache
def chapters() -> dict[str, str]:
    """Pages that are made of chapters of docs/index.md, by the anchor of the chapter there."""
    listed = tomllib.loads((SITE / "nav.toml").read_text("utf-8"))["section"]
    made = [section for section in listed if section.get("chapter")]
    return {one["chapter"].lower().replace(" ", "-"): one["name"] for one in made}


def chapter(text: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise SystemExit(f"docs/index.md or README.md has no chapter {heading!r}")
    return found[1].strip() + "\n"


def rows(text: str) -> list[list[str]]:
    """Cells of the first table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def cards(index: str) -> str:
    """The questions of docs/index.md, each a card that leads to its first guide."""
    made = ["::::{grid} 1 1 2 3\n:gutter: 3\n"]
    for question, method, guides in rows(chapter(index, "Methods")):
        first = _LINK.search(guides)
        if first is None:
            raise SystemExit(f"docs/index.md has no guide for {question!r}")
        name = method.split(",")[0].split(";")[0]
        made += [f":::{{grid-item-card}} {question}", f":link: {first[2]}", ":link-type: doc"]
        made += [
            ":class-card: question",
            "",
            name if name.startswith("`") else "sequences and categories",
            ":::",
            "",
        ]
    return "\n".join([*made, "::::", ""])


# --------------------------------------------------------------------------- laying out


def sections() -> list[dict[str, Any]]:
    """Sections as docs/site/nav.toml has them, patterns filled with what is named nowhere."""
    listed: list[dict[str, Any]] = tomllib.loads((SITE / "nav.toml").read_text("utf-8"))["section"]
    named = [p for s in listed for group in s["groups"].values() for p in group if "*" not in p]
    taken = {*named, *(section["page"] for section in listed if "page" in section)}
    for path in sorted(taken - {*MADE}):
        if not (ROOT / path).is_file():
            raise SystemExit(f"docs/site/nav.toml names {path}, which is not there")
    for section in listed:
        for title, entries in section["groups"].items():
            found: list[str] = []
            for entry in entries:
                there = [p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob(entry))]
                found += [entry] if "*" not in entry else [p for p in there if p not in taken]
            taken.update(found)
            section["groups"][title] = found
    return listed


def pages() -> dict[str, str]:
    """All pages of the site by their names with ending: text of Markdown or reStructuredText."""
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    made: dict[str, str] = {}
    seen: set[str] = set()
    listed = sections()
    openings = {}
    for section in listed:
        tree = "\n".join(toctree(section["groups"]))
        if page := section.get("page"):
            openings[page] = tree
            seen.add(page)
            continue
        text = f"# {section['title']}\n\n"
        if section["name"] == "questions":
            text += cards(index)
        elif section["name"] == "gallery":
            text += gallery(index) + "\n## Examples with real data\n\n"
        if (wanted := section["chapter"]) and section["name"] != "questions":
            text += chapter(index, wanted)
        elif section["name"] == "reference":
            text += docs_api.opening()
        # As if the text stood in docs/index.md, whose words these are.
        made[f"{section['name']}.md"] = moved(text, "docs/index.md", seen) + tree
    seen.update(p for s in listed for group in s["groups"].values() for p in group if p not in MADE)
    front = (SITE / "front.md").read_text("utf-8")
    front = moved(front, "docs/site/front.md", seen)
    front = front.replace("<!-- questions -->", moved(cards(index), "docs/index.md", seen))
    front = front.replace("<!-- example -->", example())
    names = [place(s["page"]) if "page" in s else s["name"] for s in listed]
    titled = [f"{section['title']} <{name}>" for section, name in zip(listed, names, strict=True)]
    made["index.md"] = front + "\n".join(["", "```{toctree}", ":hidden:", "", *titled, "```", ""])
    # Pages that are linked from pages are pages, however far away.
    done = {"docs/index.md", "README.md"}
    while todo := sorted(seen - done):
        for path in todo:
            done.add(path)
            if place(path).startswith("source/"):
                made[f"{place(path)}.md"] = shown(path)
            else:
                file = ROOT / path
                book = file.suffix == ".ipynb"
                text = notebooks.page(file) if book else file.read_text("utf-8")
                text = moved(text, path, seen)
                made[f"{place(path)}.md"] = text + openings.get(path, "") + inner_tree(path)
    for name, text in made.items():
        if _WIDE.match(name) and not text.startswith("---"):
            made[name] = f"---\nhtml_theme.sidebar_secondary.remove: true\n---\n\n{text}"
    return made | docs_api.pages()


def example() -> str:
    """The example of the README, with what it prints: a test runs it there."""
    text = chapter((ROOT / "README.md").read_text("utf-8"), "In Python")
    return "\n".join(fence[0] for fence in _FENCE.finditer(text))


def toctree(groups: dict[str, list[str]]) -> Iterator[str]:
    """Lists of pages, hidden: the pages beside show them."""
    for title, paths in groups.items():
        if not paths:
            continue
        inner = [place(path) for path in paths if path != "api"]
        inner += docs_api.group_pages() if "api" in paths else []
        head = ["", "```{toctree}", ":hidden:"] + (
            [f":caption: {title}"] if len(groups) > 1 else []
        )
        yield from [*head, "", *(f"/{name}" for name in inner), "```", ""]


def inner_tree(path: str) -> str:
    """The list of decisions stands under the page of all of them."""
    if path != "docs/adr/README.md":
        return ""
    return "\n".join(["", "```{toctree}", ":hidden:", ":glob:", "", "0*", "```", ""])


def shown(path: str) -> str:
    """Page with the text of a file."""
    text = (ROOT / path).read_text("utf-8")
    language = {"py": "python", "toml": "toml"}.get(path.rpartition(".")[2], "none")
    about = "orphan: true\nno-search: true\nhtml_theme.sidebar_secondary.remove: true"
    return f"---\n{about}\n---\n# {path}\n\n``````{language}\n{text}``````\n"


def gallery(index: str) -> str:
    """One picture for each demonstration, with the command that makes the report."""
    from consilience.cli.demo import DEMOS

    made = ["::::{grid} 1 1 2 3\n:gutter: 4\n"]
    for name, demo in DEMOS.items():
        made.append(f":::{{grid-item-card}} {demo.about}")
        picture = f"images/report-{name}.webp"
        if (ROOT / "docs" / picture).exists():
            alt = f"First page of a report: {demo.method or name}"
            made += [f":img-top: /{picture}", f":img-alt: {alt}"]
        made += [f":link: {guide(name, demo.method or name, index)}", ":link-type: doc"]
        made += [":class-card: report", "", f"`consilience demo {name}`", ":::", ""]
    return "\n".join([*made, "::::", ""])


def guide(name: str, method: str, index: str) -> str:
    """The guide of a demonstration, from docs/."""
    if (ROOT / "docs" / "guide" / f"{name}.md").exists():
        return f"guide/{name}.md"
    for _, methods, guides in rows(chapter(index, "Methods")):
        if f"`{method}`" in methods and (first := _LINK.search(guides)):
            return first[2]
    raise SystemExit(f"docs/index.md names no guide for {method!r}")


def lay_out(folder: Path) -> None:
    """Write all pages; what has not changed keeps its time, so that Sphinx builds it no more."""
    wanted = {name: text.encode() for name, text in pages().items()}
    for picture in sorted((ROOT / "docs" / "images").iterdir()):
        wanted[f"images/{picture.name}"] = picture.read_bytes()
    for name, there in (("conf.py", ""), ("scorer.js", ""), ("style.css", "_own/")):
        wanted[f"{there}{name}"] = (SITE / name).read_bytes()
    for name, content in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()


# --------------------------------------------------------------------------- checks of the HTML


class _Page(HTMLParser):
    """What a browser loads for a page, where its links lead, and its places."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.loads += re.findall(r"""(?:import\(|from |src ?= ?)["'`]([^"'`]+)""", data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        found = {name: value or "" for name, value in attrs}
        self.places.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a":
            self.links.append(found.get("href", ""))
        elif tag != "form":
            self.loads += [found[n] for n in ("src", "srcset", "data", "poster") if n in found]
            self.loads += [found["href"]] if tag == "link" and "href" in found else []
            self.loads += re.findall(r"url\(([^)]*)\)", found.get("style", ""))


def read_pages(folder: Path) -> dict[Path, _Page]:
    """What built pages load, and where they lead."""
    read: dict[Path, _Page] = {}
    for path in sorted(folder.rglob("*.html")):
        read[path] = _Page()
        read[path].feed(path.read_text("utf-8"))
    return read


def spelled(link: str) -> str:
    """What two links to one page of another site have in common, however they are written."""
    parts = urlsplit(link)
    host = parts.netloc.lower().removeprefix("www.")
    return f"{host}{unquote(parts.path).rstrip('/')}?{parts.query}"


def faults(folder: Path) -> Iterator[str]:
    """Say what is wrong with built pages: loads from a network, links that lead nowhere.

    Of links to other sites the form alone: https, and one spelling for one page.
    """
    read = read_pages(folder)
    spellings: dict[str, str] = {}
    for path in sorted(folder.rglob("*.css")):
        for url in re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", path.read_text("utf-8")):
            if re.match(r"(https?:)?//", url):
                yield f"{path.relative_to(folder)} loads {url}"
    for path, page in read.items():
        where = path.relative_to(folder)
        yield from (f"{where} loads {u}" for u in page.loads if re.match(r"\s*(https?:)?//", u))
        for link in page.links:
            parts = urlsplit(link)
            if not link or parts.scheme == "mailto":
                continue
            if parts.scheme or parts.netloc:
                whole = link.partition("#")[0]
                if parts.scheme != "https" or not parts.netloc:
                    yield f"{where} links to {link}, which is no address of https"
                elif (other := spellings.setdefault(spelled(link), whole)) != whole:
                    yield f"{where} links to {link}, which is {other} elsewhere"
                continue
            there = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if not there.exists():
                yield f"{where} links to {link}"
            elif there in read and unquote(parts.fragment) not in {"", *read[there].places}:
                yield f"{where} links to {link}, and that page has no such place"


def outward(folder: Path) -> dict[str, str]:
    """Links of built pages to other sites, each with the first page that has it."""
    found: dict[str, str] = {}
    for path, page in read_pages(folder).items():
        for link in page.links:
            if urlsplit(link).netloc:
                found.setdefault(link.partition("#")[0], str(path.relative_to(folder)))
    return found


def ask(links: Mapping[str, str], seconds: float = 20.0) -> int:
    """Ask other sites for the pages that are linked, and say what they answer.

    Returns 1 where a page is gone, or a site is silent while others answer; without a network
    nobody answers, and nothing is known.
    """
    gone, silent = [], []
    for link, where in links.items():
        request = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0"})
        try:
            urllib.request.urlopen(request, timeout=seconds).close()
        except urllib.error.HTTPError as error:
            said = f"{where} links to {link}, which answers {error.code}"
            if error.code in (404, 410):
                gone.append(said)
            else:
                print(f"{said}: look at it in a browser")
        except OSError:
            silent.append(f"{where} links to {link}, which does not answer")
    if links and len(silent) == len(links):
        print(f"none of {len(links)} links answers: is there a network here?")
        return 0
    for said in (*gone, *silent):
        print(said, file=sys.stderr)
    print(f"{len(links) - len(gone) - len(silent)} of {len(links)} links to other sites answer")
    return int(bool(gone or silent))


def main(arguments: list[str] | None = None) -> int:
    """Build and check; 1 where a page has a fault or Sphinx warns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--anew", action="store_true", help="forget what was built before")
    parser.add_argument("--links", action="store_true", help="ask what built pages link elsewhere")
    given = parser.parse_args(arguments)
    if given.links:
        return ask(outward(HTML))
    try:
        from sphinx.cmd.build import build_main
    except ModuleNotFoundError:
        raise SystemExit("Sphinx is not installed: 'make docs' installs what it needs") from None

    if given.anew:
        shutil.rmtree(BUILD, ignore_errors=True)
    lay_out(PAGES)
    flags = ["-q", "-W", "--keep-going", "-j", "auto", "-b", "html", "-d", str(BUILD / "trees")]
    if build_main([*flags, str(PAGES), str(HTML)]):
        return 1
    found = list(faults(HTML))
    for sentence in found:
        print(sentence, file=sys.stderr)
    print(f"{len(list(HTML.rglob('*.html')))} pages: {HTML / 'index.html'}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
