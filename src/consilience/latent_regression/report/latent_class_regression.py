"""Report of latent class regression: which classes, who is in them, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.latent_regression.protocol.result import (
    CLASSES,
    MIXED,
    NULL,
    RIDGE,
    LatentClassRegressionResult,
    lead,
    saved,
    saved_over,
    weighted,
)
from consilience.latent_regression.report import figures_latent
from consilience.latent_regression.report.figures_latent import (
    FIRST,
    RELEASES,
    over_sites,
    site_counts,
    site_shares,
)
from consilience.protocol.phases.secure_sums import ALL
from consilience.report import charts
from consilience.report.charts import Z95
from consilience.report.sections import (
    DASH,
    Run,
    TemplateReport,
    numbers,
    percent,
    plural,
    site_name,
)

MISSED_COVERAGE = 0.03
"""How far coverage may be from its level, beside chance, before the report says so."""
RESTLESS = 0.1
"""Share of entities that move, from which the classes are said not to have settled."""
LATELY = 5
"""Last rounds of which the share of labels that moved is averaged; not `average_rounds`."""
Rows = list[tuple[str, ...]]


class LatentClassRegressionReport(TemplateReport[LatentClassRegressionResult]):
    """Words, tables and figures on regressions in latent classes."""

    kind = LatentClassRegressionResult

    def context(self, result: LatentClassRegressionResult, run: Run) -> dict[str, Any]:
        """Numbers that the sentences are about."""
        fitted = figures_latent.fitted_classes(result)
        lines = figures_latent.traces(result)
        k, sites = result.n_classes, result.sites
        telling = int((np.asarray(result.n_entities) > 0).sum()) or len(sites)
        unknown = ~np.isfinite(site_shares(result))
        nobody = unknown.all(axis=1)
        mse = np.array([over_sites(result, column) for column in result.heldout_mse.T])
        covered, score = over_sites(result, result.coverage), result.heldout_log_score
        missed = abs(covered - result.level) - np.nan_to_num(figures_latent.chance(result)[0])
        mixed = saved_over(result, MIXED)
        lately = result.trace_moved[-LATELY:]
        moved = float(np.nanmean(lately)) if np.isfinite(lately).any() else math.nan
        counts, path = release_counts(result) * (not result.masked), result.merge_path
        cost = path[path[:, 1] < 0]
        fresh = figures_latent.release_shares(result)["released"]
        averaged = run.info.parameters.get("average_rounds")
        counted = counted_entities(result)
        return {
            "finite": math.isfinite,
            "plots": figures_latent,
            "k": k,
            "judged": result.n_judged,
            "classes": plural(k, "class", "classes"),
            "class_names": [f"class {j + FIRST}" for j in range(k)],
            "sites": ALL if result.masked else plural(len(sites), "site"),
            "target": charts.short(result.target_name, 40),
            "who": f"{_total(result.n_entities)} entities at "
            + (ALL if result.masked else plural(telling, "site")),
            "n_telling": n_telling(result),
            "gain": saved(result),
            "kinds_or_degrees": result.verdict,
            "mixed": mixed,
            "lead": lead(result),
            "beside_curves": result.over_curves if result.curve_told else [],
            "moved": moved,
            "restless": moved > RESTLESS,
            "covered": covered,
            "covers": not missed > MISSED_COVERAGE,
            "width": over_sites(result, result.interval_width),
            "no_better_than_mean": min(mse[CLASSES], mse[RIDGE]) >= mse[NULL],
            "score_gain": over_sites(result, score[:, CLASSES] - score[:, RIDGE]),
            "left_by_classes": mse[CLASSES] / mse[NULL],
            "left_by_ridge": mse[RIDGE] / mse[NULL],
            "errors_missing": not np.isfinite(result.heldout_mse).all(),
            "error_rows": error_rows(result),
            "fitted": fitted,
            "n_shown": len(figures_latent.most_telling(fitted)),
            "alike": alike(fitted.values, fitted.errors),
            "coefficient_rows": coefficient_rows(fitted),
            "size_rows": size_rows(result),
            "silent": _names(sites, nobody),
            "partly_told": _names(sites, unknown.any(axis=1) & ~nobody),
            "counted": counted,
            "counted_share": counted / max(float(np.nansum(result.n_entities)), 1.0),
            "everyone": _total(result.n_entities),
            "member_rows": member_rows(result),
            "merged": figures_latent.merge_round(result) is not None,
            "averaged": averaged if isinstance(averaged, int) else 0,
            "most": int(np.nanmax(result.trace_classes, initial=0)),
            # classes before the first merge that cost likelihood
            "likely": int(cost[0, 0]) + 1 if len(cost) else 0,
            "merge_rows": [(f"{int(n)}", *numbers([gain])) for n, gain in path],
            "traced": list(lines),
            "trace_rows": trace_rows(result, lines),
            "sums_by_kind": counts.sum(axis=0),
            "never": [] if result.masked else _names(sites, counts[:, 0] + counts[:, 1] == 0),
            # share of the class sums that were new, over sites and rounds
            "fresh": float(np.nanmean(fresh)) if np.isfinite(fresh).any() else math.nan,
            "release_rows": release_rows(result),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, agents, entities, events, noise, gain."""
        result = self.read(run)
        facts = [
            ("classes", f"{result.n_classes}"),
            ("agents", _total(result.n_agents)),
            ("entities", _total(result.n_entities)),
            ("events", _total(result.n_events)),
            ("rounds of labels", f"{result.rounds_run:,}"),
            ("noise (standard deviation)", numbers([result.sigma])[0]),
        ]
        if n_telling(result) and not result.n_replaced:
            facts.append(
                ("reduction of held-out error against one ridge", percent(saved(result).share))
            )
        return facts


