"""The covariance of the outputs of fresh queries: its second moment exactly, and what the mean takes off by Monte Carlo."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.designs.sampling import PLAIN
from attnlimit.errors import InputError
from attnlimit.exact.error import as_sizes
from attnlimit.exact.second_moment import AVERAGED, second_moment_sets
from attnlimit.measures import Measure
from attnlimit.rates import ErrorCurve
from attnlimit.sampling.replicates import replicate
from attnlimit.sampling.statistic import Fresh, set_up

QUERIES = 256
KEYS, MOST_REPLICATES, LEAST_REPLICATES = 2**18, 64, 8
"""Tokens drawn for each of the sets of pairs, in so many replicates."""
MOST_KEYS = 100_000


def output_covariance_error(head: Head, law: Measure, n: int | Sequence[int]) -> ErrorCurve:
    """(E‖Cov_n − Cov‖²_F)^{1/2} for the covariance Cov_n over fresh queries x ~ law of their outputs Γ_n(x), which read the same n
    independent tokens. With the second moment P_n about the mean of the limit and z the error of the mean output, Cov_n = P_n − zzᵀ and

        E‖Cov_n − Cov‖² = E‖P_n − P‖² + E[‖z‖⁴ − 2zᵀ(P_n − P)z].

    The first, all but a part of order 1/n, is that of `second_moment_error`, for Gaussian tokens and centred scores; the second is measured
    on 64 to 512 sets of n ≤ 100,000 tokens by 256 queries each, without bias. The standard error is that of both.

    >>> from attnlimit import Gaussian, Head
    >>> output_covariance_error(Head([[0.5]]), Gaussian(dim=1), [100]).error
    tensor([0.0728], dtype=torch.float64)
    """
    sizes = sorted(set(as_sizes(n)))
    if sizes[-1] > MOST_KEYS:
        raise InputError(
            f"output_covariance_error takes n ≤ {MOST_KEYS:,}, got {sizes[-1]:,}: so many tokens are drawn. Use second_moment_error, which is "
            "the same but for a part of order 1/n."
        )
    second, scale = second_moment_sets(head, law, sizes)
    setup = set_up(head, law, sizes, PLAIN, Fresh(QUERIES))
    centre = setup.limit.pushforward(law).mean.double()
    generator = torch.Generator(law.device).manual_seed(0)
    replicates = min(MOST_REPLICATES, max(LEAST_REPLICATES, KEYS // sizes[-1]))
    drawn = [
        [by_the_mean(one.outputs.double() - centre, one.limits.double() - centre) for one in replicate(setup, generator)]
        for _ in range(len(second) * replicates)
    ]  # fmt: skip
    taken = torch.tensor(drawn, dtype=torch.float64).unflatten(0, (len(second), -1)).mean(1)
    method = f"second moment {AVERAGED}; what the mean takes off by Monte Carlo, {len(drawn)} replicates, {QUERIES} queries each"
    return ErrorCurve.of_squares(sizes, second + taken, method, scale)


def by_the_mean(y: Float[Tensor, "m dv"], g: Float[Tensor, "m dv"]) -> float:
    """‖z‖⁴ − 2zᵀ(P_n − P)z from m queries, their outputs y and limits g about the limit's mean: with e = y − g the averages over different i, j,
    k, l of (e_i·e_j)(e_k·e_l) and of e_iᵀ(g_j e_jᵀ + e_j g_jᵀ + e_j e_jᵀ)e_k, which have no bias."""
    e, m = y - g, len(y)
    own, cross = e @ e.T, e @ g.T
    own.fill_diagonal_(0), cross.fill_diagonal_(0)
    rows, squares = own.sum(1), own.square().sum()
    three = 2 * (cross.sum(0) @ rows - (cross * own).sum()) + rows.square().sum() - squares
    four = rows.sum() ** 2 - 4 * rows.square().sum() + 2 * squares
    return float(four / (m - 3) - 2 * three) / (m * (m - 1) * (m - 2))
