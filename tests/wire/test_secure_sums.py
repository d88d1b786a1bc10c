"""Masked sums: numbers, shares, and the exchange between sites, whoever carries it."""

from __future__ import annotations

import contextlib
import itertools
from fractions import Fraction

import numpy as np
import pytest

from consilience.exceptions import WireError
from consilience.wire import secure_sums as wire
from consilience.wire.codec import digest, pack
from tests.reference import secure_sums as textbook

RUN = "masked-sums"


def limbs_of(residues: list[int]) -> np.ndarray:
    of = [[(r >> 64 * j) & (2**64 - 1) for j in range(wire.LIMBS)] for r in residues]
    return np.array(of, dtype=np.uint64)


def residues_of(limbs: np.ndarray) -> list[int]:
    return [sum(int(limb) << 64 * j for j, limb in enumerate(one)) for one in limbs]


# ------------------------------------------------------------------------------ numbers


NUMBERS = [
    *(sign * size for sign in (1, -1) for size in (0.0, 1.0, 0.1, 2.0**-80, 1e-30, 2.0**80)),
    *(np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25) * 1e-10),
    2.0**50 - 2.0**-3,
    -(2.0**49) - 2.0**-3,
    1 - 2.0**-53,
]
LARGE = [
    *(sign * 2.0**k * (1 + 2.0**-52) for sign in (1, -1) for k in range(80, 180, 3)),
    *(1.1 * 2.0**k for k in range(110, 116)),
    np.finfo(float).max,
    np.finfo(float).tiny,
    5e-324,
]


def test_fixed_point_is_the_textbooks() -> None:
    every = [*NUMBERS, *LARGE]
    limbs = wire.encoded(np.array(every))
    assert residues_of(limbs) == [textbook.fixed_point(x) for x in every]
    back = wire.decoded(limbs[: len(NUMBERS)])
    for x, value in zip(NUMBERS, back, strict=True):
        # Cut to the resolution, and rounded once to a number of 53 bits.
        assert abs(Fraction(value) - Fraction(x)) <= Fraction(1, 1 << 80) + abs(Fraction(x)) / 2**52


def test_sums_are_those_of_whole_numbers() -> None:
    rng = np.random.default_rng(1)
    drawn = [int(rng.integers(1 << 62)) * int(rng.integers(1 << 62)) * 17 for _ in range(40)]
    edges = (1, 1 << 64, (1 << 64) - 1, 1 << 127, 1 << 128, (1 << 128) - 1, 1 << 191)
    some = [0, textbook.MODULUS - 1, *edges, *(r << 64 for r in drawn[::4]), *drawn]
    some = [r % textbook.MODULUS for r in some]
    for one, other in itertools.product(some, repeat=2):
        found = wire.added(limbs_of([one]), limbs_of([other]))
        assert residues_of(found) == [(one + other) % textbook.MODULUS]
        terms = [(limbs_of([one]), True), (limbs_of([other]), True), (limbs_of([one]), False)]
        assert residues_of(wire.summed(terms)) == [other]
        assert residues_of(wire.summed(terms[1:])) == [(other - one) % textbook.MODULUS]
    negatives = residues_of(wire.negated(limbs_of(some)))
    assert negatives == [-r % textbook.MODULUS for r in some]
    for value, r in zip(wire.decoded(limbs_of(some)), some, strict=True):
        true = textbook.number(r)
        assert abs(Fraction(value) - true) <= abs(true) / 2**52


# ------------------------------------------------------------------------------ shares


@pytest.mark.parametrize("holders", [2, 3, 4, 9])
def test_shares_are_values_of_a_polynomial(holders: int) -> None:
    secret, source = b"\xff" * 32, b"s" * 32
    least = wire.threshold(holders)
    shares = wire.split(secret, range(1, holders + 1), source, least)
    points = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    for some in itertools.combinations(points, least):
        chosen = {place: points[place] for place in some}
        assert textbook.interpolated(chosen) == int.from_bytes(secret, "big")
        assert wire.joined({place: shares[place] for place in some}) == secret
    assert wire.joined(dict(itertools.islice(shares.items(), least - 1))) != secret


