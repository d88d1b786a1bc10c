"""Each engine keeps the promises of every engine."""

from __future__ import annotations

from typing import Any

import pytest

from consilience.testing import check_engine
from tests.exchange.cases import ENGINES

CHECKS = (
    check_engine.check_round_trip,
    check_engine.check_order,
    check_engine.check_repeated_asks,
    check_engine.check_waiting_for_any,
    check_engine.check_large_messages,
    check_engine.check_refusals,
    check_engine.check_errors,
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_promise(engine: str, check: Any) -> None:
    check(ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
def test_silent_sites(engine: str) -> None:
    check_engine.check_silent_sites(ENGINES[engine], deadline=2.0)
