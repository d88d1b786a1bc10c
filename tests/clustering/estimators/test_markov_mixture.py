"""Mixture of Markov chains as an estimator."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience.clustering.estimators.mixture import MarkovMixture
from consilience.clustering.kernels.sequences import Sequences
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.observed_kmeans import FewerClustersWarning
from replications.ensemble_clustering.simulate_sequences import SHORT, simulate_sequences

NAMES = list("abc")


def does_not_apply(estimator: Any) -> dict[str, str]:
    """Checks of scikit-learn that take columns for features and numbers for quantities."""
    columns = "columns are time points: sequences in predict may be longer or shorter than in fit"
    return {
        "check_n_features_in": columns,
        "check_n_features_in_after_fitting": columns,
        "check_sample_weight_equivalence_on_dense_data": (
            "predicts rows that were left out of the fit: their numbers are unknown states"
        ),
    }


@parametrize_with_checks([MarkovMixture(n_init=2)], expected_failed_checks=does_not_apply)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def quick(n_classes: Any = 2, **settings: Any) -> MarkovMixture:
    return MarkovMixture(n_classes, random_state=0, **{"n_init": 8, **settings})


@pytest.fixture(scope="module")
def lists() -> list[list[Any]]:
    """Two classes over three states, one stays, one moves on; a fifth missing."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(60):
        state, sequence = int(rng.integers(3)), []
        for _ in range(rng.integers(1, 12)):
            sequence.append(None if rng.random() < 0.2 else NAMES[state])
            moves = rng.random() < (0.1 if i % 3 else 0.9)
            state = (state + 1) % 3 if moves else state
        found.append(sequence)
    found[7] = ["a", None, "b", "c", None]
    return found


