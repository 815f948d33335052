"""The type checks that all tests run under do refuse: plain types by beartype, shapes by jaxtyping."""

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from attnlimit.numerics.words import counted
from attnlimit.rates.error_curve import ErrorCurve


def test_plain_types_are_checked():
    with pytest.raises(BeartypeCallHintViolation, match="number"):
        counted("3", "task")


def test_shapes_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError, match="error"):
        ErrorCurve((1, 2), torch.zeros(2, 2))
