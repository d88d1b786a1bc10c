"""From the files of a study and a site to Flower: an engine, a node, a check before a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.engines.flower.coordinator import FlowerEngine
from consilience.engines.flower.handler import Desk, Link, LinkLost
from consilience.engines.flower.keys import CA, NODE_KEY, SECRET, days_left
from consilience.engines.health import Heartbeat, SiteHealth, judged
from consilience.engines.signed import OnNote
from consilience.exceptions import PrivacyError, StudyError, WireError
from consilience.sites.loaders import file_site
from consilience.sites.site import Confirm
from consilience.sites.site_store import sole
from consilience.sites.steward import DAY, purge_old
from consilience.sites.study import SiteFile, Study
from consilience.wire.signing import SigningKey

FEW_DAYS = 14.0
AWAY = "it is not connected to the SuperLink, or answers under a key that the study does not list"
APPS = (
    "sites of this package load no app and answer only runs with the app of their release; a stock "
    "SuperNode would execute whatever app a run carries"
)
"""What `check` says of a run's code."""
_MEMORY = "flower-node"


def engine(
    study: Study, address: str, keys: Path, *, insecure: bool = False, on_note: OnNote | None = None
) -> FlowerEngine:
    """Build the engine over sites that are nodes of a SuperLink.

    Parameters
    ----------
    study : Study
    address : str
        ``host:port`` of the SuperLink.
    keys : Path
        The coordinator's directory: ``consilience.key``, ``executor.secret``, ``ca.crt``.
    insecure : bool
        Without TLS, for trials on one machine.

    Raises
    ------
    StudyError
        A file is missing, or the key is not the one that the study names.
    MissingExtraError
        Flower is not installed, or another release of it.
    """
    from consilience.engines.flower._flwr import Server, check_release
    from consilience.engines.flower.grid import GridLink, read_secret
    from consilience.engines.study_run import coordinator_key

    check_release()
    own = coordinator_key(study, keys)
    server = Server(address, None if insecure else keys / CA)
    server.root()
    secret = read_secret(keys / SECRET)

    def open_link() -> Link:
        try:
            return GridLink(server, secret, keys / ".turn")
        except LinkLost as lost:
            raise LinkLost(f"SuperLink {address}: {lost}") from None

    return FlowerEngine(open_link, study.sites.names, own, study.sites.keys, on_note=on_note)


def serve(
    file: SiteFile,
    address: str,
    keys: Path,
    *,
    insecure: bool = False,
    is_over: Callable[[], bool],
    poll: float = 0.2,
    confirm: Confirm | None = None,
    hold: bool = False,
    on_event: OnNote | None = None,
) -> None:
    """Be the node of a site until told to stop.

    Parameters
    ----------
    file : SiteFile
    address : str
        ``host:port`` of the SuperLink.
    keys : Path
        The site's directory: ``consilience.key``, ``node.key``, ``ca.crt``.
    insecure : bool
        Without TLS and node key, for trials on one machine.
    is_over : callable
    poll : float
        Seconds between two looks for messages.
    hold : bool
        Every reply waits for the steward's release, whatever the site file says.

    Raises
    ------
    StudyError
        A file is missing, or the site trusts no coordinator.
    RunError
        Another process serves the home.
    """
    from consilience.engines.flower._flwr import Server, check_release
    from consilience.engines.flower.node import FlowerNode

    check_release()
    server = Server(address, None if insecure else keys / CA)
    server.root()
    site = file_site(file, confirm=confirm, cache=True, hold="all" if hold else None)
    desk = Desk(
        site,
        SigningKey.load(keys),
        file.trust.coordinators,
        check=lambda text: check_here(file, text),
        on_event=on_event,
    )
    next_purge = 0.0

    def is_over_or_late() -> bool:
        nonlocal next_purge
        if file.retention.days is not None and time.monotonic() >= next_purge:
            next_purge = time.monotonic() + DAY
            for run in purge_old(site, file.retention.days):
                if on_event is not None:
                    on_event("purged", {"run": run})
        return is_over()

    with sole(site.home):
        node = FlowerNode(
            server,
            None if insecure else keys / NODE_KEY,
            desk.handle,
            on_event,
            memory=None if insecure else file.home_path / _MEMORY,
            most=site.policy.max_message_bytes,
        )
        node.serve(is_over_or_late, poll=poll)


