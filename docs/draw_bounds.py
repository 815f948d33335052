"""Draw docs/bounds.png: how the constants of the uniform and the averaged bound grow with the radius of the tokens."""

from __future__ import annotations

from pathlib import Path

import torch

import attnlimit as al
from attnlimit.report.figures.style import BLUE, ORANGE, axes, save

N = 10**8


def main() -> None:
    radii = torch.linspace(0.5, 4.0, 15).tolist()
    eye = torch.eye(3, dtype=torch.float64)
    uniform = [al.bounds.uniform(al.Head(eye), al.Sphere(3, R), 1.0, N, 0.05).constant for R in radii]
    averaged = []
    for R in radii:
        head = al.Head(0.5 / (R**2 / 3) * eye)  # horizon 1/2 whatever the radius
        averaged.append(float(al.bounds.averaged(head, al.Sphere(3, R), N).value) * N**0.5)
    figure, ax = axes()
    ax.plot(radii, uniform, "o-", color=BLUE, label="uniform over a ball of queries")
    ax.plot(radii, averaged, "s-", color=ORANGE, label="averaged over queries, horizon 1/2")
    ax.set(
        yscale="log",
        xlabel="radius R of the tokens",
        ylabel="constant C in error ≤ C/√n (unit of the outputs)",
    )
    ax.legend(frameon=False)
    save(figure, Path(__file__).parent / "bounds.png")


if __name__ == "__main__":
    main()
