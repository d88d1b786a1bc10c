"""Phase `secure_sums`: totals over sites, of which the coordinator sees no site's part.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
secure_sums.introduce: Introduce ->  draws a secret for the run
                                 <-  Introduction: first keys, signed             PUBLIC
secure_sums.meet: Meet           ->  checks who takes part
  introductions
                                 <-  Met: shares for neighbours                   PUBLIC
a step that sums, by the method  ->  answers; the gate judges; the reply is masked
                                 <-  Concealed: numbers                           MASKED
                                     cells told, keys, shares for neighbours      PUBLIC
secure_sums.open: Open           ->  of those who contributed, and of those who did not
                                 <-  Opened: shares                               PUBLIC
==================================  ====================================================

`introduce` runs once, when the exchange has opened; `total` asks a step and returns sums over
sites: in a study without ``sums = "secure"`` those of the replies, otherwise through masks (see
``wire.secure_sums``, and ``docs/proofs/secure-sums.md`` for what it proves).

The gate of a site judges its own reply before it is masked; cells that it withholds are counted as
0 and named, equally for few records and for none. In a study with masked sums a site answers no
step that would tell a number of its own otherwise.

Absence: a site that is lost before it contributed is left out, down to two thirds of the others (of
three all); one that is lost after it is counted all the same, if enough neighbours answer. Totals
of a run are opened for the same sites, or for such that differ by three or more: the difference
would be the part of one, or of two. So one or two that are lost after the first total stop the run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import (
    DataError,
    DisclosureError,
    ProtocolError,
    QuorumError,
    WireError,
    listed,
)
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    Step,
    step,
)
from consilience.wire import secure_sums as wire
from consilience.wire.codec import digest, encode_message, pack
from consilience.wire.disclosure import Released, relayed
from consilience.wire.message import (
    Disclosure,
    Masked,
    Public,
    iterate_fields,
    message,
    message_type,
)

SECURE = "secure"
ALL = "all sites"
"""Name of the one site that totals are of, where a method goes on as with one."""
MASKED = "Sums were masked: the result says nothing of single sites, nor whether they differ."
WRONG = (
    "the masked sums of the sites add up to what no rows have, so some site sent wrong ones: let "
    "the sites look at their tables, or ask without masks"
)
LARGEST = 1e20
"""Of a site's numbers: sums of squares of larger ones would leave nothing modulo 2^192."""
_LEAST_SPREAD = 1e-9
KEYS = "sums"
"""Entry of a site's keys in which its end of the masked sums is kept."""


@message("secure-sums/introduce", version=1)
class Introduce:
    """Draw a secret for the masks of this run."""


@message("secure-sums/introduction", version=1)
class Introduction:
    """A site's first keys."""

    keys: bytes = Public("", "public keys: for shares, for the masks of the first sum", kind="any")
    signed: bytes = Public("", "signed by the site's own key, where it has one", kind="any")

    def check(self, request: Introduce, known: Mapping[str, Any]) -> str | None:
        """Keys are as long as they are made."""
        fine = all(isinstance(x, bytes) for x in (self.keys, self.signed))
        return None if fine and len(self.keys) == 64 and len(self.signed) < 1024 else "no keys"


@message("secure-sums/meet", version=1)
class Meet:
    """Who takes part in the masked sums of this run."""

    introductions: dict[str, tuple[bytes, bytes]] = Public(
        "*by site", "keys, and the same signed", to="all"
    )


@message("secure-sums/met", version=1)
class Met:
    """The others are known."""

    blobs: dict[str, bytes] = Public("*by site", "sealed to each neighbour: a share")

    def check(self, request: Meet, known: Mapping[str, Any]) -> str | None:
        """Shares are for sites that were introduced."""
        return _wrong_blobs(self.blobs, request.introductions)


