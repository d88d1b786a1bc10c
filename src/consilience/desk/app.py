"""The pages of the steward's desk, and what guards them.

``consilience site desk`` serves them on the loopback address, under a secret that is part of every
address. Nothing on a page is a value of the data: replies are told by fields, classes and sizes,
and lines of the log without their own words (`_TOLD`).
Who may decide is who has the secret, and only from these pages:

- A request for another host name is refused: a foreign name that leads here (rebinding) is none of
  ours.
- A decision is a POST whose ``Origin`` is the desk itself. A foreign page can send a form here, but
  not from this origin, and it does not know the secret.
- Pages load nothing, run no script, and stand in no frame of another page. Names that others chose
  are escaped, and letters in them that steer a reading are shown as codes.
"""

from __future__ import annotations

import hmac
import io
import json
import secrets
import socket
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from consilience.exceptions import (
    ConsilienceError,
    MissingExtraError,
    RunError,
    StudyError,
    steerless,
)
from consilience.protocol.method import get_method
from consilience.report.disclosure import CLASSES
from consilience.sites import steward
from consilience.sites.policy import Policy
from consilience.sites.site_store import DiskStore, Job
from consilience.sites.study import SiteFile, Study

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

GATE = {
    "released": "the gate found that it may leave",
    "withheld": "has gaps: the gate kept back cells of too few records, or there are none",
    "repeated": "the last release again, because too few records have changed since",
    "public": "says nothing of any record, so no rule applies",
}
_HERE = Path(__file__).parent
_MOST_FORM = 1 << 18
_SHOWN_LINES = 200
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not "no-referrer": a browser would then hide the origin of a form, by which we know it.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def _shown(value: object) -> object:
    return (
        value
        if isinstance(value, Markup) or not isinstance(value, str)
        else steerless(value, keep="\n")
    )


class Desk:
    """What the pages say, and the decisions that are made on them.

    Parameters
    ----------
    path : Path
        The site file. It is read anew for each page, as its steward may change it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

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
        jobs = [(job, _ago(job.facts["since"])) for job in self.home.jobs.waiting()]
        return {"jobs": jobs, "damages": [str(error) for error in self.home.jobs.damages()]}

    def reply(self, name: str) -> dict[str, Any]:
        """What a waiting reply would tell."""
        job = self.job(name)
        found = steward.waiting(self.home, job)
        fields = list(steward.told(found.message, found.reply.verdicts))
        return {
            "job": job,
            "since": _ago(job.facts["since"]),
            "method": found.method,
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
        return {"account": found, "runs": runs}

    def log(self, run: str = "", event: str = "") -> dict[str, Any]:
        """Lines of the site's own log, the newest first, without words that may quote a cell."""
        lines = [_told(line) for line in self.home.read_log()]
        wanted = {"run": run, "event": event}
        chosen = [
            x for x in lines if all(not v or str(x.get(k, "")) == v for k, v in wanted.items())
        ]
        return {
            "lines": chosen[::-1][:_SHOWN_LINES],
            "n_lines": len(chosen),
            "runs": sorted({str(x["run"]) for x in lines if "run" in x}),
            "events": sorted({str(x.get("event", "")) for x in lines}),
            "where": self.home.where("log.jsonl"),
            "wanted": wanted,
        }

    def audit(self) -> bytes:
        """A bundle for an auditor: log, account, policy, decisions; a digest of each, no data."""
        home, account = self.home, steward.account(self.home, self.policy)
        decided = [
            {"job": job.name, "state": job.state, **job.facts} for job in self.home.jobs.all()
        ]
        policy = {k: v for k, v in vars(self.policy).items()}
        contents = {
            "log.jsonl": "".join(
                json.dumps(_told(x), sort_keys=True) + "\n" for x in home.read_log()
            ),
            "account.json": json.dumps(vars(account), indent=1, sort_keys=True) + "\n",
            "policy.json": json.dumps(policy, indent=1, sort_keys=True) + "\n",
            "decisions.json": json.dumps(decided, indent=1, sort_keys=True) + "\n",
        }
        digests = {name: sha256(text.encode()).hexdigest() for name, text in contents.items()}
        contents["sha256.json"] = json.dumps(
            {"site": self.file.name, "files": digests}, indent=1, sort_keys=True
        )
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, text in contents.items():
                bundle.writestr(name, text)
        return packed.getvalue()


_TOLD = ("time", "event", "run", "round", "attempt", "step", "told", "outcome", "file")
"""What is shown of a line of the site's log. Its own words (reasons, traces, what was said of a
table) may quote a cell or name a level, and stay in the home."""


def _told(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: line[key] for key in _TOLD if key in line}


