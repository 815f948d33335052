"""Task metrics against what is known of them: hand-made models with exact answers, then real retrieval."""

import json
from types import SimpleNamespace

import pytest
import torch

from attnlimit.errors import InputError
from attnlimit.models.judge.tasks import (
    TASKS,
    Continuation,
    Labels,
    MaskedTokens,
    Perplexity,
    Retrieval,
    task_for,
)
from attnlimit.models.judge.trial import Trial
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.text import Document, documents, longest, token_windows

transformers = pytest.importorskip("transformers")
DIMS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def bert():
    return load(packaged_bert())


@pytest.fixture(scope="module")
def tokenizer(bert):
    return bert.tokenizer


@pytest.fixture(scope="module")
def articles():
    return documents()


def evaluate(task, model, tokenizer, texts, *, progress=None, **options):
    return Trial(task=task, **options).evaluate(Loaded(model, tokenizer, "", ""), texts, progress)


def random_model(kind: str, config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, kind)(config).eval()


def bert_config(tokenizer, **more):
    return transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **DIMS, **more)


def gpt2(tokenizer):
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return random_model("GPT2LMHeadModel", config)


class Oracle:
    """A stand-in for a model: `answer(input_ids)` gives its logits."""

    device = torch.device("cpu")

    def __init__(self, answer, vocabulary=30522, **config):
        self.answer = answer
        self.config = SimpleNamespace(vocab_size=vocabulary, **config)

    def __call__(self, input_ids, **rest):
        return SimpleNamespace(logits=self.answer(input_ids))


# --- perplexity -----------------------------------------------------------------------------------


def test_uniform_logits_have_the_vocabulary_as_perplexity(tokenizer):
    small = [Document("digits", "1 2 3 4 5 6 7 8 9 " * 20)]
    ids = token_windows(tokenizer, small, 16)
    size = int(ids.max()) + 1
    result = evaluate(
        Perplexity(), Oracle(lambda ids: torch.zeros(*ids.shape, size), size), tokenizer, small, tokens=16
    )
    assert result.value == pytest.approx(size, rel=1e-6)
    assert len(result.per_example) == len(ids)


def test_perplexity_is_the_models_own_loss(tokenizer, articles):
    model = gpt2(tokenizer)
    result = evaluate(Perplexity(), model, tokenizer, articles, tokens=32, examples=5, batch=2)
    ids = token_windows(tokenizer, articles, 32, most=5)
    with torch.no_grad():
        losses = [float(model(input_ids=row[None], labels=row[None]).loss) for row in ids]
    torch.testing.assert_close(
        result.per_example, torch.tensor(losses, dtype=torch.float64), rtol=1e-5, atol=0
    )
    assert result.value == pytest.approx(float(torch.tensor(losses).mean().exp()), rel=1e-5)
    assert not result.higher_is_better


def test_continuation_is_the_seq2seq_models_own_loss(tokenizer, articles):
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = random_model("T5ForConditionalGeneration", config)
    result = evaluate(Continuation(), model, tokenizer, articles, tokens=32, examples=3, batch=2)
    ids = token_windows(tokenizer, articles, 32, most=3)
    losses = []
    with torch.no_grad():
        for row in ids:
            source = torch.cat([row[:1], row[1:16], row[-1:]])
            losses.append(float(model(input_ids=source[None], labels=row[None, 16:31].contiguous()).loss))
    torch.testing.assert_close(
        result.per_example, torch.tensor(losses, dtype=torch.float64), rtol=1e-5, atol=0
    )


# --- masked tokens --------------------------------------------------------------------------------


