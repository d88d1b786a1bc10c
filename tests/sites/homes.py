"""What a home in memory holds, for tests that look behind its back."""

from __future__ import annotations

from typing import Any

from consilience.sites.site_store import Record


def record_files(home: Any) -> list[tuple[str, ...]]:
    """Places of the records in a home in memory, in order of run, round and attempt."""
    return sorted(parts for parts in home.files if parts[-1].endswith(".record"))


def records_of(home: Any) -> list[tuple[str, Record]]:
    """Run and content of each record."""
    found = []
    for parts in record_files(home):
        round_, attempt = parts[2].removesuffix(".record").split("-")
        found.append((parts[1], home.record(parts[1], int(round_), int(attempt))))
    return found
