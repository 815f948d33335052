"""The infinite-prompt solution and other weights that need no training, and the risk of weights on finite prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import InputError
from attnlimit.exact import exact_error
from attnlimit.files.records import Recorded, record
from attnlimit.icl.infinite import Block, Theta, Weights, as_theta, infinite_risk, regression
from attnlimit.icl.methods import Attention
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.inputs import Count, Repeats, Seeded, as_generator
from attnlimit.measures import Gaussian
from attnlimit.numerics.quasi import normal_sets
from attnlimit.numerics.two_queries import gaussian_pair, pair_moments
from attnlimit.rates.logs import checked_sizes
from attnlimit.sampling.convergence import Progress

SCRAMBLES, POINTS, SPREADS = 8, 1024, 96
WIDE, MOST_B = 8.0, 12.0
"""Tables of opposite heads reach at least so far: between 0 and their first spread they are nearly quadratic, and closer to 0
differences of nearly equal numbers. The search for the best goes to so many times the b of the infinite-prompt solution: beyond,
1/b⁴ is left to gain."""
TOKENS_AT_ONCE = 2**18


@dataclass(frozen=True, eq=False)
class FiniteRisk(Recorded):
    """The risk on prompts of each length."""

    lengths: tuple[int, ...]
    risk: Float[Tensor, " lengths"]
    standard_error: Float[Tensor, " lengths"]
    method: str

    def __repr__(self) -> str:
        return f"FiniteRisk(L = {self.lengths[0]} … {self.lengths[-1]}, {self.method})"


def finite_risk(
    task: InContextTask,
    theta: Theta,
    lengths: Sequence[int] | int,
    *,
    attention: Attention = "softmax",
    prompts: Repeats = 4096,
    generator: Seeded = 0,
    progress: Progress | None = None,
) -> FiniteRisk:
    """R_L(θ) = E loss on prompts of L tokens, for every L.

    For regression in block form (A, b) no prompt is drawn: given x_q, the law of the finite-prompt output is that of
    Gaussian attention with score spread s = ‖Σ^{1/2}Ax_q‖, whose error and bias are exact (any L up to 10^12; of opposite heads the
    errors at the two queries ±x_q go together), the average over w is in closed form, and only x_q is averaged over 8 × 1,024
    quasi-random points; of linear attention everything is in closed form. Otherwise `prompts` prompts are drawn, whose first tokens
    are the shorter prompts, and `progress` is called with (prompts done, prompts in all).

    >>> from attnlimit.icl import LinearRegression, endpoint
    >>> task = LinearRegression(5)
    >>> finite_risk(task, endpoint(task), [100, 10_000]).risk
    tensor([0.0963, 0.0038], dtype=torch.float64)
    """
    sizes, theta = checked_sizes(lengths, name="lengths"), as_theta(task, theta)
    if isinstance(theta, Block) and isinstance(task, LinearRegression):
        linear = attention == "linear"
        return _exact_linear(task, theta, sizes) if linear else _exact(task, theta, sizes, attention)
    losses = sampled_losses(task, theta.embed(), sizes, prompts, as_generator(generator), attention, progress)
    method = f"Monte Carlo, {prompts:,} prompts, nested lengths"
    return FiniteRisk(sizes, losses.mean(0), losses.std(0) / prompts**0.5, method)


class _Errors(NamedTuple):
    """Of attention over L white Gaussian tokens with score spread s: mean square error of a coordinate across the scores'
    direction and along it, and the bias along it."""

    across: Float[Tensor, "p L"]
    along: Float[Tensor, "p L"]
    bias: Float[Tensor, "p L"]

    @classmethod
    def at(cls, s: Float[Tensor, " p"], lengths: tuple[int, ...], attention: Attention) -> _Errors:
        """By cubic splines in s through exact values; the tables' ranges are powers of 1.2, so that nearby heads share one."""
        table, least = (_opposite_splines, WIDE) if attention == "opposite" else (_splines, 1e-3)
        reach = 1.2 ** math.ceil(math.log(max(float(s.max()), least), 1.2))
        across, along, bias = (torch.as_tensor(spline(s.numpy())) for spline in table(reach, lengths))
        if attention == "opposite":
            return cls(s.square()[:, None] * across, s.square()[:, None] * along, s[:, None] * bias)
        return cls(across.exp(), along.exp(), bias)


