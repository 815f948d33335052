"""Losses and gradients of many one-head models on a batch of prompts, in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl.batches import Batch
from attnlimit.icl.infinite import mean_loss
from attnlimit.icl.tasks import InContextTask, Prompts

Models = Float[Tensor, "S M D D"]


class Pull(NamedTuple):
    """Mean loss and gradients of each model: M lengths for each of S seeds."""

    loss: Float[Tensor, "S M"]
    U: Models
    V: Models


def finite_pull(task: InContextTask, U: Models, V: Models, batch: Batch, lengths: tuple[int, ...]) -> Pull:
    """Model (s, m) on the first lengths[m] tokens of the prompts of seed s.

    With z̄ and C the mean and covariance under the attention weights, out = V z̄ and g = ∂loss/∂out:
    ∂loss/∂V = g z̄ᵀ and ∂loss/∂U = C Vᵀg queryᵀ, since ∂z̄/∂U[E] = C E query.
    """
    mean, cov = batch.moments(_scores(U, batch), lengths)
    return _pull(task, V, batch, mean, cov)


def infinite_pull(task: InContextTask, U: Models, V: Models, batch: Batch) -> Pull:
    """The same on infinite prompts with the batch's task vectors, queries and targets."""
    if batch.root is not None:  # white noise tilted by α has mean α and covariance I
        return _pull(task, V, batch, _scores(U, batch), None)
    with torch.enable_grad():  # in float64, which laws of a task's own may be in
        U, V = U.detach().double().requires_grad_(), V.detach().double().requires_grad_()
        loss = torch.stack([mean_loss(task, *part) for part in zip(U, V, _prompts(batch), strict=True)])
        gradients = torch.autograd.grad(loss.sum(), (U, V))
    return Pull(loss.detach(), *gradients)


def finite_losses(
    task: InContextTask, U: Models, V: Models, batch: Batch, lengths: tuple[int, ...]
) -> Float[Tensor, "S M T"]:
    """Mean loss of every model at every one of T lengths."""
    S, M = U.shape[:2]
    alpha = _scores(U, batch).repeat_interleave(len(lengths), 1)
    mean, _ = batch.moments(alpha, lengths * M)
    out = _per_model(_coloured(mean, batch), S) @ V.repeat_interleave(len(lengths), 1).mT
    return task.risk(task.read(out), batch.target[:, None]).mean(-1).view(S, M, -1)


def slope(
    task: InContextTask, output: Float[Tensor, "S M B D"], target: Tensor
) -> tuple[Float[Tensor, "S M B"], Float[Tensor, "S M B D"]]:
    """The loss of each output, and its derivative in the output."""
    if (
        task.loss == "squared"
        and type(task).read is InContextTask.read
        and type(task).risk is InContextTask.risk
    ):
        off = output[..., -1] - target
        derivative = torch.zeros_like(output)
        derivative[..., -1] = off
        return off.square() / 2, derivative
    with torch.enable_grad():
        output = output.detach().requires_grad_()
        loss = task.risk(task.read(output), target)
        (derivative,) = torch.autograd.grad(loss.sum(), output)
    return loss.detach(), derivative


def _pull(task: InContextTask, V: Models, batch: Batch, mean: Tensor, cov: Tensor | None) -> Pull:
    S, B, D = batch.query.shape
    mean = _per_model(_coloured(mean, batch), S)
    loss, g = slope(task, mean @ V.mT, batch.target[:, None])
    h = (g @ V).transpose(1, 2).reshape(S * B, -1, D)
    h = h if batch.root is None else h @ batch.root.flatten(0, 1)
    pull = h if cov is None else (cov @ h[..., None])[..., 0]
    pull = _per_model(_coloured(pull, batch), S)
    return Pull(loss.mean(-1), pull.mT @ batch.query[:, None] / B, g.mT @ mean / B)


def _scores(U: Models, batch: Batch) -> Float[Tensor, "R M D"]:
    """α with αᵀg = zᵀU query: Fᵀ U query."""
    a = (batch.query @ U.flatten(1, 2).mT).view(-1, *U.shape[1:3])
    return a if batch.root is None else a @ batch.root.flatten(0, 1)


def _coloured(white: Float[Tensor, "R M D"], batch: Batch) -> Float[Tensor, "R M D"]:
    return white if batch.root is None else white @ batch.root.flatten(0, 1).mT


def _per_model(rows: Float[Tensor, "R M D"], seeds: int) -> Float[Tensor, "S M B D"]:
    return rows.unflatten(0, (seeds, -1)).transpose(1, 2)


def _prompts(batch: Batch) -> list[Prompts]:
    parts = zip(batch.query.double(), batch.target.double(), batch.vector.double(), strict=True)
    return [Prompts(query[:, None], query, target, vector) for query, target, vector in parts]
