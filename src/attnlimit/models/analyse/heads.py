"""What is measured of one head at some queries, and the report that it adds up to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.designs import Different, Independent, Kept, Sampling
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import squares
from attnlimit.rates import exponents

POLICIES = {"sampled": Kept(), "kept": Kept(own=True, sinks=4, window=16, top=16)}
"""What a budget may keep besides the keys it samples; a head's curve is computed for each."""
SHARES = {"own": Kept(own=True), "sinks": Kept(sinks=4), "window": Kept(window=16)}
EXPONENT_RANGE = (64, 384)
"""n over which local exponents are fitted, as published for BERT; in short contexts, what is left of it."""
SCORE_BINS = (-20.0, 20.0, 160)
"""Lowest and highest edge and number of the bins in which scores are counted; the end bins hold what lies beyond."""


@dataclass(frozen=True)
class HeadReport:
    """One head on one text: how many keys it needs, and why. Errors are relative to the size of its outputs,
    (mean over queries of ‖Γ‖²)^{1/2}."""

    layer: int
    head: int
    name: str
    horizon: float
    """√λ_max(Cov q · Cov k)·scale."""
    score_spread: tuple[float, ...]
    """Standard deviation of a query's scores over its keys: 10 %, 50 %, 90 % of the queries."""
    score_counts: tuple[int, ...]
    """Keys by score less the query's mean score, over all queries, in SCORE_BINS."""
    effective_keys: tuple[float, ...]
    """1/Σ p², likewise."""
    visible_keys: float
    """Mean number of keys that a query sees."""
    shares: dict[str, float]
    """Mean attention weight on the own token, the first 4 keys and the last 16 up to the own one."""
    kept_keys: dict[str, float]
    """By policy: mean number of keys that a query keeps."""
    n: tuple[int, ...]
    curves: dict[str, dict[str, tuple[float, ...]]]
    """By policy: relative error at each n, `rms` over queries, `median` and `p90` of the queries."""
    n_median: int | None
    """Keys that half of the queries need for the error asked for; None: more than there are."""
    n_p90: int | None
    local_exponent: float
    """Of the rms curve over `exponent_range`. Different keys are worth more than independent ones: without
    replacement it is the exponent in n/(1 − n/R), the independent keys that n of R are worth."""
    exponent_range: tuple[int, int]
    """Least and largest n of the fit."""
    asymptotic_exponent: float
    """Of Gaussian tokens with this horizon."""
    published_exponent: float
    output_share: float | None
    """E‖W_h Γ_h‖² over that of all heads of the layer together, W the output projection; None: not found."""
    cross: bool
    """Whether the keys are another sequence's, as in an encoder-decoder model."""
    phase: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Measured:
    """One head, query by query, over all passages."""

    n: tuple[int, ...]
    different: bool
    """n different keys (without replacement), or n independent ones."""
    squares: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in POLICIES})
    limits: list[Tensor] = field(default_factory=list)
    spreads: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    effective: list[Tensor] = field(default_factory=list)
    visible: list[Tensor] = field(default_factory=list)
    kept: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in POLICIES})
    shares: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(
        self,
        scores: Float[Tensor, "m n"],
        values: Float[Tensor, "n p"],
        positions: Tensor | None,
        sink: Tensor | None,
        ordered: bool = True,
    ) -> None:
        """Queries with these scores (−∞: not seen) over keys with these values. No positions: a query has no key of its
        own among them, so that there is no window either; not `ordered`: no first keys."""
        hidden = scores == -torch.inf
        seen = (~hidden).sum(1)
        p = scores.softmax(1) if sink is None else _softmax_with_sink(scores, sink)
        self.limits.append((p @ values).double().square().sum(1))
        self.effective.append(1 / p.double().square().sum(1))
        self.visible.append(seen.double())
        finite = scores.double().masked_fill(hidden, 0.0)
        mean = finite.sum(1) / seen
        self.spreads.append(((finite.square().sum(1) / seen) - mean.square()).clamp_min(0).sqrt())
        self.scores.append(_score_counts((finite - mean[:, None])[~hidden]))
        for name, kept in SHARES.items():
            if _possible(kept, positions, ordered) == kept:
                share = (p * kept.mask(scores, positions)).sum(1).double()
                self.shares.setdefault(name, []).append(share)
        for name, kept in POLICIES.items():
            kept = _possible(kept, positions, ordered)
            self.kept[name].append((kept.mask(scores, positions) & ~hidden).sum(1))
            self.squares[name].append(self._squares(scores, values, hidden, kept, positions, sink))

    def _squares(
        self,
        scores: Tensor,
        values: Tensor,
        hidden: Bool[Tensor, "m n"],
        kept: Kept,
        positions: Tensor | None,
        sink: Tensor | None,
    ) -> Tensor:
        """Mean square error at each n, importance-weighted beside kept keys; zero where nothing is left."""
        seen = Seen(
            scores,
            values,
            hidden if bool(hidden.any()) else None,
            None if sink is None else sink.expand(len(scores)),
        )
        draw = Different() if self.different else Independent()
        return squares(seen, self.n, Sampling(draw=draw, kept=kept, weight="rest"), positions)

    def report(
        self,
        layer: int,
        head: int,
        name: str,
        horizon: float,
        rel_error: float,
        cross: bool,
        share: float | None,
    ) -> HeadReport:
        limits = torch.cat(self.limits)
        scale = limits.mean().sqrt().clamp_min(1e-30)
        relative = {key: torch.cat(parts).clamp_min(0).sqrt() / scale for key, parts in self.squares.items()}
        need = least_n(self.n, relative["sampled"], rel_error)
        rms = relative["sampled"].square().mean(0).sqrt()
        sharp = exponents(horizon)
        median, p90 = _count(need.quantile(0.5)), _count(need.quantile(0.9))
        effective, visible = torch.cat(self.effective), torch.cat(self.visible).mean()
        exponent, between = self._exponent(rms, float(visible))
        return HeadReport(
            layer=layer,
            head=head,
            name=name,
            horizon=horizon,
            score_spread=_quantiles(torch.cat(self.spreads)),
            score_counts=tuple(int(count) for count in torch.stack(self.scores).sum(0)),
            effective_keys=_quantiles(effective),
            visible_keys=float(visible),
            shares={key: float(torch.cat(parts).mean()) for key, parts in self.shares.items()},
            kept_keys={key: float(torch.cat(parts).double().mean()) for key, parts in self.kept.items()},
            n=self.n,
            curves={key: _curve(errors) for key, errors in relative.items()},
            n_median=median,
            n_p90=p90,
            local_exponent=exponent,
            exponent_range=between,
            asymptotic_exponent=float(sharp.rms),
            published_exponent=float(sharp.paper),
            output_share=share,
            cross=cross,
            phase=phase(p90, float(effective.quantile(0.5)), float(visible), rel_error),
        )

    def _exponent(self, rms: Float[Tensor, " n"], visible: float) -> tuple[float, tuple[int, int]]:
        """Least squares on log-log axes over EXPONENT_RANGE, or over the upper three octaves below 3/4 of the keys."""
        low, high = EXPONENT_RANGE
        if self.different and high > 0.75 * visible:
            low, high = min(low, max(1, round(0.09375 * visible))), max(2, int(0.75 * visible))
        n = np.asarray(self.n, dtype=float)
        fitted = np.unique(np.geomspace(low, min(high, n[-1]), 9).round())
        squares = [error_at(self.n, tuple(rms.tolist()), int(at)) for at in fitted]
        worth = fitted / (1 - fitted / visible) if self.different else fitted
        slope = (
            np.polyfit(np.log(worth), np.log(np.maximum(squares, 1e-30)), 1)[0] if len(worth) > 1 else np.nan
        )
        return -float(slope), (int(fitted[0]), int(fitted[-1]))


