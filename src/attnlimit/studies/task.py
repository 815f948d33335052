"""A task: what is computed, and the identity and seed that follow from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from typing import Any

from attnlimit.studies.fields import without_places


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
    """A folder of the run for its checkpoints: where it runs, not what it is."""

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
