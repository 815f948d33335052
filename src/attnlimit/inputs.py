"""Checks at the public edge: turn what people pass into tensors, or say plainly what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from attnlimit.errors import InputError

Array: TypeAlias = Tensor | np.ndarray | Sequence[object] | float | int
"""What public functions accept: tensors and numpy arrays as they are, plain numbers converted."""
T = TypeVar("T")


def as_float(
    value: Array, name: str, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """A finite floating tensor. Tensors and arrays must already have the dtype and device asked for;
    plain numbers and lists are converted (to float64 unless a dtype is asked for)."""
    if isinstance(value, np.ndarray):
        value = _from_numpy(value, name).to(device)
    if isinstance(value, Tensor):
        tensor = value
        if not tensor.is_floating_point():
            raise InputError(
                f"{name} must be floating point, got {tensor.dtype}: "
                "scores and outputs are real numbers. Convert it, e.g. x.double()."
            )
        if dtype is not None and tensor.dtype != dtype:
            raise InputError(
                f"{name} has dtype {tensor.dtype}, but the rest is {dtype}: mixing dtypes would lose "
                f"precision silently. Convert one of them, e.g. x.to({dtype})."
            )
        if device is not None and tensor.device != torch.device(device):
            raise InputError(
                f"{name} is on {tensor.device}, but the rest is on {device}: "
                f"move one of them, e.g. x.to('{device}')."
            )
    else:
        try:
            tensor = torch.tensor(value, dtype=dtype or torch.float64, device=device)
        except (TypeError, ValueError, RuntimeError) as problem:
            raise InputError(f"{name} must be numbers in a rectangular array, got {value!r}.") from problem
    # The sum is finite if every entry is, but for overflow: the cheap check comes first.
    if not bool(tensor.sum().isfinite()) and not bool(torch.isfinite(tensor).all()):
        raise InputError(
            f"{name} has {int((~torch.isfinite(tensor)).sum())} entries that are nan or infinite "
            f"out of {tensor.numel()}: clean or drop them first."
        )
    return tensor


def _from_numpy(array: np.ndarray, name: str) -> Tensor:
    # torch takes neither negative strides nor, without a warning, read-only memory: those are copied.
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except TypeError as problem:
        raise InputError(f"{name} must be an array of numbers, got dtype {array.dtype}.") from problem


def as_points(value: Array, dim: int, name: str, *, like: Tensor | None = None) -> Tensor:
    """Points of R^dim: a finite floating tensor of shape (*batch, dim), matching `like` if given."""
    points = as_float(
        value, name, dtype=None if like is None else like.dtype, device=getattr(like, "device", None)
    )
    if points.ndim < 1 or points.shape[-1] != dim:
        raise InputError(
            f"{name} must have shape (*batch, {dim}), got {tuple(points.shape)}: the last axis is the dimension."
        )
    return points


def as_count(n: object, name: str = "n") -> int:
    """A whole number ≥ 1 (a float such as 1e6 is accepted when it is whole)."""
    if (
        isinstance(n, bool)
        or not isinstance(n, int | float | np.integer | np.floating)
        or not 1 <= n < np.inf
        or n != int(n)
    ):
        raise InputError(f"{name} must be a whole number of at least 1, got {n!r}.")
    return int(n)


def as_counts(n: object, name: str = "n") -> list[int]:
    """One or several whole numbers ≥ 1."""
    if isinstance(n, Tensor | np.ndarray):
        n = n.tolist()
    values = list(n) if isinstance(n, Sequence | range) and not isinstance(n, str) else [n]
    if not values:
        raise InputError(f"{name} is empty: give at least one number of tokens.")
    return [as_count(one, name) for one in values]


def as_positive(value: object, name: str) -> float:
    """A finite number > 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.number)
        or not 0 < float(value) < np.inf
    ):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}.")
    return float(value)


def as_generator(generator: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator; a whole number is taken as the seed of a fresh one."""
    if isinstance(generator, torch.Generator):
        return generator
    if isinstance(generator, bool) or not isinstance(generator, int | np.integer):
        raise InputError(f"generator must be a torch.Generator or a seed (int), got {generator!r}.")
    if not -(2**63) <= generator < 2**63:
        raise InputError(f"A seed is a whole number of 64 bits, from −2⁶³ to 2⁶³ − 1, got {generator}.")
    return torch.Generator(device).manual_seed(int(generator))


def as_one_of(value: T, choices: object, name: str) -> T:
    """One of the values of a Literal type."""
    allowed = get_args(choices)
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}.")
    return value
