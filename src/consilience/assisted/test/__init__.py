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

The run may follow one of ``assisted-glm``: all that is known of the columns of its partners then
stands in the null model, and the test asks what a further partner adds to it (the source has their
part of the fit there).

Absence: partners that do not answer, or whose sketch the initiator cannot test, are left out and
named; without the initiator, or without any partner, the run stops. Leakage: the initiator learns t
combinations of each partner's columns, with noise or without; the partner learns neither the
response nor that of which family it is tested for; the coordinator, also a third party, reads test
statistics with degrees of freedom and p-values, the number of rows and of their clusters, how many
rows of the rarer class there are for each parameter and which share of a sketch is not noise,
and keyed hashes of the ids, of which all sites know the common ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from consilience.assisted.kernels import assistance
from consilience.assisted.test import site
from consilience.assisted.test.site import KINDS, MAX_DIRECTIONS, Settings
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.numerics.families import NAMES, family
from consilience.parameters import LEFT_OUT, allows, number, one_of, whole
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    Refused,
    Step,
    register,
)
from consilience.protocol.next_study import Asked, Led, NextStudy
from consilience.protocol.result import Frame, Result, lines, of_rows

if TYPE_CHECKING:
    import pandas as pd

EFFECTS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
PRICES = (0.25, 0.5, 1.0, 2.0, 4.0)
SHOWN_EFFECT = 0.01
"""Share of what is left for which a summary says the power."""


