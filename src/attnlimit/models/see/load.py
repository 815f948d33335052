"""Load a model and its tokenizer: from the hub by name, from a folder, or from a GGUF file.

Weights come as safetensors or GGUF, never pickled, and no code of a checkpoint is ever run. A local path
never goes to the network. A GGUF file is converted once, and kept as safetensors.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attnlimit.doors import door
from attnlimit.errors import AttnlimitError, InputError, MissingExtra, ModelNotSupported
from attnlimit.models.see import converted
from attnlimit.models.see.checkpoint import (
    COPY,
    check_config,
    check_weights,
    digest,
    guard_tokens,
    same_weights,
)
from attnlimit.models.see.converted import first_line
from attnlimit.models.see.find import PACKAGED, Source, find, short_name
from attnlimit.models.see.layers import notes
from attnlimit.models.see.memory import available_memory, give_back

KINDS = {
    "encoder": "AutoModel",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "classifier": "AutoModelForSequenceClassification",
}
"""What a model is for, and the transformers class that loads it."""

HUB_SECONDS = 5
"""How long the hub may take for a first answer; without one its cache is looked at."""
ROOM = 0.7
"""Share of the free memory that weights may take where a model is spread."""
TOKENIZER_FILES = re.compile(r"tokenizer.*|vocab.*|merges\.txt|spiece\.model|sentencepiece.*|tekken\.json")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in evaluation mode without gradients, and what goes with it."""

    made_by = "load(name) gives one."

    model: Any = field(repr=False)
    tokenizer: Any | None = field(repr=False)
    name: str
    kind: str
    notes: tuple[str, ...] = ()
    tokenizer_problem: str = field(default="", repr=False)

    @property
    def device(self) -> torch.device:
        """Where its inputs go."""
        return input_device(self.model)

    @property
    def on_disk(self) -> bool:
        """Whether some of its weights are not in memory but fetched layer by layer."""
        return any(one.is_meta for one in self.model.parameters())

    @property
    def weights(self) -> str:
        """What they are known by."""
        return digest(self.model)

    def unlike(self, model: str, weights: str) -> str:
        """The model of that name and these weights, if it is another one; nothing if it is this one, or may be."""
        if model not in ("", short_name(self.name)):
            return model
        return "" if same_weights(weights, self.weights) else f"another {model or 'model'}"

    def need_tokenizer(self) -> Any:
        """The tokenizer, or an error that says why there is none."""
        if self.tokenizer is None:
            raise InputError(
                f"'{self.name}' came without a tokenizer ({self.tokenizer_problem}), so text cannot be read. Put its "
                "tokenizer files (tokenizer.json, tokenizer_config.json) into the model's folder, or pass token ids."
            )
        return self.tokenizer


@door
def load(
    name_or_path: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    task: str | None = None,
    note: Callable[[str], object] | None = None,
) -> Loaded:
    """A model by hub id, folder, .gguf file or one of PACKAGED, ready to be observed.

    task is one of KINDS; None goes by the checkpoint's own architecture. dtype and device_map are transformers'
    own ("auto" included); dtype None is the dtype the weights were saved in. device "auto" fills the GPUs, then memory, and
    leaves on disk what finds no room, to be fetched layer by layer. A GGUF file is converted the first time, which
    is slow, and kept in $ATTNLIMIT_CACHE (~/.cache/attnlimit). `note` is told so, and what the model's `notes` say: what was
    changed in it, and which layers are not seen.
    """
    need_transformers()
    if device is not None and device_map is not None:
        raise InputError("device and device_map say the same thing twice: give one of them.")
    if task is not None and task not in KINDS:
        raise InputError(f"task must be one of {', '.join(KINDS)}, got {task!r}.")
    spread = {} if device_map is None else {"device_map": device_map}
    if device == "auto":
        device, spread = None, _spread()
    device, dtype = _device(device), _dtype(dtype)
    source = find(name_or_path)
    if not source.local and not _hub_answers():
        source = replace(source, cached=True)
    options = {"dtype": dtype or "auto", **spread}
    loaded = _from_gguf(source, task, options, note) if source.gguf else _read(source, task, options)
    if loaded.on_disk:
        if not hasattr(loaded.model, "hf_device_map"):
            raise ModelNotSupported(
                f"No layer of {source.name} finds room in memory, and transformers {need_transformers().__version__} does not "
                "fetch a model that is wholly on disk: free some memory, or install transformers 5.13 or newer."
            )
        give_back()
    if device is not None:
        loaded.model.to(device)
    if note is not None:
        for one in loaded.notes:
            note(one)
    return loaded


def _spread() -> dict[str, Any]:
    """Over devices, memory and disk, through accelerate, with room left for the work itself."""
    try:
        from accelerate.utils import get_max_memory
    except ImportError as missing:
        raise MissingExtra("--device auto needs accelerate: pip install 'attnlimit[models]'.") from missing
    most = dict(get_max_memory())
    room = available_memory(torch.device("cpu"))
    if room is not None:
        most["cpu"] = int(min(most["cpu"], ROOM * room))
    return {"device_map": "auto", "max_memory": most}


