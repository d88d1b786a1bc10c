"""What crosses in an assisted GLM, read from messages, transcript, run directory and ledgers."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.assisted.glm import AssistedGLM
from consilience.assisted.glm.messages import INTERCEPT
from consilience.assisted.test import AssistanceTest
from consilience.engines.federation import Federation
from consilience.exceptions import ConsilienceError, QuorumError
from consilience.protocol.method import Preparation
from consilience.protocol.phases.prepare import steps_of
from consilience.report import write
from consilience.sites.policy import Policy
from consilience.sites.revealed_rank import RevealedRank
from consilience.sites.step_runner import KEYS
from consilience.testing.attacks import Canary, find_canaries
from consilience.testing.fakes import members, scripted
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Released
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure, Sealed, iterate_fields, message_type
from consilience.wire.sealing import Keyring, open_message
from tests.assisted.assisted import SIGNED, Parties, parties
from tests.sites.homes import record_files, records_of

DEFAULT = Policy(preset="consortium", share_response=True)
NOISY = dataclasses.replace(SIGNED, noised=True, max_epsilon=10.0)


def method(**settings: Any) -> AssistedGLM:
    return AssistedGLM(**{"family": "normal", "response": "share", "exchange": "turns", **settings})


# --------------------------------------------------------------------------- who saw what


def leaves(value: Any) -> Iterator[np.ndarray]:
    """All arrays and numbers in something nested."""
    if isinstance(value, Released):
        yield from leaves(value.value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from leaves(getattr(value, item.name))
    elif isinstance(value, int | float | np.ndarray) and not isinstance(value, bool):
        array = np.asarray(value)
        if array.dtype.kind in "fiu":
            yield array.astype(float)


def records(federation: Federation, site: str) -> list[Any]:
    return [record for _, record in records_of(members(federation)[site].home)]


def seen_by(watched: Federation, site: str) -> list[tuple[str, Any]]:
    """Messages that reached a site, decrypted as it would: (step, message)."""
    engine: Any = watched.engine
    partner_key = members(watched)[site]._partner_key
    rings: dict[str, Keyring] = {}
    for record in records(watched, site):
        keys = record.state.get(KEYS, {})
        if "peers" in keys:
            run = Reply.from_bytes(record.reply).run
            rings[run] = Keyring(keys["private"], partner_key, run, site, keys["peers"])
    found = []
    for (_, to), data in sorted(engine.requests.items()):
        if to == site:
            request = Request.from_bytes(data)
            message = decode_message(request.message)
            ring = rings.get(request.run)
            opened = open_message(message, ring) if ring and _has_sealed(message) else message
            found.append((request.step, opened))
    return found


def _has_sealed(message: Any) -> bool:
    return any(_sealed_items(content) for _, _, content in iterate_fields(message))


def _sealed_items(content: Any) -> list[Sealed]:
    value = getattr(content, "value", content)
    items = value if isinstance(value, tuple) else (value,)
    return [item for item in items if isinstance(item, Sealed)]


def per_person(watched: Federation, site: str, n: int) -> np.ndarray:
    """Everything with one number a person that a site was sent by others, as columns."""
    columns = []
    for step, message in seen_by(watched, site):
        if not step.startswith("align_ids"):
            for array in leaves(message):
                if array.ndim and array.shape[0] == n:
                    columns.append(array.reshape(n, -1))
    return np.hstack(columns) if columns else np.empty((n, 0))


def rank(x: np.ndarray) -> int:
    """Dimensions of the centred columns, each in its own scale."""
    x = x - x.mean(axis=0)
    length = np.linalg.norm(x, axis=0)
    x = x[:, length > 1e-9 * max(length.max(initial=0.0), 1e-300)]
    if not x.size:
        return 0
    size = np.linalg.svd(x / np.linalg.norm(x, axis=0), compute_uv=False)
    return int((size > 1e-7).sum())


def recovered(x: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Share of each centred column that lies in the span of what is known."""
    known = known - known.mean(axis=0)
    known = known[:, np.linalg.norm(known, axis=0) > 0]
    left, size, _ = np.linalg.svd(known / np.linalg.norm(known, axis=0), full_matrices=False)
    basis = left[:, size > 1e-7]
    x = x - x.mean(axis=0)
    return np.asarray((basis.T @ x) ** 2).sum(axis=0) / (x**2).sum(axis=0)