Splines: TypeAlias = tuple[CubicSpline, CubicSpline, CubicSpline]


def _one_head(s: Float[Tensor, " p"], lengths: tuple[int, ...]) -> _Errors:
    """Exact values."""
    eye = torch.eye(2, dtype=torch.float64)
    x = s[:, None] * eye[0]
    along, across = (exact_error(Head(eye, row[None]), Gaussian(cov=1.0, dim=2), lengths, x) for row in eye)
    # a finite prompt falls short of the limit
    return _Errors(across.mean_square, along.mean_square, -along.bias_square.sqrt())


@lru_cache(maxsize=64)
def _splines(reach: float, lengths: tuple[int, ...]) -> Splines:
    """log mean squares across and along, and the bias, on 0 ≤ s ≤ reach."""
    s = torch.linspace(0, reach, SPREADS, dtype=torch.float64)
    across, along, bias = _one_head(s, lengths)
    return _cubic(s, _Errors(across.log(), along.log(), bias))


def _cubic(s: Float[Tensor, " p"], tables: _Errors) -> Splines:
    across, along, bias = (CubicSpline(s.numpy(), table.numpy()) for table in tables)
    return across, along, bias


@lru_cache(maxsize=64)
def _opposite_splines(reach: float, lengths: tuple[int, ...]) -> Splines:
    """Mean squares over s² and the bias over s. Half the difference of the errors at scores sg and −sg has half the mean square of one
    less half the mean of their product, and the same bias. As s → 0 it is s times the empirical covariance of g and the value."""
    s = torch.linspace(0, reach, SPREADS, dtype=torch.float64)[1:]
    across, along, bias = _one_head(s, lengths)
    pairs = [pair_moments(gaussian_pair(one, one, -1.0, max(lengths)), lengths) for one in s.tolist()]
    along = (along - torch.stack([inside[:, 0, 0] for inside, _ in pairs])) / 2
    across = (across - torch.stack([alone for _, alone in pairs])) / 2
    L = torch.tensor(lengths, dtype=torch.float64)
    at_zero, square = _Errors((L - 1) / L**2, (2 * L - 1) / L**2, -1 / L), s.square()[:, None]
    tables = (across / square, along / square, bias / s[:, None])
    whole = _Errors(*(torch.cat([zero[None], one]) for zero, one in zip(at_zero, tables, strict=True)))
    return _cubic(torch.cat([s.new_zeros(1), s]), whole)


def _exact_linear(task: LinearRegression, theta: Block, lengths: tuple[int, ...]) -> FiniteRisk:
    """½ tr Σ_q(P − 2MᵀΣP + Mᵀ(E hhᵀ)M), M = bA."""
    M, both = theta.b * theta.A, task.cov @ task.vector_cov
    risks = [
        float((task.query_cov @ (task.vector_cov - 2 * M.T @ both + M.T @ _spread(task, L) @ M)).trace()) / 2
        for L in lengths
    ]
    risk = torch.tensor(risks, dtype=torch.float64)
    return FiniteRisk(lengths, risk, torch.zeros_like(risk), "exact")


def _spread(task: LinearRegression, length: int) -> Float[Tensor, "d d"]:
    """E hhᵀ of h = (1/L) Σ y_i x_i."""
    both = task.cov @ task.vector_cov
    return (1 + 1 / length) * both @ task.cov + (float(both.trace()) + task.noise) / length * task.cov


