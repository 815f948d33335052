"""Error against the number of tokens."""

from __future__ import annotations

import torch

from attnlimit import drawing
from attnlimit.drawing import Figure
from attnlimit.rates import ErrorCurve, Rates
from attnlimit.report.figures.style import BLUE, GREEN, ORANGE, axes

WORDS = {
    "rms": r"rms: $(\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$",
    "mean_rms": r"mean rms: $\mathrm{E}_x(\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$",
    "mean": r"mean: $\mathrm{E}\Vert\Gamma_n-\Gamma\Vert$",
}


@drawing.figure.register(ErrorCurve)
def curve_figure(*curves: ErrorCurve, rates: Rates | None = None, title: str = "") -> Figure:
    """Curves on log-log axes with their 95 % bands, and the asymptotic slopes drawn from the last point backwards."""
    figure, ax = axes()
    curve = curves[0]
    n = torch.tensor(curve.n, dtype=torch.float64)
    for one, colour in zip(curves, (BLUE, ORANGE, GREEN), strict=False):
        ax.plot(n, one.error, "o-", color=colour, markersize=4, label=WORDS.get(one.statistic, one.statistic))
        if one.standard_error is not None:
            half = 1.96 * one.standard_error
            ax.fill_between(n, one.error - half, one.error + half, color=colour, alpha=0.2, linewidth=0)
    if rates is not None and len(curve.n) > 1:
        for name, colour, style in (("rms", BLUE, "--"), ("paper", GREEN, ":")):
            slope = float(getattr(rates, name))
            guide = curve.error[-1] * (n / n[-1]) ** -slope
            words = {"rms": "limit slope of rms", "paper": "published bound"}[name]
            ax.plot(n, guide, style, color=colour, linewidth=1.2, label=f"{words}: $n^{{-{slope:.3f}}}$")
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="error (unit of the outputs)", title=title)
    ax.legend(frameon=False, fontsize=9)
    return figure
