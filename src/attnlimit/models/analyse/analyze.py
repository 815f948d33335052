"""How many keys each head of a model needs, on a text."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from attnlimit.designs import Independent, Sampling
from attnlimit.doors import door
from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.exact.populations import Seen
from attnlimit.files.strict import Seed, record
from attnlimit.inputs import Positive
from attnlimit.models.analyse.answer import Answering
from attnlimit.models.analyse.heads import HeadReport, Measured
from attnlimit.models.analyse.run import PASSES, UNFINISHED, Facts, Run
from attnlimit.models.analyse.unfinished import Unfinished, key_of
from attnlimit.models.budget.needed import KEEPING, RANDOM
from attnlimit.models.see.call import Call, wide
from attnlimit.models.see.fields import Counted, Whole
from attnlimit.models.see.find import short_name
from attnlimit.models.see.gradient import OFF, unit
from attnlimit.models.see.interface import observe
from attnlimit.models.see.layers import attention_layers
from attnlimit.models.see.load import Loaded, load, run_backbone
from attnlimit.models.see.memory import Memory, available_memory, estimate_memory
from attnlimit.models.see.moments import Moments
from attnlimit.models.see.progress import Progress
from attnlimit.models.see.projection import OutputShares
from attnlimit.models.see.text import (
    Document,
    as_documents,
    longest,
    positions,
    special_tokens,
    texts,
    token_windows,
)
from attnlimit.numerics.threads import Waiting
from attnlimit.numerics.words import counted

POINTS, CONTEXT_POINTS = 24, 13
NEAR_ALL = (0.85, 0.95)
CONTEXT_PASSAGES, CORPUS_PASSAGES = 8, 32
DEFAULT_TOKENS = 512
ANSWER_QUERIES = 3
"""For each query of a head's own error: they cost little, and answers differ more from query to query."""


@door
@record
class Reading:
    """What is read of the text: `passages` passages of `tokens` tokens, and `queries` random queries of each head.

    population "context": the keys a query really sees in its passage (masks respected), which is what an inference
    budget means. "corpus": the keys of all passages pooled, as the papers plot, for models without rotary positions or
    biases. None: 512 tokens or what the model has, 8 passages (corpus: 32).
    """

    tokens: Counted | None = None
    passages: Counted | None = None
    queries: Counted = 64
    population: Literal["context", "corpus"] = "context"
    answer: Whole = 2
    """How often labels are drawn from the model's own answer in each passage, for what its heads' errors do to it (a
    backward pass each); 0: not at all. Its queries are drawn from whole passages, by their part in the answer's error."""
    grouped: bool = False
    """Whether query heads with the same key head read the same keys: all that one of them keeps, and the same drawn ones."""
    seed: Seed = 0

    @property
    def pooled(self) -> bool:
        return self.population == "corpus"

    def windows(self, loaded: Loaded, given: Sequence[str | Document] | None) -> Tensor:
        """(passages, tokens)"""
        tokens = self.tokens
        if tokens is None:
            tokens = min(DEFAULT_TOKENS, positions(loaded.model) or DEFAULT_TOKENS)
        most = self.passages
        if most is None:
            most = CORPUS_PASSAGES if self.pooled else CONTEXT_PASSAGES
        length = longest(loaded.model, tokens)
        return token_windows(loaded.need_tokenizer(), texts() if given is None else given, length, most=most)


USUAL = Reading()


@door
def analyze(
    model: str | Path | Loaded,
    texts_or_documents: Sequence[str | Document] | None = None,
    *,
    rel_error: Positive = 0.05,
    reading: Reading = USUAL,
    progress: Progress | None = None,
    before: Callable[[Memory], object] | None = None,
    folder: str | Path | None = None,
    note: Callable[[str], object] | None = None,
) -> Run:
    """For every layer and head: horizon, effective keys, exact error curves, keys needed, slopes, and what they mean.

    The text defaults to Wikipedia articles. `progress` is called with (steps done, steps in all), `before` with the
    memory that it will take, before the model runs. After every passage (pooled ones: some layers), and every trial of budgets, what was measured is
    kept in `folder`, and the same analysis goes on from there, bit for bit, should it be killed (`note` is told); `Run.save` there ends that.
    """
    loaded = load(model) if isinstance(model, str | Path) else model
    loaded.need_tokenizer()
    if reading.pooled:
        _refuse_positions(loaded)
    windows = reading.windows(loaded, texts_or_documents)
    plan = _Plan(loaded, windows, reading, _source(texts_or_documents))
    memory = plan.memory()
    if before is not None:
        before(memory)
    answering = None
    if reading.answer and not reading.pooled:
        refuse_too_large(loaded, memory)
        queries = ANSWER_QUERIES * reading.queries
        answering = Answering(loaded, windows, queries, reading.answer, reading.seed, reading.grouped)
    kept = None
    if folder is not None:
        kept = Unfinished(Path(folder) / UNFINISHED, key_of(loaded, _versions(), reading, digest(windows)))
    work = _Work(plan, progress, answering, kept)
    batches = [windows] if reading.pooled else list(windows.split(1))
    layers = len(batches) * len(attention_layers(loaded.model))
    work.total = layers if answering is None else 2 * layers + answering.passes
    there = (
        f"layer {work.before} of {layers}" if reading.pooled else f"passage {work.batch} of {len(batches)}"
    )
    if work.before and note is not None:
        note(f"Going on after {there}, which are there from before.")
    for batch in batches[work.batch :]:
        with work.outputs.attached(loaded.model):
            if answering is not None:
                answering.read(work.batch, work.look, work.step)
            else:
                with torch.no_grad(), observe(loaded.model, work.handle):
                    run_backbone(loaded, input_ids=batch.to(loaded.device))
        work.waiting.finish()
        work.batch += 1
        work.keep()
    answer = None
    if answering is not None:
        passes = None if kept is None else replace(kept, path=kept.path.with_name(PASSES))
        answer = answering.tried(answering.found(), work.step, passes)
    return Run(_facts(plan, work, rel_error, memory), tuple(work.reports()), answer)


