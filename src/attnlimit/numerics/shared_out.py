"""Compiled loops on all of torch's threads at once, without Python in between, which lets one thread in at a time.

For each kind of arguments a function is made that OpenMP's threads call: it takes the next piece of the rows, and calls the compiled
loop, until none is left. All it needs stands in a list of whole numbers: where it is (the next piece, pieces, rows, whether one went
wrong), and the arrays as numba passes them (no owner, size, bytes of an entry, address, shape, strides).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import compiler_lock
from torch import Tensor

LONG = ir.IntType(64)
NEXT, PIECES, ROWS, WRONG, ARRAYS = range(5)
_made: dict[tuple[object, ...], tuple[int, object]] = {}


def share_out(
    openmp: Any,
    compiled: Callable[..., None],
    count: int,
    workers: int,
    given: Sequence[Tensor | np.ndarray],
) -> None:
    """compiled(start, stop, *given) for as many stretches of the rows as there are workers. Arrays are contiguous."""
    kinds = (compiled, *chain.from_iterable((one.dtype, len(one.shape)) for one in given))
    if kinds not in _made:
        with compiler_lock.global_compiler_lock:
            _made[kinds] = _make(compiled, [_as_array(one) for one in given])
    words = array("q", (0, workers, count, 0, *chain.from_iterable(map(_words, given))))
    openmp.GOMP_parallel(_made[kinds][0], words.buffer_info()[0], workers, 0)
    if words[WRONG]:
        raise MemoryError(f"{compiled.__name__}: there was no room to work in.")


def _as_array(one: Tensor | np.ndarray) -> np.ndarray:
    return one.detach().numpy() if isinstance(one, Tensor) else one


def _words(one: Tensor | np.ndarray) -> tuple[int, ...]:
    if isinstance(one, Tensor):
        size, place, many = one.itemsize, one.data_ptr(), one.numel()
        strides: Sequence[int] = [size * step for step in one.stride()]
    else:
        size, place, many, strides = one.itemsize, one.__array_interface__["data"][0], one.size, one.strides
    return (0, 0, many, size, place, *one.shape, *strides)


def _make(compiled: Any, arrays: list[np.ndarray]) -> tuple[int, object]:
    """Address of the function that threads call, and what keeps it alive."""
    kind_of: Any = numba.typeof
    types = tuple(kind_of(one) for one in (0, 0, *arrays))
    compiled.compile(types)
    loop = compiled.overloads[types]
    context, described = loop.target_context, loop.fndesc
    kind = context.call_conv.get_function_type(described.restype, described.argtypes)
    library = context.codegen().create_library("shared_out")
    module = library.create_ir_module("shared_out")
    take = ir.Function(module, ir.FunctionType(ir.VoidType(), [LONG.as_pointer()]), "take")
    address = loop.library.get_pointer_to_function(described.llvm_func_name)
    _write(take, address, kind)  # an address: linked, the loop would be compiled again
    library.add_ir_module(module)
    library.finalize()
    return library.get_pointer_to_function("take"), (library, compiled)


def _write(take: Any, address: int, kind: Any) -> None:
    begin, work, done = (take.append_basic_block(name) for name in ("begin", "work", "done"))
    builder, words = ir.IRBuilder(begin), take.args[0]

    def at(place: int) -> Any:
        return builder.gep(words, [LONG(place)])

    result, problem = (builder.alloca(one.pointee) for one in kind.args[:2])
    pieces, rows = (builder.load(at(place)) for place in (PIECES, ROWS))
    given = []
    for place, one in enumerate(kind.args[4:], ARRAYS):
        word = builder.load(at(place))
        given.append(builder.inttoptr(word, one) if isinstance(one, ir.PointerType) else word)
    again = builder.append_basic_block("again")
    builder.branch(again)
    builder.position_at_end(again)
    piece = builder.atomic_rmw("add", at(NEXT), LONG(1), "seq_cst")
    builder.cbranch(builder.icmp_signed("<", piece, pieces), work, done)
    builder.position_at_end(work)
    start, stop = (
        builder.sdiv(builder.mul(rows, one), pieces) for one in (piece, builder.add(piece, LONG(1)))
    )
    function = builder.inttoptr(LONG(address), kind.as_pointer())
    status = builder.call(function, [result, problem, start, stop, *given])
    wrong = builder.zext(builder.icmp_signed("!=", status, status.type(0)), LONG)
    builder.atomic_rmw("or", at(WRONG), wrong, "seq_cst")
    builder.branch(again)
    builder.position_at_end(done)
    builder.ret_void()
