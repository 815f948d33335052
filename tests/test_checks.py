"""The type checks that all tests run under do refuse: plain types by beartype, shapes by jaxtyping."""

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from attnlimit.designs.by_query import contributions
from attnlimit.numerics.words import counted


def test_plain_types_are_checked():
    with pytest.raises(BeartypeCallHintViolation, match="number"):
        counted("3", "task")


def test_shapes_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError, match="keys"):
        contributions(torch.zeros(5, 3), torch.zeros(4, 2))
