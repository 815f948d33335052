"""The page of an explanation: the text, what each token reads in every head, and the roles of the heads."""

from __future__ import annotations

from attnlimit.models.explain.result import Explanation
from attnlimit.numerics.words import counted
from attnlimit.report.html.page import Page, Sheet

LINKS = ("role", "goes with", "rank correlation", "low", "high")


def explanation(found: Explanation) -> Page:
    """The page of this explanation."""
    layers = len({one.layer for one in found.heads})
    links = [(one.role, one.quantity, one.value, one.low, one.high) for one in found.links]
    return Page(
        title=f"{found.model}: what each head reads, attnlimit",
        eyebrow="attnlimit explain",
        heading="What does each head read?",
        chips=[
            found.model,
            found.title,
            f"{len(found.heads):,} heads in {counted(layers, 'layer')}",
            f"{len(found.tokens):,} tokens" + " (more text follows)" * found.cut,
        ],
        summary=[
            "A head that picks a few keys can be read off a map of its attention; one that averages over many cannot. Choose a "
            "token: the lines say what it reads, and how far that can be trusted."
        ],
        explained=found.to_dict(),
        tables=[Sheet("How roles go with what heads need", LINKS, links)] if links else [],
        methods=_methods(found),
    )


def _methods(found: Explanation) -> list[tuple[str, object]]:
    looked = f"gradients of the model's own answer, {counted(found.draws, 'draw')} of labels"
    return [
        ("Model", f"{found.model} ({found.kind})"),
        ("Weights, roles and losses", found.method),
        ("Answer", looked if found.draws else "not looked at"),
        ("Certainty", "1 − ‖Γ̂ − Γ‖²/‖v̄ − Γ‖², Γ̂ made of the four keys of largest weight and the average of the others, v̄ the average of all keys seen"),
        ("Matters", "what the answer loses, to second order, if the head reads the plain average of the keys that it sees"),
        ("Seed", found.seed),
    ]  # fmt: skip
