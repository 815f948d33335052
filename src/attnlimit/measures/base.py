"""A token measure: everything the library needs to know about tokens, finite or infinite in number."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypedDict

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.errors import InputError, LimitDoesNotExist, NotKnown
from attnlimit.inputs import Array, as_count, as_generator, as_points

if TYPE_CHECKING:
    from attnlimit.measures.empirical import Empirical

Points = Float[Tensor, "*batch d"]


class Kind(TypedDict, total=False):
    """Where and in which precision a law lives: float64 on the CPU unless told otherwise."""

    dtype: torch.dtype
    device: torch.device | str


class Measure(ABC):
    """A probability measure μ on R^d, known through its cumulant generating function

        Λ(a) = log ∫ e^{aᵀy} dμ(y).

    ∇Λ(a) and ∇²Λ(a) are the mean and covariance of the tilted measure dμ_a ∝ e^{aᵀy} dμ, which is what
    infinitely many tokens of law μ become under softmax attention [bohbot2026token, boursier2026softmax].

    A law of your own needs `dim` and `_cgf`, batched over the leading axes (autograd gives the tilted
    moments), and `_draw` if it is to be sampled:

    >>> class Poisson(Measure):
    ...     def __init__(self, rate: float) -> None:
    ...         super().__init__(dim=1)
    ...         self.rate = rate
    ...     def _cgf(self, a):
    ...         return self.rate * torch.expm1(a[..., 0])
    >>> law = Poisson(rate=3.0)
    >>> law.tilted_mean(torch.zeros(1, dtype=torch.float64))
    tensor([3.], dtype=torch.float64)
    """

    radius: float = math.inf
    """Least R with ‖y‖ ≤ R almost surely."""
    variance_proxy: float | None = None
    """A σ² with Λ(a) − aᵀmean ≤ σ²‖a‖²/2 for all a, or None where there is none."""
    domain: str = "all of R^d"
    """Where Λ is finite, in words; `in_domain` is the test."""
    growth: str = ""
    """For unbounded laws: how the largest of n scores grows, in words."""

    def __init__(
        self, dim: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> None:
        self.dim = as_count(dim, "dim")
        if not dtype.is_floating_point:
            raise InputError(f"dtype must be a floating type, got {dtype}.")
        self._like = torch.empty(0, dtype=dtype, device=device)

    @property
    def dtype(self) -> torch.dtype:
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        return self._like.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim})"

    # --- the tilted family ------------------------------------------------------------------------

    def cgf(self, a: Array) -> Tensor:
        """Λ(a), shape (*batch,) for a of shape (*batch, d)."""
        return self._finite(self._cgf(self._inside(a)))

    def tilted_mean(self, a: Array) -> Tensor:
        """∇Λ(a), the mean of the values under μ_a, shape (*batch, dv)."""
        return self._finite(self._tilted_mean(self._inside(a)))

    def tilted_cov(self, a: Array) -> Tensor:
        """∂ tilted_mean/∂a = Cov_a(value, key), shape (*batch, dv, d); ∇²Λ(a) when values are the keys."""
        return self._finite(self._tilted_cov(self._inside(a)))

    def tilted_value_cov(self, a: Array) -> Tensor:
        """Cov_a(value, value), shape (*batch, dv, dv); the same as `tilted_cov` when values are the keys."""
        return self.tilted_cov(a)

    def in_domain(self, a: Array) -> Bool[Tensor, "*batch"]:
        """Whether Λ(a) is finite."""
        return self._in_domain(as_points(a, self.dim, "a", like=self._like))

    @abstractmethod
    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]: ...

    def _tilted_mean(self, a: Points) -> Points:
        flat = a.reshape(-1, self.dim)
        return torch.func.vmap(torch.func.grad(self._cgf))(flat).reshape(a.shape)

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch d d"]:
        flat = a.reshape(-1, self.dim)
        return torch.func.vmap(torch.func.jacrev(torch.func.grad(self._cgf)))(flat).reshape(
            *a.shape, self.dim
        )

    def _in_domain(self, a: Points) -> Bool[Tensor, "*batch"]:
        return torch.ones(a.shape[:-1], dtype=torch.bool, device=a.device)

    def _inside(self, a: Array) -> Tensor:
        a = as_points(a, self.dim, "a", like=self._like)
        inside = self._in_domain(a)
        if not bool(inside.all()):
            worst = a[~inside][0]
            raise LimitDoesNotExist(
                f"No limit: {self!r} has an infinite cumulant generating function at a = A x = "
                f"{[round(v, 4) for v in worst[:4].tolist()]}{' …' if self.dim > 4 else ''} "
                f"({int((~inside).sum())} of {inside.numel()} queries). It is finite on {self.domain}. "
                f"There, n-token attention does not settle: it follows its largest key, whose score {self.growth or 'grows without end'}. "
                "Use finite tokens, head(law.sample(n, generator=…)), or smaller scores, head.scaled(kappa)."
            )
        return a

    def _finite(self, value: Tensor) -> Tensor:
        if not bool(torch.isfinite(value).all()):
            raise LimitDoesNotExist(
                f"No number: {self!r} gives inf or nan here. Either its cumulant generating function is infinite "
                f"(then n-token attention follows its largest key; tell so in _in_domain), or its formula is 0/0 here "
                f"(mind a = 0, where Λ = 0 and ∇Λ is the mean), or it leaves the range of {self.dtype}: then use smaller "
                "scores, head.scaled(kappa)."
            )
        return value

    # --- plain moments ----------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """∫ v dμ, shape (dv,)."""
        return self.tilted_mean(self._like.new_zeros(self.dim))

    @property
    def key_mean(self) -> Tensor:
        """∫ k dμ, shape (d,): the same as `mean` when values are the keys."""
        return self.mean

    @property
    def covariance(self) -> Tensor:
        """Covariance of the values, shape (dv, dv)."""
        return self.tilted_value_cov(self._like.new_zeros(self.dim))

    def second_moment(self) -> Tensor:
        """∫ v kᵀ dμ, shape (dv, d): what linear attention sees of μ."""
        return self.covariance + torch.outer(self.mean, self.mean)

    # --- the top of the support -------------------------------------------------------------------

    def top(self, a: Array) -> Tensor:
        """The value of the key with the largest score aᵀy over the support (ties averaged), shape (*batch, dv)."""
        return self._top(as_points(a, self.dim, "a", like=self._like))

    def _top(self, a: Points) -> Points:
        if self.radius < math.inf:
            raise NotKnown(
                f"The top of the support of {self!r} has no closed form here; use head.scaled(kappa) for a large kappa."
            )
        raise LimitDoesNotExist(
            f"No hardmax limit: {self!r} is unbounded, and the largest of n scores {self.growth or 'grows without end'}. "
            "Use finite tokens, head.hardmax(law.sample(n, generator=…))."
        )

    # --- tokens -----------------------------------------------------------------------------------

    def sample(self, n: int, *, generator: torch.Generator | int) -> Empirical:
        """n independent tokens, as a measure. `generator` is a torch.Generator or the seed of a fresh one."""
        from attnlimit.measures.empirical import Empirical

        return Empirical(self._draw(as_count(n), as_generator(generator, self.device)))

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        raise NotKnown(f"{self!r} has no sampler: give its class a method _draw(n, generator).")

    def _normal(self, *shape: int, generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=self.dtype, device=self.device)

    def _uniform(self, *shape: int, generator: torch.Generator) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=self.dtype, device=self.device)
