"""What the shim hands over to where Flower's own processes load it.

A stock SuperNode that was given a site file answers like our node does, in a new process for every
message; the site's rows are then read again each time, or come from the cache in its home. It would
execute any other app just as well, and with ``--trusted-entities`` it refuses this one too, because
only an app hub can sign: so it suits trials, not organisations that do not trust one another.
A stock SuperLink that serves runs itself has no person's
run directory to write into, so the server half only says what to do.
"""

from __future__ import annotations

from pathlib import Path

from consilience.engines.flower._flwr import check_release, packed, unpacked
from consilience.engines.flower.handler import HOME_FAILED, NOT_OURS, UNFORESEEN, Content, Desk
from consilience.engines.flower.join import check_here
from consilience.exceptions import EngineError, RunError
from consilience.sites.loaders import file_site
from consilience.sites.site_store import sole
from consilience.sites.study import SiteFile
from consilience.wire.signing import SigningKey

# isort: split
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()


@client.query("consilience")
def answer(message: Message, context: Context) -> Message:
    """Answer one message at a stock SuperNode; nothing that is raised in here gets out."""
    try:
        reply = _answer(message, context)
    except Exception:  # noqa: BLE001  Flower would send its text to the server
        reply = {"status": "ignored", "reason": UNFORESEEN}
    return Message(packed(reply), reply_to=message)


def _answer(message: Message, context: Context) -> Content:
    check_release()
    content = unpacked(message)
    if content is None:
        return {"status": "ignored", "reason": NOT_OURS}
    file = SiteFile.load(Path(str(context.node_config["site"])))
    key = SigningKey.load(Path(str(context.node_config["keys"])))
    site = file_site(file, cache=True)
    desk = Desk(site, key, file.trust.coordinators, check=lambda text: check_here(file, text))
    if content.get("kind") != "ask":
        return desk.handle(content)
    try:
        # Budgets are read and written: one process at a time, as in every other place.
        with sole(site.home):
            return desk.handle(content)
    except RunError:
        return {"status": "ignored", "reason": HOME_FAILED}


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Refuse: the coordinator is the process of who runs the study."""
    raise EngineError(
        "the SuperLink serves runs itself: start it with 'consilience flower coordinator', and "
        "studies with 'consilience flower run'"
    )
