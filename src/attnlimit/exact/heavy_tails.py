"""Attention over keys with heavy tails: stable errors past the central limit theorem, Poisson–Dirichlet weights past the limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs.sampling import PLAIN
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError, NotKnown
from attnlimit.exact.error import as_sizes, exact_error
from attnlimit.exact.error_law import law_at
from attnlimit.files.records import Recorded, finite
from attnlimit.inputs import Array
from attnlimit.measures import Measure
from attnlimit.measures.base import Tail
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.heavy_tails import largest_of_poisson_dirichlet, mean_largest, stable_typical
from attnlimit.numerics.laplace import transforms

SHARE = 0.9
"""Of the interval in which the error lies."""

Progress: TypeAlias = Callable[[int, int], object]
Curve = Float[Tensor, " n"]
Curves: TypeAlias = tuple[
    Curve | None, Curve | None, Curve | None, Curve | None, Float[Tensor, "2 n"] | None, Curve | None
]
"""Mean output, what it tends to, rms, typical error, its interval, and the stable law's."""


@dataclass(frozen=True, eq=False, repr=False)
class HeavyTails(Recorded, Drawn):
    """What n keys do at a query where the weights w = e^{score} have P(w > t) ~ c t^{−α}. Outputs and errors are those along
    `direction`, in which heavy keys lie; weights are p_i = w_i/Σw. A curve is None where it is not known, or there is no such thing."""

    also = ("limit_exists", "exponent", "sum_squares_limit", "largest_limit")
    unknown: ClassVar[str] = "stable is nan where n is too small for it"

    n: tuple[int, ...]
    index: float
    """α."""
    direction: Float[Tensor, " dv"]
    sum_squares: Curve | None
    """E Σp²: one over the number of keys that count."""
    largest: Curve | None
    """E max p."""
    output: Curve | None
    """E eᵀΓ_n."""
    output_far: Curve | None
    """What it tends to: eᵀΓ, or where there is no limit what it grows like."""
    rms: Curve | None
    """(E (eᵀ(Γ_n − Γ))²)^½, which rare draws make: of order n^{−(α−1)/2} for 1 < α < 2."""
    typical: Curve | None
    """Median of |eᵀ(Γ_n − Γ)|."""
    interval: Float[Tensor, "2 n"] | None
    """Where eᵀ(Γ_n − Γ) is nine times of ten."""
    stable: Curve | None
    """What `typical` tends to, for 1 < α < 2."""
    method: str

    @property
    def limit_exists(self) -> bool:
        return self.index > 1

    @property
    def exponent(self) -> float:
        """e where the typical error is n^{−e} up to logarithms: ½ for α ≥ 2, 1 − 1/α, and 0 where there is no limit."""
        return min(0.5, max(0.0, 1 - 1 / self.index)) if self.index > 0 else 0.0

    @property
    def sum_squares_limit(self) -> float:
        """E Σp² as n → ∞: 1 − α for Poisson–Dirichlet weights, 0 from α = 1 on."""
        return max(0.0, 1 - self.index)

    @property
    def largest_limit(self) -> float:
        """E max p as n → ∞."""
        return largest_of_poisson_dirichlet(self.index)

    @property
    def words(self) -> str:
        """Which law rules, in a sentence."""
        if self.index > 2:
            return f"α = {self.index:.3g} > 2: the central limit theorem holds, error n^−½."
        if self.index > 1:
            return (
                f"1 < α = {self.index:.3g} ≤ 2: there is a limit, but no central limit theorem; the error has a stable law and is of "
                f"order n^−{self.exponent:.3g} up to logarithms."
            )
        if self.index > 0:
            return (
                f"α = {self.index:.3g} ≤ 1: no limit; the weights become Poisson–Dirichlet, E Σp² → {self.sum_squares_limit:.3g}, the "
                f"largest {self.largest_limit:.3g}, and the output grows like log n."
            )
        return "α = 0: no limit; one key takes all the weight."

    def to_dict(self) -> dict[str, Any]:
        """Its fields, and what follows from them, as JSON knows them: what is not known becomes None."""
        return finite(super().to_dict())

    def __repr__(self) -> str:
        return f"HeavyTails({self.words} {self.method})"


