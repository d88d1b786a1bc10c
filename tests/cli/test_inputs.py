"""Bad input: one sentence, the documented exit code, no half-written result, and never a value."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.engines.federation import load_run
from consilience.engines.local import LocalEngine
from consilience.engines.rundir import read_lines
from consilience.exceptions import DataError
from tests.cli.test_site import Workspace as FolderSpace
from tests.cli.workspace import (
    CANARY_NUMBER,
    CANARY_TEXT,
    SITES,
    Workspace,
    call,
    ran_once,
    sentence,
)

CANARIES = (
    CANARY_TEXT.encode(),
    str(CANARY_NUMBER).encode(),
    struct.pack("<d", CANARY_NUMBER),
)


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Ran once, to be read only."""
    return ran_once(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def ran(whole: Workspace, tmp_path: Path) -> Workspace:
    return whole.copied(tmp_path)


def refused(space: Workspace, code: int, *more: object) -> str:
    """Run, expect the exit code, and look for what must not be there."""
    result = space.run(*more)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert not list(space.root.rglob("result.*"))
    assert not list(space.root.rglob("*.part"))
    said = sentence(result)
    nowhere(space, said)
    return said


def nowhere(space: Workspace, said: str) -> None:
    """No canary in what was printed or in the run directory."""
    found = [said.encode()]
    found += [path.read_bytes() for path in space.out.rglob("*") if path.is_file()]
    for content in found:
        for canary in CANARIES:
            assert canary not in content


def plant(space: Workspace, site: str, line: str, times: int = 1) -> None:
    header, *rows = space.lines(site)
    space.table(site, header, [*rows, *[line] * times])


def test_the_canary_search_can_find() -> None:
    space = Workspace.__new__(Workspace)
    space.root = Path("nowhere")
    with pytest.raises(AssertionError):
        nowhere(space, f"value {CANARY_TEXT}")
    with pytest.raises(AssertionError):
        nowhere(space, f"value {CANARY_NUMBER}")


# --- study and site files ---------------------------------------------------------------------


def test_no_study_file(space: Workspace) -> None:
    space.file.unlink()
    assert "there is no file" in refused(space, 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sites": ("boston", "Boston")}, "names site 'boston' twice"),
        ({"method": "mean-and-sdd"}, "no method is called 'mean-and-sdd'"),
        ({"parameters": "k = 1"}, "has no parameter 'k': there are none"),
        (
            {"method": "ensemble-clustering", "parameters": "n_cluster = 2"},
            "study.toml: [parameters]: method 'ensemble-clustering' has no parameter 'n_cluster': "
            "did you mean 'n_clusters'?",
        ),
        ({"method": "ensemble-clustering", "parameters": "n_clusters = 0"}, "n_clusters must be"),
        ({"head": "partition = 'columns'"}, "matches rows by id"),
        ({"head": "partition = 'columns'", "data": "id = 'id'"}, "names the id only"),
        (
            {
                "head": "partition = 'columns'",
                "data": "id = 'id'",
                "features": (),
                "more_sites": "roles = {boston = 'initiator'}",
            },
            "is for sites that share columns",
        ),
        ({"sites": ("boston", "nowhere")}, "site 'nowhere' has no file"),
        ({"features": ("x", "x")}, "'x' twice"),
    ],
)
def test_a_wrong_study(space: Workspace, settings: dict[str, Any], says: str) -> None:
    space.write(**settings)
    assert says in refused(space, 2)


def test_a_site_file_with_another_name(space: Workspace) -> None:
    space.site("lyon", name="boston")
    assert "'lyon' says that its name is 'boston'" in refused(space, 2)


def test_two_sites_with_one_home(space: Workspace) -> None:
    path = space.site("lyon")
    path.write_text(path.read_text().replace("homes/lyon", "homes/boston"))
    assert "'boston' and 'lyon' have the same home" in refused(space, 2)


