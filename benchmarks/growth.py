"""How cost grows with size, each against a baseline of the same size: exact errors of a population in single attention passes,
analysis of a language model in its own contexts and the sampled model in forward passes, and exact errors with more heads. What is
linear in the keys is a level line beside one pass over them; what formed all pairs of tokens would rise."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from attnlimit import Empirical, Head, exact_error
from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.see.layers import attention_layers
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.text import texts, token_windows
from benchmarks._figures import figure
from benchmarks._timing import Ratio, compare
from benchmarks.exact_population import DIM, attention, curve_sizes, head_data

KEYS, QUICK_KEYS = (10**3, 10**4, 10**5, 10**6), (10**3, 10**4)
TOKENS, QUICK_TOKENS = (256, 1024, 4096, 8192), (64, 256)
HEADS, QUICK_HEADS = (1, 4, 16, 64), (1, 4)
LAYERS, QUERIES, BUDGET = 1, 8, 64
"""The first layer of SmolLM2 is enough to see growth: all of them are alike."""

Calls = dict[str, Callable[[], object]]


def population(keys: int) -> Calls:
    """Exact errors of 64 queries at 24 n, and one attention pass."""
    q, k, v = head_data(keys)
    measure, head, sizes = Empirical(k, v), Head(torch.eye(DIM)), curve_sizes(keys)
    return {
        "base": lambda: attention(q, k, v),
        "exact errors of a population": lambda: exact_error(head, measure, sizes, q),
    }


def several_heads(count: int) -> Calls:
    """The same of 4,096 keys, for `count` heads one after the other, and one pass over all of them."""
    q, k, v = head_data(4096)
    measure, head, sizes = Empirical(k, v), Head(torch.eye(DIM)), curve_sizes(4096)
    return {
        "base": lambda: [attention(q, k, v) for _ in range(count)],
        "exact errors of several heads": lambda: [exact_error(head, measure, sizes, q) for _ in range(count)],
    }


def context(loaded: Loaded, tokens: int) -> Calls:
    """A text of that many tokens: its analysis, and the model with 64 drawn keys a query, against the forward pass."""
    text = [" ".join(texts())]
    window = token_windows(loaded.tokenizer, text, tokens, most=1)
    budgets = Budgets.uniform(attention_layers(loaded.model), BUDGET, tokens=tokens)
    reading = Reading(tokens=tokens, passages=1, queries=QUERIES, answer=0)

    def forward() -> None:
        with torch.no_grad():
            loaded.model.model(input_ids=window)  # type: ignore[operator]

    def sampled() -> None:
        with sampled_attention(loaded.model, budgets, generator=0):
            forward()

    return {
        "base": forward,
        "analysis in its own contexts": lambda: analyze(loaded, text, reading=reading),
        "sampled model": sampled,
    }


def small() -> Loaded:
    """SmolLM2's first layer."""
    loaded = load("smollm2")
    inner = loaded.model.model
    inner.layers = inner.layers[:LAYERS]  # type: ignore[index, union-attr, assignment]
    loaded.model.config.num_hidden_layers = LAYERS
    return loaded


def grown(
    make: Callable[[int], Calls], sizes: tuple[int, ...], rounds: int, more: int = 1
) -> dict[str, list[Ratio]]:
    """Each call at each size, over the baseline of that size; `more` times as often at all but the largest."""
    often = [rounds * more] * (len(sizes) - 1) + [rounds]
    measured = [
        compare(make(size), base="base", rounds=many) for size, many in zip(sizes, often, strict=True)
    ]
    return {name: [one[name] for one in measured] for name in measured[0]}


def exponent(sizes: tuple[int, ...], ratios: list[Ratio]) -> float:
    """Of size in time, over the upper half of the sizes, where fixed costs no longer count."""
    low = len(sizes) // 2 - 1
    slow, fast = min(ratios[-1].seconds), min(ratios[low].seconds)
    return math.log(slow / fast) / math.log(sizes[-1] / sizes[low])


def run(quick: bool) -> dict[str, object]:
    rounds = 2 if quick else 3
    loaded = small()
    keys, tokens, heads = (QUICK_KEYS, QUICK_TOKENS, QUICK_HEADS) if quick else (KEYS, TOKENS, HEADS)
    parts = [
        ("keys", keys, grown(population, keys, rounds, more=5), "one attention pass over the keys"),
        (
            "tokens",
            tokens,
            grown(lambda n: context(loaded, n), tokens, 1 if quick else 2),
            "one forward pass",
        ),
        ("heads", heads, grown(several_heads, heads, rounds, more=5), "one attention pass of every head"),
    ]
    figures, lines = [], []
    for what, sizes, found, base in parts:
        for name, ratios in found.items():
            medians = [one.median for one in ratios]
            lines.append({"name": name, "of": what, "sizes": sizes, "ratios": medians, "base": base})
            limit = {"at_most": 1.15} if what != "tokens" and not quick else {}
            power = exponent(sizes, ratios)
            figures.append(figure(f"{name}: time ∝ {what} to the power", power, "", **limit))
            figures.append(figure(f"{name}, {sizes[-1]:,} {what}", medians[-1], f"× {base}"))
    return {
        "setting": f"population: 64 queries, d_h = {DIM}, 24 n; contexts: the first layer of SmolLM2, {QUERIES} queries a "
        f"head, {BUDGET} drawn keys; heads: 4,096 keys each",
        "lines": lines,
        "figures": figures,
    }
