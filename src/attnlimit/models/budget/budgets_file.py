"""The JSON file of budgets, written whole or not at all and read strictly.

Schema "attnlimit.budgets/1": every field is there and no others, numbers are finite, null only where said.

    schema      "attnlimit.budgets/1"
    model       name or path of the model the budgets were made for
    layers      number of attention layers
    heads       number of query heads of each
    rel_error   relative rms error asked for, > 0, or null
    policy      in words, how the budgets were chosen
    scheme      "without replacement": a query draws different keys, and errors are predicted for that
    tokens      context length they were made for, or null
    causal      true if a query sees only keys up to its own position
    seed        of the analysis, or null
    versions    object: package → version
    total       Σ over heads of effective_keys, or null if some are
    share       total over the same sum for full attention, or null
    entries     layers·heads objects, in any order, one per layer and head:
        layer, head      counted from 0
        kept             object {own: bool, sinks, window, top: whole numbers ≥ 0}
        sampled          keys drawn besides the kept ones; 0: only the kept ones; null: full attention
        predicted_error  relative rms error (Σ E‖Γ_n − Γ‖² / Σ‖Γ‖²)^{1/2} over the analysed queries, or null
        effective_keys   distinct keys really attended to, mean over the analysed queries, or null
        visible_keys     keys that full attention would attend to, same mean, or null
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attnlimit.errors import InputError

SCHEMA = "attnlimit.budgets/1"
SCHEME = "without replacement"
T = TypeVar("T")


def read(path: str | Path, build: Callable[[object], T]) -> T:
    """What `build` makes of the file; its refusals come with the file's name."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no budgets file {path}.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path} is not a budgets file: not valid JSON ({problem}).") from problem
    try:
        return build(record)
    except InputError as problem:
        raise InputError(f"{path} is not a usable budgets file: {problem}") from problem


def checked(record: object, names: Sequence[str]) -> dict[str, Any]:
    """The record, if it has the right schema, exactly the named fields, and a list of entries."""
    if not isinstance(record, dict) or "schema" not in record:
        raise InputError('it has no "schema" field. Make budgets with attnlimit budget.')
    if record["schema"] != SCHEMA:
        raise InputError(f"its schema is {record['schema']!r}, but this version reads {SCHEMA!r}.")
    same_fields(record, ["schema", *names], "the file")
    if not isinstance(record["entries"], list):
        raise InputError(f"entries must be a list, got {type(record['entries']).__name__}.")
    return record


def same_fields(record: object, names: Sequence[str], what: str) -> None:
    if not isinstance(record, dict):
        raise InputError(f"{what} must be an object with {', '.join(names)}, got {record!r}.")
    for name in names:
        if name not in record:
            raise InputError(f"{what} lacks {name!r}.")
    unknown = sorted(set(record) - set(names))
    if unknown:
        raise InputError(f"{what} has unknown fields: {', '.join(unknown)}.")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
