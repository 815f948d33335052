"""Needle tasks: texts that another reader can solve, models that know or do not know, and the threshold."""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from attnlimit.errors import InputError
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.judge import NEEDLES, Trial, downstream_curve, example_horizons, verify
from attnlimit.models.judge.needles import Needle, Several, Single, Variables
from attnlimit.models.judge.trial import SOLVED
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.load import Loaded, load

transformers = pytest.importorskip("transformers")
TEXTS = [
    f"{who} walked to the {what} and stayed there. It was late! Who would have known? " * 3
    + "A sentence that never ends and has neither a stop nor a question in it goes on " * 12
    for who, what in (("Anna", "station"), ("Ben", "market"), ("Clara", "harbour"))
]


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes in pairs, with a token before every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    found.train_from_iterator(TEXTS, trainer)
    found.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, bos_token="<s>")


@pytest.fixture(scope="module")
def llama(tokenizer):
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    return Loaded(model, tokenizer, "tiny-llama", "causal-lm")


class Reader(torch.nn.Module):
    """Knows the token that follows (`wrong` tokens before the end it does not), or always says the same."""

    device = torch.device("cpu")

    def __init__(self, vocabulary: int, wrong: int | None = None):
        super().__init__()
        self.config, self.wrong = SimpleNamespace(vocab_size=vocabulary), wrong

    def forward(self, input_ids, use_cache, logits_to_keep):
        following = input_ids.roll(-1, 1)
        if self.wrong is not None:
            following[:, -1 - self.wrong] = 0
        logits = 50.0 * torch.nn.functional.one_hot(following, self.config.vocab_size)
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])


def examples(task, tokenizer, tokens=400, count=6, texts=TEXTS):
    loaded = Loaded(Reader(len(tokenizer)), tokenizer, "", "causal-lm")
    return task.examples(Trial(tokens=tokens, examples=count, task=task).run(loaded, texts))


def evaluate(task, model, tokenizer, **options):
    options = {"tokens": 400, "examples": 6, "task": task} | options
    return Trial(**options).evaluate(Loaded(model, tokenizer, "", "causal-lm"), TEXTS)


def solution(name: str, prompt: str) -> str:
    """The answer, from the words of the prompt alone."""
    text, last = prompt.rsplit("\n", 1)
    if name in ("single", "several"):
        (found,) = re.findall(f"{re.escape(last.removeprefix('Answer: '))} (\\d+)\\.", text)
        return found
    if name == "variables":
        equations = dict(re.findall(r"(\w+) = (\w+)\.", text))
        way = [equations[last.removesuffix(" =")]]
        while way[-1] in equations:
            way.append(equations[way[-1]])
        return " = ".join(way)
    return Counter(re.findall(r"\w+", text.rsplit("Words:", 1)[1])).most_common(1)[0][0]


# --- examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEEDLES)
@pytest.mark.parametrize("tokens", [300, 1001])
def test_examples_have_their_length_and_another_reader_solves_them(name, tokens, tokenizer):
    found = examples(NEEDLES[name](), tokenizer, tokens)
    assert len(found) == 6
    for prompt, answer in found:
        assert len(prompt) + len(answer) == tokens
        assert prompt[0] == tokenizer.bos_token_id
        assert 0 not in prompt[1:] + answer
        assert tokenizer.decode(answer).strip() == solution(name, tokenizer.decode(prompt[1:]))


@pytest.mark.parametrize("name", NEEDLES)
def test_a_seed_gives_the_same_examples_and_another_gives_others(name, tokenizer):
    task = NEEDLES[name]
    assert examples(task(), tokenizer) == examples(task(seed=0), tokenizer)
    here, there = examples(task(), tokenizer), examples(task(seed=1), tokenizer)
    assert all(one != other for one, other in zip(here, there, strict=True))
    assert len({tuple(answer) for _, answer in here}) > 1


