"""One deployment for each module: a SuperLink takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flower.deployment import Deployment

NAMES = ("ash", "birch", "cedar", "a", "b", "c")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    pytest.importorskip("flwr")
    from tests.flower.deployment import Deployment

    root: Path = tmp_path_factory.mktemp("federation")
    made = Deployment(root, NAMES)
    try:
        yield made
    finally:
        made.close()
