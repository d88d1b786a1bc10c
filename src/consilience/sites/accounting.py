"""The budget of a data set: what was ever charged to it, question by question.

Pure differential privacy composes by addition (Dwork and Roth 2014, theorem 3.16): the total is the
sum of the charges, whatever the method or the study.

`charge`, `count_models` and `hold_coding` take what a question costs of what a steward grants for
ever: noise, models of others, codings. All are written to the ledger of the data set before
anything is computed. A charge belongs to the question: asking again after a crash costs nothing
more, and nothing is ever refunded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from consilience.exceptions import BudgetError, DisclosureError, RunError
from consilience.protocol.method import Method, SiteData
from consilience.protocol.phases.opening import Open
from consilience.sites.encoding import by_role, encodings
from consilience.sites.policy import Policy
from consilience.sites.site_store import SiteStore
from consilience.sites.step_runner import step_of
from consilience.wire.codec import decode_question, digest
from consilience.wire.envelope import Request


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
        # Sequential composition: the sum of all charges (Dwork and Roth 2014, theorem 3.16).
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
        # A charge has the name of its question: asked again after a crash it is found here.
        charges = dict(self.ledger.get("epsilon", {}))
        if key in charges:
            return dict(self.ledger)
        if not math.isfinite(epsilon) or epsilon < 0:
            raise BudgetError.shared("the price of a step is a finite number of at least 0")
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


# ----------------------------------------------------------------------------- charging a question

LEAST_MODELS = 200
"""Models of others that a site tries in all, however few rows it has."""


def charge(request: Request, kept_name: str, policy: Policy, home: SiteStore) -> float:
    """Charge the price of a step that draws noise; of what was drawn before and kept only once.

    Raises
    ------
    BudgetError
        More than what is left.
    """
    price = step_of(request).price
    if price is None:
        return 0.0
    message = decode_question(request.message, max_bytes=policy.max_message_bytes)
    epsilon = float(price(message))
    if epsilon == 0.0:
        return 0.0
    key = f"kept/{digest(kept_name.encode())[:32]}" if kept_name else _key(request)
    budget = Budget.read(home.ledger(policy.data_id))
    _write(budget.charge(key, epsilon, limit=policy.max_epsilon), policy, home)
    return epsilon


def count_models(request: Request, data: SiteData, policy: Policy, home: SiteStore) -> None:
    """Count the models of others that a step tries.

    Raises
    ------
    BudgetError
        More than the policy allows for the rows of the table.
    """
    tries, most = step_of(request).tries, policy.max_models_per_row
    if tries is None or most is None:
        return
    asked = tries(decode_question(request.message, max_bytes=policy.max_message_bytes))
    if not asked:
        return
    ledger = home.ledger(policy.data_id)
    # By question too, so that a repeated one does not count twice.
    models = {**dict(ledger.get("models", {})), _key(request): asked}
    if sum(models.values()) > max(LEAST_MODELS, most * max(data.n_read, data.n_rows)):
        sentence = (
            "the number of models of others that the steward allows to be asked about this data is "
            "used up"
        )
        raise BudgetError(f"{sentence} (max_models_per_row)", public=sentence)
    _write({**ledger, "models": models}, policy, home)


def _write(ledger: dict[str, Any], policy: Policy, home: SiteStore) -> None:
    """Write it where something new is in it: a question asked again costs nothing, no write too."""
    if ledger != home.ledger(policy.data_id):
        home.write_ledger(policy.data_id, ledger)


def hold_coding(opened: Open, method: type[Method], policy: Policy, home: SiteStore) -> None:
    """Note how a run codes its columns, and see that no run before coded one of them otherwise.

    What is left over by two codings of a column (an order of levels of which another one gives way,
    indicators of one value and then of another, numbers and then levels) is told by neither run and
    follows from both. With a grant of models of others there are other ways, and this is none.

    Raises
    ------
    DisclosureError
        A column was coded otherwise in an earlier run over this data.
    """
    if policy.min_records <= 1 or policy.foreign_models or opened.partition == "columns":
        return
    columns, preparation = opened.settings()
    columns = columns.only(method.roles)
    levels = columns.levels
    plan = [*encodings(columns, preparation), *by_role(columns).values()]
    found = {
        one.column: [one.kind, list(one.values), list(levels.get(one.column, ()))] for one in plan
    }
    known = dict(home.ledger(policy.data_id).get("codings", {}))
    for name, coding in found.items():
        if known.get(name, coding) != coding:
            raise DisclosureError.shared(
                f"column {name} was coded otherwise in an earlier run on this data, and what "
                "neither tells would follow from both: code it as before, or leave it out"
            )
    _write({**home.ledger(policy.data_id), "codings": known | found}, policy, home)


def _key(request: Request) -> str:
    return f"{request.run}/{request.round}/{request.attempt}"
