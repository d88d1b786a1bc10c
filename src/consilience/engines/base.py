"""What an engine is: it moves bytes between the coordinator and the sites, and knows no method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

Key = tuple[int, str]


@dataclass(frozen=True)
class Arrival:
    """Something that came back: the bytes of a reply, or the reason why there are none.

    Attributes
    ----------
    key : (int, str)
        Round and site.
    data : bytes or None
    reason : str
        Why the site is absent, if it is.
    """

    key: Key
    data: bytes | None
    reason: str = ""


class Engine(ABC):
    """Moves requests and replies.

    Attributes
    ----------
    name : str
    sites : tuple of str
    seals : bool
        Whether only the party for whom a message is can open it; otherwise whoever carries it can.
    apart : bool
        Whether each site answers in its own time, perhaps days later: who has answered is then
        written down, and said, before the others have.
    """

    name: str
    sites: tuple[str, ...]
    seals: bool = False
    apart: bool = False

    @abstractmethod
    def send(self, requests: Mapping[Key, bytes]) -> None:
        """Hand over requests; sending the same one again is harmless."""

    @abstractmethod
    def collect(self, keys: frozenset[Key], *, wait: str, deadline: float) -> list[Arrival]:
        """Wait for replies to open requests.

        Parameters
        ----------
        keys : frozenset of (round, site)
            Open requests of interest.
        wait : {"all", "any"}
            Return when every one is answered (or its deadline has passed), or with the next one.
        deadline : float
            Seconds after which a site counts as absent.
        """

    def open_run(self, run: str) -> None:  # noqa: B027  an engine may have nothing to prepare
        """Prepare for a run (idempotent)."""

    def close_run(self, run: str) -> None:  # noqa: B027  nor to tidy up
        """Tidy up when a run has ended well."""
