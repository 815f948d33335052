"""Which keys a query samples, among those that it sees and does not keep anyway (its rest, R keys).

Both ways give every single query min(n, R) different keys, uniform over its rest: what a budget's error is predicted
for. They differ in what queries have in common:

- shared: one random order of all keys. A query walks along it and takes the first n keys of its rest. Queries with the
  same rest take the same keys, others nearly: few keys are read in all.
- per query: every query has numbers of its own for all keys, and takes the n largest of its rest. Errors of different
  queries are independent, and average out downstream.

A `Stream` is one head's randomness for one text: its draws do not depend on other heads, or on how queries are blocked.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Stream:
    """The random numbers of one head and text."""

    def __init__(self, seed: int, keys: int, per_query: bool) -> None:
        self.generator, self.keys = torch.Generator().manual_seed(seed), keys
        self.order = None if per_query else torch.randperm(keys, generator=self.generator)

    def numbers(self, queries: int) -> Float[Tensor, "queries keys"]:
        """Numbers of the next queries, for draws of their own."""
        return torch.rand(queries, self.keys, generator=self.generator, dtype=torch.float64)


def first_of_order(
    rest: Bool[Tensor, "... keys"], order: Int[Tensor, "... keys"], n: Int[Tensor, "... 1"]
) -> Bool[Tensor, "... keys"]:
    """The first n keys of each rest along an order; all arguments broadcast."""
    shape = torch.broadcast_shapes(rest.shape, order.shape, n.shape)
    order = order.expand(shape)
    met = rest.expand(shape).gather(-1, order)
    met &= met.cumsum(-1, dtype=torch.int32) <= n
    return torch.zeros(shape, dtype=torch.bool, device=rest.device).scatter_(-1, order, met)


def largest(
    rest: Bool[Tensor, "*rows keys"], numbers: Float[Tensor, "*rows keys"], n: int
) -> Bool[Tensor, "*rows keys"]:
    """The n keys of each rest with the largest numbers."""
    keys = rest.shape[-1]
    if n == 0:
        return torch.zeros_like(rest)
    if n >= keys:
        return rest
    least = numbers.masked_fill(~rest, -1.0).kthvalue(keys - n + 1, dim=-1, keepdim=True).values
    return rest & (numbers >= least)


def few_of_order(
    rest: Bool[Tensor, "m keys"], order: Int[Tensor, " keys"], n: int
) -> tuple[Int[Tensor, " p"], Bool[Tensor, "m p"]]:
    """`first_of_order` for m queries, as places among the keys and who takes them: nothing of the size of all keys
    is made but `rest`."""
    wanted = rest.sum(1).clamp_max(n)
    order = order[rest.any(0)[order]]
    length = min(len(order), 2 * int(wanted.max()))
    while not bool((rest[:, order[:length]].sum(1) >= wanted).all()):
        length *= 2
    columns = order[:length]
    met = rest[:, columns]
    return columns, met & (met.cumsum(1) <= n)