@message("secure-sums/concealed", version=2)
class Concealed:
    """A reply of which every number is masked."""

    epoch: int = Public("", "number of the sum", kind="int", low=0)
    question: str = Public("", "digest of what was asked", kind="str")
    shapes: tuple[tuple[int, ...], ...] = Public("*by field", "dimensions")
    told: NDArray[np.bool_] = Public("cells", "which cells the site tells", kind="bool")
    numbers: Released = Masked("cells 3", "the cells, masked")
    commitment: bytes = Public("", "by which the key of the site's own mask is known", kind="any")
    next_key: bytes = Public("", "public key for the masks of the next sum", kind="any")
    blobs: dict[str, bytes] = Public("*by site", "sealed to each neighbour: two shares")

    def check(self, request: Any, known: Mapping[str, Any]) -> str | None:
        """Numbers are as many as the cells need, keys as long as they are made."""
        cells = sum(math.prod(shape) for shape in self.shapes)
        if cells != len(self.told):
            return "other cells than the shapes say"
        keys = (self.commitment, self.next_key)
        if not all(isinstance(key, bytes) and len(key) == 32 for key in keys):
            return "no keys"
        return _wrong_blobs(self.blobs, self.blobs)


@message("secure-sums/open", version=1)
class Open:
    """Give what takes the masks out of a total."""

    step: str = Public("", "what the sum is of", kind="str", to="site")
    epoch: int = Public("", "number of the sum", kind="int", to="site", low=0)
    question: str = Public("", "digest of what was asked", kind="str", to="site")
    next_keys: dict[str, bytes] = Public("*by site", "of the sites that contributed", to="site")
    blobs: dict[str, bytes] = Public("*by site", "of neighbours that contributed", to="site")
    earlier: dict[str, tuple[str, bytes]] = Public(
        "*by site", "of neighbours that did not: question and shares before", to="site"
    )


@message("secure-sums/opened", version=1)
class Opened:
    """Shares of masks."""

    own: dict[str, bytes] = Public("*by site", "of the own masks of those who contributed")
    keys: dict[str, bytes] = Public("*by site", "of the keys of those who did not")

    def check(self, request: Open, known: Mapping[str, Any]) -> str | None:
        """One share of each neighbour, of the one kind or of the other."""
        same = set(self.own) == set(request.blobs) and set(self.keys) == set(request.earlier)
        shares = (*self.own.values(), *self.keys.values())
        fine = all(isinstance(share, bytes) and len(share) == 33 for share in shares)
        return None if same and fine else "not the shares that were asked for"


def refused_for(needs: Mapping[str, bool]) -> str:
    """Why sums cannot be masked: the first need that a study has; empty where it has none."""
    found = next((need for need, is_so in needs.items() if is_so), "")
    return f"{found}, or leave sums = 'secure' out of the study" if found else ""


def _wrong_blobs(blobs: Any, sites: Collection[str]) -> str | None:
    fine = isinstance(blobs, dict) and set(blobs) <= set(sites)
    fine = fine and all(isinstance(x, bytes) and len(x) < 256 for x in blobs.values())
    return None if fine else "shares for others than the sites of the run"


# --------------------------------------------------------------------------- at a site


def _kept(party: wire.Party) -> dict[str, Any]:
    return vars(party) | {"roster": list(party.roster)}


def party_of(site: SiteContext) -> wire.Party | None:
    """A site's end of the masked sums of its run; None before it has met the others."""
    kept = site.keys.get(KEYS)
    if kept is None or not kept["roster"]:
        return None
    fields = {f.name: kept[f.name] for f in dataclasses.fields(wire.Party)}
    return wire.Party(**fields | {"roster": tuple(kept["roster"])})


def require_masks(site: SiteContext) -> None:
    """Check that the reply will be masked: in plain another step tells the same, once in a run."""
    if party_of(site) is None:
        raise DisclosureError.shared("the step is one of masked sums, and the sites have not met")


def agreed(columns: Released, groups: int, state: State, least: int = 1) -> IntArray:
    """Columns of a question, which this site said it could tell in so many groups of rows.

    Before any look at the rows: that a question is refused must tell nothing of them.
    """
    wanted: IntArray = np.asarray(columns.value, dtype=np.int64)
    could = state.get("could", {"groups": [], "columns": []})
    if groups not in could["groups"]:
        sentence = "this site did not say that it could tell as many groups of rows"
        raise ProtocolError.shared(sentence)
    ascending = len(wanted) >= least and bool((np.diff(wanted) > 0).all())
    if not ascending or not np.isin(wanted, could["columns"]).all():
        sentence = "the columns are not among those that this site said it could tell"
        raise ProtocolError.shared(sentence)
    return wanted