def test_wrong_shares_are_left_out_where_enough_are_right() -> None:
    secret, source = b"k" * 32, b"s" * 32
    least, proof = wire.threshold(7), wire.commitment(secret)
    shares = wire.split(secret, range(1, 8), source, least)
    spoilt = shares | {1: b"\x00" * 33, 4: b"\x02" * 33}
    assert wire.found(spoilt, least, proof, wire.commitment) == secret
    assert wire.found(spoilt | {2: b"\x01" * 33}, least, proof, wire.commitment) == b""
    assert wire.found(dict(list(shares.items())[: least - 1]), least, proof, wire.commitment) == b""


@pytest.mark.parametrize("spoilt", [(1,), (1, 2), (1, 20, 49), (47, 48, 49)])
def test_wrong_shares_among_many_are_left_out_wherever_they_are(spoilt: tuple[int, ...]) -> None:
    least = wire.threshold(49)
    shares = wire.split(b"k" * 32, range(1, 50), b"s" * 32, least)
    shares |= {place: bytes(33) for place in spoilt}
    assert wire.found(shares, least, wire.commitment(b"k" * 32), wire.commitment) == b"k" * 32


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8])
def test_no_way_to_tell_sites_different_things_opens_what_one_of_them_gave(n: int) -> None:
    """Its own mask needs holders who are told that it gave; its other masks such who are not."""
    holders = [f"h{i}" for i in range(n - 1)]
    least = wire.threshold(len(holders))
    # A third of the holders, and less, may tell the coordinator all that they have.
    for bad in range(n):
        honest = holders[bad:]
        both = any(
            len(gave) + bad >= least and len(gone) + bad >= least
            for gave, gone in textbook.splits(honest)
        )
        assert both == (2 * (least - bad) <= len(honest))
        if 3 * bad < len(holders):
            assert not both


@pytest.mark.parametrize("n", range(3, wire.COMPLETE + 1))
def test_no_lies_to_openers_open_what_fewer_than_two_gave(n: int) -> None:
    """Each opener may be told of other sites that gave, in this sum and in those before."""
    neighbours = n - 1
    least = wire.threshold(neighbours)
    fewest = {bad: textbook.fewest_in_a_total(n, least, bad) for bad in range(n - 1)}
    assert fewest[0] >= wire.LEAST_SITES
    assert all(found >= 2 for bad, found in fewest.items() if 3 * bad < neighbours)
    # With three contributions enough, as with no rule, single sites could be told apart.
    assert n < 7 or textbook.fewest_in_a_total(n, least, 0, given=2) < 2


@pytest.mark.parametrize("bad", [1, 2])
def test_a_coordinator_that_lies_needs_more_than_one_site_to_help_it(bad: int) -> None:
    """It tells one honest neighbour that a site gave, another one that it is gone."""
    world = World(5)
    victim, gave, gone, *others = world.sites
    helpers = others[len(others) - bad :]
    given = {s: p.mask(np.array([1.5, -2.0]), world.asked()) for s, p in world.parties.items()}
    without = {s: one for s, one in given.items() if s != victim}
    own: dict[int, bytes] = {}
    key: dict[int, bytes] = {}
    for site in (gave, gone, *helpers):
        place, party = wire.place_of(site, world.sites), world.parties[site]
        if site != gone:  # helpers answer both
            own[place] = party.open(world.asked(), *world.messages(given, site))[0][victim]
        if site != gave:
            key[place] = party.open(world.asked(), *world.messages(without, site))[1][victim]
    least = wire.threshold(4)
    pad = wire.found(own, least, given[victim].commitment, wire.commitment)
    private = wire.found(key, least, world.current[victim], wire.public)
    if bad == 1:
        assert not pad and not private
        return
    # Two of four neighbours are a third and more: the proof says that this is enough.
    terms = [(given[victim].limbs, True), (wire.stream(pad, 2), False)]
    for peer in world.parties[victim].around:
        pair = wire.pair_of(RUN, victim, peer, 0)
        shared = wire.pair_key(private, world.current[peer], pair, world.asked())
        terms.append((wire.stream(shared, 2), not victim < peer))
    assert list(wire.decoded(wire.summed(terms))) == [1.5, -2.0]


