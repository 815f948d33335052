"""What pages do not say by hand: commands, benchmarks and references, written from the code when the site is built."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Set powers high and indices low, and replace a line {{ name arguments }} by what `PARTS` writes for it."""

    def part(match: re.Match[str]) -> str:
        name, *arguments = match[1].split()
        return PARTS[name](*arguments)

    written = "".join(text if code else _set(text) for code, text in _pieces(markdown))
    return re.sub(r"^\{\{ (.+) \}\}$", part, written, flags=re.MULTILINE)


def _pieces(markdown: str) -> Iterator[tuple[bool, str]]:
    """The text in order, code apart: fenced, or between backticks."""
    for place, text in enumerate(
        re.split(r"(^```.*?^```|`[^`\n]*`)", markdown, flags=re.MULTILINE | re.DOTALL)
    ):
        yield place % 2 == 1, text


def _set(text: str) -> str:
    """Powers and indices in braces, brackets or of a few letters.

    >>> _set("n^{−1/2}, n^(−1/(2(1+H²))), 10^12, R^d, μ_{2a}, d_h, R_V², in_a.py, long_context")
    'n<sup>−1/2</sup>, n<sup>−1/(2(1+H²))</sup>, 10<sup>12</sup>, R<sup>d</sup>, μ<sub>2a</sub>, d<sub>h</sub>, R<sub>V</sub>², in_a.py, long_context'
    """
    letter = "[A-Za-z0-9Α-ω]"
    bracket = r"\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
    for power in (r"\{([^{}]*)\}", bracket, rf"(\d+|{letter}(?!{letter}))"):
        text = re.sub(rf"\^{power}", r"<sup>\1</sup>", text)
    for index in (r"\{([^{}]*)\}", rf"({letter}{{1,3}})(?!{letter}|_|\.\w)"):
        text = re.sub(rf"(?<=[^\W_])_{index}", r"<sub>\1</sub>", text)
    return text


def reference(module: str) -> str:
    """Everything that a package exports, each from where it is defined: a function may have its module's name."""
    package = import_module(module)
    found = [getattr(package, name) for name in package.__all__]
    objects = [one for one in found if inspect.isclass(one) or inspect.isfunction(one)]
    return "\n".join(f"::: {one.__module__}.{one.__qualname__}\n" for one in objects)


def commands() -> str:
    """Every command: what it does, its arguments and options, from the command line itself."""
    from attnlimit.cli import PANELS
    from attnlimit.cli.boundary import command

    lines: list[str] = []
    for panel, listed in PANELS.items():
        lines += [f"## {panel}", ""]
        for name in listed:
            lines += _command(command(name))
    return "\n".join(lines)


def _command(command: Any) -> list[str]:
    usage = ["attnlimit", command.name]
    rows = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            usage.append(name if parameter.required else f"[{name}]")
            names = f"`{_cell(name)}`"
        else:
            names = ", ".join(f"`{one}`" for one in parameter.opts)
        rows.append(f"| {names} | {parameter.help}{_default(parameter.default)} |")
    about = inspect.cleandoc(command.help or "")
    table = ["| | |", "|---|---|", *rows] if rows else []
    return [f"### {command.name}", "", about, "", f"`{' '.join(usage)}`", "", *table, ""]


