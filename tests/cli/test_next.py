"""``consilience next``: what it proposes, what it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from consilience.sites.study import Study
from consilience.wire.signing import SigningKey
from tests.cli.workspace import SITES, Workspace, call, ran_once, sentence, without_report


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    with without_report():
        return ran_once(tmp_path_factory.mktemp("next"))


@pytest.fixture
def ran(whole: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return whole.copied(tmp_path)


def test_a_single_proposal_is_written_once(ran: Workspace) -> None:
    result = call("next", ran.out)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == (
        "1. describe: Who is in the tables, over all sites and at each of them?"
    )
    assert "   Policies   grant it as they are" in result.stdout
    assert result.stdout.endswith(
        "Study 1 is in describe.toml. Go on with\n"
        "  consilience check describe.toml\n"
        "  consilience run describe.toml\n"
    )
    written = ran.root / "describe.toml"
    settings = tomllib.loads(written.read_text())
    assert settings["seed"] == 3 and settings["sites"]["names"] == sorted(SITES)
    assert settings["data"] == {"features": ["x", "y"]}
    # The same again is no fault; another file is not replaced, and stops only who asked for it.
    assert "Study 1 is in" in call("next", ran.out).stdout
    written.write_text("mine")
    again = call("next", ran.out)
    assert again.exit_code == 0 and "is there and holds something else" in again.stdout
    asked = call("next", ran.out, "--take", 1)
    assert asked.exit_code == 7 and "is not replaced: name another file" in sentence(asked)
    assert written.read_text() == "mine"
    assert call("next", ran.out, "--out", "who.toml").exit_code == 0
    assert Study.load("who.toml").name == "who"


def test_the_next_study_runs_and_leads_on(ran: Workspace) -> None:
    with without_report():
        assert call("next", ran.out).exit_code == 0
        assert call("check", "describe.toml").exit_code == 0
        assert call("run", "describe.toml", "--out", "runs/who", "--quiet").exit_code == 0
    shown = call("next", "runs/who", "--target", "y").stdout
    assert "1. meta-clustering: Whom should I collaborate with?" in shown
    assert "consilience next runs/who --take 1" in shown
    assert not Path("meta-clustering.toml").exists()
    taken = call("next", "runs/who", "--target", "y", "--take", 2, "--set", "ridge=0.5")
    assert taken.exit_code == 0, taken.output
    settings = tomllib.loads(Path("pooled-regression.toml").read_text())
    assert settings["parameters"]["ridge"] == 0.5 and settings["data"]["target"] == "y"
    assert call("check", "pooled-regression.toml").exit_code == 0


def test_as_json(ran: Workspace) -> None:
    told = json.loads(call("next", ran.out, "--json").stdout)
    (one,) = told["studies"]
    assert (one["method"], one["file"]) == ("describe", "describe.toml")
    assert one["checked"] and one["able"] and one["policies"] == []
    assert told["written"] == "describe.toml"
    assert told["commands"] == ["consilience check describe.toml", "consilience run describe.toml"]


def test_a_response_of_two_values_is_found_in_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the run knows means alone: sites are on this machine, and grant no sums."""
    monkeypatch.chdir(tmp_path)
    space = Workspace(tmp_path)
    rng = np.random.default_rng(1)
    for site in SITES:
        x = rng.normal(size=(60, 2))
        yes = (x[:, 0] + rng.normal(size=60) > 0).astype(int)
        space.table(site, "x,y,yes", [f"{a},{b},{c}" for (a, b), c in zip(x, yes, strict=True)])
        space.site(site, more="")
    space.write(
        method="meta-clustering",
        parameters='candidates = ["linear"]\ngain_folds = 0\nstability_runs = 0',
        data='target = "yes"',
    )
    refused = space.run()
    assert refused.exit_code == 4 and "foreign_models" in sentence(refused)
    for site in SITES:
        space.site(site)
    with without_report():
        assert space.run().exit_code == 0
    (one,) = json.loads(call("next", space.out, "--json").stdout)["studies"]
    assert one["parameters"]["family"] == "binomial" and one["parameters"]["fit"] == "one-shot"
    for site in SITES:
        space.site(site, more="")
    told = json.loads(call("next", space.out, "--json").stdout)["studies"][0]
    assert told["policies"] == [
        "boston, lyon, osaka must grant it: foreign_models = true",
    ]
    assert not told["able"]


def test_sites_that_are_elsewhere(ran: Workspace) -> None:
    """A coordinator has no site files: what is known are the presets that sites told."""
    (ran.root / "sites").rename(ran.root / "away")
    result = call("next", ran.out)
    assert result.exit_code == 0
    assert "the site files are not on this machine" in result.stdout
    (one,) = json.loads(call("next", ran.out, "--json").stdout)["studies"]
    assert not one["checked"]
    assert json.loads(call("next", ran.out, "--sites", "away", "--json").stdout)["studies"][0][
        "checked"
    ]
    missing = call("next", ran.out, "--sites", "nowhere")
    assert missing.exit_code == 2 and "has no file nowhere/boston.toml" in sentence(missing)


def test_the_study_file_goes_with_the_run(ran: Workspace, tmp_path: Path) -> None:
    away = tmp_path / "away.toml"
    text = ran.file.read_text()
    ran.file.rename(away)
    gone = call("next", ran.out)
    assert gone.exit_code == 7 and "name it by --study" in sentence(gone)
    assert call("next", ran.out, "--study", away).exit_code == 0
    ran.file.write_text(text.replace('"x", "y"', '"x"'))
    changed = call("next", ran.out)
    assert changed.exit_code == 7 and "is not the study of this run" in sentence(changed)


def test_keys_and_rules_of_the_sites_come_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space = Workspace(tmp_path)
    others = "\n".join(f'{site} = "{SigningKey.generate().public}"' for site in SITES[1:])
    first = f'{SITES[0]} = {{ key = "{SigningKey.generate().public}", until = 2099-01-01 }}'
    space.write(
        more_sites="quorum = 2\ndeadline = 9.0",
        more=f"[coordinator]\nat = 'site:{SITES[0]}'\n[sites.keys]\n{first}\n{others}",
    )
    with without_report():
        assert space.run().exit_code == 0
    assert call("next", space.out).exit_code == 0
    before, after = Study.load(space.file), Study.load("describe.toml")
    assert (after.sites.quorum, after.sites.deadline) == (2, 9.0)
    assert after.sites.keys == before.sites.keys and len(after.sites.keys) == len(SITES)
    assert after.coordinator.at == "site:boston"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--take", 2), 2, "--take must be between 1 and 1"),
        (("--target", "z"), 2, "must be one of x, y"),
        (("--set", "ridge"), 2, "give a name and a value"),
        (("--set", "ridge=1"), 2, "no proposed study has a parameter 'ridge'"),
    ],
)
def test_what_was_asked_for_in_vain(
    ran: Workspace, words: tuple[object, ...], code: int, said: str
) -> None:
    result = call("next", ran.out, *words)
    assert result.exit_code == code and said in sentence(result), result.output
    assert not Path("describe.toml").exists()


def test_a_run_that_has_not_ended_or_is_damaged(ran: Workspace) -> None:
    (ran.out / "result.npz").write_bytes(b"damaged")
    damaged = call("next", ran.out)
    assert damaged.exit_code == 7 and "cannot be read" in sentence(damaged)
    os.remove(ran.out / "result.json")
    unfinished = call("next", ran.out)
    assert unfinished.exit_code == 7 and "has not ended" in sentence(unfinished)
    assert call("next", "runs/none").exit_code == 7
