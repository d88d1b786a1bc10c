"""Reports: structure, escaping, the same bytes for the same run, and no data value."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from consilience import (
    Columns,
    EnsembleClustering,
    Federation,
    MeanAndSD,
    Policy,
    Preparation,
    load_run,
)
from consilience import report as room
from consilience.clustering.report import figures_classes
from consilience.clustering.report.ensemble_clustering import EnsembleClusteringReport
from consilience.engines import rundir
from consilience.engines.federation import Run
from consilience.exceptions import ParameterError, RunError
from consilience.protocol import BUILT_IN
from consilience.protocol.method import get_method
from consilience.report import charts, disclosure, figures, html, sections
from consilience.report.sections import said
from tests.granted import GRANTED
from tests.report.told import answered

ANCHORS = ("question", "answer", "evidence", "left", "limits", "methods")
EVIL = "<script>alert(1)</script>"
COLUMNS = ("a", "b", f"c{EVIL}", "price $ in $")
CANARY = "canary-7c31"


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def tables(n_sites: int = 3, seed: int = 0) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    centres = np.array([[2.0, 2, 2, 2], [-2, -2, 2, 0], [0, 2, -2, -2]])
    found = {}
    for i in range(n_sites):
        z = rng.integers(0, 3, size=90)
        frame = pd.DataFrame(centres[z] + rng.normal(size=(90, 4)), columns=list(COLUMNS))
        frame["y"] = z + rng.normal(size=90)
        frame["name"] = [f"{CANARY}-{i}-{j}" for j in range(90)]
        frame["unused"] = 918273.645
        found[f"s{i}"] = frame
    return found


def federation(found: dict[str, pd.DataFrame], **settings: Any) -> Federation:
    columns = Columns(features=COLUMNS, target="y", id="name")
    settings = {"policy": GRANTED, "preparation": Preparation(standardize="pooled"), **settings}
    return Federation.local(found, columns=columns, **settings)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "clusters"
    method = EnsembleClustering(n_clusters="vote", stability_pairs=2, n_init=3)
    federation(tables()).run(method, seed=1, out=path)
    return path


@pytest.fixture(scope="module")
def run(directory: Path) -> Run:
    return load_run(directory)


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return html.render(run)


@pytest.fixture(scope="module")
def moments() -> Run:
    return federation(tables()).run(MeanAndSD(), seed=1)


def with_result(run: Run, **changes: Any) -> Run:
    return dataclasses.replace(run, result=dataclasses.replace(run.result, **changes))


# --- structure ------------------------------------------------------------------------------


def test_sections_in_order(page: str, moments: Run) -> None:
    for text in (page, html.render(moments)):
        ids = [attrs.get("id") for tag, attrs in Page(text).tags if tag == "section"]
        assert tuple(ids) == ANCHORS


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    for tag, attrs in Page(page).tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        for name, value in attrs.items():
            if name in ("src", "srcset", "href", "xlink:href", "data", "action", "poster"):
                assert value is not None
                assert value.startswith(("#", "data:image/png;base64,"))
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert "http" not in without_names.replace("http-equiv", "")
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_ids_are_unique_and_links_arrive(page: str) -> None:
    tags = Page(page).tags
    ids = Counter(attrs["id"] for _, attrs in tags if "id" in attrs)
    # Matplotlib defines a marker again wherever it is drawn with other lines; same id, same shape.
    drawn_twice = {i for i, n in ids.items() if n > 1}
    assert all(re.search(r"-[mhp][0-9a-f]{10}$", str(i)) for i in drawn_twice)
    links = {str(attrs[k])[1:] for _, attrs in tags for k in ("href", "xlink:href") if k in attrs}
    assert links <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_the_answer_has_one_figure_and_evidence_opens_on_demand(page: str, moments: Run) -> None:
    answer, evidence, left, _ = (
        part.partition("</section>")[0] for part in page.split("<section")[2:6]
    )
    assert answer.count("<figure") == 1 and "left the sites, all of it of class" in answer
    # What is folded is printed all the same, and a warning in it shows on its lid.
    folds = re.findall(r'<details class="block printed"><summary><h3>(.*?)</summary>', evidence)
    assert len(folds) >= 5 and any("Take care" in lid for lid in folds)
    assert '<div class="block">' not in evidence
    assert left.count('<div class="block">') == 1 and "<h3>In short</h3>" in left
    # Without a figure the evidence stands open.
    plain = html.render(moments).split("<section")[3]
    assert '<div class="block">' in plain and "svg" not in plain.partition("</section>")[0]


def test_many_remarks_fold(monkeypatch: pytest.MonkeyPatch, moments: Run) -> None:
    class Talkative(sections.MethodReport):
        def headline(self, run: Run) -> sections.Headline:
            return sections.Headline("It is so.", "plain", tuple(f"Word {i}." for i in range(7)))

    monkeypatch.setattr(sections, "report_of", lambda method: Talkative())
    page = html.render(moments)
    assert page.index("Word 2.") < page.index("4 further remarks") < page.index("Word 3.")


def test_letters_of_drawings_stay_legible_where_there_is_no_room(page: str) -> None:
    """Eleven pixels or more of the smallest, as far as the whole drawing has them."""
    drawings = re.findall(r"<svg.*?</svg>", page, re.S)
    for svg in drawings:
        (wide, least) = map(int, re.findall(r"width:(\d+)px;--least:(\d+)px", svg)[0])
        smallest = min(float(x) for x in re.findall(r"font(?:-size)?: ([\d.]+)px", svg))
        assert least <= wide
        assert smallest * 4 / 3 * least / wide >= min(html.SMALLEST, smallest * 4 / 3) - 0.05
        assert ('class="wide"' in svg) is (least > html.PHONE), "a phone says that there is more"


def test_a_narrow_sheet_has_fewer_panels_side_by_side() -> None:
    with charts.narrow():
        figure, found = charts.panels(3, 2.0, 3, sharex=True)
        assert figure.get_size_inches().tolist() == [charts.NARROW, 4.0]
        # The second has none below it: it names its own numbers.
        assert found[0].get_position().x0 == found[2].get_position().x0
        assert [ax.xaxis.get_tick_params()["labelbottom"] for ax in found] == [False, True, True]
        figure, (above, below) = charts.panels(2, 2.0, 2, width_ratios=(1, 2))
        assert above.get_position().y0 > below.get_position().y1 and figure.get_figheight() == 4
        fig, ax = charts.sheet(2.0)
        ax.plot([0, 1], label="a line with a long name, and then some")
        ax.plot([1, 0], label="another line with a long name, and then some")
        ax.set_xlabel(
            "words of an axis that are far longer than a telephone is broad, as they can be"
        )
        charts.legend(fig, ncols=2)
        assert fig.get_figheight() == pytest.approx(2.2)
        assert charts.fit(fig)
        assert ax.get_xlabel().count("\n") == 1 and fig.get_figheight() == pytest.approx(2.36)
        for columns, fits in ((6, True), (16, False)):
            fig, ax = charts.sheet(2.0)
            charts.cell_axes(ax, ["row"], [f"class {k}" for k in range(columns)])
            assert charts.fit(fig) is fits, "names must not be drawn over one another"
    assert charts.room() == charts.WIDTH


def test_letters_on_colours_have_the_contrast_of_text() -> None:
    """Of 4.5 at least, by the luminance of WCAG 2.2 written out."""

    def luminance(face: Any) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(face)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    shades = [scale(v)[:3] for scale in (charts.DIVERGING, charts.RISING) for v in range(21)]
    for face in (*charts.CLASS_COLOURS, *shades):
        low, high = sorted(luminance(one) for one in (face, charts.letters_on(face)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, face


def test_figures_and_tables_are_accessible(page: str) -> None:
    tags = Page(page).tags
    drawings = [attrs for tag, attrs in tags if tag == "svg"]
    assert len(drawings) >= 7
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for attrs in drawings)
    count = Counter(tag for tag, _ in tags)
    # A drawing too wide for a telephone has a narrow form, of which one is shown.
    both = Counter(attrs.get("class") for tag, attrs in tags if tag == "div")
    assert both["broad"] == both["slim"]
    assert count["figure"] == count["figcaption"] == len(drawings) - both["slim"]
    assert count["table"] == count["caption"] == count["thead"]
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in tags if tag == "th")


def test_a_report_says_how_fields_travelled(moments: Run) -> None:
    sealed = [
        dataclasses.replace(x, protection="sealed to coordinator") for x in moments.transcript
    ]
    moved = dataclasses.replace(moments, transcript=tuple(sealed))
    here, there = (Page(html.render(one)).text for one in (moments, moved))
    assert "on its way" in here and "sealed to" not in here
    assert "sealed to coordinator" in there


def test_what_left_each_site_is_that_of_the_transcript(run: Run, page: str) -> None:
    text = Page(page).text
    sent = [line for line in run.transcript if line.direction == "from-site"]
    for site in run.info.sites:
        total = sum(line.bytes for line in sent if line.site == site)
        assert f"{total:,}" in text
    assert f"{sum(line.bytes for line in sent):,}" in text
    assert run.transcript[-1].chain in text
    for field in {line.field for line in sent}:
        assert field in text
    assert "one-shot federated ensemble clustering" in text.lower()


def test_a_notebook_shows_answer_page_and_figures(run: Run, page: str, tmp_path: Path) -> None:
    found = run.report()
    assert found.html == page
    assert found.save(tmp_path / "page.html").read_text() == page
    frame = Page(found._repr_html_())
    assert frame.tags[0][0] == "iframe" and frame.tags[0][1]["srcdoc"] == page
    names = set(run.figures)
    assert {"shares", "disclosure"} < names
    assert isinstance(run.plot("shares"), Figure)
    with pytest.raises(ParameterError, match=r"name must be one of .*disclosure"):
        run.plot("stabilty")
    shown = run._repr_html_()
    assert EnsembleClusteringReport().headline(run).text in Page(shown).text
    for text in (shown, run.result._repr_html_()):
        assert EVIL not in text and "<table" in text
    answer = run.result.summary()
    assert repr(run).endswith(f"in {run.directory}: {answer}")
    assert repr(run.result) == f"EnsembleClusteringResult: {answer}"
    made = federation(tables())
    assert len(repr(made)) < 200
    assert "<th>features</th>" in made._repr_html_() and repr(made).split()[0] in made._repr_html_()
    own = "".join(Page(Policy(min_records=20)._repr_html_()).text.split())
    assert "min_records20own" in own and "max_share0.5preset" in own


def test_a_result_draws_its_figures_also_when_it_was_read_back(run: Run) -> None:
    assert run.directory is not None
    for result in (run.result, load_run(run.directory).result):
        assert result.figures == tuple(run.figures) and result.figures[0] == "profiles"
        axes = result.plot()
        axes.set_xlabel("of my own")
        assert axes.figure is plt.gcf() and axes.figure.get_facecolor() != (0, 0, 0, 0)
        assert result.plot("profiles").get_xlabel() != "of my own", "drawn anew each time"
        assert result.plot("weights").shape == (2,)
        with pytest.raises(ParameterError, match=r"kind must be one of profiles, .*disclosure"):
            result.plot("stabilty")
        plt.close("all")


def test_whoever_keeps_a_result_keeps_no_table(moments: Run) -> None:
    """Else a file of a result, or a worker that gets one, would have the sites with it."""
    assert moments._sites and not moments.result._run._sites
    assert isinstance(moments.result.plot(), Axes)
    plt.close("all")
    for run in (copy.copy(moments), copy.deepcopy(moments), pickle.loads(pickle.dumps(moments))):
        assert run.result.figures == moments.result.figures, "a copy of a run has its own"
    for alone in (copy.deepcopy(moments.result), pickle.loads(pickle.dumps(moments.result))):
        assert alone.to_files() == moments.result.to_files()
        with pytest.raises(RunError, match="drawn with its run"):
            alone.plot()


def test_of_many_sites_a_page_lists_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with gaps first, then those that sent most; totals are those of all."""
    rng = np.random.default_rng(0)
    found = {f"s{i}": pd.DataFrame(rng.normal(size=(30, 2)), columns=["a", "b"]) for i in range(6)}
    found["s5"]["b"] = [1.0, *[0.0] * 29]
    columns = Columns(features=("a", "b"))
    run = Federation.local(found, columns=columns).run(MeanAndSD(), seed=0)
    whole = Page(html.render(run)).text
    assert "are shown: those with gaps" not in whole and not re.search("[0-9]+ other sites", whole)
    monkeypatch.setattr(disclosure, "MANY", 3)
    text = Page(html.render(run)).text
    listed = [s for s in found if f"{s}: " in text]
    assert "3 other sites" in text and "Of 6 sites, 3 are shown" in text
    assert "same 3 of 6 sites" in text
    told = [str(attributes.get("aria-label")) for _, attributes in Page(html.render(run)).tags]
    (words,) = {label for label in told if "sent the most" in label}
    assert "3 sites;" in words and any(f"{site} sent the most" in words for site in listed)
    assert len(listed) == 3 and "s5" in listed
    total = re.search(r"all sites [\d, ]+", whole)
    assert total is not None and total.group() in text


