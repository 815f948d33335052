"""Rows of a matrix on disk, a block at a time: .npy and .safetensors, memory-mapped, no pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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

    def blocks(self, size: int) -> Iterator[Tensor]:
        for start in range(0, self.shape[0], size):
            yield self.rows(start, min(start + size, self.shape[0]))


def open_rows(path: str | Path, name: str | None = None) -> RowFile:
    """A matrix in a .npy file, or the tensor `name` (the only one, if None) of a .safetensors file."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"No such file: {path}.")
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
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(file)
        except ValueError as problem:
            raise InputError(f"{path.name} is not a .npy file: {problem}.") from problem
        offset = file.tell()
    if fortran or dtype.str not in _NPY:
        order = "column-major " if fortran else ""
        raise InputError(
            f"{path.name} holds {order}{dtype.str} data; row-major little-endian floats are read."
        )
    return _checked(RowFile(path, _NPY[dtype.str], shape, offset))


def _safetensors(path: Path, name: str | None) -> RowFile:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length < path.stat().st_size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise InputError(f"{path.name} is not a .safetensors file: its header cannot be read.")
    names = [key for key in header if key != "__metadata__"]
    if name is None and len(names) != 1:
        raise InputError(
            f"{path.name} holds {len(names)} tensors ({', '.join(names[:5])} …): name one of them."
        )
    entry = header.get(name or names[0])
    if entry is None:
        raise InputError(f"{path.name} has no tensor {name!r}; it has {', '.join(names[:10])}.")
    if entry["dtype"] not in _SAFETENSORS:
        raise InputError(f"Tensor {name!r} of {path.name} is {entry['dtype']}; floats are read.")
    offset = 8 + length + entry["data_offsets"][0]
    return _checked(RowFile(path, _SAFETENSORS[entry["dtype"]], tuple(entry["shape"]), offset))


def _checked(file: RowFile) -> RowFile:
    if len(file.shape) != 2 or 0 in file.shape:
        raise InputError(
            f"{file.path.name} must hold a non-empty matrix (tokens, dimension), got shape {file.shape}."
        )
    need = file.offset + file.shape[0] * file.shape[1] * file.dtype.itemsize
    if file.path.stat().st_size < need:
        raise InputError(f"{file.path.name} is cut short: {file.path.stat().st_size} bytes, {need} expected.")
    return file
