"""What tests take, recorded, decides which suite they are in.

``tests/durations.tsv`` has a line for each test that takes a while: seconds (call, set-up and
tear-down) and name. A fixture that several tests share counts for each of them, whichever comes
first: else the suites would hand it on to one another. The marks ``medium``, ``slow`` and ``long``
follow from the file; nobody sets them by hand. A test that is not in it is quick. Suites of another
kind (`KINDS`) are chosen by their own mark alone.

``make durations`` runs the suites and writes the file. `LONG` names the functions whose tests may
be long, so that only ``make test-nightly`` runs them: none leaves the other suites unnamed, and who
is not named is slow, however long it takes.

Tests of `HEAVY` seconds and more have their turn every `DAYS` days, file by file; ``make
test-nightly`` runs the others too. Those by which a small fault of ``tests/mutants.toml`` was found
have it every day.

Every run compares what it sees with what is recorded, allowing for a machine that is slower or
busier as a whole, and says in its last lines which tests are more than three times off: a mark that
is wrong is told, and nothing fails by it.
"""

from __future__ import annotations

import csv
import statistics
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rotation import rotation

RECORDED = Path(__file__).with_name("durations.tsv")
MUTANTS = Path(__file__).with_name("mutants.csv")
LIMITS = {"medium": 0.07, "slow": 0.3, "long": 8.0}
"""Seconds from which a test has the mark."""
KINDS = ("faults", "flower", "image", "postgresql", "r")
LONG = {
    "tests/cli/test_commands.py::test_long_demo_runs",
    "tests/docs/test_deploy_page.py::test_the_guide_is_followed_word_by_word",
    "tests/docs/test_latent_class_page.py::test_python_of_the_guide_prints_what_it_shows",
    "tests/docs/test_meta_clustering_pages.py::test_printed_figures_are_those_of_the_example",
    "tests/docs/test_selection_pages.py::test_python_of_the_guide_prints_what_it_shows",
    "tests/docs/test_sequences_page.py::test_python_of_the_guide_prints_what_it_shows",
    "tests/docs/test_wide_pages.py::test_python_of_the_guide_prints_what_it_shows",
    "tests/discriminant/estimators/test_community_bayes.py::test_communities_lower_the_error_where_they_are_there_and_not_where_not",
    "tests/discriminant/estimators/test_community_bayes_size.py::test_memory_of_a_fit",
    "tests/latent_regression/estimators/test_latent_class_fit.py::test_number_of_classes_in_many_simulations",
    "tests/latent_regression/estimators/test_latent_class_fit.py::test_overlapping_classes_are_not_given_up",
    "tests/discriminant/estimators/test_sparse_qda_digits_vowel.py::test_digits",
    "tests/discriminant/estimators/test_sparse_qda_large.py::test_five_thousand_features",
    "tests/completion/test_unsupervised_selection_papers.py::test_noise_whose_variance_differs_by_row_and_column_chooses_too_many",
    "tests/completion/test_unsupervised_selection_papers.py::test_sparse_factors_cost_truncation_more_than_refitting",
    "tests/discriminant/estimators/test_wide_papers.py::test_digits",
    "tests/examples/test_eicu.py::test_no_groups",
    "tests/examples/test_eicu.py::test_the_own_model_loses_and_an_intercept_does_not_help",
    "tests/examples/test_held_out_entries.py::test_rank_of_threes_and_an_edge_that_is_none",
    "tests/examples/test_inst_eval.py::test_classes_beside_mixed_models",
    "tests/examples/test_inst_eval.py::test_what_the_sites_measure",
    "tests/examples/test_nsl_kdd.py::test_how_often_the_partner_is_found",
    "tests/examples/test_nsl_kdd_services.py::test_a_hundred_rounds_are_near_the_pooled_fit",
    "tests/examples/test_nsl_kdd_services.py::test_twenty_rounds_close_most_of_the_gap",
    "tests/assisted/test_assisted_papers.py::test_coverage_with_a_masked_response",
    "tests/assisted/test_assisted_papers.py::test_rounds",
    "tests/assisted/test_assisted_papers.py::test_rounds_on_connections",
    "tests/clustering/protocol/test_ensemble_coded_papers.py::test_regions_of_mvad",
    "tests/clustering/protocol/test_ensemble_coded_papers.py::test_sites_are_closer_in_shared_classes_where_sequences_are_short",
    "tests/latent_regression/protocol/test_latent_class_papers.py::test_low_noise",
    "tests/latent_regression/protocol/test_latent_class_papers.py::test_one_agent_in_seven_reports",
    "tests/latent_regression/protocol/test_latent_class_papers.py::test_price_of_the_rules_for_class_sums",
    "tests/collaborators/protocol/test_meta_clustering.py::test_five_hundred_sites",
    "tests/collaborators/protocol/test_meta_clustering.py::test_groups_of_few_sites_in_many_data_sets",
    "tests/collaborators/protocol/test_meta_clustering_papers.py::test_two_groups_of_linear_learners",
    "tests/collaborators/protocol/test_meta_clustering_papers.py::test_wide_learners_with_three_methods",
    "tests/averaging/protocol/test_reference_averaging_papers.py::test_ridge_reaches_the_closed_form_and_the_global_fit",
    "tests/clustering/kernels/test_ensemble.py::test_pattern_form_equals_the_n_by_n_form",
    "tests/collaborators/kernels/test_pairwise_rule.py::test_homogeneous_sites_are_split_in_at_most_two_percent",
    "tests/collaborators/kernels/test_pairwise_rule.py::test_two_groups_and_one_odd_site_are_found",
    "tests/clustering/kernels/test_site_differences.py::test_intervals_hold_the_truth_everywhere",
    "tests/clustering/kernels/test_site_differences_of_sequences.py::test_steps_within_sequences_leave_the_coverage",
    "tests/numerics/test_own_rows.py::test_copied_rows_are_found_as_the_page_says",
    "tests/averaging/tall/test_guide.py::test_the_example_prints_what_the_page_shows",
}
WORTH_RECORDING = 0.05
FACTOR = 3.0
HEAVY = 1.0
DAYS = 4


