"""Check a study against the tables of sites on this machine, without running anything.

That includes whether a site's own policy grants what a study over columns will ask of it, and
whether reference rows are rows of its own. A site refuses by itself, whatever is said here; this
only spares a run that would end in refusals.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.engines.local import check_site_files
from consilience.exceptions import (
    ConsilienceError,
    DataError,
    DisclosureError,
    MissingExtraError,
    PrivacyError,
    StudyError,
    listed,
)
from consilience.numerics.own_rows import compare_rows, row_digests
from consilience.numerics.progress import LONG, about
from consilience.numerics.reference_average import ReferenceFacts, reference_facts
from consilience.protocol.method import (
    ROLES,
    Columns,
    CoordinatorContext,
    Method,
    Offer,
    Planned,
    SiteData,
)
from consilience.protocol.phases.align_ids import MIN_MATCHED
from consilience.protocol.phases.prepare import check_missing
from consilience.protocol.phases.secure_sums import SECURE
from consilience.sites.accounting import Budget
from consilience.sites.encoding import is_number, plain_text
from consilience.sites.loaders import load_under, offered_columns
from consilience.sites.own_columns import SiteColumns, check_own_roles
from consilience.sites.policy import Policy
from consilience.sites.prepare import Loaded, Report
from consilience.sites.revealed_rank import RevealedRank, column_factor, rank_of
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.sites.source import Table, read_source
from consilience.sites.source_blocks import ParquetColumns
from consilience.sites.source_long import wide_schema
from consilience.sites.study import ReferenceRows, SiteFile, Study, read_reference

CLASS_PARAMETERS = ("n_clusters", "n_classes")
Ids = dict[str, frozenset[str]]
_MUCH = 1_000_000_000
"""Bytes of memory of which the person at the site is told."""
_BESIDE = 40_000_000
"""Bytes that blocks of a file take beside a table."""


@dataclass(frozen=True)
class SiteCheck:
    """What was found at one site. It names columns and counts rows; it holds no value of a cell.

    Attributes
    ----------
    name : str
    policy : Policy or None
    report : Report or None
        What became of the table; None where it cannot be used.
    kinds : dict of str to str
        Type of each of the study's columns, or of the site's own where the study is over columns; a
        column that the table lacks is left out.
    error : ConsilienceError or None
        Why the site cannot take part.
    stops : bool
        The error stops the study, whatever its quorum.
    remarks : tuple of str
        What else the person at the site should know.
    offer : Offer or None
        Over columns: what the policy lets be known of them, all runs so far considered.
    seconds : float
        About how long fits to such a table take on this machine; 0: not known, or not long.
    digest : str
        SHA-256 of the prepared rows, where two sites should not have the same.
    """

    name: str
    policy: Policy | None = None
    report: Report | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    error: ConsilienceError | None = None
    stops: bool = False
    remarks: tuple[str, ...] = ()
    offer: Offer | None = None
    seconds: float = 0.0
    digest: str = field(default="", repr=False)


def check_sites(study: Study, files: Mapping[str, SiteFile], method: Method) -> list[SiteCheck]:
    """Read every site's table and say what the study will meet there.

    Raises
    ------
    StudyError
        The site files do not fit the study.
    DataError
        The reference rows of the study do not fit it.
    """
    check_admitted(study, method)
    check_site_files(study, files)
    ids: Ids = {}
    reference = None if study.reference is None else read_reference(study)
    checks = [_check(study, files[name], method, ids, reference) for name in study.sites.names]
    if study.partition == "columns":
        return _over_columns(checks, files, ids)
    return checks


def planned(study: Study, checks: Sequence[SiteCheck], method: Method) -> list[Planned]:
    """How the partners of a study over columns will take part, where all can be looked at.

    Raises
    ------
    ParameterError
        The study lacks a parameter that this needs.
    """
    offers = {check.name: check.offer for check in checks}
    first = next((name for name, role in study.roles.items() if role == "initiator"), None)
    known = {name: offer for name, offer in offers.items() if offer is not None}
    if study.follows is not None or first is None or len(known) < len(checks):
        return []
    return method.plan(first, known)


def check_admitted(study: Study, method: Method) -> None:
    """Check what the method asks of a study, as the coordinator does before its first question.

    A study that follows a run is looked at when it runs: what it needs is in that run.

    Raises
    ------
    StudyError
    """
    if study.follows is not None:
        return
    # The method's own check reads settings alone: no generator is drawn from.
    context = CoordinatorContext(
        sites=study.sites.names,
        columns=study.columns,
        preparation=study.preparation,
        rng=np.random.default_rng(0),
        quorum=study.quorum,
        roles=study.roles,
        partition=study.partition,
        secure=study.sums == SECURE,
    )
    check_missing(type(method), study.preparation)
    method.admit(context)


def check_one(study: Study, file: SiteFile, method: Method) -> SiteCheck:
    """Check one site by itself, where the others, and the reference rows, are elsewhere."""
    return _check(study, file, method, {})


def check_own(study: Study, file: SiteFile, method: Method) -> SiteCheck:
    """Check one site as its own steward does, who has nobody else's files.

    Raises
    ------
    StudyError
        The study does not name the site, or asks what the method cannot do.
    """
    if file.name not in study.sites.names:
        raise StudyError(
            f"the study does not name the site {file.name!r}: it has {', '.join(study.sites.names)}"
        )
    check_admitted(study, method)
    return check_one(study, file, method)


def check_schema(study: Study, file: SiteFile) -> SiteCheck:
    """Check one site's columns and their types, for whoever must not learn more of its cells.

    Whether cells fit the levels of a study, or its rule for missing values, is an answer about
    single records: who may vary the study could ask for any value of any column.
    """
    kinds: dict[str, str] = {}
    try:
        policy = Policy.from_settings(file.policy)
        table = read_source(file.source, file.base)
        columns = file.columns.merged(study.columns, study.partition)
        schema = wide_schema(file.columns.recoded(table), columns, file.columns)
        kinds = _kinds(schema, study, columns, file.columns, policy)
        absent = [name for name in columns.used() if name not in kinds]
        if absent:
            # Over columns the names are the site's own, and not for the one who asks.
            named = study.partition == "rows" or absent == [columns.id]
            which = f"column {', '.join(absent)}" if named else "a column"
            raise DataError.shared(f"{which}: it is not in the site's table")
    except ConsilienceError as error:
        return SiteCheck(file.name, kinds=kinds, error=error)
    return SiteCheck(file.name, kinds=kinds)


def _over_columns(
    checks: list[SiteCheck], files: Mapping[str, SiteFile], ids: Ids
) -> list[SiteCheck]:
    """Whether sites over columns can match their rows: the same key, and ids in common."""
    able = [check.name for check in checks if check.error is None]

    def failed(error: ConsilienceError, names: Sequence[str]) -> list[SiteCheck]:
        return [replace(c, error=error, stops=True) if c.name in names else c for c in checks]

    for name in able[1:]:
        if files[name].partner_key() != files[able[0]].partner_key():
            error = StudyError(
                f"sites {able[0]!r} and {name!r} have different partner keys, by which no row can "
                "be matched: give both the same file"
            )
            return failed(error, (able[0], name))
    if len(able) < len(checks):
        return checks
    common = len(frozenset.intersection(*ids.values()))
    # The strictest of the sites decides what all of them may learn of the matched rows.
    least = max(MIN_MATCHED, *(c.policy.min_records for c in checks if c.policy is not None))
    if common < least:
        error_ = DataError(
            f"{common} rows are common to all sites and at least {least} are needed: check that "
            "all sites use the same ids"
        )
        return failed(error_, able)
    said = f"{common} rows have a counterpart at every site."
    return [replace(check, remarks=(*check.remarks, said)) for check in checks]


def require_quorum(study: Study, checks: list[SiteCheck]) -> None:
    """Raise the first site's error if too few sites can take part.

    Raises
    ------
    ConsilienceError
        Of the class of that error; the sentence names the sites.
    """
    failing = [check for check in checks if check.error is not None]
    stopping = [check for check in failing if check.stops]
    if not failing or (len(checks) - len(failing) >= study.quorum and not stopping):
        return
    failing = stopping or failing
    first = failing[0].error
    if first is None or isinstance(first, MissingExtraError):
        raise first or DataError("a site cannot take part")
    others = ", ".join(check.name for check in failing[1:])
    more = f" (nor can {others} take part)" if others else ""
    where = f"site {failing[0].name}: "
    sentence = str(first).removeprefix(where)
    raise type(first)(f"{where}{sentence}{more}") from first


def differences(columns: Columns, checks: list[SiteCheck]) -> tuple[str, ...]:
    """Say in which columns the tables differ between sites, by column and site."""
    return tuple(told_apart(columns, {check.name: check.kinds for check in checks}))


def told_apart(columns: Columns, kinds: Mapping[str, Mapping[str, str] | None]) -> list[str]:
    """Sentences on columns whose types by site are not the same; a site may have told none."""
    said = []
    for name in columns.used():
        here = {site: own.get(name, "absent") for site, own in kinds.items() if own}
        if len(set(here.values())) > 1:
            listed = ", ".join(f"{kind} at {site}" for site, kind in here.items())
            said.append(f"Column {name} is {listed}.")
    return said


def same_rows(checks: Sequence[SiteCheck]) -> list[str]:
    """Say which sites have the same rows, as where one file was named for two of them."""
    sites: dict[str, list[str]] = {}
    for check in checks:
        sites.setdefault(check.digest, []).append(check.name)
    return [
        f"{' and '.join(names)} have the same rows in all columns of the study: each of them "
        f"counts {'twice' if len(names) == 2 else f'{len(names)} times'}. Check path in [source]."
        for digest, names in sites.items()
        if digest and len(names) > 1
    ]


def duration(checks: Sequence[SiteCheck]) -> list[str]:
    """Say how long the fit takes, where that is long."""
    seconds = max((check.seconds for check in checks), default=0.0)
    if seconds < LONG:
        return []
    return [
        f"Fits take up to about {about(seconds)} on a machine like this one, and less where small "
        "penalties cannot win or sites tell of few columns together."
    ]


def _check(
    study: Study, file: SiteFile, method: Method, ids: Ids, reference: ReferenceRows | None = None
) -> SiteCheck:
    policy: Policy | None = None
    kinds: dict[str, str] = {}
    try:
        policy = Policy.from_settings(file.policy)
        policy.check_method(type(method), study.preparation)
        if study.partition == "rows":
            policy.check_sums(study.sums)
        table = read_source(file.source, file.base)
        asked = study.columns
        if study.partition == "rows":
            asked = asked.only(type(method).roles)
        columns = file.columns.merged(asked, study.partition)
        schema = wide_schema(file.columns.recoded(table), columns, file.columns)
        kinds = _kinds(schema, study, columns, file.columns, policy)
        absent = [name for name in columns.used() if file.columns.local(name) not in schema.names]
        if len(absent) > 1:  # named all at once: loading stops at the first
            raise DataError(
                f"columns {', '.join(absent)} are not in {schema.description}: add them, or give "
                "their names there in [columns] rename"
            )
        own = offered_columns(file, policy)
        loaded = load_under(policy, own, table, asked, study.preparation, study.partition)
        setting = policy.lacking(method, [r for r in ROLES if getattr(columns, r)])
        if study.partition == "rows" and setting:
            raise DisclosureError(
                f"the policy does not grant what the study asks of it: its steward grants it by "
                f"{setting} = true, or the study asks for less"
            )
        remarks = [
            *_about_table(loaded.report, study.partition),
            *_about_size(loaded.data, policy, method),
            *_about_memory(table, loaded.data, policy),
            *_about_home(study, file, policy),
        ]
        refusal: ConsilienceError | None = _withheld_refusal(loaded, policy, method)
        essential = refusal is not None
        refusal = refusal or _response_refusal(loaded.data, policy, method)
        if refusal is None:
            refusal, essential = _told_refusal(loaded.data, policy, method)
        offer = None
        if reference is not None:
            refusal = own_rows_refusal(reference, loaded.data, policy)
        if study.partition == "columns":
            _require_partner(study, file, columns)
            refusal = consent_refusal(study, file, loaded.data, policy, method)
            offer = _offer(file, loaded.data, policy)
            remarks += _about_opening(study, file.name, method, offer)
    except ConsilienceError as error:
        return SiteCheck(file.name, policy, None, kinds, error)
    if loaded.data.id is not None:
        ids[file.name] = frozenset(loaded.data.id.tolist())
    # Levels are agreed by all: one site that differs stops the study, whatever its quorum.
    foreign = _foreign(loaded.report, study.partition, table.labelled)
    # Nothing goes without the one who asks; of several partners some may do. Private rows go to
    # nobody.
    essential |= reference is not None or study.roles.get(file.name) == "initiator"
    stops = foreign is not None or (refusal is not None and essential)
    error_ = foreign if foreign is not None else refusal
    of = (policy, loaded.report, kinds, error_, stops, tuple(remarks))
    seconds = 0.0 if error_ else method.expected_seconds(loaded.data, len(study.sites.names))
    return SiteCheck(
        file.name, *of, offer=offer, seconds=seconds, digest=_digest(study, loaded.data)
    )


def _digest(study: Study, data: SiteData) -> str:
    """Of the rows of a site; none where others may well have the same."""
    if study.partition == "columns" or data.n_rows < MIN_MATCHED:
        return ""
    found = hashlib.sha256()
    # Of the same features and responses for other people, or with other weights, none is a twin.
    who = data.id, data.agent, data.entity, data.cluster
    for part in (data.features, data.target, data.sequence, data.weight, data.offset, *who):
        found.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def _require_partner(study: Study, file: SiteFile, columns: Columns) -> None:
    """What only studies over columns need: a partner key, and a target at one site.

    Raises
    ------
    StudyError
    """
    if not file.partner_key():
        raise StudyError(
            "the site has no partner key, by which rows are matched: name the file that all "
            "parties share in [partners] key of the site file"
        )
    role = study.roles[file.name]
    if (columns.target is not None) != (role == "initiator"):
        names = "a target" if columns.target is not None else "no target"
        raise StudyError(
            f"the study calls the site {role!r} and its [columns] names {names}: the initiator, "
            "and nobody else, has the target"
        )
    check_own_roles(columns, role)


def told_kinds(found: SiteCheck, study: Study) -> dict[str, str]:
    """Types as another party may know them: what hangs on a few cells is left out.

    How many cells are text is a count of records; a single one may make a column of categories one
    of text, or say that a column is not empty.
    """
    told = {}
    for name, kind in found.kinds.items() if study.partition == "rows" else ():
        # Without the count of rows: that is a number of records.
        plain = kind.partition(" in ")[0]
        if not _is_number(study, study.columns, name):
            plain = "category" if plain in ("text", "number", "boolean", "empty") else plain
        told[name] = "number" if plain == "empty" else plain
    return told


def _kinds(
    table: Table, study: Study, columns: Columns, own: SiteColumns, policy: Policy
) -> dict[str, str]:
    """Type of each column; text that the study uses as a number is called what it turns out as.

    Over rows few cells make no text of it: they count as missing.
    """
    few = policy.min_records if study.partition == "rows" else 1
    found = {}
    for name in columns.used():
        local = own.local(name)
        if local not in table.names:
            continue
        found[name] = table.kind(local)
        if found[name] == "text" and _is_number(study, columns, name):
            _, wrong = table.numbers(local, own.codes(name))
            found[name] = f"text in {len(wrong)} rows" if len(wrong) >= few else "number"
    return found


def _is_number(study: Study, columns: Columns, name: str) -> bool:
    if name in columns.levels:
        return False
    if name in study.preparation.indicators:
        return all(is_number(plain_text(v)) for v in study.preparation.indicators[name])
    return name in (*columns.features, columns.target, columns.weight, columns.offset)


def _foreign(report: Report, partition: str, labelled: frozenset[str]) -> DataError | None:
    """Values outside the declared levels: sites must agree on the levels before anything runs."""
    where = "[data.levels]" if partition == "rows" else "[columns.levels]"
    found = [column for column in report.columns if column.foreign]
    if found:
        others = [column.name for column in found[1:]]
        do = "do" if len(others) > 1 else "does"
        listed = ", ".join(others[:5]) + " and more" * (len(others) > 5)
        more = f" (so {do} {listed})" if others else ""
        n = found[0].n_foreign
        has = f"holds values outside the declared levels in {n} row{'s' * (n != 1)}"
        if not n:
            has = "is on offer with values outside the declared levels"
        values = ""
        if found[0].local_name in labelled:
            values = "its value labels are read as texts, so set labels in [source] for values, "
        return DataError(
            f"column {found[0].name!r} {has}{more}: "
            f"{values}declare all levels in {where}, or list what stands for a missing value in "
            "[columns] missing_codes"
        )
    return None


def _about_table(report: Report, partition: str) -> list[str]:
    used = {column.name for column in report.columns}
    said = [column.about_odd() for column in report.columns if column.n_odd]
    said += [
        f"{count} rows without a value in {name} are left out, though the study does not use it: "
        "so few lack one that studies with and without the column would tell them apart. They stay "
        f"if {name} is not on offer."
        for name, count in report.dropped_by.items()
        if name not in used and partition == "rows"
    ]
    said += [f"Column {name} holds one value only." for name in report.constant]
    left_out = " and are left out" if partition == "columns" else ""
    if report.missing_ids:
        said.append(f"{report.missing_ids} rows have no id{left_out}.")
    if report.duplicate_ids:
        said.append(f"{report.duplicate_ids} rows repeat an id{left_out}.")
    return said


def run_bytes(rows: int, read: int, prepared: int, *, protects: bool) -> int:
    """Bytes of memory that a run of mean and deviation takes at a site beside Python, about.

    The table as it was read and as it is prepared, and some columns while a step computes; for
    each row its position, what it is known by, and in what runs it was. Measured in
    ``benchmarks/table_memory.py``.

    Parameters
    ----------
    rows, read, prepared : int
        Rows, columns of the table in memory, and columns that are prepared of it.
    protects : bool
        Whether the policy protects records, so that rows are known again.
    """
    return _BESIDE + rows * (8 * (read + prepared) + (90 if protects else 30))


def _about_memory(table: Table, data: SiteData, policy: Policy) -> list[str]:
    """How much memory a run takes, where that is much."""
    held = 0 if isinstance(table.frame, ParquetColumns) else len(table.names)
    shape = table.n_rows, held, data.features.shape[1]
    needed = run_bytes(*shape, protects=policy.min_records > 1)
    if needed < _MUCH:
        return []
    return [
        f"A run holds {table.n_rows:,} rows of the study's columns in memory: it takes about "
        f"{needed / 1e9:.1f} GB at this site for means and standard deviations, about half as "
        "much again for a description, and twice as much for a pooled regression."
    ]


def _about_size(data: SiteData, policy: Policy, method: Method) -> list[str]:
    """What the policy's smallest cell means for a table of this size."""
    least = policy.min_records
    if data.n_rows < least:
        return [
            f"{data.n_rows} rows are kept and the policy releases nothing that rests on fewer than "
            f"{least}: with most methods the site refuses or contributes nothing."
        ]
    said = []
    for name in CLASS_PARAMETERS:
        n_classes = getattr(method, name, None)
        if isinstance(n_classes, int) and data.n_rows < n_classes * least:
            said.append(
                f"{data.n_rows} rows are too few for {n_classes} classes of at least {least} rows "
                "each: the site will find fewer classes, or contribute counts only."
            )
    # Over columns no site releases sums of its columns.
    said += [
        f"Column {name} is 0 or 1 and one of them is in fewer than {least} rows: the site "
        "withholds sums of it."
        for name in (_rare_marks(data, least) if method.partition == "rows" else ())
    ]
    if policy.preset == "simulation":
        said.append("The preset simulation protects no record.")
    return said


