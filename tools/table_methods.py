"""Write METHODS.md: what is proven of each method, measured against wanted, smallest sites.

``python -m tools.table_methods`` reads the registry, searches the tests for the promises that they
put to the test, reads ``replications/*/*`` and ``benchmarks/results``, and runs small federations
to find the smallest site with which each method passes under each preset (some seconds).

A cell of the conformance table names a test file that fulfils its rule in `PROOFS`: one that is
called after the method and uses its class, else one that uses its class, or says its name, or loops
over a list with it. An empty cell is open work. The search is by words: it finds that a test
exists, not that it is good.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools import measured_assisted, measured_bounds, measured_sequences
from tools.stale_results import ReplicationError, stale_rows

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "METHODS.md"
LARGEST_TRIED = 100
PRESETS = ("strict", "consortium", "simulation")


# --------------------------------------------------------------------------- conformance


@dataclass(frozen=True)
class Proof:
    """Where a promise is put to the test: files, and words that such a file holds."""

    column: str
    files: tuple[str, ...]
    words: tuple[str, ...]


_CHECKED = r"check_method\("
EXCHANGES = (
    *(f"tests/*/{room}/test_*.py" for room in ("protocol", "one_table", "glm", "test")),
    "tests/*/federated_*/test_*.py",
)
PROOFS = (
    Proof(
        "estimator",
        ("tests/*/estimators/test_*.py", "tests/*/selection/test_*.py", "tests/*/tall/test_*.py"),
        ("check_estimator|_with_checks",),
    ),
    Proof("command line", ("tests/cli/test_*.py",), (r'"run"',)),
    Proof("demo", ("tests/cli/test_*.py",), (r'"demo"',)),
    Proof("report", ("tests/report/test_*.py", "tests/*/report/test_*.py"), ("report",)),
    Proof(
        "resume",
        ("tests/exchange/test_*.py", "tests/faults/test_*.py"),
        (rf"resume=True|check_resume|{_CHECKED}",),
    ),
    Proof("absence", ("tests/exchange/test_*.py",), (rf"check_absence|{_CHECKED}",)),
    Proof(
        "attacks",
        ("tests/exchange/test_*.py", "tests/security/test_*.py"),
        ("attack|SUITE|" + _CHECKED,),
    ),
    Proof(
        "local engine",
        ("tests/exchange/test_*.py", "tests/protocol/test_*.py", *EXCHANGES),
        (r"run\(",),
    ),
    Proof(
        "folder engine", ("tests/exchange/test_*.py", "tests/engines/test_*.py"), ("FolderEngine",)
    ),
    Proof("flower engine", ("tests/flower/test_exchange.py",), ("test_same_bytes", "IN_ORDER")),
)
TWINS = {
    "community-bayes": "CommunityBayesClassifier",
    "cluster-count": "ClusterCountCV",
    "federated-community-bayes": "CommunityBayesClassifier",
    "federated-pca": "ProbabilisticPCA",
    "federated-sparse-qda": "SparseQDA",
    "latent-class-regression": "LatentClassRegressor",
    "matrix-completion": "SoftImpute",
    "sparse-qda": "SparseQDA",
}
"""Estimators of the same for one table, where their name does not begin with that of the method."""
NOT_PLANNED = {("mean-and-sd", "estimator"): "not planned"}
CASES = ROOT / "tests" / "faults" / "cases.py"


def conformance() -> Iterator[str]:
    """Yield the lines of the conformance table."""
    from consilience.protocol import BUILT_IN
    from consilience.protocol.method import get_method

    columns = [proof.column for proof in PROOFS]
    yield f"| method | {' | '.join(columns)} | policy presets |"
    yield "|---" * (len(columns) + 2) + "|"
    for name in sorted(BUILT_IN):
        kind = get_method(name)
        cells = [
            NOT_PLANNED.get((name, proof.column)) or _cell(proof, name, kind.__name__)
            for proof in PROOFS
        ]
        presets = f"[table](#{_anchor(SMALLEST)})" if name in STUDIES else ""
        yield f"| `{name}` | {' | '.join(cells)} | {presets} |"


def _cell(proof: Proof, name: str, kind: str) -> str:
    paths = [path for pattern in proof.files for path in sorted(ROOT.glob(pattern))]
    ranked = [(rank, path) for path in paths if (rank := _rank(proof, name, kind, path))]
    if not ranked:
        return ""
    path = min(ranked, key=lambda found: found[0])[1]
    return f"[{path.stem.removeprefix('test_')}]({path.relative_to(ROOT).as_posix()})"


def _rank(proof: Proof, name: str, kind: str, path: Path) -> int:
    """Return how nearly a file is about a method, 1 most; 0 where it is no proof."""
    # A method's twin for one table has its name with the kind of estimator.
    twin = TWINS.get(name, kind) if proof.column == "estimator" else kind
    by_class = re.compile(rf"\b{kind}(?:Regressor|Classifier)?\b|\b{twin}\b")
    by_name = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")

    def proves(text: str) -> bool:
        # The name of a file may be all that says what it puts to the test.
        return all(re.search(word, f"{path.stem}\n{text}") for word in proof.words)

    own = _own_text(path)
    if proves(own) and by_class.search(own):
        return 1 if _method_of(path) == name else 2
    # The name alone may be that of a rule in a result, or stand in what an error says.
    if proves(own) and by_name.search(own):
        return 3
    # Last, files that only loop over a list with the method in it.
    text = _text(path)
    return 4 if proves(text) and (by_class.search(text) or by_name.search(text)) else 0


def _method_of(path: Path) -> str:
    """Return the method that a file is called after: the longest name, none within another."""
    from consilience.protocol import BUILT_IN

    called = path.stem.replace("_", "-")
    names = [name for name in BUILT_IN if re.search(rf"(?<![^-]){re.escape(name)}(?![^-])", called)]
    return max(names, key=len, default="")


@cache
def _own_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _text(path: Path) -> str:
    """Text of a test file, with the studies or demonstrations that it loops over."""
    text = _own_text(path)
    if re.search(r"\bCASES\b", text) and CASES.is_file():
        text += CASES.read_text(encoding="utf-8")
    if re.search(r"\bDEMOS\b", text):
        text += (ROOT / "src/consilience/cli/demo.py").read_text(encoding="utf-8")
    return text


# --------------------------------------------------------------------------- measured and wanted


def measured(paper: str) -> Iterator[str]:
    """Yield the bounds of a paper's replications beside what was measured."""
    yield "| table | case | figure | wanted | measured | standard error | default | |"
    yield "|---|---|---|---|---|---|---|---|"
    for listing in sorted(ROOT.glob(f"replications/{paper}/*/expected.csv")):
        folder = listing.parent
        found = _rows(folder / "result.csv")
        # Tables with upper bounds as well are shown by `measured_bounds`.
        for wanted in (r for r in _rows(listing) if "at_least" in r and "at_most" not in r):
            keys = [key for key in wanted if key not in ("figure", "at_least")]
            row = next((r for r in found if all(r.get(k) == wanted[k] for k in keys)), None)
            case = ", ".join(wanted[k] if k == "design" else f"{k} {wanted[k]}" for k in keys)
            yield _measured_row(folder, case, wanted, row)


