"""Figures, one a file, each registered on `attnlimit.drawing.figure` for the type of result that it draws."""

from __future__ import annotations

from contextlib import suppress

from attnlimit import discover
from attnlimit.errors import MissingExtra


def register() -> None:
    """Import all of them. Where an extra is missing, there are no results of its types to draw."""
    for name in discover.names(__name__):
        with suppress(MissingExtra):
            discover.members(__name__, "figure", name)
