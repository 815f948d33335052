"""Instructions of the processor that compiled loops ask for by name."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Numbers that are looked at together."""
CHAINS = 4
"""Sums that do not wait for each other."""
BYTE, WHOLE, LONG, REAL = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _call(builder: Any, name: str, returns: Any, *given: Any) -> Any:
    kind = ir.FunctionType(returns, [one.type for one in given])
    insert: Any = cgutils.get_or_insert_function
    return builder.call(insert(builder.module, kind, name), given)


def _place(target: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    return builder.gep(target.make_array(kind)(target, builder, array).data, [place])


def _spread(builder: Any, one: Any, lanes: int = LANES) -> Any:
    """In all lanes."""
    kind = ir.VectorType(one.type, lanes)
    first = builder.insert_element(kind(ir.Undefined), one, WHOLE(0))
    return builder.shuffle_vector(first, kind(ir.Undefined), ir.VectorType(WHOLE, lanes)([0] * lanes))


def _read_as(kind: Any, taken: Any, given: Any) -> Any:
    def read(context: Any, number: Any) -> Any:
        return given(taken), lambda target, builder, signature, numbers: builder.bitcast(numbers[0], kind)

    return intrinsic(read)


bits_of: Any = _read_as(WHOLE, types.float32, types.int32)
from_bits: Any = _read_as(REAL, types.int32, types.float32)
"""bits_of(float32) is the int32 of the same bits, from_bits the reverse: what one does by a view of an array, but inside a loop."""


def _prefetch(context: Any, array: Any, place: Any) -> Any:
    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        address = builder.bitcast(_place(target, builder, signature.args[0], *given), BYTE.as_pointer())
        options = (
            WHOLE(number) for number in (0, 2, 1)
        )  # to read, into all caches but the first, which has room for few that are on their way, data
        _call(builder, "llvm.prefetch.p0i8", ir.VoidType(), address, *options)
        return target.get_dummy_value()

    return types.void(array, types.int64), make


prefetch: Any = intrinsic(_prefetch)
"""prefetch(array, place): the cache line of one entry of a flat array. The place is not checked: nothing is read."""


def _lanes(target: Any, builder: Any, kind: Any, array: Any, first: Any, room: Any) -> tuple[Any, Any]:
    """Numbers of a flat float32 array from a place on, and which of them are among the next `room`."""
    vector, whole = ir.VectorType(REAL, LANES), ir.VectorType(WHOLE, LANES)
    near = builder.select(builder.icmp_signed("<", room, LONG(LANES)), room, LONG(LANES))
    inside = builder.icmp_signed("<", whole(list(range(LANES))), _spread(builder, builder.trunc(near, WHOLE)))
    address = builder.bitcast(_place(target, builder, kind, array, first), vector.as_pointer())
    name, nothing = f"llvm.masked.load.v{LANES}f32.p0v{LANES}f32", vector([float("-inf")] * LANES)
    return _call(builder, name, vector, address, WHOLE(4), inside, nothing), inside


def _many(builder: Any, lanes: Any) -> Any:
    return builder.zext(builder.ctpop(builder.bitcast(lanes, ir.IntType(LANES))), LONG)


def _row_start(target: Any, builder: Any, kind: Any, rows: Any, r: Any, start: Any) -> Any:
    length = builder.extract_value(target.make_array(kind)(target, builder, rows).shape, 1)
    return builder.add(builder.mul(r, length), start)


def _reach(context: Any, values: Any, start: Any, end: Any, least: Any) -> Any:
    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        values, start, end, least = given
        room = builder.sub(end, start)
        numbers, inside = _lanes(target, builder, signature.args[0], values, start, room)
        return _many(
            builder, builder.and_(inside, builder.fcmp_ordered(">=", numbers, _spread(builder, least)))
        )

    return types.int64(values, types.int64, types.int64, types.float32), make


reach: Any = intrinsic(_reach)
"""reach(values, start, end, least): how many of the next LANES values before `end` are at least `least`."""


def _reaching(
    context: Any, rows: Any, r: Any, start: Any, end: Any, least: Any, found: Any, number: Any
) -> Any:
    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        rows, r, start, end, least, found, number = given
        first = _row_start(target, builder, signature.args[0], rows, r, start)
        numbers, inside = _lanes(target, builder, signature.args[0], rows, first, builder.sub(end, start))
        hit = builder.and_(inside, builder.fcmp_ordered(">=", numbers, _spread(builder, least)))
        # one by one: some processors take longer to store a compressed vector than for all of its numbers
        bits: Any = cgutils.alloca_once_value
        left = bits(builder, builder.zext(builder.bitcast(hit, ir.IntType(LANES)), WHOLE))
        begin = builder.trunc(start, WHOLE)
        with cgutils.for_range(builder, _many(builder, hit)) as loop:
            now = builder.load(left)
            to = _place(target, builder, signature.args[5], found, builder.add(number, loop.index))
            builder.store(builder.add(begin, builder.cttz(now, ir.IntType(1)(1))), to)
            builder.store(builder.and_(now, builder.sub(now, WHOLE(1))), left)
        return builder.add(number, _many(builder, hit))

    return types.int64(rows, types.int64, types.int64, types.int64, types.float32, found, types.int64), make


reaching: Any = intrinsic(_reaching)
"""reaching(rows, r, start, end, least, found, number): puts the places of row r from start on, at most LANES and before `end`, whose
float32 is at least `least` into the int32 array `found` from `number` on. Returns number + how many."""


def _raise_to(context: Any, rows: Any, r: Any, start: Any, end: Any, best: Any, place: Any) -> Any:
    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        rows, r, start, end, best, place = given
        first = _row_start(target, builder, signature.args[0], rows, r, start)
        numbers, _ = _lanes(target, builder, signature.args[0], rows, first, builder.sub(end, start))
        address = _place(target, builder, signature.args[4], best, place)
        address = builder.bitcast(address, numbers.type.as_pointer())
        before = builder.load(address, align=4)
        larger = builder.fcmp_ordered(">", numbers, before)
        builder.store(builder.select(larger, numbers, before), address, align=4)
        return target.get_dummy_value()

    return types.void(rows, types.int64, types.int64, types.int64, best, types.int64), make


raise_to: Any = intrinsic(_raise_to)
"""raise_to(rows, r, start, end, best, place): LANES entries of `best` from `place` on become the larger of themselves and those of
row r from start on, before `end`."""


def _tile_scores(rows: int) -> Any:
    """For so many queries at once: a key is turned into float32 once for all."""
    chains = max(1, CHAINS // rows)

    def scores_of(
        context: Any, tiles: Any, t: Any, query: Any, r: Any, scores: Any, place: Any, best: Any, spot: Any
    ) -> Any:
        def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
            tiles, t, query, r, scores, place, best, spot = given
            vector, small = ir.VectorType(REAL, LANES), ir.VectorType(BYTE, LANES)

            def length(k: int, array: Any) -> Any:
                shape = target.make_array(signature.args[k])(target, builder, array).shape
                return builder.extract_value(shape, 1)

            dims, room, width = (length(k, one) for k, one in ((2, query), (4, scores), (6, best)))
            space: Any = cgutils.alloca_once_value
            sums = [[space(builder, vector([0.0] * LANES)) for _ in range(chains)] for _ in range(rows)]

            def add(x: Any, chain: int) -> None:
                column = builder.mul(builder.add(builder.mul(t, dims), x), LONG(LANES))
                address = _place(target, builder, signature.args[0], tiles, column)
                whole = builder.load(builder.bitcast(address, small.as_pointer()), align=1)
                keys = builder.sitofp(whole, vector)
                for k in range(rows):
                    entry = builder.add(builder.mul(builder.add(r, LONG(k)), dims), x)
                    factor = builder.load(_place(target, builder, signature.args[2], query, entry))
                    product = builder.fmul(keys, _spread(builder, factor), flags=("fast",))
                    total = sums[k][chain]
                    builder.store(builder.fadd(builder.load(total), product, flags=("fast",)), total)

            many = builder.udiv(dims, LONG(chains))
            with cgutils.for_range(builder, many) as loop:
                for chain in range(chains):
                    add(builder.add(builder.mul(loop.index, LONG(chains)), LONG(chain)), chain)
            done = builder.mul(many, LONG(chains))
            with cgutils.for_range(builder, builder.sub(dims, done)) as loop:
                add(builder.add(done, loop.index), 0)
            for k, totals in enumerate(sums):
                found = builder.load(totals[0])
                for total in totals[1:]:
                    found = builder.fadd(found, builder.load(total), flags=("fast",))
                at = builder.add(place, builder.mul(LONG(k), room))
                to = _place(target, builder, signature.args[4], scores, at)
                builder.store(found, builder.bitcast(to, vector.as_pointer()), align=4)
                most = _call(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", REAL, found)
                at = builder.add(spot, builder.mul(LONG(k), width))
                builder.store(most, _place(target, builder, signature.args[6], best, at))
            return target.get_dummy_value()

        long = types.int64
        return types.void(tiles, long, query, long, scores, long, best, long), make

    return intrinsic(scores_of)


tile_scores: Any = _tile_scores(1)
three_tile_scores: Any = _tile_scores(3)
"""tile_scores(tiles, t, query, r, scores, place, best, spot): puts the products of query r with the LANES keys of tile t into `scores`,
flat from `place` on, and the largest into `best`, flat at `spot`. tiles: int8, (tiles, d, LANES), flat. The other does so for the
queries r, r + 1 and r + 2, whose rows of `scores` and `best` follow each other."""


def _add_row(context: Any, total: Any, k: Any, rows: Any, j: Any, factor: Any) -> Any:
    def make(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        total, k, rows, j, factor = given
        size = builder.extract_value(target.make_array(signature.args[0])(target, builder, total).shape, 1)
        to = _place(target, builder, signature.args[0], total, builder.mul(k, size))
        source = _place(target, builder, signature.args[2], rows, builder.mul(j, size))
        align = 4 if factor.type == REAL else 8

        def add(place: Any, times: Any) -> None:
            kind = times.type.as_pointer()
            old, new = (builder.bitcast(builder.gep(one, [place]), kind) for one in (to, source))
            product = builder.fmul(builder.load(new, align=align), times, flags=("fast",))
            found = builder.fadd(builder.load(old, align=align), product, flags=("fast",))
            builder.store(found, old, align=align)

        wide = LONG(2 * LANES)

        def by_loops() -> None:
            many = builder.udiv(size, wide)
            with cgutils.for_range(builder, many) as loop:
                add(builder.mul(loop.index, wide), _spread(builder, factor, 2 * LANES))
            done = builder.mul(many, wide)
            with cgutils.for_range(builder, builder.sub(size, done)) as loop:
                add(builder.add(done, loop.index), factor)

        with builder.if_else(builder.icmp_unsigned("==", size, wide)) as (short, longer):
            with short:
                add(LONG(0), _spread(builder, factor, 2 * LANES))
            with (
                longer,
                builder.if_else(builder.icmp_unsigned("==", size, LONG(4 * LANES))) as (twice, other),
            ):
                with twice:
                    for place in (LONG(0), wide):
                        add(place, _spread(builder, factor, 2 * LANES))
                with other:
                    by_loops()
        return target.get_dummy_value()

    return types.void(total, types.int64, rows, types.int64, factor), make


add_row: Any = intrinsic(_add_row)
"""add_row(total, k, rows, j, factor): total[k] += factor · rows[j]. Rows of both are as long; the factor is of their kind. Loops over a
row cost more than the row, since their compiler does not know that the arrays do not overlap."""
