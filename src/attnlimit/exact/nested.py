"""One query's mean square error for many kept sets and numbers of drawn keys at once.

A query may keep any of several sets S of keys and draw n different ones of the R that are left, each weighing for R/n of them. Where at most
`FEW` are left, sums over all sets of a size grow key by key (see `designs.different`). Beyond, with T = tR/n, y = Tw and odds z = e^x of a coin
for each key, r = ze^{−y}/(1 + ze^{−y}),

    E‖Γ_n − Γ‖² = C(R, n)⁻¹ ∫ [zⁿ] e^{−tW_S} Π(1 + ze^{−y}) F dt/t,   F = ‖tU_S + Σ r y u‖² + Σ (r − r²) y²‖u‖²,

by the saddle point x(T), where Σ r = n, and its first correction, over the same for C(R, n). A set of n keys does not change if c is taken from
each y u and added n times: c is chosen so that Σ r y u does not change with x. With S_k the derivatives of Σ log(1 + ze^{−y}) in x, M = tU_S + Σ r y u,
a = (Σ r (yu − c))″ and B = Σ (r − r²)‖yu − c‖², the factor beside e^{S_0 − nx}/√(2πS_2) is

    (‖M‖² + B)(1 + S_4/8S_2² − 5S_3²/24S_2³) + B′S_3/2S_2² − (B″ + 2M·a)/2S_2 + ¾‖a‖²/S_2².

All that is needed of a rest are sums over keys, and so over the classes of keys that are in the same of the sets: one pass over the keys serves all
sets. They are found for coins of chance c = 2^{−½}, ½, ¼, … and T in steps of 2, where 1 − e^{−2y} = a(2 − a) with a = 1 − e^{−y}, and continued
from the nearest c to the saddle by Taylor's polynomials in c. Against the exact errors of 65 to 1,024 keys with scores of deviation 0.3 to 6
all this was off by at most 0.001 (0.0015 for two keys). n need not be whole; where few keys are left, or without numba, e n/(R − n) is a straight line between
whole n.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs import Different, Sampling
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import prepare_seen
from attnlimit.numerics.compiled import has_numba, run_compiled

STEP = math.log(2)
"""Of the grid of log T from −7; weights sum to 1. Good to 1e-4."""
LIGHT, MOST, CLIMB = 0.02, 200, 10
"""It ends where n keys that this share of keys is lighter than have been seen, or after so many points; with so many more for few keys,
whose saddle climbs to the odds of more."""
ATOM = 0.03
"""Keys of a class whose scores differ by at most this count as one, up to second order in their differences."""
FEW, BLOCK = 64, 8
"""Keys left up to which all sets are summed over, and queries whose sums are held at a time."""
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
    plan = _plan((patterns[:, None] >> bits[:, 0, 0]) & 1 == 1)
    order = scores.argsort(1)
    order = order.gather(1, of_key.gather(1, order).argsort(dim=1, stable=True))
    node = (0.25 - share.log2()).floor().long()  # of the chances 2^{−½}, ½, ¼, …
    light = log_weight.masked_fill(hidden, torch.nan).nanquantile(LIGHT, dim=1) + (~hidden).sum(1).log()
    points = min(MOST, math.ceil((10.4 - float(light.min())) / STEP))
    cell = _cells(max(int(node.max()), 4), points)
    left = rest.transpose(0, 1).contiguous()
    few = (left.sum(2) <= FEW) & left.any(2)
    p, found = values.shape[2], scores.new_zeros(len(scores), len(kept), len(share))
    total = scores.new_empty(min(BLOCK, len(scores)), len(patterns), 2 + p)
    sums = scores.new_empty(*total.shape[:2], 7 + 4 * p, int(cell[-1, 1:].sum()))
    inputs = [one.contiguous() for one in (log_weight, error, of_key, order)]
    for rows in torch.arange(len(scores)).split(BLOCK):
        here = slice(int(rows[0]), int(rows[-1]) + 1)
        run_compiled(_accumulate, len(rows), *(one[here] for one in inputs), cell, total, sums)
        run_compiled(_settle, len(rows), *plan, few[here], node, cell, total, sums, found[here])
    if bool(few.any()):
        run_compiled(_by_sets, len(scores), log_weight, error, left, few, share.double(), found)
    return found


def _plan(belongs: Bool[Tensor, "classes sets"]) -> tuple[Tensor, Tensor, Tensor]:
    """The order in which the sums of sets are made; from which other's each starts, or −1; and which classes come to it."""
    classes = [frozenset(np.flatnonzero(one)) for one in belongs.T.numpy()]
    turn = sorted(range(len(classes)), key=lambda one: len(classes[one]))
    start, more = torch.full((len(turn),), -1), belongs.clone()
    for place, own in enumerate(turn):
        inside = [one for one in turn[:place] if classes[one] <= classes[own]]
        if inside:  # the last has most classes
            start[own] = inside[-1]
            more[:, own] &= ~belongs[:, inside[-1]]
    return torch.tensor(turn), start, more.contiguous()


