"""Budgets beside other methods: equal keys, text that was not analysed, vAttention's rule by hand, the command."""

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch
from typer.testing import CliRunner

import attnlimit as al
from attnlimit.cli import app, common
from attnlimit.designs import Kept
from attnlimit.designs.denominator import Denominator
from attnlimit.errors import InputError
from attnlimit.files.strict import to_record
from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Predicted
from attnlimit.models.judge.compare import Comparison, Point, compare, held_out, known_by
from attnlimit.models.judge.methods import METHODS, OURS, Ground, methods
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.gradient import CHANGE, answer_error
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.text import documents, token_windows
from attnlimit.report.html import write_report

transformers = pytest.importorskip("transformers")
SHARES = (0.2, 0.4)
TOKENS = 128


@pytest.fixture(scope="module")
def bert() -> Loaded:
    return load(packaged_bert())


@pytest.fixture(scope="module")
def articles():
    return documents()[:6]


def tiny(bert: Loaded, config: str, model: str, kind: str, **more: int) -> Loaded:
    """Random weights."""
    settings = transformers.AutoConfig.for_model(
        config, vocab_size=len(bert.tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, initializer_range=0.3, **more,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = getattr(transformers, model)(settings).eval().requires_grad_(False)
    return Loaded(built, bert.tokenizer, f"tiny-{config}", kind)


@pytest.fixture(scope="module")
def llama(bert) -> Loaded:
    """Two query heads to a key head."""
    return tiny(bert, "llama", "LlamaForCausalLM", "causal-lm", num_key_value_heads=2)


@pytest.fixture(scope="module")
def run(llama, articles):
    return analyze(llama, articles, reading=Reading(tokens=TOKENS, passages=2, queries=16))


@pytest.fixture(scope="module")
def made(llama, run, articles):
    told = []
    found = al.compare(
        llama, run, articles, keys=SHARES, windows=1, seeds=(0, 1), progress=lambda *at: told.append(at)
    )
    assert told[-1] == (100 * 14 * 3, 100 * 14 * 3)
    assert len(told) == 14 * 3
    return found


def test_every_method_reads_the_keys_asked_for(made):
    assert made.methods == methods(False)
    assert len(made.points) == len(methods(False)) * len(SHARES)
    for one in made.points:
        assert one.read <= 1.05 * one.asked, one.method
        assert one.read > (0.6 if one.method == "split by heads' errors" else 0.85) * one.asked, one.method
        assert torch.tensor(one.changes).shape == (2, 1)
        assert isinstance(one.predicted, Predicted) == (one.method in (*OURS, "one design"))
    assert (made.unit, made.tokens, made.windows, made.seeds) == ("nats a token", TOKENS, 1, (0, 1))
    for method in methods(False):
        few, many = made.of(method)
        assert many.value < few.value
        same = few.changes[0] == few.changes[1]  # without draws, seeds do not matter
        drawn = {"top-k": False, "sinks + window": False, "vAttention's rule": True}
        assert same != drawn.get(method, not same)


def test_the_change_is_the_divergence_of_two_runs(llama, run, articles, made):
    ids = held_out(llama, run, articles, 1)[0]
    plan = METHODS["top-k"](Ground(llama, run, ids), 0.4)
    full = llama.model(input_ids=ids[None]).logits[0].double().log_softmax(-1)
    with sampled_attention(llama.model, plan.budgets) as attended:
        sampled = llama.model(input_ids=ids[None]).logits[0].double().log_softmax(-1)
    by_hand = torch.nn.functional.kl_div(sampled, full, log_target=True, reduction="batchmean")
    point = made.of("top-k")[1]
    assert point.changes[0][0] == pytest.approx(float(by_hand), rel=1e-4)
    assert attended.share == pytest.approx(point.read, rel=0.05)


def test_groups_of_heads_are_compared_by_what_key_heads_give(llama, articles):
    reading = Reading(tokens=TOKENS, passages=2, queries=16, grouped=True)
    run = analyze(llama, articles, reading=reading)
    found = compare(llama, run, articles, keys=(0.4,), windows=1)
    assert found.methods == methods(True)
    assert "by key head" in found.words
    (ours,), (top,) = found.of("by key head"), found.of("top-k")
    assert ours.read == ours.by_key_head == pytest.approx(0.4, abs=0.05)
    assert top.read == top.by_key_head > 0.45  # heads of a group rank keys differently
    assert ours.predicted is not None
    assert len(found.plot().axes[0].lines)


def test_windows_are_held_out(llama, run, articles):
    windows = token_windows(llama.tokenizer, articles, TOKENS, most=5)
    assert torch.equal(held_out(llama, run, articles, 3), windows[2:5])
    others = articles[3:]
    assert torch.equal(
        held_out(llama, run, others, 3), token_windows(llama.tokenizer, others, TOKENS, most=3)
    )
    short = [replace(one, text=" ".join(one.text.split()[:110])) for one in articles[:2]]
    ids = token_windows(llama.tokenizer, short, TOKENS)
    assert len(ids) == 2
    read_all = analyze(llama, short, reading=Reading(tokens=TOKENS, passages=2, queries=2))
    with pytest.raises(InputError, match=r"read all 2 windows of 128 tokens .* give other texts"):
        compare(llama, read_all, short)


def test_the_rule_of_the_denominator_by_hand():
    """One query: its denominator from all draws of n keys has the error that was asked for."""
    scores = torch.tensor(
        [3.0, 0.1, 0.5, -0.4, 0.9, 0.2, -1.0, 0.7, 0.3, -0.2, 0.6, 0.0], dtype=torch.float64
    )
    rest = torch.tensor([False] + [True] * 11)
    weight = scores.exp()
    total, part = weight.sum(), weight[1:]
    rule = Denominator(0.1, chance=0.1)
    z = NormalDist().inv_cdf(0.95)
    error = [
        z * 11 * float(part.std(correction=0)) * (1 / n - 1 / 11) ** 0.5 / float(total) for n in range(4, 12)
    ]
    least = next(n for n, one in zip(range(4, 12), error, strict=True) if one <= 0.1)
    assert 4 < least < 11
    assert rule(weight / total, rest).tolist() == [least]
    assert Denominator(100.0)(weight / total, rest).tolist() == [4]  # a few at least
    assert Denominator(1e-6)(weight / total, rest).tolist() == [11]
    with pytest.raises(InputError, match="error must be above 0"):
        Denominator(0.0)


def test_a_rule_stands_in_for_the_budgets_n(llama, run, articles):
    """All of the rest drawn is the full model, and as many keys as the rule says are read."""
    ids = held_out(llama, run, articles, 1)
    ground = Ground(llama, run, ids[0])
    budgets = ground.alike(Kept(own=True, sinks=1))
    full = llama.model(input_ids=ids).logits
    with sampled_attention(
        llama.model, budgets, sizes=lambda weights, rest: rest.sum(-1, keepdim=True)
    ) as used:
        assert torch.allclose(llama.model(input_ids=ids).logits, full, atol=1e-4)
    assert used.share == 1
    with sampled_attention(llama.model, budgets, sizes=lambda weights, rest: 0 * rest[..., :1] + 3) as used:
        llama.model(input_ids=ids)
    assert float(used.keys[0, 0]) == sum(min(i + 1, 5) for i in range(TOKENS))
    wrong = pytest.raises(
        InputError, match=r"sizes must give numbers of keys of shape .* one a query, it gave None"
    )
    with wrong, sampled_attention(llama.model, budgets, sizes=lambda weights, rest: None):
        llama.model(input_ids=ids)


def point(method: str, read: float, value: float) -> Point:
    return Point(method, read, read, None, ((value,),), None)


def comparison(*points: Point) -> Comparison:
    return Comparison("m", "r", "nats a token", 8, 1, (0,), 0.95, points)


def test_where_ours_is_not_below_is_said():
    ours = [point("by head", 0.1, 0.1), point("by head", 0.4, 0.001)]
    better, worse = point("top-k", 0.2, 0.009), point("top-k", 0.2, 0.011)  # ours is 0.01 there
    assert comparison(*ours, worse).above == []
    assert "below every other method at every point" in comparison(*ours, worse).verdict
    (found,) = comparison(*ours, better).above
    assert (
        found == "At 20.0% of the keys top-k changes the answer by 0.009 nats a token, ours by head by 0.01."
    )
    assert comparison(*ours, better).verdict.startswith("Ours is not below")
    assert len(comparison(ours[0], point("top-k", 0.1, 0.05)).above) == 1
    assert comparison(*ours, point("top-k", 0.9, 1e-4)).above  # far beyond ours: not known to be below
    assert answer_error(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])) == 2


