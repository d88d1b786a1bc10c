"""Latent class regression over sites: draws and sums of the rounds, step by step."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from consilience import Run
from consilience.engines.local import LocalEngine
from consilience.latent_regression.protocol import coordinator
from consilience.latent_regression.protocol import events as site_events
from consilience.latent_regression.protocol.coordinator import BETAS, Rounds
from consilience.testing.fakes import members
from tests.latent_regression.protocol.latent import by_site, events, federation, study
from tests.reference.latent_class_rounds import Textbook


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_the_same_events_are_held_out_in_every_step(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[tuple[bytes, bytes]]] = {}
    draw = site_events._draws

    def watched(site, *given):
        keys, held = draw(site, *given)
        seen.setdefault(site.site, []).append((keys.tobytes(), held.tobytes()))
        return keys, held

    monkeypatch.setattr(site_events, "_draws", watched)
    tables = by_site(events(8, n_entities=8, n_events=10), [4, 4])
    study(holdout=0.2).run(federation(tables, policy), seed=1)
    assert set(seen) == {"site-0", "site-1"}
    for steps in seen.values():
        assert len(steps) == 4 + 7  # offer, begin, curve, conclude, and rounds
        assert len(set(steps)) == 1
        assert np.frombuffer(steps[0][1], dtype=bool).any()


# --------------------------------------------------------------------------- textbook, and grouping

SAME = (
    "slopes",
    "coefficient_errors",
    "intercepts",
    "mean",
    "covariance",
    "class_sizes",
    "class_events",
    "class_shares",
    "sigma",
    "delta",
    "beta",
    "trace_sigma",
    "trace_classes",
    "trace_log_marginal",
    "learning_rates",
    "merge_path",
)


def labels_of(run: Run) -> dict[tuple[str, str], tuple[int, float]]:
    """Class and its probability by agent and entity, whatever site they are at."""
    found = {}
    for name in run.result.sites:
        table = run.site(name).to_frame("classes")
        for line in table.itertuples():
            found[str(line.agent), str(line.entity)] = (int(line[3]), float(line.probability))
    return found


@pytest.mark.parametrize("adapt_rate", [False, True], ids=["fixed rate", "adapted rate"])
@pytest.mark.parametrize("concentration", ["exact", "shortcut"])
def test_everybody_present_is_the_textbook_loop(concentration: str, adapt_rate: bool) -> None:
    """The same schedule over all events in one place, for 8 agents at 2 sites and at 2 others."""
    frame = events(8, n_classes=3, sigma=0.5)
    wanted = Textbook(
        frame[["x1", "x2"]].to_numpy(),
        frame["y"].to_numpy(),
        frame["entity"].to_numpy(),
        frame["agent"].to_numpy(),
        n_classes=3,
        n_start=6,
        seed=7,
        rounds=(3, 3, 3),
        concentration=concentration,
    ).fit()
    method = study(
        n_classes=3,
        settle_rounds=3,
        average_rounds=3,
        concentration=concentration,
        adapt_rate=adapt_rate,
    )
    for sizes in ([4, 4], [3, 5]):
        run = method.run(federation(by_site(frame, sizes)), seed=7)
        for name, value in wanted.items():
            if name != "probabilities":
                found = getattr(run.result, {"coefficients": "slopes"}.get(name, name))
                np.testing.assert_allclose(found, value, rtol=1e-10, atol=1e-12, err_msg=name)
        told = labels_of(run)
        pairs = list(dict.fromkeys(zip(frame["agent"], frame["entity"], strict=True)))
        best = wanted["probabilities"]
        assert [told[pair][0] for pair in pairs] == (best.argmax(axis=1) + 1).tolist()
        chances = [told[pair][1] for pair in pairs]
        np.testing.assert_allclose(chances, best.max(axis=1), rtol=1e-9)


def test_grouping_of_agents() -> None:
    """Bit for bit where sites are nodes of the tree, to rounding elsewhere."""
    frame = events(8, n_classes=3, sigma=0.5)
    method = study(n_classes=3, settle_rounds=3)
    first = method.run(federation(by_site(frame, [8])), seed=3)
    for sizes in ([4, 4], [2, 2, 2, 2], [1] * 8, [3, 5], [1, 6, 1]):
        other = method.run(federation(by_site(frame, sizes)), seed=3)
        node = len(set(sizes)) == 1
        for name in SAME:
            a, b = getattr(first.result, name), getattr(other.result, name)
            if node:
                assert np.array_equal(a, b), name
            else:
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=name)
        told, again = labels_of(first), labels_of(other)
        assert told.keys() == again.keys()
        for pair, (label, chance) in told.items():
            assert again[pair][0] == label
            assert again[pair][1] == (chance if node else pytest.approx(chance, rel=1e-10))


def test_grouping_of_agents_after_a_local_start() -> None:
    """Another start of the same sampler: clear classes differ by less than their standard errors.

    Largest difference of a coefficient, in its standard errors, over the groupings of data sets 0
    to 5: .27, .03, .18, .002, .02, .03.
    """
    frame = events(16, n_classes=3, n_entities=12, sigma=0.3)
    method = study(n_classes=3, start="local", rounds="auto")
    first = method.run(federation(by_site(frame, [16])), seed=3).result
    for sizes in ([8, 8], [4, 4, 4, 4], [5, 11]):
        other = method.run(federation(by_site(frame, sizes)), seed=3).result
        assert _apart(other, first) < 1.0
    # The measure tells fits of other outcomes apart.
    noise = np.random.default_rng(1).normal(0.0, 0.3, len(frame))
    noisy = frame.assign(y=frame["y"] + noise)
    other = method.run(federation(by_site(noisy, [16])), seed=3).result
    assert _apart(other, first) > 1.0


def _apart(one: Any, other: Any) -> float:
    """Largest difference of coefficients, in standard errors of the other."""
    mine, theirs = (np.argsort(found.slopes[:, 0]) for found in (one, other))
    step = one.slopes[mine] - other.slopes[theirs]
    return float(np.abs(step / other.coefficient_errors[theirs]).max())


def test_order_of_agents_and_names_of_sites() -> None:
    """Rows of agents may come in any order, and sites may have any names that sort the same."""
    frame = events(8, n_classes=3, sigma=0.5)
    method = study(n_classes=3, holdout=0.2)
    tables = by_site(frame, [4, 4])
    plain = method.run(federation(tables), seed=3)
    mixed = {
        f"z{name}": pd.concat([g for _, g in list(table.groupby("agent"))[::-1]])
        for name, table in tables.items()
    }
    other = method.run(federation(mixed), seed=3)
    for name in SAME:
        assert np.array_equal(getattr(plain.result, name), getattr(other.result, name)), name
    assert labels_of(plain) == labels_of(other)
    # Means over rows, in their order.
    np.testing.assert_allclose(plain.result.heldout_mse, other.result.heldout_mse, rtol=1e-12)
    # Names that sort otherwise add the same sums in another order.
    turned = {"b": tables["site-0"], "a": tables["site-1"]}
    third = method.run(federation(turned), seed=3)
    np.testing.assert_allclose(third.result.mean, plain.result.mean, rtol=1e-10, atol=1e-12)


def test_workers_do_not_matter() -> None:
    tables = by_site(events(8), [2, 2, 2, 2])
    runs = []
    for n_jobs in (1, 3):
        found = federation(tables)
        engine = LocalEngine(members(found).values(), n_jobs=n_jobs)
        with joblib.parallel_config(backend="threading"):
            moved = dataclasses.replace(found, engine=engine)
            runs.append(study().run(moved, seed=3).result.to_files())
    assert runs[0] == runs[1]


def test_other_seeds_draw_other_labels() -> None:
    """The comparisons above are not of things that are the same whatever happens."""
    tables = by_site(events(8, sigma=1.5), [4, 4])
    a, b = (study().run(federation(tables), seed=seed).result for seed in (1, 2))
    assert not np.array_equal(a.trace_log_marginal, b.trace_log_marginal)
    assert not np.array_equal(a.mean, b.mean)


# --------------------------------------------------------------------------- what moves


def test_sites_of_one_agent_do_not_look_like_jumping() -> None:
    """At high noise labels move by chance; few entities a site must not add that up."""
    frame = events(24, n_entities=4, sigma=4.0, seed=1)
    method = study(rounds=8, settle_rounds=4, average_rounds=4)
    apart = method.run(federation(by_site(frame, [1] * 24)), seed=0).result
    together = method.run(federation(by_site(frame, [24])), seed=0).result
    np.testing.assert_allclose(apart.trace_moved[1:], together.trace_moved[1:], atol=1e-9)
    assert not apart.slowed
    assert apart.trace_moved[1:].mean() < 0.06


@pytest.mark.parametrize("concentration", ["exact", "shortcut"])
def test_classes_that_were_merged_away_stay_away(concentration: str) -> None:
    """The shortcut's prior gives a share to every class, those of no entity included."""
    frame = events(8, n_classes=3, n_entities=8, sigma=2.0)
    method = study(
        n_classes=3, rounds=4, settle_rounds=5, average_rounds=5, concentration=concentration
    )
    result = method.run(federation(by_site(frame, [4, 4])), seed=7).result
    assert result.trace_classes[0] == 6
    assert result.trace_classes[5:].max() <= 3
    assert result.n_classes <= 3


