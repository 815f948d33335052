"""Needle tasks for causal language models, made on the spot at any length: what stands somewhere in a long text?"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnlimit.errors import InputError
from attnlimit.inputs import as_count
from attnlimit.models.judge.tasks import Task, TaskRun
from attnlimit.models.see.text import Document, special_tokens, token_ids

WORDS = [
    "anchor", "apple", "basket", "bridge", "button", "candle", "carpet", "castle", "desert", "dragon",
    "engine", "falcon", "feather", "forest", "garden", "glove", "guitar", "hammer", "harbor", "island",
    "jacket", "jungle", "kettle", "kitchen", "ladder", "lemon", "magnet", "mirror", "mountain", "napkin",
    "needle", "ocean", "orange", "pencil", "pepper", "quilt", "rabbit", "river", "rocket", "saddle",
    "silver", "spoon", "stone", "ticket", "tiger", "tunnel", "umbrella", "valley", "velvet", "wagon",
    "whistle", "window",
]  # fmt: skip
UNIT = 64
"""Tokens after which a text without sentences is parted, so that something can stand there."""


@dataclass(frozen=True)
class Puzzle:
    """What stands in the text, what is asked and what is right."""

    placed: Sequence[tuple[float, str]]
    """Sentences with their depths: 0 is where the text begins, 1 where it ends."""
    question: str
    answer: str
    around: Iterator[str] | None = None
    """Endless text to put them in; None: the texts given."""


@dataclass(frozen=True)
class Needle(Task):
    """Share of examples in which every token of the answer is the likeliest, given the prompt and the answer before it.

    An example has exactly the tokens asked for, the answer included. The text around comes from the texts given, again
    and again if they are short, and depths are spread evenly over the examples. `seed` draws words, numbers and text.
    """

    unit, only, enough = "share of right answers", "causal-lm", 32
    seed: int = 0

    @abstractmethod
    def puzzle(self, depth: float, generator: torch.Generator) -> Puzzle:
        """One example, with what is asked for at this depth."""

    def measure(self, run: TaskRun) -> tuple[Tensor, dict[str, float]]:
        examples = self.examples(run)
        ids = torch.tensor([prompt + answer for prompt, answer in examples])
        lengths = torch.tensor([len(answer) for _, answer in examples])
        most = int(lengths.max())
        likeliest, nats = [], []
        for part in run.blocks(ids):
            logits = run.model(input_ids=part, use_cache=False, logits_to_keep=most + 1).logits
            logits, wanted = logits[:, -most - 1 : -1].float(), part[:, -most:]
            likeliest.append((logits.argmax(-1) == wanted).cpu())
            nats.append(cross_entropy(logits.mT, wanted, reduction="none").double().cpu())
        asked = torch.arange(most) >= most - lengths[:, None]
        extra = {"nats_per_answer_token": float(torch.cat(nats)[asked].mean())}
        return (torch.cat(likeliest) | ~asked).all(1), extra

    def rows(self, run: TaskRun) -> list[list[int]]:
        return [prompt + answer for prompt, answer in self.examples(run)]

    def examples(self, run: TaskRun) -> list[tuple[list[int], list[int]]]:
        """Prompt and answer of every example, in tokens."""
        count = as_count(run.most, "most")
        generator = torch.Generator().manual_seed(self.seed)
        return [self._example(run, (place + 0.5) / count, generator) for place in range(count)]

    def _example(self, run: TaskRun, depth: float, generator: torch.Generator) -> tuple[list[int], list[int]]:
        puzzle, before = self.puzzle(depth, generator), special_tokens(run.tokenizer)[0]
        placed = [(depth, token_ids(run.tokenizer, " " + text)) for depth, text in puzzle.placed]
        prompt = token_ids(run.tokenizer, puzzle.question)
        both = token_ids(run.tokenizer, f"{puzzle.question} {puzzle.answer}")
        # a tokenizer may join the end of the question and the answer: that token belongs to the answer
        same = next((k for k, token in enumerate(prompt) if both[k] != token), len(prompt))
        needed = len(before) + len(both) + sum(len(ids) for _, ids in placed)
        if needed > run.tokens:
            raise InputError(
                f"tokens must be at least {needed} for an example of {self.name}, got {run.tokens}: ask for more."
            )
        sentences = puzzle.around or _sentences(run.documents, generator)
        text = _filler(run.tokenizer, sentences, run.tokens - needed)
        return before + _with_placed(text, placed) + both[:same], both[same:]


@dataclass(frozen=True)
class Several(Needle):
    """Numbers with different names, one of which is asked for."""

    name = "several needles"
    keys: int = 4

    def puzzle(self, depth: float, generator: torch.Generator) -> Puzzle:
        count = as_count(self.keys, "keys")
        others = torch.rand(count - 1, generator=generator)
        words = _drawn(WORDS, count, generator)
        numbers = [_number(generator) for _ in words]
        texts = [f"The {word} number is {number}." for word, number in zip(words, numbers, strict=True)]
        question = f"\n\nQuestion: What is the {words[0]} number?\nAnswer: The {words[0]} number is"
        return Puzzle(list(zip([depth, *others.tolist()], texts, strict=True)), question, numbers[0])


@dataclass(frozen=True)
class Single(Several):
    """One number with a name, somewhere in the text."""

    name = "single needle"
    keys: int = 1


@dataclass(frozen=True)
class Variables(Needle):
    """Chains a = 12345, b = a, … in the text; asked is the way from the end of one to its number, b = a = 12345.

    The text begins with another chain, which the question follows to its number to show how.
    """

    name = "variable tracking"
    chains: int = 2
    steps: int = 2
    """Equations in a chain."""

    def puzzle(self, depth: float, generator: torch.Generator) -> Puzzle:
        chains, steps = as_count(self.chains, "chains"), as_count(self.steps, "steps")
        words = _drawn(WORDS, (chains + 1) * steps, generator)
        shown, asked, *others = (
            [_number(generator), *words[start : start + steps]] for start in range(0, len(words), steps)
        )
        placed = [(0.0, text) for text in _equations(shown)]
        for chain in (asked, *others):
            first = depth if chain is asked else float(torch.rand((), generator=generator))
            for place, text in enumerate(_equations(chain)):
                placed.append((first + (1 - first) * place / steps, text))
        question = f"\n\nAnd so:\n{' = '.join(reversed(shown))}\n{asked[-1]} ="
        return Puzzle(placed, question, " = ".join(reversed(asked[:-1])))


class Common(Needle):
    """A list of words in which one is four in ten, two others are one in ten each, and all the rest are rare."""

    name = "common words"

    def puzzle(self, depth: float, generator: torch.Generator) -> Puzzle:
        first, *rest = _drawn(WORDS, len(WORDS), generator)

        def listed() -> Iterator[str]:
            while True:
                ten = [first] * 4 + rest[:2] + _drawn(rest[2:], 4, generator)
                yield from (f"{word}," for word in _drawn(ten, 10, generator))

        shown = "Words: tea, rice, tea, milk, tea, salt\nMost common word: tea\n\nWords:"
        return Puzzle([(0.0, shown)], "\nMost common word:", first, listed())


NEEDLES: dict[str, type[Needle]] = {
    "single": Single,
    "several": Several,
    "variables": Variables,
    "common": Common,
}


def _equations(chain: Sequence[str]) -> list[str]:
    return [f"{name} = {value}." for value, name in pairwise(chain)]


def _number(generator: torch.Generator) -> str:
    return str(int(torch.randint(10_000, 100_000, (), generator=generator)))


def _drawn(words: Sequence[str], count: int, generator: torch.Generator) -> list[str]:
    """Different words in random order."""
    if count > len(words):
        raise InputError(
            f"A needle task has {len(words)} words for names, got {count} to name: ask for fewer."
        )
    return [words[place] for place in torch.randperm(len(words), generator=generator)[:count].tolist()]


def _sentences(documents: Sequence[Document], generator: torch.Generator) -> Iterator[str]:
    """The sentences of the texts from a random one on, without end."""
    start = int(torch.randint(len(documents), (), generator=generator))
    skipped = float(torch.rand((), generator=generator))
    while True:
        parts = re.split(r"(?<=[.!?])\s+", documents[start % len(documents)].text.strip())
        yield from parts[int(skipped * len(parts)) :]
        start, skipped = start + 1, 0.0


def _filler(tokenizer: Any, sentences: Iterator[str], room: int) -> list[list[int]]:
    """`room` tokens in sentences, the first of them cut."""
    found: list[list[int]] = []
    while room > 0:
        ids = token_ids(tokenizer, " " + next(sentences))
        found += [ids[start : start + UNIT] for start in range(0, len(ids), UNIT)]
        room -= len(ids)
    while room < 0:
        room += len(found[0])
        found[:1] = [found[0][-room:]] if room > 0 else []
    return found


def _with_placed(text: Sequence[list[int]], placed: Sequence[tuple[float, list[int]]]) -> list[int]:
    """The tokens of the text, with others between the sentences that are nearest to their depths."""
    ends = torch.tensor([0, *map(len, text)]).cumsum(0)
    gaps: list[list[int]] = [[] for _ in ends]
    for depth, ids in sorted(placed, key=lambda one: one[0]):
        gaps[int((ends - depth * ends[-1]).abs().argmin())] += ids
    return gaps[0] + [token for part, gap in zip(text, gaps[1:], strict=True) for token in part + gap]