def test_a_wrong_policy(space: Workspace) -> None:
    space.site("lyon", more="[policy]\nmin_record = 3\n")
    said = "site lyon: [policy] has no setting 'min_record': did you mean 'min_records'?"
    assert said in refused(space, 2)


@pytest.mark.parametrize(
    "words",
    [
        ["--engine", "folder"],
        ["--folder", "x"],
        ["--resume", "--seed", "4"],
        ["--engine", "folder", "--folder", "x", "--key", "y", "--sites", "z"],
    ],
)
def test_options_that_do_not_go_together(space: Workspace, words: list[str]) -> None:
    refused(space, 2, *words)


# --- tables -----------------------------------------------------------------------------------


def test_an_unknown_column(space: Workspace) -> None:
    space.write(features=("x", "height"))
    said = refused(space, 3)
    assert "site boston: column 'height' is not in" in said
    assert "nor can lyon, osaka take part" in said
    assert not space.out.exists()


def test_decimal_commas_where_the_separator_alone_is_set(space: Workspace) -> None:
    text = "\n".join(space.lines("lyon")).replace(",", ";").replace(".", ",")
    (space.root / "data" / "lyon.csv").write_text(text + "\n", encoding="utf-8")
    site = space.root / "sites" / "lyon.toml"
    written = site.read_text(encoding="utf-8")
    with_separator = written.replace('lyon.csv"\n', 'lyon.csv"\nseparator = ";"\n')
    assert with_separator != written
    site.write_text(with_separator, encoding="utf-8")
    said = refused(space, 3)
    assert "holds text in 40 cells" in said
    assert "set decimal = ',' in [source], as some are written so" in said


def test_text_in_a_numeric_column(space: Workspace) -> None:
    plant(space, "lyon", f"{CANARY_TEXT},{CANARY_NUMBER},99", times=10)
    said = refused(space, 3)
    assert "site lyon: column 'x' holds text in 10 cells" in said
    assert not space.out.exists()


def test_a_missing_value(space: Workspace) -> None:
    plant(space, "osaka", f",{CANARY_NUMBER},{CANARY_TEXT}", times=10)
    assert "site osaka: column 'x' has no value in 10 of 50 rows" in refused(space, 3)


def test_what_is_odd_in_few_rows_stops_nothing_and_is_told_at_the_site_only(
    space: Workspace,
) -> None:
    plant(space, "osaka", f",{CANARY_NUMBER},{CANARY_TEXT}")
    plant(space, "lyon", f"{CANARY_TEXT},{CANARY_NUMBER},99")
    done = space.run()
    assert done.exit_code == 0 and "120 rows" in done.stdout
    nowhere(space, done.output)
    for site in ("osaka", "lyon"):
        (left,) = (space.root / "homes" / site / "outputs").glob("*/reading.json")
        assert json.loads(left.read_text())["dropped_by"] == {"x": 1}


def test_values_outside_the_declared_levels_are_counted_not_shown(space: Workspace) -> None:
    for site in ("boston", "lyon", "osaka"):
        header, *rows = space.lines(site)
        space.table(site, f"{header},kind", [f"{row},{'ab'[i % 2]}" for i, row in enumerate(rows)])
        offered = '[columns.offered]\nx = "number"\ny = "number"\nkind = ["a", "b"]\n'
        path = space.site(site)
        path.write_text(path.read_text().split("[columns")[0])
        more = offered if site == "boston" else '[policy]\npreset = "consortium"\n'
        path.write_text(path.read_text() + more)
    plant(space, "osaka", f"1,1,99,{CANARY_TEXT}", times=10)
    space.write(
        features=("x", "y", "kind"),
        more='[data.levels]\nkind = ["a", "b"]\n[preparation]\ncategorical = "treatment"',
    )
    checked = call("check", space.file)
    assert checked.exit_code == 3
    assert "osaka: Cannot take part: column 'kind' holds values outside" in checked.stdout
    assert "in 10 rows:" in sentence(checked)
    nowhere(space, checked.output)
    assert "site osaka: column 'kind' holds values outside the declared" in refused(space, 3)
    space.write(
        features=("x", "y", "kind"),
        more_sites="quorum = 2",
        more='[data.levels]\nkind = ["a", "b"]\n[preparation]\ncategorical = "treatment"',
    )
    assert "site osaka: column 'kind' holds values outside the declared" in refused(space, 3)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x81" * 40, b"x,y\n1"])
