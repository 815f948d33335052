"""Analysis of SmolLM2 in its own context (1,024 tokens, 16 queries, 270 heads, different keys): time in forward passes over the same
text, with and without what its heads' errors do to its answer: at as many queries with one backward pass, and as it is usually done."""

from __future__ import annotations

from functools import partial

import torch

from attnlimit.models.analyse import analyze
from attnlimit.models.analyse.analyze import Reading
from attnlimit.models.analyse.answer import Answering
from attnlimit.models.see.load import load
from attnlimit.models.see.text import texts, token_windows
from benchmarks._figures import figure
from benchmarks._timing import compare

TOKENS, QUERIES = 1024, 16


def run(quick: bool) -> dict[str, object]:
    tokens = 256 if quick else TOKENS
    loaded, text = load("smollm2"), texts()
    short = Reading(tokens=300, passages=1, queries=4, answer=1)
    analyze.analyze(loaded, text, reading=short)  # loops are compiled
    window = token_windows(loaded.tokenizer, text, tokens, most=1)

    def forward() -> object:
        with torch.no_grad():
            return loaded.model(input_ids=window)

    def analysis(answer: int, times: int = analyze.ANSWER_QUERIES) -> object:
        """All but the trials, in which the sampled model runs."""
        usual = analyze.ANSWER_QUERIES, Answering.tried
        analyze.ANSWER_QUERIES, Answering.tried = times, lambda self, found, *rest: found  # type: ignore[method-assign]
        try:
            reading = Reading(tokens=tokens, passages=1, queries=QUERIES, answer=answer)
            return analyze.analyze(loaded, text, reading=reading)
        finally:
            analyze.ANSWER_QUERIES, Answering.tried = usual  # type: ignore[method-assign]

    calls = {
        "forward": forward,
        "heads": partial(analysis, 0),
        "answer": partial(analysis, 1, 1),
        "usual": partial(analysis, Reading().answer),
    }
    times = compare(calls, base="forward", rounds=3, warm=True)
    heads, answer, usual = times["heads"], times["answer"], times["usual"]
    words = f"two backward passes, {analyze.ANSWER_QUERIES * QUERIES} queries"
    return {
        "setting": f"SmolLM2-135M, 270 heads, {tokens:,} tokens, {QUERIES} queries",
        "figures": [
            figure("heads, one forward pass = 1", heads.median, "×", at_most=4, **heads.details()),
            figure("heads and answer, one backward pass", answer.median, "×", at_most=8, **answer.details()),
            figure(f"as usual: {words}", usual.median, "×", **usual.details()),
        ],
    }
