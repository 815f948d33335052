"""The task's metric against the keys that each head attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.designs import Sampling
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_count, as_float
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.budget.needed import RANDOM
from attnlimit.models.judge.intervals import Uncertain, crossed_means, uncertain
from attnlimit.models.judge.tasks import Task, TaskResult, TaskRun
from attnlimit.models.judge.trial import Trial
from attnlimit.models.see.call import Call
from attnlimit.models.see.interface import observe
from attnlimit.models.see.layers import attention_layers
from attnlimit.models.see.load import Loaded, run_backbone
from attnlimit.models.see.progress import Progress, Steps
from attnlimit.models.see.text import Document
from attnlimit.rates.horizon import top_horizon

THIRDS = ("low", "middle", "high")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DownstreamCurve(Drawn):
    """A metric with all keys and with fewer, for every size, seed and example."""

    model: str
    full: TaskResult
    sampled: tuple[int | None, ...]
    """Keys drawn per head; None for budgets that differ from head to head."""
    keys: tuple[float, ...]
    """Distinct keys per query and head that were really attended to, mean over heads."""
    share: tuple[float, ...]
    """The same over those of full attention."""
    per_example: Float[Tensor, "sizes seeds examples"]
    seeds: tuple[int, ...]
    level: float
    third: Int[Tensor, " examples"] | None = None
    """0, 1 or 2 by rising horizon of the example; None: `by_horizon` was not told."""

    def part(self, some: slice) -> DownstreamCurve:
        """Some of the sizes, by their places."""
        return replace(
            self,
            sampled=self.sampled[some],
            keys=self.keys[some],
            share=self.share[some],
            per_example=self.per_example[some],
        )

    def by_horizon(self, horizons: Array) -> DownstreamCurve:
        """The same with its examples in thirds by their horizons, one number an example (a document for retrieval and
        labels, a window else)."""
        given, examples = as_float(horizons, "horizons"), self.per_example.shape[2]
        if given.shape != (examples,) or examples < 3:
            raise InputError(
                f"horizons must be one number for each of the {examples} examples (at least 3), got shape "
                f"{tuple(given.shape)}: an example is a document or a window, as the task counts them."
            )
        rank = given.argsort(stable=True).argsort(stable=True)
        return replace(self, third=3 * rank // examples)

    @property
    def values(self) -> tuple[Uncertain, ...]:
        """The metric at each size, with its interval over seeds and examples."""
        return self._values(slice(None))

    @property
    def thirds(self) -> dict[str, tuple[Uncertain, ...]]:
        """The same for the thirds of the examples with low, middle and high horizon."""
        if self.third is None:
            return {}
        return {name: self._values(self.third == place) for place, name in enumerate(THIRDS)}

    @property
    def full_thirds(self) -> dict[str, float]:
        """The metric of the full model on the same thirds."""
        if self.third is None:
            return {}
        parts = {name: self.full.per_example[self.third == place] for place, name in enumerate(THIRDS)}
        return {name: float(self.full.metric(part.mean())) for name, part in parts.items()}

    def _values(self, which: slice | Tensor) -> tuple[Uncertain, ...]:
        found = []
        for cells in self.per_example[:, :, which]:
            resampled = crossed_means(cells, torch.Generator().manual_seed(0))
            found.append(uncertain(self.full.metric(cells.mean()), self.full.metric(resampled), self.level))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "full": self.full.to_dict(),
            "sampled": list(self.sampled),
            "keys": list(self.keys),
            "share": list(self.share),
            "values": [one.to_dict() for one in self.values],
            "thirds": {name: [one.to_dict() for one in part] for name, part in self.thirds.items()},
            "full_thirds": self.full_thirds,
            "per_example": self.per_example.tolist(),
            "seeds": list(self.seeds),
            "level": self.level,
        }

    def __repr__(self) -> str:
        points = ", ".join(
            f"{keys:.3g}: {one.value:.3g}" for keys, one in zip(self.keys, self.values, strict=True)
        )
        return (
            f"DownstreamCurve({self.full.name}, keys per head → value {points}, full {self.full.value:.3g})"
        )


def downstream_curve(
    loaded: Loaded,
    texts: Sequence[str | Document],
    sizes: Sequence[int | Budgets],
    *,
    sampling: Sampling = RANDOM,
    trial: Trial | None = None,
    progress: Progress | None = None,
) -> DownstreamCurve:
    """The task's metric with n keys drawn in every head, for each n of `sizes`; an entry
    may also be Budgets of its own, such as an optimal split to set against the uniform ones."""
    trial = Trial() if trial is None else trial
    budgets = [_budgets(loaded, one, sampling, trial.length(loaded)) for one in _listed(sizes)]
    steps = Steps(progress, 1 + len(budgets) * len(trial.seeds))
    full = trial.evaluate(loaded, texts, steps.next())
    cells, keys, share = [], [], []
    for one in budgets:
        for seed in trial.seeds:
            with sampled_attention(loaded.model, one, generator=seed, per_query=trial.per_query) as attended:
                cells.append(trial.evaluate(loaded, texts, steps.next()).per_example)
        keys.append(float(attended.keys_per_query.mean()))
        share.append(attended.share)
    return DownstreamCurve(
        model=loaded.name,
        full=full,
        sampled=tuple(one if isinstance(one, int) else None for one in sizes),
        keys=tuple(keys),
        share=tuple(share),
        per_example=torch.stack(cells).view(len(budgets), len(trial.seeds), -1),
        seeds=tuple(trial.seeds),
        level=trial.level,
    )


def _listed(sizes: Sequence[int | Budgets]) -> list[int | Budgets]:
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise InputError(f"sizes must be a list of numbers of keys or of Budgets, got {sizes!r}.")
    return [one if isinstance(one, Budgets) else as_count(one, "sizes") for one in sizes]


def _budgets(loaded: Loaded, size: int | Budgets, sampling: Sampling, tokens: int) -> Budgets:
    if isinstance(size, Budgets):
        size.check_fits(loaded.model)
        return size
    layers, causal = attention_layers(loaded.model), loaded.kind == "causal-lm"
    return Budgets.uniform(layers, size, sampling, model=loaded.name, tokens=tokens, causal=causal)


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
