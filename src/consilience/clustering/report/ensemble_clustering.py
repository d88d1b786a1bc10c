"""Report of ensemble clustering: what the classes are, and how far they can be believed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.report import sequence_evidence
from consilience.report import drawing, figures, selection_evidence
from consilience.report.figures_selection import curve_of
from consilience.report.run import Run
from consilience.report.sections import (
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    listed,
    number,
    numbers,
    plural,
)

FEW_PAIRS = 5
NOT_BY_VOTE = ("cv", "given", "bic")
ONE_CLASS = {
    "bic": "by the sum of the sites' criteria",
    "vote": "by the votes of the sites",
    "cv": "no larger number predicts held-out entries better",
}
COUNTED = {
    "exact": "every label tuple of the site was large enough to be counted as it is",
    "merged": "rare label tuples were counted with the nearest frequent one",
    "coarsened": "too small for full tuples: rows were counted by the first models' labels",
    "none": "too small to count: the site's rows were labelled and did not shape the classes",
}
MEASURED = {
    True: "It is a correlation of their distances: 0 for models that have nothing in common.",
    False: "It is a cosine of their distances, which are never negative: models that have nothing "
    "in common agree by about 0.8 as well, so weights tell good from bad models only roughly.",
}


class EnsembleClusteringReport(MethodReport):
    """Words, tables and figures on classes shared by sites."""

    def headline(self, run: Run) -> Headline:
        """Say whether there is evidence of classes before saying what they are."""
        result = _result(run)
        text, tone = _verdict(result)
        if result.chosen_by not in NOT_BY_VOTE and _votes_differ(result):
            text += " The sites' votes on the number of classes disagree."
            tone = "caution"
        if result.cv_at_edge:
            text += " Held-out entries chose no number of classes: their error still falls."
            tone = "caution"
        one = sequence_evidence.one_class_words(result)
        if one and sequence_evidence.is_coded(result):
            text, tone = f"{text} {one}", "caution" if result.n_clusters > 1 else tone
        return Headline(text, tone, (result.summary(),))  # type: ignore[arg-type]

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, classes and stability."""
        result = _result(run)
        s = result.stability
        facts = [("rows counted", f"{result.n_records:,}"), ("classes", str(result.n_clusters))]
        if s:
            facts.append(("agreement of halves", f"{s['mean']:.2f}"))
            facts.append(("the same by chance", f"{s['null_mean']:.2f}"))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Classes, stability, local models, number of classes, how sites counted."""
        result = _result(run)
        coded = sequence_evidence.is_coded(result)
        blocks = sequence_evidence.profiles(result) if coded else [_profiles(run, result)]
        blocks.append(_shares(result))
        if result.n_clusters > 1 and result.target and np.isfinite(result.target_means).any():
            blocks.append(_target(result))
        if result.n_clusters > 1 and result.target_levels:
            blocks.append(sequence_evidence.outcomes(result))
        apart = sequence_evidence.differences(result) if result.n_clusters > 1 else None
        blocks += [block for block in (apart, _stability(result)) if block]
        if len(result.cv_candidates):
            blocks.append(_held_out(result))
        if result.votes:
            blocks.append(_votes(result))
        weighting = str(run.info.parameters.get("weighting", ""))
        climbs = sequence_evidence.start_spread(result)
        blocks += [_spectrum(result), _weights(result, weighting), _counting(result)]
        return [*blocks, climbs] if climbs else blocks

    def handling(self, run: Run) -> Sequence[str]:
        """How many sites merged, coarsened or kept their counts."""
        counted = _result(run).counted
        words = []
        for how in COUNTED:
            sites = sorted(s for s, found in counted.items() if found == how)
            if sites:
                words.append(f"Counts of {listed(sites)}: {how} ({COUNTED[how]}).")
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What the method cannot know."""
        result = _result(run)
        known = [
            "Clustering always returns as many classes as it is asked for. Only stability above "
            "that of permuted columns speaks for classes, and it speaks for their being found "
            "again, not for their being distinct kinds in nature.",
            "Stability is measured on rows of the same sites. It says nothing of other sites.",
            "A column that is recorded differently from site to site finds the sites, not the "
            "subjects: compare the shares of the classes by site.",
        ]
        if sequence_evidence.is_coded(result):
            known += sequence_evidence.limits(result)
        elif run.info.parameters.get("model", "kmeans") == "kmeans":
            known.append(
                "k-means looks for round classes of similar spread in the scaled columns; long, "
                "curved or very unequal classes are cut up."
            )
        if len(set(result.owners)) == 2 and len(result.weights) == 2:
            known.append("With two models the weights are always equal.")
        if result.chosen_by == "cv":
            known.append(
                "Held-out entries tell classes apart where several columns go together within "
                "them. Columns that go together for another reason (time, place, instruments) add "
                "classes."
            )
        if result.votes and not sequence_evidence.is_coded(result):
            known.append(
                "BIC supposes normal classes; where columns are skewed or coded 0/1 it asks for "
                "too many classes, the more so the more rows a site has."
            )
        return known


