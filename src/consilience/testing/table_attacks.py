"""Attacks on the people in a site's table: what a study tells must not depend on a few of them.

Each runs the method over tables that differ by a few people at one site, or over the same table
twice, through the way that tables take: columns by name, levels, missing values, the guard over
runs. Where nobody and a few people make no figure that may be told, the replies must be the same
bytes (``odd rows``); where they do, the same gaps, refusals, verdicts and sizes (``few differ``,
``rare level``). A method that fits whatever columns there are has another pattern as soon as any
numbers differ: this is tried, and then answers and refusals alone are compared.

``counts of few`` reads what a site told of 0/1 columns by the usual names of fields: ``n`` or
``counts``, ``means`` or ``totals``, and ``products`` about the means, for all rows or by group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError
from consilience.protocol.method import Columns, Method, SiteData
from consilience.sites import step_runner
from consilience.sites.loaders import memory_site
from consilience.sites.own_columns import SiteColumns
from consilience.sites.prepare import Loaded
from consilience.sites.site import Site
from consilience.testing.fakes import (
    Factory,
    members,
    rows_of,
    scripted,
    with_fixed_secrets,
    with_policy,
)
from consilience.testing.recalling import SEED, Attack, Outcome
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Released
from consilience.wire.envelope import Reply
from consilience.wire.message import iterate_fields

Table = dict[str, list[str]]
Change = Callable[[Table], Table]
Replies = dict[Any, Reply]
OnRows = Callable[[Method, Federation, int], Outcome]
ODD = "unheard of"
RARE = "hardly ever"
MORE = "more"
"""A column that a change puts into the table."""
_TIMES = 4
_DEALT = 1000
"""Rows among which rows are dealt, so that a table with one more is not dealt anew."""


# --------------------------------------------------------------------------- tables of a federation


def with_names(federation: Federation) -> Federation:
    """Return the federation with names for all roles that its rows have."""
    data = next(iter(rows_of(federation).values()))
    one_site = len(federation.engine.sites) == 1
    roles = [r for r in ("id", *(() if one_site else ("entity",))) if getattr(data, r) is not None]
    names = {r: r for r in roles if getattr(federation.columns, r) is None}
    return dataclasses.replace(federation, columns=dataclasses.replace(federation.columns, **names))


def table_of(data: SiteData, columns: Columns) -> Table:
    """Rows of a site as texts of a table."""
    found: Table = {}
    for name in columns.features:
        levels = columns.levels.get(name)
        if levels is None:
            cells = data.features[:, data.feature_names.index(name)]
            found[name] = ["" if np.isnan(cell) else repr(float(cell)) for cell in cells]
        else:
            places = [data.feature_names.index(f"{name}={level}") for level in levels]
            found[name] = [levels[i] for i in data.features[:, places].argmax(axis=1)]
    for role in ("target", "id", "agent", "entity", "weight", "offset"):
        name, cells = getattr(columns, role), getattr(data, role)
        if name is not None:
            found[name] = [c if isinstance(c, str) else repr(float(c)) for c in cells.tolist()]
    if columns.sequence and data.sequence is not None:
        states = (*columns.levels[columns.sequence[0]], "")
        for name, cells in zip(columns.sequence, data.sequence.T, strict=True):
            found[name] = [states[state] for state in cells]
    return found


def listed(columns: Columns) -> SiteColumns:
    """A site's own list: what a study names, as what it names it."""
    offered: dict[str, Any] = dict.fromkeys(columns.used(), "number")
    offered |= {name: "id" for name in (columns.id, columns.agent, columns.entity) if name}
    offered |= columns.levels
    if columns.sequence:
        offered |= dict.fromkeys(columns.sequence, columns.levels[columns.sequence[0]])
    return SiteColumns(offered=offered)