def read(path: Path = RECORDED) -> dict[str, float]:
    """Seconds by name of the test; nothing where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (line.split("\t", 1) for line in lines)
    return {name: float(seconds) for seconds, name in pairs}


def write(seconds: Mapping[str, float], path: Path = RECORDED) -> None:
    """Write what is worth it, with two digits, in the order of names."""
    kept = sorted((name, s) for name, s in seconds.items() if s >= WORTH_RECORDING)
    lines = [f"{s:.2g}\t{name}\n" for name, s in kept]
    path.write_text("".join(lines), encoding="utf-8")


def mark_of(seconds: float) -> str:
    """Return the mark of a test that takes so long; quick tests have none."""
    return next((mark for mark, s in reversed(LIMITS.items()) if seconds >= s), "")


def finders() -> set[str]:
    """Tests by which small faults were found."""
    with MUTANTS.open(encoding="utf-8", newline="") as table:
        return {row["by"] for row in csv.DictReader(table)}


def has_its_turn(name: str, seconds: float, day: int) -> bool:
    """Whether a test runs on a day; those of a file share what is dear to set up."""
    return seconds < HEAVY or (zlib.crc32(name.partition("::")[0].encode()) + day) % DAYS == 0


def expected(name: str, recorded: Mapping[str, float], *, by_turns: bool) -> float:
    """Seconds of a test; of one that had its turn on another day those of its like."""
    if name in recorded or not by_turns:
        return recorded.get(name, 0.0)
    stem = name.rpartition("-")[0] or name.partition("[")[0]
    return max((s for other, s in recorded.items() if other.startswith(stem)), default=0.0)


def off(measured: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """One sentence for each test that belongs into another suite by more than the factor.

    The machine counts as slower by the median ratio of the tests that are recorded.
    """
    pairs = [(measured[name], recorded[name]) for name in measured if name in recorded]
    pace = statistics.median(now / max(then, 0.01) for now, then in pairs) if pairs else 1.0
    found = []
    for name, seconds in measured.items():
        then = recorded.get(name, 0.0)
        now = seconds / max(pace, 1.0)
        least = LIMITS.get(mark_of(then), 0.0)
        most = min((s for s in LIMITS.values() if s > then), default=float("inf"))
        if now > FACTOR * most or now < least / FACTOR:
            found.append(f"{name} takes {now:.2g} s, recorded are {then:.2g}")
    return sorted(found)


# --------------------------------------------------------------------------- in a run of pytest


class Clock:
    """Marks the tests of a run, measures them, and says what is off at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._recorded = read()
        self._measured: dict[str, float] = defaultdict(float)
        self._shared: dict[object, float] = {}  # seconds of fixtures that outlive a test
        self._paid = 0.0  # of them, by the test that is being set up
        self._writes = bool(config.getoption("--write-durations"))

    @pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        today, always = rotation(), finders()
        for item in items:
            turn = item.get_closest_marker("turn") is not None
            seconds = expected(item.nodeid, self._recorded, by_turns=turn)
            mark = mark_of(seconds)
            if mark == "long" and item.nodeid.split("[")[0] not in LONG:
                mark = "slow"
            if mark and not any(item.get_closest_marker(kind) for kind in KINDS):
                item.add_marker(mark)
                its_turn = item.nodeid in always or has_its_turn(item.nodeid, seconds, today)
                if mark == "slow" and not turn and not its_turn:
                    item.add_marker("nightly")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._shared[fixturedef] = time.perf_counter() - begun
                self._paid += self._shared[fixturedef]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        if report.when == "setup":
            used = getattr(item, "_fixtureinfo", None)
            found = {d for ds in used.name2fixturedefs.values() for d in ds} if used else ()
            # An attribute of the report, since it is read in the process that collects them.
            report.seconds_of_others = sum(self._shared.get(d, 0.0) for d in found) - self._paid
            self._paid = 0.0
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = report.nodeid in self._recorded
        left_out = {*KINDS}
        if not known:
            left_out |= {"nightly"} if self._writes else {"nightly", "turn"}
        if left_out.isdisjoint(report.keywords):
            others = max(getattr(report, "seconds_of_others", 0.0), 0.0)
            self._measured[report.nodeid] += report.duration + others

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._writes:
            write({**self._recorded, **self._measured})
        sentences = off(self._measured, self._recorded)
        for sentence in sentences[:10]:
            terminalreporter.write_line(f"durations: {sentence}")
        if sentences:
            terminalreporter.write_line(
                f"durations: {len(sentences)} tests are in the wrong suite; make durations"
            )
