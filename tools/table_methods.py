"""Write docs/methods: what is claimed of each wing, what was seen, and which test proves it.

``python -m tools.table_methods [PAGE ...]`` reads the registry, searches the tests for the promises
that they put to the test (`tools/conformance.py`), reads ``replications/*/*``,
``benchmarks/results`` and ``tools/claims.toml``, and runs small federations to find the smallest
site with which each method passes under each preset (`tools/smallest_sites.py`; some minutes, only
for the page ``conformance``).

Each page begins with its claims; long tables are folded. Links are written from the root of the
repository and changed to those of the page at the end.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tools import measured_assisted, measured_bounds, measured_clustering, measured_sequences
from tools.conformance import conformance
from tools.measured_bounds import Claim, Judged
from tools.smallest_sites import SMALLEST, smallest
from tools.stale_results import ReplicationError, stale_rows

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "methods"
WRITTEN = "Written by `make docs-table` (`tools/table_methods.py`); do not edit by hand."


# --------------------------------------------------------------------------- the wings


@dataclass(frozen=True)
class Wing:
    """What stands on the page of a wing.

    Parameters
    ----------
    title
        Its heading.
    text
        What its figures are.
    papers
        Folders of `replications/` whose tables are on it.
    guides
        Names and pages, from the root.
    missed
        What is said of bounds that are missed.
    """

    title: str
    text: str
    papers: tuple[str, ...]
    guides: dict[str, str] = field(default_factory=dict)
    missed: str = ""


CLUSTERING = f"""\
Ensemble clustering: adjusted Rand index in the three designs of the source (arXiv 2409.08396,
simulation study), mean over data sets. The bounds are ours: the source shows figures without
numbers. `ensemble` uses the source's weights; the column "default" has the same with the default
weights.

{measured_sequences.TEXT}"""
CLUSTERING_MISSED = """\
With five sites, outlying rows and `min_records` 10, the ensemble (.985, standard error .005) is not
above the consensus of the same label tuples without distances between classes (.991, .004). With
`min_records` 1 it is. The standard error of the difference was not kept; the bound is on the means,
and stays.

At the Hungarian site 71 of 86 patients with exercise angina are diseased, .83 where .85 was wanted,
and .125 of the women, where .13 was.
"""
HEART = """\
## The heart example

Four hospitals, 842 patients, three classes ([example](examples/heart/README.md),
[how computed](replications/ensemble_clustering/heart/README.md)). "diseased" is the share of
patients with a diagnosis, which was not used to find the classes. Halves are secret draws of the
sites, here with fixed secrets. "alone": sites label their own rows by their own model; "ported":
one site's model labels all rows, which is the comparison that the bound of .10 is about. "apart"
and "related": by how many standard deviations the classes of one half divide the other half more
clearly than one cloud, and than unrelated columns, would be divided; "between": share of the rows
between classes, "cloud_between" in one cloud, both rounded by the sites.

The sites' votes by BIC (cleveland, hungarian, switzerland, va) disagree, as wanted, but are 6, 6, 2
and 5 where a prototype had 4, 1, 1 and 1. Whether they are classes is near the bound: they lie 1.6
to 2.2 standard deviations above one cloud in three sets of halves, and it is 1.64.
"""
WEIGHTS = """\
## Weights of the models

Adjusted Rand index of the ensemble by the rule for its weights, 60 data sets a row; standard errors
are of the paired difference. "noise models" carry no information, "nuisance models" agree with one
another on something else than the classes.
"""
SENT = """\
## What a site sends

From `benchmarks/exchange.py` (bytes of the messages, opening included; five classes, ten columns).
A label for every row under each of five models would be 100,000 bytes at 20,000 rows.
"""
COLLABORATORS = """\
Meta clustering: designs of the source (Ye, Ghanadan and Ding, JCGS 2022) and of our own; each
table's page says what its figures are. "source": the source's value, where it gives one, for
comparison. A range is over all lines that a bound speaks of. What the rule for pairs does is
measured in [its proof](docs/proofs/pairwise-test.md).
"""
META_SPEED = """\
## Speed and bytes of the exchange of models

