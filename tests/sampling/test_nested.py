"""The kernel for growing key sets, and the uniform choice of queries among the tokens."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnlimit import Empirical, Head
from attnlimit.sampling.replicates import choose_queries, nested_outputs


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_outputs_are_attention_over_each_prefix() -> None:
    keys = Empirical(_normal(40, 3, seed=1), _normal(40, 2, seed=2))
    head, x = Head(_normal(3, 4, seed=3), _normal(5, 2, seed=4)), _normal(7, 4, seed=5)
    sizes, counts = [1, 9, 9, 40], [7, 6, 6, 2]
    for size, count, out in zip(sizes, counts, nested_outputs(head, keys, sizes, x, counts), strict=True):
        expected = head(keys.select(torch.arange(size)))(x[:count])
        torch.testing.assert_close(out, expected)


@given(
    sizes=st.sets(st.integers(1, 80), min_size=1, max_size=5).map(sorted),
    m=st.integers(1, 30),
    seed=st.integers(0, 10**6),
)
def test_choice_is_m_distinct_tokens_of_each_prefix(sizes: list[int], m: int, seed: int) -> None:
    chosen = choose_queries(sizes, m, torch.Generator().manual_seed(seed))
    assert chosen.counts == sorted(chosen.counts, reverse=True)
    for size, count, rows in zip(sizes, chosen.counts, chosen.rows, strict=True):
        tokens = chosen.tokens[rows]
        assert len(tokens) == len(tokens.unique()) == min(m, size)
        assert int(tokens.max()) < size
        assert int(rows.max()) < count


def test_every_token_is_chosen_equally_often_at_each_size(generator: torch.Generator) -> None:
    """Counts over 6000 choices of 3; chi-square with false-alarm rate below 1e-6 at each size."""
    sizes, draws = [6, 10, 15], 6000
    counts = [torch.zeros(size) for size in sizes]
    for _ in range(draws):
        chosen = choose_queries(sizes, 3, generator)
        for count, rows in zip(counts, chosen.rows, strict=True):
            count[chosen.tokens[rows]] += 1
    for count in counts:
        expected = draws * 3 / len(count)
        assert float((count - expected).square().sum() / expected) < stats.chi2.ppf(1 - 1e-6, len(count))
