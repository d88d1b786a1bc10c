"""Is a partner's data of use to me? A test from one message of random combinations of its columns.

====================================  ==================================================
coordinator                           site
====================================  ==================================================
prepare (phases opening, align_ids)
sketch: SketchRequest             ->  every partner: columns along directions that only
  settings, initiator                 it knows (T), drawn once for its data
                                  <-  Sketched: Z = X_b T (n, t)         PER_RECORD,
                                      for the initiator's eyes
  or, with a price,
sketch_noised: SketchRequest      ->  the same on columns in the box of their public
                                      limits, with Laplace noise
                                  <-  NoisySketched: Z + E (n, t)        NOISED,
                                      for the initiator's eyes
test: TestRequest                 ->  initiator, for each partner in turn: tests of Z
  Z, as it came                       beside its own columns
                                  <-  Tested: statistics, df, p          MODEL
====================================  ==================================================

Source: Zhang, Yang and Ding, *Additive-effect assisted learning* (2025), stage 1, equations for the
Wald statistic. Departures: degrees of freedom are the columns of Z that do not depend on the
others; the score test decides by default, because the Wald test is liberal where the rarer class is
small; several draws of T are combined (Cauchy); the price is the exact one of the directions drawn
rather than a bound, limits are public and rows beyond them are cut; noise comes from OpenDP and is
drawn once for each row.

The run may follow one of ``assisted-glm``: the part of the partners of that run then stands in the
null model, and the test asks what a further partner adds to it.

Absence: partners that do not answer, or whose sketch the initiator cannot test, are left out and
named; without the initiator, or without any partner, the run stops. Leakage: the initiator learns t
combinations of each partner's columns, with noise or without; the partner learns neither the
response nor that of which family it is tested for; the coordinator, also a third party, reads test
statistics with degrees of freedom and p-values, the number of rows, how many rows of the rarer
class there are for each parameter and which share of a sketch is not noise, and keyed hashes of the
ids, of which all sites know the common ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.assisted.kernels import assistance
from consilience.assisted.kernels.glm import NAMES, Penalty, family
from consilience.assisted.test import site
from consilience.assisted.test.messages import (
    KINDS,
    MAX_DIRECTIONS,
    NoisyTestRequest,
    Settings,
    SketchRequest,
    TestRequest,
)
from consilience.assisted.test.result import AssistanceTestResult
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method, Step, register


def is_whole(value: object) -> bool:
    """Whether a parameter is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a parameter is a number."""
    return is_whole(value) or isinstance(value, float)


EFFECTS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
PRICES = (0.25, 0.5, 1.0, 2.0, 4.0)


@register
@dataclass(frozen=True, kw_only=True)
class AssistanceTest(Method):
    """Test whether partners' columns help to explain the initiator's response.

    Parameters
    ----------
    family : {"binomial", "normal", "poisson", "log-cosh", "pseudo-huber", "gamma", "tweedie"}
    epsilon : float, optional
        Price of all sketches of one partner together. Without it sketches come without noise.
    n_directions : int
        Columns of a sketch; at most as many as the partner's ledger has room for. Fixed beforehand:
        looking at 1, 2, ... and stopping at the first rejection is no test.
    n_draws : int
        Independent sketches, whose p-values are combined. `n_directions` times `n_draws` is at most
        15.
    test : {"score", "wald", "wald-hc3", "lr"}
        The kind that decides; all are reported.
    level : float
    geometry : {"box", "ball"}
        What the public limits of a row are, where noise is added.
    bound : float
        Radius of the ball, in half widths of the limits; of no use with "box".
    subsample : int, optional
        Rows that take part at the most, at protected sites in groups of `min_records`.
    power : float
        Of the variance function, for "tweedie".
    alpha, l1_ratio : float
        Penalty of the fits.
    """

    family: str = "binomial"
    epsilon: float | None = None
    n_directions: int = 3
    n_draws: int = 1
    test: Literal["score", "wald", "wald-hc3", "lr"] = "score"
    level: float = 0.05
    geometry: Literal["box", "ball"] = "box"
    bound: float = 1.0
    subsample: int | None = None
    power: float = 1.5
    alpha: float = 0.0
    l1_ratio: float = 0.0

    name: ClassVar[str] = "assistance-test"
    version: ClassVar[int] = 2
    title: ClassVar[str] = "Is a partner's data of use to me, and at what price?"
    partition: ClassVar[Literal["rows", "columns"]] = "columns"
    follows: ClassVar[tuple[str, ...]] = ("assisted-glm",)
    steps: ClassVar[tuple[Step, ...]] = site.STEPS
    absence: ClassVar[str] = (
        "Partners that do not answer, or whose sketch the initiator cannot test, are left out and "
        "named; the initiator and one partner at least must answer."
    )
    tolerates: ClassVar[dict[str, Literal["quorum", "all", "any"]]] = {
        "sketch": "any",
        "sketch_noised": "any",
        "test": "any",
        "test_noised": "any",
    }
    leakage: ClassVar[str] = (
        "The initiator knows as many combinations of a partner's columns as there are directions, "
        "with noise or without; partners know nothing of the response. The coordinator knows test "
        "statistics with degrees of freedom and p-values, the number of rows, how many rows of "
        "the rarer class there are for each parameter, and which share of a sketch is not noise; "
        "and keyed hashes of the ids, of which all sites know the common ones."
    )
    Result: ClassVar[type[AssistanceTestResult]] = AssistanceTestResult

    def validate(self) -> None:
        """Check parameters; raise `ParameterError`."""
        checks = (
            ("family", self.family in NAMES, f"one of {', '.join(NAMES)}"),
            (
                "epsilon",
                self.epsilon is None or (is_number(self.epsilon) and 0 < self.epsilon <= 1e6),
                "a number above 0, or nothing",
            ),
            ("n_directions", is_whole(self.n_directions) and self.n_directions >= 1, "at least 1"),
            ("n_draws", is_whole(self.n_draws) and self.n_draws >= 1, "at least 1"),
            ("test", self.test in KINDS, f"one of {', '.join(KINDS)}"),
            ("level", is_number(self.level) and 0 < self.level < 1, "a number between 0 and 1"),
            ("geometry", self.geometry in ("box", "ball"), "'box' or 'ball'"),
            ("bound", is_number(self.bound) and 0 < self.bound < np.inf, "a number above 0"),
            (
                "subsample",
                self.subsample is None or (is_whole(self.subsample) and self.subsample >= 20),
                "a whole number of at least 20, or nothing",
            ),
        )
        for name, fine, allowed in checks:
            if not fine:
                raise ParameterError.of(name, allowed, getattr(self, name))
        if self.n_directions * self.n_draws > MAX_DIRECTIONS:
            raise ParameterError(
                f"n_directions times n_draws is {self.n_directions * self.n_draws}: at most "
                f"{MAX_DIRECTIONS} columns have a price that can be computed exactly"
            )
        family(self.family, power=self.power)
        Penalty(self.alpha, self.l1_ratio)
        if self.test == "lr" and self.alpha:
            raise ParameterError(
                "test is 'lr' and alpha is above 0: a penalised fit has no likelihood ratio, so "
                "choose another test or no penalty"
            )

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask every partner for a sketch, and the initiator to test each."""
        settings = Settings(**{k: v for k, v in asdict(self).items() if k in _SENT})
        text = settings.to_json()
        noisy = self.epsilon is not None
        request = SketchRequest(settings=text, recipient=ctx.initiator)
        given = set(getattr(ctx.follows, "partners", ()))
        asked = tuple(partner for partner in ctx.partners if partner not in given)
        if not asked:
            raise StudyError(
                f"the columns of {', '.join(ctx.partners)} are in the model that this test starts "
                "from, so it could find nothing new in them: name another partner"
            )
        replies = yield Ask("sketch_noised" if noisy else "sketch", request, to=asked)
        if not replies.present:
            reasons = "; ".join(f"{s}: {r.reason}" for s, r in replies.missing.items())
            raise QuorumError(f"no partner sent a sketch. {reasons}")
        tested, missing = {}, dict(replies.missing)
        for partner, sketched in replies.present.items():
            if noisy:
                ask: Any = NoisyTestRequest(settings=text, z=sketched.z, scale=sketched.scale)
            else:
                ask = TestRequest(settings=text, z=sketched.z)
            step = "test_noised" if noisy else "test"
            answers = yield Ask(step, ask, to=(ctx.initiator,))
            # Only the initiator reads a sketch: one that it cannot use costs no other partner.
            if answers.present:
                tested[partner] = answers[ctx.initiator]
            else:
                missing[partner] = answers[ctx.initiator]
        if not tested:
            ctx.require(answers, at_least=1)
        for partner, why in missing.items():
            ctx.note(f"Site {partner} was not tested: {why.reason}.")
        sketches = {partner: replies[partner] for partner in tested}
        return self._result(ctx, sketches, tested, missing)

    def _result(
        self, ctx: CoordinatorContext, sketches: Any, tested: Any, missing: Any
    ) -> AssistanceTestResult:
        tests = {s: self._combined(t.tests.value) for s, t in tested.items()}
        facts = {s: t.facts.value for s, t in tested.items()}
        first = next(iter(tested.values()))
        scale = {s: float(getattr(r, "scale", 0.0)) for s, r in sketches.items()}
        given = ctx.follows.partners if first.given and ctx.follows is not None else ()  # type: ignore[attr-defined]
        return AssistanceTestResult(
            initiator=ctx.initiator,
            partners=tuple(tested),
            family=self.family,
            n_records=int(next(iter(facts.values()))["records"]),
            n_directions=self.n_directions,
            n_draws=self.n_draws,
            epsilon={s: None if self.epsilon is None else float(self.epsilon) for s in tested},
            loose_epsilon={s: float(getattr(r, "loose", np.nan)) for s, r in sketches.items()},
            scale=scale,
            n_columns={s: int(r.rank) for s, r in sketches.items()},
            revealed={s: int(r.known) for s, r in sketches.items()},
            tests=tests,
            test=self.test,
            level=float(self.level),
            useful={s: bool(t[self.test]["combined"] < self.level) for s, t in tests.items()},
            given=tuple(given),
            minority=float(next(iter(facts.values()))["minority"]),
            reliability={s: float(f["reliability"]) for s, f in facts.items()},
            power={s: self._power(facts[s], tests[s], int(sketches[s].rank)) for s in tests},
            warnings=tuple(dict.fromkeys(w for t in tested.values() for w in t.warnings)),
            left_out={s: str(r.reason).rstrip(".") for s, r in missing.items()},
        )

    @staticmethod
    def _combined(tests: Any) -> dict[str, dict[str, Any]]:
        """Test statistics with the p-value of all draws together."""
        return {
            kind: {
                **{k: np.asarray(v, dtype=float) for k, v in tests[kind].items()},
                "combined": assistance.cauchy_combine(np.asarray(tests[kind]["p"], dtype=float)),
            }
            for kind in KINDS
        }

    def _power(self, facts: Any, tests: Any, rank: int) -> dict[str, Any]:
        """Chance of finding effects of several sizes, by price; one draw of T."""
        n = int(facts["records"])
        df = max(int(np.max(tests[self.test]["df"])), 1)
        share = min(1.0, df / max(rank, 1))
        reliable = float(facts["reliability"])
        if self.epsilon is None:
            prices, reliabilities = [np.inf], [reliable]
        else:
            prices = [*(float(self.epsilon) * k for k in PRICES), np.inf]
            # Noise variance falls with the square of the price.
            noise = (1 - reliable) / max(reliable, 1e-12)
            reliabilities = [1 / (1 + noise * (self.epsilon / e) ** 2) for e in prices]
        table = [
            [assistance.power(n, df, f * share, r, self.level) for f in EFFECTS]
            for r in reliabilities
        ]
        return {
            "epsilon": np.array(prices),
            "effect": np.array(EFFECTS),
            "power": np.array(table, dtype=float),
        }


_SENT = tuple(Settings.__dataclass_fields__)


__all__ = ["AssistanceTest", "AssistanceTestResult"]
