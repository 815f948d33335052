"""The model with all its keys beside the model with its budgets, window by window of the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.models.attend.sampled import Attended, sampled_attention, sampled_output
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.see.gradient import answer_error, answer_of
from attnlimit.models.see.interface import Call, observe
from attnlimit.models.see.load import Loaded, decoder_inputs
from attnlimit.models.see.progress import Progress, unheard
from attnlimit.models.see.text import special_tokens


@dataclass(frozen=True, eq=False)
class Probe:
    """Sums over the tokens of each window, from which relative errors are made."""

    head_error: Float[Tensor, "seeds windows layers heads"]
    """Σ ‖sampled − full‖² of the head's output, both from the full model's q, k and v."""
    head_square: Float[Tensor, "windows layers heads"]
    hidden_error: Float[Tensor, "seeds windows states"]
    """Σ ‖sampled − full‖² of the hidden states behind each layer, in two separate runs."""
    hidden_square: Float[Tensor, "windows states"]
    answer: Float[Tensor, "seeds windows"]
    """Mean KL(full ‖ sampled) over positions, nats; for an encoder the squared change of its embedding."""
    agreement: Float[Tensor, "seeds windows"] | None
    """Share of positions with the same most probable answer; None for an encoder."""
    attended_keys: float
    """Distinct keys per query and head in the sampled runs."""
    attended_share: float
    """The same over those of full attention."""
    key_head_share: float
    """The share that key heads give, all query heads of a group together."""


def probe(
    loaded: Loaded,
    budgets: Budgets,
    windows: Int[Tensor, "windows tokens"],
    seeds: Sequence[int],
    *,
    per_query: bool = True,
    progress: Progress = unheard,
) -> Probe:
    """Run both models over every window, the sampled one once for each seed. One window is held at a time."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = measured_rows(loaded.tokenizer, windows.shape[1])
    found: list[tuple[Tensor, ...]] = []
    attended: list[Attended] = []
    for done, ids in enumerate(windows.to(loaded.device), 1):
        heads = _Heads(budgets, rows, generators)
        changes: list[tuple[Tensor, ...]] = []
        with torch.no_grad(), observe(loaded.model, heads.compare):
            full = _run(loaded, ids)
        for generator in generators:
            sampling = sampled_attention(loaded.model, budgets, generator=generator, per_query=per_query)
            with torch.no_grad(), sampling as used:
                changes.append(_changes(full, _run(loaded, ids)))
            attended.append(used)
        by_seed = (torch.stack(part) for part in zip(*changes, strict=True))
        found.append((heads.square, _squares(full[0]), heads.error, *by_seed))
        progress(done, len(windows))
    head_square, hidden_square, *cells = zip(*found, strict=True)
    head_error, hidden_error, answer, *agreement = (torch.stack(part, 1) for part in cells)
    parts = ((one.keys, one.seen, one.queries, one.group) for one in attended)
    keys, seen, queries, group = (sum(float(one.sum()) for one in some) for some in zip(*parts, strict=True))
    return Probe(
        head_error=head_error,
        head_square=torch.stack(head_square),
        hidden_error=hidden_error,
        hidden_square=torch.stack(hidden_square),
        answer=answer,
        agreement=agreement[0] if agreement else None,
        attended_keys=keys / queries,
        attended_share=keys / seen,
        key_head_share=group / seen,
    )


def measured_rows(tokenizer: Any, length: int) -> Tensor:
    """The queries that an analysis draws from: the second half of a window, special tokens left out."""
    before, after = special_tokens(tokenizer)
    start, stop = max(len(before), length // 2), length - len(after)
    return torch.arange(min(start, stop - 1), stop)


class _Heads:
    """Sums over one window of what each head's output is, and of how far it is off for each seed."""

    def __init__(self, budgets: Budgets, rows: Tensor, generators: Sequence[torch.Generator]) -> None:
        self.budgets, self.rows, self.generators = budgets, rows, generators
        self.square = torch.zeros(budgets.layers, budgets.heads, dtype=torch.float64)
        self.error = self.square.repeat(len(generators), 1, 1)

    def compare(self, call: Call) -> None:
        rows = self.rows.to(call.query.device)
        full = call.output()[:, rows].double()
        self.square[call.layer] += full.square().sum((0, 1, 3)).cpu()
        for place, generator in enumerate(self.generators):
            # Draws of their own for each query: the error's mean is that of shared draws, with far less noise.
            entries = self.budgets.layer(call.layer)
            sampled = sampled_output(call, entries, generator, per_query=True)
            error = (sampled[:, rows].double() - full).square().sum((0, 1, 3))
            self.error[place, call.layer] += error.cpu()


def _run(loaded: Loaded, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """The hidden states behind each layer, and the answer."""
    inputs = {"input_ids": ids[None], **decoder_inputs(loaded, ids[None])}
    output = loaded.model(**inputs, output_hidden_states=True)
    names = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
    states = [state for name in names for state in (getattr(output, name, None) or ())[1:]]
    return states, answer_of(loaded, output)


def _changes(full: tuple[list[Tensor], Tensor], sampled: tuple[list[Tensor], Tensor]) -> tuple[Tensor, ...]:
    """Σ‖sampled − full‖² of the states, the answer's error, and if it has classes the share of equal first choices."""
    pairs = zip(full[0], sampled[0], strict=True)
    error = torch.tensor(answer_error(full[1], sampled[1]), dtype=torch.float64)
    found = _squares([b.double() - a.double() for a, b in pairs]), error
    if full[1].ndim == 1:
        return found
    return *found, (full[1].argmax(-1) == sampled[1].argmax(-1)).double().mean().cpu()


def _squares(states: Sequence[Tensor]) -> Float[Tensor, " states"]:
    return torch.stack([state.double().square().sum().cpu() for state in states])
