"""Monte Carlo error curves of a head on a law: any statistic, any policy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator

from attnlimit.designs import Block, Coins, Different, Independent, Kept, Prefix, Sampling, Strata
from attnlimit.errors import InputError, RateNotResolved
from attnlimit.sampling import Convergence as Curve
from attnlimit.sampling import measure_convergence
from attnlimit.sampling.measure import as_statistic
from attnlimit.sampling.setup import Fresh, Own, set_up
from attnlimit.sampling.statistic import Statistic
from attnlimit.studies.kinds import Kind, Result
from attnlimit.studies.kinds.setting import Setting

LEAST = 2
"""Replicates of a task."""


class Convergence(Setting):
    """The arguments of `attnlimit.measure_convergence`, with which they share their meaning."""

    statistic: Literal["map", "mean", "covariance", "moment", "sup"] = "map"
    queries: PositiveInt | None = None
    self_attention: bool = False
    policy: Literal["iid", "without-replacement", "bernoulli", "prefix", "block", "stratified", "window"] = (
        "iid"
    )
    window: PositiveInt | None = None
    order: PositiveInt | None = None
    radius: PositiveFloat | None = None
    restarts: PositiveInt = 16

    @model_validator(mode="after")
    def _fits(self) -> Convergence:
        pairs = (
            ("order", "statistic", "moment"),
            ("radius", "statistic", "sup"),
            ("window", "policy", "window"),
        )
        for field, chooser, choice in pairs:
            if (getattr(self, field) is None) == (getattr(self, chooser) == choice):
                raise ValueError(f"{field} and {chooser}: {choice} go together")
        return self


DRAWS = {
    "iid": Independent(),
    "without-replacement": Different(),
    "bernoulli": Coins(),
    "prefix": Prefix(),
    "block": Block(),
    "stratified": Strata(),
    "window": Different(),
}


def _method(what: Convergence) -> tuple[Statistic, Sampling, Fresh]:
    options: dict[str, dict[str, object]] = {
        "moment": {"order": what.order},
        "sup": {"radius": what.radius, "restarts": what.restarts},
    }
    sampling = Sampling(draw=DRAWS[what.policy], kept=Kept(around=what.window or 0))
    count = {} if what.queries is None else {"count": what.queries}
    queries = Own(**count) if what.self_attention else Fresh(**count)
    return as_statistic(options.get(what.statistic, {}) | {"name": what.statistic}), sampling, queries


def check(what: Convergence) -> None:
    statistic, sampling, queries = _method(what)
    statistic.experiment(set_up(*what.build(), what.n, sampling, queries))


def run(what: Convergence, replicates: int, seed: int) -> Result:
    """One row of errors a replicate."""
    head, law = what.build()
    statistic, sampling, queries = _method(what)
    found = measure_convergence(
        head,
        law,
        what.n,
        statistic=statistic,
        sampling=sampling,
        queries=queries,
        replicates=replicates,
        generator=torch.Generator(law.device).manual_seed(seed),
    )
    return {
        "n": list(found.n),
        "squares": found.squares.double().tolist(),
        "norms": None if found.norms is None else found.norms.double().tolist(),
        "statistic": found.statistic,
        "method": found.method.split(" replicates, ", 1)[1],
        "reference": found.reference,
    }


def rows(result: Result) -> Iterator[tuple[Any, ...]]:
    for replicate, squares in enumerate(result["squares"]):
        norms = [None] * len(squares) if result["norms"] is None else result["norms"][replicate]
        for n, square, norm in zip(result["n"], squares, norms, strict=True):
            yield replicate, n, square, norm


def curve(results: list[Result]) -> Curve:
    """The replicates of all tasks of a point as one experiment."""
    first = results[0]
    squares = torch.tensor([row for one in results for row in one["squares"]], dtype=torch.float64)
    norms = [row for one in results for row in one["norms"] or ()]
    return Curve(
        n=tuple(first["n"]),
        statistic=first["statistic"],
        squares=squares,
        norms=torch.tensor(norms, dtype=torch.float64) if len(norms) == len(squares) else None,
        method=f"Monte Carlo, {len(squares)} replicates, {first['method']}",
        reference=first["reference"],
    )


def summary(what: Convergence, results: list[Result]) -> dict[str, Any]:
    found = curve(results)
    record = {key: value for key, value in found.to_dict().items() if key not in ("errors", "errors_are")}
    try:
        record["fit"] = found.fit().to_dict()
    except (InputError, RateNotResolved) as problem:
        record["fit"], record["no_fit"] = None, str(problem)
    return {**record, **what.predicted()}


def half_width(what: Convergence, results: list[Result], of: str, level: float) -> float:
    """Of the fitted exponent's interval; or of the error's, relative to it, at the n where that is widest."""
    found = curve(results)
    if of == "slope":
        try:
            low, high = found.fit(level=level).interval
        except (InputError, RateNotResolved):
            return math.inf  # too few replicates to tell
        return (high - low) / 2
    from scipy import stats  # it takes longer to import than most tasks to run

    relative = found.rms_standard_error / found.rms
    quantile = float(stats.t.ppf((1 + level) / 2, found.replicates - 1))
    return quantile * float(relative.nan_to_num(math.inf, posinf=math.inf).max())


KIND = Kind(
    "convergence",
    Convergence,
    run,
    {"replicate": "int", "n": "int", "square": "float", "error": "float"},
    rows,
    summary,
    check=check,
    half_width=half_width,
    together=True,
)
