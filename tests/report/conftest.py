from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="module")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine: make browser")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens data as a page; fails on any console error, page error or request but for the file itself."""
    from attnlimit.report.html import page  # here: jaxtyping must come first where this folder alone is run

    seen: list[str] = []
    contexts = []

    def open_page(data, **options):
        file = tmp_path / "report.html"
        file.write_text(page(data), encoding="utf-8")
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(10_000)
        tab = context.new_page()
        tab.on(
            "console", lambda message: seen.append(f"{message.type}: {message.text}")
        )  # CSP refusals land here
        tab.on("pageerror", lambda error: seen.append(f"error: {error}"))
        tab.on("request", lambda request: seen.append(request.url) if request.url != file.as_uri() else None)
        tab.goto(file.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []
