"""The pages in Chromium: nothing requested, nothing wider than a phone, text that can be read in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.example import write_benchmark, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

# Contrast (WCAG 2) of every element with text of its own against the background behind it.
CONTRAST = """() => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const found = channels(getComputedStyle(node).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')]
    .filter(node => [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()))
    .filter(node => node.tagName !== 'SCRIPT')
    .map(node => {
      const style = getComputedStyle(node);
      const ink = node instanceof SVGElement ? style.fill : style.color;
      const [a, b] = [light(channels(ink)), light(behind(node))];
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), node.outerHTML.slice(0, 80)];
    }).sort((one, other) => one[0] - other[0])[0];
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_run(folder / "run.html")
    write_run(folder / "point.html", learned=False)
    write_benchmark(folder / "benchmark.html")
    return folder


@pytest.mark.parametrize("name", ["run", "point", "benchmark"])
@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "dark"), (390, "light"), (1280, "dark"), (1280, "light")]
)
def test_page_fits_reads_and_requests_nothing(
    browser: Browser, pages: Path, name: str, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    address = (pages / f"{name}.html").as_uri()
    page.goto(address)
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ratio, element = page.evaluate(CONTRAST)
    assert ratio >= 4.5, element
    context.close()
