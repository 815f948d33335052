"""Share keys out among heads by their exact error curves.

Between two points of its curve a head's mean square error is taken as a power law, f(n) = f_k (n_k/n)^p: a straight
line in log-log, as the exact curves nearly are. To split a total B is to solve

    min Σ_h w_h f_h(n_h)  subject to  Σ_h n_h ≤ B,  n_h whole

by a price λ for each key: every head takes the n that minimises w f(n) + λ n, which on a piece of power law is
n = (w p f_k n_k^p/λ)^{1/(p+1)}, rounded down or up. As λ falls the heads' choices walk along the lower convex hulls of
their curves in order of decrease per key, so bisecting λ is the greedy walk over all hulls, taken in one jump. For
convex curves it is optimal. For others the price gives a lower bound on the error of every split, so that what may be
lost is known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnlimit.errors import InputError
from attnlimit.inputs import as_count, as_counts, as_positive

TINY = 1e-300
"""Errors below this are taken for this, to have logarithms."""
NEVER = np.iinfo(np.int64).max
JUMPS_TRIED = 4
"""Of the jumps that do not fit, the longest so many are each tried at the others' expense."""


@dataclass(frozen=True)
class HeadCurve:
    """E‖Γ_n − Γ‖²/E‖Γ‖² of one head at each n of a grid: its root is the relative rms error.

    The grid may start at 0 (only the kept keys) if the head keeps some. `full` is the number of keys of full attention,
    whose error is 0 (None: full attention is not an option). `weight` says how much this head's square error counts.
    """

    n: tuple[int, ...]
    mean_square: tuple[float, ...]
    full: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        zero = len(self.n) > 0 and self.n[0] == 0
        n = [0] * zero + ([] if len(self.n) == zero == 1 else as_counts(self.n[zero:], "n"))
        square = np.asarray(self.mean_square, dtype=float)
        if square.shape != (len(n),):
            raise InputError(
                f"A curve needs one mean square error per n, got {square.size} errors for {len(n)} n."
            )
        if any(after <= before for before, after in pairwise(n)):
            raise InputError(f"The n of a curve must increase, got {n}.")
        if not bool((np.isfinite(square) & (square >= 0)).all()):
            raise InputError(f"Mean square errors must be finite and at least 0, got {square.tolist()}.")
        as_positive(self.weight, "weight")
        if self.full is not None:
            object.__setattr__(self, "full", as_count(self.full, "full"))
        object.__setattr__(self, "n", tuple(n))
        object.__setattr__(self, "mean_square", tuple(square.tolist()))

    def at(self, n: int) -> float:
        """The mean square error at n: 0 at full attention, and past the grid what it is at its end."""
        if self.full is not None and n >= self.full:
            return 0.0
        k = bisect_right(self.n, n) - 1
        if k < 0:
            raise InputError(f"The curve starts at n = {self.n[0]}: what it is at {n} is not known.")
        if k == len(self.n) - 1 or n == self.n[k]:
            return self.mean_square[k]
        left, right = self.n[k : k + 2]
        low, high = (max(value, TINY) for value in self.mean_square[k : k + 2])
        if left == 0:  # no logarithm there: a straight line
            return float(low + (high - low) * n / right)
        return float(low * (left / n) ** (np.log(low / high) / np.log(right / left)))

    def least(self, target: float) -> int | None:
        """The least n of the grid's range with a mean square error of at most `target`; None if there is none."""
        reached = [k for k, value in enumerate(self.mean_square) if value <= target]
        if not reached:
            return None
        enough = self.n[reached[0]]
        short = self.n[reached[0] - 1] if reached[0] else enough - 1
        while enough - short > 1:
            middle = (short + enough) // 2
            short, enough = (short, middle) if self.at(middle) <= target else (middle, enough)
        return enough


@dataclass(frozen=True)
class Allocation:
    """How many keys each head samples, and the error that this predicts."""

    n: tuple[int | None, ...]
    """By head; None: full attention."""
    keys: tuple[int, ...]
    """What each head costs: n, or all its keys."""
    mean_square: tuple[float, ...]
    """Predicted relative mean square error of each head."""
    error: float
    """Σ weight · mean_square."""
    lower_bound: float | None = None
    """No split of the same total has an error below this (None: nothing was split)."""

    @property
    def total(self) -> int:
        return sum(self.keys)

    def __repr__(self) -> str:
        return f"Allocation({len(self.n)} heads, {self.total:,} keys in all, error {self.error:.4g})"

    def to_dict(self) -> dict[str, Any]:
        parts = {name: list(getattr(self, name)) for name in ("n", "keys", "mean_square")}
        return {**parts, "total": self.total, "error": self.error, "lower_bound": self.lower_bound}


