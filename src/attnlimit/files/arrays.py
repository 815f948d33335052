"""Rows of a matrix on disk, a block at a time: .npy and .safetensors, memory-mapped, no pickle."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tokenize import TokenError

import numpy as np
import torch
from torch import Tensor

from attnlimit.errors import InputError

_SAFETENSORS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NPY = {"<f8": torch.float64, "<f4": torch.float32, "<f2": torch.float16}


@dataclass(frozen=True)
class RowFile:
    """A (rows, columns) array of floats at `offset` bytes into a file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start … stop − 1. Each call maps only these pages, and lets go of them with the tensor."""
        width = self.shape[1] * self.dtype.itemsize
        count = (stop - start) * width
        pages = np.memmap(self.path, np.uint8, mode="c", offset=self.offset + start * width, shape=(count,))
        return torch.from_numpy(pages).view(self.dtype).view(stop - start, self.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self, size: int) -> Iterator[Tensor]:
        """All rows in order, at most `size` at a time."""
        for start in range(0, len(self), size):
            yield self.rows(start, min(start + size, len(self)))


def open_rows(path: str | Path, name: str | None = None) -> RowFile:
    """A matrix in a .npy file, or the tensor `name` (the only one, if None) of a .safetensors file."""
    path = Path(path)
    if not os.path.isfile(path):
        if os.path.exists(path):
            raise InputError(f"{path} is a folder, pipe or device: name a .npy or .safetensors file.")
        raise InputError(f"There is no file {path}.")
    if path.suffix == ".npy":
        return _npy(path)
    if path.suffix == ".safetensors":
        return _safetensors(path, name)
    raise InputError(
        f"{path.name} is neither .npy nor .safetensors, the two formats that are read (no pickle)."
    )


def _npy(path: Path) -> RowFile:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_2_0
            if version == (1, 0):
                read = np.lib.format.read_array_header_1_0
            shape, fortran, dtype = read(file)
        except (ValueError, TypeError, SyntaxError, TokenError) as problem:
            raise InputError(f"{path.name} is not a .npy file, or its header is corrupt.") from problem
        offset = file.tell()
    if fortran or dtype.str not in _NPY:
        order = "column-major " if fortran else ""
        raise InputError(
            f"{path.name} holds {order}{dtype.str} data; row-major little-endian floats are read. "
            "Save it again as np.ascontiguousarray(x, dtype='<f4')."
        )
    return _checked(RowFile(path, _NPY[dtype.str], shape, offset))


def _safetensors(path: Path, name: str | None) -> RowFile:
    """Eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length < path.stat().st_size else None
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        raise InputError(f"{path.name} is not a .safetensors file: its header cannot be read.")
    header.pop("__metadata__", None)
    if name is None and len(header) != 1:
        raise InputError(
            f"{path.name} holds {len(header)} tensors ({_some(header)}): name one, open_rows(path, name)."
        )
    name = next(iter(header)) if name is None else name
    if name not in header:
        raise InputError(f"{path.name} has no tensor {name!r}; it has {_some(header)}.")
    match header[name]:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
            if kind not in _SAFETENSORS:
                raise InputError(
                    f"Tensor {name!r} of {path.name} is {kind}; F64, F32, F16 and BF16 are read."
                )
            dtype = _SAFETENSORS[kind]
            whole = start >= 0 and all(type(side) is int for side in shape)
            if whole and stop - start == math.prod(shape) * dtype.itemsize:
                return _checked(RowFile(path, dtype, tuple(shape), 8 + length + start))
    raise InputError(f"{path.name} is not a .safetensors file: its entry {name!r} is corrupt.")


def _some(names: Iterable[str]) -> str:
    first = list(islice(names, 11))
    return ", ".join(first[:10]) + (", …" if len(first) > 10 else "")


def _checked(file: RowFile) -> RowFile:
    if len(file.shape) != 2 or min(file.shape) < 1:
        raise InputError(
            f"{file.path.name} must hold a non-empty matrix (tokens, dimension), got shape {file.shape}."
        )
    need = file.offset + file.shape[0] * file.shape[1] * file.dtype.itemsize
    there = file.path.stat().st_size
    if there < need:
        raise InputError(f"{file.path.name} is cut short: {there} bytes, {need} expected.")
    return file
