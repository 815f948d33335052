"""Studies of trainings and of concentration: what their functions give, chunk by chunk, stopped and gone on with."""

from __future__ import annotations

import json

import pytest
import torch

from attnlimit import icl
from attnlimit.errors import InputError
from attnlimit.studies import Study, estimate, study_from
from attnlimit.studies.kind import Point, kind
from attnlimit.studies.kinds import icl as trainings
from attnlimit.studies.spec import points, tasks
from attnlimit.studies.work import pack, run, unpack

SMALL = {
    "task": {"dim": 2, "rho": 0.5},
    "lengths": [3, 8],
    "optimizer": {"steps": 4, "lr": 0.1, "batch": 4},
    "evaluation": {"reports": 2, "prompts": 32, "test_lengths": [10]},
}
ARRAYS = trainings.ARRAYS


def only_tasks(what: dict, **more: object) -> list:
    study = study_from({"name": "i", "kind": "icl", "what": what, **more})
    return [task for what in points(study) for task in tasks(study, what, 0, study.replicates)]


def same(one: trainings.Trained, other: trainings.Trained) -> bool:
    pairs = [(one.arrays[name], other.arrays[name]) for name in ARRAYS]
    return one.what == other.what and all(a is b or torch.equal(a, b) for a, b in pairs)


def test_icl_is_train_with_the_task_s_seed() -> None:
    first, second = only_tasks(SMALL, replicates=4, chunk=2)
    expected = icl.train(
        icl.LinearRegression(2, icl.ar1(2, 0.5)),
        [3, 8],
        optimizer=icl.Optimizer(steps=4, lr=0.1, batch=4),
        evaluation=icl.Evaluation(reports=2, prompts=32, test_lengths=(10,)),
        start=icl.Start(seeds=2),
        generator=first.stream,
    )
    parts = [run(first), run(second)]
    assert all(torch.equal(parts[0].arrays[name], getattr(expected, name)) for name in ARRAYS)
    assert list(parts[0].training.rows()) == list(expected.rows())
    found = kind("icl").result.joined(parts)
    assert found.training.seeds == 4
    for name in set(ARRAYS) - {"times"}:
        assert torch.equal(found.arrays[name], torch.cat([one.arrays[name] for one in parts], 1))
    told = found.summary()
    assert told["risk"] == pytest.approx(found.training.risk[-1].mean(0).tolist())
    assert told["replicates"] == 4
    assert torch.tensor(told["test_risk"]).shape == (4, 2, 1)
    assert told["task"] == "LinearRegression(d = 2, noise variance 0.1)"
    json.dumps(told)


def test_rows_are_the_table_of_the_training() -> None:
    found = kind("icl")
    result = found.run(found.model_validate(SMALL), 2, 1, None)
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows()]
    assert len(rows) == len(result.training.steps) * 2 * 2
    last = rows[-1]
    assert (last["replicate"], last["step"], last["length"]) == (1, 4, 8)
    assert last["risk"] == float(result.training.risk[-1, 1, 1])
    assert last["time"] == pytest.approx(0.4)
    assert last["excess"] == pytest.approx(last["risk"] - float(result.training.flow_risk[-1, 1]))


def test_the_record_keeps_every_bit() -> None:
    (only,) = only_tasks(SMALL, replicates=2)
    result = run(only)
    again = unpack(kind("icl"), pack(result))
    assert same(result, again)
    adam = SMALL | {"optimizer": {"kind": "adam", "steps": 4}}
    (only,) = only_tasks(adam, replicates=2)
    assert unpack(kind("icl"), pack(run(only))).training.times is None  # follows no flow


@pytest.mark.parametrize(
    "task", [{"kind": "classification", "dim": 2}, {"kind": "denoising", "dim": 2, "components": 2}]
)
def test_other_icl_tasks(task: dict) -> None:
    (only,) = only_tasks(SMALL | {"task": task}, replicates=2)
    result = run(only)
    assert {row[1] for row in result.rows()} >= {0, 4}
    assert "predicted" not in result.shown()[0]
    assert result.shown()[0]["floor"] > 0


def test_prompts_that_a_dtype_cannot_hold_are_refused_before_the_study_starts() -> None:
    with pytest.raises(
        InputError, match=r"cannot be run: The prompts of .*1e\+60.* leave the range of float32: give it mod"
    ):
        only_tasks({**SMALL, "task": {"noise": 1e60}})
    with pytest.raises(InputError, match=r"noise must be at most 1e\+150, got 1e\+200: its square is needed"):
        only_tasks({**SMALL, "task": {"noise": 1e200}})


