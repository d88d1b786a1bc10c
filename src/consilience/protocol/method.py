"""What a method is: a generator that asks at the coordinator, pure steps that answer at the sites.

Coordinator side::

    def coordinate(self, ctx):
        replies = yield Ask("sums", SumsRequest())
        ...
        return Result(...)

Site side, one function per step::

    @step("sums")
    def sums(message: SumsRequest, data: SiteData, state: State, site: SiteContext) -> ...:
        return Sums(...), state

Neither knows an engine, a file or a clock. The yields *are* the exchange.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import typing
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Unpack,
)

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import ParameterError, ProtocolError, QuorumError, StudyError
from consilience.parameters import check, closest, rules_of
from consilience.protocol.result import Result, ResultT
from consilience.wire.disclosure import Limits
from consilience.wire.message import Disclosure, FieldSpec, iterate_fields, message_type
from consilience.wire.moment_facts import Coded

if TYPE_CHECKING:
    # For the types of `Method.run` only: a method knows no engine.
    from consilience.engines.federation import Federation, Run, RunSettings

State = dict[str, Any]
Exchange = Generator["Ask", "Replies", Any]
M = TypeVar("M", bound="Method")


# --------------------------------------------------------------------------- what a site holds


ROLES = ("target", "agent", "entity", "weight", "sequence", "cluster", "offset")
"""What columns may be, besides features and ids."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a site's table play which role.

    Parameters
    ----------
    features : sequence of str
    target, id, agent, entity, weight : str, optional
    cluster : str, optional
        Over columns: rows with the same value depend on one another.
    offset : str, optional
        Part of the linear predictor with the coefficient 1.
    sequence : sequence of str
        Columns of an ordered sequence of states.
    levels : mapping of str to sequence of str
        Declared levels of categorical columns. Columns without levels are numeric. The states of a
        sequence are declared for any of its columns, or for several with the same ones; they are
        kept as the levels of the first.
    """

    features: tuple[str, ...] = ()
    target: str | None = None
    id: str | None = None
    agent: str | None = None
    entity: str | None = None
    weight: str | None = None
    sequence: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cluster: str | None = None
    offset: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", _names("features", self.features))
        object.__setattr__(self, "sequence", _names("sequence", self.sequence))
        for role in ("target", "weight", "offset"):
            # What is told by role would be told twice, over rows that differ by few.
            for others in ("features", "sequence"):
                if getattr(self, role) is not None and getattr(self, role) in getattr(self, others):
                    where = "the features" if others == "features" else "those of the sequence"
                    raise StudyError(
                        f"column {getattr(self, role)!r} is the {role} and stands among {where} "
                        "too: take it out of one of them"
                    )
        levels = {k: tuple(str(v) for v in vs) for k, vs in self.levels.items()}
        for name in levels:
            if name not in self.used():
                raise StudyError(f"levels are declared for column {name!r}, which has no role")
        object.__setattr__(self, "levels", self._with_states(levels))

    def _with_states(self, levels: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Levels with the states of a sequence at its first column."""
        declared = [name for name in self.sequence if name in levels]
        if not declared:
            return levels
        first = declared[0]
        for name in declared[1:]:
            if set(levels[name]) != set(levels[first]):
                raise StudyError(
                    f"columns {first!r} and {name!r} of the sequence have different levels: "
                    "declare the same states for both, or for one column alone"
                )
        # The order is that of the first column that has some.
        states = {self.sequence[0]: levels[first]}
        others = {name for name in declared if name not in (*self.features, self.target)}
        return {k: v for k, v in levels.items() if k not in others} | states

    def used(self) -> tuple[str, ...]:
        """All columns that have a role, each once."""
        single = (self.target, self.id, self.agent, self.entity, self.weight)
        own = (self.cluster, self.offset)
        names = (*self.features, *(c for c in (*single, *own) if c is not None), *self.sequence)
        return tuple(dict.fromkeys(names))

    def only(self, roles: Iterable[str]) -> Columns:
        """Features, ids and columns of these roles, with their levels.

        Parameters
        ----------
        roles : iterable of str
            Names of fields, such as ``features`` and ``target``.

        Returns
        -------
        Columns
            The others are left out.
        """
        left = {role: None for role in ROLES if role not in roles}
        if "sequence" in left:
            left["sequence"] = ()  # type: ignore[assignment]
        bare = dataclasses.replace(self, levels={}, **left)  # type: ignore[arg-type]
        levels = {name: found for name, found in self.levels.items() if name in bare.used()}
        return dataclasses.replace(bare, levels=levels)


