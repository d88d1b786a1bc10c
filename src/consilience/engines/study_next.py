"""From a finished run to the studies that its result gives reason for: as files, and to be run.

What a result leads to stands beside each method (`Result.next_studies`). Here such a study gets
what its method needs of columns, preparation and policies, as ``consilience init`` knows it.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np

from consilience.engines.federation import DEFAULT_DEADLINE, Federation, Run
from consilience.engines.local import LocalEngine
from consilience.engines.study_check import SiteCheck, check_sites, require_quorum
from consilience.engines.study_init import beyond, needs_of, regression_settings
from consilience.engines.study_run import method_of
from consilience.exceptions import ConsilienceError, ParameterError, RunError, StudyError
from consilience.protocol.method import Columns, get_method
from consilience.protocol.next_study import Asked, NextStudy
from consilience.protocol.phases.secure_sums import SECURE
from consilience.sites.loaders import load_under, offered_columns
from consilience.sites.own_columns import study_text
from consilience.sites.policy import Policy
from consilience.sites.source import read_source
from consilience.sites.study import SiteFile, Study
from consilience.wire.files import atomic_write

SINGLE = ("target", "id", "agent", "entity", "weight", "offset")


@dataclass(frozen=True)
class ProposedStudy:
    """A study that a run leads to.

    Attributes
    ----------
    why : str
        The evidence in the run's result.
    settings : mapping
        The study file, table by table.
    """

    why: str
    settings: Mapping[str, Any]
    _run: Run = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the study, and of its file."""
        return str(self.settings["name"])

    @property
    def method(self) -> str:
        """Name of its method."""
        return str(self.settings["method"])

    @property
    def study(self) -> Study:
        """The study."""
        return Study.from_settings(self.settings)

    def __repr__(self) -> str:
        return f"Study {self.name} by {self.method}: {self.why}"

    def to_toml(self) -> str:
        """Return the study file."""
        remark = textwrap.fill(
            f"{self.why} (After the run {self._run.info.run}.) All parties share this file.",
            98,
            break_on_hyphens=False,
            break_long_words=False,
        )
        return study_text(self.settings, remark)

    def run(self, federation: Federation, **settings: Any) -> Run:
        """Run it over a federation, on those of its sites that the study names.

        Parameters
        ----------
        federation : Federation
            That of the run before, or another one with these sites.
        **settings
            Of `Federation.run`, such as ``seed`` and ``out``.

        Raises
        ------
        StudyError
            The federation lacks a site, or cannot leave some out: build one of the study file.
        """
        study, engine = self.study, federation.engine
        names = study.sites.names
        absent = [name for name in names if name not in engine.sites]
        if absent:
            raise StudyError(
                f"the federation has no site {', '.join(absent)}, which the study names"
            )
        if set(names) != set(engine.sites):
            if not isinstance(engine, LocalEngine):
                raise StudyError(
                    "sites can be left out of federations in one process only: write the study, "
                    "and build a federation of it by Federation.from_study"
                )
            engine = LocalEngine([engine.members[n] for n in names], n_jobs=engine.n_jobs)
        over = dataclasses.replace(
            federation,
            engine=engine,
            columns=study.columns,
            preparation=study.preparation,
            name=study.name,
            quorum=study.sites.quorum,
            roles=study.roles if study.partition == "columns" else dict(study.sites.roles),
            study="",
            study_text="",
            study_file=None,
        )
        follows = self._run if study.follows is not None else None
        return over.run(method_of(study), follows=follows, **settings)


@dataclass(frozen=True)
class NextStudies(Sequence[ProposedStudy]):
    """Studies that a run leads to, the first to be made first.

    Attributes
    ----------
    studies : tuple of ProposedStudy
    said : tuple of str
        What need not be asked, or what no study can be written for.
    """

    studies: tuple[ProposedStudy, ...]
    said: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.studies)

    @overload
    def __getitem__(self, place: int) -> ProposedStudy: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[ProposedStudy, ...]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return self.studies[place]

    def __iter__(self) -> Iterator[ProposedStudy]:
        return iter(self.studies)

    def __repr__(self) -> str:
        listed = [f"{i}. {one!r}" for i, one in enumerate(self.studies, 1)]
        return "\n".join([*listed, *self.said]) or "No study follows from this result."


