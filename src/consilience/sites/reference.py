"""Reference rows of a study: public rows in a file beside the study file.

Whoever starts the run reads them, in the columns into which all sites prepare their tables. Sites
never open the file: they know it by its hash, which is part of the study's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError, StudyError
from consilience.sites.prepare import load_with_report
from consilience.sites.source import read_source
from consilience.sites.study import Study, reworded


@dataclass(frozen=True, eq=False)
class ReferenceRows:
    """Reference rows in the prepared columns, not standardised.

    Attributes
    ----------
    names : tuple of str
        Columns after preparation, as at every site.
    rows : (m, p) array
        NaN where a cell is missing and the study fills such cells with pooled means.
    rows_read : int
        Rows of the file; those with a missing cell are left out where the study keeps complete
        rows only.
    description : str
    content_hash : str
        SHA-256 of the file's bytes.
    """

    names: tuple[str, ...]
    rows: NDArray[np.float64]
    rows_read: int
    description: str
    content_hash: str

    def plain(self) -> tuple[tuple[float, ...], ...]:
        """The rows as a parameter of a method."""
        return tuple(tuple(row) for row in self.rows.tolist())


def read_reference(study: Study) -> ReferenceRows:
    """Read the reference rows of a study, prepared as its sites prepare their tables.

    The file needs the columns of the features, under the names of the study; others are ignored.

    Parameters
    ----------
    study : Study
        With a ``[reference]``.

    Raises
    ------
    StudyError
        The study has no reference rows or no features, or the file is not the one that it names.
    DataError
        The file cannot be read, or does not fit the columns and rules of the study.
    """
    if study.reference is None:
        raise StudyError("the study has no reference rows: add a [reference] section")
    if not study.data.features:
        raise StudyError("reference rows are rows of the features: name them in [data] features")
    try:
        table = read_source(study.reference, study.base)
    except DataError as error:
        raise DataError(reworded(str(error))) from None
    # By content: a file with the right name may be another one, and the study's hash would not show
    # it.
    if table.content_hash != study.reference_hash():
        raise StudyError(
            f"{table.description} is not the reference file of this study, whose SHA-256 begins "
            f"{study.reference_hash()[:12]}: put that file back, or correct sha256 in [reference]"
        )
    # Reference rows are nobody's records: they need no outcome, no id and no weight.
    columns = dataclasses.replace(study.columns.only(()), id=None)
    try:
        loaded = load_with_report(table, columns, study.preparation)
    except DataError as error:
        raise DataError(f"reference rows: {reworded(str(error))}") from None
    for column in loaded.report.columns:
        if column.n_foreign:
            raise DataError(
                f"reference rows: column {column.name!r} holds values outside the declared levels "
                f"in {column.n_foreign} rows of {table.description}: leave these rows out, or "
                "declare all levels in [data.levels]"
            )
    return ReferenceRows(
        names=loaded.data.feature_names,
        rows=loaded.data.features,
        rows_read=table.n_rows,
        description=table.description,
        content_hash=table.content_hash,
    )
