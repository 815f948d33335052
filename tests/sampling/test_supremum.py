"""The supremum over a ball against dense grids."""

from __future__ import annotations

import pytest
import torch

from attnlimit import Empirical, Gaussian, Head, Sphere
from attnlimit.sampling import measure_convergence
from attnlimit.sampling.supremum import Sup, random_starts, supremum


@pytest.mark.parametrize("seed", range(5))
def test_one_dimension_against_a_grid(seed: int) -> None:
    law, head, radius = Gaussian(cov=1.0, dim=1), Head([[1.2]]), 1.5
    curve = measure_convergence(head, law, [15, 60], statistic=Sup(radius), replicates=2, generator=seed)
    generator = torch.Generator().manual_seed(seed)
    random_starts(16, head, radius, generator)  # drawn first
    tokens = law.sample(60, generator=generator).tokens
    x = torch.linspace(-radius, radius, 40001, dtype=torch.float64)[:, None]
    for j, n in enumerate(curve.n):
        grid = (head(Empirical(tokens[:n]))(x) - head(law)(x)).abs().max()
        assert float(curve.errors[0, j]) == pytest.approx(float(grid), rel=1e-5)
    assert bool((curve.agreed >= 1).all())
    assert "lower estimate" in curve.method
    assert "16 starts" in curve.method


def test_two_dimensions_against_a_grid(generator: torch.Generator) -> None:
    law, radius = Sphere(2, 1.5), 2.0
    head = Head([[1.0, 0.4], [-0.3, 0.8]])
    finite, limit = head(law.sample(30, generator=generator)), head(law)
    found = supremum(finite, limit, random_starts(24, head, radius, generator), radius)
    angle = torch.linspace(0, 2 * torch.pi, 1001, dtype=torch.float64)
    height = torch.linspace(0, radius, 301, dtype=torch.float64)
    x = height[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)
    grid = float((finite(x) - limit(x)).norm(dim=-1).max())
    assert found.value >= grid * (1 - 1e-6)
    assert found.value <= grid * (1 + 1e-3)  # the grid is fine enough not to miss more
    assert float(found.at.norm()) <= radius * (1 + 1e-12)
    assert float((finite(found.at) - limit(found.at)).norm()) == pytest.approx(found.value, rel=1e-12)


def test_starts_that_miss_the_best_value_do_not_agree(generator: torch.Generator) -> None:
    """Started at the two ends of a ball with different maxima there, only one start agrees."""
    head, law = Head([[1.0]]), Gaussian(cov=1.0, dim=1)
    finite = head(Empirical([[-2.0], [0.1], [1.0]]))
    ends = torch.tensor([[-3.0], [3.0]], dtype=torch.float64)
    found = supremum(finite, head(law), ends, 3.0)
    values = (finite(ends) - head(law)(ends)).abs()
    assert found.value == pytest.approx(float(values.max()), rel=1e-9)
    assert found.agreed == 1
