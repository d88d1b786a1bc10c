"""Report of the assistance test: is a partner of use, at what price, and could it be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from consilience.assisted.report import figures_assisted
from consilience.assisted.report.figures_assisted import KINDS, power_at, power_axis, tested_kinds
from consilience.assisted.test import AssistanceTestResult
from consilience.report.run import Run
from consilience.report.sections import (
    DASH,
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    equals,
    listed,
    number,
    numbers,
    p_value,
    percent,
    plural,
    site_name,
)

FEW_MINORITY = 10
"""Records of the rarer class per parameter below which the Wald test rejects too often."""
ENOUGH_POWER = 0.8
LIMITS = (
    "Of use means: the partner's columns add to a linear predictor beside the initiator's own. "
    "What helps only in interactions or curves is not looked for.",
    "No evidence is not evidence of no use: random mixtures of many columns dilute a single "
    "good one, and noise hides more.",
    "The number of mixtures was fixed before the run. Running the test with 1, 2, ... mixtures "
    "and stopping at the first finding would find something too often.",
    "The test says that a partner adds something, not how much: only joint training on "
    "held-out records does.",
    "Bounds of the columns must be public. If they were taken from the data, epsilon holds "
    "nothing. Values beyond them are clipped, which costs power.",
    "Epsilon protects the columns of a record, not the fact that the record is among those "
    "that both parties hold.",
    "The initiator learns the mixtures for every record. It sees how alike two records are in "
    "them, up to the noise.",
)
EFFECT = "deviance per record that all columns of the partner together could save"


class AssistanceTestReport(MethodReport):
    """Words, tables and figures on whether partners are of use."""

    def headline(self, run: Run) -> Headline:
        """Say who is of use, at which level; where nothing shows, what would have shown."""
        result = _result(run)
        untested = [p for p in result.partners if not math.isfinite(_combined(result, p))]
        tested = [p for p in result.partners if p not in untested]
        useful = [p for p in tested if result.useful.get(p)]
        not_useful = [p for p in tested if p not in useful]
        asker, words = site_name(result.initiator), []
        given = f", given {_names(result.given)}" if result.given else ""
        if useful:
            words.append(
                f"The columns of {_names(useful)} are of use to {asker}{given}{given and ','} in "
                f"predicting its response ({_decided(result, useful)})."
            )
        if not_useful:
            words.append(
                f"No evidence that the columns of {_names(not_useful)} are of use to "
                f"{asker}{given} ({_decided(result, not_useful)})."
            )
        if untested:
            words.append(f"{_names(untested)} could not be tested.")
        if result.left_out:
            words.append(f"{_names(sorted(result.left_out))} sent no mixtures.")
        more = [_could_have_shown(result, p) for p in not_useful]
        spent = {p: result.epsilon.get(p) for p in result.partners}
        prices = [
            f"{site_name(p)}: {'no noise, so no epsilon' if eps is None else f'epsilon {eps:g}'}"
            for p, eps in spent.items()
        ]
        more.append(f"The price: {'; '.join(prices)}." if prices else "")
        weak = [p for p in not_useful if _weak(result, p)]
        tone = "good" if useful else "plain"
        # a finding by the test that rejects too often is none
        if (weak or untested or _liberal(result)) and not (useful and not _liberal(result)):
            tone = "caution"
        return Headline(" ".join(words), tone, tuple(m for m in more if m))  # type: ignore[arg-type]

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Records, directions, draws, and the combined p-value of a single partner."""
        result = _result(run)
        facts = [
            ("records in common", f"{result.n_records:,}"),
            ("directions sent in each draw", str(result.n_directions)),
            ("draws", str(result.n_draws)),
        ]
        if len(result.partners) == 1:
            p = _combined(result, result.partners[0])
            facts.append((f"p ({KINDS.get(result.test, result.test)} test)", p_value(p)))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Tests, power, price."""
        result = _result(run)
        blocks = [_tests(result)]
        if any(power_axis(result, p)[2].size for p in result.partners):
            blocks.append(_power(result))
        blocks.append(_cost(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """Ranks revealed, and noise."""
        result = _result(run)
        words = [
            f"{site_name(p)} has revealed {k} of {int(result.n_columns.get(p, 0))} directions of "
            "its columns, this run and earlier ones together."
            for p, k in sorted(result.revealed.items())
        ]
        words += [
            f"{site_name(site)} was not tested: {why}."
            for site, why in sorted(result.left_out.items())
        ]
        bare = [p for p in result.partners if result.epsilon.get(p) is None]
        if bare:
            words.append(
                f"{_names(bare)} sent its mixtures without noise: each is an exact combination of "
                "the columns for every record."
            )
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What the test cannot tell, and what it does not protect."""
        result = _result(run)
        known = list(LIMITS)
        if len(result.partners) > 1:
            known.append(
                f"{plural(len(result.partners), 'partner')} were tested, each at level "
                f"{result.level:g}; with many, some look of use by chance."
            )
        if any(result.epsilon.get(p) is None for p in result.partners):
            known.append(
                "Without noise the mixtures are exact: with as many of them as the columns have "
                "rank, and a few known records, the columns can be recovered."
            )
        return known


