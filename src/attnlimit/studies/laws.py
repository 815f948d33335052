"""Token laws as a specification names them: the written form of every law, checked by pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, ForwardRef, Literal, TypeAlias, Union

import torch
from pydantic import Field, PositiveFloat, PositiveInt, create_model
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.files.arrays import open_rows
from attnlimit.measures import Measure, laws
from attnlimit.measures.spec import REQUIRED, Form
from attnlimit.studies.fields import Fields, File, Seed

DTYPES = {"float64": torch.float64, "float32": torch.float32}
Dtype: TypeAlias = Literal["float64", "float32"]
Vector: TypeAlias = Annotated[list[float], Field(min_length=1)]
Matrix: TypeAlias = Annotated[list[Vector], Field(min_length=1)]


class LawFields(Fields):
    """A law as it is written: its name, and the fields that its `spec` gives."""

    made: ClassVar[type[Measure]]
    name: str

    def build(self, like: Tensor) -> Measure:
        """The law, of like's dtype and device."""
        fields = self.made.spec.fields.items()
        given = {name: _built(getattr(self, name), field.form, like) for name, field in fields}
        return self.made.from_spec(like, **given)


_TYPES: dict[Form, Any] = {
    Form.COUNT: PositiveInt,
    Form.POSITIVE: PositiveFloat,
    Form.VECTOR: Vector,
    Form.ARRAY: float | Vector | Matrix | File,
    Form.TOKENS: File | PositiveInt,
    Form.SEED: Seed,
    Form.LAW: ForwardRef("Law"),
    Form.LAWS: Annotated[list[ForwardRef("Law")], Field(min_length=1)],  # type: ignore[misc]
}


def _model(name: str, law: type[Measure]) -> type[LawFields]:
    """The fields of a law's `spec` in pydantic's terms."""
    given: dict[str, Any] = {"name": (Literal[name], ...)}
    for field, what in law.spec.fields.items():
        kind = _TYPES[what.form]
        default = ... if what.default is REQUIRED else what.default
        given[field] = (kind | None if default is None else kind, default)
    model = create_model(name, __base__=LawFields, __doc__=law.__doc__, **given)
    model.made = law
    return model


_MODELS = [_model(name, law) for name, law in laws().items()]
if TYPE_CHECKING:
    Law: TypeAlias = LawFields
else:
    Law = Annotated[Union[tuple(_MODELS)], Field(discriminator="name")]  # noqa: UP007
for _one in _MODELS:
    _one.model_rebuild(_types_namespace={"Law": Law})
del _one  # or its docstring would be taken for one of this file


def _built(value: Any, form: Form, like: Tensor) -> Any:
    """A field's value as the law's own file takes it: laws built, arrays as tensors."""
    if value is None:
        return None
    if form is Form.LAW:
        return value.build(like)
    if form is Form.LAWS:
        return [part.build(like) for part in value]
    return array(value, like) if form in (Form.VECTOR, Form.ARRAY) or isinstance(value, File) else value


def array(value: float | list[Any] | File, like: Tensor) -> Tensor:
    """Numbers of a specification, or a matrix from a file, as a tensor of like's dtype and device."""
    if isinstance(value, File):
        file = open_rows(value.checked())
        return file.rows(0, file.shape[0]).to(like, copy=True)
    try:
        return like.new_tensor(value)
    except (TypeError, ValueError) as problem:
        raise InputError("A matrix must have rows of equal length.") from problem


def like(dtype: Dtype, device: str) -> Tensor:
    """An empty tensor of the kind that all of a task's tensors have."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"The task asks for device {device}, but this worker has no CUDA device.")
    return torch.empty(0, dtype=DTYPES[dtype], device=device)
