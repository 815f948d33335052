"""What training on finite prompts gave; and trainings on one task side by side, beside what is known without training: floors,
predictions, rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.icl.infinite import Weights
from attnlimit.icl.methods import MODELS, Attention, Evaluation, Optimizer
from attnlimit.icl.solutions import endpoint, finite_risk, long_prompt_constant, tuned
from attnlimit.icl.tasks import Floor, InContextTask, LinearRegression
from attnlimit.icl.tasks.base import floors
from attnlimit.numerics.threads import side_by_side
from attnlimit.numerics.words import counted
from attnlimit.rates import exponents

LEVEL = 0.95
MEASURED = ("risk", "risk_error", "infinite_risk", "gradient_gap", "parameter_gap", "excess")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Training(Drawn):
    """R reports of S seeds × M prompt lengths; for every seed all lengths start from the same weights."""

    task: InContextTask
    attention: Attention
    lengths: tuple[int, ...]
    optimizer: Optimizer
    evaluation: Evaluation
    steps: tuple[int, ...]
    """Training steps after which each report was made."""
    times: Float[Tensor, " R"] | None
    """Time of the gradient flow at each report, Σ lr; None for optimisers that follow no flow."""
    U: Float[Tensor, "R S M D D"]
    V: Float[Tensor, "R S M D D"]
    risk: Float[Tensor, "steps S lengths"]
    """At the length trained on."""
    risk_error: Float[Tensor, "R S M"]
    """Standard error of that risk, from the evaluation prompts."""
    infinite_risk: Float[Tensor, "R S M"]
    """Of the same weights on infinite prompts."""
    gradient_gap: Float[Tensor, "R S M"]
    """‖∇R_L − ∇R_∞‖_F at the same weights."""
    flow_risk: Float[Tensor, "R S"] | None
    """Infinite-prompt risk along the infinite-prompt flow from the same start."""
    parameter_gap: Float[Tensor, "R S M"] | None
    """Distance ‖(U, V) − flow‖_F to it at the same time."""
    test_risk: Float[Tensor, "R S M T"]
    """At the other prompt lengths of the evaluation."""

    @property
    def seeds(self) -> int:
        return self.risk.shape[1]

    @property
    def test_lengths(self) -> tuple[int, ...]:
        return self.evaluation.test_lengths

    @property
    def method(self) -> str:
        """How it was got, in words."""
        return f"{self.optimizer}; {counted(self.seeds, 'seed')}, risks on {self.evaluation.prompts:,} fresh prompts each"

    @property
    def excess(self) -> Float[Tensor, "R S M"] | None:
        """Risk at the length trained on, less that of the infinite-prompt flow at the same time."""
        return None if self.flow_risk is None else self.risk - self.flow_risk[..., None]

    def weights(self, length: int, seed: int = 0) -> Weights:
        """The trained model."""
        if length not in self.lengths or not 0 <= seed < self.seeds:
            raise InputError(
                f"No model was trained for length {length}, seed {seed}: there are lengths "
                f"{', '.join(map(str, self.lengths))} and seeds 0 to {self.seeds - 1}."
            )
        place = self.lengths.index(length)
        return Weights(self.U[-1, seed, place], self.V[-1, seed, place])

    def rows(self) -> Iterator[dict[str, int | float | str | None]]:
        """A long table: one row for each report, seed and length."""
        measured = {name: getattr(self, name) for name in MEASURED}
        for r, step in enumerate(self.steps):
            time = None if self.times is None else float(self.times[r])
            for s in range(self.seeds):
                for m, length in enumerate(self.lengths):
                    yield {
                        "attention": self.attention,
                        "step": step,
                        "seed": s,
                        "length": length,
                        "time": time,
                        **{k: None if v is None else float(v[r, s, m]) for k, v in measured.items()},
                        **{
                            f"risk_at_{n}": float(self.test_risk[r, s, m, t])
                            for t, n in enumerate(self.test_lengths)
                        },
                    }

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, weights only at the end."""
        return {
            "task": repr(self.task),
            "attention": self.attention,
            "method": self.method,
            "test_lengths": list(self.test_lengths),
            "reports": list(self.rows()),
            "U": self.U[-1].tolist(),
            "V": self.V[-1].tolist(),
        }

    def __repr__(self) -> str:
        mean = self.risk[-1].mean(0)
        risks = ", ".join(f"L = {n}: {float(v):.4g}" for n, v in zip(self.lengths, mean, strict=True))
        return f"Training({self.attention}, {self.steps[-1]:,} steps; risk {risks}; {self.method})"


class OverSeeds(NamedTuple):
    """A mean over seeds and both ends of its t interval."""

    mean: Float[Tensor, " ..."]
    low: Float[Tensor, " ..."]
    high: Float[Tensor, " ..."]


def power_of_length(lengths: Sequence[int], values: Float[Tensor, "S M"]) -> Float[Tensor, " S"]:
    """The e of values ∝ L^−e: least squares in log-log for each seed."""
    x = torch.tensor(lengths, dtype=torch.float64).log()
    x = x - x.mean()
    return -(values.log() @ x) / x.square().sum()


def over_seeds(values: Float[Tensor, "... S"]) -> OverSeeds:
    """Mean over seeds (the last axis) with both ends of its 95 % t interval; with one seed the interval is unknown, nan."""
    count, mean = values.shape[-1], values.mean(-1)
    if count < 2:
        nothing = torch.full_like(mean, torch.nan)
        return OverSeeds(mean, nothing, nothing)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * values.std(-1) / count**0.5
    return OverSeeds(mean, mean - half, mean + half)


