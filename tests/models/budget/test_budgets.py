"""Budgets: what they cost, the file they are kept in, and everything that is wrong with a bad one."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlimit.designs.kept import Kept
from attnlimit.errors import InputError
from attnlimit.models.budget.budgets import Budgets, HeadBudget

KEPT = Kept(own=True, sinks=2, window=3, top=1)


def some(**changes) -> Budgets:
    entries = (
        HeadBudget(0, 0, KEPT, 16, 0.04, 20.5, 100.0),
        HeadBudget(0, 1, Kept(), None, None, 100.0, 100.0),
        HeadBudget(1, 0, Kept(sinks=1), 0, 0.2, 1.0, 100.0),
        HeadBudget(1, 1, Kept(), 5, 0.3, 4.9, 100.0),
    )
    facts = dict(  # noqa: C408
        model="tiny", layers=2, heads=2, entries=entries, rel_error=0.05, policy="least total", tokens=100
    )
    return Budgets(**{**facts, "causal": True, "seed": 7, "versions": {"torch": "2"}, **changes})


def by_counting(one: HeadBudget, length: int, causal: bool) -> float:
    """Keys kept and drawn, query by query, key by key."""
    total = 0.0
    for i in range(length):
        seen = {j for j in range(length) if j <= i or not causal}
        if one.sampled is None:
            total += len(seen)
            continue
        kept = {j for j in seen if j < one.kept.sinks or 0 <= i - j < max(one.kept.window, int(one.kept.own))}
        rest = len(seen) - len(kept)
        top = min(one.kept.top, rest)
        rest -= top
        total += len(kept) + top + min(one.sampled, rest)
    return total / length


class TestCost:
    @given(
        st.builds(
            Kept, own=st.booleans(), sinks=st.integers(0, 4), window=st.integers(0, 5), top=st.integers(0, 3)
        ),
        st.one_of(st.none(), st.integers(1, 50)),
        st.integers(1, 20),
        st.booleans(),
    )
    def test_is_what_counting_says(self, kept, sampled, length, causal):
        one = HeadBudget(0, 0, kept, sampled)
        counted = by_counting(one, length, causal)
        assert one.distinct(length, causal) == pytest.approx(counted, rel=1e-12)

    def test_short_texts_cost_no_more_than_full_attention(self):
        budgets = Budgets.uniform([3, 3], 10**6, Kept(own=True, sinks=100, window=100, top=100))
        for causal in (False, True):
            cost = budgets.cost([1, 5, 9], causal)
            assert cost.share == pytest.approx(1.0, abs=1e-12)
            assert cost.keys <= cost.full * (1 + 1e-12)
        assert Budgets.uniform([1], 1).cost(1).keys == 1

    def test_lengths_weigh_by_their_tokens(self):
        budgets = some()
        cost = budgets.cost([10, 30, 30], causal=False)
        expected = [
            (10 * by_counting(one, 10, False) + 60 * by_counting(one, 30, False)) / 70
            for one in budgets.entries
        ]
        assert cost.per_head == pytest.approx(expected, rel=1e-12)
        assert cost.full == pytest.approx(4 * (10 * 10 + 60 * 30) / 70)
        assert cost.share == pytest.approx(sum(expected) / cost.full)
        assert json.loads(json.dumps(cost.to_dict()))["share"] == cost.share

    def test_causal_is_the_budgets_own_unless_said(self):
        assert some().cost(50) == some().cost(50, causal=True)
        assert some().cost(50) != some().cost(50, causal=False)

    def test_total_and_share_of_the_analysed_text(self):
        assert some().total == pytest.approx(126.4)
        assert some().share == pytest.approx(126.4 / 400)
        unknown = Budgets.uniform([2], 4)
        assert unknown.total is None
        assert unknown.share is None

    @pytest.mark.parametrize("lengths", [[], 0, [3, -1], 2.5])
    def test_refuses_lengths(self, lengths):
        with pytest.raises(InputError, match="lengths"):
            some().cost(lengths)


class TestUniform:
    def test_every_head_alike(self):
        budgets = Budgets.uniform([4, 4, 4], 8, Kept(sinks=1), tokens=20, model="m")
        assert len(budgets.entries) == 12
        assert {(one.kept, one.sampled) for one in budgets.entries} == {(Kept(sinks=1), 8)}
        assert budgets.total == pytest.approx(budgets.cost(20).keys)
        assert budgets.share == pytest.approx(budgets.cost(20).share)
        assert [one.layer for one in budgets.layer(1)] == [1] * 4
        assert [one.head for one in budgets.layer(2)] == [0, 1, 2, 3]

    def test_refuses_uneven_and_empty_models(self):
        with pytest.raises(
            InputError, match=r"same number of heads, at least 1, in every layer, got \[4, 2\]"
        ):
            Budgets.uniform([4, 2], 8)
        with pytest.raises(InputError, match="no attention layers"):
            Budgets.uniform([], 8)


class TestFits:
    def test_the_same_shape_fits(self):
        some().check_fits([2, 2])
        some().check_fits([2, 0])  # a layer that tells its heads only when it is called

    @pytest.mark.parametrize("counts", [[2], [2, 2, 2], [2, 3]])
    def test_another_does_not(self, counts):
        with pytest.raises(
            InputError, match=f"made for tiny, are for 2 layers of 2 heads, but .* {len(counts)} layers"
        ):
            some().check_fits(counts)


class TestFile:
    def test_comes_back_as_it_was(self):
        path = some().save("budgets.json")
        assert Budgets.load(path) == some()
        assert os.listdir() == ["budgets.json"]
        record = json.loads(path.read_text())
        assert record["schema"] == "attnlimit.budgets/1"
        assert record["total"] == pytest.approx(126.4)

    def test_goes_to_other_processes(self):
        assert pickle.loads(pickle.dumps(some())) == some()

    def test_entries_may_come_in_any_order(self):
        assert some(entries=some().entries[::-1]) == some()

    def test_an_error_while_writing_leaves_the_old_file(self, monkeypatch):
        some().save("budgets.json")
        before = Path("budgets.json").read_text()

        def full_disk(*args):
            raise OSError("no space left on device")

        monkeypatch.setattr(os, "replace", full_disk)
        with pytest.raises(OSError, match="no space"):
            some(model="other").save("budgets.json")
        assert Path("budgets.json").read_text() == before
        assert os.listdir() == ["budgets.json"]

    def test_refuses_to_write_nowhere(self):
        with pytest.raises(InputError, match="There is no folder missing"):
            some().save("missing/budgets.json")
        os.mkdir("folder")
        with pytest.raises(InputError, match="folder is a folder"):
            some().save("folder")

    def test_refuses_a_file_that_is_not_there_or_not_json(self):
        with pytest.raises(InputError, match=r"no budgets file nothing\.json"):
            Budgets.load("nothing.json")
        text = json.dumps(some().to_dict())
        for broken in ("", text[:-20], "\x00", text.replace("20.5", "NaN"), "[" * 100_000, b"\xff\xfe\x00"):
            with open("broken.json", "wb") as file:
                file.write(broken if isinstance(broken, bytes) else broken.encode())
            with pytest.raises(InputError, match=r"broken\.json is not a budgets file: not valid JSON"):
                Budgets.load("broken.json")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda r: r.pop("schema"), 'no "schema" field'),
            (
                lambda r: r.update(schema="attnlimit.budgets/2"),
                "schema is 'attnlimit.budgets/2', but this version",
            ),
            (lambda r: r.pop("tokens"), "the file lacks 'tokens'"),
            (lambda r: r.update(colour="red"), "unknown fields: colour"),
            (lambda r: r.update(layers=0), "layers must be a whole number of at least 1, got 0"),
            (lambda r: r.update(layers="2"), "layers must be a whole number"),
            (lambda r: r.update(layers=3), "no budget for layer 2, head 0.*2 missing, 0 too many"),
            (lambda r: r.update(heads=1), "a budget for layer 0, head 1.*0 missing, 2 too many"),
            (lambda r: r.update(model=3), "model must be str, got 3"),
            (lambda r: r.update(causal="no"), "causal must be bool"),
            (lambda r: r.update(scheme="with replacement"), "scheme must be 'without replacement', the only"),
            (lambda r: r.update(versions=[]), "versions must be Mapping"),
            (lambda r: r.update(versions={"torch": 2}), "versions must map package names to texts"),
            (lambda r: r.update(tokens=-5), "tokens must be a whole number"),
            (lambda r: r.update(seed=1.5), "seed must be a whole number or None"),
            (lambda r: r.update(rel_error=0), "rel_error must be a finite number above 0"),
            (lambda r: r.update(total=1.0), "total is 1.0, but the entries make 126.4"),
            (lambda r: r.update(share=None), "share is None, but the entries make 0.316"),
            (lambda r: r.update(entries={}), "entries must be a list, got dict"),
            (lambda r: r["entries"].pop(2), "no budget for layer 1, head 0"),
            (lambda r: r["entries"].append(dict(r["entries"][3])), "Layer 1, head 1 has two budgets"),
            (lambda r: r["entries"].append(5), "an entry must be an object"),
            (lambda r: r["entries"][0].pop("sampled"), "an entry lacks 'sampled'"),
            (lambda r: r["entries"][0].update(extra=1), "an entry has unknown fields: extra"),
            (lambda r: r["entries"][0].update(sampled=-1), "layer 0, head 0: sampled must be .*, got -1"),
            (
                lambda r: r["entries"][0].update(sampled=True),
                "sampled must be a whole number of at least 0, got True",
            ),
            (
                lambda r: r["entries"][0].update(layer=-1),
                "layer must be a whole number of at least 0, got -1",
            ),
            (
                lambda r: r["entries"][0].update(predicted_error=-0.1),
                "predicted_error must be a finite number",
            ),
            (lambda r: r["entries"][0].update(effective_keys="3"), "effective_keys must be a finite number"),
            (lambda r: r["entries"][0].update(kept=None), "layer 0, head 0: kept must be an object"),
            (lambda r: r["entries"][0]["kept"].pop("own"), "kept lacks 'own'"),
            (lambda r: r["entries"][0]["kept"].update(own=1), "kept.own must be true or false, got 1"),
            (lambda r: r["entries"][0]["kept"].update(window=-3), "kept.window must be a whole number"),
            (lambda r: r["entries"][2]["kept"].update(sinks=0), "keeps no key and samples none"),
        ],
    )
    def test_refuses_what_is_wrong_in_it(self, change, message):
        record = some().to_dict()
        change(record)
        with open("bad.json", "w") as file:
            json.dump(record, file)
        with pytest.raises(InputError, match=rf"(?s)bad\.json is not a usable budgets file: .*{message}"):
            Budgets.load("bad.json")

    @pytest.mark.parametrize("record", [[], 3, None, "text"])
    def test_refuses_what_is_no_record(self, record):
        with pytest.raises(InputError, match="schema"):
            Budgets.from_dict(record)


def test_head_budgets_are_checked_when_made():
    with pytest.raises(InputError, match="nothing to attend to: sample at least one"):
        HeadBudget(0, 0, Kept(), 0)
    with pytest.raises(
        InputError, match="visible_keys must be a finite number of at least 0 or None, got inf"
    ):
        HeadBudget(0, 0, visible_keys=float("inf"))


def test_short_texts_for_people():
    assert repr(some()) == (
        "Budgets(2 layers × 2 heads, 0 … 16 (or all) sampled keys each, 31.6 keys per query and head, "
        "31.6 % of full attention)"
    )
    assert repr(Budgets.uniform([2], None)) == "Budgets(1 layers × 2 heads, full attention)"
    assert "5 sampled keys each)" in repr(Budgets.uniform([2], 5))
    assert replace(some(), model="x").model == "x"
