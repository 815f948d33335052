"""An analysis as an object: its heads, its files, its budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from attnlimit.doors import door
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.files.records import write_json, write_table
from attnlimit.files.strict import Seed, from_record, read_record, record, to_record
from attnlimit.inputs import as_count, as_positive
from attnlimit.models.analyse.heads import HeadReport
from attnlimit.models.budget.allocate import Choice, split_total, uniform_total
from attnlimit.models.budget.answer import SPACE_WORDS, Answer, Chosen
from attnlimit.models.budget.budgets import Budgets, HeadBudget, Predicted
from attnlimit.models.budget.needed import RANDOM, Way
from attnlimit.models.see.checkpoint import same_weights
from attnlimit.models.see.fields import Counted
from attnlimit.models.see.gradient import CHANGE

SCHEMA = "attnlimit.run/4"
FOR_ANSWER = {"best": "by head and query", "head": "by head", "same": "one design for all heads"}
SPLITS = ("answer", "output", "head", "uniform")
ANSWER_LEVELS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Errors of the answer, nats a token or squared change, for which keys are told unasked."""
ANSWER, UNFINISHED, PASSES = "answer.safetensors", "unfinished.safetensors", "unfinished-passes.safetensors"
"""Beside run.json; and what was measured so far, before there is one."""
REMEDY = "`attnlimit analyze MODEL --out DIR` makes a run that this version reads."


@record
class Facts:
    """What was analysed, and how."""

    model: str
    kind: str
    population: Literal["context", "corpus"]
    tokens: Counted
    """Of a passage."""
    passages: Counted
    queries: Counted
    """Of each head."""
    rel_error: PositiveFloat
    seed: Seed
    causal: bool
    dtype: str
    memory: NonNegativeFloat
    """Bytes that it was said to take beside the model."""
    versions: dict[str, str]
    text: str
    """Which text, and how much of it."""
    answer: str | None
    """What a change of the model's answer is counted in; None: it was not looked at."""
    method: str
    weights: str = ""
    """What the model's weights are known by; nothing in older runs."""


