"""One look for all figures: colour-blind safe, with units and intervals, no global state.

The commands import this to know what they can draw, so numpy and torch are imported where something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any

from attnlimit.drawing import Axes, Figure
from attnlimit.errors import InputError, needs
from attnlimit.files.records import replacing

# Okabe and Ito's palette, in the order the figures use it
BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
MARKERS = "osD^vP"
BESIDE = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
"""For names that stand right of the axes, where lines fill them."""
EXPONENTS: dict[str, dict[str, Any]] = {
    "paper": {"linestyle": ":", "color": GREEN, "linewidth": 2},
    "rms": {"color": ORANGE},
    "mean": {"linestyle": "--", "color": BLACK, "linewidth": 1},
}
"""How the exponents of n → ∞ are drawn."""


def axes(width: float = 6.4, height: float = 4.2) -> tuple[Figure, Axes]:
    """A figure with one pair of axes in the project's style."""
    figure, (ax,) = panels(1, width, height)
    return figure, ax


def panels(columns: int, width: float = 10.4, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """A figure with several pairs of axes side by side."""
    figure = _figure_class()(figsize=(width, height), layout="constrained", dpi=150)
    found = [figure.add_subplot(1, columns, k + 1) for k in range(columns)]
    for ax in found:
        style(ax)
    return figure, found


def style(ax: Axes) -> None:
    """A faint grid behind the data, and no frame at the top and right."""
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


@cache
def _figure_class() -> type[Figure]:
    """A figure that a notebook shows as the value of a cell, whatever its matplotlib backend."""
    with needs("Figures need matplotlib", "report"):
        from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def savefig(self, *args: Any, **options: Any) -> None:
            _plain_names(self)
            super().savefig(*args, **options)

        def _repr_png_(self) -> bytes:
            image = BytesIO()
            self.savefig(image, format="png")
            return image.getvalue()

    return NotebookFigure


def _plain_names(figure: Figure) -> None:
    """Names with a $ in them that are no formula are shown as they are."""
    from matplotlib.mathtext import MathTextParser

    for one in _texts(figure):
        try:
            if "$" in one.get_text():
                MathTextParser("path").parse(one.get_text())
        except ValueError:
            one.set_parse_math(False)


def _texts(artist: Any) -> Iterator[Any]:
    """All words but those of ticks, which would have to be made to be seen."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    for one in artist.get_children():
        if isinstance(one, Text):
            yield one
        elif isinstance(one, Axis):
            yield one.label
        else:
            yield from _texts(one)


def shades(count: int, last: float = 0.92) -> Any:
    """Colours for what has an order, from dark to light."""
    with needs("Figures need matplotlib", "report"):
        from matplotlib import colormaps
    return colormaps["viridis"]([last * k / max(1, count - 1) for k in range(count)])


def within(ax: Axes, x: Any, y: Any, low: Any, high: Any, *look: Any, **more: Any) -> None:
    """`dots` with their intervals, from low to high; a percentile interval need not hold its value, and one value has none."""
    import numpy as np

    middle, ends = np.asarray(y), (np.asarray(low), np.asarray(high))
    reach = np.stack([middle - ends[0], ends[1] - middle])
    dots(ax, x, middle, np.nan_to_num(reach).clip(0), *look, **more)


def fitted_dots(ax: Axes, found: Sequence[Any], horizons: Any, *look: Any, **more: Any) -> None:
    """Fitted exponents with their intervals, against the horizon."""
    low, high = zip(*(one.interval for one in found), strict=True)
    within(ax, horizons, [one.exponent for one in found], low, high, *look, **more)


def dots(
    ax: Axes, x: Any, y: Any, reach: Any, fmt: str, colour: Any, label: str | None, **more: object
) -> None:
    """Values with their intervals: `reach` is half their width, or how far they go below and above."""
    look: Any = {"markersize": 4, "capsize": 3, **more}
    ax.errorbar(x, y, yerr=reach, fmt=fmt, color=colour, label=label, **look)


def finish(
    ax: Axes, x: str, y: str, title: str = "", *, log: str = "", legend: Any = None, **more: Any
) -> None:
    """What the axes are, those in `log` ("x", "y", "xy") logarithmic; a title at the left, and names where there are any."""
    ax.set(xlabel=x, ylabel=y, **{f"{side}scale": "log" for side in log}, **more)
    ax.set_title(title, fontsize=10, loc="left")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, **{"fontsize": 8, **(legend or {})})


def plain_ticks(axis: Any, steps: Sequence[float]) -> None:
    """On a logarithmic axis: numbers as they are, at these steps of each power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def exponent_lines(ax: Axes, horizons: Any, **labels: str) -> None:
    """The exponents of n → ∞ with these names in `Rates`, against the horizon."""
    from attnlimit.rates import exponents

    known = [exponents(float(H)) for H in horizons]
    for name, label in labels.items():
        ax.plot(horizons, [float(getattr(one, name)) for one in known], label=label, **EXPONENTS[name])


def small_print(figure: Figure, text: str) -> None:
    """A note under all axes, if there is one."""
    if text:
        figure.supxlabel("\n".join(wrap(text, 150)), fontsize=8, x=0.01, ha="left")


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure (.png, .pdf or .svg); the folder is made if need be."""
    path = can_draw(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        figure.savefig(new, format=path.suffix[1:])
    return path


def can_draw(path: str | Path) -> Path:
    """The path, if it names a figure and there is something to draw with."""
    path = Path(path)
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise InputError(f"A figure is written as .png, .pdf or .svg, got {path.name!r}.")
    _figure_class()
    return path
