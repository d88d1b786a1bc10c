"""The pages of the steward's desk: replies, studies, account, log; `pages` says what guards them.

Nothing on a page is a value of the data: replies are told by fields, classes and sizes, and lines
of the log without their own words (`sites.steward.TOLD`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from consilience import __version__
from consilience.desk.pages import Pages, ago, guarded, require_extra
from consilience.desk.pages import serve as serve_pages
from consilience.engines.health import LITTLE_DISK
from consilience.exceptions import ConsilienceError, RunError, StudyError
from consilience.protocol.method import get_method
from consilience.report.disclosure import CLASSES
from consilience.report.html import meanings_of
from consilience.sites import steward
from consilience.sites.policy import PRESETS, Policy
from consilience.sites.site import COORDINATORS
from consilience.sites.site_store import DiskStore, Job
from consilience.sites.source import expand
from consilience.sites.steward import bundle, public
from consilience.sites.study import SiteFile, Study
from consilience.wire.signing import SigningKey

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

GATE = {
    "released": "the gate found that it may leave",
    "withheld": "has gaps: the gate kept back cells of too few records, or there are none",
    "repeated": "the last release again, because too few records have changed since",
    "public": "says nothing of any record, so no rule applies",
}
_SHOWN_LINES, _SHOWN_ANSWERS, _SHOWN_REFUSALS, _LOOKED_AT = 200, 100, 10, 1000
_READ = 1 << 22
"""Bytes from the end of the log that its page reads: a log of years is larger than a page needs."""
NAV = (
    ("waiting", "/", "Waiting"),
    ("studies", "/studies", "Studies"),
    ("left", "/left", "What left"),
    ("account", "/account", "Account"),
    ("log", "/log", "Log"),
    ("health", "/health", "Health"),
    ("audit", "/audit.zip", "Audit bundle"),
)
FOOT = (
    "No page shows a value of the data; to see the numbers of a reply, use "
    "'consilience site preview --values' at a terminal."
)


class Desk:
    """What the pages say, and the decisions that are made on them.

    Parameters
    ----------
    path : Path
        The site file. It is read anew for each page, as its steward may change it.
    key : SigningKey, optional
        By which audit bundles are signed.
    """

    def __init__(self, path: Path, key: SigningKey | None = None) -> None:
        self.path, self.key = path, key

    @property
    def file(self) -> SiteFile:
        """The site file as it is now."""
        return SiteFile.load(self.path)

    @property
    def policy(self) -> Policy:
        """Its policy; a watch keeps the one with which it was started."""
        return Policy.from_settings(self.file.policy)

    @property
    def home(self) -> DiskStore:
        """The home of the site; a watch may be at work in it."""
        return steward.home_of(self.file)

    def job(self, name: str) -> Job:
        """A reply that waits, by name; `RunError` where it does not (any more)."""
        for job in self.home.jobs.waiting():
            if job.name == name:
                return job
        raise RunError(f"no reply {name[:120]!r} waits here: it was decided on, or never held")

    def waiting(self) -> dict[str, Any]:
        """Replies that wait, and what is damaged among them."""
        jobs = [(job, ago(job.facts["since"])) for job in self.home.jobs.waiting()]
        return {"jobs": jobs, "damages": [str(error) for error in self.home.jobs.damages()]}

    def reply(self, name: str) -> dict[str, Any]:
        """What a waiting reply would tell."""
        job = self.job(name)
        found = steward.waiting(self.home, job)
        fields = list(steward.told(found.message, found.reply.verdicts))
        return {
            "job": job,
            "since": ago(job.facts["since"]),
            "method": found.method,
            "asked": found.asked,
            "fields": fields,
            "classes": {f.disclosure: CLASSES[f.disclosure] for f in fields},
            "verdicts": {f.verdict: GATE[f.verdict] for f in fields if f.verdict in GATE},
        }

    def release(self, name: str) -> str:
        """Let a waiting reply leave; returns what was done."""
        job = self.job(name)
        if not self.home.jobs.release(job.run, job.round, job.attempt):
            raise RunError(f"reply {job.name} was decided on meanwhile: look at the log")
        return f"Released {job.name}: a watch that is running sends it."

    def refuse(self, name: str, reason: str) -> str:
        """Let a refusal leave instead; returns what was done."""
        job = self.job(name)
        if not self.home.jobs.refuse(job.run, job.round, job.attempt, reason):
            raise RunError(f"reply {job.name} was decided on meanwhile: look at the log")
        return f"Refused {job.name}: the coordinator reads that it was not released, and no reason."

    def study(self, text: str) -> dict[str, Any]:
        """What a study file says, before it is approved."""
        try:
            study = Study.from_settings(tomllib.loads(text), where="the text")
        except (ValueError, RecursionError):
            raise StudyError("the text is no study file: paste the whole of STUDY.toml") from None
        if study.reference is not None and study.reference.sha256 is None:
            # A text that is pasted here opens no file.
            raise StudyError("the study's [reference] has no sha256: approve it by the command")
        method = get_method(study.method)
        stated = method.from_parameters(study.parameters)
        preparation = {k: _words(v) for k, v in dict(study.preparation_table).items()}
        columns = {k: _words(v) for k, v in dict(study.data).items() if v}
        parameters = {k: _words(getattr(stated, k)) for k in study.parameters}
        return {
            "study": study,
            "hash": study.hash(),
            # For a hidden field, where every letter stays as it is.
            "text": escape(text),
            "lines": text.replace("\r\n", "\n"),
            "method": method,
            "parameters": parameters,
            "columns": columns,
            "preparation": preparation,
            "here": self.file.name in study.sites.names,
            "grants": method.foreign_models and not self.policy.foreign_models,
        }

    def approve(self, text: str) -> str:
        """Let a study run here; returns what was done."""
        study = self.study(text)["study"]
        steward.approve(self.file, study, "the study")
        return (
            f"Approved study {study.name}: studies that are not approved are refused from now on."
        )

    def account(self) -> dict[str, Any]:
        """What runs have used of what the policy allows, and what they left at the site."""
        home = self.home
        found = steward.account(home, self.policy)
        kept = home.recorded()
        runs = [(run, home.output_names(run), run in kept) for run in reversed(found.runs)]
        return {"account": found, "runs": runs, "settings": list(settings_of(self.policy))}

    def log(self, run: str = "", event: str = "") -> dict[str, Any]:
        """Lines of the site's own log, the newest first, without words that may quote a cell."""
        whole, read = self.home.read_log_end(_READ)
        lines = [public(line) for line in read]
        wanted = {"run": run, "event": event}
        chosen = [
            x for x in lines if all(not v or str(x.get(k, "")) == v for k, v in wanted.items())
        ]
        return {
            "lines": chosen[::-1][:_SHOWN_LINES],
            "n_lines": len(chosen),
            "whole": whole,
            "chain": self.home.checked_log()[1] if whole else None,
            "runs": sorted({str(x["run"]) for x in lines if "run" in x}),
            "events": sorted({str(x.get("event", "")) for x in lines}),
            "where": self.home.where("log.jsonl"),
            "wanted": wanted,
        }

    def left(self, run: str = "", method: str = "", step: str = "") -> dict[str, Any]:
        """What the site has answered, field by field, the last run first."""
        home = self.home
        wanted = {"run": run, "method": method, "step": step}
        found = steward.answers(home, **wanted)
        shown = list(islice(found, _SHOWN_ANSWERS))
        return {
            "answers": shown,
            "more": next(found, None) is not None,
            "runs": sorted(home.recorded()),
            "methods": sorted({a.method for a in shown} | {method} - {""}),
            "steps": sorted({a.step for a in shown} | {step} - {""}),
            "wanted": wanted,
            "verdicts": {
                f.verdict: GATE[f.verdict] for a in shown for f in a.fields if f.verdict in GATE
            },
        }

    def health(self) -> dict[str, Any]:
        """Whether the site can do its work: what was looked at, if it is fine, and what it says."""
        file, policy, home = self.file, self.policy, self.home
        refused: list[steward.Answer] = []

        def answers() -> str:
            last = list(islice(steward.answers(home), _LOOKED_AT))
            refused.extend(a for a in last if a.outcome in ("refused", "damaged"))
            bad = sum(a.outcome == "damaged" for a in last)
            if bad:
                raise RunError(f"{bad} of the last {len(last)} replies cannot be read again")
            return f"{len(refused)} of the last {len(last)} replies are refusals"

        def account() -> str:
            found = steward.account(home, policy)
            most = "any number" if found.max_runs is None else str(found.max_runs)
            if found.max_runs is not None and len(found.runs) >= found.max_runs:
                raise RunError(f"all {most} runs that the policy allows are used up")
            return f"{len(found.runs)} of {most} runs opened on data set {policy.data_id}"

        looks: list[tuple[str, Callable[[], str]]] = [
            ("Table", lambda: _table(file)),
            ("Home", lambda: _disk(home)),
            ("Watch", lambda: _watch(home)),
            ("Keys", lambda: self._keys(file)),
            ("Account", account),
            ("Log", lambda: _chain(home)),
            ("Waiting", lambda: _waiting(home)),
            ("Replies", answers),
            ("Coordinators", lambda: _coordinators(home)),
        ]
        looked = [("Release", True, f"consilience {__version__}")]
        for about, look in looks:
            try:
                looked.append((about, True, look()))
            except (ConsilienceError, OSError) as error:
                said = error.strerror if isinstance(error, OSError) else str(error)
                looked.append((about, False, str(said)))
        return {"looked": looked, "refused": refused[:_SHOWN_REFUSALS]}

    def _keys(self, file: SiteFile) -> str:
        own = "audit bundles are not signed, since the desk was opened without the site's key"
        if self.key is not None:
            own = f"audit bundles are signed by {self.key.public}"
        if file.partners is None:
            return own
        return f"{own}; the partner key {'can be read' if file.partner_key() else 'is missing'}"

    def audit(self) -> bytes:
        """A bundle for an auditor, signed where the desk has the site's key."""
        return bundle(self.file.name, self.home, self.policy, self.key)


