"""What strangers do at the command line: one line of error, nothing lost, no traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import attnlimit as al
from attnlimit.cli import app
from attnlimit.cli.common import Plain, table
from attnlimit.errors import InputError, MissingExtra

COMMAND = [sys.executable, "-m", "attnlimit_command"]
READ = ["--text", "t.txt", "--tokens", "24", "--passages", "2", "--queries", "4", "--answer", "off"]


@pytest.fixture
def refused(run):
    """The one line of a command that leaves with 2."""

    def invoke(*words: object) -> str:
        told = run(*words, code=2).stderr
        assert told.startswith("error: ")
        assert told.count("\n") == 1, told
        return told

    return invoke


# --- one line, as it is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "report {}",
        "budget {}",
        "compare {}",
        "sweep {}",
        "icl {}",
        "export {}",
        "runs {}",
        "analyze {}",
        "analyze minilm --text {}",
        "verify minilm --budgets {}",
        "downstream minilm --run {}",
        "curve --A {}",
        "bound --A {}",
        "complexity --A {}",
        "phase --measure {}",
        "reproduce {}",
    ],
)
def test_names_are_never_read_as_markup(refused, words):
    assert "foo[/]bar" in refused(*words.format("foo[/]bar").split())


def test_extras_are_named_with_their_brackets(refused, monkeypatch):
    def lacks(*_: object) -> None:
        raise MissingExtra("Models need transformers: pip install 'attnlimit[models]'.")

    monkeypatch.setattr("attnlimit.models.see.load.need_transformers", lacks)
    assert "pip install 'attnlimit[models]'." in refused("analyze", "minilm")


def test_a_module_that_is_missing_names_its_extra(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setitem(sys.modules, "attnlimit.cli.studies", None)
    assert "pip install" in refused("sweep", "a.yaml")


def test_long_and_wild_messages_are_one_line(refused):
    assert "x" * 300 in refused("report", "x" * 300)
    refused("curve", "--A", "a\n\x1b[31mred")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("curve --horizon abc", "Invalid value for '--horizon': .* `attnlimit curve --help` lists"),
        ("curve --horizon", "Option '--horizon' requires an argument. `attnlimit curve --help` lists"),
        ("curve --foo", "No such option: --foo.* `attnlimit curve --help` lists what there is"),
        ("budget", "Missing argument .*`attnlimit budget --help` lists"),
        ("--foo", "No such option: --foo. `attnlimit --help` lists"),
        ("curv", r"No such command 'curv'. Did you mean 'curve'\? `attnlimit --help` lists"),
    ],
)
def test_options_that_there_are_not(refused, words, message):
    assert re.search(message, refused(*words.split()))


@pytest.mark.parametrize("words", [["--debug", "report", "none"], ["report", "none", "--debug"]])
def test_debug_shows_the_traceback(words):
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, InputError)


def test_what_was_not_foreseen_is_one_line_too(run, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("out of\nsorts")

    monkeypatch.setattr(al, "phase_diagram", fail)
    told = run("phase", code=1).stderr
    assert (
        told == "error: RuntimeError: out of sorts This was not foreseen: --debug shows where it happened.\n"
    )


# --- nothing lost -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "file/below", "link", "/proc/none"])
@pytest.mark.parametrize(
    "words", ["analyze minilm", "downstream minilm", "reproduce all", "sweep a.yaml", "icl a.yaml"]
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(refused, monkeypatch, words, place):
    monkeypatch.setattr("attnlimit.models.see.load.load", pytest.fail)
    Path("file").write_text("")
    Path("link").symlink_to("nowhere/else")
    before = sorted(Path.cwd().iterdir())
    told = refused(*words.split(), "--out", place)
    assert f"{place} cannot be written: " in told
    assert ("stands where a folder must be" in told) is (place != "/proc/none")
    assert sorted(Path.cwd().iterdir()) == before


@pytest.mark.parametrize(
    "words", ["budget run --out", "report run --out", "export run --out", "curve --horizon 1 --plot"]
)
def test_files_too(refused, monkeypatch, words):
    monkeypatch.setattr(import_module("attnlimit.exact.curve"), "query_average", pytest.fail)
    Path("file").write_text("")
    Path("a.png").mkdir()
    assert "cannot be written: " in refused(*words.split(), "file/a.png")
    assert "is a folder: give the name of a file" in refused(*words.split(), "a.png")


def test_a_comparison_that_cannot_be_written_is_refused_before_the_work(run, refused, model, monkeypatch):
    run("analyze", model, *READ, "--out", "a")
    monkeypatch.setattr("attnlimit.models.see.load.load", pytest.fail)
    Path("a/compare.json").mkdir()
    assert "a/compare.json is a folder: give the name of a file" in refused("compare", "a")


@pytest.mark.parametrize("name", ["run.json", "answer.safetensors", "heads.parquet", "link", "store.sqlite"])
@pytest.mark.parametrize("words", ["budget --out {} {}", "report {1} --out {0}", "export {1} --out {0}"])
def test_what_is_read_is_not_written_over(refused, words, name):
    run = Path("run")
    run.mkdir()
    (run / "link").symlink_to("run.json")
    for one in ("run.json", "answer.safetensors", "heads.parquet", "store.sqlite"):
        (run / one).write_text("mine")
    for source in (run, run / "run.json"):
        told = refused(*words.format(run / name, source).split())
        assert f"{run / name} is read by this command, which would write over it: name another place" in told
    assert (run / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("sweep d/study.yaml --quick --out d", "study.yaml"),
        ("icl d/study.yaml --out d", "study.yaml"),
        ("analyze minilm --text d/run.json --out d", "run.json"),
        ("analyze minilm --text t.txt --text d/writer.json --out d", "writer.json"),
        ("explain minilm --text d/explain.html --out d", "explain.html"),
        ("downstream minilm --text linked --out d", "downstream.json"),
        ("analyze d --out d", ""),
        ("analyze d --out d/../d", "../d"),
    ],
)
def test_nor_what_lies_in_the_folder_that_is_written(refused, words, name):
    folder = Path("d")
    folder.mkdir()
    for one in ("study.yaml", "run.json", "writer.json", "explain.html", "downstream.json"):
        (folder / one).write_text("mine")
    Path("linked").symlink_to("d/downstream.json")
    told = refused(*words.split())
    assert f"{folder}{f'/{name}' * bool(name)} is read by this command, which would write over it" in told
    assert {one.read_text() for one in folder.iterdir()} == {"mine"}


@pytest.mark.parametrize(
    ("words", "other"),
    [
        ("analyze minilm", "store.sqlite"),
        ("explain minilm", "store.sqlite"),
        ("downstream minilm", "store.sqlite"),
        ("sweep a.yaml", "run.json"),
        ("icl a.yaml", "run.json"),
        ("reproduce all", "run.json"),
    ],
)
def test_a_folder_holds_runs_of_one_kind(refused, words, other):
    """The report of one is not the other's."""
    Path("d").mkdir()
    Path("d", other).write_text("mine")
    told = refused(*words.split(), "--out", "d")
    assert f"d holds a run of another kind ({other}), whose report would be lost: name another folder" in told


