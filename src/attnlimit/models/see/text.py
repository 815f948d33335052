"""Texts to run a model on: plain files, standard input, .jsonl, or real Wikipedia articles by default."""

from __future__ import annotations

import json
import stat
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.inputs import as_count
from attnlimit.models.see.wikipedia import wikipedia

MOST_UNKNOWN = 0.8
MOST_BYTES = 10**9
"""Of a text file."""


@dataclass(frozen=True)
class Document:
    """One text, with the title it is known by and the label it should get (for classifiers)."""

    title: str
    text: str
    label: str | int | None = None

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label {self.label!r}"
        return f"Document({self.title!r}, {len(self.text):,} characters{label})"


def texts(sources: str | Path | Sequence[str | Path] | None = None) -> list[str]:
    """The texts of `documents(sources)`."""
    return [document.text for document in documents(sources)]


@door
def documents(sources: str | Path | Sequence[str | Path] | None = None) -> list[Document]:
    """One document for each plain file (UTF-8), for "-" (standard input), and for each line of a .jsonl file
    (field "text", optional "title" and "label"). None: the Wikipedia articles that come inside gensim."""
    if sources is None:
        return [Document(title, text) for title, text in wikipedia()]
    if isinstance(sources, str | Path):
        sources = [sources]
    if not sources:
        raise InputError("No text was given: name at least one file, or leave it out for Wikipedia text.")
    found: list[Document] = []
    for source in sources:
        content = _read(source)
        if str(source).endswith(".jsonl"):
            found += _lines(content, str(source))
        else:
            found.append(Document(Path(source).stem if str(source) != "-" else "standard input", content))
    for document in found:
        if not document.text.strip():
            raise InputError(f"The text {document.title!r} is empty: there is nothing to run the model on.")
    return found


