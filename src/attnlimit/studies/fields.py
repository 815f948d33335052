"""What the models of a specification share: strict fields, sizes, files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, StrictInt

from attnlimit.designs import Sampling
from attnlimit.errors import InputError
from attnlimit.files.strict import OwnRecord


class Fields(BaseModel):
    """Unknown fields are refused, numbers are finite, and nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


MOST_SIZES = 10_000
"""Of a point: each takes its time."""


class Range(Fields):
    """`count` whole numbers from `start` to `stop`, evenly spaced in log."""

    start: PositiveInt
    stop: PositiveInt
    count: PositiveInt

    def values(self) -> list[int]:
        if self.count == 1 or self.start >= self.stop:
            raise ValueError("a range needs start below stop and a count of at least 2")
        if self.count > MOST_SIZES:
            raise ValueError(f"a range has a count of at most {MOST_SIZES:,}, got {self.count:,}")
        ratio = (self.stop / self.start) ** (1 / (self.count - 1))
        return sorted({*(round(self.start * ratio**k) for k in range(self.count - 1)), self.stop})


def _sizes(value: Any) -> Any:
    """A number, a list of them, or {start, stop, count}; kept as a list, so that a resolved copy says all of it."""
    if isinstance(value, dict):
        return Range.model_validate(value).values()
    values = value if isinstance(value, list | tuple) else [value]
    whole = [int(v) if isinstance(v, float) and v == int(v) else v for v in values]
    if whole != sorted(set(whole)):
        raise ValueError("sizes must increase, each given once")
    return whole


Sizes = Annotated[
    list[Annotated[StrictInt, Field(ge=1, le=10**12)]],
    Field(min_length=1, max_length=MOST_SIZES),
    BeforeValidator(_sizes),
]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63)]


SamplingField = Annotated[Sampling, OwnRecord]
"""{draw: different, kept: {sinks: 4}, weight: rest}; what is left out is as in `Sampling()`."""


class File(Fields):
    """A file that tasks read. What a task depends on is its content: the digest is part of the task, the path is not."""

    file: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    def checked(self) -> Path:
        """The path, once its content is known to be that of the specification."""
        found = digest(self.file)
        if found != self.sha256:
            raise InputError(
                f"{self.file} has changed since the study was made (sha256 {found[:12]}…, {self.sha256[:12]}… expected): "
                "put the old file back, or start the study again from its specification."
            )
        return Path(self.file)


def digest(path: str | Path) -> str:
    """SHA-256 of a file's content."""
    if not Path(path).is_file():
        raise InputError(f"There is no file {path}.")
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def with_digests(value: Any, folder: Path) -> Any:
    """A copy in which every {file: path} has its path in full, relative ones from `folder`, and its digest."""
    if isinstance(value, list):
        return [with_digests(item, folder) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("file"), str):
        path = (folder / value["file"]).resolve()
        return {"sha256": digest(path), **value, "file": str(path)}
    return {key: with_digests(item, folder) for key, item in value.items()}


def without_places(value: Any) -> Any:
    """A copy that says what files hold and not where they lie."""
    if isinstance(value, list):
        return [without_places(item) for item in value]
    if not isinstance(value, dict):
        return value
    dropped = {"file"} if "sha256" in value else set()
    return {key: without_places(item) for key, item in value.items() if key not in dropped}
