"""What a model is for, as a number: perplexity, masked tokens, retrieval or labels, example by example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils.rnn import pad_sequence

from attnlimit.errors import InputError
from attnlimit.files.records import Recorded
from attnlimit.inputs import as_count
from attnlimit.models.see.load import Loaded, input_device
from attnlimit.models.see.progress import Progress
from attnlimit.models.see.text import Document, frame, special_tokens, token_ids, token_windows


@dataclass(frozen=True, eq=False, repr=False)
class TaskResult(Recorded):
    """A task's metric and the examples it is made of: value = mean of per_example, or exp of it (`logarithmic`)."""

    also = ("value", "examples")
    name: str
    unit: str
    per_example: Float[Tensor, " examples"]
    higher_is_better: bool = True
    logarithmic: bool = False
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return float(self.metric(self.per_example.mean()))

    @property
    def examples(self) -> int:
        return len(self.per_example)

    def metric(self, mean: Tensor) -> Tensor:
        """The metric for a mean over examples."""
        return mean.exp() if self.logarithmic else mean

    def __repr__(self) -> str:
        return f"TaskResult({self.name} {self.value:.4g} ({self.unit}), {self.examples} examples)"


@dataclass(frozen=True)
class Task(ABC):
    """A metric of a model on texts. `per_example` is what each task computes."""

    name: ClassVar[str]
    unit: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    logarithmic: ClassVar[bool] = False
    rows_each: ClassVar[int] = 1
    """Rows of tokens that make an example."""
    enough: ClassVar[int | None] = 64
    """Examples, unless told otherwise; None: all."""
    only: ClassVar[str | None] = None
    """The kind of model that it is for; None: it does not say."""

    def evaluate(self, run: TaskRun) -> TaskResult:
        """The metric, with whatever attention the model has now."""
        with torch.no_grad():
            per_example, extra = self.measure(run)
        return TaskResult(
            self.name, self.unit, per_example.double().cpu(), self.higher_is_better, self.logarithmic, extra
        )

    @abstractmethod
    def measure(self, run: TaskRun) -> tuple[Tensor, dict[str, float]]:
        """One number an example, and further metrics."""

    def rows(self, run: TaskRun) -> list[list[int]]:
        """The tokens that the model reads, example by example."""
        found: list[list[int]] = run.windows().tolist()
        return found


@dataclass(frozen=True)
class OutputTask(Task):
    """A task that goes by one output of the model for every row: an embedding, or the logits of its classes."""

    def measure(self, run: TaskRun) -> tuple[Tensor, dict[str, float]]:
        return self.judged(run, self.outputs(run))

    def outputs(self, run: TaskRun) -> Float[Tensor, "rows d"]:
        """The outputs for the rows of the examples."""
        found = [(places, self.output(run, inputs)) for places, inputs in run.padded(self.rows(run))]
        order, outputs = (torch.cat(part) for part in zip(*found, strict=True))
        return outputs.double().cpu()[order.argsort()]

    @abstractmethod
    def output(self, run: TaskRun, inputs: dict[str, Tensor]) -> Float[Tensor, "batch d"]:
        """The outputs for one batch of rows."""

    @abstractmethod
    def judged(self, run: TaskRun, outputs: Float[Tensor, "rows d"]) -> tuple[Tensor, dict[str, float]]:
        """What `measure` gives, from the outputs."""


class Perplexity(Task):
    """exp of the mean of −log p(token | those before it), over windows of text; an example is a window."""

    name, unit = "perplexity", "exp(nats per token), lower is better"
    higher_is_better, logarithmic = False, True

    def measure(self, run: TaskRun) -> tuple[Tensor, dict[str, float]]:
        return torch.cat([self.nats(run, ids) for ids in run.blocks(run.windows())]), {}

    def nats(self, run: TaskRun, ids: Tensor) -> Float[Tensor, " batch"]:
        """Mean of −log p over each window of a batch."""
        logits = run.model(input_ids=ids, use_cache=False).logits
        return _negative_log(logits[:, :-1], ids[:, 1:])


