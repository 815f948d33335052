"""Models whose attention does not go through transformers' attention interface.

One file per family that is carried over to it; refused.py names those that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from attnlimit.models.see.adapters import big_bird
from attnlimit.models.see.adapters.refused import advice, refuse_by_name

__all__ = ["advice", "attached", "handles", "refuse"]

FAMILIES = (big_bird,)
"""Each has `handles(module)`, `refuse(model)` and `forward(module, attend)`, the module's forward that attends
through `attend`."""


def handles(module: nn.Module) -> bool:
    """Whether an adapter carries this attention module."""
    return any(family.handles(module) for family in FAMILIES)


def refuse(model: nn.Module, on_interface: bool) -> None:
    """Raise ModelNotSupported for what is known not to work, before anything runs."""
    refuse_by_name(model, on_interface)
    for family in FAMILIES:
        family.refuse(model)


@contextmanager
def attached(model: nn.Module, attend: Callable[..., Any]) -> Iterator[None]:
    """While inside, the modules that adapters handle attend through `attend`."""
    with ExitStack() as stack:
        for module in model.modules():
            for family in FAMILIES:
                if family.handles(module):
                    stack.callback(_restore, module, vars(module).get("forward"))
                    module.forward = family.forward(module, attend)
        yield


def _restore(module: nn.Module, before: Any) -> None:
    # A forward of the instance's own is rare (accelerate sets one); without it the class's own is back.
    if before is None:
        del module.forward
    else:
        module.forward = before