def _result(run: Run) -> EnsembleClusteringResult:
    if not isinstance(run.result, EnsembleClusteringResult):
        raise TypeError("the run is not one of ensemble-clustering")
    return run.result


# --------------------------------------------------------------------------- how sure


def beyond_chance(stability: dict[str, Any]) -> bool:
    """Whether hardly any pair with permuted columns agrees as well as the pairs on average."""
    if "null_reached" in stability:
        return bool(stability["null_reached"] <= 0.05 * stability["null_pairs"])
    return bool(stability["low"] > stability["null_high"])


def _votes_differ(result: EnsembleClusteringResult) -> bool:
    return len({vote for vote in result.votes.values() if vote > 0}) > 1


def _verdict(result: EnsembleClusteringResult) -> tuple[str, str]:
    """Headline and its tone."""
    s, k = result.stability, result.n_clusters
    rows = f"{result.n_records:,} rows at {plural(len(result.class_sizes_by_site), 'site')}"
    if k == 1:
        why = ONE_CLASS.get(result.chosen_by, "as the study asked")
        return f"One class only: {why}, the {rows} were not divided.", "plain"
    made = f"{k} classes were formed from {rows}"
    if not s:
        return f"{made}; whether they would be found again was not examined.", "caution"
    if not beyond_chance(s):
        return (
            f"{made}, but their stability is no clear evidence of classes: with "
            f"{_permuted(result)}, {_reached(s)} as stable.",
            "caution",
        )
    found = (
        f"{made}, and other rows of the same sites give the same classes more than chance would "
        f"(agreement {s['mean']:.2f}, by chance {s['null_mean']:.2f})"
    )
    if _comparisons(s) < FEW_PAIRS:
        return f"{found}, by {plural(_comparisons(s), 'comparison')} only.", "caution"
    return f"{found}.", "good"


def _comparisons(s: dict[str, Any]) -> int:
    """Pairs of halves that say something, with and without permuted columns."""
    return int(min(s["pairs"], s["null_pairs"]))


def _reached(s: dict[str, Any]) -> str:
    if "null_reached" not in s:
        return "the classes are"
    verb = "is" if s["null_reached"] == 1 else "are"
    return f"{s['null_reached']} of {plural(s['null_pairs'], 'comparison')} {verb}"


def _permuting(result: EnsembleClusteringResult) -> str:
    """What was done to take away what columns have in common."""
    if sequence_evidence.is_coded(result):
        return sequence_evidence.PERMUTED[result.model]
    return "each column had been permuted by itself"


def _permuted(result: EnsembleClusteringResult) -> str:
    """The same, in two words."""
    sequences = getattr(result, "model", "") == "markov-mixture"
    return "states permuted within time points" if sequences else "columns permuted"


# --------------------------------------------------------------------------- blocks


def _classes(result: EnsembleClusteringResult) -> tuple[str, ...]:
    return tuple(f"class {k}" for k in range(result.n_clusters))


