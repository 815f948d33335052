"""Budgets for a model's answer, predictions, and the files of a run."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import transformers

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.designs.by_query import FEWEST
from attnlimit.errors import InputError
from attnlimit.models.analyse.analyze import ANSWER_QUERIES, Reading, analyze
from attnlimit.models.analyse.run import ANSWER_LEVELS, Run
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.answer import ARRAYS, BASE, FOLLOWING, SPACE_WORDS
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.text import texts
from attnlimit.report.html.analysis import answer_table

READING = Reading(tokens=96, passages=2, queries=16)


@pytest.fixture(scope="module")
def bert() -> Loaded:
    return load(packaged_bert())


@pytest.fixture(scope="module")
def llama(bert) -> Loaded:
    config = transformers.LlamaConfig(
        vocab_size=len(bert.tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    return Loaded(model, bert.tokenizer, "tiny", "causal-lm")


@pytest.fixture(scope="module")
def run(llama) -> Run:
    return analyze(llama, texts(), reading=READING)


@pytest.fixture(scope="module")
def embedding(bert) -> Run:
    return analyze(bert, texts(), reading=Reading(tokens=48, passages=1, queries=4))


class TestAims:
    def test_kl(self, run):
        assert run.facts.answer == run.answer.unit == "nats"
        full = run.budgets(kl=1e-12)
        assert full.predicted.value == 0
        assert full.share == pytest.approx(1)
        assert all(one.n is None for one in full.entries)
        shares = []
        for most in (1e-2, 1e-3, 1e-4):
            made = run.budgets(kl=most)
            assert 0 <= made.predicted.value <= most * (1 + 1e-12)
            assert run.predict(made).value <= most * (1 + 1e-4)  # on the same queries
            assert made.predicted_kl == made.predicted.value
            assert made.predicted.value == pytest.approx(sum(one.answer for one in made.entries), rel=1e-9)
            assert made.predicted.unit == run.predict(made).unit == "nats"
            assert (made.text, made.space) == (run.facts.text, SPACE_WORDS)
            shares.append(made.share)
        assert shares == sorted(shares)

    def test_perplexity_is_a_relative_growth(self, run):
        made = run.budgets(perplexity=0.01)
        assert made.predicted.value <= torch.tensor(1.01).log()
        assert made.entries == run.budgets(kl=float(torch.tensor(1.01, dtype=torch.float64).log())).entries

    def test_keys_and_total(self, run):
        values = []
        for share in (0.3, 0.5, 0.8):
            made = run.budgets(keys=share)
            assert 0.9 * share < made.share <= share * (1 + 1e-6)
            visible = sum(one.visible_keys for one in made.entries)
            same = run.budgets(total=int(share * visible), split="answer")
            assert same.total <= int(share * visible)
            assert same.total == pytest.approx(made.total, rel=0.1)
            values.append(run.predict(made).value)
        assert values == sorted(values, reverse=True)
        whole = run.budgets(keys=1.0)
        assert all(one.n is None for one in whole.entries)
        assert whole.predicted.value == 0

    def test_with_less_choice_it_is_no_better(self, run):
        """On the queries that they were chosen on."""
        same, alone, both = (run.budgets(keys=0.4, policy=policy) for policy in ("same", "head", "best"))
        assert all(one.by_query is None for one in same.entries + alone.entries)
        assert len({(one.sampling, one.n) for one in same.entries}) == 1
        assert len({(one.sampling, one.n) for one in alone.entries}) > 1
        assert run.predict(both).value <= run.predict(alone).value <= run.predict(same).value
        assert same.predicted.value == pytest.approx(run.predict(same).value, rel=1e-4)
        assert both.policy.endswith("by head and query")
        assert alone.policy.endswith("by head")
        assert same.policy.endswith("one design for all heads")
        few = run.budgets(kl=1e-2, policy="same")
        assert few.predicted.value <= 1e-2
        assert few.total >= run.budgets(kl=1e-2, policy="head").total

    def test_levels_are_the_budgets_for_them(self, run):
        assert len(run.answer_levels) == len(ANSWER_LEVELS)
        assert run.answer_levels is run.answer_levels
        for level, made in zip(ANSWER_LEVELS, run.answer_levels, strict=True):
            assert made == run.budgets(kl=level)
            assert made.predicted.value <= level * (1 + 1e-12)
        shares = [made.share for made in run.answer_levels]
        assert shares == sorted(shares)

    def test_levels_that_the_same_keys_reach_are_one_row(self, run, monkeypatch):
        rows = answer_table(run)[1]
        monkeypatch.setitem(vars(run), "answer_levels", run.answer_levels * 2)
        assert answer_table(run)[1] == rows

    def test_queries_of_the_answer(self, run, embedding):
        assert ANSWER_QUERIES == 3
        assert len(run.answer.passage) == ANSWER_QUERIES * READING.queries
        assert run.answer.passage.bincount().tolist() == [24, 24]
        assert len(embedding.answer.passage) == 12
        assert run.facts.queries == 16  # of a head's own error

    def test_they_run(self, run, llama):
        """The model takes them, and reads about what they say."""
        made = run.budgets(keys=0.4)
        ids = torch.randint(100, 20_000, (4, 96), generator=torch.Generator().manual_seed(0))
        with torch.no_grad(), sampled_attention(llama.model, made, generator=0) as attended:
            llama.model(input_ids=ids)
        assert 0.3 < attended.share < 0.55

    def test_change_of_an_encoder(self, embedding):
        made = embedding.budgets(change=1e-3)
        assert made.predicted.value <= 1e-3
        assert made.predicted.unit == "squared change of the embedding"
        assert made.predicted_kl is None
        with pytest.raises(
            InputError, match="counted in squared change of the embedding: give change, not kl"
        ):
            embedding.budgets(kl=0.01)
        with pytest.raises(InputError, match="give change, not perplexity"):
            embedding.budgets(perplexity=0.01)

    def test_refused(self, run):
        with pytest.raises(InputError, match="counted in nats: give kl or perplexity, not change"):
            run.budgets(change=0.1)
        with pytest.raises(InputError, match=r"Give one of rel_error, kl.*; got kl and keys"):
            run.budgets(kl=0.1, keys=0.3)
        with pytest.raises(InputError, match="got rel_error and kl"):
            run.budgets(0.1, kl=0.1)
        for split in (None, "output"):
            with pytest.raises(InputError, match=r"at most 1, got 1\.5: total is a number of them"):
                run.budgets(keys=1.5, split=split)
        with pytest.raises(
            InputError,
            match=f"A total of 10 keys is too small: all heads together read at least {_least(run):.0f},",
        ):
            run.budgets(total=10)
        with pytest.raises(
            InputError, match=r"10 keys is too small: one design for all heads reads at least"
        ):
            run.budgets(total=10, policy="same")
        with pytest.raises(InputError, match=r"policy must be one of best, head, same for .* got 'kept'"):
            run.budgets(kl=0.1, policy="kept")
        for bad in (0.0, -1.0, float("nan")):
            with pytest.raises(InputError, match="kl must be"):
                run.budgets(kl=bad)

    def test_other_splits_are_as_before(self, run):
        made = run.budgets(keys=0.5, split="output")
        assert made.predicted is None
        assert made.share <= 0.5
        assert made.text == run.facts.text


def _least(run: Run) -> float:
    """4 drawn keys in each of 8 heads, or all that a query sees."""
    return 8 * float(run.answer.counted(run.answer.seen[0, 0].clamp_max(4)).mean())


class TestPredict:
    def test_any_budgets_of_the_space(self, run):
        own = Sampling(draw=Different(), kept=BASE, weight="rest")
        few, many = (run.predict(Budgets.uniform([4, 4], n, own)) for n in (8, 32))
        assert 0 < many.value < few.value
        assert few.low <= few.value <= few.high
        assert run.predict(Budgets.uniform([4, 4], None)).value == 0
        assert run.predict(Budgets.uniform([4, 4], 8, own, tokens=96, model="tiny")) == few

    def test_what_it_cannot_tell(self, run):
        own = Sampling(draw=Different(), kept=BASE, weight="rest")
        with pytest.raises(InputError, match=r"made for texts of 64 tokens, and the run has 96.*--tokens 64"):
            run.predict(Budgets.uniform([4, 4], 8, own, tokens=64))
        with pytest.raises(
            InputError, match="for a model of 3 layers and 4 heads, but the run is of tiny, 2"
        ):
            run.predict(Budgets.uniform([4, 4, 4], 8, own))
        with pytest.raises(InputError, match="are for other of 2 layers and 4 heads, but the run is of tiny"):
            run.predict(Budgets.uniform([4, 4], 8, own, model="other"))
        with pytest.raises(InputError, match="for another tiny, with other weights than the run's: make"):
            run.predict(replace(run.budgets(keys=0.5), weights="float32 0123"))
        for design in (replace(own, kept=Kept(sinks=3)), replace(own, weight="plain")):
            with pytest.raises(InputError, match="which the analysis has no errors for"):
                run.predict(Budgets.uniform([4, 4], 8, design))
        assert run.predict(Budgets.uniform([4, 4], 8)).value > 0  # nothing kept is among the designs


class TestFiles:
    def test_the_model_is_known_again_by_its_weights(self, llama, run, tmp_path):
        folder = run.save(tmp_path)
        assert Run.load(folder).facts.weights == run.budgets(keys=0.5).weights == llama.weights
        record = json.loads((folder / "run.json").read_text())
        del record["weights"]
        (folder / "run.json").write_text(json.dumps(record))
        assert Run.load(folder).facts.weights == ""

    def test_the_answer_comes_back(self, run, tmp_path):
        again = Run.load(run.save(tmp_path / "run"))
        assert again.answer.unit == run.answer.unit
        for name in ARRAYS:
            one, other = getattr(run.answer, name), getattr(again.answer, name)
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert again.budgets(kl=1e-3) == run.budgets(kl=1e-3)

    def test_missing_damaged_or_of_another_run(self, run, embedding, tmp_path):
        folder, other = run.save(tmp_path / "run"), embedding.save(tmp_path / "other")
        path = folder / "answer.safetensors"
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(InputError, match=r"answer\.safetensors cannot be read, .*: analyse again"):
            Run.load(folder)
        shutil.copy(other / "answer.safetensors", path)
        with pytest.raises(InputError, match=r"answer\.safetensors is not of the run beside it: analyse"):
            Run.load(folder)
        path.unlink()
        with pytest.raises(InputError, match=r"answer\.safetensors cannot be read"):
            Run.load(folder)

    def test_without_the_answer(self, llama, run, tmp_path):
        folder = run.save(tmp_path)
        plain = analyze(llama, texts(), reading=replace(READING, answer=0))
        assert plain.answer is None
        assert plain.facts.answer is None
        assert plain.to_dict()["heads"] == run.to_dict()["heads"]
        plain.save(folder)  # over a run that has one
        assert not (folder / "answer.safetensors").exists()
        again = Run.load(folder)
        assert again.answer is None
        for make in (
            lambda: again.budgets(kl=0.01),
            lambda: again.budgets(keys=0.5, split="answer"),
            lambda: again.predict(Budgets.uniform([4, 4], 8)),
        ):
            with pytest.raises(InputError, match=r"did not look at the model's answer: .*--answer on"):
                make()
        assert "output split" in again.budgets(keys=0.5).policy

    def test_budgets_by_query_come_back(self, run, tmp_path):
        made = run.budgets(keys=0.4)
        following = replace(made.entries[0], sampling=FOLLOWING.sampling, n=FEWEST, by_query=0.5)
        made = replace(made, entries=(following, *made.entries[1:]))
        again = Budgets.load(made.save(tmp_path / "budgets.json"))
        assert again == made
        assert again.predicted == made.predicted
        assert "heads by query" in repr(again)
        assert f"predicted {made.predicted}" in repr(again)


class TestCost:
    FOLLOW = HeadBudget(0, 0, Sampling(draw=Different(), kept=BASE, weight="rest"), 4, by_query=2.0)

    @pytest.mark.parametrize("first", [True, False])
    def test_is_known_of_heads_only(self, first):
        """Also beside a head with the same sampling and n."""
        pair = (self.FOLLOW, replace(self.FOLLOW, head=1, by_query=None))
        if not first:
            pair = (replace(pair[1], head=0), replace(pair[0], head=1))
        made = Budgets(model="", layers=1, heads=2, entries=pair)
        with pytest.raises(InputError, match=r"reads as many keys as each query needs, .*by_query=False"):
            made.cost(50)

    def test_what_follows_its_queries_draws_the_fewest_at_least(self):
        for changes in ({"n": 5}, {"n": None}, {"sampling": Sampling(draw=Different(), kept=BASE)}):
            with pytest.raises(InputError, match="follows its queries, so n must be 4"):
                replace(self.FOLLOW, **changes)
