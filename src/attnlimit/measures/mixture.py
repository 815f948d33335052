"""Mixtures of any measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Array
from attnlimit.measures.base import Matrix, Measure, Points, read
from attnlimit.measures.empirical import checked_weights
from attnlimit.measures.spec import Field, Form, Spec
from attnlimit.numerics.atoms import Atoms, join
from attnlimit.numerics.softmax import log_mean_exp


class Mixture(Measure):
    """Σ_k π_k μ_k: Λ(a) = log Σ_k π_k e^{Λ_k(a)}, and tilting re-weights the parts by a gate,

        ∇Λ(a) = Σ_k α_k(a) ∇Λ_k(a),   α(a) = softmax(log π_k + Λ_k(a))     [gabet2026mixtures, Prop. 2.1].

    >>> from attnlimit import Gaussian
    >>> Mixture([0.5, 0.5], [Gaussian(mean=[-1.0]), Gaussian(mean=[1.0])]).tilted_mean([0.5])  # 0.5 + tanh 0.5
    tensor([0.9621], dtype=torch.float64)

    Parts of weight zero are left out.
    """

    spec = Spec("mixture", weights=Field(Form.VECTOR), parts=Field(Form.LAWS))

    def __init__(self, weights: Array, parts: Sequence[Measure]) -> None:
        if not parts:
            raise InputError("Mixture needs at least one part, got none.")
        first = parts[0]
        for part in parts:
            if (part.dim, part.dtype, part.device) != (first.dim, first.dtype, first.device):
                raise InputError(
                    f"The parts of a mixture must share dimension, dtype and device: {part!r} and {first!r} differ."
                )
            if part.keys is not part:
                raise InputError(f"A mixture is over tokens alone, but {part!r} has values of its own.")
        super().__init__(first.dim, dtype=first.dtype, device=first.device)
        weights = checked_weights(weights, len(parts), like=self._like)
        self.parts = tuple(part for part, weight in zip(parts, weights.tolist(), strict=True) if weight > 0)
        self.weights = weights[weights > 0]
        self._log_weights = self.weights.log()
        self.radius = max(part.radius for part in self.parts)
        self.variance_proxy = self._proxy()
        self.support_known = all(part.support_known for part in self.parts)
        open_ended = [part for part in self.parts if part.radius == math.inf]
        self.growth = "; ".join(dict.fromkeys(part.growth for part in open_ended if part.growth))
        self.domain = " and ".join(dict.fromkeys(part.domain for part in self.parts))

    @classmethod
    def from_spec(cls, like: Tensor, **fields: Any) -> Mixture:
        return cls(fields["weights"], fields["parts"])

    def __repr__(self) -> str:
        return f"Mixture({len(self.parts)} parts, dim={self.dim})"

    def _proxy(self) -> float | None:
        """Hoeffding for the spread of the means, on top of the worst part: max σ_k² + diam²/4."""
        proxies = [part.variance_proxy for part in self.parts]
        if any(proxy is None for proxy in proxies):
            return None
        means = torch.stack([part.mean for part in self.parts])
        return max(p for p in proxies if p is not None) + float(torch.cdist(means, means).max()) ** 2 / 4

    def gates(self, a: Points) -> Float[Tensor, "*batch k"]:
        """α(a): the weight of each part in the tilted measure."""
        return (self._part_cgfs(a) + self._log_weights).softmax(-1)

    def _part_cgfs(self, a: Tensor) -> Tensor:
        return torch.stack([part._cgf(a) for part in self.parts], -1)

    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]:
        return log_mean_exp(self._part_cgfs(a), self._log_weights)

    def _tilted_mean(self, a: Points) -> Float[Tensor, "*batch dv"]:
        means = torch.stack([part._tilted_mean(a) for part in self.parts], -2)
        return (self.gates(a)[..., None] * means).sum(-2)

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch dv d"]:
        gates = self.gates(a)[..., None, None]
        means = torch.stack([part._tilted_mean(a) for part in self.parts], -2)
        covs = torch.stack([part._tilted_cov(a) for part in self.parts], -3)
        centred = means - (gates[..., 0] * means).sum(-2, keepdim=True)
        return (gates * (covs + centred[..., :, None] * centred[..., None, :])).sum(-3)

    def _in_domain(self, a: Points) -> Bool[Tensor, "*batch"]:
        return torch.stack([part._in_domain(a) for part in self.parts]).all(0)

    def _top(self, a: Points) -> Points:
        if self.radius == math.inf:
            return super()._top(a)
        tops = torch.stack([part._top(a) for part in self.parts], -2)
        scores = (tops * a[..., None, :]).sum(-1)
        ties = self.weights * (scores == scores.amax(-1, keepdim=True))
        return (ties[..., None] * tops).sum(-2) / ties.sum(-1, keepdim=True)

    def score_range(self, a: Points) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        ranges = [part.score_range(a) for part in self.parts]
        lows, highs = (torch.stack(ends) for ends in zip(*ranges, strict=True))
        return lows.amin(0), highs.amax(0)

    def value_radius(self, V: Matrix | None) -> float:
        return max(part.value_radius(V) for part in self.parts)

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """The atoms of all parts, side by side."""
        parts = []
        for weight, part in zip(self.weights, self.parts, strict=True):
            atoms = part.project(a, V, finer)
            parts.append(atoms._replace(log_mass=atoms.log_mass + weight.log()))
        return join(parts, read(V, self.tilted_mean(a)))

    def coverage(self, a: Float[Tensor, "m d"], log_n: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """Those of the parts, each tilted by its own gate."""
        found = [
            part.coverage(a, log_n + self.cgf(a) - own)
            for part, own in zip(self.parts, self._part_cgfs(a).unbind(-1), strict=True)
        ]
        return (self.gates(a) * torch.stack(found, -1)).sum(-1)

    @property
    def tails(self) -> tuple[Measure, ...] | None:
        """Those of all parts."""
        each = [part.tails for part in self.parts]
        return None if None in each else tuple(tail for tails in each for tail in tails or ())

    @cached_property
    def replicas(self) -> tuple[Measure, ...]:  # type: ignore[override]
        """Mixtures of the parts' replicas, where a part has any."""
        each = [part.replicas for part in self.parts]
        count = min((len(some) for some in each if some), default=0)
        return tuple(
            Mixture(
                self.weights, [some[k] if some else part for some, part in zip(each, self.parts, strict=True)]
            )
            for k in range(count)
        )

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        tokens = self._like.new_empty(n, self.dim)
        for k, part in enumerate(self.parts):
            chosen = which == k
            if bool(chosen.any()):
                tokens[chosen] = part.sample(int(chosen.sum()), generator=generator).tokens
        return tokens