@door
@dataclass(frozen=True, eq=False, repr=False)
class Run(Drawn):
    """What `analyze` found: the facts of the run, and one report a head, by layer and head."""

    facts: Facts
    heads: tuple[HeadReport, ...]
    answer: Answer | None = None
    """What the heads' errors do to the model's answer (None: not looked at)."""

    def __post_init__(self) -> None:
        for (a, b), (layer, head) in pairwise([(-1, 0), *((one.layer, one.head) for one in self.heads)]):
            if (layer, head) not in ((a, b + 1), (a + 1, 0)):
                raise InputError(
                    f"Layer {layer}, head {head} cannot follow layer {a}, head {b}: heads come in order, and none may be missing."
                )
        if not self.heads:
            raise InputError("There are no heads.")

    def __repr__(self) -> str:
        facts = self.facts
        return f"Run({facts.model}, {len(self.heads)} heads, {facts.population} of {facts.tokens} tokens)"

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads a layer)."""
        return max(h.layer for h in self.heads) + 1, max(h.head for h in self.heads) + 1

    def keys_needed(
        self, rel_error: float | None = None, policy: str = "best"
    ) -> Float[Tensor, "layers heads"]:
        """Keys that a query of each head reads so that its rms error over queries is at most `rel_error` (default: the
        run's own), all that it sees where it needs all; nan where there is no head."""
        error = self.facts.rel_error if rel_error is None else as_positive(rel_error, "rel_error")
        grid = torch.full(self.shape, torch.nan, dtype=torch.float64)
        for one in self.heads:
            grid[one.layer, one.head] = one.needed(error, policy).keys
        return grid

    # --- budgets ----------------------------------------------------------------------------------

    def budgets(
        self,
        rel_error: float | None = None,
        *,
        kl: float | None = None,
        perplexity: float | None = None,
        change: float | None = None,
        keys: float | None = None,
        total: int | None = None,
        policy: str = "best",
        split: str | None = None,
    ) -> Budgets:
        """Keys for every head, for one of these aims:

        - `kl`: the fewest keys with which the model's answer loses at most so many nats a token (a classifier: a text);
          `perplexity`: at most this relative growth of it (0.01: 1 %); `change`: the same for the squared change of an
          encoder's embedding.
        - `keys` (a share of all) or `total` (keys that a query reads in all heads together): the best answer for so many.
        - `rel_error`: the fewest keys with this error in every head (rms over queries).

        policy "best": for the answer, kept and drawn keys follow each query where that is better; "head" has the same
        for all queries of a head, "same" for all heads too. For `rel_error` it is what is better for each head of "sampled" (keys drawn at random
        only) and "kept" (own token, sinks, a window and top keys always there).
        split says what `keys` and `total` make least: "answer" (the answer's error, if it was analysed); "output", the
        squared errors of what heads add to the model, relative to what their layer adds; "head", the heads' relative
        squared errors; "uniform" has the same number for every head.
        """
        aims = {"rel_error": rel_error, "kl": kl, "perplexity": perplexity, "change": change}
        aims |= {"keys": keys, "total": total}
        given = [name for name, value in aims.items() if value is not None]
        if len(given) != 1:
            raise InputError(f"Give one of {', '.join(aims)}; got {' and '.join(given) or 'none'}.")
        (aim,) = given
        if self.facts.population != "context":
            raise InputError(
                "Budgets are for what a query sees at inference, but this run pooled the keys of all passages: analyze "
                "with population='context', which `attnlimit analyze` does unless told otherwise."
            )
        if split is not None and aim not in ("keys", "total"):
            raise InputError("split says what keys and total make least: give one of them, or leave it out.")
        if aim in ("keys", "total") and split is None:
            split = "output" if self.answer is None else "answer"
        if split is not None and split not in SPLITS:
            raise InputError(f"split must be one of {', '.join(SPLITS)}; got {split!r}.")
        value = as_positive(aims[aim], aim)
        if aim in ("kl", "perplexity", "change") or split == "answer":
            return self._for_answer(aim, value, policy)
        if aim == "rel_error":
            entries = [_least(one, policy, value) for one in self.heads]
        else:
            visible = sum(one.visible_keys for one in self.heads)
            room = as_count(total, "total") if aim == "total" else int(_share(value) * visible)
            entries = self._split(policy, room, split or "output")
        words = policy if aim == "rel_error" else f"{policy}, {split} split"
        return self._budgets(entries, words, rel_error=rel_error)

    @cached_property
    def answer_levels(self) -> tuple[Budgets, ...]:
        """The cheapest budgets for each of `ANSWER_LEVELS`."""
        options = self._answer().options()
        return tuple(self._chosen(options.cheapest(error=level), "best") for level in ANSWER_LEVELS)

    def predict(self, budgets: Budgets) -> Predicted:
        """The error of the model's answer under any budgets for this model, on texts as long as this run's. Budgets that
        were chosen on this very run look better here than they are: their own `predicted` allows for that."""
        answer, tokens = self._answer(), self.facts.tokens
        if (budgets.layers, budgets.heads) != self.shape or budgets.model not in ("", self.facts.model):
            raise InputError(
                f"These budgets are for {budgets.model or 'a model'} of {budgets.layers} layers and {budgets.heads} heads, "
                f"but the run is of {self.facts.model}, {self.shape[0]} layers and {self.shape[1]} heads."
            )
        if not same_weights(budgets.weights, self.facts.weights):
            raise InputError(
                f"These budgets were made for another {self.facts.model}, with other weights than the run's: make budgets of this run."
            )
        if budgets.tokens not in (None, tokens):
            raise InputError(
                f"These budgets were made for texts of {budgets.tokens} tokens, and the run has {tokens}: errors of another "
                f"length say nothing. Analyse with --tokens {budgets.tokens}."
            )
        if budgets.group != answer.group:
            raise InputError(
                f"These budgets are for groups of {budgets.group} heads that read the same keys, and the run looked at groups of "
                f"{answer.group}: analyse with --keys-by {'group' if budgets.group > 1 else 'head'}."
            )
        return answer.predict(budgets.entries)

    def _answer(self) -> Answer:
        if self.answer is None:
            raise InputError(
                "This run did not look at the model's answer: analyse with --answer on (Reading(answer=2)), or ask for "
                "rel_error, or keys with split='output'."
            )
        return self.answer

    def _for_answer(self, aim: str, value: float, policy: str) -> Budgets:
        answer = self._answer()
        if policy not in FOR_ANSWER:
            raise InputError(
                f"policy must be one of {', '.join(FOR_ANSWER)} for the model's answer, got {policy!r}."
            )
        if aim in ("kl", "perplexity", "change") and (aim == "change") != (answer.unit == CHANGE):
            wanted = "change" if answer.unit == CHANGE else "kl or perplexity"
            raise InputError(
                f"The answer of {self.facts.model} is counted in {answer.unit}: give {wanted}, not {aim}."
            )
        options = answer.options(by_query=policy == "best")
        least = options.same if policy == "same" else options.cheapest
        if aim in ("keys", "total"):
            visible = float(answer.visible.sum())
            room = _share(value) * visible if aim == "keys" else value / answer.group
            found = least(keys=room)
        else:
            found = least(error=math.log1p(value) if aim == "perplexity" else value)
        return self._chosen(found, policy)

    def _chosen(self, found: Chosen, policy: str) -> Budgets:
        words, group = f"least for the model's answer, {FOR_ANSWER[policy]}", self._answer().group
        if group > 1:
            words = f"least for the model's answer, {group} heads of a group reading the same keys"
        return self._budgets(found.entries, words, predicted=found.predicted, space=SPACE_WORDS, group=group)

    def _budgets(self, entries: Sequence[HeadBudget], policy: str, **more: Any) -> Budgets:
        facts, (layers, heads) = self.facts, self.shape
        return Budgets(
            model=facts.model,
            layers=layers,
            heads=heads,
            entries=tuple(entries),
            policy=policy,
            tokens=facts.tokens,
            causal=facts.causal,
            seed=facts.seed,
            text=facts.text,
            weights=facts.weights,
            versions=facts.versions,
            **more,
        )

    def _split(self, policy: str, total: int, split: str) -> list[HeadBudget]:
        shares = [one.output_share for one in self.heads]
        known = split == "output" and None not in shares
        ways = [one.chosen(policy) for one in self.heads]
        choices = [
            Choice(tuple(way.curve for way in some), max(share or 0.0, 1e-6) if known else 1.0)
            for some, share in zip(ways, shares, strict=True)
        ]
        found = (uniform_total if split == "uniform" else split_total)(choices, total)
        return [
            _budget(one, some[pick.way], pick.n)
            for one, some, pick in zip(self.heads, ways, found.picks, strict=True)
        ]

    # --- files ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        heads = [one.to_dict(self.facts.rel_error) for one in self.heads]
        return {"schema": SCHEMA, **to_record(self.facts), "heads": heads}

    def save(self, folder: str | Path) -> Path:
        """Write run.json, heads.parquet (one row a head, sampling and n) and answer.safetensors into a folder."""
        folder = Path(folder)
        write_table(folder / "heads.parquet", self.rows())
        # an earlier run.json goes first and the new one comes last: it never stands beside another run's answer
        (folder / "run.json").unlink(missing_ok=True)
        (folder / ANSWER).unlink(missing_ok=True)
        if self.answer is not None:
            self.answer.save(folder / ANSWER)
        write_json(folder / "run.json", self.to_dict())
        for name in (PASSES, UNFINISHED):
            (folder / name).unlink(missing_ok=True)
        return folder

    def rows(self) -> list[dict[str, object]]:
        """A row a head, way and n; what the head needs stands in all of its rows."""
        found: list[dict[str, object]] = []
        for one in self.heads:
            need = one.needed(self.facts.rel_error)
            same: dict[str, object] = {"layer": one.layer, "head": one.head, "horizon": one.horizon}
            same |= {"needed_keys": need.keys, "needed_all": need.all, "visible_keys": one.visible_keys}
            for way in one.ways:
                same |= {"policy": way.policy, "sampling": str(way.sampling)}
                points = zip(way.curve.n, way.curve.keys.tolist(), way.curve.error.tolist(), strict=True)  # type: ignore[union-attr]
                found += [{**same, "n": n, "keys": keys, "rms": error} for n, keys, error in points]
        return found

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """A run from its folder, or from its run.json; anything missing, unknown, out of range or edited is refused."""
        path = Path(folder)
        path = path / "run.json" if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"{folder} is no run: there is no run.json. {REMEDY}")
        run = read_record(path, SCHEMA, cls._read, "run", REMEDY)
        if run.facts.answer is None:
            return run
        answer = Answer.load(path.with_name(ANSWER))
        layers, groups = answer.seen.shape[:2]
        if (layers, groups * answer.group) != run.shape or answer.unit != run.facts.answer:
            raise InputError(f"{path.with_name(ANSWER)} is not of the run beside it: analyse again.")
        return replace(run, answer=answer)

    @classmethod
    def _read(cls, given: dict[str, Any]) -> Run:
        heads = given.pop("heads", None)
        if not isinstance(heads, list):
            raise InputError(f"heads must be a list, got {type(heads).__name__}.")
        facts = from_record(Facts, {"weights": "", **given}, "the run")
        return cls(facts, tuple(_head(one, facts.rel_error, place) for place, one in enumerate(heads)))


def _head(given: Any, rel_error: float, place: int) -> HeadReport:
    derived = {name: given.pop(name, None) for name in ("needed", "phase")} if isinstance(given, dict) else {}
    head = from_record(HeadReport, given, f"head {place}", ways=(Way, "way"))
    made = head.to_dict(rel_error)
    for name, stored in derived.items():
        if stored != made[name]:
            raise InputError(
                f"head {place}: {name} is {stored!r}, but its curves make {made[name]!r}: it was edited."
            )
    return head


def _share(value: float) -> float:
    if not value <= 1:
        raise InputError(f"keys is a share of all keys, at most 1, got {value:g}: total is a number of them.")
    return value


def _least(one: HeadReport, policy: str, rel_error: float) -> HeadBudget:
    need = one.needed(rel_error, policy)
    return _budget(one, next(way for way in one.ways if way.sampling == need.sampling), need.n)


def _budget(one: HeadReport, way: Way, n: int | None) -> HeadBudget:
    visible = one.visible_keys
    if n is None:
        return HeadBudget(one.layer, one.head, RANDOM, None, 0.0, visible, visible)
    curve = way.curve
    return HeadBudget(one.layer, one.head, way.sampling, n, curve.at(n), curve.keys_at(n), visible)
