"""The corpus of the coverage-guided search (``make fuzz``) again, and hypothesis on its readers."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.exceptions import WireError
from consilience.wire import codec
from consilience.wire.codec import pack, unpack
from consilience.wire.message import registered
from tests.fuzz import targets
from tools import fuzz_decoder

CORPUS = fuzz_decoder.corpus()
INPUTS = [path.read_bytes() for path in CORPUS]


def test_the_corpus_is_small_and_complete() -> None:
    assert sum(len(data) for data in INPUTS) <= fuzz_decoder.MOST_CORPUS
    assert {targets.NAMES[data[0] % len(targets.NAMES)] for data in INPUTS} == set(targets.NAMES)
    assert all(path.name == fuzz_decoder.hashlib.sha256(data).hexdigest()[:20]
               for path, data in zip(CORPUS, INPUTS, strict=True))  # fmt: skip


def test_the_corpus_is_read() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in INPUTS:
        targets.run_one(data)
    # All readers together stay under 200 MB above what was there (kB on Linux).
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("name", targets.NAMES)
def test_good_inputs_are_good(name: str) -> None:
    """Each reader gets at least one input that it takes: otherwise nothing deep is searched."""
    read, taken = dict(targets.TARGETS)[name], 0
    for data in INPUTS:
        if targets.NAMES[data[0] % len(targets.NAMES)] == name:
            try:
                read(data[1:])
            except targets.ConsilienceError:
                continue
            taken += 1
    assert taken


@pytest.mark.parametrize("name", targets.NAMES)
def test_altered_inputs(name: str) -> None:
    rng = random.Random(name)
    mine = [data for data in INPUTS if targets.NAMES[data[0] % len(targets.NAMES)] == name]
    for _ in range(200):
        data = rng.choice(mine)
        for _ in range(rng.randrange(1, 4)):
            data = targets.altered(data, rng)
        targets.run_one(data)


@given(st.integers(0, len(targets.NAMES) - 1), st.binary(max_size=200))
@settings(max_examples=400)
def test_any_bytes(reader: int, data: bytes) -> None:
    targets.run_one(bytes([reader]) + data)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=16)
    | st.sampled_from(["array", "sealed", "<f8", "|b1", "|O8", "m", "v", "f"])
)
words = st.text(max_size=3) | st.sampled_from(["$", "d", "s", "b", "f", "t", "m", "v", "k", "r"])
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(words, inner, max_size=5)
        | st.fixed_dictionaries(
            {
                "$": st.just("array"),
                "d": st.sampled_from(["<f8", "|b1", "<i2", "<f2", ">f8"]),
                "s": st.lists(st.sampled_from([-1, 0, 1, 2, 1 << 30, 1 << 62]), max_size=9),
                "b": st.sampled_from([b"", bytes(1), bytes(2), bytes(8), bytes(16)]),
            }
        )
    ),
    max_leaves=10,
)


@given(st.sampled_from(["value", "message", "request", "reply", "record", "journal"]), trees)
@settings(max_examples=500)
def test_any_structure(reader: str, tree: object) -> None:
    targets.run_one(targets.chosen(reader, msgpack.packb(tree)))


@given(st.data())
@settings(max_examples=300)
def test_any_content_of_the_declared_fields(data: st.DataObject) -> None:
    """Every message that is registered, with anything in its fields."""
    kinds = {name: kind for name, kind in registered().items() if kind.fields}
    kind = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    fields = {name: data.draw(trees) for name in kind.fields}
    packed = msgpack.packb({"m": kind.name, "v": kind.version, "f": fields})
    targets.run_one(targets.chosen("message", packed))


# --------------------------------------------------------------------------- controls


def test_a_reader_that_fails_otherwise_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the bound on empty arrays numpy's own error comes out, and the search finds it."""
    monkeypatch.setattr(codec, "MAX_EMPTY", 1 << 200)
    monkeypatch.setattr(fuzz_decoder, "BUILD", tmp_path)
    found = fuzz_decoder.search(targets.run_one, targets.altered, 120.0, seed=1)
    assert found is not None
    with pytest.raises(ValueError, match=r"array|reshape"):
        targets.run_one(found.read_bytes())
    monkeypatch.undo()
    targets.run_one(found.read_bytes())


def test_the_search_keeps_what_reaches_new_lines(tmp_path: Path) -> None:
    lines = fuzz_decoder.Lines()
    first = lines.of(targets.run_one, targets.chosen("value", pack({"a": 1})))
    assert first > 10
    assert lines.of(targets.run_one, targets.chosen("value", pack({"a": 1}))) == 0
    assert lines.of(targets.run_one, targets.chosen("value", pack(()))) >= 0


def test_items_are_counted_over_the_whole_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_TOTAL", 100)
    assert unpack(msgpack.packb([[[]] * 40])) == (((),) * 40,)
    with pytest.raises(WireError, match="more than 100 items"):
        unpack(msgpack.packb([[[]] * 10] * 10))
    with pytest.raises(WireError, match="more than 100 items"):
        unpack(msgpack.packb([{"a": 1, "b": 2}] * 25))
