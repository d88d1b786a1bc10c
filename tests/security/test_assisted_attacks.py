"""Attacks on studies over columns: hostile coordinators and parties, and linear algebra.

A `Villain` writes requests by itself, in any order and in any number of lines of questions, and is
a party too where it has the partner key. The attacks on a partner are those of an initiator who
coordinates, on an initiator those of a third-party coordinator.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import consilience
from consilience.assisted.glm import AssistedGLM
from consilience.assisted.glm.messages import (
    INTERCEPT,
    ConcludeRequest,
    ContributeRequest,
    FinishRequest,
    FitRequest,
    HandOverRequest,
    IncludeRequest,
    OfferRequest,
    OpenRequest,
    ReceiveRequest,
    RefineRequest,
    Settings,
    SettleRequest,
    ShareRequest,
    TellRequest,
    TurnRequest,
)
from consilience.assisted.phases import digest_order
from consilience.assisted.test import site as site_of_test
from consilience.assisted.test.site import SketchRequest, TestRequest
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import Columns, Preparation, get_method
from consilience.protocol.phases.align_ids import Common, HashRequest
from consilience.protocol.phases.opening import Open
from consilience.sites.loaders import memory_site
from consilience.sites.own_columns import SiteColumns
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import MemoryStore
from consilience.sites.study import Study
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure, iterate_fields
from consilience.wire.sealing import (
    Keyring,
    common_ids,
    hashed_ids,
    introduce,
    open_message,
    seal_message,
)
from tests.assisted.assisted import Parties
from tests.security.hostile import unchecked
from tools import table_assisted_attack as table

Array = NDArray[Any]
TestRequest.__test__ = False  # type: ignore[attr-defined]
KEY = b"k" * 32
ROWS, MODEL = Disclosure.PER_RECORD, Disclosure.MODEL
N, P = 60, 4
IDS = np.array([f"p{i:04d}" for i in range(N)])
NOTHING = np.empty(0)
NOBODY = (relayed((), MODEL), relayed((), ROWS), relayed((), MODEL))
"""No partner says what it hides, and none fitted all columns."""
PLAIN = (relayed(NOTHING, ROWS), relayed(NOTHING, ROWS))
"""No case weights, and no offset."""


class Refused(Exception):
    """A site's refusal, with its public reason."""


class Villain:
    """Coordinator of one site that keeps to no order, and the party `name` beside it."""

    def __init__(
        self, site: Site, run: str = "run-1", *, method: str = "assisted-glm", name: str = "a"
    ) -> None:
        self.site, self.run, self.method, self.name = site, run, method, name
        self.round, self.last = 0, (0, 0)
        self.study, self.text = "s" * 64, ""
        self.ring: Keyring | None = None

    def ask(self, step: str, message: Any, after: tuple[int, int] | None = None) -> Any:
        """Ask a question that follows any earlier answer."""
        self.round += 1
        request = Request(
            run=self.run,
            study=self.study,
            method=self.method,
            method_version=get_method(self.method).version,
            release=consilience.__version__,
            round=self.round,
            attempt=1,
            after_round=(self.last if after is None else after)[0],
            after_attempt=(self.last if after is None else after)[1],
            step=step,
            site=self.site.name,
            seed=1,
            message=unchecked(message),
        )
        reply = Reply.from_bytes(self.site.answer(request.to_bytes()))
        if reply.status != "reply":
            raise Refused(reply.reason)
        self.last = (self.round, 1)
        found = decode_message(reply.message)
        return found if self.ring is None else open_message(found, self.ring)

    def seal(self, message: Any) -> Any:
        """Seal what is for the site's eyes as the other party."""
        assert self.ring is not None
        fields = {
            name: self.site.name
            for name, spec, _ in iterate_fields(message)
            if spec.for_role and spec.disclosure is not Disclosure.PUBLIC
        }
        return seal_message(message, self.ring, fields)

    def tell(self, step: str, message: Any, **where: Any) -> Any:
        """Ask with sealed fields."""
        return self.ask(step, self.seal(message), **where)

    def open(self, columns: Columns | None = None) -> Any:
        """Open the run."""
        own = Columns(id="id") if columns is None else columns
        rules = json.dumps(dataclasses.asdict(Preparation()))
        text = json.dumps(dataclasses.asdict(own))
        return self.ask("opening.read", Open(text, rules, self.text, "columns", ""), after=(0, 0))

    def begin(self, *, mine: str = "initiator", theirs: str = "partner") -> Villain:
        """Open and match, with a party made up under the partner key."""
        self.open()
        hashed = self.ask("align_ids.hash", HashRequest())
        private = bytes(range(32))
        public, tag = introduce(private, KEY, self.run, f"{mine} {self.name}")
        other = (hashed.public, hashed.tag)
        if theirs == "initiator" and self.site.name == "b":
            other = introduce(private, KEY, self.run, "initiator b")
        common = common_ids([hashed_ids(IDS, KEY, self.run), np.asarray(hashed.hashes.value)])
        message = Common(
            hashes=relayed(common, ROWS),
            introductions={self.name: (public, tag), self.site.name: other},
            roles={self.name: mine, self.site.name: theirs},
            preparation=json.dumps(dataclasses.asdict(Preparation())),
        )
        self.ask("align_ids.match", message)
        peers = {self.name: public, self.site.name: hashed.public}
        self.ring = Keyring(private, KEY, self.run, self.name, peers)
        return self


