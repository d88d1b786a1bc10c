"""What a coordinator may try to learn of one sequence, or one row of categories, with controls.

Each attack reads what left a site from its messages, where one planted record has something that
nobody else at the site has, or that few have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from consilience import EnsembleClustering
from consilience.clustering.estimators.local_models import (
    absorbing_rows,
    coded_bic,
    entries_of,
    fit_coded_model,
)
from consilience.clustering.protocol.messages import Compared, LocalModels
from consilience.clustering.protocol.site import class_tables, released_spread
from consilience.testing.fakes import members
from consilience.wire.disclosure import Limits
from tests.clustering.protocol.coded import STATES, categories, federation, sequences

Tables = dict[str, pd.DataFrame]


def planted(carriers: int, *, seed: int = 0) -> Tables:
    """Sequences of four states; some at s0 go from d to e once, which nobody else ever enters."""
    tables, _ = sequences((120, 120), lengths=(12, 12), seed=seed)
    for name, table in tables.items():
        cells = table.to_numpy(dtype=object)
        cells[cells == "e"] = "d"
        if name == "s0":
            cells[:carriers, 5], cells[:carriers, 6] = "d", "e"
        tables[name] = pd.DataFrame(cells, columns=table.columns)
    return tables


def left(tables: Tables, kind: str, policy: str, **given: Any) -> dict[str, list[Any]]:
    """Messages that left s0, by the name of their type."""
    made = federation(tables, kind, policy)
    found: dict[str, list[Any]] = {}

    def confirm(request: Any, message: Any, verdicts: Any) -> bool:
        found.setdefault(type(message).__name__, []).append(message)
        return True

    members(made)["s0"].confirm = confirm
    settings = {"n_clusters": 2, "stability_pairs": 0, "n_init": 3, "max_clusters": 2, **given}
    EnsembleClustering(model=kind, **settings).run(made, seed=0)
    return found


def into_e(messages: dict[str, list[Any]]) -> list[np.ndarray]:
    """The attack: chances of the step from d to e, in every model and table that left the site."""
    told: LocalModels = messages["LocalModels"][0]
    compared: Compared = messages["Compared"][0]
    d, e = STATES.index("d"), STATES.index("e")
    found = [arrays["transition"][:, d, e] for models in told.models.value for arrays in models]
    for chances in (compared.chances.value, compared.local_chances.value):
        found.append(np.asarray(chances).reshape(-1, 30)[:, 5:].reshape(-1, 5, 5)[:, d, e])
    return found


def test_whether_somebody_made_a_rare_step_does_not_show() -> None:
    """Tables tell a rare step as they tell one that nobody made."""

    def of(carriers: int, policy: str) -> tuple[np.ndarray, np.ndarray]:
        messages = left(planted(carriers), "markov-mixture", policy)
        compared = messages["Compared"][0]
        return np.asarray(compared.chances.value), np.asarray(compared.kinds.value)

    # The control: where nothing is protected the step is seen, and how often.
    open_none, _ = of(0, "simulation")
    open_three, _ = of(3, "simulation")
    cell = 5 + STATES.index("d") * 5 + STATES.index("e")
    assert np.nanmax(open_none[:, cell]) == 0
    assert np.nanmax(open_three[:, cell]) > 0
    none, kinds = of(0, "strict")
    few, kinds_few = of(3, "strict")
    assert np.array_equal(kinds[:, cell], kinds_few[:, cell])
    # Rows of e are not told, whoever was there.
    assert np.isnan(few[:, 25:30]).all()
    assert np.isnan(none[:, 25:30]).all()


def codes_of(table: pd.DataFrame) -> np.ndarray:
    return np.array([[STATES.index(x) for x in row] for row in table.to_numpy()])


def test_where_starts_ended_tells_no_likelihood() -> None:
    """The best is 0 and others are below it, roughly; also where no rule binds."""
    for policy in ("strict", "simulation"):
        spread = left(planted(3), "markov-mixture", policy)["Compared"][0].start_spread.value
        assert np.max(spread) == 0 and len(spread) > 1
    told = released_spread(np.array([-5000.0, -5000.04, -5003.4567, -5123.456, -7000.0, -5000.123]))
    assert told.tolist() == [0, 0, -3.5, -120, -2000, -0.12]
    assert released_spread(np.array([-400000.0, -400000.5])).tolist() == [0, 0], "the same peak"
    assert released_spread(np.empty(0)).shape == (0,)


def test_votes_do_not_tell_whether_somebody_is_in_a_rare_state() -> None:
    """The attack: a criterion and the log likelihood, were it known, leave the parameters."""
    given = {"model": "markov-mixture", "n_init": 3}

    def parameters(carriers: int, m: int) -> int:
        codes = codes_of(planted(carriers)["s0"])
        score = coded_bic(codes, (5,), 2, rng=np.random.default_rng(0), min_records=m, **given)
        fit = fit_coded_model(codes, (5,), n_clusters=2, rng=np.random.default_rng(0), **given)
        return round((score + 2 * float(fit.start_spread.max())) / np.log(len(codes)))

    # The control: with nothing protected one person's state e is one more state, 31 to 49.
    assert (parameters(0, 1), parameters(1, 1)) == (31, 49)
    assert {parameters(carriers, 10) for carriers in (0, 1, 9)} == {31}
    scores = np.asarray(
        left(planted(3), "markov-mixture", "strict", n_clusters="vote")["Ballot"][0].scores.value
    )
    told = scores[np.isfinite(scores)]
    assert told.min() == 0 and len(told) > 1
    assert all(float(f"{score:.2g}") == score for score in told)


def test_models_that_leave_do_not_depend_on_what_a_rare_step_led_to() -> None:
    """One sequence's rare way: from d to e, or staying in d. Same labels, same models."""
    rng = np.random.default_rng(4)
    moves = rng.random((200, 12)) < np.where(np.arange(200) % 2, 0.1, 0.9)[:, None]
    codes = 2 * (moves.cumsum(axis=1) % 2)  # states a and c, in two rhythms; some pass b
    codes[rng.random(codes.shape) < 0.2] = 1
    other = codes.copy()
    codes[0, 5:7], other[0, 5:7] = (3, 4), (3, 4)
    other[0, 7] = 4
    codes[0, 7] = 3
    given = {"model": "markov-mixture", "n_clusters": 2, "n_init": 3}

    def fitted(rows: np.ndarray, m: int) -> np.ndarray:
        model = fit_coded_model(
            rows, (5,), rng=np.random.default_rng(0), min_records=m, max_share=0.5, **given
        ).model
        assert model is not None
        return model.class_parameters

    row_of_e = slice(25, 30)
    # The control: with nothing protected, the row of e is one person's next step.
    assert abs(fitted(codes, 1) - fitted(other, 1))[:, row_of_e].max() > 0.3
    guarded = fitted(codes, 10), fitted(other, 10)
    assert (guarded[0][:, row_of_e] == 0.2).all()
    assert (guarded[1][:, row_of_e] == 0.2).all()


