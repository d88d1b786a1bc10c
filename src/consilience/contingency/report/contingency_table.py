"""Report of a contingency table; its sentences stand in ``contingency_table.j2``."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.contingency.protocol import LEAST_EXPECTED, SIGNIFICANT, ContingencyTableResult
from consilience.report.charts import short
from consilience.report.sections import Run, TemplateReport, number, p_value, site_name


class ContingencyTableReport(TemplateReport[ContingencyTableResult]):
    """Words on a pooled table and its tests."""

    kind = ContingencyTableResult

    def context(self, result: ContingencyTableResult, run: Run) -> dict[str, object]:
        """Names that fit a line, verdicts, and the rows of tables."""
        pooled, within = result.verdicts()
        tests = (
            ("pooled table", result.statistic, result.df, result.p_value),
            ("within sites", result.within_statistic, result.within_df, result.within_p_value),
        )
        return {
            "names": [short(name, 40) for name in result.names],
            "levels": [short(level, 40) for level in result.column_levels],
            "pooled": pooled,
            "within": within,
            "significant": SIGNIFICANT,
            "least": LEAST_EXPECTED,
            "tests": [(name, number(x), f"{df:,}", p_value(p)) for name, x, df, p in tests],
            # each count with what is expected of independent columns
            "counts": [
                (short(level, 40), *(f"{n:,} ({e:,.1f})" for n, e in zip(told, due, strict=True)))
                for level, told, due in zip(
                    result.row_levels, result.table, result.expected, strict=True
                )
            ],
            "sites": [
                (site_name(site), f"{table.sum():,}")
                # with masked sums nobody has the tables of sites
                for site, table in zip(result.sites, result.tables, strict=False)
            ],
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, and sites that tell their tables."""
        result = self.read(run)
        return (("rows", f"{result.n:,}"), ("sites in the table", f"{len(result.sites):,}"))


REPORT = ContingencyTableReport
