"""Error against the number of tokens: exact, of single queries, by Monte Carlo, and of outputs and gradients against prompt length."""

from __future__ import annotations

import torch

from attnlimit import drawing
from attnlimit.drawing import Figure, figure
from attnlimit.exact.error import ExactError
from attnlimit.icl.concentration import Concentration
from attnlimit.rates import ErrorCurve, Rates
from attnlimit.report.figures.style import BLACK, BLUE, COLOURS, GREEN, ORANGE, axes, dots
from attnlimit.sampling import Convergence

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


@drawing.figure.register(Convergence)
def convergence_figure(result: Convergence, rates: Rates | None = None) -> Figure:
    """The rms error with 95 % intervals, and the published exponent from the first point on."""
    figure, ax = axes()
    n = torch.tensor(result.n, dtype=torch.float64)
    spread = 1.96 * result.rms_standard_error.nan_to_num(0.0, posinf=0.0)
    label = f"rms over {result.replicates} replicates, 95 % intervals"
    dots(ax, n, result.rms, spread, "o-", BLUE, label)
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
    ax.set(xscale="log", yscale="log", xlabel="prompt length L (tokens)")
    ax.set_ylabel("rms error against the infinite prompt")
    queries = "" if found.query_law == found.prompt_law else f"; queries: {found.query_law}"
    ax.set_title(f"Prompts: {found.prompt_law}{queries}", loc="left", fontsize="small")
    ax.legend(frameon=False, fontsize=9)
    return drawn
