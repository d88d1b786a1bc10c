from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from consilience.exceptions import ParameterError, ProtocolError, QuorumError, StudyError
from consilience.numerics.random import stream
from consilience.protocol.mean_and_sd import MeanAndSD, Sums, SumsRequest
from consilience.protocol.method import (
    Absent,
    Columns,
    CoordinatorContext,
    Method,
    Preparation,
    Refused,
    Replies,
    SiteContext,
    SiteData,
    State,
    all_methods,
    get_method,
    register,
    step,
)
from consilience.testing.fakes import ClassSums, Findings, Question, RowsReply, fail, rows


def test_columns() -> None:
    columns = Columns(
        features=["a", "b"],
        target="y",
        id="a",
        levels={"y": ["no", "yes"]},  # type: ignore[arg-type]
    )
    assert columns.features == ("a", "b")
    assert columns.used() == ("a", "b", "y")
    assert columns.levels == {"y": ("no", "yes")}


@pytest.mark.parametrize("names", ["abc", ["a", 1], 3, [["a"]]])
def test_columns_of_a_wrong_type(names: Any) -> None:
    with pytest.raises(ParameterError, match="features must be a list of column names"):
        Columns(features=names)


def test_columns_that_contradict_themselves() -> None:
    with pytest.raises(StudyError, match="names column 'a' twice"):
        Columns(features=("a", "b", "a"))
    with pytest.raises(StudyError, match="'a' is the target and stands among the features too"):
        Columns(features=("a", "b"), target="a")
    with pytest.raises(StudyError, match="'a' is the target and stands among those of the seq"):
        Columns(sequence=("a", "b"), levels={"a": ("x", "y")}, target="a")
    with pytest.raises(StudyError, match="which has no role"):
        Columns(features=("a",), levels={"b": ("x",)})


@pytest.mark.parametrize("declared", [("a",), ("b",), ("c", "b"), ("b", "a", "c"), ("a", "c")])
def test_states_of_a_sequence_may_be_declared_for_any_column(declared: tuple[str, ...]) -> None:
    columns = Columns(sequence=("a", "b", "c"), levels={name: ("x", "y") for name in declared})
    assert columns.levels == {"a": ("x", "y")}


def test_states_have_the_order_of_the_first_column_that_has_some() -> None:
    columns = Columns(sequence=("a", "b", "c"), levels={"c": ("y", "x"), "b": ("x", "y")})
    assert columns.levels == {"a": ("x", "y")}
    with pytest.raises(StudyError, match="'a' and 'c' of the sequence have different levels"):
        Columns(sequence=("a", "b", "c"), levels={"a": ("x", "y"), "c": ("x", "y", "z")})


def test_a_feature_that_is_part_of_a_sequence_keeps_its_levels() -> None:
    columns = Columns(features=("b", "d"), sequence=("a", "b"), levels={"b": (1, 2), "d": (3, 4)})
    assert columns.levels == {"a": ("1", "2"), "b": ("1", "2"), "d": ("3", "4")}


@pytest.mark.parametrize("name", ["missing", "categorical", "standardize"])
def test_preparation_takes_only_known_words(name: str) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be one of"):
        Preparation(**{name: "sometimes"})


def test_site_data_cannot_be_changed() -> None:
    given = np.ones((3, 2))
    data = SiteData(given, ("a", "b"), np.arange(3))
    with pytest.raises(ValueError, match="read-only"):
        data.features[0, 0] = 2
    given[0, 0] = 5
    assert data.features[0, 0] == 1, "it has a copy of its own"
    other = data.with_features(np.zeros((3, 1)), ("c",))
    assert (other.feature_names, other.n_rows) == (("c",), 3)


# --------------------------------------------------------------------------- steps


def test_a_step_knows_its_messages() -> None:
    assert (rows.request, rows.reply, rows.transform) == (Question, RowsReply, None)


def test_steps_of_a_wrong_form() -> None:
    with pytest.raises(ProtocolError, match=r"must take \(message, data, state, site\)"):

        @step("test.other")
        def other(message: Question, rows: SiteData) -> tuple[RowsReply, State]: ...

    with pytest.raises(ProtocolError, match="must annotate"):

        @step("test.bare")
        def bare(message, data, state, site):  # type: ignore[no-untyped-def]
            ...

    with pytest.raises(ProtocolError, match="int is not a registered message"):

        @step("test.int")
        def of_int(
            message: Question, data: SiteData, state: State, site: SiteContext
        ) -> tuple[int, State]: ...