def _result(run: Run) -> AssistanceTestResult:
    if not isinstance(run.result, AssistanceTestResult):
        raise TypeError("the run is not an assistance test")
    return run.result


# --------------------------------------------------------------------------- headline


def _combined(result: AssistanceTestResult, partner: str, kind: str = "") -> float:
    test = result.tests.get(partner, {}).get(kind or result.test, {})
    return float(test.get("combined", math.nan))


def _names(partners: Sequence[str]) -> str:
    return listed([site_name(p) for p in partners])


def _decided(result: AssistanceTestResult, partners: Sequence[str]) -> str:
    name = KINDS.get(result.test, result.test)
    said = [f"p {equals(_combined(result, q))}" for q in partners]
    p = f"{said[0]} each" if len(said) > 1 and len(set(said)) == 1 else listed(said)
    return f"{name} test, {p}, level {result.level:g}"


def _weak(result: AssistanceTestResult, partner: str) -> bool:
    """Whether hardly any effect of the grid would have been found."""
    known = [p for _, p in power_at(result, partner) if math.isfinite(p)]
    return bool(known) and max(known) < ENOUGH_POWER


def _could_have_shown(result: AssistanceTestResult, partner: str) -> str:
    known = [(f, p) for f, p in power_at(result, partner) if math.isfinite(p)]
    if not known:
        return ""
    enough = [f for f, p in known if p >= ENOUGH_POWER]
    if enough:
        return (
            f"Had the columns of {site_name(partner)} together been able to save a deviance of "
            f"{min(enough):g} per record, this would have been found with a chance of "
            f"{ENOUGH_POWER:.0%} or more."
        )
    f, p = max(known, key=lambda item: item[1])
    return (
        f"That is no sign that {site_name(partner)} is of no use: even columns that save a "
        f"deviance of {f:g} per record would have been found with a chance of {p:.0%} only, with "
        f"{result.n_records:,} records and this sketch."
    )


def _liberal(result: AssistanceTestResult) -> bool:
    """Whether the test that decides is the one that rejects too often with few rare records."""
    return bool(result.test == "wald" and result.minority < FEW_MINORITY)


# --------------------------------------------------------------------------- evidence


def _tests(result: AssistanceTestResult) -> Block:
    kinds = tested_kinds(result)
    title = "Is the partner of use?" if len(result.partners) == 1 else "Which partners are of use?"
    text = [
        f"Each partner sent {plural(result.n_directions, 'mixture')} of its columns, drawn at "
        f"random and in secret, for each of {result.n_records:,} records. "
        f"{site_name(result.initiator)} fitted its response on its own columns and tested whether "
        "the mixtures add anything. The partners learned neither the response nor what was asked "
        "of it.",
        f"The {KINDS.get(result.test, result.test)} test decides, at level {result.level:g}. The "
        "score and the HC3 test stay near their level whatever the variance of the response; the "
        "plain Wald test does so with many records only, the likelihood-ratio test only if the "
        "model is right.",
    ]
    if result.n_draws > 1:
        text.append(
            f"One draw of mixtures may miss what another finds, so there are {result.n_draws} of "
            "them; their p-values are combined by Cauchy's rule, which holds however they depend "
            "on each other."
        )
    if result.given:
        text.append(
            f"What {_names(result.given)} can add was already in the model: the test asks for what "
            "the partner adds beyond that."
        )
    warnings = [str(w).rstrip(".") + "." for w in result.warnings]
    if result.minority < FEW_MINORITY and not any("Wald" in w for w in warnings):
        warnings.append(
            f"There are {number(float(result.minority))} records of the rarer class for each "
            "parameter: the plain Wald test rejects too often here. Rely on the score test."
        )
    if not kinds:
        return Block(title, tuple(text), " ".join(warnings) or "No partner could be tested.")
    least = min(_combined(result, p, k) for p in result.partners for k in kinds)
    picture = Picture(
        "assistance-tests",
        figures_assisted.plot_assistance_tests(result),
        "p-values: left of the orange line is evidence of use at the level asked for. Open "
        "circles: single draws; diamonds: all draws combined, the large blue one decides.",
        f"Marks for {plural(len(kinds), 'test')} of {plural(len(result.partners), 'partner')}; "
        f"smallest combined p {p_value(least)}. The table below has the numbers.",
    )
    tables, folded = (_test_table(result, kinds),), _draw_tables(result, kinds)
    return Block(title, tuple(text), " ".join(warnings), picture, tables, folded)