def over_tables(
    federation: Federation,
    here: Change = dict,
    there: Change = dict,
    *,
    own: SiteColumns | None = None,
    dealt_anew: bool = True,
) -> Federation:
    """Return the federation over tables that were changed, the first site's by `here`.

    Parameters
    ----------
    federation : Federation
        Its columns may name some that the changes put in.
    here, there : callable
        From a table, a mapping of names to texts, to another one.
    own : SiteColumns, optional
        What every site's own list says.
    dealt_anew : bool
        Whether rows are dealt to parts by what the table holds, and runs are guarded, as they are.
        Otherwise they are dealt by their place, so that tables of other rows can be compared.
    """
    columns = federation.columns
    # rows do not have it yet: a change puts it in
    there_now = tuple(name for name in columns.features if name != MORE)
    plain = dataclasses.replace(columns, features=there_now)
    rows = rows_of(dataclasses.replace(federation, columns=plain))
    sites = []
    for i, (name, site) in enumerate(members(federation).items()):
        table = (there if i else here)(table_of(rows[name], plain))
        # the same secrets over both tables, or all replies would differ
        made = with_fixed_secrets(memory_site(name, table, site.policy, own=own), i)
        if not dealt_anew:
            made._loader = _dealt_by_place(made._loader)
        sites.append(made)
    return scripted(dataclasses.replace(federation, engine=LocalEngine(sites)))


def _dealt_by_place(loader: Any) -> Any:
    def load(*args: Any, **more: Any) -> Loaded:
        loaded: Loaded = loader(*args, **more)
        data = dataclasses.replace(loaded.data, content_hash="the same", n_read=_DEALT)
        return dataclasses.replace(loaded, data=data, everyone=None)

    return load


def told(method: Method, federation: Federation, run_id: str = "one") -> Replies:
    """Return what the sites answer; a run that ends early has told what it had."""
    with contextlib.suppress(ConsilienceError):
        method.run(federation, seed=SEED, run_id=run_id)
    engine: Any = federation.engine
    return {key: Reply.from_bytes(raw) for key, raw in engine.replies.items()}


def _answered(replies: Replies) -> bool:
    return bool(replies) and all(reply.status == "reply" for reply in replies.values())


# --------------------------------------------------------------------------- what is compared


