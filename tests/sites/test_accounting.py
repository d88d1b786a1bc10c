"""The budget: charged once a question, never refunded, never exceeded."""

from __future__ import annotations

import pytest

from consilience.exceptions import BudgetError, RunError
from consilience.sites.accounting import Budget


def test_charges_add_up_and_keep_the_rest_of_the_ledger() -> None:
    ledger = Budget.read({"runs": ["a"]}).charge("a/3/1", 0.5, limit=2.0)
    ledger = Budget.read(ledger).charge("a/4/1", 1.5, limit=2.0)
    assert Budget.read(ledger).spent == 2.0
    assert ledger["runs"] == ["a"]


def test_the_same_question_is_charged_once() -> None:
    ledger = Budget.read({}).charge("a/3/1", 2.0, limit=2.0)
    assert Budget.read(ledger).charge("a/3/1", 2.0, limit=2.0) == ledger


def test_a_charge_beyond_the_limit_is_refused() -> None:
    ledger = Budget.read({}).charge("a/3/1", 1.5, limit=2.0)
    with pytest.raises(BudgetError, match="steward may raise max_epsilon"):
        Budget.read(ledger).charge("a/4/1", 0.6, limit=2.0)


@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf")])
def test_a_price_that_is_no_price_is_refused(epsilon: float) -> None:
    with pytest.raises(BudgetError):
        Budget.read({}).charge("a/3/1", epsilon, limit=1e9)


@pytest.mark.parametrize("charges", [[1.0], {"a": -1.0}, {"a": "much"}, {"a": float("nan")}])
def test_a_damaged_ledger_stops_everything(charges: object) -> None:
    with pytest.raises(RunError, match="damaged"):
        Budget.read({"epsilon": charges})


def test_what_was_never_granted_is_not_used_up() -> None:
    """Each refusal says what is so: nothing granted, too little granted, or used up."""
    for limit, epsilon, words in (
        (0.0, 1.0, "grants no epsilon"),
        (1.0, 2.0, "costs more epsilon than the steward grants"),
        (2.0, 1.5, "is used up"),
        (1.0, 1.0, "is used up"),
        (0.3, 0.1 + 0.2, "is used up"),  # three tenths, but for the last digit
    ):
        ledger = Budget({}).charge("first", min(1.0, limit), limit=limit)
        with pytest.raises(BudgetError) as refusal:
            Budget(ledger).charge("second", epsilon, limit=limit)
        assert words in refusal.value.public


def test_a_step_may_be_free_and_one_may_take_all_that_is_granted() -> None:
    free = Budget({}).charge("r/1/1", 0.0, limit=1.0)
    assert Budget.read(free).charge("r/2/1", 1.0, limit=1.0)["epsilon"]["r/2/1"] == 1.0
