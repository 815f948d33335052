"""Real Wikipedia text without a network: the extract of the English edition that comes inside gensim, as prose.

Only running paragraphs are kept: headings, lists, tables, footnotes, pictures and closing sections are dropped.
"""

from __future__ import annotations

import bz2
import html
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from attnlimit.errors import MissingExtra

FILE = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
LEAST_WORDS = 200
"""Pages with less prose are lists, disambiguations and stubs."""

_DROPPED_TAGS = "ref|math|gallery|timeline|source|syntaxhighlight|code|pre|score|chem|imagemap|table"
_CLOSING = "references|notes|footnotes|citations|sources|bibliography|further reading|external links|see also|works cited"
_TEXT_TEMPLATES = frozenset({"lang", "nowrap", "transl", "transliteration", "nobr", "em", "small", "abbr"})

_comment = re.compile(r"<!--.*?-->", re.S)
_empty_tag = re.compile(rf"<({_DROPPED_TAGS})\b[^<>]*/>", re.I)
_dropped = re.compile(rf"<({_DROPPED_TAGS})\b[^<>]*>.*?</\1\s*>", re.I | re.S)
_tag = re.compile(r"</?[a-zA-Z][^<>]*>")
_closing = re.compile(rf"^==\s*(?:{_CLOSING})\b[^=]*==\s*$", re.I | re.M)
_braces = re.compile(r"\{\{|\}\}|^[ \t:*]*\{\||^[ \t]*\|\}(?!\})", re.M)
_web_link = re.compile(r"\[(?:https?:|ftp:)?//[^\s\]]+\s*([^\[\]]*)\]", re.I)
_link = re.compile(r"\[\[([^\[\]]*)\]\]")
_broken_picture = re.compile(r"\[\[\s*(?:file|image)\s*:.*", re.I)  # a caption with brackets of its own
_not_prose = re.compile(r"^\s*[*#:;|!=\-{}<]|^\s*__\w+__|^\s*$")
_emptied = re.compile(r"\(\s*(?:[,;:–-]\s*)*\)")
_lead = re.compile(r"\(\s*[,;:]+\s*")
_before_mark = re.compile(r"\s+([,.;:!?)])")


@cache
def wikipedia() -> tuple[tuple[str, str], ...]:
    """(title, prose) of every article with at least 200 words of prose, in the order of the extract."""
    with bz2.open(_path()) as stream:
        pages = [page for _, page in ElementTree.iterparse(stream) if page.tag.endswith("}page")]
    articles = []
    for page in pages:
        space = page.tag.removesuffix("page")
        if page.find(f"{space}redirect") is not None or page.findtext(f"{space}ns") != "0":
            continue
        prose = clean(page.findtext(f"{space}revision/{space}text") or "")
        if len(prose.split()) >= LEAST_WORDS:
            articles.append((page.findtext(f"{space}title") or "", prose))
    return tuple(articles)


def _path() -> Path:
    # gensim itself is not imported: it is slow to load, and only its folder is needed.
    found = find_spec("gensim")
    path = Path(getattr(found, "origin", None) or "").parent / "test/test_data" / FILE
    if not path.is_file():
        raise MissingExtra(
            "The default text is the Wikipedia extract that comes inside gensim, which is not installed. "
            "Give a text of your own, or: pip install 'attnlimit[demo]'."
        )
    return path


def clean(markup: str) -> str:
    """The running paragraphs of a page in wiki markup, one paragraph a line.

    >>> clean("'''Albedo''' is [[reflectivity|reflecting power]] of snow and ice.<ref>A book.</ref>{{sfn|X}}\\n\\n== Uses ==\\n* cooling")
    'Albedo is reflecting power of snow and ice.'
    """
    text = _dropped.sub("", _empty_tag.sub("", _comment.sub("", markup)))
    if closing := _closing.search(text):
        text = text[: closing.start()]
    text = _web_link.sub(r"\1", _without_braces(text))
    while (linked := _link.sub(_link_text, text)) != text:
        text = linked
    text = html.unescape(_tag.sub("", _broken_picture.sub("", text))).replace("\xa0", " ")
    text = re.sub(r"'{2,}", "", text)
    lines = (_tidy(line) for line in text.splitlines() if not _not_prose.match(line))
    return "\n".join(line for line in lines if line.count(" ") >= 5)


def _without_braces(text: str) -> str:
    """Templates and tables replaced from the inside out, by what they print where that is known, else by nothing."""
    parts: list[str] = [""]  # text collected at each depth
    openings: list[str] = []
    place = 0
    for mark in _braces.finditer(text):
        parts[-1] += text[place : mark.start()]
        place = mark.end()
        token = mark.group().strip(" \t:*")
        if token in ("{{", "{|"):
            openings.append(token)
            parts.append("")
        elif openings and openings[-1] == ("{{" if token == "}}" else "{|"):
            body = parts.pop()
            parts[-1] += _template_text(body) if openings.pop() == "{{" else ""
    parts[-1] += text[place:]
    return parts[0] if not openings else "".join(parts)


def _template_text(body: str) -> str:
    name, *arguments = (part.strip() for part in _link.sub(_link_text, body).split("|"))
    plain = [argument for argument in arguments if argument and "=" not in argument]
    name = name.lower()
    if name in ("convert", "cvt") and len(plain) > 1:
        return f"{plain[0]} {plain[1]}"
    return plain[-1] if plain and name in _TEXT_TEMPLATES else ""


def _link_text(link: re.Match[str]) -> str:
    target, *rest = link.group(1).split("|")
    if re.match(r"\s*(?:file|image|category|media|wikt|[a-z]{2,3}(?:-[a-z]+)?)\s*:", target, re.I):
        return ""
    return rest[-1] if rest else target.lstrip(":")


def _tidy(line: str) -> str:
    line = re.sub(r"\s+", " ", _lead.sub("(", _emptied.sub("", line)))
    return _before_mark.sub(r"\1", line).replace("( ", "(").strip()
