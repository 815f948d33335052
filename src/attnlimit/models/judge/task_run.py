"""How a task goes through texts: in windows, in whole documents, in padded batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlimit.inputs import as_count
from attnlimit.models.see.load import input_device
from attnlimit.models.see.progress import Progress
from attnlimit.models.see.text import Document, token_windows

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
    progress: Progress | None

    def windows(self) -> Tensor:
        return token_windows(self.tokenizer, self.documents, self.tokens, most=self.most)

    def first_documents(self) -> list[Document]:
        return self.documents[: None if self.most is None else as_count(self.most, "most")]

    def blocks(self, rows: Tensor, logits: bool = True) -> Iterator[Tensor]:
        """Rows of equal length, a batch at a time, on the model's device."""
        size = as_count(self.batch, "batch")
        if logits:
            vocabulary = int(getattr(self.model.config, "vocab_size", 1))
            size = min(size, max(1, LOGITS_AT_ONCE // (rows.shape[1] * vocabulary)))
        parts = rows.split(size)
        for done, part in enumerate(parts, 1):
            yield part.to(input_device(self.model))
            self._tell(done, len(parts))

    def padded(self, rows: Sequence[list[int]]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """(places of the rows, inputs) of rows of any length, similar ones together, padded on the right."""
        pad = self.tokenizer.pad_token_id
        # without a padding token a classifier cannot tell the last token of a row: one row at a time
        size = 1 if pad is None else as_count(self.batch, "batch")
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        device = input_device(self.model)
        for done, places in enumerate(parts, 1):
            width = max(len(rows[place]) for place in places)
            ids = torch.full((len(places), width), 0 if pad is None else pad)
            mask = torch.zeros_like(ids)
            for row, place in enumerate(places):
                ids[row, : len(rows[place])] = torch.tensor(rows[place])
                mask[row, : len(rows[place])] = 1
            yield (
                torch.tensor(places),
                {"input_ids": ids.to(device), "attention_mask": mask.to(device)},
            )
            self._tell(done, len(parts))

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)
