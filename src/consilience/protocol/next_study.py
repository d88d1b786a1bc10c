"""What the result of a run leads to: studies that it gives reason for, each with that reason.

A result names them in `Result.next_studies`, beside its method; here is what several wings say
alike. Other methods are named by text: a wing knows no other wing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consilience.protocol.method import Columns

CLEAR = 1.96
"""Standard errors above which a difference is said to be clear."""


@dataclass(frozen=True)
class Asked:
    """What a finished run asked, and of whom.

    Attributes
    ----------
    method : str
    parameters : mapping
    columns : Columns
        Of a run whose study names no response, with one that was named since.
    sites : tuple of str
    missing : str
        What happened to missing cells.
    follows : str
        Id of the run that it followed, or "".
    """

    method: str
    parameters: Mapping[str, Any]
    columns: Columns
    sites: tuple[str, ...]
    missing: str = "refuse"
    follows: str = ""

    @property
    def response(self) -> str:
        """The column that was explained, or ""."""
        return self.columns.target or ""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Features that are numbers."""
        return tuple(name for name in self.columns.features if name not in self.columns.levels)

    @property
    def regressible(self) -> bool:
        """Whether there are columns, and a response that is a number or one of two levels."""
        levels = self.columns.levels.get(self.response, ())
        return bool(self.response and self.columns.features) and len(levels) in (0, 2)


@dataclass(frozen=True, kw_only=True)
class NextStudy:
    """A study that a result gives reason for. What it does not name stays as it was.

    Attributes
    ----------
    method : str
    why : str
        The evidence in the result, in a sentence or two.
    parameters : mapping
        Those that follow from the result; of the run's own method, beside the run's.
    features : tuple of str or None
    target : str or None
    sites : tuple of str or None
    label : str
        What tells it from another one by the same method.
    follows : bool
        Whether it follows the run.
    """

    method: str
    why: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] | None = None
    target: str | None = None
    sites: tuple[str, ...] | None = None
    label: str = ""
    follows: bool = False


Led = Iterator[NextStudy | str]
"""Studies, and sentences on what no study can be written for, or need not be."""


def regression(asked: Asked, why: str, **changed: Any) -> Led:
    """One regression over all rows, with the test whether sites differ, where it can be made."""
    levels = asked.columns.levels.get(asked.response, ())
    sites = changed.get("sites") or asked.sites
    parameters: dict[str, Any] = {"site_effects": True} if len(sites) > 1 else {}
    # What a site may not tell is named in the result; a run that stops answers nothing.
    parameters |= {"when_withheld": "without-column", **changed.pop("parameters", {})}
    if len(levels) > 2:
        yield f"{asked.response} has {len(levels)} levels: a regression takes a number, or two."
    elif asked.regressible or changed.get("target"):
        yield NextStudy(method="pooled-regression", why=why, parameters=parameters, **changed)


def subtypes(asked: Asked, why: str, sites: Sequence[str] | None = None) -> Led:
    """Kinds of entities by a regression of their own where the study names them, or of rows."""
    columns = asked.columns
    if columns.entity and asked.response and asked.response not in columns.levels:
        question = f"Which kinds of {columns.entity} are there, each with its own regression?"
        method, features = "latent-class-regression", None
    elif len(asked.numbers) > 1:
        about = f", whatever their {asked.response}" if asked.response else ""
        question, method = f"Which kinds of rows are there{about}?", "ensemble-clustering"
        features = asked.numbers
    else:
        return
    chosen = None if sites is None else tuple(sites)
    yield NextStudy(method=method, why=f"{why} {question}".strip(), features=features, sites=chosen)


def partner(asked: Asked) -> str:
    """The end of the way: columns that another party has. No run knows where its table is."""
    target = asked.response or "COLUMN"
    return (
        "Whether another party's columns of the same people would add to it is asked over its "
        f"table and yours: consilience init assistance-test --id COLUMN --target {target} "
        "SITE=FILE PARTNER=FILE."
    )
