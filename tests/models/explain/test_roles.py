"""Roles: a partition of attention, on heads built to have one role, and on heads that have none."""

import math

import pytest
import torch

from attnlimit.models.explain.look import Look, Made
from attnlimit.models.explain.result import ROLES
from attnlimit.models.explain.roles import NEAR, made_texts, roles_of, shares, with_intervals
from attnlimit.models.see.interface import observe

transformers = pytest.importorskip("transformers")

WORDS, PLACES, WIDTH = 21, 43, 64
"""One-hot codes of words and places together are as wide as a head."""
NEEDLE = WORDS - 1
SURE = 60.0


def brute(weights, seen, ids, special, row):
    """The shares of one query, key by key."""
    found, number = dict.fromkeys(ROLES, 0.0), sum(seen)
    for j, p in enumerate(weights):
        found["broad average"] += min(p, seen[j] / number)
        if not seen[j]:
            continue
        if j == row:
            role = "own token"
        elif j == 0 or special[j]:
            role = "sink"
        elif j == row - 1:
            role = "previous token"
        elif ids[j] == ids[row]:
            role = "same token"
        elif ids[j - 1] == ids[row] and j - 1 != row:
            role = "induction"
        elif abs(j - row) <= NEAR:
            role = "window"
        else:
            role = "content"
        found[role] += max(0.0, p - 1 / number)
    return found


