"""The model with all its keys beside the model with its budgets, window by window of the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.models.attend.sampled import Attended, sampled_attention, sampled_output
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.see.interface import Call, observe
from attnlimit.models.see.load import Loaded
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
    divergence: Float[Tensor, "seeds windows"] | None
    """Mean KL(full ‖ sampled) of the logits' laws, nats; None for models without logits."""
    agreement: Float[Tensor, "seeds windows"] | None
    """Share of positions with the same most probable answer."""
    attended_keys: float
    """Distinct keys per query and head in the sampled runs."""
    attended_share: float
    """The same over those of full attention."""


def probe(
    loaded: Loaded,
    budgets: Budgets,
    windows: Int[Tensor, "windows tokens"],
    seeds: Sequence[int],
    *,
    per_query: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> Probe:
    """Run both models over every window, the sampled one once for each seed. One window is held at a time."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = measured_rows(loaded.tokenizer, windows.shape[1])
    found: list[_Window] = []
    attended: list[Attended] = []
    for done, ids in enumerate(windows.to(loaded.model.device), 1):
        window = _Window(budgets, rows, generators)
        with torch.no_grad(), observe(loaded.model, window.heads):
            full = _run(loaded, ids)
        window.full(full)
        for generator in generators:
            sampling = sampled_attention(loaded.model, budgets, generator=generator, per_query=per_query)
            with torch.no_grad(), sampling as used:
                sampled = _run(loaded, ids)
            window.sampled(full, sampled)
            attended.append(used)
        found.append(window)
        if progress is not None:
            progress(done, len(windows))
    return _collected(found, attended)


def measured_rows(tokenizer: Any, length: int) -> Tensor:
    """The queries that an analysis draws from: the second half of a window, special tokens left out."""
    before, after = special_tokens(tokenizer)
    start, stop = max(len(before), length // 2), length - len(after)
    return torch.arange(min(start, stop - 1), stop)


class _Window:
    """What is summed over one window."""

    def __init__(self, budgets: Budgets, rows: Tensor, generators: Sequence[torch.Generator]) -> None:
        self.budgets, self.rows, self.generators = budgets, rows, generators
        shape = (budgets.layers, budgets.heads)
        self.head_error = torch.zeros(len(generators), *shape, dtype=torch.float64)
        self.head_square = torch.zeros(shape, dtype=torch.float64)
        self.hidden_error: list[Tensor] = []
        self.divergence: list[float] = []
        self.agreement: list[float] = []

    def heads(self, call: Call) -> None:
        rows = self.rows.to(call.query.device)
        full = call.output()[:, rows].double()
        self.head_square[call.layer] += full.square().sum((0, 1, 3)).cpu()
        for place, generator in enumerate(self.generators):
            # Draws of their own for each query: the error's mean is that of shared draws, with far less noise.
            entries = self.budgets.layer(call.layer)
            sampled = sampled_output(call, entries, generator, per_query=True)
            error = (sampled[:, rows].double() - full).square().sum((0, 1, 3))
            self.head_error[place, call.layer] += error.cpu()

    def full(self, run: _Outputs) -> None:
        self.hidden_square = torch.stack([state.double().square().sum().cpu() for state in run.hidden])

    def sampled(self, full: _Outputs, sampled: _Outputs) -> None:
        pairs = zip(full.hidden, sampled.hidden, strict=True)
        errors = [(b.double() - a.double()).square().sum().cpu() for a, b in pairs]
        self.hidden_error.append(torch.stack(errors))
        if full.logits is not None and sampled.logits is not None:
            p, q = (one.logits.float().log_softmax(-1) for one in (full, sampled))  # type: ignore[union-attr]
            self.divergence.append(float((p.exp() * (p - q)).sum(-1).double().mean().clamp_min(0)))
            self.agreement.append(float((p.argmax(-1) == q.argmax(-1)).double().mean()))


@dataclass(frozen=True, eq=False)
class _Outputs:
    hidden: list[Tensor]
    logits: Tensor | None


def _run(loaded: Loaded, ids: Tensor) -> _Outputs:
    inputs: dict[str, Any] = {"input_ids": ids[None], "output_hidden_states": True}
    if loaded.kind == "seq2seq":
        inputs["decoder_input_ids"] = ids[None]
    if loaded.kind in ("causal-lm", "seq2seq"):
        inputs["use_cache"] = False
    output = loaded.model(**inputs)
    names = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
    states = [state for name in names for state in (getattr(output, name, None) or ())[1:]]
    return _Outputs(states, getattr(output, "logits", None))


def _collected(found: list[_Window], attended: list[Attended]) -> Probe:
    logits = bool(found[0].divergence)
    keys, seen, queries = (
        sum(float(getattr(one, name).sum()) for one in attended) for name in ("keys", "seen", "queries")
    )
    return Probe(
        torch.stack([one.head_error for one in found], 1),
        torch.stack([one.head_square for one in found]),
        torch.stack([torch.stack(one.hidden_error) for one in found], 1),
        torch.stack([one.hidden_square for one in found]),
        torch.tensor([one.divergence for one in found], dtype=torch.float64).T if logits else None,
        torch.tensor([one.agreement for one in found], dtype=torch.float64).T if logits else None,
        keys / queries,
        keys / seen,
    )
