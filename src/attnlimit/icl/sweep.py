"""Trainings of several tasks and attentions side by side, with their tables and rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import NotKnown
from attnlimit.icl.finite import FiniteRisk, finite_risk
from attnlimit.icl.long_prompts import long_prompt_constant
from attnlimit.icl.stationary import endpoint
from attnlimit.icl.tasks import Floor, LinearRegression, Task
from attnlimit.icl.train import train
from attnlimit.icl.training import Training, over_seeds, power_of_length
from attnlimit.icl.tuning import tuned
from attnlimit.rates import exponents

if TYPE_CHECKING:
    from attnlimit.icl.spec import Spec

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class TaskRuns:
    """All that was trained on one task."""

    name: str
    task: Task
    runs: dict[str, Training]
    """By attention."""
    floors: list[Floor] | None
    """The least risk at each length, for regression ridge; None where it is not known."""
    transferred: FiniteRisk | None
    """Exact softmax risk at each length of the infinite-prompt solution."""
    predicted: dict[str, list[float]]
    """By attention, the exact risk at each length of weights tuned to it without training; none but for regression."""

    def exponent(self) -> float | None:
        """Of the infinite-prompt solution's risk as L → ∞: 2ρ with ρ the `rms` exponent at its horizon H. Trained weights do
        better, L·risk → `long_prompt_constant`: they are free to lower their horizon."""
        if not isinstance(self.task, LinearRegression):
            return None
        keys, queries = (torch.linalg.cholesky(cov) for cov in (self.task.cov, self.task.query_cov))
        H = torch.linalg.matrix_norm(keys.T @ endpoint(self.task).A @ queries, 2)
        return 2 * float(exponents(float(H)).rms)

    def constants(self) -> dict[str, float]:
        """By attention, lim L·risk of the best weights; none but for regression."""
        return {name: long_prompt_constant(self.task, name) for name in self.predicted}

    def rates(self) -> list[dict[str, Any]]:
        """Fitted powers of L, over the longer half of the lengths, of what falls with the length."""
        curves = [
            (attention, what, v) for attention, run in self.runs.items() for what, v in _falling(run).items()
        ]
        if len(self.runs) == 2:
            apart = self.runs["softmax"].risk[-1] - self.runs["linear"].risk[-1]
            curves.append(("both", "risk of softmax less that of linear attention", apart))
        if self.transferred is not None:
            curves.append(
                ("softmax", "exact risk of the infinite-prompt solution", self.transferred.risk[None])
            )
        for attention, risks in self.predicted.items():
            exact = torch.tensor([risks], dtype=torch.float64)
            curves.append((attention, "exact risk of tuned weights: the prediction", exact))
        found = []
        for attention, quantity, values in curves:
            fit = _fit(next(iter(self.runs.values())).lengths, values)
            if fit is not None:
                found.append({"task": self.name, "attention": attention, "quantity": quantity} | fit)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """The runs of a spec."""

    name: str
    title: str
    tasks: list[TaskRuns]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each task, attention, report, seed and length."""
        for part in self.tasks:
            for run in part.runs.values():
                for row in run.rows():
                    yield {"task": part.name, **row}

    def risks(self, level: float = 0.95) -> list[dict[str, Any]]:
        """At the end of training, for every task and length: mean risks with intervals over seeds, the floor, the prediction."""
        table = []
        for part in self.tasks:
            for m, length in enumerate(next(iter(part.runs.values())).lengths):
                row: dict[str, Any] = {"task": part.name, "length": length}
                for attention, run in part.runs.items():
                    ends = over_seeds(run.risk[-1, :, m], level)
                    row |= dict(
                        zip(
                            (attention, f"{attention}_low", f"{attention}_high"),
                            map(float, ends),
                            strict=True,
                        )
                    )
                row |= {f"{attention}_predicted": risks[m] for attention, risks in part.predicted.items()}
                row["floor"] = None if part.floors is None else part.floors[m].value
                row["solution"] = None if part.transferred is None else float(part.transferred.risk[m])
                table.append(row)
        return table

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "risks": self.risks(),
            "rates": [rate for part in self.tasks for rate in part.rates()],
            "solution_exponents": {part.name: part.exponent() for part in self.tasks},
            "long_prompt_constants": {part.name: part.constants() for part in self.tasks},
            "tasks": {part.name: repr(part.task) for part in self.tasks},
            "methods": {part.name: {a: run.method for a, run in part.runs.items()} for part in self.tasks},
            "floors": {part.name: part.floors[0].kind if part.floors else None for part in self.tasks},
        }

    def __repr__(self) -> str:
        return f"Sweep({self.name}: {', '.join(part.name for part in self.tasks)})"


