"""What is said of the models' results: data that agree and data that do not give different outcomes."""

import math

import numpy as np
import pytest
import torch

from attnlimit import reproduce
from attnlimit.errors import InputError
from attnlimit.rates import exponents
from attnlimit.reproduce import bert, bigbird, downstream, heads, token_cloud
from attnlimit.reproduce.result import Outcome
from attnlimit.reproduce.run import Plan, load_spec, run
from attnlimit.studies import study_from
from attnlimit.studies.kinds import model_choice

AGREES, DIFFERS, CANNOT_TELL = Outcome.AGREES, Outcome.DIFFERS, Outcome.CANNOT_TELL
SIZES = [64, 128, 256]


def head(place: int, exponent: float, horizon: float, policy="iid", population="text", off=0.0):
    """A head whose closed form has this exponent, and whose Monte Carlo is `off` above it in log."""
    exact = [n**-exponent for n in SIZES]
    return {
        "population": population,
        "policy": policy,
        "layer": place // 4,
        "head": place % 4,
        "horizon": horizon,
        "rms": [value * math.exp(off) for value in exact],
        "exact": exact,
        "half_width": [0.01 * value for value in exact],
        "exponent": exponent,
        "interval": [exponent - 0.02, exponent + 0.02],
        "exact_exponent": exponent,
    }


def point(found, model="packaged-bert", **more):
    facts = {"model": model, "weights": f"Weights: {model}.", "sizes": SIZES, "tokens": 512, "passages": 2}
    return {**facts, "queries": 8, "replicates": 100, "window": 64, "heads": found, "varies": {}, **more}


def bert_runs(over=0.15, off=0.0, sign=1.0, gain=0.2):
    """Slopes `over` the published ones with some scatter; with sign −1 they grow with the horizon."""
    generator = np.random.default_rng(1)
    found = []
    for place, horizon in enumerate(np.linspace(0.2, 2.0, 24)):
        at = horizon if sign > 0 else 2.2 - horizon
        slope = float(exponents(float(at)).paper) + over + 0.01 * generator.standard_normal()
        noise = off + 0.005 * generator.standard_normal()
        found.append(head(place, slope, float(horizon), off=noise))
        found.append(head(place, slope, float(horizon), population="all"))
        different = head(place, slope + gain, float(horizon), policy="without-replacement")
        found.append({**different, "exact_exponent": slope + 0.2 + 0.002 * generator.standard_normal()})
    return {"bert": {"points": [point(found)], "study": {}}}


def outcomes(found):
    return [one.outcome for one in found]


# --- BERT and BigBird -----------------------------------------------------------------------------


def test_slopes_as_published_agree():
    found = bert.verdicts(bert_runs())
    assert outcomes(found)[:3] == [AGREES, AGREES, AGREES]
    assert outcomes(found)[4:] == [AGREES, AGREES]
    assert found[0].measured == pytest.approx(0.15, abs=0.01)


def test_slopes_below_the_published_ones_differ():
    found = bert.verdicts(bert_runs(over=-0.1))
    assert outcomes(found)[:2] == [DIFFERS, DIFFERS]
    assert found[1].measured == "0 of 24"
    assert "outlying" in found[1].note


def test_slopes_that_grow_with_the_horizon_differ():
    found = bert.verdicts(bert_runs(sign=-1.0))
    assert found[2].outcome is DIFFERS
    assert found[2].measured > 0.9


def test_monte_carlo_beside_the_closed_form_differs():
    assert bert.verdicts(bert_runs(off=0.05))[4].outcome is DIFFERS
    assert bert.verdicts(bert_runs(off=0.0))[4].measured == pytest.approx(1.0, abs=0.01)


def test_another_effect_of_different_keys_differs():
    assert bert.verdicts(bert_runs(gain=0.3))[5].outcome is DIFFERS


def test_nearer_tells_which_exponent_is_nearer():
    rates = [exponents(h) for h in np.linspace(0.3, 1.5, 12).tolist()]
    sharp = [head(k, float(one.rms), float(one.horizon)) for k, one in enumerate(rates)]
    published = [head(k, float(one.paper), float(one.horizon)) for k, one in enumerate(rates)]
    assert outcomes([heads.nearer(sharp, ""), heads.nearer(published, "")]) == [AGREES, DIFFERS]


