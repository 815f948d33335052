"""Batches of prompts for many one-head models: what a query needs of a finite prompt, drawn and seen through attention, and losses and
gradients in closed form.

Softmax attention: weights p_i ∝ e^{aᵀz_i}, mean z̄ = Σ p_i z_i and covariance C = Σ p_i (z_i − z̄)(z_i − z̄)ᵀ.
Two opposite heads: the odd part of that mean, (z̄(a) − z̄(−a))/2, with derivative (C(a) + C(−a))/2.
Linear attention: with S = (1/L) Σ z_i z_iᵀ, mean S a and derivative S.
Infinitely many tokens: ∇Λ(a) and ∇²Λ(a). In all four C is the derivative of the mean in a."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl.infinite import mean_loss
from attnlimit.icl.methods import Attention
from attnlimit.icl.tasks import InContextTask, Prompts
from attnlimit.numerics.compiled import has_numba, run_compiled

CHUNK = 256
"""Tokens that the compiled loop holds in cache at once."""

Means = Float[Tensor, "R M D"]
Covs = Float[Tensor, "R M D D"]


def softmax_moments(
    tokens: Float[Tensor, "R L D"], a: Float[Tensor, "R M D"], lengths: Sequence[int]
) -> tuple[Means, Covs]:
    """Mean and covariance of each row's first lengths[m] tokens under softmax weights of a[:, m].

    In float32 on a CPU one compiled pass over the tokens serves all M models; else a model at a time. The pass takes the
    covariance as a second moment less the mean's square, so tokens should lie around zero, not far from it.
    """
    if tokens.dtype == torch.float32 and tokens.device.type == "cpu" and has_numba():
        mean, cov = torch.empty_like(a), a.new_empty(*a.shape, a.shape[-1])
        sizes = torch.tensor(lengths, dtype=torch.int64)
        run_compiled(_softmax_rows, len(a), tokens.contiguous(), a.contiguous(), sizes, mean, cov)
        return mean, cov
    means, covs = zip(*(_softmax_model(tokens[:, :n], a[:, m]) for m, n in enumerate(lengths)), strict=True)
    return torch.stack(means, 1), torch.stack(covs, 1)


def linear_moments(tokens: Float[Tensor, "R L D"], lengths: Sequence[int]) -> Covs:
    """S_m = (1/L) Σ z zᵀ over each row's first L = lengths[m] tokens: each token is used once for all lengths."""
    order = sorted(set(lengths))
    parts = [tokens[:, low:high].mT @ tokens[:, low:high] for low, high in pairwise([0, *order])]
    return _averages(torch.stack(parts, 1), order, lengths)


def wishart_moments(
    rows: int, lengths: Sequence[int], dim: int, generator: torch.Generator, dtype: torch.dtype
) -> Covs:
    """A draw with the law of `linear_moments` of white noise, at a cost that does not grow with the lengths.

    The sum over the tokens between two lengths is Wishart and independent of the rest: T Tᵀ with Bartlett's
    lower triangular T, of standard normals below the diagonal and χ_{k−i} on it; for k < dim the tokens themselves.
    """
    order = sorted(set(lengths))
    steps = [high - low for low, high in pairwise([0, *order])]
    device = generator.device
    T = torch.randn(rows, len(steps), dim, dim, generator=generator, dtype=dtype, device=device).tril_(-1)
    index = torch.arange(dim, device=device)
    half = (torch.tensor(steps, dtype=dtype, device=device)[:, None] - index).clamp_min(1) / 2
    chi2 = 2 * torch._standard_gamma(half.expand(rows, -1, -1).contiguous(), generator=generator)
    T[..., index, index] = chi2.sqrt()
    for k, count in enumerate(steps):
        if count < dim:
            white = torch.randn(rows, dim, count, generator=generator, dtype=dtype, device=device)
            T[:, k] = torch.nn.functional.pad(white, (0, dim - count))
    return _averages(T @ T.mT, order, lengths)


def _averages(parts: Float[Tensor, "R K D D"], order: list[int], lengths: Sequence[int]) -> Covs:
    """Of sums over the tokens from one length to the next in order, those over the first L tokens, divided by L."""
    sums = parts.cumsum(1)
    return torch.stack([sums[:, order.index(length)] / length for length in lengths], 1)


