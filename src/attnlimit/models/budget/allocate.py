"""Share keys out among heads by their exact error curves.

A head may choose among several ways to sample its keys, each with its curve: drawing n keys it reads c(n) of them, kept
ones included, and its mean square error is f(n) = a + b/n between grid points. To split a total B is to solve

    min Σ_h w_h f_h(n_h)  subject to  Σ_h c_h(n_h) ≤ B,  n_h whole

by a price λ for each key read: every head takes what minimises w f(n) + λ c(n), which on a piece where one more drawn key
reads s keys is n = (w b/(λ s))^{1/2}, rounded down or up. As λ falls the heads' choices walk along the lower convex hulls
of their curves in order of decrease per key, so bisecting λ is the greedy walk over all hulls, taken in one jump. For
convex curves it is optimal. For others the price gives a lower bound on the error of every split, so that what may be
lost is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attnlimit.errors import InputError
from attnlimit.inputs import as_count, as_positive
from attnlimit.rates.error_curve import ErrorCurve

TINY = 1e-300
EXCESS = 1e-9
"""Relative excess over a total that is rounding."""
JUMPS_TRIED = 4
"""Of the jumps that do not fit, the longest so many are each tried at the others' expense."""


@dataclass(frozen=True, eq=False)
class Choice:
    """What one head may do: the relative error of each way to sample its keys, and how much its square counts."""

    curves: tuple[ErrorCurve, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        as_positive(self.weight, "weight")
        if not self.curves:
            raise InputError("A head needs at least one curve to choose from.")


class Pick(NamedTuple):
    """What a head does: its way, the n of it (None: all keys), the keys read and the relative mean square error."""

    way: int
    n: int | None
    keys: float
    mean_square: float


@dataclass(frozen=True)
class Allocation:
    """What each head does, and the error that this predicts."""

    picks: tuple[Pick, ...]
    error: float
    """Σ weight · mean square error."""
    lower_bound: float | None = None
    """No split of the same total has an error below this (None: nothing was split)."""

    @property
    def n(self) -> tuple[int | None, ...]:
        return tuple(one.n for one in self.picks)

    @property
    def total(self) -> float:
        """Keys that a query reads, all heads together."""
        return sum(one.keys for one in self.picks)

    def __repr__(self) -> str:
        return f"Allocation({len(self.picks)} heads, {self.total:,.0f} keys in all, error {self.error:.4g})"


def uniform_total(heads: Sequence[Choice], total: int) -> Allocation:
    """The same number of keys for every head, the largest whose sum is at most `total`: the baseline. Of its ways a head
    takes the one with the least error, and no more keys than that needs."""
    market = _Market(heads)
    room = market.room(total)

    def taken(keys: int) -> _Taken:
        return market.demand(0.0, _Range(market.free.least, np.maximum(market.first, keys)))

    low, high = 0, room + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(middle).total <= room * (1 + EXCESS) else (low, middle)
    return _allocation(heads, taken(low))


def split_total(heads: Sequence[Choice], total: int) -> Allocation:
    """Share `total` keys out so that Σ weight · mean square error is least (how: at the top of this file).

    Keys that would not lower the error of any head are not used.

    >>> import torch
    >>> errors = torch.tensor([1.0, 0.1], dtype=torch.float64)
    >>> strong, weak = ErrorCurve((1, 100), errors), ErrorCurve((1, 100), errors / 10)
    >>> split_total([Choice((strong,)), Choice((weak,))], 44).n
    (40, 4)
    """
    market = _Market(heads)
    room, whole = market.room(total), market.free
    below, above, price = _bisect(market, whole, room)
    bound = max(float(market.options(price, whole).value.min(1).sum()) - price * room, 0.0)
    # A jump along a hull that is longer than what is left may be barred, or taken at the others' expense.
    splits = [_greedy(market, whole, room)]
    jumps = above.cost - below.cost
    for head in np.argsort(jumps)[-JUMPS_TRIED:]:
        least = np.where(np.arange(len(heads)) == head, above.cost, whole.least)
        if jumps[head] > 1 and np.maximum(least, market.first).sum() <= room:
            splits.append(_greedy(market, _Range(least, whole.most), room))
    found = [_allocation(heads, split, bound) for split in splits]
    found.append(replace(uniform_total(heads, room), lower_bound=bound))
    return min(found, key=lambda one: one.error)


@dataclass(frozen=True, eq=False)
class _Range:
    """The fewest and the most keys that each head may read."""

    least: np.ndarray
    most: np.ndarray


@dataclass(frozen=True, eq=False)
class _Taken:
    """By head: the way, its n, and the keys read. Or, as options, (heads, candidates), each with its value."""

    way: np.ndarray
    n: np.ndarray
    cost: np.ndarray
    value: np.ndarray
    """w f + λ c."""

    @property
    def total(self) -> float:
        return float(self.cost.sum())

    def at(self, index: np.ndarray) -> _Taken:
        return _Taken(*(np.take_along_axis(part, index[:, None], 1)[:, 0] for part in vars(self).values()))

    def where(self, mask: np.ndarray, other: _Taken) -> _Taken:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Taken(*(np.where(mask, a, b) for a, b in pairs))


class _Market:
    """What each head would take at a given price of a key: arrays (heads, pieces of all its curves)."""

    def __init__(self, heads: Sequence[Choice]) -> None:
        if len(heads) == 0:
            raise InputError("There are no curves: give at least one per head.")
        rows = [
            [piece for way, one in enumerate(head.curves) for piece in _pieces(way, one)] for head in heads
        ]
        most = max(len(row) for row in rows)
        table = np.array([row + [row[-1]] * (most - len(row)) for row in rows])
        weight = np.array([[head.weight] for head in heads])
        self.way, self.left, self.right, low, high, self.start, stop = np.moveaxis(table, 2, 0)
        self.low, self.high = weight * low, weight * high
        width = np.maximum(self.right - self.left, 1)
        self.rise = (stop - self.start) / width
        bent = (self.left > 0) & (self.left < self.right)
        inverse = 1 / np.maximum(self.left, 1) - 1 / np.maximum(self.right, 1)
        self.b = np.where(bent, (self.low - self.high) / np.where(bent, inverse, 1), 0.0)
        self.straight = np.where(bent, 0.0, (self.high - self.low) / width)
        self.first = self.start.min(1)
        self.free = _Range(np.full(len(heads), -np.inf), np.full(len(heads), np.inf))

    def room(self, total: int) -> int:
        room, least = as_count(total, "total"), float(self.first.sum())
        if room < least - 0.5:
            raise InputError(
                f"A total of {room} keys is too small: {len(self.first)} heads need {least:.0f}, what they keep and one "
                "drawn key each. Give more, or keep fewer."
            )
        return room

    def options(self, price: float, allowed: _Range) -> _Taken:
        """On each piece its ends and the two whole numbers about the minimum; infinite where not allowed."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            best = np.sqrt(np.maximum(self.b, 0) / (price * self.rise))
            fewest = np.ceil((allowed.least[:, None] - self.start) / self.rise - 1e-6)
            largest = np.floor((allowed.most[:, None] - self.start) / self.rise + 1e-6)
        # a piece on which nothing more is read is allowed as a whole or not at all
        flat = self.rise <= 0
        inside = (self.start <= allowed.most[:, None] + 1e-6) & (self.start >= allowed.least[:, None] - 1e-6)
        low = np.where(flat, 0, np.maximum(fewest, 0)) + self.left
        high = np.where(flat, np.where(inside, self.right, -1), np.minimum(self.left + largest, self.right))
        best = np.floor(np.clip(np.where(np.isnan(best), self.left, best), self.left, self.right))
        n = np.concatenate([self.left, best, best + 1, self.right], 1)
        low, high, left, right, f_left, f_right, b, straight, start, rise, way = (
            np.tile(part, 4)
            for part in (
                low, high, self.left, self.right, self.low, self.high, self.b, self.straight, self.start,
                self.rise, self.way,
            )
        )  # fmt: skip
        n = np.minimum(np.maximum(n, low), high)
        cost = start + rise * (n - left)
        curved = b * (1 / np.maximum(n, 1) - 1 / np.maximum(left, 1))
        f = np.where(n == right, f_right, f_left + straight * (n - left) + curved)
        value = np.where((n < low) | (n < left) | (n > right), np.inf, f + price * cost)
        return _Taken(way, n, cost, value)

    def demand(self, price: float, allowed: _Range) -> _Taken:
        """The best option, the fewest keys among equals."""
        found = self.options(price, allowed)
        best = found.value <= found.value.min(1, keepdims=True)
        return found.at(np.where(best, found.cost, np.inf).argmin(1))


def _pieces(way: int, curve: ErrorCurve) -> list[tuple[int | float, ...]]:
    """(way, n, next n, squared error, next one, keys, next keys) between grid points, up to all keys."""
    grid = [n for n in curve.n if curve.full is None or n < curve.full]
    grid += [] if curve.full is None else [curve.full]
    points = [(n, curve.at(n) ** 2, curve.keys_at(n)) for n in grid]
    pairs = [*pairwise(points)] or [(points[0], points[0])]
    return [(way, n, m, f, g, c, d) for (n, f, c), (m, g, d) in pairs]


def _greedy(market: _Market, allowed: _Range, room: int) -> _Taken:
    """The walk along the hulls; a jump that is longer than what is left is barred, and the rest shared out again."""
    while True:
        below, above, _ = _bisect(market, allowed, room)
        chosen = _fill(below, above, room)
        left = room - chosen.total
        if left <= room * EXCESS or bool((above.cost <= chosen.cost).all()):
            return chosen
        allowed = _Range(allowed.least, np.minimum(allowed.most, chosen.cost + left))


def _bisect(market: _Market, allowed: _Range, room: int) -> tuple[_Taken, _Taken, float]:
    """The demand just above and just below the price at which more than `room` keys are asked for, and that price.
    If even free keys are not asked for in that number, both are the demand for free keys."""
    above = market.demand(0.0, allowed)
    if above.total <= room * (1 + EXCESS):
        return above, above, 0.0
    # at the higher price nobody takes more than the first
    steepest = np.where(market.rise > 0, market.rise, np.inf).min()
    low, high = np.log(TINY), np.log(2 * market.low.max() / max(float(steepest), 1e-6))
    below = market.demand(float(np.exp(high)), allowed)
    while low < (middle := (low + high) / 2) < high:
        taken = market.demand(float(np.exp(middle)), allowed)
        if taken.total <= room * (1 + EXCESS):
            high, below = middle, taken
        else:
            low, above = middle, taken
    return below, above, float(np.exp(high))


def _fill(below: _Taken, above: _Taken, room: int) -> _Taken:
    """All steps from below to above lower the error by the same amount per key: take what fits, longest first."""
    step = above.cost - below.cost
    left, stepped = room * (1 + EXCESS) - below.total, np.zeros(len(step), dtype=bool)
    for head in np.argsort(-step, kind="stable"):
        if 0 < step[head] <= left:
            stepped[head] = True
            left -= step[head]
    return above.where(stepped, below)


def _allocation(heads: Sequence[Choice], taken: _Taken, bound: float | None = None) -> Allocation:
    picks = []
    for head, way, size in zip(heads, taken.way.astype(int), taken.n.astype(int), strict=True):
        curve, n = head.curves[way], int(size)
        all_keys = curve.full is not None and n >= curve.full
        picks.append(Pick(int(way), None if all_keys else n, curve.keys_at(n), curve.at(n) ** 2))
    error = sum(head.weight * one.mean_square for head, one in zip(heads, picks, strict=True))
    return Allocation(tuple(picks), error, bound)
