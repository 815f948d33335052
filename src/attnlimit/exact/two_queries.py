"""Errors of two queries that read the same n keys, and so of the mean of many outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError, LimitDoesNotExist, NotKnown
from attnlimit.exact.error import as_sizes
from attnlimit.inputs import Array
from attnlimit.measures import Measure
from attnlimit.numerics.quasi import normal_sets
from attnlimit.numerics.threads import side_by_side
from attnlimit.numerics.two_queries import PairAtoms, gaussian_pair, pair_moments
from attnlimit.rates.error_curve import ErrorCurve

SCRAMBLES, POINTS = 8, 4096
COARSE = 0.8
"""Resolution of tables, good to 2e-4."""
DEGREES, ALLOWED = (6, 8, 10, 12), 1e-3
"""Of the polynomials of a table, raised until what they say at some pairs is right to this share of the largest."""
CHECKED = 24
MOST_QUERIES = 64
"""Of which all pairs are integrated: some seconds."""


@dataclass(frozen=True, eq=False, repr=False)
class TwoQueries:
    """E (Γ_n(x) − Γ(x))(Γ_n(x′) − Γ(x′))ᵀ for two queries and the same n keys."""

    n: tuple[int, ...]
    covariance: Float[Tensor, "n dv dv"]
    method: str

    @property
    def product(self) -> Float[Tensor, " n"]:
        """E (Γ_n(x) − Γ(x))·(Γ_n(x′) − Γ(x′))."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).sum(-1)

    def to_dict(self) -> dict[str, Any]:
        return {"n": list(self.n), "covariance": self.covariance.tolist(), "method": self.method}

    def __repr__(self) -> str:
        product = f"{float(self.product[0]):.3g} … {float(self.product[-1]):.3g}"
        return f"TwoQueries(n = {self.n[0]} … {self.n[-1]}, product {product}; {self.method})"


def two_query_covariance(
    head: Head, measure: Measure, n: int | Sequence[int], x: Array, other: Array
) -> TwoQueries:
    """E (Γ_n − Γ)(Γ′_n − Γ′)ᵀ = ∫∫ {n E[ww′uu′ᵀe^{−tw−t′w′}]φ^{n−1} + n(n−1) E[w u e^{…}]E[w′u′e^{…}]ᵀφ^{n−2}} dt dt′ at
    queries x and x′ (`other`), φ = E e^{−tw−t′w′}: for Gaussian tokens and for populations, independent keys.

    >>> from attnlimit import Gaussian, Head
    >>> two_query_covariance(Head([[1.0]]), Gaussian(dim=1), [10, 1000], [0.5], [1.0]).product
    tensor([0.1953, 0.0025], dtype=torch.float64)
    """
    sizes = as_sizes(n)
    a, b = _score_vectors(head, measure, [x, other])
    covariance = _covariance(head, measure, sizes, a, b)
    return TwoQueries(tuple(sizes), covariance, "exact (double Laplace quadrature)")


def limit_covariance(head: Head, measure: Measure, x: Array, other: Array) -> Float[Tensor, "dv dv"]:
    """n E (Γ_n − Γ)(Γ′_n − Γ′)ᵀ → e^{Λ(a+a′)−Λ(a)−Λ(a′)} V[Cov_{a+a′} + δδ′ᵀ]Vᵀ, δ = ∇Λ(a+a′) − ∇Λ(a), δ′ = ∇Λ(a+a′) − ∇Λ(a′):
    the covariance of the Gaussian process that √n(Γ_n − Γ) tends to.

    >>> from attnlimit import Gaussian, Head
    >>> limit_covariance(Head([[1.0]]), Gaussian(dim=1), [0.5], [1.0])  # e^{½}(1 + ½)
    tensor([[2.4731]], dtype=torch.float64)
    """
    a, b = _score_vectors(head, measure, [x, other])
    mean, mean2 = measure.tilted_mean(a), measure.tilted_mean(b)
    if not bool(measure.in_domain(a + b)):
        raise LimitDoesNotExist(
            f"No limit covariance: Λ(a + a′) is infinite for {measure!r} (finite on {measure.domain}), so the errors at these "
            "two queries have no finite covariance. Use smaller scores, head.scaled(kappa)."
        )
    both = measure.tilted_mean(a + b)
    scale = (measure.cgf(a + b) - measure.cgf(a) - measure.cgf(b)).exp()
    spread = measure.tilted_value_cov(a + b) + torch.outer(both - mean, both - mean2)
    half = head.read_linear(spread.contiguous())
    return scale * head.read_linear(half.mT.contiguous()).mT


