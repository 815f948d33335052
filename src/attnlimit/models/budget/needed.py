"""How many keys a head needs: the one definition that the table, the figures, the files and the page all use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import NonNegativeFloat

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.errors import InputError
from attnlimit.files.strict import OwnRecord, record
from attnlimit.models.see.fields import Whole
from attnlimit.numerics.counts import short_count
from attnlimit.rates.error_curve import ErrorCurve

RANDOM = Sampling(draw=Different(), weight="rest")
"""Different keys, all drawn at random."""
KEEPING = Sampling(draw=Different(), kept=Kept(own=True, sinks=4, window=16, top=16), weight="rest")
"""Some keys always there, and different ones drawn from the others."""
POLICIES = ("best", "sampled", "kept")
"""What is cheaper for a head; all keys drawn at random; some always kept."""


@record
class Way:
    """A way to sample a head's keys, and its error: rms over queries, relative to the rms of the head's outputs."""

    sampling: Annotated[Sampling, OwnRecord]
    curve: Annotated[ErrorCurve, OwnRecord]

    def __post_init__(self) -> None:
        curve = self.curve
        if curve.keys is None or bool((curve.keys.diff() < 0).any()):
            raise InputError(
                "A head's curve needs the keys that are read at each n, and more n cannot read fewer."
            )
        if curve.full is not None and (curve.n[-1] != curve.full or float(curve.error[-1]) > 0):
            raise InputError("A head's curve must end without error, where all keys are drawn.")

    @property
    def kept(self) -> float:
        """Keys that a query always keeps, mean over queries."""
        return max(self.curve.keys_at(self.curve.n[0]) - self.curve.n[0], 0.0)

    @property
    def policy(self) -> str:
        return "kept" if self.sampling.kept else "sampled"


@record
class Needed:
    """The keys, kept and drawn together, that a query reads under a sampling so that the head's rms error over queries is
    at most what is allowed: never more than it sees, and then it is all of them."""

    sampling: Annotated[Sampling, OwnRecord]
    n: Whole | None
    """Keys drawn besides the kept ones; None: all."""
    keys: NonNegativeFloat
    """Mean over queries."""
    all: bool
    """Whether that is every key that is seen."""

    def __str__(self) -> str:
        """For a table or a map: the number of keys, with + where some of them are always kept."""
        return "all" if self.all else short_count(self.keys) + "+" * bool(self.sampling.kept)


def needed(ways: Sequence[Way], visible: float, rel_error: float) -> Needed:
    """The least keys over the ways; `visible` is the mean number of keys that a query sees."""
    return cheapest(_least(way, visible, rel_error) for way in ways)


def cheapest(found: Iterable[Needed]) -> Needed:
    """The one with the least keys, the first among equals."""
    return min(found, key=lambda one: one.keys)


def _least(way: Way, visible: float, rel_error: float) -> Needed:
    n = way.curve.least(rel_error)
    keys = visible if n is None else way.curve.keys_at(n)
    if n is None or keys >= visible - 0.5:
        return Needed(way.sampling, None, visible, True)
    return Needed(way.sampling, n, keys, False)
