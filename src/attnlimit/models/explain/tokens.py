"""The tokens of a text, where they stand in it, and which of them somebody means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models.analyse.analyze import DEFAULT_TOKENS
from attnlimit.models.explain.result import Tokens
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.text import longest, positions, special_tokens

MOST_TOKENS = 2**16 - 1
AROUND = 20
"""Characters that are shown on both sides of a place."""
SHOWN = 8
"""Places that an error lists."""


def read_tokens(
    loaded: Loaded, text: str, most: int | None
) -> tuple[Int[Tensor, "1 tokens"], Tokens, str, bool]:
    """The text's first tokens between the model's special ones, the text that they stand for, and whether more follows."""
    if loaded.kind == "seq2seq":
        raise ModelNotSupported(
            f"{loaded.name} reads one text and writes another, and its decoder attends to both: what a token reads is "
            "explained within one text. Load its encoder (task='encoder')."
        )
    tokenizer = loaded.need_tokenizer()
    if most is None:
        most = min(DEFAULT_TOKENS, positions(loaded.model) or DEFAULT_TOKENS)
    if most > MOST_TOKENS:
        raise InputError(
            f"An explanation numbers its tokens in two bytes: at most {MOST_TOKENS:,}, got {most:,}."
        )
    before, after = special_tokens(tokenizer)
    room = longest(loaded.model, most) - len(before) - len(after)
    ids, spans = _coded(tokenizer, text)
    if min(room, len(ids)) < 4:
        raise InputError(
            f"The text has {len(ids)} tokens of its own and there is room for {room}: heads cannot be told apart on fewer than "
            "4. Give a longer text, or more tokens."
        )
    cut, ids, spans = len(ids) > room, ids[:room], spans[:room]
    end = max(stop for _, stop in spans)
    names = [tokenizer.convert_ids_to_tokens(part) for part in (before, after)]
    inner = [
        text[start:stop] or str(tokenizer.decode([one]))
        for one, (start, stop) in zip(ids, spans, strict=True)
    ]
    spans = [(0, 0)] * len(before) + spans + [(end, end)] * len(after)
    found = Tokens(
        pieces=(*names[0], *inner, *names[1]),
        start=tuple(start for start, _ in spans),
        end=tuple(stop for _, stop in spans),
        special=(True,) * len(before) + (False,) * len(inner) + (True,) * len(after),
    )
    return torch.tensor([before + ids + after]), found, text[:end], cut


def _coded(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    if getattr(tokenizer, "is_fast", False):
        coded = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        return coded["input_ids"], [(int(a), int(b)) for a, b in coded["offset_mapping"]]
    ids, spans, place = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], [], 0
    for one in ids:  # a tokenizer that does not say where its pieces stand: each is looked for after the last
        piece = str(tokenizer.decode([one])).strip().removeprefix("##")
        at = text.find(piece, place) if piece else -1
        spans.append((at, at + len(piece)) if at >= 0 else (place, place))
        place = spans[-1][1]
    return ids, spans


def find_token(tokens: Tokens, text: str, wanted: str | int, which: int | None = None) -> int:
    """The number of a token: as given, or the last piece of the word's only occurrence, or of its `which`-th (from 1)."""
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if not 0 <= wanted < len(tokens):
            raise InputError(
                f"There is no token {wanted}: the text has {len(tokens)} tokens, counted from 0 to {len(tokens) - 1}."
            )
        return wanted
    if not isinstance(wanted, str) or not wanted.strip():
        raise InputError(f"A token is a word of the text or the number of one, got {wanted!r}.")
    places = _places(tokens, text, wanted.strip())
    if not places:
        raise InputError(_absent(tokens, text, wanted))
    if which is not None and not 1 <= which <= len(places):
        raise InputError(
            f"{wanted!r} occurs {len(places)} times, so there is no occurrence {which}: count from 1 to {len(places)}."
        )
    if which is None and len(places) > 1:
        raise InputError(
            f"{wanted!r} occurs {len(places)} times: {_listed(tokens, text, places)}. Say which (--which 1 for the first), or "
            "the number of the token (--index)."
        )
    return places[0 if which is None else which - 1]


def _places(tokens: Tokens, text: str, word: str) -> list[int]:
    edges = [r"(?<!\w)" if re.match(r"\w", word) else "", r"(?!\w)" if re.search(r"\w$", word) else ""]
    spans = [one.span() for one in re.finditer(edges[0] + re.escape(word) + edges[1], text)]
    bounds = list(zip(tokens.start, tokens.end, strict=True))
    inside = [[k for k, (a, b) in enumerate(bounds) if a < stop and b > start] for start, stop in spans]
    found = [some[-1] for some in inside if some]
    exact = [k for k, piece in enumerate(tokens.pieces) if piece.strip() == word]
    return sorted({*found} or {*exact})


def _listed(tokens: Tokens, text: str, places: Sequence[int]) -> str:
    def shown(k: int) -> str:
        start, end = tokens.start[k], tokens.end[k]
        near = " ".join(text[max(0, start - AROUND) : end + AROUND].split())
        return f"{k} (…{near}…)"

    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return ", ".join(shown(k) for k in places[:SHOWN]) + more


def _absent(tokens: Tokens, text: str, wanted: str) -> str:
    words = sorted({*re.findall(r"\w+", text)} | {one.strip() for one in tokens.pieces})
    lower = {one.lower(): one for one in words}
    near = [lower[one] for one in difflib.get_close_matches(wanted.strip().lower(), list(lower), 3, 0.6)]
    hint = f" Near it: {', '.join(map(repr, near))}." if near else ""
    return (
        f"{wanted!r} is no word of the {len(tokens)} tokens that are read.{hint} Give a word as the text has it, the number "
        "of a token (--index), or read more of the text (--tokens)."
    )