def study_of(run: Run, file: Path | None = None) -> Study | None:
    """Read the study file of a run.

    Parameters
    ----------
    run : Run
    file : path, optional
        Where the run says that it was, unless given.

    Returns
    -------
    Study or None
        None of a run without a study file.

    Raises
    ------
    RunError
        It is not there, or is not that of the run.
    """
    noted = run.info.study_file
    if file is None and (not noted or run.directory is None):
        return None
    path = Path(file or (run.directory or Path()).resolve() / noted)
    if not path.is_file():
        raise RunError(f"the study file of the run is not at {path}: name it by --study")
    # Relative to here where it is below: a message, and a command, are then legible.
    here = Path.cwd()
    path = path.resolve()
    study = Study.load(path.relative_to(here) if path.is_relative_to(here) else path)
    if study.hash() != run.info.study:
        raise RunError(
            f"{path} is not the study of this run, or was changed since: name that one by --study"
        )
    return study


def next_studies(
    run: Run,
    *,
    study: Study | None = None,
    files: Mapping[str, SiteFile] | None = None,
    target: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> NextStudies:
    """Return the studies that a run leads to.

    Parameters
    ----------
    run : Run
    study : Study, optional
        Its study file, which keys, deadlines and roles come from.
    files : mapping of site to SiteFile, optional
        Where the sites are on this machine: their policies, and whether a response is 0 or 1.
    target : str, optional
        The response, where the study of the run has none.
    parameters : mapping, optional
        Of the proposed studies, in place of those that follow from the result.

    Raises
    ------
    ParameterError
        The run has a response, or no such column; or no proposed study has such a parameter.
    """
    asked, given = _asked(run, target), dict(parameters or {})
    masked = run.info.settings.get("sums") == SECURE
    proposed, said, known = [], [], set()
    for one in run.result.next_studies(asked):
        if isinstance(one, str):
            said.append(one)
            continue
        if masked and not get_method(one.method).masks_sums:
            said.append(
                f"{one.method} would follow, and needs more of each site than what it adds to a "
                f"sum: this run was masked, so only the parties can decide to ask for it in plain."
            )
            continue
        settings = _settings(run, asked, one, study)
        settings |= {"sums": run.info.settings["sums"]} if masked else {}
        has = {f.name for f in dataclasses.fields(get_method(one.method))}  # type: ignore[arg-type]
        known |= has
        own = {name: value for name, value in given.items() if name in has}
        settings["parameters"] |= own
        settings["parameters"] |= _settled(run, settings, files or {})
        proposed.append(ProposedStudy(one.why, settings, run))
    if unknown := [name for name in given if name not in known]:
        raise ParameterError(
            f"no proposed study has a parameter {unknown[0]!r}: 'consilience methods' lists them"
        )
    return NextStudies(tuple(proposed), tuple(said))


def _asked(run: Run, target: str | None) -> Asked:
    columns = Columns(**run.info.settings["columns"])
    if target is not None:
        if columns.target or run.info.settings.get("partition") == "columns":
            raise ParameterError("the run has a response: leave the target out")
        if target not in columns.features:
            raise ParameterError.of("target", f"one of {', '.join(columns.features)}", target)
        features = tuple(name for name in columns.features if name != target)
        columns = dataclasses.replace(columns, features=features, target=target)
    return Asked(
        method=run.info.method,
        parameters=run.info.parameters,
        columns=columns,
        sites=run.info.sites,
        missing=run.info.settings["preparation"].get("missing", "refuse"),
        follows=run.info.follows,
    )


# --------------------------------------------------------------------------- the study


def _settings(run: Run, asked: Asked, one: NextStudy, study: Study | None) -> dict[str, Any]:
    """The study file of a proposal: what it changes, and all else as it was."""
    # A study file as its author wrote it.
    if study is None or study.path is None:
        written = {}
    else:
        written = tomllib.loads(study.path.read_text(encoding="utf-8"))
    same = one.method == run.info.method
    method = get_method(one.method)
    # A study of a group leads to studies of this group.
    own = run.info.name.removeprefix(run.info.method)
    label = f"-{one.label}" if one.label else own if own.startswith("-group-") else ""
    kept: Mapping[str, Any] = {}
    if same:
        kept = written.get("parameters", {}) if study is not None else _changed(run)
    columns = asked.columns if method.partition == "rows" else Columns(id=asked.columns.id)
    data, sites = _data(columns, one, written), _sites(run, one, written)
    coordinator = dict(written.get("coordinator", {}))
    if str(coordinator.get("at", "")).removeprefix("site:") not in ("third-party", *sites["names"]):
        coordinator.pop("at", None)  # at a site that takes no part
    found: dict[str, Any] = {
        "name": f"{one.method}{label}",
        "method": one.method,
        "partition": method.partition,
        "seed": written.get("seed"),
        "parameters": {**kept, **one.parameters},
        "data": data,
        "preparation": _preparation(run, one, data),
        "sites": sites,
        "coordinator": coordinator,
        "follows": {"run": run.info.run} if one.follows else {},
    }
    return {key: v for key, v in found.items() if key == "parameters" or v not in (None, {}, ())}


def _changed(run: Run) -> dict[str, Any]:
    """Parameters of a run that are not the defaults."""
    plain = json.loads(json.dumps(_defaults(run.info.method), default=list))
    return {name: v for name, v in run.info.parameters.items() if plain.get(name, name) != v}


def _defaults(method: str) -> dict[str, Any]:
    fields = dataclasses.fields(get_method(method))  # type: ignore[arg-type]
    return {
        f.name: f.default_factory() if callable(f.default_factory) else f.default
        for f in fields
        if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
    }


def _data(columns: Columns, one: NextStudy, written: Mapping[str, Any]) -> dict[str, Any]:
    """Columns by role: those that the method uses, with their levels as they were written."""
    roles = (*get_method(one.method).roles, "id")
    features = columns.features if one.features is None else one.features
    target = columns.target if one.target is None else one.target
    single = {role: getattr(columns, role) for role in SINGLE if role in roles}
    data = {"features": features, **single}
    if "target" in roles and columns.features:
        data["target"] = target
    if "sequence" in roles and one.features is None:
        data["sequence"] = columns.sequence
    used = {*features, *data.get("sequence", ()), *(v for v in data.values() if isinstance(v, str))}
    levels = {**columns.levels, **written.get("data", {}).get("levels", {})}
    data["levels"] = {name: tuple(v) for name, v in levels.items() if name in used}
    return {name: value for name, value in data.items() if value}


def _preparation(run: Run, one: NextStudy, data: Mapping[str, Any]) -> dict[str, Any]:
    """Rules as they were, but for what the method needs."""
    defaults = {"missing": "refuse", "categorical": "refuse", "standardize": "none"}
    rules = {**defaults, **run.info.settings["preparation"]}
    # What follows a run is in its units; another study by one method differs in what is said.
    if not one.follows and one.method != run.info.method:
        needs = needs_of(one.method)
        rules["standardize"] = needs.standardize
        if rules["missing"] == "keep" and not needs.keeps_missing:
            rules["missing"] = "complete-rows"
        coded = any(name in data.get("levels", {}) for name in data.get("features", ()))
        rules["categorical"] = (
            ("onehot" if needs.levels or needs.mixed else "treatment") if coded else "refuse"
        )
    indicators = rules.pop("indicators", None) or {}
    kept = {name: v for name, v in indicators.items() if name in data.get("features", ())}
    if kept and one.method != "describe":
        rules["indicators"] = {name: tuple(v) for name, v in kept.items()}
    return {name: v for name, v in rules.items() if name == "missing" or v != defaults.get(name)}


def _sites(run: Run, one: NextStudy, written: Mapping[str, Any]) -> dict[str, Any]:
    """The sites of the study, with what was said of those that are left."""
    asked, names = run.info.settings, one.sites or run.info.sites
    told = written.get("sites", {})
    sites: dict[str, Any] = {"names": tuple(names)}
    roles = told.get("roles") or asked.get("roles") or {}
    if asked.get("partition") == "columns":  # who is no initiator is a partner
        roles = {name: role for name, role in roles.items() if role == "initiator"}
    for table, values in (("roles", roles), ("keys", told.get("keys", {}))):
        sites[table] = {name: value for name, value in values.items() if name in names}
    quorum, n = asked.get("quorum"), len(run.info.sites)
    if quorum is not None and quorum < n:
        sites["quorum"] = min(quorum, len(names))
    if asked.get("deadline", DEFAULT_DEADLINE) != DEFAULT_DEADLINE:
        sites["deadline"] = asked["deadline"]
    return {name: value for name, value in sites.items() if value}


# --------------------------------------------------------------------------- the policies


def policies_of(run: Run, sites: Sequence[str], files: Mapping[str, SiteFile]) -> dict[str, Policy]:
    """Policies of sites: their own where their files are here, else the presets that they told."""
    found = {}
    for site in sites:
        if site in files:
            found[site] = Policy.from_settings(files[site].policy)
        elif site in run.presets:
            found[site] = Policy.from_settings(run.presets[site])
    return found


def _settled(
    run: Run,
    settings: Mapping[str, Any],
    files: Mapping[str, SiteFile],
) -> dict[str, Any]:
    """What follows from the response and the policies, as ``consilience init`` settles it."""
    if settings["method"] != "pooled-regression":
        return {}
    parameters = settings["parameters"]
    target, settled = settings["data"].get("target"), {}
    if "family" not in parameters:
        two = len(settings["data"].get("levels", {}).get(target, ())) == 2
        if two or _is_binary(settings, files):
            settled["family"] = "binomial"
    grants = policies_of(run, settings["sites"]["names"], files).values()
    kind = get_method("pooled-regression")
    asks = regression_settings(kind, {**parameters, **settled}, settings["data"])
    # Sums at coefficients are told under a policy that grants them only.
    if asks.by_rounds and not all(policy.per_record for policy in grants):
        instead = not (asks.squares or asks.weighted or asks.offset or asks.estimate)
        if instead and "fit" not in parameters:
            settled["fit"] = "one-shot"
    return settled


def _is_binary(settings: Mapping[str, Any], files: Mapping[str, SiteFile]) -> bool:
    """Whether a response is 0 or 1 in the tables, where they are on this machine."""
    names = settings["sites"]["names"]
    if not set(names) <= set(files):
        return False
    study = Study.from_settings(settings)
    found: set[float] = set()
    for name in names:
        file = files[name]
        policy = Policy.from_settings(file.policy)
        try:
            table = read_source(file.source, file.base)
            own = offered_columns(file, policy)
            loaded = load_under(policy, own, table, study.columns, study.preparation, "rows")
        except ConsilienceError:
            return False  # 'consilience check' says why
        values = np.asarray(loaded.data.target, dtype=float)
        found |= set(np.unique(values[np.isfinite(values)])[:3].tolist())
    return found == {0.0, 1.0}


@dataclass(frozen=True)
class Verdict:
    """Whether the sites can take part in a proposed study.

    Attributes
    ----------
    checked : bool
        Whether their files are on this machine, so that ``consilience check`` could look.
    able : bool
        Whether enough can, as far as it is known.
    said : tuple of str
        What their stewards must grant, or what else hinders them.
    """

    checked: bool
    able: bool
    said: tuple[str, ...]


def verdict(run: Run, one: ProposedStudy, files: Mapping[str, SiteFile]) -> Verdict:
    """Say what the sites' policies must grant for a proposed study, and whether it could run."""
    study = one.study
    method = method_of(study)
    names, kind = study.sites.names, type(method)
    asked: dict[str, list[str]] = {}
    if kind.partition == "rows":
        for site, policy in policies_of(run, names, files).items():
            lines = beyond(kind, study.parameters, policy, one.settings["data"])
            for line in lines.get("site", "").splitlines():
                if not line.startswith("#"):
                    asked.setdefault(line, []).append(site)
    known = set(names) <= set(files)
    # A preset says what a policy begins with, not what its steward granted since.
    must = "must grant it" if known else "must grant it, unless they have"
    said = [f"{', '.join(sites)} {must}: {line}" for line, sites in asked.items()]
    if not known:
        return Verdict(False, not said, tuple(said))
    chosen = {name: files[name] for name in names}
    checks: list[SiteCheck] = check_sites(study, chosen, method)
    granted = {site for sites in asked.values() for site in sites}
    said += [
        f"{check.name} cannot take part: {check.error}"
        for check in checks
        if check.error is not None and check.name not in granted
    ]
    try:
        require_quorum(study, checks)
    except ConsilienceError:
        return Verdict(True, False, tuple(said))
    return Verdict(True, not asked, tuple(said))


def has_room(one: ProposedStudy, path: Path) -> bool:
    """Whether no other file is where a study is to be written."""
    return not path.exists() or (path.is_file() and path.read_bytes() == one.to_toml().encode())


def write(one: ProposedStudy, path: Path) -> None:
    """Write the file of a proposed study.

    Raises
    ------
    RunError
        Another file is there: nothing is replaced.
    """
    if not has_room(one, path):
        raise RunError(f"{path} is already there and is not replaced: name another file by --out")
    if not path.exists():
        atomic_write(path, one.to_toml().encode(), mode=0o644)


def named(one: ProposedStudy, name: str) -> ProposedStudy:
    """The same study by another name."""
    return dataclasses.replace(one, settings={**one.settings, "name": name})
