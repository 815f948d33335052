"""Monte Carlo error curves: n tokens against infinitely many."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from attnlimit.attention import Head
from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_count, as_generator, as_positive
from attnlimit.measures import Measure
from attnlimit.sampling.checks import STATISTICS, checked_plan
from attnlimit.sampling.convergence import Convergence
from attnlimit.sampling.experiment import Experiment, Row
from attnlimit.sampling.fitted import LEAST_REPLICATES, controlled
from attnlimit.sampling.map_error import MapErrors
from attnlimit.sampling.moments import MomentErrors
from attnlimit.sampling.powers import Power
from attnlimit.sampling.replicates import Plan
from attnlimit.sampling.supremum import Suprema

Progress: TypeAlias = Callable[[int, int], object]
"""Called with (replicates done, replicates in all)."""


def measure_convergence(
    head: Head,
    law: Measure,
    n: object,
    *,
    statistic: str = "map",
    replicates: int = 32,
    queries: Array | int | None = None,
    generator: torch.Generator | int = 0,
    policy: str = "iid",
    self_attention: bool = False,
    order: int | None = None,
    radius: float | None = None,
    restarts: int = 16,
    window: int | None = None,
    positions: Array | None = None,
    progress: Progress | None = None,
) -> Convergence:
    """Errors of attention over n tokens against the limit: that of the law, or attention over a whole
    population (an Empirical).

    statistic
        "map": E_x‖Γ_n(x) − Γ(x)‖, and its square. "mean", "covariance", "moment" (with `order` k: E Γ^{⊗k}):
        Frobenius error of that moment of the output law, as unbiased squares. "sup": the largest
        ‖Γ_n(x) − Γ(x)‖ over ‖x‖ ≤ `radius`, by gradient ascent from `restarts` starts, so a lower estimate.
    queries
        The queries themselves (m, d), or how many are drawn in each replicate (256 unless told).
    self_attention
        True: the n tokens are the queries, each among its own keys (Γ_{μ_n}#μ_n); `queries` of them are
        evaluated for each n. False: queries are fresh draws of the law (Γ_{μ_n}#μ).
    policy
        How keys are drawn from a population, see `attnlimit.sampling.policies`. "window" takes `window` keys
        around each query's position (drawn, or given as `positions` with the queries) and n − window others.
    progress
        Called with (done, all) after each replicate.

    >>> from attnlimit import Gaussian
    >>> law = Gaussian(cov=1.0, dim=1)
    >>> measure_convergence(Head([[0.5]]), law, [100, 400], replicates=100, generator=0)
    Convergence(map, n = 100 … 400, rms 0.14 … 0.0708; Monte Carlo, 100 replicates, nested prefixes, \
m = 256 fresh queries a replicate)
    """
    count = as_count(replicates, "replicates")
    if count < 2:
        raise InputError(f"replicates must be at least 2, got {count}: standard errors are their spread.")
    if statistic not in STATISTICS:
        raise InputError(f"Unknown statistic {statistic!r}: use one of {', '.join(STATISTICS)}.")
    plan = checked_plan(
        head,
        law,
        n,
        statistic,
        queries,
        policy,
        self_attention=self_attention,
        width=window,
        positions=positions,
    )
    generator = as_generator(generator, law.device)
    experiment = _experiment(plan, statistic, order, radius, restarts)
    rows = []
    for done in range(1, count + 1):
        rows.append(experiment.row(generator))
        if progress is not None:
            progress(done, count)
    return _gathered(plan.n, statistic if order is None else f"moment {order}", experiment, rows)


def _experiment(
    plan: Plan, statistic: str, order: int | None, radius: float | None, restarts: int
) -> Experiment:
    if (order is not None) != (statistic == "moment"):
        raise InputError(f"statistic 'moment' and order= go together, got {statistic!r} and order={order!r}.")
    if (radius is not None) != (statistic == "sup"):
        raise InputError(
            f"statistic 'sup' and radius= go together (the supremum is over ‖x‖ ≤ radius), got {statistic!r} "
            f"and radius={radius!r}."
        )
    if statistic == "map":
        return MapErrors(plan)
    if radius is not None:
        return Suprema(plan, as_positive(radius, "radius"), as_count(restarts, "restarts"))
    if statistic == "covariance":
        return MomentErrors(plan, None)
    k = 1 if order is None else as_count(order, "order")
    return MomentErrors(plan, Power.that_fits(k, plan.head.V.shape[-2]))


def _gathered(n: tuple[int, ...], statistic: str, experiment: Experiment, rows: list[Row]) -> Convergence:
    norms = [row.norms for row in rows if row.norms is not None]
    controls = [row.control for row in rows if row.control is not None]
    squares, method = torch.stack([row.squares for row in rows]), experiment.method
    if len(controls) == len(rows) >= LEAST_REPLICATES:
        squares = controlled(squares, torch.stack(controls))
        method += ", and the tokens' own mean and covariance"
    agreed = [row.agreed for row in rows if row.agreed is not None]
    return Convergence(
        n=n,
        statistic=statistic,
        squares=squares,
        norms=torch.stack(norms) if len(norms) == len(rows) else None,
        method=f"Monte Carlo, {len(rows)} replicates, {method}",
        reference=experiment.reference,
        agreed=torch.stack(agreed) if agreed else None,
    )