@pytest.mark.parametrize("causal", [True, False])
def test_shares_are_those_of_a_sum_over_keys_and_sum_to_one(generator, causal) -> None:
    n = 48
    ids = torch.randint(9, (n,), generator=generator)
    special = torch.zeros(n, dtype=torch.bool)
    special[[0, -1]] = True
    seen = torch.ones(n, n, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    scores = 3 * torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    found, chance = shares(weights, seen[None], roles_of(ids, special, torch.arange(n)))
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    torch.testing.assert_close(chance.sum(-1), torch.ones_like(found[..., 0]))
    for row in (0, 1, 20, n - 1):
        expected = brute(weights[1, row].tolist(), seen[row].tolist(), ids.tolist(), special.tolist(), row)
        torch.testing.assert_close(
            found[1, row], torch.tensor([expected[role] for role in ROLES], dtype=torch.float64)
        )
    with_sink, _ = shares(0.5 * weights, seen[None], roles_of(ids, special, torch.arange(n)))
    torch.testing.assert_close(with_sink.sum(-1), torch.ones_like(found[..., 0]))
    assert bool((with_sink[..., ROLES.index("sink")] > 0.499).all())


def gpt2(**sizes: int) -> torch.nn.Module:
    """With random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.GPT2Config(bos_token_id=None, eos_token_id=None, **sizes)
        return transformers.GPT2Model(config).eval()


def built() -> torch.nn.Module:
    """A GPT-2 of two layers whose heads have one role each: all in the first layer, but induction, which needs the word
    before every key and finds it where the previous-token head has put it."""
    model = gpt2(vocab_size=WORDS, n_positions=PLACES, n_embd=8 * WIDTH, n_layer=2, n_head=8)
    for one in model.parameters():
        one.data.zero_()
    word, place, before = slice(0, WORDS), slice(WORDS, WIDTH), slice(WIDTH, WIDTH + WORDS)
    model.wte.weight.data[:, word] = torch.eye(WORDS)
    model.wpe.weight.data[:, place] = torch.eye(PLACES)
    scale = (2 / (8 * WIDTH)) ** 0.5  # of a state before its norm: two ones
    for block in model.h:
        block.ln_1.weight.data.fill_(scale)
    places = torch.arange(PLACES)
    apart = places[:, None] - places
    first, second = (block.attn.c_attn for block in model.h)

    def put(layer, head, which, rows, matrix):
        start = which * 8 * WIDTH + head * WIDTH
        layer.weight.data[rows, start : start + matrix.shape[1]] = matrix

    sure = SURE * WIDTH**0.5
    for head, reached in enumerate([apart == 0, apart == 1, (apart > 1) & (apart <= NEAR)]):
        put(first, head, 0, place, sure * reached.float())
        put(first, head, 1, place, torch.eye(PLACES))
    key = torch.zeros(PLACES, 1)
    key[0] = 1
    put(first, 3, 1, place, key)
    needle = torch.zeros(WORDS, 1)
    needle[NEEDLE] = 1
    put(first, 4, 1, word, needle)
    first.bias.data[[3 * WIDTH, 4 * WIDTH]] = sure
    both, other = torch.eye(WIDTH), torch.eye(WIDTH)
    both[place] *= -1
    put(first, 5, 0, slice(0, WIDTH), sure * both)
    put(first, 5, 1, slice(0, WIDTH), other)
    put(first, 1, 2, word, torch.eye(WORDS))  # the previous-token head writes the word
    model.h[0].attn.c_proj.weight.data[WIDTH : WIDTH + WORDS, before] = torch.eye(WORDS)
    put(second, 0, 0, word, 2 * sure * torch.eye(WORDS))
    put(second, 0, 1, before, torch.eye(WORDS))
    return model


def look_at(model, ids):
    look = Look(ids, torch.zeros(len(ids), dtype=torch.bool), {}, 0.5, (), 0.05, torch.Generator())
    with torch.no_grad(), observe(model, look.handle):
        model(input_ids=ids[None])
    return look


def test_heads_built_for_one_role_have_it(generator) -> None:
    ids = torch.arange(PLACES) % (WORDS - 3)
    ids[:3] = torch.tensor([WORDS - 3, WORDS - 2, NEEDLE])  # these come nowhere else
    found, chance = look_at(built(), ids).shares()
    rows = torch.arange(26, PLACES - 8)  # what each looks for is there, and outside the window
    expected = ["own token", "previous token", "window", "sink", "content", "same token", "broad average"]
    for head, role in enumerate(expected):
        share = found[head, rows]
        # min(p, 1/n) of what is picked counts as average: one key of n, or a window of them
        most = 1 - {"window": NEAR, "broad average": 0}.get(role, 1.2) / 30
        assert float(share[:, ROLES.index(role)].min()) > most - 0.05, role
        assert float((share.sum(-1) - 1).abs().max()) < 1e-5
        others = [k for k, one in enumerate(ROLES) if one not in (role, "broad average")]
        assert float(share[:, others].max()) < 0.01, role
        if role != "broad average":
            assert float(chance[head, rows, ROLES.index(role)].mean()) < 0.6 * float(
                share[:, ROLES.index(role)].mean()
            )
    induction = found[8, rows]
    assert float(induction[:, ROLES.index("induction")].min()) > 0.9


def test_the_built_induction_head_shows_on_repeated_random_tokens(generator) -> None:
    usable = torch.arange(NEEDLE)
    ids = made_texts(usable, [NEEDLE], [], PLACES, generator)
    assert ids.shape == (4, 1 + 2 * 20)
    assert torch.equal(ids[:, 1:21], ids[:, 21:])
    assert all(len(set(row[1:21].tolist())) == 20 for row in ids)
    made = Made(ids, 1, 0)
    with torch.no_grad(), observe(model := built(), made.handle):
        model(input_ids=ids)
    found, _ = made.shares()
    k = ROLES.index("induction")
    assert found.shape == (16, 4 * 20, len(ROLES))
    assert float(found[8, :, k].mean()) > 0.9
    assert float(found[[*range(8), *range(9, 16)], :, k].max()) < 0.3


def test_random_heads_have_no_role_beyond_chance(generator) -> None:
    """Keys and queries without any law: each role of each head is above chance with at most 2.5 % (its interval's lower end),
    so of 40 × 6 about 6; more than 20 come by chance in under one of 10⁵ runs. The control leans to the previous token."""
    n, heads = 256, 40
    ids = torch.randint(40, (n,), generator=generator)
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    rows = torch.arange(32, n)
    scores = torch.randn(heads, n, n, generator=generator)
    lean = torch.zeros(n, n)
    lean[torch.arange(1, n), torch.arange(n - 1)] = 2.0
    roles = roles_of(ids, torch.zeros(n, dtype=torch.bool), rows)
    above = []
    for given in (scores, scores + lean):
        weights = given.masked_fill(~seen, -math.inf).softmax(-1)
        found, chance = shares(weights[:, rows], seen[None, rows], roles)
        low = with_intervals(found, 0.95, generator)[..., 1]
        above.append((low > chance.double().mean(1))[:, : ROLES.index("content")])
    assert int(above[0].sum()) <= 20
    assert bool(above[1][:, ROLES.index("previous token")].all())


def test_a_model_with_random_weights_only_averages(generator) -> None:
    model = gpt2(vocab_size=50, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    found, _ = look_at(model, torch.randint(50, (64,), generator=generator)).shares()
    mean = found.mean(1)
    assert float(mean[:, ROLES.index("broad average")].min()) > 0.9
    assert float(mean[:, : ROLES.index("broad average")].max()) < 0.06


def test_intervals_cover_the_mean_of_stretches(generator) -> None:
    """Queries whose stretches have means of their own: 200 intervals at 90 % cover the true mean, 0, about 87 % of the time (16
    stretches, percentiles), fewer than 155 in one of 10⁴ runs; resampling single queries would cover under 60 %."""
    means = torch.randn(200, 16, 1, generator=generator, dtype=torch.float64)
    queries = means + 0.1 * torch.randn(200, 16, 20, generator=generator, dtype=torch.float64)
    found = with_intervals(queries.flatten(1)[..., None], 0.9, generator)[:, 0]
    covered = int(((found[:, 1] <= 0) & (found[:, 2] >= 0)).sum())
    assert 155 <= covered <= 195