def _names(role: str, names: object) -> tuple[str, ...]:
    listed: tuple[Any, ...] = tuple(names) if isinstance(names, Iterable) else (names,)
    if isinstance(names, str) or not all(isinstance(n, str) for n in listed):
        raise ParameterError.of(role, "a list of column names", names)
    twice = sorted(name for name, times in Counter(listed).items() if times > 1)
    if twice:
        raise StudyError(f"{role} names column {twice[0]!r} twice: name each column once")
    return listed


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How every site prepares its columns, in this order: missing, encode, standardise.

    Parameters
    ----------
    missing : {"refuse", "complete-rows", "aggregated-mean", "indicator", "keep"}
        "keep" leaves cells empty, for methods that work with such rows.
    categorical : {"refuse", "treatment", "onehot"}
        Coding of columns with declared levels; "treatment" drops the first level.
    indicators : mapping of str to sequence
        Single 0/1 columns: ``{"cp": (4,)}`` replaces ``cp`` by ``cp=4``.
    standardize : {"none", "pooled", "site"}
        By pooled moments (a phase of the exchange), by the site's own, or not at all.
    """

    missing: Literal["refuse", "complete-rows", "aggregated-mean", "indicator", "keep"] = "refuse"
    categorical: Literal["refuse", "treatment", "onehot"] = "refuse"
    indicators: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    standardize: Literal["none", "pooled", "site"] = "none"

    def __post_init__(self) -> None:
        allowed = {
            "missing": ("refuse", "complete-rows", "aggregated-mean", "indicator", "keep"),
            "categorical": ("refuse", "treatment", "onehot"),
            "standardize": ("none", "pooled", "site"),
        }
        for name, choices in allowed.items():
            if getattr(self, name) not in choices:
                raise ParameterError.of(name, f"one of {choices}", getattr(self, name))
        indicators = {k: tuple(vs) for k, vs in self.indicators.items()}
        object.__setattr__(self, "indicators", indicators)


class OtherRuns(NamedTuple):
    """What all runs so far, this one among them, tell of the rows of a run.

    Attributes
    ----------
    row_set : int
        Number of the set of these rows.
    parted : bool
        Whether a run has some of these rows and lacks others.
    joint, alone : int
        Columns that were told over these very rows, with products and without.
    """

    row_set: int
    parted: bool
    joint: int
    alone: int


EDGES = "described columns"
"""Name under which a site keeps the edges of bins that it told: ``told``, by column, of the rows
with the number ``row_set``. Each counts as a column that was told."""


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's prepared rows: read-only arrays by role, with names.

    Attributes
    ----------
    features : (n, p) float array
    feature_names : tuple of str
    rows : (n,) int array
        Position of each row in the table as it was read.
    target : (n,) float array, or str array where levels are declared, or None
    target_name, offset_name, weight_name : str
        Their columns, by the study's names; empty where it names none.
    id, agent, entity, cluster : (n,) str array or None
    weight, offset : (n,) float array or None
    sequence : (n, t) int array or None
        States by their position among the declared levels; -1 is missing.
    sequence_names : tuple of str
    levels : mapping of str to tuple of str
    foreign_levels : tuple of str
        Columns in which values outside the declared levels were found.
    scaling : (3, p) float array or None
        What filled missing cells, and the centres and scales that were applied to the features.
    unscaled : (n, p) float array or None
        The features before centres and scales were applied.
    n_read : int
        Rows of the table as it was read.
    content_hash : str
        SHA-256 of the table's bytes, or of its columns.
    bounds : (2, p) float array or None
        Over columns: limits of each feature that hold by its meaning; NaN where none are stated.
    hashes : (n, 16) uint8 array or None
        Over columns: keyed hashes of the ids, by which rows are matched.
    coded : tuple of Coded
        Which features are levels of one category.
    entity_name : str
        The column of entities, by the study's name.
    marks : (n,) uint64 array or None
        Numbers by which a protected site knows its rows in every run, from what is in them.
    beside : ((n, q) array, tuple of Coded) or None
        Other columns of which earlier runs told products over these rows: what is told of parts of
        the rows is judged with them.
    other_runs : OtherRuns or None
        What all runs tell of these rows, for steps that keep something; None where models of
        others are granted.
    """

    features: NDArray[np.float64]
    feature_names: tuple[str, ...]
    rows: NDArray[np.int64]
    target: NDArray[Any] | None = None
    id: NDArray[np.str_] | None = None
    agent: NDArray[np.str_] | None = None
    entity: NDArray[np.str_] | None = None
    weight: NDArray[np.float64] | None = None
    sequence: NDArray[np.int64] | None = None
    sequence_names: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    foreign_levels: tuple[str, ...] = ()
    scaling: NDArray[np.float64] | None = None
    unscaled: NDArray[np.float64] | None = None
    n_read: int = 0
    content_hash: str = ""
    bounds: NDArray[np.float64] | None = None
    hashes: NDArray[np.uint8] | None = None
    target_name: str = ""
    offset_name: str = ""
    weight_name: str = ""
    coded: tuple[Coded, ...] = ()
    entity_name: str = ""
    marks: NDArray[np.uint64] | None = None
    beside: tuple[NDArray[np.float64], tuple[Coded, ...]] | None = None
    other_runs: OtherRuns | None = None
    cluster: NDArray[np.str_] | None = None
    offset: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray) and value.flags.writeable:
                frozen = value.copy()
                frozen.flags.writeable = False
                object.__setattr__(self, item.name, frozen)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def with_features(
        self, features: NDArray[np.float64], names: tuple[str, ...] | None = None
    ) -> SiteData:
        """Same rows with other feature columns."""
        names = self.feature_names if names is None else names
        return dataclasses.replace(self, features=features, feature_names=names)

    def without_content(self, names: Collection[str]) -> SiteData:
        """Same rows with nothing in some columns, by name: nothing of these can leave."""
        if not names:
            return self
        names = set(names)
        blank = [name in names for name in self.feature_names]
        blanked = np.where(blank, 0.0, self.features)
        blanked.flags.writeable = False  # or it would be copied
        left = self.with_features(blanked)
        coded = {f"{self.target_name}={level}" for level in self.levels.get(self.target_name, ())}
        if self.target is not None and not {self.target_name, *coded}.isdisjoint(names):
            left = dataclasses.replace(left, target=np.zeros_like(self.target))
        if self.offset is not None and self.offset_name in names:
            left = dataclasses.replace(left, offset=np.zeros_like(self.offset))
        if self.weight is not None and self.weight_name in names:
            left = dataclasses.replace(left, weight=np.ones_like(self.weight))
        return left

    def in_own_units(self) -> tuple[NDArray[np.float64], ...]:
        """Rows before they were put in other units, (n, p), with centres and scales, (p,) each.

        Sums over these rows, moved and scaled, depend on made-up units as everybody can compute.
        Sums over scaled rows also do by how each row was rounded (`docs/proofs/units.md`).
        """
        if self.unscaled is None or self.scaling is None:
            p = self.features.shape[1]
            return self.features, np.zeros(p), np.ones(p)
        return self.unscaled, self.scaling[1], self.scaling[2]

    def take(self, index: NDArray[np.int64]) -> SiteData:
        """Some of the rows, in the order of `index`."""
        # Whatever belongs to rows goes with them: an array that was forgotten would be of other
        # people.
        chosen = {
            name: values[index] for name in _BY_ROW if (values := getattr(self, name)) is not None
        }
        for values in chosen.values():
            values.flags.writeable = False  # they are nobody else's: no further copy is needed
        return dataclasses.replace(self, **chosen)


