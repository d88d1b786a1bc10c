"""What the gate may know about a released value, and the numbers of a policy that it goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray


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
    """

    min_records: int = 10
    max_share: float = 0.5
    min_entities: int = 3


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the gate may know about a released value. Never encoded."""

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
    parts: tuple[Evidence, ...] = ()
    directions: FloatArray | None = field(default=None, repr=False)
    columns: tuple[str, ...] = ()
    factor: FloatArray | None = field(default=None, repr=False)
    rows: FloatArray | None = field(default=None, repr=False)
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
    def joined(evidences: Sequence[Evidence]) -> Evidence:
        """Evidence of several values of one rule, side by side."""
        # Parts that rest on no record (abstentions) must not speak for the others.
        said = [e for e in evidences if e.n_records > 0]
        return Evidence(
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


def _entities(evidences: Sequence[Evidence]) -> IntArray | None:
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
