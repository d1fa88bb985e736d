"""How the page looks and reads in Chromium: axe, light, dark, laptop, phone, long labels, nothing that moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import doubtless
from doubtless.calibration.fit import Targets
from doubtless.gallery import Gallery
from doubtless.index.folder import FolderIndex
from doubtless.ingest.create import create_index_of_images
from doubtless.server.service.service import Service
from tests.ingest.pictures import write_folder
from tests.server.conftest import HOSTILE
from tests.server.visiting import DEVICES, Served, Visit, serving, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
VIEWS = ["ask", "gallery", "compare", "review", "map", "known", "lab"]
LOOKS = [("laptop", "light"), ("laptop", "dark"), ("phone", "light"), ("phone", "dark")]
LONG = 80

# Elements with words of their own that lie over each other, though neither is inside the other.
OVERLAPS = """() => {
  const seen = [...document.querySelectorAll('main *')]
    .filter(node => [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()))
    .filter(node => !node.closest('svg, [hidden], .unseen') && node.checkVisibility())
    .map(node => [node, [...node.getClientRects()].filter(box => box.width && box.height)]);
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const found = [];
  for (let i = 0; i < seen.length; i += 1) for (let j = i + 1; j < seen.length; j += 1) {
    const [[one, a], [other, b]] = [seen[i], seen[j]];
    if (one.contains(other) || other.contains(one)) continue;
    if (a.some(line => b.some(next => meet(line, next)))) {
      found.push([one.outerHTML.slice(0, 90), other.outerHTML.slice(0, 90)]);
    }
  }
  return found;
}"""
# Words that stick out of the box they are in, sideways.
SPILLS = """() => [...document.querySelectorAll('main *')]
  .filter(node => node.checkVisibility() && node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0)
  .filter(node => getComputedStyle(node).overflowX === 'visible' && getComputedStyle(node).display !== 'inline')
  .filter(node => !node.closest('svg'))
  .map(node => node.outerHTML.slice(0, 90))"""


def check_accessible(visit: Visit) -> None:
    """axe finds nothing, by the rules of WCAG nor by its own best practices."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    found = axe.Axe().run(visit.page).response["violations"]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found] == []


def check_fits(visit: Visit, device: str) -> None:
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= DEVICES[device][0]
    assert visit.page.evaluate(OVERLAPS) == []
    assert visit.page.evaluate(SPILLS) == []


@pytest.mark.parametrize(("device", "scheme"), LOOKS)
def test_every_view_can_be_read_by_everybody(
    browser: Browser, page: Served, device: str, scheme: str
) -> None:
    with visiting(browser, page, device=device, scheme=scheme) as visit:
        for view in VIEWS:
            visit.go(view)
            check_accessible(visit)
            check_fits(visit, device)
        visit.go("ask")
        visit.ask("abstain")
        for closed in visit.page.locator("summary").all():
            closed.click()
        check_accessible(visit)
        check_fits(visit, device)
        visit.page.locator(".tiles a").first.click()
        visit.page.wait_for_selector(".view-item .tiles")
        check_accessible(visit)
        check_fits(visit, device)


@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("decision", ["answer", "abstain", "not-in-gallery", "portrait"])
def test_the_verdict_is_on_the_first_screen_and_nothing_moves(
    browser: Browser, page: Served, device: str, decision: str
) -> None:
    with visiting(browser, page, device=device) as visit:
        visit.page.evaluate("window.shifts.length = 0")
        visit.ask(decision)
        for part in (".sentence", ".bars"):
            box = visit.page.locator(f".verdict {part}").bounding_box()
            assert box is not None
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= DEVICES[device][1]
        visit.page.wait_for_load_state("networkidle")
        visit.page.wait_for_timeout(100)
        assert visit.page.evaluate("window.shifts") == []


@pytest.mark.parametrize("view", VIEWS)
def test_views_do_not_move_once_they_are_drawn(browser: Browser, page: Served, view: str) -> None:
    with visiting(browser, page) as visit:
        visit.go(view)
        visit.page.wait_for_timeout(100)
        assert visit.page.evaluate("window.shifts") == []


