"""The number of classes by held-out entries over sites: choice, edge, what leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import EnsembleClustering, Policy
from consilience.clustering.protocol.messages import (
    MAX_FOLDS,
    MAX_STARTS,
    Judged,
    JudgeRequest,
)
from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.protocol.site import judge
from consilience.exceptions import DisclosureError, ParameterError, QuorumError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.held_out_entries import KMeansPath, held_out_errors
from tests.clustering.protocol.test_ensemble_clustering import (
    SIZES,
    cluster,
    draw,
    labels,
    released,
)
from tests.wire.replies import refusal


def test_it_finds_the_number_of_separated_classes() -> None:
    tables, _ = draw(SIZES)
    run = cluster(tables, n_clusters="cv", n_init=3)
    result = run.result
    assert result.n_clusters == 4 and result.chosen_by == "cv" and not result.cv_at_edge
    assert result.cv_candidates[result.cv_chosen] == 4
    assert len(np.unique(labels(run, tables))) == 4
    assert result.cv_candidates.tolist() == [1, 2, 3, 4, 5, 6]
    # Beside it are the votes and the spectrum.
    assert result.votes == dict.fromkeys(SIZES, 4)
    said = result.choice_sentence()
    assert "chosen by the error of held-out entries" in said
    assert "votes by BIC are a 4, b 4, c 4, d 4, the spectrum suggests 4" in said


def test_sums_over_sites_are_the_sums_of_the_sites() -> None:
    tables, _ = draw(SIZES)
    result = cluster(tables, n_clusters="cv", n_init=3).result
    curve = result.cv_curve()
    total = np.sum(list(result.cv_site_errors.values()), axis=0)
    np.testing.assert_allclose(result.cv_fold_errors.sum(axis=0), total)
    # Every entry of a complete table is held out once.
    assert result.cv_site_entries == {site: n * 6 for site, n in SIZES.items()}
    assert result.cv_fold_entries.sum() == sum(SIZES.values()) * 6
    np.testing.assert_allclose(curve.mean, total / (sum(SIZES.values()) * 6))
    assert curve.minimiser == result.cv_minimiser and (curve.se > 0).all()
    assert curve.one_standard_error == result.cv_one_standard_error


def test_a_site_tells_the_errors_of_k_means_on_its_own_rows() -> None:
    """Without a smallest cell the folds follow from the public seed, so they can be drawn again."""
    tables, _ = draw({"a": 60}, seed=4)
    told: list[Judged] = []
    seeds: list[int] = []
    site = _FakeSite(seeds)
    reply, _ = judge(
        JudgeRequest(n_folds=5, max_clusters=4, n_init=3), _data(tables["a"]), {}, site
    )
    told.append(reply)
    from consilience.numerics.random import stream

    entries = Entries.of(tables["a"].to_numpy())
    folds = entry_folds(entries, 5, stream(seeds[0], "folds"))
    path = KMeansPath(parameters=range(1, 5), n_init=3, seed=seeds[0])
    wanted = held_out_errors(entries, path, folds)
    np.testing.assert_allclose(reply.errors.value / reply.entries.value[:, None], wanted.errors)
    np.testing.assert_allclose(reply.se.value, wanted.se)


def test_folds_are_the_same_whenever_they_are_asked_for_and_do_not_follow_from_the_seed() -> None:
    tables, _ = draw(SIZES)
    first = cluster(tables, n_clusters="cv", n_init=3, seed=3).result
    again = cluster(tables, n_clusters="cv", n_init=3, seed=4).result
    # Asking again, under another public seed, tells nothing new.
    np.testing.assert_array_equal(first.cv_fold_errors, again.cv_fold_errors)


@pytest.mark.parametrize("n", [24, 60, 200])
def test_lines_rest_on_enough_rows_and_are_not_more_than_rows(n: int) -> None:
    tables, _ = draw({"a": n, "b": n}, seed=5)
    settings = {"n_clusters": "cv", "max_clusters": 5, "n_init": 3, "stability_pairs": 0}
    for messages in released(tables, Judged, **settings).values():
        (message,) = messages
        lines, a = message.errors.value.shape
        assert a == 5 and (lines + 1) * a <= n
        evidence = message.errors.evidence
        assert (evidence.records >= 10).all() and (evidence.share <= 0.5).all()
        assert message.errors.value.sum() > 0


def test_one_row_that_makes_most_of_the_errors_is_not_told() -> None:
    tables, _ = draw(SIZES)
    tables["a"].iloc[3] = 1e4
    result = cluster(tables, n_clusters="cv", n_init=3).result
    assert "a" not in result.cv_site_errors and set(result.cv_site_errors) == {"b", "c", "d"}
    # The curve is flat beyond the true number, which the sparing choice does not mind.
    assert result.cv_candidates[result.cv_one_standard_error] == 4


def test_a_minimum_at_the_largest_number_is_a_note_and_no_choice() -> None:
    tables, _ = draw(SIZES)
    run = cluster(tables, n_clusters="cv", n_init=3, max_clusters=3)
    result = run.result
    assert result.cv_at_edge and result.n_clusters == 3
    assert "choose no number of classes" in result.choice_sentence()
    assert any("raise max_clusters" in note for note in run.notes)
    assert not any(
        "raise max_clusters" in n for n in cluster(tables, n_clusters="cv", n_init=3).notes
    )


def test_noise_without_classes_is_one_class() -> None:
    rng = np.random.default_rng(11)
    tables = {
        s: pd.DataFrame(rng.normal(size=(n, 6)), columns=[f"x{j}" for j in range(6)])
        for s, n in SIZES.items()
    }
    result = cluster(tables, n_clusters="cv", n_init=3).result
    # One class is where the problem begins: it is a choice, not an edge.
    assert result.n_clusters == 1 and not result.cv_at_edge


def test_small_sites_abstain_and_nobody_left_is_a_sentence() -> None:
    tables, _ = draw({"a": 120, "b": 11})
    run = cluster(tables, n_clusters="cv", n_init=3)
    assert set(run.result.cv_site_errors) == {"a"}
    assert any("Site b did not judge" in note for note in run.notes)
    with pytest.raises(QuorumError, match="no site could judge numbers of classes"):
        cluster(draw({"a": 11, "b": 11})[0], n_clusters="cv", n_init=3)


def test_one_column_has_nothing_to_predict_from() -> None:
    tables = {s: t[["x0"]] for s, t in draw(SIZES)[0].items()}
    with pytest.raises(QuorumError, match="two features or more"):
        cluster(tables, n_clusters="cv", n_init=3)


def test_without_cv_nothing_is_asked_and_results_say_so() -> None:
    tables, _ = draw(SIZES)
    run = cluster(tables, n_clusters="vote")
    assert not any(line.step == "judge" for line in run.transcript)
    result = run.result
    assert result.cv_curve() is None and len(result.cv_candidates) == 0
    read = EnsembleClusteringResult.from_files(result.to_files())
    assert read.cv_chosen == -1 and read.cv_site_errors == {}
    held = cluster(tables, n_clusters="cv", n_init=3).result
    read = EnsembleClusteringResult.from_files(held.to_files())
    np.testing.assert_array_equal(read.cv_curve().mean, held.cv_curve().mean)


def test_more_than_a_site_judges_is_refused_by_the_site() -> None:
    tables, _ = draw({"a": 60})
    asked = (
        (MAX_FOLDS + 1, 4, 2),
        (5, 31, 2),
        (1, 4, 2),
        (5, 0, 2),
        (5, 4, 0),
        (5, 4, MAX_STARTS + 1),
    )
    for n_folds, most, n_init in asked:
        request = JudgeRequest(n_folds=n_folds, max_clusters=most, n_init=n_init)
        with pytest.raises(DisclosureError, match="than a site judges"):
            judge(request, _data(tables["a"]), {}, _FakeSite([]))


@pytest.mark.parametrize(
    ("errors", "entries", "se"),
    [
        (1.0, 1e300, 1.0),
        (1.0, 10.5, 1.0),
        (1.0, 0.0, 1.0),
        (1.0, np.nan, 1.0),
        (1e300, 10.0, 1.0),
        (-1.0, 10.0, 1.0),
        (1.0, 10.0, 1e200),
        (1.0, 10.0, np.nan),
    ],
)
def test_errors_that_fit_no_question(errors: float, entries: float, se: float) -> None:
    def judged(errors: float, entries: float, se: float, n_folds: int = 5) -> str:
        fields = {
            "errors": np.full((5, 3), errors),
            "entries": np.full(5, entries),
            "se": np.full(3, se),
        }
        request = JudgeRequest(n_folds=n_folds, max_clusters=3, n_init=1)
        return refusal(Judged, fields, request)

    assert judged(1.0, 10.0, 1.0) == ""
    assert judged(errors, entries, se)
    assert "no held-out entries" in judged(1.0, 10.0, 1.0, n_folds=4)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"n_folds": 1}, "n_folds must be a whole number from 2 to 20"),
        ({"n_folds": 21}, "n_folds must be a whole number from 2 to 20"),
        ({"n_clusters": "cv", "max_clusters": 31}, "max_clusters must be .* from 2 to 30"),
        ({"n_clusters": "aic"}, "'vote', 'bic', 'eigenvalues' or 'cv'"),
    ],
)
def test_parameters_out_of_range_are_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        EnsembleClustering(**parameters).validate()


def _data(table: pd.DataFrame) -> Any:
    from consilience.protocol.method import SiteData

    x = table.to_numpy()
    return SiteData(x, tuple(table.columns), np.arange(len(x)))


class _FakeSite:
    """A site that protects no record; it remembers the seed that it drew."""

    def __init__(self, seeds: list[int]) -> None:
        self.limits = Policy(preset="simulation").limits
        self.seeds = seeds

    @property
    def rng(self) -> Any:
        outer = self

        class Draws:
            def integers(self, high: int) -> int:
                outer.seeds.append(7)
                return 7

        return Draws()

    def note(self, sentence: str) -> None:
        raise AssertionError(sentence)
