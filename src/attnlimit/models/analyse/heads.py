"""What is measured of one head at some queries, and the report that it adds up to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from attnlimit.bounds.observed_chi2 import effective_interval
from attnlimit.designs import Kept, Sampling
from attnlimit.errors import InputError
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import MODELS_BIN_ABOVE, squares
from attnlimit.files.strict import OwnRecord, record, to_record
from attnlimit.models.budget.needed import POLICIES, Needed, Way, needed
from attnlimit.models.see.fields import Counted, Some, Whole
from attnlimit.models.see.moments import Moments
from attnlimit.numerics.counts import short_count
from attnlimit.rates import exponents
from attnlimit.rates.error_curve import ErrorCurve

SHARES = {"own": Kept(own=True), "sinks": Kept(sinks=4), "window": Kept(window=16)}
EXPONENT_RANGE = (64, 384)
"""n over which local exponents are fitted, as published for BERT; in short contexts, what is left of it."""
SCORE_BINS = (-20.0, 20.0, 160)
"""Lowest and highest edge and number of the bins in which scores are counted; the end bins hold what lies beyond."""
QUANTILES = {"median": 0.5, "p90": 0.9}
PHASES = {
    "one": "picks one key: do not sample",
    "few": "picks a few keys: do not sample",
    "all": "needs all its keys for {error}",
    "fast": "averages: {keys} keys are enough",
    "slow": "averages slowly: {keys} of {visible} keys",
}
"""What kinds of heads there are, by the keys that they need if all are drawn at random."""


@record
class HeadReport:
    """One head on one text: how many keys it needs, and why. Errors are relative to the size of its outputs,
    (mean over queries of ‖Γ‖²)^{1/2}."""

    layer: Whole
    head: Whole
    name: str
    cross: bool
    """Whether the keys are another sequence's, as in an encoder-decoder model."""
    horizon: NonNegativeFloat
    """√λ_max(Cov q · Cov k)·scale."""
    score_spread: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]
    """Standard deviation of a query's scores over its keys: 10 %, 50 %, 90 % of the queries."""
    score_counts: Some[Whole]
    """Keys by score less the query's mean score, over all queries, in SCORE_BINS."""
    effective_keys: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]
    """1/Σ p², likewise."""
    visible_keys: PositiveFloat
    """Mean number of keys that a query sees."""
    shares: dict[str, NonNegativeFloat]
    """Mean attention weight on the own token, the first 4 keys and the last 16 up to the own one."""
    ways: Some[Way]
    """All keys drawn at random, and some always kept: the rms error over queries of each."""
    band: tuple[Annotated[ErrorCurve, OwnRecord], Annotated[ErrorCurve, OwnRecord]]
    """The median over queries and the error that 90 % of them stay below, for random keys."""
    local_exponent: float | None
    """Of random keys over `exponent_range`. Different keys are worth more than independent ones: without replacement
    it is the exponent in n/(1 − n/R), the independent keys that n of R are worth."""
    exponent_range: tuple[Counted, Counted]
    """Least and largest n of the fit."""
    asymptotic_exponent: float
    """Of Gaussian tokens with this horizon."""
    published_exponent: float
    output_share: NonNegativeFloat | None
    """E‖W_h Γ_h‖² over that of all heads of the layer together, W the output projection; None: not found."""

    effective_interval: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """About 95 % interval of the median of `effective_keys`, were the keys others of the same law: medians of its ends over queries."""

    def __post_init__(self) -> None:
        for way in self.ways:
            end = way.curve.keys_at(way.curve.n[-1])
            if way.curve.full is not None and end > self.visible_keys * (1 + 1e-9):
                raise InputError(f"A query reads {end:g} keys, but sees {self.visible_keys:g}.")

    def chosen(self, policy: str) -> tuple[Way, ...]:
        """The ways that a policy may take: "best" all, "sampled" and "kept" one."""
        if policy not in POLICIES:
            raise InputError(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}.")
        found = tuple(way for way in self.ways if policy in ("best", way.policy))
        if not found:
            raise InputError(
                f"Layer {self.layer}, head {self.head} has no curve of policy {policy!r}: analyse again."
            )
        return found

    def needed(self, rel_error: float, policy: str = "best") -> Needed:
        """The keys that a query reads so that the rms error over queries is at most `rel_error`."""
        return needed(self.chosen(policy), self.visible_keys, rel_error)

    def kind(self, random: Needed) -> str:
        """What kind of head it is, a key of PHASES, if it needs that of keys drawn at random."""
        effective = self.effective_keys[1]
        if effective < 3:
            return "one" if effective < 1.5 else "few"
        if random.all:
            return "all"
        return "fast" if random.keys <= self.visible_keys / 4 else "slow"

    def phase(self, rel_error: float) -> str:
        """Its kind in words."""
        random, visible = self.needed(rel_error, "sampled"), short_count(self.visible_keys)
        return PHASES[self.kind(random)].format(error=f"{100 * rel_error:g} %", keys=random, visible=visible)

    def to_dict(self, rel_error: float) -> dict[str, Any]:
        """Its record, with what it needs for this error."""
        known = {"needed": to_record(self.needed(rel_error)), "phase": self.phase(rel_error)}
        return {**to_record(self), **known}


