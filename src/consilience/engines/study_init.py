"""Write the files of a first study from the tables themselves, all of them on this machine.

What a study needs of its columns, and of the policies, is one line for each method in `NEEDS`. The
files are checked as ``consilience check`` does before any of them is written.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.engines.study_check import SiteCheck, check_sites, require_quorum
from consilience.engines.study_run import SITES, method_of
from consilience.exceptions import (
    ConsilienceError,
    DataError,
    ParameterError,
    RunError,
    StudyError,
)
from consilience.protocol.method import Method, get_method
from consilience.sites.encoding import is_number
from consilience.sites.own_columns import (
    MAX_LEVELS,
    Offer,
    Proposal,
    SiteColumns,
    propose,
    study_text,
    toml_lines,
)
from consilience.sites.policy import Policy
from consilience.sites.source import Source, Table, read_source
from consilience.sites.source_files import guessed
from consilience.sites.study import SiteFile, Study, check_name
from consilience.wire.files import atomic_write

SINGLE_ROLES = ("target", "id", "agent", "entity", "weight")
ABSENT = frozenset(
    [
        "na",
        "n/a",
        "n.a.",
        "#n/a",
        "nan",
        "nd",
        "n.d.",
        "null",
        "none",
        "missing",
        "unknown",
        ".",
        "?",
        "-",
        "--",
        "k.a.",
        "fehlt",
        "unbekannt",
    ]
)
"""What often stands for a missing value among numbers, in small letters."""
NO_LEVELS = frozenset(["NA", "N/A", "n/a", "n.a.", "#N/A", "NaN", "nan", "NULL", "null", "k.A."])
"""Those that stand for it among words, too, where "none", "unknown" or "-" may be a category."""
WORKBOOKS = (".xlsx", ".xlsm")
PARTNER_KEY = "keys/partner.key"


@dataclass(frozen=True)
class Needs:
    """What a study by a method is about, and how its columns are prepared.

    Attributes
    ----------
    target : {"none", "number", "levels", "either"}
        What the response is.
    roles : tuple of str
        Other columns that it cannot do without.
    standardize : str
    levels : bool
        Its features are categories.
    mixed : bool
        Its features are numbers and categories, whose levels are all there.
    keeps_missing : bool
        Empty cells are what it is about.
    parameters : mapping
        What it has no default for.
    """

    target: Literal["none", "number", "levels", "either"] = "none"
    roles: tuple[str, ...] = ()
    standardize: str = "none"
    levels: bool = False
    mixed: bool = False
    keeps_missing: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)


NEEDS = {
    "assistance-test": Needs("either", ("id",), "site"),
    "assisted-glm": Needs("either", ("id",), "site"),
    "cluster-count": Needs(standardize="site", keeps_missing=True),
    "community-bayes": Needs("levels"),
    "contingency-table": Needs(levels=True),
    "describe": Needs(mixed=True),
    "ensemble-clustering": Needs(standardize="pooled"),
    "federated-community-bayes": Needs("levels", standardize="pooled"),
    "federated-pca": Needs(standardize="pooled"),
    "federated-sparse-qda": Needs("levels", standardize="pooled"),
    "latent-class-regression": Needs("number", ("entity",)),
    "matrix-completion": Needs(standardize="site", keeps_missing=True),
    "mean-and-sd": Needs(),
    "meta-clustering": Needs("either"),
    "pooled-regression": Needs("either"),
    "reference-averaging": Needs("either", standardize="pooled"),
    "sparse-qda": Needs("levels"),
}
"""By method; one that is not here needs features alone."""


def needs_of(method: str) -> Needs:
    """What a method needs; `StudyError` where there is no such method."""
    return NEEDS.get(get_method(method).name, Needs())


def preset_of(method: str) -> str:
    """The preset of policies that sites would begin with: the strictest under which it can run."""
    kind = get_method(method)
    # No row of one party can be matched with another's under "strict".
    if kind.partition == "columns":
        return "consortium"
    # Of one table, whoever asks has it.
    return "simulation" if kind.several else "strict"


# --------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class Found:
    """A table, and what was found out about it.

    Attributes
    ----------
    path : Path
    settings : dict
        Of ``[source]``, besides the path.
    codes : tuple of str
        Texts that stand for a missing value.
    far : dict of str to tuple of int
        Numbers that seem to, by column: far beyond all others.
    own : SiteColumns
        The site's own names and spellings.
    table : Table
        With those of the study.
    proposal : Proposal
        Columns that the site could offer.
    """

    path: Path
    settings: dict[str, str]
    codes: tuple[str, ...]
    far: dict[str, tuple[int, ...]]
    own: SiteColumns
    table: Table
    proposal: Proposal

    @property
    def columns(self) -> dict[str, Any]:
        """Names, spellings and what stands for a missing value, as in a site file."""
        codes = {**({"*": self.codes} if self.codes else {}), **self.far}
        found = {"rename": self.own.rename, "recode": self.own.recode, "missing_codes": codes}
        return {name: value for name, value in found.items() if value}

    def _codes(self, name: str) -> tuple[str, ...]:
        return (*self.codes, *map(str, self.far.get(name, ())))

    def is_numeric(self, name: str) -> bool:
        """Whether a column is there and holds numbers, and nothing else."""
        if name not in self.table.names:
            return False
        if self.table.kind(name) not in ("text", "number", "boolean"):
            return False
        values, wrong = self.numbers_and_wrong(name)
        return not len(wrong) and bool(np.isfinite(values).any())

    def numbers_and_wrong(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """A column as numbers, and the positions of cells that are none."""
        return self.table.numbers(name, self._codes(name))

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Finite numbers of a column."""
        values, _ = self.table.numbers(name, self._codes(name))
        return values[np.isfinite(values)]

    def varies(self, name: str) -> bool:
        """Whether a column holds different numbers."""
        return len(np.unique(self.numbers(name))) > 1

    def seems_id(self, name: str) -> bool:
        """Whether a column holds whole numbers of which hardly two are equal, as ids are."""
        if not self.is_numeric(name):
            return False
        values = self.numbers(name)
        n_own = len(np.unique(values))
        is_whole = bool((values == np.floor(values)).all())
        # One id may be there twice by mistake; a few visits may be of the same people.
        return is_whole and n_own > MAX_LEVELS and len(values) - n_own <= max(len(values) // 50, 1)

    def values(self, name: str) -> tuple[str, ...]:
        """Different texts of a column."""
        positions, texts = self.table.categories(name, self._codes(name))
        return tuple(texts[i] for i in np.unique(positions[positions >= 0]))

    def n_lacking(self, name: str) -> int:
        """How many cells of a column are missing."""
        return int((self.table.categories(name, self._codes(name))[0] < 0).sum())


def look(
    files: Mapping[str, Path],
    preset: str,
    sheet: str = "",
    own: Mapping[str, SiteColumns] | None = None,
) -> dict[str, Found]:
    """Read the tables, and find out how they are written.

    Parameters
    ----------
    files : mapping of site to path
    preset : str
        Of the policies: what fewer rows have is not proposed.
    sheet : str, optional
        Of the workbooks among the files.
    own : mapping of site to SiteColumns, optional
        Names and spellings of a site that are not those of the study.

    Raises
    ------
    StudyError
        A column is renamed or recoded that is not there, a name of a site is not allowed, a file is
        named that cannot stand in a site file, or a sheet of no workbook is meant.
    DataError
        A table cannot be read.
    """
    found = {}
    least = Policy.from_settings(preset).min_records
    if sheet and not any(path.suffix.lower() in WORKBOOKS for path in files.values()):
        raise StudyError("no file is an Excel workbook: leave --sheet out")
    for site, path in files.items():
        check_name("site", site)
        if "${" in str(path):
            raise StudyError(f"{path}: ${{ begins a variable in a site file, so rename the file")
        if not path.is_file():
            raise DataError(f"site {site}: there is no file {path}: check the path")
        settings = guessed(path)
        if sheet and path.suffix.lower() in WORKBOOKS:
            settings["sheet"] = sheet
        source: dict[str, Any] = {"path": str(path.absolute()), **settings}
        try:
            table = read_source(Source(**source))
        except DataError as error:
            raise DataError(f"site {site}: {error}", public=error.public) from None
        its = (own or {}).get(site, SiteColumns())
        try:
            table = its.renamed(its.recoded(table))
        except StudyError as error:
            raise StudyError(f"site {site}: {error}") from None
        codes = _codes(table)
        known: dict[str, Any] = {"*": codes} if codes else {}
        far = propose(table, SiteColumns(missing_codes=known), least).codes
        # Without them, what is left of a column may be offered otherwise.
        proposal = propose(table, SiteColumns(missing_codes={**known, **far}), least)
        found[site] = Found(path, settings, codes, far, its, table, proposal)
    return found


def _codes(table: Table) -> tuple[str, ...]:
    """Usual words for a missing value, most of them only where a column holds numbers otherwise."""
    codes: set[str] = set()
    for name in table.names:
        if table.kind(name) != "text":
            continue
        numbers, wrong = _numbers_and_words(table, name)
        if wrong and numbers and {text.casefold() for text in wrong} <= ABSENT:
            codes |= wrong
        codes |= {text for text in wrong if text in NO_LEVELS}
    return tuple(sorted(codes))


def _numbers_and_words(table: Table, name: str) -> tuple[set[str], set[str]]:
    """The different texts of a column: those that are numbers, and others."""
    texts = {text for text in table.categories(name)[1] if text}
    words = {text for text in texts if not is_number(text.replace(",", "."))}
    return texts - words, words


def common(found: Mapping[str, Found]) -> list[str]:
    """Columns that all tables have, in the order of the first."""
    first, *others = found.values()
    return [name for name in first.table.names if all(name in one.table.names for one in others)]


def measured(found: Mapping[str, Found], but: Collection[str | None] = ()) -> tuple[str, ...]:
    """Columns of all tables that hold numbers which vary somewhere, and are no ids."""
    return tuple(name for name in common(found) if name not in but and not _why_not(found, name))


def _is_numeric(found: Mapping[str, Found], name: str) -> bool:
    return all(one.is_numeric(name) for one in found.values())


def _why_not(found: Mapping[str, Found], name: str) -> str:
    """Why a column of all tables is no feature unless it is named; empty where it is one."""
    for site, one in found.items():
        if not one.is_numeric(name):
            if one.table.kind(name) == "text":
                numbers, words = _numbers_and_words(one.table, name)
                if len(numbers) > len(words):
                    return (
                        f"numbers and other words at {site}: where one stands for a missing value, "
                        f"--recode {site}:{name}:WORD=NA"
                    )
            return f"not only numbers at {site}"
        # What is an id at one site is one at all of them.
        if one.seems_id(name):
            return f"whole numbers of its own in nearly each row at {site}, as ids have"
    return "" if any(one.varies(name) for one in found.values()) else "one value only"


def _unused(found: Mapping[str, Found], used: Collection[str | None]) -> list[str]:
    """Sentences on columns of all tables that a study does not use, with the reason."""
    others = [(name, _why_not(found, name)) for name in common(found) if name not in used]
    named = "; ".join(f"{name} ({why})" for name, why in others if why)
    return [f"Not used unless named by --features: {named}."] if named else []


def categories(found: Mapping[str, Found], but: Collection[str | None] = ()) -> tuple[str, ...]:
    """Columns of all tables that hold few different values, at some site proposed as levels."""
    return tuple(
        name
        for name in common(found)
        if name not in but
        and any(isinstance(one.proposal.offered.get(name), tuple) for one in found.values())
        and 2 <= len(levels_of(found, name)) <= MAX_LEVELS
    )


def levels_of(found: Mapping[str, Found], name: str) -> tuple[str | int | float, ...]:
    """Levels of a column that some site would offer."""
    levels: dict[str | int | float, None] = {}
    for one in found.values():
        offer = one.proposal.offered.get(name, ())
        levels.update({} if isinstance(offer, str) else dict.fromkeys(offer))
    numeric = all(isinstance(level, int | float) for level in levels)
    return tuple(sorted(levels, key=None if numeric else str))


# --------------------------------------------------------------------------- what is wished


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the study is to be.

    Attributes
    ----------
    method : str
    folder : Path
        Where its files come to be.
    roles : dict of str to str
        Columns by role: target, id, agent, entity, weight.
    features, sequence : tuple of str
        No features stand for all that are measured at all sites.
    parameters : dict
    preset : str
    consents : bool
        Whether the sites' files may grant what the method asks beyond the preset.
    initiator : str
        Over columns; the site with the target unless given.
    """

    method: str
    folder: Path
    roles: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    preset: str = "strict"
    consents: bool = False
    initiator: str = ""


_MODELS = """\
# Models that the other sites fitted may be asked how well they do on the rows here.
foreign_models = true
"""
_OWN_FIT = """\
# The fit of the rows here, and its curvature, may leave.
foreign_models = true
"""
_SUMS = """\
# Sums over the rows here, at coefficients that the coordinator finds, may leave.
per_record = true
"""
_OPENS = """\
# All combinations of the columns may come to be known, so they go to the initiator at once, with
# exact standard errors. Leave the line out to let all but one be known, in turns.
max_revealed_rank = "full"
"""
_NAMES = """\
# The coordinator is this party, and gets its coefficients by name.
share_names = true
"""


def consents_of(wishes: Wishes, found: Mapping[str, Found]) -> dict[str, str]:
    """What a study asks of policies beyond the preset: lines for site files, by whom they concern.

    Parameters
    ----------
    wishes : Wishes
    found : mapping of site to Found

    Returns
    -------
    dict of {"site", "initiator", "partner"} to str
    """
    kind, policy = get_method(wishes.method), Policy.from_settings(wishes.preset)
    parameters = {**_parameters(wishes, kind, found), **wishes.parameters}
    asked = beyond(kind, parameters, policy, wishes.roles)
    if kind.name == "assisted-glm" and policy.max_revealed_rank != "full":
        asked |= {"partner": _OPENS, "initiator": _NAMES}
    return asked


def beyond(
    kind: type[Method], parameters: Mapping[str, Any], policy: Policy, roles: Collection[str]
) -> dict[str, str]:
    """What a method asks of a policy over rows that does not grant it: lines for site files."""
    setting = policy.lacking(kind.from_parameters(dict(parameters)), roles)
    if not setting:
        return {}
    of_models = _MODELS if kind.foreign_models else _OWN_FIT
    return {"site": _SUMS if setting == "per_record" else of_models}


@dataclass(frozen=True)
class Draft:
    """Files of a study, and what there is to say of them.

    Attributes
    ----------
    study : Path
    files : dict of Path to str
        Their texts.
    said : tuple of str
    """

    study: Path
    files: dict[Path, str]
    said: tuple[str, ...]


def draft(wishes: Wishes, found: Mapping[str, Found]) -> Draft:
    """Put the texts of the study and site files together.

    Raises
    ------
    StudyError
        A column is missing that the method needs, is not in all tables, or a consent is not given.
    """
    kind, needs = get_method(wishes.method), needs_of(wishes.method)
    if kind.several and len(found) > 1:
        raise StudyError(
            f"{kind.name} takes the table of one site: give one file, or use {kind.several}"
        )
    for role in needs.roles:
        if role not in wishes.roles:
            raise StudyError(f"{kind.name} needs the column of the {role}: give --{role} COLUMN")
    if needs.target != "none" and "target" not in wishes.roles:
        raise StudyError(
            f"{kind.name} needs the column of the response: give --target COLUMN, one of "
            f"{', '.join(_targets(kind, found))}"
        )
    asked = consents_of(wishes, found)
    if asked and not wishes.consents:
        lines = [line for text in asked.values() for line in text.splitlines() if line[0] != "#"]
        raise StudyError(
            f"{kind.name} asks sites for more than the policy {wishes.preset!r} grants "
            f"({', '.join(lines)}): give --consent where the stewards agree"
        )
    if kind.partition == "columns":
        return _over_columns(wishes, kind, needs, found, asked)
    return _over_rows(wishes, kind, needs, found, asked)


def _over_rows(
    wishes: Wishes,
    kind: type[Method],
    needs: Needs,
    found: Mapping[str, Found],
    asked: Mapping[str, str],
) -> Draft:
    for name in (*wishes.roles.values(), *wishes.features, *wishes.sequence):
        _require(name, found)
    named = {*wishes.roles.values(), *wishes.sequence}
    features = wishes.features
    if not features and not wishes.sequence:
        features = (categories if needs.levels else measured)(found, named)
    if needs.mixed and not wishes.features:
        words = [name for name in categories(found, named) if not _is_numeric(found, name)]
        features = tuple(name for name in common(found) if name in {*features, *words})
    if not features and not wishes.sequence:
        what = "categories" if needs.levels else "numbers"
        raise StudyError(f"the tables have no columns in common that hold {what}: give --features")
    if needs.levels and len(features) != 2:
        raise StudyError(
            f"{kind.name} takes two columns with categories: give --features A,B of "
            f"{', '.join(categories(found, named)) or 'them'}"
        )
    target = wishes.roles.get("target")
    levels = _levels(needs, found, features, target)
    if wishes.sequence:
        states = {v: None for name in wishes.sequence for v in levels_of(found, name)}
        levels[wishes.sequence[0]] = tuple(states)
    coded = [name for name in features if name in levels]
    used = [*features, *wishes.sequence, *([target] if target else [])]
    gaps = any(one.n_lacking(name) for one in found.values() for name in used)
    keeps = needs.keeps_missing or bool(wishes.sequence)
    # A description counts them where policies let it, and asks no grant for that.
    keeps = keeps or (needs.mixed and Policy.from_settings(wishes.preset).foreign_models)
    rules = {"missing": ("keep" if keeps else "complete-rows") if gaps else "refuse"}
    if coded:
        rules["categorical"] = "onehot" if needs.levels or needs.mixed else "treatment"
    if needs.standardize != "none" and not wishes.sequence:
        rules["standardize"] = needs.standardize
    parameters = {**_parameters(wishes, kind, found), **wishes.parameters}
    data: dict[str, Any] = {"features": features, "sequence": wishes.sequence, **wishes.roles}
    study = _study(wishes, parameters, data, levels, rules, {"names": list(found)})
    beside = [wishes.roles[role] for role in ("weight", "offset") if role in wishes.roles]
    numbers = {name for name in (*used, *beside) if name not in levels}
    ids = {name for role, name in wishes.roles.items() if role in ("id", "agent", "entity")}
    files = {wishes.folder / "study.toml": study}
    least = Policy.from_settings(wishes.preset).min_records
    for site, one in found.items():
        offered = _offered(one, numbers, ids, levels, least)
        for name in levels:
            if name not in offered.offered and name in features:
                raise StudyError(
                    f"column {name!r} has no value that {least} rows of {site} have: leave the "
                    "column out by --features, or the site"
                )
        text = _site(wishes, site, one, asked.get("site", ""), one.columns)
        files[wishes.folder / SITES / f"{site}.toml"] = f"{text}\n{offered.to_toml()}"
    said = [f"Features: {', '.join(features)}."] if features else []
    said += [f"Levels of {name}: {', '.join(map(str, v))}." for name, v in levels.items()]
    if features and not wishes.features and not needs.levels:
        said += _unused(found, used)
    if others := _elsewhere(found):
        said.append(f"Not in all tables, so not used: {', '.join(others)}.")
    return Draft(wishes.folder / "study.toml", files, tuple(said))


def _over_columns(
    wishes: Wishes,
    kind: type[Method],
    needs: Needs,
    found: Mapping[str, Found],
    asked: Mapping[str, str],
) -> Draft:
    if len(found) < 2:
        raise StudyError(f"{kind.name} needs two parties or more: give a file for each")
    key, target = wishes.roles["id"], wishes.roles["target"]
    _require(key, found)
    with_target = [site for site, one in found.items() if target in one.table.names]
    initiator = wishes.initiator or (with_target[0] if len(with_target) == 1 else "")
    if initiator not in with_target:
        where = ", ".join(with_target) or "no table"
        raise StudyError(
            f"the response {target!r} is in {where}: give --initiator SITE, the one that asks"
        )
    its = {initiator: found[initiator]}
    is_number = found[initiator].is_numeric(target)
    levels = {} if is_number else {target: levels_of(its, target)}
    features: dict[str, tuple[str, ...]] = {}
    for site, one in found.items():
        mine = [name for name in wishes.features if name in one.table.names]
        features[site] = tuple(mine) or measured({site: one}, (key, target))
        if not features[site]:
            raise StudyError(f"site {site} has no column that holds numbers: give --features")
    for name in wishes.features:
        if not any(name in mine for mine in features.values()):
            raise StudyError(f"column {name!r} is in no table: correct --features")
    parameters = _parameters(wishes, kind, its)
    least = min(len(mine) for site, mine in features.items() if site != initiator)
    if kind.name == "assistance-test" and least < 4:
        parameters["n_directions"] = max(least - 1, 1)  # all but one may be known
    gaps = any(one.n_lacking(name) for site, one in found.items() for name in features[site])
    rules = {"missing": "complete-rows" if gaps else "refuse", "standardize": needs.standardize}
    sites = {"names": list(found), "roles": {initiator: "initiator"}}
    parameters |= wishes.parameters
    study = _study(wishes, parameters, {"id": key}, {}, rules, sites, partition="columns")
    files = {wishes.folder / "study.toml": study}
    for site, one in found.items():
        own: dict[str, Any] = {"features": features[site], **one.columns}
        if site == initiator:
            own |= {"target": target, **({"levels": levels} if levels else {})}
        consent = asked.get("initiator" if site == initiator else "partner", "")
        text = _site(wishes, site, one, consent, own)
        files[wishes.folder / SITES / f"{site}.toml"] = (
            f"{text}\n[partners]\n# The same file at all sites: ids are matched by hashes under "
            f'it.\nkey = "../{PARTNER_KEY}"\n'
        )
    said = [f"{site}: features {', '.join(names)}." for site, names in features.items()]
    return Draft(wishes.folder / "study.toml", files, (f"{initiator} asks.", *said))


def _require(name: str, found: Mapping[str, Found]) -> None:
    for site, one in found.items():
        if name not in one.table.names:
            raise StudyError(
                f"column {name!r} is not in {one.path}, the table of {site}, which has "
                f"{', '.join(one.table.names)}: {_SAME_NAMES}"
            )


_SAME_NAMES = (
    "give the tables the same names, or say which column is which, by --rename SITE:NAME=COLUMN,..."
)


def _targets(kind: type[Method], found: Mapping[str, Found]) -> list[str]:
    """Columns that could be the response.

    Raises
    ------
    StudyError
        Over rows, no column is in all tables.
    """
    if kind.partition == "columns":
        return list(dict.fromkeys(n for one in found.values() for n in one.table.names))
    if names := common(found):
        able = {*measured(found), *categories(found)}
        return [name for name in names if name in able] or names
    their = "; ".join(f"{one.path} has {', '.join(one.table.names)}" for one in found.values())
    raise StudyError(f"the tables have no column in common: {their}: {_SAME_NAMES}")


def _elsewhere(found: Mapping[str, Found]) -> list[str]:
    here = common(found)
    names = [(name, site) for site, one in found.items() for name in one.table.names]
    return [f"{name} ({site})" for name, site in names if name not in here]


def _levels(
    needs: Needs, found: Mapping[str, Found], features: tuple[str, ...], target: str | None
) -> dict[str, tuple[str | int | float, ...]]:
    """Levels to declare: of categories, and of a response that is one."""
    asked = [name for name in features if needs.levels or not _is_numeric(found, name)]
    if target is not None:
        numeric = _is_numeric(found, target)
        if needs.target == "number" and not numeric:
            raise StudyError(f"column {target!r} holds text, and the response must be a number")
        asked += [target] if needs.target == "levels" or not numeric else []
    levels = {name: levels_of(found, name) for name in asked}
    for name in levels:
        _require_spelling(name, found)
    for name, values in levels.items():
        if len(values) < 2:
            if name in features and not needs.levels:
                _require_values(name, found)
            raise StudyError(
                f"column {name!r} cannot be a category: it has fewer than two values that enough "
                f"rows have, or more than {MAX_LEVELS}"
            )
    return levels


def _require_values(name: str, found: Mapping[str, Found]) -> None:
    """Say where a feature that may be meant as a number is none, and in how many rows."""
    for site, one in found.items():
        values, wrong = one.numbers_and_wrong(name)
        if not len(wrong) and np.isfinite(values).any():
            continue
        if not len(wrong):
            raise StudyError(
                f"column {name!r}: in {site} no row has a value: leave the column out by --features"
            )
        n = len(wrong)
        raise StudyError(
            f"column {name!r}: in {site} {n} of {len(values)} rows {'has' if n == 1 else 'have'} "
            "text in place of a number, and as a category it has fewer than two values that enough "
            f"rows have, or more than {MAX_LEVELS}: correct the table, or say what stands for a "
            f"missing value by --recode {site}:{name}:WORD=NA"
        )


def _require_spelling(name: str, found: Mapping[str, Found]) -> None:
    """Two tables with several values each and none in common write the same in two ways."""
    its = {site: one.proposal.offered.get(name) for site, one in found.items()}
    several = {site: v for site, v in its.items() if isinstance(v, tuple) and len(v) > 1}
    for site, values in several.items():
        for other, others in several.items():
            if not {*map(str, values)} & {*map(str, others)}:
                raise StudyError(
                    f"the tables write column {name!r} differently: {site} has "
                    f"{', '.join(map(str, values))}, and {other} has "
                    f"{', '.join(map(str, others))}: write them alike, say "
                    "what is what by --recode SITE:COLUMN:OLD=NEW,..., or leave the column out by "
                    "--features"
                )


def _parameters(
    wishes: Wishes,
    kind: type[Method],
    found: Mapping[str, Found],
) -> dict[str, Any]:
    """What follows from the response and the policy, and what has no default."""
    target = wishes.roles.get("target")
    if kind.name == "ensemble-clustering" and wishes.sequence:
        return {"model": "markov-mixture"}
    having = [one for one in found.values() if target in one.table.names]
    if target is None or not having:
        return {}
    is_number = all(one.is_numeric(target) for one in having)
    values = {value for one in having for value in one.values(target)}
    is_binary = values == {"0", "1"} or (not is_number and len(levels_of(found, target)) == 2)
    if kind.name == "reference-averaging":
        return {"estimator": "ridge" if is_number else "logistic"}
    if kind.name in ("assisted-glm", "assistance-test"):
        return {"family": "binomial" if is_binary else "normal"}
    if kind.name != "pooled-regression":
        return {}
    found_out = {"family": "binomial"} if is_binary else {}
    family = wishes.parameters.get("family", "binomial" if is_binary else "gaussian")
    # Sums at coefficients are told under a policy that grants them only.
    one_shot = {**found_out, "fit": "one-shot"}
    made = regression_settings(kind, {**found_out, **wishes.parameters}, wishes.roles)
    if not made.by_rounds or Policy.from_settings(wishes.preset).per_record:
        return found_out
    if family == "negative-binomial" or made.squares or made.weighted or "fit" in wishes.parameters:
        raise ParameterError(
            f"sites under {wishes.preset!r} tell no sums at coefficients, which this regression "
            "needs (weights, robust errors, or its family): take --policy consortium, or leave "
            "these out"
        )
    return one_shot


def regression_settings(
    kind: type[Method], parameters: Mapping[str, Any], roles: Collection[str]
) -> Any:
    """Settings of a pooled regression, by which it asks for sums at coefficients, or does not."""
    regression: Any = kind(**parameters)
    return replace(regression.settings, offset="offset" in roles, weighted="weight" in roles)


def _offered(
    one: Found,
    numbers: Collection[str],
    ids: Collection[str],
    levels: Collection[str],
    least: int,
) -> Proposal:
    """The proposal, with what the study uses on offer in its role."""
    offered: dict[str, Offer] = dict(one.proposal.offered)
    left_out, rare = dict(one.proposal.left_out), dict(one.proposal.rare)
    for name in numbers:
        # As levels, values that few rows have would count as missing.
        if name in left_out or name in rare:
            offered[name] = "number"
    for name in ids:
        offered[name] = "id"
    for name in (*numbers, *ids):
        left_out.pop(name, None)
        if isinstance(offered.get(name), str):
            rare.pop(name, None)
    for name in set(offered) - {*numbers, *ids, *levels}:
        # What is on offer has a say in which rows are kept.
        if name in rare:
            left_out[name] = f"not used, and rows with its {rare.pop(name)} rarer values would go"
        elif 0 < (n_lacking := one.n_lacking(name)) < least:
            left_out[name] = f"not used, and the {n_lacking} rows without a value would go"
        elif one.seems_id(name):
            left_out[name] = "not used, and whole numbers of its own in nearly each row"
        if name in left_out:
            offered.pop(name)
    return replace(one.proposal, offered=offered, left_out=left_out, rare=rare)


# --------------------------------------------------------------------------- the texts


def _study(
    wishes: Wishes,
    parameters: Mapping[str, Any],
    data: Mapping[str, Any],
    levels: Mapping[str, Any],
    rules: Mapping[str, str],
    sites: Mapping[str, Any],
    *,
    partition: str = "",
) -> str:
    name = check_name("study", wishes.folder.resolve().name)
    settings = {
        "name": name,
        "method": wishes.method,
        "partition": partition,
        "parameters": parameters,
        "data": {**data, "levels": levels},
        "preparation": rules,
        "sites": sites,
    }
    return study_text(settings, "What is asked of which columns. All parties share this file.")


def _site(wishes: Wishes, site: str, one: Found, consent: str, own: Mapping[str, Any]) -> str:
    # Where the folders are: ".." behind a symbolic link leads to another place.
    table = one.path.parent.resolve() / one.path.name
    path = os.path.relpath(table, (wishes.folder / SITES).resolve())
    columns = f"\n[columns]\n{toml_lines(own)}" if own else ""
    return (
        "# Stays at its site: where the table is, which columns studies may name, and what may\n"
        "# leave. The steward looks at every line, and changes it.\n\n"
        + toml_lines({"name": site, "home": f"../homes/{site}"})
        + f"\n[source]\n{toml_lines({'path': Path(path).as_posix(), **one.settings})}{columns}"
        + f"\n[policy]\n{toml_lines({'preset': wishes.preset})}{consent}"
    )


# --------------------------------------------------------------------------- check and write


def write(made: Draft) -> list[SiteCheck]:
    """Check the study as ``consilience check`` does, then write its files.

    Raises
    ------
    RunError
        A file is already there: nothing is replaced.
    ConsilienceError
        The study cannot run on these tables: nothing is written.
    """
    there = next((path for path in made.files if path.exists()), None)
    if there is not None:
        raise RunError(f"{there} is already there and is not replaced: name another --folder")
    key = made.study.parent / PARTNER_KEY
    made_key = any(f'key = "../{PARTNER_KEY}"' in text for text in made.files.values())
    made_key = made_key and not key.exists()
    new_folders = [folder for folder in key.parents if not folder.exists()]
    if made_key:
        from consilience.wire.keys import new_partner_key, save_partner_key

        save_partner_key(key, new_partner_key())
    try:
        checks = _checked(made)
    except ConsilienceError:
        if made_key:
            key.unlink()
            for folder in new_folders:
                folder.rmdir()
        raise
    for path, text in made.files.items():
        atomic_write(path, text.encode(), mode=0o644)
    return checks


def _checked(made: Draft) -> list[SiteCheck]:
    study = Study.from_settings(tomllib.loads(made.files[made.study]), path=made.study)
    files = {}
    for path, text in made.files.items():
        settings = tomllib.loads(text)
        if path != made.study:
            # The folder of the file is not there yet, so no path can begin in it.
            source = settings["source"]
            source["path"] = os.path.normpath(path.parent.resolve() / source["path"])
            files[path.stem] = SiteFile.from_settings(settings, path=path)
    checks = check_sites(study, files, method_of(study))
    require_quorum(study, checks)
    return checks
