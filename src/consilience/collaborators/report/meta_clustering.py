"""Report of meta clustering: who belongs together, and whether the rows could tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray
from consilience.collaborators.kernels import ENOUGH_POWER, cut
from consilience.collaborators.kernels import LONE_THRESHOLD as THRESHOLD
from consilience.collaborators.protocol.result import MetaClusteringResult
from consilience.collaborators.report import figures_meta
from consilience.report.charts import Z95, short
from consilience.report.sections import (
    DASH,
    Run,
    TemplateReport,
    listed,
    number,
    percent,
    plural,
    site_name,
)

SPELLED_OUT = 12
"""Sites up to which a sentence names the members of each group."""
FEWEST = 10
"""Sites in the table of those with the fewest partners."""
GAIN_WORDS = {
    "own_minus_group": "the model of the group instead of the site's own",
    "group_minus_all": "the model of all sites instead of the group's",
    "all_minus_shifted": "an intercept of the site, shrunken, on top of the model of all sites",
}
LOSSES = {
    "own": "own model",
    "group": "group's model",
    "all": "model of all",
    "shifted": "with the site's intercept",
}

Cells = Sequence[tuple[str, ...]]


class MetaClusteringReport(TemplateReport[MetaClusteringResult]):
    """Words, tables and figures on groups of sites."""

    kind = MetaClusteringResult

    def context(self, result: MetaClusteringResult, run: Run) -> dict[str, Any]:
        """Facts of the groups, and functions that count and tabulate what a part asks for."""
        counted = (pair_kinds, doubtful_pairs, tests_above, medians, comparison, merges_made, moved)
        tables = (site_rows, power_rows, gain_rows, loss_rows, candidate_rows)
        left_out, refused = sorted(result.left_out.items()), result.refused_candidates.items()
        return {
            **{function.__name__: function for function in (*counted, *tables)},
            "figures": figures_meta,
            "finite": np.isfinite,
            "threshold": THRESHOLD,
            "fewest": FEWEST,
            "n": len(result.sites),
            "groups": [listed([site_name(s) for s in members]) for members in result.groups],
            "sizes": [f"{len(members):,}" for members in result.groups],
            "spelled_out": len(result.sites) <= SPELLED_OUT,
            "verdict": verdict(result),
            "against": cut_against_rule(result),
            "tested": tested(result),
            "gains": figures_meta.gains(result),
            "gain_words": GAIN_WORDS,
            "losses": [words for key, words in LOSSES.items() if key in result.gain],
            "smallest": float(np.nanmin(result.cv_losses)) if len(result.cv_losses) else np.nan,
            "doubts": [
                (site_name(site), listed([site_name(s) for s in others[:FEWEST]]) + more(others))
                for site, others in result.not_told_apart.items()
            ],
            "left_out": [(site_name(site), why) for site, why in left_out],
            "refused": [(site_name(site), why) for site, why in sorted(refused)],
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Sites compared, groups, rows, power, gain."""
        result = self.read(run)
        facts = [
            *([("sites compared", f"{len(result.sites):,}")] if result.left_out else []),
            ("groups", f"{result.n_clusters:,}"),
            ("rows of these sites", f"{int(result.n_records.sum()):,}"),
        ]
        if tested(result) and result.n_clusters == 1:
            able = figures_meta.power_counts(result)
            facts.append(("pairs that could be told apart", f"{able[0]:,} of {sum(able):,}"))
        gained = "own_minus_group" in figures_meta.gains(result)
        if gained and result.status != "no-signal":
            facts.append(
                (
                    "reduction of loss by the group's model",
                    percent(result.overall_gain("own_minus_group")[0]),
                )
            )
        return facts


def more(others: Sequence[str]) -> str:
    """How many sites a list of the first ones leaves out."""
    return f", {len(others) - FEWEST:,} more" if len(others) > FEWEST else ""


# --------------------------------------------------------------------------- headline


def verdict(result: MetaClusteringResult) -> str:
    """Which sentence of the template is the answer: the first that the rows allow."""
    if result.status in ("one-site", "no-signal"):
        return result.status
    if result.status == "groups":
        if result.rule == "spectral":
            return "untested-groups"
        if result.chosen_by == "given":
            return "given-groups"
        mean, error = np.nan, np.nan
        if "group_minus_all" in figures_meta.gains(result):
            mean, error = result.overall_gain("group_minus_all")
        # with 95% confidence one model for all predicts better
        if mean - Z95 * error > 0:
            return "worse-groups"
        if not found_again(result):
            return "shaky-groups"
        return "cv-groups" if result.chosen_by == "cv" else "groups"
    if result.nobody_comparable:
        return "nobody"
    if result.status == "too-few-rows":
        return "too-few-rows"
    if result.rule == "spectral":
        return "spectral-one"
    if result.chosen_by == "given":
        return "given-one"
    strong, weak, apart = figures_meta.power_counts(result)
    return "weak-one" if weak + apart > strong else "one"


