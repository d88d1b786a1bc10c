"""Policies of sites whose stewards let models of others be applied to their rows."""

import dataclasses
from typing import Any

from consilience.sites.policy import Policy


def granted(policy: Any = "strict") -> Any:
    """Return a policy, a preset or these by site with that consent, which ``strict`` lacks."""
    if isinstance(policy, dict):
        return {site: granted(one) for site, one in policy.items()}
    made = policy if isinstance(policy, Policy) else Policy.from_settings(policy)
    return dataclasses.replace(made, foreign_models=True)


GRANTED: Policy = granted()
EVERYTHING = dataclasses.replace(GRANTED, per_record=True)
"""Also sums at coefficients that a coordinator chooses."""
