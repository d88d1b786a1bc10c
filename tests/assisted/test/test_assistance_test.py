"""The assistance test over whole federations: its figures, its price, and what is known of whom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.assisted.glm import AssistedGLM
from consilience.assisted.kernels import assistance
from consilience.assisted.kernels.glm import family
from consilience.assisted.test import AssistanceTest, site
from consilience.engines.federation import Federation, Run
from consilience.engines.local import LocalEngine
from consilience.exceptions import ParameterError, QuorumError
from consilience.protocol.method import Columns
from consilience.sites.accounting import Budget
from consilience.sites.revealed_rank import RevealedRank
from consilience.testing.fakes import members, with_fixed_secrets
from tests.protocol.columns import Tables, columns_of, federation, policy, rows, tables

TWO = ("clinic", "lab")
NAMES = {"score": "score", "wald": "wald", "wald-hc3": "wald_hc3", "lr": "lr"}
PLAIN = AssistanceTest(n_directions=2)
NOISY = AssistanceTest(n_directions=2, epsilon=2.0)


def block(table: dict[str, Any]) -> np.ndarray:
    return np.column_stack([v for name, v in table.items() if name not in ("id", "y")])


class Seen:
    """What the initiator tests: the arguments of every call of the kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.z: list[np.ndarray] = []
        self.null: list[Any] = []
        plain = assistance.sketch_test

        def watched(x: Any, z: Any, y: Any, fam: Any, **more: Any) -> Any:
            self.z.append(np.array(z))
            self.null.append(more.get("given"))
            return plain(x, z, y, fam, **more)

        monkeypatch.setattr(assistance, "sketch_test", watched)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def check_like(found: Any, expected: list[assistance.SketchTest], rtol: float = 1e-12) -> None:
    for kind, name in NAMES.items():
        np.testing.assert_allclose(found[kind]["df"], [e.df for e in expected])
        for ours, theirs in (("statistic", name), ("p", f"p_{name}")):
            wanted = [getattr(e, theirs) for e in expected]
            np.testing.assert_allclose(found[kind][ours], wanted, rtol=rtol, atol=1e-300)
        combined = assistance.cauchy_combine(np.array([getattr(e, f"p_{name}") for e in expected]))
        np.testing.assert_allclose(found[kind]["combined"], combined, rtol=1e-9)


# --------------------------------------------------------------------------- figures


@pytest.mark.parametrize("n_draws", [1, 2])
def test_the_kernel_on_the_same_directions(n_draws: int) -> None:
    """All figures are those of the kernel on the pooled rows, with the T that the lab drew."""
    made = tables(sites=TWO)
    method = AssistanceTest(n_directions=1, n_draws=n_draws)
    fed = federation(made, secrets=40, policy=policy(max_revealed_rank="full"))
    run = method.run(fed, seed=1)
    x = block(made["lab"])
    # Secrets fixed by `with_fixed_secrets`: the lab is the second site, the sketch is round 4.
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([41, 4])))
    draws = [assistance.draw_directions(3, 1, rng) for _ in range(n_draws)]
    own, y = block(made["clinic"]), made["clinic"]["y"]
    expected = [
        assistance.sketch_test(
            own, (x - x.mean(axis=0)) @ (t / x.std(axis=0)[:, None]), y, family("binomial")
        )
        for t in draws
    ]
    check_like(run.result.tests["lab"], expected)
    assert run.result.n_records == 120 and run.result.n_columns == {"lab": 3}
    assert run.result.revealed == {"lab": n_draws}


def test_the_kernel_on_the_same_noisy_sketch(seen: Seen) -> None:
    made = tables(sites=TWO)
    fed = federation(made)
    run = NOISY.run(fed, seed=1)
    (kept,) = kept_of(fed)
    order = np.argsort(kept["rows"])
    z = np.asarray(kept["z"])[order]
    own, y = block(made["clinic"]), made["clinic"]["y"]
    check_like(run.result.tests["lab"], [assistance.sketch_test(own, z, y, family("binomial"))])
    # The price holds for the directions that were drawn, and the noise has the stated scale.
    scale = run.result.scale["lab"]
    assert scale == assistance.noise_scale(np.asarray(kept["directions"]), 2.0)
    noise = z - block(made["lab"]) @ np.asarray(kept["directions"])
    # Mean of 240 absolute Laplace draws: its standard error is scale / sqrt(240) = .065 scale;
    # five of them.
    assert abs(np.abs(noise).mean() / scale - 1) < 0.33
    assert run.result.epsilon == {"lab": 2.0}
    assert run.result.loose_epsilon["lab"] > 2.0
    power = run.result.power["lab"]
    at = float(power["power"][list(power["epsilon"]).index(2.0), 3])
    assert f"power {at:.0%} if they explain 1% of what is left)" in run.result.summary()