def _table(file: SiteFile) -> str:
    """Whether the table is there; it is not read, which may take long."""
    if file.source.path is None:
        return "in a database, which is asked when a run begins"
    path = file.base / expand(file.source.path)
    try:
        found = path.stat()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    return f"{path.name}, {found.st_size:,} bytes, changed {ago(found.st_mtime)}"


def _disk(home: DiskStore) -> str:
    free = shutil.disk_usage(home.path).free
    said = f"{free / 1e9:,.1f} GB are free for {home.path}"
    if free < LITTLE_DISK:
        raise RunError(f"{said}: make room, since no reply leaves that cannot be kept")
    return said


def _watch(home: DiskStore) -> str:
    """Who serves the home holds its lock: the kernel's list says so, and nobody is disturbed."""
    last = max(home.recorded().values(), default=None)
    answered = "nothing was answered yet" if last is None else f"last answer {ago(last)}"
    lock, runs = home.path / ".lock", False
    if lock.exists():
        try:
            held = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
        except OSError:  # no Linux
            return answered
        of = [line.split()[5] for line in held.splitlines() if " FLOCK " in line]
        runs = any(_is_at(place, lock.stat()) for place in of)
    # Locks of another machine, or of another container, are not in the list.
    return f"{'serves' if runs else 'none on this machine serves'} this home now; {answered}"


