"""How the desks show pages, and what guards these.

A desk is served on the loopback address, under a secret that is part of every address. Who may
decide is who has the secret, and only from its own pages:

- A request for another host name is refused: a foreign name that leads here (rebinding) is none of
  ours.
- A decision is a POST whose ``Origin`` is the desk itself. A foreign page can send a form here, but
  not from this origin, and it does not know the secret.
- Pages load nothing, run no script, and stand in no frame of another page. Names that others chose
  are escaped, and letters in them that steer a reading are shown as codes.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from consilience.exceptions import ConsilienceError, MissingExtraError, RunError, steerless

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_HERE = Path(__file__).parent
_MOST_FORM = 1 << 18
HEADERS = {
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


def ago(since: object) -> str:
    """How long ago, in words."""
    if not isinstance(since, int | float):
        return "at a time that cannot be read"
    seconds = max(time.time() - since, 0.0)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            n = int(seconds // length)
            return f"{n} {unit}{'s' * (n != 1)} ago"
    return "just now"


class Pages:
    """Makes answers of templates.

    Parameters
    ----------
    token : str
        First part of every address.
    facts : callable
        What every page says of its desk: ``desk`` (whose), ``owner``, ``nav`` (name, path and words
        of each page) and ``foot``.
    """

    def __init__(self, token: str, facts: Callable[[], dict[str, Any]]) -> None:
        self._token, self._facts = token, facts
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._environment.filters["part"] = lambda text: quote(str(text), safe="/")
        style = _HERE.parent / "report" / "templates" / "style.css"
        self._style = Markup(style.read_text("utf-8"))

    def page(self, name: str, status: int = 200, **facts: Any) -> Response:
        """A page of a template."""
        from starlette.responses import HTMLResponse

        shown = {**self._facts(), "style": self._style, "root": f"/{self._token}"}
        text = self._environment.get_template(f"{name}.html").render(page=name, **shown, **facts)
        return HTMLResponse(text, status_code=status)

    def show(self, name: str, facts: Callable[[Request], dict[str, Any]]) -> Callable[..., Any]:
        """Answer with a page, or with the sentence of an error."""

        def answer(request: Request) -> Response:
            try:
                return self.page(name, said=request.query_params.get("said", ""), **facts(request))
            except ConsilienceError as error:
                return self.page("error", 400, sentence=str(error))

        return answer

    def send(self, found: Callable[[Request], Response]) -> Callable[..., Any]:
        """Answer with a file, or with the sentence of an error."""

        def answer(request: Request) -> Response:
            try:
                return found(request)
            except ConsilienceError as error:
                return self.page("error", 400, sentence=str(error))

        return answer

    def decide(
        self, action: Callable[[Request, dict[str, str]], str], to: str
    ) -> Callable[..., Any]:
        """Act on a form, and go on to a page that says what was done."""
        from starlette.responses import RedirectResponse

        async def answer(request: Request) -> Response:
            form = await self._form(request)
            if form is None:
                return self.page("error", 413, sentence="the form is too long")
            try:
                said = action(request, form)
            except ConsilienceError as error:
                return self.page("error", 400, sentence=str(error))
            # A page that is loaded again must not decide again.
            return RedirectResponse(f"/{self._token}{to}?said={quote(said)}", status_code=303)

        return answer

    def look(self, name: str, facts: Callable[[dict[str, str]], dict[str, Any]]) -> Any:
        """Answer a form with a page."""

        async def answer(request: Request) -> Response:
            form = await self._form(request)
            if form is None:
                return self.page("error", 413, sentence="the form is too long")
            try:
                return self.page(name, said="", **facts(form))
            except ConsilienceError as error:
                return self.page("error", 400, sentence=str(error))

        return answer

    async def _form(self, request: Request) -> dict[str, str] | None:
        body = await request.body()
        if len(body) > _MOST_FORM:
            return None
        return {k: v[0] for k, v in parse_qs(body.decode("utf-8", "replace")).items()}


def guarded(routes: Sequence[Any], token: str, hosts: frozenset[str]) -> Callable[..., Any]:
    """An application of these routes under the secret.

    Parameters
    ----------
    routes : sequence of Route
    token : str
    hosts : frozenset of str
        What ``Host`` may say, with the port.
    """
    from starlette.applications import Starlette
    from starlette.routing import Mount

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
                own = MutableHeaders(scope=message)
                own.update({**HEADERS, **{k: own[k] for k in HEADERS if k in own}})
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
            return 404, "open the address that the desk's command printed"
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "there is nothing here to ask for in that way"
        if headers.get("origin", "") != f"http://{host}":
            return 403, "a decision is made on the desk's own pages only"
        return None


# --------------------------------------------------------------------------- serving


def require_extra() -> None:
    """Raise `MissingExtraError` where what serves pages is not installed."""
    try:
        import starlette
        import uvicorn
    except ImportError:
        raise MissingExtraError("desk", "a desk in the browser") from None
    del starlette, uvicorn


def serve(
    make: Callable[[str, frozenset[str]], Any], whose: str, port: int, tell: Callable[[str], None]
) -> None:
    """Serve a desk on the loopback address until stopped.

    Parameters
    ----------
    make : callable
        Builds the application from the secret and the hosts that are its own.
    whose : str
        For the sentence.
    port : int
        0 takes one that is free.
    tell : callable
        Is told the address, secret included.

    Raises
    ------
    RunError
        The port is taken.
    """
    import uvicorn

    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(f"port {port} cannot be used: {error.strerror}") from None
        where = f"127.0.0.1:{listening.getsockname()[1]}"
        token = secrets.token_urlsafe(24)
        # By number alone: under the name localhost somebody else may listen on this port.
        made = make(token, frozenset((where,)))
        tell(
            f"The desk of {whose} is open: go to http://{where}/{token}/ in a browser of this "
            "machine, show the address to nobody, and end with Ctrl-C."
        )
        # No log of requests: their addresses have the secret.
        settings = uvicorn.Config(
            made,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=5,  # a browser that reads slowly keeps nobody here
        )
        uvicorn.Server(settings).run(sockets=[listening])
