"""Flower engine: sites are nodes of a SuperLink, the coordinator is whoever runs the study.

Flower brings what is tedious and must be right between organisations: one port with TLS, nodes that
connect from inside their networks and are known by a key, messages that wait for a node that is
away. What it carries are our own envelopes (`engines.signed`), so it need not be trusted with what
they say: a SuperLink can lose, delay and repeat them, but neither read, write nor alter one.

Three departures from how Flower is mostly used, and their reasons:

1. **No code travels.** Flower hands the app of a run to every node, which executes it. Whoever may
   begin runs could so have any code run beside the rows, a gate taken out included. A site here
   (``node.py``) loads no app at all: it speaks Flower's interface and answers with the package that
   is installed there. The one app that our runs carry (``app/``) is a shim, the same for every
   study, and a site answers no run that carries another.
2. **The coordinator stays at home.** It is not an app that the server runs: it serves its run from
   the process that a person started (``grid.py``), so journal, transcript and results are in that
   person's run directory from the first byte on.
3. **Processes stay.** A stock SuperNode starts a new process for every message; here rows stay in
   memory between rounds, and a round takes a fraction of a second.

The protocol, in five rules:

1. A *place* (run, round, attempt, site) names one question. Ask and reply are envelopes that are
   bound to it; whatever is not signed for its place by who should is set aside, with one of a few
   words, and asked for again.
2. Which node is which site is asked (``hello``) and answered by signature; names that a node or
   the server gives count for nothing.
3. Both ends are idempotent. The coordinator may send an ask again after silence, an error, or the
   loss of the whole server; the site repeats its record.
4. The run of Flower is a vehicle: when it is lost, another is begun, and our own run goes on.
   Nothing of Flower's enters a request.
5. Nothing but our own sentences leaves a site, because Flower would send the text of an exception
   to the server.

Modules: ``coordinator.py`` and ``handler.py`` are the two ends, with the seam in it, which do not
import Flower; ``grid.py``, ``node.py``, ``server.py`` and ``_flwr.py`` do; ``keys.py`` makes
certificates and keys, ``join.py`` puts all of it together from a study's files.
"""

from __future__ import annotations

from consilience.engines.flower.coordinator import FlowerEngine
from consilience.engines.flower.handler import Delivered, Desk, Link, LinkLost

__all__ = ["Delivered", "Desk", "FlowerEngine", "Link", "LinkLost"]
