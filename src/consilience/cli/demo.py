"""``consilience demo``: a study that can be looked at and run at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from consilience.cli import console
from consilience.cli.run import Plan, execute, tell
from consilience.cli.runs import RUNS

STUDY = """\
# {about}
# All parties share this file. Run it again with: consilience run {file}

name = "demo-{name}"
method = "{method}"
partition = "rows"
seed = 20240229

[parameters]
{parameters}
[data]
{remark}
{role} = [
{columns}
]
{roles}
[preparation]
missing = "{missing}"
standardize = "{standardize}"

[sites]
names = [{sites}]
"""

SITE = """\
# Stays at the site: where its table is, and what may leave.

name = "{site}"
home = "../homes/{site}"

[source]
path = "../data/{site}.csv"

[columns]
# What studies may name, and as what.
offered = {{ {offered} }}

[policy]
preset = "{preset}"
data_id = "demo-{site}"
{consent}"""

FOREIGN_MODELS = """\
# Models that the other sites fitted may be asked how well they do on the rows here.
foreign_models = true
"""


OVER_COLUMNS = """\
# {about}
# All parties share this file. Run it again with: consilience run {file}

name = "demo-{method}"
method = "{method}"
partition = "columns"
seed = 20240229

[parameters]
{parameters}
[data]
# Rows are matched by this id. Each site names its own columns in its own file, and nobody else's.
id = "patient"

[preparation]
missing = "refuse"
standardize = "site"

[sites]
names = [{sites}]
roles = {{ clinic = "initiator" }}
"""

SITES_OVER_COLUMNS = {
    "clinic": """\
# Stays at the clinic: where its table is, and what may leave.
# It holds the response, so it is the one that asks. Patients without a diagnosis are predicted.

name = "clinic"
home = "../homes/clinic"

[source]
path = "../data/clinic.csv"

[columns]
features = [
{features}
]
target = "malignant"

[partners]
# The same file at both sites: ids are matched by hashes under it.
key = "../keys/partner.key"

[policy]
preset = "consortium"
data_id = "demo-clinic"
# The laboratory may see the diagnoses of the patients that both have.
share_response = true
# The coordinator is this party, and gets its coefficients by name.
share_names = true
# Every fit tells the laboratory some combinations of these columns. Without this line all but one
# may come to be known: enough for one fit, and a second one with other settings ends at once.
max_revealed_rank = "full"
""",
    "laboratory": """\
# Stays at the laboratory: where its table is, and what may leave.

name = "laboratory"
home = "../homes/laboratory"

[source]
path = "../data/laboratory.csv"

[columns]
features = [
{features}
]
# Limits that hold by what is measured, agreed before anybody looked. Noise has a price only with
# them; a value beyond them is cut.
bounds = {{ worst_compactness = [0.0, 1.2], worst_concavity = [0.0, 1.5], \
worst_concave_points = [0.0, 0.3] }}

[partners]
key = "../keys/partner.key"

