"""What kinds about a head on a law share: laws and heads as a specification names them, what theory knows of them, and what is said
of their errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, ForwardRef, Literal, TypeAlias, TypeVar, Union

import torch
from pydantic import (
    Field,
    NonNegativeFloat,
    PlainSerializer,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    create_model,
)
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import AttnlimitError, InputError
from attnlimit.files.arrays import open_rows
from attnlimit.measures import Measure, laws
from attnlimit.measures.spec import Form
from attnlimit.rates import ErrorCurve, PowerFit, Rates, horizon, rates
from attnlimit.rates.horizon import MOST_DIM
from attnlimit.studies.fields import Fields, File, Seed, Sizes
from attnlimit.studies.kind import Cell, Kind, Point, Result, Row

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

    def __reduce__(self) -> tuple[Any, ...]:
        """By its record, since classes that are made here have no place of their own."""
        return _law, (self.model_dump(),)


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
        given[field] = (kind | None if what.default is None else kind, what.default)
    model = create_model(name, __base__=LawFields, __doc__=law.__doc__, **given)
    model.made = law
    return model


def _law(record: dict[str, Any]) -> LawFields:
    return next(one for one in _MODELS if one.__name__ == record["name"]).model_validate(record)


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


def _size(law: Measure) -> int:
    if law.dim > MOST_DIM:
        raise InputError(
            f"dim must be at most {MOST_DIM:,} for a head of a given horizon, got {law.dim:,}: the eigenvalues of matrices of that "
            "size are needed."
        )
    return law.dim


class Identity(Fields):
    """A = cI with horizon H on the law, values are the keys."""

    name: Literal["identity"]
    horizon: NonNegativeFloat

    def build(self, law: Measure, like: Tensor) -> Head:
        return _with_horizon(torch.eye(_size(law)).to(like), None, law, self.horizon)


class Random(Fields):
    """Q, K, V with entries N(0, 1/d), A = KᵀQ scaled to horizon H on the law."""

    name: Literal["random"]
    horizon: NonNegativeFloat
    seed: Seed = 0

    def build(self, law: Measure, like: Tensor) -> Head:
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.randn(3, _size(law), law.dim, generator=generator, dtype=torch.float64)
        Q, K, V = (draws / law.dim**0.5).to(like)
        return _with_horizon(K.T @ Q, V, law, self.horizon)


class Given(Fields):
    """A and V themselves, or files with them; `kappa` multiplies A."""

    name: Literal["matrix"]
    A: Matrix | File
    V: Matrix | File | None = None
    kappa: PositiveFloat = 1.0

    def build(self, law: Measure, like: Tensor) -> Head:
        values = None if self.V is None else array(self.V, like)
        return Head(array(self.A, like), values).scaled(self.kappa)


HeadSpec: TypeAlias = Annotated[Identity | Random | Given, Field(discriminator="name")]


def _with_horizon(A: Tensor, V: Tensor | None, law: Measure, wanted: float) -> Head:
    unit = float(horizon(Head(A, V), law))
    if not unit > 0:
        raise InputError(f"No multiple of A has horizon {wanted:g}: the scores of {law!r} do not spread.")
    return Head(A * (wanted / unit), V)


def _rates(data: Any) -> Rates:
    return data if isinstance(data, Rates) else Rates(**{one.name: data[one.name] for one in fields(Rates)})


@dataclass(frozen=True)
class Limit:
    """What is known of a head on a law as n → ∞."""

    horizon: float
    rates: Annotated[Rates, PlainValidator(_rates), PlainSerializer(Rates.to_dict)]


class Setting(Kind):
    """A head on a law, at sizes n."""

    law: Law
    head: HeadSpec
    n: Sizes
    dtype: Dtype = "float64"
    device: Literal["cpu", "cuda"] = "cpu"

    def build(self) -> tuple[Head, Measure]:
        kind = like(self.dtype, self.device)
        law = self.law.build(kind)
        return self.head.build(law, kind), law

    def check(self) -> object:
        return self.build()

    def limit(self) -> Limit | None:
        """The horizon and the exponents; None where there is no limit or no known rate."""
        try:
            head, law = self.build()
            return Limit(float(horizon(head, law)), rates(head, law))
        except AttnlimitError:
            return None


def limit_record(limit: Limit | None) -> dict[str, Any]:
    """What a summary says of the limit."""
    return {
        "horizon": None if limit is None else limit.horizon,
        "rates": None if limit is None else limit.rates.to_dict(),
    }


C = TypeVar("C", bound="CurveResult")


class CurveResult(Result):
    """A result that is an error against n, of a head on a law."""

    limit: Limit | None

    @property
    @abstractmethod
    def curve(self) -> ErrorCurve:
        """The rms error."""

    @property
    def error_of(self) -> str:
        """What the error is of, in a word."""
        return "error"

    @property
    def fit(self) -> PowerFit | None:
        """The power of n through the curve, where it is noisy and one can be fitted."""
        return None

    @property
    def sharp(self) -> float | None:
        """The exponent of this very error as n → ∞, where it is known."""
        return None

    @property
    def replicates(self) -> int | None:
        """None where there is no noise."""
        return None

    @property
    def horizon(self) -> float | None:
        return None if self.limit is None else self.limit.horizon

    def shown(self) -> list[Row]:
        row: dict[str, Cell] = {
            "horizon": self.horizon,
            "largest n": self.curve.n[-1],
            "rms at largest n": float(self.curve.error[-1]),
        }
        if self.fit is not None:
            level = f"{100 * self.fit.level:g} %"
            row["exponent"] = self.fit.exponent
            row[f"{level} from"], row[f"{level} to"] = self.fit.interval
        if self.limit is not None:
            row["published"] = float(self.limit.rates.paper)
            row |= {} if self.sharp is None else {"n → ∞": self.sharp}
        return [row]

    @classmethod
    def words(cls: type[C], points: Sequence[Point[C]]) -> list[str]:
        """From which exponent to which, and how many are no less than the published ones."""
        fitted = [(fit.exponent, one, fit) for one in points if (fit := one.result.fit) is not None]
        if not fitted:
            return []
        (_, low, _), (_, high, _) = min(fitted, key=lambda one: one[0]), max(fitted, key=lambda one: one[0])
        text = "The error falls as a power of the number of tokens n. "
        if low is high:
            text += f"The exponent is {_said(low.result.fit)}."
        else:
            text += f"Its exponent runs from {_said(low.result.fit)} at {low.label} to {_said(high.result.fit)} at {high.label}."
        known = [(fit, one.result.limit) for _, one, fit in fitted if one.result.limit is not None]
        if known:
            at_least = sum(fit.interval[1] >= limit.rates.paper for fit, limit in known)
            text += (
                f" At {at_least} of {len(known)} points it is no less than the published exponent, within its interval; "
                "that one is a limit, which the slope at finite n need not have reached."
            )
        return [text]


def _said(fit: PowerFit | None) -> str:
    if fit is None:
        return "not known"
    low, high = fit.interval
    return f"{fit.exponent:.3f} ({100 * fit.level:g} % interval {low:.3f} to {high:.3f})"
