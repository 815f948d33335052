"""Compiled loops of training: averages of many short prompts under many models. Needs numba.

A prompt's tokens stand in a table (dimensions, tokens) with zeros up to a multiple of GROUP dimensions and room up to a multiple of LANES
tokens, so that loops have none left over. Numbers of all models stand in tables (dimensions, models).

numba looks for changes in this file alone: change it too when the loops of white noise change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlimit.numerics.compiled import part
from attnlimit.numerics.instructions import LANES, bits_of, from_bits
from attnlimit.numerics.normal_loops import BLOCK, normal_row
from attnlimit.numerics.normals import FARTHEST
from attnlimit.numerics.normals import GROUP as DRAWN

GROUP = 6
"""Dimensions that a loop takes at once."""
LOG2E = np.float32(1.4426950408889634)
SAFE = np.float32(2.0**80)
"""Sums of 2^score between 1/SAFE and SAFE need no shift."""


@part
def raise_two(y: Any) -> Any:
    """2^y = 2^r p(f): r whole, |f| ≤ ½, p to 1e-7 (Chebyshev); written out since a call to exp would not vectorise."""
    y = min(max(y, np.float32(-126.0)), np.float32(126.0))
    r = np.floor(y + np.float32(0.5))
    f = y - r
    p = np.float32(1.339086336353527e-3) * f + np.float32(9.676031918255982e-3)
    p = p * f + np.float32(5.550357114222094e-2)
    p = p * f + np.float32(2.402210748530968e-1)
    p = p * f + np.float32(6.931471880262273e-1)
    p = p * f + np.float32(1.0000000754548972)
    return from_bits(np.int32(bits_of(p) + np.int32(np.int32(r) << np.int32(23))))


@part
def project(z: Any, c: int, n: int, s: Any, h: Any, w: Any, t: Any) -> None:
    """Adds to w = sᵀz and t = hᵀz what a group of dimensions from c on has of them."""
    z0, z1, z2, z3, z4, z5 = z[c], z[c + 1], z[c + 2], z[c + 3], z[c + 4], z[c + 5]
    s0, s1, s2, s3, s4, s5 = s[c], s[c + 1], s[c + 2], s[c + 3], s[c + 4], s[c + 5]
    h0, h1, h2, h3, h4, h5 = h[c], h[c + 1], h[c + 2], h[c + 3], h[c + 4], h[c + 5]
    for i in range(n):
        w[i] += s0 * z0[i] + s1 * z1[i] + s2 * z2[i] + s3 * z3[i] + s4 * z4[i] + s5 * z5[i]
        t[i] += h0 * z0[i] + h1 * z1[i] + h2 * z2[i] + h3 * z3[i] + h4 * z4[i] + h5 * z5[i]


@part
def gather(z: Any, c: int, n: int, w: Any, t: Any, first: Any, second: Any) -> None:
    """Σ w z and Σ t z of dimension c, to `first` and `second`."""
    f = g = np.float32(0.0)
    row = z[c]
    for i in range(n):
        f += w[i] * row[i]
        g += t[i] * row[i]
    first[c], second[c] = f, g


@part
def weigh(z: Any, length: int, s: Any, h: Any, shift: Any, w: Any, t: Any, first: Any, second: Any) -> Any:
    """Σ w, and in `first` and `second` Σ w z and Σ w (hᵀz) z, over the first tokens, w = 2^{sᵀz − shift}. One loop does all for a group of
    dimensions; what others have of sᵀz and hᵀz is in w and t before, and w and w hᵀz are there afterwards."""
    n, more = LANES * ((length + LANES - 1) // LANES), len(z) > GROUP
    if more:
        w[:n], t[:n] = 0, 0
    for c in range(GROUP, len(z), GROUP):
        project(z, c, n, s, h, w, t)
    z0, z1, z2, z3, z4, z5 = z[0], z[1], z[2], z[3], z[4], z[5]
    s0, s1, s2, s3, s4, s5 = s[0], s[1], s[2], s[3], s[4], s[5]
    h0, h1, h2, h3, h4, h5 = h[0], h[1], h[2], h[3], h[4], h[5]
    total = f0 = f1 = f2 = f3 = f4 = f5 = g0 = g1 = g2 = g3 = g4 = g5 = np.float32(0.0)
    for i in range(n):
        x = s0 * z0[i] + s1 * z1[i] + s2 * z2[i] + s3 * z3[i] + s4 * z4[i] + s5 * z5[i]
        y = h0 * z0[i] + h1 * z1[i] + h2 * z2[i] + h3 * z3[i] + h4 * z4[i] + h5 * z5[i]
        if more:
            x, y = x + w[i], y + t[i]
        x = raise_two(x - shift) if i < length else np.float32(0.0)
        y *= x
        if more:
            w[i], t[i] = x, y
        total += x
        f0, f1, f2 = f0 + x * z0[i], f1 + x * z1[i], f2 + x * z2[i]
        f3, f4, f5 = f3 + x * z3[i], f4 + x * z4[i], f5 + x * z5[i]
        g0, g1, g2 = g0 + y * z0[i], g1 + y * z1[i], g2 + y * z2[i]
        g3, g4, g5 = g3 + y * z3[i], g4 + y * z4[i], g5 + y * z5[i]
    first[0], first[1], first[2], first[3], first[4], first[5] = f0, f1, f2, f3, f4, f5
    second[0], second[1], second[2], second[3], second[4], second[5] = g0, g1, g2, g3, g4, g5
    for c in range(GROUP, len(z)):
        gather(z, c, n, w, t, first, second)
    return total


@part
def highest(z: Any, length: int, s: Any) -> Any:
    """The largest sᵀz."""
    high = np.float32(-np.inf)
    for i in range(length):
        score = np.float32(0.0)
        for c in range(len(z)):
            score += s[c] * z[c, i]
        high = max(high, score)
    return high


@part
def average(z: Any, lengths: Any, a: Any, along: Any, room: Any, mean: Any, push: Any) -> None:
    """For each model m and h = along[:, m]: z̄ = Σ w z/Σ w over its first tokens, weights w = e^{aᵀz}, and the derivative along h,
    Σ w (hᵀz) z/Σ w − (hᵀz̄) z̄."""
    s, h, first, second, w, t = room[0], room[1], room[2], room[3], room[4], room[5]
    D = len(mean)
    for m in range(len(lengths)):
        for c in range(D):
            s[c], h[c] = a[c, m] * LOG2E, along[c, m]
        total = weigh(z, lengths[m], s, h, np.float32(0.0), w, t, first, second)
        if not 1 / SAFE < total < SAFE:
            total = weigh(z, lengths[m], s, h, highest(z, lengths[m], s), w, t, first, second)
        dot = np.float32(0.0)
        for c in range(D):
            mean[c, m] = first[c] / total
            dot += mean[c, m] * h[c]
        for c in range(D):
            push[c, m] = second[c] / total - mean[c, m] * dot


def softmax_rows(
    start: int, stop: int, tokens: Any, a: Any, along: Any, lengths: Any, mean: Any, push: Any
) -> None:  # pragma: no cover  (compiled)
    """Rows start … stop − 1 of tokens that are there."""
    D, L = tokens.shape[1:]
    z = np.zeros((GROUP * ((D + GROUP - 1) // GROUP), DRAWN * ((L + DRAWN - 1) // DRAWN)), np.float32)
    room = np.zeros((6, max(z.shape)), np.float32)
    for b in range(start, stop):
        z[:D, :L] = tokens[b]
        average(z, lengths, a[b], along[b], room, mean[b], push[b])


@part
def aim(query: Any, F: Any, U: Any, v: Any, a: Any, along: Any, turned: Any) -> None:
    """a = FᵀU query and along = Fᵀv of all models."""
    D, M = a.shape
    turned[:], a[:], along[:] = 0, 0, 0
    for c in range(D):
        for d in range(D):
            for m in range(M):
                turned[c, m] += U[d, c, m] * query[d]
    for c in range(D):
        for d in range(D):
            for m in range(M):
                a[c, m] += F[d, c] * turned[d, m]
                along[c, m] += F[d, c] * v[d, m]


@part
def pull(F: Any, v: Any, target: Any, mean: Any, push: Any, off: Any, of_v: Any, of_a: Any) -> None:
    """off = vᵀF z̄ − target, and the derivatives of off²/2: F z̄ off in v, F push off in U query."""
    D, M = mean.shape
    off[:], of_v[:], of_a[:] = -target, 0, 0
    for c in range(D):
        for d in range(D):
            for m in range(M):
                of_v[c, m] += F[c, d] * mean[d, m]
                of_a[c, m] += F[c, d] * push[d, m]
        for m in range(M):
            off[m] += v[c, m] * of_v[c, m]
    for c in range(D):
        for m in range(M):
            of_v[c, m] *= off[m]
            of_a[c, m] *= off[m]


def softmax_pull(
    start: int, stop: int, keys: Any, longest: Any, lengths: Any, query: Any, target: Any, root: Any, U: Any, v: Any, off: Any, of_v: Any, of_a: Any
) -> None:  # pragma: no cover  (compiled)  # fmt: skip
    """Prompts start … stop − 1, the same number for each key, that are drawn (with `longest` tokens), seen and forgotten."""
    D, M, each, L = len(root[0]), len(lengths), len(query) // len(keys), longest[0]
    z = np.zeros((GROUP * ((D + GROUP - 1) // GROUP), DRAWN * ((L + DRAWN - 1) // DRAWN)), np.float32)
    room, table = np.zeros((6, max(z.shape)), np.float32), np.empty((4, D, M), np.float32)
    words = np.empty((4, BLOCK), np.int32)
    for b in range(start, stop):
        k = b // each
        for c in range(D):
            normal_row((b - k * each) * D + c, keys[k], z[c], words)
        aim(query[b], root[b], U[k], v[k], table[0], table[1], table[2])
        average(z, lengths, table[0], table[1], room, table[2], table[3])
        pull(root[b], v[k], target[b], table[2], table[3], off[b], of_v[b], of_a[b])


@part
def bend(terms: Any, room: Any) -> None:
    """Σ_j terms[j] T_j(x) in the place of the numbers x, the first row of room (Clenshaw)."""
    x, now, last = room[0], room[1], room[2]
    now[:], last[:] = 0, 0
    for j in range(len(terms) - 1, 0, -2):  # the number of terms is odd
        term, other = terms[j], terms[j - 1]
        for i in range(len(x)):
            up = term[i] + np.float32(2.0) * x[i] * now[i] - last[i]
            now[i] = other[i] + np.float32(2.0) * x[i] * up - now[i]
            last[i] = up
    for i in range(len(x)):
        x[i] = terms[0, i] + x[i] * now[i] - last[i]


@part
def prefix_means(
    T: Any, diagonal: Any, kept: Any, within: int, place: Any, share: Any, S: Any, room: Any
) -> None:
    """S_m = share[m] Σ_{j ≤ place[m]} T_j T_jᵀ, matrices (c, d, m), of T's normals: off the diagonal where they are kept, on it bent into χ.
    T is lower triangular but for the first `within` columns."""
    D, K = len(T), T.shape[2]
    for c in range(D):
        for k in range(K):
            room[0, c * K + k] = T[c, c, k] * np.float32(1 / FARTHEST)
    bend(diagonal, room)
    bent, total = room[0], room[1]
    for c in range(D):
        for d in range(max(c, within)):
            for k in range(K):
                T[c, d, k] *= kept[c, d, k]
        for k in range(K):
            T[c, c, k] = bent[c * K + k]
        for d in range(c + 1):
            for k in range(K):
                total[k] = T[c, 0, k] * T[d, 0, k]
            for j in range(1, max(d + 1, within)):
                for k in range(K):
                    total[k] += T[c, j, k] * T[d, j, k]
            for k in range(1, K):
                total[k] += total[k - 1]
            for m in range(len(place)):
                S[c, d, m] = S[d, c, m] = total[place[m]] * share[m]


def linear_pull(
    start: int, stop: int, keys: Any, diagonal: Any, kept: Any, counts: Any, place: Any, query: Any, target: Any, root: Any, U: Any, v: Any,
    off: Any, of_v: Any, of_a: Any
) -> None:  # pragma: no cover  (compiled)  # fmt: skip
    """The same of linear attention, which sees the second moments of a prompt's tokens; model m those of its first counts[place[m]]."""
    D, K, M, each = len(kept), len(counts), len(place), len(query) // len(keys)
    white = np.empty(DRAWN * ((D * D * K + DRAWN - 1) // DRAWN), np.float32)
    words, room = np.empty((4, BLOCK), np.int32), np.empty((3, D * K), np.float32)
    T, S = white[: D * D * K].reshape((D, D, K)), np.empty((D, D, M), np.float32)
    table, terms = np.empty((4, D, M), np.float32), diagonal.reshape((len(diagonal), D * K))
    a, along, mean, push = table[0], table[1], table[2], table[3]
    share = (1 / counts[place]).astype(np.float32)
    within = D if kept[0, 1:].any() else 0  # few tokens stand for themselves
    for b in range(start, stop):
        k = b // each
        normal_row(b - k * each, keys[k], white, words)
        prefix_means(T, terms, kept, within, place, share, S, room)
        aim(query[b], root[b], U[k], v[k], a, along, mean)
        mean[:], push[:] = 0, 0
        for c in range(D):
            for d in range(D):
                for m in range(M):
                    mean[c, m] += S[c, d, m] * a[d, m]
                    push[c, m] += S[c, d, m] * along[d, m]
        pull(root[b], v[k], target[b], mean, push, off[b], of_v[b], of_a[b])
