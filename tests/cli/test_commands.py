"""Every command as a new user calls it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from consilience.cli.console import clean
from consilience.cli.demo import DEMOS, demo_files
from consilience.cli.main import ladder
from consilience.engines.federation import load_run
from consilience.engines.folder import watch
from consilience.parameters import parameter_docs
from consilience.protocol import BUILT_IN
from consilience.sites.loaders import file_site
from consilience.sites.study import SiteFile, Study
from consilience.wire.signing import SigningKey
from tests.cli.workspace import SITES, Workspace, call, ran_once, sentence, without_report


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Ran once, to be read only."""
    return ran_once(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def ran(whole: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return whole.copied(tmp_path)


# --- run --------------------------------------------------------------------------------------


def test_run_says_the_answer_and_where_things_are(space: Workspace) -> None:
    result = call("run", space.file)
    assert result.exit_code == 0, result.output
    (path,) = (space.root / "runs").iterdir()
    info = json.loads((path / "run.json").read_text())
    assert path.name == info["run"]
    assert info["seed"] == 3
    assert result.stdout.startswith("120 rows.")
    assert re.search(rf"Directory +runs/{info['run']}\n", result.stdout)
    assert re.search(rf"Report +runs/{info['run']}/report.html\n", result.stdout)
    assert (path / "report.html").stat().st_size > 1000
    assert "round 2, sums: 3 of 3 sites (boston, lyon, osaka)" in result.stderr


def test_run_agrees_with_the_pooled_table(ran: Workspace) -> None:
    rows = [line.split(",") for site in SITES for line in ran.lines(site)[1:]]
    result = load_run(ran.out).result
    assert result.n == len(rows)  # type: ignore[attr-defined]
    pooled = sum(float(row[0]) for row in rows) / len(rows)
    assert result.mean[0] == pytest.approx(pooled, rel=1e-12)  # type: ignore[attr-defined]


def test_json_is_one_object_and_nothing_else(space: Workspace) -> None:
    result = space.run("--json", "--quiet", "--seed", "11")
    assert result.exit_code == 0
    assert result.stderr == ""
    said = json.loads(result.stdout)
    assert said["seed"] == 11
    assert said["directory"] == str(space.out)
    assert Path(said["report"]).is_file()
    assert said["result"]["n"] == 120
    assert len(said["result"]["mean"]) == 2
    assert json.loads(call("show", space.out, "--json").stdout) == said


def test_json_names_what_is_too_large(space: Workspace) -> None:
    space.write(method="ensemble-clustering", parameters="n_clusters = 2\nstability_pairs = 0")
    said = json.loads(space.run("--json").stdout)
    assert said["result"]["n_clusters"] == 2
    assert said["result"]["vote_share"] is None  # not a number, which JSON lacks
    assert set(said["left_out"]).isdisjoint(said["result"])


def test_same_seed_same_bytes(ran: Workspace) -> None:
    other = ran.root / "runs" / "other"
    assert call("run", ran.file, "--out", other).exit_code == 0
    for name in ("result.json", "result.npz"):
        assert (other / name).read_bytes() == (ran.out / name).read_bytes()


def test_resume_finds_the_run_that_stopped(space: Workspace) -> None:
    assert call("run", space.file).exit_code == 0
    (path,) = (space.root / "runs").iterdir()
    result = call("run", space.file, "--resume")
    assert result.exit_code == 7
    assert "no run of this study in runs/ can be resumed" in sentence(result)
    content = (path / "result.json").read_bytes()
    (path / "result.json").unlink()
    assert call("run", space.file, "--resume").exit_code == 0
    assert (path / "result.json").read_bytes() == content


def test_site_files_elsewhere(space: Workspace) -> None:
    (space.root / "sites").rename(space.root / "there")
    assert call("check", space.file).exit_code == 2
    assert call("check", space.file, "--sites", "there").exit_code == 0
    assert space.run("--sites", "there").exit_code == 0


def test_a_study_that_follows_a_run(space: Workspace) -> None:
    space.write(method="ensemble-clustering", parameters="n_clusters = 2\nstability_pairs = 0")
    with without_report():
        assert space.run().exit_code == 0
    run_id = json.loads((space.out / "run.json").read_text())["run"]
    first = load_run(space.out)
    space.write(
        method="ensemble-clustering",
        parameters="n_clusters = 2\nstability_pairs = 0",
        more=f'[follows]\nrun = "{run_id}"',
    )
    later = space.root / "runs" / "later"
    result = call("run", space.file, "--out", later)
    assert result.exit_code == 0, result.output
    centres = load_run(later).result.centres  # type: ignore[attr-defined]
    assert (centres == first.result.centres).all()  # type: ignore[attr-defined]
    assert "fit" not in {line.step for line in load_run(later).transcript}
    elsewhere = call("run", space.file, "--out", space.root / "new" / "later")
    assert elsewhere.exit_code == 7
    assert f"there is no run {run_id!r} here or in" in sentence(elsewhere)


def test_a_run_through_a_folder(space: Workspace) -> None:
    coordinator, keys = SigningKey.generate(), {name: SigningKey.generate() for name in SITES}
    coordinator.save(space.root / "coordinator")
    listed = "\n".join(f'{name} = "{key.public}"' for name, key in keys.items())
    space.write(more=f'[sites.keys]\n{listed}\n[coordinator]\nkey = "{coordinator.public}"')
    shared = space.root / "shared"
    words = ("--engine", "folder", "--folder", shared, "--key", space.root / "coordinator")
    assert space.run(*words).exit_code == 9
    shared.mkdir()
    wrong = space.run("--engine", "folder", "--folder", shared, "--key", space.root / "nokey")
    assert wrong.exit_code == 2
    stop = threading.Event()
    threads = []
    for name, key in keys.items():
        site = file_site(SiteFile.load(space.root / "sites" / f"{name}.toml"))
        settings = {"key": key, "coordinators": [coordinator.public], "stop": stop, "poll": 0.02}
        threads.append(threading.Thread(target=watch, args=(site, shared), kwargs=settings))
    for thread in threads:
        thread.start()
    try:
        result = space.run(*words)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert result.exit_code == 0, result.output
    assert "round 2, sums: osaka" in result.stderr
    local = space.root / "runs" / "local"
    assert call("run", space.file, "--out", local).exit_code == 0
    assert (local / "result.npz").read_bytes() == (space.out / "result.npz").read_bytes()


# --- looking at runs --------------------------------------------------------------------------


def test_show(ran: Workspace) -> None:
    folder = ran.out / "tables"
    written = call("show", ran.out, "--tables", folder).stdout.split()
    assert [Path(name).stem for name in written] == list(load_run(ran.out).result.frames)
    assert (folder / "moments.csv").read_text().startswith("column,mean,sd,rows\n")
    told = json.loads(call("show", ran.out, "--json").stdout)["tables"]["moments"]
    assert set(told) == {"column", "mean", "sd", "rows"}
    assert "[1] Consilience" in call("show", ran.out, "--methods").stdout
    said = call("show", ran.out).stdout
    assert said.startswith("120 rows.")
    assert re.search(r"^column\s*$", said, re.MULTILINE) and "boston (strict)" in said
    for what in ("Parameters +none", "Seed +3", "numpy \\d", "mean-and-sd version 4"):
        assert re.search(what, said), what


def test_transcript(ran: Workspace) -> None:
    said = call("transcript", ran.out).stdout
    assert re.search(r"2 +sums +lyon +coordinator +totals +aggregate +2 +\d+ +released: sum", said)
    assert re.search(r"3 +deviations +coordinator +osaka +mean", said)
    assert re.search(r"released: sum +open *$", said, re.MULTILINE), "one process carried it"
    one = call("transcript", ran.out, "--site", "lyon").stdout
    assert "osaka" not in one
    assert call("transcript", ran.out, "--site", "rome").exit_code == 2
    facts = json.loads(call("transcript", ran.out, "--json").stdout)
    left = [e for e in facts["transcript"] if e["site"] == "lyon" and e["direction"] == "from-site"]
    total = sum(e["bytes"] for e in left if e["disclosure"] == "aggregate")
    (row,) = re.findall(r"^lyon +\S+ +([\d,]+) ", said, re.MULTILINE)
    assert int(row.replace(",", "")) == total


def test_an_altered_transcript_is_seen(ran: Workspace) -> None:
    intact = call("transcript", ran.out, "--verify")
    assert intact.exit_code == 0
    assert "is intact" in intact.stdout
    path = ran.out / "transcript.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], *lines[5:]]) + "\n")
    broken = call("transcript", ran.out, "--verify")
    assert broken.exit_code == 7
    assert "breaks at line 5" in sentence(broken)


def test_report_is_written_again(ran: Workspace) -> None:
    (ran.out / "report.html").unlink()
    assert "not written yet" in call("show", ran.out).stdout
    result = call("report", ran.out, "--open", "no")
    assert result.stdout.strip() == str(ran.out / "report.html")
    assert (ran.out / "report.html").is_file()


def test_purge_keeps_the_transcript(ran: Workspace) -> None:
    assert call("purge", ran.out).exit_code == 0
    assert not (ran.out / "journal").exists()
    assert call("transcript", ran.out, "--verify").exit_code == 0
    assert call("show", ran.out).exit_code == 0
    (ran.out / "result.json").unlink()
    unfinished = call("purge", ran.out)
    assert unfinished.exit_code == 7
    assert "has not ended" in sentence(unfinished)
    assert call("purge", ran.out, "--force").exit_code == 0


def test_status_by_directory_by_id_and_of_all(space: Workspace) -> None:
    assert "There are no runs" in call("status").stdout
    assert space.run().exit_code == 0
    run_id = json.loads((space.out / "run.json").read_text())["run"]
    for words in ([space.out], [run_id], ["one"]):
        said = call("status", *words).stdout
        assert re.search(r"State +finished", said)
        assert re.search(r"Answered +boston, lyon, osaka", said)
    assert "runs/one" in call("status").stdout
    assert call("status", "nowhere").exit_code == 7


# --- check, methods, demo ---------------------------------------------------------------------


def test_check_reports_by_site_and_runs_nothing(space: Workspace) -> None:
    header, *rows = space.lines("lyon")
    space.table("lyon", header, ["?,1,200"] * 10 + rows)
    space.site("lyon", more='[columns]\nmissing_codes = { x = "?" }\n')
    said = call("check", space.file)
    assert said.exit_code == 3
    assert "lyon: Cannot take part: column 'x' has no value in 10 of 50 rows" in " ".join(
        said.stdout.split()
    )
    space.write(more='[preparation]\nmissing = "complete-rows"')
    said = call("check", space.file)
    assert said.exit_code == 0, said.output
    assert re.search(r"^lyon +50 +40 +strict +10 +can take part$", said.stdout, re.MULTILINE)
    assert "number, 10 (20%)" in said.stdout
    assert not (space.root / "homes").exists()
    assert not (space.root / "runs").exists()


def test_a_steward_checks_with_nobody_elses_files(space: Workspace) -> None:
    """Quorum, keys and hash are those of the study as it was sent."""
    own = space.root / "own.toml"
    own.write_text((space.root / "sites" / "lyon.toml").read_text().replace("../", ""))
    shutil.rmtree(space.root / "sites")
    assert call("check", space.file).exit_code == 2
    said = call("check", space.file, "--site", own)
    assert said.exit_code == 0, said.output
    assert "3, of which 3 must answer" in said.stdout and "Site lyon can take part." in said.stdout
    assert Study.load(space.file).hash() in said.stdout and "osaka" not in said.stdout
    own.write_text(own.read_text().replace('"lyon"', '"kyoto"', 1))
    assert "does not name the site 'kyoto': it has" in sentence(
        call("check", space.file, "--site", own)
    )


def test_check_names_differences_between_sites(space: Workspace) -> None:
    header, *rows = space.lines("lyon")
    space.table("lyon", header, [*["many,1,200"] * 10, *rows])
    said = call("check", space.file).stdout
    assert "Column x is number at boston, text in 10 rows at lyon, number at osaka." in said


def test_methods_and_each_of_them() -> None:
    said = call("methods").stdout
    for name in BUILT_IN:
        assert re.search(rf"^{name} ", said, re.MULTILINE)
        one = call("methods", name)
        assert one.exit_code == 0
        assert "When a site does not answer" in one.stdout
        assert "Leakage:" not in one.stdout
    clustering = call("methods", "ensemble-clustering").stdout
    assert "n_init : int, default 20" in clustering
    assert "coordinator                       site" in clustering
    assert call("methods", "none").exit_code == 2


def test_docstrings_are_read() -> None:
    doc = "Do.\n\nParameters\n----------\na, b : int\n    Two\n    lines.\nc : str\n"
    doc += "\nRaises\n------\nE"
    assert parameter_docs(doc) == {
        "a": ("int", "Two lines."),
        "b": ("int", "Two lines."),
        "c": ("str", ""),
    }
    assert ladder("Q\n\nAbsence: x\n\nLeakage: y") == "Q"


LONG_DEMOS = (
    "cluster-count",
    "community-bayes",
    "federated-community-bayes",
    "federated-sparse-qda",
    "latent-class-regression",
    "matrix-completion",
    "meta-clustering",
    "reference-averaging",
    "sequences",
    "sparse-qda",
)


def demo_leaves_runs(method: str, n_runs: int) -> None:
    """Call the demonstration in this folder and read what it left."""
    result = call("demo", method)
    assert result.exit_code == 0, result.output
    runs = sorted(path.parent for path in Path().glob("consilience-demo/runs/*/report.html"))
    assert len(runs) == n_runs
    presets = {
        "patients": "consortium",
        "transplants": "consortium",
        "clinic": "simulation",
        "cellar": "simulation",
    }
    preset = presets.get(DEMOS[method].tables, "strict")
    assert set(load_run(runs[0]).presets.values()) == {preset}
    assert call("check", f"consilience-demo/{method}.toml").exit_code == 0
    if n_runs == 1:
        leads_to_studies_that_run(runs[0], "diagnosis" if method == "describe" else None)


def leads_to_studies_that_run(run: Path, target: str | None) -> None:
    """What follows from the run passes ``consilience check``, once policies grant what was said."""
    words = ["next", run, *(["--target", target] if target else [])]
    told = json.loads(call(*words, "--json").stdout)
    assert told["studies"] or told["said"]
    for i, one in enumerate(told["studies"], 1):
        file = Path(f"next-{i}.toml")
        result = call(*words, "--take", i, "--out", f"consilience-demo/{file}")
        assert result.exit_code == 0, result.output
        lines = {text.partition(": ")[2] for text in one["policies"]}
        assert one["checked"] and one["able"] == (not lines), one["policies"]
        before = {path: path.read_text() for path in Path("consilience-demo/sites").iterdir()}
        if lines:
            # Without the consent it is refused: what is asked of stewards is needed.
            assert lines == {"foreign_models = true"}
            if one["parameters"].get("fit") != "one-shot":
                assert call("check", f"consilience-demo/{file}").exit_code == 4
            for path, text in before.items():
                path.write_text(f"{text}\nforeign_models = true\n")  # [policy] comes last
        checked = call("check", f"consilience-demo/{file}")
        assert checked.exit_code == 0, checked.output
        for path, text in before.items():
            path.write_text(text)


@pytest.mark.parametrize("method", sorted(set(DEMOS) - set(LONG_DEMOS)))
def test_demo_runs_twice_and_its_files_run(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo_leaves_runs(method, 1)
    demo_leaves_runs(method, 2)
    assert call("run", f"consilience-demo/{method}.toml").exit_code == 0


@pytest.mark.parametrize("method", LONG_DEMOS)
def test_long_demo_runs(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    demo_leaves_runs(method, 1)


@pytest.mark.parametrize("method", sorted(DEMOS))
def test_what_a_demo_points_to_can_stand_beside_it(method: str) -> None:
    """A demonstration that is named "to go on" finds no file of this one in its way."""
    for _, command in DEMOS[method].to_go_on:
        words = command.split()
        if words[:2] != ["consilience", "demo"]:
            continue
        mine, others = demo_files(method), demo_files(words[2])
        apart = "--folder" in words and words[words.index("--folder") + 1] != "FOLDER"
        clash = [name for name in mine if name in others and mine[name] != others[name]]
        assert apart or not clash, (command, clash)


def test_show_puts_first_what_a_reader_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # in a narrow terminal the table is turned
    for method, head in (
        ("assisted-glm", r"name +estimate +error +z +p_value +status +factor +alone +alone_error"),
        ("assistance-test", r"partner +test .*\n0 +laboratory +score "),
    ):
        assert call("demo", method, "--folder", method).exit_code == 0
        said = call("show", next(tmp_path.glob(f"{method}/runs/*"))).stdout
        assert re.search(head, said), said


def test_demo_replaces_no_foreign_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "consilience-demo" / "sites" / "north.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    result = call("demo", "mean-and-sd")
    assert result.exit_code == 7
    assert "is not what this demonstration writes" in sentence(result)
    assert [p for p in (tmp_path / "consilience-demo").rglob("*") if p.is_file()] == [mine]
    assert mine.read_text() == "mine"
    assert call("demo", "mean-and-sd", "--folder", "other").exit_code == 0
    assert call("demo", "no-such").exit_code == 2


# --- the program ------------------------------------------------------------------------------


def test_clean_leaves_letters_and_shows_codes() -> None:
    assert clean("Zürich [bold]") == "Zürich [bold]"
    assert clean("a\x1b[0m\n\u2028\u202e\x9b") == "a\\x1b[0m\\x0a\\u2028\\u202e\\x9b"


def test_clean_cuts_a_name_without_end() -> None:
    found = clean(f"column {'n' * 3000} is said to be odd")
    assert len(found) < 200 and found.startswith("column nnn") and found.endswith("to be odd")


def test_version() -> None:
    assert re.fullmatch(r"consilience \S+ \(Python [\d.]+\)\n", call("--version").stdout)


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["check", "-h"], ["site", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys, json\nfrom consilience.cli.main import app\n"
        f"try:\n    app({words!r})\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"numpy", "scipy", "sklearn", "pandas", "matplotlib", "pyarrow", "numba", "pydantic"}
    assert loaded & heavy == set()
    assert "typer" in loaded


def test_progress_on_a_terminal(space: Workspace) -> None:
    """The live display goes to the error stream; the answer to the other one, untouched."""
    parent, child = os.openpty()
    code = f"from consilience.cli.main import app; app(['run', {str(space.file)!r}, '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=child,
        env={**os.environ, "TERM": "xterm"},
        check=True,
    )
    os.close(child)
    shown = os.read(parent, 1 << 16).decode()
    os.close(parent)
    assert json.loads(done.stdout)["result"]["n"] == 120
    assert "round " in shown
    assert "\x1b[" in shown


def test_a_closed_pipe_is_quiet(ran: Workspace) -> None:
    code = f"from consilience.cli.main import app; app(['transcript', {str(ran.out)!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()  # type: ignore[union-attr]
        said = process.stderr.read()  # type: ignore[union-attr]
    assert b"Traceback" not in said
    assert b"Error" not in said


def test_lines_of_progress_name_few_of_many_sites() -> None:
    from consilience.cli.run import shortened

    assert shortened(["b", "a"]) == "a, b"
    many = [f"s{i}" for i in range(9)]
    assert shortened([*many, "odd (refused)"]) == "odd (refused), s0, s1, s2, s3, s4 and 4 more"
