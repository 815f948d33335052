"""A file that describes a comparison of trainings: tasks × attentions, all lengths and seeds at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, PositiveInt, Tag, model_validator

from attnlimit.files.yamlfile import Place, read_yaml, validated
from attnlimit.icl.tasks import Classification, LinearRegression, MixtureDenoising, Task, ar1

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Figure = Literal["risk", "trajectory", "lengths"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Regression(Strict):
    """In-context linear regression, Σ_ij = variance·ρ^|i−j|, or any Σ as rows."""

    kind: Literal["regression"] = "regression"
    name: str = ""
    dim: PositiveInt = 5
    rho: Annotated[float, Field(gt=-1, lt=1)] = 0.0
    variance: Positive = 1.0
    cov: list[list[Number]] | None = None
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Variance of the noise in y."""
    vector_variance: Positive | None = None
    """w ~ N(0, vector_variance·I); 1/dim unless given."""

    def build(self) -> LinearRegression:
        cov = self.variance * ar1(self.dim, self.rho) if self.cov is None else self.cov
        return LinearRegression(self.dim, cov, noise=self.noise, vector_cov=self.vector_variance)


class Classes(Strict):
    """In-context classification of two Gaussian classes, Σ_ij = ρ^|i−j|."""

    kind: Literal["classification"]
    name: str = ""
    dim: PositiveInt = 5
    rho: Annotated[float, Field(gt=-1, lt=1)] = 0.0
    loss: Literal["logistic", "squared"] = "logistic"

    def build(self) -> Classification:
        return Classification(self.dim, ar1(self.dim, self.rho), loss=self.loss)


class Denoising(Strict):
    """In-context denoising of a Gaussian mixture."""

    kind: Literal["denoising"]
    name: str = ""
    dim: PositiveInt = 5
    components: PositiveInt = 3
    radius: Positive = 1.0
    spread: Positive = 0.01
    noise: Positive = 0.25

    def build(self) -> MixtureDenoising:
        return MixtureDenoising(
            self.dim, self.components, radius=self.radius, spread=self.spread, noise=self.noise
        )


def _kind(value: Any) -> Any:
    """Which of them it is meant to be: a regression unless it says otherwise."""
    return value.get("kind", "regression") if isinstance(value, dict) else getattr(value, "kind", None)


AnyTask = Annotated[
    Annotated[Regression, Tag("regression")]
    | Annotated[Classes, Tag("classification")]
    | Annotated[Denoising, Tag("denoising")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message="kind must be regression, classification or denoising",
    ),
]


class Method(Strict):
    """Arguments of `icl.train`, the published run's unless given."""

    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    lr: Positive = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    variance_reduction: Literal["control"] | None = None
    batch: PositiveInt = 128
    steps: PositiveInt = 300_000
    init: Positive = 0.1
    reports: PositiveInt = 24
    evaluation: PositiveInt = 4096


class TrainingSpec(Method):
    seeds: PositiveInt = 3
    test_lengths: list[PositiveInt] = []


class Spec(Strict):
    """The whole file. `quick` holds what a quick run changes; in `training` field by field, the rest as a whole."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    title: str = ""
    figures: Annotated[list[Figure], Field(min_length=1)] = ["risk", "trajectory"]
    tasks: Annotated[list[AnyTask], Field(min_length=1)]
    attentions: Annotated[list[Literal["softmax", "linear"]], Field(min_length=1)] = ["softmax", "linear"]
    lengths: Annotated[list[PositiveInt], Field(min_length=1)]
    training: TrainingSpec = TrainingSpec()
    seed: Annotated[int, Field(ge=0)] = 0
    quick: dict[str, Any] = {}

    @model_validator(mode="after")
    def _distinct(self) -> Spec:
        for what, values in (
            ("task names", [task.name or task.kind for task in self.tasks]),
            ("attentions", list(self.attentions)),
            ("lengths", list(self.lengths)),
        ):
            if len(set(values)) < len(values):
                raise ValueError(f"{what} must differ, got {values}")
        return self

    def built(self) -> dict[str, Task]:
        """Tasks by name, or kind where they have none."""
        return {task.name or task.kind: task.build() for task in self.tasks}


def read_spec(path: str | Path, *, quick: bool = False) -> Spec:
    """The file, checked as it stands and, with `quick`, with what a quick run changes."""
    data, lines = read_yaml(path)
    spec = validated(Spec, data, lines, path)
    changed, lines = _quick(data, lines)
    small = validated(Spec, changed, lines, path)
    return small if quick else spec


def _quick(data: dict[str, Any], lines: dict[Place, int]) -> tuple[dict[str, Any], dict[Place, int]]:
    """The file's values with those under `quick` in their place, and so their lines."""
    changes = data.get("quick") or {}
    moved = {place[1:]: line for place, line in lines.items() if place[:1] == ("quick",) and len(place) > 1}
    training = {**(data.get("training") or {}), **(changes.get("training") or {})}
    merged = {**{k: v for k, v in data.items() if k != "quick"}, **changes, "training": training}
    return merged, {**lines, **moved}
