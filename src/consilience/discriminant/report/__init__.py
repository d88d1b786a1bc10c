"""Pages and figures of classification of wide tables, and what their four pages have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from consilience.discriminant.report import figures_choice
from consilience.discriminant.report.figures_choice import Candidates
from consilience.report.charts import Z95, short, wilson
from consilience.report.disclosure import simulated
from consilience.report.sections import (
    DASH,
    Run,
    TemplateReport,
    Tone,
    listed,
    numbers,
    percent,
    site_name,
    with_error,
)


class Rules:
    """How rules did on held-out rows, the rule that was fitted first.

    Parameters
    ----------
    result : result of one of the four methods
    rounded : bool, default False
        Whether sites rounded the numbers of rows in a wrong class: there are no intervals then.

    Attributes
    ----------
    names : tuple of str
    n : int
        Rows that were held out; 0 where none tell.
    rates : (m,) array
        Share of them in a wrong class; NaN where it is not told.
    ends : (m, 2) array
        Ends of 95% intervals (Wilson's).
    loss, gain : pairs of (m,) arrays
        Mean log loss, and how much worse than the first each rule is, with standard errors.
    guess : float
        Share in a wrong class if all were put into the largest class.
    """

    def __init__(self, result: Any, rounded: bool = False) -> None:
        self.names, self.rounded = result.judged, rounded
        self.loss = (result.log_loss, result.log_loss_se)
        self.gain = (result.log_loss_gain, result.log_loss_gain_se)
        self.n = int(np.nansum(np.asarray(result.n_held, dtype=float)))
        self._telling = telling = int(getattr(result, "error_rows", self.n))
        self.rates = np.asarray(result.errors, dtype=float) / (telling or np.nan)
        ends = wilson(self.rates, np.array(0.0 if rounded else telling))
        self.ends = np.clip(np.column_stack(ends), 0.0, 1.0)
        by_class = np.asarray(result.n_by_class, dtype=float)
        # NaN where the rows of some class are not told.
        self.guess = 1.0 - float(by_class.max() / (by_class.sum() or np.nan))

    @property
    def told(self) -> bool:
        """Whether anything tells how the fitted rule does."""
        return self.n > 0 and bool(np.isfinite([self.rates[0], self.loss[0][0]]).any())

    @property
    def beside(self) -> dict[str, str]:
        """How probabilities of the first rule are beside those of others, where that is known."""
        found = {}
        for name, gain, error in list(zip(self.names, *self.gain, strict=True))[1:]:
            if math.isfinite(gain) and math.isfinite(error):
                clear = abs(gain) > Z95 * error
                found[name] = "same" if not clear else "better" if gain > 0 else "worse"
        return found

    def those(self, how: str, skip: Sequence[str] = ()) -> str:
        """Names of the rules that are so beside the first, but for some."""
        return listed([n for n, found in self.beside.items() if found == how and n not in skip])

    @property
    def of_use(self) -> bool:
        """Whether the first rule is clearly better than the largest class for everybody."""
        # Rounding comes on top of what chance does.
        return bool(wilson(self.rates[0], np.array(float(self._telling)))[1] < self.guess)

    def told_share(self, share: float) -> str:
        """Write a share of rows in a wrong class; 0 that was rounded to may be a few."""
        return "few or none" if self.rounded and share == 0 else percent(share)

    def tone(self, cautions: str) -> Tone:
        """How sure the answer may sound."""
        if not self.told or (math.isfinite(self.rates[0]) and not self.of_use):
            return "caution"
        beside = self.beside.values()
        # Good: clearly better than some, and clearly worse than none.
        good = "better" in beside and "worse" not in beside
        return "good" if good and not cautions else "plain"

    def table(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Head and rows of the table of rules, without columns of which nothing is known."""
        told = np.isfinite(self.ends[:, 0])
        ends = [f"{percent(low)} to {percent(high)}" for low, high in self.ends]
        columns = {
            "rule": list(self.names),
            "wrong": list(map(self.told_share, self.rates)),
            "95% interval": [w if known else DASH for w, known in zip(ends, told, strict=True)],
            "log loss": list(map(with_error, *self.loss)),
            "worse than the first by": ["", *list(map(with_error, *self.gain))[1:]],
        }
        head = [h for i, h in enumerate(columns) if i < 2 or set(columns[h]) - {DASH, ""}]
        return head, list(zip(*(columns[h] for h in head), strict=True))


def counts(values: Any) -> list[str]:
    """Write numbers of rows."""
    return [f"{v:,.0f}" if math.isfinite(v) else DASH for v in np.asarray(values, dtype=float)]


def apart(names: Sequence[str]) -> list[str]:
    """Heads of columns, no two alike."""
    return [f"{n} ({i + 1})" if names.count(n) > 1 else n for i, n in enumerate(names)]


class ClassesReport(TemplateReport[Any]):
    """Words, tables and figures on classes that are told apart; sentences stand in ``classes.j2``.

    A page says by a class attribute whether its runs are over sites.
    """

    over_sites: ClassVar[bool] = False

    def context(self, result: Any, run: Run) -> dict[str, Any]:
        """Rules on held-out rows, the choice, and rows of the tables that all pages have."""
        # Sites that protect records round how many rows are in a wrong class.
        masked = getattr(result, "masked", False)
        asked = () if not self.over_sites else run.presets if masked else result.sites
        coarse = len(simulated(run)) < len(asked)
        rules = Rules(result, coarse)
        levels, by_class = [short(level, 40) for level in result.levels], result.n_by_class
        confusion = np.asarray(getattr(result, "confusion", np.empty((0, 0))), dtype=float)
        found = {
            "rules": rules,
            "over_sites": self.over_sites,
            "stays": getattr(result, "model_stays", ""),
            "remarks": [short(r, 500).rstrip(".") for r in getattr(result, "remarks", ())],
            "candidates": figures_choice.candidates_of(result),
            "candidate_table": partial(_candidate_table, result),
            "figures": figures_choice,
            "isfinite": np.isfinite,
            "confusion": confusion,
            "confusion_rows": [(n, *counts(row)) for n, row in zip(levels, confusion)],
            "levels": apart(levels),
        }
        if not self.over_sites:
            n = np.asarray(by_class, dtype=float)
            total = np.nansum(n)
            shares = [percent(v / total) if total else DASH for v in n]
            rows = list(zip(levels, counts(n), shares, strict=True))
            return found | {"rows": rows, "gaps": np.isnan(n).any()}
        told = np.vstack([by_class, result.n_by_site]).astype(float)
        sites = [site_name(site) for site in result.sites]
        held = counts(getattr(result, "site_held", result.n_held))
        wrong = np.asarray(result.site_errors, dtype=float)
        lines = [(s, *counts(row)) for s, row in zip(["all sites", *sites], told, strict=True)]
        return found | {
            # Of masked sums all sites are one, which has a line already.
            "rows": lines[: 1 if masked else None],
            "masked": masked,
            "gaps": np.isnan(told).any(),
            "judged": [f"wrong by {name}" for name in result.judged],
            "site_rows": [
                (s, n, *map(rules.told_share, e))
                for s, n, e in zip(sites, held, wrong, strict=True)
            ],
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, columns, rows, and the model."""
        result = self.read(run)
        fitted, held = counts([np.nansum(result.n_fitted), np.nansum(result.n_held)])
        return [
            ("classes", f"{len(result.levels):,}"),
            ("columns", f"{len(result.feature_names):,}"),
            ("rows that are fitted", fitted),
            ("held-out rows", held),
        ]


def _candidate_table(
    result: Any, more: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Head and rows of the table of candidates, with more columns by their heads."""
    found: Candidates = figures_choice.candidates_of(result)
    marks = [" (chosen)" * (i == found.chosen) for i in range(len(found.values))]
    first = "alpha" if found.kind == "alpha" else "communities"
    columns: dict[str, Sequence[str]] = {
        first: [f"{v:.4g}{mark}" for v, mark in zip(found.values, marks, strict=True)]
    }
    if np.isfinite(found.errors).any():
        columns["wrong"] = [percent(v) for v in found.errors]
        columns["standard error"] = [percent(v) for v in found.spread]
    if np.isfinite(found.loss).any():
        columns[found.loss_name] = numbers(found.loss)
    columns |= more
    rows = list(zip(*columns.values(), strict=True))
    return list(columns), [rows[i] for i in np.argsort(found.values)]
