"""The horizon of single texts: how sharply a model's heads look at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.models.judge.task_run import TaskRun
from attnlimit.models.judge.tasks import Task, task_for
from attnlimit.models.see.call import Call
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, run_backbone
from attnlimit.models.see.text import Document, as_documents, longest


def example_horizons(
    loaded: Loaded,
    texts: Sequence[str | Document],
    *,
    tokens: int,
    task: Task | None = None,
    examples: int | None = None,
    batch: int = 16,
    progress: Callable[[int, int], object] | None = None,
) -> Float[Tensor, " examples"]:
    """For each example of the model's task the mean over heads of H = scale·√λ_max(Cov q · Cov k), over the tokens of
    that example alone (cross-attention left out)."""
    found: list[Tensor] = []

    def heads(call: Call) -> None:
        if call.own_key is not None:
            found.append(call_horizons(call))

    chosen = task_for(loaded) if task is None else task
    tokenizer, length = loaded.need_tokenizer(), longest(loaded.model, tokens)
    examples = chosen.enough if examples is None else examples
    run = TaskRun(loaded.model, tokenizer, as_documents(texts), length, examples, batch, progress)
    rows = chosen.rows(run)
    total = torch.zeros(len(rows) // chosen.rows_each, dtype=torch.float64)
    with torch.no_grad(), observe(loaded.model, heads):
        for places, inputs in run.padded(rows):
            found.clear()
            run_backbone(loaded, **inputs)
            each = torch.cat(found, 1).mean(1)  # over layers and heads
            total.index_add_(0, places // chosen.rows_each, each / chosen.rows_each)
    return total


def call_horizons(call: Call) -> Float[Tensor, "b h"]:
    """H of every text and head of one call, padding left out."""
    size, _, length, _ = call.query.shape
    real = torch.ones(size, length, dtype=torch.bool) if call.real is None else call.real
    real = real.to(call.query.device)[:, None, :, None].double()
    key = call.key.repeat_interleave(call.groups, 1)[:, :, -length:]
    cov_q, cov_k = (_covariance(x.double(), real) for x in (call.query, key))
    root = torch.linalg.cholesky(cov_k + 1e-9 * _size(cov_k) * torch.eye(key.shape[-1], device=key.device))
    top = torch.linalg.eigvalsh(root.mT @ cov_q @ root)[..., -1]
    return (call.scale * top.clamp_min(0).sqrt()).cpu()


def _covariance(x: Float[Tensor, "b h l d"], real: Float[Tensor, "b 1 l 1"]) -> Float[Tensor, "b h d d"]:
    count = real.sum(2, keepdim=True)
    centred = (x - (x * real).sum(2, keepdim=True) / count) * real
    return centred.mT @ centred / count


def _size(cov: Float[Tensor, "b h d d"]) -> Float[Tensor, "b h 1 1"]:
    return cov.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp_min(1e-30)