def test_an_unreadable_table(space: Workspace, content: bytes) -> None:
    (space.root / "data" / "lyon.csv").write_bytes(content)
    assert "site lyon:" in refused(space, 3)


def test_a_table_that_is_a_directory_or_missing(space: Workspace) -> None:
    path = space.root / "data" / "lyon.csv"
    path.unlink()
    assert "site lyon:" in refused(space, 3)
    path.mkdir()
    assert "site lyon:" in refused(space, 3)


def test_one_unreadable_table_is_no_error_where_the_quorum_allows_it(space: Workspace) -> None:
    (space.root / "data" / "lyon.csv").unlink()
    space.write(more_sites="quorum = 2")
    result = space.run()
    assert result.exit_code == 0, result.output
    assert "Site lyon refused in one round" in result.stdout


def test_a_site_with_fewer_rows_than_classes(space: Workspace) -> None:
    header, *rows = space.lines("lyon")
    space.table("lyon", header, rows[:3])
    space.write(method="ensemble-clustering", parameters="n_clusters = 4\nstability_pairs = 0")
    checked = call("check", space.file)
    assert checked.exit_code == 0
    assert "lyon: 3 rows are kept and the policy releases nothing" in checked.stdout
    done = space.run()
    assert done.exit_code == 0, done.output
    assert "Site lyon has no two classes that are large enough" in done.stdout


def test_a_site_with_too_few_rows_for_its_policy(space: Workspace) -> None:
    header, *rows = space.lines("lyon")
    space.table("lyon", header, rows[:3])
    said = refused(space, 8)
    assert "lyon refused: the gate refused field 'n'" in said
    assert said.endswith("--resume --retry-refused")


def test_sites_that_all_answered_are_not_to_be_asked_again(space: Workspace) -> None:
    """Each withholds a table with an empty cell, and would do so again."""
    levels = 'x = ["a", "b"]\ny = ["c", "d"]\n'
    for site in SITES:
        space.table(site, "x,y", ["a,c"] * 20 + ["a,d"] * 20 + ["b,c"] * 20)
        space.site(site, more=levels)
    space.write(
        method="contingency-table",
        data=f"[data.levels]\n{levels}",
        more='[preparation]\ncategorical = "onehot"',
    )
    said = refused(space, 8)
    assert said.endswith("ask for fewer levels; the sites' logs say more")


def test_constant_columns(space: Workspace) -> None:
    for site in ("boston", "lyon", "osaka"):
        header, *rows = space.lines(site)
        space.table(site, f"{header},flat", [f"{row},2.5" for row in rows])
    space.write(features=("x", "flat"))
    checked = call("check", space.file)
    assert checked.stdout.count("Column flat holds one value only.") == 3
    ran = space.run()  # none differ, which looks like few that do
    assert ran.exit_code == 0
    assert "flat: withheld" in ran.stdout
    assert "Some sites withheld flat: too few rows differ there" in ran.stdout
    for site in ("boston", "lyon", "osaka"):
        space.site(site, more='[policy]\npreset = "simulation"\n')
    shutil.rmtree(space.out)
    assert space.run().exit_code == 0
    result = load_run(space.out).result
    assert result.mean[1] == 2.5  # type: ignore[attr-defined]
    assert result.sd[1] == 0.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("ones", [0, 4, 36, 40])
