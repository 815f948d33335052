"""What kinds about models share: which model, on which text, and what a worker keeps between neighbouring tasks.

A model is the first that can be had of a list, settled when the specification is read. The choice is written into every task,
so that a task stays a pure function of its fields: a worker with other models at hand, or a run resumed where the hub answers
again, does not mix them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from attnlimit.models.see.load import Loaded
from attnlimit.models.see.named import PACKAGED, RANDOM, can_be_had, named
from attnlimit.models.see.text import Document, documents
from attnlimit.studies.fields import Fields, File
from attnlimit.studies.kind import Kind, Point, Result

W = TypeVar("W", bound=Fields)
R = TypeVar("R")
M = TypeVar("M", bound="OfModel")


class ModelChoice(Fields):
    """`first_of` is hub ids, folders (./name), packaged-bert, or random-…: small models with random weights, to try the code with.
    `use` is the one that could be had; the last of the list is taken without asking."""

    first_of: Annotated[list[str], Field(min_length=1)]
    use: str

    @model_validator(mode="before")
    @classmethod
    def _settled(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"first_of": [value], "use": value}
        if isinstance(value, dict) and "use" not in value and value.get("first_of"):
            *wanted, last = value["first_of"]
            found = (name for name in wanted if isinstance(name, str) and can_be_had(name))
            return {**value, "use": next(found, last)}
        return value

    def words(self) -> str:
        """Which weights these are, and which were wanted."""
        said, wanted = self.use, self.first_of[0]
        if self.use == PACKAGED:
            said = "the packaged BERT (all-MiniLM-L6-v2: 6 layers, 12 heads)"
        elif self.use in RANDOM:
            said = f"a small model with random weights ({self.use})"
        if self.use == wanted:
            return f"Weights: {said}."
        where = (
            "there is no such folder"
            if wanted.startswith(".")
            else "neither on this machine nor from the hub"
        )
        return f"Weights: {said}, because {wanted} could not be had ({where})."


@dataclass(frozen=True, eq=False)
class OfModel(Result):
    """A result about a model says which weights it had."""

    model: str
    weights: str

    @classmethod
    def words(cls: type[M], points: Sequence[Point[M]]) -> list[str]:
        """Which weights were used, each once."""
        return list(dict.fromkeys(point.result.weights for point in points))

    def summary(self) -> dict[str, object]:
        """Its single numbers and words, and what tables show of it."""
        single = {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}
        return {**single, "shown": self.shown()}

    @property
    def random(self) -> bool:
        """Whether the weights are random, and so tell nothing of a trained model."""
        return self.model in RANDOM


class OnText(Kind):
    """`model` is a hub id, a folder, packaged-bert, or {first_of: […]}; `text` is files (none: Wikipedia)."""

    model: ModelChoice
    text: Annotated[list[File], Field(min_length=1)] | None = None

    def loaded(self) -> Loaded:
        return named(self.model.use)

    def documents(self) -> list[Document]:
        return documents(None if self.text is None else [file.checked() for file in self.text])


def remembered(compute: Callable[[W], R]) -> Callable[[W], R]:
    """`compute`, its last answers kept: what is not random is computed once for all neighbouring tasks of a worker."""

    @lru_cache(maxsize=2)
    def known(fields: type[W], what: str) -> R:
        return compute(fields.model_validate_json(what))

    return lambda what: known(type(what), what.model_dump_json())


def digits(values: Tensor, count: int) -> Tensor:
    """Rounded to so many digits: Monte Carlo has fewer, and a result is kept for ever."""
    short = [float(f"{value:.{count}g}") for value in values.flatten().tolist()]
    return torch.tensor(short, dtype=torch.float64).view(values.shape)
