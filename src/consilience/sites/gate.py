"""The only way out of a site.

The gate looks at what a released value rests on (its evidence, computed by ``wire.disclosure``) and
compares it with the site's own policy. It never trusts what a message says of itself. A reply is
released whole or refused whole; a refusal names field and rule, never a value or a count.

=============  ====================================================================================
kind           rule
=============  ====================================================================================
count          every number of records is 0 or at least `min_records`
keyed-count    the same, and no empty cell (its key would be a value without records)
sum            cells rest on `min_records` records (and `min_entities`), none dominated by one
moments        the same, and rows >= 2 x columns
class-moments  the same for each class and block of columns that is not withheld
links          each class that they rest on has rows >= 2 x columns of the largest component
class-sums     the same in every class that is not empty or withheld, and of `min_entities`
centroids      every class rests on `min_records` records
linear         rows >= 2 x parameters, and at least `min_records`
summary        a statistic of no record (an abstention) or of at least `min_records`
figures        the same, and rows >= numbers (not under `min_records = 1`)
rounded        the same, rounded to at least one over the number of records
estimator      every leaf rests on `min_records`; rows >= 2 x parameters; no type that carries rows
estimators     the same, for each of them
fits           each fit rests on rows >= 2 x parameters and on effective rows >= parameters, no cell
               of its curvature on one record (not under `min_records = 1`)
slopes         sums at coefficients that a coordinator chose: consent of the policy to values of
               single records, and `min_records`
per-record     consent of the policy
projection     the same; directions known of the columns, over all runs, within the policy's limit
response       consent of its own (`share_response`)
hashed-ids     consent of its own (`share_ids`)
noised         consent of the policy, epsilon within what the step has spent
=============  ====================================================================================

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

from consilience.exceptions import DisclosureError, ProtocolError, WireError
from consilience.sites.policy import Policy
from consilience.sites.revealed_rank import RevealedRank, rank_of
from consilience.wire.codec import encode_message
from consilience.wire.disclosure import (
    Evidence,
    Limits,
    Released,
    class_moments_fault,
    estimator_fault,
    may_leave,
    replaced,
    reprojected,
)
from consilience.wire.envelope import Verdict
from consilience.wire.local_fits import fit_fault
from consilience.wire.message import Disclosure, FieldSpec, iterate_fields

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
        evidence = _evidence_of(name, spec, content)
        if not policy.allows(spec.disclosure, evidence.rule):
            what = _CONSENTS.get(evidence.rule, f"{spec.disclosure.value} values")
            raise _refusal(name, f"the policy does not allow {what}")
        _check_recipient(name, spec, evidence)
        RULES[evidence.rule](name, evidence, policy.limits)
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
    return Reviewed(_encoded(leaving), tuple(verdicts), kept, final, known)


def _encoded(msg: object) -> bytes:
    """Encode a reply; the declaration that it does not fit may be told, its content may not."""
    try:
        return encode_message(msg)
    except WireError as error:
        field = str(error).split(":", 1)[0].rsplit(".", 1)[-1]
        raise ProtocolError(
            f"the reply does not fit its declaration: {error}",
            public=f"the reply does not fit its declaration of field {field!r}",
        ) from None


def _evidence_of(name: str, spec: FieldSpec, content: object) -> Evidence:
    if not isinstance(content, Released) or content.disclosure is not spec.disclosure:
        raise _refusal(name, f"it is not a value released as {spec.disclosure.value}")
    if content.evidence is None:
        raise _refusal(name, "what it rests on is not known")
    return content.evidence


_SLOPES = "sums at coefficients that a coordinator chose (its steward grants them by per_record)"

_CONSENTS = {
    "response": "the response of each record (its steward grants it by share_response)",
    "slopes": _SLOPES,
    "all-slopes": _SLOPES,
    "hashed-ids": 'hashed ids (its steward grants them by share_ids, or preset "consortium")',
}
"""What has a consent of its own, as a refusal calls it."""


def _check_recipient(name: str, spec: FieldSpec, evidence: Evidence) -> None:
    """A field for a role is addressed to one site, any other is addressed to nobody."""
    if spec.for_role and not evidence.recipient:
        raise _refusal(name, "it is for one site's eyes and says not whose")
    if evidence.recipient and not spec.for_role:
        raise _refusal(name, "it is for one site's eyes and would be read by others")


def _refusal(name: str, rule: str) -> DisclosureError:
    sentence = f"the gate refused field {name!r}: {rule}"
    return DisclosureError(sentence, public=sentence)


def _has_gaps(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value).any())


# --------------------------------------------------------------------------- rules by kind


def _cells(name: str, evidence: Evidence, limits: Limits) -> None:
    if evidence.small(limits).any():
        rule = f"a cell rests on fewer than {limits.min_records} records"
        if evidence.rule == "sum" and evidence.n_columns:  # moments, so that cells are columns
            rule += "; leave out columns in which fewer rows than that, or none, differ"
        raise _refusal(name, rule)
    if evidence.dominated(limits).any():
        raise _refusal(name, f"one record has more than {limits.max_share:g} of a cell")


def _keyed(name: str, evidence: Evidence, limits: Limits) -> None:
    _cells(name, evidence, limits)
    if evidence.records is not None and (evidence.records == 0).any():
        raise _refusal(name, "a key without records")


def _moments(name: str, evidence: Evidence, limits: Limits) -> None:
    if evidence.n_records < 2 * evidence.n_columns:
        raise _refusal(name, "a moment matrix needs at least twice as many rows as columns")
    _cells(name, evidence, limits)


def _class_sums(name: str, evidence: Evidence, limits: Limits) -> None:
    if evidence.records is None or evidence.members is None:
        raise _refusal(name, "what it rests on is not known")
    _cells(name, evidence, limits)
    sizes = np.bincount(evidence.members[evidence.members >= 0], minlength=len(evidence.records))
    sizes = np.where(evidence.records.any(axis=1), sizes, 0)  # withheld classes rest on nothing
    if limits.min_records > 1 and ((sizes > 0) & (sizes < 2 * evidence.n_columns)).any():
        raise _refusal(name, "the sums of a class need at least twice as many rows as columns")


def _class_moments(name: str, evidence: Evidence, limits: Limits) -> None:
    faults = (class_moments_fault(part, limits) for part in evidence.parts)
    fault = next((fault for fault in faults if fault is not None), None)
    if fault is not None:
        raise _refusal(name, fault)


def _links(name: str, evidence: Evidence, limits: Limits) -> None:
    _cells(name, evidence, limits)
    if evidence.records is None:
        raise _refusal(name, "what it rests on is not known")
    rests_on = evidence.records[evidence.records > 0]
    # Columns that no link joins are told nothing of.
    told = limits.min_records > 1 and evidence.n_columns > 1
    if told and (not len(rests_on) or rests_on.min() < 2 * evidence.n_columns):
        raise _refusal(name, "linked columns are more than half the rows of a class")


def _classes(name: str, evidence: Evidence, limits: Limits) -> None:
    records = evidence.records
    # No class at all is fine: `model` makes sure that nothing but gaps is released then.
    if records is None or (records < limits.min_records).any():
        raise _refusal(name, f"a class rests on fewer than {limits.min_records} records")


def _enough(name: str, evidence: Evidence, limits: Limits) -> None:
    if 0 < evidence.n_records < limits.min_records:
        raise _refusal(name, f"it rests on fewer than {limits.min_records} records")


def _few_figures(name: str, evidence: Evidence, limits: Limits) -> None:
    _enough(name, evidence, limits)
    if limits.min_records > 1 and evidence.n_records < evidence.n_parameters:
        raise _refusal(name, "it holds more figures than records behind it")


def _linear(name: str, evidence: Evidence, limits: Limits) -> None:
    _enough(name, evidence, limits)
    if evidence.n_records < 2 * evidence.n_parameters:
        raise _refusal(name, "a linear model needs at least twice as many rows as parameters")


def _rounded(name: str, evidence: Evidence, limits: Limits) -> None:
    _cells(name, evidence, limits)
    records, steps = evidence.records, evidence.steps
    if records is None or steps is None:
        raise _refusal(name, "what it rests on is not known")
    # One over a number, times that number, may be a little less than 1.
    if limits.min_records > 1 and (steps * records < np.minimum(records, 1) * (1 - 1e-9)).any():
        raise _refusal(name, "it is rounded too finely for its number of records")


def _estimator(name: str, evidence: Evidence, limits: Limits) -> None:
    fault = estimator_fault(evidence, limits)
    if fault is not None:
        raise _refusal(name, fault)


def _fits(name: str, evidence: Evidence, limits: Limits) -> None:
    for part in evidence.parts or (evidence,):
        fault = fit_fault(part, limits)
        if fault is not None:
            raise _refusal(name, fault)


def _slopes(name: str, evidence: Evidence, limits: Limits) -> None:
    for part in evidence.parts or (evidence,):
        _enough(name, part, limits)


def _consented(name: str, evidence: Evidence, limits: Limits) -> None:
    """Nothing beyond the consent that `review` has checked by class."""


Rule = Callable[[str, Evidence, Limits], None]

RULES: dict[str, Rule] = {
    "count": _cells,
    "keyed-count": _keyed,
    "sum": _cells,
    "moments": _moments,
    "class-moments": _class_moments,
    "links": _links,
    "class-sums": _class_sums,
    "centroids": _classes,
    "linear": _linear,
    "summary": _enough,
    "figures": _few_figures,
    "rounded": _rounded,
    "estimator": _estimator,
    "estimators": _estimator,
    "fit": _fits,
    "fits": _fits,
    "slopes": _slopes,
    "all-slopes": _slopes,
    "per-record": _consented,
    "projection": _consented,
    "response": _consented,
    "hashed-ids": _consented,
    "noised": _consented,
}


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
        raise _refusal(name, "what it rests on is not known")
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
    last = series.get(evidence.series) or _nothing(masks, value)
    if last["masks"].shape != masks.shape or last["value"].shape != value.shape:
        raise _refusal("series", "a repeated sum has other cells or columns than before")
    columns = tuple(range(1, value.ndim))
    known = ~np.isnan(last["value"]).all(axis=columns)
    repeat = np.isnan(value).all(axis=columns) | (known & np.isnan(value).any(axis=columns))
    repeat, groups = _settle(masks, last, repeat, evidence, limits)
    value[repeat], masks[repeat] = last["value"][repeat], last["masks"][repeat]
    series[evidence.series] = {"masks": masks, "value": value, "groups": groups}
    return replaced(released, value), bool((repeat & known).any())


def _nothing(masks: np.ndarray, value: np.ndarray) -> dict[str, Any]:
    """What is known of a series before its first release."""
    return {
        "masks": np.zeros_like(masks),
        "value": np.full_like(value, np.nan),
        "groups": np.zeros(masks.shape[1], dtype=np.int64),
    }


def _settle(
    masks: np.ndarray,
    last: dict[str, Any],
    repeat: np.ndarray,
    evidence: Evidence,
    limits: Limits,
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
        small = [g for g in np.flatnonzero(new) if not _large(groups == g, evidence, limits)]
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


def _large(group: np.ndarray, evidence: Evidence, limits: Limits) -> bool:
    """Whether a group of records is large enough, and of enough entities."""
    if group.sum() < limits.min_records:
        return False
    if evidence.rule == "class-sums":
        if evidence.rows is None or evidence.member_entities is None:
            raise _refusal("series", "what it rests on is not known")
        return may_leave(evidence.rows[group], evidence.member_entities[group], limits)
    if evidence.member_entities is None:
        return True
    return len(np.unique(evidence.member_entities[group])) >= limits.min_entities
