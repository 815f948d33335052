"""Error against the number of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnlimit.exact.curve import Curve
from attnlimit.rates import Rates
from attnlimit.report.style import BLUE, GREEN, ORANGE, axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curve_figure(curve: Curve, rates: Rates | None = None, title: str = "") -> Figure:
    """Both averages on log-log axes, with the asymptotic slopes drawn from the last point backwards."""
    figure, ax = axes()
    n = torch.tensor(curve.n, dtype=torch.float64)
    for errors, spread, colour, label in (
        (
            curve.rms,
            curve.standard_error[0],
            BLUE,
            r"rms: $(\mathrm{E}_x\,\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$",
        ),
        (
            curve.mean_rms,
            curve.standard_error[1],
            ORANGE,
            r"mean rms: $\mathrm{E}_x(\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$",
        ),
    ):
        ax.plot(n, errors, "o-", color=colour, markersize=4, label=label)
        ax.fill_between(
            n, errors - 1.96 * spread, errors + 1.96 * spread, color=colour, alpha=0.2, linewidth=0
        )
    if rates is not None and len(curve.n) > 1:
        for name, colour, style in (("rms", BLUE, "--"), ("paper", GREEN, ":")):
            slope = float(getattr(rates, name))
            guide = curve.rms[-1] * (n / n[-1]) ** -slope
            words = {"rms": "limit slope of rms", "paper": "published bound"}[name]
            ax.plot(n, guide, style, color=colour, linewidth=1.2, label=f"{words}: $n^{{-{slope:.3f}}}$")
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="error (unit of the outputs)", title=title)
    ax.legend(frameon=False, fontsize=9)
    return figure