def mean_output_error(
    head: Head, measure: Measure, n: int | Sequence[int], queries: Array | None = None
) -> ErrorCurve:
    """(E‖M_n − M‖²)^{1/2} for the mean output M_n = E_x Γ_n(x) of fresh queries x ~ law, or of given queries, all of which read the
    same n independent tokens: E‖M_n − M‖² = E_{x,x′} E (Γ_n(x) − Γ(x))·(Γ_n(x′) − Γ(x′)), over independent queries x and x′.

    For given queries all pairs are summed. For Gaussian tokens and fresh queries, the product depends on a pair through the spreads
    of both scores and their correlation: a table of exact values is averaged over 8 × 8,192 quasi-random pairs, with a standard error.

    >>> from attnlimit import Gaussian, Head
    >>> mean_output_error(Head([[0.5]]), Gaussian(dim=1), [100]).error
    tensor([0.1040], dtype=torch.float64)
    """
    if head.heads:
        raise InputError(f"mean_output_error takes one head at a time, got {head!r}: use head.each().")
    sizes = sorted(set(as_sizes(n)))
    head.check_fits(measure)
    if queries is None:
        return _fresh(head, measure, sizes)
    x = head.rows(queries)
    a, times = head.score_vector(x).unique(dim=0, return_counts=True)
    if len(a) > MOST_QUERIES:
        raise InputError(
            f"mean_output_error takes at most {MOST_QUERIES} different queries, got {len(a)}: all pairs are integrated. Leave queries out "
            "(fresh ones), or use measure_convergence(…, statistic='mean') (Monte Carlo)."
        )
    square, share = torch.zeros(len(sizes), dtype=torch.float64), (times / times.sum()).tolist()
    for i in range(len(a)):
        for j in range(i + 1):
            trace = _covariance(head, measure, sizes, a[i], a[j]).diagonal(dim1=-2, dim2=-1).sum(-1)
            square += trace * (1 if i == j else 2) * share[i] * share[j]
    scale = float(head(measure)(x).double().mean(0).norm())
    method = f"exact (double Laplace quadrature), mean output of {len(x)} given queries"
    return ErrorCurve(tuple(sizes), square.clamp_min(0).sqrt(), method=method, scale=scale)


def _score_vectors(head: Head, measure: Measure, queries: Sequence[Array]) -> list[Float[Tensor, " d"]]:
    if head.heads:
        raise InputError(f"Two queries of one head at a time, got {head!r}: use head.each().")
    head.check_fits(measure)
    x = [head.checked(query) for query in queries]
    if any(one.numel() != head.query_dim for one in x):
        raise InputError(f"x and other are one query each, of {head.query_dim} numbers.")
    return [head.score_vector(one.reshape(-1)) for one in x]


def _covariance(head: Head, measure: Measure, sizes: list[int], a: Tensor, b: Tensor) -> Tensor:
    if measure.population is not None:
        tokens = measure.population
        values = head.read_linear(tokens.values).double()
        mean, mean2 = (head.read_linear(tokens.tilted_mean(one)).double() for one in (a, b))
        scores, others = ((tokens.tokens @ one).double() for one in (a, b))
        there = tokens.probabilities > 0
        atoms = PairAtoms(
            scores[there] - scores.max(),
            (others[there] - others.max())[:, None],
            tokens.probabilities[there].double()[:, None],
            (values - mean)[there][:, None],
            (values - mean2)[there][:, None],
        )
        return pair_moments(atoms, sizes)[0]
    root, total = gaussian_values(head, measure)
    s, s2, correlation, frame = plane_frame(*(measure.proxy_root(one[None])[0].double() for one in (a, b)))
    inside, alone = pair_moments(gaussian_pair(s, s2, correlation, max(sizes)), sizes)
    plane = root @ frame
    return plane @ inside @ plane.T + alone[:, None, None] * (total - plane @ plane.T)


def gaussian_values(head: Head, law: Measure) -> tuple[Float[Tensor, "dv d"], Float[Tensor, "dv dv"]]:
    """VΣ^{1/2} and VΣVᵀ."""
    if not law.quadratic:
        raise NotKnown(
            f"The errors of two queries are known exactly for Gaussian tokens and for populations, not for {law!r}: use a large "
            "sample as a population, law.sample(n, generator=…), or measure_convergence (Monte Carlo)."
        )
    root = law.proxy_root(head.V).double()
    return root, root @ root.T


