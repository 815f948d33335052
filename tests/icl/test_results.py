"""Results are plain data: they pickle, and what comes back is the same."""

import pickle
from dataclasses import fields

import pytest
import torch

import attnlimit as al
from attnlimit.icl import (
    Evaluation,
    LinearRegression,
    Optimizer,
    Start,
    Trials,
    balanced,
    concentration,
    endpoint,
    finite_risk,
    flow,
    stationary_points,
    train,
    transfer,
)
from attnlimit.icl.training import compared

TASK = LinearRegression(2)
HOW = {"optimizer": Optimizer(steps=4, batch=4, lr=0.1), "evaluation": Evaluation(reports=2, prompts=16)}
HEAD = al.Head(0.3 * torch.eye(2, dtype=torch.float64))
MADE = {
    "path": lambda: flow(TASK, balanced(TASK), times=[1.0, 2.0]),
    "training": lambda: train(TASK, [4, 8], **HOW),
    "comparison": lambda: compared("both", [train(TASK, [4, 8], attention=a, **HOW) for a in ("softmax", "linear")]),
    "concentration": lambda: concentration(HEAD, al.Gaussian(dim=2), [4, 8, 16], trials=Trials(replicates=5)),
    "block": lambda: endpoint(TASK),
    "weights": lambda: endpoint(TASK).embed(),
    "prompts": lambda: TASK.draw(30, 20, 0),
    "floor": lambda: TASK.floor(20),
    "finite risk": lambda: finite_risk(TASK, endpoint(TASK), [4, 8]),
    "stationary point": lambda: stationary_points(TASK)[0],
    "transfer": lambda: transfer(TASK, 20),
    "check": lambda: transfer(TASK, 20).check(4, optimizer=HOW["optimizer"], start=Start(seeds=2)),
}  # fmt: skip


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("name", MADE)
def test_results_pickle(name: str) -> None:
    found = MADE[name]()
    back = pickle.loads(pickle.dumps(found))
    assert same(found, back)
    assert repr(back) == repr(found)
    assert "\n" not in repr(found)
    if name in ("block", "weights", "prompts", "stationary point"):
        assert len(repr(found)) < 200
    if hasattr(found, "plot"):
        assert back.plot().axes
