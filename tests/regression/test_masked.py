"""Pooled regressions of which the coordinator sees totals alone: the fit of a run in plain."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from consilience import Columns, Federation, PooledRegression, Preparation
from consilience.engines.federation import load_run
from consilience.exceptions import (
    ConsilienceError,
    ParameterError,
    ProtocolError,
    QuorumError,
    WireError,
)
from consilience.protocol.method import Ask, CoordinatorContext, Exchange
from consilience.protocol.phases.secure_sums import MASKED
from consilience.regression import protocol as masked_sums
from consilience.regression.report.pooled_regression import REPORT
from consilience.report import plot_forest
from consilience.testing.fakes import scripted
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure
from tests.cli.workspace import Workspace, call
from tests.regression.test_negative_binomial import FAMILY, counts
from tests.regression.test_pooled_regression import FAMILIES, NAMES, design_of, draw, stacked
from tests.regression.test_weights_and_offset import with_roles

# Rounds of a run: 1 opening, 2 introductions, 3 meeting, then a sum and its opening in turns.
FIRST, SECOND, THIRD = 4, 6, 8


def sites_of(family: str, number: int = 3) -> dict[str, pd.DataFrame]:
    drawn = {f"s{b:02}": draw(family, 90 + 11 * b, 70 + b, shift=0.02 * b) for b in range(number)}
    return {name: table.assign(known=table["dose"] * 20) for name, table in drawn.items()}


GAUSSIAN = sites_of("gaussian")


def both(
    tables: Any, policy: Any = "simulation", roles: Any = None, more: Any = None, **parameters: Any
) -> tuple[Any, Any]:
    """A run in plain and one with masked sums."""
    columns = Columns(features=NAMES, target="y", **(roles or {}))
    runs = []
    for sums in ("plain", "secure"):
        made = Federation.local(tables, columns=columns, policy=policy, sums=sums, **(more or {}))
        runs.append(PooledRegression(**parameters).run(made, seed=0))
    return runs[0], runs[1]


FIGURES = ("scale", "deviance", "null_deviance", "log_likelihood", "aic", "alpha", "alpha_error")


def check_equal(found: Any, wanted: Any, tolerance: float = 1e-9) -> None:
    close: dict[str, Any] = {"rtol": tolerance, "atol": 1e-12}
    unit = np.sqrt(np.diag(wanted.covariance))
    for name in ("estimate", "error", "low", "high"):
        both_of = (getattr(one, name) / unit for one in (found, wanted))
        np.testing.assert_allclose(*both_of, **close)
    both_of = (one.covariance / np.outer(unit, unit) for one in (found, wanted))
    np.testing.assert_allclose(*both_of, **close)
    np.testing.assert_allclose(found.p_value, wanted.p_value, rtol=1e-7, atol=1e-14)
    for name in FIGURES:
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), **close)
    assert set(found.tests) == set(wanted.tests)
    for name, told in wanted.tests.items():
        np.testing.assert_allclose(found.tests[name][:2], told[:2], **close)
    assert (found.n, found.names, found.sites) == (wanted.n, wanted.names, wanted.sites)


# --------------------------------------------------------------------------- results


@pytest.mark.parametrize("number", [3, 5, 12])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_run_in_plain_and_the_fit_of_statsmodels(family: str, number: int) -> None:
    tables = sites_of(family, number)
    plain, masked = both(tables, family=family)
    check_equal(masked.result, plain.result)
    x, y, sites = stacked(tables)
    model = sm.GLM(y, design_of(x, sites, False), family=FAMILIES[family])
    expected = model.fit(tol=1e-14, maxiter=300)
    np.testing.assert_allclose(masked.result.estimate, expected.params, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(masked.result.error, expected.bse, rtol=1e-8)
    assert masked.result.log_likelihood == pytest.approx(expected.llf, rel=1e-9)


@pytest.mark.parametrize("errors", ["HC0", "HC1"])
@pytest.mark.parametrize("family", FAMILIES)
def test_robust_errors_are_those_of_the_run_in_plain(family: str, errors: str) -> None:
    plain, masked = both(sites_of(family), family=family, errors=errors)
    check_equal(masked.result, plain.result)


@pytest.mark.parametrize("policy", ["simulation", "consortium"])
@pytest.mark.parametrize(
    "how", [{"alpha": 0.5}, {"dispersion": "moments"}, {"dispersion": "likelihood"}], ids=str
)
def test_negative_binomial_fits_are_those_of_the_run_in_plain(how: Any, policy: str) -> None:
    if policy == "consortium" and how.get("dispersion") == "likelihood":
        with pytest.raises(QuorumError, match="may not be told at some site"):
            _masked_alone(counts(), policy, family=FAMILY, **how)
        return
    plain, masked = both(counts(), policy, {"offset": "known"}, family=FAMILY, **how)
    check_equal(masked.result, plain.result)
    assert masked.result.dispersion == plain.result.dispersion


def _masked_alone(tables: Any, policy: Any, **parameters: Any) -> Any:
    columns = Columns(features=NAMES, target="y")
    made = Federation.local(tables, columns=columns, policy=policy, sums="secure")
    return PooledRegression(**parameters).run(made, seed=0)


@pytest.mark.parametrize("weights", ["none", "precision", "frequency"])
@pytest.mark.parametrize("family", FAMILIES)
def test_offset_and_weights_count_as_in_plain(family: str, weights: str) -> None:
    tables = with_roles(family, whole=weights == "frequency")
    roles = {"offset": "known"} | ({} if weights == "none" else {"weight": "weight"})
    more = {} if weights == "none" else {"weights": weights}
    plain, masked = both(tables, roles=roles, family=family, **more)
    check_equal(masked.result, plain.result)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_ridge_and_one_scale_count_as_in_plain(family: str) -> None:
    scaled = {"preparation": Preparation(standardize="pooled")}
    plain, masked = both(sites_of(family), more=scaled, family=family, ridge=2.0)
    check_equal(masked.result, plain.result)


def test_under_strict_a_gaussian_fit_needs_no_grant() -> None:
    plain, masked = both(sites_of("gaussian"), "strict")
    check_equal(masked.result, plain.result)


# --------------------------------------------------------------------------- what is withheld


def with_a_rare_column() -> dict[str, pd.DataFrame]:
    tables = sites_of("gaussian", 4)
    rare = tables["s01"]
    return tables | {"s01": rare.assign(ward=(np.arange(len(rare)) < 3) * 1.0)}


def test_a_column_that_some_sites_withhold_stops_the_run() -> None:
    with pytest.raises(QuorumError, match=r"some sites may not tell ward: .*without-column"):
        _masked_alone(with_a_rare_column(), "strict")


def test_the_fit_goes_without_a_column_that_some_sites_withhold() -> None:
    plain, masked = both(with_a_rare_column(), "strict", when_withheld="without-column")
    check_equal(masked.result, plain.result)
    assert masked.result.columns == ("age", "dose")
    assert masked.result.withheld == {"some sites": ("ward",)}
    assert "Some sites withhold ward: the fit goes without." in masked.result.summary()


def test_a_figure_that_some_site_keeps_back_is_not_told_of_the_others() -> None:
    """Where counts are rare at one site, log likelihood and deviance are not known."""
    tables = sites_of("poisson", 3)
    coarse = {name: t.assign(y=(t["age"] > 60) * 2.0) for name, t in tables.items()}
    plain, masked = both({**coarse, "s02": tables["s02"]}, "consortium", family="poisson")
    check_equal(masked.result, plain.result)
    assert np.isnan(masked.result.deviance) and np.isfinite(masked.result.loss)
    _, told = both(coarse, "consortium", family="poisson")
    assert np.isfinite(told.result.deviance)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"family": "cox", "time": "age"}, "fits no Cox regression from masked sums"),
        ({"family": "binomial", "fit": "one-shot"}, "set fit to 'exact'"),
        ({"site_effects": True}, "set site_effects to false"),
        ({"family": "binomial", "performance": True}, "set performance to false"),
        ({"errors": "cluster"}, "set errors to 'model', 'HC0' or 'HC1'"),
        ({"when_withheld": "without-site"}, "set when_withheld to 'stop' or 'without-column'"),
    ],
    ids=str,
)
def test_what_takes_sites_one_by_one_is_refused_before_anything_is_asked(
    parameters: Any, says: str, tmp_path: Path
) -> None:
    columns = Columns(features=NAMES, target="y")
    made = Federation.local(sites_of("gaussian"), columns=columns, sums="secure")
    with pytest.raises(ConsilienceError, match=re.escape(says)) as told:
        PooledRegression(**parameters).run(made, seed=0, out=tmp_path / "run")
    assert str(told.value).endswith("or leave sums = 'secure' out of the study")
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------- who is lost


def with_script(tables: Any, script: Any, quorum: int = 4) -> Any:
    columns = Columns(features=NAMES, target="y")
    made = Federation.local(tables, columns=columns, policy="consortium", sums="secure")
    made = dataclasses.replace(made, quorum=quorum)
    return PooledRegression(family="binomial").run(scripted(made, script), seed=0)


@pytest.mark.parametrize("when", [1, FIRST])
@pytest.mark.parametrize("action", ["absent", "refused"])
def test_a_site_that_is_lost_before_it_gave_is_not_in_the_fit(when: int, action: str) -> None:
    tables = sites_of("binomial", 5)
    found = with_script(tables, {(when, "s02"): action}).result
    others = {name: t for name, t in tables.items() if name != "s02"}
    plain, _ = both(others, "consortium", family="binomial")
    check_equal(found, plain.result)


@pytest.mark.parametrize("when", [SECOND, THIRD])
def test_a_site_that_is_lost_after_it_gave_stops_the_run(when: int) -> None:
    with pytest.raises(QuorumError, match="s02 was absent"):
        with_script(sites_of("binomial", 5), {(when, "s02"): "absent"})


@pytest.mark.parametrize("round_", [FIRST, SECOND, SECOND + 1, THIRD])
def test_a_run_that_stopped_goes_on_with_the_same_answer(round_: int, tmp_path: Path) -> None:
    columns = Columns(features=NAMES, target="y")
    tables, method = sites_of("binomial"), PooledRegression(family="binomial")

    class Killed(Exception):
        pass

    def stop(kind: str, facts: dict[str, Any]) -> None:
        if kind == "arrived" and facts["round"] == round_:
            raise Killed

    made = Federation.local(tables, columns=columns, policy="consortium", sums="secure")
    path = tmp_path / "run"
    with pytest.raises(Killed):
        method.run(made, seed=0, run_id="kept", out=path, on_event=stop)
    run = method.run(made, out=path, run_id="kept", resume=True)
    again = Federation.local(tables, columns=columns, policy="consortium", sums="secure")
    whole = method.run(again, seed=0, run_id="kept")
    assert run.result.to_files() == whole.result.to_files()
    assert load_run(path).result.to_files() == whole.result.to_files()


# --------------------------------------------------------------------------- what leaves


def test_no_number_of_a_site_leaves_but_in_masks() -> None:
    _, run = both(sites_of("binomial", 5), "consortium", family="binomial", errors="HC0")
    lines = [line for line in run.transcript if line.direction == "from-site"]
    assert {line.disclosure for line in lines} == {"masked", "public"}
    steps = {line.step for line in lines if line.disclosure == "masked"}
    assert steps == {"totals", "products", "sums"}
    asked = {line.step for line in run.transcript}
    assert not asked & {"moments", "own-fit", "judge"}


class ByConstants(PooledRegression):
    """Asks for sums at a constant that takes all sites but the first out of the total."""

    def _asked(self, ctx: CoordinatorContext, survey: Any, theta: Any, *more: Any) -> Exchange:
        told = type(survey).coefficients

        def apart(self: Any, theta: Any) -> Any:
            found = told(self, theta)
            found["constants"].value[1:] = -12.0
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(survey), "coefficients", apart)
            return (yield from super()._asked(ctx, survey, theta, *more))


def test_constants_by_site_cannot_take_other_sites_out_of_the_total() -> None:
    """Rows at a constant far away have no curvature: that of the total would be one site's."""
    columns = Columns(features=NAMES, target="y")
    made = Federation.local(
        sites_of("binomial"), columns=columns, policy="simulation", sums="secure"
    )
    with pytest.raises(QuorumError, match="one constant for all sites: others would take"):
        ByConstants(family="binomial").run(made, seed=0)


