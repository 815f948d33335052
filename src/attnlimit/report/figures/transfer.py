"""The infinite-prompt solution on finite prompts, as a figure."""

from __future__ import annotations

import torch

from attnlimit.drawing import Figure, figure
from attnlimit.icl.transfer import Transfer
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, axes


@figure.register(Transfer)
def transfer_figure(found: Transfer) -> Figure:
    """Risk of the infinite-prompt solution against length with 95 % intervals, the floor, and the length needed."""
    drawn, ax = axes(6.8, 4.8)
    n = torch.tensor(found.curve.lengths, dtype=torch.float64)
    spread = 1.96 * found.curve.standard_error
    label = "infinite-prompt solution, nothing trained"
    ax.errorbar(n, found.curve.risk, yerr=spread, fmt="o-", color=BLUE, markersize=4, capsize=2, label=label)
    if bool((found.floor > 0).any()):
        ax.plot(n, found.floor, color=GREEN, label="least risk of any model at this length")
    if found.tuned_risk is not None and found.length is not None:
        words = f"tuned to L = {found.length:,}, nothing trained"
        ax.plot([found.length], [found.tuned_risk], "D", color=ORANGE, label=words)
    ax.axhline(found.zero_risk, color="0.5", linewidth=0.8, linestyle=":", label="predicting 0")
    if found.needed is not None:
        words = f"within {100 * found.rel_error:g} % from L = {found.needed:,} on"
        ax.axvline(found.needed, color=BLACK, linewidth=0.9, linestyle="--", label=words)
    ax.set(xscale="log", yscale="log", xlabel="prompt length L (tokens)", ylabel="risk")
    ax.set_title(repr(found.task), loc="left", fontsize="medium")
    drawn.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return drawn
