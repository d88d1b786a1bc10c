"""From a site's table to the arrays of a study, in one order for all methods.

1. **Read**: a long table becomes one row for each id (``source_long``); the study's roles decide
   which columns are numbers; text there is an error.
2. **Rename, recode and units**: the site's own names, spellings and units become the study's.
   Missing codes are values as they stand in the table, so they are recognised before units are
   applied.
3. **Levels**: categories are compared with the declared levels, as numbers where all levels are
   numbers (``4``, ``4.0`` and ``"4"`` are one level), as text otherwise. At a site that protects
   records a level that few rows have is not there, whether the study declares it or not; unless the
   site's own list has it, which then says what levels there are, whatever the table holds (of a
   target, rows of rare levels are left out all the same).
4. **Missing**: by the study's rule.
5. **Encode**: indicators, treatment or one-hot columns.

Aligning and standardising involve other sites and follow as phases. Nothing is dropped silently:
the `Report` counts every row. A sequence takes its levels from its first column,
where `Columns` keeps them.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, all_finite
from consilience.exceptions import ConsilienceError, DataError, StudyError, listed
from consilience.protocol.method import Columns, Preparation, SiteData
from consilience.sites import encoding
from consilience.sites.encoding import is_number, plain_text, row_list
from consilience.sites.own_columns import EVERY, NUMBER, SiteColumns
from consilience.sites.row_history import row_content
from consilience.sites.source import Table
from consilience.wire.digits import SHORT, settle, whole_steps

Mask = NDArray[np.bool_]
SHOWN_LEVELS = 20
_TURNED = 512
_ASIDE = 1 << 22
_TOGETHER = 128


def load_with_report(
    table: Table,
    columns: Columns,
    preparation: Preparation,
    site_columns: SiteColumns | None = None,
    *,
    partition: Literal["rows", "columns"] = "rows",
    min_records: int = 1,
    common_rows: bool = False,
) -> Loaded:
    """Prepare a site's table as the study says.

    Parameters
    ----------
    table : Table
    columns : Columns
    preparation : Preparation
    site_columns : SiteColumns, optional
    partition : {"rows", "columns"}
        Over columns, rows are matched by id: those without an id, or with one that occurs twice,
        are left out, and rows without a target stay (their outcome is to be predicted). Over rows,
        missing and repeated ids are counted only.
    min_records : int
        Of the site's policy. What is odd in fewer rows than that (a value that is no number, or
        none where the study wants one) stops nothing: it counts as missing, and the row is left out
        where the study refuses missing values. So does a level that fewer rows have, each judged by
        itself and however many there are. Otherwise a study could ask, by what it declares, whether
        there is anybody with a certain value.
    common_rows : bool
        Over rows, leave out rows without a value in any column that the site lists and that fewer
        than `min_records` rows lack, whether the study names it or not: so studies with it and
        without rest on the same rows. At most a tenth of the rows are left out so. And digits that
        fewer than `min_records` rows have in a column of numbers are rounded away, but no weight to
        0 (`whole_steps`).

    Returns
    -------
    Loaded
        Under "aggregated-mean" and "indicator", missing features are NaN until a phase fills
        them; under "keep" they stay NaN. Where a column has levels that the study does not declare,
        or by the site's own list may have some, it is among ``data.foreign_levels``; such rows are
        kept, with NaN as codes, an empty target and -1 as state.

    Raises
    ------
    DataError
        The table does not fit the study.
    StudyError
        The settings contradict each other.
    """
    own = site_columns or SiteColumns()
    # Rows are recognised by what stands in the table itself.
    source, table = table, own.recoded(table)
    if own.long is not None:
        from consilience.sites.source_long import wide_table

        table = wide_table(table, columns, own, min_records if partition == "rows" else 1)
    loader = _Loader(table, source, columns, preparation, own, partition, min_records)
    loader.common_rows = common_rows and partition == "rows"
    loader.round_below = min_records if loader.common_rows else 1
    try:
        return loader.run()
    except DataError as error:
        if partition == "rows":
            raise
        # Over columns no name but the id's leaves a site; the rule that a column broke may.
        public = error.public
        if public.startswith("column ") and not public.startswith(f"column {columns.id}: "):
            public = f"a column: {public.rsplit(': ', 1)[1]}"
        raise DataError(str(error), public=public) from error


def _refusal(name: str, sentence: str, rule: str) -> DataError:
    return DataError(f"column {name!r} {sentence}", public=f"column {name}: {rule}")


class _Loader:
    """Reads columns by role and remembers what is missing, foreign or dropped."""

    def __init__(
        self,
        table: Table,
        source: Table,
        columns: Columns,
        preparation: Preparation,
        site_columns: SiteColumns,
        partition: str,
        min_records: int,
    ) -> None:
        self.table, self.source = table, source
        self.few = min_records if partition == "rows" else 1
        self.refused_from = self.few
        self.columns = site_columns.merged(columns, partition)
        self.preparation = preparation
        if partition == "columns":  # nobody else says how a party's own columns are coded
            self.preparation = dataclasses.replace(preparation, indicators={})
        self.site = site_columns
        self.partition = partition
        self.none_missing: Mask = np.zeros(table.n_rows, dtype=bool)
        self.none_missing.flags.writeable = False
        self.missing: dict[str, Mask] = {}
        self.rare: dict[str, Mask] = {}
        self.foreign: dict[str, tuple[tuple[str, ...], int]] = {}
        self.outside: dict[str, None] = {}
        self.odd: dict[str, int] = {}
        self.rounded: dict[str, float] = {}
        self.ahead: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        self.reasons: dict[str, Mask] = {}
        self.unmatchable = (0, 0)
        self.classes = np.zeros(table.n_rows, dtype=np.int64)
        self.read: dict[str, tuple[NDArray[np.int64], tuple[str, ...]]] = {}
        self.common_rows = False
        self.round_below = 1

    def run(self) -> Loaded:
        plan = encoding.encodings(self.columns, self.preparation)
        if self.partition == "columns" and self.columns.id is None:
            raise StudyError("a study over columns needs an id column in [data]")
        if self.partition == "rows":
            self.site.check_offer(self.columns, self.preparation)
        self._check_columns()
        features = self._features(plan)
        target = self._target()
        texts = {role: self._texts(getattr(self.columns, role)) for role in _TEXT_ROLES}
        weight = self._weight()
        offset = None if self.columns.offset is None else self._numbers(self.columns.offset).copy()
        sequence = self._sequence()
        keep = self._keep()
        whole = bool(keep.all())

        def kept(values: NDArray[Any] | None) -> NDArray[Any] | None:
            if values is None:
                return None
            chosen = values if whole else values[keep]
            chosen.flags.writeable = False
            return chosen

        chosen = features if whole else features[keep] if self.few > 1 else _only(features, keep)
        rows = np.flatnonzero(keep)
        chosen.flags.writeable = rows.flags.writeable = False
        data = SiteData(
            features=chosen,
            feature_names=encoding.feature_names(self.columns, self.preparation),
            rows=rows,
            target=kept(target),
            target_name=self.columns.target or "",
            offset_name=self.columns.offset or "",
            weight_name=self.columns.weight or "",
            entity_name=self.columns.entity or "",
            weight=kept(weight),
            sequence=kept(sequence),
            sequence_names=self.columns.sequence,
            levels=self.columns.levels,
            foreign_levels=tuple(self.outside),
            n_read=self.table.n_rows,
            content_hash=self.table.content_hash,
            bounds=self._bounds(plan),
            coded=encoding.coded_of(plan, self.columns),
            id=kept(texts["id"]),
            agent=kept(texts["agent"]),
            entity=kept(texts["entity"]),
            cluster=kept(texts["cluster"]),
            offset=kept(offset),
        )
        report = self._report(data, keep, texts["id"])
        if self.few == 1:
            return Loaded(data, report)

        contents: dict[tuple[str, ...], NDArray[np.uint64]] = {}

        def everyone(names: tuple[str, ...]) -> Everyone:
            names = names or self.source.names
            unit = None if self.site.long is None else self.site.long.id

            def content() -> NDArray[np.uint64]:
                if names not in contents:
                    contents[names] = row_content(self.source, names, unit)
                return contents[names]

            prepared = encoding.by_name(plan, features, self.columns.levels)
            prepared |= self._by_role(target=target, offset=offset, weight=weight)
            return Everyone(content, names, self.classes, texts["entity"], prepared, self._earlier)

        return Loaded(data, report, everyone)

    def _by_role(self, **given: NDArray[Any] | None) -> dict[str, tuple[list[Any], Any]]:
        """Target, offset and weight as prepared columns: moments of them are told like others."""
        found: dict[str, tuple[list[Any], Any]] = {}
        for role, one in encoding.by_role(self.columns).items():
            own: NDArray[Any] = np.asarray(given[role])
            columns = [own] if one.kind == "number" else [own == v for v in one.values]
            x = np.stack(columns, axis=1).astype(float)
            found |= encoding.by_name([one], x, self.columns.levels)
        return found

    def _earlier(self, codings: Mapping[str, Coding]) -> Prepared:
        """Prepared columns of earlier runs, from the table as it is."""
        found: dict[str, tuple[Coding, NDArray[np.float64]]] = {}
        for column, kind, values, levels in {json.dumps(c): c for c in codings.values()}.values():
            if self.site.local(column) not in self.table.names:
                raise DataError(
                    f"the table lacks column {column!r}, of which an earlier run told: put it back",
                    public="the site's table lacks a column that it had in earlier runs",
                )
            one = encoding.Encoding(column, kind, tuple(values))
            columns = Columns(features=(column,), levels={column: tuple(levels)} if levels else {})
            again = _Loader(
                self.table, self.source, columns, self.preparation, self.site, "rows", 1
            )
            again.round_below = self.round_below
            # Odd cells stop no run because an earlier one asked for their column.
            again.refused_from = self.table.n_rows + 1
            arrays = np.array(list(again._encoded(one))).T
            found |= encoding.by_name([one], arrays, columns.levels)
        return {name: found[name] for name in codings if name in found}

    # --- names

    def _check_columns(self) -> None:
        there, used = set(self.table.names), set(self.columns.used())
        for name in self.columns.used():
            local = self.site.local(name)
            if local not in there:
                renamed = f" as {local!r}" if local != name else ""
                hint = self._closest(local, self.table.names)
                raise _refusal(
                    name,
                    f"is not in {self.table.description}{renamed}{hint}: add it, or give its "
                    "name there in [columns] rename",
                    "it is not in the site's table",
                )
        known = {*self.site.rename, *there, *used}
        for setting, names in (
            ("units", self.site.units),
            ("missing_codes", self.site.missing_codes),
            ("bounds", self.site.bounds),
        ):
            for name in names:
                if name != EVERY and name not in known:
                    raise StudyError(
                        f"[columns] {setting} names {name!r}, which is no column"
                        f"{self._closest(name, known)}"
                    )
        columns = self.columns
        numbers = {*columns.features, columns.target, columns.weight, columns.offset}
        for name in self.site.units:
            if name in used and name not in numbers - set(columns.levels):
                raise StudyError(
                    f"[columns] units are given for {name!r}, which the study does not use as a "
                    "number"
                )

    @staticmethod
    def _closest(name: str, names: Iterable[str]) -> str:
        by_fold = {other.casefold(): other for other in names}
        close = difflib.get_close_matches(name.casefold(), by_fold, n=1)
        return f" (the closest name is {by_fold[close[0]]!r})" if close else ""

    # --- columns

    def _local(self, name: str, but: str, rule: str, *more: str) -> str:
        """The site's own name of a column, whose type must suit: one of four, or begin as told."""
        local = self.site.local(name)
        kind = self.table.kind(local)
        if kind in ("text", "number", "boolean", "empty") or kind.startswith(more):
            return local
        raise _refusal(name, f"is of type {kind}{but}: convert it first", f"its type is {rule}")

    def _numbers(self, name: str, *, rounded: bool = True) -> NDArray[np.float64]:
        values, wrong = self.ahead.pop(name) if name in self.ahead else self._read(name)
        if len(wrong) >= self.refused_from:
            why = self.table.why_wrong(self.site.local(name), wrong)
            raise _refusal(
                name,
                f"holds text in {len(wrong)} cells where the study expects numbers"
                f"{row_list(wrong + 1)}: {why}correct them, list what stands for a missing "
                "value in [columns] missing_codes, or declare levels",
                "text where the study expects numbers; a category needs declared levels",
            )
        # In units of the table, in which somebody wrote the digits.
        if rounded:
            values, step = whole_steps(values, self.round_below)
            self.rounded |= {name: step} if step else {}
        unit = self.site.units.get(name)
        if unit is not None:
            with np.errstate(over="ignore"):  # infinite values are refused below
                values = values * unit.scale + unit.offset
        if all_finite(values) and not self._listed_levels(name):
            self.odd[name], self.missing[name] = 0, self.none_missing
            return values
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite) >= self.refused_from:
            raise _refusal(
                name,
                f"holds {len(infinite)} infinite values{row_list(infinite + 1)}: correct them, or "
                "list what stands for a missing value in [columns] missing_codes",
                "infinite values",
            )
        odd = np.isinf(values) | self._off_offer(name)
        if odd.any():
            values = np.where(odd, np.nan, values)
        odd[wrong] = True
        self.odd[name] = int(np.count_nonzero(odd))
        self.missing[name] = np.isnan(values)
        return values

    def _off_offer(self, name: str) -> Mask:
        """Rows with a value that is not on offer."""
        offer = self._listed_levels(name)
        if not offer:
            return np.zeros(self.table.n_rows, dtype=bool)
        positions, texts = self.table.categories(self.site.local(name), self.site.codes(name))
        off: Mask = np.append(encoding.match(texts, offer) < 0, False)[positions]
        return off

    def _categories(self, name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        if name not in self.read:
            neither = "neither text nor a number"
            local = self._local(name, f", which is {neither}", neither, "date", "time")
            positions, texts = self.table.categories(local, self.site.codes(name))
            odd = self._off_offer(name)
            self.odd[name] = int(np.count_nonzero(odd))
            positions = np.where(odd, -1, positions)
            self.missing[name] = positions < 0
            self.read[name] = positions, texts
        return self.read[name]

    def _codes(self, names: tuple[str, ...], levels: tuple[str, ...]) -> NDArray[np.int64]:
        """Positions among levels (n, columns): -1 missing, -2 not declared.

        The first column declares the levels of all of them, and sites are asked about it.
        """
        numeric = all(map(is_number, levels))
        others: dict[object, int] = {}
        codes = np.empty((self.table.n_rows, len(names)), dtype=np.int64)
        for j, name in enumerate(names):
            positions, texts = self._categories(name)
            found = encoding.match(texts, levels)
            for i in np.flatnonzero(found < 0):
                # 1 and 1.0 are one level here too.
                key = float(texts[i]) if numeric and is_number(texts[i]) else texts[i]
                found[i] = len(levels) + others.setdefault(key, len(others))
            codes[:, j] = np.append(found, -1)[positions]
        known = (*levels, *map(plain_text, others))
        sizes = np.array([np.bincount(c[c >= 0], minlength=len(known)) for c in codes.T])
        # Column by column, or whether few have a level in one more of them would be told.
        there = sizes.max(axis=0) >= self.few
        for j, name in enumerate(names):
            listed = self._listed_levels(name)
            # Classes are fitted one by one, so that one of few rows shows in what a fit can do.
            spared = bool(listed) and name != self.columns.target
            self.rare[name] = (codes[:, j] >= 0) & ~there[codes[:, j]] & (not spared)
            self.odd[name] += int(np.count_nonzero(self.rare[name]))
            codes[self.rare[name], j] = -1
            strange = codes[:, j] >= len(levels)
            others_here = [known[i] for i in np.unique(codes[strange, j])]
            if listed:
                others_here = [level for level in listed if encoding.match((level,), levels)[0] < 0]
            if others_here:
                shown = tuple(others_here[:SHOWN_LEVELS])
                self.foreign[name] = (shown, int(np.count_nonzero(strange)))
                self.outside[names[0]] = None
            # Where all that is listed is declared, what is left is another spelling of it.
            codes[strange, j] = -1 if listed and not others_here else -2
            self.missing[name] = self.missing[name] | (codes[:, j] == -1)
        return codes

    def _listed_levels(self, name: str) -> tuple[str, ...]:
        """Levels that the site's own list gives a column; none where it has no list."""
        offer = self.site.offer(name) if self.partition == "rows" else NUMBER
        return () if isinstance(offer, str) else offer

    # --- roles

    def _features(self, plan: tuple[encoding.Encoding, ...]) -> NDArray[np.float64]:
        numeric = [one.column for one in plan if one.kind == "number"]
        flags = numeric if self.preparation.missing == "indicator" else []
        n_columns = sum(len(one.names) for one in plan) + len(flags)
        features = np.empty((self.table.n_rows, n_columns))
        # Few columns of many rows at a time: some are copies of what the table holds.
        width = max(_ASIDE // max(len(features), 1), 1)
        columns = itertools.chain(
            itertools.chain.from_iterable(map(self._encoded, self._looked_at(plan))),
            (self.missing[name] for name in flags),
        )
        for first in range(0, n_columns, width):
            part = features[:, first : first + width]
            _turn(list(itertools.islice(columns, part.shape[1])), part)
        # As many columns as the plan says: none is left.
        _turn(list(columns), features[:, n_columns:])
        return features

    def _looked_at(self, plan: tuple[encoding.Encoding, ...]) -> Iterable[encoding.Encoding]:
        """The plan; of short columns of numbers many are asked together whether few have digits."""
        for start in range(0, len(plan), _TOGETHER):
            some = plan[start : start + _TOGETHER]
            if self.round_below > 1 and self.table.n_rows <= SHORT:
                numbers = [one.column for one in some if one.kind == "number"]
                with suppress(ConsilienceError):  # said when it is its turn
                    self.ahead |= {name: self._read(name) for name in numbers}
                if self.ahead:
                    together = np.stack([values for values, _ in self.ahead.values()])
                    settle(together, self.round_below)
            yield from some

    def _read(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        local = self._local(name, " and the study uses it as a number", "not a number")
        return self.table.numbers(local, self.site.codes(name))

    def _encoded(self, one: encoding.Encoding) -> Iterable[NDArray[np.float64]]:
        levels = self.columns.levels.get(one.column)
        if one.kind == "number":
            return [self._numbers(one.column)]
        value: NDArray[Any]
        if levels is None and all(is_number(v) for v in one.values):
            value = self._numbers(one.column, rounded=False)  # codes, not digits
            found, unknown = [value == float(v) for v in one.values], np.isnan(value)
        elif levels is None:
            value, texts = self._categories(one.column)
            codes = np.append(encoding.match(texts, one.values), -1)[value]
            found, unknown = [codes == i for i in range(len(one.values))], value < 0
        else:
            value = self._codes((one.column,), levels)[:, 0]
            found, unknown = [value == i for i in encoding.match(one.values, levels)], value < 0
        if one.kind == "indicator":
            few = encoding.of_few(value, unknown, self.few)
            self.odd[one.column] += int(np.count_nonzero(few))
            self.missing[one.column] = self.missing[one.column] | few
            unknown = unknown | few
        rare = min(np.count_nonzero(cells) for cells in found) < self.few
        if one.kind == "indicator" and self.few > 1 and rare:
            # Also of nobody: else a study could ask whether there is anybody with some value.
            raise _refusal(
                one.column,
                f"has an indicator of a value that fewer than {self.few} rows have: leave it out "
                "of [preparation] indicators",
                f"an indicator is of a value that fewer than {self.few} rows have",
            )
        return [np.where(unknown, np.nan, cells) for cells in found]

    def _target(self) -> NDArray[Any] | None:
        name = self.columns.target
        if name is None:
            return None
        levels = self.columns.levels.get(name)
        if levels is None:
            return self._numbers(name).copy()  # rows that stay are not the table
        codes = self._codes((name,), levels)[:, 0]
        self.classes = np.where(codes < 0, len(levels), codes)
        return np.asarray([*levels, ""])[self.classes]

    def _texts(self, name: str | None) -> NDArray[np.str_] | None:
        if name is None:
            return None
        positions, texts = self._categories(name)
        return np.asarray([*texts, ""])[positions]

    def _weight(self) -> NDArray[np.float64] | None:
        name = self.columns.weight
        if name is None:
            return None
        weight = self._numbers(name, rounded=False)  # below, so that a small one counts
        wrong = np.flatnonzero(weight <= 0)
        if len(wrong) >= self.few:
            raise _refusal(
                name,
                f"is the weight and is not positive in {len(wrong)} rows{row_list(wrong + 1)}: "
                "every weight must be above 0",
                "weights that are not positive",
            )
        if len(wrong):
            weight = np.where(weight > 0, weight, np.nan)
            self.odd[name] += len(wrong)
            self.missing[name] = np.isnan(weight)
        weight, step = whole_steps(weight, self.round_below, above=0.0)
        self.rounded |= {name: step} if step else {}
        return weight

    def _sequence(self) -> NDArray[np.int64] | None:
        names = self.columns.sequence
        if not names:
            return None
        return np.maximum(self._codes(names, self.columns.levels[names[0]]), -1)

    # --- missing

    def _keep(self) -> Mask:
        """Which rows stay, by the study's rule."""
        rule = self.preparation.missing
        found = {name: mask for name, mask in self.missing.items() if mask.any()}
        if self.partition == "rows" and self.columns.id is not None:
            others = dataclasses.replace(self.columns, id=None, levels={}).used()
            found = {name: mask for name, mask in found.items() if name in others}
        if self.partition == "columns":
            own = {*self.columns.features, self.columns.weight}
            own |= {self.columns.cluster, self.columns.offset}
            found = {name: mask for name, mask in found.items() if name in own}
        if rule not in ("refuse", "complete-rows"):
            fillable = {*self.columns.features, *self.columns.sequence}
            fillable -= {self.columns.target, self.columns.agent, self.columns.entity}
            fillable -= {self.columns.weight, self.columns.id}
            fillable -= {self.columns.cluster, self.columns.offset}
            found = {name: mask for name, mask in found.items() if name not in fillable}
        # Column by column, or whether few lack a value in one more of them would be told.
        many = tuple(
            name
            for name, mask in found.items()
            if np.count_nonzero(mask & ~self.rare.get(name, False)) >= self.few
        )
        if many and rule != "complete-rows":
            self._refuse_missing(found, many)
        keep = self._complete(found | self._lacked_by_few(found) if self.common_rows else found)
        # Of a smaller table nothing leaves that tells its size.
        least = self.few if len(keep) >= self.few else 1
        if keep.sum() < least:
            few = f"fewer than {least} rows" if least > 1 else "no row"
            verb = "are" if least > 1 else "is"
            rare = any(np.any(self.rare.get(name, False)) for name in found)
            or_rare = f", or values that fewer than {self.few} rows have" if rare else ""
            raise DataError(
                f"{few} of {self.table.description} {verb} complete: "
                f"columns {listed(found, 10, counted=False)} have missing values{or_rare}",
                public=f"{few} {verb} complete",
            )
        return self._matchable(keep)

    def _lacked_by_few(self, found: dict[str, Mask]) -> dict[str, Mask]:
        """Rows without a value in other columns that the site lists and few rows lack."""
        taken: dict[str, Mask] = {}
        out = np.zeros(self.table.n_rows, dtype=bool)
        for name in self.site.offered or ():
            local, offer = self.site.local(name), self.site.offer(name)
            if name in found or name == EVERY or local not in self.table.names:
                continue
            if offer == NUMBER and self.table.kind(local) in ("text", "number", "boolean"):
                lacking = ~np.isfinite(self.table.numbers(local, self.site.codes(name))[0])
            elif isinstance(offer, tuple):
                positions, _ = self.table.categories(local, self.site.codes(name))
                lacking = (positions < 0) | self._off_offer(name)
            else:
                continue
            few = 0 < np.count_nonzero(lacking) < self.few
            if few and 10 * np.count_nonzero(out | lacking) <= len(out):
                taken[name] = lacking
                out |= lacking
        return taken

    def _complete(self, found: dict[str, Mask]) -> Mask:
        """Rows without a missing value in these columns; the others are left out because of it."""
        self.reasons = found
        keep = np.ones(self.table.n_rows, dtype=bool)
        for mask in found.values():
            keep &= ~mask
        return keep

    def _refuse_missing(self, found: dict[str, Mask], told: tuple[str, ...]) -> None:
        """Refuse rows with missing values; of columns that lack few values nothing is told."""
        name, others = told[0], [other for other in found if other != told[0]]
        rows = np.flatnonzero(found[name])
        more = f" (so do {listed(others, 10, counted=False)})" if others else ""
        raise DataError(
            f"column {name!r} has no value in {len(rows)} of {self.table.n_rows} rows"
            f"{row_list(rows + 1)}{more}: complete the table, or let the study leave such rows "
            'out, by missing = "complete-rows" in [preparation], or choose another rule there',
            public=f"column {listed(told, 10, counted=False)}: missing values, which the study "
            'refuses; missing = "complete-rows" in [preparation] would leave such rows out',
        )

    def _matchable(self, keep: Mask) -> Mask:
        """Over columns, leave out rows without an id and all rows of a repeated one."""
        name = self.columns.id
        if name is None or self.partition != "columns":
            return keep
        positions, _ = self._categories(name)
        absent = positions < 0
        counts = np.bincount(positions[keep & ~absent], minlength=1)
        repeated = ~absent & (np.append(counts, 0)[positions] > 1) & keep
        self.unmatchable = (int((keep & absent).sum()), int(repeated.sum()))
        if (keep & (absent | repeated)).any():
            self.reasons = {**self.reasons, name: keep & (absent | repeated)}
        matchable = keep & ~absent & ~repeated
        if not matchable.any():
            raise _refusal(
                name,
                "leaves no row that could be matched: every id is missing or repeated",
                "no row has an id of its own",
            )
        return matchable

    def _bounds(self, plan: tuple[encoding.Encoding, ...]) -> NDArray[np.float64] | None:
        """Limits of every prepared column (2, p); NaN where the site states none."""
        if self.partition != "columns":
            return None
        found: list[tuple[float, float]] = []
        for one in plan:
            given = self.site.bounds.get(one.column, (math.nan, math.nan))
            found += [given] if one.kind == "number" else [(0.0, 1.0)] * len(one.names)
        if self.preparation.missing == "indicator":
            found += [(0.0, 1.0) for one in plan if one.kind == "number"]
        return np.asarray(found, dtype=float).reshape(-1, 2).T

    # --- report

    def _report(self, data: SiteData, keep: Mask, ids: NDArray[np.str_] | None) -> Report:
        named = [] if data.id is None else list(filter(None, data.id.tolist()))
        roles: dict[str, list[str]] = {name: [] for name in self.columns.used()}
        for role in ("features", "target", *_TEXT_ROLES, "weight", "offset", "sequence"):
            given = getattr(self.columns, role) or ()
            for name in given if isinstance(given, tuple) else (given,):
                roles[name].append(role)
        return Report(
            description=self.table.description,
            content_hash=self.table.content_hash,
            rows_read=self.table.n_rows,
            rows_kept=data.n_rows,
            dropped_by={name: int(np.count_nonzero(m)) for name, m in self.reasons.items()},
            columns=tuple(self._column_report(name, *had) for name, had in roles.items()),
            constant=constant_columns(data),
            missing_ids=self.unmatchable[0] + (0 if data.id is None else data.n_rows - len(named)),
            duplicate_ids=self.unmatchable[1] + len(named) - len(set(named)),
            dropped_rows=np.flatnonzero(~keep),
            dropped_ids=None if ids is None else ids[~keep],
        )

    def _column_report(self, name: str, *roles: str) -> ColumnReport:
        local = self.site.local(name)
        foreign, n_foreign = self.foreign.get(name, ((), 0))
        return ColumnReport(
            name=name,
            local_name=local,
            roles=roles,
            kind=self.table.kind(local),
            missing=int(np.count_nonzero(self.missing[name])),
            foreign=foreign,
            n_foreign=n_foreign,
            n_odd=self.odd.get(name, 0),
            rounded_to=self.rounded.get(name, 0.0),
        )


def _only(features: FloatArray, keep: Mask) -> FloatArray:
    """Rows that are kept, moved to the front: of a table that is asked for no others again."""
    end, size = 0, 128 * _TURNED
    for start in range(0, len(keep), size):
        some = features[start : start + size][keep[start : start + size]]
        features[end : end + len(some)] = some
        end += len(some)
    return features[:end]


def _turn(columns: list[NDArray[Any]], features: NDArray[np.float64]) -> None:
    """Put columns side by side."""
    whole = _as_block(columns)
    # So many rows at a time that they stay in a processor's cache meanwhile.
    for start in range(0, len(features), _TURNED):
        some = features[start : start + _TURNED]
        if whole is not None:  # much quicker than one after the other
            some[:] = whole[start : start + _TURNED]
            continue
        for place, column in enumerate(columns):
            some[:, place] = column[start : start + _TURNED]


def _as_block(columns: list[NDArray[Any]]) -> FloatArray | None:
    """Columns that lie evenly in memory as one table (n, p), as those of a data frame often do."""
    if len(columns) < 2 or any(c.dtype != np.float64 for c in columns):
        return None
    # Only within one piece of memory: from one to another no steps lead, however even they are.
    if len({id(_owner(c)) for c in columns}) > 1:
        return None
    places = np.array([c.__array_interface__["data"][0] for c in columns])
    steps = {*np.diff(places).tolist()}
    if len(steps) > 1 or len({c.strides for c in columns}) > 1:
        return None
    shape, strides = (len(columns[0]), len(columns)), (columns[0].strides[0], *steps)
    return np.lib.stride_tricks.as_strided(columns[0], shape, strides, writeable=False)


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """The array of whose memory this is a part."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


_TEXT_ROLES = ("id", "agent", "entity", "cluster")


# ---------------------------------------------------------------------------- what preparing gives


@dataclass(frozen=True)
class ColumnReport:
    """What was found in one column. Stays at the site.

    Attributes
    ----------
    name, local_name : str
        In the study and in the site's table.
    roles : tuple of str
    kind : str
        Type as it was read.
    missing : int
        Rows of the table without a value.
    foreign : tuple of str
        Values outside the declared levels, at most 20; where the site lists its levels, those of
        the list, whether the table has them or not.
    n_foreign : int
        Rows that hold one.
    n_odd : int
        Rows whose value counts as missing: it is not on offer, a level that few rows have, or no
        number in few rows.
    rounded_to : float
        Step to which the values keep now, because few rows had further digits; 0 where
        nothing was rounded.
    """

    name: str
    local_name: str
    roles: tuple[str, ...]
    kind: str
    missing: int
    foreign: tuple[str, ...] = ()
    n_foreign: int = 0
    n_odd: int = 0
    rounded_to: float = 0.0

    def about_odd(self) -> str:
        """Say how many values count as missing that are there."""
        return (
            f"Column {self.name}: {self.n_odd} values count as missing (not on offer, a level that "
            "few rows have, or no number)."
        )


@dataclass(frozen=True, eq=False)
class Report:
    """What became of a table, for the site itself. Never leaves it.

    Attributes
    ----------
    description, content_hash : str
    rows_read, rows_kept : int
    dropped_by : dict of str to int
        Dropped rows in which a column has no value; a row can count for several columns.
    columns : tuple of ColumnReport
    constant : tuple of str
        Prepared columns with one value only; they are kept.
    missing_ids, duplicate_ids : int
        Over rows, kept rows without an id and those whose id an earlier one has; over columns, the
        rows that were left out because of it (every row of a repeated id).
    dropped_rows : int array
        Positions in the table as it was read.
    dropped_ids : str array or None
    """

    description: str
    content_hash: str
    rows_read: int
    rows_kept: int
    dropped_by: dict[str, int]
    columns: tuple[ColumnReport, ...]
    constant: tuple[str, ...]
    missing_ids: int
    duplicate_ids: int
    dropped_rows: NDArray[np.int64]
    dropped_ids: NDArray[np.str_] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file of the site's own."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["columns"] = [vars(column) for column in self.columns]
        plain["dropped_rows"] = self.dropped_rows.tolist()
        plain["dropped_ids"] = None if self.dropped_ids is None else self.dropped_ids.tolist()
        return plain

    def sentences(self) -> tuple[str, ...]:
        """The report in words."""
        said = [f"{self.rows_read} rows read, {self.rows_kept} kept ({self.description})."]
        said += [
            f"Column {name} has no value in {count} of the dropped rows."
            for name, count in self.dropped_by.items()
        ]
        for column in self.columns:
            if column.foreign:
                said.append(
                    f"Column {column.name}: {column.n_foreign} rows hold values outside the "
                    f"declared levels: {', '.join(column.foreign)}."
                )
            if column.n_odd:
                said.append(column.about_odd())
            if column.rounded_to:
                said.append(
                    f"Column {column.name}: digits that few rows have were rounded away, to "
                    f"steps of {column.rounded_to:g}."
                )
        said += [f"Column {name} holds one value only." for name in self.constant]
        if self.missing_ids:
            said.append(f"{self.missing_ids} rows have no id.")
        if self.duplicate_ids:
            said.append(f"{self.duplicate_ids} rows repeat an id.")
        return tuple(said)


Coding = Sequence[Any]
Prepared = Mapping[str, tuple[Coding, NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class Everyone:
    """All rows of a table, also those that a study leaves out; for the guard over runs.

    Attributes
    ----------
    content : callable
        Gives a number (n,) for what is in each row.
    names : tuple of str
        Columns of the table that were looked at.
    classes : (n,) int array
        By the study's target; all 0 where it has no levels.
    entity : (n,) str array or None
        Where the study names entities.
    prepared : mapping of str to (coding, (n,) array)
        By name of a prepared column: how it is made, and its values. A coding is the column that it
        is made from, the kind, values and levels of `encoding.Encoding`.
    earlier : callable
        Reads columns by their codings; raises `DataError` where one is no longer there.
    """

    content: Callable[[], NDArray[np.uint64]]
    names: tuple[str, ...]
    classes: NDArray[np.int64]
    entity: NDArray[np.str_] | None = None
    prepared: Prepared = field(default_factory=dict)
    earlier: Callable[[Mapping[str, Coding]], Prepared] = lambda codings: {}


AllRows = Callable[[tuple[str, ...]], Everyone]
"""Gives all rows by what is in some columns; in all, where none are named."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """Prepared rows and what became of the table."""

    data: SiteData
    report: Report
    everyone: AllRows | None = None


def constant_columns(data: SiteData) -> tuple[str, ...]:
    """Prepared columns that hold one value; NaN is no value."""
    x = data.features

    def ends(part: FloatArray) -> tuple[FloatArray, FloatArray]:
        return np.fmin.reduce(part, axis=0), np.fmax.reduce(part, axis=0)

    low, high = ends(x[: 2 * _TURNED])
    some = np.flatnonzero(~(low < high))  # most columns show two values in their first rows
    low, high = ends(x[:, some])
    return tuple(data.feature_names[j] for j in some[low == high])
