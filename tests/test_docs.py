"""The documentation builds without a warning, needs no network, and covers what it should."""

from __future__ import annotations

import doctest
import json
import re
import runpy
from html import unescape
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None,
    reason="mkdocs and mkdocstrings are not installed: pip install 'attnlimit[docs]'",
)


def module_of(name: str) -> ModuleType:
    """A Python file of docs/."""
    spec = spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    command += ["--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Fetched(HTMLParser):
    """Addresses that a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get("src") if tag in ("script", "img", "iframe") else None
        address = given.get("href") if tag == "link" else address
        if address:
            self.found.append(address)


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert [str(page) for page in sorted(pages) if not (site / page).is_file()] == []
    assert not list(site.rglob("*.py"))


def test_pages_need_no_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        reader = Fetched()
        reader.feed(page.read_text(encoding="utf-8"))
        assert reader.found
        assert [one for one in reader.found if re.match(r"(https?:)?//", one)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8"), sheet.name


def test_nothing_is_left_to_fill_in(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "{{" not in text, page.name
        assert ":::" not in text, page.name


@pytest.mark.parametrize(
    "package",
    ["attention", "bounds", "designs", "exact", "icl", "measures", "models", "rates", "sampling", "studies"],
)
def test_the_reference_has_all_that_a_package_exports(site: Path, package: str) -> None:
    text = (site / "reference" / f"{package}.html").read_text(encoding="utf-8")
    exported = import_module(f"attnlimit.{package}")
    names = [name for name in exported.__all__ if hasattr(getattr(exported, name), "__code__")]
    names += [name for name in exported.__all__ if isinstance(getattr(exported, name), type)]
    missing = [name for name in names if not re.search(rf'id="attnlimit\.[\w.]*\.{name}"', text)]
    assert missing == []


def test_the_reference_has_all_of_the_top_level(site: Path) -> None:
    import attnlimit as al

    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    names = [name for name in al.__all__ if not isinstance(getattr(al, name), ModuleType)]
    assert [name for name in names if not re.search(rf'id="attnlimit\.[\w.]*\.{name}"', text)] == []


def test_commands_are_listed_with_their_options(site: Path) -> None:
    from attnlimit.cli import PANELS

    text = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for commands in PANELS.values():
        for command in commands:
            assert f'id="{command}"' in text
    assert "--rel-error" in text


def test_benchmarks_show_the_file(site: Path) -> None:
    text = unescape((site / "benchmarks.html").read_text(encoding="utf-8"))
    for name, result in json.loads((ROOT / "benchmarks" / "results.json").read_text()).items():
        assert f"python -m benchmarks {name}" in text
        assert all(f"<td>{figure['name']}</td>" in text for figure in result["figures"])


def test_sentences_of_measured_numbers_say_what_was_measured() -> None:
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    readme, page = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("README.md", "docs/budget-a-model.md")
    )
    values = {name: {one["name"]: one["value"] for one in results[name]["figures"]} for name in results}
    answer, decoding = values["answer"], values["decoding"]

    short, middle, long = (
        f"{answer[f'{size} tokens: keys for KL 0.01']:.0f} %" for size in ("512", "1,024", "2,048")
    )
    said = f"(KL 0.01 nats a token) with {middle} of its keys** in texts of 1,024 tokens ({short} of 512, {long} of 2,048)"
    assert said in readme
    assert "At all three lengths ours was below every other method at every point." in page
    assert [
        answer[f"{size} tokens: points at which ours is not below another"]
        for size in ("512", "1,024", "2,048")
    ] == [0] * 3
    assert "From a tenth of the keys on, predictions are within 30 % of what was measured." in page
    ours = [one for one in results["answer"]["points"] if one["method"] in ("by head and query", "by head")]
    assert len(ours) == 18
    assert all(0.7 <= one["predicted"][0] / one["kl"] <= 1.3 for one in ours if one["asked"] >= 0.1)
    assert "what was read differs by up to 3 % of it" in page
    assert 0.02 < max(abs(one["read"] / one["asked"] - 1) for one in ours) < 0.035

    assert (
        "more than twice as fast as fused attention with 32 thousand keys and more than three times with 128 thousand"
        in page
    )
    for keys, least in (("32k", 2), ("128k", 3)):
        steps = [value for name, value in decoding.items() if name.startswith(f"step at {keys} keys")]
        assert len(steps) == 4
        assert min(steps) > least
    whole, grown, kl = [value for name, value in decoding.items() if not name.startswith("step")][2:]
    assert f"takes {whole:.2f} of the full model's time ({grown:.2f} where" in page
    assert f"at a KL of {kl:.2g} nats a token" in page
    assert "takes up to 1.5 times the full model's time" in page
    assert max(value for name, value in decoding.items() if "whole texts" in name) <= 1.5


def test_references_show_the_works(site: Path) -> None:
    bib = (ROOT / "src" / "attnlimit" / "references.bib").read_text(encoding="utf-8")
    text = (site / "theory.html").read_text(encoding="utf-8")
    for key in re.findall(r"^@\w+\{(\S+),", bib, re.MULTILINE):
        assert f"[{key}]" in text
    cited = {
        key
        for keys in re.findall(r"\[([a-z]+\d{4}\w*(?:, [a-z]+\d{4}\w*)*)\]", text)
        for key in keys.split(", ")
    }
    assert [key for key in sorted(cited) if f"{{{key}," not in bib] == []
    assert "Léa" in text
    assert "{\\" not in text[text.index("arXiv:") :]


@pytest.mark.parametrize("name", ["hooks", "docstrings"])
def test_examples_of_the_builders(name: str) -> None:
    found = doctest.testmod(module_of(name))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("a_n of *batch", "a\\_n of \\*batch"),
        ("`a_n` stays", "`a_n` stays"),
        ("Formula:\n\n    a_n * b", "Formula:\n\n    a_n * b"),
        ("Two:\n- one\n  more\n- two", "Two:\n\n- one\n  more\n- two"),
        (">>> f(\n...     1)\n2\n\nAfter", "\n```python\n>>> f(\n...     1)\n2\n```\n\nAfter"),
    ],
)
def test_docstrings_become_markdown(docstring: str, markdown: str) -> None:
    assert module_of("docstrings").as_markdown(docstring) == markdown


@pytest.mark.parametrize("figure", ["bounds", "exact", "hardmax", "phase", "rates"])
def test_figures_are_drawn_by_a_script(figure: str) -> None:
    assert (ROOT / "docs" / f"{figure}.png").read_bytes()[:4] == b"\x89PNG"
    scripts = "".join(path.read_text() for path in (ROOT / "docs").glob("draw_*.py"))
    assert f'"{figure}.png"' in scripts


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path) -> None:
    runpy.run_path(str(notebook))
    assert not list(Path.cwd().iterdir())


def test_notebooks_are_notebooks() -> None:
    jupytext = pytest.importorskip(
        "jupytext", reason="jupytext is not installed: pip install 'attnlimit[docs]'"
    )
    notebooks = sorted((ROOT / "notebooks").glob("*.py"))
    assert len(notebooks) == 4
    for path in notebooks:
        made = jupytext.read(path)
        assert made.metadata["jupytext"]["formats"] == "ipynb,py:percent"
        kinds = [cell.cell_type for cell in made.cells]
        assert kinds[0] == "markdown"
        assert kinds.count("code") >= 5
