"""One query's mean square error for many kept sets and numbers of drawn keys at once.

A query may keep any of several sets S of keys and draw different ones from the rest, each weighing for R/n of them. Keys
that are in the same of these sets form a class, and all that is needed of a rest, at each t, are sums over its classes: one pass over the keys serves all sets. Shares n/R in powers of 2 and t in
steps of 2 make t·R/n fall on one grid, where 1 − e^{−2y} = a(2 − a) with a = 1 − e^{−y}: the exponentials are shared by all n, and made by
products. Keys of a class whose scores differ by at most 0.1 count as one atom, with Σ1, Σw, Σwu and Σw²‖u‖² as they are.

Of the kernel the result is f·g/h, with f the error of n independent keys, g that of a coin for each key and h that of a Poisson number
of independent keys, which one pass gives for any number of sets; n need not be whole. It is an approximation: against the exact
errors of heads with scores of deviation 0.3 to 4 and n = R/8 to R/2 it was off by up to 41 % for 8 keys, 20 % for 16, 8 % for 32,
2 % for 64, and 3 % for more (1 % up to deviation 2.5), atoms included. Without numba the errors are exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.designs import Different, Sampling
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import prepare_seen
from attnlimit.numerics.compiled import has_numba, run_compiled

LOW, POINTS, STEP = -7.0, 24, math.log(2)
"""Of the grid of log t, to e^9; weights sum to 1. Steps of log 2 are good to 1e-4."""
SPACE = Sampling(draw=Different(), weight="rest")


def shares(keys: int) -> Float[Tensor, " k"]:
    """2^{−½}, ½, ¼, … down to about two of so many keys."""
    octaves = max(1, math.ceil(math.log2(max(keys, 4) / 2)))
    return torch.tensor([0.5, *range(1, octaves + 1)], dtype=torch.float64).neg().exp2()


def nested_squares(
    seen: Seen, kept: Bool[Tensor, "sets m n"], share: Float[Tensor, " k"]
) -> Float[Tensor, "m sets k"]:
    """E‖Γ_n − Γ‖² with n = share·R different keys of the R that are left; nan where that is less than one key. There may
    be 60 sets."""
    hidden = torch.zeros_like(kept[0]) if seen.hidden is None else seen.hidden
    rest = ~(kept | hidden)
    if not has_numba() or seen.scores.device.type != "cpu":
        return _one_by_one(seen, rest, share)
    scores = seen.scores.double().masked_fill(hidden, -torch.inf)
    together = scores if seen.sink is None else torch.cat([scores, seen.sink.double()[:, None]], 1)
    log_weight = together.log_softmax(1)[:, : scores.shape[1]].contiguous()
    values = seen.values.double().expand(len(scores), -1, -1)
    error = values - (log_weight.exp()[:, None] @ values)
    bits = torch.arange(len(kept))[:, None, None]
    patterns, of_key = torch.unique((rest.long() << bits).sum(0), return_inverse=True)
    belongs = (patterns[:, None] >> bits[:, 0, 0]) & 1 == 1
    order = scores.argsort(1)
    order = order.gather(1, of_key.gather(1, order).argsort(dim=1, stable=True))
    steps = (-2 * share.log() / STEP).round().long()  # in half octaves
    rows = 1 + (2 + len(share)) * POINTS + int(steps.max())
    sums = scores.new_zeros(len(scores), len(patterns), rows * (2 + values.shape[2]))
    found = scores.new_zeros(len(scores), len(kept), len(share))
    inputs = (log_weight, error, of_key, order, steps)
    run_compiled(_accumulate, len(scores), *(one.contiguous() for one in inputs), sums)
    run_compiled(_product, len(scores), belongs.contiguous(), steps, sums, found)
    return found


def _one_by_one(
    seen: Seen, rest: Bool[Tensor, "sets m n"], share: Float[Tensor, " k"]
) -> Float[Tensor, "m sets k"]:
    """Exactly, one set at a time and without atoms. A whole number of keys is drawn, and e n/(R − n) is a straight line between."""
    number = rest.sum(2).double()
    found = torch.zeros(*number.shape, len(share), dtype=torch.float64, device=rest.device)
    for place, (left, count) in enumerate(zip(rest, number, strict=True)):
        some = (count > 0).nonzero()[:, 0]
        if len(some):
            here, total = seen[some], count[some, None]
            n = share.to(count) * total
            below = (n + 1e-9).floor().clamp_min(1)
            above = torch.minimum(below + 1, total - 1).maximum(below)
            wide = Seen(here.scores.double(), here.values.double(), here.hidden, here.sink, None, ~left[some])
            moments = prepare_seen(wide, int(above.max()) + 1, SPACE, binned=False).moments
            low, high = (moments(m)[0] * m / (total - m).clamp_min(1e-9) for m in (below, above))
            part = ((n - below) / (above - below).clamp_min(1e-9)).clamp(0, 1)
            found[place, some] = (low + part * (high - low)) * (total - n) / n
    few = share.to(number) * number[..., None] < 1 - 1e-9
    return found.masked_fill(few & (number[..., None] > 0), torch.nan).transpose(0, 1)


def _accumulate(
    start: int,
    stop: int,
    log_weight: Any,
    error: Any,
    of_key: Any,
    order: Any,
    steps: Any,
    sums: Any,
) -> None:
    """By class: R, Σw and Σwu; at each t 1 − e^{−y}, y²‖u‖²e^{−y} and y u e^{−y} for independent keys; at each n and t log q,
    (r − r²) y²‖u‖² and r y u for coins."""
    keys, p, classes, sizes, points = error.shape[1], error.shape[2], sums.shape[1], steps.shape[0], 24
    grid = 2 * points + steps.max()
    at, absent = np.exp(-7.0 + 0.5 * math.log(2.0) * np.arange(grid)), np.empty(grid)
    chance, value = np.exp(-0.5 * math.log(2.0) * steps), np.empty(p)
    for i in range(start, stop):
        left, place = np.ones((classes, sizes, points)), 0
        found = sums[i].reshape(classes, 1 + grid + sizes * points, 2 + p)
        while place < keys:
            first, kind = log_weight[i, order[i, place]], of_key[i, order[i, place]]
            weight, many, square = 0.0, 0, 0.0
            value[:] = 0.0
            while place < keys:
                j = order[i, place]
                if of_key[i, j] != kind or log_weight[i, j] - first > 0.1:
                    break
                place += 1
                w, norm = math.exp(log_weight[i, j]), 0.0
                for c in range(p):
                    value[c] += w * error[i, j, c]
                    norm += error[i, j, c] ** 2
                weight += w
                many += 1
                square += w * w * norm
            if weight == 0.0:  # hidden keys
                continue
            own = found[kind]
            own[0, 0] += many
            own[0, 1] += weight
            for c in range(p):
                own[0, 2 + c] += value[c]
            for t in range(grid):
                absent[t] = (
                    -math.expm1(-at[t] * weight / many) if t < 2 else absent[t - 2] * (2.0 - absent[t - 2])
                )
                pull = (1.0 - absent[t]) * at[t]
                own[1 + t, 0] += many * absent[t]
                own[1 + t, 1] += pull * at[t] * square
                for c in range(p):
                    own[1 + t, 2 + c] += pull * value[c]
            for b in range(sizes):
                for t in range(points):
                    f, row = 2 * t + steps[b], own[1 + grid + b * points + t]
                    q = 1.0 - chance[b] * absent[f]
                    r = chance[b] * (1.0 - absent[f]) / q
                    pull = r * at[f]
                    row[1] += (1.0 - r) * pull * at[f] * square
                    for c in range(p):
                        row[2 + c] += pull * value[c]
                    power, product = many, left[kind, b, t]
                    while power:
                        product *= q if power & 1 else 1.0
                        q *= q
                        power >>= 1
                    if product < 1e-150:
                        row[0] += math.log(max(product, 1e-300))
                        product = 1.0
                    left[kind, b, t] = product
        found[:, 1 + grid :, 0] += np.log(left).reshape(classes, sizes * points)


def _product(start: int, stop: int, rest: Any, steps: Any, sums: Any, out: Any) -> None:
    """f·g/h of every set, from the sums over its classes: totals, `once` and `coins` one after the other."""
    classes, sets, sizes, points = rest.shape[0], rest.shape[1], steps.shape[0], 24
    grid = 2 * points + steps.max()
    each, width = sums.shape[2], sums.shape[2] // (1 + grid + sizes * points)
    at = np.exp(-7.0 + math.log(2.0) * np.arange(points))
    chance = np.exp(-0.5 * math.log(2.0) * steps)
    for i in range(start, stop):
        for s in range(sets):
            flat = np.zeros(each)
            for kind in range(classes):
                if rest[kind, s]:
                    for e in range(each):
                        flat[e] += sums[i, kind, e]
            every = flat.reshape(-1, width)
            total, some, by_coin = every[0], every[1 : 1 + grid], every[1 + grid :]
            left, kept = total[0], max(1.0 - total[1], 0.0)
            own = (total[2:] ** 2).sum()
            for b in range(sizes):
                n, f, g, h = chance[b] * left, 0.0, 0.0, 0.0
                if left == 0.0 or n < 1.0 - 1e-9:
                    out[i, s, b] = 0.0 if left == 0.0 else np.nan
                    continue
                for t in range(points):
                    one, coin = some[2 * t + steps[b]], by_coin[b * points + t]
                    if at[t] * kept + n * one[0] / left > 40.0:  # they are e^{−40} times less, from here on
                        break
                    absent, noise, pull, cross, coin_pull = one[0] / left, one[1] / left, 0.0, 0.0, coin[1]
                    for c in range(2, len(total)):
                        pull += one[c] ** 2
                        cross -= at[t] * total[c] * one[c]
                        coin_pull += (coin[c] - at[t] * total[c]) ** 2
                    pull, linear = pull / left**2, 2.0 * cross / left + noise
                    kept_square, by_kept, phi = at[t] ** 2 * own, at[t] * kept, 1.0 - absent
                    h += math.exp(-by_kept - n * absent) * (kept_square + n * linear + n * n * pull)
                    g += math.exp(coin[0] - by_kept) * coin_pull
                    if phi > 1e-300:
                        terms = kept_square + n * linear / phi + n * (n - 1.0) * pull / phi**2
                        f += math.exp(n * math.log1p(-absent) - by_kept) * terms
                if h > 0.0:
                    out[i, s, b] = math.log(2.0) * max(f, 0.0) * g / h
