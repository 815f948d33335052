"""Where the infinite-prompt flow of regression can end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from attnlimit.errors import InputError
from attnlimit.icl.infinite import infinite_risk
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.icl.weights import Block, regression


@dataclass(frozen=True, eq=False)
class StationaryPoint:
    """A point (A, b) where the gradient of the infinite-prompt risk is zero."""

    block: Block
    risk: float
    kind: str
    least_curvature: float
    """Least eigenvalue of the Hessian in (A, b)."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "A": self.block.A.tolist(),
            "b": self.block.b,
            "risk": self.risk,
            "kind": self.kind,
            "least_curvature": self.least_curvature,
        }


def endpoint(task: InContextTask, conserved: float | int = 0.0) -> Block:
    """The zero-risk point with b > 0 on the leaf ‖A‖_F² − b² = c:

        A = Σ⁻¹/b,   b² = (√(c² + 4 tr Σ⁻²) − c)/2,   so b = tr(Σ⁻²)^{1/4} from a balanced start (c = 0).

    It depends on Σ alone, not on the noise, the query law or the law of the task vector.

    >>> from attnlimit.icl import LinearRegression
    >>> endpoint(LinearRegression(16)).b
    2.0
    """
    inverse = torch.linalg.inv(regression(task, "endpoint").cov)
    c = float(conserved)
    if not math.isfinite(c):
        raise InputError(f"conserved must be a finite number, ‖A‖² − b² at the start, got {conserved!r}.")
    total = 4 * float(inverse.square().sum())
    # the root that does not cancel
    root = math.hypot(c, math.sqrt(total))
    b = math.sqrt((root - c) / 2 if c <= 0 else total / (2 * (root + c)))
    return Block(inverse / b, b)


def stationary_points(task: InContextTask, conserved: float | int = 0.0) -> list[StationaryPoint]:
    """All stationary points of R(A, b) on the leaf ‖A‖_F² − b² = c, up to the choice of a direction.

    ∂R/∂A = bΣP(bΣA − I)Σ_q vanishes where bΣA = I, the minima (±A, ±b) of risk 0, or where b = 0. There
    ∂R/∂b = −⟨A, ΣPΣ_q⟩ must vanish too, and R bends down along (ΣPΣ_q, b): strict saddles of risk ½ tr Σ_qP. With c = 0
    this is the origin; with c > 0 all A of norm √c orthogonal to ΣPΣ_q (one is returned); with c < 0 there are none.
    """
    task = regression(task, "stationary_points")
    best = endpoint(task, conserved)
    blocks = [(best, "minimum"), (Block(-best.A, -best.b), "minimum")]
    if conserved >= 0 and not (conserved > 0 and task.dim == 1):
        slope = task.cov @ task.vector_cov @ task.query_cov
        across = torch.zeros_like(slope)
        across[0, -1], across[-1, 0] = (
            slope[-1, 0],
            -slope[0, -1],
        )  # orthogonal to the slope, entry against entry
        if not bool(across.any()):
            across[0, -1] = 1.0
        size = math.sqrt(conserved) / float(torch.linalg.matrix_norm(across))
        blocks.append((Block(size * across, 0.0), "strict saddle"))
    return [_described(task, block, kind) for block, kind in blocks]


def _described(task: LinearRegression, block: Block, kind: str) -> StationaryPoint:
    d = task.dim

    def risk(theta: torch.Tensor) -> torch.Tensor:
        U = torch.nn.functional.pad(theta[:-1].reshape(d, d), (0, 1, 0, 1))
        V = torch.nn.functional.pad(theta[-1:, None], (d, 0, d, 0))
        return infinite_risk(task, U, V)

    theta = torch.cat([block.A.flatten(), block.A.new_tensor([block.b])])
    hessian = torch.autograd.functional.hessian(risk, theta)
    return StationaryPoint(block, float(risk(theta)), kind, float(torch.linalg.eigvalsh(hessian)[0]))
