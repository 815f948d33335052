"""What results about models share: their weights, and the points they are in."""

from __future__ import annotations

from typing import TypeVar

from attnlimit.reproduce.result import Runs
from attnlimit.studies.model_fields import OfModel

M = TypeVar("M", bound=OfModel)


def results(runs: Runs, kind: type[M]) -> list[M]:
    """Of all points of all studies, which must be of that kind."""
    found = [point.result for one in runs.values() for point in one.points]
    if not found or not all(isinstance(one, kind) for one in found):
        raise TypeError(f"{kind.__name__} expected of every point")
    return found


def only(runs: Runs, kind: type[M]) -> M:
    """Of the one point there is."""
    (found,) = results(runs, kind)
    return found


def weights(runs: Runs) -> list[str]:
    """Which weights were used, each once."""
    return list(dict.fromkeys(one.weights for one in results(runs, OfModel)))