def test_a_useful_partner_and_one_that_is_not() -> None:
    # By these data: n = 600, and the pharmacy's columns are independent of the response.
    run = AssistanceTest(n_directions=2).run(federation(tables(600)), seed=1)
    assert run.result.useful == {"lab": True, "pharmacy": False}
    assert "columns of lab explain the response of clinic beyond its own" in run.result.summary()
    assert "no evidence that the columns of pharmacy" in run.result.summary()
    power = run.result.power["pharmacy"]
    at = float(power["power"][list(power["epsilon"]).index(np.inf), 3])  # effect .01, no noise
    assert power["effect"][3] == 0.01 and 0.05 < at < 1
    said = f"power {at:.0%} if they explain 1% of what is left)"
    assert said in run.result.summary()
    assert len(run.result.to_frame()) == 8


# --------------------------------------------------------------------------- sticky noise


def kept_of(fed: Federation, site: str = "lab") -> list[dict[str, Any]]:
    home: Any = members(fed)[site].home
    return [home._kept_value(*parts) for parts in home.files if parts[0] == "kept"]


def spent(fed: Federation, site: str = "lab") -> float:
    place = members(fed)[site]
    return Budget.read(place.home.ledger(place.policy.data_id)).spent


def again(
    fed: Federation, clinic: dict[str, Any], secrets: int = 70, **settings: Any
) -> Federation:
    """The same partners, with other secrets to draw, and a clinic with another table."""
    made: Tables = {"clinic": clinic, "lab": {"id": clinic["id"], "lab_0": clinic["id"]}}
    fresh = members(federation(made, secrets=secrets, **settings))["clinic"]
    lab = with_fixed_secrets(members(fed)["lab"], secrets)
    return Federation(
        LocalEngine([fresh, lab]),
        fed.columns,
        roles={"clinic": "initiator", "lab": "partner"},
        partition="columns",
        at="third-party",
    )


@pytest.mark.parametrize("method", [PLAIN, NOISY], ids=["plain", "noisy"])
def test_a_second_run_gets_the_same_sketch_for_nothing(method: AssistanceTest, seen: Seen) -> None:
    made = tables(sites=TWO)
    fed = federation(made)
    first = method.run(fed, seed=1)
    cost = spent(fed)
    assert cost == (2.0 if method.epsilon else 0.0)
    with_fixed_secrets(members(fed)["lab"], 99)
    second = method.run(fed, seed=2)
    other = {**made["clinic"], "y": 1 - made["clinic"]["y"][::-1]}
    third = method.run(again(fed, other), seed=3)
    for z in seen.z[1:]:
        # Without noise what is known already leaves along the known directions: equal to rounding.
        np.testing.assert_allclose(z, seen.z[0], rtol=1e-11 if method is PLAIN else 0)
    np.testing.assert_allclose(
        second.result.tests["lab"]["wald"]["statistic"],
        first.result.tests["lab"]["wald"]["statistic"],
        rtol=1e-9,
    )
    assert third.result.tests["lab"]["score"]["p"] != first.result.tests["lab"]["score"]["p"]
    assert spent(fed) == cost and len(kept_of(fed)) == 1
    assert third.result.revealed == {"lab": 2}
    # Negative control: another home draws other directions.
    method.run(federation(made, secrets=70), seed=1)
    assert (seen.z[0] != seen.z[3]).all()


def test_only_new_rows_get_new_noise(seen: Seen) -> None:
    made = tables(sites=TWO)
    fed = federation({**made, "clinic": rows(made["clinic"], slice(0, 80))})
    NOISY.run(fed, seed=1)
    NOISY.run(again(fed, made["clinic"]), seed=2)
    first, second = seen.z
    assert first.shape == (80, 2) and second.shape == (120, 2)
    assert (second[:80] == first).all()
    assert spent(fed) == 2.0, "other people's rows cost nobody anything"
    (kept,) = kept_of(fed)
    noise = second - block(made["lab"]) @ np.asarray(kept["directions"])
    assert len(np.unique(noise[:, 0])) == 120, "every row has noise of its own"


def test_another_price_is_another_sketch(seen: Seen) -> None:
    fed = federation(tables(sites=TWO), policy=policy(max_revealed_rank="full"))
    NOISY.run(fed, seed=1)
    run = AssistanceTest(n_directions=1, epsilon=1.5).run(fed, seed=2)
    assert spent(fed) == 3.5 and len(kept_of(fed)) == 2
    assert run.result.revealed == {"lab": 3}, "two directions of the first sketch, one more"


