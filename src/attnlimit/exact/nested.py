"""One query's mean square error for many kept sets and numbers of drawn keys at once.

A query may keep any of several sets S of keys and draw different ones from the rest, each weighing for R/n of them. Keys
that are in the same of these sets form a class, and all that is needed of a rest, at each t, are sums over its classes: one pass over the keys serves all sets. Shares n/R in steps of powers of 2 and t in
steps of 2^½ make t·R/n fall on one grid, so that the exponentials are shared by all n as well. Keys of a class whose scores
differ by at most 0.1 count as one atom, with Σ1, Σw, Σwu and Σw²‖u‖² as they are.

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

STEP = math.log(2) / 2
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
    steps = (-share.log() / STEP).round().long()
    found = torch.zeros(len(scores), len(kept), len(share), dtype=torch.float64)
    inputs = (log_weight, error, of_key, order, belongs, steps)
    run_compiled(_accumulate, len(scores), *(one.contiguous() for one in inputs), found)
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
    rest: Any,
    steps: Any,
    out: Any,
) -> None:
    keys, p = error.shape[1], error.shape[2]
    classes, sets, sizes = rest.shape[0], rest.shape[1], steps.shape[0]
    low, points, step = -7.0, 46, math.log(2.0) / 2  # t from 1/1,100 to 5,000; weights sum to 1
    grid = points + steps.max()
    at = np.exp(low + step * np.arange(grid))
    chance = np.exp(-step * steps)
    weight, many, square = np.empty(keys), np.empty(keys), np.empty(keys)
    value, of_atom = np.empty((keys, p)), np.empty(keys, np.int64)
    for i in range(start, stop):
        atoms, first = 0, 0.0
        for place in range(keys):
            j = order[i, place]
            score = log_weight[i, j]
            if score == -np.inf:
                continue
            if atoms == 0 or of_atom[atoms - 1] != of_key[i, j] or score - first > 0.1:
                weight[atoms] = many[atoms] = square[atoms] = 0.0
                value[atoms] = 0.0
                of_atom[atoms] = of_key[i, j]
                first = score
                atoms += 1
            w, k, norm = math.exp(score), atoms - 1, 0.0
            for c in range(p):
                value[k, c] += w * error[i, j, c]
                norm += error[i, j, c] ** 2
            weight[k] += w
            many[k] += 1.0
            square[k] += w * w * norm
        # 1 − e^{−y}, y²‖u‖²e^{−y} and y u e^{−y} for independent keys; log q, (r − r²) y²‖u‖² and r y u for coins
        once = np.zeros((classes, grid, 2 + p))
        coins = np.zeros((classes, sizes, points, 2 + p))
        number, mass, drift = np.zeros(classes), np.zeros(classes), np.zeros((classes, p))
        for k in range(atoms):
            kind, count = of_atom[k], many[k]
            number[kind] += count
            mass[kind] += weight[k]
            for c in range(p):
                drift[kind, c] += value[k, c]
            for t in range(grid):
                y = at[t] * weight[k] / count
                absent = y - y * y / 2 if y < 1e-4 else -math.expm1(-min(y, 700.0))
                present, noise = 1.0 - absent, at[t] * at[t] * square[k]
                once[kind, t, 0] += count * absent
                once[kind, t, 1] += present * noise
                for c in range(p):
                    once[kind, t, 2 + c] += present * at[t] * value[k, c]
                for b in range(sizes):
                    here = t - steps[b]
                    if 0 <= here < points:
                        r = chance[b] * present / (1.0 - chance[b] * absent)
                        coins[kind, b, here, 0] += count * math.log1p(-chance[b] * absent)
                        coins[kind, b, here, 1] += r * (1.0 - r) * noise
                        for c in range(p):
                            coins[kind, b, here, 2 + c] += r * at[t] * value[k, c]
        for s in range(sets):
            left, light, own = 0.0, 0.0, np.zeros(p)
            for kind in range(classes):
                if rest[kind, s]:
                    left += number[kind]
                    light += mass[kind]
                    own -= drift[kind]
            if left == 0.0:
                continue
            kept = max(1.0 - light, 0.0)
            for b in range(sizes):
                n = chance[b] * left
                if n < 1.0 - 1e-9:
                    out[i, s, b] = np.nan
                    continue
                independent, by_coins, poisson = 0.0, 0.0, 0.0
                for t in range(points):
                    absent, noise, log_q, spread = 0.0, 0.0, 0.0, 0.0
                    for kind in range(classes):
                        if rest[kind, s]:
                            absent += once[kind, t + steps[b], 0]
                            noise += once[kind, t + steps[b], 1]
                            log_q += coins[kind, b, t, 0]
                            spread += coins[kind, b, t, 1]
                    pull, cross, own_square, coin_pull = 0.0, 0.0, 0.0, 0.0
                    for c in range(p):
                        one, other, kept_pull = 0.0, 0.0, at[t] * own[c]
                        for kind in range(classes):
                            if rest[kind, s]:
                                one += once[kind, t + steps[b], 2 + c]
                                other += coins[kind, b, t, 2 + c]
                        pull += one * one
                        cross += kept_pull * one
                        own_square += kept_pull * kept_pull
                        coin_pull += (kept_pull + other) ** 2
                    m0, m1, m2, x = absent / left, pull / left**2, noise / left, cross / left
                    phi = 1.0 - m0
                    by_kept = math.exp(-at[t] * kept)
                    poisson += by_kept * math.exp(-n * m0) * (own_square + 2 * n * x + n * m2 + n * n * m1)
                    by_coins += by_kept * math.exp(log_q) * (coin_pull + spread)
                    if phi > 1e-300:
                        terms = own_square + (2 * n * x + n * m2) / phi + n * (n - 1.0) * m1 / phi**2
                        independent += by_kept * math.exp(n * math.log1p(-m0)) * terms
                if poisson > 0.0:
                    out[i, s, b] = step * max(independent, 0.0) * by_coins / poisson