def test_a_training_of_hours_is_timed_by_a_few_steps() -> None:
    found = kind("icl")
    hours = {"steps": 10_000_000, "lr": 0.1, "batch": 4}
    what = found.model_validate(SMALL | {"optimizer": hours})
    part, times = found.brief(what)
    assert part.optimizer.steps * times == what.optimizer.steps
    asked = what.model_dump(mode="json")
    cost = estimate(Study.model_validate({"name": "long", "kind": "icl", "what": asked, "replicates": 2}), 1)
    assert cost.likely_seconds == cost.seconds > 600


def test_a_training_that_was_stopped_goes_on(tmp_path, monkeypatch) -> None:
    """Stopped after its second report, it is not done again from the start, and ends the same; its checkpoint lies where the
    engine says."""
    found = kind("icl")
    what, place = found.model_validate(SMALL), tmp_path / "checkpoints"
    plain = found.run(what, 2, 5, None)
    real, seen = trainings.train, []

    def stopped(*args, saving, **options):
        def stop(done: int, total: int) -> None:
            raise KeyboardInterrupt

        return real(*args, saving=icl.Saving(checkpoint=saving.checkpoint, progress=stop), **options)

    def watched(*args, saving, **options):
        told = icl.Saving(checkpoint=saving.checkpoint, progress=lambda done, _: seen.append(done))
        return real(*args, saving=told, **options)

    monkeypatch.setattr(trainings, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        found.run(what, 2, 5, place)
    assert len(list(place.iterdir())) == 1
    monkeypatch.setattr(trainings, "train", watched)
    assert same(found.run(what, 2, 5, place), plain)
    assert seen == [4]  # step 1 was kept


def test_points_are_compared_by_task() -> None:
    found = kind("icl")
    made = []
    for index, (rho, attention) in enumerate([(0.0, "softmax"), (0.0, "linear"), (0.5, "softmax")]):
        fields = {"task": {"dim": 2, "rho": rho}, "lengths": [8], "attention": attention}
        what = found.model_validate(SMALL | fields)
        varies = {"task.rho": rho, "attention": attention, "init": 0.1}
        made.append(Point(index, varies, what, found.run(what, 2, index, None)))
    first, second = trainings.comparisons(made)
    assert (first.name, list(first.runs)) == ("Σ = I, init 0.1", ["softmax", "linear"])
    assert (second.name, list(second.runs)) == ("Σ_ij = 0.5^|i−j|, init 0.1", ["softmax"])
    told = found.result.words(made)
    assert len(told) == 2
    assert told[0].startswith(
        "Σ = I, init 0.1: trained on prompts of 8 tokens, softmax attention ends with risk"
    )
    assert "No method can do better than" in told[0]
    assert "Predicted for long prompts: risk" in told[0]


def test_concentration_is_concentration_with_the_task_s_seed() -> None:
    what = {"law": {"name": "gaussian", "dim": 2}, "head": {"name": "random", "horizon": 0.5}, "n": [8, 16, 32], "queries": 5}  # fmt: skip
    study = study_from({"name": "c", "kind": "concentration", "what": what, "replicates": 8, "chunk": 4})
    found, (asked,) = kind("concentration"), list(points(study))
    head, law = found.model_validate(asked).build()
    parts = [run(task) for task in tasks(study, asked, 0, 8)]
    seeds = [task.stream for task in tasks(study, asked, 0, 8)]
    trials = icl.Trials(replicates=4, queries=5)
    expected = [icl.concentration(head, law, [8, 16, 32], trials=trials, generator=seed) for seed in seeds]
    joined = found.result.joined([unpack(found, pack(one)) for one in parts])
    assert set(joined.curves) == {"output", "A", "V"}
    for name, curve in joined.curves.items():
        assert torch.equal(curve.squares, torch.cat([one.errors[name].squares for one in expected]))
        assert torch.equal(curve.errors, torch.cat([one.errors[name].errors for one in expected]))
    rows = [dict(zip(joined.columns, row, strict=True)) for row in joined.rows()]
    assert len(rows) == 3 * 8 * 3
    assert rows[-1]["square"] == float(joined.curves["V"].squares[-1, -1])
    assert torch.equal(joined.exact.error, expected[0].exact.error)
    assert joined.limit.horizon == pytest.approx(0.5)
    told = joined.summary()
    assert told["A"]["fit"]["exponent"] == joined.fits["A"].exponent == joined.shown()[1]["exponent"]
    assert told["replicates"] == 8
    json.dumps(told)