def test_neighbours_are_mutual_and_equally_many() -> None:
    few = [f"s{i}" for i in range(wire.COMPLETE)]
    assert all(len(wire.neighbours(s, few, "seed")) == len(few) - 1 for s in few)
    many = [f"s{i}" for i in range(wire.COMPLETE + 21)]
    around = {s: wire.neighbours(s, many, "seed") for s in many}
    assert {len(set(found)) for found in around.values()} == {wire.COMPLETE - 2}
    assert all(s in around[o] and s not in around[s] for s in many for o in around[s])
    assert around != {s: wire.neighbours(s, many, "another") for s in many}


# ------------------------------------------------------------------------------ the exchange


class World:
    """Sites that exchange sums, and what the coordinator has of them."""

    def __init__(self, n: int) -> None:
        names = [f"s{i:02d}" for i in range(n)]
        raw = {s: wire.Party(RUN, s, bytes([i + 1]) * 32) for i, s in enumerate(names)}
        introduced = {s: party.introduction() for s, party in raw.items()}
        self.parties = {s: party.met(introduced) for s, party in raw.items()}
        self.sites = tuple(names)
        self.graph = wire.graph_seed(introduced)
        self.current = {s: keys[32:] for s, keys in introduced.items()}
        self.earlier = {s: ("", party.first_blobs()) for s, party in self.parties.items()}
        self.roster = self.sites
        self.epoch = 0

    def asked(self, word: bytes = b"") -> str:
        return wire.question_digest("step", self.epoch, word)

    def messages(self, given: dict[str, wire.Masked], site: str) -> tuple[dict, dict, dict]:
        around = self.parties[site].around
        return (
            {s: one.next_key for s, one in given.items()},
            {s: given[s].blobs.get(site, b"") for s in around if s in given},
            {s: (self.earlier[s][0], self.earlier[s][1][site]) for s in around if s not in given},
        )

    def total(self, values: dict[str, list[float]], silent: set[str]) -> np.ndarray:
        """Total of those who give `values`; the silent ones are lost before the opening."""
        asked = self.asked()
        given = {s: self.parties[s].mask(np.array(x), asked) for s, x in values.items()}
        own: dict[str, dict[int, bytes]] = {s: {} for s in given}
        keys: dict[str, dict[int, bytes]] = {s: {} for s in self.roster if s not in given}
        for site in given:
            if site in silent:
                continue
            a, b, self.parties[site] = self.parties[site].open(asked, *self.messages(given, site))
            place = wire.place_of(site, self.sites)
            for other, share in a.items():
                own[other][place] = share
            for other, share in b.items():
                keys[other][place] = share
        pads = {
            s: wire.found(own[s], self.least(s), given[s].commitment, wire.commitment)
            for s in given
        }
        lost = {s: wire.found(keys[s], self.least(s), self.current[s], wire.public) for s in keys}
        assert all(pads.values()) and all(lost.values())
        numbers = {s: one.limbs for s, one in given.items()}
        graph = (self.graph, self.sites)
        found = wire.unmasked(numbers, pads, lost, self.current, graph, RUN, self.epoch, asked)
        self.roster, self.epoch = tuple(given), self.epoch + 1
        self.current = {s: one.next_key for s, one in given.items()}
        self.earlier = {s: (asked, one.blobs) for s, one in given.items()}
        return wire.decoded(found)

    def least(self, site: str) -> int:
        return wire.threshold(len(wire.neighbours(site, self.sites, self.graph)))


