"""Evidence of meta clustering, block by block: power, stability, gain, comparability, choice."""

from __future__ import annotations

from collections import Counter

import numpy as np

from consilience.collaborators.kernels import ENOUGH_POWER
from consilience.collaborators.protocol.result import MetaClusteringResult
from consilience.collaborators.report import figures_meta
from consilience.report import drawing
from consilience.report.drawing import Z95
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
    listed,
    number,
    percent,
    plural,
    site_name,
)

FEWEST = 10
"""Sites in the table of those with the fewest partners."""
GAIN_WORDS = {
    "own_minus_group": "the model of the group instead of the site's own",
    "group_minus_all": "the model of all sites instead of the group's",
    "all_minus_shifted": "an intercept of the site, shrunken, on top of the model of all sites",
}


def tested(result: MetaClusteringResult) -> bool:
    """Whether at least one pair of sites was compared by the default rule."""
    return result.rule != "spectral" and bool(np.isfinite(figures_meta.pairs(result.z)).any())


def response(result: MetaClusteringResult) -> str:
    """Name of the response."""
    return drawing.short(result.target, 60) if result.target else "the response"


def contrast(result: MetaClusteringResult, values: np.ndarray, what: str, form: str) -> str:
    """Median of a matrix within and between groups, for those who cannot see the map."""
    same = figures_meta.same_group(result)
    shown = figures_meta.pairs(values)
    parts = []
    for where, which in (("within", same), ("between", ~same)):
        known = shown[which & np.isfinite(shown)]
        if len(known):
            parts.append(f"median {what} {where} groups {form.format(float(np.median(known)))}")
    return ", ".join(parts) or "no pair is known"


# --------------------------------------------------------------------------- how sure


def power(result: MetaClusteringResult) -> Block:
    """What could have been seen."""
    title = "What could have been seen"
    if not tested(result):
        return Block(title, warning="No pair of sites could be compared, so nothing could be seen.")
    kinds = figures_meta.power_kinds(result)
    divided, strong, weak, unknown = np.bincount(kinds, minlength=4).tolist()
    within = strong + weak
    if not within:
        return Block(title, ("No two sites that were fully compared share a group.",))
    text = [
        "Two sites in one group may be alike, or may have too few rows to show that they are not. "
        "For each such pair: would it have been told apart, with a chance of 80 % or more, if each "
        "one's model were of no use to the other?",
        f"Yes for {strong:,} of {plural(within, 'pair')} in one group, no for {weak:,}; "
        f"{divided:,} {'pair is' if divided == 1 else 'pairs are'} in different groups and "
        f"{unknown:,} could not be compared both ways.",
        "Two sites that differ have a larger standard error than two that do not; the figures "
        "allow for that to first order.",
    ]
    warning = ""
    if weak >= strong:
        warning = (
            "For most pairs in one group, not being told apart is no evidence of being alike: more "
            "rows, or better predictors, are needed."
        )
    seen = figures_meta.pairs(result.detectable)[(kinds == 1) | (kinds == 2)]
    picture = Picture(
        "detectable",
        figures_meta.plot_detectable(result),
        "Smallest difference that each pair in one group would have shown with a chance of 80 %: "
        "plain blue where that is less than all that the models are good for, hatched orange where "
        "it is not. The bar on top counts all pairs.",
        f"Histogram of {plural(within, 'pair')}, median {percent(float(np.median(seen)))} of the "
        f"response variance; {strong} would have shown a difference, {weak} hardly.",
    )
    return Block(title, tuple(text), warning, picture, folded=(_power_table(result),))


def _power_table(result: MetaClusteringResult) -> Table:
    order = figures_meta.site_order(result)
    n = len(order)
    off = ~np.eye(n, dtype=bool) & np.isfinite(result.z)
    rows = []
    for i in order:
        mine = off[i]
        able = int((result.power[i][mine] >= ENOUGH_POWER).sum())
        values = result.detectable[i][mine]
        rows.append(
            (
                site_name(result.sites[i]),
                f"{int(mine.sum()):,}",
                f"{able:,}",
                percent(float(np.median(values))) if len(values) else DASH,
                percent(float(values.min())) if len(values) else DASH,
            )
        )
    head = (
        *("site", "partners compared", "could be told apart"),
        *("median difference seen", "smallest"),
    )
    return Table("What each site could have shown", head, tuple(rows))


