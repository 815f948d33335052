"""What every head of a model reads on a text, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlimit.doors import door
from attnlimit.inputs import Positive
from attnlimit.models.analyse.analyze import Reading, analyze, refuse_too_large
from attnlimit.models.analyse.heads import HeadReport
from attnlimit.models.explain.look import Look, Made
from attnlimit.models.explain.reads import read_only
from attnlimit.models.explain.result import Explanation, HeadRead, HeadRoles, Lost, TokenRead
from attnlimit.models.explain.roles import as_intervals, links, made_texts, with_intervals
from attnlimit.models.explain.tokens import find_token, read_tokens
from attnlimit.models.see.call import Call, wide
from attnlimit.models.see.gradient import answer_error, answer_gradients, model_answer, per_query, unit
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.memory import Memory, estimate_memory
from attnlimit.models.see.progress import Progress, Steps
from attnlimit.models.see.text import Document, as_documents, positions, special_tokens, texts

LEVEL = 0.95
TRIALS = 4
"""Random sets of keys that are tried out for each head."""
USUAL = Reading(queries=16, answer=4)
METHOD = (
    "exact weights and outputs of the model's own pass; roles with intervals over resampled stretches of the text; losses to "
    "second order, and tried out where measured"
)


@door
def explain(
    model: str | Path | Loaded,
    text: str | Document | None = None,
    token: str | int | Sequence[str | int] = (),
    *,
    which: int | None = None,
    rel_error: Positive = 0.05,
    reading: Reading = USUAL,
    progress: Progress | None = None,
    before: Callable[[Memory], object] | None = None,
) -> Explanation:
    """For every head: its roles, what it needs, and the keys of largest weight of every token with their certainty; for
    chosen tokens, what each head reads there.

    A token is a word of the text (`which` occurrence, from 1) or its number. The text defaults to the first Wikipedia
    article. Of `reading` these count: tokens (512 or what the model has), queries for horizons and keys needed, answer (how
    often labels are drawn from the model's own answer; 0: it is not looked at), seed.
    """
    loaded = load(model) if isinstance(model, str | Path) else model
    (document,) = as_documents([texts()[0] if text is None else text])
    ids, tokens, read, cut = read_tokens(loaded, document.text, reading.tokens)
    wanted = [token] if isinstance(token, str | int) else token
    chosen = tuple(find_token(tokens, read, one, which) for one in wanted)
    steps = Steps(progress, 4 + len(chosen))
    alone = replace(reading, tokens=len(tokens), passages=1, answer=0, grouped=False, population="context")
    run = analyze(
        loaded, [document], rel_error=rel_error, reading=alone, progress=steps.next(), before=before
    )
    generator = torch.Generator().manual_seed(reading.seed)
    look = _look(loaded, ids[0], torch.tensor(tokens.special), reading, chosen, rel_error, generator, steps)
    made = _made(loaded, generator)
    steps.skip(1)
    explained = [
        tried(loaded, ids, at, reads, sets, TRIALS if look.gradients else 0, generator, steps.next())
        for at, reads, sets in zip(chosen, look.reads, look.sets, strict=True)
    ]
    heads = _heads(look, made, run.heads, generator, scale=per_query(loaded.kind, len(tokens)))
    return Explanation(
        model=run.facts.model,
        kind=loaded.kind,
        title=document.title,
        text=read,
        cut=cut,
        rel_error=rel_error,
        level=LEVEL,
        seed=reading.seed,
        draws=reading.answer,
        trials=TRIALS,
        unit=unit(loaded.kind) if reading.answer else None,
        method=METHOD,
        tokens=tokens,
        heads=heads,
        links=links(heads),
        map=look.map(),
        chosen=tuple(explained),
    )


def _look(
    loaded: Loaded,
    ids: Int[Tensor, " tokens"],
    special: Bool[Tensor, " tokens"],
    reading: Reading,
    chosen: tuple[int, ...],
    rel_error: float,
    generator: torch.Generator,
    steps: Steps,
) -> Look:
    """All heads at all tokens, with the gradients of the answer unless it is not to be looked at."""
    length, gradients = len(ids), {}
    if reading.answer:
        sizes = {"tokens": length, "keys": length, "queries": reading.queries, "points": 1}
        refuse_too_large(loaded, estimate_memory(loaded.model, **sizes, backward=True))
        gradients = answer_gradients(loaded, ids[None], torch.arange(length), reading.answer, generator)
    steps.skip(1)
    look = Look(ids, special, gradients, per_query(loaded.kind, 1), chosen, rel_error, generator)
    look.over(loaded, steps.next())
    return look


def _made(loaded: Loaded, generator: torch.Generator) -> Made:
    """The roles on random tokens that are said twice."""
    tokenizer = loaded.need_tokenizer()
    before, after = special_tokens(tokenizer)
    usable = torch.tensor(sorted({*range(len(tokenizer))} - {*tokenizer.all_special_ids}))
    size = loaded.model.get_input_embeddings().num_embeddings
    ids = made_texts(usable[usable < size], before, after, positions(loaded.model), generator)
    work = Made(ids, len(before), len(after))
    work.over(loaded)
    return work


def _heads(
    look: Look, made: Made, reports: Sequence[HeadReport], generator: torch.Generator, scale: float
) -> tuple[HeadRoles, ...]:
    shares, chance = look.shares()
    said, said_chance = made.shares()
    text, twice = (with_intervals(one, LEVEL, generator) for one in (shares, said))
    chances = [one.double().mean(1).tolist() for one in (chance, said_chance)]
    matter = look.mean_matter()
    found = []
    for k, one in enumerate(reports):
        need = one.needed(look.rel_error)
        found.append(
            HeadRoles(
                layer=one.layer,
                head=one.head,
                shares=as_intervals(text[k]),
                chance=tuple(chances[0][k]),
                made=as_intervals(twice[k]),
                made_chance=tuple(chances[1][k]),
                horizon=one.horizon,
                effective_keys=one.effective_keys[1],
                keys_needed=need.keys,
                needs_all=need.all,
                visible_keys=one.visible_keys,
                sensitivity=None if matter is None else scale / look.half * float(matter[k]),
            )
        )
    return tuple(found)


HEADS = 4
"""That are tried one by one: those that matter most to the answer."""

Sets = Mapping[tuple[int, int], Bool[Tensor, " tokens"]]
"""By layer and head: the keys that are named."""


def tried(
    loaded: Loaded,
    ids: Int[Tensor, "1 tokens"],
    at: int,
    reads: Sequence[HeadRead],
    sets: Sets,
    trials: int,
    generator: torch.Generator,
    progress: Progress,
) -> TokenRead:
    """All heads together and the ones that matter most, with the named keys and with as many random ones, `trials` times
    (0: nothing is tried)."""
    if not trials:
        return TokenRead(at, tuple(reads), None)
    best = sorted(range(len(reads)), key=lambda k: -(reads[k].matters or 0.0))[:HEADS]
    some = [sets, *({place: sets[place]} for place in ((reads[k].layer, reads[k].head) for k in best))]
    with torch.no_grad():
        full = model_answer(loaded, ids.to(loaded.model.device))
    found = []
    for one in some:
        draws = (None, *[generator] * trials)
        named, *random = (_lost(loaded, ids, at, one, full, draw) for draw in draws)
        found.append(Lost(named, sum(random) / trials))
        progress(len(found), len(some))
    measured = dict(zip(best, found[1:], strict=True))
    tried_reads = (replace(one, measured=measured.get(k)) for k, one in enumerate(reads))
    return TokenRead(at, tuple(tried_reads), found[0])


@torch.no_grad()
def _lost(
    loaded: Loaded,
    ids: Int[Tensor, "1 tokens"],
    at: int,
    sets: Sets,
    full: Tensor,
    random: torch.Generator | None,
) -> float:
    """Summed over positions, with the sets' keys or with as many `random` ones of those seen."""
    row = torch.tensor([at], device=loaded.model.device)

    def attend(call: Call) -> Tensor | None:
        heads = [head for layer, head in sets if layer == call.layer]
        if not heads:
            return None
        weights, seen = (one[0, :, 0].expand(call.heads, -1) for one in call.attention(row))
        out = call.output().clone()
        for head in heads:
            named = sets[call.layer, head].to(row.device)
            if random is not None:
                places = seen[head].nonzero()[:, 0]
                drawn = torch.randperm(len(places), generator=random)[: int(named.sum())]
                named = torch.zeros_like(named).scatter_(0, places[drawn.to(row.device)], True)
            value = wide(call.value[0, head // call.groups])
            out[0, at, head] = read_only(weights[head], value, named, seen[head]).to(out)
        return out

    with observe(loaded.model, attend):
        answer = model_answer(loaded, ids.to(row.device))
    return answer_error(full, answer) * (len(full) if full.ndim > 1 else 1)
