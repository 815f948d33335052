"""The infinite-prompt solution against a model that was trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from attnlimit.icl.finite import sampled_losses
from attnlimit.icl.tasks import Task
from attnlimit.icl.train import train
from attnlimit.icl.weights import Weights
from attnlimit.inputs import as_count

EVALUATION, SEED = 20_000, 2512_11788


@dataclass(frozen=True)
class TrainedCheck:
    """Risks on the same fresh prompts, for models trained from several seeds."""

    length: int
    transferred: float
    trained: tuple[float, ...]
    """One a seed."""
    gap: float
    """(transferred − best trained)/risk of predicting 0: what training gained; negative where it lost."""
    gap_error: float
    """Standard error of the gap, from the differences on the same prompts."""
    rel_error: float
    method: str

    @property
    def holds(self) -> bool:
        """Whether training gained no more than rel_error, within two standard errors."""
        return self.gap <= self.rel_error + 2 * self.gap_error

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def trained_check(
    task: Task, weights: Weights, length: int, zero_risk: float, rel_error: float, **training: Any
) -> TrainedCheck:
    """Train at one length and evaluate both models on 20,000 common prompts of that length."""
    length = as_count(length, "length")
    run = train(task, length, **training)

    def losses(model: Weights) -> torch.Tensor:
        generator = torch.Generator().manual_seed(SEED)
        model = Weights(*(matrix.double().cpu() for matrix in model))
        return sampled_losses(task, model, (length,), EVALUATION, generator)[:, 0]

    ours = losses(weights)
    theirs = [losses(run.weights(length, seed)) for seed in range(run.risk.shape[1])]
    best = min(theirs, key=lambda row: float(row.mean()))
    difference = (ours - best) / zero_risk
    return TrainedCheck(
        length,
        float(ours.mean()),
        tuple(float(row.mean()) for row in theirs),
        float(difference.mean()),
        float(difference.std()) / EVALUATION**0.5,
        rel_error,
        f"{run.method}; {EVALUATION:,} common prompts",
    )
