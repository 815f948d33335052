"""Explanations of the packaged BERT, against transformers' own attention and a hook of our own."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models.explain.explain import _lost, explain
from attnlimit.models.explain.look import Made
from attnlimit.models.explain.result import ROLES, Explanation, HeadRoles, Link, Map, Tokens, packed
from attnlimit.models.explain.tokens import find_token, read_tokens
from attnlimit.models.see.call import Call
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.gradient import answer_error
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.masks import TensorMask

TEXT = "The river gave the city its name. When the river was dammed the city grew, and Amsterdam was there."
READING = al.Reading(queries=2, answer=4)


@pytest.fixture(scope="module")
def bert() -> Loaded:
    return load(packaged_bert())


@pytest.fixture(scope="module")
def found(bert) -> Explanation:
    return explain(bert, TEXT, ["name", 3], reading=READING)


@pytest.fixture(scope="module")
def own(bert):
    """transformers' own attention weights, (layers, heads, queries, keys), and values, (layers, heads, keys, d)."""
    ids, *_ = read_tokens(bert, TEXT, None)
    other = load(packaged_bert()).model
    other.set_attn_implementation("eager")
    values = []
    hooks = [
        layer.attention.self.value.register_forward_hook(lambda module, args, out: values.append(out[0]))
        for layer in other.encoder.layer
    ]
    with torch.no_grad():
        out = other(input_ids=ids, output_attentions=True)
    for hook in hooks:
        hook.remove()
    weights = torch.cat(out.attentions)
    heads = torch.stack(values).unflatten(-1, (weights.shape[1], -1)).transpose(1, 2)
    return ids, weights.double(), heads.double()


def test_the_map_names_the_keys_of_transformers_own_attention(found, own) -> None:
    ids, weights, values = own
    flat, number = weights.flatten(0, 1), ids.shape[1]
    top = flat.topk(4, -1)
    clear = (top.values[..., :-1] - top.values[..., 1:]).amin(-1) > 1e-4
    assert found.map.keys.shape == (72, number, 4)
    assert float(clear.double().mean()) > 0.8
    assert np.array_equal(found.map.keys[clear.numpy()], top.indices[clear].numpy())
    assert np.abs(found.map.weights / 255 - top.values.numpy()).max() < 0.5 / 255 + 1e-4
    assert (found.map.seen == number).all()
    v = values.flatten(0, 1)
    out, plain = flat @ v, v.mean(1, keepdim=True)
    named = torch.zeros_like(flat).scatter_(-1, top.indices, 1.0)
    left = 1 - top.values.sum(-1, keepdim=True)
    explained = (flat * named) @ v + left * ((1 - named) @ v) / (number - 4)
    sure = 1 - (explained - out).square().sum(-1) / (plain - out).square().sum(-1)
    assert np.abs(found.map.certainty / 255 - sure.clamp(0, 1).numpy()).max() < 0.01


