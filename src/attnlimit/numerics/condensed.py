"""Many score atoms as few: sums of smooth functions of the score, by interpolation.

A sum over keys of c_j f(z_j), f smooth in the score z, is Σ_k f(z_k) Σ_j c_j L_k(z_j) with the Lagrange polynomials L_k of
some Chebyshev points z_k in each stretch of scores of length 2: the sums Σ_j c_j L_k(z_j) are made once and serve every f. For
e^{−tw}, w = e^z, 12 points are good to 1e-7, and errors of n keys to 1e-6; the 6 that follow bins are good to 4e-4. A stretch
with no more atoms than points keeps them as they are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.atoms import FINE, ROUGH, Atoms, Precision, distances
from attnlimit.numerics.binning import BinSums
from attnlimit.numerics.compiled import has_numba, run_compiled

WIDTH, POINTS, FEW_POINTS = 2.0, 12, 6


class Condensed(NamedTuple):
    """Atoms whose numbers of keys need be neither whole nor positive. u is the distance of a value from Γ."""

    scores: Float[Tensor, "m j"]
    number: Float[Tensor, "m j"]
    vector: Float[Tensor, "m j p"]
    """Σ u over an atom's keys, w for w."""
    square: Float[Tensor, "m j"]
    """Σ ‖u‖² over an atom's keys, w² for w²."""
    smooth: float = 1.0
    precision: Precision = FINE

    @property
    def step(self) -> float:
        """Of the τ-grid."""
        return self.precision.step * self.smooth

    @property
    def dim(self) -> int:
        """Of the values."""
        return self.vector.shape[-1]

    def of(self, rows: Tensor | slice) -> Condensed:
        """Those of some queries."""
        scores, number, vector, square = (part[rows] for part in self[:4])
        return Condensed(scores, number, vector, square, self.smooth, self.precision)

    def reach(self, n_max: int) -> tuple[Tensor, Tensor, Tensor]:
        """log(n_max E w), the heaviest score and the lightest."""
        there = self.number != 0
        heaviest = self.scores.masked_fill(~there, -torch.inf).amax(1)
        weights = ((self.scores - heaviest[:, None]).exp() * self.number).sum(1) / self.number.sum(1)
        lightest = self.scores.masked_fill(~there, torch.inf).amin(1)
        return heaviest + weights.clamp_min(1e-300).log() + math.log(n_max), heaviest, lightest


def as_they_are(atoms: Atoms, keys: Float[Tensor, "m 1"]) -> Condensed:
    """All atoms, of so many keys."""
    number = atoms.log_mass.exp() * keys
    error = atoms.mean - atoms.limit[:, None, :]
    return Condensed(atoms.scores, number, number[..., None] * error, number * atoms.squares(), atoms.smooth)


def condensed(atoms: Atoms | Condensed, keys: Float[Tensor, "m 1"], points: int = POINTS) -> Condensed:
    """At most `points` atoms in each stretch of scores."""
    if isinstance(atoms, Condensed):
        return atoms
    every = as_they_are(atoms, keys)
    scores, number, vector, square = every[:4]
    there = number > 0
    place = (scores - scores.masked_fill(~there, torch.inf).amin(1, keepdim=True)) / WIDTH
    cell = torch.where(there, place.floor(), 0).long()
    cells = int(cell.max()) + 1
    if scores.shape[1] <= cells * points:
        return every
    share, nodes = _shares(there, place, cell, cells, points)
    weight = (WIDTH * (place - cell - 0.5)).exp()  # relative to the middle of its cell
    parts = torch.cat(
        [number[..., None], weight[..., None] * vector, (weight.square() * square)[..., None]], -1
    )
    sums = share.mT @ torch.where(there[..., None], parts, 0.0)
    own = WIDTH * nodes
    middle = own - WIDTH * (torch.arange(cells, device=own.device).repeat_interleave(points) + 0.5)
    low = scores.masked_fill(~there, torch.inf).amin(1, keepdim=True)
    back = (-middle).exp()
    vector, square = back[..., None] * sums[..., 1:-1], back.square() * sums[..., -1]
    return Condensed(low + own, sums[..., 0], vector, square, atoms.smooth)


def _shares(there: Tensor, place: Tensor, cell: Tensor, cells: int, points: int) -> tuple[Tensor, Tensor]:
    """What part of each atom goes to each point, (m, j, cells·points), and where the points are, in units of a cell."""
    m, device = len(place), place.device
    count = torch.zeros(m, cells, dtype=torch.long, device=device).scatter_add(1, cell, there.long())
    order = torch.where(there, cell, cells).argsort(dim=1, stable=True)
    position = torch.zeros_like(order).scatter(
        1, order, torch.arange(order.shape[1], device=device).expand_as(order)
    )
    rank = position - (count.cumsum(1) - count).gather(1, cell)
    dense = (count > points).gather(1, cell)
    nodes, back = (part.to(place) for part in _chebyshev(points))
    k = torch.arange(points, dtype=place.dtype, device=device)
    lagrange = torch.cos(k * (2 * (place - cell) - 1).clamp(-1, 1).acos()[..., None]) @ back
    alone = (rank[..., None] == k).to(place)
    share = torch.where(dense[..., None], lagrange, alone) * there[..., None]
    slot = cell[..., None] * points + torch.arange(points, device=device)
    full = torch.zeros(*place.shape, cells * points, dtype=place.dtype, device=device).scatter(2, slot, share)
    middle = torch.arange(cells, device=device)[:, None] + (nodes + 1) / 2
    raw = torch.where(dense | ~there, 0.0, place)[:, None] @ full
    kept = (count <= points).repeat_interleave(points, 1)
    return full, torch.where(kept, raw[:, 0], middle.flatten())


