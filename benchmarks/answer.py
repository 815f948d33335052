"""Budgets for the answer of SmolLM2 (8 windows of Wikipedia analysed, 96 queries a head), tried on windows that the analysis did not read:
KL to the full model beside what was predicted, and beside what other methods reach with as many keys."""

from __future__ import annotations

from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.judge.compare import Comparison, Point, compare
from attnlimit.models.judge.intervals import Uncertain
from attnlimit.models.judge.methods import OURS
from attnlimit.models.see.load import load
from attnlimit.models.see.text import texts
from benchmarks._figures import figure

WINDOWS = {512: 4, 1024: 4, 2048: 3}
KEYS = (0.05, 0.1, 0.187)
MOST = {
    (1024, OURS[0], 0.1): 0.014,
    (1024, OURS[0], 0.187): 0.0016,
    (1024, OURS[1], 0.1): 0.022,
    (1024, OURS[1], 0.187): 0.003,
}
"""KL."""
OFF = 1 / 0.7
"""Predicted over measured, or the other way round, where the keys are a tenth or more."""


def run(quick: bool) -> dict[str, object]:
    loaded, figures, points = load("smollm2"), [], []
    for tokens, windows in {256: 1}.items() if quick else WINDOWS.items():
        reading = Reading(tokens=tokens, passages=2 if quick else 8, queries=4 if quick else 32)
        found = analyze(loaded, texts(), reading=reading)
        share = found.budgets(kl=0.01).share or 0.0
        figures.append(figure(f"{tokens:,} tokens: keys for KL 0.01", 100 * share, "%"))
        tried = compare(loaded, found, texts(), keys=KEYS, windows=windows)
        figures += _figures(tried)
        points += [_point(tokens, *row) for row in tried.rows()]
    return {"setting": "SmolLM2-135M, 270 heads", "figures": figures, "points": points}


def _figures(tried: Comparison) -> list[dict[str, object]]:
    size, off, figures = f"{tried.tokens:,} tokens", [], []
    for one in tried.points:
        if one.predicted is not None and one.asked >= KEYS[1]:
            off.append(max(one.predicted.value / one.value, one.value / one.predicted.value))
        if most := MOST.get((tried.tokens, one.method, one.asked)):
            name = f"{size}, {one.method}, {100 * one.asked:g} % of the keys: KL"
            figures.append(figure(name, one.value, "nats", at_most=most))
    return [
        *figures,
        figure(f"{size}: points at which ours is not below another", len(tried.above), "", at_most=0),
        figure(f"{size}: prediction farthest off", max(off), "×", at_most=OFF),
    ]


def _point(tokens: int, method: str, one: Point, measured: Uncertain) -> dict[str, object]:
    predicted = one.predicted and [one.predicted.value, one.predicted.low, one.predicted.high]
    return {
        "tokens": tokens,
        "method": method,
        "asked": one.asked,
        "read": one.read,
        "kl": measured.value,
        "interval": [measured.low, measured.high],
        "predicted": predicted,
    }
