"""Every public callable with unfit arguments, one or several at a time: right, or an AttnlimitError in good words; never a raw error, nan, inf or hang.

python tests/doors/table.py --seed 7 --examples 40     # prints the table; leaves with 1 where something is wrong
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from calls import ROOMS, Call

import attnlimit as al
from attnlimit.errors import AttnlimitError

SECONDS = 10.0
WORK = 12
"""So many times as long may a call take until it first says how far it is."""
MEMORY = 4 * 2**30
WORDS = st.sampled_from(["", "a", "nan", "float32", "cuda", "path/that/is/not", "\0", "[/]", "π" * 9, b"x"])
WHOLE = st.sampled_from([0, -1, 1, 2, 3, 10**6, 10**30, -(10**30), 2**63, True, False])
REAL = st.sampled_from([0.5, 1e-300, 1e300, -1.5, 1e6, math.nan, math.inf, -math.inf, 3.0])
SCALARS = WHOLE | REAL
NUMPY_SCALARS = st.sampled_from(
    [np.int64(3), np.float32(0.5), np.bool_(True), np.float64("nan"), np.str_("a")]
)
SHAPES = st.sampled_from(
    [(), (0,), (1,), (2,), (3,), (0, 2), (1, 2), (2, 2), (2, 3), (3, 2), (2, 2, 2), (5, 0), (40,)]
)
DTYPES = st.sampled_from(
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
)
FILLS = st.sampled_from([0.0, 1.0, -1.0, 0.5, math.nan, math.inf, 1e300, 5.0])


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    device = draw(st.sampled_from(["cpu", "cpu", "cpu", "meta"]))
    dtype, fill = draw(DTYPES), draw(FILLS)
    if not dtype.is_floating_point and not math.isfinite(fill):
        fill = 1.0
    if dtype is not torch.float64 and abs(fill) > 10:
        fill = 10.0
    made = torch.full(draw(SHAPES), fill, dtype=dtype, device=device)
    return (
        made.requires_grad_() if draw(st.booleans()) and dtype.is_floating_point and device == "cpu" else made
    )


@st.composite
def arrays(draw: Any) -> np.ndarray:
    kind = draw(st.sampled_from(["f8", "f4", "f2", "i8", "u2", "b", "c16", "U3", "O", "M8[s]"]))
    shape = draw(SHAPES)
    if kind in ("U3", "O", "M8[s]"):
        return np.zeros(shape, dtype=kind)
    fill = draw(FILLS)
    return np.full(shape, fill if math.isfinite(fill) and abs(fill) < 9 else 1.0, dtype=kind)


LISTS = st.sampled_from(
    [[], [[]], [1.0], [0, 5], [1, 2], [2, 1, 1], [-1, 0], [1.5, 2.5], ["a"], ["a", "b"], [None], [math.nan, 1.0], [[1.0, 0.0], [0.0, 1.0]],
     [[1.0], [1.0, 2.0]], [[1.0, math.nan]], (), (1, 2), (1.0, 1.0), range(3), range(1, 3), [10**30], [1e300, 1e300], [[1, 2], [3, 4]], [True, False],
     [torch.zeros(2), torch.zeros(2)], [np.ones(2), np.ones(2)]]
)  # fmt: skip


class Strange:
    """An object that is nothing, and says so badly."""

    def __repr__(self) -> str:
        return "Strange"


OBJECTS = st.deferred(
    lambda: st.sampled_from(
        [None, {}, {"a": 1}, {"name": []}, set(), {1, 2}, Strange(), Strange, lambda *_: None, lambda u: [1.0], iter([1, 2]), 1j, slice(2), Ellipsis,
         Path("nothing/there"), Path("/proc/no"), torch.float32, torch.bfloat16, torch.int64, torch.device("meta"), torch.Generator(), al, sys,
         al.Head([[1.0]]), al.Head([[[1.0, 0.0], [0.0, 1.0]]] * 2), al.Head([[1.0, 0.0], [0.0, 1.0]]).linear(), al.Gaussian(dim=1), al.Gaussian(dim=2), al.StudentT(2, 2.5), al.Laplace(2),
         al.Sphere(2, dtype=torch.float32), al.Empirical([[1.0, 0.0], [0.0, 1.0]]), al.Empirical([[1.0, 0.0], [0.0, 1.0]], weights=[0.2, 0.8]), al.Kept(), al.Kept(own=True), al.Kept(sinks=100),
         al.Sampling(), al.Sampling(draw=al.Coins(), kept=al.Kept(top=1)), al.Different(), al.Independent, al.Schedule.log(), al.Own(), al.Given([[1.0]])]
    )
)  # fmt: skip
UNFIT = SCALARS | NUMPY_SCALARS | WORDS | tensors() | arrays() | LISTS | OBJECTS


def near(value: Any) -> st.SearchStrategy[Any]:
    """What is nearly right: other forms, signs, sizes and shapes of a fit value."""
    if isinstance(value, bool):
        return st.sampled_from([int(value), np.bool_(value), str(value), not value, torch.tensor(value)])
    if isinstance(value, int):
        sizes = [
            0,
            -value,
            value + 1,
            1000 * value,
            10**9,
            10**12,
            10**13,
            value + 0.5,
            float(value),
            np.int32(value),
            torch.tensor(value),
        ]
        return st.sampled_from([*sizes, np.array(value), [value], str(value)])
    if isinstance(value, float):
        sizes = [
            0.0,
            -value,
            1e6 * value,
            1e-6 * value,
            1e150,
            1e-150,
            1.0,
            1,
            np.float32(value),
            torch.tensor(value),
            np.array(value),
        ]
        return st.sampled_from([*sizes, [value], f"{value}"])
    if isinstance(value, str):
        return st.sampled_from([value.upper(), f"{value} ", f"{value}x", [value], Path(value)])
    if isinstance(value, torch.Tensor) or (
        isinstance(value, list | tuple) and value and not isinstance(value[0], str)
    ):
        return st.deferred(lambda: st.builds(_changed, st.just(value), st.sampled_from(sorted(CHANGES))))
    return st.nothing()


CHANGES: dict[str, Any] = {
    "tensor": lambda x: x, "single": lambda x: x.float(), "half": lambda x: x.to(torch.bfloat16), "whole": lambda x: x.long(), "numpy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(), "none": lambda x: x[:0], "one": lambda x: x[:1], "twice": lambda x: torch.cat([x, x]), "stacked": lambda x: x[None],
    "twice stacked": lambda x: torch.stack([x, x]), "reversed": lambda x: x.flip(0), "zero": lambda x: 0 * x, "negative": lambda x: -x, "large": lambda x: 1e6 * x,
    "larger": lambda x: 1e30 * x, "tiny": lambda x: 1e-30 * x, "huge": lambda x: 1e300 * x, "nan": lambda x: math.nan * x, "complex": lambda x: x.to(torch.complex128),
    "wider": lambda x: torch.cat([x, x], -1), "narrower": lambda x: x[..., :1], "flat": lambda x: x.flatten(), "last": lambda x: x[-1], "meta": lambda x: x.to("meta"),
    "halves": lambda x: x + 0.5, "gradient": lambda x: x.clone().requires_grad_(), "many": lambda x: x.repeat(100, *[1] * (x.ndim - 1)), "rows": lambda x: list(x), "pair": lambda x: (x, x),
}  # fmt: skip


def _changed(value: Any, change: str) -> Any:
    try:
        return CHANGES[change](torch.as_tensor(value, dtype=torch.float64))
    except (TypeError, ValueError, RuntimeError, IndexError):
        return [*value, *value]


class Hang(BaseException):
    """A call took longer than it may."""


class AtWork(BaseException):
    """A call that was asked for much work says how far it is."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """So many seconds of work, and six times as many of waiting: other processes do not count as a hang."""

    def stop(*_: object) -> None:
        raise Hang

    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, 6 * seconds),
    )
    before = [signal.signal(sent, stop) for _, sent, _ in timers]
    for timer, _, limit in timers:
        signal.setitimer(timer, limit, 1.0)
    try:
        yield
    finally:
        for (timer, sent, _), old in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(sent, old)


def numbers(value: object, depth: int = 0) -> Iterator[float]:
    """The numbers that a person would read in a result."""
    if isinstance(value, float | np.floating):
        yield float(value)
    elif isinstance(value, torch.Tensor):
        if value.device.type != "meta" and value.is_floating_point():
            yield from (math.nan,) * int(value.isnan().any()) + (math.inf,) * int(value.isinf().any())
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from numbers(one, depth + 1)
    elif isinstance(value, tuple | list) and depth < 4:
        for one in value:
            yield from numbers(one, depth + 1)
    elif is_dataclass(value) and not isinstance(value, type) and depth < 3:
        for one in fields(value):
            yield from numbers(getattr(value, one.name), depth + 1)


def tried(call: Call, arguments: dict[str, Any], seconds: float = SECONDS) -> tuple[str, str]:
    """(right, refused, words, raw, nan or hang; what there is to read)."""
    start = time.process_time()

    def progress(*_: object) -> None:
        if time.process_time() - start > seconds:
            raise AtWork

    told = "progress" in arguments and arguments["progress"] is call.arguments["progress"]
    arguments = {**arguments, "progress": progress} if told else arguments
    try:
        with limited(WORK * seconds if told else seconds):
            found = call.make(**arguments)
            repr(found)
    except AttnlimitError as error:
        text = str(error)
        fine = len(text) > 15 and text.rstrip()[-1] in ".…)" and "\n" not in text and len(text) < 1500
        return ("refused" if fine else "words"), text
    except AtWork:
        return "right", "at work"
    except Hang:
        return "hang", ""
    except RecursionError as error:
        return "raw", f"RecursionError: {error}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            "raw",
            f"{type(error).__name__}: {str(error)[:160]!r} at {where.filename.rpartition('attnlimit/')[2]}:{where.lineno}",
        )
    own = call.record and any(
        not math.isfinite(one) for value in arguments.values() for one in numbers(value)
    )
    bad = [one for one in numbers(found) if math.isnan(one) or (math.isinf(one) and not call.infinite)]
    if own:
        bad = []
    return ("nan", repr(found)[:200]) if bad else ("right", repr(found)[:120])


def with_unfit(
    call: Call, names: tuple[str, ...], seed: int, examples: int, deadline: float
) -> list[dict[str, str]]:
    """Arguments of a fit call replaced by what does not fit, as often as there are examples."""
    found: list[dict[str, str]] = []
    argument = " ".join(names)

    @seeded(zlib.crc32(f"{seed} {call.name} {argument}".encode()))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*(near(call.arguments[name]) | UNFIT for name in names)))
    def one(values: tuple[object, ...]) -> None:
        if time.monotonic() > deadline:
            return
        how, text = tried(call, {**call.arguments, **dict(zip(names, values, strict=True))})
        value = "; ".join(
            f"{value.dtype} {tuple(value.shape)} {value.device} {value!r:.40}"
            if isinstance(value, torch.Tensor)
            else f"{value!r:.90}"
            for value in values
        )
        found.append(
            {
                "call": call.name,
                "argument": argument,
                "value": " ".join(value.split()),
                "how": how,
                "text": text,
            }
        )

    one()
    return found


def rows(
    calls: Iterator[Call], seed: int, examples: int, only: str, deadline: float, share: float, together: int
) -> Iterator[dict[str, str]]:
    """One for each call that was made; of some of the calls where only a share is asked for."""
    for call in calls:
        if only not in call.name or zlib.crc32(f"{call.name} {seed}".encode()) > share * 2**32:
            continue
        if (call.slow and examples < 40) or time.monotonic() > deadline:
            continue
        how, text = tried(call, call.arguments, 300)  # compiles
        nan = how == "nan"  # of what is not known, as is documented
        how = "right" if nan else how
        expected = "refused" if call.refused else "right"
        if how != expected:
            yield {
                "call": call.name,
                "argument": "(fit)",
                "value": "",
                "how": "raw",
                "text": f"a fit call is {how}: {text}",
            }
        found: list[dict[str, str]] = []
        checked = [name for name in call.arguments if name not in call.free]
        for names in combinations(checked, together):
            tries = with_unfit(call, names, seed, examples, deadline)
            found += [{**row, "how": "right"} if nan and row["how"] == "nan" else row for row in tries]
        yield from found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=40, help="unfit values for each argument")
    parser.add_argument("--together", type=int, default=1, help="arguments unfit at once")
    parser.add_argument("--only", default="", help="calls whose name holds this")
    parser.add_argument("--share", type=float, default=1.0, help="of the calls, chosen by the seed")
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop trying after so long")
    parser.add_argument("--out", help="a file for all rows, one JSON object a line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    tally: Counter[str] = Counter()
    wrong: Counter[tuple[str, ...]] = Counter()
    deadline = time.monotonic() + options.seconds
    every: list[str] = []
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        for room in options.rooms.split(","):
            for row in rows(
                ROOMS[room](),
                options.seed,
                options.examples,
                options.only,
                deadline,
                options.share,
                options.together,
            ):
                tally[row["how"]] += 1
                every.append(json.dumps(row))
                if row["how"] not in ("right", "refused"):
                    wrong[row["call"], row["argument"], row["how"], row["value"], row["text"]] += 1
        os.chdir(here)
    if options.out:
        Path(options.out).write_text("\n".join(every))
    for place in sorted(wrong):
        print("  ".join(place))
    print(
        f"{tally.total():,} calls: "
        + ", ".join(f"{tally[how]:,} {how}" for how in ("right", "refused", "raw", "nan", "hang", "words"))
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