@step("secure_sums.introduce", once=True)
def introduce_site(
    message: Introduce, data: SiteData, state: State, site: SiteContext
) -> tuple[Introduction, State]:
    """Draw the secret of the run, and sign the keys that follow from it."""
    # A fresh generator over operating-system entropy, of which nothing else leaves.
    party = wire.Party(site.run, site.site, site.secret_rng.bytes(32))
    site.keys[KEYS] = _kept(party)
    keys = party.introduction()
    return Introduction(keys=keys, signed=site.sign(keys)), state


@step("secure_sums.meet", once=True)
def meet(message: Meet, data: SiteData, state: State, site: SiteContext) -> tuple[Met, State]:
    """Check who takes part, and share the secret of the first masks."""
    kept = site.keys.get(KEYS)
    if kept is None:
        raise WireError("the site was not introduced", public="the site was not introduced")
    _require_quorum(message.introductions, site)
    _require_moderate(data)
    for name, (keys, signed) in message.introductions.items():
        site.require_signed(name, keys, signed)
    introductions = {name: keys for name, (keys, _) in message.introductions.items()}
    party = wire.Party(site.run, site.site, kept["root"]).met(introductions)
    site.keys[KEYS] = _kept(party)
    return Met(blobs=party.first_blobs()), state


def _require_quorum(sites: Collection[str], site: SiteContext) -> None:
    """Check that as many sites take part as the study asks for: the coordinator says which do."""
    if len(sites) < site.quorum:
        raise WireError.shared(f"{len(sites)} sites take part and the study asks for {site.quorum}")


def _require_moderate(data: SiteData) -> None:
    """Check that no number is too large for sums: before any are asked for, so it says one thing.

    Were contributions to a sum checked, made-up questions would find where they begin to be large.
    """
    beside = (one for one in (data.target, data.offset, data.weight) if one is not None)
    # As they are in the table: units that somebody made up would ask for the largest one.
    for x in (data.features if data.unscaled is None else data.unscaled, *beside):
        if x.dtype.kind == "f" and x.size and _largest(x) > LARGEST:
            sentence = (
                f"masked sums are of numbers up to {LARGEST:g}, and a column here has larger ones: "
                "give the columns in other units"
            )
            raise DataError.shared(sentence)


def _largest(x: FloatArray) -> float:
    """Size of the largest number, without a table of their sizes; gaps are none."""
    return float(max(np.fmax.reduce(x, axis=None), -np.fmin.reduce(x, axis=None)))


def concealed(content: Any, asked: Step, question: str, site: SiteContext) -> Concealed:
    """Mask a reply that the gate has let pass.

    Parameters
    ----------
    content : message
        Reply of a step that sums.
    asked : Step
    question : str
        ``wire.secure_sums.question_digest`` of what was asked.
    site : SiteContext

    Raises
    ------
    DisclosureError
        The site has not met the others.
    """
    party = party_of(site)
    if party is None:
        raise DisclosureError.shared("the study masks sums, and the sites have not met")
    arrays = [np.asarray(field.value, dtype=float) for _, _, field in iterate_fields(content)]
    told = [~np.isnan(array).ravel() for array in arrays]
    values = [np.nan_to_num(array).ravel() for array in arrays]
    # Sites that were told of different sites are in no sum together.
    question = digest(pack([question, party.graph, party.roster]))
    masked = party.mask(np.concatenate(values), question)
    site.keys[KEYS] = _kept(party) | {"step": asked.name, "question": question}
    return Concealed(
        epoch=party.epoch,
        question=question,
        shapes=tuple(array.shape for array in arrays),
        told=np.concatenate(told),
        numbers=relayed(masked.limbs, Disclosure.MASKED),
        commitment=masked.commitment,
        next_key=masked.next_key,
        blobs=masked.blobs,
    )


def _opened_once(message: Open, data: SiteData, limits: Any) -> dict[str, tuple[int, int]]:
    """What was opened is noted for the whole run, whatever lines of questions lead to it."""
    noted = (_sum_name(message), _set_name(message.next_keys))
    return dict.fromkeys(noted, (1, 1 << 40))


def _sum_name(message: Open) -> str:
    return f"masked sum {message.epoch}: {digest(encode_message(message))}"


def _set_name(sites: Collection[str]) -> str:
    return f"opened totals: {' '.join(sorted(sites))}"