_BY_ROW = (
    "marks",
    "features",
    "unscaled",
    "rows",
    "target",
    "id",
    "agent",
    "entity",
    "weight",
    "sequence",
    "hashes",
    "cluster",
    "offset",
)


class SiteContext(Protocol):
    """What a step may use besides its message, data and state.

    Attributes
    ----------
    site : str
    rng : numpy.random.Generator
        Public stream of this site, round and step: the same whatever the engine.
    secret_rng : numpy.random.Generator
        Operating-system entropy; what it gives must go through the state to be repeatable.
    limits : Limits
        Numbers of the site's policy.
    preset : str
        Name of the policy's preset.
    per_record : bool
        Whether the policy lets values for each record leave.
    share_names : bool
        Whether the policy lets the names of the site's own columns leave.
    share_response : bool
        Whether the policy lets the response of each record leave, to whom it is addressed.
    foreign_models : bool
        Whether the policy grants models of others: then products are compared with no other run.
    run : str
    keys : dict
        What the house keeps for end-to-end encryption (see phase `align_ids`).
    partner_key : bytes
        Secret that the parties of a study over columns share; empty where there is none.
    preparation : str
        Rules of preparation with which the run was opened, as JSON.
    kept : dict or None
        What an earlier question of the same kind made and kept (steps with ``keeps``).
    senders : dict of str to tuple of str
        Which sites sealed the fields that came for this site's eyes: proven, unlike what a message
        says of itself.
    series : mapping of str to dict
        What the gate remembers of the run's repeated sums, those of replies that were lost
        included: ``groups`` (n,), rows that no releases tell apart (0: in none), and ``masks``
        (cells, n), the rows in each cell of the last release.
    followed : Left or None
        What the run that this one follows left at this site: ``predictor``, ``rows`` (positions),
        ``values`` (per-row outputs) and ``content_hash`` of its table.
    """

    site: str
    limits: Limits
    preset: str
    per_record: bool
    share_names: bool
    share_response: bool
    foreign_models: bool
    run: str
    keys: dict[str, Any]
    partner_key: bytes
    preparation: str
    kept: dict[str, Any] | None
    senders: dict[str, tuple[str, ...]]
    series: Mapping[str, Any]
    followed: Any

    @property
    def rng(self) -> np.random.Generator:
        """As above."""

    @property
    def secret_rng(self) -> np.random.Generator:
        """As above."""

    @property
    def quorum(self) -> int:
        """Sites that must answer, as the study that was opened here says; 0 without one."""

    def sign(self, data: bytes) -> bytes:
        """Sign for the other sites of the run with the site's own key; empty where it has none."""

    def require_signed(self, site: str, data: bytes, signed: bytes) -> None:
        """Check what another site has signed so, by its key in the study.

        Raises
        ------
        DisclosureError
            This site has a key of its own, and its steward has not approved the study.
        WireError
            The study has no key of the other site, or another.
        """

    def stream(self, *key: str | int) -> np.random.Generator:
        """Public stream by key (for agents: id, round and step), without the site."""

    def output(self, name: str, value: Any) -> None:
        """Keep something at the site: an array with one entry per row, or a predictor."""

    def table(self, name: str, columns: Mapping[str, Any]) -> None:
        """Keep a table at the site, written as ``<name>.csv``."""

    def note(self, sentence: str) -> None:
        """Say something to the site's own people: a line of its log."""

    def keep(self, value: dict[str, Any]) -> None:
        """Keep what this step drew, for every later question of the same kind."""

    def role(self, site: str) -> str:
        """Role of a site in this study, as the parties were told when ids were matched."""

    def revealed(
        self, factor: NDArray[np.float64], names: tuple[str, ...], directions: NDArray[np.float64]
    ) -> tuple[int, int, bool]:
        """Count what a release of ``x @ directions`` would make known of these columns.

        Parameters
        ----------
        factor : (m, p) array
            ``wire.disclosure.column_factor`` of the columns x.
        names : tuple of str
        directions : (p, k) array

        Returns
        -------
        k, r : int
            Directions that are known afterwards, in this run and earlier ones, and how many there
            are.
        allowed : bool
            Whether the policy lets that many be known.
        """

    def known_along(self, names: tuple[str, ...]) -> NDArray[np.float64]:
        """Directions (p, k) of these columns that are known already, in this run or earlier ones.

        They are in the columns' own units; a release along them counts nothing.
        """


