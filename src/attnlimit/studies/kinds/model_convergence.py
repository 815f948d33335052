"""Heads of a model with n of their keys: error curves by Monte Carlo beside the closed form, and fitted slopes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from scipy import stats

from attnlimit.errors import InputError
from attnlimit.rates import fit_power
from attnlimit.studies.fields import Fields, File, Seed, Sizes
from attnlimit.studies.kind import Column
from attnlimit.studies.kinds.model_choice import ModelChoice
from attnlimit.studies.untyped import Data, untyped

if TYPE_CHECKING:
    from torch import Tensor

    from attnlimit.studies.kinds.model_heads import HeadSeen

LEAST_BATCHES = 5


class Drawn(Fields):
    """How keys are drawn: "iid" (independent keys), "without-replacement" (different ones), "window" (the keys around the
    query and different others), "window-importance" (the others stand for all that are not drawn); from the keys of the
    text, or from all, special tokens too."""

    policy: Literal["iid", "without-replacement", "window", "window-importance"]
    population: Literal["text", "all"] = "text"


class ModelConvergence(Fields):
    """n keys of a context of `tokens` tokens, against all of them, at `queries` random tokens of each of `passages`.
    n counts the `window` keys around the query, for the policies that keep them."""

    model: ModelChoice
    text: Annotated[list[File], Field(min_length=1)] | None = None
    tokens: PositiveInt = 512
    passages: PositiveInt = 4
    queries: PositiveInt = 32
    n: Sizes
    curves: Annotated[list[Drawn], Field(min_length=1)]
    window: PositiveInt | None = None
    batch: PositiveInt = 25
    """Replicates whose mean square is one number of the result."""
    query_seed: Seed = 0

    @model_validator(mode="after")
    def _fits(self) -> ModelConvergence:
        if (self.window is None) == any(one.policy.startswith("window") for one in self.curves):
            raise ValueError("window and the window policies go together")
        if len(self.n) < 3 or self.n[-1] > self.tokens or self.n[0] <= (self.window or 0):
            raise ValueError("n needs at least 3 sizes, above the window and at most tokens")
        return self


def run(what: ModelConvergence, replicates: int, seed: int) -> Data:
    """For each curve: mean squares of `batch` replicates each (the last may have fewer), by head, batch
    and n, and the closed form by head and n."""
    generator = torch.Generator().manual_seed(seed)
    seen, exact = _seen(what), _exact(what.model_dump_json())
    curves = [
        {
            **drawn.model_dump(),
            "squares": [_sampled(what, drawn, head, replicates, generator) for head in seen],
            "exact": exact[place],
        }
        for place, drawn in enumerate(what.curves)
    ]
    return {
        "heads": [[one.layer, one.head, one.horizon, one.scale] for one in seen],
        "curves": curves,
        "n": what.n,
        "replicates": replicates,
    }


def _sampled(
    what: ModelConvergence, drawn: Drawn, head: HeadSeen, replicates: int, generator: torch.Generator
) -> list[list[float]]:
    from attnlimit.studies.kinds.subsampled import sampled_squares

    window = what.window or 0
    draws = [
        sampled_squares(one, drawn.policy, what.n, window, replicates, generator)
        for one in head.population(drawn.population)
    ]
    return [_short(part.mean(0)) for part in torch.stack(draws).mean(0).split(what.batch)]


def _seen(what: ModelConvergence) -> tuple[HeadSeen, ...]:
    from attnlimit.studies.kinds.model_heads import heads_seen

    files = None if what.text is None else tuple(str(file.checked()) for file in what.text)
    seen = heads_seen(what.model.use, files, what.tokens, what.passages, what.queries, what.query_seed)
    least = min(one.scores.shape[1] for drawn in what.curves for one in seen[0].population(drawn.population))
    if what.n[-1] > least:
        raise InputError(f"n goes up to {what.n[-1]}, but a passage has only {least} keys to draw from.")
    return seen


@lru_cache(maxsize=2)
def _exact(what: str) -> list[list[list[float]]]:
    """Nothing in it is random, so that it is computed once a worker."""
    from attnlimit.studies.kinds.subsampled import exact_squares

    asked = ModelConvergence.model_validate_json(what)
    found = []
    for drawn in asked.curves:
        heads = []
        for head in _seen(asked):
            rows = [
                exact_squares(one, drawn.policy, asked.n, asked.window or 0)
                for one in head.population(drawn.population)
            ]
            heads.append(_short(torch.cat(rows).mean(0)))
        found.append(heads)
    return found


def _short(row: Tensor) -> list[float]:
    """Seven digits: Monte Carlo has fewer, and a result is kept for ever."""
    return [float(f"{value:.7g}") for value in row.tolist()]


COLUMNS: dict[str, Column] = {
    "layer": "int",
    "head": "int",
    "horizon": "float",
    "population": "text",
    "policy": "text",
    "batch": "int",
    "n": "int",
    "mean_square": "float",
    "exact_mean_square": "float",
}


def rows(result: Data) -> Iterator[tuple[Any, ...]]:
    for curve in result["curves"]:
        heads = zip(result["heads"], curve["squares"], curve["exact"], strict=True)
        for (layer, head, horizon, _), batches, exact in heads:
            for k, batch in enumerate(batches):
                for n, square, closed in zip(result["n"], batch, exact, strict=True):
                    facts = (layer, head, horizon, curve["population"], curve["policy"])
                    yield *facts, k, n, square, closed


def summary(what: ModelConvergence, results: list[Data]) -> dict[str, Any]:
    """Curves relative to the root mean square of a head's outputs, and their exponents."""
    first, heads = results[0], []
    for place, drawn in enumerate(what.curves):
        for k, (layer, head, horizon, scale) in enumerate(first["heads"]):
            found = [row for result in results for row in result["curves"][place]["squares"][k]]
            squares = torch.tensor(found, dtype=torch.float64) / scale**2
            exact = torch.tensor(first["curves"][place]["exact"][k], dtype=torch.float64) / scale**2
            facts = {**drawn.model_dump(), "layer": layer, "head": head}
            heads.append({**facts, "horizon": horizon, **_curve(what.n, squares, exact)})
    known = what.model_dump(mode="json", exclude={"n", "model", "text", "curves"})
    return {
        **known,
        "model": what.model.use,
        "weights": what.model.words(),
        "sizes": what.n,
        "replicates": sum(result["replicates"] for result in results),
        "heads": heads,
    }


def _curve(n: list[int], squares: Tensor, exact: Tensor) -> dict[str, Any]:
    """rms with its standard error, the closed form, and both exponents, fitted with the same weights."""
    count = len(squares)
    rms = squares.mean(0).sqrt()
    found: dict[str, Any] = {"rms": rms.tolist(), "exact": exact.sqrt().tolist()}
    error = squares.std(0) / count**0.5 / (2 * rms) if count > 1 else torch.zeros_like(rms)
    if count < LEAST_BATCHES or not bool((error > 0).all()):
        return {**found, "half_width": None, "exponent": None, "interval": None, "exact_exponent": None}
    fit = fit_power(n, squares.sqrt(), statistic="rms", resamples=1000)
    closed = fit_power(n, exact.sqrt(), standard_errors=error * exact.sqrt() / rms)
    return {
        **found,
        "half_width": (float(stats.t.ppf(0.975, count - 1)) * error).tolist(),
        "exponent": fit.exponent,
        "interval": list(fit.interval),
        "exact_exponent": closed.exponent,
    }


KIND = untyped("model_convergence", ModelConvergence, run, COLUMNS, rows, summary, together=True)