def test_limits_tell_how_to_repeat_the_run(run: Run, page: str) -> None:
    text = Page(page).text
    for words in (str(run.info.seed), run.info.release, run.info.study, *run.notes):
        assert words in text
    assert "EnsembleClustering(n_init=3, stability_pairs=2).run(federation, seed=1)" in text


def test_a_method_without_words_of_its_own(moments: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(sections.report_of("no-such-method")) is sections.MethodReport
    monkeypatch.setattr(sections, "report_of", lambda method: sections.MethodReport())
    page = Page(html.render(moments))
    assert "270 rows." in page.text
    assert "What each site sent" in page.text
    frame = moments.result.to_frame()
    assert all(str(name) in page.text for name in frame.index)


def test_a_refusal_is_told(tmp_path: Path) -> None:
    found = tables()
    found["s2"] = found["s2"].drop(columns=["a"])
    run = federation(found, quorum=2).run(MeanAndSD(), seed=1)
    text = Page(html.render(run)).text
    refused = next(line for line in run.transcript if line.verdict == "refused")
    assert "Who did not answer" in text
    assert refused.rule in text
    assert text.count("s2 did not answer in every round") == 3  # answer, what left, paragraph
    assert "180 rows of 2 sites" in text


def test_simulation_is_said_loudly(run: Run, page: str) -> None:
    assert 'class="band"' not in page
    federated = federation(tables(), policy={"s0": "simulation", "s1": "strict", "s2": "strict"})
    text = html.render(federated.run(MeanAndSD(), seed=1))
    assert 'class="band"' in text
    assert "s0 run under the policy for one person" in text


# --- headline -------------------------------------------------------------------------------


NAN = float("nan")
STABLE = {
    "n_clusters": 3,
    "pairs": 20,
    "mean": 0.9,
    "low": 0.85,
    "high": 0.95,
    "alone_mean": 0.6,
    "strength": 0.87,
    "fewer_strength": 0.91,
    "ported_mean": 0.6,
    "by_site": {"s0": 0.9, "s1": 0.9, "s2": 0.9},
    "apart": 3.2,
    "related": 6.1,
    "between": 0.04,
    "cloud_between": 0.18,
    "apart_by_site": {"s0": 2.0, "s1": 1.5, "s2": 2.1},
}


@pytest.mark.parametrize(
    ("changes", "tone", "words"),
    [
        ({}, "good", "more than a division of one cloud"),
        ({"apart": 1.7}, "good", "more than a division of one cloud"),
        ({"apart": 1.6}, "caution", "divide a gradient"),
        ({"apart": 0.2, "related": 1.0}, "caution", "nothing speaks for classes"),
        ({"apart": NAN}, "caution", "cannot be said: no site has enough rows"),
        ({"mean": 0.4, "low": 0.09}, "caution", "two halves agree by 0.40 only"),
        ({"pairs": 2}, "caution", "rests on 2 pairs of halves"),
        ({"strength": 0.62}, "caution", "2 classes are found again more surely"),
        ({"strength": 0.62, "fewer_strength": 0.5}, "good", "more than a division"),
    ],
)
def test_headline_does_not_overclaim(
    run: Run, changes: dict[str, float], tone: str, words: str
) -> None:
    given = with_result(run, stability_figures={**STABLE, **changes}, votes={}, chosen_by="given")
    headline = EnsembleClusteringReport().headline(given)
    assert headline.tone == tone
    assert words in answered(headline)


def test_limits_say_which_rows_of_one_kind_look_like_classes(run: Run) -> None:
    limits = " ".join(EnsembleClusteringReport().limits(run))
    assert "share a rate" in limits and "with logarithms" in limits


def test_one_class_where_two_would_be_more(run: Run) -> None:
    given = with_result(
        run,
        n_clusters=1,
        stability_figures={**STABLE, "n_clusters": 2},
        votes={},
        chosen_by="given",
    )
    headline = EnsembleClusteringReport().headline(given)
    assert headline.tone == "caution"
    assert "But 2 classes are more than a division of one cloud" in answered(headline)
    without = with_result(given, stability_figures={**STABLE, "n_clusters": 2, "apart": 0.3})
    headline = EnsembleClusteringReport().headline(without)
    assert headline.tone == "plain" and "But" not in headline.text


def test_headline_without_stability_and_with_split_votes(run: Run) -> None:
    silent = EnsembleClusteringReport().headline(with_result(run, stability_figures={}))
    assert silent.tone == "caution"
    assert "was not examined" in silent.text
    votes = {"s0": 2, "s1": 3, "s2": 3}
    split = with_result(run, stability_figures=STABLE, votes=votes, chosen_by="vote")
    assert EnsembleClusteringReport().headline(split).tone == "caution"
    text = Page(html.render(split)).text
    assert "votes on the number of classes disagree" in text
    assert "The votes disagree, so this number should not be trusted." in text


# --- text of other parties ------------------------------------------------------------------


def renamed(run: Run, old: str, new: str) -> Run:
    """The same run with another name for a site, everywhere."""

    def swap(value: Any) -> Any:
        if isinstance(value, str):
            return new if value == old else value
        if isinstance(value, dict):
            return {swap(k): swap(v) for k, v in value.items()}
        if isinstance(value, tuple):
            return tuple(swap(v) for v in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: swap(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return type(value)(**fields)
        return value

    return swap(run)


def test_names_and_notes_are_escaped(run: Run) -> None:
    evil = renamed(run, "s1", EVIL)
    assert EVIL in evil.info.sites
    first = dataclasses.replace(evil.transcript[0], verdict="refused", rule=EVIL, site=EVIL)
    first = dataclasses.replace(first, direction="from-site", field="")
    info = dataclasses.replace(evil.info, name=EVIL, run=EVIL)
    evil = dataclasses.replace(
        evil, info=info, notes=(EVIL, "</style>"), transcript=(*evil.transcript, first)
    )
    text = html.render(evil)
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert EVIL not in text
    assert text.count("</style>") == 1
    assert EVIL in page.text  # it is shown, as text


def test_names_are_never_mathematics_nor_control_signs(run: Run) -> None:
    assert "price $ in $" in Page(html.render(run)).text
    odd = renamed(run, "s1", "a$\\frac{1}{0}$\x00\x1b\ud800")
    text = figures_classes.plot_class_shares(odd.result)
    drawn = html.inline_svg(text, "x", "x")
    assert "\x00" not in drawn
    assert "frac{1}{0}$" in drawn


def test_no_data_value(run: Run, page: str) -> None:
    assert CANARY not in page
    assert "918273" not in page
    values = np.concatenate(
        [frame[list(COLUMNS)].to_numpy().ravel() for frame in tables().values()]
    )
    shown = {float(x) for x in re.findall(r"-?\d+\.\d{4,}", re.sub(r"<svg.*?</svg>", "", page))}
    assert not shown.intersection(np.round(values, 4))


# --- the file -------------------------------------------------------------------------------


def test_same_run_same_bytes(run: Run, page: str) -> None:
    assert html.render(run) == page


def test_same_seed_same_report_but_for_salt_and_id(moments: Run) -> None:
    again = federation(tables()).run(MeanAndSD(), seed=1)

    def neutral(run: Run) -> str:
        text = html.render(run).replace(run.transcript[-1].chain, "CHAIN")
        return text.replace(run.info.run, "RUN")

    assert neutral(moments) == neutral(again)


def test_from_directory_and_after_purge(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = federation(tables()).run(MeanAndSD(), seed=1, out=out)
    first = room.write(out)
    assert first == out / "report.html"
    content = first.read_bytes()
    rundir.purge(out)
    assert not (out / "journal").exists()
    assert room.write(str(out)).read_bytes() == content
    elsewhere = tmp_path / "shelf"
    elsewhere.mkdir()
    assert room.write(run, elsewhere) == elsewhere / "report.html"
    assert (elsewhere / "report.html").read_bytes() == content
    assert sorted(p.name for p in elsewhere.iterdir()) == ["report.html"]


def test_errors(moments: Run, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="path"):
        room.write(moments)
    with pytest.raises(RunError, match="holds no run"):
        room.write(tmp_path)


# --- figures --------------------------------------------------------------------------------

PLOTS = (
    room.plot_class_profiles,
    room.plot_class_shares,
    room.plot_eigenvalues,
    room.plot_stability,
    room.plot_target_by_class,
    room.plot_votes,
    room.plot_weights,
)


def large(run: Run, n_sites: int, k: int, p: int) -> Any:
    """A result of that size, with long names and gaps."""
    rng = np.random.default_rng(0)
    names = tuple(f"site {i} of a rather long and descriptive name" for i in range(n_sites))
    means = rng.normal(size=(k, p))
    means[0, 0] = np.nan
    sizes = {name: rng.integers(0, 90, size=k) for name in names}
    return dataclasses.replace(
        run.result,
        feature_names=tuple(f"column {j} {'x' * (j * 3)}" for j in range(p)),
        n_clusters=k,
        class_sizes=np.sum(list(sizes.values()), axis=0),
        class_sizes_by_site=sizes,
        class_means=means,
        class_means_scaled=means * 2,
        target_means=rng.normal(size=k),
        target_means_by_site={name: rng.normal(size=k) for name in names},
        model_names=names,
        owners=names,
        weights=np.full(n_sites, n_sites**-0.5),
        agreement=np.full((n_sites, n_sites), 0.8),
        votes={name: int(rng.integers(0, 5)) for name in names},
        vote_scores={name: rng.normal(size=6) for name in names},
        counted=dict.fromkeys(names, "merged"),
        stability_figures={**STABLE, "by_site": dict.fromkeys(names, 0.9)},
    )


@pytest.mark.parametrize("k", [1, 2, 6])
def test_the_scale_of_a_profile_can_be_read(run: Run, k: int) -> None:
    result = large(run, 3, k, 4)
    small = 0.2 * np.tanh(result.class_means_scaled)
    figure = room.plot_class_profiles(dataclasses.replace(result, class_means_scaled=small))
    figure.draw_without_rendering()
    (bar,) = (ax for ax in figure.axes if ax.get_label() == "<colorbar>")
    # A browser's letters may be wider than those that were measured here: half of it stays free.
    widths = [text.get_window_extent().width for text in bar.get_xticklabels()]
    assert len(widths) > 2 and 2 * sum(widths) < bar.get_window_extent().width


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 2, 4), (50, 10, 60), (70, 20, 2)])
def test_figures_of_any_size_keep_their_labels_inside(run: Run, size: tuple[int, ...]) -> None:
    result = large(run, *size)
    for plot in PLOTS:
        figure = plot(result)
        assert isinstance(figure, Figure)
        drawn = html.inline_svg(figure, "x", "words")
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
        assert box is not None
        width, height = (float(v) for v in box.groups())
        assert width < 72 * 9.5, plot.__name__  # the page is as wide as that
        assert height < 72 * 24, plot.__name__
        smallest = min(float(v) for v in re.findall(r"font-size: ([\d.]+)px", drawn))
        assert smallest >= (5 if size[0] > 60 else 8), plot.__name__


def test_colours_follow_the_page(run: Run) -> None:
    drawn = html.inline_svg(room.plot_votes(run.result), "x", "words")
    assert "var(--ink)" in drawn
    for colour in (charts.INK, charts.MUTED, charts.RULE, charts.PAPER):
        assert colour not in drawn


def test_unscaled_columns_are_compared_with_themselves(run: Run) -> None:
    means = np.array([[1.0, 1000], [3, 3000]])
    changed = dataclasses.replace(
        run.result, class_means=means, class_means_scaled=means, class_sizes=np.array([10, 10])
    )
    values, standard = figures.profile_values(changed)
    assert not standard
    np.testing.assert_allclose(values, [[-1, 1], [-1, 1]])


def test_no_figure_stays_open(run: Run) -> None:
    import matplotlib
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    html.render(run)
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_numbers_are_written_for_people() -> None:
    assert sections.numbers([1.0, np.nan, -0.0001]) == ("1.00", sections.DASH, "0.00")
    assert sections.numbers([137.72, 2.0]) == ("137.7", "2.0")
    assert sections.plain([[1, 2]]) == "1 row of 2 numbers"
    assert sections.plain([["sex", "stage"], ["sex", "arm"]]) == "sex, stage; sex, arm"
    assert sections.numbers([0.0543]) == ("0.0543",)
    assert sections.numbers([1.2e-9]) == ("1.20e\N{MINUS SIGN}09",)
    assert sections.numbers([-12.5, 3.0]) == ("\N{MINUS SIGN}12.5", "3.0")
    assert sections.number(-7) == "\N{MINUS SIGN}7"
    assert sections.number(1234567) == "1,234,567"
    assert sections.number(None) == sections.number(()) == "none"
    assert sections.listed(["a"]) == "a"
    assert sections.listed(["a", "b", "c"]) == "a, b and c"
    assert sections.listed([str(i) for i in range(14)]).endswith("11 and 2 more")
    assert sections.listed([str(i) for i in range(13)]).endswith("11 and 12")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{% macro handlin() %}x{% endmacro %}{% macro evidence() %}x{% endmacro %}", "'handlin'"),
        ("{% macro limits() %}x{% endmacro %}", "no macro 'evidence'"),
    ],
)
def test_a_misspelt_macro_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    page = tmp_path / "page.j2"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        said(page, "evidence", {})