def settings(**changes: Any) -> Settings:
    """Settings of the method, as any coordinator can write them."""
    plain: dict[str, Any] = {
        "family": "normal",
        "power": 1.5,
        "response": "share",
        "flip": 0.1,
        "masking": "link",
        "acceleration": "span",
        "alpha": 0.0,
        "l1_ratio": 0.0,
        "tol": 1e-6,
        "holdout": 0.0,
        "split_seed": 1,
        "interval": "joint",
        "level": 0.95,
        "errors": "hc1",
        "interval_accuracy": 0.0,
        "initiator": "a",
        "partners": ("b",),
        "names": False,
    }
    return Settings(**{**plain, **changes})


def sketch_settings(**changes: Any) -> site_of_test.Settings:
    """Settings of the test of assistance, likewise."""
    plain: dict[str, Any] = {
        "family": "normal",
        "power": 1.5,
        "n_directions": 1,
        "n_draws": 1,
        "epsilon": None,
        "geometry": "box",
        "bound": 1.0,
        "subsample": None,
        "alpha": 0.0,
        "l1_ratio": 0.0,
    }
    return site_of_test.Settings(**{**plain, **changes})


def columns_of(seed: int = 0) -> Array:
    """A partner's columns, centred."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, P)) @ (np.eye(P) + 0.3 * rng.normal(size=(P, P)))
    return np.asarray(x - x.mean(axis=0))


def partner(seed: int = 0, **policy: Any) -> Site:
    """A partner that holds `columns_of`, and a column that its steward does not offer."""
    x = columns_of(seed)
    rows = {"id": IDS, "secret": x[:, 0] ** 2, **{f"z{j}": x[:, j] for j in range(P)}}
    own = SiteColumns(features=tuple(f"z{j}" for j in range(P)))
    rules = Policy(preset="consortium", **policy)
    return memory_site("b", rows, rules, own=own, partner_key=KEY)


def initiator(**policy: Any) -> tuple[Site, Array]:
    """An initiator with a response of 0 and 1."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(N, 2)), (rng.uniform(size=N) < 0.5).astype(float)
    own = SiteColumns(features=("age", "income"), target="y")
    rules = Policy(preset="consortium", **policy)
    rows = {"id": IDS, "age": x[:, 0], "income": x[:, 1], "y": y}
    return memory_site("a", rows, rules, own=own, partner_key=KEY), y


def share_of(x: Array, found: Array) -> float:
    """Dimensions of the column space of x in the span of what was found."""
    truth, span = table.basis(x), table.basis(found)
    return float(np.sum(np.square(truth.T @ span)))


def given_response(villain: Villain, y: Array, **changes: Any) -> Settings:
    """Send the partner a response."""
    text = settings(**changes)
    villain.tell("receive", ReceiveRequest(text, relayed(y, ROWS), *PLAIN))
    return text


def contribute(
    villain: Villain, text: Settings, offset: Array, weights: Array = NOTHING, **where: Any
) -> Any:
    """Ask for a contribution to a linear predictor made up."""
    place = {"weights": np.asarray(weights, dtype=float), "constant": 0.0, "added": False}
    parts = (relayed(offset, ROWS), relayed(NOTHING, ROWS), relayed(place, MODEL))
    return villain.tell("contribute", ContributeRequest(text, *parts), **where)


# --------------------------------------------------------------------------- linear algebra


@pytest.mark.parametrize("limit", [0, 1, 3, "default", "full"])
def test_a_full_run_reveals_k_of_r(limit: Any) -> None:
    found, result = table.attacked(0, limit)
    allowed = {"default": table.RANK - 1, "full": table.RANK}.get(limit, limit)
    assert result.revealed["b"] == (allowed, table.RANK)
    assert found.directions == allowed
    # Exact algebra, so rounding only.
    assert found.basis == pytest.approx(allowed / table.RANK, abs=1e-6)
    # The angle's cosine is 1 to about 1e-13, so the angle is 0 to about 1e-5 degrees.
    assert found.angle == pytest.approx(0.0 if limit == "full" else 90.0, abs=1e-3)
    two = min(allowed + 2, table.RANK) / table.RANK
    assert found.with_two == pytest.approx(two, abs=1e-6)
    if limit == "full":
        assert found.rows == pytest.approx(1.0, abs=1e-6)
    else:
        assert found.rows < 0.95


def test_a_second_run_adds_nothing_to_what_the_first_one_spent() -> None:
    x_a, x_b, y = table.columns(1)
    fed = table.federation(x_a, x_b, y, "default")
    method = AssistedGLM(response="share", exchange="turns")
    runs = [fed.run(method, seed=seed).info.run for seed in (1, 2)]
    runs.append(fed.run(dataclasses.replace(method, acceleration="anderson"), seed=3).info.run)
    both = np.column_stack([table.seen(fed, run) for run in runs])
    assert table.recovered(both, x_b).directions == table.RANK - 1


def test_the_page_has_the_table() -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    assert table.page(page).split(table.HEADING)[0] == page.split(table.HEADING)[0]
    assert page.count(table.HEADING) == 1
    for row in ('| `"default"` (5) | 5 | 0.833 | 90.0 degrees', '| `"full"` | 6 | 1.000 | 0.0'):
        assert row in page


# --------------------------------------------------------------------------- against a partner


def test_the_coordinator_does_not_choose_the_columns() -> None:
    for k, columns in enumerate((Columns(id="id", features=("secret",)), Columns(target="z0"))):
        with pytest.raises(Refused, match="names the id only"):
            Villain(partner(), f"run-{k}").open(columns)


def test_nobody_else_says_what_role_a_site_has() -> None:
    """A party with the partner key introduces the partner as an initiator, by a key of its own."""
    with pytest.raises(Refused, match="introduced to the others as somebody else"):
        Villain(partner()).begin(mine="partner", theirs="initiator")


