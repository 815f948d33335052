"""What every test runs under: a temporary folder, untouched global state, repeatable examples."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

# virtual machines may name AMX and not have it
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

settings.register_profile(
    "attnlimit", derandomize=True, deadline=None, max_examples=50, print_blob=True, database=None
)
settings.load_profile("attnlimit")

with_shapes = jaxtyping.jaxtyped
AT_FIRST, THEN = 50, 20
"""Calls of a function in a test whose types are checked: all of the first ones, and then one of so many. Inner loops would spend
a third of their time there."""
tests = count()
running = next(tests)


def checked(function: Any = None, *, typechecker: Any = None) -> Any:
    """What jaxtyping's import hook puts on every function: the same checks, but where no annotation has a shape without the scope
    of shapes, which takes most of the time of a call; and not at every call of a loop."""
    if function is None:
        return partial(checked, typechecker=typechecker)
    if not isinstance(function, FunctionType):
        return with_shapes(function, typechecker=typechecker)
    written = function.__annotations__
    known = {name: resolved(hint, function.__globals__) for name, hint in written.items()}
    if "jaxtyping." in repr(known):
        made = with_shapes(function, typechecker=typechecker)
    else:
        function.__annotations__ = known
        made = typechecker(function)
        function.__annotations__ = written
    of, calls = running, 0

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        nonlocal of, calls
        of, calls = running, calls + 1 if of == running else 1
        skipped = (calls > AT_FIRST and calls % THEN) or jaxtyping.config.jaxtyping_disable
        return (function if skipped else made)(*args, **options)

    return called


def resolved(hint: Any, names: dict[str, Any]) -> Any:
    """An annotation as it is meant; anything, where its names are known to type checkers only."""
    holder = FunctionType((lambda: None).__code__, names)
    holder.__annotations__ = {"one": hint}
    try:
        return get_type_hints(holder, include_extras=True)["one"]
    except Exception:
        return Any


jaxtyping.jaxtyped = checked


def pytest_configure(config: pytest.Config) -> None:
    # Without an example database hypothesis still caches constants and character tables on disk.
    home = tempfile.TemporaryDirectory(prefix="attnlimit-hypothesis-")
    set_hypothesis_home_dir(home.name)
    config.add_cleanup(home.cleanup)
    # Converted models, once for all workers, which inherit the variable; never in the home folder.
    if not hasattr(config, "workerinput"):
        cache = tempfile.TemporaryDirectory(prefix="attnlimit-cache-")
        patch = pytest.MonkeyPatch()
        patch.setenv("ATTNLIMIT_CACHE", cache.name)
        config.add_cleanup(patch.undo)
        config.add_cleanup(cache.cleanup)


@dataclass(frozen=True)
class GlobalState:
    """A piece of global state that a test must leave as it found it."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], object]


GLOBAL_STATE = (
    GlobalState("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    GlobalState("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    GlobalState("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    GlobalState(
        "torch's global generator",
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
    GlobalState(
        "numpy's global generator",
        lambda: [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
        lambda state: np.random.set_state(tuple(state)),  # noqa: NPY002
    ),
)
# The random module's own generator is left out: beartype draws from it to choose which item of a list to check.


@pytest.fixture(autouse=True)
def unchanged_global_state() -> Iterator[None]:
    """Fail a test that changes global state, and put the state back for the next one."""
    global running
    running = next(tests)
    before = [state.read() for state in GLOBAL_STATE]
    yield
    changed = []
    for state, value in zip(GLOBAL_STATE, before, strict=True):
        if state.read() != value:
            changed.append(state.name)
            state.restore(value)
    if changed:
        pytest.fail(
            f"the test changed {', '.join(changed)}; pass a generator or dtype instead", pytrace=False
        )


@pytest.fixture(autouse=True)
def temporary_folder() -> Iterator[None]:
    """Run each test in a folder of its own, so that nothing lands in the repository."""
    with tempfile.TemporaryDirectory(prefix="attnlimit-") as folder, contextlib.chdir(folder):
        yield


@pytest.fixture(scope="session")
def smollm() -> Any:
    """The packaged language model, converted by the first worker that asks; not to be changed."""
    pytest.importorskip("transformers")
    filelock = pytest.importorskip("filelock")
    from attnlimit.models import load

    with filelock.FileLock(Path(os.environ["ATTNLIMIT_CACHE"], "smollm2.lock")):
        return load("smollm2")


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