@dataclass(frozen=True, eq=False)
class AssistanceTestResult(Result):
    """Whether partners' columns explain the response beyond the initiator's own.

    Attributes
    ----------
    initiator : str
    partners : tuple of str
        Those whose sketch was tested.
    family : str
    n_records : int
        Rows with a response that took part.
    n_directions, n_draws : int
        Columns of one sketch, and independent sketches.
    epsilon : dict of partner to float or None
        Price of all sketches of a partner; None where they came without noise.
    loose_epsilon : dict of partner to float
        What the published, looser bound calls the same noise; NaN without noise.
    scale : dict of partner to float
        Scale of the Laplace noise; 0 without.
    n_columns : dict of partner to int
        Linearly independent columns of the partner.
    revealed : dict of partner to int
        Directions of them that were ever revealed, this sketch included.
    tests : dict of partner to dict of kind to dict
        ``statistic``, ``df``, ``p`` (one entry for each draw) and ``combined`` (Cauchy).
    test : str
        The kind that decides.
    level : float
    useful : dict of partner to bool
        Whether the deciding p-value is below the level.
    given : tuple of str
        Partners of the run that this one follows, which the null model has columns of.
    n_given : int
        Columns by which they are known; 0 where there is no such run.
    minority : float
        Records of the rarer class for each parameter; NaN where there are no classes.
    reliability : dict of partner to float
        Share of a sketch's variance, beyond the initiator's columns, that is not noise.
    power : dict of partner to dict
        ``epsilon`` (e,), ``effect`` (f,), ``power`` (e, f): chance of finding a partner whose
        columns explain a share `effect` of what is left, by price.
    warnings : tuple of str
    n_clusters : int
        Clusters of rows that depend on one another; 0 where the initiator names none.
    offset : bool
        Whether the linear predictor has an offset, from a column of the initiator.
    left_out : dict of partner to str
        Partners without a sketch, and why.
    """

    often = ("partners", "useful", "p_value", "tests", "epsilon")

    initiator: str
    partners: tuple[str, ...]
    family: str
    n_records: int
    n_directions: int
    n_draws: int
    epsilon: dict[str, Any]
    loose_epsilon: dict[str, float]
    scale: dict[str, float]
    n_columns: dict[str, int]
    revealed: dict[str, int]
    tests: dict[str, dict[str, dict[str, Any]]]
    test: str
    level: float
    useful: dict[str, bool]
    given: tuple[str, ...]
    minority: float
    reliability: dict[str, float]
    power: dict[str, dict[str, Any]]
    warnings: tuple[str, ...] = ()
    n_clusters: int = 0
    offset: bool = False
    n_given: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    def p_value(self, partner: str) -> float:
        """The deciding p-value of a partner, combined over the draws."""
        return float(self.tests[partner][self.test]["combined"])

    def summary(self) -> str:
        """Return one sentence for each partner."""
        said = []
        clusters = f" in {self.n_clusters} clusters" if self.n_clusters else ""
        for partner in self.partners:
            p = self.p_value(partner)
            shown = "p < .0001" if p < 1e-4 else f"p = {p:.4f}".replace("0.", ".", 1)
            price = self.epsilon[partner]
            cost = "without noise" if price is None else f"at epsilon {price:g}"
            verdict = "The" if self.useful[partner] else "There is no evidence that the"
            said.append(
                f"{verdict} columns of {partner} explain the response of {self.initiator} beyond "
                f"its own ({self.test} test, {shown}, {self.n_records} rows{clusters}, {cost}; "
                f"{self.revealed[partner]} of {self.n_columns[partner]} directions revealed"
                f"{self._power_said(partner)})."
            )
        said += [f"{site} was not tested: {why}." for site, why in self.left_out.items()]
        return " ".join(said)

    def next_studies(self, asked: Asked) -> Led:
        """Fit with the partners that are of use; with none there is nothing to do."""
        useful = tuple(partner for partner in self.partners if self.useful[partner])
        if not useful:
            yield (
                "No partner's columns are shown to help, so there is nothing to fit with them. The "
                "power in the report says what the test could have found."
            )
            return
        yield NextStudy(
            method="assisted-glm",
            why=f"The columns of {' and '.join(useful)} explain the response beyond those of "
            f"{self.initiator}: a fit with them says how much better it predicts, and by which "
            "coefficients.",
            parameters={"family": self.family},
            sites=(self.initiator, *self.given, *useful),
        )

    def _power_said(self, partner: str) -> str:
        """How often the test finds a partner of some worth, at the price that was paid."""
        known = self.power.get(partner) or {}
        prices, effects = np.asarray(known.get("epsilon", ())), np.asarray(known.get("effect", ()))
        price = self.epsilon[partner]
        rows = np.isinf(prices) if price is None else np.isclose(prices, price, rtol=1e-9)
        places = np.flatnonzero(np.isclose(effects, SHOWN_EFFECT))
        if not rows.any() or not len(places):
            return ""
        chance = float(np.asarray(known["power"])[np.flatnonzero(rows)[0], places[0]])
        if not np.isfinite(chance):
            return ""
        return f"; power {chance:.0%} if they explain {SHOWN_EFFECT:.0%} of what is left"

    @Frame
    def draws(self) -> pd.DataFrame:
        """Every partner, kind of test and draw."""
        rows = (
            (
                partner,
                kind,
                draw + 1,
                float(found["statistic"][draw]),
                int(found["df"][draw]),
                float(found["p"][draw]),
                float(found["combined"]),
            )
            for partner, kinds in sorted(self.tests.items())
            # The one that decides first; a result that was read back has another order.
            for kind, found in sorted(
                kinds.items(), key=lambda item: (item[0] != self.test, item[0])
            )
            for draw in range(self.n_draws)
        )
        names = ("partner", "test", "draw", "statistic", "df", "p_value", "combined_p_value")
        return of_rows(rows, *names)

    @Frame
    def verdicts(self) -> pd.DataFrame:
        """Every partner: what the deciding test says, and what it cost."""
        known = {
            "p_value": [self.p_value(partner) for partner in self.partners],
            "useful": self.useful,
            "epsilon": self.epsilon,
            "reliability": self.reliability,
            "directions_known": self.revealed,
            "directions": self.n_columns,
        }
        of = {
            name: [by[p] for p in self.partners] if isinstance(by, dict) else by
            for name, by in known.items()
        }
        return lines(of, partner=self.partners)

    @Frame
    def powers(self) -> pd.DataFrame:
        """Chance of finding a partner, by what its columns explain and by price."""
        rows = [
            (partner, float(price), float(effect), float(known["power"][i][j]))
            for partner, known in sorted(self.power.items())
            for i, price in enumerate(known.get("epsilon", ()))
            for j, effect in enumerate(known.get("effect", ()))
        ]
        return of_rows(rows, "partner", "epsilon", "effect", "power")


