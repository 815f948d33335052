"""What the heads of a model see on a text: scores and values at some queries, and horizons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import ModelNotSupported
from attnlimit.measures import Gaussian
from attnlimit.models.see.interface import Call, observe
from attnlimit.models.see.text import longest, special_tokens, texts, token_windows
from attnlimit.rates import horizon
from attnlimit.studies.kinds.model_choice import loaded
from attnlimit.studies.kinds.subsampled import Passage


@dataclass(frozen=True)
class HeadSeen:
    """One head on all passages."""

    layer: int
    head: int
    horizon: float
    scale: float
    """Root mean square of its outputs over the queries, with all keys."""
    passages: tuple[Passage, ...] = field(repr=False)
    text: slice
    """The keys that are tokens of the text, not special ones."""

    def population(self, name: str) -> list[Passage]:
        """Passages with the keys of the text, or with all."""
        return [one.only(self.text) if name == "text" else one for one in self.passages]


@lru_cache(maxsize=2)
def heads_seen(
    model: str, files: tuple[str, ...] | None, tokens: int, passages: int, queries: int, seed: int
) -> tuple[HeadSeen, ...]:
    """`queries` random tokens of each of `passages` passages of `tokens` tokens. Kept for the next task of a worker."""
    ready = loaded(model)
    tokenizer = ready.need_tokenizer()
    length = longest(ready.model, tokens)
    windows = token_windows(tokenizer, texts(None if files is None else list(files)), length, most=passages)
    before, after = (len(part) for part in special_tokens(tokenizer))
    work = _Work(slice(before, length - after), queries, torch.Generator().manual_seed(seed))
    for ids in windows:
        work.new_passage(length)
        with torch.no_grad(), observe(ready.model, work.handle):
            ready.model(input_ids=ids[None].to(ready.model.device))
    return tuple(work.heads())


class _Work:
    def __init__(self, real: slice, queries: int, generator: torch.Generator) -> None:
        self.real, self.queries, self.generator = real, queries, generator
        self.rows = torch.empty(0)
        self.seen: dict[tuple[int, int], list[Passage]] = {}
        self.moments: dict[int, list[Tensor]] = {}
        self.scale: dict[int, float] = {}

    def new_passage(self, length: int) -> None:
        """The same queries for all layers."""
        places = torch.arange(length)[self.real]
        drawn = torch.randperm(len(places), generator=self.generator)[: self.queries]
        self.rows = places[drawn].sort().values

    def handle(self, call: Call) -> None:
        if call.mask.plain != "all" or call.sink is not None:
            raise ModelNotSupported(
                f"{call.name} hides keys from some queries or has a sink: n keys of the same context are drawn for all "
                "queries here, so use an encoder with full attention."
            )
        self._add_moments(call)
        for head in range(call.heads):
            scores = call.scores(0, head, self.rows).float().cpu()
            values = call.value[0, head // call.groups].float().cpu()
            found = self.seen.setdefault((call.layer, head), [])
            found.append(Passage(scores, values, self.rows))

    def _add_moments(self, call: Call) -> None:
        """Sums of (q, qqᵀ, k, kkᵀ) over the text's own tokens, and their number."""
        parts: list[Tensor] = []
        for x in (call.query, call.key.repeat_interleave(call.groups, 1)):
            flat = x[0, :, self.real].double().cpu()
            parts += [flat.sum(1), flat.mT @ flat]
        parts.append(torch.tensor(float(flat.shape[1])))
        old = self.moments.get(call.layer)
        self.moments[call.layer] = parts if old is None else [a + b for a, b in zip(old, parts, strict=True)]
        self.scale[call.layer] = call.scale

    def heads(self) -> Iterator[HeadSeen]:
        for (layer, head), passages in sorted(self.seen.items()):
            outputs = torch.cat([(one.scores.softmax(1) @ one.values).double() for one in passages])
            size = float(outputs.square().sum(1).mean().sqrt())
            yield HeadSeen(layer, head, self._horizon(layer, head), size, tuple(passages), self.real)

    def _horizon(self, layer: int, head: int) -> float:
        q, qq, k, kk, count = self.moments[layer]
        covariances = [
            second[head] / count - torch.outer(first[head], first[head]) / count**2
            for first, second in ((q, qq), (k, kk))
        ]
        law_q, law_k = (Gaussian(cov=cov) for cov in covariances)
        score: Any = Head(self.scale[layer] * torch.eye(law_k.dim, dtype=torch.float64))
        return float(horizon(score, law_k, queries=law_q))