def _rare_marks(data: SiteData, least: int) -> list[str]:
    """Columns of 0 and 1 of which one is in some rows, and in fewer than `least`."""
    names = []
    for name, column in zip(data.feature_names, data.features.T, strict=True):
        found = column[~np.isnan(column)]
        ones = int(np.count_nonzero(found))
        if np.isin(found, (0.0, 1.0)).all() and 0 < min(ones, len(found) - ones) < least:
            names.append(name)
    return names


def _withheld_refusal(loaded: Loaded, policy: Policy, method: Method) -> DataError | None:
    """Columns of which a site that protects records tells no sums, where the study needs them."""
    least, data = policy.min_records, loaded.data
    if least == 1 or getattr(method, "when_withheld", "") != "stop":
        return None
    # Of these the site tells nothing at all, which a quorum may allow.
    if data.n_rows < 2 * least or data.target is None or _few_differ(data.target, least):
        return None
    names = [
        name
        for name, column in zip(data.feature_names, data.features.T, strict=True)
        if name != getattr(method, "time", "") and _few_differ(column, least)
    ]
    if not names:
        return None
    return DataError(
        f"of {listed(names, 10, counted=False)} all rows have one value, or all but fewer than "
        f"{least}: the site withholds its sums, and the study stops there. Leave the column or the "
        'site out, or set when_withheld to "without-column"'
    )