def _chebyshev(points: int) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """Points x_k of (−1, 1), and c with L_k = Σ_i c_ik T_i, T_i(x) = cos(i arccos x)."""
    k = torch.arange(points, dtype=torch.float64)
    angle = math.pi * (k + 0.5) / points
    return torch.cos(angle), torch.cos(k[:, None] * angle) * (2 - (k == 0).double())[:, None] / points


def condensed_bins(
    sums: BinSums,
    low: Float[Tensor, " m"],
    width: Float[Tensor, " m"],
    limit: Float[Tensor, "m p"],
    keys: Float[Tensor, "m 1"],
) -> Condensed:
    """Bins of scores that keep Σ1, Σw, Σw u and Σw²‖u‖² as they are, each at its mean weight, in `FEW_POINTS` a stretch."""
    if not has_numba() or low.device.type != "cpu":
        few = condensed(_atoms(sums, low.double(), width.double(), limit.double()), keys, FEW_POINTS)
        return few._replace(precision=ROUGH)
    cells = int((width.max() * sums.mass.shape[1] / WIDTH).ceil()) + 1
    scores, number, square = (
        torch.zeros(len(low), cells * FEW_POINTS, dtype=torch.float64) for _ in range(3)
    )
    vector = torch.zeros(*scores.shape, limit.shape[1], dtype=limit.dtype)
    nodes, back = _chebyshev(FEW_POINTS)
    inputs = (*(part.contiguous() for part in sums), low, width, limit.contiguous(), keys, nodes, back)
    run_compiled(_condense, len(low), *inputs, scores, number, vector, square)
    return Condensed(scores, number, vector, square, precision=ROUGH)


def _atoms(sums: BinSums, low: Tensor, width: Tensor, limit: Tensor) -> Atoms:
    """Bins as atoms."""
    total, weight = sums.mass.double(), sums.weight.double()
    centres = low[:, None] + (torch.arange(total.shape[1], device=low.device) + 0.5) * width[:, None]
    full = total > 0
    total, weight = torch.where(full, total, 1.0), torch.where(full, weight, 1.0)
    mean = sums.value.double().div_(weight[..., None])
    second = sums.square * total / weight.square()
    log_total = torch.where(full, total.log(), -torch.inf)
    log_mass = log_total - torch.logsumexp(log_total, 1, keepdim=True)
    return Atoms(centres + (weight / total).log(), log_mass, mean, second - distances(mean, limit), limit)


def _condense(
    start: int,
    stop: int,
    mass: Any,
    weight: Any,
    square: Any,
    value: Any,
    low: Any,
    width: Any,
    limit: Any,
    keys: Any,
    nodes: Any,
    back: Any,
    scores: Any,
    number: Any,
    vector: Any,
    out: Any,
) -> None:
    bins, p, points = value.shape[1], value.shape[2], nodes.shape[0]
    share, angle, at = np.empty(points), np.empty(points), np.empty(bins)
    for i in range(start, stop):
        first, total = -1, 0.0
        for b in range(bins):
            total += mass[i, b]
            if mass[i, b] > 0.0:
                at[b] = low[i] + (b + 0.5) * width[i] + math.log(weight[i, b] / mass[i, b])
                first = b if first < 0 else first
        origin, b = at[first], first
        scores[i] = origin
        while b < bins:
            if mass[i, b] <= 0.0:
                b += 1
                continue
            cell = int((at[b] - origin) / 2.0)
            end, many = b, 0
            while end < bins and (mass[i, end] <= 0.0 or int((at[end] - origin) / 2.0) == cell):
                many += mass[i, end] > 0.0
                end += 1
            place, middle, dense = cell * points, origin + 2.0 * cell + 1.0, many > points
            if dense:
                scores[i, place : place + points] = middle + nodes
            while b < end:
                if mass[i, b] > 0.0:
                    count = mass[i, b] / total * keys[i, 0]
                    mean, own = 1.0 / weight[i, b], count * square[i, b] * mass[i, b] / weight[i, b] ** 2
                    if dense:
                        x = min(1.0, max(-1.0, at[b] - middle))
                        angle[0], angle[1] = 1.0, x
                        for k in range(2, points):
                            angle[k] = 2.0 * x * angle[k - 1] - angle[k - 2]
                        for k in range(points):
                            part = 0.0
                            for c in range(points):
                                part += back[c, k] * angle[c]
                            share[k] = part
                        last = points
                    else:
                        scores[i, place] = at[b]
                        share[0] = 1.0
                        last = 1
                    for k in range(last):
                        ratio = math.exp(at[b] - scores[i, place + k])
                        number[i, place + k] += count * share[k]
                        out[i, place + k] += own * share[k] * ratio * ratio
                        scale = limit.dtype.type(count * share[k] * ratio)
                        inverse = limit.dtype.type(mean)
                        for c in range(p):
                            vector[i, place + k, c] += scale * (inverse * value[i, b, c] - limit[i, c])
                    place += 0 if dense else 1
                b += 1