def drawn(sites: tuple[str, ...], seed: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {s: list(rng.normal(size=4) * [1e-9, 1.0, 1e6, 1e14]) for s in sites}


def exact(values: dict[str, list[float]]) -> list[float]:
    columns = zip(*values.values(), strict=True)
    return [
        float(textbook.number(sum(map(textbook.fixed_point, column)) % textbook.MODULUS))
        for column in columns
    ]


# Who is lost before giving, and before opening, sum by sum.
LOSSES = {
    "nobody": (3, [((), ()), ((), ()), ((), ())]),
    "before giving": (7, [((1,), ()), ((), ()), ((3,), ())]),
    "before opening": (7, [((), (4,)), ((), ()), ((), (0,))]),
    "one each": (7, [((1,), (2,)), ((), ())]),
    "on a sparse graph": (53, [((1, 9), (2,)), ((30,), ())]),
}


@pytest.mark.parametrize("case", LOSSES)
def test_totals_are_exact_whoever_is_lost(case: str) -> None:
    n, losses = LOSSES[case]
    world = World(n)
    lost: set[str] = set()
    for number, (before, after) in enumerate(losses):
        lost |= {world.sites[i] for i in before}
        values = drawn(tuple(s for s in world.roster if s not in lost), number)
        silent = {world.sites[i] for i in after}
        assert list(world.total(values, silent)) == exact(values)
        lost |= silent


def test_an_answer_that_is_repeated_has_the_same_bytes() -> None:
    world = World(3)
    party = world.parties["s01"]
    one, again = (party.mask(np.arange(3.0), world.asked()) for _ in range(2))
    assert (one.limbs == again.limbs).all()
    assert (one.commitment, one.next_key, one.blobs) == (
        again.commitment,
        again.next_key,
        again.blobs,
    )
    for values, word in ((np.arange(3.0), b"another question"), (np.arange(3.0) + 1, b"")):
        other = party.mask(values, world.asked(word))
        assert one.commitment != other.commitment
        # Not even their difference is known.
        apart = wire.decoded(wire.added(other.limbs, wire.negated(one.limbs)))
        assert (np.abs(apart) > 2.0**30).all()


def own_key(party: wire.Party, asked: str, values: np.ndarray) -> bytes:
    """Key of a site's own mask for the first sum."""
    return party._secret("own", 0, asked, digest(wire.encoded(values).tobytes()))


def test_masks_of_sites_that_were_asked_different_things_do_not_cancel() -> None:
    world = World(3)
    given = {
        s: party.mask(np.zeros(2), world.asked(b"other" if s == "s02" else b""))
        for s, party in world.parties.items()
    }
    pads = {
        s: own_key(party, world.asked(b"other" if s == "s02" else b""), np.zeros(2))
        for s, party in world.parties.items()
    }
    assert all(wire.commitment(pads[s]) == given[s].commitment for s in given)
    numbers = {s: one.limbs for s, one in given.items()}
    graph = (world.graph, world.sites)
    found = wire.unmasked(numbers, pads, {}, world.current, graph, RUN, 0, world.asked())
    assert (np.abs(wire.decoded(found)) > 1).all()


def given_by_all(world: World) -> dict[str, wire.Masked]:
    return {s: p.mask(np.ones(2), world.asked()) for s, p in world.parties.items()}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda k, b, e: (dict(list(k.items())[:2]), b, e), "at least"),
        (lambda k, b, e: (k | {"s09": b"\0" * 32}, b, e), "other sites"),
        (lambda k, b, e: (k | {"s00": b"\0" * 32}, b, e), "other sites"),
        (lambda k, b, e: (k | {"s01": b"\0" * 32}, b, e), "has not sealed"),
        (lambda k, b, e: (k, b | {"s01": b["s02"]}, e), "has not sealed"),
        (lambda k, b, e: (k, {}, e), "neighbours"),
        (lambda k, b, e: (k, b, {"s01": ("", b["s01"])}), "neighbours"),
        (lambda k, b, e: (k, b | {"s01": b["s01"][:-1]}, e), "has not sealed"),
    ],
)
def test_a_site_opens_nothing_for_a_coordinator_that_lies(spoil: object, says: str) -> None:
    world = World(4)
    given = given_by_all(world)
    spoilt = spoil(*world.messages(given, "s00"))  # type: ignore[operator]
    with pytest.raises(WireError, match=says):
        world.parties["s00"].open(world.asked(), *spoilt)