def _measured_row(folder: Path, case: str, wanted: dict[str, str], row: Any) -> str:
    link = f"[{folder.name}]({folder.relative_to(ROOT).as_posix()}/run.py)"
    figure, bound = wanted["figure"], float(wanted["at_least"])
    if row is None:
        return f"| {link} | {case} | {figure} | {bound:g} | | | | not measured |"
    first, _, second = (part.strip() for part in figure.partition(" - "))
    value = float(row[first]) - (float(row[second]) if second else 0.0)
    error = "" if second else row.get(f"{first}_se", "")
    default = "" if second else row.get(f"{first}_centred", "")
    verdict = "met" if value >= bound else "**missed**"
    cells = (link, case, figure, f"{bound:g}", f"{value:.4f}", error, default, verdict)
    return f"| {' | '.join(cells)} |"


def heart() -> Iterator[str]:
    """Yield the figures of the heart example beside what was wanted."""
    folder = ROOT / "replications/ensemble_clustering/heart"
    bounds = {row["figure"]: row for row in _rows(folder / "expected.csv")}
    yield "| figure | wanted | measured | over three sets of halves | |"
    yield "|---|---|---|---|---|"
    for row in _rows(folder / "result.csv"):
        wanted, verdict = "", ""
        if row["figure"] in bounds:
            low, high = bounds[row["figure"]]["low"], bounds[row["figure"]]["high"]
            wanted = f"{low} to {high}" if low and high else f"at least {low}" if low else ""
            wanted = wanted or f"at most {high}"
            value = float(row["value"])
            met = float(low or "-inf") <= value <= float(high or "inf")
            verdict = "met" if met else "**missed**"
        # A bar would end the cell.
        name = row["figure"].replace(
            "|adjusted Rand index with site|", "size of the adjusted Rand index with site"
        )
        cells = (name, wanted, row["value"], row["spread"], verdict)
        yield f"| {' | '.join(cells)} |"


