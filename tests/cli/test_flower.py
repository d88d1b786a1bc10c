"""``consilience flower``: what can be seen without a server."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from consilience.cli.run import tell_seen
from consilience.engines.flower import Desk, FlowerEngine, _flwr, join
from consilience.engines.flower.join import AWAY, Seen
from consilience.engines.flower.keys import make_federation
from consilience.engines.study_check import SiteCheck, told_kinds
from consilience.sites.loaders import file_site
from consilience.sites.study import SiteFile, Study
from consilience.wire.signing import SigningKey
from tests.cli.workspace import CANARY_TEXT, SITES, Workspace, call, sentence
from tests.engines.fake_link import FakeSuperLink

NOWHERE = "127.0.0.1:1"


class Federated(Workspace):
    """A study whose lines for keys are those that ``flower keys`` printed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        names = [word for site in SITES for word in ("--site", site)]
        self.printed = call("flower", "keys", root / "keys", *names)
        lines = tomllib.loads(self.printed.stdout)
        text = self.file.read_text()
        keys = "".join(f'"{k}" = "{v}"\n' for k, v in lines["sites"]["keys"].items())
        self.file.write_text(
            f'{text}\n[sites.keys]\n{keys}[coordinator]\nkey = "{lines["coordinator"]["key"]}"\n'
        )
        trust = lines["trust"]["coordinators"]
        for site in SITES:
            self.site(site, more=f"[trust]\ncoordinators = {trust!r}\n")

    @property
    def keys(self) -> Path:
        return self.root / "keys/coordinator"


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federated:
    monkeypatch.chdir(tmp_path)
    return Federated(tmp_path)


@pytest.mark.parametrize("command", ["keys", "node-key", "coordinator", "site", "run"])
def test_help(command: str) -> None:
    listed = call("flower", "--help")
    assert listed.exit_code == 0 and command in listed.stdout
    shown = call("flower", command, "--help")
    assert shown.exit_code == 0 and "Usage:" in shown.stdout


# ------------------------------------------------------------------ keys


def test_keys_prints_lines_that_can_be_used(space: Federated) -> None:
    lines = tomllib.loads(space.printed.stdout)
    assert set(lines) == {"coordinator", "sites", "trust"}
    assert lines["trust"]["coordinators"] == [lines["coordinator"]["key"]]
    assert SigningKey.load(space.keys).public == lines["coordinator"]["key"]
    study = Study.load(space.file)
    for site in SITES:
        own = SigningKey.load(space.root / "keys/sites" / site).public
        assert study.sites.keys[site].publics == (own,)
        (trusted,) = SiteFile.load(space.root / f"sites/{site}.toml").trust.coordinators
        assert trusted.publics == (lines["coordinator"]["key"],)
    assert "PRIVATE" not in space.printed.output
    assert "safe channel" in space.printed.stderr


def test_keys_of_a_name_with_dots(tmp_path: Path) -> None:
    done = call("flower", "keys", tmp_path / "k", "--site", "st.mary", "--site", "ash")
    assert set(tomllib.loads(done.stdout)["sites"]["keys"]) == {"st.mary", "ash"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--site", "ash", "--site", "ash"), "each site of the federation once"),
        (("--site", "../ash"), "is not allowed"),
        (("--site", "coordinator"), "no site can be called"),
        (("--site", "ash", "--host", "example.org:9092"), "leave out port"),
        (("--site", "ash", "--days", "0"), "days must be"),
    ],
)
def test_keys_refuses(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = call("flower", "keys", tmp_path / "k", *words)
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "k").exists()


def test_keys_are_not_overwritten(space: Federated) -> None:
    again = call("flower", "keys", "keys", "--site", "ash")
    assert again.exit_code == 2 and "never overwritten" in again.stderr and not again.stdout
    one = call("flower", "node-key", "keys/sites/lyon", "--site", "lyon")
    assert one.exit_code == 2 and "is not overwritten" in one.stderr


def test_node_key_prints_the_line_for_the_server(tmp_path: Path) -> None:
    done = call("flower", "node-key", tmp_path / "own", "--site", "ash")
    assert done.exit_code == 0 and done.stdout == (tmp_path / "own/node.pub").read_text()
    bad = call("flower", "node-key", tmp_path / "other", "--site", "a/b")
    assert bad.exit_code == 2 and not (tmp_path / "other").exists()


# ------------------------------------------------------------------ refusals