def test_a_column_of_which_a_site_tells_no_sums_stops_a_regression_before_it_runs(
    ones: int, space: Workspace
) -> None:
    for site in SITES:
        header, *rows = space.lines(site)
        of = ones if site == "lyon" else 20
        space.table(site, f"{header},mark", [f"{row},{2 + (i < of)}" for i, row in enumerate(rows)])
    asked = {"method": "pooled-regression", "features": ("x", "mark"), "data": 'target = "y"'}
    space.write(**asked)  # type: ignore[arg-type]
    said = refused(space, 3)
    assert "site lyon: of mark all rows have one value, or all but fewer than 10" in said
    assert call("check", space.file).exit_code == 3
    space.write(parameters='when_withheld = "without-column"', **asked)  # type: ignore[arg-type]
    assert call("check", space.file).exit_code == 0
    done = space.run()
    assert done.exit_code == 0
    assert "Site lyon withholds mark" in " ".join(done.stdout.split())
    # Of a site that tells nothing at all a quorum may do without.
    header, *rows = space.lines("lyon")
    space.table("lyon", header, rows[:8])
    space.write(more_sites="quorum = 2", **asked)  # type: ignore[arg-type]
    assert call("check", space.file).exit_code == 0
    space.table("lyon", header, rows)
    space.site("lyon", more='[policy]\npreset = "simulation"\n')
    space.write(**asked)  # type: ignore[arg-type]
    assert call("check", space.file).exit_code == 0


@pytest.mark.parametrize(("both", "told"), [(0, False), (3, False), (10, True)])
def test_columns_of_which_few_rows_have_both_stop_a_regression_before_it_runs(
    both: int, told: bool, space: Workspace
) -> None:
    """With none, one column is the other turned around."""
    for site in SITES:
        header, *rows = space.lines(site)
        of = both if site == "lyon" else 10
        marks = [(i < 20, 20 - of <= i < 40 - of) for i in range(len(rows))]
        cells = [f"{row},{a:d},{b:d}" for row, (a, b) in zip(rows, marks, strict=True)]
        space.table(site, f"{header},mark,sign", cells)
    asked = {"method": "pooled-regression", "data": 'target = "y"'}
    space.write(features=("mark", "sign"), **asked)  # type: ignore[arg-type]
    checked, done = call("check", space.file), space.run()
    assert (checked.exit_code, done.exit_code) == ((0, 0) if told else (3, 3))
    assert ("Cannot take part: it withholds" in " ".join(checked.stdout.split())) != told


@pytest.mark.parametrize(
    ("parameters", "cells", "said"),
    [
        ('family = "poisson"', (-1, 2), "must be whole numbers of at least 0"),
        ('family = "gamma"', (0, 2), "must be above 0"),
        ('family = "binomial"', (1, 2), "must be 0 or 1, or of two declared levels"),
        (
            'family = "cox"\ntime = "x"',
            (0, 0),
            "of the response all rows have one value, or all but",
        ),
        ('family = "binomial"', (1, 1), "of the response all rows have one value, or all but"),
    ],
)
def test_a_response_that_no_regression_takes_is_known_before_it_runs(
    parameters: str, cells: tuple[int, int], said: str, space: Workspace
) -> None:
    for site in SITES:
        fine = (3, 4) if "gamma" in parameters else (0, 1)
        own = cells if site == "lyon" else fine
        rows = [f"{i % 7 + 1},{i % 5},{own[i % 2]}" for i in range(60)]
        space.table(site, "x,y,told", rows)
        space.site(site, more='[policy]\npreset = "consortium"\n')
    asked = {"method": "pooled-regression", "parameters": parameters, "data": 'target = "told"'}
    space.write(**asked)  # type: ignore[arg-type]
    checked = call("check", space.file)
    assert checked.exit_code == 3
    assert f"site lyon: {'' if 'all rows' in said else 'the response of a '}" in sentence(checked)
    assert said in sentence(checked)
    # What one site lacks a quorum may do without.
    space.write(more_sites="quorum = 2", **asked)  # type: ignore[arg-type]
    assert call("check", space.file).exit_code == 0