# --------------------------------------------------------------------------- steps

StepFunction = Callable[[Any, SiteData, State, SiteContext], tuple[Any, State]]
Transform = Callable[[Any, SiteData], SiteData]
Price = Callable[[Any], float]
Keeps = Callable[[Any, SiteData], "str | None"]
Tries = Callable[[Any], int]
Tally = Callable[[Any, SiteData, Limits], Mapping[str, tuple[int, int]]]
MASKED_SUMS = "masked sums"


def asked_at_most(what: str, most: int) -> Tally:
    """Tally of questions where records are protected; those whose replies were lost count too."""
    return lambda message, data, limits: {what: (1, most)} if limits.min_records > 1 else {}


@dataclass(frozen=True)
class Step:
    """A kind of question that a site answers.

    Attributes
    ----------
    name : str
    function : callable
        ``(message, data, state, site) -> (reply, state)``, pure.
    request, reply : type
        Message types, read from the function's annotations.
    transform : callable or None
        For preparing steps: ``(message, data) -> data``, what later steps receive.
    price : callable or None
        For steps that draw noise: ``message -> epsilon``, charged to the site's budget before the
        step runs.
    once : bool or str
        A site answers one message of this step in a run, whatever line of questions it comes in;
        the same message in the same place again gets an answer. The name of a field: one message
        for each site that sealed this field. `MASKED_SUMS`: so in a study with masked sums alone.
    keeps : callable or None
        ``(message, data) -> text`` names what the step draws: what was kept under this text (in
        whatever run, for the same data) is given to the step again, and is paid for once.
    tries : callable or None
        ``message -> number`` of models that others made and the step tries: counted for ever, by
        data set, before the step runs.
    summed : bool
        Every field of the reply is a sum over rows, of which only the total over sites is needed:
        in a study with masked sums it leaves masked (phase `secure_sums`).
    tally : callable or None
        ``(message, data, limits) -> {name: (asked, most)}``: how much of a thing the message asks
        for, and how much of it a site answers in a run, whatever lines of questions it comes in.

    Of a step that sums, `once` and `tally` count what was refused, too.
    """

    name: str
    function: StepFunction
    request: type
    reply: type
    transform: Transform | None = None
    price: Price | None = None
    once: bool | str = False
    keeps: Keeps | None = None
    tally: Tally | None = None
    tries: Tries | None = None
    summed: bool = False

    def __call__(
        self, message: Any, data: SiteData, state: State, site: SiteContext
    ) -> tuple[Any, State]:
        """Answer."""
        return self.function(message, data, state, site)


