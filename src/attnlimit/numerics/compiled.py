"""Loops that torch cannot fuse, compiled where numba is installed (the extra `fast`)."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def has_numba() -> bool:
    """Whether compiled loops are available."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def run_compiled(loop: Callable[..., None], count: int, *tensors: Tensor, threads: int | None = None) -> None:
    """loop(start, stop, *arrays) over the rows 0 … count − 1, compiled, shared out over so many threads, by default torch's number.

    Plain threads, and not numba's own: a second pool of spinning workers would slow torch's down.
    """
    compiled = _compile(loop)
    arrays = [tensor.detach().numpy() for tensor in tensors]
    workers = max(1, min(count, threads or torch.get_num_threads()))
    if workers == 1:
        compiled(0, count, *arrays)
        return
    edges = [count * k // workers for k in range(workers + 1)]
    pool = _threads(workers - 1)
    jobs = [pool.submit(compiled, edges[k], edges[k + 1], *arrays) for k in range(1, workers)]
    compiled(0, edges[1], *arrays)
    for job in jobs:
        job.result()


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attnlimit")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not come along


@cache
def _compile(loop: Callable[..., None]) -> Callable[..., None]:
    return _compiled(loop)


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled, for loops of the same file to call (numba looks for changes in that file alone). It makes no arrays, so that nobody
    need count who uses them. Needs numba."""
    return _compiled(function, _nrt=False)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    import numba

    plain = inspect.unwrap(function)  # run-time type checks, where a test run adds them, do not compile
    options |= {"fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy"}
    compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True, **options)(plain)
    return compiled
