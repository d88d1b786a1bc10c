"""Evidence in reports of wide classification that all four methods share: rows, rules, choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.engines.federation import Run
from consilience.report import drawing, figures_wide_choice
from consilience.report.disclosure import simulated
from consilience.report.drawing import Z95
from consilience.report.figures_wide_choice import Candidates, candidates_of
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
    Tone,
    listed,
    numbers,
    percent,
    plural,
    site_name,
)

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
WIDE_CONFUSION = 12
"""Classes up to which a table of classes by predicted class is shown open."""


# --------------------------------------------------------------------------- rules


@dataclass(frozen=True, eq=False)
class Rules:
    """How rules did on held-out rows, the rule that was fitted first.

    Attributes
    ----------
    names : tuple of str
    n : int
        Rows that were held out; 0 where none tell.
    rates : (m,) array
        Share of them in a wrong class; NaN where it is not told.
    ends : (m, 2) array
        Ends of 95 % intervals (Wilson's).
    loss, loss_se, gain, gain_se : (m,) arrays
        Mean log loss, how much worse than the first each rule is, and standard errors.
    guess : float
        Share in a wrong class if all were put into the largest class.
    rounded : bool
        Whether sites rounded the numbers of rows in a wrong class: there are no intervals then.
    """

    names: tuple[str, ...]
    n: int
    rates: FloatArray
    ends: FloatArray
    loss: FloatArray
    loss_se: FloatArray
    gain: FloatArray
    gain_se: FloatArray
    guess: float
    rounded: bool = False

    @property
    def told(self) -> bool:
        """Whether anything tells how the fitted rule does."""
        return self.n > 0 and bool(np.isfinite([self.rates[0], self.loss[0]]).any())

    def clear(self, i: int) -> int:
        """1 where probabilities of the first rule are clearly better, -1 worse, 0 neither."""
        gain, error = float(self.gain[i]), float(self.gain_se[i])
        if not (math.isfinite(gain) and math.isfinite(error)) or abs(gain) <= Z95 * error:
            return 0
        return 1 if gain > 0 else -1

    @property
    def of_use(self) -> bool:
        """Whether the first rule is clearly better than the largest class for everybody."""
        most = self.rates[0] if self.rounded else self.ends[0, 1]
        return bool(most < self.guess)


def rounded(run: Run) -> bool:
    """Whether sites that protect records rounded how many rows are in a wrong class."""
    result: Any = run.result
    return hasattr(result, "site_errors") and len(simulated(run)) < len(result.sites)


def rules_of(result: Any, rounded: bool = False) -> Rules:
    """Read how the rules did on held-out rows.

    Parameters
    ----------
    result : result of one of the four methods
    rounded : bool, default False
        Whether sites rounded the numbers of rows in a wrong class.
    """
    n = int(np.nansum(np.asarray(result.n_held, dtype=float)))
    telling = int(getattr(result, "error_rows", n))
    wrong = np.asarray(result.errors, dtype=float)
    rates = wrong / telling if telling else np.full(len(wrong), np.nan)
    by_class = np.asarray(result.n_by_class, dtype=float)
    total = float(np.nansum(by_class))
    known = np.isfinite(by_class).all() and total > 0
    return Rules(
        names=tuple(str(name) for name in result.judged),
        n=n,
        rates=rates,
        ends=np.array([wilson(rate, 0 if rounded else telling) for rate in rates]).reshape(-1, 2),
        loss=np.asarray(result.log_loss, dtype=float),
        loss_se=np.asarray(result.log_loss_se, dtype=float),
        gain=np.asarray(result.log_loss_gain, dtype=float),
        gain_se=np.asarray(result.log_loss_gain_se, dtype=float),
        guess=1.0 - float(by_class.max()) / total if known else math.nan,
        rounded=rounded,
    )


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return the ends of Wilson's 95 % interval of a share of `n` rows."""
    if not n or not math.isfinite(share):
        return math.nan, math.nan
    scale = 1.0 + Z95**2 / n
    middle = (share + Z95**2 / (2 * n)) / scale
    half = Z95 * math.sqrt(share * (1.0 - share) / n + Z95**2 / (4 * n**2)) / scale
    return max(middle - half, 0.0), min(middle + half, 1.0)


def interval_words(rules: Rules, i: int = 0) -> str:
    """Write the interval of a rule's share."""
    if rules.rounded:
        return " (numbers that sites rounded)"
    low, high = (percent(end) for end in rules.ends[i])
    return f" (95 % interval {low} to {high})"


def beside_words(rules: Rules, skip: Sequence[str] = ()) -> list[str]:
    """Say how the probabilities of the first rule compare with the others', but for `skip`."""
    others = [(i, n) for i, n in enumerate(rules.names) if i and n not in skip]
    better = [n for i, n in others if rules.clear(i) > 0]
    worse = [n for i, n in others if rules.clear(i) < 0]
    known = np.isfinite(rules.gain) & np.isfinite(rules.gain_se)
    same = [n for i, n in others if known[i] and not rules.clear(i)]
    words = []
    if better:
        words.append(f"Its probabilities are clearly better than those of {listed(better)}.")
    if same:
        words.append(f"Beside {listed(same)} there is no clear difference of probabilities.")
    if worse:
        words.append(f"Better probabilities come from {listed(worse)}.")
    return words


def headline_words(rules: Rules, otherwise: str) -> str:
    """The answer in a sentence."""
    if not rules.told:
        return f"Not measured: no held-out rows tell how well classes are told apart. {otherwise}"
    if not math.isfinite(rules.rates[0]):
        return (
            f"Of {rules.n:,} held-out rows too few are in a wrong class to say how many; their "
            f"mean log loss is {rules.loss[0]:.3g}."
        )
    beside = [
        f"{percent(rules.rates[i])} by {name}"
        for i, name in enumerate(rules.names)
        if i and math.isfinite(rules.rates[i])
    ]
    words = (
        f"{'About ' * rules.rounded}{percent(rules.rates[0])} of {rules.n:,} held-out rows are put "
        "into a wrong class"
        f"{interval_words(rules)}"
    )
    return words + (f", {', '.join(beside)}." if beside else ".")


def tone_of(rules: Rules, cautions: Sequence[str]) -> Tone:
    """How sure the answer may sound."""
    if not rules.told or (math.isfinite(rules.rates[0]) and not rules.of_use):
        return "caution"
    others = range(1, len(rules.names))
    good = any(rules.clear(i) > 0 for i in others) and all(rules.clear(i) >= 0 for i in others)
    return "good" if good and not cautions else "plain"


def held_out(result: Any, rules: Rules, about: dict[str, str]) -> Block:
    """Show how the rules did on rows that took no part.

    Parameters
    ----------
    result : result of one of the four methods
    rules : Rules
    about : dict of str to str
        What each rule is.
    """
    named = [f"{name}: {about[name]}" for name in rules.names if name in about]
    text = [
        f"{plural(rules.n, 'row')} took no part in the fit and were classified by it, and by what "
        "it is compared with" + (f" ({'; '.join(named)})." if named else "."),
    ]
    if rules.rounded:
        text.append(
            "Sites that protect records round how many rows are in a wrong class, so that no row "
            "is told; small differences mean nothing."
        )
    picture = None
    if np.isfinite(rules.rates).any():
        picture = Picture(
            "wide-rules",
            figures_wide_choice.plot_rules(rules.names, rules.rates, rules.ends),
            "Share of held-out rows in a wrong class."
            + " Intervals are those of each share; the rules saw the same rows, so their "
            "differences are surer than intervals suggest." * (not rules.rounded),
            f"Dots for {plural(len(rules.names), 'rule')}. The table below has the numbers.",
        )
    warning = ""
    if math.isfinite(rules.guess) and math.isfinite(rules.rates[0]) and not rules.of_use:
        warning = (
            f"Putting every row into the largest class gets {percent(rules.guess)} wrong: the "
            "columns are not shown to tell the classes apart."
        )
    tables, folded = [_rule_table(rules)], [*_site_table(result)]
    confusion = _confusion_table(result)
    if confusion:
        (tables if len(result.levels) <= WIDE_CONFUSION else folded).append(confusion)
    return Block(
        "Held-out rows", tuple(text), warning, picture, tables=tuple(tables), folded=tuple(folded)
    )


def _rule_table(rules: Rules) -> Table:
    rows = [
        (
            name,
            percent(rules.rates[i]),
            f"{percent(rules.ends[i, 0])} to {percent(rules.ends[i, 1])}"
            if math.isfinite(rules.ends[i, 0])
            else DASH,
            with_error(rules.loss[i], rules.loss_se[i]),
            with_error(rules.gain[i], rules.gain_se[i]) if i else DASH,
        )
        for i, name in enumerate(rules.names)
    ]
    head = ("rule", "wrong", "95 % interval", "log loss", "worse than the first by")
    kept = [j for j in range(len(head)) if j < 2 or any(row[j] != DASH for row in rows)]
    note = ""
    if 3 in kept:
        note = "Log loss: mean of minus the logarithm of the probability of the right class, with "
        note += "its standard error. Worse by: of the same rows."
    if any(not math.isfinite(rate) for rate in rules.rates):
        note += f" {DASH}: too few to be told."
    cells = tuple(tuple(row[j] for j in kept) for row in rows)
    return Table("Rules on held-out rows", tuple(head[j] for j in kept), cells, note.strip())


def with_error(value: float, error: float) -> str:
    """Write a number with its standard error."""
    if not math.isfinite(value):
        return DASH
    first, *rest = numbers([value, error] if math.isfinite(error) else [value])
    return f"{first} {PLUS_MINUS} {rest[0]}" if rest else first


def _site_table(result: Any) -> list[Table]:
    if not hasattr(result, "site_errors"):
        return []
    shares = np.asarray(result.site_errors, dtype=float)
    held = np.asarray(getattr(result, "site_held", result.n_held), dtype=float)
    rows = tuple(
        (site_name(site), count_words(held[i]), *(percent(v) for v in shares[i]))
        for i, site in enumerate(result.sites)
    )
    head = ("site", "held-out rows", *(f"wrong by {name}" for name in result.judged))
    note = f"{DASH}: none, or too few to be told."
    return [Table("Held-out rows by site", head, rows, note)]


def _confusion_table(result: Any) -> Table | None:
    counts = np.asarray(getattr(result, "confusion", np.empty((0, 0))), dtype=float)
    if not np.isfinite(counts).any():
        return None
    names = [drawing.short(level, 40) for level in result.levels]
    rows = tuple(
        (name, *(count_words(v) for v in row)) for name, row in zip(names, counts, strict=True)
    )
    gaps = f" {DASH}: of classes with a small cell no count is told." * bool(np.isnan(counts).any())
    return Table(
        "Held-out rows by class (line) and predicted class (column)",
        ("class", *_apart(names)),
        rows,
        gaps.strip(),
    )


def _apart(names: list[str]) -> list[str]:
    """Heads of columns, no two alike."""
    return [f"{n} ({i + 1})" if names.count(n) > 1 else n for i, n in enumerate(names)]


def count_words(value: Any) -> str:
    """Write a number of rows."""
    number = float(value)
    return f"{number:,.0f}" if math.isfinite(number) else DASH


# --------------------------------------------------------------------------- rows


def rows_by_class(result: Any, extra: str = "") -> Block:
    """Show how many rows of each class there are, by site where there are several."""
    names = [drawing.short(level, 40) for level in result.levels]
    by_class = np.asarray(result.n_by_class, dtype=float)
    gaps = np.isnan(by_class).any()
    many = hasattr(result, "n_by_site")
    text = [extra] if extra else []
    tables = []
    if many:
        by_site = np.asarray(result.n_by_site, dtype=float)
        gaps = gaps or bool(np.isnan(by_site).any())
        rows = [("all sites", *(count_words(v) for v in by_class))]
        rows += [
            (site_name(site), *(count_words(v) for v in by_site[i]))
            for i, site in enumerate(result.sites)
        ]
        head = ("site", *_apart(names))
        tables.append(Table("Rows by site and class", head, tuple(rows)))
    else:
        total = float(np.nansum(by_class))
        pairs = [
            (name, count_words(n), percent(n / total) if total else DASH)
            for name, n in zip(names, by_class, strict=True)
        ]
        tables.append(Table("Rows by class", ("class", "rows", "share"), tuple(pairs)))
    if gaps:
        text.append("Small classes, and those by which they could be worked out, are not told.")
    return Block("The rows", tuple(text), tables=tuple(tables))


# --------------------------------------------------------------------------- choice


def choice(result: Any, title: str, text: tuple[str, ...], columns: dict[str, list[str]]) -> Block:
    """Show what was compared, and what was chosen.

    Parameters
    ----------
    result : result of one of the four methods
    title : str
    text : tuple of str
    columns : dict of str to list of str
        More columns of the table by their heads, in the order of the candidates.
    """
    found = candidates_of(result)
    picture = Picture(
        "wide-candidates",
        figures_wide_choice.plot_candidates(found),
        f"Every candidate by {found.among}.",
        f"Curve over {plural(len(found.values), 'candidate')}. The table below has the numbers.",
    )
    return Block(title, (*text, *edge_words(found)), "", picture, folded=(_table(found, columns),))


def edge_words(found: Candidates) -> list[str]:
    """Say that the densest candidate was chosen, beyond which nothing was tried."""
    values = found.values
    if found.kind != "alpha" or len(values) < 2 or found.chosen < 0:
        return []
    if values[found.chosen] == values.min() and values.min() > 0:
        return [
            "The smallest penalty of the grid was chosen: smaller ones, which link more, may do "
            "better (smallest, or alphas with 0)."
        ]
    return []


def _table(found: Candidates, columns: dict[str, list[str]]) -> Table:
    order = np.argsort(found.values)
    cells: dict[str, list[str]] = {
        "": [
            f"{v:.4g}" + (" (chosen)" if i == found.chosen else "")
            for i, v in enumerate(found.values)
        ]
    }
    if np.isfinite(found.errors).any():
        cells["wrong"] = [percent(v) for v in found.errors]
        cells["standard error"] = [percent(v) for v in found.spread]
    if np.isfinite(found.loss).any():
        cells[found.loss_name] = list(numbers(found.loss))
    cells |= columns
    head = ("alpha" if found.kind == "alpha" else "communities", *list(cells)[1:])
    rows = tuple(tuple(column[i] for column in cells.values()) for i in order)
    return Table("Every candidate", head, rows)
