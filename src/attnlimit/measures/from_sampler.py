"""A law known only through a sampler: limits by randomised quasi-Monte Carlo, with an error estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from attnlimit.errors import InputError, NotKnown
from attnlimit.inputs import Repeats, as_count, shown, whole
from attnlimit.measures.base import Measure, Options, Points
from attnlimit.measures.empirical import Empirical
from attnlimit.measures.mixture import Mixture
from attnlimit.numerics.quasi import uniform_sets


class FromSampler(Measure):
    """The law of `transform(u)` for u uniform on (0, 1)^uniforms.

    Limits are averages over `scrambles` independently scrambled Sobol sets of `points` points; their spread
    is the error estimate (`head(law).standard_error(x)`). A limit that fewer than 200 effective points carry
    is refused, since neither it nor its error estimate could be trusted. The support is not known from a
    sampler, so the radius is infinite and there is no hardmax limit.

    >>> law = FromSampler(lambda u: u.square(), dim=2)  # squares of uniforms
    >>> law.mean
    tensor([0.3333, 0.3333], dtype=torch.float64)
    """

    least_effective_points = 200
    support_known = False
    growth = "may grow without end (a sampler does not tell)"

    def __init__(
        self,
        transform: Callable[[Tensor], Tensor],
        dim: int,
        *,
        uniforms: int | None = None,
        points: int = 4096,
        scrambles: Repeats = 16,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dim, **options)
        self.transform = transform
        self.uniforms = whole(1, SobolEngine.MAXDIM)(dim if uniforms is None else uniforms, "uniforms")
        sets = uniform_sets(self.uniforms, as_count(points, "points"), scrambles)
        self.replicas: tuple[Empirical, ...] = tuple(
            Empirical(self._tokens(u.to(self._like), dim)) for u in sets
        )
        self._average = Mixture(self._like.new_full((scrambles,), 1 / scrambles), self.replicas)

    def __repr__(self) -> str:
        return f"FromSampler(dim={self.dim}, {len(self.replicas)} × {len(self.replicas[0])} points)"

    def _tokens(self, u: Tensor, dim: int) -> Tensor:
        edge = torch.finfo(u.dtype).eps / 2
        try:
            tokens = self.transform(u.clamp(edge, 1 - edge))
        except Exception as problem:  # whatever a function of the user's raises
            told = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
            raise InputError(
                f"transform fails on uniform numbers of shape {tuple(u.shape)}, {u.dtype}: {told}."
            ) from problem
        if not isinstance(tokens, Tensor):
            raise InputError(
                f"transform must give a tensor of shape ({u.shape[0]}, {dim}), it gave {shown(tokens)}."
            )
        if tokens.shape != (u.shape[0], dim):
            raise InputError(
                f"transform must map ({u.shape[0]}, {self.uniforms}) to ({u.shape[0]}, {dim}), it gave {tuple(tokens.shape)}."
            )
        return tokens

    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]:
        return self._average._cgf(a)

    def _tilted_mean(self, a: Points) -> Points:
        self._check_resolved(a)
        return self._average._tilted_mean(a)

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch d d"]:
        self._check_resolved(a)
        return self._average._tilted_cov(a)

    def _check_resolved(self, a: Points) -> None:
        effective = (2 * self._cgf(a) - self._cgf(2 * a)).exp() * sum(len(part) for part in self.replicas)
        if bool((effective < self.least_effective_points).any()):
            raise NotKnown(
                f"The limit is not resolved: at the largest score only {float(effective.min()):.1f} of the points of {self!r} "
                "carry the answer. Give more points=, or a law with a closed-form CGF."
            )

    def _top(self, a: Points) -> Points:
        raise NotKnown(
            f"No hardmax limit: the support of {self!r} is not known from its sampler. "
            "Use finite tokens, head.hardmax(law.sample(n, generator=…))."
        )

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self._tokens(self._uniform(n, self.uniforms, generator=generator), self.dim)
