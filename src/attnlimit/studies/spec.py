"""A study as people write it, what is measured, over which grid, how often, how precisely; and from there to its points (combinations of
the grid) and tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from attnlimit.errors import AttnlimitError, InputError
from attnlimit.files.strict import told
from attnlimit.files.yamlfile import Place, read_yaml, validated
from attnlimit.inputs import as_number, shown
from attnlimit.studies.fields import Fields, Seed, with_digests, without_places
from attnlimit.studies.kind import Kind, kind, kinds


def canonical(value: Any) -> bytes:
    """JSON in one form only: equal values give equal bytes. Floats keep every bit; nan and infinity are kept too."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


@dataclass(frozen=True)
class Task:
    """`count` replicates, from number `first` on, of one point of a study: a pure function of these fields."""

    kind: str
    version: int
    """Of the kind's meaning: results of another version are not reused."""
    what: dict[str, Any]
    """The point, resolved: every field is there."""
    first: int
    count: int
    seed: int
    """The study's; that of the task is `stream`."""
    threads: int = 1
    """Sums may depend on the number of threads, so it belongs to the task."""
    place: str | None = field(default=None, compare=False)
    """A folder of its own in the run for its checkpoints: where it runs, not what it is."""

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of what the task is, with files by their content."""
        what = self._plain()
        del what["place"]
        return sha256(canonical(without_places(what))).digest()

    @property
    def stream(self) -> int:
        """The seed of its random numbers, from the identity: 0 … 2^63 − 1."""
        return int.from_bytes(self.id[:8], "big") >> 1

    def _plain(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}  # dataclasses.asdict copies deeply, and slowly

    def to_bytes(self) -> bytes:
        return canonical(self._plain())

    @classmethod
    def from_bytes(cls, data: bytes) -> Task:
        return cls(**json.loads(data))


FIELDS = tuple(field.name for field in fields(Task))


CHUNK = 25
MOST_POINTS, MOST_TASKS = 10**6, 10**8
"""Of a study: more are not waited for."""


def _finite(value: Any) -> Any:
    """Numbers at any depth: JSON has no word for others, which would be taken for fields that are left out."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for one in inner:
        _finite(one)
    if not abs(as_number(value) or 0) < math.inf:
        raise ValueError(f"numbers must be finite, got {shown(value)}")
    return value


Value = Annotated[Any, AfterValidator(_finite)]
Values = Annotated[list[Value], Field(min_length=1)]


def _known(kind: str) -> str:
    if kind not in kinds():
        raise ValueError(f"must be one of {', '.join(kinds())}; got {kind!r}")
    return kind


@told
class Precision(Fields):
    """Run until the interval of the slope, or of the error (relative to it, at every n), is at most ±half_width, or
    until there are max_replicates."""

    of: Literal["slope", "error"]
    half_width: PositiveFloat
    max_replicates: PositiveInt
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95


def _apart(names: Iterable[str]) -> None:
    """No field stands in another or twice: only one of the values would be run."""
    before = ""
    for name in sorted(names, key=lambda one: one.split(".")):
        if before and f"{name}.".startswith(f"{before}."):
            raise ValueError(f"{before} and {name} say the same field in grid and cases: keep one of them")
        before = name


