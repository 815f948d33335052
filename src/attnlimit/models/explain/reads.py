"""What a head reads at a query: keys by weight, and the plain average of the others.

With S the keys named, P the weight of a set, v̄ the plain average of the m others' values,

    Γ̂_S = Σ_{j∈S} p_j v_j + P_rest v̄_rest,     Γ = Σ p_j v_j,     Γ̂_∅ = v̄ of all that is seen (times their weight)

so the explanation "these keys, and the average of m others" makes the error ‖Γ̂_S − Γ‖, and costs the answer E(gᵀ(Γ̂_S − Γ))²
to second order (attnlimit.models.see.gradient). Its certainty is 1 − ‖Γ̂_S − Γ‖²/‖Γ̂_∅ − Γ‖²: 1 for a head that picks the keys
that are named, 0 for one that averages over all.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NOTHING = 1e-10
"""Of the size of the values, squared: a head that is no farther from the plain average picks nothing."""


def read_only(
    weights: Float[Tensor, "*q n"],
    values: Float[Tensor, "*#b n d"],
    named: Bool[Tensor, "*#q n"],
    seen: Bool[Tensor, "*#q n"],
) -> Float[Tensor, "*q d"]:
    """Γ̂_S: the named keys with their weights, and the plain average of the others with theirs."""
    rest = seen & ~named
    number = rest.sum(-1, keepdim=True).clamp_min(1)
    left = (weights * rest).sum(-1, keepdim=True)
    return (weights * named + rest * (left / number)) @ values


def certainty(
    explained: Float[Tensor, "*q d"],
    average: Float[Tensor, "*q d"],
    output: Float[Tensor, "*q d"],
    others: Int[Tensor, "*#q"],
    size: Float[Tensor, "*#q"],
) -> Float[Tensor, "*q"]:
    """1 − ‖Γ̂_S − Γ‖²/‖Γ̂_∅ − Γ‖², from 0 to 1; 1 where nothing is left unnamed, 0 where nothing is picked. `size` is that of
    the values, squared."""
    off, picked = ((one - output).square().sum(-1) for one in (explained, average))
    found = (1 - off / picked.clamp_min(1e-300 if picked.dtype == torch.float64 else 1e-37)).clamp(0, 1)
    return found.masked_fill(picked <= NOTHING * size, 0).masked_fill(others <= 0, 1)


def along(
    weights: Float[Tensor, " n"], values: Float[Tensor, "n d"], order: Int[Tensor, " k"]
) -> Float[Tensor, "k_plus_1 d"]:
    """Γ̂ of the first 0, 1, … keys of an order of all that are seen: all at once."""
    p, v = weights[order], values[order]
    read, plain = ((x[:, None] * v).cumsum(0) for x in (p, torch.ones_like(p)))
    nothing = v.new_zeros(1, v.shape[1])
    read, plain = torch.cat([nothing, read]), torch.cat([nothing, plain])
    mass = torch.cat([p.new_zeros(1), p.cumsum(0)])
    left = torch.arange(len(p), -1, -1, device=p.device)[:, None]
    return read + (mass[-1] - mass)[:, None] * (plain[-1] - plain) / left.clamp_min(1)


def first_within(error: Float[Tensor, " k"], most: Tensor) -> int:
    """The first place whose error is small enough; the last one if none is."""
    good = (error <= most).nonzero()
    return int(good[0, 0]) if len(good) else len(error) - 1


def agreement(parts: Float[Tensor, "draws n"], top: int) -> float:
    """Share of the `top` keys of largest part, in square over draws, that two halves of the draws have in common."""
    halves = [one.square().sum(0) for one in parts.tensor_split(2)]
    count = min(top, parts.shape[1])
    best = [set(one.topk(count).indices.tolist()) for one in halves]
    return len(best[0] & best[1]) / count