def step(
    name: str,
    *,
    transform: Transform | None = None,
    price: Price | None = None,
    once: bool | str = False,
    keeps: Keeps | None = None,
    tally: Tally | None = None,
    tries: Tries | None = None,
    summed: bool = False,
) -> Callable[[StepFunction], Step]:
    """Declare a step; its annotations are checked when the module is imported.

    Raises
    ------
    ProtocolError
        The signature is not ``(message: Request, data, state, site) -> tuple[Reply, State]`` with
        registered messages.
    """

    def declare(function: StepFunction) -> Step:
        names = tuple(inspect.signature(function).parameters)
        if names != ("message", "data", "state", "site"):
            raise ProtocolError(f"step {name!r} must take (message, data, state, site)")
        hints = typing.get_type_hints(function)
        returned = typing.get_args(hints.get("return"))
        if "message" not in hints or len(returned) != 2:
            raise ProtocolError(f"step {name!r} must annotate its message and tuple[Reply, State]")
        # Refuses what is not registered, when the module is imported and not in a run.
        message_type(hints["message"])
        message_type(returned[0])
        request, reply = hints["message"], returned[0]
        if summed and not all(_adds_up(spec) for spec in message_type(reply).fields.values()):
            raise ProtocolError(f"step {name!r} sums, and a field of its reply is no sum")
        return Step(
            name, function, request, reply, transform, price, once, keeps, tally, tries, summed
        )

    return declare


def _adds_up(spec: FieldSpec) -> bool:
    """Whether a field holds numbers that sites' replies may be added up by."""
    plain = not spec.many and not spec.parts and not isinstance(spec.shape, str)
    of_rows = spec.disclosure in (Disclosure.AGGREGATE, Disclosure.MODEL)
    return plain and of_rows and spec.kind in ("float", "int")


# --------------------------------------------------------------------------- the exchange


