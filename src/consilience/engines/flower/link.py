"""The seam between the exchange and Flower: what either end needs of a connection, and no more.

`FlowerEngine` speaks with a `Link`, a site's `Desk` is called by a node; neither imports Flower.
``grid.py`` and ``node.py`` have both over a real SuperLink; ``consilience.testing.fake_link`` has
both in one process, with losses, delays and repetitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from consilience.exceptions import EngineError

Value = str | int | bytes
Content = dict[str, Value]


class LinkLost(EngineError):
    """The connection, or Flower's run behind it, is gone: a new one may be opened."""


@dataclass(frozen=True)
class Delivered:
    """What came back for one message.

    Attributes
    ----------
    id : str
        Of the message that it answers.
    content : dict or None
        None where Flower has an error instead.
    fault : str
        Flower's kind of error. Its text may come from anybody and is not kept.
    """

    id: str
    content: Mapping[str, object] | None
    fault: str = ""


class Link(Protocol):
    """A coordinator's connection to the nodes of one SuperLink."""

    def nodes(self) -> tuple[int, ...]:
        """Return the nodes that are connected now; `LinkLost` where that cannot be known."""

    def push(self, node: int, content: Content, *, seconds: float) -> str:
        """Hand over a message that is of use for so long; returns its id, empty if not taken."""

    def pull(self, ids: Collection[str]) -> list[Delivered]:
        """Return what has come back for these messages, each at most once."""

    def close(self, *, well: bool) -> None:
        """End Flower's run behind the link."""
