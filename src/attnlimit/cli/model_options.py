"""What the commands about models share. Models are an extra, so they are imported when a command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import err

if TYPE_CHECKING:
    from attnlimit.models.judge.intervals import Uncertain
    from attnlimit.models.see.load import Loaded

Model = Annotated[
    str | None,
    typer.Argument(help="Hub id, folder, .gguf file, or packaged: minilm (a BERT, the default), smollm2."),
]
Text = Annotated[
    list[str] | None, typer.Option(help="Text: files, .jsonl or - (default: Wikipedia articles).")
]
Examples = Annotated[
    int | None, typer.Option(help="Examples of the task (default: 32 texts, 64 windows or all labels).")
]
Seeds = Annotated[int, typer.Option(min=1, help="Sampled runs, with seeds 0, 1, ….")]
PerQuery = Annotated[
    bool, typer.Option("--per-query/--shared", help="Keys of each query, or one order for the whole text.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, … or auto: spread over GPUs, memory and disk.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, …")]


def loaded_model(model: str | None, device: str | None, dtype: str | None) -> Loaded:
    """The model that the options name."""
    return al.load("minilm" if model is None else model, device=device, dtype=dtype, note=tell)


def tell(words: str) -> None:
    """A remark beside the results, on standard error."""
    err.print(words)


def with_interval(one: Uncertain, digits: int = 3) -> str:
    """A number and its interval, for tables."""
    return f"{one.value:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"