def test_what_equations_hide_is_not_told_for_made_up_targets() -> None:
    """One question for thousands of targets gave the hat matrix: all of the column space."""
    villain = Villain(partner()).begin()
    text = given_response(villain, np.arange(float(N)) % 7)
    pairs = [(i, i) for i in range(N)] + [(i, j) for j in range(P) for i in range(N)]
    c = np.zeros((N, 1 + len(pairs)))
    for column, (i, j) in enumerate(pairs, start=1):
        c[i, column] = c[j, column] = 1.0
    place = {
        "weights": np.empty((0, c.shape[1])),
        "constants": np.zeros(c.shape[1]),
        "rows": np.empty(0, dtype=np.int64),
        "enough": 0.0,
    }
    parts = (relayed(c, ROWS), relayed(np.empty((0, 0)), ROWS), relayed(place, MODEL))
    reply = villain.tell("refine", RefineRequest(text, *parts, last=True))
    told = reply.left.value["rest"]
    assert reply.known == 0 and len(told) == 0
    # A few honest targets are still judged, until as many numbers are told as half the rows.
    counts = []
    for _ in range(8):
        place = {"weights": np.empty((0, 7)), "constants": np.zeros(7)}
        place |= {"rows": np.arange(2), "enough": 0.0}
        parts = (relayed(c[:, :7], ROWS), relayed(np.empty((0, 0)), ROWS), relayed(place, MODEL))
        reply = villain.tell("refine", RefineRequest(text, *parts, last=True))
        counts.append(len(reply.left.value["rest"]))
    assert counts == [6] * 5 + [0] * 3 and sum(counts) <= N // 2


def test_gains_of_refused_directions_are_few() -> None:
    """The gain at a made-up residual is a quadratic form of the hat matrix: pairs give its cells.

    With every answer the share is 4 of 4; 60 rows know P * P / 60 of 4 dimensions by chance.
    """
    site = partner(max_revealed_rank=0)
    villain = Villain(site).begin()
    text = given_response(villain, np.zeros(N))
    base, unit = villain.last, np.eye(N)

    def gain(offset: Array) -> float:
        reply = contribute(villain, text, offset, after=base)
        assert reply.spent and not reply.contribution.value.size
        return float(reply.gain.value["gain"])

    told = 0
    alone = np.zeros(N)
    for i in range(N):
        alone[i] = gain(unit[i])
        told += alone[i] >= 0
    cells = np.array([[gain(unit[i] + unit[j]) for j in range(P)] for i in range(0, N, 5)])
    assert told == N // 2
    assert (cells < -1e299).all()
    # Another run on the same data has the same memory.
    again = Villain(site, "run-2").begin()
    text = given_response(again, np.zeros(N))
    assert contribute(again, text, unit[0]).gain.value["gain"] < -1e299


def test_variances_of_rows_need_all_columns_to_be_known() -> None:
    """With a response of the attacker's each gave a quadratic form of every row, uncounted."""
    for limit, size in (("default", 0), ("full", N)):
        site = partner(max_revealed_rank=limit)
        villain = Villain(site).begin()
        text = given_response(villain, np.eye(N)[0], interval="paper")
        place = relayed({"weights": NOTHING}, MODEL)
        reply = villain.tell("finish", FinishRequest(text, place))
        assert len(reply.variances.value) == size
        assert reply.known == (P if size else 0)
        assert len(site.home.ledger("default").get("revealed", {}).get("directions", ())) == (
            P if size else 0
        )


@pytest.mark.parametrize("seed", range(3))
def test_large_weights_do_not_hide_a_direction(seed: int) -> None:
    """Next to a known direction times 3e14 an uncounted one left in the last digits: share .98."""
    rng = np.random.default_rng(seed)
    x = columns_of(seed)
    villain = Villain(partner(seed, max_revealed_rank=1)).begin()
    y = rng.normal(size=N) + x @ np.array([1, -1, 0.5, 0.3])
    text = given_response(villain, y)
    first = np.asarray(contribute(villain, text, np.zeros(N)).contribution.value)
    base, offset = villain.last, 3 * rng.normal(size=N)
    design = np.column_stack([np.ones(N), x])
    hidden = x @ np.linalg.lstsq(design, y - offset, rcond=None)[0][1:]
    hidden = hidden - first * (first @ hidden) / (first @ first)
    for size in (1e10, 3e14, 1e15):
        got = []
        for weight in size * (1 + 0.3 * rng.uniform(size=20)):
            reply = contribute(villain, text, offset, np.array([weight]), after=base)
            assert reply.known == 1
            if reply.contribution.value.size:
                got.append(np.asarray(reply.contribution.value) + weight * first)
        if not got:
            continue
        rest = np.mean(got, axis=0)
        rest = rest - first * (first @ rest) / (first @ first)
        share = float(rest @ hidden) ** 2 / float((rest @ rest) * (hidden @ hidden))
        # A random vector has 1/60 on average, and .25 with a probability below 1e-4.
        assert share < 0.25


def test_a_step_answered_once_is_not_answered_after_other_answers() -> None:
    """The same bytes after another response asked for another answer."""
    villain = Villain(partner(max_revealed_rank="full")).begin()
    base = villain.last
    message = None
    for turn in range(2):
        villain.last = base
        text = given_response(villain, np.eye(N)[turn], interval="paper")
        if message is None:
            message = villain.seal(FinishRequest(text, relayed({"weights": NOTHING}, MODEL)))
            villain.ask("finish", message)
        else:
            with pytest.raises(Refused, match="answered once"):
                villain.ask("finish", message)