def same(first: MarkovMixture, second: MarkovMixture) -> None:
    for name in ("initial_", "transition_", "proportions_"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


# ------------------------------------------------------------------ answers


def test_classes_are_found_and_ordered() -> None:
    data = simulate_sequences(
        rng=np.random.default_rng(1), sizes=(400,), n_states=3, n_classes=3, concentration=0.3
    )
    fit = quick(3).fit(Sequences.of(data.wide, 3))
    truth = adjusted_rand_score(data.label, data.oracle())
    assert adjusted_rand_score(data.label, fit.labels_) > truth - 0.02
    assert (np.diff(fit.proportions_) <= 0).all()
    assert fit.converged_
    assert fit.n_classes_ == 3
    np.testing.assert_array_equal(fit.predict(Sequences.of(data.wide, 3)), fit.labels_)
    # 3 classes, 1,200 steps to each cell at least: five standard errors of a chance near 1/2.
    order = [np.bincount(fit.labels_[data.label == k]).argmax() for k in range(3)]
    np.testing.assert_allclose(fit.transition_[order], data.transition, atol=0.08)


def test_forms_of_the_same_sequences(lists: list[list[Any]]) -> None:
    """Lists, a data frame, an array of texts or numbers, a long table, sequences: all the same."""
    plain = quick().fit(lists)
    assert plain.states_.tolist() == NAMES
    width = max(map(len, lists))
    frame = pd.DataFrame([row + [None] * (width - len(row)) for row in lists])
    numbers = frame.apply(lambda column: column.map(NAMES.index, na_action="ignore")).astype(float)
    numbers[[2, 3]] = numbers[[3, 2]].to_numpy()[:, ::-1]  # the same values, in a new memory order
    cells = [(i, t, s) for i, row in enumerate(lists) for t, s in enumerate(row) if s is not None]
    ids, times, states = zip(*cells, strict=True)
    long = MarkovMixture.sequences_from_long(ids, times, states, start=0)
    assert len(long) < len(lists)  # those that say nothing have no row
    kept = np.array([any(s is not None for s in row) for row in lists])
    for form in (frame, frame.to_numpy(), frame.astype("string"), Sequences.from_lists(lists)):
        again = quick().fit(form)
        same(again, plain)
        np.testing.assert_array_equal(again.predict_proba(lists), plain.predict_proba(form))
    from_numbers = quick().fit(numbers)
    same(from_numbers, plain)
    assert from_numbers.states_.tolist() == [0, 1, 2]
    assert from_numbers.states_.dtype.kind == "i"
    np.testing.assert_array_equal(plain.predict(long), plain.labels_[kept])
    same(quick().fit(long), quick().fit([row for row, k in zip(lists, kept, strict=True) if k]))


def test_masked_cells_were_not_seen() -> None:
    seen = np.ma.masked_array([[1, 2, 1], [2, 2, 1], [1, 1, 2]], [[0, 1, 0], [0, 0, 0], [0, 0, 1]])
    empty = [[1, None, 1], [2, 2, 1], [1, 1, None]]
    fits = [quick(1).fit(table) for table in (seen, empty)]
    assert fits[0].transition_.tolist() == fits[1].transition_.tolist()


def test_categories_of_a_frame_are_the_alphabet() -> None:
    kind = pd.CategoricalDtype(["c", "a", "b", "z"])
    frame = pd.DataFrame([["a", "b"], ["b", "b"], ["a", None]]).astype(kind)
    assert quick().fit(frame).states_.tolist() == ["c", "a", "b", "z"]
    frame[1] = frame[1].cat.remove_unused_categories()
    assert quick().fit(frame).states_.tolist() == ["a", "b"]
    assert quick(states=["b", "a"]).fit(frame).states_.tolist() == ["b", "a"]


def test_order_of_rows_and_repeats(lists: list[list[Any]]) -> None:
    rng = np.random.default_rng(3)
    plain = quick().fit(lists)
    order = rng.permutation(len(lists))
    shuffled = quick().fit([lists[i] for i in order])
    same(shuffled, plain)
    np.testing.assert_array_equal(shuffled.labels_, plain.labels_[order])
    times = rng.integers(0, 4, len(lists))
    times[:3] = 1
    repeated = quick(states=NAMES).fit(
        [row for row, n in zip(lists, times, strict=True) for _ in range(n)]
    )
    weighted = quick(states=NAMES).fit(lists, sample_weight=times)
    same(weighted, repeated)
    assert weighted.bic_ == repeated.bic_
    assert weighted.score(lists, sample_weight=times) == pytest.approx(
        weighted.log_likelihood_ / times.sum()
    )
    own = Sequences.from_lists(lists, NAMES, weights=times)
    same(quick().fit(own), repeated)


def test_probabilities_and_criteria(lists: list[list[Any]]) -> None:
    fit = quick().fit(lists)
    chances = fit.predict_proba(lists)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(fit.predict_log_proba(lists)), chances)
    np.testing.assert_array_equal(chances.argmax(axis=1), fit.labels_)
    assert fit.score_samples(lists).sum() == pytest.approx(fit.log_likelihood_)
    assert fit.score(lists) == pytest.approx(fit.log_likelihood_ / 60)
    assert fit.n_parameters_ == 1 + 2 * 2 + 2 * 3 * 2
    assert fit.aic(lists) == pytest.approx(-2 * fit.log_likelihood_ + 2 * 17)
    assert fit.bic(lists) == pytest.approx(-2 * fit.log_likelihood_ + 17 * np.log(60))
    assert fit.bic_ == pytest.approx(fit.bic(lists))
    assert len(fit.start_spread_) == 4
    assert fit.start_spread_[0] == fit.log_likelihood_


def test_a_prediction_does_not_depend_on_its_neighbours(lists: list[list[Any]]) -> None:
    fit = quick().fit(lists)
    together = fit.predict_log_proba(lists)
    for i in (0, 7, 31):
        np.testing.assert_array_equal(fit.predict_log_proba([lists[i]])[0], together[i])


def test_bic_chooses_the_number_of_classes(lists: list[list[Any]]) -> None:
    fit = quick("bic", max_classes=3).fit(lists)
    assert fit.bic_curve_["n_classes"].tolist() == [1, 2, 3]
    assert fit.n_classes_ == 2
    assert fit.bic_ == fit.bic_curve_["bic"].min()
    same(fit, quick(2).fit(lists))
    one_chain = [row for i, row in enumerate(lists) if i % 3]
    assert quick("bic", max_classes=3).fit(one_chain).n_classes_ == 1


def test_several_peaks_are_told() -> None:
    """Short sequences of two chains, fitted with five classes: the best starts differ."""
    data = simulate_sequences(
        rng=np.random.default_rng(0), sizes=(150,), n_classes=2, n_states=4, lengths=SHORT
    )
    fit = quick(5).fit(Sequences.of(data.wide, 4))
    assert np.ptp(fit.start_spread_) > 0.1
    assert any("several peaks" in remark for remark in fit.remarks_)
    assert quick(1).fit(Sequences.of(data.wide, 4)).remarks_ == ()