def _exact(
    task: LinearRegression, theta: Block, lengths: tuple[int, ...], attention: Attention
) -> FiniteRisk:
    """With h = ΣAx_q, the infinite prediction is b wᵀh and misses by wᵀe, e = bh − x_q. Over tokens the prediction errs by
    bias along h/s, and with variance from y's part along the scores, b²(wᵀh)²/s², and from the rest of b²(wᵀΣw + noise)."""
    P, A, b = task.vector_cov, theta.A, theta.b
    x = _quasi_normal(task.dim) @ torch.linalg.cholesky(task.query_cov).T
    h = x @ A.T @ task.cov
    s = (h * (x @ A.T)).sum(-1).clamp_min(0).sqrt()
    errors = _Errors.at(s, lengths, attention)
    unit = h / s.clamp_min(1e-300)[:, None]
    share = b**2 * ((unit @ P) * unit).sum(-1, keepdim=True)
    total = b**2 * (float((task.cov @ P).trace()) + task.noise)
    miss = b * h - x
    squares = errors.across * (total - share) + errors.along * share
    cross = 2 * b * errors.bias * ((miss @ P) * unit).sum(-1, keepdim=True)
    risks = (squares + cross + ((miss @ P) * miss).sum(-1, keepdim=True)) / 2
    means = risks.reshape(SCRAMBLES, POINTS, -1).mean(1)
    method = f"exact over prompts and task vectors, {SCRAMBLES} × {POINTS:,} quasi-random queries"
    return FiniteRisk(lengths, means.mean(0), means.std(0) / SCRAMBLES**0.5, method)


@lru_cache(maxsize=8)
def _quasi_normal(dim: int) -> Float[Tensor, "p d"]:
    """Independent scrambles of Sobol points, one after the other, as standard normal vectors."""
    return torch.cat(list(normal_sets(dim, POINTS, SCRAMBLES)))


