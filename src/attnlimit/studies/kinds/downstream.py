"""A model with n random keys in every head of every layer: what becomes of its layers, its outputs and its task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor

from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.judge.downstream import example_horizons
from attnlimit.models.judge.outputs import Evaluated, changes, evaluate, output_task
from attnlimit.models.judge.probe import probe
from attnlimit.models.judge.tasks import TaskRun
from attnlimit.models.judge.trial import Trial
from attnlimit.models.see.layers import attention_layers
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.text import token_windows
from attnlimit.studies.fields import File, digest
from attnlimit.studies.kind import Cells, Folder, Row, table
from attnlimit.studies.model_fields import OfModel, OnText, digits, remembered

BRIEF = 4
"""Examples of a run that is only timed."""
TEXTS = "texts.jsonl"
"""In the folder of a model: the labelled texts it is tried on."""


@dataclass(frozen=True, eq=False)
class Thinned(OfModel):
    """A model with fewer keys beside itself, for every seed and example."""

    tokens: int
    keys: int
    metric: str
    horizons: Float[Tensor, " examples"]
    full: Float[Tensor, " examples"]
    """The metric with all keys."""
    sampled: Float[Tensor, "seeds examples"]
    change: Float[Tensor, "seeds examples"]
    """Of the outputs, relative."""
    divergence: Float[Tensor, "seeds examples"] | None
    """KL to the full model in nats, of classifiers; and whether the answer is the same."""
    agreement: Float[Tensor, "seeds examples"] | None
    hidden_error: Float[Tensor, "seeds layers"]
    """Σ‖sampled − full‖² behind each layer, over the windows."""
    hidden_square: Float[Tensor, " layers"]
    """Σ‖full‖²."""
    attended: Float[Tensor, " seeds"]
    """Distinct keys per query and head."""
    share: Float[Tensor, " seeds"]
    """The same over those of full attention."""
    by_replicate = ("sampled", "change", "divergence", "agreement", "hidden_error", "attended", "share")
    columns = table("replicate:int example:int horizon attended full sampled change divergence agreement")

    def rows(self) -> Cells:
        none = torch.full_like(self.sampled, torch.nan)
        more = [none if one is None else one for one in (self.divergence, self.agreement)]
        for seed, attended in enumerate(self.attended.tolist()):
            cells = torch.stack(
                [self.full, self.sampled[seed], self.change[seed], *(one[seed] for one in more)], 1
            )
            for k, (horizon, row) in enumerate(zip(self.horizons.tolist(), cells.tolist(), strict=True)):
                yield seed, k, horizon, attended, *(None if cell != cell else cell for cell in row)

    @property
    def layers(self) -> Tensor:
        """(seeds, layers): relative rms error of the hidden states."""
        return (self.hidden_error / self.hidden_square).sqrt()

    def shown(self) -> list[Row]:
        return [
            {
                "model": self.model,
                "keys": self.keys,
                "attended": float(self.attended.mean()),
                "share": float(self.share.mean()),
                "metric": self.metric,
                "full": float(self.full.mean()),
                "sampled": float(self.sampled.mean()),
                "change": float(self.change.square().mean().sqrt()),
            }
        ]


@dataclass(frozen=True, eq=False)
class _Full:
    """Model, texts, and what the model does with all its keys: the same for all tasks of a worker."""

    loaded: Loaded
    run: TaskRun
    evaluated: Evaluated
    horizons: Tensor
    windows: Tensor


@remembered
def _full(what: Downstream) -> _Full:
    loaded, task = what.loaded(), output_task(what.loaded())
    run = Trial(tokens=what.tokens, examples=what.examples).run(loaded, what.documents())
    length = max(len(row) for row in task.rows(run))  # texts may all be shorter than `tokens`
    windows = token_windows(run.tokenizer, run.documents, length, most=what.windows)
    return _Full(loaded, run, evaluate(loaded, run), example_horizons(loaded, task, run), windows)


class Downstream(OnText):
    """`keys` different random keys a head, drawn anew in every layer, the same for all queries of a text unless
    `per_query`. An encoder looks for the other half of each text; a classifier is held to the labels of the texts
    (.jsonl with "label"), or to its own answers with all keys where there are none. Layers are compared on `windows`."""

    title = "A model's task with n random keys in every head"
    result = Thinned

    tokens: PositiveInt = 256
    examples: PositiveInt = 64
    keys: PositiveInt
    windows: PositiveInt = 4
    per_query: bool = False

    @model_validator(mode="after")
    def _own_texts(self) -> Downstream:
        """A folder may bring its labelled texts along; they are held to the content they have now."""
        path = Path(self.model.use).expanduser() / TEXTS
        if self.text is not None or not path.is_file():
            return self
        path = path.resolve()
        return self.model_copy(update={"text": [File(file=str(path), sha256=digest(path))]})

    def run(self, replicates: int, seed: int, place: Folder = None) -> Thinned:
        """One sampled run of the model over the examples, beside the full one."""
        full = _full(self.model_copy(update={"keys": 1}))
        model, known = full.loaded.model, full.evaluated
        budgets = Budgets.uniform(
            attention_layers(model), self.keys, model=full.loaded.name, tokens=self.tokens
        )
        with sampled_attention(model, budgets, generator=seed, per_query=self.per_query) as attended:
            sampled = evaluate(full.loaded, full.run, known)
        layers = probe(full.loaded, budgets, full.windows, [seed], per_query=self.per_query)
        changed = changes(known, sampled)

        def row(values: Tensor | None) -> Tensor | None:
            return None if values is None else digits(values, 6)[None]

        return Thinned(
            model=self.model.use,
            weights=self.model.words(),
            tokens=self.tokens,
            keys=self.keys,
            metric=known.metric,
            horizons=digits(full.horizons, 6),
            full=known.per_example,
            sampled=sampled.per_example[None],
            change=digits(changed.change, 6)[None],
            divergence=row(changed.divergence),
            agreement=row(changed.agreement),
            hidden_error=digits(layers.hidden_error[0].sum(0), 6)[None],
            hidden_square=digits(layers.hidden_square.sum(0), 6),
            attended=attended.keys_per_query.mean()[None],
            share=torch.tensor([attended.share], dtype=torch.float64),
        )

    def brief(self) -> tuple[Downstream, float]:
        """A few examples."""
        few = min(self.examples, BRIEF)
        part = self.model_copy(update={"examples": few, "windows": 1})
        return part, (self.examples + self.windows) / (few + 1)
