"""Checks at the public edge: turn what people pass into tensors, or say plainly what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from attnlimit.errors import InputError

Array: TypeAlias = Annotated[
    Tensor | np.ndarray | Sequence[object] | float | int, "numbers (a tensor, an array, a list or one number)"
]
"""What public functions accept: tensors and numpy arrays as they are, plain numbers converted."""
EXACT = (torch.float32, torch.float64)
"""What is computed in; narrower numbers are taken as float32."""
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
T = TypeVar("T")


def as_float(
    value: Array, name: str, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """A finite floating tensor. Tensors and arrays must already have the dtype and device asked for, but half precision
    becomes float32; plain numbers and lists are converted (to float64 unless a dtype is asked for)."""
    if isinstance(value, np.ndarray):
        value = from_numpy(value, name).to(device)
    if isinstance(value, Tensor):
        tensor = widened(as_readable(value, name))
        if not tensor.is_floating_point():
            raise InputError(
                f"{name} must be floating point, got {tensor.dtype}: "
                "scores and outputs are real numbers. Convert it, e.g. x.double()."
            )
        if dtype is not None and tensor.dtype != dtype:
            raise InputError(
                f"{name} has dtype {value.dtype}, but the rest is {dtype}: mixing dtypes would lose "
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
            raise InputError(
                f"{name} must be numbers in a rectangular array, got {shown(value)}."
            ) from problem
    if tensor.is_meta:
        raise InputError(f"{name} is on the meta device, which holds no numbers: use cpu or cuda.")
    # The sum is finite if every entry is, but for overflow: the cheap check comes first.
    if not bool(tensor.sum().isfinite()) and not bool(torch.isfinite(tensor).all()):
        raise InputError(
            f"{name} has {int((~torch.isfinite(tensor)).sum())} entries that are nan or infinite "
            f"out of {tensor.numel()}: clean or drop them first."
        )
    return tensor


def from_numpy(array: np.ndarray, name: str) -> Tensor:
    """The same memory where that can be."""
    if np.ma.is_masked(array):
        raise InputError(
            f"{name} has {int(np.ma.getmaskarray(array).sum())} masked entries: fill or drop them first."
        )
    # torch takes no foreign byte order, negative strides nor, without a warning, read-only memory: those are copied.
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except TypeError as problem:
        raise InputError(f"{name} must be an array of numbers, got dtype {array.dtype}.") from problem


def is_dense(value: object) -> bool:
    """Whether its numbers can be read: arrays, and tensors that are neither sparse, nested, quantized nor on meta."""
    return not isinstance(value, Tensor) or not (
        value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_meta
    )


def as_readable(value: T, name: str) -> T:
    """The same, if it is no tensor whose numbers cannot be read; those on meta are told apart where they are used."""
    if not is_dense(value) and not getattr(value, "is_meta", False):
        raise InputError(
            f"{name} must be a dense tensor, got {shown(value)}: make it one, e.g. x.to_dense()."
        )
    return value


def widened(tensor: Tensor) -> Tensor:
    """Half precision as float32: its three digits are lost at once in differences of n tokens from infinitely many."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype not in EXACT else tensor


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


def as_vector(value: Array, dim: int | None, name: str, *, like: Tensor) -> Tensor:
    """One vector, of `dim` entries if given."""
    vector = as_float(value, name, dtype=like.dtype, device=like.device)
    if vector.ndim != 1 or dim not in (None, len(vector)):
        entries = "entries" if dim is None else f"{dim} entries, one for each output"
        raise InputError(f"{name} must be one vector with {entries}, got shape {tuple(vector.shape)}.")
    return vector


def as_number(value: Any) -> int | float | None:
    """A number of numpy's, torch's or Python's as Python's; None where it is none."""
    if isinstance(value, np.generic | np.ndarray | Tensor) and not value.ndim and is_dense(value):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or -1e308 < value < 1e308 else np.inf if value > 0 else -np.inf


def in_64_bits(number: int | float, name: str) -> int:
    """What is whole, if torch can count it."""
    if not -(2**63) <= number < 2**63:
        raise InputError(
            f"{name} must be a whole number of 64 bits, from −2⁶³ to 2⁶³ − 1, got {shown(number)}."
        )
    return int(number)


def whole(least: int, most: int = 2**63 - 1, why: str = "") -> Callable[..., int]:
    """Takes whole numbers from `least` to `most`, also as a float such as 1e6 (a value and its name, as all such checks)."""

    def check(n: object, name: str = "n") -> int:
        number = as_number(n)
        if number is None or not least <= number < np.inf or number != int(number):
            raise InputError(f"{name} must be a whole number of at least {least}, got {shown(n)}{why}.")
        if number > most:
            raise InputError(f"{name} must be a whole number of at most {most:,}, got {shown(n)}.")
        return int(number)

    return check


