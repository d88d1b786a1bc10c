"""Released values: the only things besides public ones that a message can hold.

A step does not *say* what a value discloses: it hands the records to a function of this module,
which computes the value and, beside it, the facts on which the gate decides (how many records a
cell rests on, the largest share of one record). Those facts, the *evidence*, never leave the site.

=================  ==============  =============================================================
function           class           evidence
=================  ==============  =============================================================
count              AGGREGATE       the number itself
cell_counts        AGGREGATE       records in each cell
aggregate          AGGREGATE       records behind each cell (for two-valued contributions: the
                                   smaller group), largest share of one record, entities, members
cross_products     AGGREGATE       rows, columns, the same facts for each cell
class_sums         AGGREGATE       the same within each class, entities, members, rows
class_moments      AGGREGATE       the same within each class and block of columns
linked             AGGREGATE       records in each class, columns of the largest component
rounded            AGGREGATE       records behind the statistic, size of the rounding step
model              MODEL           records, records in each class, number of parameters
chances            MODEL or        records in each class, records behind each sum that went into it,
                   AGGREGATE       largest share of one record
estimator          MODEL           type, records, parameters or records per leaf
local_fit          MODEL           records, parameters, effective number of records behind the
                                   curvature, largest share of one record in a cell of it
slopes             AGGREGATE       records
weighted_sums      AGGREGATE       the same as of a local fit, of sums at coefficients of others
per_record         PER_RECORD      number of records
projection         PER_RECORD or   directions, names of the columns, triangular factor of the
                   NOISED          columns; with noise also epsilon and mechanism
response           PER_RECORD      number of records
hashed_ids         PER_RECORD      number of records
noised             NOISED          epsilon, name of the mechanism
addressed          as its value    the same, and the site that alone may read it
bundle             as its parts    that of the parts, side by side
together           as its parts    that of the parts, each by itself
relayed            as stated       none: the coordinator passes on what sites released
=================  ==============  =============================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray, as_floats
from consilience.exceptions import ProtocolError
from consilience.wire.cell_facts import Judged as Judged
from consilience.wire.cell_facts import (
    cell_facts,
    chance_facts,
    class_facts,
    facts_with_counts,
    largest_share,
    sums_by_class,
)
from consilience.wire.digits import by_entity, coarse, largest_move
from consilience.wire.few_beside import FewBeside
from consilience.wire.message import Disclosure
from consilience.wire.moment_facts import (
    Coded,
    block_facts,
    coded_within,
    column_facts,
    moment_facts,
)
from consilience.wire.support import Limits as Limits
from consilience.wire.support import Support as Support
from consilience.wire.support import class_moments_fault as class_moments_fault
from consilience.wire.support import estimator_fault as estimator_fault
from consilience.wire.support import fit_fault as fit_fault

_KEY = object()


class Released:
    """A value together with its class of disclosure. Made only by this module.

    Attributes
    ----------
    value : Any
        Plain value as it crosses: scalar, array, or a nest of dicts and tuples of them.
    disclosure : Disclosure
    evidence : Support or None
        Present at the site that made the value, ``None`` where it was received.
    """

    __slots__ = ("_disclosure", "_evidence", "_value")

    def __init__(
        self, value: Any, disclosure: Disclosure, evidence: Support | None, key: object
    ) -> None:
        if key is not _KEY:
            raise ProtocolError("Released values are made only by consilience.wire.disclosure")
        self._value, self._disclosure, self._evidence = value, disclosure, evidence

    @property
    def value(self) -> Any:
        """Plain value as it crosses."""
        return self._value

    @property
    def disclosure(self) -> Disclosure:
        """Class of disclosure."""
        return self._disclosure

    @property
    def evidence(self) -> Support | None:
        """What the value rests on; None where it was received."""
        return self._evidence

    def __repr__(self) -> str:
        return f"<Released {self._disclosure.value}>"

    def withhold_unsafe(self, limits: Limits) -> Released:
        """Put NaN where a cell is small or dominated: the usual rule of methods for sums.

        Returns
        -------
        Released
            With the same evidence, except that withheld cells rest on no records.
        """
        evidence = self._evidence
        if evidence is None:
            return self
        # Facts may be of whole cells where the value has more axes: one unsafe fact withholds all
        # of them.
        mask = evidence.small(limits) | evidence.dominated(limits)
        return self.withhold(np.broadcast_to(mask, np.shape(self._value)))

    def withhold(self, mask: NDArray[np.bool_]) -> Released:
        """Put NaN where `mask` (same shape as the value) is true."""
        evidence = self._evidence
        if evidence is None:
            raise ProtocolError("a received value cannot be withheld")
        value = np.array(self._value, dtype=float)
        value[mask] = np.nan
        changes: dict[str, Any] = {}
        if evidence.records is not None:
            changes["records"] = np.where(mask, 0, evidence.records)
        if evidence.share is not None:
            changes["share"] = np.where(mask, 0.0, evidence.share)
        if evidence.entities is not None:
            # Entities may be counted for the leading axes only.
            extra = tuple(range(evidence.entities.ndim, mask.ndim))
            whole = mask.all(axis=extra) if extra else mask
            changes["entities"] = np.where(whole, 0, evidence.entities)
        return Released(value, self._disclosure, dataclasses.replace(evidence, **changes), _KEY)


def count(n: int) -> Released:
    """Release a number of records."""
    n = int(n)
    evidence = Support("count", n_records=n, records=np.asarray(n, dtype=np.int64))
    return Released(n, Disclosure.AGGREGATE, evidence, _KEY)


def cell_counts(
    cell_of_record: IntArray, n_cells: int, *, keys: NDArray[Any] | None = None
) -> Released:
    """Release how many records fall into each cell.

    Parameters
    ----------
    cell_of_record : (n,) int array
        Cell of each record; -1 leaves a record out.
    n_cells : int
    keys : (n_cells, ...) array, optional
        What each cell stands for, if that was found in the data. A key is sent only with a count
        that may be sent: empty cells must not be among them.

    Returns
    -------
    Released
        An ``(n_cells,)`` int array, or with `keys` a dict ``{"keys", "counts"}``.
    """
    cells = np.asarray(cell_of_record, dtype=np.int64)
    return counted(np.bincount(cells[cells >= 0], minlength=n_cells), keys)


def counted(counts: IntArray, keys: NDArray[Any] | None = None) -> Released:
    """Release numbers of records, (n_cells,), as `cell_counts` does."""
    counts = counts.astype(np.int64)
    evidence = Support("keyed-count" if keys is not None else "count", counts.sum(), counts)
    value: Any = counts if keys is None else {"keys": np.asarray(keys), "counts": counts}
    return Released(value, Disclosure.AGGREGATE, evidence, _KEY)


def aggregate(
    contributions: NDArray[Any],
    *,
    cells: IntArray | None = None,
    n_cells: int = 1,
    entities: NDArray[Any] | None = None,
    series: str = "",
    mean: bool = False,
    columns: FloatArray | None = None,
    coded: Sequence[Coded] = (),
    about: FloatArray | None = None,
) -> Released:
    """Release sums (or means) over records.

    Parameters
    ----------
    contributions : (n, ...) array
        What each record adds. NaN marks a record without a contribution.
    cells : (n,) int array, optional
        Cell of each record; sums are then taken by cell (leading axis `n_cells`), -1 leaves out.
    entities : (n,) array, optional
        Entity of each record, so that entities behind a cell are counted too.
    series : str
        Name under which this sum is repeated over rounds: the gate then guards differences.
    mean : bool
        Divide each sum by the number of records that contribute: the same evidence, and the number
        itself does not leave. NaN where there is none.
    columns : (n, ...) array, optional
        Columns of which these are moments: n, sums and sums of squares of each may then leave side
        by side (`wire.moment_facts`).
    coded : sequence of Coded
        What of the columns are levels of one category.
    about : (...) array, optional
        What each record adds are squares of the contributions less this.

    Returns
    -------
    Released
        Float array ``(...)``, or ``(n_cells, ...)`` with `cells`.

    Notes
    -----
    Contributions to a cell that take at most two values count as an indicator: their sum tells how
    many records have the property, so both groups must be large enough, or one of them empty.
    Whether it is empty shows; sums of a table's columns are judged without that, as `columns`.
    """
    x = as_floats(contributions)
    flat = x if x.ndim == 2 else x.reshape(len(x), int(np.prod(x.shape[1:])))
    centre = None if about is None else np.asarray(about, dtype=float).ravel()
    groups: list[Any] = [slice(None)]
    if cells is not None and not (n_cells == 1 and not cells.any()):
        groups = [cells == c for c in range(n_cells)]
    facts = []
    for rows in groups:
        sums, behind, largest, n = cell_facts(flat[rows], centre)
        if mean:
            sums = np.where(n > 0, sums / np.maximum(n, 1), np.nan)
        if columns is not None:
            given = np.asarray(columns, dtype=float).reshape(flat.shape)
            fewest, most = column_facts(given[rows], coded)
            behind = np.minimum(np.where(behind > 0, behind, 1), fewest)
            largest = np.maximum(largest, most)
        facts.append((sums, behind, largest))
    shape = x.shape[1:] if cells is None else (n_cells, *x.shape[1:])
    total, records, share = (np.stack([f[i] for f in facts]).reshape(shape) for i in range(3))
    n_entities = None
    if entities is not None:
        per_cell = [len(np.unique(np.asarray(entities)[rows])) for rows in groups]
        by_cell = np.array(per_cell, dtype=np.int64).reshape((-1, *(1,) * (x.ndim - 1)))
        n_entities = np.broadcast_to(by_cell, (len(groups), *x.shape[1:])).reshape(shape)
    evidence = Support(
        "sum",
        n_records=len(x),
        records=records.astype(np.int64),
        share=np.asarray(share, dtype=np.float64),
        entities=n_entities,
        n_columns=0 if columns is None else flat.shape[1],
        series=series,
        members=None if cells is None else np.asarray(cells, dtype=np.int64),
        member_entities=None if entities is None else np.asarray(entities),
    )
    return Released(total, Disclosure.AGGREGATE, evidence, _KEY)


def cross_products(
    x: FloatArray,
    *,
    limits: Limits,
    coded: Sequence[Coded] = (),
    constant: bool = False,
    judged: FloatArray | None = None,
) -> Released:
    """Release ``x'x`` for rows ``x`` (n, p), with the facts of each cell.

    Parameters
    ----------
    x : (n, p) array
        NaN, where a value is missing, adds nothing.
    limits : Limits
        Products that give way for the sake of others depend on them (`wire.moment_facts`); what may
        not leave by these is known as resting on one record.
    coded : sequence of Coded
        What of the columns are levels of one category.
    constant : bool
        Whether a column of ones goes before the columns: the products then tell sums and n too.
    judged : (n, p) array, optional
        The columns in the table's own units, by which it is judged: once each is divided by a
        number of its own, a column is no copy of another any more, nor a sum of two a third.
    """
    x = np.asarray(x, dtype=float)
    facts = moment_facts(x if judged is None else judged, limits=limits, coded=coded)
    # The gate knows no reason but the records: one record is fewer than any policy allows but the
    # one that protects none.
    records, share = np.where(facts.unsafe, 1, facts.records), facts.share
    if constant:
        x = np.column_stack([np.ones(len(x)), x])
        records = np.pad(records, (1, 0), constant_values=len(x))
        share = np.pad(share, (1, 0))
        records[0, 1:] = records[1:, 0] = np.diagonal(records)[1:]
        share[0, 1:] = share[1:, 0] = np.diagonal(share)[1:]
    there = np.nan_to_num(x)
    value = there.T @ there
    evidence = Support("moments", len(x), records, share, n_columns=x.shape[1])
    # Rounding may make the two triangles differ in the last digit, of which nobody needs to know.
    return Released((value + value.T) / 2, Disclosure.AGGREGATE, evidence, _KEY)


def class_sums(
    rows: FloatArray,
    *,
    cells: IntArray,
    n_cells: int,
    entities: NDArray[Any],
    blocks: IntArray | None = None,
    marks: FloatArray | None = None,
    judged: FloatArray | None = None,
    series: str = "",
) -> Released:
    """Release, for each class of records, ``x'x`` and further sums by entity.

    Parameters
    ----------
    rows : (n, p) array
        Finite numbers: 1 and columns, times the root of the record's weight.
    cells : (n,) int array
        Class of each record; -1 leaves it out. The others of an entity are in one class.
    n_cells : int
    entities : (n,) array
        Entity of each record.
    blocks : (n,) int array, optional
        Sums are taken within each block (agents: 0, 1, ...) and then added over the blocks, in
        their order, by pairs: the order of additions does not depend on what other blocks a site
        holds.
    marks : (n, q) array, optional
        What a record adds to `q` further sums, such as 1 at the first record of each entity. They
        are facts of entities: it is the number of entities that protects them.
    judged : (n, p) array, optional
        The same rows in coordinates in which nobody but the site chose the origin: sums of products
        of `rows` tell those of these too, so these must be able to leave as well.
    series : str
        As in :func:`aggregate`.

    Returns
    -------
    Released
        Float array ``(n_cells, p (p + 1) / 2 + q)``: the upper triangle of ``x'x`` row by row, and
        the sums of the marks.

    Raises
    ------
    ProtocolError
        An entity in two classes: its share of a class could be told from the other.
    """
    x = np.asarray(rows, dtype=float)
    n, p = x.shape
    cells = np.asarray(cells, dtype=np.int64)
    extra = np.zeros((n, 0)) if marks is None else np.asarray(marks, dtype=float)
    of = np.unique(np.asarray(entities), return_inverse=True)[1].ravel()
    used = cells >= 0
    of_entity = np.full(int(of.max(initial=-1)) + 1, -1)
    of_entity[of[used]] = cells[used]
    # The last record of an entity wins above: any other class of the same entity differs from it.
    if (of_entity[of[used]] != cells[used]).any():
        raise ProtocolError("the records of an entity are in one class")
    other = x if judged is None else np.asarray(judged, dtype=float)
    if other.shape != x.shape or not np.isfinite(x).all():
        raise ProtocolError("class sums need finite numbers, judged in as many columns")
    judged_in = (x,) if judged is None else (x, other)
    records, share, behind = class_facts(judged_in, cells, of, n_cells, extra.shape[1])
    evidence = Support(
        "class-sums",
        n,
        records,
        share,
        behind,
        n_columns=p,
        series=series,
        members=cells,
        member_entities=of,
        rows=other,
    )
    value = sums_by_class(x, extra, cells, n_cells, blocks)
    return Released(value, Disclosure.AGGREGATE, evidence, _KEY)


def groups_that_may_leave(
    rows: FloatArray, entities: NDArray[Any], limits: Limits
) -> Callable[[IntArray], bool]:
    """Return the rule that says whether class sums of a group of records could leave by themselves.

    Parameters
    ----------
    rows : (n, p) array
        All records, as judged: 1 and columns, times the root of the record's weight. Records that
        add nothing do not count.
    entities : (n,) array
    limits : Limits

    Returns
    -------
    callable
        Of positions of records.
    """
    entities = np.asarray(entities)
    # A sum over records that add nothing is one over the others.
    adds = (rows != 0).any(axis=1)
    root = np.where(adds, rows[:, 0], 1.0)[:, None]
    x = rows / root if (root > 0).all() else rows
    if (root != root[:1]).any():
        # Who knows what other sums weigh knows those of what few weigh more.
        x = np.column_stack([x, root**2])
    few = FewBeside(x, entities, limits)

    def check(group: IntArray) -> bool:
        if limits.min_records <= 1:
            return True
        group = group[adds[group]]
        if len(group) < max(limits.min_records, 2 * rows.shape[1]):
            return False
        if len(np.unique(entities[group])) < limits.min_entities:
            return False
        records, share = facts_with_counts(rows[group])
        small = (records > 0) & (records < limits.min_records)
        return not small.any() and bool((share <= limits.max_share).all()) and not few(group)

    return check


def may_leave(rows: FloatArray, entities: NDArray[Any], limits: Limits) -> bool:
    """Whether the class sums of all these records could leave (:func:`groups_that_may_leave`)."""
    return groups_that_may_leave(rows, entities, limits)(np.arange(len(rows)))


def class_moments(
    rows: FloatArray,
    *,
    cells: IntArray,
    n_cells: int,
    blocks: Sequence[IntArray],
    limits: Limits,
    entities: NDArray[Any] | None = None,
    coded: Sequence[Coded] = (),
) -> Released:
    """Release, for each class and each block of columns, sums of products about the class's means.

    A class and block of which a rule does not let the sums leave is withheld as a whole.

    Parameters
    ----------
    rows : (n, p) array
        Finite numbers, or NaN where a value is missing: sums are then over the pairs of values that
        are there, and so is what they rest on.
    cells : (n,) int array
        Class of each row; -1 leaves it out.
    n_cells : int
    blocks : sequence of (q,) int arrays
        Columns of each block; no column is in two of them.
    limits : Limits
    entities : (n,) array, optional
        Entity of each row, so that entities behind a class are counted too.
    coded : sequence of Coded
        What of the columns are levels of one category.

    Returns
    -------
    Released
        Float array ``(n_cells, m)``: block after block the upper triangle of ``x'x``, row by row,
        for rows x minus the mean of their class; NaN where a block is withheld.

    Raises
    ------
    ProtocolError
        A column is in two blocks: their sums together would be more than those of either.
    """
    members = np.concatenate([*blocks, np.zeros(0, dtype=np.int64)])
    if len(np.unique(members)) != len(members):
        raise ProtocolError("blocks of columns have no column in common")
    rows = as_floats(rows)
    value, facts = block_facts(rows, cells, n_cells, blocks, entities, limits, coded)
    parts = tuple(Support("class-moments", **fact) for place, fact in facts)
    faults = [class_moments_fault(part, limits) is not None for part in parts]
    for (place, _), fault in zip(facts, faults, strict=True):
        value[place] = np.nan if fault else value[place]
    kept = tuple(part for part, fault in zip(parts, faults, strict=True) if not fault)
    evidence = Support("class-moments", len(rows), parts=kept)
    return Released(value, Disclosure.AGGREGATE, evidence, _KEY)


def tellable_columns(
    x: FloatArray, limits: Limits, coded: Sequence[Coded] = (), first: int = -1
) -> IntArray:
    """Columns whose moments over all rows may leave together; the worst give way one by one.

    Parameters
    ----------
    x : (n, p) array
        NaN where a value is missing.
    limits : Limits
    coded : sequence of Coded
    first : int, optional
        A column for which all others give way, unless it may not leave by itself.
    """
    columns = np.flatnonzero(~np.isnan(x).all(axis=0))
    while len(columns):
        inside = coded_within(coded, columns)
        unsafe = moment_facts(x[:, columns], limits=limits, coded=inside).unsafe
        means = aggregate(x[:, columns], mean=True).withhold_unsafe(limits)
        unsafe = np.asarray(unsafe | np.diag(np.isnan(means.value)))
        if not unsafe.any():
            break
        kept = ~np.diag(unsafe)
        spared = (columns == first) & kept
        kept &= ~(unsafe & spared).any(axis=1) | spared
        while (faults := (unsafe & kept[None, :]).sum(axis=1) * kept).any():
            kept[int(np.argmax(faults))] = False
        # Once more, for levels of a category are judged with those that are left.
        columns = columns[kept]
    return columns


def linked(labels: IntArray, *, cells: IntArray, n_cells: int) -> Released:
    """Release which columns are linked, directly or through others.

    Parameters
    ----------
    labels : (p,) int array
        0 for a column without a link; linked columns have a number of their component in common.
    cells : (n,) int array
        Class of each row that the links rest on; -1 for rows that they do not rest on.
    n_cells : int
    """
    labels, of = np.asarray(labels, dtype=np.int64), np.asarray(cells)
    # The largest component decides: its columns may be solved for one another.
    largest = int(np.bincount(labels[labels > 0]).max(initial=0))
    records = np.bincount(of[of >= 0], minlength=n_cells).astype(np.int64)
    evidence = Support("links", int(records.sum()), records, n_columns=largest)
    return Released(labels, Disclosure.AGGREGATE, evidence, _KEY)


def rounded(value: float, *, n_records: int, step: float, offset: float = 0.0) -> Released:
    """Release a statistic of many records, rounded to the order in which one record moves it.

    Parameters
    ----------
    value : float
        A statistic that changes by the order of ``1/n_records`` with one record; NaN abstains.
    n_records : int
        Records that it rests on: for a comparison of groups those of the smallest group. 0 for an
        abstention.
    step : float
        Rounding step, at least ``1/n_records``.
    offset : float
        Part of a step that is added to multiples of it; independent of the records.
    """
    if n_records == 0:
        value = float("nan")
    # Steps are not powers of two, so a product has digits beyond the step: they are cut off.
    shown = float(np.round((np.round(value / step - offset) + offset) * step, 12))
    evidence = Support(
        "rounded", n_records, np.asarray(n_records, dtype=np.int64), steps=np.asarray(float(step))
    )
    return Released(shown, Disclosure.AGGREGATE, evidence, _KEY)


def model(
    parameters: Any,
    *,
    kind: str,
    n_records: int,
    cells: IntArray | None = None,
    n_parameters: int = 0,
) -> Released:
    """Release the parameters of a fitted model.

    Parameters
    ----------
    parameters : nest of dicts and tuples of arrays
    kind : {"centroids", "linear", "summary", "figures"}
        Rule that applies: class parameters, a linear model, a statistic of all records (such as a
        vote) that is nothing finer than `n_records` allows, or a few such figures: no
        more numbers than records.
    n_records : int
        Rows that the model was fitted on.
    cells : (n_records,) int array, optional
        Class of each row, for ``kind="centroids"``; -1 was left out.
    n_parameters : int
        Free parameters, for ``kind="linear"``.
    """
    if kind not in ("centroids", "linear", "summary", "figures"):
        raise ProtocolError(f"no disclosure rule is called {kind!r}")
    records = None
    if kind == "centroids":
        if cells is None:
            raise ProtocolError("centroids are released with the class of each row")
        used = np.asarray(cells)[np.asarray(cells) >= 0]
        records = np.unique(used, return_counts=True)[1].astype(np.int64)
        if not len(records) and has_numbers(parameters):
            raise ProtocolError("class parameters are released with rows in their classes")
    if kind == "figures":
        n_parameters = sum(int(np.size(one)) for one in _arrays(parameters))
    evidence = Support(kind, int(n_records), records, n_parameters=int(n_parameters))
    return Released(parameters, Disclosure.MODEL, evidence, _KEY)


def chances(
    values: Any,
    *,
    cells: IntArray,
    sums: tuple[IntArray, IntArray, FloatArray, FloatArray],
    disclosure: Disclosure = Disclosure.MODEL,
) -> Released:
    """Release shares of events within classes, made of sums over records.

    Parameters
    ----------
    values : nest of dicts and tuples of arrays
        Chances of states, steps or levels by class.
    cells : (n,) int array
        Class of each record; -1 was left out.
    sums : tuple of (m,) arrays
        Record, sum (0, 1, ...), weight of the record in the class and what it adds: of everything
        that went into `values`.
    disclosure : Disclosure
        AGGREGATE where records were put into classes beforehand.

    Raises
    ------
    ProtocolError
        Numbers without records in classes.
    """
    sizes = np.unique(cells[cells >= 0], return_counts=True)[1].astype(np.int64)
    if not len(sizes) and has_numbers(values):
        raise ProtocolError("chances are released with records in their classes")
    # A class of few records shows in any of its chances, so sizes stand beside the sums.
    records, share = chance_facts(*sums)
    evidence = Support(
        "sum",
        int(sizes.sum()),
        np.concatenate([sizes, records]),
        np.concatenate([np.zeros(len(sizes)), share]),
    )
    return Released(values, disclosure, evidence, _KEY)


def estimator(
    encoded: Any, *, type_name: str, n_records: int, n_parameters: int, leaves: IntArray | None
) -> Released:
    """Release a fitted scikit-learn estimator, encoded by ``wire.estimators``.

    Parameters
    ----------
    encoded : Portable
        Plain nest made by ``wire.estimators.encode``.
    type_name : str
        Qualified name of its type: the gate refuses types that carry training rows.
    n_records, n_parameters : int
    leaves : int array or None
        Training records in each leaf, for trees.
    """
    evidence = Support(
        "estimator", n_records, leaves, n_parameters=n_parameters, type_name=type_name
    )
    return Released(encoded, Disclosure.MODEL, evidence, _KEY)


def per_record(values: NDArray[Any]) -> Released:
    """Release one value (or row of values) for each record; needs consent in the policy."""
    values = np.asarray(values)
    return Released(values, Disclosure.PER_RECORD, Support("per-record", len(values)), _KEY)


def response(values: NDArray[Any]) -> Released:
    """Release the response of each record; needs consent of its own in the policy."""
    values = np.asarray(values)
    return Released(values, Disclosure.PER_RECORD, Support("response", len(values)), _KEY)


def hashed_ids(hashes: NDArray[np.uint8]) -> Released:
    """Release keyed hashes of ids, shape (n, 16); needs consent of its own in the policy.

    Raises
    ------
    ProtocolError
        Anything but rows of 16 bytes: an id itself does not leave by this way.
    """
    hashes = np.asarray(hashes)
    if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != 16:
        raise ProtocolError("ids are released as hashes of 16 bytes")
    return Released(hashes, Disclosure.PER_RECORD, Support("hashed-ids", len(hashes)), _KEY)


class Mechanism(Protocol):
    """A randomised mechanism with a stated price, such as noise by OpenDP."""

    name: str
    epsilon: float

    def release(self, values: FloatArray) -> FloatArray:
        """Return values with noise."""


def noised(values: NDArray[Any], mechanism: Mechanism) -> Released:
    """Run a mechanism on values and release what it gives."""
    values = np.asarray(values, dtype=float)
    evidence = Support(
        "noised", len(np.atleast_1d(values)), epsilon=mechanism.epsilon, mechanism=mechanism.name
    )
    return Released(mechanism.release(values), Disclosure.NOISED, evidence, _KEY)


def projection(
    x: NDArray[Any] | Projectable,
    directions: NDArray[Any],
    *,
    names: Sequence[str],
    mechanism: Mechanism | None = None,
    factor: FloatArray | None = None,
    units: NDArray[Any] | None = None,
) -> Released:
    """Release combinations of a site's columns, one number for each record and direction.

    Parameters
    ----------
    x : (n, p) array, or Projectable
        The site's columns. They are centred here over all rows; with a mechanism they are taken
        as they are, since the mechanism's price rests on public bounds and a mean does not. Columns
        that were centred before go without mechanism, factor and units.
    directions : (p, k) or (p,) array
        Coefficients of the combinations.
    names : sequence of p str
        Names of the columns. One name must mean one column in one unit and coding in every run on
        the data: what was ever revealed is added up by name.
    mechanism : Mechanism, optional
        Noise on every number. It does not change what is counted as revealed.
    factor : (min(n, p), p) array, optional
        `column_factor` of these very rows, where it was computed before.
    units : (p,) array, optional
        What 1 in a column of `x` is in the unit that goes with its name, where `x` was scaled. The
        evidence is in the units of the names.

    Returns
    -------
    Released
        ``(x - mean) @ directions``, or with a mechanism ``x @ directions`` with noise; of shape
        (n, k), or (n,) where `directions` is a vector.

    Raises
    ------
    ProtocolError
        Shapes that do not fit, a name used twice, numbers that are not finite, a unit that is not
        positive, or the factor of other rows.
    """
    ready = x if isinstance(x, Projectable) else None
    if ready is not None and any(one is not None for one in (mechanism, factor, units)):
        raise ProtocolError(
            "columns that were checked before go without mechanism, factor and units"
        )
    x = ready.x if ready is not None else np.asarray(x, dtype=float)
    directions = np.asarray(directions, dtype=float)
    wide = directions[:, None] if directions.ndim == 1 else directions
    if x.ndim != 2 or wide.ndim != 2 or not x.shape[1] == len(wide) == len(names):
        raise ProtocolError("a projection has one direction entry and one name for each column")
    if len(set(names)) != len(names):
        raise ProtocolError("a projection names each column once")
    if not np.isfinite(wide).all():
        raise ProtocolError("a projection needs rows, and finite numbers")
    ready = projectable(x, factor) if ready is None else ready
    factor = ready.factor
    unit = np.ones(len(wide)) if units is None else np.asarray(units, dtype=float)
    if unit.shape != (len(wide),) or not (np.isfinite(unit) & (unit > 0)).all():
        raise ProtocolError("a projection has one positive unit for each column")
    evidence = Support(
        "projection",
        len(x),
        n_columns=x.shape[1],
        directions=wide / unit[:, None],
        columns=tuple(names),
        factor=factor * unit,
        rows=None if mechanism is not None else ready if units is None else ready.centred * unit,
        epsilon=0.0 if mechanism is None else mechanism.epsilon,
        mechanism="" if mechanism is None else mechanism.name,
    )
    if mechanism is None:
        return Released(ready @ directions, Disclosure.PER_RECORD, evidence, _KEY)
    return Released(mechanism.release(x @ directions), Disclosure.NOISED, evidence, _KEY)


def reprojected(released: Released, directions: FloatArray) -> Released:
    """Release the same columns along other directions (used by the gate).

    Parameters
    ----------
    released : Released
        Made by :func:`projection` without noise.
    directions : (p, k) array
        As many as before.
    """
    evidence = released.evidence
    if evidence is None or evidence.rows is None:
        raise ProtocolError("only a projection without noise has other directions")
    value = (evidence.rows @ directions).reshape(np.shape(released.value))
    other = dataclasses.replace(evidence, directions=directions, rows=None)
    return Released(value, released.disclosure, other, _KEY)


def addressed(released: Released, site: str) -> Released:
    """Address a value to one site: nobody else may read it, not even the coordinator.

    Raises
    ------
    ProtocolError
        The value was received, or no site is named.
    """
    if released.evidence is None or not site:
        raise ProtocolError("a site addresses a value that it made, to a site that it names")
    evidence = dataclasses.replace(released.evidence, recipient=site)
    return Released(released.value, released.disclosure, evidence, _KEY)


def bundle(parts: Sequence[Released]) -> Released:
    """Release several values of one kind as a tuple; each must pass the rule by itself.

    Estimators keep the evidence of each part (rule ``"estimators"``); bundles of them may be
    bundled once more.

    Parameters
    ----------
    parts : sequence of Released
        Of one class and one rule; may be empty only if there is nothing to say.

    Raises
    ------
    ProtocolError
        The parts are of different kinds, or belong to a series, or are projections or addressed
        (a projection takes several directions, a bundle is addressed as a whole).
    """
    if not parts:
        return Released((), Disclosure.AGGREGATE, Support("count"), _KEY)
    evidences = [part.evidence for part in parts if part.evidence is not None]
    kinds = {(e.rule, p.disclosure) for e, p in zip(evidences, parts, strict=True)}
    if len(kinds) != 1 or any(e.series for e in evidences):
        raise ProtocolError("a bundle holds values of one kind, and no series")
    if any(e.directions is not None or e.recipient for e in evidences):
        raise ProtocolError("a bundle holds no projections and no addressed values")
    values = tuple(p.value for p in parts)
    if evidences[0].rule in ("estimator", "estimators"):
        # The facts of one model say nothing of another: each is judged by its own.
        n_records = min(e.n_records for e in evidences)
        each = Support("estimators", n_records, parts=tuple(evidences))
        return Released(values, parts[0].disclosure, each, _KEY)
    return Released(values, parts[0].disclosure, Support.joined(evidences), _KEY)


def relayed(value: Any, disclosure: Disclosure) -> Released:
    """Wrap what the coordinator made of released values, for its way to the sites."""
    return Released(value, disclosure, None, _KEY)


def received(value: Any, disclosure: Disclosure) -> Released:
    """Wrap a decoded value (used by the codec)."""
    return Released(value, disclosure, None, _KEY)


def replaced(released: Released, value: Any) -> Released:
    """Same class and evidence with another value (used by the gate to repeat a release)."""
    evidence = released.evidence
    if evidence is not None and evidence.rows is not None:
        evidence = dataclasses.replace(evidence, rows=None)
    return Released(value, released.disclosure, evidence, _KEY)


def _arrays(value: Any) -> Iterator[Any]:
    """Arrays and scalars of a nest."""
    if isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(item)
    else:
        yield value


def has_numbers(value: Any) -> bool:
    """Whether anything but gaps is in a nest of arrays."""
    return any(not np.isnan(np.asarray(one, dtype=float)).all() for one in _arrays(value))


@dataclass(frozen=True)
class WeightedMeans:
    """Weighted means over records, with what is needed to judge them.

    Attributes
    ----------
    mean, variance, effective : Released
        Means by column, their squared standard errors, and effective numbers of records; NaN in all
        three where one of them is withheld.
    """

    mean: Released
    variance: Released
    effective: Released


def weighted_means(
    values: FloatArray,
    weights: FloatArray | None = None,
    *,
    limits: Limits,
    entities: IntArray | None = None,
    least: FloatArray | None = None,
    chance: FloatArray | None = None,
) -> WeightedMeans:
    """Release weighted means of columns, withholding what is small or dominated.

    Parameters
    ----------
    values : (n, ...) array
        NaN in a whole column marks one that there is nothing to say of.
    weights : (n, ...) array, optional
        Non-negative; 1 by default.
    limits : Limits
    entities : (n,) int array, optional
        Entity of each record, where a question may single one out. Its records then count together:
        ``Q = sum_e (sum_e h (d - D))^2 / (sum h)^2`` over entities, and D and Q are rounded to no
        less than what any of them does to D and Q.
    least : (...) array, optional
        D is rounded to no less than this, where records are protected.
    chance : (2, ...) array, optional
        Secret numbers in [0, 1) by which D and Q are rounded there, see `rounding.coarse`.

    Returns
    -------
    WeightedMeans
        ``D = sum h d / sum h``, ``Q = sum h^2 (d - D)^2 / (sum h)^2`` and ``(sum h)^2 / sum h^2``,
        each of shape ``(...)``.

    Notes
    -----
    Many such means of one set of records are equations in its rows. So, where records are protected
    at all, D is rounded to about the amount by which one record moves it (a standard deviation over
    the effective number of records), and to a fifth of its standard error at least; Q to two
    digits; the number down to 1, 1.5, 2, 3, 5 or 7 times a power of ten. It keeps single means from
    telling a row; it does not keep thousands of means under made-up models from doing so, whose
    number the methods must bound.

    Where one record makes most of Q, which is a sum of fourth powers of residuals, Q is rounded up
    to 1, 2 or 5 times a power of ten: pairs are then told apart a little less easily, and the
    record's share does not show.
    """
    # D = sum h d / sum h, Q = sum h^2 (d - D)^2 / (sum h)^2, as the docstring has them.
    d = np.asarray(values, dtype=float)
    h = np.ones_like(d) if weights is None else np.broadcast_to(weights, d.shape).astype(float)
    total = h.sum(axis=0)
    # Losses that overflow are not finite: they are withheld below, without a warning.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = (h * d).sum(axis=0) / total
        moves = h * (d - mean)
        parts = (moves if entities is None else by_entity(moves, entities)) ** 2
        variance = parts.sum(axis=0) / total**2
        effective = total**2 / (h**2).sum(axis=0)
    # Records with next to no weight are not what a cell rests on.
    felt = np.where(h >= 0.1 * h.max(axis=0, initial=0.0), h, 0.0)
    sums = aggregate(felt * d), aggregate(felt)
    unsafe = ~(np.isfinite(mean) & np.isfinite(variance) & np.isfinite(effective))
    for part in sums:
        unsafe = unsafe | np.isnan(part.withhold_unsafe(limits).value)
    if limits.min_records > 1:
        ruled = aggregate(parts).evidence
        dominated = np.asarray(ruled is not None and ruled.dominated(limits))
        largest = largest_move(parts if entities is not None else parts[:0], total, least)
        mean, variance, effective = coarse(mean, variance, effective, dominated, largest, chance)
    shown = [
        replaced(sums[0], np.where(unsafe, 0.0, value)).withhold(unsafe)
        for value in (mean, variance, effective)
    ]
    return WeightedMeans(*shown)


def stacked(parts: Sequence[Released]) -> Released:
    """Release several arrays of one shape as one with a leading axis; each cell keeps its evidence.

    Raises
    ------
    ProtocolError
        The parts are not sums (or means) of one class, or belong to a series.
    """
    evidences = [part.evidence for part in parts]
    if not parts or any(e is None or e.rule != "sum" or e.series for e in evidences):
        raise ProtocolError("only sums of one kind are stacked")
    shape = np.shape(parts[0].value)
    kept = [e for e in evidences if e is not None]
    evidence = Support(
        "sum",
        n_records=min((e.n_records for e in kept if e.n_records), default=0),
        records=np.stack([np.broadcast_to(e.records, shape) for e in kept]),  # type: ignore[arg-type]
        share=np.stack([np.broadcast_to(e.share, shape) for e in kept]),  # type: ignore[arg-type]
    )
    value = np.stack([np.asarray(part.value, dtype=float) for part in parts])
    return Released(value, parts[0].disclosure, evidence, _KEY)


# ------------------------------------------------------------------------- columns for projections


def column_factor(x: NDArray[Any]) -> FloatArray:
    """Triangular factor R of the centred columns, (min(n, p), p): R'R is their scatter matrix.

    Ranks of projections can be computed from it without the rows.
    """
    return projectable(x).factor


_NEAR = 100
"""Standard deviations that a mean may be from zero so that products lose two digits at most."""
_ROWS = 1024
"""Rows at a time: they stay in the cache, and no table is copied as a whole."""


@dataclasses.dataclass(frozen=True, eq=False)
class Projectable:
    """Columns checked once, for a number of projections. Made by `projectable`.

    ``ready @ directions`` is the product of the centred columns.

    Attributes
    ----------
    x : (n, p) array
    mean : (p,) array
    factor : (min(n, p), p) array
        Read-only.
    constant : (p,) bool array
        Columns that are constant but for rounding: centred, they are zero.
    near : bool
        Whether products lose no digits that matter where means are taken off afterwards.
    """

    x: FloatArray
    mean: FloatArray
    factor: FloatArray
    constant: NDArray[np.bool_]
    near: bool
    key: dataclasses.InitVar[object]

    def __post_init__(self, key: object) -> None:
        if key is not _KEY:
            raise ProtocolError("columns for projections are made only by projectable")
        self.mean.flags.writeable = self.factor.flags.writeable = False

    def __matmul__(self, directions: FloatArray) -> FloatArray:
        if self.near:
            moved: FloatArray = self.x @ directions
            moved -= self.mean @ directions
            return moved
        found = np.empty((len(self.x), *np.shape(directions)[1:]))
        for start, part in _parts(self.x, self.mean, self.constant):
            np.matmul(part, directions, out=found[start : start + len(part)])
        return found

    @cached_property
    def centred(self) -> FloatArray:
        """Columns without their means, (n, p), read-only."""
        found = self.x - self.mean
        found[:, self.constant] = 0.0
        found.flags.writeable = False
        return found


def _parts(
    x: FloatArray, mean: FloatArray, constant: NDArray[np.bool_] | bool = False
) -> Iterator[tuple[int, FloatArray]]:
    """Some centred rows at a time, each time in the same array, and where they begin."""
    room, zero = np.empty((min(_ROWS, len(x)), x.shape[1])), bool(np.any(constant))
    for start in range(0, len(x), _ROWS):
        rows = x[start : start + _ROWS]
        part = np.subtract(rows, mean, out=room[: len(rows)])
        if zero:
            part[:, constant] = 0.0
        yield start, part


def projectable(x: NDArray[Any], factor: NDArray[Any] | None = None) -> Projectable:
    """Check columns for a number of projections.

    Parameters
    ----------
    x : (n, p) array
        Columns that nobody changes any more.
    factor : (min(n, p), p) array, optional
        `column_factor` of these very rows, where it was computed before.

    Raises
    ------
    ProtocolError
        No rows, numbers that are not finite, or the factor of other rows.
    """
    x = np.asarray(x, dtype=float)
    if x.ndim != 2 or not len(x) or not np.isfinite(x).all():
        raise ProtocolError("a projection needs rows, and finite numbers")
    mean = x.mean(axis=0)
    gram = np.zeros((x.shape[1],) * 2)
    for _, part in _parts(x, mean):
        gram += part.T @ part
    lengths = np.sqrt(np.diag(gram))
    constant = lengths <= 1e-13 * np.sqrt(len(x)) * np.abs(mean)
    lengths = np.where(constant, 0.0, lengths)
    shape = (min(x.shape), x.shape[1])
    if factor is None:
        found = _factor(gram, lengths) if len(x) > 4 * x.shape[1] > 0 else None
        if found is None:
            centred = x - mean
            centred[:, constant] = 0.0
            found = np.asarray(np.linalg.qr(centred, mode="r"))
    else:
        # A copy: whoever gave the factor must not be able to change it after it was checked.
        found = np.array(factor, dtype=float)
        size = np.sqrt((found**2).sum(axis=0))
        if found.shape != shape or not np.allclose(size, lengths, rtol=1e-8, atol=1e-12):
            raise ProtocolError("the factor of a projection is that of other rows")
    near = bool((np.abs(mean) * np.sqrt(len(x)) <= _NEAR * lengths).all())
    return Projectable(x, mean, found, constant, near, _KEY)


def _factor(gram: FloatArray, lengths: FloatArray) -> FloatArray | None:
    """R of a QR decomposition by the Gram matrix; None where that loses more than three digits.

    With columns of length 1 whose Gram matrix has condition 1e5, a factor from it is off by about
    1e-11 of the least singular value: far from the 1e-8 at which ranks are counted.
    """
    if not ((lengths > 0).all() and np.isfinite(lengths).all()):
        return None
    unit = gram / np.outer(lengths, lengths)
    values = np.linalg.eigvalsh(unit)
    return np.linalg.cholesky(unit).T * lengths if values[0] > 1e-5 * values[-1] else None


# ----------------------------------------------------------------------- fits of a site's own rows

_TOGETHER = {"fit": "fits", "slopes": "all-slopes"}


def local_fit(
    value: FloatArray,
    *,
    rows: FloatArray | Judged,
    weights: FloatArray,
    n_parameters: int,
    squares: FloatArray | None = None,
    alone: FloatArray | None = None,
) -> Released:
    """Release a fit of the site's own rows with the curvature of its loss.

    Parameters
    ----------
    value : array
        Coefficients and curvature, packed; empty where there is no fit to tell.
    rows : (n, q) array or Judged
        Rows of the design.
    weights : (n, k) array
        Weights of the rows in the curvature, whose cells are ``sum_i w_ik x_ij x_il``; the first
        column holds the total weight of each row.
    n_parameters : int
    squares : (n,) array, optional
        Squared residuals whose sum is told beside it: judged by themselves.
    alone : (n, m) array, optional
        As in :func:`weighted_sums`.

    Notes
    -----
    A fit of rows that it separates rests on the few that are nearest to its boundary: the weights
    of all others vanish. So the evidence counts effective rows, ``(sum w)^2 / sum w^2``.
    """
    evidence = _of_weighted("fit", rows, weights, n_parameters, alone=alone)
    if squares is not None:
        both = np.column_stack([np.sqrt(squares), squares])
        beside = _of_weighted("fit", np.ones((len(squares), 1)), both, 1)
        evidence = Support("fit", evidence.n_records, parts=(evidence, beside))
    return Released(np.asarray(value, dtype=float), Disclosure.MODEL, evidence, _KEY)


def weighted_sums(
    values: Sequence[FloatArray],
    *,
    rows: FloatArray | Judged,
    weights: FloatArray,
    n_parameters: int = 0,
    first: int | None = None,
    alone: FloatArray | None = None,
) -> tuple[Released, ...]:
    """Release sums over rows whose weights follow from coefficients that somebody else chose.

    Steep coefficients take the weight off all rows but those near a plane. So the sums are judged
    like those of a fit, by effective rows and by the share of one row in a cell, and the policy
    must let values of single records leave: two planes with one row between them part it from all
    others, which no rule of size sees (docs/proofs/community-fits.md).

    Parameters
    ----------
    values : sequence of arrays
        Sums over the same rows.
    rows : (n, q) array or Judged
        Rows of the design.
    weights : (n, k) array
        As in :func:`local_fit`: the first column total weights, or the only one.
    n_parameters : int
        As many as columns of the rows unless given.
    first : int, optional
        Where only products with so many first columns are told.
    alone : (n, m) array, optional
        What rows add to further sums, in which none may have too large a share either.
    """
    n_parameters = n_parameters or rows.shape[1]
    evidence = _of_weighted("weighted-sums", rows, weights, n_parameters, first, alone)
    return tuple(
        Released(np.asarray(value, dtype=float), Disclosure.AGGREGATE, evidence, _KEY)
        for value in values
    )


def _of_weighted(
    rule: str,
    rows: FloatArray | Judged,
    weights: FloatArray,
    n_parameters: int,
    first: int | None = None,
    alone: FloatArray | None = None,
) -> Support:
    """Rows, effective rows and largest share of one row behind weighted cross-products."""
    n = rows.shape[0]
    effective = np.zeros((), dtype=np.int64)
    share = np.zeros(())
    if n:
        total = weights[:, 0].sum()
        squares = (weights[:, 0] ** 2).sum()
        # Kish's effective number of records, (sum w)^2 / sum w^2; the factor below is for rounding
        # alone.
        spread = total**2 / squares if squares > 0 else 0.0
        effective = np.asarray(np.floor(spread * (1 + 1e-12)), dtype=np.int64)
        within = weights[:, 1:] if weights.shape[1] > 1 else weights
        most = largest_share(rows, within, first)
        if alone is not None:
            most = max(most, largest_share(np.ones((n, 1)), alone))
        share = np.asarray(most)
    return Support(rule, n, effective, share, n_parameters=n_parameters)


def slopes(value: FloatArray, *, n_records: int) -> Released:
    """Release sums over all records at coefficients that the coordinator chose.

    Loss, gradient and curvature of a curved loss at steep coefficients are sums over the records
    near a plane of somebody's choice: the policy must let values of single records leave.
    """
    evidence = Support("slopes", int(n_records), np.asarray(n_records, dtype=np.int64))
    return Released(np.asarray(value, dtype=float), Disclosure.AGGREGATE, evidence, _KEY)


def together(parts: Sequence[Released], kind: str) -> Released:
    """Release several fits, or several sums, as a tuple; each must pass the rule by itself.

    Parameters
    ----------
    parts : sequence of Released
    kind : {"fit", "slopes"}
    """
    evidences = tuple(part.evidence for part in parts if part.evidence is not None)
    if len(evidences) < len(parts) or any(e.rule != kind for e in evidences):
        raise ProtocolError("fits go together with fits that this site made, and sums with sums")
    # An abstention rests on no record and says nothing: it is not the weakest part.
    said = [e.n_records for e in evidences if e.n_records]
    joined = Support(_TOGETHER[kind], min(said, default=0), parts=evidences)
    disclosure = Disclosure.MODEL if kind == "fit" else Disclosure.AGGREGATE
    values: tuple[Any, ...] = tuple(part.value for part in parts)
    return Released(values, disclosure, joined, _KEY)
