"""Hugging Face models: their attention calls, what each head needs, and attention with fewer keys."""

from attnlimit.errors import MissingExtra

try:
    import pydantic  # noqa: F401
except ImportError as missing:
    raise MissingExtra("Models need pydantic: pip install 'attnlimit[models]'.") from missing

from attnlimit.models.see.find import packaged_bert, packaged_smollm
from attnlimit.models.see.interface import (
    Call,
    Handler,
    LayerInfo,
    Observed,
    attention_layers,
    check_model,
    observe,
)
from attnlimit.models.see.load import Loaded, load

__all__ = [
    "Call",
    "Handler",
    "LayerInfo",
    "Loaded",
    "Observed",
    "attention_layers",
    "check_model",
    "load",
    "observe",
    "packaged_bert",
    "packaged_smollm",
]
