"""The page of every method, as people read it: on a desk and on a telephone."""

from __future__ import annotations

from functools import cache

import pytest
from playwright.sync_api import Page

from consilience.protocol import BUILT_IN
from consilience.report import html
from consilience.report.sections import report_of
from tests.exchange.cases import CASES
from tests.report.told import OTHER_PERCENT, check_headline

# The figures that are seen: what they hold, their room, and their smallest letters in pixels.
FIGURES = """() => [...document.querySelectorAll("figure")]
  .filter(f => f.checkVisibility()).map(f => {
  const drawn = [...f.querySelectorAll("svg")].filter(s => s.checkVisibility());
  const sizes = drawn.flatMap(s => [...s.querySelectorAll("text, tspan")]).map(t => {
    const m = t.closest("text").getScreenCTM();
    return parseFloat(getComputedStyle(t).fontSize) * Math.hypot(m.a, m.b); });
  const marks = drawn.flatMap(s => [...s.querySelectorAll("path, text")]
    .filter(e => !e.closest("defs, clipPath"))).map(e => e.getBoundingClientRect().right);
  const box = f.getBoundingClientRect();
  return {drawn: drawn.length, room: f.clientWidth, needs: f.scrollWidth,
    least: Math.min(...sizes), beyond: Math.max(...marks) - box.right}; })"""
OPEN = "document.querySelectorAll('details').forEach(one => one.open = true)"
WIDER = "document.documentElement.scrollWidth - innerWidth"


@cache
def told(case: str) -> str:
    return html.render(CASES[case].record.run)


METHODS = [case for case in CASES if case in BUILT_IN or case.endswith("of sequences")]


def test_every_method_has_a_case() -> None:
    assert set(BUILT_IN) <= set(METHODS)


@pytest.mark.parametrize("case", METHODS)
def test_a_report_fits_a_telephone_and_a_desk(case: str, page: Page) -> None:
    page.set_content(told(case))
    for width in (1200, 400):
        page.set_viewport_size({"width": width, "height": 800})
        first = page.evaluate(FIGURES)
        page.evaluate(OPEN)
        assert page.evaluate(WIDER) <= 0, width
        for figure in (*first[:1], *page.evaluate(FIGURES)):
            assert figure["drawn"] == 1, "its form for the one or for the other"
            assert figure["needs"] <= figure["room"] and figure["beyond"] <= 2, (width, figure)
            assert figure["least"] >= 9, (width, figure)


@pytest.mark.parametrize("case", CASES)
def test_a_headline_is_one_short_sentence_and_percent_has_one_spelling(case: str) -> None:
    run = CASES[case].record.run
    check_headline(report_of(run.info.method).headline(run).text)
    for text in (told(case), run.result.summary(), *run.notes):
        assert not OTHER_PERCENT.search(text), OTHER_PERCENT.findall(text)
