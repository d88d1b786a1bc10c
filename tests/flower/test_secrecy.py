"""Nothing of an error at a site reaches the server or the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consilience.engines.federation import Federation
from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Preparation
from consilience.sites.site import Site

if TYPE_CHECKING:
    from tests.flower.deployment import Deployment

pytestmark = pytest.mark.flower

CANARY = "canary 42"


def raising(columns: Columns, preparation: Preparation, partition: str = "rows") -> Any:
    raise ValueError(CANARY)


def found_in(folder: Path, text: str) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("where", ["the loader", "the desk"])
def test_no_text_of_an_exception_leaves(
    where: str, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    site = Site("ash", raising)
    if where == "the desk":
        # Past everything that a site foresees.
        monkeypatch.setattr(site, "answer", lambda body: raising(Columns(), Preparation()))
    with deployment.nodes(site) as told:
        engine = deployment.engine("ash")
        federation = Federation(engine, Columns(features=("x0",)), Preparation(), deadline=6.0)
        with pytest.raises(QuorumError) as caught:
            federation.run(MeanAndSD(), seed=1, out=out)
        engine.close()
    said = "its own log says why"
    # What is told is there, so a canary would have been found.
    assert said in str(caught.value) and found_in(out, said)
    assert CANARY not in str(caught.value) and CANARY not in repr(engine.notes) + repr(told)
    assert not found_in(out, CANARY)
    assert (
        list(deployment.home.glob("superlink.db")) and (deployment.home / "superlink.log").exists()
    )
    assert not found_in(deployment.home, CANARY)
    assert CANARY in repr(site.home.read_log()), "the site itself can read it"
