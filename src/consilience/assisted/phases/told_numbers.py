"""How many numbers may be told of a data set beside the combinations of columns that are counted.

A release ``X d`` is counted as a direction (``sites.revealed_rank``). Numbers such as the gain of
a local fit, or what an equation hides of a target, are not of that form, yet each is an equation in
the hidden columns: whoever chooses the questions gets a whole direction, one number for each row,
from about as many answers as there are rows. So a data set tells at most half as many as it has
rows, over all runs; where all directions may be known anyway there is no limit.
"""

from __future__ import annotations

import numpy as np

from consilience.assisted.phases.own_columns import OwnColumns
from consilience.protocol.method import SiteContext, SiteData


def numbers_of(message: object, data: SiteData) -> str:
    """Name under which a site keeps how many numbers it told (for ``keeps`` of a step)."""
    return f"numbers {data.content_hash}"


def may_tell(site: SiteContext, own: OwnColumns, n_rows: int, numbers: int) -> bool:
    """Whether so many numbers may be told; if so, they count from now on.

    Parameters
    ----------
    site : SiteContext
        In a step that keeps `numbers_of`.
    own : OwnColumns
    n_rows : int
        Rows of the run.
    numbers : int
    """
    if own.known(site, np.eye(len(own.names)))[2]:
        return True
    told = 0 if site.kept is None else int(site.kept["told"])
    if told + numbers > n_rows // 2:
        return False
    site.keep({"told": told + numbers})
    return True