@register
@dataclass(frozen=True, kw_only=True)
class AssistanceTest(Method[AssistanceTestResult]):
    """Test whether partners' columns help to explain the initiator's response.

    Parameters
    ----------
    family : {"binomial", "normal", "poisson", "log-cosh", "pseudo-huber", "gamma", "tweedie"}
        Distribution, or loss, of the response.
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
        A partner is of use where its p-value is below.
    geometry : {"box", "ball"}
        What the public limits of a row are, where noise is added.
    bound : float
        Radius of the ball, in half widths of the limits; of no use with "box".
    subsample : int, optional
        Rows that take part at the most, at protected sites in groups of `min_records`.
    power : float
        Of the variance function, for "tweedie".
    alpha : float
        Penalty of the fits; 0 is none.
    l1_ratio : float
        Kind of the penalty: ridge at 0, lasso at 1.
    """

    family: str = allows(one_of(*NAMES), default="binomial")
    epsilon: float | None = allows(number(above=0, high=1e6) | LEFT_OUT, default=None)
    n_directions: int = allows(whole(1), default=3)
    n_draws: int = allows(whole(1), default=1)
    test: Literal["score", "wald", "wald-hc3", "lr"] = allows(one_of(*KINDS), default="score")
    level: float = allows(number(above=0, below=1), default=0.05)
    geometry: Literal["box", "ball"] = allows(one_of("box", "ball"), default="box")
    bound: float = allows(number(above=0), default=1.0)
    subsample: int | None = allows(whole(20) | LEFT_OUT, default=None)
    power: float = 1.5
    alpha: float = allows(number(0), default=0.0)
    l1_ratio: float = allows(number(0, 1), default=0.0)

    name: ClassVar[str] = "assistance-test"
    version: ClassVar[int] = 10
    title: ClassVar[str] = "Is a partner's data of use to me, and at what price?"
    partition: ClassVar[Literal["rows", "columns"]] = "columns"
    follows: ClassVar[tuple[str, ...]] = ("assisted-glm",)
    steps: ClassVar[tuple[Step, ...]] = site.STEPS
    absence: ClassVar[str] = (
        "Partners that do not answer, or whose sketch the initiator cannot test, are left out and "
        "named; the initiator and one partner at least must answer. Where the initiator is away "
        "the run stops until it is resumed."
    )
    tolerates: ClassVar[dict[str, Literal["quorum", "all", "any"]]] = {
        step.name: "any" for step in site.STEPS
    }
    leakage: ClassVar[str] = (
        "The initiator knows as many combinations of a partner's columns as there are directions, "
        "with noise or without; partners know nothing of the response. The coordinator knows test "
        "statistics with degrees of freedom and p-values, the number of rows and of their "
        "clusters, how many rows of the rarer class there are for each parameter, and which share "
        "of a sketch is not noise; and keyed hashes of the ids, of which all sites know the "
        "common ones."
    )
    Result: ClassVar[type[AssistanceTestResult]] = AssistanceTestResult

    def check_together(self) -> None:
        """Check parameters that do not go together; raise `ParameterError`."""
        family(self.family, power=self.power)
        if self.n_directions * self.n_draws > MAX_DIRECTIONS:
            raise ParameterError(
                f"n_directions times n_draws is {self.n_directions * self.n_draws}: at most "
                f"{MAX_DIRECTIONS} columns have a price that can be computed exactly"
            )
        if self.test == "lr" and self.alpha:
            raise ParameterError(
                "test is 'lr' and alpha is above 0: a penalised fit has no likelihood ratio, so "
                "choose another test or no penalty"
            )

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask every partner for a sketch, and the initiator to test each."""
        settings = Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})
        noisy = self.epsilon is not None
        sketch, test = (site.sketch_noised, site.test_noised) if noisy else (site.sketch, site.test)
        request = sketch.request(settings=settings, recipient=ctx.initiator)
        given = tuple(getattr(ctx.follows, "partners", ()))
        asked = tuple(partner for partner in ctx.partners if partner not in given)
        if not asked:
            raise StudyError(
                f"the columns of {', '.join(ctx.partners)} are in the model that this test starts "
                "from, so it could find nothing new in them: name another partner"
            )
        replies = yield Ask(sketch.name, request, to=asked)
        if not replies.present:
            reasons = "; ".join(f"{s}: {r.reason}" for s, r in replies.missing.items())
            raise QuorumError(f"no partner sent a sketch. {reasons}")
        tested: dict[str, Any] = {}
        missing = dict(replies.missing)
        for partner, sketched in replies.present.items():
            scale = {"scale": sketched.scale} if noisy else {}
            request = test.request(settings=settings, z=sketched.z, **scale)
            answers = yield Ask(test.name, request, to=(ctx.initiator,))
            answer = answers[ctx.initiator]
            # Only the initiator reads a sketch: one that it cannot use costs no other partner. One
            # that is away costs them all, so the run stops until it is resumed.
            if isinstance(answer, Refused):
                missing[partner] = Refused(f"{ctx.initiator} refused: {answer.reason}")
            else:
                tested[partner] = ctx.require(answers, at_least=1)[ctx.initiator]
        if not tested:
            ctx.require(answers, at_least=1)
        for partner, why in missing.items():
            ctx.note(f"Site {partner} was not tested: {why.reason}.")
        tests: dict[str, Any] = {s: {} for s in tested}
        for s, t in tested.items():
            for kind in KINDS:
                of = {k: np.asarray(v, dtype=float) for k, v in t.tests.value[kind].items()}
                tests[s][kind] = {**of, "combined": assistance.cauchy_combine(of["p"])}
        sketches, facts = replies.present, {s: t.facts.value for s, t in tested.items()}
        first = next(iter(tested.values()))
        return AssistanceTestResult(
            initiator=ctx.initiator,
            partners=tuple(tested),
            family=self.family,
            n_records=int(first.facts.value["records"]),
            n_directions=self.n_directions,
            n_draws=self.n_draws,
            epsilon={s: None if self.epsilon is None else float(self.epsilon) for s in tested},
            loose_epsilon={s: float(getattr(sketches[s], "loose", np.nan)) for s in tested},
            scale={s: float(getattr(sketches[s], "scale", 0.0)) for s in tested},
            n_columns={s: int(sketches[s].rank) for s in tested},
            revealed={s: int(sketches[s].known) for s in tested},
            tests=tests,
            test=self.test,
            level=float(self.level),
            useful={s: bool(t[self.test]["combined"] < self.level) for s, t in tests.items()},
            given=given if first.given else (),
            minority=float(first.facts.value["minority"]),
            reliability={s: float(f["reliability"]) for s, f in facts.items()},
            power={s: self._power(facts[s], tests[s], int(sketches[s].rank)) for s in tests},
            n_clusters=int(first.facts.value["clusters"]),
            offset=bool(first.offset),
            n_given=int(first.given),
            warnings=tuple(dict.fromkeys(w for t in tested.values() for w in t.warnings)),
            left_out={s: str(r.reason).rstrip(".") for s, r in missing.items()},
        )

    def _power(self, facts: Any, tests: Any, rank: int) -> dict[str, Any]:
        """Chance of finding effects of several sizes, by price; one draw of T."""
        n = int(facts["records"])
        df = max(int(np.max(tests[self.test]["df"])), 1)
        # t random directions of p catch t / p of a signal that all columns carry
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


__all__ = ["AssistanceTest", "AssistanceTestResult"]