def test_masked_accuracy_counts_only_masked_places(tokenizer, articles):
    ids = token_windows(tokenizer, articles, 42, most=6)
    mask = tokenizer.mask_token_id
    seen = []

    def know_half(given):
        """Right in even windows, wrong everywhere else; the answers are what was there before the mask."""
        rows = [
            next(k for k, row in enumerate(ids) if bool((one == row)[one != mask].all())) for one in given
        ]
        seen.extend(
            (int(k), (one == mask).nonzero().flatten().tolist()) for k, one in zip(rows, given, strict=True)
        )
        answers = torch.stack([ids[k] if k % 2 == 0 else torch.zeros_like(ids[k]) for k in rows])
        return torch.nn.functional.one_hot(answers, len(tokenizer)).float()

    result = evaluate(MaskedTokens(), Oracle(know_half), tokenizer, articles, tokens=42, examples=6, batch=4)
    assert result.per_example.tolist() == [1, 0, 1, 0, 1, 0]
    assert result.value == 0.5
    assert all(len(places) == 6 and min(places) > 0 and max(places) < 41 for _, places in seen)  # 15 % of 40
    first = [places for _, places in sorted(seen)]
    seen.clear()
    evaluate(MaskedTokens(), Oracle(know_half), tokenizer, articles, tokens=42, examples=6, batch=3)
    assert [places for _, places in sorted(seen)] == first  # the mask does not depend on batches
    seen.clear()
    evaluate(MaskedTokens(seed=1), Oracle(know_half), tokenizer, articles, tokens=42, examples=6)
    assert [places for _, places in sorted(seen)] != first


def test_masked_accuracy_needs_a_mask_token(articles):
    letters = SimpleNamespace(mask_token_id=None)
    with pytest.raises(InputError, match=r"This tokenizer has no mask token"):
        evaluate(MaskedTokens(), Oracle(None), letters, articles, tokens=8)


# --- retrieval ------------------------------------------------------------------------------------


def test_the_packaged_bert_finds_the_other_half(bert, articles):
    """60 % of halves at 64 tokens, where chance finds 0.5 %: computed independently, one text at a time."""
    result = evaluate(task_for(bert), bert.model, bert.tokenizer, articles, tokens=64, examples=95)
    assert len(result.per_example) == 95
    assert result.value == pytest.approx(114 / 190, abs=2.5 / 190)
    assert result.extra["chance"] == pytest.approx(1 / 189)
    assert result.value > 50 * result.extra["chance"]
    assert result.value < result.extra["mean_reciprocal_rank"] < 1


def test_padding_and_batches_do_not_change_embeddings(bert, articles):
    options = {"tokens": 32, "examples": 6}
    texts = [Document(one.title, one.text[: 200 + 150 * k]) for k, one in enumerate(articles[:6])]
    steps: list[tuple[int, int]] = []
    alone = evaluate(Retrieval(), bert.model, bert.tokenizer, texts, batch=1, **options)
    together = evaluate(
        Retrieval(),
        bert.model,
        bert.tokenizer,
        texts,
        batch=5,
        progress=lambda done, total: steps.append((done, total)),
        **options,
    )
    assert alone.per_example.tolist() == together.per_example.tolist()
    assert alone.extra["mean_reciprocal_rank"] == pytest.approx(together.extra["mean_reciprocal_rank"])
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_a_model_that_says_always_the_same_finds_nothing(tokenizer, articles):
    class Constant(Oracle):
        def __call__(self, input_ids, attention_mask):
            return SimpleNamespace(last_hidden_state=torch.ones(*input_ids.shape, 3))

    result = evaluate(Retrieval(), Constant(None), tokenizer, articles[:5], tokens=16)
    assert result.value == 0
    assert result.extra["mean_reciprocal_rank"] == pytest.approx(1 / 9)


def test_retrieval_refuses_what_it_cannot_tell_apart(bert, articles):
    with pytest.raises(InputError, match=r"Retrieval needs at least 2 texts to tell apart, got 1"):
        evaluate(Retrieval(), bert.model, bert.tokenizer, articles[:1], tokens=32)
    with pytest.raises(InputError, match=r"'tiny' has fewer than 2 tokens"):
        evaluate(Retrieval(), bert.model, bert.tokenizer, [articles[0], Document("tiny", "a")], tokens=32)
    with pytest.raises(InputError, match=r"tokens must be above 2, the special tokens of this model, got 2"):
        evaluate(Retrieval(), bert.model, bert.tokenizer, articles[:2], tokens=2)
    with pytest.raises(InputError, match=r"Oracle gives no last hidden state .* task='encoder'"):
        evaluate(
            Retrieval(), _TwoArguments(lambda ids: torch.zeros(1)), bert.tokenizer, articles[:2], tokens=16
        )


class _TwoArguments(Oracle):
    def __call__(self, input_ids, attention_mask):
        return SimpleNamespace(logits=self.answer(input_ids))


