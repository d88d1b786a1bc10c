"""Phase `align_ids`: sites that hold different columns find the rows that all of them have.

================================  ====================================================
coordinator                       every site
================================  ====================================================
align_ids.hash: HashRequest   ->  hashes its ids under the key that the parties share
                              <-  Hashed: sorted hashes (n, 16)           PER_RECORD
                                          public key, tag                 PUBLIC
align_ids.match: Common       ->  keeps the common rows, in the order of their ids
  common hashes (m, 16)
  public keys, tags, roles
                              <-  Matched
================================  ====================================================

A response is matched in so many different sets of rows only as its table has groups of
`min_records` rows: figures of sets that differ by a row are equations in its response.

Hashes are keyed with the run (``wire.sealing``), so they differ from run to run. A coordinator
without the key (a third party) learns how many ids each site has and how many are common, and
nothing of any id.
The coordinator of the initiator has the key: it could try ids that it knows of against a partner's
hashes, as it learns of its own rows from the match itself. Rows without an id or with a repeated
one, and rows without a counterpart, are left out; their numbers are told to their owner only.
The initiator is the site whose own columns name a target: that is part of its introduction.

The public keys and tags introduce the sites to each other (see ``wire.sealing``): later fields for
one site's eyes pass the coordinator encrypted. Filling and scaling follow here too, by each site's
own matched rows, because nobody else holds its columns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Generator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from consilience.exceptions import DisclosureError, QuorumError, StudyError, WireError
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Preparation,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.wire.disclosure import Released, hashed_ids, relayed
from consilience.wire.message import Disclosure, PerRecord, Public, message
from consilience.wire.sealing import ascending, check_peers, common_ids, introduce, positions

MIN_MATCHED = 10
"""Fewer common rows than this answer no question, whatever the policies say."""


@message("align-ids/hash-request", version=1)
class HashRequest:
    """Hash your ids."""


@message("align-ids/hashed", version=2)
class Hashed:
    """Hashes of a site's ids, and its introduction to the others."""

    hashes: Released = PerRecord(
        "n 16", "keyed hashes of the ids, sorted", kind="int", low=0, high=255
    )
    public: bytes = Public("", "the site's key for this run", kind="any")
    tag: bytes = Public("", "made with the key the parties share", kind="any")

    def check(self, request: HashRequest, known: Mapping[str, Any]) -> str | None:
        """Hashes are sorted and distinct; keys and tags are as long as they are made."""
        if not ascending(np.asarray(self.hashes.value, dtype=np.uint8)):
            return "hashes that are not sorted, or repeat"
        introduced = all(isinstance(x, bytes) and len(x) == 32 for x in (self.public, self.tag))
        return None if introduced else "no introduction to the other sites"


@message("align-ids/common", version=1)
class Common:
    """The rows that all sites have."""

    hashes: Released = PerRecord("m 16", "hashes that all have", kind="int", to="all")
    introductions: dict[str, tuple[bytes, bytes]] = Public(
        "*by site", "keys and tags of the sites", to="all"
    )
    roles: dict[str, str] = Public("*by site", "initiator or partner", to="all")
    preparation: str = Public("", "rules, as JSON", kind="str", to="all")


@message("align-ids/matched", version=1)
class Matched:
    """The rows were matched."""


@step("align_ids.hash")
def hash_ids(
    message: HashRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Hashed, State]:
    """Hash the ids and draw a key for this run."""
    if not site.partner_key or data.hashes is None:
        sentence = "the site has no partner key: name it in [partners] of the site file"
        raise StudyError.shared(sentence)
    if data.n_rows < max(site.limits.min_records, MIN_MATCHED):
        raise DisclosureError.shared("too few rows have an id of their own")
    # A fresh generator over operating-system entropy, of which nothing else leaves.
    private = site.secret_rng.bytes(32)
    role = "partner" if data.target is None else "initiator"
    public, tag = introduce(private, site.partner_key, site.run, f"{role} {site.site}")
    site.keys.clear()
    site.keys["private"] = private
    order = np.lexsort(data.hashes.T[::-1])
    return Hashed(hashes=hashed_ids(data.hashes[order]), public=public, tag=tag), state


def transform(message: Common, data: SiteData) -> SiteData:
    """Keep the common rows in the order of their ids; fill and scale by them."""
    if data.hashes is None or data.id is None:
        raise StudyError("rows without hashes cannot be matched")
    common = np.asarray(message.hashes.value, dtype=np.uint8)
    index = _places(data, common)
    # Hashes differ from run to run: by ids the order, and every sum, is the same each time.
    matched = data.take(index[np.argsort(data.id[index], kind="stable")])
    return _filled(matched, Preparation(**json.loads(message.preparation)))


_PLACES: WeakKeyDictionary[SiteData, tuple[bytes, np.ndarray]] = WeakKeyDictionary()


def _places(data: SiteData, common: np.ndarray) -> np.ndarray:
    """Rows of the common ids; remembered for the transform that follows the step."""
    asked = common.tobytes()
    known = _PLACES.get(data)
    if known is None or known[0] != asked:
        if data.hashes is None:
            raise StudyError("rows without hashes cannot be matched")
        _PLACES[data] = known = (asked, positions(data.hashes, common))
    return known[1]