def test_an_analysis_beside_a_summary_of_another_s_and_its_report_by_its_file(run, model):
    Path("a").mkdir()
    Path("a/summary.json").write_text("{}")
    run("analyze", model, *READ, "--out", "a")
    page = Path("a/report.html").read_text()
    run("report", "a/run.json", "--out", "b.html")
    assert Path("b.html").read_text() == page


def test_all_that_is_written_into_a_folder_is_known(run, model):
    from attnlimit.cli.boundary import MADE

    read = ["--text", "t.txt", "--tokens", "24"]
    run("analyze", model, *READ[:-2], "--out", "a")
    run("explain", model, *read, "--out", "a")
    Path("u.txt").write_text(Path("t.txt").read_text()[::-1])
    task = ["--text", "u.txt", "--run", "a/run.json", "--keys", "4", "--seeds", "1", "--out", "a"]
    run("downstream", model, *read, *task)
    spec = Path(__file__).parents[2] / "examples" / "tiny.yaml"
    run("sweep", spec, "--quick", "--workers", "1", "--out", "b")
    made = {one.name for folder in ("a", "b") for one in Path(folder).iterdir() if one.is_file()}
    assert made <= {*MADE}
    assert {"run.json", "explain.html", "downstream.json", "report.html", "study.yaml"} <= made


