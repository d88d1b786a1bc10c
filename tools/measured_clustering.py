"""What is measured of ensemble clustering: simulated federations, the heart example, speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.measured_bounds import Claim, Judged, rows_of

ROOT = Path(__file__).resolve().parents[1]


def simulation(root: Path) -> list[Judged]:
    """Bounds of the simulated federations, whose figures may be differences of two columns.

    Beside each figure stands the same with the default weights.
    """
    folder = root / "replications/ensemble_clustering/simulation"
    found = rows_of(folder / "result.csv")
    judged = []
    for wanted in rows_of(folder / "expected.csv"):
        keys = [key for key in wanted if key not in ("figure", "at_least")]
        row = next((r for r in found if all(r.get(k) == wanted[k] for k in keys)), None)
        case = ", ".join(wanted[k] if k == "design" else f"{k} {wanted[k]}" for k in keys)
        figure, bound = wanted["figure"], float(wanted["at_least"])
        head = (case, figure, "", f"at least {bound:g}")
        if row is None:
            judged.append(Judged(*head, "", "", "", "not measured"))
            continue
        first, _, second = (part.strip() for part in figure.partition(" - "))
        value = float(row[first]) - (float(row[second]) if second else 0.0)
        error = "" if second else row.get(f"{first}_se", "")
        default = "" if second else row.get(f"{first}_centred", "")
        verdict = "met" if value >= bound else "**missed**"
        judged.append(Judged(*head, f"{value:.4f}", error, "", verdict, default))
    return judged


def heart(root: Path) -> list[Judged]:
    """Figures of the heart example; beside each its range over three sets of halves."""
    folder = root / "replications/ensemble_clustering/heart"
    bounds = {row["figure"]: row for row in rows_of(folder / "expected.csv")}
    judged = []
    for row in rows_of(folder / "result.csv"):
        wanted, verdict = "", ""
        if row["figure"] in bounds:
            low, high = bounds[row["figure"]]["low"], bounds[row["figure"]]["high"]
            wanted = f"{low} to {high}" if low and high else f"at least {low}" if low else ""
            wanted = wanted or f"at most {high}"
            met = float(low or "-inf") <= float(row["value"]) <= float(high or "inf")
            verdict = "met" if met else "**missed**"
        # A bar would end the cell.
        name = row["figure"].replace(
            "|adjusted Rand index with site|", "size of the adjusted Rand index with site"
        )
        judged.append(Judged("", name, "", wanted, row["value"], "", "", verdict, row["spread"]))
    return judged


def sent() -> Iterator[str]:
    """Yield what a site sends, if that was measured."""
    path = ROOT / "benchmarks/results/exchange.json"
    if not path.is_file():
        yield "Not measured yet."
        return
    yield "| sites | rows a site | stability pairs | rounds | bytes from a site | bytes to a site |"
    yield "|---|---|---|---|---|---|"
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        cells = ("sites", "rows_per_site", "stability_pairs", "rounds")
        numbers = [*(case[c] for c in cells), case["bytes_from_a_site"], case["bytes_to_a_site"]]
        yield f"| {' | '.join(f'{number:,}' for number in numbers)} |"


def weights() -> Iterator[str]:
    """Yield the study of weights, if there is one."""
    rows = rows_of(ROOT / "replications/ensemble_clustering/weighting/result.csv")
    if not rows:
        yield "Not measured yet."
        return
    yield "| scenario | `min_records` | spectral | centred | equal | centred - spectral (se) |"
    yield "|---|---|---|---|---|---|"
    for r in rows:
        gain = f"{r['centred_minus_spectral']} ({r['centred_minus_spectral_se']})"
        figures = " | ".join(r[f"ari_{name}"] for name in ("spectral", "centred", "equal"))
        yield f"| {r['scenario']} | {r['min_records']} | {figures} | {gain} |"


def speed(root: Path) -> Iterator[Claim]:
    """Yield what is claimed of the benchmark on label patterns, if there is one."""
    path = root / "benchmarks/results/ensemble_patterns.json"
    if not path.is_file():
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    proof = "[benchmark](benchmarks/ensemble_patterns.py)"
    ratios = sorted(case["ratio"] for case in found["naive"])
    worst = max(case["largest_weight_difference"] for case in found["naive"])
    yield Claim(
        "Speed: label patterns are that many times faster than the N x N form, N = 2,000, M = 10, "
        f"same starts (smallest, median of {len(ratios)} data sets)",
        "at least 200",
        f"{ratios[0]:.0f}, {ratios[len(ratios) // 2]:.0f}",
        _verdict(ratios[0] >= 200),
        proof,
    )
    yield Claim(
        "Accuracy: largest difference of a weight from the N x N form in these runs",
        "at most 1e-9, the benchmark's own bound",
        f"{worst:.1e}",
        _verdict(worst <= 1e-9),
        proof,
    )
    yield Claim(
        "Accuracy: norms, agreement, weights, Gram matrix against the N x N form, N to 500, M to "
        "30",
        "at most 1e-10",
        "held by the test, no figure kept",
        "",
        "[test](tests/clustering/kernels/test_ensemble.py)",
    )
    large = [c for c in found.get("large", _large(found)) if c["subjects"] == 10**6]
    if large:
        seconds = max(c["weights_and_k_means_seconds"] for c in large)
        memory = max(c["peak_gigabytes"] for c in large)
        patterns = max(c["patterns"] for c in large)
        what = f"weights and final clustering, N = 1,000,000, M = 50, at most {patterns:,} patterns"
        yield Claim(
            f"Speed: {what} (CPU seconds of one thread)",
            "below 10",
            f"{seconds:.1f}",
            _verdict(seconds < 10),
            proof,
        )
        yield Claim(
            f"Memory: {what} (gigabytes)", "below 4", f"{memory:.1f}", _verdict(memory < 4), proof
        )
    powers = ", ".join(f"{name} {power}" for name, power in found["exponents"].items())
    yield Claim("Speed: growth, as a power of", "reported", powers, "", proof)


def machine(root: Path, benchmark: str) -> str:
    """The machine that a benchmark was run on."""
    path = root / f"benchmarks/results/{benchmark}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["machine"] if path.is_file() else None
    if not found:
        return "Not measured yet."
    return f"{found['cpu']}, {found['cores']} cores, Python {found['python']}"


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _large(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        case
        for value in found.values()
        if isinstance(value, list)
        for case in value
        if "weights_and_k_means_seconds" in case
    ]
