"""Instructions of the processor that compiled loops ask for by name."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Numbers that `reaching` looks at."""
BYTE, WHOLE, LONG, REAL = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _call(builder: Any, name: str, returns: Any, *given: Any) -> Any:
    kind = ir.FunctionType(returns, [one.type for one in given])
    insert: Any = cgutils.get_or_insert_function
    return builder.call(insert(builder.module, kind, name), given)


def _place(target: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    return builder.gep(target.make_array(kind)(target, builder, array).data, [place])


def _prefetch(context: Any, array: Any, place: Any) -> Any:
    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        address = builder.bitcast(_place(target, builder, signature.args[0], *given), BYTE.as_pointer())
        options = (WHOLE(number) for number in (0, 3, 1))  # to read, into all caches, data
        _call(builder, "llvm.prefetch.p0i8", ir.VoidType(), address, *options)
        return target.get_dummy_value()

    return types.void(array, types.int64), make


prefetch: Any = intrinsic(_prefetch)
"""prefetch(array, place): the cache line of one entry of a flat array. The place is not checked: nothing is read."""


def _reaching(
    context: Any, rows: Any, r: Any, start: Any, end: Any, least: Any, found: Any, number: Any
) -> Any:
    signature = types.int64(rows, types.int64, types.int64, types.int64, types.float32, found, types.int64)

    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        rows, r, start, end, least, found, number = given
        vector, lanes = ir.VectorType(REAL, LANES), ir.VectorType(WHOLE, LANES)

        def spread(one: Any, kind: Any) -> Any:
            first = builder.insert_element(kind(ir.Undefined), one, WHOLE(0))
            return builder.shuffle_vector(first, kind(ir.Undefined), lanes([0] * LANES))

        place = builder.add(spread(builder.trunc(start, WHOLE), lanes), lanes(list(range(LANES))))
        inside = builder.icmp_signed("<", place, spread(builder.trunc(end, WHOLE), lanes))
        length = builder.extract_value(target.make_array(signature.args[0])(target, builder, rows).shape, 1)
        first = builder.add(builder.mul(r, length), start)
        address = builder.bitcast(
            _place(target, builder, signature.args[0], rows, first), vector.as_pointer()
        )
        nothing = vector([float("-inf")] * LANES)
        name = f"llvm.masked.load.v{LANES}f32.p0v{LANES}f32"
        given_here = _call(builder, name, vector, address, WHOLE(4), inside, nothing)
        hit = builder.and_(inside, builder.fcmp_ordered(">=", given_here, spread(least, vector)))
        to = _place(target, builder, signature.args[5], found, number)
        _call(builder, f"llvm.masked.compressstore.v{LANES}i32", ir.VoidType(), place, to, hit)
        many = builder.ctpop(builder.bitcast(hit, ir.IntType(LANES)))
        return builder.add(number, builder.zext(many, LONG))

    return signature, make


reaching: Any = intrinsic(_reaching)
"""reaching(rows, r, start, end, least, found, number): puts the places of row r from start on, at most LANES and before `end`, whose
float32 is at least `least` into the int32 array `found` from `number` on. Returns number + how many."""