def _cells(last: int, points: int) -> Int[Tensor, "t 3"]:
    """At T = 2^t e^{−7}, the first of the chances 2^{−½}, ½, ¼, … for which there are sums, the one after the last, and where their sums are:
    from t = 2^j/2 on for the chance of number j."""
    t = torch.arange(last + points)
    first, end = (t - points - CLIMB + 1).clamp_min(0), (t + 1).clamp_max(last + 1)
    return torch.stack([first, end, (end - first).cumsum(0) - end], 1)


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
    cell: Any,
    total: Any,
    sums: Any,
) -> None:
    """By class R, Σw and Σwu; and in each cell the sums of r and of its derivatives r − r², (r − r²)(1 − 2r) and (r − r²)(1 − 6(r − r²)) in x,
    of the last three with w²‖u‖², and of all four with wu. As −d/dx is d/dy, they give what first order in w leaves in an atom, too."""
    keys, p, grid, value = error.shape[1], error.shape[2], len(cell), np.empty((2, error.shape[2]))
    odds, T, part = np.empty(sums.shape[3]), np.empty(sums.shape[3]), np.empty((7, sums.shape[3]))
    for t in range(grid):
        for b in range(cell[t, 0], cell[t, 1]):
            chance = 0.5**b if b else math.sqrt(0.5)
            odds[cell[t, 2] + b], T[cell[t, 2] + b] = chance / (1.0 - chance), math.exp(-7.0) * 2.0**t
    for i in range(start, stop):
        place, total[i], sums[i] = 0, 0.0, 0.0
        while place < keys:
            first, kind, begin = log_weight[i, order[i, place]], of_key[i, order[i, place]], place
            weight, many, square, skew, value[:] = 0.0, 0.0, 0.0, 0.0, 0.0
            while place < keys:
                j = order[i, place]
                if of_key[i, j] != kind or log_weight[i, j] - first > ATOM:
                    break
                place += 1
                weight += math.exp(log_weight[i, j])
                many += 1.0
            if weight == 0.0:  # hidden keys
                continue
            for k in range(begin, place):
                j, norm = order[i, k], 0.0
                w = math.exp(log_weight[i, j])
                for c in range(p):
                    value[0, c] += w * error[i, j, c]
                    value[1, c] += (w - weight / many) * w * error[i, j, c]
                    norm += (w * error[i, j, c]) ** 2
                square += norm
                skew += (w - weight / many) * norm
            total[i, kind, 0] += many
            total[i, kind, 1] += weight
            total[i, kind, 2:] += value[0]
            gone, end, r = -math.expm1(-T[0] * weight / many), 0, part[0]
            seen = 1.0 - gone
            for t in range(grid):
                if seen < 1e-18:
                    break
                for _ in range(cell[t, 0], cell[t, 1]):
                    r[end] = seen
                    end += 1
                gone = gone * (2.0 - gone)
                seen = 1.0 - gone if gone < 0.5 else seen * seen
            s, s3, s4 = part[1], part[2], part[3]
            for t in range(end):
                r[t] = 1.0 - 1.0 / (1.0 + odds[t] * r[t])
            for t in range(end):
                s[t] = r[t] * (1.0 - r[t])
            for t in range(end):
                s3[t] = s[t] * (1.0 - 2.0 * r[t])
            for t in range(end):
                s4[t] = s[t] * (1.0 - 6.0 * s[t])
            for k in range(1, 4):
                one, by_T = part[k], part[3 + k]
                for t in range(end):
                    by_T[t] = T[t] * one[t]
            for k in range(7 + 4 * p):
                c, derivative = (k - 7) % p, k if k < 4 else k - 3 if k < 7 else (k - 7) // p
                by = many if k < 4 else square if k < 7 else value[0, c]
                less = 0.0 if k < 4 or derivative == 3 else skew if k < 7 else value[1, c]
                own, one, two = sums[i, kind, k], part[derivative], part[4 + min(derivative, 2)]
                for t in range(end):
                    own[t] += by * one[t] - less * two[t]


