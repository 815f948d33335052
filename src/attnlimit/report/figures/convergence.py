"""Monte Carlo error against the number of tokens."""

from __future__ import annotations

import torch

from attnlimit import drawing
from attnlimit.drawing import Figure
from attnlimit.rates import Rates
from attnlimit.report.figures.style import BLUE, GREEN, axes
from attnlimit.sampling import Convergence


@drawing.figure.register(Convergence)
def convergence_figure(result: Convergence, rates: Rates | None = None) -> Figure:
    """The rms error with 95 % intervals, and the published exponent from the first point on."""
    figure, ax = axes()
    n = torch.tensor(result.n, dtype=torch.float64)
    spread = 1.96 * result.rms_standard_error.nan_to_num(0.0, posinf=0.0)
    label = f"rms over {result.replicates} replicates, 95 % intervals"
    ax.errorbar(n, result.rms, yerr=spread, fmt="o-", color=BLUE, markersize=4, capsize=3, label=label)
    if rates is not None:
        slope = float(rates.paper)
        guide = result.rms[0] * (n / n[0]) ** -slope
        ax.plot(n, guide, ":", color=GREEN, label=f"published bound: $n^{{-{slope:.3f}}}$")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="tokens n",
        ylabel=f"{result.statistic} error (unit of the outputs)",
    )
    ax.legend(frameon=False, fontsize=9)
    return figure
