"""A step that draws noise is charged before it runs, once, and repeats what it drew."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from consilience.assisted.kernels.mechanisms import Laplace
from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSDResult
from consilience.protocol.method import (
    Ask,
    Columns,
    CoordinatorContext,
    Exchange,
    Method,
    Preparation,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.wire.disclosure import Released, noised
from consilience.wire.message import Noised, Public, message

N_ROWS = 40


@message("noisy-count/request", version=1)
class NoisyRequest:
    epsilon: float = Public("", to="site")


@message("noisy-count/reply", version=1)
class NoisyReply:
    n: Released = Noised("1")


@step("noisy", price=lambda message: message.epsilon)
def noisy(
    message: NoisyRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[NoisyReply, State]:
    values = np.array([float(data.n_rows)])
    return NoisyReply(n=noised(values, Laplace(1.0, message.epsilon))), state


@step("unpaid")
def unpaid(
    message: NoisyRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[NoisyReply, State]:
    return noisy.function(message, data, state, site)


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyCount(Method):
    """Noisy number of rows of each site."""

    step_name: str = "noisy"
    name = "noisy-count"
    title = "How many rows, with noise?"
    steps = (noisy, unpaid)
    absence = "Every site must answer."
    leakage = "A noisy count."
    Result = MeanAndSDResult

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        replies = ctx.require((yield Ask(self.step_name, NoisyRequest(epsilon=0.75))))
        counts = np.array([r.n.value[0] for r in replies.values()])
        return MeanAndSDResult(("n",), 0, counts, counts, counts)


def _site(policy: Policy) -> Site:
    def load(columns: Columns, preparation: Preparation) -> SiteData:
        return SiteData(np.zeros((N_ROWS, 1)), ("x",), np.arange(N_ROWS))

    return Site("a", load, policy=policy)


def _run(site: Site, **settings: object) -> np.ndarray:
    federation = Federation(LocalEngine([site]), Columns(features=("x",)))
    result = NoisyCount(**settings).run(federation, seed=1).result  # type: ignore[arg-type]
    return np.asarray(result.mean)


def test_the_ledger_is_charged_and_the_policy_limits_it() -> None:
    site = _site(Policy(noised=True, max_epsilon=1.6))
    first, second = _run(site), _run(site)
    assert first != second, "noise must not follow from the public seed"
    assert sum(site.home.ledger("default")["epsilon"].values()) == pytest.approx(1.5)
    with pytest.raises(QuorumError, match="epsilon that the steward allows"):
        _run(site)


def test_noise_needs_the_consent_of_the_policy() -> None:
    with pytest.raises(QuorumError, match="does not allow noised values"):
        _run(_site(Policy(max_epsilon=10.0)))


def test_noise_without_a_price_does_not_leave() -> None:
    site = _site(Policy(noised=True, max_epsilon=10.0))
    with pytest.raises(QuorumError, match="not charged"):
        _run(site, step_name="unpaid")


def test_a_repeated_question_is_not_charged_and_not_drawn_again() -> None:
    site = _site(Policy(noised=True, max_epsilon=10.0))
    asked: list[tuple[bytes, bytes]] = []
    answer = site.begin, site.finish

    def begin(data: bytes) -> object:
        found = answer[0](data)
        asked.append((data, b""))
        return found

    site.begin = begin  # type: ignore[method-assign, assignment]
    _run(site)
    before = site.home.ledger("default")
    replies = [site.answer(data) for data, _ in list(asked)]
    assert [site.answer(data) for data, _ in asked[: len(replies)]] == replies
    assert site.home.ledger("default") == before