def stability(result: MetaClusteringResult) -> Block:
    """Whether resamples give the same groups."""
    shown = figures_meta.pairs(result.together)
    same = figures_meta.same_group(result)
    known = np.isfinite(shown)
    text = [
        f"{plural(result.stability_runs, 'time')}, every site drew 80 % of its rows, secretly, and "
        "the whole grouping was done again.",
        f"{contrast(result, result.together, 'share together', '{:.0%}').capitalize()}.",
    ]
    doubtful = int((known & (shown > 0.2) & (shown < 0.8)).sum())
    warning = ""
    if doubtful and known.any():
        text.append(
            f"{plural(doubtful, 'pair')} of {int(known.sum()):,} fell together in between 20 % and "
            "80 % of resamples: these cannot be relied upon."
        )
    apart = known & same & (shown < 0.5)
    if apart.any():
        warning = f"{plural(int(apart.sum()), 'pair')} of one group fell apart in most resamples."
    picture = Picture(
        "together",
        figures_meta.plot_together(result),
        "Share of resamples in which two sites fell into one group; frames are the groups found on "
        "all rows.",
        f"Map ordered by group; {contrast(result, result.together, 'share', '{:.0%}')}.",
    )
    return Block("Would the groups be found again?", tuple(text), warning, picture)


def gain(result: MetaClusteringResult) -> Block:
    """What working together saves on rows that took no part in the grouping."""
    keys = figures_meta.gains(result)
    text = [
        "Losses are on rows that took no part in the grouping that they judge: the rows were cut "
        "in folds, and sites were grouped, and models fitted, without the fold that was then "
        "predicted. Groups found on all rows would show gains that are not there.",
        "Intervals take the fitted models and the groups as given: they hold the chance in the "
        "rows predicted, not that in the rows fitted, and are too narrow to that extent.",
    ]
    if "all_minus_shifted" in keys and np.isfinite(result.shift_spread):
        text.append(
            f"The sites' intercepts vary around the model of all sites with a standard deviation "
            f"of {number(result.shift_spread)} (in units of {response(result)})."
        )
    mean, error = result.overall_gain(keys[0])
    picture = Picture(
        "gain",
        figures_meta.plot_gain(result),
        "Loss saved at each site with its 95 % interval: filled blue better, orange square worse, "
        "open no clear difference. Blue line and band: all sites, weighted by rows.",
        f"Dots with intervals for {plural(len(result.sites), 'site')}; {GAIN_WORDS[keys[0]]} saves "
        f"{percent(mean)} overall ({percent(mean - Z95 * error)} to "
        f"{percent(mean + Z95 * error)}). The table below has the overall figures.",
    )
    table = _gain_table(result, keys)
    losses = _loss_table(result)
    warning = ""
    if result.status == "no-signal":
        warning = (
            "No model is better than a constant here. What is saved is noise of the sites' own "
            "models, which averaging takes away."
        )
    return Block(
        "What working together gains",
        tuple(text),
        warning,
        picture=picture,
        tables=(table,),
        folded=(losses,) if losses.rows else (),
    )


def _gain_table(result: MetaClusteringResult, keys: list[str]) -> Table:
    rows = []
    for key in keys:
        mean, error = result.overall_gain(key)
        low, high = mean - Z95 * error, mean + Z95 * error
        unit = result.target_variance
        known = np.isfinite(result.gain[key]) & np.isfinite(result.gain[f"{key}_error"])
        lower = (result.gain[key] - Z95 * result.gain[f"{key}_error"])[known] / unit[known]
        upper = (result.gain[key] + Z95 * result.gain[f"{key}_error"])[known] / unit[known]
        rows.append(
            (
                GAIN_WORDS[key],
                percent(mean),
                f"{percent(low)} to {percent(high)}",
                f"{int((lower > 0).sum()):,}",
                f"{int((upper < 0).sum()):,}",
                f"{int(known.sum()):,}",
            )
        )
    head = (
        *("what was tried", "loss saved", "95 % interval"),
        *("sites clearly better", "clearly worse", "sites"),
    )
    note = "Shares of the response variance; of many sites, 1 in 40 is clearly better by chance."
    return Table("Over all sites, weighted by rows", head, tuple(rows), note)


def _loss_table(result: MetaClusteringResult) -> Table:
    keys = [key for key in ("own", "group", "all", "shifted") if key in result.gain]
    words = {
        "own": "own model",
        "group": "group's model",
        "all": "model of all",
        "shifted": "with the site's intercept",
    }
    rows = tuple(
        (
            site_name(result.sites[i]),
            *(percent(float(result.gain[k][i] / result.target_variance[i])) for k in keys),
        )
        for i in (figures_meta.site_order(result) if keys else ())
    )
    return Table(
        "Loss of each model on held-out rows",
        ("site", *(words[k] for k in keys)),
        rows,
        "Shares of the loss of the best constant prediction at the site: 100 % is of no use.",
    )


