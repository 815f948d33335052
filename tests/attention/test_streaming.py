"""Streaming equals attention with all keys at once, whatever the blocks, the head and the source."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from attnlimit import Empirical, Gaussian, Head, InputError, prefixes, stream
from attnlimit.attention.streaming import opened
from attnlimit.files.arrays import open_rows

N, D, M = 500, 6, 9


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


TOKENS, VALUES, QUERIES = normal(N, D, seed=1), normal(N, 4, seed=2), normal(M, D, seed=3)
HEADS = {
    "one head": Head(normal(D, D)),
    "identity": Head(torch.eye(D, dtype=torch.float64)),
    "small V": Head(normal(D, D), normal(2, D, seed=5)),
    "large V": Head(normal(D, D), normal(11, D, seed=5)),
    "three heads": Head(normal(3, D, D), normal(3, 2, D, seed=5)),
    "grid of heads, low rank, biases": Head.from_projections(
        normal(2, 3, 4, D),
        normal(2, 3, 4, D, seed=5),
        normal(2, 3, 5, D, seed=6),
        bq=normal(2, 3, 4, seed=7),
        bk=normal(2, 3, 4, seed=8),
        bv=normal(2, 3, 5, seed=9),
    ),
}
heads = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())


def by_hand(head: Head, keys: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Σ_j p_j (V v_j) + b_v with the whole score matrix, for queries (m, d)."""
    bias = head.factors.query_bias
    scores = (
        head.A @ x.mT if bias is None else head.factors.left @ (head.factors.right @ x.mT + bias[..., None])
    )
    p = (keys @ scores).softmax(-2).mT
    out = p @ values if head.factors.V is None else p @ values @ head.V.mT
    return out if head.factors.value_bias is None else out + head.factors.value_bias[..., None, :]


# --- the same numbers -------------------------------------------------------------------------------


@heads
@pytest.mark.parametrize("block", [7, 499, 500, 2**15])
def test_stream_equals_all_keys_at_once(head, block):
    got = stream(head, TOKENS, QUERIES, block=block)
    assert_close(got, by_hand(head, TOKENS, TOKENS, QUERIES), rtol=1e-11, atol=1e-12)
    assert_close(got, head(Empirical(TOKENS))(QUERIES), rtol=1e-11, atol=1e-12)


@heads
def test_prefixes_equal_separate_maps(head):
    sizes = [1, 2, 17, 250, 500]
    curve = list(prefixes(head, TOKENS, sizes, QUERIES, block=100))
    assert [n for n, _ in curve] == sizes
    for n, got in curve:
        assert_close(got, by_hand(head, TOKENS[:n], TOKENS[:n], QUERIES), rtol=1e-11, atol=1e-12)


@heads
def test_self_attention_prefixes_equal_separate_maps(head):
    sizes = [1, 3, 64, 499]
    curve = list(prefixes(head, TOKENS, sizes))
    assert [n for n, _ in curve] == sizes
    for n, got in curve:
        assert_close(got, by_hand(head, TOKENS[:n], TOKENS[:n], TOKENS[:n]), rtol=1e-11, atol=1e-12)


