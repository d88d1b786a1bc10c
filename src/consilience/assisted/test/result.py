"""Result of an assistance test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.protocol.result import Result

if TYPE_CHECKING:
    import pandas as pd


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
        Partners whose part, from the run that this one follows, is in the null model.
    minority : float
        Records of the rarer class for each parameter; NaN where there are no classes.
    reliability : dict of partner to float
        Share of a sketch's variance, beyond the initiator's columns, that is not noise.
    power : dict of partner to dict
        ``epsilon`` (e,), ``effect`` (f,), ``power`` (e, f): chance of finding a partner whose
        columns explain a share `effect` of what is left, by price.
    warnings : tuple of str
    left_out : dict of partner to str
        Partners without a sketch, and why.
    """

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
    left_out: dict[str, str] = field(default_factory=dict)

    def p_value(self, partner: str) -> float:
        """The deciding p-value of a partner, combined over the draws."""
        return float(self.tests[partner][self.test]["combined"])

    def summary(self) -> str:
        """Return one sentence for each partner."""
        said = []
        for partner in self.partners:
            p = self.p_value(partner)
            shown = "p < .0001" if p < 1e-4 else f"p = {p:.4f}".replace("0.", ".", 1)
            price = self.epsilon[partner]
            cost = "without noise" if price is None else f"at epsilon {price:g}"
            verdict = (
                f"The columns of {partner} explain the response of {self.initiator} beyond its own"
                if self.useful[partner]
                else f"There is no evidence that the columns of {partner} explain the response of "
                f"{self.initiator} beyond its own"
            )
            said.append(
                f"{verdict} ({self.test} test, {shown}, {self.n_records} rows, {cost}; "
                f"{self.revealed[partner]} of {self.n_columns[partner]} directions revealed"
                f"{self._power_said(partner)})."
            )
        said += [f"{site} was not tested: {why}." for site, why in self.left_out.items()]
        return " ".join(said)

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

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each partner, kind of test and draw."""
        import pandas as pd

        rows = [
            {
                "partner": partner,
                "test": kind,
                "draw": draw + 1,
                "statistic": float(found["statistic"][draw]),
                "df": int(found["df"][draw]),
                "p": float(found["p"][draw]),
                "combined_p": float(found["combined"]),
            }
            for partner, kinds in self.tests.items()
            # The one that decides first; a result that was read back has another order.
            for kind, found in sorted(kinds.items(), key=lambda item: item[0] != self.test)
            for draw in range(self.n_draws)
        ]
        return pd.DataFrame(rows)