def _facts(plan: _Plan, work: _Work, rel_error: float, memory: Memory) -> Facts:
    reading, (passages, tokens) = plan.reading, plan.windows.shape
    return Facts(
        model=short_name(plan.loaded.name),
        kind=plan.loaded.kind,
        population=reading.population,
        tokens=tokens,
        passages=passages,
        queries=len(plan.places),
        rel_error=rel_error,
        seed=reading.seed,
        causal=work.causal,
        dtype=str(next(plan.loaded.model.parameters()).dtype).removeprefix("torch."),
        memory=memory.peak,
        versions=_versions(),
        text=f"{counted(passages, 'passage')} of {plan.source}, token ids sha256 {digest(plan.windows)}",
        answer=None if work.answering is None else unit(plan.loaded.kind),
        method=f"Laplace quadrature, n {'independent' if reading.pooled else 'different'} keys, no Monte Carlo; relative "
        "to the rms of the head's outputs",
        weights=plan.loaded.weights,
    )


@dataclass
class _Plan:
    """Which queries of which passages, the same for all layers."""

    loaded: Loaded
    windows: Tensor
    reading: Reading
    source: str
    """Where the text came from."""
    places: list[tuple[int, int]] = field(default_factory=list)
    real: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.reading.seed)
        count, length = self.windows.shape
        before, after = special_tokens(self.loaded.tokenizer)
        self.real = torch.ones(length, dtype=torch.bool)
        self.real[: len(before)] = False
        self.real[length - len(after) :] = False
        # the second half of the passage: there a causal query has a context worth sampling
        start = len(before) if self.reading.pooled else max(len(before), length // 2)
        stop = length - len(after)
        rows = [torch.randperm(stop - start, generator=g) + start for _ in range(count)]
        for k in range(self.reading.queries):
            if k // count < len(rows[k % count]):
                self.places.append((k % count, int(rows[k % count][k // count])))

    def memory(self) -> Memory:
        count, length = self.windows.shape
        pooled = self.reading.pooled
        at_once = count * length if pooled else length
        queries = len(self.places) if pooled else -(-len(self.places) // count)
        points = POINTS if pooled else CONTEXT_POINTS
        return estimate_memory(
            self.loaded.model,
            tokens=at_once,
            keys=at_once,
            queries=queries,
            points=points,
            backward=bool(self.reading.answer) and not pooled,
        )

    def at(self, batch: int) -> Tensor:
        """(m, 2): texts of the batch, all passages or this one alone, and their queries."""
        pooled = self.reading.pooled
        places = [(p if pooled else 0, row) for p, row in self.places if pooled or p == batch]
        return torch.tensor(places, dtype=torch.int64).view(-1, 2)

    def measured(self, call: Call) -> Measured:
        """Nothing of a head yet: the grid of n, and the ways to sample its keys."""
        pooled, cross = self.reading.pooled, call.own_key is None
        points = POINTS if pooled else CONTEXT_POINTS
        keys = len(self.windows) * int(self.real.sum()) if pooled else call.key.shape[2]
        grid = {round(keys ** (i / (points - 1))) for i in range(points)}
        if pooled:
            kept = KEEPING.kept.without(place=True, order=True)
            drawn = [Sampling(draw=Independent(), weight="rest")]
            drawn.append(replace(drawn[0], kept=kept))
        else:  # the error vanishes with the last keys
            grid |= {round(share * keys) for share in NEAR_ALL if share * keys > 8}
            drawn = [RANDOM, replace(KEEPING, kept=KEEPING.kept.without(place=cross))]
        return Measured(call.name, cross, tuple(sorted(grid)), tuple(drawn), Moments(call.scale))


class _Work:
    """Measures every head of every call, layer by layer; only q, k, v of the running layer and of few before it exist."""

    def __init__(
        self, plan: _Plan, progress: Progress | None, answering: Answering | None, kept: Unfinished | None
    ) -> None:
        self.answering, self.kept = answering, kept
        self.plan, self.progress, self.pooled = plan, progress, plan.reading.pooled
        self.batch, self.total, self.done = 0, 0, 0
        self.causal = False
        self.heads: dict[tuple[int, int], Measured] = {}
        self.outputs, self.waiting = OutputShares(), Waiting()
        self.before = 0
        """Steps of the same analysis, stopped, whose state was read."""
        state = None if kept is None else kept.read()
        if state is not None:
            self._go_on(state)

    def keep(self) -> None:
        """What was measured so far, where that is wanted."""
        if self.kept is not None:
            self.kept.write(self._state())

    def _state(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("batch", "done", "causal", "heads")}
        answer = None if self.answering is None else self.answering.state()
        return own | {"parts": self.outputs.parts, "whole": self.outputs.whole, "answer": answer}

    def _go_on(self, state: dict[str, Any]) -> None:
        self.before, self.heads = state["done"], state["heads"]
        if self.pooled:  # one batch: the model runs again, and layers whose heads are there are passed by
            return
        self.batch, self.done, self.causal = (state[k] for k in ("batch", "done", "causal"))
        self.outputs.parts, self.outputs.whole = state["parts"], state["whole"]
        if self.answering is not None:
            self.answering.go_on(state["answer"])

    def handle(self, call: Call) -> Tensor:
        out = call.output().contiguous()
        self.look(call, out)
        return out

    def look(self, call: Call, out: Tensor) -> None:
        """At one layer, whose outputs are these."""
        plain = call.bias is None and call.softcap is None and call.sink is None
        if self.pooled and not plain:
            raise ModelNotSupported(
                f"{call.name} adds a bias, soft cap or sink to its scores, so keys of other passages cannot be pooled: "
                "use population='context'."
            )
        self.causal |= call.mask.plain == "causal"
        places = self.plan.at(self.batch).to(call.query.device)
        if self.done >= self.before:
            self.waiting.add(partial(self._head, call, head, places) for head in range(call.heads))
        self.step()
        if self.pooled and self.done > self.before and not self.waiting.pieces:
            self.keep()
        self.outputs.expect(call.layer, out, places)

    def step(self) -> None:
        """One more layer, or trial, is done."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)

    def _head(self, call: Call, head: int, places: Tensor) -> None:
        key, group = (call.layer, head), head // call.groups
        if key not in self.heads:
            self.heads[key] = self.plan.measured(call)
        one, real, rows = self.heads[key], self.plan.real.to(call.query.device), places[:, 1]
        q, k, v = (wide(x) for x in (call.query[:, head], call.key[:, group], call.value[:, group]))
        one.moments.add(*(x[:, real].flatten(0, 1) for x in (q, k)))
        if self.pooled:
            keys, values = (x[:, real].flatten(0, 1) for x in (k, v))
            scores = call.scale * q[places[:, 0], rows] @ keys.T
            call.check_spread(scores, head)
            one.add(Seen(scores, values), None, ordered=False)
        elif len(rows):
            sink = None if call.sink is None else wide(call.sink[head]).expand(len(rows))
            scores = call.scores(0, head, rows)
            call.check_spread(scores, head)
            hidden = scores == -torch.inf
            own = None if call.own_key is None else rows + call.own_key
            one.add(Seen(scores, v[0], hidden if bool(hidden.any()) else None, sink), own)

    def reports(self) -> list[HeadReport]:
        """Of the heads at whose queries something was measured."""
        measured = [(*place, one) for place, one in sorted(self.heads.items()) if one.visible]
        if not any(bool(part.any()) for *_, one in measured for part in one.limits):
            raise InputError(
                f"Every head of {self.plan.loaded.name} puts out zeros, so that there is nothing to be sampled: its weights are "
                "zero. Copy the model again, or name one that was trained."
            )
        return [one.report(layer, head, self.outputs.share(layer, head)) for layer, head, one in measured]


def digest(windows: Tensor) -> str:
    """What token ids are known by."""
    return hashlib.sha256(windows.numpy().tobytes()).hexdigest()[:16]


def _source(given: Sequence[str | Document] | None) -> str:
    if given is None:
        return "Wikipedia articles"
    titles = [one.title for one in as_documents(given)]
    return ", ".join(map(repr, titles[:3])) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("attnlimit", "torch", "transformers"):
        with suppress(PackageNotFoundError):  # run from its folder
            found[name] = version(name)
    return found


def refuse_too_large(loaded: Loaded, memory: Memory) -> None:
    """If going backward takes more than is free."""
    if loaded.on_disk:
        raise ModelNotSupported(
            f"Part of {loaded.name} is left on disk, and going backward would bring all of it into memory at once: {OFF}."
        )
    room = available_memory(loaded.device)
    if room is not None and memory.peak > room:
        raise ModelNotSupported(
            f"Going backward through {loaded.name} takes {memory}, but {room / 1e9:.2g} GB are free: use shorter passages "
            f"(--tokens), a smaller dtype, or {OFF}."
        )


def _refuse_positions(loaded: Loaded) -> None:
    config = loaded.model.config
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        raise ModelNotSupported(
            f"{loaded.name} ({config.model_type}) has rotary positions: a key's score depends on where it stands, so keys "
            "of several passages cannot be pooled. Use population='context'."
        )