def test_commands_name_what_is_missing(space: Federated) -> None:
    site, study = "sites/lyon.toml", space.file
    for words, said in (
        (("flower", "coordinator", "--keys", "none"), "there is no directory none"),
        (("flower", "site", "none.toml", "--superlink", NOWHERE, "--keys", "keys"), "none.toml"),
        (
            ("flower", "site", site, "--superlink", NOWHERE, "--keys", "none"),
            "the certificate none/ca.crt",
        ),
        (("flower", "run", "none.toml", "--superlink", NOWHERE, "--keys", space.keys), "none.toml"),
        (("flower", "run", study, "--superlink", NOWHERE, "--keys", "none"), "none"),
        (("flower", "run", study, "--superlink", "nowhere", "--keys", space.keys), "nowhere"),
        (("check", study, "--engine", "flower"), "needs --superlink and --keys"),
        (("run", study, "--engine", "flower"), "needs --superlink and --keys"),
    ):
        done = call(*words)
        assert done.exit_code == 2, (words, done.output)
        assert said in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.output and done.stderr.count("\n") == 1


def test_another_partys_key_is_refused(space: Federated) -> None:
    theirs = space.root / "keys/sites/lyon"
    for words in (("flower", "run"), ("check", "--engine", "flower")):
        done = call(*words, space.file, "--superlink", NOWHERE, "--keys", theirs)
        assert done.exit_code == 2 and "Traceback" not in done.output


def test_a_server_that_is_not_there_is_one_sentence(space: Federated) -> None:
    done = call(
        "check", space.file, "--engine", "flower", "--superlink", NOWHERE, "--keys", space.keys
    )
    assert done.exit_code == 9
    assert "127.0.0.1:1" in sentence(done)


def test_a_secret_that_others_read_is_refused(space: Federated) -> None:
    (space.keys / "executor.secret").chmod(0o644)
    done = call("flower", "run", space.file, "--superlink", NOWHERE, "--keys", space.keys)
    assert done.exit_code == 2 and "chmod 600" in done.stderr


def test_another_release_of_flower_is_refused(
    space: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_flwr, "SERIES", "9.9.")
    done = call("flower", "run", space.file, "--superlink", NOWHERE, "--keys", space.keys)
    assert done.exit_code == 10 and "9.9.x was tried" in done.stderr


# ------------------------------------------------------------------ the check


def checked(space: Federated, *connected: str) -> tuple[Study, list[Seen]]:
    """What the sites answer, through a SuperLink in this process."""
    server, study = FakeSuperLink(), Study.load(space.file)
    for name in connected:
        file = SiteFile.load(space.root / f"sites/{name}.toml")
        desk = Desk(
            file_site(file),
            SigningKey.load(space.root / "keys/sites" / name),
            file.trust.coordinators,
            check=lambda text, file=file: join.check_here(file, text),  # type: ignore[misc]
        )
        server.connect(desk.handle)
    own = SigningKey.load(space.keys)
    engine = FlowerEngine(server.open, study.sites.names, own, study.sites.keys, clock=server.clock)
    return study, join.look(study, engine)


def test_every_site_says_whether_it_can_take_part(space: Federated) -> None:
    boston, lyon, _ = SITES
    space.table(lyon, "x,id", [f"1.5,{i}" for i in range(40)])
    _, found = checked(space, boston, lyon)
    assert [(one.connected, one.able) for one in found] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert found[2].said == (AWAY,)
    assert found[1].said and "y" in found[1].said[0]
    assert abs(found[0].skew) < 5.0
    assert found[0].kinds is not None and set(found[0].kinds) == {"x", "y"}


def test_what_differs_between_sites_is_named(space: Federated) -> None:
    space.table(SITES[1], "x,y,id", [f"{CANARY_TEXT},{i}.5,{i}" for i in range(40)])
    study, found = checked(space, *SITES)
    said = join.differences(study, found)
    assert CANARY_TEXT not in repr(found) and CANARY_TEXT not in repr(said)
    assert not found[1].able or any("Column x" in line for line in said)


@pytest.mark.parametrize("approved", [False, True])
def test_types_do_not_hang_on_a_few_cells(space: Federated, approved: bool) -> None:
    """One cell of text made a column of numbers one of text, for whoever asked."""
    study = Study.load(space.file)
    path = space.root / f"sites/{SITES[0]}.toml"
    if approved:
        file_site(SiteFile.load(path)).home.write_ledger("_approved", {"studies": [study.hash()]})
    said = []
    for n_odd in (0, 1, 9, 10):
        rows = [f"{'text' if i < n_odd else i % 7}.5,{i}.25,{i}" for i in range(40)]
        space.table(SITES[0], "x,y,id", rows)
        said.append(join.check_here(SiteFile.load(path), study.canonical()))
    assert said[0]["able"] and said[0]["kinds"]["x"] == "number"
    assert said[0] == said[1] == said[2] != said[3]