as_count = whole(1)
as_steps = whole(1, 999_999)


def as_counts(n: object, name: str = "n", check: Callable[..., int] = as_count) -> list[int]:
    """One or several whole numbers ≥ 1."""
    if isinstance(n, Tensor | np.ndarray) and is_dense(n):
        n = n.tolist()
    values = list(n) if isinstance(n, Sequence) and not isinstance(n, str | bytes | bytearray) else [n]
    if not values:
        raise InputError(f"{name} is empty: give at least one number of tokens.")
    return [check(one, name) for one in values]


def real(above: float, below: float, what: str, most: float = np.inf) -> Callable[..., float]:
    """Takes numbers between two, neither included, and up to `most`."""

    def check(value: object, name: str) -> float:
        number = as_number(value)
        if number is None or not above < number < below:
            raise InputError(f"{name} must be {what}, got {shown(value)}.")
        if number > most:
            raise InputError(f"{name} must be at most {most:g}, got {shown(value)}: its square is needed.")
        return float(number)

    return check


as_finite = real(-np.inf, np.inf, "a finite number")
as_positive = real(0.0, np.inf, "a finite number above 0", most=1e150)
as_chance = real(0.0, 1.0, "a probability, between 0 and 1 exclusive")


def as_seed(value: object, name: str = "generator") -> torch.Generator | int:
    """A torch generator, or the whole number that is the seed of one."""
    number = value if isinstance(value, torch.Generator) else as_number(value)
    if isinstance(number, torch.Generator):
        return number
    if number is None or not abs(number) < np.inf or number != int(number):
        raise InputError(f"{name} must be a torch.Generator or a seed (int), got {shown(value)}.")
    return in_64_bits(number, "A seed")


def as_generator(generator: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator; a whole number is taken as the seed of a fresh one."""
    seed = as_seed(generator)
    return seed if isinstance(seed, torch.Generator) else torch.Generator(device).manual_seed(seed)


def as_one_of(value: T, choices: object, name: str) -> T:
    """One of the values of a Literal type."""
    allowed = get_args(choices)
    if not isinstance(value, str | int | None) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(str, allowed))}, got {shown(value)}.")
    return value


def as_device(value: object, name: str = "device") -> torch.device:
    """A device of this machine that holds numbers."""
    try:
        found = torch.device(value)  # type: ignore[call-overload]
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as problem:
        raise InputError(
            f"{name} must be a device of this machine, such as cpu or cuda, got {shown(value)}."
        ) from problem
    if found.type == "meta":
        raise InputError(f"{name} is meta, which holds no numbers: use cpu or cuda.")
    return found


def shown(value: object) -> str:
    """In a few words, on one line."""
    if isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
        return f"a {'nested' if value.is_nested else str(value.layout).removeprefix('torch.')} tensor, {value.dtype}"
    if isinstance(value, Tensor | np.ndarray):
        what = "a tensor" if isinstance(value, Tensor) else "an array"
        return f"{what} of shape {tuple(value.shape)}, {value.dtype}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}, not one of it"
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:79]}…"


def as_rising(n: object, name: str = "n") -> list[int]:
    """Whole numbers ≥ 1, each larger than the one before."""
    sizes = as_counts(n, name)
    if any(after <= before for before, after in pairwise(sizes)):
        raise InputError(f"{name} must increase, got {shown(sizes)}: sort them, each once.")
    return sizes


def as_places(
    positions: object, count: int, keys: int, device: torch.device, name: str = "positions"
) -> Tensor:
    """One place among the keys for each of `count` queries, 0 … keys − 1."""
    where = torch.as_tensor(positions)
    if not is_dense(where) or where.shape != (count,) or where.dtype not in WHOLE:
        raise InputError(f"{name} must be {count} whole numbers, one a query, got {shown(positions)}.")
    if int(where.min()) < 0 or int(where.max()) >= keys:
        raise InputError(
            f"{name} must lie in 0 … {keys - 1}, got {int(where.min())} … {int(where.max())}: they count keys."
        )
    return where.to(device).long()


Count: TypeAlias = Annotated[int, as_count]
"""In an annotation, for doors: a whole number ≥ 1."""
Natural: TypeAlias = Annotated[int, whole(0)]
Steps: TypeAlias = Annotated[int, as_steps]
"""By which the time grows: a million is not waited for."""
Repeats: TypeAlias = Annotated[int, whole(2, 999_999, ": their spread tells the error")]
Positive: TypeAlias = Annotated[float | int, as_positive]
Finite: TypeAlias = Annotated[float | int, as_finite]
Chance: TypeAlias = Annotated[float | int, as_chance]
Seeded: TypeAlias = Annotated[torch.Generator | int, as_seed]
Rising: TypeAlias = Annotated[Sequence[int], as_rising]
Device: TypeAlias = Annotated[torch.device | str, as_device]
