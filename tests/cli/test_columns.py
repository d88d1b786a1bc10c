"""Studies over columns from their files: check, partner keys, and whole runs on both engines."""

from __future__ import annotations

import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result

from consilience.engines.federation import Run, load_run
from consilience.engines.folder import watch
from consilience.sites.loaders import file_site
from consilience.sites.site_store import DiskStore
from consilience.sites.study import SiteFile
from consilience.wire.keys import load_partner_key, new_partner_key, save_partner_key
from tests.cli.columns_workspace import FEATURES, POLICY, SITES, ColumnsWorkspace
from tests.cli.workspace import call, sentence, without_report


@pytest.fixture
def space(tmp_path: Path) -> ColumnsWorkspace:
    return ColumnsWorkspace(tmp_path)


# --- partner-key ------------------------------------------------------------------------------


def test_a_partner_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "partner.key"
    made = call("site", "partner-key", path)
    assert made.exit_code == 0
    assert len(made.stdout.splitlines()) == 1 and "[partners] key" in made.stdout
    assert len(load_partner_key(path)) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() not in made.output
    before = path.read_bytes()
    again = call("site", "partner-key", path)
    assert again.exit_code == 2
    assert "exists already and is not overwritten" in again.stderr
    assert len(again.stderr.splitlines()) == 1
    assert path.read_bytes() == before


# --- check ------------------------------------------------------------------------------------


def words(result: Result) -> str:
    return " ".join(result.stdout.split())


def test_check_reads_each_sites_own_columns(space: ColumnsWorkspace) -> None:
    said = call("check", space.file)
    assert said.exit_code == 0, said.output
    assert re.search(r"^lab +60 +60 +consortium +10 +can take part$", said.stdout, re.MULTILINE)
    for site in SITES:
        assert f"{site}: 60 rows have a counterpart at every site." in words(said)
        for name in FEATURES[site]:
            found = re.findall(rf"^(\w+) +{name} ", said.stdout, re.MULTILINE)
            assert found == [site], "a column is said of its own site, and of no other"
    assert "Column " not in said.stdout, "columns are not compared"
    assert "The study can run." in said.stdout
    assert not (space.root / "homes").exists()


@pytest.mark.parametrize(
    ("site", "parameters", "row", "remark"),
    [
        ("lab", "", r"lab +all of its columns, at once +nothing +1 +exact", "to the initiator"),
        (
            "clinic",
            "response = 'share'",
            r"lab +one direction +all of its columns, and the response +1 +exact",
            "to the partner, with the response",
        ),
        (
            "",
            "response = 'share'",
            r"lab +one direction a round +one direction a round, and the response +up to 30 +none",
            "",
        ),
    ],
)
def test_check_says_who_reveals_what(
    space: ColumnsWorkspace, site: str, parameters: str, row: str, remark: str
) -> None:
    """And asks the one whose columns will go at once whether that is meant."""
    for one in SITES:
        more = "share_response = true\n" if one == "clinic" and parameters else ""
        more += 'max_revealed_rank = "full"\n' if one == site else ""
        space.site(one, more=POLICY + more)
    space.write(parameters=parameters)
    text = space.file.read_text(encoding="utf-8")
    space.file.write_text(text.replace("assistance-test", "assisted-glm"), encoding="utf-8")
    said = call("check", space.file)
    assert said.exit_code == 0, said.output
    assert re.search(row, said.stdout), said.stdout
    asked = f"may send all of its columns {remark} in one message"
    assert (f"{site}: The policy lets all" in words(said) and asked in words(said)) == bool(site)


def test_check_says_that_a_response_is_missing(space: ColumnsWorkspace) -> None:
    space.write(parameters="")
    text = space.file.read_text(encoding="utf-8")
    space.file.write_text(text.replace("assistance-test", "assisted-glm"), encoding="utf-8")
    assert "lab needs the response to fit its columns: set response" in cannot(space)


def cannot(space: ColumnsWorkspace, code: int = 2) -> str:
    """The one sentence of a check that fails, and of a run that does not begin."""
    checked = call("check", space.file)
    assert checked.exit_code == code, checked.output
    said = sentence(checked)
    done = space.run()
    assert done.exit_code == code and sentence(done) == said
    assert not space.out.exists()
    return said


def test_check_without_a_partner_key(space: ColumnsWorkspace) -> None:
    path = space.toml("lab")
    path.write_text(path.read_text().replace('[partners]\nkey = "../keys/partner.key"\n', ""))
    assert "site lab: the site has no partner key" in cannot(space)


def test_check_with_the_file_of_the_key_missing(space: ColumnsWorkspace) -> None:
    space.key.unlink()
    assert "partner key" in cannot(space) and "partner-key FILE" in cannot(space)


def test_check_with_a_key_that_others_may_read(space: ColumnsWorkspace) -> None:
    space.key.chmod(0o644)
    assert "chmod 600" in cannot(space)


