"""The HTML report: safe, whole, small, and right in a real browser."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import attnlimit as al
from attnlimit.cli import app
from attnlimit.errors import InputError
from attnlimit.models.analyse.heads import SCORE_BINS, HeadReport
from attnlimit.models.analyse.run import Facts, Run
from attnlimit.models.budget.needed import KEEPING, POLICIES, RANDOM, Way
from attnlimit.models.see.text import texts
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.report.html import page, write_report
from attnlimit.report.html.analysis import analysis, levels
from attnlimit.report.html.page import Page, Picture, Sheet

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\"'&\u2028"


def head_of(layer: int, head: int, heads: int, keys: int, name: str) -> HeadReport:
    """A head with its own constant: error² = c²(1/n − 1/N) without replacement, smaller beside kept keys."""
    place = (layer * heads + head) * 0.618 % 1

    def curve(size: float, always: float, statistic: str = "rms") -> ErrorCurve:
        full = keys - int(always)
        n = tuple(sorted({round(full ** (k / 13)) for k in range(14)}))
        error = torch.tensor([size * max(0.0, 1 / k - 1 / full) ** 0.5 for k in n], dtype=torch.float64)
        read = torch.tensor([min(always + k, float(keys)) for k in n], dtype=torch.float64)
        return ErrorCurve(n, error, statistic=statistic, keys=read, full=full)

    effective = 1 + (keys - 1) * place**2
    bins = SCORE_BINS[2]
    return HeadReport(
        layer=layer,
        head=head,
        name=name,
        cross=False,
        horizon=0.2 + 2 * place,
        score_spread=(0.5 * (1 + place), 0.7 * (1 + place), 1 + place),
        score_counts=tuple(max(0, 40 - abs(k - bins // 2)) for k in range(bins)),
        effective_keys=(0.5 * effective, effective, 1.2 * effective),
        visible_keys=float(keys),
        shares={"own": 0.1, "sinks": 0.2, "window": 0.3},
        ways=(
            Way(RANDOM, curve(0.2 + 4 * place, 0.0)),
            Way(KEEPING, curve(0.5 * (1 - place), min(float(keys), 20 + 8 * place))),
        ),
        band=(curve(0.8 * (0.2 + 4 * place), 0.0, "median"), curve(1.4 * (0.2 + 4 * place), 0.0, "p90")),
        local_exponent=0.45,
        exponent_range=(19, 150),
        output_share=0.25,
        asymptotic_exponent=0.5,
        published_exponent=0.4,
        effective_interval=(0.8 * effective, 1.1 * effective),
    )


def run_of(
    layers: int = 3, heads: int = 4, keys: int = 200, name: str = "small", population="context"
) -> Run:
    facts = Facts(
        model=name, kind="encoder", population=population, tokens=keys, passages=2, queries=16, rel_error=0.1, seed=7,
        causal=False, dtype="float32", memory=1e6, versions={"attnlimit": "0.1.0", name: name}, text=f"2 passages of {name}",
        answer=None, method=f"exact {name}",
    )  # fmt: skip
    reports = (head_of(layer, head, heads, keys, name) for layer in range(layers) for head in range(heads))
    return Run(facts, tuple(reports))


# --- the file ----------------------------------------------------------------------------------------


class Tags(html.parser.HTMLParser):
    """Elements with their attributes, and what the JSON element holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside = ""
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self.inside = ""


def test_hostile_text_stays_text():
    tags = Tags(page(analysis(run_of(name=HOSTILE), HOSTILE)))
    assert [tag for tag, _ in tags.found].count("script") == 2
    assert not [tag for tag, _ in tags.found if tag == "img"]
    assert not [key for _, attrs in tags.found for key in attrs if key.startswith("on")]
    assert json.loads(tags.scripts[0])["heads"][0]["name"] == HOSTILE


def test_hostile_tables_and_figures():
    data = Page(
        heading=HOSTILE,
        chips=[HOSTILE],
        summary=[HOSTILE],
        figures=[Picture(HOSTILE, b"<svg/>", "svg+xml", HOSTILE)],
        tables=[Sheet(HOSTILE, [HOSTILE, "n"], [[HOSTILE, 1.5], ["b", None]])],
        methods=[(HOSTILE, HOSTILE)],
    )
    tags = Tags(page(data))
    assert [tag for tag, _ in tags.found].count("script") == 2
    (image,) = [attrs for tag, attrs in tags.found if tag == "img"]
    assert image["src"] == "data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode()
    assert image["alt"] == HOSTILE
    assert not [key for _, attrs in tags.found for key in attrs if key.startswith("on")]


