"""Each method keeps the promises of every method, and gives the same bytes on every engine.

What one undisturbed run can tell is asked of its record (`Case.record`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from consilience.protocol.method import get_method
from consilience.protocol.next_study import Asked
from consilience.sites import steward
from consilience.testing import check_method
from consilience.testing.fakes import members
from consilience.testing.recalling import SEED
from tests.exchange.cases import CASES, ENGINES, Case
from tests.rotation import by_turns, rotation

BACKENDS = {
    name: lambda name=name: joblib.parallel_config(backend=name, n_jobs=2)  # type: ignore[misc]
    for name in ("sequential", "threading", "loky")
}
ELSEWHERE = {name: engine for name, engine in ENGINES.items() if name != "local"}
IN_ORDER = {name: case for name, case in CASES.items() if not case.asynchronous}
"""With `wait="any"` the order of arrival is the engine's own."""

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_declared_equals_sent(case: Case) -> None:
    check_method.check_declaration(case.method, case.factory)


@each_case
def test_questions_state_the_parameters_of_the_study(case: Case) -> None:
    """Sites compare them where a study is approved."""
    check_method.check_stated(case.method, case.factory)


@each_case
def test_messages_survive_the_codec(case: Case) -> None:
    check_method.check_codec(case.method, case.factory)


@each_case
def test_same_seed_same_transcript(case: Case) -> None:
    check_method.check_same_seed(case.method, case.factory)


@each_case
def test_pooled_oracle(case: Case) -> None:
    if case.oracle is not None:
        check_method.check_oracle(case.method, case.factory, case.oracle)


@each_case
def test_what_a_result_leads_to_can_be_asked(case: Case) -> None:
    """Other methods, sites and columns are there; every proposal has a reason, in sentences."""
    result, federation = case.record.run.result, case.factory()
    columns, sites = federation.columns, federation.engine.sites
    asked = Asked(case.method.name, case.method.parameters(), columns, sites)
    for one in result.next_studies(asked):
        if isinstance(one, str):
            assert one.endswith((".", "?")), one
            continue
        get_method(one.method).from_parameters(dict(one.parameters))
        assert one.why.endswith((".", "?")) and one.why[0].isupper(), one.why
        assert set(one.sites or ()) <= set(sites)
        assert {*(one.features or ()), *filter(None, [one.target])} <= set(columns.used())


@each_case
def test_tables_of_the_result(case: Case) -> None:
    """Each has a name of its own, plain columns, and is the same after the result was stored."""
    result = case.record.run.result
    back = type(result).from_files(result.to_files())
    fields = {f.name for f in dataclasses.fields(result)}
    assert not fields & set(type(result)._makers())
    for name, frame in result.frames.items():
        heads = list(frame.columns)
        assert all(isinstance(head, str) and head for head in heads), name
        assert len(set(heads)) == len(heads), name
        pd.testing.assert_frame_equal(frame, back.to_frame(name), obj=name)
    listed = [name for name in dir(result) if not name.startswith("_")]
    assert len(listed) < 22 and all(hasattr(result, name) for name in listed)
    assert {*result.frames, "figures", "plot", "summary", "to_frame"} <= set(listed)
    assert len(result.to_frame()) or not result.frames or len(result.frames) > 1


@each_case
def test_figures_of_the_result(case: Case) -> None:
    """Each is drawn in pyplot, so that a notebook shows it, with axes of its own."""
    result = case.record.run.result
    kinds = result.figures
    assert kinds == tuple(case.record.run.figures) and kinds[-1] == "disclosure"
    for kind in {kinds[0], kinds[-1]}:
        axes = np.ravel(result.plot(kind))
        assert len(axes) and all(isinstance(ax, Axes) for ax in axes)
        assert axes[0].figure is plt.gcf()
        plt.close()


@each_case
def test_what_a_site_says_it_answered_is_what_the_coordinator_noted(case: Case) -> None:
    """Field by field, with class, shape, size and verdict: by the records that the site keeps."""
    run = case.record.run
    for name in run.info.sites:
        own = [
            (a.round, a.step, f.field, f.disclosure, f.audience, f.shape, f.bytes, f.verdict)
            for a in steward.answers(case.record.site(name).home, run=run.info.run)
            for f in a.fields
        ]
        noted = [
            (x.round, x.step, x.field, x.disclosure, x.audience, x.shape, x.bytes, x.verdict)
            for x in run.transcript
            if x.site == name and x.direction == "from-site" and x.field
        ]
        assert sorted(own) == sorted(noted)


@by_turns(IN_ORDER, ELSEWHERE, names=("case", "engine"))
def test_every_engine_gives_the_same_bytes(case: Case, engine: Any) -> None:
    """As in one process: there a second run is held against the first, above."""
    federation = case.factory()
    with engine(list(members(federation).values())) as moved:
        found = case.method.run(dataclasses.replace(federation, engine=moved), seed=SEED)
    assert found.result.to_files() == case.record.run.result.to_files()
    lines = [
        [dataclasses.replace(x, run="", digest="", chain="", protection="") for x in run.transcript]
        for run in (case.record.run, found)
    ]
    assert lines[0] == lines[1]
    for here, there in zip(case.record.run.transcript, found.transcript, strict=True):
        reader = "coordinator" if there.direction == "from-site" else there.site
        usual = f"sealed to {reader}" if moved.seals else "open"
        # A field for another site's eyes is for these, whoever carries it.
        assert there.protection == (usual if here.protection == "open" else here.protection)


@by_turns(CASES, BACKENDS, names=("case", "backend"))
def test_order_workers_and_backend_do_not_matter(case: Case, backend: Any) -> None:
    check_method.check_order(case.method, case.factory, backends={"chosen": backend})


@each_case
def test_absence_is_as_stated(case: Case) -> None:
    """Each action at another round, and at another site, by turns."""
    sites = case.record.federation.engine.sites
    site = sites[rotation() // 7 % len(sites)]  # not in step with the rounds
    check_method.check_absence(case.method, case.factory, sites=[site], turn=rotation())


@each_case
def test_resume(case: Case) -> None:
    """`make test-faults` kills every method too, in processes of its own."""
    check_method.check_resume(case.method, case.factory, turn=rotation())


@pytest.mark.nightly
@each_case
def test_absence_in_every_round(case: Case) -> None:
    check_method.check_absence(case.method, case.factory, sites=["birch"])


@pytest.mark.nightly
@each_case
def test_resume_from_everywhere(case: Case) -> None:
    check_method.check_resume(case.method, case.factory)