def heavy_tails(
    head: Head, law: Measure, x: Array, n: int | Sequence[int], *, progress: Progress | None = None
) -> HeavyTails:
    """n-token attention at a query x where P(e^{aᵀy} > t) ~ c t^{−α}, a = Ax; of Laplace tokens α = 1/(scale·max|a_i|).

        1 < α < 2   eᵀ(Γ_n − Γ) ≈ Z g w₀/(n E w),  w₀ = (cn)^{1/α},  g = eᵀ(V(slope·log w₀ + offset) − Γ),
                    Z stable of index α and mean 0 with P(Z > t) ~ t^{−α} and no tail below; slowly: g grows like log n
        α < 1       p → PD(α, 0), E Σp² → 1 − α,  E eᵀΓ_n ≈ eᵀV(slope (log(cn)/α + ψ(1−α) + (log Γ(1−α) + γ)/α) + offset)

    Where a lies along a coordinate axis, as all do in one dimension, the curves are exact at every n: the weights by
    1/W² = ∫ t e^{−tW} dt, the law of the error as `error_law` has it. That takes a second or some for each n; `progress` is called
    with (done, all) after each.

    >>> from attnlimit import Head, Laplace
    >>> found = heavy_tails(Head([[1.0]]), Laplace(1), [2.0], [10, 1000])
    >>> found.index, found.sum_squares
    (0.5, tensor([0.5487, 0.5004], dtype=torch.float64))
    """
    if head.heads:
        raise InputError(f"heavy_tails takes one head at a time, got {head!r}: use head.each().")
    head.check_fits(law)
    query, sizes = head.checked(x), as_sizes(n)
    if query.numel() != head.query_dim:
        raise InputError(
            f"heavy_tails takes one query of {head.query_dim} numbers, got shape {tuple(query.shape)}."
        )
    a = head.score_vector(query.reshape(-1))
    tail = law.tail(a)
    if tail is None:
        raise NotKnown(
            f"The weights of {law!r} have no heavy tail at this query, or none that is known: use exact_error, clt, or "
            "measure_convergence (Monte Carlo)."
        )
    tail = replace(tail, slope=tail.slope.double(), offset=tail.offset.double())
    along = head.read_linear(tail.slope.to(a)).double()
    size = float(along.norm())
    direction = along / size if size > 0 else torch.zeros_like(along)
    line = _Line(tail, size, float(direction @ head.read_linear(tail.offset.to(a)).double()), sizes)
    weights = (None, None) if tail.nodes is None else line.weights(*tail.nodes)
    found = (
        _no_limit(line)
        if tail.index <= 1
        else _limit(line, head.along(direction.to(a)), law, query.reshape(-1), progress)
    )
    how = "asymptotic" if tail.nodes is None else "exact (Laplace quadrature); limits as n → ∞"
    square, largest = weights
    output, far, rms, typical, interval, stable = found
    return HeavyTails(
        tuple(sizes), tail.index, direction, square, largest, output, far, rms, typical, interval, stable, how
    )


@dataclass(frozen=True, eq=False)
class _Line:
    """Heavy keys along the direction: a key of weight w has the value slope·log w + offset."""

    tail: Tail
    slope: float
    offset: float
    sizes: list[int]

    def weights(self, scores: Tensor, log_mass: Tensor) -> tuple[Curve, Curve]:
        one = torch.ones_like(scores)[None]
        atoms = Atoms(scores[None], log_mass[None], 0 * one[..., None], one, one.new_zeros(1, 1))
        square = transforms(atoms, None, max(self.sizes), late=True).moments(self.many())[0][0]
        largest = [mean_largest(scores, log_mass, n) for n in self.sizes]
        return square, torch.tensor(largest, dtype=torch.float64)

    def many(self) -> Float[Tensor, "1 n"]:
        return torch.tensor([self.sizes], dtype=torch.float64)

    def heaviest(self) -> Curve:
        """log w₀ = log(cn)/α: one of n keys is expected beyond."""
        return (self.many()[0] * self.tail.constant).log() / self.tail.index

    def mean(self, scores: Tensor, log_mass: Tensor) -> Curve:
        """E Σ p v, v = slope·score."""
        value = self.slope * scores[None, :, None]
        atoms = Atoms(
            scores[None], log_mass[None], value, torch.zeros_like(scores)[None], value.new_zeros(1, 1)
        )
        return transforms(atoms, None, max(self.sizes), late=True).moments(self.many())[1][0, :, 0]


def _no_limit(line: _Line) -> Curves:
    """Outputs, and what they grow like; no errors."""
    alpha, nodes = line.tail.index, line.tail.nodes
    far = None
    if 0 < alpha < 1 and math.isfinite(line.tail.constant):
        shift = (
            float(scipy.special.digamma(1 - alpha))
            + (math.lgamma(1 - alpha) - float(scipy.special.digamma(1))) / alpha
        )
        far = line.slope * (line.heaviest() + shift) + line.offset
    return None if nodes is None else line.mean(*nodes), far, None, None, None, None


def _limit(line: _Line, head: Head, law: Measure, x: Tensor, progress: Progress | None) -> Curves:
    """Outputs, the limit, and the errors of the one output of `head`."""
    limit = float(head(law)(x)) - (0.0 if head.factors.value_bias is None else float(head.factors.value_bias))
    tail, n = line.tail, line.many()[0]
    stable = None
    if tail.index < 2 and math.isfinite(tail.constant):
        heaviest = line.heaviest()
        grown = line.slope * heaviest + line.offset - limit
        mean = float(law.cgf(head.score_vector(x)).exp())
        stable = (
            stable_typical(tail.index)
            * torch.exp(heaviest - n.log())
            / mean
            * grown.where(grown > 0, torch.nan)
        )
    flat = torch.full_like(n, limit)
    if tail.nodes is None:
        return None, flat, None, None, None, stable
    rms = exact_error(head, law, line.sizes, x).rms[0].double()
    law_of, output = law_at(head, law, x[None], PLAIN, None), line.mean(*tail.nodes)
    found, different = {}, dict.fromkeys(line.sizes)
    for done, size in enumerate(different, 1):
        one = law_of(size)
        found[size] = (one.median_abs, *one.interval(SHARE))
        if progress is not None:
            progress(done, len(different))
    typical, low, high = torch.tensor([found[n] for n in line.sizes], dtype=torch.float64).T
    return output, flat, rms, typical, torch.stack([low, high]), stable