@step("secure_sums.open", tally=_opened_once)
def open_sum(
    message: Open, data: SiteData, state: State, site: SiteContext
) -> tuple[Opened, State]:
    """Give shares of the masks of those who contributed, and of the keys of those who did not."""
    party, kept = party_of(site), site.keys.get(KEYS, {})
    about = (kept.get("step"), kept.get("question"), kept.get("epoch"))
    if party is None or about != (message.step, message.question, message.epoch):
        raise WireError.shared("the sum is not the one to which this site contributed last")
    _require_quorum(message.next_keys, site)
    tallied = f"tally {_sum_name(message)}"
    same = tallied[: tallied.index(":") + 1]
    # The same message again, after a crash, has the same answer.
    if any(name.startswith(same) and name != tallied for name in site.series):
        sentence = f"a masked sum is opened once in a run, and this one was (sum {message.epoch})"
        raise DisclosureError.shared(sentence)
    # Of all steps: sums of one tell those of another, as means do those of scaled columns.
    now, begins = set(message.next_keys), f"tally {_set_name(())}"
    for name in site.series:
        if name.startswith(begins):
            apart = len(now ^ set(name[len(begins) :].split()))
            if 0 < apart < wire.LEAST_SITES:
                sentence = (
                    "totals of this run were opened for one or two sites more, or less: the "
                    "difference would be what these contributed"
                )
                raise DisclosureError.shared(sentence)
    own, keys, party = party.open(
        message.question, message.next_keys, message.blobs, message.earlier
    )
    site.keys[KEYS] = _kept(party)
    return Opened(own=own, keys=keys), state


STEPS = (introduce_site, meet, open_sum)


