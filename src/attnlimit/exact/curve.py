"""The error averaged over random queries: one number for each n, without sampling noise where the law allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.exact.error import as_sizes
from attnlimit.exact.prepare import prepare
from attnlimit.inputs import as_counts
from attnlimit.measures import Gaussian, Measure, Sphere
from attnlimit.numerics.chi2 import weighted_chi2
from attnlimit.numerics.quasi import normal_sets
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.rates.horizon import horizon

SCRAMBLES, POINTS = 8, 1024
QUERIES, QUERY_SEED = 512, 2512_10656  # a seed that nobody draws a head with
QUASI = f"{SCRAMBLES} × {POINTS:,} quasi-random queries"
PANEL_NODES = 10
MOST_HORIZON = 40


class Averages(NamedTuple):
    """Both averages over queries x ~ law of the error of n-token attention."""

    rms: ErrorCurve
    """(E_x E‖Γ_n − Γ‖²)^{1/2}"""
    mean_rms: ErrorCurve
    """E_x (E‖Γ_n − Γ‖²)^{1/2}"""


@torch.no_grad()  # tables know no derivatives
def curve(
    head: Head, law: Measure, n: int | Sequence[int], statistic: Literal["rms", "mean_rms"] = "rms"
) -> ErrorCurve:
    """(E_x E‖Γ_n(x) − Γ(x)‖²)^{1/2} for fresh queries x ~ law; "mean_rms": E_x (E‖Γ_n(x) − Γ(x)‖²)^{1/2}.

    The error at a query depends on it through the spread s of its scores (s² = aᵀΣa for a Gaussian, s = R‖a‖ for a
    sphere) and through ‖V â‖. For a centred Gaussian s² is a weighted chi-square, and the average of the square is a
    one-dimensional integral of exact errors; so is that of the root when ‖V â‖ is the same for all queries. Otherwise
    8 × 1,024 quasi-random queries are averaged (512 random ones for other laws), with a standard error.

    >>> from attnlimit import Gaussian, Head, curve
    >>> curve(Head([[0.5]]), Gaussian(dim=1), n=[100]).error
    tensor([0.1339], dtype=torch.float64)
    """
    sizes = sorted(set(as_counts(n)))
    both = query_average(head, law, max(sizes))(sizes)
    found: ErrorCurve = getattr(both, statistic)
    return found


def query_average(head: Head, law: Measure, n_max: int) -> Callable[[list[int]], Averages]:
    """The curve as a function of the numbers of tokens, up to n_max: all that they share is computed once."""
    if head.heads:
        raise InputError(f"curve takes one head at a time, got {head!r}: use head.each().")
    head.check_fits(law)
    if head.query_dim != law.dim:
        raise InputError(f"Queries of law {law!r} do not fit {head.query_dim}-dimensional queries.")
    as_sizes(n_max)
    if not (H := horizon(head, law)) <= MOST_HORIZON:
        raise InputError(
            f"The horizon is {H:.3g}, and averages over queries are computed up to {MOST_HORIZON}: above it a few keys take all "
            "for most queries. Use a smaller A, or hardmax_error for the limit."
        )
    if head.factors.query_bias is None:
        if law.quadratic and not bool(law.mean.any()):
            return _gaussian(head, law, n_max)
        if law.shell is not None:
            return _sphere(head, law, n_max)
    return _sampled(head, law, n_max)


@dataclass(frozen=True, eq=False)
class _Table:
    """Mean square error along a unit direction of the scores and across it, at each spread s and each n."""

    spread: Float[Tensor, " s"]
    along: Float[Tensor, "s n"]
    across: Float[Tensor, "s n"]

    @classmethod
    def of(cls, law: Gaussian | Sphere, spread: Tensor, n_max: int) -> Callable[[list[int]], _Table]:
        """`law` has scores of spread ‖a‖."""
        first, last = torch.eye(law.dim, dtype=torch.float64)[[0, -1]][:, None, :]
        eye, x = torch.eye(law.dim, dtype=torch.float64), spread[:, None] * first
        along = prepare(Head(eye, first), law, x, n_max).moments
        across = prepare(Head(eye, last), law, x, n_max).moments if law.dim > 1 else None

        def at(sizes: list[int]) -> _Table:
            n = torch.tensor([sizes], dtype=torch.float64)
            here = along(n)[0]
            return cls(spread, here, torch.zeros_like(here) if across is None else across(n)[0])

        return at

    def square(self, total: Tensor, share: Tensor) -> Tensor:
        """share along the scores' direction, total − share across it."""
        return self.across * (total - share)[:, None] + self.along * share[:, None]

    def at(self, spread: Tensor) -> _Table:
        """By cubic splines of the logarithms."""
        from scipy.interpolate import CubicSpline  # slow to import

        place = spread.clamp(self.spread[0], self.spread[-1]).numpy()
        logs = (t.clamp_min(1e-300).log().numpy() for t in (self.along, self.across))
        along, across = (
            torch.as_tensor(np.exp(CubicSpline(self.spread.numpy(), log)(place))) for log in logs
        )
        return _Table(spread, along, across)


