"""The exact error of n-token attention, averaged over queries: no replicates, no noise where the law allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnlimit.exact.curve import query_average
from attnlimit.studies.kinds import Column, Kind, Result
from attnlimit.studies.kinds.setting import Setting


class Exact(Setting):
    """A head on a law, at sizes n up to 10^12."""


def run(what: Exact, replicates: int, seed: int) -> Result:
    head, law = what.build()
    rms, mean_rms = query_average(head, law, max(what.n))(what.n)
    slopes = {"local_slope": rms.local_slopes().tolist(), "scale": rms.scale, "method": rms.method}
    both = {one.statistic: one.error.tolist() for one in (rms, mean_rms)}
    errors = {
        one.statistic: [0.0] * len(what.n) if one.standard_error is None else one.standard_error.tolist()
        for one in (rms, mean_rms)
    }
    return {"n": list(what.n), **both, **slopes, "standard_error": errors}


def rows(result: Result) -> Iterator[tuple[Any, ...]]:
    yield from zip(
        result["n"],
        result["rms"],
        result["standard_error"]["rms"],
        result["mean_rms"],
        result["standard_error"]["mean_rms"],
        strict=True,
    )


def summary(what: Exact, results: list[Result]) -> dict[str, Any]:
    return {**results[0], **what.predicted()}


COLUMNS: dict[str, Column] = {
    "n": "int",
    "rms": "float",
    "rms_standard_error": "float",
    "mean_rms": "float",
    "mean_rms_standard_error": "float",
}
KIND = Kind("exact", Exact, run, COLUMNS, rows, summary, check=Exact.build)
