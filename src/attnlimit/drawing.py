"""Figures of results, found by their type: `report` registers them, results only ask for theirs."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import TYPE_CHECKING, Any, TypeAlias

from attnlimit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # an extra, imported when something is drawn
    Axes: TypeAlias = Any
    Figure: TypeAlias = Any

providers: list[Callable[[], object]] = []
"""Called once, before the first figure: each imports a part that registers figures."""


@singledispatch
def figure(result: object) -> Figure:
    """The figure of a result; `@figure.register` beside each drawing says for which type it is."""
    raise InputError(f"There is no figure of {type(result).__name__}.")


def draw(result: object) -> Figure:
    """The figure of a result."""
    while providers:
        providers.pop()()
    return figure(result)


class Drawn:
    """A result that can be drawn."""

    def plot(self) -> Figure:
        """Its figure (needs matplotlib); `save` it, or look at it in a notebook."""
        return draw(self)
