"""What explains an output, against loops and enumeration."""

from itertools import combinations

import pytest
import torch

from attnlimit.models.explain.look import _half_seen
from attnlimit.models.explain.reads import agreement, along, certainty, first_within, read_only
from attnlimit.models.see.call import Call
from attnlimit.models.see.masks import TensorMask


@pytest.fixture
def head(generator):
    """Weights over 12 keys, of which the last 2 are hidden, and values."""
    scores = 2 * torch.randn(12, generator=generator, dtype=torch.float64)
    seen = torch.arange(12) < 10
    weights = scores.masked_fill(~seen, -torch.inf).softmax(0)
    return weights, torch.randn(12, 3, generator=generator, dtype=torch.float64), seen


def by_hand(weights, values, named, seen):
    rest = [j for j in range(len(weights)) if seen[j] and j not in named]
    out = sum((weights[j] * values[j] for j in named), torch.zeros(values.shape[1], dtype=values.dtype))
    if rest:
        out = out + sum(weights[j] for j in rest) * torch.stack([values[j] for j in rest]).mean(0)
    return out


def test_keys_and_the_average_of_the_others(head) -> None:
    weights, values, seen = head
    order = weights.argsort(descending=True)[:10]
    steps = along(weights, values, order)
    assert steps.shape == (11, 3)
    for k in range(11):
        named = set(order[:k].tolist())
        expected = by_hand(weights, values, named, seen)
        torch.testing.assert_close(steps[k], expected)
        mask = torch.tensor([j in named for j in range(12)])
        torch.testing.assert_close(read_only(weights, values, mask, seen), expected)
    torch.testing.assert_close(steps[-1], weights @ values)
    torch.testing.assert_close(steps[0], values[:10].mean(0))


def test_needed_is_the_first_place_below() -> None:
    error = torch.tensor([1.0, 0.2, 0.3, 0.0])
    assert [first_within(error, torch.tensor(most)) for most in (1.0, 0.25, 0.1, -1.0)] == [0, 1, 3, 3]


def test_certainty_is_one_for_picks_and_none_for_averages(generator) -> None:
    n, values = 1000, torch.randn(1000, 8, generator=generator)
    size, left = values.square().sum(-1).mean(), torch.tensor(n - 4)
    seen = torch.ones(n, dtype=torch.bool)

    def of(scores):
        weights = scores.softmax(-1)
        named = torch.zeros(n, dtype=torch.bool).scatter_(0, weights.topk(4).indices, True)
        parts = [read_only(weights, values, some, seen) for some in (named, torch.zeros_like(named))]
        return float(certainty(parts[0], parts[1], weights @ values, left, size))

    picks = torch.zeros(n)
    picks[:3] = 12.0
    assert of(picks) > 0.999
    assert of(torch.zeros(n)) == 0.0
    assert of(0.5 * torch.randn(n, generator=generator)) < 0.1
    one = torch.ones(1)
    assert float(certainty(one, one, one, torch.tensor(0), torch.tensor(1.0))) == 1.0


def test_the_weight_of_named_keys_when_half_of_the_others_is_seen(generator) -> None:
    """1.96 times the rms over all sets of 4 of the 8 others, each of which stands for two."""
    n, named = 10, torch.zeros(2, 10, dtype=torch.bool)
    named[0, [2, 5]] = True
    query, key = (torch.randn(1, 2, n, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    value = torch.randn(1, 2, n, 3, generator=generator, dtype=torch.float64)
    mask = TensorMask(torch.ones(1, 1, n, n, dtype=torch.bool))
    call = Call(0, "layer", query, key, value, 1.0, 1, mask, own_key=0)
    found = _half_seen(call, 7, named)
    w = (query[0, 0, 7] @ key[0, 0].T).exp()
    kept = w[named[0]].sum()
    others = [j for j in range(n) if not named[0, j]]
    errors = [kept / (kept + 2 * w[list(some)].sum()) - kept / w.sum() for some in combinations(others, 4)]
    assert len(errors) == 70
    expected = 1.959964 * torch.stack(errors).square().mean().sqrt()
    assert found[0] == pytest.approx(float(expected), rel=1e-5)
    assert found[1] == 0.0  # nothing is named


def test_agreement_of_two_halves_of_draws() -> None:
    same = torch.tensor([[5.0, 4.0, 1.0, 0.0]] * 4)
    assert agreement(same, 2) == 1.0
    assert agreement(torch.cat([same[:2], same[2:].flip(1)]), 2) == 0.0
    assert agreement(same, 9) == 1.0
