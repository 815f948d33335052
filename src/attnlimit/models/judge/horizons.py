"""The horizon of single texts: how sharply a model's heads look at each."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.models.judge.task_run import TaskRun
from attnlimit.models.judge.tasks import Task
from attnlimit.models.see.call import Call
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, run_backbone
from attnlimit.rates.horizon import top_horizon


def example_horizons(loaded: Loaded, task: Task, run: TaskRun) -> Float[Tensor, " examples"]:
    """For each example of a task the mean over heads of H = scale·√λ_max(Cov q · Cov k), over the tokens of that example
    alone (cross-attention left out)."""
    found: list[Tensor] = []

    def heads(call: Call) -> None:
        if call.own_key is not None:
            found.append(call_horizons(call))

    rows = task.rows(run)
    total = torch.zeros(len(rows) // task.rows_each, dtype=torch.float64)
    with torch.no_grad(), observe(loaded.model, heads):
        for places, inputs in run.padded(rows):
            found.clear()
            run_backbone(loaded, **inputs)
            each = torch.cat(found, 1).mean(1)  # over layers and heads
            total.index_add_(0, places // task.rows_each, each / task.rows_each)
    return total


def call_horizons(call: Call) -> Float[Tensor, "b h"]:
    """H of every text and head of one call, padding left out."""
    size, _, length, _ = call.query.shape
    real = torch.ones(size, length, dtype=torch.bool) if call.real is None else call.real
    real = real.to(call.query.device)[:, None, :, None].double()
    key = call.key.repeat_interleave(call.groups, 1)[:, :, -length:]
    cov_q, cov_k = (_covariance(x.double(), real) for x in (call.query, key))
    return top_horizon(cov_q, cov_k, call.scale).cpu()


def _covariance(x: Float[Tensor, "b h l d"], real: Float[Tensor, "b 1 l 1"]) -> Float[Tensor, "b h d d"]:
    count = real.sum(2, keepdim=True)
    centred = (x - (x * real).sum(2, keepdim=True) / count) * real
    return centred.mT @ centred / count
