"""From softmax to hardmax: κ schedules, the error of softmax attention against the hardmax limit, the best κ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.exact.hardmax import checked, hardmax_error
from attnlimit.inputs import Array, Count, Finite, Positive, as_float, as_positive
from attnlimit.measures import Measure
from attnlimit.numerics.laplace import transforms
from attnlimit.numerics.order import TooSharp

PATIENCE = 2
"""Steps of √10 in κ without improvement that end the search."""


TIE = 1e-6
"""Relative difference in mean square error below which hardmax is said to be as good."""


@dataclass(frozen=True)
class Schedule:
    """κ(n) = γ (log n)^p n^q: how sharp n keys are attended to. Call it with n."""

    gamma: Positive
    log_power: Finite = 0.0
    power: Finite = 0.0

    def __call__(self, n: Count) -> float:
        if n == 1 and self.log_power:
            raise InputError(f"κ = {self} is 0 at n = 1: start at n = 2.")
        return self.gamma * math.log(n) ** self.log_power * float(n) ** self.power

    def __str__(self) -> str:
        log = {0.0: "", 0.5: "√(log n)", 1.0: "log n"}.get(self.log_power, f"(log n)^{self.log_power:g}")
        parts = [f"{self.gamma:g}", log, f"n^{self.power:.4g}" if self.power else ""]
        return " ".join(part for part in parts if part)

    @classmethod
    def constant(cls, kappa: float | int) -> Schedule:
        """The same κ for all n."""
        return cls(kappa)

    @classmethod
    def log(cls, gamma: float | int = 1.0) -> Schedule:
        """κ = γ log n, what a sampling error of at most e^{cκ}/√n asks for: the error is then of order 1/log n."""
        return cls(gamma, log_power=1.0)

    @classmethod
    def root_log(cls, gamma: float | int = 1.0) -> Schedule:
        """κ = γ √(log n): Gaussian scores stay in one phase, whatever n."""
        return cls(gamma, log_power=0.5)

    @classmethod
    def hardmax(cls, dim: Count, gamma: float | int = 1.0) -> Schedule:
        """κ = γ n^{2/(d−1)}: on a sphere of R^d the best of n keys then differ in score by an amount free of n."""
        if dim < 2:
            raise InputError(f"κ = γ n^(2/(d−1)) needs dimension 2 or more, got {dim}.")
        return cls(gamma, power=2 / (dim - 1))


Kappa: TypeAlias = Array | Schedule


@dataclass(frozen=True, eq=False)
class HardmaxGap:
    """E‖Γ_{κ,n} − V y*‖²: softmax attention at κ with n keys against the hardmax limit."""

    n: tuple[int, ...]
    kappa: tuple[float, ...]
    """One for each n; inf is hardmax."""
    mean_square: Float[Tensor, "queries n"]
    bias_square: Float[Tensor, "queries n"]
    """‖E Γ_{κ,n} − V y*‖²; the rest is variance."""
    method: str

    @property
    def rms(self) -> Float[Tensor, "queries n"]:
        """√E‖Γ_{κ,n} − V y*‖²."""
        return self.mean_square.sqrt()

    def __repr__(self) -> str:
        count = len(self.mean_square)
        return f"HardmaxGap({count} queries, n = {self.n[0]} … {self.n[-1]}, κ = {self.kappa[0]:.4g} … {self.kappa[-1]:.4g})"

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("mean_square", "bias_square")}
        kappa = [None if math.isinf(value) else value for value in self.kappa]
        return {"n": list(self.n), "kappa": kappa, **arrays, "method": self.method}


def hardmax_gap(head: Head, law: Measure, kappa: Kappa, n: int | Sequence[int], queries: Array) -> HardmaxGap:
    """E‖Γ_{κ,n} − V y*‖² = E‖Γ_{κ,n} − Γ_κ‖² + 2⟨E Γ_{κ,n} − Γ_κ, Γ_κ − V y*⟩ + ‖Γ_κ − V y*‖², in one integral.

    The Laplace integral of `exact_error` holds around any point, and is taken here around the hardmax limit V y*, so
    nothing cancels. `kappa` multiplies the head's scores: one number, one for each n, or a Schedule. For laws with
    both a projected form and a hardmax limit, n up to 10^12; κ so large that softmax is nearly hardmax is refused.

    >>> from attnlimit import Head, Sphere
    >>> gap = hardmax_gap(Head(torch.eye(3).double()), Sphere(3), Schedule.log(), [10**6, 10**12], [[1.0, 0.0, 0.0]])
    >>> gap.rms  # close to the bias 1/κ = 1/log n
    tensor([[0.0724, 0.0362]], dtype=torch.float64)
    """
    sizes, x = checked(head, law, n, queries)
    values = _kappas(kappa, sizes)
    square = torch.empty(len(x), len(sizes), dtype=torch.float64)
    bias = torch.empty_like(square)
    for value in dict.fromkeys(values):
        same = [k for k, other in enumerate(values) if other == value]
        square[:, same], bias[:, same] = _gap(head, law, value, [sizes[k] for k in same], x)
    return HardmaxGap(tuple(sizes), tuple(values), square, bias, "exact (Laplace quadrature around V y*)")


def _kappas(kappa: Kappa, sizes: list[int]) -> list[float]:
    if isinstance(kappa, Schedule):
        return [kappa(n) for n in sizes]
    values = as_float(kappa, "kappa").double()
    if values.ndim and values.shape != (len(sizes),):
        raise InputError(
            f"kappa must be one number, or one for each of the {len(sizes)} n, got shape {tuple(values.shape)}."
        )
    return [as_positive(value, "kappa") for value in values.expand(len(sizes)).tolist()]


def _gap(head: Head, law: Measure, kappa: float, sizes: list[int], x: Tensor) -> tuple[Tensor, Tensor]:
    sharp, n = head.scaled(kappa), torch.tensor([sizes], dtype=torch.float64)
    squares, biases = [], []
    different, asked = x.unique(dim=0, return_inverse=True)
    for one in different.split(1):  # queries differ in how far their scores spread, and so in their grids
        atoms = law.near_top(sharp.score_vector(one), sharp.factors.V, min(sizes), max(sizes))
        square, bias = transforms(atoms, None, max(sizes), late=True).moments(n)
        squares.append(square)
        biases.append(bias.square().sum(-1))
    return torch.cat(squares)[asked], torch.cat(biases)[asked]


def best_kappa(head: Head, law: Measure, n: int | Sequence[int], queries: Array) -> HardmaxGap:
    """For each n, the κ that minimises the mean over the queries of E‖Γ_{κ,n} − V y*‖², and that error.

    κ walks up in steps of √10 from where softmax is nearly flat, until two steps no longer help or softmax is
    nearly hardmax; the best step is refined, and kept unless hardmax itself (κ = inf) is better. On a sphere of R^d, d > 3,
    with V = I, bias and variance balance at κ of order n^{2/(d+1)} with an rms error of the same order 1/κ: a power
    of n, better than hardmax's n^{−1/(d−1)} and much better than the worst case 1/log n. Each query and n takes a few
    tenths of a second; one that comes again takes none.

    >>> from attnlimit import Head, Sphere
    >>> best_kappa(Head(torch.eye(5).double()), Sphere(5), [10**3, 10**6], torch.eye(1, 5).double()).rms
    tensor([[0.1270, 0.0121]], dtype=torch.float64)
    """
    sizes, x = checked(head, law, n, queries)
    if min(sizes) < 2:
        raise InputError("One key is attended to alike at every κ: best_kappa starts at n = 2.")
    different = list(dict.fromkeys(sizes))
    hard = hardmax_error(head, law, [1, *different], x)
    start = float(hard.height_gap[:, 0].max())
    if start == 0:
        raise InputError("All scores are equal, so every κ gives the same average: there is no best one.")
    kappas, squares, biases = [], [], []
    for k, size in enumerate(different, 1):

        def error(kappa: float, size: int = size) -> float:
            return float(_gap(head, law, kappa, [size], x)[0].mean())

        kappa = _search(error, 0.1 / start)
        square, bias = _gap(head, law, kappa, [size], x)
        if float(hard.mean_square[:, k].mean()) <= (1 + TIE) * float(square.mean()):
            kappa, square, bias = math.inf, hard.mean_square[:, [k]], hard.bias_square[:, [k]]
        kappas.append(kappa)
        squares.append(square)
        biases.append(bias)
    method = "exact (Laplace quadrature around V y*), κ by bounded search"
    asked = [different.index(size) for size in sizes]
    square, bias = (torch.cat(found, 1)[:, asked] for found in (squares, biases))
    return HardmaxGap(tuple(sizes), tuple(kappas[k] for k in asked), square, bias, method)


def _search(error: Callable[[float], float], start: float) -> float:
    """The κ of least error: a walk from `start` in steps of √10, then a bounded search around the best step."""
    from scipy.optimize import minimize_scalar  # slow to import

    walk = [error(start)]
    while len(walk) - walk.index(min(walk)) <= PATIENCE:
        try:
            walk.append(error(start * 10 ** (len(walk) / 2)))
        except TooSharp:
            break
    best = walk.index(min(walk))
    log_step = math.log(10) / 2
    low, high = (best - 1) * log_step, min(best + 1, len(walk) - 1) * log_step
    found = minimize_scalar(
        lambda u: error(start * math.exp(u)),
        bounds=(low, max(high, low + 1e-3)),
        method="bounded",
        options={"xatol": 2e-3},
    )
    return start * math.exp(float(found.x))