def test_only_its_own_script_and_style_may_run():
    text = page(Page(heading="x"))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_parts_are_there_when_their_data_are():
    bare = page(Page(heading="x"))
    for part in ('id="map"', "<figure>", 'class="sortable"', "How these numbers were got"):
        assert part not in bare
    full = page(analysis(run_of()))
    assert 'id="map"' in full
    assert "How these numbers were got" in full
    assert "<dt>Seed</dt><dd>7</dd>" in full
    assert "attnlimit 0.1.0" in full


def test_no_address_is_asked_for():
    text = page(analysis(run_of()))
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}


@pytest.fixture(scope="module")
def thousand_heads():
    """25 layers of 40 heads; each layer shows what the first one does, since a page is computed head by head."""
    shown = analysis(run_of(1, 40, 16_384, population="corpus"))
    heads = [one | {"layer": layer} for layer in range(25) for one in shown.heads["heads"]]
    return replace(shown, heads=shown.heads | {"heads": heads})


def test_a_thousand_heads_fit_in_8_megabytes(thousand_heads):
    assert len(page(thousand_heads).encode()) < 8e6


def test_numbers_that_are_not_finite_become_null():
    data = analysis(run_of(1, 1))
    data.heads["heads"][0]["horizon"] = float("nan")
    assert json.loads(Tags(page(data)).scripts[0])["heads"][0]["horizon"] is None


