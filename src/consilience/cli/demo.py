"""``consilience demo``: a study that can be looked at and run at once.

What it writes stands in ``demos.toml``: patterns of files, tables, and one entry for each study.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from consilience.cli import console
from consilience.cli.run import Plan, execute, tell
from consilience.cli.runs import RUNS
from consilience.exceptions import ParameterError, RunError

FOLDER = Path("consilience-demo")


@dataclass(frozen=True)
class Demo:
    """One demonstration: a method on tables that come with scikit-learn, or that are simulated.

    Attributes
    ----------
    about : str
        What the study asks.
    parameters : str
        The lines of ``[parameters]``.
    standardize : str
    missing : str
        What happens to missing cells.
    tables : str
        "wines", "cellar" (all wines, with gaps), "clinics", "ranges", "wards", "tumours" (at three
        clinics), "outlines" (the same in two levels), "clinic" (all tumours at one), "paths"
        (treatment by month), "transplants" or "patients"; of the last the sites hold different
        columns.
    to_go_on : sequence of (str, str)
        What else to try: a word, and a command or a place. FOLDER is the folder.
    method : str
        Where it is not the name of the demonstration.
    described : int
        Of a description or a table: so many of the first columns, and the last one, a class.
    """

    about: str
    parameters: str = ""
    standardize: str = "none"
    missing: str = "refuse"
    tables: str = "wines"
    to_go_on: Sequence[Sequence[str]] = ()
    method: str = ""
    described: int = 0


@dataclass(frozen=True)
class Tables:
    """Tables of a demonstration.

    Attributes
    ----------
    last : str
        The last column, which is no feature.
    remark : str
        What the study file says of it.
    target : bool
        Whether it is the study's target.
    roles : sequence of (str, str)
        Other roles with their columns.
    unused : sequence of str
        Other columns without a role.
    levels : sequence of str
        Of the target, where it is a class, or of the states of a sequence.
    classed : mapping of str to sequence of str
        Levels of other columns.
    preset : str
        Of the sites' policies.
    sequence : bool
        Whether the other columns are states by time.
    data : str
        Age, days and death of each patient, of tables that come with no library.
    """

    last: str
    remark: str
    target: bool = False
    roles: Sequence[Sequence[str]] = ()
    unused: Sequence[str] = ()
    levels: Sequence[str] = ()
    classed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    preset: str = "strict"
    sequence: bool = False
    data: str = ""


CLINICS = ("aspen", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple")

_WRITTEN = tomllib.loads(Path(__file__).with_name("demos.toml").read_text(encoding="utf-8"))
FILES: dict[str, str] = _WRITTEN["files"]
TABLES = {name: Tables(**about) for name, about in _WRITTEN["tables"].items()}
DEMOS = {name: Demo(**about) for name, about in _WRITTEN["demos"].items()}
UNEVEN = 0.095
"""Local variation of a nucleus' radius, on average, above which an outline is called so."""
PARTNER_KEY = "keys/partner.key"


