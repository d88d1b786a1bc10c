"""What a released value rests on, and the rule of each kind by which the gate judges it.

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
weighted-sums  the same consent, and the rule of fits
per-record     consent of the policy
projection     the same; directions known of the columns, over all runs, within the policy's limit
response       consent of its own (`share_response`)
hashed-ids     consent of its own (`share_ids`)
noised         consent of the policy, epsilon within what the step has spent
=============  ====================================================================================

A rule says in one phrase, without a value or a count of the site, why a value may not leave. What
is under consent, directions and epsilon are compared by ``sites.gate``, which knows the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.wire.estimators.types import is_memorising


@dataclass(frozen=True)
class Limits:
    """The numbers of a site's policy on which rules by kind rest.

    Attributes
    ----------
    min_records : int
        Records that every released cell must rest on.
    max_share : float
        Largest share of one record in the sum of absolute contributions to a cell.
    min_entities : int
        Entities behind a class sum, where entities are known.
    max_detection : float
        How far one record may show in moments, in standard deviations (see `columns_for`).
    """

    min_records: int = 10
    max_share: float = 0.5
    min_entities: int = 3
    max_detection: float = np.inf

    def columns_for(self, n_records: int, *, products: bool) -> int:
        """Columns of which the means, or the products too, may ever be told over so many records.

        Whoever knows p columns of a person, and the population, tells from their means whether the
        person is among n records at sqrt(p / n) standard deviations, from means and products at
        sqrt(p / n + p^2 / 2 n), and one more 0/1 column of the person at 2 sqrt(p / (n - p)):
        docs/proofs/detection.md (1) to (3).
        """
        d2 = self.max_detection**2
        if self.min_records <= 1:
            return np.iinfo(np.int64).max
        if not products:  # squares are told with them
            return int(n_records * min(1.0, d2 / 2))
        if d2 == np.inf:
            return n_records // 2
        of_person = np.sqrt(1 + 2 * d2 * n_records) - 1
        return int(min(n_records / 2, of_person, n_records / (1 + 4 / d2)))

    def allow_columns(self, n_records: int, joint: int, alone: int) -> bool:
        """Whether so many columns with products, and others without, may be told together."""
        if self.min_records <= 1:
            return True
        if joint > self.columns_for(n_records, products=True):
            return False
        if self.max_detection == np.inf or not alone:
            return alone <= self.columns_for(n_records, products=False)
        return joint**2 / 2 + joint + 2 * alone <= self.max_detection**2 * n_records

    def columns_left(self, n_records: int, joint: int, alone: int) -> int:
        """How many more without products may be told beside these (`allow_columns`); 0 if none."""
        counted = alone + int(np.ceil(joint / 2 + joint**2 / 4))
        return max(self.columns_for(n_records, products=False) - counted, 0)


@dataclass(frozen=True, eq=False)
class Support:
    """What a released value rests on, its evidence before the gate. Never encoded."""

    rule: str
    n_records: int = 0
    records: IntArray | None = None
    share: FloatArray | None = None
    entities: IntArray | None = None
    n_columns: int = 0
    n_parameters: int = 0
    steps: FloatArray | None = None
    epsilon: float = 0.0
    mechanism: str = ""
    type_name: str = ""
    series: str = ""
    members: IntArray | None = None
    member_entities: NDArray[Any] | None = None
    parts: tuple[Support, ...] = ()
    directions: FloatArray | None = field(default=None, repr=False)
    columns: tuple[str, ...] = ()
    factor: FloatArray | None = field(default=None, repr=False)
    rows: Any = field(default=None, repr=False)
    recipient: str = ""

    def small(self, limits: Limits) -> NDArray[np.bool_]:
        """Cells that rest on some records, but on too few records or entities."""
        if self.records is None:
            return np.zeros((), dtype=bool)
        small = (self.records > 0) & (self.records < limits.min_records)
        if self.entities is not None:
            small |= (self.entities > 0) & (self.entities < limits.min_entities)
        return np.asarray(small)

    def dominated(self, limits: Limits) -> NDArray[np.bool_]:
        """Cells in which one record carries too large a share."""
        if self.share is None:
            return np.zeros((), dtype=bool)
        return np.asarray(~(self.share <= limits.max_share))

    @staticmethod
    def joined(evidences: Sequence[Support]) -> Support:
        """Support of several values of one rule, side by side."""
        # Parts that rest on no record (abstentions) must not speak for the others.
        said = [e for e in evidences if e.n_records > 0]
        return Support(
            evidences[0].rule,
            n_records=min((e.n_records for e in said), default=0),
            records=_side_by_side([e.records for e in evidences]),
            share=_side_by_side([e.share for e in evidences]),
            entities=_entities(evidences),
            n_columns=max(e.n_columns for e in evidences),
            n_parameters=max(e.n_parameters for e in evidences),
            steps=_side_by_side([e.steps for e in evidences]),
            epsilon=sum(e.epsilon for e in evidences),
        )


def _entities(evidences: Sequence[Support]) -> IntArray | None:
    """Entities behind each cell; where they are not known they do not stop a cell."""
    if all(e.entities is None for e in evidences):
        return None
    parts = []
    for e in evidences:
        records = np.ravel(np.zeros(()) if e.records is None else e.records)
        known = np.full(records.shape, np.iinfo(np.int64).max)
        parts.append(known if e.entities is None else np.ravel(e.entities))
    return np.concatenate(parts)


def _side_by_side(facts: Sequence[NDArray[Any] | None]) -> Any:
    flat = [np.ravel(f) for f in facts if f is not None]
    return np.concatenate(flat) if flat else None


# --------------------------------------------------------------------------- rules by kind

Rule = Callable[[Support, Limits], str | None]

_UNKNOWN = "what it rests on is not known"


def _first_fault(rule: Rule, parts: Iterable[Support], limits: Limits) -> str | None:
    """What a rule finds in the first part that it does not let pass."""
    faults = (rule(part, limits) for part in parts)
    return next((fault for fault in faults if fault is not None), None)


def _cells(evidence: Support, limits: Limits) -> str | None:
    if evidence.small(limits).any():
        fault = f"a cell rests on fewer than {limits.min_records} records"
        if evidence.rule == "sum" and evidence.n_columns:  # moments, so that cells are columns
            fault += "; leave out columns in which fewer rows than that, or none, differ"
        return fault
    if evidence.dominated(limits).any():
        return f"one record has more than {limits.max_share:g} of a cell"
    return None


def _keyed_count(evidence: Support, limits: Limits) -> str | None:
    empty = evidence.records is not None and (evidence.records == 0).any()
    return _cells(evidence, limits) or ("a key without records" if empty else None)


def _moments(evidence: Support, limits: Limits) -> str | None:
    if evidence.n_records < 2 * evidence.n_columns:
        return "a moment matrix needs at least twice as many rows as columns"
    if evidence.n_columns > limits.columns_for(evidence.n_records, products=True):
        return "so many columns need more rows, or a single record shows in their products"
    return _cells(evidence, limits)


def _class_sums(evidence: Support, limits: Limits) -> str | None:
    if evidence.records is None or evidence.members is None:
        return _UNKNOWN
    sizes = np.bincount(evidence.members[evidence.members >= 0], minlength=len(evidence.records))
    sizes = np.where(evidence.records.any(axis=1), sizes, 0)  # withheld classes rest on nothing
    fault = _cells(evidence, limits)
    few = limits.min_records > 1 and ((sizes > 0) & (sizes < 2 * evidence.n_columns)).any()
    if fault is None and few:
        return "the sums of a class need at least twice as many rows as columns"
    return fault


def class_moments_fault(part: Support, limits: Limits) -> str | None:
    """Say why the sums of products of a class over a block may not leave, None if they may."""
    if limits.min_records > 1 and part.n_records < max(limits.min_records, 2 * part.n_columns):
        return "a moment matrix of a class needs at least twice as many rows as columns"
    if part.small(limits).any() or part.dominated(limits).any():
        return "a cell of a class rests on too few records, or mostly on one"
    return None


def _links(evidence: Support, limits: Limits) -> str | None:
    fault = _cells(evidence, limits)
    if fault is not None or evidence.records is None:
        return fault or _UNKNOWN
    rests_on = evidence.records[evidence.records > 0]
    # Columns that no link joins are told nothing of.
    told = limits.min_records > 1 and evidence.n_columns > 1
    if told and (not len(rests_on) or rests_on.min() < 2 * evidence.n_columns):
        return "linked columns are more than half the rows of a class"
    return None


def _classes(evidence: Support, limits: Limits) -> str | None:
    records = evidence.records
    # No class at all is fine: `model` makes sure that nothing but gaps is released then.
    if records is None or (records < limits.min_records).any():
        return f"a class rests on fewer than {limits.min_records} records"
    return None


def _enough(evidence: Support, limits: Limits) -> str | None:
    if 0 < evidence.n_records < limits.min_records:
        return f"it rests on fewer than {limits.min_records} records"
    return None


def _figures(evidence: Support, limits: Limits) -> str | None:
    many = limits.min_records > 1 and evidence.n_records < evidence.n_parameters
    fault = "it holds more figures than records behind it" if many else None
    return _enough(evidence, limits) or fault


def _linear(evidence: Support, limits: Limits) -> str | None:
    few = evidence.n_records < 2 * evidence.n_parameters
    fault = "a linear model needs at least twice as many rows as parameters" if few else None
    return _enough(evidence, limits) or fault


def _rounded(evidence: Support, limits: Limits) -> str | None:
    fault = _cells(evidence, limits)
    records, steps = evidence.records, evidence.steps
    if fault is not None or records is None or steps is None:
        return fault or _UNKNOWN
    # One over a number, times that number, may be a little less than 1.
    if limits.min_records > 1 and (steps * records < np.minimum(records, 1) * (1 - 1e-9)).any():
        return "it is rounded too finely for its number of records"
    return None


def estimator_fault(evidence: Support, limits: Limits) -> str | None:
    """Say why a fitted estimator, or one of a bundle of them, may not leave a site.

    Parameters
    ----------
    evidence : Support
        Of ``disclosure.estimator``, or of a ``bundle`` of them.
    limits : Limits

    Returns
    -------
    str or None
        One phrase without a value or a count of the site, ``None`` if nothing speaks against it.

    Notes
    -----
    Where a single record may be released (``min_records`` of 1: one person holds all data) neither
    rows inside a model nor its number of parameters can tell more than the site may tell anyway.
    """
    if evidence.parts:
        return _first_fault(estimator_fault, evidence.parts, limits)
    if limits.min_records <= 1:
        return None
    if is_memorising(evidence.type_name):
        return f"a {evidence.type_name.rsplit('.', 1)[-1]} carries training rows"
    if evidence.n_records < limits.min_records:
        return f"it rests on fewer than {limits.min_records} records"
    if evidence.n_records < 2 * evidence.n_parameters:
        return "a model needs at least twice as many rows as parameters"
    if evidence.records is not None and (evidence.records < limits.min_records).any():
        return f"a leaf rests on fewer than {limits.min_records} records"
    return None


def fit_fault(evidence: Support, limits: Limits) -> str | None:
    """Say why a fit may not leave a site; None if nothing speaks against it.

    Notes
    -----
    Rows >= 2 x parameters, effective rows >= parameters, both >= `min_records`, and no cell of the
    curvature that one record rules. Nothing is asked where a single record may be released.
    """
    if limits.min_records <= 1 or evidence.n_records == 0:
        return None
    if evidence.parts:
        return _first_fault(fit_fault, evidence.parts, limits)
    if evidence.n_records < max(limits.min_records, 2 * evidence.n_parameters):
        return "a linear model needs at least twice as many rows as parameters"
    effective = 0 if evidence.records is None else int(evidence.records)
    if effective < max(limits.min_records, evidence.n_parameters):
        return "it rests on too few rows, as where classes are nearly separate"
    if evidence.dominated(limits).any():
        return f"one record has more than {limits.max_share:g} of a cell of a curvature"
    return None


def _class_moments(evidence: Support, limits: Limits) -> str | None:
    return _first_fault(class_moments_fault, evidence.parts, limits)


def _fits(evidence: Support, limits: Limits) -> str | None:
    return _first_fault(fit_fault, evidence.parts or (evidence,), limits)


def _slopes(evidence: Support, limits: Limits) -> str | None:
    return _first_fault(_enough, evidence.parts or (evidence,), limits)


def _consented(evidence: Support, limits: Limits) -> str | None:
    """Nothing beyond the consent that the gate has checked by class."""
    return None


RULES: dict[str, Rule] = {
    "count": _cells,
    "keyed-count": _keyed_count,
    "sum": _cells,
    "moments": _moments,
    "class-moments": _class_moments,
    "links": _links,
    "class-sums": _class_sums,
    "centroids": _classes,
    "linear": _linear,
    "summary": _enough,
    "figures": _figures,
    "rounded": _rounded,
    "estimator": estimator_fault,
    "estimators": estimator_fault,
    "fit": _fits,
    "fits": _fits,
    "slopes": _slopes,
    "all-slopes": _slopes,
    "weighted-sums": _fits,
    **dict.fromkeys(("per-record", "projection", "response", "hashed-ids", "noised"), _consented),
}