def test_command(tmp_path):
    run_of().save(tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "How many keys does each head need?" in (tmp_path / "run" / "report.html").read_text("utf-8")
    other = tmp_path / "other.html"
    assert write_report(tmp_path / "run" / "run.json", other) == other
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 2


def test_bad_input(tmp_path):
    with pytest.raises(InputError, match="is no run"):
        write_report(tmp_path)
    run_of().save(tmp_path)
    with pytest.raises(InputError, match="cannot be written: a file or link stands where a folder must be"):
        write_report(tmp_path, tmp_path / "run.json" / "b.html")
    with pytest.raises(InputError, match="is a folder: give the name of a file"):
        write_report(tmp_path, tmp_path)


# --- in a browser ------------------------------------------------------------------------------------


def set_epsilon(tab, epsilon: float) -> None:
    tab.fill("#percent", f"{100 * epsilon:.10g}")
    tab.press("#percent", "Enter")
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_page_shows_the_runs_own_numbers(opened):
    """Every level of the slider, every way: map, table, total and words are what Python says, to the digit."""
    run = run_of()
    tab = opened(analysis(run))
    known = levels(run)
    assert run.facts.rel_error in known
    assert len(known) > 30
    for place, level in enumerate(known[::3]):
        tab.evaluate(
            "(at) => { const bar = document.getElementById('epsilon'); bar.value = at; bar.dispatchEvent(new Event('input')); }",
            3 * place,
        )
        for policy in POLICIES:
            tab.check(f"input[value={policy}]")
            tab.evaluate(
                "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            needs = [one.needed(level, policy) for one in run.heads]
            assert tab.locator(".cell text").all_text_contents() == [str(need) for need in needs]
            assert column(tab, 2) == ["all" if need.all else f"{need.keys:,.0f}" for need in needs]
            budgets = run.budgets(level, policy=policy)
            assert f"{budgets.total:,.0f} of {12 * 200:,} keys" in tab.inner_text("#cost-note")
            assert f"--rel-error {level:g} --policy {policy}" in tab.inner_text("#cost-note")
        assert column(tab, 10) == [one.phase(level) for one in run.heads]


def test_the_data_of_the_page_are_those_of_budgets():
    run = run_of(2, 3)
    data = analysis(run).heads
    for k, level in enumerate(data["levels"]):
        for policy in POLICIES:
            budgets = run.budgets(level, policy=policy)
            assert data["totals"][policy][k] == budgets.total
            shown = [one["needed"][policy] for one in data["heads"]]
            assert [one["n"][k] for one in shown] == [entry.n for entry in budgets.entries]
            assert [one["keys"][k] for one in shown] == [entry.keys for entry in budgets.entries]


def test_slider_recomputes(opened):
    run = run_of()
    tab = opened(analysis(run, "my-run"))
    for epsilon in (0.1, 0.3, 0.02):
        set_epsilon(tab, epsilon)
        assert tab.input_value("#percent") == f"{100 * epsilon:g}"
        budgets = run.budgets(epsilon)
        assert f"{budgets.total:,.0f} of {12 * 200:,} keys" in tab.inner_text("#cost-note")
        assert f"attnlimit budget my-run --rel-error {epsilon:g} --policy best" in tab.inner_text(
            "#cost-note"
        )
        assert f"Keys each head needs for {100 * epsilon:g} % error" in tab.inner_text("#map-title")
    before = tab.inner_text("#answer")
    tab.focus("#epsilon")
    for _ in range(4):
        tab.keyboard.press("ArrowRight")
    tab.wait_for_function("(before) => document.getElementById('answer').innerText !== before", arg=before)
    assert tab.input_value("#percent") == "4"  # 2 → 2.5 → 3 → 3.5 → 4
    tab.check("input[value=sampled]")
    tab.wait_for_function("() => document.getElementById('cost-note').innerText.includes('--policy sampled')")
    cells = tab.locator(".cell text").all_text_contents()
    assert cells == [str(one.needed(0.04, "sampled")) for one in run.heads]
    set_epsilon(tab, 0.123)  # goes to the nearest level
    assert tab.input_value("#percent") == "12"


def test_hover_and_click(opened):
    run = run_of()
    tab = opened(analysis(run))
    assert tab.locator("#tip").is_hidden()
    tab.hover("[data-place='1-2']")
    assert tab.inner_text("#tip").startswith("Layer 1, head 2")
    assert run.heads[6].phase(0.1) in tab.inner_text("#tip")
    tab.mouse.move(2, 2)
    assert tab.locator("#tip").is_hidden()
    tab.click("[data-place='1-2']")
    assert tab.inner_text("#head h2") == "Layer 1, head 2"
    assert tab.locator("#curve path.rms").count() == 1
    assert tab.locator("#histogram .bars rect").count() > 10
    facts = tab.inner_text("#head .facts")
    assert f"{run.heads[6].horizon:.3g}" in facts
    assert "published bound −0.4" in facts
    assert re.search(r"Slope, n from 19 to 150\s+−0.45", facts)
    low, high = run.heads[6].effective_interval
    assert f"others of the same law: {low:.3g} to {high:.3g}" in facts
    tab.locator("#phase .dot").nth(0).dispatch_event("click")
    assert tab.inner_text("#head h2") == "Layer 0, head 0"


def test_a_model_that_was_analysed(opened):
    """What analyses write is what the page reads, field by field."""
    bert = al.load("minilm")
    run = al.analyze(bert, texts(), reading=al.Reading(tokens=32, passages=1, queries=2))
    tab = opened(analysis(run))
    tab.click("[data-place='3-7']")
    terms = tab.locator("#head .facts dt").all_text_contents()
    assert terms[0] == "Keys needed"
    assert terms[-1] == "Module"
    assert len(terms) >= 8


def test_keyboard(opened):
    tab = opened(analysis(run_of()))
    tab.click("[data-place='0-0']")
    tab.focus("[data-place='0-0']")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        tab.keyboard.press(key)
    assert tab.evaluate("document.activeElement.dataset.place") == "2-0"  # the edges hold
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#head h2") == "Layer 1, head 0"
    assert tab.locator(".cell[tabindex='0']").count() == 1


def column(tab, k: int) -> list[str]:
    return tab.locator(f"table tbody tr td:nth-child({k + 1})").all_inner_texts()


def test_sort(opened):
    run = run_of()
    tab = opened(analysis(run))
    tab.get_by_role("button", name="Horizon H").click()
    rising = [f"{x:.3g}" for x in sorted(one.horizon for one in run.heads)]
    assert [float(x) for x in column(tab, 8)] == [float(x) for x in rising]
    assert tab.locator("th[aria-sort=ascending]").inner_text().startswith("Horizon H")
    tab.get_by_role("button", name="Horizon H").click()
    assert [float(x) for x in column(tab, 8)] == [float(x) for x in reversed(rising)]
    tab.get_by_role("button", name="Keys needed").click()
    first = [int(x.replace(",", "")) for x in column(tab, 2)]
    assert first == sorted(first)
    set_epsilon(tab, 0.02)  # the order follows the numbers
    second = [int(x.replace(",", "").replace("all", "200")) for x in column(tab, 2)]
    assert second == sorted(second) != first
    tab.locator("#table tbody tr").nth(3).click()
    place = tab.locator("#table tbody tr").nth(3).locator("td").all_inner_texts()[:2]
    assert tab.inner_text("#head h2") == f"Layer {place[0]}, head {place[1]}"


def test_plain_tables_sort_with_gaps_last(opened):
    rows = [["b", 10.0, 3], ["a", None, 20], ["c", 9.0, 100]]
    tab = opened(Page(heading="x", tables=[Sheet("t", ["name", "x", "n"], rows)]))
    for name, k, up in (("name", 0, "abc"), ("x", 0, "cba"), ("n", 0, "bac")):
        tab.get_by_role("button", name=name, exact=True).click()
        assert "".join(column(tab, k)) == up
    tab.get_by_role("button", name="x", exact=True).click()
    tab.get_by_role("button", name="x", exact=True).click()
    assert "".join(column(tab, 0)) == "bca"


def background(tab) -> tuple[int, ...]:
    return tuple(
        map(int, re.findall(r"\d+", tab.evaluate("getComputedStyle(document.body).backgroundColor")))
    )


def test_light_dark_and_print(opened):
    light = opened(analysis(run_of()), color_scheme="light")
    dark = opened(analysis(run_of()), color_scheme="dark")
    assert min(background(light)) > 200
    assert max(background(dark)) < 60
    light.click("#theme")
    assert background(light) == background(dark)
    light.click("#theme")
    assert min(background(light)) > 200
    dark.emulate_media(media="print")
    assert background(dark) == (255, 255, 255)
    assert dark.locator("#theme").is_hidden()
    assert len(dark.pdf(format="A4")) > 10_000


def test_phone(opened):
    pooled = run_of(2, 4, 16_384, population="corpus")
    for run in (run_of(3, 4), run_of(4, 40), pooled):
        tab = opened(analysis(run), viewport={"width": 360, "height": 740})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        ends = "[...document.querySelectorAll('#scale text')].map(one => one.getBoundingClientRect().right)"
        assert max(tab.evaluate(ends)) <= tab.evaluate(
            "document.querySelector('#scale svg').getBoundingClientRect().right"
        )
        tab.click("[data-place='1-1']")
        tab.wait_for_function(
            "() => document.getElementById('head').getBoundingClientRect().top < innerHeight"
        )
        assert tab.inner_text("#head h2") == "Layer 1, head 1"


def test_figures_on_a_phone_are_of_readable_size_and_scroll(opened):
    square = b'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="400"></svg>'
    tab = opened(
        Page(figures=[Picture("A figure", square, "svg+xml")]), viewport={"width": 360, "height": 740}
    )
    assert tab.evaluate("document.querySelector('figure img').getBoundingClientRect().width") > 550
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    wide = "(f => f.scrollWidth > f.clientWidth)(document.querySelector('figure'))"
    assert tab.evaluate(wide)


def test_hostile_text_does_not_run(opened):
    tab = opened(analysis(run_of(name=HOSTILE), HOSTILE))
    tab.click("[data-place='1-1']")
    assert tab.locator(".chips span").first.text_content() == HOSTILE
    assert HOSTILE[:30] in tab.inner_text("#head .facts")
    assert tab.evaluate("window.hacked") is None


def test_pooled_keys_and_a_thousand_heads(opened, thousand_heads):
    tab = opened(thousand_heads)
    assert tab.locator(".cell").count() == 1000
    assert tab.locator("#table tbody tr").count() == 1000
    assert "16,384 keys pooled" in tab.inner_text("#answer")
    assert "--population context" in tab.inner_text("#cost-note")