class Elsewhere(PooledRegression):
    """Asks at coefficients of its own, and says how sites answer."""

    asked: ClassVar[Any] = ()

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "sums":
            asked = exchange.send((yield asked))
        answers = []
        for change in self.asked:
            told = {
                name: relayed(value, getattr(asked.message, name).disclosure)
                for name, value in change(asked.message).items()
            }
            replies = yield Ask("sums", dataclasses.replace(asked.message, **told))
            answers.append(str(replies[ctx.sites[0]]))
        object.__setattr__(self, "answers", answers)
        raise QuorumError("enough")


def asked_elsewhere(
    *changes: Any, family: str = "binomial", policy: Any = "consortium", tables: Any = None
) -> list[str]:
    columns = Columns(features=NAMES, target="y")
    if tables is None:
        tables = counts() if family == FAMILY else sites_of(family)
    made = Federation.local(tables, columns=columns, policy=policy, sums="secure")
    method = Elsewhere(family=family)
    with (
        mock.patch.object(Elsewhere, "asked", changes),
        pytest.raises(QuorumError, match="enough"),
    ):
        method.run(made, seed=0)
    return method.answers  # type: ignore[attr-defined]


def test_sums_are_about_the_means_of_which_products_were_told() -> None:
    """Far away they are rounded, and where they are would be of the coordinator's choice."""
    moved, same = asked_elsewhere(lambda c: {"centre": c.centre.value + 1}, lambda c: {})
    assert "about the means, of which" in moved and "Concealed" in same
    with pytest.raises(WireError, match="do not lie between 1e-30"):
        asked_elsewhere(lambda c: {"scale": 0 * c.scale.value})