@dataclass(frozen=True)
class Ask:
    """A question of the coordinator.

    Attributes
    ----------
    step : str
    message : object
        A registered message, or a dict of site to message where sites get different ones.
    to : tuple of str or None
        Addressed sites; ``None`` is all that take part.
    wait : {"all", "any"}
        Resume with every reply to this ask, or with the next reply to any open ask.
    known : mapping of site to mapping
        What earlier replies of a site say of this one: lengths of dimensions by name, and what else
        the reply's `check` looks up (see ``wire.message``).
    """

    step: str
    message: Any
    to: tuple[str, ...] | None = None
    wait: Literal["all", "any"] = "all"
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Absent:
    """A site did not answer in time."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """A site, or its gate, declined to answer."""

    reason: str


class Replies(Mapping[str, Any]):
    """Replies by site, in name order: messages, `Absent` or `Refused`.

    Attributes
    ----------
    present : dict of str to message
    missing : dict of str to Absent or Refused
    rounds : dict of str to int
        Round of the ask that each reply answers (they differ under ``wait="any"``).
    """

    def __init__(self, replies: Mapping[str, Any], rounds: Mapping[str, int]) -> None:
        self._all = {site: replies[site] for site in sorted(replies)}
        self.rounds = dict(rounds)
        self.present = {s: r for s, r in self._all.items() if not isinstance(r, Absent | Refused)}
        self.missing = {s: r for s, r in self._all.items() if isinstance(r, Absent | Refused)}

    def __getitem__(self, site: str) -> Any:
        return self._all[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


@dataclass
class CoordinatorContext:
    """What `coordinate` may use.

    Attributes
    ----------
    sites : tuple of str
        Sites that take part, in name order.
    feature_names : tuple of str
        Columns after preparation, known once the exchange has opened.
    columns, preparation : Columns, Preparation
    roles : mapping of str to str
        Role of a site in the study, where the method has roles.
    rng : numpy.random.Generator
        Public stream of the coordinator.
    quorum : int
        Sites that must answer.
    follows : Result or None
        Result of the run that this one follows.
    notes : list of str
        Sentences for the result and the report.
    scaling : (3, p) array or None
        Fill values, centres and scales that were applied to the features of all sites. Given
        beforehand in a run that follows another: the rows are then scaled as they were there.
    presets : dict of str to str
        Preset of each site's policy, as the site says.
    study_text : str
        Content of the study file in its canonical form, or "".
    partition : {"rows", "columns"}
        What the sites share: columns, or rows.
    at : str
        Where the coordinator runs: ``"site:NAME"`` or ``"third-party"``.
    follows_run : str
        Id of the run that this one follows.
    n_matched : int
        Over columns: rows that all sites have.
    run : str
        Id of this run.
    secure : bool
        Whether sites mask what they add to a sum over sites (phase `secure_sums`).
    masks : object
        What that phase keeps between sums.
    """

    sites: tuple[str, ...]
    columns: Columns
    preparation: Preparation
    rng: np.random.Generator
    quorum: int
    roles: Mapping[str, str] = field(default_factory=dict)
    follows: Result | None = None
    feature_names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    scaling: NDArray[np.float64] | None = None
    presets: dict[str, str] = field(default_factory=dict)
    study_text: str = ""
    partition: Literal["rows", "columns"] = "rows"
    at: str = "third-party"
    follows_run: str = ""
    n_matched: int = 0
    run: str = ""
    secure: bool = False
    masks: Any = None

    @property
    def initiator(self) -> str:
        """The site with the role `initiator`, over columns."""
        found = [site for site, role in self.roles.items() if role == "initiator"]
        return found[0] if found else ""

    @property
    def partners(self) -> tuple[str, ...]:
        """The other sites, over columns, in name order."""
        return tuple(site for site in self.sites if site != self.initiator)

    def note(self, sentence: str) -> None:
        """Keep a sentence for the reader of the result; each one once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def require(self, replies: Replies, *, at_least: int | None = None) -> dict[str, Any]:
        """Return the replies that came, or stop.

        Parameters
        ----------
        at_least : int, optional
            Overrides the study's quorum.

        Raises
        ------
        QuorumError
            Fewer sites answered; the sentence names the missing sites, and each reason once.
        """
        needed = self.quorum if at_least is None else at_least
        if len(replies.present) < needed:
            alike: dict[tuple[bool, str], list[str]] = {}
            for site, r in replies.missing.items():
                alike.setdefault((isinstance(r, Refused), r.reason), []).append(site)
            reasons = "; ".join(
                f"{', '.join(sites)} "
                f"{'refused' if refused else 'were absent' if sites[1:] else 'was absent'}: {why}"
                for (refused, why), sites in alike.items()
            )
            raise QuorumError(
                f"{len(replies.present)} of {len(replies)} sites answered and the study needs "
                f"{needed}. {reasons}"
            )
        for site, r in replies.missing.items():
            verb = "refused" if isinstance(r, Refused) else "was absent"
            self.note(f"Site {site} {verb} in one round: {r.reason}.")
        return replies.present


# --------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Offer:
    """What a party's policy lets be known of its columns.

    Attributes
    ----------
    opens : bool
        All directions may be known.
    room : bool
        More may be known than are known now.
    known, rank : int
        Directions known, and how many there are.
    """

    opens: bool
    room: bool
    known: int
    rank: int


@dataclass(frozen=True)
class Planned:
    """How a partner takes part: what it and the initiator reveal, how long, and which errors.

    Attributes
    ----------
    partner, reveals, initiator_reveals, rounds, errors : str
    """

    partner: str
    reveals: str
    initiator_reveals: str
    rounds: str
    errors: str


