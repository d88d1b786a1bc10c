"""What a question costs of what a steward grants for ever: noise, and models of others.

Both are written to the ledger of the data set before anything is computed. A charge belongs to the
question: asking again after a crash costs nothing more, and nothing is ever refunded.
"""

from __future__ import annotations

from consilience.exceptions import BudgetError
from consilience.methods.base import SiteData
from consilience.privacy.accounting import Budget
from consilience.sites.computing import step_of
from consilience.sites.home import Home
from consilience.sites.policy import Policy
from consilience.wire.codec import decode_message, digest
from consilience.wire.envelope import Request

LEAST_MODELS = 200
"""Models of others that a site tries in all, however few rows it has."""


def charge(request: Request, kept_name: str, policy: Policy, home: Home) -> float:
    """Charge the price of a step that draws noise; of what was drawn before and kept only once.

    Raises
    ------
    BudgetError
        More than what is left.
    """
    price = step_of(request).price
    if price is None:
        return 0.0
    message = decode_message(request.message, max_bytes=policy.max_message_bytes)
    epsilon = float(price(message))
    if epsilon == 0.0:
        return 0.0
    key = f"kept/{digest(kept_name.encode())[:32]}" if kept_name else _key(request)
    budget = Budget.read(home.ledger(policy.data_id))
    ledger = budget.charge(key, epsilon, limit=policy.max_epsilon)
    home.write_ledger(policy.data_id, ledger)
    return epsilon


def count_models(request: Request, data: SiteData, policy: Policy, home: Home) -> None:
    """Count the models of others that a step tries.

    Raises
    ------
    BudgetError
        More than the policy allows for the rows of the table.
    """
    tries, most = step_of(request).tries, policy.max_models_per_row
    if tries is None or most is None:
        return
    asked = tries(decode_message(request.message, max_bytes=policy.max_message_bytes))
    ledger = home.ledger(policy.data_id)
    models = {**dict(ledger.get("models", {})), _key(request): asked}
    if sum(models.values()) > max(LEAST_MODELS, most * max(data.n_read, data.n_rows)):
        sentence = (
            "the number of models of others that the steward allows to be asked about this data is "
            "used up"
        )
        raise BudgetError(f"{sentence} (max_models_per_row)", public=sentence)
    home.write_ledger(policy.data_id, {**ledger, "models": models})


def _key(request: Request) -> str:
    return f"{request.run}/{request.round}/{request.attempt}"