def _device(given: str | torch.device | None) -> torch.device | None:
    """A device of this machine that can hold numbers."""
    if given is None:
        return None
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as problem:
        raise InputError(
            f"There is no device {given!r} here ({first_line(problem).split('. ')[0]}). Leave it out, or say cpu or auto."
        ) from problem
    if device.type == "meta":
        raise InputError(
            "The device meta holds shapes without numbers, so nothing can be computed on it: say cpu."
        )
    return device


def _dtype(given: str | torch.dtype | None) -> str | torch.dtype | None:
    dtype = getattr(torch, given, None) if isinstance(given, str) and given != "auto" else given
    if dtype in (None, "auto") and given in (None, "auto"):
        return dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise InputError(f"dtype must be float32, bfloat16, float16, float64 or auto, got {given!r}.")
    return dtype


def _hub_answers() -> bool:
    """One question, without the library's retries."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except Exception:  # whatever its HTTP library has for it
        return False
    return True


def _read(source: Source, task: str | None, options: dict[str, Any], quiet: bool = True) -> Loaded:
    transformers = need_transformers()
    silence = _quiet(transformers) if quiet else nullcontext()
    # Weights that a checkpoint lacks are drawn at random by transformers: not from the caller's generator.
    with _plain_errors(source), silence, torch.random.fork_rng(devices=[]):
        config = transformers.AutoConfig.from_pretrained(source.place, **source.arguments())
        check_config(config, source.name)
        kind = task or _kind(config, source)
        changed = _prepare(config)
        model, report = getattr(transformers, _class(config, kind)).from_pretrained(
            source.place,
            config=config,
            output_loading_info=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **options,
            **source.arguments(),
        )
    check_weights(model, report, source.name, kind)
    guard_tokens(model, source.name)
    tokenizer, problem = _tokenizer(transformers, source)
    model.eval().requires_grad_(False)
    return Loaded(model, tokenizer, source.name, kind, (*changed, *notes(model)), problem)


def _from_gguf(
    source: Source, task: str | None, options: dict[str, Any], note: Callable[[str], object] | None
) -> Loaded:
    transformers = need_transformers()
    file, dtype = Path(source.place, str(source.gguf)), str(options["dtype"]).removeprefix("torch.")
    # torch's default dtype is what "auto" comes to for most GGUF files.
    folder = converted.place(file, transformers.__version__, dtype, torch.get_default_dtype(), task)
    kept = _kept(folder, source, task, options)
    if kept is not None:
        return kept
    if note is not None:
        note(f"{source.name} is GGUF: it is converted once, which can take a minute, and kept in {folder}.")
    shown = note is not None and sys.stderr.isatty()
    with converted.parsed_once(shown):
        unpacked = {**options, **converted.unpack_options(transformers)}
        loaded = _read(source, task, unpacked, quiet=not shown)
    converted.forget_packing(loaded.model)
    with _quiet(transformers):
        problem = converted.keep(loaded.model, loaded.tokenizer, folder)
    if problem and note is not None:
        note(
            f"{source.name} could not be kept ({problem}), so the next load converts it again. Name a folder that can be "
            "written: ATTNLIMIT_CACHE=folder."
        )
    return loaded


def _kept(folder: Path, source: Source, task: str | None, options: dict[str, Any]) -> Loaded | None:
    """What was kept of a GGUF file. A damaged entry is removed."""
    if not os.path.isdir(folder):
        return None
    try:
        loaded = _read(replace(source, place=str(folder), gguf=None), task, options)
        if loaded.tokenizer is not None:
            return loaded
        if not _has_tokenizer(folder):
            tokenizer, reason = _tokenizer(need_transformers(), source)
            return replace(loaded, tokenizer=tokenizer, tokenizer_problem=reason)
    except (InputError, ModelNotSupported, OSError) as problem:
        if _no_memory(problem.__cause__):
            raise
    shutil.rmtree(folder, ignore_errors=True)
    return None


def input_device(model: Any) -> torch.device:
    """Where a model's inputs go: layers whose weights lie elsewhere, or on disk, fetch what they need."""
    device: torch.device = model.device
    return torch.device("cpu") if device.type == "meta" else device


def run_backbone(loaded: Loaded, **inputs: torch.Tensor) -> None:
    """The model without its head, for what its attention does: logits are not made."""
    loaded.model.base_model(**inputs, **decoder_inputs(loaded, inputs["input_ids"]))


def decoder_inputs(loaded: Loaded, ids: torch.Tensor) -> dict[str, Any]:
    """What a decoder is given besides: one beside an encoder reads the same text, and none keeps its keys."""
    if loaded.kind == "seq2seq":
        return {"decoder_input_ids": ids, "use_cache": False}
    return {"use_cache": False} if loaded.kind == "causal-lm" else {}


