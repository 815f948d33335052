"""Many score atoms as few: sums of smooth functions of the score, by interpolation.

A sum over keys of c_j f(z_j), f smooth in the score z, is Σ_k f(z_k) Σ_j c_j L_k(z_j) with the Lagrange polynomials L_k of
some points z_k: the sums Σ_j c_j L_k(z_j) are made once and serve every f. For e^{−tw}, w = e^z, 12 Chebyshev points in each
stretch of scores of length 2 are good to 1e-7, and errors of n keys to 1e-6; a stretch with no more atoms than points keeps them
as they are. Bins of keys go to points that are equally far apart for all queries, so that all of them share f(z_k).
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.atoms import FINE, HEAVY, ROUGH, Atoms, Precision
from attnlimit.numerics.binning import Bins, Edges, Scored, bin_by_score
from attnlimit.numerics.compiled import has_numba, run_compiled

WIDTH, POINTS = 2.0, 12
NEAR = 6
"""Points that a bin goes to."""
APART, CLOSE = 0.4, 0.25
"""How far those are from each other: enough for e^{−tw}; and for log(1 − p + p e^{−tw}), which turns faster as p nears 1."""


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
    alike: bool = False
    """Whether queries differ by a constant in the score alone, and their τ-grids by its opposite: t w is then the same for all."""

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
        return Condensed(scores, number, vector, square, *self[4:])

    def lightest(self, count: int) -> Condensed:
        """The first atoms."""
        scores, number, vector, square = (part[:, :count] for part in self[:4])
        return Condensed(scores, number, vector, square, *self[4:])

    def loads(self, tau: Float[Tensor, "m t"]) -> Float[Tensor, "#m t j"]:
        """t w, up to where e^{−tw} is nothing; one for all queries where they are alike."""
        rows = slice(1 if self.alike else None)
        return (tau[rows, :, None] + self.scores[rows, None, :]).clamp_max_(HEAVY).exp_()

    def reach(self, n_max: int) -> tuple[Tensor, Tensor, Tensor]:
        """log(n_max E w), the heaviest score and the lightest."""
        there = self.number != 0
        heaviest = self.scores.masked_fill(~there, -torch.inf).amax(1)
        weights = ((self.scores - heaviest[:, None]).exp() * self.number).sum(1) / self.number.sum(1)
        lightest = self.scores.masked_fill(~there, torch.inf).amin(1)
        return heaviest + weights.clamp_min(1e-300).log() + math.log(n_max), heaviest, lightest


def summed(table: Float[Tensor, "#m r j"], part: Float[Tensor, "m j"]) -> Float[Tensor, "m r"]:
    """Σ_j table_j part_j."""
    return part @ table[0].mT if len(table) == 1 else (table @ part[..., None])[..., 0]


def as_they_are(atoms: Atoms, keys: Float[Tensor, "m 1"]) -> Condensed:
    """All atoms, of so many keys."""
    number = atoms.log_mass.exp() * keys
    error = atoms.mean - atoms.limit[:, None, :]
    return Condensed(atoms.scores, number, number[..., None] * error, number * atoms.squares(), atoms.smooth)


def condensed(atoms: Atoms | Condensed, keys: Float[Tensor, "m 1"]) -> Condensed:
    """At most `POINTS` atoms in each stretch of scores."""
    if isinstance(atoms, Condensed):
        return atoms
    every = as_they_are(atoms, keys)
    scores, number, vector, square = every[:4]
    there = number > 0
    place = (scores - scores.masked_fill(~there, torch.inf).amin(1, keepdim=True)) / WIDTH
    cell = torch.where(there, place.floor(), 0).long()
    cells = int(cell.max()) + 1
    if scores.shape[1] <= cells * POINTS:
        return every
    share, nodes = _shares(there, place, cell, cells)
    weight = (WIDTH * (place - cell - 0.5)).exp()  # relative to the middle of its cell
    parts = torch.cat(
        [number[..., None], weight[..., None] * vector, (weight.square() * square)[..., None]], -1
    )
    sums = share.mT @ torch.where(there[..., None], parts, 0.0)
    own = WIDTH * nodes
    middle = own - WIDTH * (torch.arange(cells, device=own.device).repeat_interleave(POINTS) + 0.5)
    low = scores.masked_fill(~there, torch.inf).amin(1, keepdim=True)
    back = (-middle).exp()
    vector, square = back[..., None] * sums[..., 1:-1], back.square() * sums[..., -1]
    return Condensed(low + own, sums[..., 0], vector, square, atoms.smooth)


def _shares(there: Tensor, place: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """What part of each atom goes to each point, (m, j, cells·POINTS), and where the points are, in units of a cell."""
    m, device = len(place), place.device
    count = torch.zeros(m, cells, dtype=torch.long, device=device).scatter_add(1, cell, there.long())
    order = torch.where(there, cell, cells).argsort(dim=1, stable=True)
    position = torch.zeros_like(order).scatter(
        1, order, torch.arange(order.shape[1], device=device).expand_as(order)
    )
    rank = position - (count.cumsum(1) - count).gather(1, cell)
    dense = (count > POINTS).gather(1, cell)
    nodes, back = (part.to(place) for part in _chebyshev(POINTS))
    k = torch.arange(POINTS, dtype=place.dtype, device=device)
    lagrange = torch.cos(k * (2 * (place - cell) - 1).clamp(-1, 1).acos()[..., None]) @ back
    alone = (rank[..., None] == k).to(place)
    share = torch.where(dense[..., None], lagrange, alone) * there[..., None]
    slot = cell[..., None] * POINTS + torch.arange(POINTS, device=device)
    full = torch.zeros(*place.shape, cells * POINTS, dtype=place.dtype, device=device).scatter(2, slot, share)
    middle = torch.arange(cells, device=device)[:, None] + (nodes + 1) / 2
    raw = torch.where(dense | ~there, 0.0, place)[:, None] @ full
    kept = (count <= POINTS).repeat_interleave(POINTS, 1)
    return full, torch.where(kept, raw[:, 0], middle.flatten())


def _chebyshev(points: int) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """Points x_k of (−1, 1), and c with L_k = Σ_i c_ik T_i, T_i(x) = cos(i arccos x)."""
    k = torch.arange(points, dtype=torch.float64)
    angle = math.pi * (k + 0.5) / points
    return torch.cos(angle), torch.cos(k[:, None] * angle) * (2 - (k == 0).double())[:, None] / points


def condensed_keys(keys: Scored, spacing: float = APART, again: int = 0) -> Condensed:
    """Bins of scores that keep Σ1, Σw, Σw u and Σw²‖u‖² as they are, each at its mean weight, at points that are `spacing` apart:
    each bin goes to the `NEAR` points around it, by their Lagrange polynomials. Of the first `again` queries once more after all,
    two bins as one."""
    edges, m, limit = keys.edges(), len(keys.scores), keys.limit
    count = NEAR + 1 + int((edges.width * edges.bins).max() / spacing)
    number, square = (torch.zeros(m + again, count, dtype=torch.float64, device=limit.device) for _ in "ns")
    vector = limit.new_zeros(m + again, count, limit.shape[1])
    share_out = _compiled if has_numba() and limit.device.type == "cpu" else _plain
    share_out(keys, edges, spacing, number, vector, square)
    place = torch.arange(count, dtype=torch.float64, device=limit.device) - (NEAR // 2 - 1)
    scores = torch.cat([edges.low, edges.low[:again]]).double()[:, None] + spacing * place
    return Condensed(scores, number, vector, square, precision=ROUGH, alike=True)


@cache
def _fractions() -> Float[Tensor, " k"]:
    """1/Π_{i≠k} (k − i)."""
    k = torch.arange(NEAR, dtype=torch.float64)
    return 1 / (k[:, None] - k + torch.eye(NEAR)).prod(1)


def _compiled(
    keys: Scored, edges: Edges, spacing: float, number: Tensor, vector: Tensor, square: Tensor
) -> None:
    from attnlimit.numerics.bin_loops import condense_keys  # imports numba

    step, skipped = torch.tensor([spacing], dtype=torch.float64), keys.skipped
    skipped = torch.zeros(1, 1, dtype=torch.bool) if skipped is None else skipped
    values = keys.values, keys.products(), keys.squares, keys.limit, keys.mass, skipped, keys.number()
    inputs = (part.contiguous() for part in (keys.scores, *edges, *values, step, _fractions()))
    run_compiled(condense_keys, len(keys.scores), *inputs, number, vector, square)


def _plain(
    keys: Scored, edges: Edges, spacing: float, number: Tensor, vector: Tensor, square: Tensor
) -> None:
    """The loop `condense_keys` in torch."""
    bins, m = bin_by_score(keys, edges), len(keys.scores)
    _to_points(bins, edges.width, keys, spacing, number[:m], vector[:m], square[:m])
    some = len(number) - m
    halves = bins.halved(some, edges.width)
    _to_points(halves, 2 * edges.width[:some], keys, spacing, number[m:], vector[m:], square[m:])


def _to_points(
    bins: Bins,
    width: Float[Tensor, " m"],
    keys: Scored,
    spacing: float,
    number: Tensor,
    vector: Tensor,
    square: Tensor,
) -> None:
    """Of the first queries of all."""
    m, fraction = len(number), _fractions()
    there = bins.mass > 0
    mass, weight = (torch.where(there, part, 1).double() for part in (bins.mass, bins.weight))
    total = bins.mass.double().sum(1, keepdim=True)
    count = torch.where(there, mass / total * keys.number()[:m], 0.0)
    centre = (torch.arange(mass.shape[1], device=mass.device) + 0.5) * width.double()[:, None]
    place = (centre + (weight / mass).log()) / spacing
    first = place.long().clamp(0, number.shape[1] - NEAR)
    x = (place - first + NEAR // 2 - 1)[..., None] - torch.arange(NEAR, device=mass.device)  # from each point
    error = bins.value.double() / weight[..., None] - keys.limit[:m].double()[:, None]
    for k in range(NEAR):
        share = count * x[..., :k].prod(-1) * x[..., k + 1 :].prod(-1) * fraction[k]
        ratio = (spacing * x[..., k]).exp()
        number.scatter_add_(1, first + k, share)
        square.scatter_add_(1, first + k, share * bins.square * mass * (ratio / weight).square())
        pull = ((share * ratio)[..., None] * error).to(vector)
        vector.scatter_add_(1, (first + k)[..., None].expand_as(pull), pull)