def test_times_that_no_cox_regression_takes_are_known_before_it_runs(space: Workspace) -> None:
    for site in SITES:
        rows = [f"{i % 7 + (site != 'lyon')},{i % 5},{i % 2}" for i in range(60)]
        space.table(site, "x,y,seen", rows)
        space.site(site, more='[policy]\npreset = "consortium"\n')
    settings = 'family = "cox"\ntime = "x"'
    space.write(method="pooled-regression", parameters=settings, data='target = "seen"')
    said = "site lyon: times until an event, or until somebody was last seen, must be above 0"
    assert said in sentence(call("check", space.file))


# --- directories and disks --------------------------------------------------------------------


def test_an_unwritable_run_directory(space: Workspace) -> None:
    space.out.parent.write_text("a file is in the way")
    assert "a part of the path is a file" in refused(space, 7)


def test_a_run_directory_that_holds_other_things(space: Workspace) -> None:
    space.out.mkdir(parents=True)
    (space.out / "thesis.txt").write_text("mine")
    assert "holds files that are not a run's" in refused(space, 7)
    assert [path.name for path in space.out.iterdir()] == ["thesis.txt"]


def test_a_run_directory_that_holds_a_run(ran: Workspace) -> None:
    before = (ran.out / "result.json").read_bytes()
    result = ran.run()
    assert result.exit_code == 7
    assert "already holds a run" in sentence(result)
    assert (ran.out / "result.json").read_bytes() == before


def test_nothing_to_resume(space: Workspace) -> None:
    assert "holds no run" in refused(space, 7, "--resume")


@pytest.mark.parametrize(
    "command", ["show", "next", "transcript", "report", "status", "purge", "resume"]
)
def test_a_run_directory_of_another_version(ran: Workspace, command: str) -> None:
    path = ran.out / "run.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "schema": 99}))
    before = sorted(p.name for p in ran.out.iterdir())
    result = ran.run("--resume") if command == "resume" else call(command, ran.out)
    assert result.exit_code == 7
    assert "has schema 99 and this release reads" in sentence(result)
    assert sorted(p.name for p in ran.out.iterdir()) == before


def test_a_run_of_another_release_is_not_resumed(ran: Workspace) -> None:
    path = ran.out / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "release": "0.0.0"}))
    result = ran.run("--resume")
    assert result.exit_code == 7
    assert "was begun with release '0.0.0'" in sentence(result)


