"""Monte Carlo error curves: n tokens against infinitely many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.designs import Sampling
from attnlimit.designs.sampling import PLAIN
from attnlimit.discover import subclasses
from attnlimit.errors import InputError
from attnlimit.inputs import as_count, as_generator
from attnlimit.measures import Measure
from attnlimit.sampling.convergence import Convergence
from attnlimit.sampling.fitted import LEAST_REPLICATES, controlled
from attnlimit.sampling.setup import Queries, set_up
from attnlimit.sampling.statistic import Experiment, Row, Statistic

Progress: TypeAlias = Callable[[int, int], object]
"""Called with (replicates done, replicates in all)."""


def measure_convergence(
    head: Head,
    law: Measure,
    n: object,
    *,
    statistic: Statistic | str = "map",
    sampling: Sampling = PLAIN,
    queries: Queries = None,
    replicates: int = 32,
    generator: torch.Generator | int = 0,
    progress: Progress | None = None,
) -> Convergence:
    """Errors of attention over n tokens against the limit: that of the law, or attention over a whole
    population (an Empirical).

    statistic
        "map" (the default), "mean", "covariance", or an object: `Map`, `Mean`, `Covariance`, `Moment(order)`, `Sup(radius)`.
    sampling
        Which n keys of a population a query reads beside those it keeps. A law's tokens are independent.
    queries
        The queries themselves (m, d), or how many are drawn from the law in each replicate (256 unless told); `Own(m)`:
        m of the n tokens themselves (self-attention); `Given(x, positions)`: with their places among the keys.
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
    asked = as_statistic(statistic)
    experiment = asked.experiment(set_up(head, law, n, sampling, queries))
    generator = as_generator(generator, law.device)
    rows = []
    for done in range(1, count + 1):
        rows.append(experiment.row(generator))
        if progress is not None:
            progress(done, count)
    return _gathered(str(asked), experiment, rows)


def statistics() -> dict[str, type[Statistic]]:
    """All statistics, by name."""
    found: list[type[Statistic]] = subclasses("attnlimit.sampling", Statistic)  # type: ignore[type-abstract]
    return {one.name: one for one in found}


def as_statistic(value: object) -> Statistic:
    """A statistic from itself, its name, or its record {"name": "moment", "order": 3}."""
    if isinstance(value, Statistic):
        return value
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    kind = statistics().get(str(options.pop("name", None)))
    if kind is None:
        raise InputError(f"statistic must be one of {', '.join(statistics())}; got {value!r}.")
    try:
        return kind(**options)
    except TypeError as problem:
        needed = ", ".join(field.name for field in fields(kind))
        raise InputError(
            f"The statistic {kind.name!r} is {kind.__name__}({needed}), got {options or 'nothing of it'}."
        ) from problem


def _gathered(statistic: str, experiment: Experiment, rows: list[Row]) -> Convergence:
    squares, norms, agreed, controls = (_stacked(parts) for parts in zip(*rows, strict=True))
    how = experiment.method
    if controls is not None and len(rows) >= LEAST_REPLICATES:
        squares = controlled(squares, controls)
        how += ", and the tokens' own mean and covariance"
    return Convergence(
        n=experiment.setup.n,
        statistic=statistic,
        squares=squares,
        norms=norms,
        how=how,
        reference=experiment.reference,
        agreed=agreed,
    )


def _stacked(parts: Sequence[Tensor | None]) -> Any:
    """All replicates' as one tensor; None where some have none."""
    known = [part for part in parts if part is not None]
    return torch.stack(known) if len(known) == len(parts) else None
