"""An analysis as an object: its heads, its files, its budgets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.files.records import write_json, write_table
from attnlimit.files.strict import from_record, read_record, record, to_record
from attnlimit.inputs import as_positive
from attnlimit.models.analyse.heads import HeadReport
from attnlimit.models.budget.allocate import Choice, split_total, uniform_total
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.budget.needed import RANDOM, Way

SCHEMA = "attnlimit.run/2"
SPLITS = ("output", "head", "uniform")
REMEDY = "`attnlimit analyze MODEL --out DIR` makes a run that this version reads."


@record
class Facts:
    """What was analysed, and how."""

    model: str
    kind: str
    population: Literal["context", "corpus"]
    tokens: PositiveInt
    """Of a passage."""
    passages: PositiveInt
    queries: PositiveInt
    """Of each head."""
    rel_error: PositiveFloat
    seed: int
    causal: bool
    dtype: str
    memory: NonNegativeFloat
    """Bytes that it was said to take beside the model."""
    versions: dict[str, str]
    method: str


@dataclass(frozen=True, eq=False, repr=False)
class Run(Drawn):
    """What `analyze` found: the facts of the run, and one report a head, by layer and head."""

    facts: Facts
    heads: tuple[HeadReport, ...]

    def __post_init__(self) -> None:
        before = (-1, 0)
        for one in self.heads:
            if (one.layer, one.head) not in ((before[0], before[1] + 1), (before[0] + 1, 0)):
                raise InputError(
                    f"Layer {one.layer}, head {one.head} cannot follow layer {before[0]}, head {before[1]}: heads come "
                    "in order, and none may be missing."
                )
            before = (one.layer, one.head)
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
        policy: str = "best",
        total: int | None = None,
        split: str = "output",
    ) -> Budgets:
        """Keys for every head: the least that reaches `rel_error` (rms over queries), or a `total` number of keys that a
        query reads, kept ones included, shared out over all heads.

        split "output" makes least the sum of squared errors of what heads add to the model, each relative to what its
        layer adds; "head" the sum of the heads' relative squared errors; "uniform": the same number for every head.
        policy "sampled": keys drawn at random only; "kept": own token, sinks, a window and the top keys always there,
        the rest drawn; "best": what is better for each head.
        """
        facts = self.facts
        if facts.population != "context":
            raise InputError(
                "Budgets are for what a query sees at inference, but this run pooled the keys of all passages: analyze "
                "with population='context', which `attnlimit analyze` does unless told otherwise."
            )
        if (rel_error is None) == (total is None):
            raise InputError("Give either rel_error or total.")
        if split not in SPLITS:
            raise InputError(f"split must be one of {', '.join(SPLITS)}; got {split!r}.")
        if total is not None:
            entries = self._split(policy, total, split)
        else:
            entries = [_least(one, policy, as_positive(rel_error, "rel_error")) for one in self.heads]
        layers, heads = self.shape
        return Budgets(
            model=facts.model,
            layers=layers,
            heads=heads,
            entries=tuple(entries),
            rel_error=rel_error,
            policy=policy if total is None else f"{policy}, {split} split",
            tokens=facts.tokens,
            causal=facts.causal,
            seed=facts.seed,
            versions=facts.versions,
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
        """Write run.json and heads.parquet (one row a head, sampling and n) into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", self.to_dict())
        write_table(folder / "heads.parquet", self.rows())
        return folder

    def rows(self) -> list[dict[str, object]]:
        """A row a head, way and n; what the head needs stands in all of its rows."""
        found: list[dict[str, object]] = []
        for one in self.heads:
            need = one.needed(self.facts.rel_error)
            same = {"layer": one.layer, "head": one.head, "horizon": one.horizon}
            same |= {"needed_keys": need.keys, "needed_all": need.all, "visible_keys": one.visible_keys}
            for way in one.ways:
                points = zip(way.curve.n, way.curve.error.tolist(), way.curve.keys.tolist(), strict=True)  # type: ignore[union-attr]
                found += [
                    {
                        **same,
                        "policy": way.policy,
                        "sampling": str(way.sampling),
                        "n": n,
                        "keys": keys,
                        "rms": error,
                    }
                    for n, error, keys in points
                ]
        return found

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """A run from its folder, or from its run.json; anything missing, unknown, out of range or edited is refused."""
        path = Path(folder)
        path = path / "run.json" if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"{folder} is no run: there is no run.json. {REMEDY}")
        return read_record(path, SCHEMA, cls._read, "run", REMEDY)

    @classmethod
    def _read(cls, given: dict[str, Any]) -> Run:
        heads = given.pop("heads", None)
        if not isinstance(heads, list):
            raise InputError(f"heads must be a list, got {type(heads).__name__}.")
        facts = from_record(Facts, given, "the run")
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


def _least(one: HeadReport, policy: str, rel_error: float) -> HeadBudget:
    need = one.needed(rel_error, policy)
    return _budget(one, next(way for way in one.ways if way.sampling == need.sampling), need.n)


def _budget(one: HeadReport, way: Way, n: int | None) -> HeadBudget:
    visible = one.visible_keys
    if n is None:
        return HeadBudget(one.layer, one.head, RANDOM, None, 0.0, visible, visible)
    curve = way.curve
    return HeadBudget(one.layer, one.head, way.sampling, n, curve.at(n), curve.keys_at(n), visible)
