"""Prepared rows on the site's disk: the same rows, and never those of another table."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Preparation
from consilience.sites import loaders
from consilience.sites.loaders import FOLDER, KEEP, PreparedCache, file_site, purge_prepared
from consilience.sites.prepare import Loaded
from consilience.sites.source import read_source
from consilience.sites.study import SiteFile
from consilience.testing.fakes import FakeEngine
from consilience.wire.envelope import Reply, Request

COLUMNS = Columns(features=("x", "kind"), target="y", id="who", levels={"kind": ("a", "b", "c")})
PREPARATION = Preparation(missing="complete-rows", categorical="treatment")


def write(folder: Path, rows: int = 30, shift: float = 0.0) -> SiteFile:
    lines = ["who,x,kind,y"]
    for i in range(rows):
        x = "" if i == 7 else f"{i + shift}"
        lines.append(f"p-{i},{x},{'abc'[i % 3]},{i % 5}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    (folder / "site.toml").write_text(
        'name = "ash"\nhome = "home"\n[source]\npath = "table.csv"\n[policy]\ndata_id = "a"\n'
        '[columns.offered]\n"*" = "number"\nwho = "id"\nkind = ["a", "b", "c"]\n'
    )
    return SiteFile.load(folder / "site.toml")


def load(file: SiteFile, columns: Columns = COLUMNS) -> Loaded:
    return file_site(file, cache=True)._loader(columns, PREPARATION)  # type: ignore[return-value]


def same(first: Loaded, second: Loaded) -> bool:
    for one, two in ((first.data, second.data), (first.report, second.report)):
        for item in dataclasses.fields(one):
            left, right = getattr(one, item.name), getattr(two, item.name)
            if isinstance(left, np.ndarray):
                if left.dtype != right.dtype or not np.array_equal(left, right):
                    return False
            elif left != right:
                return False
    return True


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often a table is read."""
    count = [0]
    real = read_source

    def read(*args: object, **settings: object) -> object:
        count[0] += 1
        return real(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(loaders, "read_source", read)
    return count


def test_the_second_process_reads_the_same_rows_without_the_table(
    tmp_path: Path, unread: list[int]
) -> None:
    file = write(tmp_path)
    plain = file_site(file)._loader(COLUMNS, PREPARATION)
    first, second = load(file), load(file)
    assert unread == [2]
    assert same(first, second)
    assert same(first, plain)  # type: ignore[arg-type]
    assert second.report.to_dict() == first.report.to_dict()
    assert not second.data.features.flags.writeable


def test_another_table_or_another_question_is_read_anew(tmp_path: Path, unread: list[int]) -> None:
    load(write(tmp_path))
    shifted = load(write(tmp_path, shift=100.0))
    assert unread == [2]
    assert shifted.data.features[0, 0] == 100.0
    fewer = load(write(tmp_path, shift=100.0), Columns(features=("x",)))
    assert unread == [3]
    assert fewer.data.feature_names == ("x",)
    longer = write(tmp_path, shift=100.0)
    (tmp_path / "site.toml").write_text(
        (tmp_path / "site.toml").read_text() + "[columns.units.x]\nscale = 2.0\n"
    )
    longer = SiteFile.load(tmp_path / "site.toml")
    assert load(longer).data.features[0, 0] == 200.0
    assert unread == [4]


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_what_is_damaged_is_read_anew(
    tmp_path: Path, unread: list[int], damage: bytes | None
) -> None:
    file = write(tmp_path)
    first = load(file)
    (kept,) = (file.home_path / FOLDER).iterdir()
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes(bytes(data) if damage is None else damage)
    assert same(load(file), first)
    assert unread == [2]
    assert same(load(file), first)
    assert unread == [2]


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path, unread: list[int]) -> None:
    file = write(tmp_path)
    file_site(file)
    (file.home_path / FOLDER).write_text("in the way")
    assert same(load(file), load(file))
    assert unread == [2]


def test_few_are_kept_for_the_owner_only_and_purged(tmp_path: Path) -> None:
    file = write(tmp_path)
    for shift in range(KEEP + 3):
        load(write(tmp_path, shift=float(shift)))
    folder = file.home_path / FOLDER
    assert len(list(folder.iterdir())) == KEEP
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert purge_prepared(file.home_path, older_than=1.0) == 0
    assert purge_prepared(file.home_path) == KEEP


def test_a_database_is_never_kept(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        'name = "ash"\nhome = "home"\n[source]\nurl = "sqlite:///x.db"\nquery = "select 1"\n'
        '[policy]\ndata_id = "a"\n'
    )
    assert (
        PreparedCache(SiteFile.load(tmp_path / "site.toml")).key(COLUMNS, PREPARATION, "rows")
        is None
    )


def test_a_run_goes_on_with_the_table_that_it_was_opened_with_only(tmp_path: Path) -> None:
    """A process that starts again reads the table again, and it must be the same one."""
    file = write(tmp_path)
    engine = FakeEngine([file_site(file)])
    Federation(engine, Columns(features=("x",)), PREPARATION).run(MeanAndSD(), seed=1, run_id="r")
    last = Request.from_bytes(max(engine.requests.items())[1])
    for attempt, rows, status in ((2, 30, "reply"), (3, 31, "refused"), (4, 30, "reply")):
        again = dataclasses.replace(last, attempt=attempt).to_bytes()
        answer = file_site(write(tmp_path, rows=rows)).answer(again)
        assert isinstance(answer, bytes)
        said = Reply.from_bytes(answer)
        assert said.status == status
        assert ("not the one with which the run was opened" in said.reason) == (rows == 31)