def test_depths_are_spread_evenly_and_texts_are_the_ones_given(tokenizer):
    depths = []
    for prompt, answer in examples(Single(), tokenizer, 1000, 8):
        text = tokenizer.decode(prompt[1:])
        hidden = re.search(rf" The \w+ number is {tokenizer.decode(answer).strip()}\.", text)
        assert hidden is not None
        depths.append(hidden.start() / text.index("\n\nQuestion"))
        rest = text[: hidden.start()] + text[hidden.end() : text.index("\n\nQuestion")]
        assert set(re.findall(r"\w{3,}", rest)[1:]) <= set(re.findall(r"\w+", " ".join(TEXTS)))
    for place, depth in enumerate(depths):
        assert depth == pytest.approx((place + 0.5) / 8, abs=0.06)  # between sentences


def test_several_keys_and_longer_chains(tokenizer):
    text = tokenizer.decode(examples(Several(keys=7), tokenizer, 900)[0][0])
    assert len(set(re.findall(r"The (\w+) number is \d+\.", text))) == 7
    prompt, answer = examples(Variables(chains=3, steps=4), tokenizer, 900)[3]
    text = tokenizer.decode(prompt[1:])
    assert len(re.findall(r"\w+ = \w+\.", text)) == 16  # one chain more is the shown one
    assert tokenizer.decode(answer).strip() == solution("variables", text)
    assert tokenizer.decode(answer).count("=") == 3


def test_what_cannot_be_made_is_refused(tokenizer):
    with pytest.raises(
        InputError, match=r"tokens must be at least \d+ for an example of single needle, got 40"
    ):
        examples(Single(), tokenizer, 40)
    with pytest.raises(InputError, match=r"has 52 words for names, got 60 to name: ask for fewer"):
        examples(Several(keys=60), tokenizer)
    with pytest.raises(InputError, match=r"keys must be a whole number of at least 1, got 0"):
        examples(Several(keys=0), tokenizer)
    with pytest.raises(InputError, match=r"'single needle' is for models of kind 'causal-lm', but 'x' is of"):
        Trial(task=Single()).task_of(Loaded(None, None, "x", "encoder"))


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEEDLES)
def test_a_model_that_knows_scores_1_and_one_wrong_token_scores_0(name, tokenizer):
    task, size = NEEDLES[name](), len(tokenizer)
    knows = evaluate(task, Reader(size), tokenizer, batch=4)
    assert knows.per_example.tolist() == [1] * 6
    assert knows.extra["nats_per_answer_token"] == pytest.approx(0, abs=1e-6)
    shortest = min(len(answer) for _, answer in examples(task, tokenizer))
    for wrong in (1, shortest):
        result = evaluate(task, Reader(size, wrong), tokenizer)
        assert result.value == 0
        assert result.extra["nats_per_answer_token"] > 1
    longest = max(len(answer) for _, answer in examples(task, tokenizer))
    assert evaluate(task, Reader(size, longest + 1), tokenizer).value == 1  # the prompt is not judged


def test_nats_are_those_of_the_answer(llama):
    trial = Trial(tokens=200, examples=3, task=Single())
    expected, count = 0.0, 0
    for prompt, answer in trial.task.examples(trial.run(llama, TEXTS)):
        logs = llama.model(torch.tensor([prompt + answer])).logits[0].double().log_softmax(-1)
        expected -= sum(float(logs[len(prompt) - 1 + k, token]) for k, token in enumerate(answer))
        count += len(answer)
    assert trial.evaluate(llama, TEXTS).extra["nats_per_answer_token"] == pytest.approx(
        expected / count, rel=1e-5
    )


# --- with fewer keys ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known(Needle):
    """Asks for what the full model says."""

    name = "what it says"
    fixed: tuple[tuple[list[int], list[int]], ...] = ()

    def puzzle(self, depth, generator):
        raise NotImplementedError

    def examples(self, run):
        return list(self.fixed)


@pytest.fixture(scope="module")
def known(llama):
    fixed = []
    for prompt, _ in examples(Single(), llama.tokenizer, 120, 8):
        fixed.append((prompt, [int(llama.model(torch.tensor([prompt])).logits[0, -1].argmax())]))
    return Known(fixed=tuple(fixed))


def budgets(n: int | None) -> Budgets:
    return Budgets.uniform([4, 4], n, model="tiny-llama", causal=True)