def _profiles(run: Run, result: EnsembleClusteringResult) -> Block:
    values, standard = figures.profile_values(result)
    own_scale = (run.info.settings.get("preparation") or {}).get("standardize") == "site"
    units = "in each site's own standard deviations" if own_scale else "in the columns' own units"
    head = ("column", *_classes(result))
    rows = [
        ("rows", *(f"{int(n):,}" for n in result.class_sizes)),
        ("share", *(f"{n / max(result.n_records, 1):.1%}" for n in result.class_sizes)),
        *(
            (name, *numbers(means))
            for name, means in zip(result.feature_names, result.class_means.T, strict=True)
        ),
    ]
    if result.target and not result.target_levels:
        rows.append((f"mean {result.target}", *numbers(result.target_means)))
    note = (
        "\N{EN DASH}: no site had enough rows in the class to say."
        if np.isnan(result.class_means).any()
        else ""
    )
    text = [
        "Every class is described by the mean of each column in it. A column coded 0/1 has the "
        "share of ones as its mean. High and low are meant against the mean of all rows.",
        *(_portraits(result, values) if standard and result.n_clusters > 1 else ()),
    ]
    scale = (
        "Numbers are standard deviations above (+) or below (\N{MINUS SIGN}) the mean of all rows."
        if standard
        else "Numbers are differences from the mean over classes, the largest of each row = 1."
    )
    picture = Picture(
        "profiles",
        figures.plot_class_profiles(result),
        f"What sets the classes apart. {scale}",
        f"Map of colours of {plural(len(result.feature_names), 'column')} in "
        f"{plural(result.n_clusters, 'class', 'classes')}. The table below has the means.",
    )
    table = Table(f"Means by class, {units}", head, tuple(rows), note)
    return Block("What the classes look like", tuple(text), picture=picture, tables=(table,))


def _portraits(result: EnsembleClusteringResult, values: Any) -> list[str]:
    """One sentence a class: its most unusual columns."""
    words = []
    names = [drawing.short(name, 40) for name in result.feature_names]
    for k in range(result.n_clusters):
        column = np.nan_to_num(values[:, k])
        most = [j for j in np.argsort(-np.abs(column), kind="stable")[:3] if abs(column[j]) >= 0.3]
        parts = [f"{'high' if column[j] > 0 else 'low'} {names[j]}" for j in most]
        what = listed(parts) if parts else "near the mean in every column"
        words.append(f"Class {k}, {result.class_sizes[k] / max(result.n_records, 1):.0%}: {what}.")
    return words if result.n_clusters <= 12 else []


def _shares(result: EnsembleClusteringResult) -> Block:
    sites = sorted(result.class_sizes_by_site)
    rows = [(site, *(f"{int(n):,}" for n in result.class_sizes_by_site[site])) for site in sites]
    total = ("all sites", *(f"{int(n):,}" for n in result.class_sizes))
    text = ["A class may be rare or missing at a site; that is no error."]
    note = ""
    if "merged" in result.counted.values() or "coarsened" in result.counted.values():
        note = (
            "These counts take rare combinations of labels together, so that none rests on few "
            "rows: a class shown with 0 rows at a site may hold some there. The labels that the "
            "sites keep are not affected."
        )
    largest = int(np.argmax(result.class_sizes))
    picture = Picture(
        "shares",
        figures.plot_class_shares(result),
        "Share of each class at each site; shares below 5 % carry no number.",
        f"Stacked bars for all sites and {plural(len(sites), 'site')}; class {largest} is the "
        f"largest with {result.class_sizes[largest] / max(result.n_records, 1):.0%} of all rows. "
        "The table below has the counts.",
    )
    table = Table("Rows by class and site", ("site", *_classes(result)), (total, *rows), note)
    return Block("Where they occur", tuple(text), picture=picture, tables=(table,))


def _target(result: EnsembleClusteringResult) -> Block:
    sites = sorted(result.target_means_by_site)
    by_class = [
        (
            name,
            number(result.target_means[k]),
            *numbers(result.target_means_by_site[site][k] for site in sites),
        )
        for k, name in enumerate(_classes(result))
    ]
    picture = Picture(
        "target",
        figures.plot_target_by_class(result),
        f"Mean of {result.target} in each class: over all sites (thick line) and at each site.",
        f"Dots on one line for each class; over all sites the means are "
        f"{listed(numbers(result.target_means))}.",
    )
    table = Table(
        f"Mean of {result.target}",
        ("class", "all sites", *sites),
        tuple(by_class),
        "\N{EN DASH}: the site has too few rows of the class to say.",
    )
    apart = result.target not in result.feature_names
    text = (
        f"{result.target} took {'no ' if apart else ''}part in finding the classes. Where it "
        "differs between classes in the same way at every site, the classes carry information on "
        "it.",
    )
    return Block(
        f"How {result.target} differs between them", text, picture=picture, folded=(table,)
    )


