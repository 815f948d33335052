"""A path of weights through training on infinite prompts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl.gradient import Problem
from attnlimit.icl.tasks import LinearRegression, Task
from attnlimit.icl.weights import Block, Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Path:
    """Weights, risk and gradient norm at each time (flow) or after each step size × steps (descent)."""

    task: Task
    times: Float[Tensor, " T"]
    U: Float[Tensor, "T D D"]
    V: Float[Tensor, "T D D"]
    risk: Float[Tensor, " T"]
    gradient_norm: Float[Tensor, " T"]
    form: str
    method: str
    stopped: str
    """Why the path ends where it does, in words."""

    @property
    def A(self) -> Float[Tensor, "T d d"]:
        """The upper left block of U."""
        return self.U[:, :-1, :-1]

    @property
    def b(self) -> Float[Tensor, " T"]:
        """The lower right entry of V."""
        return self.V[:, -1, -1]

    @property
    def end(self) -> Weights:
        return Weights(self.U[-1], self.V[-1])

    @property
    def end_block(self) -> Block:
        return Block(self.A[-1], float(self.b[-1]))

    @property
    def conserved(self) -> Float[Tensor, " T"] | None:
        """‖U‖_F² − ‖V‖_F² (‖A‖_F² − b² for the block), which the flow of regression keeps since its model depends on
        products of U and V alone; None for tasks that keep nothing."""
        if not isinstance(self.task, LinearRegression):
            return None
        return self.U.square().sum((-2, -1)) - self.V.square().sum((-2, -1))

    @property
    def drift(self) -> float | None:
        """Largest change of the conserved quantity: for a flow the solver's error, for descent of the order of the step."""
        c = self.conserved
        return None if c is None else float((c - c[0]).abs().max())

    def __repr__(self) -> str:
        drift = "" if self.drift is None else f", conserved to {self.drift:.1e}"
        return (
            f"Path({self.form}, t = 0 … {float(self.times[-1]):.4g}, risk {float(self.risk[0]):.4g} … "
            f"{float(self.risk[-1]):.4g}{drift}; {self.method})"
        )

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("times", "U", "V", "risk", "gradient_norm")}
        return {
            "task": repr(self.task),
            **arrays,
            "conserved": None if self.conserved is None else self.conserved.tolist(),
            "drift": self.drift,
            "form": self.form,
            "method": self.method,
            "stopped": self.stopped,
        }

    def plot(self) -> Figure:
        """Risk, and the distance to the end, along the path."""
        return import_module("attnlimit.report.figures.flow").flow_figure(
            self
        )  # a layer above: found when asked for


def gathered(
    task: Task, problem: Problem, times: list[float], points: list[Tensor], method: str, stopped: str
) -> Path:
    """The path through these flat points."""
    risks, gradients = zip(*(problem.value_and_gradient(point) for point in points), strict=True)
    weights = [problem.weights(point) for point in points]
    return Path(
        task,
        torch.tensor(times, dtype=torch.float64),
        torch.stack([w.U for w in weights]),
        torch.stack([w.V for w in weights]),
        torch.stack(risks),
        torch.stack([gradient.norm() for gradient in gradients]),
        problem.form,
        method,
        stopped,
    )