@pytest.mark.parametrize("name", NEEDLES)
def test_a_random_model_goes_through_with_sampled_attention(name, llama):
    trial = Trial(tokens=200, examples=3, seeds=[0, 1], task=NEEDLES[name]())
    curve = downstream_curve(llama, TEXTS, [2], trial=trial)
    assert curve.per_example.shape == (1, 2, 3)
    assert curve.full.value == 0
    assert len(example_horizons(llama, trial.task, trial.run(llama, TEXTS))) == 3


def test_only_what_the_full_model_solves_is_tried_with_budgets(llama, known):
    steps: list[tuple[int, int]] = []
    trial = Trial(tokens=120, examples=4, seeds=[0, 1])
    options = {"windows": 1, "trial": trial, "needles": [Single(), known]}
    result = verify(
        llama, budgets(1), TEXTS, progress=lambda done, total: steps.append((done, total)), **options
    )
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (1000, 1000)
    failed, solved = result.needles
    assert failed.full.value < SOLVED <= solved.full.value == 1
    assert (failed.solved, failed.sampled, failed.sampled_value, failed.drop) == (False, (), None, None)
    assert failed.verdict == "not solved by the full model (score 0.00): says nothing about budgets"
    assert len(solved.sampled) == 2
    assert solved.sampled_value.value < 1
    assert solved.drop.value == pytest.approx(1 - solved.sampled_value.value)
    assert solved.verdict.startswith("1.00 with all keys, 0")
    record = json.loads(json.dumps(result.to_dict()["needles"], allow_nan=False))
    assert [one["name"] for one in record] == ["single needle", "what it says"]
    assert [one["solved"] for one in record] == [False, True]
    assert record[0]["sampled"] == []
    assert record[1]["sampled_value"]["value"] == solved.sampled_value.value
    whole = verify(llama, budgets(None), TEXTS, **options)
    assert whole.needles[1].sampled_value.value == 1
    assert verify(llama, budgets(None), TEXTS, windows=1, trial=trial).needles == ()


def test_half_of_the_examples_is_solved(llama, known):
    other = [(answer[0] + 1) % llama.model.config.vocab_size for _, answer in known.fixed]
    for wrong, solved in ((4, True), (5, False)):
        fixed = tuple(
            (prompt, [other[k]] if k < wrong else answer) for k, (prompt, answer) in enumerate(known.fixed)
        )
        trial = Trial(tokens=120, examples=8, seeds=[0])
        (found,) = verify(
            llama, budgets(2), TEXTS, windows=1, trial=trial, needles=[replace(known, fixed=fixed)]
        ).needles
        assert found.full.value == 1 - wrong / 8
        assert found.solved is solved
        assert bool(found.sampled) is solved


# --- command --------------------------------------------------------------------------------------


def test_command_shows_needles_and_refuses_other_models(llama, known, monkeypatch, tmp_path):
    from attnlimit.cli import app

    text, file, folder = (str(tmp_path / name) for name in ("text.txt", "budgets.json", "model"))
    (tmp_path / "text.txt").write_text(TEXTS[0], encoding="utf-8")
    for part in (llama.model, llama.tokenizer):
        part.save_pretrained(folder)
    budgets(None).save(file)
    words = ["--budgets", file, "--text", text, "--needles", "--tokens", "120", "--windows", "1"]
    words += ["--seeds", "1", "--examples", "2"]
    monkeypatch.setattr("attnlimit.models.judge.NEEDLES", {"single": Single, "known": lambda: known})
    done = CliRunner().invoke(app, ["verify", folder, *words])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert "single needle: not solved by the full model (score 0.00): says nothing about budgets." in shown
    assert "Needles of 120 tokens" in shown
    assert re.search(r"what it says\W+1\.00\W+1\.00 \[1\.00, 1\.00\]", shown)
    bert = load(packaged_bert()).model
    layers = [bert.config.num_attention_heads] * bert.config.num_hidden_layers
    Budgets.uniform(layers, None).save(file)
    refused = CliRunner().invoke(app, ["verify", *words])
    assert refused.exit_code == 2
    assert "The task 'single needle' is for models of kind 'causal-lm'" in " ".join(refused.stderr.split())
