"""The phase diagram of attention: how sharp the scores are against how many keys there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.exact.error import as_sizes
from attnlimit.exact.prepare import prepare
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, as_float, as_points, shown
from attnlimit.measures import Measure

AVERAGING, FEW_KEYS, NOT_REACHED = "averaging", "few keys", "not reached"
SCALE = "root mean square distance of the attended values from the mean token, (E_κ‖y − E y‖²)^(1/2)"


@dataclass(frozen=True, eq=False)
class PhaseDiagram(Recorded, Drawn):
    """Relative error of n-key attention on a grid of κ, the standard deviation of the scores, and n."""

    also = ("region", "scale_is")

    kappa: tuple[float, ...]
    n: tuple[int, ...]
    relative_rms: Float[Tensor, "kappa n"]
    """√E‖Γ_n − Γ‖² over `scale`; 1 at n = 1 for a Gaussian."""
    scale: Float[Tensor, " kappa"]
    """(E_κ‖y − E y‖²)^{1/2}, y a key as attention weighs it: its root mean square distance from the mean token."""
    log_n_averaging: Float[Tensor, " kappa"]
    """log n above which the central limit theorem holds; 2κ² for Gaussian scores, that is s² = ½ log n."""
    log_n_reached: Float[Tensor, " kappa"]
    """log n below which n keys hold less than half of what Γ averages; κ²/2 for Gaussian scores, that is s² = 2 log n."""
    law: str
    method: str

    @property
    def scale_is(self) -> str:
        return SCALE

    @property
    def region(self) -> list[list[str]]:
        """The phase of each grid point in words, (kappa, n): "averaging", "few keys" or "not reached"."""
        log_n = [math.log(n) for n in self.n]
        lines = zip(self.log_n_averaging.tolist(), self.log_n_reached.tolist(), strict=True)
        return [
            [AVERAGING if x >= clt else FEW_KEYS if x >= reached else NOT_REACHED for x in log_n]
            for clt, reached in lines
        ]

    def __repr__(self) -> str:
        return f"PhaseDiagram({self.law}, {len(self.kappa)} κ × {len(self.n)} n, {self.method})"


def phase_diagram(
    law: Measure, kappa: Array, n: int | Sequence[int], *, direction: Array | None = None
) -> PhaseDiagram:
    """√E‖Γ_n − Γ‖² / (E_κ‖y − E y‖²)^{1/2} for scores aᵀy of standard deviation κ, a along `direction` (the first axis).

    With n keys the scores are a random energy model. What the error averages is the law tilted by 2a, and what Γ
    averages is the law tilted by a; n keys cover of a tilted law what has log dμ_a/dμ ≤ log n [chatterjee2018], so

        P_{2a}(log dμ_{2a}/dμ ≤ log n) = ½   is where the central limit theorem ends   (Gaussian: s² = ½ log n),
        P_a(log dμ_a/dμ ≤ log n) = ½         is below which Γ is not reached           (Gaussian: s² = 2 log n).

    Where the log-density concentrates these are log n = KL(μ_{2a} ‖ μ) and KL(μ_a ‖ μ); where it does not, as with a rare key that
    has much of the attention, they are not. The lines are asymptotic in log n, and the phases blend.
    Values are the tokens themselves (a population's values are its own). For laws with a projected form, and populations.

    >>> from attnlimit import Gaussian
    >>> phase_diagram(Gaussian(dim=1), kappa=[1.0, 5.0], n=[10, 10**4, 10**8]).region
    [['averaging', 'averaging', 'averaging'], ['not reached', 'not reached', 'few keys']]
    """
    sharp, sizes = _kappas(kappa), as_sizes(n)
    keys = law.keys
    unit = _unit_scores(keys, direction)
    x = torch.tensor(sharp, dtype=torch.float64).to(unit)[:, None]
    a = x * unit
    prepared = prepare(Head(unit[:, None]), law, x, max(sizes))
    square = prepared.moments(torch.tensor([sizes], dtype=torch.float64))[0]
    centred = (law.tilted_mean(a) - law.mean).double().square().sum(-1)
    scale = (centred + law.tilted_value_cov(a).double().diagonal(dim1=-2, dim2=-1).sum(-1)).sqrt()
    return PhaseDiagram(
        tuple(sharp),
        tuple(sizes),
        square.sqrt() / scale[:, None],
        scale,
        _half_covered(keys, 2 * a),
        _half_covered(keys, a),
        repr(law),
        prepared.method,
    )


def _kappas(kappa: Array) -> list[float]:
    values = as_float(kappa, "kappa").double().reshape(-1)
    if not len(values) or not bool((values > 0).all()):
        raise InputError(f"kappa must be one or more numbers above 0, got {shown(kappa)}.")
    return values.tolist()


def _unit_scores(keys: Measure, direction: Array | None) -> Float[Tensor, " d"]:
    """The score vector along `direction` whose scores have standard deviation 1."""
    a = (
        torch.eye(1, keys.dim)[0]
        if direction is None
        else as_points(direction, keys.dim, "direction").flatten()
    )
    if a.shape != (keys.dim,):
        raise InputError(f"direction must be one vector of length {keys.dim}, got shape {tuple(a.shape)}.")
    a = a.to(keys.dtype).to(keys.device)
    deviation = float((a @ keys.covariance @ a).clamp_min(0).sqrt())
    if deviation == 0:
        raise InputError(
            f"The scores of {keys!r} do not vary along this direction, so there is nothing to sharpen: choose another."
        )
    return a / deviation


def _half_covered(keys: Measure, a: Float[Tensor, "k d"]) -> Float[Tensor, " k"]:
    """The least log n with P_{μ_a}(log dμ_a/dμ ≤ log n) ≥ ½, a median: within a standard deviation of the mean, KL(μ_a ‖ μ)."""
    mean = (a * keys.tilted_mean(a)).sum(-1) - keys.cgf(a)
    deviation = (a * (keys.tilted_cov(a) @ a[..., None])[..., 0]).sum(-1).clamp_min(0).sqrt()
    low, high = mean - 1.01 * deviation - 1e-9, mean + 1.01 * deviation + 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        enough = keys.coverage(a, middle) >= 0.5
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high.double()