def test_types_of_categories_and_of_empty_columns_are_not_told(space: Federated) -> None:
    """A database calls a column text, or empty, by single cells."""
    study = Study.load(space.file)
    data = study.data.model_copy(update={"levels": {"y": ("1", "2")}})
    study = study.model_copy(update={"data": data})
    told = [
        told_kinds(SiteCheck("a", kinds={"x": x, "y": y}), study)
        for x in ("number", "empty")
        for y in ("text", "number", "empty", "boolean")
    ]
    assert all(kinds == {"x": "number", "y": "category"} for kinds in told)
    found = SiteCheck("a", kinds={"x": "text in 12 rows", "y": "date32"})
    assert told_kinds(found, study) == {"x": "text", "y": "date32"}


def test_what_a_site_says_cannot_reach_the_terminal_as_commands(
    space: Federated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site signs its answers, and may still be hostile."""
    wild = {
        "able": "yes",
        "said": ["\x1b[2Jgone", 7, "x" * 5000, *["again"] * 100],
        "kinds": {"x": "\x1b]0;title\x07", "y": 3},
    }
    monkeypatch.setattr(join, "check_here", lambda file, text: wild)
    study, found = checked(space, *SITES)
    assert not any(one.able for one in found), "only true is yes"
    assert all(len(one.said) == 20 and max(map(len, one.said)) == 300 for one in found)
    for wrong in ({"said": 5, "kinds": 5}, {"said": {"a": 1}, "kinds": []}, {}):
        monkeypatch.setattr(join, "check_here", lambda file, text, wrong=wrong: wrong)
        assert not any(one.able for one in checked(space, *SITES)[1])
    tell_seen(found)
    for text in (capsys.readouterr().out, repr(found), *join.differences(study, found)):
        assert "\x1b" not in text and "\x07" not in text


@pytest.mark.parametrize("time", ["soon", None, [], True])
def test_a_site_that_says_nonsense_of_itself_cannot_take_part(
    space: Federated, monkeypatch: pytest.MonkeyPatch, time: object
) -> None:
    monkeypatch.setattr(Desk, "_hello", lambda self: {"release": ["x\x1b"], "time": time})
    _, found = checked(space, *SITES)
    for one in found:
        assert one.connected and not one.able
        assert any("cannot be read" in said for said in one.said)
        assert "\x1b" not in repr(one)


@pytest.mark.parametrize("ahead", [4000.0, -4000.0, 1e11])
def test_a_clock_that_is_wrong_is_a_remark(
    space: Federated, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    honest = Desk._hello
    monkeypatch.setattr(
        Desk, "_hello", lambda self: (said := honest(self)) | {"time": said["time"] + ahead}
    )
    _, found = checked(space, *SITES)
    for one in found:
        assert one.connected and one.able
        assert abs(one.skew - ahead) < 5.0
        assert any("synchronise the clocks" in said for said in one.said)


def test_nothing_is_reported_home_and_nothing_installed(tmp_path: Path) -> None:
    """Whatever the surroundings say."""
    pytest.importorskip("flwr")
    from consilience.engines.flower.server import environment, superlink_command

    keys = tmp_path / "keys"
    make_federation(keys, ["ash"])
    database = tmp_path / "db"
    words = superlink_command(keys / "coordinator", "127.0.0.1", 1, database, insecure=False)
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(words)
    assert words[words.index("--isolation") + 1] == "process"
    assert "--insecure" not in words and "--superexec-auth-secret-file" in words
    code = (
        "import os, consilience.engines.flower._flwr\n"
        "from flwr.supercore import telemetry\n"
        "print(os.environ['FLWR_TELEMETRY_ENABLED'], os.environ['FLWR_DISABLE_UPDATE_CHECK'],"
        " telemetry.FLWR_TELEMETRY_ENABLED)"
    )
    loud = {**os.environ, "FLWR_TELEMETRY_ENABLED": "1", "FLWR_DISABLE_UPDATE_CHECK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=loud, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "1", "0"]
    given = environment(tmp_path / "home")
    assert given["FLWR_TELEMETRY_ENABLED"] == "0" and given["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert given["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_what_a_site_left_out_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    tell_seen([Seen("ash", True, "1.2.3", able=True), Seen("birch", False)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ash", "yes", "1.2.3", "+0.0", "can", "take", "part"] in rows
    assert ["birch", "no", "-", "-", "cannot", "take", "part"] in rows


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Hostname mismatch, certificate is not valid for 'ash.example'.", "for another host"),
        ("IP address mismatch, certificate is not valid for '127.0.0.1'.", "for another host"),
        ("certificate has expired", "has expired"),
        ("certificate is not yet valid", "compare the clocks"),
        ("unable to get local issuer certificate", "not signed by the authority"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_told(said: str, words: str) -> None:
    text = f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {said} (_ssl.c:1016)"
    assert words in _flwr.describe(OSError(text))
