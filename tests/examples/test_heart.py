"""The heart example on real data: the figures that it must reach, from its own study file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from consilience import EnsembleClustering, Run
from consilience.engines.federation import Federation
from consilience.engines.study_run import method_of, read_site_files
from consilience.sites.study import Study
from consilience.testing.fakes import members, with_fixed_secrets

EXAMPLE = Path(__file__).parents[2] / "examples" / "heart"
KEPT = {"cleveland": 303, "hungarian": 293, "switzerland": 109, "va": 137}


def hospitals(home: Path, file: str = "study.toml") -> tuple[Study, Federation]:
    """A study of the example, and its sites with homes elsewhere and fixed secrets."""
    study = Study.load(EXAMPLE / file)
    files = {
        name: file.model_copy(update={"home": str(home / name)})
        for name, file in read_site_files(study).items()
    }
    federation = Federation.from_study(study, files)
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    return study, federation


@pytest.fixture(scope="module")
def heart(
    data_dir: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Run, pd.DataFrame]:
    """Run of the example, and the tables of all sites with labels."""
    folder = data_dir("heart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSILIENCE_DATA", str(folder.parent))
        study, federation = hospitals(tmp_path_factory.mktemp("heart"))
        run = method_of(study).run(federation, seed=study.seed)
    parts = []
    for site in KEPT:
        output = run.site(site)
        table = pd.read_csv(folder / f"processed.{site}.data", header=None, na_values="?")
        part = table.iloc[output.rows].assign(site=site, label=output.labels)
        parts.append(part)
    return run, pd.concat(parts, ignore_index=True)


def test_one_regression_is_that_of_all_rows(
    data_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit of `regression.toml`, and what its page says of ST depression."""
    folder = data_dir("heart")
    monkeypatch.setenv("CONSILIENCE_DATA", str(folder.parent))
    study, federation = hospitals(tmp_path, "regression.toml")
    result = method_of(study).run(federation, seed=study.seed).result
    names = ["age", "trestbps", "oldpeak", "exang"]
    parts = []
    for site in KEPT:
        table = pd.read_csv(folder / f"processed.{site}.data", header=None, na_values="?")
        table = table[[0, 3, 9, 8, 7]].set_axis([*names, "thalach"], axis=1).assign(site=site)
        parts.append(table[table["trestbps"] != 0].dropna())
    rows = pd.concat(parts)
    design = np.column_stack([pd.get_dummies(rows["site"], dtype=float), rows[names]])
    estimate, *_ = np.linalg.lstsq(design, rows["thalach"], rcond=None)
    assert result.n == len(rows) == 853
    np.testing.assert_allclose(result.estimate, estimate, rtol=1e-8)
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for value in result.estimate[-4:-2]:
        assert f"| {value:.2f} |" in page
    at = result.columns.index("oldpeak")
    assert [round(float(b), 1) for b in result.site_estimates[:, at]] == [-4.1, -1.6, 6.5, 4.6]
    assert result.q_p_values[at] < 1e-4 and result.p_value[result.n_constants + at] > 0.5


def test_rows_kept(heart: tuple[Run, pd.DataFrame]) -> None:
    _, rows = heart
    assert rows.groupby("site").size().to_dict() == KEPT


def test_the_three_kinds_of_patients(heart: tuple[Run, pd.DataFrame]) -> None:
    """Exercise angina, women, younger men: shares of diseased patients."""
    run, rows = heart
    means = run.result.to_frame()
    diseased = (rows[13] > 0).groupby(rows.label).mean()
    angina = int(np.argmax(means["exang"]))
    women = int(np.argmin(means["sex"]))
    men = ({0, 1, 2} - {angina, women}).pop()
    assert means["exang"].iloc[angina] > 0.8
    assert means["sex"].iloc[women] < 0.02
    assert means["sex"].iloc[men] > 0.98
    assert means["age"].iloc[men] < means["age"].iloc[angina] - 5
    assert diseased[angina] == pytest.approx(0.87, abs=0.02)
    # .15 was wanted; it was .139 before rare kinds of chest pain counted as missing.
    assert diseased[women] == pytest.approx(0.125, abs=0.02)
    assert diseased[men] == pytest.approx(0.39, abs=0.03)
    by_site = (rows[13] > 0)[rows.label == angina].groupby(rows.site).mean()
    # 71 of the 86 Hungarian patients of this class are diseased (.83), elsewhere .86 to .95.
    assert by_site.between(0.82, 0.96).all(), by_site


def test_stability_beside_single_sites(heart: tuple[Run, pd.DataFrame]) -> None:
    run, rows = heart
    stability = run.result.stability_figures
    assert stability["pairs"] == 20
    assert stability["mean"] >= 0.80
    assert stability["mean"] >= stability["ported_mean"] + 0.10
    assert abs(adjusted_rand_score(rows.site, rows.label)) < 0.1


def test_whether_they_are_more_than_one_cloud_is_open(heart: tuple[Run, pd.DataFrame]) -> None:
    """The figures of the guide: 1.6 to 2.2 over three sets of halves, of which two are above 1.64.

    Halves are secret: 1.62 to 2.17 over seven sets, with standard deviation .18.
    """
    result = heart[0].result
    assert 1.1 <= result.stability_figures["apart"] <= 2.7
    assert result.p_value("related") < 1e-6
    assert (
        0.05
        <= result.stability_figures["between"]
        <= result.stability_figures["cloud_between"] + 0.05
    )


def test_held_out_entries_take_two_classes(
    data_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the guide: errors of 1, 2 and 3 classes, and votes that go on rising."""
    monkeypatch.setenv("CONSILIENCE_DATA", str(data_dir("heart").parent))
    _, federation = hospitals(tmp_path)
    method = EnsembleClustering(n_clusters="cv", max_clusters=12, stability_pairs=0)
    result = method.run(federation, seed=1).result
    assert result.n_clusters == 2 and not result.cv_at_edge
    assert result.cv_one_standard_error == result.cv_chosen
    np.testing.assert_allclose(result.cv_curve().mean[:3], [0.89, 0.82, 0.93], atol=0.01)
    assert max(result.votes.values()) == 12
