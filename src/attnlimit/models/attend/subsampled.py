"""Heads of a model on a text with n of their keys: the squared error by Monte Carlo, and in closed form.

For query i that keeps the keys S, and the first r = n − |S| other keys of a random order J,

    Γ_n = ( Σ_S e^{s_j} v_j + c Σ_J e^{s_j} v_j ) / ( Σ_S e^{s_j} + c Σ_J e^{s_j} ),   c = 1, or (N − |S|)/r (weight "rest")

against Γ, which has all N keys of the context. Keys of smaller n are among those of larger n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs import Sampling
from attnlimit.errors import ModelNotSupported
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import MODELS_BIN_ABOVE, prepare_seen
from attnlimit.models.see.call import Call
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.moments import Moments
from attnlimit.models.see.text import Document, longest, special_tokens, token_windows

AT_ONCE = 2**22
"""Weights of the largest block of replicates."""


@dataclass(frozen=True, eq=False)
class Passage:
    """One head at some queries of one passage."""

    scores: Float[Tensor, "m keys"]
    values: Float[Tensor, "keys d"]
    positions: Int[Tensor, " m"]

    def only(self, keys: slice) -> Passage:
        """With some neighbouring keys, the queries' own among them."""
        return Passage(self.scores[:, keys], self.values[keys], self.positions - (keys.start or 0))


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


def heads_seen(
    loaded: Loaded, texts: Sequence[Document], *, tokens: int, passages: int, queries: int, seed: int
) -> tuple[HeadSeen, ...]:
    """Every head at `queries` random tokens of each of `passages` passages of `tokens` tokens, the same for all layers."""
    tokenizer, length = loaded.need_tokenizer(), longest(loaded.model, tokens)
    before, after = (len(part) for part in special_tokens(tokenizer))
    work, generator = _Work(slice(before, length - after)), torch.Generator().manual_seed(seed)
    places = torch.arange(length)[work.text]
    for ids in token_windows(tokenizer, texts, length, most=passages):
        work.rows = places[torch.randperm(len(places), generator=generator)[:queries]].sort().values
        with torch.no_grad(), observe(loaded.model, work.handle):
            loaded.model(input_ids=ids[None].to(loaded.device))
    return tuple(work.head(*place) for place in sorted(work.seen))


class _Work:
    def __init__(self, text: slice) -> None:
        self.text, self.rows = text, torch.empty(0)
        self.seen: dict[tuple[int, int], list[Passage]] = {}
        self.moments: dict[int, Moments] = {}

    def handle(self, call: Call) -> None:
        if call.mask.plain != "all" or call.sink is not None:
            raise ModelNotSupported(
                f"{call.name} hides keys from some queries or has a sink: n keys of the same context are drawn for all "
                "queries here, so use an encoder with full attention."
            )
        query, key = (x[0, :, self.text] for x in (call.query, call.key.repeat_interleave(call.groups, 1)))
        self.moments.setdefault(call.layer, Moments(call.scale)).add(query, key)
        for head in range(call.heads):
            scores = call.scores(0, head, self.rows).float().cpu()
            values = call.value[0, head // call.groups].float().cpu()
            self.seen.setdefault((call.layer, head), []).append(Passage(scores, values, self.rows))

    def head(self, layer: int, head: int) -> HeadSeen:
        passages = self.seen[layer, head]
        outputs = torch.cat([(one.scores.softmax(1) @ one.values).double() for one in passages])
        size = float(outputs.square().sum(1).mean().sqrt())
        horizon = float(self.moments[layer].horizon()[head])
        return HeadSeen(layer, head, horizon, size, tuple(passages), self.text)


def sampled_squares(
    passage: Passage, sampling: Sampling, n: Sequence[int], replicates: int, generator: torch.Generator
) -> Float[Tensor, "replicates n"]:
    """Mean over the queries of ‖Γ_n − Γ‖², for each replicate: all queries of a replicate share their random keys. n
    counts the kept keys, which are as many for every query."""
    m, keys = passage.scores.shape
    kept = sampling.kept.mask(passage.scores, passage.positions) if sampling.kept else None
    drawn = _Drawn(passage, kept, sampling.weight == "rest")
    length = n[-1] if kept is None else keys
    step = max(1, AT_ONCE // (m * length))
    parts = []
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        order = [sampling.draw.places(keys, [length], generator)[0] for _ in range(count)]
        parts.append(drawn.squares(torch.stack(order), n))
    return torch.cat(parts)


class _Drawn:
    """One head with the first keys of random orders."""

    def __init__(self, passage: Passage, kept: Bool[Tensor, "m keys"] | None, rest: bool) -> None:
        scores = passage.scores.double()
        self.weights = (scores - scores.amax(1, keepdim=True)).exp().clamp_min(1e-300)
        # with a column of ones, so that sums of weights come along
        self.values = torch.cat([passage.values.double(), scores.new_ones(scores.shape[1], 1)], 1)
        self.kept, self.rest = kept, rest

    def squares(self, order: Int[Tensor, "b length"], n: Sequence[int]) -> Float[Tensor, "b n"]:
        full = _ratio(self.weights @ self.values)
        window = 0 if self.kept is None else int(self.kept[0].sum())
        own = None if self.kept is None else (self.weights * self.kept) @ self.values
        rank = None if self.kept is None else (~self.kept[:, order]).cumsum(-1, dtype=torch.int32)
        total = torch.zeros(len(order), *self.weights.shape[:1], self.values.shape[1], dtype=torch.float64)
        found = []
        for before, after in pairwise([0, *(size - window for size in n)]):
            total += self._segment(order, rank, before, after, window)
            scale = (self.weights.shape[1] - window) / after if self.rest else 1.0
            out = _ratio(total if own is None else own + scale * total)
            found.append((out - full).square().sum(-1).mean(-1))
        return torch.stack(found, 1)

    def _segment(
        self, order: Tensor, rank: Tensor | None, before: int, after: int, window: int
    ) -> Float[Tensor, "b m d1"]:
        """Σ w (v, 1) over the keys before … after of the order, those that a query keeps left out."""
        # a key whose rank among the others is r stands at most `window` places later in the order
        places = slice(before, after + window)
        chosen = order[:, places]
        weights = self.weights[:, chosen].transpose(0, 1)
        if rank is not None and self.kept is not None:
            here, inside = rank[..., places].transpose(0, 1), self.kept[:, chosen].transpose(0, 1)
            weights = weights * ((here > before) & (here <= after) & ~inside)
        return weights @ self.values[chosen]


def _ratio(sums: Float[Tensor, "*b d1"]) -> Float[Tensor, "*b d"]:
    return sums[..., :-1] / sums[..., -1:]


def exact_squares(passage: Passage, sampling: Sampling, n: Sequence[int]) -> Float[Tensor, "m n"]:
    """E‖Γ_n − Γ‖² of each query, in closed form."""
    scores, values = passage.scores.double(), passage.values.double()
    kept = int(sampling.kept.mask(scores, passage.positions)[0].sum()) if sampling.kept else 0
    drawn = torch.tensor([n], dtype=torch.float64) - kept
    binned = scores.shape[1] > MODELS_BIN_ABOVE
    ready = prepare_seen(
        Seen(scores, values), n[-1] - kept, sampling, positions=passage.positions, binned=binned
    )
    return ready.moments(drawn)[0]
