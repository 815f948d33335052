"""What the page of an analysis shows of a comparison with other methods."""

from __future__ import annotations

import io
from dataclasses import replace

from attnlimit.errors import MissingExtra
from attnlimit.models.judge.compare import Comparison, Point
from attnlimit.models.judge.intervals import Uncertain
from attnlimit.report.html.page import Page, Picture, Sheet

TITLE = "What people would use instead"
COLUMNS = (
    "method",
    "asked, %",
    "read, %",
    "by key head, %",
    "change",
    "low",
    "high",
    "predicted",
    "from",
    "to",
)


def with_comparison(page: Page, found: Comparison) -> Page:
    """The page with figure and table, and where ours is not below other methods."""
    rows = [_row(*one) for one in found.rows()]
    return replace(
        page,
        figures=[*page.figures, *_drawn(found)],
        tables=[*page.tables, Sheet(f"{TITLE}: change of the answer", COLUMNS, rows)],
        methods=[*page.methods, (TITLE, f"Change of the answer: {found.words}. {found.verdict}")],
    )


def _row(name: str, point: Point, measured: Uncertain) -> list[object]:
    known = point.predicted
    predicted = [None] * 3 if known is None else [known.value, known.low, known.high]
    shares = [
        100 * point.asked,
        100 * point.read,
        None if point.by_key_head is None else 100 * point.by_key_head,
    ]
    return [name, *shares, measured.value, measured.low, measured.high, *predicted]


def _drawn(found: Comparison) -> list[Picture]:
    """Its figure as SVG; none without matplotlib."""
    try:
        drawn = found.plot()
    except MissingExtra:
        return []
    file = io.BytesIO()
    drawn.savefig(file, format="svg", metadata={"Date": None})
    return [
        Picture(TITLE, file.getvalue(), "svg+xml", f"{found.verdict} Change of the answer: {found.words}.")
    ]