def _total(values: Any) -> str:
    return f"{np.nansum(values):,.0f}"


def _names(sites: Sequence[str], chosen: Any) -> list[str]:
    return [site_name(site) for site, told in zip(sites, chosen, strict=True) if told]


def _count(value: Any) -> str:
    """Write a number of entities or events."""
    return f"{value:,.0f}" if math.isfinite(value) else DASH


# --------------------------------------------------------------------------- who belongs where


def counted_entities(result: Any) -> float:
    """How many entities the sums of the last rounds hold; 0 where they hold all of them."""
    held, everyone = float(np.sum(result.class_sizes)), float(np.nansum(result.n_entities))
    # Sites that did not tell how many they have are in neither number, or in the first only.
    told = everyone and np.isfinite(result.n_entities).all()
    return held if told and held <= everyone - 0.5 else 0.0


def member_rows(result: Any) -> Rows:
    """Sizes of each site, and its entities by class."""
    sizes = (result.n_agents, result.n_entities, result.n_events, *site_counts(result).T)
    rows = zip(*sizes, strict=True)
    return [
        (site_name(site), *map(_count, row)) for site, row in zip(result.sites, rows, strict=True)
    ]


# --------------------------------------------------------------------------- classes


def alike(values: FloatArray, errors: FloatArray) -> list[str]:
    """Pairs of classes that no coefficient tells apart, with as many looks as coefficients."""
    from scipy.stats import norm

    # Bonferroni over the coefficients
    limit = float(norm.isf(0.025 / max(values.shape[1], 1)))
    found = []
    for a, b in zip(*np.triu_indices(len(values), 1), strict=True):
        apart = np.abs(values[a] - values[b])
        noise = np.hypot(errors[a], errors[b])
        known = np.isfinite(apart) & np.isfinite(noise) & (noise > 0)
        if known.any() and (apart[known] <= limit * noise[known]).all():
            found.append(f"class {a + FIRST} and class {b + FIRST}")
    return found


