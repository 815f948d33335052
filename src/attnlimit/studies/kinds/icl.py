"""Training on finite prompts, one model per prompt length and replicate, as `attnlimit.icl.train` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, TypeAlias, cast

import torch
from jaxtyping import Float
from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, TypeAdapter
from torch import Tensor

from attnlimit.icl import (
    Classification,
    Evaluation,
    InContextTask,
    LinearRegression,
    MixtureDenoising,
    Optimizer,
    Saving,
    Start,
    Training,
    ar1,
    train,
)
from attnlimit.icl.methods import MODELS, Attention
from attnlimit.icl.train import Trial
from attnlimit.icl.training import MEASURED, Comparison, OverSeeds, compared, over_seeds
from attnlimit.studies.fields import Fields, Sizes
from attnlimit.studies.kind import Cell, Cells, Folder, Kind, Point, Result, Row, plain, short, table
from attnlimit.studies.spec import canonical

BRIEF = 100
"""Steps of a training that is only timed."""
ARRAYS = tuple(one.name for one in fields(Training) if "Tensor" in str(one.type))
"""What a training found."""
ENDS = ("risk", "infinite_risk", "gradient_gap", "parameter_gap")
Correlation = Annotated[float, Field(gt=-1, lt=1)]


class Regression(Fields):
    """In-context linear regression, Σ_ij = variance·ρ^|i−j|, or any Σ as rows."""

    kind: Literal["regression"] = "regression"
    name: str = ""
    dim: PositiveInt = 5
    rho: Correlation = 0.0
    variance: PositiveFloat = 1.0
    cov: list[list[float]] | None = None
    noise: Annotated[float, Field(ge=0)] = 0.1
    """Variance of the noise in y."""
    vector_variance: PositiveFloat | None = None
    """w ~ N(0, vector_variance·I); 1/dim unless given."""

    def build(self) -> LinearRegression:
        cov = self.variance * ar1(self.dim, self.rho) if self.cov is None else self.cov
        return LinearRegression(self.dim, cov, noise=self.noise, vector_cov=self.vector_variance)

    @property
    def words(self) -> str:
        times = "" if self.variance == 1 else f"{self.variance:g}·"
        known = f"Σ_ij = {times}{self.rho:g}^|i−j|" if self.rho else f"Σ = {times}I"
        return self.name or (known if self.cov is None else "Σ as given")


class Classes(Fields):
    """In-context classification of two Gaussian classes, Σ_ij = ρ^|i−j|."""

    kind: Literal["classification"]
    name: str = ""
    dim: PositiveInt = 5
    rho: Correlation = 0.0
    loss: Literal["logistic", "squared"] = "logistic"

    def build(self) -> Classification:
        return Classification(self.dim, ar1(self.dim, self.rho), loss=self.loss)

    @property
    def words(self) -> str:
        return self.name or f"classification, Σ_ij = {self.rho:g}^|i−j|"


class Denoising(Fields):
    """In-context denoising of a Gaussian mixture."""

    kind: Literal["denoising"]
    name: str = ""
    dim: PositiveInt = 5
    components: PositiveInt = 3
    radius: PositiveFloat = 1.0
    spread: PositiveFloat = 0.01
    noise: PositiveFloat = 0.25

    def build(self) -> MixtureDenoising:
        return MixtureDenoising(
            self.dim, self.components, radius=self.radius, spread=self.spread, noise=self.noise
        )

    @property
    def words(self) -> str:
        return self.name or f"denoising, {self.components} components"


def _kind(value: Any) -> Any:
    """Which of them it is meant to be: a regression unless it says otherwise."""
    return value.get("kind", "regression") if isinstance(value, dict) else getattr(value, "kind", None)


AnyTask: TypeAlias = Annotated[
    Annotated[Regression, Tag("regression")]
    | Annotated[Classes, Tag("classification")]
    | Annotated[Denoising, Tag("denoising")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message="kind must be regression, classification or denoising",
    ),
]


@dataclass(frozen=True, eq=False)
class Trained(Result):
    """What a training gave, as `attnlimit.icl.Training` has it."""

    columns = table("replicate:int step:int length:int time " + " ".join(MEASURED))

    what: Asked
    arrays: dict[str, Float[Tensor, "*shape"] | None]
    """By name, those of `ARRAYS`."""

    @cached_property
    def training(self) -> Training:
        what = self.what
        return Training(
            task=_built(what.task.model_dump_json()),
            attention=what.attention,
            lengths=tuple(what.lengths),
            optimizer=what.optimizer,
            evaluation=what.evaluation,
            steps=what.evaluation.steps(what.optimizer.steps),
            **cast(Any, self.arrays),
        )

    def rows(self) -> Cells:
        for row in self.training.rows():
            yield [row["seed" if name == "replicate" else name] for name in self.columns]

    @classmethod
    def joined(cls, parts: Sequence[Trained]) -> Trained:
        """The replicates of all tasks as one training."""
        together = dict(parts[0].arrays)
        for name in ARRAYS[1:]:  # but for the times
            found = [values for one in parts if (values := one.arrays[name]) is not None]
            together[name] = torch.cat(found, 1) if found else None
        return cls(parts[0].what, together)

    def ends(self) -> dict[str, OverSeeds]:
        """What was measured when training ended, at each length: mean over replicates and both ends of its 95 % interval."""
        found = {name: self.arrays[name] for name in ENDS}
        return {name: over_seeds(values[-1].T) for name, values in found.items() if values is not None}

    def summary(self) -> dict[str, object]:
        record: dict[str, Any] = {"task": repr(self.training.task), "lengths": self.what.lengths}
        record |= {"attention": self.what.attention, "replicates": self.training.seeds}
        for name, (mean, low, high) in self.ends().items():
            record[name] = mean.tolist()
            record[f"{name}_interval"] = [low.tolist(), high.tolist()]
        if self.what.evaluation.test_lengths:
            record["test_lengths"] = list(self.what.evaluation.test_lengths)
            record["test_risk"] = self.training.test_risk[-1].tolist()
        return {**record, **self.methods()}

    def shown(self) -> list[Row]:
        """A line for each prompt length."""
        attention, ends = self.what.attention, self.ends()
        found: list[Row] = []
        for m, known in enumerate(compared("", [self.training]).rows()):
            row: dict[str, Cell] = {"prompt length": self.what.lengths[m], "risk": known[attention]}
            row |= {"95 % from": known[f"{attention}_low"], "95 % to": known[f"{attention}_high"]}
            row |= {"predicted": known.get(f"{attention}_predicted"), "floor": known["floor"]}
            row |= {"with the L = ∞ weights": known["solution"]} if attention == "softmax" else {}
            row |= {short(name): float(mean[m]) for name, (mean, *_) in ends.items() if name != "risk"}
            found.append({name: value for name, value in row.items() if value is not None})
        return found

    @classmethod
    def words(cls, points: Sequence[Point[Trained]]) -> list[str]:
        return [_said(one) for one in comparisons(points)]

    def methods(self) -> Row:
        return {"method": f"{self.training.method}; 95 % t intervals over replicates"}


@lru_cache(maxsize=32)
def _built(task: str) -> InContextTask:
    """One object for equal descriptions: what is known of it is found once."""
    found: AnyTask = TypeAdapter(AnyTask).validate_json(task)
    return found.build()


def comparisons(points: Sequence[Point[Trained]]) -> list[Comparison]:
    """Points that differ in their attention alone, side by side, in the order of the study."""
    groups: dict[bytes, list[Point[Trained]]] = {}
    for one in points:
        rest = one.result.what.model_dump(mode="json", exclude={"attention"})
        groups.setdefault(canonical(rest), []).append(one)
    return [compared(_name(group[0]), [one.result.training for one in group]) for group in groups.values()]


def _name(point: Point[Trained]) -> str:
    """The task in words, and what else tells the point apart."""
    others = {
        path: value
        for path, value in point.varies.items()
        if path != "attention" and path.partition(".")[0] != "task"
    }
    return ", ".join(
        [point.result.what.task.words, *(f"{short(path)} {plain(v)}" for path, v in others.items())]
    )


def _said(one: Comparison) -> str:
    """The risks at the longest prompt, beside the floor and the infinite-prompt solution."""
    last = max(range(len(one.lengths)), key=lambda m: one.lengths[m])
    parts = []
    for name in one.runs:
        mean, low, high = (float(values[last]) for values in one.ending(name))
        parts.append(
            f"{MODELS[one.runs[name].attention]} ends with risk {mean:.3g} ({low:.3g} to {high:.3g})"
        )
        if name in one.predicted:
            parts[-1] += f", predicted {float(one.predicted[name][last]):.3g} without training"
    text = f"{one.name}: trained on prompts of {one.lengths[last]:,} tokens, {'; '.join(parts)}."
    if one.floors is not None:
        floor = one.floors[last]
        text += f" No method can do better than {floor.value:.3g} there ({floor.kind})."
    if one.solution is not None:
        text += f" The infinite-prompt solution has {float(one.solution[last]):.3g} at that length."
    if constants := one.constants():
        told = ", ".join(f"{value:.3g}/L ({name})" for name, value in constants.items())
        text += f" Predicted for long prompts: risk {told}."
    return text


class Asked(Kind):
    """The arguments of `attnlimit.icl.train`, with which they share their meaning; replicates are its seeds."""

    title = "in-context learning"
    result = Trained
    together = True

    task: AnyTask = Regression()
    lengths: Sizes
    attention: Attention = "softmax"
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    init: PositiveFloat = 0.1

    def run(self, replicates: int, seed: int, place: Folder) -> Trained:
        """A training that was stopped goes on from its checkpoint in the run's folder, bit for bit."""
        kept = None
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            kept = place / "training.safetensors"
        found = train(
            self.task.build(),
            self.lengths,
            attention=self.attention,
            optimizer=self.optimizer,
            evaluation=self.evaluation,
            start=Start(init=self.init, seeds=replicates),
            generator=seed,
            saving=Saving(checkpoint=kept),
        )
        return Trained(self, {name: getattr(found, name) for name in ARRAYS})

    def check(self) -> None:
        """The parts fit each other."""
        start = Start(init=self.init)
        Trial.of(self.task.build(), self.lengths, self.attention, self.optimizer, self.evaluation, start, 0)

    def brief(self) -> tuple[Asked, float]:
        """A few steps."""
        steps = min(self.optimizer.steps, BRIEF)
        optimizer = replace(self.optimizer, steps=steps)
        evaluation = replace(
            self.evaluation, reports=1, prompts=min(self.evaluation.prompts, self.optimizer.batch)
        )
        part = self.model_copy(update={"optimizer": optimizer, "evaluation": evaluation})
        return part, self.optimizer.steps / steps