def test_every_chance_that_leaves_rests_on_enough_people() -> None:
    """The attack: take any told chance of a step that fewer than ten made for theirs."""
    for carriers in (1, 5, 9):
        tables = planted(carriers)
        messages = left(tables, "markov-mixture", "strict")
        # In models a guess or an equal part of rare cells stands there; both come from other cells.
        table = messages["Compared"][0]
        kinds = np.asarray(table.kinds.value)
        labels = np.asarray(table.chances.value)
        assert labels.shape == kinds.shape == (2, 30)
        assert (kinds[:, 5 + 3 * 5 + 4] != 1).all()
    # The control: thirty of them are told.
    kinds = np.asarray(left(planted(40), "markov-mixture", "strict")["Compared"][0].kinds.value)
    assert (kinds[:, 5 + 3 * 5 + 4] == 1).any()


def test_totals_of_sequences_of_one_length_do_not_tell_a_rare_state() -> None:
    """The attack: class size times steps, less all steps that are told, is what was left out."""
    codes = np.zeros((60, 11), dtype=np.int64)
    codes[:, 1::2] = 1
    codes[:4, 4:6] = 2
    dropped = entries_of(codes, "markov-mixture", (3,))
    absorbing = absorbing_rows("markov-mixture", (3,))
    told = class_tables(dropped, np.zeros(60, np.int64), 1, Limits(), absorbing=absorbing)
    assert told.sums.amount.sum() == 60 + 60 * 10
    in_rare_row = dropped.amount[dropped.row_of_cell[dropped.cell] == 3].sum()
    assert in_rare_row > 0  # the control: leaving them out, the difference would be theirs
    assert np.isnan(told.chances[0, 9:]).all()


def test_numbers_are_coarse_so_that_sizes_do_not_follow_from_shares() -> None:
    """The attack: a share is a ratio of whole numbers, so find the smallest that fits."""
    rng = np.random.default_rng(0)
    codes = rng.integers(2, size=(137, 8))
    entries = entries_of(codes, "latent-class", (2,) * 8)
    told = class_tables(entries, np.zeros(137, np.int64), 1, Limits())

    def fits(shares: np.ndarray, n: int) -> bool:
        return bool((abs(shares * n - np.round(shares * n)) < 1e-6).all())

    exact = np.bincount(codes[:, 0]) / 137
    assert [n for n in range(100, 150) if fits(exact, n)] == [137]  # the control
    shares = told.chances[0]
    assert 137 not in [n for n in range(100, 150) if fits(shares, n)]
    assert told.numbers[0, 0] == 100


def test_a_rare_answer_does_not_show_in_latent_classes() -> None:
    tables, _ = categories((150, 150))

    def of(level: str, policy: str) -> np.ndarray:
        table = tables["s0"].copy()
        table["q0"] = np.where(table["q0"] == "high", "mid", table["q0"])
        table.loc[:2, "q0"] = level
        messages = left({**tables, "s0": table}, "latent-class", policy)
        return np.asarray(messages["Compared"][0].kinds.value)[:, 2], np.asarray(
            messages["Compared"][0].chances.value
        )[:, 2]

    open_one = of("high", "simulation")[1]
    assert open_one.max() > 0  # the control
    kinds, _ = of("high", "strict")
    assert (kinds != 1).all()
