"""Which keys a query samples, among those that it sees and does not keep anyway (its rest, R keys).

Both ways give every single query min(n, R) different keys, uniform over its rest: what a budget's error is predicted
for. They differ in what queries have in common:

- shared: one random order of all keys. A query walks along it and takes the first n keys of its rest. Queries with the
  same rest take the same keys, others nearly: few keys are read in all.
- per query: the same, but every query starts at a random place of its own and goes round. Two queries have as many keys
  in common as with independent draws, n²/R in the mean, and their errors are uncorrelated to first order in the errors:
  they average out downstream.

A `Stream` is one head's randomness for one text: its draws do not depend on other heads, or on how queries are blocked.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Stream:
    """The random numbers of one head and text: an order of the keys, and for each query where on it to start."""

    def __init__(self, seed: int, keys: int, queries: int | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.order = torch.randperm(keys, generator=generator)
        self.start = torch.rand(queries, generator=generator) if queries is not None else None
        """In [0, 1), the share of its rest that a query passes over; None: nobody does."""


def first_of_order(
    rest: Bool[Tensor, "... keys"],
    order: Int[Tensor, "... keys"],
    n: Int[Tensor, "... 1"],
    start: Float[Tensor, "... 1"] | None = None,
) -> Bool[Tensor, "... keys"]:
    """The first n keys of each rest along an order, or the n from a start on, round the end; all arguments broadcast."""
    shapes = [rest.shape, order.shape, n.shape, *([] if start is None else [start.shape])]
    shape = torch.broadcast_shapes(*shapes)
    order = order.expand(shape)
    met = rest.expand(shape).gather(-1, order)
    place = met.cumsum(-1, dtype=torch.int32)  # 1 … R for the keys of the rest
    if start is not None:
        size = place[..., -1:].clone()
        passed = torch.minimum((start * size).int(), size - 1)  # a start near 1 may round up to R
        place -= passed
        place += size * (place <= 0)
    met &= place <= n
    return torch.zeros(shape, dtype=torch.bool, device=rest.device).scatter_(-1, order, met)


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
