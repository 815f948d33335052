"""Doors: what is public takes what its annotations say, turned into just that, or says what is wrong with it.

`doors(__name__)` ends a package: whatever its `__all__` names checks its arguments from there on. At the first call the
annotations become checks, which then cost some microseconds: numpy's and whole numbers become Python's, sequences
become tuples where tuples are meant, names become dtypes; tensors keep to the shapes of the annotation, letters alike meaning
sizes alike. What an argument means, its range or that it fits another, is checked by a function of `inputs`, named in
the annotation (`Count` is `Annotated[int, as_count]`), or where it is used. Inside a package functions call each other without doors.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, wraps
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from jaxtyping import AbstractArray
from torch import Tensor

from attnlimit.errors import AttnlimitError, InputError, TooLarge
from attnlimit.inputs import as_device, as_number, as_readable, in_64_bits, is_dense, shown

T = TypeVar("T")
NO: Any = object()
"""Said by a check whose kind of thing this is not."""
Sizes = dict[str, tuple[int, str]]
"""What letters in the shapes of a call stand for, and the argument that said so. An object whose methods take tensors of its own sizes says
these in `letters`."""


class Check(NamedTuple):
    """take(value, name, sizes) is the value as it is meant, or NO, or raises where a part of it is wrong."""

    what: str
    take: Callable[[Any, str, Sizes], Any]
    do: str = ""


def doors(package: str) -> None:
    """Whatever `__all__` of the package names has a door from now on."""
    here = sys.modules[package]
    for name in here.__all__:
        thing = getattr(here, name)
        if isinstance(thing, FunctionType | type):
            entered = door(thing)
            for place in (here, sys.modules[thing.__module__]):
                setattr(place, name, entered)


def door(thing: T) -> T:
    """The same function, or class, whose arguments are checked: of a class those of its constructor and public methods."""
    one: Any = thing
    if not isinstance(one, type):
        return _entered(one, sys.modules[one.__module__], skip=0)
    if issubclass(one, Exception) or hasattr(one, "model_fields"):  # pydantic has its own checks
        return thing
    for kind in one.__mro__:
        if kind.__module__.startswith("attnlimit.") and not getattr(kind, "_is_protocol", False):
            _enter_class(kind)
    return thing


def _enter_class(kind: type) -> None:
    made = ("__new__", "__call__") if issubclass(kind, tuple) else ("__init__", "__call__")
    homes = [sys.modules[one.__module__] for one in reversed(kind.__mro__)]
    for name, member in list(vars(kind).items()):
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType) and (name in made or not name.startswith("_")):
            own = isinstance(member, staticmethod) and name != "__new__"
            entered = _entered(function, *homes, skip=0 if own else 1)
            setattr(kind, name, entered if function is member else type(member)(entered))


def _entered(function: Any, *homes: Any, skip: int) -> Any:
    """`skip` arguments, self or the class, are no one's to give; `homes` know the names in the annotations."""
    if hasattr(function, "has_door"):
        return function

    @cache
    def read() -> tuple[list[str], dict[str, Check]]:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        names = {name: value for home in homes for name, value in vars(home).items()}
        return [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD], checks_of(
            parameters, names
        )

    @wraps(function)
    def through(*args: Any, **named: Any) -> Any:
        places, checks = read()
        own = skip and checks and args and not isinstance(args[0], type)
        sizes: Sizes = dict(getattr(args[0], "letters", {})) if own else {}
        given = list(args)
        for place, name in enumerate(places[: len(args) - skip], skip):
            if name in checks:
                given[place] = _taken(checks[name], given[place], name, sizes)
        for name, value in named.items():
            if name in checks:
                named[name] = _taken(checks[name], value, name, sizes)
        try:
            with ExitStack() as stack:
                for context in _settings():
                    stack.enter_context(context)
                found = function(*given, **named)
            if function.__name__ == "__new__" and _has_nan(found):
                raise InputError(f"{type(found).__name__} would hold nan: clean or drop such numbers first.")
            if not skip and _has_nan(found):  # methods may answer nan where they say so
                raise ArithmeticError("nan")
        except (MemoryError, RuntimeError, ArithmeticError) as problem:
            explained = None if isinstance(problem, AttnlimitError) else _explained(function, problem)
            if explained is None:
                raise
            raise explained from problem
        return found

    through.has_door = True  # type: ignore[attr-defined]
    return through


