"""Report of meta clustering: who belongs together, and whether the rows could tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.collaborators.kernels import LONE_THRESHOLD as THRESHOLD
from consilience.collaborators.protocol.result import MetaClusteringResult
from consilience.collaborators.report import figures_meta, meta_evidence
from consilience.collaborators.report.meta_evidence import contrast, response, tested
from consilience.report import drawing
from consilience.report.drawing import Z95
from consilience.report.run import Run
from consilience.report.sections import (
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    Tone,
    listed,
    number,
    percent,
    plural,
    site_name,
)

SPELLED_OUT = 12
"""Sites up to which a sentence names the members of each group."""


class MetaClusteringReport(MethodReport):
    """Words, tables and figures on groups of sites."""

    def headline(self, run: Run) -> Headline:
        """Say what was found, and never more than the rows can tell."""
        result = _result(run)
        text, tone = _verdict(result)
        more = [result.power_sentence()]
        if result.status != "no-signal":
            more += [result.stability_sentence(), result.gain_sentence()]
        if result.left_out:
            count = plural(len(result.left_out), "site has", "sites have")
            more.append(f"{count} no group: {listed(sorted(result.left_out))} (why: see below).")
        return Headline(text, tone, tuple(m for m in more if m))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Sites compared, groups, rows, power, gain."""
        result = _result(run)
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
                ("saved by the group's model", percent(result.overall_gain("own_minus_group")[0]))
            )
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Groups, tests, merges, power, gain, stability, candidates."""
        result = _result(run)
        blocks = [_by_site(result)]
        if len(result.sites) > 1:
            if result.rule == "spectral":
                blocks += _spectral(result)
            elif tested(result):
                blocks.append(_tests(result))
                if "ids" in result.merges:
                    blocks.append(_merges(result))
            if len(result.cv_losses):
                blocks.append(_held_out(result))
            if result.rule != "spectral":
                blocks.append(meta_evidence.power(result))
            if result.stability_runs > 0:
                blocks.append(meta_evidence.stability(result))
        if figures_meta.gains(result):
            blocks.append(meta_evidence.gain(result))
        blocks.append(meta_evidence.comparability(result))
        blocks.append(meta_evidence.candidates(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """Sites without a group and candidates that may not travel."""
        result = _result(run)
        words = [
            f"{drawing.short(site, 60)} has no group: {why}."
            for site, why in sorted(result.left_out.items())
        ]
        if result.exchange == "models" and len(result.sites) > 1:
            words.append(
                "One gap in each row of excess losses is no withholding: a site's own model is not "
                "compared with itself. A candidate that could not be tried leaves a gap in the "
                "losses on halves."
            )
        if result.refused_candidates:
            sites = [site_name(site) for site in sorted(result.refused_candidates)]
            words.append(
                f"Candidates that a rule or a failure shut out: at {listed(sites)} (the evidence "
                "names them)."
            )
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What the method cannot know."""
        return _limits(_result(run))


def _result(run: Run) -> MetaClusteringResult:
    if not isinstance(run.result, MetaClusteringResult):
        raise TypeError("the run is not one of meta-clustering")
    return run.result


# --------------------------------------------------------------------------- headline


def _verdict(result: MetaClusteringResult) -> tuple[str, Tone]:
    """Headline and its tone."""
    n = len(result.sites)
    if result.status == "groups":
        return _verdict_groups(result)
    if result.status == "one-site":
        found = f"Only {site_name(result.sites[0])}" if n else "No site"
        return f"{found} could be used, so nobody was compared with anybody.", "caution"
    if result.status == "no-signal":
        text = (
            f"Nothing to compare: over the {n} sites, models predict {response(result)} no better "
            "than a constant."
        )
        if result.n_clusters > 1:
            text += f" The {result.n_clusters} groups formed all the same differ in level at most."
        return text, "caution"
    if result.nobody_comparable:
        return result.answer(), "caution"
    if result.status == "too-few-rows":
        return (
            f"Too few rows to tell: the {n} sites were not told apart, but most pairs of them "
            "would not have been even if they had nothing in common.",
            "caution",
        )
    text = f"No evidence of groups: the {n} sites are compatible with one relationship"
    if result.rule == "spectral":
        return f"One group: the spectral rule did not divide the {n} sites.", "caution"
    if result.chosen_by == "given":
        return f"One group, as the study asked: the {n} sites were not divided.", "plain"
    strong, weak, apart = figures_meta.power_counts(result)
    if weak + apart > strong:
        return f"{text}, though many pairs had too few rows to show a difference.", "caution"
    return f"{text}.", "plain"


