"""Batches of prompts for many one-head models: what a query needs of a finite prompt, drawn and seen through attention, and losses and
gradients in closed form.

z̄ is the mean of a prompt's tokens under attention, and C its derivative in the query's score vector a (icl/moments.py).
Two opposite heads: the odd part of that mean, (z̄(a) − z̄(−a))/2, with derivative (C(a) + C(−a))/2.
Infinitely many tokens: ∇Λ(a) and ∇²Λ(a)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl.infinite import mean_loss
from attnlimit.icl.methods import Attention
from attnlimit.icl.moments import White, Wishart, linear_moments, softmax_moments, white_tokens
from attnlimit.icl.tasks import InContextTask, Prompts
from attnlimit.numerics.compiled import has_numba, run_compiled

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
    drawn: White | Wishart | Float[Tensor, "R L D"] | Float[Tensor, "R K D D"]
    """What `seen` is, or is made of."""
    lengths: tuple[int, ...]
    attention: Attention

    @cached_property
    def seen(self) -> Float[Tensor, "R L D"] | Float[Tensor, "R K D D"]:
        """R = S·B prompts: for linear attention (1/L) Σ g gᵀ at each of `lengths`, else their tokens."""
        if isinstance(self.drawn, Wishart):
            return self.drawn.tensor(self.lengths)
        return self.drawn.tensor() if isinstance(self.drawn, White) else self.drawn

    def moments(
        self, alpha: Float[Tensor, "R M D"], along: Float[Tensor, "R M D"], lengths: Sequence[int]
    ) -> tuple[Float[Tensor, "R M D"], Float[Tensor, "R M D"]]:
        """Mean and its derivative along `along` for M models with scores alphaᵀg over the first lengths[m] tokens."""
        if self.attention == "softmax":
            return softmax_moments(self.seen, alpha, along, lengths)
        if self.attention == "opposite":
            both, twice = torch.cat([alpha, -alpha], 1), torch.cat([along, along], 1)
            mean, push = softmax_moments(self.seen, both, twice, [*lengths, *lengths])
            (mean, back), (push, other) = mean.chunk(2, 1), push.chunk(2, 1)
            return (mean - back) / 2, (push + other) / 2
        same = tuple(lengths) == self.lengths
        S = self.seen if same else self.seen[:, [self.lengths.index(length) for length in lengths]]
        return (S @ alpha[..., None])[..., 0], (S @ along[..., None])[..., 0]


def draw(
    task: InContextTask,
    attention: Attention,
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
    seen: White | Wishart | Tensor
    if root is None:
        seen = torch.cat([one.tokens for one in drawn]) if len(drawn) > 1 else drawn[0].tokens
        seen = linear_moments(seen, sizes) if attention == "linear" else seen
    elif attention == "linear":
        seen = Wishart.draw(batch, sizes, task.token_dim, generators, dtype)
    else:
        seen = white_tokens(batch, longest, task.token_dim, generators, dtype)
    return Batch(query, target, vector, None if root is None else root(vector), seen, sizes, attention)


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


Models = Float[Tensor, "S M D D"]


class Pull(NamedTuple):
    """Mean loss and gradients of each model: M lengths for each of S seeds."""

    loss: Float[Tensor, "S M"]
    U: Models
    V: Models


def finite_pull(
    task: InContextTask,
    U: Models,
    V: Models,
    batch: Batch,
    lengths: tuple[int, ...],
    threads: int | None = None,
) -> Pull:
    """Model (s, m) on the first lengths[m] tokens of the prompts of seed s.

    With z̄ and C the mean under attention and its derivative, out = V z̄ and g = ∂loss/∂out: ∂loss/∂V = g z̄ᵀ and
    ∂loss/∂U = C Vᵀg queryᵀ, since ∂z̄/∂U[E] = C E query. Where a prediction is the last number of `out`, Vᵀg is a multiple of V's last
    row, and one pass over the tokens gives both. `threads` are those of a compiled pass, which torch's small products would not use well.
    """
    white = _white_noise(batch)
    if white is not None and _squares_of_one_number(task):
        return _compiled_pull(U, V, batch, lengths, white, threads)
    alpha, S = _scores(U, batch), len(U)
    one_number = type(task).read is InContextTask.read
    row = V[:, None, :, -1].expand(-1, batch.query.shape[1], -1, -1).flatten(0, 1)
    mean, push = batch.moments(alpha, _white(row, batch), lengths)
    mean = _per_model(_coloured(mean, batch), S)
    loss, g = slope(task, mean @ V.mT, batch.target[:, None])
    if one_number:
        push = push * g[..., -1].transpose(1, 2).flatten(0, 1)[..., None]
    else:
        push = batch.moments(alpha, _back(g, V, batch), lengths)[1]
    return _pull(loss, g, mean, push, batch)


def infinite_pull(task: InContextTask, U: Models, V: Models, batch: Batch) -> Pull:
    """The same on infinite prompts with the batch's task vectors, queries and targets."""
    if batch.root is not None:  # white noise tilted by α has mean α and covariance I
        mean = _per_model(_coloured(_scores(U, batch), batch), len(U))
        loss, g = slope(task, mean @ V.mT, batch.target[:, None])
        return _pull(loss, g, mean, _back(g, V, batch), batch)
    with torch.enable_grad():  # in float64, which laws of a task's own may be in
        U, V = U.detach().double().requires_grad_(), V.detach().double().requires_grad_()
        loss = torch.stack([mean_loss(task, *part) for part in zip(U, V, _prompts(batch), strict=True)])
        gradients = torch.autograd.grad(loss.sum(), (U, V))
    return Pull(loss.detach(), *gradients)