def least_total(curves: Sequence[HeadCurve], rel_error: float) -> Allocation:
    """For every head the least n whose relative rms error is at most `rel_error`, or full attention where that takes
    no more keys, or where the curve never gets there."""
    target = as_positive(rel_error, "rel_error") ** 2
    keys = []
    for head, curve in enumerate(_some(curves)):
        enough = curve.least(target)
        if enough is None and curve.full is None:
            raise InputError(
                f"Head {head} never reaches a relative error of {rel_error:g}: at n = {curve.n[-1]} it is "
                f"{curve.mean_square[-1] ** 0.5:.3g}. Give its curve more n, or allow full attention (full=)."
            )
        keys.append(min(value for value in (enough, curve.full) if value is not None))
    return _allocation(curves, keys)


def uniform_total(curves: Sequence[HeadCurve], total: int) -> Allocation:
    """The same n for every head, the largest whose cost is at most `total`: the baseline. A head takes no more keys
    than full attention, and no more than its curve knows."""
    room = _room(curves, total)

    def cost(n: int) -> list[int]:
        return [
            one.full if one.full is not None and n >= one.full else min(max(n, _first(one)), one.n[-1])
            for one in curves
        ]

    low, high = 0, room + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sum(cost(middle)) <= room else (low, middle)
    return _allocation(curves, cost(low))


def split_total(curves: Sequence[HeadCurve], total: int) -> Allocation:
    """Share `total` keys out so that Σ weight · mean square error is least (how: at the top of this file).

    Keys that would not lower the error of any head are not used.

    >>> strong, weak = HeadCurve((1, 100), (1.0, 0.01)), HeadCurve((1, 100), (0.01, 0.0001))
    >>> split_total([strong, weak], 44).n
    (40, 4)
    """
    room, market = _room(curves, total), _Market(curves)
    whole = _Range(np.array([_first(one) for one in curves]), np.full(len(curves), NEVER - 1))
    below, above, price = _bisect(market, whole, room)
    bound = max(float(market.cost(price, whole)[1].min(1).sum()) - price * room, 0.0)
    # A jump along a hull that is longer than what is left may be barred, or taken at the others' expense.
    splits = [_greedy(market, whole, room)]
    for head in np.argsort(above - below)[-JUMPS_TRIED:]:
        least = np.where(np.arange(len(curves)) == head, above, whole.least)
        if above[head] > below[head] + 1 and int(least.sum()) <= room:
            splits.append(_greedy(market, _Range(least, whole.most), room))
    found = [_allocation(curves, split.tolist(), bound) for split in splits]
    found.append(_allocation(curves, uniform_total(curves, room).keys, bound))
    return min(found, key=lambda one: one.error)


@dataclass(frozen=True, eq=False)
class _Range:
    """The fewest and the most keys that each head may take."""

    least: np.ndarray
    most: np.ndarray