Lengths = Float[Tensor, " M"]


class Rate(NamedTuple):
    """A fitted power of the length: quantity ∝ L^−exponent."""

    attention: str
    """Or "both", for what is between them."""
    quantity: str
    exponent: float
    low: float
    high: float
    """Ends of the 95 % interval over seeds; nan where there is one value."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Drawn):
    """All that was trained on one task; the rest needs no training."""

    name: str
    runs: Mapping[str, Training]
    """By attention, all at the same lengths."""
    floors: tuple[Floor, ...] | None
    """The least risk at each length, for regression ridge; None where it is not known."""
    solution: Lengths | None
    """Exact softmax risk at each length of the infinite-prompt solution; None but for regression."""
    predicted: Mapping[str, Lengths]
    """By attention, the exact risk at each length of weights tuned to it; none but for regression."""

    @property
    def any_run(self) -> Training:
        return next(iter(self.runs.values()))

    @property
    def task(self) -> InContextTask:
        return self.any_run.task

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.any_run.lengths

    @property
    def floor(self) -> Lengths | None:
        if self.floors is None:
            return None
        return torch.tensor([floor.value for floor in self.floors], dtype=torch.float64)

    def ending(self, attention: str) -> OverSeeds:
        """The risk at each length when training ends."""
        return over_seeds(self.runs[attention].risk[-1].T)

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
        if not self.predicted:
            return {}
        return {name: long_prompt_constant(self.task, run.attention) for name, run in self.runs.items()}

    def rates(self) -> list[Rate]:
        """Fitted powers of L, over the longer half of the lengths, of what falls with the length."""
        found = []
        for attention, quantity, values in self._curves():
            fit = _fit(self.lengths, values)
            if fit is not None:
                found.append(Rate(attention, quantity, *map(float, fit)))
        return found

    def rows(self) -> list[dict[str, int | float | None]]:
        """The end of training, a row for each length: mean risks with intervals over seeds, and what is known without training."""
        table = []
        for m, length in enumerate(self.lengths):
            row: dict[str, int | float | None] = {"length": length}
            for name in self.runs:
                mean, low, high = (float(values[m]) for values in self.ending(name))
                row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
                if name in self.predicted:
                    row[f"{name}_predicted"] = float(self.predicted[name][m])
            row["floor"] = None if self.floors is None else self.floors[m].value
            row["solution"] = None if self.solution is None else float(self.solution[m])
            table.append(row)
        return table

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "task": repr(self.task),
            "methods": {name: run.method for name, run in self.runs.items()},
            "risks": self.rows(),
            "rates": [rate._asdict() for rate in self.rates()],
            "solution_exponent": self.exponent(),
            "long_prompt_constants": self.constants(),
            "floor": None if self.floors is None else self.floors[0].kind,
        }

    def _curves(self) -> Iterator[tuple[str, str, Float[Tensor, "S M"]]]:
        for attention, run in self.runs.items():
            for quantity, values in _falling(run).items():
                yield attention, quantity, values
        if {"softmax", "linear"} <= self.runs.keys():
            apart = self.runs["softmax"].risk[-1] - self.runs["linear"].risk[-1]
            yield "both", "risk of softmax less that of linear attention", apart
        if self.solution is not None:
            yield "softmax", "exact risk of the infinite-prompt solution", self.solution[None]
        for attention, risks in self.predicted.items():
            yield attention, "exact risk of tuned weights: the prediction", risks[None]

    def __repr__(self) -> str:
        return f"Comparison({self.name}: {', '.join(MODELS[run.attention] for run in self.runs.values())}; {self.any_run.method})"


def compared(name: str, runs: Sequence[Training]) -> Comparison:
    """Trainings of one task at the same lengths, each with another attention, beside what is known without training."""
    by: dict[str, Training] = {run.attention: run for run in runs}
    if not runs or len(by) < len(runs) or len({run.lengths for run in runs}) > 1:
        raise InputError(
            "Compared are trainings with different attention at the same lengths, got "
            f"{', '.join(map(repr, runs)) or 'none'}."
        )
    task, lengths = runs[0].task, runs[0].lengths
    if not isinstance(task, LinearRegression):
        return Comparison(name, by, _floors(task, lengths), None, {})
    predicted: dict[str, Lengths] = {run.attention: _predicted(task, lengths, run.attention) for run in runs}
    return Comparison(name, by, _floors(task, lengths), _solution(task, lengths), predicted)


# verdicts, tables and figures ask for the same
_floors = lru_cache(maxsize=32)(floors)


@lru_cache(maxsize=32)
def _predicted(task: LinearRegression, lengths: tuple[int, ...], attention: Attention) -> Lengths:
    risks = side_by_side(lambda length: tuned(task, length, attention)[1], lengths)
    return torch.tensor(risks, dtype=torch.float64)


@lru_cache(maxsize=32)
def _solution(task: LinearRegression, lengths: tuple[int, ...]) -> Lengths:
    order = sorted(lengths)
    risks = finite_risk(task, endpoint(task), order).risk
    return risks[[order.index(length) for length in lengths]]


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


def _fit(lengths: tuple[int, ...], values: Float[Tensor, "S M"]) -> OverSeeds | None:
    """The power of L over the longer half of the lengths (at least three), if all values there are positive: least squares
    in log-log for each seed, and a t interval over seeds."""
    order = sorted(range(len(lengths)), key=lambda m: lengths[m])[-max(3, len(lengths) // 2) :]
    part = values[:, order]
    if len(order) < 3 or not bool((part > 0).all()):
        return None
    return over_seeds(power_of_length([lengths[m] for m in order], part))