def test_a_chosen_token_is_explained_to_within_the_error(found, own) -> None:
    _, weights, values = own
    (one, three) = found.chosen
    assert (found.tokens.pieces[one.token], three.token) == ("name", 3)
    assert [(read.layer, read.head) for read in one.reads] == [(k // 12, k % 12) for k in range(72)]
    for read in one.reads:
        p, v = weights[read.layer, read.head, one.token], values[read.layer, read.head]
        order, out = p.argsort(descending=True), p @ v

        def off(k, p=p, v=v, order=order, out=out):
            rest = order[k:]
            mean = v[rest].mean(0) if len(rest) else 0.0
            return float((p[order[:k]] @ v[order[:k]] + p[rest].sum() * mean - out).norm() / out.norm())

        errors = [off(k) for k in range(len(p) + 1)]
        assert errors[read.needed] <= 0.05 * 1.001
        assert all(error > 0.05 * 0.999 for error in errors[: read.needed])
        assert read.others == len(p) - read.needed
        assert read.keys == tuple(order[: min(16, read.needed)].tolist())
        assert sum(read.weights) + read.others_weight <= 1 + 1e-6
        assert read.weight_interval[0] - 1e-6 <= 1 - read.others_weight <= read.weight_interval[1] + 1e-6
        assert read.matters is not None
        assert 0 <= read.agreement <= 1
    assert sum(read.measured is not None for read in one.reads) == 4
    assert one.measured.named < one.measured.random
    predicted = [read.predicted for read in one.reads]
    assert sum(lost.named for lost in predicted) < 0.1 * sum(lost.random for lost in predicted)


def test_what_is_lost_is_what_a_hook_of_our_own_finds(bert, found, own) -> None:
    """Layer 2, head 3, reads the plain average at token 4: transformers' own module, its output changed by hand."""
    ids, _, values = own
    at, layer, head = 4, 2, 3
    width = values.shape[-1]

    def change(module, args, out):
        context = out[0].clone()
        context[0, at, head * width : (head + 1) * width] = values[layer, head].mean(0).float()
        return (context, *out[1:])

    def answer():
        return torch.nn.functional.normalize(bert.model(input_ids=ids).last_hidden_state[0].mean(0), dim=0)

    with torch.no_grad():
        full = answer()
        hook = bert.model.encoder.layer[layer].attention.self.register_forward_hook(change)
        changed = answer()
        hook.remove()
    nothing = torch.zeros(ids.shape[1], dtype=torch.bool)
    lost = _lost(bert, ids, at, {(layer, head): nothing}, full, None)
    assert lost == pytest.approx(answer_error(full, changed), rel=1e-2)
    assert lost > 1e-9
    assert _lost(bert, ids, at, {(layer, head): ~nothing}, full, None) < 1e-10


def test_second_order_and_tried_losses_agree(bert) -> None:
    """Reading the plain average at a token, 64 draws (each prediction is off by 18 %): the sum over the four heads that matter
    most is within a factor of 2."""
    found = explain(bert, TEXT, "name", rel_error=1e9, reading=replace(READING, answer=64))
    (chosen,) = found.chosen
    assert all(read.needed == 0 for read in chosen.reads)
    tried = [read for read in chosen.reads if read.measured is not None]
    ratio = sum(read.measured.named for read in tried) / sum(read.predicted.named for read in tried)
    assert 0.5 < ratio < 2
    place = [72 - 1, chosen.token]
    assert found.map.matter()[tuple(place)] == pytest.approx(chosen.reads[-1].matters, rel=0.1)


def test_roles_of_a_head_known_to_look_back(found) -> None:
    with pytest.raises(
        InputError, match=r"There is no head 12 of layer 5: the last one is head 11 of layer 5"
    ):
        found.head(5, 12)
    assert found.heads[2].leading == "previous token"
    assert found.heads[2].share("previous token")[0] > 0.8
    for one in found.heads:
        for some in (one.shares, one.made):
            assert sum(value for value, _, _ in some) == pytest.approx(1, abs=1e-4)
            assert all(low - 1e-9 <= value <= high + 1e-9 for value, low, high in some)
        assert one.sensitivity is not None
    assert {(one.role, one.quantity) for one in found.links} >= {
        ("sink", "horizon"),
        ("content", "sensitivity"),
    }
    with pytest.raises(InputError, match=r"A role is one of own token, sink.*got 'boss'"):
        found.heads[0].share("boss")


def test_the_record_comes_back(found) -> None:
    path = found.save("explain.json")
    again = Explanation.load(path)
    assert again.to_dict() == found.to_dict()
    assert found.text[found.tokens.start[2] : found.tokens.end[2]] == "river"
    broken = json.loads(path.read_text())
    beyond = packed(np.full_like(found.map.keys, 65535))
    for name, value, words in (
        ("map", {}, "map must have the arrays keys"),
        ("roles", [], "roles must be own token"),
        ("heads", 3, "heads must be a list, got int"),
        ("schema", "attnlimit.explain/0", "this version reads"),
        ("map", {**broken["map"], "keys": {"dtype": "f4"}}, "keys is not an array of u2"),
        ("map", {**broken["map"], "keys": beyond}, "names key 65535, but there are .* tokens"),
        ("map", {**broken["map"], "certainty": broken["map"]["weights"]}, "arrays do not fit together"),
        ("heads", [], "heads: tuple should have at least 1 item"),
        ("heads", [{**broken["heads"][0], "shares": []}], r"shares: tuple should have at least 8 items"),
        (
            "tokens",
            {**broken["tokens"], "end": []},
            "pieces, start, end and special of tokens must be as many",
        ),
        (
            "chosen",
            [{**broken["chosen"][0], "token": 10**6}],
            "must be keys of the .* tokens, with a weight for each",
        ),
        ("chosen", [{**broken["chosen"][0], "reads": []}], "reads: tuple should have at least 1 item"),
        ("seed", 10**25, "seed: input should be less than 9223372036854775808"),
        ("heads", broken["heads"][:3], "map is of 72 heads and .* but there are 3 heads"),
    ):
        path.write_text(json.dumps({**broken, name: value}))
        with pytest.raises(InputError, match=words):
            Explanation.load(path)


def test_a_large_record_is_small() -> None:
    """1,000 tokens and 270 heads, with nothing in them that packs well."""
    rng, tokens, heads = np.random.default_rng(0), 1000, 270
    small = lambda *shape: rng.integers(256, size=shape).astype(np.uint8)  # noqa: E731
    places = Map(
        rng.integers(tokens, size=(heads, tokens, 4)).astype(np.uint16),
        small(heads, tokens, 4),
        small(heads, tokens),
        small(heads, tokens),
        np.full((30, tokens), tokens, np.uint16),
    )
    share, chance = ((0.123456,) * 3,) * 8, (0.123456789012,) * 8
    known = (3.123456789012, 17.123456789, 80.123456789, False, 500.5, 1.23456789e-5)
    all_heads = tuple(HeadRoles(k // 9, k % 9, share, chance, share, chance, *known) for k in range(heads))
    facts = ("m", "causal-lm", "t", "word " * tokens, False, 0.05, 0.95, 0, 4, 4, "nats", "x")
    several = Tokens(("word ",) * tokens, *(tuple(range(tokens)),) * 2, (False,) * tokens)
    links = tuple(Link(role, "horizon", 0.1, 0.0, 0.2) for role in ROLES)
    made = Explanation(*facts, several, all_heads, links, places, ()).save("explain.json")
    assert made.stat().st_size < 6.5e6


def test_words_are_found_by_where_they_stand(bert) -> None:
    _, tokens, read, cut = read_tokens(bert, TEXT, None)
    assert (read, cut) == (TEXT, False)
    assert find_token(tokens, read, "river", 2) == tokens.pieces.index("river", 5)
    last = find_token(tokens, read, "dammed")
    assert (tokens.pieces[last - 1], tokens.pieces[last]) == ("dam", "med")  # a word's last piece
    assert find_token(tokens, read, "[CLS]") == 0
    for word, which, words in (
        ("river", None, r"'river' occurs 2 times: 2 \(…The river.*--which 1.*--index"),
        ("river", 3, "'river' occurs 2 times, so there is no occurrence 3: count from 1 to 2"),
        ("rivers", None, "'rivers' is no word of the .* tokens that are read. Near it: 'river'"),
        (99, None, "There is no token 99: the text has .* tokens, counted from 0"),
        (" ", None, "A token is a word of the text or the number of one, got ' '"),
    ):
        with pytest.raises(InputError, match=words):
            find_token(tokens, read, word, which)
    _, few, start, cut = read_tokens(bert, TEXT, 8)
    assert (len(few), start, cut) == (8, "The river gave the city its", True)
    with pytest.raises(InputError, match="numbers its tokens in two bytes: at most 65,535, got 70,000"):
        read_tokens(bert, TEXT, 70_000)
    with pytest.raises(InputError, match=r"The text has 1 tokens of its own.*fewer than 4"):
        read_tokens(bert, "Hi", None)


def test_models_of_two_texts_are_refused(bert) -> None:
    with pytest.raises(ModelNotSupported, match=r"reads one text and writes another.*task='encoder'"):
        explain(replace(bert, kind="seq2seq"), TEXT)


def test_calls_that_have_no_one_answer_are_refused(generator) -> None:
    q, k = (torch.randn(1, 1, n, 4, generator=generator) for n in (3, 5))
    mask = TensorMask(torch.ones(1, 1, 3, 5, dtype=torch.bool))
    made = Made(torch.zeros(1, 3, dtype=torch.long), 0, 0)
    with pytest.raises(
        ModelNotSupported, match=r"cross attends to another text than its own \(3 queries, 5 keys\)"
    ):
        made.handle(Call(0, "cross", q, k, k, 1.0, 1, mask, own_key=None))
    call = Call(0, "layer", k, k, k, 1.0, 1, TensorMask(torch.ones(1, 1, 5, 5, dtype=torch.bool)), own_key=0)
    made = Made(torch.arange(5)[None], 0, 0)
    made.handle(call)
    with pytest.raises(ModelNotSupported, match="layer is called more than once for a text"):
        made.handle(call)


def test_without_the_answer(bert) -> None:
    found = explain(bert, TEXT, "name", reading=replace(READING, answer=0))
    assert found.unit is None
    assert found.map.matter() is None
    assert found.chosen[0].measured is None
    assert found.chosen[0].reads[0].predicted is None
    assert found.heads[0].sensitivity is None
    assert Explanation.load(found.save("explain.json")).to_dict() == found.to_dict()
