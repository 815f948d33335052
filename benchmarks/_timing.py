"""Ratios of running times that survive a shared, noisy machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter


@dataclass(frozen=True)
class Ratio:
    """Time of a call over the time of the base call, one value a round."""

    values: list[float]

    @property
    def median(self) -> float:
        return median(self.values)

    def details(self) -> dict[str, object]:
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return {
            "quartiles": [low, high],
            "rounds": len(self.values),
            "how": "median of ratios, interleaved calls",
        }


def compare(calls: dict[str, Callable[[], object]], base: str, rounds: int) -> dict[str, Ratio]:
    """For each call but `base` its time over that of `base`, in each of `rounds` rounds.

    Every round times every call once, each in its turn first, so that drift and bursts of other work fall on all.
    """
    names = list(calls)
    for call in calls.values():
        call()  # warm up
    ratios: dict[str, list[float]] = {name: [] for name in names if name != base}
    for turn in range(rounds):
        first = turn % len(names)
        seconds = {name: _seconds(calls[name]) for name in names[first:] + names[:first]}
        for name, values in ratios.items():
            values.append(seconds[name] / seconds[base])
    return {name: Ratio(values) for name, values in ratios.items()}


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
