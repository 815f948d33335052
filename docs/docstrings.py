"""For the reference: docstrings as they are written, plain text with formulas, become Markdown that shows them so."""

from __future__ import annotations

import re
from typing import Any

import griffe

MARKS = re.compile(r"([*_<])")
BULLET = re.compile(r"\s*- ")


class PlainText(griffe.Extension):
    """Examples are fenced, lists set apart, and marks that Markdown would take for its own are escaped."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The text as Markdown.

    >>> as_markdown("shape (*heads,) of `a_b`")
    'shape (\\\\*heads,) of `a_b`'
    """
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        example = line.lstrip().startswith((">>>", "..."))
        if example and not fenced:
            lines += ["", "```python"]
            fenced = True
        elif fenced and not line.strip():
            lines.append("```")
            fenced = False
        if fenced or line.startswith("    "):
            lines.append(line)
            continue
        if BULLET.match(line) and lines and lines[-1].strip() and not _in_list(lines):
            lines.append("")
        lines.append(_escaped(line))
    return "\n".join([*lines, "```"] if fenced else lines)


def _in_list(lines: list[str]) -> bool:
    """Whether the paragraph so far belongs to a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if BULLET.match(line):
            return True
    return False


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else MARKS.sub(r"\\\1", part) for part in parts)
