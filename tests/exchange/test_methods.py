"""Each method keeps the promises of every method, and gives the same bytes on every engine."""

from __future__ import annotations

import dataclasses

import joblib
import pytest

from consilience.testing import check_method
from consilience.testing.fakes import members
from tests.exchange.cases import CASES, ENGINES, Case

BACKENDS = {
    name: lambda name=name: joblib.parallel_config(backend=name, n_jobs=2)  # type: ignore[misc]
    for name in ("sequential", "threading", "loky")
}

VARIANTS = (  # of methods whose other cases lose their sites below; these do so in every round
    "ensemble-clustering by held-out entries",
    "ensemble-clustering of categories",
    "meta-clustering by held-out loss",
)

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_question = pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name) for name, case in CASES.items() if name not in VARIANTS],
)
each_long, each_short = (
    pytest.mark.parametrize(
        "case", [pytest.param(case, id=name) for name, case in CASES.items() if case.long == long]
    )
    for long in (True, False)
)


@each_case
def test_declared_equals_sent(case: Case) -> None:
    check_method.check_declaration(case.method, case.factory)


@each_case
def test_messages_survive_the_codec(case: Case) -> None:
    check_method.check_codec(case.method, case.factory)


@pytest.mark.medium
@each_case
def test_same_seed_same_transcript(case: Case) -> None:
    check_method.check_same_seed(case.method, case.factory)


@pytest.mark.slow
@each_case
def test_order_workers_and_backend_do_not_matter(case: Case) -> None:
    check_method.check_order(case.method, case.factory, backends=BACKENDS)


@pytest.mark.slow
@each_question
def test_absence_is_as_stated(case: Case) -> None:
    actions = check_method.ABSENCES[:: 2 if case.long else 1]
    check_method.check_absence(
        case.method, case.factory, actions=actions, sites=["birch"], every_round=not case.long
    )


def test_variants_are_among_the_long_cases() -> None:
    assert all(CASES[name].long for name in VARIANTS)


@pytest.mark.slow
@each_short
def test_resume(case: Case) -> None:
    check_method.check_resume(case.method, case.factory)


@pytest.mark.long
@each_long
def test_absence_in_every_round(case: Case) -> None:
    check_method.check_absence(case.method, case.factory, sites=["birch"])


@pytest.mark.slow
@pytest.mark.long
@each_long
def test_resume_of_long_runs(case: Case) -> None:
    """`make test-faults` kills every method too, in processes of its own."""
    check_method.check_resume(case.method, case.factory)


@each_case
def test_pooled_oracle(case: Case) -> None:
    if case.oracle is not None:
        check_method.check_oracle(case.method, case.factory, case.oracle)


@each_case
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_the_same_bytes(case: Case, engine: str) -> None:
    if case.asynchronous:
        pytest.skip('wait="any": the order of arrival is the engine\'s own')
    wanted = case.method.run(case.factory(), seed=3)
    federation = case.factory()
    with ENGINES[engine](list(members(federation).values())) as moved:
        found = case.method.run(dataclasses.replace(federation, engine=moved), seed=3)
    assert found.result.to_files() == wanted.result.to_files()
    lines = [
        [dataclasses.replace(x, run="", digest="", chain="") for x in run.transcript]
        for run in (wanted, found)
    ]
    assert lines[0] == lines[1]
