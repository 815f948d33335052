"""What training on finite prompts gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.icl.methods import Attention, Evaluation, Optimizer
from attnlimit.icl.tasks import InContextTask
from attnlimit.icl.weights import Weights
from attnlimit.numerics.words import counted

LEVEL = 0.95
MEASURED = ("risk", "risk_error", "infinite_risk", "gradient_gap", "parameter_gap", "excess")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Training(Drawn):
    """R reports of S seeds × M prompt lengths; for every seed all lengths start from the same weights."""

    task: InContextTask
    attention: Attention
    lengths: tuple[int, ...]
    optimizer: Optimizer
    evaluation: Evaluation
    steps: tuple[int, ...]
    """Training steps after which each report was made."""
    times: Float[Tensor, " R"] | None
    """Time of the gradient flow at each report, Σ lr; None for optimisers that follow no flow."""
    U: Float[Tensor, "R S M D D"]
    V: Float[Tensor, "R S M D D"]
    risk: Float[Tensor, "R S M"]
    """At the length trained on."""
    risk_error: Float[Tensor, "R S M"]
    """Standard error of that risk, from the evaluation prompts."""
    infinite_risk: Float[Tensor, "R S M"]
    """Of the same weights on infinite prompts."""
    gradient_gap: Float[Tensor, "R S M"]
    """‖∇R_L − ∇R_∞‖_F at the same weights."""
    flow_risk: Float[Tensor, "R S"] | None
    """Infinite-prompt risk along the infinite-prompt flow from the same start."""
    parameter_gap: Float[Tensor, "R S M"] | None
    """Distance ‖(U, V) − flow‖_F to it at the same time."""
    test_risk: Float[Tensor, "R S M T"]
    """At the other prompt lengths of the evaluation."""

    @property
    def seeds(self) -> int:
        return self.risk.shape[1]

    @property
    def test_lengths(self) -> tuple[int, ...]:
        return self.evaluation.test_lengths

    @property
    def method(self) -> str:
        """How it was got, in words."""
        return f"{self.optimizer}; {counted(self.seeds, 'seed')}, risks on {self.evaluation.prompts:,} fresh prompts each"

    @property
    def excess(self) -> Float[Tensor, "R S M"] | None:
        """Risk at the length trained on, less that of the infinite-prompt flow at the same time."""
        return None if self.flow_risk is None else self.risk - self.flow_risk[..., None]

    def weights(self, length: int, seed: int = 0) -> Weights:
        """The trained model."""
        if length not in self.lengths or not 0 <= seed < self.seeds:
            raise InputError(
                f"No model was trained for length {length}, seed {seed}: there are lengths "
                f"{', '.join(map(str, self.lengths))} and seeds 0 to {self.seeds - 1}."
            )
        place = self.lengths.index(length)
        return Weights(self.U[-1, seed, place], self.V[-1, seed, place])

    def rows(self) -> Iterator[dict[str, int | float | str | None]]:
        """A long table: one row for each report, seed and length."""
        measured = {name: getattr(self, name) for name in MEASURED}
        for r, step in enumerate(self.steps):
            time = None if self.times is None else float(self.times[r])
            for s in range(self.seeds):
                for m, length in enumerate(self.lengths):
                    yield {
                        "attention": self.attention,
                        "step": step,
                        "seed": s,
                        "length": length,
                        "time": time,
                        **{k: None if v is None else float(v[r, s, m]) for k, v in measured.items()},
                        **{
                            f"risk_at_{n}": float(self.test_risk[r, s, m, t])
                            for t, n in enumerate(self.test_lengths)
                        },
                    }

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, weights only at the end."""
        return {
            "task": repr(self.task),
            "attention": self.attention,
            "method": self.method,
            "test_lengths": list(self.test_lengths),
            "reports": list(self.rows()),
            "U": self.U[-1].tolist(),
            "V": self.V[-1].tolist(),
        }

    def __repr__(self) -> str:
        mean = self.risk[-1].mean(0)
        risks = ", ".join(f"L = {n}: {float(v):.4g}" for n, v in zip(self.lengths, mean, strict=True))
        return f"Training({self.attention}, {self.steps[-1]:,} steps; risk {risks}; {self.method})"


class OverSeeds(NamedTuple):
    """A mean over seeds and both ends of its t interval."""

    mean: Float[Tensor, ...]
    low: Float[Tensor, ...]
    high: Float[Tensor, ...]


def power_of_length(lengths: Sequence[int], values: Float[Tensor, "S M"]) -> Float[Tensor, " S"]:
    """The e of values ∝ L^−e: least squares in log-log for each seed."""
    x = torch.tensor(lengths, dtype=torch.float64).log()
    x = x - x.mean()
    return -(values.log() @ x) / x.square().sum()


def over_seeds(values: Float[Tensor, "... S"]) -> OverSeeds:
    """Mean over seeds (the last axis) with both ends of its 95 % t interval; with one seed the interval is unknown, nan."""
    count, mean = values.shape[-1], values.mean(-1)
    if count < 2:
        nothing = torch.full_like(mean, torch.nan)
        return OverSeeds(mean, nothing, nothing)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * values.std(-1) / count**0.5
    return OverSeeds(mean, mean - half, mean + half)
