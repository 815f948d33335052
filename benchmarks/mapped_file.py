"""Streaming attention over 10,000,000 keys in a memory-mapped .npy file: memory must not grow with n."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from attnlimit import Head, stream
from benchmarks._data import DIM, draw_keys, draw_queries, sdpa
from benchmarks._figures import figure
from benchmarks._memory import HOW, peak_growth

QUERIES = 64
COPIES = 10


def run(quick: bool) -> dict[str, object]:
    """The large file repeats the small one's keys, so that both must give the same outputs."""
    n = 100_000 if quick else 1_000_000
    keys = draw_keys(n)
    with tempfile.TemporaryDirectory(prefix="attnlimit-bench-") as folder:
        write(Path(folder, "small.npy"), keys.numpy(), 1)
        write(Path(folder, "large.npy"), keys.numpy(), COPIES)
        size = Path(folder, "large.npy").stat().st_size / 1e9
        small, _ = peak_growth("mapped_file", "one_pass", f"{folder}/small.npy")
        large, outputs = peak_growth("mapped_file", "one_pass", f"{folder}/large.npy")
    difference = float((torch.tensor(outputs) - sdpa(draw_queries(QUERIES), keys)).abs().max())
    return {
        "setting": f"{n:,} and {COPIES * n:,} keys, {QUERIES} queries, d = {DIM}, float32",
        "figures": [
            figure("size of the large file", size, "GB"),
            figure(f"extra memory, {n:,} keys", small, "MB", how=HOW),
            figure(f"extra memory, {COPIES * n:,} keys", large, "MB", at_most=256, how=HOW),
            # Half a block of keys: room for the allocator, none for what n brings.
            figure("growth of it", large - small, "MB", at_most=16),
            figure("largest difference from SDPA", difference, "", at_most=1e-5),
        ],
    }


def write(path: Path, keys: np.ndarray, copies: int) -> None:
    """The same keys `copies` times, one copy after the other."""
    with path.open("wb") as file:
        shape = (copies * len(keys), keys.shape[1])
        header = {"descr": keys.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(copies):
            keys.tofile(file)


def one_pass(path: str) -> Callable[[], list[list[float]]]:
    queries, head = draw_queries(QUERIES), Head(torch.eye(DIM))
    stream(head, draw_keys(1024), queries[:1])  # libraries set themselves up at the first call
    return lambda: stream(head, path, queries).tolist()