def sent() -> Iterator[str]:
    """Yield what a site sends and how long imports take, if that was measured."""
    exchange = ROOT / "benchmarks/results/exchange.json"
    imports = ROOT / "benchmarks/results/import_time.json"
    if not exchange.is_file() or not imports.is_file():
        yield "Not measured yet."
        return
    yield "| sites | rows a site | stability pairs | rounds | bytes from a site | bytes to a site |"
    yield "|---|---|---|---|---|---|"
    for case in json.loads(exchange.read_text(encoding="utf-8"))["cases"]:
        cells = ("sites", "rows_per_site", "stability_pairs", "rounds")
        numbers = [*(case[c] for c in cells), case["bytes_from_a_site"], case["bytes_to_a_site"]]
        yield f"| {' | '.join(f'{number:,}' for number in numbers)} |"
    yield ""
    yield "| process | median seconds | lowest | highest |"
    yield "|---|---|---|---|"
    for name, case in json.loads(imports.read_text(encoding="utf-8"))["processes"].items():
        yield f"| {name} | {case['median_seconds']} | {case['lowest']} | {case['highest']} |"


def weights() -> Iterator[str]:
    """Yield the study of weights, if there is one."""
    rows = _rows(ROOT / "replications/ensemble_clustering/weighting/result.csv")
    if not rows:
        yield "Not measured yet."
        return
    yield "| scenario | `min_records` | spectral | centred | equal | centred - spectral (se) |"
    yield "|---|---|---|---|---|---|"
    for r in rows:
        gain = f"{r['centred_minus_spectral']} ({r['centred_minus_spectral_se']})"
        figures = " | ".join(r[f"ari_{name}"] for name in ("spectral", "centred", "equal"))
        yield f"| {r['scenario']} | {r['min_records']} | {figures} | {gain} |"


def speed() -> Iterator[str]:
    """Yield figures of the benchmark on label patterns, if there is one."""
    path = ROOT / "benchmarks/results/ensemble_patterns.json"
    if not path.is_file():
        yield "Not measured yet."
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    machine = found["machine"]
    ratios = sorted(case["ratio"] for case in found["naive"])
    worst = max(case["largest_weight_difference"] for case in found["naive"])
    yield f"Machine: {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}."
    yield "CPU seconds of one thread."
    yield ""
    yield "| what | wanted | measured | |"
    yield "|---|---|---|---|"
    yield _speed_row(
        "times faster than the N x N form, N = 2,000, M = 10, same starts (smallest, median of "
        f"{len(ratios)} data sets)",
        "at least 200",
        f"{ratios[0]:.0f}, {ratios[len(ratios) // 2]:.0f}",
        ratios[0] >= 200,
    )
    yield _speed_row(
        "largest difference of a weight from the N x N form in these runs, N = 2,000 (the "
        "benchmark's own bound)",
        "1e-9",
        f"{worst:.1e}",
        worst <= 1e-9,
    )
    yield (
        "| norms, agreement, weights, Gram matrix against the N x N form, N to 500, M to 30 "
        "| 1e-10 | held by [tests](tests/clustering/kernels/test_ensemble.py), no figure kept | |"
    )
    large = [c for c in found.get("large", _large(found)) if c["subjects"] == 10**6]
    if large:
        seconds = max(c["weights_and_k_means_seconds"] for c in large)
        memory = max(c["peak_gigabytes"] for c in large)
        patterns = max(c["patterns"] for c in large)
        what = f"weights and final clustering, N = 1,000,000, M = 50, at most {patterns:,} patterns"
        yield _speed_row(f"{what}: seconds", "below 10", f"{seconds:.1f}", seconds < 10)
        yield _speed_row(f"{what}: gigabytes", "below 4", f"{memory:.1f}", memory < 4)
    powers = ", ".join(f"{name} {power}" for name, power in found["exponents"].items())
    yield f"| growth, as a power of | reported | {powers} | |"


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