def test_what_is_said_names_weights_exceptions_and_special_tokens():
    runs = bert_runs()
    runs["bert"]["points"][0]["heads"][0]["interval"] = [0.0, 0.1]
    said = bert.said(runs)
    assert said[0] == "Weights: packaged-bert."
    assert said[1] == "Slower than published: layer 0 head 0."
    assert "0 of 24 heads are slower than published, against 1 of 24" in said[2]


def bigbird_runs(model):
    rows = []
    for place, horizon in enumerate(np.linspace(0.2, 2.0, 8).tolist()):
        slope = float(exponents(horizon).paper) + 0.1
        for policy in ("iid", "window", "window-importance"):
            rows.append(head(place, slope, horizon, policy=policy, off=0.004 * (-1) ** place))
    return {"a": {"points": [point(rows, model)]}}


def test_random_weights_tell_nothing_of_the_trained_model():
    trained, random = (
        bigbird.iid_verdicts(bigbird_runs(name)) for name in ("google/bigbird", "random-bigbird")
    )
    assert outcomes(trained) == [AGREES] * 4
    assert outcomes(random) == [CANNOT_TELL] * 3 + [AGREES]
    assert all("Random weights" in one.note for one in random[:3])
    assert (
        outcomes(bigbird.window_verdicts(bigbird_runs("random-bigbird"))) == [CANNOT_TELL] * 2 + [AGREES] * 3
    )


def test_a_wrong_ratio_of_both_windows_differs():
    runs = bigbird_runs("google/bigbird")
    for one in runs["a"]["points"][0]["heads"]:
        if one["policy"] == "window-importance":
            one["rms"] = [1.2 * value for value in one["rms"]]
    found = bigbird.window_verdicts(runs)
    assert (found[2].outcome, found[2].predicted) == (DIFFERS, pytest.approx(1.0))


def test_heads_figures_say_which_weights():
    for figure in (
        bert.figure(bert_runs()),
        bigbird.iid_figure(bigbird_runs("random-bigbird")),
        bigbird.window_figure(bigbird_runs("random-bigbird")),
    ):
        left, right = figure.axes
        assert "packaged BERT" in left.get_title("left") or "random weights" in left.get_title("left")
        assert "Weights:" in figure.get_supxlabel()
        assert len(right.get_lines()) >= 5
    runs = bert_runs()
    for one in runs["bert"]["points"][0]["heads"]:
        one["exponent"] = None
    with pytest.raises(InputError, match="No head has a fitted slope"):
        bert.figure(runs)


def test_the_table_has_a_row_for_every_head_policy_and_size():
    rows = heads.table(bert_runs())
    assert len(rows) == 24 * 3 * 3
    assert rows[0]["published_exponent"] == pytest.approx(1 / (2 * (1 + 0.2**2)))
    assert rows[0]["rms"] == pytest.approx(rows[0]["closed_form"], rel=0.05)


# --- downstream -----------------------------------------------------------------------------------


def downstream_runs(
    spec="downstream", models=("packaged-bert",), worse=False, slope=0.5, by_horizon=1.0, seeds=4
):
    """Texts that change like keys^−slope, times horizon^by_horizon, and answer right more often with more keys."""
    generator = torch.Generator().manual_seed(0)
    horizons = torch.linspace(0.5, 1.5, 60)
    points = []
    for model in models:
        for keys in (8, 32, 128):
            noise = (0.1 * torch.randn(seeds, 60, generator=generator)).exp()
            change = keys**-slope * horizons**by_horizon * noise
            right = {8: 0.2, 32: 0.6, 128: 1.0}[keys] - 0.15 * (horizons - 1) * by_horizon * (keys < 128)
            share = right if not worse else 1 - right
            sampled = (torch.rand(seeds, 60, generator=generator) < share).double()
            points.append(
                {
                    "model": model,
                    "weights": f"Weights: {model}.",
                    "keys": keys,
                    "attended": float(keys),
                    "share": keys / 160,
                    "metric": "retrieval accuracy",
                    "horizons": horizons.tolist(),
                    "full": [1.0] * 60,
                    "sampled": sampled.tolist(),
                    "changes": {"change": change.tolist(), "divergence": change.tolist()},
                    "layers": [[0.1, 0.2]] * seeds,
                }
            )
    return {spec: {"points": points}}


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
    spec = "downstream-by-horizon"
    up, down, flat = (
        downstream.thirds_verdicts(downstream_runs(spec, by_horizon=sign, seeds=8))
        for sign in (4.0, -4.0, 0.0)
    )
    assert outcomes(up) == [AGREES, AGREES]
    assert outcomes(down) == [DIFFERS, DIFFERS]
    assert outcomes(flat)[0] is CANNOT_TELL