@pytest.mark.parametrize("nth", [1, 2, 5, 12, 30, 50])
def test_a_full_disk(
    space: Workspace, whole: Workspace, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the n-th write to disk on, nothing can be written; then there is room again."""
    real, count = os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal count
        count += 1
        if count >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        result = space.run("--quiet")
    assert count >= nth, "the patch was never reached"
    # At the coordinator the run stops; a site that cannot keep its record counts as absent.
    assert result.exit_code in (7, 8), result.output
    assert result.stdout == ""
    assert "the disk is full" in sentence(result) or "could not keep its record" in result.stderr
    assert not (space.out / "result.json").exists()
    assert not list(space.root.rglob("*.part"))
    if not (space.out / "run.json").exists():
        assert space.run().exit_code == 0
    else:
        again = space.run("--retry-refused")
        assert again.exit_code == 0, again.output
    for name in ("result.json", "result.npz"):
        assert (space.out / name).read_bytes() == (whole.out / name).read_bytes()


# --- what other parties say -------------------------------------------------------------------


def test_a_reason_of_a_site_steers_nothing(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    nasty = "\x1b[2J[bold red]boo[/]\r\nError: \u202eforged"

    def load(*args: object, **kwargs: object) -> None:
        raise DataError("private", public=nasty)

    monkeypatch.setattr("consilience.sites.loaders.load_under", load)
    result = space.run()
    assert result.exit_code == 8
    said = sentence(result)
    assert "\\x1b[2J[bold red]boo[/]\\x0d\\x0aError: \\u202eforged" in said


def test_an_unforeseen_error_shows_its_type_only(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: object, **kwargs: object) -> None:
        raise ValueError(f"could not convert {CANARY_TEXT}")

    monkeypatch.setattr("consilience.engines.study_check.load_under", load)
    said = refused(space, 1)
    assert "an unforeseen ValueError" in said
    debugged = space.run("--debug")
    assert debugged.exit_code == 1
    assert "Traceback" in debugged.stderr


def test_an_interrupted_run_says_how_to_go_on(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = LocalEngine.collect, 0

    def collect(self: LocalEngine, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(LocalEngine, "collect", collect)
    result = space.run("--quiet")
    assert result.exit_code == 130
    told = result.stderr.strip().removeprefix("Interrupted; go on with: consilience ").split()
    assert call("status", space.out).stdout.count("stopped") == 1
    resumed = call(*told)
    assert resumed.exit_code == 0, resumed.output
    assert "round 1, opening.read: already answered" in resumed.stderr
    assert (space.out / "result.json").is_file()


# --- reference rows ---------------------------------------------------------------------------


def averaging(space: Workspace, reference: list[str] | None, **settings: Any) -> Path:
    """A study of reference averaging; the response is the row's number."""
    path = space.root / "public.csv"
    if reference is not None:
        path.write_text("\n".join(["y,x", *reference]) + "\n", encoding="utf-8")
    method = settings.pop("method", "reference-averaging")
    parameters = settings.pop("parameters", 'estimator = "ridge"\nmax_rounds = 1\nholdout = 0.0')
    more = settings.pop("more", "")
    return space.write(
        method=method,
        parameters=parameters,
        data=settings.pop("data", 'target = "id"'),
        more=f'[reference]\npath = "public.csv"\n{more}',
        **settings,
    )


def public(n: int = 40) -> list[str]:
    rng = np.random.default_rng(8)
    return [f"{a:.6f},{b:.6f}" for a, b in rng.normal(size=(n, 2)) * 4]


def test_public_rows_are_checked_and_used(space: Workspace) -> None:
    averaging(space, [*public(), "1,"], more="[preparation]\nmissing = 'complete-rows'")
    checked = call("check", space.file)
    assert checked.exit_code == 0, checked.output
    said = " ".join(checked.stdout.split())
    assert "Reference 41 rows read, 40 kept (" in said
    assert "2 columns of rank 2" in said
    done = space.run()
    assert done.exit_code == 0, done.output
    run = load_run(space.out)
    assert np.shape(run.info.parameters["reference"]) == (40, 2)
    # Columns in the order of the study, not of the file.
    b, a = (float(v) for v in public()[0].split(","))
    assert run.info.parameters["reference"][0] == [a, b]
    shown = call("show", space.out)
    assert "reference = 40 rows of 2 numbers" in " ".join(shown.stdout.split())
    report = (space.out / "report.html").read_text(encoding="utf-8")
    assert "40 rows of 2 numbers" in report and "reference=reference" in report
    assert str(a) not in report


def test_pairs_of_columns_are_no_table_of_numbers(space: Workspace) -> None:
    space.table("boston", "sex,arm", [f"{i % 2},{i % 3 % 2}" for i in range(90)])
    space.site("boston", more="sex = [0, 1]\narm = [0, 1]\n[policy]\npreset = 'simulation'\n")
    space.write(
        method="describe",
        parameters='tables = [["sex", "arm"]]',
        features=("sex", "arm"),
        data="levels = { sex = [0, 1], arm = [0, 1] }",
        sites=("boston",),
        more='[preparation]\ncategorical = "onehot"',
    )
    done = space.run()
    assert done.exit_code == 0, done.output
    assert "tables = [['sex', 'arm']]" in " ".join(call("show", space.out).stdout.split())
    report = (space.out / "report.html").read_text(encoding="utf-8")
    assert "rows of 2 numbers" not in report


def test_too_few_or_dependent_reference_rows_are_remarked(space: Workspace) -> None:
    averaging(space, public(1))
    said = " ".join(call("check", space.file).stdout.split())
    assert "has rank 1 and the columns need 2: it has fewer rows than columns" in said
    averaging(space, ["1,2", "2,4", "3,6"])
    said = " ".join(call("check", space.file).stdout.split())
    assert "some of its columns are constant, or combinations of others" in said


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_private_rows_as_reference_rows(space: Workspace, share: float) -> None:
    own = [",".join(line.split(",")[1::-1]) for line in space.lines("lyon")[1:]]
    kept = own[: int(len(own) * share)]
    averaging(space, [*kept, *public(40 - len(kept))], more_sites="quorum = 2")
    checked = call("check", space.file)
    assert checked.exit_code == 4
    words = f"site lyon: {len(kept)} of the 40 reference rows are rows of its table"
    assert words in sentence(checked)
    assert "lyon: Cannot take part" in checked.stdout
    # Whatever the quorum: who can do without this site would still send its rows to the others.
    assert words in refused(space, 4)
    assert not space.out.exists()


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"method": "mean-and-sd", "parameters": ""}, 2, "'mean-and-sd' uses no reference rows"),
        (
            {"parameters": 'estimator = "ridge"\nreference = "normal"'},
            2,
            "given both in [reference] and as 'reference' in [parameters]",
        ),
        ({"more": 'sha256 = "00"'}, 2, "sha256 is not a hash"),
        ({"more": f'sha256 = "{"0" * 64}"'}, 2, "is not the reference file of this study"),
        ({"more": 'query = "SELECT 1"\nurl = "sqlite:x"'}, 2, "needs the path of a file"),
        ({"more": 'seperator = ";"'}, 2, "did you mean 'separator'"),
        ({"more": 'separator = "and"'}, 2, "[reference] separator must be"),
        ({"features": ("x", "y", "z")}, 3, "reference rows: column 'z' is not in"),
    ],
)
def test_a_wrong_reference(
    space: Workspace, settings: dict[str, Any], code: int, says: str
) -> None:
    averaging(space, public(), **settings)
    assert says in refused(space, code)
    assert not space.out.exists()


