"""Prompts for many models at once, from streams that are addressed by seed and step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl.kernels import linear_moments, softmax_moments, wishart_moments
from attnlimit.icl.tasks import InContextTask

TRAINING, EVALUATION, START = 0, 1, 2
"""What a stream is for."""

T = TypeVar("T")
R = TypeVar("R")


def stream(base: int, purpose: int, seed: int, step: int, device: str = "cpu") -> torch.Generator:
    """The generator of one seed's draws at one step: no state is carried from step to step, so that a run can stop and go
    on anywhere, and steps can be drawn side by side.

    torch seeds with 32 bits, so that two of 300,000 steps may well be given the same prompts; that does no harm.
    """
    (word,) = np.random.SeedSequence([base, purpose, seed, step]).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(word >> np.uint64(1)))


@dataclass(frozen=True, eq=False)
class Batch:
    """B prompts for each of S seeds; the models of a seed share them, a model of length L sees the first L tokens.

    With Gaussian prompts the tokens z = F g are kept as white noise g and F: scores are aᵀz = (Fᵀa)ᵀg.
    """

    query: Float[Tensor, "S B D"]
    target: Float[Tensor, "S B ..."]
    vector: Float[Tensor, "S B p"]
    root: Float[Tensor, "S B D D"] | None
    """F, or None for tokens as they are."""
    seen: Float[Tensor, "R L D"] | Float[Tensor, "R K D D"]
    """R = S·B prompts: for softmax attention their tokens, for linear attention (1/L) Σ g gᵀ at each of `lengths`."""
    lengths: tuple[int, ...]

    def moments(
        self, alpha: Float[Tensor, "R M D"], lengths: Sequence[int]
    ) -> tuple[Float[Tensor, "R M D"], Float[Tensor, "R M D D"]]:
        """Mean and its derivative for M models with scores alphaᵀg over the first lengths[m] tokens."""
        if self.seen.ndim == 3:
            return softmax_moments(self.seen, alpha, lengths)
        same = tuple(lengths) == self.lengths
        S = self.seen if same else self.seen[:, [self.lengths.index(length) for length in lengths]]
        return (S @ alpha[..., None])[..., 0], S


def draw(
    task: InContextTask,
    attention: str,
    lengths: Sequence[int],
    batch: int,
    generators: Sequence[torch.Generator],
    dtype: torch.dtype,
) -> Batch:
    """`batch` prompts for each seed, from its own generator.

    Tasks whose prompts are centred Gaussian given their vector say so by a method prompt_root (F with FFᵀ their
    covariance); then linear attention needs no tokens, only Wishart draws.
    """
    sizes = tuple(dict.fromkeys(lengths))
    longest = max(sizes)
    root = getattr(task, "prompt_root", None)
    drawn = [task.draw(batch, longest if root is None else 1, g, dtype) for g in generators]
    query, target, vector = (
        torch.stack([getattr(one, name) for one in drawn]) for name in ("query", "target", "vector")
    )
    if root is None:
        seen = torch.cat([one.tokens for one in drawn]) if len(drawn) > 1 else drawn[0].tokens
        seen = linear_moments(seen, sizes) if attention == "linear" else seen
    elif attention == "linear":
        seen = torch.cat([wishart_moments(batch, sizes, task.token_dim, g, dtype) for g in generators])
    else:
        seen = query.new_empty(len(drawn) * batch, longest, task.token_dim)
        for part, generator in zip(seen.split(batch), generators, strict=True):
            part.normal_(generator=generator)
    return Batch(query, target, vector, None if root is None else root(vector), seen, sizes)


def ahead(make: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """make(item) for every item in turn, prepared by up to `workers` threads while the last ones are in use; with one
    worker, in this thread."""
    if workers < 2:
        yield from map(make, items)
        return
    pool, waiting = ThreadPoolExecutor(workers), deque[Future[R]]()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
