"""A model on a text: every head's horizon, exact error curve and keys needed, as `attnlimit analyze` finds them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from attnlimit.designs import Sampling
from attnlimit.studies.fields import Fields, File
from attnlimit.studies.kind import Column
from attnlimit.studies.untyped import Data, untyped

if TYPE_CHECKING:
    from attnlimit.models.see.load import Loaded


class Analyze(Fields):
    """`model` is a hub id, a folder or a .gguf file (none: the packaged BERT); `text` is files (none: Wikipedia)."""

    model: str | None = None
    text: Annotated[list[File], Field(min_length=1)] | None = None
    tokens: PositiveInt | None = None
    queries: PositiveInt = 64
    passages: PositiveInt | None = None
    population: Literal["context", "corpus"] = "context"
    rel_error: PositiveFloat = 0.05
    dtype: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"


def run(what: Analyze, replicates: int, seed: int) -> Data:
    """The queries are a replicate's own; the model and the text are not random."""
    from attnlimit.models.analyse.analyze import Reading, analyze
    from attnlimit.models.see.text import texts

    found = analyze(
        _loaded(what.model, what.device, what.dtype),
        texts(None if what.text is None else [file.checked() for file in what.text]),
        rel_error=what.rel_error,
        reading=Reading(
            tokens=what.tokens,
            passages=what.passages,
            queries=what.queries,
            population=what.population,
            seed=seed,
        ),
    )
    return found.to_dict()


@lru_cache(maxsize=1)
def _loaded(model: str | None, device: str, dtype: str | None) -> Loaded:
    """Neighbouring tasks of a worker have the same model, and reading it takes longer than most of them."""
    from attnlimit.models.see.load import load, packaged_bert

    return load(model or packaged_bert(), device=device, dtype=dtype)


def check(what: Analyze) -> None:
    from attnlimit.models.see.load import find

    if what.model is not None:
        find(what.model)


COLUMNS: dict[str, Column] = {
    "layer": "int",
    "head": "int",
    "horizon": "float",
    "needed_keys": "float",
    "visible_keys": "float",
    "sampling": "text",
    "n": "int",
    "keys": "float",
    "rms": "float",
}


def rows(result: Data) -> Iterator[tuple[Any, ...]]:
    for one in result["heads"]:
        facts = (one["layer"], one["head"], one["horizon"], one["needed"]["keys"], one["visible_keys"])
        for way in one["ways"]:
            curve, sampling = way["curve"], str(Sampling.from_dict(way["sampling"]))
            for n, keys, rms in zip(curve["n"], curve["keys"], curve["error"], strict=True):
                yield *facts, sampling, n, keys, rms


def summary(what: Analyze, results: list[Data]) -> dict[str, Any]:
    """Heads by the keys they need, over all replicates of the queries."""
    first = results[0]
    facts = {key: value for key, value in first.items() if key not in ("heads", "seed")}
    heads = [
        {
            "layer": one["layer"],
            "head": one["head"],
            "horizon": one["horizon"],
            "needed_keys": [result["heads"][k]["needed"]["keys"] for result in results],
        }
        for k, one in enumerate(first["heads"])
    ]
    return {**facts, "replicates": len(results), "heads": heads}


KIND = untyped("analyze", Analyze, run, COLUMNS, rows, summary, check=check)