def _stability(result: EnsembleClusteringResult) -> Block:
    s = result.stability
    title = "Would they be found again?"
    if not s:
        return Block(
            title,
            ("This was not examined: ask for stability_pairs of 5 or more.",),
            warning="Without it there is no evidence that these classes are more than a cut.",
        )
    text = [
        f"Every site halved its rows at random, {plural(s['pairs'], 'time')}. The whole method ran "
        "on one half and on the other, and the two sets of classes were compared on all rows. The "
        f"same was done after {_permuting(result)}, which leaves nothing for them to have in "
        "common: that is what chance alone reaches.",
        result.stability_sentence(),
    ]
    if s["n_clusters"] != result.n_clusters:
        text.append(f"These figures are for {s['n_clusters']} classes, not {result.n_clusters}.")
    alone = max((s[key] for key in ("alone_mean", "ported_mean") if key in s), default=-1.0)
    if s["mean"] <= alone:
        text.append("Working together did not make the classes more stable than going alone.")
    warning = ""
    if not beyond_chance(s):
        warning = (
            f"No clear evidence of classes: with {_permuted(result)}, {_reached(s)} as stable."
        )
    elif _comparisons(s) < FEW_PAIRS:
        warning = f"{plural(_comparisons(s), 'comparison')} only: ask for more stability_pairs."
    picture = Picture(
        "stability",
        figures.plot_stability(result),
        "Agreement of two runs on disjoint halves: mean (dot) and smallest to largest (bar). Small "
        "blue ticks are single sites; the grey band is what chance reaches.",
        f"Dots on lines: all sites together {s['mean']:.2f} ({s['low']:.2f} to {s['high']:.2f}); "
        f"chance {s['null_mean']:.2f} ({s['null_low']:.2f} to {s['null_high']:.2f}).",
    )
    rows = tuple((site, f"{value:.2f}") for site, value in sorted(s["by_site"].items()))
    table = Table("Agreement by site, all sites together", ("site", "agreement"), rows)
    return Block(title, tuple(text), warning, picture, folded=(table,))


def _won(result: EnsembleClusteringResult) -> str:
    if result.chosen_by in NOT_BY_VOTE:
        return ""
    return f"{result.vote_share:.0%} of the votes went to the winner."


def _held_out(result: EnsembleClusteringResult) -> Block:
    curve = curve_of(result.cv_curve())
    text = (
        "Each site held out entries of its own rows in scattered folds, made 1, 2, ... classes of "
        "the rows by what was left, and predicted the entries by the means of their classes. "
        "Squared errors were added up over the sites.",
        "This counts classes that sites tell apart by their own rows: a class of which every site "
        "has only a few rows is not counted.",
    )
    title = "How many classes do held-out entries tell apart?"
    block = selection_evidence.choice(curve, result.cv_chosen, result.cv_rule, title, text)
    sites = selection_evidence.by_site(
        curve, result.cv_site_errors, result.cv_site_entries, result.cv_chosen
    )
    return dataclasses.replace(block, folded=(*block.folded, *([sites] if sites else ())))


def _votes(result: EnsembleClusteringResult) -> Block:
    most = max(len(v) for v in result.vote_scores.values())
    above = ", above the smallest" if sequence_evidence.is_coded(result) else ""
    head = ("site", "vote", *(f"BIC of {k}{above}" for k in range(1, most + 1)))
    rows = tuple(
        (site, str(vote) if vote else "abstained", *numbers(result.vote_scores[site]))
        for site, vote in sorted(result.votes.items())
    )
    cast = [vote for vote in result.votes.values() if vote > 0]
    text = [
        "Each site found, by the Bayesian information criterion (BIC, smaller is better), how many "
        f"classes its own rows prefer, and had one vote. {_won(result)}"
        if cast
        else "No site had enough rows to vote."
    ]
    if sequence_evidence.is_coded(result) and 1 in cast:
        text.append(sequence_evidence.one_class_meaning(result))
    if len(result.votes) > len(cast):
        text.append(f"{plural(len(result.votes) - len(cast), 'site')} abstained: too few rows.")
    warning = ""
    if result.chosen_by == "bic":
        rows = (*rows, _sums(result, most))
        text.append(
            "The number was chosen by the sum of these criteria over the sites, among numbers that "
            "every voting site scored. It counts by how much a site prefers a number, so large "
            "sites count for more; each pays for all parameters, so the sum tends to fewer "
            "classes than BIC of all rows together."
        )
        if result.n_clusters == most > 1:
            warning = f"It is the largest number that was allowed ({most}): raise max_clusters."
    elif result.chosen_by in ("cv", "given"):
        text.append("The votes are shown for comparison: they did not choose.")
    elif _votes_differ(result):
        others = sorted({*cast, result.n_clusters_by_eigenvalues} - {result.n_clusters})
        warning = (
            "The votes disagree, so this number should not be trusted. Run the study with "
            f"n_clusters = {listed([str(k) for k in others]).replace(' and ', ' or ')} as well, "
            "and prefer the number whose stability is furthest above its chance level."
        )
    elif cast and max(cast) == most and most > 1:
        warning = (
            f"The votes are for the largest number that was allowed ({most}): raise max_clusters."
        )
    picture = Picture(
        "votes",
        figures.plot_votes(result),
        "Votes on the number of classes (left), and each site's criterion, its smallest value "
        "circled (right). A curve that keeps falling has found no number.",
        f"Bars of votes: {listed([f'{s} {v}' for s, v in sorted(result.votes.items())], 20)}.",
    )
    return Block(
        "How many by votes?" if result.chosen_by in ("cv", "given") else "How many classes?",
        tuple(text),
        warning,
        picture if cast else None,
        folded=(Table("Votes and BIC by site", head, rows),),
    )


