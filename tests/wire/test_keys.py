"""Keys that follow one another: who may say so, and what others have approved by it."""

from __future__ import annotations

import base64
import itertools
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.exceptions import SignatureError, StudyError, WireError
from consilience.wire import keys as keyring
from consilience.wire.keys import KeyList, ListedKey, parties
from consilience.wire.signing import Context, SigningKey, is_endorsed, public_key, unseal

KEYS = [SigningKey.generate() for _ in range(5)]
OLD, NEW, NEXT, OTHER, STRANGER = KEYS
TODAY = date(2026, 11, 21)
A, B, C = (key.public for key in KEYS[:3])


def entry(new: SigningKey, by: SigningKey, **more: object) -> dict[str, object]:
    return {"key": new.public, "endorsement": by.endorse(new.public), **more}


# ------------------------------------------------------------------ endorsements


@given(st.permutations(range(5)))
@settings(max_examples=30, deadline=None)
def test_only_the_old_key_endorses_the_new_one(order: list[int]) -> None:
    old, new, third, *_ = (KEYS[i] for i in order)
    said = old.endorse(new.public)
    assert said == old.endorse(new.public), "the same every time"
    assert is_endorsed(new.public, by=old.public, endorsement=said)
    for public, by in itertools.permutations((old.public, new.public, third.public), 2):
        if (public, by) != (new.public, old.public):
            assert not is_endorsed(public, by=by, endorsement=said)


@given(st.binary(max_size=80))
@settings(max_examples=50, deadline=None)
def test_nothing_else_is_an_endorsement(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert not is_endorsed(B, by=A, endorsement=text)
    assert not is_endorsed(B, by=A, endorsement=text[:-1] + "!")


def test_an_envelope_is_no_endorsement_and_the_other_way_round() -> None:
    """Whoever can have a key sign messages must not be able to have it sign a successor."""
    context = Context("r", 1, 1, "reply", "north", A)
    sealed = OLD.seal(context, B.encode())
    magic = b"consilience-signed-1\n"
    signature = sealed[len(magic) + 32 :][:64]
    assert not is_endorsed(B, by=A, endorsement=base64.b64encode(signature).decode())
    forged = bytearray(sealed)
    forged[len(magic) + 32 :][:64] = base64.b64decode(OLD.endorse(B))
    with pytest.raises((WireError, SignatureError)):
        unseal(bytes(forged[:-1]) + b"x", public=A, context=context)


def test_a_key_does_not_endorse_itself() -> None:
    with pytest.raises(StudyError, match="does not endorse itself"):
        OLD.endorse(A)
    with pytest.raises(StudyError, match="is not a public key"):
        OLD.endorse("ed25519:AAAA")


# ------------------------------------------------------------------ lists in files


def test_what_a_file_may_say() -> None:
    assert KeyList.of(A).publics == (A,)
    assert KeyList.of({"key": A}).publics == (A,)
    assert KeyList.of([A, {"key": B, "until": "2027-01-31"}]).keys[1].until == date(2027, 1, 31)
    assert KeyList.of([A, entry(NEW, OLD), entry(NEXT, NEW)]).publics == (A, B, C)
    read = KeyList.of([A, entry(NEW, OLD)])
    assert KeyList.of(read) is read


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "is empty"),
        (3, "a key is a text"),
        ([A, 3], "a key is a text"),
        ({"until": "2027-01-31"}, "a key is a text"),
        ({"key": A, "till": "2027-01-31"}, "'till' is not known"),
        ({"key": A, "until": "soon"}, "until of a key"),
        ({"key": A, "until": 3}, "until of a key"),
        ({"key": A, "endorsement": 3}, "an endorsement is a text"),
        ("ed25519:AAAA", "is not a public key"),
        ([A, B, A], "listed twice"),
        ([[A], B], "a key is a text"),
        ([entry(NEW, OLD)], "is not by a key listed before it"),
        ([entry(NEW, OLD), A], "is not by a key listed before it"),
        ([A, {"key": B, "endorsement": "AAAA"}], "is not by a key listed before it"),
        ([A, entry(NEW, STRANGER)], "is not by a key listed before it"),
        ([A, {**entry(NEW, OLD), "key": C}], "is not by a key listed before it"),
    ],
)
def test_what_a_file_may_not_say(value: object, reason: str) -> None:
    with pytest.raises(StudyError, match=reason):
        KeyList.of(value)


