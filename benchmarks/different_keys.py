"""The exact error curve of n different keys (16 queries, 4,096 keys, d_h = 64, 24 values of n), in curves of independent keys."""

from __future__ import annotations

from functools import partial

import torch

from attnlimit.designs import Different, Independent, Sampling
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import prepare_seen
from benchmarks._figures import figure
from benchmarks._timing import compare

QUERIES, KEYS, DIM, POINTS = 16, 4096, 64, 24


def run(quick: bool) -> dict[str, object]:
    keys = 2048 if quick else KEYS
    g = torch.Generator().manual_seed(0)
    scores = 1.5 * torch.randn(QUERIES, keys, generator=g, dtype=torch.float64)
    seen = Seen(scores, torch.randn(keys, DIM, generator=g, dtype=torch.float64))
    sizes = torch.logspace(0, 1, POINTS, base=keys - 20, dtype=torch.float64).round()[None]

    def curve(draw: Different | Independent, binned: bool) -> None:
        prepare_seen(seen, keys, Sampling(draw=draw), binned=binned).moments(sizes)

    figures = []
    for binned, target in ((False, 3.0), (True, 3.0)):
        calls = {
            "independent": partial(curve, Independent(), binned),
            "different": partial(curve, Different(), binned),
        }
        time = compare(calls, base="independent", rounds=3 if quick else 9)["different"]
        name = "time, independent keys = 1, " + ("keys binned by score" if binned else "every key by itself")
        figures.append(figure(name, time.median, "×", at_most=target, **time.details()))
    setting = (
        f"{QUERIES} queries × {keys:,} keys × d_h = {DIM}, {POINTS} values of n up to {keys - 20:,}, float64"
    )
    return {"setting": setting, "figures": figures}