def as_documents(given: Sequence[str | Document]) -> list[Document]:
    """Documents as they are; plain strings get their number as title."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InputError(
            f"texts must be a list of at least one text, got {type(given).__name__}: see attnlimit.models.texts."
        )
    for one in given:
        if not isinstance(one, str | Document) or not (one if isinstance(one, str) else one.text).strip():
            raise InputError(f"Every text must be a string that is not empty, got {one!r:.80}.")
        if not _is_text(one if isinstance(one, str) else one.text):
            raise InputError(
                f"A text holds half of a surrogate pair, which is no character: take it out of {one!r:.80}."
            )
    return [
        Document(f"text {place}", one) if isinstance(one, str) else one for place, one in enumerate(given, 1)
    ]


def _read(source: str | Path) -> str:
    path = Path(source)
    try:
        raw = _bytes(path)
    except FileNotFoundError:
        raise InputError(f"The text file {str(path)!r} does not exist.") from None
    except OSError as problem:
        raise InputError(f"The text file {str(path)!r} cannot be read: {problem.strerror}.") from problem
    if len(raw) > MOST_BYTES:
        raise InputError(
            f"{str(path)!r} holds more than {MOST_BYTES:,} bytes, which is more text than is read at once: give a part of it."
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(
            f"{str(path)!r} is not UTF-8 text (byte {problem.start}): convert it first, e.g. with iconv."
        ) from None


def _bytes(path: Path) -> bytes:
    """Of a file or standard input, a byte too many where there are more than can be taken. Pipes and devices may never end."""
    if str(path) == "-":
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder: name the text files in it one by one.")
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(
            f"{str(path)!r} is no file but a pipe or a device: give a text file, or - for standard input."
        )
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def _is_text(given: object) -> bool:
    """Not half of a surrogate pair, which is no character and cannot be written."""
    try:
        str(given).encode()
    except UnicodeEncodeError:
        return False
    return True


def _lines(content: str, name: str) -> list[Document]:
    found = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as problem:
            why = getattr(problem, "msg", problem)
            raise InputError(f"{name}, line {number}: not JSON that can be read ({why}).") from None
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise InputError(f'{name}, line {number}: needs an object with a string field "text".')
        label = record.get("label")
        if label is not None and (isinstance(label, bool) or not isinstance(label, str | int)):
            raise InputError(
                f'{name}, line {number}: "label" must be a name or a whole number, got {label!r}.'
            )
        found.append(Document(str(record.get("title", f"{name}, line {number}")), record["text"], label))
        if not all(map(_is_text, vars(found[-1]).values())):
            raise InputError(
                f"{name}, line {number}: holds half of a surrogate pair (\\ud800 … \\udfff), which is no text: take it out."
            )
    if not found:
        raise InputError(f'{name} is empty: it needs one JSON object with a field "text" a line.')
    return found


def positions(model: Any) -> int | None:
    """How many positions the model has, if it has a number of them."""
    found = [getattr(model.config, name, None) for name in ("max_position_embeddings", "n_positions")]
    limits = [most for most in found if isinstance(most, int)]
    for name, module in getattr(model, "named_modules", tuple)():
        # RoBERTa and its kin count positions from their padding index on
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min(limits, default=None)


def longest(model: Any, tokens: int) -> int:
    """`tokens`, if the model has that many positions."""
    tokens, most = as_count(tokens, "tokens"), positions(model)
    if most is not None and tokens > most:
        raise InputError(
            f"tokens is {tokens}, but {type(model).__name__} has only {most} positions: ask for at most {most}."
        )
    return tokens


def token_windows(
    tokenizer: Any, given: Sequence[str | Document], tokens: int, *, most: int | None = None
) -> Int[Tensor, "windows tokens"]:
    """Contiguous windows of exactly `tokens` tokens, special tokens included, that do not cross documents.

    The first window of every document comes first, then every second one, and so on, so that the first `most`
    windows are from as many documents as there are.
    """
    tokens = as_count(tokens, "tokens")
    most = None if most is None else as_count(most, "most")
    before, after, room = frame(tokenizer, tokens)
    lengths: list[int] = []
    windows = [
        before + body + after
        for body in islice(_round_robin(tokenizer, as_documents(given), room, lengths), most)
    ]
    if not windows:
        raise InputError(
            f"No text is as long as {tokens} tokens: the longest of {len(lengths)} has {max(lengths) + tokens - room}. "
            "Give longer texts or ask for fewer tokens."
        )
    found = torch.tensor(windows, dtype=torch.int64)
    unknown = getattr(tokenizer, "unk_token_id", None)
    share = 0.0 if unknown is None else float((found == unknown).double().mean())
    if share > MOST_UNKNOWN:
        raise InputError(
            f"The tokenizer knows none of the text: {100 * share:.0f} % of its tokens are {tokenizer.unk_token}. Its "
            "vocabulary is missing (copy tokenizer.json or vocab.txt into the model's folder), or it is of another language."
        )
    return found


def frame(tokenizer: Any, tokens: int) -> tuple[list[int], list[int], int]:
    """The special tokens before and after a text, and how many of `tokens` tokens they leave to it."""
    before, after = special_tokens(tokenizer)
    room = tokens - len(before) - len(after)
    if room < 1:
        raise InputError(
            f"tokens must be above {tokens - room}, the special tokens of this model, got {tokens}."
        )
    return before, after, room


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that the model's tokenizer puts before and after a text."""
    coded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = coded["input_ids"], coded["special_tokens_mask"]
    first = special.index(0) if 0 in special else len(ids)
    last = len(special) - special[::-1].index(0) if 0 in special else len(ids)
    return ids[:first], ids[last:]


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text of any length, special tokens left out."""
    return _coded(tokenizer, text).tolist()


@lru_cache(maxsize=1024)  # a task reads the same texts once for every policy and seed
def _coded(tokenizer: Any, text: str) -> array[int]:
    # verbose=False: windows are cut from it, so that it is longer than the model takes is no cause for a warning.
    return array("q", tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _round_robin(
    tokenizer: Any, found: Sequence[Document], room: int, lengths: list[int]
) -> Iterator[list[int]]:
    coded = []
    for document in found:  # lazily: a few windows need only the first documents
        ids = token_ids(tokenizer, document.text)
        lengths.append(len(ids))
        coded.append(ids)
        if len(ids) >= room:
            yield ids[:room]
    for start in range(room, max(lengths) - room + 1, room):
        yield from (ids[start : start + room] for ids in coded if len(ids) >= start + room)