@pytest.mark.parametrize(
    "changes",
    [
        {"family": "Normal"},
        {"power": float("nan")},
        {"response": "plain"},
        {"response": "masked", "flip": 0.0},
        {"response": "masked", "flip": 0.5},
        {"masking": ""},
        {"acceleration": "quick"},
        {"alpha": -1.0},
        {"l1_ratio": 2.0},
        {"tol": "0.1"},
        {"holdout": 0.95},
        {"split_seed": -1},
        {"interval": None},
        {"level": 1.0},
        {"initiator": 1},
        {"partners": ()},
        {"partners": ("b", 1)},
        {"partners": "b"},
        {"names": 1},
    ],
)
def test_settings_that_no_coordinator_sends(changes: dict[str, Any]) -> None:
    """A site judges by itself what it is asked; a share of .95 would leave three rows to train."""
    line = Relay((initiator(share_response=True)[0], partner()), "assisted-glm").lines["a"]
    with pytest.raises(Refused, match=f"settings.{list(changes)[-1]}: it must be"):
        line.ask("share", ShareRequest(settings(**changes), "b"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_directions": 0}, "n_directions: it must be"),
        ({"n_directions": 16}, "n_directions: it must be"),
        ({"n_draws": True}, "n_draws: it must be"),
        ({"n_directions": 4, "n_draws": 4}, "settings that do not go together"),
        ({"geometry": "cube"}, "geometry: it must be"),
        ({"bound": 0.0}, "bound: it must be"),
        ({"subsample": 3}, "subsample: it must be"),
    ],
)
def test_settings_of_a_test_that_no_coordinator_sends(changes: dict[str, Any], words: str) -> None:
    """Sixteen columns have no price that can be computed exactly."""
    line = Relay((initiator()[0], partner()), "assistance-test").lines["b"]
    asked = SketchRequest(sketch_settings(), "a")
    for name, value in changes.items():
        object.__setattr__(asked.settings, name, value)
    with pytest.raises(Refused, match=words):
        line.ask("sketch", asked)


# --------------------------------------------------------------------------- against an initiator


class Relay:
    """Third-party coordinator of an honest initiator and an honest partner: it has no key."""

    def __init__(
        self,
        sites: tuple[Site, ...],
        method: str,
        run: str = "run-1",
        *,
        without: int = 0,
        rules: Preparation | None = None,
    ) -> None:
        self.lines = {site.name: Villain(site, run, method=method) for site in sites}
        hashed = {}
        for name, line in self.lines.items():
            line.open()
            hashed[name] = line.ask("align_ids.hash", HashRequest())
        common = common_ids([np.asarray(h.hashes.value) for h in hashed.values()])
        message = Common(
            hashes=relayed(common[without:], ROWS),
            introductions={name: (h.public, h.tag) for name, h in hashed.items()},
            roles={"a": "initiator", "b": "partner"},
            preparation=json.dumps(dataclasses.asdict(rules or Preparation())),
        )
        for line in self.lines.values():
            line.ask("align_ids.match", message)


def test_the_response_does_not_follow_from_tests_of_many_subsamples() -> None:
    """Counts of the rarer class in growing subsamples told the response, one row after the other"""
    sites = (initiator()[0], partner())
    relay = Relay(sites, "assistance-test")
    plain = sketch_settings(family="binomial")
    request = SketchRequest(plain, "a")
    z = relay.lines["b"].ask("sketch", request).z
    line = relay.lines["a"]
    base = line.last
    first = line.ask("test", TestRequest(dataclasses.replace(plain, subsample=30), z))
    assert first.facts.value["minority"] == int(first.facts.value["minority"])
    for size in (31, 32):
        with pytest.raises(Refused, match="answered once"):
            line.ask("test", TestRequest(dataclasses.replace(plain, subsample=size), z), after=base)


def test_the_response_does_not_follow_from_many_splits() -> None:
    """The deviance of each split is a count of ones: as many splits as rows told a masked response.

    One conclusion in a run leaves one such equation for each run that the steward allows.
    """
    pytest.importorskip("opendp")
    site = initiator(noised=True, max_epsilon=10.0)[0]
    line = Relay((site, partner()), "assisted-glm").lines["a"]
    masked = {"family": "binomial", "response": "masked", "flip": 0.3, "holdout": 0.4}
    line.ask("share_masked", ShareRequest(settings(**masked), "b"))
    base = line.last

    def conclude(seed: int) -> Any:
        parts = (relayed((), ROWS), relayed((), ROWS), *NOBODY)
        text = settings(**masked, split_seed=seed)
        request = ConcludeRequest(text, *parts, complete=False, hidden=0)
        return line.ask("conclude", request, after=base)

    conclude(1)
    with pytest.raises(Refused, match="answered once"):
        conclude(2)


def concluded(site: Site, run: str, **changes: Any) -> dict[str, float]:
    """Figures that one run gives a third-party coordinator, without any training."""
    line = Relay((site, partner()), "assisted-glm", run).lines["a"]
    text = settings(family="binomial", **changes)
    line.ask("share", ShareRequest(text, "b"))
    parts = (relayed((), ROWS), relayed((), ROWS), *NOBODY)
    reply = line.ask("conclude", ConcludeRequest(text, *parts, complete=False, hidden=0))
    return dict(reply.fit.value)