def test_rank_is_counted_over_runs_and_methods_of_the_same_data() -> None:
    fed = federation(tables(sites=TWO))
    AssistanceTest(n_directions=1).run(fed, seed=1)
    ledger = members(fed)["lab"].home.ledger("default")
    assert RevealedRank.from_ledger(ledger).directions.shape == (3, 1)
    with pytest.raises(QuorumError, match="more directions of the columns than the policy allows"):
        PLAIN.run(fed, seed=2)


# --------------------------------------------------------------------------- refusals


def refusal(method: AssistanceTest, made: Tables | None = None, **settings: Any) -> str:
    """Sentence with which a run ends in which the lab sends no sketch."""
    fed = federation(tables(sites=TWO) if made is None else made, **settings)
    with pytest.raises(QuorumError) as caught:
        method.run(fed, seed=1)
    assert "lab_" not in str(caught.value)
    return str(caught.value)


def test_a_budget_that_is_used_up() -> None:
    words = "the epsilon that the steward allows on this data is used up"
    assert "costs more epsilon than" in refusal(NOISY, policy=policy(max_epsilon=1.9))
    assert "grants no epsilon" in refusal(NOISY, policy=policy(max_epsilon=0.0))
    fed = federation(tables(sites=TWO), policy=policy(max_epsilon=3.0, max_revealed_rank="full"))
    NOISY.run(fed, seed=1)
    with pytest.raises(QuorumError, match=words):
        AssistanceTest(n_directions=1, epsilon=1.5).run(fed, seed=2)
    assert spent(fed) == 2.0
    NOISY.run(fed, seed=3)