def _settings() -> Iterator[AbstractContextManager[object]]:
    """What of torch's own settings must not be felt inside: numbers in half precision, and tensors without any."""
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            yield torch.autocast(kind, enabled=False)
    if torch.empty(0).is_meta:
        yield torch.device("cpu")


def _explained(function: Any, problem: Exception) -> AttnlimitError | None:
    """Numbers out of range and memory that ends, in words; None for all else."""
    what = function.__qualname__.removesuffix(".__init__")
    told = " ".join(str(problem).split())[:160] or type(problem).__name__
    if torch.is_inference_mode_enabled() and not isinstance(problem, ArithmeticError | MemoryError):
        return InputError(
            f"{what} needs derivatives, which inference mode forbids ({told}): use torch.no_grad() instead."
        )
    numbers = isinstance(problem, ArithmeticError) or "LinAlgError" in type(problem).__name__
    if numbers or "non-finite values" in str(problem):
        why = "some argument is too large or too small for it; use moderate ones."
        return InputError(f"{what} leaves the range of floating point ({told}): {why}")
    if re.search("same dtype|scalar type", str(problem)):
        return InputError(
            f"{what} was given numbers of several dtypes ({told}): convert them to one, e.g. x.double()."
        )
    words = "can't allocate memory|not enough memory|Storage size calculation overflowed|invalid size, possible overflow"
    if not isinstance(problem, MemoryError | torch.OutOfMemoryError) and not re.search(words, str(problem)):
        return None
    size = re.search(r"allocate (\d+) bytes", str(problem))
    much = f" ({int(size[1]):.3g} bytes at once)" if size else ""
    return TooLarge(
        f"{what} needs more memory than there is{much}: use fewer numbers at once, or a larger machine."
    )


def _taken(check: Check, value: object, name: str, sizes: Sizes) -> Any:
    try:
        found = check.take(value, name, sizes)
    except AttnlimitError:
        raise
    except Exception as problem:  # objects of others, whose length, items or comparisons fail
        raise InputError(
            f"{name} must be {check.what}, got {type(value).__name__}, which cannot be read: {problem or type(problem).__name__}."
        ) from problem
    if found is NO:
        raise InputError(f"{name} must be {check.what}, got {shown(value)}.{check.do and ' ' + check.do}")
    return as_readable(found, name)


def _has_nan(found: Any) -> bool:
    """In a result or its fields; classes where nan means something say what in `unknown`."""
    if hasattr(found, "unknown"):
        return False
    inside = found if isinstance(found, tuple) else (found, *getattr(found, "__dict__", {}).values())
    parts = (part for one in inside for part in (one if isinstance(one, tuple) else (one,)))
    return any(
        bool((one != one).any()) if isinstance(one, Tensor) and not one.is_meta else one != one
        for one in parts
        if isinstance(one, Tensor | float)
    )


def checks_of(parameters: Iterable[inspect.Parameter], names: dict[str, Any]) -> dict[str, Check]:
    """From annotations to checks; what may be anything has none."""
    hints: dict[str, Any] = {}
    for one in parameters:
        hint = one.annotation.__forward_arg__ if isinstance(one.annotation, ForwardRef) else one.annotation
        try:
            hint = eval(hint, names) if isinstance(hint, str) else hint
        except NameError:  # known to type checkers alone
            continue
        if one.kind is one.VAR_KEYWORD and get_origin(hint) is Unpack:
            hints.update(get_type_hints(get_args(hint)[0], include_extras=True))
        elif one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and hint is not one.empty:
            hints[one.name] = hint
    checks = {name: check_of(hint) for name, hint in hints.items()}
    return {name: check for name, check in checks.items() if check is not None}


def check_of(hint: Any) -> Check | None:
    """What a type asks of a value; None where that is nothing."""
    origin, inner = get_origin(hint), get_args(hint)
    kind = origin or hint
    if origin is Annotated:
        plain, own = check_of(inner[0]), inner[1]
        if isinstance(own, str) and plain is not None:
            return plain._replace(what=own)
        return Check("", lambda value, name, _: own(value, name)) if inspect.isfunction(own) else plain
    if origin in (Union, UnionType):
        return _union(inner)
    if kind in PLAIN:
        return Check(*PLAIN[kind])
    if kind in MADE:
        return MADE[kind](*inner)
    if not isinstance(kind, type) or kind in (object, Any) or getattr(kind, "_is_protocol", False):
        return None
    return _shaped(hint) if issubclass(kind, AbstractArray) else _instance(kind)


