"""Keys that are always attended to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Which keys every query keeps besides those it samples: its own token, the first `sinks` tokens, the
    `window` tokens up to and including its own position, and the `top` keys of largest score."""

    own: bool = False
    sinks: int = 0
    window: int = 0
    top: int = 0

    def __post_init__(self) -> None:
        for name in ("sinks", "window", "top"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(f"kept.{name} must be a whole number of at least 0, got {value!r}.")

    def mask(self, scores: Float[Tensor, "m n"], positions: Int[Tensor, " m"] | None) -> Bool[Tensor, "m n"]:
        """True where query i keeps key j; `positions` are the queries' own places among the keys."""
        m, n = scores.shape
        place = torch.arange(n, device=scores.device)
        kept = (place < self.sinks).expand(m, n).clone()
        if self.own or self.window:
            if positions is None:
                raise InputError(
                    "Keeping the own token or a window needs the queries' positions among the keys: give positions=."
                )
            back = positions[:, None] - place
            kept |= (back >= 0) & (back < max(self.window, int(self.own)))
        if self.top:
            kept.scatter_(1, scores.topk(min(self.top, n), dim=1).indices, True)
        return kept