# --------------------------------------------------------------------------- replies


def context(quorum: int = 2) -> CoordinatorContext:
    return CoordinatorContext(
        ("a", "b", "c"), Columns(), Preparation(), stream(0, "test"), quorum=quorum
    )


def test_replies_in_name_order() -> None:
    replies = Replies({"c": 3, "a": 1, "b": Absent("late")}, {"a": 1, "b": 1, "c": 1})
    assert list(replies) == ["a", "b", "c"]
    assert replies.present == {"a": 1, "c": 3}
    assert replies.missing == {"b": Absent("late")}


def test_the_quorum_and_its_sentences() -> None:
    ctx = context()
    replies = Replies({"a": 1, "b": Absent("late"), "c": 3}, {})
    assert ctx.require(replies) == {"a": 1, "c": 3}
    ctx.require(replies)
    assert ctx.notes == ["Site b was absent in one round: late."], "each sentence once"
    with pytest.raises(QuorumError) as stopped:
        ctx.require(Replies({"a": 1, "b": Absent("late"), "c": Refused("no")}, {}))
    assert str(stopped.value) == (
        "1 of 3 sites answered and the study needs 2. b was absent: late; c refused: no"
    )
    with pytest.raises(QuorumError, match="needs 3"):
        ctx.require(replies, at_least=3)


# --------------------------------------------------------------------------- registry


def test_methods_by_name() -> None:
    assert get_method("mean-and-sd") is MeanAndSD
    assert all_methods()["testing-class-sums"] is ClassSums
    with pytest.raises(StudyError, match="no method is called 'zzz': known are assistance-test, "):
        get_method("zzz")
    with pytest.raises(StudyError, match="'mean_and_sd': did you mean 'mean-and-sd'"):
        get_method("mean_and_sd")


def test_parameters() -> None:
    method = ClassSums.from_parameters({"edges": ((1.0,),)})
    assert method.parameters() == {"edges": ((1.0,),)}
    with pytest.raises(ParameterError, match=r"no parameter 'edge': did you mean 'edges'\?"):
        ClassSums.from_parameters({"edge": 1})


def incomplete(**changes: Any) -> type[Method]:
    content = {
        "name": "test-incomplete",
        "title": "t",
        "steps": (rows,),
        "absence": "a",
        "leakage": "l",
        "Result": Findings,
        "coordinate": lambda self, ctx: None,
        **changes,
    }
    return type("Incomplete", (Method,), content)


@pytest.mark.parametrize("name", ["name", "title", "steps", "absence", "leakage", "Result"])
def test_a_method_states_everything(name: str) -> None:
    with pytest.raises(ProtocolError, match=f"lacks '{name}'"):
        register(incomplete(**{name: None}))


def test_methods_that_contradict_themselves() -> None:
    with pytest.raises(ProtocolError, match="two steps of one name"):
        register(incomplete(steps=(rows, rows)))
    with pytest.raises(ProtocolError, match="two methods are called 'mean-and-sd'"):
        register(incomplete(name="mean-and-sd"))
    with pytest.raises(ProtocolError, match="tolerates"):
        register(incomplete(tolerates={"no-such": "all"}))
    with pytest.raises(ProtocolError, match="tolerates"):
        register(incomplete(tolerates={"testing.rows": "some"}))
    with pytest.raises(ProtocolError, match="two steps"):
        register(incomplete(steps=(rows, fail, rows)))


def test_what_the_toy_tolerates() -> None:
    assert MeanAndSD.tolerates == {"totals": "all", "deviations": "all"}
    assert Method.tolerates == {}


def test_steps_and_messages_are_those_of_the_toy() -> None:
    assert [s.name for s in MeanAndSD.steps] == ["sums", "deviations", "possible", "totals"]
    assert (MeanAndSD.steps[0].request, MeanAndSD.steps[0].reply) == (SumsRequest, Sums)


def test_parameters_of_a_wrong_type_are_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Picky(ClassSums):
        name: ClassVar[str] = "test-picky"

        def validate(self) -> None:
            if not isinstance(self.edges, tuple):
                raise TypeError("edges is no tuple")

    with pytest.raises(ParameterError, match="a parameter of 'test-picky' has a wrong type"):
        Picky.from_parameters({"edges": 3})