def ones(figures: dict[str, float], n_held: int, total: int) -> int:
    """Ones among the rows held out, by the null deviances and how common ones are."""
    gaps = []
    for out in range(n_held + 1):
        n, k = N - n_held, total - out
        if 0 < k < n:
            there, here = np.log(k / n), np.log(1 - k / n)
            trained = -2 * (k * there + (n - k) * here)
            told = -2 * (out * there + (n_held - out) * here) / n_held
            gap = abs(trained - figures["deviance_null"]) + abs(told - figures["holdout_null"])
            gaps.append((gap, out))
    return min(gaps)[1]


@pytest.mark.parametrize("preset", ["simulation", "consortium"])
def test_the_response_does_not_follow_from_many_runs(preset: Any) -> None:
    """Ones among rows that a public seed held out: 70 runs with seeds of their own, 60 unknowns."""
    rules = {"preset": preset, "share_response": True, "max_revealed_rank": "full"}
    site, y = initiator()
    site.policy = Policy(**rules)
    n_held, runs = 20, 70
    equations, told, seen = [], [], set()
    for seed in range(runs):
        figures = concluded(site, f"run-{seed}", holdout=1 / 3, split_seed=seed)
        held = stream(seed, "holdout").permutation(np.arange(N))[:n_held]
        out = ones(figures, n_held, int(y.sum()))
        equations += [np.ones(N), np.isin(np.arange(N), held).astype(float)]
        told += [y.sum(), out]
        seen.add((figures["deviance_null"], figures["holdout_null"]))
    found, *_ = np.linalg.lstsq(np.array(equations), np.array(told, dtype=float), rcond=None)
    right = float(np.mean((found > 0.5) == (y > 0.5)))
    if preset == "simulation":  # protects no single record, and shows that the attack is one
        assert right == 1.0 and len(seen) > 5
    else:
        # One figure whatever the seed: a guess of 60 coins is right in more than 45 with a
        # probability below 1e-4.
        assert len(seen) == 1
        assert right <= 0.75


def test_no_share_of_held_out_rows_isolates_a_row() -> None:
    """Shares that differ by one row had that row's response as the difference of their counts."""
    site, _ = initiator(share_response=True, max_revealed_rank="full")
    sizes = set()
    for k in range(2, 44, 3):
        line = Relay((site, partner()), "assisted-glm", f"run-{k}").lines["a"]
        text = settings(family="binomial", holdout=k / N)
        line.ask("share", ShareRequest(text, "b"))
        parts = (relayed((), ROWS), relayed((), ROWS), *NOBODY)
        reply = line.ask("conclude", ConcludeRequest(text, *parts, complete=False, hidden=0))
        sizes.add(int(reply.records.value["held"]))
    assert sizes == {12, 24}


def test_rows_left_out_of_the_match_are_few_equations() -> None:
    """Two sets that differ by a row have its response as the difference of their counts."""
    site = initiator()[0]
    refused = 0
    for k in range(12):
        try:
            Relay((site, partner()), "assisted-glm", f"run-{k}", without=k + 1)
        except Refused as refusal:
            assert "as many different sets of rows" in str(refusal)
            refused += 1
    assert refused == 6  # 60 rows are 6 groups of 10
    with pytest.raises(Refused, match="as many different sets of rows"):
        Relay((site, partner()), "assisted-glm", "run-all")
    site = initiator()[0]
    for k in range(12):  # the same set is no other equation
        Relay((site, partner()), "assisted-glm", f"run-{k}")


def test_rules_of_preparation_are_those_of_the_opening() -> None:
    with pytest.raises(Refused, match="other rules than the run was opened with"):
        sites = (initiator()[0], partner())
        Relay(sites, "assisted-glm", rules=Preparation(standardize="site"))


def test_the_order_of_rows_is_nobodys_choice() -> None:
    """The same whatever is asked; another one where a row or what it is for is another."""
    site = initiator()[0]
    data = site._loader(Columns(id="id"), Preparation(), partition="columns").data
    places = np.arange(N)
    order = digest_order(data, places, "holdout")
    assert sorted(order) == list(places)
    np.testing.assert_array_equal(order, digest_order(data.take(places), places, "holdout"))
    changed = np.where(places == 7, 1 - np.asarray(data.target), data.target)
    for other in (
        digest_order(data, places, "subsample"),
        digest_order(dataclasses.replace(data, target=changed), places, "holdout"),
    ):
        # 60 rows: 10 or more stay where they were with a probability below 1e-6.
        assert np.sum(other == order) < 10
    with pytest.raises(DataError, match="no order of their own"):
        digest_order(dataclasses.replace(data, target=None), places, "holdout")


def test_the_response_needs_its_own_consent() -> None:
    site = initiator()[0]
    line = Relay((site, partner()), "assisted-glm").lines["a"]
    with pytest.raises(Refused, match="the response of each record"):
        line.ask("share", ShareRequest(settings(family="binomial"), "b"))


@pytest.mark.parametrize("granted", [False, True])
def test_names_of_columns_need_their_own_consent(granted: bool) -> None:
    site = initiator(share_response=True, share_names=granted)[0]
    line = Relay((site, partner()), "assisted-glm").lines["a"]
    text = settings(family="binomial", names=True)
    line.ask("share", ShareRequest(text, "b"))
    parts = (relayed((), ROWS), relayed((), ROWS), *NOBODY)
    reply = line.ask("conclude", ConcludeRequest(text, *parts, complete=False, hidden=0))
    assert reply.names == ((INTERCEPT, "age", "income") if granted else ("x0", "x1", "x2"))


def test_sealed_fields_are_not_made_by_a_coordinator_without_the_key() -> None:
    line = Relay((initiator()[0], partner()), "assisted-glm").lines["b"]
    message = ReceiveRequest(settings(), relayed(np.zeros(N), ROWS), *PLAIN)
    with pytest.raises(Refused, match="not sealed by the site"):
        line.ask("receive", message)


