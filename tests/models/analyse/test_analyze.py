"""Analysis of a model: the packaged BERT on Wikipedia, and tiny models."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from scipy import stats

from attnlimit.designs import Kept, Sampling
from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models.analyse.analyze import Reading, _Plan, analyze
from attnlimit.models.analyse.heads import SCORE_BINS, HeadReport
from attnlimit.models.analyse.run import Run
from attnlimit.models.attend.sampled import sampled_output
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.budget.needed import KEEPING, RANDOM, Needed, Way
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.text import texts, token_windows
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.report.figures import heads
from attnlimit.report.figures.style import save
from tests.versions import need_t5

SMALL = Reading(tokens=96, passages=2, queries=8)


@pytest.fixture(scope="module")
def bert() -> Loaded:
    return load(packaged_bert())


@pytest.fixture(scope="module")
def run(bert) -> Run:
    return analyze(bert, texts(), rel_error=0.3, reading=SMALL)


def test_every_head_is_reported(run):
    assert run.shape == (6, 12)
    assert len(run.heads) == 72
    one = run.heads[17]
    assert (one.layer, one.head) == (1, 5)
    random, keeping = one.ways
    assert (random.sampling, keeping.sampling) == (RANDOM, KEEPING)
    assert random.curve.n[0] == 1
    assert random.curve.n[-1] == random.curve.full == 96
    assert one.visible_keys == 96
    for way in one.ways:
        assert way.curve.keys[-1] == 96  # all keys drawn: nothing is left to chance
        assert way.curve.error[-1] == 0
    assert one.horizon > 0
    assert all(a <= b for a, b in zip(one.effective_keys, one.effective_keys[1:], strict=False))
    low, high = one.effective_interval
    assert 1 <= low < one.effective_keys[1] < high <= one.visible_keys
    for each in run.heads:
        assert each.effective_interval[0] <= each.effective_keys[1] <= each.effective_interval[1]
    assert sum(one.score_counts) == 8 * 96
    low, high, bins = SCORE_BINS
    middles = low + (high - low) / bins * (torch.arange(bins) + 0.5)
    share = torch.tensor(one.score_counts) / (8 * 96)
    assert abs(float(share @ middles)) < 0.125  # centred, up to half a bin
    assert one.score_spread[0] < float(share @ middles.square()) ** 0.5 < one.score_spread[2]
    assert set(one.shares) == {"own", "sinks", "window"}
    assert random.kept == 0
    assert 20 <= keeping.kept <= 37  # top keys may be in the window too
    assert [curve.statistic for curve in one.band] == ["median", "p90"]
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
    budgets = [HeadBudget(call.layer, head, RANDOM, n) for head in range(call.heads)]
    sampled = sampled_output(many, budgets, generator=1000 + 100 * n + call.layer).double()
    full = call.output()[:, places].double()
    errors = (sampled - full).square().sum(-1).mean(1) / full.square().sum(-1).mean(1)  # (draws, heads)
    return errors.mean(0), errors.std(0) / draws**0.5


def test_every_curve_is_that_of_sampled_attention(bert):
    """All 72 heads at three n of their grid, in standard errors of 500 draws: 216 numbers that should be normal.

    Each bound has a false alarm of at most 3e-3 for a right program: 4.6 for the largest, at most 3 beyond 3 (0.6 are
    expected, so that not all heads can be asked to stay within 3), and a χ² test of all together. Curves 5 % off in the
    rms error fail it by far.
    """
    found = analyze(bert, texts(), reading=Reading(tokens=96, passages=1, queries=4, answer=0, seed=3))
    window = token_windows(bert.tokenizer, texts(), 96, most=1)
    places = torch.randperm(96 - 1 - 48, generator=torch.Generator().manual_seed(3))[:4] + 48
    grid = found.heads[0].ways[0].curve.n
    sizes = (grid[0], grid[4], grid[8])
    assert sizes == (1, 7, 31)
    z = torch.zeros(3, 6, 12, dtype=torch.float64)
    wrong = torch.zeros_like(z)

    def measure(call):
        for row, n in enumerate(sizes):
            mean, spread = monte_carlo(call, places, n, 500)
            curves = [found.heads[12 * call.layer + head].ways[0].curve for head in range(12)]
            exact = torch.tensor([curve.at(n) ** 2 for curve in curves], dtype=torch.float64)
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
    need_t5()
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=len(bert.tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration(config).eval()
    tiny = Loaded(model, bert.tokenizer, "tiny", "seq2seq")
    found = analyze(tiny, texts(), reading=Reading(tokens=64, passages=1, queries=4))
    assert [(one.name.split(".")[-1], one.cross) for one in found.heads[::4]] == [
        ("SelfAttention", False), ("SelfAttention", False), ("EncDecAttention", True),
    ]  # fmt: skip
    assert found.heads[8].visible_keys == 64
    assert set(found.heads[8].shares) == {"sinks"}
    assert all(one.output_share > 0 for one in found.heads)
    entry, keeping = found.budgets(0.2, policy="kept").entries[8], found.heads[8].ways[1]
    assert keeping.sampling.kept == Kept(sinks=4, top=16)  # no own token, no window
    assert 16 <= keeping.kept <= 20
    assert entry.n is None or entry.keys == pytest.approx(entry.n + keeping.kept)


def test_output_shares_are_those_of_the_projection(bert, run):
    """By the weights of BERT's own output projection."""
    weights = {}

    def project(call):
        dense = bert.model.encoder.layer[call.layer].attention.output.dense
        places = [row for place, row in _Plan(bert, windows, SMALL, "").places if place == len(seen)]
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
    assert {path.name for path in folder.iterdir()} == {"run.json", "heads.parquet", "answer.safetensors"}
    again = Run.load(folder)
    assert json.dumps(again.to_dict()) == json.dumps(run.to_dict())
    assert again.facts == run.facts
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "heads.parquet")
    assert table.num_rows == sum(len(way.curve.n) for one in run.heads for way in one.ways)