@pytest.fixture
def no_matplotlib(monkeypatch):
    from attnlimit.report.figures.style import _figure_class

    for name in {"matplotlib", *sys.modules}:
        if name.split(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)
    _figure_class.cache_clear()
    yield
    _figure_class.cache_clear()


def test_a_figure_that_cannot_be_drawn_is_refused_before_the_work(refused, monkeypatch, no_matplotlib):
    monkeypatch.setattr(import_module("attnlimit.exact.curve"), "query_average", pytest.fail)
    assert "attnlimit[report]" in refused("curve", "--horizon", "1", "--plot", "a.png")


def test_numbers_are_there_without_figures(run, model, no_matplotlib):
    told = run("analyze", model, *READ, "--out", "a/b")
    assert "No figures: Figures need matplotlib" in told.stderr
    record = json.loads(Path("a/b/run.json").read_text())
    assert (record["dtype"], record["text"].split(", token")[0]) == ("float32", "2 passages of 't'")


def test_a_name_that_is_no_formula_is_drawn_and_other_models_are_told(run, model, monkeypatch):
    Path("m$^$x").symlink_to(model)
    run("analyze", "m$^$x", *READ, "--out", "a")
    assert Path("a/heatmap.png").stat().st_size > 1000
    run("budget", "a", "--rel-error", "0.5", "--out", "b/b.json")

    def stop(*_: object, **__: object) -> None:
        raise InputError("enough")

    for name in ("verify", "compare"):
        monkeypatch.setattr(al, name, stop)  # looked up once and kept
    told = run("verify", model, "--budgets", "b/b.json", "--text", "t.txt", code=2).stderr
    assert "b.json was made for m$^$x, and this is" in told
    told = run("compare", "a", "--model", model, "--text", "t.txt", code=2).stderr
    assert "a is of m$^$x, and this is" in told


