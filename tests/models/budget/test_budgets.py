"""Budgets: what they cost, the file they are kept in, and everything that is wrong with a bad one."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlimit.designs import Coins, Different, Kept, Sampling
from attnlimit.errors import InputError
from attnlimit.models.budget.budgets import Budgets, HeadBudget


def keeping(**kept) -> Sampling:
    return Sampling(draw=Different(), kept=Kept(**kept), weight="rest")


KEPT = keeping(own=True, sinks=2, window=3, top=1)


def some(**changes) -> Budgets:
    entries = (
        HeadBudget(0, 0, KEPT, 16, 0.04, 20.5, 100.0),
        HeadBudget(0, 1, keeping(), None, None, 100.0, 100.0),
        HeadBudget(1, 0, keeping(sinks=1), 0, 0.2, 1.0, 100.0),
        HeadBudget(1, 1, keeping(), 5, 0.3, 4.9, 100.0),
    )
    facts = dict(  # noqa: C408
        model="tiny", layers=2, heads=2, entries=entries, rel_error=0.05, policy="least total", tokens=100
    )
    return Budgets(**{**facts, "causal": True, "seed": 7, "versions": {"torch": "2"}, **changes})


def by_counting(one: HeadBudget, length: int, causal: bool) -> float:
    """Keys kept and drawn, query by query, key by key."""
    total, always = 0.0, one.sampling.kept
    for i in range(length):
        seen = {j for j in range(length) if j <= i or not causal}
        if one.n is None:
            total += len(seen)
            continue
        kept = {j for j in seen if j < always.sinks or 0 <= i - j < max(always.window, int(always.own))}
        rest = len(seen) - len(kept)
        top = min(always.top, rest)
        rest -= top
        total += len(kept) + top + min(one.n, rest)
    return total / length


class TestCost:
    @given(
        st.builds(
            keeping,
            own=st.booleans(),
            sinks=st.integers(0, 4),
            window=st.integers(0, 5),
            top=st.integers(0, 3),
        ),
        st.one_of(st.none(), st.integers(1, 50)),
        st.integers(1, 20),
        st.booleans(),
    )
    def test_is_what_counting_says(self, sampling, n, length, causal):
        one = HeadBudget(0, 0, sampling, n)
        counted = by_counting(one, length, causal)
        assert one.read(length, causal) == pytest.approx(counted, rel=1e-12)

    def test_short_texts_cost_no_more_than_full_attention(self):
        budgets = Budgets.uniform([3, 3], 10**6, keeping(own=True, sinks=100, window=100, top=100))
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
        budgets = Budgets.uniform([4, 4, 4], 8, keeping(sinks=1), tokens=20, model="m")
        assert len(budgets.entries) == 12
        assert {(one.sampling, one.n) for one in budgets.entries} == {(keeping(sinks=1), 8)}
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
        assert record["schema"] == "attnlimit.budgets/3"
        assert record["entries"][0]["sampling"] == {
            "draw": "different", "kept": {"own": True, "sinks": 2, "window": 3, "top": 1}, "weight": "rest"
        }  # fmt: skip
        assert record["total"] == pytest.approx(126.4)

    def test_older_files_say_nothing_of_weights(self):
        record = some(weights="float32 12ab").to_dict()
        assert Budgets.from_dict(record).weights == record.pop("weights") == "float32 12ab"
        assert Budgets.from_dict(record).weights == ""

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
        assert some().save("made/on/the/way.json").is_file()
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
            with pytest.raises(
                InputError, match=r"broken\.json is not a usable budgets file: not valid JSON"
            ):
                Budgets.load("broken.json")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda r: r.pop("schema"), 'no "schema" field'),
            (
                lambda r: r.update(schema="attnlimit.budgets/1"),
                "schema is 'attnlimit.budgets/1', but this version reads 'attnlimit.budgets/3'. Make budgets",
            ),
            (lambda r: r.pop("tokens"), "the file lacks 'tokens'"),
            (lambda r: r.update(colour="red"), "colour is an unknown field"),
            (lambda r: r.update(layers=0), "layers: input should be greater than 0, got 0"),
            (lambda r: r.update(layers="2"), "layers: input should be a valid integer, got '2'"),
            (lambda r: r.update(layers=1e9), "layers: input should be a valid integer, got 1000000000.0"),
            (lambda r: r.update(layers=3), "no budget for layer 2, head 0.*2 missing, 0 too many"),
            (lambda r: r.update(layers=10**9), "no budget for layer 2, head 0.*1999999996 missing"),
            (lambda r: r.update(heads=1), "a budget for layer 0, head 1.*0 missing, 2 too many"),
            (lambda r: r.update(model=3), "model: input should be a valid string, got 3"),
            (lambda r: r.update(causal="no"), "causal: input should be a valid boolean, got 'no'"),
            (lambda r: r.update(versions=[]), r"versions: input should be an object, got \[\]"),
            (
                lambda r: r.update(versions={"torch": 2}),
                "versions.torch: input should be a valid string, got 2",
            ),
            (lambda r: r.update(tokens=-5), "tokens: input should be greater than 0, got -5"),
            (
                lambda r: r.update(tokens=10**25),
                "tokens: input should be less than or equal to 9007199254740992",
            ),
            (lambda r: r.update(seed=10**25), "seed: input should be less than 9223372036854775808, got 1"),
            (
                lambda r: r["entries"][0].update(n=10**25),
                "n: input should be less than or equal to 9007199254740992",
            ),
            (
                lambda r: r["entries"][0]["sampling"]["kept"].update(top=10**18),
                "keeps .*top=1000000000000000000.*: numbers of keys are at most 9,007,199,254,740,992",
            ),
            (lambda r: r.update(weights=3), "weights: input should be a valid string, got 3"),
            (lambda r: r.update(seed=1.5), "seed: input should be a valid integer, got 1.5"),
            (lambda r: r.update(rel_error=0), "rel_error: input should be greater than 0, got 0"),
            (lambda r: r.update(total=1.0), "total is 1.0, but the entries make 126.4"),
            (lambda r: r.update(share=None), "share is None, but the entries make 0.316"),
            (lambda r: r.pop("share"), "share is 'missing', but the entries make 0.316"),
            (lambda r: r.update(entries={}), "entries must be a list, got dict"),
            (lambda r: r["entries"].pop(2), "no budget for layer 1, head 0"),
            (lambda r: r["entries"].append(dict(r["entries"][3])), "Layer 1, head 1 has two budgets"),
            (lambda r: r["entries"].append(5), "entry 4 must be an object"),
            (lambda r: r["entries"][0].pop("n"), "entry 0 lacks 'n'"),
            (lambda r: r["entries"][0].update(extra=1), "entry 0: extra is an unknown field"),
            (lambda r: r["entries"][0].update(n=-1), "entry 0: n: input should be greater .* 0, got -1"),
            (
                lambda r: r["entries"][0].update(n=True),
                "entry 0: n: input should be a valid integer, got True",
            ),
            (lambda r: r["entries"][0].update(layer=-1), "layer: input should be greater than or equal to 0"),
            (
                lambda r: r["entries"][0].update(predicted_error=-0.1),
                "predicted_error: input should be greater",
            ),
            (lambda r: r["entries"][0].update(keys="3"), "keys: input should be a valid number, got '3'"),
            (lambda r: r["entries"][0].update(sampling=None), "entry 0: sampling: A sampling has the fields"),
            (lambda r: r["entries"][0]["sampling"].update(colour=1), "A sampling has the fields"),
            (lambda r: r["entries"][0]["sampling"].update(draw="cards"), "draw must be one of .*got 'cards'"),
            (lambda r: r["entries"][0]["sampling"].update(draw="coins"), "models draw different keys"),
            (
                lambda r: r["entries"][0]["sampling"].update(weight=2),
                "(weight must be|A sampling cannot be read)",
            ),
            (
                lambda r: r["entries"][0]["sampling"]["kept"].update(own=1),
                "(own must be|A sampling cannot be read)",
            ),
            (
                lambda r: r["entries"][0]["sampling"]["kept"].update(window=-3),
                "window must be a whole number of at least 0, got -3",
            ),
            (lambda r: r["entries"][2]["sampling"].update(kept={}), "keeps no key and samples none"),
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
        HeadBudget(0, 0, keeping(), 0)
    with pytest.raises(InputError, match="visible_keys: input should be a finite number, got inf"):
        HeadBudget(0, 0, visible_keys=float("inf"))
    with pytest.raises(InputError, match="head: input should be greater than or equal to 0, got -1"):
        HeadBudget(0, -1)
    with pytest.raises(InputError, match=r"draws keys by coins, but models draw different keys"):
        HeadBudget(0, 0, Sampling(draw=Coins()), 4)


def test_short_texts_for_people():
    assert repr(some()) == (
        "Budgets(2 layers × 2 heads, 0 … 16 (or all) sampled keys each, 31.6 keys per query and head, "
        "31.6 % of full attention)"
    )
    assert repr(Budgets.uniform([2], None)) == "Budgets(1 layers × 2 heads, full attention)"
    assert "5 sampled keys each)" in repr(Budgets.uniform([2], 5))
    assert replace(some(), model="x").model == "x"
