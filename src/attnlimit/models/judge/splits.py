"""Two ways to share keys out over heads, by the keys that each needs for the same value of the task's metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_count
from attnlimit.models.analyse.run import Run
from attnlimit.models.judge.downstream import DownstreamCurve, downstream_curve
from attnlimit.models.judge.intervals import Uncertain, bounds, crossed_means
from attnlimit.models.judge.trial import Trial
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Progress
from attnlimit.models.see.text import Document


@dataclass(frozen=True, eq=False, repr=False)
class SplitComparison(Drawn):
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
        return {
            "policy": self.policy,
            "objective": self.objective,
            "uniform": self.uniform.to_dict(),
            "split": self.split.to_dict(),
            "key_ratio": [  # null: more keys than were tried
                {name: value if value < float("inf") else None for name, value in one.to_dict().items()}
                for one in self.ratios
            ],
        }

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
