"""One measured number with its unit, its target and whether the target was met."""

from __future__ import annotations


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    **details: object,
) -> dict[str, object]:
    """`details` (quartiles, rounds, how it was measured) go to the JSON file only."""
    entry: dict[str, object] = {"name": name, "value": value, "unit": unit}
    if at_least is not None:
        entry |= {"target": f"≥ {at_least:g}", "met": value >= at_least}
    elif at_most is not None:
        entry |= {"target": f"≤ {at_most:g}", "met": value <= at_most}
    return entry | details