def tested(result: MetaClusteringResult) -> bool:
    """Whether at least one pair of sites was compared by the default rule."""
    return result.rule != "spectral" and bool(np.isfinite(figures_meta.pairs(result.z)).any())


def cut_against_rule(result: MetaClusteringResult) -> str:
    """How a given number of groups goes against the tests: too few, too many, or not at all."""
    heights = np.asarray(result.merges.get("heights", ()), dtype=float)
    thresholds = np.asarray(result.merges.get("thresholds", ()), dtype=float)
    made = len(result.sites) - result.n_clusters
    if np.any(heights[:made] > thresholds[:made]):
        return "too few"
    return "too many" if np.any(heights[made:] <= thresholds[made:]) else ""


def found_again(result: MetaClusteringResult) -> bool:
    """Whether resamples mostly keep groups together and apart; also where that is not known."""
    same = figures_meta.same_group(result)
    share = figures_meta.pairs(result.together)
    known = np.isfinite(share)
    within, between = share[known & same], share[known & ~same]
    if result.stability_runs == 0:
        return True
    return not (len(within) and within.mean() < 0.5) and not (len(between) and between.mean() > 0.5)


# --------------------------------------------------------------------------- groups and tests


def _shares(result: MetaClusteringResult, values: Any) -> FloatArray:
    """Losses by site in shares of the response variance; NaN where they are not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(values, dtype=float) / result.target_variance


def site_rows(result: MetaClusteringResult) -> Cells:
    """Group, rows, method, what it explains and what the group's model saves, by site."""
    order = figures_meta.site_order(result)
    columns = [result.explained, np.full(len(order), np.nan)]
    # Against the constant, record by record: the losses of both are high for the same rows.
    # results of earlier versions lack it
    if len(result.explained_error) == len(order):
        columns[1] = Z95 * result.explained_error
    if "own_minus_group" in figures_meta.gains(result):
        error = result.gain.get("own_minus_group_error", np.full(len(order), np.nan))
        columns += [_shares(result, result.gain["own_minus_group"]), Z95 * _shares(result, error)]
    return [
        (
            site_name(result.sites[i]),
            str(int(result.labels[i])),
            f"{int(result.n_records[i]):,}",
            short(result.chosen[i], 40),
            *(percent(column[i]) for column in columns),
        )
        for i in order
    ]


def tests_above(result: MetaClusteringResult) -> tuple[int, int, int]:
    """Pairs whose test is above the threshold, that were tested, and that were not."""
    values = figures_meta.pairs(result.z)
    known = np.isfinite(values)
    return int((values[known] > THRESHOLD).sum()), int(known.sum()), int((~known).sum())


def medians(result: MetaClusteringResult, values: FloatArray) -> Iterator[tuple[str, float]]:
    """Median of a matrix within and between groups, for those who cannot see the map."""
    same = figures_meta.same_group(result)
    shown = figures_meta.pairs(values)
    for where, which in (("within", same), ("between", ~same)):
        known = shown[which & np.isfinite(shown)] if len(shown) else shown
        if len(known):
            yield where, float(np.median(known))


def merges_made(result: MetaClusteringResult) -> dict[str, Any]:
    """The merges with their thresholds: how many were made, and which were the closest calls."""
    heights = np.asarray(result.merges["heights"], dtype=float)
    thresholds = np.asarray(result.merges["thresholds"], dtype=float)
    made = len(result.sites) - result.n_clusters
    last = int(np.argmax(heights[:made] - thresholds[:made])) if made else 0
    rows = [
        (
            str(step + 1),
            number(float(height)) if np.isfinite(height) else "nothing to compare",
            number(float(threshold)),
            "merged" if step < made else "not merged",
        )
        for step, (height, threshold) in enumerate(zip(heights, thresholds, strict=True))
    ]
    return {
        "made": made,
        "n": len(heights),
        "last": (heights[last], thresholds[last]),
        "first": (heights[made], thresholds[made]) if made < len(heights) else None,
        "parted": bool(np.isinf(heights).any()),
        "rows": rows,
    }


def moved(result: MetaClusteringResult) -> bool:
    """Whether sites moved after the merges: the groups are not the branches of the tree."""
    branches = cut(np.asarray(result.merges["ids"]), len(result.sites) - result.n_clusters)
    labels = np.asarray(result.labels)
    apart = (labels[:, None] == labels) != (branches[:, None] == branches)
    return bool(apart.any())


# --------------------------------------------------------------------------- how sure


def _told_apart(result: MetaClusteringResult) -> BoolArray:
    """Pairs (L, L) whose test is known, without the diagonal."""
    return np.asarray(np.isfinite(result.z) & ~np.eye(len(result.sites), dtype=bool))


