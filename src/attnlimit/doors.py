"""Doors: what is public takes what its annotations say, turned into just that, or says what is wrong with it.

`@door` stands before a public function or class. At the first call the annotations become checks, which then cost some
microseconds a call: numpy's and whole numbers become Python's, sequences become tuples where tuples are meant, names become
dtypes and devices; arrays keep to the shapes of the annotation, letters alike meaning sizes alike. What an argument
means, its range or that it fits another, is checked where it is used.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
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
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from jaxtyping import AbstractArray
from torch import Tensor

from attnlimit.errors import InputError, TooLarge
from attnlimit.inputs import as_device, shown

T = TypeVar("T")
WORDS = "a word or text"
NO: Any = object()
"""Said by a check whose kind of thing this is not."""
Sizes = dict[str, tuple[int, str]]
"""What letters in the shapes of a call stand for, and the argument that said so."""


class Check(NamedTuple):
    """take(value, name, sizes) is the value as it is meant, or NO, or raises where it is nearly right."""

    what: str
    take: Callable[[Any, str, Sizes], Any]
    do: str = ""


F = TypeVar("F", bound=Callable[..., Any])


def door(thing: T) -> T:
    """The same function, or class, whose arguments are checked: of a class those of its constructor and public methods."""
    one: Any = thing
    if not isinstance(one, type):
        return cast(T, _entered(one, inspect.signature(one)))
    for name, member in list(vars(one).items()):
        if name == "__init__":
            setattr(one, name, _entered(member, inspect.signature(one), 1, one.__module__))
        elif name == "__new__" and issubclass(one, tuple):
            made = _entered(member.__func__, inspect.signature(one), 1, one.__module__)
            setattr(one, name, staticmethod(made))
        elif name.startswith("_") and name != "__call__":
            continue
        elif isinstance(member, classmethod | staticmethod):
            own = int(isinstance(member, classmethod))
            made = _entered(member.__func__, inspect.signature(member.__func__), own)
            setattr(one, name, type(member)(made))
        elif isinstance(member, FunctionType):
            setattr(one, name, _entered(member, inspect.signature(member), 1))
    return thing


def _entered(function: F, signature: inspect.Signature, skip: int = 0, module: str | None = None) -> F:
    """`skip` arguments, self or the class, are no one's to give."""
    checks: dict[str, Check] = {}
    places = [one.name for one in signature.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    if skip and module is None:
        places = places[1:]
    ready = False

    @wraps(function)
    def through(*args: Any, **named: Any) -> Any:
        nonlocal ready
        if not ready:
            checks.update(annotated(signature, module or inspect.unwrap(function).__module__))
            ready = True
        sizes: Sizes = {}
        given = args[skip:]
        taken = [
            _taken(checks[name], value, name, sizes) if name in checks else value
            for name, value in zip(places, given, strict=False)
        ]
        for name, value in named.items():
            if name in checks:
                named[name] = _taken(checks[name], value, name, sizes)
        try:
            return function(*args[:skip], *taken, *given[len(taken) :], **named)
        except (MemoryError, RuntimeError) as problem:
            if not _of_memory(problem):
                raise
            what = getattr(function, "__qualname__", "This").removesuffix(".__init__")
            raise TooLarge(
                f"{what} needs more memory than there is ({_short(problem)}): use fewer numbers at once, or a larger machine."
            ) from problem

    return through  # type: ignore[return-value]


def _taken(check: Check, value: object, name: str, sizes: Sizes) -> Any:
    found = check.take(value, name, sizes)
    if found is NO:
        raise InputError(f"{name} must be {check.what}, got {shown(value)}.{check.do and ' ' + check.do}")
    return found


def _of_memory(problem: BaseException) -> bool:
    return isinstance(problem, MemoryError | torch.OutOfMemoryError) or any(
        words in str(problem)
        for words in ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    )


def _short(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:160] or type(problem).__name__


# --- from annotations to checks -----------------------------------------------------------------------


def annotated(signature: inspect.Signature, module: str) -> dict[str, Check]:
    """The checks of the parameters; those that may be anything have none."""
    names = vars(sys.modules[module])
    found: dict[str, Check] = {}
    for one in signature.parameters.values():
        if one.annotation is one.empty or one.kind is one.VAR_POSITIONAL:
            continue
        hint = _resolved(one.annotation, names)
        if one.kind is one.VAR_KEYWORD:
            options = (
                get_type_hints(get_args(hint)[0], include_extras=True) if get_origin(hint) is Unpack else {}
            )
        else:
            options = {one.name: hint}
        checks = {name: check_of(kind) for name, kind in options.items()}
        found.update({name: check for name, check in checks.items() if check is not None})
    return found


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    try:
        return eval(text, names) if isinstance(text, str) else text
    except NameError:  # known to type checkers alone
        return Any


def check_of(hint: Any) -> Check | None:
    """What a type asks of a value; None where that is nothing."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((_by(one) for one in inner[1:] if inspect.isfunction(one)), check_of(inner[0]))
    if origin is Literal:
        return Check(
            f"one of {', '.join(map(str, inner))}",
            lambda value, name, sizes: value if _among(value, inner) else NO,
        )
    if origin in (Union, UnionType):
        return _union(inner)
    if origin in PLAIN:
        return PLAIN[origin](*inner)
    if hint in PLAIN:
        return PLAIN[hint]()
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return _shaped(hint)
    kind = origin or hint
    if not isinstance(kind, type) or kind in (object, Any) or getattr(kind, "_is_protocol", False):
        return None
    return _instance(kind)


def _by(function: Callable[[Any, str], Any]) -> Check:
    """Annotated[int, as_count]: by a function of `inputs`, which has its own words."""
    return Check("", lambda value, name, sizes: function(value, name))


def _among(value: object, choices: tuple[object, ...]) -> bool:
    return isinstance(value, str | int | NoneType) and value in choices


def _union(members: tuple[Any, ...]) -> Check | None:
    checks = [check_of(one) for one in members]
    if any(check is None for check in checks):
        return None
    known = [check for check in checks if check is not None]
    exact = tuple(one for one in members if one in (int, str, NoneType))
    path = _path() if Path in members or os.PathLike in [get_origin(one) for one in members] else None
    known.sort(key=lambda check: check.what == WORDS)  # names of something first

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if path is not None and isinstance(value, str):
            found = path.take(value, name, sizes)
            return value if str in members else found
        if type(value) in exact and not isinstance(value, str):
            return value
        nearly: InputError | None = None
        for check in known:
            try:
                found = check.take(value, name, sizes)
            except InputError as problem:
                nearly = nearly or problem
            else:
                if found is not NO:
                    return found
        if nearly is not None:
            raise nearly
        return NO

    return Check(_listed(members, known), take, " ".join(dict.fromkeys(one.do for one in known if one.do)))


def _listed(members: tuple[Any, ...], checks: list[Check]) -> str:
    numbers = {Tensor, np.ndarray} <= {one for one in members if isinstance(one, type)}
    spare = {"a tensor", "a numpy array", "a sequence", "a number", "a whole number"} if numbers else set()
    words = dict.fromkeys(one.what for one in checks if one.what not in spare)
    if "a number" in words:
        words.pop("a whole number", None)
    if torch.Generator in members:
        words = {word.replace("a whole number", "a seed (int)"): None for word in words}
    listed = ["numbers (a tensor, an array, a list or one number)"] * numbers + list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"


def _scalar(value: Any) -> Any:
    """A number of numpy's or torch's as Python's."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray | Tensor) and value.ndim == 0):
        return value.item() if not (isinstance(value, Tensor) and value.is_meta) else NO
    return value


def _whole() -> Check:
    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if type(value) is int:
            return value
        value = _scalar(value)
        if isinstance(value, float) and not value.is_integer():
            raise InputError(f"{name} must be a whole number, got {value!r}.")
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else NO

    return Check("a whole number", take)


def _real() -> Check:
    def take(value: Any, name: str, sizes: Sizes) -> Any:
        value = _scalar(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return NO
        if not -1e308 < value < 1e308:
            raise InputError(f"{name} must be a finite number, got {shown(value)}.")
        return float(value)

    return Check("a number", take)


def _truth() -> Check:
    return Check(
        "True or False", lambda value, name, sizes: bool(value) if isinstance(value, bool | np.bool_) else NO
    )


def _words() -> Check:
    return Check(WORDS, lambda value, name, sizes: str(value) if isinstance(value, str) else NO)


def _nothing() -> Check:
    return Check("None", lambda value, name, sizes: None if value is None else NO)


def _path(*_: object) -> Check:
    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if not isinstance(value, str | os.PathLike):
            return NO
        if "\0" in os.fspath(value):
            raise InputError(f"{name} must be the name of a file or folder, got {value!r}.")
        return Path(value)

    return Check("a path", take)


def _dtype() -> Check:
    def take(value: Any, name: str, sizes: Sizes) -> Any:
        found = getattr(torch, value.removeprefix("torch."), NO) if isinstance(value, str) else value
        return found if isinstance(found, torch.dtype) else NO

    return Check("a dtype of torch", take, "Such are torch.float64 and torch.float32.")


def _device() -> Check:
    return Check("", lambda value, name, sizes: as_device(value, name))


def _callable(*_: object) -> Check:
    return Check(
        "a function",
        lambda value, name, sizes: value if callable(value) and not isinstance(value, type) else NO,
    )


def _many(kind: type, *inner: Any) -> Check:
    """Sequences, of things alike or (tuple[A, B]) each of its own."""
    alike = not inner or len(inner) == 1 or inner[-1] is Ellipsis
    checks = [check_of(one) for one in inner if one is not Ellipsis]
    first = checks[0] if checks else None

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if isinstance(value, np.ndarray | Tensor) and first is not None:
            if value.ndim == 0 or (isinstance(value, Tensor) and value.is_meta):
                return NO
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return NO
        if not alike and len(value) != len(checks):
            raise InputError(f"{name} must have {len(checks)} parts, got {shown(value)}.")
        each = [first] * len(value) if alike else checks
        if kind is tuple and alike and name.isidentifier():
            _bind(name, len(value), name, sizes)
        if first is None and alike:
            return tuple(value) if kind is tuple and type(value) is not tuple else value
        found = [
            one if check is None else _taken(check, one, f"{name}[{place}]", sizes)
            for place, (check, one) in enumerate(zip(each, value, strict=True))
        ]
        if isinstance(value, tuple) and all(map(_same, found, value)):
            return value
        return tuple(found) if kind is tuple else found

    what = "a sequence" if first is None or not alike else f"several, each {first.what}"
    return Check(what, take, "" if first is None else first.do)


def _same(one: object, other: object) -> bool:
    return one is other


def _mapping(*inner: Any) -> Check:
    checks = [check_of(one) for one in inner]

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if not isinstance(value, Mapping):
            return NO
        for key, one in value.items():
            for check, part in zip(checks, (key, one), strict=False):
                if check is not None:
                    _taken(check, part, f"{name}[{key!r}]", sizes)
        return value

    return Check("a mapping (dict)", take)


def _iterable(*_: object) -> Check:
    return Check(
        "an iterable",
        lambda value, name, sizes: (
            value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else NO
        ),
    )


def _shaped(hint: Any) -> Check:
    """Float[Tensor, "n d"]: dtype, number of axes and sizes."""
    dims = hint.dim_str.split()
    spread = next((k for k, dim in enumerate(dims) if dim.startswith(("*", "...", "#*"))), None)
    dtypes = (
        frozenset(f"torch.{name}" for name in hint.dtypes) if isinstance(hint.dtypes, tuple | list) else None
    )

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        if not isinstance(value, Tensor) or (dtypes is not None and str(value.dtype) not in dtypes):
            return NO
        shape = value.shape
        if len(shape) < len(dims) - (spread is not None) or (spread is None and len(shape) > len(dims)):
            return NO
        fixed = [*zip(dims[:spread], shape, strict=False)]
        if spread is not None and (after := dims[spread + 1 :]):
            fixed += zip(after, shape[-len(after) :], strict=True)
        for dim, size in fixed:
            _bind(dim, size, name, sizes)
        return value

    what = (
        f"a tensor of shape ({', '.join(dims)}){'' if dtypes is None else f', {hint.dtype.__name__.lower()}'}"
    )
    return Check(what, take)


def _bind(dim: str, size: int, name: str, sizes: Sizes) -> None:
    if dim.startswith(("_", "#")):
        return
    wanted, of = (int(dim), "its annotation") if dim.isdigit() else sizes.setdefault(dim, (size, name))
    if wanted != size:
        raise InputError(f"{name} has {size} entries along {dim!r}, but {of} has {wanted}: they must agree.")


def _instance(kind: type) -> Check:
    name = "torch.Generator" if kind is torch.Generator else kind.__name__
    article = "an" if name[0] in "AEIO" else "a"

    def take(value: Any, name: str, sizes: Sizes) -> Any:
        return value if isinstance(value, kind) else NO

    return Check(f"{article} {name}", take, _recipe(kind))


def _recipe(kind: type) -> str:
    """How to make one."""
    if isinstance(own := vars(kind).get("made_by"), str):
        return own
    if kind.__module__.partition(".")[0] != "attnlimit":
        return ""
    if inspect.isabstract(kind):
        kinds: list[type] = type.__subclasses__(kind)
        some = [
            one.__name__ for one in kinds if not (one.__name__.startswith("_") or inspect.isabstract(one))
        ]
        return f"Such are {', '.join(some)}." if some else ""
    wanted = [one for one in inspect.signature(kind).parameters.values() if one.default is one.empty]
    return f"Make one with {kind.__name__}({', '.join(one.name for one in wanted if one.kind is not one.VAR_KEYWORD)})."


def _tensor() -> Check:
    return Check("a tensor", lambda value, name, sizes: value if isinstance(value, Tensor) else NO)


def _array(*_: object) -> Check:
    return Check("a numpy array", lambda value, name, sizes: value if isinstance(value, np.ndarray) else NO)


PLAIN: dict[Any, Callable[..., Check]] = {
    int: _whole,
    float: _real,
    bool: _truth,
    str: _words,
    NoneType: _nothing,
    Path: _path,
    os.PathLike: _path,
    torch.dtype: _dtype,
    torch.device: _device,
    Tensor: _tensor,
    np.ndarray: _array,
    Callable: _callable,
    Sequence: lambda *inner: _many(list, *inner),
    list: lambda *inner: _many(list, *inner),
    tuple: lambda *inner: _many(tuple, *inner),
    Mapping: _mapping,
    dict: _mapping,
    Iterable: _iterable,
}