@given(cuts=st.lists(st.integers(1, 39), max_size=6, unique=True), block=st.integers(1, 50))
def test_blocks_of_any_size_give_the_same(cuts, block):
    head, tokens = HEADS["one head"], TOKENS[:40]
    sizes = [stop - start for start, stop in pairwise([0, *sorted(cuts), 40])]
    got = stream(head, iter(tokens.split(sizes)), QUERIES, block=block)
    assert_close(got, by_hand(head, tokens, tokens, QUERIES), rtol=1e-11, atol=1e-12)
    for n, got in prefixes(head, [tokens], [*cuts, 40], QUERIES, block=block):
        assert_close(got, by_hand(head, tokens[:n], tokens[:n], QUERIES), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch_attention_to_float_precision(dtype):
    keys, queries = normal(5000, 64, dtype=dtype), normal(300, 64, seed=1, dtype=dtype) / 8
    head = Head(torch.eye(64, dtype=dtype))
    torchs = torch.nn.functional.scaled_dot_product_attention(queries, keys, keys, scale=1.0)
    exact = by_hand(Head(torch.eye(64, dtype=torch.float64)), keys.double(), keys.double(), queries.double())
    rounding = 64 * torch.finfo(dtype).eps
    for got in (torchs, stream(head, keys, queries, block=999)):
        assert float((got - exact).abs().max()) < rounding


def test_values_that_differ_from_the_keys():
    head, tokens = Head(normal(D, D)), Empirical(TOKENS, VALUES)
    want = by_hand(head, TOKENS, VALUES, QUERIES)
    pairs = list(zip(TOKENS.split(33), VALUES.split(33), strict=True))
    assert_close(stream(head, tokens, QUERIES, block=77), want)
    assert_close(stream(head, pairs, QUERIES, block=10), want)
    assert_close(stream(Head(normal(D, D), normal(3, 4)), pairs, QUERIES), want @ normal(3, 4).T)
    assert_close(dict(prefixes(head, pairs, N, QUERIES))[N], want)
    # Self-attention: the tokens are the queries, the values stay values.
    own = dict(prefixes(head, tokens, [40, 400]))
    assert_close(own[40], by_hand(head, TOKENS[:40], VALUES[:40], TOKENS[:40]))
    assert_close(own[400], by_hand(head, TOKENS[:400], VALUES[:400], TOKENS[:400]))


def test_one_key_gives_its_value():
    head = Head(normal(D, D), normal(2, D, seed=5))
    want = (head.V @ TOKENS[0]).expand(M, 2)
    assert_close(stream(head, TOKENS[:1], QUERIES), want)
    assert_close(next(prefixes(head, TOKENS, 1, QUERIES))[1], want)
    assert_close(next(prefixes(head, TOKENS[:1], 1))[1], want[:1])


def test_queries_of_any_batch_shape():
    head = HEADS["three heads"]
    want = by_hand(head, TOKENS, TOKENS, QUERIES)
    assert_close(stream(head, TOKENS, QUERIES.reshape(3, 3, D), block=99), want.reshape(3, 3, 3, 2))
    assert_close(stream(head, TOKENS, QUERIES[0], block=99), want[:, 0])
    for n, got in prefixes(head, TOKENS, [N], QUERIES.reshape(3, 3, D)):
        assert (n, got.shape) == (N, (3, 3, 3, 2))


@pytest.mark.parametrize("scale", [1e6, -1e6])
def test_huge_scores(scale):
    # Scores 1e6·(0, 1, 2, …)/1000 in blocks: the differences of 1000 leave one key with all the weight.
    keys = torch.arange(1000, dtype=torch.float64)[:, None] / 1000
    head = Head([[scale]])
    want = torch.tensor([[0.999 if scale > 0 else 0.0]], dtype=torch.float64)
    for block in (20, 64, 1000):
        assert_close(stream(head, keys, [[1.0]], block=block), want, rtol=0, atol=0)
    got = dict(prefixes(head, keys, [1, 500, 1000], [[1.0]]))
    assert [float(y) for y in got.values()] == ([0.0, 0.499, 0.999] if scale > 0 else [0.0, 0.0, 0.0])


@pytest.mark.parametrize("shift", [1e6, -1e6])
def test_a_common_shift_of_the_scores_changes_nothing_but_their_rounding(shift):
    # The last coordinate adds `shift` to every score; rounding it moves scores by 1e6 ε, weights by as much.
    keys = torch.cat([TOKENS, torch.ones(N, 1, dtype=torch.float64)], 1)
    A = torch.zeros(D + 1, D, dtype=torch.float64)
    A[:D] = torch.eye(D)
    head = Head(A)
    queries = QUERIES.clone()
    plain = stream(head, keys, queries, block=50)
    A_shifted = torch.cat([A, torch.zeros(D + 1, 1, dtype=torch.float64)], 1)
    A_shifted[D, D] = shift
    shifted_queries = torch.cat([queries, torch.ones(M, 1, dtype=torch.float64)], 1)
    assert_close(stream(Head(A_shifted), keys, shifted_queries, block=50), plain, rtol=0, atol=1e-8)


def test_gradients_pass_through():
    A = normal(D, D).requires_grad_()
    (got,) = torch.autograd.grad(stream(Head(A), TOKENS, QUERIES, block=99).square().sum(), A)
    (want,) = torch.autograd.grad(by_hand(Head(A), TOKENS, TOKENS, QUERIES).square().sum(), A)
    assert_close(got, want)


# --- sources ----------------------------------------------------------------------------------------


def save_safetensors(path: str, tensor: torch.Tensor, code: str) -> None:
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    entry = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [0, len(raw)]}
    header = json.dumps({"keys": entry}).encode()
    Path(path).write_bytes(len(header).to_bytes(8, "little") + header + raw)


