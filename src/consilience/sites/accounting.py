"""The budget of a data set: what was ever charged to it, question by question.

Pure differential privacy composes by addition (Dwork and Roth 2014, theorem 3.16): the total is the
sum of the charges, whatever the method or the study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from consilience.exceptions import BudgetError, RunError


@dataclass(frozen=True)
class Budget:
    """Charges of epsilon by question, within a site's ledger.

    Attributes
    ----------
    ledger : dict
        The whole ledger of the data set; charges are under ``"epsilon"``.
    """

    ledger: dict[str, Any]

    @classmethod
    def read(cls, ledger: Mapping[str, Any]) -> Budget:
        """Read a ledger; `RunError` where its charges are damaged."""
        charges = ledger.get("epsilon", {})
        fine = isinstance(charges, dict) and all(
            isinstance(v, float) and math.isfinite(v) and v >= 0 for v in charges.values()
        )
        if not fine:
            raise RunError("the ledger's charges are damaged: restore it before anything else runs")
        return cls(dict(ledger))

    @property
    def spent(self) -> float:
        """Epsilon charged so far."""
        return math.fsum(self.ledger.get("epsilon", {}).values())

    def charge(self, key: str, epsilon: float, *, limit: float) -> dict[str, Any]:
        """Return the ledger with a question's charge; the same question is charged once.

        Parameters
        ----------
        key : str
            Run, round and attempt of the question.
        epsilon : float
            Its price.
        limit : float
            What may ever be spent.

        Raises
        ------
        BudgetError
            The price is not a finite number of at least 0, or more than is left.
        """
        charges = dict(self.ledger.get("epsilon", {}))
        if key in charges:
            return dict(self.ledger)
        if not math.isfinite(epsilon) or epsilon < 0:
            sentence = "the price of a step is a finite number of at least 0"
            raise BudgetError(sentence, public=sentence)
        if self.spent + epsilon > limit * (1 + 1e-12):
            if limit <= 0:
                public = "the steward grants no epsilon on this data (max_epsilon)"
            elif epsilon > limit * (1 + 1e-12):
                public = "the step costs more epsilon than the steward grants on this data"
            else:
                public = "the epsilon that the steward allows on this data is used up"
            raise BudgetError(
                f"the step costs epsilon {epsilon:g}, {self.spent:g} of {limit:g} is spent: the "
                "steward may raise max_epsilon",
                public=public,
            )
        charges[key] = float(epsilon)
        return {**self.ledger, "epsilon": charges}