def _words(value: object) -> str:
    """A setting of a study, whole."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _ago(since: object) -> str:
    if not isinstance(since, int | float):
        return "at a time that cannot be read"
    seconds = max(time.time() - since, 0.0)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            n = int(seconds // length)
            return f"{n} {unit}{'s' * (n != 1)} ago"
    return "just now"


# --------------------------------------------------------------------------- pages


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
    try:
        from starlette.applications import Starlette
        from starlette.responses import HTMLResponse, RedirectResponse, Response
        from starlette.routing import Mount, Route
    except ImportError:
        raise MissingExtraError("desk", "the steward's desk") from None

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["part"] = lambda text: quote(str(text), safe="/")
    style = Markup((_HERE.parent / "report" / "templates" / "style.css").read_text("utf-8"))

    def page(name: str, status: int = 200, **facts: Any) -> Response:
        shown = {"site": desk.file.name, "policy": desk.policy, "style": style, "root": f"/{token}"}
        text = environment.get_template(f"{name}.html").render(page=name, **shown, **facts)
        return HTMLResponse(text, status_code=status)

    def show(name: str, facts: Callable[[Request], dict[str, Any]]) -> Callable[..., Response]:
        def answer(request: Request) -> Response:
            try:
                return page(name, said=request.query_params.get("said", ""), **facts(request))
            except ConsilienceError as error:
                return page("error", 400, sentence=str(error))

        return answer

    def decide(action: Callable[[Request, dict[str, str]], str], to: str) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            body = await request.body()
            if len(body) > _MOST_FORM:
                return page("error", 413, sentence="the form is too long")
            form = {k: v[0] for k, v in parse_qs(body.decode("utf-8", "replace")).items()}
            try:
                said = action(request, form)
            except ConsilienceError as error:
                return page("error", 400, sentence=str(error))
            # A page that is loaded again must not decide again.
            return RedirectResponse(f"/{token}{to}?said={quote(said)}", status_code=303)

        return answer

    def name_of(request: Request) -> str:
        return f"{request.path_params['run']}/{request.path_params['job']}"

    async def look(request: Request) -> Response:
        body = await request.body()
        if len(body) > _MOST_FORM:
            return page("error", 413, sentence="the form is too long")
        form = parse_qs(body.decode("utf-8", "replace"))
        try:
            return page("study", said="", **desk.study(form.get("text", [""])[0]))
        except ConsilienceError as error:
            return page("error", 400, sentence=str(error))

    def audit(_: Request) -> Response:
        named = {"Content-Disposition": f'attachment; filename="audit-{desk.file.name}.zip"'}
        try:
            return Response(desk.audit(), media_type="application/zip", headers=named)
        except ConsilienceError as error:
            return page("error", 400, sentence=str(error))

    def asked(request: Request) -> dict[str, Any]:
        wanted = request.query_params
        return desk.log(wanted.get("run", ""), wanted.get("event", ""))

    job = "/job/{run}/{job}"
    routes = [
        Route("/", show("waiting", lambda _: desk.waiting())),
        Route(job, show("reply", lambda r: desk.reply(name_of(r)))),
        Route(
            f"{job}/release", decide(lambda r, _: desk.release(name_of(r)), "/"), methods=["POST"]
        ),
        Route(
            f"{job}/refuse",
            decide(lambda r, form: desk.refuse(name_of(r), form.get("reason", "")), "/"),
            methods=["POST"],
        ),
        Route("/studies", show("studies", lambda _: desk.account())),
        Route("/studies/look", look, methods=["POST"]),
        Route(
            "/studies/approve",
            decide(lambda _, form: desk.approve(form.get("text", "")), "/studies"),
            methods=["POST"],
        ),
        Route("/account", show("account", lambda _: desk.account())),
        Route("/log", show("log", asked)),
        Route("/audit.zip", audit),
    ]
    # Around all of it, so that what fails inside has the guard's headers too.
    return _Guard(Starlette(routes=[Mount(f"/{token}", routes=routes)]), token, hosts)


class _Guard:
    """Refuses what does not come from the desk's own pages; see the module's text."""

    def __init__(self, app: Any, token: str, hosts: frozenset[str]) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import PlainTextResponse

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await PlainTextResponse(refusal[1] + "\n", refusal[0])(scope, receive, guarded)

    def _refusal(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if host not in self._hosts:
            return 421, "the desk is on the loopback address only"
        given = path.split("/")[1] if path.count("/") else ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return 404, "open the address that 'consilience site desk' printed"
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "there is nothing here to ask for in that way"
        if headers.get("origin", "") != f"http://{host}":
            return 403, "a decision is made on the desk's own pages only"
        return None


# --------------------------------------------------------------------------- serving


def serve(path: Path, port: int, tell: Callable[[str], None]) -> None:
    """Serve the desk on the loopback address until stopped.

    Parameters
    ----------
    path : Path
        The site file.
    port : int
        0 takes one that is free.
    tell : callable
        Is told the address, secret included.

    Raises
    ------
    MissingExtraError
    RunError
        The port is taken, or the site has no home yet.
    """
    try:
        import uvicorn
    except ImportError:
        raise MissingExtraError("desk", "the steward's desk") from None

    desk = Desk(path)
    steward.home_of(desk.file)
    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(f"port {port} cannot be used: {error.strerror}") from None
        where = f"127.0.0.1:{listening.getsockname()[1]}"
        token = secrets.token_urlsafe(24)
        # By number alone: under the name localhost somebody else may listen on this port.
        made = app(desk, token, frozenset((where,)))
        tell(f"http://{where}/{token}/")
        # No log of requests: their addresses have the secret.
        settings = uvicorn.Config(
            made,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
        )
        uvicorn.Server(settings).run(sockets=[listening])
