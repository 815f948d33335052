"""The task's metric against the keys that each head attends to, and two ways to share keys out over heads by what they reach."""

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
from attnlimit.files.records import Recorded, finite
from attnlimit.inputs import Array, as_count, as_float
from attnlimit.models.analyse.run import Run
from attnlimit.models.attend.sampled import real_queries
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.budget.needed import RANDOM
from attnlimit.models.judge.intervals import Uncertain, averaged, bounds, crossed_means
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
class DownstreamCurve(Recorded, Drawn):
    """A metric with all keys and with fewer, for every size, seed and example."""

    also = ("values", "thirds", "full_thirds")
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
        each = (averaged(cells, self.level, self.full.metric) for cells in self.per_example[:, :, which])
        return tuple(Uncertain(*map(float, one)) for one in each)

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
    budgets = _budgets(loaded, sizes, sampling, trial.length(loaded))
    steps = Steps(progress, 1 + len(budgets) * len(trial.seeds))
    full = trial.evaluate(loaded, texts, steps.next())
    cells, keys, share = [], [], []
    for one in budgets:
        found, attended = trial.sampled(loaded, one, texts, steps)
        cells.append(torch.stack([result.per_example for result in found]))
        keys.append(float(attended.keys_per_query.mean()))
        share.append(attended.share)
    return DownstreamCurve(
        model=loaded.name,
        full=full,
        sampled=tuple(one if isinstance(one, int) else None for one in sizes),
        keys=tuple(keys),
        share=tuple(share),
        per_example=torch.stack(cells),
        seeds=tuple(trial.seeds),
        level=trial.level,
    )


def _budgets(
    loaded: Loaded, sizes: Sequence[int | Budgets], sampling: Sampling, tokens: int
) -> list[Budgets]:
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise InputError(f"sizes must be a list of numbers of keys or of Budgets, got {sizes!r}.")
    layers, causal = attention_layers(loaded.model), loaded.kind == "causal-lm"

    def uniform(size: object) -> Budgets:
        n = as_count(size, "sizes")
        return Budgets.uniform(layers, n, sampling, model=loaded.name, tokens=tokens, causal=causal)

    found = [one if isinstance(one, Budgets) else uniform(one) for one in sizes]
    for one in found:
        one.check_fits(loaded.model)
    return found


@dataclass(frozen=True, eq=False, repr=False)
class SplitComparison(Recorded, Drawn):
    """The same total of keys, the same for every head and optimally split, on the same examples and seeds."""

    uniform: DownstreamCurve
    split: DownstreamCurve
    policy: str
    objective: str

    def by_horizon(self, horizons: Array) -> SplitComparison:
        """The same with the examples of both curves in thirds."""
        uniform, split = (one.by_horizon(horizons) for one in (self.uniform, self.split))
        return replace(self, uniform=uniform, split=split)

    @property
    def ratios(self) -> tuple[Uncertain, ...]:
        """For each uniform size: keys with which the split reaches the same value, over the uniform ones.

        Between its sizes a curve is a straight line over log keys, made monotone first (what more keys lose is taken
        for noise). Below the split's range the ratio is that of its least size, an upper bound; above it is ∞.
        """
        cells = torch.cat([self.uniform.per_example, self.split.per_example]).permute(1, 2, 0)
        sign = 1.0 if self.uniform.full.higher_is_better else -1.0
        found = self._ratios(sign * cells.mean((0, 1))[None])
        resampled = self._ratios(sign * crossed_means(cells, torch.Generator().manual_seed(0)))
        low, high = bounds(resampled.nan_to_num(posinf=1e9), self.uniform.level)
        return tuple(
            Uncertain(float(value), float(a), float(b) if float(b) < 1e8 else float("inf"))
            for value, a, b in zip(found[0], low, high, strict=True)
        )

    def _ratios(self, values: Float[Tensor, "r both"]) -> Float[Tensor, "r sizes"]:
        one, other = values.split([len(self.uniform.keys), len(self.split.keys)], 1)
        keys, wanted = (torch.tensor(curve.keys, dtype=torch.float64) for curve in (self.split, self.uniform))
        reached = other.cummax(1).values
        first = (reached[:, None, :] >= one[:, :, None] - 1e-12).double().argmax(2)  # 0 also where none is
        before = (first - 1).clamp_min(0)
        high, low = reached.gather(1, first), reached.gather(1, before)
        part = ((one - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        log_keys = keys.log()
        needed = log_keys[before] + part * (log_keys[first] - log_keys[before])
        never = one > reached[:, -1:] + 1e-12
        return torch.where(never, torch.inf, needed.exp() / wanted)

    def to_dict(self) -> dict[str, Any]:
        ratios = finite([one.to_dict() for one in self.ratios])  # null: more keys than were tried
        return super().to_dict() | {"key_ratio": ratios}

    def __repr__(self) -> str:
        ratios = ", ".join(
            f"{keys:.3g}: {one!r}" for keys, one in zip(self.uniform.keys, self.ratios, strict=True)
        )
        return f"SplitComparison(uniform keys per head → keys of the split for the same value, relative: {ratios})"


def compare_splits(
    loaded: Loaded,
    run: Run,
    texts: Sequence[str | Document],
    sizes: Sequence[int],
    *,
    policy: str = "kept",
    split: str = "output",
    trial: Trial | None = None,
    progress: Progress | None = None,
) -> SplitComparison:
    """The task's metric with `size` sampled keys per head in the mean, for each of `sizes`: the same number in every
    head, and split by the run's error curves. With split "answer": one design for all heads, and what is best for the model's
    answer, whatever the policy. Without a `trial` examples are as long as the run's."""
    if split == "uniform":
        raise InputError("split must be answer, output or head: uniform is what it is compared with.")
    totals = [len(run.heads) * as_count(size, "sizes") for size in sizes]
    ways = (("same", split), ("best", split)) if split == "answer" else ((policy, "uniform"), (policy, split))
    budgets = [run.budgets(total=total, policy=name, split=kind) for name, kind in ways for total in totals]
    trial = Trial(tokens=run.facts.tokens) if trial is None else trial
    # one curve, cut in two: the full model runs once
    curve = downstream_curve(loaded, texts, budgets, trial=trial, progress=progress)
    half = len(totals)
    return SplitComparison(curve.part(slice(half)), curve.part(slice(half, None)), policy, split)


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
    real = real_queries(call)[:, None, :, None].double()
    key = call.key.repeat_interleave(call.groups, 1)[:, :, -call.query.shape[2] :]
    cov_q, cov_k = (_covariance(x.double(), real) for x in (call.query, key))
    return top_horizon(cov_q, cov_k, call.scale).cpu()


def _covariance(x: Float[Tensor, "b h l d"], real: Float[Tensor, "b 1 l 1"]) -> Float[Tensor, "b h d d"]:
    count = real.sum(2, keepdim=True)
    centred = (x - (x * real).sum(2, keepdim=True) / count) * real
    return centred.mT @ centred / count