def _filled(data: SiteData, rules: Preparation) -> SiteData:
    """Fill missing cells with the site's own means, and scale, as the study says."""
    x = data.features
    gaps = np.isnan(x)
    fill = np.zeros(x.shape[1])
    if gaps.any():
        # By the matched rows alone: means over others would tell of rows without a counterpart.
        known = np.where(gaps, 0.0, x).sum(axis=0)
        fill = known / np.maximum((~gaps).sum(axis=0), 1)
        x = np.where(gaps, fill, x)
    centre, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if rules.standardize != "none":
        spread = x.std(axis=0)
        centre, scale = x.mean(axis=0), np.where(spread > 0, spread, 1.0)
        x = (x - centre) / scale
    bounds = None if data.bounds is None else (data.bounds - centre) / scale
    x.flags.writeable = False
    scaled = data.with_features(x)
    return dataclasses.replace(scaled, scaling=np.stack([fill, centre, scale]), bounds=bounds)


def sets_of(message: Common, data: SiteData) -> str:
    """Name under which a site keeps which sets of its rows were matched (``keeps`` of a step)."""
    return f"matched {data.content_hash}"


def note_set(common: np.ndarray, data: SiteData, site: SiteContext) -> None:
    """Count the sets of rows with which a response was matched.

    A coordinator hands the common rows out and may leave some out: figures of two sets that differ
    by one row are an equation in its response. The same set again says nothing new.

    Raises
    ------
    DisclosureError
        More sets than the table has groups of `min_records` rows.
    """
    least = site.limits.min_records
    if data.target is None or data.hashes is None or least == 1:
        return
    rows = np.sort(data.rows[_places(data, common)])
    one = np.frombuffer(hashlib.sha256(rows.astype("<i8").tobytes()).digest(), dtype=np.uint8)
    known = (
        np.empty((0, 32), dtype=np.uint8) if site.kept is None else np.asarray(site.kept["sets"])
    )
    if (known == one).all(axis=1).any():
        return
    if len(known) >= data.n_rows // least:
        raise DisclosureError.shared(
            "the response was matched with as many different sets of rows as may be: let all "
            "parties offer the rows that they offered before"
        )
    site.keep({"sets": np.vstack([known, one])})


@step("align_ids.match", transform=transform, once=True, keeps=sets_of)
def match(
    message: Common, data: SiteData, state: State, site: SiteContext
) -> tuple[Matched, State]:
    """Check the others' introductions; tell the owner how many rows found a counterpart."""
    common = np.asarray(message.hashes.value, dtype=np.uint8)
    if json.loads(message.preparation) != json.loads(site.preparation):
        # A steward approves the rules of the study, with which the run was opened.
        sentence = "rows are to be filled and scaled by other rules than the run was opened with"
        raise DisclosureError.shared(sentence)
    if site.site not in message.introductions or data.hashes is None:
        raise WireError("the ids of this site were not asked for")
    if len(common) < max(site.limits.min_records, MIN_MATCHED):
        raise DisclosureError.shared("too few rows are common to all sites")
    if not ascending(common):
        raise WireError("common hashes that are not sorted, or repeat")
    _places(data, common)
    note_set(common, data, site)
    # A tag also says which role its site has by its own table: no coordinator can change it.
    said = {f"{message.roles.get(s)} {s}": told for s, told in message.introductions.items()}
    peers = check_peers(site.partner_key, site.run, said)
    # Who holds the partner key could still introduce this site in another role, or by another key.
    role = "partner" if data.target is None else "initiator"
    own = introduce(site.keys["private"], site.partner_key, site.run, f"{role} {site.site}")
    if message.roles.get(site.site) != role or tuple(message.introductions[site.site]) != own:
        raise WireError.shared("the site was introduced to the others as somebody else")
    site.keys["peers"] = {name.split(" ", 1)[1]: public for name, public in peers.items()}
    site.keys["roles"] = dict(message.roles)
    unmatched = data.n_rows - len(common)
    site.note(
        f"{len(common)} rows have a counterpart at every site; {unmatched} of this site's have not."
    )
    return Matched(), state


def align_ids(ctx: CoordinatorContext) -> Generator[Ask, Replies, None]:
    """Match the rows of all sites; afterwards row i is the same record everywhere.

    Raises
    ------
    StudyError
        Too few rows are common to all sites.
    QuorumError
        The initiator, all partners, or one of those that opened did not answer.
    """
    if ctx.initiator not in ctx.sites or not ctx.partners:
        raise QuorumError(
            f"only {', '.join(ctx.sites)} answered: the initiator {ctx.initiator!r} and one "
            f"partner at least must take part. {' '.join(ctx.notes)}".rstrip()
        )
    everybody = len(ctx.sites)
    replies = ctx.require((yield Ask("align_ids.hash", HashRequest())), at_least=everybody)
    found = {site: np.asarray(r.hashes.value, dtype=np.uint8) for site, r in replies.items()}
    # An id that stands twice at one site is common to none: which of its rows was meant?
    common = common_ids(list(found.values()))
    if len(common) < MIN_MATCHED:
        raise StudyError(
            f"{len(common)} rows are common to {' and '.join(found)} (they have "
            f"{', '.join(str(len(h)) for h in found.values())}): at least {MIN_MATCHED} are "
            "needed; check that all sites use the same ids and the same partner key"
        )
    request = Common(
        hashes=relayed(common, Disclosure.PER_RECORD),
        introductions={site: (r.public, r.tag) for site, r in replies.items()},
        roles=dict(ctx.roles),
        preparation=json.dumps(dataclasses.asdict(ctx.preparation), sort_keys=True),
    )
    ctx.require((yield Ask("align_ids.match", request)), at_least=everybody)
    ctx.n_matched = len(common)


STEPS = (hash_ids, match)
