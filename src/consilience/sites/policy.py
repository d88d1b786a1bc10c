"""A site's own limits, read from the site's file: nothing that a coordinator sends changes them."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from consilience.exceptions import DisclosureError, ParameterError, StudyError
from consilience.parameters import (
    FLAG,
    LEFT_OUT,
    Allowed,
    allows,
    closest,
    number,
    one_of,
    rules_of,
    whole,
)
from consilience.wire.disclosure import Limits
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.protocol.method import Method, Preparation

Preset = Literal["strict", "consortium", "simulation"]

_BY_PRESET: Any = object()
"""Stands for "as the preset says" until a policy is built."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATA_ID = Allowed(
    lambda v: isinstance(v, str) and bool(_NAME.fullmatch(v)),
    "1 to 64 letters, digits, '.', '_' or '-'",
)
_SHARE = Allowed(number(above=0, high=1).holds, "a number in (0, 1]")
_DETECTION = Allowed((LEFT_OUT | number(0.1, 100)).holds, "a number from 0.1 to 100")
_EPSILON = Allowed(number(0, 1e6).holds, "a number of at least 0")
_WHOLE_OR_ANY = Allowed((LEFT_OUT | whole(1)).holds, whole(1).words)
_RANK = Allowed(
    (one_of("default", "full") | whole(0)).holds,
    '"default", "full" or a whole number of at least 0',
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits of one site for one data set.

    Parameters
    ----------
    preset : {"strict", "consortium", "simulation"}
        Where the other values start from (see the steward's guide).
    data_id : str
        The steward's name for the data; budgets are kept under it.
    min_records : int
        Records that every released cell must rest on.
    max_share : float
        Largest share of one record in a sum of absolute contributions.
    min_entities : int
        Entities behind a class sum.
    max_detection : float or None
        How far it may show in the means and products of columns that one person is among the rows,
        to somebody who knows all columns of the person: standard deviations between yes and no. At
        1 the best guess is right in 69 of 100. None is no bound, and so is `foreign_models`.
    per_record : bool
        Whether values for each record may leave (linear predictors of signed partners).
    noised : bool
        Whether values with noise may leave.
    share_ids : bool
        Whether keyed hashes of ids may leave, to find the records that sites have in common.
    share_response : bool
        Whether the response of each record may leave.
    share_names : bool
        Whether the names of the site's own columns may leave, beside their coefficients (studies
        over columns, at the initiator).
    foreign_models : bool
        Whether others may be told what models that they made, or choose, say of the site's rows,
        and of rows with empty cells that a study fills or keeps.
    max_models_per_row : int or None
        Models of others, or averages of them, that may ever be asked about this data, for each of
        its rows; None is any number.
    max_revealed_rank : "default", "full" or int
        Directions of the columns that may ever be known: all but one, all, or so many.
    max_epsilon : float
        Epsilon that may ever be spent on this data.
    max_runs : int or None
        Runs that may ever be opened on this data.
    approved_studies : tuple of str or None
        Hashes of the studies that may run; ``None`` is any study of a trusted coordinator.
    masked_sums : bool
        Whether sums leave masked only: over rows the site answers no study that does not say
        ``sums = "secure"``.
    max_message_bytes : int
        Largest message that the site reads.
    """

    preset: Preset = "strict"
    data_id: str = allows(_DATA_ID, default="default")
    min_records: int = allows(whole(1), default=_BY_PRESET)
    max_share: float = allows(_SHARE, default=_BY_PRESET)
    min_entities: int = allows(whole(1), default=_BY_PRESET)
    max_detection: float | None = allows(_DETECTION, default=_BY_PRESET)
    per_record: bool = allows(FLAG, default=_BY_PRESET)
    noised: bool = allows(FLAG, default=_BY_PRESET)
    share_ids: bool = allows(FLAG, default=_BY_PRESET)
    share_response: bool = allows(FLAG, default=_BY_PRESET)
    share_names: bool = allows(FLAG, default=_BY_PRESET)
    foreign_models: bool = allows(FLAG, default=_BY_PRESET)
    max_models_per_row: int | None = allows(_WHOLE_OR_ANY, default=_BY_PRESET)
    max_revealed_rank: Literal["default", "full"] | int = allows(_RANK, default=_BY_PRESET)
    max_epsilon: float = allows(_EPSILON, default=_BY_PRESET)
    max_runs: int | None = allows(_WHOLE_OR_ANY, default=_BY_PRESET)
    approved_studies: tuple[str, ...] | None = None
    masked_sums: bool = allows(FLAG, default=False)
    max_message_bytes: int = allows(whole(1 << 10), default=1 << 28)

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ParameterError.of("policy preset", f"one of {', '.join(PRESETS)}", self.preset)
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is _BY_PRESET:
                object.__setattr__(self, name, value)
        for name, rule in rules_of(self).items():
            # By declaration, so that no setting can be forgotten when rules are added.
            if not rule.holds(getattr(self, name)):
                raise ParameterError.of(f"policy {name}", rule.words, getattr(self, name))
        if isinstance(self.approved_studies, str):
            raise ParameterError.of("policy approved_studies", "a list", self.approved_studies)
        if self.approved_studies is not None:
            object.__setattr__(self, "approved_studies", tuple(self.approved_studies))

    def __repr__(self) -> str:
        # What the preset says is known by its name.
        plain = Policy(preset=self.preset)
        fields = [f.name for f in dataclasses.fields(self) if f.name != "preset"]
        own = [name for name in fields if getattr(self, name) != getattr(plain, name)]
        settings = "".join(f", {name}={getattr(self, name)!r}" for name in own)
        return f"Policy(preset={self.preset!r}{settings})"

    def _repr_html_(self) -> str:
        """What a notebook shows: each limit, and whether it is that of the preset."""
        plain = Policy(preset=self.preset)
        lines = [
            f"<tr><th>{f.name}</th><td>{html.escape(str(value))}</td><td>{by}</td></tr>"
            for f in dataclasses.fields(self)
            for value in [getattr(self, f.name)]
            for by in ["preset" if value == getattr(plain, f.name) else "own"]
        ]
        return f"<table><caption>Policy</caption>{''.join(lines)}</table>"

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | str) -> Policy:
        """Build from a preset's name or a site file's ``[policy]``.

        Parameters
        ----------
        settings : mapping or str
            Name of a preset; or settings, of which those left out are those of their ``preset``.

        Returns
        -------
        Policy

        Raises
        ------
        StudyError
            Unknown key.
        ParameterError
            Value outside its range.
        """
        given = {"preset": settings} if isinstance(settings, str) else dict(settings)
        known = {f.name for f in dataclasses.fields(cls)}
        for key in given:
            if key not in known:
                raise StudyError(f"[policy] has no setting {key!r}{closest(key, sorted(known))}")
        return cls(**given)

    @property
    def limits(self) -> Limits:
        """The numbers on which rules by kind rest."""
        # Who lets models of others be asked about rows has given up on this bound: they tell more.
        bound = None if self.foreign_models else self.max_detection
        detection = math.inf if bound is None else float(bound)
        return Limits(self.min_records, self.max_share, self.min_entities, detection)

    def allows(self, disclosure: Disclosure, rule: str = "") -> bool:
        """Whether a class of disclosure may leave at all; some rules have a consent of their own.

        Parameters
        ----------
        disclosure : Disclosure
        rule : str
            Rule of the value's evidence.
        """
        if disclosure is Disclosure.PER_RECORD:
            # Consents of their own: who lets predictors leave has not let outcomes or ids leave.
            own = {"response": self.share_response, "hashed-ids": self.share_ids}
            return own.get(rule, self.per_record)
        if disclosure is Disclosure.NOISED:
            return self.noised
        # weights that somebody chose can single records out
        if rule in ("slopes", "all-slopes", "weighted-sums"):
            return self.per_record
        return True

    def check_sums(self, sums: str) -> None:
        """Check that a study over rows masks what it sums, if the policy asks for it.

        Parameters
        ----------
        sums : str
            What the study says: ``secure`` masks them.

        Raises
        ------
        DisclosureError
        """
        if self.masked_sums and sums != "secure":
            raise DisclosureError.shared(
                "the policy lets sums leave masked only (masked_sums = true), and the study does "
                "not mask them: say sums = 'secure' in it"
            )

    def check_method(self, method: type[Method], preparation: Preparation | None = None) -> None:
        """Check that a method, with this preparation, asks for nothing that no study may do here.

        Parameters
        ----------
        method : type
            Class of the method.
        preparation : Preparation, optional
            Rules of the study for missing values and scales; by default none.

        Raises
        ------
        DisclosureError
        """
        if self.foreign_models or method.partition == "columns":
            return
        missing = "refuse" if preparation is None else preparation.missing
        if method.foreign_models:
            sentence = (
                f"the policy lets nobody apply models of others to the site's rows, or choose the "
                f"models fitted to them, as method {method.name!r} does (its steward grants it by "
                "foreign_models = true)"
            )
        elif missing not in ("refuse", "complete-rows"):
            sentence = (
                "the policy lets no study fill or keep empty cells: set [preparation] missing to "
                '"complete-rows" (or its steward grants it by foreign_models = true)'
            )
        else:
            return
        raise DisclosureError.shared(sentence)

    def lacking(self, method: Method, roles: Collection[str]) -> str:
        """Setting that a method asks for over rows and this policy does not grant; or nothing.

        Parameters
        ----------
        method : Method
        roles : collection of str
            For which the study names a column.
        """
        setting = method.grant(roles)
        granted = not setting or bool(getattr(self, setting))
        if setting == "foreign_models" and not method.foreign_models:
            # a fit of its own: told wherever nothing bounds how far one person shows in it
            granted |= self.limits.max_detection == math.inf
        return "" if granted else setting

    def revealed_limit(self, rank: int) -> int:
        """Directions that may ever be known of columns of this rank.

        Parameters
        ----------
        rank : int
            Of the site's prepared columns.

        Returns
        -------
        int
            `rank` itself where the policy sets no limit.
        """
        if self.max_revealed_rank == "full":
            return rank
        if self.max_revealed_rank == "default":
            return max(rank - 1, 0)
        return self.max_revealed_rank


_BY_SETTING: dict[str, tuple[Any, Any, Any]] = {
    # strict, consortium, simulation
    "min_records": (10, 10, 1),
    "max_share": (0.5, 0.5, 1.0),
    "min_entities": (3, 3, 1),
    "max_detection": (1.0, None, None),
    "per_record": (False, True, True),
    "noised": (False, False, True),
    "share_ids": (False, True, True),
    "share_response": (False, False, True),
    "share_names": (False, False, True),
    "foreign_models": (False, True, True),
    "max_models_per_row": (20, 200, None),
    "max_revealed_rank": (0, "default", "full"),
    "max_epsilon": (0.0, 0.0, 1e6),
    "max_runs": (20, 200, None),
}
PRESETS: dict[str, dict[str, Any]] = {
    preset: {name: values[place] for name, values in _BY_SETTING.items()}
    for place, preset in enumerate(("strict", "consortium", "simulation"))
}
"""``strict`` is the default; ``consortium`` is for partners who signed a contract; ``simulation``
is for one person who holds all the data, and is marked as such in transcript and report."""
