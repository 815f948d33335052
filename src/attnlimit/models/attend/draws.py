"""Which keys a query samples, among those that it sees and does not keep anyway (its rest, R keys).

Both ways give every single query min(n, R) different keys, uniform over its rest: what a budget's error is predicted
for. They differ in what queries have in common:

- shared: one random order of all keys. A query walks along it and takes the first n keys of its rest. Queries with the
  same rest take the same keys, others nearly: few keys are read in all.
- per query: the same, but every query starts at a random place of its own and goes round. Where all keys are of the rest, two
  queries have as many keys in common as with independent draws, n²/R in the mean, and their errors are uncorrelated to first
  order in the errors: they average out downstream. Gaps in the order (keys not seen or kept) leave a correlation of at most about 1/R.

A `Stream` is one head's randomness for one text: its draws do not depend on other heads, or on how queries are blocked.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Stream:
    """The random numbers of one head and text: an order of the keys, and for each query where on it to start."""

    def __init__(self, seed: int, keys: int, queries: int, per_query: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.order = torch.randperm(keys, generator=generator, dtype=torch.int32)
        self.start = torch.randint(keys, (queries,), generator=generator) * per_query


def first_of_order(
    rest: Bool[Tensor, "... keys"],
    order: Int[Tensor, "... size"],
    n: Int[Tensor, "... 1"],
    start: Int[Tensor, "... 1"],
) -> Bool[Tensor, "... keys"]:
    """The first n keys of each rest along an order from a start on, round the end; all arguments broadcast. The order may go on
    to more keys than there are."""
    shape = torch.broadcast_shapes(rest.shape[:-1], order.shape[:-1], n.shape[:-1], start.shape[:-1])
    size, keys = order.shape[-1], rest.shape[-1]
    turned = (torch.arange(size, device=rest.device) + start) % size
    walk = order.long().expand(*shape, size).gather(-1, turned.expand(*shape, size))
    wider = torch.nn.functional.pad(rest, (0, max(0, size - keys))).expand(*shape, max(size, keys))
    met = wider.gather(-1, walk)
    met &= met.cumsum(-1, dtype=torch.int32) <= n
    return torch.zeros_like(wider).scatter_(-1, walk, met)[..., :keys]