# --------------------------------------------------------------------------- material


def comparability(result: MetaClusteringResult) -> Block:
    """Which pairs could be compared, on how many rows."""
    title = "Who could be compared with whom"
    n = len(result.sites)
    if n < 2 or result.rule == "spectral":
        return Block(title, ("No pair was tested.",))
    off = ~np.eye(n, dtype=bool)
    usable = np.isfinite(result.z) & off
    partners = usable.sum(axis=1)
    # the matrix holds each pair twice
    total, known = n * (n - 1) // 2, int(usable.sum()) // 2
    effective = np.where(off, np.asarray(result.effective, dtype=float), np.nan)
    text = [
        "Rows of two sites are weighted so that their predictors look alike; the effective number "
        "of rows is what these weights leave. A pair with fewer than 20 on either side is not "
        "compared.",
        "All pairs could be compared."
        if known == total
        else f"{known:,} of {plural(total, 'pair')} could be compared.",
    ]
    if np.isfinite(effective).any():
        each = effective / np.asarray(result.n_records, dtype=float)[None, :]
        share = each[np.isfinite(effective)]
        text.append(
            "Predictors are distributed so alike that all rows count nearly in full."
            if share.min() > 0.99
            else f"The weights leave {percent(float(np.median(share)), 0)} of a site's rows in "
            f"the median comparison and {percent(float(share.min()), 0)} in the least."
        )
    # fewest partners first, ties in the order of the sites
    few = np.lexsort((np.arange(n), partners))[:FEWEST]
    rows = tuple(
        (
            site_name(result.sites[i]),
            f"{int(result.n_records[i]):,}",
            f"{int(partners[i]):,} of {n - 1:,}",
            *_smallest(effective[:, i]),
        )
        for i in few
    )
    head = ("site", "rows", "partners compared", "least effective rows", "median")
    caption = "Sites with the fewest partners" if n > FEWEST else "Partners and effective rows"
    table = Table(caption, head, rows, "Effective rows: of the site's own rows, over its partners.")
    warning = ""
    alone = [site_name(result.sites[i]) for i in np.flatnonzero(partners == 0)]
    if alone:
        verb = "was" if len(alone) == 1 else "were"
        warning = f"{listed(alone)} {verb} compared with nobody: a group of one says nothing there."
    tables, folded = ((), (table,)) if known == total else ((table,), ())
    return Block(title, tuple(text), warning, tables=tables, folded=folded)


def _smallest(values: np.ndarray) -> tuple[str, str]:
    known = values[np.isfinite(values)]
    if not len(known):
        return DASH, DASH
    return f"{known.min():,.0f}", f"{np.median(known):,.0f}"


def candidates(result: MetaClusteringResult) -> Block:
    """What the sites tried, chose and left out."""
    names = [drawing.short(c, 40) for c in result.candidates]
    count = Counter(drawing.short(c, 40) for c in result.chosen if c)
    chosen = [f"{name} at {plural(k, 'site')}" for name, k in count.most_common()]
    text = [
        f"Each site tried {plural(len(names), 'candidate')} ({listed(names)}) on one half of its "
        "rows, kept the one with the smallest loss on the other half and fitted it again on all "
        "rows."
        if len(names) > 1
        else f"Every site fitted the same method ({listed(names)}); there was nothing to choose.",
    ]
    if chosen:
        text.append(f"Chosen: {listed(chosen)}.")
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    losses = np.asarray(result.candidate_losses, dtype=float)
    if losses.ndim == 2 and losses.shape == (len(result.sites), len(names)) and len(names):
        unit = np.asarray(result.target_variance, dtype=float)
        rows = tuple(
            (
                site_name(result.sites[i]),
                drawing.short(result.chosen[i], 40),
                *(percent(float(v / unit[i])) if unit[i] > 0 else DASH for v in losses[i]),
            )
            for i in figures_meta.site_order(result)
        )
        note = (
            "Shares of the loss of the best constant prediction: 100 % is of no use. "
            f"{DASH}: not tried, or it failed."
        )
        head = ("site", "chose", *names)
        folded = (Table("Loss on the half that did not train", head, rows, note),)
    if result.refused_candidates:
        left_out = sorted(result.refused_candidates.items())
        refused = tuple((site_name(site), why) for site, why in left_out)
        tables = (Table("Candidates left out, by site", ("site", "what and why"), refused),)
    return Block("What the sites fitted", tuple(text), tables=tables, folded=folded)
