"""What is reported along training: risks and the distance of gradients, on fresh prompts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl.batches import EVALUATION, Batch, ahead, draw, stream
from attnlimit.icl.infinite import infinite_risk
from attnlimit.icl.plan import Plan, has_exact_risk
from attnlimit.icl.pulls import finite_losses, finite_pull, infinite_pull

PARTS, AT_ONCE = 16, 2**23
"""Evaluation prompts come in parts, whose spread gives standard errors: at least so many, of at most so many numbers."""


class Report(NamedTuple):
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


def evaluate(plan: Plan, theta: Float[Tensor, "2 S M D D"], workers: int = 1) -> Report:
    """On prompts of their own stream, the same at every step and for all models of a seed.

    The risk is R_∞ + mean(loss_L − loss_∞) with R_∞ exact and loss_∞ the loss that the same task vector and query have
    with an infinite prompt: where both models are close the noise cancels. Squared gaps are freed of the noise's own
    square, and are zero where that is all there is.
    """
    U, V = theta.to(plan.dtype)
    lengths = plan.lengths + plan.test_lengths
    numbers = plan.seeds * plan.evaluation * max(lengths) * plan.task.token_dim
    parts = max(PARTS, -(-numbers // AT_ONCE))
    size = -(-plan.evaluation // parts)

    def prompts(part: int) -> Batch:
        generators = [stream(plan.base, EVALUATION, seed, part, plan.device) for seed in range(plan.seeds)]
        return draw(plan.task, plan.attention, lengths, size, generators, plan.dtype)

    losses, tests, gradients = [], [], []
    for batch in ahead(prompts, range(parts), workers):
        finite = finite_pull(plan.task, U, V, batch, plan.lengths)
        limit = infinite_pull(plan.task, U, V, batch)
        far = limit.loss if has_exact_risk(plan.task) else torch.zeros_like(limit.loss)
        losses.append((finite.loss - far).double())
        gradients.append(torch.stack([finite.U - limit.U, finite.V - limit.V]).double())
        if plan.test_lengths:
            tests.append(finite_losses(plan.task, U, V, batch, plan.test_lengths).double() - far[..., None])
    exact = infinite_risk(plan.task, *theta)
    offset = exact if has_exact_risk(plan.task) else torch.zeros_like(exact)
    loss, gradient = torch.stack(losses), torch.stack(gradients)
    noise = gradient.var(0).sum((0, -2, -1)) / parts
    square = gradient.mean(0).square().sum((0, -2, -1)) - noise
    test = torch.stack(tests).mean(0) + offset[..., None] if tests else exact.new_empty(*exact.shape, 0)
    return Report(
        theta.clone(),
        offset + loss.mean(0),
        loss.std(0) / parts**0.5,
        exact,
        square.clamp_min(0).sqrt(),
        test,
    )