def _sums(result: EnsembleClusteringResult, most: int) -> tuple[str, ...]:
    """Last line of the table of votes: sums over the sites that voted, a gap where one has none."""
    voted = [result.vote_scores[site] for site, vote in sorted(result.votes.items()) if vote > 0]
    cast = [scores for scores in voted if np.isfinite(scores).sum() > 1]  # others were left out
    sums = np.sum(cast, axis=0) if cast else np.full(most, np.nan)
    return ("sum", str(result.n_clusters), *numbers(sums))


def _spectrum(result: EnsembleClusteringResult) -> Block:
    suggested = result.n_clusters_by_eigenvalues
    text = (
        "Distances between K groups have one large and about K \N{MINUS SIGN} 1 further "
        f"eigenvalues of note; a steep fall after the K-th suggests K. Here it suggests "
        f"{suggested} ({result.n_clusters} were formed). The rule cannot tell one class from two.",
    )
    sizes = np.abs(result.eigenvalues)
    shown = numbers(sizes / sizes[0] if sizes[0] > 0 else sizes)
    picture = Picture(
        "eigenvalues",
        figures.plot_eigenvalues(result),
        f"Leading eigenvalues of the ensemble distance; filled: the first {suggested}.",
        f"Bars in falling order: {listed(shown)}.",
    )
    return Block("What the combined distances suggest", text, picture=picture)


def _weights(result: EnsembleClusteringResult, weighting: str) -> Block:
    m = len(result.weights)
    off = result.agreement[~np.eye(m, dtype=bool)]
    text = [
        f"{plural(m, 'local model')} of {plural(len(set(result.owners)), 'site')} labelled all "
        "rows. A model counts for more when its distances between rows agree with those of the "
        "others."
    ]
    if m > 1:
        text.append(
            f"Agreement of two models is {off.mean():.2f} on average ({off.min():.2f} to "
            f"{off.max():.2f}). {MEASURED[weighting == 'centred']}"
        )
    dropped = [n for n, w in zip(result.model_names, result.weights, strict=True) if w < 1e-9]
    warning = f"Without weight: {listed(dropped)}." if dropped else ""
    rows = tuple(
        (f"{i + 1}", name, f"{weight:.3f}")
        for i, (name, weight) in enumerate(zip(result.model_names, result.weights, strict=True))
    )
    picture = Picture(
        "weights",
        figures.plot_weights(result),
        "Weight of each local model (left) and agreement of each pair of them (right).",
        f"Weights from {min(result.weights):.2f} to {max(result.weights):.2f}; the table has them.",
    )
    table = Table("Weights of the local models", ("number", "model", "weight"), rows)
    return Block("How the sites' models agree", tuple(text), warning, picture, folded=(table,))


def _counting(result: EnsembleClusteringResult) -> Block:
    rows = tuple(
        (
            site,
            f"{int(np.sum(result.class_sizes_by_site.get(site, 0))):,}",
            how,
            COUNTED.get(how, ""),
        )
        for site, how in sorted(result.counted.items())
    )
    text = (
        f"Rows with the same labels under all models form one of {result.n_patterns:,} label "
        "tuples; sites sent only how many rows have each.",
    )
    table = Table("Rows counted, by site", ("site", "rows counted", "how", "meaning"), rows)
    return Block("How each site counted its rows", text, tables=(table,))


REPORT = EnsembleClusteringReport
