"""What the answer loses when heads read only what explains them: tried out on the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlimit.models.explain.reads import read_only
from attnlimit.models.explain.result import Chosen, Lost, Read
from attnlimit.models.see.call import Call, wide
from attnlimit.models.see.gradient import answer_error, model_answer
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Progress

HEADS = 4
"""That are tried one by one: those that matter most to the answer."""

Sets = Mapping[tuple[int, int], Bool[Tensor, " tokens"]]
"""By layer and head: the keys that are named."""


def tried(
    loaded: Loaded,
    ids: Int[Tensor, "1 tokens"],
    at: int,
    reads: Sequence[Read],
    sets: Sets,
    trials: int,
    generator: torch.Generator,
    progress: Progress,
) -> Chosen:
    """All heads together and the ones that matter most, with the named keys and with as many random ones, `trials` times
    (0: nothing is tried)."""
    if not trials:
        return Chosen(at, tuple(reads), None)
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
    return Chosen(at, tuple(tried_reads), found[0])


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
        seen = call.seen(row)[0, :, 0].expand(call.heads, -1)
        weights = call.weights(call.block_scores(row).masked_fill(~seen[:, None], -torch.inf))[0, :, 0]
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