def test_rounds_that_are_refused_are_counted() -> None:
    """Else slopes could be tried without an end, to find where a row has too large a share."""
    far = (lambda c: {"slopes": np.full(len(c.slopes.value), 1e3)},) * 31
    answers = asked_elsewhere(*far)
    said = [len(answers), sum("more questions on the same rows" in one for one in answers)]
    assert said == [31, 1] and not any("Concealed" in one for one in answers)


@pytest.mark.parametrize("family", ["binomial", "poisson", FAMILY])
def test_no_refusal_of_a_site_of_one_record_says_where_its_rows_are(family: str) -> None:
    """Infinite sums go into the total, and questions are counted as where records are protected."""
    slopes = np.full(len(NAMES), 1e300)
    near, far = ({"slopes": slopes, "scale": 0 * slopes + unit} for unit in (1.0, 1e-10))
    times = [lambda c: near, *[lambda c: far] * 29, lambda c: near]
    *answers, last = asked_elsewhere(*times, family=family, policy="simulation")
    told = {re.sub(r".*told=(array\([^)]*\)).*", r"\1", one, flags=re.DOTALL) for one in answers}
    assert len(answers) == 30 and len(told) == 1 and "True" in min(told)
    assert "more questions on the same rows" in last


@pytest.mark.parametrize("family", ["poisson", "gamma"])
def test_squares_next_to_nothing_are_not_refused(family: str) -> None:
    """Below 1e-308 numbers have few digits, and those of squares are not those of squares."""
    sign = -1 if family == "poisson" else 1
    asked = [
        lambda c, to=to: {
            "constants": np.full(len(c.constants.value), sign * to),
            "slopes": sign * 0.1 * np.arange(1, len(c.slopes.value) + 1),
        }
        for to in np.linspace(700, 760, 30)
    ]
    people = sites_of(family)["s00"]
    tables = {f"p{i:02}": people.iloc[[i]] for i in range(24)}
    answers = asked_elsewhere(*asked, family=family, policy="simulation", tables=tables)
    assert len(answers) == 30 and all(one.startswith("Concealed") for one in answers)


