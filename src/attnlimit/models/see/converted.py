"""GGUF files are converted once, and kept as safetensors with their tokenizer.

Parsing a GGUF file and unpacking its weights takes transformers up to a minute; what is kept loads in a second or two.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnlimit.files.cache import cache_folder

LEFT_BEHIND = 86400.0
"""Seconds after which a half-written entry belongs to a process that was killed."""
PROBE = "How many keys do 12 heads need?\n\tNaïve, “quoted” <b>words</b>… and  spaces."
"""A tokenizer is kept only if it still writes this as it did."""
_READING = threading.Lock()


def place(file: Path, transformers_version: str, *choices: object) -> Path:
    """Where a GGUF file's model is kept: elsewhere if the file, the choices or transformers change."""
    facts = file.stat()
    known = (file.name, facts.st_size, facts.st_mtime_ns, transformers_version, PROBE, *choices)
    key = hashlib.sha256("\0".join(map(str, known)).encode()).hexdigest()
    return cache_folder() / "gguf" / f"{file.stem[:80]}-{key[:24]}"


@contextmanager
def parsed_once(shown: bool = False) -> Iterator[None]:
    """Let transformers parse a GGUF file once: by itself it does so for the config, the weights and the tokenizer, and works
    out the names of all tensors again for every module. `shown`: with a bar."""
    if find_spec("gguf") is None:
        yield
        return
    import gguf
    from transformers import modeling_gguf_pytorch_utils as weights

    with _READING:
        others: dict[tuple[Any, str], Any] = {
            (gguf, name): lru_cache(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")
        }
        if hasattr(weights, "tqdm"):
            others[weights, "tqdm"] = partial(weights.tqdm, disable=not shown)
        before = {place: getattr(*place) for place in others}
        for (module, name), other in others.items():
            setattr(module, name, other)
        try:
            yield
        finally:
            for (module, name), own in before.items():
                setattr(module, name, own)


def unpack_options(transformers: Any) -> dict[str, Any]:
    """What from_pretrained takes so that weights are plain tensors, also where kernels could compute with packed ones."""
    packed = getattr(transformers, "GgufConfig", None)
    return {} if packed is None else {"quantization_config": packed(dequantize=True)}


def forget_packing(model: Any) -> None:
    """Take away the marks of a packed model, whose weights are plain tensors by now: with them it cannot be saved."""
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def keep(model: Any, tokenizer: Any | None, folder: Path) -> str:
    """Save a model, whole or not at all. Says why it could not be kept, or nothing; whoever comes first is kept."""
    from safetensors import SafetensorError

    new = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.partial")
    if any(weight.is_meta for weight in model.parameters()):
        return "some of its weights are not in memory"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _tidy(folder.parent)
        model.save_pretrained(new)
        if tokenizer is not None:
            _keep_tokenizer(tokenizer, new)
        for file in new.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        new.rename(folder)
    except (OSError, SafetensorError, ValueError, RuntimeError) as problem:
        return "" if os.path.isdir(folder) else first_line(problem)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return ""


def _keep_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save it, unless what is read again writes a text with other tokens, as some do with transformers 5.3: then that of the GGUF file is read
    every time."""
    from transformers import AutoTokenizer

    written = tokenizer.save_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if again(PROBE)["input_ids"] != tokenizer(PROBE)["input_ids"]:
        for file in map(Path, written):
            file.unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    for old in folder.glob("*.partial"):
        if time.time() - old.stat().st_mtime > LEFT_BEHIND:
            shutil.rmtree(old, ignore_errors=True)


def first_line(problem: BaseException) -> str:
    """Of what other libraries say at length."""
    return str(problem).strip().split("\n")[0]