def centred_gaussian(
    head: Head, law: Measure, what: str, instead: str
) -> tuple[Float[Tensor, "dv d"], Float[Tensor, "dv dv"]]:
    """VΣ^{1/2} and VΣVᵀ where fresh queries of the law have centred scores."""
    if law.population is not None:
        raise InputError(f"A population has no law to draw queries from: {instead}")
    if head.query_dim != law.dim:
        raise InputError(f"Queries of law {law!r} do not fit {head.query_dim}-dimensional queries.")
    if not law.quadratic or bool((head.score_vector(law.mean) != 0).any()):
        raise NotKnown(
            f"The {what} of fresh queries is known exactly where scores are centred: a Gaussian law of mean 0 and no bias of "
            f"queries, not {law!r}: {instead}"
        )
    return gaussian_values(head, law)


def plane_frame(a: Tensor, b: Tensor) -> tuple[float, float, float, Float[Tensor, "d 2"]]:
    """‖a‖, ‖b‖, the cosine between them, and an orthonormal frame of their plane that starts along a (columns of zeros where
    there is no such direction)."""
    s, s2 = float(a.norm()), float(b.norm())
    first = a / s if s > 0 else b / max(s2, 1e-300)
    second = b - first * (first @ b)
    second = second - first * (first @ second)
    length = float(second.norm())
    second = second / length if length > 1e-9 * s2 else torch.zeros_like(second)
    cosine = max(-1.0, min(1.0, float(first @ b) / s2)) if s2 > 0 else 0.0
    return s, s2, cosine, torch.stack([first, second], 1)


def _fresh(head: Head, law: Measure, sizes: list[int]) -> ErrorCurve:
    instead = "give queries=, or use measure_convergence (Monte Carlo) with statistic='mean'."
    root, total = centred_gaussian(head, law, "mean output", instead)
    sets = [_pairs(head, law, white) for white in normal_sets(2 * law.dim, POINTS, SCRAMBLES)]
    table = _Table.of(torch.stack([torch.stack(some[:3]) for some in sets], 1).flatten(1), sizes)
    means = []
    for s, s2, cosine, first, second in sets:
        along, across = first @ root.T, second @ root.T
        alone, own, mixed, other = table.at(s, s2, cosine)
        trace = alone * total.trace() + own * along.square().sum(1) + other * across.square().sum(1)
        means.append((trace + mixed * cosine * (along * across).sum(1)).mean(1))
    method = (
        f"exact at each pair of queries (double Laplace quadrature, table good to {table.error:.0e}), averaged over "
        f"{SCRAMBLES} × {POINTS:,} quasi-random pairs and their mirror images"
    )
    return ErrorCurve.of_squares(sizes, torch.stack(means), method)


def _pairs(head: Head, law: Measure, white: Float[Tensor, "k dd"]) -> tuple[Tensor, ...]:
    """‖α‖, ‖α′‖, their cosine, and the directions α/‖α‖ and α′/‖α′‖ of α = Σ^{1/2}Ax, for pairs of queries."""
    draws = (law.proxy_root(part.to(law.mean)) for part in white.chunk(2, 1))
    a, b = (law.proxy_root(head.score_vector(head.checked(x))).double() for x in draws)
    s, s2 = a.norm(dim=1), b.norm(dim=1)
    a, b = a / s.clamp_min(1e-300)[:, None], b / s2.clamp_min(1e-300)[:, None]
    return s, s2, (a * b).sum(1).clamp(-1, 1), a, b


