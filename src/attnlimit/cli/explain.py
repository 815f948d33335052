"""attnlimit explain: what every head of a model reads on a text, and how far that can be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text as Words

import attnlimit as al
from attnlimit.cli.common import AsJson, err, folder_out, out, print_json, progress, table
from attnlimit.cli.model_options import Device, Dtype, Model, loaded_model
from attnlimit.errors import InputError
from attnlimit.files.records import write_text
from attnlimit.numerics.words import counted

if TYPE_CHECKING:
    from attnlimit.models.explain.result import Explanation, HeadRoles, Interval, TokenRead

SHADES = {
    "own token": ("own", "cyan"),
    "sink": ("sink", "bright_black"),
    "previous token": ("prev", "blue"),
    "same token": ("same", "magenta"),
    "induction": ("ind", "red"),
    "window": ("near", "green"),
    "content": ("pick", "yellow"),
    "broad average": ("avg", "white"),
}
"""How the map of roles calls them, in the order of their shares, and their colours."""
HEADS = 12
"""That a chosen token shows: those that matter most to the answer."""


def explain(
    model: Model = None,
    text: Annotated[
        str | None, typer.Option(help="A text file, or - (default: a Wikipedia article).")
    ] = None,
    token: Annotated[str | None, typer.Option(help="A word of the text to explain.")] = None,
    which: Annotated[int | None, typer.Option(help="Which occurrence of it, from 1.")] = None,
    index: Annotated[int | None, typer.Option(help="A token to explain by its number, from 0.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of the text that are read.")] = None,
    rel_error: Annotated[float, typer.Option(help="Part of an output that may stay unexplained.")] = 0.05,
    answer: Annotated[
        str, typer.Option(help="on: also what matters to the model's answer; off: heads only.")
    ] = "on",
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
    folder: Annotated[Path | None, folder_out("Where explain.json and explain.html are written.")] = None,
    as_json: AsJson = False,
) -> None:
    """What every head reads on a text: its roles, and for a token the keys that explain it, with their certainty."""
    from attnlimit.models.explain.explain import USUAL
    from attnlimit.report.html import explanation, page

    if answer not in ("on", "off"):
        raise InputError(f"--answer must be on or off, got {answer!r}.")
    if which is not None and token is None:
        raise InputError("--which says which occurrence of a word: give the word with --token.")
    given = None if text is None else al.documents([text])[0]
    reading = replace(USUAL, tokens=tokens, seed=seed, answer=USUAL.answer if answer == "on" else 0)
    loaded = loaded_model(model, device, dtype)
    wanted = [one for one in (token, index) if one is not None]
    with progress("percent") as step:
        found = al.explain(
            loaded,
            given,
            wanted,
            which=which,
            rel_error=rel_error,
            reading=reading,
            progress=step,
            before=lambda memory: err.print(f"Memory: {memory}."),
        )
    try:
        if folder is not None:
            found.save(folder / "explain.json")
            write_text(folder / "explain.html", page(explanation(found)))
    finally:  # a full disk loses nothing
        if as_json:
            print_json(found.to_dict())
        else:
            _show(found)
    if folder is not None and not as_json:
        out.print(f"Explanation: {folder}/explain.json\nPage: {folder}/explain.html (open it in a browser)")


def _show(found: Explanation) -> None:
    _show_roles(found)
    _show_links(found)
    for one in found.chosen:
        _show_token(found, one)
    if not found.chosen:
        out.print('What heads read at a token: --token "word", or --index 17.')


def _show_roles(found: Explanation) -> None:
    """The leading role of every head, and of every role how much there is and where most."""
    by_layer: dict[int, list[HeadRoles]] = {}
    for one in found.heads:
        by_layer.setdefault(one.layer, []).append(one)
    widest = max(map(len, by_layer.values()))
    rows = [[str(layer), *map(_cell, some), *[""] * (widest - len(some))] for layer, some in by_layer.items()]
    title = f"Leading role of each head among those that it plays, with its share of the attention in %: {found.model}, {len(found.tokens)} tokens"
    out.print(table(title, ["layer", *(f"h{k}" for k in range(widest))], rows))
    lines = []
    for k, role in enumerate(SHADES):
        most = max(found.heads, key=lambda one: one.shares[k][0])
        twice = max(found.heads, key=lambda one: 0.0 if one.made is None else one.made[k][0])
        lines.append(
            [
                f"{role} ({SHADES[role][0]})",
                f"{100 * sum(one.shares[k][0] for one in found.heads) / len(found.heads):.1f}",
                str(sum(one.plays(role) for one in found.heads)),
                f"{most.layer}.{most.head}: {_interval(most.shares[k])}",
                "–" if twice.made is None else f"{twice.layer}.{twice.head}: {_interval(twice.made[k])}",
            ]
        )
    columns = [
        "role",
        "% of attention",
        "heads that play it",
        "most (layer.head)",
        "most on repeated random tokens",
    ]
    out.print(table("Roles: how the attention of all heads divides", columns, lines))
    out.print(
        f"Shares sum to 1 for every head; {found.level:.0%} intervals over resampled stretches of the text. A head plays a role "
        "whose interval lies above chance."
    )


def _show_links(found: Explanation) -> None:
    quantities = list(dict.fromkeys(one.quantity for one in found.links))
    cells = {
        (one.role, one.quantity): f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]" for one in found.links
    }
    roles = list(dict.fromkeys(one.role for one in found.links))
    rows = [[role, *(cells.get((role, one), "–") for one in quantities)] for role in roles]
    out.print(table("Rank correlation of a role's share over heads", ["role", *quantities], rows))


def _show_token(found: Explanation, one: TokenRead) -> None:
    """The heads that matter most, and what they read."""
    at = one.token
    best = sorted(one.reads, key=lambda read: -(read.certainty if read.matters is None else read.matters))
    rows = [
        [
            f"{read.layer}.{read.head}",
            found.words(read),
            f"{read.certainty:.2f}",
            f"{read.needed}" + ("" if read.needed_for_answer is None else f" / {read.needed_for_answer}"),
            "–" if read.matters is None else f"{read.matters:.2g}",
            "–" if read.agreement is None else f"{read.agreement:.2f}",
            _lost(read.measured),
        ]
        for read in best[:HEADS]
    ]
    piece = found.tokens.pieces[at].strip()
    columns = ["head", "reads", "certainty", "keys", "matters", "agreement", "lost / random"]
    order = "surest" if found.unit is None else "that matter most"
    out.print(
        table(
            f"What is read at token {at}, {piece!r}: the {counted(len(rows), 'head')} {order}", columns, rows
        )
    )
    lines = [
        f"reads: keys by weight until all but {100 * found.rel_error:g} % of the output is explained, then the plain average of the "
        "others. certainty: the part of what it picks that its first 4 keys account for. keys: how many that takes, for the output"
        + (" / for the answer." if found.unit else ".")
    ]
    if found.unit is not None and one.measured is not None:
        lines.append(
            f"matters, lost: {found.unit} over the whole text: if it read the plain average (to second order), and if it reads "
            f"only this, or as many random keys (tried, mean of {found.trials}). All heads together: {_lost(one.measured)}."
        )
    out.print("\n".join(lines))


def _lost(given: object) -> str:
    return "–" if given is None else f"{given.named:.2g} / {given.random:.2g}"  # type: ignore[attr-defined]


def _cell(one: HeadRoles) -> Words:
    name, shade = SHADES[one.leading]
    return Words(f"{name} {100 * one.share(one.leading)[0]:.0f}", shade)


def _interval(share: Interval) -> str:
    return f"{share[0]:.2f} [{share[1]:.2f}, {share[2]:.2f}]"
