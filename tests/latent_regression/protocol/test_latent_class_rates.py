"""Learning rate and participation in latent class regression: when rounds settle, and when not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, Run
from consilience.datasets.simulate_latent_classes import LatentClasses, simulate_latent_classes
from consilience.latent_regression.protocol import LatentClassRegression
from tests.latent_regression.protocol.latent import by_site, federation


def simulated(n_agents: int, seed: int, **design: Any) -> tuple[LatentClasses, np.ndarray]:
    """Events, and which of them train: all but the first of each entity."""
    drawn = simulate_latent_classes(
        rng=np.random.default_rng(seed), n_agents=n_agents, n_entities=4, **design
    )
    return drawn, drawn.events.event > 0


def run_over(drawn: LatentClasses, train: np.ndarray, sizes: list[int], **settings: Any) -> Run:
    frame = drawn.events.to_frame()
    features = tuple(name for name in frame if name.startswith("x"))
    columns = Columns(features=features, target="y", agent="agent", entity="entity")
    method = LatentClassRegression(
        n_classes=drawn.n_classes, start="random", holdout=0.0, **settings
    )
    return method.run(federation(by_site(frame[train], sizes), columns=columns), seed=0)


def loss(run: Run, drawn: LatentClasses, train: np.ndarray, sizes: list[int]) -> float:
    """Mean squared error of the sites' predictors on the first events, over sigma^2."""
    errors = []
    for name, table in by_site(drawn.events.to_frame()[~train], sizes).items():
        found = run.site(name).predictor.predict(
            table.filter(regex="^x"),
            entity=table["entity"].to_numpy(),
            agent=table["agent"].to_numpy(),
        )
        errors.append((found - table["y"].to_numpy()) ** 2)
    return float(np.mean(np.concatenate(errors))) / drawn.sigma**2


FULL_RATE = {
    "learning_rate": 1.0,
    "n_start": 10,
    "noise": 0.05,
    "rounds": 25,
    "settle_rounds": 0,
    "average_rounds": 5,
}


def test_a_full_rate_at_low_noise_is_noticed_and_lowered() -> None:
    """Without adaptation labels jump for ever in most of these; with it they come to rest.

    About 190 first events: the mean of their squared errors over the variance has a standard error
    of sqrt(2 / 190) = .10.
    """
    sizes = [24, 24]
    fixed, adapted, slowed = [], [], []
    for seed in range(4):
        design: Any = {"n_classes": 10, "n_events": 12, "n_features": 5, "sigma": 0.05}
        drawn, train = simulated(48, seed, **design)
        control = run_over(drawn, train, sizes, adapt_rate=False, **FULL_RATE)
        fixed.append(loss(control, drawn, train, sizes))
        assert (control.result.learning_rates == 1.0).all()
        assert not control.result.slowed
        run = run_over(drawn, train, sizes, adapt_rate=True, **FULL_RATE)
        adapted.append(loss(run, drawn, train, sizes))
        slowed.append(run.result.slowed)
        if run.result.slowed:
            assert run.result.learning_rates[-1] < 1.0
            assert any("jumped to and fro" in remark for remark in run.result.remarks)
            assert "jumped to and fro" in run.result.summary()
    collapsed = np.array(fixed) > 1.5
    assert collapsed.sum() >= 2, fixed
    assert np.array(slowed)[collapsed].all()
    assert max(adapted) <= 1.35, adapted


@pytest.mark.parametrize("server_cache", [False, True], ids=["rescaled", "cached"])
def test_few_sites_in_each_round(server_cache: bool) -> None:
    """15% of 40 sites of one agent each, beside a regression with the true labels."""
    sizes = [1] * 40
    design: Any = {"n_classes": 3, "n_events": 10, "n_features": 3, "sigma": 0.5}
    drawn, train = simulated(40, 1, **design)
    run = run_over(
        drawn,
        train,
        sizes,
        participation=0.15,
        learning_rate=0.2,
        server_cache=server_cache,
        rounds=30,
        settle_rounds=10,
        average_rounds=10,
    )
    result = run.result
    assert (result.reported[1:].sum(axis=1) == 6).all()
    assert result.reported[0].all()
    assert result.reported[1:].any(axis=0).all()  # drawn anew in each round
    first = drawn.events.take(~train)
    oracle = np.mean((drawn.expected(first, drawn.oracle(train)) - first.y) ** 2) / drawn.sigma**2
    # Labels of nine events at this noise are uncertain: the oracle knows them.
    assert loss(run, drawn, train, sizes) <= 1.15 * oracle


def test_the_rate_follows_participation() -> None:
    from consilience.latent_regression.protocol.coordinator import default_rate

    assert default_rate(1.0) == 0.5
    assert default_rate(0.15) == pytest.approx(0.2)
    assert default_rate(0.5) == pytest.approx(0.3)
    frame = simulated(6, 0, n_classes=2, n_events=6, n_features=3)[0].events.to_frame()
    assert isinstance(frame, pd.DataFrame)
    method = LatentClassRegression(
        n_classes=2, start="random", participation=0.34, rounds=1, settle_rounds=1, average_rounds=1
    )
    columns = Columns(features=("x1", "x2"), target="y", agent="agent", entity="entity")
    result = method.run(federation(by_site(frame, [2, 2, 2]), columns=columns), seed=0).result
    assert result.learning_rates == pytest.approx([default_rate(0.34)] * 3)


@pytest.mark.parametrize(
    ("policy", "start", "said"),
    [("strict", "random", True), ("strict", "local", False), ("simulation", "random", False)],
)
def test_a_random_start_under_protection_is_told(policy: str, start: str, said: bool) -> None:
    drawn, train = simulated(12, 0, n_classes=2, n_events=12, n_features=3, sigma=0.3)
    frame = drawn.events.to_frame()
    columns = Columns(features=("x1", "x2"), target="y", agent="agent", entity="entity")
    method = LatentClassRegression(
        n_classes=2, start=start, rounds=2, settle_rounds=1, average_rounds=1
    )
    tables = by_site(frame[train], [6, 6])
    run = method.run(federation(tables, columns=columns, policy=policy), seed=0)
    assert any("random start" in remark for remark in run.result.remarks) == said
