"""Settings for every test, and the way to real data.

Real data are read only from the folder that ``CONSILIENCE_DATA`` names. Without it the tests that
need data are skipped, and the last lines of the run say how many; with
``CONSILIENCE_REQUIRE_DATA=1`` a missing file is a failure instead.
"""

from __future__ import annotations

import gc
import os

# Two test workers on two cores: numerical libraries must not start threads of their own. They read
# these variables when they are first imported, so they are set before anything else.
for _name in (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.durations import Clock
from tests.rotation import VARIABLE, rotation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")

DATA_SKIP = "real data: "


def find_data(name: str, environment: dict[str, str]) -> Path | str:
    """Return the path of a file or folder of the data folder, or one sentence why it is missing."""
    folder = environment.get("CONSILIENCE_DATA", "")
    if not folder:
        return f"{DATA_SKIP}CONSILIENCE_DATA is not set, so '{name}' was not read"
    path = Path(folder) / name
    if not path.exists():
        return f"{DATA_SKIP}'{name}' is not in the folder that CONSILIENCE_DATA names"
    return path


def data_is_required(environment: dict[str, str]) -> bool:
    return environment.get("CONSILIENCE_REQUIRE_DATA", "") not in ("", "0")


@pytest.fixture(scope="session")
def data_dir() -> Callable[[str], Path]:
    """Fixture: ``data_dir("heart")`` is a folder (or file) of real data, or the test is skipped."""

    def get(name: str) -> Path:
        found = find_data(name, dict(os.environ))
        if isinstance(found, Path):
            return found
        if data_is_required(dict(os.environ)):
            pytest.fail(found, pytrace=False)
        pytest.skip(found)

    return get


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium on this machine, so no page was looked at in a browser")
    from playwright.sync_api import sync_playwright

    # Containers have no user whom the sandbox could use.
    settings: dict[str, Any] = {"executable_path": found, "args": ["--no-sandbox"]}
    with sync_playwright() as playwright, playwright.chromium.launch(**settings) as launched:
        yield launched


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        context.set_default_timeout(10_000)
        yield context.new_page()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations", action="store_true", help="record what the tests of this run take"
    )


def pytest_configure(config: pytest.Config) -> None:
    rotation()  # before there are workers, which inherit it
    config.pluginmanager.register(Clock(config))


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: without looking at them again an eighth of time is won."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Not in the header, which a quiet run leaves out.
    terminalreporter.write_line(f"{VARIABLE}={rotation()} takes the same parts of products")
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and DATA_SKIP in report.longrepr[2]
    ]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests on real data did not run: set CONSILIENCE_DATA to their folder"
        )