# --------------------------------------------------------------------------- at the coordinator


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over sites of the fields of a reply.

    Attributes
    ----------
    sites : tuple of str
        That contributed.
    values : dict of str to array
        By field, of its shape; 0 in a cell that no site tells.
    told : dict of str to int array
        How many sites tell each cell.
    records : dict of str to array
        Of fields with gaps, in plain where `rows` are asked for: rows at the sites that tell each.
    silent : tuple of str
        Of these sites the ones that tell no cell.
    """

    sites: tuple[str, ...]
    values: dict[str, FloatArray]
    told: dict[str, IntArray]
    records: dict[str, FloatArray]
    silent: tuple[str, ...]


@dataclass
class Masks:
    """What the coordinator keeps between masked sums.

    Attributes
    ----------
    sites : tuple of str
        That were introduced.
    graph : str
    epoch : int
    roster : tuple of str
        Sites that contributed to all sums so far.
    current : mapping of site to bytes
        Public keys for the masks of the next sum.
    earlier : mapping of site to (str, dict)
        Question of the last sum, and the shares that a site sealed for each neighbour with it.
    """

    sites: tuple[str, ...]
    graph: str
    current: Mapping[str, bytes]
    earlier: Mapping[str, tuple[str, Mapping[str, bytes]]]
    roster: tuple[str, ...]
    epoch: int = 0

    def least(self, site: str) -> int:
        """Shares that give a secret of a site back."""
        return wire.threshold(len(wire.neighbours(site, self.sites, self.graph)))


def introduce(ctx: CoordinatorContext) -> Generator[Ask, Replies, None]:
    """Introduce the sites to each other.

    Raises
    ------
    QuorumError
        Fewer than three sites, or one that was introduced is lost before all have met.
    """
    least = max(ctx.quorum, wire.LEAST_SITES)
    replies = ctx.require((yield Ask("secure_sums.introduce", Introduce())), at_least=least)
    introductions = {site: (r.keys, r.signed) for site, r in replies.items()}
    asked = Ask("secure_sums.meet", Meet(introductions), to=tuple(sorted(replies)))
    met = ctx.require((yield asked), at_least=len(replies))
    ctx.sites = tuple(sorted(met))
    ctx.masks = Masks(
        sites=ctx.sites,
        graph=wire.graph_seed({site: keys for site, (keys, _) in introductions.items()}),
        current={site: keys[wire.KEY :] for site, (keys, _) in introductions.items()},
        earlier={site: ("", r.blobs) for site, r in met.items()},
        roster=ctx.sites,
    )


def total(
    ctx: CoordinatorContext,
    asked: Ask,
    reply: type,
    *,
    rows: str = "",
    at_least: int | None = None,
    narrower: Callable[[BoolArray], Any] | None = None,
    tellers: int = 0,
) -> Generator[Ask, Replies, Totals]:
    """Ask a step that sums and return the totals over sites.

    Parameters
    ----------
    ctx : CoordinatorContext
    asked : Ask
        One message for all sites.
    reply : type
        Message with which the step replies.
    rows : str
        Its field with the number of a site's rows, for the `records` of a run in plain.
    at_least : int, optional
        Overrides the study's quorum.
    narrower : callable, optional
        ``narrower(cells) -> message``, of the cells that all sites tell: asked instead where some
        tell what others do not. A total of those would tell them apart, and is not opened.
    tellers : int
        Of each cell that anybody tells: with fewer no total is opened either.

    Raises
    ------
    QuorumError
        Too few sites answered, or too few shares came to open the total.
    ProtocolError
        Sites contributed sums of different cells.
    DataError
        A masked total is larger than the modulus holds.
    """
    if ctx.masks is None:
        replies = ctx.require((yield asked), at_least=at_least)
        return plain_totals(replies, reply, rows)
    named = ctx.sites if asked.to is None else asked.to
    behind = [site for site in named if site not in ctx.sites]
    if at_least is not None and len(named) - len(behind) < at_least:
        raise QuorumError(
            f"{listed(behind)} missed a question of this run and cannot add to the next total: "
            "resume the run when all are back"
        )
    asked = dataclasses.replace(asked, to=tuple(s for s in named if s in ctx.sites))
    replies = ctx.require((yield asked), at_least=at_least)
    _check_alike(ctx.masks, asked.step, replies)
    if narrower is not None and _some_tell(replies).any():
        message = narrower(~_some_tell(replies))
        asked = dataclasses.replace(asked, message=message, to=tuple(sorted(replies)))
        replies = ctx.require((yield asked), at_least=at_least)
        _check_alike(ctx.masks, asked.step, replies)
        if _some_tell(replies).any():
            raise ProtocolError(f"sites tell other cells of step {asked.step!r} than they said")
    telling = np.sum([reply.told for reply in replies.values()], axis=0)
    if ((telling > 0) & (telling < tellers)).any():
        raise QuorumError(
            f"fewer sites tell a part of step {asked.step!r} than said they could: start another "
            "run"
        )
    numbers = yield from _opened(ctx, asked.step, replies)
    return _named(reply, replies, numbers)


def note_cut(ctx: CoordinatorContext, names: Sequence[str], variances: FloatArray) -> None:
    """Say of which columns the digits are cut: masked squares end at 1e-24."""
    few = [name for name, v in zip(names, variances, strict=True) if v < _LEAST_SPREAD**2]
    if few and ctx.masks is not None:
        ctx.note(
            f"{listed(few)}: constant, or the spread is below {_LEAST_SPREAD:g}, where masked sums "
            "cut its digits: then give other units."
        )


def plain_totals(replies: Mapping[str, Any], reply: type, rows: str) -> Totals:
    """Totals of replies that tell each site's own sums."""
    sites = tuple(sorted(replies))
    behind = [getattr(replies[site], rows).value for site in sites] if rows else []
    values, told, records = {}, {}, {}
    cells = np.zeros(len(sites))
    for name, spec in message_type(reply).fields.items():
        parts = np.array([getattr(replies[s], name).value for s in sites], dtype=float)
        telling = ~np.isnan(parts)
        cells += telling.reshape(len(sites), -1).sum(axis=1)
        values[name], told[name] = np.nansum(parts, axis=0), telling.sum(axis=0)
        if spec.gaps and rows:
            records[name] = np.tensordot(np.array(behind), telling, axes=1).astype(float)
    silent = tuple(site for site, some in zip(sites, cells, strict=True) if not some)
    return Totals(sites, values, told, records, silent)


def _some_tell(replies: Mapping[str, Concealed]) -> BoolArray:
    """Cells that some sites tell and others do not."""
    telling = np.sum([reply.told for reply in replies.values()], axis=0)
    return np.asarray((telling > 0) & (telling < len(replies)))