def pattern(value: Any) -> Any:
    """Everything about what leaves but the numbers in it."""
    if isinstance(value, Released):
        return pattern(value.value)
    if dataclasses.is_dataclass(value):
        return [(f.name, pattern(getattr(value, f.name))) for f in dataclasses.fields(value)]
    if isinstance(value, tuple | list):
        return [pattern(item) for item in value]
    if isinstance(value, Mapping):
        return {key: pattern(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return (value.shape, np.isnan(value).tolist())
    if isinstance(value, np.ndarray):
        return (value.shape, (value == 0).tolist())
    if isinstance(value, float):
        return np.isnan(value)
    if isinstance(value, int):
        return value == 0
    return value


def answers(replies: Replies) -> dict[Any, Any]:
    """Answers and refusals."""
    return {key: (reply.step, reply.status, reply.reason) for key, reply in replies.items()}


def patterns(replies: Replies) -> dict[Any, Any]:
    """Answers and refusals, with the size, the verdicts, the gaps and the zeros of each reply."""
    found: dict[Any, Any] = {}
    for key, reply in replies.items():
        said = pattern(decode_message(reply.message)) if reply.message else None
        verdicts = [{**v, "epsilon": 0} for v in reply.verdicts]
        found[key] = (reply.step, reply.status, reply.reason, len(reply.message), verdicts, said)
    return found


# --------------------------------------------------------------------------- changes of a table


def more_rows(column: str, cell: str, few: int) -> Change:
    """Put rows at the end that are like others but for one cell."""

    def change(table: Table) -> Table:
        made = {name: [*cells, *cells[:few]] for name, cells in table.items()}
        made[column][len(table[column]) :] = [cell] * few
        return made

    return change


def other_cells(column: str, cell: str, few: int) -> Change:
    """Put something else into some cells of a column."""

    def change(table: Table) -> Table:
        return {**table, column: [cell] * few + table[column][few:]}

    return change


def with_column(cells: Callable[[int], list[str]]) -> Change:
    """Put a column in."""

    def change(table: Table) -> Table:
        return {**table, MORE: cells(len(next(iter(table.values()))))}

    return change


def usual(n: int, seed: int = 5) -> list[str]:
    """Return numbers as there are in most columns."""
    return [repr(float(x)) for x in np.random.default_rng(seed).normal(size=n).round(3)]


KINDS: dict[str, Callable[[int, int], list[str]]] = {
    "0/1": lambda n, few: ["1"] * few + ["0"] * (n - few),
    "one value": lambda n, few: [repr(1.5 + i / 7) for i in range(few)] + ["2.5"] * (n - few),
    "gaps": lambda n, few: [""] * few + usual(n)[few:],
}
"""Columns of n cells in which a few differ from the rest."""


# --------------------------------------------------------------------------- nobody and a few


TABLE_ATTACKS: list[Attack] = []
"""All of them, in the order in which they stand here."""


def _on_rows(name: str, tries: str) -> Callable[[OnRows], Attack]:
    """Make a function of method, federation and `min_records` an attack on studies over rows."""

    def made(function: OnRows) -> Attack:
        def run(method: Method, factory: Factory) -> Outcome:
            federation = factory()
            if federation.partition != "rows":
                why = "a study over columns matches people by id, which its parties consent to"
                return Outcome("accounted", why)
            policies = {name: site.policy for name, site in members(federation).items()}
            if min(policy.min_records for policy in policies.values()) == 1:
                why = "the policy protects no record: it is one for simulation"
                return Outcome("accounted", why)
            least = policies[federation.engine.sites[0]].min_records
            return function(method, with_names(federation), least)

        found = Attack(name, tries, run, "method")
        TABLE_ATTACKS.append(found)
        return found

    return made


def _with_rule(federation: Federation, missing: Any) -> Federation:
    """Let the study fill or leave out missing values, where it refuses them."""
    if federation.preparation.missing != "refuse":
        return federation
    rules = dataclasses.replace(federation.preparation, missing=missing)
    return dataclasses.replace(federation, preparation=rules)


def _odd(federation: Federation) -> Iterator[tuple[str, str]]:
    """Columns, and cells for which a row is left out."""
    columns = federation.columns
    if federation.preparation.missing != "keep":
        yield from ((name, cell) for name in columns.features[:1] for cell in (ODD, ""))
    if columns.target is not None:
        yield from ((columns.target, ODD), (columns.target, ""))
    yield from ((name, "") for name in (columns.agent, columns.entity) if name is not None)


@_on_rows("odd rows", "see whether a few people have an odd value")
def _odd_rows(method: Method, federation: Federation, least: int) -> Outcome:
    before = told(method, over_tables(federation, dealt_anew=False))
    if not _answered(before):
        return Outcome("blocked", "over tables of its rows the study is refused")
    read = dataclasses.replace(federation, columns=federation.columns.only(method.roles))
    for column, cell in _odd(read):
        for few in (1, least - 1):
            change = more_rows(column, cell, few)
            if told(method, over_tables(federation, change, dealt_anew=False)) != before:
                return Outcome("open", f"{few} rows with {cell!r} in {column!r} can be seen")
    # Columns in which cells may be empty.
    kept = federation.columns.features[:1] if federation.preparation.missing == "keep" else ()
    for column in (*kept, *federation.columns.sequence[:2]):
        for few in (1, least - 1):
            changes = (other_cells(column, cell, few) for cell in ("", ODD))
            empty, odd = (
                told(method, over_tables(federation, change, dealt_anew=False))
                for change in changes
            )
            if odd != empty:
                return Outcome("open", f"{few} odd cells of {column!r} are not as empty ones")
    return Outcome("blocked", "a few odd values change no byte")


def _compared(
    tell: Callable[[Change], Replies], nobody: Change, few: Sequence[Change], many: Sequence[Change]
) -> str:
    """Whether what is told of nobody and of a few has one pattern.

    Where it has not, but tables in which many differ have different ones as well, answers and
    refusals are compared.

    Returns
    -------
    {"all", "answers", ""}
        What is the same.
    """
    plain, *others = (tell(change) for change in (nobody, *few))
    if all(patterns(one) == patterns(plain) for one in others):
        return "all"
    if any(answers(one) != answers(plain) for one in others):
        return ""
    # if patterns hang on the numbers there are anyway, they tell nothing of a few
    first, *rest = (patterns(tell(change)) for change in many)
    return "answers" if any(one != first for one in rest) else ""


def _said(found: Mapping[str, str], what: str) -> Outcome:
    open_ = [name for name, same in found.items() if not same]
    if open_:
        return Outcome("open", f"that a few {what} can be seen ({', '.join(open_)})")
    if "answers" in found.values():
        said = "answers and refusals are those of nobody; figures hang on all rows there are"
        return Outcome("blocked", said)
    return Outcome("blocked", "gaps, refusals, verdicts and sizes are those of nobody")


@_on_rows("few differ", "see whether a few people differ in a column")
def _few_differ(method: Method, federation: Federation, least: int) -> Outcome:
    if not _has_numbers(federation):
        return Outcome("accounted", "the study has no columns of numbers")
    features = (*federation.columns.features, MORE)
    columns = dataclasses.replace(federation.columns, features=features)
    federation = dataclasses.replace(federation, columns=columns)
    found = {}
    for kind, cells in KINDS.items():
        asked = _with_rule(federation, "aggregated-mean") if kind == "gaps" else federation
        there = with_column(lambda n: KINDS["0/1"](n, n // 2) if kind == "0/1" else usual(n))  # noqa: B023

        def tell(here: Change) -> Replies:
            return told(method, over_tables(asked, here, there, dealt_anew=False))  # noqa: B023

        def one(few: int) -> Change:
            return with_column(lambda n: cells(n, few))  # noqa: B023

        many = [one(least), one(2 * least), one(3 * least)]
        found[kind] = _compared(tell, one(0), [one(1), one(least - 1)], many)
    return _said(found, "differ in a column")


def _has_numbers(federation: Federation) -> bool:
    features = federation.columns.features
    return bool(features) and not federation.columns.levels.keys() & {*features}


@_on_rows("rare level", "see whether a few people have a level")
def _rare_level(method: Method, federation: Federation, least: int) -> Outcome:
    levels = federation.columns.levels
    if not levels:
        return Outcome("accounted", "the study declares no levels")
    column = next(iter(levels))
    wider = {**levels, column: (*levels[column], RARE)}
    columns = dataclasses.replace(federation.columns, levels=wider)
    federation = dataclasses.replace(federation, columns=columns)
    found = {}
    for name, own in (("as found", None), ("as listed", listed(columns))):

        def tell(here: Change) -> Replies:
            return told(method, over_tables(federation, here, own=own, dealt_anew=False))  # noqa: B023

        few = [other_cells(column, RARE, k) for k in (1, least - 1)]
        many = [other_cells(column, level, 2 * least) for level in levels[column]]
        found[name] = _compared(tell, dict, few, many)
    return _said(found, "have a level")


# --------------------------------------------------------------------------- counts of few


@_on_rows("counts of few", "count few people by 0/1 columns and their products")
def _counts_of_few(method: Method, federation: Federation, least: int) -> Outcome:
    columns = federation.columns
    if not _has_numbers(federation) or len(columns.features) < 2:
        return Outcome("accounted", "the study has no columns of numbers")

    names = list(columns.features)
    if method.tells == "moments" and columns.target is not None:
        names += [columns.target] * (columns.target not in columns.levels)

    def meeting(table: Table) -> Table:
        """More rows, and 0/1 columns of which every other two meet in half of a few rows.

        A response whose moments are told is one of them, and meets the last column so.
        """
        ids = (columns.id, columns.agent, columns.entity)
        again = range(_TIMES)
        made = {
            name: [f"{c}/{i}" if name in ids else c for i in again for c in cells]
            for name, cells in table.items()
        }
        n = len(next(iter(made.values())))
        # halves: no column alone is of few rows
        x = np.random.default_rng(SEED).random((n, len(names))) < 0.5
        p = len(columns.features)
        for j in (*range(1, p, 2), *range(p, len(names))):
            x[:, j] = ~x[:, j - 1]
            x[np.flatnonzero(x[:, j - 1])[: least // 2], j] = True
        return made | {name: [repr(float(c)) for c in x[:, j]] for j, name in enumerate(names)}

    rules = dataclasses.replace(federation.preparation, standardize="none")
    asked = dataclasses.replace(federation, preparation=rules)
    found = told(method, over_tables(asked, meeting, meeting))
    columns = federation.columns
    beside = (columns.offset is not None) + (columns.weight is not None)
    read = 0
    for (round_, site), reply in found.items():
        if not reply.message:
            continue
        figures = {
            name: content.value if isinstance(content, Released) else content
            for name, _, content in iterate_fields(decode_message(reply.message))
        }
        for count in counts_told(_of_zeros_and_ones(figures, beside)):
            read += 1
            if count < least - 0.5:
                return Outcome("open", f"site {site} tells {count:.3g} rows in round {round_}")
    return Outcome("blocked", f"none of {read} counts of 0/1 columns is of few rows")


def _of_zeros_and_ones(fields: dict[str, Any], beside: int) -> dict[str, Any]:
    """Moments without the last columns, an offset and weights, which are no 0/1 columns."""
    means = fields.get("means")
    if not beside or not isinstance(means, np.ndarray) or means.ndim != 1:
        return fields
    whole = _whole(np.asarray(fields["products"]), np.flatnonzero(~np.isnan(means)), len(means))
    left = np.flatnonzero(~np.isnan(means[:-beside]))
    cut = whole[np.ix_(left, left)][np.triu_indices(len(left))]
    return fields | {"means": means[:-beside], "products": cut}


def counts_told(fields: Mapping[str, Any]) -> Iterator[float]:
    """Numbers of rows that follow from a message about 0/1 columns.

    Parameters
    ----------
    fields : mapping of str to value
        ``n`` or ``counts``, ``means`` or ``totals``, and ``products`` about the means: of one group
        of rows, or of several along the first axis; products whole, or the upper triangle of the
        columns whose means are told.

    Yields
    ------
    float
        For each column the rows with 1 and with 0; for each pair the rows of their four cells.
    """
    sizes = fields.get("n", fields.get("counts"))
    firsts = fields.get("means", fields.get("totals"))
    if not _are_numbers(sizes, firsts) or np.ndim(firsts) not in (1, 2):
        return
    sizes, firsts = np.atleast_1d(np.asarray(sizes, float)), np.atleast_2d(firsts)
    products = fields.get("products")
    products = np.asarray(products) if _are_numbers(products) else np.empty(0)
    products = (
        products
        if np.ndim(fields["means" if "means" in fields else "totals"]) == 2
        else products[None]
    )
    for g, means in enumerate(firsts):
        # Columns may rest on different numbers of rows: the largest is that of all.
        n = float(np.nanmax(sizes if len(firsts) == 1 else sizes[g]))
        means = means if "means" in fields else means / n
        ones = n * means
        for one in ones[~np.isnan(ones)]:
            yield from (one, n - one)
        if not products.size:
            continue
        whole = _whole(products[g], np.flatnonzero(~np.isnan(means)), len(means))
        for i, j in itertools.combinations(range(len(means)), 2):
            both = whole[i, j] + n * means[i] * means[j]
            if not np.isnan(both):
                yield from (both, ones[i] - both, ones[j] - both, n - ones[i] - ones[j] + both)


def _are_numbers(*values: Any) -> bool:
    return all(
        isinstance(v, int | float) or (isinstance(v, np.ndarray) and v.size > 0) for v in values
    )


def _whole(products: NDArray[Any], known: NDArray[np.int64], p: int) -> NDArray[np.float64]:
    """Products of all pairs of columns, NaN where they are not told."""
    if products.shape == (p, p):
        return np.asarray(products, dtype=float)
    found = np.full((p, p), np.nan)
    i, j = np.triu_indices(len(known))
    if products.shape == i.shape:
        found[known[i], known[j]] = found[known[j], known[i]] = products
    return found


# --------------------------------------------------------------------------- two runs


@_on_rows("two runs", "subtract a run on a table from one on nearly the same")
def _two_runs(method: Method, federation: Federation, least: int) -> Outcome:
    name = federation.engine.sites[0]
    columns = federation.columns
    gaps = [next(iter(columns.features or columns.sequence))]

    def with_gaps(table: Table) -> Table:
        return {k: [""] * 2 + v[2:] if k in gaps else v for k, v in table.items()}

    def without_one(table: Table) -> Table:
        return {k: v[:-1] for k, v in table.items()}

    asked = _with_rule(federation, "complete-rows")
    homes: dict[str, Any] = {}
    used: list[tuple[frozenset[int], Counter[Any]]] = []  # which rows, and what is in them
    held: list[Any] = []
    changes: tuple[Change, ...] = (dict, with_gaps, without_one, dict)
    for i, change in enumerate(changes):

        def changed(table: Table, change: Change = change) -> Table:
            made = change(table)
            # as people: the same person may stand in another row of another table
            held[:] = zip(*made.values(), strict=True)
            return made

        tables = over_tables(asked, changed)
        for one, site in members(tables).items():
            site.home = homes.setdefault(one, site.home)
        with _rows_used(name) as rows:
            told(method, tables, run_id=f"run-{i}")
        used += [(one, Counter(held[row] for row in one)) for one in sorted(rows, key=sorted)]
    if not used:
        return Outcome("blocked", "over tables of its rows the study is refused")
    for (first, here), (second, there) in itertools.combinations(used, 2):
        # Equal rows are as good as each other: where only these are exchanged nothing is told.
        if 0 < (apart := len(first ^ second)) < least and here != there:
            return Outcome("open", f"two runs rest on rows that differ by {apart}")
    return Outcome("blocked", f"any two runs rest on the same rows, or on rows {least} apart")


@contextlib.contextmanager
def _rows_used(name: str) -> Iterator[set[frozenset[int]]]:
    """Note which rows of its table a site takes for each question that it answers."""
    found: set[frozenset[int]] = set()
    plain = step_runner._answered

    def noting(work: Any, counted: dict[str, Any]) -> Any:
        outcome = plain(work, counted)
        if work.request.site == name:
            found.add(frozenset(work.data.rows.tolist()))
        return outcome

    # no reply says which rows it rests on
    with mock.patch.object(step_runner, "_answered", noting):
        yield found


SHARES = (0.2, 0.21)


@_on_rows("held-out shares", "subtract runs that hold out nearly the same rows")
def _held_out_shares(method: Method, federation: Federation, least: int) -> Outcome:
    if not hasattr(method, "holdout") or federation.columns.target is None:
        return Outcome("accounted", "no rows with a response are held out by a share")
    asked = [dataclasses.replace(method, holdout=share) for share in SHARES]  # type: ignore[type-var]
    first, second = (told(one, over_tables(federation)) for one in asked)
    if not second:
        return Outcome("accounted", f"the method takes no share of {SHARES[1]}")
    if not _answered(first):
        return Outcome("blocked", "over tables of its rows the study is refused")
    if [r.message for r in first.values()] != [r.message for r in second.values()]:
        return Outcome("open", f"figures under shares {SHARES[0]} and {SHARES[1]} differ")
    return Outcome("blocked", "a little larger share changes no byte")


# --------------------------------------------------------------------------- what is not granted


@_on_rows("not on offer", "name a column that the site does not offer")
def _not_on_offer(method: Method, federation: Federation, least: int) -> Outcome:
    columns = federation.columns
    own = listed(columns).offered or {}
    numbers = [name for name in (*columns.features, *columns.sequence) if name in own]
    hidden = SiteColumns(offered={k: v for k, v in own.items() if k != numbers[0]})
    as_id = SiteColumns(offered={**own, numbers[0]: "id"})
    for held, what in ((hidden, "that no list has"), (as_id, "of ids")):
        replies = told(method, over_tables(federation, own=held))
        if any(reply.status == "reply" for reply in replies.values()):
            return Outcome("open", f"a site answered about a column {what}")
    return Outcome("blocked", "no site answered about columns that are not on offer")


@_on_rows("foreign models", "have models of others evaluated without consent")
def _foreign_models(method: Method, federation: Federation, least: int) -> Outcome:
    if not method.foreign_models:
        return Outcome("accounted", "the method evaluates no models of others")
    site: Site = next(iter(members(federation).values()))
    policy = dataclasses.replace(site.policy, foreign_models=False)
    replies = told(method, scripted(with_policy(federation, policy)))
    if any(reply.status == "reply" for reply in replies.values()):
        return Outcome("open", "a site whose policy allows no models of others answered")
    return Outcome("blocked", "sites whose policy allows no models of others answered nothing")
