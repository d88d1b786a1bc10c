"""Rules of the gate one by one, each at its boundary: what rests on exactly the limit leaves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DisclosureError, ProtocolError
from consilience.sites.gate import Reviewed, Series, _kinds_of, review
from consilience.sites.policy import Policy
from consilience.testing.attacks import recovers
from consilience.wire import disclosure as d
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Released
from consilience.wire.message import (
    Aggregate,
    Disclosure,
    Model,
    Noised,
    PerRecord,
    Public,
    message,
)
from consilience.wire.support import RULES

STRICT = Policy()
SIMULATION = Policy.from_settings("simulation")


@message("test-gate/aggregate", version=1)
class Summed:
    value: Any = Aggregate("*anything", gaps=True)


@message("test-gate/model", version=1)
class Fitted:
    value: Any = Model("*anything")


@message("test-gate/rows", version=1)
class Rows:
    value: Any = PerRecord("*anything")


@message("test-gate/noised", version=1)
class Noisy:
    value: Any = Noised("*anything")


@message("test-gate/public", version=1)
class Told:
    value: Any = Public("*anything")


TYPES = {
    Disclosure.AGGREGATE: Summed,
    Disclosure.MODEL: Fitted,
    Disclosure.PER_RECORD: Rows,
    Disclosure.NOISED: Noisy,
}


def put(released: Released, policy: Policy = STRICT, **settings: Any) -> Reviewed:
    return review(TYPES[released.disclosure](value=released), policy, {}, **settings)


def passes(released: Released, policy: Policy = STRICT, **settings: Any) -> bool:
    try:
        put(released, policy, **settings)
    except DisclosureError as error:
        limits = error.public.replace(f"{policy.min_records} records", "")
        limits = limits.replace("0.5 of a cell", "")
        assert not any(character.isdigit() for character in limits), "a refusal tells no number"
        return False
    return True


def normal(n: int, p: int = 1) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, p))


class Mechanism:
    name = "none"

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def release(self, values: np.ndarray) -> np.ndarray:
        return values


@pytest.mark.parametrize(("n", "good"), [(0, True), (1, False), (9, False), (10, True)])
def test_count(n: int, good: bool) -> None:
    assert passes(d.count(n)) is good
    assert passes(d.cell_counts(np.zeros(n, dtype=int), 3)) is good


@pytest.mark.parametrize(("n", "good"), [(0, False), (9, False), (10, True)])
def test_keyed_count(n: int, good: bool) -> None:
    cells = np.array([0] * n + [1] * 30)
    assert passes(d.cell_counts(cells, 2, keys=np.arange(2))) is good


@pytest.mark.parametrize(("n", "good"), [(1, False), (9, False), (10, True)])
def test_sum(n: int, good: bool) -> None:
    assert passes(d.aggregate(normal(n))) is good
    cells = np.array([0] * n + [1] * 30)
    assert passes(d.aggregate(normal(n + 30), cells=cells, n_cells=2)) is good
    assert passes(d.aggregate((np.arange(40) < n)[:, None])) is good


def test_a_sum_of_nothing() -> None:
    assert passes(d.aggregate(np.empty((0, 2))))
    assert passes(d.aggregate(np.zeros((40, 1))))


@pytest.mark.parametrize(("entities", "good"), [(2, False), (3, True)])
def test_entities_of_a_sum(entities: int, good: bool) -> None:
    assert passes(d.aggregate(normal(30), entities=np.arange(30) % entities)) is good


@pytest.mark.parametrize(("largest", "good"), [(20.0, True), (20.1, False)])
def test_dominance(largest: float, good: bool) -> None:
    x = np.r_[largest, np.full(18, 1.0), 2.0]
    assert passes(d.aggregate(x[:, None])) is good


@pytest.mark.parametrize(("n", "good"), [(19, False), (20, True)])
def test_moments_need_twice_as_many_rows_as_columns(n: int, good: bool) -> None:
    x = np.random.default_rng(2).uniform(1, 2, size=(n, 10))
    policy = Policy(foreign_models=True)
    assert passes(d.cross_products(x, limits=policy.limits), policy=policy) is good


@pytest.mark.parametrize(("n", "good"), [(59, False), (60, True)])
def test_a_strict_site_wants_more_rows_for_its_columns(n: int, good: bool) -> None:
    x = np.random.default_rng(2).uniform(1, 2, size=(n, 10))
    assert passes(d.cross_products(x, limits=Policy().limits)) is good


def test_cross_products_with_a_rare_indicator() -> None:
    x = np.c_[normal(60), np.arange(60) < 9]
    assert not passes(d.cross_products(x, limits=Policy().limits))
    assert passes(d.cross_products(np.c_[x[:, 0], np.arange(60) < 10], limits=Policy().limits))


def in_classes(sizes: list[int], x: np.ndarray, *, entities: int = 10, **more: Any) -> Released:
    """Class sums of so many rows by class, each class with so many entities."""
    cells = np.repeat(np.arange(len(sizes)), sizes)
    of = np.concatenate([k * 100 + np.arange(n) % entities for k, n in enumerate(sizes)])
    return d.class_sums(x[: len(cells)], cells=cells, n_cells=len(sizes), entities=of, **more)


@pytest.mark.parametrize(
    ("n", "p", "good"),
    [(0, 3, True), (1, 3, False), (9, 3, False), (10, 3, True), (15, 8, False), (16, 8, True)],
)
def test_class_sums(n: int, p: int, good: bool) -> None:
    """Ten records in a class, and twice as many as columns; an empty class tells nothing."""
    x = np.random.default_rng(3).uniform(1, 2, size=(n + 40, p))
    assert passes(in_classes([n, 40], x)) is good
    assert passes(in_classes([40, n], x)) is good
    assert passes(in_classes([n, 40], x), SIMULATION)


@pytest.mark.parametrize(("entities", "good"), [(1, False), (2, False), (3, True)])
def test_class_sums_are_of_several_entities(entities: int, good: bool) -> None:
    assert passes(in_classes([40, 40], 1 + abs(normal(80, 2)), entities=entities)) is good


@pytest.mark.parametrize(("largest", "good"), [(2.0, True), (7.0, False)])
def test_class_sums_are_not_dominated(largest: float, good: bool) -> None:
    x = np.ones((80, 2))
    x[:40, 1] = np.linspace(1.0, 1.1, 40)
    x[0, 1] = largest
    assert passes(in_classes([40, 40], x)) is good


@pytest.mark.parametrize(("ones", "good"), [(1, False), (9, False), (10, True), (31, False)])
def test_class_sums_of_a_rare_indicator(ones: int, good: bool) -> None:
    x = np.c_[np.ones(80), np.arange(80) % 40 < ones]
    assert passes(in_classes([40, 40], x)) is good
    assert passes(in_classes([40, 40], np.ones((80, 2)), judged=x)) is good, "as it is judged"
    withheld = in_classes([40, 40], x).withhold_unsafe(STRICT.limits)
    assert passes(withheld)


def test_class_sums_that_are_withheld_in_whole() -> None:
    made = in_classes([4, 40], normal(44, 3) + 5)
    mask = np.zeros(np.shape(made.value), dtype=bool)
    mask[0] = True
    assert not passes(made)
    assert passes(made.withhold(mask))


@pytest.mark.parametrize(("n", "good"), [(1, False), (9, False), (10, True)])
def test_centroids(n: int, good: bool) -> None:
    cells = np.array([0] * n + [1] * 30 + [-1] * 3)
    made = d.model((np.ones((2, 2)),), kind="centroids", n_records=n + 33, cells=cells)
    assert passes(made) is good


def test_centroids_of_no_class_at_all() -> None:
    none = np.full(40, -1)
    with pytest.raises(ProtocolError, match="rows in their classes"):
        d.model((np.ones((2, 2)),), kind="centroids", n_records=40, cells=none)


@pytest.mark.parametrize(
    ("n", "parameters", "good"), [(9, 1, False), (10, 5, True), (19, 10, False), (20, 10, True)]
)
def test_linear(n: int, parameters: int, good: bool) -> None:
    made = d.model(np.ones(2), kind="linear", n_records=n, n_parameters=parameters)
    assert passes(made) is good


@pytest.mark.parametrize(("n", "good"), [(0, True), (1, False), (9, False), (10, True)])
def test_summary(n: int, good: bool) -> None:
    assert passes(d.model(np.ones(2), kind="summary", n_records=n)) is good


@pytest.mark.parametrize(
    ("numbers", "n", "good"), [(12, 12, True), (13, 12, False), (2, 9, False), (3, 0, False)]
)
def test_figures(numbers: int, n: int, good: bool) -> None:
    """No more numbers than records, counted over the whole nest."""
    nest = {"a": 1.0, "b": (np.ones(numbers - 2), 2)}
    released = d.model(nest, kind="figures", n_records=n)
    assert passes(released) is good
    assert passes(released, Policy(preset="simulation"))


@pytest.mark.parametrize(
    ("n", "step", "good"),
    [(9, 0.2, False), (10, 0.1, True), (10, 0.09, False), (100, 0.01, True), (99, 0.01, False)],
)
def test_rounded(n: int, step: float, good: bool) -> None:
    made = d.rounded(0.3, n_records=n, step=step)
    assert passes(made) is good
    silent, fine = d.rounded(0.3, n_records=0, step=1.0), d.rounded(0.3, n_records=40, step=0.05)
    for parts in ([silent, made], [made, silent], [fine, made, silent], [fine, made]):
        assert passes(d.bundle(parts)) is good, "each part is judged by itself"


def test_rounded_to_one_over_any_number() -> None:
    for n in range(10, 2001):
        assert passes(d.rounded(0.3, n_records=n, step=1.0 / n)), n
        assert not passes(d.rounded(0.3, n_records=n, step=0.999 / n)), n


@pytest.mark.parametrize("step", [1.0, 0.5, 1e-6])
def test_rounded_of_no_records_leaves_as_a_gap(step: float) -> None:
    made = d.rounded(0.3, n_records=0, step=step)
    reviewed = put(made)
    assert np.isnan(decode_message(reviewed.message).value.value)
    assert passes(d.bundle([made, made]))


def fitted(type_name: str, n: int, parameters: int, leaves: list[int] | None) -> Released:
    own = None if leaves is None else np.array(leaves)
    return d.estimator(b"x", type_name=type_name, n_records=n, n_parameters=parameters, leaves=own)


@pytest.mark.parametrize(
    ("made", "good"),
    [
        (fitted("sklearn.linear_model.Ridge", 20, 10, None), True),
        (fitted("sklearn.linear_model.Ridge", 19, 10, None), False),
        (fitted("sklearn.linear_model.Ridge", 10, 2, None), True),
        (fitted("sklearn.linear_model.Ridge", 9, 2, None), False),
        (fitted("sklearn.tree._classes.DecisionTreeRegressor", 40, 0, [10, 30]), True),
        (fitted("sklearn.tree._classes.DecisionTreeRegressor", 40, 0, [9, 31]), False),
        (fitted("sklearn.neighbors._classification.KNeighborsClassifier", 900, 1, None), False),
        (fitted("sklearn.svm._classes.SVC", 900, 1, None), False),
        (fitted("sklearn.gaussian_process._gpr.GaussianProcessRegressor", 900, 1, None), False),
        (fitted("sklearn.kernel_ridge.KernelRidge", 900, 1, None), False),
    ],
)
def test_estimator(made: Released, good: bool) -> None:
    assert passes(made) is good


@pytest.mark.parametrize(
    ("least", "made", "good"),
    [
        (1, fitted("sklearn.svm._classes.SVC", 900, 1, None), True),
        (2, fitted("sklearn.svm._classes.SVC", 900, 1, None), False),
        (1, fitted("sklearn.linear_model.Ridge", 19, 10, None), True),
        (2, fitted("sklearn.linear_model.Ridge", 19, 10, None), False),
        (2, fitted("sklearn.tree._classes.DecisionTreeRegressor", 40, 0, [1, 39]), False),
        (2, fitted("sklearn.tree._classes.DecisionTreeRegressor", 40, 0, [2, 38]), True),
    ],
)
def test_models_are_judged_from_two_records_on(least: int, made: Released, good: bool) -> None:
    assert passes(made, Policy(min_records=least)) is good


def test_values_for_each_record_need_consent() -> None:
    assert not passes(d.per_record(np.ones(100)))
    assert passes(d.per_record(np.ones(100)), Policy.from_settings("consortium"))


@pytest.mark.parametrize(
    ("epsilon", "spent", "good"),
    [(0.5, 0.5, True), (0.5, 0.4, False), (0.5, 0.0, False), (float("nan"), 1.0, False)],
)
def test_noise_needs_consent_and_a_paid_budget(epsilon: float, spent: float, good: bool) -> None:
    made = d.noised(np.ones(3), Mechanism(epsilon))
    assert not passes(made, STRICT, epsilon_spent=9.0)
    assert passes(made, SIMULATION, epsilon_spent=spent) is good


def test_noise_of_several_fields_adds_up() -> None:
    made = d.bundle([d.noised(np.ones(1), Mechanism(0.5)), d.noised(np.ones(1), Mechanism(0.5))])
    assert passes(made, SIMULATION, epsilon_spent=1.0)
    assert not passes(made, SIMULATION, epsilon_spent=0.9)


def test_a_bundle_with_one_small_part_is_refused() -> None:
    assert passes(d.bundle([d.count(10), d.count(40)]))
    assert not passes(d.bundle([d.count(9), d.count(40)]))


@pytest.mark.parametrize(("n", "good"), [(1, False), (9, False), (10, True)])
def test_who_abstains_opens_no_way_out_for_others(n: int, good: bool) -> None:
    def summary(records: int) -> Released:
        return d.model(np.ones(1), kind="summary", n_records=records)

    silent = summary(0)
    assert passes(silent)
    for parts in ([silent, summary(n)], [summary(n), silent], [summary(40), silent, summary(n)]):
        assert passes(d.bundle(parts)) is good
    assert passes(d.bundle([d.count(0), d.count(n)])) is good
    nothing = d.aggregate(np.full((40, 1), np.nan), mean=True)
    assert passes(nothing)
    assert passes(d.bundle([nothing, d.aggregate(normal(n), mean=True)])) is good


@pytest.mark.parametrize(
    "released", [d.relayed(1.0, Disclosure.AGGREGATE), d.received(1.0, Disclosure.AGGREGATE)]
)
def test_what_rests_on_unknown_records_does_not_leave(released: Released) -> None:
    assert not passes(released, SIMULATION)


def test_a_value_of_another_class_does_not_leave() -> None:
    with pytest.raises(DisclosureError, match="not a value released as aggregate"):
        review(Summed(value=d.per_record(np.ones(40))), SIMULATION, {})
    with pytest.raises(DisclosureError, match="not a value released as aggregate"):
        review(Summed(value=1.0), SIMULATION, {})


def test_refusals_name_field_and_rule_and_nothing_else() -> None:
    with pytest.raises(DisclosureError) as refused:
        put(d.count(7))
    expected = "the gate refused field 'value': a cell rests on fewer than 10 records"
    assert str(refused.value) == refused.value.public == expected


def test_columns_are_spoken_of_where_a_sum_is_over_columns() -> None:
    """Nobody can leave out columns of a sum over classes."""
    with pytest.raises(DisclosureError) as of_cells:
        put(d.aggregate(normal(7)))
    assert of_cells.value.public.endswith("a cell rests on fewer than 10 records")
    x = np.c_[normal(60), np.arange(60) < 9]
    with pytest.raises(DisclosureError, match="; leave out columns in which fewer rows"):
        put(d.aggregate(x, columns=x))


def test_verdicts() -> None:
    assert put(d.count(40)).verdicts[0].verdict == "released"
    gaps = d.aggregate(np.c_[normal(40), np.arange(40) < 3]).withhold_unsafe(STRICT.limits)
    reviewed = put(gaps)
    assert (reviewed.verdicts[0].verdict, reviewed.verdicts[0].rule) == ("withheld", "sum")
    public = review(Told(value="x"), STRICT, {})
    assert public.verdicts[0].verdict == "public"


def test_every_rule_has_a_test_here() -> None:
    tested = {"count", "keyed-count", "sum", "moments", "centroids", "linear", "summary"}
    assert set(RULES) == tested | {
        "class-sums",
        # Each at its boundary in tests/wire/test_class_moments.py.
        "class-moments",
        "links",
        "figures",
        "rounded",
        "estimator",
        "estimators",
        # Each at its boundary in tests/wire/test_local_fits.py.
        "fit",
        "fits",
        "slopes",
        "all-slopes",
        "weighted-sums",
        "per-record",
        "projection",
        "response",
        "hashed-ids",
        "noised",
    }


# --------------------------------------------------------------------------- revealed rank


@message("test-gate/two-projections", version=1)
class Two:
    first: Any = PerRecord("n k")
    second: Any = Noised("n m")


@message("test-gate/for-a-partner", version=1)
class ForPartner:
    value: Any = PerRecord("*anything", to="partner")
    word: str = Public("", kind="str", to="partner")


CONSORTIUM = Policy.from_settings("consortium")
NAMES = ("u", "v", "w")


def projected(k: int = 1, seed: int = 0, **settings: Any) -> Released:
    directions = np.random.default_rng(seed).normal(size=(3, k))
    return d.projection(normal(40, 3), directions, names=NAMES, **settings)


def test_a_projection_needs_consent_for_values_of_records() -> None:
    assert not passes(projected(), Policy(max_revealed_rank="full"))
    assert passes(projected(), Policy(max_revealed_rank="full", per_record=True))


@pytest.mark.parametrize(
    ("limit", "k", "good"),
    [
        ("default", 2, True),
        ("default", 3, False),
        ("full", 3, True),
        ("full", 7, True),
        (0, 1, False),
        (1, 1, True),
        (1, 2, False),
        (3, 9, True),
    ],
)
def test_directions_up_to_the_limit(limit: Any, k: int, good: bool) -> None:
    policy = Policy(preset="consortium", max_revealed_rank=limit)
    assert passes(projected(k), policy) is good
    noised = Policy(preset="simulation", max_revealed_rank=limit)
    made = projected(k, mechanism=Mechanism(1e-9))
    assert passes(made, noised, epsilon_spent=1.0) is good, "noise does not lower the count"


def test_noised_projections_need_consent_for_noise_and_a_paid_budget() -> None:
    made = projected(mechanism=Mechanism(0.5))
    assert not passes(made, CONSORTIUM, epsilon_spent=1.0)
    assert not passes(made, SIMULATION)
    assert passes(made, SIMULATION, epsilon_spent=0.5)


def test_the_ledger_goes_on_from_what_is_known() -> None:
    reviewed = review(Rows(value=projected(1)), CONSORTIUM, {})
    assert reviewed.verdicts[0].revealed == "1 of 3"
    assert reviewed.verdicts[0].rule == "projection"
    again = review(Rows(value=projected(1)), CONSORTIUM, {}, revealed=reviewed.revealed)
    assert again.verdicts[0].revealed == "1 of 3"
    assert again.message == reviewed.message
    other = review(Rows(value=projected(1, seed=1)), CONSORTIUM, {}, revealed=again.revealed)
    assert other.verdicts[0].revealed == "2 of 3"
    with pytest.raises(DisclosureError, match="more of its columns would be known"):
        review(Rows(value=projected(1, seed=2)), CONSORTIUM, {}, revealed=other.revealed)
    same = review(Summed(value=d.count(40)), CONSORTIUM, {}, revealed=other.revealed)
    assert same.revealed is other.revealed
    assert same.verdicts[0].revealed == ""


def test_fields_of_a_message_add_up() -> None:
    both = Two(first=projected(1), second=projected(1, seed=1, mechanism=Mechanism(0.1)))
    policy = Policy(preset="simulation", max_revealed_rank=2)
    reviewed = review(both, policy, {}, epsilon_spent=0.1)
    assert [v.revealed for v in reviewed.verdicts] == ["1 of 3", "2 of 3"]
    with pytest.raises(DisclosureError, match="'second'"):
        review(both, Policy(preset="simulation", max_revealed_rank=1), {}, epsilon_spent=0.1)


def test_what_is_not_counted_leaves_along_what_is_known() -> None:
    x = normal(40, 3)
    direction, hidden = np.array([1.0, 2.0, 3.0]), np.array([3.0, 0.0, -1.0])

    def send(along: np.ndarray, **settings: Any) -> tuple[np.ndarray, Reviewed]:
        made = Rows(value=d.projection(x, along, names=NAMES))
        reviewed = review(made, CONSORTIUM, {}, **settings)
        return decode_message(reviewed.message).value.value, reviewed

    first, reviewed = send(direction)
    second, after = send(direction + 1e-9 * hidden, revealed=reviewed.revealed)
    assert after.verdicts[0].revealed == "1 of 3"
    np.testing.assert_allclose(second, first * (second @ first) / (first @ first), rtol=1e-13)
    centred = x - x.mean(axis=0)
    difference = centred @ (direction + 1e-9 * hidden) - centred @ direction
    correlation = np.corrcoef(difference, centred @ hidden)[0, 1]
    assert correlation > 0.999, "without the rule the hidden direction would be told"


def test_no_rows_go_with_a_reviewed_projection() -> None:
    for released in (projected(), projected(seed=1)):
        content: Any = review(Rows(value=released), CONSORTIUM, {}).content
        assert content.value.evidence.rows is None


def test_response_and_ids_have_consents_of_their_own() -> None:
    response = d.response(np.ones(40))
    hashes = d.hashed_ids(np.zeros((40, 16), dtype=np.uint8))
    assert not passes(response, CONSORTIUM)
    assert passes(response, Policy(share_response=True))
    assert passes(hashes, CONSORTIUM)
    assert not passes(hashes)
    assert not passes(hashes, Policy(preset="consortium", share_ids=False))
    assert not passes(d.per_record(np.ones(40)), Policy(share_response=True, share_ids=True))
    with pytest.raises(DisclosureError, match="does not allow the response of each record"):
        put(response, CONSORTIUM)
    with pytest.raises(DisclosureError, match="does not allow hashed ids"):
        put(hashes)


def test_a_field_for_a_role_is_addressed_and_no_other_is() -> None:
    response = d.response(np.ones(40))
    with pytest.raises(DisclosureError, match="says not whose"):
        review(ForPartner(value=response, word="x"), SIMULATION, {})
    reviewed = review(ForPartner(value=d.addressed(response, "b"), word="x"), SIMULATION, {})
    content: Any = reviewed.content
    assert content.value.evidence.recipient == "b"
    with pytest.raises(DisclosureError, match="would be read by others"):
        review(Rows(value=d.addressed(response, "b")), SIMULATION, {})


def test_an_addressed_projection_is_counted() -> None:
    made = d.addressed(projected(2), "b")
    reviewed = review(ForPartner(value=made, word="x"), CONSORTIUM, {})
    content: Any = reviewed.content
    assert reviewed.verdicts[0].revealed == "2 of 3"
    assert content.value.evidence.recipient == "b"


def test_sealing_comes_after_the_verdicts() -> None:
    seen: list[Any] = []

    def seal(content: Any) -> Any:
        seen.append(content)
        return Told(value="sealed")

    reviewed = review(Rows(value=projected()), CONSORTIUM, {}, seal=seal)
    assert decode_message(reviewed.message).value == "sealed"
    assert reviewed.content is seen[0]
    assert [v.field for v in reviewed.verdicts] == ["value"]
    with pytest.raises(DisclosureError):
        review(Rows(value=projected(3)), CONSORTIUM, {}, seal=seal)
    assert len(seen) == 1, "nothing that is refused is sealed"


# --------------------------------------------------------------------------- differencing


class Rounds:
    """Sums of the same classes over rounds, through the gate."""

    def __init__(self, n: int = 120, k: int = 3, *, entities: int | None = None) -> None:
        self.x = np.random.default_rng(1).normal(size=(n, 2)) + 5
        self.k = k
        self.entities = None if entities is None else np.arange(n) % entities
        self.series: Series = {}
        self.released: list[np.ndarray] = []

    def send(self, cells: np.ndarray, policy: Policy = STRICT) -> tuple[np.ndarray, str]:
        made = d.aggregate(
            self.x, cells=cells, n_cells=self.k, entities=self.entities, series="sums"
        )
        made = made.withhold_unsafe(policy.limits)
        reviewed = review(Summed(value=made), policy, self.series)
        self.series = reviewed.series
        value = decode_message(reviewed.message).value.value
        self.released.append(value)
        return value, reviewed.verdicts[0].verdict

    def truth(self, cells: np.ndarray) -> np.ndarray:
        return np.stack([self.x[cells == c].sum(axis=0) for c in range(self.k)])


@pytest.fixture
def cells() -> np.ndarray:
    return np.arange(120) % 3


def moved(cells: np.ndarray, n: int, *, start: int = 0, source: int, target: int) -> np.ndarray:
    changed = cells.copy()
    changed[np.flatnonzero(cells == source)[start : start + n]] = target
    return changed


def test_the_same_classes_again(cells: np.ndarray) -> None:
    rounds = Rounds()
    first, _ = rounds.send(cells)
    again, verdict = rounds.send(cells)
    np.testing.assert_array_equal(first, again)
    assert verdict == "released"


@pytest.mark.parametrize(("n", "told"), [(1, False), (9, False), (10, True), (20, True)])
def test_only_enough_moving_records_show(cells: np.ndarray, n: int, told: bool) -> None:
    rounds = Rounds()
    first, _ = rounds.send(cells)
    changed = moved(cells, n, source=0, target=1)
    second, verdict = rounds.send(changed)
    np.testing.assert_allclose(second, rounds.truth(changed) if told else first)
    assert verdict == ("released" if told else "repeated")


def test_small_moves_add_up_until_they_show(cells: np.ndarray) -> None:
    rounds = Rounds()
    first, _ = rounds.send(cells)
    five, ten = (moved(cells, n, source=0, target=1) for n in (5, 10))
    np.testing.assert_array_equal(rounds.send(five)[0], first)
    np.testing.assert_allclose(rounds.send(ten)[0], rounds.truth(ten))


def test_other_classes_go_on(cells: np.ndarray) -> None:
    rounds = Rounds(n=160, k=4)
    cells = np.arange(160) % 4
    first, _ = rounds.send(cells)
    changed = moved(moved(cells, 1, source=0, target=1), 10, source=2, target=3)
    second, verdict = rounds.send(changed)
    np.testing.assert_array_equal(second[:2], first[:2])
    np.testing.assert_allclose(second[2:], rounds.truth(changed)[2:])
    assert verdict == "repeated"


def test_a_record_cannot_hide_among_others(cells: np.ndarray) -> None:
    """Ten leave class 0 for 2, one leaves it for 1: (0 before - 0) - (2 - 2 before) is the one."""
    rounds = Rounds()
    rounds.send(cells)
    changed = moved(cells, 10, source=0, target=2)
    victim = int(np.flatnonzero(changed == 0)[0])
    changed[victim] = 1
    rounds.send(changed)
    assert not recovers(np.concatenate(rounds.released), rounds.x[victim])
    assert recovers(
        np.concatenate([rounds.truth(cells), rounds.truth(changed)]), rounds.x[victim]
    ), "without the guard it would be found"


@pytest.mark.parametrize(("entities", "told"), [(2, False), (3, True)])
def test_moving_records_of_too_few_entities(cells: np.ndarray, entities: int, told: bool) -> None:
    rounds = Rounds(entities=40)
    cells = np.sort(cells)  # each class has records of all entities
    rounds.send(cells)
    of_few = np.flatnonzero(cells == 0)[np.arange(12) % entities]
    assert rounds.entities is not None
    rounds.entities = rounds.entities.copy()
    chosen = np.flatnonzero(cells == 0)[:12]
    rounds.entities[chosen] = rounds.entities[of_few]
    changed = cells.copy()
    changed[chosen] = 1
    assert (rounds.send(changed)[1] == "released") is told


def test_a_withheld_class_repeats_its_last_release(cells: np.ndarray) -> None:
    rounds = Rounds()
    first, _ = rounds.send(cells)
    emptied = np.where(cells == 0, 1, cells)
    emptied[np.flatnonzero(cells == 0)[:3]] = 0  # 3 records stay: too few to be summed
    second, verdict = rounds.send(emptied)
    np.testing.assert_array_equal(second[0], first[0])
    assert verdict == "repeated"


def test_a_class_that_was_withheld_may_be_released_with_enough_new_records(
    cells: np.ndarray,
) -> None:
    rounds = Rounds()
    without = np.where(cells == 0, -1, cells)
    first, verdict = rounds.send(np.where(np.arange(120) == 0, 0, without))
    assert verdict == "withheld"
    assert np.isnan(first[0]).all()
    second, _ = rounds.send(cells)
    np.testing.assert_allclose(second, rounds.truth(cells))


def test_records_of_a_withheld_class_do_not_show_later(cells: np.ndarray) -> None:
    """Three records are in no released class; spread over two classes they would show."""
    rounds = Rounds()
    few = np.where(cells == 0, 1, cells)
    few[:3] = 0
    assert rounds.send(few)[1] == "withheld"
    rounds.send(cells)
    two = rounds.x[0] + rounds.x[1]
    assert not recovers(np.concatenate(rounds.released), two)
    assert recovers(np.concatenate([rounds.truth(few)[1:], rounds.truth(cells)]), two), (
        "without the guard they would be found"
    )


def test_records_that_stay_behind_do_not_show(cells: np.ndarray) -> None:
    """All but two of a class leave it after others joined: what stayed is theirs alone."""
    rounds = Rounds()
    cells = np.sort(cells)
    rounds.send(cells)
    joined = moved(cells, 20, source=1, target=0)
    rounds.send(joined)
    left = joined.copy()
    left[:38] = 2
    rounds.send(left)
    assert not recovers(np.concatenate(rounds.released), rounds.x[38] + rounds.x[39])


@pytest.mark.parametrize("seed", range(20))
def test_no_combination_of_many_releases_shows_few_records(seed: int) -> None:
    """Whatever the moves: the releases span no sum of a group of fewer than ten records."""
    rng = np.random.default_rng(seed)
    rounds = Rounds(n=90)
    rounds.x = np.eye(90)  # a sum is then the list of its records
    cells = rng.integers(3, size=90)
    for _ in range(8):
        released, _ = rounds.send(cells)
        assert not np.isnan(released).all()
        changed = rng.choice(90, size=rng.integers(1, 40), replace=False)
        cells = cells.copy()
        cells[changed] = rng.integers(-1, 3, size=changed.size)
    sums = np.concatenate(rounds.released)
    sums = sums[~np.isnan(sums).any(axis=1)]
    alike = np.unique(sums, axis=1, return_counts=True)
    seen = alike[0].any(axis=0)
    assert (alike[1][seen] >= 10).all(), "records that no release tells apart"


def test_other_classes_under_the_same_name_are_refused(cells: np.ndarray) -> None:
    """With one more class, empty, the guard would have nothing to compare."""
    rounds = Rounds()
    rounds.send(cells)
    rounds.k = 4
    with pytest.raises(DisclosureError, match="other cells or columns"):
        rounds.send(moved(cells, 1, source=0, target=1))


def test_a_series_needs_the_class_of_each_record() -> None:
    made = d.aggregate(normal(40), series="sums")
    with pytest.raises(DisclosureError, match="needs the cell of each record"):
        review(Summed(value=made), STRICT, {})


def test_the_guard_leaves_earlier_series_alone(cells: np.ndarray) -> None:
    rounds = Rounds()
    rounds.send(cells)
    before = {k: v.copy() for k, v in rounds.series["sums"].items()}
    kept = rounds.series
    rounds.send(moved(cells, 20, source=0, target=1))
    for name, value in before.items():
        np.testing.assert_array_equal(kept["sums"][name], value)


def test_a_policy_for_simulation_guards_nothing(cells: np.ndarray) -> None:
    rounds = Rounds()
    rounds.send(cells, SIMULATION)
    changed = moved(cells, 1, source=0, target=1)
    value, _ = rounds.send(changed, SIMULATION)
    np.testing.assert_allclose(value, rounds.truth(changed))


@pytest.mark.parametrize(
    ("records", "entities", "n", "told"),
    [(1, 1, 1, True), (2, 1, 1, False), (2, 1, 2, True), (1, 2, 1, False), (1, 2, 2, True)],
)
def test_the_guard_begins_at_two(
    cells: np.ndarray, records: int, entities: int, n: int, told: bool
) -> None:
    policy = Policy(min_records=records, min_entities=entities)
    rounds = Rounds(entities=120)
    rounds.send(cells, policy)
    changed = moved(cells, n, source=0, target=1)
    assert rounds.send(changed, policy)[1] == ("released" if told else "repeated")


def test_a_detour_over_many_records_shows_one(cells: np.ndarray) -> None:
    """Twenty leave a class, nineteen come back: the first and the third release differ by one."""
    rounds = Rounds()
    rounds.send(cells)
    victim = int(np.flatnonzero(cells == 0)[0])
    rounds.send(moved(cells, 20, source=0, target=1))
    rounds.send(np.where(np.arange(120) == victim, 1, cells))
    assert not recovers(np.concatenate(rounds.released), rounds.x[victim])


def send_classes(
    x: np.ndarray, cells: np.ndarray, series: Series, *, n_entities: int = 40, **more: Any
) -> Reviewed:
    of = np.arange(len(x)) % n_entities
    made = d.class_sums(x, cells=cells[of], n_cells=3, entities=of, series="sums", **more)
    return review(Summed(value=made), STRICT, series)


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize(
    ("moving", "ones", "largest", "told"),
    [
        (3, 0, 2.0, False),  # 15 records of 8 columns
        (4, 0, 2.0, True),
        (2, 0, 2.0, False),
        (8, 1, 2.0, False),  # the products of one record with all its columns
        (8, 9, 2.0, False),
        (8, 10, 2.0, True),
        (8, 31, 2.0, False),  # all but nine
        (8, 40, 2.0, True),
        (8, 0, 12.0, False),  # a third of the class, most of those who move
    ],
)
def test_class_sums_that_differ_by_what_could_not_leave(
    moving: int, ones: int, largest: float, told: bool, judged: bool
) -> None:
    """40 entities of 5 records; so many move. What they add up to is the difference of releases."""
    rng = np.random.default_rng(6)
    n, of = 200, np.arange(200) % 40
    x = np.c_[np.ones(n), rng.uniform(1, 2, size=(n, 7))]
    x[:, 2] = ((of >= 8) & (of < 14)) | ((of >= 20) & (of < 26))
    x[np.flatnonzero(of < 8)[:ones], 2] = 1.0
    x[0, 1] = largest
    cells = (np.arange(40) >= 20).astype(np.int64)
    after = cells.copy()
    after[:moving] = 1
    more = {"judged": x} if judged else {}
    sent = 1 + rng.uniform(size=x.shape) if judged else x
    first = send_classes(sent, cells, {}, **more)
    second = send_classes(sent, after, first.series, **more)
    assert second.verdicts[0].verdict == ("released" if told else "repeated")
    before, now = (decode_message(r.message).value.value for r in (first, second))
    assert np.array_equal(before, now) is not told


def test_rows_stay_behind() -> None:
    """The gate needs the rows of class sums; what it keeps and lets go has none."""
    x = 1 + np.random.default_rng(0).uniform(size=(200, 3))
    reviewed = send_classes(x, np.zeros(40, dtype=np.int64), {})
    content: Any = reviewed.content
    assert content.value.evidence.rows is None
    assert all(v.shape[-1] != 3 for v in reviewed.series["sums"].values() if v.ndim > 1)


@pytest.mark.parametrize("seed", range(10))
def test_kinds_of_histories_are_the_different_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells, n = int(rng.integers(1, 90)), int(rng.integers(0, 60))
    membership = rng.integers(-1, cells, size=n)
    history = np.vstack(
        [rng.integers(0, 5, size=n), membership[None, :] == np.arange(cells)[:, None]]
    ).astype(np.int64)
    if seed % 2:
        history[1:] = rng.integers(0, 2, size=(cells, n))  # in several cells at once
    kinds, groups = _kinds_of(history)
    if n == 0:
        assert kinds.shape == (cells + 1, 0)
        return
    wanted, inverse = np.unique(history, axis=1, return_inverse=True)
    np.testing.assert_array_equal(kinds, wanted)
    np.testing.assert_array_equal(groups, inverse.ravel())


def test_a_review_leaves_the_message_alone() -> None:
    made = Summed(value=d.count(40))
    reviewed = review(made, STRICT, {})
    assert decode_message(reviewed.message).value.value == 40
    assert dataclasses.asdict(STRICT) == dataclasses.asdict(Policy())


@pytest.mark.parametrize(
    ("made", "good"),
    [
        (fitted("sklearn.linear_model.Ridge", 20, 10, None), True),
        (fitted("sklearn.linear_model.Ridge", 19, 10, None), False),
        (fitted("sklearn.tree._classes.DecisionTreeRegressor", 40, 0, [9, 31]), False),
        (fitted("sklearn.svm._classes.SVC", 900, 1, None), False),
    ],
)
def test_every_estimator_of_a_bundle_is_judged(made: Released, good: bool) -> None:
    other = fitted("sklearn.linear_model.Lasso", 400, 2, None)
    large = fitted("sklearn.tree._classes.DecisionTreeRegressor", 900, 0, [400, 500])
    for parts in ([made, other, large], [large, made, other], [other, large, made]):
        assert passes(d.bundle(parts)) is good
        assert passes(d.bundle([d.bundle(parts), d.bundle([other])])) is good
        assert passes(d.bundle(parts), SIMULATION)
    assert put(d.bundle([other, large])).verdicts[0].rule == "estimators"
