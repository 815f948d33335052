"""The exponents with which n-token attention approaches its limit, from the horizon."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import InputError, LimitDoesNotExist, NotKnown
from attnlimit.files.records import Recorded
from attnlimit.inputs import as_number, is_dense, shown
from attnlimit.measures import Measure
from attnlimit.rates.horizon import horizon

GAUSSIAN = (
    "Gaussian tokens and queries, n → ∞; at finite n the local exponent differs by logarithmic corrections."
)
NAMES = ("paper", "bound", "mean", "mean_rms", "rms")


def as_horizon(H: object, name: str = "H") -> float | Tensor:
    """A number ≥ 0, infinity included, or a tensor of them."""
    number = as_number(H)
    alone = torch.tensor(math.nan if number is None else float(number), dtype=torch.float64)
    h = H if isinstance(H, Tensor) and H.ndim else alone
    if not is_dense(h) or h.is_complex() or not h.numel() or bool((h.isnan() | (h < 0)).any()):
        what = "The horizon" if name == "H" else name
        raise InputError(f"{what} must be a number of at least 0, got {shown(H)}.")
    return h.double() if h.ndim else float(h)


Horizon: TypeAlias = Annotated[float | Tensor, as_horizon]


@dataclass(frozen=True, eq=False)
class Rates(Recorded):
    """Exponents e of error ∝ n^{−e} as n → ∞, averaged over random queries x; floats, or tensors of shape (*heads,).

    They are asymptotic: the exponent between two finite n is `local_slopes`' and can be far from these.
    """

    also = ("phase",)

    horizon: Horizon
    """The H that the exponents were computed from."""
    paper: Horizon
    """1/(2(1 + H²)): published, for moments of the output law [bohbot2026token]."""
    bound: Horizon
    """min(1/2, 1/(2H²)): a proved upper bound of E_x E‖Γ_n − Γ‖, up to powers of log n."""
    mean: Horizon
    """min(1/2, 1/(1 + H²)): E_x E‖Γ_n − Γ‖."""
    mean_rms: Horizon
    """1/2 for H ≤ 1, else (√(1 + 8/H²) − 1)/4: E_x (E‖Γ_n − Γ‖²)^{1/2}."""
    rms: Horizon
    """1/2 for H² ≤ 1/2, else (√(1 + 4/H²) − 1)/4: (E_x E‖Γ_n − Γ‖²)^{1/2}."""
    note: str = GAUSSIAN
    """What the exponents hold for."""
    bounded: bool = False
    """Whether keys or queries are bounded, so that the error is of order n^{−1/2} in the end."""

    def __post_init__(self) -> None:
        shapes = {name: tuple(torch.as_tensor(getattr(self, name)).shape) for name in ("horizon", *NAMES)}
        if len({*shapes.values()}) > 1:
            raise InputError(
                f"The horizon and its exponents must be for the same heads, got shapes {shapes}."
            )

    @property
    def phase(self) -> Any:
        """The regime, in words (nested lists of words for several heads)."""
        return _words(torch.as_tensor(self.horizon).tolist(), self.bounded)

    def __repr__(self) -> str:
        if isinstance(self.horizon, Tensor):
            low, high = float(self.horizon.min()), float(self.horizon.max())
            return f"Rates({self.horizon.numel()} heads, horizon {low:.4g} to {high:.4g})"
        numbers = ", ".join(f"{name}={getattr(self, name):.4g}" for name in ("horizon", *NAMES))
        return f"Rates({numbers}; {self.phase})"


def exponents(H: Horizon) -> Rates:
    """The exponents of Gaussian tokens and queries with horizon H (a number ≥ 0, infinity included, or a tensor).

    With n keys of law N(0, s²) for the scores, put s = b√(2 log n). The typical error is n^{−e(b)},
    e = ½ − b² for b ≤ ½ (averaging), (1 − b)² for ½ ≤ b ≤ 1 (few keys dominate), 0 beyond (the limit is not reached);
    its mean square is n^{−f(b)}, f = 1 − 2b² for b² ≤ ⅓, (1 − b²)²/(4b²) up to b = 1, 0 beyond. Queries
    with that s have frequency n^{−b²/H²}, so

        mean = min_b e + b²/H²,   mean_rms = min_b f/2 + b²/H²,   rms = ½ min_b (f + b²/H²).

    >>> exponents(2.0)
    Rates(horizon=2, paper=0.1, bound=0.125, mean=0.2, mean_rms=0.183, rms=0.1036; few keys dominate)
    """
    h = torch.as_tensor(H, dtype=torch.float64)
    square = h * h
    far, past = square.clamp_min(1.0), square.clamp_min(0.5)

    def plain(value: Tensor) -> float | Tensor:
        return value if h.ndim else float(value)

    return Rates(
        horizon=plain(h),
        paper=plain(0.5 / (1 + square)),
        bound=plain(0.5 / far),
        mean=plain(1 / (1 + far)),
        # (√(1 + c) − 1)/4 as c/(4(√(1 + c) + 1)), which does not cancel for large H
        mean_rms=plain(2 / (far * (1 + (1 + 8 / far).sqrt()))),
        rms=plain(1 / (past * (1 + (1 + 4 / past).sqrt()))),
    )


def rates(head: Head, law: Measure, *, queries: Measure | None = None) -> Rates:
    """The exponents for keys from `law` and queries from `queries` (None: the same law), as n → ∞.

    - Gaussian keys and queries: `exponents(horizon(head, law))`.
    - Keys or queries of bounded support: 1/2 for `mean`, `mean_rms` and `rms`, whatever H, because
      E‖Γ_n − Γ‖² ≤ 4R_V² e^{D(Ax)}/n and e^{D} has a finite mean. The constant can be e^{large}, and at intermediate
      n local exponents may be anything, above ½ too: see the exact curve. `paper` and `bound` stay as published.
    - Mixtures of Gaussian and bounded parts, by conjecture: the part with the largest score variance wins in the end, so H is
      the largest ‖Σ_k^{1/2} A Σ_j^{1/2}‖₂ over Gaussian parts k of the keys and j of the queries.
    - Other laws: the Gaussian exponents at the covariance's horizon, and `note` says that they are not proved.
    - Laws whose cumulant generating function is infinite somewhere: no limit, hence no rate.
    """
    H, asked = horizon(head, law, queries=queries), law if queries is None else queries
    _needs_limit(H, law, asked)
    parts, askers = law.tails, asked.tails
    if parts == ():
        return _bounded(H, law)
    if askers == ():
        return _bounded(H, asked)
    if parts is None or askers is None:
        note = f"As if tokens were Gaussian with the covariance of {law!r}: not proved for this law."
        return replace(exponents(H), note=note)
    if parts[0] is law and askers[0] is asked:
        return exponents(H)
    pairs = [torch.as_tensor(horizon(head, key, queries=query)) for key in parts for query in askers]
    note = (
        "Mixtures, n → ∞: the horizon is the largest over pairs of Gaussian parts, not that of the covariance: a conjecture. "
        + GAUSSIAN
    )
    most = torch.stack(pairs).amax(0)
    return replace(exponents(most if head.heads else float(most)), note=note)


def _bounded(H: float | Tensor, law: Measure) -> Rates:
    known = exponents(H)
    half = torch.full_like(known.horizon, 0.5) if isinstance(known.horizon, Tensor) else 0.5
    note = (
        f"{law!r} is bounded, so the error is of order n^(-1/2) once n is large enough; how large, and what the curve "
        "does before, depends on the law: see its exact curve. `paper` and `bound` are upper bounds."
    )
    return replace(known, mean=half, mean_rms=half, rms=half, note=note, bounded=True)


def _needs_limit(H: float | Tensor, law: Measure, asked: Measure) -> None:
    if not bool((torch.as_tensor(H) > 0).any()):
        return  # all scores are equal: plain averages
    everywhere, bounded = law.domain == Measure.domain, asked.radius < math.inf
    if not everywhere and not bounded:
        raise LimitDoesNotExist(
            f"No rate: {law!r} has a cumulant generating function that is finite only on {law.domain}, and unbounded "
            "queries leave it: n-token attention does not settle there. Use a law with Gaussian tails or bounded support."
        )
    if not everywhere or (asked.domain != Measure.domain and not bounded):
        raise NotKnown(
            f"The rate is not known for keys {law!r} and queries {asked!r}: it depends on tails heavier than Gaussian. "
            "Measure it: attnlimit.measure_convergence."
        )


def _words(horizon: Any, bounded: bool) -> Any:
    if isinstance(horizon, list):
        return [_words(one, bounded) for one in horizon]
    if horizon * horizon <= 0.5:
        return "averaging"
    if bounded:
        return "averaging in the end"
    return "transition: rare queries carry the mean square" if horizon <= 1 else "few keys dominate"