def shares_of(
    world: World, given: dict[str, wire.Masked], told: dict[str, set[str]], asked: str
) -> tuple[dict[str, dict[int, bytes]], dict[str, dict[int, bytes]]]:
    """Shares that sites give which are each told of other sites that gave; those go on."""
    own: dict[str, dict[int, bytes]] = {s: {} for s in world.sites}
    keys: dict[str, dict[int, bytes]] = {s: {} for s in world.sites}
    for site, present in told.items():
        place = wire.place_of(site, world.sites)
        some = {s: given[s] for s in present}
        with contextlib.suppress(WireError):
            a, b, after = world.parties[site].open(asked, *world.messages(some, site))
            world.parties[site] = after
            for found, shares in ((own, a), (keys, b)):
                for other, share in shares.items():
                    found[other][place] = share
    return own, keys


@pytest.mark.parametrize("told_of", range(3, 8))
@pytest.mark.parametrize("few", [1, 2])
@pytest.mark.parametrize("n", [4, 5, 7])
def test_openers_that_are_told_different_things_open_no_part(
    n: int, few: int, told_of: int
) -> None:
    """All say that the wanted ones gave, and of each other site enough say that it did not."""
    world = World(n)
    given = given_by_all(world)
    wanted = world.sites[:few]
    still = dict.fromkeys(world.sites[few:], world.least(world.sites[0]))
    told = {}
    for site in world.sites:
        present = {site, *wanted}
        for other in sorted(set(still) - present, key=lambda s: (still[s], s)):
            if len(present) < min(told_of, n):
                present.add(other)
        told[site] = present
        still |= {s: count - 1 for s, count in still.items() if s not in present}
    own, keys = shares_of(world, given, told, world.asked())
    least = world.least(world.sites[0])
    pads = [wire.found(own[s], least, given[s].commitment, wire.commitment) for s in wanted]
    lost = [wire.found(keys[s], least, world.current[s], wire.public) for s in still]
    assert not (all(pads) and all(lost))


def told_of_few(left: int) -> tuple[World, dict[str, wire.Masked], set[str]]:
    """Seven sites after a sum of which some have heard that only they gave."""
    world = World(7)
    given, few = given_by_all(world), set(world.sites[:left])
    told = {s: few if s in few else set(world.sites) for s in world.sites}
    shares_of(world, given, told, world.asked())
    return world, given, few


@pytest.mark.parametrize("left", [3, 4])
def test_sites_that_hear_of_fewer_than_two_thirds_of_the_others_do_not_go_on(left: int) -> None:
    world, _, few = told_of_few(left)
    assert {s for s, party in world.parties.items() if party.epoch == 0} == few


@pytest.mark.parametrize("left", [5, 6])
def test_sites_that_were_told_of_different_sites_open_no_part_of_a_later_sum(left: int) -> None:
    """For some only a few are left, who then give back its own mask, and the others its key."""
    world, given, few = told_of_few(left)
    wanted, asked = world.sites[0], world.asked()
    world.earlier = {s: (asked, one.blobs) for s, one in given.items()}
    world.epoch, first = 1, {s: one.next_key for s, one in given.items()}
    again = {s: party.mask(np.ones(2), world.asked()) for s, party in world.parties.items()}
    told = {s: few if s in few else set(again) - {wanted} for s in again}
    own, keys = shares_of(world, again, told, world.asked())
    some = range(2, world.least(wanted) + 1)
    proof = again[wanted].commitment
    assert any(wire.found(own[wanted], k, proof, wire.commitment) for k in some)
    assert not any(wire.found(keys[wanted], k, first[wanted], wire.public) for k in some)


