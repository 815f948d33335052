"""Training on infinite prompts as a figure."""

from __future__ import annotations

import torch

from attnlimit.drawing import Figure, figure
from attnlimit.icl.flow import WeightPath
from attnlimit.icl.solutions import endpoint
from attnlimit.icl.tasks import LinearRegression
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, axes


@figure.register(WeightPath)
def flow_figure(path: WeightPath) -> Figure:
    """Risk and gradient norm against time; for the block form of regression also the distance to the closed-form end."""
    drawn, ax = axes()
    shown = path.times > 0
    t = path.times[shown]
    ax.plot(t, path.risk[shown], color=BLUE, linewidth=2, label="risk with an infinite prompt")
    ax.plot(t, path.gradient_norm[shown], "--", color=ORANGE, label="norm of the risk's gradient")
    if isinstance(path.task, LinearRegression) and path.form.startswith("block"):
        end = endpoint(path.task, float(path.U[0].square().sum() - path.V[0].square().sum()))
        away = torch.hypot(torch.linalg.matrix_norm(path.A - end.A), path.b - end.b)[shown]
        ax.plot(t, away, ":", color=GREEN, linewidth=2, label="distance of (A, b) to the closed-form end")
    if path.drift is not None:
        words = f"largest drift of ‖U‖² − ‖V‖²: {path.drift:.0e}"
        ax.axhline(max(path.drift, 1e-16), color=BLACK, linewidth=0.8, label=words)
    ax.set(xscale="log", yscale="log", xlabel="training time (step size × steps)", ylabel="value")
    ax.set_title(f"{path.task!r}, {path.form}", loc="left", fontsize="medium")
    ax.legend(frameon=False, fontsize=9)
    return drawn