def test_sample(lists: list[list[Any]]) -> None:
    fit = quick().fit(lists)
    drawn, labels = fit.sample(2000, 12)
    assert drawn.states == tuple(NAMES)
    assert set(drawn.lengths.tolist()) == {12}
    # 2,000 draws: five standard errors of a share are below 0.056.
    np.testing.assert_allclose(np.bincount(labels) / 2000, fit.proportions_, atol=0.056)
    again = quick().fit(drawn)
    np.testing.assert_allclose(again.transition_, fit.transition_, atol=0.08)
    other, _ = fit.sample(2000, 12, random_state=1)
    assert not np.array_equal(other.codes, drawn.codes)
    mixed, _ = fit.sample(3, [0, 1, 5])
    assert mixed.lengths.tolist() == [0, 1, 5]
    assert set(mixed.to_lists()[2]) <= set(NAMES)
    for wrong in (0, 1.5, True):
        with pytest.raises(ParameterError, match="n_samples must be"):
            fit.sample(wrong)
    for length in (-1, [1, 2, 3], "x", 1.5):
        with pytest.raises(ParameterError, match="length must be"):
            fit.sample(2, length)


def test_copies_and_arrays(lists: list[list[Any]]) -> None:
    fit = quick().fit(lists)
    copy = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(copy.predict_proba(lists), fit.predict_proba(lists))
    assert clone(fit).get_params() == fit.get_params()
    arrays = fit.to_arrays()
    back = MarkovMixture.from_arrays(arrays)
    np.testing.assert_array_equal(back.predict_proba(lists), fit.predict_proba(lists))
    assert (back.bic(lists), back.aic(lists)) == (fit.bic(lists), fit.aic(lists))
    older = {name: array for name, array in arrays.items() if name != "n_parameters"}
    assert MarkovMixture.from_arrays(older).bic(lists) == fit.bic(lists)
    for wrong in ([-1], [1, 2], [0.5]):
        with pytest.raises(DataError, match="do not hold"):
            MarkovMixture.from_arrays({**arrays, "n_parameters": np.array(wrong)})
    assert back.states_.tolist() == NAMES
    for name, wrong in (
        ("proportions", np.array([0.7, 0.7])),
        ("initial", arrays["initial"][:, :2]),
        ("transition", -arrays["transition"]),
        ("transition", np.full((2, 3, 3), np.nan)),
        ("initial", np.array([["a"]])),
    ):
        with pytest.raises(DataError, match="Markov mixture"):
            MarkovMixture.from_arrays({**arrays, name: wrong})
    number = quick(states=[4, 5, 6]).fit(Sequences.of([[0, 1, 2], [2, 1, 0], [0, 0, 0]]))
    stored = number.to_arrays()
    assert MarkovMixture.from_arrays(stored).states_.tolist() == [4, 5, 6]
    assert all(array.dtype.kind != "U" for array in (*arrays.values(), *stored.values()))
    for wrong in ([4, 5], [4, 5, 5], [[4, 5, 6]]):
        with pytest.raises(DataError, match="do not hold"):
            MarkovMixture.from_arrays({**stored, "states_0": np.array(wrong)})
    del arrays["transition"]
    with pytest.raises(DataError, match="'transition'"):
        MarkovMixture.from_arrays(arrays)


# ------------------------------------------------------------------ sequences that are hard


def test_sequences_that_say_nothing(lists: list[list[Any]]) -> None:
    fit = quick().fit(lists)
    chances = fit.predict_proba([[None, None], [], ["a"]])
    np.testing.assert_allclose(chances[:2], np.tile(fit.proportions_, (2, 1)))
    same(quick().fit([*lists, ["a", None]]), quick().fit([*lists, ["a"]]))
    with pytest.raises(DataError, match="no state was seen"):
        quick().fit([[None, None], [None]])
    with pytest.raises(DataError, match="no state was seen"):
        quick(states=NAMES).fit([[None, None], [None]])


def test_sequences_of_length_one() -> None:
    # With two classes the shares are not determined, and EM creeps along their ridge.
    fit = quick(2, tol=1e-5).fit([["a"]] * 6 + [["b"]] * 3)
    assert fit.transition_.tolist() == [[[0.5, 0.5]] * 2] * 2
    np.testing.assert_allclose((fit.proportions_ @ fit.initial_)[0], 2 / 3, atol=0.02)
    assert sum("never left" in remark for remark in fit.remarks_) == 2
    assert fit.n_parameters_ == 1 + 2