_TwoArguments.__name__ = "Oracle"


# --- labels ---------------------------------------------------------------------------------------


def test_one_score_is_no_choice_of_labels(tokenizer, articles):
    model = random_model("BertForSequenceClassification", bert_config(tokenizer, num_labels=1))
    texts = [Document("a", articles[0].text, 0)]
    with pytest.raises(InputError, match="one score and no choice of labels"):
        evaluate(Labels(), model, tokenizer, texts, tokens=32)


def test_label_accuracy_against_the_models_own_answers(tokenizer, articles):
    config = bert_config(
        tokenizer,
        num_labels=3,
        id2label={0: "no", 1: "maybe", 2: "yes"},
        label2id={"no": 0, "maybe": 1, "yes": 2},
    )
    model = random_model("BertForSequenceClassification", config)
    texts = [one.text[: 100 + 40 * k] for k, one in enumerate(articles[:8])]
    with torch.no_grad():
        own = [
            int(
                model(
                    torch.tensor([tokenizer(text, truncation=True, max_length=32)["input_ids"]])
                ).logits.argmax()
            )
            for text in texts
        ]
    right = [Document(str(k), text, label) for k, (text, label) in enumerate(zip(texts, own, strict=True))]
    assert evaluate(Labels(), model, tokenizer, right, tokens=32, batch=3).value == 1
    named = [Document(one.title, one.text, config.id2label[one.label]) for one in right]
    assert evaluate(Labels(), model, tokenizer, named, tokens=32).value == 1
    wrong = [Document(one.title, one.text, (one.label + (k < 2)) % 3) for k, one in enumerate(right)]
    assert evaluate(Labels(), model, tokenizer, wrong, tokens=32).per_example.tolist() == [
        0,
        0,
        1,
        1,
        1,
        1,
        1,
        1,
    ]
    with pytest.raises(InputError, match=r"The text 'text 1' has no label"):
        evaluate(Labels(), model, tokenizer, ["plain"], tokens=32)
    with pytest.raises(
        InputError, match=r"The label 'perhaps' of 't' is none of the model's: no, maybe, yes"
    ):
        evaluate(Labels(), model, tokenizer, [Document("t", "a", "perhaps")], tokens=32)
    with pytest.raises(InputError, match=r"The label 3 of 't' is none of the model's.*a number below 3"):
        evaluate(Labels(), model, tokenizer, [Document("t", "a", 3)], tokens=32)


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "task"), TASKS.items())
def test_a_task_for_every_kind(kind, task):
    assert type(task_for(Loaded(None, None, "x", kind))) is task


def test_unknown_kinds_and_too_many_tokens_are_refused(tokenizer, articles):
    with pytest.raises(InputError, match=r"no task for a model of kind 'vision': one of encoder"):
        task_for(Loaded(None, None, "x", "vision"))
    with pytest.raises(InputError, match=r"tokens is 65, but GPT2LMHeadModel has only 64 positions"):
        evaluate(Perplexity(), gpt2(tokenizer), tokenizer, articles, tokens=65)
    roberta = random_model(
        "RobertaModel", transformers.RobertaConfig(vocab_size=99, max_position_embeddings=66, **DIMS)
    )
    assert longest(roberta, 64) == 64
    with pytest.raises(InputError, match=r"tokens is 65, but RobertaModel has only 64 positions"):
        longest(roberta, 65)
    with pytest.raises(InputError, match=r"batch must be a whole number of at least 1, got 0"):
        evaluate(Perplexity(), gpt2(tokenizer), tokenizer, articles, tokens=16, examples=1, batch=0)
    with pytest.raises(InputError, match=r"most must be a whole number of at least 1, got 0"):
        evaluate(Retrieval(), gpt2(tokenizer), tokenizer, articles, tokens=16, examples=0)


def test_results_are_plain_in_json(tokenizer, articles):
    result = evaluate(Perplexity(), gpt2(tokenizer), tokenizer, articles, tokens=16, examples=2)
    record = json.loads(json.dumps(result.to_dict()))
    assert record["name"] == "perplexity"
    assert record["examples"] == 2
    assert record["value"] == pytest.approx(result.value)
    assert repr(result).startswith("TaskResult(perplexity ")