def _default(value: Any) -> str:
    """A default worth saying: numbers, words and paths, not flags."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Path):
        return ""
    return f" Default: `{value}`."


def _measured() -> Any:
    """What benchmarks found."""
    return json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))


def benchmarks() -> str:
    """All measured figures, from benchmarks/results.json."""
    lines: list[str] = []
    for name, result in _measured().items():
        machine, versions = result["machine"], result["versions"]
        lines += [
            f"## {name.replace('_', ' ')}",
            "",
            result["measures"],
            "",
            f"Setting: {result['setting']}.",
            "",
        ]
        lines += ["| figure | value | target | met |", "|---|---|---|---|"]
        for figure in result["figures"]:
            met = {True: "yes", False: "**no**", None: ""}[figure.get("met")]
            lines.append(
                f"| {_cell(figure['name'])} | {_number(figure['value'])} {figure['unit']} | {figure.get('target', '')} | {met} |"
            )
        lines += ["", _growth(result["lines"])] if "lines" in result else []
        ways = list(dict.fromkeys(figure["how"] for figure in result["figures"] if "how" in figure))
        lines += ["", *(f"- {way}" for way in ways), ""]
        lines += [
            f"`python -m benchmarks {name}`, {result['seconds']:g} s; {machine['cpus']} cores ({machine['architecture']}, "
            f"{machine['instructions']}), {machine['threads']} threads, load {machine['load before']} before the start; "
            f"Python {versions['python']}, torch {versions['torch']}.",
            "",
        ]
    return "\n".join(lines)


def answer() -> str:
    """What budgets for the answer were predicted to do and did, from benchmarks/results.json."""
    by: dict[tuple[int, float], dict[str, Any]] = {}
    for one in _measured()["answer"]["points"]:
        by.setdefault((one["tokens"], one["asked"]), {})[one["method"]] = one
    ours = ["by head and query", "by head"]
    columns = ["tokens", "keys", *(f"{name}: {what}" for name in ours for what in ("predicted", "measured"))]
    lines = [f"| {' | '.join([*columns, 'least of the others'])} |", "|---" * 7 + "|"]
    for (tokens, asked), methods in by.items():
        cells = [f"{tokens:,}", f"{100 * asked:g} %"]
        for name in ours:
            value, low, high = methods[name]["predicted"]
            cells += [f"{value:.2g} [{low:.2g}, {high:.2g}]", f"**{methods[name]['kl']:.2g}**"]
        other = min((one for name, one in methods.items() if name not in ours), key=lambda one: one["kl"])
        cells.append(f"{other['kl']:.2g} ({other['method']})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _growth(found: list[dict[str, Any]]) -> str:
    """Ratio to the baseline against size, a pair of axes for each kind of size, as a picture in the page."""
    from attnlimit.numerics.counts import short_count
    from attnlimit.report.figures.style import COLOURS, finish, panels

    kinds = list(dict.fromkeys(one["of"] for one in found))
    figure, axes = panels(len(kinds), 4.0 * len(kinds), 3.2)
    for ax, kind in zip(axes, kinds, strict=True):
        shown = [one for one in found if one["of"] == kind]
        for one, colour in zip(shown, COLOURS, strict=False):
            ax.plot(one["sizes"], one["ratios"], "o-", color=colour, markersize=4, label=one["name"])
        finish(ax, f"{kind}; baseline: {shown[0]['base']}", "time, baseline = 1", log="xy")
        ax.set_xticks(shown[0]["sizes"], [short_count(size) for size in shown[0]["sizes"]])
        ax.minorticks_off()
        ax.set_ylim(bottom=min(0.5, *ax.get_ylim()))
    image = StringIO()
    figure.savefig(image, format="svg")
    drawn = image.getvalue()
    words = "Time over that of a baseline of the same size, against size: a level line grows as its baseline does."
    return f'<figure role="img" aria-label="{words}">{drawn[drawn.index("<svg") :]}<figcaption>{words}</figcaption></figure>\n'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def references() -> str:
    """The works of references.bib, by key."""
    text = (ROOT / "src" / "attnlimit" / "references.bib").read_text(encoding="utf-8")
    lines = []
    for key, body in re.findall(r"^@\w+\{([\w:-]+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        field = dict(re.findall(r"^\s*(\w+)\s*=\s*\{(.*)\},?$", body, re.MULTILINE))
        where = field.get("journal") or field.get("booktitle") or ""
        link = ""
        if "doi" in field:
            link = f" [doi:{field['doi']}](https://doi.org/{field['doi']})"
        elif "eprint" in field:
            link = f" [arXiv:{field['eprint']}](https://arxiv.org/abs/{field['eprint']})"
        parts = [_plain(field["author"]), f"*{_plain(field['title'])}*", _plain(where), field["year"]]
        lines.append(f"- **[{key}]** {'. '.join(part for part in parts if part)}.{link}")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """TeX accents and braces as letters.

    >>> _plain(r"L{\\'e}a and Fran{\\c c}ois")
    'Léa and François'
    """
    for tex, letter in (("{\\'e}", "é"), ("{\\c c}", "ç"), ('{\\"o}', "ö"), ("{\\'\\i}", "í")):
        text = text.replace(tex, letter)
    return text.replace("{", "").replace("}", "").replace("--", "–")


PARTS = {
    "answer": answer,
    "commands": commands,
    "benchmarks": benchmarks,
    "reference": reference,
    "references": references,
}