def _large(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        case
        for value in found.values()
        if isinstance(value, list)
        for case in value
        if "weights_and_k_means_seconds" in case
    ]


def _speed_row(what: str, wanted: str, value: str, met: bool) -> str:
    return f"| {what} | {wanted} | {value} | {'met' if met else '**missed**'} |"


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


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------- smallest sites

SMALLEST = "Smallest site that passes, by method and preset"
Passes = Callable[[Any], bool]


def _tables(n: int, *, entities: bool) -> dict[str, Any]:
    """Three sites of two separated groups, three columns, a response; the first has n rows.

    Entities, where they are wanted, have four events each.
    """
    import numpy as np

    found = {}
    for i, site in enumerate(("small", "second", "third")):
        rng = np.random.default_rng(i)
        rows = n if i == 0 else 120
        x = rng.normal(size=(rows, 3)) + 4.0 * (np.arange(rows) % 2)[:, None]
        y = x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=rows)
        found[site] = {**{f"x{j}": x[:, j] for j in range(3)}, "y": y}
        if entities:
            found[site]["entity"] = np.array([f"e{j // 4}" for j in range(rows)])
        found[site]["kind"] = np.where(np.arange(rows) % 4 < 2, "one", "other")
    return found


def _studies() -> dict[str, tuple[tuple[str, Passes], ...]]:
    return {
        "mean-and-sd": (("answers", lambda run: True),),
        "ensemble-clustering": (
            ("gets labels", lambda run: True),
            ("counts its rows", lambda run: run.result.counted["small"] != "none"),
            ("sends a model", lambda run: "small" in run.result.owners),
        ),
        "meta-clustering": (("is placed", lambda run: "small" in run.result.sites),),
        "reference-averaging": (
            ("is in the average", lambda run: "small" in run.result.owners),
            ("holds out rows", lambda run: _holds_out(run.result, "small")),
        ),
        "latent-class-regression": (
            ("is in the classes", lambda run: _has_sums(run.result, "small")),
            ("holds out events", lambda run: _measures(run.result, "small")),
        ),
        "federated-sparse-qda": (
            ("is in the model", lambda run: _is_used(run.result, "small")),
            ("holds out rows", lambda run: _told(run.result, "small", run.result.site_held)),
        ),
        "federated-community-bayes": (
            ("tells its ranks", lambda run: _told(run.result, "small", run.result.ranks_told)),
            ("holds out rows", lambda run: _told(run.result, "small", run.result.n_held)),
        ),
        "sparse-qda": (
            ("is fitted", lambda run: True),
            ("holds out rows", lambda run: run.result.n_held > 0),
            ("tells its pairs", lambda run: not run.result.model_stays),
        ),
        "community-bayes": (
            ("is fitted", lambda run: True),
            ("holds out rows", lambda run: run.result.n_held > 0),
            ("tells its communities", lambda run: not run.result.model_stays),
        ),
        "federated-pca": (
            ("is in the model", lambda run: "small" in run.result.sites),
            ("tells two groups of rows", lambda run: _groups(run.result, "small") > 1),
        ),
        "matrix-completion": (
            ("is completed", lambda run: True),
            ("tells the error of a choice", lambda run: run.result.curve() is not None),
            ("sets cells aside", lambda run: run.result.n_final > 0),
        ),
        "cluster-count": (
            ("gets labels", lambda run: True),
            ("tells the error of a choice", lambda run: run.result.curve() is not None),
            ("tells sizes of classes", lambda run: bool((run.result.sizes > 0).all())),
        ),
        "assistance-test": (("in common: a test", lambda run: bool(run.result.tests)),),
        "assisted-glm": (("in common: a fit", lambda run: run.result.rounds > 0),),
    }