def test_same_seed_same_run(bert):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertModel(
            transformers.BertConfig(vocab_size=len(bert.tokenizer), **sizes)
        ).eval()
    tiny = Loaded(model.requires_grad_(False), bert.tokenizer, "tiny", "encoder")
    one, again = (analyze(tiny, texts(), rel_error=0.3, reading=SMALL) for _ in range(2))
    assert again.to_dict() == one.to_dict()


def test_budgets(run):
    budgets = run.budgets(0.3)
    assert (budgets.layers, budgets.heads) == (6, 12)
    for entry, one in zip(budgets.entries, run.heads, strict=True):
        assert entry.keys <= one.visible_keys
        if entry.n is not None:
            assert entry.predicted_error <= 0.3 + 1e-9
    cheap, dear = run.budgets(0.5), run.budgets(0.1)
    assert cheap.total < budgets.total < dear.total
    totals = {}
    for split in ("output", "head", "uniform"):
        made = run.budgets(total=72 * 30, policy="sampled", split=split)
        assert 72 * 29 < made.total <= 72 * 30
        shares = [one.output_share for one in run.heads]
        squares = [entry.predicted_error**2 for entry in made.entries]
        totals[split] = (sum(squares), sum(a * b for a, b in zip(shares, squares, strict=True)))
    assert totals["head"][0] < totals["output"][0]
    assert totals["head"][0] < totals["uniform"][0]
    assert totals["output"][1] < min(totals["head"][1], totals["uniform"][1])


def test_corpus_pools_the_keys(bert):
    found = analyze(bert, texts(), reading=Reading(tokens=40, passages=3, queries=6, population="corpus"))
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
    found = analyze(tiny, texts(), reading=Reading(tokens=64, passages=1, queries=4))
    assert found.facts.causal
    assert 32 < found.heads[0].visible_keys < 64
    with pytest.raises(ModelNotSupported, match="rotary positions"):
        analyze(tiny, texts(), reading=Reading(tokens=64, population="corpus"))


