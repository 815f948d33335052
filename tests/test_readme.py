"""Every snippet of the README and of docs/ runs: `>>>` blocks as doctests, `attnlimit` lines as commands, on the YAML
files that the page shows."""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from attnlimit.cli import app
from attnlimit.errors import InputError
from attnlimit.studies import load_study

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = {"sh", "bash", "console"}
OUTPUT = {"text"}
SPEC = {"yaml"}
OWN_PROCESSES = {"--version"}
"""Commands run as a shell runs them, so that the installed script is run at least once."""


@dataclass(frozen=True)
class Block:
    """A code block, its language and the line on which it starts."""

    language: str
    text: str
    line: int


def blocks_of(markdown: str) -> list[Block]:
    """All code blocks in order; those whose language would let them escape the tests are refused."""
    blocks = []
    for token in MarkdownIt().parse(markdown):
        if token.type not in {"fence", "code_block"}:
            continue
        first_line = token.map[0] + 1
        language = token.info.split()[0] if token.info.strip() else ""
        if language not in {"python"} | SHELL | OUTPUT | SPEC:
            raise ValueError(f"line {first_line}: a block of language {language!r} would not be tested")
        blocks.append(Block(language, token.content, first_line))
    return blocks


def run_python(blocks: list[Block]) -> str:
    """Run the Python blocks in one namespace; return doctest's account of the failures."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    report: list[str] = []
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        if block.language != "python":
            continue
        test = doctest.DocTestParser().get_doctest(
            block.text, namespace, "README.md", "README.md", block.line
        )
        if not test.examples:
            raise ValueError(f"line {block.line}: write Python blocks with >>> and their true output")
        runner.run(test, out=report.append, clear_globs=False)
        namespace = test.globs
    return "".join(report)


def commands_of(block: Block) -> list[list[str]]:
    """The block's command lines, split into words; one simple command per line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line.strip().removeprefix("$ "), comments=True) for line in lines]
    for words in commands:
        if any(set(word) <= set("|&;<>") for word in words if word):
            raise ValueError(f"line {block.line}: one command a line, without pipes or redirection: {words}")
    return [words for words in commands if words]


def write_file(block: Block) -> Path:
    """The file that a YAML block shows, named by the comment on its first line."""
    name = re.match(r"# ([\w-]+\.yaml)\n", block.text)
    if name is None:
        raise ValueError(f"line {block.line}: begin a YAML block with its name, as in # study.yaml")
    path = Path(name[1])
    path.write_text(block.text, encoding="utf-8")
    return path


def run_attnlimit(arguments: list[str]) -> tuple[int, str]:
    """Exit code and messages; in this process, which saves seconds. An analysis that several pages show is made once."""
    match arguments:
        case ["analyze", *how, "--out", folder]:
            name = re.sub(r"\W+", "-", "-".join(["analysis", *how]))
            kept = Path(os.environ["ATTNLIMIT_CACHE"], name)
            if kept.is_dir():
                shutil.copytree(kept, folder)
                return 0, ""
            found = run_here(arguments)
            if found[0] == 0:
                half = shutil.copytree(folder, kept.with_name(f"{name}-{os.getpid()}"))
                with suppress(OSError):  # another worker was there first
                    half.rename(kept)
            return found
    if OWN_PROCESSES.isdisjoint(arguments):
        return run_here(arguments)
    executable = Path(sysconfig.get_path("scripts")) / "attnlimit"
    done = subprocess.run(
        [str(executable), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


def run_here(arguments: list[str]) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, f"{result.stderr}{result.exception or ''}"


def run_command(words: list[str], makefile: str) -> None:
    """Run an `attnlimit` command; only look at those that set the project up, which would recurse."""
    match words:
        case ["attnlimit", *arguments]:
            code, said = run_attnlimit(arguments)
            if code:
                raise AssertionError(f"{shlex.join(words)} ended with {code}:\n{said}")
        case ["make", target] if re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE):
            pass
        case ["git", "clone", _, *_] | ["cd", _]:
            pass
        case _:
            raise ValueError(f"the README test does not know how to check: {shlex.join(words)}")


def run_shell(blocks: list[Block], makefile: str) -> None:
    """Write the YAML files and run the commands, in order; a file that no command reads must be a study that loads."""
    files, used = [], set()
    for block in blocks:
        if block.language in SPEC:
            files.append(write_file(block))
        elif block.language in SHELL:
            for words in commands_of(block):
                run_command(words, makefile)
                used.update(words)
    for path in files:
        if path.name not in used:
            load_study(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks(page: Path) -> None:
    with torch.random.fork_rng(devices=[]):  # pages may make a model with random weights
        failures = run_python(blocks_of(page.read_text(encoding="utf-8")))
    assert not failures, failures


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shell_blocks(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    run_shell(blocks_of(page.read_text(encoding="utf-8")), makefile)


def test_python_blocks_share_a_namespace() -> None:
    blocks = blocks_of("```python\n>>> a = 2\n```\ntext\n```python\n>>> a + 1\n3\n```\n")
    assert run_python(blocks) == ""


def test_wrong_output_is_reported() -> None:
    assert "Got:\n    2" in run_python(blocks_of("```python\n>>> 1 + 1\n3\n```\n"))


@pytest.mark.parametrize("markdown", ["```\nls\n```\n", "```json\n{}\n```\n", "    indented\n"])
def test_untested_language_is_refused(markdown: str) -> None:
    with pytest.raises(ValueError, match="would not be tested"):
        blocks_of(markdown)


def test_python_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="write Python blocks with >>>"):
        run_python(blocks_of("```python\nprint(1)\n```\n"))


def test_commands_are_split_and_comments_dropped() -> None:
    block = Block("sh", "# first\n$ attnlimit a \\\n  --b 'c d'  # why\n\nmake test\n", 1)
    assert commands_of(block) == [["attnlimit", "a", "--b", "c d"], ["make", "test"]]


def test_shell_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="one command a line"):
        commands_of(Block("sh", "cd x && make test\n", 1))


@pytest.mark.parametrize("words", [["rm", "-rf", "x"], ["make", "nothing"], ["git", "push"], ["attnlimits"]])
def test_unknown_command_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="does not know how to check"):
        run_command(words, "test: lint\n")


def test_yaml_blocks_are_files_for_the_commands() -> None:
    run_shell(blocks_of("```yaml\n# s.yaml\nname: s\nkind: exact\n```\n```sh\ncd s.yaml\n```\n"), "")
    assert Path("s.yaml").read_text() == "# s.yaml\nname: s\nkind: exact\n"


def test_yaml_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="begin a YAML block with its name"):
        run_shell(blocks_of("```yaml\nname: s\n```\n"), "")


def test_yaml_that_no_command_reads_must_be_a_study() -> None:
    with pytest.raises(InputError, match="kind"):
        run_shell(blocks_of("```yaml\n# s.yaml\nname: s\nkind: nothing\n```\n"), "")


@pytest.mark.parametrize("words", [["no-such-command"], ["sweep", "no-such-file.yaml"]])
def test_failing_command_is_reported(words: list[str]) -> None:
    with pytest.raises(AssertionError, match="ended with 2"):
        run_command(["attnlimit", *words], "")


def test_the_installed_script_runs() -> None:
    run_command(["attnlimit", "--version"], "")
