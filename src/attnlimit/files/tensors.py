"""Named tensors in one file with a header of words: safetensors, written whole or not at all, no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from attnlimit.errors import InputError, needs
from attnlimit.files.records import replacing


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    save_file, _ = _library()
    from safetensors import SafetensorError

    with replacing(path) as new:
        try:
            save_file({name: one.contiguous() for name, one in tensors.items()}, new, metadata=dict(header))
        except SafetensorError as problem:  # a full disk: not of the kind that the system's errors have
            raise OSError(f"{problem}") from problem


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, header); InputError for a file that is not there, or damaged."""
    _, safe_open = _library()
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118  (not a dict)
    except Exception as problem:  # safetensors has errors of several kinds
        raise InputError(f"{path} cannot be read: {problem}.") from problem


def _library() -> tuple[Any, Any]:
    with needs("Checkpoints need safetensors", "models"):
        from safetensors import safe_open
        from safetensors.torch import save_file
    return save_file, safe_open
