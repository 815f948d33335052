"""Attention with n keys of a sphere against the hardmax limit, with κ by a rule: exact, no replicates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat

from attnlimit.attention import Head
from attnlimit.exact import Schedule, best_kappa, hardmax_error, hardmax_gap
from attnlimit.measures import Sphere
from attnlimit.studies.fields import Fields, Sizes
from attnlimit.studies.kinds import Column, Kind, Result


class Hardmax(Fields):
    """Keys on the unit sphere of R^dim, A = V = I, one query on it. `kappa` is the rule: gamma·log n, the best one for
    each n, or infinite (hardmax itself)."""

    dim: Annotated[int, Field(ge=2)]
    kappa: Literal["log", "best", "infinite"]
    gamma: PositiveFloat = 1.0
    n: Sizes


def run(what: Hardmax, replicates: int, seed: int) -> Result:
    head, law = Head(torch.eye(what.dim, dtype=torch.float64)), Sphere(what.dim)
    query = torch.eye(1, what.dim, dtype=torch.float64)
    if what.kappa == "infinite":
        hard = hardmax_error(head, law, what.n, query)
        return {
            "n": what.n,
            "kappa": [None] * len(what.n),
            "rms": hard.rms[0].tolist(),
            "method": hard.method,
        }
    if what.kappa == "best":
        gap = best_kappa(head, law, what.n, query)
    else:
        gap = hardmax_gap(head, law, Schedule.log(what.gamma), what.n, query)
    told = gap.to_dict()
    return {"n": what.n, "kappa": told["kappa"], "rms": gap.rms[0].tolist(), "method": gap.method}


def rows(result: Result) -> Iterator[tuple[Any, ...]]:
    yield from zip(result["n"], result["kappa"], result["rms"], strict=True)


def summary(what: Hardmax, results: list[Result]) -> dict[str, Any]:
    first = results[0]
    return {**first, "kappa": what.kappa, "kappa_at_n": first["kappa"], "dim": what.dim}


COLUMNS: dict[str, Column] = {"n": "int", "kappa_at_n": "float", "rms": "float"}
KIND = Kind("hardmax", Hardmax, run, COLUMNS, rows, summary)
