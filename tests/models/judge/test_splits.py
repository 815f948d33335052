"""Optimal split against uniform keys, horizons of single texts, what an analysis says of memory, lazy names."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from attnlimit.errors import InputError
from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.judge.downstream import (
    DownstreamCurve,
    SplitComparison,
    call_horizons,
    compare_splits,
    example_horizons,
)
from attnlimit.models.judge.tasks import Retrieval, TaskResult
from attnlimit.models.judge.trial import Trial
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import load
from attnlimit.models.see.memory import Memory, estimate_memory
from attnlimit.models.see.text import documents

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert():
    return load(packaged_bert())


@pytest.fixture(scope="module")
def articles():
    return documents()


def curve(keys, values, **options) -> DownstreamCurve:
    """Made-up values, the same for 2 seeds × 4 examples."""
    cells = torch.tensor(values, dtype=torch.float64)[:, None, None].expand(-1, 2, 4)
    full = TaskResult("accuracy", "share", torch.ones(4, dtype=torch.float64), **options)
    facts = {"sampled": (None,) * len(keys), "keys": keys, "share": keys, "seeds": (0, 1), "level": 0.95}
    return DownstreamCurve(model="m", full=full, per_example=cells, **facts)


def test_keys_for_the_same_value_are_interpolated_over_log_keys():
    uniform = curve((10.0, 20.0, 40.0, 80.0), [0.2, 0.4, 0.6, 0.95])
    split = curve((10.0, 20.0, 40.0, 80.0), [0.3, 0.5, 0.45, 0.9])  # 0.45 is taken for noise
    made = SplitComparison(uniform, split, "kept", "output")
    ratios = [one.value for one in made.ratios]
    assert ratios[0] == pytest.approx(1.0)  # less than the least is not known
    assert ratios[1] == pytest.approx(10 * 2**0.5 / 20)
    assert ratios[2] == pytest.approx(40 * 2 ** (0.1 / 0.4) / 40)
    assert ratios[3] == float("inf")
    assert all(one.low == pytest.approx(one.value) for one in made.ratios[:3])  # no noise, no interval
    assert made.ratios[3].high == float("inf")
    assert "10: 1 [1, 1]" in repr(made)
    worse = {"higher_is_better": False}
    falling = SplitComparison(
        curve((10.0, 20.0), [3.0, 2.0], **worse), curve((10.0, 20.0), [2.0, 1.0], **worse), "", ""
    )
    assert [one.value for one in falling.ratios] == pytest.approx([1.0, 0.5])


def test_splits_are_compared_on_the_same_examples(bert, articles):
    run = analyze(bert, articles, reading=Reading(tokens=48, passages=1, queries=2))
    made = compare_splits(
        bert, run, articles, [2, 6], policy="sampled", trial=Trial(tokens=48, seeds=[0], examples=4)
    )
    assert made.uniform.keys == pytest.approx((2, 6))
    assert made.split.keys == pytest.approx((2, 6), abs=0.02)
    assert made.uniform.full is made.split.full
    assert json.loads(json.dumps(made.to_dict()))["policy"] == "sampled"
    answer = compare_splits(
        bert, run, articles, [12], split="answer", trial=Trial(tokens=48, seeds=[0], examples=4)
    )
    assert max(answer.uniform.keys[0], answer.split.keys[0]) < 14
    with pytest.raises(InputError, match="split must be answer, output or head"):
        compare_splits(bert, run, articles, [2], split="uniform")


def test_horizons_of_texts_do_not_see_their_neighbours_or_padding(bert, articles):
    """Each document alone, by eigenvalues of the plain product of covariances."""
    some = [replace(articles[0], text=articles[0].text[:900]), articles[1], articles[2]]
    found = example_horizons(bert, Retrieval(), Trial(tokens=40, examples=3).run(bert, some))
    assert found.shape == (3,)
    tokenizer, by_hand = bert.tokenizer, []
    ids = tokenizer(some[1].text, add_special_tokens=False)["input_ids"]
    middle = len(ids) // 2
    for half in (ids[:middle][:38], ids[middle:][:38]):

        def one(call):
            for head in range(12):
                q, k = call.query[0, head].double(), call.key[0, head].double()
                product = torch.cov(q.T, correction=0) @ torch.cov(k.T, correction=0)
                by_hand.append(call.scale * float(torch.linalg.eigvals(product).real.max()) ** 0.5)

        rows = [tokenizer.cls_token_id, *half, tokenizer.sep_token_id]
        with torch.no_grad(), observe(bert.model, one):
            bert.model(input_ids=torch.tensor([rows]))
    assert len(by_hand) == 2 * 72
    assert float(found[1]) == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-4)


def test_horizons_with_grouped_heads(bert):
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
    found = []
    with torch.no_grad(), observe(model, lambda call: found.append(call_horizons(call))):
        model(input_ids=torch.arange(20)[None])
    assert found[0].shape == (1, 4)
    assert bool((found[0] > 0).all())


def test_memory_is_said_before_the_model_runs(bert, articles, monkeypatch):
    said: list[Memory] = []

    def stop(*args, **kwargs):
        raise RuntimeError("the model ran")

    monkeypatch.setattr("attnlimit.models.analyse.answer.answer_gradients", stop)
    with pytest.raises(RuntimeError, match="the model ran"):
        analyze(bert, articles, reading=Reading(tokens=32, passages=1, queries=2), before=said.append)
    assert said[0].weights == sum(one.numel() * 4 for one in bert.model.parameters())
    assert str(said[0]).startswith("about 0.0")
    assert "beside the model's 0.091 GB" in str(said[0])
    short, long = (
        estimate_memory(bert.model, tokens=n, keys=n, queries=8, points=24).peak for n in (2**12, 2**14)
    )
    assert 2 < long / short < 4


def test_names_at_the_top_do_not_wait_for_models():
    code = """
import sys
import attnlimit as al
assert not any(name.startswith(("transformers", "attnlimit.models")) for name in sys.modules)
assert {"analyze", "compare", "load", "Budgets", "sampled_attention", "verify"} <= set(dir(al)) & set(al.__all__)
from attnlimit.models.analyse.analyze import analyze
assert al.analyze is analyze and al.load and al.Budgets and al.sampled_attention and al.verify
try:
    al.nothing
except AttributeError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'attnlimit' has no attribute 'nothing'\n"