def _is_at(place: str, file: os.stat_result) -> bool:
    """Whether a line of the kernel's list is of this file: two disks may use one inode's number."""
    major, minor, inode = place.split(":")
    disk = int(major, 16), int(minor, 16)
    # Some file systems (overlay, btrfs) have devices without a number of their own, of major 0.
    named = disk[0] and os.major(file.st_dev)
    own = disk == (os.major(file.st_dev), os.minor(file.st_dev))
    return int(inode) == file.st_ino and (own or not named)


def _chain(home: DiskStore) -> str:
    chain = home.checked_log()[1]
    if chain.broken:
        raise RunError(str(chain))
    return str(chain)


def _waiting(home: DiskStore) -> str:
    damages = home.jobs.damages()
    if damages:
        raise damages[0]
    n = len(home.jobs.waiting())
    return f"{n} wait{'s' * (n == 1)} for you" if n else "none waits for you"


def _coordinators(home: DiskStore) -> str:
    opened = Counter(map(str, home.ledger(COORDINATORS).values()))
    runs = (f"{by[:80]} ({n} run{'s' * (n != 1)})" for by, n in sorted(opened.items()))
    return ", ".join(runs) or "none has signed a run here"


def settings_of(policy: Policy) -> Iterator[tuple[str, str, str, bool]]:
    """Each limit of a policy: name, value, meaning, and whether it is as its preset says."""
    meanings = meanings_of(Policy)
    preset = PRESETS[policy.preset]
    for name, value in vars(policy).items():
        if name not in ("preset", "data_id"):
            # In a site file "none" is written, and on the page what it says.
            meaning = re.sub(r"\bNone is\b", "no limit is", meanings.get(name, ""))
            yield name, _in_words(value), meaning, preset.get(name, value) == value


