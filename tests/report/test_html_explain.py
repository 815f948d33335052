"""The page of an explanation: what it shows is what the record says, in a real browser."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attnlimit.models.explain.result import (
    ROLES,
    Explanation,
    HeadRead,
    HeadRoles,
    Link,
    Lost,
    Map,
    TokenRead,
    Tokens,
)
from attnlimit.report.html import page, write_report
from attnlimit.report.html.explain import explanation
from tests.report.test_html import HOSTILE, Tags

WORDS = ["[CLS]", "Naïve", " 𝒳", " cats", " sat", "\n", " here", "."]


def explained(layers=2, heads=3, words=WORDS, name="small", answer=True, seed=0) -> Explanation:
    """Random weights; the chosen token is the fourth."""
    source, count, number = np.random.default_rng(seed), len(words), layers * heads
    text = "".join(words[1:])
    ends = np.cumsum([0, *(len(word) for word in words[1:])]).tolist()
    starts = [0, *ends[:-1]]
    seen = np.broadcast_to(np.arange(1, count + 1, dtype=np.uint16), (layers, count)).copy()
    keys = np.stack([source.permutation(count)[:4] for _ in range(number * count)]).reshape(number, count, 4)
    weights = np.sort(source.dirichlet(np.ones(6), (number, count))[..., :4], -1)[..., ::-1]
    places = Map(
        keys.astype(np.uint16),
        np.round(255 * weights).astype(np.uint8),
        source.integers(0, 256, (number, count), np.uint8),
        source.integers(0, 200, (number, count), np.uint8) if answer else None,
        seen,
    )

    def roles(layer: int, head: int) -> HeadRoles:
        shares = source.dirichlet(np.ones(len(ROLES)) / 2)
        each = tuple((float(x), float(0.8 * x), float(min(1, 1.2 * x))) for x in shares)
        return HeadRoles(
            layer,
            head,
            each,
            (0.01,) * 7 + (0.0,),
            None,
            None,
            1.2,
            5.0,
            6.0,
            False,
            8.0,
            0.01 if answer else None,
        )

    def read(layer: int, head: int) -> HeadRead:
        lost = Lost(0.001, 0.02) if answer else None
        return HeadRead(
            layer,
            head,
            2,
            3 if answer else None,
            (1, 3),
            (0.5, 0.25),
            6,
            0.25,
            0.9,
            (0.6, 0.8),
            0.1 if answer else None,
            0.75 if answer else None,
            lost,
            None,
        )

    grid = [(layer, head) for layer in range(layers) for head in range(heads)]
    return Explanation(
        *(name, "causal", name, text, True, 0.05, 0.95, 0, 4, 3, "nats" if answer else None, "exact"),
        Tokens(tuple(words), tuple(starts), tuple(ends), (True,) + (False,) * (count - 1)),
        tuple(roles(*place) for place in grid),
        (Link("sink", "horizon", 0.2, -0.1, 0.5),),
        places,
        (TokenRead(3, tuple(read(*place) for place in grid), Lost(0.002, 0.03) if answer else None),),
    )


def test_hostile_text_stays_text():
    tags = Tags(page(explanation(explained(words=[HOSTILE] * 5, name=HOSTILE))))
    assert [tag for tag, _ in tags.found].count("script") == 2
    assert not [tag for tag, _ in tags.found if tag == "img"]
    assert json.loads(tags.scripts[0])["tokens"]["pieces"][0] == HOSTILE


def test_a_long_text_of_a_large_model_stays_small():
    found = page(explanation(explained(layers=30, heads=9, words=[f" w{k}" for k in range(1000)])))
    assert len(found.encode()) < 8e6


def test_a_folder_with_an_explanation_has_a_report(tmp_path):
    explained().save(tmp_path / "explain.json")
    assert "What does each head read?" in write_report(tmp_path).read_text(encoding="utf-8")


def test_text_in_the_browser_is_the_text(opened):
    """Code points, not UTF-16 units; the special token and the newline have a sign of their own."""
    tab = opened(explanation(explained()))
    assert tab.locator(".token").all_text_contents() == [
        "[CLS]",
        "Naïve",
        "𝒳",
        "cats",
        "sat",
        "\u23ce",
        "here",
        ".",
    ]


def shown(tab) -> dict[str, str]:
    rows = tab.locator("#keys li").all()
    return {row.locator(".what").text_content(): row.locator("b").text_content() for row in rows}


def percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):g}\u00a0%"


@pytest.mark.parametrize("answer", [True, False])
def test_all_heads_weighed_by_what_they_matter(opened, answer):
    found = explained(answer=answer)
    tab = opened(explanation(found))
    tab.locator(".token").nth(6).click()
    matter = found.map.matter()
    part = np.ones(6) / 6 if matter is None else matter[:, 6] / matter[:, 6].sum()
    total: dict[int, float] = {}
    for k in range(6):
        for key, weight in zip(found.map.keys[k, 6], found.map.weights[k, 6], strict=True):
            total[int(key)] = total.get(int(key), 0.0) + part[k] * weight / 255
    expected = {
        f"{WORDS[key].strip() or chr(0x23CE)} · {key}": percent(weight)
        for key, weight in total.items()
        if weight > 0
    }
    rows = shown(tab)
    assert {name: value for name, value in rows.items() if "other" not in name} == expected
    assert tab.locator("#lines path").count() == len(expected)
    assert tab.locator("#strongest").count() == (1 if answer else 0)


def test_one_head_by_mouse_and_by_keyboard(opened):
    found = explained()
    tab = opened(explanation(found))
    tab.locator('#roles [data-place="1-2"]').click()
    assert tab.locator("#layer").input_value() == "1"
    assert tab.locator("#number").input_value() == "2"
    # the chosen token has the long list: both keys, and the average of all others
    assert shown(tab) == {
        "Naïve · 1": "50\u00a0%",
        "cats · 3": "25\u00a0%",
        "average of 2 others": "25\u00a0%",
    }
    shares = tab.locator("#shares li b").all_text_contents()
    assert shares == [percent(value) for value, _, _ in found.heads[5].shares]
    tab.locator('#heat [data-place="1-2"]').press("ArrowLeft")
    tab.keyboard.press("Enter")
    assert tab.locator("#number").input_value() == "1"
    tab.locator(".token.chosen").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    assert tab.locator(".token.chosen").text_content() == "sat"
    key, weight = found.map.keys[4, 4, 0], found.map.weights[4, 4, 0] / 255
    assert shown(tab)[f"{WORDS[key].strip() or chr(0x23CE)} · {key}"] == percent(weight)


def test_on_a_phone_in_the_dark_nothing_is_wider_than_the_screen(opened):
    tab = opened(
        explanation(explained()), viewport={"width": 360, "height": 740}, color_scheme="dark", has_touch=True
    )
    tab.locator(".token").nth(4).tap()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("#theme").text_content() == "Light"
