"""A study as people write it: what is measured, over which grid, how often, how precisely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from attnlimit.errors import InputError
from attnlimit.studies.fields import Fields, Seed
from attnlimit.studies.kind import kinds

CHUNK = 25
Values = Annotated[list[Any], Field(min_length=1)]


def _known(kind: str) -> str:
    if kind not in kinds():
        raise ValueError(f"must be one of {', '.join(kinds())}; got {kind!r}")
    return kind


class Precision(Fields):
    """Run until the interval of the slope, or of the error (relative to it, at every n), is at most ±half_width, or
    until there are max_replicates."""

    of: Literal["slope", "error"]
    half_width: PositiveFloat
    max_replicates: PositiveInt
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95


class Study(Fields):
    """`what` holds the fields of the kind. `grid` gives paths into it (head.horizon) and the values to try, all
    combinations of them; `cases` are sets of such values that go together, each with the whole grid."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    """Of the run directory too, so it can name no other place."""
    kind: Annotated[str, AfterValidator(_known)]
    about: str = ""
    what: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, Values] = Field(default_factory=dict)
    cases: list[dict[str, Any]] = Field(default_factory=lambda: [dict[str, Any]()], min_length=1)
    replicates: PositiveInt = 1
    """Of each point; the first round of them where a precision is asked for."""
    chunk: PositiveInt = CHUNK
    """Replicates of one task, for kinds that compute several together."""
    precision: Precision | None = None
    seed: Seed = 0
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    """How often a task that raises an error is tried again."""
    threads: PositiveInt = 1
    """Threads of one task."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """What a Dask worker must offer, as in {GPU: 1}."""
    quick: dict[str, Any] = Field(default_factory=dict)
    """Fields that --quick replaces, by path."""

    @model_validator(mode="after")
    def _fits(self) -> Study:
        if self.precision is not None and self.precision.max_replicates < self.replicates:
            raise ValueError("precision.max_replicates is less than replicates")
        return self


def labels(study: Study) -> dict[str, float]:
    """What workers must offer: what the study says, and a GPU where its tasks ask for CUDA."""
    devices = {one for values in (study.what, study.grid, *study.cases) for one in _devices(values)}
    return ({"GPU": 1.0} if "cuda" in devices else {}) | dict(study.resources)


def _devices(values: Mapping[str, Any]) -> Iterator[str]:
    """Of fields that are called so, by name or by path, at any depth."""
    for path, value in values.items():
        if path.rpartition(".")[2] == "device":
            yield from value if isinstance(value, list) else [value]
        elif isinstance(value, dict):
            yield from _devices(value)


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """data[a][b][c] = value for the path a.b.c, copying the mappings on the way; with value None, the field goes.

    A key of a grid has dots of its own: grid.head.horizon is the grid's field head.horizon.
    """
    head, _, rest = path.partition(".")
    if rest and head != "grid":
        inner = data.get(head, {})
        if not isinstance(inner, dict):
            raise InputError(f"{path} cannot be set: {head} is not a mapping.")
        data[head] = dict(inner)
        put(data[head], rest, value)
    elif rest:
        data[head] = {**data.get(head, {}), rest: value}
    elif value is None:
        data.pop(path, None)
    else:
        data[path] = value
