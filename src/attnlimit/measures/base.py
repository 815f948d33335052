"""A token measure: everything the library needs to know about tokens, finite or infinite in number."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.errors import LimitDoesNotExist, NotKnown
from attnlimit.inputs import Array, Device, Seeded, as_count, as_generator, as_points, widened
from attnlimit.measures.spec import Spec
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.caps import RESOLUTION
from attnlimit.numerics.order import Largest, largest_of_atoms, trimmed

if TYPE_CHECKING:
    from attnlimit.measures.empirical import Empirical

Points = Float[Tensor, "*batch d"]
Matrix = Float[Tensor, "e dv"]
Nodes = tuple[Float[Tensor, " j"], Float[Tensor, " j"]]
"""Places and their log masses."""


def read(V: Matrix | None, y: Float[Tensor, "*batch dv"]) -> Tensor:
    """V y for the rows of y; V None is the identity."""
    return y if V is None else y @ V.mT


class Options(TypedDict, total=False):
    """Where and in which precision a law lives: float64 on the CPU unless told otherwise, and float32 at least."""

    dtype: torch.dtype
    device: torch.device | str


@dataclass(frozen=True, eq=False)
class Tail:
    """P(e^{aᵀy} > t) ~ constant·t^{−index}: the weights of n keys have heavy tails, and a key of large weight w is, in the mean,
    slope·log w + offset."""

    index: float
    constant: float
    """inf where it is not a constant but grows like a power of log t, nan where the tail falls slower than any power."""
    slope: Float[Tensor, " d"]
    offset: Float[Tensor, " d"]
    nodes: Nodes | None = None
    """Scores in order and their log masses, where the keys' mean given the score z is slope·z at every z; None where not."""