def test_no_reference_file(space: Workspace) -> None:
    averaging(space, None)
    assert "check path in [reference]" in refused(space, 3)
    approved = call("site", "approve", space.root / "sites" / "lyon.toml", space.file)
    assert approved.exit_code == 2
    assert "or write its sha256 into [reference]" in approved.stderr


def test_reference_rows_that_are_no_numbers(space: Workspace) -> None:
    averaging(space, [*public(), f"{CANARY_TEXT},{CANARY_NUMBER}"])
    assert "reference rows: column 'y' holds text in 1 cells" in refused(space, 3)


def test_a_run_goes_on_with_its_reference_rows_only(space: Workspace) -> None:
    averaging(space, [*public(), ",1.5"], more="[preparation]\nmissing = 'aggregated-mean'")
    path = space.root / "public.csv"
    kept = path.read_bytes()
    space.table("osaka", "x,y,id", ["1,2,3"])
    stopped = space.run()
    assert stopped.exit_code == 8, stopped.output
    before = (space.out / "run.json").read_bytes()
    path.write_bytes(kept.replace(b",1.5", b",1.6"))
    said = sentence(space.run("--resume"))
    assert "reference file public.csv does not hold the rows with which the run" in said
    path.unlink()
    said = sentence(space.run("--resume"))
    assert "public.csv: check path in [reference]" in said
    path.write_bytes(kept)
    # The same rows again, with a missing cell among them: the same refusal as at first.
    assert space.run("--resume").exit_code == 8
    assert (space.out / "run.json").read_bytes() == before


