"""Figures of a study of trainings: risks of all tasks, and for each task what happens along training and at other lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnlimit.icl.comparison import Comparison
from attnlimit.report.figures.icl_lengths import lengths_figure
from attnlimit.report.figures.icl_risk import risk_figure
from attnlimit.report.figures.icl_trajectory import trajectory_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def icl_figures(tasks: Sequence[Comparison]) -> dict[str, Figure]:
    found = {"risk": risk_figure(tasks)}
    for place, task in enumerate(tasks):
        runs = {f"{name} attention": run for name, run in task.runs.items()}
        found[f"trajectory-{place}"] = trajectory_figure(runs, task.name)
        if task.any_run.test_lengths:
            found[f"lengths-{place}"] = lengths_figure(
                {f"{task.name}, {name}": run for name, run in runs.items()}
            )
    return found
