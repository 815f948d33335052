"""No bound is below the truth more often than it says: 13,350 random instances, and for each test a false bound;
`make bounds` tries 10^5.

An instance is a random law, Gaussians and their mixtures among them, head, query, n and δ with its own independent tokens. Truths are Monte Carlo against
the closed-form limit. Bounds that hold with probability 1 − δ are tested by the number of failures, which is
at most binomial (N, δ): false-alarm rate 1e-9. Bounds in mean are tested query by query at 5.5 standard errors:
false-alarm rate about 2e-8 each.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from attnlimit import Ball, Box, Empirical, Gaussian, Head, Measure, Mixture, Rademacher, Sphere, bounds

TIMES = int(os.environ.get("BOUNDS_TIMES", "1"))
"""How many times as many instances as the gate tries."""


@dataclass(frozen=True)
class Setting:
    """A law and a head; many queries are asked of it, each with tokens of its own."""

    law: Measure
    head: Head
    dim: int

    @classmethod
    def draw(cls, g: torch.Generator, bounded: bool = False) -> "Setting":
        dim, out = (int(torch.randint(1, 6, (), generator=g)) for _ in range(2))
        law = random_law(dim, g, bounded)
        value_dim = law.values.shape[1] if isinstance(law, Empirical) else dim
        strength = 2.0 * float(torch.rand((), generator=g)) / dim**0.5
        A = strength * normal(dim, dim, g=g)
        if torch.rand((), generator=g) < 0.3:  # factored, with a query bias and a value bias
            wq, wk, wv = normal(3, dim, g=g), normal(3, dim, g=g), normal(out, value_dim, g=g)
            bq, bv = normal(3, g=g) / 3, normal(out, g=g)
            return cls(law, Head.from_projections(wq, wk, wv, bq=bq, bv=bv, scale=strength / 2), dim)
        return cls(law, Head(A, normal(out, value_dim, g=g)), dim)

    def errors(self, x: Tensor, n: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """‖Γ_n − Γ‖ for each query with n fresh tokens, and those tokens: (m,), (m, n, d), (m, n, dv)."""
        m = len(x)
        sample = self.law.sample(m * n, generator=g)
        keys, values = sample.tokens.reshape(m, n, -1), sample.values.reshape(m, n, -1)
        scores = torch.einsum("mnd,md->mn", keys, self.head.score_vector(x))
        mean = torch.einsum("mn,mnd->md", scores.softmax(-1), values)
        return (self.head.read(mean) - self.head(self.law)(x)).norm(dim=-1), keys, values


def normal(*shape: int, g: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def random_law(dim: int, g: torch.Generator, bounded: bool) -> Measure:
    radius = 0.3 + 1.5 * float(torch.rand((), generator=g))
    if not bounded and torch.rand((), generator=g) < 0.4:
        root = normal(dim, dim, g=g) / dim**0.5
        law = Gaussian(normal(dim, g=g), radius**2 / 2 * root @ root.T)
        other = Sphere(dim, radius) if torch.rand((), generator=g) < 0.5 else Gaussian(cov=0.3, dim=dim)
        return law if torch.rand((), generator=g) < 0.6 else Mixture([0.8, 0.2], [law, other])
    plain: list[Callable[[], Measure]] = [
        lambda: Sphere(dim, radius),
        lambda: Ball(dim, radius),
        lambda: Box(dim, radius),
        lambda: Rademacher(dim),
        lambda: Empirical(normal(7, dim, g=g)),
    ]
    others: list[Callable[[], Measure]] = [
        lambda: Empirical(normal(9, dim, g=g), values=normal(9, 2, g=g)),
        lambda: Empirical(normal(6, dim, g=g), weights=torch.softmax(3 * normal(6, g=g), 0)),
        lambda: Mixture([0.9, 0.1], [plain[int(torch.randint(5, (), generator=g))]() for _ in range(2)]),
    ]
    return (plain + others)[int(torch.randint(8, (), generator=g))]()


def random_n(g: torch.Generator) -> int:
    return int(10 ** (3 * float(torch.rand((), generator=g)) ** 2))


def too_many(failures: int, trials: int, delta: float) -> bool:
    """More failures than a bound of confidence 1 − δ has but for probability 1e-9."""
    return failures > binom.isf(1e-9, trials, delta)


Compute = Callable[[Setting, Tensor, int, float, Tensor, Tensor], Tensor]


def from_law(s: Setting, x: Tensor, n: int, delta: float, keys: Tensor, values: Tensor) -> Tensor:
    return bounds.fixed_query(s.head, s.law, x, n, delta).value


def from_data(s: Setting, x: Tensor, n: int, delta: float, keys: Tensor, values: Tensor) -> Tensor:
    known = {"population": s.law}
    if not isinstance(s.law, Empirical) and n % 2:
        known = {"radius": s.law.radius}
    each = zip(keys, values, x, strict=True)
    return torch.stack(
        [bounds.empirical(s.head, Empirical(k, v), q, delta, **known).value for k, v, q in each]
    )


@pytest.mark.parametrize(("compute", "queries"), [(from_law, 200), (from_data, 30)])
@pytest.mark.parametrize(("delta", "shrink"), [(0.5, 20), (0.01, 2)])
def test_high_probability_fails_no_more_often_than_delta(
    compute: Compute, queries: int, delta: float, shrink: int
) -> None:
    g = torch.Generator().manual_seed(int(1000 * delta))
    true, false, settings = 0, 0, 25 * TIMES
    trials = settings * queries
    for _ in range(settings):
        s, n = Setting.draw(g, bounded=compute is from_data), random_n(g)
        x = normal(queries, s.dim, g=g)
        error, keys, values = s.errors(x, n, g)
        bound = compute(s, x, n, delta, keys, values)
        true += int((error > bound + 1e-12).sum())
        false += int((error > bound / shrink + 1e-12).sum())
    assert not too_many(true, trials, delta)
    assert too_many(false, trials, delta)  # half the bound is caught at δ = 0.01, a twentieth at 0.5


def excess(error: Tensor, bound: Tensor) -> float:
    """Monte Carlo mean over the last axis minus the bound, in standard errors, for the worst instance."""
    deviation = error.std(-1) / error.shape[-1] ** 0.5
    return float(((error.mean(-1) - bound) / (deviation + 1e-12)).max())


def test_mean_square_is_never_below_the_truth() -> None:
    g = torch.Generator().manual_seed(4)
    true, false = [], []
    for _ in range(50 * TIMES):
        s, n = Setting.draw(g), min(random_n(g), 100)
        x = normal(30, s.dim, g=g)
        error = s.errors(x.repeat_interleave(64, 0), n, g)[0].square().reshape(30, 64)
        bound = bounds.mean_square(s.head, s.law, x, n).value
        true.append(excess(error, bound))
        false.append(excess(error, bound / 8))
    assert max(true) < 5.5
    assert max(false) > 5.5


def test_averaged_is_never_below_the_truth() -> None:
    g = torch.Generator().manual_seed(5)
    true, false = [], []
    for _ in range(50 * TIMES):
        s, n = Setting.draw(g), random_n(g)
        x = s.law.sample(200, generator=g).tokens
        error = s.errors(x, n, g)[0]
        made = [
            bounds.averaged(s.head, s.law, n, x),  # over these 200 queries, each with tokens of its own
            bounds.averaged(s.head, s.law, n, method="closed form"),
        ]
        if s.law.radius < math.inf:
            made.append(bounds.averaged(s.head, s.law, n, generator=g, samples=500))
        assert [bound.inputs["method"] for bound in made] == ["exact", "closed form", "sampled"][: len(made)]
        value = torch.stack([bound.value for bound in made])
        true.append(excess(error, value))
        false.append(excess(error, value[1:2] / 8))
    assert max(true) < 5.5
    assert max(false) > 5.5


def test_uniform_fails_no_more_often_than_delta() -> None:
    """The largest error over 200 queries of the ball is a lower estimate of the supremum."""
    g = torch.Generator().manual_seed(6)
    true, false, trials = torch.zeros(2), torch.zeros(2), 100 * TIMES
    for _ in range(trials):
        s, n, r = Setting.draw(g), random_n(g), 0.5 * float(torch.rand((), generator=g)) + 0.01
        x = r * torch.nn.functional.normalize(normal(200, s.dim, g=g), dim=-1)
        x[:100] *= torch.rand(100, 1, generator=g, dtype=torch.float64)
        worst = (s.head(s.law.sample(n, generator=g))(x) - s.head(s.law)(x)).norm(dim=-1).max()
        methods = ("kernel", "jensen", "net") if s.law.radius < math.inf else ("jensen",)
        by = {m: bounds.uniform(s.head, s.law, r, n, 0.1, method=m).value for m in methods}
        made = [by["jensen"].minimum(by.get("kernel", by["jensen"])), by.get("net", by["jensen"])]
        true += worst > torch.stack(made) + 1e-12
        false += worst > torch.stack(made) / 20 + 1e-12
    assert not any(too_many(int(count), trials, 0.1) for count in true)
    assert all(too_many(int(count), trials, 0.1) for count in false)  # a twentieth of either bound is caught
