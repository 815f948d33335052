"""What the tests of this folder share."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def as_users_run() -> Iterator[None]:
    """Without the type checks of the test run, which would refuse a bad word before the message for users does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