def test_check_with_different_keys(space: ColumnsWorkspace) -> None:
    save_partner_key(space.root / "keys" / "other.key", new_partner_key())
    path = space.toml("lab")
    path.write_text(path.read_text().replace("partner.key", "other.key"))
    assert "'clinic' and 'lab' have different partner keys" in cannot(space)


def test_check_counts_ids_by_site(space: ColumnsWorkspace) -> None:
    header, *lines = space.lines("lab")
    lines[0] = "," + lines[0].split(",", 1)[1]
    lines[1] = lines[2]
    space.table("lab", header, lines)
    said = words(call("check", space.file))
    assert "lab: 1 rows have no id and are left out." in said
    assert "lab: 2 rows repeat an id and are left out." in said
    assert "clinic: 1 rows" not in said and "clinic: 2 rows" not in said
    assert "clinic: 57 rows have a counterpart at every site." in said
    assert "p0" not in said, "ids are counted, not shown"


def test_check_with_too_few_rows_in_common(space: ColumnsWorkspace) -> None:
    header, *lines = space.lines("lab")
    space.table("lab", header, [*lines[:9], *(f"x{line}" for line in lines[9:])])
    assert "9 rows are common to all sites and at least 10 are needed" in cannot(space, 3)


@pytest.mark.parametrize(
    ("site", "old", "new", "says"),
    [
        ("lab", '"iron"]', ']\ntarget = "iron"', "'partner' and its [columns] names a target"),
        ("clinic", 'target = "relapse"\n', "", "'initiator' and its [columns] names no target"),
        ("lab", '"iron"]', ']\ncluster = "iron"', "the initiator, and nobody else, has one"),
    ],
)
def test_check_of_roles(space: ColumnsWorkspace, site: str, old: str, new: str, says: str) -> None:
    path = space.toml(site)
    assert old in path.read_text()
    text = path.read_text().replace(old, new).replace(", iron = [0, 1]", "")
    path.write_text(text)
    assert says in cannot(space)


def test_check_of_columns(space: ColumnsWorkspace) -> None:
    space.site("lab", columns='rename = { patient = "pid" }\nfeatures = ["glucose", "zinc"]\n')
    assert "site lab: column 'zinc' is not in" in cannot(space, 3)
    space.site("lab", columns='rename = { patient = "pid" }\n')
    assert "site lab: the site lists no features" in cannot(space)
    space.site("lab")
    header, *lines = space.lines("clinic")
    space.table(
        "clinic", header, [lines[0].replace("no", "rarely").replace("yes", "rarely"), *lines[1:]]
    )
    said = cannot(space, 3)
    assert "site clinic: column 'smoker' holds values outside" in said
    assert "[columns.levels]" in said and "rarely" not in said


def test_check_of_consent_to_ids(space: ColumnsWorkspace) -> None:
    space.site("lab", more='[policy]\npreset = "strict"\n')
    assert "the policy lets no hashed ids leave (share_ids)" in cannot(space, 4)


@pytest.mark.parametrize(
    ("site", "policy", "parameters", "says"),
    [
        ("clinic", "", "response = 'share'", "lets none leave: the steward may grant share_resp"),
        ("clinic", "", "response = 'masked'", "does not let a masked response leave (noised)"),
        (
            "clinic",
            "noised = true\nmax_epsilon = 2.0\n",
            "response = 'masked'\nflip = 0.1",
            "a masked response costs epsilon 2.19722, and 2 of 2 is left on this data",
        ),
        ("lab", "per_record = false\n", "", "lets no sketch without noise leave (per_record)"),
        ("lab", "", "epsilon = 1.0", "does not let a sketch with noise leave (noised)"),
        ("lab", "noised = true\n", "epsilon = 1.0", "costs epsilon 1, and 0 of 0 is left"),
    ],
)
def test_check_of_what_the_method_will_ask(
    space: ColumnsWorkspace, site: str, policy: str, parameters: str, says: str
) -> None:
    space.site(site, more=POLICY + policy)
    space.write(parameters=parameters)
    if "response" in parameters:
        text = space.file.read_text(encoding="utf-8")
        space.file.write_text(text.replace("assistance-test", "assisted-glm"), encoding="utf-8")
    said = cannot(space, 4)
    assert said.count(". ") == 0 and says in said


def test_check_of_bounds_that_noise_needs(space: ColumnsWorkspace) -> None:
    more = f"{POLICY}noised = true\nmax_epsilon = 3.0\n"
    space.site("lab", more=more)
    text = space.toml("lab").read_text(encoding="utf-8")
    bounds = next(line for line in text.splitlines() if line.startswith("bounds"))
    space.toml("lab").write_text(text.replace(bounds, "bounds = { crp = [0, 1] }"))
    space.write(parameters="epsilon = 1.0")
    assert "give bounds of glucose, iron in [columns] of the site file" in cannot(space, 4)


# --- runs -------------------------------------------------------------------------------------


