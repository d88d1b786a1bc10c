"""Reference rows of a run: drawn from pooled moments, from N(0, I), or given by a person."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import StudyError
from consilience.numerics.reference_average import (
    ReferenceFacts,
    normal_reference,
    pool_moments,
    reference_facts,
)
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.protocol.phases.site_moments import site_moments

if TYPE_CHECKING:
    from consilience.averaging.protocol import ReferenceAveraging


ROWS_PER_COLUMN = 20
MOST_DRAWN = 4_000_000
"""Numbers in the reference rows that are drawn by default: fewer rows of many columns."""
MOST_NUMBERS = 30_000_000
"""Numbers in any reference rows: they go to every site."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Reference rows and where they come from.

    Attributes
    ----------
    rows : (m, p) array
        On the scale on which the sites fit.
    kind : {"moments", "normal", "rows"}
    facts : ReferenceFacts
    """

    rows: FloatArray
    kind: str
    facts: ReferenceFacts


def reference_of(
    method: ReferenceAveraging, ctx: CoordinatorContext
) -> Generator[Ask, Replies, Reference]:
    """Draw or take the reference rows; what is wrong with them is noted for the reader.

    Raises
    ------
    StudyError
        Rows that are not those of the study's columns, or more numbers than can be sent around.
    """
    p = len(ctx.feature_names)
    m = method.n_reference
    if m is None:
        m = max(2 * p, min(ROWS_PER_COLUMN * p, MOST_DRAWN // p))
    if isinstance(method.reference, str) and m * p > MOST_NUMBERS:
        raise StudyError(
            f"{m} reference rows of {p} columns are too much to send to every site: set "
            f"n_reference to {p} to {MOST_NUMBERS // p}, or choose among the columns"
        )
    moments = None
    if method.reference == "moments":
        found = yield from site_moments(ctx)
        mean, covariance = _pooled(ctx, found.n, found.means, found.products)
        rows = normal_reference(mean, covariance, m, ctx.rng)
        moments = covariance + np.outer(mean, mean)
        kind = "moments"
    elif method.reference == "normal":
        rows, kind = ctx.rng.standard_normal((m, p)), "normal"
    else:
        rows, kind = _given(method.reference, ctx), "rows"
    facts = reference_facts(rows, moments)
    for remark in facts.remarks():
        ctx.note(remark)
    return Reference(rows, kind, facts)


def _pooled(
    ctx: CoordinatorContext,
    n: dict[str, int],
    means: dict[str, FloatArray],
    products: dict[str, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Pooled moments of the sites that tell theirs."""
    sites = sorted(site for site in n if n[site] > 0)
    silent = [site for site in sites if site not in products]
    if len(silent) == len(sites):
        raise StudyError(
            "no site has rows enough to tell its sums of products (twice as many as columns), so "
            "no reference rows can be drawn: give public rows as the reference"
        )
    if silent:
        ctx.note(
            f"The reference rows are drawn from the moments of the other sites: "
            f"{', '.join(silent)} had fewer than twice as many rows as columns."
        )
    mean, covariance = pool_moments(
        [n[site] for site in sites],
        [means[site] for site in sites],
        [products.get(site) for site in sites],
    )
    flat = [
        name for name, v in zip(ctx.feature_names, np.diagonal(covariance), strict=True) if v <= 0
    ]
    if flat:
        ctx.note(
            f"No site told how {', '.join(flat)} vary (too few records in a cell, or constant): "
            "these columns are constant in the reference rows."
        )
    return mean, covariance


def _given(reference: object, ctx: CoordinatorContext) -> FloatArray:
    """Rows that a person gave, on the scale on which the sites fit."""
    rows = np.asarray(reference, dtype=float)
    p = len(ctx.feature_names)
    if rows.shape[1] != p:
        raise StudyError(
            f"the reference rows have {rows.shape[1]} columns and the study has {p} after its "
            f"preparation ({', '.join(ctx.feature_names[:8])}{', ...' if p > 8 else ''}): give "
            "one for each, in this order"
        )
    if ctx.scaling is not None:
        fill, centre, scale = ctx.scaling
        # The operations of the preparation, so that equal rows stay equal to the last bit.
        rows = (np.where(np.isnan(rows), fill, rows) - centre) / scale
    if not np.isfinite(rows).all():
        raise StudyError("the reference rows have missing cells: leave such rows out")
    return np.asarray(rows)