def _settle(
    start: int,
    stop: int,
    turn: Any,
    smaller: Any,
    more: Any,
    few: Any,
    node: Any,
    cell: Any,
    total: Any,
    sums: Any,
    out: Any,
) -> None:
    """The integral over T for every set and n, from the sums over classes."""
    sets, p, last = len(turn), total.shape[2] - 2, cell[-1, 1] - 1
    of_set, of_whole = np.empty((sets, *sums.shape[2:])), np.empty((sets, 2 + p))
    chance = 0.5 ** np.arange(last + 1.0)
    chance[0] = math.sqrt(0.5)
    log_odds, spent = np.log(chance / (1.0 - chance)), np.empty(sums.shape[3])
    for i in range(start, stop):
        for s in turn:
            every, whole = of_set[s], of_whole[s]
            if smaller[s] < 0:
                every[:], whole[:] = 0.0, 0.0
            else:
                every[:], whole[:] = of_set[smaller[s]], of_whole[smaller[s]]
            for kind in range(len(more)):
                if more[kind, s]:
                    for k in range(len(every)):
                        here, one = every[k], sums[i, kind, k]
                        for t in range(len(here)):
                            here[t] += one[t]
                    whole += total[i, kind]
            left, kept = whole[0], 1.0 - whole[1]
            if left == 0.0 or few[i, s]:
                continue
            pulled = whole[2:].copy()
            if kept < 1e-12:  # nothing is kept, but for rounding
                kept, pulled[:] = 0.0, 0.0
            for t in range(len(cell)):
                before, lean, curve = 0.0, 0.0, 0.0
                for b in range(cell[t, 1] - 1, cell[t, 0] - 1, -1):  # R log(1 + z) − Σ log(1 + ze^{−y})
                    c, here = chance[b], cell[t, 2] + b
                    lost, slope, bend = (
                        c - every[0, here] / left,
                        c * (1.0 - c),
                        c * (1.0 - c) * (1.0 - 2.0 * c),
                    )
                    slope, bend = slope - every[1, here] / left, bend - every[2, here] / left
                    if b == cell[t, 1] - 1:  # where it is small: as if keys were either alike or gone
                        once, twice = lost / (1.0 - c), (slope - (1.0 - 2.0 * c) * lost) / (1.0 - c) ** 2
                        sure = once > 1e-9 and twice > 1e-9 * once
                        spent[here] = once * once / twice * math.log1p(twice / once) if sure else once
                    else:  # from one of the odds to the next
                        h = log_odds[b] - log_odds[b + 1]
                        steps = (lost + before) / 2.0 + h * (
                            (lean - slope) / 10.0 + h * (bend + curve) / 120.0
                        )
                        spent[here] = spent[here + 1] + h * steps
                    before, lean, curve = lost, slope, bend
            for o in range(len(node)):
                b, found = node[o], 0.0
                n, v = chance[b] * left, chance[b] * (1.0 - chance[b]) * left
                if n < 1.0 - 1e-9:
                    out[i, s, o] = np.nan
                    continue
                for t in range(b, len(cell)):
                    if cell[t, 0] > b:
                        break
                    j, here = b, cell[t, 2] + b
                    away = (n - every[0, here]) / every[1, here]
                    while j > cell[t, 0]:  # to the odds nearest the saddle
                        further = (n - every[0, here - 1]) / every[1, here - 1]
                        if abs(further) > abs(away):
                            break
                        j, here, away = j - 1, here - 1, further
                    # Taylor's polynomials in the coin's chance c, as Σ r is a power series in c that converges for c < 1
                    c, g, h = chance[j], chance[j] * (1.0 - chance[j]), 1.0 - 2.0 * chance[j]
                    s1, s2 = every[1, here] / g, (every[2, here] - h * every[1, here]) / g**2
                    s3 = (every[3, here] / g - (h * h - 2.0 * g) * s1 - 3.0 * g * h * s2) / g**2
                    d = (n - every[0, here]) / s1
                    for _ in range(3):
                        far = every[0, here] - n + d * (s1 + d * (s2 / 2.0 + d * s3 / 6.0))
                        d -= far / (s1 + d * (s2 + d * s3 / 2.0))
                    x = c + d
                    if not 0.0 < x < 0.7 * c + 0.3:  # there are no n keys left
                        break
                    v1 = (c * left - every[0, here]) / g
                    v2 = (left - s1 - h * v1) / g
                    v3 = (2.0 * v1 - 2.0 * h * v2 - s2) / g
                    v4 = (6.0 * v2 - 3.0 * h * v3 - s3) / g
                    T = math.exp(-7.0 + math.log(2.0) * t)
                    level = -left * spent[here] - d * (v1 + d * (v2 / 2.0 + d * (v3 / 6.0 + d * v4 / 24.0)))
                    level += left * math.log((1.0 - chance[b]) / (1.0 - x)) - T * chance[b] * kept
                    level -= n * (math.log(x / (1.0 - x)) - log_odds[b])
                    if level < -40.0:
                        break
                    s1, s2, y, z = s1 + d * (s2 + d * s3 / 2.0), s2 + d * s3, x * (1.0 - x), 1.0 - 2.0 * x
                    zz = z * z - 2.0 * y
                    S2, S3, S4 = y * s1, y * (z * s1 + y * s2), y * (zz * s1 + y * (3.0 * z * s2 + y * s3))
                    b1, b2 = every[5, here] / g, (every[6, here] - h * every[5, here]) / g**2
                    B0, b1 = every[4, here] + d * (b1 + d * b2 / 2.0), b1 + d * b2
                    B1, B2, size, cross, bend = y * b1, y * (z * b1 + y * b2), 0.0, 0.0, 0.0
                    for m in range(p):
                        a1 = every[7 + p + m, here] / g
                        a2 = (every[7 + 2 * p + m, here] / g - h * a1) / g
                        a3 = (
                            every[7 + 3 * p + m, here] / g - (h * h - 2.0 * g) * a1 - 3.0 * g * h * a2
                        ) / g**2
                        A0 = (
                            every[7 + m, here]
                            + d * (a1 + d * (a2 / 2.0 + d * a3 / 6.0))
                            - chance[b] * pulled[m]
                        )
                        a1, a2 = a1 + d * (a2 + d * a3 / 2.0), a2 + d * a3
                        A1, A2, A3 = (
                            y * a1,
                            y * (z * a1 + y * a2),
                            y * (zz * a1 + y * (3.0 * z * a2 + y * a3)),
                        )
                        shift = A1 / S2
                        a = A2 - shift * S3
                        B0, B1, B2 = (
                            B0 - shift * A1,
                            B1 - shift * (A2 + a),
                            B2 - shift * (2.0 * A3 - shift * S4),
                        )
                        size, cross, bend = size + A0 * A0, cross + A0 * a, bend + a * a
                    value = size + B0
                    if S2 > 0.5:  # else hardly a set is left
                        value *= 1.0 + (S4 / 8.0 - 5.0 * S3 * S3 / (24.0 * S2)) / S2**2
                        value += (B1 * S3 / 2.0 + 0.75 * bend) / S2**2 - (B2 / 2.0 + cross) / S2
                    found += math.exp(level) * math.sqrt(v / max(S2, 0.16)) * T * T * value
                plain = 1.0 + (1.0 / 8.0 - 0.75 * v / left - 5.0 * (1.0 - 2.0 * chance[b]) ** 2 / 24.0) / v
                out[i, s, o] = math.log(2.0) * max(found, 0.0) / plain


