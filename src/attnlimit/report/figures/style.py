"""One look for all figures: colour-blind safe, with units and intervals, no global state."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from attnlimit.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, in the order the figures use it
BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)


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
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise MissingExtra("Figures need matplotlib: pip install 'attnlimit[report]'.") from missing

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            image = BytesIO()
            self.savefig(image, format="png")
            return image.getvalue()

    return NotebookFigure


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure (.png, .pdf or .svg); the folder is made if need be."""
    path = Path(path)
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise InputError(f"A figure is written as .png, .pdf or .svg, got {path.name!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
