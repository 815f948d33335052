"""What a bound returns: the number, and all one needs to know to believe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.files.records import finite, record

Inputs: TypeAlias = dict[str, float | int | str | Tensor]


@dataclass(frozen=True, eq=False)
class Bound:
    """error ≤ value, where `kind` says which error and in which sense."""

    name: str
    value: Float[Tensor, "*shape"]
    """(*batch,) over queries, with a last axis over n when several n were given."""
    kind: str
    """For instance "mean square" or "uniform, high probability"."""
    formula: str
    hypotheses: tuple[str, ...]
    inputs: Mapping[str, float | int | str | Tensor]
    """What went into the formula: radii, D, number of queries and how they were got, …"""
    confidence: float | None = None
    """1 − δ when the bound may fail with probability δ, else None."""
    constant: Float[Tensor, "*shape"] | None = None
    """C = bound·n^exponent, without the cap at the diameter of the values, or None where there is no such form.
    Where it depends on n it does so only through log n; inf where it is beyond floating point."""
    exponent: float | None = None

    def __post_init__(self) -> None:
        if bool(self.value.isnan().any()):
            raise InputError(
                f"The value of bound {self.name} must be numbers, got nan: a bound that says nothing is inf."
            )
        object.__setattr__(self, "inputs", MappingProxyType(dict(self.inputs)))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "inputs": dict(self.inputs)}  # what keeps them from change does not pickle

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def __repr__(self) -> str:
        shown = f"shape {tuple(self.value.shape)}"
        if self.value.numel() == 1:
            shown = f"{self.value.item():.4g}"
        elif self.value.numel() > 1:
            shown = f"{float(self.value.min()):.4g} … {float(self.value.max()):.4g}, {shown}"
        sure = "" if self.confidence is None else f", confidence {self.confidence:g}"
        return f"Bound({self.name}: {self.kind} ≤ {shown}{sure})"

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, lists and text, ready for JSON: what is not finite becomes None."""
        return finite(record(self))