def _gaussian(head: Head, law: Measure, n_max: int) -> Callable[[list[int]], Averages]:
    """x = Σ^{1/2}ξ: s² = ξᵀBξ and the part of the error along VΣa/s has ‖VΣa‖² = ξᵀMξ, both in B's eigenbasis."""
    root = law.proxy_root(torch.eye(law.dim).to(head.factors.right)).double()
    scores = root @ head.A.double() @ root  # Σ^{1/2} A Σ^{1/2}
    values = head.V.double() @ root
    b, basis = torch.linalg.eigh(scores.T @ scores)
    loud = b > (1e-14 * b.max()).clamp_min(1e-100)  # b² must not underflow
    if not bool(loud.any()):
        return lambda sizes: _without_scores(values, sizes)
    b, outputs, total = b[loud], values @ scores @ basis[:, loud], values.square().sum()
    m = outputs.square().sum(0)
    s, weight = _panels(b)
    chi2 = weighted_chi2(s.square(), b, m)
    mass = weight * 2 * s * chi2.log_pdf.exp()
    table = _Table.of(Gaussian(cov=1.0, dim=min(law.dim, 2)), s, n_max)
    scale = float(m.sum().sqrt())
    aligned = torch.allclose(m / b, (m / b)[0].expand_as(b), rtol=1e-9, atol=0)

    def spread_and_share(xi: Tensor) -> tuple[Tensor, Tensor]:
        s2 = xi.square() @ b
        return s2.sqrt(), (xi @ outputs.T).square().sum(-1) / s2

    queries = None if aligned else _quasi_random(len(b), spread_and_share)

    def at(sizes: list[int]) -> Averages:
        here = table(sizes)
        square = here.square(total, chi2.conditional / s.square())
        method = "exact (Laplace quadrature, weighted chi-square average over queries)"
        rms = ErrorCurve(tuple(sizes), (mass @ square).sqrt(), method=method, scale=scale)
        if queries is None:
            return Averages(rms, replace(rms, error=mass @ square.sqrt(), statistic="mean_rms"))
        roots, error = _over(queries, here, total)[2:]
        method = "exact at each query (Laplace quadrature), averaged over " + QUASI
        return Averages(rms, ErrorCurve(tuple(sizes), roots, error, "mean_rms", method, scale=scale))

    return at


def _without_scores(values: Tensor, sizes: list[int]) -> Averages:
    flat = (values.square().sum() / torch.tensor(sizes, dtype=torch.float64)).sqrt()
    return _averages(sizes, (flat, flat), (None, None), 0.0, "exact (all scores are zero: plain averages)")


def _averages(
    sizes: list[int],
    averages: tuple[Tensor, Tensor],
    standard_errors: tuple[Tensor | None, Tensor | None],
    scale: float,
    method: str,
) -> Averages:
    """The mean of squares (as its root) and the mean of roots."""
    return Averages(
        *(
            ErrorCurve(tuple(sizes), value, error, statistic, method, scale=scale)
            for value, error, statistic in zip(averages, standard_errors, Averages._fields, strict=True)
        )
    )