From `benchmarks/meta_clustering.py`: one view of the rows, seconds on one thread with other jobs
beside it. "double loop": over pairs of sites, with scikit-learn's own prediction.
"""
LATENT = """\
Latent class regression: designs of the source (arXiv 2206.10783, simulation study) and of our own,
and real tables; each table's page says what its figures are. Federated rows go through the method;
each table's page names the preset. "source": the source's value, where it gives one, for
comparison.
"""
DISCRIMINANT = """\
Sparse QDA and community Bayes: designs and tables of the source (Le and Hastie, arXiv 1407.4543);
each table's page says what its figures are and what differs. "source": the source's value, where it
gives one, for comparison. Times and errors beside other classifiers:
[benchmarks](benchmarks/README.md).
"""
REGRESSION = """\
Pooled regression: size of tests at 5% and coverage of limits at 95%, as shares of data sets; the
table's page says what its designs are. "covers": limits with errors of the model, HC1 or by cluster
hold the first slope. Bounds that speak of too small errors are controls.
"""
COMPLETION = """\
Held-out entries: designs of the source (Le, Stanford thesis, chapter 3) and real tables; each
table's page says what its figures are and what differs. "off": chosen rank or number less the best
one; "from_source": combined standard errors between its mean and the source's. Times and errors
beside other ways to complete a table: [benchmarks](benchmarks/README.md#matrix_completionpy).
"""
AVERAGING = """\
Reference averaging: designs of the source (Le, Stanford thesis, chapter 1) and of our own, and real
tables; each table's page says what its figures are. "source": the source's value, where it gives
one, for comparison. "closed": share of the way from plain averaging to the fit of all rows after so
many rounds.
"""
WINGS = {
    "clustering": Wing(
        "Clustering: which subtypes exist across sites?",
        CLUSTERING,
        ("ensemble_clustering",),
        {
            "ensemble clustering": "docs/guide/ensemble-clustering.md",
            "sequences and categories": "docs/guide/sequences.md",
        },
        CLUSTERING_MISSED,
    ),
    "collaborators": Wing(
        "Collaborators: whom should I collaborate with?",
        COLLABORATORS,
        ("meta_clustering",),
        {
            "meta clustering": "docs/guide/meta-clustering.md",
            "fairness": "docs/guide/fairness.md",
            "tampered sites": "docs/guide/tampered-sites.md",
        },
    ),
    "assisted": Wing(
        "Assisted learning: what do a partner's columns add?",
        measured_assisted.TEXT,
        ("assisted_glm",),
        {
            "assistance test": "docs/guide/assistance-test.md",
            "assisted GLM": "docs/guide/assisted-glm.md",
        },
    ),
    "averaging": Wing(
        "Reference averaging: what would any estimator say, fitted on all rows?",
        AVERAGING,
        ("reference_averaging",),
        {
            "reference averaging": "docs/guide/reference-averaging.md",
            "tall tables": "docs/guide/tall-tables.md",
        },
    ),
    "latent_regression": Wing(
        "Latent class regression: which kinds of entities, each with a regression?",
        LATENT,
        ("latent_class_regression",),
        {"latent class regression": "docs/guide/latent-class-regression.md"},
    ),
    "discriminant": Wing(
        "Discriminant analysis: which class, by which features together?",
        DISCRIMINANT,
        ("sparse_qda", "community_bayes"),
        {
            "sparse QDA": "docs/guide/sparse-qda.md",
            "community Bayes": "docs/guide/community-bayes.md",
        },
    ),
    "regression": Wing(
        "Pooled regression: which columns explain the response, over all sites?",
        REGRESSION,
        ("pooled_regression",),
        {"pooled regression": "docs/guide/pooled-regression.md"},
    ),
    "completion": Wing(
        "Completion: which rank, which penalty, how many clusters?",
        COMPLETION,
        ("unsupervised_selection",),
        {
            "held-out entries": "docs/guide/held-out-entries.md",
            "federated PCA": "docs/guide/federated-pca.md",
        },
    ),
}


def tables_of(wing: Wing) -> list[str]:
    """Tables of `replications/` ("paper/table") that have bounds."""
    found = (ROOT.glob(f"replications/{paper}/*/expected.csv") for paper in wing.papers)
    folders = sorted(path.parent for paths in found for path in paths)
    return [folder.relative_to(ROOT / "replications").as_posix() for folder in folders]


def judged(table: str) -> list[Judged]:
    """Bounds of a table beside what was measured."""
    if table == "ensemble_clustering/simulation":
        return measured_clustering.simulation(ROOT)
    if table == "ensemble_clustering/heart":
        return measured_clustering.heart(ROOT)
    return measured_bounds.judged(ROOT, table)


def claims_of(name: str) -> Iterator[Claim]:
    """Yield the claims of a wing, those of its replications first."""
    listed = tomllib.loads((ROOT / "tools/claims.toml").read_text(encoding="utf-8"))
    for table in tables_of(WINGS[name]):
        found = judged(table)
        proof = f"[{table.partition('/')[2]}](replications/{table}/README.md)"
        for figure, says, *case in listed.get(table, {}).get("claims", ()):
            bounds = [
                bound
                for bound in found
                if figure in ("*", bound.figure) and re.search(case[0] if case else "", bound.case)
            ]
            yield measured_bounds.claim(says, bounds, proof)
    if name == "clustering":
        yield from measured_clustering.speed(ROOT)


def page_of(name: str) -> Iterator[str]:
    """Yield the parts of the page of a wing."""
    wing = WINGS[name]
    found = {table: judged(table) for table in tables_of(wing)}
    guides = ", ".join(f"[{guide}]({path})" for guide, path in wing.guides.items())
    yield f"# {wing.title}\n\n{WRITTEN} Guides: {guides}. [All wings](docs/methods/README.md).\n"
    yield (
        "## Claims\n\nThe bounds of a claim are those of its table's `expected.csv`, each of them "
        "[below](#all-bounds). Open: measured on too few data sets, or not yet.\n"
    )
    yield from table_of(("claim", "wanted", "seen", "bounds", "proof"), list(claims_of(name)))
    yield "\n## Missed\n"
    yield from missed(found)
    yield f"\n{wing.missed}" if wing.missed else ""
    yield f"## All bounds\n\n{wing.text}"
    for table, bounds in found.items():
        beside = "over three sets of halves" if table.endswith("/heart") else "default"
        yield from folded(
            f"{table.partition('/')[2]}: {measured_bounds.tally(bounds).replace('**', '')}",
            (
                f"[How it was computed](replications/{table}/README.md).",
                "",
                *measured_bounds.lines(bounds, beside),
            ),
        )
    yield from BESIDES.get(name, lambda: iter(()))()


def missed(found: dict[str, list[Judged]]) -> Iterator[str]:
    """Yield the bounds that are missed; the page of each table says why."""
    rows = [
        (f"[{table.partition('/')[2]}](replications/{table}/README.md)", *bound[:2], *bound[3:6])
        for table, bounds in found.items()
        for bound in bounds
        if "missed" in bound.verdict
    ]
    if not rows:
        yield "No bound is missed."
        return
    yield "The page of each table says what is known of the reason.\n"
    yield from table_of(("table", "case", "figure", "wanted", "seen", "standard error"), rows)


def table_of(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield a table."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def folded(summary: str, lines: Iterator[str] | tuple[str, ...]) -> Iterator[str]:
    """Yield lines that a reader opens by a click."""
    yield f"\n<details><summary>{summary}</summary>\n"
    yield from lines
    yield "\n</details>\n"


# --------------------------------------------------------------------------- besides the bounds


def _clustering() -> Iterator[str]:
    yield HEART
    yield "Its figures are [above](#all-bounds), under heart.\n"
    yield WEIGHTS
    yield from folded("weights", measured_clustering.weights())
    patterns = measured_clustering.machine(ROOT, "ensemble_patterns")
    yield "## Speed and memory of the pattern form\n"
    yield f"In the [claims](#claims). Machine: {patterns}.\n"
    yield SENT
    yield from folded("bytes", measured_clustering.sent())
    yield measured_sequences.SPEED
    yield from folded("speed", measured_sequences.speed(ROOT))


def _collaborators() -> Iterator[str]:
    yield META_SPEED
    yield from folded("speed", meta_speed())


def _assisted() -> Iterator[str]:
    yield from measured_assisted.real_data()
    yield ""
    yield measured_assisted.SPEED
    yield from measured_assisted.speed(ROOT)


BESIDES = {
    "clustering": _clustering,
    "collaborators": _collaborators,
    "assisted": _assisted,
}


def meta_speed() -> Iterator[str]:
    """Yield figures of the benchmark of meta clustering, if there is one."""
    path = ROOT / "benchmarks/results/meta_clustering.json"
    if not path.is_file():
        yield "Not measured yet."
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    columns = {
        "candidate": "candidate",
        "sites": "sites",
        "rows_per_site": "rows a site",
        "whole_run_seconds": "whole run",
        "exchange_seconds": "exchange step",
        "double_loop_seconds": "double loop",
        "ratio": "ratio",
        "bytes_from_a_site": "bytes from a site",
        "bytes_to_a_site": "bytes to a site",
        "peak_gigabytes": "peak GB",
    }
    yield f"| {' | '.join(columns.values())} |"
    yield "|---" * len(columns) + "|"
    for case in (*found["linear"], *found["random_forest"]):
        cells = (f"{case[c]:,}" if "bytes" in c else str(case[c]) for c in columns)
        yield f"| {' | '.join(cells)} |"


# --------------------------------------------------------------------------- conformance

CONFORMANCE = f"""\
# Conformance: which test proves which promise

{WRITTEN} [All wings](docs/methods/README.md).

## Conformance

A cell names a test that puts the promise to the test for that method. An empty cell is open work.
The cells are found by searching the tests for words: they say that such a test exists. The Flower
engine is put to the test over a SuperLink in one process, which loses, delays, repeats and alters
messages (`tests/engines/test_flower.py`), and over a real one (`make test-flower`).
"""
APPS = """\
## Apps that runs over Flower carry

An app with its gate taken out, submitted to a SuperLink (`tests/flower/test_apps.py`):

| node | app executed | rows leave |
|---|---|---|
| of this package | 0 of 2 ways to submit | 0 of 2 |
| stock SuperNode | 1 of 1 | 1 of 1 |
| stock SuperNode with `--trusted-entities` | 0 of 1 | 0 of 1 |

A stock SuperNode executes whatever app a run carries, and Flower cannot be made to compare it with
what is installed; with `--trusted-entities` it refuses every app that comes from no hub, the one of
this package included. Nodes of this package load none.
"""
COMMANDS = """\
## Two commands from a copy

`make demo` and `make test` are all that a newcomer runs. `.ci/run` runs the second in a fresh
clone; [tests](tests/cli/test_commands.py) run what the first runs. Run once by hand in a clone, on
two busy cores: `make demo` took 68 s, most of it to make the environment.
"""
IMPORTS = """\
## How long imports take

From `benchmarks/import_time.py` (whole processes).
"""
SIZES = f"""\
## {SMALLEST}

Found by running it: three sites, three columns, two well separated groups of equal size, two
classes asked for; two sites have 120 rows, the third has the number in the table. Other data need
more rows: a site passes when its *smallest* cell does. `strict` and `consortium` have the same
`min_records`. Meta clustering: linear models of a linear response; the other candidates are in
[its guide](docs/guide/meta-clustering.md#candidates). Reference averaging: a ridge, a fifth of the
rows held out. Latent class regression: one class, entities of four events; with K classes about K
times as many. Sparse QDA and community Bayes: two classes of equal size, a fifth of the rows held
out, of which anything is told only if it has, and leaves, `min_records` rows of each class (a fifth
of two classes: close to 100 rows); the studies of one table have that table alone. Components:
groups of rows that are left out. Matrix completion: a penalty; number of classes: 1 to 3. Over
columns the number is that of the common rows: two columns at the initiator, whose policy also has
`share_response = true`, and two at its partner; a linear model, one direction for the test.
"""


def imports() -> Iterator[str]:
    """Yield how long imports take, if that was measured."""
    path = ROOT / "benchmarks/results/import_time.json"
    if not path.is_file():
        yield "Not measured yet."
        return
    yield "| process | median seconds | lowest | highest |"
    yield "|---|---|---|---|"
    for name, case in json.loads(path.read_text(encoding="utf-8"))["processes"].items():
        yield f"| {name} | {case['median_seconds']} | {case['lowest']} | {case['highest']} |"


def staleness() -> Iterator[str]:
    """Yield a line for each table whose code has changed since it was computed."""
    for folder in sorted({path.parent for path in ROOT.glob("replications/*/*/run.py")}):
        name = folder.relative_to(ROOT).as_posix()
        try:
            old, rows = stale_rows(folder)
        except ReplicationError as error:
            yield f"- {error}"
            continue
        if old:
            yield f"- {name}: {old} of {rows} rows were computed by earlier code."


def conformance_page() -> Iterator[str]:
    """Yield the parts of the page on what holds for all methods."""
    yield CONFORMANCE
    yield from conformance()
    yield f"\n{SIZES}"
    yield from smallest()
    yield f"\n{APPS}"
    yield COMMANDS
    yield IMPORTS
    yield from imports()
    yield "\n## Figures to be computed again\n"
    stale = list(staleness())
    yield (
        "Computed by earlier code:\n" if stale else "Every figure was computed by the present code."
    )
    yield from stale


# --------------------------------------------------------------------------- the pages

INDEX = f"""\
# What is proven, and what is open

{WRITTEN}

One page for each wing: claims first, each with what was wanted, what was seen and the proof; then
what was missed; then every bound. Numbers are bounds of `replications/`. Which test proves which
promise of which method, and how small a site may be, is under
[conformance](docs/methods/conformance.md).
"""


def index() -> Iterator[str]:
    """Yield the parts of the list of pages."""
    yield INDEX
    rows = []
    for name, wing in WINGS.items():
        bounds = [bound for table in tables_of(wing) for bound in judged(table)]
        rows.append((f"[{wing.title}](docs/methods/{name}.md)", measured_bounds.tally(bounds)))
    yield from table_of(("wing", "bounds"), rows)


def relocated(text: str) -> str:
    """Change links from the root of the repository to links from the folder of the pages."""

    def moved(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        return f"]({os.path.relpath(path, 'docs/methods')}{mark}{anchor})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", moved, text)


def page(parts: Iterator[str]) -> str:
    """Return a page of its parts."""
    # Names in stored rows keep the spelling that they were made with: 95 %.
    text = re.sub(r"(?<=\d) %", "%", relocated("\n".join(parts)) + "\n")
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def pages(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page, or of those that are named."""
    parts = {"README": index, "conformance": conformance_page}
    parts |= {name: partial(page_of, name) for name in WINGS}
    for name in names or parts:
        yield name, page(parts[name]())


def main(names: list[str]) -> int:
    """Write the pages, or those that are named."""
    PAGES.mkdir(exist_ok=True)
    for name, text in pages(names):
        (PAGES / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"written: docs/methods/{name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
