"""The only way out of a site.

The gate looks at what a released value rests on (its evidence, computed by ``wire.disclosure``) and
compares it with the site's own policy, by the rule of its kind (``wire.support`` has the list of
rules). It never trusts what a message says of itself. A reply is
released whole or refused whole; a refusal names field and rule, never a value or a count.

A sum with a *series* (repeated over rounds) is guarded against differencing: records are grouped by
the cells that they were in at every release so far, and each group must hold at least `min_records`
records of `min_entities` entities. In the cells that would break this the last release is repeated.
A group of class sums must be one whose own class sums could leave.

A projection along a direction that is known to within 1e-8 is not counted, and leaves along the
known direction nearest to it. A field for a role is addressed to one site, and no other field is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.exceptions import DisclosureError, WireError
from consilience.sites.policy import Policy
from consilience.sites.revealed_rank import RevealedRank, rank_of
from consilience.wire.codec import encode_message, misfit
from consilience.wire.disclosure import Released, groups_that_may_leave, replaced, reprojected
from consilience.wire.envelope import Verdict
from consilience.wire.message import Disclosure, iterate_fields
from consilience.wire.support import RULES, Limits, Support

Series = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Reviewed:
    """A reply that may leave.

    Attributes
    ----------
    message : bytes
    verdicts : tuple of Verdict
    series : dict
        Last release of each series, to be kept with the site's state.
    content : object
        The message itself, for the steward's preview: before anything is sealed.
    revealed : RevealedRank
        Directions of the columns that are known after this reply, to be kept before it leaves.
    """

    message: bytes
    verdicts: tuple[Verdict, ...]
    series: Series
    content: object
    revealed: RevealedRank = field(default_factory=RevealedRank)


def review(
    msg: object,
    policy: Policy,
    series: Series,
    *,
    epsilon_spent: float = 0.0,
    revealed: RevealedRank | None = None,
    seal: Callable[[Any], Any] | None = None,
) -> Reviewed:
    """Decide on a reply.

    Parameters
    ----------
    msg : object
        Message that a step made.
    policy : Policy
    series : dict
        Last releases of this run.
    epsilon_spent : float
        What the step took from the budget before it drew noise.
    revealed : RevealedRank, optional
        Directions of the columns that are known so far, from the data's ledger.
    seal : callable, optional
        Encrypts the fields that are for one site's eyes: called with the message that may leave,
        returns the one that does.

    Raises
    ------
    DisclosureError
        A rule refuses a field.
    """
    changes: dict[str, Released] = {}
    verdicts: list[Verdict] = []
    kept = dict(series)
    known = RevealedRank() if revealed is None else revealed
    epsilon = 0.0
    for name, spec, content in iterate_fields(msg):
        if spec.disclosure is Disclosure.PUBLIC:
            verdicts.append(Verdict(name, "", "public"))
            continue
        if not isinstance(content, Released) or content.disclosure is not spec.disclosure:
            raise _refusal(name, f"it is not a value released as {spec.disclosure.value}")
        evidence = content.evidence
        if evidence is None:
            raise _refusal(name, _UNKNOWN)
        if not policy.allows(spec.disclosure, evidence.rule):
            what = _CONSENTS.get(evidence.rule, f"{spec.disclosure.value} values")
            raise _refusal(name, f"the policy does not allow {what}")
        # A field for a role is addressed to one site, any other is addressed to nobody.
        if spec.for_role and not evidence.recipient:
            raise _refusal(name, "it is for one site's eyes and says not whose")
        if evidence.recipient and not spec.for_role:
            raise _refusal(name, "it is for one site's eyes and would be read by others")
        fault = RULES[evidence.rule](evidence, policy.limits)
        if fault is not None:
            raise _refusal(name, fault)
        epsilon += evidence.epsilon
        # Gaps of a response are rows that take no part; elsewhere they are cells withheld.
        gaps = evidence.rule not in ("response", "noised") and _has_gaps(content.value)
        outcome = "withheld" if gaps else "released"
        if evidence.series:
            content, repeated = _guard_differences(content, kept, policy.limits)
            changes[name] = content
            outcome = "repeated" if repeated else outcome
        told = ""
        if evidence.rule == "projection":
            changes[name], known, told = _count_directions(name, content, known, policy)
        verdicts.append(Verdict(name, evidence.rule, outcome, evidence.epsilon, told))  # type: ignore[arg-type]
    if not epsilon <= epsilon_spent + 1e-12:
        raise DisclosureError(
            "a step released noise that its budget was not charged for",
            public="the step was not charged for its noise",
        )
    final = dataclasses.replace(msg, **changes) if changes else msg  # type: ignore[type-var]
    leaving = final if seal is None else seal(final)
    try:
        encoded = encode_message(leaving)
    except WireError as error:
        raise misfit("the reply", error) from None
    return Reviewed(encoded, tuple(verdicts), kept, final, known)


_UNKNOWN = "what it rests on is not known"
_SLOPES = "sums at coefficients that a coordinator chose (its steward grants them by per_record)"

_CONSENTS = {
    "response": "the response of each record (its steward grants it by share_response)",
    "slopes": _SLOPES,
    "all-slopes": _SLOPES,
    "weighted-sums": _SLOPES,
    "hashed-ids": 'hashed ids (its steward grants them by share_ids, or preset "consortium")',
}
"""What has a consent of its own, as a refusal calls it."""


def _refusal(name: str, rule: str) -> DisclosureError:
    return DisclosureError.shared(f"the gate refused field {name!r}: {rule}")


def _has_gaps(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value).any())


# --------------------------------------------------------------------------- revealed rank


def _count_directions(
    name: str, released: Released, known: RevealedRank, policy: Policy
) -> tuple[Released, RevealedRank, str]:
    """Count a projection against what may ever be known of the columns.

    Returns
    -------
    Released
        What leaves, without the rows behind it.
    RevealedRank
        What is known after it.
    str
        ``"3 of 6"``.
    """
    evidence = released.evidence
    if evidence is None or evidence.directions is None or evidence.factor is None:
        raise _refusal(name, _UNKNOWN)
    columns, factor, directions = evidence.columns, evidence.factor, evidence.directions
    after, leaving = known.admit(columns, directions, factor)
    count, rank = after.count(factor, columns), rank_of(factor)
    if count > policy.revealed_limit(rank):
        raise _refusal(name, "more of its columns would be known than the policy allows")
    if evidence.rows is not None:
        same = np.array_equal(leaving, directions)
        released = replaced(released, released.value) if same else reprojected(released, leaving)
    return released, after, f"{count} of {rank}"


# --------------------------------------------------------------------------- differencing


def _guard_differences(released: Released, series: Series, limits: Limits) -> tuple[Released, bool]:
    """Repeat the last release in the cells that changed by too few records.

    Returns
    -------
    Released
        What leaves; `series` is updated in place to describe it.
    bool
        Whether any cell was repeated.
    """
    evidence = released.evidence
    if evidence is None or evidence.members is None:
        raise _refusal("series", "a repeated sum needs the cell of each record")
    value = np.array(released.value, dtype=float)
    masks = evidence.members[None, :] == np.arange(len(value))[:, None]
    last = series.get(evidence.series) or {  # before its first release nothing is known
        "masks": np.zeros_like(masks),
        "value": np.full_like(value, np.nan),
        "groups": np.zeros(masks.shape[1], dtype=np.int64),
    }
    if last["masks"].shape != masks.shape or last["value"].shape != value.shape:
        raise _refusal("series", "a repeated sum has other cells or columns than before")
    columns = tuple(range(1, value.ndim))
    known = ~np.isnan(last["value"]).all(axis=columns)
    repeat = np.isnan(value).all(axis=columns) | (known & np.isnan(value).any(axis=columns))
    repeat, groups = _settle(masks, last, repeat, evidence, limits)
    value[repeat], masks[repeat] = last["value"][repeat], last["masks"][repeat]
    series[evidence.series] = {"masks": masks, "value": value, "groups": groups}
    return replaced(released, value), bool((repeat & known).any())


def _settle(
    masks: np.ndarray, last: dict[str, Any], repeat: np.ndarray, evidence: Support, limits: Limits
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the cells whose last release is repeated.

    Records that were in the same cells at *every* release so far cannot be told apart by any sums
    and differences of releases; records in different ones can. So the groups of records with one
    history must stay large enough. Group 0 was in no released cell: its size does not matter.

    Returns
    -------
    repeat : (cells,) bool array
    groups : (n,) int array
        History of each record after this release.
    """
    large = _large(evidence, limits)
    while True:
        now = np.where(repeat[:, None], last["masks"], masks)
        history = np.vstack([last["groups"], now])
        kinds, groups = _kinds_of(history)
        unseen = (kinds == 0).all(axis=0)
        # A group that is whole as before was judged before.
        parts = np.bincount(kinds[0])[kinds[0]]
        new = ~unseen & ((parts > 1) | (kinds[0] == 0))
        if max(limits.min_records, limits.min_entities) <= 1:
            new[:] = False
        small = [g for g in np.flatnonzero(new) if not large(groups == g)]
        fault = np.zeros(len(repeat), dtype=bool)
        for g in small:
            siblings = kinds[1:, kinds[0] == kinds[0, g]]
            fault |= (siblings != kinds[1:, [g]]).any(axis=1) & ~repeat
            if kinds[0, g] == 0:
                fault |= kinds[1:, g].astype(bool) & ~repeat
        if not fault.any():
            # Numbered from 1, with 0 kept for records that no release has seen.
            return repeat, np.where(unseen[groups], 0, groups + 1)
        repeat = repeat | fault


def _kinds_of(history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different columns of (1 + cells, n) whole numbers, in lexical order, and which one each is.

    Parameters
    ----------
    history : (1 + cells, n) int array
        Groups in the first row, zeros and ones below.
    """
    code = history[0].astype(np.int64)
    for row in history[1:]:
        if code.max(initial=0) >= 1 << 61:
            code = np.unique(code, return_inverse=True)[1].ravel()
        code = 2 * code + row
    _, first, groups = np.unique(code, return_index=True, return_inverse=True)
    return history[:, first], groups.ravel()


def _large(evidence: Support, limits: Limits) -> Callable[[np.ndarray], bool]:
    """Return the rule that says whether a group of records (a mask) may be told apart."""
    of = evidence.member_entities
    if evidence.rule == "class-sums":
        if evidence.rows is None or of is None:
            raise _refusal("series", _UNKNOWN)
        enough = groups_that_may_leave(evidence.rows, of, limits)
        return lambda group: enough(np.flatnonzero(group))

    def large(group: np.ndarray) -> bool:
        many = group.sum() >= limits.min_records
        return bool(many and (of is None or len(np.unique(of[group])) >= limits.min_entities))

    return large
