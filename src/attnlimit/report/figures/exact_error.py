"""Exact errors of single queries against the number of tokens."""

from __future__ import annotations

import torch

from attnlimit import drawing
from attnlimit.drawing import Figure
from attnlimit.exact.error import ExactError
from attnlimit.report.figures.style import BLUE, COLOURS, axes


@drawing.figure.register(ExactError)
def exact_error_figure(found: ExactError) -> Figure:
    """A line a query, or for more than six the median and the band that holds eight of ten, on log-log axes."""
    figure, ax = axes()
    n = torch.tensor(found.n, dtype=torch.float64)
    errors = found.rms.double().cpu().flatten(0, -2)
    if len(errors) <= len(COLOURS):
        for place, (line, colour) in enumerate(zip(errors, COLOURS, strict=False)):
            ax.plot(n, line, "o-", color=colour, markersize=4, label=f"query {place}")
    else:
        low, median, high = errors.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), dim=0)
        ax.plot(n, median, "o-", color=BLUE, markersize=4, label=f"median of {len(errors):,} queries")
        ax.fill_between(n, low, high, color=BLUE, alpha=0.2, linewidth=0, label="10 % to 90 % of them")
    ax.set(xscale="log", yscale="log", xlabel="tokens n")
    ax.set_ylabel(r"$(\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$ (unit of the outputs)")
    if len(errors) > 1:
        ax.legend(frameon=False, fontsize=9)
    return figure
