"""Final classes of sequences or categories at each site: chances, and how they differ.

Each site tells the chances of first states and steps (or of levels) within the final classes, and
within classes that it finds alone, matched to the final ones: those over a secret part of its rows,
so that the two are not to be subtracted. Both are made of sums over disjoint events, each of at
least `min_records` rows: see ``clustering.kernels.told_tables`` and
``docs/proofs/markov-models.md``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.coded_models import (
    absorbing_rows,
    drawn_rows,
    entries_of,
    fit_coded_model,
)
from consilience.clustering.estimators.coded_models import row_of_cell as rows_of_cells
from consilience.clustering.kernels.site_differences import (
    SiteTables,
    pooled_chances,
    site_differences,
)
from consilience.clustering.kernels.told_tables import Entries, Sums, ToldTables, told_tables
from consilience.clustering.protocol.local import (
    Table,
    category_blocks,
    joined_sums,
    table_of,
    told_spread,
)
from consilience.clustering.protocol.messages import (
    Compared,
    CompareRequest,
    Settings,
)
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.wire.disclosure import Limits, chances, model
from consilience.wire.message import Disclosure
from consilience.wire.rounding import coarse, step_above

_PARTS = ("chances", "kinds", "numbers")


# --------------------------------------------------------------------------- at the site


@step("compare", once=True)
def compare(
    message: CompareRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Compared, State]:
    """Tell chances within the final classes, and within classes that the site finds alone."""
    s = Settings.from_json(message.settings)
    table = table_of(data, s.model)
    final, k = state["final"], int(state["n_classes"])
    finals = _tables(table, s, final, k, site)
    alone, spread = _found_alone(table, s, site, final, k) if message.local else (None, np.empty(0))
    locals_ = _tables(table, s, alone, k, site) if alone is not None else _nothing(finals)
    told = {
        prefix + name: chances(
            getattr(one, name) if (one.cells >= 0).any() else getattr(one, name)[:0],
            cells=one.cells,
            sums=one.sums,
            disclosure=Disclosure.AGGREGATE,
        )
        for prefix, one in (("", finals), ("local_", locals_))
        for name in _PARTS
    }
    n_records = data.n_rows if len(spread) else 0
    told["start_spread"] = model(spread, kind="summary", n_records=n_records)
    return Compared(**told), {}


def _found_alone(
    table: Table, s: Settings, site: SiteContext, final: IntArray, k: int
) -> tuple[IntArray | None, FloatArray]:
    """Class of each row in the site's own model, called as the final class it mostly is.

    -1 for a fifth of the rows, which the site draws in secret; None where it finds no classes. And
    how far below the best the starts that were followed ended.
    """
    from scipy.optimize import linear_sum_assignment

    found = fit_coded_model(
        table.rows,
        table.sizes,
        model=s.model,
        n_clusters=k,
        rng=site.rng,
        n_init=s.n_init,
        min_records=site.limits.min_records,
        max_share=site.limits.max_share,
    )
    if found.model is None:
        return None, np.empty(0)
    joint = np.zeros((found.model.n_classes, k), dtype=np.int64)
    np.add.at(joint, (found.labels, final), 1)
    mine, theirs = linear_sum_assignment(joint, maximize=True)
    name = np.zeros(len(joint), dtype=np.int64)
    name[mine] = theirs
    kept = drawn_rows(len(final), site.secret_rng) > 0
    return np.where(kept, name[found.labels], -1), told_spread(found.start_spread)


@dataclass(frozen=True, eq=False)
class ClassTables:
    """Chances (K, C), kinds (K, C) and numbers (K, R), and what they rest on."""

    chances: FloatArray
    kinds: IntArray
    numbers: FloatArray
    cells: IntArray
    sums: Sums


def _nothing(like: ClassTables) -> ClassTables:
    """Nothing to tell, in the same shape."""
    return replace(like, cells=np.full_like(like.cells, -1), sums=joined_sums([]))


def _tables(table: Table, s: Settings, labels: IntArray, k: int, site: SiteContext) -> ClassTables:
    """Tables of classes of coded rows."""
    entries = entries_of(table.rows, s.model, table.sizes)
    absorbing = absorbing_rows(s.model, table.sizes)
    return class_tables(entries, labels, k, site.limits, absorbing=absorbing)


def class_tables(
    entries: Entries,
    labels: IntArray,
    k: int,
    limits: Limits,
    *,
    absorbing: NDArray[np.bool_] | None = None,
) -> ClassTables:
    """Tables of classes that may be told; one of fewer than `min_records` rows is left out.

    Parameters
    ----------
    entries : Entries
        What records add to the cells of the table.
    labels : (n,) int array
        Class of each record; -1 in none.
    k : int
        Classes.
    limits : Limits
    absorbing : (R,) bool array, optional
        See ``clustering.kernels.told_tables``.

    Returns
    -------
    ClassTables
    """
    sizes = np.bincount(labels[labels >= 0], minlength=k)
    cells = np.where((labels >= 0) & (sizes[labels] >= limits.min_records), labels, -1)
    told = told_tables(
        entries,
        (cells[:, None] == np.arange(k)).astype(float),
        min_records=limits.min_records,
        max_share=limits.max_share,
        absorbing=absorbing,
        joining=False,
    )
    shares, numbers = _rounded(told, entries.row_of_cell, limits)
    return ClassTables(shares, told.kinds, numbers, cells, told.sums)


def _rounded(told: ToldTables, rows: IntArray, limits: Limits) -> tuple[FloatArray, FloatArray]:
    """Chances (K, C) and numbers (K, R) by class, rounded where records are protected."""
    n_rows = told.told.shape[1]
    shares = told.chances(rows)
    numbers = np.stack([np.bincount(rows, each, n_rows) for each in told.values]).astype(float)
    if limits.min_records <= 1:
        return shares, numbers
    # Exact shares are ratios of whole numbers, which would tell their totals.
    steps = step_above(1.0 / np.maximum(numbers[:, rows], 1.0))
    shares = np.round(np.round(shares / steps) * steps, 12)
    zeros = np.zeros_like(numbers)
    return shares, coarse(zeros, zeros, numbers, zeros.astype(bool))[2]


# --------------------------------------------------------------------------- at the coordinator


def compared_sites(
    ctx: CoordinatorContext,
    settings: Settings,
    to: tuple[str, ...],
    n_clusters: int,
    *,
    local: bool,
) -> Generator[Ask, Replies, dict[str, Any]]:
    """Ask for chances within the final classes; returns fields of the result by name."""
    request = CompareRequest(settings=settings.to_json(), local=local)
    replies = ctx.require((yield Ask("compare", request, to=to)), at_least=0)
    shape = shape_of(ctx, settings.model)
    rows = rows_of_cells(settings.model, shape["sizes"])
    told = {site: _filled(reply, n_clusters, rows) for site, reply in replies.items()}
    facts: dict[str, Any] = {
        "model": settings.model,
        "states": shape["states"],
        "n_times": len(ctx.columns.sequence),
        "category_levels": shape["levels"],
        "site_chances": {s: x["chances"] for s, x in told.items()},
        "site_local_chances": {s: x["local_chances"] for s, x in told.items()},
        "site_kinds": {s: x["kinds"] for s, x in told.items()},
        "site_numbers": {s: x["numbers"] for s, x in told.items()},
        "start_spread": {
            s: np.asarray(r.start_spread.value)
            for s, r in replies.items()
            if len(r.start_spread.value)
        },
    }
    if not replies:
        return facts
    ensemble, alone = (
        SiteTables.of(
            [[x[p + "chances"], x[p + "kinds"], _behind(x[p + "numbers"])] for x in told.values()]
        )
        for p in ("", "local_")
    )
    pooled = pooled_chances(ensemble, rows)
    if settings.model == "markov-mixture":
        s = len(shape["states"])
        facts["class_initial"] = pooled[:, :s]
        facts["class_transition"] = pooled[:, s:].reshape(-1, s, s)
        parts = {"initial": np.array([0]), "transition": np.arange(1, s + 1)}
    else:
        facts["class_means"] = facts["class_means_scaled"] = pooled
        parts = {"levels": np.unique(rows)}
    if len(replies) > 1 and not np.isnan(ensemble.chances).all():
        names = tuple(replies)
        facts["differences"] = {
            "parts": tuple(parts),
            "pairs": tuple((a, b) for i, a in enumerate(names) for b in names[i + 1 :]),
            **site_differences(ensemble, alone, rows, parts, rng=ctx.rng),
        }
    return facts


def _behind(numbers: FloatArray) -> FloatArray:
    """What rows rest on, about, where a site told figures that are rounded down.

    Between a round figure a and the next one b it is ln(b / a) / (1 / a - 1 / b), the number whose
    inverse is that to be expected of a number whose logarithm may lie anywhere between: errors go
    with the inverse, and told figures would make them a fifth too large. Sites that tell exact
    numbers tell some that are not round.
    """

    def round_figures(values: FloatArray) -> FloatArray:
        return coarse(values, values, values, np.zeros(values.shape, dtype=bool))[2]

    known = numbers > 0
    if not known.any() or not np.array_equal(round_figures(numbers)[known], numbers[known]):
        return numbers
    a = np.where(known, numbers, 1.0)
    b = round_figures(a * 5 / 3)  # from one round figure to the next it is at most this
    return np.where(known, np.round(np.log(b / a) / (1 / a - 1 / b)), numbers)


def shape_of(ctx: CoordinatorContext, kind: str) -> dict[str, Any]:
    """States; or levels of each column."""
    if kind == "markov-mixture":
        states = tuple(ctx.columns.levels[ctx.columns.sequence[0]])
        return {"states": states, "levels": {}, "sizes": (len(states),)}
    levels = category_blocks(ctx.feature_names, ctx.columns.levels)
    return {"states": (), "levels": levels, "sizes": tuple(len(x) for x in levels.values())}


def _filled(reply: Compared, k: int, rows: IntArray) -> dict[str, NDArray[Any]]:
    """What a site told, with gaps where it told nothing."""
    n_rows = int(rows.max()) + 1
    found: dict[str, NDArray[Any]] = {}
    for name in (prefix + part for prefix in ("", "local_") for part in _PARTS):
        value = np.asarray(getattr(reply, name).value)
        if not value.size:
            width = n_rows if name.endswith("numbers") else len(rows)
            empty = np.nan if name.endswith("chances") else 0
            value = np.full((k, width), empty, dtype=value.dtype)
        found[name] = value
    return found