def sampled_losses(
    task: InContextTask,
    weights: Weights,
    lengths: tuple[int, ...],
    count: int,
    generator: torch.Generator,
    attention: Attention = "softmax",
    progress: Progress | None = None,
) -> Float[Tensor, "count lengths"]:
    """The loss on each prompt, cut to each length."""
    at_once = max(1, TOKENS_AT_ONCE // lengths[-1])
    losses = []
    for start in range(0, count, at_once):
        batch = task.draw(min(at_once, count - start), lengths[-1], generator)
        scores = (batch.tokens @ (batch.query @ weights.U.T)[..., None])[..., 0]
        values = batch.tokens @ weights.V.T
        outputs = [(_weights(scores[:, None, :size], attention) @ values[:, :size])[:, 0] for size in lengths]
        losses.append(torch.stack([task.risk(task.read(output), batch.target) for output in outputs], -1))
        if progress is not None:
            progress(min(start + at_once, count), count)
    return torch.cat(losses)


def _weights(scores: Float[Tensor, "... L"], attention: Attention) -> Float[Tensor, "... L"]:
    """What each token counts."""
    if attention == "linear":
        return scores / scores.shape[-1]
    return scores.softmax(-1) if attention == "softmax" else (scores.softmax(-1) - (-scores).softmax(-1)) / 2


@dataclass(frozen=True, eq=False, repr=False)
class StationaryPoint:
    """A point (A, b) where the gradient of the infinite-prompt risk is zero."""

    block: Block
    risk: float
    kind: str
    least_curvature: float
    """Least eigenvalue of the Hessian in (A, b)."""

    def to_dict(self) -> dict[str, Any]:
        fields = record(self)
        return {**fields.pop("block"), **fields}

    def __repr__(self) -> str:
        return f"StationaryPoint({self.kind}, risk {self.risk:.4g}, least curvature {self.least_curvature:.4g}, {self.block})"


def endpoint(task: InContextTask, conserved: float | int = 0.0) -> Block:
    """The zero-risk point with b > 0 on the leaf ‖A‖_F² − b² = c:

        A = Σ⁻¹/b,   b² = (√(c² + 4 tr Σ⁻²) − c)/2,   so b = tr(Σ⁻²)^{1/4} from a balanced start (c = 0).

    It depends on Σ alone, not on the noise, the query law or the law of the task vector.

    >>> from attnlimit.icl import LinearRegression
    >>> endpoint(LinearRegression(16)).b
    2.0
    """
    inverse = torch.linalg.inv(regression(task, "endpoint").cov)
    c = float(conserved)
    if not math.isfinite(c):
        raise InputError(f"conserved must be a finite number, ‖A‖² − b² at the start, got {conserved!r}.")
    total = 4 * float(inverse.square().sum())
    # the root that does not cancel
    root = math.hypot(c, math.sqrt(total))
    b = math.sqrt((root - c) / 2 if c <= 0 else total / (2 * (root + c)))
    return Block(inverse / b, b)


def stationary_points(task: InContextTask, conserved: float | int = 0.0) -> list[StationaryPoint]:
    """All stationary points of R(A, b) on the leaf ‖A‖_F² − b² = c, up to the choice of a direction.

    ∂R/∂A = bΣP(bΣA − I)Σ_q vanishes where bΣA = I, the minima (±A, ±b) of risk 0, or where b = 0. There
    ∂R/∂b = −⟨A, ΣPΣ_q⟩ must vanish too, and R bends down along (ΣPΣ_q, b): strict saddles of risk ½ tr Σ_qP. With c = 0
    this is the origin; with c > 0 all A of norm √c orthogonal to ΣPΣ_q (one is returned); with c < 0 there are none.
    """
    task = regression(task, "stationary_points")
    best = endpoint(task, conserved)
    blocks = [(best, "minimum"), (Block(-best.A, -best.b), "minimum")]
    if conserved >= 0 and not (conserved > 0 and task.dim == 1):
        slope = task.cov @ task.vector_cov @ task.query_cov
        across = torch.zeros_like(slope)
        # orthogonal to the slope, entry against entry
        across[0, -1], across[-1, 0] = slope[-1, 0], -slope[0, -1]
        if not bool(across.any()):
            across[0, -1] = 1.0
        size = math.sqrt(conserved) / float(torch.linalg.matrix_norm(across))
        blocks.append((Block(size * across, 0.0), "strict saddle"))
    return [_described(task, block, kind) for block, kind in blocks]


def _described(task: LinearRegression, block: Block, kind: str) -> StationaryPoint:
    d = task.dim

    def risk(theta: torch.Tensor) -> torch.Tensor:
        U = torch.nn.functional.pad(theta[:-1].reshape(d, d), (0, 1, 0, 1))
        V = torch.nn.functional.pad(theta[-1:, None], (d, 0, d, 0))
        return infinite_risk(task, U, V)

    theta = torch.cat([block.A.flatten(), block.A.new_tensor([block.b])])
    hessian = torch.autograd.functional.hessian(risk, theta)
    return StationaryPoint(block, float(risk(theta)), kind, float(torch.linalg.eigvalsh(hessian)[0]))


def tuned(task: InContextTask, length: Count, attention: Attention = "softmax") -> tuple[Block, float]:
    """The block (A, b) of least exact risk R_L, and that risk.

    Softmax, and two opposite heads: the least among A = α(Σ + λ I)⁻¹/b. With an infinite prompt all b are alike once bΣA = I. With L tokens they are
    not: a large b lowers the scores, so that more tokens count, but it also multiplies the noise of their plain mean. λ and α
    shrink as ridge regression does. Opposite heads have no plain mean, and a large b costs them nothing: as b → ∞ they are linear
    attention with the keys' mean taken off.

    Linear: the prediction is b hᵀA x_q with h = (1/L) Σ y_i x_i, so the best bA is (E hhᵀ)⁻¹ΣP, where for Gaussian tokens
    E hhᵀ = (1 + 1/L) ΣPΣ + (tr ΣP + noise)/L Σ. Its risk ½ tr Σ_q(P − PΣ(E hhᵀ)⁻¹ΣP) is the least of all linear heads: what else
    (U, V) can add is even in w, which the target is odd in.

    >>> from attnlimit.icl import LinearRegression
    >>> task = LinearRegression(5, noise=0.1)
    >>> [round(tuned(task, 100, attention)[1], 4) for attention in ("softmax", "opposite", "linear")]
    [0.0793, 0.0308, 0.0305]
    """
    task = regression(task, "tuned")
    return _linear(task, length) if attention == "linear" else _searched(task, length, attention)


def _linear(task: LinearRegression, length: Count) -> tuple[Block, float]:
    both = task.cov @ task.vector_cov
    best = torch.linalg.solve(_spread(task, length), both)
    b = float(best.norm()) ** 0.5  # balanced: ‖A‖ = b
    return Block(best / b, b), float((task.query_cov @ (task.vector_cov - both.T @ best)).trace()) / 2


def _searched(task: LinearRegression, length: int, attention: Attention) -> tuple[Block, float]:
    if length == 1:  # it weighs 1 whatever A is, and its answer says nothing of another query's: none is best
        return Block(torch.zeros_like(task.cov), 0.0), float((task.query_cov @ task.vector_cov).trace()) / 2
    start = endpoint(task)
    eye, size = torch.eye(task.dim, dtype=torch.float64), float(task.cov.trace()) / task.dim

    def block(parameters: np.ndarray) -> Block:
        log_b, log_alpha, log_ridge = (float(p) for p in parameters)
        log_b = min(log_b, math.log(MOST_B * start.b))
        b, ridge = math.exp(log_b), size * math.exp(log_ridge)
        return Block(math.exp(log_alpha - log_b) * torch.linalg.inv(task.cov + ridge * eye), b)

    def objective(parameters: np.ndarray) -> float:
        return math.log(float(finite_risk(task, block(parameters), [length], attention=attention).risk[0]))

    first = np.array(
        [
            math.log(start.b) + (0.3 if attention == "softmax" else 1.0),
            0.0,
            math.log(max(task.dim / length, 1e-9)),
        ]
    )
    found = minimize(objective, first, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6})
    return block(found.x), math.exp(float(found.fun))