class _Market:
    """What each head would take at a given price of a key: arrays (heads, pieces of curve)."""

    def __init__(self, curves: Sequence[HeadCurve]) -> None:
        most = max(len(one.n) for one in curves) + 1  # the last piece is a point: the end of the grid
        grid = np.array([[*one.n, *[one.n[-1]] * (most - len(one.n))] for one in curves], dtype=np.int64)
        square = [[*one.mean_square, *[one.mean_square[-1]] * (most - len(one.n))] for one in curves]
        f = np.maximum(np.array([[one.weight] for one in curves]) * np.array(square), TINY)
        self.left, self.right, self.low, self.high = grid[:, :-1], grid[:, 1:], f[:, :-1], f[:, 1:]
        self.full = np.array([[NEVER if one.full is None else one.full] for one in curves])
        bent = (self.left > 0) & (self.left < self.right)
        ratio = np.where(bent, self.right / np.maximum(self.left, 1), 2.0)
        self.power = np.where(bent, np.log(self.low / self.high) / np.log(ratio), 0.0)

    def options(self, price: float, allowed: _Range) -> np.ndarray:
        """(heads, candidates): on each piece its ends and the two whole numbers about the minimum."""
        p = self.power
        with np.errstate(divide="ignore", invalid="ignore"):
            best = np.exp((np.log(p * self.low / price) + p * np.log(self.left)) / (p + 1))
        best = np.clip(np.where(p > 0, best, 0.0), self.left, self.right).astype(np.int64)
        pieces = np.concatenate([self.left, best, np.minimum(best + 1, self.right), self.right], 1)
        return np.clip(pieces, allowed.least[:, None], allowed.most[:, None])

    def cost(self, price: float, allowed: _Range) -> tuple[np.ndarray, np.ndarray]:
        """The options, with full attention as the last, and w f(n) + λ n for each: infinite where not allowed."""
        n = self.options(price, allowed)
        left, right, low, high, power = (
            np.tile(part, 4) for part in (self.left, self.right, self.low, self.high, self.power)
        )
        with np.errstate(over="ignore"):  # only where n is not on the piece
            curved = low * (np.maximum(left, 1) / np.maximum(n, 1)) ** power
        straight = low + (high - low) * n / np.maximum(right, 1)
        value = np.where(n == right, high, np.where(left == 0, straight, curved)) + price * n
        value = np.where((n < left) | (n > right) | (n >= self.full), np.inf, value)
        whole = np.where(self.full <= allowed.most[:, None], price * self.full, np.inf)
        return np.concatenate([n, self.full], 1), np.concatenate([value, whole], 1)

    def demand(self, price: float, allowed: _Range) -> np.ndarray:
        """(heads,): the cheapest option, the fewest keys among equals."""
        n, cost = self.cost(price, allowed)
        return np.where(cost <= cost.min(1, keepdims=True), n, NEVER).min(1)


def _greedy(market: _Market, allowed: _Range, room: int) -> np.ndarray:
    """The walk along the hulls; a jump that is longer than what is left is barred, and the rest shared out again."""
    while True:
        below, above, _ = _bisect(market, allowed, room)
        chosen = _fill(below, above, room)
        left = room - int(chosen.sum())
        if left == 0 or bool((above <= chosen).all()):
            return chosen
        allowed = _Range(allowed.least, np.minimum(allowed.most, chosen + left))


def _bisect(market: _Market, allowed: _Range, room: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The demand just above and just below the price at which more than `room` keys are asked for, and that price.
    If even free keys are not asked for in that number, both are the demand for free keys."""
    above = market.demand(0.0, allowed)
    if int(above.sum()) <= room:
        return above, above, 0.0
    low, high = (
        np.log(TINY),
        np.log(2 * market.low.max()),
    )  # at the higher price nobody takes more than the first
    below = market.demand(float(np.exp(high)), allowed)
    while low < (middle := (low + high) / 2) < high:
        taken = market.demand(float(np.exp(middle)), allowed)
        if int(taken.sum()) <= room:
            high, below = middle, taken
        else:
            low, above = middle, taken
    return below, above, float(np.exp(high))


def _fill(below: np.ndarray, above: np.ndarray, room: int) -> np.ndarray:
    """All steps from below to above lower the error by the same amount per key: take what fits, longest first."""
    chosen, step = below.copy(), np.maximum(above - below, 0)
    left = room - int(chosen.sum())
    for head in np.argsort(-step, kind="stable"):
        if 0 < step[head] <= left:
            chosen[head] += step[head]
            left -= int(step[head])
    return chosen


def _some(curves: Sequence[HeadCurve]) -> Sequence[HeadCurve]:
    if len(curves) == 0:
        raise InputError("There are no curves: give one per head.")
    return curves


def _first(curve: HeadCurve) -> int:
    """The fewest keys that a head can have."""
    return curve.n[0] if curve.full is None else min(curve.n[0], curve.full)


def _room(curves: Sequence[HeadCurve], total: int) -> int:
    room, least = as_count(total, "total"), sum(_first(one) for one in _some(curves))
    if room < least:
        raise InputError(
            f"A total of {room} keys is too small: {len(curves)} heads need {least} for their first."
        )
    return room


def _allocation(curves: Sequence[HeadCurve], keys: Sequence[int], bound: float | None = None) -> Allocation:
    square = tuple(one.at(n) for one, n in zip(curves, keys, strict=True))
    n = tuple(
        None if one.full is not None and n >= one.full else n for one, n in zip(curves, keys, strict=True)
    )
    error = sum(one.weight * value for one, value in zip(curves, square, strict=True))
    return Allocation(n, tuple(keys), square, error, bound)
