"""Figures of a study, from its summary: error against n or risk against L at every point, slopes against the horizon."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.numerics.words import counted
from attnlimit.rates import exponents
from attnlimit.report.figures.style import BLACK, COLOURS, GREEN, axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 12
MARKERS = "osD^vP"


def figures(summary: dict[str, Any]) -> dict[str, Figure]:
    """What the study can show, by name."""
    points = summary["points"]
    found = {}
    if points and all("rms" in point and "n" in point for point in points):
        found["curves"] = curves(summary)
    if len({point.get("horizon") for point in points if point.get("fit")} - {None}) > 1:
        found["slopes"] = slopes(summary)
    if points and all("risk" in point and "lengths" in point for point in points):
        found["risks"] = risks(summary)
    return found


def risks(summary: dict[str, Any]) -> Figure:
    """Risk of trained models against the length of their prompts, with 95 % intervals over replicates."""
    shown = summary["points"][:MOST_LINES]
    figure, ax = axes(6.8, 4.6)
    for point, colour in zip(shown, _shades(len(shown)), strict=True):
        L, risk = np.array(point["lengths"], dtype=float), _numbers(point["risk"])
        ax.plot(L, risk, "o-", color=colour, markersize=4, label=_label(point))
        low, high = (_numbers(end) for end in point["risk_interval"])
        ax.fill_between(L, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="prompt length L", ylabel="risk at the end of training")
    ax.set_title(_title(summary, len(shown)), fontsize=10)
    if len(shown) > 1:
        ax.legend(frameon=False, fontsize=8)
    return figure


def curves(summary: dict[str, Any]) -> Figure:
    """The rms error with 95 % intervals; of many points, some spread over all."""
    points = summary["points"]
    step = max(1, -(-len(points) // MOST_LINES))
    shown = points[::step]
    figure, ax = axes(6.8, 4.6)
    for point, colour in zip(shown, _shades(len(shown)), strict=True):
        n, rms = np.array(point["n"], dtype=float), _numbers(point["rms"])
        ax.plot(n, rms, "o-", color=colour, markersize=3, label=_label(point))
        ax.fill_between(n, *_band(point, rms), color=colour, alpha=0.15, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="rms error (unit of the outputs)")
    ax.set_title(_title(summary, len(shown)), fontsize=10)
    if len(shown) > 1:
        ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def slopes(summary: dict[str, Any]) -> Figure:
    """The fitted exponents with their intervals, and what is known of them as n → ∞."""
    figure, ax = axes(6.8, 4.6)
    known = [point for point in summary["points"] if point.get("fit") and point.get("horizon") is not None]
    known.sort(key=_rest)
    for k, (name, group) in enumerate(groupby(known, _rest)):
        series = sorted(group, key=lambda point: point["horizon"])
        H = [point["horizon"] for point in series]
        exponent = np.array([point["fit"]["exponent"] for point in series])
        low, high = np.array([point["fit"]["interval"] for point in series]).T
        ax.errorbar(
            H,
            exponent,
            yerr=[exponent - low, high - exponent],
            fmt=MARKERS[k % len(MARKERS)] + "-",
            color=COLOURS[k % len(COLOURS)],
            markersize=4,
            capsize=3,
            label=f"fitted, {name or _statistic(series[0])}",
        )
    axis = np.linspace(0.0, 1.05 * max(point["horizon"] for point in known), 100)
    ax.plot(axis, [float(exponents(h).paper) for h in axis], ":", color=GREEN, label="published bound, n → ∞")
    ax.plot(
        axis,
        [float(exponents(h).mean) for h in axis],
        "--",
        color=BLACK,
        label="mean error of the map, n → ∞",
    )
    level = 100 * known[0]["fit"]["level"]
    ax.set(xlabel="horizon H", ylabel=f"exponent of n, {level:g} % intervals", ylim=(0, None))
    ax.set_title(_title(summary, len(known)), fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    return figure


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """Nulls of the summary, which were not finite, as nan."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _band(point: dict[str, Any], rms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Monte Carlo has a list of standard errors, an exact curve those of its average over queries."""
    spread = point.get("rms_standard_error") or point["standard_error"]["rms"]
    half = 1.96 * np.nan_to_num(_numbers(spread))
    return np.maximum(rms - half, rms * 1e-3), rms + half


def _label(point: dict[str, Any]) -> str:
    return ", ".join(f"{_short(path)} {_plain(value)}" for path, value in point["varies"].items())


def _rest(point: dict[str, Any]) -> str:
    """What tells a series apart: all that varies but the horizon."""
    return ", ".join(_plain(value) for path, value in point["varies"].items() if not path.endswith("horizon"))


def _statistic(point: dict[str, Any]) -> str:
    return str(point.get("statistic", "error"))


def _short(path: str) -> str:
    return path.rpartition(".")[2].replace("_", " ")


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _title(summary: dict[str, Any], shown: int) -> str:
    count = len(summary["points"])
    some = f"{shown} of {counted(count, 'point')}" if shown < count else counted(count, "point")
    replicates = {point.get("replicates") for point in summary["points"]} - {None}
    how = f", {min(replicates)}–{max(replicates)} replicates" if len(replicates) > 1 else ""
    how = f", {counted(replicates.pop(), 'replicate')}" if len(replicates) == 1 else how
    return f"{summary['study']['name']}: {some}{how}"


def _shades(count: int) -> list[Any]:
    """Neighbouring points in neighbouring colours; the palette where there are few."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0.0, 0.92, count)))
