"""A training as it is computed: all that decides its numbers, its prompts, gradients and reports."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError, NotKnown
from attnlimit.icl.batches import EVALUATION, START, TRAINING, Batch, ahead, draw, stream
from attnlimit.icl.infinite import has_exact_risk, infinite_risk
from attnlimit.icl.methods import Attention, Evaluation, Optimizer, Start
from attnlimit.icl.pulls import finite_losses, finite_pull, infinite_pull
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.icl.weights import Theta, as_theta, balanced
from attnlimit.inputs import as_counts, as_generator, as_one_of

PARTS, AT_ONCE = 16, 2**23
"""Evaluation prompts come in parts, whose spread gives standard errors: at least so many, of at most so many numbers."""

Thetas = Float[Tensor, "2 S M D D"]


class Measured(NamedTuple):
    """Numbers of every model at one step."""

    theta: Float[Tensor, "2 S M D D"]
    risk: Float[Tensor, "S M"]
    """At the model's own prompt length."""
    risk_error: Float[Tensor, "S M"]
    """Its standard error."""
    infinite_risk: Float[Tensor, "S M"]
    gradient_gap: Float[Tensor, "S M"]
    """‖∇R_L − ∇R_∞‖_F at these weights, both in U and V."""
    test_risk: Float[Tensor, "S M T"]


@dataclass(frozen=True, eq=False)
class Trial:
    """One model for each of S seeds and M prompt lengths."""

    task: InContextTask
    lengths: tuple[int, ...]
    attention: Attention
    optimizer: Optimizer
    evaluation: Evaluation
    base: int
    """The number that all random streams are made from."""
    starts: Float[Tensor, "S 2 D D"]
    """(U, V) that each seed's models start from."""

    @classmethod
    def of(
        cls,
        task: InContextTask,
        lengths: int | Sequence[int],
        attention: Attention,
        optimizer: Optimizer,
        evaluation: Evaluation,
        start: Start,
        generator: torch.Generator | int,
    ) -> Trial:
        """What the objects cannot check by themselves: that they fit each other."""
        if not isinstance(task, InContextTask):
            raise InputError(f"task must be an icl task such as LinearRegression(5), got {task!r}.")
        if optimizer.variance_reduction == "control" and not has_exact_risk(task):
            raise NotKnown(
                f"variance_reduction='control' needs the exact infinite-prompt gradient, and {task!r} has none: leave it out."
            )
        as_one_of(attention, Attention, "attention")
        evaluation.steps(optimizer.steps)
        base = int(torch.randint(2**62, (), generator=as_generator(generator)))
        starts = torch.stack([_start(task, start.init, base, seed) for seed in range(start.seeds)])
        sizes = tuple(as_counts(lengths, "lengths"))
        return cls(task, sizes, attention, optimizer, evaluation, base, starts)

    @property
    def seeds(self) -> int:
        return len(self.starts)

    @property
    def reports(self) -> tuple[int, ...]:
        return self.evaluation.steps(self.optimizer.steps)

    def fingerprint(self) -> dict[str, Any]:
        """Plain values that tell two trials apart; a checkpoint is only continued by the trial that wrote it."""
        values = {name: value for name, value in vars(self.task).items() if not name.startswith("_")}
        return {
            **{name: value for name, value in asdict(self.optimizer).items() if name != "device"},
            **asdict(self.evaluation),
            "lengths": self.lengths,
            "attention": self.attention,
            "seeds": self.seeds,
            "base": self.base,
            "start": _digest(self.starts),
            "task": repr(self.task),
            "task values": _digest(*(values[name] for name in sorted(values))),
        }

    def drawn(self, purpose: int, step: int, lengths: tuple[int, ...], count: int) -> Batch:
        """`count` prompts for each seed."""
        how = self.optimizer
        generators = [stream(self.base, purpose, seed, step, how.device) for seed in range(self.seeds)]
        return draw(self.task, self.attention, lengths, count, generators, how.torch_dtype)

    def batch(self, step: int) -> Batch:
        """The prompts of a training step."""
        return self.drawn(TRAINING, step, self.lengths, self.optimizer.batch)

    def gradient(self, theta: Thetas, batch: Batch) -> Thetas:
        U, V = theta.to(self.optimizer.torch_dtype)
        finite = finite_pull(self.task, U, V, batch, self.lengths)
        gradient = torch.stack([finite.U, finite.V]).double()
        if self.optimizer.variance_reduction is None:
            return gradient
        limit = infinite_pull(self.task, U, V, batch)
        with torch.enable_grad():
            free = theta.detach().requires_grad_()
            (exact,) = torch.autograd.grad(infinite_risk(self.task, *free).sum(), free)
        return gradient - torch.stack([limit.U, limit.V]).double() + exact

    def measured(self, theta: Thetas, workers: int = 1) -> Measured:
        """On prompts of their own stream, the same at every step and for all models of a seed.

        The risk is R_∞ + mean(loss_L − loss_∞) with R_∞ exact and loss_∞ the loss that the same task vector and query have
        with an infinite prompt: where both models are close the noise cancels. Squared gaps are freed of the noise's own
        square, and are zero where that is all there is.
        """
        task, (U, V) = self.task, theta.to(self.optimizer.torch_dtype)
        lengths, tested = self.lengths, self.evaluation.test_lengths
        numbers = self.seeds * self.evaluation.prompts * max(lengths + tested) * task.token_dim
        parts = max(PARTS, -(-numbers // AT_ONCE))
        size = -(-self.evaluation.prompts // parts)
        known = has_exact_risk(task)
        losses, tests, gradients = [], [], []
        for batch in ahead(
            lambda part: self.drawn(EVALUATION, part, lengths + tested, size), range(parts), workers
        ):
            finite, limit = finite_pull(task, U, V, batch, lengths), infinite_pull(task, U, V, batch)
            far = limit.loss if known else torch.zeros_like(limit.loss)
            losses.append((finite.loss - far).double())
            gradients.append(torch.stack([finite.U - limit.U, finite.V - limit.V]).double())
            if tested:
                tests.append(finite_losses(task, U, V, batch, tested).double() - far[..., None])
        exact = infinite_risk(task, *theta)
        offset = exact if known else torch.zeros_like(exact)
        loss, gradient = torch.stack(losses), torch.stack(gradients)
        noise = gradient.var(0).sum((0, -2, -1)) / parts
        square = gradient.mean(0).square().sum((0, -2, -1)) - noise
        test = torch.stack(tests).mean(0) + offset[..., None] if tests else exact.new_empty(*exact.shape, 0)
        risk, error = offset + loss.mean(0), loss.std(0) / parts**0.5
        return Measured(theta.clone(), risk, error, exact, square.clamp_min(0).sqrt(), test)


def _start(task: InContextTask, init: Theta | float | int, base: int, seed: int) -> Float[Tensor, "2 D D"]:
    if not isinstance(init, float | int):
        return torch.stack(as_theta(task, init).embed())
    generator = stream(base, START, seed, 0)
    if isinstance(task, LinearRegression):
        return torch.stack(balanced(task, init, generator).embed())
    D = task.token_dim
    return init / math.sqrt(D) * torch.randn(2, D, D, generator=generator, dtype=torch.float64)


def _digest(*values: object) -> str:
    total = hashlib.sha256()
    for value in values:
        plain = value.tolist() if isinstance(value, Tensor) else value
        total.update(repr(plain).encode())
    return total.hexdigest()[:16]
