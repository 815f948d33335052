"""Analysis of a real BERT (6 layers, 12 heads) on Wikipedia: time in forward passes over the same text, and memory."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.layers import attention_layers
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.memory import Memory
from attnlimit.models.see.text import texts, token_windows
from benchmarks._figures import figure
from benchmarks._memory import HOW, peak_growth
from benchmarks._timing import compare

PASSAGES, TOKENS, QUERIES = 32, 512, 64
"""32 × 510 real tokens: 16,320 keys."""


def corpus(loaded: Loaded, passages: int) -> list[Memory]:
    """The analysis of all 72 heads at 24 values of n; returns the memory that it said it would take."""
    said: list[Memory] = []
    analyze(
        loaded,
        texts(),
        reading=Reading(tokens=TOKENS, passages=passages, queries=QUERIES, population="corpus"),
        before=said.append,
    )
    return said


def memory_of_corpus(passages: int) -> Callable[[], float]:
    loaded = load(packaged_bert())
    analyze(
        loaded, texts(), reading=Reading(tokens=16, passages=2, queries=2, population="corpus")
    )  # compiles
    return lambda: corpus(loaded, passages)[0].peak / 1e6


def run(quick: bool) -> dict[str, object]:
    passages = 8 if quick else PASSAGES  # fewer keys would not be binned
    loaded = load(packaged_bert())
    windows = token_windows(loaded.tokenizer, texts(), TOKENS, most=passages)
    budgets = Budgets.uniform(attention_layers(loaded.model), 64, tokens=TOKENS)

    def forward() -> object:
        with torch.no_grad():
            return loaded.model(input_ids=windows)

    def sampled() -> None:
        with sampled_attention(loaded.model, budgets, generator=0):
            forward()

    start = perf_counter()
    calls = {"forward": forward, "analysis": lambda: corpus(loaded, passages), "sampled": sampled}
    times = compare(calls, base="forward", rounds=1 if quick else 3)
    analysis = times["analysis"]
    growth, said = peak_growth("models", "memory_of_corpus", passages)
    return {
        "setting": f"72 heads, {QUERIES} queries, {passages * (TOKENS - 2):,} keys, 24 values of n; all of it took "
        f"{perf_counter() - start:.0f} s",
        "figures": [
            figure("analysis, one forward pass = 1", analysis.median, "×", at_most=30, **analysis.details()),
            figure("analysis", min(analysis.seconds), "s (best)", at_most=90),
            figure(
                "sampled model (64 keys per query and head), full model = 1", times["sampled"].median, "×"
            ),
            figure("extra memory of the analysis", growth, "MB", at_most=3000, how=HOW),
            figure("the same over what was said before", growth / float(str(said)), "×", at_most=1.3),
        ],
    }
