"""Budgets for the answer of SmolLM2 (8 windows of Wikipedia analysed, 96 queries a head), tried on windows that the analysis did not read:
KL to the full model beside what was predicted, and beside what other methods reach with as many keys."""

from __future__ import annotations

from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.analyse.run import Run
from attnlimit.models.judge.compare import Comparison, compare
from attnlimit.models.judge.methods import OURS
from attnlimit.models.see.load import load
from attnlimit.models.see.text import texts
from benchmarks._figures import figure

WINDOWS = {512: 4, 1024: 4, 2048: 3}
KEYS = (0.05, 0.1, 0.187)
AT_MOST = {
    (1024, OURS[0], 0.1): 0.014,
    (1024, OURS[0], 0.187): 0.0016,
    (1024, OURS[1], 0.1): 0.022,
    (1024, OURS[1], 0.187): 0.003,
}
"""KL."""
OFF = 1 / 0.7
"""Predicted over measured, or the other way round."""


def run(quick: bool) -> dict[str, object]:
    loaded, figures = load("smollm2"), []
    for tokens, windows in {256: 1}.items() if quick else WINDOWS.items():
        reading = Reading(tokens=tokens, passages=2 if quick else 8, queries=4 if quick else 32)
        found = analyze(loaded, texts(), reading=reading)
        figures += _figures(found, compare(loaded, found, texts(), keys=KEYS, windows=windows))
    return {"setting": "SmolLM2-135M, 270 heads; KL in nats a token", "figures": figures}


def _figures(found: Run, tried: Comparison) -> list[dict[str, object]]:
    tokens, figures, off = tried.tokens, [], []
    share = found.budgets(kl=0.01).share or 0.0
    figures.append(figure(f"{tokens:,} tokens: keys for KL 0.01", 100 * share, "%", above=tried.above))
    for name, point, measured in tried.rows():
        predicted, ours = point.predicted, name in OURS
        details = {"read": point.read, "interval": [measured.low, measured.high]}
        if ours and predicted is not None:
            details["predicted"] = [predicted.value, predicted.low, predicted.high]
            off.append(max(predicted.value / measured.value, measured.value / predicted.value))
        what = f"{tokens:,} tokens, {name}, {100 * point.asked:.3g} % of the keys"
        figures.append(
            figure(what, measured.value, "nats", at_most=AT_MOST.get((tokens, name, point.asked)), **details)
        )
    return [
        *figures,
        figure(
            f"{tokens:,} tokens: points at which ours is not below another", len(tried.above), "", at_most=0
        ),
        figure(f"{tokens:,} tokens: prediction farthest off", max(off), "×", at_most=OFF),
    ]