def _holds_out(result: Any, site: str) -> bool:
    return site in result.sites and result.held[result.sites.index(site)] > 0


def _has_sums(result: Any, site: str) -> bool:
    """Whether a site sent a class sum after the one of all its events, and was never left out."""
    if site not in result.sites:
        return False
    at = result.sites.index(site)
    return bool((result.released[:, at] + result.repeated[:, at] > 0).all())


def _is_used(result: Any, site: str) -> bool:
    return site in result.sites and bool(result.used[result.sites.index(site)].all())


def _groups(result: Any, site: str) -> int:
    """Groups of rows of which a site told moments."""
    at = result.sites.index(site) if site in result.sites else -1
    return int(result.groups_by_site[at]) if at >= 0 else 0


def _told(result: Any, site: str, told: Any) -> bool:
    """Whether a site is in the result, and all that it should tell is told."""
    if site not in result.sites or len(told) != len(result.sites):
        return False
    return bool((told[result.sites.index(site)] > 0).all())


def _measures(result: Any, site: str) -> bool:
    at = result.sites.index(site) if site in result.sites else -1
    return at >= 0 and bool(result.heldout_mse[at, 2] >= 0)


STUDIES = _studies()


def smallest() -> Iterator[str]:
    """Yield the smallest sites, found by running every size from 1 on."""
    yield "| method | the site | " + " | ".join(PRESETS) + " |"
    yield "|---|---|" + "---|" * len(PRESETS)
    for name, levels in STUDIES.items():
        found = {preset: _smallest(name, preset, [p for _, p in levels]) for preset in PRESETS}
        for i, (what, _) in enumerate(levels):
            cells = (found[preset][i] for preset in PRESETS)
            yield f"| `{name}` | {what} | {' | '.join(cells)} |"


def _smallest(name: str, preset: str, passes: Iterable[Passes]) -> list[str]:
    """Return the smallest number of rows at which each condition holds."""
    from consilience.exceptions import ConsilienceError
    from consilience.protocol.method import get_method
    from consilience.sites.policy import PRESETS as RULES

    wanted = list(passes)
    found: list[str | None] = [None] * len(wanted)
    if get_method(name).partition == "columns" and not RULES[preset]["share_ids"]:
        return ["never: no ids leave"] * len(wanted)
    for n in range(1, LARGEST_TRIED + 1):
        try:
            run = _run(name, preset, n)
        except ConsilienceError:
            continue
        for i, holds in enumerate(wanted):
            if found[i] is None and holds(run):
                found[i] = f"{n} row{'s' if n > 1 else ''}"
        if None not in found:
            break
    return [one or f"more than {LARGEST_TRIED}" for one in found]


