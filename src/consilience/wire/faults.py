"""Why a released value of several parts may not leave a site, as one phrase without a count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consilience.wire.estimators.types import is_memorising

if TYPE_CHECKING:
    from consilience.wire.disclosure import Evidence, Limits


def estimator_fault(evidence: Evidence, limits: Limits) -> str | None:
    """Say why a fitted estimator, or one of a bundle of them, may not leave a site.

    Parameters
    ----------
    evidence : Evidence
        Of :func:`estimator`, or of a :func:`bundle` of them.
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
        faults = (estimator_fault(part, limits) for part in evidence.parts)
        return next((fault for fault in faults if fault is not None), None)
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


def class_moments_fault(part: Evidence, limits: Limits) -> str | None:
    """Say why the sums of products of a class over a block may not leave, None if they may."""
    if limits.min_records > 1 and part.n_records < max(limits.min_records, 2 * part.n_columns):
        return "a moment matrix of a class needs at least twice as many rows as columns"
    if part.small(limits).any() or part.dominated(limits).any():
        return "a cell of a class rests on too few records, or mostly on one"
    return None