def test_a_state_that_is_never_left_or_never_seen() -> None:
    rows = [["a", "b", "a", "end"], ["b", "a", "b", "end"], ["a", "end"], ["b", "b"]]
    fit = quick(1, states=["a", "b", "end", "z"]).fit(rows)
    np.testing.assert_allclose(fit.transition_[0, 2:], 0.25)
    assert "state 'end' is never left: its next states are not known" in fit.remarks_
    assert "state 'z' does not occur" in fit.remarks_
    assert fit.n_parameters_ == quick(1).fit(rows).n_parameters_ == 2 + 2 * 2
    assert fit.n_iter_ <= 2


def test_one_class_has_the_counts() -> None:
    rows = [["a", "a", "b"], ["b", "a", "a", "a"]]
    fit = MarkovMixture(1, pseudo_count=0.0).fit(rows)
    np.testing.assert_allclose(fit.initial_, [[0.5, 0.5]])
    np.testing.assert_allclose(fit.transition_, [[[0.75, 0.25], [1.0, 0.0]]])
    assert fit.score_samples([["b", "b"]]) == -np.inf
    np.testing.assert_array_equal(fit.predict_proba([["b", "b"]]), [[1.0]])


def test_impossible_sequences_without_pseudo_counts() -> None:
    rows = [["a", "a", "a"]] * 5 + [["a", "b", "a"]] * 3
    fit = quick(2, pseudo_count=0.0).fit(rows)
    np.testing.assert_allclose(fit.predict_proba([["b", "b"]])[0], fit.proportions_)
    assert fit.score([["b", "b"]]) == -np.inf
    assert np.isfinite(fit.log_likelihood_)


def test_fewer_distinct_sequences_than_classes() -> None:
    with pytest.warns(FewerClustersWarning, match="there is 1 distinct sequence: 1 of 3 classes"):
        fit = quick(3).fit([["a", "b"]] * 5)
    assert fit.n_classes_ == 1
    assert fit.predict([["b"]]).tolist() == [0]
    assert quick("bic").fit([["a", "b"]] * 5).bic_curve_["n_classes"].tolist() == [1]


def test_a_class_that_is_nobodys_most_probable_one_is_told() -> None:
    with pytest.warns(ConvergenceWarning, match="only 1 of 2 classes hold sequences"):
        fit = quick().fit(50 * [["a", "b"]] + [["a", "b", "b"]])
    assert set(fit.labels_) == {0}
    assert sum("only 1 of 2 classes" in remark for remark in fit.remarks_) == 1


def test_weights_that_are_no_counts_are_told(lists: list[list[Any]]) -> None:
    few = np.full(len(lists), 1.0 / len(lists))
    fit = quick().fit(lists, sample_weight=few)
    assert any("sum to 1, which BIC takes for their number" in told for told in fit.remarks_)
    assert not any("sum to" in told for told in quick().fit(lists).remarks_)
    with pytest.raises(DataError, match=r"weights sum to 0\.5 .* number of sequences"):
        quick("bic").fit(lists, sample_weight=0.5 * few)
    with pytest.raises(DataError, match=r"weights sum to 0\.5"):
        fit.bic(Sequences.from_lists(lists, NAMES, weights=0.5 * few))


def test_one_state() -> None:
    fit = quick(2).fit([["a"] * 3, ["a"] * 5, ["a"]])
    np.testing.assert_allclose(fit.transition_, 1.0)
    assert fit.log_likelihood_ == pytest.approx(0.0)


def test_not_settled() -> None:
    data = simulate_sequences(rng=np.random.default_rng(0), sizes=(300,), lengths=SHORT)
    with pytest.warns(ConvergenceWarning, match="max_iter = 2"):
        fit = quick(4, n_init_iter=1, max_iter=2).fit(Sequences.of(data.wide))
    assert not fit.converged_
    assert any("max_iter" in remark for remark in fit.remarks_)


# ------------------------------------------------------------------ refusals