def test_files_arrays_lists_and_generators_give_the_same():
    head = HEADS["one head"]
    np.save("tokens.npy", TOKENS.numpy())
    np.save("values.npy", VALUES.numpy())
    save_safetensors("tokens.safetensors", TOKENS, "F64")
    sources = {
        "path": "tokens.npy",
        "Path": Path("tokens.safetensors"),
        "opened": open_rows("tokens.safetensors", "keys"),
        "array": TOKENS.numpy(),
        "list": list(TOKENS.split(60)),
        "arrays": [block.numpy() for block in TOKENS.split(60)],
        "with empty blocks": [TOKENS[:0], TOKENS[:99], TOKENS[:0], TOKENS[99:]],
    }
    want = by_hand(head, TOKENS, TOKENS, QUERIES)
    for name, source in sources.items():
        assert_close(stream(head, source, QUERIES, block=64), want, msg=name)
        assert_close(dict(prefixes(head, source, [3, N], QUERIES, block=64))[N], want, msg=name)
    pairs = zip(open_rows("tokens.npy").blocks(64), open_rows("values.npy").blocks(64), strict=True)
    assert_close(stream(Head(head.A), pairs, QUERIES), by_hand(Head(head.A), TOKENS, VALUES, QUERIES))


@pytest.mark.parametrize(("code", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision_files_name_both_dtypes(code, dtype):
    save_safetensors("half.safetensors", TOKENS.to(dtype), code)
    with pytest.raises(InputError, match=rf"tokens has dtype {dtype}, but the rest is torch.float64"):
        stream(HEADS["one head"], "half.safetensors", QUERIES)
    # Converting block by block is the way to use them.
    converted = (block.double() for block in open_rows("half.safetensors").blocks(64))
    want = by_hand(HEADS["one head"], *[TOKENS.to(dtype).double()] * 2, QUERIES)
    assert_close(stream(HEADS["one head"], converted, QUERIES), want)


def test_prefixes_take_no_more_blocks_than_they_need():
    taken = []

    def endless() -> Iterator[torch.Tensor]:
        while True:
            taken.append(len(taken))
            yield TOKENS[:100]

    curve = prefixes(HEADS["one head"], endless(), [50, 150, 300], QUERIES)
    assert taken == []
    assert (next(curve)[0], len(taken)) == (50, 1)
    assert (next(curve)[0], len(taken)) == (150, 2)
    assert (next(curve)[0], len(taken)) == (300, 3)
    assert next(curve, None) is None
    assert len(taken) == 3


def test_sizes_are_sorted_and_counted_once():
    got = prefixes(HEADS["one head"], TOKENS, np.array([30, 3, 30, 7]), QUERIES)
    assert [n for n, _ in got] == [3, 7, 30]
    assert [n for n, _ in prefixes(HEADS["one head"], TOKENS, 1e2)] == [100]


# --- refusals ---------------------------------------------------------------------------------------


def test_weighted_tokens():
    tokens = Empirical(TOKENS[:2], weights=[0.25, 0.75])
    with pytest.raises(InputError, match="equally weighted tokens; use head"):
        stream(HEADS["one head"], tokens, QUERIES)
    with pytest.raises(InputError, match="equally weighted tokens; use head"):
        prefixes(HEADS["one head"], tokens, 1)


def test_more_tokens_than_there_are():
    np.save("tokens.npy", TOKENS.numpy())
    for source in (TOKENS, Empirical(TOKENS), "tokens.npy"):  # known at once
        with pytest.raises(InputError, match="n = 501 was asked for, but there are only 500 tokens"):
            prefixes(HEADS["one head"], source, [5, 501], QUERIES)
    curve = prefixes(HEADS["one head"], iter([TOKENS]), [5, 501], QUERIES)
    assert next(curve)[0] == 5
    with pytest.raises(InputError, match="n = 501 was asked for, but there are only 500 tokens"):
        next(curve)
    with pytest.raises(InputError, match="there are only 0 tokens"):
        next(prefixes(HEADS["one head"], iter([]), 1, QUERIES))


@pytest.mark.parametrize("tokens", [iter([]), [TOKENS[:0]], TOKENS[:0]], ids=["iterator", "blocks", "tensor"])
def test_no_tokens(tokens):
    with pytest.raises(InputError, match="tokens are empty: attention needs at least one key"):
        stream(HEADS["one head"], tokens, QUERIES)


@pytest.mark.parametrize("tokens", ["tokens.npy", [TOKENS]])
def test_self_attention_of_tokens_that_are_not_in_memory(tokens):
    np.save("tokens.npy", TOKENS.numpy())
    with pytest.raises(InputError, match="needs the tokens in memory: pass a tensor, or give queries"):
        prefixes(HEADS["one head"], tokens, 5)


def test_a_pair_is_not_two_blocks():
    with pytest.raises(InputError, match=r"got tuple: keys with their values are Empirical\(keys, values\)"):
        stream(HEADS["one head"], (TOKENS, TOKENS), QUERIES)


def test_a_law_cannot_be_streamed():
    with pytest.raises(InputError, match=r"tokens must be a matrix, .* got Gaussian"):
        opened(Gaussian(cov=1.0, dim=D))


def test_linear_attention():
    for call in (stream, prefixes):
        with pytest.raises(InputError, match="for softmax heads, got linear attention"):
            call(HEADS["one head"].linear(), TOKENS, 1 if call is prefixes else QUERIES)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (TOKENS[0], r"an \(n, d\) matrix of keys, or a pair \(keys, values\), got shape \(6,\)"),
        (TOKENS[None], r"got shape \(1, 500, 6\)"),
        ([1.0, 2.0], "got list"),
        ((TOKENS, TOKENS, TOKENS), "got tuple"),
        ((TOKENS, VALUES[0]), r"got shape \(4,\)"),
        ((TOKENS, VALUES[:3]), "one value a key, got 500 keys and 3 values"),
        (TOKENS[:, :5], r"tokens must have shape \(\*batch, 6\), got \(500, 5\)"),
        (TOKENS.float(), "tokens has dtype torch.float32, but the rest is torch.float64"),
        (TOKENS.long(), "tokens must be floating point, got torch.int64"),
        ((TOKENS, VALUES.long()), "values must be floating point, got torch.int64"),
        ((TOKENS, VALUES.float()), "values has dtype torch.float32"),
        ((TOKENS, VALUES / 0), "values has 2000 entries that are nan or infinite"),
        (
            TOKENS * torch.tensor([1, 1, torch.inf, 1, 1, 1]),
            "tokens has 500 entries that are nan or infinite",
        ),
    ],
)
def test_unusable_blocks(block, message):
    with pytest.raises(InputError, match=message):
        stream(Head(normal(D, D)), [block], QUERIES)