def check_here(file: SiteFile, text: str) -> dict[str, Any]:
    """Say whether a study could run on this site's table, in sentences that may leave it.

    No gate and no budget stands before this answer. Cells are looked at only for a study that the
    steward has approved by name; for others columns and types are all that is told.
    """
    from consilience.engines.study_check import check_one, check_schema, told_kinds
    from consilience.engines.study_run import method_of

    # The text that was signed, not a file of this machine: the hash is that of what is asked.
    study = Study.from_canonical(text)
    if file.name not in study.sites.names:
        raise StudyError("another study", public="the study does not name this site")
    site, method = file_site(file), method_of(study, rows=False)
    if not site.approves(study.hash()):
        raise PrivacyError.shared("the study is not among those that the steward has approved")
    approved = site.has_approved(study.hash())
    found = check_one(study, file, method) if approved else check_schema(study, file)
    if found.error is not None:
        return {"able": False, "said": [found.error.public]}
    return {"able": True, "said": [], "kinds": told_kinds(found, study)}


@dataclass(frozen=True)
class Seen:
    """What one site answered before a run.

    Attributes
    ----------
    site : str
    connected : bool
    release : str
    skew : float
        Seconds by which the site's clock is ahead of ours.
    able : bool
    said : tuple of str
        What stands against taking part.
    kinds : dict of str to str
        Types of the study's columns.
    """

    site: str
    connected: bool
    release: str = ""
    skew: float = 0.0
    able: bool = False
    said: tuple[str, ...] = ()
    kinds: dict[str, str] | None = None


def look(study: Study, through: FlowerEngine, *, seconds: float = 20.0) -> list[Seen]:
    """Ask every site who it is and whether the study could run there.

    Raises
    ------
    LinkLost
        The SuperLink cannot be reached.
    """
    from consilience import __version__

    well = {one.site: one for one in health(study, through, seconds=seconds)}
    there = any(one.state != "unknown" for one in well.values())
    asked = {"study": study.canonical()}
    checked = through.ask_everyone("check", asked, seconds=3 * seconds) if there else {}
    found = []
    for name in study.sites.names:
        one, answer = well[name], checked.get(name)
        verdict = None if answer is None else answer.said
        if one.state == "unknown":
            found.append(Seen(name, AWAY not in one.troubles, said=one.troubles))
            continue
        said = ["it did not answer"]
        if verdict is not None:
            told = verdict.get("said")
            # However many a site says, and of whatever kind: twenty short lines are read.
            said = [_plain(text) for text in told[:20]] if isinstance(told, list) else []
        # Another release may read the study otherwise: its yes counts for nothing.
        able = verdict is not None and verdict.get("able") is True and one.release == __version__
        told = (verdict or {}).get("kinds")
        kinds = None
        if isinstance(told, Mapping):
            kinds = {str(column): _plain(kind) for column, kind in told.items()}
        skew = one.skew or 0.0
        found.append(Seen(name, True, one.release, skew, able, (*said, *one.troubles), kinds))
    return found


def health(study: Study, through: FlowerEngine, *, seconds: float = 20.0) -> list[SiteHealth]:
    """Ask every site how it is.

    Raises
    ------
    LinkLost
        The SuperLink cannot be reached.
    """
    through.require_link()
    found = []
    for name, answer in through.ask_everyone("hello", {}, seconds=seconds).items():
        beat, skew, fault = None, None, AWAY
        if answer is not None:
            try:
                beat = Heartbeat.from_bytes(json.dumps(answer.said).encode())
                beat = replace(beat, release=_plain(beat.release)[:40])
                skew = beat.time - (answer.asked + answer.arrived) / 2
                # What the way there and back hides is no difference of clocks.
                skew = 0.0 if abs(skew) <= (answer.arrived - answer.asked) / 2 else skew
            except WireError:
                fault = "what it says of itself cannot be read: install the same release there"
        found.append(judged(name, beat, method=study.method, skew=skew, fault=fault))
    return found


def _plain(text: object) -> str:
    """What a site says, fit for a terminal: short and without control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:300])


def differences(study: Study, found: list[Seen]) -> list[str]:
    """Say in which columns the tables differ between sites, by column and site."""
    from consilience.engines.study_check import told_apart

    if study.partition == "columns":
        return []
    return told_apart(study.columns, {one.site: one.kinds for one in found})


def certificate_remarks(keys: Path) -> list[str]:
    """What to say of a certificate that ends soon."""
    if not (keys / CA).is_file():
        return []
    left = days_left(keys / CA)
    soon = f"ends in {left:.0f} days: renew it."
    said = "has expired: nothing can connect until it is renewed." if left <= 0 else soon
    return [f"The certificate {keys / CA} {said}"] if left < FEW_DAYS else []
