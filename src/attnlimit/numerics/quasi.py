"""Quasi-random points: independent scrambles of Sobol's, whose spread is the error of an average over them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor


def uniform_sets(dim: int, points: int, scrambles: int) -> Iterator[Float[Tensor, "points dim"]]:
    """`scrambles` sets of points of the unit cube, as many as the least power of two from `points` on."""
    from scipy.stats import qmc  # slow to import, and large

    for seed in range(scrambles):
        drawn = qmc.Sobol(dim, scramble=True, rng=seed).random_base2((points - 1).bit_length())
        yield torch.as_tensor(drawn)


def normal_sets(dim: int, points: int, scrambles: int) -> Iterator[Float[Tensor, "points dim"]]:
    """The same as standard normal vectors."""
    for drawn in uniform_sets(dim, points, scrambles):
        yield torch.as_tensor(scipy.special.ndtri(np.clip(drawn.numpy(), 1e-15, 1 - 1e-15)))
