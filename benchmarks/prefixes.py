"""A self-attention curve at 12 prefixes, up to 16,384 tokens, against one pass at the largest."""

from __future__ import annotations

import torch

from attnlimit import Head, prefixes
from benchmarks._data import DIM, draw_keys, sdpa
from benchmarks._figures import figure
from benchmarks._timing import compare

POINTS = 12


def run(quick: bool) -> dict[str, object]:
    top = 4096 if quick else 16_384
    sizes = [round(top / 16 * 16 ** (i / (POINTS - 1))) for i in range(POINTS)]
    tokens, head = draw_keys(top) / DIM**0.25, Head(torch.eye(DIM))
    difference = max(
        float((got - sdpa(tokens[:n], tokens[:n])).abs().max()) for n, got in prefixes(head, tokens, sizes)
    )
    times = compare(
        {
            "one pass": lambda: sdpa(tokens, tokens),
            "prefixes": lambda: [n for n, _ in prefixes(head, tokens, sizes)],
            "separate": lambda: [sdpa(tokens[:n], tokens[:n]) for n in sizes],
        },
        base="one pass",
        rounds=5 if quick else 25,
    )
    curve, separate = times["prefixes"], times["separate"]
    return {
        "setting": f"{POINTS} n from {sizes[0]:,} to {top:,}, self-attention, d = {DIM}, float32",
        "sizes": sizes,
        "figures": [
            figure("time, one SDPA at the largest n = 1", curve.median, "×", at_most=1.15, **curve.details()),
            figure("time of 12 separate SDPA", separate.median, "×", **separate.details()),
            figure("largest difference from SDPA", difference, "", at_most=1e-5),
        ],
    }
