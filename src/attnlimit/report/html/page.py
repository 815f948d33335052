"""One self-contained HTML page from plain data."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from io import BytesIO
from string import Template

from attnlimit.drawing import Figure
from attnlimit.files.records import finite

MOST_ROWS = 2000
"""Of a table in the page; the run's own files hold them all."""
SCRIPTS = ("draw", "table", "view", "grid", "summary", "map", "head", "phase", "heads", "explain", "report")


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    title: str
    image: bytes
    kind: str
    """ "svg+xml" or "png"."""
    caption: str = ""

    @classmethod
    def drawn(cls, title: str, figure: Figure, caption: str = "") -> Picture:
        """A figure of matplotlib."""
        file = BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        return cls(title, file.getvalue(), "svg+xml", caption)


@dataclass(frozen=True)
class Sheet:
    """A table of the page: sortable, long ones cut."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page shows; each part is there if its data are."""

    heading: str = "Report"
    title: str = ""
    eyebrow: str = "attnlimit"
    chips: Sequence[str] = ()
    """Short facts under the heading."""
    summary: Sequence[str] = ()
    """Paragraphs in plain words."""
    heads: Mapping[str, object] | None = None
    """What the map, the slider and the table of heads show (see `analysis`)."""
    explained: Mapping[str, object] | None = None
    """What the text, its tokens and the maps of roles show (see `explain`)."""
    figures: Sequence[Picture] = ()
    tables: Sequence[Sheet] = ()
    methods: Sequence[tuple[str, object]] = ()
    """(term, text) pairs of the foot: methods, seed, versions."""


def page(data: Page) -> str:
    """The page of a run. No text is trusted: all of it is escaped, scripts run only if their hash is the page's own,
    nothing is fetched.

    >>> "<h1>a &lt;b&gt; c</h1>" in page(Page(heading="a <b> c"))
    True
    """
    style, script = _asset("style.css"), "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    main = [f'<p class="lead">{escape(text)}</p>' for text in data.summary]
    main += [_asset("heads.html")] if data.heads else []
    main += [_asset("explain.html")] if data.explained else []
    figures = "".join(_figure(one) for one in data.figures)
    main += [f'<div class="figures">{figures}</div>'] if figures else []
    main += [_table(one) for one in data.tables]
    return Template(_asset("page.html")).substitute(
        # Nothing from anywhere; of scripts and styles only these two.
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        title=escape(data.title or data.heading),
        eyebrow=escape(data.eyebrow),
        heading=escape(data.heading),
        chips="".join(f"<span>{escape(text)}</span>" for text in data.chips),
        main="\n".join(main),
        foot=_foot(data.methods),
        data=_json(data.heads or data.explained or {}),
        style=style,
        script=script,
    )


def _asset(name: str) -> str:
    return files("attnlimit.report.html").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: Mapping[str, object]) -> str:
    """JSON that cannot end its script element; what is not finite becomes null."""
    text = json.dumps(finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _figure(one: Picture) -> str:
    title, caption = escape(one.title), escape(one.caption)
    source = f"data:image/{one.kind};base64,{base64.b64encode(one.image).decode()}"
    return (
        f'<section class="panel"><h2>{title}</h2><figure><img alt="{title}" src="{source}">'
        f"<figcaption>{caption}</figcaption></figure></section>"
    )


def _table(one: Sheet) -> str:
    rows = one.rows
    more = f" Here are the first {MOST_ROWS:,} of {len(rows):,} rows." if len(rows) > MOST_ROWS else ""
    kinds = [
        "" if all(_is_number(row[k]) or row[k] is None for row in rows) else ' class="text"'
        for k in range(len(one.columns))
    ]
    top = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(one.columns, kinds, strict=True)
    )
    shown = (zip(row, kinds, strict=True) for row in rows[:MOST_ROWS])
    cells = ("".join(f"<td{kind}{_cell(value)}</td>" for value, kind in row) for row in shown)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        f'<section class="panel"><div class="title"><h2>{escape(one.title)}</h2>'
        f'<span class="note">Click a column to sort.{more}</span></div><div class="scroll table">'
        f'<table class="sortable"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div></section>'
    )


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ' data-value="">–'
    if _is_number(value):
        return f' data-value="{value!r}">{value:.4g}' if isinstance(value, float) else f">{value}"
    return f">{escape(str(value))}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _foot(methods: Iterable[tuple[str, object]]) -> str:
    rows = "".join(f"<dt>{escape(str(term))}</dt><dd>{escape(str(text))}</dd>" for term, text in methods)
    return f"<h2>How these numbers were got</h2><dl>{rows}</dl>" if rows else ""
