"""What the page shows of a study: words, figures and tables of its results, by their type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

from attnlimit.errors import MissingExtra
from attnlimit.numerics.words import counted
from attnlimit.report.figures.study import StudyFigure, study_pictures
from attnlimit.report.html.page import Page, Picture, Sheet
from attnlimit.studies.kind import Cell, Row, kind, plain, short
from attnlimit.studies.view import Findings


def study_page(found: Findings, made: Sequence[StudyFigure] | None = None) -> Page:
    """The page of a study, finished or not; its figures, unless they are `made`, are drawn if there is matplotlib."""
    study, points = found.study, found.points
    if made is None:
        with suppress(MissingExtra):
            made = study_pictures(study.name, points)
    known = kind(study.kind)
    about = [study.about] if study.about else []
    return Page(
        title=f"{study.name}: a study, attnlimit",
        eyebrow="attnlimit sweep",
        heading=study.name,
        chips=[
            known.title,
            counted(len(points), "point"),
            f"{found.done:,} of {found.total:,} tasks",
            f"seed {study.seed}",
        ],
        summary=[*about, _state(found), *known.result.words(points)],
        figures=[Picture.drawn(one.title, one.figure, one.caption) for one in made or ()],
        tables=[shown_table(found)] if points else [],
        methods=_methods(found),
    )


def _state(found: Findings) -> str:
    points = found.points
    done = "All tasks are done" if found.done == found.total else "Not all tasks are done yet"
    failed = f"; {found.failed:,} failed" if found.failed else ""
    if not points:
        return f"{done}{failed}; no point has results yet."
    varies = [f"{short(path)} ({_range(one.varies[path] for one in points)})" for path in points[0].varies]
    what = f", which differ in {' and '.join(varies)}" if varies else ""
    return f"{counted(len(points), 'point')}{what}. {done}{failed}."


def shown_table(found: Findings) -> Sheet:
    """For people: what varies, then what each result shows of itself."""
    rows: list[Row] = []
    for point in found.points:
        varies = {short(path): value for path, value in point.varies.items()}
        rows += [
            {**varies, **{k: v for k, v in line.items() if k not in varies}} for line in point.result.shown()
        ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Sheet("All points", columns, [[row.get(name) for name in columns] for row in rows])


def _methods(found: Findings) -> list[tuple[str, object]]:
    study = found.study
    told: dict[str, dict[Cell, None]] = {}
    for point in found.points:
        for term, text in point.result.methods().items():
            told.setdefault(term, {})[text] = None
    methods: list[tuple[str, object]] = [("Study", f"{study.name} ({study.kind})")]
    for term, texts in told.items():
        more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
        methods.append((term, "; ".join(str(text) for text in list(texts)[:3]) + more))
    methods.append(("Seed", f"{study.seed}; each task's own is derived from it and from what it computes"))
    if found.sessions:
        last = found.sessions[-1]
        machine = f"{last.hardware.processor}, {last.hardware.cores} cores; {last.executor}"
        methods.append(("Versions", ", ".join(f"{name} {text}" for name, text in last.versions.items())))
        methods.append(("Machine", machine))
    return methods


def _range(values: Iterable[Cell]) -> str:
    """Numbers by their ends, words by name.

    >>> _range([0.3, 2.0, 1.0]), _range(["map", "mean", "map"])
    ('0.3 to 2', 'map, mean')
    """
    known = list(dict.fromkeys(values))
    numbers = [x for x in known if isinstance(x, int | float) and math.isfinite(x)]
    if len(numbers) == len(known) > 1:
        return f"{min(numbers):g} to {max(numbers):g}"
    return ", ".join(plain(x) for x in known[:6]) + (", …" if len(known) > 6 else "")
