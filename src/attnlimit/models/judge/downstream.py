"""The task's metric against the keys that each head attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.designs.kept import Kept
from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_count, as_float
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.budget.needed import RANDOM
from attnlimit.models.judge.intervals import Estimate, crossed_means, estimate
from attnlimit.models.judge.tasks import Task, TaskResult, task_for
from attnlimit.models.judge.trial import DEFAULT_TOKENS, checked_seeds
from attnlimit.models.see.layers import attention_layers
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Progress, Steps
from attnlimit.models.see.text import Document, as_documents, longest
from attnlimit.rates.bootstrap import checked_level

THIRDS = ("low", "middle", "high")


@dataclass(frozen=True, eq=False, repr=False)
class DownstreamCurve:
    """A metric with all keys and with fewer, for every size, seed and example."""

    model: str
    full: TaskResult
    sampled: tuple[int | None, ...]
    """Keys drawn per head; None for budgets that differ from head to head."""
    keys: tuple[float, ...]
    """Distinct keys per query and head that were really attended to, mean over heads."""
    share: tuple[float, ...]
    """The same over those of full attention."""
    per_example: Float[Tensor, "sizes seeds examples"]
    seeds: tuple[int, ...]
    level: float
    third: Int[Tensor, " examples"] | None = None
    """0, 1 or 2 by rising horizon of the example; None where no horizons were given."""

    def part(self, start: int, stop: int) -> DownstreamCurve:
        """Some of the sizes, by their place."""
        some = slice(start, stop)
        kept = {name: getattr(self, name)[some] for name in ("sampled", "keys", "share", "per_example")}
        return replace(self, **kept)

    @property
    def values(self) -> tuple[Estimate, ...]:
        """The metric at each size, with its interval over seeds and examples."""
        return self._values(slice(None))

    @property
    def thirds(self) -> dict[str, tuple[Estimate, ...]]:
        """The same for the thirds of the examples with low, middle and high horizon."""
        if self.third is None:
            return {}
        return {name: self._values(self.third == place) for place, name in enumerate(THIRDS)}

    @property
    def full_thirds(self) -> dict[str, float]:
        """The metric of the full model on the same thirds."""
        if self.third is None:
            return {}
        parts = {name: self.full.per_example[self.third == place] for place, name in enumerate(THIRDS)}
        return {name: float(self._metric(part.mean())) for name, part in parts.items()}

    def _values(self, which: slice | Tensor) -> tuple[Estimate, ...]:
        found = []
        for cells in self.per_example[:, :, which]:
            resampled = crossed_means(cells, torch.Generator().manual_seed(0))
            found.append(estimate(self._metric(cells.mean()), self._metric(resampled), self.level))
        return tuple(found)

    def _metric(self, mean: Tensor) -> Tensor:
        return mean.exp() if self.full.logarithmic else mean

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "full": self.full.to_dict(),
            "sampled": list(self.sampled),
            "keys": list(self.keys),
            "share": list(self.share),
            "values": [one.to_dict() for one in self.values],
            "thirds": {name: [one.to_dict() for one in part] for name, part in self.thirds.items()},
            "full_thirds": self.full_thirds,
            "per_example": self.per_example.tolist(),
            "seeds": list(self.seeds),
            "level": self.level,
        }

    def __repr__(self) -> str:
        points = ", ".join(
            f"{keys:.3g}: {one.value:.3g}" for keys, one in zip(self.keys, self.values, strict=True)
        )
        return (
            f"DownstreamCurve({self.full.name}, keys per head → value {points}, full {self.full.value:.3g})"
        )


def downstream_curve(
    loaded: Loaded,
    texts: Sequence[str | Document],
    sizes: Sequence[int | Budgets],
    *,
    kept: Kept | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    tokens: int | None = None,
    task: Task | None = None,
    examples: int | None = None,
    horizons: Array | None = None,
    per_query: bool = True,
    level: float = 0.95,
    batch: int = 16,
    progress: Progress | None = None,
) -> DownstreamCurve:
    """The task's metric with n sampled keys in every head (besides the `kept` ones), for each n of `sizes`; an entry
    may also be Budgets of its own, such as an optimal split to set against the uniform ones.

    `horizons`, one number an example (an example is a document for retrieval and labels, a window else), splits the
    examples into thirds.
    """
    tokenizer, given, seeds = loaded.need_tokenizer(), as_documents(texts), checked_seeds(seeds)
    tokens, level = longest(loaded.model, DEFAULT_TOKENS if tokens is None else tokens), checked_level(level)
    budgets = [_budgets(loaded, one, kept, tokens) for one in _listed(sizes)]
    chosen = task_for(loaded) if task is None else task
    steps = Steps(progress, 1 + len(budgets) * len(seeds))

    def evaluate() -> TaskResult:
        return chosen.evaluate(
            loaded.model, tokenizer, given, tokens=tokens, most=examples, batch=batch, progress=steps.next()
        )

    full = evaluate()
    third = None if horizons is None else _thirds(horizons, len(full.per_example))
    cells, keys, share = [], [], []
    for one in budgets:
        for seed in seeds:
            with sampled_attention(loaded.model, one, generator=seed, per_query=per_query) as attended:
                cells.append(evaluate().per_example)
        keys.append(float(attended.keys_per_query.mean()))
        share.append(attended.share)
    per_example = torch.stack(cells).view(len(budgets), len(seeds), -1)
    drawn = tuple(one if isinstance(one, int) else None for one in sizes)
    return DownstreamCurve(
        loaded.name, full, drawn, tuple(keys), tuple(share), per_example, seeds, level, third
    )


def _listed(sizes: Sequence[int | Budgets]) -> list[int | Budgets]:
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise InputError(f"sizes must be a list of numbers of keys or of Budgets, got {sizes!r}.")
    return [one if isinstance(one, Budgets) else as_count(one, "sizes") for one in sizes]


def _budgets(loaded: Loaded, size: int | Budgets, kept: Kept | None, tokens: int) -> Budgets:
    if isinstance(size, Budgets):
        size.check_fits(loaded.model)
        return size
    layers, causal = attention_layers(loaded.model), loaded.kind == "causal-lm"
    sampling = RANDOM if kept is None else replace(RANDOM, kept=kept)
    return Budgets.uniform(layers, size, sampling, model=loaded.name, tokens=tokens, causal=causal)


def _thirds(horizons: Array, examples: int) -> Tensor:
    """0, 1, 2 for the examples with the lowest, middle and highest third of the horizons."""
    given = as_float(horizons, "horizons")
    if given.shape != (examples,) or examples < 3:
        raise InputError(
            f"horizons must be one number for each of the {examples} examples (at least 3), got shape "
            f"{tuple(given.shape)}: an example is a document or a window, as the task counts them."
        )
    rank = given.argsort(stable=True).argsort(stable=True)
    return 3 * rank // examples
