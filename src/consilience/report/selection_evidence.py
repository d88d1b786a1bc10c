"""Evidence in reports on held-out entries: the curve, the choice, what can be believed of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from consilience.report import figures_selection
from consilience.report.charts import minus
from consilience.report.figures_selection import Curve, value_words
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
    listed,
    numbers,
    percent,
    plural,
    site_name,
)

RULES = {
    "minimum": "the candidate with the smallest error was taken",
    "one-standard-error": "the simplest candidate within a standard error of the smallest error "
    "was taken",
}
KNOWN = (
    "Held-out entries are scattered over the table. The error applies to missing entries like "
    "these: not to whole missing rows or columns, nor to entries that are missing because of their "
    "values.",
    "Noise is assumed to be independent between entries. If neighbours share noise (time series, "
    "images, measurements in batches), too large a number is chosen, and no figure here shows it.",
    "Rows that occur twice, or nearly, predict one another: then, too, too large a number is "
    "chosen.",
    "The training sets of the folds overlap, so standard errors tend to be too small.",
)


# --------------------------------------------------------------------------- words


def predicted(curve: Curve, place: int) -> float:
    """Share of the simplest candidate's error that another one saves; NaN where it is not known.

    The simplest one predicts by means (rank 0, one cluster) where it is among the candidates.
    """
    if place < 0 or curve.kind not in ("rank", "n_clusters"):
        return math.nan
    # Rank 0 and one cluster predict by means: only they can be called that.
    first = {"rank": 0.0, "n_clusters": 1.0}[curve.kind]
    if curve.values[0] != first or not curve.error[0] > 0:
        return math.nan
    return float(1.0 - curve.error[place] / curve.error[0])


def near_words(curve: Curve) -> str:
    """Name the candidates that are within a standard error of the best."""
    # At an end of the grid neighbours say nothing of what lies beyond it.
    flat = [i for i in curve.flat if i != curve.minimum]
    if curve.at_edge or not flat or not math.isfinite(float(curve.se[curve.minimum])):
        return ""
    values = [value_words(curve.kind, float(curve.values[i])) for i in flat]
    if curve.kind == "alpha" and len(values) > 1:
        ends = (value_words("alpha", float(curve.values[i])) for i in curve.flat[[0, -1]])
        return (
            f"Penalties from {' to '.join(ends)} are within a standard error of the smallest "
            "error: the curve does not tell them apart."
        )
    is_are = "is" if len(values) == 1 else "are"
    many = "s" if len(values) > 1 and curve.name == "rank" else ""
    return (
        f"{curve.name.capitalize()}{many} {listed(values)} {is_are} within a standard error of the "
        "smallest error: the curve does not tell them apart."
    )


def edge_words(curve: Curve) -> str:
    """Say that the smallest error is where the grid ends."""
    if not curve.at_edge:
        return ""
    return (
        f"The smallest error is at the end of the grid, {curve.words(curve.minimum)}, and beyond "
        "it nothing was tried: this is no choice. Run the study again with a longer grid."
    )


def cautions(curve: Curve) -> list[str]:
    """What stands against the choice."""
    found = [edge_words(curve)]
    if not curve.known:
        found.append("No errors on held-out entries are known: nothing was chosen by them.")
    return [words for words in found if words]


# --------------------------------------------------------------------------- blocks


def choice(
    curve: Curve,
    chosen: int,
    rule: str,
    title: str,
    text: Sequence[str] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Block:
    """Show the error by candidate, and what was chosen.

    Parameters
    ----------
    curve : Curve
    chosen : int
        Place among the curve's candidates; -1 where nothing was chosen.
    rule : str
    title : str
    text : sequence of str
        Said first.
    columns : mapping of str to sequence of str, optional
        More columns of the table by their heads, in the order of the curve.
    """
    said = [*text]
    if curve.known:
        entries = f"{curve.n_entries:,} entries" if curve.n_entries else "Entries"
        said.append(
            f"{entries} were held out and predicted from the others; "
            f"{RULES.get(rule, 'one was taken')}."
        )
        said += [words for words in (near_words(curve),) if words]
    picture = None
    if curve.known:
        least = numbers([float(curve.error[curve.minimum])])[0]
        picture = Picture(
            f"selection-{curve.kind.replace('_', '-')}",
            figures_selection.plot_entry_curve(curve),
            "Mean squared error of a held-out entry by candidate; bars are standard errors"
            + (", thin lines parts of the entries." if len(curve.folds) > 1 else "."),
            f"Curve over {plural(len(curve.values), 'candidate')}, the smallest error {least} at "
            f"{curve.words(curve.minimum)}. The table below has the numbers.",
        )
    table = _table(curve, chosen, columns or {})
    return Block(title, tuple(said), edge_words(curve), picture, folded=(table,))


def _table(curve: Curve, chosen: int, columns: Mapping[str, Sequence[str]]) -> Table:
    marks = [
        "chosen" if i == chosen else "smallest" if i == curve.minimum else ""
        for i in range(len(curve.values))
    ]
    gains = [percent(predicted(curve, i)) for i in range(len(curve.values))]
    cells: dict[str, Sequence[str]] = {
        curve.name: [value_words(curve.kind, float(v)) for v in curve.values],
        "error": _precise(curve.error),
        "standard error": _precise(curve.se),
    }
    if any(gain != DASH for gain in gains):
        cells["less than the first by"] = gains
    cells |= dict(columns)
    cells[""] = marks
    kept = {head: column for head, column in cells.items() if any(c != DASH for c in column)}
    kept = {head: column for head, column in kept.items() if head or any(column)}
    rows = tuple(tuple(column[i] for column in kept.values()) for i in range(len(marks)))
    note = f"{DASH}: not told." if any(DASH in row for row in rows) else ""
    return Table("Error by candidate", tuple(kept), rows, note)


def _precise(values: Sequence[float] | np.ndarray) -> tuple[str, ...]:
    """Write errors with four digits or so: neighbours on a flat curve must be told apart."""
    # By the largest of the curve: its values are compared down the column.
    known = np.asarray(values, dtype=float)
    finite = np.abs(known[np.isfinite(known)])
    top = float(finite.max(initial=0.0))
    decimals = 4 if top < 10 else 3 if top < 100 else 1
    if top and top < 0.01:
        return tuple(minus(f"{v:.3e}") if math.isfinite(v) else DASH for v in known)
    return tuple(f"{v:,.{decimals}f}" if math.isfinite(v) else DASH for v in known)


def loadings(result: object, weights: np.ndarray, text: Sequence[str]) -> Block:
    """Show what the components are made of."""
    p = weights.shape[1]
    shown = min(p, figures_selection.MOST_ROWS)
    caption = (
        "Weight of each column in each component; the component that carries most stands first."
    )
    if shown < p:
        caption = f"The {shown} of {p:,} columns that weigh most. {caption}"
    picture = Picture(
        "selection-loadings",
        figures_selection.plot_loadings(result),
        caption,
        f"Map of colours of {plural(shown, 'column')} in {plural(len(weights), 'component')}.",
    )
    return Block("What the components are made of", tuple(text), picture=picture)


def by_site(
    curve: Curve, errors: Mapping[str, np.ndarray], entries: Mapping[str, int], chosen: int
) -> Table | None:
    """Show what each site's own entries say.

    Parameters
    ----------
    curve : Curve
    errors : mapping of str to (A,) array
        Sums of squared errors by site, in the order of the curve; NaN where they are not told.
    entries : mapping of str to int
    chosen : int
        Place among the curve's candidates; -1 where nothing was chosen.
    """
    rows = []
    for site in sorted(errors):
        mean = np.asarray(errors[site], dtype=float) / max(int(entries.get(site, 0)), 1)
        known = np.isfinite(mean)
        own = value_words(curve.kind, curve.values[np.nanargmin(mean)]) if known.any() else DASH
        at_choice = _precise(mean)[chosen] if chosen >= 0 else DASH
        rows.append((site_name(site), f"{entries.get(site, 0):,}", at_choice, own))
    if not rows:
        return None
    head = ("site", "held-out entries", "error at the choice", f"its own smallest: {curve.name}")
    note = f"{DASH}: not told." if any(DASH in row for row in rows) else ""
    return Table("Errors by site", head, tuple(rows), note)
