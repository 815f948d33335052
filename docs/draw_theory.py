"""Draw the figures of docs/theory.md: exact errors, exponents, the phase diagram, hardmax."""

from __future__ import annotations

from pathlib import Path

import torch

import attnlimit as al
from attnlimit.report.figures.phase import phase_figure
from attnlimit.report.figures.style import BLUE, COLOURS, GREEN, ORANGE, PURPLE, axes, save

HERE = Path(__file__).parent
DECADES = [10**k for k in range(13)]


def exact() -> None:
    """E‖Γ_n − Γ‖² for scores of spread s, against the central limit theorem."""
    figure, ax = axes()
    law, head, n = al.Gaussian(dim=1), al.Head([[1.0]]), torch.tensor(DECADES, dtype=torch.float64)
    for s, colour in zip((0.5, 1.0, 2.0, 3.0, 4.0), COLOURS, strict=False):
        ax.plot(n, al.exact_error(head, law, DECADES, [[s]]).rms[0], color=colour, label=f"s = {s:g}")
        limit = (al.clt(head, law, [s]).covariance.flatten() / n).sqrt()
        ax.plot(n, limit.where(limit < 10, torch.nan), ":", color=colour)
    ax.plot([], [], ":", color="0.4", label="central limit theorem")
    ax.set(xscale="log", yscale="log", ylim=(1e-6, 10), xlabel="tokens n")
    ax.set(ylabel="rms error (standard deviations of the tokens)")
    ax.legend(frameon=False, fontsize=9)
    save(figure, HERE / "exact.png")


def rates() -> None:
    """Exponents against the horizon, with local exponents of exact curves at n = 10¹²."""
    figure, ax = axes()
    fine = torch.linspace(0.02, 3.2, 160, dtype=torch.float64)
    known = al.exponents(fine)
    for name, colour, words in (
        ("mean", GREEN, "mean error"),
        ("mean_rms", ORANGE, "mean over queries of the rms"),
        ("rms", BLUE, "rms"),
        ("paper", PURPLE, "published, 1/(2(1 + H²))"),
    ):
        ax.plot(fine, getattr(known, name), "--" if name == "paper" else "-", color=colour, label=words)
    for H in (0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 2.5, 3.0):
        for statistic, colour, mark in (("rms", BLUE, "o"), ("mean_rms", ORANGE, "s")):
            curve = al.curve(al.Head([[H]]), al.Gaussian(dim=1), [10**11, 10**12], statistic)
            ax.plot(H, curve.local_slopes()[-1], mark, color=colour)
    ax.plot([], [], "o", color="0.5", label="exact curves, slope from 10¹¹ to 10¹²")
    ax.set(xlabel="horizon H", ylabel="exponent of 1/n", ylim=(0, 0.55))
    ax.legend(frameon=False, fontsize=9)
    save(figure, HERE / "rates.png")


def phase() -> None:
    """Gaussian scores of standard deviation κ, n keys."""
    kappa, n = torch.linspace(0.25, 7, 40).tolist(), [round(10 ** (k / 4)) for k in range(4, 49)]
    save(phase_figure(al.phase_diagram(al.Gaussian(dim=1), kappa, n)), HERE / "phase.png")


def hardmax() -> None:
    """On a sphere of R⁵: softmax at the best κ, at κ = log n, and hardmax itself, against the hardmax limit."""
    figure, ax = axes()
    head, law, x = al.Head(torch.eye(5, dtype=torch.float64)), al.Sphere(5), torch.eye(1, 5).double()
    n = DECADES[1:10]
    curves = (
        (al.hardmax_gap(head, law, al.Schedule.log(), n, x).rms[0], ORANGE, "s", "κ = log n: about 1/log n"),
        (al.hardmax_error(head, law, n, x).mean_square[0].sqrt(), GREEN, "^", r"hardmax: $n^{-1/4}$"),
        (al.best_kappa(head, law, n, x).rms[0], BLUE, "o", r"best κ: $n^{-1/3}$"),
    )
    for errors, colour, mark, words in curves:
        ax.plot(n, errors, mark + "-", color=colour, markersize=4, label=words)
    ax.set(xscale="log", yscale="log", xlabel="keys n", ylabel="rms distance to the top key (radii)")
    ax.legend(frameon=False, fontsize=9)
    save(figure, HERE / "hardmax.png")


if __name__ == "__main__":
    for draw in (exact, rates, phase, hardmax):
        draw()