def test_last_days() -> None:
    keys = KeyList.of([{"key": A, "until": "2026-11-20"}, {"key": B, "until": "2026-11-21"}, C])
    assert keys.ended(A, TODAY) == date(2026, 11, 20)
    assert keys.ended(B, TODAY) is None, "the last day counts"
    assert keys.valid(TODAY) == (B, C)
    keys.require_valid("site 'north'", "the study", TODAY)
    ended = KeyList.of([{"key": A, "until": "2026-11-20"}, {"key": B, "until": "2026-10-01"}])
    with pytest.raises(StudyError, match=r"every key of site 'north' has ended, .* 2026-11-20: "):
        ended.require_valid("site 'north'", "the study", TODAY)


def test_remarks_come_a_month_before_the_end() -> None:
    for until, text in (
        ("2026-11-20", "every key of x has ended: have x make a new one"),
        ("2026-12-21", "the last key of x ends on 2026-12-21: "),
        ("2026-12-22", None),
    ):
        said = KeyList.of({"key": A, "until": until}).remark("x", "y", TODAY)
        assert (said is None) if text is None else (said or "").startswith(text)
    assert KeyList.of([{"key": A, "until": "2026-11-25"}, B]).remark("x", "y", TODAY) is None


@given(
    st.lists(st.sampled_from(range(5)), min_size=1, max_size=5, unique=True),
    st.lists(st.tuples(st.booleans(), st.none() | st.dates()), min_size=5, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_endorsed_keys_and_dates_are_no_part_of_the_identity(
    order: list[int], how: list[tuple[bool, date | None]]
) -> None:
    """The identity is what it was before the endorsed ones came, whatever the dates."""
    value: list[object] = []
    own: list[str] = []
    for position, (index, (is_endorsed_one, until)) in enumerate(zip(order, how, strict=False)):
        table: dict[str, object] = {"key": KEYS[index].public, "until": until}
        if is_endorsed_one and position:
            table = {**entry(KEYS[index], KEYS[order[position - 1]]), "until": until}
        else:
            own.append(KEYS[index].public)
        value.append(table)
    assert KeyList.of(value).identity == (own[0] if len(own) == 1 else own)
    assert KeyList.of(KeyList.of(value).identity).identity == KeyList.of(value).identity


def test_parties_of_a_list_of_coordinators() -> None:
    flat = parties([A, OTHER.public])
    assert [party.publics for party in flat] == [(A,), (OTHER.public,)]
    grouped = parties([[A, B], OTHER.public])
    assert [party.publics for party in grouped] == [(A, B), (OTHER.public,)]
    endorsed = parties([A, OTHER.public, entry(NEW, OLD), entry(NEXT, NEW)])
    assert [party.publics for party in endorsed] == [(A, B, C), (OTHER.public,)]
    assert parties(A)[0].publics == (A,)
    assert parties(endorsed) == endorsed
    assert parties([]) == ()
    for bad in ([A, A], [[A, B], B], [A, entry(NEW, STRANGER)], [[]]):
        with pytest.raises(StudyError):
            parties(bad)


def test_listed_keys_are_values() -> None:
    assert KeyList((ListedKey(A),)) == KeyList.of(A)
    assert hash(KeyList.of([A, B])) == hash(KeyList.of([A, B]))


# ------------------------------------------------------------------ a directory with keys


def listed(old: str, line: str) -> KeyList:
    import tomllib

    return KeyList.of(tomllib.loads(f'k = ["{old}", {line}]')["k"])


def test_rotate_then_retire(tmp_path: Path) -> None:
    OLD.save(tmp_path)
    line = keyring.rotate(tmp_path)
    assert line == keyring.rotate(tmp_path), "one key follows, however often it is asked for"
    assert SigningKey.load(tmp_path).public == A, "the old one signs"
    keys = listed(A, line)
    done = keyring.retire(tmp_path)
    assert (done.old, done.new, done.entry) == (A, keys.publics[1], line)
    assert SigningKey.load(tmp_path).public == keys.publics[1]
    assert (tmp_path / "consilience.pub").read_text().strip() == keys.publics[1]
    assert (tmp_path / "consilience.key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "next").exists()
    assert keyring.retire(tmp_path) == done, "a second time nothing more happens"
    second = keyring.rotate(tmp_path)
    third = keyring.retire(tmp_path)
    assert third.old == done.new and third.entry == second
    assert len((tmp_path / "endorsements.txt").read_text().splitlines()) == 2
    for path in tmp_path.rglob("*"):
        if path.name != "consilience.key":
            assert b"PRIVATE" not in path.read_bytes()


def test_half_a_key_is_made_anew(tmp_path: Path) -> None:
    OLD.save(tmp_path)
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "consilience.key").write_bytes(b"-----BEGIN")
    assert listed(A, keyring.rotate(tmp_path)).publics[0] == A
    keyring.retire(tmp_path)
    assert SigningKey.load(tmp_path).public != A


def test_nothing_follows(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="is not a directory with a key"):
        keyring.rotate(tmp_path / "none")
    with pytest.raises(StudyError, match="there is no key file"):
        keyring.rotate(tmp_path)
    OLD.save(tmp_path)
    with pytest.raises(StudyError, match="no key follows"):
        keyring.retire(tmp_path)
    (tmp_path / "endorsements.txt").write_text(f"{STRANGER.public} {A} AAAA\n")
    with pytest.raises(StudyError, match="no key follows"):
        keyring.retire(tmp_path)


def test_a_process_killed_anywhere_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes a file fails once, in turn; afterwards both steps are repeated."""
    import os

    real = {name: getattr(os, name) for name in ("open", "replace", "unlink", "rmdir")}

    class KilledError(BaseException):
        pass

    for fatal in range(1, 30):
        place = tmp_path / str(fatal)
        OLD.save(place)
        calls = 0

        def counted(name: str, fatal: int = fatal) -> object:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal calls
                writes = name != "open" or int(args[1]) & os.O_CREAT  # type: ignore[call-overload]
                if writes:
                    calls += 1
                    if calls == fatal:
                        raise KilledError
                return real[name](*args, **kwargs)

            return call

        for name in real:
            monkeypatch.setattr(os, name, counted(name))
        was_killed = False
        try:
            keyring.rotate(place)
            keyring.retire(place)
        except KilledError:
            was_killed = True
        monkeypatch.undo()
        now = SigningKey.load(place).public
        if now == A:
            line = keyring.rotate(place)
            done = keyring.retire(place)
        else:
            done = keyring.retire(place)
            line = done.entry
        assert SigningKey.load(place).public == done.new == listed(A, line).publics[1]
        assert (place / "consilience.pub").read_text().strip() == done.new
        assert done.old == A and not (place / "next").exists()
        if not was_killed:
            assert fatal > 6
            return
    raise AssertionError("it never ran through")


def test_keys_of_the_test_are_keys() -> None:
    for key in KEYS:
        public_key(key.public)


def test_the_last_key_decides_about_the_remark() -> None:
    soon, later = date(2026, 12, 1), date(2027, 12, 1)
    one = KeyList((ListedKey(A, soon),))
    assert "ends on 2026-12-01" in str(one.remark("site a", "the file", TODAY))
    both = KeyList((ListedKey(A, soon), ListedKey(B, later)))
    assert both.remark("site a", "the file", TODAY) is None
