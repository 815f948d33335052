"""Sampled attention in time: decoding steps against fused attention's, whole texts and generation against the full model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, scaled_dot_product_attention

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.models.attend.decoding import Decoder
from attnlimit.models.attend.growing import growing_caches
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.see.call import Call
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.layers import attention_layers
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.masks import RuleMask, everything
from attnlimit.models.see.text import texts, token_windows
from benchmarks._figures import figure
from benchmarks._timing import Ratio, compare

SHARE = 0.05
TARGETS = {32_768: 2.0, 131_072: 3.0}
HEADS = {"9 heads": (9, 9), "9 heads on 3 key heads": (9, 3)}


def half_and_half(keys: int) -> Sampling:
    """Own token, 4 sinks, and top keys for half of the rest of a budget."""
    return Sampling(draw=Different(), kept=Kept(own=True, sinks=4, top=keys // 2 - 5), weight="rest")


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def step_against_fused(keys: int, heads: int, key_heads: int, rounds: int) -> Ratio:
    """Fused attention's time over that of a step, one query on `keys` keys of 64 dimensions."""
    g = torch.Generator().manual_seed(0)
    key, value = (torch.randn(1, key_heads, keys, 64, generator=g) for _ in range(2))
    query, read = torch.randn(1, heads, 1, 64, generator=g), round(SHARE * keys)
    mask = RuleMask(everything, (1, 1, 1, keys))
    call = Call(0, "", query, key, value, 0.125, heads // key_heads, mask, own_key=keys - 1)
    budgets = [HeadBudget(0, h, half_and_half(read), read - read // 2) for h in range(heads)]
    decoder = Decoder(g)

    def fused() -> Tensor:
        return scaled_dot_product_attention(query, key, value, enable_gqa=heads > key_heads)

    calls: dict[str, Callable[[], object]] = {"step": lambda: decoder.step(call, budgets), "fused": fused}
    return compare(calls, base="step", rounds=rounds)["fused"]


def steps(quick: bool) -> list[dict[str, object]]:
    figures = []
    for keys in (8192, 32_768) if quick else (8192, 32_768, 131_072):
        for name, shape in HEADS.items():
            for count in (1, 2):
                with threads(count):
                    ratio = step_against_fused(keys, *shape, rounds=3 if quick else 15)
                words = f"step at {keys // 1024}k keys, {name}, {count} thread{'s' * (count > 1)}"
                figures.append(
                    figure(
                        f"{words}: fused attention's time, this = 1",
                        ratio.median,
                        "×",
                        at_least=TARGETS.get(keys),
                        **ratio.details(),
                    )
                )
    return figures


def whole_text(loaded: Loaded, tokens: int, passages: int, rounds: int) -> Ratio:
    """The sampled model over the full one, with 4 sinks, own, 32 top and 20 drawn keys."""
    ids, kept = (
        token_windows(loaded.tokenizer, texts(), tokens, most=passages),
        Kept(own=True, sinks=4, top=32),
    )
    budgets = Budgets.uniform(
        attention_layers(loaded.model), 20, Sampling(draw=Different(), kept=kept, weight="rest")
    )

    def full() -> None:
        with torch.no_grad():
            loaded.model(input_ids=ids)

    def sampled() -> None:
        with sampled_attention(loaded.model, budgets, generator=0):
            full()

    return compare({"full": full, "sampled": sampled}, base="full", rounds=rounds)["sampled"]


def generation(loaded: Loaded, tokens: int, new: int, rounds: int) -> tuple[Ratio, Ratio, float]:
    """model.generate after a text that was read in full: sampled over full, the same where the full model's cache grows in place too, and the KL
    of the answers at the full model's tokens."""
    model: Any = loaded.model
    ids = token_windows(loaded.tokenizer, texts(), tokens, most=1)
    read = round(SHARE * tokens)
    budgets = Budgets.uniform(attention_layers(model), read - read // 2, half_and_half(read))
    with torch.no_grad():
        cache = model(input_ids=ids[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}

    def full() -> Tensor:
        written: Tensor = model.generate(ids, past_key_values=deepcopy(cache), **settings)
        return written

    def sampled() -> None:
        with sampled_attention(model, budgets, generator=0):
            full()

    def growing() -> None:
        with growing_caches():
            full()

    times = compare({"full": full, "growing": growing, "sampled": sampled}, base="full", rounds=rounds)
    attention = Ratio(times["sampled"].seconds, times["growing"].seconds)
    written = full()[:, tokens - 1 :]
    own = _answers(model, deepcopy(cache), written)
    with sampled_attention(model, budgets, generator=0):
        theirs = _answers(model, deepcopy(cache), written)
    return (
        times["sampled"],
        attention,
        float(kl_div(theirs, own, log_target=True, reduction="none").sum(-1).mean()),
    )


def _answers(model: Any, cache: Any, tokens: Tensor) -> Tensor:
    """Log-probabilities after each of the given tokens, one step at a time."""
    with torch.no_grad():
        logits = [model(input_ids=one, past_key_values=cache).logits[0, -1] for one in tokens.split(1, 1)]
    return torch.stack(logits).log_softmax(-1)


def run(quick: bool) -> dict[str, object]:
    figures, rounds = steps(quick), 1 if quick else 9
    bert, decoder = load(packaged_bert()), load("smollm2")
    for name, loaded, tokens, passages in (("BERT", bert, 512, 4), ("SmolLM2", decoder, 1024, 1)):
        ratio = whole_text(loaded, tokens // 4 if quick else tokens, passages, rounds)
        words = f"{name}, whole texts with kept, top and drawn keys, full model = 1"
        figures.append(figure(words, ratio.median, "×", at_most=1.5, **ratio.details()))
    tokens = 2304 if quick else 8192
    ratio, attention, kl = generation(decoder, tokens - 64, 4 if quick else 32, rounds=1 if quick else 3)
    words = f"generate at {tokens} tokens with 5 % of the keys, full model = 1"
    figures.append(figure(words, ratio.median, "×", at_most=1.0, **ratio.details()))
    words = "the same where the full model's cache grows in place too"
    figures.append(figure(words, attention.median, "×", **attention.details()))
    figures.append(figure("its KL to the full model's answer", kl, "nats a token"))
    return {
        "setting": "float32, 64 dimensions; half of the keys read are top, half drawn",
        "figures": figures,
    }
