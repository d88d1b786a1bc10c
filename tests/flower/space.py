"""A study of two sites on disk, for the commands that run it over a deployment."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import Result

from consilience.sites.loaders import file_site
from consilience.sites.study import SiteFile
from tests.cli.workspace import call
from tests.flower.deployment import Deployment, until

SITES = ("ash", "birch")
STUDY = """\
name = "{name}"
method = "{method}"
seed = {seed}
[parameters]
{parameters}
[data]
features = ["x0", "x1"]
[preparation]
standardize = "pooled"
[sites]
names = ["ash", "birch"]
deadline = {deadline}
[sites.keys]
ash = "{ash}"
birch = "{birch}"
[coordinator]
key = "{coordinator}"
"""
SITE = """\
name = "{name}"
home = "{home}"
[source]
path = "{name}.csv"
[columns.offered]
"*" = "number"
[policy]
foreign_models = true
data_id = "{name}-rows"
[trust]
coordinators = ["{coordinator}"]
"""
# Nothing in these depends on secret draws, so that a run can be compared with another one.
METHODS = {
    "mean-and-sd": "",
    "ensemble-clustering": "n_clusters = 2\nn_init = 2\nstability_pairs = 0",
}


class Space:
    """Tables, site files and study files in a directory; the keys are the deployment's."""

    def __init__(self, root: Path, deployment: Deployment) -> None:
        self.root, self.deployment = root, deployment
        for number, name in enumerate(SITES):
            rng = np.random.default_rng(number)
            x = rng.normal(size=(60 + 10 * number, 2))
            x += 6.0 * (rng.random(len(x)) < 0.5)[:, None]
            rows = [f"{a:.6f},{b:.6f}" for a, b in x]
            (root / f"{name}.csv").write_text("\n".join(["x0,x1", *rows]) + "\n")
            self.site(name)
            clean = root / "clean"
            clean.mkdir(exist_ok=True)
            text = (root / f"{name}.toml").read_text()
            (clean / f"{name}.toml").write_text(text.replace(f'"{name}.csv"', f'"../{name}.csv"'))

    def site(self, name: str, **changes: str) -> Path:
        given = {"name": name, "home": f"home-{name}", **self.deployment.public, **changes}
        path = self.root / f"{name}.toml"
        path.write_text(SITE.format(**given))
        return path

    def study(
        self,
        method: str = "mean-and-sd",
        *,
        name: str = "trial",
        seed: int = 5,
        deadline: float = 240.0,
        **changes: str,
    ) -> Path:
        given: dict[str, Any] = {**self.deployment.public, **changes}
        path = self.root / f"{name}.toml"
        path.write_text(
            STUDY.format(
                name=name,
                method=method,
                seed=seed,
                deadline=deadline,
                parameters=METHODS[method],
                **given,
            )
        )
        return path

    def here(self, study: Path) -> dict[str, bytes]:
        """Result of a study in one process, over homes of its own."""
        out = self.root / f"clean-{study.stem}"
        done = call("run", study, "--sites", self.root / "clean", "--out", out, "--quiet")
        assert done.exit_code == 0, done.output
        return result(out)

    # ------------------------------------------------------------------ commands

    def at_site(self, name: str) -> tuple[object, ...]:
        """Words of the command that is the node of a site."""
        where = ("--superlink", self.deployment.address)
        keys = self.deployment.site_keys(name)
        return ("flower", "site", self.root / f"{name}.toml", *where, "--keys", keys)

    def running(self, study: Path, out: str, *more: object) -> tuple[object, ...]:
        """Words of the command that runs a study."""
        where = ("--superlink", self.deployment.address, "--keys", self.deployment.own)
        return ("flower", "run", study, *where, "--out", self.root / out, *more)

    def sites(self, *names: str) -> dict[str, subprocess.Popen[bytes]]:
        """Start the nodes of sites and wait until they are connected."""
        start = self.deployment.programs.consilience
        nodes = {name: start(*self.at_site(name), cwd=self.root) for name in names or SITES}
        for node in nodes.values():
            self.tells(node, "connected")
        return nodes

    @contextmanager
    def threads(self, *names: str) -> Iterator[list[tuple[str, str, Any]]]:
        """Sites whose nodes are threads here, for tests in which nothing befalls them."""
        files = [SiteFile.load(self.root / f"{name}.toml") for name in names or SITES]
        with self.deployment.nodes(*[file_site(file) for file in files]) as told:
            yield told

    def tells(self, process: subprocess.Popen[bytes], what: str, seconds: float = 90.0) -> str:
        """Wait until a program has written something; all that it wrote."""
        programs = self.deployment.programs

        def there() -> str:
            said = programs.said(process)
            assert what in said or process.poll() is None, f"it ended without {what!r}: {said}"
            return said if what in said else ""

        return str(until(there, seconds, what))

    def ended(self, process: subprocess.Popen[bytes], seconds: float = 240.0) -> int:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            said = self.deployment.programs.said(process)
            raise AssertionError(f"it did not end within {seconds:g} s: {said}") from None

    def done(self, process: subprocess.Popen[bytes], out: str) -> dict[str, bytes]:
        """Result of a run that is under way."""
        code = self.ended(process)
        assert code == 0, self.deployment.programs.said(process)
        return result(self.root / out)


def result(out: Path) -> dict[str, bytes]:
    found = {
        name: (out / name).read_bytes()
        for name in ("result.json", "result.npz")
        if (out / name).is_file()
    }
    assert "result.json" in found
    return found


def one_line(done: Result) -> str:
    """The one sentence of a command that failed."""
    (said,) = done.stderr.splitlines()
    assert "Traceback" not in done.output and not done.stdout, done.output
    return said
