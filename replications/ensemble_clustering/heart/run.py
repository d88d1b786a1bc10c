"""The heart example: what it finds at four hospitals, from its own study and site files.

Needs the data of ``examples/heart`` in the folder that ``CONSILIENCE_DATA`` names. Halves are drawn
from the sites' secret streams, here from fixed ones, so that the table can be computed again;
``spread`` is the range over `SECRETS` of them.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_rand_score

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.clustering.protocol import EnsembleClustering  # noqa: E402
from consilience.engines.federation import Federation  # noqa: E402
from consilience.engines.study_run import method_of, read_site_files  # noqa: E402
from consilience.sites.study import Study  # noqa: E402
from consilience.testing.fakes import members, with_fixed_secrets  # noqa: E402
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
EXAMPLE = ROOT / "examples" / "heart"
SECRETS = 3
SHOWN = (
    "pairs",
    "mean",
    "alone_mean",
    "ported_mean",
    "apart",
    "related",
    "between",
    "cloud_between",
)


def federation(study: Study, home: Path, secret: int) -> Federation:
    files = {
        name: file.model_copy(update={"home": str(home / name)})
        for name, file in read_site_files(study).items()
    }
    made = Federation.from_study(study, files)
    for i, site in enumerate(members(made).values()):
        with_fixed_secrets(site, 100 * secret + i)
    return made


def patients(run, sites: tuple[str, ...]) -> pd.DataFrame:
    """Return site, class and diagnosis of each patient, which nobody has in one place in a run."""
    folder = Path(os.environ["CONSILIENCE_DATA"]) / "heart"
    parts = []
    for site in sites:
        table = pd.read_csv(folder / f"processed.{site}.data", header=None, na_values="?")
        left = run.site(site)
        diseased = table[13].iloc[left.rows].to_numpy() > 0
        parts.append(pd.DataFrame({"site": site, "label": left.labels, "diseased": diseased}))
    return pd.concat(parts, ignore_index=True)


def classes(run, rows: pd.DataFrame) -> dict[str, str]:
    means = run.result.to_frame()
    angina, women = int(np.argmax(means["exang"])), int(np.argmin(means["sex"]))
    men = ({0, 1, 2} - {angina, women}).pop()
    share = rows.groupby("label").diseased.mean()
    by_site = rows[rows.label == angina].groupby("site").diseased.mean()
    return {
        "diseased, exercise angina": f"{share[angina]:.3f}",
        "diseased, women": f"{share[women]:.3f}",
        "diseased, younger men": f"{share[men]:.3f}",
        "diseased, exercise angina, lowest site": f"{by_site.min():.3f}",
        "diseased, exercise angina, highest site": f"{by_site.max():.3f}",
        "|adjusted Rand index with site|": f"{abs(adjusted_rand_score(rows.site, rows.label)):.3f}",
    }


def main() -> None:
    study = Study.load(EXAMPLE / "study.toml")
    figures: dict[str, str] = {}
    spread: dict[str, str] = {}
    found = []
    with tempfile.TemporaryDirectory() as home:
        for secret in range(SECRETS):
            run = method_of(study).run(
                federation(study, Path(home) / str(secret), secret), seed=study.seed
            )
            found.append(run.result.stability_figures)
        figures.update(classes(run, patients(run, study.sites.names)))
        votes = EnsembleClustering(n_clusters="vote", stability_pairs=0).run(
            federation(study, Path(home) / "votes", 0), seed=study.seed
        )
    for name in SHOWN:
        values = [s[name] for s in found]
        figures[f"stability: {name}"] = f"{values[0]:.3f}"
        spread[f"stability: {name}"] = f"{min(values):.3f} to {max(values):.3f}"
    over = [s["mean"] - s["ported_mean"] for s in found]
    figures["stability: mean - ported_mean"] = f"{over[0]:.3f}"
    spread["stability: mean - ported_mean"] = f"{min(over):.3f} to {max(over):.3f}"
    figures["votes by BIC"] = " ".join(str(votes.result.votes[s]) for s in study.sites.names)
    figures["classes by the spectrum"] = str(votes.result.n_clusters_by_eigenvalues)
    stamp = table_hash(HERE)
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("figure", "value", "spread", "code_hash"))
        for name, value in figures.items():
            writer.writerow((name, value, spread.get(name, ""), stamp))
            print(name, value, spread.get(name, ""), flush=True)


if __name__ == "__main__":
    main()
