"""How a law is written in a study's file and on the command line: its name and the fields that make it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Form(Enum):
    """What a field holds."""

    COUNT = "a whole number of at least 1"
    POSITIVE = "a number above 0"
    VECTOR = "a list of numbers; built as a tensor"
    ARRAY = "a number, a list, a matrix, or a file with one; built as a tensor"
    TOKENS = "a file with a matrix, built as a tensor, or a whole number of at least 1"
    SEED = "a whole number of at least 0"
    LAW = "a law, or nothing"
    LAWS = "a list of laws"


@dataclass(frozen=True)
class Field:
    """One field: what it holds, and what it is when left out (`...`: it may not be)."""

    form: Form
    default: object = ...


DIM = Field(Form.COUNT)
SIZE = Field(Form.POSITIVE, 1.0)
"""The one number that says how large a law is (radius, half-width, scale): `--scale` on the command line."""


class Spec:
    """`Spec("sphere", dim=DIM, radius=SIZE)` is written `{name: sphere, dim: 3, radius: 2.0}` in a study's file, and
    `--measure sphere --dim 3 --scale 2` on the command line, which offers the laws that a dimension and a size make."""

    def __init__(self, name: str, **fields: Field) -> None:
        self.name, self.fields = name, fields

    @property
    def on_command_line(self) -> bool:
        """Whether a dimension and a size make the law."""
        rest = [field for name, field in self.fields.items() if name != "dim"]
        return "dim" in self.fields and all(field.default is not ... for field in rest)

    def filled(self, dim: int | None, size: float) -> dict[str, object]:
        """All fields, from a dimension and a size."""
        chosen = {"dim": dim, **{name: size for name, field in self.fields.items() if field is SIZE}}
        return {name: chosen.get(name, field.default) for name, field in self.fields.items()}
