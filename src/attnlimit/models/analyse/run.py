"""An analysis as an object: its heads, its files, its budgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnlimit.designs.kept import Kept
from attnlimit.errors import InputError
from attnlimit.files.records import write_json, write_table
from attnlimit.inputs import as_positive
from attnlimit.models.analyse.heads import POLICIES, HeadReport, error_at, least_n
from attnlimit.models.budget.allocate import HeadCurve, split_total, uniform_total
from attnlimit.models.budget.budgets import Budgets, HeadBudget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "attnlimit.run/1"
SPLITS = ("output", "head", "uniform")
LISTS = ("score_spread", "score_counts", "effective_keys", "n", "exponent_range")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """What `analyze` found: the facts of the run, and one report a head."""

    facts: Mapping[str, Any]
    heads: tuple[HeadReport, ...]

    def __repr__(self) -> str:
        facts = self.facts
        return f"Run({facts['model']}, {len(self.heads)} heads, {facts['population']} of {facts['tokens']} tokens)"

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads a layer)."""
        return max(h.layer for h in self.heads) + 1, max(h.head for h in self.heads) + 1

    def grid(self, field: str) -> torch.Tensor:
        """A number of each head, (layers, heads); nan where there is none."""
        grid = torch.full(self.shape, torch.nan, dtype=torch.float64)
        for one in self.heads:
            value = getattr(one, field)
            grid[one.layer, one.head] = torch.nan if value is None else float(value)
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
        """Keys for every head: the least that reaches `rel_error` (rms over queries), or a `total` number of sampled
        keys shared out over all heads.

        split "output" makes least the sum of squared errors of what heads add to the model, each relative to what its
        layer adds; "head" the sum of the heads' relative squared errors; "uniform": the same number for every head.
        policy "sampled": keys drawn at random only; "kept": own token, sinks, a window and the top keys always there,
        the rest drawn; "best": the cheaper of the two for each head (for a total: "kept").
        """
        if self.facts["population"] != "context":
            raise InputError(
                "Budgets are for what a query sees at inference, but this run pooled the keys of all passages: analyze "
                "with population='context', which `attnlimit analyze` does unless told otherwise."
            )
        if policy not in (*POLICIES, "best"):
            raise InputError(f"policy must be one of best, {', '.join(POLICIES)}; got {policy!r}.")
        if (rel_error is None) == (total is None):
            raise InputError("Give either rel_error or total.")
        if split not in SPLITS:
            raise InputError(f"split must be one of {', '.join(SPLITS)}; got {split!r}.")
        names = list(POLICIES) if policy == "best" else [policy]
        if total is not None:
            entries = self._split(names[-1], total, split)
        else:
            entries = [self._cheapest(one, names, as_positive(rel_error, "rel_error")) for one in self.heads]
        layers, heads = self.shape
        return Budgets(
            model=str(self.facts["model"]),
            layers=layers,
            heads=heads,
            entries=tuple(entries),
            rel_error=rel_error,
            policy=policy if total is None else f"{policy}, {split} split",
            tokens=int(self.facts["tokens"]),
            causal=bool(self.facts["causal"]),
            seed=int(self.facts["seed"]),
            versions=dict(self.facts["versions"]),
        )

    def _cheapest(self, one: HeadReport, names: list[str], rel_error: float) -> HeadBudget:
        choices = [self._entry(one, name, _least(one, name, rel_error)) for name in names]
        return min(choices, key=lambda entry: entry.effective_keys or 0.0)

    def _split(self, name: str, total: int, split: str) -> list[HeadBudget]:
        shares = [one.output_share for one in self.heads]
        known = split == "output" and None not in shares
        curves = [
            HeadCurve(
                one.n,
                tuple(e * e for e in one.curves[name]["rms"]),
                full=max(1, round(one.visible_keys - one.kept_keys[name])),
                weight=max(share or 0.0, 1e-6) if known else 1.0,
            )
            for one, share in zip(self.heads, shares, strict=True)
        ]
        shared = (uniform_total if split == "uniform" else split_total)(curves, total).n
        return [self._entry(one, name, n) for one, n in zip(self.heads, shared, strict=True)]

    def _entry(self, one: HeadReport, name: str, sampled: int | None) -> HeadBudget:
        kept, visible = POLICIES[name], one.visible_keys
        full = HeadBudget(one.layer, one.head, Kept(), None, 0.0, visible, visible)
        if sampled is None:
            return full
        always = one.kept_keys[name]
        rest = visible - always
        drawn = min(rest, float(sampled))
        if always + drawn >= visible - 0.5:
            return full
        error = error_at(one.n, one.curves[name]["rms"], sampled)
        return HeadBudget(one.layer, one.head, kept, sampled, error, always + drawn, visible)

    # --- files ------------------------------------------------------------------------------------

    def plot(self) -> Figure:
        """The heat map of n(ε) by layer and head."""
        return import_module("attnlimit.report.figures.heads").heat_map(
            self
        )  # a layer above: found when asked for

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **self.facts, "heads": [one.to_dict() for one in self.heads]}

    def save(self, folder: str | Path) -> Path:
        """Write run.json and heads.parquet (one row a head, policy and n) into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", self.to_dict())
        self._write_table(folder / "heads.parquet")
        return folder

    def _write_table(self, path: Path) -> None:
        rows = [
            {"layer": one.layer, "head": one.head, "horizon": one.horizon, "policy": name, "n": n}
            | {key: values[k] for key, values in curve.items()}
            for one in self.heads
            for name, curve in one.curves.items()
            for k, n in enumerate(one.n)
        ]
        write_table(path, rows)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """A run from its folder, or from its run.json."""
        path = Path(folder)
        path = path / "run.json" if path.is_dir() else path
        if not path.is_file():
            raise InputError(
                f"{folder} is no run: there is no run.json. `attnlimit analyze MODEL --out DIR` makes one."
            )
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("schema") != SCHEMA:
                raise InputError(f"{path} has another schema than {SCHEMA}: analyze again with this version.")
            heads = tuple(_head(one) for one in record.pop("heads"))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"{path} is damaged ({problem}): analyze again.") from problem
        return cls(record, heads)


def _head(record: dict[str, Any]) -> HeadReport:
    known = {f.name for f in fields(HeadReport)}
    if set(record) != known:
        raise KeyError(f"fields {sorted(set(record) ^ known)}")
    lists = {name: tuple(record[name]) for name in LISTS}
    curves = {
        policy: {name: tuple(values) for name, values in curve.items()}
        for policy, curve in record["curves"].items()
    }
    return HeadReport(**{**record, **lists, "curves": curves})


def _least(one: HeadReport, name: str, rel_error: float) -> int | None:
    rms = torch.tensor([one.curves[name]["rms"]], dtype=torch.float64)
    found = float(least_n(one.n, rms, rel_error)[0])
    return int(found) if found < float("inf") else None
