"""Whether a site's own policy grants what a study over columns will ask of it.

A site refuses by itself, whatever is said here; this only spares a run that would end in refusals.
"""

from __future__ import annotations

import math

import numpy as np

from consilience.exceptions import PrivacyError
from consilience.protocol.method import Method, SiteData
from consilience.sites.accounting import Budget
from consilience.sites.home import DiskHome
from consilience.sites.policy import Policy
from consilience.sites.study import SiteFile, Study


def consent_refusal(
    study: Study, file: SiteFile, data: SiteData, policy: Policy, method: Method
) -> PrivacyError | None:
    """Say in one sentence what a site will refuse in a study over columns, if anything.

    Parameters
    ----------
    study : Study
    file : SiteFile
    data : SiteData
        Its prepared table.
    policy : Policy
    method : Method

    Returns
    -------
    PrivacyError or None
        The first thing for which there is no consent.
    """
    if not policy.share_ids:
        return PrivacyError(
            "the policy lets no hashed ids leave (share_ids), so no row can be matched"
        )
    asks = study.roles[file.name] == "initiator"
    if method.name == "assisted-glm" and study.follows is None and asks:
        return _about_response(file, policy, method)
    if method.name == "assistance-test" and not asks:
        return _about_sketch(file, data, policy, method)
    if method.name == "assisted-glm" and not policy.per_record:
        return PrivacyError(
            "the policy lets no combination of columns leave for each record (per_record)"
        )
    return None


def _about_response(file: SiteFile, policy: Policy, method: Method) -> PrivacyError | None:
    way = getattr(method, "response", "")
    if way == "share" and not policy.share_response:
        return PrivacyError(
            "the study gives partners the response (response = 'share') and the policy lets none "
            "leave: the steward may grant share_response, or the study may mask it"
        )
    if way == "masked":
        flip = float(getattr(method, "flip", 0.0))
        return _about_price(file, policy, math.log((1 - flip) / flip), "a masked response")
    return None


def _about_sketch(
    file: SiteFile, data: SiteData, policy: Policy, method: Method
) -> PrivacyError | None:
    epsilon = getattr(method, "epsilon", None)
    if epsilon is None:
        if policy.per_record:
            return None
        return PrivacyError("the policy lets no sketch without noise leave (per_record)")
    bounds = data.bounds
    if bounds is None or np.isnan(bounds).any():
        lacking = [
            name
            for j, name in enumerate(data.feature_names)
            if bounds is None or np.isnan(bounds[:, j]).any()
        ]
        return PrivacyError(
            "noise has no price without public limits of the columns: give bounds of "
            f"{', '.join(lacking)} in [columns] of the site file"
        )
    return _about_price(file, policy, float(epsilon), "a sketch with noise")


def _about_price(file: SiteFile, policy: Policy, epsilon: float, what: str) -> PrivacyError | None:
    """Whether a price is within what is left; what was drawn before costs nothing more."""
    if not policy.noised:
        return PrivacyError(f"the policy does not let {what} leave (noised)")
    charges: tuple[float, ...] = ()
    if file.home_path.is_dir():
        ledger = Budget.read(DiskHome(file.home_path).ledger(policy.data_id)).ledger
        charges = tuple(ledger.get("epsilon", {}).values())
    left = policy.max_epsilon - math.fsum(charges)
    drawn = any(math.isclose(charge, epsilon, rel_tol=1e-9) for charge in charges)
    if drawn or epsilon <= left + policy.max_epsilon * 1e-12:
        return None
    return PrivacyError(
        f"{what} costs epsilon {epsilon:g}, and {max(left, 0.0):g} of {policy.max_epsilon:g} is "
        "left on this data: the steward may raise max_epsilon"
    )
