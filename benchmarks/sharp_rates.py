"""Local exponents of exact Gaussian curves to n = 10^12, and of Monte Carlo mean errors, against the sharp exponents."""

from __future__ import annotations

from pathlib import Path

import torch

from attnlimit import Gaussian, Head, curve, exponents, measure_convergence
from attnlimit.report.figures.style import BLUE, GREEN, ORANGE, PURPLE, axes, save
from attnlimit.reproduce.exact import continued
from benchmarks._figures import figure

HORIZONS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0)


def run(quick: bool) -> dict[str, object]:
    horizons = HORIZONS[1::3] if quick else HORIZONS
    sizes = [10**k for k in range(2, 13)]
    rows, law = [], Gaussian(dim=1)
    for H in horizons:
        head, sharp = Head([[H]]), exponents(H)
        sampled = measure_convergence(
            head,
            law,
            [10**3, 10**4] if quick else [10**4, 10**5, 10**6],
            replicates=16,
            queries=512,
            generator=7,
        )
        curves = {name: curve(head, law, sizes, name) for name in ("rms", "mean_rms")}
        rms, mean_rms = (one.local_slopes() for one in curves.values())
        mean, spread = _last_decade(sampled.norms)
        rows.append(
            {
                "horizon": H,
                "local rms at 10^12": float(rms[-1]),
                "local mean_rms at 10^12": float(mean_rms[-1]),
                **{f"{name} continued": continued(one) for name, one in curves.items()},
                "local mean, last decade": mean,
                "95 % interval": [mean - 1.96 * spread, mean + 1.96 * spread],
                **{
                    name: float(getattr(sharp, name))
                    for name in ("paper", "bound", "mean", "mean_rms", "rms")
                },
            }
        )
    gap = max(abs(row[f"{name} continued"] - row[name]) for row in rows for name in ("rms", "mean_rms"))
    above = min(row[f"local {name} at 10^12"] - row["paper"] for row in rows for name in ("rms", "mean_rms"))
    if not quick:
        _plot(rows)
    return {
        "setting": "one-dimensional Gaussian tokens, exact curves from 10² to 10^12",
        "table": rows,
        "figures": [
            figure("largest |exponent continued to n → ∞ − sharp|", gap, "", at_most=0.015),
            figure("least (local exponent − published)", above, "", at_least=0.0),
        ],
    }


def _last_decade(norms: torch.Tensor) -> tuple[float, float]:
    """Exponent between the last two sizes of the mean error, with the delta method's standard error over replicates."""
    mean, count = norms.mean(0), len(norms)
    exponent = torch.log10(mean[-2] / mean[-1])
    deviation = (norms[:, -2] / mean[-2] - norms[:, -1] / mean[-1]).std() / torch.log(torch.tensor(10.0))
    return float(exponent), float(deviation / count**0.5)


def _plot(rows: list[dict[str, object]]) -> None:
    figure_, ax = axes()
    fine = torch.linspace(0.05, 3.2, 200)
    for name, colour in (("rms", BLUE), ("mean_rms", ORANGE), ("mean", GREEN), ("paper", PURPLE)):
        ax.plot(
            fine, [getattr(exponents(float(H)), name) for H in fine], color=colour, label=f"{name}, n → ∞"
        )
    H = [row["horizon"] for row in rows]
    ax.plot(H, [row["local rms at 10^12"] for row in rows], "o", color=BLUE, label="exact rms, local at 10¹²")
    ax.plot(
        H,
        [row["local mean_rms at 10^12"] for row in rows],
        "s",
        color=ORANGE,
        label="exact mean_rms, local at 10¹²",
    )
    mean = [row["local mean, last decade"] for row in rows]
    bars = [(row["95 % interval"][1] - row["95 % interval"][0]) / 2 for row in rows]
    ax.errorbar(H, mean, yerr=bars, fmt="^", color=GREEN, capsize=3, label="Monte Carlo mean, 10⁵ to 10⁶")
    ax.set(xlabel="horizon H", ylabel="exponent of the error", ylim=(0, 0.56))
    ax.legend(frameon=False, fontsize=8)
    save(figure_, Path(__file__).parent / "sharp_rates.png")
