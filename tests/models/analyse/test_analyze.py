"""Analysis of a model: the packaged BERT on Wikipedia, and tiny models."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from scipy import stats

from attnlimit.designs.kept import Kept
from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models.analyse.analyze import _Plan, analyze
from attnlimit.models.analyse.heads import SCORE_BINS, error_at, least_n, phase
from attnlimit.models.analyse.run import Run
from attnlimit.models.attend.sampled import sampled_output
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, load, packaged_bert
from attnlimit.models.see.text import texts, token_windows


@pytest.fixture(scope="module")
def bert() -> Loaded:
    return load(packaged_bert())


@pytest.fixture(scope="module")
def run(bert) -> Run:
    return analyze(bert, texts(), tokens=96, passages=2, queries=8, rel_error=0.3)


def test_every_head_is_reported(run):
    assert run.shape == (6, 12)
    assert len(run.heads) == 72
    one = run.heads[17]
    assert (one.layer, one.head) == (1, 5)
    assert one.n[0] == 1
    assert one.n[-1] == 96
    assert one.visible_keys == 96
    assert one.horizon > 0
    assert all(a <= b for a, b in zip(one.effective_keys, one.effective_keys[1:], strict=False))
    assert sum(one.score_counts) == 8 * 96
    low, high, bins = SCORE_BINS
    middles = low + (high - low) / bins * (torch.arange(bins) + 0.5)
    share = torch.tensor(one.score_counts) / (8 * 96)
    assert abs(float(share @ middles)) < 0.125  # centred, up to half a bin
    assert one.score_spread[0] < float(share @ middles.square()) ** 0.5 < one.score_spread[2]
    assert set(one.shares) == {"own", "sinks", "window"}
    assert one.kept_keys["sampled"] == 0
    assert 20 <= one.kept_keys["kept"] <= 37  # top keys may be in the window too
    assert one.curves["sampled"]["rms"][-1] < 1e-3  # all keys drawn: nothing is left to chance
    assert one.published_exponent == pytest.approx(1 / (2 * (1 + one.horizon**2)))


def monte_carlo(call, places, n, draws):
    """Mean square error of each head over the queries at `places`, and its standard error, by the attention that a
    sampled model computes: the text `draws` times in one batch, each with draws of its own."""
    size = (draws, -1, -1, -1)
    mask = replace(call.mask, shape=(draws, *call.mask.shape[1:]))
    query = call.query[:, :, places].expand(size)
    many = replace(
        call, query=query, key=call.key.expand(size), value=call.value.expand(size), mask=mask, real=None
    )
    budgets = [HeadBudget(call.layer, head, Kept(), n) for head in range(call.heads)]
    sampled = sampled_output(many, budgets, generator=1000 + 100 * n + call.layer).double()
    full = call.output()[:, places].double()
    errors = (sampled - full).square().sum(-1).mean(1) / full.square().sum(-1).mean(1)  # (draws, heads)
    return errors.mean(0), errors.std(0) / draws**0.5


def test_every_curve_is_that_of_sampled_attention(bert):
    """All 72 heads at three n of their grid, in standard errors of 1,000 draws: 216 numbers that should be normal.

    Each bound has a false alarm of at most 3e-3 for a right program: 4.6 for the largest, at most 3 beyond 3 (0.6 are
    expected, so that not all heads can be asked to stay within 3), and a χ² test of all together. Curves 5 % off in the
    rms error fail it by far.
    """
    found = analyze(bert, texts(), tokens=96, passages=1, queries=4, seed=3)
    window = token_windows(bert.tokenizer, texts(), 96, most=1)
    places = torch.randperm(96 - 1 - 48, generator=torch.Generator().manual_seed(3))[:4] + 48
    grid = found.heads[0].n
    sizes = (grid[0], grid[4], grid[8])
    assert sizes == (1, 7, 31)
    z = torch.zeros(3, 6, 12, dtype=torch.float64)
    wrong = torch.zeros_like(z)

    def measure(call):
        for row, n in enumerate(sizes):
            mean, spread = monte_carlo(call, places, n, 1000)
            curves = [found.heads[12 * call.layer + head].curves["sampled"]["rms"] for head in range(12)]
            exact = torch.tensor([curve[grid.index(n)] ** 2 for curve in curves], dtype=torch.float64)
            z[row, call.layer] = (mean - exact) / spread
            wrong[row, call.layer] = (mean - 1.1 * exact) / spread

    with torch.no_grad(), observe(bert.model, measure):
        bert.model(input_ids=window)
    assert float(z.abs().max()) < 4.6
    assert int((z.abs() > 3).sum()) <= 3
    limit = stats.chi2(z.numel()).ppf(0.999)
    assert float(z.square().sum()) < limit
    assert float(wrong.square().sum()) > 2 * limit  # 5 % more rms error would be seen


def test_cross_attention_is_analysed_too(bert):
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=len(bert.tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration(config).eval()
    found = analyze(
        Loaded(model, bert.tokenizer, "tiny", "seq2seq"), texts(), tokens=64, passages=1, queries=4
    )
    assert [(one.name.split(".")[-1], one.cross) for one in found.heads[::4]] == [
        ("SelfAttention", False), ("SelfAttention", False), ("EncDecAttention", True),
    ]  # fmt: skip
    assert found.heads[8].visible_keys == 64
    assert set(found.heads[8].shares) == {"sinks"}
    assert all(one.output_share > 0 for one in found.heads)
    entry = found.budgets(0.2, policy="kept").entries[8]
    assert 16 <= found.heads[8].kept_keys["kept"] <= 20  # no own token, no window
    assert entry.sampled is None or entry.effective_keys == pytest.approx(
        entry.sampled + found.heads[8].kept_keys["kept"]
    )


def test_output_shares_are_those_of_the_projection(bert, run):
    """By the weights of BERT's own output projection."""
    weights = {}

    def project(call):
        dense = bert.model.encoder.layer[call.layer].attention.output.dense
        places = [row for place, row in _Plan(bert, windows, 8, False, 0).places if place == len(seen)]
        each = torch.einsum("lhd,ehd->lhe", call.output()[0, places], dense.weight.view(384, 12, 32)).double()
        weights.setdefault(call.layer, []).append((each.square().sum((0, 2)), each.sum(1).square().sum()))

    windows, seen = token_windows(bert.tokenizer, texts(), 96, most=2), []
    for row in windows:
        with torch.no_grad(), observe(bert.model, project):
            bert.model(input_ids=row[None])
        seen.append(row)
    for one in run.heads:
        part, whole = (sum(values) for values in zip(*weights[one.layer], strict=True))
        assert one.output_share == pytest.approx(float(part[one.head] / whole), rel=1e-4)