def _kind(config: Any, source: Source) -> str:
    architecture = _architecture(config)
    if architecture.endswith("SequenceClassification"):
        return "classifier"
    if config.is_encoder_decoder and not architecture.endswith("EncoderModel"):
        return "seq2seq"
    if source.gguf is not None or architecture.endswith(
        ("CausalLM", "LMHeadModel", "ForConditionalGeneration")
    ):
        return "causal-lm"
    if architecture.endswith("MaskedLM") or architecture in ("BertForPreTraining", "BigBirdForPreTraining"):
        return "masked-lm"
    return "encoder"


def _class(config: Any, kind: str) -> str:
    # Of models that are encoder and decoder, AutoModel would build both.
    both = config.is_encoder_decoder or _architecture(config).endswith("EncoderModel")
    return "AutoModelForTextEncoding" if kind == "encoder" and both else KINDS[kind]


def _architecture(config: Any) -> str:
    return str((getattr(config, "architectures", None) or [""])[0])


def _prepare(config: Any) -> tuple[str, ...]:
    # A config can name attention of the hub, which is code. Before 5.21 fused attention leaves out a soft cap.
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    config._attn_implementation = "eager" if capped else None
    if getattr(config, "attention_type", None) == "block_sparse":
        config.attention_type = "original_full"
        return (
            f"{config.model_type} is loaded with full attention (attention_type='original_full') in place of its "
            "random blocks, which are no softmax over all keys.",
        )
    return ()


def _tokenizer(transformers: Any, source: Source) -> tuple[Any | None, str]:
    if source.local and source.gguf is None and not _has_tokenizer(Path(source.place)):
        return None, "no tokenizer files"
    try:
        found = transformers.AutoTokenizer.from_pretrained(source.place, **source.arguments())
        found("a")  # some faults show only then
        return found, ""
    except Exception as problem:  # of transformers, of tokenizers, and of what a damaged file leads them to
        return None, f"its files cannot be read: {_in_words(problem)}"


def _has_tokenizer(folder: Path) -> bool:
    return any(TOKENIZER_FILES.fullmatch(file.name) for file in folder.iterdir())


@contextmanager
def _plain_errors(source: Source) -> Iterator[None]:
    # transformers' errors are long and do not know what we refuse; say what happened and what to do.
    from safetensors import SafetensorError

    try:
        yield
    except AttnlimitError:
        raise
    except (OSError, SafetensorError) as problem:
        if source.local:
            raise InputError(f"{source.name} cannot be read: {first_line(problem)}") from problem
        raise InputError(
            f"'{source.name}' cannot be had from the Hugging Face hub: no network, no such model, or no safetensors in "
            f"it ({first_line(problem)}). There is no folder of that name here either. Download the model where there is "
            f"network and pass the path of its folder, or take a packaged model: {', '.join(PACKAGED)}."
        ) from problem
    except ImportError as problem:
        raise MissingExtra(f"{first_line(problem)} All of it: pip install 'attnlimit[models]'.") from problem
    except (RuntimeError, MemoryError) as problem:
        if isinstance(problem, NotImplementedError):
            raise _not_loaded(source, problem) from problem
        if _no_memory(problem):
            raise ModelNotSupported(
                f"{source.name} does not fit the memory: spread it over devices, memory and disk (--device auto; a GGUF file "
                f"must fit once, when it is converted), or use a smaller dtype ({first_line(problem)})."
            ) from problem
        raise InputError(
            f"{source.name} cannot be loaded: its config.json does not match its weights, or they are damaged "
            f"({first_line(problem)}). {COPY}"
        ) from problem
    except (ValueError, LookupError, NotImplementedError, struct.error) as problem:
        if source.gguf is not None and "not supported" not in str(problem):
            raise InputError(f"{source.name} cannot be read as GGUF: {first_line(problem)}") from problem
        raise _not_loaded(source, problem) from problem
    except Exception as problem:  # whatever a senseless config leads to
        raise InputError(
            f"{source.name} cannot be loaded: transformers {need_transformers().__version__} cannot make a model of its config.json "
            f"({_in_words(problem)}). {COPY}"
        ) from problem


def _no_memory(problem: BaseException | None) -> bool:
    return isinstance(problem, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(problem)


def _in_words(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split()):.200}"


def _not_loaded(source: Source, problem: Exception) -> ModelNotSupported:
    return ModelNotSupported(
        f"transformers {need_transformers().__version__} cannot load '{source.name}' by itself, and no code of a "
        f"checkpoint is ever run: {first_line(problem)} Upgrade transformers, ask for another task, or choose a model "
        "that it knows."
    )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without bars, and without a table of weights that are not needed: those that are missing are told by us."""
    log = transformers.utils.logging
    shown, level = log.is_progress_bar_enabled(), log.get_verbosity()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if shown:
            log.enable_progress_bar()


def need_transformers() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import transformers
    except ImportError as problem:
        raise MissingExtra("Models need transformers: pip install 'attnlimit[models]'.") from problem
    return transformers