# --- plain kinds --------------------------------------------------------------------------------------


def _whole(value: Any, name: str, _: object) -> Any:
    number = as_number(value)
    if number is None or number - number != 0 or number != int(number):
        return NO
    return in_64_bits(number, name)


def _real(value: Any, *_: object) -> Any:
    number = as_number(value)
    return NO if number is None else float(number)


def _path(value: Any, *_: object) -> Any:
    return Path(value) if isinstance(value, str | os.PathLike) and "\0" not in os.fspath(value) else NO


def _dtype(value: Any, *_: object) -> Any:
    found = getattr(torch, value.removeprefix("torch."), NO) if isinstance(value, str) else value
    return found if isinstance(found, torch.dtype) and found.is_floating_point else NO


def _iterable(value: Any, *_: object) -> Any:
    return value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else NO


WORDS = "a word or text"
PLAIN: dict[Any, tuple[str, Callable[..., Any]] | tuple[str, Callable[..., Any], str]] = {
    int: ("a whole number", _whole),
    float: ("a number", _real),
    bool: ("True or False", lambda value, *_: bool(value) if isinstance(value, bool | np.bool_) else NO),
    str: (WORDS, lambda value, *_: str(value) if isinstance(value, str) else NO),
    NoneType: ("None", lambda value, *_: value if value is None else NO),
    Path: ("a path", _path),
    os.PathLike: ("a path", _path),
    torch.dtype: ("a floating dtype of torch", _dtype, "Such are torch.float64 and torch.float32."),
    torch.device: ("", lambda value, name, _: as_device(value, name)),
    Tensor: ("a tensor", lambda value, *_: value if isinstance(value, Tensor) else NO),
    np.ndarray: ("a numpy array", lambda value, *_: value if isinstance(value, np.ndarray) else NO),
    Iterable: ("an iterable", _iterable),
}
"""A type, its words, and the value as it is meant; whatever else is a class asks for one of it."""

# --- kinds made of others -----------------------------------------------------------------------------


def _one_of(*choices: object) -> Check:
    def take(value: Any, *_: object) -> Any:
        return value if isinstance(value, str | int | NoneType) and value in choices else NO

    return Check(f"one of {', '.join(map(str, choices))}", take)


def _function(given: Any = ..., result: Any = None) -> Check:
    """Whatever is called, with as many arguments as the annotation says."""
    several = [None] * len(given) if isinstance(given, list) else None

    def take(value: Any, *_: object) -> Any:
        if not callable(value):
            return NO
        try:
            if several is not None:
                inspect.signature(value).bind(*several)
        except TypeError:
            return NO
        except ValueError:  # built in, and does not say
            pass
        return value

    many = (
        ""
        if several is None
        else " of one argument"
        if len(several) == 1
        else f" of {len(several)} arguments"
    )
    return Check(f"a function{many}", take)


def _union(members: tuple[Any, ...]) -> Check | None:
    """The first that takes the value as it is, else the first that takes it; names of something come before words."""
    checks = [check for check in map(check_of, members) if check is not None]
    if len(checks) < len(members):
        return None
    checks.sort(key=lambda check: check.what == WORDS)
    named = str in members and any((get_origin(one) or one) in (Path, os.PathLike) for one in members)

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if named and isinstance(value, str):  # stays what it is: a name may be of a path or of something else
            return NO if "\0" in value else value
        wrong: InputError | None = None
        first = NO
        for check in checks:
            try:
                found = check.take(value, name, sizes)
            except InputError as problem:
                wrong = wrong or problem
                continue
            if found is value:
                return value
            first = found if first is NO else first
        if first is NO and wrong is not None:
            raise wrong
        return first

    return Check(_listed(checks), take, " ".join(dict.fromkeys(one.do for one in checks if one.do)))