def test_a_slot_that_may_be_empty_is(tmp_path: Path) -> None:
    page = tmp_path / "page.j2"
    text = "{% macro own() %}x{% endmacro %}{% macro evidence() %}{{ own() }}{% endmacro %}"
    page.write_text(text, encoding="utf-8")
    assert said(page, "evidence", {}) == ["x"]
    assert said(page, "limits", {}) == []


def test_ticks_at_whole_numbers_reach_the_end() -> None:
    assert [list(charts.whole_ticks(top)) for top in (0, 1, 6)] == [[0], [0, 1], list(range(7))]
    assert list(charts.whole_ticks(14)) == [0, 3, 6, 9, 12]


# --- for a paper ------------------------------------------------------------------------------


def test_a_paragraph_for_a_paper_says_method_settings_rounds_what_left_and_sources(
    run: Run, moments: Run, page: str
) -> None:
    told, ours, theirs = run.methods_paragraph().split("\n\n")
    facts = disclosure.in_short(run)
    for words in (
        f"Data of {len(run.info.sites)} sites",
        f"ensemble-clustering (version {run.info.method_version}) of Consilience",
        "Parameters were the defaults but for ",
        "n_init = 3",
        "stability_pairs = 2",
        "; the seed was 1",
        f"In {facts['rounds']} rounds of messages, also those that agree on columns, ",
        f"{sections.size(facts['total'])} left them",
        "aggregate (counts, sums and statistics over records)",
    ):
        assert words in told, words
    assert run.info.release in ours and run.info.run in ours and "arXiv 2409.08396" in theirs
    assert "Departures" not in theirs and "*" not in theirs
    assert told[:60] in page
    assert len(moments.methods_paragraph().split("\n\n")) == 2, "a mean has no source"


