"""Which keys a query sees, as a rule that is evaluated for a few rows at a time.

A model asks transformers for a mask once per forward pass. `lazy_mask` answers with a rule (causal, window,
padding, cache offsets) instead of an Lq×Lk matrix, so a long text costs O(B·Lk) memory. A model that computes
with its mask gets the matrix after all: the rule turns into one when torch touches it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnlimit.errors import ModelNotSupported

MOST_ENTRIES = 2**28
"""Of a mask that a model wants as a matrix: 1 GB in float32."""
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, position of the query, position of the key) → seen, for index tensors that broadcast."""


def everything(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Every query sees every key."""
    return (query >= 0) | (key >= 0)


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A query sees the keys up to its own position."""
    return key <= query


@dataclass(frozen=True, eq=False)
class RuleMask:
    """A rule, the padding, and where this call's rows and keys lie in the sequence.

    Row i is position i + query_start, key j is position j + key_start; padding (B, positions) is True for real
    tokens. All heads share the rule.
    """

    rule: Rule
    shape: tuple[int, int, int, int]
    padding: Tensor | None = None
    query_start: int = 0
    key_start: int = 0
    one_by_one: bool = False  # rules given by people need not broadcast
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    ndim = 4

    @property
    def plain(self) -> str | None:
        """ "all" or "causal" when one flag of fused attention says it all, else None."""
        if self.padding is not None and not bool(self.padding.all()):
            return None
        name = getattr(self.rule, "__name__", "")
        _, _, rows, keys = self.shape
        if self.alike:
            return "all"
        if name not in ("causal", "causal_mask_function"):
            return None
        if rows == 1 and self.query_start - self.key_start == keys - 1:
            return "all"
        return "causal" if rows == keys and self.query_start == self.key_start else None

    @property
    def alike(self) -> bool:
        """Whether all queries of a text see the same keys."""
        return getattr(self.rule, "__name__", "") in ("everything", "bidirectional_mask_function")

    def seen(self, batch: Tensor, head: Tensor | int, rows: Tensor, keys: Tensor) -> Tensor:
        """bool, in the broadcast shape of batch, rows and keys: True where the query sees the key."""
        batch, rows, keys = (index.to(self.device) for index in (batch, rows, keys))
        query, key = rows + self.query_start, keys + self.key_start
        first = torch.zeros((), dtype=torch.long, device=self.device)
        if self.one_by_one:
            visible = _one_by_one(self.rule, batch, first, query, key)
        else:
            visible = self.rule(batch, first, query, key)
        if self.padding is not None:
            visible = visible & self.padding[batch, key]
        return visible.expand(torch.broadcast_shapes(batch.shape, rows.shape, keys.shape))

    def added(self, batch: Tensor, head: Tensor | int, rows: Tensor, keys: Tensor) -> Tensor | None:
        """What the mask adds to the scores of keys that are seen: nothing."""
        return None

    def dense(self) -> Tensor:
        """(B, 1, Lq, Lk): 0 where seen, the dtype's least number elsewhere, as eager attention wants it."""
        size, _, rows, keys = self.shape
        if size * rows * keys > MOST_ENTRIES:
            raise ModelNotSupported(
                f"The model computes with its attention mask, so the whole matrix of {size} × {rows:,} × {keys:,} entries "
                f"would have to be made (at most {MOST_ENTRIES:,}): run it on shorter texts or smaller batches."
            )
        grid = (torch.arange(size)[:, None, None], torch.arange(rows)[:, None], torch.arange(keys))
        hidden = ~self.seen(grid[0], 0, grid[1], grid[2])
        zeros = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return zeros.masked_fill(hidden, torch.finfo(self.dtype).min)[:, None]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Itself on any device: the rule is evaluated where it was made, and the answer is moved."""
        wanted = [*args, kwargs.get("dtype")]
        if any(isinstance(arg, (torch.dtype, Tensor)) for arg in wanted):
            return self.dense().to(*args, **kwargs)
        return self

    def contiguous(self) -> RuleMask:
        """Itself: generation asks this of masks it made before the forward pass."""
        return self

    def __getattr__(self, name: str) -> Any:
        # What Python itself looks for (copying, pickling) is not asked of a tensor, nor what no tensor has.
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(f"A mask has no attribute {name!r}.")
        return getattr(self.dense(), name)

    def __getitem__(self, index: Any) -> Tensor:
        return self.dense()[index]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args = tuple(arg.dense() if isinstance(arg, cls) else arg for arg in args)
        kwargs = {
            name: value.dense() if isinstance(value, cls) else value for name, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


def _densely(name: str) -> Callable[..., Any]:
    def operator(self: RuleMask, *others: Any) -> Any:
        return getattr(self.dense(), name)(*others)

    return operator


for _name in [
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "neg",
    "invert",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
]:
    setattr(RuleMask, f"__{_name}__", _densely(f"__{_name}__"))


def _one_by_one(rule: Rule, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    # The context lets a rule index a tensor by scalars under vmap, as transformers does for such rules.
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    batch, query, key = torch.broadcast_tensors(batch, query, key)
    with TransformGetItemToIndex():
        flat = torch.vmap(rule, in_dims=(0, None, 0, 0))(
            batch.reshape(-1), head, query.reshape(-1), key.reshape(-1)
        )
    return flat.reshape(query.shape)


@dataclass(frozen=True, eq=False)
class TensorMask:
    """A mask that came as a matrix, broadcastable to (B, Hq, Lq, Lk): bool (True is seen) or added to the scores."""

    matrix: Tensor

    plain = None

    @property
    def alike(self) -> bool:
        """Whether all queries of a text see the same keys."""
        return self.matrix.shape[2] == 1

    def seen(self, batch: Tensor, head: Tensor | int, rows: Tensor, keys: Tensor) -> Tensor:
        """bool, in the broadcast shape of the indices: True where the query sees the key."""
        part = pick(self.matrix, batch, head, rows, keys)
        # Half the least number: some models add two masks, or scores, to the least number itself.
        return part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2

    def added(self, batch: Tensor, head: Tensor | int, rows: Tensor, keys: Tensor) -> Tensor | None:
        """What the mask adds to the scores of keys that are seen, or None for nothing."""
        return None if self.matrix.dtype == torch.bool else pick(self.matrix, batch, head, rows, keys)


Mask: TypeAlias = RuleMask | TensorMask
"""What a query sees, in the form the model gave it."""


def pick(matrix: Tensor, batch: Tensor, head: Tensor | int, rows: Tensor, keys: Tensor) -> Tensor:
    """Entries of a matrix that broadcasts to (B, Hq, Lq, Lk): an axis of length one stands for all."""
    batch, rows, keys = (index.to(matrix.device) for index in (batch, rows, keys))
    sizes = matrix.shape
    return matrix[
        batch if sizes[0] > 1 else torch.zeros_like(batch),
        head if sizes[1] > 1 else torch.zeros_like(torch.as_tensor(head)),
        rows if sizes[2] > 1 else torch.zeros_like(rows),
        keys if sizes[3] > 1 else torch.zeros_like(keys),
    ]


def lazy_mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Rule = causal,
    attention_mask: Any = None,
    **options: Any,
) -> RuleMask:
    """The mask function registered with transformers; the argument names are transformers', as are `options` (dtype,
    device, use_vmap and more that a rule does not need)."""
    if isinstance(attention_mask, RuleMask):  # generation made it before the forward pass
        return attention_mask
    if q_length is None:  # transformers 5.3 gives the places of the queries
        places = options["cache_position"]
        q_length, q_offset, options["device"] = len(places), places[0], places.device
    key_start, device = int(kv_offset), torch.device(options.get("device", "cpu"))
    if attention_mask is not None:
        attention_mask = attention_mask.to(device=device, dtype=torch.bool)
        short = kv_length + key_start - attention_mask.shape[-1]
        if short > 0:  # a cache of fixed size: what is not filled yet is not seen
            attention_mask = torch.nn.functional.pad(attention_mask, (0, short))
    return RuleMask(
        rule=mask_function,
        shape=(batch_size, 1, q_length, kv_length),
        padding=attention_mask,
        query_start=int(q_offset),
        key_start=key_start,
        one_by_one=options.get("use_vmap", False),
        dtype=options.get("dtype", torch.float32),
        device=device,
    )
