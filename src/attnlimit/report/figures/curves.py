"""Error against the number of tokens: exact, of single queries, by Monte Carlo, and of outputs and gradients against prompt length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.exact.error import ExactError
from attnlimit.icl.concentration import Concentration
from attnlimit.rates import ErrorCurve, Rates
from attnlimit.report.figures.style import BLACK, BLUE, COLOURS, GREEN, ORANGE, axes, dots, finish
from attnlimit.sampling import Convergence

WORDS = {
    "rms": r"rms: $(\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$",
    "mean_rms": r"mean rms: $\mathrm{E}_x(\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$",
    "mean": r"mean: $\mathrm{E}\Vert\Gamma_n-\Gamma\Vert$",
}
SLOPES = {"rms": ("limit slope of rms", BLUE, "--"), "paper": ("published bound", GREEN, ":")}


@figure.register(ErrorCurve)
def curve_figure(
    *curves: ErrorCurve,
    rates: Rates | None = None,
    slopes: Sequence[str] = ("rms", "paper"),
    title: str = "",
) -> Figure:
    """Curves on log-log axes with their 95 % bands, and asymptotic slopes drawn from the last point backwards."""
    drawn, ax = axes()
    for one, colour in zip(curves, (BLUE, ORANGE, GREEN), strict=False):
        draw_curve(ax, one, colour, WORDS.get(one.statistic, one.statistic))
    n, last = torch.tensor(curves[0].n, dtype=torch.float64), curves[0].error[-1]
    for name in slopes if rates is not None and len(n) > 1 else ():
        slope, (words, colour, style) = float(getattr(rates, name)), SLOPES[name]
        label = f"{words}: $n^{{-{slope:.3f}}}$"
        ax.plot(n, last * (n / n[-1]) ** -slope, style, color=colour, linewidth=1.2, label=label)
    finish(ax, "tokens n", "error (unit of the outputs)", title, log="xy")
    return drawn


def draw_curve(ax: Axes, curve: ErrorCurve, colour: Any, label: str) -> None:
    """A curve with its 95 % band."""
    n, error = torch.tensor(curve.n, dtype=torch.float64), curve.error
    ax.plot(n, error, "o-", color=colour, markersize=4, label=label)
    if curve.standard_error is not None:
        half = 1.96 * curve.standard_error.nan_to_num(0.0, posinf=0.0)
        low = torch.maximum(error - half, error * 1e-3)
        ax.fill_between(n, low, error + half, color=colour, alpha=0.2, linewidth=0)


@figure.register(ExactError)
def exact_error_figure(found: ExactError) -> Figure:
    """A line a query, or for more than six the median and the band that holds eight of ten, on log-log axes."""
    drawn, ax = axes()
    n = torch.tensor(found.n, dtype=torch.float64)
    errors = found.rms.double().cpu().flatten(0, -2)
    if len(errors) <= len(COLOURS):
        for place, (line, colour) in enumerate(zip(errors, COLOURS, strict=False)):
            ax.plot(n, line, "o-", color=colour, markersize=4, label=f"query {place}")
    else:
        low, median, high = errors.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), dim=0)
        ax.plot(n, median, "o-", color=BLUE, markersize=4, label=f"median of {len(errors):,} queries")
        ax.fill_between(n, low, high, color=BLUE, alpha=0.2, linewidth=0, label="10 % to 90 % of them")
    size = r"$(\mathrm{E}\Vert\Gamma_n-\Gamma\Vert^2)^{1/2}$ (unit of the outputs)"
    finish(ax, "tokens n", size, log="xy")
    return drawn


@figure.register(Convergence)
def convergence_figure(result: Convergence, rates: Rates | None = None) -> Figure:
    """The rms error with its 95 % band, and the published exponent."""
    title = f"{result.statistic} error, {result.replicates} replicates"
    return curve_figure(result.curve("rms"), rates=rates, slopes=("paper",), title=title)


QUANTITIES = {
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
        label = QUANTITIES.get(name, name)
        if len(found.lengths) >= 3 and errors.replicates >= 5:
            fit = found.fit(name)
            low, high = fit.interval
            label += f": $L^{{-{fit.exponent:.2f}}}$ ({low:.2f} to {high:.2f})"
            ax.plot(n, fit.predict(found.lengths), "--", color=colour, linewidth=0.9)
        spread = 1.96 * errors.rms_standard_error
        dots(ax, n, errors.rms, spread, "o", colour, label)
    if found.exact is not None:
        ax.plot(n, found.exact.error, color=BLACK, linewidth=1.2, label="output, exact")
    queries = "" if found.query_law == found.prompt_law else f"; queries: {found.query_law}"
    title = f"Prompts: {found.prompt_law}{queries}"
    finish(ax, "prompt length L (tokens)", "rms error against the infinite prompt", title, log="xy")
    return drawn
