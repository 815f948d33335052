"""Ranges of what records hold: whole numbers that tensors and sums take, and lists that are not empty."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

T = TypeVar("T")
MOST = 2**53
"""All whole numbers up to here are floating-point numbers too."""
Whole = Annotated[int, Field(ge=0, le=MOST)]
Counted = Annotated[int, Field(gt=0, le=MOST)]
Some = Annotated[tuple[T, ...], Field(min_length=1)]
"""At least one."""
