"""The published Gaussian experiment: time to a given standard error of the fitted slope, against the dense loop.

d = 50, Σ = 0.1 I, Q, K and V with entries N(0, 1/d), A scaled to horizon H, self-attention, 12 sizes n from 1,000 to
30,000. The loop draws n tokens afresh for every n and replicate and evaluates all n queries by dense softmax. Ours
draws 30,000 tokens a replicate, evaluates m queries and takes off what the tokens' own moments explain. A slope over R replicates has variance v/R in time R·t, so
the time to a given standard error is in the ratio of t·v.

At fresh queries, which are none of the tokens, the mean and the second moment have exact curves, where only pairs of queries are sampled, and
the covariance is the second moment less a part of order 1/n (0.12 of its square at n = 1,000 and H = 0.5), which alone is sampled. What is compared
is the time of one such curve with that of as many loops as its slope is precise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import hypot
from time import perf_counter

import torch
from torch import Tensor

from attnlimit import Gaussian, Head, mean_output_error, output_covariance_error
from attnlimit.exact.two_queries import ALLOWED
from attnlimit.sampling import Own, measure_convergence
from attnlimit.sampling.fitted import LEAST_REPLICATES
from benchmarks._figures import figure
from benchmarks._memory import HOW, peak_growth
from benchmarks._timing import compare

DIM, VARIANCE, POINTS = 50, 0.1, 12
LAW = Gaussian(cov=torch.tensor(VARIANCE), dim=DIM)
STATISTICS = ("mean", "covariance")
EXACT = {"mean": mean_output_error, "covariance": output_covariance_error}
"""Curves at fresh queries."""
SCALE_ONE = 0.27
"""The horizon of random Q and K themselves, to two digits. Larger ones show where the gain of sampling ends, since the queries then
differ too much for any control: there exact curves take over."""
QUERIES = {
    (SCALE_ONE, "mean"): 48,
    (SCALE_ONE, "covariance"): 96,
    (0.5, "mean"): 64,
    (0.5, "covariance"): 256,
    (1.0, "mean"): 192,
    (1.0, "covariance"): 256,
}
"""m for each horizon H and statistic: about where time × variance is least."""
SCORES_AT_ONCE = 2**25


def run(quick: bool) -> dict[str, object]:
    top, rounds, replicates = (3000, 2, 8) if quick else (30_000, 3, 32)
    sizes = _sizes(top)
    loop = Loop(sizes, _head(1.0))
    ours = {(H, kind): Ours(sizes, _head(H), kind, m, replicates) for (H, kind), m in QUERIES.items()}
    calls: dict[str, Callable[[], object]] = {f"{H} {kind}": one for (H, kind), one in ours.items()}
    times = compare({"loop": loop, **calls}, base="loop", rounds=rounds)
    figures = []
    for (H, kind), one in ours.items():
        ratio = times[f"{H} {kind}"].median / replicates
        spread, how = _loop_variance(loop, one, quick)
        figures.append(
            figure(
                f"time to a given error of the {kind} slope, H = {H:g}",
                spread / (one.variance() * ratio),
                "× faster",
                **({} if quick or H != SCALE_ONE else {"at_least": 100}),
                time_ratio_per_replicate=1 / ratio,
                slope_variance_ours=one.variance(),
                slope_variance_loop=spread,
                slope=one.slope(),
                replicates=len(one.squares) * replicates,
                m=one.m,
                how=f"(t·v of the loop)/(t·v of ours); v of ours from its rows, v of the loop {how}",
            )
        )
        if H != SCALE_ONE:
            base = min(times[f"{H} {kind}"].base)
            figures.append(_exact(kind, H, sizes, spread, base, None if quick else 100))
    memory, _ = peak_growth("gaussian_experiment", "one_replicate", top)
    agreement = [_agreement(loop, ours[1.0, kind], i) for i, kind in enumerate(STATISTICS)]
    figures.append(
        figure("difference of the two curves, H = 1", max(agreement), "standard errors", at_most=5)
    )
    figures.append(figure("peak memory of ours", memory / 1000, "GB", at_most=2, how=HOW))
    return {
        "setting": f"{POINTS} n from {sizes[0]:,} to {top:,}, d = {DIM}, float32",
        "sizes": sizes,
        "figures": figures,
    }


def _exact(
    kind: str, horizon: float, sizes: list[int], spread: float, loop_seconds: float, target: float | None
) -> dict[str, object]:
    """The slope's error: its spread over the independent sets of pairs of queries that the curve is averaged over, and the most that
    the value at a pair may be wrong by at each n, as if all pulled the slope the same way."""
    start = perf_counter()
    curve = EXACT[kind](_head(horizon), LAW, sizes)
    seconds = perf_counter() - start
    if curve.rows is None:
        raise RuntimeError("Some set of pairs says nothing of the error.")
    contrast, squares = _contrast(sizes), curve.rows.square()
    spread_of_sets = float((squares / squares.mean(0) @ contrast / 2).std()) / len(squares) ** 0.5
    error = hypot(spread_of_sets, ALLOWED * float(contrast.abs().sum()) / 2)
    return figure(
        f"time to a given error of the {kind} slope at fresh queries, exact, H = {horizon:g}",
        spread * loop_seconds / (error**2 * seconds),
        "× faster",
        at_least=target,
        slope=float(contrast @ curve.error.log()),
        slope_error=error,
        seconds=seconds,
        method=curve.method,
        how=f"v of the loop is that of the {kind} in self-attention; that of the curve from its sets of pairs",
    )


def one_replicate(top: int) -> Callable[[], None]:
    """Work whose memory is measured."""
    ours = Ours(_sizes(top), _head(1.0), "covariance", 256, 2)
    return lambda: ours()


def _sizes(top: int) -> list[int]:
    return [round(top / 30 * 30 ** (i / (POINTS - 1))) for i in range(POINTS)]


def _head(horizon: float) -> Head:
    generator = torch.Generator().manual_seed(0)
    Q, K, V = torch.randn(3, DIM, DIM, generator=generator) / DIM**0.5
    A = K.T @ Q
    return Head(A * horizon / (VARIANCE * torch.linalg.matrix_norm(A, 2)), V)


@dataclass
class Ours:
    """Each call measures `replicates` more of them."""

    sizes: list[int]
    head: Head
    statistic: str
    m: int
    replicates: int
    squares: list[Tensor] = field(default_factory=list)

    def __call__(self) -> None:
        curve = measure_convergence(
            self.head,
            LAW,
            self.sizes,
            statistic=self.statistic,
            replicates=self.replicates,
            queries=Own(self.m),
            generator=1000 + len(self.squares),
        )
        self.squares.append(curve.squares)

    def rows(self) -> Tensor:
        return torch.cat(self.squares)

    def relative(self) -> Tensor:
        """Squares over their mean, whose spread halved is that of log rms."""
        return self.rows() / self.rows().mean(0)

    def contrast(self) -> Tensor:
        """Of the weighted fit that `Convergence.fit` makes."""
        return _contrast(self.sizes, 1 / self.relative().var(0))

    def slope(self) -> float:
        return float(self.contrast() @ self.rows().mean(0).log() / 2)

    def variance(self) -> float:
        """Variance of the slope of log rms, times the number of replicates; sizes of a row are correlated."""
        return float((self.relative() @ self.contrast() / 2).var())

    def variance_if_independent(self) -> float:
        """The same if every size had tokens of its own."""
        return float((self.contrast().square() * self.relative().var(0)).sum() / 4)


@dataclass
class Loop:
    """Each call is one more replicate of the published loop: an independent draw for every n, all n queries."""

    sizes: list[int]
    head: Head
    errors: list[Tensor] = field(default_factory=list)
    """(2, sizes): norm of the error of the mean and of the covariance."""

    def __call__(self) -> None:
        generator = torch.Generator().manual_seed(
            500 + len(self.errors)
        )  # not the seed of the head's weights
        truth = self.head(LAW).pushforward(LAW)
        columns = []
        for n in self.sizes:
            y = _dense(LAW.sample(n, generator=generator).tokens, self.head)
            columns.append(
                torch.stack([(y.mean(0) - truth.mean).norm(), (torch.cov(y.T) - truth.covariance).norm()])
            )
        self.errors.append(torch.stack(columns, 1).double())

    def variance(self, which: int) -> float:
        """Variance of the slope of log mean norm, times the number of replicates. Sizes are independent; their
        relative variance hardly changes with n and is pooled, since replicates are few."""
        norms = torch.stack(self.errors)[:, which]
        relative = (norms / norms.mean(0)).var(0).mean()
        return float(_contrast(self.sizes).square().sum() * relative)


def _dense(x: Tensor, head: Head) -> Tensor:
    """softmax(x Aᵀ xᵀ) x Vᵀ, a block of queries at a time."""
    queries, values = x @ head.A.T, x @ head.V.T
    blocks = queries.split(max(1, SCORES_AT_ONCE // len(x)))
    return torch.cat([torch.softmax(block @ x.T, -1) @ values for block in blocks])


def _contrast(sizes: list[int], weights: Tensor | None = None) -> Tensor:
    """Coefficients of the (weighted) least-squares slope in log n."""
    x = torch.tensor(sizes, dtype=torch.float64).log()
    share = torch.ones_like(x) if weights is None else weights
    share = share / share.sum()
    x = x - share @ x
    return share * x / (share @ x.square())


def _loop_variance(loop: Loop, ours: Ours, quick: bool) -> tuple[float, str]:
    """The loop's v, by our own code with many queries, which is close to all of them; where the loop itself was run
    the smaller of the two, so that the ratio is not flattered."""
    # Rows of so few replicates at once are left without the control, as the loop's are.
    near = Ours(ours.sizes, ours.head, ours.statistic, 512 if quick else 2048, LEAST_REPLICATES - 1)
    for _ in range(1 if quick else 4):
        near()
    value, how = near.variance_if_independent(), f"from {near.m} queries, sizes as independent"
    if not torch.equal(ours.head.A, loop.head.A):
        return value, how
    direct = loop.variance(STATISTICS.index(ours.statistic))
    return (direct, f"from {len(loop.errors)} of its replicates") if direct < value else (value, how)


def _agreement(loop: Loop, ours: Ours, which: int) -> float:
    """Largest difference of the two mean squares over n, in standard errors of the difference."""
    rows, squares = ours.rows(), torch.stack(loop.errors)[:, which].square()
    pooled = (squares / squares.mean(0)).var(0).mean() * squares.mean(0).square() / len(squares)
    error = (rows.var(0) / len(rows) + pooled).sqrt()
    return float(((rows.mean(0) - squares.mean(0)) / error).abs().max())
