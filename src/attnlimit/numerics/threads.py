"""Many small pieces of work side by side: one thread of torch's for each, instead of all for every small product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def one_thread() -> Iterator[None]:
    """Of torch's: after a product on several, these wait for the next one for some 10 ms, and so busily that nobody else can work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def side_by_side(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """[work(item) for every item], as many at once as torch has threads, each with one thread inside.

    Small tensors gain nothing from torch's own threads, whose waiting costs more than the work.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [work(item) for item in items]
    # a new thread learns of the one thread only when torch asks, which products of matrices do not
    with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(work, items))