def _verdict_groups(result: MetaClusteringResult) -> tuple[str, Tone]:
    n, k = len(result.sites), result.n_clusters
    if k == n:
        made = f"All {n} sites differ: no two of them share one relationship"
    else:
        made = f"{n} sites fall into {plural(k, 'group')}: {_sizes(result)}"
    if result.rule == "spectral":
        return (
            f"{made}. The spectral rule tests nothing: this may be a cut of like sites.",
            "caution",
        )
    if result.chosen_by == "given":
        against = _cut_against_rule(result)
        if against:
            return f"{made}, as the study asked; {against}.", "caution"
        return f"{made}, as the study asked.", "plain"
    mean, error = _overall(result, "group_minus_all")
    if mean - Z95 * error > 0:
        return (
            f"{made}. On held-out rows, however, the model of all sites predicts better than that "
            "of the groups.",
            "caution",
        )
    if not _found_again(result):
        return f"{made}, but resamples of the rows seldom repeat these groups.", "caution"
    if result.chosen_by == "cv":
        against = _cut_against_rule(result)
        if against:
            return f"{made}, chosen by held-out loss; {against}.", "caution"
        return f"{made}, chosen by held-out loss.", "good"
    return f"{made}.", "good"


def _sizes(result: MetaClusteringResult) -> str:
    if len(result.sites) <= SPELLED_OUT:
        return "; ".join(listed([site_name(s) for s in members]) for members in result.groups)
    sizes = [f"{len(members):,}" for members in result.groups]
    return f"{listed(sizes, 8)} sites"


def _cut_against_rule(result: MetaClusteringResult) -> str:
    """Say where a given number of groups goes against the tests."""
    heights = np.asarray(result.merges.get("heights", ()), dtype=float)
    thresholds = np.asarray(result.merges.get("thresholds", ()), dtype=float)
    made = len(result.sites) - result.n_clusters
    if np.any(heights[:made] > thresholds[:made]):
        return "the tests speak against some of these unions"
    if np.any(heights[made:] <= thresholds[made:]):
        return "the tests do not tell all of these groups apart"
    return ""


def _found_again(result: MetaClusteringResult) -> bool:
    """Whether resamples mostly keep groups together and apart; also where that is not known."""
    same = figures_meta.same_group(result)
    share = figures_meta.pairs(result.together)
    known = np.isfinite(share)
    within, between = share[known & same], share[known & ~same]
    if result.stability_runs == 0:
        return True
    return not (len(within) and within.mean() < 0.5) and not (len(between) and between.mean() > 0.5)


def _overall(result: MetaClusteringResult, key: str) -> tuple[float, float]:
    if key not in figures_meta.gains(result):
        return float("nan"), float("nan")
    return result.overall_gain(key)


# --------------------------------------------------------------------------- groups and tests