def pair_kinds(result: MetaClusteringResult) -> tuple[int, int, int, int, float]:
    """Pairs in different groups, of power, without, and unknown; the median difference seen.

    Power and the difference are of pairs within groups.
    """
    kinds = figures_meta.power_kinds(result)
    seen = figures_meta.pairs(result.detectable)[(kinds == 1) | (kinds == 2)]
    divided, strong, weak, unknown = np.bincount(kinds, minlength=4).tolist()
    return divided, strong, weak, unknown, float(np.median(seen)) if len(seen) else np.nan


def power_rows(result: MetaClusteringResult) -> Cells:
    """What each site could have shown."""
    rows = []
    for i in figures_meta.site_order(result):
        mine = _told_apart(result)[i]
        values = result.detectable[i][mine]
        rows.append(
            (
                site_name(result.sites[i]),
                f"{int(mine.sum()):,}",
                f"{int((result.power[i][mine] >= ENOUGH_POWER).sum()):,}",
                percent(float(np.median(values))) if len(values) else DASH,
                percent(float(values.min())) if len(values) else DASH,
            )
        )
    return rows


def doubtful_pairs(result: MetaClusteringResult) -> tuple[int, int, int]:
    """Pairs known from resamples, those that fell together now and then, and groups' that did not.

    The second count is of pairs between 20 and 80%, the third of pairs of one group below 50%.
    """
    shown = figures_meta.pairs(result.together)
    known = np.isfinite(shown)
    doubtful = known & (shown > 0.2) & (shown < 0.8)
    apart = known & figures_meta.same_group(result) & (shown < 0.5)
    return int(known.sum()), int(doubtful.sum()), int(apart.sum())


def gain_rows(result: MetaClusteringResult) -> Cells:
    """What each way of working together saved, over all sites and at single ones."""
    rows = []
    for key in figures_meta.gains(result):
        mean, error = result.overall_gain(key)
        value = _shares(result, result.gain[key])
        half = Z95 * _shares(result, result.gain[f"{key}_error"])
        rows.append(
            (
                GAIN_WORDS[key],
                percent(mean),
                f"{percent(mean - Z95 * error)} to {percent(mean + Z95 * error)}",
                f"{int((value - half > 0).sum()):,}",
                f"{int((value + half < 0).sum()):,}",
                f"{int(np.isfinite(value + half).sum()):,}",
            )
        )
    return rows


def loss_rows(result: MetaClusteringResult) -> Cells:
    """Loss of each model at each site, on held-out rows."""
    shares = [_shares(result, result.gain[key]) for key in LOSSES if key in result.gain]
    order = figures_meta.site_order(result) if shares else ()
    return [(site_name(result.sites[i]), *(percent(v[i]) for v in shares)) for i in order]


# --------------------------------------------------------------------------- material


def comparison(result: MetaClusteringResult) -> dict[str, Any]:
    """Which pairs could be compared, on what share of the rows, and who stands alone.

    The rows of the table are those of the sites with the fewest partners.
    """
    n, off = len(result.sites), ~np.eye(len(result.sites), dtype=bool)
    partners = _told_apart(result).sum(axis=1)
    effective = np.where(off, np.asarray(result.effective, dtype=float), np.nan)
    share = effective / np.asarray(result.n_records, dtype=float)[None, :]
    share = share[np.isfinite(share)]
    rows = []
    # fewest partners first, ties in the order of the sites
    for i in np.lexsort((np.arange(n), partners))[:FEWEST]:
        known = effective[np.isfinite(effective[:, i]), i]
        least = (f"{known.min():,.0f}", f"{np.median(known):,.0f}") if len(known) else (DASH, DASH)
        shown = f"{int(result.n_records[i]):,}", f"{int(partners[i]):,} of {n - 1:,}"
        rows.append((site_name(result.sites[i]), *shown, *least))
    return {
        # the matrix holds each pair twice
        "total": n * (n - 1) // 2,
        "known": int(partners.sum()) // 2,
        "share": (float(np.median(share)), float(share.min())) if len(share) else None,
        "alone": [site_name(result.sites[i]) for i in np.flatnonzero(partners == 0)],
        "rows": rows,
    }


def candidate_rows(result: MetaClusteringResult) -> tuple[list[str], list[str], Cells]:
    """Names of the candidates, at how many sites each was chosen, and their losses by site."""
    names = [short(c, 40) for c in result.candidates]
    count = Counter(short(c, 40) for c in result.chosen if c)
    chosen = [f"{name} at {plural(k, 'site')}" for name, k in count.most_common()]
    losses = np.asarray(result.candidate_losses, dtype=float)
    if not len(names) or losses.shape != (len(result.sites), len(names)):
        return names, chosen, []
    unit = np.asarray(result.target_variance, dtype=float)
    rows = [
        (
            site_name(result.sites[i]),
            short(result.chosen[i], 40),
            *(percent(float(v / unit[i])) if unit[i] > 0 else DASH for v in losses[i]),
        )
        for i in figures_meta.site_order(result)
    ]
    return names, chosen, rows


REPORT = MetaClusteringReport
