"""Each kind of task gives what the function it stands for gives; its table and summary say the same."""

from __future__ import annotations

import json
import math

import pytest
import torch

import attnlimit as al
from attnlimit import icl
from attnlimit.studies import derive, open_run, run_study, study_from
from attnlimit.studies.kinds import NAMES, kind
from attnlimit.studies.points import points, tasks
from attnlimit.studies.work import pack, run, unpack

CONVERGENCE = {
    "name": "c",
    "kind": "convergence",
    "what": {
        "law": {"name": "gaussian", "dim": 2, "cov": 0.5},
        "head": {"name": "random", "horizon": 1.0, "seed": 3},
        "n": [50, 100, 200],
        "statistic": "map",
        "queries": 16,
    },
    "replicates": 12,
    "chunk": 6,
}


def only_tasks(study) -> list:
    return [task for what in points(study) for task in tasks(study, what, 0, study.replicates)]


def test_convergence_is_measure_convergence_with_the_task_s_seed():
    first, second = only_tasks(study_from(CONVERGENCE))
    law = al.Gaussian(cov=0.5, dim=2)
    generator = torch.Generator().manual_seed(3)
    Q, K, V = torch.randn(3, 2, 2, generator=generator, dtype=torch.float64) / 2**0.5
    A = K.T @ Q
    head = al.Head(A * (1.0 / al.horizon(al.Head(A), law)), V)
    assert al.horizon(head, law) == pytest.approx(1.0)
    expected = al.measure_convergence(
        head, law, [50, 100, 200], replicates=6, queries=16, generator=first.stream
    )
    found = run(first)
    assert found["squares"] == expected.squares.tolist()
    assert found["norms"] == expected.norms.tolist()
    assert run(second)["squares"] != found["squares"]


def test_a_point_is_the_experiment_of_all_its_replicates():
    study = study_from(CONVERGENCE)
    results = [run(task) for task in only_tasks(study)]
    found = kind("convergence").summary(kind("convergence").what.model_validate(next(points(study))), results)
    rows = torch.tensor([row for one in results for row in one["norms"]], dtype=torch.float64)
    fit = al.fit_power([50, 100, 200], rows)
    assert found["fit"]["exponent"] == fit.exponent
    assert tuple(found["fit"]["interval"]) == fit.interval
    assert found["replicates"] == 12
    assert found["method"].startswith("Monte Carlo, 12 replicates, nested prefixes")
    assert found["horizon"] == pytest.approx(1.0)
    assert found["rates"]["paper"] == pytest.approx(0.25)


def test_half_widths_are_those_of_the_intervals():
    study = study_from(CONVERGENCE)
    what = kind("convergence").what.model_validate(next(points(study)))
    results = [run(task) for task in only_tasks(study)]
    half_width = kind("convergence").half_width
    low, high = kind("convergence").summary(what, results)["fit"]["interval"]
    assert half_width(what, results, "slope", 0.95) == (high - low) / 2
    # one replicate's spread cannot tell a slope, and asks for more
    few = [{**results[0], "norms": results[0]["norms"][:2], "squares": results[0]["squares"][:2]}]
    assert half_width(what, few, "slope", 0.95) == math.inf
    rows = torch.tensor([row for one in results for row in one["squares"]], dtype=torch.float64)
    relative = rows.std(0) / 12**0.5 / (2 * rows.mean(0))  # delta method for the root of a mean
    assert half_width(what, results, "error", 0.95) == pytest.approx(
        2.200985 * float(relative.max()), rel=1e-6
    )