@told
class Study(Fields):
    """`what` holds the fields of the kind. `grid` gives paths into it (head.horizon) and the values to try, all
    combinations of them; `cases` are sets of such values that go together, each with the whole grid."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    """Of the run directory too, so it can name no other place."""
    kind: Annotated[str, AfterValidator(_known)]
    about: str = ""
    what: dict[str, Value] = Field(default_factory=dict)
    grid: dict[str, Values] = Field(default_factory=dict)
    cases: list[dict[str, Value]] = Field(default_factory=lambda: [dict[str, Any]()], min_length=1)
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
    task_seconds: PositiveFloat | None = None
    """A task that takes longer is taken to hang: its worker is ended, and it is set aside after three of them."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """What a Dask worker must offer, as in {GPU: 1}."""
    quick: dict[str, Value] = Field(default_factory=dict)
    """Fields that --quick replaces, by path."""

    @model_validator(mode="after")
    def _fits(self) -> Study:
        if self.precision is not None and self.precision.max_replicates < self.replicates:
            raise ValueError("precision.max_replicates is less than replicates")
        for case in self.cases:
            _apart([*self.grid, *case])
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
    *inner, last = path.split(".", 1) if path.startswith("grid.") else path.split(".")
    for name in inner:
        below = data.get(name, {})
        if not isinstance(below, dict):
            raise InputError(f"{path} cannot be set: {name} is not a mapping.")
        data[name] = dict(below)
        data = data[name]
    if value is None:
        data.pop(last, None)
    else:
        data[last] = value


def put_all(
    data: dict[str, Any], change: Mapping[str, Any], line: Callable[[str], int | None], path: str | Path
) -> None:
    """All fields of a change; what cannot be put is named with the file and the line there."""
    for name, value in change.items():
        try:
            put(data, name, value)
        except InputError as problem:
            at = "" if (found := line(name)) is None else f"line {found}, "
            raise InputError(f"{path}: {at}{problem}") from problem


CHECKED = 16
"""Points that are built before a study starts."""


def overrides(study: Study) -> Iterator[dict[str, Any]]:
    """The fields by path that make each point, cases first, the last axis of the grid fastest."""
    for case in study.cases:
        for values in product(*study.grid.values()):
            yield case | dict(zip(study.grid, values, strict=True))


def points(study: Study) -> Iterator[dict[str, Any]]:
    """`what` of every point, resolved: all fields, with their defaults."""
    found = kind(study.kind)
    for change in overrides(study):
        yield _what(found, study, change, {}, "the study").model_dump(mode="json")


def count_points(study: Study) -> int:
    return len(study.cases) * math.prod(len(values) for values in study.grid.values())


def most_replicates(study: Study) -> int:
    """Of a point, with all further rounds."""
    return study.replicates if study.precision is None else study.precision.max_replicates


def tasks(study: Study, what: dict[str, Any], start: int, stop: int) -> Iterator[Task]:
    """The tasks of one point for replicates start … stop − 1."""
    size = _at_once(study)
    for first in range(start, stop, size):
        yield task(study, what, first, min(size, stop - first))


def count_tasks(study: Study, replicates: int) -> int:
    """Of one point with so many replicates."""
    return -(-replicates // _at_once(study))


def task(study: Study, what: dict[str, Any], first: int, count: int, place: str | None = None) -> Task:
    """The task of one point for `count` replicates."""
    return Task(study.kind, kind(study.kind).version, what, first, count, study.seed, study.threads, place)


def rounded(study: Study, replicates: int) -> int:
    """Whole tasks' worth of replicates, at least that many."""
    size = _at_once(study)
    return -(-replicates // size) * size


def _at_once(study: Study) -> int:
    return study.chunk if kind(study.kind).together else 1


def check_points(study: Study, lines: Mapping[Place, int], path: str | Path) -> None:
    """Every point must fit the kind's fields; some are built, so that a study fails before it starts."""
    found = kind(study.kind)
    _check_replicates(study, found, path)
    _check_size(study, path)
    every = max(1, count_points(study) // CHECKED)
    for index, change in enumerate(overrides(study)):
        what = _what(found, study, change, lines, path)
        if index % every == 0:
            try:
                what.check()
            except AttnlimitError as problem:
                where = ", ".join(f"{field} = {value}" for field, value in change.items())
                raise InputError(
                    f"{path}: the point {where or 'of the study'} cannot be run: {problem}"
                ) from problem


def _what(
    found: type[Kind], study: Study, change: dict[str, Any], lines: Mapping[Place, int], path: str | Path
) -> Kind:
    def line(field: str) -> int | None:
        places = (("grid", field), *(("cases", k, field) for k in range(len(study.cases))))
        return next((lines[place] for place in places if place in lines), None)

    data = dict(study.what)
    put_all(data, change, line, path)
    try:
        return found.model_validate(data)
    except ValidationError:
        here = {place[1:]: at for place, at in lines.items() if place[:1] == ("what",)}
        here |= {tuple(field.split(".")): at for field in change if (at := line(field)) is not None}
        return validated(found, data, here, path)


def _check_size(study: Study, path: str | Path) -> None:
    """Counted, not expanded."""
    total = count_points(study)
    if total > MOST_POINTS:
        raise InputError(
            f"{path}: grid and cases make {total:,} points, of which a study has at most {MOST_POINTS:,}: give fewer values, or "
            "several studies."
        )
    most = total * count_tasks(study, most_replicates(study))
    if most > MOST_TASKS:
        raise InputError(
            f"{path}: replicates by chunk make {most:,} tasks, of which a study has at most {MOST_TASKS:,}: ask for fewer replicates, "
            "or for a larger chunk."
        )


def _check_replicates(study: Study, found: type[Kind], path: str | Path) -> None:
    if not found.noise and study.replicates > 1:
        raise InputError(
            f"{path}: replicates: kind {study.kind} is exact and has no noise; leave the field out."
        )
    if study.precision is not None and not found.narrows:
        raise InputError(
            f"{path}: precision is for kinds such as convergence; {study.kind} has no interval to narrow."
        )
    if study.replicates < found.least or study.chunk < found.least:
        raise InputError(
            f"{path}: replicates and chunk must be at least {found.least} (without either it is 1 and {CHUNK}), got {study.replicates} and "
            f"{study.chunk}: errors are known by their spread."
        )
    most = most_replicates(study)
    for left in (study.replicates % study.chunk, most % study.chunk):
        if 0 < left < found.least:
            raise InputError(
                f"{path}: {most} replicates by {study.chunk} leave a task of {left}: change chunk."
            )


QUICK_REPLICATES, QUICK_VALUES = 8, 3


def load_study(path: str | Path, *, quick: bool = False) -> Study:
    """The study of a YAML file; InputError names the line and the field of what is wrong. Files that it names are
    found from its own folder, and are held to the content they have now."""
    data, lines = read_yaml(path)
    study = validated(Study, data, lines, path)
    if quick:
        study = validated(Study, quicker(data, lines, path), lines, path)
    held = with_digests(study.model_dump(mode="json"), Path(path).resolve().parent)
    study = Study.model_validate(held)
    check_points(study, lines, path)
    return study


def study_from(data: dict[str, Any]) -> Study:
    """The study of plain data, for programs that make their own; files are found from the current folder."""
    study = validated(Study, with_digests(data, Path.cwd()), {}, "the study")
    check_points(study, {}, "the study")
    return study


def quicker(data: dict[str, Any], lines: Mapping[Place, int], path: str | Path) -> dict[str, Any]:
    """What --quick runs: the file's own `quick` values, or few replicates, and the ends and middle of every axis."""
    changed = {**data, "quick": {}, "name": f"{data['name']}-quick"}
    if data.get("quick"):
        put_all(changed, data["quick"], lambda field: lines.get(("quick", field)), path)
        return changed
    changed.pop("precision", None)
    changed["replicates"] = min(int(data.get("replicates", 1)), QUICK_REPLICATES)
    changed["grid"] = {field: _few(values) for field, values in data.get("grid", {}).items()}
    return changed


def _few(values: list[Any]) -> list[Any]:
    if len(values) <= QUICK_VALUES:
        return values
    return [values[round(k * (len(values) - 1) / (QUICK_VALUES - 1))] for k in range(QUICK_VALUES)]