class Method(ABC, Generic[ResultT]):
    """A whole exchange. Subclasses are frozen dataclasses whose fields are the parameters.

    Attributes
    ----------
    name : str
        Name in study files.
    version : int
        Raised when the exchange, one of its messages or the bytes of results change; a run of
        another version is not resumed.
    title : str
        The question that it answers, for people.
    steps : tuple of Step
        Own steps and those of the phases in use.
    absence : str
        What happens when a site does not answer, round by round.
    tolerates : mapping of str to {"quorum", "all", "any"}
        The same by step, for checks: the run goes on while the quorum answers (also of steps that
        are not named, such as those of the preparation), needs every site that was asked, or goes
        on with whoever answers.
    settles : frozenset of str
        Parameters of which the run finds the value: questions may state another one than the study.
    leakage : str
        What the coordinator knows afterwards.
    Result : type
    follows : tuple of str
        Other methods whose runs a run of this one may follow.
    predictor : type or None
        Class with ``to_arrays`` and ``from_arrays`` that sites keep.
    several : str
        Of a method that takes the table of one site: name of the method for several sites.
    accepts_missing : bool
        Whether its steps work with empty cells of the features, which a study then may keep.
    roles : tuple of str
        Which of `ROLES` its steps use: columns of others are not read for it.
    tells : {"means", "moments", "other"}
        What leaves of prepared columns over rows: sums and squares; products, too; or something
        that no rule compares with what other runs told. Then, where no models of others are
        granted, all such runs on a data set use the same rows.
    foreign_models : bool
        Whether it tells what models that others made, or choose, say of a site's rows: a policy
        must grant it.
    masks_sums : bool
        Whether it needs nothing of a site but what it adds to sums over sites, so that a study may
        mask these (see `cannot_mask`).
    remembers_rows : bool
        Whether its steps know rows again from run to run, by `SiteData.marks`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    title: ClassVar[str]
    partition: ClassVar[Literal["rows", "columns"]] = "rows"
    steps: ClassVar[tuple[Step, ...]]
    absence: ClassVar[str]
    tolerates: ClassVar[Mapping[str, Literal["quorum", "all", "any"]]] = {}
    settles: ClassVar[frozenset[str]] = frozenset()
    leakage: ClassVar[str]
    Result: ClassVar[type[Result]]
    follows: ClassVar[tuple[str, ...]] = ()
    predictor: ClassVar[Any] = None
    several: ClassVar[str] = ""
    accepts_missing: ClassVar[bool] = False
    roles: ClassVar[tuple[str, ...]] = ROLES
    tells: ClassVar[Literal["means", "moments", "other"]] = "other"
    foreign_models: ClassVar[bool] = False
    remembers_rows: ClassVar[bool] = False
    masks_sums: ClassVar[bool] = False

    def validate(self) -> None:
        """Check parameters, by declaration and together; raise `ParameterError`."""
        check(rules_of(self), self.parameters())
        self.check_together()

    def check_together(self) -> None:
        """Check parameters that do not go together; raise `ParameterError`."""

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check what does not go together in this run, before any site is asked."""

    def cannot_mask(self) -> str:
        """Say what it needs of a site but parts of sums; empty where a study may mask these."""
        if self.masks_sums:
            return ""
        return (
            "needs more of each site than what it adds to a sum: leave sums = 'secure' out of the "
            "study"
        )

    def grant(self, roles: Collection[str]) -> str:
        """Setting of a policy over rows without which sites refuse; empty where none is needed.

        Parameters
        ----------
        roles : collection of str
            For which the study names a column.
        """
        return "foreign_models" if self.foreign_models else ""

    def plan(self, initiator: str, offers: Mapping[str, Offer]) -> list[Planned]:
        """How each partner would take part over columns, by what the policies let be known.

        Raises
        ------
        ParameterError
            The parameters lack what such an exchange needs.
        """
        return []

    def check_rows(self, data: SiteData) -> None:
        """Look for what no site could answer, before a run that would end there.

        Raises
        ------
        DataError
        """

    def withheld(self, data: SiteData, limits: Limits) -> tuple[str, ...]:
        """Features of which this site would tell no sums, where the study stops without them.

        Raises
        ------
        DataError
            It would tell none at all.
        """
        return ()

    def expected_seconds(self, data: SiteData, n_sites: int) -> float:
        """About how long fits to such a table take on this machine; 0 where that is not known."""
        return 0.0

    @abstractmethod
    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask, combine, return the result."""

    def parameters(self) -> dict[str, Any]:
        """Parameters by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def stated(self) -> dict[str, Any]:
        """Parameters as the questions of a run state them, without those that a run settles.

        Where a study is approved, sites refuse a question that states something else.
        """
        open_ = ("auto", "default", None)
        return {
            name: value
            for name, value in self.parameters().items()
            if name not in self.settles and not (isinstance(value, str | None) and value in open_)
        }

    def contradicted(self, message: object) -> tuple[str, ...]:
        """Parameters of which a question states another value: in its settings, or in a field.

        A question over columns whose settings state none at all contradicts all of them.
        """
        text = getattr(message, "settings", None)
        if dataclasses.is_dataclass(text):
            text = dataclasses.asdict(text)  # type: ignore[arg-type]
        if isinstance(text, Mapping):
            text = json.dumps(text, default=list)
        told = {k: v for k, _, v in iterate_fields(message) if isinstance(v, str | int | float)}
        if isinstance(text, str):
            try:
                told = dict(json.loads(text))
            except (ValueError, TypeError):
                told = {}
        # Through JSON, as settings travel: tuples and lists are then one thing.
        plain = json.loads(json.dumps(self.stated(), default=list))
        names = sorted(set(plain) & set(told))
        if isinstance(text, str) and self.partition == "columns" and not names:
            return tuple(sorted(plain))
        return tuple(name for name in names if told[name] != plain[name])

    def run(self, federation: Federation, **settings: Unpack[RunSettings]) -> Run[ResultT]:
        """Run over a federation; same as ``federation.run(method, **settings)``."""
        return federation.run(self, **settings)

    @classmethod
    def from_parameters(cls: type[M], parameters: Mapping[str, Any]) -> M:
        """Build from a study file's ``[parameters]``.

        Raises
        ------
        ParameterError
            Unknown name, wrong type or value.
        """
        known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        required = [
            f.name
            for f in dataclasses.fields(cls)  # type: ignore[arg-type]
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        for name in required:
            if name not in parameters:
                raise ParameterError(f"method {cls.name!r} needs the parameter {name!r}: give it")
        for name in parameters:
            if name not in known:
                raise ParameterError(
                    f"method {cls.name!r} has no parameter {name!r}{closest(name, known)}"
                )
        try:
            method = cls(**parameters)
            method.validate()
        except TypeError as error:
            raise ParameterError(f"a parameter of {cls.name!r} has a wrong type: {error}") from None
        return method


_METHODS: dict[str, type[Method]] = {}


def register(cls: type[M]) -> type[M]:
    """Register a method and check its steps.

    Raises
    ------
    ProtocolError
        Repeated method or step names, or a missing statement.
    """
    for attribute in ("name", "title", "steps", "absence", "leakage", "Result"):
        if not getattr(cls, attribute, None):
            raise ProtocolError(f"method {cls.__name__} lacks {attribute!r}")
    names = [s.name for s in cls.steps]
    if len(set(names)) < len(names):
        raise ProtocolError(f"method {cls.name!r} has two steps of one name")
    for name, rule in cls.tolerates.items():
        if name not in names or rule not in ("quorum", "all", "any"):
            raise ProtocolError(f"method {cls.name!r}: tolerates[{name!r}] = {rule!r} is unknown")
    known = _METHODS.get(cls.name)
    if known is not None and known.__qualname__ != cls.__qualname__:
        raise ProtocolError(f"two methods are called {cls.name!r}")
    _METHODS[cls.name] = cls
    return cls


def get_method(name: str) -> type[Method]:
    """Look up a method: built in, announced by an installed package, or registered here.

    Raises
    ------
    StudyError
        No method of that name.
    """
    if name not in _METHODS and name in (known := _modules()):
        importlib.import_module(known[name])
    if name not in _METHODS:
        raise StudyError(f"no method is called {name!r}{closest(name, method_names())}")
    return _METHODS[name]


def method_names() -> tuple[str, ...]:
    """Names of all methods, without importing any."""
    return tuple(sorted({*_METHODS, *_modules()}))


def all_methods() -> dict[str, type[Method]]:
    """All methods by name."""
    return {name: get_method(name) for name in method_names()}


def _modules() -> dict[str, str]:
    """Modules that register methods, by method name."""
    from consilience.protocol import BUILT_IN

    announced = {e.name: e.value for e in entry_points(group="consilience.methods")}
    return {**announced, **BUILT_IN}