def _by_site(result: MetaClusteringResult) -> Block:
    order = figures_meta.site_order(result)
    explained = result.explained
    # Against the constant, record by record: the losses of both are high for the same rows.
    known = len(result.explained_error) == len(order)
    error = Z95 * result.explained_error if known else np.full(len(order), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.asarray(result.gain.get("own_minus_group", np.full(len(order), np.nan)))
        gain_error = np.asarray(
            result.gain.get("own_minus_group_error", np.full(len(order), np.nan))
        )
        gain, gain_error = gain / result.target_variance, Z95 * gain_error / result.target_variance
    with_gain = "own_minus_group" in figures_meta.gains(result)
    rows = tuple(
        (
            site_name(result.sites[i]),
            str(int(result.labels[i])),
            f"{int(result.n_records[i]):,}",
            drawing.short(result.chosen[i], 40),
            percent(explained[i]),
            percent(error[i]),
            *((percent(gain[i]), percent(gain_error[i])) if with_gain else ()),
        )
        for i in order
    )
    head = (
        *("site", "group", "rows", "chosen method", "explained", "\N{PLUS-MINUS SIGN}"),
        *(("saved by the group's model", "\N{PLUS-MINUS SIGN} ") if with_gain else ()),
    )
    text = []
    if result.status == "groups" and len(order) <= SPELLED_OUT:
        text = [
            f"Group {g}: {listed([site_name(s) for s in members])}."
            for g, members in enumerate(result.groups)
        ]
    note = (
        f"Explained: share of the {'loss of the best constant' if result.levels else 'variance'} "
        f"of {response(result)} at the site that its own method explains, cross-fitted; below 0 "
        "it is worse than a constant. \N{PLUS-MINUS SIGN} is half of a 95 % interval."
    )
    tables = [Table("Every site", head, rows, note)]
    if result.left_out:
        out = tuple((site_name(site), why) for site, why in sorted(result.left_out.items()))
        tables.append(Table("Sites without a group", ("site", "why"), out))
    return Block("Who belongs where", tuple(text), tables=tuple(tables))


def _tests(result: MetaClusteringResult) -> Block:
    values = figures_meta.pairs(result.z)
    known = values[np.isfinite(values)]
    above = int((known > THRESHOLD).sum())
    missing = len(values) - len(known)
    text = [
        "Every site's model was tried on every other site's rows. z says how much worse the two "
        f"do on each other's rows than each one's own method, beyond a margin of "
        f"{percent(result.margin, 0)} of the response variance, in standard errors: around 0 and "
        f"below, one relationship will do; above {THRESHOLD}, two single sites are kept apart.",
        f"{above:,} of {plural(len(known), 'pair')} that could be compared lie above {THRESHOLD}. "
        "With many pairs some do so by chance, which is why groups are judged by means over "
        "pairs.",
    ]
    if "ids" not in result.merges:
        text.append(
            "The groups are those of the run that this one follows. A newcomer joined the group of "
            f"smallest mean z if that was at most {THRESHOLD}; the others were grouped among "
            "themselves."
        )
    words = "Blue: compatible; orange: told apart; white: on the threshold for two single sites."
    if missing:
        words += " Hatched: could not be compared."
    picture = Picture(
        "tests",
        figures_meta.plot_pairwise_tests(result),
        f"Test of each pair of sites; frames are groups. {words}",
        f"Map of {plural(len(known), 'test')} between {plural(len(result.sites), 'site')} ordered "
        f"by group; {contrast(result, result.z, 'z', '{:.1f}')}.",
    )
    return Block("Which sites differ", tuple(text), picture=picture)


def _merges(result: MetaClusteringResult) -> Block:
    heights = np.asarray(result.merges["heights"], dtype=float)
    thresholds = np.asarray(result.merges["thresholds"], dtype=float)
    made = len(result.sites) - result.n_clusters
    text = [
        "Sites, and then groups of sites, were merged as long as the mean z between the two parts "
        f"stayed below a threshold. It is {THRESHOLD} for two single sites and falls to "
        f"{figures_meta.LARGE_GROUP_THRESHOLD} for two large groups, because a mean over many "
        "pairs is less noisy than one pair. Each merge is therefore judged by a threshold of its "
        "own (short upright mark), not by one line for all.",
        f"{made:,} of {plural(len(heights), 'merge')} "
        f"{'was' if made == 1 else 'were'} made{_last_and_first(heights, thresholds, made)}.",
    ]
    if _relocated(result):
        text.append(
            "Afterwards, sites that stood closer to another group moved there, so the groups are "
            "not exactly the branches of this tree."
        )
    if np.isinf(heights).any():
        text.append(
            "Parts without any pair that could be compared meet last, at the right edge: nothing "
            "is known of whether they belong together."
        )
    picture = Picture(
        "merges",
        figures_meta.plot_merges(result),
        "Sequence of merges: each point lies at the mean z of the two parts that meet there.",
        f"Tree of {plural(len(heights), 'merge')}, {made} of them made"
        f"{_last_and_first(heights, thresholds, made)}.",
    )
    rows = tuple(
        (
            str(step + 1),
            number(float(h)) if np.isfinite(h) else "nothing to compare",
            number(float(t)),
            "merged" if step < made else "not merged",
        )
        for step, (h, t) in enumerate(zip(heights, thresholds, strict=True))
    )
    table = Table("Every merge", ("merge", "mean z", "threshold", "what happened"), rows)
    return Block("How the groups came about", tuple(text), picture=picture, folded=(table,))


def _last_and_first(heights: np.ndarray, thresholds: np.ndarray, made: int) -> str:
    """Largest excess among the merges made, and the first that was not made."""
    parts = []
    if made:
        last = int(np.argmax(heights[:made] - thresholds[:made]))
        parts.append(
            f"the closest call at mean z {heights[last]:.2f} against {thresholds[last]:.2f}"
        )
    if made < len(heights):
        h = heights[made]
        said = f"{h:.2f} against {thresholds[made]:.2f}" if np.isfinite(h) else "not known"
        parts.append(f"the first one not made: mean z {said}")
    text = "; ".join(parts).replace(" -", " \N{MINUS SIGN}")
    return f" ({text})" if parts else ""


def _relocated(result: MetaClusteringResult) -> bool:
    """Whether the groups differ from the branches of the tree."""
    n = len(result.sites)
    members: list[list[int]] = [[i] for i in range(n)]
    cut = np.arange(n)
    for step, (a, b) in enumerate(np.asarray(result.merges["ids"])[: n - result.n_clusters]):
        members.append(members[int(a)] + members[int(b)])
        cut[members[-1]] = n + step
    same = cut[:, None] == cut[None, :]
    labels = np.asarray(result.labels)
    return bool((same != (labels[:, None] == labels[None, :])).any())


def _held_out(result: MetaClusteringResult) -> Block:
    text = (
        "Each fold of the rows was predicted by the averaged models of groups that were found "
        f"without it, for every number of groups. The loss is smallest with {result.n_clusters}.",
    )
    best = float(np.nanmin(result.cv_losses))
    picture = Picture(
        "held-out-loss",
        figures_meta.plot_held_out_loss(result),
        "Held-out loss by number of groups.",
        f"Line over {plural(len(result.cv_losses), 'number')} of groups; smallest loss {best:.4g}.",
    )
    return Block("How many groups predict best", text, picture=picture)


def _spectral(result: MetaClusteringResult) -> list[Block]:
    values = np.asarray(result.eigenvalues, dtype=float)
    k = result.n_clusters
    blocks = []
    if np.isfinite(figures_meta.pairs(result.dissimilarity)).any():
        what = (
            "of predictions on common reference points"
            if result.exchange == "reference"
            else "of the loss of each model on the other site's rows from the loss of the own one"
        )
        blocks.append(
            Block(
                "Which sites differ",
                (
                    f"Dissimilarity of two sites: difference {what}. It has no standard error, so "
                    "nothing says which differences are more than noise.",
                ),
                picture=Picture(
                    "dissimilarity",
                    figures_meta.plot_dissimilarity(result),
                    "Dissimilarity of each pair of sites; frames are groups.",
                    f"Map ordered by group; "
                    f"{contrast(result, result.dissimilarity, 'dissimilarity', '{:.3g}')}.",
                ),
            )
        )
    if len(values):
        how = {
            "rule": "is where the largest gap is",
            "cv": "was chosen by held-out loss",
        }.get(result.chosen_by, "was asked for")
        gap = (
            f"; the gap after number {k} is {values[k - 1] - values[k]:.2f}"
            if k < len(values)
            else ""
        )
        blocks.append(
            Block(
                "How many groups",
                (
                    "As many eigenvalues of the similarity near 1 as there are groups that have "
                    f"little to do with each other. K = {k} {how}{gap}.",
                    "With up to about 8 sites, and where every site differs, the gap tends to say "
                    "one group whatever the truth.",
                ),
                picture=Picture(
                    "spectrum",
                    figures_meta.plot_spectrum(result),
                    "Eigenvalues of the normalised similarity; the band is the gap after the last "
                    "one counted.",
                    f"Eigenvalues from {values[0]:.2f} down to {values[-1]:.2f}{gap}.",
                ),
            )
        )
    return blocks


# --------------------------------------------------------------------------- limits


def _limits(result: MetaClusteringResult) -> list[str]:
    known = [
        "With few rows (about 50 a site), much noise and flexible methods, groups that exist are "
        "missed rather than groups invented: the number of groups comes out too small.",
        "Where every site is different from every other, some are paired all the same once there "
        "are 8 or more, and the number of groups is a little too small.",
        "Differences that change gradually from site to site are cut into many groups whose "
        "borders mean little; max_clusters puts a bound to them.",
        "Two sites whose predictors are distributed differently are compared where they overlap. "
        "Trees fitted in different places still differ there a little: with a shift of one "
        "standard deviation, 8 of 100 sets of equal sites were split.",
        "One group means that the sites were not told apart within the margin, on the rows at "
        "hand. It does not prove that one relationship holds for all.",
        "Tests say that relationships differ, not why: another way of measuring or coding a "
        "column makes a group as well as another population does.",
        "Models are averaged for prediction; intervals for single predictions are not given.",
        "A site says itself how well the others' models do on its rows. One that lies about these "
        "losses, or sends a model it did not fit, can place itself in a group or outside it.",
    ]
    if result.rule == "spectral":
        known.insert(
            0,
            "The spectral rule has no standard errors and no notion of equal: with few sites, or "
            "sites that all differ, its number of groups is not to be trusted.",
        )
    if result.standardize:
        known.append(
            "Columns and response were put on each site's own scale: differences in intercept and "
            "in scale, which may be what sets sites apart, cannot be seen."
        )
    if result.levels:
        known.append(
            "For a response with levels the loss of probabilities takes the place of squared "
            "error. The source treats numeric responses only; this is an extension."
        )
    return known


REPORT = MetaClusteringReport
