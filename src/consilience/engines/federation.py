"""A federation: the sites of one study, and the way to run a method over them.

It holds too for sites that share rows and hold different columns (`over_columns`).
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from consilience.engines import rundir
from consilience.engines.base import Engine
from consilience.engines.driver import Driver, OnEvent
from consilience.engines.local import LocalEngine, local_engine
from consilience.engines.rundir import RunInfo, RunStore
from consilience.exceptions import ParameterError, RunError, StudyError, listed
from consilience.numerics.progress import rounds
from consilience.numerics.random import stream
from consilience.protocol.method import (
    ROLES,
    Columns,
    CoordinatorContext,
    Method,
    Preparation,
    get_method,
)
from consilience.protocol.phases.prepare import check_missing
from consilience.protocol.phases.secure_sums import SECURE
from consilience.protocol.result import ResultT
from consilience.sites.outputs import SiteOutput
from consilience.sites.own_columns import SiteColumns, check_own_roles
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.wire.keys import new_partner_key
from consilience.wire.secure_sums import LEAST_SITES
from consilience.wire.transcript import Line

if TYPE_CHECKING:
    from consilience.engines.study_next import NextStudies
    from consilience.sites.study import SiteFile, Study

DEFAULT_DEADLINE = 3600.0


@dataclass(frozen=True, eq=False)
class Run(Generic[ResultT]):
    """A finished run.

    Attributes
    ----------
    info : RunInfo
    result : Result
    transcript : tuple of Line
    notes : tuple of str
        What a reader of the result should know.
    directory : Path or None
    scaling : (3, p) array or None
        Fill values, centres and scales that were applied to the features.
    presets : dict of str to str
        Preset of each site's policy, as the site says.
    """

    info: RunInfo
    result: ResultT
    transcript: tuple[Line, ...]
    notes: tuple[str, ...]
    directory: Path | None = None
    scaling: NDArray[np.float64] | None = None
    presets: Mapping[str, str] = field(default_factory=dict)
    _sites: Mapping[str, Site] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # For the figures of the result. Who keeps a result keeps no sites, and so no tables.
        alone = replace(self, _sites={}) if self._sites else self
        object.__setattr__(self.result, "_run", alone)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and files: sites, and so tables, stay with the run that was made."""
        return {**vars(self), "_sites": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy or a file, whose result does not know its run."""
        vars(self).update(state)
        self.__post_init__()

    @property
    def further_notes(self) -> tuple[str, ...]:
        """Notes that the remarks of the result do not say."""
        said = getattr(self.result, "remarks", ())
        return tuple(note for note in self.notes if note not in said)

    def site(self, name: str) -> SiteOutput:
        """Return what the run left at a site of this process.

        Parameters
        ----------
        name : str
            Of the site.

        Returns
        -------
        SiteOutput

        Raises
        ------
        StudyError
            The site is elsewhere: its steward reads it with ``consilience site outputs``.
        """
        if name not in self._sites:
            raise StudyError(
                f"site {name!r} is not in this process: its steward reads what the run left there "
                "with 'consilience site outputs'"
            )
        return self._sites[name].output(self.info.run)

    def report(self) -> Any:
        """Return the report of the run (`consilience.report.Report`): a page in a notebook."""
        # On use, by name: the room of reports stands on this one.
        return import_module("consilience.report").Report(self)

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of the report (Matplotlib's) by name, to look at, to restyle and to save."""
        return dict(self.report().figures)

    def plot(self, name: str) -> Any:
        """Return one figure of the report (`matplotlib.figure.Figure`).

        Parameters
        ----------
        name : str
            One of `figures`.

        Raises
        ------
        ParameterError
            The report has no such figure; the sentence names those that it has.
        """
        figures = self.figures
        if name not in figures:
            raise ParameterError.of("name", f"one of {', '.join(sorted(figures))}", name)
        return figures[name]

    def methods_paragraph(self) -> str:
        """Describe the run for the methods section of a paper, with its references."""
        return str(import_module("consilience.report").methods_paragraph(self))

    def next(self, *, target: str | None = None) -> NextStudies:
        """Return the studies that the result gives reason for, each with that reason.

        Parameters
        ----------
        target : str, optional
            The response, where the run was asked of columns without one.

        Raises
        ------
        ParameterError
            The run has a response, or no such column.

        Examples
        --------
        >>> run.next()[0].why  # doctest: +SKIP
        >>> run.next()[0].run(federation, seed=0)  # doctest: +SKIP
        """
        # On use, by name: that module stands on this one.
        made = import_module("consilience.engines.study_next").next_studies(self, target=target)
        return cast("NextStudies", made)

    def __repr__(self) -> str:
        where = "in memory" if self.directory is None else f"in {self.directory}"
        sites = f"{len(self.info.sites)} site{'s' * (len(self.info.sites) != 1)}"
        return f"Run of {self.info.method} at {sites}, {where}: {self.result.summary()}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the report's answer, the main table and the remarks."""
        return str(self.report().short())


class RunSettings(TypedDict, total=False):
    """What `Federation.run` takes beside the method, for those who pass it on."""

    seed: int | None
    out: str | Path | None
    resume: bool
    retry_refused: bool
    follows: Run | None
    run_id: str | None
    on_event: OnEvent | None


@dataclass(frozen=True)
class Federation:
    """The sites of one study.

    Attributes
    ----------
    engine : Engine
    columns : Columns
    preparation : Preparation
    name : str
        Name of the study.
    quorum : int or None
        Sites that must answer; ``None`` is all.
    deadline : float
        Seconds that a site has for a reply.
    roles : mapping of str to str
    study : str
        Hash of the study file; computed from the settings where there is no file.
    study_text : str
        Content of the study file in its canonical form, of which `study` is the hash. Sites whose
        steward approves studies compare it with what they are asked.
    partition : {"rows", "columns"}
        What the sites share: columns, or rows.
    at : str
        Where the coordinator runs: ``"site:NAME"`` or ``"third-party"``.
    study_file : path or None
        Where the study file is; the run directory notes it for who goes on from the run.
    sums : {"plain", "secure"}
        "secure": sites mask what they add to a sum over sites, and the coordinator sees totals.
    """

    engine: Engine
    columns: Columns
    preparation: Preparation = field(default_factory=Preparation)
    name: str = "study"
    quorum: int | None = None
    deadline: float = DEFAULT_DEADLINE
    roles: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    study_text: str = ""
    partition: Literal["rows", "columns"] = "rows"
    at: str = "third-party"
    study_file: Path | None = None
    sums: Literal["plain", "secure"] = "plain"

    def __repr__(self) -> str:
        columns = f"{len(self.columns.features)} feature columns"
        if self.partition == "columns":
            columns = "each with its own columns of the same people"
        names = ", ".join(self.engine.sites[:6]) + (", ..." if len(self.engine.sites) > 6 else "")
        return (
            f"Federation of {len(self.engine.sites)} sites ({names}), {columns}, engine "
            f"{self.engine.name!r}"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the sites, and the columns that all of them are asked for."""
        asked = {**vars(self.columns), "levels": tuple(self.columns.levels)}
        lines = [
            f"<tr><th>{role}</th><td>"
            f"{html.escape(named if isinstance(named, str) else listed(named, 20))}</td></tr>"
            for role, named in asked.items()
            if named
        ]
        return f"<p>{html.escape(repr(self))}</p>\n<table>{''.join(lines)}</table>"

    def __post_init__(self) -> None:
        n = len(self.engine.sites)
        if n == 0:
            raise StudyError("a federation needs at least one site")
        if self.quorum is not None and not 1 <= self.quorum <= n:
            raise ParameterError.of(
                "quorum", f"between 1 and the number of sites ({n})", self.quorum
            )

    @classmethod
    def local(
        cls,
        tables: Mapping[str, Any],
        *,
        columns: Columns | Mapping[str, Columns],
        preparation: Preparation | None = None,
        policy: str | Policy | Mapping[str, str | Policy] = "strict",
        n_jobs: int | None = None,
        **settings: Any,
    ) -> Federation:
        """Build a federation of tables in memory, or of files, one per site.

        Parameters
        ----------
        tables : mapping of str to table
            Of pandas, polars or pyarrow, a mapping of columns, or the path of a file.
        columns : Columns, or mapping of site to Columns
            The same for all sites, which then hold different rows; or each site's own, with an
            `id` by which the rows are matched. The site whose columns name a target is the
            initiator.
        preparation : Preparation, optional
        policy : str, Policy or mapping of site to either
        n_jobs : int, optional
            Sites computed at the same time; ``None`` follows ``joblib.parallel_config``.
        **settings
            `name`, `quorum`, `deadline`, `roles`, `sums`; over columns also `at`, `bounds` (by
            site, then column: limits that hold by a column's meaning) and `partner_key` (fresh by
            default).
        """
        from consilience.sites.loaders import memory_site
        from consilience.sites.study import check_name

        own: dict[str, SiteColumns] = {}
        key = b""
        if isinstance(columns, Mapping):
            common, own, key, settings = over_columns(tables, columns, settings)
        else:
            common = columns
        sites = []
        for name, table in tables.items():
            rules = policy[name] if isinstance(policy, Mapping) else policy
            check_name("site", name)
            sites.append(memory_site(name, table, rules, own=own.get(name), partner_key=key))
        return cls(
            LocalEngine(sites, n_jobs=n_jobs), common, preparation or Preparation(), **settings
        )

    @classmethod
    def from_study(
        cls,
        study: Study,
        site_files: Mapping[str, SiteFile] | None = None,
        *,
        engine: Engine | None = None,
    ) -> Federation:
        """Build the federation that a study file describes.

        Parameters
        ----------
        study : Study
        site_files : mapping of site to SiteFile, optional
            Where all sites are on this machine.
        engine : Engine, optional
            Where they are elsewhere.

        Raises
        ------
        StudyError
            Neither is given, or the site files do not fit the study.
        """
        if engine is None:
            engine = local_engine(study, {} if site_files is None else site_files)
        return cls(
            engine,
            study.columns,
            study.preparation,
            name=study.name,
            quorum=study.sites.quorum,
            deadline=study.sites.deadline,
            roles=study.roles,
            partition=study.partition,
            at=study.coordinator_at,
            study=study.hash(),
            study_text=study.canonical(),
            study_file=study.path,
            sums=study.sums,
        )

    def log(self, site: str) -> tuple[dict[str, Any], ...]:
        """Return the own log of a site of this process: why it refused, with the trace.

        Parameters
        ----------
        site : str
            Its name.

        Returns
        -------
        tuple of dict
            One for each line, in order.

        Raises
        ------
        StudyError
            The site is elsewhere: its log is in its home.
        """
        if site not in self._members:
            raise StudyError(f"site {site!r} is not in this process: its log is in its home")
        return self._members[site].home.read_log()

    def run(
        self,
        method: Method[ResultT],
        *,
        seed: int | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        retry_refused: bool = False,
        follows: Run | None = None,
        run_id: str | None = None,
        on_event: OnEvent | None = None,
    ) -> Run[ResultT]:
        """Run a method.

        Parameters
        ----------
        method : Method
        seed : int, optional
            Seed of the public streams; a fresh one is drawn and recorded unless given.
        out : path, optional
            Run directory; without one the run lives in memory and cannot be resumed.
        resume : bool
            Go on with the run in `out`.
        retry_refused : bool
            With `resume`: ask again the sites that refused or were absent.
        follows : Run, optional
            The run that this one follows.
        run_id : str, optional
            Chosen by the house unless given.
        on_event : callable, optional
            ``on_event(kind, facts)`` for progress.

        Raises
        ------
        QuorumError
            Too few sites answered; a run with a directory can be resumed.
        RunError
            The run directory cannot be used.
        """
        method.validate()
        check_partition(type(method), self.partition)
        check_number(type(method), len(self.engine.sites))
        check_missing(type(method), self.preparation)
        check_sums(method, self.sums, len(self.engine.sites))
        if self.partition == "rows" and self.columns.cluster:
            raise StudyError("a cluster is a column of studies over columns: leave it out")
        # A method that names no roles of its own takes what it knows of them, and ignores others.
        without = method.roles == ROLES or "offset" not in method.roles
        if self.partition == "rows" and self.columns.offset and without:
            raise StudyError(f"{method.name} knows no offset over rows: leave it out")
        if self.partition == "columns":
            check_place(self.at, self.roles)
            if self.preparation.indicators:
                raise StudyError(
                    "over columns [preparation] indicators would name a party's column: declare "
                    "its levels in the site's own columns"
                )
        path = None if out is None else Path(out)
        # Settings that do not go together are refused above: no run directory is made for them.
        followed = "" if follows is None else follows.info.run
        store = self._store(method, seed, path, resume, run_id, followed)
        try:
            with store.at_work():
                ctx = self._context(store.info, follows)
                driver = Driver(
                    method,
                    ctx,
                    self.engine,
                    store,
                    deadline=self.deadline,
                    on_event=on_event or rounds(),
                )
                if resume and retry_refused:
                    driver.retry_refused()
                # After the context: a study that follows a wrong run leaves nothing in a shared
                # folder.
                self.engine.open_run(store.info.run)
                result = cast("ResultT", driver.run())
                scaling = None
                if ctx.scaling is not None:
                    # JSON knows no NaN.
                    scaling = np.where(np.isnan(ctx.scaling), None, ctx.scaling).tolist()  # type: ignore[call-overload]
                facts = {"notes": ctx.notes, "scaling": scaling, "presets": ctx.presets}
                store.write_result(result, facts)
                # Last: what engines remove here is in the journal, and the result is written.
                self.engine.close_run(store.info.run)
        finally:
            store.close()
        lines, notes = tuple(store.transcript.lines), tuple(ctx.notes)
        return Run(store.info, result, lines, notes, path, ctx.scaling, ctx.presets, self._members)

    # ------------------------------------------------------------------ inside

    @property
    def _members(self) -> Mapping[str, Site]:
        """Sites of this process."""
        return self.engine.members if isinstance(self.engine, LocalEngine) else {}

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "columns": asdict(self.columns),
            "preparation": asdict(self.preparation),
            "quorum": self.quorum,
            "deadline": self.deadline,
            "roles": dict(self.roles),
        }
        if self.partition == "columns":
            settings |= {"partition": self.partition, "at": self.at}
        if self.sums != "plain":  # others keep the identity that they always had
            settings["sums"] = self.sums
        return dict(json.loads(json.dumps(settings)))

    def _store(
        self,
        method: Method,
        seed: int | None,
        path: Path | None,
        resume: bool,
        run_id: str | None,
        follows: str,
    ) -> RunStore:
        from consilience import __version__

        parameters = dict(json.loads(json.dumps(method.parameters(), default=list)))
        found = None
        if resume:
            if path is None:
                raise RunError("resuming needs the run directory: say where it is by --out")
            found = rundir.read_info(path)
            # Draws of the rounds before must come again; another seed is refused with the identity.
            seed = found.seed if seed is None else seed
        # A run may be resumed with more patience or a smaller quorum: these are not its identity.
        asked = {k: v for k, v in self._settings().items() if k not in ("quorum", "deadline")}
        identity = [method.name, parameters, asked, self.engine.sites]
        text = json.dumps(identity, sort_keys=True, default=list)
        study = self.study or hashlib.sha256(text.encode()).hexdigest()
        info = RunInfo(
            run=run_id or rundir.new_run_id(self.name),
            name=self.name,
            study=study,
            method=method.name,
            method_version=method.version,
            parameters=parameters,
            release=__version__,
            libraries=rundir.libraries(),
            seed=secrets.randbits(63) if seed is None else seed,
            sites=self.engine.sites,
            engine=self.engine.name,
            settings=self._settings(),
            follows=follows,
            study_file=self._seen_from(path),
        )
        if found is None or path is None:
            return RunStore.create(info, path)
        rundir.check_resumable(path, found, info)
        if not (path / "journal" / "log").exists() and (path / "transcript.jsonl").exists():
            raise RunError(
                f"the payloads of the run in {path} were purged, so it cannot be resumed; its "
                "transcript, result and report are there"
            )
        return RunStore(found, path)

    def _seen_from(self, path: Path | None) -> str:
        """Where the study file is, seen from a run directory: both may be moved together."""
        if path is None or self.study_file is None:
            return ""
        return os.path.relpath(self.study_file.resolve(), path.resolve())

    def _context(self, info: RunInfo, follows: Run | None) -> CoordinatorContext:
        # A result of another method would be read under names that mean something else.
        may_follow = (info.method, *get_method(info.method).follows)
        if follows is not None and follows.info.method not in may_follow:
            raise StudyError(
                f"a run of {info.method!r} cannot follow one of {follows.info.method!r}"
            )
        return CoordinatorContext(
            sites=self.engine.sites,
            columns=self.columns,
            preparation=self.preparation,
            rng=stream(info.seed, "coordinator"),
            quorum=len(self.engine.sites) if self.quorum is None else self.quorum,
            roles=self.roles,
            follows=None if follows is None else follows.result,
            scaling=None if follows is None else follows.scaling,
            study_text=self.study_text,
            partition=self.partition,
            at=self.at,
            run=info.run,
            secure=self.sums == SECURE,
            follows_run="" if follows is None else follows.info.run,
        )


def load_run(path: str | Path) -> Run:
    """Read a finished run from its directory.

    Parameters
    ----------
    path : path
        The directory.

    Returns
    -------
    Run
        With its result, its transcript and what was noted.

    Raises
    ------
    RunError
        There is no run, it is not finished, or it is damaged or of another release.
    """
    path = Path(path)
    info = rundir.read_info(path)
    method = get_method(info.method)
    if info.method_version != method.version:
        raise RunError(
            f"the run in {path} was made by version {info.method_version} of method "
            f"{info.method!r} and this release has {method.version}: use the release that made it"
        )
    if not (path / "result.json").exists():
        state, _, facts = rundir.state_file(path).read()
        if state == rundir.FAILED:
            # Once more the same way it may well end the same way: the reason says what to change.
            reason = str(facts.get("reason", "")).rstrip(".")
            raise RunError(
                f"the run in {path} failed: {reason}. It has not ended: once the cause is gone, go "
                "on with it by --resume"
            )
        raise RunError(f"the run in {path} has not ended: go on with it by --resume")
    try:
        files = {name: (path / name).read_bytes() for name in ("result.json", "result.npz")}
        context = json.loads((path / "context.json").read_bytes())
        notes = tuple(str(note) for note in context["notes"])
        scaling = None if context["scaling"] is None else np.array(context["scaling"], dtype=float)
        presets = {str(site): str(preset) for site, preset in context["presets"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(f"the result in {path} cannot be read ({type(error).__name__})") from None
    result = method.Result.from_files(files)
    # This checks the chain too, against the end that the run has noted.
    lines = rundir.read_lines(path)
    return Run(info, result, lines, notes, path, scaling, presets)


# -------------------------------------------------------------------- sites with different columns


def check_partition(method: type[Method], partition: str) -> None:
    """Check that a method is made for what the sites share.

    Raises
    ------
    StudyError
    """
    shared = {"rows": "columns and hold different rows", "columns": "rows by their ids"}
    if method.partition != partition:
        raise StudyError(
            f"method {method.name!r} is for sites that share {shared[method.partition]} and the "
            f"study says partition = {partition!r}: change one of them"
        )


def check_number(method: type[Method], n_sites: int) -> None:
    """Check that a method for the table of one site gets one site.

    Raises
    ------
    StudyError
    """
    if method.several and n_sites > 1:
        raise StudyError(
            f"method {method.name!r} takes the table of one site and the study names {n_sites}: "
            f"name one in [sites], or use the method {method.several!r}"
        )


def check_sums(method: Method, sums: str, n_sites: int) -> None:
    """Check that a method needs nothing but totals over sites where their sums are masked.

    Raises
    ------
    StudyError
    """
    if sums not in ("plain", SECURE):
        raise ParameterError.of("sums", "'plain' or 'secure'", sums)
    if sums == "plain":
        return
    if fault := method.cannot_mask():
        raise StudyError(f"method {method.name!r} {fault}")
    if n_sites < LEAST_SITES:
        raise StudyError(
            f"masked sums need at least {LEAST_SITES} sites and the study names {n_sites}: the "
            "total would tell each of two what the other adds"
        )


def over_columns(
    tables: Mapping[str, Any], columns: Mapping[str, Columns], settings: Mapping[str, Any]
) -> tuple[Columns, dict[str, SiteColumns], bytes, dict[str, Any]]:
    """Settings of a federation in memory whose sites hold different columns.

    Parameters
    ----------
    tables : mapping of site to table
    columns : mapping of site to Columns
    settings : mapping
        ``bounds`` and ``partner_key`` are taken out, ``roles``, ``at`` and ``partition`` filled in.

    Returns
    -------
    common : Columns
        What all sites are told: the id.
    own : dict of site to SiteColumns
    key : bytes
    settings : dict

    Raises
    ------
    StudyError
        Sites and columns do not go together, an id is missing, or not just one site has a target.
    """
    left = dict(settings)
    bounds: Mapping[str, Any] = left.pop("bounds", {})
    # Fresh by default: hashed ids of two federations must not be comparable.
    key = left.pop("partner_key", None) or new_partner_key()
    if set(tables) != set(columns):
        raise StudyError("columns by site and tables name different sites: give one for each")
    if len(tables) < 2:
        raise StudyError("a federation over columns needs at least two sites: add the partner's")
    for site in bounds:
        if site not in columns:
            raise StudyError(f"bounds name {site!r}, which is no site: give them by site")
    for site, given in columns.items():
        if given.id is None:
            raise StudyError(f"the columns of site {site!r} name no id: rows are matched by it")
    # Who has the response leads: the roles follow from the columns, and are not said twice.
    targets = [site for site, given in columns.items() if given.target is not None]
    if len(targets) != 1:
        raise StudyError(
            f"{len(targets)} sites have a target: one site, the initiator, names the response"
        )
    for site, given in columns.items():
        check_own_roles(given, "initiator" if site == targets[0] else "partner")
    common = Columns(id=columns[targets[0]].id)
    by_role = {s: "initiator" if s == targets[0] else "partner" for s in sorted(tables)}
    own = {
        site: SiteColumns(
            rename={} if given.id == common.id else {str(common.id): str(given.id)},
            features=given.features,
            target=given.target,
            weight=given.weight,
            cluster=given.cluster,
            offset=given.offset,
            levels=dict(given.levels),
            bounds=dict(bounds.get(site, {})),
        )
        for site, given in columns.items()
    }
    if left.get("roles") and dict(left["roles"]) != by_role:
        raise StudyError(f"roles contradict the columns: {targets[0]!r} has the target")
    left |= {"roles": by_role, "partition": "columns"}
    left.setdefault("at", f"site:{targets[0]}")
    if left["at"] not in ("third-party", *(f"site:{site}" for site in tables)):
        raise StudyError(f"at is {left['at']!r}: write 'third-party', or 'site:' and a site's name")
    check_place(left["at"], left["roles"])
    return common, own, key, left


def check_place(at: str, roles: Mapping[str, str]) -> None:
    """Check that no partner coordinates a study of more than two parties.

    It has the partner key and passes on what the others seal: it could pose as one to another.

    Raises
    ------
    StudyError
    """
    place = at.removeprefix("site:")
    if len(roles) > 2 and roles.get(place) == "partner":
        raise StudyError(
            f"site {place!r} is a partner among more than two parties and cannot coordinate: let "
            "the initiator or a third party do it"
        )