@pytest.mark.parametrize(
    "law",
    [
        {"name": "gaussian", "cov": [[1.0, 0.2], [0.2, 0.5]], "mean": [0.1, 0.0]},
        {"name": "gaussian", "cov": [1.0, 0.5]},
        {"name": "sphere", "dim": 2, "radius": 2.0},
        {"name": "ball", "dim": 2},
        {"name": "box", "dim": 2, "half_width": 0.5},
        {"name": "rademacher", "dim": 2},
        {"name": "laplace", "dim": 2, "scale": 0.3},
        {
            "name": "mixture",
            "weights": [0.3, 0.7],
            "parts": [{"name": "gaussian", "dim": 2, "cov": 0.1}, {"name": "ball", "dim": 2}],
        },
        {"name": "population", "tokens": 300, "law": {"name": "gaussian", "dim": 2}, "seed": 1},
    ],
    ids=lambda law: law["name"],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_law_can_be_named(law, dtype):
    what = {**CONVERGENCE["what"], "law": law, "head": {"name": "identity", "horizon": 0.1}, "dtype": dtype}
    task = only_tasks(study_from({**CONVERGENCE, "what": what, "replicates": 2}))[0]
    found = run(task)
    assert all(0 < value < 10 for row in found["norms"] for value in row)


@pytest.mark.parametrize(
    "more",
    [
        {"statistic": "mean"},
        {"statistic": "covariance", "self_attention": True},
        {"statistic": "moment", "order": 2},
        {"statistic": "sup", "radius": 1.0, "restarts": 2},
        *(
            {
                "policy": policy,
                "law": {"name": "population", "tokens": 300, "law": {"name": "ball", "dim": 2}},
            }
            for policy in ("without-replacement", "bernoulli", "prefix", "block", "stratified")
        ),
        {
            "policy": "window",
            "window": 8,
            "law": {"name": "population", "tokens": 300, "law": {"name": "ball", "dim": 2}},
        },
    ],
    ids=lambda more: more.get("statistic") or more["policy"],
)
def test_every_statistic_and_policy_can_be_asked_for(more):
    what = {**CONVERGENCE["what"], **more, "head": {"name": "matrix", "A": [[1, 0], [0, 1]], "kappa": 0.5}}
    if what["statistic"] == "sup":
        what.pop("queries")
    task = only_tasks(study_from({**CONVERGENCE, "what": what, "replicates": 2}))[0]
    assert len(run(task)["squares"]) == 2


def test_exact_is_the_exact_curve():
    study = study_from(
        {
            "name": "e",
            "kind": "exact",
            "what": {"law": {"name": "gaussian", "dim": 1}, "head": {"name": "identity", "horizon": 2.0}},
            "grid": {"n": [[100, 1000], [10**12]]},
        }
    )
    first, second = (run(task) for task in only_tasks(study))
    expected = al.curve(al.Head([[2.0]]), al.Gaussian(dim=1), [100, 1000])
    assert first["rms"] == expected.rms.tolist()
    assert second["n"] == [10**12]
    run_study(study, "run")
    with open_run("run") as found:
        record = derive(found)
    assert [point["varies"]["n"] for point in record["points"]] == ["[100, 1000]", "[1000000000000]"]
    assert record["points"][0]["rates"]["rms"] == pytest.approx((2**0.5 - 1) / 4)


def test_icl_is_train_with_the_task_s_seed():
    study = study_from(
        {
            "name": "i",
            "kind": "icl",
            "what": {
                "task": {"dim": 2, "rho": 0.5},
                "lengths": [5, 20],
                "steps": 30,
                "lr": 0.05,
                "reports": 3,
                "evaluation": 64,
                "test_lengths": [10],
            },
            "replicates": 4,
            "chunk": 2,
        }
    )
    first, second = only_tasks(study)
    expected = icl.train(
        icl.LinearRegression(2, icl.ar1(2, 0.5)),
        [5, 20],
        steps=30,
        lr=0.05,
        reports=3,
        evaluation=64,
        test_lengths=[10],
        seeds=2,
        generator=first.stream,
    )
    results = [run(first), run(second)]
    assert [row[4] for row in results[0]["rows"]] == [row["risk"] for row in expected.rows()]
    found = kind("icl").summary(kind("icl").what.model_validate(next(points(study))), results)
    final = [[row[4] for one in results for row in one["rows"] if row[1:3] == [30, L]] for L in (5, 20)]
    assert found["risk"] == pytest.approx([sum(values) / 4 for values in final])
    assert found["replicates"] == 4
    assert torch.tensor(found["test_risk"]).shape == (4, 2, 1)


@pytest.mark.parametrize(
    "task", [{"kind": "classification", "dim": 2}, {"kind": "denoising", "dim": 2, "components": 2}]
)
def test_other_icl_tasks(task):
    what = {"task": task, "lengths": [5], "steps": 3, "evaluation": 32, "reports": 2}
    (only,) = only_tasks(study_from({"name": "i", "kind": "icl", "what": what, "replicates": 2}))
    assert {row[1] for row in run(only)["rows"]} >= {0, 3}


def test_results_are_compressed_json_and_keep_every_bit():
    result = {"a": [0.1 + 0.2, float("nan"), -math.inf, 5e-324], "b": "Γ", "c": None}
    again = unpack(pack(result))
    assert [value.hex() for value in again["a"]] == [value.hex() for value in result["a"]]
    assert json.dumps(again) == json.dumps(result)
    assert pack(result) == pack(dict(reversed(result.items())))


def test_threads_inside_a_task_are_fixed_and_put_back(monkeypatch):
    from attnlimit.studies import work
    from attnlimit.studies.kinds import probe

    seen = []
    monkeypatch.setattr(probe.random, "Random", lambda seed: seen.append(torch.get_num_threads()) or _Zero())
    study = study_from({"name": "p", "kind": "probe", "threads": 2})
    work.run(only_tasks(study)[0])
    assert seen == [2]


class _Zero:
    def random(self) -> float:
        return 0.0


def test_every_kind_is_found_by_name():
    assert [kind(name).name for name in NAMES] == list(NAMES)
    with pytest.raises(al.InputError, match="Unknown kind of study 'x'"):
        kind("x")
