"""METHODS.md has a row for each method, only links that lead somewhere, and no stale structure.

The numbers are not computed again here: `make docs-table` does that.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from consilience.protocol import BUILT_IN
from consilience.protocol.method import get_method
from tools import measured_assisted, measured_bounds, table_methods

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "METHODS.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    start = PAGE.index(f"# {heading}\n")
    following = re.search(r"^##", PAGE[start:], re.MULTILINE)
    return PAGE[start : start + following.start()] if following else PAGE[start:]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def test_conformance_has_a_row_for_each_method_and_a_column_for_each_promise() -> None:
    head, *found = rows(section("Conformance"))
    assert head == ["method", *(p.column for p in table_methods.PROOFS), "policy presets"]
    assert [row[0].strip("`") for row in found] == sorted(BUILT_IN)


def test_every_cell_is_a_proof_or_open() -> None:
    _, *found = rows(section("Conformance"))
    allowed = set(table_methods.NOT_PLANNED.values()) | {""}
    for row in found:
        for cell in row[1:]:
            assert cell in allowed or re.fullmatch(r"\[\w+\]\([^)]+\)", cell), cell


def test_conformance_claims_no_more_than_the_tests() -> None:
    """A proof that is named must still be there; new proofs may wait for `make docs-table`."""
    now = dict(zip(sorted(BUILT_IN), rows("\n".join(table_methods.conformance()))[1:], strict=True))
    _, *written = rows(section("Conformance"))
    for row in written:
        for claimed, found in zip(row[1:], now[row[0].strip("`")][1:], strict=True):
            assert not claimed or found, f"{row[0]}: {claimed} is not found any more"


def proof(column: str) -> table_methods.Proof:
    return next(proof for proof in table_methods.PROOFS if proof.column == column)


@pytest.mark.parametrize(
    ("method", "column", "place"),
    [
        ("sparse-qda", "local engine", "discriminant/one_table/test_sparse_qda_study.py"),
        (
            "federated-sparse-qda",
            "local engine",
            "discriminant/federated_sparse_qda/test_federated_sparse_qda.py",
        ),
        ("community-bayes", "local engine", "discriminant/one_table/test_community_bayes_study.py"),
        (
            "federated-community-bayes",
            "local engine",
            "discriminant/federated_community_bayes/test_federated_community_bayes.py",
        ),
        ("assisted-glm", "local engine", "assisted/glm/test_assisted_glm.py"),
        ("federated-sparse-qda", "attacks", "security/test_sparse_qda_attacks.py"),
        ("reference-averaging", "attacks", "security/test_reference_attacks.py"),
    ],
)
def test_proofs_are_of_the_method_itself(method: str, column: str, place: str) -> None:
    cell = table_methods._cell(proof(column), method, get_method(method).__name__)
    assert f"(tests/{place})" in cell


def test_a_method_is_not_found_in_the_names_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in the order of the search; each is the best proof until the next one is there."""
    monkeypatch.setattr(table_methods, "ROOT", tmp_path)
    folder = tmp_path / "tests" / "discriminant" / "one_table"
    folder.mkdir(parents=True)

    def found() -> str:
        return table_methods._cell(proof("local engine"), "sparse-qda", "SparseQDAStudy")

    def write(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    write("test_federated_sparse_qda.py", "FederatedSparseQDA().run(x)  # federated-sparse-qda")
    write("test_m.py", "SparseQDAStudyResult; run('sparse-qda-2')")
    assert found() == ""
    write("test_k.py", "run('sparse-qda')")
    assert found() == "[k](tests/discriminant/one_table/test_k.py)"
    write("test_s.py", "SparseQDAStudy().run(x)")
    assert found() == "[s](tests/discriminant/one_table/test_s.py)"
    write("test_sparse_qda_study.py", "SparseQDAStudy().run(x)")
    write("test_a_federated_sparse_qda.py", "SparseQDAStudy().run(x)")
    assert found() == "[sparse_qda_study](tests/discriminant/one_table/test_sparse_qda_study.py)"


def test_smallest_sites_are_listed_by_preset() -> None:
    head, *found = rows(section(table_methods.SMALLEST))
    assert head[2:] == list(table_methods.PRESETS)
    wanted = [(name, what) for name, levels in table_methods.STUDIES.items() for what, _ in levels]
    assert [(row[0].strip("`"), row[1]) for row in found] == wanted


def test_one_smallest_site_is_as_written() -> None:
    _, *found = rows(section(table_methods.SMALLEST))
    written = next(row for row in found if row[0] == "`mean-and-sd`")[2]
    assert table_methods._smallest("mean-and-sd", "strict", [lambda run: True]) == [written]


def test_measured_figures_are_those_of_the_tracked_files() -> None:
    for line in (*table_methods.measured("ensemble_clustering"), *table_methods.weights()):
        assert line in PAGE, "replications have changed: run make docs-table"


def test_figures_of_the_exchange_of_models_are_those_of_the_benchmark() -> None:
    for line in table_methods.meta_speed():
        assert line in PAGE, "the benchmark has been run again: run make docs-table"


def test_every_bound_of_meta_clustering_is_on_the_page() -> None:
    """Its case and what is wanted; what was measured changes with every run of a replication."""
    written = PAGE.splitlines()
    lines = list(measured_bounds.lines(ROOT, "meta_clustering"))[2:]
    assert len(lines) > 20
    for line in lines:
        start = "|".join(line.split("|")[:6])
        assert any(row.startswith(start) for row in written), start


def test_every_bound_of_assisted_learning_is_on_the_page() -> None:
    written = PAGE.splitlines()
    lines = list(measured_bounds.lines(ROOT, "assisted_glm"))[2:]
    assert len(lines) > 10
    for line in lines:
        start = "|".join(line.split("|")[:6])
        assert any(row.startswith(start) for row in written), start
    for line in measured_assisted.real_data():
        assert line in written


def test_speed_of_a_joint_fit_is_judged_at_the_size_that_the_bound_names(tmp_path: Path) -> None:
    assert list(measured_assisted.speed(tmp_path)) == ["Not measured yet."]
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    rows = [
        {"n": n, "p": 50, "rounds": 5, "run": 4.0, "pooled fit with sandwich": 1.0}
        for n in (10_000, 100_000)
    ]
    machine = {"cpu": "some", "cores": 2, "python": "3.11"}
    found = {"machine": machine, "joint": rows}
    (folder / "assisted_glm.json").write_text(json.dumps(found))
    lines = list(measured_assisted.speed(tmp_path))
    assert [line.split("|")[-2].strip() for line in lines[-2:]] == ["", "**missed**"]


def test_bounds_find_the_lines_that_they_speak_of() -> None:
    found = [
        {"d": str(d), "how": "sign", "exact": f"{1 - d / 100}", "replicates": "20"}
        for d in range(4)
    ]

    def cells(**wanted: str) -> tuple[str, ...]:
        return measured_bounds._cells({"figure": "exact", **wanted}, found)[3:]

    assert cells(d="0", at_least="0.95") == ("at least 0.95", "1", "", "20", "met")
    assert cells(d="every d from 1", at_least="0.98")[1:] == (
        "0.97 to 0.99",
        "",
        "20",
        "**missed**",
    )
    assert cells(d="0 and 1", how="each", at_most="1")[1] == "0.99 to 1"
    assert cells(d="4 sets together", at_least="0.98")[1:] == ("0.985", "", "20", "met")
    assert cells(d="7", at_least="0.5")[-1] == "not measured"
    assert cells(d="2.0")[-1] == "" and cells(d="2.0")[1] == "0.98"
    assert cells(how="sign", at_most="min(d; 2)")[-1] == "**missed**"  # d = 0: 1 > 0
    found[0]["d"] = "2 of many"
    assert cells(d="2 of 1 to 3", at_least="0.5")[-1] == "not measured"
    found[0]["d"] = "set 2, noisy"
    assert cells(d="set 1 to 3", at_least="0.5")[-1] == "not measured"
    found[0]["d"] = "set 2 noisy"
    assert cells(d="set 1 to 3", at_least="0.5")[-1] == "met"
    assert cells(d="set 3 to 4", at_least="0.5")[-1] == "not measured"
    found[0]["d"] = "set, 2"
    assert cells(d="set 2", at_least="0.5")[-1] == "met"
    found[0]["d"] = "0"
    test = measured_bounds._cells({"test": "exact", "d": "0", "at_least": "0.5"}, found)
    assert test[:2] == ("d 0", "exact") and test[-1] == "met"
    for row in found:
        row["replicates"] = "3"
    assert cells(d="0", at_least="0.95")[-1] == "too few data sets yet"