def test_files_are_read_strictly(made, tmp_path):
    file = made.save(tmp_path / "compare.json")
    assert Comparison.load(file) == made
    record = json.loads(file.read_text())
    assert record["verdict"] == made.verdict
    assert record["means"][0]["low"] <= made.points[0].value <= record["means"][0]["high"]
    file.write_text(json.dumps({**record, "points": [{**record["points"][0], "read": -1}]}))
    with pytest.raises(InputError, match="is not a usable comparison"):
        Comparison.load(file)
    for changes, words in (
        ([], "at least 1 item"),
        ([[0.1]], "changes must be 1 number, one a window, for each of 2 seeds"),
    ):
        file.write_text(json.dumps({**record, "points": [{**record["points"][0], "changes": changes}]}))
        with pytest.raises(InputError, match=words):
            Comparison.load(file)
    for name in ("seeds", "points"):
        file.write_text(json.dumps({**record, name: []}))
        with pytest.raises(InputError, match=f"{name}: tuple should have at least 1 item"):
            Comparison.load(file)
    assert "7 methods, 14 points" in repr(made)


def test_older_comparisons_are_still_known_by_their_run(run):
    told = {name: one for name, one in to_record(run.facts).items() if name != "weights"}
    older = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    assert known_by(replace(run.facts, weights="")) == older != known_by(run.facts)