@pytest.fixture
def tiny(bert) -> Loaded:
    config = type(bert.model.config)(
        vocab_size=31_000, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = type(bert.model)(config).eval().requires_grad_(False)
    return Loaded(model, bert.tokenizer, "tiny", "encoder")


ONE = Reading(tokens=24, passages=1, queries=2)


@pytest.mark.parametrize("population", ["context", "corpus"])
@pytest.mark.parametrize("answer", [0, 2])
def test_scores_too_far_apart_are_those_of_no_model(tiny, answer, population):
    tiny.model.encoder.layer[1].attention.self.query.weight *= 1e9
    with pytest.raises(
        ModelNotSupported, match=r"layer\.1\.attention\.self, head \d: the scores .* up to 99,000.*damaged"
    ):
        analyze(tiny, texts()[:1], reading=replace(ONE, answer=answer, population=population))


def test_a_layer_that_adds_nothing_has_no_shares(tiny):
    tiny.model.encoder.layer[1].attention.output.dense.weight *= 0
    found = analyze(tiny, texts()[:1], reading=ONE)
    assert [one.output_share > 0 for one in found.heads] == [True, True, False, False]
    for one in tiny.model.parameters():
        one *= 0
    with pytest.raises(InputError, match=r"Every head of tiny puts out zeros.*its weights are zero\. Copy"):
        analyze(tiny, texts()[:1], reading=ONE)


def test_heads_whose_scores_are_all_equal_are_drawn(tiny, tmp_path):
    """Pruned: the horizon is 0, which has no place on a logarithmic axis."""
    for layer in tiny.model.encoder.layer:
        layer.attention.self.query.weight *= 0
    run = analyze(tiny, texts()[:1], reading=replace(ONE, answer=0))
    assert {one.horizon for one in run.heads} == {0.0}
    for drawn in (heads.heat_map, heads.curves, heads.slopes):
        assert save(drawn(run), tmp_path / "a.png").stat().st_size > 1000


def test_a_sliding_window_is_all_that_a_head_can_need(bert):
    """Queries see 24 keys, whatever the length of the text."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(
        vocab_size=31_000, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, sliding_window=24,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.MistralForCausalLM(config).eval()
    tiny = Loaded(model, bert.tokenizer, "tiny", "causal-lm")
    found = analyze(tiny, texts(), reading=Reading(tokens=96, passages=1, queries=4))
    for one in found.heads:
        assert one.visible_keys == 24
        assert [way.curve.keys_at(way.curve.n[-1]) for way in one.ways] == [24, 24]
        for error in (1e-6, 0.02, 0.5):
            need = one.needed(error)
            assert need.keys <= 24
            assert need.all or need.keys < 24
        assert one.needed(1e-6).all
        assert str(one.needed(1e-6)) == "all"


def head(sampled: float, kept: float, visible: float = 400.0, effective: float = 200.0) -> HeadReport:
    """c²(1/n − 1/N) for both ways, with 20 keys kept in the second."""

    def way(sampling: Sampling, size: float, always: int) -> Way:
        full = int(visible) - always
        n = (1, 10, 100, full)
        error = torch.tensor([size * (1 / k - 1 / full) ** 0.5 for k in n], dtype=torch.float64)
        read = torch.tensor([k + always for k in n], dtype=torch.float64)
        return Way(sampling, ErrorCurve(n, error, keys=read, full=full))

    ways = (way(RANDOM, sampled, 0), way(KEEPING, kept, 20))
    spread = (effective, effective, effective)
    return HeadReport(
        0, 0, "head", False, 1.0, (1.0, 1.0, 1.0), (1,), spread, visible, {}, ways, (ways[0].curve,) * 2, 0.5, (1, 9),
        0.5, 0.4, 0.1,
    )  # fmt: skip


class TestNeeded:
    """The one definition: keys kept and drawn, never more than are seen."""

    def test_is_the_least_of_the_cheaper_way(self):
        """Random keys: 4/n − 4/400 ≤ 0.09 from n = 40 on. Kept: 0.25/n − 0.25/380 ≤ 0.09 from n = 3 on, with 20 more."""
        one = head(2.0, 0.5)
        assert one.needed(0.3, "sampled") == Needed(RANDOM, 40, 40.0, False)
        assert one.needed(0.3, "kept") == Needed(KEEPING, 3, 23.0, False)
        assert one.needed(0.3) == one.needed(0.3, "kept")
        assert one.needed(1.0) == Needed(RANDOM, 4, 4.0, False)

    def test_is_never_more_than_is_seen_and_then_all(self):
        one = head(2.0, 2.0)
        assert one.needed(0.001) == Needed(RANDOM, None, 400.0, True)
        assert one.phase(0.001) == "needs all its keys for 0.1 %"

    def test_keys_are_counted_for_queries_that_see_fewer(self):
        """Half of the queries see 10 keys, half 30: drawing 20 reads 15 in the mean."""
        read = torch.tensor([1.0, 10.0, 15.0, 20.0], dtype=torch.float64)
        error = torch.tensor([1.0, 0.3, 0.1, 0.0], dtype=torch.float64)
        one = replace(
            head(1.0, 1.0),
            visible_keys=20.0,
            ways=(Way(RANDOM, ErrorCurve((1, 10, 20, 30), error, keys=read, full=30)),),
        )
        assert one.needed(0.1) == Needed(RANDOM, 20, 15.0, False)

    def test_the_same_everywhere(self, run, tmp_path):
        import pyarrow.parquet as pq

        folder = run.save(tmp_path / "run")
        record = json.loads((folder / "run.json").read_text())
        table = pq.read_table(folder / "heads.parquet").to_pylist()
        grid, budgets = run.keys_needed(), run.budgets(0.3)
        for one, stored, entry in zip(run.heads, record["heads"], budgets.entries, strict=True):
            need = one.needed(0.3)
            assert 1 <= need.keys <= one.visible_keys
            assert need.all == (need.n is None)
            assert stored["needed"] == {
                "sampling": need.sampling.to_dict(), "n": need.n, "keys": need.keys, "all": need.all
            }  # fmt: skip
            rows = [row for row in table if (row["layer"], row["head"]) == (one.layer, one.head)]
            assert {(row["needed_keys"], row["needed_all"]) for row in rows} == {(need.keys, need.all)}
            assert float(grid[one.layer, one.head]) == need.keys == entry.keys
            assert entry.n == need.n

    def test_in_words(self):
        assert head(2.0, 0.5).phase(0.3) == "averages: 40 keys are enough"
        assert head(9.0, 0.5).phase(0.3) == "averages slowly: 277 of 400 keys"
        assert head(2.0, 0.5, effective=1.0).phase(0.3) == "picks one key: do not sample"
        assert head(2.0, 0.5, effective=2.0).phase(0.3) == "picks a few keys: do not sample"

    def test_curves_that_cannot_be(self):
        random = head(1.0, 1.0).ways[0].curve
        with pytest.raises(InputError, match="must end without error, where all keys are drawn"):
            Way(RANDOM, replace(random, error=random.error.flip(0)))
        with pytest.raises(InputError, match="more n cannot read fewer"):
            Way(RANDOM, replace(random, keys=random.keys.flip(0)))
        with pytest.raises(InputError, match="A query reads 400 keys, but sees 399"):
            head(1.0, 1.0, visible=400.0) and replace(head(1.0, 1.0), visible_keys=399.0)


def test_a_total_is_what_a_query_reads(run):
    """Kept keys count, whatever the policy: a total that cannot hold them is refused, or done without them."""
    for total in (72 * 10, 72 * 50):
        for split in ("output", "head", "uniform"):
            made = run.budgets(total=total, split=split)
            assert made.total <= total * (1 + 1e-9)
            assert made.total > 0.95 * total
    # each head does what is better for it
    assert RANDOM in {entry.sampling for entry in run.budgets(total=72 * 10, split="output").entries}
    assert KEEPING in {entry.sampling for entry in run.budgets(total=72 * 50, split="output").entries}
    with pytest.raises(InputError, match="A total of 720 keys is too small: 72 heads need"):
        run.budgets(total=720, policy="kept", split="output")


def damaged(run, tmp_path, change):
    record = json.loads(json.dumps(run.to_dict()))
    change(record)
    (tmp_path / "run.json").write_text(json.dumps(record))
    return Run.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(schema="attnlimit.run/1"), "schema is 'attnlimit.run/1', but this version reads"),
        (lambda r: r.pop("tokens"), "the run lacks 'tokens'"),
        (lambda r: r.update(tokens=True), "tokens: input should be a valid integer, got True"),
        (
            lambda r: r.update(population="all"),
            "population: input should be 'context' or 'corpus', got 'all'",
        ),
        (lambda r: r.update(extra=1), "extra is an unknown field"),
        (lambda r: r.update(heads={}), "heads must be a list, got dict"),
        (lambda r: r["heads"].clear(), "There are no heads"),
        (lambda r: r["heads"][0].pop("horizon"), "head 0 lacks 'horizon'"),
        (lambda r: r["heads"][0].update(ways=[]), "ways: tuple should have at least 1 item"),
        (lambda r: r["heads"][0]["ways"].pop(0), "Layer 0, head 0 has no curve of policy 'sampled': analyse"),
        (lambda r: r["heads"][0].update(score_counts=[]), "score_counts: tuple should have at least 1 item"),
        (lambda r: r.update(tokens=10**25), "tokens: input should be less than or equal to 9007199254740992"),
        (lambda r: r.update(seed=10**25), "seed: input should be less than 9223372036854775808"),
        (lambda r: r["heads"][0].update(horizon="1"), "horizon: input should be a valid number, got '1'"),
        (lambda r: r["heads"][3].update(layer=1e9), "layer: input should be a valid integer"),
        (
            lambda r: r["heads"][3].update(layer=10**9),
            "Layer 1000000000, head 3 cannot follow layer 0, head 2",
        ),
        (lambda r: r["heads"].pop(3), "Layer 0, head 4 cannot follow layer 0, head 2"),
        (lambda r: curve_of(r)["n"].reverse(), "n of a curve must increase"),
        (lambda r: curve_of(r)["error"].reverse(), "must end without error"),
        (
            lambda r: curve_of(r)["error"].__setitem__(2, -0.1),
            "error of a curve must be finite and at least 0",
        ),
        (lambda r: curve_of(r)["keys"].reverse(), "more n cannot read fewer"),
        (lambda r: curve_of(r)["keys"].__setitem__(-1, 1e6), "A query reads 1e\\+06 keys, but sees 96"),
        (lambda r: curve_of(r).pop("error"), "A curve has the fields"),
        (lambda r: r["heads"][0]["ways"][0].pop("sampling"), "way 0 lacks 'sampling'"),
        (lambda r: r["heads"][0]["needed"].update(keys=3.0), "needed is .* but its curves make .* edited"),
        (lambda r: r["heads"][0].pop("phase"), "phase is None, but its curves make"),
        (lambda r: r.update(rel_error=0.2), "needed is .* but its curves make .* edited"),
    ],
)
def test_a_damaged_or_edited_run_is_refused(run, tmp_path, change, message):
    with pytest.raises(InputError, match=rf"(?s)run\.json is not a usable run: .*{message}"):
        damaged(run, tmp_path, change)


def curve_of(record):
    return record["heads"][0]["ways"][0]["curve"]


def test_bad_input(bert, run, tmp_path):
    with pytest.raises(InputError, match="'context' or 'corpus', got 'all'"):
        Reading(population="all")
    with pytest.raises(InputError, match="No text is as long"):
        analyze(bert, ["a short text"])
    with pytest.raises(InputError, match="has only 512 positions"):
        analyze(bert, ["text"], reading=Reading(tokens=513))
    with pytest.raises(InputError, match="policy must be one of best"):
        run.budgets(0.1, policy="greedy")
    with pytest.raises(
        InputError, match="Give one of rel_error, kl, perplexity, change, keys, total; got none"
    ):
        run.budgets()
    with pytest.raises(InputError, match="split must be one of answer, output, head, uniform; got 'best'"):
        run.budgets(total=1000, split="best")
    with pytest.raises(InputError, match="split says what keys and total make least"):
        run.budgets(0.1, split="output")
    with pytest.raises(InputError, match="is no run"):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(
        InputError, match=r"run\.json is not a usable run: not valid JSON, .* makes a run that"
    ):
        Run.load(tmp_path)
