from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.report import html
from consilience.sites.policy import Policy
from consilience.testing.fakes import federation_of
from tests.reference.moments_naive import pooled_moments

RNG = np.random.default_rng(4)
TABLES = {f"s{i}": RNG.normal(size=(30 + 7 * i, 3)) * [1, 5, 0.1] + i for i in range(3)}


def test_the_pooled_answer() -> None:
    result = MeanAndSD().run(federation_of(TABLES, names=["a", "b", "c"]), seed=0).result
    for j in range(3):
        n, mean, variance = pooled_moments([x[:, j] for x in TABLES.values()])
        assert result.n == n == 111
        assert result.mean[j] == pytest.approx(mean, rel=1e-13)
        assert result.sd[j] == pytest.approx(np.sqrt(variance * n / (n - 1)), rel=1e-13)


def test_large_offsets_cost_no_digits() -> None:
    shifted = {name: x + 1e8 for name, x in TABLES.items()}
    plain, far = (MeanAndSD().run(federation_of(t), seed=0).result for t in (TABLES, shifted))
    np.testing.assert_allclose(far.sd, plain.sd, rtol=1e-6)


def test_summary_and_table() -> None:
    result = MeanAndSD().run(federation_of(TABLES, names=["a", "b", "c"]), seed=0).result
    assert result.summary().startswith("111 rows. a: ")
    frame = result.to_frame()
    assert list(frame.index) == ["a", "b", "c"]
    np.testing.assert_array_equal(frame["sd"], result.sd)


@pytest.mark.parametrize(("n", "stops"), [(9, True), (10, False)])
def test_a_small_site(n: int, stops: bool) -> None:
    tables = {**TABLES, "tiny": RNG.uniform(1, 2, size=(n, 3))}
    if stops:
        with pytest.raises(QuorumError, match="tiny refused: the gate refused field 'n'"):
            MeanAndSD().run(federation_of(tables), seed=0)
        run = MeanAndSD().run(federation_of(tables, quorum=3), seed=0)
        assert run.result.n == 111
        assert any("tiny refused" in note for note in run.notes)
    else:
        assert MeanAndSD().run(federation_of(tables), seed=0).result.n == 111 + n


def test_a_rare_indicator_is_withheld_and_the_rest_is_told() -> None:
    tables = {name: np.c_[x, np.arange(len(x)) < 4] for name, x in TABLES.items()}
    run = MeanAndSD().run(federation_of(tables), seed=0)
    plain = MeanAndSD().run(federation_of(TABLES), seed=0)
    assert np.isnan([run.result.mean[3], run.result.sd[3]]).all()
    np.testing.assert_array_equal(run.result.mean[:3], plain.result.mean)
    assert any("withheld x3" in note for note in run.notes)


def test_a_column_that_one_site_withholds_is_that_of_the_others() -> None:
    """There half of the rows have the value; at one site four."""
    tables = {
        name: np.c_[x, np.arange(len(x)) < (4 if k == 0 else len(x) / 2)]
        for k, (name, x) in enumerate(TABLES.items())
    }
    run = MeanAndSD().run(federation_of(tables), seed=0)
    others = np.concatenate(list(tables.values())[1:])[:, 3]
    assert run.result.mean[3] == pytest.approx(others.mean(), rel=1e-12)
    assert run.result.sd[3] == pytest.approx(others.std(ddof=1), rel=1e-12)
    # Not of all rows: those of the site that withheld are not in the mean.
    assert list(run.result.rows) == [111, 111, 111, len(others)]
    error = others.std(ddof=1) / np.sqrt(len(others))
    assert f"{error:.4f}</td>" in html.render(run)


def test_a_rare_indicator_is_told_where_one_person_holds_all() -> None:
    tables = {name: np.c_[x, np.arange(len(x)) < 4] for name, x in TABLES.items()}
    simulated = federation_of(tables, policy=Policy.from_settings("simulation"))
    run = MeanAndSD().run(simulated, seed=0)
    assert run.result.mean[3] == pytest.approx(12 / 111)
    assert any(note.startswith("Simulation") for note in run.notes)
