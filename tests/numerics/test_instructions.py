"""Instructions by name against plain Python, on stretches of every length and place."""

import numpy as np
import pytest

numba = pytest.importorskip("numba")
from attnlimit.numerics.instructions import (  # noqa: E402
    LANES,
    add_row,
    bits_of,
    from_bits,
    raise_to,
    reach,
    reaching,
    three_tile_scores,
    tile_scores,
)


@numba.njit
def _found(rows, r, low, high, least, found):
    number = 0
    for j in range(low, high, LANES):
        number = reaching(rows, r, j, high, least, found, number)
    return number


@numba.njit
def _reached(values, low, high, least):
    number = 0
    for j in range(low, high, LANES):
        number += reach(values, j, high, least)
    return number


@numba.njit
def _raised(rows, r, low, high, best):
    for j in range(low, high, LANES):
        raise_to(rows, r, j, high, best, (j - low) % len(best))


@numba.njit
def _scored(tiles, t, query, r, scores, place, best, spot):
    tile_scores(tiles, t, query, r, scores, place, best, spot)


@numba.njit
def _scored_together(tiles, t, query, r, scores, place, best, spot):
    three_tile_scores(tiles, t, query, r, scores, place, best, spot)


@pytest.mark.parametrize("seed", range(30))
def test_stretches_of_a_row(seed):
    """Nothing before or after the stretch counts, and no number that is none."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 120))
    rows = rng.normal(size=(3, length)).astype(np.float32)
    rows[1, rng.integers(length)] = np.nan
    low = int(rng.integers(length))
    high, least = int(rng.integers(low, length + 1)), np.float32(rng.normal())
    expected = [j for j in range(low, high) if rows[1, j] >= least]
    found = np.empty(length, np.int32)
    assert found[: _found(rows, 1, low, high, least, found)].tolist() == expected
    assert _reached(rows[1].copy(), low, high, least) == len(expected)
    best = np.full(2 * LANES, -9.0, np.float32)
    _raised(rows, 1, low, high, best)
    for c in range(len(best)):
        assert best[c] == max([-9.0, *(x for x in rows[1, low + c : high : len(best)] if x == x)])


@pytest.mark.parametrize("d", [1, 3, 4, 30, 64])
@pytest.mark.parametrize(("scored", "rows"), [(_scored, 1), (_scored_together, 3)])
def test_scores_of_a_tile(d, scored, rows):
    rng = np.random.default_rng(d)
    tiles, query = rng.integers(-127, 128, size=(5, d, LANES), dtype=np.int8), rng.normal(size=(4, d))
    query, scores, best = query.astype(np.float32), np.zeros((4, 3 * LANES), np.float32), np.zeros((4, 3))
    best = best.astype(np.float32)
    scored(tiles.reshape(-1), 3, query, 1, scores, 4 * LANES, best, 4)
    expected, some = query.astype(float) @ tiles[3].astype(float), slice(1, 1 + rows)
    np.testing.assert_allclose(scores[some, LANES : 2 * LANES], expected[some], rtol=1e-5, atol=1e-3)
    assert best[some, 1].tolist() == scores[some, LANES : 2 * LANES].max(1).tolist()
    scores[some, LANES : 2 * LANES], best[some, 1] = 0, 0
    assert not scores.any()
    assert not best.any()


@numba.njit
def _added(total, k, rows, j, factor):
    add_row(total, k, rows, j, factor)


@pytest.mark.parametrize("d", [1, 7, 16, 33, 64])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_row_is_added_to_another(d, kind):
    rng = np.random.default_rng(d)
    total, rows = rng.normal(size=(3, d)).astype(kind), rng.normal(size=(4, d)).astype(kind)
    expected = total.copy()
    expected[2] += kind(0.7) * rows[1]
    _added(total, 2, rows, 1, kind(0.7))
    np.testing.assert_allclose(total, expected, rtol=1e-6 if kind == np.float32 else 1e-14)


@numba.njit
def _bits_and_back(numbers, bits, back):
    for i in range(len(numbers)):
        bits[i] = bits_of(numbers[i])
        back[i] = from_bits(bits[i])


def test_bits_are_those_of_a_view() -> None:
    numbers = np.array([0.0, -0.0, 1.0, -2.5, 1e-42, 3e38, np.inf] * 7, np.float32)
    bits, back = np.empty(len(numbers), np.int32), np.empty_like(numbers)
    _bits_and_back(numbers, bits, back)
    assert bits.tolist() == numbers.view(np.int32).tolist()
    assert back.tobytes() == numbers.tobytes()
