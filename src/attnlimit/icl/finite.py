"""The risk at finite prompt length: exact for regression, Monte Carlo for other tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from scipy.interpolate import CubicSpline
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.exact import exact_error
from attnlimit.files.records import record
from attnlimit.icl.concentration import checked_lengths
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.icl.weights import Block, Theta, Weights, as_theta
from attnlimit.inputs import as_count, as_generator
from attnlimit.measures import Gaussian
from attnlimit.numerics.quasi import normal_sets

SCRAMBLES, POINTS, SPREADS = 8, 1024, 96
TOKENS_AT_ONCE = 2**18


@dataclass(frozen=True, eq=False)
class FiniteRisk:
    """The risk of softmax attention on prompts of each length."""

    lengths: tuple[int, ...]
    risk: Float[Tensor, " lengths"]
    standard_error: Float[Tensor, " lengths"]
    method: str

    def __repr__(self) -> str:
        return f"FiniteRisk(L = {self.lengths[0]} … {self.lengths[-1]}, {self.method})"

    def to_dict(self) -> dict[str, Any]:
        return record(self)


def finite_risk(
    task: InContextTask,
    theta: Theta,
    lengths: Sequence[int] | int,
    *,
    prompts: int = 4096,
    generator: torch.Generator | int = 0,
) -> FiniteRisk:
    """R_L(θ) = E loss on prompts of L tokens, for every L.

    For regression in block form (A, b) no prompt is drawn: given x_q, the law of the finite-prompt output is that of
    Gaussian attention with score spread s = ‖Σ^{1/2}Ax_q‖, whose error and bias are exact (any L up to 10^12), the average over w
    is in closed form, and only x_q is averaged over 8 × 1,024 quasi-random points. Otherwise `prompts` prompts are drawn, whose
    first tokens are the shorter prompts.

    >>> from attnlimit.icl import LinearRegression, endpoint
    >>> task = LinearRegression(5)
    >>> finite_risk(task, endpoint(task), [100, 10_000]).risk
    tensor([0.0963, 0.0038], dtype=torch.float64)
    """
    sizes, theta = checked_lengths(lengths), as_theta(task, theta)
    if isinstance(theta, Block) and isinstance(task, LinearRegression):
        return _exact(task, theta, sizes)
    count = as_count(prompts, "prompts")
    losses = sampled_losses(task, theta.embed(), sizes, count, as_generator(generator))
    method = f"Monte Carlo, {count:,} prompts, nested lengths"
    return FiniteRisk(sizes, losses.mean(0), losses.std(0) / count**0.5, method)


class _Errors(NamedTuple):
    """Of attention over L white Gaussian tokens with score spread s: mean square error of a coordinate across the scores'
    direction and along it, and the bias along it."""

    across: Float[Tensor, "p L"]
    along: Float[Tensor, "p L"]
    bias: Float[Tensor, "p L"]

    @classmethod
    def at(cls, s: Float[Tensor, " p"], lengths: tuple[int, ...]) -> _Errors:
        """By cubic splines in s through exact values; the tables' ranges are powers of 1.2, so that nearby heads share one."""
        reach = 1.2 ** math.ceil(math.log(max(float(s.max()), 1e-3), 1.2))
        across, along, bias = (torch.as_tensor(spline(s.numpy())) for spline in _splines(reach, lengths))
        return cls(across.exp(), along.exp(), bias)


@lru_cache(maxsize=64)
def _splines(reach: float, lengths: tuple[int, ...]) -> tuple[CubicSpline, CubicSpline, CubicSpline]:
    """log mean squares across and along, and the bias, on 0 ≤ s ≤ reach."""
    s, eye = torch.linspace(0, reach, SPREADS, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    x = s[:, None] * eye[0]
    along, across = (exact_error(Head(eye, row[None]), Gaussian(cov=1.0, dim=2), lengths, x) for row in eye)
    bias = -along.bias_square.sqrt()  # a finite prompt falls short of the limit
    tables = (across.mean_square.log(), along.mean_square.log(), bias)
    first, second, third = (CubicSpline(s.numpy(), table.numpy()) for table in tables)
    return first, second, third


def _exact(task: LinearRegression, theta: Block, lengths: tuple[int, ...]) -> FiniteRisk:
    """With h = ΣAx_q, the infinite prediction is b wᵀh and misses by wᵀe, e = bh − x_q. Over tokens the prediction errs by
    bias along h/s, and with variance from y's part along the scores, b²(wᵀh)²/s², and from the rest of b²(wᵀΣw + noise)."""
    P, A, b = task.vector_cov, theta.A, theta.b
    x = _quasi_normal(task.dim) @ torch.linalg.cholesky(task.query_cov).T
    h = x @ A.T @ task.cov
    s = (h * (x @ A.T)).sum(-1).clamp_min(0).sqrt()
    errors = _Errors.at(s, lengths)
    unit = h / s.clamp_min(1e-300)[:, None]
    share = b**2 * ((unit @ P) * unit).sum(-1, keepdim=True)
    total = b**2 * (float((task.cov @ P).trace()) + task.noise)
    miss = b * h - x
    squares = errors.across * (total - share) + errors.along * share
    cross = 2 * b * errors.bias * ((miss @ P) * unit).sum(-1, keepdim=True)
    risks = (squares + cross + ((miss @ P) * miss).sum(-1, keepdim=True)) / 2
    means = risks.reshape(SCRAMBLES, POINTS, -1).mean(1)
    method = f"exact over prompts and task vectors, {SCRAMBLES} × {POINTS:,} quasi-random queries"
    return FiniteRisk(lengths, means.mean(0), means.std(0) / SCRAMBLES**0.5, method)


@lru_cache(maxsize=8)
def _quasi_normal(dim: int) -> Float[Tensor, "p d"]:
    """Independent scrambles of Sobol points, one after the other, as standard normal vectors."""
    return torch.cat(list(normal_sets(dim, POINTS, SCRAMBLES)))


def sampled_losses(
    task: InContextTask, weights: Weights, lengths: tuple[int, ...], count: int, generator: torch.Generator
) -> Float[Tensor, "count lengths"]:
    """The loss on each prompt, cut to each length."""
    at_once = max(1, TOKENS_AT_ONCE // lengths[-1])
    losses = []
    for start in range(0, count, at_once):
        batch = task.draw(min(at_once, count - start), lengths[-1], generator)
        scores = (batch.tokens @ (batch.query @ weights.U.T)[..., None])[..., 0]
        values = batch.tokens @ weights.V.T
        outputs = [(scores[:, None, :size].softmax(-1) @ values[:, :size])[:, 0] for size in lengths]
        losses.append(torch.stack([task.risk(task.read(output), batch.target) for output in outputs], -1))
    return torch.cat(losses)