[policy]
preset = "consortium"
data_id = "demo-laboratory"
# Noisy sketches may leave, at this price in all: three different ones at 8. The same one again, for
# whichever question, costs nothing.
noised = true
max_epsilon = 24.0
# All combinations of the columns may come to be known: standard errors and intervals need it.
# Without this line all but one may, and the training stops short of the best fit.
max_revealed_rank = "full"
""",
}

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
        clinics), "clinic" (all tumours at one), "paths" (treatment by month) or "patients"; of the
        last the sites hold different columns.
    to_go_on : tuple of (str, str)
        What else to try: a word, and a command or a place. FOLDER is the folder.
    method : str
        Where it is not the name of the demonstration.
    """

    about: str
    parameters: str = ""
    standardize: str = "none"
    missing: str = "refuse"
    tables: str = "wines"
    to_go_on: tuple[tuple[str, str], ...] = ()
    method: str = ""


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
    roles : tuple of (str, str)
        Other roles with their columns.
    unused : tuple of str
        Other columns without a role.
    levels : tuple of str
        Of the target, where it is a class, or of the states of a sequence.
    preset : str
        Of the sites' policies.
    sequence : bool
        Whether the other columns are states by time.
    """

    last: str
    remark: str
    target: bool = False
    roles: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    preset: str = "strict"
    sequence: bool = False


CLINICS = ("aspen", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple")

TABLES = {
    "wines": Tables(
        "cultivar",
        "# The tables also hold the cultivar of each wine. No role names it, so the study does not "
        "use it.",
    ),
    "cellar": Tables(
        "cultivar",
        "# A tenth of the measurements was left out, at random. The table also holds the cultivar "
        "of each\n# wine. No role names it, so the study does not use it. Whoever asks has the "
        "table, so the policy is\n# that for one person who holds all data.",
        preset="simulation",
    ),
    "clinics": Tables(
        "progression",
        "# Patients were given to the clinics at random; at elm the score counts downwards.",
        target=True,
    ),
    "ranges": Tables(
        "progression",
        "# The clinics were made by triglycerides, on purpose: aspen has the lowest, maple the "
        "highest.\n# Each sees a narrow range only, so the average of their models is poor.",
        target=True,
    ),
    "wards": Tables(
        "pressure",
        "# Simulated. The tables also hold the kind of each patient, which decides what the "
        "pressure goes\n# with. No role names it, so the study does not use it.",
        target=True,
        roles=(("agent", "ward"), ("entity", "patient")),
        unused=("kind",),
    ),
    "tumours": Tables(
        "diagnosis",
        "# Means over the nuclei of a sample, and worst values. Patients were given to the clinics "
        "at random.",
        target=True,
        levels=("benign", "malignant"),
    ),
    "clinic": Tables(
        "diagnosis",
        "# Means over the nuclei of a sample, and worst values. Whoever asks has the table, so the "
        "policy is\n# that for one person who holds all data.",
        target=True,
        levels=("benign", "malignant"),
        preset="simulation",
    ),
    "paths": Tables(
        "admitted",
        "# Simulated: the treatment of each patient, month by month; cells are empty where nothing "
        "was\n# recorded. The tables also hold the path of each patient, which decides what comes "
        "next, and whether\n# there was an admission afterwards. No role names the path, so the "
        "study does not use it.",
        target=True,
        unused=("path",),
        levels=("pause", "diet", "tablets", "insulin"),
        sequence=True,
    ),
}


DEMOS: dict[str, Demo] = {
    "ensemble-clustering": Demo(
        "Which kinds of wine occur at three merchants who do not pool their tables?",
        "n_clusters = 3\n",
        "pooled",
    ),
    "sequences": Demo(
        "Which paths do treatments take at three hospitals, and who is admitted afterwards? "
        "(Simulated records.)",
        """\
model = "markov-mixture"
n_clusters = 3
n_resamples = 1
""",
        missing="keep",
        tables="paths",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/aspen.toml"),
            ("compare", "the column path in FOLDER/data/aspen.csv: what nobody told the study"),
            ("vote", 'the same study with n_clusters = "vote"'),
        ),
        method="ensemble-clustering",
    ),
    "meta-clustering": Demo(
        "Six clinics score the progression of diabetes. Do they all mean the same by it?",
        'candidates = ["linear", "ridge"]\n',
        tables="clinics",
    ),
    "reference-averaging": Demo(
        "Eight clinics each see patients of one range of triglycerides. What would a ridge "
        "regression on all of them say?",
        """\
estimator = "ridge(alpha=50.0)"
# A clinic has 55 patients. "strict" wants fits of 10 columns to rest on 22 or more, held-out ones
# too.
holdout = 0.4
""",
        "pooled",
        tables="ranges",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/aspen.toml"),
            ("compare", 'the same study with estimator = "random-forest": averaging is returned'),
        ),
    ),
    "latent-class-regression": Demo(
        "Which kinds of patients do four hospitals see, by what blood pressure goes with? "
        "(Simulated records.)",
        """\
# "auto" finds a number by itself.
n_classes = 4
""",
        tables="wards",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/aspen.toml"),
            ("classes", "FOLDER/homes/aspen/outputs/RUN/classes.csv"),
            ("compare", "the column kind in FOLDER/data/aspen.csv: what nobody told the study"),
        ),
    ),
    "federated-sparse-qda": Demo(
        "Three clinics tell malignant tumours from others. Which measurements go together, and "
        "does that help?",
        standardize="pooled",
        tables="tumours",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/aspen.toml"),
            ("one table", "consilience demo sparse-qda --folder FOLDER-one"),
        ),
    ),
    "federated-community-bayes": Demo(
        "Three clinics tell malignant tumours from others by groups of measurements. Do groups "
        "help?",
        """\