@pytest.mark.parametrize("sealed", [[], [bytes(33)], [bytes(33), bytes(32)], 5, ["a", "b"]])
def test_what_a_neighbour_seals_in_place_of_shares_is_refused_and_it_is_named(
    sealed: object,
) -> None:
    world = World(4)
    given = given_by_all(world)
    keys, blobs, earlier = world.messages(given, "s00")
    liar, asked = world.parties["s01"], world.asked()
    bound = liar._bound("s01", "s00", asked, keys["s01"])
    blob = liar._cipher("s00", "s01", "s00").encrypt(pack(sealed), [bound])
    with pytest.raises(WireError, match="of another form, from site 's01'"):
        world.parties["s00"].open(asked, keys, blobs | {"s01": blob}, earlier)


def test_shares_of_another_sum_are_none_of_this_one() -> None:
    world = World(4)
    given = given_by_all(world)
    with pytest.raises(WireError, match="has not sealed"):
        world.parties["s00"].open(world.asked(b"other"), *world.messages(given, "s00"))


def test_a_site_meets_nobody_under_another_name_or_key() -> None:
    raw = {s: wire.Party(RUN, s, s.encode() * 16) for s in ("s1", "s2", "s3")}
    keys = {s: party.introduction() for s, party in raw.items()}
    raw["s1"].met(keys)
    for wrong, says in (
        ({s: keys[s] for s in ("s1", "s2")}, "3 to"),
        (keys | {"s1": keys["s2"]}, "somebody else"),
        (keys | {"s2": keys["s3"]}, "same keys"),
        (keys | {"s2": b"short"}, "without its keys"),
    ):
        with pytest.raises(WireError, match=says):
            raw["s1"].met(wrong)


# ------------------------------------------------------------------------------ what is seen


@pytest.mark.parametrize("against", [(), ("a",)])
def test_what_is_seen_depends_on_the_values_by_their_total_alone(against: tuple[str, ...]) -> None:
    """Every choice of the masks in a group of three numbers, for every way to the same total."""
    q = 3
    seen: dict[object, list[object]] = {}
    for values in itertools.product(range(q), repeat=3):
        given = dict(zip("abc", values, strict=True))
        known = (sum(values) % q, *(given[s] for s in against))
        seen.setdefault(known, []).append(textbook.views(given, q, against))
    for alike in seen.values():
        assert len(alike) > 1 and all(one == alike[0] for one in alike)
    # Another total is seen: a test that could not fail would find all of them alike.
    assert len({frozenset(alike[0].items()) for alike in seen.values()}) == len(seen)


def test_sites_give_what_the_textbook_says() -> None:
    """Values, own masks and those of pairs add up as in the distribution above."""
    world = World(4)
    values = drawn(world.sites, 5)
    asked, cells = world.asked(), 4
    own = {s: own_key(p, asked, np.array(values[s])) for s, p in world.parties.items()}
    pairs = {
        (a, b): wire.pair_key(
            world.parties[a]._secret("masks", 0),
            world.current[b],
            wire.pair_of(RUN, a, b, 0),
            asked,
        )
        for a, b in itertools.combinations(world.sites, 2)
    }
    for cell in range(cells):
        at = lambda key, cell=cell: residues_of(wire.stream(key, cells))[cell]  # noqa: E731
        wanted = textbook.masked(
            {s: textbook.fixed_point(x[cell]) for s, x in values.items()},
            {s: at(key) for s, key in own.items()},
            {pair: at(key) for pair, key in pairs.items()},
            textbook.MODULUS,
        )
        for site, party in world.parties.items():
            given = party.mask(np.array(values[site]), asked).limbs
            assert residues_of(given)[cell] == wanted[site]