def _check_alike(masks: Masks, of: str, replies: Mapping[str, Concealed]) -> None:
    """Check that replies are of one sum."""
    (about, *others) = {
        (r.epoch, r.question, r.shapes, r.numbers.value.shape) for r in replies.values()
    }
    if others or about[0] != masks.epoch or not set(replies) <= set(masks.roster):
        raise ProtocolError(
            f"sites contributed sums of different cells to step {of!r}, or were asked other "
            "questions before it: start another run"
        )


def _opened(
    ctx: CoordinatorContext, of: str, replies: Mapping[str, Concealed]
) -> Generator[Ask, Replies, FloatArray]:
    """Totals of the numbers of masked replies."""
    masks: Masks = ctx.masks
    present = tuple(sorted(replies))
    first = replies[present[0]]
    if any(
        sum(o in replies for o in wire.neighbours(site, masks.sites, masks.graph))
        < masks.least(site)
        for site in present
    ):
        raise QuorumError(
            f"{len(present)} of {len(masks.sites)} sites contributed to a masked sum, which needs "
            "two thirds, and three at least: go on when the others are back"
        )
    gone = [site for site in masks.roster if site not in replies]
    next_keys = {site: replies[site].next_key for site in present}
    messages = {}
    for site in present:
        around = wire.neighbours(site, masks.sites, masks.graph)
        messages[site] = Open(
            step=of,
            epoch=masks.epoch,
            question=first.question,
            next_keys=next_keys,
            blobs={o: replies[o].blobs.get(site, b"") for o in around if o in replies},
            earlier={
                o: (masks.earlier[o][0], masks.earlier[o][1].get(site, b""))
                for o in around
                if o in gone
            },
        )
    least = min(wire.threshold(len(masks.sites) - 1), len(present))
    asked = Ask("secure_sums.open", messages, to=present)
    opened: dict[str, Opened] = ctx.require((yield asked), at_least=least)
    pads = {
        site: _secret(
            f"the mask of site {site}",
            {o: r.own[site] for o, r in opened.items() if site in r.own},
            masks,
            masks.least(site),
            (replies[site].commitment, wire.commitment),
        )
        for site in present
    }
    keys = {
        site: _secret(
            f"the key of site {site}",
            {o: r.keys[site] for o, r in opened.items() if site in r.keys},
            masks,
            masks.least(site),
            (masks.current[site], wire.public),
        )
        for site in gone
    }
    numbers = wire.unmasked(
        {site: replies[site].numbers.value for site in present},
        pads,
        keys,
        masks.current,
        (masks.graph, masks.sites),
        ctx.run,
        masks.epoch,
        first.question,
    )
    # A site that did not open is asked no more: its masks are those of this sum.
    ctx.sites = tuple(site for site in ctx.sites if site in opened)
    ctx.masks = dataclasses.replace(
        masks,
        epoch=masks.epoch + 1,
        roster=present,
        current=next_keys,
        earlier={site: (first.question, replies[site].blobs) for site in present},
    )
    found = wire.decoded(numbers)
    if (np.abs(found) > wire.MOST).any():
        raise DataError(
            f"a total of step {of!r} is above {wire.MOST:.0e}, the most that masked sums hold: "
            "give the columns in other units"
        )
    return found


def _secret(what: str, shares: Mapping[str, bytes], masks: Masks, least: int, proof: Any) -> bytes:
    """A secret from the shares of a site's neighbours."""
    placed = {wire.place_of(site, masks.sites): share for site, share in shares.items()}
    secret = wire.found(placed, least, *proof)
    if not secret:
        raise QuorumError(
            f"a masked sum cannot be opened: {least} neighbours give back {what}, and "
            f"{len(placed)} answered, or some gave wrong shares; go on when the others are back"
        )
    return secret


def _named(reply: type, replies: Mapping[str, Concealed], numbers: FloatArray) -> Totals:
    """Totals by field."""
    sites = tuple(sorted(replies))
    telling = np.sum([replies[site].told for site in sites], axis=0)
    values, told, at = {}, {}, 0
    for name, shape in zip(message_type(reply).fields, replies[sites[0]].shapes, strict=True):
        end = at + math.prod(shape)
        values[name], told[name] = numbers[at:end].reshape(shape), telling[at:end].reshape(shape)
        at = end
    silent = tuple(site for site in sites if not replies[site].told.any())
    return Totals(sites, values, told, {}, silent)