def test_unknown_states_are_refused_without_their_value(lists: list[list[Any]]) -> None:
    fit = quick().fit(lists)
    for form in ([["a", "secret"]], pd.DataFrame([["a", "secret"]]), np.array([["a", "secret"]])):
        with pytest.raises(DataError, match="1 cell holds a state that is not one of the 3") as e:
            fit.predict(form)
        assert "secret" not in str(e.value)
    with pytest.raises(DataError, match="not one of the 2 known"):
        quick(states=["a", "b"]).fit(lists)
    with pytest.raises(DataError, match="not one of the 3 known"):
        fit.predict(Sequences.of([[3, 1]]))
    numbers = quick().fit([[1, 2, 1], [2, 2, 1]])
    with pytest.raises(DataError, match="3 cells hold a state that is not one of the 2"):
        numbers.predict(np.array([[1, 7], [7, 7]]))
    # Codes without names count as states of the fit; names are looked up.
    by_code = fit.predict(Sequences.of([[2, 1, 0, 2]]))
    np.testing.assert_array_equal(
        by_code, fit.predict(Sequences.from_lists([list("cbac")], ["c", "b", "a"]))
    )


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (["ab", "ba"], "one list of states"),
        (np.array(["a", "b"]), "1D array"),
        (np.zeros((2, 2, 2)), "3D array"),
        (np.zeros((0, 3)), "0 sample"),
        (np.zeros((3, 0)), "0 feature"),
        ([], "X has no sequence"),
        (np.array([[1.0, np.inf]]), "infinity"),
        (np.ones((2, 2), dtype=complex), "Complex"),
        ([[["a"], ["b"]]], "a number or a text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_sequence(X: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        quick().fit(X)


def test_sparse_tables_are_refused() -> None:
    with pytest.raises(TypeError, match="Sparse"):
        quick().fit(sparse.eye_array(3).tocsr())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_classes": 0}, "n_classes must be a whole number of at least 1"),
        ({"n_classes": "aic"}, "n_classes must be"),
        ({"n_classes": True}, "n_classes must be"),
        ({"max_classes": 0}, "max_classes must be"),
        ({"n_init": 0}, "n_init must be"),
        ({"n_init_iter": -1}, "n_init_iter must be"),
        ({"n_final": 0}, "n_final must be"),
        ({"max_iter": 1.5}, "max_iter must be"),
        ({"pseudo_count": -0.1}, "pseudo_count must be"),
        ({"tol": np.nan}, "tol must be"),
        ({"states": ["a", "a"]}, "states must be a list of different states"),
        ({"states": []}, "states must be"),
        ({"states": 3}, "states must be"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        MarkovMixture(**settings).fit([["a", "b"]])


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1.0], "expected"),
        ([1, -1], "at least 0"),
        ([1, np.nan], "finite"),
        ([0, 0], "zero"),
        (["x", "y"], "must hold numbers"),
    ],
)
def test_bad_weights(weight: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        quick().fit([["a", "b"], ["b"]], sample_weight=weight)


def test_before_fit() -> None:
    for call in (quick().predict, quick().score):
        with pytest.raises(NotFittedError):
            call([["a"]])
    with pytest.raises(NotFittedError):
        quick().sample()
    with pytest.raises(NotFittedError):
        quick().to_arrays()


def test_time_points_keep_their_order() -> None:
    frame = pd.DataFrame(
        [list("abab"), list("bbbb"), list("aabb")], columns=["t1", "t2", "t3", "t4"]
    )
    fit = quick(2).fit(frame)
    assert fit.feature_names_in_.tolist() == ["t1", "t2", "t3", "t4"]
    fit.predict(frame[["t2", "t3"]])
    with pytest.raises(DataError, match="another order"):
        fit.predict(frame[["t2", "t1", "t3", "t4"]])
    assert not hasattr(fit.fit(frame.to_numpy()), "feature_names_in_")


def test_states_of_mixed_types() -> None:
    fit = quick(1).fit([["b", 1, True, None], [2, "a"]])
    assert fit.states_.tolist() == [1, 2, "a", "b"]
    with pytest.raises(DataError, match="neither numbers nor text"):
        fit.to_arrays()


def test_standard_errors() -> None:
    data = simulate_sequences(
        rng=np.random.default_rng(3), sizes=(400,), n_states=3, n_classes=2, concentration=0.5
    )
    fit = quick().fit(Sequences.of(data.wide, 3))
    shares, initial, transition = fit.standard_errors(Sequences.of(data.wide, 3))
    assert (shares.shape, initial.shape, transition.shape) == ((2,), (2, 3), (2, 3, 3))
    # Labels are nearly certain: errors are those of known classes, or a little more.
    p = fit.proportions_
    np.testing.assert_allclose(shares, np.sqrt(p * (1 - p) / 400), rtol=0.1)
    twice = fit.standard_errors(Sequences.of(data.wide, 3), sample_weight=np.full(400, 2.0))
    np.testing.assert_allclose(twice[2], transition / np.sqrt(2))