def test_values_that_do_not_fit_v_or_each_other():
    with pytest.raises(InputError, match=r"values must have shape \(\*batch, 6\), got \(500, 4\)"):
        stream(HEADS["small V"], Empirical(TOKENS, VALUES), QUERIES)
    with pytest.raises(InputError, match=r"values must have shape \(\*batch, 5\), got \(500, 6\)"):
        stream(Head(normal(D, D), normal(2, 5)), TOKENS, QUERIES)
    with pytest.raises(InputError, match=r"values must have shape \(\*batch, 4\), got \(500, 6\)"):
        stream(Head(normal(D, D)), [(TOKENS, VALUES), TOKENS], QUERIES)


def test_one_bad_number_deep_in_a_file_is_found():
    tokens = TOKENS.clone()
    tokens[321, 2] = torch.nan
    np.save("tokens.npy", tokens.numpy())
    with pytest.raises(InputError, match="tokens has 1 entries that are nan or infinite"):
        stream(HEADS["one head"], "tokens.npy", QUERIES, block=50)
    assert [n for n, _ in prefixes(HEADS["one head"], "tokens.npy", 300, QUERIES, block=50)] == [300]


def test_arguments_are_checked_before_anything_is_read():
    never = iter([TOKENS[0]])
    for call in (
        lambda: prefixes(HEADS["one head"], never, 0, QUERIES),
        lambda: prefixes(HEADS["one head"], never, 5, QUERIES, block=0),
        lambda: stream(HEADS["one head"], never, QUERIES, block=0),
    ):
        with pytest.raises(InputError, match="must be a whole number of at least 1, got 0"):
            call()
    with pytest.raises(InputError, match=r"queries must have shape \(\*batch, 6\)"):
        prefixes(HEADS["one head"], never, 5, QUERIES[:, :5])
    with pytest.raises(InputError, match=r"queries must have shape \(\*batch, 5\)"):
        prefixes(Head(normal(D, 5)), TOKENS, 5)
    assert next(never) is not None


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match=r"no file .*nowhere\.npy"):
        prefixes(HEADS["one head"], "nowhere.npy", 5, QUERIES)