def test_run_survives_its_files(run, tmp_path):
    folder = run.save(tmp_path / "a" / "run")
    assert {path.name for path in folder.iterdir()} == {"run.json", "heads.parquet"}
    again = Run.load(folder)
    assert json.dumps(again.to_dict()) == json.dumps(run.to_dict())
    assert again.heads == run.heads
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "heads.parquet")
    assert table.num_rows == sum(2 * len(one.n) for one in run.heads)


def test_same_seed_same_run(bert, run):
    again = analyze(bert, texts(), tokens=96, passages=2, queries=8, rel_error=0.3)
    assert again.heads == run.heads


def test_budgets(run):
    budgets = run.budgets(0.3)
    assert (budgets.layers, budgets.heads) == (6, 12)
    for entry, one in zip(budgets.entries, run.heads, strict=True):
        assert entry.effective_keys <= one.visible_keys
        if entry.sampled is not None:
            assert entry.predicted_error <= 0.3 + 1e-9
    cheap, dear = run.budgets(0.5), run.budgets(0.1)
    assert cheap.total < budgets.total < dear.total
    assert budgets.scheme == "without replacement"
    totals = {}
    for split in ("output", "head", "uniform"):
        made = run.budgets(total=72 * 30, policy="sampled", split=split)
        assert sum(entry.sampled or round(entry.visible_keys) for entry in made.entries) <= 72 * 30
        shares = [one.output_share for one in run.heads]
        squares = [entry.predicted_error**2 for entry in made.entries]
        totals[split] = (sum(squares), sum(a * b for a, b in zip(shares, squares, strict=True)))
    assert totals["head"][0] < totals["output"][0]
    assert totals["head"][0] < totals["uniform"][0]
    assert totals["output"][1] < min(totals["head"][1], totals["uniform"][1])


def test_corpus_pools_the_keys(bert):
    found = analyze(bert, texts(), tokens=40, passages=3, queries=6, population="corpus")
    one = found.heads[0]
    assert one.visible_keys == 3 * 38  # without [CLS] and [SEP]
    assert one.shares == {}
    with pytest.raises(InputError, match="population='context'"):
        found.budgets(0.1)


def test_decoders_see_only_their_past(bert):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=31_000, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
    tiny = Loaded(model, bert.tokenizer, "tiny", "causal-lm")
    found = analyze(tiny, texts(), tokens=64, passages=1, queries=4)
    assert found.facts["causal"]
    assert 32 < found.heads[0].visible_keys < 64
    with pytest.raises(ModelNotSupported, match="rotary positions"):
        analyze(tiny, texts(), tokens=64, population="corpus")


def test_least_n_and_error_between_grid_points():
    n = (1, 10, 100)
    square = torch.tensor([[1.0, 0.1, 0.01]], dtype=torch.float64)  # exactly 1/n
    assert least_n(n, square.sqrt(), 0.2).tolist() == [25.0]
    assert least_n(n, square.sqrt(), 0.05).tolist() == [float("inf")]
    assert least_n(n, square.sqrt(), 2.0).tolist() == [1.0]
    assert error_at(n, tuple(square.sqrt()[0].tolist()), 25) == pytest.approx(0.2)


def test_phases_in_words():
    assert phase(40, 200.0, 400.0, 0.05) == "averages: 40 keys are enough"
    assert phase(None, 1.0, 400.0, 0.05) == "picks one key: do not sample"
    assert phase(None, 50.0, 400.0, 0.05) == "needs all its keys for 5 %"
    assert phase(300, 50.0, 400.0, 0.05) == "averages slowly: 300 of 400 keys"


def test_bad_input(bert, run, tmp_path):
    with pytest.raises(InputError, match="'context' or 'corpus', got 'all'"):
        analyze(bert, ["text"], population="all")
    with pytest.raises(InputError, match="No text is as long"):
        analyze(bert, ["a short text"])
    with pytest.raises(InputError, match="has only 512 positions"):
        analyze(bert, ["text"], tokens=513)
    with pytest.raises(InputError, match="policy must be one of best"):
        run.budgets(0.1, policy="greedy")
    with pytest.raises(InputError, match="either rel_error or total"):
        run.budgets()
    with pytest.raises(InputError, match="split must be one of output, head, uniform; got 'best'"):
        run.budgets(total=1000, split="best")
    with pytest.raises(InputError, match="is no run"):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        Run.load(tmp_path)
    record = run.to_dict() | {"schema": "attnlimit.run/0"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="another schema"):
        Run.load(tmp_path)