def _by_sets(
    start: int, stop: int, log_weight: Any, error: Any, left: Any, few: Any, share: Any, out: Any
) -> None:
    """With T = tR/n: sums over all sets of k keys of Π e^{−Tw}, ‖Σ Twu‖² Π e^{−Tw} and Σ Twu Π e^{−Tw}, for every k, serve all n."""
    p, sizes = error.shape[2], len(share)
    for i in range(start, stop):
        for s in range(left.shape[1]):
            if not few[i, s]:
                continue
            keys = np.flatnonzero(left[i, s])
            number, weight = len(keys), np.exp(log_weight[i][keys])
            most = min(number, int(share.max() * number + 1e-9) + 1)
            pull, kept, own = np.empty(p), 1.0 - weight.sum(), np.zeros(p)
            if kept < 1e-12:  # nothing is kept, but for rounding
                kept = 0.0
            else:
                for j in range(number):
                    own -= weight[j] * error[i, keys[j]]
            square = np.zeros(most + 1)
            size, T = np.sum(own**2), math.exp(-7.0)
            least = weight.min() + kept / number
            while T * least < 40.0 and T < 1e250:
                sets = np.zeros((most + 1, 2 + p))
                sets[0, 0] = 1.0
                for j in range(number):
                    y = T * weight[j]
                    e, norm = math.exp(-y), 0.0
                    for c in range(p):
                        pull[c] = y * error[i, keys[j], c]
                        norm += pull[c] ** 2
                    for k in range(min(most, j + 1), 0, -1):
                        cross, before = 0.0, sets[k - 1, 0]
                        for c in range(p):
                            cross += pull[c] * sets[k - 1, 2 + c]
                            sets[k, 2 + c] += e * (sets[k - 1, 2 + c] + pull[c] * before)
                        sets[k, 1] += e * (sets[k - 1, 1] + 2.0 * cross + norm * before)
                        sets[k, 0] += e * before
                for k in range(1, most + 1):
                    by_kept = T * k / number
                    cross = 0.0
                    for c in range(p):
                        cross += own[c] * sets[k, 2 + c]
                    terms = sets[k, 1] + 2.0 * by_kept * cross + by_kept**2 * size * sets[k, 0]
                    square[k] += math.exp(-by_kept * kept) * terms
                T *= 2.0
            ways = 1.0
            for k in range(1, most + 1):
                ways *= (number - k + 1.0) / k
                square[k] *= math.log(2.0) / ways * k / max(number - k, 1e-9)  # e n/(R − n)
            for b in range(sizes):
                n = share[b] * number
                if n < 1.0 - 1e-9:
                    out[i, s, b] = np.nan
                    continue
                low = int(n + 1e-9)
                high = max(low, min(low + 1, number - 1))
                between = square[low] + min(max(n - low, 0.0), 1.0) * (square[high] - square[low])
                out[i, s, b] = max(between, 0.0) * (number - n) / n
