"""Reference rows of a study, before anything runs: whether they are enough, and whose they are.

A site finds out by itself, from digests, whether rows that are offered to it are its own; this
only says it earlier, where its table is on this machine.
"""

from __future__ import annotations

import secrets

import numpy as np

from consilience.exceptions import PrivacyError
from consilience.numerics.own_rows import compare_rows, row_digests
from consilience.numerics.reference_average import ReferenceFacts, reference_facts
from consilience.protocol.method import SiteData
from consilience.sites.policy import Policy
from consilience.sites.reference import ReferenceRows


def facts_of(reference: ReferenceRows) -> ReferenceFacts:
    """Rank and conditioning; missing cells count as the mean of their column."""
    rows = reference.rows
    known = ~np.isnan(rows)
    total = np.where(known, rows, 0.0).sum(axis=0)
    mean = total / np.maximum(known.sum(axis=0), 1)
    return reference_facts(np.where(known, rows, mean))


def fact_line(reference: ReferenceRows) -> str:
    """What was read, in one line."""
    facts = facts_of(reference)
    kept = "" if facts.n_rows == reference.rows_read else f", {facts.n_rows} kept"
    return (
        f"{reference.rows_read} rows read{kept} ({reference.description}), {facts.n_columns} "
        f"columns of rank {facts.rank}"
    )


def own_rows_refusal(
    reference: ReferenceRows, data: SiteData, policy: Policy
) -> PrivacyError | None:
    """Say that a site will refuse reference rows as its own, if it will.

    Parameters
    ----------
    reference : ReferenceRows
    data : SiteData
        Its prepared table.
    policy : Policy
        One that protects no record refuses nothing.
    """
    if policy.min_records < 2 or not len(reference.rows):
        return None
    salt = secrets.token_bytes(16)
    found = compare_rows(
        row_digests(data.features, salt), row_digests(reference.rows, salt), policy.min_records
    )
    if not found.offered:
        return None
    return PrivacyError(
        f"{found.found} of the {len(reference.rows)} reference rows are rows of its table, more "
        "than chance explains, and reference rows go to all sites: name a file of public rows in "
        "[reference], or leave the section out and let the method draw its rows"
    )
