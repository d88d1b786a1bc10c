from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import QuorumError
from consilience.methods.mean_and_sd import MeanAndSD
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


def test_a_rare_indicator_stops_the_toy() -> None:
    tables = {name: np.c_[x, np.arange(len(x)) < 4] for name, x in TABLES.items()}
    with pytest.raises(QuorumError, match="fewer than 10 records"):
        MeanAndSD().run(federation_of(tables), seed=0)
    simulated = federation_of(tables, policy=Policy.from_settings("simulation"))
    run = MeanAndSD().run(simulated, seed=0)
    assert run.result.mean[3] == pytest.approx(12 / 111)
    assert any(note.startswith("Simulation") for note in run.notes)
