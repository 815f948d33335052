"""Loops that torch cannot fuse, compiled where numba is installed (the extra `fast`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from attnlimit.numerics.threads import free_threads, side_by_side, torch_openmp


@cache
def has_numba() -> bool:
    """Whether compiled loops are available."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def run_compiled(
    loop: Callable[..., None], count: int, *given: Tensor | np.ndarray, threads: int | None = None
) -> None:
    """loop(start, stop, *arrays) over the rows 0 … count − 1, compiled, shared out over so many threads, by default torch's number."""
    compiled = _compile(loop)
    workers, openmp = max(1, min(count, threads or free_threads())), torch_openmp()
    if workers > 1 and openmp is not None and all(map(_is_flat, given)):
        from attnlimit.numerics.shared_out import share_out  # imports numba

        share_out(openmp, compiled, count, workers, given)
        return
    arrays = [one.detach().numpy() if isinstance(one, Tensor) else one for one in given]
    edges = [count * k // workers for k in range(workers + 1)]
    side_by_side(lambda k: compiled(edges[k], edges[k + 1], *arrays), range(workers), threads)


def _is_flat(one: Tensor | np.ndarray) -> bool:
    return one.is_contiguous() if isinstance(one, Tensor) else one.flags.c_contiguous


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