class Measure(ABC):
    """A probability measure μ on R^d, known through its cumulant generating function

        Λ(a) = log ∫ e^{aᵀy} dμ(y).

    ∇Λ(a) and ∇²Λ(a) are the mean and covariance of the tilted measure dμ_a ∝ e^{aᵀy} dμ, which is what
    infinitely many tokens of law μ become under softmax attention [bohbot2026token, boursier2026softmax].

    A law of your own needs `dim` and `_cgf`, batched over the leading axes (autograd gives the tilted
    moments), and `_draw` if it is to be sampled. All else that the library asks of a law is below, each with an answer
    for laws that know no better; nothing asks which law it is:

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

    made_by = "Laws are Gaussian(dim=2), Sphere(3) and others; tokens of your own are Empirical(tokens)."
    radius: float = math.inf
    """Least R with ‖y‖ ≤ R almost surely."""
    variance_proxy: float | None = None
    """A σ² with Λ(a) − aᵀmean ≤ σ²‖a‖²/2 for all a, or None where there is none."""
    domain: str = "all of R^d"
    """Where Λ is finite, in words; `in_domain` is the test."""
    growth: str = ""
    """For unbounded laws: how the largest of n scores grows, in words."""
    support_known: bool = True
    """Whether `radius` is the law's own; False where only points of the law are seen."""
    narrows: bool = False
    """Whether ∇²Λ(a) ≼ variance_proxy·I for all a: tilting only narrows the law."""
    quadratic: bool = False
    """Whether Λ is quadratic, as for Gaussians alone: the limit is affine, and two moments give all others."""
    shell: float | None = None
    """ρ where the law is uniform on the sphere of radius ρ, so that means over it are Dirichlet integrals."""
    gain: Callable[[Tensor], Tensor] | None = None
    """g with ∇Λ(a) = g(‖a‖) a, for laws that rotations leave alone."""
    replicas: tuple[Measure, ...] = ()
    """Independent approximations of the law whose spread is the limit's error; none where it is in closed form."""
    population: Empirical | None = None
    """The tokens themselves, where the measure is finitely many tokens; None for a law."""
    spec: ClassVar[Spec] = Spec("")
    """How the law is written in a study's file and on the command line; without a name it is not."""

    def __init__(self, dim: int, *, dtype: torch.dtype = torch.float64, device: Device = "cpu") -> None:
        self.dim = as_count(dim, "dim")
        self._like = widened(torch.empty(0, dtype=dtype, device=device))

    @classmethod
    def from_spec(cls, like: Tensor, **fields: Any) -> Measure:
        """The law that the fields of `spec`, all of them, describe, of like's dtype and device."""
        return cls(**fields, dtype=like.dtype, device=like.device)

    @classmethod
    def sized(cls, dim: int, size: float) -> Measure:
        """The law of a dimension and a size, where these make it (`spec.on_command_line`)."""
        return cls.from_spec(torch.empty(0, dtype=torch.float64), **cls.spec.filled(dim, size))

    @property
    def dtype(self) -> torch.dtype:
        return self._like.dtype

    @property
    def letters(self) -> dict[str, tuple[int, str]]:
        """What the letters in the shapes of its methods stand for."""
        return {"d": (self.dim, "the law")}

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
                f"{self._weights_there(worst)}"
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

    def tail(self, a: Float[Tensor, " d"]) -> Tail | None:
        """The tail of the weights e^{aᵀy}; None where all their moments are finite, or the tail is not known."""
        return None

    def _weights_there(self, a: Float[Tensor, " d"]) -> str:
        tail = self.tail(a.detach())
        if tail is None:
            return ""
        if tail.index == 0:
            return "One key takes all the weight as n grows. "
        return (
            f"Weights have tail index α = {tail.index:.3g}: they tend to Poisson–Dirichlet weights, E Σp² → 1 − α = {1 - tail.index:.3g} "
            "(attnlimit.heavy_tails). "
        )

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

    def score_range(self, a: Points) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The least and largest score aᵀy over the support, each (*batch,); ∓R‖a‖ where the top is not known."""
        try:
            return (self.top(-a) * a).sum(-1), (self.top(a) * a).sum(-1)
        except NotKnown:
            reach = self.radius * a.norm(dim=-1)
            return -reach, reach

    def value_radius(self, V: Matrix | None) -> float:
        """sup ‖V v‖ over the support (V None: the identity): ‖V‖₂ R, or less where more is known."""
        return self.radius if V is None else self.radius * float(torch.linalg.matrix_norm(V, 2))

    # --- the law of the scores --------------------------------------------------------------------

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """Atoms of (aᵀy, V y) for score vectors a, with `limit` V∇Λ(a): what exact finite-n errors come from. Nodes of a density
        are that much `finer`, and for one output (V a row) how it spreads `around` them is known: the law of the error needs both."""
        raise self._no_projection()

    def _no_projection(self) -> NotKnown:
        return NotKnown(
            f"{self!r} has no projected form in these directions, so its finite-n error is not exact here. "
            "Use measure_convergence (Monte Carlo), or a large sample as a population: law.sample(n, generator=…)."
        )

    def coverage(self, a: Float[Tensor, "m d"], log_n: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """P_{μ_a}(log dμ_a/dμ ≤ log n), the share of the attention that lies on keys which n draws of μ are likely to hold;
        log dμ_a/dμ = aᵀy − Λ(a). Nodes of a grid are spread over their cells, atoms farther apart are not."""
        atoms = self.project(a, None)
        scores, order = atoms.scores.sort(-1)
        share = (atoms.log_mass.gather(-1, order) + scores - self.cgf(a)[:, None]).exp()
        gap = torch.nn.functional.pad(scores.diff(dim=-1), (1, 1), value=torch.inf)
        cell = (gap[:, 1:] + gap[:, :-1]) / 2
        cell = torch.where(cell <= RESOLUTION, cell, 0.0).clamp_min(1e-12)
        below = ((log_n + self.cgf(a))[:, None] - scores) / cell + 0.5
        return (share * below.clamp(0, 1)).sum(-1)

    def near_top(self, a: Float[Tensor, "m d"], V: Matrix | None, n_least: int, n_most: int) -> Atoms:
        """Atoms of (aᵀy, V y − V y*) with `limit` zero, so that errors are distances from the hardmax limit; good for
        n from n_least to n_most."""
        atoms, top = self.project(a, V).double(), read(V, self.top(a)).double()
        atoms = atoms._replace(mean=atoms.mean - top[:, None, :], limit=torch.zeros_like(top))
        return trimmed(atoms, n_least, n_most)

    def largest(self, n: Sequence[int], a: Float[Tensor, "m d"], V: Matrix | None) -> Largest:
        """The value V y of the key of largest score aᵀy among n, by the order statistics of the scores."""
        self.top(a)  # an unbounded law says here that there is no limit
        raise NotKnown(
            f"{self!r} has no known order statistics of its scores, so its hardmax error is not exact here. "
            "Use a large sample as a population: law.sample(n, generator=…)."
        )

    def _largest_of_atoms(self, n: Sequence[int], a: Float[Tensor, "m d"], V: Matrix | None) -> Largest:
        """`largest` where the projection is exact, key by key; scores within rounding of their neighbour tie."""
        slack = 8 * torch.finfo(self.dtype).eps * self.radius * a.double().norm(dim=-1)
        return largest_of_atoms(self.project(a, V), read(V, self.top(a)), slack, n)

    def _matrix(self, V: Matrix | None) -> Matrix:
        return torch.eye(self.dim).to(self._like) if V is None else V

    # --- how far it spreads -----------------------------------------------------------------------

    def spread(self, rows: Float[Tensor, "*heads r d"] | None) -> Float[Tensor, "*heads r r"]:
        """M Σ Mᵀ in float64, Σ the covariance of the tokens (the keys), M = `rows` (None: the identity)."""
        cov = self.covariance.double()
        if not bool(torch.isfinite(cov).all()):
            raise LimitDoesNotExist(
                f"No horizon: the covariance of {self!r} is not finite, so scores have no standard deviation. "
                "Use a law with two moments, or tokens, law.sample(n, generator=…)."
            )
        return cov if rows is None else rows @ cov @ rows.mT

    def proxy_root(self, rows: Float[Tensor, "r d"]) -> Float[Tensor, "r d"]:
        """M P^{1/2} with Λ(a) − aᵀmean ≤ ½ aᵀPa: P = σ²I, where any law in a ball of radius R has σ² = R² (Hoeffding)."""
        proxy = self.variance_proxy
        return rows * math.sqrt(self.radius**2 if proxy is None else min(proxy, self.radius**2))

    @property
    def log_chi2_slope(self) -> float:
        """An s with D(a) = Λ(2a) − 2Λ(a) ≤ s‖a‖² for all a.

        D(a) = ∫₀¹ 2 ∫_t^{2t} aᵀ∇²Λ(ua)a du dt, so s = sup ‖∇²Λ‖ will do. That is the variance proxy σ² for laws that
        tilting narrows, and at most R² for any law in a ball of radius R, or the squared distance from the mean
        (Popoviciu). A proxy alone gives s = 2σ²: Λ(2a) − 2aᵀm ≤ 2σ²‖a‖² and Λ(a) ≥ aᵀm. The 2 is needed: for
        y ∈ {−1, 0, 1} with P(y = ±1) = e^{−c} each, D(a)/a² reaches 2σ² as c → ∞.
        """
        proxy = math.inf if self.variance_proxy is None else self.variance_proxy
        return min(proxy if self.narrows else 2 * proxy, self.radius**2)

    @property
    def tails(self) -> tuple[Measure, ...] | None:
        """The Gaussian laws that the far tokens follow, one of which wins as n → ∞: none for a bounded law; None
        where the tails are others, or not known."""
        return () if self.radius < math.inf else None

    # --- how the limit is known -------------------------------------------------------------------

    @property
    def provenance(self) -> str:
        """How the limit is known, in words."""
        return f"{'limit by quasi-Monte Carlo,' if self.replicas else 'closed-form limit for'} {self!r}"

    def image(self, W: Matrix, b: Float[Tensor, " e"]) -> Measure | None:
        """The law of W y + b, where it is a law in closed form."""
        return None

    # --- tokens -----------------------------------------------------------------------------------

    @property
    def keys(self) -> Measure:
        """The law of the keys alone: the same, unless tokens have values of their own."""
        return self

    @property
    def value_dim(self) -> int:
        """Dimension of the values."""
        return self.dim

    def sample(self, n: int, *, generator: Seeded) -> Empirical:
        """n independent tokens, as a measure. `generator` is a torch.Generator or the seed of a fresh one."""
        from attnlimit.measures.empirical import Empirical

        return Empirical(self._draw(as_count(n), as_generator(generator, self.device)))

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        raise NotKnown(f"{self!r} has no sampler: give its class a method _draw(n, generator).")

    def _normal(self, *shape: int, generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=self.dtype, device=self.device)

    def _uniform(self, *shape: int, generator: torch.Generator) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=self.dtype, device=self.device)