@dataclass(frozen=True, eq=False)
class _Table:
    """For standard normal keys and directions e, e′ of the scores of cosine ρ, E (Γ_n − Γ)(Γ′_n − Γ′)ᵀ is αI and parts along eeᵀ,
    ee′ᵀ + e′eᵀ and e′e′ᵀ. Means over e′ and −e′ are even in ρ (the middle part: ρ times an even one): log α, and the
    parts over α, are polynomials in the spreads s, s′ and in ρ² here."""

    low: float
    high: float
    turn: float
    """Largest ρ²."""
    parts: Float[Tensor, "4 n i i r"]
    """Chebyshev coefficients."""
    error: float

    @classmethod
    def of(cls, where: Float[Tensor, "3 k"], sizes: list[int]) -> _Table:
        """Over the range of the pairs (s, s′, ρ)."""
        low = float(where[:2].min())
        high, turn = max(float(where[:2].max()), low + 1e-6), float(where[2].square().max())
        some = where[:, :: max(1, where.shape[1] // CHECKED)][:, :CHECKED]
        truth = torch.stack([_even(s, s2, turned, sizes, COARSE) for s, s2, turned in some.T.tolist()], -1)
        for degree in DEGREES:
            table = cls(low, high, turn, _coefficients(low, high, turn, degree, sizes), 0.0)
            traces = [
                2 * parts[0] + parts[1] + parts[2] * some[2].square() + parts[3]
                for parts in (table.at(*some), truth)
            ]
            gap = (traces[0] - traces[1]).abs().mean(1) / traces[1].mean(1)
            table = cls(low, high, turn, table.parts, float(gap.max()))
            if table.error < ALLOWED:
                break
        return table

    def at(self, s: Tensor, s2: Tensor, cosine: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Each (n, k)."""
        sides = [_chebyshev(one, self.low, self.high, self.parts.shape[2]) for one in (s, s2)]
        turn = _chebyshev(cosine.square(), 0.0, self.turn, self.parts.shape[4])
        found = torch.einsum("cnijr,ki->cnkjr", self.parts, sides[0])
        alone, own, mixed, other = torch.einsum("cnkjr,kj,kr->cnk", found, sides[1], turn)
        return alone, own, mixed, other


def _coefficients(low: float, high: float, turn: float, degree: int, sizes: list[int]) -> Tensor:
    count = degree + 1
    nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    spreads, cosines = low + (nodes + 1) / 2 * (high - low), np.sqrt(turn * (nodes + 1) / 2)
    values = torch.zeros(4, len(sizes), count, count, count, dtype=torch.float64)
    places = [(i, j, r) for i, j, r in product(range(count), repeat=3) if i <= j]
    found = side_by_side(
        lambda at: _even(spreads[at[0]], spreads[at[1]], cosines[at[2]], sizes, COARSE), places
    )
    for (i, j, r), here in zip(places, found, strict=True):
        values[:, :, i, j, r] = here
        values[:, :, j, i, r] = here[[0, 3, 2, 1]]  # exchanged queries
    inverse = torch.as_tensor(np.linalg.inv(np.polynomial.chebyshev.chebvander(nodes, degree)))
    return torch.einsum("ai,bj,cr,xnijr->xnabc", inverse, inverse, inverse, values)


def _chebyshev(x: Tensor, low: float, high: float, count: int) -> Tensor:
    place = ((2 * x - low - high) / (high - low)).numpy()
    return torch.as_tensor(np.polynomial.chebyshev.chebvander(place, count - 1))


def _even(s: float, s2: float, cosine: float, sizes: list[int], resolution: float) -> Float[Tensor, "4 n"]:
    """Means over ρ and −ρ; of the part along ee′ᵀ + e′eᵀ, which changes sign with e′, over ρ."""
    cosine = max(abs(cosine), 1e-3)  # nothing changes below but rounding
    here, there = (_parts(s, s2, sign * cosine, sizes, resolution) for sign in (1, -1))
    found = (here + there) / 2
    found[2] = (here[2] - there[2]) / (2 * cosine)
    return found


def _parts(s: float, s2: float, cosine: float, sizes: list[int], resolution: float) -> Float[Tensor, "4 n"]:
    """α, and the parts along eeᵀ, ee′ᵀ + e′eᵀ and e′e′ᵀ: with e′ = (ρ, r) in the frame of e, M = αI + δeeᵀ + βee′ᵀ + γe′eᵀ + εe′e′ᵀ."""
    cosine = max(-1.0, min(1.0, cosine))
    across = math.sqrt(1 - cosine**2)
    inside, alone = pair_moments(gaussian_pair(s, s2, cosine, max(sizes), resolution), sizes, resolution)
    if across < 1e-4:  # one direction: what is along it is all there is
        own = inside[:, 0, 0] - alone
        return torch.stack([alone, own, torch.zeros_like(own), torch.zeros_like(own)])
    other = (inside[:, 1, 1] - alone) / across**2
    mixed = (inside[:, 0, 1] + inside[:, 1, 0]) / across - 2 * cosine * other
    own = inside[:, 0, 0] - alone - cosine * mixed - cosine**2 * other
    return torch.stack([alone, own, mixed, other])