def sweep(
    spec: Spec, *, folder: Path | None = None, resume: bool = False, progress: Progress | None = None
) -> Sweep:
    """Train everything in the spec; checkpoints go to `folder`, and with `resume` the run goes on from them."""
    built, settings = spec.built(), spec.training.model_dump()
    total = len(built) * len(spec.attentions) * spec.training.steps
    parts, before = [], 0
    for place, (name, task) in enumerate(built.items()):
        runs: dict[str, Training] = {}
        for attention in spec.attentions:
            path = None if folder is None else folder / f"{place}-{attention}.safetensors"

            def told(done: int, _: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + done, total)

            runs[attention] = train(
                task,
                spec.lengths,
                attention=attention,
                generator=spec.seed,
                checkpoint=path,
                resume=resume,
                progress=told,
                **settings,
            )
            before += spec.training.steps
        floors, solution = _floors(task, spec.lengths), _solution(task, spec.lengths)
        parts.append(TaskRuns(name, task, runs, floors, solution, _predicted(task, spec)))
    return Sweep(spec.name, spec.title, parts)


def _falling(run: Training) -> dict[str, Float[Tensor, "S M"]]:
    """What should fall with the length, by name.

    The weights of zero infinite-prompt risk are a surface (bΣA = I), and along it a finite prompt prefers some: once the flow
    has arrived, the weights drift there, the slower the longer the prompt. So the band around the flow is given up to its arrival
    (risk 1 % of the start) and for the whole run.
    """
    found = {"gradient gap, mean along training": run.gradient_gap.mean(0)}
    found["infinite-prompt risk of the trained weights"] = run.infinite_risk[-1]
    if run.excess is not None and run.parameter_gap is not None and run.flow_risk is not None:
        on_the_way = (run.flow_risk > 0.01 * run.flow_risk[:1]).all(1)
        found["excess risk at the end"] = run.excess[-1]
        found["largest distance to the flow, until it arrives"] = run.parameter_gap[on_the_way].amax(0)
        found["largest distance to the flow, whole run"] = run.parameter_gap.amax(0)
    return found


def _floors(task: Task, lengths: list[int]) -> list[Floor] | None:
    try:
        return [task.floor(length) for length in lengths]
    except NotKnown:
        return None


def _solution(task: Task, lengths: list[int]) -> FiniteRisk | None:
    if not isinstance(task, LinearRegression):
        return None
    order = sorted(lengths)
    curve = finite_risk(task, endpoint(task), order)
    place = [order.index(length) for length in lengths]
    return FiniteRisk(tuple(lengths), curve.risk[place], curve.standard_error[place], curve.method)


def _predicted(task: Task, spec: Spec) -> dict[str, list[float]]:
    if not isinstance(task, LinearRegression):
        return {}
    return {name: [tuned(task, length, name)[1] for length in spec.lengths] for name in spec.attentions}


def _fit(lengths: tuple[int, ...], values: Float[Tensor, "S M"]) -> dict[str, Any] | None:
    """The power of L over the longer half of the lengths (at least three), if all values there are positive: least squares
    in log-log for each seed, and a t interval over seeds."""
    order = sorted(range(len(lengths)), key=lambda m: lengths[m])[-max(3, len(lengths) // 2) :]
    part = values[:, order]
    if len(order) < 3 or not bool((part > 0).all()):
        return None
    n = [lengths[m] for m in order]
    mean, low, high = power_of_length(n, part)
    return {"exponent": float(mean), "low": float(low), "high": float(high), "lengths": n}
