"""Streaming attention over 1,000,000 keys against one fused SDPA call on the same data."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnlimit import Head, stream
from benchmarks._data import DIM, draw_keys, draw_queries, sdpa
from benchmarks._figures import figure
from benchmarks._memory import HOW, peak_growth
from benchmarks._timing import compare

QUERIES = 1024


def run(quick: bool) -> dict[str, object]:
    n = 100_000 if quick else 1_000_000
    keys, queries, head = draw_keys(n), draw_queries(QUERIES), Head(torch.eye(DIM))
    difference = float((stream(head, keys, queries) - sdpa(queries, keys)).abs().max())
    times = compare(
        {"stream": lambda: stream(head, keys, queries), "sdpa": lambda: sdpa(queries, keys)},
        base="stream",
        rounds=5 if quick else 15,
    )
    throughput = times["sdpa"]
    memory, _ = peak_growth("streaming", "one_pass", n)
    return {
        "setting": f"{n:,} keys, {QUERIES:,} queries, d = {DIM}, float32",
        "figures": [
            figure("throughput, SDPA = 1", throughput.median, "×", at_least=0.85, **throughput.details()),
            figure("extra memory", memory, "MB", at_most=256, how=HOW),
            figure("largest difference from SDPA", difference, "", at_most=1e-5),
        ],
    }


def one_pass(n: int) -> Callable[[], None]:
    keys, queries, head = draw_keys(n), draw_queries(QUERIES), Head(torch.eye(DIM))
    stream(head, keys[:1024], queries[:1])  # libraries set themselves up at the first call

    def work() -> None:
        stream(head, keys, queries)

    return work
