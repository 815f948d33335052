"""Trainings side by side: rates put in come out, and what cannot be compared is refused."""

import math
from dataclasses import replace

import pytest
import torch

from attnlimit.errors import InputError
from attnlimit.icl import Classification, Evaluation, LinearRegression, Optimizer, Start, train, tuned
from attnlimit.icl.training import compared

HOW = {
    "optimizer": Optimizer(lr=0.1, steps=6, batch=8),
    "evaluation": Evaluation(reports=(5,), prompts=16),
    "start": Start(seeds=2),
}


def test_rates_are_those_of_the_curves() -> None:
    """Known powers put in: gradient gap L^−1, distance to the flow L^−½ on the way and constant after."""
    run = train(LinearRegression(2), (8, 32, 128), **HOW)
    n = torch.tensor(run.lengths).double()
    shape = run.risk.shape
    gap = (n**-0.5).expand(shape).clone()
    gap[-1] = 1.0
    flow = torch.tensor([1.0, 0.5, 1e-4]).double()[:, None].expand(shape[:2])
    made = replace(run, gradient_gap=(1 / n).expand(shape), parameter_gap=gap, flow_risk=flow)
    part = compared("t", [made])
    found = {rate.quantity: rate.exponent for rate in part.rates()}
    assert found["gradient gap, mean along training"] == pytest.approx(1)
    assert found["largest distance to the flow, until it arrives"] == pytest.approx(0.5)
    assert found["largest distance to the flow, whole run"] == pytest.approx(0)
    # Σ = I in two dimensions: H² = 1/√2, beyond the transition at ½
    assert part.exponent() == pytest.approx((math.sqrt(1 + 4 * math.sqrt(2)) - 1) / 2)


def test_what_is_known_without_training_stands_beside_it_in_any_order_of_lengths() -> None:
    task, lengths = LinearRegression(2), (16, 4, 64)
    part = compared("t", [train(task, lengths, attention=name, **HOW) for name in ("softmax", "linear")])
    for name in ("softmax", "linear"):
        assert part.predicted[name].tolist() == [tuned(task, length, name)[1] for length in lengths]
    assert part.floor is not None
    assert part.floor.tolist() == [float(task.floor(length)) for length in lengths]
    assert [row["length"] for row in part.rows()] == [16, 4, 64]
    assert part.solution is not None
    assert float(part.solution[1]) > float(part.solution[0]) > float(part.solution[2])
    assert part.to_dict()["long_prompt_constants"].keys() == {"softmax", "linear"}
    assert repr(part).startswith("Comparison(t: softmax attention, linear attention; sgd, lr 0.1")
    assert part.plot().axes[0].get_xlabel() == "prompt length L"


def test_other_tasks_have_a_floor_alone() -> None:
    part = compared("classes", [train(Classification(2), (4, 16), **HOW)])
    assert part.exponent() is None
    assert part.solution is None
    assert part.constants() == {}
    assert part.floors is not None
    assert part.to_dict()["solution_exponent"] is None


def test_what_cannot_be_compared_is_refused() -> None:
    run = train(LinearRegression(2), (4, 16), **HOW)
    other = train(LinearRegression(2), (4, 8), attention="linear", **HOW)
    for runs in ([], [run, run], [run, other]):
        with pytest.raises(
            InputError, match="Compared are trainings with different attention at the same lengths"
        ):
            compared("t", runs)