# --- ordinary input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "int8"], "dtype must be float32"),
        (["--dtype", "foo"], "dtype must be float32"),
        (["--device", "foo"], "There is no device 'foo' here"),
        (["--device", "meta"], "meta holds shapes without numbers"),
        (["--device", "vulkan"], "backend). Leave it out, or say cpu or auto."),  # torch says more
        (["--seed", 2**70], "seed"),
    ],
)
def test_what_a_model_is_not_given(refused, model, words, message):
    assert message in refused("analyze", model, *READ, *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there(refused, model):
    assert "There is no device 'cuda' here" in refused("analyze", model, *READ, "--device", "cuda")


def test_more_passages_than_queries_and_double_precision(run, model):
    read = [*READ[:5], "3", "--queries", "2", "--answer", "on"]
    run("analyze", model, *read, "--dtype", "float64", "--out", "a")
    assert json.loads(Path("a/run.json").read_text())["dtype"] == "float64"


def test_a_config_of_other_weights_and_a_tokenizer_without_words(refused, model):
    import shutil

    shutil.copytree(model, "config")
    Path("config/config.json").write_text(
        Path("config/config.json").read_text().replace('"hidden_size": 16', '"hidden_size": 8')
    )
    told = CliRunner().invoke(app, ["analyze", "config", *READ])
    assert told.exit_code == 2
    assert "its config.json does not match its weights" in told.stderr
    shutil.copytree(model, "wordless")
    for name in ("vocab.txt", "tokenizer.json"):
        Path("wordless", name).unlink()
    assert "vocabulary is missing" in refused("analyze", "wordless", *READ)


def test_a_hub_that_does_not_answer_is_asked_once(refused, monkeypatch):
    asked = []

    class Session:
        def head(self, *_: object, **__: object) -> None:
            asked.append(time.monotonic())
            raise ConnectionError

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    assert "'no-such/model' cannot be had from the Hugging Face hub" in refused("analyze", "no-such/model")
    assert len(asked) == 1
    assert time.monotonic() - asked[0] < 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("analyze ", "A model is named by a folder"),
        ("curve --horizon 1 --cov 0", "do not vary"),
        ("curve --horizon 1 --measure sphere --scale 0", "radius must be a finite number above 0"),
        ("curve --horizon 1e160", "The horizon is"),
        ("curve --horizon 1e5", "The horizon is 1e+05, and averages over queries are computed up to 40"),
        (
            "curve --horizon 1 --dim 1000000000",
            "--dim must be at most 2,048, got 1000000000: the eigenvalues",
        ),
        ("curve --horizon 1 --n 0.4", "--n must be whole numbers of at least 1, got '0.4'"),
        ("curve --horizon 1 --n 1e-320", "--n must be whole numbers of at least 1, got '1e-320'"),
        (
            "curve --horizon 1 --n 1e19",
            "--n must be a whole number of at most 9,223,372,036,854,775,807, got 1e+19",
        ),
        ("bound --horizon 0.5 --n 1e300", "at most 9,223,372,036,854,775,807, got 1e+300"),
        ("budget run --total 10000000000000000000", "--total must be a whole number of at most 9,223,"),
        (
            "curve --horizon 1 --n 1:1e9:100000000",
            "--n must be at most 10,000 numbers, got '1:1e9:100000000'",
        ),
        ("phase --kappa 0.25:8:1000000", "--kappa must be at most 1,000 numbers"),
        ("phase --n 1:1e9:10000", "--n must be at most 1,000 numbers"),
        ("complexity --horizon 1 --rel-error 1e-3:1e-1:100000", "--rel-error must be at most 1,000 numbers"),
        ("complexity --horizon 1 --rel-error ", "--rel-error must be positive numbers"),
        (
            "curve --horizon 1 --measure sphere --dim 3 --scale 1e-200",
            "(variance 0), so no head has .* --scale nearer 1",
        ),
        ("curve --horizon 1 --measure sphere --dim 3 --scale 1e140", "leave the range of floating point"),
        (
            "curve --horizon 1 --cov 1e308",
            "range of floating point (variance 1e+308), .* give --cov nearer 1",
        ),
        ("curve --horizon 1 --scale 2", "--scale is for ball, box, laplace, sphere tokens, not for gaussian"),
        ("curve --A ", ". is a folder, pipe or device: name a .npy or .safetensors file"),
        ("curve --horizon 1 --seed 3", "--seed is for Monte Carlo, and exact errors do not know it"),
        ("curve --horizon 1 --self-attention", "--self-attention is for Monte Carlo"),
        ("curve --horizon 1 --statistic map", "--statistic is for Monte Carlo"),
        ("curve --horizon 1 --order 3", "--order is for Monte Carlo"),
        ("curve --horizon 1 --queries 3", "leave it out, or add --method monte-carlo"),
        (
            "curve --horizon 1 --method monte-carlo --statistic moment --order 1000000 --n 10",
            "--order must be at most 1,000, got 1000000",
        ),
        (
            "curve --horizon 1 --method monte-carlo --statistic moment --order 400 --n 10,20",
            "The moment 400 error leaves the range of floating point: choose a smaller order",
        ),
        ("phase --kappa 1e10 --n 100", "The scores of a query spread by 1e+10"),
        (
            f"curve --horizon 1 --method monte-carlo --n 10,20 --seed {2**70}",
            "A seed must be a whole number of 64 bits",
        ),
    ],
)
def test_what_is_refused_at_once(refused, words, message):
    started = time.process_time()
    told = refused(*words.split(" "))
    assert all(part in told for part in message.split(".*"))
    assert time.process_time() - started < 5


def test_a_dry_run_of_very_many_replicates(run):
    spec = Path(__file__).parents[2] / "examples" / "tiny.yaml"
    Path("a.yaml").write_text(spec.read_text().replace("replicates: 40", "replicates: 200_000_000"))
    found = json.loads(run("sweep", "a.yaml", "--dry-run", "--json").stdout)
    assert found["tasks"] == 3 * 20_000_000