def least_n(n: tuple[int, ...], relative: Float[Tensor, "m n"], rel_error: float) -> Float[Tensor, " m"]:
    """Least n with error ≤ rel_error for each query; ∞ beyond the grid. Between grid points the squared error is
    taken as a + b/n, as it is where the central limit theorem holds, with and without replacement."""
    square, inverse = relative.square(), 1 / torch.tensor(n, dtype=torch.float64)
    enough = relative <= rel_error
    first = enough.to(torch.int8).argmax(1)
    before, rows = (first - 1).clamp_min(0), torch.arange(len(relative))
    high, low = square[rows, before], square[rows, first]
    share = ((high - rel_error**2) / (high - low).clamp_min(1e-300)).clamp(0, 1)
    found = 1 / (inverse[before] + share * (inverse[first] - inverse[before]))
    return torch.where(enough.any(1), (found - 1e-9).ceil(), torch.inf)


def error_at(n: tuple[int, ...], rms: tuple[float, ...], at: int) -> float:
    """The curve between its grid points, in the same way."""
    inverse = 1 / np.asarray(n, dtype=float)
    return float(np.sqrt(np.interp(1 / at, inverse[::-1], np.square(rms)[::-1])))


def phase(n: int | None, effective: float, visible: float, rel_error: float) -> str:
    """The head's kind in words, from the keys that 90 % of its queries need."""
    if effective < 3:
        return f"picks {'one key' if effective < 1.5 else 'a few keys'}: do not sample"
    if n is None or n >= visible:
        return f"needs all its keys for {100 * rel_error:g} %"
    if n <= visible / 4:
        return f"averages: {n} keys are enough"
    return f"averages slowly: {n} of {visible:.0f} keys"


def _curve(errors: Float[Tensor, "m n"]) -> dict[str, tuple[float, ...]]:
    rows = {
        "rms": errors.square().mean(0).sqrt(),
        "median": errors.quantile(0.5, dim=0),
        "p90": errors.quantile(0.9, dim=0),
    }
    return {name: tuple(row.tolist()) for name, row in rows.items()}


def _possible(kept: Kept, positions: Tensor | None, ordered: bool) -> Kept:
    """What of a kept set there can be."""
    if positions is None:
        kept = replace(kept, own=False, window=0)
    return kept if ordered else replace(kept, sinks=0)


def _softmax_with_sink(scores: Float[Tensor, "m n"], sink: Tensor) -> Float[Tensor, "m n"]:
    """Weights of the keys beside a sink, a key without value."""
    return torch.cat([scores, sink.expand(len(scores), 1)], 1).softmax(1)[:, :-1]


def _quantiles(values: Tensor) -> tuple[float, ...]:
    return tuple(values.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=values.dtype)).tolist())


def _score_counts(centred: Float[Tensor, " keys"]) -> Float[Tensor, " bins"]:
    low, high, bins = SCORE_BINS
    return torch.histc(centred.clamp(low, high), bins=bins, min=low, max=high)


def _count(value: Tensor) -> int | None:
    return int(value) if bool(torch.isfinite(value)) else None