def _listed(checks: list[Check]) -> str:
    words = list(dict.fromkeys(one.what for one in checks))
    if "a number" in words and "a whole number" in words:
        words.remove("a whole number")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _many(kind: type, *inner: Any) -> Check:
    """Sequences, of things alike or (tuple[A, B]) each of its own."""
    alike = len(inner) < 2 or inner[-1] is Ellipsis
    checks = [check_of(one) for one in inner if one is not Ellipsis] or [None]
    first = checks[0]

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if isinstance(value, np.ndarray | Tensor) and first is not None:
            value = value.tolist() if value.ndim and is_dense(value) else NO
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return NO
        if not alike and len(value) != len(checks):
            raise InputError(f"{name} must have {len(checks)} parts, got {shown(value)}.")
        if alike and kind is tuple and name.isidentifier():
            _bind(name, len(value), name, sizes)
        if alike and first is None:
            return tuple(value) if kind is tuple else value
        found = [
            one if check is None else _taken(check, one, f"{name}[{place}]", sizes)
            for place, (check, one) in enumerate(
                zip(checks * len(value) if alike else checks, value, strict=True)
            )
        ]
        if all(one is other for one, other in zip(found, value, strict=True)) and isinstance(value, kind):
            return value
        return tuple(found) if kind is tuple else found

    what = "a sequence" if first is None or not alike else f"several, each {first.what}"
    return Check(what, take, "" if first is None else first.do)


def _mapping(*inner: Any) -> Check:
    checks = [check_of(one) for one in inner]

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        for key, one in value.items() if isinstance(value, Mapping) else ():
            for check, part in zip(checks, (key, one), strict=False):
                if check is not None:
                    _taken(check, part, f"{name}[{key!r}]", sizes)
        return value if isinstance(value, Mapping) else NO

    return Check("a mapping (dict)", take)


MADE: dict[Any, Callable[..., Check]] = {
    Literal: _one_of,
    Callable: _function,
    Sequence: lambda *inner: _many(Sequence, *inner),
    list: lambda *inner: _many(list, *inner),
    tuple: lambda *inner: _many(tuple, *inner),
    Mapping: _mapping,
    dict: _mapping,
}


def _shaped(hint: Any) -> Check:
    """Float[Tensor, "n d"]: dtype, number of axes and sizes."""
    dims = hint.dim_str.split()
    spread = next((k for k, dim in enumerate(dims) if dim.startswith(("*", "...", "#*"))), None)
    some = isinstance(hint.dtypes, tuple | list)
    dtypes = {f"torch.{name}" for name in hint.dtypes} if some else set()

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if not isinstance(value, Tensor) or not is_dense(value) or (some and str(value.dtype) not in dtypes):
            return NO
        shape = value.shape
        if len(shape) < len(dims) - (spread is not None) or (spread is None and len(shape) > len(dims)):
            return NO
        after = [] if spread is None else dims[spread + 1 :]
        fixed = [
            *zip(dims[:spread], shape, strict=False),
            *zip(after, shape[len(shape) - len(after) :], strict=True),
        ]
        for dim, size in fixed:
            _bind(dim, size, name, sizes)
        return value

    return Check(
        f"a tensor of shape ({', '.join(dims)}){f', {hint.dtype.__name__.lower()}' if some else ''}", take
    )


def _bind(dim: str, size: int, name: str, sizes: Sizes) -> None:
    if dim.startswith(("_", "#")):
        return
    wanted, of = (int(dim), "its annotation") if dim.isdigit() else sizes.setdefault(dim, (size, name))
    if wanted != size:
        raise InputError(f"{name} has {size} entries along {dim!r}, but {of} has {wanted}: they must agree.")


def _instance(kind: type) -> Check:
    name = "torch.Generator" if kind is torch.Generator else kind.__name__
    what = f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
    return Check(what, lambda value, *_: value if isinstance(value, kind) else NO, _recipe(kind))


def _recipe(kind: type) -> str:
    """How to make one."""
    if "made_by" in vars(kind) or not kind.__module__.startswith("attnlimit."):
        return vars(kind).get("made_by", "")
    if inspect.isabstract(kind):
        kinds: list[type] = type.__subclasses__(kind)
        names = (one.__name__ for one in kinds if not inspect.isabstract(one))
        some = ", ".join(name for name in names if not name.startswith("_"))
        return f"Such are {some}." if some else ""
    wanted = [one for one in inspect.signature(kind).parameters.values() if one.default is one.empty]
    return f"Make one with {kind.__name__}({', '.join(one.name for one in wanted if one.kind is not one.VAR_KEYWORD)})."