# A site judges models on at least twice as many rows as they have coefficients, 42 here.
choosing = 0.3
holdout = 0.3
""",
        standardize="pooled",
        tables="tumours",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/aspen.toml"),
            ("one table", "consilience demo community-bayes --folder FOLDER-one"),
        ),
    ),
    "sparse-qda": Demo(
        "One clinic tells malignant tumours from others. Which measurements go together, and does "
        "that help?",
        tables="clinic",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/aspen.toml"),
            ("pairs", "FOLDER/homes/aspen/outputs/RUN/interactions.csv"),
            ("sites", "consilience demo federated-sparse-qda --folder FOLDER-sites"),
        ),
    ),
    "community-bayes": Demo(
        "One clinic tells malignant tumours from others by groups of measurements. Do groups help?",
        tables="clinic",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/aspen.toml"),
            ("groups", "FOLDER/homes/aspen/outputs/RUN/communities.csv"),
            ("sites", "consilience demo federated-community-bayes --folder FOLDER-sites"),
        ),
    ),
    "federated-pca": Demo(
        "How many components do the measurements of wines at three merchants share?",
        standardize="pooled",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/north.toml"),
            ("one table", "consilience demo matrix-completion --folder FOLDER-one"),
        ),
    ),
    "matrix-completion": Demo(
        "A laboratory left out a tenth of the measurements of 178 wines. What would they have "
        "been?",
        'model = "soft-unshrunk"\n',
        standardize="site",
        missing="keep",
        tables="cellar",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/cellar.toml"),
            ("clusters", "consilience demo cluster-count --folder FOLDER-clusters"),
            ("sites", "consilience demo federated-pca --folder FOLDER-sites"),
        ),
    ),
    "cluster-count": Demo(
        "How many kinds of wine are there in one cellar, of whose measurements a tenth is missing?",
        standardize="site",
        missing="keep",
        tables="cellar",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/cellar.toml"),
            (
                "compare",
                "the column cultivar in FOLDER/data/cellar.csv: what the study did not use",
            ),
            ("merchants", "consilience demo ensemble-clustering --folder FOLDER-sites"),
        ),
    ),
    "mean-and-sd": Demo("What is the average wine of three merchants?"),
    "assistance-test": Demo(
        "Would a laboratory's columns help a clinic to tell malignant tumours from others?",
        """\
family = "binomial"
n_directions = 2
# What the answer may cost each patient of the laboratory: noise is made to fit.
epsilon = 8.0
""",
        tables="patients",
        to_go_on=(("then", "consilience demo assisted-glm"),),
    ),
    "assisted-glm": Demo(
        "What do a laboratory's columns add to a clinic's model of malignant tumours?",
        """\
family = "binomial"
# The laboratory needs the diagnoses to fit its columns; "masked" gives it some of them flipped.
response = "share"
""",
        tables="patients",
        to_go_on=(
            ("outputs", "consilience site outputs FOLDER/sites/clinic.toml"),
            ("one run", "consilience site outputs FOLDER/sites/clinic.toml RUN"),
        ),
    ),
}

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
    each has half of one cultivar and a quarter of the others; for meta-clustering 442 patients
    at six clinics, for reference-averaging the same patients at eight, under the policy
    "strict". For latent-class-regression the visits of patients at four hospitals are simulated,
    for sequences the treatment of patients at three, month by month.
    For matrix-completion and cluster-count all wines are in one table, with a tenth of the cells
    missing. For federated-sparse-qda and federated-community-bayes 569 patients are at three
    clinics, for sparse-qda and community-bayes at one.
    For assistance-test and assisted-glm a clinic and a laboratory hold different columns of 569
    patients, under the policy "consortium" with the consents that the study needs. A file that is
    already there and holds something else is never replaced.
    """
    from consilience.exceptions import ParameterError
    from consilience.wire.files import atomic_write

    if method not in DEMOS:
        raise ParameterError.of("METHOD", f"one of {', '.join(DEMOS)}", method)
    study = folder / f"{method}.toml"
    files = demo_files(method)
    _refuse_foreign(folder, files)
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
    run = execute(Plan(study, runs=folder / RUNS, quiet=quiet))
    tell(run)
    console.heading("To go on")
    console.line(f"  look at   {study} and {folder / 'sites'}")
    console.line(f"  check     consilience check {study}")
    console.line(f"  run       consilience run {study}")
    for word, command in DEMOS[method].to_go_on:
        console.line(
            f"  {word:9} {command.replace('FOLDER', str(folder)).replace('RUN', run.info.run)}"
        )