def _softmax_model(z: Float[Tensor, "R L D"], a: Float[Tensor, "R D"]) -> tuple[Tensor, Tensor]:
    p = (z @ a[..., None]).softmax(-2)
    mean = (p * z).sum(-2)
    centred = z - mean[:, None]
    return mean, (p * centred).mT @ centred


def _softmax_rows(
    start: int, stop: int, tokens: Any, a: Any, lengths: Any, mean: Any, cov: Any
) -> None:  # pragma: no cover  (compiled)
    """Rows start … stop − 1: tokens go by in chunks; each model adds Σ w·(1, z, z zᵀ) of those within its length,
    w = e^{score − largest so far}, and scales its sums down when a larger score comes."""
    one = np.float32(1.0)
    L, D, M = tokens.shape[1], tokens.shape[2], a.shape[1]
    F = 1 + D + D * (D + 1) // 2
    feature = np.ones((F, CHUNK), np.float32)
    w, bits = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.int32)
    power = bits.view(np.float32)
    total, top = np.empty((M, F), np.float32), np.empty(M, np.float32)
    for b in range(start, stop):
        total[:] = 0
        top[:] = -np.inf
        for low in range(0, L, CHUNK):
            n = min(CHUNK, L - low)
            k = 1 + D
            for c in range(D):
                for i in range(n):
                    feature[1 + c, i] = tokens[b, low + i, c]
                for d in range(c + 1):
                    for i in range(n):
                        feature[k, i] = feature[1 + c, i] * feature[1 + d, i]
                    k += 1
            for m in range(M):
                n = min(CHUNK, lengths[m] - low)
                if n <= 0:
                    continue
                for i in range(n):
                    w[i] = a[b, m, 0] * feature[1, i]
                for d in range(1, D):
                    for i in range(n):
                        w[i] += a[b, m, d] * feature[1 + d, i]
                high = w[0]
                for i in range(n):
                    high = max(high, w[i])
                if high > top[m]:
                    shrink = np.float32(math.exp(top[m] - high))
                    for k in range(F):
                        total[m, k] *= shrink
                    top[m] = high
                high = top[m]
                # e^x = 2^r p(f): r whole, |f| ≤ ½, p to 1e-7; written out since a call to exp would not vectorise
                for i in range(n):
                    y = max((w[i] - high) * np.float32(1.4426950408889634), np.float32(-126.0))
                    r = np.floor(y + np.float32(0.5))
                    f = y - r
                    p = np.float32(1.5403530393381609e-4)
                    p = p * f + np.float32(1.3333558146428443e-3)
                    p = p * f + np.float32(9.618129107628477e-3)
                    p = p * f + np.float32(5.550410866482158e-2)
                    p = p * f + np.float32(2.402265069591007e-1)
                    p = p * f + np.float32(6.931471805599453e-1)
                    w[i] = p * f + one
                    bits[i] = (np.int32(r) + np.int32(127)) << np.int32(23)
                for i in range(n):
                    w[i] *= power[i]
                for k in range(F):
                    sum_ = np.float32(0.0)
                    for i in range(n):
                        sum_ += w[i] * feature[k, i]
                    total[m, k] += sum_
        for m in range(M):
            k = 1 + D
            for c in range(D):
                mean[b, m, c] = total[m, 1 + c] / total[m, 0]
                for d in range(c + 1):
                    cov[b, m, c, d] = total[m, k] / total[m, 0] - mean[b, m, c] * mean[b, m, d]
                    cov[b, m, d, c] = cov[b, m, c, d]
                    k += 1


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
    """R = S·B prompts: for linear attention (1/L) Σ g gᵀ at each of `lengths`, else their tokens."""
    lengths: tuple[int, ...]
    attention: Attention

    def moments(
        self, alpha: Float[Tensor, "R M D"], lengths: Sequence[int]
    ) -> tuple[Float[Tensor, "R M D"], Float[Tensor, "R M D D"]]:
        """Mean and its derivative for M models with scores alphaᵀg over the first lengths[m] tokens."""
        if self.attention == "softmax":
            return softmax_moments(self.seen, alpha, lengths)
        if self.attention == "opposite":
            mean, cov = softmax_moments(self.seen, torch.cat([alpha, -alpha], 1), [*lengths, *lengths])
            (mean, back), (cov, other) = mean.chunk(2, 1), cov.chunk(2, 1)
            return (mean - back) / 2, (cov + other) / 2
        same = tuple(lengths) == self.lengths
        S = self.seen if same else self.seen[:, [self.lengths.index(length) for length in lengths]]
        return (S @ alpha[..., None])[..., 0], S


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
    if root is None:
        seen = torch.cat([one.tokens for one in drawn]) if len(drawn) > 1 else drawn[0].tokens
        seen = linear_moments(seen, sizes) if attention == "linear" else seen
    elif attention == "linear":
        seen = torch.cat([wishart_moments(batch, sizes, task.token_dim, g, dtype) for g in generators])
    else:
        seen = query.new_empty(len(drawn) * batch, longest, task.token_dim)
        for part, generator in zip(seen.split(batch), generators, strict=True):
            part.normal_(generator=generator)
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