def test_contributions_made_up_tell_little_of_the_initiators_columns() -> None:
    """Deviances with one unit vector each gave the leverage of every row, beyond the limit."""
    site = initiator(max_revealed_rank=1)[0]
    line = Villain(site, name="b").begin(mine="partner", theirs="initiator")

    def turn(contribution: Array, owner: str, after: tuple[int, int]) -> Any:
        parts = (relayed(contribution, ROWS), relayed({"inner": NOTHING, "penalty": 0.0}, MODEL))
        return line.tell(
            "turn", TurnRequest(settings(), owner, *parts, partner="b", closes=False), after=after
        )

    with pytest.raises(Refused):
        line.ask("share", ShareRequest(settings(), "b"))
    site.policy = dataclasses.replace(site.policy, share_response=True)
    line.last = (line.round - 1, 1)
    line.ask("share", ShareRequest(settings(), "b"))
    assert not turn(NOTHING, "", line.last).spent
    base, told = line.last, 0
    for i in range(N):
        try:
            reply = turn(np.eye(N)[i], "b", base)
        except Refused as refusal:
            assert "as many numbers were told" in str(refusal)
            break
        assert reply.spent and not reply.own.value.size
        told += 2 + len(reply.place.value["weights"])
    assert 0 < told <= N // 2


def test_another_response_of_the_same_table_is_masked_anew() -> None:
    """What is kept of one response is not given out, unpaid, for another."""
    pytest.importorskip("opendp")
    rng, home = np.random.default_rng(5), MemoryStore()
    got: list[Array] = []
    y = (rng.uniform(size=N) < 0.5).astype(float)
    rows = {"id": IDS, "age": rng.normal(size=N), "one": y, "other": 1 - y}
    for target in ("one", "other", "one"):
        own = SiteColumns(features=("age",), target=target)
        rules = Policy(preset="consortium", noised=True, max_epsilon=10.0)
        site = memory_site("a", rows, rules, own=own, partner_key=KEY)
        site.home = home
        line = Villain(site, f"run-{len(got)}", name="b")
        line.begin(mine="partner", theirs="initiator")
        text = settings(family="binomial", response="masked", flip=0.1)
        got.append(np.asarray(line.ask("share_masked", ShareRequest(text, "b")).response.value))
    np.testing.assert_array_equal(got[0], got[2])
    # 60 flips of probability .1: 30 or more agree by chance with a probability below 1e-12.
    assert np.mean(got[1] == 1 - y) > 0.5
    assert len(home.ledger("default")["epsilon"]) == 2


def test_settings_are_those_of_the_approved_study() -> None:
    """The steward approved a masked response; another study may share it as it is."""
    study = Study.from_settings(
        {
            "name": "approved",
            "method": "assisted-glm",
            "partition": "columns",
            "seed": 1,
            "parameters": {"response": "masked", "flip": 0.3},
            "data": {"id": "id"},
            "sites": {"names": ["a", "b"], "roles": {"a": "initiator"}},
        }
    )
    approved = {"share_response": True, "approved_studies": (study.hash(),)}
    site = initiator(noised=True, max_epsilon=10.0, **approved)[0]
    line = Villain(site, name="b")
    line.study, line.text = study.hash(), study.canonical()
    line.begin(mine="partner", theirs="initiator")
    base = line.last
    plain = {"family": "binomial", "response": "share", "flip": 0.3, "holdout": 0.2}
    masked = {**plain, "response": "masked"}
    with pytest.raises(Refused, match="not what the approved study says"):
        line.ask("share", ShareRequest(settings(**plain), "b"), after=base)
    with pytest.raises(Refused, match="not what the approved study says"):
        less = settings(**{**masked, "flip": 0.01})
        line.ask("share_masked", ShareRequest(less, "b"), after=base)
    pytest.importorskip("opendp")
    line.ask("share_masked", ShareRequest(settings(**masked), "b"), after=base)


def test_nearly_the_same_price_is_paid_again() -> None:
    """Sketches at 1 and 1.0000001 have noise of their own, and so have a price each."""
    pytest.importorskip("opendp")
    x = columns_of()
    rows = {"id": IDS, **{f"z{j}": x[:, j] for j in range(P)}}
    names = tuple(f"z{j}" for j in range(P))
    own = SiteColumns(features=names, bounds=dict.fromkeys(names, (-5.0, 5.0)))
    rules = Policy(preset="consortium", noised=True, max_epsilon=2.0, max_revealed_rank="full")
    site = memory_site("b", rows, rules, own=own, partner_key=KEY)
    sketches = []
    for run, epsilon in enumerate((1.0, 1.0, 1.0000001, "1.0", -1.0, float("nan"))):
        line = Villain(site, f"run-{run}", method="assistance-test").begin()
        request = SketchRequest(sketch_settings(epsilon=epsilon), "a")
        try:
            sketches.append(np.asarray(line.ask("sketch_noised", request).z.value))
        except Refused as refusal:
            assert run > 1 and ("epsilon" in str(refusal) or "price" in str(refusal))
    np.testing.assert_array_equal(sketches[0], sketches[1])
    # 1 + 1.0000001 is above 2, and the others are no prices.
    spent = sum(site.home.ledger("default")["epsilon"].values())
    assert spent <= 2.0 and len(sketches) == 1 + round(spent)