def other_columns(centre: Any) -> dict[str, Any]:
    """The column that one site withholds, too."""
    columns, mean = centre.columns.value, centre.mean.value
    more = {"columns": np.append(columns, 2), "mean": np.insert(mean, 2, 0.4)}
    return {name: relayed(value, Disclosure.AGGREGATE) for name, value in more.items()}


def other_settings(centre: Any) -> dict[str, Any]:
    return {"settings": dataclasses.replace(centre.settings, errors="cluster")}


def fewer_means(centre: Any) -> dict[str, Any]:
    return {"mean": relayed(centre.mean.value[:1], Disclosure.AGGREGATE)}


@pytest.mark.parametrize(
    ("change", "refusing", "says"),
    [
        (other_columns, 1, "not among those that the site has told sums of"),
        (other_settings, 4, ""),
        (fewer_means, 4, ""),
    ],
)
def test_products_of_another_question_than_the_totals_are_refused(
    change: Any, refusing: int, says: str
) -> None:
    """A coordinator that changes what it asks for on the way."""
    columns = Columns(features=NAMES, target="y")
    made = scripted(
        Federation.local(with_a_rare_column(), columns=columns, policy="strict", sums="secure")
    )
    engine: Any = made.engine
    send = engine.send

    def changed(requests: Any) -> None:
        sent = dict(requests)
        for key, data in requests.items():
            request = Request.from_bytes(data)
            if request.step == "products":
                centre = decode_message(request.message)
                message = encode_message(dataclasses.replace(centre, **change(centre)))
                sent[key] = dataclasses.replace(request, message=message).to_bytes()
        send(sent)

    engine.send = changed
    with pytest.raises(QuorumError):
        PooledRegression(when_withheld="without-column").run(made, seed=0)
    replies = [Reply.from_bytes(data) for data in engine.replies.values()]
    refused = [r for r in replies if r.status == "refused"]
    assert {r.step for r in refused} == {"products"} and len(refused) == refusing
    assert all(says in r.reason for r in refused)