@dataclass
class Measured:
    """One head, query by query, over all passages."""

    name: str
    """Of the layer."""
    cross: bool
    n: tuple[int, ...]
    samplings: tuple[Sampling, ...]
    """The first keeps nothing."""
    moments: Moments
    squares: list[list[Tensor]] = field(default_factory=list)
    """By passage and sampling, (queries, n)."""
    kept: list[list[Tensor]] = field(default_factory=list)
    limits: list[Tensor] = field(default_factory=list)
    spreads: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    effective: list[Tensor] = field(default_factory=list)
    """1/Σp² and the ends of its interval, (3, queries)."""
    visible: list[Tensor] = field(default_factory=list)
    shares: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, seen: Seen, positions: Int[Tensor, " m"] | None, ordered: bool = True) -> None:
        """Queries and what they see. No positions: a query has no key of its own among them, so that there is no window
        either; not `ordered`: no first keys."""
        hidden = torch.zeros_like(seen.scores, dtype=torch.bool) if seen.hidden is None else seen.hidden
        scores = seen.scores.masked_fill(hidden, -torch.inf)
        count = (~hidden).sum(1)
        if seen.sink is None:
            p = scores.softmax(1)
        else:  # a key without value
            p = torch.cat([scores, seen.sink[:, None]], 1).softmax(1)[:, :-1]
        self.limits.append((p @ seen.values).double().square().sum(1))
        self.effective.append(
            torch.stack([1 / p.double().square().sum(1), *effective_interval(p, count.double())])
        )
        self.visible.append(count.double())
        finite = scores.double().masked_fill(hidden, 0.0)
        mean = finite.sum(1) / count
        self.spreads.append(((finite.square().sum(1) / count) - mean.square()).clamp_min(0).sqrt())
        low, high, bins = SCORE_BINS
        centred = (finite - mean[:, None])[~hidden].clamp(low, high)
        self.scores.append(torch.histc(centred, bins=bins, min=low, max=high))
        for name, kept in SHARES.items():
            if kept == kept.without(place=positions is None, order=not ordered):
                share = (p * kept.mask(scores, positions)).sum(1).double()
                self.shares.setdefault(name, []).append(share)
        masks = [(one.kept.mask(scores, positions) & ~hidden).sum(1).double() for one in self.samplings]
        self.kept.append(masks)
        binned = seen.scores.shape[1] > MODELS_BIN_ABOVE
        self.squares.append([squares(seen, self.n, one, positions, binned=binned) for one in self.samplings])

    def report(self, layer: int, head: int, share: float | None) -> HeadReport:
        visible, effective = torch.cat(self.visible), torch.cat(self.effective, 1)
        horizon = float(self.moments.horizon())
        sharp = exponents(horizon)
        (first, *band), *others = (self._curves(k) for k in range(len(self.samplings)))
        rms = [first, *(one[0] for one in others)]
        ways = tuple(Way(one, curve) for one, curve in zip(self.samplings, rms, strict=True))
        exponent, between = self._exponent(ways[0].curve, float(visible.mean()))
        return HeadReport(
            layer=layer,
            head=head,
            name=self.name,
            cross=self.cross,
            horizon=horizon,
            score_spread=_quantiles(torch.cat(self.spreads)),
            score_counts=tuple(map(int, torch.stack(self.scores).sum(0).tolist())),
            effective_keys=_quantiles(effective[0]),
            visible_keys=float(visible.mean()),
            shares={key: float(torch.cat(parts).mean()) for key, parts in self.shares.items()},
            ways=ways,
            band=(band[0], band[1]),
            local_exponent=exponent,
            exponent_range=between,
            asymptotic_exponent=float(sharp.rms),
            published_exponent=float(sharp.paper),
            output_share=share,
            effective_interval=(_quantiles(effective[1])[1], _quantiles(effective[2])[1]),
        )

    def _curves(self, k: int) -> tuple[ErrorCurve, ...]:
        """Of one sampling: rms over queries; of the first also the median and 90 % of them. They end where the last query draws all it
        can."""
        sampling, kept = self.samplings[k], torch.cat([one[k] for one in self.kept])
        square, rest = torch.cat([one[k] for one in self.squares]), torch.cat(self.visible) - kept
        error = square.clamp_min(0).sqrt() / torch.cat(self.limits).mean().sqrt().clamp_min(1e-30)
        grid, full = list(self.n), None
        if not sampling.draw.repeats:
            full = max(1, int(rest.max()))
            grid = [n for n in grid if n < full]
            error = torch.cat([error[:, : len(grid)], torch.zeros_like(error[:, :1])], 1)
            grid.append(full)
        drawn = torch.tensor(grid, dtype=torch.float64, device=rest.device)
        read = drawn if full is None else drawn.minimum(rest[:, None])
        keys = (kept[:, None] + read).mean(0)
        method = f"exact (Laplace quadrature), {sampling}"

        def curve(errors: Float[Tensor, " n"], statistic: str) -> ErrorCurve:
            return ErrorCurve(
                tuple(grid), errors.cpu(), statistic=statistic, method=method, keys=keys.cpu(), full=full
            )

        some = QUANTILES.items() if k == 0 else ()
        quantiles = (curve(error.quantile(q, dim=0), name) for name, q in some)
        return curve(error.square().mean(0).sqrt(), "rms"), *quantiles

    def _exponent(self, curve: ErrorCurve, visible: float) -> tuple[float | None, tuple[int, int]]:
        """Least squares on log-log axes over EXPONENT_RANGE, or over the upper three octaves below 3/4 of the keys."""
        (low, high), different = EXPONENT_RANGE, curve.full is not None
        if different and high > 0.75 * visible:
            low, high = min(low, max(1, round(0.09375 * visible))), max(2, int(0.75 * visible))
        fitted = np.unique(np.geomspace(low, min(high, curve.n[-1]), 9).round())
        fitted = fitted[fitted < visible] if different else fitted
        if len(fitted) < 2:
            return None, (low, high)
        between = int(fitted[0]), int(fitted[-1])
        errors = [max(curve.at(int(n)), 1e-30) for n in fitted]
        worth = fitted / (1 - fitted / visible) if different else fitted
        return -float(np.polyfit(np.log(worth), np.log(errors), 1)[0]), between


def _quantiles(values: Tensor) -> tuple[float, float, float]:
    low, middle, high = values.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=values.dtype)).tolist()
    return low, middle, high