def test_a_value_sealed_in_another_run_or_field_is_refused() -> None:
    site = partner()
    first, second = Villain(site).begin(), Villain(site, "run-2").begin()
    message = ReceiveRequest(settings(), relayed(np.zeros(N), ROWS), *PLAIN)
    with pytest.raises(Refused, match="sealed for another field or run"):
        second.ask("receive", first.seal(message))
    sealed = second.seal(message)
    swapped = dataclasses.replace(sealed, weights=sealed.response)
    with pytest.raises(Refused, match="sealed for another field or run"):
        second.ask("receive", swapped)


def test_what_one_step_sealed_is_not_taken_by_another() -> None:
    """Field `place` has three meanings in a run: a third party hands an earlier one on."""
    relay = Relay((initiator(share_response=True)[0], partner()), "assisted-glm")
    line, other = relay.lines["a"], relay.lines["b"]
    text = settings()
    shared = line.ask("share", ShareRequest(text, "b"))
    other.ask("receive", ReceiveRequest(text, shared.response, shared.weights, shared.offset))
    nothing = (relayed(NOTHING, ROWS), relayed(NOTHING, MODEL))
    turned = line.ask("turn", TurnRequest(text, "", *nothing, partner="b", closes=False))
    base = other.last
    with pytest.raises(Refused, match="in another message"):
        other.ask("finish", FinishRequest(text, turned.place))
    settled = line.ask("settle", SettleRequest(text, "b"))
    mixed = ContributeRequest(text, turned.own, turned.others, settled.place)
    with pytest.raises(Refused, match="in another message"):
        other.ask("contribute", mixed, after=base)
    right = ContributeRequest(text, turned.own, turned.others, turned.place)
    assert not other.ask("contribute", right, after=base).spent


# --------------------------------------------------------------------------- parties that open


def test_no_coordinator_opens_columns_beyond_the_policy() -> None:
    """What the questions say of the courses is the coordinator's word; the policy decides."""
    opened = settings(exchange="auto", courses=("opened",))
    for limit, text in (("default", opened), ("full", settings(courses=("opened",)))):
        villain = Villain(partner(max_revealed_rank=limit)).begin()
        villain.ask("offer", OfferRequest())
        with pytest.raises(Refused, match="not on offer"):
            villain.ask("open", OpenRequest(text))
        assert villain.site.home.ledger("default").get("revealed", {}).get("directions", []) == []
    # Asked for what earlier runs told, a partner of whom nothing is known sends nothing.
    villain = Villain(partner(max_revealed_rank="full")).begin()
    reply = villain.ask("open", OpenRequest(settings()))
    assert not reply.rest.value.size and not reply.complete and reply.known == 0
    for limit, exchange in (("default", "auto"), ("full", "turns")):
        site = initiator(share_response=True, max_revealed_rank=limit)[0]
        line = Villain(site, name="b").begin(mine="partner", theirs="initiator")
        text = settings(family="binomial", exchange=exchange, courses=("fitted",))
        with pytest.raises(Refused, match="not on offer"):
            line.ask("hand_over", HandOverRequest(text, "b"))


def test_who_needs_no_response_gets_none() -> None:
    """A partner that opened, or that tells what is known, is not asked for a fit."""
    for course in ("opened", "earlier"):
        for way, step in (("share", "share"), ("masked", "share_masked")):
            site = initiator(share_response=True, noised=True, max_epsilon=10.0)[0]
            line = Villain(site, name="b").begin(mine="partner", theirs="initiator")
            text = settings(family="binomial", response=way, courses=(course,))
            with pytest.raises(Refused, match="without a response"):
                line.ask(step, ShareRequest(text, "b"))
    # Nor does it come as it is where it is to be masked.
    line = Villain(initiator(share_response=True)[0], name="b")
    line.begin(mine="partner", theirs="initiator")
    with pytest.raises(Refused):
        line.ask("share", ShareRequest(settings(family="binomial", response="masked"), "b"))


@pytest.mark.parametrize("family", ["binomial", "normal"])
def test_coefficients_of_row_indicators_do_not_tell_the_response(family: str) -> None:
    """A partner that opens such columns read the response off its coefficients, in one run."""
    rng = np.random.default_rng(0)
    x, blocks = rng.normal(size=(N, 2)), np.eye(N)[:, : N - 1]
    y = (rng.random(N) < 0.5).astype(float) if family == "binomial" else rng.normal(size=N)
    them = Parties({"a": x, "b": blocks}, {"a": ("u", "v"), "b": tuple(map(str, IDS[1:]))}, y, IDS)
    partners = Policy(preset="consortium", max_revealed_rank="full")
    for granted in (False, True):
        own = Policy(preset="consortium", share_response=granted)
        federation = them.federation({"a": own, "b": partners})
        run = AssistedGLM(family=family, alpha=0.05, holdout=0.0).run(federation, seed=1)
        assert run.result.courses == {"b": "opened"}
        estimate = run.site("b").to_frame("coefficients")["estimate"].to_numpy()
        if granted:
            assert np.corrcoef(estimate, y[: N - 1])[0, 1] > 0.9
        else:
            assert np.isnan(estimate).all()


