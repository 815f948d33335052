"""Named tensors in one file with a header of words: safetensors, written whole or not at all, no pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnlimit.errors import InputError, needs
from attnlimit.files.records import replacing

SEAL = "sha256"
"""In the header: of the rest of it, and of the tensors, so that what the disk has changed is not taken for numbers."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    save, _ = _library()
    whole = {name: one.contiguous() for name, one in tensors.items()}
    data = save(whole, metadata={**header, SEAL: _seal(whole, header)})
    with replacing(path) as new:
        new.write_bytes(data)  # the library's own way to a file leaves another one behind where it is killed


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, header); InputError for a file that is not there, or damaged. One without a seal is read as it is."""
    _, safe_open = _library()
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
            header = dict(file.metadata() or {})
    except Exception as problem:  # safetensors has errors of several kinds
        raise InputError(f"{path} cannot be read: {problem}.") from problem
    if header.pop(SEAL, None) not in (None, _seal(tensors, header)):
        raise InputError(f"{path} cannot be read: it is damaged, its bytes are not those that were written.")
    return tensors, header


def _seal(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    total = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name, one in sorted(tensors.items()):
        total.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
        total.update(one.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _library() -> tuple[Any, Any]:
    with needs("Checkpoints need safetensors", "models"):
        from safetensors import safe_open
        from safetensors.torch import save
    return save, safe_open
