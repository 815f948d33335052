"""Outputs and gradients against prompt length."""

from __future__ import annotations

import torch

from attnlimit.drawing import Figure, figure
from attnlimit.icl.concentration import Concentration
from attnlimit.report.figures.style import BLACK, COLOURS, axes

WORDS = {
    "output": "output",
    "A": "derivative in A",
    "V": "derivative in V",
    "loss_A": "loss gradient in A",
    "loss_V": "loss gradient in V",
}


@figure.register(Concentration)
def concentration_figure(found: Concentration) -> Figure:
    """Root mean square errors with 95 % intervals; fitted exponents stand in the legend, with their intervals."""
    drawn, ax = axes(7.2, 4.6)
    n = torch.tensor(found.lengths, dtype=torch.float64)
    for colour, (name, errors) in zip(COLOURS, found.errors.items(), strict=False):
        label = WORDS.get(name, name)
        if len(found.lengths) >= 3 and errors.replicates >= 5:
            fit = found.fit(name)
            low, high = fit.interval
            label += f": $L^{{-{fit.exponent:.2f}}}$ ({low:.2f} to {high:.2f})"
            ax.plot(n, fit.predict(found.lengths), "--", color=colour, linewidth=0.9)
        spread = 1.96 * errors.rms_standard_error
        ax.errorbar(n, errors.rms, yerr=spread, fmt="o", color=colour, markersize=4, capsize=3, label=label)
    if found.exact is not None:
        ax.plot(n, found.exact.error, color=BLACK, linewidth=1.2, label="output, exact")
    ax.set(xscale="log", yscale="log", xlabel="prompt length L (tokens)")
    ax.set_ylabel("rms error against the infinite prompt")
    queries = "" if found.query_law == found.prompt_law else f"; queries: {found.query_law}"
    ax.set_title(f"Prompts: {found.prompt_law}{queries}", loc="left", fontsize="small")
    ax.legend(frameon=False, fontsize=9)
    return drawn
