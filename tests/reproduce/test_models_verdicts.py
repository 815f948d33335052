"""What is said of the models' results: data that agree and data that do not give different outcomes."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from attnlimit import reproduce
from attnlimit.designs import Different, Kept, Sampling
from attnlimit.errors import InputError
from attnlimit.models.see import named
from attnlimit.rates import exponents
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.reproduce import downstream, model_heads, token_cloud
from attnlimit.reproduce.result import Outcome
from attnlimit.reproduce.run import Prepared, load_spec, run
from attnlimit.studies import study_from
from attnlimit.studies.fields import Fields
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.downstream import Thinned
from attnlimit.studies.kinds.model_convergence import HeadsConverged, HeadSlope
from attnlimit.studies.kinds.token_cloud import Covered

AGREES, DIFFERS, CANNOT_TELL = Outcome.AGREES, Outcome.DIFFERS, Outcome.CANNOT_TELL
SIZES = (64, 128, 256)
PLAIN, DIFFERENT = Sampling(), Sampling(draw=Different())
AROUND = Sampling(draw=Different(), kept=Kept(around=32))


def head(place: int, exponent: float, horizon: float, sampling=PLAIN, population="text", off=0.0):
    """A head whose closed form has this exponent, and whose Monte Carlo is `off` above it in log."""
    exact = torch.tensor([n**-exponent for n in SIZES], dtype=torch.float64)
    rms = exact * math.exp(off)
    return HeadSlope(
        layer=place // 4,
        head=place % 4,
        horizon=horizon,
        sampling=sampling,
        population=population,
        measured=ErrorCurve(SIZES, rms, 0.005 * rms, rows=rms.expand(20, -1)),
        closed=ErrorCurve(SIZES, exact),
        exponent=exponent,
        interval=(exponent - 0.02, exponent + 0.02),
        closed_exponent=exponent,
    )


@dataclass(frozen=True, eq=False)
class Made(HeadsConverged):
    """A result whose slopes are as told."""

    slopes: tuple[HeadSlope, ...] = ()


def runs_of(*results):
    return [Point(index, {}, Fields(), one) for index, one in enumerate(results)]


def made(found, model="packaged-bert"):
    facts = {"model": model, "weights": f"Weights: {model}.", "tokens": 512, "passages": 2, "queries": 8}
    return runs_of(Made(**facts, n=SIZES, replicates=100, heads=(), slopes=tuple(found)))


def bert_slopes(over=0.15, off=0.0, sign=1.0, gain=0.2):
    """Slopes `over` the published ones with some scatter; with sign −1 they grow with the horizon."""
    generator = np.random.default_rng(1)
    found = []
    for place, horizon in enumerate(np.linspace(0.2, 2.0, 24)):
        at = horizon if sign > 0 else 2.2 - horizon
        slope = float(exponents(float(at)).paper) + over + 0.01 * generator.standard_normal()
        noise = off + 0.005 * generator.standard_normal()
        found.append(head(place, slope, float(horizon), off=noise))
        found.append(head(place, slope, float(horizon), population="all"))
        different = head(place, slope + gain, float(horizon), sampling=DIFFERENT)
        closed = slope + 0.2 + 0.002 * generator.standard_normal()
        found.append(replace(different, closed_exponent=closed))
    return found


def bert_runs(**options):
    return made(bert_slopes(**options))


def outcomes(found):
    return [one.outcome for one in found]


# --- BERT and BigBird -----------------------------------------------------------------------------


def test_slopes_as_published_agree():
    found = model_heads.bert_verdicts(bert_runs())
    assert outcomes(found)[:3] == [AGREES, AGREES, AGREES]
    assert outcomes(found)[4:] == [AGREES, AGREES]
    assert found[0].measured == pytest.approx(0.15, abs=0.01)


def test_slopes_below_the_published_ones_differ():
    found = model_heads.bert_verdicts(bert_runs(over=-0.1))
    assert outcomes(found)[:2] == [DIFFERS, DIFFERS]
    assert found[1].measured == "0 of 24"
    assert "outlying" in found[1].note


def test_slopes_that_grow_with_the_horizon_differ():
    found = model_heads.bert_verdicts(bert_runs(sign=-1.0))
    assert found[2].outcome is DIFFERS
    assert found[2].measured > 0.9


def test_monte_carlo_beside_the_closed_form_differs():
    assert model_heads.bert_verdicts(bert_runs(off=0.05))[4].outcome is DIFFERS
    assert model_heads.bert_verdicts(bert_runs(off=0.0))[4].measured == pytest.approx(1.0, abs=0.01)


def test_another_effect_of_different_keys_differs():
    assert model_heads.bert_verdicts(bert_runs(gain=0.3))[5].outcome is DIFFERS


def test_nearer_tells_which_exponent_is_nearer():
    rates = [exponents(h) for h in np.linspace(0.3, 1.5, 12).tolist()]
    sharp = [head(k, float(one.rms), float(one.horizon)) for k, one in enumerate(rates)]
    published = [head(k, float(one.paper), float(one.horizon)) for k, one in enumerate(rates)]
    assert outcomes([model_heads.nearer(sharp), model_heads.nearer(published)]) == [AGREES, DIFFERS]


def test_what_is_said_names_weights_exceptions_and_special_tokens():
    first, *others = bert_slopes()
    said = model_heads.bert_said(made([replace(first, interval=(0.0, 0.1)), *others]))
    assert said[0] == "Weights: packaged-bert."
    assert said[1] == "Slower than published: layer 0 head 0."
    assert "0 of 24 heads are slower than published, against 1 of 24" in said[2]


def bigbird_slopes():
    return [
        head(
            place,
            float(exponents(horizon).paper) + 0.1,
            horizon,
            sampling=sampling,
            off=0.004 * (-1) ** place,
        )
        for place, horizon in enumerate(np.linspace(0.2, 2.0, 8).tolist())
        for sampling in (PLAIN, AROUND, replace(AROUND, weight="rest"))
    ]


def bigbird_runs(model):
    return made(bigbird_slopes(), model)


def test_random_weights_tell_nothing_of_the_trained_model():
    trained, random = (
        model_heads.iid_verdicts(bigbird_runs(name)) for name in ("google/bigbird", "random-bigbird")
    )
    assert outcomes(trained) == [AGREES] * 4
    assert outcomes(random) == [CANNOT_TELL] * 3 + [AGREES]
    assert all("Random weights" in one.note for one in random[:3])
    assert (
        outcomes(model_heads.window_verdicts(bigbird_runs("random-bigbird")))
        == [CANNOT_TELL] * 2 + [AGREES] * 3
    )


def test_a_wrong_ratio_of_both_windows_differs():
    wrong = [
        replace(one, measured=replace(one.measured, error=1.2 * one.measured.error))
        if one.sampling.weight == "rest"
        else one
        for one in bigbird_slopes()
    ]
    found = model_heads.window_verdicts(made(wrong, "google/bigbird"))
    assert (found[2].outcome, found[2].predicted) == (DIFFERS, pytest.approx(1.0))


def test_heads_figures_say_which_weights():
    for figure in (
        model_heads.iid_figure(bert_runs()),
        model_heads.iid_figure(bigbird_runs("random-bigbird")),
        model_heads.window_figure(bigbird_runs("random-bigbird")),
    ):
        left, right = figure.axes
        assert "packaged BERT" in left.get_title("left") or "random weights" in left.get_title("left")
        assert "Weights:" in figure.get_supxlabel()
        assert len(right.get_lines()) >= 5
    unknown = [replace(one, exponent=None) for one in bert_slopes()]
    with pytest.raises(InputError, match="No head has a fitted slope"):
        model_heads.iid_figure(made(unknown))


def test_the_table_has_a_row_for_every_head_policy_and_size():
    rows = model_heads.table(bert_runs())
    assert len(rows) == 24 * 3 * 3
    assert rows[0]["published_exponent"] == pytest.approx(1 / (2 * (1 + 0.2**2)))
    assert rows[0]["rms"] == pytest.approx(rows[0]["closed_form"], rel=0.05)


# --- downstream -----------------------------------------------------------------------------------


def downstream_runs(models=("packaged-bert",), worse=False, slope=0.5, by_horizon=1.0, seeds=4):
    """Texts that change like keys^−slope, times horizon^by_horizon, and answer right more often with more keys."""
    generator = torch.Generator().manual_seed(0)
    horizons = torch.linspace(0.5, 1.5, 60)
    found = []
    for model in models:
        for keys in (8, 32, 128):
            noise = (0.1 * torch.randn(seeds, 60, generator=generator)).exp()
            change = (keys**-slope * horizons**by_horizon * noise).double()
            right = {8: 0.2, 32: 0.6, 128: 1.0}[keys] - 0.15 * (horizons - 1) * by_horizon * (keys < 128)
            share = right if not worse else 1 - right
            found.append(
                Thinned(
                    model=model,
                    weights=f"Weights: {model}.",
                    tokens=160,
                    keys=keys,
                    metric="retrieval accuracy",
                    horizons=horizons.double(),
                    full=torch.ones(60, dtype=torch.float64),
                    sampled=(torch.rand(seeds, 60, generator=generator) < share).double(),
                    change=change,
                    divergence=change,
                    agreement=None,
                    hidden_error=torch.tensor([[0.01, 0.04]] * seeds),
                    hidden_square=torch.ones(2),
                    attended=torch.full((seeds,), float(keys)),
                    share=torch.full((seeds,), keys / 160),
                )
            )
    return runs_of(*found)


def test_a_task_that_comes_back_agrees():
    found = downstream.verdicts(downstream_runs())
    assert outcomes(found) == [AGREES] * 3
    assert found[0].measured == pytest.approx(0.5, abs=0.05)


def test_a_task_that_does_not_come_back_differs():
    assert outcomes(downstream.verdicts(downstream_runs(worse=True, slope=-0.2))) == [DIFFERS] * 3


def test_a_classifier_with_random_weights_tells_nothing():
    found = downstream.verdicts(downstream_runs(models=("packaged-bert", "random-classifier")))
    assert outcomes(found) == [AGREES] * 3 + [CANNOT_TELL] * 3


def test_thirds_agree_and_differ_by_what_the_horizon_does():
    up, down, flat = (
        downstream.thirds_verdicts(downstream_runs(by_horizon=sign, seeds=8)) for sign in (4.0, -4.0, 0.0)
    )
    assert outcomes(up) == [AGREES, AGREES]
    assert outcomes(down) == [DIFFERS, DIFFERS]
    assert outcomes(flat)[0] is CANNOT_TELL


def test_how_far_horizons_reach_is_said():
    said = downstream.thirds_said(downstream_runs())
    assert said == ["Weights: packaged-bert.", "Horizons of the texts lie between 0.5 and 1.5."]


def test_thirds_are_of_equal_size_and_by_rising_horizon():
    (sizes,) = downstream.by_model(downstream_runs()).values()
    third = downstream.curve(sizes).third
    assert third.tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_downstream_figures_and_tables():
    runs = downstream_runs(models=("packaged-bert", "random-classifier"))
    figure = downstream.figure(runs)
    assert "random-classifier" in figure.get_supxlabel()
    assert len(figure.axes) == 3
    rows = downstream.table(runs)
    assert len(rows) == 2 * 3 * 4 * 60
    assert len(downstream.thirds_figure(downstream_runs()).axes) == 2


# --- token cloud ----------------------------------------------------------------------------------


def cloud(factor=1.0, nearest=None):
    """50 draws with 2 % or 0.01 of standard error."""
    sizes, spread = (10, 100), torch.linspace(-1, 1, 50, dtype=torch.float64)
    spread = spread / spread.std() * 50**0.5
    predicted = torch.tensor([(500 - n) / (n * 499) for n in sizes], dtype=torch.float64)
    middle = torch.tensor(nearest or (0.8, 0.8 / factor**3 - 0.1), dtype=torch.float64)
    return Covered(
        model="packaged-bert",
        weights="Weights: packaged-bert.",
        layer=3,
        points=500,
        n=sizes,
        mean_distance=torch.full((50,), 2.0, dtype=torch.float64),
        squares=2 * predicted * (factor + 0.02 * spread[:, None]),
        distances=2 * (middle + 0.01 * spread[:, None]),
        picture=torch.randn(500, 2, generator=torch.Generator().manual_seed(0)),
        order=tuple(range(100)),
    )


def test_a_cloud_that_is_covered_agrees_and_another_differs():
    assert outcomes(token_cloud.verdicts(runs_of(cloud()))) == [AGREES] * 3
    assert outcomes(token_cloud.verdicts(runs_of(cloud(1.2, (0.8, 0.9))))) == [DIFFERS] * 3
    assert len(reproduce.find("token-cloud").figure(runs_of(cloud())).axes) == 4
    assert [row["n"] for row in token_cloud.table(runs_of(cloud()))] == [10, 100]


# --- all of it ------------------------------------------------------------------------------------


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(named, "answers", lambda url: False)
    named.can_be_had.cache_clear()
    yield
    named.can_be_had.cache_clear()


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "name", ["bert", "bigbird-iid", "bigbird-window", "downstream", "downstream-by-horizon", "token-cloud"]
)
def test_specifications_are_read(name, quick, no_hub):
    found = reproduce.find(name)
    study = load_spec(name, quick=quick)
    assert study.name == (f"{name}-quick" if quick else name)
    assert found.source == "bohbot2026token"


def test_bigbird_from_specification_to_verdict(tmp_path):
    """The whole of a reproduction, on a short text and a model with random weights."""
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{k % 97} and stone{k % 31}" for k in range(200)))
    what = {
        "model": {"first_of": ["./no-such-folder", "random-bigbird"]},
        "text": [{"file": str(text)}],
        "tokens": 256,
        "passages": 1,
        "queries": 4,
        "n": [40, 80, 160],
        "curves": [{}],
        "batch": 4,
    }
    data = {"name": "bigbird-iid", "kind": "model_convergence", "what": what, "replicates": 40, "chunk": 20}
    ready = Prepared(reproduce.find("bigbird-iid"), tmp_path / "out", study_from(data), True, 1)
    done = run(ready)
    assert {path.name for path in done.files} >= {"figure.png", "figure.pdf", "table.csv", "verdict.json"}
    assert outcomes(done.verdicts)[:3] == [CANNOT_TELL] * 3
    assert any("random-bigbird" in line for line in done.record.summary)
    assert done.verdicts[3].measured == pytest.approx(1.0, abs=0.1)
