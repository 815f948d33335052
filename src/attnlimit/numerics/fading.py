"""Exponentials of numbers that may be far below zero."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def faded(log: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """e^x; zero where the precision has no such small number, since these take ten times as long."""
    least = -87.0 if log.dtype == torch.float32 else -700.0
    return log.clamp_min(least).exp_().sub_(math.exp(least))
