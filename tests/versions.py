"""What the oldest supported versions cannot do yet, so that tests of it are skipped there."""

from functools import partial
from importlib.metadata import version

import pytest
from packaging.version import Version


def since(package: str, first: str, what: str) -> None:
    """Skip the test before this version of a package."""
    if Version(version(package)) < Version(first):
        pytest.skip(f"{package} {version(package)}: {what} from {first} on")


need_t5 = partial(since, "transformers", "5.15", "T5 calls the attention interface")
