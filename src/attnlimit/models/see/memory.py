"""What an analysis needs in memory, said before it starts."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnlimit.exact.prepare import MODELS_BIN_ABOVE, QUERIES_AT_ONCE
from attnlimit.models.see.layers import first_count
from attnlimit.numerics.binning import MOST_BINS

QUADRATURE_POINTS = 160
"""Of the exact error, rarely more."""
ALLOCATOR = 2.0
"""The C library keeps about as much again of what was freed."""
LARGE = 2**17
"""Bytes from which a tensor is given back to the system when it is freed, where weights come and go."""
OVERHEAD = 60e6
"""Buffers of torch and compiled loops."""
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes: the model's weights, and the most that is there beside them at one time (an estimate)."""

    weights: float
    peak: float

    def __str__(self) -> str:
        return f"about {self.peak / 1e9:.2g} GB beside the model's {self.weights / 1e9:.2g} GB"


def estimate_memory(
    model: Any, *, tokens: int, keys: int, queries: int, points: int, backward: bool = False
) -> Memory:
    """One layer of the forward pass over `tokens` tokens (states, q, k, v and what is between its two linear maps), and
    the curves of as many heads at once as torch has threads, `queries` queries over `keys` keys at `points` sizes; or, if
    that is more, all layers and logits of a pass that can go `backward`."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    hidden = first_count((config,), "hidden_size", "d_model", "n_embd") or 1024
    inner = first_count((config,), "intermediate_size", "d_ff", "n_inner", "hidden_dim") or 4 * hidden
    heads = first_count((config,), "num_attention_heads", "num_heads", "n_head", "n_heads") or 12
    width = first_count((config,), "head_dim", "d_kv") or hidden // heads
    size = next(model.parameters()).element_size()
    layer = tokens * (10 * hidden + 2.5 * inner) * size
    few = min(queries, QUERIES_AT_ONCE)
    atoms = MOST_BINS if keys > MODELS_BIN_ABOVE else keys
    scores = 50.0 * queries * keys
    if keys > MODELS_BIN_ABOVE:
        curves = 80.0 * few * atoms * (width + 4)
    else:
        curves = 24.0 * few * QUADRATURE_POINTS * points * (width + 4)
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    at_once = layer + torch.get_num_threads() * (scores + curves)
    graph = 0.0
    if backward:
        layers = first_count((config,), "num_hidden_layers", "n_layer", "num_layers") or 12
        classes = first_count((config,), "vocab_size") or 0
        graph = tokens * (layers * (10 * hidden + 4 * inner) * size + 12.0 * classes)
    return Memory(float(weights), OVERHEAD + max(ALLOCATOR * at_once, graph))


def available_memory(device: torch.device) -> float | None:
    """Bytes that may still be taken there; None: the system does not say."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        line = next(one for one in lines if one.startswith("MemAvailable:"))
        found.append(1024.0 * int(line.split()[1]))
    with suppress(OSError, ValueError):
        found.extend(_left_by_groups())
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        held = dict(re.findall(r"(Vm\w+):\s*(\d+)", Path("/proc/self/status").read_text(encoding="utf-8")))
        for kind, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                found.append(max(0.0, float(limit) - 1024.0 * int(held[name])))
    return min(found, default=None)


def _left_by_groups() -> Iterator[float]:
    """What the limits of the process's control groups leave, as those of containers and of clusters' jobs; files that were
    read are counted there, and give way."""
    for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds == "":  # the second version of Linux's groups, then the first
            top, limit, used, files = GROUPS, "max", "current", ""
        elif "memory" in kinds.split(","):
            top, limit, used, files = GROUPS / "memory", "limit_in_bytes", "usage_in_bytes", "total_"
        else:
            continue
        inner = top / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if not folder.is_relative_to(top):
                break
            with suppress(OSError, ValueError):  # without a limit, or seen from inside a container
                most, held, told = (
                    (folder / f"memory.{name}").read_text(encoding="utf-8") for name in (limit, used, "stat")
                )
                cached = re.findall(rf"^{files}(?:in)?active_file (\d+)", told, re.MULTILINE)
                yield float(int(most) - int(held) + sum(map(int, cached)))


def give_back() -> None:
    """From now on what is freed of large tensors goes back to the system. The C library of Linux would learn from the first
    weights freed to keep as many for later, and what is made between them then keeps it from using them again."""
    with suppress(AttributeError, OSError, TypeError):  # other systems give back what is large
        ctypes.CDLL(None).mallopt(-3, LARGE)  # -3: M_MMAP_THRESHOLD
