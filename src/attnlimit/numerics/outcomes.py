"""All that a draw may give, where that is little: every outcome with its probability."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MOST = 2**20
"""Outcomes that are told one by one."""


class Outcomes(NamedTuple):
    """Sums over the drawn keys, and how likely they are."""

    sums: Float[Tensor, "o p"]
    log_chance: Float[Tensor, " o"]


def outcomes(
    each: Float[Tensor, "j p"], log_ways: Float[Tensor, "j c"], total: int | None, log_all: float
) -> Outcomes | None:
    """Σ c_j each_j for all counts c with Σ c_j = total (None: any but all zero) and their probabilities exp(Σ log_ways[j, c_j] −
    log_all); None where there are too many. A key at a time; the last one's count follows from the others'."""
    possible = torch.isfinite(log_ways)
    most = (possible * torch.arange(log_ways.shape[1], device=each.device)).amax(1)
    later = most.flip(0).cumsum(0).flip(0) - most
    count = torch.zeros(1, dtype=torch.long, device=each.device)
    sums, log_chance = each.new_zeros(1, each.shape[1]), each.new_full((1,), -log_all)
    for j in range(len(each)):
        if total is not None and j == len(each) - 1:
            row, c = torch.arange(len(count), device=each.device), total - count
        else:
            options = int(most[j]) + 1
            if len(count) * options > 4 * MOST:
                return None
            row = torch.arange(len(count), device=each.device).repeat_interleave(options)
            c = torch.arange(options, device=each.device).repeat(len(count))
        after = count[row] + c
        fits = (c <= most[j]) & possible[j][c.clamp_max(most[j])]
        if total is not None:
            fits &= (after <= total) & (after + later[j] >= total)
        row, c = row[fits], c[fits]
        if len(row) > MOST:
            return None
        count, log_chance = after[fits], log_chance[row] + log_ways[j][c]
        sums = sums[row] + c[:, None] * each[j]
    there = count > 0
    return Outcomes(sums[there], log_chance[there])
