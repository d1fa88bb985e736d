"""The built site in Chromium, from a folder, without a server: axe, no requests, a search that finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.docs.built import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
PAGES = [
    "index",
    "guides/promises",
    "methods/lam",
    "reference/configuration",
    "reference/python/galleries",
    "results/cub",
]
DEVICES = {"laptop": (1280, 800), "phone": (390, 844)}


@contextmanager
def opened(browser: Browser, scheme: str, device: str, *, quiet: bool = True) -> Iterator[Page]:
    """A page that must fetch nothing but files, and say nothing to the console where it should be quiet."""
    width, height = DEVICES[device]
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})  # type: ignore[arg-type]
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert not quiet or complaints == []
    context.close()


@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_by_everybody(browser: Browser, site: Site, scheme: str, device: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    with opened(browser, scheme, device, quiet=False) as page:  # axe asks for styles, which a file may not
        for name in PAGES:
            page.goto((site.folder / f"{name}.html").as_uri())
            page.wait_for_selector("[data-md-component=search][role=dialog]", state="attached")
            page.wait_for_timeout(300)  # boxes that scroll are made reachable once the theme has made them
            found = axe.Axe().run(page).response["violations"]
            assert [
                (name, one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found
            ] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= DEVICES[device][0]
            shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (shown == "rgb(255, 255, 255)") == (scheme == "light")


@pytest.mark.parametrize(
    ("words", "place"), [("Procrustes", "ensembles.html"), ("training.patience", "configuration.html")]
)
def test_it_is_searched_without_a_server(browser: Browser, site: Site, words: str, place: str) -> None:
    with opened(browser, "light", "laptop") as page:
        page.goto((site.folder / "guides" / "choosing.html").as_uri())
        page.locator(".md-search__input").press_sequentially(words)
        result = page.locator(f'.md-search-result__link[href*="{place}"]').first
        result.wait_for()
        result.click()
        page.wait_for_url(f"**/{place}**")
        assert page.locator("h1").count() == 1


def test_a_word_that_is_nowhere_is_not_found(browser: Browser, site: Site) -> None:
    with opened(browser, "light", "laptop") as page:
        page.goto((site.folder / "index.html").as_uri())
        page.locator(".md-search__input").press_sequentially("xyzzyplugh")
        page.get_by_text("No matching documents").wait_for()


def test_the_promise_can_be_played_with(browser: Browser, site: Site) -> None:
    with opened(browser, "light", "laptop") as page:
        page.goto((site.folder / "guides" / "promises.html").as_uri())
        told = page.locator(".simulation p")
        before = told.inner_text()
        page.locator(".simulation input").nth(1).fill("60")
        assert told.inner_text() != before
