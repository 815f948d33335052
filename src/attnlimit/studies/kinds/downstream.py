"""A model with n random keys in every head of every layer: what becomes of its layers, its outputs and its task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, PositiveInt, model_validator

from attnlimit.studies.fields import Fields, File, digest
from attnlimit.studies.kind import Column
from attnlimit.studies.kinds.model_choice import ModelChoice
from attnlimit.studies.untyped import Data, untyped

if TYPE_CHECKING:
    from torch import Tensor

    from attnlimit.models.see.load import Loaded
    from attnlimit.models.see.text import Document
    from attnlimit.studies.kinds.watched import Evaluated


BRIEF = 4
"""Examples of a run that is only timed."""
TEXTS = "texts.jsonl"
"""In the folder of a model: the labelled texts it is tried on."""


class Downstream(Fields):
    """`keys` different random keys a head, drawn anew in every layer, the same for all queries of a text unless
    `per_query`. An encoder looks for the other half of each text; a classifier is held to the labels of the texts
    (.jsonl with "label"), or to its own answers with all keys where there are none. Layers are compared on `windows`."""

    model: ModelChoice
    text: Annotated[list[File], Field(min_length=1)] | None = None
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


@dataclass(frozen=True, eq=False)
class _Full:
    """Model, texts, and what the model does with all its keys: the same for all tasks of a worker."""

    loaded: Loaded
    texts: list[Document]
    evaluated: Evaluated
    horizons: Tensor
    windows: Tensor


@lru_cache(maxsize=2)
def _full(what: str) -> _Full:
    from attnlimit.models.judge.horizons import example_horizons
    from attnlimit.models.see.text import documents, token_windows
    from attnlimit.studies.kinds.model_choice import loaded
    from attnlimit.studies.kinds.watched import evaluate, watched

    asked = Downstream.model_validate_json(what)
    ready = loaded(asked.model.use)
    given = documents(None if asked.text is None else [file.checked() for file in asked.text])
    full = evaluate(ready, given, asked.tokens, asked.examples, None)
    horizons = example_horizons(
        ready, given, tokens=asked.tokens, task=watched(ready, full), examples=asked.examples
    )
    length = max(len(row) for row in full.rows)  # texts may all be shorter than `tokens`
    windows = token_windows(ready.need_tokenizer(), given, length, most=asked.windows)
    return _Full(ready, given, full, horizons, windows)


def run(what: Downstream, replicates: int, seed: int) -> Data:
    """One sampled run of the model over the examples, beside the full one."""
    from attnlimit.models.attend.sampled import sampled_attention
    from attnlimit.models.budget.budgets import Budgets
    from attnlimit.models.judge.probe import probe
    from attnlimit.models.see.layers import attention_layers
    from attnlimit.studies.kinds.watched import changes, evaluate

    full = _full(what.model_copy(update={"keys": 1}).model_dump_json())
    model, known = full.loaded.model, full.evaluated
    budgets = Budgets.uniform(attention_layers(model), what.keys, model=full.loaded.name, tokens=what.tokens)
    with sampled_attention(model, budgets, generator=seed, per_query=what.per_query) as attended:
        sampled = evaluate(full.loaded, full.texts, what.tokens, what.examples, known)
    layers = probe(full.loaded, budgets, full.windows, [seed], per_query=what.per_query)
    return {
        "full": known.per_example.tolist(),
        "sampled": sampled.per_example.tolist(),
        "metric": known.name,
        "horizons": _short(full.horizons),
        "changes": {name: _short(values) for name, values in changes(known, sampled).items()},
        "hidden_error": _short(layers.hidden_error[0].sum(0)),
        "hidden_square": _short(layers.hidden_square.sum(0)),
        "attended": float(attended.keys_per_query.mean()),
        "share": attended.share,
    }


def _short(row: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in row.tolist()]


COLUMNS: dict[str, Column] = {
    "example": "int",
    "horizon": "float",
    "attended": "float",
    "full": "float",
    "sampled": "float",
    "change": "float",
    "divergence": "float",
    "agreement": "float",
}


def rows(result: Data) -> Iterator[tuple[Any, ...]]:
    changed = result["changes"]
    for k, horizon in enumerate(result["horizons"]):
        measured = (result["full"][k], result["sampled"][k])
        more = (
            changed[name][k] if name in changed else None for name in ("change", "divergence", "agreement")
        )
        yield k, horizon, result["attended"], *measured, *more


def summary(what: Downstream, results: list[Data]) -> dict[str, Any]:
    """All seeds and examples, since intervals and thirds need both."""
    first = results[0]
    errors = torch.tensor([one["hidden_error"] for one in results], dtype=torch.float64)
    squares = torch.tensor(first["hidden_square"], dtype=torch.float64)
    return {
        "model": what.model.use,
        "weights": what.model.words(),
        "keys": what.keys,
        "tokens": what.tokens,
        "attended": sum(one["attended"] for one in results) / len(results),
        "share": sum(one["share"] for one in results) / len(results),
        "replicates": len(results),
        "metric": first["metric"],
        "horizons": first["horizons"],
        "full": first["full"],
        "sampled": [one["sampled"] for one in results],
        "changes": {name: [one["changes"][name] for one in results] for name in first["changes"]},
        "layers": (errors / squares).sqrt().tolist(),
    }


def brief(what: Downstream) -> tuple[Downstream, float]:
    """A few examples."""
    few = min(what.examples, BRIEF)
    part = what.model_copy(update={"examples": few, "windows": 1})
    return part, (what.examples + what.windows) / (few + 1)


KIND = untyped("downstream", Downstream, run, COLUMNS, rows, summary, brief=brief)