def finite_losses(
    task: InContextTask, U: Models, V: Models, batch: Batch, lengths: tuple[int, ...]
) -> Float[Tensor, "S M T"]:
    """Mean loss of every model at every one of T lengths."""
    S, M = U.shape[:2]
    alpha = _scores(U, batch).repeat_interleave(len(lengths), 1)
    mean, _ = batch.moments(alpha, torch.zeros_like(alpha), lengths * M)
    out = _per_model(_coloured(mean, batch), S) @ V.repeat_interleave(len(lengths), 1).mT
    return task.risk(task.read(out), batch.target[:, None]).mean(-1).view(S, M, -1)


def slope(
    task: InContextTask, output: Float[Tensor, "S M B D"], target: Tensor
) -> tuple[Float[Tensor, "S M B"], Float[Tensor, "S M B D"]]:
    """The loss of each output, and its derivative in the output."""
    if _squares_of_one_number(task):
        off = output[..., -1] - target
        derivative = torch.zeros_like(output)
        derivative[..., -1] = off
        return off.square() / 2, derivative
    with torch.enable_grad():
        output = output.detach().requires_grad_()
        loss = task.risk(task.read(output), target)
        (derivative,) = torch.autograd.grad(loss.sum(), output)
    return loss.detach(), derivative


def _squares_of_one_number(task: InContextTask) -> bool:
    kind = type(task)
    return task.loss == "squared" and kind.read is InContextTask.read and kind.risk is InContextTask.risk


def _white_noise(batch: Batch) -> White | None:
    """What compiled loops can draw themselves, if it is such."""
    drawn = batch.drawn.white if isinstance(batch.drawn, Wishart) else batch.drawn
    return drawn if isinstance(drawn, White) and batch.attention != "opposite" and has_numba() else None


def _compiled_pull(
    U: Models, V: Models, batch: Batch, lengths: tuple[int, ...], white: White, threads: int | None
) -> Pull:
    """`finite_pull` for squared losses of one number, in one compiled pass that draws the prompts too."""
    from attnlimit.icl.loops import linear_pull, softmax_pull

    assert batch.root is not None  # white noise is coloured
    (S, B, D), M = batch.query.shape, len(lengths)
    off = torch.empty(S * B, M)
    of_v, of_a = torch.empty(2, S * B, D, M)
    asked = (batch.query.flatten(0, 1), batch.target.flatten(), batch.root.flatten(0, 1))
    models = (U.permute(0, 3, 2, 1).contiguous(), V[:, :, -1].mT.contiguous())
    keys, rest = torch.from_numpy(white.keys), (*asked, *models, off, of_v, of_a)
    if isinstance(batch.drawn, Wishart):
        it = batch.drawn
        sizes = torch.tensor(it.order), torch.tensor([it.order.index(length) for length in lengths])
        run_compiled(linear_pull, S * B, keys, it.diagonal, it.kept, *sizes, *rest, threads=threads)
    else:
        sizes = torch.tensor([white.length]), torch.tensor(lengths)
        run_compiled(softmax_pull, S * B, keys, *sizes, *rest, threads=threads)
    pull_V = torch.zeros_like(V)
    pull_V[:, :, -1] = of_v.view(S, B, D, M).mean(1).mT
    pull_U = of_a.view(S, B, D * M).mT @ batch.query / B
    return Pull(off.view(S, B, M).square().mean(1) / 2, pull_U.view(S, D, M, D).transpose(1, 2), pull_V)


def _pull(loss: Tensor, g: Tensor, mean: Tensor, push: Float[Tensor, "R M D"], batch: Batch) -> Pull:
    """From the losses, their derivatives g in the outputs, z̄, and white C Vᵀg."""
    S, B, _ = batch.query.shape
    push = _per_model(_coloured(push, batch), S)
    return Pull(loss.mean(-1), push.mT @ batch.query[:, None] / B, g.mT @ mean / B)


def _back(g: Float[Tensor, "S M B D"], V: Models, batch: Batch) -> Float[Tensor, "R M D"]:
    """Vᵀg as tokens of white noise see it."""
    return _white((g @ V).transpose(1, 2).flatten(0, 1), batch)


def _scores(U: Models, batch: Batch) -> Float[Tensor, "R M D"]:
    """α with αᵀg = zᵀU query: Fᵀ U query."""
    return _white((batch.query @ U.flatten(1, 2).mT).view(-1, *U.shape[1:3]), batch)


def _white(rows: Float[Tensor, "R M D"], batch: Batch) -> Float[Tensor, "R M D"]:
    """Fᵀ of each."""
    return rows if batch.root is None else rows @ batch.root.flatten(0, 1)


def _coloured(white: Float[Tensor, "R M D"], batch: Batch) -> Float[Tensor, "R M D"]:
    return white if batch.root is None else white @ batch.root.flatten(0, 1).mT


def _per_model(rows: Float[Tensor, "R M D"], seeds: int) -> Float[Tensor, "S M B D"]:
    return rows.unflatten(0, (seeds, -1)).transpose(1, 2)


def _prompts(batch: Batch) -> list[Prompts]:
    parts = zip(batch.query.double(), batch.target.double(), batch.vector.double(), strict=True)
    return [Prompts(query[:, None], query, target, vector) for query, target, vector in parts]