class Continuation(Perplexity):
    """Perplexity of the second half of each window, the encoder having read the first (encoder-decoder models)."""

    name = "continuation perplexity"

    def nats(self, run: TaskRun, ids: Tensor) -> Float[Tensor, " batch"]:
        before, after = (len(part) for part in special_tokens(run.tokenizer))
        begin, body, end = ids.tensor_split((before, ids.shape[1] - after), 1)
        if body.shape[1] < 2:
            raise InputError(f"tokens must leave two tokens to split, got {run.tokens}: ask for more.")
        half = body.shape[1] // 2
        source, target = torch.cat([begin, body[:, :half], end], 1), body[:, half:].contiguous()
        return _negative_log(run.model(input_ids=source, labels=target, use_cache=False).logits, target)


@dataclass(frozen=True)
class MaskedTokens(Task):
    """Share of masked tokens that the model puts back; an example is a window with 15 % of its tokens masked."""

    name, unit = "masked-token accuracy", "share of masked tokens"
    share: float = 0.15
    seed: int = 0

    def measure(self, run: TaskRun) -> tuple[Tensor, dict[str, float]]:
        mask_token = run.tokenizer.mask_token_id
        if mask_token is None:
            raise InputError(
                "This tokenizer has no mask token, so masked-token accuracy cannot be measured: use another task."
            )
        windows = run.windows()
        places = self.places(windows, *(len(part) for part in special_tokens(run.tokenizer)))
        found = []
        for both in run.blocks(torch.cat([windows, places], 1)):
            ids, place = both[:, : windows.shape[1]], both[:, windows.shape[1] :]
            answer = ids.gather(1, place)
            logits = run.model(input_ids=ids.scatter(1, place, mask_token)).logits
            picked = logits.gather(1, place[:, :, None].expand(-1, -1, logits.shape[-1])).argmax(-1)
            found.append((picked == answer).double().mean(1))
        return torch.cat(found), {}

    def places(self, windows: Tensor, before: int, after: int) -> Tensor:
        """(windows, k): where each window is masked, the same for every run."""
        generator = torch.Generator().manual_seed(self.seed)
        room = windows.shape[1] - before - after
        count = max(1, round(self.share * room))
        rows = [torch.randperm(room, generator=generator)[:count] for _ in range(len(windows))]
        return torch.stack(rows) + before


class Retrieval(OutputTask):
    """Find the other half of the same text among all halves, by cosine of mean-pooled embeddings.

    An example is a document: its two halves look for each other, each among all other halves; ties count against it.
    """

    name, unit = "retrieval accuracy", "share of halves whose nearest half is of the same text"
    rows_each, enough = 2, 32

    def judged(self, run: TaskRun, outputs: Float[Tensor, "rows d"]) -> tuple[Tensor, dict[str, float]]:
        embedded = normalize(outputs, dim=-1)
        likeness = embedded @ embedded.T
        halves = torch.arange(len(embedded))
        mate = halves ^ 1
        others = likeness >= likeness[halves, mate, None]
        others[halves, halves] = others[halves, mate] = False
        rank = 1 + others.sum(1)
        reciprocal = float((1 / rank.double()).mean())
        extra = {"mean_reciprocal_rank": reciprocal, "chance": 1 / (len(halves) - 1)}
        return (rank == 1).double().view(-1, 2).mean(1), extra

    def rows(self, run: TaskRun) -> list[list[int]]:
        """First and second half of every document, each cut to the tokens asked for."""
        found = run.first_documents()
        if len(found) < 2:
            raise InputError(
                f"Retrieval needs at least 2 texts to tell apart, got {len(found)}: give several files, or a .jsonl."
            )
        before, after, room = frame(run.tokenizer, run.tokens)
        halves = []
        for document in found:
            ids = token_ids(run.tokenizer, document.text)
            if len(ids) < 2:
                raise InputError(
                    f"The text {document.title!r} has fewer than 2 tokens: it has no two halves."
                )
            middle = len(ids) // 2
            halves += [before + part[:room] + after for part in (ids[:middle], ids[middle:])]
        return halves

    def output(self, run: TaskRun, inputs: dict[str, Tensor]) -> Float[Tensor, "batch d"]:
        hidden = getattr(run.model(**inputs), "last_hidden_state", None)
        if hidden is None:
            raise InputError(
                f"{type(run.model).__name__} gives no last hidden state to embed a text with: load the model "
                "with task='encoder'."
            )
        mask = inputs["attention_mask"][:, :, None].to(hidden.device)
        pooled: Tensor = (hidden.double() * mask).sum(1) / mask.sum(1)
        return pooled