@pytest.mark.parametrize("seed", [0, 5, 9])
def test_rounding_of_sums_decides_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that differ in their last bits, as those of other groupings do.

    With seed 9 the rest of a class that was left once went where rounding led it.
    """
    tables = by_site(events(8, n_classes=3, sigma=0.5, seed=seed), [4, 4])
    method = study(n_classes=3, settle_rounds=3)
    plain = method.run(federation(tables), seed=3).result
    exact, rng = coordinator._told, np.random.default_rng(seed)

    def rounded(replies: Any) -> dict[str, np.ndarray]:
        return {
            site: sums * (1.0 + 2e-16 * rng.integers(-3, 4, size=sums.shape))
            for site, sums in exact(replies).items()
        }

    monkeypatch.setattr(coordinator, "_told", rounded)
    other = method.run(federation(tables), seed=3).result
    for name in SAME:
        np.testing.assert_allclose(
            getattr(plain, name), getattr(other, name), rtol=1e-10, atol=1e-10, err_msg=name
        )


def test_the_merger_that_counts_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto" classes may be merged again while the rounds settle."""
    merged: list[tuple[int, int]] = []
    merge = Rounds.merge

    def watched(self: Rounds, n_classes: int | None) -> None:
        before = len(self.path)
        merge(self, n_classes)
        merged.append((self.round, len(self.path) - before))

    monkeypatch.setattr(Rounds, "merge", watched)
    again = 0
    for seed in range(4):
        merged.clear()
        frame = events(8, n_entities=12, n_events=5, seed=seed, n_classes=3, sigma=1.0)
        method = study(n_classes="auto", rounds=8, settle_rounds=10, average_rounds=3)
        result = method.run(federation({"a": frame}), seed=seed).result
        assert result.merged_at == [at for at, made in merged if made][-1]
        again += merged[-1][1] > 0
    assert again > 0


def test_sums_that_a_site_withholds_do_not_choose_beta() -> None:
    """A gap among a site's sums is no reason to take the first value of the grid."""
    rounds: Any = SimpleNamespace(beta=4.0)
    fit = tuple(-abs(i - 4.0) for i in range(len(BETAS)))
    whole = np.ones((2, 12))
    gap = np.where(np.arange(2)[:, None] == 1, np.nan, whole)
    replies: Any = {
        site: SimpleNamespace(sums=SimpleNamespace(value=v), fit=SimpleNamespace(value=fit))
        for site, v in (("a", whole), ("b", gap))
    }
    Rounds.set_beta(rounds, replies, BETAS)
    assert rounds.beta == BETAS[4]