def test_meanings_of_parameters_are_plain_words() -> None:
    class Marked:
        """A method.

        Parameters
        ----------
        trim : float
            Of the *other* sites' `rows`, by k**power * 2.
        """

    assert html.meanings_of(Marked) == {"trim": "Of the other sites' rows, by k**power * 2."}


def test_defaults_as_files_keep_them_are_no_settings(moments: Run) -> None:
    kept = {"bins": {}, "tables": [], "quantiles": [0.25, 0.5, 0.75]}
    info = dataclasses.replace(moments.info, method="describe", parameters=kept)
    run = dataclasses.replace(moments, info=info)
    assert html._changed(run, get_method("describe")) == []
    kept["tables"] = [["a", "b"]]
    assert html._changed(run, get_method("describe")) == [("tables", [["a", "b"]])]


def test_every_method_of_a_paper_has_a_source() -> None:
    cited = {name: html.source(get_method(name)) for name in BUILT_IN}
    assert {name for name, source in cited.items() if not source} == {"mean-and-sd", "describe"}
    assert not any(set("*`") & set(source) for source in cited.values())


def test_withheld_means_say_so(run: Run) -> None:
    means = run.result.class_means.copy()  # type: ignore[attr-defined]
    means[0, 0] = np.nan
    text = html.render(with_result(run, class_means=means))
    assert ">withheld</td>" in text and "Withheld: no site had enough rows" in text
