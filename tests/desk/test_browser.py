"""The desks in a browser, as people and foreign pages meet them."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Page

from consilience.desk import app as steward_desk
from consilience.desk import coordinator as coordinator_desk
from consilience.desk.app import Desk
from consilience.desk.coordinator import Overview
from consilience.sites import steward
from consilience.sites.policy import Policy
from consilience.sites.site_store import NOT_RELEASED, Job
from tests.cli.test_site import CANARY
from tests.cli.test_site_queue import Held
from tests.cli.workspace import CANARY_NUMBER, ran_once

TOKEN, JOB = "token-of-the-desk", "/job/run-1/2-1"
STEWARD = ("/", JOB, "/studies", "/left", "/account", "/log", "/health")
EVIL = "\"'><img src=x onerror=window.owned=1><script>window.owned=2</script>\u202eold"
FOREIGN = "http://elsewhere.example/page"

# Each text that is seen: its letters' size, and its contrast with what is behind (WCAG 2.2, 1.4.3).
FAINT = """() => {
  const light = c => { const [r, g, b] = c.map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const rgba = c => { const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const behind = e => { for (; e; e = e.parentElement) {
    const found = rgba(getComputedStyle(e).backgroundColor); if (found[3] == 255) return found; }
    return [255, 255, 255]; };
  return [...document.body.querySelectorAll("*")].filter(e => e.checkVisibility()
      && [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())).map(e => {
    const style = getComputedStyle(e);
    const [a, b] = [rgba(style.color), behind(e)].map(c => light(c.slice(0, 3)));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    return [e.textContent.trim().slice(0, 40), ratio, parseFloat(style.fontSize)]; })
    .filter(([, ratio, size]) => ratio < 4.5 || size < 11); }"""
PAPER = "getComputedStyle(document.body).backgroundColor"


@contextmanager
def served(make: Callable[[frozenset[str]], Any]) -> Iterator[str]:
    """A desk on a free port, in a thread; its address with the secret."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        made = make(frozenset((host,)))
        settings = uvicorn.Config(made, log_level="warning", lifespan="off", ws="none")
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://{host}/{TOKEN}"
        finally:
            server.should_exit = True
            thread.join()


class Opened(Held):
    """A held reply, and the desk over it."""

    root: str

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.desk = Desk(self.toml)

    def waits(self) -> list[str]:
        return [job.name for job in self.site.home.jobs.waiting()]

    def approved(self) -> list[str]:
        return list(steward.account(self.site.home, Policy()).approved.values())


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    with served(lambda hosts: steward_desk.app(made.desk, TOKEN, hosts)) as made.root:
        yield made


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    space = ran_once(tmp_path_factory.mktemp("desk"))
    return Overview(space.root, space.root / "runs", space.root / "sites")


def coordinator_pages(desk: Overview) -> tuple[str, ...]:
    run = desk.found()[0]["run"]
    return ("/", "/studies", f"/run/{run}", f"/run/{run}/report")


def looked_at(page: Page, root: str, paths: tuple[str, ...], canary: float) -> None:
    """Every page is readable in light and dark and on a telephone, and has no value of the data."""
    for scheme, width in (("light", 1200), ("dark", 400)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 800})
        for path in paths:
            answer = page.goto(root + path)
            assert answer is not None and answer.ok, path
            assert str(int(canary)) not in page.content(), path
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            if path.endswith("/report"):
                continue  # Its figures have tests of their own; no script runs on it.
            assert page.evaluate(FAINT) == [], path
            shade = page.evaluate(PAPER)
            assert (int(shade.split("(")[1].split(",")[0]) < 60) == (scheme == "dark"), shade
            assert page.locator("h1").is_visible() and page.locator("main h2").first.is_visible()


def test_pages_of_the_steward_are_readable(opened: Opened, page: Page) -> None:
    looked_at(page, opened.root, STEWARD, CANARY)
    page.goto(f"{opened.root}/")
    page.get_by_role("link", name="run-1/2-1").click()
    for words in ("testing.class-sums", "What would leave", "aggregate", "2x2"):
        assert page.get_by_text(words).first.is_visible()


def test_pages_of_the_coordinator_are_readable(overview: Overview, page: Page) -> None:
    with served(lambda hosts: coordinator_desk.app(overview, TOKEN, hosts)) as root:
        looked_at(page, root, coordinator_pages(overview), CANARY_NUMBER)
        page.goto(f"{root}/")
        page.locator("main a").first.click()
        assert page.get_by_text("lyon").first.is_visible()


def to(page: Page, words: str) -> None:
    """Go to a control with the tabulator alone; where one is must be seen."""
    for _ in range(40):
        page.keyboard.press("Tab")
        here = page.evaluate("document.activeElement.labels?.[0]?.innerText"
                             " || document.activeElement.innerText || ''")  # fmt: skip
        if words in here:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"
            return
    raise AssertionError(f"no way to {words}")


def press(page: Page, words: str, by: str) -> None:
    if by == "keyboard":
        to(page, words)
    with page.expect_navigation():
        if by == "mouse":
            page.get_by_role("button", name=words).click()
        else:
            page.keyboard.press("Enter")


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_release(opened: Opened, page: Page, by: str) -> None:
    page.goto(opened.root + JOB)
    press(page, "Release", by)
    assert "Released run-1/2-1" in page.get_by_role("status").inner_text()
    assert opened.said().status == "reply" and opened.waits() == []


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_refuse(opened: Opened, page: Page, by: str) -> None:
    page.goto(opened.root + JOB)
    if by == "mouse":
        page.get_by_label("Why not").fill("too fine")
    else:
        to(page, "Why not")
        page.keyboard.type("too fine")
    press(page, "Refuse", by)
    assert "run-1/2-1" in page.get_by_role("status").inner_text()
    assert (opened.said().status, opened.said().reason) == ("refused", NOT_RELEASED)
    (job,) = [job for job in opened.site.home.jobs.all() if job.round == 2]
    assert job.facts["reason"] == "too fine"


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_approve(opened: Opened, page: Page, by: str) -> None:
    text = opened.space.study_toml.read_text()
    page.goto(f"{opened.root}/studies")
    if by == "mouse":
        page.get_by_label("The study file").fill(text)
    else:
        to(page, "The study file")
        page.keyboard.insert_text(text)
    press(page, "Look at it first", by)
    assert page.get_by_text("mean-and-sd").first.is_visible() and opened.approved() == []
    press(page, "Approve", by)
    assert page.get_by_role("status").is_visible()
    assert opened.approved() == ["heights"]


# --- who must not decide, and names that must not act


def forms(root: str, study: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What a foreign page may send, with the secret and without."""
    for start in (root, root.removesuffix(f"/{TOKEN}"), f"{root.removesuffix(TOKEN)}guessed"):
        yield f"{start}{JOB}/release", {}
        yield f"{start}{JOB}/refuse", {"reason": "foreign"}
        yield f"{start}/studies/approve", {"text": study}


def test_a_foreign_page_decides_nothing(opened: Opened, page: Page, tmp_path: Path) -> None:
    """Even one that knows the whole address: by a form, by a script, and in a frame."""
    before, study = opened.waits(), opened.space.study_toml.read_text()
    page.route(f"{FOREIGN}*", lambda route: route.fulfill(body="<h1>Foreign</h1>"))
    file = tmp_path / "foreign.html"
    file.write_text("<h1>Foreign</h1>")
    send = """([action, fields]) => { const form = document.createElement("form");
      form.method = "post"; form.action = action;
      for (const [name, value] of Object.entries(fields)) {
        const input = document.createElement("input");
        [input.type, input.name, input.value] = ["hidden", name, value]; form.append(input); }
      document.body.append(form); form.submit(); }"""
    for address in (FOREIGN, file.as_uri()):
        for action, fields in forms(opened.root, study):
            page.goto(address)
            with page.expect_navigation() as went:
                page.evaluate(send, [action, fields])
            assert went.value.status == (403 if TOKEN in action else 404), action
        page.goto(address)
        for action, fields in forms(opened.root, study):
            page.evaluate(
                "([to, fields]) => fetch(to, {method: 'POST', mode: 'no-cors',"
                " body: new URLSearchParams(fields)}).catch(() => 0)",
                [action, fields],
            )
        # A page of the desk under one's own button would be clicked by the steward.
        page.evaluate(
            "to => { const frame = document.createElement('iframe'); frame.src = to;"
            " document.body.append(frame); return new Promise(done => frame.onload = done); }",
            opened.root + JOB,
        )
        assert "Release" not in "".join(frame.content() for frame in page.frames[1:])
    assert opened.waits() == before == ["run-1/2-1"] and opened.approved() == []


def spoilt(value: Any) -> Any:
    """The facts of a page, with a hostile end of every name."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, Mapping):
        return {key: spoilt(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [spoilt(one) for one in value]
    if isinstance(value, Job):
        return dataclasses.replace(value, run=spoilt(value.run), facts=spoilt(value.facts))
    return value


def inert(page: Page, address: str) -> None:
    answer = page.goto(address)
    assert answer is not None and answer.status == 200, address
    nothing_ran(page)
    assert "<img src=x" in page.locator("main").inner_text(), address


def nothing_ran(page: Page) -> None:
    assert page.locator("script, img, iframe, object, embed, [onerror]").count() == 0
    assert page.evaluate("window.owned") is None
    assert "\u202e" not in page.content()


def test_hostile_names_stay_inert_on_the_steward_s_desk(
    opened: Opened, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.site.home.log("sent", run=EVIL, round=1)
    page.goto(f"{opened.root}/?said={EVIL}")
    nothing_ran(page)
    inert(page, f"{opened.root}/log")
    text = opened.space.study_toml.read_text().replace('"x"', f"'''{EVIL[2:]}'''")
    page.goto(f"{opened.root}/studies")
    page.get_by_label("The study file").fill(text.replace("\u202e", ""))
    page.get_by_role("button", name="Look at it first").click()
    nothing_ran(page)
    assert "<img src=x" in page.locator("main").inner_text()
    page.goto(f"{opened.root}/studies")
    page.get_by_label("The study file").fill(f"{EVIL}]")
    page.get_by_role("button", name="Look at it first").click()
    nothing_ran(page)
    waiting, reply = opened.desk.waiting(), opened.desk.reply("run-1/2-1")
    words = ("asked", "fields", "job", "since")
    reply |= {name: spoilt(reply[name]) for name in words}
    monkeypatch.setattr(Desk, "waiting", lambda _: spoilt(waiting))
    monkeypatch.setattr(Desk, "reply", lambda *_: reply)
    inert(page, f"{opened.root}/")
    inert(page, opened.root + JOB)


def test_hostile_names_stay_inert_on_the_coordinator_s_desk(overview: Overview, page: Page) -> None:
    class Hostile(Overview):
        def found(self) -> list[dict[str, Any]]:
            said = {"state": "failed", "reason": EVIL, "method": EVIL, "run": EVIL}
            sites = {"sites": [EVIL], "absent": [], "answered": [], "held": {EVIL: [EVIL]}}
            return [{**overview.found()[0], **said, **sites}]

    (overview.studies / "evil<b>.toml").write_text(f'name = "{EVIL[2:]}"]', encoding="utf-8")
    desk = Hostile(overview.studies, overview.runs, overview.sites)
    with served(lambda hosts: coordinator_desk.app(desk, TOKEN, hosts)) as root:
        inert(page, f"{root}/")
        page.goto(f"{root}/studies")
        nothing_ran(page)