def long_prompt_constant(task: InContextTask, attention: Attention = "softmax") -> float:
    """lim L·R_L of the best weights (A, b), so that a prompt of c/ε tokens has risk ε.

    With τ = tr ΣP + noise, the variance of an answer y, q = xᵀΣ⁻¹x and x ~ N(0, Σ_q),

        linear    ½ E [τ q + xᵀPx]
        softmax   ½ min_b E e^{q/b²} [τ b² + xᵀPx]
        opposite  ½ inf_b E [τ b² sinh(q/b²) + cosh(q/b²) xᵀPx], which is that of linear attention, as b → ∞:

    the central limit theorem at A = Σ⁻¹/b, where the infinite-prompt risk is zero and b is free. A larger b flattens the softmax, but
    multiplies the noise of the plain mean that is then left in it. So one softmax head is worse than linear attention by a factor that
    does not go away: ((d + 2)/d)^{d/2+1} for Σ = Σ_q where noise outweighs the signal, 4 in two dimensions and e in many, and about as
    much otherwise. (In one dimension a head may also weigh tokens by y and read x, so that this block, 5.2 times as bad, need not be the
    best head.) Of two opposite heads the plain mean cancels, and with it the price.

    >>> from attnlimit.icl import LinearRegression
    >>> task = LinearRegression(5, noise=0.1)
    >>> [round(long_prompt_constant(task, attention), 3) for attention in ("softmax", "opposite", "linear")]
    [10.401, 3.25, 3.25]
    """
    task = regression(task, "long_prompt_constant")
    tau = float((task.cov @ task.vector_cov).trace()) + task.noise
    root = torch.linalg.cholesky(task.query_cov)
    spreads, turn = torch.linalg.eigh(root.mT @ torch.linalg.solve(task.cov, root))
    weights = (turn.mT @ root.mT @ task.vector_cov @ root @ turn).diagonal()
    if attention != "softmax":
        return float(tau * spreads.sum() + weights.sum()) / 2

    def log_constant(excess: float) -> float:
        """At b² = 2 max(spreads) + e^excess, above which the expectation is finite."""
        square = 2 * float(spreads.max()) + math.exp(excess)
        inverse = 1 / (1 - 2 * spreads / square)
        return float(inverse.log().sum() / 2 + (tau * square + weights @ inverse).log())

    middle = math.log(float(spreads.sum()))
    found = minimize_scalar(
        log_constant, bounds=(middle - 10, middle + 10), method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(float(found.fun)) / 2
