"""Figures of a study of trainings: risks of all tasks, and for each task what happens along training and at other lengths."""

from __future__ import annotations

from collections.abc import Sequence

from attnlimit.report.figures.icl_risk import risk_figure
from attnlimit.report.figures.icl_training import lengths_figure, trajectory_figure
from attnlimit.report.figures.study import StudyFigure, pictures
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.icl import Trained, comparisons


@pictures.register(Trained)
def _trainings(first: Trained, name: str, points: Sequence[Point[Trained]]) -> list[StudyFigure]:
    tasks = comparisons(points)
    words = "When training ends, with 95 % intervals over seeds; lines need no training."
    found = [StudyFigure("risk", "Risk against prompt length", words, risk_figure(tasks))]
    for place, task in enumerate(tasks):
        runs = {f"{attention} attention": run for attention, run in task.runs.items()}
        words = "Bands are 95 % intervals over seeds; the flow is that of the infinite prompt from the same start."
        drawn = trajectory_figure(runs, task.name)
        found.append(StudyFigure(f"trajectory-{place}", f"Along training: {task.name}", words, drawn))
        if task.any_run.test_lengths:
            words = "Trained at one length, tested at others; bands are 95 % intervals over seeds."
            title = f"On other prompt lengths: {task.name}"
            found.append(StudyFigure(f"lengths-{place}", title, words, lengths_figure(runs)))
    return found