def test_noise_needs_consent_bounds_and_opendp(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does not allow noised" in refusal(NOISY, policy=policy(noised=False))
    assert "no public limits, without which noise has no price" in refusal(NOISY, bounds={})
    some = {"lab": {"lab_0": (0.0, 1.0), "lab_1": (0.0, 1.0)}}
    assert "no public limits" in refusal(NOISY, bounds=some)
    for name in [n for n in sys.modules if n.split(".")[0] == "opendp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opendp", None)
    said = refusal(NOISY)
    assert said.count("lab") == 1 and "privacy" in said


def test_cells_beyond_the_limits_are_cut_and_counted_for_their_owner() -> None:
    made = tables(sites=TWO)
    made["lab"]["lab_0"] = np.where(np.arange(120) < 7, 50.0, made["lab"]["lab_0"])
    fed = federation(made)
    run = NOISY.run(fed, seed=1)
    assert "7 cells or rows lay beyond the public limits" in str(fed.log("lab"))
    assert not any("limits" in text for text in (*run.notes, *run.result.warnings))
    (kept,) = kept_of(fed)
    z = np.asarray(kept["z"])[np.argsort(kept["rows"])]
    scale = run.result.scale["lab"]
    inside = np.clip(block(made["lab"]), 0, 1) @ np.asarray(kept["directions"])
    # Largest of 240 Laplace draws: above 15 scales with a probability of 240 exp(-15) < 1e-4.
    assert np.abs(z - inside).max() < 15 * scale


def test_rank_beyond_the_policy_is_refused() -> None:
    words = "more directions of the columns than the policy allows"
    assert words in refusal(AssistanceTest(n_directions=3))
    assert words in refusal(PLAIN, policy=policy(max_revealed_rank=1))
    assert words in refusal(NOISY, policy=policy(max_revealed_rank=1))
    assert words in refusal(AssistanceTest(n_directions=1), policy=policy(max_revealed_rank=0))
    full = federation(tables(sites=TWO), policy=policy(max_revealed_rank="full"))
    assert AssistanceTest(n_directions=3).run(full, seed=1).result.revealed == {"lab": 3}


def test_a_refusal_before_the_draw_costs_nothing_of_the_rank() -> None:
    fed = federation(tables(sites=TWO))
    with pytest.raises(QuorumError):
        AssistanceTest(n_directions=3).run(fed, seed=1)
    assert "revealed" not in members(fed)["lab"].home.ledger("default")
    assert kept_of(fed) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"n_directions": 0},
        {"n_directions": 16},
        {"n_directions": 8, "n_draws": 2},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"family": "logit"},
        {"geometry": "sphere"},
        {"test": "t"},
        {"level": 1.0},
        {"subsample": 5},
        {"bound": 0.0},
        {"alpha": -1.0},
        {"alpha": 0.1, "test": "lr"},
    ],
)
def test_wrong_parameters(settings: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        AssistanceTest(**settings).validate()


# --------------------------------------------------------------------------- degenerate partners


def test_a_partner_with_constant_columns_only() -> None:
    made = tables(sites=TWO)
    for name in ("lab_0", "lab_1", "lab_2"):
        made["lab"][name] = np.full(120, 0.25)
    assert "constant over the matched rows: they cannot help" in refusal(PLAIN, made)
    assert "constant over the matched rows: they cannot help" in refusal(NOISY, made)


def test_one_constant_column_among_others() -> None:
    made = tables(sites=TWO)
    made["lab"]["lab_1"] = np.full(120, 0.25)
    run = AssistanceTest(n_directions=1).run(federation(made), seed=1)
    assert run.result.n_columns == {"lab": 2}


def test_a_partner_that_has_the_initiators_columns() -> None:
    """Nothing is new: said so, with no degrees of freedom and no verdict of use."""
    made = tables(sites=TWO)
    made["lab"] = {"id": made["lab"]["id"]} | {
        f"lab_{j}": made["clinic"][f"clinic_{j}"] for j in range(3)
    }
    run = PLAIN.run(federation(made), seed=1)
    found = run.result.tests["lab"]
    assert all((found[kind]["df"] == 0).all() for kind in NAMES)
    assert all(found[kind]["combined"] == 1.0 for kind in NAMES)
    assert run.result.useful == {"lab": False}
    assert any("nothing is tested" in warning for warning in run.result.warnings)
    assert "no evidence" in run.result.summary()
    assert np.isfinite(run.result.reliability["lab"])


def test_one_class_only() -> None:
    made = tables(sites=TWO)
    made["clinic"]["y"] = np.zeros(120)
    with pytest.raises(QuorumError, match="clinic refused: the response does not fit the family"):
        PLAIN.run(federation(made), seed=1)


def test_a_response_of_another_family() -> None:
    made = tables(sites=TWO)
    made["clinic"]["y"] = made["clinic"]["clinic_0"] * 3
    with pytest.raises(QuorumError, match="clinic refused: the response does not fit the family"):
        PLAIN.run(federation(made), seed=1)


def test_rows_without_a_response_take_no_part() -> None:
    made = tables(sites=TWO)
    made["clinic"]["y"] = np.where(np.arange(120) < 20, np.nan, made["clinic"]["y"])
    run = PLAIN.run(federation(made), seed=1)
    assert run.result.n_records == 100


def test_a_subsample_and_a_penalty() -> None:
    method = AssistanceTest(n_directions=2, subsample=60, alpha=0.01)
    result = method.run(federation(tables(sites=TWO)), seed=1).result
    assert result.n_records == 60
    assert np.isnan(result.tests["lab"]["lr"]["p"]).all(), "no likelihood ratio with a penalty"
    assert np.isfinite(result.tests["lab"]["score"]["p"]).all()
    assert np.isnan(result.tests["lab"]["lr"]["combined"])


# --------------------------------------------------------------------------- more partners


def test_two_partners_of_whom_one_refuses() -> None:
    rules = {"clinic": policy(), "lab": policy(), "pharmacy": policy(max_revealed_rank=0)}
    run = PLAIN.run(federation(tables(), policy=rules), seed=1)
    assert run.result.partners == ("lab",)
    assert "more directions" in run.result.left_out["pharmacy"]
    assert "pharmacy was not tested" in run.result.summary()
    assert any("pharmacy" in note for note in run.notes)
    assert set(run.result.tests) == set(run.result.useful) == {"lab"}
    for name, found in vars(run.result).items():
        if isinstance(found, dict) and name != "left_out":
            assert "pharmacy" not in found, name


def test_a_follow_up_asks_what_a_partner_adds_to_an_earlier_one(seen: Seen) -> None:
    """The pharmacy's columns are the lab's: of use alone, of none beside it."""
    made = tables(400)
    made["pharmacy"] = {"id": made["lab"]["id"]} | {
        f"pharmacy_{j}": made["lab"][f"lab_{j}"] for j in range(3)
    }
    rules = policy(share_response=True, max_revealed_rank="full")
    method = AssistanceTest(n_directions=3)
    pair = federation({s: made[s] for s in TWO}, policy=rules)
    glm = AssistedGLM(response="share", interval="none", holdout=0.0, exchange="turns")
    trained = glm.run(pair, seed=1)
    clinic = members(pair)["clinic"]
    pharmacy = members(federation(made, policy=rules))["pharmacy"]
    both = Federation(
        LocalEngine([clinic, pharmacy]),
        pair.columns,
        roles={"clinic": "initiator", "pharmacy": "partner"},
        partition="columns",
        at="third-party",
    )
    alone = method.run(both, seed=2).result
    assert alone.useful == {"pharmacy": True} and alone.given == ()
    beside = method.run(both, seed=2, follows=trained).result
    assert beside.given == ("lab",)
    assert beside.useful == {"pharmacy": False}
    site_of = trained.site("clinic")
    known, part = site_of.predictor.known, site_of.values("partners_part")
    assert known.shape == (400, beside.n_given) == (400, trained.result.revealed["lab"][0])
    np.testing.assert_array_equal(seen.null[-1], known)
    # They are what was sent: the lab's part of the fit is one of their combinations.
    np.testing.assert_allclose(known @ np.linalg.lstsq(known, part, rcond=None)[0], part, atol=1e-9)
    # With hardly more rows than columns the part alone is in the null model.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "MIN_ROWS", 100)
        again = method.run(both, seed=3, follows=trained).result
    np.testing.assert_array_equal(seen.null[-1], part[:, None])
    assert again.n_given == 1 and any("their fit alone" in words for words in again.warnings)


# --------------------------------------------------------------------------- who knows what


def files_of(run: Run) -> dict[str, bytes]:
    assert run.directory is not None
    return {str(p): p.read_bytes() for p in run.directory.rglob("*") if p.is_file()}


def forms(values: np.ndarray) -> list[bytes]:
    flat = [float(v) for v in np.ravel(values)]
    return [np.array(v, dtype="<f8").tobytes() for v in flat] + [repr(v).encode() for v in flat]


@pytest.mark.parametrize("method", [PLAIN, NOISY], ids=["plain", "noisy"])
@pytest.mark.parametrize("at", ["third-party", "site:clinic"])
def test_a_coordinator_reads_neither_response_nor_sketch_nor_names(
    method: AssistanceTest, at: str, seen: Seen, tmp_path: Path
) -> None:
    made = tables(sites=TWO)
    rng = np.random.default_rng(5)
    made["clinic"]["y"] = rng.normal(size=120)
    gaussian = AssistanceTest(family="normal", n_directions=2, epsilon=method.epsilon)
    fed = federation(made, secrets=None, at=at)
    run = gaussian.run(fed, seed=1, out=tmp_path / "run")
    (z,) = seen.z
    canaries = [*forms(made["clinic"]["y"]), *forms(z)]
    canaries += forms(block(made["lab"])) + forms(block(made["clinic"]))
    canaries += [name.encode() for s in TWO for name in columns_of(made)[s].features]
    canaries += [v.encode() for v in made["lab"]["id"]] + [bytes(range(32))]
    for place, content in files_of(run).items():
        found = [c for c in canaries if c in content]
        assert not found, (place, found[:2])
    assert {line.shape for line in run.transcript if line.field == "z"} == {"sealed"}
    for line in run.transcript:
        if line.field == "z":
            assert line.audience == "initiator" and line.disclosure in ("per-record", "noised")
        if line.field == "z" and line.direction == "from-site":
            assert line.revealed == "2 of 3"
            assert line.epsilon == (method.epsilon or 0.0)


def test_no_party_learns_what_only_another_one_knows() -> None:
    """Homes: the lab has nothing of the clinic's, the clinic of the lab's the sketch only."""
    made = tables(sites=TWO)
    made["clinic"]["y"] = np.random.default_rng(5).normal(size=120)
    fed = federation(made, secrets=None)
    AssistanceTest(family="normal", n_directions=2).run(fed, seed=1)

    def everything(site: str) -> bytes:
        home: Any = members(fed)[site].home
        return b"".join(home.files.values()) + repr(home.lines).encode()

    lab, clinic = everything("lab"), everything("clinic")
    for form in (*forms(made["clinic"]["y"]), *forms(block(made["clinic"])), b"clinic_"):
        assert form not in lab
    for form in (*forms(block(made["lab"])), b"lab_"):
        assert form not in clinic
    assert b"lab_0" in lab, "the search can find"


def test_weights_are_used(seen: Seen) -> None:
    made = tables(sites=TWO)
    weight = np.random.default_rng(2).uniform(0.5, 2, size=120)
    made["clinic"]["w"] = weight
    columns = columns_of(made)
    columns["clinic"] = Columns(
        features=["clinic_0", "clinic_1", "clinic_2"], id="id", target="y", weight="w"
    )
    fed = federation(made, columns=columns)
    run = PLAIN.run(fed, seed=1)
    own = np.column_stack([made["clinic"][f"clinic_{j}"] for j in range(3)])
    wanted = assistance.sketch_test(
        own, seen.z[0], made["clinic"]["y"], family("binomial"), weights=weight
    )
    check_like(run.result.tests["lab"], [wanted])
