"""Ask for memory before it is read, in compiled loops."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def _prefetch(context: Any, array: Any, place: Any) -> Any:

    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        start = target.make_array(signature.args[0])(target, builder, given[0]).data
        byte, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, whole, whole, whole])
        insert: Any = cgutils.get_or_insert_function
        instruction = insert(builder.module, kind, "llvm.prefetch.p0i8")
        options = [ir.Constant(whole, number) for number in (0, 3, 1)]  # to read, into all caches, data
        builder.call(instruction, [builder.bitcast(builder.gep(start, [given[1]]), byte), *options])
        return target.get_dummy_value()

    return types.void(array, types.int64), make


prefetch: Any = intrinsic(_prefetch)
"""prefetch(array, place): the cache line of one entry of a flat array. The place is not checked: nothing is read."""