def _panels(b: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss–Legendre nodes in s that hold all but e^{−40} of the law of s² = Σ b_i g_i² below and e^{−60} above."""
    total, width = (
        float(b.sum()),
        float((b.square().sum() / b.sum()).sqrt()),
    )  # width: about twice s's deviation
    low = max(0.0, total**0.5 - 6.0 * width) if len(b) > 4 else 0.0
    high = (total + 130.0 * float(b.max()) + 12.0 * float(b.square().sum().sqrt())) ** 0.5
    edges = [low]
    while edges[-1] < high:
        edges.append(edges[-1] + min(width, max(1.0, edges[-1] / 4)))
    nodes, weights = (torch.as_tensor(t) for t in np.polynomial.legendre.leggauss(PANEL_NODES))
    start, size = (
        torch.tensor(edges[:-1], dtype=torch.float64)[:, None],
        torch.tensor(edges, dtype=torch.float64).diff()[:, None],
    )
    return (start + size * (nodes + 1) / 2).flatten(), (size * weights / 2).flatten()


def _sphere(head: Head, law: Measure, n_max: int) -> Callable[[list[int]], Averages]:
    """s = R‖Ax‖ and ‖V â‖², with quasi-random x: no closed density, but a table of exact errors at the s that they have."""
    A, total = head.A.double(), head.V.double().square().sum()

    def spread_and_share(xi: Tensor) -> tuple[Tensor, Tensor]:
        a = law.radius * torch.nn.functional.normalize(xi, dim=-1) @ A.T
        unit = torch.nn.functional.normalize(a, dim=-1).to(head.factors.right)
        return law.radius * a.norm(dim=-1), head.read_linear(unit).double().square().sum(-1)

    queries = _quasi_random(law.dim, spread_and_share)
    low, high = (float(s) for s in queries[0].aminmax())
    high = max(high, low + 1e-6)
    spread = torch.linspace(low, high, max(24, int(6 * (high - low))), dtype=torch.float64)
    table = _Table.of(Sphere(law.dim), spread, n_max)
    scale = float(head(law).pushforward(law).covariance.trace().sqrt())

    def at(sizes: list[int]) -> Averages:
        square, square_error, roots, root_error = _over(queries, table(sizes), total)
        rms, R = square.sqrt(), law.radius
        method = "exact at each query (Laplace quadrature), averaged over " + QUASI
        return _averages(
            sizes, (R * rms, R * roots), (R * square_error / (2 * rms), R * root_error), scale, method
        )

    return at


def _quasi_random(
    dim: int, spread_and_share: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Of each query its spread, and the share of values along its scores: a row for each scramble."""
    spreads, shares = zip(*map(spread_and_share, normal_sets(dim, POINTS, SCRAMBLES)), strict=True)
    return torch.stack(spreads), torch.stack(shares)


def _over(
    queries: tuple[Tensor, Tensor], table: _Table, total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E_x of the square and of its root, each with a standard error from independent scrambles."""
    each = [table.at(s).square(total, share) for s, share in zip(*queries, strict=True)]
    square, root = (
        torch.stack([one.mean(0) for one in many]) for many in (each, [one.sqrt() for one in each])
    )
    count = SCRAMBLES**0.5
    return square.mean(0), square.std(0) / count, root.mean(0), root.std(0) / count


def _sampled(head: Head, law: Measure, n_max: int) -> Callable[[list[int]], Averages]:
    """Exact at each of a fixed set of random queries; only the average over queries is sampled."""
    x = law.sample(QUERIES, generator=QUERY_SEED).tokens
    prepared = prepare(head, law, x, n_max)
    scale = float(head(law)(x).double().square().sum(-1).mean().sqrt())

    def at(sizes: list[int]) -> Averages:
        square = prepared.moments(torch.tensor([sizes], dtype=torch.float64, device=x.device))[0]
        root, rms = square.sqrt(), square.mean(0).sqrt()
        errors = (square.std(0) / (2 * rms) / QUERIES**0.5, root.std(0) / QUERIES**0.5)
        method = f"{prepared.method}, averaged over {QUERIES} random queries"
        return _averages(sizes, (rms, root.mean(0)), errors, scale, method)

    return at
