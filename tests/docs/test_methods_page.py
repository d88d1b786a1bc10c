"""Pages of docs/methods: a row for each method, claims with bounds, and no stale structure.

The numbers are not computed again here: `make docs-table` does that.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from consilience.protocol import BUILT_IN
from consilience.protocol.method import get_method
from tools import (
    conformance,
    measured_assisted,
    measured_bounds,
    smallest_sites,
    table_methods,
)

ROOT = Path(__file__).resolve().parents[2]


def written(name: str) -> str:
    return (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")


def section(heading: str, name: str = "conformance") -> str:
    page = written(name)
    start = page.index(f"## {heading}\n")
    following = re.search(r"^##", page[start + 2 :], re.MULTILINE)
    return page[start : start + 2 + following.start()] if following else page[start:]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def test_conformance_has_a_row_for_each_method_and_a_column_for_each_promise() -> None:
    head, *found = rows(section("Conformance"))
    assert head == ["method", *(p.column for p in conformance.PROOFS), "policy presets"]
    assert [row[0].strip("`") for row in found] == sorted(BUILT_IN)


def test_every_cell_is_a_proof_or_open() -> None:
    _, *found = rows(section("Conformance"))
    allowed = set(conformance.NOT_PLANNED.values()) | {""}
    for row in found:
        for cell in row[1:]:
            assert cell in allowed or re.fullmatch(r"\[\w+\]\([^)]+\)", cell), cell


def test_conformance_claims_no_more_than_the_tests() -> None:
    """A proof that is named must still be there; new proofs may wait for `make docs-table`."""
    now = dict(zip(sorted(BUILT_IN), rows("\n".join(conformance.conformance()))[1:], strict=True))
    _, *cells = rows(section("Conformance"))
    for row in cells:
        for claimed, found in zip(row[1:], now[row[0].strip("`")][1:], strict=True):
            assert not claimed or found, f"{row[0]}: {claimed} is not found any more"


def proof(column: str) -> conformance.Proof:
    return next(proof for proof in conformance.PROOFS if proof.column == column)


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
    cell = conformance._cell(proof(column), method, get_method(method).__name__)
    assert f"(tests/{place})" in cell


def test_a_method_is_not_found_in_the_names_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in the order of the search; each is the best proof until the next one is there."""
    monkeypatch.setattr(conformance, "ROOT", tmp_path)
    folder = tmp_path / "tests" / "discriminant" / "one_table"
    folder.mkdir(parents=True)

    def found() -> str:
        return conformance._cell(proof("local engine"), "sparse-qda", "SparseQDAStudy")

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
    head, *found = rows(section(smallest_sites.SMALLEST))
    assert head[2:] == list(smallest_sites.PRESETS)
    wanted = [(name, what) for name, levels in smallest_sites.STUDIES.items() for what, _ in levels]
    assert [(row[0].strip("`"), row[1]) for row in found] == wanted


def test_one_smallest_site_is_as_written() -> None:
    _, *found = rows(section(smallest_sites.SMALLEST))
    wanted = next(row for row in found if row[0] == "`mean-and-sd`")[2]
    assert smallest_sites._smallest("mean-and-sd", "strict", [lambda run: True]) == [wanted]


def test_each_wing_has_a_page_and_the_pages_are_listed() -> None:
    names = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert names == {*table_methods.WINGS, "conformance", "README"}
    assert all((ROOT / "src" / "consilience" / name).is_dir() for name in table_methods.WINGS)
    assert all(f"({name}.md)" in written("README") for name in names - {"README"})
    papers = [paper for wing in table_methods.WINGS.values() for paper in wing.papers]
    assert sorted(papers) == sorted(
        {path.parents[1].name for path in ROOT.glob("replications/*/*/expected.csv")}
    )


def test_every_table_with_bounds_has_a_claim_that_rests_on_some() -> None:
    listed = tomllib.loads((ROOT / "tools" / "claims.toml").read_text(encoding="utf-8"))
    tables = [t for wing in table_methods.WINGS.values() for t in table_methods.tables_of(wing)]
    assert sorted(listed) == sorted(tables)
    for name in table_methods.WINGS:
        for claim in table_methods.claims_of(name):
            assert not claim.bounds.startswith("0 of 0"), claim


@pytest.mark.parametrize("name", table_methods.WINGS)
def test_pages_of_wings_are_those_of_the_tracked_files(name: str) -> None:
    """Claims, misses, bounds and benchmarks; no figure is computed again."""
    now = table_methods.page(table_methods.page_of(name))
    assert now == written(name), "replications or benchmarks have changed: run make docs-table"


def test_claims_stand_before_the_tables() -> None:
    for name in table_methods.WINGS:
        page = written(name)
        order = [page.index(f"\n## {head}\n") for head in ("Claims", "Missed", "All bounds")]
        assert order == sorted(order) and "<details>" not in page[: order[2]]


def test_what_is_missed_is_counted_and_listed() -> None:
    for name, wing in table_methods.WINGS.items():
        bounds = [b for table in table_methods.tables_of(wing) for b in table_methods.judged(table)]
        missed = sum("missed" in bound.verdict for bound in bounds)
        assert len(rows(section("Missed", name))[1:] if missed else []) == missed


def test_a_claim_joins_the_bounds_of_its_figure() -> None:
    def bound(wanted: str, seen: str, verdict: str, figure: str = "f") -> measured_bounds.Judged:
        return measured_bounds.Judged("", figure, "", wanted, seen, "", "", verdict)

    two = [bound("at least 0.9", "0.95 to 1", "met"), bound("at least 0.9", "0.8", "**missed**")]
    found = measured_bounds.claim("it works", two, "p")
    assert found[1:4] == ("at least 0.9", "0.8 to 1", "1 of 2 met, **1 missed**")
    more = [bound(f"at most {k}", "2e-3", "met") for k in ("1e-2", "0.5", "0.3")]
    found = measured_bounds.claim("it works", [*more, bound("", "7", "")], "p")
    assert found[1:4] == ("at most 1e-2 to 0.5, by case", "2e-3", "3 of 3 met")
    other = bound("1 to 2", "1", "too few data sets yet", "g")
    assert measured_bounds.claim("s", [*two, other], "p")[1:4] == (
        "by figure",
        "by figure",
        "1 of 3 met, **1 missed**, 1 open",
    )


def test_columns_in_which_nothing_stands_are_left_out() -> None:
    one = measured_bounds.Judged("a", "f", "", "", "1", "", "", "", ".5")
    assert list(measured_bounds.lines([one], "range")) == [
        "| case | figure | measured | range |",
        "|---|---|---|---|",
        "| a | f | 1 | .5 |",
    ]


def test_links_are_those_of_the_page() -> None:
    text = (
        "[a](docs/guide/x.md#y) [b](tools/c.py) [c](#d) [e](https://x.org/z) [m](docs/methods/q.md)"
    )
    assert table_methods.relocated(text) == (
        "[a](../guide/x.md#y) [b](../../tools/c.py) [c](#d) [e](https://x.org/z) [m](q.md)"
    )


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
