"""Released fits of a site's own rows, and sums at coefficients that a coordinator chose.

A part of ``wire.disclosure`` in a module of its own.

=================  ==============  =============================================================
function           class           evidence
=================  ==============  =============================================================
local_fit          MODEL           records, parameters, effective number of records behind the
                                   curvature, largest share of one record in a cell of it
slopes             AGGREGATE       records
together           as its parts    that of the parts, each by itself
=================  ==============  =============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import ProtocolError
from consilience.wire.disclosure import _KEY, Evidence, Limits, Released
from consilience.wire.message import Disclosure

_TOGETHER = {"fit": "fits", "slopes": "all-slopes"}


def local_fit(
    value: FloatArray, *, rows: FloatArray, weights: FloatArray, n_parameters: int
) -> Released:
    """Release a fit of the site's own rows with the curvature of its loss.

    Parameters
    ----------
    value : array
        Coefficients and curvature, packed; empty where there is no fit to tell.
    rows : (n, q) array
        Rows of the design.
    weights : (n, k) array
        Weights of the rows in the curvature, whose cells are ``sum_i w_ik x_ij x_il``; the first
        column holds the total weight of each row.
    n_parameters : int

    Notes
    -----
    A fit of rows that it separates rests on the few that are nearest to its boundary: the weights
    of all others vanish. So the evidence counts effective rows, ``(sum w)^2 / sum w^2``.
    """
    n = len(rows)
    effective = np.zeros((), dtype=np.int64)
    share = np.zeros(())
    if n:
        total = weights[:, 0].sum()
        squares = (weights[:, 0] ** 2).sum()
        spread = total**2 / squares if squares > 0 else 0.0
        effective = np.asarray(np.floor(spread * (1 + 1e-12)), dtype=np.int64)
        share = np.asarray(
            _largest_share(rows, weights[:, 1:] if weights.shape[1] > 1 else weights)
        )
    evidence = Evidence("fit", n, effective, share, n_parameters=n_parameters)
    return Released(np.asarray(value, dtype=float), Disclosure.MODEL, evidence, _KEY)


def _largest_share(rows: FloatArray, weights: FloatArray) -> float:
    """Largest share of one record in any cell of the weighted cross-products."""
    top = 0.0
    for w in np.abs(weights).T:
        scaled = np.abs(rows) * np.sqrt(w)[:, None]
        peak_of = scaled.max(axis=0)
        size = scaled / np.where(peak_of > 0, peak_of, 1.0)  # so that no sum can overflow
        whole = size.T @ size
        for j in range(rows.shape[1]):
            peak = (size[:, j:] * size[:, [j]]).max(axis=0)
            found = np.divide(peak, whole[j, j:], out=np.zeros_like(peak), where=whole[j, j:] > 0)
            top = max(top, float(found.max()))
    return top


def slopes(value: FloatArray, *, n_records: int) -> Released:
    """Release sums over all records at coefficients that the coordinator chose.

    Loss, gradient and curvature of a curved loss at steep coefficients are sums over the records
    near a plane of somebody's choice: the policy must let values of single records leave.
    """
    evidence = Evidence("slopes", int(n_records), np.asarray(n_records, dtype=np.int64))
    return Released(np.asarray(value, dtype=float), Disclosure.AGGREGATE, evidence, _KEY)


def together(parts: Sequence[Released], kind: str) -> Released:
    """Release several fits, or several sums, as a tuple; each must pass the rule by itself.

    Parameters
    ----------
    parts : sequence of Released
    kind : {"fit", "slopes"}
    """
    evidences = tuple(part.evidence for part in parts if part.evidence is not None)
    if len(evidences) < len(parts) or any(e.rule != kind for e in evidences):
        raise ProtocolError("fits go together with fits that this site made, and sums with sums")
    said = [e.n_records for e in evidences if e.n_records]
    joined = Evidence(_TOGETHER[kind], min(said, default=0), parts=evidences)
    disclosure = Disclosure.MODEL if kind == "fit" else Disclosure.AGGREGATE
    values: tuple[Any, ...] = tuple(part.value for part in parts)
    return Released(values, disclosure, joined, _KEY)


def fit_fault(evidence: Evidence, limits: Limits) -> str | None:
    """Say why a fit may not leave a site; None if nothing speaks against it.

    Notes
    -----
    Rows >= 2 x parameters, effective rows >= parameters, both >= `min_records`, and no cell of the
    curvature that one record rules. Nothing is asked where a single record may be released.
    """
    if limits.min_records <= 1 or evidence.n_records == 0:
        return None
    if evidence.n_records < max(limits.min_records, 2 * evidence.n_parameters):
        return "a linear model needs at least twice as many rows as parameters"
    effective = 0 if evidence.records is None else int(evidence.records)
    if effective < max(limits.min_records, evidence.n_parameters):
        return "the curvature of a fit rests on too few rows: its classes are nearly separate"
    if evidence.dominated(limits).any():
        return f"one record has more than {limits.max_share:g} of a cell of a curvature"
    return None