def test_the_tuned_head_of_one_token_is_none():
    task = al.icl.LinearRegression(3, noise=0.5)
    block, risk = al.icl.tuned(task, 1)
    measured = al.icl.finite_risk(task, block, [1]).risk
    assert float(measured[0]) == pytest.approx(risk, rel=0.05)
    assert risk < float(al.icl.finite_risk(task, al.icl.endpoint(task), [1]).risk[0])


# --- what is shown ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_are_split_and_never_cut(width):
    rows = [[str(layer), *(f"{100 * layer + head}" for head in range(32))] for layer in range(4)]
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as shown:
        console.print(table("Keys", ["layer", *(f"h{head}" for head in range(32))], rows))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in shown.get()
    for row in rows:
        there = [cell for line in lines if line.split()[:1] == row[:1] for cell in line.split()[1:]]
        assert there == row[1:]


def test_a_single_n_has_no_slope(run):
    assert "nan" not in run("curve", "--horizon", "1", "--n", "100").stdout


def test_what_is_not_known_is_a_dash(run):
    drawn = ["curve", "--horizon", "1", "--method", "monte-carlo", "--self-attention"]
    told = run(*drawn, "--n", "1").stdout.splitlines()
    assert told[2].split() == ["1", "0", "–"]


def test_words_in_brackets_are_shown(capsys):
    Plain().print(table("[a]", ["[b]"], [["[c] :smile:"]]))
    Plain().print("pip install 'attnlimit[models]'")
    assert capsys.readouterr().out.split() == [
        "[a]",
        "[b]",
        "[c]",
        ":smile:",
        "pip",
        "install",
        "'attnlimit[models]'",
    ]


@pytest.mark.parametrize("wild", ["\x1b[2J", "\x1b]0;title\x07", "\u202e", "\r", "\x9b31m"])
def test_names_do_not_write_to_the_terminal_itself(capsys, wild):
    for shown in (table("", ["name"], [[f"m{wild}n"]]), f"m{wild}n\nmore", Text(f"m{wild}n", style="bold")):
        Plain().print(shown)
    found = capsys.readouterr().out
    assert found.replace("\n", "").isprintable()
    assert len(re.findall(r"m.*n", found)) == 3
    assert re.search(r"n *\nmore", found)


def test_sentences_are_not_wrapped_in_pipes(capsys):
    Plain().print("word " * 60)
    assert capsys.readouterr().out.count("\n") == 1


# --- at the edge of the process ----------------------------------------------------------------------


