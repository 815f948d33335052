"""The exact error curve of a real-size head (64 queries, 16,320 keys, d_h = 32, 24 values of n), in attention passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlimit import Empirical, Head, exact_error
from benchmarks._figures import figure
from benchmarks._memory import HOW, peak_growth
from benchmarks._timing import compare

QUERIES, KEYS, DIM, POINTS = 64, 16_320, 32, 24


SPREADS = (2.0, 10.0)
"""Standard deviation of a query's scores: a head that is neither flat nor peaked, and a peaked one."""


def head_data(keys: int, spread: float = SPREADS[0]) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, DIM, generator=g) for rows in (QUERIES, keys, keys))
    return q * spread / DIM**0.5, k, v


def curve_sizes(keys: int) -> list[int]:
    return sorted({round(2 * (keys / 2) ** (i / (POINTS - 1))) for i in range(POINTS)})


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One fused call."""
    return scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], scale=1.0)[0, 0]


def memory_of_curve(keys: int) -> Callable[[], None]:
    q, k, v = head_data(keys)
    population, head = Empirical(k, v), Head(torch.eye(DIM))
    return lambda: exact_error(head, population, curve_sizes(keys), q) and None


def run(quick: bool) -> dict[str, object]:
    keys = 4096 if quick else KEYS
    q, k, v = head_data(keys)
    population, head = Empirical(k, v), Head(torch.eye(DIM))
    sizes = curve_sizes(keys)
    binned = exact_error(head, population, sizes, q)
    every = exact_error(head, population, sizes, q[:4], binned=False)
    difference = float((binned.mean_square[:4] / every.mean_square - 1).abs().max())

    def sampled(replicates: int = 4) -> list[Tensor]:
        """Monte Carlo of the same curve: `replicates` subsamples at each n."""
        draws = (torch.randint(keys, (n,)) for n in sizes for _ in range(replicates))
        return [attention(q, k[pick], v[pick]) for pick in draws]

    peaked = head_data(keys, SPREADS[1])[0]
    calls = {
        "one pass": lambda: attention(q, k, v),
        "exact": lambda: exact_error(head, population, sizes, q),
        "peaked": lambda: exact_error(head, population, sizes, peaked),
        "sampled": sampled,
    }
    times = compare(calls, base="one pass", rounds=9 if quick else 41)
    exact, broad, four = times["exact"], times["peaked"], times["sampled"]
    # a relative standard error e of a mean square needs about 2/e² replicates
    replicates = 2 / max(difference, 1e-4) ** 2
    return {
        "setting": f"{QUERIES} queries × {keys:,} keys × d_h = {DIM}, {len(sizes)} values of n, float32",
        "figures": [
            figure("time, one SDPA = 1", exact.median, "×", at_most=10, **exact.details()),
            figure("the same, score spread 10", broad.median, "×", at_most=10, **broad.details()),
            figure(
                "time of Monte Carlo as precise", four.median / 4 * replicates, "×", replicates=replicates
            ),
            figure("largest difference from no bins", difference, "relative", at_most=5e-3),
            figure(
                "extra memory", peak_growth("exact_population", "memory_of_curve", keys)[0], "MB", how=HOW
            ),
        ],
    }