def test_how_far_horizons_reach_is_said():
    said = downstream.thirds_said(downstream_runs("downstream-by-horizon"))
    assert said == ["Weights: packaged-bert.", "Horizons of the texts lie between 0.5 and 1.5."]


def test_thirds_are_of_equal_size_and_by_rising_horizon():
    runs = downstream_runs("downstream-by-horizon")
    third = downstream.curve(runs["downstream-by-horizon"]["points"]).third
    assert third.tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_downstream_figures_and_tables():
    runs = downstream_runs(models=("packaged-bert", "random-classifier"))
    figure = downstream.figure(runs)
    assert "random-classifier" in figure.get_supxlabel()
    assert len(figure.axes) == 3
    rows = downstream.table(runs)
    assert len(rows) == 2 * 3 * 4 * 60
    assert len(downstream.thirds_figure(downstream_runs("downstream-by-horizon")).axes) == 2


# --- token cloud ----------------------------------------------------------------------------------


def cloud_runs(factor=1.0):
    sizes = [10, 100]
    predicted = [(500 - n) / (n * 499) for n in sizes]
    one = {
        "model": "packaged-bert",
        "weights": "Weights: packaged-bert.",
        "layer": 3,
        "points": 500,
        "draws": 50,
        "n": sizes,
        "energy": [factor * value for value in predicted],
        "energy_standard_error": [0.02 * value for value in predicted],
        "nearest": [0.8, 0.8 / factor**3 - 0.1],
        "nearest_standard_error": [0.01, 0.01],
        "predicted": predicted,
        "picture": torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).tolist(),
        "order": list(range(100)),
        "varies": {},
    }
    return {"token-cloud": {"points": [one]}}


def test_a_cloud_that_is_covered_agrees_and_another_differs():
    assert outcomes(token_cloud.verdicts(cloud_runs())) == [AGREES] * 3
    worse = cloud_runs(1.2)
    worse["token-cloud"]["points"][0]["nearest"] = [0.8, 0.9]
    assert outcomes(token_cloud.verdicts(worse)) == [DIFFERS] * 3
    assert len(token_cloud.figure(cloud_runs()).axes) == 4


# --- all of it ------------------------------------------------------------------------------------


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(model_choice, "answers", lambda url: False)
    model_choice.can_be_had.cache_clear()
    yield
    model_choice.can_be_had.cache_clear()


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "name", ["bert", "bigbird-iid", "bigbird-window", "downstream", "downstream-by-horizon", "token-cloud"]
)
def test_specifications_are_read(name, quick, no_hub):
    found = reproduce.find(name)
    for spec in found.specs:
        study = load_spec(spec, quick=quick)
        assert study.name == (f"{spec}-quick" if quick else spec)
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
        "curves": [{"policy": "iid"}],
        "batch": 4,
    }
    data = {"name": "bigbird-iid", "kind": "model_convergence", "what": what, "replicates": 40, "chunk": 20}
    ready = Plan(reproduce.find("bigbird-iid"), tmp_path / "out", {"bigbird-iid": study_from(data)}, True, 1)
    done = run(ready)
    assert {path.name for path in done.files} >= {"figure.png", "figure.pdf", "table.csv", "verdict.json"}
    assert outcomes(done.verdicts)[:3] == [CANNOT_TELL] * 3
    assert any("random-bigbird" in line for line in done.record["summary"])
    assert done.verdicts[3].measured == pytest.approx(1.0, abs=0.1)