def _in_words(value: object) -> str:
    if value is None:
        return "no limit"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


def _words(value: object) -> str:
    """A setting of a study, whole."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def app(desk: Desk, token: str, hosts: frozenset[str]) -> Callable[..., Any]:
    """Build the application.

    Parameters
    ----------
    desk : Desk
    token : str
        First part of every address.
    hosts : frozenset of str
        What ``Host`` may say, with the port.

    Raises
    ------
    MissingExtraError
    """
    require_extra()
    from starlette.responses import Response
    from starlette.routing import Route

    def facts() -> dict[str, Any]:
        # Without a key a bundle proves nothing of who made it: its link says so.
        nav = NAV if desk.key else (*NAV[:-1], (*NAV[-1][:2], f"{NAV[-1][2]}, not signed"))
        of = {"desk": "steward's desk", "owner": desk.file.name, "nav": nav, "foot": FOOT}
        return {**of, "policy": desk.policy}

    pages = Pages(token, facts)

    def name_of(request: Request) -> str:
        return f"{request.path_params['run']}/{request.path_params['job']}"

    def audit() -> Response:
        name = f"audit-{desk.file.name}{'' if desk.key else '-not-signed'}.zip"
        named = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(desk.audit(), media_type="application/zip", headers=named)

    def asked(request: Request, *names: str) -> list[str]:
        return [request.query_params.get(name, "") for name in names]

    job = "/job/{run}/{job}"
    routes = [
        Route("/", pages.show("waiting", lambda _: desk.waiting())),
        Route(job, pages.show("reply", lambda r: desk.reply(name_of(r)))),
        Route(
            f"{job}/release",
            pages.decide(lambda r, _: desk.release(name_of(r)), "/"),
            methods=["POST"],
        ),
        Route(
            f"{job}/refuse",
            pages.decide(lambda r, form: desk.refuse(name_of(r), form.get("reason", "")), "/"),
            methods=["POST"],
        ),
        Route("/studies", pages.show("studies", lambda _: desk.account())),
        Route(
            "/studies/look",
            pages.look("study", lambda form: desk.study(form.get("text", ""))),
            methods=["POST"],
        ),
        Route(
            "/studies/approve",
            pages.decide(lambda _, form: desk.approve(form.get("text", "")), "/studies"),
            methods=["POST"],
        ),
        Route("/account", pages.show("account", lambda _: desk.account())),
        Route("/left", pages.show("left", lambda r: desk.left(*asked(r, "run", "method", "step")))),
        Route("/log", pages.show("log", lambda r: desk.log(*asked(r, "run", "event")))),
        Route("/health", pages.show("health", lambda _: desk.health())),
        Route("/audit.zip", pages.send(lambda _: audit())),
    ]
    return guarded(routes, token, hosts)


def serve(path: Path, port: int, tell: Callable[[str], None], key: Path | None = None) -> None:
    """Serve the desk on the loopback address until stopped.

    Parameters
    ----------
    path : Path
        The site file.
    port : int
        0 takes one that is free.
    tell : callable
        Is told the address, secret included.
    key : Path, optional
        The site's private key, or its directory.

    Raises
    ------
    MissingExtraError
    RunError
        The port is taken, or the site has no home yet.
    """
    require_extra()
    desk = Desk(path, None if key is None else SigningKey.load(key))
    steward.home_of(desk.file)
    serve_pages(partial(app, desk), f"site {desk.file.name}", port, tell)
