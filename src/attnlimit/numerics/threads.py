"""Many small pieces of work side by side: one thread of torch's for each, instead of all for every small product."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """[work(item) for every item], as many at once as torch has threads, each with one thread inside.

    Small tensors gain nothing from torch's own threads, whose waiting costs more than the work.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [work(item) for item in items]
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)