def test_portrait_photos_have_no_bars(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.ask("portrait")
        image = visit.page.locator(".photo img")
        image.wait_for()
        box = image.bounding_box()
        assert box is not None
        assert box["width"] / box["height"] == pytest.approx(300 / 900, rel=0.02)
        shape = "all => all.map(one => getComputedStyle(one).objectFit)"
        fits = visit.page.eval_on_selector_all(".frame img", shape)
        assert set(fits) == {"cover"}


def named(count: int) -> list[str]:
    """Labels of 80 characters, with and without a place to break them."""
    words = ["Donaudampfschifffahrtsgesellschaft" * 3, "a very long name of a very plain thing " * 3]
    return [f"{number:03d} {words[number % 2]}"[:LONG].strip() for number in range(count)]


@pytest.fixture(scope="module")
def many(
    tiny_run: Path, tiny_npz: Path, page: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Served]]:
    """Galleries of 1 and of 500 labels of 80 characters, two pictures each."""
    folder = tmp_path_factory.mktemp("many")
    served = {}
    rng = np.random.default_rng(1)
    with np.load(tiny_npz) as file:
        seen = file["x_train"].astype(float)
    for count in (1, 500):
        base = seen[rng.integers(len(seen), size=count)] + rng.normal(0, 60, (count, 12, 12))
        images = np.repeat(base, 2, 0) + rng.normal(0, 12, (2 * count, 12, 12))
        labels = [label for label in named(count) for _ in range(2)]
        write_folder(folder / f"p{count}", images.clip(0, 255).astype(np.uint8), labels)
        index = folder / f"i{count}"
        create_index_of_images(index, doubtless.load(tiny_run), [folder / f"p{count}"])
        if count > 1:
            with FolderIndex.open(index, writable=True) as opened:
                Gallery(opened).calibrate(Targets(target_error=0.3))
        served[count] = Service.open(index)
    with serving(served[1], page.files) as one, serving(served[500], page.files) as all_of_them:
        yield {1: one, 500: all_of_them}


@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("count", [1, 500])
def test_captions_of_any_length_and_number_do_not_overlap(
    browser: Browser, many: dict[int, Served], device: str, count: int
) -> None:
    with visiting(browser, many[count], device=device) as visit:
        visit.ask("abstain")
        box = visit.page.locator(".verdict .sentence").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= DEVICES[device][1]
        check_fits(visit, device)
        for view in ("gallery", "review", "map", "known"):
            visit.go(view)
            check_fits(visit, device)
        visit.go("gallery")
        visit.page.locator(".tile a").first.click()
        visit.page.wait_for_selector(".view-item .below section")
        check_fits(visit, device)


def test_a_label_is_text_and_never_markup(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        for view in VIEWS:
            visit.go(view)
        visit.go("gallery?label=" + HOSTILE.replace("=", "%3D"))
        assert set(visit.page.locator(".tile .caption").all_inner_texts()) == {HOSTILE}
        visit.page.locator(".tile a").first.click()
        visit.page.wait_for_selector(".view-item .tiles")
        assert visit.page.inner_text("h1") == HOSTILE
        field = visit.page.locator(".adding [role=combobox]")
        visit.page.locator(".adding summary").click()
        field.fill("onerror")
        visit.page.locator("[role=option]", has_text="onerror").wait_for()
        assert visit.page.evaluate("window.hurt") is None
        assert visit.page.locator("main img[onerror]").count() == 0


def test_it_speaks_german_where_the_browser_does(browser: Browser, page: Served) -> None:
    with visiting(browser, page, locale="de-AT") as visit:
        assert visit.page.get_attribute("html", "lang") == "de"
        assert visit.page.inner_text("h1") == "Was ist das?"
        assert visit.ask("answer").startswith("Das ist ")
        assert " sicher" in visit.told()
        visit.page.get_by_text("Warum?").click()
        assert "nicht gemessen" in visit.page.inner_text(".why")
        assert "0," in visit.page.inner_text(".total")  # a German comma
        for view in VIEWS:
            visit.go(view)
            check_fits(visit, "laptop")
    with visiting(browser, page, locale="fr-FR") as visit:
        assert visit.page.get_attribute("html", "lang") == "en"


def test_the_keyboard_reaches_everything_in_order(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.ask("answer")
        visit.page.evaluate("document.activeElement.blur()")
        stops = []
        for _ in range(30):
            visit.page.keyboard.press("Tab")
            stops.append(
                visit.page.evaluate(
                    """() => { const e = document.activeElement, style = getComputedStyle(e);
                    if (e === document.body) return 'body';
                    if (style.outlineStyle === 'none') return '';
                    return e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText; }"""
                )
            )
        assert all(stops), stops
        wanted = ["Skip", "Ask", "Lab", "New photo", "Right", "It is", "Add this photo", "class-", "Why?"]
        places = [next(i for i, stop in enumerate(stops) if stop.startswith(word)) for word in wanted]
        assert places == sorted(places), stops
        visit.page.get_by_role("link", name="Map").focus()
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector(".dot")
        assert (
            visit.page.evaluate("document.activeElement.id") == "main"
        )  # whoever cannot see is brought along
        assert visit.page.title() == "Map · doubtless"