@pytest.mark.parametrize("wrong", ["products", "curvature"])
def test_totals_of_no_rows_stop_the_run(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One site's made-up part shows in the total only where no rows could have it."""
    true_total = masked_sums.total

    def total(*of: Any, **more: Any) -> Any:
        found = yield from true_total(*of, **more)
        if wrong in found.values:
            found.values[wrong] = -found.values[wrong]
        return found

    monkeypatch.setattr(masked_sums, "total", total)
    with pytest.raises(ProtocolError, match="add up to what no rows have"):
        _masked_alone(sites_of("binomial"), "simulation", family="binomial")


# --------------------------------------------------------------------------- what is said


def test_a_column_of_which_digits_are_cut_is_named() -> None:
    tables = {name: table.assign(dose=table["dose"] * 1e-11) for name, table in GAUSSIAN.items()}
    plain, masked = both(tables)
    (note,) = [note for note in masked.notes if "cut its digits" in note]
    assert note.startswith("dose:") and not any("cut" in one for one in plain.notes)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_what_is_said_is_of_all_sites_and_without_gaps(family: str, tmp_path: Path) -> None:
    _, run = both(sites_of(family, 5), "consortium", family=family)
    result = run.result
    assert MASKED in result.summary() and run.notes == (MASKED,)
    assert result.masked and not result.compares_sites and not result.sites_differ
    assert result.n == sum(map(len, sites_of(family, 5).values()))
    for frame in ("coefficients", "site_coefficients", "differences", "overall_tests"):
        assert not getattr(result, frame).isna().any().any()
    assert result.site_coefficients.empty and result.differences.empty
    assert "without sums = 'secure' can test it" in str(run.next())
    with pytest.raises(ParameterError, match="without masked sums"):
        plot_forest(result)
    assert next(iter(run.figures)) == "coefficients" and "forest" not in run.figures
    assert MASKED in REPORT().headline(run).more
    text = run.report().save(tmp_path / "page.html").read_text(encoding="utf-8")
    words = re.sub(r"<(script|style|svg).*?</\1>|<[^>]+>", " ", text, flags=re.S)
    for said in (result.summary(), result.to_text(), words):
        assert not re.search(r"\bnan\b", said, re.IGNORECASE)
    assert MASKED in words and "one scoring step" not in words
    assert not re.search(r"Coefficient of \w+ by site", words)
    assert "no site's own numbers" in words.replace("&#39;", "'")


def test_a_study_file_is_checked_and_run(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    space.site("lyon", more="[policy]\nmasked_sums = true\n")  # its steward insists on masks
    about: dict[str, Any] = {"method": "pooled-regression", "features": ("x",)}
    about |= {"data": 'target = "y"', "head": 'sums = "secure"'}
    space.write(**about)
    checked = call("check", space.file)
    assert checked.exit_code == 0, checked.output
    done = space.run()
    assert done.exit_code == 0 and MASKED in " ".join(done.stdout.split()), done.output
    run = load_run(space.out)
    assert run.result.masked and run.result.n == 3 * space.rows
    assert MASKED in (space.out / "report.html").read_text(encoding="utf-8")
    space.write(**about, parameters="site_effects = true")
    for said in (call("check", space.file), call("run", space.file, "--out", tmp_path / "two")):
        assert said.exit_code != 0 and "set site_effects to false" in said.output
