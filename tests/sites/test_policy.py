from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from consilience import MeanAndSD, MetaClustering, PooledRegression
from consilience.exceptions import ParameterError, StudyError
from consilience.sites.policy import PRESETS, Policy
from consilience.wire.disclosure import Limits
from consilience.wire.message import Disclosure


def test_the_default_is_strict() -> None:
    policy = Policy()
    assert policy == Policy.from_settings("strict") == Policy.from_settings({})
    assert policy.limits == Limits(10, max_share=0.5, min_entities=3, max_detection=1.0)
    assert dataclasses.replace(policy, foreign_models=True).limits == Limits()
    assert policy.max_epsilon == 0.0


@pytest.mark.parametrize(
    ("preset", "allowed"),
    [("strict", set()), ("consortium", {"per-record"}), ("simulation", {"per-record", "noised"})],
)
def test_presets_allow_classes(preset: str, allowed: set[str]) -> None:
    policy = Policy.from_settings(preset)
    always = {"public", "aggregate", "model", "masked"}
    assert {d.value for d in Disclosure if policy.allows(d)} == always | allowed


def test_a_policy_prints_what_differs_from_its_preset() -> None:
    assert repr(Policy()) == "Policy(preset='strict')"
    own = Policy(preset="consortium", min_records=20, max_epsilon=1.0)
    assert repr(own) == "Policy(preset='consortium', min_records=20, max_epsilon=1.0)"
    assert eval(repr(own), {"Policy": Policy}) == own


def test_settings_change_a_preset() -> None:
    policy = Policy.from_settings({"preset": "consortium", "min_records": 20, "data_id": "a.b-1"})
    assert (policy.per_record, policy.min_records, policy.data_id) == (True, 20, "a.b-1")
    assert set(PRESETS) == {"strict", "consortium", "simulation"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_records", 0),
        ("min_records", -1),
        ("min_records", 2.0),
        ("min_records", True),
        ("min_entities", 0),
        ("max_share", 0.0),
        ("max_share", 1.1),
        ("max_share", math.nan),
        ("max_share", "0.5"),
        ("max_epsilon", -1.0),
        ("max_epsilon", math.inf),
        ("max_epsilon", math.nan),
        ("max_runs", 0),
        ("max_message_bytes", 10),
        ("per_record", 1),
        ("noised", "yes"),
        ("share_ids", 1),
        ("share_response", "true"),
        ("share_names", "true"),
        ("max_revealed_rank", -1),
        ("max_revealed_rank", 1.0),
        ("max_revealed_rank", True),
        ("max_revealed_rank", "half"),
        ("max_revealed_rank", None),
        ("data_id", "../x"),
        ("data_id", ""),
        ("data_id", "_approved"),
        ("data_id", "a/b"),
        ("data_id", "a" * 65),
        ("preset", "lax"),
    ],
)
def test_values_outside_their_range(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"policy {name} must be"):
        Policy.from_settings({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_revealed_rank", 0),
        ("max_revealed_rank", "full"),
        ("min_records", 1),
        ("max_share", 1.0),
        ("max_runs", None),
        ("data_id", "a" * 64),
    ],
)
def test_values_at_the_edge_of_their_range(name: str, value: Any) -> None:
    assert getattr(Policy.from_settings({name: value}), name) == value


def test_unknown_settings() -> None:
    with pytest.raises(StudyError, match="no setting 'min_record'"):
        Policy.from_settings({"min_record": 5})


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().min_records = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("preset", "ids", "response", "limits"),
    [
        ("strict", False, False, [0, 0, 0]),
        ("consortium", True, False, [0, 0, 5]),
        ("simulation", True, True, [0, 1, 6]),
    ],
)
def test_presets_for_columns(preset: str, ids: bool, response: bool, limits: list[int]) -> None:
    policy = Policy.from_settings(preset)
    assert policy.allows(Disclosure.PER_RECORD, "hashed-ids") is ids
    assert policy.allows(Disclosure.PER_RECORD, "response") is response
    assert policy.allows(Disclosure.PER_RECORD, "projection") is policy.per_record
    assert [policy.revealed_limit(rank) for rank in (0, 1, 6)] == limits


@pytest.mark.parametrize(("limit", "allowed"), [("default", 5), ("full", 6), (0, 0), (9, 9)])
def test_limit_of_revealed_directions(limit: Any, allowed: int) -> None:
    assert Policy(max_revealed_rank=limit).revealed_limit(6) == allowed


def test_a_fit_of_its_own_needs_no_grant_where_nothing_bounds_what_one_person_shows() -> None:
    one_shot = PooledRegression(family="binomial", fit="one-shot")
    assert Policy(preset="strict").lacking(one_shot, ()) == "foreign_models"
    assert Policy(preset="strict", max_detection=None).lacking(one_shot, ()) == ""
    others = MetaClustering()
    assert Policy(preset="strict", max_detection=None).lacking(others, ()) == "foreign_models"
    assert Policy(preset="strict", foreign_models=True).lacking(others, ()) == ""
    rounds = PooledRegression(family="binomial")
    assert Policy(preset="strict").lacking(rounds, ()) == "per_record"
    assert Policy(preset="strict").lacking(PooledRegression(), ()) == ""
    assert Policy(preset="strict").lacking(PooledRegression(), ("weight",)) == "per_record"
    assert Policy(preset="strict").lacking(MeanAndSD(), ()) == ""
