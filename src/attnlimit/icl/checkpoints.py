"""A training run on disk: one .safetensors file, tensors and a JSON header, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from attnlimit.errors import InputError, MissingExtra
from attnlimit.files.records import replacing

SCHEMA = "attnlimit.icl/2"


def write(path: Path, plan: dict[str, Any], step: int, tensors: dict[str, Tensor]) -> None:
    save_file, _ = _library()
    header = {"schema": SCHEMA, "plan": json.dumps(plan), "step": str(step)}
    with replacing(path) as new:
        save_file({name: value.contiguous() for name, value in tensors.items()}, new, metadata=header)


def read(path: Path, plan: dict[str, Any]) -> tuple[int, dict[str, Tensor]]:
    """(step, tensors) of the file, if the same plan wrote it."""
    _, safe_open = _library()
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        before, step = json.loads(header["plan"]), int(header["step"])
        if header["schema"] != SCHEMA:
            raise InputError(f"{path} has schema {header['schema']!r}, but this version reads {SCHEMA!r}.")
    except InputError:
        raise
    except Exception as problem:  # safetensors has errors of several kinds
        raise InputError(
            f"{path} is not a checkpoint of icl.train: {problem}. Delete it to start anew."
        ) from problem
    now = json.loads(json.dumps(plan))
    for name in sorted(now.keys() | before.keys()):
        if now.get(name) != before.get(name):
            raise InputError(
                f"{path} belongs to another run: its {name} is {before.get(name)!r}, now {now.get(name)!r}. "
                "Give the same settings, or another checkpoint file."
            )
    return step, tensors


def _library() -> tuple[Any, Any]:
    try:
        from safetensors import safe_open
        from safetensors.torch import save_file
    except ImportError as missing:
        raise MissingExtra("Checkpoints need safetensors: pip install 'attnlimit[models]'.") from missing
    return save_file, safe_open
