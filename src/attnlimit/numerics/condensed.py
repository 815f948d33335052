"""Many score atoms as few: sums of smooth functions of the score, by interpolation.

A sum over keys of c_j f(z_j), f smooth in the score z, is Σ_k f(z_k) Σ_j c_j L_k(z_j) with the Lagrange polynomials L_k of
12 Chebyshev points z_k in each stretch of scores of length 2: the sums Σ_j c_j L_k(z_j) are made once and serve every f. For
e^{−tw}, w = e^z, this is good to 1e-7, and errors of n keys are good to 1e-6. A stretch with at most 12 atoms keeps them as they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.atoms import Atoms

WIDTH, POINTS = 2.0, 12


class Condensed(NamedTuple):
    """Atoms whose numbers of keys need be neither whole nor positive. u is the distance of a value from Γ."""

    scores: Float[Tensor, "m j"]
    number: Float[Tensor, "m j"]
    vector: Float[Tensor, "m j p"]
    """Σ u over an atom's keys, w for w."""
    square: Float[Tensor, "m j"]
    """Σ ‖u‖² over an atom's keys, w² for w²."""


def as_they_are(atoms: Atoms, keys: Float[Tensor, "m 1"]) -> Condensed:
    """All atoms, of so many keys."""
    number = atoms.log_mass.exp() * keys
    error = atoms.mean - atoms.limit[:, None, :]
    return Condensed(atoms.scores, number, number[..., None] * error, number * atoms.squares())


def condensed(atoms: Atoms, keys: Float[Tensor, "m 1"]) -> Condensed:
    """At most 12 atoms in each stretch of scores."""
    scores, number, vector, square = as_they_are(atoms, keys)
    there = number > 0
    place = (scores - scores.masked_fill(~there, torch.inf).amin(1, keepdim=True)) / WIDTH
    cell = torch.where(there, place.floor(), 0).long()
    cells = int(cell.max()) + 1
    if scores.shape[1] <= cells * POINTS:
        return Condensed(scores, number, vector, square)
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
    return Condensed(
        low + own, sums[..., 0], back[..., None] * sums[..., 1:-1], back.square() * sums[..., -1]
    )


def _shares(there: Tensor, place: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """What part of each atom goes to each point, (m, j, cells·12), and where the points are, in units of a cell."""
    m, device = len(place), place.device
    count = torch.zeros(m, cells, dtype=torch.long, device=device).scatter_add(1, cell, there.long())
    order = torch.where(there, cell, cells).argsort(dim=1, stable=True)
    position = torch.zeros_like(order).scatter(
        1, order, torch.arange(order.shape[1], device=device).expand_as(order)
    )
    rank = position - (count.cumsum(1) - count).gather(1, cell)
    dense = (count > POINTS).gather(1, cell)
    k = torch.arange(POINTS, dtype=place.dtype, device=device)
    angle = math.pi * (k + 0.5) / POINTS
    back = torch.cos(k[:, None] * angle) * (2 - (k == 0).to(place))[:, None] / POINTS
    lagrange = torch.cos(k * (2 * (place - cell) - 1).clamp(-1, 1).acos()[..., None]) @ back
    alone = (rank[..., None] == k).to(place)
    share = torch.where(dense[..., None], lagrange, alone) * there[..., None]
    slot = cell[..., None] * POINTS + torch.arange(POINTS, device=device)
    full = torch.zeros(*place.shape, cells * POINTS, dtype=place.dtype, device=device).scatter(2, slot, share)
    middle = torch.arange(cells, device=device)[:, None] + (torch.cos(angle) + 1) / 2
    raw = torch.where(dense | ~there, 0.0, place)[:, None] @ full
    kept = (count <= POINTS).repeat_interleave(POINTS, 1)
    return full, torch.where(kept, raw[:, 0], middle.flatten())