def test_reference_rows_are_for_rows_only(space: Workspace) -> None:
    space.write(
        method="assistance-test",
        features=(),
        head='partition = "columns"',
        data='id = "id"',
        more_sites='roles = { boston = "initiator" }',
        more='[reference]\npath = "public.csv"',
    )
    assert "there are no reference rows: leave [reference] out" in refused(space, 2)


def test_an_approved_study_with_reference_rows_runs(space: Workspace) -> None:
    averaging(space, public())
    for site in ("boston", "lyon", "osaka"):
        done = call("site", "approve", space.root / "sites" / f"{site}.toml", space.file)
        assert done.exit_code == 0, done.output
    assert space.run().exit_code == 0
    # Other rows are another study.
    averaging(space, public(41))
    checked = call("check", space.file)
    assert checked.exit_code == 4
    assert "the steward has not approved the study" in sentence(checked)


@pytest.mark.parametrize("private", [False, True])
def test_reference_rows_reach_sites_elsewhere_unless_they_are_theirs(
    tmp_path: Path, private: bool
) -> None:
    """Through a folder; both stewards approved the study by a hash known without the file."""
    space = FolderSpace(tmp_path, "reference-averaging")
    for i, name in enumerate(("boston", "leeds")):
        rows = np.random.default_rng(i).normal(size=(80, 3))
        lines = [",".join(f"{v:.6f}" for v in row) for row in rows]
        (tmp_path / name / "table.csv").write_text("\n".join(["x,y,z", *lines]) + "\n")
    rows = np.random.default_rng(9).normal(size=(40, 3))
    public_rows = ["x,y,z", *(",".join(f"{v:.6f}" for v in row) for row in rows)]
    own = (tmp_path / "leeds" / "table.csv").read_text().splitlines()[:31]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([*own, *public_rows[31:]] if private else public_rows) + "\n")
    text = space.study_toml.read_text().replace("[data]\n", '[data]\ntarget = "z"\n')
    text = text.replace("[sites]\n", '[parameters]\nestimator = "ridge"\nmax_rounds = 1\n[sites]\n')
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    text += f'[reference]\npath = "rows.csv"\nsha256 = "{sha256}"\n'
    space.study_toml.write_text(text)
    for name in ("boston", "leeds"):
        site = space.site_toml(name)
        site.write_text(f"{site.read_text()}[policy]\nforeign_models = true\n")
        copy = tmp_path / name / "study.toml"  # without the rows beside it
        copy.write_text(text)
        assert call("site", "approve", space.site_toml(name), copy).exit_code == 0
    space.coordinator.save(tmp_path / "coordinator")
    words = ["run", space.study_toml, "--engine", "folder", "--folder", space.folder]
    words += ["--key", tmp_path / "coordinator", "--out", tmp_path / "out"]
    with space.watching("boston", "leeds"):
        done = call(*words)
    if not private:
        assert done.exit_code == 0, done.output
        return
    assert done.exit_code == 2
    assert "rows of the table of site leeds" in sentence(done)
    steps = [line.step for line in read_lines(tmp_path / "out")]
    assert steps[-1] == "offer"


# --- names without end ------------------------------------------------------------------------

ENDLESS = "n" * 3000


@pytest.mark.parametrize(
    "words",
    [
        [ENDLESS],
        [f"--{ENDLESS}"],
        ["site", ENDLESS],
        ["run", ENDLESS],
        ["status", ENDLESS],
        ["show", ENDLESS],
        ["methods", ENDLESS],
        ["site", "queue", ENDLESS],
    ],
    ids=lambda words: "-".join(word[:8] for word in words),
)
def test_what_was_given_is_not_said_whole(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert len(result.stderr) < 800 and "n" * 300 not in result.stderr


def test_a_column_with_an_endless_name_is_not_said_whole(space: Workspace) -> None:
    space.write(features=("x", ENDLESS))
    said = refused(space, 3)
    assert len(said) < 800 and "n" * 50 in said and "n" * 300 not in said
