"""Masked sums as a textbook has them: whole numbers of any size, one step after the other.

Source: Bonawitz and others, "Practical secure aggregation for privacy-preserving machine learning",
CCS 2017, section 4; Shamir, "How to share a secret", CACM 22 (1979).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

MODULUS = 1 << 192
PRIME = 2**256 + 297


def fixed_point(value: float) -> int:
    """A number as a multiple of 2^-80, cut towards 0, modulo 2^192."""
    scaled = abs(Fraction(value)) * (1 << 80)
    size = scaled.numerator // scaled.denominator
    return (-size if value < 0 else size) % MODULUS


def number(residue: int) -> Fraction:
    """The number that a residue stands for; the upper half is negative."""
    signed = residue - MODULUS if residue >= MODULUS // 2 else residue
    return Fraction(signed, 1 << 80)


def polynomial(coefficients: Sequence[int], at: int) -> int:
    """Value of a polynomial, modulo the prime."""
    return sum(c * at**power for power, c in enumerate(coefficients)) % PRIME


def interpolated(shares: Mapping[int, int]) -> int:
    """Value at 0 of the polynomial through some points, modulo the prime."""
    total = 0
    for i, y in shares.items():
        above = below = 1
        for j in shares:
            if j != i:
                above, below = above * -j, below * (i - j)
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME


def masked(
    values: Mapping[str, int], own: Mapping[str, int], pairs: Mapping[tuple[str, str], int], q: int
) -> dict[str, int]:
    """What each site gives, modulo q: its value, its own mask, and those that it shares."""
    given = {}
    for site, value in values.items():
        total = value + own[site]
        for (first, second), mask in pairs.items():
            total += mask * ((site == first) - (site == second))
        given[site] = total % q
    return given


def views(values: Mapping[str, int], q: int, against: Sequence[str] = ()) -> Counter[object]:
    """Distribution of all that the coordinator, and sites that tell it all, see of a sum.

    Over every choice of the masks, each as likely: what the sites give, the own masks (which are
    opened), and of the sites in `against` all their masks.
    """
    sites = tuple(values)
    names = list(itertools.combinations(sites, 2))
    seen: Counter[object] = Counter()
    for drawn in itertools.product(range(q), repeat=len(sites) + len(names)):
        own = dict(zip(sites, drawn, strict=False))
        pairs = dict(zip(names, drawn[len(sites) :], strict=True))
        known = tuple(mask for name, mask in pairs.items() if set(name) & set(against))
        seen[(*masked(values, own, pairs, q).items(), *own.items(), known)] += 1
    return seen


def splits(holders: Sequence[str]) -> Iterator[tuple[set[str], set[str]]]:
    """Every way to tell each holder one of two things, or nothing."""
    for told in itertools.product((0, 1, 2), repeat=len(holders)):
        parts = [{h for h, t in zip(holders, told, strict=True) if t == kind} for kind in (1, 2)]
        yield parts[0], parts[1]


def fewest_in_a_total(n: int, least: int, bad: int, given: int | None = None) -> int:
    """How many honest sites are at least in a total that a coordinator can open by lies.

    Each of `n` sites shares masks with all others, and `bad` of them tell the coordinator all. A
    secret takes `least` holders; a site opens where it hears that `given` others gave (as many as
    `least`, unless said).

    Those in the total, and who opens their own masks, have one list of r sites left. Of the honest
    ones on that list each one that is not in the total must be given up as gone by `least` - `bad`
    honest sites, and a site gives up no more than the others on its list but `given`.
    """
    given = least if given is None else given
    honest = n - bad
    for fewest, r in itertools.product(range(1, honest + 1), range(given + 1, n + 1)):
        alike = min(honest, max(fewest, least - bad + 1))
        given_up = alike * (r - 1 - given) + (honest - alike) * (n - 1 - given)
        for inside in range(max(0, bad - (n - r)), min(bad, r) + 1):
            on_the_list = r - inside
            gone = on_the_list - fewest
            if on_the_list >= alike and gone * (least - bad) <= given_up:
                return fewest
    return honest