def _run(name: str, preset: str, n: int) -> Any:
    from consilience import (
        AssistanceTest,
        AssistedGLM,
        ClusterCountStudy,
        Columns,
        CommunityBayesStudy,
        EnsembleClustering,
        FederatedCommunityBayes,
        FederatedPCA,
        FederatedSparseQDA,
        Federation,
        LatentClassRegression,
        MatrixCompletionStudy,
        MeanAndSD,
        MetaClustering,
        Policy,
        Preparation,
        ReferenceAveraging,
        SparseQDAStudy,
    )

    linear = MetaClustering(candidates=("linear",), gain_folds=0, stability_runs=0)
    methods = {
        "mean-and-sd": (MeanAndSD(), "none", None),
        "ensemble-clustering": (
            EnsembleClustering(n_clusters=2, stability_pairs=0),
            "pooled",
            None,
        ),
        "meta-clustering": (linear, "none", "y"),
        "reference-averaging": (
            ReferenceAveraging(estimator="ridge", max_rounds=1),
            "none",
            "y",
        ),
        "latent-class-regression": (LatentClassRegression(n_classes=1), "none", "y"),
        "federated-sparse-qda": (FederatedSparseQDA(alpha=0.5), "pooled", "kind"),
        "federated-community-bayes": (
            FederatedCommunityBayes(n_communities=2, choosing=0.0),
            "pooled",
            "kind",
        ),
        "federated-pca": (FederatedPCA(), "pooled", None),
        "matrix-completion": (MatrixCompletionStudy(), "none", None),
        "cluster-count": (ClusterCountStudy(n_clusters=(1, 2, 3)), "none", None),
        "sparse-qda": (SparseQDAStudy(alpha=0.5), "none", "kind"),
        "community-bayes": (CommunityBayesStudy(n_communities=2), "none", "kind"),
    }
    over_columns = {
        "assistance-test": AssistanceTest(family="normal", n_directions=1),
        "assisted-glm": AssistedGLM(family="normal", response="share", holdout=0.0),
    }
    if name in over_columns:
        return measured_assisted.run_with(over_columns[name], preset, n)
    method, standardize, target = methods[name]
    entities = name == "latent-class-regression"
    tables = _tables(n, entities=entities)
    if method.several:
        tables = {"small": tables["small"]}
    federation = Federation.local(
        tables,
        columns=Columns(
            features=("x0", "x1", "x2"),
            target=target,
            entity="entity" if entities else None,
            levels={"kind": ("one", "other")} if target == "kind" else {},
        ),
        preparation=Preparation(standardize=standardize),  # type: ignore[arg-type]
        policy=Policy(preset=preset, foreign_models=True),  # type: ignore[arg-type]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method.run(federation, seed=0)


# --------------------------------------------------------------------------- the page

HEAD = """\
# Methods: what is proven, and what is open

Written by `make docs-table` (`tools/table_methods.py`); do not edit by hand.

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
MEASURED = """\
## Ensemble clustering: measured against wanted

Adjusted Rand index in the three designs of the source (arXiv 2409.08396, simulation study), mean
over data sets. The bounds are ours: the source shows figures without numbers. `ensemble` uses the
source's weights; the column "default" has the same with the default weights.
"""
WEIGHTS = """\
### Weights of the models

Adjusted Rand index of the ensemble by the rule for its weights, 60 data sets a row; standard errors
are of the paired difference. "noise models" carry no information, "nuisance models" agree with one
another on something else than the classes.
"""
MISSED = """\
Missed: with five sites, outlying rows and `min_records` 10, the ensemble (.985, standard error
.005) is not above the consensus of the same label tuples without distances between classes (.991,
.004). With `min_records` 1 it is. The standard error of the difference was not kept; the bound is
on the means, and stays.
"""
HEART = """\
### The heart example

Four hospitals, 842 patients, three classes ([example](examples/heart/README.md),
[how computed](replications/ensemble_clustering/heart/README.md)). "diseased" is the share of
patients with a diagnosis, which was not used to find the classes. Halves are secret draws of the
sites, here with fixed secrets. "alone": sites label their own rows by their own model; "ported":
one site's model labels all rows, which is the comparison that the bound of .10 is about; "null":
with columns permuted.

Missed: at the Hungarian site 71 of 86 patients with exercise angina are diseased, .83 where .85
was wanted, and .125 of the women, where .13 was. The sites' votes by BIC (cleveland, hungarian,
switzerland, va) disagree, as wanted, but are 6, 6, 2 and 5 where a prototype had 4, 1, 1 and 1.
Many pairs with permuted columns agree as well as the halves, so stability alone is no evidence of
these classes; the report says so.
"""
SENT = """\
### What a site sends, and how long imports take