def test_the_figure_has_a_line_a_method_and_our_predictions(made):
    (ax,) = made.plot().axes
    assert {text.get_text().removeprefix("ours, ") for text in ax.texts} == set(methods(False))
    assert sum(one.get_linestyle() == "--" for one in ax.get_lines()) == 2
    heights = sorted(text.xyann[1] for text in ax.texts)
    assert min(b - a for a, b in pairwise(heights)) > 0.05  # no name covers another


def test_an_encoder_by_its_embedding(bert, articles):
    encoder = tiny(bert, "bert", "BertModel", "encoder")
    run = analyze(encoder, articles, reading=Reading(tokens=64, passages=1, queries=4))
    found = compare(encoder, run, articles, keys=[0.3], windows=1)
    assert found.unit == CHANGE
    for one in found.points:
        assert 0.2 < one.read < 0.32, one.method
        assert 0 < one.value < 2
    with pytest.raises(InputError, match="load it with task='encoder'"):
        compare(replace(encoder, kind="masked-lm"), run, articles)


def test_one_design_is_the_best_that_all_heads_share(run):
    budgets = run.budgets(keys=0.3, policy="same")
    assert len({(one.sampling, one.n) for one in budgets.entries}) == 1
    assert budgets.entries[0].by_query is None
    assert budgets.share <= 0.3
    assert budgets.predicted.value >= run.budgets(keys=0.3, policy="head").predicted.value
    cheap = run.budgets(kl=2 * budgets.predicted.value, policy="same")
    assert cheap.predicted.value <= 2 * budgets.predicted.value
    assert cheap.total <= budgets.total
    with pytest.raises(InputError, match="one design for all heads reads at least"):
        run.budgets(keys=0.01, policy="same")
    with pytest.raises(InputError, match="policy must be one of best, head, same"):
        run.budgets(keys=0.3, policy="sampled")


@pytest.mark.parametrize("keys", [[], [0.0], [1.5], [0.1, 0.1]])
def test_shares_are_checked(llama, run, articles, keys):
    with pytest.raises(InputError, match="keys must be one or several different shares"):
        compare(llama, run, articles, keys=keys)


def test_other_models_and_runs_without_an_answer_are_refused(bert, llama, run, articles):
    with pytest.raises(InputError, match="did not look at the model's answer"):
        compare(llama, replace(run, answer=None), articles)
    with pytest.raises(InputError, match="but the model has 6 layers of 12 heads"):
        compare(replace(bert, kind="causal-lm"), run, articles)


def test_the_command_writes_files_and_the_page(llama, run, articles, tmp_path, monkeypatch):
    monkeypatch.setattr(common.out, "_width", 160)  # it was made when first imported, as wide as it then was
    model, folder = tmp_path / "tiny-llama", tmp_path / "run"
    llama.model.save_pretrained(model)
    llama.tokenizer.save_pretrained(model)
    run = replace(run, facts=replace(run.facts, model="gone/to/nowhere"))
    run.save(folder)
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join(json.dumps({"text": one.text}) for one in articles))
    words = ["compare", folder, "--keys", "40%", "--windows", 1, "--text", text]

    def command(*more):
        return CliRunner().invoke(app, [str(word) for word in (*words, *more)])

    done = command("--model", model)
    assert done.exit_code == 0, done.output
    for method in methods(False):
        assert method in done.stdout
    assert " 40% " in done.stdout
    assert {"compare.json", "compare.png", "report.html"} <= {path.name for path in folder.iterdir()}
    page = (folder / "report.html").read_text()
    assert "What people would use instead" in page
    assert "split by heads&#x27; errors" in page
    found = json.loads(command("--model", model, "--keys", "0.4", "--json").stdout)
    assert len(found["points"]) == 7
    nowhere = command()
    assert nowhere.exit_code == 2
    assert "cannot be loaded by that name" in " ".join(nowhere.output.split())
    for wrong in ("200%", "some", "0"):
        refused = command("--model", model, "--keys", wrong)
        assert refused.exit_code == 2
        assert "--keys must be" in refused.output
        assert "10%" in refused.output
    run_again = replace(run, facts=replace(run.facts, seed=1))
    run_again.save(folder)  # what was compared is of another analysis now
    assert "What people would use instead" not in write_report(folder).read_text()
