"""Deletion and insertion against attention by hand, and against a model whose answer has one cause."""

from copy import deepcopy

import pytest
import torch

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.judge.faithful import CURVES, ORDERS, faithfulness
from attnlimit.models.see.gradient import answer_error, model_answer
from attnlimit.models.see.load import Loaded

transformers = pytest.importorskip("transformers")
LENGTH = 24


@pytest.fixture(scope="module")
def small() -> Loaded:
    """One layer, two query heads to a key head."""
    settings = transformers.AutoConfig.for_model(
        "llama", vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.4,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = transformers.LlamaForCausalLM(settings).eval().requires_grad_(False)
    return Loaded(built, None, "small", "causal-lm")


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(50, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def change(small: Loaded, ids: torch.Tensor, kept: Kept) -> float:
    """The same by sampled attention, which picks its keys itself."""
    sampling = Sampling(draw=Different(), kept=kept, weight="rest")
    with torch.no_grad():
        full = model_answer(small, ids)
        with sampled_attention(small.model, Budgets.uniform([4], 0, sampling)):
            return answer_error(full, model_answer(small, ids))


def test_the_first_key_by_weight_is_the_top_key(small, ids, generator):
    found = faithfulness(small, ids, [1e-6], generator)
    alone = found[ORDERS.index("weight"), CURVES.index("insertion"), 0]
    assert float(alone) == pytest.approx(change(small, ids, Kept(top=1)), rel=1e-4)


def test_all_keys_are_the_full_model_and_orders_differ(small, ids, generator):
    found = faithfulness(small, ids, [0.25, 0.999999], generator)
    assert float(found[:, 0, 1].max()) < 1e-9
    assert float(found[:, 1, 0].min()) > 0
    few = dict(zip(ORDERS, found[:, 0, 0].tolist(), strict=True))
    assert len({round(value, 12) for value in few.values()}) == len(ORDERS)
    assert few["part in the answer"] < few["random"]


def test_a_key_without_a_part_in_the_answer_comes_last(small, ids, generator):
    """With values that the output projection does not see, weights still order keys, but nothing changes the answer."""
    blind = deepcopy(small.model)
    blind.model.layers[0].self_attn.o_proj.weight.zero_()
    found = faithfulness(Loaded(blind, None, "blind", "causal-lm"), ids, [0.1], generator)
    assert float(found.abs().max()) < 1e-9
