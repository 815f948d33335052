"""Ratios of running times that survive a shared, noisy machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter


@dataclass(frozen=True)
class Ratio:
    """Time of a call over the time of the base call, from the seconds of both in each round."""

    seconds: list[float]
    base: list[float]

    @property
    def values(self) -> list[float]:
        return [mine / other for mine, other in zip(self.seconds, self.base, strict=True)]

    @property
    def median(self) -> float:
        return median(self.values)

    def details(self) -> dict[str, object]:
        return {
            "quartiles": quantiles(self.values, n=4, method="inclusive")[::2],
            "best against best": min(self.seconds) / min(self.base),
            "rounds": len(self.seconds),
            "how": "median over rounds of the ratio of interleaved calls",
        }


def compare(
    calls: dict[str, Callable[[], object]], base: str, rounds: int, *, warm: bool = False
) -> dict[str, Ratio]:
    """For each call but `base` its time over that of `base`, in each of `rounds` rounds, two at least; `warm`: all have been called before.

    Every round times every call once, each in its turn first, so that drift and bursts of other work fall on all.
    """
    names = list(calls)
    for call in () if warm else calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(max(2, rounds)):  # one has no quartiles
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(_seconds(calls[name]))
    return {name: Ratio(seconds[name], seconds[base]) for name in names if name != base}


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