def finite_pull(task: InContextTask, U: Models, V: Models, batch: Batch, lengths: tuple[int, ...]) -> Pull:
    """Model (s, m) on the first lengths[m] tokens of the prompts of seed s.

    With z̄ and C the mean and covariance under the attention weights, out = V z̄ and g = ∂loss/∂out:
    ∂loss/∂V = g z̄ᵀ and ∂loss/∂U = C Vᵀg queryᵀ, since ∂z̄/∂U[E] = C E query.
    """
    mean, cov = batch.moments(_scores(U, batch), lengths)
    return _pull(task, V, batch, mean, cov)


def infinite_pull(task: InContextTask, U: Models, V: Models, batch: Batch) -> Pull:
    """The same on infinite prompts with the batch's task vectors, queries and targets."""
    if batch.root is not None:  # white noise tilted by α has mean α and covariance I
        return _pull(task, V, batch, _scores(U, batch), None)
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
    mean, _ = batch.moments(alpha, lengths * M)
    out = _per_model(_coloured(mean, batch), S) @ V.repeat_interleave(len(lengths), 1).mT
    return task.risk(task.read(out), batch.target[:, None]).mean(-1).view(S, M, -1)


def slope(
    task: InContextTask, output: Float[Tensor, "S M B D"], target: Tensor
) -> tuple[Float[Tensor, "S M B"], Float[Tensor, "S M B D"]]:
    """The loss of each output, and its derivative in the output."""
    if (
        task.loss == "squared"
        and type(task).read is InContextTask.read
        and type(task).risk is InContextTask.risk
    ):
        off = output[..., -1] - target
        derivative = torch.zeros_like(output)
        derivative[..., -1] = off
        return off.square() / 2, derivative
    with torch.enable_grad():
        output = output.detach().requires_grad_()
        loss = task.risk(task.read(output), target)
        (derivative,) = torch.autograd.grad(loss.sum(), output)
    return loss.detach(), derivative


def _pull(task: InContextTask, V: Models, batch: Batch, mean: Tensor, cov: Tensor | None) -> Pull:
    S, B, D = batch.query.shape
    mean = _per_model(_coloured(mean, batch), S)
    loss, g = slope(task, mean @ V.mT, batch.target[:, None])
    h = (g @ V).transpose(1, 2).reshape(S * B, -1, D)
    h = h if batch.root is None else h @ batch.root.flatten(0, 1)
    pull = h if cov is None else (cov @ h[..., None])[..., 0]
    pull = _per_model(_coloured(pull, batch), S)
    return Pull(loss.mean(-1), pull.mT @ batch.query[:, None] / B, g.mT @ mean / B)


def _scores(U: Models, batch: Batch) -> Float[Tensor, "R M D"]:
    """α with αᵀg = zᵀU query: Fᵀ U query."""
    a = (batch.query @ U.flatten(1, 2).mT).view(-1, *U.shape[1:3])
    return a if batch.root is None else a @ batch.root.flatten(0, 1)


def _coloured(white: Float[Tensor, "R M D"], batch: Batch) -> Float[Tensor, "R M D"]:
    return white if batch.root is None else white @ batch.root.flatten(0, 1).mT


def _per_model(rows: Float[Tensor, "R M D"], seeds: int) -> Float[Tensor, "S M B D"]:
    return rows.unflatten(0, (seeds, -1)).transpose(1, 2)


def _prompts(batch: Batch) -> list[Prompts]:
    parts = zip(batch.query.double(), batch.target.double(), batch.vector.double(), strict=True)
    return [Prompts(query[:, None], query, target, vector) for query, target, vector in parts]