def _test_table(result: AssistanceTestResult, kinds: Sequence[str]) -> Table:
    rows = []
    for partner in result.partners:
        for kind in kinds:
            test = result.tests[partner].get(kind)
            if test is None:
                continue
            p = float(test["combined"])
            statistic, df = (_range(np.asarray(test[k], dtype=float)) for k in ("statistic", "df"))
            said = DASH if not math.isfinite(p) else "yes" if p < result.level else "no"
            name = KINDS[kind] + (" (decides)" if kind == result.test else "")
            rows.append((site_name(partner), name, statistic, df, p_value(p), said))
    head = ("partner", "test", "statistic", "degrees of freedom", "p, draws combined", "evidence")
    over = ", smallest to largest over the draws" if result.n_draws > 1 else ""
    note = (
        f"Chi-squared statistics{over}. Degrees of freedom: mixtures that hold anything beside the "
        "initiator's own columns."
    )
    if len(result.partners) > 1:
        note += " p-values are not corrected for the number of partners."
    return Table("Tests", head, tuple(rows), note)


def _range(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return DASH
    if float(known.min()) == float(known.max()):
        return f"{known[0]:.4g}"
    return f"{known.min():.4g} to {known.max():.4g}"


def _draw_tables(result: AssistanceTestResult, kinds: Sequence[str]) -> tuple[Table, ...]:
    if result.n_draws < 2:
        return ()
    rows = []
    for partner in result.partners:
        p = {k: np.atleast_1d(test["p"]) for k, test in result.tests[partner].items()}
        for d in range(max((len(p[k]) for k in kinds if k in p), default=0)):
            cells = [p_value(float(p[k][d])) if k in p else DASH for k in kinds]
            rows.append((f"{site_name(partner)}, draw {d + 1}", *cells))
    head = ("draw", *(KINDS[k] for k in kinds))
    return (Table("p-value of every draw", head, tuple(rows)),)


def _power(result: AssistanceTestResult) -> Block:
    text = [
        "A partner of use can be missed: noise hides it, and a few random mixtures hold only a "
        "part of what many columns could add. The curves say how likely it would have been found "
        f"with {result.n_records:,} records, at each epsilon. One curve for each {EFFECT} (for a "
        "normal response: about the share of the remaining variance).",
        "They rest on a normal approximation with noise that is independent of the columns, and "
        "are meant for planning: trust them to about ten points.",
    ]
    shown = [p for p in result.partners if power_axis(result, p)[2].size]
    rows = tuple(
        (site_name(partner), f"{f:g}", percent(p, 0))
        for partner in shown
        for f, p in power_at(result, partner)
    )
    weak = [p for p in shown if not result.useful[p] and _weak(result, p)]
    warning = ""
    if weak:
        warning = (
            f"As run, no effect shown here had a chance of {ENOUGH_POWER:.0%} of being found with "
            f"{_names(weak)}: not finding one says little."
        )
    picture = Picture(
        "assistance-power",
        figures_assisted.plot_assistance_power(result),
        "Chance of finding a partner of use, by the epsilon that it spends; dashed: as run; "
        "dotted: the level, which is the chance of a finding where there is nothing.",
        f"Rising curves for {plural(len(shown), 'partner')}; the table below has the power as run.",
    )
    table = Table(
        "Power as run",
        ("partner", "what it could save", "chance of finding it"),
        rows,
        f"What it could save: {EFFECT}. One draw of mixtures; several find more.",
    )
    return Block("Could it have been seen?", tuple(text), warning, picture, (table,))


def _cost(result: AssistanceTestResult) -> Block:
    noisy = [p for p in result.partners if result.epsilon.get(p) is not None]
    text = []
    if noisy:
        text = [
            "Noise drawn from Laplace's law hides single records in the mixtures. Epsilon bounds "
            "how much more likely any reply can be made by one record's columns: by a factor of "
            "e to the epsilon at most. Its exact value for the mixtures drawn stands beside the "
            "bound that the source of the method gives, which is looser: noise sized by that "
            "bound would be larger than needed.",
            "Epsilon counts what the mixtures tell. A new draw spends it again; the same mixtures "
            "used for another response spend nothing more.",
        ]
    if len(noisy) < len(result.partners):
        text.append(
            "Mixtures without noise have no epsilon: nothing but their number stands between the "
            "reader and the columns."
        )
    scale = numbers([result.scale[p] if p in noisy else math.nan for p in result.partners])
    loose = numbers([result.loose_epsilon[p] if p in noisy else math.nan for p in result.partners])
    rows = tuple(
        (
            site_name(p),
            "no noise" if result.epsilon.get(p) is None else f"{result.epsilon[p]:.4g}",
            loose[i],
            scale[i],
            percent(float(result.reliability.get(p, math.nan)), 0),
            f"{int(result.revealed.get(p, 0))} of {int(result.n_columns.get(p, 0))}",
        )
        for i, p in enumerate(result.partners)
    )
    head = (
        *("partner", "epsilon, exact", "epsilon, source's bound", "scale of the noise"),
        *("left of the signal", "revealed rank"),
    )
    note = (
        "Left of the signal: share of the mixtures' variance, beside the initiator's columns, "
        "that is not noise. Revealed rank: directions of the partner's columns that are known "
        "after this run, of all that they have."
    )
    return Block(
        "What it cost", tuple(text), tables=(Table("Price of the test", head, rows, note),)
    )


REPORT = AssistanceTestReport