@contextmanager
def watched(space: ColumnsWorkspace) -> Iterator[None]:
    """Each site, from its file, watches the folder in a thread of its own."""
    stop = threading.Event()

    def serve(name: str) -> None:
        file = SiteFile.load(space.toml(name))
        watch(
            file_site(file),
            space.folder,
            key=space.keys[name],
            coordinators=file.trust.coordinators,
            stop=stop,
            poll=0.02,
        )

    threads = [threading.Thread(target=serve, args=(name,)) for name in SITES]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def in_folder(space: ColumnsWorkspace) -> Result:
    with watched(space):
        key = space.root / "keys" / "coordinator"
        return space.run("--engine", "folder", "--folder", space.folder, "--key", key)


def check_run(space: ColumnsWorkspace) -> Run:
    """What every run of this study leaves, and what it must not."""
    run = load_run(space.out)
    result = run.result
    assert result.partners == ("lab",) and result.n_records == 60  # type: ignore[attr-defined]
    assert result.revealed == {"lab": 2} and result.n_columns == {"lab": 3}  # type: ignore[attr-defined]
    assert {line.shape for line in run.transcript if line.field == "z"} == {"sealed"}
    content = b"".join(p.read_bytes() for p in space.out.rglob("*") if p.is_file())
    content += b"".join(p.read_bytes() for p in space.folder.rglob("*") if p.is_file())
    for secret in (*FEATURES["lab"], *FEATURES["clinic"], "relapse", "p001", "pid"):
        assert not re.search(rb"\b" + secret.encode() + rb"\b", content), secret
    for site in SITES:
        home = DiskStore(space.root / "homes" / site)
        said = " ".join(str(line.get("said")) for line in home.read_log())
        assert "60 rows have a counterpart at every site; 0 of this site's have not." in said
    assert "revealed" in DiskStore(space.root / "homes" / "lab").ledger("default")
    return run


@pytest.mark.parametrize("engine", ["local", "folder"])
def test_a_study_from_its_files(space: ColumnsWorkspace, engine: str) -> None:
    done = in_folder(space) if engine == "folder" else space.run()
    assert done.exit_code == 0, done.output
    assert "columns of lab" in done.stdout
    run = check_run(space)
    assert run.info.settings["at"] == "third-party"
    assert (space.out / "report.html").is_file()


def test_clusters_and_an_offset_from_files(space: ColumnsWorkspace) -> None:
    space.site(
        "clinic",
        columns='features = ["smoker"]\ntarget = "relapse"\ncluster = "ward"\noffset = "age"\n'
        'levels = { smoker = ["no", "yes"] }\n',
    )
    header, *lines = space.lines("clinic")
    space.table("clinic", f"{header},ward", [f"{line},w{i % 9}" for i, line in enumerate(lines)])
    assert call("check", space.file).exit_code == 0
    assert space.run().exit_code == 0
    result = load_run(space.out).result
    assert (result.n_clusters, result.offset) == (9, True)
    assert "60 rows in 9 clusters" in result.summary()
    assert "9 clusters" in (space.out / "report.html").read_text(encoding="utf-8")


def test_directions_outlive_processes_and_engines(space: ColumnsWorkspace) -> None:
    """What the lab drew is in its home: another engine, another run, the same figures."""
    out = space.root / "runs" / "two"
    with without_report():
        assert in_folder(space).exit_code == 0
        first = check_run(space).result
        assert call("run", space.file, "--out", out).exit_code == 0
    second = load_run(out).result
    for kind in ("score", "wald"):
        ours, theirs = (r.tests["lab"][kind]["statistic"] for r in (first, second))  # type: ignore[attr-defined]
        assert ours == pytest.approx(theirs, rel=1e-9)
    assert second.revealed == {"lab": 2}  # type: ignore[attr-defined]


def test_noise_from_files(space: ColumnsWorkspace) -> None:
    pytest.importorskip("opendp")
    space.site("lab", more=f"{POLICY}noised = true\nmax_epsilon = 3.0\n")
    space.write(parameters="n_directions = 2\nepsilon = 3.0")
    for name in ("one", "two"):
        done = call("run", space.file, "--out", space.root / "runs" / name)
        assert done.exit_code == 0, done.output
        assert "at epsilon 3" in words(done)
    ledger = DiskStore(space.root / "homes" / "lab").ledger("default")
    assert list(ledger["epsilon"].values()) == [3.0]
    assert call("check", space.file).exit_code == 0, "what was drawn before passes"
    # Another price than what is left: no run begins.
    space.write(parameters="n_directions = 2\nepsilon = 1.0")
    done = call("run", space.file, "--out", space.root / "runs" / "three")
    assert done.exit_code == 4
    assert "costs epsilon 1, and 0 of 3 is left on this data" in sentence(done)


def test_an_approved_study_over_columns(space: ColumnsWorkspace) -> None:
    for site in SITES:
        assert call("site", "approve", space.toml(site), space.file).exit_code == 0
    with without_report():
        assert space.run().exit_code == 0
    space.write(parameters="n_directions = 1")
    done = call("run", space.file, "--out", space.root / "runs" / "two")
    assert done.exit_code == 4 and "has not approved" in sentence(done)
