"""How long a site keeps what it needs only to answer again.

Records hold answers and the secret draws that they rest on. Outputs, ledgers and budgets are not
touched: they are what the steward, and the next run, build on. Each purge is noted in the home's
log before it happens, with what the site had answered, field by field.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from consilience.exceptions import DamageError, ParameterError, RunError
from consilience.sites.loaders import purge_prepared
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore, SiteStore
from consilience.sites.steward import answers

DAY = 86400.0


def old_runs(home: SiteStore, days: float, *, now: float | None = None) -> dict[str, float]:
    """Return runs whose last question is more than `days` days ago, with their age in days.

    Runs with a reply that waits for the steward, or of which that is not known, are not among them.

    Raises
    ------
    ParameterError
        `days` is negative.
    RunError
        The home cannot be read.
    """
    if not days >= 0:
        raise ParameterError.of("days", "0 or a number above", days)
    # Given in tests; the clock of the machine is the site's own affair.
    now = time.time() if now is None else now
    ages = {run: (now - last) / DAY for run, last in home.recorded().items()}
    old = {run: age for run, age in sorted(ages.items()) if age > days}
    return {run: age for run, age in old.items() if not _may_wait(home, run)}


def _may_wait(home: SiteStore, run: str) -> bool:
    try:
        return home.jobs.is_held(run)
    except DamageError:
        return True


def purge_run(site: Site, run: str, why: str) -> None:
    """Purge a run, and note it in the home's log before it happens.

    Raises
    ------
    RunError
        The run id is not allowed, or the home cannot be written.
    """
    # First the notes: after a crash in between, the log says more than was done, never less.
    site.home.log("purged", run=run[:100], reason=why)
    for answer in answers(site.home, run=run):
        site.home.log(
            "answered",
            run=run,
            round=answer.round,
            attempt=answer.attempt,
            study=answer.study,
            method=answer.method,
            step=answer.step,
            outcome=answer.outcome,
            bytes=answer.bytes,
            digest=answer.digest,
            told=[
                f"{f.field}: {f.disclosure} for {f.audience}, {f.shape}, {f.verdict} by {f.rule}"
                for f in answer.fields
            ],
        )
    site.purge(run)


def purge_old(
    site: Site,
    days: float,
    *,
    now: float | None = None,
    why: str = "retention",
    on_error: Callable[[str, RunError], None] | None = None,
) -> dict[str, float]:
    """Purge runs that were not asked for some days; returns their ages in days.

    Parameters
    ----------
    on_error : callable, optional
        ``on_error(run, error)`` for a run that cannot be purged; the others are. Without it the
        first such error is raised when all others are purged.

    Raises
    ------
    ParameterError, RunError
        As `old_runs` and `purge_run`.
    """
    found, errors = old_runs(site.home, days, now=now), []
    for run, age in list(found.items()):
        try:
            purge_run(site, run, f"{why}: last asked {age:.1f} days ago, kept for {days:g}")
        except RunError as error:
            del found[run]
            errors.append(error)
            if on_error is not None:
                on_error(run, error)
    if isinstance(site.home, DiskStore):
        purge_prepared(site.home.path, older_than=days)
    if errors and on_error is None:
        raise errors[0]
    return found
