"""What every head of a model reads on a text, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from attnlimit.errors import ModelNotSupported
from attnlimit.inputs import as_positive
from attnlimit.models.analyse.analyze import Reading, analyze, short_name
from attnlimit.models.analyse.heads import HeadReport
from attnlimit.models.explain.look import Look, Made, Passed
from attnlimit.models.explain.result import Chosen, Explanation, Facts, HeadRoles
from attnlimit.models.explain.roles import as_intervals, links, made_texts, with_intervals
from attnlimit.models.explain.tokens import find_token, read_tokens
from attnlimit.models.explain.tried import tried
from attnlimit.models.see.gradient import answer_gradients, per_query, unit
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, load, run_backbone
from attnlimit.models.see.memory import Memory
from attnlimit.models.see.progress import Progress, Steps
from attnlimit.models.see.text import Document, as_documents, positions, special_tokens, texts

LEVEL = 0.95
TRIALS = 3
"""Random sets of keys that are tried out for each head."""
USUAL = Reading(queries=16, answer=4)


def explain(
    model: str | Path | Loaded,
    text: str | Document | None = None,
    token: str | int | Sequence[str | int] = (),
    *,
    which: int | None = None,
    rel_error: float = 0.05,
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
    rel_error = as_positive(rel_error, "rel_error")
    (document,) = as_documents([texts()[0] if text is None else text])
    ids, tokens, read, cut = read_tokens(loaded, document.text, reading.tokens)
    wanted = [token] if isinstance(token, str | int) else list(token)
    chosen = [find_token(tokens, read, one, which) for one in wanted]
    if loaded.kind == "seq2seq":
        raise ModelNotSupported(
            f"{loaded.name} reads one text and writes another, and its decoder attends to both: what a token reads is explained "
            "within one text. Load its encoder (task='encoder')."
        )
    steps = Steps(progress, 4 + len(chosen))
    alone = replace(reading, tokens=len(tokens), passages=1, answer=0, grouped=False, population="context")
    run = analyze(
        loaded, [document], rel_error=rel_error, reading=alone, progress=steps.next(), before=before
    )
    generator = torch.Generator().manual_seed(reading.seed)
    gradients = {}
    if reading.answer:
        gradients = answer_gradients(loaded, ids, torch.arange(len(tokens)), reading.answer, generator)
    steps.skip(1)
    special = torch.tensor(tokens.special)
    look = Look(ids[0], special, gradients, per_query(loaded.kind, 1), tuple(chosen), rel_error, generator)
    _pass(loaded, ids, look, steps.next())
    made = _made(loaded, special, generator)
    steps.skip(1)
    scale = per_query(loaded.kind, len(tokens)) / per_query(loaded.kind, 1)
    heads = _heads(look, made, run.heads, scale, generator)
    explained = []
    for place, at in enumerate(chosen):
        reads = look.reads[place]
        explained.append(
            tried(loaded, ids, at, reads, look.sets[place], TRIALS, generator)
            if gradients
            else Chosen(at, tuple(reads), None)
        )
        steps.skip(1)
    facts = Facts(
        model=short_name(loaded.name),
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
        method="exact weights and outputs of the model's own pass; roles with intervals over resampled stretches of the text; "
        "losses to second order, and tried out where measured",
    )
    return Explanation(facts, tokens, heads, links(heads), look.map(), tuple(explained))


def _pass(
    loaded: Loaded, ids: Int[Tensor, "texts tokens"], work: Passed, progress: Progress | None = None
) -> None:
    with torch.no_grad(), observe(loaded.model, work.handle) as observed:
        work.layers, work.progress = len(observed.layers), progress
        run_backbone(loaded, input_ids=ids.to(loaded.model.device))


def _made(loaded: Loaded, special: Tensor, generator: torch.Generator) -> Made:
    """The roles on random tokens that are said twice."""
    tokenizer = loaded.need_tokenizer()
    before, after = special_tokens(tokenizer)
    usable = torch.tensor(sorted({*range(len(tokenizer))} - {*tokenizer.all_special_ids}))
    size = loaded.model.get_input_embeddings().num_embeddings
    ids = made_texts(usable[usable < size], before, after, positions(loaded.model), generator)
    work = Made(ids, len(before), len(after))
    _pass(loaded, ids, work)
    return work


def _heads(
    look: Look, made: Made, reports: Sequence[HeadReport], scale: float, generator: torch.Generator
) -> tuple[HeadRoles, ...]:
    shares, chance = look.shares()
    text = with_intervals(shares, LEVEL, generator)
    said, said_chance = made.shares()
    twice = with_intervals(said, LEVEL, generator)
    matter = look.mean_matter()
    found = []
    for k, one in enumerate(reports):
        need = one.needed(look.rel_error)
        found.append(
            HeadRoles(
                layer=one.layer,
                head=one.head,
                shares=as_intervals(text[k]),
                chance=tuple(chance[k].mean(0).tolist()),
                made=as_intervals(twice[k]),
                made_chance=tuple(said_chance[k].mean(0).tolist()),
                horizon=one.horizon,
                effective_keys=one.effective_keys[1],
                keys_needed=need.keys,
                needs_all=need.all,
                visible_keys=one.visible_keys,
                sensitivity=None if matter is None else float(matter[k]) * scale,
            )
        )
    return tuple(found)