def demo(
    method: str = typer.Argument(
        "ensemble-clustering", metavar="[METHOD]", help=f"One of {', '.join(DEMOS)}."
    ),
    folder: Path = typer.Option(
        FOLDER, metavar="DIR", help="Where study, site files and tables are written."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Write a small study with a few sites, and run it.

    The data come with scikit-learn: 178 wines of three cultivars at three merchants, of whom
    each has half of one cultivar and a quarter of the others; for meta-clustering and
    pooled-regression 442 patients at six clinics, for reference-averaging the same patients at
    eight, under the policy "strict". For cox-regression 69 patients with a new heart are at two
    hospitals, under the policy "consortium". For latent-class-regression the visits of patients at
    four hospitals are simulated, for sequences the treatment of patients at three, month by month.
    For matrix-completion and cluster-count all wines are in one table, with a tenth of the cells
    missing. For describe, contingency-table, federated-sparse-qda and federated-community-bayes
    569 patients are at three clinics, for sparse-qda and community-bayes at one.
    For assistance-test and assisted-glm a clinic and a laboratory hold different columns of 569
    patients, under the policy "consortium" with the consents that the study needs. A file that is
    already there and holds something else is never replaced.
    """
    from consilience.wire.files import atomic_write

    if method not in DEMOS:
        raise ParameterError.of("METHOD", f"one of {', '.join(DEMOS)}", method)
    study = folder / f"{method}.toml"
    files = demo_files(method)
    # Before anything is written: half a demonstration over other files could not be run.
    for name, text in files.items():
        path = folder / name
        try:
            foreign = path.exists() and path.read_bytes() != text.encode()
        except OSError:
            foreign = True
        if foreign:
            raise RunError(
                f"{path} is already there and is not what this demonstration writes: name another "
                "folder by --folder"
            )
    for name, text in files.items():
        if not (folder / name).exists():
            atomic_write(folder / name, text.encode(), mode=0o644)
    # The secret of the two parties; one that is there is kept.
    if DEMOS[method].tables == "patients" and not (folder / PARTNER_KEY).exists():
        from consilience.wire.keys import new_partner_key, save_partner_key

        save_partner_key(folder / PARTNER_KEY, new_partner_key())
    console.say(DEMOS[method].about)
    console.say(
        f"Study, site files and tables are in {folder}; now the sites answer, each behind its own "
        "gate."
    )
    typer.echo()
    # By the same way as 'consilience run': what is shown is what a user gets.
    run = execute(Plan(study, runs=folder / RUNS, quiet=quiet))
    tell(run)
    console.heading("To go on")
    console.line(f"  look at   {study} and {folder / 'sites'}")
    console.line(f"  check     consilience check {study}")
    console.line(f"  run       consilience run {study}")
    console.line(f"  next      consilience next {run.directory}")
    for word, command in DEMOS[method].to_go_on:
        console.line(
            f"  {word:9} {command.replace('FOLDER', str(folder)).replace('RUN', run.info.run)}"
        )


def demo_files(method: str) -> dict[str, str]:
    """Return the files of a demonstration by their names in its folder."""
    chosen = DEMOS[method]
    if chosen.tables == "patients":
        return _files_over_columns(method, chosen)
    about = TABLES[chosen.tables]
    # Made anew each time from data that do not change: the files are the same bytes.
    tables = _tables(chosen.tables)
    others = {about.last, *about.unused, *(column for _, column in about.roles)}
    columns = [name for name in next(iter(tables.values())).columns if name not in others]
    roles = [*about.roles, *([("target", about.last)] if about.target else [])]
    if chosen.described:
        columns, roles = [*columns[: chosen.described], about.last], []
    from consilience.protocol.method import get_method

    # Two demonstrations may show one method.
    used = chosen.method or method
    levels = ""
    if about.levels:
        first = columns[0] if about.sequence else about.last
        each = {first: about.levels, **about.classed}
        listed = ", ".join(f"{column} = {_listed(of)}" for column, of in each.items())
        levels = f"levels = {{ {listed} }}\n"
    files = {
        f"{method}.toml": FILES["study"].format(
            about=chosen.about,
            file=f"{method}.toml",
            name=method,
            method=used,
            parameters=chosen.parameters,
            remark=about.remark,
            roles="".join(f'{role} = "{column}"\n' for role, column in roles) + levels,
            role="sequence" if about.sequence else "features",
            columns="\n".join(f'  "{name}",' for name in columns),
            missing=chosen.missing,
            coding='categorical = "onehot"\n' if chosen.described else "",
            standardize=chosen.standardize,
            sites=", ".join(f'"{site}"' for site in tables),
        )
    }
    for site, table in tables.items():
        files[f"sites/{site}.toml"] = FILES["site"].format(
            site=site,
            preset=about.preset,
            offered=_offered(about),
            consent=FILES["foreign_models"] if get_method(used).foreign_models else "",
        )
        files[f"data/{site}.csv"] = table.to_csv(index=False, lineterminator="\n")
    return files


def _offered(about: Tables) -> str:
    """What studies may name of a table, as the site's own file says it."""
    levels = _listed(about.levels)
    told = [f'"*" = {levels}' if about.sequence else '"*" = "number"']
    told += [f'{column} = "id"' for _, column in about.roles]
    others = (about.last, *about.unused) if about.sequence else ()
    told += [f'{column} = "number"' for column in others if column]
    if about.levels and not about.sequence:
        told.append(f"{about.last} = {levels}")
    told += [f"{column} = {_listed(of)}" for column, of in about.classed.items()]
    return ", ".join(told)


def _listed(levels: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{level}"' for level in levels) + "]"


def _tables(name: str) -> dict[str, Any]:
    """Tables of a demonstration over rows, by site."""
    from consilience.datasets import load
    from consilience.datasets.simulate_treatments import simulate_treatments
    from consilience.datasets.simulate_wards import simulate_wards

    made: dict[str, Callable[[], Mapping[str, Any]]] = {
        "wards": lambda: simulate_wards(1),
        "paths": lambda: simulate_treatments(1),
        "tumours": lambda: load.load_demo_tumours(3),
        "outlines": _outlines,
        "clinic": lambda: load.load_demo_tumours(1),
        "wines": load.load_demo_sites,
        "cellar": load.load_demo_cellar,
        "clinics": load.load_demo_clinics,
        "transplants": lambda: load.transplants_in_turns(TABLES["transplants"].data, CLINICS[:2]),
    }
    if name in made:
        return dict(made[name]())
    # Sorted, so that the clinics differ: of equal ones averaging alone would do.
    patients = load.load_demo("diabetes").sort_values("log_triglycerides", kind="stable")
    n, b = len(patients), len(CLINICS)
    ends = [round(i * n / b) for i in range(b + 1)]
    return {site: patients.iloc[ends[i] : ends[i + 1]] for i, site in enumerate(CLINICS)}


def _outlines() -> dict[str, Any]:
    """Two categories of each tumour: how much the radius of its nuclei varies, and what it is."""
    from consilience.datasets.load import load_demo_tumours

    found = {}
    for site, table in load_demo_tumours(3).items():
        uneven = table["mean_smoothness"] > UNEVEN
        kept = table[["diagnosis"]].assign(outline=uneven.map({True: "uneven", False: "even"}))
        found[site] = kept[["outline", "diagnosis"]]
    return found


def _files_over_columns(method: str, chosen: Demo) -> dict[str, str]:
    """Files of a demonstration whose sites hold different columns."""
    from consilience.datasets.load import load_demo_columns

    tables = load_demo_columns()
    files = {
        f"{method}.toml": FILES["over_columns"].format(
            about=chosen.about,
            file=f"{method}.toml",
            method=method,
            parameters=chosen.parameters,
            sites=", ".join(f'"{site}"' for site in tables),
        )
    }
    for site, table in tables.items():
        features = [name for name in table.columns if name not in ("patient", "malignant")]
        listed = "\n".join(f'  "{name}",' for name in features)
        files[f"sites/{site}.toml"] = FILES[site].format(features=listed)
        files[f"data/{site}.csv"] = table.to_csv(index=False, lineterminator="\n")
    return files
