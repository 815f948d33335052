"""Many small pieces of work side by side: one thread of torch's for each, instead of all for every small product.

After its work a thread of torch's waits some 10 ms for more, and so busily that nobody else can use its core. Where torch's threads
are those of GNU's OpenMP they are therefore asked to do the pieces themselves; elsewhere threads of Python's stand in for them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

ENOUGH = 8
"""Pieces for each thread."""
TURN = 2e-4
"""Seconds."""
_OWN = os.getpid()
PIECES = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def side_by_side(work: Callable[[T], R], items: Iterable[T], threads: int | None = None) -> list[R]:
    """[work(item) for every item], as many at once as torch has threads, or as told, each with one thread inside.

    Small tensors gain nothing from torch's own threads, whose waiting costs more than the work.
    """
    given, wanted = list(items), threads or free_threads()
    workers, openmp = min(wanted, len(given)), torch_openmp()
    if workers <= 1:
        return [work(item) for item in given]
    if openmp is None:
        # a new thread learns of the one thread only when torch asks, which products of matrices do not
        with one_thread(), _short_turns():
            return list(_python_threads(workers).map(work, given))
    return _by_openmp(openmp, workers, work, given)


class Waiting:
    """Pieces of work that may wait for others, so that all threads have as much to do."""

    def __init__(self) -> None:
        self.pieces: list[Callable[[], object]] = []

    def add(self, pieces: Iterable[Callable[[], object]]) -> None:
        """To be done now or later."""
        self.pieces += pieces
        if len(self.pieces) >= ENOUGH * free_threads():
            self.finish()

    def finish(self) -> None:
        """Do those that wait."""
        pieces, self.pieces = self.pieces, []
        side_by_side(lambda piece: piece(), pieces)


def free_threads() -> int:
    """Torch's threads that a piece of work may use: one among pieces side by side."""
    openmp = torch_openmp()
    return 1 if openmp is not None and openmp.omp_in_parallel() else torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Of torch's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _short_turns() -> Iterator[None]:
    """Of threads in Python: small tensors take less time than a usual turn, after which the other thread would be asleep."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, TURN))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _by_openmp(openmp: Any, workers: int, work: Callable[[T], R], given: list[T]) -> list[R]:
    """Threads take the next piece until none is left, so that it does not matter how many there are."""
    left, found, wrong = iter(range(len(given))), {}, []

    def take(_: object) -> None:
        try:
            for k in left:
                found[k] = work(given[k])
        except BaseException as error:  # it must not leave through C: it is raised below
            wrong.append(error)

    with _short_turns():
        openmp.GOMP_parallel(PIECES(take), None, workers, 0)
    if wrong:
        raise wrong[0]
    return [found[k] for k in range(len(given))]


def torch_openmp() -> Any:
    """GNU's OpenMP that torch has loaded, if there is one. It has no threads in a process that was forked, and would wait for them."""
    return _loaded() if os.getpid() == _OWN else None


@cache
def _loaded() -> Any:
    for path in Path(torch.__file__).parent.glob("lib/libgomp*.so*"):
        try:
            found = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:  # there, but not loaded
            continue
        found.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return found
    return None


@cache
def _python_threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attnlimit", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_python_threads.cache_clear)  # threads do not come along
