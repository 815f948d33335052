"""Each kind of task gives what the function it stands for gives; its table and summary say the same."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
import zlib
from dataclasses import replace

import pytest
import torch

import attnlimit as al
from attnlimit.sampling import Convergence
from attnlimit.studies import StoreError, derive, open_run, run_study, study_from, summary
from attnlimit.studies.kind import kind, kinds
from attnlimit.studies.kinds.convergence import Measured
from attnlimit.studies.setting import like
from attnlimit.studies.spec import points, tasks
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
    assert torch.equal(found.experiment.squares, expected.squares)
    assert torch.equal(found.experiment.norms, expected.norms)
    assert not torch.equal(run(second).experiment.squares, found.experiment.squares)


def test_a_point_is_the_experiment_of_all_its_replicates():
    study = study_from(CONVERGENCE)
    results = [run(task) for task in only_tasks(study)]
    found = kind("convergence").result.joined(results).summary()
    rows = torch.cat([one.experiment.norms for one in results])
    fit = al.fit_power([50, 100, 200], rows)
    assert found["fit"]["exponent"] == fit.exponent
    assert tuple(found["fit"]["interval"]) == fit.interval
    assert found["replicates"] == 12
    assert found["method"].startswith("Monte Carlo, 12 replicates, nested prefixes")
    assert found["horizon"] == pytest.approx(1.0)
    assert found["rates"]["paper"] == pytest.approx(0.25)


def test_half_widths_are_those_of_the_intervals():
    study = study_from(CONVERGENCE)
    what = kind("convergence").model_validate(next(points(study)))
    results = [run(task) for task in only_tasks(study)]
    half_width = kind("convergence").half_width
    joined = kind("convergence").result.joined(results)
    low, high = joined.fit.interval
    assert half_width(what, joined, "slope", 0.95) == (high - low) / 2
    # one replicate's spread cannot tell a slope, and asks for more
    every = joined.experiment
    few = replace(joined, experiment=replace(every, norms=every.norms[:2], squares=every.squares[:2]))
    assert half_width(what, few, "slope", 0.95) == math.inf
    rows = every.squares
    relative = rows.std(0) / 12**0.5 / (2 * rows.mean(0))  # delta method for the root of a mean
    assert half_width(what, joined, "error", 0.95) == pytest.approx(
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
    assert bool(((found.experiment.norms > 0) & (found.experiment.norms < 10)).all())


@pytest.mark.parametrize(
    "more",
    [
        {"statistic": "mean"},
        {"statistic": "covariance", "self_attention": True},
        {"statistic": {"name": "moment", "order": 2}},
        {"statistic": {"name": "sup", "radius": 1.0, "restarts": 2}},
        *(
            {
                "sampling": sampling,
                "law": {"name": "population", "tokens": 300, "law": {"name": "ball", "dim": 2}},
            }
            for sampling in (
                {"draw": "different"},
                {"draw": "coins"},
                {"draw": "prefix"},
                {"draw": "block"},
                {"draw": "strata"},
                {"draw": "different", "kept": {"around": 8}},
            )
        ),
    ],
    ids=str,
)
def test_every_statistic_and_sampling_can_be_asked_for(more):
    what = {**CONVERGENCE["what"], **more, "head": {"name": "matrix", "A": [[1, 0], [0, 1]], "kappa": 0.5}}
    if "radius" in what["statistic"]:
        what.pop("queries")
    task = only_tasks(study_from({**CONVERGENCE, "what": what, "replicates": 2}))[0]
    found = run(task)
    assert len(found.experiment.squares) == 2
    assert unpack(kind("convergence"), pack(found)).to_dict() == found.to_dict()


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
    assert torch.equal(first.rms.error, expected.error)
    assert second.rms.n == (10**12,)
    run_study(study, "run")
    with open_run("run") as found:
        record = summary(derive(found))
    assert [point["varies"]["n"] for point in record["points"]] == ["[100, 1000]", "[1000000000000]"]
    assert record["points"][0]["rates"]["rms"] == pytest.approx((2**0.5 - 1) / 4)


def test_results_are_compressed_json_and_keep_every_bit():
    odd = torch.tensor([[0.1 + 0.2, math.nan, -math.inf, 5e-324]], dtype=torch.float64)
    result = Measured(Convergence((1, 2, 3, 4), "map", odd, None, "Γ", "limit"), None)
    packed = pack(result)
    assert json.loads(zlib.decompress(packed))["experiment"]["how"] == "Γ"
    again = unpack(kind("convergence"), packed)
    kept = again.experiment.squares[0].tolist()
    assert [value.hex() for value in kept] == [value.hex() for value in odd[0].tolist()]
    assert {**vars(again.experiment), "squares": odd} == {**vars(result.experiment), "squares": odd}
    assert pack(again) == packed


def test_a_result_of_another_form_is_refused_with_what_to_do():
    packed = zlib.compress(b'{"value": 1.0}')
    with pytest.raises(
        StoreError, match=r"result of kind probe has another form .*: run the study again in a new folder"
    ):
        unpack(kind("probe"), packed)


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


LAWS = [
    {"name": "gaussian", "dim": 2, "cov": [[1.0, 0.5], [0.5, 1.0]]},
    {"name": "mixture", "weights": [0.3, 0.7], "parts": [{"name": "gaussian", "dim": 2}, {"name": "ball", "dim": 2}]},
    {"name": "population", "tokens": 30, "law": {"name": "box", "dim": 2}},
]  # fmt: skip


def test_what_is_found_pickles_and_is_told_in_one_line(tmp_path):
    """Also from another process, where the classes of laws are made anew."""
    study = study_from(
        {**CONVERGENCE, "grid": {"law": LAWS}, "what": {**CONVERGENCE["what"], "n": [4, 8]}, "replicates": 6}
    )
    finished = run_study(study, tmp_path)
    with open_run(tmp_path) as opened:
        found = opened.findings()
        for one in (study, finished, opened.state, found):
            assert pickle.loads(pickle.dumps(one)) == one or one is found
    assert repr(found) == "Findings(c, convergence: 3 points, 3 of 3 tasks done, 0 failed)"
    for back in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert [one.what for one in back.points] == [one.what for one in found.points]
        assert [one.what.law.build(like("float64", "cpu")).dim for one in back.points] == [2, 2, 2]
        assert summary(back) == summary(found)
    (tmp_path / "found").write_bytes(pickle.dumps(found))
    read = f"import pickle; print(repr(pickle.load(open({str(tmp_path / 'found')!r}, 'rb'))))"
    told = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout
    assert told.strip() == repr(found)


def test_every_kind_is_found_by_name():
    assert [kind(name).name() for name in kinds()] == kinds()
    with pytest.raises(al.InputError, match="Unknown kind of study 'x'"):
        kind("x")
