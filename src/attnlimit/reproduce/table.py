"""The numbers behind a figure as one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SKIPPED = ("point", "method", "reference", "no_fit", "schema")


def table(runs: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for every study, point and size n: what varies, the point's single numbers, its fit, and the entries of all
    lists that are as long as n."""
    many = len(runs) > 1
    return [
        {"study": name, **row} if many else row
        for name, summary in runs.items()
        for point in summary["points"]
        for row in _rows(point)
    ]


def _rows(point: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    facts = {path.rpartition(".")[2]: value for path, value in point["varies"].items()}
    facts |= {key: value for key, value in point.items() if key not in SKIPPED and _is_single(value)}
    if point.get("fit"):
        fit = point["fit"]
        facts |= {"exponent": fit["exponent"], "exponent_low": fit["interval"][0]}
        facts["exponent_high"] = fit["interval"][1]
    sizes = point.get("n")
    if not isinstance(sizes, list):
        yield facts
        return
    columns = {
        key: value for key, value in point.items() if isinstance(value, list) and len(value) == len(sizes)
    }
    for k in range(len(sizes)):
        entries = {key: value[k] for key, value in columns.items() if _is_single(value[k])}
        yield facts | entries


def _is_single(value: object) -> bool:
    return value is None or isinstance(value, int | float | str)