def size_rows(result: Any) -> Rows:
    """Share, entities and events of each class, and how many sites sent sums of it."""
    told = np.isfinite(site_counts(result)).sum(axis=0)
    return [
        (
            f"class {k + FIRST}",
            percent(float(result.class_shares[k])),
            _count(result.class_sizes[k]),
            _count(result.class_events[k]),
            DASH if result.masked else f"{told[k]} of {len(result.sites)}",
        )
        for k in range(result.n_classes)
    ]


def with_halves(values: Sequence[float], halves: Sequence[float]) -> list[str]:
    """Numbers with half of their intervals."""
    words = numbers([*values, *halves])
    pairs = zip(words[: len(values)], words[len(values) :], strict=True)
    return [
        DASH if v == DASH else v if h == DASH else f"{v} \N{PLUS-MINUS SIGN} {h}" for v, h in pairs
    ]


def coefficient_rows(fitted: figures_latent.Fitted) -> Rows:
    """Coefficients of the classes with half of their intervals."""
    columns = zip(fitted.names, fitted.values.T, fitted.z * fitted.errors.T, strict=True)
    return [(charts.short(name, 60), *with_halves(v, half)) for name, v, half in columns]


# --------------------------------------------------------------------------- held-out error


def n_telling(result: Any) -> int:
    """Sites that held events out and tell what the classes lost on them."""
    return len(weighted(result, result.heldout_mse[:, CLASSES])[0])


def error_rows(result: Any) -> Rows:
    """Held-out events and errors, of all sites first."""

    def every(values: FloatArray) -> list[float]:
        return [over_sites(result, values), *values]

    mse = result.heldout_mse
    held, gain = result.heldout_effective, saved(result)
    error = np.where(result.heldout_gain_error > 0, Z95 * result.heldout_gain_error, np.nan)
    unit = over_sites(result, mse[:, RIDGE])
    columns = (
        ("all sites", *map(site_name, result.sites)),
        [_count(v) for v in (np.nansum(held) or math.nan, *held)],
        *(numbers(every(mse[:, model])) for model in (NULL, RIDGE, MIXED, CLASSES)),
        with_halves([gain.share * unit, *result.heldout_gain], [gain.half * unit, *error]),
        *(numbers(every(score)) for score in result.heldout_log_score.T),
        [percent(v) for v in every(result.coverage)],
        numbers(every(result.interval_width)),
    )
    return list(zip(*columns, strict=True))


# --------------------------------------------------------------------------- rounds and releases


def trace_rows(result: Any, lines: dict[str, FloatArray]) -> Rows:
    """What there was in each round, and how many sites reported."""
    written: dict[str, Any] = {"moved": percent, "n_classes": _count}
    columns: list[Sequence[str]] = [
        [written[name](float(v)) for v in values] if name in written else numbers(values)
        for name, values in lines.items()
    ]
    n = min(map(len, columns), default=0)
    told = [f"{t:,}" for t in result.reported.sum(axis=1)]
    told += [DASH] * (n - len(told))
    return list(zip(map(str, range(n)), *(column[:n] for column in (*columns, told)), strict=True))


def release_counts(result: Any) -> FloatArray:
    """Class sums that each site released anew, repeated and withheld over all rounds, (B, 3)."""
    kinds = [getattr(result, name).sum(axis=0) for name, _ in RELEASES]
    return np.stack(kinds, axis=1).astype(float)


def release_rows(result: Any) -> Rows:
    """Rounds in which each site reported, and its class sums."""
    told = result.reported.sum(axis=0)
    return [
        (
            site_name(site),
            f"{rounds:,} of {len(result.reported):,}",
            *(f"{v:,.0f}" for v in counts),
            percent(counts[0] / counts.sum() if counts.sum() else math.nan),
        )
        for site, rounds, counts in zip(result.sites, told, release_counts(result), strict=True)
    ]


REPORT = LatentClassRegressionReport
