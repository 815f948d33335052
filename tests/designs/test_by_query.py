"""Kept sets and numbers of keys that follow each query."""

import pytest
import torch

from attnlimit.designs.by_query import FEWEST, TOPS, choose, contributions, spread


def make(queries: int = 50, sets: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Spreads that fall with what is kept, of 100 keys."""
    g = torch.Generator().manual_seed(0)
    widths = torch.rand(queries, sets, generator=g, dtype=torch.float64).cumsum(1).flip(1)
    kept = torch.tensor([0.0, 4, 16, 64, 98], dtype=torch.float64)[:sets].expand(queries, -1)
    return widths, 100 - kept, kept


@pytest.mark.parametrize("per_spread", [0.0, 0.1, 3.0, 30.0, 1e4])
def test_each_query_takes_what_costs_least(per_spread):
    """By going through all sets and all n: no pair is better, up to rounding n."""
    widths, rest, kept = make()
    best, n = choose(per_spread, widths, rest, kept)
    for query in range(len(widths)):

        def cost(place: int, drawn: float, query: int = query) -> float:
            left = float(rest[query, place])
            error = (per_spread * float(widths[query, place])) ** 2 * (1 / drawn - 1 / left)
            return error + drawn + float(kept[query, place])

        everything = [
            cost(place, drawn)
            for place in range(5)
            for drawn in range(min(FEWEST, int(rest[query, place])), int(rest[query, place]) + 1)
        ]
        found = cost(int(best[query, 0]), float(n[query, 0]))
        wanted = per_spread * float(widths[query, int(best[query, 0])])
        assert found <= min(everything) + 0.5**2 / max(wanted, 1.0) + 1e-9
        assert float(n[query, 0]) == float(n[query, 0].round())


def test_keys_grow_with_the_price_of_an_error():
    widths, rest, kept = make()
    keys = []
    for per_spread in (0.0, 1.0, 4.0, 16.0, 64.0, 1e3):
        best, n = choose(per_spread, widths, rest, kept)
        keys.append(float((kept.gather(1, best) + n).sum()))
    assert keys == sorted(keys)
    assert keys[0] == FEWEST * len(widths)  # nothing kept, the fewest drawn
    assert keys[-1] == 100 * len(widths)


def test_no_more_than_is_left():
    widths = torch.tensor([[1.0, 0.0]]).double()
    best, n = choose(100.0, widths, torch.tensor([[3.0, 0.0]]).double(), torch.tensor([[7.0, 10.0]]).double())
    assert float(n) <= 3
    assert float(n) + [7, 10][int(best)] == 10


def test_a_number_for_each_head_broadcasts():
    widths, rest, kept = make()
    factors = torch.tensor([1.0, 10.0]).double()[:, None, None]
    best, n = choose(factors, *(part.expand(2, -1, -1) for part in (widths, rest, kept)))
    for head, factor in enumerate((1.0, 10.0)):
        alone = choose(factor, widths, rest, kept)
        assert torch.equal(best[head], alone[0])
        assert torch.equal(n[head], alone[1])


def test_spread_is_the_deviation_times_the_number():
    part = torch.rand(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    number = torch.full((4,), 9.0, dtype=torch.float64)
    found = spread(number, part.sum(1), part.square().sum(1))
    torch.testing.assert_close(found, 9 * part.std(1, correction=0))
    alike = torch.full((4, 9), 0.3, dtype=torch.float64)
    assert float(spread(number, alike.sum(1), alike.square().sum(1)).max()) < 1e-6


def test_contributions_key_by_key():
    g = torch.Generator().manual_seed(2)
    weights = torch.rand(2, 3, 5, 7, generator=g, dtype=torch.float64).softmax(-1)
    values = torch.randn(2, 3, 7, 4, generator=g, dtype=torch.float64)
    found = contributions(weights, values)
    for b, h, q, j in ((0, 0, 0, 0), (1, 2, 4, 6), (0, 1, 3, 2)):
        out = weights[b, h, q] @ values[b, h]
        expected = weights[b, h, q, j] * (values[b, h, j] - out).norm()
        assert float(found[b, h, q, j]) == pytest.approx(float(expected), rel=1e-9)


def test_the_sets_that_a_query_may_choose_from():
    assert TOPS[0] == 0
    assert sorted(set(TOPS)) == list(TOPS)
