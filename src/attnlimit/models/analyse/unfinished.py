"""What an analysis has measured so far, on disk after every passage or some layers: the same analysis goes on from there, bit for bit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnlimit.designs import Sampling
from attnlimit.errors import InputError
from attnlimit.files.tensors import read_tensors, write_tensors
from attnlimit.models.analyse.heads import Measured
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.moments import Moments

OBJECTS: dict[str, Any] = {"Measured": Measured, "Moments": Moments}


@dataclass(frozen=True)
class Unfinished:
    """The file, and the key of the analysis that may go on from it."""

    path: Path
    key: str

    def read(self) -> Any | None:
        """What the same analysis left there; None if there is nothing, or another's."""
        if not self.path.exists():
            return None
        try:
            tensors, header = read_tensors(self.path)
        except InputError:
            return None
        return _built(json.loads(header["state"]), tensors) if header.get("key") == self.key else None

    def write(self, state: object) -> None:
        tensors: dict[str, Tensor] = {}
        words = json.dumps(_taken_apart(state, tensors))
        write_tensors(self.path, tensors, {"key": self.key, "state": words})


def key_of(loaded: Loaded, *determined_by: object) -> str:
    """SHA-256 of the model, its weights included, of the number of threads, on which sums depend, and of what else is given."""
    model = loaded.model
    total = hashlib.sha256(repr((loaded.name, loaded.kind, torch.get_num_threads(), determined_by)).encode())
    total.update(model.config.to_json_string().encode())
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        total.update(f"{name} {one.dtype} {tuple(one.shape)} {one.device}".encode())
        if not one.is_meta:  # those on disk are known by their files
            total.update(one.detach().contiguous().flatten().view(torch.uint8).cpu().numpy())
    folder = Path(loaded.name)
    if folder.is_dir():
        files = filter(Path.is_file, folder.iterdir())  # what is written may be a folder among them
        facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        total.update(repr(sorted(facts)).encode())
    return total.hexdigest()


def _taken_apart(value: Any, tensors: dict[str, Tensor]) -> Any:
    """As JSON, with tensors by name."""
    kind = type(value).__name__
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone()
        return {"Tensor": [name, str(value.device)]}
    if isinstance(value, Sampling):
        return {kind: value.to_dict()}
    if isinstance(value, dict):
        return {kind: [[_taken_apart(one, tensors) for one in item] for item in value.items()]}
    if isinstance(value, list | tuple):
        return {kind: [_taken_apart(one, tensors) for one in value]}
    return {kind: _taken_apart(vars(value), tensors)} if kind in OBJECTS else value


def _built(value: Any, tensors: dict[str, Tensor]) -> Any:
    """What was taken apart."""
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "Tensor":
        name, device = inside
        return tensors[name].to(device)
    if kind == "Sampling":
        return Sampling.from_dict(inside)
    if kind in OBJECTS:
        made = object.__new__(OBJECTS[kind])
        made.__dict__.update(_built(inside, tensors))
        return made
    if kind == "dict":
        return {_built(key, tensors): _built(one, tensors) for key, one in inside}
    return (tuple if kind == "tuple" else list)(_built(one, tensors) for one in inside)