class Labels(OutputTask):
    """Share of texts that get their own label; needs documents with labels (.jsonl with "label")."""

    name, unit = "label accuracy", "share of texts"
    enough = None

    def output(self, run: TaskRun, inputs: dict[str, Tensor]) -> Float[Tensor, "batch d"]:
        logits: Tensor = run.model(**inputs).logits
        if logits.shape[-1] < 2:
            raise InputError(
                "The model gives a text one score and no choice of labels, so there is no label accuracy."
            )
        return logits

    def judged(self, run: TaskRun, outputs: Float[Tensor, "rows d"]) -> tuple[Tensor, dict[str, float]]:
        wanted = torch.tensor([self._index(run.model.config, one) for one in run.first_documents()])
        return (outputs.argmax(1) == wanted).double(), {}

    def rows(self, run: TaskRun) -> list[list[int]]:
        before, after = special_tokens(run.tokenizer)
        room = max(1, run.tokens - len(before) - len(after))
        texts = [document.text for document in run.first_documents()]
        return [before + token_ids(run.tokenizer, text)[:room] + after for text in texts]

    @staticmethod
    def _index(config: Any, document: Document) -> int:
        names = {str(name): int(index) for name, index in (config.label2id or {}).items()}
        label = document.label
        if label is None:
            raise InputError(
                f'The text {document.title!r} has no label: label accuracy needs a .jsonl with "text" and "label".'
            )
        if isinstance(label, str) and label in names:
            return names[label]
        if isinstance(label, int) and 0 <= label < config.num_labels:
            return label
        raise InputError(
            f"The label {label!r} of {document.title!r} is none of the model's: {', '.join(names)} "
            f"(or a number below {config.num_labels})."
        )


def _negative_log(logits: Tensor, target: Tensor) -> Tensor:
    """(B,): mean of −log p over each row, in float32 at least."""
    wide = logits.float().flatten(0, 1)
    return cross_entropy(wide, target.flatten(), reduction="none").view(target.shape).double().mean(1)


TASKS: dict[str, type[Task]] = {
    "encoder": Retrieval,
    "masked-lm": MaskedTokens,
    "causal-lm": Perplexity,
    "seq2seq": Continuation,
    "classifier": Labels,
}


def task_for(loaded: Loaded) -> Task:
    """The task that fits what the model was made for."""
    if loaded.kind not in TASKS:
        raise InputError(f"There is no task for a model of kind {loaded.kind!r}: one of {', '.join(TASKS)}.")
    return TASKS[loaded.kind]()


LOGITS_AT_ONCE = 2**26
"""Entries of the largest block of logits: 256 MB in float32."""


@dataclass(frozen=True)
class TaskRun:
    """The model, the texts, and how to go through them."""

    model: Any
    tokenizer: Any
    documents: list[Document]
    tokens: int
    most: int | None
    batch: int
    progress: Progress

    def windows(self) -> Tensor:
        return token_windows(self.tokenizer, self.documents, self.tokens, most=self.most)

    def first_documents(self) -> list[Document]:
        return self.documents[: None if self.most is None else as_count(self.most, "most")]

    def blocks(self, rows: Tensor) -> Iterator[Tensor]:
        """Rows of equal length, a batch at a time, on the model's device."""
        vocabulary = int(getattr(self.model.config, "vocab_size", 1))
        most = max(1, LOGITS_AT_ONCE // (rows.shape[1] * vocabulary))
        parts = rows.split(min(as_count(self.batch, "batch"), most))
        for done, part in enumerate(parts, 1):
            yield part.to(input_device(self.model))
            self.progress(done, len(parts))

    def padded(self, rows: Sequence[list[int]]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """(places of the rows, inputs) of rows of any length, similar ones together, padded on the right."""
        pad = self.tokenizer.pad_token_id
        # without a padding token a classifier cannot tell the last token of a row: one row at a time
        size = 1 if pad is None else as_count(self.batch, "batch")
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        device = input_device(self.model)
        for done, places in enumerate(parts, 1):
            some = [torch.tensor(rows[place]) for place in places]
            ids = pad_sequence(some, batch_first=True, padding_value=pad or 0)
            mask = pad_sequence([torch.ones_like(row) for row in some], batch_first=True)
            yield torch.tensor(places), {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            self.progress(done, len(parts))