def demo_files(method: str) -> dict[str, str]:
    """Return the files of a demonstration by their names in its folder."""
    chosen = DEMOS[method]
    if chosen.tables == "patients":
        return _files_over_columns(method)
    about = TABLES[chosen.tables]
    tables = _tables(chosen.tables)
    others = {about.last, *about.unused, *(column for _, column in about.roles)}
    columns = [name for name in next(iter(tables.values())).columns if name not in others]
    roles = [*about.roles, *([("target", about.last)] if about.target else [])]
    from consilience.protocol.method import get_method

    used = chosen.method or method
    files = {
        f"{method}.toml": STUDY.format(
            about=chosen.about,
            file=f"{method}.toml",
            name=method,
            method=used,
            parameters=chosen.parameters,
            remark=about.remark,
            roles="".join(f'{role} = "{column}"\n' for role, column in roles)
            + _levels(about, columns[0] if about.sequence else about.last),
            role="sequence" if about.sequence else "features",
            columns="\n".join(f'  "{name}",' for name in columns),
            missing=chosen.missing,
            standardize=chosen.standardize,
            sites=", ".join(f'"{site}"' for site in tables),
        )
    }
    for site, table in tables.items():
        files[f"sites/{site}.toml"] = SITE.format(
            site=site,
            preset=about.preset,
            offered=_offered(about),
            consent=FOREIGN_MODELS if get_method(used).foreign_models else "",
        )
        files[f"data/{site}.csv"] = table.to_csv(index=False, lineterminator="\n")
    return files


def _offered(about: Tables) -> str:
    """What studies may name of a table, as the site's own file says it."""
    levels = "[" + ", ".join(f'"{level}"' for level in about.levels) + "]"
    told = [f'"*" = {levels}' if about.sequence else '"*" = "number"']
    told += [f'{column} = "id"' for _, column in about.roles]
    others = (about.last, *about.unused) if about.sequence else ()
    told += [f'{column} = "number"' for column in others if column]
    if about.levels and not about.sequence:
        told.append(f"{about.last} = {levels}")
    return ", ".join(told)


def _levels(about: Tables, column: str) -> str:
    """Line that declares the classes of the target or the states of a sequence, if any."""
    if not about.levels:
        return ""
    listed = ", ".join(f'"{level}"' for level in about.levels)
    return f"levels = {{ {column} = [{listed}] }}\n"


def _tables(name: str) -> dict[str, Any]:
    """Tables of a demonstration over rows, by site."""
    from consilience.datasets.load import (
        load_demo,
        load_demo_cellar,
        load_demo_clinics,
        load_demo_sites,
        load_demo_tumours,
    )

    if name == "wards":
        from consilience.datasets.simulate_wards import simulate_wards

        return dict(simulate_wards(1))
    if name == "paths":
        from consilience.datasets.simulate_treatments import simulate_treatments

        return dict(simulate_treatments(1))
    if name in ("tumours", "clinic"):
        return dict(load_demo_tumours(3 if name == "tumours" else 1))
    if name == "wines":
        return load_demo_sites()
    if name == "cellar":
        return load_demo_cellar()
    if name == "clinics":
        return load_demo_clinics()
    patients = load_demo("diabetes").sort_values("log_triglycerides", kind="stable")
    n, b = len(patients), len(CLINICS)
    ends = [round(i * n / b) for i in range(b + 1)]
    return {site: patients.iloc[ends[i] : ends[i + 1]] for i, site in enumerate(CLINICS)}


def _files_over_columns(method: str) -> dict[str, str]:
    """Files of a demonstration whose sites hold different columns."""
    from consilience.datasets.load import load_demo_columns

    tables = load_demo_columns()
    files = {
        f"{method}.toml": OVER_COLUMNS.format(
            about=DEMOS[method].about,
            file=f"{method}.toml",
            method=method,
            parameters=DEMOS[method].parameters,
            sites=", ".join(f'"{site}"' for site in tables),
        )
    }
    for site, table in tables.items():
        features = [name for name in table.columns if name not in ("patient", "malignant")]
        listed = "\n".join(f'  "{name}",' for name in features)
        files[f"sites/{site}.toml"] = SITES_OVER_COLUMNS[site].format(features=listed)
        files[f"data/{site}.csv"] = table.to_csv(index=False, lineterminator="\n")
    return files


def _refuse_foreign(folder: Path, files: dict[str, str]) -> None:
    """Stop before anything is written if a file is there that is not this demonstration's."""
    from consilience.exceptions import RunError

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
