"""Analysis of SmolLM2 in its own context (1,024 tokens, 16 queries, 270 heads, different keys): time in forward passes over the same
text, with and without what its heads' errors do to its answer."""

from __future__ import annotations

from functools import partial

import torch

from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.analyse.answer import Answering
from attnlimit.models.see.load import load
from attnlimit.models.see.text import texts, token_windows
from benchmarks._figures import figure
from benchmarks._timing import compare

TOKENS, QUERIES = 1024, 16


def run(quick: bool) -> dict[str, object]:
    tokens = 256 if quick else TOKENS
    loaded, text = load("smollm2"), texts()
    analyze(loaded, text, reading=Reading(tokens=300, passages=1, queries=4, answer=1))  # loops are compiled
    window = token_windows(loaded.tokenizer, text, tokens, most=1)

    def forward() -> object:
        with torch.no_grad():
            return loaded.model(input_ids=window)

    def analysis(answer: int) -> object:
        reading = Reading(tokens=tokens, passages=1, queries=QUERIES, answer=answer)
        return analyze(loaded, text, reading=reading)

    def gradients() -> object:
        """All but the trials, in which the sampled model runs."""
        tried, Answering.tried = Answering.tried, lambda self, answer, step: answer  # type: ignore[method-assign]
        try:
            return analysis(2)
        finally:
            Answering.tried = tried  # type: ignore[method-assign]

    calls = {"forward": forward, "heads": partial(analysis, 0), "gradients": gradients}
    times = compare(calls, base="forward", rounds=2, warm=True)
    heads, answer = times["heads"], times["gradients"]
    return {
        "setting": f"SmolLM2-135M, 270 heads, {tokens:,} tokens, {QUERIES} queries ({3 * QUERIES} for the answer)",
        "figures": [
            figure("heads, one forward pass = 1", heads.median, "×", at_most=4, **heads.details()),
            figure(
                "heads and answer, two backward passes", answer.median, "×", at_most=8, **answer.details()
            ),
        ],
    }