def _response_refusal(data: SiteData, policy: Policy, method: Method) -> DataError | None:
    """Responses for which a site would refuse the first question, which a quorum may allow."""
    least = policy.min_records
    told = hasattr(method, "when_withheld") and data.n_rows >= 2 * least > 2
    if told and data.target is not None and _few_differ(data.target, least):
        return DataError(
            f"of the response all rows have one value, or all but fewer than {least}: the site "
            "tells nothing of it, so it has no part in the study"
        )
    try:
        method.check_rows(data)
    except DataError as error:
        return error
    return None


def _told_refusal(data: SiteData, policy: Policy, method: Method) -> tuple[DataError | None, bool]:
    """Columns that are told one by one and not together; whether the study stops there."""
    try:
        names = method.withheld(data, policy.limits)
    except DataError as error:
        return error, False
    if not names:
        return None, False
    said = (
        f"it withholds {listed(names, 10, counted=False)}, or others in their place: fewer than "
        f"{policy.min_records} rows are behind a count or a sum of products with other columns (as "
        "where few have two marks), or one row dominates, and the study stops there. Leave the "
        "column or the site out, join levels that few rows have, or set when_withheld to "
        '"without-column"'
    )
    return DataError(said), True


def _few_differ(column: NDArray[Any], least: int) -> bool:
    """Whether all rows with a value have the same one, but fewer than `least`."""
    if column.dtype.kind != "f":
        return len(column) - int(np.unique(column, return_counts=True)[1].max(initial=0)) < least
    known = column[~np.isnan(column)]
    if len(known) < least:
        return False  # which is another fault
    # What more than half of the rows have is at the median.
    middle = np.partition(known, len(known) // 2)[len(known) // 2] if len(known) else 0.0
    return int(np.count_nonzero(known != middle)) < least


def _about_home(study: Study, file: SiteFile, policy: Policy) -> list[str]:
    """What the home says about earlier runs; a home that does not exist yet is not created."""
    if not file.home_path.is_dir():
        if policy.approved_studies is not None and study.hash() not in policy.approved_studies:
            raise _not_approved(study)
        return []
    home = DiskStore(file.home_path)

    def unread(*_: object) -> SiteData:
        raise DataError("the table is not read here")

    if not Site(file.name, unread, policy=policy, home=home).approves(study.hash()):
        raise _not_approved(study)
    used = len(home.ledger(policy.data_id).get("runs", []))
    if policy.max_runs is not None and used >= policy.max_runs:
        return [f"All {policy.max_runs} runs that the policy allows on this data are used up."]
    return []


def _not_approved(study: Study) -> PrivacyError:
    return PrivacyError(
        f"the steward has not approved the study with the hash {study.hash()}: approve it with "
        "'consilience site approve'"
    )


# ---------------------------------------------------------------------------- consent over columns


def consent_refusal(
    study: Study, file: SiteFile, data: SiteData, policy: Policy, method: Method
) -> PrivacyError | None:
    """Say in one sentence what a site will refuse in a study over columns, if anything.

    Parameters
    ----------
    study : Study
    file : SiteFile
    data : SiteData
        Its prepared table.
    policy : Policy
    method : Method

    Returns
    -------
    PrivacyError or None
        The first thing for which there is no consent.
    """
    if not policy.share_ids:
        return PrivacyError(
            "the policy lets no hashed ids leave (share_ids), so no row can be matched"
        )
    asks = study.roles[file.name] == "initiator"
    if method.name == "assisted-glm" and study.follows is None and asks:
        return _about_response(file, policy, method)
    if method.name == "assistance-test" and not asks:
        return _about_sketch(file, data, policy, method)
    if method.name == "assisted-glm" and not policy.per_record:
        return PrivacyError(
            "the policy lets no combination of columns leave for each record (per_record)"
        )
    return None


def _offer(file: SiteFile, data: SiteData, policy: Policy) -> Offer | None:
    """What the policy lets be known of a site's columns; None where no row is complete."""
    x = data.features[~np.isnan(data.features).any(axis=1)]
    if not len(x):
        return None
    ledger: Mapping[str, Any] = {}
    if file.home_path.is_dir():
        ledger = DiskStore(file.home_path).ledger(policy.data_id)
    factor = column_factor(x)
    known = RevealedRank.from_ledger(ledger).count(factor, data.feature_names)
    rank = rank_of(factor)
    limit = policy.revealed_limit(rank)
    # Whoever has clusters of rows keeps them, and with them the columns: errors need both.
    opens = limit >= rank and data.cluster is None
    return Offer(opens=opens, room=known < min(limit, rank), known=known, rank=rank)


def _about_opening(study: Study, name: str, method: Method, offer: Offer | None) -> list[str]:
    """What a policy that lets all directions be known means in this study."""
    asked = method.name == "assisted-glm" and study.follows is None
    if not asked or getattr(method, "exchange", "") != "auto" or offer is None or not offer.opens:
        return []
    who = "the partner, with the response" if study.roles[name] == "initiator" else "the initiator"
    return [
        "The policy lets all directions of its columns be known (max_revealed_rank), so this "
        f"study may send all of its columns to {who} in one message. Whoever does not mean that "
        "gives a number there, or exchange = 'turns' in the study."
    ]


def _about_response(file: SiteFile, policy: Policy, method: Method) -> PrivacyError | None:
    way = getattr(method, "response", "")
    if way == "share" and not policy.share_response:
        return PrivacyError(
            "the study gives partners the response (response = 'share') and the policy lets none "
            "leave: the steward may grant share_response, or the study may mask it"
        )
    if way == "masked":
        flip = float(getattr(method, "flip", 0.0))
        return _about_price(file, policy, math.log((1 - flip) / flip), "a masked response")
    return None


def _about_sketch(
    file: SiteFile, data: SiteData, policy: Policy, method: Method
) -> PrivacyError | None:
    epsilon = getattr(method, "epsilon", None)
    if epsilon is None:
        if policy.per_record:
            return None
        return PrivacyError("the policy lets no sketch without noise leave (per_record)")
    bounds = data.bounds
    if bounds is None or np.isnan(bounds).any():
        known = np.zeros(0) if bounds is None else np.flatnonzero(~np.isnan(bounds).any(axis=0))
        lacking = [name for j, name in enumerate(data.feature_names) if j not in known]
        return PrivacyError(
            "noise has no price without public limits of the columns: give bounds of "
            f"{', '.join(lacking)} in [columns] of the site file"
        )
    return _about_price(file, policy, float(epsilon), "a sketch with noise")


def _about_price(file: SiteFile, policy: Policy, epsilon: float, what: str) -> PrivacyError | None:
    """Whether a price is within what is left; what was drawn before costs nothing more."""
    if not policy.noised:
        return PrivacyError(f"the policy does not let {what} leave (noised)")
    charges: tuple[float, ...] = ()
    if file.home_path.is_dir():
        ledger = Budget.read(DiskStore(file.home_path).ledger(policy.data_id)).ledger
        charges = tuple(ledger.get("epsilon", {}).values())
    left = policy.max_epsilon - math.fsum(charges)
    # The same noise is sent again, not drawn anew: a second look at it tells nothing more.
    drawn = any(math.isclose(charge, epsilon, rel_tol=1e-9) for charge in charges)
    if drawn or epsilon <= left + policy.max_epsilon * 1e-12:
        return None
    return PrivacyError(
        f"{what} costs epsilon {epsilon:g}, and {max(left, 0.0):g} of {policy.max_epsilon:g} is "
        "left on this data: the steward may raise max_epsilon"
    )


# ---------------------------------------------------------------------------------- reference rows


def facts_of(reference: ReferenceRows) -> ReferenceFacts:
    """Rank and conditioning; missing cells count as the mean of their column."""
    rows = reference.rows
    known = ~np.isnan(rows)
    total = np.where(known, rows, 0.0).sum(axis=0)
    # As the rounds fill them: the rank is that of what sites will compute with.
    mean = total / np.maximum(known.sum(axis=0), 1)
    return reference_facts(np.where(known, rows, mean))


def fact_line(reference: ReferenceRows) -> str:
    """What was read, in one line."""
    facts = facts_of(reference)
    kept = "" if facts.n_rows == reference.rows_read else f", {facts.n_rows} kept"
    return (
        f"{reference.rows_read} rows read{kept} ({reference.description}), {facts.n_columns} "
        f"columns of rank {facts.rank}"
    )


def own_rows_refusal(
    reference: ReferenceRows, data: SiteData, policy: Policy
) -> PrivacyError | None:
    """Say that a site will refuse reference rows as its own, if it will.

    Parameters
    ----------
    reference : ReferenceRows
    data : SiteData
        Its prepared table.
    policy : Policy
        One that protects no record refuses nothing.
    """
    if policy.min_records < 2 or not len(reference.rows):
        return None
    # Fresh, as in a run: digests of this check are comparable with nothing.
    salt = secrets.token_bytes(16)
    found = compare_rows(
        row_digests(data.features, salt), row_digests(reference.rows, salt), policy.min_records
    )
    if not found.offered:
        return None
    return PrivacyError(
        f"{found.found} of the {len(reference.rows)} reference rows are rows of its table, more "
        "than chance explains, and reference rows go to all sites: name a file of public rows in "
        "[reference], or leave the section out and let the method draw its rows"
    )