From `benchmarks/exchange.py` (bytes of the messages, opening included; five classes, ten columns)
and `benchmarks/import_time.py` (whole processes). A label for every row under each of five models
would be 100,000 bytes at 20,000 rows.
"""
COMMANDS = """\
### Two commands from a copy

`make demo` and `make test` are all that a newcomer runs. `.ci/run` runs the second in a fresh
clone; [tests](tests/cli/test_commands.py) run what the first runs. Run once by hand in a clone, on
two busy cores: `make demo` took 68 s, most of it to make the environment.
"""
SPEED = "### Speed and memory of the pattern form\n"
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
META = """\
## Meta clustering: measured against wanted

Designs of the source (Ye, Ghanadan and Ding, JCGS 2022) and of our own; each table's page says what
its figures are. "source": the source's value, where it gives one, for comparison. A range is over
all lines that a bound speaks of. What the rule for pairs does is measured in
[its proof](docs/proofs/pairwise-test.md).
"""
META_SPEED = """\
### Speed and bytes of the exchange of models

From `benchmarks/meta_clustering.py`: one view of the rows, seconds on one thread with other jobs
beside it. "double loop": over pairs of sites, with scikit-learn's own prediction.
"""
LATENT = """\
## Latent class regression: measured against wanted

Designs of the source (arXiv 2206.10783, simulation study) and of our own, and real tables; each
table's page says what its figures are. Federated rows go through the method, the preset is named in
each table's page. "source": the source's value, where it gives one, for comparison.
"""
WIDE = """\
## Wide classification: measured against wanted

Designs and tables of the source (Le and Hastie, arXiv 1407.4543); each table's page says what its
figures are and what differs. "source": the source's value, where it gives one, for comparison.
Times and errors beside other classifiers: [benchmarks](benchmarks/README.md).
"""
ENTRIES = """\
## Held-out entries: measured against wanted

Designs of the source (Le, Stanford thesis, chapter 3) and real tables; each table's page says what
its figures are and what differs. "off": chosen rank or number less the best one; "from_source":
combined standard errors between its mean and the source's. Times and errors beside other ways to
complete a table: [benchmarks](benchmarks/README.md#matrix_completionpy).
"""
REFERENCE = """\
## Reference averaging: measured against wanted

Designs of the source (Le, Stanford thesis, chapter 1) and of our own, and real tables; each table's
page says what its figures are. "source": the source's value, where it gives one, for comparison.
"closed": share of the way from plain averaging to the fit of all rows after so many rounds.
"""


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page() -> str:
    """Return the whole page."""
    stale = list(staleness())
    parts = [
        HEAD,
        *conformance(),
        "",
        APPS,
        MEASURED,
        *measured("ensemble_clustering"),
        "",
        MISSED,
        HEART,
        *heart(),
        "",
        WEIGHTS,
        *weights(),
        "",
        SPEED,
        *speed(),
        "",
        SENT,
        *sent(),
        "",
        *measured_sequences.lines(ROOT),
        "",
        META,
        *measured_bounds.lines(ROOT, "meta_clustering"),
        "",
        META_SPEED,
        *meta_speed(),
        "",
        REFERENCE,
        *measured_bounds.lines(ROOT, "reference_averaging"),
        "",
        LATENT,
        *measured_bounds.lines(ROOT, "latent_class_regression"),
        "",
        WIDE,
        *measured_bounds.lines(ROOT, "sparse_qda"),
        "",
        *measured_bounds.lines(ROOT, "community_bayes"),
        "",
        ENTRIES,
        *measured_bounds.lines(ROOT, "unsupervised_selection"),
        "",
        measured_assisted.TEXT,
        *measured_bounds.lines(ROOT, "assisted_glm"),
        "",
        *measured_assisted.real_data(),
        "",
        measured_assisted.SPEED,
        *measured_assisted.speed(ROOT),
        "",
        COMMANDS,
        *(("Computed by earlier code, to be run again:", "", *stale, "") if stale else ()),
        SIZES,
        *smallest(),
    ]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
