"""The largest error over a ball, by gradient ascent from many starts: a lower estimate by construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import AttentionMap, Head
from attnlimit.errors import InputError
from attnlimit.inputs import Count, Positive
from attnlimit.measures import Empirical
from attnlimit.sampling.replicates import draw_keys
from attnlimit.sampling.statistic import Experiment, Row, Setup, Statistic

_AGREE = 1e-3
_SMALLEST_STEP = 1e-7


@dataclass(frozen=True)
class Sup(Statistic):
    """The largest ‖Γ_n(x) − Γ(x)‖ over ‖x‖ ≤ `radius`, by gradient ascent from `restarts` starts, so a lower
    estimate."""

    name = "sup"
    radius: Positive
    restarts: Count = 16

    def experiment(self, setup: Setup) -> Experiment:
        if setup.self_attention:
            raise InputError("A supremum is over all points of a ball, not the tokens: leave out Own().")
        if setup.sampling.kept:
            raise InputError(
                f"A supremum needs keys that all queries share, but {setup.sampling} gives each its own."
            )
        return Suprema(setup, float(self.radius), self.restarts)


@dataclass(frozen=True, eq=False)
class Suprema(Experiment):
    """sup ‖Γ_n(x) − Γ(x)‖ over ‖x‖ ≤ radius for each n, from the same random starts within a replicate."""

    radius: float
    restarts: int

    @property
    def method(self) -> str:
        return (
            f"{self.drawn()}, supremum over ‖x‖ ≤ {self.radius:g} by gradient ascent from {self.restarts} "
            "starts: a lower estimate"
        )

    def row(self, generator: torch.Generator) -> Row:
        setup = self.setup
        starts = random_starts(self.restarts, setup.head, self.radius, generator)
        found = [
            supremum(setup.head(_first(keys.measure, size)), setup.limit, starts, self.radius)
            for keys in draw_keys(setup, generator)
            for size in keys.sizes
        ]
        norms = torch.tensor([one.value for one in found], dtype=torch.float64)
        return Row(norms.square(), norms, torch.tensor([one.agreed for one in found]))


class Supremum(NamedTuple):
    """The best value found, where, and how many starts ended within 0.1 % of it."""

    value: float
    at: Float[Tensor, " d"]
    agreed: int


def supremum(
    finite: AttentionMap,
    limit: AttentionMap,
    starts: Float[Tensor, "starts d"],
    radius: float,
    steps: int = 200,
) -> Supremum:
    """max ‖Γ_n(x) − Γ(x)‖ over ‖x‖ ≤ radius, as far as projected gradient ascent from these starts sees.

    All starts move at once. Each has a step length of its own, which doubles when the error grew and is
    quartered when it did not, in which case the start stays where it was.
    """
    x = _project(starts, radius)
    value, slope = _error(finite, limit, x)
    step = torch.full_like(value, radius / 4)
    for _ in range(steps):
        if bool((step <= _SMALLEST_STEP * radius).all()):
            break
        trial = _project(x + step[:, None] * slope, radius)
        there, new_slope = _error(finite, limit, trial)
        better = there > value
        x = torch.where(better[:, None], trial, x)
        slope = torch.where(better[:, None], new_slope, slope)
        value = torch.where(better, there, value)
        step = torch.where(better, (2 * step).clamp_max(radius), step / 4)
    best = int(value.argmax())
    return Supremum(float(value[best]), x[best], int((value >= (1 - _AGREE) * value[best]).sum()))


def random_starts(
    count: int, head: Head, radius: float, generator: torch.Generator
) -> Float[Tensor, "starts d"]:
    """Every other start on the surface of the ball, where the largest error often is; the rest uniform in it."""
    like, dim = head.factors.right, head.query_dim
    direction = torch.randn(count, dim, generator=generator, dtype=like.dtype, device=like.device)
    height = torch.rand(count, 1, generator=generator, dtype=like.dtype, device=like.device) ** (1 / dim)
    height[::2] = 1.0
    return radius * height * torch.nn.functional.normalize(direction, dim=-1)


def _error(finite: AttentionMap, limit: AttentionMap, x: Tensor) -> tuple[Tensor, Tensor]:
    """‖Γ_n − Γ‖ at each x, and the unit vector along which it grows fastest."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        square = (finite(x) - limit(x)).square().sum(-1)
        (gradient,) = torch.autograd.grad(square.sum(), x)
    return square.detach().sqrt(), torch.nn.functional.normalize(gradient, dim=-1)


def _first(tokens: Empirical, size: int) -> Empirical:
    return tokens if size == len(tokens) else tokens.select(torch.arange(size, device=tokens.device))


def _project(x: Tensor, radius: float) -> Tensor:
    return x * (radius / x.norm(dim=-1, keepdim=True).clamp_min(radius))