def test_no_step_tells_of_the_response_without_consent() -> None:
    """Whatever a coordinator says of the courses, and in whatever order it asks."""
    block = relayed(np.eye(N)[:, :5], ROWS)
    nothing = (relayed(NOTHING, ROWS), relayed(NOTHING, MODEL))
    parts = (relayed((), ROWS), relayed((), ROWS), *NOBODY)
    plain = {"family": "binomial", "alpha": 0.1, "interval": "none"}
    opened = settings(**plain, courses=("opened",))
    turns = settings(**plain, courses=("turns",))
    masked = settings(**{**plain, "response": "masked"}, courses=("turns",))
    site = initiator(noised=True, max_epsilon=10.0)[0]
    line = Villain(site, name="b").begin(mine="partner", theirs="initiator")
    start = line.last
    # No response was shared, and nothing is fitted to one.
    for text in (turns, masked):
        for step, request in (
            ("include", IncludeRequest(text, "b", block)),
            ("settle", SettleRequest(text, "b")),
            ("turn", TurnRequest(text, "", *nothing, partner="b", closes=False)),
            ("conclude", ConcludeRequest(text, *parts, complete=False, hidden=0)),
        ):
            ask = line.ask if step in ("settle", "conclude") else line.tell
            with pytest.raises(Refused, match=r"before anything is fitted|does not share"):
                ask(step, request, after=start)
    line.tell("include", IncludeRequest(opened, "b", block), after=start)
    fitted = line.last
    assert not len(line.ask("settle", SettleRequest(opened, "b")).place.value["weights"])
    line.ask("conclude", ConcludeRequest(opened, *parts, complete=False, hidden=0), after=fitted)
    for text in (opened, turns, masked):
        place = line.ask("tell", TellRequest(text, "b"), after=line.last).place.value
        assert not any(np.size(values) for values in place.values())
    # Nor does a fit of the response outlast the masked one.
    line.ask("share_masked", ShareRequest(masked, "b"), after=fitted)
    turned = line.ask("turn", TurnRequest(masked, "", *nothing, partner="b", closes=False))
    assert not len(turned.place.value["weights"])


def test_errors_of_a_partners_fit_are_few() -> None:
    """Each is an equation in its columns: half as many as rows over all runs, one fit in a run."""
    site, told = partner(), []
    rng = np.random.default_rng(7)
    for run in range(P + 1):
        villain = Villain(site, f"run-{run}").begin()
        villain.ask("offer", OfferRequest())
        text = given_response(villain, rng.normal(size=N), exchange="auto", courses=("fitted",))
        base = villain.last

        def fit(villain: Villain = villain, text: Settings = text, base: Any = base) -> Any:
            place = {"means": np.zeros(5), "rows": np.arange(6)}
            own = relayed(rng.normal(size=(N, 5)), ROWS)
            return villain.tell("fit", FitRequest(text, own, relayed(place, MODEL)), after=base)

        if run >= P - 1:
            with pytest.raises(Refused, match="no further direction"):
                fit()
            continue
        told.append(len(fit().errors.value.get("error", ())))
        with pytest.raises(Refused, match="answered once"):
            fit()
    # Three directions of four, each with twelve errors: 60 rows tell 30 numbers.
    assert told == [12, 12, 0]
    assert len(site.home.ledger("default")["revealed"]["directions"]) == P - 1


@pytest.mark.parametrize("limit", [0, 2])
def test_whether_a_response_is_separated_costs_a_direction(limit: int) -> None:
    """Answers for chosen responses put the rows in the order of a column, with no end of them."""
    site = partner(max_revealed_rank=limit)
    order, said = np.argsort(columns_of()[:, 0]), []
    for run in range(4):
        villain = Villain(site, f"run-{run + 2}").begin()
        villain.ask("offer", OfferRequest())
        # some rows that the columns tell apart, and others that they do not
        y = np.full(N, np.nan)
        y[order] = (np.arange(N) >= N // 2) if run % 2 else np.arange(N) % 2
        changes = {"family": "binomial", "exchange": "auto", "courses": ("fitted",)}
        text = given_response(villain, y, **changes)
        base = villain.last
        place = relayed({"means": np.zeros(1), "rows": np.arange(0)}, MODEL)
        request = FitRequest(text, relayed(np.zeros((N, 1)), ROWS), place)
        try:
            reply = villain.tell("fit", request, after=base)
        except Refused as refusal:
            said.append(str(refusal))
            continue
        assert reply.unfit == ("separated" if run % 2 else "")
        assert run % 2 == 0 or not np.any(reply.part.value)
        other = dataclasses.replace(request, own=relayed(np.ones((N, 1)), ROWS))
        with pytest.raises(Refused, match="answered once"):
            villain.tell("fit", other, after=base)
    # Answers are as many as directions, and refusals are all the same.
    assert len(said) == 4 - limit and len(set(said)) == 1
    assert "no further direction" in said[0]
    found = site.home.ledger("default").get("revealed", {}).get("directions", [])
    assert len(found) == limit


def test_weights_of_made_up_columns_are_few() -> None:
    """A partner's columns before the first turn come back with weights, equations in the own ones.

    So they count as numbers, over all runs: of 60 rows 30.
    """
    site = initiator(share_response=True)[0]
    rng, taken = np.random.default_rng(8), []
    for run, k in enumerate((20, 20, 8)):
        line = Villain(site, f"run-{run}", name="b").begin(mine="partner", theirs="initiator")
        line.ask("offer", OfferRequest())
        text = settings(family="binomial", alpha=0.1, courses=("turns",))
        line.ask("share", ShareRequest(text, "b"))
        block = relayed(rng.normal(size=(N, k)), ROWS)
        request, base = IncludeRequest(text, "b", block), line.last
        try:
            line.tell("include", request)
        except Refused as refusal:
            assert "as many numbers were told" in str(refusal)
            continue
        taken.append(k)
        other = dataclasses.replace(request, rest=relayed(rng.normal(size=(N, 1)), ROWS))
        with pytest.raises(Refused, match="answered once"):
            line.tell("include", other, after=base)
    assert taken == [20, 8]