def test_a_terminal_without_greek_and_a_reader_that_leaves():
    words = ["bound", "--horizon", "0.5"]
    for plain in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
        told = subprocess.run([*COMMAND, *words], env=os.environ | plain, capture_output=True, check=True)
        assert b"averaged" in told.stdout
    with subprocess.Popen([*COMMAND, "cite"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.skipif(os.name == "nt", reason="needs a shell that closes streams")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("cite >&-", 0, ""),
        ("curve --horizon 1 --n 10 --json >&-", 0, ""),
        ("explain minilm --text - <&-", 2, "error: InputError: The text 'standard input' is empty"),
        ("report none 2>&-", 2, ""),
    ],
)
def test_streams_that_are_closed(words, code, told):
    done = subprocess.run(["sh", "-c", f"exec {' '.join(COMMAND)} {words}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(told)
    assert bool(done.stderr) is bool(told)


@pytest.mark.skipif(os.name == "nt", reason="a folder in use stays there")
@pytest.mark.parametrize("words", ["curve --horizon 1", "runs", "--help"])
def test_a_folder_that_is_gone(words):
    there = f"mkdir gone && cd gone && rmdir ../gone && exec {' '.join(COMMAND)} {words}"
    told = subprocess.run(["sh", "-c", there], capture_output=True, text=True)
    assert told.stderr == "error: The folder that you are in is gone: go to another one with cd.\n"
    assert told.returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_an_early_interrupt_ends_it_without_a_traceback():
    """While the command line is imported, without a word; while the command imports what it needs, with the one line."""
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background do not hear it
    command = [*COMMAND, "curve", "--horizon", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=heard) as process:
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read().decode()
    assert process.returncode in (-signal.SIGINT, 130)
    assert "Traceback" not in told
    assert told == "" or (told.startswith("Interrupted. Run") and told.count("\n") == 1)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGHUP")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_being_ended_or_hung_up_is_an_interrupt(name, tmp_path):
    """Unless it is not to be heard, as under nohup."""
    (tmp_path / "told.py").write_text(
        "import signal, attnlimit.cli.cite, attnlimit_command\n"
        f"def cite():\n    signal.raise_signal(signal.{name})\n    print('went on')\n"
        "attnlimit.cli.cite.cite = cite\n"
        "attnlimit_command.main()\n"
    )
    for heard in (signal.SIG_DFL, signal.SIG_IGN):
        before = partial(signal.signal, getattr(signal, name), heard)
        told = subprocess.run(
            [sys.executable, tmp_path / "told.py", "cite"], capture_output=True, text=True, preexec_fn=before
        )
        ignored = heard is signal.SIG_IGN
        assert told.returncode == (0 if ignored else 130)
        assert ("went on" in told.stdout) == ignored
        assert told.stderr.startswith("Interrupted. Run the same command again") != ignored


def test_widths_and_windows_that_there_are_not(tmp_path):
    odd = {**os.environ, "COLUMNS": "0", "MPLBACKEND": "module://not_installed.backend"}
    words = ["curve", "--horizon", "0.5", "--n", "1e3", "--plot", str(tmp_path / "p.png")]
    told = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=odd)
    assert told.returncode == 0, told.stderr
    assert "local exponent" in told.stdout
    assert (tmp_path / "p.png").stat().st_size > 1000
    told = subprocess.run([*COMMAND, "curve", "--horizon", "x"], capture_output=True, text=True, env=odd)
    assert "--horizon" in told.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
@pytest.mark.parametrize(
    "where", ["while a module is imported", "while compiled code is loaded", "in the command"]
)
def test_an_interrupt_ends_an_import_at_once_and_a_command_in_order(where, tmp_path):
    """An exception inside an import may meet C++ code, which aborts, or leave half a module behind; llvmlite's callbacks lose it."""
    (tmp_path / "slow.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    now = "import signal; signal.raise_signal(signal.SIGINT)"
    does = {
        "while a module is imported": "import slow",
        "while compiled code is loaded": f"exec(compile({now!r}, '/site/llvmlite/binding/engine.py', 'exec'))",
        "in the command": now,
    }[where]  # as `cite`, the command
    (tmp_path / "told.py").write_text(
        "import atexit, attnlimit.cli.cite, attnlimit_command\n"
        "atexit.register(lambda: print('in order'))\n"
        f"def cite():\n    {does}\n"
        "attnlimit.cli.cite.cite = cite\n"
        "attnlimit_command.main()\n"
    )
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    told = subprocess.run(
        [sys.executable, tmp_path / "told.py", "cite"], capture_output=True, text=True, preexec_fn=heard
    )
    assert told.returncode == 130
    assert told.stderr.startswith("Interrupted. Run the same command again")
    assert told.stderr.count("\n") == 1
    assert ("in order" in told.stdout) == (where == "in the command")


def test_two_runs_of_one_folder(run, refused):
    from attnlimit.files.lock import locked

    spec = Path(__file__).parents[2] / "examples" / "tiny.yaml"
    Path("a.yaml").write_text(
        "name: a\nkind: icl\nwhat:\n  task: {dim: 2}\n  lengths: [4, 8]\n  attention: linear\n"
        "  optimizer: {lr: 0.1, batch: 8, steps: 8}\n  evaluation: {reports: 2, prompts: 32}\nreplicates: 1\n"
    )
    for command, study in (("icl", "a.yaml"), ("sweep", spec)):
        Path("out").mkdir(exist_ok=True)
        with locked(Path("out")):
            assert "is being written by" in refused(command, study, "--out", "out", "--workers", "1")
    assert (
        "nan" not in run("icl", "a.yaml", "--out", "out", "--workers", "1").stdout
    )  # one seed has no interval