def sorted_like_the_sites(them: Parties) -> dict[str, np.ndarray]:
    """Columns in the order of the match, which is that of the ids."""
    return {site: x[np.argsort(them.ids, kind="stable")] for site, x in them.blocks.items()}


# --------------------------------------------------------------------------- the coordinator


def marked(seed: int = 0, **settings: Any) -> Parties:
    """Every name of a column says where it comes from."""
    them = parties("normal", shared=1, seed=seed, **settings)
    return them.with_(
        names={
            s: tuple(f"qzcanary{s}{j}" for j in range(len(names)))
            for s, names in them.names.items()
        }
    )


def places(watched: Federation, out: Path, texts: dict[str, str]) -> dict[str, bytes]:
    """Wherever the coordinator could look."""
    engine: Any = watched.engine
    found = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    found |= {f"request {k}": v for k, v in engine.requests.items()}
    found |= {f"reply {k}": v for k, v in engine.replies.items()}
    return found | {name: text.encode() for name, text in texts.items()}


def number_forms(name: str, values: np.ndarray, singles: int = 3) -> list[Canary]:
    """Three numbers in a row as bytes, and single ones as bytes and as text."""
    values = np.asarray(values, dtype=float)
    found = []
    for i in (0, len(values) // 2, len(values) - 3):
        three = values[i : i + 3]
        raw = (three.astype("<f8").tobytes(), three.astype(">f8").tobytes())
        found.append(Canary(name, (*raw, three.astype("<f4").tobytes())))
    for v in values[:singles]:
        if v != round(v, 4):
            texts = (repr(float(v)), f"{v:.9g}", f"{v:.12g}")
            single = (np.array(v, "<f8").tobytes(), *(t.encode() for t in texts))
            found.append(Canary(name, single))
    return found


def found_in(canaries: list[Canary], where: dict[str, bytes]) -> list[str]:
    """Sentences about canaries that were found; each search goes over everything at once first."""
    if not find_canaries(canaries, {"somewhere": b"|".join(where.values())}):
        return []
    return find_canaries(canaries, where)


def secrets_of(watched: Federation, them: Parties) -> list[Canary]:
    """Every vector with one number a person that any site holds in any state, and its columns."""
    vectors: dict[bytes, tuple[str, np.ndarray]] = {}
    n = len(them.ids)
    for site in members(watched):
        for record in records(watched, site):
            state = {k: v for k, v in record.state.items() if k != KEYS}
            for array in leaves(state):
                if array.ndim and array.shape[0] == n:
                    for column in array.reshape(n, -1).T:
                        if len(np.unique(column)) > 20:
                            vectors[column.tobytes()] = (f"a vector of {site}", column)
    found = [c for name, vector in vectors.values() for c in number_forms(name, vector)]
    y = them.y[np.argsort(them.ids)]
    found += number_forms("the response", y[np.isfinite(y)], singles=n)
    for site, x in sorted_like_the_sites(them).items():
        for column in x.T:
            found += number_forms(f"a column of {site}", column, singles=20)
            found += number_forms(f"a centred column of {site}", column - column.mean())
    return found


def text_forms(name: str, text: str) -> Canary:
    """A text as it stands in messages and files, and in arrays of texts."""
    return Canary(name, (text.encode(), text.encode("utf-16-le"), text.encode("utf-32-le")))


NAMES = [text_forms("a name of a column", "qzcanary")]


@contextlib.contextmanager
def listening() -> Iterator[io.StringIO]:
    """Standard output, standard error and the log, in one text."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield text
    finally:
        logging.getLogger().removeHandler(handler)


def watched_run(
    them: Parties, how: AssistedGLM, out: Path, policy: Any = SIGNED, **settings: Any
) -> tuple[Federation, Any, dict[str, bytes]]:
    watched = scripted(them.federation(policy, **settings))
    with listening() as text:
        run = how.run(watched, seed=3, out=out)
        write(run, out / "report.html")
    said = {
        "output": text.getvalue(),
        "summary": run.result.summary() + run.result.to_frame().to_csv() + repr(run.notes),
    }
    return watched, run, places(watched, out, said)


@pytest.mark.parametrize(
    ("how", "policy"),
    [
        (method(), SIGNED),
        (method(), DEFAULT),
        (method(alpha=0.1), SIGNED),
        (method(acceleration="anderson", interval="none"), SIGNED),
        (
            method(acceleration="none", interval="inflated", n_rounds=8),
            SIGNED,
        ),
        (method(interval="paper"), DEFAULT),
        (method(exchange="auto"), SIGNED),
        (method(exchange="auto"), {"a": SIGNED, "b": DEFAULT}),
    ],
    ids=["full", "default", "ridge", "anderson", "plain", "paper", "opened", "fitted"],
)
def test_a_third_party_reads_no_response_no_predictor_and_no_name(
    how: AssistedGLM, policy: Any, tmp_path: Path
) -> None:
    them = marked(n=120)
    watched, _, where = watched_run(them, how, tmp_path / "run", policy, at="third-party")
    canaries = [*secrets_of(watched, them), *NAMES]
    assert len(canaries) > 200
    assert found_in(canaries, where) == []
    assert "journal/log" in where and "report.html" in where and "result.npz" in where


def test_a_third_party_reads_nothing_with_three_parties(tmp_path: Path) -> None:
    them = marked(sizes=(2, 3, 2), n=120)
    watched, _, where = watched_run(them, method(), tmp_path / "run", DEFAULT, at="third-party")
    assert found_in([*secrets_of(watched, them), *NAMES], where) == []


def test_a_third_party_reads_no_masked_response(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    them = marked(n=120)
    them = them.with_(y=np.where(them.known, (them.y > 0).astype(float), np.nan))
    # The mask is drawn anew each time; without a penalty some leave no fit to be found.
    how = method(family="binomial", response="masked", alpha=0.1)
    watched, _, where = watched_run(them, how, tmp_path / "run", NOISY, at="third-party")
    assert found_in([*secrets_of(watched, them), *NAMES], where) == []
    y = np.where(them.known, them.y, np.nan)[np.argsort(them.ids)]
    for array in (y, np.nan_to_num(y)):
        for kind in ("<f8", "<f4", "i1", "<i8"):
            with np.errstate(invalid="ignore"):
                assert found_in([Canary("y", (array.astype(kind).tobytes(),))], where) == []


@pytest.mark.parametrize("granted", [False, True])
def test_names_leave_where_their_owner_says_so(
    granted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third-party coordinator that asks for names, as no honest one does."""
    honest = AssistedGLM._settings
    monkeypatch.setattr(
        AssistedGLM, "_settings", lambda s, ctx: dataclasses.replace(honest(s, ctx), names=True)
    )
    them = marked(n=120)
    policy = dataclasses.replace(SIGNED, share_names=granted)
    _, run, where = watched_run(them, method(), tmp_path / "run", policy, at="third-party")
    assert bool(found_in(NAMES, where)) == granted
    assert (run.result.own_coefficients["name"][0] == INTERCEPT) == granted
    assert any("share_names = true" in note for note in run.notes) != granted


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """Negative control: in the sites' own homes all of it is found."""
    them = marked(n=120)
    watched, _, _ = watched_run(them, method(), tmp_path / "run", at="third-party")
    home: Any = members(watched)["a"].home
    own = {str(parts): home.files[parts] for parts in record_files(home)}
    canaries = secrets_of(watched, them)
    response = [c for c in canaries if c.name.startswith("the response")]
    assert found_in(response, own) != []
    predictors = [c for c in canaries if c.name == "a vector of a"]
    assert found_in(predictors, own) != []
    outputs = {name: home.read_output(*key) for key in _files(home) for name in [str(key)]}
    assert found_in(NAMES, outputs) != []


def _files(home: Any) -> list[tuple[str, str]]:
    return [(run, name) for run in home.runs() for name in home.output_names(run)]


@pytest.mark.parametrize("at", ["third-party", "site:a"])
def test_the_initiator_as_coordinator_reads_no_name_of_a_partner(at: str, tmp_path: Path) -> None:
    """And a partner none of the initiator's, in whatever is sent to it."""
    them = marked(sizes=(2, 3, 2), n=120)
    watched, _, where = watched_run(them, method(), tmp_path / "run", at=at)
    for partner in ("b", "c"):
        theirs = text_forms("a partner's name", f"qzcanary{partner}")
        assert found_in([theirs], where) == []
        engine: Any = watched.engine
        sent = {str(k): d for k, d in engine.requests.items() if k[1] == partner}
        opened = {step: repr(m).encode() for step, m in seen_by(watched, partner)}
        assert found_in(NAMES, sent | opened) == []
    # The initiator's own names are its own coordinator's business.
    result = {k: v for k, v in where.items() if k.startswith("result")}
    assert bool(found_in(NAMES, result)) == (at == "site:a")


def test_what_is_for_one_site_only_crosses_sealed_and_to_that_site(tmp_path: Path) -> None:
    them = parties("normal", sizes=(2, 3, 2), n=120)
    watched, run, _ = watched_run(them, method(), tmp_path / "run", DEFAULT, at="third-party")
    engine: Any = watched.engine
    n_sealed = 0
    for (_, site), data in engine.replies.items():
        reply = Reply.from_bytes(data)
        if reply.status != "reply":
            continue
        for name, spec, content in iterate_fields(decode_message(reply.message)):
            items = _sealed_items(content)
            n_sealed += len(items)
            if spec.for_role and spec.disclosure is not Disclosure.PUBLIC:
                assert items, f"{reply.step}.{name} crossed open"
            for item in items:
                assert item.sender == site
                role = "initiator" if item.recipient == "a" else "partner"
                assert spec.audience == role
    assert n_sealed > 20
    # A value for each person is for a site's eyes, ids' hashes for the match excepted.
    for step in steps_of(AssistedGLM).values():
        if step.name.startswith("align_ids"):
            continue
        for name, spec in message_type(step.reply).fields.items():
            if spec.disclosure is Disclosure.PER_RECORD:
                assert spec.for_role, f"{step.name}.{name}"
    shapes = {
        (x.step, x.field): x.shape
        for x in run.transcript
        if x.direction == "from-site" and x.disclosure in ("per-record", "noised")
    }
    assert {k for k, v in shapes.items() if v != "sealed"} <= {("align_ids.hash", "hashes")}


@pytest.mark.parametrize(
    ("preparation", "spoil"),
    [
        (Preparation(), "gap"),
        (Preparation(categorical="treatment"), "level"),
        (Preparation(), "text"),
        (Preparation(), "no column"),
        (Preparation(), "infinite"),
    ],
)
@pytest.mark.parametrize("site", ["a", "b"])
def test_refusals_name_no_column_to_others(
    preparation: Preparation, spoil: str, site: str, tmp_path: Path
) -> None:
    them = marked(n=100)
    frames = them.frames()
    name = them.names[site][1]
    if spoil == "gap":
        frames[site].loc[5, name] = np.nan
    elif spoil == "infinite":
        frames[site].loc[5, name] = np.inf
    elif spoil == "text":
        frames[site][name] = "qzcanarytext"
    elif spoil == "no column":
        frames[site] = frames[site].drop(columns=[name])
    extra = {}
    if spoil == "level":
        frames[site][name] = ["qzcanaryhigh"] * (len(frames[site]) - 1) + ["qzcanaryodd"]
        extra = {site: {"levels": {name: ("qzcanaryhigh", "qzcanarylow")}}}
    federation = scripted(
        Federation.local(
            frames,
            columns=them.columns(**extra),
            policy=SIGNED,
            preparation=preparation,
            at="third-party",
        )
    )
    out = tmp_path / "run"
    with listening() as text, pytest.raises(ConsilienceError) as caught:
        method().run(federation, seed=1, out=out)
    where = places(federation, out, {"output": text.getvalue(), "error": str(caught.value)})
    assert found_in(NAMES, where) == []
    # The site's own people are told which column it is.
    logs = repr(federation.log(site)) if hasattr(federation.engine, "members") else ""
    assert "qzcanary" in logs


# --------------------------------------------------------------------------- the partner


def states(federation: Federation, site: str, key: str) -> list[np.ndarray]:
    return [np.asarray(r.state[key]) for r in records(federation, site) if key in r.state]


@pytest.mark.parametrize("at", ["third-party", "site:a"])
def test_no_response_leaves_without_the_initiators_consent(at: str) -> None:
    """The partners' own consent changes nothing."""
    them = parties("normal", n=100)
    signed = Policy(preset="consortium", max_revealed_rank="full")
    assert not signed.share_response
    watched = scripted(them.federation({"a": signed, "b": SIGNED}, at=at))
    with pytest.raises(QuorumError, match=r"a refused: .*the response of each record"):
        method().run(watched, seed=1)
    assert states(watched, "b", "y") == []
    assert per_person(watched, "b", 100).shape[1] == 0
    engine: Any = watched.engine
    steps = {Request.from_bytes(d).step for (_, s), d in engine.requests.items() if s == "b"}
    assert steps <= {"opening.read", "align_ids.hash", "align_ids.match", "offer"}


def test_a_masked_response_needs_consent_for_noise_and_a_budget() -> None:
    pytest.importorskip("opendp")
    them = parties(n=600)
    how = AssistedGLM(response="masked", flip=0.2, exchange="turns")
    without = dataclasses.replace(SIGNED, noised=False)
    for policy in (without, dataclasses.replace(NOISY, max_epsilon=1.0)):
        watched = scripted(them.federation({"a": policy, "b": SIGNED}))
        with pytest.raises(QuorumError, match="a refused"):
            how.run(watched, seed=1)
        assert states(watched, "b", "y") == []
    # log(.8 / .2) = 1.39 is within 1.4, and share_response is not needed for it.
    masked_only = dataclasses.replace(NOISY, share_response=False, max_epsilon=1.4)
    run = how.run(them.federation({"a": masked_only, "b": SIGNED}), seed=1)
    assert run.result.flip == 0.2


def test_a_partner_gets_the_response_of_training_rows_only() -> None:
    them = parties("normal", n=120, n_new=10)
    watched = scripted(them.federation())
    run = method(holdout=0.25).run(watched, seed=1)
    held = them.values(run, "a", "held_out").astype(bool)
    (given,) = (m.response.value for step, m in seen_by(watched, "b") if step == "receive")
    np.testing.assert_array_equal(np.isnan(given), ~them.known | held)
    used = np.isfinite(given)
    np.testing.assert_array_equal(given[used], them.y[used])


def test_a_partner_under_a_mask_never_has_the_response() -> None:
    pytest.importorskip("opendp")
    them = parties(n=400)
    watched = scripted(them.federation(NOISY))
    AssistedGLM(response="masked", flip=0.25, holdout=0.0, exchange="turns").run(watched, seed=1)
    (given,) = (m.response.value for s, m in seen_by(watched, "b") if s == "receive_masked")
    known = them.known
    share = (given[known] != them.y[known]).mean()
    # 388 flips with probability .25: standard error .022
    assert 0.16 < share < 0.34
    for y in states(watched, "b", "y"):
        assert (y[known] != them.y[known]).mean() == share
    for step, message in seen_by(watched, "b"):
        for array in leaves(message):
            if array.shape == (400,) and step != "receive_masked":
                finite = np.nan_to_num(array[known])
                assert abs(np.corrcoef(finite, them.y[known])[0, 1]) < 0.9, step


@pytest.mark.parametrize(
    "how",
    [
        method(),
        method(acceleration="anderson"),
        method(alpha=0.05),
        method(interval="paper"),
        method(interval="inflated", acceleration="none"),
    ],
    ids=["span", "anderson", "ridge", "paper", "inflated"],
)
@pytest.mark.parametrize("policy", [SIGNED, DEFAULT], ids=["full", "default"])
def test_no_party_gets_anothers_matrix_or_covariance(how: AssistedGLM, policy: Policy) -> None:
    """What a party is sent spans as many directions as the other's ledger says, and not a column.

    At the default policy a matrix of as many columns cannot be there; where all directions may be
    known, no message is the matrix itself, and no small array is its covariance.
    """
    them = parties("normal", n=150, sizes=(5, 5), seed=31)
    watched = scripted(them.federation(policy))
    run = how.run(watched, seed=1)
    blocks = sorted_like_the_sites(them)
    y = np.nan_to_num(np.where(them.known, them.y, 0.0)[np.argsort(them.ids)])
    for site, other in (("a", "b"), ("b", "a")):
        k, r = run.result.revealed[other]
        assert r == 5 and k <= (5 if policy is SIGNED else 4)
        x = blocks[other]
        seen = per_person(watched, site, 150)
        seen = seen[:, np.isfinite(seen).all(axis=0)]
        if site == "b":
            # The response is known to b by consent; what is left is the initiator's part.
            basis = np.column_stack([blocks["b"], y, np.ones(150)])
        else:
            basis = np.column_stack([blocks["a"], np.ones(150)])
        off = seen - basis @ np.linalg.lstsq(basis, seen, rcond=None)[0]
        big = np.linalg.norm(off, axis=0) > 1e-7 * np.linalg.norm(seen, axis=0)
        # variances of rows are no combination of columns: they count as all of them
        more = site == "a" and k == r and how.interval in ("paper", "inflated")
        assert rank(off[:, big]) <= k + more
        if policy is DEFAULT:
            assert (recovered(x, np.column_stack([seen, basis])) < 1 - 1e-4).all()
        grams = [x.T @ x, np.cov(x.T), np.corrcoef(x.T), np.linalg.inv(np.cov(x.T))]
        centred = x - x.mean(axis=0)
        grams += [centred.T @ centred, np.linalg.inv(centred.T @ centred)]
        small = [a for _, m in seen_by(watched, site) for a in leaves(m)]
        for column in (*x.T, *centred.T):
            assert not any(a.shape == (150,) and np.allclose(a, column) for a in small)
            assert not any(np.allclose(seen[:, j], column) for j in range(seen.shape[1]))
        for gram in grams:
            diagonal = np.sort(np.diag(gram))
            for a in small:
                if a.ndim == 2 and a.shape == (5, 5):
                    assert not np.allclose(np.sort(np.diag(a)), diagonal, rtol=1e-4)
                if a.shape == (5,):
                    assert not np.allclose(np.sort(a), diagonal, rtol=1e-4)


# --------------------------------------------------------------------------- the ledger


def known_of(federation: Federation, site: str) -> int:
    one = members(federation)[site]
    ledger = one.home.ledger(one.policy.data_id)
    return int(RevealedRank.from_ledger(ledger).directions.shape[1])


def other_response(them: Parties, seed: int) -> Parties:
    rng = np.random.default_rng(seed)
    x = np.column_stack(list(them.blocks.values()))
    return them.with_(y=x @ rng.normal(size=x.shape[1]) + rng.normal(size=len(x)))


@pytest.mark.parametrize("again", [{}, {"preparation": Preparation(standardize="site")}])
def test_two_runs_together_stay_within_the_default_limit(again: dict[str, Any]) -> None:
    """A second response asks for other directions: both runs together reveal r - 1 at most."""
    them = parties("normal", n=150, sizes=(5, 5), seed=32, n_new=0)
    first = scripted(them.federation(DEFAULT))
    # One round: a part of what may be known.
    run = method(n_rounds=1, interval="none").run(first, seed=1)
    assert run.result.revealed["b"] == (1, 5)
    assert known_of(first, "b") == 1
    second_them = other_response(them, 7)
    second = second_them.federation(DEFAULT, **again)
    for name, site in members(second).items():
        site.home = members(first)[name].home
        site._partner_key = members(first)[name]._partner_key
    second = scripted(second)
    run = method(tol=1e-12).run(second, seed=2)
    assert run.result.revealed["b"][0] <= 4
    assert known_of(second, "b") == run.result.revealed["b"][0]
    assert known_of(second, "a") <= 4
    assert run.result.stopped == "rank"
    both = np.column_stack([per_person(w, "a", 150) for w in (first, second)])
    x = np.column_stack([them.blocks["a"], np.ones(150)])
    off = both - x @ np.linalg.lstsq(x, both, rcond=None)[0]
    big = np.linalg.norm(off, axis=0) > 1e-7 * np.linalg.norm(both, axis=0)
    assert rank(off[:, big]) <= 4
    last = [t for t in run.transcript if t.site == "b" and t.revealed][-1]
    assert last.revealed == f"{run.result.revealed['b'][0]} of 5"


def test_a_sketch_counts_with_the_training() -> None:
    them = parties("normal", n=150, sizes=(3, 5), seed=33, n_new=0)
    federation = them.federation(DEFAULT)
    tested = AssistanceTest(family="normal", n_directions=3).run(federation, seed=1)
    assert tested.result.revealed["b"] == 3
    run = method(tol=1e-12).run(federation, seed=2)
    assert run.result.stopped == "rank"
    assert run.result.revealed["b"] == (4, 5)
    assert run.result.rounds == 1
    again = method(tol=1e-12).run(federation, seed=3)
    # The same question for the same rows would say the same; with other held-out rows it is a new
    # direction, and none is left.
    assert again.result.revealed["b"] == (4, 5)
    assert known_of(federation, "b") == 4


def test_the_same_run_again_reveals_nothing_more() -> None:
    them = parties("normal", n=150, sizes=(3, 4), seed=34)
    federation = them.federation(SIGNED)
    for seed in (1, 1, 2):
        run = method(holdout=0.0).run(federation, seed=seed)
        assert run.result.revealed == {"a": (3, 3), "b": (4, 4)}
        assert known_of(federation, "a") == 3 and known_of(federation, "b") == 4
