"""From a study to its points (combinations of the grid) and tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlimit.errors import AttnlimitError, InputError
from attnlimit.files.yamlfile import Place, validated
from attnlimit.studies.kind import Kind, kind
from attnlimit.studies.spec import Study, put
from attnlimit.studies.task import Task

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
        yield found.model_validate(_changed(study, change)).model_dump(mode="json")


def count_points(study: Study) -> int:
    return len(study.cases) * math.prod(len(values) for values in study.grid.values())


def tasks(study: Study, what: dict[str, Any], start: int, stop: int) -> Iterator[Task]:
    """The tasks of one point for replicates start … stop − 1."""
    size = _at_once(study)
    for first in range(start, stop, size):
        yield task(study, what, first, min(size, stop - first))


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
    data = _changed(study, change)
    try:
        return found.model_validate(data)
    except ValidationError:
        here = {place[1:]: line for place, line in lines.items() if place[:1] == ("what",)}
        for field in change:
            for source in (("grid", field), *(("cases", k, field) for k in range(len(study.cases)))):
                if source in lines:
                    here[tuple(field.split("."))] = lines[source]
        return validated(found, data, here, path)


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
            f"{path}: replicates and chunk must be at least {found.least}: errors are known by their spread."
        )
    most = study.replicates if study.precision is None else study.precision.max_replicates
    for left in (study.replicates % study.chunk, most % study.chunk):
        if 0 < left < found.least:
            raise InputError(
                f"{path}: {most} replicates by {study.chunk} leave a task of {left}: change chunk."
            )


def _changed(study: Study, change: dict[str, Any]) -> dict[str, Any]:
    what = dict(study.what)
    for path, value in change.items():
        put(what, path, value)
    return what
