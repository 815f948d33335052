"""A model on a text: every head's horizon, exact error curve and keys needed, as `attnlimit analyze` finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.analyse.heads import HeadReport
from attnlimit.models.see.find import find
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.named import PACKAGED, RANDOM, named
from attnlimit.studies.kind import Cells, Folder, Row, table
from attnlimit.studies.model_fields import ModelChoice, OfModel, OnText


@dataclass(frozen=True, eq=False)
class Analyzed(OfModel):
    """Every head, once for each replicate of the queries."""

    tokens: int
    passages: int
    queries: int
    population: str
    rel_error: float
    method: str
    heads: tuple[tuple[HeadReport, ...], ...]
    by_replicate = ("heads",)
    columns = table(
        "replicate:int layer:int head:int horizon needed_keys visible_keys sampling:text n:int keys rms"
    )

    def rows(self) -> Cells:
        for replicate, heads in enumerate(self.heads):
            for one in heads:
                keys = one.needed(self.rel_error).keys
                facts = (replicate, one.layer, one.head, one.horizon, keys, one.visible_keys)
                for way in one.ways:
                    for n, rms in zip(way.curve.n, way.curve.error.tolist(), strict=True):
                        yield *facts, str(way.sampling), n, way.curve.keys_at(n), rms

    def shown(self) -> list[Row]:
        """A line a head; of several replicates, the least and the most keys."""
        found: list[Row] = []
        for same in zip(*self.heads, strict=True):
            facts = {"layer": same[0].layer, "head": same[0].head, "horizon": same[0].horizon}
            keys = [one.needed(self.rel_error).keys for one in same]
            found.append({**facts, "visible_keys": same[0].visible_keys, "needed_keys": min(keys)})
            if len(same) > 1:
                found[-1] = {**found[-1], "at most": max(keys)}
        return found

    def methods(self) -> Row:
        return {"method": self.method}


class Analyze(OnText):
    """As the options of `attnlimit analyze`; without a `model` the packaged BERT."""

    title = "Keys that every head of a model needs"
    result = Analyzed

    model: ModelChoice = ModelChoice(first_of=[PACKAGED], use=PACKAGED)
    tokens: PositiveInt | None = None
    queries: PositiveInt = 64
    passages: PositiveInt | None = None
    population: Literal["context", "corpus"] = "context"
    rel_error: PositiveFloat = 0.05
    dtype: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"

    def loaded(self) -> Loaded:
        return named(self.model.use, self.device, self.dtype)

    def run(self, replicates: int, seed: int, place: Folder = None) -> Analyzed:
        """The queries are a replicate's own; the model and the text are not random."""
        reading = Reading(self.tokens, self.passages, self.queries, self.population, answer=0, seed=seed)
        found = analyze(
            self.loaded(), self.documents(), rel_error=self.rel_error, reading=reading, folder=place
        )
        return Analyzed(
            model=self.model.use,
            weights=self.model.words(),
            tokens=found.facts.tokens,
            passages=found.facts.passages,
            queries=found.facts.queries,
            population=self.population,
            rel_error=self.rel_error,
            method=found.facts.method,
            heads=(tuple(found.heads),),
        )

    def check(self) -> None:
        if self.model.use != PACKAGED and self.model.use not in RANDOM:
            find(self.model.use)
